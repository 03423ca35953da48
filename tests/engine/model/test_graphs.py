"""Recorded passes: what a replay may depend on, and what ends it. A tape that behaves as a CUDA graph records them."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.decode import tuning
from engine.decode.drafters import ModelDrafter
from engine.decode.rounds import middle_logits
from engine.document import Document
from engine.events import AnswerDone
from engine.kv.full import FullCache
from engine.kv.retrieval import RetrievalCache
from engine.model import attention, graphs, loading
from engine.model.backends.recorded import RecordedBackend
from engine.model.graphs import Replays
from engine.session import Session
from tests.engine.heads import add_head
from tests.engine.tape import TapeRecorder
from tests.engine.test_equality import QUESTION, answer, load, read

pytestmark = pytest.mark.usefixtures("torch_alone")

CPU = torch.device("cpu")
GIVEN: dict[str, Any] = {
    "retrieval_budget": 64,
    "refresh_every": 4,
    "num_draft_tokens": 3,
    "num_pending_tokens": 8,
    "window_size": 28,
}
TOKENS = 18
"""Of an answer: some eight middle passes, each with three steps of the draft, and a verification for nearly each."""

Unrecorded = tuple[tuple[str, str], list[AnswerDone]]


def taped(patch: pytest.MonkeyPatch, recorder: TapeRecorder) -> TapeRecorder:
    patch.setattr(graphs, "recorder_for", lambda device: recorder)
    return recorder


def levels(session: Session) -> tuple[Replays, Replays, Replays]:
    """The recorded passes of the draft, of the middle level and of verifications."""
    recorded = session.hierarchy.recorded()
    return recorded["draft"], recorded["middle"], recorded["verify"]


def answers(session: Session, book: Document, *, books: int = 1) -> list[AnswerDone]:
    """Two questions about each book: what the buffers hold is refreshed, cropped and evicted meanwhile."""
    found = []
    for pages in (book.pages[3:], book.pages)[:books]:
        read(session, Document(book.title, "", pages, "text", str(len(pages)) * 64))
        questions = QUESTION, "Who lit the lamp at dusk?"
        found += [answer(session, question=question, max_tokens=TOKENS) for question in questions]
    return found


@pytest.fixture(scope="module")
def unrecorded(tiny: Callable[..., str], book: Document) -> Unrecorded:
    """A pair, and what it answers about two books where nothing is recorded."""
    pair = tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32)
    return pair, answers(load(*pair, **GIVEN), book, books=2)


@pytest.mark.parametrize(("kind", "books"), [("llama", 2), ("llama-yarn", 1), ("phi3", 1)])
def test_replays_say_what_passes_say(
    kind: str,
    books: int,
    unrecorded: Unrecorded,
    tiny: Callable[..., str],
    book: Document,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair, expected = unrecorded
    if kind != "llama":
        pair = tiny(kind, spread=0.1), pair[1]
        expected = answers(load(*pair, **GIVEN), book, books=books)
    recorder = taped(monkeypatch, TapeRecorder())
    session = load(*pair, **GIVEN)
    found = answers(session, book, books=books)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.token_ids == theirs.token_ids
        # The levels below say the very same, too: acceptance and rounds are those of the ordinary passes.
        assert mine.figures.rounds == theirs.figures.rounds
        assert (mine.figures.middle, mine.figures.verify) == (theirs.figures.middle, theirs.figures.verify)
    draft, middle, verify = levels(session)
    assert not any(level.off for level in (draft, middle, verify))
    assert min(draft.replayed, middle.replayed, verify.replayed) > 10 * books
    # Recorded once per shape, over both books; verifications once per shape and book.
    cheap = len(draft._recordings) + len(middle._recordings)
    assert cheap < 12
    assert len(verify._recordings) <= 4
    assert cheap + len(verify._recordings) <= recorder.recorded <= cheap + 2 * len(verify._recordings) + 4


def test_sampled_answers_are_repeated_by_their_seed(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    taped(monkeypatch, TapeRecorder())
    session = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32), **GIVEN)
    read(session, book)
    warm: dict[str, Any] = {"temperature": 0.9, "top_p": 0.9, "seed": 5}
    recorded, replayed, again = (answer(session, **warm) for _ in range(3))
    assert recorded.token_ids == replayed.token_ids == again.token_ids
    assert levels(session)[0].replayed > 20


def test_a_wrong_replay_is_noticed_before_it_is_used(
    unrecorded: Unrecorded, book: Document, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pair, (*expected, _, _) = unrecorded
    for spoil in (lambda _, out: out.mul_(1.2), lambda _, out: out.fill_(float("nan"))):
        caplog.clear()
        recorder = taped(monkeypatch, TapeRecorder(spoil=spoil))
        session = load(*pair, **GIVEN)
        with caplog.at_level(logging.WARNING, "engine.model.graphs"):
            found = answers(session, book)
        assert [done.token_ids for done in found] == [done.token_ids for done in expected]
        assert [done.figures.verify for done in found] == [done.figures.verify for done in expected]
        assert all(level.off and level.replayed == 0 for level in levels(session))
        assert recorder.recorded == 3  # once a level, and never again
        assert {record.getMessage().split()[0] for record in caplog.records} == {"draft", "middle", "verify"}
        assert len(caplog.records) == 3
        assert all("first replay differs" in record.getMessage() for record in caplog.records)


def test_a_replay_that_goes_wrong_later_cannot_change_the_text(
    unrecorded: Unrecorded, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the cheap levels say is only proposed: even nonsense costs speed alone."""
    pair, (*expected, _, _) = unrecorded
    taped(monkeypatch, TapeRecorder(spoil=lambda number, out: out.neg_() if number > 20 else out))
    monkeypatch.setattr(FullCache, "fixed_span", lambda *_: None)
    found = answers(load(*pair, **GIVEN), book)
    assert [done.token_ids for done in found] == [done.token_ids for done in expected]
    kept, usual = (sum(done.figures.verify.accepted for done in some) for some in (found, expected))
    assert kept < usual


@pytest.mark.parametrize("when", ["recording", "replaying"])
def test_an_exception_ends_it_for_good(
    when: str,
    unrecorded: Unrecorded,
    book: Document,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(number: int, out: torch.Tensor) -> None:
        if number >= (0 if when == "recording" else 40):
            raise RuntimeError("CUDA error: operation not permitted")

    pair, (*expected, _, _) = unrecorded
    taped(monkeypatch, TapeRecorder(spoil=fail))
    session = load(*pair, **GIVEN)
    with caplog.at_level(logging.WARNING, "engine.model.graphs"):
        found = answers(session, book)
    assert [done.token_ids for done in found] == [done.token_ids for done in expected]
    assert all(level.off for level in levels(session))
    assert len(caplog.records) == 3
    assert "operation not permitted" in caplog.text


def test_what_is_not_faster_is_not_replayed(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    taped(monkeypatch, TapeRecorder(slow=True))
    session = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32), **GIVEN)
    answers(session, book)
    for level in levels(session):
        assert not level.off
        assert level.replayed == 0
        assert set(level._recordings.values()) == {None}


def test_a_verification_that_goes_wrong_later_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    """Its replays are held against the ordinary pass for good: what they say is the answer."""
    x = torch.ones(1, 4)
    replays = Replays(
        TapeRecorder(spoil=lambda number, out: out.neg_() if number > 9 else out), "verify", check_every=4
    )
    found = [float(replays.run((1,), lambda: (x * 2,), lambda x: (x * 2,), x)[0][0, 0]) for _ in range(20)]
    assert found.count(-2.0) <= 4
    assert found[-5:] == [2.0] * 5
    assert replays.off
    assert "a replay differs by" in caplog.text


@pytest.mark.parametrize(
    ("dtype", "experts", "wrong", "off"),
    [
        *((torch.float32, True, 1, True), (torch.bfloat16, False, 1, True)),
        *((torch.bfloat16, True, 2, False), (torch.bfloat16, True, 99, True)),
    ],
)
def test_only_a_mixture_in_half_precision_may_choose_another_expert(
    dtype: torch.dtype, experts: bool, wrong: int, off: bool
) -> None:
    """The first recordings are wrong. A mixture has two more tries, which a wrong recording fails as well."""
    x = torch.ones(1, 4)
    recorder = TapeRecorder(spoil=lambda _, out: out.mul_(1.2) if recorder.recorded <= wrong else out)
    replays = Replays(recorder, "verify", dtype, experts=experts)
    found = [float(replays.run((1,), lambda: (x * 2,), lambda x: (x * 2,), x)[0][0, 0]) for _ in range(9)]
    assert found == [2.0] * 9
    assert replays.off == off
    assert bool(replays.replayed) != off


def test_recordings_of_other_memory_are_void() -> None:
    x, recorder = torch.ones(1, 4), TapeRecorder()
    replays = Replays(recorder, "verify")
    for memory in (1, 1, 1, 1, 2, 2, 1):
        replays.run((1,), lambda: (x * 2,), lambda x: (x * 2,), x, bound=memory)
    assert recorder.recorded == 3
    assert replays.replayed == 2


def test_who_asks_for_none_gets_none(tiny: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert graphs.recorder_for(CPU) is None
    taped(monkeypatch, TapeRecorder())
    pair = tiny("llama"), tiny("llama", seed=1, layers=1, width=32)
    assert not load(*pair, graphs="off").hierarchy.recorded()
    assert "middle" in load(*pair).hierarchy.recorded()
    # RoPE that looks at its positions cannot be recorded.
    assert "middle" not in load(tiny("phi3-longrope"), None).hierarchy.recorded()
    # A replay does not hand out the hidden states that a draft head reads.
    assert not load(add_head(tiny("llama"), tmp_path / "head"), None).hierarchy.recorded()


def test_a_pass_of_fixed_shape_is_the_pass(tiny: Callable[..., str]) -> None:
    """Over random growth and crops, wherever the tokens come to stand, on memory that held no numbers before."""
    decoder = loading.load(tiny("llama", spread=0.1), window=512, device=CPU)
    rng = random.Random(3)
    full = FullCache(decoder.kv_shape, 512)
    full.reserve(300)
    ids = torch.tensor([rng.randrange(6, 380) for _ in range(300)])
    with torch.inference_mode():
        decoder.forward(ids, full.extend(0))
        full.advance(300)
        plain, recorded = (RetrievalCache(full, 64, 8, 320) for _ in range(2))
        for values in recorded._values:
            values.fill_(float("nan"))
        replays = Replays(TapeRecorder(), "middle")
        ways = (recorded, RecordedBackend(decoder, replays)), (plain, decoder)
        g = torch.Generator().manual_seed(1)
        for boundary in (200, 30, 280):
            queries = [torch.randn(1, 4, 8, 16, generator=g) for _ in range(3)]
            for cache in (plain, recorded):
                cache.select_at(boundary, queries, 0.25)
                cache.crop(min(cache.length, cache.boundary + 20))
            for _ in range(12):
                count = rng.choice((1, 3))
                some = torch.tensor([rng.randrange(6, 380) for _ in range(count)])
                found, expected = (middle_logits(way, cache, some, count) for cache, way in ways)
                assert torch.allclose(found, expected, atol=1e-4)
                kept = rng.randrange(count + 1)
                for cache in (plain, recorded):
                    cache.advance(count)
                    cache.crop(cache.length - count + kept)
        assert replays.replayed > 20


def test_tokens_that_a_head_leaves_out_must_be_the_same_ones() -> None:
    never = float("-inf")
    expected = torch.tensor([2.0, never, -4.0])
    assert graphs._difference(torch.tensor([2.0, never, -4.0]), expected) == 0.0
    assert graphs._difference(torch.tensor([2.0, never, -3.0]), expected) == 0.25
    for wrong in ([2.0, 0.0, -4.0], [never, never, -4.0], [2.0, never, float("nan")]):
        assert graphs._difference(torch.tensor(wrong), expected) == float("inf")


def test_a_number_that_was_looked_up_is_as_it_was_recorded(tiny: Callable[..., str]) -> None:
    """The tape would not hide such a mistake: a pass that asks its cache how much it holds goes wrong when replayed."""
    decoder = loading.load(tiny("llama", spread=0.1), window=512, device=CPU)
    drafter = ModelDrafter(decoder, decoder.vocabulary, 4, 60, longest=10)
    ids = torch.tensor([7])

    def wrong() -> torch.Tensor:
        return decoder.forward(ids, drafter.cache.extend(1), rows=1)

    with torch.inference_mode():
        drafter.begin(list(range(10, 40)))
        replay = TapeRecorder().record(wrong)
        assert torch.allclose(replay(), wrong(), atol=1e-5)
        drafter.cache.advance(1)
        assert not torch.allclose(replay(), wrong(), atol=1e-2)
        with pytest.raises(RuntimeError, match="cannot be recorded"):
            TapeRecorder().record(lambda: ids + int(ids.sum()))


def test_attention_to_what_is_seen_is_that_to_the_newest() -> None:
    g = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(1, heads, n, 8, generator=g) for heads, n in ((6, 3), (2, 40), (2, 40)))
    seen = torch.arange(40) <= torch.arange(20, 23)[:, None]
    found = attention.attend_seen(q, k, v, 0.3, attention.Seen(seen))
    assert torch.allclose(found, attention.attend_newest(q, k[:, :, :23], v[:, :, :23], 0.3), atol=1e-6)


def test_passes_are_recorded_between_two_answers(
    unrecorded: Unrecorded, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer records nothing, not even where every shape is new to it, and says what it says without recordings."""
    pair, expected = unrecorded
    monkeypatch.setattr(graphs, "RECORD_AFTER", 10_000)
    recorder = taped(monkeypatch, TapeRecorder())
    session = load(*pair, **GIVEN)
    assert not list(session.work_ahead())
    found: list[tuple[int, ...]] = []
    for pages in (book.pages[3:], book.pages):
        read(session, Document(book.title, "", pages, "text", str(len(pages)) * 64))
        for question in (QUESTION, "Who lit the lamp at dusk?"):
            made = list(session.work_ahead())
            assert made or len(found) > 1
            before = recorder.recorded
            held = [session.full.length, session.hierarchy.retrieval.length]
            assert not list(session.work_ahead()), "recorded twice"
            assert held == [session.full.length, session.hierarchy.retrieval.length]
            found.append(answer(session, question=question, max_tokens=TOKENS).token_ids)
            assert recorder.recorded == before
    assert found == [done.token_ids for done in expected]
    assert not any(level.off for level in levels(session))
    assert min(level.replayed for level in levels(session)) > 10


def test_recorded_passes_are_timed_before_the_next_answer(
    unrecorded: Unrecorded, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a controller would decide by what passes cost before they were recorded."""
    pair, (expected, *_) = unrecorded
    monkeypatch.setattr(graphs, "RECORD_AFTER", 10_000)
    monkeypatch.setattr(tuning, "TUNING", replace(tuning.TUNING, slow_step_ms=math.inf))
    recorder = taped(monkeypatch, TapeRecorder())
    session = load(*pair, **{**GIVEN, "num_draft_tokens": None, "num_pending_tokens": None})
    read(session, Document(book.title, "", book.pages[3:], "text", "3" * 64))
    answer(session, max_tokens=TOKENS)
    (controller,) = session.hierarchy._controllers.values()
    assert not recorder.recorded
    controller.replace_costs(replace(controller.costs, draft=1e9), replace(controller.limits, draft=0))
    list(session.work_ahead())
    assert controller.costs.draft < 1e6
    assert controller.limits == session.hierarchy.limits(controller.costs)
    assert answer(session, max_tokens=TOKENS).token_ids == expected.token_ids
    controller.replace_costs(replace(controller.costs, draft=1e9), replace(controller.limits, draft=0))
    recorded = recorder.recorded
    list(session.work_ahead())
    assert (controller.costs.draft < 1e6) == (recorder.recorded > recorded), "timed without need"


@pytest.mark.parametrize("left", [12, 1])
def test_passes_are_recorded_ahead_where_the_window_is_nearly_full(
    left: int, unrecorded: Unrecorded, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verification of 16 tokens has no room there, and the other levels are recorded all the same."""
    taped(monkeypatch, TapeRecorder())
    session = load(*unrecorded[0], **GIVEN)
    read(session, book)
    monkeypatch.setattr(session.full, "limit", session.full.length + left)
    list(session.work_ahead())
    draft, middle, verify = levels(session)
    assert draft._recordings
    assert middle._recordings
    assert {count for count, *_ in verify._recordings} == ({1, 4} if left == 12 else {1})
    draft.off = middle.off = verify.off = True
    ran = [level.recorded for level in (draft, middle, verify)]
    assert not list(session.work_ahead()), "passes that are not recorded"
    assert ran == [level.recorded for level in (draft, middle, verify)]


def test_a_replay_of_a_mixture_that_differs_is_not_used_again() -> None:
    x, recorder = torch.ones(1, 4), TapeRecorder(spoil=lambda number, out: out.neg_() if number == 9 else out)
    replays = Replays(recorder, "verify", torch.bfloat16, check_every=1, experts=True)
    found = [float(replays.run((1,), lambda: (x * 2,), lambda x: (x * 2,), x)[0][0, 0]) for _ in range(20)]
    assert found == [2.0] * 20
    assert recorder.recorded == 2
    assert not replays.off
