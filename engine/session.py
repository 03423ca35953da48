"""READ THIS FIRST. A session holds loaded models, one book and one conversation: load, read, ask, ask again.

    session = Session.load(config)
    for event in session.read(document): ...        # ReadingProgress ..., BookRead
    for event in session.ask(question): ...         # AnswerStarted, TextDelta ..., AnswerDone

Reading and answering are generators of events. A ``threading.Event`` stops them: the session checks it after each
yield. Once it is set, the work ends, and the last event says how far the work came. Finished work stays usable. The
book is prefilled once, and every question is appended to the book. ``worker.Engine`` runs a session on its own thread.
The prompt in tokens, and its parts in the full cache:

    | template | book pages ... | template | question | template | answer | template | question | ...
    |<--- prefilled by read --->|<------------- one turn ----------------->|<------ the next turn

A session knows documents and turns. ``generation`` makes the events of an answer from decoding rounds
(``decode.rounds``). ``kv`` stores keys and values, and ``plan`` places them in memory.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from engine import devices as kinds
from engine.aside import Aside
from engine.chat_template import ChatFormat
from engine.config import EngineConfig, Mode
from engine.decode import prefill
from engine.decode.levels import Hierarchy
from engine.decode.quotations import Quotable
from engine.document import Document, Reading
from engine.errors import ContextTooSmall, InputError, ModelError, OptionError
from engine.events import AnswerStarted, BookRead, Event, Loading, ReadingProgress, StopReason
from engine.generation import Generation, GenerationLoop, Meter, PageScores
from engine.kv.full import FullCache, KvShape
from engine.kv.persistence import KvPersistence, Restored
from engine.kv.retrieval import QueryRecorder
from engine.kv.spilling import retry_with_spill
from engine.lanes import Lane, take_turns
from engine.model import attention, decoder, distilled, loading, own_head
from engine.model.architectures import is_distilled, is_own_head
from engine.model.kernels import kept
from engine.phases import Thoughts
from engine.plan import planner, probe
from engine.plan.cost_model import CostModel
from engine.plan.memory_budget import CHUNK, BookFit
from engine.plan.planner import Resources, fit_book
from engine.prompt import BookTokenizer, BookTokens, Conversation, Prompt, Question, Turn
from engine.thinking import check_wanted

# Maximum seconds to wait until a book is saved. The session waits when it is closed, and before it opens another book
# with the same documents.
_SAVING_PATIENCE_S = 20.0
_SAVING_LOOK_S = 0.05  # seconds between two looks whether a book that is to be forgotten is saved

_log = logging.getLogger(__name__)

_Result = TypeVar("_Result")


def until_set(
    cancel: threading.Event | None, events: Generator[Event, None, _Result]
) -> Generator[Event, None, _Result | None]:
    """Yield the events of a generator and return its result. If ``cancel`` is set after an event was yielded, close the
    generator and return None.
    """
    with closing(events):
        while True:
            try:
                event = next(events)
            except StopIteration as end:
                result: _Result = end.value
                return result
            yield event
            if cancel is not None and cancel.is_set():
                return None


class Session:
    """Loaded models, their caches, and the open conversation. Not thread-safe, except for ``measure``.

    Args:
        config: settings of the engine.
        tokenizer: the target's tokenizer.
        target, draft: loaded models; without a draft the target on the retrieval cache proposes one token at a time.
        costs: measured costs of the target on this machine, for settings that the configuration leaves open.
    """

    def __init__(
        self,
        config: EngineConfig,
        tokenizer: BookTokenizer,
        target: decoder.Decoder,
        draft: decoder.Decoder | None,
        costs: CostModel | None = None,
    ) -> None:
        for model in (target, draft):
            if model is not None:
                attention.choose_kernels(model.kv_shape, model.config.num_attention_heads)
        shape = target.kv_shape.stored_as(config.kv)
        self.config = config = planner.complete_config(config, costs, target.window, shape)
        self.costs = costs
        self.tokenizer = tokenizer
        self.target = target
        self.draft = draft
        shape = shape.indexed(config.chunk_size or CHUNK)
        self.full = FullCache(shape, target.window, spill_folder=planner.spill_folder(config))
        self.persistence = KvPersistence(config, target, tokenizer, self.full)
        self.hierarchy = Hierarchy(config, target, draft, self.full, costs)
        self.end_ids = frozenset((*tokenizer.end_ids, *target.end_ids))
        self.conversation: Conversation | None = None
        self._quoted: tuple[tuple[BookTokens, int], Quotable] | None = None
        self.generation = GenerationLoop(target, self.full, self.hierarchy, self.end_ids)
        self._aside = Aside(config, tokenizer, target, self.end_ids)
        self._aside_s = 0.0  # seconds that answers from excerpts have taken; they do not count as reading

    @classmethod
    def load(cls, config: EngineConfig) -> Session:
        """Load the models that a configuration names.

        Raises:
            ModelError: a model is missing, damaged or of an unsupported kind, or target and draft do not fit together.
            OptionError: the device or the window is not available.
        """
        kept.keep_in(config.kernels_folder)
        devices = planner.pick_devices(config.device)
        for device in devices:
            kinds.forbid_paging(device)
        load = partial(loading.load, device=devices[0], dtype=config.dtype)
        # Small files are checked first, so that their errors are raised before any weights are read.
        settings = loading.settings_of(config.model, config.context)
        distilled.check_alone(config.model, settings)
        loading.check_rounding(config.model, settings, config.weights, devices[0])
        tokenizer = BookTokenizer(config.model, config.tried_folder)
        loading.check_embedding(config.model, settings, tokenizer.largest_id)
        tokenizer.format_for("")
        draft_settings = None
        if config.draft is not None:
            draft_settings = loading.settings_of(config.draft, None)
            if not is_distilled(draft_settings) and not is_own_head(draft_settings):
                loading.check_vocabulary(
                    config.draft, BookTokenizer(config.draft, config.tried_folder).vocabulary, tokenizer.vocabulary
                )
        elif config.num_draft_tokens != 0:
            draft_settings = own_head.settings_in(config.model, settings)
        config = planner.with_fitting_weights(config, settings, draft_settings, devices)
        layout = planner.lay_out(config, settings, draft_settings, devices)
        places: dict[str, Any] = {"split": layout.split, "in_host": layout.in_host}
        target = load(config.model, window=config.context, weights=config.weights, **places)
        draft = _load_draft(config, draft_settings, target)
        costs = probe.of_engine(target, config)
        kinds.trim_heap()
        return cls(config, tokenizer, target, draft, costs)

    # The book ------------------------------------------------------------------------------------------------

    def measure(self, document: Document) -> BookFit:
        """Count a book's tokens and compute whether the book fits. Touches no cache; may be called from any thread."""
        book = self.tokenizer.book(document, self.tokenizer.format_for(document.opening))
        waiting = planner.host_weights(self.target.config, self.target.bytes_in_host)
        waiting = replace(waiting, for_middle=not self.hierarchy.middle.bits)
        fit = planner.fit_book(document, book, self.target.window, self.full.shape, self._free(), self.costs, waiting)
        return replace(fit, kept=self.persistence.kept(document, book.ids))

    def read(self, reading: Reading | Document, *, cancel: threading.Event | None = None) -> Iterator[Event]:
        """Prefill a book, which replaces the open one.

        If a stopped reading is continued, turns about the part that was read are dropped from the cache. The next
        question restores them.

        Args:
            reading: a ``Reading``, or only its document. Its ``wait`` is ignored, because there is only one caller.
            cancel: once it is set the reading ends. Pages that were read completely stay in the cache.

        Raises:
            InputError: there is no text in the document.
            ContextTooSmall: the book does not fit.

        Both errors are raised before any work, and the former book stays open.
        """
        reading = Reading.of(reading)
        conversation = self.conversation if reading.resume else None
        if conversation is None or conversation.document != reading.document:
            conversation = self._open(reading)
        start = conversation.read
        self.persistence.cancel_beyond(start)
        self.full.crop(start)
        is_empty = not self.full.length
        began = self._reading_clock()
        try:
            finished = yield from until_set(cancel, self._read(conversation, start, began))
        finally:
            self._keep_whole_pages(conversation)
            self.target.end_prefill()
        kept = self.persistence.restored if is_empty else Restored()
        self.persistence.save(conversation.document, conversation.book, conversation.read)
        seconds = max(self._reading_clock() - began, 1e-9)
        computed = max(0, conversation.read - max(start, kept.tokens))
        yield BookRead(
            tokens=conversation.read,
            tokens_total=len(conversation.book.ids),
            pages_read=conversation.pages_read,
            pages_total=len(conversation.document.pages),
            seconds=seconds,
            tokens_per_s=(computed or conversation.read - start) / seconds,
            kv_bytes=self.full.kv_bytes(),
            stopped=not finished,
            source="snapshot" if kept.tokens else "read",
            tokens_restored=kept.tokens,
            refused=kept.refused,
        )

    def _read(self, conversation: Conversation, start: int, began: float) -> Generator[Event, None, bool]:
        """Bring the rest of a book into the cache, from disk or by prefill. Return True at the end."""
        if not self.full.length:
            yield from self._restore(conversation, began)
            # Restored tokens do not count towards the speed of reading.
            start, began = self.full.length, self._reading_clock()
        ids = self.target.ids(list(conversation.book.ids[self.full.length :]))
        for step in self._prefill(ids, None):
            yield progress(conversation, step, start, self._reading_clock() - began)
        retry_with_spill(self.full, self.hierarchy.retrieval.index_book)
        return True

    def _restore(self, conversation: Conversation, began: float) -> Iterator[Event]:
        """Restore from disk the part of the book that was read before, into an empty cache."""
        with closing(self.persistence.restore(conversation.document, conversation.book.ids)) as steps:
            for usable in steps:
                step = prefill.PrefillProgress(usable, usable / len(conversation.book.ids))
                yield progress(conversation, step, 0, self._reading_clock() - began)

    def _reading_clock(self) -> float:
        """Seconds on a clock that stands still while a question is answered aside."""
        return time.perf_counter() - self._aside_s

    def work_ahead(self) -> Iterator[None]:
        """Do what would delay the next answer: let the draft model read (``Hierarchy.start_draft_ahead``), and record
        passes as CUDA graphs (``Hierarchy.record_ahead``). Yields before each pass, so that a caller can stop.
        """
        conversation = self.conversation
        if conversation is not None and self.full.length:
            book = conversation.book.ids[: conversation.read]
            yield from self.hierarchy.start_draft_ahead(book, conversation.tokens or book)
            yield from self.hierarchy.record_ahead(conversation.tokens or conversation.book.ids)

    def close(self) -> None:
        """Wait for a limited time until the book is saved, then forget it. Parts saved by then stay on disk."""
        self.persistence.finish(_SAVING_PATIENCE_S)
        self.close_book()
        self.hierarchy.close()

    def forget_book(self) -> Iterator[None]:
        """Forget the book and give its memory back, once it is saved. Yields while it waits for that."""
        until = time.monotonic() + _SAVING_PATIENCE_S
        while self.persistence.is_saving() and time.monotonic() < until:
            yield
            time.sleep(_SAVING_LOOK_S)
        self.close_book()
        kinds.trim_heap()

    def close_book(self) -> None:
        """Forget the book and the conversation."""
        self._quoted = None
        self.conversation = None  # set first, so that no question uses a half-cleared cache if memory runs out below
        self.persistence.cancel()
        self.full.clear()
        self.hierarchy.reset()
        self.generation.reset()

    def _open(self, reading: Reading) -> Conversation:
        """Replace the open conversation by a new conversation about a document, without reading the document yet."""
        form = self.tokenizer.format_for(reading.document.opening)
        free = self._free()
        window, shape = self.target.window, self.full.shape
        document, book = fitted(self.tokenizer, reading, form, window, shape, free)
        if self.conversation is not None and self.conversation.shares_documents(book):
            # Wait until the open book is saved, because the documents that the new book shares with it are restored
            # from disk next.
            self.persistence.finish(_SAVING_PATIENCE_S)
        self.close_book()
        plan = planner.plan_for_book(shape, len(book.ids), window, free)
        self.full.place(plan.placement, plan.tokens)
        passages = self.target.num_passages, self.target.wants_pointing and self.tokenizer.has_template
        self.conversation = Conversation(self.tokenizer, document, book, form, self.end_ids, *passages)
        return self.conversation

    def _free(self) -> planner.Resources:
        """Bytes that KV may take. The open book's memory counts as free, because it is freed before a book is read."""
        full, split = self.full, self.target.split
        back = full.allocated() + self.hierarchy.retrieval.index_bytes()
        return planner.free_resources(self.target.device, self.config, back, split.devices[1:] if split else ())

    def _prefill(self, ids: torch.Tensor, observer: QueryRecorder | None) -> Iterator[prefill.PrefillProgress]:
        config = self.config
        return prefill.prefill(
            self.target, self.full, ids, segment=config.prefill_segment, block=config.prefill_block, observer=observer
        )

    def _keep_whole_pages(self, conversation: Conversation) -> None:
        """Crop the cache to the end of the last page that was read completely, if it can be cropped there."""
        read = self.full.length
        pages = conversation.book.pages_within(read)
        if read < len(conversation.book.ids) and pages:
            end = conversation.book.page_starts[pages]
            read = end if self.full.nearest(end) == end else read
            self.full.crop(read)
        conversation.begin(read)
        self.full.bounded.mark()

    # A question ----------------------------------------------------------------------------------------------

    def ask(self, question: Question | str, *, cancel: threading.Event | None = None) -> Iterator[Event]:
        """Answer a question about the book.

        Turns of the question's ``history`` that are still in the cache are reused. All other turns are restored from
        disk or prefilled. A repeated question prefills nothing, for example if it is asked with another seed. So
        several samples share the book and the question.

        Args:
            question: a ``Question``, or only its text. Its ``wait`` is ignored, because there is only one caller.
            cancel: once it is set the answer ends, with ``StopReason.CANCELLED``.

        Raises:
            InputError: no book is open, or the question is empty.
            OptionError: exact quotations are configured, and the bytes of the model's tokens are unknown.
            ContextTooSmall: the question does not fit after the book.

        All these errors are raised before any work.
        """
        asked = time.perf_counter()
        question = Question.of(question)
        mode = question.mode
        conversation, prompt = self._compose(question)
        sampling = self.target.sampling_of(question.sampling, conversation.form.thinking)
        check_wanted(conversation.form.thinking, sampling.think)
        quotable = self._quotable(conversation) if sampling.exact_quotes else None
        kept = self._recall(question.chat, conversation, _turns_in_cache(question))
        if kept.changed:
            conversation, prompt = self._compose(question)
        self.persistence.cancel_beyond(self.full.nearest(prompt.reused))
        conversation.rewind(prompt)
        queries = self.generation.begin(prompt.tokens, prompt.reused)
        prefilled = len(prompt.tokens) - self.full.length
        meter = Meter(mode, len(prompt.tokens), prefilled, self.target.window)
        answer = self._generation(conversation, prompt, question, meter, asked)

        def decode(tokens: list[int], made: Generation, mode: Mode) -> Generator[Event, None, None]:
            return self.generation.decode(
                tokens,
                made,
                sampling,
                mode,
                lambda ids: self._prefill(self.target.ids(ids), None),
                conversation.read,
                prompt.begun_tokens,
                quotable,
            )

        def steps() -> Generator[Event, None, bool]:
            if kept.refused:
                yield Loading(f"{kept.refused} The chat is read again.")
            for step in self._prefill(self.target.ids(prompt.tokens[self.full.length : -1]), queries):
                yield Loading(f"Reading the question: {step.work:.0%}")
            conversation.tokens = list(prompt.tokens)
            self.generation.remember(conversation.tokens)
            yield AnswerStarted(len(prompt.tokens), prefilled, time.perf_counter() - asked, kept.tokens, kept.refused)
            events = decode(conversation.tokens, answer, mode)
            if question.plain_lane:
                plain = self._generation(conversation, prompt, question, meter.another("plain"), asked)
                tokens, tail = list(prompt.tokens), self.full.tail(self.full.length)
                fast_lane = Lane(events, answer, conversation.tokens, tail)
                plain_lane = Lane(decode(tokens, plain, "plain"), plain, tokens, tail)
                events = take_turns(self.full, fast_lane, plain_lane)
            yield from events
            return True

        tail: list[Event] = []
        try:
            try:
                if not (yield from until_set(cancel, steps())):
                    answer.reason = StopReason.CANCELLED
            finally:
                tail += answer.flush(self.full.kv_bytes(), len(conversation.tokens))
                self._commit(conversation, prompt, question, answer)
            yield from tail
            yield answer.done(self.full.kv_bytes(), len(conversation.tokens))
        finally:  # turns are saved after the last event, so that no answer waits for the disk
            self.persistence.save_turns(question.chat, conversation)

    def _generation(
        self, conversation: Conversation, prompt: Prompt, question: Question, meter: Meter, asked: float
    ) -> Generation:
        """An answer of which nothing is made yet, to a question that was asked at ``asked``."""
        pages = PageScores(conversation.book.page_starts, conversation.read, self.hierarchy.retrieval.chunk_size)
        sampling = self.target.sampling_of(question.sampling, conversation.form.thinking)
        thoughts = Thoughts.of(self.tokenizer, conversation.form.thinking, prompt, sampling)
        return Generation(meter, self.tokenizer.stream_after(prompt, question), pages, asked, thoughts)

    def ask_aside(self, question: Question, *, cancel: threading.Event | None = None) -> Iterator[Event]:
        """Answer a question from its excerpt, in a context of its own. May be called between two events of ``read``,
        which continues as if nothing had happened. Raises as ``engine.aside.Aside.ask``.
        """
        began, split = time.perf_counter(), self.target.split
        others = split.devices[1:] if split else ()
        free = planner.free_resources(self.target.device, self.config, None, others)
        try:
            yield from self._aside.ask(question, free, cancel)
        finally:
            self._aside_s += time.perf_counter() - began

    def _quotable(self, conversation: Conversation) -> Quotable:
        """The text that an answer may quote: the part of the book that the model has read.

        Raises:
            OptionError: the bytes of the model's tokens are unknown.
        """
        pieces = self.tokenizer.pieces
        if pieces is None:
            raise OptionError("This model cannot restrict quotations to the book's words.", "Turn exact_quotes off.")
        key = (conversation.book, conversation.read)
        if self._quoted is None or self._quoted[0] != key:
            self._quoted = key, Quotable(conversation.words_read, pieces)
        return self._quoted[1]

    def _recall(self, chat: str, conversation: Conversation, turns: Sequence[Turn]) -> Restored:
        """Restore from disk the saved turns of a chat that are not in the cache.

        If the cache cannot be cropped to the end of a turn, that turn counts as missing.
        """
        known, tokens = conversation.turns[: conversation.known(turns)], conversation.tokens
        count = len(known)
        # ``nearest`` may return a length within a turn. This turn counts as missing, because a saved turn can only be
        # restored right after the end of the previous turn.
        while (start := self.full.nearest(conversation.kv_start(count))) < conversation.kv_start(count) and count:
            count = sum(held.stop - 1 <= start for held in known)
        if count < len(known):
            conversation.forget_from(count)
        try:
            restored = self.persistence.restore_turns(chat, conversation, turns)
            return replace(restored, changed=restored.changed or count < len(known))
        finally:
            conversation.remember(known, tokens)

    def _compose(self, question: Question) -> tuple[Conversation, Prompt]:
        conversation = self.conversation
        if conversation is None or conversation.read == 0:
            raise InputError("No book is open.", "Open one first.")
        if not question.text.strip():
            raise InputError("The question is empty.", "Type a question.")
        window = self.target.window
        history = question.history
        fresh = [words for turn in history[conversation.known(history) :] for words in (turn.question, turn.answer)]
        if self.tokenizer.overflow("".join((*fresh, question.text, question.thought, question.begun)), window):
            raise _too_long()
        form, sampling = conversation.form.thinking, question.sampling
        think = form is not None and form.wants(sampling.think, sampling.think_tokens)
        prompt = conversation.compose(question.text, history, question.begun, thought=question.thought, think=think)
        if len(prompt.tokens) >= window:
            raise _too_long()
        return conversation, prompt

    def _commit(self, conversation: Conversation, prompt: Prompt, question: Question, answer: Generation) -> None:
        """Add the turn to the conversation if the answer has any token. Otherwise restore the state before the
        question. A failed round may have committed tokens that were not reported; these are dropped.
        """
        thought = question.thought + (answer.thoughts.text if answer.thoughts else "")
        turn = Turn(question.text, question.begun + answer.text, thought)
        if answer.made:
            del conversation.tokens[len(prompt.tokens) + answer.made :]
            self.full.crop(min(self.full.length, len(conversation.tokens) - 1))
            self.full.keep_place()
            conversation.commit(prompt, turn, prompt.begun_tokens + len(answer.tokens))
        else:
            conversation.rewind(prompt)
            self.full.crop(self.full.nearest(prompt.reused))
            conversation.forget_beyond(self.full.length)


def _turns_in_cache(question: Question) -> Sequence[Turn]:
    """Return the turns that the cache may already hold: the question's earlier turns, and the cut-off turn that it
    continues.
    """
    begun = (Turn(question.text, question.begun),) if question.begun and not question.thought else ()
    return (*question.history, *begun)


def _too_long() -> ContextTooSmall:
    return ContextTooSmall(
        "The book, this chat and the question are too long for this model.",
        "Ask a shorter question or start a new chat.",
    )


def fitted(
    tokenizer: BookTokenizer, reading: Reading, form: ChatFormat, window: int, shape: KvShape, free: Resources
) -> tuple[Document, BookTokens]:
    """Fit a document into the window and the memory. Returns the document, or only its first pages if not all fit,
    together with the tokens.

    Args:
        window: maximum tokens of the model's context.
        shape: shape of the model's KV.
        free: bytes that KV may take.

    Raises:
        InputError: there is no text in the document.
        ContextTooSmall: the book does not fit.
    """
    document = reading.document
    if not document.text.strip():
        raise InputError("There is no text in this document.", "Choose another file.")
    if len(document.pages) == 1 and tokenizer.overflow(document.text, window):
        raise ContextTooSmall(f"1 {document.unit}: too long for this model.", "Choose a shorter text.")
    book = tokenizer.book(document, form)
    fit = fit_book(document, book, window, shape, free)
    if fit.fits:
        return document, book
    if not reading.fit or fit.pages_that_fit == 0:
        some = "pages (--pages) or chapters (--chapters)"
        choose = "Name fewer documents" if document.members else f"Choose {some}, ask it in parts (--parts)"
        raise ContextTooSmall(fit.sentence, f"{choose}, or read from the start what fits (--fit).")
    cut = document.select(document.pages[0].number, document.pages[fit.pages_that_fit - 1].number)
    return cut, tokenizer.book(cut, form)


def progress(conversation: Conversation, step: prefill.PrefillProgress, start: int, seconds: float) -> ReadingProgress:
    """The progress of a reading, ``seconds`` after it began at token ``start``."""
    total = len(conversation.book.ids)
    done = max(step.usable, start + int(step.work * (total - start)))
    return ReadingProgress(
        tokens_done=done,
        tokens_total=total,
        pages_done=conversation.book.pages_within(step.usable),
        pages_total=len(conversation.document.pages),
        tokens_per_s=(done - start) / max(seconds, 1e-9),
        seconds_left=seconds * (1.0 - step.work) / max(step.work, 1e-9),
    )


def _load_draft(config: EngineConfig, settings: Any, target: decoder.Decoder) -> decoder.Decoder | None:
    """Load what proposes tokens beside the target: the draft model or head that the configuration names, or the draft
    head in the target's own files. Return None if there is none, or if the head in the target's files cannot be read,
    because answers are the same without it.

    Args:
        settings: the draft's configuration, or None.
    """
    if settings is None:
        return None
    if config.draft is None:
        try:
            return own_head.load(config.model, settings, target)
        except ModelError as error:
            _log.warning("without the model's own draft head: %s", error.cause)
            return None
    if is_own_head(settings):
        return own_head.load(config.draft, settings, target)
    if is_distilled(settings):
        return distilled.load(config.draft, target)
    return loading.load(config.draft, window=None, device=target.device, dtype=config.dtype)
