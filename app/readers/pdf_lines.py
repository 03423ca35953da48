"""The lines of one PDF page, in reading order, from pdfium's text and boxes.

Owns geometry: rotation, pieces of one printed row, columns that a file stores row by row. Knows nothing of paragraphs,
of other pages, or of what is furniture.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import cleaning, pdf_unseen
from app.readers.lines import Line
from app.readers.pdf_boxes import Box, Boxes

_CUT = "\ufffe"  # pdfium's sign for a hyphen at a line end
_PIECE = re.compile(rf"[^\r\n{_CUT}\x02]+")
_WORD = re.compile(r"\S+")
_TAB = 1.2  # line heights of empty space inside a row that may be a gutter between columns
_TOUCH = 0.15  # line heights between two pieces of one word
_APART = 1.0  # line heights up to which two pieces are one run of text
_COLUMN_ROWS = 6
_AGREE = 0.85  # of the rows must part at a gutter
_COLUMN_TEXT = 20  # characters a cell has on average when it is a column of text and not of a table
_RTL_SIGNS = r"\u0590-\u065f\u066e-\u06ef\u06fa-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"  # without digits
_RTL = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_RTL_WORD = re.compile(f"[{_RTL_SIGNS}]{{2,}}")
_RTL_PHRASE = re.compile(f"[{_RTL_SIGNS}]+(?: +[{_RTL_SIGNS}]+)+")
_SPELLED = 2  # letters that one ligature has at most
_UPSIDE_DOWN = 180
_LOOK = 400  # characters by which it is judged how the letters of a page stand
_LEVEL = 0.1  # radians


def page_lines(page: pdfium.PdfPage, values: Sequence[Line] = ()) -> list[Line]:
    """Args:
        page: an open page.
        values: what was filled in on it, which is no part of its own text.

    Returns:
        lines whose ``x0`` is the edge where reading starts; right-to-left pages are mirrored.
    """
    text_page = _upright(page)
    try:
        pieces = _pieces(text_page, page.get_rotation(), page.get_bbox(), pdf_unseen.Ink(page, text_page))
    finally:
        text_page.close()
    pdf_unseen.hide(page, pieces)
    if not pieces:
        return list(values)
    tall = sum(piece.height > 2 * abs(piece.x1 - piece.x0) and len(piece.text) > 3 for piece in pieces)
    if tall * 2 > len(pieces):
        return _vertical(pieces)
    lines = _merged(_with_values(_columns(pieces), values))
    if _right_to_left(lines):
        width = max(line.x1 for line in lines)
        lines = [replace(line, x0=width - line.x1, x1=width - line.x0) for line in lines]
    return lines


def _upright(page: pdfium.PdfPage) -> pdfium.PdfTextPage:
    """The page's text, read as its letters stand: a page that is shown upside down is turned round first."""
    text_page = page.get_textpage()
    if page.get_rotation() != _UPSIDE_DOWN:
        return text_page
    angles = [raw.FPDFText_GetCharAngle(text_page.raw, index) for index in range(min(text_page.count_chars(), _LOOK))]
    if sum(abs(angle) < _LEVEL for angle in angles) * 2 <= len(angles):
        return text_page
    text_page.close()
    page.set_rotation(0)
    return page.get_textpage()


def _pieces(text_page: pdfium.PdfTextPage, rotation: int, visible: Box, ink: pdf_unseen.Ink) -> list[Line]:
    boxes = Boxes(text_page, rotation, visible)
    text = _as_read(raw_text(text_page), boxes)
    pieces: list[Line] = []
    for match in _PIECE.finditer(text):
        found = _words(text, match, boxes, ink)
        for piece in found:
            piece.text = tidy(piece.text)
            piece.shown = boxes.shows(piece)
        if found and text[match.end() : match.end() + 1] in (_CUT, "\x02"):
            found[-1].text += "-"
            found[-1].cut = True
        pieces += found
    return pieces


def raw_text(text_page: pdfium.PdfTextPage) -> str:
    """pdfium's text of a page, one sign for each of its characters."""
    count = text_page.count_chars()
    text: str = text_page.get_text_range() if count else ""
    if len(text) != count:  # rare: some characters have no text or two; go by pdfium's own count
        text = "".join(chr(raw.FPDFText_GetUnicode(text_page.raw, index)) for index in range(count))
        text = text.replace("\x00", " ")
    return text


def text_as_read(page: pdfium.PdfPage, text_page: pdfium.PdfTextPage) -> str:
    """``raw_text`` with right-to-left words in the order of reading, as ``page_lines`` has them."""
    return _as_read(raw_text(text_page), Boxes(text_page, page.get_rotation(), page.get_bbox()))


def _as_read(text: str, boxes: Boxes) -> str:
    """Right-to-left words and phrases in the order in which they are read, which not every file leaves them in.

    Where they stand on the page tells: of letters that run to the right, or are all one box because the file spelled
    the word out, the order is turned round.
    """
    signs = list(text)
    for match in _RTL_WORD.finditer(text):
        one, two = boxes.place(match.start()), boxes.place(match.end() - 1)
        if one is not None and two is not None and (one < two or (one == two and len(match[0]) > _SPELLED)):
            signs[match.start() : match.end()] = reversed(match[0])
    text = "".join(signs)
    for match in _RTL_PHRASE.finditer(text):
        words = list(_WORD.finditer(text, match.start(), match.end()))
        places = [boxes.place(word.start()) for word in words]
        if all(one is not None and two is not None and one < two for one, two in pairwise(places)):
            signs[match.start() : match.end()] = " ".join(word[0] for word in reversed(words)).ljust(len(match[0]))
    return "".join(signs)


def _words(text: str, match: re.Match[str], boxes: Boxes, ink: pdf_unseen.Ink) -> list[Line]:
    """One piece of text as one line, or as several where wide gaps divide it."""
    found: list[Line] = []
    begin = 0
    for word in _WORD.finditer(text, match.start(), match.end()):
        box = boxes.span(word.start(), word.end() - 1)
        if box is None:
            continue
        x0, x1, top, bottom = box
        line = found[-1] if found else None
        suspect = ink.is_suspect(word.start())
        if line is None or suspect != line.suspect or max(x0 - line.x1, line.x0 - x1) > _TAB * line.height:
            begin = word.start()
            found.append(Line(word.group(), x0, x1, top, bottom, size=bottom - top, suspect=suspect))
            continue
        line.x0, line.x1 = min(line.x0, x0), max(line.x1, x1)
        line.top, line.bottom = min(line.top, top), max(line.bottom, bottom)
        line.text = text[begin : word.end()]
    return found


def tidy(text: str) -> str:
    """Surrogate pairs put together, unwanted signs dropped."""
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    return " ".join(cleaning.characters(text).split())


def same_row(one: Line, two: Line) -> bool:
    overlap = min(one.bottom, two.bottom) - max(one.top, two.top)
    return overlap > 0.5 * min(one.height, two.height)


def _with_values(pieces: list[Line], values: Sequence[Line]) -> list[Line]:
    """Each value behind what stands to its left, or above what stands below it."""
    pieces = list(pieces)
    for value in values:
        left = [at for at, piece in enumerate(pieces) if same_row(piece, value) and piece.x0 <= value.x0]
        if left:
            at = max(left, key=lambda at: pieces[at].x0) + 1
        else:
            at = next((at for at, piece in enumerate(pieces) if piece.top >= value.top), len(pieces))
        pieces.insert(at, value)
    return pieces


def _merged(pieces: list[Line]) -> list[Line]:
    """Neighbouring pieces of one row made one line."""
    lines: list[Line] = []
    for piece in pieces:
        if not piece.text:
            continue
        last = lines[-1] if lines else None
        if (
            last is None
            or last.cut
            or last.shown != piece.shown
            or not same_row(last, piece)
            or not _continues(last, piece)
        ):
            lines.append(piece)
            continue
        gap = max(piece.x0 - last.x1, last.x0 - piece.x1)
        space = "" if gap < _TOUCH * last.height else " "
        last.text = f"{last.text}{space}{piece.text}"
        last.x0, last.x1 = min(last.x0, piece.x0), max(last.x1, piece.x1)
        if len(piece.text) > 2:
            last.top, last.bottom = min(last.top, piece.top), max(last.bottom, piece.bottom)
        last.size = max(last.size, piece.size)
        last.cut = piece.cut
    return lines


def _continues(last: Line, piece: Line) -> bool:
    if _RTL.search(last.text):
        return piece.x1 <= last.x0 + 0.3 * last.height or piece.x0 >= last.x1 - 0.3 * last.height
    return piece.x0 >= last.x1 - 0.3 * last.height


def _columns(pieces: list[Line]) -> list[Line]:
    """Rows that run across two columns taken apart: the left column first, then the right one.

    Most files store their columns one after the other; then there is nothing to do. A table, whose cells belong
    side by side, is told by its short cells.
    """
    pairs = [(one, two) for one, two in pairwise(pieces) if same_row(one, two) and two.x0 - one.x1 > _TAB * one.height]
    if len(pairs) < _COLUMN_ROWS or sum(len(one.text) + len(two.text) for one, two in pairs) < (
        2 * _COLUMN_TEXT * len(pairs)
    ):
        return pieces
    gutters = _gutters([(one.x1, two.x0) for one, two in pairs])
    gutters = [x for x in gutters if sum(piece.x0 < x < piece.x1 for piece in pieces) <= len(pairs) / 2]
    between = sum(any(one.x1 <= x <= two.x0 for x in gutters) for one, two in pairs)
    if between < _AGREE * len(pairs):
        return pieces
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


def _gutters(gaps: list[tuple[float, float]]) -> list[float]:
    """Where the columns part, from left to right: the points that lie in most of the gaps between pieces of rows."""
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
    letters = sum(sign.isalpha() for sign in signs)
    return letters > 0 and len(_RTL.findall(signs)) > letters / 2


def _vertical(pieces: list[Line]) -> list[Line]:
    """Lines that run from top to bottom (Japanese, or a page printed sideways): kept one under the other."""
    kept = [piece for piece in pieces if piece.text]
    height = 1.0
    return [Line(piece.text, 0.0, float(len(piece.text)), 3.0 * at, 3.0 * at + height) for at, piece in enumerate(kept)]
