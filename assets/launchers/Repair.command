#!/bin/sh
# Makes Trifold's environment afresh, then starts it. Books, chats and models stay.
exec "$(dirname "$0")/Start.command" --repair
