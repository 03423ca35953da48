"""The row of buttons under questions and answers."""

from __future__ import annotations

import pytest

from app.core.chats import Exchange
from app.core.export import answer_with_pages
from app.web import messages
from engine.events import StopReason


def turn(**changes: object) -> Exchange:
    known = {"question_id": 1, "answer_id": 2, "questions": (1,), "answers": (2,), "stopped": StopReason.END}
    return Exchange("Who?", "Maren.", **{**known, **changes})  # type: ignore[arg-type]


def test_arrows_lead_to_the_versions_beside_the_shown_one() -> None:
    row = messages.under_answer(turn(answer_id=5, answers=(2, 5, 9)))
    assert 'value="show:2"' in row
    assert 'value="show:9"' in row
    assert "2 / 3" in row
    assert messages.under_question(turn(question_id=1, questions=(1, 7))).count("disabled") == 1
    assert "versions" not in messages.under_answer(turn())


@pytest.mark.parametrize(
    ("changes", "offered"),
    [
        ({}, False),
        ({"stopped": StopReason.CANCELLED}, True),
        ({"stopped": StopReason.LENGTH}, True),
        ({"stopped": StopReason.LOOP}, True),
        ({"stopped": StopReason.CONTEXT}, False),
        ({"stopped": StopReason.CANCELLED, "interrupted": True}, True),
        ({"answer": "", "stopped": StopReason.CANCELLED}, False),
    ],
)
def test_an_answer_that_was_cut_can_be_continued(changes: dict[str, object], offered: bool) -> None:
    answer = str(changes.pop("answer", "Maren."))
    exchange = turn(**changes)
    from dataclasses import replace

    assert ("continue:2" in messages.under_answer(replace(exchange, answer=answer))) is offered


def test_an_interrupted_answer_is_shown_as_such() -> None:
    cut = turn(stopped=StopReason.CANCELLED, interrupted=True, pages_read=24)
    shown = messages.messages([cut])[1]["content"]
    assert "cut off when Trifold ended · from the first 24 pages, read so far" in shown
    assert "Continue" in shown
    assert "stopped" not in shown
    (_, mixed) = messages.messages([turn(pages_read=80, notes={"unit": "page", "read": "76 pages and 4 sections"})])
    assert "from the first 76 pages and 4 sections, read so far" in mixed["content"]


def test_nothing_is_offered_while_an_answer_is_written() -> None:
    growing = messages.messages([turn(stopped=None)])[1]["content"]
    assert "act" not in growing
    assert "act" not in messages.written(turn(stopped=None), 0)


def test_an_answer_is_copied_with_its_pages_where_it_has_some() -> None:
    chip = {"at": 6, "kind": "says", "pages": [{"label": "7", "number": 7}], "extract": {"hit": "It was Maren."}}
    cited = turn(notes={"chips": [chip], "unit": "page"})
    assert 'value="pages:2"' in messages.under_answer(cited)
    assert 'value="pages:2"' not in messages.under_answer(turn(notes={"chips": [{**chip, "kind": "missing"}]}))
    copied = answer_with_pages(cited, "The Light")
    assert copied == "Maren.[^1]\n\n[^1]: Page 7: “It was Maren.”\n\nFrom *The Light*.\n"
