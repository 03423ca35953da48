"""Turns of a chat kept on disk: back bit for bit after a restart, branch by branch, refused when wrong, never in the
way of the book."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import SamplingParams
from engine.document import Document
from engine.errors import ContextTooSmall, ResourceError, SnapshotRefused
from engine.events import AnswerDone, AnswerStarted, Event, Loading
from engine.kv import snapshot_io as shards_module
from engine.kv.full import FullCache
from engine.kv.manifest import MANIFEST, TURN_MANIFEST, Identity, ids_hash
from engine.kv.snapshot_io import SnapshotWriter, TurnSpan, TurnWriter, restore
from engine.kv.snapshots import CHATS, SnapshotStore, TurnStore
from engine.prompt import Question, Turn
from engine.session import Session
from tests.engine.kv.test_snapshots import failing_once, open_session, read
from tests.engine.small_caches import SHAPE, assert_same, filled

IDS = list(range(1000))
BOOK = 300  # tokens of the book; the turns follow
IDENTITY = Identity("b" * 64, ids_hash(IDS[:BOOK]), "m", "t", "{}", "bfloat16", 2, 2, 8)
SPANS = [TurnSpan("Who?", "Maren.", BOOK, 340), TurnSpan("Where?", "On the sill.", 340, 420)]
PLENTY = 10**9


def kept(folder: Path, cap: int = PLENTY, identity: Identity = IDENTITY, chat: str = "c") -> TurnStore:
    """A book with two turns of a chat behind it."""
    store, cache = SnapshotStore(folder, cap), filled(420)
    SnapshotWriter(store, identity, cache, IDS[:BOOK], BOOK).finish()
    return with_turns(store, cache, identity, chat)


def with_turns(store: SnapshotStore, cache: FullCache, identity: Identity = IDENTITY, chat: str = "c") -> TurnStore:
    turns = TurnStore(store, identity.folder, chat)
    turns.prepare()
    writer = TurnWriter(turns, cache, IDS[:421], SPANS, None)
    assert writer.finish(30)
    assert writer.error is None
    return turns


def reopened(turns: TurnStore) -> FullCache:
    book = turns.store.find(IDENTITY, IDS[:BOOK])
    assert book is not None
    cache = FullCache(SHAPE, 4000)
    list(restore(book, cache))
    for span in SPANS:
        found = turns.find(IDS[: span.start], span.question, span.answer)
        assert found is not None
        assert list(found.ids) == IDS[span.start : span.stop + 1]
        list(restore(found, cache))
    return cache


@pytest.mark.usefixtures("small_shards")
def test_what_comes_back_is_what_was_saved(tmp_path: Path) -> None:
    turns = kept(tmp_path)
    cache = reopened(turns)
    assert cache.length == 420
    assert_same(filled(420), cache, 420)
    found = turns.find(IDS[:340], "Where?", "On the sill.")
    assert found is not None
    assert [(shard.start, shard.stop) for shard in found.shards] == [(340, 404), (404, 420)]


def test_only_its_own_past_and_words_and_chat_find_a_turn(tmp_path: Path) -> None:
    turns = kept(tmp_path)
    assert turns.find(IDS[:BOOK], "Who?", "Maren.") is not None
    assert turns.find([*IDS[: BOOK - 1], 7], "Who?", "Maren.") is None
    assert turns.find(IDS[:BOOK], "Who?", "Nobody.") is None
    assert turns.find(IDS[:340], "Who?", "Maren.") is None
    assert TurnStore(turns.store, turns.reading, "other").find(IDS[:BOOK], "Who?", "Maren.") is None
    assert TurnStore(turns.store, "no-such-reading", "c").find(IDS[:BOOK], "Who?", "Maren.") is None


def test_a_cache_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    found = kept(tmp_path).find(IDS[:340], "Where?", "On the sill.")
    assert found is not None
    with pytest.raises(ValueError, match="cannot go on"):
        next(iter(restore(found, filled(BOOK))))


def turn_folder(turns: TurnStore) -> Path:
    return turns._place(IDS[:BOOK], "Who?", "Maren.")


def change(turns: TurnStore, *path: object, to: object) -> None:
    file = turn_folder(turns) / TURN_MANIFEST
    header = json.loads(file.read_text())
    inner = header
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    file.write_text(json.dumps(header))


def flip(turns: TurnStore) -> None:
    shard = next(turn_folder(turns).glob("*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda t: change(t, "reading", to="other"), "another chat"),
        (lambda t: change(t, "before", to="0"), "another chat"),
        (lambda t: change(t, "start", to=BOOK - 1), "another chat"),
        (lambda t: change(t, "ids", 5, to=3), "other words"),
        (lambda t: change(t, "ids", to=[1, 2]), "other words"),
        (lambda t: change(t, "ids", 5, to=2**70), "no usable header"),
        (lambda t: change(t, "ids", to="none"), "no usable header"),
        (lambda t: change(t, "format", to=99), "format 99"),
        (lambda t: change(t, "shards", 0, "start", to=BOOK + 1), "gaps"),
        (lambda t: change(t, "shards", to=[]), "gaps"),
        (lambda t: change(t, "shards", 0, "crc32", to=1), "another checksum"),
        (flip, "another checksum"),
        (lambda t: (turn_folder(t) / TURN_MANIFEST).unlink(), "no usable header"),
        (lambda t: (turn_folder(t) / TURN_MANIFEST).write_text("[1]"), "no usable header"),
        (lambda t: next(turn_folder(t).glob("*.safetensors")).unlink(), "cut short"),
    ],
)
def test_what_is_wrong_is_refused(damage: Callable[[TurnStore], None], reason: str, tmp_path: Path) -> None:
    turns = kept(tmp_path)
    damage(turns)
    cache = filled(BOOK)
    with pytest.raises(SnapshotRefused, match=reason):
        list(restore(turns.find(IDS[:BOOK], "Who?", "Maren."), cache))  # type: ignore[arg-type]
    assert cache.length == BOOK


def test_a_turn_of_a_sibling_model_is_refused(tmp_path: Path) -> None:
    """The same words and the same shape: only the reading that it belongs to tells the two apart."""
    ours, theirs = kept(tmp_path), kept(tmp_path, identity=replace(IDENTITY, model="sibling"))
    os.rename(turn_folder(ours), tmp_path / "aside")
    os.rename(turn_folder(theirs), turn_folder(ours))
    with pytest.raises(SnapshotRefused, match="another chat"):
        ours.find(IDS[:BOOK], "Who?", "Maren.")


def test_turns_without_a_reading_are_not_kept(tmp_path: Path) -> None:
    turns = TurnStore(SnapshotStore(tmp_path / "kept", PLENTY), IDENTITY.folder, "c")
    turns.prepare()
    writer = TurnWriter(turns, filled(420), IDS[:421], SPANS, None)
    assert writer.finish(30)
    assert isinstance(writer.error, ResourceError)
    assert list(turns.folder.iterdir()) == []


def test_a_chat_that_is_deleted_while_its_turn_waits_is_not_kept(tmp_path: Path) -> None:
    turns = kept(tmp_path, chat="other")
    late = TurnStore(turns.store, turns.reading, "deleted")
    late.prepare()
    turns.store.forget_chat("deleted")
    writer = TurnWriter(late, filled(420), IDS[:421], SPANS, None)
    writer.finish()
    assert isinstance(writer.error, ResourceError)
    assert not late.folder.exists()


def test_deleted_with_the_chat_and_with_the_book(tmp_path: Path) -> None:
    turns = kept(tmp_path)
    other = with_turns(turns.store, filled(420), chat="other")
    before = turns.store.size_of(IDENTITY.book)
    turns.store.forget_chat("c")
    assert not turns.folder.exists()
    assert turns.find(IDS[:BOOK], "Who?", "Maren.") is None
    assert other.find(IDS[:BOOK], "Who?", "Maren.") is not None
    assert 120 * SHAPE.bytes_per_token < before - turns.store.size_of(IDENTITY.book)
    turns.store.forget(IDENTITY.book)
    assert list(tmp_path.iterdir()) == []


def test_the_cap_counts_turns_and_the_least_recently_used_goes_first(tmp_path: Path) -> None:
    book, turn = BOOK * SHAPE.bytes_per_token, 120 * SHAPE.bytes_per_token
    turns = kept(tmp_path, cap=book + 3 * turn)  # two chats with their headers fit, three do not
    second = with_turns(turns.store, filled(420), chat="second")
    for moment, chat in enumerate((turns, second)):
        os.utime(chat.folder, (moment, moment))
    assert turns.find(IDS[:BOOK], "Who?", "Maren.") is not None  # used now
    third = with_turns(turns.store, filled(420), chat="third")
    assert turns.folder.exists()
    assert not second.folder.exists()
    assert third.find(IDS[:BOOK], "Who?", "Maren.") is not None
    assert turns.store.find(IDENTITY, IDS[:BOOK]) is not None
    assert turns.store.used() <= turns.store.cap
    small = TurnStore(SnapshotStore(tmp_path, book + 100), turns.reading, "fourth")
    small.prepare()
    writer = TurnWriter(small, filled(420), IDS[:421], SPANS, None)
    writer.finish()
    assert isinstance(writer.error, ResourceError)
    assert turns.store.find(IDENTITY, IDS[:BOOK]) is not None  # never for the sake of a turn about it


KILLED = """
    import sys, torch
    from pathlib import Path
    from engine.kv import snapshot_io as snapshot
    snapshot.SHARD_BYTES = 4096
    import importlib.util
    spec = importlib.util.spec_from_file_location("t", {here!r})
    t = importlib.util.module_from_spec(spec); spec.loader.exec_module(t)
    turns = t.kept(Path({folder!r}))
    cache = t.filled(420)
    print("go", flush=True)
    while True:
        turns.store.forget_chat("c")
        t.with_turns(turns.store, cache)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal that Windows does not have")
def test_killed_at_any_moment_the_book_is_whole(tmp_path: Path, checkout: Path) -> None:
    program = textwrap.dedent(KILLED).format(here=str(Path(__file__).resolve()), folder=str(tmp_path))
    whole = filled(420)
    for wait in (0.004, 0.013):
        child = subprocess.Popen([sys.executable, "-c", program], cwd=checkout, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(wait)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        turns = TurnStore(SnapshotStore(tmp_path, PLENTY), IDENTITY.folder, "c")
        book = turns.store.find(IDENTITY, IDS[:BOOK])
        assert book is not None
        cache = FullCache(SHAPE, 4000)
        list(restore(book, cache))
        if (found := turns.find(IDS[:BOOK], "Who?", "Maren.")) is not None:
            list(restore(found, cache))
        assert_same(whole, cache, cache.length)
    with_turns(turns.store, whole)  # and what the killed ones left behind is swept away
    assert len(list(turns.folder.iterdir())) == 2


# A whole session ----------------------------------------------------------------------------------------------


def ask(session: Session, question: str, *history: Turn, chat: str = "c", begun: str = "") -> tuple[list[Event], Turn]:
    """The events of an answer, and its turn."""
    events = list(session.ask(Question(question, history, SamplingParams(max_tokens=12), "hierarchical", begun, chat)))
    assert isinstance(events[-1], AnswerDone)
    return events, Turn(question, begun + events[-1].text)


def started(events: list[Event]) -> AnswerStarted:
    return next(event for event in events if isinstance(event, AnswerStarted))


def tokens(events: list[Event]) -> tuple[int, ...]:
    assert isinstance(events[-1], AnswerDone)
    return events[-1].token_ids


def test_a_chat_goes_on_after_a_restart_without_being_read_again(
    tiny: Callable[..., str], book: Document, tmp_path: Path
) -> None:
    first = open_session(tiny, tmp_path)
    read(first, book)
    _, one = ask(first, "Where is the key?")
    _, two = ask(first, "Who lit the lamp?", one)
    assert first.conversation is not None
    length, context = first.full.length, list(first.conversation.tokens)
    spans = [first.full.export(layer, 0, length) for layer in range(first.full.shape.layers)]
    first.persistence.finish()
    third_question = "And when?"
    expected, _ = ask(first, third_question, one, two)
    first.close()

    second = open_session(tiny, tmp_path)
    assert read(second, book).source == "snapshot"
    read_tokens = second.full.length
    events, three = ask(second, third_question, one, two)
    # Everything but the last token's KV came from disk, and what came is what was there.
    assert started(events).tokens_restored == length - read_tokens
    assert started(events).prefilled_tokens == started(expected).prefilled_tokens
    assert second.conversation is not None
    assert second.conversation.tokens[: len(context)] == context
    for layer, span in enumerate(spans):
        for one_side, other in zip(span, second.full.export(layer, 0, length), strict=True):
            assert torch.equal(one_side, other)
    assert tokens(events) == tokens(expected)
    # The turn that came now is kept beside the older ones.
    second.close()
    third = open_session(tiny, tmp_path)
    read(third, book)
    again, _ = ask(third, "Nobody else?", one, two, three)
    assert started(again).tokens_restored > started(events).tokens_restored
    third.close()


def test_every_branch_of_a_chat_comes_back(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    first = open_session(tiny, tmp_path)
    read(first, book)
    _, one = ask(first, "Where is the key?")
    _, left = ask(first, "Who lit the lamp?", one)
    first.persistence.finish()
    _, right = ask(first, "Who kept the log?", one)
    first.persistence.finish()
    expected = [tokens(ask(first, "And when?", one, branch)[0]) for branch in (left, right)]
    first.close()
    second = open_session(tiny, tmp_path)
    read(second, book)
    for branch, said in zip((left, right, left), (*expected, expected[0]), strict=True):
        events, _ = ask(second, "And when?", one, branch)
        assert started(events).tokens_restored > 0 or branch in [held.turn for held in second.conversation.turns]
        assert started(events).prefilled_tokens < 40  # the question, not the chat
        assert tokens(events) == said
    second.close()


def test_a_cut_answer_goes_on_after_a_restart(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    first = open_session(tiny, tmp_path)
    read(first, book)
    _, cut = ask(first, "Where is the key?")
    first.persistence.finish()
    expected, _ = ask(first, cut.question, begun=cut.answer)
    first.close()
    second = open_session(tiny, tmp_path)
    read(second, book)
    events, _ = ask(second, cut.question, begun=cut.answer)
    assert started(events).tokens_restored > 0
    assert started(events).prefilled_tokens == 1  # the newest token, whose KV nobody had needed
    assert tokens(events) == tokens(expected)
    second.close()


def test_a_damaged_turn_is_told_and_read_again(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    first = open_session(tiny, tmp_path)
    read(first, book)
    _, one = ask(first, "Where is the key?")
    first.close()
    [shard] = tmp_path.glob(f"*{CHATS}/*/*/*.safetensors")
    data = bytearray(shard.read_bytes())
    data[-5] ^= 1
    shard.write_bytes(data)
    second = open_session(tiny, tmp_path)
    assert read(second, book).source == "snapshot"
    events, _ = ask(second, "And when?", one)
    assert "checksum" in started(events).refused
    assert started(events).tokens_restored == 0
    assert any(isinstance(event, Loading) and "read again" in event.what for event in events)
    second.close()
    third = open_session(tiny, tmp_path)
    assert read(third, book).source == "snapshot"  # the book was never in question
    assert started(ask(third, "And when?", one)[0]).tokens_restored > 0
    third.close()


def test_what_has_no_chat_is_not_kept(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    first = open_session(tiny, tmp_path)
    read(first, book)
    _, one = ask(first, "Where is the key?", chat="")
    first.close()
    assert list(tmp_path.glob(f"*{CHATS}")) == []
    second = open_session(tiny, tmp_path)
    read(second, book)
    assert started(ask(second, "And when?", one, chat="")[0]).tokens_restored == 0
    second.close()


def test_asking_again_at_once_stops_the_writer(
    tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is about to hold something else: what is saved must be what the words say."""
    session = open_session(tiny, tmp_path)
    read(session, book)
    session.persistence.finish()
    slow = shards_module.write_synced
    monkeypatch.setattr(shards_module, "write_synced", lambda *a: (time.sleep(0.3), slow(*a)))
    ask(session, "Where is the key?")
    ask(session, "Who lit the lamp?")
    session.persistence.finish()
    monkeypatch.undo()
    headers = list(tmp_path.glob(f"*{CHATS}/*/*/{TURN_MANIFEST}"))
    assert len(headers) == 1
    assert session.conversation is not None
    assert json.loads(headers[0].read_text())["ids"] == session.conversation.tokens[session.conversation.read :]
    assert list(tmp_path.glob(f"*/{MANIFEST}")) != []
    session.close()


def test_what_was_asked_last_is_not_taken_for_what_another_chat_brought_back(
    tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept turn of another chat took the place of the question's KV, and its own question was then refused."""
    session = open_session(tiny, tmp_path)
    read(session, book)
    _, other = ask(session, "Who lit the lamp at dusk, and who kept the log before her?", chat="b")
    session.persistence.finish()
    expected, _ = ask(session, "Where is the key?", chat="a")
    compose = session._compose
    calls = iter([compose])

    def once(*arguments: Any) -> Any:
        return next(calls, refused)(*arguments)

    def refused(*_: object) -> Any:
        raise ContextTooSmall("It does not fit.", "Ask less.")

    with monkeypatch.context() as patch:
        patch.setattr(session, "_compose", once)
        with pytest.raises(ContextTooSmall):
            ask(session, "And when?", other, chat="b")
    again, _ = ask(session, "Where is the key?", chat="a")
    assert started(again).prefilled_tokens > 1
    assert tokens(again) == tokens(expected)
    session.close()


def test_a_turn_that_comes_back_by_half_is_as_if_it_had_never_been_asked_for(
    tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory ends in the second shard of one branch: the other one, which the chat had named, was answered from it."""
    session = open_session(tiny, tmp_path)
    monkeypatch.setattr(shards_module, "SHARD_BYTES", 64 * session.full.shape.bytes_per_token)
    monkeypatch.setattr(shards_module, "SHARD_STEP", 16)
    read(session, book)
    long = "Who lit the lamp, and who kept the log? " * 4
    _, left = ask(session, f"{long} On the left?")
    session.persistence.finish()
    _, right = ask(session, f"{long} On the right?")
    session.persistence.finish()
    expected, _ = ask(session, "And when?", right)
    real, attempts = shards_module._append, iter([True])

    def ending(*arguments: Any) -> None:
        if not next(attempts, False):
            raise MemoryError
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(shards_module, "_append", ending)
        with pytest.raises(MemoryError):
            ask(session, "And when?", left)
    talk = session.conversation
    assert talk is not None
    assert session.full.length == len(talk.tokens) == talk.read
    again, _ = ask(session, "And when?", right)
    assert tokens(again) == tokens(expected)
    session.close()


def test_a_turn_that_cannot_be_opened_now_is_not_deleted(
    tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_session(tiny, tmp_path)
    read(first, book)
    _, one = ask(first, "Where is the key?")
    first.close()
    [kept] = tmp_path.glob(f"*{CHATS}/*/*")
    inode = kept.stat().st_ino
    second = open_session(tiny, tmp_path)
    assert read(second, book).source == "snapshot"
    failing_once(monkeypatch, "checking")
    events, _ = ask(second, "And when?", one)
    assert "opened" in started(events).refused
    second.close()
    assert kept.stat().st_ino == inode
