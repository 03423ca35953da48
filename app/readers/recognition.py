"""Recognises the text of pages that are pictures (OCR) in child processes with limits on time and memory. Stores the
results.

Owns the stored results, the time estimate, and the handling of a page on which the recogniser fails.
``recognised.jsonl`` has a sealed line (``app.sealed``) for each page, and for each picture beside the text, so that
none is recognised twice, and a stop, a crash or a damaged byte loses at most one. Another line has the measured speed,
from which the time for more pages is estimated. Lines of earlier versions are JSON without a sum.
``app.readers.ocr`` does the recognition itself.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from app.readers.parsed import Limits, packed
from app.readers.parser_process import ChildFailed, run_in_child
from app.sealed import BROKEN, seal, sealed_text, unseal
from engine.errors import NoTextLayer

logger = logging.getLogger(__name__)

FILE = "recognised.jsonl"
PACKAGES = ("rapidocr", "onnxruntime")
PROBED_PAGES = 3
"""Pages after which the speed is measured."""
_MADE_BY = "PP-OCRv6 small, 1"  # version of the recogniser; stored results of another version are ignored
_LONGEST_UNASKED_S = 180.0  # maximum estimated seconds of text recognition that starts without asking the user
_LIMITS = Limits(seconds_per_page=60.0, memory_bytes=3_000_000_000)
# recognition stops after this many consecutive failed pages, because the recogniser itself must be broken
_FAILURES = 8
# what a message of the child is about, keyed by its type
_RESULTS = {"recognised": "number", "picture": "key"}
_SECONDS_A_PAGE = 120.0  # maximum mean seconds for recognising a page; enough on a busy machine

Records = dict[int, dict[str, Any]]
"""Recognised pages by page number (from 1)."""

PictureRecords = dict[str, "dict[str, Any] | None"]
"""Recognised pictures beside the text, by the picture's key. None if the recogniser failed or the picture is
damaged.
"""

Pictures = Literal["", "kept", "all"]
"""Which words of pictures beside the text are read: none, those recognised earlier, or all."""

SECONDS_A_PICTURE = 2.0
"""Mean seconds for recognising a picture beside the text, on two cores, before any of a file has been recognised."""


@dataclass(frozen=True)
class RecognitionSpeed:
    """How fast the text of a file's pages is recognised. ``start``: seconds until the recogniser is ready for the first
    page. ``page``: mean seconds per page after the start.
    """

    start: float
    page: float

    def seconds(self, pages: int) -> float:
        """Estimate the seconds for recognising ``pages`` pages, including the start of the recogniser."""
        return self.start + self.page * pages


class LongRecognition(NoTextLayer):
    """Raised if text recognition would take so long that the user must agree first."""


@dataclass
class Recognition:
    """How to handle pages that are pictures when a document is read.

    ``folder``: returns the folder for the results of a file, by the file's hash; None to store no results. ``agreed``:
    whether the user has agreed to wait, however long recognition takes. ``doubtful``: whether to also recognise pages
    whose own text is probably wrong. ``pictures``: which words of pictures beside the text are read. ``stop``: if set,
    recognition ends with what is done so far. ``progress``: called with the pages done, the total, and the seconds left
    (None if unknown). An exception raised in ``progress`` stops the reading. ``estimated``: called with the number of
    pages left and the seconds that they will take, as soon as an estimate is possible.
    """

    folder: Callable[[str], Path] | None = None
    agreed: bool = False
    doubtful: bool = False
    pictures: Pictures = "kept"
    stop: threading.Event = field(default_factory=threading.Event)
    progress: Callable[[int, int, float | None], None] = lambda done, total, seconds: None
    estimated: Callable[[int, float], None] = lambda pages, seconds: None

    @classmethod
    def stopped(cls, folder: Callable[[str], Path]) -> Recognition:
        """Return settings with which pages recognised earlier are used, but no more pages are recognised."""
        recognition = cls(folder)
        recognition.stop.set()
        return recognition

    def kept(self, sha256: str) -> Records:
        return load(self.folder(sha256)) if self.folder is not None else {}

    def kept_pictures(self, sha256: str) -> PictureRecords:
        return load_pictures(self.folder(sha256)) if self.folder is not None else {}

    def speed(self, sha256: str) -> RecognitionSpeed | None:
        """Return the stored speed at which this file's pages were recognised; None if it was not measured."""
        return load_speed(self.folder(sha256)) if self.folder is not None else None

    def was_agreed(self, sha256: str) -> bool:
        """Whether a stored page of this file was recognised after the user had agreed to wait."""
        return self.folder is not None and any(record.get("agreed") for record in _records(self.folder(sha256)))


def missing() -> str:
    """Return the missing packages for text recognition, separated by spaces; "" if none is missing."""
    return " ".join(name for name in PACKAGES if importlib.util.find_spec(name) is None)


def is_kept(folder: Path) -> bool:
    """Whether a book's folder has stored results of text recognition."""
    return (folder / FILE).is_file()


def load(folder: Path) -> Records:
    """Load the recognised pages from a book's folder. Damaged lines of the file are ignored."""
    return {record["number"]: record["page"] for record in _records(folder)}


def load_pictures(folder: Path, number: int | None = None) -> PictureRecords:
    """Load the recognised pictures beside the text from a book's folder: all, or those of a page of a PDF. Damaged
    lines of the file are ignored.
    """
    begin = _start("picture") if number is None else f'{_start("picture")}"{number}:'
    return {str(record["picture"]): record.get("words") for record in _lines(folder, begin)}


def load_speed(folder: Path) -> RecognitionSpeed | None:
    """Load the newest measured speed of recognition from a book's folder; None if there is none, as in files of earlier
    versions.
    """
    newest = None
    for record in _lines(folder, _start("start")):
        try:
            speed = RecognitionSpeed(float(record["start"]), float(record["seconds_a_page"]))
        except (ValueError, TypeError, KeyError, OverflowError):
            continue
        if 0 <= speed.start < math.inf and 0 <= speed.page < math.inf:
            newest = speed
    return newest


def load_page(folder: Path, number: int) -> dict[str, Any] | None:
    """Load the recognised text of one page from a book's folder; None if there is none. Lines of other pages are not
    parsed.
    """
    newest = None
    for record in _records(folder, f"{_start('number')}{number},"):
        newest = record["page"]
    return newest


def _start(key: str) -> str:
    """Return the start of a line in the results file whose second JSON key is ``key``, up to the value of this key."""
    return f'{_dumped({"made_by": _MADE_BY})[:-1]},"{key}":'


def _dumped(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"))


def _records(folder: Path, start: str = "") -> Iterator[dict[str, Any]]:
    """Yield the valid page records in a book's folder. Only lines that begin with ``start`` are parsed."""
    for record in _lines(folder, start):
        try:
            yield {**record, "number": int(record["number"]), "page": record["page"]}
        except (ValueError, TypeError, KeyError):
            continue


def _lines(folder: Path, start: str) -> Iterator[dict[str, Any]]:
    """Yield the parsed lines of the results file that begin with ``start`` and come from this version of the
    recogniser.
    """
    try:
        lines = (folder / FILE).read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        text = line if line.startswith(b"{") else sealed_text(line)
        if not text.startswith(start.encode()):
            continue
        try:
            record = json.loads(line) if text is line else unseal(line)
            if record["made_by"] == _MADE_BY:
                yield record
        except BROKEN:
            continue


def recognise(
    path: Path, sha256: str, password: str | None, numbers: Iterable[int], recognition: Recognition, records: Records
) -> None:
    """Recognise the text of the pages ``numbers`` in order, and add the results to ``records``. A page on which the
    recogniser fails is left out.

    Raises:
        LongRecognition: recognition would take long, and the user has not agreed to wait.
    """
    waiting = sorted(set(numbers) - records.keys())
    known, total = len(records), len(waiting)
    speed = recognition.speed(sha256) if records else None
    if waiting:
        recognition.progress(0, total, speed.seconds(total) if speed else None)
        if speed:
            _estimate(recognition, path.name, speed, total, known)

    def keep(number: int, message: Mapping[str, Any]) -> None:
        records[number] = message["page"]
        record = {"number": number, "agreed": recognition.agreed, "page": message["page"]}
        _keep(recognition, sha256, record, password)

    def measured(start: float, mean: float, left: int) -> None:
        speed = RecognitionSpeed(round(start, 2), round(mean, 2))
        _keep(recognition, sha256, {"start": speed.start, "seconds_a_page": speed.page}, password)
        _estimate(recognition, path.name, speed, left, len(records))

    request = {"work": "recognise", "path": packed(path), "password": password}
    expected = speed.seconds(total) if speed else None
    _one_by_one(request, "numbers", waiting, recognition, expected, keep, lambda number: None, measured)


def recognise_pictures(
    path: Path,
    sha256: str,
    password: str | None,
    keys: Sequence[str],
    recognition: Recognition,
    records: PictureRecords,
) -> None:
    """Recognise the words of the pictures ``keys`` beside the text in order, and add the results to ``records``. A
    picture on which the recogniser fails is remembered as one without words.
    """
    waiting = [key for key in dict.fromkeys(keys) if key not in records]

    def keep(key: str, message: Mapping[str, Any]) -> None:
        records[key] = message.get("words")
        _keep(recognition, sha256, {"picture": key, "words": records[key]}, password)

    expected = SECONDS_A_PICTURE * len(waiting)
    if waiting:
        recognition.progress(0, len(waiting), expected)
    request = {"work": "recognise pictures", "path": packed(path), "password": password}
    _one_by_one(request, "keys", waiting, recognition, expected, keep, lambda key: keep(key, {}), lambda *_: None)


def _one_by_one(
    request: dict[str, Any],
    name: str,
    waiting: list[Any],
    recognition: Recognition,
    expected: float | None,
    keep: Callable[[Any, Mapping[str, Any]], None],
    failed: Callable[[Any], None],
    measured: Callable[[float, float, int], None],
) -> None:
    """Recognise pages or pictures in child processes. If a child fails on one, the next child goes on behind it.

    Args:
        request: the child's task, without the list of what is to be recognised.
        name: the name of this list in the request.
        waiting: pages or pictures in order. What is done is removed.
        recognition: tells when to stop; its ``progress`` is called.
        expected: the estimated seconds; None if unknown.
        keep: called with a page or picture and the child's message about it.
        failed: called with a page or picture on which the recogniser failed.
        measured: called once, after ``PROBED_PAGES`` and if more are waiting, with the seconds until the recogniser was
            ready, the mean seconds after that, and the number of those that are waiting.
    """
    total, done, spent, failures = len(waiting), 0, 0.0, 0
    while waiting and failures < _FAILURES and not recognition.stop.is_set():
        asked = list(waiting)
        page: Any = None
        begun, start = time.monotonic(), None
        deadline = begun + _SECONDS_A_PAGE * len(waiting)
        try:
            with closing(run_in_child({**request, name: asked}, _LIMITS, deadline)) as heard:
                for message in heard:
                    if recognition.stop.is_set():
                        return
                    left = spent / done * (total - done) if done else expected
                    if message["type"] == "refused":
                        raise ChildFailed("crash", None)
                    if message["type"] == "step":
                        page = message.get("page")
                    if page is not None and start is None:
                        start = time.monotonic() - begun
                    if message["type"] in _RESULTS:
                        one = message[_RESULTS[message["type"]]]
                        keep(one, message)
                        waiting.remove(one)
                        failures, done, spent = 0, done + 1, spent + float(message["seconds"])
                        left = spent / done * (total - done)
                    recognition.progress(done, total, left)
                    if message["type"] in _RESULTS and done == PROBED_PAGES and waiting:
                        measured(start or 0.0, spent / done, len(waiting))
            return
        except ChildFailed as failure:
            logger.warning("%s of a file was not recognised: %s", page, failure.reason)
            bad = page if name == "numbers" else asked[page - 1] if page else None
            bad = bad if bad in waiting else waiting[0]
            waiting.remove(bad)
            failed(bad)
            total, failures = total - 1, failures + 1


def _estimate(recognition: Recognition, name: str, speed: RecognitionSpeed, waiting: int, done: int) -> None:
    """Report the estimated time for ``waiting`` more pages, after ``done`` pages of the file are recognised.

    Raises:
        LongRecognition: the time is long, and the user has not agreed to wait.
    """
    seconds = speed.seconds(waiting)
    recognition.estimated(waiting, seconds)
    if seconds > _LONGEST_UNASKED_S and not recognition.agreed and not recognition.stop.is_set():
        raise _long(name, waiting + done, seconds)


def _long(name: str, pages: int, seconds: float) -> LongRecognition:
    minutes = round(seconds / 60)
    said = f"{minutes} minutes" if minutes < 90 else f"{minutes / 60:.1f} hours"
    return LongRecognition(
        f"“{name}” has {pages:,} pages that are pictures. To recognise their words takes about {said} on this machine.",
        "It can be stopped at any time, and what was recognised is kept.",
    )


def _keep(recognition: Recognition, sha256: str, record: Mapping[str, Any], password: str | None) -> None:
    if recognition.folder is None or password:  # no results are stored for a book with a password
        return
    try:
        file = recognition.folder(sha256) / FILE
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a+b") as stream:
            if stream.tell():
                stream.seek(-1, os.SEEK_END)
            torn = stream.tell() and stream.read(1) != b"\n"  # the program was killed while it wrote the last line
            stream.write(torn * b"\n" + seal({"made_by": _MADE_BY, **record}))
    except OSError as error:
        logger.warning("what was recognised on a page was not kept: %s", error)
