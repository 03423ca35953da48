"""The lines of one PDF page, in reading order, from pdfium's text and boxes. Child only.

Owns the geometry of a page: rotation, pieces of one printed row, columns that a file stores row by row. It also leaves
out what nobody sees (white on white, no ink at all: a favourite place for words meant for the model alone) and puts in
what was filled in (form fields, typed notes and stamps), which pdfium's text of a page lacks.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from ctypes import addressof, byref, c_double, c_float, c_int, c_uint
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import cleaning
from app.readers.layout import Line, is_initial
from app.readers.pdf_grids import MOST_OBJECTS, THIN, Box, ruling_lines, turned
from app.readers.pdf_notes import layer_of
from app.readers.pdf_tables import MARKER, with_tables

_CUT = "\ufffe"  # pdfium's sign for a hyphen at a line end
_PIECE = re.compile(rf"[^\r\n{_CUT}\x02]+")
_ACCENTS = dict(
    zip("`´ˆ˜¨˚ˇ˘˙˝¸¯", "\u0300\u0301\u0302\u0303\u0308\u030a\u030c\u0306\u0307\u030b\u0327\u0304", strict=True)
)
_ACCENT = re.compile(f"[{''.join(_ACCENTS)}]")
_PAIR = 3  # letters that a word that may be doubled has more of
_CROWDED = 0.6  # of its height that a sign of a wide script needs at least
_SAME_PLACE = 0.2  # line heights between two drawings of one letter
_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uff00-\uff60]")
_DIGIT_LAST = re.compile(r"\d(?=[.,;:!?)\]»”’\"']*$)")
_RAISED = re.compile(r"[-−–+]?\d{1,3}(?:[,–-]\d{1,3})*")
_SMALLER = 0.85  # of the height of the line's letters that a superscript has at most
_HIGHER = 0.15  # of it by which a superscript stands above their feet
_MUCH_HIGHER = 0.3
_HIGH_INK = 0.4  # of the line by which the figure of a superscript stands above its lower edge
_LOWER = 0.1  # by which a subscript's feet are below those of the line
_CHARGES = ("+", "−")
_NAME = re.compile(r"[^\W\d_]{3,}")
_POWER_BASE = re.compile(
    r"(?:^|[^\w.,])\d{1,2}$|(?:^|[\W\d_])(?:[kcdmµμn]?m|ft|yd|mi|in|s|sec|[A-Za-zα-ωΑ-Ω]|[b-df-hj-np-tv-xz]{2,3}|[\U0001d400-\U0001d7ff]+)$",
    re.ASCII,
)  # a small number, a unit, a letter that stands alone, several that are no word
_FILLER = "\u200b"  # no space and no letter; cleaned away
_WORD = re.compile(r"\S+")
_LETTERS = re.compile(
    r"[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0370-\u052f]{3,}"
)  # of scripts that part words by spaces
_SPACE = 0.1  # line heights by which a gap between two letters is wider than all others of a word: two words
_LEGIBLE = 3.0  # points of height; of smaller letters the boxes are too coarse to tell
_TAB = 1.2  # line heights of empty space inside a row that may be a gutter between columns
_TOUCH = 0.15  # line heights between two pieces of one word
_APART = 1.0  # line heights up to which two pieces are one run of text
_LIST_MARK = re.compile(r"(?:[•·▪◦‣■□●○\uf0b7]|\(?(?:\d{1,3}|[A-Za-z]|[ivxlc]{1,5})[.):])$")
_MARK_REACH = 3.0  # line heights from a mark to its item
_ROW = 0.5  # line heights by which two pieces of one row differ
_NEAR = 3.0  # line heights to the next line of a block
_MOST_BLOCKS = 150
_FOOTER = 2  # lines at the foot of a page that are drawn before all others
_COLUMN_ROWS = 6
_AGREE = 0.85  # of the rows must part at a gutter
_COLUMN_TEXT = 20  # characters a cell has on average when it is a column of text and not of a table
_RTL_SIGNS = r"\u0590-\u065f\u066e-\u06ef\u06fa-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"  # without digits
_RTL = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_RTL_LETTERS = (  # and their points
    r"\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7-\u05f4\u0610-\u061a\u0620-\u065f"
    r"\u066e-\u06d3\u06d5-\u06ef\u06fa-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"
)
_RTL_WORD = re.compile(f"[{_RTL_LETTERS}]{{2,}}")
_RTL_ROW = re.compile(r"[^\r\n]+")
_AFTER_NUMBER = re.compile(r"(?<!\S)([.,:;!?،؛؟]+)(\d+(?:[.,:/\u066b\u066c-]\d+)*)(?!\S)")
_BRACKETS = str.maketrans("()[]{}«»", ")(][}{»«")
_BRACKET = re.compile(r"[()\[\]{}«»]")
_OPENED_EARLY = re.compile(r"(?<=\S)([(\[{«]) (?=\S)")
_RTL_PHRASE = re.compile(f"[{_RTL_SIGNS}]+(?: +[{_RTL_SIGNS}]+)+")
_NEVER_JOINED = frozenset("اأإآٱٲٳدذڈرزژڑوؤۆۇۈةىء")  # to the letter after them
_TOUCHING = 0.05  # line heights between two letters of one word
_SPELLED = 2  # letters that one ligature has at most
_UPSIDE_DOWN = 180
_LOOK = 400  # characters by which it is judged how the letters of a page stand; words of a line, letters of a word
_LEVEL = 0.1  # radians
_WHITE = 0xF4  # of 255 in every colour
_FAINT = 0x0C  # of 255 opaque
_CONTRAST = 10  # of 255 between the lightest and the darkest point where there is anything to see
_MOST_POINTS = 4_000_000  # of the drawn page
_IMAGE_DEPTH = 4
_MOST_COVERS = 300  # of a page
_EDGE = 0.25  # of a line's height, above and below, without much ink
_WITH_TEXT = (raw.FPDF_ANNOT_WIDGET, raw.FPDF_ANNOT_FREETEXT, raw.FPDF_ANNOT_STAMP)
_MOST_ANNOTATIONS = 2_000  # of a page; pdfium's time grows with the square of them
_VALUES_APART = 1.2  # line heights between two words of one value


def page_lines(
    page: pdfium.PdfPage, values: Sequence[Line] = (), layers: Layers | None = None, whole: set[str] | None = None
) -> list[Line]:
    """Args:
        page: an open page.
        values: what was filled in on it, which is no part of its own text.
        layers: those of the file, where some are off.
        whole: words of the pages before that have no space in them, which are not looked at again; grows.

    Returns:
        lines whose ``x0`` is the edge where reading starts; right-to-left pages are mirrored.
    """
    text_page = _upright(page)
    try:
        suspects = Suspects(page, text_page, layers)
        boxes = CharacterBoxes(text_page, page.get_rotation(), page.get_bbox())
        pieces = _pieces(text_page, boxes, suspects, whole if whole is not None else set())
    finally:
        text_page.close()
    mark_unseen(page, pieces)
    if not pieces:
        return list(values)
    tall = sum(piece.height > 2 * abs(piece.x1 - piece.x0) and len(piece.text) > 3 for piece in pieces)
    if tall * 2 > len(pieces):
        return _vertical(pieces)
    pieces = _with_values([piece for piece in pieces if piece.text], values)
    pieces = with_tables(_with_markers(pieces), lambda: ruling_lines(page), suspects.drawings)
    lines = _from_above(_merged(_columns(pieces)))
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


def _pieces(text_page: pdfium.PdfTextPage, boxes: CharacterBoxes, suspects: Suspects, whole: set[str]) -> list[Line]:
    text = _as_read(raw_text(text_page), boxes)
    pieces: list[Line] = []
    for match in _PIECE.finditer(text):
        found = _words(text, match, boxes, suspects, whole)
        for piece in found:
            piece.text = cleaning.tidy(piece.text)
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
    return _as_read(raw_text(text_page), CharacterBoxes(text_page, page.get_rotation(), page.get_bbox()))


def _as_read(text: str, boxes: CharacterBoxes) -> str:
    """Right-to-left words and phrases in the order in which they are read, which not every file leaves them in.

    Where they stand on the page tells: of letters that run to the right, or are all one box because the file spelled
    the word out, the order is turned round.
    """
    signs = _with_accents(text, boxes)
    for match in _RTL_WORD.finditer(text):
        one, two = boxes.place(match.start()), boxes.place(match.end() - 1)
        if one is not None and two is not None and (one < two or (one == two and len(match[0]) > _SPELLED)):
            signs[match.start() : match.end()] = reversed(match[0])
        else:
            _put_pairs_right(signs, match, boxes)
    text = "".join(signs)
    for match in _RTL_PHRASE.finditer(text):
        words = list(_WORD.finditer(text, match.start(), match.end()))
        for before, word in pairwise(words):
            if _touch(boxes.span(before.start(), before.end() - 1), boxes.span(word.start(), word.end() - 1)):
                signs[before.end() : word.start()] = _FILLER * (word.start() - before.end())
        places = [boxes.place(word.start()) for word in words]
        if all(one is not None and two is not None and one < two for one, two in pairwise(places)):
            signs[match.start() : match.end()] = " ".join(word[0] for word in reversed(words)).ljust(len(match[0]))
    text = "".join(signs)
    return _RTL_ROW.sub(lambda row: _neutral_signs(row, boxes), text) if _RTL.search(text) else text


def _touch(right: Box | None, left: Box | None) -> bool:
    """Whether nothing is between two words, the second one to the left: pdfium sees a space before some ligatures."""
    if right is None or left is None or left[0] > right[0]:
        return False
    return right[0] - left[1] < _TOUCHING * (right[3] - right[2])


def _neutral_signs(row: re.Match[str], boxes: CharacterBoxes) -> str:
    """A row with right-to-left words, its signs in the order and of the hand that they are read in.

    A full stop to the left of a number comes after it; of two brackets that one opens which is read first.
    """
    text = row[0]
    if 2 * len(_RTL.findall(text)) <= sum(map(str.isalpha, text)):
        return text

    def after(match: re.Match[str]) -> str:
        sign, number = (boxes.place(row.start() + match.start(part)) for part in (1, 2))
        return match[2] + match[1] if sign is not None and number is not None and sign < number else match[0]

    text = _AFTER_NUMBER.sub(after, text)
    brackets = _BRACKET.findall(text)
    if len(brackets) > 1 and brackets[0] in ")]}»" and brackets[-1] in "([{«":
        text = text.translate(_BRACKETS)
        text = _OPENED_EARLY.sub(r" \1", text)
    return text


def _put_pairs_right(signs: list[str], match: re.Match[str], boxes: CharacterBoxes) -> None:
    """Turn round the two letters of one glyph that pdfium gives in the wrong order, such as lam and alef.

    The first letter of such a glyph is joined to the next one; of a letter that never is, the order is wrong.
    """
    at = match.start()
    while at < match.end() - 1:
        if signs[at] in _NEVER_JOINED and signs[at + 1] not in _NEVER_JOINED:
            one, two = boxes.span(at, at), boxes.span(at + 1, at + 1)
            if one is not None and two is not None and (one == two or one[1] <= two[0] + _TOUCHING * (one[3] - one[2])):
                signs[at], signs[at + 1] = signs[at + 1], signs[at]
                at += 1
        at += 1


def _with_accents(text: str, boxes: CharacterBoxes) -> list[str]:
    """The signs of a text; a letter and an accent that was drawn over it, as older TeX does, are one and a filler.

    Where they stand tells: the same sign beside a letter may be an apostrophe.
    """
    signs = list(text)
    for match in _ACCENT.finditer(text):
        at = match.start()
        accent = boxes.span(at, at)
        for other in (at + 1, at - 1):
            letter = boxes.span(other, other) if 0 <= other < len(text) and signs[other].isalpha() else None
            if accent is None or letter is None or not letter[0] <= (accent[0] + accent[1]) / 2 <= letter[1]:
                continue
            bare = {"ı": "i", "ȷ": "j"}.get(signs[other], signs[other])
            whole = unicodedata.normalize("NFC", bare + _ACCENTS[match[0]])
            if len(whole) == 1:
                signs[other], signs[at] = whole, _FILLER
                break
    return signs


def _words(text: str, match: re.Match[str], boxes: CharacterBoxes, suspects: Suspects, whole: set[str]) -> list[Line]:
    """One piece of text as one line, or as several where wide gaps divide it."""
    found: list[Line] = []
    line: Line | None = None
    height = 0.0
    written = 0
    for start, end in _parted(text, match, boxes, whole):
        box = boxes.span(start, end - 1)
        if box is None:
            continue
        x0, x1, top, bottom = box
        word = text[start:end]
        doubled = 0
        if (
            _PAIR < len(word) < _LOOK
            and (word[0] == word[1] or not word[0].isascii())
            and _may_be_doubled(word, x1 - x0, bottom - top)
        ):
            word = _once(word, start, boxes)
            doubled = end - start - len(word)
        if end - start > 1 and not word[-1].isalpha() and _DIGIT_LAST.search(word):
            word = _with_raised(word, start, boxes)
        if not found and _RAISED.match(word):
            word = _raised_anew(text, start, word, boxes)
        if line is not None and x0 < line.x1 - _TOUCH * height and _stands_there(line, word, x0, top):
            written = end
            line.doubled += end - start
            continue
        suspect = suspects.is_suspect(start, box)
        gap = 0.0
        if line is not None:
            gap = x0 - line.x1
            if gap < 0 < line.x0 - x1:  # the other way round, from right to left
                gap = line.x0 - x1
        if (
            line is None
            or suspect != line.suspect
            or gap > _TAB * height
            or (top >= line.bottom and x0 < line.x1 and line.x1 - line.x0 > height)  # a row that pdfium ran on
        ):
            line = Line(word, x0, x1, top, bottom, size=bottom - top, suspect=suspect, words=[(word, x0, x1)])
            found.append(line)
            height = line.height
        else:
            line.last_gap = gap
            line.first_gap = line.first_gap or gap
            if gap > line.widest_gap:
                line.widest_gap = gap
            if x0 < line.x0:
                line.x0 = x0
            if x1 > line.x1:
                line.x1 = x1
            if top < line.top or bottom > line.bottom:
                line.top, line.bottom = min(line.top, top), max(line.bottom, bottom)
                height = line.height
            line.text += (text[written:start] or " ") + word
            line.words.append((word, x0, x1))
        line.doubled += doubled
        written = end
    return found


def _may_be_doubled(word: str, width: float, height: float) -> bool:
    """Whether a word may hold letters that were drawn twice to look bold: in pairs, or too many for their width."""
    pairs = word[0] == word[1] and word[2] == word[3]
    return pairs or (_WIDE.match(word) is not None and width < _CROWDED * len(word) * height)


def _once(word: str, start: int, boxes: CharacterBoxes) -> str:
    """A word without the letters that stand where the same letter stands already."""
    kept: list[tuple[str, Box]] = []
    for at, sign in enumerate(word):
        box = boxes.span(start + at, start + at)
        if box is None:
            return word
        reach = min(_SAME_PLACE * (box[3] - box[2]), (box[1] - box[0]) / 2)
        if not any(
            sign == other and abs(box[0] - place[0]) < reach and abs(box[2] - place[2]) < reach for other, place in kept
        ):
            kept.append((sign, box))
    return "".join(sign for sign, _ in kept)


def _stands_there(line: Line, word: str, x0: float, top: float) -> bool:
    """Whether the same word stands at this place of a line already: drawn twice to look bold."""
    reach = _SAME_PLACE * line.height
    return abs(top - line.top) < reach and any(
        word == other and abs(x0 - x) < reach for other, x, _ in line.words[-_LOOK:]
    )


def _with_raised(word: str, start: int, boxes: CharacterBoxes) -> str:
    """A word with the superscript at its end marked, as ``10^6`` or, of a note, as ``1871[3]``."""
    match = _DIGIT_LAST.search(word)
    if match is None or match.start() == 0:
        return word
    last = match.start()
    first, raised = boxes.span(start, start), boxes.span(start + last, start + last)
    if first is None or raised is None:
        return word
    if _is_raised(raised, first):
        is_above = boxes.span
    elif boxes.floats(start + last, start, first):  # a sign of the font that is small and high by itself
        is_above = boxes.ink
        first = boxes.ink(start, start) or first
    else:
        return word
    at = last
    while at > 1 and (box := is_above(start + at - 1, start + at - 1)) is not None and _is_raised(box, first):
        at -= 1
    base, above, rest = word[:at], word[at : last + 1], word[last + 1 :]
    if not _RAISED.fullmatch(above) or not any(map(str.isalnum, base)):
        return word
    beside = is_above(start + at - 1, start + at - 1)
    if at > 1 and beside is not None and _is_lowered(beside, first):
        return f"{base}^{above}{rest}"
    return _marked(base, above, rest)


def _raised_anew(text: str, start: int, word: str, boxes: CharacterBoxes) -> str:
    """A word at the beginning of a run of text, where pdfium broke the row before a superscript, with that marked."""
    match = _RAISED.match(word)
    end = start
    while end and text[end - 1].isspace():
        end -= 1
    if not end or match is None or text.count("\n", end, start) != 1:
        return word
    beside, raised = boxes.span(end - 1, end - 1), boxes.span(start, start)
    if beside is None or raised is None or raised[3] >= beside[3]:
        return word
    begin = max(text.rfind(" ", 0, end), text.rfind("\n", 0, end)) + 1
    last = text[begin:end]
    if not any(map(str.isalnum, last)):
        return word
    first = boxes.span(begin, begin) or beside
    base = first if _is_lowered(beside, first) else beside  # it may follow a subscript
    if not _is_raised(raised, base) or raised[3] <= base[2]:
        return word
    if abs(raised[0] - beside[1]) > _TOUCH * (base[3] - base[2]):
        return word
    above, rest = match[0], word[match.end() :]
    return f"^{above}{rest}" if base is not beside else _marked(last, above, rest)[len(last) :]


def _marked(base: str, above: str, rest: str) -> str:
    """A word with its superscript: an exponent, a charge or a note."""
    power = _is_power(base, above) or rest.startswith(_CHARGES)
    return f"{base}^{above}{rest}" if power else f"{base}[{above}]{rest}"


def _is_raised(box: Box, line: Box) -> bool:
    """Whether a character is smaller than those of its line and stands higher, or stands much higher."""
    height = line[3] - line[2]
    higher = line[3] - box[3]
    return higher > _MUCH_HIGHER * height or (box[3] - box[2] < _SMALLER * height and higher > _HIGHER * height)


def _is_lowered(box: Box, line: Box) -> bool:
    return box[3] - line[3] > _LOWER * (line[3] - line[2])


def _is_power(base: str, above: str) -> bool:
    """Whether a superscript is an exponent and no mark of a note: by its sign, and by what stands before it."""
    if not above[0].isdigit():
        return True
    if base[-1] in ")]}":
        return not _NAME.search(base)
    return _POWER_BASE.search(base) is not None


def _parted(text: str, match: re.Match[str], boxes: CharacterBoxes, whole: set[str]) -> Iterator[tuple[int, int]]:
    """Where the words of a piece of text begin and end, also where pdfium saw no space though there is one."""
    for word in _WORD.finditer(text, match.start(), match.end()):
        start = word.start()
        for letters in _LETTERS.finditer(text, start, word.end()):
            if letters[0] in whole:
                continue
            at = boxes.wide_gap(*letters.span())
            if at is None:
                whole.add(letters[0])
            else:
                yield start, at
                start = at
        yield start, word.end()


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


def _with_markers(pieces: list[Line]) -> list[Line]:
    """The marks of a list in front of their items; some programs draw all of them at the end."""
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
    """Whether an item begins right after a mark."""
    return same_row(mark, item) and -0.1 * mark.height < item.x0 - mark.x1 < _MARK_REACH * mark.height


def _from_above(lines: list[Line]) -> list[Line]:
    """Lines in the order of the file, but none before what stands above it in its column.

    A title that is drawn last comes first, a footer that is drawn first comes last; columns stay one after the other.
    """
    blocks: list[list[Line]] = []
    for line in lines:
        last = blocks[-1][-1] if blocks else None
        if last is not None and -_ROW * line.height < line.top - last.top < _NEAR * max(line.height, last.height):
            blocks[-1].append(line)
        else:
            blocks.append([line])
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
        {at for at, other in enumerate(boxes) if at != here and _is_above(other, box)} for here, box in enumerate(boxes)
    ]
    if len(blocks[0]) <= _FOOTER and all(_ends_before(box, boxes[0]) for box in boxes[1:]):
        above[0] = set(range(1, len(blocks)))
    if not any(one > at for at, some in enumerate(above) for one in some):
        return lines
    order: dict[int, None] = {}
    for at in range(len(blocks)):
        waiting = [at]
        while waiting:  # a block after those above it; two that are above one another stay as they are
            here = waiting[-1]
            before = min(above[here] - order.keys() - set(waiting), default=None)
            if before is None:
                order[waiting.pop()] = None
            else:
                waiting.append(before)
    return [line for at in order for line in blocks[at]]


def _is_above(one: Box, two: Box) -> bool:
    """Whether one block ends above where the other begins, in the same column."""
    return _ends_before(one, two) and min(one[1], two[1]) > max(one[0], two[0])


def _ends_before(one: Box, two: Box) -> bool:
    return one[3] <= two[2] + min(2.0, (two[3] - two[2]) / 4)


def _merged(pieces: list[Line]) -> list[Line]:
    """Neighbouring pieces of one row made one line."""
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
            or not same_row(last, piece)
            or not _continues(last, piece)
        ):
            lines.append(piece)
            continue
        gap = max(piece.x0 - last.x1, last.x0 - piece.x1)
        space = "" if gap < _TOUCH * last.height else " "
        if space:
            last.first_gap = last.first_gap or gap
            last.last_gap = piece.last_gap or gap
        last.text = f"{last.text}{space}{piece.text}"
        last.x0, last.x1 = min(last.x0, piece.x0), max(last.x1, piece.x1)
        if len(piece.text) > 2:
            last.top, last.bottom = min(last.top, piece.top), max(last.bottom, piece.bottom)
        last.size = max(last.size, piece.size)
        last.doubled += piece.doubled
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
    pairs = [
        (one, two)
        for one, two in pairwise(pieces)
        if not (one.row or two.row)
        and same_row(one, two)
        and two.x0 - one.x1 > _TAB * one.height
        and not MARKER.match(one.text)
    ]
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
    found = len(_RTL.findall(signs))
    return found > 0 and found > sum(map(str.isalpha, signs)) / 2


def _vertical(pieces: list[Line]) -> list[Line]:
    """Lines that run from top to bottom (Japanese, or a page printed sideways): kept one under the other."""
    kept = [piece for piece in pieces if piece.text]
    height = 1.0
    return [Line(piece.text, 0.0, float(len(piece.text)), 3.0 * at, 3.0 * at + height) for at, piece in enumerate(kept)]


class CharacterBoxes:
    """Character boxes, turned the way a reader holds the page, measured from the visible part's corner."""

    def __init__(self, text_page: pdfium.PdfTextPage, rotation: int, visible: Box) -> None:
        self._raw = text_page.raw
        self._rect = raw.FS_RECTF()
        self._ref = byref(self._rect)
        self._edges = [c_double() for _ in range(4)]
        self._edge_refs = [byref(edge) for edge in self._edges]
        self._rotation = rotation
        self._left, self._bottom, self._right, self._top = visible
        across, down = self._right - self._left, self._top - self._bottom
        self._width, self._height = (down, across) if rotation % 180 else (across, down)

    def shows(self, line: Line) -> bool:
        """Whether the middle of a line lies on the visible part of the page."""
        across, down = (line.x0 + line.x1) / 2, (line.top + line.bottom) / 2
        return 0 <= across <= self._width and 0 <= down <= self._height

    def place(self, index: int) -> float | None:
        """Where a character stands across the page; None where pdfium has no box."""
        box = self._one(index)
        return None if box is None else (box[0] + box[1]) / 2

    def span(self, first: int, last: int) -> Box | None:
        """(x0, x1, top, bottom) around two characters and what is between them; None where pdfium has no box."""
        one = self._one(first)
        two = one if last == first else self._one(last)
        if one is None or two is None:
            return one or two
        return min(one[0], two[0]), max(one[1], two[1]), min(one[2], two[2]), max(one[3], two[3])

    def ink(self, first: int, last: int) -> Box | None:
        """(x0, x1, top, bottom) of what is drawn of one character, for a page that is not turned; else None."""
        if self._rotation or first != last or not raw.FPDFText_GetCharBox(self._raw, first, *self._edge_refs):
            return None
        left, right, low, high = (edge.value for edge in self._edges)
        if high <= low:
            return None
        return left - self._left, right - self._left, self._top - high, self._top - low

    def floats(self, index: int, beside: int, line: Box) -> bool:
        """Whether a character is drawn above the feet of another, whatever the boxes that they have in their line."""
        one = self.ink(index, index)
        if one is None or line[3] - one[3] < _HIGH_INK * (line[3] - line[2]):
            return False
        two = self.ink(beside, beside)
        return two is not None and two[3] - one[3] > _MUCH_HIGHER * (line[3] - line[2])

    def wide_gap(self, start: int, end: int) -> int | None:
        """The letter of a word before which there is a space: a gap that no other of the word comes near.

        Where letters are set apart all gaps are alike; so one alone is told from them whatever the font.
        """
        sideways = self._rotation % 180 != 0
        box, widest, second, height, at = self._rect, 0.0, 0.0, 0.0, start
        low = high = 0.0
        for index in range(start, end):
            if not raw.FPDFText_GetLooseCharBox(self._raw, index, self._ref):
                return None
            if sideways:
                left, right, tall = box.bottom, box.top, box.right - box.left
            else:
                left, right, tall = box.left, box.right, box.top - box.bottom
            if index > start:
                gap = max(left - high, low - right)
                if gap > widest:
                    widest, second, at = gap, widest, index
                elif gap > second:
                    second = gap
            if tall > height:
                height = tall
            low, high = left, right
        return at if height >= _LEGIBLE and widest - second > _SPACE * height else None

    def _one(self, index: int) -> Box | None:
        if not raw.FPDFText_GetLooseCharBox(self._raw, index, self._ref):
            return None
        box = self._rect
        left, right = box.left - self._left, self._right - box.right
        low, high = box.bottom - self._bottom, self._top - box.top
        width, height = box.right - box.left, box.top - box.bottom
        if self._rotation == 90:
            return low, low + height, left, left + width
        if self._rotation == 180:
            return right, right + width, low, low + height
        if self._rotation == 270:
            return high, high + height, right, right + width
        return left, left + width, high, high + height


class Suspects:
    """Tells which characters of one page may be drawn so that nobody sees them.

    Colour and opacity only tell a suspect; whether it is seen is told by the drawn page (``mark_unseen``), so that
    white letters on a dark ground stay. The unseen letters behind the image of a scanned page are its text.
    """

    def __init__(self, page: pdfium.PdfPage, text_page: pdfium.PdfTextPage, layers: Layers | None = None) -> None:
        self._page = page
        self._layers = layers
        self._covers, self._order, self.drawings = _covers(page, layers is not None)
        self._raw = text_page.raw
        self._parts = [c_uint() for _ in range(4)]
        self._refs = [byref(part) for part in self._parts]
        self._has_image: bool | None = None
        self._place = 0
        self._suspect = False
        self._cover_places = [at for at, _ in self._covers]
        self._later: list[Box] = []  # drawn after the present run of text

    def is_suspect(self, index: int, box: Box) -> bool:
        """Whether a word, by its first character and its box, may be drawn so that nobody sees it."""
        piece = raw.FPDFText_GetTextObject(self._raw, index)
        if not piece:
            return False
        place = addressof(piece.contents)
        if place != self._place:
            self._place, self._suspect = place, self._judge(piece)
            first = bisect_right(self._cover_places, self._order.get(place, 0))
            self._later = [cover for _, cover in self._covers[first:]]
        if self._suspect or not self._later:
            return self._suspect
        x, y = (box[0] + box[1]) / 2, (box[2] + box[3]) / 2
        return any(x0 <= x <= x1 and top <= y <= bottom for x0, x1, top, bottom in self._later)

    def _judge(self, piece: Any) -> bool:
        """Whether a run of text may be; all its characters are drawn alike."""
        if self._layers is not None and self._layers.may_hide(piece, addressof(piece.contents) in self._order):
            return True
        if raw.FPDFPageObj_GetFillColor(piece, *self._refs):
            red, green, blue, alpha = (part.value for part in self._parts)
            if min(red, green, blue) >= _WHITE or alpha <= _FAINT:
                return True
        return raw.FPDFTextObj_GetTextRenderMode(piece) == raw.FPDF_TEXTRENDERMODE_INVISIBLE and not self._is_scan()

    def _is_scan(self) -> bool:
        if self._has_image is None:
            self._has_image = has_image(self._page)
        return self._has_image


@dataclass(frozen=True)
class Layers:
    """The names of the layers of a file that are off."""

    off: frozenset[str]

    def may_hide(self, piece: Any, of_page: bool) -> bool:
        """Whether a run of text may be on a layer that is off; of a part that is drawn elsewhere it cannot be told."""
        layer = layer_of(piece)
        return not of_page if layer is None else not layer or layer in self.off


def _covers(page: pdfium.PdfPage, ordered: bool) -> tuple[list[tuple[int, Box]], dict[int, int], int]:
    """What is drawn over text and may hide it, with its place in the order of drawing; that of each run of text; how
    much is drawn.

    Args:
        ordered: wanted even where nothing covers.
    """
    covers: list[tuple[int, Box]] = []
    texts: list[int] = []
    a, b, c, d = (c_float() for _ in range(4))
    mode, stroke = c_int(), c_int()
    turn = None
    drawings = 0
    for at in range(min(raw.FPDFPage_CountObjects(page.raw), MOST_OBJECTS)):
        item = raw.FPDFPage_GetObject(page.raw, at)
        kind = raw.FPDFPageObj_GetType(item)
        if kind == raw.FPDF_PAGEOBJ_TEXT:
            texts.append(at)
            continue
        drawings += kind == raw.FPDF_PAGEOBJ_PATH
        if kind in (raw.FPDF_PAGEOBJ_PATH, raw.FPDF_PAGEOBJ_IMAGE) and texts and len(covers) < _MOST_COVERS:
            if kind == raw.FPDF_PAGEOBJ_PATH:
                raw.FPDFPath_GetDrawMode(item, byref(mode), byref(stroke))
                if mode.value == raw.FPDF_FILLMODE_NONE:
                    continue
            if raw.FPDFPageObj_GetBounds(item, byref(a), byref(b), byref(c), byref(d)) and (
                min(c.value - a.value, d.value - b.value) > THIN
            ):
                turn = turn or turned(page)
                covers.append((at, turn(a.value, b.value, c.value, d.value)))
    if not covers and not ordered:
        return [], {}, drawings
    return covers, {addressof(raw.FPDFPage_GetObject(page.raw, at).contents): at for at in texts}, drawings


def has_image(page: pdfium.PdfPage) -> bool:
    """Whether a page holds a picture."""
    images = page.get_objects(filter=[raw.FPDF_PAGEOBJ_IMAGE], max_depth=_IMAGE_DEPTH)
    return next(iter(images), None) is not None


def mark_unseen(page: pdfium.PdfPage, lines: Sequence[Line]) -> None:
    """Mark those suspects among the lines as unseen behind which the drawn page is all of one colour."""
    suspects = [line for line in lines if line.suspect and line.shown]
    if not suspects:
        return
    width, height = page.get_size()
    scale = min(1.0, (_MOST_POINTS / max(width * height, 1.0)) ** 0.5)
    try:
        drawn = page.render(scale=scale, grayscale=True, may_draw_forms=False).to_numpy()
    except pdfium.PdfiumError:  # then nothing speaks against them
        return
    for line in suspects:
        edge = _EDGE * line.height  # what covers a line may end at its edges
        rows = slice(max(0, int((line.top + edge) * scale)), int((line.bottom - edge) * scale) + 1)
        part = drawn[rows, max(0, int(line.x0 * scale)) : int(line.x1 * scale) + 1]
        if part.size and int(part.max()) - int(part.min()) < _CONTRAST:
            line.shown, line.unseen = False, True


def flattened(document: pdfium.PdfDocument, index: int, page: pdfium.PdfPage) -> pdfium.PdfPage | None:
    """The page with what was filled in as text of its own; None where there is nothing.

    ``page`` stays as it was. Flattening changes the document in memory and never the file.
    """
    if not _is_filled_in(page) or raw.FPDFPage_Flatten(page.raw, raw.FLAT_NORMALDISPLAY) != raw.FLATTEN_SUCCESS:
        return None
    return document[index]


def form_values(document: pdfium.PdfDocument, index: int, page: pdfium.PdfPage) -> list[Line]:
    """What was filled in on a page, value by value, where it stands; what is hidden is left out.

    pdfium's text of a page lacks it; a page that has been flattened holds it as ordinary text behind its own.
    """
    if not _is_filled_in(page):
        return []
    own = page.get_textpage()
    before = raw_text(own)
    own.close()
    whole = flattened(document, index, page)
    if whole is None:
        return []
    text_page = whole.get_textpage()
    try:
        text = raw_text(text_page)
        boxes = CharacterBoxes(text_page, whole.get_rotation(), whole.get_bbox())
        return _value_lines(text, len(before), boxes) if text.startswith(before) else []
    finally:
        text_page.close()
        whole.close()


def _value_lines(text: str, start: int, boxes: CharacterBoxes) -> list[Line]:
    """pdfium strings values together wherever they stand: they are parted where they are apart."""
    found: list[Line] = []
    for match in _WORD.finditer(text, start):
        box = boxes.span(match.start(), match.end() - 1)
        word = cleaning.tidy(match.group())
        if box is None or not word:
            continue
        x0, x1, top, bottom = box
        piece = Line(word, x0, x1, top, bottom, size=bottom - top)
        last = found[-1] if found else None
        if (
            last is not None
            and same_row(last, piece)
            and x0 - last.x0 >= 0
            and x0 - last.x1 < _VALUES_APART * last.height
        ):
            last.text, last.x1 = f"{last.text} {word}", max(last.x1, x1)
        else:
            found.append(piece)
    for line in found:
        line.shown = boxes.shows(line)
    return found


def _is_filled_in(page: pdfium.PdfPage) -> bool:
    count = raw.FPDFPage_GetAnnotCount(page.raw)
    for at in range(count if count <= _MOST_ANNOTATIONS else 0):
        annotation = raw.FPDFPage_GetAnnot(page.raw, at)
        if annotation:
            kind = raw.FPDFAnnot_GetSubtype(annotation)
            raw.FPDFPage_CloseAnnot(annotation)
            if kind in _WITH_TEXT:
                return True
    return False
