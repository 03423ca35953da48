"""``bench`` runs the engine's own bench, with the bundled models and the bundled book unless the person names other
models or another book.

``test`` checks formatting and lint. Then it runs the tests and the type checker at the same time, because the processor
is idle while tests wait. The launcher has installed the packages that ``test`` needs, from tests/requirements.txt.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from app.cli.read import open_book
from app.core.settings import CHECKOUT, COMMAND, EXIT_FAULT, INSTALLED, SAMPLE_BOOKS, Settings
from app.launcher.console import say
from engine.errors import TrifoldError


def run_bench(options: argparse.Namespace, settings: Settings) -> int:
    from app.core.suggestions import Sample
    from engine.bench import main

    return main(
        options.rest,
        model=settings.model,
        draft=settings.draft,
        book=Sample(SAMPLE_BOOKS).file or SAMPLE_BOOKS,
        open_book=lambda path: open_book(str(Path(path))),
        prog=f"{COMMAND} bench",
    )


# Number of processes that run tests at the same time, keyed by the minimum bytes of memory for it. It may exceed the
# number of cores, because many tests wait for programs that they have started (``tests/spreading.py``). On two cores
# four take a tenth less time than three. Another number can be chosen with ``-n``; 0 runs one test after another.
_PROCESSES = {10_000_000_000: 4, 7_000_000_000: 3, 0: 2}

# Option of pytest that runs a failed test once more. Many tests start programs and wait for them, and on a busy machine
# a program may be late. A test that passes only the second time is named at the end, with its first failure.
_SECOND_TRY = "--reruns=1"

_CHECKS = {"formatting": ("ruff", "format", "--check", "."), "lint": ("ruff", "check", ".")}


def run_checks(options: argparse.Namespace, settings: Settings) -> int:
    """Run all checks, even if one fails, so that one run shows every failure. Return 0, or pytest's exit status if
    pytest failed, or ``EXIT_FAULT`` if another check failed.

    Raises:
        TrifoldError: this installation has no tests.
    """
    if INSTALLED:
        raise TrifoldError("The installed package has no tests.", "Run launch.py test in a checkout of the repository.")
    failed = [name for name, command in _CHECKS.items() if _python(name, *command) != 0]
    import psutil

    memory = psutil.virtual_memory().total
    processes = next(count for least, count in _PROCESSES.items() if memory >= least)
    # mypy gets a lower priority, so that it does not disturb tests that measure time
    gentle = ["nice"] if shutil.which("nice") else []
    command = [*gentle, sys.executable, "-m", "mypy"]
    with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as types:
        status = _python("tests", "pytest", f"--numprocesses={processes}", _SECOND_TRY, *options.rest)
        say("-- types")
        output, _ = types.communicate()
    say(output.decode(errors="replace").rstrip())
    if types.returncode:
        failed.append("types")
    if failed:
        say(f"Not clean: {', '.join(failed)}.")
    return status or (EXIT_FAULT if failed else 0)


def _python(name: str, *module_and_arguments: str) -> int:
    say(f"-- {name}")
    return subprocess.run([sys.executable, "-m", *module_and_arguments], cwd=CHECKOUT).returncode
