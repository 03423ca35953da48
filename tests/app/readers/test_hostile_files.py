"""Many files of the hostile kinds: each is a book or a sentence, in seconds, and nothing is left behind."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from app.readers import Limits, read_document
from engine.document import Document
from engine.errors import DocumentError
from tests.app.readers import hostile_pdf, hostile_text, hostile_zip
from tests.parsers import reading_children
from tests.tally import count

_LIMITS = Limits(seconds_per_page=6.0, seconds=30.0)
_FORBIDDEN = {chr(code) for code in (*range(0x00, 0x0A), *range(0x0B, 0x20), *range(0x202A, 0x202F), 0xAD)}


def _read(path: Path) -> tuple[Document | None, DocumentError | None]:
    try:
        return read_document(path, limits=_LIMITS), None
    except DocumentError as error:
        return None, error


def _outcome(path: Path) -> tuple[Document | None, str]:
    before = time.monotonic()
    document, refusal = _read(path)
    if document is None:
        assert refusal is not None
        assert path.name in refusal.cause
        assert refusal.cause.endswith(".")
        assert refusal.remedy.endswith(".")
        assert "Error" not in refusal.cause, "names a class"
        said = refusal.cause
    else:
        said = document.text
        assert not _FORBIDDEN & set(said)
        assert len(document.warnings) <= 40
        assert len({page.label for page in document.pages}) == len(document.pages)
    assert time.monotonic() - before < _LIMITS.seconds + 5
    assert not reading_children()
    count("hostile documents")
    return document, said


@pytest.mark.parametrize("name", hostile_pdf.READ)
def test_odd_pdf_is_read(files: Any, name: str) -> None:
    document, said = _outcome(hostile_pdf.write(files, hostile_pdf.READ[name]()))
    assert document is not None, said
    assert hostile_pdf.WORDS in said


@pytest.mark.parametrize("name", hostile_pdf.REFUSED)
def test_pdf_beyond_a_bound_is_a_sentence(files: Any, name: str) -> None:
    make, sentence = hostile_pdf.REFUSED[name]
    _, said = _outcome(hostile_pdf.write(files, make()))
    assert re.search(sentence, said)


@pytest.mark.parametrize("name", hostile_zip.READ)
def test_odd_container_is_read(files: Any, name: str) -> None:
    document, said = _outcome(hostile_zip.READ[name](files))
    assert document is not None, said
    assert "words" in said
    assert "root:" not in said


@pytest.mark.parametrize("name", hostile_zip.REFUSED)
def test_bad_container_is_a_sentence(files: Any, name: str) -> None:
    make, sentence = hostile_zip.REFUSED[name]
    document, said = _outcome(make(files))
    assert document is None
    assert re.search(sentence, said)


@pytest.mark.parametrize("name", hostile_text.READ)
def test_text_against_patterns_is_read(files: Any, name: str) -> None:
    file, make = hostile_text.READ[name]
    document, said = _outcome(files.raw(file, make()))
    assert document is not None, said
    assert "words" in said


def test_labels_in_a_ring_cost_the_labels_only(files: Any) -> None:
    document, _ = _outcome(hostile_pdf.write(files, hostile_pdf.READ["page labels in a ring"]()))
    assert document is not None
    assert [page.label for page in document.pages] == ["1"]
    assert any("labels" in warning for warning in document.warnings)


def test_missing_chapters_are_said_without_end(files: Any) -> None:
    document, _ = _outcome(hostile_zip.READ["chapters missing by the thousand"](files))
    assert document is not None
    assert document.warnings[0] == "“m0.xhtml” could not be read: it is missing from the file."
    assert document.warnings[-1] == "There are 19,970 more warnings of this kind."
