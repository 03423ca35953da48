"""How the tests are spread over several processes: whole files, what takes long first, the browser's in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xdist.scheduler import LoadFileScheduling

BROWSER = "tests/e2e/"
# Last in a queue, one of these would keep one process busy while the other has nothing left to do.
LONG = (
    BROWSER,
    "tests/assets/",
    "tests/faults/",
    "tests/offline/",
    "tests/test_launch.py",
    "tests/test_install.py",
    "tests/app/cli/",
)


def rank(node: str) -> int:
    """The place of a test in the queue, by its node id."""
    return next((at for at, place in enumerate(LONG) if node.startswith(place)), len(LONG))


class WholeFiles(LoadFileScheduling):
    """A file's tests share what is slow to make; the browser's files share their servers and the browser."""

    def _split_scope(self, nodeid: str) -> str:
        return BROWSER if nodeid.startswith(BROWSER) else super()._split_scope(nodeid)


def scheduler(config: Any, log: Callable[..., None]) -> WholeFiles:
    config.option.loadscopereorder = False  # the order is ours
    return WholeFiles(config, log)
