"""Bad files of office, ebook and text formats: cut, flipped, bombs. Each is read or refused with one clear sentence."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path
from typing import Any

import pytest

from app.readers import detect, read_document
from app.readers.parsed import Limits, Refused
from engine.errors import DocumentError
from tests.app.readers import samples
from tests.tally import count

_NAMES = sorted(samples.MADE)
_ZIPPED = [name for name in _NAMES if name.rpartition(".")[2] in ("pptx", "xlsx", "ods", "odt", "odp", "zip", "cbz")]
_FLIPPED = 60  # damaged copies of each file


def _silent(done: int, total: int, page: int | None) -> None:
    """Nobody listens."""


def _read_or_refused(path: Path) -> None:
    """A refusal must be a sentence."""
    count("fuzzed documents")
    try:
        detect.parse(path, {}, Limits(), _silent)
    except Refused as error:
        refused = error
    else:
        return
    assert refused.cause.endswith("."), refused.cause
    assert refused.remedy.endswith("."), refused.remedy
    assert "Error" not in refused.cause, refused.cause


@pytest.mark.parametrize("name", _NAMES)
def test_a_sound_file_is_read_in_the_child(files: Any, name: str) -> None:
    document = read_document(samples.MADE[name](files))
    assert samples.WORDS in document.text, document.text
    assert document.warnings == ()


@pytest.mark.parametrize("name", _NAMES)
def test_a_cut_file_is_read_or_refused(files: Any, name: str) -> None:
    data = samples.MADE[name](files).read_bytes()
    for part in (1, 3, 6, 9):
        _read_or_refused(files.raw(f"cut-{name}", data[: max(len(data) * part // 10, 8)]))


@pytest.mark.parametrize("name", _NAMES)
def test_a_flipped_file_is_read_or_refused(files: Any, name: str) -> None:
    data = samples.MADE[name](files).read_bytes()
    for seed in range(_FLIPPED):
        chance, flipped = random.Random(seed), bytearray(data)
        for _ in range(chance.randrange(1, 6)):
            flipped[chance.randrange(len(flipped))] = chance.randrange(256)
        _read_or_refused(files.raw(f"flipped-{name}", bytes(flipped)))


@pytest.mark.parametrize("name", _ZIPPED)
def test_every_part_may_be_broken(files: Any, name: str) -> None:
    with zipfile.ZipFile(samples.MADE[name](files)) as file:
        parts = [(one, file.read(one)) for one in file.namelist()]
    for broken, data in parts:
        for content in (b"", b"<", data[: len(data) // 2], random.Random(1).randbytes(200), b"<a>" * 3_000):
            entries = [(one, content if one == broken else kept) for one, kept in parts]
            _read_or_refused(files.zipped(f"broken-{name}", entries))
        _read_or_refused(files.zipped(f"broken-{name}", [(one, kept) for one, kept in parts if one != broken]))


@pytest.mark.parametrize("name", _ZIPPED)
def test_a_bomb_is_refused(files: Any, name: str) -> None:
    with zipfile.ZipFile(samples.MADE[name](files)) as file:
        parts = [(one, file.read(one)) for one in file.namelist()]
    path = files.zipped(f"bomb-{name}", [*parts, ("bomb.xml", b"0" * 30_000_000)])
    with pytest.raises(DocumentError, match="zip bomb"):
        read_document(path)
