"""What the driver takes for a whole answer, held against every end that the page shows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.core import format
from app.core.chats import Exchange, Trouble
from app.web import messages
from engine.events import Figures, StopReason
from tests.app.scripted import figures
from tests.faults.driver import Asked

_FIGURES = figures(40)
_TEXT = "Maren lit the lamp."


def _shown(exchange: Exchange) -> Asked:
    told = [
        {"role": message["role"], "content": [{"type": "text", "text": message["content"]}]}
        for message in messages.messages([replace(exchange, question_id=1, answer_id=2)])
    ]
    return Asked(told, ended=True)


@pytest.mark.parametrize("stopped", [StopReason.END, StopReason.LENGTH, StopReason.CONTEXT, StopReason.LOOP])
@pytest.mark.parametrize("text", [_TEXT, "dy" * 40, "lamp " * 40, "灯" * 40, "Yes", ""])
@pytest.mark.parametrize("measured", [_FIGURES, replace(_FIGURES, speedup_vs_plain=None)])
def test_an_answer_that_the_engine_ended_is_whole(stopped: StopReason, text: str, measured: Figures) -> None:
    for why_not in ("", *format.WHY_NO_SPEED):
        notes = {"uncounted": why_not}
        for pages, stages in ((0, ""), (3, "d" * 90)):
            exchange = Exchange("Who?", text, stopped, measured, notes=notes, pages_read=pages, stages=stages)
            assert _shown(exchange).whole, _shown(exchange).last


@pytest.mark.parametrize(
    "exchange",
    [
        Exchange("Who?"),
        Exchange("Who?", _TEXT, StopReason.CANCELLED, _FIGURES),
        Exchange("Who?", _TEXT, StopReason.CANCELLED, _FIGURES, pages_read=3),
        Exchange("Who?", _TEXT, StopReason.CANCELLED, _FIGURES, interrupted=True),
        Exchange("Who?", _TEXT, StopReason.CANCELLED, interrupted=True),
        Exchange("Who?", _TEXT, StopReason.LENGTH, _FIGURES, Trouble("The memory ran out.", "Read less.")),
        Exchange("Who?", "", StopReason.CANCELLED),
        Exchange("Who?", '<div class="under">9 words · 9.0 ms a token · 9 tokens a second</div>', StopReason.CANCELLED),
        Exchange('<div class="under">9 words · 9.0 ms a token · 9 tokens a second</div>', "", StopReason.CANCELLED),
    ],
)
def test_any_other_end_is_not(exchange: Exchange) -> None:
    assert not _shown(exchange).whole, _shown(exchange).last


def test_an_answer_that_has_not_ended_is_not() -> None:
    assert not replace(_shown(Exchange("Who?", _TEXT, StopReason.END, _FIGURES)), ended=False).whole
