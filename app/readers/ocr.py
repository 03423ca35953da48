"""Recognises the words of pages that are pictures, by RapidOCR (PP-OCRv6 in ONNX; its wheel contains the models). Child
only.

Finds a page's orientation and slant, its lines, and their words. ``app.readers.recognised`` uses the lines. Nothing is
downloaded: the models are given by their paths.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.readers.recognised import RecognisedLine, RecognisedPage, Word

LONG_SIDE = 2_400
"""Pixels of a page's longer side: 200 dpi for A4. At more, the model reads small print no better."""

_DETECTED = 1_600  # pixels of the longer side for finding lines; at full size this takes half of the time
_BATCH = 12  # lines that are read between two reports of progress
_SAMPLE = 3  # lines from which a page's orientation is detected
_UPRIGHT = 0.9  # mean confidence of these lines above which the page is not turned
_BETTER = 0.05  # minimum gain of confidence by which the other orientation is chosen
_SIDEWAYS = 1.5  # ratio of height to width above which a line stands on its end
_LONG = 5.0  # minimum length of a line, in line heights, from which the slant of a page is measured
_FEWEST = 0.5  # minimum confidence of a line that is kept
_WIDEST = 1.2  # maximum width of a letter, in line heights
_READ = 0.5  # share of the lines' width that letters cover if the script is known to the model
_KNOWN = 0.86  # minimum confidence of letters if the script is known to the model
_STRAIGHT = 0.002  # maximum slant, in radians, that counts as straight
_THREADS = 4  # threads; more do not make it faster
_DET, _REC = "PP-OCRv6_det_small.onnx", "PP-OCRv6_rec_small.onnx"

Picture = NDArray[np.uint8]
"""An image (height, width, 3)."""

Quads = NDArray[np.float32]
"""The four corners of every line (lines, 4, 2), clockwise from the top left, in pixels."""


def recognise(picture: Picture, size: tuple[float, float], beat: Callable[[], None]) -> RecognisedPage:
    """Find and read the lines of a picture.

    Args:
        size: width and height of the shown page in points.
        beat: called several times for each page, to report progress.
    """
    reader = _reader()
    beat()
    turns, picture, quads = _upright(reader, picture)
    beat()
    crops = reader.crop_text_regions(picture, quads) if len(quads) else []
    widest_last = sorted(range(len(quads)), key=lambda at: _width(quads[at]) / max(_height(quads[at]), 1.0))
    width, height = size if turns % 2 == 0 else size[::-1]
    page = RecognisedPage(turns, _slant(quads), (width, height), [], 0.0)
    scale = width / picture.shape[1]
    signs, certain, width_read = 0, 0.0, 0.0
    for start in range(0, len(quads), _BATCH):
        some = widest_last[start : start + _BATCH]
        for at, (text, certainty, columns, count) in zip(some, _texts(reader, [crops[at] for at in some]), strict=True):
            signs, certain = signs + len(text), certain + certainty * len(text)
            if certainty >= _FEWEST and text.strip():
                page.lines.append(_line(page, quads[at] * scale, text, columns, count))
                if len(text) * _height(quads[at]) * _WIDEST > _width(quads[at]):
                    width_read += _width(quads[at])
        beat()
    page.lines.sort(key=lambda line: (line.top, line.words[0].x0))
    page.certainty = certain / max(signs, 1)
    page.is_blank = not len(quads)
    if width_read < _READ * sum(map(_width, quads)) or page.certainty < _KNOWN:
        page.lines = []  # in an unknown script, all that is found are stray characters
    return page


def _upright(reader: Any, picture: Picture) -> tuple[int, Picture, Quads]:
    """The number of counter-clockwise quarter turns that put the picture upright, the turned picture, and its lines."""
    quads = _quads(reader, picture)
    turns = 0
    if _are_sideways(quads):
        turns = 1
        picture = np.ascontiguousarray(np.rot90(picture))
        quads = _quads(reader, picture)
    sample = quads[sorted(range(len(quads)), key=lambda at: -_width(quads[at]))[:_SAMPLE]]
    crops = reader.crop_text_regions(picture, sample) if len(sample) else []
    certain = _certainty(_texts(reader, crops))
    if not crops or certain > _UPRIGHT:
        return turns, picture, quads
    turned = _certainty(_texts(reader, [np.ascontiguousarray(crop[::-1, ::-1]) for crop in crops]))
    if turned < certain + _BETTER:
        return turns, picture, quads
    picture = np.ascontiguousarray(np.rot90(picture, 2))
    return turns + 2, picture, _quads(reader, picture)


@cache
def _reader() -> Any:
    """The recogniser, made once for each process."""
    import rapidocr

    models = Path(rapidocr.__file__).parent / "models"
    reader = rapidocr.RapidOCR(
        params={
            "Global.log_level": "critical",
            "Global.max_side_len": LONG_SIDE,
            "Det.limit_type": "max",
            "Det.limit_side_len": _DETECTED,
            "Det.model_path": str(models / _DET),
            "Rec.model_path": str(models / _REC),
            "EngineConfig.onnxruntime.enable_cpu_mem_arena": True,
            "EngineConfig.onnxruntime.intra_op_num_threads": min(os.cpu_count() or 1, _THREADS),
        }
    )
    reader.return_word_box = True
    return reader


def _quads(reader: Any, picture: Picture) -> Quads:
    boxes = reader(picture, use_cls=False, use_rec=False).boxes
    return np.zeros((0, 4, 2), np.float32) if boxes is None else np.asarray(boxes, np.float32)


Read = tuple[str, float, list[int], float]
"""A read line: its text, its confidence, the column of each letter, and the number of columns over the line's width."""


def _texts(reader: Any, crops: Sequence[Picture]) -> list[Read]:
    if not crops:
        return []
    result = reader.recognize_txt(list(crops))
    columns = [[column for word in info.word_cols for column in word] for info in result.word_results]
    counts = [info.line_txt_len for info in result.word_results]
    return list(zip(result.txts, result.scores, columns, counts, strict=True))


def _certainty(read: Sequence[Read]) -> float:
    return sum(certainty for _, certainty, *_ in read) / max(len(read), 1)


def _width(quad: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(quad[1] - quad[0]))


def _height(quad: NDArray[np.float32]) -> float:
    return float(np.linalg.norm(quad[3] - quad[0]))


def _are_sideways(quads: Quads) -> bool:
    """Whether most text runs from the top down or from the bottom up."""
    along = sum(_width(quad) for quad in quads if _width(quad) >= _height(quad))
    across = sum(_height(quad) for quad in quads if _height(quad) > _SIDEWAYS * _width(quad))
    return across > along


def _slant(quads: Quads) -> float:
    """The slant of the lines in radians; positive if they run clockwise on the page."""
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
    x0, x1 = (corners[0][0] + corners[3][0]) / 2, (corners[1][0] + corners[2][0]) / 2
    top, bottom = (corners[0][1] + corners[1][1]) / 2, (corners[2][1] + corners[3][1]) / 2
    parts = text.split()
    letters = sum(map(len, parts))
    if len(columns) != letters:  # for characters of several code points, letters are assumed to be equally wide
        columns, count = range(letters), letters
    step, words, at = (x1 - x0) / max(count, 1.0), [], 0
    for part in parts:
        begin, at = at, at + len(part)
        words.append(Word(part, x0 + columns[begin] * step, min(x1, x0 + (columns[at - 1] + 1) * step)))
    return RecognisedLine(top, bottom, words)
