"""At a terminal the password of a document is asked for, unseen, and may be mistyped."""

from __future__ import annotations

import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from app.cli import read
from app.readers import read_document
from engine.errors import PasswordNeeded

_WORDS = "Nobody but the keeper may read this."


@pytest.fixture
def locked(files: Any, tmp_path: Path) -> Path:
    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(files.pdf("open.pdf", [[(72, 700, _WORDS)]])))
    writer.encrypt("ländlich", algorithm="AES-256")
    path = tmp_path / "locked.pdf"
    with path.open("wb") as file:
        writer.write(file)
    return path


def test_a_password_with_letters_of_its_own_opens(locked: Path) -> None:
    with pytest.raises(PasswordNeeded, match="protected"):
        read_document(locked)
    assert _WORDS in read_document(locked, "ländlich").text


def test_without_a_terminal_the_option_is_named(locked: Path) -> None:
    with pytest.raises(PasswordNeeded, match="--password"):
        read.open_book(str(locked))


@pytest.mark.skipif(sys.platform == "win32", reason="terminals of this kind are not there")
def test_at_a_terminal_it_is_asked_for(locked: Path, checkout: Path) -> None:
    import pty

    program = f"from app.cli.read import open_book; print(open_book({str(locked)!r}).text)"
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(checkout)
        os.execv(sys.executable, [sys.executable, "-c", program])
    shown = ""
    for typed in ("wrong\n", "ländlich\n"):
        shown = _until(terminal, shown, "Password: ")
        os.write(terminal, typed.encode())
        shown += "\n"
    shown = _until(terminal, shown, _WORDS)
    os.waitpid(pid, 0)
    os.close(terminal)
    assert "does not open with this password" in shown
    assert "ländlich" not in shown


def _until(terminal: int, shown: str, words: str) -> str:
    end = time.monotonic() + 30
    seen = len(shown)
    while words not in shown[seen:]:
        assert time.monotonic() < end, shown
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace")
    return shown
