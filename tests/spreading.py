"""How the tests are spread over several processes: whole files, each process with a kind of its own to begin with.

Browsers and programs that tests start and kill are waited for most of the time, and products are computed all of it. So
one process drives the browser, one starts programs, and one computes. A fourth takes what is there, as does who has
nothing left of his kind: that keeps two cores busy while others wait.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

from tests.house import ROOT

BROWSER = "tests/e2e/"
# What starts programs and waits for them; what takes long first, since it would keep one process busy at the end.
WAITING = (
    "tests/faults/",
    "tests/test_install.py",
    "tests/test_launch.py",
    "tests/app/cli/",
    "tests/offline/",
    "tests/app/models/",
    "tests/app/launcher/",
    "tests/app/readers/",
)
# The same of what computes; all that is not named comes behind.
COMPUTING = ("tests/assets/", "tests/engine/gpu/", "tests/engine/decode/", "tests/engine/bench/", "tests/engine/")

_KINDS: Sequence[Sequence[str]] = ((BROWSER,), COMPUTING, WAITING)


def import_share(arguments: Sequence[str]) -> None:
    """Import this process's share of the files that all processes collect, so that each file is compiled by one of
    them: the others find that on disk. What cannot be imported is left to be collected, and told there."""
    given = [(ROOT / argument.split("::")[0]).resolve() for argument in arguments]
    files = sorted({file for path in given for file in (path.rglob("test_*.py") if path.is_dir() else [path])})
    worker = int(os.environ["PYTEST_XDIST_WORKER"].removeprefix("gw"))
    for file in files[worker :: int(os.environ["PYTEST_XDIST_WORKER_COUNT"])]:
        with suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


def kind(node: str) -> int:
    """Which of the kinds a test is, by its node id."""
    return next((at for at, places in enumerate(_KINDS) if node.startswith(tuple(places))), _KINDS.index(COMPUTING))


def rank(node: str) -> int:
    """The place of a test in the queue of its kind, by its node id."""
    places = _KINDS[kind(node)]
    return next((at for at, place in enumerate(places) if node.startswith(place)), len(places))


class WholeFiles(LoadFileScheduling):
    """A file's tests share what is slow to make; the browser's files share their servers and the browser."""

    def _split_scope(self, nodeid: str) -> str:
        return BROWSER if nodeid.startswith(BROWSER) else super()._split_scope(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        first = int(node.gateway.id.removeprefix("gw")) % len(_KINDS)
        mine = next((scope for scope in self.workqueue if kind(scope) == first), next(iter(self.workqueue)))
        self.workqueue.move_to_end(mine, last=False)
        super()._assign_work_unit(node)


def scheduler(config: Any, log: Callable[..., None]) -> WholeFiles:
    config.option.loadscopereorder = False  # the order is ours
    return WholeFiles(config, log)
