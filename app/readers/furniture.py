"""Running headers, footers, page numbers and line numbers of a book's pages: found by comparing pages.

Owns the decision what is furniture and what page number is printed where. A line goes only when its like stands at
the same height on pages close by, or when it is a number that counts with the pages; a page alone loses nothing.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from string import ascii_letters

from app.readers.lines import Line

_ROWS = 4  # rows of type from the top and from the bottom where furniture is looked for
_SAME_HEIGHT = 6.0  # points
_WINDOW = 4  # pages to either side on which a running line must return
_RETURNS = 2
_MARGIN_PAGES = 4
_MARGIN_SHARE = 0.25
_LETTERS = 3
_CHAPTER = re.compile(r"(chapter|part|book|section|letter|act|scene|canto|kapitel|teil|chapitre|partie|cap[ií]tulo)")
_CHAPTER_AND_PAGE = re.compile(r"\d\D+\b\d{1,4}$")  # "Chapter 3. The Light 41" runs; "Chapter 3. The Light" heads
_NAMED_CHAPTER = 4  # words that it has at least: one of them is of the title
_NUMBER = re.compile(
    r"^[-–—\[(\s|]*(?:page|seite|p\.)?\s*(\d{1,4}|[ivxlc]{1,7})\s*(?:(?:/|of|von)\s*\d+)?[-–—\])\s|.]*$", re.I
)
_END_NUMBER = re.compile(r"(?:^(\d{1,4})\b|\b(\d{1,4})$)")
_MARGIN_SIGN = re.compile(r"^[A-Za-z]{0,2}\d{1,3}$")
_ROMAN_WORD = re.compile(r"[ivxlc]+")
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}


@dataclass
class Furniture:
    """``drop[i]`` holds the indices of lines of page i; ``printed[i]`` the number that is printed on it."""

    drop: list[set[int]]
    printed: dict[int, str] = field(default_factory=dict)


def find(pages: Sequence[Sequence[Line]], labels: Sequence[str]) -> Furniture:
    """Compare pages.

    Args:
        pages: the lines of each page.
        labels: what the file says is printed on each page; "" where it says nothing.
    """
    found = Furniture([set() for _ in pages])
    _margin_numbers(pages, found)
    numbers: dict[int, dict[int, str]] = defaultdict(dict)
    for _ in range(2):  # a second look: what was behind the outermost line is now outermost
        _running_lines(pages, found, numbers)
    for index, page in enumerate(pages):
        if len(found.drop[index]) == len(page):  # a page of nothing else: then it is the page's text
            found.drop[index].clear()
            numbers.pop(index, None)
    _page_numbers(pages, labels, found, numbers)
    return found


def _margin_numbers(pages: Sequence[Sequence[Line]], found: Furniture) -> None:
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


def _running_lines(pages: Sequence[Sequence[Line]], found: Furniture, numbers: dict[int, dict[int, str]]) -> None:
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
    return letters if len(letters) >= _LETTERS else ""


def _page_numbers(
    pages: Sequence[Sequence[Line]],
    labels: Sequence[str],
    found: Furniture,
    numbers: dict[int, dict[int, str]],
) -> None:
    bare: dict[int, list[tuple[int, str]]] = defaultdict(list)
    for index, page in enumerate(pages):
        for number in _edges(page, found.drop[index]):
            match = _NUMBER.match(page[number].text)
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


_MOST = 0.5  # of the pages must show a number
_UNSHOWN = 3  # pages before the first number that may belong to the same count
