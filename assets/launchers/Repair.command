#!/bin/sh
# Builds Trifold's environment again, then starts Trifold. Books, chats and models are kept.
exec "$(dirname "$0")/Start.command" --repair
