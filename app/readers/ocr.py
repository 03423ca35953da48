"""Recognises the text of pages that are pictures, with RapidOCR (PP-OCRv6 in ONNX). Runs only in the child process
(``app.readers.child``).

Detects a page's orientation and slant, and finds its lines and words with their positions. ``app.readers.recognised``
puts the lines in reading order. Nothing is fetched: RapidOCR's wheel contains the models, which are loaded by their
paths.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from app.readers.recognised import RecognisedLine, RecognisedPage, Word

LONG_SIDE = 2_400
"""Pixels of a page's longer side. For A4 this is 200 dpi. A higher resolution does not improve the recognition of small
print.
"""

# pixels of the page's longer side when lines are detected; at full size, the detection would take half of all time
_DETECTED = 1_600
_LINE_HEIGHT = 48  # height in pixels of a line's picture that the recogniser reads
# factor by which the picture of a long line is narrowed; a factor of 0.65 causes four times as many errors
_NARROW = 0.75
# minimum ratio of width to height of a line whose picture is narrowed; narrowing a shorter line saves no time, because
# the recogniser widens its picture again
_NARROWED = 9.0
_SURE = 0.98  # minimum certainty of a line read from a narrowed picture; a less certain line is read again
# maximum share of narrowed lines that must be read again; beyond it, the page's later lines are not narrowed
_READ_TWICE = 0.2
_BEAT = 24  # lines that are recognised between two progress reports
_SAMPLE = 3  # number of lines that are read to detect whether a page is upside down
_UPRIGHT = 0.9  # mean certainty of the sampled lines above which the page counts as upright
# the page is turned by 180 degrees if this raises the mean certainty of the sampled lines by at least this much
_BETTER = 0.05
_SIDEWAYS = 1.5  # minimum ratio of height to width of a line that counts as vertical
_LONG = 5.0  # minimum length, in line heights, of a line that is used to measure a page's slant
_FEWEST = 0.5  # minimum certainty of a line that is kept
# maximum width of a line per recognised letter, in line heights; in a wider line, the recogniser has missed letters
_WIDEST = 1.2
# minimum share of completely read lines on a page, weighted by line width; a page with a smaller share is in an unknown
# script
_READ = 0.5
_LEGIBLE = 0.9  # minimum certainty of a legible line; Greek letters, which are read as Latin letters, get 0.8 to 0.88
# minimum length, in line heights, of a line that may count as illegible; a shorter line may be a page number or a speck
_FRAGMENT = 4.0
# minimum mean certainty of a page in a known script; the lines of a less certain page are dropped
_KNOWN = 0.86
_SHORT = 2  # maximum letters and digits of words that are kept only if they are read with great certainty
_SURE_ALONE = 0.95  # minimum certainty of such short words in a picture, which may be marks or ornaments
_FEWEST_SIGNS = 3  # minimum characters of a picture with words
_TILTED = 0.6  # minimum rise of words at an angle, in line heights
_STRAIGHT = 0.002  # maximum slant in radians of a page that counts as straight
_THREADS = 4  # maximum threads
# Matches the dot leader of a contents page at the end of a line, with or without the page number. At least four dots
# are required, because an ellipsis has three.
_LEADER = re.compile(r"(?:(?:[.·_]\s?){4}|(?:…\s?){2})[.·…_\s]*\w{0,6}\s*$")
_DET, _REC = "PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx"

Picture = NDArray[np.uint8]
"""An image as (height, width, 3)."""

Quads = NDArray[np.float32]
"""The four corners of every line as (lines, 4, 2), clockwise from the top left, in pixels."""


def recognise(picture: Picture, size: tuple[float, float], beat: Callable[[], None]) -> RecognisedPage:
    """Find and read the lines of a picture.

    Args:
        picture: the page as an image.
        size: width and height of the shown page in points.
        beat: called several times per page, to report progress.
    """
    engine = ocr_engine()
    beat()
    turns, picture, quads = _level(engine, picture)
    beat()
    crops = engine.lines.crop_text_regions(picture, quads) if len(quads) else []
    longest = sorted(range(len(quads)), key=lambda at: -_width(quads[at]))[:_SAMPLE]
    known = dict(zip(longest, _texts(engine, [crops[at] for at in longest]), strict=True))
    if _is_on_its_head(engine, crops, known):
        turns, known = turns + 2, {}
        quads = _turned(quads, picture)
        crops = [_on_its_head(crop) for crop in crops]
    width, height = size if turns % 2 == 0 else size[::-1]
    page = RecognisedPage(turns, _slant(quads), (width, height), [], 0.0)
    scale = width / picture.shape[1]
    signs, certain, width_read = 0, 0.0, 0.0
    others = sorted(set(range(len(quads))) - known.keys(), key=lambda at: -_width(quads[at]))  # longest first
    known |= _read_lines(engine, crops, others, beat)
    for at, (text, certainty, columns, count) in known.items():
        signs, certain = signs + len(text), certain + certainty * len(text)
        is_led = certainty >= _FEWEST and bool(_LEADER.search(text))
        is_whole = is_led or len(text) * _height(quads[at]) * _WIDEST > _width(quads[at])
        if certainty >= _FEWEST and text.strip():
            page.lines.append(_line(page, quads[at] * scale, text, columns, count))
            if is_whole:
                width_read += _width(quads[at])
        is_legible = is_led or (is_whole and certainty >= _LEGIBLE)
        page.illegible += not is_legible and _width(quads[at]) >= _FRAGMENT * _height(quads[at])
    page.lines.sort(key=lambda line: (line.top, line.words[0].x0))
    page.certainty = certain / max(signs, 1)
    page.is_blank = not len(quads)
    if width_read < _READ * sum(map(_width, quads)) or page.certainty < _KNOWN:
        page.lines = []  # the script is unknown, so the recognised characters are meaningless
    return page


def recognise_picture(picture: Picture, size: tuple[float, float], beat: Callable[[], None]) -> RecognisedPage:
    """Find and read the words of a picture on a page, such as a chart. Words at an angle are read too. Uncertain words
    are left out, so that a photograph without words gives none.

    Args: as of ``recognise``; ``size`` is the size that positions refer to.

    Returns:
        The lines of words, not in reading order. Each line of words that run upwards or downwards has one word.
    """
    engine = ocr_engine()
    beat()
    quads = _quads(engine, picture)
    beat()
    page = RecognisedPage(0, 0.0, size, [], 0.0, is_blank=not len(quads))
    crops = engine.lines.crop_text_regions(picture, quads) if len(quads) else []
    known: dict[int, Read] = {}
    for some in _batches(range(len(quads))):
        known |= zip(some, _texts(engine, [crops[at] for at in some]), strict=True)
        beat()
    # words that run upwards and words that run downwards are cut out with the same turn
    upright = [at for at, quad in enumerate(quads) if _height(quad) > _SIDEWAYS * _width(quad) and known[at][1] < _SURE]
    for at, read in zip(upright, _texts(engine, [_on_its_head(crops[at]) for at in upright]), strict=True):
        known[at] = max(known[at], read, key=lambda one: one[1])
    scale, signs, certain = size[0] / picture.shape[1], 0, 0.0
    for at, (text, certainty, columns, count) in known.items():
        letters = sum(map(str.isalnum, text))
        if certainty < (_LEGIBLE if letters > _SHORT else _SURE_ALONE) or not letters:
            page.illegible += letters > _SHORT
            continue
        signs, certain = signs + len(text), certain + certainty * len(text)
        quad = quads[at] * scale
        if at in upright or _height(quad) > _SIDEWAYS * _width(quad):
            (left, top), (right, bottom) = quad.min(0), quad.max(0)
            line = RecognisedLine(float(top), float(bottom), [Word(" ".join(text.split()), float(left), float(right))])
        else:
            line = _line(page, quad, text, columns, count)
            if abs(float(quad[1, 1] - quad[0, 1])) > _TILTED * _height(quad):
                # names of marks that are tilted begin or end at their axis, each at the same height
                line = replace(line, top=float(quad[:, 1].min()), bottom=float(quad[:, 1].min()) + _height(quad))
        page.lines.append(line)
    page.certainty = certain / max(signs, 1)
    if page.illegible > len(page.lines) or signs < _FEWEST_SIGNS:
        page.lines = []  # patterns, ornaments, or a script that is unknown
    return page


def start() -> None:
    """Load the models, so that the time measured for the first page does not include the loading."""
    engine, blank = ocr_engine(), np.full((_LINE_HEIGHT, 4 * _LINE_HEIGHT, 3), 255, np.uint8)
    _quads(engine, blank)
    _texts(engine, [blank])


@dataclass(frozen=True)
class OcrEngine:
    """The models, made once per process. ``lines`` finds the lines of a page with all threads. ``letters`` reads one
    line with one thread, and ``pool`` runs ``letters`` on several lines at once. Dividing each line among the threads
    would take a sixth more processor time.
    """

    lines: Any
    letters: Any
    pool: ThreadPoolExecutor


@cache
def ocr_engine() -> OcrEngine:
    threads = min(os.cpu_count() or 1, _THREADS)
    return OcrEngine(_models(threads), _models(1), ThreadPoolExecutor(threads))


def _models(threads: int) -> Any:
    """Make a RapidOCR, which loads each of its models when it is first used."""
    import rapidocr

    models = Path(rapidocr.__file__).parent / "models"
    made = rapidocr.RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.max_side_len": LONG_SIDE,
            "Det.limit_type": "max",
            "Det.limit_side_len": _DETECTED,
            "Det.model_path": str(models / _DET),
            "Rec.model_path": str(models / _REC),
            "EngineConfig.onnxruntime.enable_cpu_mem_arena": True,
            "EngineConfig.onnxruntime.intra_op_num_threads": threads,
        }
    )
    made.return_word_box = True
    return made


def _level(engine: OcrEngine, picture: Picture) -> tuple[int, Picture, Quads]:
    """Turn the picture counterclockwise by 90 degrees if its lines are vertical. Return the number of quarter turns (0
    or 1), the picture, and the corners of its lines.
    """
    quads = _quads(engine, picture)
    if not _are_sideways(quads):
        return 0, picture, quads
    picture = np.ascontiguousarray(np.rot90(picture))
    return 1, picture, _quads(engine, picture)


def _is_on_its_head(engine: OcrEngine, crops: Sequence[Picture], sample: Mapping[int, Read]) -> bool:
    """Whether the page is upside down: whether the sampled lines are read with clearly higher certainty after a turn by
    180 degrees.
    """
    certain = _certainty(list(sample.values()))
    if not sample or certain > _UPRIGHT:
        return False
    return _certainty(_texts(engine, [_on_its_head(crops[at]) for at in sample])) >= certain + _BETTER


def _on_its_head(picture: Picture) -> Picture:
    return np.ascontiguousarray(picture[::-1, ::-1])


def _turned(quads: Quads, picture: Picture) -> Quads:
    """Return the corners of the lines in the picture turned by 180 degrees."""
    height, width = picture.shape[:2]
    return (np.array([width, height], np.float32) - np.roll(quads, 2, axis=1)).astype(np.float32)


def _quads(engine: OcrEngine, picture: Picture) -> Quads:
    boxes = engine.lines(picture, use_cls=False, use_rec=False).boxes
    return np.zeros((0, 4, 2), np.float32) if boxes is None else np.asarray(boxes, np.float32)


Read = tuple[str, float, list[int], float]
"""(text, certainty, columns, count). The recogniser divides a line into ``count`` columns of equal width; ``columns``
has the column of each letter.
"""


def _read_lines(
    engine: OcrEngine, crops: Sequence[Picture], order: Sequence[int], beat: Callable[[], None]
) -> dict[int, Read]:
    """Read lines in the given ``order``. Return the recognised lines, keyed by the line's index in ``crops``.

    A long line is read from a narrowed picture, which takes less time. If the result is uncertain or has digits, the
    line is read again at full width, because a narrowed picture can lose one of several equal digits in a row.
    """
    known: dict[int, Read] = {}
    unsure: list[int] = []
    shortest = _NARROWED
    for some in _batches(order):
        narrow = {at for at in some if crops[at].shape[1] >= shortest * crops[at].shape[0]}
        shown = [_narrow(crops[at]) if at in narrow else crops[at] for at in some]
        known |= zip(some, _texts(engine, shown), strict=True)
        beat()
        again = [at for at in some if at in narrow and _is_doubtful(*known[at][:2])]
        unsure += again
        if len(again) > _READ_TWICE * len(narrow):
            shortest = math.inf
    for some in _batches(unsure):
        known |= zip(some, _texts(engine, [crops[at] for at in some]), strict=True)
        beat()
    return known


def _is_doubtful(text: str, certainty: float) -> bool:
    return certainty < _SURE or any(map(str.isdigit, text))


def _batches(order: Sequence[int]) -> list[Sequence[int]]:
    return [order[start : start + _BEAT] for start in range(0, len(order), _BEAT)]


def _narrow(crop: Picture) -> Picture:
    height, width = crop.shape[:2]
    size = (math.ceil(width * _LINE_HEIGHT / height * _NARROW), _LINE_HEIGHT)
    return np.asarray(Image.fromarray(crop).resize(size, Image.Resampling.BILINEAR))


def _texts(engine: OcrEngine, crops: Sequence[Picture]) -> list[Read]:
    return list(engine.pool.map(lambda crop: _text(engine.letters, crop), crops))


def _text(recogniser: Any, crop: Picture) -> Read:
    result = recogniser.recognize_txt([crop])
    info = result.word_results[0]
    columns = [column for word in info.word_cols for column in word]
    return result.txts[0], result.scores[0], columns, info.line_txt_len


def _certainty(read: Sequence[Read]) -> float:
    return sum(certainty for _, certainty, *_ in read) / max(len(read), 1)


def _width(quad: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(quad[1] - quad[0]))


def _height(quad: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(quad[3] - quad[0]))


def _are_sideways(quads: Quads) -> bool:
    """Whether most lines run vertically, so that the page lies on its side."""
    along = sum(_width(quad) for quad in quads if _width(quad) >= _height(quad))
    across = sum(_height(quad) for quad in quads if _height(quad) > _SIDEWAYS * _width(quad))
    return across > along


def _slant(quads: Quads) -> float:
    """Return the median slant of the lines in radians, clockwise on the page; 0.0 for a straight page."""
    slants = [
        math.atan2(float(quad[1, 1] - quad[0, 1]), float(quad[1, 0] - quad[0, 0]))
        for quad in quads
        if _width(quad) > _LONG * _height(quad)
    ]
    slant = float(np.median(slants)) if slants else 0.0
    return slant if abs(slant) > _STRAIGHT else 0.0


def _line(
    page: RecognisedPage, quad: NDArray[np.float32], text: str, columns: Sequence[int], count: float
) -> RecognisedLine:
    corners = [page.straightened(float(x), float(y)) for x, y in quad]
    # the corners are in the order top left, top right, bottom right, bottom left
    x0, x1 = (corners[0][0] + corners[3][0]) / 2, (corners[1][0] + corners[2][0]) / 2
    top, bottom = (corners[0][1] + corners[1][1]) / 2, (corners[2][1] + corners[3][1]) / 2
    parts = text.split()
    letters = sum(map(len, parts))
    if len(columns) != letters:  # a character has several code points, so all letters count as equally wide
        columns, count = range(letters), letters
    step, words, end = (x1 - x0) / max(count, 1.0), [], 0
    for part in parts:
        begin, end = end, end + len(part)
        words.append(Word(part, x0 + columns[begin] * step, min(x1, x0 + (columns[end - 1] + 1) * step)))
    return RecognisedLine(top, bottom, words)
