"""Kept readings and turns, altered in every file and in every way: refused with the reason, or as good as not there.

What comes out is always what a fresh reading gives, token by token, and the app is told in a sentence why.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.config import EngineConfig, SamplingParams
from engine.document import Document, Page
from engine.errors import SnapshotRefused
from engine.events import AnswerDone, AnswerStarted, BookRead, TextDelta
from engine.kv.full import FullCache
from engine.kv.manifest import TURN_MANIFEST, ids_hash, read_turn_manifest
from engine.kv.snapshot_io import restore
from engine.kv.snapshots import SnapshotStore, TurnStore
from engine.prompt import Question, Turn
from engine.session import Session
from tests.engine import conftest as tiny
from tests.engine.kv.test_persistence import BOOK, IDENTITY, IDS, SPANS, kept
from tests.engine.small_caches import SHAPE, assert_same, filled
from tests.fuzz.conftest import LONG, looked_at, mutated
from tests.tally import count

_DOCUMENT = Document(
    "The Lamp", "", tuple(Page(at, str(at), f"Page {at}. {tiny.TEXT}") for at in range(1, 5)), "text", "0" * 64
)
_QUESTION, _NEXT = "Where is the key?", "Who lit the lamp?"
_SAMPLING = SamplingParams(max_tokens=8)
_FLIPS = 40 if LONG else 4  # places in each file


@dataclass
class Kept:
    """A folder with a reading and a turn, the turn's words, and what the next question is answered."""

    folder: Path
    model: str
    turn: Turn
    expected: tuple[int, ...]

    def session(self, folder: Path) -> Session:
        return Session.load(EngineConfig(model=self.model, context=2048, snapshot_folder=str(folder)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    place = tmp_path_factory.mktemp("kept")
    tiny.build_tokenizer(place / "model")
    tiny.build_model(place / "model", "llama", 0, 2, 64, 0.1)
    whole = Kept(place / "snapshots", str(place / "model"), Turn("", ""), ())
    session = whole.session(whole.folder)
    list(session.read(_DOCUMENT))
    events = list(session.ask(Question(_QUESTION, sampling=_SAMPLING, chat="c")))
    whole.turn = Turn(_QUESTION, "".join(event.text for event in events if isinstance(event, TextDelta)))
    session.persistence.finish()
    *_, done = session.ask(Question(_NEXT, (whole.turn,), _SAMPLING))
    assert isinstance(done, AnswerDone)
    whole.expected = done.token_ids
    session.close()
    return whole


@dataclass
class Outcome:
    """What opening the folder gave: what was refused, and whether anything came from disk."""

    refused: str
    turn_refused: str
    restored: int
    turn_restored: int


def _opened(made: Kept, folder: Path) -> Outcome:
    """Open the book and go on with the chat; whatever came from disk, the answer is the right one."""
    session = made.session(folder)
    try:
        *_, read = session.read(_DOCUMENT)
        assert isinstance(read, BookRead)
        events = list(session.ask(Question(_NEXT, (made.turn,), _SAMPLING, chat="c")))
        started = next(event for event in events if isinstance(event, AnswerStarted))
        assert isinstance(events[-1], AnswerDone)
        assert events[-1].token_ids == made.expected, "what an altered file said came into an answer"
        return Outcome(read.refused, started.refused, read.tokens_restored, started.tokens_restored)
    finally:
        session.close()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _fifo(path: Path, content: bytes) -> None:
    path.unlink()
    os.mkfifo(path)


def _endless(path: Path, content: bytes) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _directory(path: Path, content: bytes) -> None:
    path.unlink()
    path.mkdir()


_ALTERED: dict[str, Callable[[Path, bytes], Any]] = {
    "gone": lambda path, content: path.unlink(),
    "empty": lambda path, content: path.write_bytes(b""),
    "cut by a byte": lambda path, content: path.write_bytes(content[:-1]),
    "cut in half": lambda path, content: path.write_bytes(content[: len(content) // 2]),
    "longer": lambda path, content: path.write_bytes(content + b" \0"),
    "twice": lambda path, content: path.write_bytes(content * 2),
    "zeros": lambda path, content: path.write_bytes(bytes(len(content))),
    "noise": lambda path, content: path.write_bytes(random.Random(1).randbytes(len(content))),
    "a folder": _directory,
    **({"a pipe": _fifo, "a link to a device": _endless} if sys.platform != "win32" else {}),
}


@pytest.mark.parametrize("how", _ALTERED)
def test_every_file_altered(made: Kept, tmp_path: Path, how: str) -> None:
    for number, file in enumerate(_files(made.folder)):
        folder = tmp_path / str(number)
        shutil.copytree(made.folder, folder)
        _ALTERED[how](folder / file.relative_to(made.folder), file.read_bytes())
        _expect_refused(_opened(made, folder), file)
        again = _opened(made, folder)  # what was refused has been put right, and is not told twice
        assert (again.refused, again.turn_refused) == ("", "")
        assert again.restored
        assert again.turn_restored


def _expect_refused(outcome: Outcome, file: Path) -> None:
    """Only what the altered file belongs to is refused, with a sentence."""
    said = outcome.turn_refused if _of_a_turn(file) else outcome.refused
    assert said.startswith("The saved ")
    assert said.endswith(".")
    assert len(said) < 200
    assert bool(outcome.restored) == _of_a_turn(file)
    assert not outcome.turn_restored or not _of_a_turn(file)
    count("kept readings and turns, damaged or altered")


def _of_a_turn(file: Path) -> bool:
    return TURN_MANIFEST in os.listdir(file.parent)


def test_every_file_with_a_flipped_byte(made: Kept, tmp_path: Path) -> None:
    chance = random.Random(3)
    for file in _files(made.folder):
        content = file.read_bytes()
        for number in range(_FLIPS):
            folder = tmp_path / f"{file.parent.name}-{file.name}-{number}"
            shutil.copytree(made.folder, folder)
            changed = bytearray(content)
            changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            (folder / file.relative_to(made.folder)).write_bytes(changed)
            _expect_refused(_opened(made, folder), file)
            shutil.rmtree(folder)


def test_files_that_took_each_others_place(made: Kept, tmp_path: Path) -> None:
    files = [file.relative_to(made.folder) for file in _files(made.folder)]
    for number, (one, other) in enumerate((one, other) for one in files for other in files if one < other):
        folder = tmp_path / str(number)
        shutil.copytree(made.folder, folder)
        os.rename(folder / one, folder / "aside")
        os.rename(folder / other, folder / one)
        os.rename(folder / "aside", folder / other)
        outcome = _opened(made, folder)
        assert outcome.refused or outcome.turn_refused
        count("kept readings and turns, damaged or altered")


# Altered by somebody who sees to it that sizes and checksums fit ----------------------------------------------------


def _made_to_fit(folder: Path, header: str, data: bytes) -> None:
    """Put ``data`` in the place of a folder's first shard and make the header say what it is."""
    path = folder / header
    said = json.loads(path.read_bytes())
    said["shards"][0] |= {"size": len(data), "crc32": zlib.crc32(data)}
    path.write_text(json.dumps(said), encoding="utf-8")
    next(folder.glob("*.safetensors")).write_bytes(data)


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def _joined(header: Any, body: bytes) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> TurnStore:
    return kept(tmp_path_factory.mktemp("turns"))


def _shard_of(turns: TurnStore) -> bytes:
    found = turns.find(IDS[:BOOK], SPANS[0].question, SPANS[0].answer)
    assert found is not None
    return (found.folder / found.shards[0].file).read_bytes()


@looked_at(150)
@given(data=st.data())
def test_a_shard_whose_checksum_fits(turns: TurnStore, tmp_path: Path, data: st.DataObject) -> None:
    """It is refused by what it holds, or it is one that a writer could have written."""
    found = turns.find(IDS[:BOOK], SPANS[0].question, SPANS[0].answer)
    assert found is not None
    folder = Path(shutil.copytree(found.folder, tmp_path / "turn", dirs_exist_ok=True))
    header, body = _parts(_shard_of(turns))
    shard = data.draw(
        st.one_of(
            st.binary(max_size=100),
            st.builds(_joined, mutated(header), st.just(body) | st.binary(max_size=len(body))),
        )
    )
    _made_to_fit(folder, TURN_MANIFEST, shard)
    cache = filled(BOOK)
    try:
        for _ in restore(read_turn_manifest(folder, turns.reading, IDS[:BOOK]), cache):
            pass
    except SnapshotRefused as refused:
        said = refused.cause
        assert cache.length == BOOK
    else:
        said = "."
        assert cache.length == SPANS[0].stop
    assert said.endswith(".")
    assert_same(cache, filled(BOOK), BOOK)
    count("fuzzed files of our own")


def test_tokens_that_the_model_does_not_know(made: Kept, tmp_path: Path) -> None:
    """A turn may say any ids as long as its own hashes fit: they used to end in an IndexError."""
    folder = Path(shutil.copytree(made.folder, tmp_path / "kept"))
    [path] = folder.rglob(TURN_MANIFEST)
    said = json.loads(path.read_bytes())
    session = made.session(tmp_path / "none")
    before = list(session.tokenizer.book(_DOCUMENT, session.tokenizer.format_for(_DOCUMENT.title)).ids)
    assert said["before"] == ids_hash(before)
    said["ids"][-1] = session.target.vocabulary
    said["context"] = ids_hash([*before, *said["ids"]])
    path.write_text(json.dumps(said), encoding="utf-8")
    session.close()
    assert _opened(made, folder).turn_refused == "The saved turn has tokens that the model does not know."
    count("kept readings and turns, damaged or altered")


def test_a_turn_that_is_longer_than_the_window(turns: TurnStore) -> None:
    found = turns.find(IDS[:BOOK], SPANS[0].question, SPANS[0].answer)
    assert found is not None
    narrow = FullCache(SHAPE, SPANS[0].stop - 1)
    narrow.reserve(BOOK)
    narrow.advance(BOOK)
    with pytest.raises(SnapshotRefused, match="longer than the window"):
        next(iter(restore(found, narrow)))
    assert narrow.length == BOOK


def test_what_is_refused_and_cannot_be_deleted(made: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that nothing can be written to, a damaged reading is refused every time, and the book is read."""
    folder = Path(shutil.copytree(made.folder, tmp_path / "kept"))
    for shard in folder.rglob("*.safetensors"):
        shard.write_bytes(shard.read_bytes()[:-1])

    def refuse(*arguments: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr("engine.kv.snapshots.os.rename", refuse)
        for _ in range(2):
            outcome = _opened(made, folder)
            assert "cut short" in outcome.refused
            assert "cut short" in outcome.turn_refused
    count("kept readings and turns, damaged or altered")


@pytest.mark.parametrize(
    "name", [".partial-x-99999999999999999999-ab", ".partial-", ".partial-a-b", ".stale-", ".chats"]
)
def test_odd_folders_beside_the_kept_ones(tmp_path: Path, name: str) -> None:
    """What the folder of a writer is called may be anything: making room goes on."""
    store = SnapshotStore(tmp_path, 10**9)
    (tmp_path / name).mkdir(parents=True)
    store.free_space(10, keep=())
    assert store.begin(IDENTITY, 10).is_dir()
    count("kept readings and turns, damaged or altered")
