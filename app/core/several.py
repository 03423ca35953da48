"""Computes what it would cost to read several documents in one conversation, or in another order, before they are read.

    cost = cost_of(state, [sha256, ...])
    cost.said        "3,120 tokens to read, about 2 min. From disk, where they were read before: 8,400 tokens."
    cost.without     the hashes of documents that fit, if all together are too long

Text before the first changed document is restored from disk; all later text is read again. The documents are stored as
a book (``app.core.books``), which is opened like any other (``AppState.arrange``).
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
    """The cost of reading some documents, in words. ``fits``: whether all of them fit together. If not, ``without``
    lists documents that fit together.
    """

    said: str
    fits: bool
    without: tuple[str, ...] = ()


def cost_of(state: AppState, wanted: Sequence[str]) -> Cost:
    """Count the tokens to be read for these documents in this order. The files are parsed, but the model reads none.

    Raises:
        DocumentError: a document cannot be read, or is no longer in the library.
        TrifoldError: no model is loaded that could count tokens.
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
