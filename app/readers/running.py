"""Finds running headers, page numbers and line numbers in the margin by comparing the pages of a book.

A row is removed only if it is certainly not part of the text. Such a row recurs at the same position on three nearby
pages, and differs there only in the page number. A gap separates the row from the text, and its type is not larger than
the text's. The first occurrence stays. Doubtful rows stay too, because a lost row is worse than a repeated row. A page
stays unchanged if all its rows would be removed. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median

from app.readers.layout import Line, usual_pitch

_ROWS = 4  # number of rows at the top and at the bottom of a page that may be running headers
_NUMBER_ROWS = 3  # number of rows at the top and at the bottom of a page that may contain the page number
_SAME_PLACE = 6.0  # maximum difference in points between the positions of a running header on two pages
_WINDOW = 4  # maximum distance in pages between two occurrences of a running header
_RETURNS = 2
_HEADER_LETTERS = 3
# maximum type size of a running header, as a factor of the page's usual size; a row in larger type is text, such as a
# title
_LARGER = 1.15
_APART = 1.25  # minimum distance between a running header and the text, in line pitches
_WIDE_GAP = 0.6  # minimum gap, in line heights, between a header's words and the page number
_AT_EDGE = 0.1  # maximum horizontal distance of a page number from the edge of the text, as a share of the text's width
_MARGIN_PAGES = 4
_MARGIN_SHARE = 0.25
_MARGIN_ROWS = 5  # minimum numbers in a page's margin that count as line numbers
_COUNTED = 10  # minimum numbers that count the lines of a page if no other page has them at the same place
_LONG_LINE = 0.7  # minimum width of a line of running text, as a share of the widest
_MOST_LONG = 0.7  # minimum share of lines of running text that are long
_RUN_ON = 0.3  # minimum share of lines of running text that begin with a small letter
_MARGIN_GAP = 0.8  # minimum gap, in line heights, between a line number and its line
_ALIGNED = 3.0  # maximum difference in points between the right edges of the line numbers of a page
_MARGIN_SIGN = re.compile(r"\d{1,3}$")
_PAGE_NUMBER = re.compile(
    r"^[-–—\[(\s|•·]*(?:page|seite|p\.|s\.|página|pagina)?\s*(\d{1,4}|[ivxlc]{1,7})\s*(?:(?:/|of|von|de|sur|di)\s*\d+)?"
    r"[-–—\])\s|.•·]*$",
    re.I,
)
# matches a page number within a header, after a word such as "page" or next to a mark such as "|"
_NAMED_NUMBER = re.compile(
    r"(?:^|[|•·–—]\s*|[\s,(])(?:page|seite|página|pagina)\s*(\d{1,4})(?:\s*(?:/|of|von|de|sur|di)\s*\d+)?[\s)]*(?:$|[|•·–—,])"
    r"|[|•·–—]\s*(\d{1,4})$|^(\d{1,4})\s*[|•·–—]",
    re.I,
)
_COUNTED_THING = re.compile(r"(?:[:#№]|\b(?:no|nr|num|numbers?|nummer|invoice|rechnung|id|ref)\.?)\s*$", re.I)
_AMOUNT = re.compile(r"(?<![\d.,])\d[\d.,'’ ]*[.,]\d\d(?![\d.,]|[-/]\d)")
_ROMAN = {"i": 1, "v": 5, "x": 10, "l": 50, "c": 100}
_MOST = 0.5  # minimum share of pages with a printed number for printed numbers to be used as page labels
# Maximum number of pages before the first printed number that are numbered by counting backwards.
_UNSHOWN = 3


@dataclass
class RunningHeaders:
    """The running headers, page numbers and line numbers found on the pages of a book.

    ``headers[i]``, ``numbers[i]`` and ``margins[i]`` have the indices of the lines on page i that are running headers,
    page numbers and line numbers. ``first[i]`` has the indices of running headers that stay, because no earlier page
    has the same header. ``parted[i]`` is the number of characters of line numbers that were cut off the beginnings of
    lines. ``printed[i]`` is the number printed on page i.
    """

    headers: list[set[int]]
    first: list[set[int]]
    numbers: list[set[int]]
    margins: list[set[int]]
    parted: list[int]
    printed: dict[int, str] = field(default_factory=dict)

    def drop(self, index: int) -> set[int]:
        """Return the indices of the lines that are to be removed from a page."""
        return self.headers[index] | self.numbers[index] | self.margins[index]


@dataclass
class _Row:
    """A printed row at the top or bottom of a page.

    ``page`` is the index of the page. ``lines`` has the indices of the row's lines from left to right. ``top`` is the
    vertical position of its first line. ``side`` is 1 at the top, -1 at the bottom. ``depth`` is the number of rows
    between the row and the edge of the page.
    """

    page: int
    side: int
    depth: int
    lines: list[int]
    text: str
    top: float
    number: str = ""
    """The page number in the row; "" if none is certain."""

    rest: str = ""
    """The row's text without the page number."""


def find_running_headers(pages: Sequence[Sequence[Line]], labels: Sequence[str]) -> RunningHeaders:
    """Find running headers, page numbers and line numbers by comparing the pages of a book. A page without other text
    keeps all its lines.

    Args:
        pages: the lines of each page.
        labels: the label of each page in the file; "" for a page without one.
    """
    headers, first, numbers, margins = ([set[int]() for _ in pages] for _ in range(4))
    found = RunningHeaders(headers, first, numbers, margins, [0 for _ in pages])
    _find_line_numbers(pages, found)
    rows = [_edge_rows(index, page, found.margins[index]) for index, page in enumerate(pages)]
    _find_page_numbers(pages, rows, labels, found)
    _find_headers(pages, rows, found)
    for index, page in enumerate(pages):
        dropped = found.drop(index)
        # the page has no rows but these, so they are its text
        if all(at in dropped for at, line in enumerate(page) if line.shown):
            for kind in (found.headers, found.numbers, found.margins):
                kind[index].clear()
            found.printed.pop(index, None)
    return found


def _find_line_numbers(pages: Sequence[Sequence[Line]], found: RunningHeaders) -> None:
    """Find line numbers in the margin: numbers that increase downwards in equal steps, next to the text, at the same
    positions on many pages.
    """

    def place(line: Line) -> tuple[str, int, int]:
        return line.text, round(line.top / 3), round(line.x1 / 3)

    signs = [
        {at: sign for at, line in enumerate(page) if line.text[:1].isdigit() and (sign := _margin_sign(line))}
        for page in pages
    ]
    counts: Counter[tuple[str, int, int]] = Counter()
    for here in signs:
        counts.update({place(sign) for sign in here.values()})
    enough = max(_MARGIN_PAGES, _MARGIN_SHARE * len(pages))
    common = {key for key, count in counts.items() if count >= enough}
    for index, page in enumerate(pages):
        here = {at: sign for at, sign in signs[index].items() if place(sign) in common}
        if not here and _count_the_lines(page, signs[index]):
            here = signs[index]
        order = sorted(here.values(), key=lambda sign: sign.top)
        steps = {int(two.text) - int(one.text) for one, two in pairwise(order)}
        if len(here) >= _MARGIN_ROWS and len(steps) == 1 and min(steps) > 0 and _is_beside(page, here):
            last, step = order[-1], steps.pop()
            for at, sign in signs[index].items():  # few pages have as many lines as the longest
                if (
                    int(sign.text) == int(last.text) + step
                    and sign.top > last.top
                    and abs(sign.x1 - last.x1) < _ALIGNED
                ):
                    here[at] = last = sign
            found.margins[index] |= {at for at, sign in here.items() if sign is page[at]}
            for at, sign in here.items():
                if sign is not page[at]:
                    found.parted[index] += len(sign.text)
                    page[at].text, page[at].x0 = page[at].text[len(sign.text) :].lstrip(), _rest(page[at])


def _count_the_lines(page: Sequence[Line], signs: Mapping[int, Line]) -> bool:
    """Whether numbers count the lines of one page, as far as this page tells: they count from 1 and are aligned, and
    the sentences beside them run on from line to line, which no list does.
    """
    order = sorted(signs, key=lambda at: signs[at].top)
    aligned = {round(sign.x1 / _ALIGNED) for sign in signs.values()}
    if [signs[at].text for at in order] != [str(count) for count in range(1, len(order) + 1)] or len(aligned) > 2:
        return False
    beside = [(page[at + 1] if signs[at] is page[at] and at + 1 < len(page) else page[at]) for at in order]
    texts = [line.text.removeprefix(signs[at].text).lstrip() for at, line in zip(order, beside, strict=True)]
    widest = max((line.x1 for line in beside), default=0.0) - min((sign.x1 for sign in signs.values()), default=0.0)
    long = sum(line.x1 - signs[at].x1 > _LONG_LINE * widest for at, line in zip(order, beside, strict=True))
    run_on = sum(text[:1].islower() for text in texts)
    return len(order) >= _COUNTED and long > _MOST_LONG * len(order) and run_on > _RUN_ON * len(order)


def _margin_sign(line: Line) -> Line | None:
    """Return the number that is a line, or that stands before a wide gap at the beginning of a line; None if there is
    none.
    """
    if not line.shown or line.row:
        return None
    if _MARGIN_SIGN.match(line.text):
        return line
    number, x0, x1 = line.words[0] if line.words else ("", 0.0, 0.0)
    apart = line.first_gap > _MARGIN_GAP * line.height and line.text.startswith(f"{number} ")
    return replace(line, text=number, x0=x0, x1=x1) if apart and _MARGIN_SIGN.match(number) else None


def _rest(line: Line) -> float:
    """Return where the text after the number of a line begins."""
    return line.words[0][2] + line.first_gap


def _is_beside(page: Sequence[Line], numbers: Mapping[int, Line]) -> bool:
    """Whether there is text next to the numbers, and none of this text overlaps the numbers horizontally."""
    left, right = min(sign.x0 for sign in numbers.values()), max(sign.x1 for sign in numbers.values())
    top, bottom = min(sign.top for sign in numbers.values()), max(sign.bottom for sign in numbers.values())
    beside = [
        (_rest(line) if at in numbers else line.x0, line.x1)
        for at, line in enumerate(page)
        if line.shown and len(line.text) > 1 and numbers.get(at) is not line
        if top <= (line.top + line.bottom) / 2 <= bottom
    ]
    return bool(beside) and not any(x0 < right and x1 > left for x0, x1 in beside)


def _edge_rows(index: int, page: Sequence[Line], dropped: set[int]) -> list[_Row]:
    """Return the rows at the top (side 1) and then the rows at the bottom (side -1) of a page. Both parts begin with
    the row at the page's edge.
    """
    order = sorted(
        (at for at, line in enumerate(page) if line.shown and at not in dropped), key=lambda at: page[at].top
    )
    grouped: list[list[int]] = []
    for at in order:
        if grouped and page[at].top - page[grouped[-1][0]].top < page[at].height / 2:
            grouped[-1].append(at)
        else:
            grouped.append([at])
    top = grouped[: min(_ROWS, (len(grouped) + 1) // 2)]
    bottom = grouped[max(len(top), len(grouped) - _ROWS) :][::-1]
    rows = []
    for side, some in ((1, top), (-1, bottom)):
        for depth, lines in enumerate(some):
            lines = sorted(lines, key=lambda at: page[at].x0)
            text = " ".join(page[at].text for at in lines)
            rows.append(_Row(index, side, depth, lines, text, page[lines[0]].top, rest=text))
    return rows


def _find_page_numbers(
    pages: Sequence[Sequence[Line]], rows: Sequence[Sequence[_Row]], labels: Sequence[str], found: RunningHeaders
) -> None:
    """Find page numbers: numbers that equal the page's label in the file, and numbers that increase with the pages at
    the same position on three nearby pages.
    """
    candidates: list[tuple[_Row, str, str]] = []
    places: dict[tuple[int, bool, int], list[tuple[int, float]]] = defaultdict(list)
    for page, some in zip(pages, rows, strict=True):
        for row in some:
            if row.depth >= _NUMBER_ROWS or any(page[at].row for at in row.lines):
                continue
            for number, rest in _numbers(page, row):
                value = number_value(number)
                if value is not None:
                    candidates.append((row, number, rest))
                    places[row.side, number.isdigit(), value - row.page].append((row.page, row.top))
    for row, number, rest in candidates:
        value = number_value(number) or 0
        spots = places[row.side, number.isdigit(), value - row.page]
        near = {
            page for page, top in spots if 0 < abs(page - row.page) <= 2 * _WINDOW and abs(top - row.top) < _SAME_PLACE
        }
        if len(near) >= _RETURNS or (not rest and number == labels[row.page].casefold()):
            row.number, row.rest = number, rest
            found.printed[row.page] = number
            if not rest:
                found.numbers[row.page] |= set(row.lines)


def _numbers(page: Sequence[Line], row: _Row) -> Iterator[tuple[str, str]]:
    """Yield each possible page number in a row, as (number, rest of the row's text)."""
    match = _PAGE_NUMBER.match(row.text)
    if match:
        yield match[1].casefold(), ""
        return
    named = _NAMED_NUMBER.search(row.text)
    if named:
        number = next(filter(None, named.groups()))
        rest = row.text[: named.start()] + row.text[named.end() :]
        yield number, _plain(rest)
        return
    left = min(line.x0 for line in page if line.shown)
    right = max(line.x1 for line in page if line.shown)
    slack = _AT_EDGE * (right - left)
    first, last = page[row.lines[0]], page[row.lines[-1]]
    head, _, after = first.text.partition(" ")
    before, _, tail = last.text.rpartition(" ")
    parted = len(row.lines) > 1
    if last.x1 >= right - slack and ((parted and not before) or last.last_gap > _WIDE_GAP * last.height):
        match, rest = _PAGE_NUMBER.match(tail), row.text[: len(row.text) - len(tail)]
        if match and not _COUNTED_THING.search(rest):
            yield match[1].casefold(), _plain(rest)
    if first.x0 <= left + slack and ((parted and not after) or first.first_gap > _WIDE_GAP * first.height):
        match = _PAGE_NUMBER.match(head)
        if match:
            yield match[1].casefold(), _plain(row.text[len(head) :])


def _plain(text: str) -> str:
    return " ".join(text.split()).strip("|•·–— ")


def _find_headers(pages: Sequence[Sequence[Line]], rows: Sequence[Sequence[_Row]], found: RunningHeaders) -> None:
    alike: dict[tuple[int, str], list[_Row]] = defaultdict(list)
    for some in rows:
        for row in some:
            alike[row.side, row.rest].append(row)
    running = {id(row): _returns(row, alike[row.side, row.rest]) for some in rows for row in some}
    for index, page in enumerate(pages):
        body = _type_size(page)
        for side in (1, -1):
            block: list[_Row] = []
            for row in (row for row in rows[index] if row.side == side):
                bare = set(row.lines) <= found.numbers[index]
                if not bare and not (running[id(row)] and _may_run(page, row, body)):
                    break
                block.append(row)
            while block and not _stands_apart(page, block, side):
                block.pop()
            for row in block:
                if not set(row.lines) <= found.numbers[index]:
                    repeats = _repeats(row, alike[side, row.rest], rows, running)
                    (found.headers if repeats else found.first)[index].update(row.lines)


def _returns(row: _Row, similar_rows: Sequence[_Row]) -> bool:
    """Whether a row recurs at the same position on enough nearby pages to be a running header."""
    near = {
        other.page
        for other in similar_rows
        if 0 < abs(other.page - row.page) <= _WINDOW and abs(other.top - row.top) < _SAME_PLACE
    }
    return len(near) >= _RETURNS


def _may_run(page: Sequence[Line], row: _Row, body: float) -> bool:
    """Whether a row may be a running header. Such a row has enough letters, no larger type than the page and no amount
    of money, and is not in a table.
    """
    if sum(map(str.isalpha, row.rest)) < _HEADER_LETTERS:
        return False
    lines = [page[at] for at in row.lines]
    larger = max(line.type_size for line in lines) > _LARGER * body
    return not (larger or any(line.row for line in lines) or _AMOUNT.search(row.text))


def _type_size(page: Sequence[Line]) -> float:
    """Return the median type size of a page, weighted by characters."""
    sizes = sorted((line.type_size, len(line.text)) for line in page if line.shown)
    half, total = sum(length for _, length in sizes) / 2, 0
    for size, length in sizes:
        total += length
        if total >= half:
            return size
    return 0.0


def _stands_apart(page: Sequence[Line], block: Sequence[_Row], side: int) -> bool:
    """Whether a clear gap separates the rows ``block`` at the page's edge from the text."""
    inside = {at for row in block for at in row.lines}
    others = [line for at, line in enumerate(page) if at not in inside and line.shown]
    if not others:
        return True
    inner = block[-1].top
    if side > 0:
        room = min((line.top - inner for line in others if line.top > inner), default=None)
    else:
        room = min((inner - line.top for line in others if line.top < inner), default=None)
    pitch = usual_pitch(sorted(others, key=lambda line: line.top))
    return room is None or room > _APART * min(pitch, 2 * median(line.height for line in others))


def _repeats(row: _Row, similar_rows: Sequence[_Row], rows: Sequence[Sequence[_Row]], running: dict[int, bool]) -> bool:
    """Whether a running header repeats a header of a nearby earlier page. The pages between must have only running
    headers and page numbers at the header's place.

    Left and right pages may have different headers. A header after other text at this place counts as new and stays.
    """
    before = [other.page for other in similar_rows if other.page < row.page and abs(other.top - row.top) < _SAME_PLACE]
    if not before or row.page - before[-1] > _WINDOW:
        return False
    between = (other for page in range(before[-1] + 1, row.page) for other in rows[page])
    return all(
        running[id(other)] or other.number
        for other in between
        if other.side == row.side and other.depth <= row.depth and abs(other.top - row.top) < _SAME_PLACE
    )


def number_value(text: str) -> int | None:
    """Return the value of a number in digits or lowercase Roman numerals; None for ""."""
    if text.isdigit():
        return int(text)
    total, last = 0, 0
    for sign in reversed(text):
        worth = _ROMAN[sign]
        total, last = (total - worth, last) if worth < last else (total + worth, worth)
    return total or None


def page_labels(given: Sequence[str], printed: dict[int, str]) -> list[str]:
    """Return a label for each page: the file's label, or else the printed number, or else the position in the file.

    Printed numbers are used only if at least half of the pages have a number in an increasing sequence. A page between
    two numbered pages is numbered by counting, if the count fits both numbers. Any other page gets its Roman number.
    Without a Roman number, it is named after the preceding numbered page ("after 12") or, before the first numbered
    page, by its position in the file ("front 1").
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
    """Keep only those page numbers that increase about as fast as the pages."""
    kept: dict[int, int] = {}
    last, last_index = 0, -1
    for index, number in sorted(numbers.items()):
        if last < number <= last + (index - last_index) * 2 + 4 or not kept:
            kept[index] = number
            last, last_index = number, index
    return kept


def _fill(numbers: dict[int, int]) -> None:
    """Number the pages between two numbered pages by counting, if the count fits both numbers. Pages without a number
    are common, because the first page of a chapter seldom shows its number. Also number a few pages before the first
    numbered page.
    """
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
