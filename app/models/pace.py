"""What a model would do with a book of 300 pages on this machine, before it is downloaded: arithmetic, as a range.

Reading computes: every weight and the attention of every token to all before it. Writing moves: weights and cache once
for every token without guesses. The machine's rates are measured once (``engine.plan.hardware.machine_rates``), the
model's numbers are those of ``app.models.fit``. What was seen of a model here says it better
(``app.core.forecast.Experience``).
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.forecast import PROBED, WORDS_PER_TOKEN, Span, expected
from app.models.fit import BOOK_PAGES, BOOK_TOKENS, TOKENS_PER_PAGE, FreeMemory, ModelFit, ModelShape
from engine.plan.hardware import MachineRates

_SHARE = 0.6  # of its largest products that a machine reaches over a whole model
_WIDTH = 12  # a block of the usual kind has so many times its width squared as weights
_GUESSED = 2.5  # so many times as fast is a quotation written as by plain steps (assets/measurements)


@dataclass(frozen=True)
class Pace:
    """``pages`` of a book of 300 that the model takes here; seconds to read them, words a second behind them."""

    pages: int
    reading: Span
    writing: Span

    @property
    def words(self) -> str:
        """For a person: "A 300-page book: about 8 min to read, then 5 to 12 words a second"."""
        book = f"A {BOOK_PAGES}-page book" if self.pages == BOOK_PAGES else f"Up to {self.pages} pages of a book"
        return f"{book}: {expected(self.reading, self.writing)}."


def pace(shape: ModelShape, found: ModelFit, free: FreeMemory, rates: MachineRates) -> Pace | None:
    """What is to be expected; None where the model does not fit.

    Args:
        found: as ``fit_pair`` says of this model and ``free``.
    """
    tokens = min(BOOK_TOKENS, shape.window, max(found.tokens, found.spilled))
    if found.verdict == "none" or tokens < TOKENS_PER_PAGE:
        return None
    pages = min(BOOK_PAGES, tokens // TOKENS_PER_PAGE)
    kv = tokens * found.kv_per_1k / 1000
    blocks = shape.parameters - shape.embeddings
    width = (blocks / shape.layers / _WIDTH) ** 0.5
    work = 2.0 * blocks * tokens + 2.0 * shape.layers * width * tokens**2
    spilled = max(0.0, tokens - found.tokens) / tokens * kv
    slower = rates.bus if free.on_gpu else rates.disk
    moved = spilled / slower if slower else 0.0
    step = max((found.weights + kv - spilled) / rates.memory, moved)
    reading = max(work / (_SHARE * rates.flops), moved)
    plain = WORDS_PER_TOKEN / step
    return Pace(pages, Span.about(reading, PROBED**0.5), Span(plain / PROBED**0.5, plain * _GUESSED))
