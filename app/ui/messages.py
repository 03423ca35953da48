"""The chat as messages for the chatbot, and text from a model made harmless.

Owns the rule that an answer is only words: no image is loaded, no HTML is kept, and a link shows where it leads.
The page's sanitizer and its content security policy stand behind this rule; neither is relied on here. Pure.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from app.chats import Exchange, Trouble
from app.ui import acts, citations, presentation, wording

Message = dict[str, Any]
Made = dict[int, tuple[Exchange, list[Message]]]
"""By position in the chat: an exchange and the messages that it became."""

STOP_OTHER = "stop-other"
_OPTIONS = {STOP_OTHER: "Stop that answer and ask mine"}

LONGEST_QUESTION = 20_000
"""Characters of a question that are shown; the model gets all of them."""

# Every repetition has a bound: a text of nothing but brackets must not take longer than one of words.
# Code stays as it is: a fence at the start of a line up to its end, or a span between equal runs of backticks.
_CODE = re.compile(
    r"(^ {0,3}(`{3,20}|~{3,20})[^\n]*\n.*?(?:^ {0,3}\2[`~]*[ \t]*$|\Z)"
    r"|(?<!`)(`{1,20})(?!`).{1,500}?(?<!`)\3(?!`))",
    re.S | re.M,
)
_IMAGE = re.compile(r"!\[([^\]\n]{0,300})\]\(\s*<?([^\s)>]{0,500})>?(?:\s[^)\n]{0,300})?\)")
_LINK = re.compile(r"(?<!!)\[([^\]\n]{1,300})\]\(\s*<?([^\s)>]{0,500})>?(?:\s[^)\n]{0,300})?\)")
_DEFINITION = re.compile(r"^([ \t>*+-]*)\[([^\]\n]{1,300})\]:", re.M)
_SCHEMES = ("http", "https")

CARET = '<span class="caret at-{}"></span>'
"""Where an answer goes on; the number is how many UTF-16 units of it stand before. The page's ``writing.js`` puts the
words in that come between two layouts of the chat."""

WAITING = '<span class="waiting">{}</span>'


def harmless(text: str) -> str:
    """Markdown of a model or a book without HTML, without images, with every link's host in sight."""
    parts: list[str] = []
    end = 0
    for code in _CODE.finditer(text):
        parts += [_plain(text[end : code.start()]), code.group(0)]
        end = code.end()
    return "".join([*parts, _plain(text[end:])])


def messages(exchanges: Sequence[Exchange], waiting: str = "", made: Made | None = None) -> list[Message]:
    """The whole chat.

    Args:
        waiting: stands where the answer to the last question is going to be.
        made: what was made of exchanges before; those that have ended are not made again, new ones are added.
    """
    made = {} if made is None else made
    shown: list[Message] = []
    for turn, exchange in enumerate(exchanges):
        known = made.get(turn)
        if known is None or known[0] is not exchange or exchange.stopped is None:
            asked = _asked(exchange.question) + acts.under_question(exchange)
            answer = _answer(exchange, turn, waiting if exchange is exchanges[-1] else "")
            known = made[turn] = exchange, [{"role": "user", "content": asked}, answer]
        shown += [dict(message) for message in known[1]]
    return shown


def refusal(trouble: Trouble, option: str = "") -> Message:
    """A message that is not part of the chat: why a question was not taken, with the button that mends it."""
    message: Message = {"role": "assistant", "content": _trouble(trouble)}
    if option:
        message["options"] = [{"label": _OPTIONS[option], "value": option}]
    return message


def _asked(question: str) -> str:
    """A question as it was typed: its asterisks and signs are no Markdown, and its lines stay lines."""
    shown = question if len(question) <= LONGEST_QUESTION else question[:LONGEST_QUESTION] + " …"
    lines = html.escape(shown, quote=False).splitlines()
    return f'<div class="asked">{"<br>".join(lines)}</div>'


def _answer(exchange: Exchange, turn: int, waiting: str) -> Message:
    content = citations.marked(exchange.answer, exchange.notes, turn, harmless)
    if exchange.stopped is None:
        # An answer that is continued waits behind its own words.
        if content:
            return {"role": "assistant", "content": _unfinished(content, exchange.answer)}
        return {"role": "assistant", "content": WAITING.format(html.escape(waiting or "Thinking…"))}
    if exchange.trouble is not None:
        content += f"\n\n{_trouble(exchange.trouble)}"
    if line := _line(exchange):
        content += f'\n\n<div class="under">{html.escape(line)}</div>'
    return {"role": "assistant", "content": content.lstrip() + acts.under_answer(exchange)}


def _line(exchange: Exchange) -> str:
    """The quiet line under an answer: its figures, how it ended, and from how much of the book it is."""
    if exchange.trouble is not None:
        return ""
    stopped = None if exchange.interrupted else exchange.stopped
    parts = [presentation.answer_line(exchange.figures, stopped, len(exchange.stages))]
    if exchange.interrupted:
        parts.append("cut off when Trifold ended")
    if exchange.pages_read:
        unit = str((exchange.notes or {}).get("unit", "page"))
        parts.append(f"from the first {wording.counted(exchange.pages_read, unit)}, read so far")
    return " · ".join(part for part in parts if part)


def _unfinished(content: str, answer: str) -> str:
    """An answer in the middle of being written: bold words that are still open are shown bold, not as asterisks."""
    words = content.rstrip("* ") if content.endswith("*") else content
    if words.rpartition("\n\n")[2].count("**") % 2 and not words.endswith((" ", "\n")):
        words += "**"
    return words + CARET.format(len(answer.encode("utf-16-le", "surrogatepass")) // 2)


def _trouble(trouble: Trouble) -> str:
    said = html.escape(f"{trouble.cause} {trouble.remedy}".strip())
    return f'<div class="trouble">{said}</div>'


def _plain(text: str) -> str:
    text = _IMAGE.sub(lambda found: f"{found[1] or 'image'} (an image{_at(found[2])}, not loaded)", text)
    text = _LINK.sub(_link, text)
    text = _DEFINITION.sub(r"\1\\[\2]:", text)
    text = text.replace("![", "!\\[")
    return re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")


def _link(found: re.Match[str]) -> str:
    words, address = found[1], found[2]
    host = _host(address)
    if not host:
        return words
    return f"[{words}]({address}) ({host})"


def _at(address: str) -> str:
    host = _host(address)
    return f" at {host}" if host else ""


def _host(address: str) -> str:
    try:
        parts = urlsplit(address)
        return (parts.hostname or "") if parts.scheme.lower() in _SCHEMES else ""
    except ValueError:
        return ""
