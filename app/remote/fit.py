"""Whether a book fits into a window whose tokenizer is elsewhere: a guess from its characters. Pure."""

from __future__ import annotations

from engine.document import Document
from engine.fitting import MIN_CHAT_TOKENS, Fit

_CHARACTERS_PER_TOKEN = 3.5  # a careful guess; the server's own count takes its place once it has read the book


def fit_of(document: Document, limit: int) -> Fit:
    """Compare a book with a window of ``limit`` tokens."""
    room, tokens, pages = limit - MIN_CHAT_TOKENS, 0, 0
    for page in document.pages:
        tokens += guess_tokens(page.text)
        pages += tokens <= room
    count = f"{len(document.pages):,} {document.unit}s, about {tokens:,} tokens"
    if tokens <= room:
        return Fit(tokens, limit, True, pages, 0, f"{count} of {limit:,}: it fits.")
    sentence = f"{count}: too long for the window of {limit:,}. The first {pages:,} {document.unit}s fit."
    return Fit(tokens, limit, False, pages, 0, sentence)


def guess_tokens(text: str) -> int:
    return int(len(text) / _CHARACTERS_PER_TOKEN) + 1
