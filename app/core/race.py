"""Runs a race: answers a question twice, by plain and by speculative decoding, and compares the texts and the times.

    race = Race(app_state, verified)
    race.start(question)               returns at once
    race.state, race.result            the progress and the result, for the page

Both runs decode greedily and start from the same context, which is the book and the question; the book is not read
again. The runs take turns of a moment, and the page shows both live (``engine.lanes``). A run's times count only its
own turns, so both are at about the same time, and a slowdown of the machine affects both.
If an answer is short, the race continues with further questions about the book. The texts of a refusal, or of an answer
that repeats itself, are compared like others, but their speed does not count (``app.core.speed``). Besides the
person's own questions a race asks only the questions that the page suggests. During a race no other question can be
asked, so that no other answer slows a run down. Stopping the answer stops the race.

A race with equal texts is a passed check that speculation does not change the text. ``Verified`` stores a record of
passed checks in a small file in the data folder. A record is valid for one pair of models on one device in one
precision. A record is written after a passed race or self-test, and deleted when a later race or self-test fails.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from app.core import format, speed
from app.core.abilities import Abilities, abilities
from app.core.chats import Exchange, Trouble
from app.core.forecast import identity
from app.core.open_book import Stage
from app.core.state import AppState
from app.core.suggestions import asks_for_summary
from app.core.whole_files import write_whole
from engine import HANDOVER_S, ModelInfo, Question, Request
from engine.config import Mode, SamplingParams
from engine.errors import InputError, TrifoldError
from engine.events import AnswerDone, Figures, Loading, PagesScored, PlainLane, StopReason, TextDelta, ThoughtDelta

logger = logging.getLogger(__name__)

MOST_TOKENS = 192  # default of the maximum tokens of an answer in a race
ENOUGH_TOKENS = 96
"""A race asks no further question once all counted answers together have this number of tokens."""

MOST_QUESTIONS = 4
FAST: Mode = "hierarchical"
_THINKS = "The model thinks first…"
_LONGEST_QUESTION = 4000  # maximum characters of a question; further characters are cut off
_POLL = 0.1  # maximum seconds of one wait for an event, after which the race checks whether the person has stopped it
FEWEST_TOKENS = 16
"""Minimum tokens of a passed check. A check of fewer tokens is not recorded, because it proves little."""


class Race:
    """The races of one program.

    Args:
        app_state: the open book and the engine.
        verified: stores which pairs of models have passed a race.
        suggested: returns the questions that the page suggests about the open book. If its argument is true, it waits
            until they have been made. They are asked while the answers whose speed counts have fewer than
            ``ENOUGH_TOKENS`` tokens.
        most_tokens: maximum tokens of each answer.
    """

    def __init__(
        self,
        app_state: AppState,
        verified: Verified,
        suggested: Callable[[bool], Sequence[str]] = lambda _: (),
        most_tokens: int = MOST_TOKENS,
    ) -> None:
        self._app_state = app_state
        self._verified = verified
        self._suggested = suggested
        self.most_tokens = most_tokens
        self._number = 0
        self.state = RaceState()
        self.result: RaceResult | None = None

    @property
    def possible(self) -> bool:
        """Whether a race is possible. False if the model runs on a server, whose decoding cannot be compared."""
        model = self._app_state.engine.status().model
        return model is not None and model.parameters > 0

    def start(self, question: str) -> None:
        """Begin a race. Returns at once.

        Args:
            question: the question. If it is "", the race takes the newest question of the open chat that was answered
                from the book, by an answer that nothing doubts. If there is none, it takes a suggested question.

        Raises:
            InputError: there is no question, no book is read, the book is read in parts, or the model is not on this
                machine.
            Busy: another question is being answered.
        """
        chat = self._app_state.chat
        instead = ""
        if not question.strip():
            turns = chat.exchanges if chat is not None else ()
            told = _last_of(turns)
            other = "" if told else next(iter(self._others(False)), "")
            instead = other if turns else ""
            question = told or other or (turns[-1].question if turns else "")
        question = question.strip()[:_LONGEST_QUESTION]
        if not question:
            raise InputError("There is no question to race with.", "Type one first.")
        current = self._app_state.current
        if current.stage is Stage.PARTS:
            raise InputError("A race needs a text that has been read whole.", "Choose chapters or pages of this book.")
        if current.stage is not Stage.READY or current.book is None:
            raise InputError("The race needs a book that has been read.", "Open one, or wait until it has been read.")
        if not self.possible:
            raise InputError("The race needs a model on this machine.", "Choose one first.")
        claim = self._app_state.claim()
        self.state = RaceState(running=True, question=question)
        run = question, current.book.sha256, claim, bool(instead)
        work = threading.Thread(target=self._run, args=run, name="trifold-race", daemon=True)
        work.start()

    def _run(self, question: str, book: str, claim: threading.Event, instead: bool) -> None:
        try:
            answered = self._answer_all(islice(self._all_questions(question), MOST_QUESTIONS), claim)
            self._number += 1
            self.result = RaceResult(self._number, book, time.time(), answered, instead)
            self._tell_chat(self.result)
            self._verified.note(self._app_state.engine.status().model, "race", self.result.same, self.result.tokens)
            self.state = RaceState(question=question)
        except TrifoldError as error:
            self.state = RaceState(question=question, trouble=Trouble(error.cause, error.remedy))
        except Exception:  # the page must show any error; the log has the traceback
            logger.exception("a race failed")
            self.state = RaceState(question=question, trouble=Trouble("Something broke in this race.", "Try again."))
        finally:
            self._app_state.release(claim)

    def _answer_all(self, questions: Iterable[str], claim: threading.Event) -> tuple[RaceQuestion, ...]:
        """Answer each question by both runs before the next question begins. The race ends at the first difference, or
        when the answers whose speed counts have ``ENOUGH_TOKENS`` tokens.
        """
        model = self._app_state.engine.status().model
        card = abilities(str(model.path)) if model else Abilities()
        answered: list[RaceQuestion] = []
        for number, question in enumerate(questions):
            fast, plain = self._both_runs(RaceState(True, number, question), claim)
            earlier = [one.fast.text for one in answered]
            uncounted = speed.uncounted(fast.text, earlier, refused=card.refuses(fast.text))
            answered.append(RaceQuestion(question, plain, fast, uncounted))
            if answered[-1].same < answered[-1].tokens:
                break
            if sum(one.tokens for one in answered if not one.uncounted) >= ENOUGH_TOKENS:
                break
        return tuple(answered)

    def _all_questions(self, question: str) -> Iterator[str]:
        """The question, then the suggested questions. The race waits for the suggested questions only if it needs
        them.
        """
        yield question
        yield from (other for other in self._others(True) if other != question)

    def _others(self, wait: bool) -> list[str]:
        """The suggested questions, a request for a summary last: no passage shows whether a summary is right."""
        return sorted(self._suggested(wait), key=asks_for_summary)

    def _tell_chat(self, result: RaceResult) -> None:
        """If an answer of the open chat has the same text as in the race, replace its speed by the speed from the race,
        so that a text is shown with only one speed. The race's speed is more precise, because it timed a whole plain
        run instead of a few plain steps.
        """
        chat = self._app_state.chat
        for position, turn in enumerate(chat.exchanges if chat else ()):
            raced = next((one for one in result.counted if one.fast.text == turn.answer), None)
            times = RaceResult(0, "", 0.0, (raced,)).times if raced else None
            if chat and raced and raced.fast.figures and times and turn.figures and turn.figures.mode != "plain":
                steps = len(raced.plain.token_ids)
                figures = replace(raced.fast.figures, plain_ms=mean_ms((raced.plain,)), plain_steps=steps)
                figures = replace(figures, speedup_vs_plain=times)
                notes = {**(turn.notes or {}), "pace": raced.fast.pace}
                self._app_state.chats.update(chat.id, position, replace(turn, figures=figures, notes=notes))

    def _both_runs(self, state: RaceState, claim: threading.Event) -> tuple[RaceRun, RaceRun]:
        """Answer a question by both runs, and show both live. Return the fast run and the plain run."""
        self.state = state = replace(state, fast=RaceRun(FAST), plain=RaceRun("plain"))
        request = self._request(state.question, claim)
        try:
            while not (state.fast.done and state.plain.done):
                event = request.next_event(timeout=_POLL)
                if claim.is_set():
                    raise TrifoldError("The race was stopped.", "Start it again when you like.")
                if event is None and request.finished:
                    raise TrifoldError("The engine ended this run without a result.", "Try again.")
                self.state = state = self._shown(state, event)
        finally:
            if not request.finished:
                request.cancel()
        if state.fast.stop_reason is StopReason.CANCELLED:
            raise TrifoldError("The race was stopped.", "Start it again when you like.")
        return state.fast, state.plain

    def _shown(self, state: RaceState, event: object) -> RaceState:
        """Show the figures and the page scores of an event on the page. Return the state with the event added."""
        if isinstance(event.event if isinstance(event, PlainLane) else event, ThoughtDelta):
            return replace(state, before=_THINKS)
        if isinstance(event, PlainLane):
            return replace(state, plain=state.plain.take(event.event))
        fast = state.fast.take(event)
        if isinstance(event, PagesScored):
            self._app_state.show(scores=event.scores)
        if isinstance(event, TextDelta):
            self._app_state.show(figures=fast.figures, pace=fast.pace)
        return replace(state, fast=fast, before=event.what if isinstance(event, Loading) else state.before)

    def _request(self, question: str, claim: threading.Event) -> Request[AnswerDone]:
        """Send the question to the engine. If the engine is still busy with a cancelled request, wait up to
        ``HANDOVER_S`` seconds until that has ended.
        """
        sampling = SamplingParams(temperature=0.0, max_tokens=self.most_tokens)
        asked = Question(question, sampling=sampling, mode=FAST, wait=HANDOVER_S, plain_lane=True)
        return self._app_state.engine.ask(asked, cancel=claim)


def _last_of(turns: Sequence[Exchange]) -> str:
    """Return the newest question of a chat that was answered from the book; "" if there is none. A refusal, an answer
    that repeated itself, or one that the text does not support does not count, because a race shows its texts large.
    """
    told = (turn.question for turn in reversed(turns) if not _is_doubted(turn.notes or {}))
    return next(told, "")


def _is_doubted(notes: Mapping[str, Any]) -> bool:
    wrong = bool(format.absence(notes) or notes.get("assumed"))
    return wrong or notes.get("uncounted") in (speed.REFUSED, speed.CIRCLES)


# Runs and questions --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RaceRun:
    """One run of one question. ``steps`` are pairs of a time and the text that was new at that time. The time is in
    milliseconds since decoding began, by the engine's clock.
    """

    mode: str
    steps: tuple[tuple[float, str], ...] = ()
    token_ids: tuple[int, ...] = ()
    figures: Figures | None = None
    stop_reason: StopReason | None = None
    pace: tuple[format.PacePoint, ...] = ()

    @property
    def ms(self) -> float:
        """Milliseconds of decoding, from the end of the question's prefill to the last token."""
        return spent_ms(self.figures)

    @property
    def text(self) -> str:
        return "".join(text for _, text in self.steps)

    @property
    def done(self) -> bool:
        return self.stop_reason is not None

    def take(self, event: object) -> RaceRun:
        """Return a copy of the run with an event of the engine added."""
        if isinstance(event, TextDelta):
            ms = round(spent_ms(event.figures), 2)
            ids = self.token_ids + event.token_ids
            pace = format.longer_pace(self.pace, event, self.figures)
            steps = (*self.steps, (ms, event.text))
            return replace(self, steps=steps, token_ids=ids, figures=event.figures, pace=pace)
        if isinstance(event, AnswerDone):
            return replace(self, token_ids=event.token_ids, figures=event.figures, stop_reason=event.stop_reason)
        return self


@dataclass(frozen=True)
class RaceState:
    """The progress of a race. ``running``: whether the race has not ended. ``question``: the current question.
    ``question_at``: index of the current question, from 0. ``fast``, ``plain``: the runs of the current question, as
    far as they have come. ``before``: what the engine did last before the first token, as a sentence. ``trouble``: the
    error that ended the race; None if there was none.
    """

    running: bool = False
    question_at: int = 0
    question: str = ""
    fast: RaceRun = RaceRun(FAST)
    plain: RaceRun = RaceRun("plain")
    before: str = ""
    trouble: Trouble | None = None


@dataclass(frozen=True)
class RaceQuestion:
    """One question, answered by both runs. ``uncounted``: why the speed does not count, as returned by
    ``speed.uncounted``.
    """

    question: str
    plain: RaceRun
    fast: RaceRun
    uncounted: str = ""

    @property
    def same(self) -> int:
        """Number of equal tokens before the first difference of the two answers."""
        pairs = enumerate(zip(self.plain.token_ids, self.fast.token_ids, strict=False))
        shorter = min(len(self.plain.token_ids), len(self.fast.token_ids))
        return next((at for at, (a, b) in pairs if a != b), shorter)

    @property
    def tokens(self) -> int:
        """Number of tokens of the longer one of the two answers."""
        return max(len(self.plain.token_ids), len(self.fast.token_ids))


@dataclass(frozen=True)
class RaceResult:
    """The result of a finished race.

    Args:
        number: number of the race, counted from 1 since the program began.
        book: hash of the book.
        when: seconds since the epoch.
        questions: questions answered by both runs, in order. If two answers differ, the race ends with their question.
        is_substitute: whether a suggested question replaced the question, because no answer in the chat was about the
            book.
    """

    number: int
    book: str
    when: float
    questions: tuple[RaceQuestion, ...]
    is_substitute: bool = False

    @property
    def counted(self) -> tuple[RaceQuestion, ...]:
        """The questions whose speed counts."""
        return tuple(one for one in self.questions if not one.uncounted)

    @property
    def shown(self) -> tuple[RaceQuestion, ...]:
        """The questions that the replay shows. If all answers are identical, these are the questions whose speed
        counts. If an answer differs, or if no speed counts, these are all questions.
        """
        return self.counted if self.identical and self.counted else self.questions

    @property
    def same(self) -> int:
        return self._total(lambda one: one.same)

    @property
    def tokens(self) -> int:
        """Number of tokens of all questions together. For each question, the tokens of the longer answer are
        counted.
        """
        return self._total(lambda one: one.tokens)

    @property
    def identical(self) -> bool:
        return self.same == self.tokens and self.tokens > 0

    @property
    def times(self) -> float | None:
        """The speedup: the time per token of the plain run, divided by the time per token of the run with speculation.

        None if a run was not measured, or if the texts differ. The engine also estimates the speedup, from plain steps
        that it times during the run with speculation. If this estimate disagrees with the race, the result is None too,
        because other work has probably disturbed a run.
        """
        counted = self.counted
        plain, fast = mean_ms(tuple(one.plain for one in counted)), mean_ms(tuple(one.fast for one in counted))
        if not self.identical or not plain or not fast:
            return None
        times = plain / fast
        return times if speed.speeds_agree(times, _told_by_the_engine([one.fast for one in counted])) else None

    def _total(self, count_of: Callable[[RaceQuestion], int]) -> int:
        return sum(count_of(one) for one in self.questions)


def _told_by_the_engine(runs: Sequence[RaceRun]) -> float | None:
    """The harmonic mean, weighted by tokens, of the speedups that the engine has estimated during several runs; None if
    no speedup is known.
    """
    told = [(run.figures.answer_tokens, run.figures.speedup_vs_plain) for run in runs if run.figures]
    known = [(tokens, times) for tokens, times in told if times]
    return sum(tokens for tokens, _ in known) / sum(tokens / times for tokens, times in known) if known else None


def spent_ms(figures: Figures | None) -> float:
    """The milliseconds of decoding up to the figures of an answer, by the engine's clock; 0 without figures."""
    return (figures.ms_per_token_mean or 0.0) * figures.answer_tokens if figures else 0.0


def mean_ms(runs: tuple[RaceRun, ...]) -> float | None:
    """The mean milliseconds per token of several runs; None if a run was not measured, or if there are no tokens."""
    tokens = sum(run.figures.answer_tokens for run in runs if run.figures)
    measured = all(run.figures is not None and run.figures.ms_per_token_mean for run in runs)
    return sum(run.ms for run in runs) / tokens if tokens and measured else None


# Checks that passed on this machine ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verification:
    """A passed check that speculation does not change the text. ``how``: "race" or "selftest". ``tokens``: number of
    tokens that were compared. ``when``: seconds since the epoch.
    """

    how: str
    tokens: int
    when: float


class Verified:
    """The passed checks on this machine.

    Args:
        file: the file with the records; made on first use.
        clock: returns the current time in seconds since the epoch.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.time) -> None:
        self._file = file
        self._clock = clock
        self._lock = threading.Lock()
        # modification time of the file when it was last read; -1 before the first reading. If it has changed, another
        # program has written the file.
        self._read_at = -1
        self._records: dict[str, Verification] = {}

    def of(self, model: ModelInfo | None) -> Verification | None:
        """The last passed check of the loaded pair of models; None if there is none, or if no model is loaded."""
        with self._lock:
            return None if model is None else self._all().get(identity(model))

    def note(self, model: ModelInfo | None, kind: str, equal_tokens: int, tokens: int) -> None:
        """Record a finished check, in which ``equal_tokens`` of ``tokens`` tokens were equal. A failed check deletes
        the pair's record.
        """
        if model is None:  # the engine was closed before the check ended
            return
        with self._lock:
            records = dict(self._all())
            if equal_tokens < tokens:
                records.pop(identity(model), None)
            elif tokens >= FEWEST_TOKENS:
                records[identity(model)] = Verification(kind, tokens, self._clock())
            self._save(records)
            self._records, self._read_at = records, self._written_at()

    def _all(self) -> dict[str, Verification]:
        written = self._written_at()
        if written != self._read_at:
            self._read_at = written
            try:
                kept = json.loads(self._file.read_text(encoding="utf-8"))
                self._records = {name: Verification(**record) for name, record in kept.items()}
            except (OSError, ValueError, TypeError, AttributeError, RecursionError):
                self._records = {}  # without readable records, no pair of models counts as verified
        return self._records

    def _written_at(self) -> int:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return 0

    def _save(self, records: dict[str, Verification]) -> None:
        text = json.dumps({name: asdict(record) for name, record in records.items()}, indent=1)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._file, text)
        except OSError:
            logger.exception("what was verified could not be written down")
