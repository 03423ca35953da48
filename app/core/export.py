"""A chat for elsewhere: as Markdown, the way it is shown; as JSON, with everything that is known. Pure."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from app.core import db, format
from app.core.chats import Chat, Exchange

FORMAT = 1
_UNFIT = re.compile(r"[^\w\- ]+")
_NAME_LENGTH = 60


def as_markdown(chat: Chat, book: str) -> str:
    """Write the questions and answers that are shown, with the passages found for them.

    Args:
        book: its title.
    """
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(chat.begun))
    parts = [f"# {chat.title}", f"About *{book}*, begun {began}, with Trifold."]
    for turn in chat.exchanges:
        parts += [f"## {' '.join(turn.question.split())}", turn.answer.strip() or "*No answer.*"]
        parts += [f"*{line}*" for line in _ending(turn)]
    return "\n\n".join(parts) + "\n"


def as_json(chat: Chat, book: dict[str, Any], messages: Sequence[sqlite3.Row]) -> str:
    """Write all versions of all messages, as a tree by ``parent``; ``shown`` lists the ids of the path that is
    shown."""
    shown = [number for turn in chat.exchanges for number in (turn.question_id, turn.answer_id)]
    record = {
        "format": FORMAT,
        "program": "trifold",
        "chat": {"id": chat.id, "title": chat.title, "begun": chat.begun},
        "book": book,
        "shown": shown,
        "messages": [_message(row) for row in messages],
    }
    return json.dumps(record, ensure_ascii=False, indent=1) + "\n"


def file_name(title: str, ending: str) -> str:
    """A name that every system takes."""
    words = " ".join(_UNFIT.sub(" ", title).split())[:_NAME_LENGTH].strip()
    return f"{words or 'chat'}.{ending}"


def _ending(turn: Exchange) -> list[str]:
    lines = [line] if (line := format.made_line((turn.notes or {}).get("made", {}))) else []
    if turn.trouble is not None:
        lines.append(f"{turn.trouble.cause} {turn.trouble.remedy}".strip())
    elif turn.interrupted:
        lines.append("Cut off when the program ended.")
    if turn.pages_read:
        unit = str((turn.notes or {}).get("unit", "page"))
        lines.append(f"From the first {format.counted(turn.pages_read, unit)}, read by then.")
    return lines


def _message(row: sqlite3.Row) -> dict[str, Any]:
    kept = {name: row[name] for name in ("id", "parent", "role", "text", "written")}
    if row["role"] == "answer":
        kept |= {name: row[name] for name in ("stopped", "pages_read", "stages")}
        kept |= {name: db.from_json(row[name]) for name in ("figures", "notes", "trouble")}
    return kept
