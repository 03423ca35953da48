"""Starts Trifold. This is the only file that a person runs: by ``python launch.py`` or by a double click.

Finds a Python that the program can use, and runs ``app.launcher`` with it. The launcher creates a virtual environment
at the first start and runs the program inside it. Python 2.7 and all later versions can parse this file, so that an
unsupported Python is reported in words instead of as a syntax error.
"""
# Rules of ruff that ask for newer syntax are switched off, because Python 2.7 must be able to parse this file.
# ruff: noqa: RUF005, UP031

import os
import subprocess
import sys

OLDEST = (3, 11)
NEWEST = (3, 13)
CHECKOUT = os.path.dirname(os.path.realpath(__file__))
EXIT_BAD_INPUT = 2


def find_supported_python():
    """Return the command of the newest Python on this machine among the supported versions; None if there is none."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        version = "3.%d" % minor
        command = ["py", "-" + version] if os.name == "nt" else ["python" + version]
        check = "import sys; sys.exit(sys.version_info[:2] != (3, %d))" % minor
        try:
            with open(os.devnull, "w") as nowhere:
                if subprocess.call(command + ["-c", check], stdout=nowhere, stderr=nowhere) == 0:
                    return command
        except OSError:
            continue
    return None


def use_another_python():
    """Start again under a supported Python. If there is none, say which versions can be installed. Return the exit
    status.
    """
    running = "%d.%d" % sys.version_info[:2]
    supported = "%d.%d to %d.%d" % (OLDEST + NEWEST)
    command = find_supported_python()
    if command is None:
        sys.stderr.write(
            "This is Python %s, and Trifold needs Python %s. Install one of these from https://www.python.org "
            "and start launch.py with it.\n" % (running, supported)
        )
        return EXIT_BAD_INPUT
    sys.stderr.write("This is Python %s; using %s instead.\n" % (running, " ".join(command)))
    process = subprocess.Popen(command + [os.path.realpath(__file__)] + sys.argv[1:])
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # the other Python also received Ctrl-C; wait until it has reacted
            continue


def main():
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return use_another_python()
    if CHECKOUT not in sys.path:  # needed with PYTHONSAFEPATH, which keeps the script's own folder out of ``sys.path``
        sys.path.insert(0, CHECKOUT)
    from app.launcher.start import start

    return start(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
