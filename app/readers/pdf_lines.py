"""Reads the lines of one PDF page in reading order, from pdfium's text and boxes. Runs only in the child process
(``app.readers.child``).

Owns the geometry of a page: its rotation, its rows and its columns. A row is merged from pieces, which are runs of text
without wide gaps. Invisible text is left out (``pdf_unseen``), and filled-in text is put at its place (``pdf_values``).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pypdfium2 as pdfium

from app.readers import cleaning, pdf_calls
from app.readers.inner_pictures import Image
from app.readers.layout import Doubt, Line, is_initial
from app.readers.pdf_cells import MARK_REACH, MARKER, are_columns_of_text, in_columns, is_prose
from app.readers.pdf_charts import boxes_of, charts, gridded, with_charts
from app.readers.pdf_comments import TICKS
from app.readers.pdf_glyphs import PageFonts, with_signs
from app.readers.pdf_grids import Box, Rules, ruling_lines
from app.readers.pdf_limits import with_limits
from app.readers.pdf_pies import pies
from app.readers.pdf_roots import with_roots
from app.readers.pdf_shapes import mark_struck, small_shapes, with_dots, with_fractions
from app.readers.pdf_signs import (
    DIGIT_LAST,
    RAISED,
    RTL,
    SAME_PLACE,
    TOUCH,
    WORD,
    CharacterBoxes,
    as_read,
    joined_rows,
    may_be_doubled,
    once,
    raised_anew,
    raw_text,
    with_raised,
    with_whole_words,
)
from app.readers.pdf_tables import with_tables
from app.readers.pdf_unseen import Layers, Suspects, mark_unseen
from app.readers.recognised import RecognisedPage, pieces_of

_CUT = "\ufffe"  # pdfium's character for a hyphen at a line end
_PIECE = re.compile(rf"[^\r\n{_CUT}\x02]+")
# matches a short table cell; pdfium may join such cells of several rows into one word
_FIGURES = re.compile(r"[A-Za-z\d.,%+−-]{1,12}$")
_PAIR = 3  # words with at most this many letters are not checked for letters that are drawn twice
_LETTERS = re.compile(
    r"[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u052f]{3,}"
)  # matches runs of letters in scripts that separate words with spaces
_FIGURE = re.compile(r"[\d—–−]")  # matches what a cell of figures has
_TAB = 1.2  # maximum gap, in line heights, within a run of text; a wider gap may separate columns, so the run is split
_LIST_MARK = re.compile(r"(?:[•·▪◦‣■□●○\uf0b7]|\(?(?:\d{1,3}|[A-Za-z]|[ivxlc]{1,5})[.):])$")
_FAR_BOX = 8.0  # maximum distance of a checkbox from its text, as a factor of the box's height
_FIELD_REACH = 6.0  # maximum distance, in heights of the field, between a field and its name that runs out of the page
# Maximum distance, in line heights, by which a line may begin above the preceding line and belong to the same block.
_ROW = 0.5
# Maximum distance, in line heights, by which a line may begin below the preceding line and belong to the same block.
_NEAR = 3.0
_MOST_BLOCKS = 150
_FOOTER = 2  # maximum lines of a footer that the file stores before all other text
_COLUMN_ROWS = 6
_COLUMN_LINES = 4  # minimum lines of a column that is put before the column at its right
_ALIKE = 0.7  # minimum share of its width, and of its height, that a column has in common with the column beside it
_AGREE = 0.85  # minimum share of rows with a gap at the position of a gutter between columns
_COLUMN_TEXT = 20  # minimum mean characters of a line in columns of text; cells of tables have fewer
_SAMPLE = 16  # characters of a page that are examined to find its orientation, at least
_QUARTER = math.pi / 2
_SLANTED = 0.4  # maximum distance of an angle from a half of a quarter turn, in quarter turns, that counts as slanting
_TURNED_ROWS = 3  # minimum rows of a table that stands sideways on an upright page
_UPRIGHT = 0.99  # minimum cosine of the angle of upright text
# Maximum words of a line that are compared with a new word. Also the maximum letters of a word in which letters drawn
# twice are searched.
_LOOK = 400
_LEVEL = 0.1  # maximum rotation of an upright character in radians


def page_lines(
    page: pdfium.PdfPage,
    filled: Callable[[str], Sequence[Line]] = lambda _: (),
    layers: Layers | None = None,
    vocab: set[str] | None = None,
    pictures: list[Image] | None = None,
) -> list[Line]:
    """Read the lines of a page.

    Args:
        page: an open page.
        filled: called with the page's own text; returns the values that are filled in on the page.
        layers: the hidden layers of the file; None if there are none.
        vocab: words already checked for missing spaces, in which none was missing. Such words of this page are added.
        pictures: list to which the page's pictures are added.

    Returns:
        Lines in reading order. The x positions of a right-to-left page are mirrored, so that reading starts at ``x0``.
    """
    text_page = _upright(page)
    try:
        text = raw_text(text_page)
        values, suspects = filled(text), Suspects(page, text_page, layers)
        if pictures is not None:
            pictures += suspects.pictures
        boxes = CharacterBoxes(text_page, page.get_rotation(), page.get_bbox())
        fonts = PageFonts(text_page)
        text = joined_rows(with_signs(text, text_page, fonts, suspects.fonts), boxes)
        suspects.monospaced = fonts.monospaced
        shapes = small_shapes(page, suspects.drawn)
        text = with_roots(with_whole_words(text, boxes), boxes, shapes)
        text = with_fractions(with_limits(text, boxes, shapes.bars), boxes, shapes)  # limits in fractions first
        text = as_read(with_roots(with_limits(text, boxes), boxes, shapes), boxes)
        pieces = _pieces(text, boxes, suspects, set() if vocab is None else vocab)
        mark_struck(pieces, boxes, suspects.turn, suspects.drawn, shapes.read)
    finally:
        text_page.close()
    mark_unseen(page, pieces)
    beside = _sideways_tables(pieces)
    drawn = _charts(pieces, page, suspects)
    _levelled(pieces)
    if not pieces:
        return with_charts(list(values), drawn)
    if sum(piece.height > 2 * abs(piece.x1 - piece.x0) and len(piece.text) > 3 for piece in pieces) * 2 > len(pieces):
        return _vertical(pieces)
    pieces = [piece for piece in pieces if piece.text]
    for (x0, x1, top, bottom), ticked in shapes.boxes:
        _joins_its_words(pieces, Line(TICKS[ticked], x0, x1, top, bottom, size=bottom - top))
    with_dots(pieces, shapes.dots)
    pieces = _with_markers(_with_values(pieces, values, page.get_width()))
    pieces = with_tables(pieces, lambda: ruling_lines(suspects.turn, suspects.drawn), len(suspects.drawn))
    return with_charts(_with_tables_beside(_arranged(_columns(pieces)), beside), drawn)


def _charts(pieces: list[Line], page: pdfium.PdfPage, suspects: Suspects) -> list[list[Line]]:
    """Take the words of the drawn charts from a page's pieces of text. Return the rows of each chart."""
    boxes = suspects.boxes + gridded(suspects.drawn, suspects.turn)
    return pies(pieces, page, suspects.drawn) + charts(pieces, boxes_of(boxes, *page.get_size()))


def _with_tables_beside(lines: list[Line], tables: list[list[Line]]) -> list[Line]:
    """Insert each table that lies on its side after the last line that begins above the table's end."""
    for table in tables:
        below = next((at for at in range(len(lines), 0, -1) if lines[at - 1].top < table[0].bottom), 0)
        lines[below:below] = table
    return lines


def recognised_lines(page: RecognisedPage) -> list[Line]:
    """Return the lines that OCR found on a page, in the form of ``page_lines``."""
    return _arranged(with_tables(_with_markers(pieces_of(page)), Rules, 0))


def _arranged(pieces: list[Line]) -> list[Line]:
    """Arrange the pieces of a page as lines in reading order. Mirror the x positions of a right-to-left page."""
    lines = _from_above(_merged(pieces))
    if _right_to_left(lines):
        width = max(line.x1 for line in lines)
        lines = [replace(line, x0=width - line.x1, x1=width - line.x0) for line in lines]
    return lines


def _upright(page: pdfium.PdfPage) -> pdfium.PdfTextPage:
    """Open the page's text. If most letters are sideways or upside down, rotate the page first."""
    text_page = page.get_textpage()
    count = text_page.count_chars()
    text, rotation = pdf_calls.handle(text_page.raw), page.get_rotation()
    sample = range(0, count, count // _SAMPLE + 1)
    angles = [pdf_calls.angle(text, at) for at in sample if pdf_calls.is_generated(text, at) != 1]
    if not rotation and not any(angles):
        return text_page
    turns = Counter(round(angle / _QUARTER) % 4 for angle in angles if abs(angle / _QUARTER % 1 - 0.5) > _SLANTED)
    turn, most = turns.most_common(1)[0] if turns else (0, 0)
    wanted = -90 * turn % 360
    if wanted == rotation or most * 2 <= len(angles):
        return text_page
    text_page.close()
    page.set_rotation(wanted)
    return page.get_textpage()


def _pieces(text: str, boxes: CharacterBoxes, suspects: Suspects, vocab: set[str]) -> list[Line]:
    pieces: list[Line] = []
    for match in _PIECE.finditer(text):
        start, end = match.span()
        # the end of a word, whose box is needed anyway
        middle = max(start, text.rfind(" ", start, (start + end) // 2) - 1)
        if boxes.is_level(start, middle, end):
            lines = _words(text, match, boxes, suspects, vocab)
        else:
            lines = [
                piece
                for part, angle in _by_angle(text, match, boxes)
                for piece in (
                    _turned(text, part, angle, boxes, suspects) if angle else _words(text, part, boxes, suspects, vocab)
                )
            ]
        for piece in lines:
            piece.text = cleaning.tidy(piece.text)
            piece.shown = boxes.shows(piece)
        if lines and text[match.end() : match.end() + 1] in (_CUT, "\x02"):
            lines[-1].text += "-"
            lines[-1].cut = True
        pieces += lines
    return pieces


def _words(text: str, match: re.Match[str], boxes: CharacterBoxes, suspects: Suspects, vocab: set[str]) -> list[Line]:
    """Convert the run of text ``match`` to lines. It becomes several lines if it has wide gaps or several rows, or if
    only a part of it may be invisible.
    """
    lines: list[Line] = []
    line: Line | None = None
    height = 0.0
    written = 0
    whole: Doubt | None = None
    numbers = boxes.numbers
    stacked = boxes.upright and all(map(_FIGURES.match, match[0].split()))
    for start, end in _parted(text, match, boxes, vocab, stacked=stacked):
        box = boxes.span(start, end - 1)
        if box is None:
            continue
        x0, x1, top, bottom = box
        word, doubled = text[start:end], 0
        # most words have nothing but letters, none of them twice
        if not (word.isalpha() and word.isascii() and (end - start <= _PAIR or word[0] != word[1])):
            word, doubled = _as_printed(word, start, box, boxes)
        if not lines and RAISED.match(word):
            word = raised_anew(text, start, word, boxes)
        if line is not None and x0 < line.x1 - TOUCH * height and _stands_there(line, word, x0, top):
            written = end
            line.doubled += end - start
            continue
        if not lines:
            whole = suspects.doubt_of_all(boxes.pdfium_number(start), boxes.pdfium_number(match.end() - 1), box)
        doubt = suspects.doubt(start if numbers is None else numbers[start], box) if whole is None else whole
        gap = 0.0 if line is None else x0 - line.x1 if x0 >= line.x1 else _gap(line, x0, x1)
        if (
            line is None
            or doubt != line.doubt
            or gap > _TAB * height
            or (
                top >= line.bottom and x0 < line.x1 and (line.x1 - line.x0 > height or stacked)
            )  # the word is below the line, so pdfium has joined two rows
        ):
            line = Line(word, x0, x1, top, bottom, size=bottom - top, doubt=doubt, words=[(word, x0, x1)])
            line.monospaced = suspects.is_monospaced
            lines.append(line)
        else:
            _append(line, (text[written:start] or " ") + word, gap, (word, x0, x1), (top, bottom))
        height = line.height
        if doubled:
            line.doubled += doubled
        written = end
    return lines


def _by_angle(text: str, match: re.Match[str], boxes: CharacterBoxes) -> Iterator[tuple[re.Match[str], float]]:
    """Split a run of text into parts in one direction. Yield each part and its angle in radians, clockwise from upright
    text.
    """
    start = match.start()
    last: float | None = None
    for word in WORD.finditer(text, match.start(), match.end()):
        angle = boxes.angle(word.start())
        if last is not None and abs(angle - last) > _LEVEL:
            if part := _PIECE.match(text, start, word.start()):
                yield part, last
            start = word.start()
        last = angle if last is None or start == word.start() else last
    if last is not None and (part := _PIECE.match(text, start, match.end())):
        yield part, last


def _turned(text: str, match: re.Match[str], angle: float, boxes: CharacterBoxes, suspects: Suspects) -> list[Line]:
    """Convert a run of text at an angle to lines. A word that does not stand behind the word before begins a line."""
    across, down = math.cos(angle), math.sin(angle)
    lines: list[Line] = []
    end = level = 0.0
    for word in WORD.finditer(text, match.start(), match.end()):
        first, last = (boxes.span(at, at) for at in (word.start(), word.end() - 1))
        box = boxes.span(word.start(), word.end() - 1)
        if first is None or last is None or box is None:
            continue
        wide, tall = first[1] - first[0], first[3] - first[2]
        size = tall if abs(across) > _UPRIGHT else wide if abs(down) > _UPRIGHT else max(wide, tall)
        (x0, y0), (x1, y1) = (((one[0] + one[1]) / 2, (one[2] + one[3]) / 2) for one in (first, last))
        begins, ends, place = x0 * across + y0 * down, x1 * across + y1 * down, y0 * across - x0 * down
        if lines and abs(place - level) < size / 2 and -size < begins - end < _TAB * size + size:
            line = lines[-1]
            line.text += f" {word[0]}"
            line.x0, line.x1 = min(line.x0, box[0]), max(line.x1, box[1])
            line.top, line.bottom = min(line.top, box[2]), max(line.bottom, box[3])
        else:
            doubt = suspects.doubt(boxes.pdfium_number(word.start()), box)
            lines.append(Line(word[0], *box, size=size, doubt=doubt, angle=angle))
        end, level = ends, place
    return lines


def _sideways_tables(pieces: list[Line]) -> list[list[Line]]:
    """Take the tables that stand sideways on an upright page from its pieces of text. Return the rows of each, read in
    the direction of their text. Names of columns that are turned have one piece in a row, not several.
    """
    tables: list[list[Line]] = []
    for down in (False, True):
        part = [piece for piece in pieces if piece.shown and _is_sideways(piece, down=down)]
        if len(part) < _TURNED_ROWS:
            continue
        flat = [
            replace(
                piece, angle=0.0,
                x0=piece.top if down else -piece.bottom, x1=piece.bottom if down else -piece.top,
                top=-piece.x1 if down else piece.x0, bottom=-piece.x0 if down else piece.x1,
            )
            for piece in part
        ]  # fmt: skip
        for piece in flat:
            piece.words = [(piece.text, piece.x0, piece.x1)]
        flat.sort(key=lambda piece: (piece.top + piece.bottom, piece.x0))
        rows = with_tables(flat, Rules, 0)
        if sum(row.row for row in rows) < _TURNED_ROWS:
            continue
        taken = set(map(id, part))
        pieces[:] = [piece for piece in pieces if id(piece) not in taken]
        angle = _QUARTER if down else -_QUARTER
        box = [min(one.x0 for one in part), max(one.x1 for one in part)]
        ends = [min(one.top for one in part), max(one.bottom for one in part)]
        tables.append([replace(row, x0=box[0], x1=box[1], top=ends[0], bottom=ends[1], angle=angle) for row in rows])
    return tables


def _is_sideways(piece: Line, *, down: bool) -> bool:
    """Whether a piece of text is turned by a quarter, to the right (``down``) or to the left."""
    return piece.turned and abs(piece.angle % math.tau - (_QUARTER if down else 3 * _QUARTER)) < _LEVEL


def _levelled(pieces: Sequence[Line]) -> None:
    """Shrink the box of each piece at an angle to the height of a line at its lower end, where the name of a column or
    a mark of an axis stands beside what it names.
    """
    for piece in pieces:
        if piece.turned:
            piece.top = max(piece.top, piece.bottom - piece.size)
            piece.words = [(piece.text, piece.x0, piece.x1)]


def _gap(line: Line, x0: float, x1: float) -> float:
    """Return the gap between a line and the next word, which spans ``x0`` to ``x1``. The next word may be at the left
    of the line, as in right-to-left text.
    """
    return line.x0 - x1 if x0 < line.x1 and x1 < line.x0 else x0 - line.x1


def _as_printed(word: str, start: int, box: Box, boxes: CharacterBoxes) -> tuple[str, int]:
    """Return the word as a reader sees it, and the number of letters removed. Of letters drawn twice, only one is kept,
    and superscripts are marked.
    """
    drawn = len(word)
    x0, x1, top, bottom = box
    if (
        _PAIR < drawn < _LOOK
        and (word[0] == word[1] or not word[0].isascii())
        and may_be_doubled(word, x1 - x0, bottom - top)
    ):
        word = once(word, start, boxes)
    doubled = drawn - len(word)
    if drawn > 1 and not word[-1].isalpha() and DIGIT_LAST.search(word):
        word = with_raised(word, start, boxes)
    return word, doubled


def _append(line: Line, text: str, gap: float, word: tuple[str, float, float], rows: tuple[float, float]) -> None:
    """Append a word to a line.

    Args:
        line: the line, which is changed in place.
        text: the word and the spaces before it.
        gap: the gap between the line and the word, in points.
        word: (text, left edge, right edge) of the word.
        rows: (top, bottom) of the word.
    """
    _, x0, x1 = word
    line.last_gap = gap
    line.first_gap = line.first_gap or gap
    if gap > line.widest_gap:  # comparisons are faster than max()
        line.widest_gap = gap
    if x0 < line.x0:
        line.x0 = x0
    if x1 > line.x1:
        line.x1 = x1
    if rows[0] < line.top or rows[1] > line.bottom:
        line.top, line.bottom = min(line.top, rows[0]), max(line.bottom, rows[1])
    line.text += text
    line.words.append(word)


def _stands_there(line: Line, word: str, x0: float, top: float) -> bool:
    """Whether the line already has the same word at this position. Some programs draw words twice to make them bold."""
    reach = SAME_PLACE * line.height
    return abs(top - line.top) < reach and any(
        word == other and abs(x0 - x) < reach for other, x, _ in line.words[-_LOOK:]
    )


def _parted(
    text: str, match: re.Match[str], boxes: CharacterBoxes, vocab: set[str], *, stacked: bool
) -> Iterator[tuple[int, int]]:
    """Yield start and end of each word in a run of text. A word is split where pdfium missed a space.

    Args:
        text: the page's text.
        match: the run.
        boxes: boxes of the characters.
        vocab: words already checked, in which no space was missing; further such words are added.
        stacked: whether a word may consist of several short cells, one below another.
    """
    for word in WORD.finditer(text, match.start(), match.end()):
        printed, (start, end) = word[0], word.span()
        known = printed in vocab
        if known and not stacked:
            yield start, end
            continue
        figures = not known and not printed.isalpha() and _FIGURE.search(printed) is not None
        for far in boxes.far_apart(start, end) if figures and end - start > 1 else ():
            yield start, far
            start = far
        for row in boxes.rows(start, end) if stacked and end - start > 1 else ():
            yield start, row
            start = row
        if known:
            yield start, end
            continue
        for letters in _LETTERS.finditer(text, start, end):
            if letters[0] in vocab:
                continue
            next_start = boxes.wide_gap(*letters.span())
            if next_start is None:
                vocab.add(letters[0])
            else:
                yield start, next_start
                start = next_start
        if start == word.start() and not figures:  # the same figures may be one number here and two elsewhere
            vocab.add(printed)
        yield start, end


def same_row(one: Line, two: Line) -> bool:
    top, bottom, upper, lower = one.top, one.bottom, two.top, two.bottom
    overlap = (bottom if bottom < lower else lower) - (top if top > upper else upper)  # faster than min() and max()
    return overlap > 0.5 * (bottom - top) or overlap > 0.5 * (lower - upper)


def _with_values(pieces: list[Line], values: Sequence[Line], width: float) -> list[Line]:
    """Insert each filled-in value after the text to its left. If there is none, insert the value before the first piece
    of text that is not above it. A tick is joined to the text next to it instead. Lines outside of the page, of which a
    field of a million letters has thousands, have no place and follow at the end. The name beside a field counts as
    shown if any of it is on the page, which has the given width.
    """
    pieces, beyond = list(pieces), [value for value in values if not value.shown]
    for name in [piece for piece in pieces if not piece.shown and piece.x1 > 0 and piece.x0 < width]:
        name.shown = any(
            same_row(name, value) and max(name.x0 - value.x1, value.x0 - name.x1) < _FIELD_REACH * value.height
            for value in values
            if value.shown
        )
    for value in values:
        if not value.shown:
            continue
        if value.text in TICKS and _joins_its_words(pieces, value):
            continue
        left = [at for at, piece in enumerate(pieces) if same_row(piece, value) and piece.x0 <= value.x0]
        if left:
            at = max(left, key=lambda at: pieces[at].x0) + 1
        else:
            at = next((at for at, piece in enumerate(pieces) if piece.top >= value.top), len(pieces))
        pieces.insert(at, value)
    return pieces + beyond


def _joins_its_words(pieces: Sequence[Line], tick: Line) -> bool:
    """Join a tick to the text at its left or at its right, whichever is nearer. Return False if neither is near
    enough.
    """
    row = [piece for piece in pieces if same_row(piece, tick)]
    left = max((piece for piece in row if piece.x1 <= tick.x0 + 1), key=lambda piece: piece.x1, default=None)
    right = min((piece for piece in row if piece.x0 >= tick.x1 - 1), key=lambda piece: piece.x0, default=None)
    before = tick.x0 - left.x1 if left is not None else _FAR_BOX * tick.height
    after = right.x0 - tick.x1 if right is not None else _FAR_BOX * tick.height
    if left is not None and before <= after and before < _FAR_BOX * tick.height:
        left.text, left.x1 = f"{left.text} {tick.text}", tick.x1
        left.words.append((tick.text, tick.x0, tick.x1))
        return True
    if right is not None and after < _FAR_BOX * tick.height:
        right.text, right.x0 = f"{tick.text} {right.text}", tick.x0
        right.words.insert(0, (tick.text, tick.x0, tick.x1))
        return True
    return False


def _with_markers(pieces: list[Line]) -> list[Line]:
    """Move list markers in front of their items, because some programs store all markers at the end of a page."""
    loose = [
        at
        for at, piece in enumerate(pieces)
        if at and _LIST_MARK.match(piece.text) and not (at + 1 < len(pieces) and _is_marked(piece, pieces[at + 1]))
    ]
    taken: dict[int, list[Line]] = {}
    moved: set[int] = set()
    for at in loose:
        mark = pieces[at]
        item = next((other for other in range(at) if _is_marked(mark, pieces[other]) and other not in moved), None)
        if item is not None and not (item and same_row(pieces[item - 1], mark) and pieces[item - 1].x0 < mark.x0):
            taken.setdefault(item, []).append(mark)
            moved.add(at)
    if not moved:
        return pieces
    return [one for at, piece in enumerate(pieces) if at not in moved for one in (*taken.get(at, ()), piece)]


def _is_marked(mark: Line, item: Line) -> bool:
    """Whether a list item starts right after a list marker."""
    return same_row(mark, item) and -0.1 * mark.height < item.x0 - mark.x1 < MARK_REACH * mark.height


def _from_above(lines: list[Line]) -> list[Line]:
    """Put each block of lines after all blocks above it in its column. Otherwise keep the order of the file.

    A title that the file stores after the text moves to the front, and a footer that the file stores before the text
    moves to the end. Columns stay one after another.
    """
    blocks = _blocks(lines)
    boxes = [
        (
            min(line.x0 for line in block),
            max(line.x1 for line in block),
            min(line.top for line in block),
            max(line.bottom for line in block),
        )
        for block in blocks
    ]
    if len(blocks) < 2 or len(blocks) > _MOST_BLOCKS:
        return lines
    above = [
        {number for number, other in enumerate(boxes) if number != here and _is_above(other, box)}
        for here, box in enumerate(boxes)
    ]
    for here, box in enumerate(boxes):
        above[here].update(
            number
            for number in range(here + 1, len(boxes))
            if _is_left_column(blocks[number], boxes[number], blocks[here], box)
        )
    if len(blocks[0]) <= _FOOTER and all(_ends_before(box, boxes[0]) for box in boxes[1:]):
        above[0] = set(range(1, len(blocks)))
    if not any(one > number for number, some in enumerate(above) for one in some):
        return lines
    order: dict[int, None] = {}
    for number in range(len(blocks)):
        waiting = [number]
        # A block comes after all blocks above it. Blocks keep their order if they are above each other, as A above B, B
        # above C, and C above A.
        while waiting:
            here = waiting[-1]
            before = min(above[here] - order.keys() - set(waiting), default=None)
            if before is None:
                order[waiting.pop()] = None
            else:
                waiting.append(before)
    return [line for number in order for line in blocks[number]]


def _blocks(lines: Sequence[Line]) -> list[list[Line]]:
    """Split lines in the order of the file before each line that is not right below the line before."""
    blocks: list[list[Line]] = []
    for at, line in enumerate(lines):
        last = blocks[-1][-1] if blocks else None
        near = last is not None and -_ROW * line.height < line.top - last.top < _NEAR * max(line.height, last.height)
        if last is not None and near and not _begins_column(last, lines[at : at + _COLUMN_LINES]):
            blocks[-1].append(line)
        else:
            blocks.append([line])
    return blocks


def _begins_column(last: Line, lines: Sequence[Line]) -> bool:
    """Whether ``lines`` begin a column of text at the right of ``last``, such as a title above the left column."""
    return (
        lines[0].x0 > last.x1 + lines[0].height
        and len(lines) == _COLUMN_LINES
        and all(two.top > one.top and two.x0 > last.x1 for one, two in pairwise(lines))
    )


def _is_left_column(left: Sequence[Line], one: Box, right: Sequence[Line], two: Box) -> bool:
    """Whether two blocks are columns of text side by side, ``left`` and ``right``. Some files store the right first."""
    if min(len(left), len(right)) < _COLUMN_LINES or one[1] > two[0]:
        return False
    wide = sorted((one[1] - one[0], two[1] - two[0]))
    beside = min(one[3], two[3]) - max(one[2], two[2])
    if wide[0] < _ALIKE * wide[1] or beside < _ALIKE * max(one[3] - one[2], two[3] - two[2]):
        return False
    return is_prose(left) and is_prose(right) and not RTL.search(left[0].text)


def _is_above(one: Box, two: Box) -> bool:
    """Whether block ``one`` ends above the start of block ``two``, and the two blocks overlap horizontally."""
    return _ends_before(one, two) and min(one[1], two[1]) > max(one[0], two[0])


def _ends_before(one: Box, two: Box) -> bool:
    return one[3] <= two[2] + min(2.0, (two[3] - two[2]) / 4)


def _merged(pieces: list[Line]) -> list[Line]:
    """Merge consecutive pieces of text in the same row into one line."""
    lines: list[Line] = []
    for piece in pieces:
        last = lines[-1] if lines else None
        if (
            last is None
            or last.cut
            or last.row
            or piece.row
            or is_initial(last, piece)
            or last.shown != piece.shown
            or last.turned
            or piece.turned
            or not same_row(last, piece)
            or not _continues(last, piece)
        ):
            lines.append(piece)
            continue
        gap = max(piece.x0 - last.x1, last.x0 - piece.x1)
        space = "" if gap < TOUCH * min(last.height, piece.height) else " "
        if space:
            last.first_gap = last.first_gap or gap
            last.last_gap = piece.last_gap or gap
        last.text = f"{last.text}{space}{piece.text}"
        last.x0, last.x1 = min(last.x0, piece.x0), max(last.x1, piece.x1)
        if len(piece.text) > 2:
            last.top, last.bottom = min(last.top, piece.top), max(last.bottom, piece.bottom)
        if any(map(str.isalnum, piece.text)):  # not a tall bracket or a sign of a formula
            last.size = max(last.size, piece.size)
        last.doubled += piece.doubled
        last.monospaced = last.monospaced and piece.monospaced
        last.cut = piece.cut
    return lines


def _continues(last: Line, piece: Line) -> bool:
    if RTL.search(last.text):
        return piece.x1 <= last.x0 + 0.3 * last.height or piece.x0 >= last.x1 - 0.3 * last.height
    return piece.x0 >= last.x1 - 0.3 * last.height


def _columns(pieces: list[Line]) -> list[Line]:
    """Return the pieces of text of a page in reading order: column after column, from the left.

    Changes only pages that the file stores row by row, because most files store one column after another. A table stays
    row by row. Its cells are shorter than the lines of columns of text.
    """
    pairs = [
        (one, two)
        for one, two in pairwise(pieces)
        if two.x0 - one.x1 > _TAB * one.height
        and not (one.row or two.row)
        and same_row(one, two)
        and not MARKER.match(one.text)
    ]
    if len(pairs) < _COLUMN_ROWS or sum(len(one.text) + len(two.text) for one, two in pairs) < (
        2 * _COLUMN_TEXT * len(pairs)
    ):
        return _short_columns(pieces) if pairs else pieces
    gutters = _gutters([(one.x1, two.x0) for one, two in pairs])
    gutters = [x for x in gutters if sum(piece.x0 < x < piece.x1 for piece in pieces) <= len(pairs) / 2]
    between = sum(any(one.x1 <= x <= two.x0 for x in gutters) for one, two in pairs)
    if between < _AGREE * len(pairs):
        return _short_columns(pieces)
    ordered: list[Line] = []
    columns: list[list[Line]] = [[] for _ in range(len(gutters) + 1)]
    for piece in pieces:
        if any(piece.x0 < x < piece.x1 for x in gutters):
            ordered += [line for column in columns for line in column]
            columns = [[] for _ in columns]
            ordered.append(piece)
        else:
            columns[bisect_left(gutters, piece.x1)].append(piece)
    return ordered + [line for column in columns for line in column]


def _short_columns(pieces: list[Line]) -> list[Line]:
    """Return the pieces of text of a page, with short columns of text, as on slides and leaflets, one after another."""
    rows: list[list[Line]] = []
    for piece in pieces:
        last = rows[-1][-1] if rows else None
        if last is not None and piece.x0 > last.x1 and not (last.row or piece.row) and same_row(last, piece):
            rows[-1].append(piece)
        else:
            rows.append([piece])
    ordered: list[Line] = []
    at = 0
    while at < len(rows):
        cells = in_columns(rows, at)
        if are_columns_of_text(cells):
            ordered += [line for column in range(len(cells[0])) for row in cells for line in row[column]]
            at += len(cells)
        else:
            ordered += rows[at]
            at += 1
    return ordered


def _gutters(gaps: list[tuple[float, float]]) -> list[float]:
    """Return the x positions of the gutters between columns, from left to right.

    A gutter is at the x position where most of the ``gaps`` overlap. These gaps are dropped before the next gutter is
    searched.
    """
    gutters: list[float] = []
    while len(gaps) >= _COLUMN_ROWS:
        edges = sorted([(start, -1) for start, _ in gaps] + [(end, 1) for _, end in gaps])
        depth, deepest, best = 0, 0, 0.0
        for at, (x, step) in enumerate(edges[:-1]):
            depth -= step
            if depth > deepest:
                deepest, best = depth, (x + edges[at + 1][0]) / 2
        if deepest < _COLUMN_ROWS:
            break
        gutters.append(best)
        gaps = [gap for gap in gaps if not gap[0] <= best <= gap[1]]
    return sorted(gutters)


def _right_to_left(lines: list[Line]) -> bool:
    signs = "".join(line.text for line in lines[:60])
    rtl_count = len(RTL.findall(signs))
    return rtl_count > 0 and rtl_count > sum(map(str.isalpha, signs)) / 2


def _vertical(pieces: list[Line]) -> list[Line]:
    """Return the lines of a page with vertical text, such as Japanese, one below another as if they were horizontal."""
    kept = [piece for piece in pieces if piece.text]
    height = 1.0
    return [
        Line(piece.text, 0.0, float(len(piece.text)), 3.0 * row, 3.0 * row + height) for row, piece in enumerate(kept)
    ]
