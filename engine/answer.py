"""One answer in the making: its text, its figures, and the pages that were read for it.

Collects the rounds of a decoding loop and turns them into events. Knows no model and no cache: durations and scores
are handed in.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from engine.events import AnswerDone, KvBytes, PagesScored, Round, Stage, StopReason, TextDelta
from engine.metrics import Meter
from engine.pages import PageScores
from engine.tokenizer import TextStream


@dataclass
class Answer:
    """What has been answered so far.

    Args:
        meter: counts the rounds.
        stream: turns tokens into text.
        pages: sums scores by page.
        asked: when the question came (``time.perf_counter`` seconds).
    """

    meter: Meter
    stream: TextStream
    pages: PageScores
    asked: float
    text: str = ""
    reason: StopReason = StopReason.LENGTH
    tokens: list[int] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    readings: list[PagesScored] = field(default_factory=list)
    _scored: int = 0  # answer tokens that page scores have been told for
    _lengths: tuple[int, ...] = ()  # characters that each token of the newest round completed

    def add(self, done: Round, elapsed_ms: float, since_asked_s: float) -> str:
        """Take a round; the text that became complete with it."""
        self.meter.add(done, elapsed_ms, since_asked_s)
        if done.ended:
            self.reason = StopReason.END
        pieces = [self.stream.add((token,)) for token in done.tokens]
        self._lengths = tuple(map(len, pieces))
        text = "".join(pieces)
        self.text += text
        self.tokens += done.tokens
        self.stages += done.stages
        return text

    def delta(self, text: str, done: Round, kv_bytes: KvBytes, context_tokens: int) -> TextDelta:
        """The event of a round that ``add`` took."""
        figures = self.meter.figures(kv_bytes, context_tokens)
        return TextDelta(text, done.tokens, done.stages, figures, self._lengths)

    def scored(self, chunk_scores: torch.Tensor | None) -> PagesScored:
        """The event of new chunk scores: they belong to the tokens that came since the last ones."""
        first, self._scored = self._scored, len(self.tokens)
        self.readings.append(PagesScored(self.pages.add(chunk_scores), first, self._scored - 1))
        return self.readings[-1]

    def done(self, kv_bytes: KvBytes, context_tokens: int) -> AnswerDone:
        """The last event."""
        return AnswerDone(
            answer=self.text,
            token_ids=tuple(self.tokens),
            stages=tuple(self.stages),
            stop_reason=self.reason,
            figures=self.meter.figures(kv_bytes, context_tokens),
            page_scores=self.pages.overall(),
            readings=tuple(self.readings),
        )

    def flush(self) -> str:
        """Text that was held back, at the end."""
        tail = self.stream.flush()
        self.text += tail
        return tail
