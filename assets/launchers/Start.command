#!/bin/sh
# Starts Trifold with a double click on macOS; works in any Linux terminal too.
cd "$(dirname "$0")/../.." || exit 1
for python in python3.13 python3.12 python3.11 python3.10 python3; do
    "$python" -c "" 2>/dev/null && "$python" launch.py "$@" && exit
    status=$?
    [ "$status" -eq 126 ] || [ "$status" -eq 127 ] || break
done
[ "$status" -eq 127 ] && echo "Python is missing. Install Python 3.13 from https://www.python.org first."
echo "Press Enter to close."
read -r _
exit "$status"
