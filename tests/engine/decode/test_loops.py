"""What is a loop and what is not, and that every way of decoding stops at the same token of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from engine.config import MODES, SamplingParams
from engine.decode.loops import LEAST_REPEATED, LoopDetector, circling
from engine.document import Document
from engine.events import AnswerDone, StopReason, TokenSource
from engine.prompt import Question
from tests.engine.test_equality import load, read, without_end

PROSE = list(range(1000, 1300))
SENTENCE = list(range(100, 145))


def closed(text: Sequence[int], book: Sequence[int] = ()) -> int | None:
    """Tokens of the text with which a loop is seen."""
    detector = LoopDetector(book)
    return next((count for count, token in enumerate(text, 1) if detector.add(token)), None)


def test_a_long_period_is_a_loop_with_its_third_turn() -> None:
    assert closed([*PROSE, *SENTENCE * 5]) == len(PROSE) + 3 * len(SENTENCE)
    assert closed([*PROSE, *SENTENCE * 2, *PROSE]) is None, "twice is no loop"
    nearly = [token for turn in range(9) for token in (*SENTENCE, 500 + turn)]
    assert closed(nearly) is None, "a list of which every line differs in one word is none"


@pytest.mark.parametrize("period", [1, 2, 7, 31])
def test_a_short_period_must_go_on_for_long(period: int) -> None:
    phrase = list(range(period))
    text = [*PROSE, *phrase * (2 * LEAST_REPEATED)]
    assert closed(text) == len(PROSE) + period + LEAST_REPEATED


def test_what_the_book_repeats_may_be_said_as_often_and_once_more() -> None:
    refrain = SENTENCE
    book = [*PROSE, *refrain * 4, *PROSE]
    assert closed([7, *refrain * 4, 8, *PROSE], book) is None
    assert closed([7, *refrain * 9], book) == 1 + 5 * len(refrain) + 1
    dots = [3] * 200
    assert closed(dots, [*PROSE, *dots, *PROSE]) is None, "a row of dots from the contents page"
    assert closed([*PROSE, *dots], [*PROSE, *dots[:50]]) == len(PROSE) + LEAST_REPEATED + 1


def test_tokens_that_run_in_a_loop_are_marked() -> None:
    prose = list(range(100, 160))
    assert circling(prose, 24) == [False] * 60
    assert circling([*prose, *[1, 2, 3] * 10, 7], 24) == [False] * 63 + [True] * 27 + [False]
    assert circling([5] * 40, 24) == [False] + [True] * 39
    # A phrase that comes twice, and a passage that is quoted once more, are no circles.
    assert circling([*prose[:30], *prose[:30]], 24) == [False] * 60
    assert circling([1, 2, 3] * 8, 24) == [False] * 24
    assert circling([], 24) == []


LOOPING = SamplingParams(temperature=0.0, max_tokens=400)


def test_every_way_of_decoding_stops_at_the_same_token(tiny: Callable[..., str], book: Document) -> None:
    """A random model at temperature 0 runs into a loop by itself; that it does is asserted."""
    given = {"num_draft_tokens": 2, "num_pending_tokens": 6}  # a controller may find that nothing pays on so small one
    session = load(tiny("llama", spread=0.1), tiny("llama", seed=1, layers=1, width=32), **given)
    read(session, book)
    without_end(session)
    answers: list[AnswerDone] = []
    for mode in MODES:
        *_, done = session.ask(Question("Where does the key hang?", sampling=LOOPING, mode=mode))
        assert isinstance(done, AnswerDone)
        answers.append(done)
        talk = session.conversation
        assert talk is not None
        assert session.full.length == len(talk.tokens) - 1, "what came behind the loop is in no cache"
    fast, plain = answers
    assert plain.stop_reason is fast.stop_reason is StopReason.LOOP
    assert plain.token_ids == fast.token_ids
    assert closed(plain.token_ids, talk.tokens[: talk.read]) == len(plain.token_ids) < LOOPING.max_tokens
    assert plain.sources == (TokenSource.TARGET,) * len(plain.token_ids)
    assert len(fast.sources) == len(fast.token_ids)
    assert fast.figures.rounds < len(fast.token_ids), "some of it came in bursts"

    # Going on is up to the person: it is stopped again when as much more has been repeated.
    *_, more = session.ask(Question("Where does the key hang?", (), LOOPING, begun=fast.text))
    assert isinstance(more, AnswerDone)
    assert more.stop_reason is StopReason.LOOP
    assert LEAST_REPEATED < len(more.token_ids) < 2 * LEAST_REPEATED
