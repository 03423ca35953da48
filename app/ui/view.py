"""The whole page as plain data: what the live stream sends.

Owns the names that the page's scripts look for. Each top-level key is sent when its value has changed, so what
changes often is kept apart from what is large. Pure: a snapshot of the desk in, data out.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from app.chats import Chat
from app.settings import DEMO_MODEL, is_same_folder
from app.ui import presentation, wording
from app.ui.desk import Desk, Stage
from app.ui.presentation import View

DEMO_NAME = "Demo model"

_LOADING = "The model is being loaded. You can open a book already."


@dataclass(frozen=True)
class Growing:
    """The answer that is being written. Only what is new of it is sent to a tab that knows its beginning.

    ``answer`` names it, and ``text`` is what there is of it.
    """

    answer: int
    text: str

    def since(self, before: object) -> View:
        """What a tab that was sent ``before`` does not know. ``whole``: it is all of the text."""
        known = before.text if isinstance(before, Growing) and before.answer == self.answer else None
        whole = known is None or not self.text.startswith(known)
        return {"answer": self.answer, "whole": whole, "text": self.text if whole else self.text[len(known or "") :]}


def page_view(desk: Desk, status: Any, chat: Chat | None = None) -> View:
    """What the page shows of the desk, but for the map (``map_view`` and ``presentation.glow``), which is large.

    Args:
        status: the engine's own snapshot, ``engine.Status``.
        chat: the one on the desk.
    """
    return {
        "model": model_view(status),
        "book": book_view(desk),
        "pages_read": pages_read(desk),
        "reading": _reading(desk),
        "read": presentation.read_line(desk.read, _unit(desk)) if desk.read and not desk.paused else "",
        "asking": desk.asking,
        "chat": _chat(desk, chat),
        "writing": _writing(desk, chat),
        "figures": _figures(desk, chat),
        "memory": presentation.kv_view(desk.read.kv_bytes) if desk.read else [],
        "pace": list(desk.pace),
    }


def model_view(status: Any) -> View:
    """Which model answers, or why none does."""
    if status.state == "failed":
        return {"state": "failed", "line": "No model", "detail": status.detail, "parts": []}
    if status.state == "closed":
        return {"state": "closed", "line": "Closed", "detail": "Trifold has been closed.", "parts": []}
    if status.model is None:
        return {"state": "loading", "line": "Loading the model…", "detail": status.detail or _LOADING, "parts": []}
    model = status.model
    name = DEMO_NAME if _is_demo(str(model.path)) else model.name  # its folder's name says nothing to a person
    here = model.parameters > 0  # of another machine's model only the pace is known
    return {"state": "ready", "line": name, "detail": "", "parts": _model_parts(model), "here": here}


@lru_cache(maxsize=8)
def _is_demo(path: str) -> bool:
    """Asked ten times a second, and every answer looks at the disk."""
    return is_same_folder(path, DEMO_MODEL)


def book_view(desk: Desk) -> View:
    """The book on the desk and what it needs from the person."""
    view: View = {"stage": desk.stage.value, "title": "", "line": "", "trouble": None, "choose": None, "warnings": []}
    if desk.book is not None:
        view["id"] = desk.book.sha256
        view["title"] = desk.document.title if desk.document else desk.book.shown
    if desk.document is not None:
        view["author"] = desk.document.author
        view["warnings"] = list(desk.document.warnings)
        view["line"] = _book_line(desk)
    if desk.trouble is not None:
        view["trouble"] = {"cause": desk.trouble.cause, "remedy": desk.trouble.remedy, "action": desk.action.value}
    if desk.stage is Stage.CHOOSING:
        view["choose"] = _choice(desk)
    return view


def map_view(desk: Desk) -> View:
    """The strip of pages: how many there are and what they are called, where that is not simply their number."""
    pages = desk.document.pages if desk.document else ()
    labels = [page.label for page in pages]
    plain = labels == [str(number) for number in range(1, len(labels) + 1)]
    return {"pages": len(pages), "unit": _unit(desk), "labels": [] if plain else labels}


def pages_read(desk: Desk) -> int:
    """Pages at the start of the strip that can be asked about."""
    if desk.read is not None:
        return desk.read.pages_read
    return desk.progress.pages_done if desk.progress is not None else 0


def _reading(desk: Desk) -> View | None:
    if desk.stage is not Stage.READING:
        return None
    if desk.paused and desk.read is not None:
        return presentation.paused_view(desk.read, _unit(desk))
    if desk.progress is None:
        return {"fraction": 0.0, "pages": 0, "where": "Starting to read", "pace": desk.fit.estimate if desk.fit else ""}
    return presentation.reading_view(desk.progress, _unit(desk))


def _book_line(desk: Desk) -> str:
    if desk.document is None:
        return ""
    tokens, limit = (desk.fit.tokens, desk.fit.limit) if desk.fit else (0, 0)
    return presentation.book_line(desk.read, len(desk.document.pages), _unit(desk), tokens, limit)


def _choice(desk: Desk) -> View:
    """The numbers, and a range that fits as a first proposal."""
    whole, document, fit = desk.whole, desk.document, desk.fit
    pages = len(whole.pages) if whole else 0
    first = document.pages[0].number if document and document.pages else 1
    fitting = max(1, fit.pages_that_fit) if fit else pages
    sentence = fit.sentence if fit else ""
    return {"sentence": sentence, "pages": pages, "first": first, "last": min(pages, first + fitting - 1)}


def _model_parts(model: Any) -> list[str]:
    """What the tooltip of the model's name lists."""
    if not model.parameters:  # another machine's
        return [f"Answers come from {model.device}", f"Window of {wording.counted(model.context_limit, 'token')}"]
    draft = "No draft model"
    if model.draft_parameters:
        draft = f"Guesses come from a model of {_millions(model.draft_parameters)} parameters"
    return [
        f"{_millions(model.parameters)} parameters, {model.dtype}, on {model.device}",
        *([model.kv_note] if model.kv_note else []),
        draft,
        f"Window of {wording.counted(model.context_limit, 'token')}",
    ]


def _millions(parameters: int) -> str:
    if parameters >= 1_000_000_000:
        return f"{parameters / 1e9:.1f} billion"
    return f"{parameters / 1e6:.1f} million"


def _figures(desk: Desk, chat: Chat | None) -> View | None:
    """Of the answer that is being written, else of the last one in the chat that is shown: an empty one has none."""
    turns = chat.exchanges if chat else ()
    figures = desk.figures if desk.asking else turns[-1].figures if turns else None
    return presentation.figures_view(figures) if figures else None


def _writing(desk: Desk, chat: Chat | None) -> Growing | None:
    turns = chat.exchanges if chat and desk.asking else ()
    return next((Growing(turn.answer_id, turn.answer) for turn in reversed(turns) if turn.stopped is None), None)


def _chat(desk: Desk, chat: Chat | None) -> View:
    """``last``: the last answer, which names the whole path of versions that leads to it."""
    turns = chat.exchanges if chat else ()
    return {"id": desk.chat, "turns": len(turns), "last": turns[-1].answer_id if turns else 0}


def _unit(desk: Desk) -> str:
    return desk.document.unit if desk.document else "page"
