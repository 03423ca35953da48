"""READ THIS FIRST. One reader, one book, one conversation: load, read, ask, again.

    session = Session.load(config)
    for event in session.read(document): ...        # ReadingProgress ..., BookRead
    for event in session.ask(question): ...         # AnswerStarted, TextDelta ..., AnswerDone

Everything is a generator of events; throwing ``Stop`` into it ends the work, and what was done stays usable. The book
is prefilled once, every question appends to it. ``worker.Engine`` runs a session on a thread of its own.

The prompt in tokens, and what of it is in the full cache:

    | template | book pages ... | template | question | template | answer | template | question | ...
    |<--- prefilled by read --->|<------------- one turn ----------------->|<------ the next turn

A session knows documents, turns and figures; how tokens are made is in ``decoding``, where KV lives in ``cache``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from engine import decoding, models, prefill
from engine.cache.full import FullCache
from engine.cache.retrieval import QueryTap
from engine.config import EngineConfig, Mode, SamplingParams
from engine.conversation import Conversation, Prompt, Turn
from engine.decoding import Context
from engine.document import Document
from engine.errors import ContextTooSmall, InputError
from engine.events import (
    AnswerDone,
    AnswerStarted,
    BookRead,
    Event,
    Loading,
    PagesScored,
    ReadingProgress,
    Round,
    Stage,
    StopReason,
    TextDelta,
)
from engine.hierarchy import FIRST_QUERIES, Hierarchy
from engine.metrics import Meter
from engine.pages import PageScores
from engine.planner import Fit, fit_of, free_memory, pick_device
from engine.prompt import ChatFormat
from engine.sampling import Sampler, make_generator
from engine.tokenizer import BookTokenizer, BookTokens, TextStream

# Plain steps measured on a new context, to say how much faster the answer is; the median counts.
_PLAIN_PROBES = 3


class Stop(Exception):
    """Ends a reading or an answer at the yield it is thrown into; the generator goes on to its last event."""


@dataclass
class _Answer:
    """An answer in the making."""

    meter: Meter
    stream: TextStream
    asked: float
    text: str = ""
    reason: StopReason = StopReason.LENGTH
    tokens: list[int] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    page_scores: tuple[float, ...] = ()


class Session:
    """Loaded models, their caches, and the conversation that is open. One caller at a time.

    Args:
        config: lengths and budgets.
        tokenizer: of the target.
        target, draft: loaded models; without a draft the retrieval level proposes one token at a time.
    """

    def __init__(
        self, config: EngineConfig, tokenizer: BookTokenizer, target: models.Decoder, draft: models.Decoder | None
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.target = target
        self.draft = draft
        self.full = FullCache(target.kv_shape, target.window)
        self.hierarchy = Hierarchy(config, target, draft, self.full)
        self.end_ids = frozenset((*tokenizer.end_ids, *target.end_ids))
        self.conversation: Conversation | None = None
        self._plain_ms: list[float] = []

    @classmethod
    def load(cls, config: EngineConfig) -> Session:
        """Load the models that a configuration names.

        Raises:
            ModelError: a model is missing, damaged, of an unsupported kind, or the two do not fit together.
            OptionError: the device or the window is not to be had.
        """
        device = pick_device(config.device)
        target = models.load(config.model, window=config.context, device=device, dtype=config.dtype)
        tokenizer = BookTokenizer(config.model)
        draft = None
        if config.draft is not None:
            models.check_vocabulary(config.draft, BookTokenizer(config.draft).vocabulary, tokenizer.vocabulary)
            draft = models.load(config.draft, window=None, device=device, dtype=config.dtype)
        return cls(config, tokenizer, target, draft)

    # The book ------------------------------------------------------------------------------------------------

    def measure(self, document: Document) -> Fit:
        """Count a book's tokens and say whether it fits. Touches no cache; may be called from any thread."""
        book = self.tokenizer.book(document, self.tokenizer.format_for(document.title))
        return fit_of(document, book, self.target.window, self.full.shape, free_memory(self.target.device))

    def read(self, document: Document, *, fit: bool = False) -> Iterator[Event]:
        """Prefill a book; it replaces the one that was open.

        Args:
            fit: of a book that is too long, read from the start what fits.

        Raises:
            InputError: there is no text in the document.
            ContextTooSmall: the book does not fit. Both before any work: the former book stays open.
        """
        form = self.tokenizer.format_for(document.title)
        document, book = self._fitted(document, form, fit)
        self.close_book()
        talk = Conversation(self.tokenizer, document, book, form, self.end_ids)
        self.conversation = talk
        ids = self.target.ids(list(book.ids))
        began = time.perf_counter()
        stopped = False
        try:
            for step in self._prefill(ids, None):
                yield _progress(talk, step, time.perf_counter() - began)
        except Stop:
            stopped = True
        finally:
            self._keep_whole_pages(talk)
        seconds = max(time.perf_counter() - began, 1e-9)
        yield BookRead(
            tokens=talk.read,
            tokens_total=len(book.ids),
            pages_read=talk.pages_read,
            pages_total=len(document.pages),
            seconds=seconds,
            tokens_per_s=talk.read / seconds,
            kv_bytes=self.full.kv_bytes(),
            stopped=stopped,
        )

    def close_book(self) -> None:
        """Forget the book and the conversation."""
        self.full.crop(0)
        self.hierarchy.reset()
        self.conversation = None
        self._plain_ms = []

    def _fitted(self, document: Document, form: ChatFormat, fit: bool) -> tuple[Document, BookTokens]:
        if not document.text.strip():
            raise InputError("There is no text in this document.", "Choose another file.")
        book = self.tokenizer.book(document, form)
        # What the open book takes is given back before the new one is read.
        free = free_memory(self.target.device) + self.full.kv_bytes().total
        found = fit_of(document, book, self.target.window, self.full.shape, free)
        if found.fits:
            return document, book
        if not fit or found.pages_that_fit == 0:
            raise ContextTooSmall(
                found.sentence, "Choose a range of pages (--pages), or read from the start what fits (--fit)."
            )
        cut = document.select(document.pages[0].number, document.pages[found.pages_that_fit - 1].number)
        return cut, self.tokenizer.book(cut, form)

    def _prefill(self, ids: torch.Tensor, observer: QueryTap | None) -> Iterator[prefill.Step]:
        config = self.config
        return prefill.prefill(
            self.target, self.full, ids, segment=config.prefill_segment, block=config.prefill_block, observer=observer
        )

    def _keep_whole_pages(self, talk: Conversation) -> None:
        """Leave the cache at the end of the last page that was read whole, if there is one."""
        read = self.full.length
        pages = talk.book.pages_within(read)
        if read < len(talk.book.ids) and pages:
            read = talk.book.page_starts[pages]
            self.full.crop(read)
        talk.begin(read)

    # A question ----------------------------------------------------------------------------------------------

    def ask(
        self,
        question: str,
        history: Sequence[Turn] = (),
        sampling: SamplingParams | None = None,
        mode: Mode = "hierarchical",
    ) -> Iterator[Event]:
        """Answer a question about the book.

        Turns of ``history`` that are in the cache are reused, whatever was asked since; others are prefilled.

        Raises:
            InputError: no book is open, or the question is empty.
            ContextTooSmall: the question does not fit behind the book. Both before any work.
        """
        asked = time.perf_counter()
        sampling = sampling or SamplingParams()
        talk, prompt = self._compose(question, history)
        talk.rewind(prompt)
        self.full.crop(min(self.full.length, prompt.reused))
        self.hierarchy.crop(self.full.length)
        prefilled = len(prompt.tokens) - self.full.length
        tap = QueryTap(self.target.num_layers, keep=FIRST_QUERIES)
        meter = Meter(mode, len(prompt.tokens), prefilled, self.target.window)
        answer = _Answer(meter, self.tokenizer.stream(), asked)
        tail = ""
        try:
            for step in self._prefill(self.target.ids(prompt.tokens[self.full.length : -1]), tap):
                yield Loading(f"Reading the question: {step.work:.0%}")
            talk.tokens = list(prompt.tokens)
            self._measure_plain(talk.tokens, tap, mode)
            yield AnswerStarted(len(prompt.tokens), prefilled, time.perf_counter() - asked)
            yield from self._decode(talk, answer, sampling, mode, tap)
        except Stop:
            answer.reason = StopReason.CANCELLED
        finally:
            tail = answer.stream.flush()
            answer.text += tail
            self._commit(talk, prompt, Turn(question, answer.text), answered=bool(answer.tokens))
        figures = meter.figures(self.full.kv_bytes(), len(talk.tokens))
        if tail:
            with suppress(Stop):
                yield TextDelta(tail, (), (), figures)
        yield AnswerDone(
            answer.text, tuple(answer.tokens), tuple(answer.stages), answer.reason, figures, answer.page_scores
        )

    def _compose(self, question: str, history: Sequence[Turn]) -> tuple[Conversation, Prompt]:
        talk = self.conversation
        if talk is None or talk.read == 0:
            raise InputError("No book is open.", "Open one first.")
        if not question.strip():
            raise InputError("The question is empty.", "Type a question.")
        prompt = talk.compose(question, history)
        if len(prompt.tokens) >= self.target.window:
            raise ContextTooSmall(
                f"The book, this conversation and the question take {len(prompt.tokens):,} tokens, and the window "
                f"holds {self.target.window:,}.",
                "Ask a shorter question or start a new chat.",
            )
        return talk, prompt

    def _commit(self, talk: Conversation, prompt: Prompt, turn: Turn, *, answered: bool) -> None:
        """Keep the turn if any of it was answered; else leave everything as it was before the question."""
        if answered:
            talk.commit(prompt, turn)
        else:
            talk.rewind(prompt)
            self.full.crop(min(self.full.length, prompt.reused))

    def _measure_plain(self, tokens: list[int], tap: QueryTap, mode: Mode) -> None:
        """Time plain steps on this very context. The first also shows the newest query to the selection."""
        if mode == "plain":
            return
        for probe in range(1 if self._plain_ms else _PLAIN_PROBES):
            observer = tap if probe == 0 else None
            self._plain_ms.append(decoding.plain_step_ms(self.target, self.full, tokens, observer))
        self._plain_ms = self._plain_ms[-_PLAIN_PROBES:]

    def _decode(
        self, talk: Conversation, answer: _Answer, sampling: SamplingParams, mode: Mode, tap: QueryTap
    ) -> Iterator[Event]:
        room = self.target.window - len(talk.tokens)
        context = Context(
            self.target,
            self.full,
            talk.tokens,
            Sampler(sampling),
            make_generator(sampling.seed, self.target.device),
            self.end_ids,
            min(sampling.max_tokens, room),
        )
        answer.reason = StopReason.LENGTH if sampling.max_tokens <= room else StopReason.CONTEXT
        pages = PageScores(talk.book.page_starts, talk.read, self.config.chunk_size)
        if mode == "plain":
            rounds = decoding.plain(context)
        else:
            self.hierarchy.aim(context, tap)
            yield PagesScored(pages.add(self.hierarchy.chunk_scores()))
            rounds = self.hierarchy.rounds(context, sampling, _median(self._plain_ms))
        # What comes before belongs to the time to first token.
        clock = time.perf_counter()
        for done in rounds:
            now = time.perf_counter()
            answer.meter.add(done, (now - clock) * 1000.0, now - answer.asked)
            clock = now
            yield self._delta(talk, answer, done, mode)
            if done.renewed:
                yield PagesScored(pages.add(self.hierarchy.chunk_scores()))
            answer.page_scores = pages.overall()

    def _delta(self, talk: Conversation, answer: _Answer, done: Round, mode: Mode) -> TextDelta:
        if done.ended:
            answer.reason = StopReason.END
        text = answer.stream.add(done.tokens)
        answer.text += text
        answer.tokens += done.tokens
        answer.stages += done.stages
        answer.meter.plain_ms = answer.meter.median_ms() if mode == "plain" else _median(self._plain_ms)
        figures = answer.meter.figures(self.full.kv_bytes(), len(talk.tokens))
        return TextDelta(text, done.tokens, done.stages, figures)


def _progress(talk: Conversation, step: prefill.Step, seconds: float) -> ReadingProgress:
    total = len(talk.book.ids)
    done = max(step.usable, int(step.work * total))
    return ReadingProgress(
        tokens_done=done,
        tokens_total=total,
        pages_done=talk.book.pages_within(step.usable),
        pages_total=len(talk.document.pages),
        tokens_per_s=done / max(seconds, 1e-9),
        seconds_left=seconds * (1.0 - step.work) / max(step.work, 1e-9),
    )


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
