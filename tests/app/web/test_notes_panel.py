"""Notes through the page's routes: of a page, of an answer, of several documents, and answers that come from them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from app.core import chat_run
from app.core.notes import LONGEST, NOTES, Note
from app.core.open_book import OpenBook, Stage
from app.core.question import Ask
from app.core.state import AppState
from app.core.suggestions import Sample
from app.web import messages, notes_panel
from app.web.library import Library
from app.web.notes_panel import NotesPanel
from app.web.page_viewer import PageViewer
from app.web.parts_panel import PartsPanel
from engine.document import Document
from engine.errors import OptionError
from tests import loops
from tests.app.scripted import ScriptedEngine, wait_for

PAGES = {
    "a": ["The lamp is lit.", "The oil is dear and the keeper counts every barrel of it."],
    "b": ["The boat is late.", "Nobody sings.", "The oil is cheap.\nThe oil is cheap in May."],
}
ANSWER = "The oil is dear and the keeper counts every barrel of it. Nobody in Paris knows why."


@pytest.fixture
def state(together: Callable[..., AppState]) -> AppState:
    """Two documents that are open as one."""
    return together(ScriptedEngine(answer=ANSWER, word_seconds=0.0, reading_seconds=0.01), PAGES)


@pytest.fixture
def panel(state: AppState) -> NotesPanel:
    return NotesPanel(state)


def posted(**fields: object) -> Request:
    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": json.dumps(fields).encode(), "more_body": False}

    return Request({"type": "http", "method": "POST", "headers": [], "query_string": b"", "path_params": {}}, receive)


def asked(query: str = "", **path: object) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "path_params": path, "headers": []})


def told(answer: Any) -> Any:
    return json.loads(loops.run(answer).body)


def seen(answer: Response) -> Any:
    return json.loads(bytes(answer.body))


def answered(state: AppState) -> int:
    """Ask, and the number of the answer."""
    list(chat_run.ask(state, Ask("What of the oil?")))
    assert state.chat is not None
    return state.chat.exchanges[-1].answer_id


def test_a_passage_is_noted_on_the_page_of_its_own_document(state: AppState, panel: NotesPanel) -> None:
    view = told(
        panel.add(posted(page=5, passage="The oil  is cheap", before="cheap. ", after=" in May.", colour="blue"))
    )
    assert (view["place"], view["page"], view["colour"]) == ("Log b, p. 3", 5, "blue")
    (note,) = state.notes.of([state.current.document.members[1].sha256])
    assert (note.page, note.start) == (3, PAGES["b"][2].rindex("The oil"))
    assert panel.view()["notes"] | {"version": ""} == {"version": "", "count": 1, "on_pages": 1, "asked": False}
    (here,) = told(panel.on_page(asked(number=5)))["notes"]
    assert PAGES["b"][2][here["start"] : here["stop"]] == "The oil is cheap"
    assert told(panel.on_page(asked(number=3)))["notes"] == []
    viewer = PageViewer(state)
    page = seen(viewer.page(asked(f"note={note.id}", number=5)))
    assert page["marks"] == [[here["start"], here["stop"]]]
    assert seen(viewer.page(asked(f"note={note.id}", number=3)))["marks"] == []


def test_what_is_not_found_in_the_text_is_kept_as_it_was_selected(panel: NotesPanel, state: AppState) -> None:
    assert told(panel.add(posted(page=1, passage="of the picture")))["passage"] == "of the picture"
    refused = loops.run(panel.routes()[0].endpoint(posted(page=99, passage="x")))
    assert (refused.status_code, json.loads(refused.body)["cause"]) == (400, "There is no such page in this book.")


def test_a_sentence_of_an_answer_brings_the_passage_that_it_rests_on(state: AppState, panel: NotesPanel) -> None:
    message = answered(state)
    first, second = told(panel.sentences(posted(message=message)))["sentences"]
    assert (first["place"], second["place"]) == ("Log a, p. 2", "")
    view = told(panel.add(posted(message=message, said="the keeper counts every barrel")))
    assert (view["place"], view["passage"]) == ("Log a, p. 2", PAGES["a"][1].rstrip("."))
    view = told(panel.add(posted(message=message, said=second["said"])))
    assert (view["place"], view["page"], view["passage"]) == ("", None, "")
    assert state.current.book is not None
    assert [note.said for note in state.notes.of([state.current.book.sha256])] == [second["said"]]
    listed = told(panel.list(posted(words="PÁRIS")))
    assert ([note["said"] for note in listed["notes"]], listed["said"]) == ([second["said"]], "1 of 2 notes")


def test_a_long_list_is_cut_and_says_so_and_what_is_noted_again_is_told(
    panel: NotesPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes_panel, "MOST_LISTED", 1)
    assert not told(panel.add(posted(page=1, passage="lamp")))["again"]
    assert told(panel.add(posted(page=1, passage="lamp", colour="green")))["again"]
    assert not told(panel.add(posted(page=1, passage="lit")))["again"]
    listed = told(panel.list(posted()))
    assert [note["passage"] for note in listed["notes"]] == ["lamp"]
    assert listed["said"] == "The first 1 of 2 notes; search for the others."
    assert told(panel.list(posted(words="lit")))["said"] == "1 of 2 notes"


def test_notes_are_changed_deleted_and_brought_back(panel: NotesPanel) -> None:
    id = told(panel.add(posted(page=1, passage="lamp")))["id"]
    assert told(panel.change(posted(id=id, words="Mine", colour="rose")))["words"] == "Mine"
    loops.run(panel.delete(posted(id=id)))
    assert told(panel.list(posted()))["notes"] == []
    loops.run(panel.restore(posted(id=id)))
    assert [(note["words"], note["colour"]) for note in told(panel.list(posted()))["notes"]] == [("Mine", "rose")]


def test_answers_come_from_the_notes_and_lead_back_to_the_pages(state: AppState, panel: NotesPanel) -> None:
    with pytest.raises(OptionError, match="no notes on the pages"):
        loops.run(panel.read(posted()))
    answered(state)
    before, whole = state.chat, state.current.document
    told(panel.add(posted(page=2, passage="keeper counts every barrel of it", words="The oil is dear.")))
    assert told(panel.read(posted())) == {}
    wait_for(lambda: state.current.stage is Stage.READY)
    read = state.current.document
    assert read is not None
    assert (read.kind, [page.number for page in read.pages]) == (NOTES, [2])
    assert panel.view()["notes"]["asked"]
    answered(state)
    assert state.chat is not None
    assert before is not None
    assert state.chat.id != before.id, "what was said of the whole book is not told with it"
    (turn,) = state.chat.exchanges
    assert turn.notes is not None
    shown = messages.messages([turn])[1]["content"]
    assert "from your notes" in shown
    assert "not in the book" not in shown
    card = messages.card(turn.notes, 0)
    assert card is not None
    assert "book" not in card["said"]
    viewer = PageViewer(state)
    page = seen(viewer.page(asked("turn=0&chip=0", number=2)))
    ((start, stop),) = page["marks"]
    assert page["text"] == PAGES["a"][1], "the page itself, and not the note"
    assert page["text"][start:stop] == "keeper counts every barrel of it."
    assert told(panel.leave(posted())) == {}
    wait_for(lambda: state.current.stage is Stage.READY)
    assert (state.current.document, state.current.chat) == (whole, before.id)
    assert state.current.book is not None
    assert state.books.get(state.current.book.sha256).pages_read == 5, "the library says what was read of the book"


def test_notes_that_are_read_again_are_still_read_in_the_place_of_the_book(state: AppState, panel: NotesPanel) -> None:
    told(panel.add(posted(page=2, passage="The oil is dear")))
    whole = state.current.document
    told(panel.read(posted()))
    wait_for(lambda: state.current.stage is Stage.READY)
    state.read_again()  # another model answers now
    wait_for(lambda: state.current.stage is Stage.READY)
    assert panel.view()["notes"]["asked"]
    assert not PartsPanel(state).view()["parts"]["some"], "no pages of the book are read, to choose others instead"
    assert state.current.document is not None
    assert state.current.book is not None
    sample = Sample(Path("nowhere"))
    sample.sha256, sample._questions = state.current.book.sha256, ("Where is the harbour?",)
    library = Library(state, sample)
    wait_for(lambda: library.suggestions() != [])
    assert "Where is the harbour?" not in library.suggestions(), "that is of the book"
    told(panel.leave(posted()))
    wait_for(lambda: state.current.stage is Stage.READY)
    assert state.current.document is whole


def test_the_stream_counts_notes_without_reading_them(
    state: AppState, panel: NotesPanel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for page in (1, 5):
        told(panel.add(posted(page=page, words="Mine")))
    assert state.current.book is not None
    state.notes.add(Note("", state.current.book.sha256, words="On both"))
    monkeypatch.setattr(state.notes, "of", None)
    shown = panel.view()["notes"]
    assert (shown["count"], shown["on_pages"]) == (3, 2)


def test_own_words_may_be_as_long_when_they_are_changed_as_when_they_are_written(panel: NotesPanel) -> None:
    limits = {route.path: route.allowed.limit for route in panel.routes()}
    assert limits["/notes/change"] == limits["/notes/add"] > 4 * LONGEST, "bytes of characters beyond the plane"


def test_notes_are_saved_and_go_with_their_book(state: AppState, panel: NotesPanel) -> None:
    told(panel.add(posted(page=2, passage="The oil is dear")))
    saved = loops.run(panel.export(asked("form=md")))
    assert "**Page 2** (yellow)\n\n> The oil is dear" in saved.body.decode()
    assert "## Log b" in saved.body.decode()
    assert "attachment" in saved.headers["content-disposition"]
    members = state.current.document.members
    alone = loops.run(panel.export(asked(f"form=ris&book={members[0].sha256}"))).body.decode()
    assert "N1  - p. 2: “The oil is dear” [yellow]" in alone
    assert state.current.book is not None
    state.notes.add(Note("", state.current.book.sha256, words="On both"))
    state.delete(state.current.book.sha256)
    assert state.notes.counts() == {members[0].sha256: 1}, "a collection's own notes, and not those of its documents"
    state.delete(members[0].sha256)
    assert state.notes.counts() == {}


def test_an_answer_that_is_a_quotation_shows_its_words_once() -> None:
    page = Document.from_pages("Lease", ["The rent is due."])
    for said, shown in (("“The rent is due”", ""), ("It says that the rent is due.", "It says that the rent is due.")):
        assert notes_panel._view(page, Note("1", "book", passage="The rent is due.", said=said))["said"] == shown


def test_two_tabs_that_change_one_note_both_see_both(state: AppState, panel: NotesPanel) -> None:
    note = told(panel.add(posted(page=1, passage="The lamp is lit.", words="Ours")))
    told(panel.change(posted(id=note["id"], words="Of the first tab", seen="Ours")))
    assert told(panel.change(posted(id=note["id"], words="Of the second tab", seen="Ours"))) == {
        "now": "Of the first tab"
    }
    assert told(panel.list(posted(words="")))["notes"][0]["words"] == "Of the first tab"


def test_a_note_that_is_changed_after_its_book_was_closed_is_stored_and_said(
    state: AppState, panel: NotesPanel
) -> None:
    """It was stored, and refused with "No book is open."."""
    note = told(panel.add(posted(page=1, passage="The lamp is lit.")))
    state.current = OpenBook()
    assert told(panel.change(posted(id=note["id"], words="Later"))) == {"id": note["id"]}
    assert state.notes.get(note["id"]).words == "Later"
    with pytest.raises(OptionError):
        told(panel.add(posted(page=1, passage="The lamp is lit.", words="Never")))
    assert state.notes.get(note["id"]).words == "Later"
