"""Reads a file into a ``Document`` (``read_document``), or raises an error with a cause and a remedy.

Runs the parser in a child process. After a failure, decides which pages pypdf reads instead and which are left out.
Writes the errors for the user.
"""

from __future__ import annotations

import hashlib
import stat
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from app.readers import conversion
from app.readers.parsed import SECOND_READER, Limits, packed
from app.readers.parser_process import BUSY, ChildFailed, run_in_child
from app.readers.recognition import LongRecognition, Recognition, missing, recognise, recognise_pictures
from engine.document import Document, OutlineItem, Page
from engine.errors import DocumentError, InputError, NoTextLayer, PasswordNeeded, ResourceError
from engine.model_files import TEMPORARY

_ERRORS: dict[str, type[DocumentError]] = {
    "document": DocumentError,
    "password": PasswordNeeded,
    "no_text": NoTextLayer,
}
_OFFER = "LibreOffice on this machine can convert it; the file itself stays as it is."
_FAILED = "LibreOffice could not convert it."
_NOT_CONVERTED = "It is damaged, or has a password. Open it in its own program and save it as .docx, .pptx or .xlsx."
_BLOCK = 1 << 20  # bytes read at a time to hash the file
_TRIES = 8
"""Maximum child processes for one file. A page that cannot be read ends up to two child processes."""


def read_document(
    path: Path,
    password: str | None = None,
    *,
    comments: bool = True,
    recognition: Recognition | None = None,
    convert: bool = False,
    progress: Callable[[int, int], None] | None = None,
    limits: Limits | None = None,
) -> Document:
    """Read a file in a child process.

    Args:
        path: a document or a scan, in a format that ``app.readers.detect`` detects by the content.
        password: password of an encrypted PDF.
        comments: whether to read reviewers' comments too.
        recognition: how to recognise the text of pages that are pictures (OCR); None to read no such text.
        convert: whether LibreOffice may convert a file that no parser knows, because the user has agreed.
        progress: called with the number of pages done and the total; an exception raised in it stops the reading.
        limits: limits for memory, time and size; None for the defaults.

    Raises:
        PasswordNeeded: the document is encrypted, and the password is missing or wrong.
        NoTextLayer: the pages are images.
        LongRecognition: more than half of the pages need recognition, which takes minutes, and the user has not agreed
            to it.
        ConversionOffer: LibreOffice on this machine can convert the file, and the user has not agreed to it.
        DocumentError: the file cannot be read as a book within the limits.
        ResourceError: the machine is too busy to read the file.
        InputError: there is no such file, or it may not be opened.
    """
    try:
        return _read_as_it_is(Path(path), password, comments, recognition, progress, limits or Limits())
    except _Convertible as refused:
        if conversion.program() is None:
            raise
        if not convert:
            raise conversion.ConversionOffer(refused.cause, _OFFER) from refused
        return _read_converted(Path(path), refused, comments, progress, limits or Limits())


def _read_converted(
    path: Path, refused: _Convertible, comments: bool, progress: Callable[[int, int], None] | None, limits: Limits
) -> Document:
    """Read what LibreOffice makes of a file. The words of its pictures are not read, because they are not in the file
    that the library keeps.
    """
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
        beat = partial(progress, 0, 1) if progress is not None else lambda: None
        made = conversion.converted(path, refused.target, Path(folder), beat)
        if made is None:
            raise DocumentError(" ".join((refused.cause, _FAILED)), _NOT_CONVERTED) from refused
        document = _read_as_it_is(made, None, comments, None, progress, limits)
    pages = tuple(replace(page, pictures=0) for page in document.pages)
    told = f"LibreOffice on this machine converted the file to .{refused.target}, which was read."
    return replace(document, pages=pages, sha256=_digest(path, limits), warnings=(told, *document.warnings))


def _read_as_it_is(
    path: Path,
    password: str | None,
    comments: bool,
    recognition: Recognition | None,
    progress: Callable[[int, int], None] | None,
    limits: Limits,
) -> Document:
    digest = _digest(path, limits)
    request = {"work": "read", "path": packed(path), "password": password, "comments": comments}
    if recognition is None:
        return read_bounded(request, path.name, digest, limits, progress)
    if lacking := missing():
        try:
            return read_bounded(request, path.name, digest, limits, progress)
        except NoTextLayer as error:
            remedy = f"To recognise its words needs {lacking}: python launch.py --repair brings it."
            raise NoTextLayer(error.cause, remedy) from error
    return _Recognised(path, digest, request, limits, recognition, progress).read(password)


class _Convertible(DocumentError):
    """Raised for a file that is not read here, but that an office suite can convert to the format ``target``."""

    def __init__(self, cause: str, remedy: str, target: str) -> None:
        super().__init__(cause, remedy)
        self.target = target


class _Recognised:
    """Reads one file with the words of its pages that are pictures, and of its pictures beside the text."""

    def __init__(
        self,
        path: Path,
        digest: str,
        request: dict[str, Any],
        limits: Limits,
        recognition: Recognition,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._path = path
        self._digest = digest
        self._request = request
        self._limits = limits
        self._recognition = recognition
        self._progress = progress
        self._records = recognition.kept(digest)
        self._pictures = recognition.kept_pictures(digest) if recognition.pictures else {}
        self._keys: list[str] = []  # of pictures beside the text whose words are not known

    def read(self, password: str | None) -> Document:
        document = self._with_pages(password)
        which = self._recognition.pictures
        has_text = any(page.text for page in document.pages)
        if self._keys and (which == "all" or (which and not has_text)) and not self._recognition.stop.is_set():
            known = len(self._pictures)
            recognise_pictures(self._path, self._digest, password, self._keys, self._recognition, self._pictures)
            if len(self._pictures) > known:
                return self._once(unread=True)
        # a document that is nothing but pictures, none of which was read, is refused as one without text
        return self._once(unread=False) if self._keys and not has_text else document

    def _with_pages(self, password: str | None) -> Document:
        """Read the file. Recognise its pages that are pictures."""
        recognition, records, digest = self._recognition, self._records, self._digest
        document = self._once(unread=True)
        kinds = ("unread", "doubtful") if recognition.doubtful else ("unread",)
        wanted = [page.number for page in document.pages if page.picture in kinds and page.number not in records]
        # The user agreed to recognition when this file was opened earlier, but stopped it. The pages that were
        # recognised are used, and the others wait until the user asks for them.
        enough = not recognition.agreed and recognition.was_agreed(digest)
        if not wanted or enough:
            return document
        known, offered = len(records), ""
        try:
            recognise(self._path, digest, password, wanted, recognition, records)
        except LongRecognition as offer:
            if 2 * len(wanted) > len(document.pages):
                raise
            offered = offer.cause
        # Read the document again with the pages recognised just now. If no page of a scan was recognised, refuse the
        # scan.
        if len(records) > known or not records:
            document = self._once(unread=bool(records))
        return replace(document, warnings=(*document.warnings, offered)) if offered else document

    def _once(self, *, unread: bool) -> Document:
        more = {"unread": unread, "recognised": {str(number): page for number, page in self._records.items()}}
        more["pictures"] = self._pictures
        self._keys = []
        request = {**self._request, **more}
        return read_bounded(request, self._path.name, self._digest, self._limits, self._progress, self._keys)


def read_bounded(
    request: dict[str, Any],
    name: str,
    digest: str,
    limits: Limits,
    progress: Callable[[int, int], None] | None,
    keys: list[str] | None = None,
) -> Document:
    """Read a file in a child process. If the child fails, try again in a new child, up to ``_TRIES`` times. If a child
    fails on a page, the next child reads that page with pypdf. If pypdf fails too, the page is left out. Add the keys
    of pictures whose words are not known to ``keys``.
    """
    deadline = time.monotonic() + limits.seconds
    trouble: dict[int, str] = {}
    for _ in range(_TRIES):
        told = {"limits": asdict(limits), "trouble": {str(page): reason for page, reason in trouble.items()}}
        try:
            document, new_keys = _read({**request, **told}, name, digest, limits, deadline, progress)
            if keys is not None:
                keys += new_keys
            return document
        except ChildFailed as failure:
            _judge(failure, trouble, name, limits)
    raise DocumentError(
        f"“{name}” has too many pages on which the program that reads it fails "
        f"({', '.join(map(str, sorted(trouble)))}).",
        "The file is probably damaged; get it again or print it to a new PDF.",
    )


def _read(
    request: dict[str, Any],
    name: str,
    digest: str,
    limits: Limits,
    deadline: float,
    progress: Callable[[int, int], None] | None,
) -> tuple[Document, list[str]]:
    sections: list[Page] = []
    keys: list[str] = []
    with closing(run_in_child(request, limits, deadline)) as heard:
        for message in heard:
            kind = message["type"]
            if kind == "step" and progress is not None:
                progress(message["done"], message["total"])
            elif kind == "section":
                said = message["label"], message["text"], message["picture"], len(message["pictures"])
                sections.append(Page(len(sections) + 1, *said))
                keys += message["pictures"]
            elif kind == "refused":
                cause, remedy, why = f"“{name}” {message['cause']}", message["remedy"], message["kind"]
                raise _ERRORS[why](cause, remedy) if why in _ERRORS else _Convertible(cause, remedy, why)
            elif kind == "book":
                return _document(message, sections, digest), keys
    raise ChildFailed("crash", None)


def _document(book: dict[str, Any], pages: list[Page], digest: str) -> Document:
    return Document(
        title=book["title"],
        author=book["author"],
        pages=tuple(pages),
        kind=book["kind"],
        sha256=digest,
        unit=book["unit"],
        outline=tuple(OutlineItem(title, page, level) for title, page, level in book["outline"]),
        warnings=tuple(book["warnings"]),
        date=book["date"],
    )


def _judge(failure: ChildFailed, trouble: dict[int, str], name: str, limits: Limits) -> None:
    """Record in ``trouble`` the page on which the child failed. The next child reads this page with pypdf or, after a
    second failure, leaves the page out. Raise an error if another child would not help: ResourceError if the machine
    was too busy, otherwise DocumentError.
    """
    page = failure.page
    if failure.reason == "busy":
        raise ResourceError(f"“{name}” was not read in time: this machine is too busy.", BUSY) from failure
    if page is not None and failure.reason != "time" and trouble.get(page) in (None, SECOND_READER):
        trouble[page] = _said(failure, limits) if page in trouble else SECOND_READER
        return
    raise DocumentError(
        f"“{name}” {_said(failure, limits)}.",
        "It is damaged, or made to harm the program that opens it. Nothing was kept. Get it from another source.",
    ) from None


def _said(failure: ChildFailed, limits: Limits) -> str:
    place = "on one page" if failure.page else "in one place"
    return {
        "memory": f"needs more than {limits.memory_bytes / 1e9:.3g} GB of memory to read",
        "page time": f"took longer than {limits.seconds_per_page:.3g} seconds {place}",
        "time": f"took longer than {limits.seconds:.3g} seconds to read",
        "crash": "made its reader crash",
    }[failure.reason]


def _digest(path: Path, limits: Limits) -> str:
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise InputError(f"“{path.name}” is a folder, not a file.", "Choose a file inside it.")
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"“{path.name}” is not an ordinary file.", "Choose a document.")
        if status.st_size > limits.file_bytes:
            raise DocumentError(
                f"“{path.name}” has {status.st_size / 1e6:,.0f} MB; the limit is {limits.file_bytes / 1e6:,.0f} MB.",
                "Split it, or save it with smaller images.",
            )
        hashed = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                hashed.update(block)
    except FileNotFoundError:
        raise InputError(f"There is no file “{path}”.", "Check the name and the folder.") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "its name is not valid"
        raise InputError(f"“{path.name}” cannot be opened: {reason}.", "Check that you may read it.") from None
    return hashed.hexdigest()
