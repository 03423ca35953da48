"""``test``: formatting, lint, types and the tests, one after the other, the tests last.

The packages for it come from tests/requirements.txt; the launcher has installed them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from app.launcher.speech import say
from app.settings import CHECKOUT, Settings

EXIT_FAILED = 1

# Many tests wait for programs that they have started, so two processes share them; more would ask for more memory than
# a small machine has. ``-n 0`` is one test after the other.
_PYTEST = ("pytest", "--numprocesses=2")

_CHECKS = {
    "formatting": ("ruff", "format", "--check", "."),
    "lint": ("ruff", "check", "."),
    "types": ("mypy",),
}


def run(options: argparse.Namespace, settings: Settings) -> int:
    """All checks run even when one fails, so that one run tells everything. Returns pytest's status if it failed."""
    failed = [name for name, command in _CHECKS.items() if _python(name, *command) != 0]
    if failed:
        say(f"Not clean: {', '.join(failed)}. The tests run all the same.")
    status = _python("tests", *_PYTEST, *options.rest)
    return status or (EXIT_FAILED if failed else 0)


def _python(name: str, *module_and_arguments: str) -> int:
    say(f"-- {name}")
    return subprocess.run([sys.executable, "-m", *module_and_arguments], cwd=CHECKOUT).returncode
