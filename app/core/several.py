"""Computes the cost of reading several documents in one conversation, before they are read. The cost depends on their
order.

    cost = cost_of(state, [sha256, ...])
    cost.said        "3,120 tokens to read, about 2 min. From disk, where they were read before: 8,400 tokens."
    cost.without     the hashes of documents that fit, if all together are too long
    cost.recognises  whether pages that are pictures are recognised before the reading

The text up to the first document that differs from an earlier reading is restored from disk. All text after it is read.
The documents are stored as a book (``app.core.books``), which is opened like any other (``AppState.arrange``).
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
"""Maximum documents in one conversation."""


@dataclass(frozen=True)
class Cost:
    """The cost of reading some documents. ``said``: the cost in words. ``fits``: whether all documents together fit
    into the window. If not, ``without`` has the hashes of documents that together fit. ``recognises``: whether pages
    that are pictures are recognised first; their tokens are then not counted.
    """

    said: str
    fits: bool
    without: tuple[str, ...] = ()
    recognises: bool = False


class _Probe:
    """Recognises one page of each document that has pages to recognise, to estimate the time for the others. The page
    is stored, so no work is lost. ``pages``: pages that are left; ``seconds``: the time for them.
    """

    def __init__(self) -> None:
        self.pages = 0
        self.seconds = 0.0

    def of_one(self, folder: Callable[[str], Path]) -> Recognition:
        """How to read one document. The recognition stops after its first page."""
        stop = threading.Event()

        def after(done: int, total: int, seconds: float | None) -> None:
            if done and not stop.is_set():
                stop.set()
                self.pages += total - done
                self.seconds += seconds or 0.0

        return Recognition(folder, stop=stop, progress=after)


def cost_of(state: AppState, wanted: Sequence[str]) -> Cost:
    """Count the tokens that would be read for the documents ``wanted`` (hashes) in this order. The files are parsed,
    but the model does not read them. Of a scan that was never opened one page is recognised, which takes seconds.

    Raises:
        DocumentError: a document cannot be read, or is no longer in the library.
        TrifoldError: no model is loaded, so tokens cannot be counted.
    """
    books = [state.books.get(sha256) for sha256 in wanted]
    parts = [part for book in books for part in (state.books.members(book) or (book,))]
    parts = list({part.sha256: part for part in parts}.values())
    probe, folder = _Probe(), state.books.folder
    try:
        read = [state.parser.parse(part, recognition=probe.of_one(folder)) for part in parts]
        document = Document.together(read)
    except PasswordNeeded as error:
        raise PasswordNeeded(error.cause, "Open it by itself once, with its password, and then add it.") from error
    fit, model = state.engine.measure(document), state.engine.status().model
    first = _recognised_first(probe)
    if not fit.fits:
        kept = tuple(part.sha256 for at, part in enumerate(parts) if at not in fit.leave_out)
        return Cost(f"{first}{fit.sentence}", False, kept if fit.leave_out else (), probe.pages > 0)
    anew = fit.tokens - fit.kept
    if not anew and not first:
        return Cost("All of it was read before and comes back from disk.", fits=True)
    time = state.experience.reading_on(model, fit)
    said = f"{counted(anew, 'token')} to read{f', {stretch(time)}' if time else ''}."
    back = f" From disk, where they were read before: {counted(fit.kept, 'token')}." if fit.kept else ""
    more = " The words in these pictures come on top of that." if first else ""
    return Cost(f"{first}{said}{back}{more}", fits=True, recognises=probe.pages > 0)


def _recognised_first(probe: _Probe) -> str:
    if not probe.pages:
        return ""
    time = stretch(Range(probe.seconds, probe.seconds))
    return f"Words in pictures of pages are recognised first: {counted(probe.pages, 'page')}, {time}. "
