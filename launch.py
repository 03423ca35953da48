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
EXIT_INTERRUPTED = 130
INNER = "TRIFOLD_INNER"  # environment variable of a launch.py that another launch.py has started
MAX_PROCESSES = 16  # maximum processes of a console window that are looked at
QUERY_LIMITED_INFORMATION = 0x1000  # access right of Windows that is enough to ask for a process's program
MAX_PATH_LENGTH = 1024  # maximum characters of a program's path


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
    if not os.path.isdir(os.path.join(CHECKOUT, "app")):  # Windows opens a single file of an archive
        sys.stderr.write(
            "The other files of Trifold are not beside launch.py. Unpack the whole archive, then start the launch.py "
            "in the new folder.\n"
        )
        return EXIT_BAD_INPUT
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return use_another_python()
    if CHECKOUT not in sys.path:  # needed with PYTHONSAFEPATH, which keeps the script's own folder out of ``sys.path``
        sys.path.insert(0, CHECKOUT)
    from app.launcher.start import start

    return start(sys.argv[1:])


def has_own_window():
    """Return whether the console window closes when this program ends, as after a double click on Windows: only
    programs whose name begins with "py" use it, which are Python and its starters, and no shell.
    """
    if sys.platform != "win32":
        return False
    try:
        import ctypes

        kernel = ctypes.windll.kernel32
        kernel.OpenProcess.restype = ctypes.c_void_p
        numbers = (ctypes.c_uint32 * MAX_PROCESSES)()
        count = kernel.GetConsoleProcessList(numbers, MAX_PROCESSES)
        if not 0 < count <= MAX_PROCESSES:
            return False
        for number in numbers[:count]:
            name, length = ctypes.create_unicode_buffer(MAX_PATH_LENGTH), ctypes.c_uint32(MAX_PATH_LENGTH)
            handle = ctypes.c_void_p(kernel.OpenProcess(QUERY_LIMITED_INFORMATION, False, number))
            kernel.QueryFullProcessImageNameW(handle, 0, name, ctypes.byref(length))
            kernel.CloseHandle(handle)
            if not name.value.lower().rpartition("\\")[2].startswith("py"):
                return False
        return True
    except (ImportError, AttributeError, OSError, ValueError):
        return False


def run():
    """Run ``main``. If it fails in a window that would close at once, wait until the person has read why. Returns the
    exit status.
    """
    is_inner = INNER in os.environ
    os.environ[INNER] = "1"
    status = main()
    if status not in (0, EXIT_INTERRUPTED) and not is_inner and has_own_window():
        sys.stderr.write("Press Enter to close.\n")
        sys.stderr.flush()
        sys.stdin.readline()
    return status


if __name__ == "__main__":
    sys.exit(run())
