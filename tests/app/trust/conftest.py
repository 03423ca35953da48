"""A small book of pages that citations are looked up in."""

from __future__ import annotations

from engine.document import Document, Page

PAGES = (
    "Chapter one. It was Maren Holt who kept the north light, as her\nmother had kept it before her.",
    "The oﬃce of the lamp-\nlighters stood at the harbour. “We light the lamps,” she said, “and nobody else",
    "does.” The bread takes 10.5 pounds of flour and 1,912 grains of salt. It was Maren Holt who kept the books.",
    "The café — its owner’s pride — was shut. Nobody came to the harbour in the winter of that year.",
)


def make(*texts: str) -> Document:
    pages = tuple(Page(number, str(number), text) for number, text in enumerate(texts, start=1))
    return Document("Orre", "", pages, "txt", "0" * 64)
