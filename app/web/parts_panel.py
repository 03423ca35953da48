"""Offers to read a book in parts if it does not fit the model's window, and first states how long that takes.

Owns these routes and this key of the live stream:

    the live key "parts"       the offer: the number of parts, and the time to read them
    POST /reading/parts        read the open book in parts, so that each question goes to the parts that it needs
    POST /reading/otherwise    let the person choose again which pages are read
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request

from app.core.forecast import Range, stretch
from app.core.format import View, counted
from app.core.open_book import OpenBook, Stage
from app.core.parts import MOST_ASKED
from app.core.question import AnswersFrom
from app.core.state import AppState
from app.web.routes import PageRoute, posts


class PartsPanel:
    """Serves the offer to read in parts. A self-contained part of the page (``app.web.live.Panel``).

    Args:
        state: the state of the program.
    """

    def __init__(self, state: AppState) -> None:
        self._state = state
        self._shown: tuple[object, View] = None, {}

    def routes(self) -> Sequence[PageRoute]:
        return posts({"/reading/parts": self.read, "/reading/otherwise": self.choose})

    def view(self) -> View:
        """The offer to read in parts. ``count``: number of parts; 0 if nothing is offered. ``said``: a text about the
        parts and the time to read them. ``few`` and ``every``: texts of the choice to ask only the needed parts, or all
        parts. ``some``: whether the model has read only some pages or chapters, so that other pages may be chosen.
        ``at_once``: whether a question may first be answered from passages.
        """
        current = self._state.current
        at_once = self._state.source is not AnswersFrom.WHOLE
        seen = (current.parts, current.stage, current.document, current.whole, current.before_notes, at_once)
        if self._shown[0] != seen:
            self._shown = seen, {"parts": self._parts(current, at_once)}
        return self._shown[1]

    def _parts(self, current: OpenBook, at_once: bool) -> View:
        some = current.whole is not None and current.document is not current.whole and current.stage is Stage.READY
        some = some and not current.before_notes
        if not current.parts or current.whole is None:
            return {"count": 0, "said": "", "every": "", "few": "", "some": some, "at_once": at_once}
        each, whole = self._times(current)
        count = len(current.parts)
        longest = max((part.document for part in current.parts), key=lambda document: len(document.pages))
        most = f", at most {stretch(each.times(min(MOST_ASKED, count)))}" if each else ""
        time = f", {stretch(each)} each the first time; {stretch(whole)} for all {count}" if each and whole else ""
        return {
            "count": count,
            "said": f"{counted(count, 'part')} of up to {longest.extent()}{time}. A question goes to the parts "
            f"that it needs, and each is read when one first does. What was read is kept.",
            "few": f"the parts that it needs{most}",
            "every": f"all {count} parts{f', {stretch(whole)} the first time' if whole else ''}",
            "some": some,
            "at_once": at_once,
        }

    def _times(self, current: OpenBook) -> tuple[Range | None, Range | None]:
        """Return the times in seconds to read the longest part, and to read all parts. Both are None if this machine's
        reading speed is not known.
        """
        fit = current.whole_fit
        time = self._state.experience.a_token(self._state.engine.status().model, fit) if fit else None
        if time is None:
            return None, None
        sizes = [part.tokens for part in current.parts]
        return time.times(max(sizes)), time.times(sum(sizes))

    async def read(self, request: Request) -> None:
        self._state.read_in_parts()

    async def choose(self, request: Request) -> None:
        self._state.choose_again()
