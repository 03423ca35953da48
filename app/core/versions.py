"""Compares two documents that are versions of one text, by their words and without a model.

    found = compared(document, "Where do the two documents differ?")
    found.answer     "2 differences, found word by word:\\n\\n| | Lease 2023 | Lease 2024 |\\n..."
    found.chips      the places of both versions, as the notes of an answer have them

Clauses are aligned by their words and their numbers: equal ones first, then those most alike between them. A clause
that was renumbered but not changed is no difference. Case, line breaks and the form of quotation marks do not count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cached_property
from typing import Any

from app.language.tokens import LETTERS, PRINTED
from app.language.words import fold_word, says_nothing, without_ending
from app.trust.citations import placed
from app.trust.quoted import PageSpan, sentences
from engine.document import Document, Page
from engine.languages import language_of_question

_DIFFER = re.compile(
    r"\b(?:differ\w*|chang\w*|compar\w*|versions?|unterschied\w*|unterscheid\w*|geändert|änderung\w*|vergleich\w*"
    r"|diff[èé]r\w*|chang[eé]\w*|difieren?|diferen\w*|cambi\w*)\b",
    re.IGNORECASE,
)
_OF_ANY = (
    "differ different differenc difference differences change changes changed changing compare compared comparison "
    "version versions document documents text texts file files contract contracts lease leases letter letters "
    "report reports book books paper papers agreement agreements old new first second two both each other between "
    "list show all every whole exactly main clause clauses point points word words table dokument dokumente "
    "dokumenten texte texten vertrag verträge verträgen unterschied unterschiede unterscheiden unterscheidet "
    "geändert änderung änderungen vergleiche vergleich fassung fassungen beide beiden worin alle textes différent "
    "diffèrent différence différences documentos textos difieren diferencias versión versiones"
)
"""Words of a question for any difference."""
# A clause begins after an empty line, at a row of a table, or at a number or a sign of a list.
_BREAK = re.compile(
    r"\n[ \t]*\n\s*"
    r"|\n(?=[ \t]*(?:\d{1,3}(?:\.\d{1,3}){0,4}[.)]?\s|\([a-z\d]{1,3}\)\s|[a-z]\)\s|[-*•–]\s|§\s?\d|#{1,6}\s"
    r"|(?:Article|Section|Clause|Artikel|Abschnitt|Ziffer|Chapter)\s+[\dIVX]))"
)
_ROW = re.compile(r"[^\n]+")
_ALL = re.compile(r".+", re.DOTALL)
_LABEL = re.compile(
    r"\s*(?:#{1,6}\s+)?(\(?(?:\d{1,3}(?:\.\d{1,3}){0,4}|[a-z])[.)]?(?=\s)|§\s?\d+\w?"
    r"|(?:Article|Section|Clause|Artikel|Abschnitt|Ziffer|Chapter)\s+[\dIVX]+)[.:)]?\s*",
)
_PIECES = re.compile(r"\S+|\s+")
_OPEN_END = re.compile(r"[^\s.;:!?|”\"»)]\s*$")
_MARKUP = re.compile(r"([\\*_`\[\]<>|~])")
_ALIKE = 0.45
"""Minimum likeness of two clauses that count as versions of one another."""
_SAME_LABEL = 0.15
"""What the same number of two clauses adds to their likeness."""
_VERSIONS = 0.5
"""Minimum share of the words of two documents in clauses that are alike, for the documents to be versions of one text.
"""
_LONG = 40
"""Minimum words of two clauses that are compared sentence by sentence."""
_MOST_CLAUSES = 4000
"""Maximum clauses of a document that is compared."""
_MOST_PAIRS = 60_000
"""Maximum pairs of clauses that are compared between two equal ones. Beyond this, they count as removed and added."""
_MOST_ROWS = 150
"""Maximum rows of the table."""
_LONGEST_CELL = 600
"""Maximum characters of a clause in the table."""
_HEADING = 8
"""Maximum words of a clause without a full stop that is taken for a heading."""
_SAID = {
    "en": (
        "{} differences, found word by word",
        "1 difference, found word by word",
        "Both have the same words.",
        "moved",
    ),
    "de": (
        "{} Unterschiede, Wort für Wort gefunden",
        "1 Unterschied, Wort für Wort gefunden",
        "Beide haben dieselben Wörter.",
        "verschoben",
    ),
}


@dataclass
class _Clause:
    """A clause of a document: its text without its number, the number, the heading above it, and its places."""

    text: str
    label: str
    heading: str
    spans: tuple[PageSpan, ...]

    @cached_property
    def words(self) -> tuple[str, ...]:
        return tuple(word.casefold() for word in PRINTED.findall(self.text.replace("’", "'")))

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(self.words)


_Pair = tuple[_Clause | None, _Clause | None]


COMPARED = "compared"


@dataclass(frozen=True)
class Comparison:
    """The differences of two documents, as an answer in Markdown and with ``chips``, the citations of both places.
    ``made``: how the program found the answer, "compared" or, for a list of places (``app.core.listed``), "listed".
    """

    answer: str
    chips: list[dict[str, Any]] = field(default_factory=list)
    made: str = COMPARED


def compared(document: Document, question: str) -> Comparison | None:
    """Compare the two documents of a book.

    Returns:
        None if the question does not ask for differences, if the book has not two documents, if these are no versions
        of one text, or if the question asks for something in which they do not differ.
    """
    if len(document.members) != 2 or not _DIFFER.search(question):
        return None
    one, other = (_clauses(document, number) for number in (0, 1))
    if not one or not other or max(len(one), len(other)) > _MOST_CLAUSES:
        return None
    pairs = list(_aligned(one, other))
    if _share_alike(pairs) < _VERSIONS:
        return None
    changes = list(_without_moved(pair for pair in pairs if _differs(pair)))
    if wanted := subject(question, document):
        changes = [pair for pair in changes if any(wanted & _keys(clause.text) for clause in pair if clause)]
        if not changes:
            return None
    return _told(document, list(_finer(changes)), _SAID.get(language_of_question(question) or "en", _SAID["en"]))


def _clauses(document: Document, number: int) -> list[_Clause]:
    """The clauses of one of two documents. A clause may go on at the next page."""
    border = document.members[1].page_offset
    pages = [(at, page) for at, page in enumerate(document.pages) if (page.number > border) == bool(number)]
    clauses: list[tuple[str, tuple[PageSpan, ...]]] = []
    for at, page in pages:
        for index, (start, end) in enumerate(_stretches(page)):
            text = " ".join(page.text[start:end].split())
            span = PageSpan(at, start, end)
            goes_on = index == 0 and clauses and _OPEN_END.search(clauses[-1][0]) and text[:1].islower()
            if goes_on:
                before, spans = clauses[-1]
                clauses[-1] = f"{before} {text}", (*spans, span)
            else:
                clauses.append((text, (span,)))
    return list(_with_headings(clauses))


def _stretches(page: Page) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each clause of a page. Each row of a table is one."""
    start = 0
    for match in [*_BREAK.finditer(page.text), None]:
        end = match.start() if match else len(page.text)
        pattern = _ROW if " | " in page.text[start:end] else _ALL
        for clause in pattern.finditer(page.text, start, end):
            body = clause[0].strip()
            if body:
                first = page.text.index(body, clause.start())
                yield first, first + len(body)
        start = match.end() if match else end


def _with_headings(found: Sequence[tuple[str, tuple[PageSpan, ...]]]) -> Iterator[_Clause]:
    heading = ""
    for text, spans in found:
        label = _LABEL.match(text)
        body = text[label.end() :] if label else text
        clause = _Clause(body or text, label[1].strip("().") if label else "", heading, spans)
        if len(body.split()) <= _HEADING and not body.rstrip().endswith((".", ";", ",", "|")) and "|" not in body:
            heading = body or text
        yield clause


def _aligned(one: Sequence[_Clause], other: Sequence[_Clause]) -> Iterator[_Pair]:
    """Pair the clauses of two documents in order. A clause without a partner has None."""
    match = SequenceMatcher(None, [clause.words for clause in one], [clause.words for clause in other], autojunk=False)
    for kind, start, end, first, last in match.get_opcodes():
        if kind == "equal":
            yield from zip(one[start:end], other[first:last], strict=True)
        else:
            yield from _best_pairs(one[start:end], other[first:last])


def _best_pairs(one: Sequence[_Clause], other: Sequence[_Clause]) -> Iterator[_Pair]:
    """Pair clauses in order so that the sum of their likeness is largest."""
    if len(one) * len(other) > _MOST_PAIRS:
        yield from ((clause, None) for clause in one)
        yield from ((None, clause) for clause in other)
        return
    best = [[0.0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for left in range(len(one) - 1, -1, -1):
        for right in range(len(other) - 1, -1, -1):
            alike = _likeness(one[left], other[right])
            both = best[left + 1][right + 1] + alike if alike >= _ALIKE else 0.0
            best[left][right] = max(both, best[left + 1][right], best[left][right + 1])
    left = right = 0
    while left < len(one) or right < len(other):
        if left == len(one) or (right < len(other) and best[left][right] == best[left][right + 1]):
            yield None, other[right]
            right += 1
        elif right == len(other) or best[left][right] == best[left + 1][right]:
            yield one[left], None
            left += 1
        else:
            yield one[left], other[right]
            left, right = left + 1, right + 1


def _likeness(one: _Clause, other: _Clause) -> float:
    """How alike two clauses are, from 0 to 1 and a little more if they have the same number."""
    shared = sum((one.counts & other.counts).values())
    alike = 2 * shared / max(1, len(one.words) + len(other.words))
    return alike + (_SAME_LABEL if one.label and one.label == other.label else 0.0)


def _differs(pair: _Pair) -> bool:
    one, other = pair
    return one is None or other is None or one.words != other.words


def _share_alike(pairs: Sequence[_Pair]) -> float:
    """The share of the longer document's words that stand in clauses with a partner, weighed by their likeness."""
    totals = [sum(len(clause.words) for pair in pairs if (clause := pair[side]) is not None) for side in (0, 1)]
    alike = sum(
        min(1.0, _likeness(one, other)) * min(len(one.words), len(other.words)) for one, other in pairs if one and other
    )
    return alike / max(1, *totals)


def _without_moved(pairs: Iterator[_Pair]) -> Iterator[_Pair]:
    """Pair a clause that was removed at one place and added at another."""
    every = list(pairs)
    added = {other.words: other for one, other in every if one is None and other is not None}
    removed = {one.words for one, other in every if other is None and one is not None}
    for one, other in every:
        if other is None and one is not None:
            yield one, added.get(one.words)
        elif one is not None or (other is not None and other.words not in removed):
            yield one, other


def _finer(pairs: Sequence[_Pair]) -> Iterator[_Pair]:
    """Compare long clauses sentence by sentence."""
    for one, other in pairs:
        if one is None or other is None or max(len(one.words), len(other.words)) < _LONG or one.words == other.words:
            yield one, other
            continue
        yield from filter(_differs, _aligned(list(_sentences(one)), list(_sentences(other))))


def _sentences(clause: _Clause) -> Iterator[_Clause]:
    for span in sentences(clause.text):
        yield _Clause(clause.text[span.start : span.end], clause.label, clause.heading, clause.spans)


def _keys(text: str) -> set[str]:
    return {without_ending(fold_word(word)) for word in LETTERS.findall(text) if not says_nothing(word)}


def subject(question: str, document: Document) -> set[str]:
    """The words of a question for one thing in which the documents may differ; empty if it asks for all."""
    titles = _keys(" ".join(member.title for member in document.members))
    return _keys(question) - titles - _keys(_OF_ANY)


def _told(document: Document, changes: Sequence[_Pair], said: tuple[str, str, str, str]) -> Comparison:
    """Tell the differences as a table, with the place of each text behind it."""
    many, single, none, moved = said
    if not changes:
        return Comparison(none)
    titles = (plain(member.title) for member in document.members)
    answer = (
        f"{single if len(changes) == 1 else many.format(len(changes))}:\n\n| | {' | '.join(titles)} |\n|---|---|---|\n"
    )
    chips: list[dict[str, Any]] = []
    for one, other in changes[:_MOST_ROWS]:
        first = one or other
        assert first is not None
        name = " ".join(filter(None, (first.label, plain(first.heading.strip()))))
        note = f" ({moved})" if one and other and one.words == other.words else ""
        answer += f"| {name}{note} |"
        for clause, text in zip((one, other), _marked(one, other), strict=True):
            start = len(answer) + 1
            answer += f" {text}"
            if clause is not None:
                chip = {"kind": "quoted", "at": len(answer), "from": start}
                chips.append(chip | placed(document, clause.spans))
            answer += " |"
        answer += "\n"
    left = len(changes) - _MOST_ROWS
    return Comparison(answer.rstrip() + (f"\n\n+ {left}" if left > 0 else ""), chips)


def _marked(one: _Clause | None, other: _Clause | None) -> tuple[str, str]:
    """The texts of two clauses in Markdown, with the words in bold that only one of them has; "–" without a clause."""
    if one is None or other is None or one.words == other.words:
        first, second = (plain(_cut(clause.text)) if clause else "–" for clause in (one, other))
        return first, second
    old, new = (_PIECES.findall(clause.text) for clause in (one, other))
    folded = [[piece.casefold() for piece in pieces] for pieces in (old, new)]
    codes = SequenceMatcher(None, folded[0], folded[1], autojunk=False).get_opcodes()
    return (
        _bold([(old[start:end], kind != "equal") for kind, start, end, _, _ in codes]),
        _bold([(new[start:end], kind != "equal") for kind, _, _, start, end in codes]),
    )


def _bold(runs: Sequence[tuple[list[str], bool]]) -> str:
    """Join runs of words. Changed runs are bold."""
    text = ""
    for pieces, changed in runs:
        run = "".join(pieces)
        body = run.strip()
        if not changed or not body:
            text += plain(run)
        else:
            lead = run[: len(run) - len(run.lstrip())]
            text += f"{lead}**{plain(body)}**{run[len(run.rstrip()) :]}"
    return text


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_CELL else f"{text[:_LONGEST_CELL].rsplit(' ', 1)[0]} …"


def plain(text: str) -> str:
    """A text whose signs mean nothing in Markdown and in a table."""
    return _MARKUP.sub(r"\\\1", re.sub(r"\s+", " ", text))
