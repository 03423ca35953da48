"""The live figures: kept up from round to round, equal to what all rounds together give."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from statistics import fmean
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.document import Document
from engine.events import Acceptance, AnswerDone, AnswerStarted, KvBytes, Round, TextDelta, TimeSplit, TokenSource
from engine.generation import Meter, PlainSteps
from engine.model.backends.program import ProgramBackend
from engine.model.backends.walk import Walk
from engine.prompt import Question
from engine.session import Session
from tests.engine.test_equality import without_end


def percentile(values: list[float], share: float) -> float:
    """The value below which ``share`` of the values lie, by nearest rank."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def one_token(meter: Meter, elapsed: float) -> None:
    meter.add(Round((1,), (TokenSource.TARGET,), TimeSplit(), ended=False), elapsed, 0.5)


def test_figures_after_every_round_are_those_of_all_tokens_so_far() -> None:
    dice, meter, latencies = random.Random(7), Meter("hierarchical", 100, 10, 4096), []
    for number in range(1, 60):
        count, elapsed = dice.randint(1, 9), dice.choice([1.0, 2.5, 40.0, dice.random()])
        done = Round(tuple(range(count)), (TokenSource.TARGET,) * count, TimeSplit(), ended=False)
        meter.add(done, elapsed, 0.5 + number)
        latencies += [elapsed / count] * count
        figures = meter.figures(KvBytes(), 100 + len(latencies))
        assert (figures.answer_tokens, figures.rounds, figures.ttft_s) == (len(latencies), number, 1.5)
        assert figures.ms_per_token_p50 == percentile(latencies, 0.50)
        assert figures.ms_per_token_p95 == percentile(latencies, 0.95)
        assert figures.ms_per_token_mean == pytest.approx(fmean(latencies))


def test_before_any_token_nothing_is_known() -> None:
    figures = Meter("plain", 100, 10, 4096).figures(KvBytes(), 100)
    assert figures.answer_tokens == 0
    assert figures.ms_per_token_p50 is figures.ms_per_token_p95 is figures.ms_per_token_mean is None
    assert figures.tokens_per_s is None


@pytest.mark.parametrize(
    ("latencies", "p50", "p95"),
    [
        ([3.0], 3.0, 3.0),
        ([3.0, 1.0, 2.0], 2.0, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 3.0, 4.0),
        ([float(n) for n in range(100)], 50.0, 95.0),
    ],
)
def test_the_nearest_rank_by_hand(latencies: list[float], p50: float, p95: float) -> None:
    meter = Meter("plain", 100, 10, 4096)
    for elapsed in latencies:
        one_token(meter, elapsed)
    figures = meter.figures(KvBytes(), 100)
    assert (figures.ms_per_token_p50, figures.ms_per_token_p95) == (p50, p95)


def test_an_answer_of_plain_steps_is_as_fast_as_plain() -> None:
    """What is done beside the pass, plain decoding does too."""
    meter = Meter("hierarchical", 100, 10, 4096)
    for number in range(8):
        step = Round((1,), (TokenSource.TARGET,), TimeSplit(verify=2.0), ended=False)
        meter.add(step, 2.5, 0.1 * number)
    figures = meter.figures(KvBytes(), 100)
    assert figures.speedup_vs_plain == pytest.approx(1.0)
    assert figures.plain_ms == pytest.approx(2.5)


# The speedup, on a machine whose clock is ours ------------------------------------------------------------------------


# Milliseconds of a pass by the cache that it reads: fixed, and for each token.
COSTS = {"engine.kv.full": (59.0, 1.0), "engine.kv.retrieval": (11.0, 1.0), "engine.kv.streaming": (4.0, 0.0)}


class Machine:
    """A clock that only passes of a model advance, by what they cost: times ``slowness`` of the moment.

    ``steady_ms`` is what the same work would have taken on a machine that is never slow.
    """

    PLAIN_MS = 60.0

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slowness: Callable[[float], float]) -> None:
        self.now_s, self.steady_ms, self.slowness = 0.0, 0.0, slowness

        def time_passes(kind: type[Walk]) -> None:
            forward = kind.forward

            def timed(backend: Walk, ids: torch.Tensor, view: Any, rows: int | None = None) -> torch.Tensor:
                out = forward(backend, ids, view, rows)
                if type(backend) is kind:
                    fixed, each = COSTS[type(view).__module__]
                    self.pass_of(fixed + each * ids.shape[0])
                return out

            monkeypatch.setattr(kind, "forward", timed)

        for kind in (Walk, ProgramBackend):
            time_passes(kind)
        monkeypatch.setattr(time, "perf_counter", lambda: self.now_s)

    def pass_of(self, ms: float) -> None:
        self.steady_ms += ms
        self.now_s += ms / 1000.0 * self.slowness(self.now_s)


def slow_at_first(now_s: float) -> float:
    return 3.0 if now_s < 5.0 else 1.0


def slow_for_a_while(now_s: float) -> float:
    return 2.5 if 8.0 < now_s < 20.0 else 1.0


def answered(session: Session, machine: Machine, **sampling: Any) -> tuple[AnswerDone, float]:
    """An answer, and how much faster than plain decoding it was written, by the work that was done for it."""
    began = ended = 0.0
    for event in session.ask(Question("Where is the key?", sampling=SamplingParams(max_tokens=300, **sampling))):
        if isinstance(event, AnswerStarted):
            began = machine.steady_ms
        if isinstance(event, TextDelta):
            ended = machine.steady_ms
    assert isinstance(event, AnswerDone)
    return event, Machine.PLAIN_MS * len(event.token_ids) / (ended - began)


@pytest.mark.parametrize("slowness", [slow_at_first, slow_for_a_while])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "with a seed"])
def test_a_machine_that_is_slow_for_a_while_does_not_flatter(
    slowness: Callable[[float], float],
    sampling: dict[str, Any],
    tiny: Callable[..., str],
    book: Document,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tiny("llama", spread=0.1)
    session = Session.load(EngineConfig(folder, folder, context=4096, retrieval_budget=256))
    without_end(session)
    list(session.read(book))
    machine = Machine(monkeypatch, slowness)
    list(
        session.ask(Question("Who lit it?", sampling=SamplingParams(max_tokens=8)))
    )  # times the levels once for a book
    machine.now_s = 0.0
    done, truth = answered(session, machine, **sampling)
    figures = done.figures
    assert figures.speedup_vs_plain == pytest.approx(truth, rel=0.1)
    assert figures.plain_steps >= 3
    assert figures.plain_age_s is not None
    assert 0.0 <= figures.plain_age_s < machine.now_s


def test_timing_plain_steps_takes_a_hundredth_of_the_answer_and_changes_no_word(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lengths are fixed by the seed, so every plain step is one that was timed beside the answer."""
    folder, sampling = tiny("llama", spread=0.1), {"temperature": 0.8, "seed": 5}
    session = Session.load(EngineConfig(folder, folder, context=4096, retrieval_budget=256))
    without_end(session)
    list(session.read(book))
    machine = Machine(monkeypatch, lambda now_s: 1.0)
    timed, _ = answered(session, machine, **sampling)
    spent = (timed.figures.plain_steps - 1) * machine.PLAIN_MS  # the first is the one before the answer
    assert 0 < spent <= 0.01 * timed.figures.time_split.total + 2 * machine.PLAIN_MS
    monkeypatch.setattr(PlainSteps, "due", lambda self, now_s: True)
    always, _ = answered(session, machine, **sampling)
    monkeypatch.setattr(PlainSteps, "due", lambda self, now_s: False)
    monkeypatch.setattr(PlainSteps, "wanting", lambda self, answer_s: False)
    never, _ = answered(session, machine, **sampling)
    assert always.figures.plain_steps > 50 > timed.figures.plain_steps > never.figures.plain_steps
    assert always.token_ids == timed.token_ids == never.token_ids
    assert never.figures.speedup_vs_plain is None
    assert never.figures.plain_ms is None


def verified(rows: int, ms: float, tokens: int = 1) -> Round:
    ids = tuple(range(tokens))
    verify = Acceptance(tokens - 1, rows - 1)
    return Round(ids, (TokenSource.TARGET,) * tokens, TimeSplit(verify=ms), ended=False, verify=verify)


def test_a_free_second_row_does_not_make_longer_verifications_look_free() -> None:
    """Most rounds copy one token and cost a plain step. A copy of eight costs 2.4 and makes one token."""
    steps, tokens, spent = PlainSteps(), 0, 0.0
    for number in range(120):
        rows, ms, made = (9, 240.0, 1) if number % 6 == 5 else (2, 100.0, 1 + (number % 4 == 0))
        if number % 10 == 9:
            rows, ms, made = 1, 100.0, 1
        steps.made(verified(rows, ms, made), ms, 0.1 * number)
        tokens, spent = tokens + made, spent + ms
    assert steps.speedup() == pytest.approx(100.0 * tokens / spent)


def test_a_speedup_by_hand_rests_on_three_plain_steps() -> None:
    steps = PlainSteps()
    steps.add(50.0, 0.0)
    steps.made(verified(9, 70.0, 6), 100.0, 0.1)  # a further row costs 0.05 steps
    assert steps.speedup() is None
    steps.made(verified(1, 60.0), 60.0, 0.2)
    assert (steps.speedup(), steps.count, steps.age_s(0.5)) == (None, 2, pytest.approx(0.3))
    steps.add(35.0, 0.3)
    # Seven tokens; the first round was 100 ms at 70 ms for 1.4 steps, the second one step. A step beside a plain step
    # tells nothing of rows.
    assert steps.speedup() == pytest.approx(7 / (100.0 / 70.0 * 1.4 + 1.0))
    assert not steps.due(2.2)
    assert not steps.due(3.7)  # a hundred times 35 ms
    assert steps.due(3.9)


def test_a_second_round_that_started_the_levels_makes_no_answer_fast() -> None:
    """Two tokens, each by a plain step of 10 ms; costs were measured for 90 ms between them."""
    steps = PlainSteps()
    steps.made(verified(1, 10.0), 10.0, 0.01)
    steps.made(verified(1, 10.0), 100.0, 0.11)
    steps.add(10.0, 0.12)
    assert steps.speedup() == pytest.approx(2 * 10 / 110)


def test_steps_that_are_wanting_at_the_end_are_timed_if_they_are_cheap() -> None:
    steps = PlainSteps()
    steps.add(500.0, 0.0)
    assert steps.wanting(11.0)
    assert not steps.wanting(9.0)  # two of them, and a tenth of the answer
    steps.add(90.0, 1.0)
    assert steps.wanting(0.1)  # 90 ms
    steps.add(90.0, 1.1)
    assert not steps.wanting(10.0)


def test_where_the_steps_do_not_agree_there_is_no_speedup() -> None:
    """Verifications of nine rows take 72 ms; beside them plain steps took 40, 70 and 12 ms on a machine at work."""

    def told(*steps_ms: float) -> float | None:
        steps = PlainSteps()
        for second, ms in enumerate(steps_ms):
            steps.made(verified(9, 72.0, 6), 80.0, second)
            steps.add(ms, second + 0.5)
        return steps.speedup()

    assert told(40.0, 41.0, 42.0) == pytest.approx(18 / (80.0 / 72.0 * 3 * (1 + 72 / 41 - 1)), rel=0.05)
    assert told(40.0, 70.0, 12.0) is None
