"""The row of small buttons under a question and an answer: versions, copy, edit, ask again, go on.

Owns what a message can be asked to do and how its buttons name it ("edit:12" is question 12 in other words). The
page's ``chat.js`` does it. Pure.
"""

from __future__ import annotations

import re

from app.chats import Exchange

AGAIN, GO_ON, EDIT, COPY, SHOW = "again", "continue", "edit", "copy", "show"
_ACT = re.compile(r"([a-z]+):([0-9]{1,18})")


def under_question(exchange: Exchange) -> str:
    """HTML of the row under a question."""
    if not exchange.question_id:
        return ""
    return _row(
        _versions(exchange.questions, exchange.question_id, "question"),
        _button(EDIT, exchange.question_id, "Edit"),
        _button(COPY, exchange.question_id, "Copy"),
    )


def under_answer(exchange: Exchange) -> str:
    """HTML of the row under an answer that is not being written."""
    if not exchange.answer_id:
        return ""
    return _row(
        _versions(exchange.answers, exchange.answer_id, "answer"),
        _button(GO_ON, exchange.answer_id, "Continue", "act main") if exchange.can_be_continued else "",
        _button(COPY, exchange.answer_id, "Copy") if exchange.answer else "",
        _button(AGAIN, exchange.answer_id, "Ask again"),
    )


def parse(act: str) -> tuple[str, int] | None:
    """ "edit:12" -> ("edit", 12); None for anything else."""
    found = _ACT.fullmatch(act.strip())
    return (found[1], int(found[2])) if found else None


def _versions(versions: tuple[int, ...], shown: int, of_what: str) -> str:
    """Arrows between versions, with the number of the one that is shown."""
    if len(versions) < 2 or shown not in versions:
        return ""
    at = versions.index(shown)
    back = _arrow(versions[at - 1] if at else None, "‹", f"Earlier {of_what}")
    on = _arrow(versions[at + 1] if at + 1 < len(versions) else None, "›", f"Later {of_what}")
    return f'<span class="versions">{back}<span>{at + 1} / {len(versions)}</span>{on}</span>'


def _arrow(message: int | None, sign: str, name: str) -> str:
    if message is None:
        return f'<button type="button" class="act arrow" disabled aria-label="{name}">{sign}</button>'
    return f'<button type="button" class="act arrow" value="{SHOW}:{message}" aria-label="{name}">{sign}</button>'


def _button(act: str, message: int, words: str, classes: str = "act") -> str:
    return f'<button type="button" class="{classes}" value="{act}:{message}">{words}</button>'


def _row(*parts: str) -> str:
    return f'\n\n<div class="acts">{"".join(parts)}</div>'
