"""Puts the words that were recognised in a picture (``app.readers.ocr``) into the order in which a person reads them:
the title, an axis with its name, legends, labels and the rows of tables. Runs only in the child process
(``app.readers.child``).

Finds the place of these words in a page's text, where they are a paragraph ``[picture: ...]`` with one line for each
row. Knows nothing of the file that has the picture.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from app.readers.chart_labels import AxisName, axes_of, grouped
from app.readers.layout import Line, reflow
from app.readers.locating import folded, locate
from app.readers.pdf_grids import Box as PageBox
from app.readers.pdf_lines import recognised_lines
from app.readers.recognised import Box, RecognisedLine, RecognisedPage, bracketed, pieces_of

Shows = Callable[[Box], bool]
"""Whether a box (x0, y0, x1, y1) of a picture, as fractions of it, has words that are no text of the page."""

_SENTENCE = 5.0  # minimum mean words of a line in a picture of text
_UPRIGHT = 1.5  # minimum ratio of height to width of words that run upwards or downwards
_BAR = " | "  # the separator of a row's cells
_CAPTION_REACH = 60.0  # maximum distance in points between a picture and its caption
_CAPTION = re.compile(
    r"(?:fig(?:ure)?|abb(?:ildung)?|chart|graph|grafik|schaubild|diagram\w?|exhibit|table|tabelle|tab|image|bild|photo"
    r"|plate|map|karte|scheme|box|figura|tableau)\b\.?\s?(?:\d|[IVX]+\b|[A-Z]\b)",
    re.I,
)  # matches the beginning of a caption
_LABEL = 3  # maximum words of the name of an axis mark
_TICK = re.compile(r"(?<=\w)[-–—_]$")  # matches a drawn mark that was read as a hyphen


def words_of(record: dict[str, Any], shows: Shows = lambda box: True) -> str:
    """Return the words of a picture in reading order, one line for each row; "" if it has none.

    Args:
        record: the picture's record, as ``app.readers.ocr.recognise_picture`` made it.
        shows: tells which words count; the page's own text may stand on the picture.
    """
    page = RecognisedPage.from_json(record)
    width, height = page.size
    page.lines = [
        line
        for line in page.lines
        if shows((line.words[0].x0 / width, line.top / height, line.words[-1].x1 / width, line.bottom / height))
    ]
    if not page.lines:
        return ""
    for line in page.lines:
        if len(line.words) <= _LABEL:  # the mark of an axis stands close behind its name
            line.words[-1] = replace(line.words[-1], text=_TICK.sub("", line.words[-1].text))
    sideways = _names_of_axes([line for line in page.lines if _is_sideways(line)])
    upright = [line for line in page.lines if not _is_sideways(line)]
    page.lines = upright
    pieces = pieces_of(page) if upright else []
    axes = axes_of(pieces)
    if not axes and not sideways:
        lines = recognised_lines(page)
        is_prose = sum(len(line.text.split()) for line in lines) >= _SENTENCE * len(lines)
        if is_prose or any(line.row for line in lines):
            return re.sub(r"\n{2,}", "\n", reflow(lines, Counter()))
    return "\n".join(group.text for group in grouped(pieces, axes, sideways))


def _is_sideways(line: RecognisedLine) -> bool:
    wide = line.words[-1].x1 - line.words[0].x0
    return line.bottom - line.top > _UPRIGHT * wide and len(line.words[0].text) > 2


def _names_of_axes(lines: Sequence[RecognisedLine]) -> list[AxisName]:
    """Join words that run upwards one after the other."""
    names: list[AxisName] = []
    for line in sorted(lines, key=lambda line: -line.bottom):
        x0, x1, text = line.words[0].x0, line.words[-1].x1, " ".join(word.text for word in line.words)
        wide = x1 - x0
        last = next(
            (one for one in names if abs(one.x - (x0 + x1) / 2) < wide / 2 and one.top - line.bottom < wide), None
        )
        if last is None:
            names.append(AxisName(text, (x0 + x1) / 2, line.top, line.bottom))
        else:
            last.text, last.top = f"{last.text} {text}", line.top
    return names


def with_words(text: str, placed: Sequence[tuple[str, str, bool]]) -> str:
    """Insert the words of pictures into a page's text, each as a paragraph.

    Args:
        text: the page's text.
        placed: of each picture, in reading order: its words, the line of the page beside which they belong ("" for
            the end of the page), and whether they stand before the paragraph of this line instead of after it.
    """
    signs = [(sign, at) for at, letter in enumerate(text) for sign in folded(letter)]
    letters = "".join(sign for sign, _ in signs)
    inserts: list[tuple[int, str]] = []
    for words, line, is_before in placed:
        span = locate(letters, folded(line)) if line else None
        at = len(text)
        if span is not None:
            at = _break(text, signs[span[0]][1] if is_before else signs[span[1] - 1][1], is_before=is_before)
        inserts.append((at, bracketed(words)))
    inserts.sort(key=lambda one: one[0])
    for at, words in reversed(inserts):
        before, after = text[:at].rstrip("\n"), text[at:].lstrip("\n")
        text = "\n\n".join(filter(None, (before, words, after)))
    return text


def _break(text: str, at: int, *, is_before: bool) -> int:
    """Return the end of the line in which the position ``at`` is, or its start if ``is_before``. A table is not cut."""
    start, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    end = len(text) if end < 0 else end
    if is_before:
        return start
    after = text[end + 1 :].split("\n", 1)[0]
    if _BAR in text[start:end] and _BAR in after:
        end = text.find("\n\n", end)
    return len(text) if end < 0 else end


def on_page(record: dict[str, Any] | None, box: PageBox, lines: Sequence[Line]) -> tuple[str, str, bool] | None:
    """Return the words of a picture on a page of a PDF and where they belong, as ``with_words`` takes them; None if the
    picture has no words beside the page's own text.

    Args:
        record: as of ``words_of``.
        box: the picture on the page as (x0, x1, top, bottom).
        lines: the page's lines that are shown.
    """
    words = words_of(record, lambda part: not _is_printed(part, box, lines)) if record else ""
    return (words, *_anchor(box, lines)) if words else None


def _anchor(box: PageBox, lines: Sequence[Line]) -> tuple[str, bool]:
    """Return the line of a page beside which the words of a picture belong, and whether they stand before the paragraph
    of this line. The line is the picture's caption, or else the last one above the picture, or the first one below; ""
    if there is none.

    Args:
        box: the picture on the page as (x0, x1, top, bottom).
        lines: the page's lines that are shown.
    """
    x0, x1, top, bottom = box
    beside = [line for line in lines if line.x0 < x1 and line.x1 > x0 and len(line.text) > 1]
    below = [line for line in beside if line.top > bottom - line.height / 2]
    above = [line for line in beside if line.bottom < top + line.height / 2]
    captions = [(line.top - bottom, line) for line in below] + [(top - line.bottom, line) for line in above]
    near = [(gap, line) for gap, line in captions if gap < _CAPTION_REACH and _CAPTION.match(line.text)]
    if near:
        return min(near, key=lambda one: one[0])[1].text, False
    if above:
        return max(above, key=lambda line: line.bottom).text, False
    return (min(below, key=lambda line: line.top).text, True) if below else ("", False)


def _is_printed(part: Box, box: PageBox, lines: Sequence[Line]) -> bool:
    """Whether words of a picture are text of the page that stands on the picture.

    Args:
        part: the place of the words (x0, y0, x1, y1) as fractions of the picture.
        box: the picture on the page as (x0, x1, top, bottom).
        lines: the page's lines that are shown.
    """
    x0, x1, top, bottom = box
    x, y = x0 + (part[0] + part[2]) / 2 * (x1 - x0), top + (part[1] + part[3]) / 2 * (bottom - top)
    return any(line.x0 <= x <= line.x1 and line.top <= y <= line.bottom for line in lines)
