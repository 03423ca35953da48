"""Files that are written as a whole, or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from app.core import whole_files
from app.core.whole_files import PRIVATE, write_whole

posix = pytest.mark.skipif(os.name != "posix", reason="this system has no such permissions")


@posix
def test_a_private_file_is_private_whatever_the_umask_and_the_file_before(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.touch(mode=0o644)
    before = os.umask(0)
    try:
        write_whole(file, "secret", PRIVATE)
        write_whole(tmp_path / "table.csv", b"1,2")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "table.csv").stat().st_mode) == 0o666


@posix
def test_a_planted_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    (tmp_path / "open.html").symlink_to(theirs)
    write_whole(tmp_path / "open.html", "“Öl”", PRIVATE)
    assert theirs.read_text() == "theirs"
    assert (tmp_path / "open.html").read_text(encoding="utf-8") == "“Öl”"


def test_what_is_interrupted_leaves_the_file_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "choice.json"
    write_whole(file, "before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(whole_files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(file, "after")
    assert [path.name for path in tmp_path.iterdir()] == ["choice.json"]
    assert file.read_text() == "before"
