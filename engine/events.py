"""Defines the events that the engine yields while it works, and the records that describe the engine. All are frozen
dataclasses without tensors.

A page, a terminal or a client shows figures from these events alone. Times are taken in the engine thread, so a slow
page cannot distort them. Derived figures (rates, percentiles) are computed once, in ``engine.generation``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

from engine.config import SamplingParams

__all__ = [
    "Acceptance",
    "AnswerDone",
    "AnswerStarted",
    "BookInfo",
    "BookRead",
    "Event",
    "Figures",
    "KvBytes",
    "Loading",
    "ModelInfo",
    "PagesScored",
    "PlainLane",
    "ReadingProgress",
    "Status",
    "StopReason",
    "TextDelta",
    "Thought",
    "ThoughtDelta",
    "TimeSplit",
    "TokenSource",
]


class TokenSource(str, Enum):
    """The level that put a token into the answer."""

    DRAFT = "draft"  # proposed by the draft model, accepted by the target
    LOOKUP = "lookup"  # copied from earlier in the book or the chat, accepted by the target
    MIDDLE = "middle"  # produced by the target on the retrieval cache, accepted by the full cache
    # Drawn by the target on the full cache: a residual token, a bonus token, or a token of plain decoding
    TARGET = "target"


class StopReason(str, Enum):
    END = "end"  # the model ended its answer
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # the window is full
    CANCELLED = "cancelled"  # the person stopped the answer
    LOOP = "loop"  # the answer only repeated itself (``engine.decode.loops``)


@dataclass(frozen=True)
class KvBytes:
    """Bytes of KV, by the kind of memory: on the compute devices (``device``), in host memory next to a GPU (``host``)
    and on disk. ``cards``: the bytes on each GPU, which add up to ``device``; empty if there is only one GPU.
    """

    device: int = 0
    host: int = 0
    disk: int = 0
    cards: tuple[int, ...] = ()

    @staticmethod
    def by_device(devices: Sequence[int], host: int, disk: int, *, own_memory: bool) -> KvBytes:
        """Make a record from the bytes on each device, in host memory and on disk. If a device has no memory of its
        own, its bytes count as the host's.
        """
        total = sum(devices)
        if not own_memory:
            return KvBytes(host=total + host, disk=disk)
        return KvBytes(total, host, disk, tuple(devices) if len(devices) > 1 else ())

    @property
    def total(self) -> int:
        return self.device + self.host + self.disk

    def __add__(self, other: KvBytes) -> KvBytes:
        cards = tuple(a + b for a, b in zip(self.cards, other.cards, strict=True))
        return KvBytes(self.device + other.device, self.host + other.host, self.disk + other.disk, cards)


@dataclass(frozen=True)
class TimeSplit:
    """Milliseconds that each stage took, in one round or in an answer so far."""

    draft: float = 0.0
    middle: float = 0.0
    verify: float = 0.0
    transfer: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        return self.draft + self.middle + self.verify + self.transfer + self.other


@dataclass(frozen=True)
class Acceptance:
    """Numbers of accepted and of proposed tokens at one level. Bonus tokens are not counted."""

    accepted: int = 0
    proposed: int = 0

    @property
    def rate(self) -> float | None:
        return self.accepted / self.proposed if self.proposed else None


@dataclass(frozen=True)
class Round:
    """The tokens that one round of a decoding loop committed. ``ended``: whether the text ends with these tokens.
    ``looping``: whether it ends because it repeats itself.

    ``refreshed``: whether the retrieval selection was refreshed. ``scored``: whether there are new scores of pages.
    """

    tokens: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    split: TimeSplit
    ended: bool
    middle: Acceptance = field(default_factory=Acceptance)
    verify: Acceptance = field(default_factory=Acceptance)
    refreshed: bool = False
    scored: bool = False
    passes: int = 0  # passes over the retrieval cache
    lookup: Acceptance = field(default_factory=Acceptance)  # tokens copied from the book
    looping: bool = False

    @property
    def verified_rows(self) -> int:
        """Number of tokens in the verification pass: the proposals and the token before them; 1 in a plain step."""
        return 1 + self.verify.proposed + self.lookup.proposed


@dataclass(frozen=True)
class Figures:
    """The live figures of one answer, cumulative since its first token.

    ``plain_ms`` is an estimate: the milliseconds per token that plain decoding would have taken while the answer was
    written. The estimate is made from ``plain_steps`` timed steps, and the newest of these steps was ``plain_age_s``
    seconds ago. ``plain_ms`` is None if there were too few steps. ``speedup_vs_plain`` is ``plain_ms`` divided by
    ``ms_per_token_mean``.
    """

    mode: str
    answer_tokens: int
    rounds: int
    ttft_s: float | None
    ms_per_token_mean: float | None
    ms_per_token_p50: float | None
    ms_per_token_p95: float | None
    tokens_per_s: float | None
    middle: Acceptance
    verify: Acceptance
    mean_acceptance_length: float | None
    plain_ms: float | None
    speedup_vs_plain: float | None
    time_split: TimeSplit
    kv_bytes: KvBytes
    prompt_tokens: int
    prefilled_tokens: int  # tokens that this question had to prefill; all other tokens of the context were in the cache
    context_tokens: int  # tokens in the full cache now
    context_limit: int
    lookup: Acceptance = field(default_factory=Acceptance)  # tokens copied from the book
    plain_steps: int = 0
    plain_age_s: float | None = None

    @classmethod
    def none(cls, mode: str) -> Figures:
        """The figures of a text that no model has written. ``mode``: what has written it instead."""
        no = Acceptance()
        unknown = (None,) * 5
        return cls(mode, 0, 0, *unknown, no, no, None, None, None, TimeSplit(), KvBytes(), 0, 0, 0, 0)


@dataclass(frozen=True)
class Loading:
    """Work before the first result of a request, such as prefilling a question or sending a book to a server. ``what``
    is a sentence for the person.
    """

    what: str


@dataclass(frozen=True)
class ReadingProgress:
    """Progress of a book's prefill. ``pages_done`` counts the pages whose tokens are all in the cache. These pages stay
    usable if reading stops. Once the model computes tokens, ``tokens_per_s`` and ``seconds_left`` leave out tokens
    restored from disk.
    """

    tokens_done: int
    tokens_total: int
    pages_done: int
    pages_total: int
    tokens_per_s: float
    seconds_left: float


@dataclass(frozen=True)
class BookRead:
    """The last event of reading a book. The cache holds the book, or the part that was read before the person stopped.

    ``source`` is "snapshot" if the KV of ``tokens_restored`` tokens came from disk; else "read". ``tokens_per_s`` does
    not count these tokens, unless all tokens came from disk. ``refused`` says why an existing snapshot was not used.
    """

    tokens: int
    tokens_total: int
    pages_read: int
    pages_total: int
    seconds: float
    tokens_per_s: float
    kv_bytes: KvBytes
    stopped: bool
    source: Literal["read", "snapshot"] = "read"
    tokens_restored: int = 0
    refused: str = ""


@dataclass(frozen=True)
class AnswerStarted:
    """The question is in the cache; the first token is next. ``prompt_tokens`` counts the tokens of the whole context.
    Of these, this turn had to prefill ``prefilled_tokens`` tokens. ``seconds`` is the time since the question was
    asked.

    ``tokens_restored`` tokens of earlier turns came from disk; ``refused`` says why other saved turns were not used.
    """

    prompt_tokens: int
    prefilled_tokens: int
    seconds: float
    tokens_restored: int = 0
    refused: str = ""


@dataclass(frozen=True)
class TextDelta:
    """Newly committed tokens and their text. The bytes of an incomplete character are kept for the next event.
    ``lengths``: for each token, the number of characters that it added to ``text``.
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    figures: Figures
    lengths: tuple[int, ...] = ()


@dataclass(frozen=True)
class ThoughtDelta:
    """Newly committed text of what the model thinks before it answers. ``figures`` are those of the thought alone."""

    text: str
    figures: Figures


@dataclass(frozen=True)
class Thought:
    """What the model thought before it answered. ``figures`` are those of the thought alone.

    Args:
        is_open: whether the answer ended within the thought.
        was_cut: whether the thought was closed because its budget was used up, or because it repeated itself.
    """

    text: str
    figures: Figures
    is_open: bool = False
    was_cut: bool = False

    @property
    def words(self) -> int:
        """Number of words of the thought."""
        return len(self.text.split())

    @property
    def seconds(self) -> float:
        """Seconds that the thought took."""
        return self.figures.answer_tokens * (self.figures.ms_per_token_mean or 0.0) / 1000.0


@dataclass(frozen=True)
class PagesScored:
    """How strongly each page was attended to. ``scores`` has one number for each page, beginning with the first page.
    The numbers sum to 1, or are all zero.

    The scores belong to the answer's tokens ``first_token`` to ``last_token`` (counted from 0, both included), which
    were verified with this attention. The first event of an answer has the scores of the question itself and of the
    answer's first token. If ``last_token`` is less than ``first_token``, the scores belong to no token yet.
    """

    scores: tuple[float, ...]
    first_token: int = 0
    last_token: int = -1


@dataclass(frozen=True)
class AnswerDone:
    """The whole answer with its final figures. ``text`` joins the text of all ``TextDelta`` events. If the
    answer stopped within a character of several tokens, this character is left out. ``thought`` is no part of ``text``;
    None if the model thought nothing.

    ``page_scores`` is summed over the answer. ``pages_scored`` are all ``PagesScored`` events of the answer.
    """

    text: str
    token_ids: tuple[int, ...]
    sources: tuple[TokenSource, ...]
    stop_reason: StopReason
    figures: Figures
    page_scores: tuple[float, ...] = ()
    pages_scored: tuple[PagesScored, ...] = ()
    thought: Thought | None = None


@dataclass(frozen=True)
class PlainLane:
    """An event of the plain run that takes turns with a speculative answer (``Question.plain_lane``)."""

    event: ThoughtDelta | TextDelta | AnswerDone


Event = (
    Loading
    | ReadingProgress
    | BookRead
    | AnswerStarted
    | ThoughtDelta
    | TextDelta
    | PagesScored
    | PlainLane
    | AnswerDone
)

State = Literal["loading", "idle", "reading", "answering", "failed", "closed"]


@dataclass(frozen=True)
class ModelInfo:
    """The loaded models, as shown to people."""

    name: str
    path: str
    parameters: int
    architecture: str
    context_limit: int
    dtype: str
    device: str
    vocabulary: int
    kv_bytes_per_token: int
    draft_name: str | None
    draft_parameters: int | None
    kv_note: str = ""
    """A sentence about the format of KV; empty if KV has the model's dtype."""
    weights_note: str = ""
    """A sentence about the format of the target's weights; empty if the person chose it, or if it is a folder's own."""
    middle_note: str = ""
    """A sentence about the weights that passes over the retrieval cache use; empty if they are the target's own."""
    sampling: SamplingParams | None = None
    """The sampling settings of the model's maker for an answer without a thought; None if they are applied by another
    machine.
    """
    sampling_after_thought: SamplingParams | None = None
    """Those for an answer after a thought; None if they are the same."""
    can_quote: bool = True
    """Whether the model's quotations can be restricted to the book's own words."""
    thinking: str = ""
    """Whether the model can think before it answers, as a sentence; empty if it cannot, or if nothing is known."""

    def own_sampling(self, think: bool | None) -> SamplingParams | None:
        """The maker's sampling settings for an answer after a thought, or without one."""
        return (think and self.sampling_after_thought) or self.sampling


@dataclass(frozen=True)
class BookInfo:
    """The open book and how much of it has been read."""

    title: str
    tokens: int
    tokens_total: int
    pages_read: int
    pages_total: int

    @property
    def complete(self) -> bool:
        return self.tokens >= self.tokens_total


@dataclass(frozen=True)
class Status:
    """A snapshot of the engine. ``detail`` is a sentence for the person."""

    state: State
    detail: str
    model: ModelInfo | None = None
    book: BookInfo | None = None
