"""Joins printed lines into paragraphs. Runs only in the child process (``app.readers.child``).

A line within a paragraph ends where the next word would not fit. A line that ends earlier is the last line of a
paragraph, a heading, a list item or a verse. This test works for justified and ragged text, and for plain text with
hard line breaks. Distances may have any unit.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from statistics import median
from typing import Any, Literal

from app.language.sentences import is_line_ended
from app.language.tokens import LETTERS
from app.readers.cleaning import join_hyphenated
from app.readers.lines import is_program

Doubt = Literal["", "doubtful", "outside"]
INDENT = "\ufdd2"
"""Stands for a space of an indentation until spaces are merged. Unicode reserves it, so no text has it."""

Joint = Literal["join", "break", "paragraph"]

# a word fits at the end of a line if at least this width, in line heights, remains free after the word
_SLACK = 0.6
_INDENT = 0.7  # minimum indentation in line heights; a smaller difference between line starts is ignored
# maximum line pitch in line heights; a larger median distance between lines is cut to this
_LOOSE = 2.5
_GAP = 1.35  # a larger distance between two lines, in line pitches, starts a new paragraph
_NEIGHBOURS = 8  # number of lines before and after a line in which the usual line start is searched
_CUT_REACH = 3.0  # maximum distance, in line heights, between the two lines of a word that is cut at a line end
_LARGER = 0.2  # maximum relative difference in type size between lines of a paragraph
_VERSE_SHARE = 0.85
_VERSE_WIDTH = 60  # maximum characters of a line of verse
_SAME_WIDTH = 0.01  # maximum relative difference between the mean widths of the characters of two lines of a listing
_LISTED = 3  # minimum lines of a listing
_DEEPEST = 40  # maximum indentation of a line of a listing in characters
_BLANK_LINE = 1.9  # minimum distance of two lines of a listing, in line heights, between which a line is blank
_INITIAL = 2  # maximum characters of a drop cap, possibly with a quotation mark
_INITIAL_SIZE = 1.7  # minimum type size of a drop cap, as a factor of the size of the text next to it
_ONE_LETTER = frozenset("aioeyàéóú")  # letters that may be words by themselves
_TICKS = "✓✔✗✘☐☑☒"
_ITEM = re.compile(rf"(?:[•·▪◦‣■□●○{_TICKS}]|\(?(?:\d{{1,3}}|[A-Za-z]|[ivxlc]{{1,5}})[.)]|\d{{1,3}}) ")
_LED = re.compile(r"(?:\.\s?){4}[\s|]*\w{1,6}$")  # matches a line that ends in dot leaders and a page number
_NUMBERED = re.compile(r"\s(?:\d{1,4}|[ivxlc]{1,6})$")  # matches a line that ends in a page number
_BLANK = 5  # minimum dots or strokes at the end of a line on which a person writes
_BLANK_SIGNS = frozenset("._…")
_FAR = 2.0  # minimum gap, in line heights, before the page number of a line in a table of contents without dot leaders
_WIDE = re.compile(r"[\u2e80-\u9fff\uff00-\uff60]")  # matches characters of scripts that are written without spaces
_CLOSED = re.compile(r"(?:—|[\u2e80-\u9fff\uff00-\uff60])$")
_LONG = 25  # minimum characters of a line that is used to measure the right margin
_SAME_ROW = 0.3  # maximum vertical distance, in line heights, between the tops of two pieces of one row
# line heights by which the right edge of a list is moved right, so that none of its lines counts as full
_FAR_OUT = 100
_GOES_ON = (
    # minimum share of lines in a column of prose that start with a lowercase letter; a column with a smaller share is a
    # list
    0.3
)
# width of the bins into which the x positions of line starts are sorted; lines in the same bin count as aligned
_BIN = 4.0
_REACH = 12  # number of bins to the left of a line's start that are searched for the start of its column


@dataclass
class Line:
    """One printed line.

    ``top`` and ``bottom`` grow downwards. ``x0`` is the edge where reading starts, on right-to-left pages too.
    """

    text: str
    x0: float
    x1: float
    top: float
    bottom: float
    cut: bool = False  # whether the last word is cut at the line end and continues on the next line
    size: float = 0.0  # type size; if 0 (unknown), the height of the box is used instead
    shown: bool = True  # False for text that is invisible or outside the visible area of the page
    # whether the text may be invisible: "outside" of what is drawn, or "doubtful", if the rendered page decides later
    doubt: Doubt = ""
    unseen: bool = False
    monospaced: bool = False  # whether all characters have the same width
    listing: bool = False  # whether the line is one of a listing, whose line breaks and indentation stay
    angle: float = 0.0  # angle on the page in radians, clockwise from upright text
    columns: tuple[float, ...] = ()  # left edges of the columns, if this line is a row of a table
    head: bool = False  # whether this row is the header of its table
    # words with their left and right edges; empty if unknown
    words: list[tuple[str, float, float]] = field(default_factory=list)
    first_gap: float = 0.0  # width of the gap after the first word
    last_gap: float = 0.0  # width of the gap before the last word
    widest_gap: float = 0.0
    doubled: int = 0  # number of characters left out because they were drawn twice

    def changed(self, **values: Any) -> Line:
        """Return a copy with other values of some fields, in a third of the time of ``dataclasses.replace``."""
        other = object.__new__(Line)
        other.__dict__ = {**self.__dict__, **values}
        return other

    @property
    def turned(self) -> bool:
        return self.angle != 0

    @property
    def row(self) -> bool:
        return bool(self.columns)

    @property
    def height(self) -> float:
        height = self.bottom - self.top
        return height if height > 1e-3 else 1e-3  # faster than max()

    @property
    def type_size(self) -> float:
        return self.size or self.height


def mark_listings(lines: Sequence[Line]) -> None:
    """Mark the lines of program text and the like on a page, and indent them by ``INDENT``. These are lines in a font
    whose characters have the same width. If most of the page is in such a font, as in a typed letter, only program text
    counts.
    """
    typed = sum(line.monospaced for line in lines)
    for _, run in groupby(lines, lambda line: line.monospaced and not line.row and not line.turned) if typed else ():
        block = list(run)
        texts = [line.text for line in block]
        if not block[0].monospaced or len(block) < _LISTED or (2 * typed > len(lines) and not is_program(texts)):
            continue
        left = min(line.x0 for line in block)
        widths = [(line.x1 - line.x0) / len(line.text) for line in block]
        wide = median(widths)
        if 2 * sum(abs(width - wide) < _SAME_WIDTH * wide for width in widths) < len(widths):
            continue  # only the font's name tells of equal widths
        for line in block:
            line.listing = True
            line.text = INDENT * min(round((line.x0 - left) / max(wide, 1e-3)), _DEEPEST) + line.text


def reflow(lines: Sequence[Line], words: Counter[str], margin: Margins | None = None) -> str:
    """Join lines in reading order into text: one line for each paragraph, with a blank line between paragraphs.

    Args:
        lines: lines of one page.
        words: counts of the book's words. The counts decide whether a hyphen at a line end is dropped.
        margin: the right margins; None to measure them in ``lines``.
    """
    if not lines:
        return ""
    margin = margin or Margins([lines])
    pitch = usual_pitch(lines)
    verse = [_is_verse(lines, index) for index in range(len(lines))]
    parts = [lines[0].text]
    for index in range(1, len(lines)):
        above, line = lines[index - 1], lines[index]
        kind = joint(lines, index, margin, pitch, verse[index - 1] and verse[index])
        if kind == "join" and line.top > above.bottom and _ends_blank(above.text):
            kind = "break"
        if is_initial(above, line):
            parts[-1] += ("" if _is_cut(above.text, line.text, words) else " ") + line.text
        elif kind == "join" and (above.cut or above.text.endswith("-")):
            parts[-1] = join_hyphenated(parts[-1], line.text, words)
        else:
            space = "" if _CLOSED.search(above.text) or _WIDE.match(line.text) else " "
            parts.append({"join": space, "break": "\n", "paragraph": "\n\n"}[kind])
            parts.append(line.text)
    return "".join(parts)


def is_initial(above: Line, line: Line) -> bool:
    """Whether ``above`` is a drop cap at the start of ``line``."""
    return (
        len(above.text) <= _INITIAL
        and above.text[-1].isupper()
        and above.type_size > _INITIAL_SIZE * line.type_size
        and line.text[0].isalpha()
        and above.top - line.height < line.top < above.bottom
        and 0 <= line.x0 - above.x1 + line.height / 2 < 2 * line.height
    )


def _is_cut(initial: str, rest: str, words: Counter[str]) -> bool:
    """Whether the drop cap ``initial`` is the first letter of the word at the start of ``rest``, not a word by itself
    as in "A keeper".
    """
    match = LETTERS.match(rest)
    first = match[0].casefold() if match else ""
    alone = initial[-1].casefold()
    # If the book has ``first`` only here, ``first`` is the rest of a word.
    return alone not in _ONE_LETTER or words[alone + first] > 0 or words[first] < 2


def joint(lines: Sequence[Line], index: int, margin: Margins, pitch: float, verse: bool) -> Joint:
    """Decide how line ``index`` is joined to the line above it: "join" (same paragraph), "break" (new line) or
    "paragraph".
    """
    above, line = lines[index - 1], lines[index]
    if above.row or line.row:
        return "break" if above.columns == line.columns else "paragraph"
    if above.listing or line.listing:
        near = 0 < line.top - above.top < _BLANK_LINE * above.height
        return "break" if above.listing and line.listing and near else "paragraph"
    if above.turned or line.turned:
        return "break" if above.turned and line.turned else "paragraph"
    beside = abs(line.top - above.top) < _SAME_ROW * min(above.height, line.height)
    if beside or (above.cut and _goes_on(above, line)):
        return "join"
    taller = abs(above.type_size - line.type_size) > _LARGER * max(above.type_size, line.type_size)
    # a line that is higher on the page than the line before starts the next column or is separate text
    if line.top < above.top - above.height / 2:
        full = not _fits(above, line, margin) and not is_line_ended(above.text)
        return "join" if full and not taller else "paragraph"
    if taller or line.top - above.top > _GAP * max(pitch, line.height * 0.9):
        return "paragraph"
    ended = _fits(above, line, margin) or _ends_entry(lines, index - 1)
    if verse or _is_next_item(above.text, line.text):
        return "break"
    flush = abs(line.x0 - above.x0) <= _INDENT * line.height
    if above.x0 - line.x0 > _INDENT * line.height and _ITEM.match(line.text):
        return "break"
    shift = 0.0 if flush else line.x0 - _base(lines, index)
    indented = abs(shift) > _INDENT * line.height
    if not ended and indented and is_line_ended(above.text):
        return "paragraph"
    if not (ended or _has_room_below(above, line, margin)):
        return "join"
    if indented and shift > 0:
        return "paragraph"
    return "break"


def _ends_entry(lines: Sequence[Line], index: int) -> bool:
    """Whether a line ends an entry of a table of contents: it ends in a page number after dot leaders or after a gap.

    A gap counts because OCR loses the dots. A gap counts only if one of the two preceding or two following lines also
    ends in a page number after a gap, because a single number may be a number in the margin.
    """
    if _LED.search(lines[index].text):
        return True
    return _is_far(lines[index]) and any(
        map(_is_far, (*lines[max(0, index - 2) : index], *lines[index + 1 : index + 3]))
    )


def _ends_blank(text: str) -> bool:
    """Whether a line ends in dots or a stroke on which a person writes an answer, as in "Name ........"."""
    end = text[-2 * _BLANK :].replace(" ", "")[-_BLANK:]
    return len(end) == _BLANK and _BLANK_SIGNS.issuperset(end)


def _is_far(line: Line) -> bool:
    return line.last_gap > _FAR * line.height and _NUMBERED.search(line.text) is not None


def _is_next_item(above: str, line: str) -> bool:
    """Whether both lines start items of the same list: with the same bullet, with ticks or crosses, or with
    consecutive numbers.
    """
    one, two = _ITEM.match(above), _ITEM.match(line)
    if one is None or two is None:
        return False
    first, second = one[0].strip(" .()"), two[0].strip(" .()")
    if len(first) == len(second) == 1 and first.isalpha() and second.isalpha():
        return ord(second) == ord(first) + 1
    if first.isdigit() and second.isdigit():
        return int(second) == int(first) + 1 and not one[0][-2].isdigit()
    return (first == second or {first, second} <= set(_TICKS)) and not first.isalnum()


def _goes_on(above: Line, line: Line) -> bool:
    """Whether ``line`` can start with the rest of the word that is cut at the end of ``above``."""
    below = 0 < line.top - above.top < _CUT_REACH * above.height
    return line.text[0].islower() and (below or line.top < above.top)


class Margins:
    """Finds the right edge of each column. A column is identified by the x position at which its lines start."""

    def __init__(self, pages: Sequence[Sequence[Line]]) -> None:
        ends: dict[int, list[float]] = {}
        for page in pages:
            for line in page:
                if len(line.text) >= _LONG and not line.row:
                    ends.setdefault(round(line.x0 / _BIN), []).append(line.x1)
        self._edges: dict[int, float] = {}
        self._counts = {start: len(rights) for start, rights in ends.items()}
        for start, rights in ends.items():
            rights.sort()
            self._edges[start] = rights[min(len(rights) - 1, int(len(rights) * 0.9))]
        self._starts = sorted(self._edges)
        self._short = _short_edges(pages, self._counts)

    def right(self, line: Line) -> float:
        """Return the right edge of a line's column. If several columns start at or slightly left of the line's start,
        use the column with the most lines.
        """
        key = round(line.x0 / _BIN)
        low = bisect_left(self._starts, key - _REACH)
        best, most = line.x1, 0
        for start in self._starts[low : bisect_left(self._starts, key + 2)]:
            if self._counts[start] > most and self._edges[start] > line.x0:
                best, most = self._edges[start], self._counts[start]
        if not most:
            best = max((self._short.get(start, 0.0) for start in range(key - 1, key + 2)), default=0.0)
        return max(best, line.x1)


def _short_edges(pages: Sequence[Sequence[Line]], long: Mapping[int, int]) -> dict[int, float]:
    """Return the right edges of columns with only short lines, keyed by the bin of their lines' starts.

    In a column of prose, lines end where the next word does not fit, so the right edge is the end of the longest line.
    In a list, lines end with their item. The right edge is moved far beyond the longest line, so that no line of a list
    counts as full.
    """
    columns: dict[int, list[Line]] = {}
    for page in pages:
        for line in page:
            start = round(line.x0 / _BIN)
            if start not in long and not line.row:
                columns.setdefault(start, []).append(line)
    edges = {}
    for start, lines in columns.items():
        edge = max(line.x1 for line in lines)
        ended = sum(_has_room(above, line, edge) for above, line in pairwise(lines))
        going_on = sum(line.text[0].islower() for line in lines)
        is_list = 2 * ended > len(lines) - 1 or (going_on < _GOES_ON * len(lines) and not _WIDE.match(lines[0].text))
        edges[start] = edge + (_FAR_OUT * lines[0].height if is_list else 0.0)
    return edges


def _fits(above: Line, line: Line, margin: Margins) -> bool:
    """Whether the first word of ``line`` would have fit at the end of ``above``."""
    return _has_room(above, line, margin.right(above))


def _has_room_below(above: Line, line: Line, margin: Margins) -> bool:
    """Whether ``line`` starts at the left of ``above`` and its first word would have fit there in the column of
    ``line``. A displayed formula or a caption is centred, so that few lines of a book start where it starts.
    """
    return above.x0 - line.x0 > _INDENT * line.height and _has_room(above, line, margin.right(line))


def _has_room(above: Line, line: Line, edge: float) -> bool:
    word = line.text.split(" ", 1)[0]
    # width of the first word and a space, estimated from the mean character width of ``line``
    width = (line.x1 - line.x0) / max(len(line.text), 1) * (len(word) + 1)
    return edge - above.x1 > width + _SLACK * above.height


def usual_pitch(lines: Sequence[Line]) -> float:
    """Return the median distance between the tops of consecutive lines, but at most ``_LOOSE`` line heights."""
    steps = sorted(b.top - a.top for a, b in pairwise(lines) if b.top > a.top + a.height / 3)
    return min(steps[(len(steps) - 1) // 2], _LOOSE * lines[0].height) if steps else lines[0].height


def _base(lines: Sequence[Line], index: int) -> float:
    """Return the most common ``x0`` of the lines near line ``index`` in the same column."""
    line = lines[index]
    nearby = lines[max(0, index - _NEIGHBOURS) : index + _NEIGHBOURS + 1]
    reach = max(line.x1 - line.x0, 6 * line.height)
    starts = [round(other.x0) for other in nearby if abs(other.x0 - line.x0) < reach]
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
