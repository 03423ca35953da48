@echo off
rem Makes Trifold's environment afresh, then starts it. Books, chats and models stay.
call "%~dp0Start.bat" --repair
