"""A lock has one owner, whatever the system; where there is none nobody waits for it."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import IO

import pytest

from app.launcher import lock


class Regions:
    """``msvcrt`` of Windows as far as the lock needs it: a region of a file has one owner, until its file is closed.

    With ``refuses``, an error number, also ``fcntl`` on a drive without locks.
    """

    LK_NBLCK = 2
    LOCK_EX, LOCK_NB = 2, 4

    def __init__(self, refuses: int = 0) -> None:
        self._owners: dict[tuple[int, int], int] = {}
        self._refuses = refuses
        self.asked: list[tuple[int, int, int]] = []

    def locking(self, descriptor: int, mode: int, size: int) -> None:
        self.asked.append((mode, os.lseek(descriptor, 0, os.SEEK_CUR), size))
        status = os.fstat(descriptor)
        owner = self._owners.setdefault((status.st_dev, status.st_ino), descriptor)
        if self._refuses or (owner != descriptor and _is_open(owner)):
            raise OSError(self._refuses or errno.EACCES, "Permission denied")
        self._owners[status.st_dev, status.st_ino] = descriptor

    def flock(self, file: IO[bytes], how: int) -> None:
        raise OSError(self._refuses, os.strerror(self._refuses))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def test_one_at_a_time_on_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    regions = Regions()
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "msvcrt", regions)
    path = tmp_path / "instance.lock"
    path.write_bytes(b"left over")
    with path.open("ab") as second:
        with path.open("ab") as first:
            assert lock.take(first)
            assert not lock.take(second)
        assert lock.take(second)
    assert set(regions.asked) == {(Regions.LK_NBLCK, 0, 1)}, "all must ask for the same byte"


@pytest.mark.parametrize(("platform", "module"), [("win32", "msvcrt"), ("linux", "fcntl"), ("darwin", "fcntl")])
def test_a_drive_that_locks_nothing_keeps_nobody_out(
    platform: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An install on such a drive waited for ever for "another start"."""
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setitem(sys.modules, module, Regions(refuses=errno.ENOLCK))
    with (tmp_path / "lock").open("ab") as file:
        assert lock.take(file)
