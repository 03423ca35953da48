"""Two runs as data, and the comparison of them. Pure; knows no engine at work and no page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from engine.events import AnswerDone, Figures, StopReason, TextDelta


@dataclass(frozen=True)
class Lane:
    """One run of one question. ``steps`` are (milliseconds since decoding began, by the engine's clock; new text)."""

    mode: str
    steps: tuple[tuple[float, str], ...] = ()
    token_ids: tuple[int, ...] = ()
    figures: Figures | None = None
    stop_reason: StopReason | None = None

    @property
    def ms(self) -> float:
        """Milliseconds of decoding: from the question in the cache to the last token."""
        return spent_ms(self.figures)

    @property
    def done(self) -> bool:
        return self.stop_reason is not None

    def take(self, event: object) -> Lane:
        """The lane with one more event of the engine."""
        if isinstance(event, TextDelta):
            at = round(spent_ms(event.figures), 2)
            ids = self.token_ids + event.token_ids
            return replace(self, steps=(*self.steps, (at, event.text)), token_ids=ids, figures=event.figures)
        if isinstance(event, AnswerDone):
            return replace(self, token_ids=event.token_ids, figures=event.figures, stop_reason=event.stop_reason)
        return self


@dataclass(frozen=True)
class Heat:
    """One question, answered by both."""

    question: str
    plain: Lane
    fast: Lane

    @property
    def same(self) -> int:
        """Tokens at the start of both answers that are equal."""
        pairs = enumerate(zip(self.plain.token_ids, self.fast.token_ids, strict=False))
        shorter = min(len(self.plain.token_ids), len(self.fast.token_ids))
        return next((at for at, (a, b) in pairs if a != b), shorter)

    @property
    def tokens(self) -> int:
        """Of the longer answer."""
        return max(len(self.plain.token_ids), len(self.fast.token_ids))


@dataclass(frozen=True)
class Result:
    """A race that was run to its end.

    Args:
        number: of the race since the program began.
        book: its hash.
        when: seconds since the epoch.
        heats: its questions in order; one whose answers differ is the last.
    """

    number: int
    book: str
    when: float
    heats: tuple[Heat, ...]

    @property
    def question(self) -> str:
        return self.heats[0].question

    @property
    def plain(self) -> tuple[Lane, ...]:
        return tuple(heat.plain for heat in self.heats)

    @property
    def fast(self) -> tuple[Lane, ...]:
        return tuple(heat.fast for heat in self.heats)

    @property
    def same(self) -> int:
        return self._total(lambda heat: heat.same)

    @property
    def tokens(self) -> int:
        """Of the longer texts."""
        return self._total(lambda heat: heat.tokens)

    @property
    def identical(self) -> bool:
        return self.same == self.tokens and self.tokens > 0

    @property
    def times(self) -> float | None:
        """How many times as fast per token the second run was; None without a measurement."""
        plain, fast = mean_ms(self.plain), mean_ms(self.fast)
        return plain / fast if plain and fast else None

    def _total(self, of: Callable[[Heat], int]) -> int:
        return sum(of(heat) for heat in self.heats)


def spent_ms(figures: Figures | None) -> float:
    """Decoding time so far, as the engine measured it."""
    return (figures.ms_per_token_mean or 0.0) * figures.answer_tokens if figures else 0.0


def mean_ms(lanes: tuple[Lane, ...]) -> float | None:
    """Milliseconds per token over several answers; None without a measurement of each."""
    tokens = sum(lane.figures.answer_tokens for lane in lanes if lane.figures)
    measured = all(lane.figures is not None and lane.figures.ms_per_token_mean for lane in lanes)
    return sum(lane.ms for lane in lanes) / tokens if tokens and measured else None
