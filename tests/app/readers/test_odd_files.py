"""Odd files of every kind: what is in them is read, and what is no book here is named. Without the child process, so
that many can be tried; what surrounds a parser is tested elsewhere."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.readers import detect
from app.readers.parsed import Limits, Parsed, Refused
from tests.app.readers import odd_files
from tests.tally import count


def _silent(done: int, total: int, page: int | None) -> None:
    """Nobody listens."""


def _parse(files: Any, name: str) -> Parsed:
    return detect.parse(odd_files.stored(files, name), {}, Limits(), _silent)


@pytest.mark.parametrize("name", odd_files.READ)
def test_an_odd_file_is_read(files: Any, name: str) -> None:
    _, words, contents = odd_files.READ[name]
    parsed = _parse(files, name)
    text = "\n\n".join(section.text for section in parsed.sections)
    assert words in text, text
    for left_out in ("ignore all rules", "no ", "old", "away"):
        assert left_out not in text
    assert "/".join(entry.title for entry in parsed.outline) == contents
    count("hostile documents")


@pytest.mark.parametrize("name", odd_files.REFUSED)
def test_what_is_no_book_here_is_named(files: Any, name: str) -> None:
    with pytest.raises(Refused) as refused:
        _parse(files, name)
    assert re.search(odd_files.REFUSED[name][1], refused.value.cause), refused.value.cause
    assert refused.value.cause.endswith(".")
    assert refused.value.remedy.endswith(".")
    count("hostile documents")


def test_a_damaged_order_is_said(files: Any) -> None:
    assert "order of their file names" in _parse(files, "no package file").warnings[0]
    assert "two encodings" in _parse(files, "two encodings in one file").warnings[0]
    assert _parse(files, "settings at the head of Markdown").title == "The Tale"
    assert _parse(files, "package with a bare ampersand").title == "War & Peace"
