"""Counts and lists what a question asks for over a whole text, by search and without a model.

    found = listed(document, "On which pages is the north light mentioned?")
    found.answer     "3 places on 2 pages, found by search:\\n\\n| | |\\n|---|---|\\n| 4 | the **north light** was |"

A question for all places with some words is answered by ``app.core.find``, and one for the number of tables, figures or
appendices by their labels, such as "Table 2", at the beginning of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from app.core.find import Finder
from app.core.versions import Comparison, compared, plain
from app.trust.citations import placed
from app.trust.quoted import PageSpan
from engine.document import Document
from engine.languages import language_of_question

_MENTIONED = r"(?:mentioned|named|found|discussed|erwähnt|genannt|vor)"
_WANTED = (
    r"[\"“”„«» ]*+(?:the words? |d[ae][sm] wort |the |a |an |der |die |das )?[\"“”„«»]?([^\"“”„«»?]{2,80}?)[\"“”„«» ]*"
)
# A question for all places with some words. Singular "page" asks for a fact instead.
_PLACES = tuple(
    re.compile(rf"\W*{asked.replace('WANTED', _WANTED)}\W*$", re.IGNORECASE)
    for asked in (
        rf"(?:on )?which pages (?:is|are) WANTED {_MENTIONED}",
        r"(?:on )?which pages (?:does|do) WANTED (?:appear|occur|come up|stand)",
        r"(?:which|how many) pages (?:mention|contain|name|have|discuss) WANTED",
        rf"how (?:often|many times) (?:is|are) WANTED {_MENTIONED}",
        r"how (?:often|many times) (?:does|do) WANTED (?:appear|occur|come up)",
        r"(?:(?:list|show|find|give|name)(?: me)? )?(?:all|every)(?: the)? (?:pages?|places?|mentions?|occurrences?) "
        r"(?:with|of|for|containing|mentioning|that (?:mention|contain|have)) WANTED",
        rf"(?:auf welchen seiten|wie oft) (?:wird|werden|kommt|kommen) WANTED {_MENTIONED}",
        r"(?:auf welchen seiten|wie oft) (?:steht|stehen) WANTED",
        r"(?:(?:liste|zeige?|nenne|finde)(?: mir)? )?alle (?:seiten|stellen|erwähnungen) (?:mit|von) WANTED",
    )
)
_KINDS = {
    "table": r"tables?|tabelle",
    "figure": r"fig(?:ure|\.)?|abbildung|abb\.",
    "exhibit": r"exhibit",
    "appendix": r"appendix|annex|anhang|anlage",
    "chapter": r"chapter|kapitel",
}
"""The words before the label of a kind of part."""
_PLURALS = {
    "table": "tables|tabellen",
    "figure": "figures|abbildungen",
    "exhibit": "exhibits",
    "appendix": "appendi(?:ces|xes)|annexes|anhänge|anlagen",
    "chapter": "chapters|kapitel",
}
_HOW_MANY = {
    kind: re.compile(
        rf"\W*(?:how many|wie ?viele) (?:numbered )?(?:{words})(?: (?:are|is|there|in|does|do|has|have|the|this|of|it"
        r"|document|report|paper|book|text|contract|contain|include|total|altogether|gibt|es|hat|sind|das|der|dieses?"
        r"|buch|dokument|bericht|im|enthält))*\W*$",
        re.IGNORECASE,
    )
    for kind, words in _PLURALS.items()
}
_LABELS = {
    kind: re.compile(
        rf"^[\W_]{{0,6}}(?i:{words})[ \t]+((?:\d{{1,3}}(?:\.\d{{1,3}}){{0,2}}|[IVXLC]{{1,6}}|[A-Z])\b)", re.MULTILINE
    )
    for kind, words in _KINDS.items()
}
_SAID = {
    "en": {
        "place": ("{} place", "{} places"),
        "page": ("on {} page", "on {} pages"),
        "section": ("in {} section", "in {} sections"),
        "label": ("{} label", "{} labels"),
    },
    "de": {
        "place": ("{} Stelle", "{} Stellen"),
        "page": ("auf {} Seite", "auf {} Seiten"),
        "section": ("in {} Abschnitt", "in {} Abschnitten"),
        "label": ("{} Nummer", "{} Nummern"),
    },
}
_BY_SEARCH = {"en": "found by search:", "de": "durch Suche gefunden:"}
LISTED = "listed"
_MOST_ROWS = 150
"""Maximum rows of the table."""


def found_by_program(document: Document, question: str) -> Comparison | None:
    """Answer a question that needs no model: how two versions of a text differ, or ``listed``. None for all others."""
    return compared(document, question) or listed(document, question)


def listed(document: Document, question: str) -> Comparison | None:
    """Answer a question for all places with some words, or for the number of labelled parts.

    Returns:
        None if the question asks for something else, or if the text has nothing of it.
    """
    asked_in = language_of_question(question) or "en"
    language = asked_in if asked_in in _SAID else "en"
    said = _SAID[language]
    wanted = next((match[1] for pattern in _PLACES if (match := pattern.match(question))), None)
    if wanted is not None:
        found = Finder().find(document, wanted.strip())
        pages = [
            (document.pages[page].label, [span for hit in hits for span in hit.spans if span.page == page])
            for page, group in groupby(found.hits, key=lambda hit: hit.page)
            for hits in (list(group),)
        ]
        number = f"{len(found.hits)}{'+' if found.more else ''}"
        places = said["place"][len(found.hits) != 1].format(number)
        within = said[document.unit][len(pages) != 1].format(len(pages))
        return _table(document, f"{places} {within}, {_BY_SEARCH[language]}", pages) if pages else None
    kind = next((kind for kind, pattern in _HOW_MANY.items() if pattern.match(question)), None)
    labels = dict(reversed(list(_labelled(document, kind)))) if kind else {}
    if not labels:
        return None
    rows = [(name, [span]) for name, span in reversed(labels.items())]
    labelled = said["label"][len(rows) != 1].format(len(rows))
    return _table(document, f"{labelled}, {_BY_SEARCH[language]}", rows)


def _labelled(document: Document, kind: str) -> Iterator[tuple[str, PageSpan]]:
    """The labels of a kind of part, with their places."""
    for at, page in enumerate(document.pages):
        for match in _LABELS[kind].finditer(page.text):
            end = page.text.find("\n", match.end())
            yield match[1], PageSpan(at, match.start(), end if end >= 0 else len(page.text))


def _table(document: Document, head: str, rows: Sequence[tuple[str, Sequence[PageSpan]]]) -> Comparison:
    """The rows as an answer: what is counted, and the text at its first place."""
    answer, chips = f"{head}\n\n| | |\n|---|---|\n", []
    for name, spans in rows[:_MOST_ROWS]:
        place = placed(document, spans)
        around = place["extract"]
        answer += f"| {plain(name)} |"
        start = len(answer) + 1
        answer += f" {plain(around['before'])}**{plain(around['hit'].strip())}**{plain(around['after'])}"
        chips.append({"kind": "quoted", "at": len(answer), "from": start} | place)
        answer += " |\n"
    left = len(rows) - _MOST_ROWS
    return Comparison(answer.rstrip() + (f"\n\n+ {left}" if left > 0 else ""), chips, LISTED)
