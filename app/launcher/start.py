"""Makes the program's Python environment if it is missing or incomplete, then runs launch.py again inside the
environment.

This is fast if the environment is complete: two small files are read, one folder is listed, and few modules are
imported.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from app.core.settings import CHECKOUT, EXIT_BAD_INPUT, EXIT_INTERRUPTED
from app.launcher.environment import PROGRAM, TESTS, Environment, PackageSet, find_environment

REPAIR = "--repair"


def start(arguments: Sequence[str]) -> int:
    """Run a command line and return its exit status. On Unix, a command that runs inside the environment replaces this
    process, so the function does not return.

    If pip has installed the program (``trifold``), no environment is made, and the command runs in this Python.
    """
    # without a requirements file, pip has installed the program together with its packages
    if not PROGRAM.requirements.exists():
        return run_command(arguments)
    repair = list(arguments[:1]) == [REPAIR]
    if repair:
        arguments = arguments[1:]
    environment = find_environment()
    package_sets = [PROGRAM, TESTS] if list(arguments[:1]) == ["test"] else [PROGRAM]
    if not repair and all(environment.is_ready(package_set) for package_set in package_sets):
        return run_command(arguments) if environment.is_running() else hand_over(environment, arguments)
    return prepare(environment, package_sets, arguments, repair)


def prepare(
    environment: Environment, package_sets: Sequence[PackageSet], arguments: Sequence[str], repair: bool
) -> int:
    """Install what the environment lacks, then run the command inside the environment. A command line that needs no
    packages, such as ``--help``, is run in this process instead.
    """
    if not repair and needs_no_packages(arguments):
        return run_command(arguments)
    # a process inside the environment cannot rebuild it, so the Python outside starts launch.py again
    if environment.is_running():
        outside = getattr(sys, "_base_executable", sys.executable)
        return replace_process([outside, *_own_command(arguments, repair or not environment.is_usable())])
    from app.launcher import install
    from app.launcher.console import LaunchError, say

    try:
        install.ensure(environment, package_sets, rebuild=repair)
    except LaunchError as error:
        say(str(error))
        return EXIT_BAD_INPUT
    except OSError as error:
        say(f"{error.filename}: {error.strerror}. Set TRIFOLD_HOME to a folder that you may write to, and start again.")
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        say("\nStopped. The next start goes on from here.")
        return EXIT_INTERRUPTED
    return hand_over(environment, arguments)


def needs_no_packages(arguments: Sequence[str]) -> bool:
    """Whether no environment is needed, because the command line is invalid or only asks for help."""
    # ``app.cli.arguments`` needs no installed package, so it can be imported here before an install
    from app.cli.arguments import is_complete

    return not is_complete(arguments)


def run_command(arguments: Sequence[str]) -> int:
    from app.cli.main import main

    return main(arguments)


def hand_over(environment: Environment, arguments: Sequence[str]) -> int:
    """Start this program again inside its environment."""
    return replace_process([str(environment.python), *_own_command(arguments)])


def replace_process(command: Sequence[str]) -> int:
    """Replace this process by another command. On Windows that is impossible, so the command runs as a child of this
    process.
    """
    from app.launcher.environment import child_variables

    sys.stdout.flush()
    sys.stderr.flush()
    variables = child_variables()
    try:
        if os.name != "nt":
            os.execve(command[0], list(command), variables)
        process = subprocess.Popen(command, env=variables)
    except OSError as error:
        sys.stderr.write(f"{command[0]} does not start: {error.strerror}. Start with {REPAIR} to make it afresh.\n")
        return EXIT_BAD_INPUT
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:  # Ctrl-C reaches the command too, so this process waits until the command ends
            continue


def _own_command(arguments: Sequence[str], repair: bool = False) -> list[str]:
    return [str(CHECKOUT / "launch.py"), *([REPAIR] if repair else []), *arguments]
