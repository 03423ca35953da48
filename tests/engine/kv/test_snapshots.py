"""Read books kept on disk: opened again bit for bit, refused with the reason, never half there."""

from __future__ import annotations

import errno
import itertools
import json
import mmap
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import safetensors
import torch

from engine.config import EngineConfig, SamplingParams
from engine.document import Document
from engine.errors import OptionError, ResourceError, SnapshotRefused
from engine.events import AnswerDone, BookRead, ReadingProgress
from engine.kv import persistence
from engine.kv import snapshot_io as shards_module
from engine.kv.full import FullCache
from engine.kv.manifest import MANIFEST, Identity, ids_hash
from engine.kv.snapshot_io import SnapshotWriter, restore
from engine.kv.snapshots import CHATS, SnapshotStore
from engine.model import loading
from engine.prompt import Question
from engine.session import Session
from tests.engine.small_caches import SHAPE, assert_same, filled

CPU = torch.device("cpu")
IDS = list(range(1000))
PLENTY = 10**9


def identity_of(ids: list[int], **other: object) -> Identity:
    usual = Identity("b" * 64, ids_hash(ids), "m", "t", "{}", "bfloat16", 2, 2, 8)
    return replace(usual, **other)  # type: ignore[arg-type]


def saved(store: SnapshotStore, cache: FullCache, tokens: int, ids: list[int] = IDS) -> None:
    writer = SnapshotWriter(store, identity_of(ids), cache, ids, tokens)
    assert writer.finish(30)
    assert writer.error is None


def reopened(store: SnapshotStore, ids: list[int] = IDS) -> FullCache:
    found = store.find(identity_of(ids), ids)
    assert found is not None
    cache = FullCache(SHAPE, 4000)
    for usable in restore(found, cache):
        assert usable == cache.length
    return cache


@pytest.mark.usefixtures("small_shards")
def test_what_comes_back_is_what_was_saved(tmp_path: Path) -> None:
    store, cache = SnapshotStore(tmp_path / "kept", PLENTY), filled(300)
    assert store.find(identity_of(IDS), IDS) is None
    saved(store, cache, 300)
    again = reopened(store)
    assert again.length == 300
    assert_same(cache, again, 300)
    found = store.find(identity_of(IDS), IDS)
    assert found is not None
    assert [shard.stop for shard in found.shards] == [64, 128, 192, 256, 300]
    assert [entry.name for entry in store.folder.iterdir()] == [identity_of(IDS).folder]


@pytest.mark.usefixtures("small_shards")
def test_a_longer_reading_takes_over_what_is_there(tmp_path: Path) -> None:
    store, cache = SnapshotStore(tmp_path, PLENTY), filled(300)
    saved(store, cache, 150)
    short = store.find(identity_of(IDS), IDS)
    assert short is not None
    first = (short.folder / short.shards[0].file).stat()
    writer = SnapshotWriter(store, identity_of(IDS), cache, IDS, 300, short)
    assert writer.finish(30)
    assert writer.error is None
    found = store.find(identity_of(IDS), IDS)
    assert found is not None
    assert [shard.stop for shard in found.shards] == [64, 128, 150, 214, 278, 300]
    assert (found.folder / found.shards[0].file).stat().st_ino == first.st_ino
    assert_same(cache, reopened(store), 300)


@pytest.mark.usefixtures("small_shards")
def test_documents_that_others_follow_are_found_by_their_border(tmp_path: Path) -> None:
    """A reading of three documents is the beginning of another one that shares the first two."""
    store, cache = SnapshotStore(tmp_path, PLENTY), filled(300)
    writer = SnapshotWriter(store, identity_of(IDS[:300]), cache, IDS[:300], 300, borders=(100, 200))
    assert writer.finish(30)
    assert writer.error is None
    other = [*IDS[:200], *range(500, 600)]
    assert store.find(identity_of(other), other) is None
    found = store.beginning(identity_of(other, book="c" * 64), other)
    assert found is not None
    assert found.tokens == 200
    again = FullCache(SHAPE, 4000)
    assert list(restore(found, again)) == [64, 128, 192, 200]
    assert_same(cache, again, 200)
    assert store.beginning(identity_of(other, model="n"), other) is None
    assert store.beginning(identity_of([7, *other]), [7, *other]) is None
    longer = SnapshotWriter(store, identity_of(other), again, other, 200, found)  # its first shards lie there already
    assert longer.finish(30)
    shared = identity_of(other).folder, identity_of(IDS[:300]).folder
    one, two = ((tmp_path / folder / found.shards[0].file).stat().st_ino for folder in shared)
    assert one == two
    (tmp_path / shared[1] / MANIFEST).write_text("{")
    whole = store.beginning(identity_of(other), other)
    assert whole is not None
    assert (whole.tokens, whole.folder.name) == (200, shared[0])


def header_of(store: SnapshotStore) -> Path:
    return store.folder / identity_of(IDS).folder / MANIFEST


def change(store: SnapshotStore, *path: object, to: object) -> None:
    header = json.loads(header_of(store).read_text())
    inner = header
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    header_of(store).write_text(json.dumps(header))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda s: change(s, "identity", "model", to="other"), "another model"),
        (lambda s: change(s, "identity", "tokenizer", to="other"), "another tokenizer"),
        (lambda s: change(s, "identity", "rope", to='{"rope_theta": 1}'), "other RoPE"),
        (lambda s: change(s, "identity", "dtype", to="float32"), "float32 instead of bfloat16"),
        (lambda s: change(s, "identity", "kv_heads", to=4), "another shape"),
        (lambda s: change(s, "identity", "ids", to="0"), "another text"),
        (lambda s: change(s, "prefix", to="0"), "another text"),
        (lambda s: change(s, "format", to=99), "format 99"),
        (lambda s: change(s, "tokens", to=10**15), "gaps"),
        (lambda s: change(s, "shards", 0, "stop", to=10**15), "gaps|cut short"),
        (lambda s: change(s, "shards", 0, "start", to=-1), "no usable header"),
        (lambda s: change(s, "shards", 1, "crc32", to=1), "another checksum"),
        (lambda s: header_of(s).write_text("{"), "no usable header"),
        (lambda s: header_of(s).write_text("[" * 100_000), "no usable header"),
        (lambda s: header_of(s).unlink(), "no usable header"),
        (lambda s: header_of(s).write_bytes(b" " * (5 << 20)), "impossible size"),
    ],
)
@pytest.mark.usefixtures("small_shards")
def test_what_is_wrong_is_refused(damage: Callable[[SnapshotStore], None], reason: str, tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, PLENTY)
    saved(store, filled(100), 100)
    damage(store)
    with pytest.raises(SnapshotRefused, match=reason):
        reopened(store)


@pytest.mark.usefixtures("small_shards")
def test_damaged_shards_are_refused_and_leave_an_empty_cache(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, PLENTY)
    saved(store, filled(200), 200)
    found = store.find(identity_of(IDS), IDS)
    assert found is not None
    last = found.folder / found.shards[-1].file
    whole = last.read_bytes()
    flipped = bytearray(whole)
    flipped[-5] ^= 1
    last.write_bytes(flipped)
    cache = FullCache(SHAPE, 4000)
    with pytest.raises(SnapshotRefused, match="checksum"):
        list(restore(found, cache))
    assert cache.length == 0
    last.write_bytes(whole[:-1])
    with pytest.raises(SnapshotRefused, match="cut short"):
        store.find(identity_of(IDS), IDS)


def test_a_shard_of_another_shape_is_refused(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path, PLENTY)
    saved(store, filled(100), 100)
    found = store.find(identity_of(IDS), IDS)
    assert found is not None
    for other in (replace(SHAPE, layers=3), replace(SHAPE, head_dim=4), replace(SHAPE, dtype=torch.float16)):
        with pytest.raises(SnapshotRefused, match=r"another (shape|dtype)"):
            list(restore(found, FullCache(other, 4000)))


def test_least_recently_used_goes_first(tmp_path: Path) -> None:
    cache = filled(100)
    one = 100 * SHAPE.bytes_per_token
    store = SnapshotStore(tmp_path, 3 * one)  # two with their headers fit, three do not
    texts = [[seed, *range(99)] for seed in range(3)]
    for moment, ids in enumerate(texts[:2]):
        saved(store, cache, 100, ids)
        os.utime(store.folder / identity_of(ids).folder / MANIFEST, (moment, moment))
    assert store.find(identity_of(texts[0]), texts[0]) is not None  # used now
    saved(store, cache, 100, texts[2])
    assert store.find(identity_of(texts[0]), texts[0]) is not None
    assert store.find(identity_of(texts[1]), texts[1]) is None
    assert store.find(identity_of(texts[2]), texts[2]) is not None
    assert store.used() <= store.cap


@pytest.mark.parametrize("short_of", ["disk", "cap"])
def test_what_cannot_be_kept_even_so_deletes_nothing(
    short_of: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four readings are there and the fifth has no place even without three of them: it is not made at their cost."""
    cache, one = filled(100), 100 * SHAPE.bytes_per_token
    store = SnapshotStore(tmp_path, PLENTY)
    texts = [[seed, *range(99)] for seed in range(4)]
    for ids in texts:
        saved(store, cache, 100, ids)
    if short_of == "disk":
        monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    else:
        store.cap = 2 * one
    with pytest.raises(ResourceError, match="0 MB are free" if short_of == "disk" else "are allowed"):
        store.free_space(int(1.5 * one), keep=(store.folder / identity_of(texts[0]).folder,))
    assert all(store.find(identity_of(ids), ids) is not None for ids in texts)


def test_too_large_for_the_cap_is_said(tmp_path: Path) -> None:
    writer = SnapshotWriter(SnapshotStore(tmp_path, 100), identity_of(IDS), filled(100), IDS, 100)
    writer.finish()
    assert isinstance(writer.error, ResourceError)
    assert "--snapshot-cap" in str(writer.error)


def test_forgetting_a_book(tmp_path: Path) -> None:
    store, cache = SnapshotStore(tmp_path, PLENTY), filled(100)
    saved(store, cache, 100)
    other = identity_of(IDS, book="c" * 64)
    SnapshotWriter(store, other, cache, IDS, 100).finish()
    store.forget("b" * 64)
    assert store.find(identity_of(IDS), IDS) is None
    assert store.find(other, IDS) is not None


def test_a_reading_of_several_documents_goes_with_any_of_them(tmp_path: Path) -> None:
    """One that the terminal had kept of two files was found by neither."""
    store, cache = SnapshotStore(tmp_path, PLENTY), filled(100)
    saved(store, cache, 100)
    both = identity_of(IDS, book="d" * 64)
    SnapshotWriter(store, both, cache, IDS, 100, documents=("e" * 64, "f" * 64)).finish()
    chat = tmp_path / f"{both.folder}{CHATS}" / "a chat"
    chat.mkdir(parents=True)
    store.forget("f" * 64)
    assert store.find(both, IDS) is None
    assert not chat.parent.exists()
    assert store.find(identity_of(IDS), IDS) is not None


def test_a_shard_that_two_readings_share_is_counted_once(tmp_path: Path) -> None:
    store, cache = SnapshotStore(tmp_path, PLENTY), filled(100)
    saved(store, cache, 100)
    other = identity_of(IDS, book="c" * 64)
    known = store.find(identity_of(IDS), IDS)
    SnapshotWriter(store, other, cache, IDS, 100, known).finish()
    files = {file.stat().st_ino: file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()}
    assert len(files) < sum(file.is_file() for file in tmp_path.rglob("*"))
    assert store.used() == pytest.approx(sum(files.values()), abs=4)
    assert store.size_of("b" * 64) + store.size_of("c" * 64) == store.used()


def stopped_after(store: SnapshotStore, shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Save 900 tokens, and stop when so many shards have been written."""
    fast, written, stopped = shards_module.write_synced, threading.Semaphore(0), threading.Event()

    def write(path: Path, data: bytes) -> None:
        fast(path, data)
        written.release()
        if len(list(path.parent.glob("*.safetensors"))) == shards:
            assert stopped.wait(10)

    with monkeypatch.context() as patch:
        patch.setattr(shards_module, "write_synced", write)
        writer = SnapshotWriter(store, identity_of(IDS), filled(900), IDS, 900)
        for _ in range(shards):
            assert written.acquire(timeout=10)
        writer._cancelled.set()
        stopped.set()
        writer.cancel()
    assert writer.error is None


@pytest.mark.usefixtures("small_shards")
def test_a_cancelled_writer_keeps_what_it_has_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SnapshotStore(tmp_path, PLENTY)
    stopped_after(store, 3, monkeypatch)
    again = reopened(store)
    assert again.length == 3 * 64
    assert_same(filled(900), again, 3 * 64)
    assert [entry.name for entry in store.folder.iterdir()] == [identity_of(IDS).folder]
    saved(store, filled(900), 500)
    stopped_after(store, 3, monkeypatch)
    assert reopened(store).length == 500  # never in place of more


class Killed(BaseException):
    """Nothing that follows is done, as in a process that has ended."""


def test_killed_while_a_longer_reading_takes_the_place_of_a_shorter_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every step between the two there is one of them."""
    long, cache, name = SnapshotStore(tmp_path / "long", PLENTY), filled(300), identity_of(IDS).folder
    saved(long, cache, 300)
    new = long.find(identity_of(IDS), IDS)
    assert new is not None
    kept = []
    for steps in range(12):
        store = SnapshotStore(tmp_path / str(steps), PLENTY)
        saved(store, cache, 150)
        partial = store.begin(identity_of(IDS), 1)
        shutil.copytree(new.folder, partial, dirs_exist_ok=True)
        left = itertools.chain([True] * steps)

        def step(real: Callable[..., Any], left: Iterator[bool] = left) -> Callable[..., Any]:
            def done(*arguments: Any, **more: Any) -> Any:
                if not next(left, False):
                    raise Killed
                return real(*arguments, **more)

            return done

        with monkeypatch.context() as patch:
            for owner, function in ((os, "rename"), (shutil, "rmtree"), (os, "unlink"), (os, "rmdir")):
                patch.setattr(owner, function, step(getattr(owner, function)))
            with suppress(Killed):
                store.commit(partial, identity_of(IDS), IDS, new.shards)
        fresh = SnapshotStore(store.folder, PLENTY)
        again = reopened(fresh)
        assert_same(cache, again, again.length)
        kept.append(again.length)
        fresh.forget("b" * 64)
        assert fresh.find(identity_of(IDS), IDS) is None
        fresh._sweep()
        assert [entry.name for entry in store.folder.iterdir() if name in entry.name] == []
    assert kept == sorted(kept)
    assert set(kept) == {150, 300}


def failing_once(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Let opening a kept reading fail once, for a reason that has nothing to do with what it holds."""
    attempts = iter([True])

    def fails(real: Callable[..., Any], error: Exception) -> Callable[..., Any]:
        def opened(*arguments: Any, **more: Any) -> Any:
            if next(attempts, False):
                raise error
            return real(*arguments, **more)

        return opened

    no_memory = OSError(errno.ENOMEM, "Cannot allocate memory")
    owner, name, error = {
        "checking": (mmap, "mmap", no_memory),
        "mapping": (safetensors, "safe_open", RuntimeError("unable to mmap 9 bytes: Cannot allocate memory (12)")),
        "manifest": (Path, "read_bytes", OSError(errno.EIO, "Input/output error")),
    }[what]
    monkeypatch.setattr(owner, name, fails(getattr(owner, name), error))


@pytest.mark.parametrize("what", ["checking", "mapping", "manifest"])
def test_what_cannot_be_opened_now_is_not_deleted(
    what: str, tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_session(tiny, tmp_path)
    read(first, book)
    first.close()
    [folder] = tmp_path.iterdir()
    inode = folder.stat().st_ino
    second = open_session(tiny, tmp_path)
    failing_once(monkeypatch, what)
    cancel = threading.Event()
    for event in second.read(book, cancel=cancel):
        if isinstance(event, ReadingProgress) and event.pages_done >= 2:
            cancel.set()
    assert isinstance(event, BookRead)
    assert event.stopped
    assert "opened" in second.persistence.restored.refused
    second.close()
    assert [entry.stat().st_ino for entry in tmp_path.iterdir()] == [inode]
    third = open_session(tiny, tmp_path)
    done = read(third, book)
    assert (done.source, done.tokens_restored) == ("snapshot", done.tokens_total)
    third.close()


def test_what_can_never_be_opened_is_written_anew(
    tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sector that cannot be read stays so: the book was read again in whole, and takes its place."""
    first = open_session(tiny, tmp_path)
    read(first, book)
    first.close()
    [folder] = tmp_path.iterdir()
    inode = folder.stat().st_ino
    second = open_session(tiny, tmp_path)
    failing_once(monkeypatch, "checking")
    assert "opened" in read(second, book).refused
    second.close()
    assert [entry.stat().st_ino for entry in tmp_path.iterdir()] != [inode]
    third = open_session(tiny, tmp_path)
    assert read(third, book).source == "snapshot"
    third.close()


def test_closing_before_all_of_a_book_is_saved_keeps_what_is(
    tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_session(tiny, tmp_path)
    monkeypatch.setattr(shards_module, "SHARD_BYTES", 128 * first.full.shape.bytes_per_token)
    monkeypatch.setattr("engine.session._SAVING_PATIENCE_S", 0.0)
    fast, enough = shards_module.write_synced, threading.Event()

    def slow(path: Path, data: bytes) -> None:
        fast(path, data)
        if "00256" in path.name:
            enough.set()
            time.sleep(0.1)

    with monkeypatch.context() as patch:
        patch.setattr(shards_module, "write_synced", slow)
        read(first, book)
        said = answer(first)
        assert enough.wait(10)
        first.close()
    second = open_session(tiny, tmp_path)
    done = read(second, book)
    assert 256 <= done.tokens_restored < done.tokens == done.tokens_total
    assert answer(second).token_ids == said.token_ids
    second.close()


KILLED = """
    import sys, torch
    from pathlib import Path
    from engine.kv import snapshot_io as snapshot
    snapshot.SHARD_BYTES = 4096
    sys.path.insert(0, {tests!r})
    import importlib.util
    spec = importlib.util.spec_from_file_location("t", {here!r})
    t = importlib.util.module_from_spec(spec); spec.loader.exec_module(t)
    store = t.SnapshotStore(Path({folder!r}), t.PLENTY)
    cache = t.filled(900)
    print("go", flush=True)
    while True:
        t.SnapshotWriter(store, t.identity_of(t.IDS), cache, t.IDS, 900).finish()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal that Windows does not have")
def test_killed_at_any_moment_it_is_whole_or_absent(tmp_path: Path, checkout: Path) -> None:
    here = str(Path(__file__).resolve())
    program = textwrap.dedent(KILLED).format(tests=str(checkout), here=here, folder=str(tmp_path))
    cache = filled(900)
    for wait in (0.005, 0.031):
        child = subprocess.Popen([sys.executable, "-c", program], cwd=checkout, stdout=subprocess.PIPE)
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(wait)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        store = SnapshotStore(tmp_path, PLENTY)
        found = store.find(identity_of(IDS), IDS)
        if found is not None:
            assert_same(cache, reopened(store), 900)
    saved(store, cache, 900)  # and what the killed ones left behind is swept away
    assert [entry.name for entry in tmp_path.iterdir()] == [identity_of(IDS).folder]


# A whole session ----------------------------------------------------------------------------------------------


def open_session(tiny: Callable[..., str], folder: Path, **options: object) -> Session:
    settings: dict[str, object] = {"context": 4096, "retrieval_budget": 128, "prefill_segment": 256}
    settings |= {"snapshot_folder": str(folder), **options}
    return Session.load(EngineConfig(model=tiny("llama", spread=0.1), **settings))  # type: ignore[arg-type]


def read(session: Session, book: Document) -> BookRead:
    *_, done = session.read(book)
    assert isinstance(done, BookRead)
    return done


def answer(session: Session) -> AnswerDone:
    *_, done = session.ask(Question("Where is the key?", sampling=SamplingParams(max_tokens=12)))
    assert isinstance(done, AnswerDone)
    return done


def test_of_several_documents_only_what_has_not_been_read_is_read(tiny: Callable[..., str], tmp_path: Path) -> None:
    """Added, left out, in another order: what stands before comes from disk, what stands behind is read again."""
    a, b, c = (
        Document.from_text(title, " ".join(f"{title} has clause {number}." for number in range(30)))
        for title in ("Anna", "Bert", "Carl")
    )
    session = open_session(tiny, tmp_path)
    alone = read(session, a)
    assert alone.tokens_restored == 0
    fit = session.measure(Document.together([a, b]))
    session.persistence.finish()
    *steps, both = session.read(Document.together([a, b]))
    assert isinstance(both, BookRead)
    assert (both.source, both.tokens_restored, both.tokens) == ("snapshot", alone.tokens, fit.tokens)
    assert both.tokens_per_s * both.seconds == pytest.approx(both.tokens - alone.tokens), "restored tokens are not read"
    done = [step.tokens_done for step in steps if isinstance(step, ReadingProgress)]
    assert done == sorted(done)
    assert done[-1] == both.tokens
    three = read(session, Document.together([a, b, c]))
    assert three.tokens_restored == both.tokens
    said = answer(session)
    assert session.measure(Document.together([a, c, b])).kept == alone.tokens
    assert read(session, Document.together([a, c, b])).tokens_restored == alone.tokens
    assert read(session, Document.together([b, a])).tokens_restored == 0
    session.close()
    other = open_session(tiny, tmp_path / "other")
    assert read(other, Document.together([a, b, c])).tokens_restored == 0
    assert answer(other).token_ids == said.token_ids
    other.persistence.finish()
    assert read(other, Document.together([a, b])).tokens_restored == both.tokens  # never read as such
    assert read(other, a).tokens_restored == alone.tokens
    other.close()


def test_a_book_is_opened_again_without_reading(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    first = open_session(tiny, tmp_path)
    assert read(first, book).source == "read"
    said = answer(first)
    first.close()
    second = open_session(tiny, tmp_path)
    done = read(second, book)
    assert (done.source, done.tokens, done.tokens_restored) == ("snapshot", done.tokens_total, done.tokens_total)
    assert answer(second).token_ids == said.token_ids
    second.close()
    # Another model finds nothing of its own.
    other = Session.load(EngineConfig(model=tiny("llama", seed=5, spread=0.1), snapshot_folder=str(tmp_path)))
    assert read(other, book).source == "read"
    other.close()


def test_a_half_read_book_is_read_on(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    whole = open_session(tiny, tmp_path / "other")
    read(whole, book)
    said = answer(whole)
    first = open_session(tiny, tmp_path)
    cancel = threading.Event()
    for event in first.read(book, cancel=cancel):
        if isinstance(event, ReadingProgress) and event.pages_done >= 2:
            cancel.set()
    part = first.conversation.read
    first.close()
    second = open_session(tiny, tmp_path)
    done = read(second, book)
    assert (done.source, done.tokens_restored, done.tokens) == ("snapshot", part, done.tokens_total)
    assert answer(second).token_ids == said.token_ids
    second.close()
    third = open_session(tiny, tmp_path)
    assert read(third, book).tokens_restored == done.tokens_total
    third.close()


def test_a_damaged_snapshot_is_told_and_read_again(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    first = open_session(tiny, tmp_path)
    read(first, book)
    first.close()
    [folder] = tmp_path.iterdir()
    shard = next(folder.glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    second = open_session(tiny, tmp_path)
    done = read(second, book)
    assert done.source == "read"
    assert "cut short" in done.refused
    second.close()
    third = open_session(tiny, tmp_path)
    assert read(third, book).source == "snapshot"
    third.close()


def test_another_book_stops_the_writer(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    session = open_session(tiny, tmp_path)
    read(session, book)
    pages = tuple(replace(page, text=page.text.upper()) for page in book.pages)
    other = replace(book, pages=pages, sha256="1" * 64)
    read(session, other)
    session.close()
    fresh = open_session(tiny, tmp_path)
    assert read(fresh, other).source == "snapshot"
    fresh.close()


def test_fingerprints_tell_models_apart(tiny: Callable[..., str]) -> None:
    loaded = [loading.load(tiny("llama", seed=seed), window=256, device=CPU) for seed in (0, 0, 1)]
    prints = [persistence.model_fingerprint(decoder) for decoder in loaded]
    assert prints[0] == prints[1] != prints[2]
    with torch.inference_mode():  # one bit of one weight
        loaded[1].model.model.layers[1].mlp.down_proj.weight.view(torch.int32)[0, 3, 5] ^= 1
    assert persistence.model_fingerprint(loaded[1]) != prints[0]


def test_fingerprints_tell_the_order_of_weights(tiny: Callable[..., str]) -> None:
    """Two rows of the embedding exchanged, or two numbers of one row: every sum of bits is what it was."""
    loaded = loading.load(tiny("llama"), window=256, device=CPU)
    seen = {persistence.model_fingerprint(loaded)}
    for tensor, places in (
        (loaded.model.model.embed_tokens.weight, (40, 300)),
        (loaded.model.model.embed_tokens.weight, (40, 41)),
        (loaded.model.model.layers[0].mlp.down_proj.weight.flatten(), (5, 6)),
        (loaded.model.model.layers[0].mlp.down_proj.weight.flatten(), (4, 6)),
        (loaded.model.model.layers[0].mlp.down_proj.weight.flatten(), (0, 8_000)),
    ):
        with torch.inference_mode():
            tensor[list(places)] = tensor[list(reversed(places))]
        seen.add(persistence.model_fingerprint(loaded))
    assert len(seen) == 6


def test_weights_of_any_size_have_a_fingerprint() -> None:
    """Of 5 bytes, of less than a block, of a little more than one; each byte counts."""
    for count in (1, 5, 4_100, 32_768, 32_800, 100_003):
        weights = torch.randint(-128, 127, (count,), dtype=torch.int8, generator=torch.Generator().manual_seed(count))
        seen = {persistence.fingerprint(weights)}
        for place in {0, count // 2, count - 1}:
            other = weights.clone()
            other[place] += 1
            seen.add(persistence.fingerprint(other))
        assert len(seen) == 1 + len({0, count // 2, count - 1})


def test_sizes_of_settings() -> None:
    assert EngineConfig(model="m", snapshot_cap="20G").snapshot_cap == "20G"
    with pytest.raises(OptionError, match="256M"):
        EngineConfig(model="m", host_memory="much")


@pytest.mark.parametrize(("system", "times"), [("linux", 1), ("darwin", 0), ("win32", 0)])
def test_a_writer_gives_way_where_a_thread_can_be_named(
    system: str, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Elsewhere the number of its thread could be that of another program's process."""
    asked: list[int] = []
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(os, "setpriority", lambda which, who, priority: asked.append(priority))

    class Idle(shards_module.Writer):
        def _write(self) -> None:
            return

    assert Idle(FullCache(SHAPE, 4000), 0).finish(10)
    assert len(asked) == times


@pytest.mark.parametrize(("system", "is_kept"), [("win32", True), ("linux", False)])
def test_a_virus_scanner_does_not_cost_a_reading_on_windows(
    system: str, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a folder cannot be renamed while a file in it is open."""
    rename, refused = os.rename, [2]

    def scanned(source: Path, target: Path) -> None:
        refused[0] -= 1
        if refused[0] >= 0:
            raise PermissionError(errno.EACCES, "Access is denied")
        rename(source, target)

    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(os, "rename", scanned)
    store = SnapshotStore(tmp_path, PLENTY)
    writer = SnapshotWriter(store, identity_of(IDS), filled(200), IDS, 200)
    assert writer.finish(30)
    assert (writer.error is None) == is_kept
    assert (store.find(identity_of(IDS), IDS) is not None) == is_kept
