@echo off
rem Builds Trifold's environment again, then starts Trifold. Books, chats and models are kept.
call "%~dp0Start.bat" --repair
