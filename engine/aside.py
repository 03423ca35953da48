"""Answers a question from a short text, in a context of its own beside the open book's.

    aside = Aside(config, tokenizer, target, end_ids)
    for event in aside.ask(question, free): ...      # Loading ..., AnswerStarted, TextDelta ..., AnswerDone

``question.excerpt`` takes the place of the book in the prompt. The text is prefilled into a full cache of its own, and
this cache is freed at the end. Nothing that belongs to the open book is touched, neither its KV nor its conversation.
So a reading that waits meanwhile continues as if nothing had happened, and its KV has the same bytes.

The context is short, so the answer is decoded plainly, one token a pass. Its distribution is plain decoding's by
definition.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from engine.config import EngineConfig, SamplingParams
from engine.decode import prefill, rounds
from engine.decode.loops import LoopDetector
from engine.decode.quotations import Quotable
from engine.decode.rounds import Context, NotFinite
from engine.decode.verify import make_generator, make_sampler
from engine.errors import ContextTooSmall, InputError, OptionError
from engine.events import AnswerStarted, Event, Loading, StopReason
from engine.generation import Generation, Meter, PageScores
from engine.kv.full import FullCache
from engine.model.decoder import Decoder
from engine.phases import Thoughts, in_phases
from engine.plan import planner
from engine.plan.memory_budget import CHUNK
from engine.plan.planner import Resources
from engine.prompt import BookTokenizer, Conversation, Prompt, Question
from engine.thinking import check_wanted


class Aside:
    """Contexts of their own for questions about short texts.

    Args:
        config: gives the format of KV and the sizes of a prefill.
        tokenizer: the target's tokenizer.
        target: the target model.
        end_ids: tokens that end an answer.
    """

    def __init__(
        self, config: EngineConfig, tokenizer: BookTokenizer, target: Decoder, end_ids: frozenset[int]
    ) -> None:
        self._config, self._tokenizer, self._target, self._end_ids = config, tokenizer, target, end_ids
        self._shape = target.kv_shape.stored_as(config.kv).indexed(config.chunk_size or CHUNK)

    def ask(self, question: Question, free: Resources, cancel: threading.Event | None = None) -> Iterator[Event]:
        """Answer ``question`` from its excerpt.

        Args:
            free: bytes that KV may take.
            cancel: once it is set the answer ends, with ``StopReason.CANCELLED``.

        Raises:
            InputError: the excerpt or the question is empty.
            OptionError: exact quotations are configured, and the bytes of the model's tokens are unknown.
            ContextTooSmall: excerpt and question do not fit into the window.
        """
        asked = time.perf_counter()
        conversation, prompt = self._composed(question)
        tokens, begun, form = list(prompt.tokens), prompt.begun_tokens, conversation.form.thinking
        sampling = self._target.sampling_of(question.sampling, form)
        check_wanted(form, sampling.think)
        quotable = self._quotable(conversation) if sampling.exact_quotes else None
        meter = Meter("plain", len(tokens), len(tokens), self._target.window)
        thoughts = Thoughts.of(self._tokenizer, form, prompt, sampling)
        pages = PageScores((), 0, self._config.chunk_size or CHUNK)
        stream = self._tokenizer.stream_after(prompt, question)
        answer = Generation(meter, stream, pages, asked, thoughts)
        full = FullCache(self._shape, self._target.window, spill_folder=planner.spill_folder(self._config))
        try:
            plan = planner.plan_for_book(self._shape, len(tokens), self._target.window, free)
            full.place(plan.placement, plan.tokens)
            context = _AsideContext(full, tokens, begun, conversation.read, sampling, quotable)
            for event in self._steps(context, answer, asked):
                yield event
                if cancel is not None and cancel.is_set():
                    answer.reason = StopReason.CANCELLED
                    break
            yield from answer.flush(full.kv_bytes(), len(tokens))
            yield answer.done(full.kv_bytes(), len(tokens))
        finally:
            full.clear()
            self._target.end_prefill()

    def _composed(self, question: Question) -> tuple[Conversation, Prompt]:
        """The conversation about the excerpt, and the prompt."""
        document, window = question.excerpt, self._target.window
        if document is None or not document.text.strip():
            raise InputError("There is no text in this document.", "Choose another file.")
        if not question.text.strip():
            raise InputError("The question is empty.", "Type a question.")
        form = self._tokenizer.format_for(document.opening)
        book = self._tokenizer.book(document, form)
        passages = self._target.num_passages, self._target.wants_pointing and self._tokenizer.has_template
        conversation = Conversation(self._tokenizer, document, book, form, self._end_ids, *passages)
        conversation.begin(len(book.ids))
        sampling = question.sampling
        think = form.thinking is not None and form.thinking.wants(sampling.think, sampling.think_tokens)
        history, begun, thought = question.history, question.begun, question.thought
        prompt = conversation.compose(question.text, history, begun, thought=thought, think=think)
        if len(prompt.tokens) >= window:
            raise ContextTooSmall(
                "The passages, this chat and the question are too long for this model.",
                "Ask a shorter question or start a new chat.",
            )
        return conversation, prompt

    def _quotable(self, conversation: Conversation) -> Quotable:
        """The text that an answer may quote: the excerpt."""
        pieces = self._tokenizer.pieces
        if pieces is None:
            raise OptionError("This model cannot restrict quotations to the book's words.", "Turn exact_quotes off.")
        return Quotable(conversation.words_read, pieces)

    def _steps(self, context: _AsideContext, answer: Generation, asked: float) -> Iterator[Event]:
        """Prefill the prompt, and decode the answer."""
        tokens, full, sampling = context.tokens, context.full, context.sampling
        count, target = len(tokens), self._target
        for step in self._prefill(full, tokens[:-1]):
            yield Loading(f"Reading the passages: {step.work:.0%}")
        yield AnswerStarted(count, count, time.perf_counter() - asked)
        generator = make_generator(sampling.seed, target.token_device)

        def phase() -> Generator[Event, None, None]:
            limit = answer.begin_phase(sampling.max_tokens, target.window - len(tokens))
            said = target.ids(answer.said(tokens, context.begun_tokens))
            decoding = Context(
                target.backend,
                full,
                tokens,
                make_sampler(sampling, said, None if answer.thinks else context.quotable),
                generator,
                answer.stops(self._end_ids),
                limit,
                LoopDetector(tokens[: context.book_tokens]),
            )
            for done in rounds.plain(decoding):
                yield from answer.add(done, full.kv_bytes(), len(tokens))
                if answer.at_border:
                    return

        try:
            yield from in_phases(answer, tokens, full, phase, lambda ids: self._prefill(full, ids))
        except NotFinite as error:
            raise self._target.not_finite() from error

    def _prefill(self, full: FullCache, tokens: list[int]) -> Iterator[prefill.PrefillProgress]:
        config, ids = self._config, self._target.ids(tokens)
        return prefill.prefill(self._target, full, ids, segment=config.prefill_segment, block=config.prefill_block)


@dataclass(frozen=True)
class _AsideContext:
    """The context of one answer. ``tokens``: the prompt, to which committed tokens are appended. The last
    ``begun_tokens`` tokens of the prompt belong to the answer, the first ``book_tokens`` to the excerpt.
    """

    full: FullCache
    tokens: list[int]
    begun_tokens: int
    book_tokens: int
    sampling: SamplingParams
    quotable: Quotable | None
