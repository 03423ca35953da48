"""An engine that follows a script: the seams of ``engine.Engine`` with event records made by the test.

It stands in for the engine where the test is about the page: states that a real model reaches only by luck (a
failure in the middle, a book read to 40 %), and timing that a test can rely on. It never ships.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import Any

from engine import Question
from engine.config import SamplingParams
from engine.document import Document, Reading
from engine.errors import Busy, TrifoldError
from engine.events import (
    Acceptance,
    AnswerDone,
    AnswerStarted,
    BookRead,
    Event,
    Figures,
    KvBytes,
    ModelInfo,
    PagesScored,
    PlainLane,
    ReadingProgress,
    Status,
    StopReason,
    TextDelta,
    Thought,
    ThoughtDelta,
    TimeSplit,
    TokenSource,
)
from engine.plan.memory_budget import BookFit
from engine.worker import FINAL, Request

GIB = 1 << 30
KV_BYTES = 12_288  # of a token


def model_info(**changes: Any) -> ModelInfo:
    """A model that the page can tell of, as the engine's own record."""
    known: dict[str, Any] = {
        "name": "Storyteller 27M",
        "path": "demo",
        "parameters": 27_000_000,
        "architecture": "llama",
        "context_limit": 32_768,
        "dtype": "bfloat16",
        "device": "cpu",
        "vocabulary": 8_192,
        "kv_bytes_per_token": KV_BYTES,
        "draft_name": "Storyteller 3M",
        "draft_parameters": 3_000_000,
        "sampling": SamplingParams(),
    }
    return ModelInfo(**{**known, **changes})


def engine_status(**changes: Any) -> Status:
    """What the engine says of itself when it has nothing to do."""
    return Status(**{"state": "idle", "detail": "", "model": model_info(), **changes})


class ScriptedRequest(Request[Any]):
    """Events from a generator that runs in a thread of its own, as the engine's requests do."""

    def __init__(
        self,
        events: Callable[[threading.Event], Iterator[Event]],
        done: Callable[[], None],
        cancel: threading.Event | None = None,
    ) -> None:
        super().__init__("answering", cancel)
        self._done = done
        threading.Thread(target=self._run, args=(events,), daemon=True).start()

    def _run(self, events: Callable[[threading.Event], Iterator[Event]]) -> None:
        try:
            for event in events(self.stop):
                if isinstance(event, FINAL):
                    self._done()
                self.put(event)
        except TrifoldError as error:
            self._done()
            self.fail(error)


class ScriptedEngine:
    """Args:
    answer: what every question is answered with, word by word.
    word_seconds: between two words.
    reading_seconds: for a whole book; None stops at 40 % until cancelled, and goes on from there when resumed or when
        ``read_on`` is set.
    limit: tokens that fit in the window.
    failure: instead of the rest of an answer, after ``fail_after`` words.
    """

    def __init__(
        self,
        answer: str = "It was Maren Holt who kept the north light.",
        word_seconds: float = 0.01,
        reading_seconds: float | None = 0.2,
        limit: int = 32_768,
        failure: TrifoldError | None = None,
        fail_after: int = 3,
    ) -> None:
        self.answer = answer
        self.word_seconds = word_seconds
        self.reading_seconds = reading_seconds
        self.limit = limit
        self.failure = failure
        self.fail_after = fail_after
        self.ends = StopReason.END
        self.plain_answer = ""  # of the plain run of a race, if it differs
        self.thought = ""  # what is thought before every answer, word by word
        self.now = engine_status()
        self.config = None
        self.asked: list[Question] = []
        self.requests: list[ScriptedRequest] = []
        self.read_on = threading.Event()
        self.readings: list[float] = []  # the part of the book at which each reading began
        self.forgotten = 0  # how many times the memory of a book was given back
        self._busy = threading.Lock()
        self._pages = 1
        self._read_part = 0.0

    def status(self) -> Status:
        return self.now

    def wait_ready(self, timeout: float | None = None) -> Status:
        return self.now

    def measure(self, document: Document) -> BookFit:
        tokens = max(1, document.characters // 4)
        pages = len(document.pages)
        fitting = min(pages, pages * self.limit // tokens)
        fits = tokens <= self.limit
        word = "fits in" if fits else "is too long for"
        sentence = f"This book has {tokens:,} tokens and {word} the window of {self.limit:,}."
        each = tuple(max(1, len(page.text) // 4) for page in document.pages)
        return BookFit(
            tokens, self.limit, fits, fitting, tokens * KV_BYTES, sentence, page_tokens=each, room=self.limit
        )

    def read(self, reading: Reading | Document, *, cancel: threading.Event | None = None) -> Request[Any]:
        wanted = Reading.of(reading)
        self._pages = len(wanted.document.pages)
        start = self._read_part if wanted.resume else 0.0
        request = self._begin(lambda cancelled: self._reading(wanted.document, start, cancelled), wanted.wait, cancel)
        self.readings.append(start)
        return request

    def ask(self, question: Question | str, *, cancel: threading.Event | None = None) -> Any:  # a request of its own
        asked = Question.of(question)

        def answering(cancelled: threading.Event) -> Iterator[Event]:
            thought = None
            if self.thought and not asked.begun:
                thought = yield from self._thinking(asked, cancelled)
            if asked.plain_lane:
                yield from self._racing(asked, cancelled)
            elif thought is None or not thought.is_open:
                yield from self._answering(asked.mode, asked.begun, cancelled, thought)
            else:
                yield AnswerDone("", (), (), StopReason.CANCELLED, figures(0), thought=thought)

        if asked.excerpt is not None:  # answered beside a reading
            request = ScriptedRequest(answering, lambda: None, cancel)
            self.requests.append(request)
        else:
            request = self._begin(answering, asked.wait, cancel)
        self.asked.append(asked)
        return request

    def close(self) -> None:
        for request in self.requests:
            request.cancel()
        self.now = replace(self.now, state="closed")

    def forget_book(self) -> None:
        self.forgotten += 1

    def finish_saving(self) -> str:
        return ""

    def _begin(
        self, events: Callable[[threading.Event], Iterator[Event]], wait: float, cancel: threading.Event | None
    ) -> ScriptedRequest:
        until = time.monotonic() + wait
        while not self._busy.acquire(blocking=False):
            if time.monotonic() >= until or (cancel is not None and cancel.is_set()):
                raise Busy("Another question is being answered.", "Wait for it, or stop it.")
            time.sleep(0.01)
        request = ScriptedRequest(events, self._busy.release, cancel)
        self.requests.append(request)
        return request

    def _reading(self, document: Document, start: float, cancelled: threading.Event) -> Iterator[Event]:
        fit = self.measure(document)
        pages, steps = len(document.pages), 20
        part = start
        for step in range(round(start * steps) + 1, steps + 1):
            part = self._read_part = step / steps
            rate = fit.tokens / (self.reading_seconds or 20.0)
            left = (1 - part) * (self.reading_seconds or 20.0)
            yield ReadingProgress(int(fit.tokens * part), fit.tokens, int(pages * part), pages, rate, left)
            if self.reading_seconds is None and part >= 0.4 and not start:
                while not cancelled.wait(0.01) and not self.read_on.is_set():
                    pass
            else:
                cancelled.wait((self.reading_seconds or 0.2) / steps)
            if cancelled.is_set():
                break
        kv = KvBytes(0, int(fit.tokens * part) * 12_288, 0)
        tokens, read = int(fit.tokens * part), int(pages * part)
        yield BookRead(tokens, fit.tokens, read, pages, 4.2, 6800.0, kv, cancelled.is_set())

    def _thinking(self, asked: Question, cancelled: threading.Event) -> Generator[Event, None, Thought]:
        words, said = self.thought.removeprefix(asked.thought).split(" "), ""
        for number, word in enumerate(words, start=1):
            if cancelled.wait(self.word_seconds):
                return Thought(said, figures(number), is_open=True)
            said += f" {word}" if number > 1 else word
            yield ThoughtDelta(f" {word}" if number > 1 else word, figures(number))
        return Thought(said, figures(len(words)))

    def _racing(self, asked: Question, cancelled: threading.Event) -> Iterator[Event]:
        """A fast answer and a plain one, word by word in turns."""
        both = self._answering("plain", "", cancelled, answer=self.plain_answer)
        plain = (PlainLane(event) for event in both if isinstance(event, TextDelta | AnswerDone))
        for event in self._answering(asked.mode, "", cancelled):
            if isinstance(event, AnswerDone):
                yield from plain
            yield event
            if isinstance(event, TextDelta) and (other := next(plain, None)):
                yield other

    def _answering(
        self,
        mode: str,
        begun: str,
        cancelled: threading.Event,
        thought: Thought | None = None,
        answer: str = "",
    ) -> Iterator[Event]:
        yield AnswerStarted(28_450, 38, 0.3)
        words = (answer or self.answer).removeprefix(f"{begun} ").split(" ")
        said, told = "", 0
        stages: list[TokenSource] = []
        readings: list[PagesScored] = []
        for number, word in enumerate(words, start=1):
            if cancelled.wait(self.word_seconds):
                break
            if self.failure is not None and number > self.fail_after:
                raise self.failure
            text = f" {word}" if begun or number > 1 else word
            said += text
            stage = TokenSource.TARGET if mode == "plain" else _STAGES[number % len(_STAGES)]
            stages.append(stage)
            yield TextDelta(text, (number,), (stage,), figures(number, mode), (len(text),))
            if number % 4 == 1 and mode != "plain":
                readings.append(PagesScored(scores(self._pages, number), told, number - 1))
                told = number
                yield readings[-1]
        stopped = StopReason.CANCELLED if cancelled.is_set() else self.ends
        ids = tuple(range(1, len(stages) + 1))
        final = figures(max(1, len(ids)), mode)
        yield AnswerDone(said, ids, tuple(stages), stopped, final, scores(self._pages, 3), tuple(readings), thought)


# A plausible mixture: mostly guesses that were kept, a copied phrase, now and then the large model's own.
_STAGES = (*[TokenSource.DRAFT] * 4, TokenSource.MIDDLE, *[TokenSource.LOOKUP] * 3, TokenSource.TARGET)


def figures(tokens: int = 40, mode: str = "hierarchical") -> Figures:
    """Figures of a plausible answer with ``tokens`` tokens so far."""
    mean = 41.0 if mode == "plain" else 14.2 + 3.0 * ((tokens * 7) % 5 - 2) / max(1, tokens)
    return Figures(
        mode=mode,
        answer_tokens=tokens,
        rounds=max(1, tokens // 8),
        ttft_s=0.42,
        ms_per_token_mean=mean,
        ms_per_token_p50=13.1,
        ms_per_token_p95=22.7,
        tokens_per_s=1000 / mean,
        middle=Acceptance(62, 100),
        verify=Acceptance(96, 100),
        mean_acceptance_length=7.8,
        plain_ms=41.0,
        speedup_vs_plain=41.0 / mean,
        plain_steps=5,
        plain_age_s=2.5,
        time_split=TimeSplit(120.0, 160.0, 240.0, 30.0, 18.0),
        kv_bytes=KvBytes(9 * GIB, 7 * GIB, 0),
        prompt_tokens=28_450,
        prefilled_tokens=38,
        context_tokens=28_490,
        context_limit=32_768,
    )


def scores(pages: int, seed: int) -> tuple[float, ...]:
    """Three bright pages that wander with ``seed``; they sum to 1."""
    raw = [0.02] * pages
    for step, weight in ((7, 1.0), (13, 0.6), (29, 0.35)):
        raw[(seed * step) % pages] += weight
    return tuple(score / sum(raw) for score in raw)


def book(pages: int = 60, words: int = 240, title: str = "The Lamplighters of Orre") -> Document:
    """A book of ``pages`` pages."""
    from engine.document import Page

    text = " ".join(f"lamp{number % 97}" for number in range(words)) + "."
    made = tuple(Page(number, str(number), f"{number}. {text}") for number in range(1, pages + 1))
    return Document(title, "A. Writer", made, "txt", "0" * 64)


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    """Wait until a condition holds; fail if it never does."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError("it never happened")
        time.sleep(0.005)
