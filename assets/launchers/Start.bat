@echo off
rem Starts Trifold with a double click on Windows. Both names of Python are tried.
cd /d "%~dp0..\.."
set PYTHON=py -3
where py >nul 2>nul || set PYTHON=python
%PYTHON% --version >nul 2>nul
if errorlevel 1 (
    echo Python is missing. Install Python 3.13 from https://www.python.org first.
    pause
    exit /b 1
)
%PYTHON% launch.py %*
rem Programs that crash end with a negative number.
if not %errorlevel%==0 pause
