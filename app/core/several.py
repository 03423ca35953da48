"""Computes the cost of reading several documents as one book, before they are read. The cost depends on their order.

    cost = cost_of(state, [sha256, ...])
    cost.sentence    "To read: about 2 min. The rest was read before and comes back from disk."
    cost.fitting     the hashes of documents that fit together, if all documents together do not fit
    cost.recognises  the hashes of documents with scanned pages, which are recognised before the reading

The text before the first document that differs from an earlier reading is restored from disk. All later text is read.
``AppState.arrange`` opens the documents as one book.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.core.forecast import Range, stretch
from app.core.format import counted
from app.core.state import AppState
from app.readers.recognition import Recognition
from engine.document import Document
from engine.errors import PasswordNeeded

MOST = 100
"""Maximum documents of a collection."""


@dataclass(frozen=True)
class Cost:
    """The cost of reading some documents. ``sentence``: the cost in words. ``fits``: whether all documents together fit
    into the window. If they do not, ``fitting`` has the hashes of those documents that fit together. ``recognises``:
    the hashes of documents with scanned pages. These pages are recognised before the reading, and their tokens are not
    counted.
    """

    sentence: str
    fits: bool
    fitting: tuple[str, ...] = ()
    recognises: tuple[str, ...] = ()


class _Probe:
    """Estimates how long the recognition of scanned pages will take. If a document's speed of recognition is unknown,
    its first pages are recognised and stored, and the time is measured. ``documents``: hashes of the documents with
    unrecognised pages. ``pages``: the number of such pages. ``seconds``: the estimated time to recognise these pages.
    """

    def __init__(self, folder: Callable[[str], Path]) -> None:
        self._folder = folder
        self.documents: list[str] = []
        self.pages = 0
        self.seconds = 0.0

    def of_one(self, sha256: str) -> Recognition:
        """Make the settings of recognition for one document. The recognition stops as soon as its time can be
        estimated.
        """
        stop = threading.Event()

        def estimated(pages: int, seconds: float) -> None:
            stop.set()
            self.documents.append(sha256)
            self.pages += pages
            self.seconds += seconds

        return Recognition(self._folder, stop=stop, estimated=estimated)


def cost_of(state: AppState, documents: Sequence[str]) -> Cost:
    """Compute the cost of reading the documents with these hashes in this order. The files are parsed, but the model
    does not read them. If a document is a scan and not open, its first pages are recognised once, which takes seconds.

    Raises:
        DocumentError: a document cannot be read, or is no longer in the library.
        TrifoldError: no model is loaded, so tokens cannot be counted.
    """
    books = [state.books.get(sha256) for sha256 in documents]
    parts = [part for book in books for part in (state.books.members(book) or (book,))]
    parts = list({part.sha256: part for part in parts}.values())
    folder, shown = state.books.folder, _shown(state)
    probe = _Probe(folder)
    try:
        how = [
            Recognition.stopped(state.books.folder) if part.sha256 in shown else probe.of_one(part.sha256)
            for part in parts
        ]
        read = [state.parser.parse(part, recognition=one) for part, one in zip(parts, how, strict=True)]
        document = Document.together(read)
    except PasswordNeeded as error:
        raise PasswordNeeded(error.cause, "Open it by itself once, with its password, and then add it.") from error
    fit, model = state.engine.measure(document), state.engine.status().model
    first = _recognised_first(probe)
    recognises = tuple(probe.documents)
    if not fit.fits:
        kept = tuple(part.sha256 for at, part in enumerate(parts) if at not in fit.leave_out)
        return Cost(f"{first}{fit.sentence}", False, kept if fit.leave_out else (), recognises)
    anew = fit.tokens - fit.kept
    if not anew and not first:
        return Cost("All of it was read before and comes back from disk.", fits=True)
    time = state.experience.reading_on(model, fit)
    said = f"To read: {stretch(time) if time else document.extent()}."
    back = " The rest was read before and comes back from disk." if fit.kept else ""
    more = " The words in these pictures come on top of that." if first else ""
    return Cost(f"{first}{said}{back}{more}", fits=True, recognises=recognises)


def _shown(state: AppState) -> frozenset[str]:
    """Return the hashes of the documents of the open book. Their pages were recognised when the book was opened, and
    are not recognised again.
    """
    current = state.current
    if current.book is None or current.whole is None:
        return frozenset()
    return frozenset(part.sha256 for part in state.books.members(current.book) or (current.book,))


def _recognised_first(probe: _Probe) -> str:
    if not probe.pages:
        return ""
    time = stretch(Range(probe.seconds, probe.seconds))
    return f"Words in pictures of pages are recognised first: {counted(probe.pages, 'page')}, {time}. "
