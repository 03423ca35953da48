"""Exports a chat as Markdown (the shown versions) or as JSON (all versions). The functions have no side effects."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

from app.core import db, format
from app.core.chats import Chat, Exchange
from app.launcher.console import json_text
from engine.errors import plain

FORMAT = 1
_UNFIT = re.compile(r"[^\w\- ]+")
_NAME_LENGTH = 60
# Matches the beginning of an HTML tag, with the escaped backslashes before it. A sign after one more backslash is
# escaped already, and another backslash would undo that.
_LOADED = re.compile(r"(?<!\\)((?:\\\\)*+)<(?=[A-Za-z/!?])")


def as_markdown(chat: Chat, book: str, *, thoughts: bool = False) -> str:
    """Return a chat as Markdown: the shown questions and answers, with the passages that support the answers as
    footnotes.

    Args:
        book: the book's title.
        thoughts: whether what the model thought stands before each answer, as a quotation.
    """
    began = time.strftime("%Y-%m-%d %H:%M", time.localtime(chat.begun))
    footnotes: list[str] = []
    parts = [f"# {chat.title}", f"About *{book}*, begun {began}, with Trifold."]
    for turn in chat.exchanges:
        answer, notes = _with_footnotes(turn, len(footnotes))
        footnotes += notes
        thought = [_quoted(turn.thought)] if thoughts and turn.thought else []
        parts += [f"## {' '.join(turn.question.split())}", *thought, answer.strip() or "*No answer.*"]
        parts += [f"*{line}*" for line in _ending(turn)]
    return harmless("\n\n".join([*parts, *footnotes]) + "\n")


def _quoted(thought: Mapping[str, Any]) -> str:
    lines = [f"*{format.thought_line(thought)}*", "", *str(thought["text"]).strip().splitlines()]
    return "\n".join(f"> {line}".rstrip() for line in lines)


def harmless(markdown: str) -> str:
    """Escape pictures and HTML in Markdown, because a program that shows an export would load them from the network.
    Text of a book or a model may hold them; Markdown of ours has neither. Make control characters visible, because a
    terminal that prints the export would obey them.
    """
    lines = markdown.replace("\r\n", "\n").replace("\r", "\n")
    return _LOADED.sub(r"\1\\<", plain(lines).replace("![", "!\\["))


_FOOTNOTES = {
    "quoted": "Verified, {}",
    "verbatim": "Word for word, {}",
    "says": "{}",
    "near": "Near this, {}",
    "passage": "{}",
}


def has_pages(record: Mapping[str, Any] | None) -> bool:
    """Whether an answer has citations with pages. ``record``: the answer's notes (``Exchange.notes``)."""
    return any(chip["kind"] in _FOOTNOTES for chip in _cited(record or {}))


def _cited(record: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The citations of an answer or, if passages took its place, these passages."""
    citations: Sequence[Mapping[str, Any]] = record.get("passages" if "by_passages" in record else "chips", ())
    return citations


def answer_with_pages(turn: Exchange, book: str) -> str:
    """Return one answer as Markdown, with the supporting passages as footnotes. ``book``: the book's title, which is
    named at the end.
    """
    answer, notes = _with_footnotes(turn, 0)
    return harmless("\n\n".join([answer.strip(), *notes, f"From *{book}*."]) + "\n")


def _with_footnotes(turn: Exchange, offset: int) -> tuple[str, list[str]]:
    """Return the answer with a footnote mark after every sentence that has a supporting passage, and the footnotes with
    these passages and their pages.

    Args:
        offset: number of footnotes of earlier answers; this answer's footnotes are numbered from the next number on.
    """
    record, start = turn.notes or {}, 0
    parts: list[str] = []
    notes: list[str] = []
    for chip in _cited(record):
        if chip["kind"] not in _FOOTNOTES:
            continue
        at = len(turn.answer) if turn.by_passages else int(chip["at"])
        end = min(max(start, at), len(turn.answer))
        mark = f"[^{offset + len(notes) + 1}]"
        said_before = turn.answer[start:end]
        # "![" would begin a picture
        parts.append(f"{said_before}{' ' if said_before.endswith('!') else ''}{mark}")
        start = end
        place = format.place_named(chip, str(record.get("unit", "page")))
        said = _FOOTNOTES[chip["kind"]].format(place)
        notes.append(f"{mark}: {said[:1].upper()}{said[1:]}: “{_words(chip)}”")
    missing = format.absence(record)
    above = f"*{missing}.*\n\n" if missing else ""
    return above + "".join([*parts, turn.answer[start:]]), notes


def _words(chip: Mapping[str, Any]) -> str:
    """The words of the book that a citation shows."""
    return str(chip["text"] if "text" in chip else (chip.get("extract") or {}).get("hit", ""))


def as_json(chat: Chat, book: dict[str, Any], messages: Sequence[sqlite3.Row], *, thoughts: bool = False) -> str:
    """Return a chat as JSON, with all versions of all messages. They form a tree, because ``parent`` of a message is
    the id of the message before it. ``shown`` lists the ids of the messages that are shown.

    Args:
        thoughts: whether the words of what the model thought are in it, and not its figures alone.
    """
    shown = [number for turn in chat.exchanges for number in (turn.question_id, turn.answer_id)]
    record = {
        "format": FORMAT,
        "program": "trifold",
        "chat": {"id": chat.id, "title": chat.title, "begun": chat.begun},
        "book": book,
        "shown": shown,
        "messages": [_message(row, thoughts) for row in messages],
    }
    return json_text(record, indent=1) + "\n"


def file_name(title: str, ending: str) -> str:
    """Make a file name that is valid on every system."""
    words = " ".join(_UNFIT.sub(" ", title).split())[:_NAME_LENGTH].strip()
    return f"{words or 'chat'}.{ending}"


def _ending(turn: Exchange) -> list[str]:
    lines = [line] if (line := format.made_line((turn.notes or {}).get("made", {}))) else []
    if turn.trouble is not None:
        lines.append(f"{turn.trouble.cause} {turn.trouble.remedy}".strip())
    elif turn.interrupted:
        lines.append("Cut off when the program ended.")
    if first := (turn.notes or {}).get("first"):
        lines.append(format.first_line(first))
    if line := format.whole_line((turn.notes or {}).get("whole", {})):
        lines.append(line)
    if turn.pages_read:
        lines.append(f"From the first {format.read_so_far(turn.pages_read, turn.notes)}, read by then.")
    if parts := (turn.notes or {}).get("parts"):
        mentions = " ".join(one["said"] for one in parts["mentions"])
        lines.append(
            " ".join(filter(None, (f"{parts['line'][:1].upper()}{parts['line'][1:]}.", mentions, parts["said"])))
        )
    return lines


def _message(row: sqlite3.Row, thoughts: bool) -> dict[str, Any]:
    kept = {name: row[name] for name in ("id", "parent", "role", "text", "written")}
    if row["role"] == "answer":
        kept |= {name: row[name] for name in ("stopped", "pages_read", "stages")}
        kept |= {name: db.from_json(row[name]) for name in ("figures", "notes", "trouble")}
        thought = (kept["notes"] or {}).get("thought")
        if thought and not thoughts:
            kept["notes"]["thought"] = {name: value for name, value in thought.items() if name != "text"}
    return kept
