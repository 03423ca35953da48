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
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial

import torch

from engine import models, planner, prefill, probing, reading
from engine.answer import Answer
from engine.answering import Answering
from engine.cache.full import FullCache
from engine.cache.retrieval import QueryTap
from engine.config import EngineConfig, Mode, SamplingParams
from engine.conversation import Conversation, Prompt, Turn
from engine.document import Document
from engine.errors import ContextTooSmall, InputError
from engine.events import AnswerStarted, BookRead, Event, Loading, StopReason, TextDelta
from engine.fitting import CHUNK, Fit
from engine.hierarchy import Hierarchy
from engine.keeping import Keeping, Restored
from engine.metrics import Meter
from engine.pages import PageScores
from engine.speeds import Speeds
from engine.tokenizer import BookTokenizer

# How long closing waits for a book to be kept on disk.
_SAVING_PATIENCE_S = 25.0


class Stop(Exception):
    """Ends a reading or an answer at the yield it is thrown into; the generator goes on to its last event."""


class Session:
    """Loaded models, their caches, and the conversation that is open. One caller at a time.

    Args:
        config: lengths and budgets.
        tokenizer: of the target.
        target, draft: loaded models; without a draft the retrieval level proposes one token at a time.
        speeds: of this machine, for what the configuration leaves open.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: BookTokenizer,
        target: models.Decoder,
        draft: models.Decoder | None,
        speeds: Speeds | None = None,
    ) -> None:
        shape = target.kv_shape.kept_as(config.kv)
        self.config = config = planner.completed(config, speeds, target.window, shape)
        self.speeds = speeds
        self.tokenizer = tokenizer
        self.target = target
        self.draft = draft
        shape = shape.indexed(config.chunk_size or CHUNK)
        self.full = FullCache(shape, target.window, spill_folder=planner.spill_folder(config))
        self.keeping = Keeping(config, target, tokenizer, self.full)
        self.hierarchy = Hierarchy(config, target, draft, self.full)
        self.end_ids = frozenset((*tokenizer.end_ids, *target.end_ids))
        self.conversation: Conversation | None = None
        self.answering = Answering(target, self.full, self.hierarchy, self.end_ids)

    @classmethod
    def load(cls, config: EngineConfig) -> Session:
        """Load the models that a configuration names.

        Raises:
            ModelError: a model is missing, damaged, of an unsupported kind, or the two do not fit together.
            OptionError: the device or the window is not to be had.
        """
        device = planner.pick_device(config.device)
        load = partial(models.load, device=device, dtype=config.dtype)
        # What small files can tell is told before any weights are read.
        settings, tokenizer = models.settings_of(config.model, config.context), BookTokenizer(config.model)
        models.check_embedding(config.model, settings, tokenizer.largest_id)
        if config.draft is not None:
            models.settings_of(config.draft, None)
            models.check_vocabulary(config.draft, BookTokenizer(config.draft).vocabulary, tokenizer.vocabulary)
        target = load(config.model, window=config.context, weights=config.weights)
        draft = None if config.draft is None else load(config.draft, window=None)
        return cls(config, tokenizer, target, draft, probing.of_engine(target, config))

    # The book ------------------------------------------------------------------------------------------------

    def measure(self, document: Document) -> Fit:
        """Count a book's tokens and say whether it fits. Touches no cache; may be called from any thread."""
        book = self.tokenizer.book(document, self.tokenizer.format_for(document.title))
        return planner.fit_of(document, book, self.target.window, self.full.shape, self._free(), self.speeds)

    def read(self, document: Document, *, fit: bool = False, resume: bool = False) -> Iterator[Event]:
        """Prefill a book; it replaces the one that was open.

        Args:
            fit: of a book that is too long, read from the start what fits.
            resume: go on where the reading of this very document was stopped, if it is the open one. The turns
                behind what was read are forgotten: the next question brings them again.

        Raises:
            InputError: there is no text in the document.
            ContextTooSmall: the book does not fit. Both before any work: the former book stays open.
        """
        talk = self.conversation if resume else None
        if talk is None or talk.document != document:
            talk = self._open(document, fit)
        start = talk.read
        self.keeping.let_go(start)
        self.full.crop(start)
        self.hierarchy.crop(start)
        began = time.perf_counter()
        stopped, kept = False, Restored()
        try:
            kept = yield from self._restore(talk, began)
            ids = self.target.ids(list(talk.book.ids[self.full.length :]))
            for step in self._prefill(ids, None):
                yield reading.progress(talk, step, start, time.perf_counter() - began)
        except Stop:
            stopped = True
        finally:
            self._keep_whole_pages(talk)
        self.keeping.save(talk.document, talk.book.ids, talk.read)
        seconds = max(time.perf_counter() - began, 1e-9)
        yield BookRead(
            tokens=talk.read,
            tokens_total=len(talk.book.ids),
            pages_read=talk.pages_read,
            pages_total=len(talk.document.pages),
            seconds=seconds,
            tokens_per_s=(talk.read - start) / seconds,
            kv_bytes=self.full.kv_bytes(),
            stopped=stopped,
            source="snapshot" if kept.tokens else "read",
            tokens_restored=kept.tokens,
            refused=kept.refused,
        )

    def _restore(self, talk: Conversation, began: float) -> Generator[Event, None, Restored]:
        """Take the book from disk as far as it was read before, unless some of it is here already."""
        if self.full.length:
            return Restored()
        with closing(self.keeping.restore(talk.document, talk.book.ids)) as steps:
            for usable in steps:
                step = prefill.Step(usable, usable / len(talk.book.ids))
                yield reading.progress(talk, step, 0, time.perf_counter() - began)
        return self.keeping.restored

    def close(self) -> None:
        """Wait a while for the book to be kept, then forget it."""
        self.keeping.finish(_SAVING_PATIENCE_S)
        self.close_book()

    def close_book(self) -> None:
        """Forget the book and the conversation."""
        self.conversation = None  # first: if memory ends below, nothing may be asked of a cache that is half made
        self.keeping.release()
        self.full.clear()
        self.hierarchy.reset()
        self.answering.reset()

    def _open(self, document: Document, fit: bool) -> Conversation:
        """A conversation about a book of which nothing has been read, in place of the one that was open."""
        form = self.tokenizer.format_for(document.title)
        free = self._free()
        window, shape = self.target.window, self.full.shape
        document, book = reading.fitted(self.tokenizer, document, form, window, shape, free, fit=fit)
        self.close_book()
        plan = planner.plan_for_book(shape, len(book.ids), window, free)
        self.full.place(plan.placement, plan.tokens)
        self.conversation = Conversation(self.tokenizer, document, book, form, self.end_ids)
        return self.conversation

    def _free(self) -> planner.Resources:
        """What KV may take; what the open book takes is given back before a new one is read."""
        return planner.free_resources(self.target.device, self.config, self.full.kv_bytes())

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
        begun: str = "",
        chat: str = "",
    ) -> Iterator[Event]:
        """Answer a question about the book.

        Turns of ``history`` that are in the cache are reused, whatever was asked since, or come back from disk; others
        are prefilled. The same question again, with another seed say, prefills nothing: several samples share the book
        and the question.

        Args:
            begun: the beginning of an answer that was cut; what is written goes on from there.
            chat: name under which the turns are kept on disk, beside the book's reading; without one they are not.

        Raises:
            InputError: no book is open, or the question is empty.
            ContextTooSmall: the question does not fit behind the book. Both before any work.
        """
        asked = time.perf_counter()
        sampling = sampling or SamplingParams()
        talk, prompt = self._compose(question, history, begun)
        kept = self._recall(chat, talk, [*history, Turn(question, begun)] if begun else history)
        if kept.tokens:
            talk, prompt = self._compose(question, history, begun)
        self.keeping.let_go(prompt.reused)
        talk.rewind(prompt)
        tap = self.answering.begin(prompt.tokens, prompt.reused)
        prefilled = len(prompt.tokens) - self.full.length
        meter = Meter(mode, len(prompt.tokens), prefilled, self.target.window)
        pages = PageScores(talk.book.page_starts, talk.read, self.hierarchy.retrieval.chunk_size)
        answer = Answer(meter, self.tokenizer.stream(prompt.tokens if begun else ()), pages, asked)
        tail = ""
        try:
            if kept.refused:
                yield Loading(f"{kept.refused} The chat is read again.")
            for step in self._prefill(self.target.ids(prompt.tokens[self.full.length : -1]), tap):
                yield Loading(f"Reading the question: {step.work:.0%}")
            talk.tokens = list(prompt.tokens)
            self.answering.ready(talk.tokens, mode)
            yield AnswerStarted(len(prompt.tokens), prefilled, time.perf_counter() - asked, kept.tokens, kept.refused)
            yield from self.answering.decode(talk.tokens, answer, sampling, mode)
        except Stop:
            answer.reason = StopReason.CANCELLED
        finally:
            tail = answer.flush()
            self._commit(talk, prompt, Turn(question, begun + answer.text), answered=bool(answer.tokens))
            self.keeping.save_turns(chat, talk)
        done = answer.done(self.full.kv_bytes(), len(talk.tokens))
        if tail:
            with suppress(Stop):
                yield TextDelta(tail, (), (), done.figures)
        yield done

    def _recall(self, chat: str, talk: Conversation, turns: Sequence[Turn]) -> Restored:
        """Bring back from disk what is kept of a chat's turns and is not in the cache."""
        kept = self.keeping.restore_turns(chat, talk, turns)
        if kept.tokens:
            self.hierarchy.crop(self.full.length - kept.tokens)
        return kept

    def _compose(self, question: str, history: Sequence[Turn], begun: str) -> tuple[Conversation, Prompt]:
        talk = self.conversation
        if talk is None or talk.read == 0:
            raise InputError("No book is open.", "Open one first.")
        if not question.strip():
            raise InputError("The question is empty.", "Type a question.")
        prompt = talk.compose(question, history, begun)
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
