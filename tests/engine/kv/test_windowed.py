"""Layers with a sliding window: what they answer, what they can be cropped to, and what becomes of it on disk."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.document import Document
from engine.events import AnswerDone, AnswerStarted, BookRead, ReadingProgress
from engine.kv.full import FullCache, KvShape, spill_more
from engine.kv.shape import Sliding
from engine.prompt import Turn
from engine.session import Session
from tests.engine.conftest import TEXT
from tests.engine.test_families import generate
from tests.engine.test_random_acts import assert_the_cache_is_what_its_tokens_say

pytestmark = pytest.mark.usefixtures("small_windows")

KIND, WINDOW, SLACK = "gemma3_text", 48, 128
LONG = f"Why? {4 * TEXT}"  # than what a layer holds beside its window


def kv(token: int) -> torch.Tensor:
    """Key and value (2, kv_heads, head_dim) of a token."""
    return torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(token))


class Histories:
    """A cache of one sliding layer and the tokens that it stands for."""

    def __init__(self, window: int) -> None:
        shape = KvShape(1, 2, 8, torch.float32, torch.device("cpu"), sliding=Sliding((0,), window))
        self.full, self.window = FullCache(shape, 100_000), window
        self.full.windowed.reserve()
        self.tokens: list[int] = []  # committed
        self.context: list[int] = []  # and what was stored behind them

    def attend(self, start: int, tokens: list[int]) -> None:
        """A pass over tokens behind the first ``start`` committed ones and what was stored after them."""
        k, v = torch.stack([kv(token) for token in tokens], dim=2).unsqueeze(1)
        q = torch.stack([kv(token + 1)[0] for token in tokens], dim=1).repeat_interleave(2, 0).unsqueeze(0)
        out = self.full.extend(start).attend(0, q, k, v, 0.5)
        context = [*self.context[:start], *tokens]
        for row in range(len(tokens)):
            stop = start + row + 1
            keys, values = torch.stack([kv(t) for t in context[max(0, stop - self.window) : stop]], dim=2)
            weights = torch.softmax(0.5 * torch.einsum("hd,hsd->hs", q[0, :, row], keys.repeat_interleave(2, 0)), -1)
            expected = torch.einsum("hs,hsd->hd", weights, values.repeat_interleave(2, 0))
            assert torch.allclose(out[0, :, row], expected, atol=1e-5)
        self.context = context

    def commit(self) -> None:
        self.full.advance(len(self.context) - len(self.tokens))
        self.tokens = self.context


@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_passes_crops_and_marks(seed: int) -> None:
    """Every token sees its window, exactly, whatever was speculated, given up, cropped and marked before it."""
    rng = random.Random(seed)
    cache, less = Histories(rng.choice([5, 33, 70])), 0
    for _ in range(60):
        length = len(cache.tokens)
        cache.context = cache.tokens
        act = rng.random()
        if act < 0.5:  # a part of a book that goes through the layer in blocks, or a few tokens
            for _ in range(rng.choice([1, 1, 1, 6])):
                cache.attend(len(cache.context), [rng.randrange(1000) for _ in range(rng.choice([1, 9, 70, SLACK]))])
            if rng.random() < 0.7:
                cache.commit()
        elif act < 0.7:  # a verification over what the middle level has stored, of which some stands
            for _ in range(3):
                cache.attend(len(cache.context), [rng.randrange(1000) for _ in range(5)])
            cache.context = cache.tokens
            cache.attend(length, [rng.randrange(1000) for _ in range(rng.randint(1, 16))])
            cache.commit()
            cache.full.crop(rng.randint(length, len(cache.tokens)))
        elif act < 0.95:
            asked = max(0, length - rng.choice([1, 20, 150, 400]))
            found = cache.full.nearest(asked)
            less += found < asked
            assert found <= asked
            cache.full.crop(found)
        else:
            cache.full.windowed.mark()
            assert cache.full.nearest(length) == length
        cache.tokens = cache.tokens[: cache.full.length]
    assert less, "it was cropped further back than it reaches"


@pytest.mark.parametrize("survived", range(2))
def test_memory_that_ends_while_it_makes_room_costs_nothing(survived: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass is tried again; keys had moved by then, and values had not."""
    cache = Histories(20)
    for start in range(0, 3 * SLACK, SLACK):
        cache.attend(start, list(range(start, start + SLACK)))
        cache.commit()
    clone, left = torch.Tensor.clone, iter(range(survived))

    def clones(x: torch.Tensor, **more: Any) -> torch.Tensor:
        if next(left, None) is None:
            raise MemoryError
        return clone(x, **more)

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "clone", clones)
        with pytest.raises(MemoryError):
            cache.attend(3 * SLACK, list(range(SLACK)))
    cache.attend(3 * SLACK, list(range(SLACK)))
    cache.commit()
    reached = next(tokens for tokens in range(4 * SLACK) if cache.full.nearest(tokens) == tokens > 0)
    cache.full.crop(reached)
    cache.attend(reached, [7, 8, 9])


def test_it_says_what_it_does_not_hold_any_more() -> None:
    cache = Histories(20)
    for _ in range(4):
        cache.attend(len(cache.context), list(range(SLACK)))
    cache.commit()
    windowed, length = cache.full.windowed, 4 * SLACK
    reached = next(tokens for tokens in range(length) if cache.full.nearest(tokens) == tokens > 0)
    assert length - reached >= SLACK
    assert cache.full.nearest(reached - 1) == 0
    with pytest.raises(ValueError, match="not held any more"):
        cache.full.crop(reached - 1)
    zero = torch.zeros(1, 2, 1, 8)
    with pytest.raises(ValueError, match="cannot go on"):
        windowed.store(0, reached - 1, zero, zero)
    assert cache.full.length == length
    held = windowed.copy(0, length)
    assert held is not None
    few = windowed.copy(length - 3, length)
    assert few is not None
    assert (held.stop, few.start) == (length, length - 3)
    assert windowed.copy(0, reached - 1) is None


def test_their_memory_does_not_grow_with_the_context() -> None:
    sliding = Sliding((0, 1, 2), 20)
    shape = KvShape(1, 2, 8, torch.bfloat16, torch.device("cpu"), sliding=sliding)
    cache = FullCache(shape, 100_000)
    assert cache.allocated().total == 0
    cache.reserve(1)
    before = cache.allocated().total
    assert before == 4096 * shape.bytes_per_token + 3 * 2 * 2 * 8 * 2 * sliding.capacity
    cache.reserve(50_000)
    assert cache.allocated().total - before == 49_152 * shape.bytes_per_token
    cache.advance(1000)
    assert cache.kv_bytes().total == 1000 * shape.bytes_per_token + shape.most_window_bytes


# A session --------------------------------------------------------------------------------------------------------


def begin(folder: str, kept: Path | None = None, **options: object) -> Session:
    config = EngineConfig(
        model=folder,
        draft=None,
        context=4096,
        num_pending_tokens=4,
        retrieval_budget=64,
        prefill_segment=512,
        snapshot_folder=str(kept or ""),
        **options,  # type: ignore[arg-type]
    )
    return Session.load(config)


def ask(session: Session, question: str, history: list[Turn], stop: bool = False) -> tuple[AnswerStarted, AnswerDone]:
    """Ask, and perhaps stop at the first event."""
    cancel = threading.Event()
    if stop:
        cancel.set()
    events = list(session.ask(question, history, SamplingParams(max_tokens=10), chat="chat", cancel=cancel))
    done = events[-1]
    assert isinstance(done, AnswerDone)
    assert_the_cache_is_what_its_tokens_say(session)
    return next((event for event in events if isinstance(event, AnswerStarted)), AnswerStarted(0, 0, 0.0, 0)), done


def chat(session: Session, *questions: str) -> list[Turn]:
    history: list[Turn] = []
    for question in questions:
        history.append(Turn(question, ask(session, question, history)[1].answer))
    return history


@pytest.mark.parametrize(("kept", "stop"), [(False, False), (False, True), (True, False)])
def test_a_chat_is_taken_up_further_back_than_a_window_reaches(
    kept: bool, stop: bool, tiny: Callable[..., str], book: Document, tmp_path: Path
) -> None:
    """Turns that are needed come back from disk, or they are read again behind the book; never the book itself."""
    folder, few = tiny(KIND), book.select(1, 3)
    session = begin(folder, tmp_path / "kept" if kept else None)
    *_, read = session.read(few)
    assert isinstance(read, BookRead)
    history = chat(session, "Where is the key?", LONG, LONG)
    session.persistence.finish()
    talk = session.conversation
    assert talk is not None
    assert session.full.nearest(talk.kv_start(1)) == talk.read
    first = talk.tokens[: talk.kv_start(1)]

    if stop:
        ask(session, "And when?", history[:1], stop=True)
        assert not talk.turns, "it was stopped before anything was read again"
    started, done = ask(session, "And when?", history[:1])
    assert (started.tokens_restored > 0) is kept
    again = started.prompt_tokens - read.tokens - started.tokens_restored
    assert started.prefilled_tokens == pytest.approx(again, abs=2)
    assert [held.turn for held in talk.turns] == [history[0], Turn("And when?", done.answer)]

    assert stop or talk.tokens[: len(first)] == first, "the turns before are what they were, token for token"
    said = generate(folder, talk.tokens[: started.prompt_tokens])
    assert list(done.token_ids) == said[: len(done.token_ids)]
    session.close()
    if kept:
        third = begin(folder, tmp_path / "kept")
        list(third.read(few))
        started, once_more = ask(third, "And when?", history[:1])
        assert started.tokens_restored > 0
        assert once_more.token_ids == done.token_ids
        assert ask(third, "Why?", history)[0].tokens_restored > 2 * SLACK, (
            "turns that are longer than what is held come back"
        )
        third.close()


@pytest.mark.parametrize("blocks", [1, 5, 9, 14, 23])
def test_a_reading_that_is_stopped_anywhere_goes_on(blocks: int, tiny: Callable[..., str], book: Document) -> None:
    """In the middle of a part, where some layers have passed tokens that others have not."""
    session, cancel = begin(tiny(KIND), prefill_block=100), threading.Event()
    for number, event in enumerate(session.read(book, cancel=cancel)):
        if isinstance(event, ReadingProgress) and number == blocks:
            cancel.set()
    assert_the_cache_is_what_its_tokens_say(session)
    stopped = ask(session, "Why?", [])[1] if session.full.length else None
    *_, read = session.read(book, resume=True)
    assert isinstance(read, BookRead)
    assert read.tokens == read.tokens_total
    assert_the_cache_is_what_its_tokens_say(session)
    whole = begin(tiny(KIND))
    list(whole.read(book))
    assert ask(session, "Why?", [])[1].token_ids == ask(whole, "Why?", [])[1].token_ids
    assert stopped is None or stopped.figures.prompt_tokens < read.tokens


def test_saved_windows_are_checked(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    """A reading without them, or with fewer tokens than a window has, is refused and read again."""
    few = book.select(1, 3)
    for change in ("none", "short"):
        session = begin(tiny(KIND), tmp_path)
        list(session.read(few))
        expected = ask(session, "Why?", [])[1].token_ids
        session.close()
        (manifest,) = tmp_path.glob("*/snapshot.json")
        header = json.loads(manifest.read_text())
        window, folder = header["window"], manifest.parent
        assert window["stop"] - window["start"] == WINDOW
        if change == "none":
            del header["window"]
        else:
            old = folder / f"window-{window['start']:08d}-{window['stop']:08d}.safetensors"
            window["start"] += 2
            old.rename(folder / f"window-{window['start']:08d}-{window['stop']:08d}.safetensors")
        manifest.write_text(json.dumps(header))
        other = begin(tiny(KIND), tmp_path)
        *_, read = other.read(few)
        assert isinstance(read, BookRead)
        assert "sliding window" in read.refused
        assert read.tokens_restored == 0
        assert ask(other, "Why?", [])[1].token_ids == expected
        other.close()


@pytest.mark.parametrize("kv", ["model", "8bit"])
def test_only_what_grows_is_spilled(kv: str, tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    folder, few = tiny(KIND, layers=9), book.select(1, 3)
    resident, spilled = (begin(folder, kv=kv, spill_folder=str(tmp_path)) for _ in range(2))
    for session in (resident, spilled):
        list(session.read(few))
    while spill_more(spilled.full):
        pass
    assert spilled.full.placement.spilled == (0, 1, 2)
    assert spilled.full.shape.model_layers == 9
    windows = spilled.full.shape.window_bytes(spilled.full.length)
    assert spilled.full.kv_bytes().host == windows
    assert ask(spilled, "Why?", [])[1].token_ids == ask(resident, "Why?", [])[1].token_ids
