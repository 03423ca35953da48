#!/bin/sh
# Starts Trifold with a double click on macOS; works in any Linux terminal too.
cd "$(dirname "$0")/../.." || exit 1
status=127
for python in python3.13 python3.12 python3.11 python3; do
    "$python" -c "" 2>/dev/null || continue # on macOS without Python, python3 only offers the tools of developers
    "$python" launch.py "$@" && exit
    status=$?
    break
done
[ "$status" -eq 127 ] && echo "Python is missing. Install Python 3.13 from https://www.python.org first."
echo "Press Enter to close."
read -r _
exit "$status"
