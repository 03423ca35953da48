"""Two runs as data, and the comparison of them. Pure; knows no engine at work and no page."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine.events import AnswerDone, Figures, StopReason, TextDelta


@dataclass(frozen=True)
class Lane:
    """One run. ``steps`` are (milliseconds since decoding began, by the engine's clock; text that came)."""

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
class Result:
    """A race that was run to its end.

    Args:
        number: of the race since the program began.
        when: seconds since the epoch.
    """

    number: int
    question: str
    book: str
    when: float
    plain: Lane
    fast: Lane
    same: int = field(init=False)

    def __post_init__(self) -> None:
        pairs = enumerate(zip(self.plain.token_ids, self.fast.token_ids, strict=False))
        shorter = min(len(self.plain.token_ids), len(self.fast.token_ids))
        object.__setattr__(self, "same", next((at for at, (a, b) in pairs if a != b), shorter))

    @property
    def tokens(self) -> int:
        """Of the longer text."""
        return max(len(self.plain.token_ids), len(self.fast.token_ids))

    @property
    def identical(self) -> bool:
        return self.same == self.tokens and self.tokens > 0

    @property
    def times(self) -> float | None:
        """How many times as fast per token the second run was; None without a measurement."""
        a, b = self.plain.figures, self.fast.figures
        if a is None or b is None or not a.ms_per_token_mean or not b.ms_per_token_mean:
            return None
        return a.ms_per_token_mean / b.ms_per_token_mean


def spent_ms(figures: Figures | None) -> float:
    """Decoding time so far, as the engine measured it."""
    return (figures.ms_per_token_mean or 0.0) * figures.answer_tokens if figures else 0.0
