"""Finds the rows of tables in a text, and decides whether a row states the figures of a sentence.

    list(rows("Fees\\nAdults: 12\\nPupils: 8"))                             [(5, 15, 0), (16, 25, 0)]
    states("Pupils pay 8.", "", "Pupils: 8", "", ["Adults: 12"])           True

A row has its cells between bars, or it is a line that ends with figures, directly below another such line, as "Adults:
12", "Adults ..... 12" and "Adults 12 14" are. The words of a row are its label. A row states a figure if the sentence
names the row better than any other row of the table, and if the row has one figure, or the sentence names the column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from app.language.words import fold_word, without_ending
from app.trust.figures import differs_in_unit, figures, stems

CELLS = " | "  # between the cells of a table's row
_LINE = re.compile(r"[^\n]+")
_FIGURE = re.compile(r"[(+–-]?[$€£¥]?[+–-]?\d[\d.,:/]*%?\)?[*†]?")
_LEADER = re.compile(r":\s*+$|(?<!\.)\.{2,}+\s*+$|(?<!\s)\s{2,}+$|\t$|…\s*+$")
_BETWEEN = re.compile(r"\s{2,}|\t| \| ")
_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}[./-](?:\d{2,4})?")
# the day of a date; the words around the table must have it
_DAY = re.compile(
    r"\b0?(\d{1,2})(?:st|nd|rd|th|\.? (?:Jan|Feb|Mar|Mär|Apr|Ma[yi]|Jun|Jul|Aug|Sep|O[ck]t|Nov|De[cz])\w*)\b"
    r"|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w* 0?(\d{1,2})\b"
)
_MULTIPLIERS = frozenset(["#100", "#1000", "#1000000", "#1000000000"])  # the words of "108.9 million"
_LETTER = re.compile(r"[^\W\d_]")
_YEAR = re.compile(r"#(?:1\d|20)\d\d")
_SAME = tuple(
    frozenset(without_ending(fold_word(word)) for word in words.split())
    for words in (
        "price cost costs amount pay pays paid fee charge total preis kosten kostet betrag prix coût coûte montant",
        "weight weigh weighs gewicht wiegt poids pèse",
        "length long länge lang longueur",
        "age old alter alt âge",
    )
)
"""Words for the same, of which a sentence has one and a table's head another."""
_LONGEST_LABEL = 10
"""Maximum number of words of a label in a row without bars."""
_FEWEST_PLAIN = 3
"""Minimum number of lines below one another for them to be a table although only a space stands before the figures."""
_OF_THE_LABEL = 0.5
"""Minimum share of a label's words that a sentence or its question must have."""


def rows(text: str) -> Iterator[tuple[int, int, int]]:
    """Yield the start and the end of each row of a text, and the number of its table."""
    found: list[tuple[int, int, int, bool]] = []  # start, end, number of bars, whether its figures are set off
    table = 0
    for line in _LINE.finditer(text):
        start, end = line.span()
        bars = line[0].count("|") if CELLS in line[0] else 0
        split = None if bars else _split(line[0])
        if not bars and split is None:
            continue
        if found and not _goes_on(text, found[-1], start, bars):
            yield from _of_one_table(found, table)
            table += 1
            found = []
        found.append((start, end, bars, bool(split and split[2])))
    yield from _of_one_table(found, table)


def _goes_on(text: str, last: tuple[int, int, int, bool], start: int, bars: int) -> bool:
    """Whether a row belongs to the table of the ``last`` one. A table with bars may go on after a blank line, with as
    many cells.
    """
    between = text[last[1] : start]
    if between.strip():
        return False
    return last[2] == bars > 0 or (bool(last[2]) == bool(bars) and between.count("\n") == 1)


def _of_one_table(found: Sequence[tuple[int, int, int, bool]], table: int) -> Iterator[tuple[int, int, int]]:
    if not found or (
        not found[0][2] and (len(found) < 2 or (len(found) < _FEWEST_PLAIN and not all(one[3] for one in found)))
    ):
        return
    for start, end, _, _ in found:
        yield start, end, table


def _split(line: str) -> tuple[str, list[str], bool] | None:
    """Split a line without bars into its label and its figures. The last value: whether the figures are set off from
    the label. None if the line is no row.
    """
    words = line.split()
    count = 0
    while count < len(words) and _FIGURE.fullmatch(words[-1 - count].rstrip(",;")):
        count += 1
    if not count or count == len(words) or len(words) - count > _LONGEST_LABEL:
        return None
    label = line.rstrip()
    for word in reversed(words[len(words) - count :]):
        label = label[: label.rindex(word)]
        if len(label) != len(label.rstrip()) and word != words[len(words) - count]:
            label = label.rstrip()
    if not _LETTER.search(label):
        return None
    return (
        label.rstrip(" .:…\t"),
        [word.rstrip(",;") for word in words[len(words) - count :]],
        bool(_LEADER.search(label)),
    )


def cells(row: str) -> list[str]:
    """The cells of a row. The first one of a row without bars is its label."""
    if "|" in row:
        return [cell.strip() for cell in row.split("|")]
    split = _split(row)
    return [split[0], *split[1]] if split else [row]


def is_head(row: str) -> bool:
    """Whether a table's first row may be its head: it has no figures but years and footnotes. In a row without bars,
    which ends with figures, they are all years.
    """
    there = [one.value for cell in cells(row)[1:] for one in figures(cell)]
    return all(_YEAR.fullmatch(value) or (CELLS in row and len(value) == 2) for value in there)


def _heads(head: str, count: int) -> list[str]:
    """The heads of ``count`` columns; empty if the line above the rows has not as many."""
    for parts in (_BETWEEN.split(head.strip()), head.split()):
        for one in (parts, ["", *parts]):
            if len(one) == count:
                return one
    return []


def states(sentence: str, question: str, row: str, head: str, others: Sequence[str]) -> bool:
    """Whether a row has the figures of a sentence, in the row and the column that the sentence names.

    Args:
        question: the question that the sentence answers. Its words name rows and columns, too.
        head: the line with the heads of the table's columns, if it has one.
        others: the other rows of the table.
    """
    there = cells(row)
    asked = _names(f"{sentence} {question}")
    own = _fits(there, asked)
    if own[1] < _OF_THE_LABEL or any(_fits(cells(other), asked) > own for other in others):
        return False
    said = figures(sentence)
    if differs_in_unit(said, figures(row)):
        return False
    filled = [at for at, cell in enumerate(there) if _is_filled(cell)]
    heads = _heads(head, len(there)) if head else []
    known = _values(" ".join(cell for at, cell in enumerate(there) if at not in filled)) | _values(question)
    new = {one.value for one in said} - known - {one.value for name in heads for one in figures(name)}
    new -= _MULTIPLIERS | {f"#{match[1] or match[2]}" for match in _DAY.finditer(sentence)}
    new -= {value for value in new if _YEAR.fullmatch(value) and not any(value in _values(there[at]) for at in filled)}
    if not new:
        return False
    if len(filled) > 1:
        named = [at for at in filled if heads and _is_named(heads[at], asked)]
        filled = named or (filled if all(_values(there[at]) & new for at in filled) else [])
    return new <= {value for at in filled for value in _values(there[at])}


def _fits(there: Sequence[str], asked: set[str]) -> tuple[int, float]:
    """How many words of a row's label a sentence has, and their share."""
    label = _names(" ".join(cell for cell in there if not _is_filled(cell)))
    shared = len(label & asked)
    return shared, shared / len(label) if label else 0.0


def _is_filled(cell: str) -> bool:
    """Whether a cell has figures, with not more than one word behind them that is no unit. A date is none."""
    words = stems(cell)
    if not figures(cell) or _DATE.fullmatch(cell):
        return False
    return not words or (len(words) == 1 and not _LETTER.match(cell))


def _is_named(head: str, asked: set[str]) -> bool:
    """Whether a sentence has the words of a column's head, or a word for the same."""
    words = _names(head)
    return bool(words) and (words <= asked or any(words <= same and same & asked for same in _SAME))


def _names(text: str) -> set[str]:
    return stems(text) | _values(text)


def _values(text: str) -> set[str]:
    return {one.value for one in figures(text)}
