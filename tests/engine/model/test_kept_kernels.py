"""Compiled kernels that are kept on disk: used at the next start, and never damaged or where others write."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine.model.kernels import kept, native, pool

pytestmark = pytest.mark.skipif(native.own() is None, reason="no kernels of our own on this processor")

Start = Callable[[], int]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.delenv(kept.VARIABLE)
    kept.keep_in(str(tmp_path / "kernels"))
    yield tmp_path / "kernels"
    monkeypatch.undo()
    kept.keep_in("")


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    """What a start does with kernels: says how many it had to compile, and computes with them."""
    compiled: list[str] = []
    compile_ = pool._compiled

    def counted(text: str, machine: object) -> bytes:
        compiled.append(text)
        return compile_(text, machine)

    def begin() -> int:
        compiled.clear()
        x, weight = torch.arange(12.0).reshape(3, 4), torch.full((4,), 2.0)
        found = native.Native(workers=1, lanes=4).norm(x, weight, 1e-5)
        expected = 2 * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        assert torch.allclose(found, expected, atol=1e-5)
        return len(compiled)

    monkeypatch.setattr(pool, "_compiled", counted)
    return begin


def test_a_second_start_neither_compiles_nor_emits(folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start emitted all kernels, half a second of a real model's, to find the kept ones by their text."""
    first = start()
    found = {file.name for file in folder.iterdir()}
    assert first == len(found) - 1 > 0  # and the hash of the sources
    native.Native(workers=1, lanes=8).norm(torch.ones(1, 8), torch.ones(8), 1e-5)  # of another kind
    assert len(found) < len(list(folder.iterdir()))

    def refuse(*_: object) -> None:
        raise AssertionError("emitted")

    monkeypatch.setattr("engine.model.kernels.emit.emitter.Emitter.__init__", refuse)
    assert start() == 0


def test_damaged_and_cut_files_are_compiled_anew(folder: Path, start: Start) -> None:
    first = start()
    one, *others = sorted(folder.iterdir())
    data = bytearray(one.read_bytes())
    data[len(data) // 2] ^= 1
    one.write_bytes(data)
    for other in others:
        other.write_bytes(other.read_bytes()[:40])
    assert start() == first
    assert start() == 0


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="the system does not tell who may write")
def test_a_folder_that_others_write_to_is_not_used(folder: Path, start: Start) -> None:
    first = start()
    folder.chmod(0o777)
    assert start() == first


@pytest.mark.parametrize("what", [(pool, "_feature_list"), (kept, "_sum_of_sources")], ids=["processor", "program"])
def test_of_another_processor_or_program_nothing_is_used(
    folder: Path, start: Start, monkeypatch: pytest.MonkeyPatch, what: tuple[object, str]
) -> None:
    first = start()
    other = getattr(*what)() + ",-sse4a"
    monkeypatch.setattr(*what, lambda: other)
    assert start() == first


SOURCE = '''"""Emits."""
LANES = 8  # numbers
"""How many."""

def emit() -> str:
    """Emit it."""
    return "code"  # always
'''


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("# numbers", "# numbers in a vector", False),
        ('"""How many."""', '"""Numbers in a vector."""', False),
        ('"""Emit it."""', '"""Emit the kernel."""\n', False),
        ("LANES = 8", "LANES = 4", True),
        ('return "code"', 'return "Code"', True),
    ],
)
def test_kernels_are_compiled_anew_for_other_code_not_for_other_words_about_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, counts: bool
) -> None:
    """Every reworded docstring had all kernels of every user compiled again."""
    monkeypatch.setattr(kept, "__file__", str(tmp_path / "sources" / "kept.py"))
    (tmp_path / "sources").mkdir()
    names = []
    for text in (SOURCE, SOURCE.replace(old, new)):
        (tmp_path / "sources" / "emit.py").write_text(text, encoding="utf-8")
        kept._sum_of_sources.cache_clear()
        names.append(kept.name_of("norm"))
    assert SOURCE.replace(old, new) != SOURCE
    assert (names[0] != names[1]) == counts


def test_a_start_whose_sources_are_known_does_not_parse_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parsing takes 0.2 seconds."""
    first = kept.name_of("norm")
    kept._sum_of_sources.cache_clear()
    monkeypatch.setattr(kept, "code_hash", lambda _: pytest.fail("the sources were parsed"))
    assert kept.name_of("norm") == first


def test_a_disk_that_refuses_costs_nothing_but_time(folder: Path, start: Start) -> None:
    folder.write_text("a file where the folder would be")
    assert start() == start() > 0


def test_many_that_are_old_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST", 10)
    for number in range(11):
        kept.save(f"{number:02}", b"code")
        os.utime(folder / f"{number:02}.o", (number, number))
    kept.save("11", b"code")
    assert len(list(folder.iterdir())) <= 10
    assert kept.load("11") == b"code"
    assert kept.load("00") is None
