"""The live stream: every changing part of the page, including an answer's words, by one route of server-sent events.

Owns the page's content as plain data, under the names that the page's scripts use (``page_view``), and decides when
data is sent. A key is sent as soon as its value has changed (``AppState.changed``), unless the last event is too recent
(``Throttle``); figures are sent less often. Nothing is sent while no page is open. The whole value of a key is sent,
unless the value is an instance of ``Growing``. So values that change often never share a key with large values. Only
this stream sends an answer that is being written (``RunningAnswer``); Gradio shows the chat again when the answer has
ended.

To add a self-contained part of the page, write a class as ``Panel`` describes, and name it in ``server.make_panels``.
Put its markup into ``page/frame.html``, and its style into a file of its own under ``assets/style``, where every file
is loaded. Put its script under ``page/``, with one line in ``page/main.js``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

from starlette.requests import Request
from starlette.responses import StreamingResponse

from app.core import format
from app.core.abilities import abilities
from app.core.books import Book
from app.core.chat_run import OWN, Throttle, answers_at_once, throttle_of
from app.core.chats import Chat, Exchange
from app.core.document_kind import called
from app.core.forecast import Range, stretch
from app.core.format import PacePoint, View, counted, glow
from app.core.notes import NOTES
from app.core.open_book import OpenBook, Stage
from app.core.outside import open_part
from app.core.question import Ask
from app.core.settings import model_name
from app.core.state import AppState
from app.models.fit import TOKENS_PER_PAGE
from app.readers.recognition import SECONDS_A_PICTURE
from app.web import messages
from app.web.routes import PageRoute
from engine import ModelInfo, Status
from engine.config import OWN_SAMPLING, SamplingParams
from engine.document import Document
from engine.events import Figures
from engine.plan import BookFit

logger = logging.getLogger(__name__)


class Panel(Protocol):
    """A self-contained part of the page: its routes, and its keys of the live stream."""

    def routes(self) -> Sequence[PageRoute]:
        """The requests that the panel answers."""
        ...

    def view(self) -> View:
        """The panel's keys of the live stream, with their current values. Called many times a second, so the
        method must take almost no time. A change that ``AppState.changed`` does not tell of is seen within
        ``LOOK_SECONDS``.
        """
        ...


_LOADING = "The model is being loaded. You can open a book already."
_THESE = {"book": "this book", "document": "this document", "documents": "these documents"}
_DENSE = 1.25  # minimum tokens of a page, relative to a printed page, that is called dense


@runtime_checkable
class Growing(Protocol):
    """A value of the live stream that is sent in part: a tab gets only what is new in the value."""

    def since(self, previous: object) -> View:
        """The changes to send to a tab. ``previous``: the view that this tab was sent last; None if none was sent."""
        ...


@dataclass(frozen=True)
class RunningAnswer:
    """The answer that is being written. A tab that already has the beginning of the answer is sent only the new part.

    ``answer`` is the id of the answer's message, and ``text`` is the answer so far. ``html`` is the beginning of
    ``text``, formatted; it ends before the UTF-16 unit ``html_end``. Before the first word, ``waiting`` says what the
    answer waits for.
    """

    answer: int
    text: str
    html: str = ""
    html_end: int = 0
    waiting: str = ""

    def since(self, previous: object) -> View:
        """The changes for a tab that was last sent ``previous``. ``whole``: whether ``text`` is the whole answer so
        far, not only its new part.
        """
        known = previous if isinstance(previous, RunningAnswer) and previous.answer == self.answer else None
        whole = known is None or not self.text.startswith(known.text)
        news: View = {"answer": self.answer, "whole": whole}
        news["text"] = self.text if known is None or whole else self.text[len(known.text) :]
        if known is None or known.html != self.html:
            news.update(html=self.html, at=self.html_end)
        if known is None or known.waiting != self.waiting:
            news["waiting"] = self.waiting
        return news


def page_view(current: OpenBook, status: Status, chat: Chat | None = None, asked: Ask | None = None) -> View:
    """The page's content as data, without the map of pages (``map_view`` and ``format.glow``), which is large.

    Args:
        status: the engine's own snapshot.
        chat: the open chat.
        asked: a question with the person's settings; None for the defaults.
    """
    figures, pace, why_not = _speed(current, chat)
    return {
        "model": model_view(status),
        "sampling": sampling_view(status),
        "book": book_view(current),
        "pages_read": pages_read(current),
        "reading": _reading(current),
        "read": _read_line(current),
        "hint": _hint(current, status, asked or Ask("")),
        "asking": current.asking,
        "asked_by": current.asked_by if current.asking else "",
        "chat": _chat(current, chat),
        "figures": format.figures_view(figures, why_not, pace if current.asking else ()) if figures else None,
        "memory": format.kv_view(current.read.kv_bytes) if current.read else [],
        "pace": pace,
    }


def _read_line(current: OpenBook) -> str:
    """A line about the finished reading; "" while no reading has finished. For a book that is read in parts, the line
    says when each part is read.
    """
    if current.stage is Stage.PARTS:
        return f"In {format.counted(len(current.parts), 'part')}: each is read when a question first goes to it."
    if current.read is None or current.document is None:
        return ""
    return format.read_line(current.read, current.document)


def model_view(status: Status) -> View:
    """The model that answers, or the reason why there is none."""
    if status.state == "failed":
        return {"state": "failed", "line": "No model", "detail": status.detail, "parts": []}
    if status.state == "closed":
        return {"state": "closed", "line": "Closed", "detail": "Trifold has been closed.", "parts": []}
    if status.model is None:
        return {"state": "loading", "line": "Loading the model…", "detail": status.detail or _LOADING, "parts": []}
    model = status.model
    name = model_name(model.name, str(model.path))
    here = model.parameters > 0  # false for a model on a server, whose number of parameters is unknown (0)
    draft = bool(model.draft_parameters)
    return {"state": "ready", "line": name, "detail": "", "parts": _model_parts(model), "here": here, "draft": draft}


def sampling_view(status: Status) -> View:
    """The sampling defaults as far as they are known, whether the model or a server sets them, whether quotations can
    be restricted to the book's words, and whether the model can think before it answers, as far as that is known.
    """
    model = status.model
    elsewhere = model is not None and model.sampling is None  # a server does not tell its settings
    own, after = (_known(model.own_sampling(think) if model else None) for think in (False, True))
    return {
        "own": own,
        "own_after_thought": after,
        "whose": "the server's own" if elsewhere else "the model's own",
        "can_quote": model is None or model.can_quote,
        "can_think": elsewhere or (model is not None and bool(model.thinking)),
    }


def _known(own: SamplingParams | None) -> dict[str, Any]:
    return {name: value for name in OWN_SAMPLING if (value := getattr(own, name, None)) is not None}


def book_view(current: OpenBook) -> View:
    """The open book, and what the person has to do before it can be asked about."""
    view: View = {
        "stage": current.stage.value,
        "title": "",
        "line": "",
        "trouble": None,
        "choose": None,
        "warnings": [],
        "recognising": _recognising(current),
        "converting": _converting(current),
        "pictures": _pictures(current),
    }
    if current.book is not None:
        view["id"] = current.book.sha256
        view["title"] = _title(current, current.book)
    if current.document is not None:
        view["author"] = current.document.author
        view["warnings"] = list(current.document.warnings)
        view["line"], view["figures"] = _book_line(current), _book_figures(current)
    if current.trouble is not None:
        view["trouble"] = {
            "cause": current.trouble.cause,
            "remedy": current.trouble.remedy,
            "action": current.action.value,
        }
    if current.stage is Stage.CHOOSING:
        view["choose"] = _choice(current)
    return view


def _title(current: OpenBook, book: Book) -> str:
    """The name that the person gave the open book, otherwise its title, or that of the notes on it."""
    document = current.document
    given = book.given if document is None or document.kind != NOTES else ""
    return given or (document.title if document else book.shown)


def _converting(current: OpenBook) -> str:
    """What is said while LibreOffice converts the file that is being opened; "" for other files."""
    is_converted = current.stage is Stage.OPENING and current.converts
    return "LibreOffice on this machine converts the file first…" if is_converted else ""


def _recognising(current: OpenBook) -> View | None:
    """The progress of recognising pages that are pictures, while it runs."""
    now = current.recognising
    if now is None or current.stage is not Stage.OPENING:
        return None
    left = f"{stretch(Range(now.seconds, now.seconds))} left" if now.seconds else ""
    page = min(now.done + 1, now.total)
    words = f"Recognising words in pictures of pages: {page:,} of {now.total:,}"
    return {"line": " · ".join(filter(None, (words, left))), "part": round(now.done / max(now.total, 1), 3)}


def _pictures(current: OpenBook) -> View | None:
    """What the recognition of pictures beside the text will take, its progress, or the offer to read their words."""
    if (pictured := current.pictured) is not None:
        said = f"Pictures with words: {pictured.pictures:,}."
        cost = f" Reading them takes {stretch(pictured.time)}." if pictured.time else ""
        return {"line": f"{said}{cost}", "found": True, "waits": False}
    now = current.recognising
    if now is None and current.unseen and current.stage in (Stage.WAITING, Stage.READING, Stage.UNREAD):
        seconds = SECONDS_A_PICTURE * current.unseen
        lasts = stretch(Range(seconds, seconds))
        waiting = f"Pictures that are looked at for words after the reading: {current.unseen:,}, {lasts}."
        return {"line": f"{waiting} A switch in the settings leaves them out.", "found": False, "waits": True}
    if now is None or current.stage is Stage.OPENING:
        return None
    left = f"{stretch(Range(now.seconds, now.seconds))} left" if now.seconds else ""
    picture = min(now.done + 1, now.total)
    words = f"Looking for words in pictures: {picture:,} of {now.total:,}"
    return {"line": " · ".join(filter(None, (words, left))), "found": False, "waits": False}


def map_view(current: OpenBook) -> View:
    """The map of pages: their number, and their labels if these differ from the numbers."""
    pages = current.document.pages if current.document else ()
    if current.document is not None and current.document.members:
        named = [format.page_of(current.document, page) for page in pages]
        return {"pages": len(pages), "unit": _unit(current), "labels": named}
    labels = [page.label for page in pages]
    plain = labels == [str(number) for number in range(1, len(labels) + 1)]
    return {"pages": len(pages), "unit": _unit(current), "labels": [] if plain else labels}


def pages_read(current: OpenBook) -> int:
    """The number of pages, from the first page of the map, that can be asked about."""
    if current.stage in (Stage.PARTS, Stage.UNREAD) and current.document is not None:
        return len(current.document.pages)
    if current.read is not None:
        return current.read.pages_read
    return current.progress.pages_done if current.progress is not None else 0


def _reading(current: OpenBook) -> View | None:
    if current.stage is not Stage.READING:
        return None
    if current.progress is None or current.document is None:
        return {
            "fraction": 0.0,
            "pages": 0,
            "where": "Starting to read",
            "pace": current.fit.estimate if current.fit else "",
        }
    return format.reading_view(current.progress, current.document, current.remaining)


def _whole(current: OpenBook) -> str:
    whole = current.whole or current.document
    return _THESE[called(whole) if whole is not None else "book"]


def _part(current: OpenBook) -> str | None:
    """The open pages, if they are a part of the book; otherwise None."""
    return (open_part(current.document, current.whole) or None) if current.document is not None else None


def _hint(current: OpenBook, status: Status, asked: Ask) -> str:
    """The hint in the question box: whether a question can be asked now, and which part of the book answers come from.
    For a model that only quotes, the hint proposes to ask where something is said. "" if nothing can be asked.
    """
    read = current.read
    if current.stage is Stage.PARTS:
        return "Answers from passages at once; from all its parts if you ask for that."
    if current.stage is Stage.UNREAD and asked.now:
        return "Answers from passages at once. Your settings say that nothing is read."
    if current.stage is Stage.UNREAD and current.document is not None and current.read is not None:
        return f"Answers from passages at once, and after the reading from {_all(current.document)}."
    if current.stage is Stage.UNREAD and current.document is not None:
        return f"Your first question begins the reading of {_all(current.document)}, if it needs that."
    if current.stage is Stage.READY:
        partly = read is not None and read.stopped
        what = _first(current, read.pages_read) if read is not None and partly else _whole(current)
        part = _part(current)
        what = part if part and not partly else what
        what = "your notes" if current.before_notes else what
        quotes = status.model is not None and abilities(str(status.model.path)).only_quotes
        return f"Ask where something is said in {what}." if quotes else f"Ask anything about {what}."
    if current.stage is not Stage.READING:
        return ""
    if current.document is not None and answers_at_once(current, asked):
        left = current.remaining.left or current.remaining.total
        if left and not current.remaining.slower:  # else the line above says that it takes longer
            return f"Answers from passages at once; after {stretch(left)} from {_all(current.document)}."
        return f"Answers from passages at once, and after the reading from {_all(current.document)}."
    return "You can ask already: your question is answered as soon as all of it has been read."


def _all(document: Document) -> str:
    return format.all_of(document.extent())


def _first(current: OpenBook, pages: int) -> str:
    unit, document = _unit(current), current.document
    return f"the first {unit}" if pages == 1 or document is None else f"the first {document.extent(pages)}"


def _book_line(current: OpenBook) -> str:
    if current.document is None:
        return ""
    extent = _part(current) or current.document.extent()
    if current.stage is Stage.PARTS:
        return " · ".join((extent, f"in {format.counted(len(current.parts), 'part')}"))
    return format.book_line(current.read, current.document, extent)


def _book_figures(current: OpenBook) -> str:
    """What the demo view adds to the line: the tokens, and whether they fit."""
    if current.fit is None or not current.fit.tokens:
        return ""
    tokens, limit = format.counted(current.fit.tokens, "token"), current.fit.room or current.fit.limit
    fits = "fits" if current.fit.tokens <= limit else f"too long for {format.count(limit)}"
    return tokens if current.stage is Stage.PARTS else f"{tokens} · {fits}"


def _choice(current: OpenBook) -> View:
    """Data for choosing the pages of a book that is too long: how it can be asked without that, its number of pages
    and, as a proposal, a range of pages that fits.
    """
    whole, document, fit = current.whole, current.document, current.fit
    pages = len(whole.pages) if whole else 0
    first = document.pages[0].number if document and document.pages else 1
    fitting = max(1, fit.pages_that_fit) if fit else pages
    lead = f"You can ask at once: answers come from passages of {_all(whole)}." if whole else ""
    return {
        "lead": lead,
        "sentence": f"{fit.sentence} {_why_fewer(fit, _unit(current))}".strip() if fit else "",
        "unit": _unit(current),
        "pages": pages,
        "first": first,
        "last": min(pages, first + fitting - 1),
    }


def _why_fewer(fit: BookFit, unit: str) -> str:
    """Explain why fewer pages of a dense book, or fewer sections, fit than the model's description says of pages; ""
    for a book of usual pages.
    """
    sizes = fit.page_tokens[: fit.pages_that_fit]
    mean = round(sum(sizes) / len(sizes)) if sizes else 0
    if mean < _DENSE * TOKENS_PER_PAGE:
        return ""
    printed = counted(fit.room // TOKENS_PER_PAGE, "page")
    room = f"That room is for {printed} of a printed book."
    return f"Its pages are dense. {room}" if unit == "page" else room


def _model_parts(model: ModelInfo) -> list[str]:
    """The lines of the tooltip at the model's name."""
    if not model.parameters:  # a server's model
        return [f"Answers come from {model.device}", f"Window of {format.counted(model.context_limit, 'token')}"]
    draft = "No draft model"
    if model.draft_parameters:
        draft = f"Guesses come from a model of {_millions(model.draft_parameters)} parameters"
    return [
        f"{_millions(model.parameters)} parameters, {model.dtype}, on {model.device}",
        *(note for note in (model.weights_note, model.kv_note, model.middle_note, model.thinking) if note),
        draft,
        f"Window of {format.counted(model.context_limit, 'token')}",
    ]


def _millions(parameters: int) -> str:
    if parameters >= 1_000_000_000:
        return f"{parameters / 1e9:.1f} billion"
    return f"{parameters / 1e6:.1f} million"


def _growing(turns: Sequence[Exchange]) -> int | None:
    """The position of the answer that is being written; None if there is none."""
    return next((position for position, turn in enumerate(turns) if turn.stopped is None), None)


def _speed(current: OpenBook, chat: Chat | None) -> tuple[Figures | None, Sequence[PacePoint], str]:
    """The figures of the growing answer, its pace curve (milliseconds per token along the answer), and why its speed
    does not count. If no answer is being written, those of the last answer in the shown chat.

    Before the first token, the figures are those of an earlier answer, so that the layout of the page does not jump.
    """
    turns = chat.exchanges if chat else ()
    why_not = str((turns[-1].notes or {}).get("uncounted", "")) if turns else ""
    if current.asking and current.figures is not None:
        return current.figures, current.pace, why_not
    written = _growing(turns) if current.asking else None
    if written is not None:
        measured = (turn.figures for turn in reversed(turns[: written + 1]) if turn.figures)
        return next(measured, None), format.kept_pace(turns[written].notes), why_not
    return (turns[-1].figures, format.kept_pace(turns[-1].notes), why_not) if turns else (None, (), "")


def record_of(chat: Chat | None, awaited: Collection[int] = ()) -> str:
    """Return a key of the chat's shown state. It changes when a question is added, when another version is shown, when
    an answer begins or ends, when the speed-up of a finished answer has been measured, and when an answer no longer
    waits for the whole book.

    Args:
        awaited: ids of the answers that wait for the whole book.
    """
    turns = chat.exchanges if chat else ()
    if chat is None or not turns:
        return chat.id if chat else "none"
    measured = hash(tuple(turn.figures.speedup_vs_plain if turn.figures else 0.0 for turn in turns if turn.stopped))
    ended = "open" if turns[-1].stopped is None else "ended"
    again = [(position, turn.stopped is None) for position, turn in enumerate(turns) if turn.first_answer is not None]
    waits = [turn.answer_id for turn in turns if turn.answer_id in awaited]
    of_two = hash((tuple(again), tuple(waits)))
    return f"{chat.id}.{len(turns)}.{turns[-1].answer_id}.{measured:x}.{of_two:x}.{ended}"


def _chat(current: OpenBook, chat: Chat | None) -> View:
    """The open chat. ``last``: the id of its last answer, which determines which version of each message is shown."""
    turns = chat.exchanges if chat else ()
    last = turns[-1].answer_id if turns else 0
    record = record_of(chat, current.awaited_answers)
    return {"id": current.chat, "turns": len(turns), "last": last, "record": record}


def _unit(current: OpenBook) -> str:
    return current.document.unit if current.document else "page"


HEARTBEAT_SECONDS = 5.0
# Seconds after which a tab's view is compared although no signal has told of a change. Downloads, loading a model and
# what is computed in the background send none.
LOOK_SECONDS = 0.5
AWAY_SECONDS = 30.0
"""Seconds without an open page after which an answer is stopped. A reload takes less time, so it stops no answer."""
# keys that are sent less often than the words of an answer
FIGURES = frozenset({"figures", "pace", "scores"})


class Live:
    """The live stream.

    Args:
        state: the state of the program.
        panels: parts of the page with keys of their own.
        away_seconds: seconds without a page after which an answer is stopped.
    """

    def __init__(self, state: AppState, panels: Sequence[Panel] = (), away_seconds: float = AWAY_SECONDS) -> None:
        self._state = state
        self._panels = tuple(panels)
        self._mapped: tuple[Document | None, View] | None = None
        self._glowing: tuple[tuple[float, ...], list[int]] | None = None
        self._formatted: tuple[Exchange | None, str, int] = None, "", 0
        self._failed: list[Panel] = []  # panels whose error is in the log
        self._open = 0  # number of open streams
        self._away_seconds = away_seconds
        self._leaving: asyncio.TimerHandle | None = None

    def view(self) -> View:
        current = self._state.current
        chat = self._state.chat
        page = page_view(current, self._state.engine.status(), chat, self._state.as_set(Ask("")))
        # The map comes first: its highlights need the number of pages.
        view = {"map": self._map(current), **page, **self._writing(current, chat), "scores": self._glow(current)}
        for panel in self._panels:
            view.update(self._shown_by(panel))
        return view

    def _shown_by(self, panel: Panel) -> View:
        """What a panel shows; nothing if it fails. Its part of the page then stays as it was, and all others go on."""
        try:
            return panel.view()
        except Exception:  # an error here would end the stream, and with it everything that the page shows
            if panel not in self._failed:
                logger.exception("%s cannot be shown.", type(panel).__name__)
                self._failed.append(panel)
            return {}

    def route(self) -> PageRoute:
        async def live(request: Request) -> StreamingResponse:
            card = request.query_params.get("card") == "yes"

            async def stream() -> AsyncIterator[str]:
                self._come()
                try:
                    with self._state.changed.awaited() as changed:
                        throttle = partial(self._throttle, card)
                        async for event in changes(self.view, changed, request.is_disconnected, throttle):
                            yield event
                finally:
                    self._go()

            return StreamingResponse(stream(), media_type="text/event-stream", headers={"cache-control": "no-store"})

        return PageRoute("GET", "/live", live)

    def _come(self) -> None:
        self._open += 1
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def _go(self) -> None:
        self._open -= 1
        if not self._open:
            self._leaving = asyncio.get_running_loop().call_later(self._away_seconds, self._state.leave)

    def _throttle(self, card: bool) -> Throttle:
        status = self._state.engine.status()
        # while the engine is idle, the page may be drawn often, because drawing takes no time from the engine
        return OWN if status.state == "idle" else throttle_of(status, card)

    def _writing(self, current: OpenBook, chat: Chat | None) -> View:
        """The answer that is being written, and for each of its characters the source (``provenance``).

        The answer is formatted once for all tabs, each time its citations have been looked up. Words that came after
        the last look-up are sent unformatted.
        """
        turns = chat.exchanges if chat and current.asking else ()
        turn = _growing(turns)
        if turn is None:
            return {"writing": None, "provenance": None}
        answer, cited = turns[turn], current.cited
        if cited is not self._formatted[0]:
            html = messages.written(cited, turn) if cited else ""
            self._formatted = cited, html, messages.utf16_length(cited.answer) if cited else 0
        known, html, html_end = self._formatted
        if known is None or known.answer_id != answer.answer_id or not answer.answer.startswith(known.answer):
            html, html_end = "", 0
        waiting = "" if answer.answer else current.waiting
        return {
            "writing": RunningAnswer(answer.answer_id, answer.answer, html, html_end, waiting),
            "provenance": {"turn": turn, "sources": answer.provenance},
        }

    def _map(self, current: OpenBook) -> View:
        """The map of the open book, cached so that the pages of a long book are not examined at every change."""
        if self._mapped is None or self._mapped[0] is not current.document:
            self._mapped = current.document, map_view(current)
        return self._mapped[1]

    def _glow(self, current: OpenBook) -> list[int]:
        """The highlights of the pages, computed only when there are new scores."""
        if self._glowing is None or self._glowing[0] is not current.scores:
            self._glowing = current.scores, glow(current.scores)
        return self._glowing[1]


async def changes(
    view: Callable[[], View],
    told: asyncio.Event,
    gone: Callable[[], Awaitable[bool]],
    throttle: Callable[[], Throttle],
) -> AsyncIterator[str]:
    """Yield the events for one tab: first all keys, then changed keys, until the tab has disconnected.

    Args:
        told: set when there may be a change.
        throttle: returns the minimum seconds between two events, and between two changes of figures.
    """
    sent: View = {}
    due: dict[str, float] = {}
    spoke = 0.0
    while not await gone():
        told.clear()
        now, pace, seen = time.monotonic(), throttle(), view()
        if sent.get("asking") and not seen.get("asking"):
            due.clear()  # the answer has ended, so its last figures are sent at once, together with its last word
        changed = {
            key: value
            for key, value in seen.items()
            if (key not in sent or sent[key] != value) and due.get(key, now) <= now
        }
        if changed:
            news = {
                key: value.since(sent.get(key)) if isinstance(value, Growing) else value
                for key, value in changed.items()
            }
            yield f"data: {json.dumps(news, ensure_ascii=False, separators=(',', ':'))}\n\n"
            sent.update(changed)
            due.update((key, now + pace.figures) for key in changed if key in FIGURES)
            spoke = now
            await asyncio.sleep(pace.words)
        elif now - spoke > HEARTBEAT_SECONDS:
            yield ": still here\n\n"
            spoke = now
        with suppress(TimeoutError):
            await asyncio.wait_for(told.wait(), LOOK_SECONDS)
