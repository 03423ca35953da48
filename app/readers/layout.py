"""Lines of print made into paragraphs, and the running headers of a book's pages told from its text. Child only.

A line of a paragraph ends where the next word would not have fitted. A line that ends earlier was ended on purpose:
the last of a paragraph, a heading, an item, a verse. That one test serves justified and ragged text, and files of
plain text with hard line ends, alike. Distances are in any unit.

Running headers, footers, page numbers and line numbers are found by comparing pages. A line goes only when its like
stands at the same height on pages close by, or when it is a number that counts with the pages; a page alone loses
nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from string import ascii_letters
from typing import Literal

from app.readers.cleaning import join_hyphenated

Joint = Literal["join", "break", "paragraph"]

_SLACK = 0.6  # line heights that a word may be too wide by and still count as fitting
_INDENT = 0.7  # line heights
_LOOSE = 2.5  # line heights
_GAP = 1.35  # line pitches between two lines of different paragraphs
_NEIGHBOURS = 8  # lines looked at on either side
_CUT_REACH = 3.0  # line heights to the next line of a paragraph
_LARGER = 0.2  # relative difference of height that tells a heading from text
_VERSE_SHARE = 0.85
_VERSE_WIDTH = 60  # characters
_SENTENCE_END = re.compile(r"[.!?:;…。！？؟][\"'”’»)\]]*\d{0,3}$")
_WIDE = re.compile(r"[\u2e80-\u9fff\uff00-\uff60]")  # scripts written without spaces
_CLOSED = re.compile(r"(?:—|[\u2e80-\u9fff\uff00-\uff60])$")
_LONG = 25  # characters of a line that says something about the margin
_BIN = 4.0  # units of x that count as the same start
_REACH = 12  # bins to the left in which the column's own start is looked for
_ROWS = 4  # rows of type from the top and from the bottom where running headers are looked for
_SAME_HEIGHT = 6.0  # points
_WINDOW = 4  # pages to either side on which a running line must return
_RETURNS = 2
_MARGIN_PAGES = 4
_MARGIN_SHARE = 0.25
_HEADER_LETTERS = 3
_CHAPTER = re.compile(r"(chapter|part|book|section|letter|act|scene|canto|kapitel|teil|chapitre|partie|cap[ií]tulo)")
_CHAPTER_AND_PAGE = re.compile(r"\d\D+\b\d{1,4}$")  # "Chapter 3. The Light 41" runs; "Chapter 3. The Light" heads
_NAMED_CHAPTER = 4  # words that it has at least: one of them is of the title
_PAGE_NUMBER = re.compile(
    r"^[-–—\[(\s|]*(?:page|seite|p\.)?\s*(\d{1,4}|[ivxlc]{1,7})\s*(?:(?:/|of|von)\s*\d+)?[-–—\])\s|.]*$", re.I
)
_END_NUMBER = re.compile(r"(?:^(\d{1,4})\b|\b(\d{1,4})$)")
_MARGIN_SIGN = re.compile(r"^[A-Za-z]{0,2}\d{1,3}$")
_ROMAN_WORD = re.compile(r"[ivxlc]+")
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_MOST = 0.5  # of the pages must show a number
_UNSHOWN = 3  # pages before the first number that may belong to the same count


@dataclass
class Line:
    """One printed line. ``top`` grows downwards; ``x0`` is where reading starts, also for right-to-left pages."""

    text: str
    x0: float
    x1: float
    top: float
    bottom: float
    cut: bool = False  # the last word goes on in the next line
    size: float = 0.0  # height of the type where it is known, else of the box
    shown: bool = True  # False outside of the visible part of the page, and of what nobody sees
    suspect: bool = False  # drawn in a way that may be unseen
    unseen: bool = False

    @property
    def height(self) -> float:
        return max(self.bottom - self.top, 1e-3)

    @property
    def type_size(self) -> float:
        return self.size or self.height


def reflow(lines: Sequence[Line], words: Counter[str], margin: Margins | None = None) -> str:
    """The text of lines in reading order: paragraphs on one line each, a blank line between them.

    Args:
        lines: of one page.
        words: the book's vocabulary, for hyphens at line ends.
        margin: the right margins of pages like this one.
    """
    if not lines:
        return ""
    margin = margin or Margins([lines])
    pitch = _pitch(lines)
    verse = [_is_verse(lines, index) for index in range(len(lines))]
    parts = [lines[0].text]
    for index in range(1, len(lines)):
        above, line = lines[index - 1], lines[index]
        kind = joint(lines, index, margin, pitch, verse[index - 1] and verse[index])
        if kind == "join" and (above.cut or above.text.endswith("-")):
            parts[-1] = join_hyphenated(parts[-1], line.text, words)
        else:
            space = "" if _CLOSED.search(above.text) or _WIDE.match(line.text) else " "
            parts.append({"join": space, "break": "\n", "paragraph": "\n\n"}[kind])
            parts.append(line.text)
    return "".join(parts)


def joint(lines: Sequence[Line], index: int, margin: Margins, pitch: float, verse: bool) -> Joint:
    """How line ``index`` follows the one above it."""
    above, line = lines[index - 1], lines[index]
    if above.cut and _goes_on(above, line):
        return "join"
    taller = abs(above.type_size - line.type_size) > _LARGER * max(above.type_size, line.type_size)
    if line.top < above.top - above.height / 2:  # up again: the next column, or text set apart
        full = not _fits(above, line, margin) and not _SENTENCE_END.search(above.text)
        return "join" if full and not taller else "paragraph"
    if taller or line.top - above.top > _GAP * max(pitch, line.height * 0.9):
        return "paragraph"
    ended = _fits(above, line, margin)
    if verse:
        return "break"
    flush = abs(line.x0 - above.x0) <= _INDENT * line.height
    shift = 0.0 if flush else line.x0 - _base(lines, index)
    indented = abs(shift) > _INDENT * line.height
    if not ended:
        return "paragraph" if indented and _SENTENCE_END.search(above.text) else "join"
    if indented and shift > 0:
        return "paragraph"
    return "break"


def _goes_on(above: Line, line: Line) -> bool:
    """Whether ``line`` can hold the rest of the word that was cut at the end of ``above``."""
    below = 0 < line.top - above.top < _CUT_REACH * above.height
    return line.text[0].islower() and (below or line.top < above.top)


class Margins:
    """Where lines end at most, by where they start: the right edge of the column that a line stands in."""

    def __init__(self, pages: Sequence[Sequence[Line]]) -> None:
        ends: dict[int, list[float]] = {}
        for page in pages:
            for line in page:
                if len(line.text) >= _LONG:
                    ends.setdefault(round(line.x0 / _BIN), []).append(line.x1)
        self._edges: dict[int, float] = {}
        self._counts = {start: len(found) for start, found in ends.items()}
        for start, found in ends.items():
            found.sort()
            self._edges[start] = found[min(len(found) - 1, int(len(found) * 0.9))]
        self._starts = sorted(self._edges)

    def right(self, line: Line) -> float:
        """The right edge for a line: that of the commonest start at or a little left of its own."""
        key = round(line.x0 / _BIN)
        low = bisect_left(self._starts, key - _REACH)
        best, most = line.x1, 0
        for start in self._starts[low : bisect_left(self._starts, key + 2)]:
            if self._counts[start] > most and self._edges[start] > line.x0:
                best, most = self._edges[start], self._counts[start]
        return max(best, line.x1)


def _fits(above: Line, line: Line, margin: Margins) -> bool:
    """Whether the first word of ``line`` had room at the end of ``above``."""
    word = line.text.split(" ", 1)[0]
    width = (line.x1 - line.x0) / max(len(line.text), 1) * (len(word) + 1)
    return margin.right(above) - above.x1 > width + _SLACK * above.height


def _pitch(lines: Sequence[Line]) -> float:
    """The usual distance from line to line; no more than loosely set type has."""
    steps = sorted(b.top - a.top for a, b in pairwise(lines) if b.top > a.top + a.height / 3)
    return min(steps[(len(steps) - 1) // 2], _LOOSE * lines[0].height) if steps else lines[0].height


def _base(lines: Sequence[Line], index: int) -> float:
    """Where most of the lines around this one start, within its column."""
    line = lines[index]
    nearby = lines[max(0, index - _NEIGHBOURS) : index + _NEIGHBOURS + 1]
    width = max(line.x1 - line.x0, 1e-3)
    starts = [round(other.x0) for other in nearby if abs(other.x0 - line.x0) < max(width, 6 * line.height)]
    return float(Counter(starts).most_common(1)[0][0])


def _is_verse(lines: Sequence[Line], index: int) -> bool:
    nearby = lines[max(0, index - 2) : index + 3]
    if len(nearby) < 3 or any(len(line.text) > _VERSE_WIDTH for line in nearby):
        return False
    capital = sum(_starts_large(line.text) for line in nearby)
    return capital >= _VERSE_SHARE * len(nearby) and not any(line.cut for line in nearby)


def _starts_large(text: str) -> bool:
    letters = [sign for sign in text[:4] if sign.isalpha()]
    return bool(letters) and letters[0].isupper()


@dataclass
class RunningHeaders:
    """``drop[i]`` holds the indices of lines of page i; ``printed[i]`` the number that is printed on it."""

    drop: list[set[int]]
    printed: dict[int, str] = field(default_factory=dict)


def find_running_headers(pages: Sequence[Sequence[Line]], labels: Sequence[str]) -> RunningHeaders:
    """Compare pages.

    Args:
        pages: the lines of each page.
        labels: what the file says is printed on each page; "" where it says nothing.
    """
    found = RunningHeaders([set() for _ in pages])
    _drop_line_numbers(pages, found)
    numbers: dict[int, dict[int, str]] = defaultdict(dict)
    for _ in range(2):  # a second look: what was behind the outermost line is now outermost
        _drop_repeated_lines(pages, found, numbers)
    for index, page in enumerate(pages):
        if len(found.drop[index]) == len(page):  # a page of nothing else: then it is the page's text
            found.drop[index].clear()
            numbers.pop(index, None)
    _drop_page_numbers(pages, labels, found, numbers)
    return found


def _drop_line_numbers(pages: Sequence[Sequence[Line]], found: RunningHeaders) -> None:
    """Line numbers in the margin: the same small sign at the same place on many pages."""

    def place(line: Line) -> tuple[str, int, int]:
        return line.text.lstrip(ascii_letters), round(line.top / 3), round(line.x1 / 3)

    counts: Counter[tuple[str, int, int]] = Counter()
    for page in pages:
        counts.update({place(line) for line in page if _MARGIN_SIGN.match(line.text)})
    enough = max(_MARGIN_PAGES, _MARGIN_SHARE * len(pages))
    common = {key for key, count in counts.items() if count >= enough}
    for index, page in enumerate(pages):
        here = {at for at, line in enumerate(page) if _MARGIN_SIGN.match(line.text) and place(line) in common}
        if len(here) > 1:  # one alone is more likely a page number, judged below
            found.drop[index] |= here


def _edges(page: Sequence[Line], dropped: set[int]) -> dict[int, int]:
    """Indices of the lines at the top (+1) and bottom (-1) edge."""
    order = sorted((index for index in range(len(page)) if index not in dropped), key=lambda i: page[i].top)
    rows: list[list[int]] = []
    for index in order:
        if rows and page[index].top - page[rows[-1][0]].top < page[index].height / 2:
            rows[-1].append(index)
        else:
            rows.append([index])
    edges = {index: -1 for row in rows[-_ROWS:] for index in row}
    edges.update({index: 1 for row in rows[: min(_ROWS, (len(rows) + 1) // 2)] for index in row})
    return edges


def _drop_repeated_lines(
    pages: Sequence[Sequence[Line]], found: RunningHeaders, numbers: dict[int, dict[int, str]]
) -> None:
    places: dict[tuple[str, int], list[tuple[int, int, float]]] = defaultdict(list)
    for index, page in enumerate(pages):
        for number, side in _edges(page, found.drop[index]).items():
            key = _running_key(page[number].text)
            if key:
                places[key, side].append((index, number, page[number].top))
    for spots in places.values():
        for at, (index, number, top) in enumerate(spots):
            near = {
                other
                for other, _, height in spots[max(0, at - 3 * _WINDOW) : at + 3 * _WINDOW]
                if 0 < abs(other - index) <= _WINDOW and abs(height - top) < _SAME_HEIGHT
            }
            if len(near) >= min(_RETURNS, len(pages) - 1) and near:
                found.drop[index].add(number)
                end = _END_NUMBER.search(pages[index][number].text)
                if end:
                    numbers[index][number] = end[1] or end[2]


def _running_key(text: str) -> str:
    """The letters of a line that may be a running one; "" for what never is."""
    folded = text.casefold()
    named = len(text.split()) >= _NAMED_CHAPTER and _CHAPTER_AND_PAGE.search(folded)
    if _CHAPTER.match(folded) and not named and (len(text.split()) <= 2 or any(sign.isdigit() for sign in text)):
        return ""
    words = folded.split()
    while words and _ROMAN_WORD.fullmatch(words[-1]):  # a page number of the front matter
        words.pop()
    while words and _ROMAN_WORD.fullmatch(words[0]):
        words.pop(0)
    letters = "".join(sign for word in words for sign in word if sign.isalpha())
    return letters if len(letters) >= _HEADER_LETTERS else ""


def _drop_page_numbers(
    pages: Sequence[Sequence[Line]],
    labels: Sequence[str],
    found: RunningHeaders,
    numbers: dict[int, dict[int, str]],
) -> None:
    bare: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for index, page in enumerate(pages):
        for number in _edges(page, found.drop[index]):
            match = _PAGE_NUMBER.match(page[number].text)
            if match:
                bare[index].append((number, match[1].casefold()))
    offsets: dict[int, set[tuple[bool, int]]] = {}
    for index in range(len(pages)):
        seen = [text for _, text in bare[index]] + list(numbers[index].values())
        offsets[index] = {(text.isdigit(), value - index) for text in seen if (value := number_value(text)) is not None}
    for index in range(len(pages)):
        near = range(max(0, index - 2 * _WINDOW), min(len(pages), index + 2 * _WINDOW + 1))
        shared = {offset for other in near if other != index for offset in offsets[other]}
        for number, text in [*bare[index], *numbers[index].items()]:
            value = number_value(text)
            counts = value is not None and (text.isdigit(), value - index) in shared
            if counts or (text == labels[index].casefold() and text):
                found.drop[index].add(number)
                found.printed[index] = text


def number_value(text: str) -> int | None:
    """What a number in digits or small Roman letters says; None for none."""
    if text.isdigit():
        return int(text)
    total, last = 0, 0
    for sign in reversed(text):
        worth = _ROMAN[sign]
        total, last = (total - worth, last) if worth < last else (total + worth, worth)
    return total or None


def page_labels(given: Sequence[str], printed: dict[int, str]) -> list[str]:
    """What to call each page: the file's own label, else the number printed on it, else its place in the file.

    Printed numbers are used only where they grow through most of the book, so that two pages never share one. A
    page without a number between two that count on has the number between; any other is named by its neighbour.
    """
    count = len(given)
    plain = [str(index + 1) for index in range(count)]
    if any(given) and list(given) != plain:
        return _unique([label or f"[{plain[index]}]" for index, label in enumerate(given)])
    numbers = _growing({index: int(text) for index, text in printed.items() if text.isdigit()})
    if len(numbers) < max(3, _MOST * count) or all(number == index + 1 for index, number in numbers.items()):
        return plain
    _fill(numbers)
    labels, before = [], ""
    for index in range(count):
        if index in numbers:
            before = str(numbers[index])
            labels.append(before)
        else:
            roman = printed.get(index, "")
            other = f"after {before}" if before else f"front {index + 1}"
            labels.append(roman if roman and not roman.isdigit() else other)
    return _unique(labels)


def _growing(numbers: dict[int, int]) -> dict[int, int]:
    """Without the numbers that fall out of the count."""
    kept: dict[int, int] = {}
    last, last_index = 0, -1
    for index, number in sorted(numbers.items()):
        if last < number <= last + (index - last_index) * 2 + 4 or not kept:
            kept[index] = number
            last, last_index = number, index
    return kept


def _fill(numbers: dict[int, int]) -> None:
    """Number the pages between two that count on; a chapter's first page seldom shows its own."""
    known = sorted(numbers)
    for one, two in pairwise(known):
        if two - one == numbers[two] - numbers[one]:
            numbers.update({index: numbers[one] + index - one for index in range(one, two)})
    first = known[0]
    for index in range(max(0, first - _UNSHOWN), first):
        if numbers[first] - (first - index) > 0:
            numbers[index] = numbers[first] - (first - index)


def _unique(labels: list[str]) -> list[str]:
    seen: Counter[str] = Counter()
    result = []
    for label in labels:
        seen[label] += 1
        result.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return result
