"""The table of one question asked of each of several documents: what the page is told, and the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from app.core.books import Book
from app.core.each import Answer, AskEach, EachRun
from app.core.state import AppState
from app.web.each_panel import EachPanel, EachTable, _row_view, _run_view
from engine.document import Document
from engine.errors import DocumentError, OptionError
from tests import loops
from tests.app.scripted import ScriptedEngine, wait_for

ANSWER = "The **rent** is 1,200 euros. Bruno Keller pays <b>it</b>."
HOW = {"question": "What is the rent?", "mode": "plain", "max_tokens": 64}


def reader(path: Path, password: str | None = None) -> Document:
    name = path.read_text()
    return replace(
        Document.from_pages(f"Lease {name}", ["The rent is 1,200 euros."]), sha256=path.parent.name, unit="section"
    )


@pytest.fixture
def state(make_state: Callable[..., AppState]) -> AppState:
    return make_state(ScriptedEngine(ANSWER, word_seconds=0.0, reading_seconds=0.001), reader=reader)


def sent(body: Any) -> Request:
    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    return Request({"type": "http", "method": "POST", "query_string": b"", "headers": []}, receive)


def test_the_table_and_its_file(state: AppState, tmp_path: Path) -> None:
    each = AskEach(state)
    panel, ids = EachPanel(state, each), []
    assert panel.view()["each"]["question"] == ""
    for name in ("2023", "2024"):
        (tmp_path / f"{name}.txt").write_text(name)
        ids.append(state.books.copy_in(tmp_path / f"{name}.txt").sha256)
    assert json.loads(bytes(loops.run(panel.ask(sent({**HOW, "ids": ids}))).body)) == {}
    wait_for(lambda: not (each.run.running or state.current.asking))
    view = panel.view()["each"]
    assert (view["line"], view["done"], view["left"], view["running"]) == ("2 of 2 documents answered", 1.0, 0, False)
    (first, second) = panel.view()["each_table"].rows
    assert (first["title"], second["title"], first["error"]) == ("Lease 2023", "Lease 2024", "")
    assert "<strong>rent</strong>" in first["answer"]
    assert "<b>" not in first["answer"]
    assert first["missing"] == "Not found in the document: Bruno, Keller"
    assert first["places"] == [{"passage": "The rent is 1,200 euros", "pages": [{"number": 1, "name": "section 1"}]}]
    file = loops.run(panel.export(sent({})))
    assert file.headers["content-disposition"].endswith("What%20is%20the%20rent.csv")
    assert bytes(file.body).decode("utf-8-sig").count("What is the rent?") == 2


def test_a_refusal_is_an_answer_and_nonsense_is_not(state: AppState, tmp_path: Path) -> None:
    panel = EachPanel(state, AskEach(state))
    (tmp_path / "a.txt").write_text("a")
    book = state.books.copy_in(tmp_path / "a.txt")
    claim = state.claim()
    told = json.loads(bytes(loops.run(panel.ask(sent({**HOW, "ids": [book.sha256]}))).body))
    state.release(claim)
    assert told["busy"]
    with pytest.raises(OptionError, match="No document is chosen"):  # "At most 100 can be open together."
        loops.run(panel.ask(sent({**HOW, "ids": []})))
    with pytest.raises(DocumentError):  # of the first, which is not in the library: they are not too many
        loops.run(panel.ask(sent({**HOW, "ids": [f"{number:064}" for number in range(150)]})))
    with pytest.raises(OptionError, match="At most 2,000"):
        loops.run(panel.ask(sent({**HOW, "ids": ["0" * 64] * 2001})))
    with pytest.raises(OptionError):
        loops.run(panel.ask(sent({**HOW, "question": " ", "ids": [book.sha256]})))


def test_a_document_that_is_being_asked_is_not_done() -> None:
    run = EachRun("What?", ("a", "b"), running=True, document="a", read=1.0, is_answering=True)
    view = _run_view(run, [Book("a", "a.txt", "a.txt"), Book("b", "b.txt", "b.txt")])
    assert view["line"] == "Document 1 of 2: it is being asked"
    assert 0.4 < view["done"] < 0.5
    assert _run_view(replace(run, document=""), [])["line"] == "Waiting until the model and the open book are ready"


@pytest.mark.parametrize(
    ("pages", "passage", "said"),
    [
        ("0", False, ""),
        ("3", False, "Recognised from pictures: 3 of 12 pages; may have slips."),
        ("3", True, "Recognised from a picture; may have slips."),
    ],
)
def test_a_scan_says_that_it_was_recognised_also_without_a_passage(pages: str, passage: bool, said: str) -> None:
    places = [{"passage": "It is.", "unit": "page", "pages": [{"number": 2, "label": "2", "recognised": True}]}]
    answer = Answer({"answer": "It is.", "pages": "12", "pages_recognised": pages}, places * passage)
    assert _row_view(Book("a", "a.pdf", "a.pdf"), answer)["recognised"] == said


def test_a_row_is_made_and_sent_once(state: AppState, tmp_path: Path) -> None:
    """Every row of the table was made anew, and all were sent, at each step of a reading: 0.3 s for 1,000 documents."""
    each, ids = AskEach(state), []
    panel = EachPanel(state, each)
    for name in ("2023", "2024", "2025"):
        (tmp_path / f"{name}.txt").write_text(name)
        ids.append(state.books.copy_in(tmp_path / f"{name}.txt").sha256)
    one, other = (Answer({"answer": text}) for text in ("One.", "Other."))
    each.run = EachRun("What?", tuple(ids), {ids[0]: one}, running=True, document=ids[1])
    first = panel.view()["each_table"]
    assert [row["id"] for row in first.since(None)["rows"]] == ids
    assert first.since(None)["whole"]
    each.run = replace(each.run, read=0.5)
    assert panel.view()["each"]["line"] == "Document 2 of 3: 50 % read"
    assert panel.view()["each_table"] is first
    each.run = replace(each.run, answers={**each.run.answers, ids[1]: other})
    second = panel.view()["each_table"]
    assert second.rows[0] is first.rows[0]
    assert second.since(first) == {"whole": False, "rows": [second.rows[1]]}
    state.delete(ids[2])
    assert panel.view()["each_table"].since(second) == {"whole": True, "rows": second.rows[:2]}
    assert EachTable().since(second) == {"whole": True, "rows": ()}
