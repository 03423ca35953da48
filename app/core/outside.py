"""Says what of an answer stands in the book outside the part that is open: "Not in pages 48 to 69, but elsewhere in the
book: Zebulon (page 227)".

The page, the terminal and ``/v1`` add the result to the notes of an answer (``app.trust.citations``);
``app.core.format`` makes the sentence.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from app.core.document_kind import called_record
from app.core.format import page_of, places_named
from app.language.words import FORMS_OF_ADDRESS, fold_word
from app.trust.not_found import nouns_of
from engine.document import Document, Page


def text_record(part: Document, whole: Document | None, missing: Sequence[str] | None) -> dict[str, Any]:
    """What the notes of an answer keep of the text that was asked. "called": what sentences call it, unless it is a
    book. "part", if only a part of it is open: which pages that is ("where"), and the pages outside it with words that
    it lacks ("elsewhere").

    Args:
        whole: the book with all its pages, if it is known.
        missing: the words that the part lacks; None if it lacks nothing.
    """
    record = called_record(whole or part)
    where = open_part(part, whole)
    if missing is None or whole is None or not where:
        return record
    places = {word: page_of(whole, page, long=True) for word, page in _outside(missing, part, whole).items()}
    return record | {"part": {"where": where, "elsewhere": places}}


def asked_record(question: str, part: Document, whole: Document | None) -> dict[str, Any]:
    """The same for a question of which the open part has no passage: its nouns that only other pages have are the
    missing words. {} if there are none.
    """
    nouns = (word for word in nouns_of(question) if fold_word(word) not in FORMS_OF_ADDRESS)
    record = text_record(part, whole, sorted(nouns, key=question.find))
    elsewhere = list(record.get("part", {}).get("elsewhere", ()))
    return {"missing": elsewhere, **record} if elsewhere else {}


def open_part(part: Document, whole: Document | None) -> str:
    """The open pages of a book, within a sentence: "pages 48 to 69"; "" if all of it is open, or not known."""
    if whole is None or whole is part or whole.sha256 != part.sha256 or not part.pages:
        return ""
    numbers = [page.number for page in part.pages]
    together = numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    if together and not part.members:
        return places_named([{"label": page.label} for page in (part.pages[0], part.pages[-1])], part.unit)
    return "the chosen pages" if part.unit == "page" else "the chosen sections"


def _outside(words: Sequence[str], part: Document, whole: Document) -> dict[str, Page]:
    """The first page outside ``part`` of ``whole`` for each of ``words`` that stands on such a page."""
    here = {page.number for page in part.pages}
    pages = {}
    for word in words:
        pattern = re.compile(rf"(?<!\w){re.escape(word)}(?!\w)", re.IGNORECASE)
        page = next((page for page in whole.pages if page.number not in here and pattern.search(page.text)), None)
        if page is not None:
            pages[word] = page
    return pages
