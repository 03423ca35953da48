"""Describes whether a target model and its draft model fit on this machine, and how long a book will take.

``engine.plan`` computes the numbers. Times are estimates and given as ranges. Observations on this machine replace them
(``app.core.forecast.Experience``).
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.forecast import PROBED, WORDS_PER_TOKEN, Range, expected
from app.core.format import size
from engine.plan import (
    BITS,
    BOOK_TOKENS,
    SHORTEST_BOOK,
    FreeMemory,
    MachineRates,
    ModelFit,
    ModelShape,
    Rounding,
    book_times,
    gpu_class,
    retrieval_gain,
)

BOOK_PAGES = 300

TOKENS_PER_PAGE = BOOK_TOKENS // BOOK_PAGES
"""Tokens of a printed page of ``PAGE_WORDS`` words."""

PAGE_WORDS = 300
"""Words of a printed page, as a paperback has them."""

_CHAT_TOKENS = 1_024
"""Tokens of a context window shorter than ``BOOK_TOKENS`` that are kept free for a question and its answer."""

_GUESSED = 2.5
"""Maximum speed of an answer, as a multiple of plain decoding's speed. Measured with quotations
(assets/measurements).
"""


def fit_in_words(found: ModelFit) -> str:
    """Say whether a pair of models fits into memory, and how long a book may be."""
    rounded = " The file's weights are rounded to 4 or 8 bits to fit the GPU." if found.rounded_file else ""
    return f"{_memory_in_words(found)}{rounded}"


def _memory_in_words(found: ModelFit) -> str:
    free = found.free
    if not found.loads:
        return (
            f"Does not fit: its weights are stored in 4 bits, take {size(found.loading)} of memory when they are "
            f"loaded, and {size(found.loading_room)} are free."
        )
    if found.verdict == "none":
        return (
            f"Does not fit: it needs {size(found.weights)} and room for a book, "
            f"and {size(max(0, sum(free.cards)))} of {_where(free)} are free."
        )
    if found.verdict == "whole":
        return f"Fits, with books of up to {_books(found.tokens)}."
    slower = "partly in slower memory or on disk" if free.on_gpu else "partly on disk"
    if found.tokens < SHORTEST_BOOK:
        return f"Fits, with little {_where(free)} left for books: they lie {slower}, and answers are slow."
    longer = "" if found.spilled <= found.tokens else f" Longer ones lie {slower}, and answers are slower."
    return f"Fits, with books of up to {_books(found.tokens)} in {_where(free)}.{longer}"


def _where(free: FreeMemory) -> str:
    if free.others:
        return f"memory on {len(free.cards)} GPUs"
    return "GPU memory" if free.on_gpu else "memory"


def gain_in_words(target: ModelShape, found: ModelFit) -> str:
    """For a model that attends to the whole book in only some of its layers, state the maximum speedup that the
    retrieval cache gives to answers after a book of 300 pages. Return "" for a model that attends to the whole book in
    all layers.
    """
    gain = retrieval_gain(target, found)
    if gain is None:
        return ""
    pages = pages_of(min(BOOK_TOKENS, target.window))
    return (
        f"{target.reading_layers} of its {target.layers} layers read the whole book: after {pages:,} pages the "
        f"retrieval cache makes answers {gain:.1f} times as fast at most. Quotations gain as with other models."
    )


def gpu_in_words(target: ModelShape, draft: ModelShape | None) -> str:
    """Name the smallest GPU memory that is large enough for a target and draft model and a book of 32,768 tokens: once
    with the weights as stored, and once with weights in 4 bits. Return "" if none is large enough.
    """
    whole, rounded = (gpu_class(target, draft, weights) for weights in ("stored", "4bit"))
    if whole is None:
        return f"GPU of {rounded} GB with weights in 4 bits" if rounded else ""
    return f"GPU of {whole} GB" + (f", of {rounded} with weights in 4 bits" if rounded and rounded < whole else "")


def rounding_in_words(rounding: Rounding) -> str:
    """Describe the formats in ``rounding``, such as "4-bit weights and an 8-bit cache"."""
    bits = [f"{BITS[rounding.weights]}-bit weights"] if rounding.weights else []
    return " and ".join(bits + (["an 8-bit cache"] if rounding.kv else []))


def rounding_options(rounding: Rounding) -> str:
    """Return the formats in ``rounding`` as command-line options, such as "--weights 4bit --kv 8bit"."""
    return f"--weights {rounding.weights}" + (f" --kv {rounding.kv}" if rounding.kv else "")


def pages_of(tokens: int) -> int:
    """Return how many printed pages fit into a context of ``tokens`` tokens. If the context is shorter than a book of
    300 pages, tokens for a question and its answer are subtracted first.
    """
    return max(1, (tokens if tokens >= BOOK_TOKENS else tokens - _CHAT_TOKENS) // TOKENS_PER_PAGE)


def _books(tokens: int) -> str:
    return f"about {pages_of(tokens):,} pages"


@dataclass(frozen=True)
class Pace:
    """Expected times for a book.

    ``wanted``: pages of the book. ``pages``: those of them that fit. ``reading``: seconds to read the pages that fit.
    ``writing``: words per second of an answer after these pages.
    """

    pages: int
    reading: Range
    writing: Range
    wanted: int = BOOK_PAGES

    @property
    def words(self) -> str:
        """Describe the times, such as "A 300-page book: about 8 min to read, then 5 to 12 words a second"."""
        book = f"A {self.wanted}-page book" if self.pages == self.wanted else f"Up to {self.pages} pages of a book"
        return f"{book}: {expected(self.reading, self.writing)}."


def pace(shape: ModelShape, found: ModelFit, rates: MachineRates, pages: int = BOOK_PAGES) -> Pace | None:
    """Estimate the times for a book of ``pages``, or for the pages that fit. Return None if not even one page fits.

    Args:
        shape: dimensions of the target model.
        found: result of ``fit_pair`` for this model.
        rates: speeds of this machine.
    """
    times = book_times(shape, found, rates, pages * TOKENS_PER_PAGE)
    if times is None or times.tokens < TOKENS_PER_PAGE:
        return None
    fit = min(pages, pages_of(min(shape.window, max(found.tokens, found.spilled))))
    plain = WORDS_PER_TOKEN / times.step_s
    reading = Range.about(times.reading_s, PROBED**0.5)
    return Pace(fit, reading, Range(plain / PROBED**0.5, plain * _GUESSED), pages)
