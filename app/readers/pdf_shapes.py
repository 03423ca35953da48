"""Reads drawn shapes as characters: bullets, checkboxes, fraction bars, lines through words. Runs only in the child
process (``app.readers.child``).

Browsers print bullets and checkboxes as shapes, and formula editors draw fraction bars. Without the bar, 1/4 would be
read as "1 4". Words with a line through them do not hold.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from ctypes import addressof, c_int
from dataclasses import dataclass, field
from operator import itemgetter

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import cleaning, formulas, pdf_calls, struck
from app.readers.layout import Line
from app.readers.pdf_grids import Box, Path, Turn, turned
from app.readers.pdf_signs import BREAK, RAISED, WORD, CharacterBoxes, NewText, is_raised, with_raised

_MOST = 2_000  # maximum drawn objects examined on a page
_MOST_BARS = 200  # maximum fraction bars on a page; a page with more is a drawing or a table
_MOST_DOTS = 200
_BAR_HEIGHT = 2.2  # maximum height in points that pdfium reports for a bar; this is twice the width of its stroke
_FLAT = 2.0  # minimum ratio of a fraction bar's width to its height
_BAR = (2.0, 150.0)  # minimum and maximum width of a fraction bar in points
_WIDE_BAR = 40.0  # minimum width in points of a horizontal bar that may be a line of a table
_RULES = 3  # minimum number of wide bars with equal ends that count as lines of a table
_DOT = (1.2, 9.0)  # minimum and maximum height of a bullet in points
_ROUND = 0.3  # maximum difference of a bullet's width and height, as a share of its height
_BOX = (6.0, 30.0)  # minimum and maximum width of a checkbox in points
_FRAME = 0.15  # maximum distance of a checkbox's frame from its white background, as a share of the frame's width
_CORNERS = 16  # minimum path segments of the rounded box, the circle or the dot that a browser draws
_WHITE = 0xF4  # minimum value of every colour channel (0 to 255) in a colour that counts as white
_TICK_PARTS = 3
_TICK = (0.35, 1.15)  # minimum and maximum width of a tick, as a share of its box's width
_DOT_SIZE = 0.6  # maximum height of a bullet in line heights
_DOT_REACH = 2.5  # maximum distance, in line heights, from a bullet to its text
_COLUMN_LETTERS = 3  # minimum letters of an item whose bullet is aligned with another bullet
_ALONE_LETTERS = 12  # minimum letters of an item whose bullet is aligned with no other bullet
_ALREADY = "•·▪◦‣■□●○*-–—"
_LONGEST = 40  # maximum characters above or below a fraction bar
# maximum distance, in characters of the text, between a character above the fraction bar and a character below the bar
_FARTHEST = 3 * _LONGEST
_CLOSING = ".,;:!?)]}%…’”»"  # characters before which no space is written
_NEAR = 5.0  # maximum vertical distance in points between a fraction bar and a character of the fraction
_BESIDE = 1.5  # maximum gap, in line heights, between a fraction and the text next to it
# maximum vertical distance between a fraction bar and the centre of the text next to the fraction, as a share of the
# height of this text
_AXIS = 0.3
# maximum vertical distance between a fraction bar and the centre of the numerator (or denominator), as a factor of the
# numerator's height
_CLOSE = 1.2
_CLOSE_LIMITS = 2.6  # the same if a sign with limits above and below is in it
# maximum horizontal distance between the centres of a fraction bar and of the numerator (or denominator), as a factor
# of the numerator's height
_CENTRED = 0.5
# maximum excess of a fraction bar's width over the wider of numerator and denominator, as a factor of the greater of
# their heights
_OVERHANG = 1.2
_SHORTEST_STROKE = 4.0  # minimum width in points of a line through words
# height of a line through words above the lower edge of their box, as shares of the box's height
_STRUCK = (0.25, 0.7)
_STRUCK_REACH = 0.35  # maximum distance, in line heights, between the ends of the words and of the line through them
_STRUCK_LETTERS = 1  # minimum letters and digits of struck words
_INSIDE = 1.5  # tolerance in points for characters beyond the ends of a fraction bar


@dataclass
class Shapes:
    """Small drawn objects of a page: bars, dots and checkboxes. ``boxes`` has each checkbox with a flag: whether it is
    ticked.
    """

    bars: list[Box] = field(default_factory=list)
    dots: list[Box] = field(default_factory=list)
    boxes: list[tuple[Box, bool]] = field(default_factory=list)
    read: set[Box] = field(default_factory=set)
    """The bars of which fractions and roots have been made."""


def small_shapes(page: pdfium.PdfPage, paths: Sequence[Path]) -> Shapes:
    """Find possible bullets, checkboxes and fraction bars among the drawn objects of a page. On a rotated page, return
    no shapes.
    """
    shapes = Shapes()
    if page.get_rotation():
        return shapes
    turn = turned(page)
    ground: Path | None = None
    for at, path in enumerate(paths[:_MOST]):
        _, x0, y0, x1, y1 = path
        width, height = x1 - x0, y1 - y0
        if ground is not None and _is_box(ground, path):
            shapes.boxes.append((turn(x0, y0, x1, y1), at + 1 < len(paths) and _is_tick(paths[at + 1], path)))
        ground = path if _BOX[0] < width < _BOX[1] and abs(width - height) < _FRAME * width else None
        if height < _BAR_HEIGHT and max(_BAR[0], _FLAT * height) < width < _BAR[1]:
            shapes.bars.append(turn(x0, y0, x1, y1))
        elif _DOT[0] < height < _DOT[1] and abs(width - height) < _ROUND * height:
            shapes.dots.append(turn(x0, y0, x1, y1))
    ends = Counter((round(x0), round(x1)) for x0, x1, *_ in shapes.bars if x1 - x0 > _WIDE_BAR)
    shapes.bars = [bar for bar in shapes.bars if ends[round(bar[0]), round(bar[1])] < _RULES]
    if len(shapes.bars) > _MOST_BARS:
        shapes.bars.clear()
    if len(shapes.dots) > _MOST_DOTS:
        shapes.dots.clear()
    return shapes


def _is_box(ground: Path, frame: Path) -> bool:
    """Whether two paths are the white background (``ground``) and the frame of a checkbox or radio button, as browsers
    draw these.
    """
    outwards = ground[1] - frame[1], ground[2] - frame[2], frame[3] - ground[3], frame[4] - ground[4]
    if min(outwards) < 0 or max(outwards) > _FRAME * (frame[3] - frame[1]):
        return False
    parts = pdf_calls.count_segments(ground[0])
    if parts < _CORNERS or parts != pdf_calls.count_segments(frame[0]):
        return False
    return min(pdf_calls.colour_of(ground[0]), default=0) >= _WHITE


def _is_tick(path: Path, frame: Path) -> bool:
    """Whether a path is the tick of a checkbox (two strokes, not filled) or the dot of a radio button."""
    item, x0, y0, x1, y1 = path
    wide = frame[3] - frame[1]
    if not _TICK[0] * wide < x1 - x0 < _TICK[1] * wide:
        return False
    if abs(x0 + x1 - frame[1] - frame[3]) > wide / 2 or abs(y0 + y1 - frame[2] - frame[4]) > wide / 2:
        return False
    mode, stroke = c_int(), c_int()
    pdf_calls.draw_mode(item, addressof(mode), addressof(stroke))
    parts = pdf_calls.count_segments(item)
    is_filled = mode.value != raw.FPDF_FILLMODE_NONE
    return parts >= _CORNERS if is_filled else parts == _TICK_PARTS


def with_dots(pieces: list[Line], dots: Sequence[Box]) -> None:
    """Put a bullet character in front of each piece of text that follows a drawn dot. Ignore dots before short names,
    because such dots belong to drawings.
    """
    columns = Counter(round(x0) for x0, *_ in dots)
    for x0, x1, top, bottom in dots:
        middle = (top + bottom) / 2
        beside = [piece for piece in pieces if piece.top < middle < piece.bottom and piece.x0 >= x1]
        item = min(beside, key=lambda piece: piece.x0, default=None)
        if item is None or item.x0 - x1 > _DOT_REACH * item.height or bottom - top > _DOT_SIZE * item.height:
            continue
        enough = _COLUMN_LETTERS if columns[round(x0)] > 1 else _ALONE_LETTERS
        if item.text[0] not in _ALREADY and sum(map(str.isalpha, item.text)) >= enough:
            item.text, item.x0 = f"• {item.text}", x0
            item.words.insert(0, ("•", x0, x1))


def mark_struck(
    pieces: Sequence[Line], boxes: CharacterBoxes, turn: Turn, paths: Sequence[Path], read: set[Box]
) -> None:
    """Mark words through whose middle a line is drawn, as in "~~480~~ 520". The line begins and ends with the words;
    a line that goes on belongs to a table or a chart. ``turn`` converts the places of ``paths`` to places on the page.
    The bars ``read`` belong to fractions and roots, and strike nothing.
    """
    if not boxes.upright:
        return
    thin = [
        turn(*path[1:])
        for path in paths[:_MOST]
        if path[4] - path[2] < _BAR_HEIGHT and path[3] - path[1] > _SHORTEST_STROKE
    ]
    if not thin:
        return
    bars = sorted(((bar[2] + bar[3]) / 2, bar[0], bar[1]) for bar in thin if bar not in read)
    ys = [y for y, _, _ in bars]
    for piece in pieces:
        bottom, height = piece.bottom, piece.height
        first, low = bisect_left(ys, bottom - _STRUCK[1] * height), bottom - _STRUCK[0] * height
        if first < len(ys) and ys[first] <= low and piece.words and not piece.turned:
            _mark_words(piece, boxes, bars[first : bisect_right(ys, low)])


def _mark_words(piece: Line, boxes: CharacterBoxes, bars: Sequence[tuple[float, float, float]]) -> None:
    spans: list[tuple[float, float, float]] = []
    for y, x0, x1 in sorted(bars, key=itemgetter(1)):  # of bars that touch, one is made
        if spans and x0 - spans[-1][1] < _INSIDE:
            spans[-1] = (spans[-1][0], max(x1, spans[-1][1]), y)
        else:
            spans.append((x0, x1, y))
    runs: list[tuple[int, int]] = []  # the first and the last word under each line
    for x0, x1, y in spans:
        under = [at for at, (_, left, right) in enumerate(piece.words) if x0 < (left + right) / 2 < x1]
        if not under or sum(map(str.isalnum, "".join(piece.words[at][0] for at in under))) < _STRUCK_LETTERS:
            continue
        start, end = piece.words[under[0]][1], piece.words[under[-1]][2]
        if max(abs(start - x0), abs(end - x1)) < _STRUCK_REACH * piece.height and boxes.are_crossed(x0, x1, y):
            runs.append((under[0], under[-1]))
    if not runs:
        return
    texts = [cleaning.tidy(word) for word, _, _ in piece.words]
    for first, last in runs:
        texts[first] = struck.MARK + texts[first]
        texts[last] += struck.MARK
    place, parts = 0, []
    for (word, _, _), text in zip(piece.words, texts, strict=True):
        at = piece.text.find(bare := cleaning.tidy(word), place)
        if at < 0:
            return  # letters drawn twice, or marks of superscripts: the words are not those of the text
        parts += [piece.text[place:at], text]
        place = at + len(bare)
    piece.text = "".join(parts) + piece.text[place:]
    piece.words = [(text, left, right) for (_, left, right), text in zip(piece.words, texts, strict=True)]


@dataclass(frozen=True)
class _Fraction:
    """A fraction, written on one line as ``text``. It replaces the characters of the page from ``start`` up to ``end``.
    ``bar`` is the fraction bar. ``span`` is (top, bottom) of a character next to the fraction.
    """

    start: int
    end: int
    text: str
    bar: Box
    span: tuple[float, float]
    joins: tuple[bool, bool]  # whether text stands before the fraction on its line, and whether text stands after it


def with_fractions(text: str, boxes: CharacterBoxes, shapes: Shapes) -> str:
    """Return the text of a page with each fraction written on one line, such as "1/4". Renumber ``boxes`` to match the
    new text.
    """
    bars = [bar for bar in shapes.bars if bar not in shapes.read]
    fractions = sorted(filter(None, (_fraction(text, boxes, bar) for bar in bars)), key=lambda one: one.start)
    if not fractions:
        return text
    new = NewText(text)
    for one in fractions:
        if one.start < new.at:
            continue
        shapes.read.add(one.bar)
        if one.joins[0]:
            new.keep(new.at + len(before := text[new.at : one.start].rstrip()))
            if before[-1:].isalnum() or text[one.start - 1].isspace():
                new.write(" ", new.at)
        else:
            new.keep(one.start)
        new.write(one.text, one.start, (*one.bar[:2], *one.span))
        new.at = one.end
        if one.joins[1]:
            while new.at < len(text) and text[new.at] in "\r\n":
                new.at += 1
            if text[new.at : new.at + 1].strip() and text[new.at] not in _CLOSING:
                new.write(" ", new.at)
    return new.end(boxes)


def _fraction(text: str, boxes: CharacterBoxes, bar: Box) -> _Fraction | None:
    """Return the fraction with this bar; None if the bar belongs to no fraction.

    The characters above and below the bar must match the bar's width, and other text must be next to the bar at the
    bar's height. The text next to an underline, or next to the line above a sum, is at another height.
    """
    x, y = (bar[0] + bar[1]) / 2, (bar[2] + bar[3]) / 2
    wide = bar[1] - bar[0]
    above = boxes.found_at(x, y - _NEAR, wide / 2, _NEAR)
    below = None if above is None else boxes.found_at(x, y + _NEAR, wide / 2, _NEAR)
    if above is None or below is None or not 0 < below - above < _FARTHEST:
        return None
    start, over_end = _run(text, boxes, above, bar)
    under, end = _run(text, boxes, below, bar)
    before = boxes.span(at, at) if (at := next(_filled(text, range(start - 1, -1, -1)), -1)) >= 0 else None
    if before is not None and bar[0] < (before[0] + before[1]) / 2 < bar[1] and before[3] > y - before[3] + before[2]:
        return None  # the character before the numerator is above the bar too, so the numerator is incomplete
    if over_end > under or text[over_end:under].strip() or max(over_end - start, end - under) > _LONGEST:
        return None
    widest, tallest = 0.0, 0.0
    for first, last, side in ((start, over_end, -1), (under, end, 1)):
        box = boxes.span(first, last - 1)
        if box is None:
            return None
        height = box[3] - box[2]
        close = _CLOSE_LIMITS if "_(" in text[first:last] else _CLOSE
        if not 0 < side * ((box[2] + box[3]) / 2 - y) < close * height:
            return None
        if abs((box[0] + box[1]) / 2 - x) > _CENTRED * height:
            return None
        widest, tallest = max(widest, box[1] - box[0]), max(tallest, height)
    if not widest - 2 * _INSIDE < wide < widest + _OVERHANG * tallest:
        return None
    on_left, on_right = (_beside(text, boxes, bar, step) for step in (range(start - 1, -1, -1), range(end, len(text))))
    line = on_left or on_right
    if line is None:
        return None
    over, below_it = (_powers(text, boxes, first, last) for first, last in ((start, over_end), (under, end)))
    written = formulas.fraction(over, below_it)
    return _Fraction(start, end, written, bar, line, (on_left is not None, on_right is not None))


def _powers(text: str, boxes: CharacterBoxes, start: int, end: int) -> str:
    """Return a part of a fraction with its powers marked."""
    part = WORD.sub(lambda word: with_raised(word[0], start + word.start(), boxes), text[start:end])
    return part.strip().replace(BREAK, "^")


def _run(text: str, boxes: CharacterBoxes, index: int, bar: Box) -> tuple[int, int]:
    """Return start and end of the numerator or denominator around the character ``index``: of the neighbouring
    characters that are on the same side of the fraction bar and between the bar's ends.
    """
    y = (bar[2] + bar[3]) / 2
    side = _is_below(boxes, index, y)

    def inside(other: int) -> bool:
        box = boxes.span(other, other)
        if text[other] in "\r\n":
            return False
        if box is None or text[other] == " ":
            return True
        return bar[0] - _INSIDE < (box[0] + box[1]) / 2 < bar[1] + _INSIDE and _is_below(boxes, other, y) == side

    start, end = index, index + 1
    while start and inside(start - 1) and end - start <= _LONGEST:
        start -= 1
    while end < len(text) and inside(end) and end - start <= _LONGEST:
        end += 1
    power = RAISED.match(text, end + len(BREAK)) if text.startswith(BREAK, end) else None
    last, raised = (boxes.span(at, at) if power else None for at in (end - 1, end + len(BREAK)))
    if power and last and raised and inside(power.start()) and is_raised(raised, last) and raised[3] > last[2]:
        end = power.end()  # pdfium has put a power on a line of its own
    while text[start].isspace() and start < index:
        start += 1
    while text[end - 1].isspace() and end - 1 > index:
        end -= 1
    return start, end


def _is_below(boxes: CharacterBoxes, index: int, y: float) -> bool:
    box = boxes.span(index, index)
    return box is not None and (box[2] + box[3]) / 2 > y


def _beside(text: str, boxes: CharacterBoxes, bar: Box, order: range) -> tuple[float, float] | None:
    """Return (top, bottom) of the first visible character at the indices ``order``; None if it is not next to the bar
    at the bar's height.
    """
    at = next(_filled(text, order), None)
    box = None if at is None else boxes.span(at, at)
    if box is None:
        return None
    height, y = box[3] - box[2], (bar[2] + bar[3]) / 2
    apart = max(box[0] - bar[1], bar[0] - box[1])
    near = -_INSIDE < apart < _BESIDE * height and abs((box[2] + box[3]) / 2 - y) < _AXIS * height
    return (box[2], box[3]) if near else None


def _filled(text: str, order: range) -> Iterator[int]:
    return (at for at in order if not text[at].isspace())
