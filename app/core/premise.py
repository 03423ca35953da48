"""Asks the model whether a passage says what a question takes for granted, if words alone doubt it.

    record = checked(engine, document, "Why was the survey cancelled?", record)

"No passage says what the question assumes" is found by words (``app.trust.not_found``), which doubt a premise that the
text tells in other words. The model is asked "Was the survey cancelled?" about the nearest passage alone, in a context
of its own (``engine.aside``), and answers with one token, greedy. If it is "Yes", the line goes. Some 300 tokens are
read for this, after the answer.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from app.core.abilities import abilities
from engine import HANDOVER_S, EngineLike, Question
from engine.config import SamplingParams
from engine.document import Document
from engine.errors import TrifoldError

if TYPE_CHECKING:
    from app.core.state import AppState

_AROUND = 400
"""Maximum characters before and behind the nearest passage that the model reads too."""
_FEWEST_PARAMETERS = 1_000_000_000
"""Minimum parameters of a model that is asked. The check was measured with 1.5 billion (``assets/evaluation``)."""
_ASKS = re.compile(r"\A\W*(?:why|when|how)\s+", re.IGNORECASE)
# Two lines: the prompt of a small model repeats passages before a question of one line (``engine.passages``).
_WANTED = "Does the text say so: {}\nAnswer Yes or No."


def is_doubted(record: Mapping[str, Any]) -> bool:
    """Whether words alone doubt what a question assumes, by the record of its answer. A passage that denies it is no
    doubt.
    """
    place = record.get("assumed_at")
    return bool(record.get("assumed") and place and place.get("marks") and not place.get("denied"))


def without_doubt(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an answer without the doubt about what its question assumes."""
    return {name: value for name, value in record.items() if name not in ("assumed", "assumed_at")}


def is_looked_up(engine: EngineLike, record: Mapping[str, Any]) -> bool:
    """Whether ``checked`` asks the model: words alone doubt something, and the model is on this machine and large
    enough.
    """
    model = engine.status().model
    if model is None or model.sampling is None or not is_doubted(record):
        return False  # a model without settings runs on another machine
    return model.parameters >= _FEWEST_PARAMETERS and not abilities(str(model.path)).has_limits


def checked(
    engine: EngineLike,
    document: Document,
    question: str,
    record: dict[str, Any],
    cancel: threading.Event | None = None,
) -> dict[str, Any]:
    """Return the record of an answer without the doubt about what its question assumes, if the model finds it in the
    nearest passage. Return ``record`` if no model is asked (``is_looked_up``), if it could not be asked, or once
    ``cancel`` is set.
    """
    if not is_looked_up(engine, record):
        return record
    asked = _ASKS.sub("", question)
    excerpt = Document.from_text(document.title, _around(document, record["assumed_at"]))
    wanted = Question(
        _WANTED.format(asked[:1].upper() + asked[1:]),
        sampling=SamplingParams(temperature=0.0, max_tokens=1),
        excerpt=excerpt,
        wait=HANDOVER_S,
    )
    try:
        said = engine.ask(wanted, cancel=cancel).result().text
    except TrifoldError:
        return record
    if not said.strip().casefold().startswith("yes"):
        return record
    return without_doubt(record)


def check_later(state: AppState, chat_id: str, position: int) -> None:
    """In a new thread, let the model look at what the question at ``position`` of a chat assumes, if that is doubted.
    The next question stops this.
    """
    chat, document = state.chats.get(chat_id), state.current.document
    exchange = chat.exchanges[position] if chat and position < len(chat.exchanges) else None
    if exchange is None or document is None or not is_doubted(exchange.notes or {}):
        return
    cancel = state.begin_check()

    def run() -> None:
        before = dict(exchange.notes or {})
        after = checked(state.engine, document, exchange.question, before, cancel)
        chat = state.chats.get(chat_id)
        new_position = chat.position_of(exchange.answer_id) if chat else None
        if chat is None or new_position is None or after is before or cancel.is_set():
            return
        if (now := chat.exchanges[new_position]).answer == exchange.answer:
            state.chats.update(chat_id, new_position, replace(now, notes=after))

    threading.Thread(target=run, name="trifold-premise", daemon=True).start()


def _around(document: Document, place: Mapping[str, Any]) -> str:
    """The text of the page around the first mark of a place."""
    number, start, end = place["marks"][0]
    member = next((one for one in document.members if one.sha256 == place.get("of")), None)
    page = document.page(number + (member.page_offset if member else 0))
    if page is None:
        return str(place["extract"]["hit"])
    first, last = max(0, start - _AROUND), min(len(page.text), end + _AROUND)
    first = page.text.rfind(" ", 0, first) + 1 if first else 0
    return page.text[first:last]
