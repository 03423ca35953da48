"""Layers that hold something of fixed size: what they answer, what they can be cropped to, and what is kept on disk."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.decode.controller import FixedLengths
from engine.decode.lookup import NO_MATCH, LookupIndex, LookupMatch
from engine.decode.plans import PLAIN, DraftPlan
from engine.document import Document, Reading
from engine.events import AnswerDone, AnswerStarted, BookRead, ReadingProgress
from engine.kv.full import FullCache, KvShape
from engine.kv.spilling import spill_more
from engine.model.kv_shape import Recurrent, Sliding
from engine.model.recurrent import RecurrentState, Step
from engine.prompt import Question, Turn
from engine.quantization import CHAT_PLACES, StateSize
from engine.session import Session
from tests.engine.conftest import TEXT
from tests.engine.test_families import generate
from tests.engine.test_random_acts import assert_the_cache_is_what_its_tokens_say

pytestmark = pytest.mark.usefixtures("small_windows")

WINDOWS, STATES, SHARED = "gemma3_text", "qwen3_5_text", "gemma4_text"
WINDOW, SLACK = 48, 128
LONG = f"Why? {4 * TEXT}"  # than what a layer holds beside its window


def kv(token: int) -> torch.Tensor:
    """Key and value (2, kv_heads, head_dim) of a token."""
    return torch.randn(2, 2, 8, generator=torch.Generator().manual_seed(token))


class Histories:
    """A cache of one sliding layer and the tokens that it stands for."""

    def __init__(self, window: int) -> None:
        shape = KvShape(1, 2, 8, torch.float32, torch.device("cpu"), sliding=Sliding((0,), window, 2, 8))
        self.full, self.window = FullCache(shape, 100_000), window
        self.full.bounded.reserve()
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


@pytest.mark.parametrize("seed", range(2))
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
            cache.full.bounded.mark()
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
    bounded, length = cache.full.bounded, 4 * SLACK
    reached = next(tokens for tokens in range(length) if cache.full.nearest(tokens) == tokens > 0)
    assert length - reached >= SLACK
    assert cache.full.nearest(reached - 1) == 0
    with pytest.raises(ValueError, match="not held any more"):
        cache.full.crop(reached - 1)
    zero = torch.zeros(1, 2, 1, 8)
    with pytest.raises(ValueError, match="cannot go on"):
        bounded.store(0, reached - 1, zero, zero)
    assert cache.full.length == length
    held = bounded.copy(0, length)
    assert held is not None
    few = bounded.copy(length - 3, length)
    assert few is not None
    assert (held.stop, few.start) == (length, length - 3)
    assert bounded.copy(0, reached - 1) is None


def test_their_memory_does_not_grow_with_the_context() -> None:
    sliding = Sliding((0, 1, 2), 20, 2, 8)
    shape = KvShape(1, 2, 8, torch.bfloat16, torch.device("cpu"), sliding=sliding)
    cache = FullCache(shape, 100_000)
    assert cache.allocated().total == 0
    cache.reserve(1)
    before = cache.allocated().total
    assert before == 4096 * shape.bytes_per_token + 3 * 2 * 2 * 8 * 2 * sliding.capacity
    cache.reserve(50_000)
    assert cache.allocated().total - before == 49_152 * shape.bytes_per_token
    cache.advance(1000)
    assert cache.kv_bytes().total == 1000 * shape.bytes_per_token + shape.most_bounded_bytes


class Sum:
    """What a state stands for in these tests: its tokens as a number, from which each can be told."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens

    @property
    def count(self) -> int:
        return len(self.tokens)

    def first(self, count: int) -> Sum:
        return Sum(self.tokens[:count])

    def after(self, state: RecurrentState) -> RecurrentState:
        return RecurrentState(torch.tensor([[[hashed(self.tokens, int(state.memory.item()))]]]), state.inputs)


def hashed(tokens: list[int], start: int = 0) -> int:
    for token in tokens:
        start = (31 * start + token + 1) % 1_000_003
    return start


@pytest.mark.parametrize("seed", range(3))
def test_states_stand_for_their_tokens_after_any_order_of_passes_crops_and_places(seed: int) -> None:
    """As above, of layers that keep what a few tokens did and nothing of what many did."""
    rng, reached, less = random.Random(seed), 0, 0
    size = StateSize(1, 1, 1, 1, 2)
    shape = KvShape(1, 2, 8, torch.float32, torch.device("cpu"), recurrent=Recurrent((0, 1), size))
    full = FullCache(shape, 100_000)
    full.bounded.reserve()
    tokens: list[int] = []

    def feed(context: list[int], new: list[int]) -> list[int]:
        def advance(state: RecurrentState) -> Step:
            assert int(state.memory.item()) == hashed(context)
            trace: Any = Sum(new)
            return Step(torch.zeros(0), trace.after(state), trace)

        for layer in (0, 1):
            full.extend(len(context)).recur(layer, len(new), advance)
        return [*context, *new]

    def some(most: int) -> list[int]:
        return [rng.randrange(1000) for _ in range(rng.randint(1, most))]

    for _ in range(150):
        act = rng.random()
        if act < 0.3:  # a part of a prompt in blocks, of which one is tried twice
            context = tokens
            for _ in range(rng.randint(1, 3)):
                new = some(150)
                if rng.random() < 0.3:
                    feed(context, new)
                context = feed(context, new)
            if rng.random() < 0.7:
                full.advance(len(context) - len(tokens))
                tokens = context
        elif act < 0.8:  # what the middle level proposes; a verification, of which some stands
            proposed = tokens
            for _ in range(rng.randint(0, 3)):
                proposed = feed(proposed[: rng.randint(len(tokens), len(proposed))], some(9))
            verified = feed(tokens, [*proposed[len(tokens) :][:60], *some(3)])
            full.advance(len(verified) - len(tokens))
            kept = rng.randint(len(tokens), len(verified))
            tokens = verified[:kept]
            full.crop(kept)
        elif act < 0.9:
            (full.bounded.mark if rng.random() < 0.2 else full.keep_place)()
        else:
            asked = max(0, len(tokens) - rng.choice([1, 5, 200]))
            found = full.nearest(asked)
            reached, less = reached + (found == asked), less + (found < asked)
            full.crop(found)
            tokens = tokens[:found]
    assert reached
    assert less
    place = full.bounded.at(len(tokens))
    assert place is not None
    assert [int(held["memory"].item()) for held in place.layers] == [hashed(tokens)] * 2


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
    events = list(session.ask(Question(question, history, SamplingParams(max_tokens=10), chat="chat"), cancel=cancel))
    done = events[-1]
    assert isinstance(done, AnswerDone)
    assert_the_cache_is_what_its_tokens_say(session)
    return next((event for event in events if isinstance(event, AnswerStarted)), AnswerStarted(0, 0, 0.0, 0)), done


def chat(session: Session, *questions: str) -> list[Turn]:
    history: list[Turn] = []
    for question in questions:
        history.append(Turn(question, ask(session, question, history)[1].text))
    return history


@pytest.mark.parametrize(
    ("kind", "kept", "stop"),
    [
        *((WINDOWS, False, False), (WINDOWS, False, True), (WINDOWS, True, False)),
        *((STATES, False, True), (STATES, True, False)),
    ],
)
def test_a_chat_is_taken_up_further_back_than_a_layer_reaches(
    kind: str, kept: bool, stop: bool, tiny: Callable[..., str], book: Document, tmp_path: Path
) -> None:
    """Turns that are needed come back from disk, or they are read again behind the book; never the book itself."""
    folder, few = tiny(kind), book.select(1, 3)
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
    assert [held.turn for held in talk.turns] == [history[0], Turn("And when?", done.text)]

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


def test_the_newest_answers_begin_and_end_at_places_of_the_chat(tiny: Callable[..., str], book: Document) -> None:
    """Where a state is kept nothing is read again but the question, and of the same one its last token."""
    session = begin(tiny(STATES))
    list(session.read(book.select(1, 3)))
    history = chat(session, "Where is the key?", "And when?")
    talk = session.conversation
    assert talk is not None
    places = [talk.kv_start(2), talk.kv_start(1), talk.read]
    assert [session.full.nearest(place) for place in places] == places
    started, done = ask(session, "And when?", history[:1])
    assert (started.prefilled_tokens, done.text) == (1, history[1].answer)
    started, _ = ask(session, "Who lit it?", history[:1])
    assert started.prefilled_tokens == started.prompt_tokens - talk.kv_start(1)
    assert len(session.full.bounded._chat) == CHAT_PLACES
    kept = session.full.bounded._places()
    held = sum(part.nbytes for place in kept for layer in place.layers for part in layer.values())
    held += session.full.bounded.allocated()[0]
    assert held <= session.full.shape.bounded_bytes(1) < 8 * held, "what the plan counts"


def test_rounds_that_copy_and_rounds_that_do_not_commit_their_states(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of which some tokens stand, plain steps and middle passes in turn say what plain decoding says."""
    session = begin(tiny(STATES, spread=0.1))
    list(session.read(book.select(1, 3)))
    sampling = SamplingParams(max_tokens=40)
    plain = list(session.ask(Question("Why?", (), sampling, "plain")))[-1]
    assert isinstance(plain, AnswerDone)
    right, script = (
        list(plain.token_ids),
        itertools.cycle([DraftPlan(copy=6), PLAIN, DraftPlan(copy=6), DraftPlan(0, 2)]),
    )

    def half_right(index: LookupIndex, tail: Sequence[int], *of_a_drafter: int) -> LookupMatch:
        if of_a_drafter:
            return NO_MATCH
        ahead = right[len(index) + len(tail) - plain.figures.prompt_tokens :][:6]
        return LookupMatch(9, tuple(token if at < 3 else token + 1 for at, token in enumerate(ahead)))

    monkeypatch.setattr(LookupIndex, "find", half_right)
    monkeypatch.setattr(FixedLengths, "next", lambda self, match: next(script))
    fast = list(session.ask(Question("Why?", (), sampling)))[-1]
    assert isinstance(fast, AnswerDone)
    assert list(fast.token_ids) == right
    assert fast.figures.lookup.rate == pytest.approx(0.5, abs=0.1)
    assert_the_cache_is_what_its_tokens_say(session)


@pytest.mark.parametrize("kind", [STATES, SHARED, "qwen3_moe", "gpt_oss"])
def test_sampled_answers_have_the_distribution_of_the_model(
    kind: str, tiny: Callable[..., str], book: Document
) -> None:
    """By enumeration of all answers of three tokens, two at each place. Of layers with states, without KV of their
    own, with experts, and with sinks beside these."""
    from transformers import AutoModelForCausalLM

    folder, count = tiny(kind, spread=0.1), 70
    session = begin(folder)
    list(session.read(book.select(1, 3)))
    told: Counter[tuple[int, ...]] = Counter()
    for seed in range(count):
        done = list(
            session.ask(Question("Why?", (), SamplingParams(temperature=1.0, top_k=2, max_tokens=3, seed=seed)))
        )[-1]
        assert isinstance(done, AnswerDone)
        told[done.token_ids] += 1
    talk = session.conversation
    assert talk is not None
    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    chances: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        prompt = talk.tokens[: done.figures.prompt_tokens]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([[*prompt, *begun] for begun in chances])).logits[:, -1]
        best = logits.topk(2)
        chances = {
            (*begun, token): chance * share
            for (begun, chance), tokens, shares in zip(
                chances.items(), best.indices.tolist(), best.values.softmax(-1).tolist(), strict=True
            )
            for token, share in zip(tokens, shares, strict=True)
        }
    assert told.keys() <= chances.keys()
    assert sum((told[each] - count * chance) ** 2 / (count * chance) for each, chance in chances.items()) < 24


@pytest.mark.parametrize(
    ("kind", "blocks"), [(WINDOWS, 5), (WINDOWS, 23), (SHARED, 6), (SHARED, 23), (STATES, 1), (STATES, 14)]
)
def test_a_reading_that_is_stopped_anywhere_goes_on(
    kind: str, blocks: int, tiny: Callable[..., str], book: Document
) -> None:
    """In the middle of a part, where some layers have passed tokens that others have not."""
    session, cancel = begin(tiny(kind), prefill_block=100), threading.Event()
    for number, event in enumerate(session.read(book, cancel=cancel)):
        if isinstance(event, ReadingProgress) and number == blocks:
            cancel.set()
    assert_the_cache_is_what_its_tokens_say(session)
    stopped = ask(session, "Why?", [])[1] if session.full.length else None
    *_, read = session.read(Reading(book, resume=True))
    assert isinstance(read, BookRead)
    assert read.tokens == read.tokens_total
    assert_the_cache_is_what_its_tokens_say(session)
    whole = begin(tiny(kind))
    list(whole.read(book))
    assert ask(session, "Why?", [])[1].token_ids == ask(whole, "Why?", [])[1].token_ids
    assert stopped is None or stopped.figures.prompt_tokens < read.tokens


@pytest.mark.parametrize(("kind", "change"), [(WINDOWS, "none"), (WINDOWS, "short"), (STATES, "none")])
def test_what_is_saved_of_them_is_checked(
    kind: str, change: str, tiny: Callable[..., str], book: Document, tmp_path: Path
) -> None:
    """A reading without it, or with fewer tokens than a window has, is refused and read again."""
    few = book.select(1, 3)
    session = begin(tiny(kind), tmp_path)
    list(session.read(few))
    expected = ask(session, "Why?", [])[1].token_ids
    session.close()
    (manifest,) = tmp_path.glob("*/snapshot.json")
    header = json.loads(manifest.read_text())
    window, folder = header["window"], manifest.parent
    assert window["stop"] - window["start"] == (WINDOW if kind == WINDOWS else header["tokens"])
    if change == "none":
        del header["window"]
    else:
        old = folder / f"window-{window['start']:08d}-{window['stop']:08d}.safetensors"
        window["start"] += 2
        old.rename(folder / f"window-{window['start']:08d}-{window['stop']:08d}.safetensors")
    manifest.write_text(json.dumps(header))
    other = begin(tiny(kind), tmp_path)
    *_, read = other.read(few)
    assert isinstance(read, BookRead)
    assert ("a sliding window" if kind == WINDOWS else "a state") in read.refused
    assert read.tokens_restored == 0
    assert ask(other, "Why?", [])[1].token_ids == expected
    other.close()


@pytest.mark.parametrize(("kind", "kv"), [(WINDOWS, "8bit"), (SHARED, "8bit"), (SHARED, "model"), (STATES, "model")])
def test_only_what_grows_is_spilled(
    kind: str, kv: str, tiny: Callable[..., str], book: Document, tmp_path: Path
) -> None:
    folder, few = tiny(kind, layers=9), book.select(1, 3)
    resident, spilled = (begin(folder, kv=kv, spill_folder=str(tmp_path)) for _ in range(2))
    for session in (resident, spilled):
        list(session.read(few))
    while spill_more(spilled.full):
        pass
    assert spilled.full.placement.spilled == tuple(range(4 if kind == SHARED else 3))
    assert spilled.full.shape.model_layers == spilled.target.num_layers
    assert spilled.full.kv_bytes().host == spilled.full.shape.bounded_bytes(spilled.full.length)
    assert ask(spilled, "Why?", [])[1].token_ids == ask(resident, "Why?", [])[1].token_ids
