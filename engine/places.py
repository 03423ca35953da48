"""Finds the places of a book that a question names: "on page 14", "the last page", "Table 2", "section 3.1".

    named("What does Table 2 say?", document, 76)        [("Table 2 (page 9)", "Table 2. Fees by age ...")]

A model does not know on which page it is, because the page numbers are not in the text that it reads. So the program
finds the place, and its text stands beside the question. A page is found by the number printed on it, otherwise by its
position in the file. Knows the words of English, German, French and Spanish.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from engine.document import Document, Page

LONGEST = 2400
"""Maximum characters of all places beside a question."""
MOST = 3
"""Maximum number of places."""
_LONGEST_PART = 1600
"""Maximum characters of a section or a table."""
_SHORTEST_PART = 80
"""Minimum characters after a heading. A heading with fewer is a line of the table of contents."""

_PAGE = re.compile(
    r"\b(?:pages?|pp?\.|pg\.?|seiten?|s\.(?= ?\d)|páginas?)\s*(?:no\.?\s*|nr\.?\s*)?(\d{1,5}|[ivxl]{1,7}\b)"
    r"(?:\s*(?:to|and|bis|und|à|et|a|y|[-–])\s*(\d{1,5}))?",
    re.IGNORECASE,
)
_FIRST = re.compile(
    r"\b(?:(?:the|on|of) cover(?: page)?\b|(?:first|title|front) page\b|(?:erste[nr]?|titel)\s?seite\b"
    r"|(?:première page|page de (?:titre|garde)|couverture)\b|(?:primera página|portada)\b)",
    re.IGNORECASE,
)
_LAST = re.compile(r"\b(?:(?:last|final|back) page|letzte[nr]? seite|dernière page|última página)\b", re.IGNORECASE)
_KINDS = {
    "table": "table|tabelle|tableau|tabla",
    "figure": "figure|fig\\.?|abbildung|abb\\.?|figura|chart|exhibit",
    "appendix": "appendix|annex|anhang|anlage|annexe|apéndice|anexo",
    "section": "section|clause|article|paragraph|abschnitt|ziffer|artikel|klausel|sección|cláusula|artículo|§",
    "chapter": "chapter|kapitel|chapitre|capítulo",
}
_NAMED = {
    kind: re.compile(
        rf"(?<!\w)(?i:{words})(?i:s)?\s*(?i:no\.?\s*|nr\.?\s*)?(\d{{1,3}}(?:\.\d{{1,3}}){{0,3}}|[A-Z]\b|[IVX]{{1,6}}\b)"
    )
    for kind, words in _KINDS.items()
}


def named(question: str, document: Document, pages_read: int) -> list[tuple[str, str]]:
    """Find the places that a question names, among the pages read so far. Each is its name, with its page, and its
    text. Empty if it names none, or if the book has none of them.
    """
    pages = document.pages[:pages_read]
    texts: list[tuple[str, str]] = []
    room = LONGEST
    for name, text in [*_pages(question, document, pages), *_parts(question, document, pages)][:MOST]:
        text = "\n".join(line for line in re.sub(r"[ \t]+", " ", text[:room]).split("\n") if line.strip())
        if text and room > _SHORTEST_PART:
            texts.append((name, text))
            room -= len(text)
    return texts


def beside(question: str, places: Sequence[tuple[str, str]]) -> str:
    """Return the question with the places before it, because the prompt should end with the question."""
    return "\n".join((*(f"{name}:\n{text}\n" for name, text in places), question))


def _pages(question: str, document: Document, pages: Sequence[Page]) -> Iterator[tuple[str, str]]:
    for match in _PAGE.finditer(question):
        first, last = match[1], match[2] or match[1]
        wanted = [str(number) for number in range(int(first), int(last) + 1)] if first.isdigit() else [first.lower()]
        printed = [page for page in pages if page.label.lower() in wanted]
        counted = [page for page in pages if str(_position(page, document)) in wanted]
        yield from ((_called(page, document), page.text) for page in printed or counted)
    if _FIRST.search(question):
        yield from ((_called(page, document), page.text) for page in pages if _position(page, document) == 1)
    if _LAST.search(question) and len(pages) == len(document.pages):
        ends = [page for page, after in zip(pages, [*pages[1:], None], strict=True) if _ends(page, after, document)]
        yield from ((_called(page, document), page.text) for page in ends)


def _ends(page: Page, after: Page | None, document: Document) -> bool:
    """Whether a page is the last one of a document."""
    return after is None or document.member_at(page.number) != document.member_at(after.number)


def _position(page: Page, document: Document) -> int:
    member = document.member_at(page.number)
    return page.number - (member.page_offset if member else 0)


def _called(page: Page, document: Document) -> str:
    member = document.member_at(page.number)
    unit = (member or document).unit.capitalize()
    return f"{unit} {page.label or _position(page, document)}{f' of {member.title}' if member else ''}"


def _parts(question: str, document: Document, pages: Sequence[Page]) -> Iterator[tuple[str, str]]:
    """Find sections, tables and the like by their headings."""
    for kind, pattern in _NAMED.items():
        for number in dict.fromkeys(match[1] for match in pattern.finditer(question)):
            candidates = [
                (page, text) for page in pages for text in _under(page, kind, number) if len(text) >= _SHORTEST_PART
            ]
            if candidates:
                page, text = candidates[0]
                yield f"{kind.capitalize()} {number} ({_called(page, document).lower()})", text


def _under(page: Page, kind: str, number: str) -> Iterator[str]:
    """The texts of a page that stand below a heading with this number, up to the next heading of the kind."""
    word, bare, next_bare = rf"(?:{_KINDS[kind]})s?\s*", "", ""
    if kind in ("section", "chapter") and number[0].isdigit():
        # a heading may be a number and a title, without the word
        bare = rf"|{re.escape(number)}[.)]?[ \t]+(?=[^\W\d_])"
        next_bare = rf"|\d{{1,3}}(?:\.\d{{1,3}}){{0,{number.count('.')}}}[.)]?[ \t]+[^\W\d_]"
    heading, following = (
        re.compile(rf"^[ \t#*_]*(?:{pattern})", re.IGNORECASE | re.MULTILINE)
        for pattern in (rf"{word}{re.escape(number)}(?!\w|\.\d){bare}", rf"{word}(?:\d|[A-Z]\b){next_bare}")
    )
    for match in heading.finditer(page.text):
        after = following.search(page.text, match.end())
        yield page.text[match.start() : after.start() if after else len(page.text)][:_LONGEST_PART].strip()
