"""Makes one answer: from a prompt in the caches to the events of its tokens, its figures and its pages.

``GenerationLoop`` runs a decoding loop on a session's caches. It keeps the last prompt and its queries, so that asking
the same question again (to regenerate, or to choose the best of several samples) prefills no token. It also keeps the
times of plain steps (autoregressive passes for one token) while the book stays the same. ``Generation`` turns rounds
into events. ``PageScores`` turns scores of chunks into scores of pages, which the app uses to highlight pages.
``Meter`` computes the figures of an answer from its rounds:

- Acceptance rate: accepted / proposed tokens of a level, without the bonus token. Tokens that are copied straight from
  the book to verification are counted separately.
- Mean acceptance length: tokens per verification, with the bonus token.
- Inter-token latency (ms per token): a round delivers its tokens at once, so each token is assigned the round's time
  divided by the round's number of tokens. p50 and p95 are over tokens.
- Speedup: the estimated time per token of plain decoding during the answer (``PlainSteps``), divided by the mean time
  per token.
"""

from __future__ import annotations

import statistics
import time
from bisect import bisect, insort
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from engine.decode import rounds
from engine.decode.loops import LoopDetector
from engine.decode.rounds import Context, NotFinite, pass_ms
from engine.decode.tuning import is_slow
from engine.decode.verify import make_generator, make_sampler
from engine.events import (
    Acceptance,
    AnswerDone,
    Figures,
    PagesScored,
    StopReason,
    TextDelta,
    ThoughtDelta,
    TimeSplit,
)
from engine.kv.retrieval import QueryRecorder
from engine.phases import in_phases

if TYPE_CHECKING:
    from collections.abc import Generator

    from engine.config import Mode, SamplingParams
    from engine.decode.levels import Hierarchy
    from engine.decode.quotations import Quotable
    from engine.events import Event, KvBytes, Round, TokenSource
    from engine.kv.full import FullCache, Watermark
    from engine.model.decoder import Decoder
    from engine.phases import Thoughts
    from engine.prompt import TextStream


PLAIN_PROBES = 3
"""Number of plain steps that are timed on a new book. The controller starts with their median as the cost of a plain
step. The first of these steps makes the answer's first token. If this step is slow, only this step is timed.
"""
# Minimum number of plain steps for a speedup to be computed.
_LEAST_PLAIN_STEPS = 3
# Minimum seconds between two plain steps.
_PLAIN_EVERY_S = 2.0
# Maximum share of an answer's time that plain steps take while the answer is written.
_PLAIN_SHARE = 0.01
# If an answer ends with fewer than ``_LEAST_PLAIN_STEPS`` plain steps, the missing steps are timed at its end. They may
# take at most this share of the answer's time, or ``_UNNOTICED_S`` seconds.
_PLAIN_SHARE_AT_END = 0.1
# A person does not notice plain steps at the end of an answer that take at most this many seconds.
_UNNOTICED_S = 0.2
# A plain step is compared with at most this many verifications before it, and with as many after it.
_BESIDE = 4
# Number of newest comparisons that count.
_MOST_COMPARED = 96
# Maximum ratio of the speedup's upper bound to its lower bound. The bounds follow from the costs of additional rows:
# their medians plus and minus one standard error. With a larger ratio no speedup is given, because the machine was
# disturbed.
_MOST_SPREAD = 1.5
# Factor in the standard error of a median for a normal distribution: the factor times the interquartile range, divided
# by the square root of the number of values. The number of plain steps is used here instead of the larger number of
# comparisons, because all comparisons with one plain step share the error of its time.
_QUARTILES_TO_SPREAD = 0.93


class GenerationLoop:
    """Decodes answers to prompts on one session's caches.

    Args:
        target: the target model.
        full: the target's full cache.
        hierarchy: the levels that propose tokens.
        end_ids: tokens that end an answer.
    """

    def __init__(self, target: Decoder, full: FullCache, hierarchy: Hierarchy, end_ids: frozenset[int]) -> None:
        self._target = target
        self._full = full
        self._hierarchy = hierarchy
        self._end_ids = end_ids
        self._plain_ms: list[float] = []
        self._asked: list[int] = []
        self._known: Watermark | None = None
        self._queries = QueryRecorder(full.shape.layers)
        self._has_newest_query = False

    def reset(self) -> None:
        """Forget the prompt and the times of plain steps, to prepare for another book."""
        self._plain_ms = []
        self._asked = []

    def begin(self, prompt: list[int], reused: int) -> QueryRecorder:
        """Crop the caches to the tokens of ``prompt`` that they hold already. Return the recorder of queries for the
        prefill of the remaining tokens.

        Args:
            prompt: all tokens of the prompt.
            reused: the first ``reused`` tokens of the prompt are known to be in the caches. If the same question is
                asked again, this method finds that all tokens except the last are in the caches, whatever ``reused``
                says.
        """
        full = self._full
        whole = len(prompt) - 1
        same = self._asked == prompt and self._known is not None and self._known.length >= whole
        if same and full.nearest(whole) == whole:
            reused = whole
        else:
            self._queries, self._asked = QueryRecorder(full.shape.layers), []
            self._has_newest_query = False
        full.crop(full.nearest(min(reused, whole)))
        return self._queries

    def remember(self, prompt: list[int]) -> None:
        """Remember ``prompt`` for the case that the same question is asked again. All its tokens except the last must
        be in the cache.
        """
        self._asked = list(prompt)
        self._full.keep_place()
        # ``_known.length`` drops if other tokens, such as those of a different chat, replace tokens of the prompt.
        self._known = self._full.watermark()

    def decode(
        self,
        tokens: list[int],
        generation: Generation,
        sampling: SamplingParams,
        mode: Mode,
        read: Callable[[list[int]], Iterator[object]],
        book_tokens: int,
        begun_tokens: int = 0,
        quotable: Quotable | None = None,
    ) -> Generator[Event, None, None]:
        """Yield the events of an answer. ``tokens`` holds the prompt at first; committed tokens are appended.

        Args:
            read: prefills tokens after those in the cache.
            book_tokens: the first ``book_tokens`` tokens of the prompt are the book. A repetition that the book
                contains does not count as a loop.
            begun_tokens: the last ``begun_tokens`` tokens of the prompt are the beginning of the answer, which is
                continued.
            quotable: the text that quotations must come from; None if anything may be quoted.
        """
        generator = make_generator(sampling.seed, self._target.token_device)

        def phase() -> Generator[Event, None, None]:
            limit = generation.begin_phase(sampling.max_tokens, self._target.window - len(tokens))
            said = generation.said(tokens, begun_tokens)
            context = Context(
                self._hierarchy.verify,
                self._full,
                tokens,
                make_sampler(sampling, self._target.ids(said), None if generation.thinks else quotable),
                generator,
                generation.stops(self._end_ids),
                limit,
                LoopDetector(tokens[:book_tokens]),
                repeats=sampling.seed is not None and bool(sampling.temperature),
            )
            if not limit:
                return
            if mode == "plain":
                yield from self._tell(rounds.plain(context), generation, tokens)
            else:
                yield from self._speculate(context, sampling, generation)

        yield from in_phases(generation, tokens, self._full, phase, read)
        began = generation.phase_began
        # If a short answer has too few plain steps, the missing steps are timed after its last token, where they delay
        # no token.
        while generation.present_meter.plain.wanting(generation.clock - began):
            self._time_plain_step(tokens, generation)

    def _speculate(self, context: Context, sampling: SamplingParams, generation: Generation) -> Iterator[Event]:
        hierarchy, tokens = self._hierarchy, context.tokens

        def begin(first: Round) -> Iterator[Round]:
            self._plain_ms = [*self._plain_ms, rounds.plain_step_ms(first)][-PLAIN_PROBES:]
            slow = is_slow(self._plain_ms[-1])
            while context.max_tokens and len(self._plain_ms) < PLAIN_PROBES and not slow:
                self._plain_ms.append(pass_ms(hierarchy.verify, self._full, tokens, 1, None))
            rounds.start(context, hierarchy.retrieval, hierarchy.drafter, self._queries)
            if not context.max_tokens:
                return iter(())
            return hierarchy.rounds(context, sampling, statistics.median_low(self._plain_ms))

        # The prompt's last token has no KV yet. The pass that makes the first token computes it, and records its query,
        # which helps to choose the chunks of the retrieval cache.
        observer = None if self._has_newest_query else self._queries
        with self._finite_logits():
            first, others = rounds.first_token(context, observer, begin)
        self._has_newest_query = True
        generation.clock = time.perf_counter() - first.split.total / 1000.0
        yield from self._tell(iter((first,)), generation, tokens)
        if generation.at_border:
            return
        made = others()
        yield generation.scored(hierarchy.retrieval.chunk_scores())
        yield from self._tell(made, generation, tokens)

    def _tell(self, rounds: Iterator[Round], generation: Generation, tokens: list[int]) -> Iterator[Event]:
        """Yield the events of rounds. When a plain step is due, time it between two rounds."""
        while (done := self._next(rounds)) is not None:
            yield from generation.add(done, self._full.kv_bytes(), len(tokens))
            if generation.at_border:
                return
            if done.scored:
                yield generation.scored(self._hierarchy.retrieval.chunk_scores())
            if generation.present_meter.plain.due(time.perf_counter() - generation.start_s):
                self._time_plain_step(tokens, generation)

    def _next(self, rounds: Iterator[Round]) -> Round | None:
        with self._finite_logits():
            return next(rounds, None)

    @contextmanager
    def _finite_logits(self) -> Iterator[None]:
        """Turn ``NotFinite`` raised within this context into an error for the person.

        Raises:
            ModelError: the target computed numbers that are not finite.
        """
        try:
            yield
        except NotFinite as error:
            raise self._target.not_finite() from error

    def _time_plain_step(self, tokens: list[int], generation: Generation) -> None:
        """Time a pass over the newest token without committing a token. Text and random numbers stay unchanged."""
        ms = pass_ms(self._hierarchy.verify, self._full, tokens, 1, None)
        generation.present_meter.plain.add(ms, time.perf_counter() - generation.start_s)


@dataclass
class Generation:
    """One answer while it is made: its tokens so far, and the events about them.

    Args:
        meter: computes the figures.
        stream: turns tokens into text.
        pages: computes the pages' scores.
        start_s: the moment of the question (``time.perf_counter`` seconds).
        thoughts: what the model thinks before it answers; None if it cannot think.
    """

    meter: Meter
    stream: TextStream
    pages: PageScores
    start_s: float
    thoughts: Thoughts | None = None
    text: str = ""
    reason: StopReason = StopReason.LENGTH
    tokens: list[int] = field(default_factory=list)
    sources: list[TokenSource] = field(default_factory=list)
    pages_scored: list[PagesScored] = field(default_factory=list)
    made: int = 0
    """Number of tokens after the prompt: of thoughts, of the answer, and those with which thoughts were closed."""
    at_border: bool = False
    """Whether the newest round has ended the present phase (``engine.phases``)."""
    clock: float = 0.0
    """The moment when the newest round ended, or when decoding began (``time.perf_counter`` seconds)."""
    phase_began: float = 0.0
    _scored: int = 0  # number of answer tokens whose page scores have been reported
    _phase: tuple[int, int] = 0, 0  # tokens made before the present phase, and the maximum number of its tokens

    def __post_init__(self) -> None:
        self.thought_meter = self.meter.another()

    @property
    def thinks(self) -> bool:
        """Whether the present phase is one of thinking."""
        return self.thoughts is not None and self.thoughts.thinks

    @property
    def present_meter(self) -> Meter:
        """The meter of the present phase."""
        return self.thought_meter if self.thinks else self.meter

    def said(self, tokens: list[int], begun_tokens: int) -> list[int]:
        """The tokens at the end of the context ``tokens`` that the sampler of the present phase has to know: those of
        the answer so far. ``begun_tokens``: number of the answer's tokens in the prompt.
        """
        return [] if self.thinks else tokens[len(tokens) - len(self.tokens) - begun_tokens :]

    def stops(self, end_ids: frozenset[int]) -> frozenset[int]:
        """Tokens that end the present phase. ``end_ids``: tokens that end an answer."""
        return end_ids | self.thoughts.stops if self.thoughts and self.thoughts.thinks else end_ids

    def begin_phase(self, max_tokens: int, left: int) -> int:
        """Begin a phase. Returns the maximum number of its tokens.

        Args:
            max_tokens: maximum tokens of the answer.
            left: tokens that the window still holds.
        """
        # earlier work counts only towards the time to first token
        self.clock = self.phase_began = time.perf_counter()
        wanted = max_tokens - len(self.tokens)
        if self.thoughts and self.thoughts.thinks:
            wanted = self.thoughts.budget - self.thoughts.count
        self.reason = StopReason.LENGTH if wanted <= left else StopReason.CONTEXT
        self.at_border = False
        self._phase = self.made, max(0, min(wanted, left))
        return self._phase[1]

    def skip(self, seconds: float) -> None:
        """Leave out the last ``seconds``, in which nothing was decoded for this answer, from its times."""
        self.start_s += seconds
        self.clock += seconds
        self.phase_began += seconds

    def next_phase(self) -> list[int] | None:
        """The tokens with which the prompt goes on after a phase; None if the answer has ended."""
        began, limit = self._phase
        return self.thoughts.next(self.reason, self.made - began, limit) if self.thoughts else None

    def add(self, done: Round, kv_bytes: KvBytes, context_tokens: int) -> Iterator[Event]:
        """Add a round that ends now, up to the border of the present phase. Returns the events about it."""
        before, self.clock = self.clock, time.perf_counter()
        thought, pieces, answered = self._split(done.tokens)
        kept = len(pieces)
        self.at_border = self.thoughts is not None and self.thoughts.at_border
        if kept < len(done.tokens):
            done = replace(done, tokens=done.tokens[:kept], sources=done.sources[:kept], ended=False)
        meter = self.meter if answered or not self.thoughts else self.thought_meter
        meter.add(done, (self.clock - before) * 1000.0, self.clock - self.start_s)
        if done.ended and not (self.thoughts and self.thinks and done.tokens[-1] in self.thoughts.stops):
            self.reason = StopReason.LOOP if done.looping else StopReason.END
        self.made += kept
        if self.thoughts and (thought or not answered):
            self.thoughts.text += thought
            self.thoughts.count += kept - len(answered)
            yield ThoughtDelta(thought, self.thought_meter.figures(kv_bytes, context_tokens))
        if answered:
            text = "".join(pieces)
            ids, sources = zip(*((done.tokens[at], done.sources[at]) for at in answered), strict=True)
            self.text += text
            self.tokens += ids
            self.sources += sources
            lengths = tuple(len(pieces[at]) for at in answered)
            yield TextDelta(text, ids, sources, self.meter.figures(kv_bytes, context_tokens), lengths)

    def _split(self, tokens: Sequence[int]) -> tuple[str, list[str], Sequence[int]]:
        """Split tokens into thought and answer, up to the border of the phase. Returns the text of the thought, the
        text that each token adds to the answer, and the places of the answer's tokens.
        """
        if self.thoughts is None:
            return "", [self.stream.add((token,)) for token in tokens], range(len(tokens))
        parser, thinks = self.thoughts.parser, self.thoughts.thinks
        thought, pieces, answered = self.thoughts.take_untold(), list[str](), list[int]()
        for at, token in enumerate(tokens):
            was_thinking, mark = parser.thinking, self.thoughts.marks.get(token, "")
            piece = self.stream.add((token,))
            split = parser.feed(piece.removesuffix(mark) if mark else piece, mark)
            thought += split.thought
            pieces.append(split.answer)
            if split.answer or not (was_thinking or parser.thinking or (thinks and not parser.answering)):
                answered.append(at)
            if self.thoughts.at_border:
                break
        return thought, pieces, answered

    def scored(self, chunk_scores: torch.Tensor | None) -> PagesScored:
        """Make the event that reports new ``chunk_scores``. The event covers the tokens since the last event of this
        kind.
        """
        first, self._scored = self._scored, len(self.tokens)
        self.pages_scored.append(PagesScored(self.pages.add(chunk_scores), first, self._scored - 1))
        return self.pages_scored[-1]

    def done(self, kv_bytes: KvBytes, context_tokens: int) -> AnswerDone:
        """The event that ends the answer."""
        return AnswerDone(
            text=self.text,
            token_ids=tuple(self.tokens),
            sources=tuple(self.sources),
            stop_reason=self.reason,
            figures=self.meter.figures(kv_bytes, context_tokens),
            page_scores=self.pages.overall(),
            pages_scored=tuple(self.pages_scored),
            thought=self.thoughts.done(self.thought_meter.figures(kv_bytes, context_tokens)) if self.thoughts else None,
        )

    def flush(self, kv_bytes: KvBytes, context_tokens: int) -> Iterator[Event]:
        """Take the text that is still held back at the end, and return the events about it.

        If the answer was cut off, the stream may hold a part of a character, which is left out: a continued answer
        begins with the whole character.
        """
        tail, thought = self.stream.flush() if self.reason is StopReason.END else "", ""
        if self.thoughts:
            parts = (self.thoughts.parser.feed(tail), self.thoughts.parser.end())
            tail = "".join(one.answer for one in parts)
            thought = self.thoughts.take_untold() + "".join(one.thought for one in parts)
            self.thoughts.text += thought
        self.text += tail
        if thought and self.thoughts:
            yield ThoughtDelta(thought, self.thought_meter.figures(kv_bytes, context_tokens))
        if tail:
            yield TextDelta(tail, (), (), self.meter.figures(kv_bytes, context_tokens))


class PageScores:
    """Sums chunk scores by page.

    Args:
        page_starts: index of each page's first token in the context.
        stop: index after the book's last token. Later chunks are of the chat, and belong to no page.
        chunk_size: tokens in a chunk.
    """

    def __init__(self, page_starts: tuple[int, ...], stop: int, chunk_size: int) -> None:
        self._chunks = stop // chunk_size
        self._pages = len(page_starts)
        middles = torch.arange(self._chunks) * chunk_size + chunk_size // 2
        starts = torch.tensor(page_starts, dtype=torch.long)
        # A chunk of the chat template before the first page is assigned to the first page. This changes no page score,
        # because such a chunk is an attention sink with score zero.
        self._page_of = (torch.searchsorted(starts, middles, right=True) - 1).clamp_(min=0)
        self._sum = torch.zeros(self._pages)

    def add(self, chunk_scores: torch.Tensor | None) -> tuple[float, ...]:
        """Add new chunk scores (chunks,). Returns scores per page, which sum to 1, or zeros if no page has a score."""
        if chunk_scores is None or not self._pages:
            return self._shares(torch.zeros(self._pages))
        scores = chunk_scores[: self._chunks].float().cpu()
        pages = torch.zeros(self._pages).index_add_(0, self._page_of[: scores.shape[0]], scores)
        self._sum += pages
        return self._shares(pages)

    def overall(self) -> tuple[float, ...]:
        """Scores per page over all added chunk scores, normalized to a sum of 1."""
        return self._shares(self._sum)

    @staticmethod
    def _shares(pages: torch.Tensor) -> tuple[float, ...]:
        total = float(pages.sum())
        return tuple((pages / total).tolist()) if total > 0 else tuple([0.0] * pages.shape[0])


class PlainSteps:
    """Estimates the speedup over plain decoding, from plain steps that are timed while the answer is written.

    Plain steps are few, so each is compared with the verifications nearest in time. The comparisons give the cost of a
    verification's second row, and of each later row, as fractions of a plain step. (The second row may be nearly free,
    because a plain step waits for memory.) The medians of these costs turn the time of any verification into an
    estimate of a plain step's time at that moment. Each round's time is divided by this estimate, because a slow moment
    of the machine slows rounds and plain steps alike.

    A round of plain decoding takes longer than its pass alone. The ratio of the two is measured in rounds that were a
    single plain step; without such rounds it is 1. The lower median of the ratios is used, because the second round of
    an answer also starts the draft and the target on the retrieval cache, so that its ratio is too high.

    Durations are in milliseconds. Moments are in seconds since the question.
    """

    def __init__(self) -> None:
        self.count = 0
        self._tokens = 0
        # Three sums over rounds of the round's time divided by its verification's time. ``_passes``: over all rounds.
        # ``_second_rows``: over verifications of several rows. ``_later_rows``: times the number of the verification's
        # rows after the second.
        self._passes, self._second_rows, self._later_rows = 0.0, 0.0, 0.0
        # Newest comparisons with a plain step: rows of a verification, and its time after the first plain step's time,
        # as a fraction of a plain step
        self._compared: deque[tuple[int, float]] = deque(maxlen=_MOST_COMPARED)
        # for rounds of a single plain step: the round's time divided by the time of its pass, ascending
        self._whole: list[float] = []
        # Rows and milliseconds of the newest verifications
        self._newest: deque[tuple[int, float]] = deque(maxlen=_BESIDE)
        self._step_ms, self._step_s = 0.0, 0.0  # duration and end of the newest plain step
        self._since_step = 0  # verifications since the newest plain step

    def add(self, ms: float, end_s: float) -> None:
        """Count a plain step that took ``ms`` and ended at ``end_s``."""
        self.count += 1
        self._step_ms, self._step_s, self._since_step = ms, end_s, 0
        for rows, verified_ms in self._newest:
            self._pair(rows, verified_ms)

    def made(self, done: Round, elapsed_ms: float, end_s: float) -> None:
        """Count a round that took ``elapsed_ms`` and ended at ``end_s``."""
        rows, ms = done.verified_rows, done.split.verify + done.split.transfer
        if ms <= 0.0:
            return
        self._tokens += len(done.tokens)
        self._passes += elapsed_ms / ms
        if rows > 1:
            self._second_rows += elapsed_ms / ms
            self._later_rows += elapsed_ms / ms * (rows - 2)
        if rows == 1 and not done.scored:
            self.add(ms, end_s)
            insort(self._whole, (elapsed_ms - done.split.draft - done.split.middle) / ms)
        elif self._since_step < _BESIDE:
            self._since_step += 1
            self._pair(rows, ms)
        self._newest.append((rows, ms))

    def _pair(self, rows: int, ms: float) -> None:
        """Compare the newest plain step with a verification."""
        if rows > 1 and self._step_ms > 0.0:
            self._compared.append((rows, ms / self._step_ms - 1.0))

    def due(self, now_s: float) -> bool:
        """Whether it is time for another plain step."""
        return now_s - self._step_s >= max(_PLAIN_EVERY_S, self._step_ms / 1000.0 / _PLAIN_SHARE)

    def wanting(self, answer_s: float) -> bool:
        """Whether the answer, which took ``answer_s`` seconds, has too few plain steps for a speedup, and a person
        would not notice the time for the missing steps.
        """
        missing = _LEAST_PLAIN_STEPS - self.count
        unnoticed_s = max(_UNNOTICED_S, _PLAIN_SHARE_AT_END * answer_s)
        return missing > 0 and missing * self._step_ms / 1000.0 < unnoticed_s

    def speedup(self) -> float | None:
        """Tokens of the answer divided by the tokens that plain decoding would have made in the answer's time. None if
        there are too few plain steps, or if the costs derived from them differ too much (``_MOST_SPREAD``).
        """
        if self.count < _LEAST_PLAIN_STEPS or not self._tokens:
            return None
        (second, second_spread), (later, later_spread) = self._row_costs()
        slowest = self._steps(second + second_spread, later + later_spread)
        if slowest > _MOST_SPREAD * self._steps(second - second_spread, later - later_spread):
            return None
        whole = statistics.median_low(self._whole) if self._whole else 1.0
        return self._tokens * whole / self._steps(second, later)

    def _steps(self, second: float, later: float) -> float:
        """Number of plain passes that fit into the answer's time, if the second row of a verification costs ``second``
        plain steps, and each later row costs ``later``.
        """
        return self._passes + max(0.0, second) * self._second_rows + max(0.0, later) * self._later_rows

    def _row_costs(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The cost of a verification's second row, and of each later row, each with its standard error. All rows are
        assumed to cost the same if there was no verification of two rows, or no longer one.
        """
        seconds = [extra for rows, extra in self._compared if rows == 2]
        if not seconds:
            each = self._with_error([extra / (rows - 1) for rows, extra in self._compared])
            return each, each
        second = self._with_error(seconds)
        later = [(extra - second[0]) / (rows - 2) for rows, extra in self._compared if rows > 2]
        return second, self._with_error(later) if later else second

    def _with_error(self, costs: Sequence[float]) -> tuple[float, float]:
        """The median of ``costs`` and its standard error. 0 if there are no costs, or only one."""
        if len(costs) < 2:
            return (costs[0] if costs else 0.0), 0.0
        lower, median, upper = statistics.quantiles(costs, method="inclusive")
        return median, _QUARTILES_TO_SPREAD * (upper - lower) / self.count**0.5

    def age_s(self, now_s: float) -> float | None:
        """Seconds since the newest plain step; 0 if the step was timed after the last token; None if no step was
        timed.
        """
        return max(0.0, now_s - self._step_s) if self.count else None


class Meter:
    """Sums the rounds of one answer.

    Args:
        mode: name of the decoding loop.
        prompt_tokens: tokens of the whole context when decoding began.
        prefilled_tokens: tokens of the context that this question had to prefill.
        context_limit: maximum tokens of a context.
    """

    def __init__(self, mode: str, prompt_tokens: int, prefilled_tokens: int, context_limit: int) -> None:
        self.mode = mode
        self.prompt_tokens = prompt_tokens
        self.prefilled_tokens = prefilled_tokens
        self.context_limit = context_limit
        self.plain = PlainSteps()
        self._ttft_s: float | None = None
        self._newest_s = 0.0
        self._latencies: list[float] = []  # sorted at all times, because percentiles are computed after every round
        self._total_ms = 0.0
        self._rounds = 0
        self._split = TimeSplit()
        self._middle = Acceptance()
        self._verify = Acceptance()
        self._lookup = Acceptance()

    def another(self, mode: str = "") -> Meter:
        """A meter that has counted nothing, for the same context. ``mode``: another decoding loop."""
        return Meter(mode or self.mode, self.prompt_tokens, self.prefilled_tokens, self.context_limit)

    def add(self, done: Round, elapsed_ms: float, since_asked_s: float) -> None:
        """Count a round that took ``elapsed_ms`` and ended ``since_asked_s`` seconds after the question."""
        if self._ttft_s is None:
            self._ttft_s = since_asked_s
        self._newest_s = since_asked_s
        count = len(done.tokens)
        self.plain.made(done, elapsed_ms, since_asked_s)
        place = bisect(self._latencies, elapsed_ms / count)
        self._latencies[place:place] = [elapsed_ms / count] * count
        self._total_ms += elapsed_ms
        self._rounds += 1
        # Time outside of all stages (sampling, events, Python between rounds) counts as ``other``.
        spent = done.split
        rest = max(0.0, elapsed_ms - (spent.draft + spent.middle + spent.verify + spent.transfer))
        old = self._split
        self._split = TimeSplit(
            old.draft + spent.draft,
            old.middle + spent.middle,
            old.verify + spent.verify,
            old.transfer + spent.transfer,
            old.other + rest,
        )
        self._middle = _plus(self._middle, done.middle)
        self._verify = _plus(self._verify, done.verify)
        self._lookup = _plus(self._lookup, done.lookup)

    def figures(self, kv_bytes: KvBytes, context_tokens: int) -> Figures:
        """All figures so far."""
        tokens = len(self._latencies)
        mean = self._total_ms / tokens if tokens else None
        speedup = self.plain.speedup()
        return Figures(
            mode=self.mode,
            answer_tokens=tokens,
            rounds=self._rounds,
            ttft_s=self._ttft_s,
            ms_per_token_mean=mean,
            ms_per_token_p50=_nearest_rank(self._latencies, 0.50),
            ms_per_token_p95=_nearest_rank(self._latencies, 0.95),
            tokens_per_s=1000.0 / mean if mean else None,
            middle=self._middle,
            verify=self._verify,
            mean_acceptance_length=tokens / self._rounds if self._rounds else None,
            plain_ms=speedup * mean if speedup and mean else None,
            speedup_vs_plain=speedup,
            time_split=self._split,
            kv_bytes=kv_bytes,
            prompt_tokens=self.prompt_tokens,
            prefilled_tokens=self.prefilled_tokens,
            context_tokens=context_tokens,
            context_limit=self.context_limit,
            lookup=self._lookup,
            plain_steps=self.plain.count,
            plain_age_s=self.plain.age_s(self._newest_s),
        )


def _nearest_rank(ascending: Sequence[float], share: float) -> float | None:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else None


def _plus(a: Acceptance, b: Acceptance) -> Acceptance:
    return Acceptance(a.accepted + b.accepted, a.proposed + b.proposed)
