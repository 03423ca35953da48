"""Computes the cost of reading several documents in one conversation, before they are read. The cost depends on their
order.

    cost = cost_of(state, [sha256, ...])
    cost.said        "3,120 tokens to read, about 2 min. From disk, where they were read before: 8,400 tokens."
    cost.without     the hashes of documents that fit, if all together are too long

The text up to the first document that differs from an earlier reading is restored from disk. All text after it is read.
The documents are stored as a book (``app.core.books``), which is opened like any other (``AppState.arrange``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from app.core.forecast import stretch
from app.core.format import counted
from app.core.state import AppState
from engine.document import Document
from engine.errors import PasswordNeeded

MOST = 100
"""Maximum documents in one conversation."""


@dataclass(frozen=True)
class Cost:
    """The cost of reading some documents. ``said``: the cost in words. ``fits``: whether all documents together fit
    into the window. If not, ``without`` has the hashes of documents that together fit.
    """

    said: str
    fits: bool
    without: tuple[str, ...] = ()


def cost_of(state: AppState, wanted: Sequence[str]) -> Cost:
    """Count the tokens that would be read for the documents ``wanted`` (hashes) in this order. The files are parsed,
    but the model does not read them.

    Raises:
        DocumentError: a document cannot be read, or is no longer in the library.
        TrifoldError: no model is loaded, so tokens cannot be counted.
    """
    books = [state.books.get(sha256) for sha256 in wanted]
    parts = [part for book in books for part in (state.books.members(book) or (book,))]
    parts = list({part.sha256: part for part in parts}.values())
    try:
        document = Document.together([state.parser.parse(part) for part in parts])
    except PasswordNeeded as error:
        raise PasswordNeeded(error.cause, "Open it by itself once, with its password, and then add it.") from error
    fit, model = state.engine.measure(document), state.engine.status().model
    if not fit.fits:
        kept = tuple(part.sha256 for at, part in enumerate(parts) if at not in fit.leave_out)
        return Cost(fit.sentence, fits=False, without=kept if fit.leave_out else ())
    anew = fit.tokens - fit.kept
    if not anew:
        return Cost("All of it was read before and comes back from disk.", fits=True)
    time = state.experience.reading_on(model, fit)
    said = f"{counted(anew, 'token')} to read{f', {stretch(time)}' if time else ''}."
    back = f" From disk, where they were read before: {counted(fit.kept, 'token')}." if fit.kept else ""
    return Cost(f"{said}{back}", fits=True)
