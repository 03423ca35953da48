@echo off
rem Starts Trifold with a double click on Windows. Both names of Python are tried.
cd /d "%~dp0..\.."
set PYTHON=py -3
where py >nul 2>nul || set PYTHON=python
%PYTHON% --version >nul 2>nul || echo Python is missing. Install Python 3.13 from https://www.python.org first.
%PYTHON% launch.py %*
if errorlevel 1 pause
