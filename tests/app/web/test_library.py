"""The library as a part of the page: what is listed, what its routes do, and what a delete takes with it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from app.core import chat_run
from app.core.bookmark import kept_value
from app.core.books import Books
from app.core.chats import Chats
from app.core.db import Database
from app.core.open_book import Stage
from app.core.question import Ask
from app.core.state import AppState
from app.core.suggestions import Sample
from app.web import library as module
from app.web.library import Library
from engine.document import Document
from engine.errors import Busy
from engine.events import StopReason
from engine.kv.snapshots import SnapshotStore
from tests.app.scripted import ScriptedEngine, book, wait_for
from tests.app.web.entering import enter

PORT = 7863


class Readings(SnapshotStore):
    """What an engine keeps of books."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    def forget(self, sha256: str) -> None:
        self.forgotten.append(sha256)

    def forget_chat(self, chat: str) -> None:
        self.forgotten.append(chat)

    def size_of(self, sha256: str) -> int:
        return 5 * 10**6


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def state(data: Path) -> Iterator[AppState]:
    made = make_state(data)
    yield made
    made.close()


def make_state(data: Path) -> AppState:
    database = Database(data / "library.db")
    read = lambda path, password=None: book(title=path.read_text(encoding="utf-8"))  # noqa: E731
    return AppState(ScriptedEngine(), Books(data / "books", database), Chats(database), read, Readings())


@pytest.fixture
def client(state: AppState, data: Path) -> Iterator[TestClient]:
    with enter(state, data, PORT) as made:
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client for requests that change nothing."""
    data = tmp_path_factory.mktemp("shared")
    state = make_state(data)
    with enter(state, data, PORT) as made:
        yield made
    state.close()


def open_book(state: AppState, title: str = "The Light") -> str:
    with state.books.receive(f"{title}.txt") as incoming:
        incoming.write(title.encode())
        kept = incoming.keep()
    state.open(kept)
    wait_for(lambda: state.current.stage is Stage.READY and state.current.book.sha256 == kept.sha256)
    return str(kept.sha256)


def say(state: AppState, question: str, answer: str, position: int | None = None) -> None:
    chats, chat = state.chats, state.current.chat
    at = chats.ask(chat, question, position)
    chats.update(chat, at, replace(chats.get(chat).exchanges[at], answer=answer, stopped=StopReason.END))


def test_books_and_chats_are_listed(state: AppState) -> None:
    open_book(state)
    say(state, "Who kept it?", "Maren.")
    library = Library(state, Sample(Path("nowhere")))
    wait_for(lambda: state.books.all()[0].tokens > 0)  # noted just after the book can be asked about
    view = library.view()
    (listed,) = view["books"]
    assert (listed["title"], listed["author"], listed["cover"], listed["partly"]) == (
        "The Light",
        "A. Writer",
        False,
        "",
    )
    assert listed["line"] == "60 pages"
    assert listed["foot"] == "today · 5.0 MB"
    ((title, when),) = [(chat["title"], chat["line"]) for chat in view["chats"]]
    assert title == "Who kept it?"
    assert re.fullmatch(r"today, \d\d:\d\d", when)
    assert view["storage"] == ""


def test_lists_are_made_again_only_when_something_was_written(state: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    # A while alone makes them again, and would where this test crosses one.
    monkeypatch.setattr("app.web.library.time", SimpleNamespace(time=lambda: 0.0))
    opened = open_book(state)
    # The thread that opens a book writes down that it is ready after others can see it.
    wait_for(lambda: kept_value(state.chats.database, "open") == [opened, state.current.chat, True])
    library = Library(state, Sample(Path("nowhere")))
    wait_for(lambda: state.books.all()[0].tokens > 0)  # so is how long the book is
    first = library._lists()
    assert library._lists() is first
    say(state, "Who?", "Maren.")
    assert library._lists() is not first


def test_a_book_goes_with_all_that_belongs_to_it(client: TestClient, state: AppState, data: Path) -> None:
    gone = open_book(state, "One")
    say(state, "Who?", "Maren.")
    chat = state.current.chat
    assert client.post("/books/delete", json={"id": gone}).status_code == 200
    assert state.current.stage is Stage.EMPTY
    assert list((data / "books").iterdir()) == []
    assert state.chats.get(chat) is None
    assert state.chats.search("maren") == ()
    assert state._snapshots.forgotten == [gone]
    answer = client.post("/books/delete", json={"id": gone})
    assert (answer.status_code, "no longer" in answer.json()["cause"]) == (400, True)


def test_deleting_the_book_that_is_being_asked_about_stops_its_answer(state: AppState) -> None:
    state.engine.answer = "word " * 400  # type: ignore[attr-defined]
    opened = open_book(state)
    steps = chat_run.ask(state, Ask("Who?"))
    wait_for(lambda: next(steps) is not None and bool(state.chat.exchanges[0].answer))
    deleting = threading.Thread(target=state.delete, args=(opened,))
    deleting.start()
    list(steps)
    deleting.join(10)
    assert not deleting.is_alive()
    assert state.books.all() == ()
    assert state.chats.all() == ()
    assert not state.current.asking


def test_a_chat_is_named_exported_and_deleted(client: TestClient, state: AppState) -> None:
    open_book(state)
    say(state, "Who kept it?", "Maren **Holt**.")
    say(state, "Who kept it?", "Nobody.", position=0)
    chat = state.current.chat
    assert client.post("/chats/rename", json={"id": chat, "name": "Keepers / é"}).status_code == 200
    page = client.get("/chats/export", params={"id": chat, "form": "md"})
    assert page.headers["content-disposition"] == "attachment; filename*=utf-8''Keepers%20%C3%A9.md"
    assert page.text.startswith("# Keepers / é\n\nAbout *The Light*")
    assert "## Who kept it?\n\nNobody.\n" in page.text
    record = json.loads(client.get("/chats/export", params={"id": chat, "form": "json"}).text)
    assert [message["text"] for message in record["messages"]] == ["Who kept it?", "Maren **Holt**.", "Nobody."]
    assert record["shown"] == [record["messages"][0]["id"], record["messages"][2]["id"]]
    assert record["book"]["title"] == "The Light"
    assert client.get("/chats/export", params={"id": chat, "form": "exe"}).status_code == 400
    assert client.post("/chats/delete", json={"id": chat}).status_code == 200
    assert state.chats.of_book(state.current.book.sha256) == ()
    assert state._snapshots.forgotten == [chat]  # what the engine kept of it on disk
    assert state.current.chat != chat
    assert client.get("/chats/export", params={"id": chat}).status_code == 400


def test_what_is_found_opens_its_book_its_chat_and_its_version(client: TestClient, state: AppState) -> None:
    first = open_book(state, "One")
    say(state, "Who kept it?", "Maren **Holt**.")
    say(state, "Who kept it?", "Nobody.", position=0)
    chat = state.current.chat
    open_book(state, "Two")
    (hit,) = client.post("/chats/search", json={"words": "holt"}).json()["found"]
    assert (hit["book"], hit["title"]) == ("One", "Who kept it?")
    assert "".join(text for text, _ in hit["parts"]) == "Maren Holt."
    told = client.post("/chats/open", json={"id": hit["chat"], "message": hit["message"]}).json()
    assert told == {"position": 0}
    wait_for(lambda: state.current.stage is Stage.READY and state.current.book.sha256 == first)
    assert state.current.chat == chat
    assert state.chat.exchanges[0].answer == "Maren **Holt**."


def test_another_chat_waits_for_the_end_of_an_answer(client: TestClient, state: AppState) -> None:
    open_book(state)
    say(state, "Who?", "Maren.")
    first = state.current.chat
    state.begin_chat()
    second = state.current.chat
    claim = state.claim()
    refused = client.post("/chats/open", json={"id": first})
    assert refused.json()["cause"] == "An answer is being written."
    with pytest.raises(Busy):
        state.begin_chat()
    assert state.current.chat == second
    state.release(claim)
    assert client.post("/chats/open", json={"id": first}).status_code == 200
    assert state.current.chat == first


def test_a_chat_about_another_book_ends_the_answer_and_is_the_open_one(client: TestClient, state: AppState) -> None:
    open_book(state, "One")
    say(state, "Older?", "Yes.")
    older = state.current.chat
    state.begin_chat()
    say(state, "Newer?", "Yes.")
    open_book(state, "Two")
    claim = state.claim()
    assert client.post("/chats/open", json={"id": older}).status_code == 200
    assert claim.is_set()
    state.release(claim)
    wait_for(lambda: state.current.stage is Stage.READY)
    assert state.current.chat == older


def test_versions_and_words_of_a_message(client: TestClient, state: AppState) -> None:
    open_book(state)
    say(state, "Who <b>kept</b> it?", "Maren.")
    say(state, "Whom?", "Her.", position=0)
    turn = state.chat.exchanges[0]
    assert client.post("/chats/version", json={"message": turn.questions[0]}).status_code == 200
    assert state.chat.exchanges[0].answer == "Maren."
    told = client.post("/chats/text", json={"message": turn.questions[0]}).json()
    assert told == {"text": "Who <b>kept</b> it?", "language": None}
    gone = client.post("/chats/text", json={"message": turn.questions[1]})  # no error in the browser's console
    assert (gone.status_code, gone.json()["cause"]) == (200, "This message is no longer on the page.")
    claim = state.claim()
    assert client.post("/chats/version", json={"message": turn.questions[1]}).status_code == 409
    state.release(claim)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/chats/open", {"id": "nothing"}),
        ("/chats/rename", {"id": 5}),
        ("/chats/delete", {}),
        ("/chats/version", {"message": "x"}),
        ("/chats/text", {"message": "x"}),
        ("/books/delete", {"id": "../../etc"}),
    ],
)
def test_bad_requests_are_sentences(shared: TestClient, path: str, body: dict[str, object]) -> None:
    answer = shared.post(path, json=body)
    assert answer.status_code == 400
    assert answer.json()["cause"]


@pytest.mark.parametrize("name", ["0" * 64, "..%2f..%2flibrary.db", "x", "%2e%2e"])
def test_no_other_file_is_a_cover(shared: TestClient, name: str) -> None:
    assert shared.get(f"/covers/{name}").status_code == 404


def test_a_restart_brings_the_book_and_the_chat_back(data: Path) -> None:
    first = make_state(data)
    opened = open_book(first)
    say(first, "Who?", "Maren.")
    chat = first.current.chat
    first.begin_chat()
    say(first, "A newer one?", "Yes.")
    first.show_chat(chat)
    first.close()
    again = make_state(data)
    again.restore()
    wait_for(lambda: again.current.stage is Stage.READY)
    assert again.current.book.sha256 == opened
    assert again.current.chat == chat
    assert again.chat.exchanges[0].answer == "Maren."
    again.close_book()
    again.close()
    third = make_state(data)
    third.restore()
    assert third.current.stage is Stage.EMPTY
    third.close()


def test_a_book_that_ended_the_program_is_not_opened_again_by_itself(data: Path) -> None:
    first = make_state(data)
    first.engine.reading_seconds = None  # type: ignore[attr-defined]  # it never gets further than 40 %
    with first.books.receive("a.txt") as incoming:
        incoming.write(b"A")
        first.open(incoming.keep())
    wait_for(lambda: first.current.stage is Stage.READING)
    first.chats.database.close()  # as if killed: nothing more is written
    again = make_state(data)
    again.restore()
    assert again.current.stage is Stage.EMPTY
    assert len(again.books.all()) == 1
    again.close()


def test_a_full_disk_is_on_the_page(state: AppState) -> None:
    open_book(state)
    database = state.chats.database
    database._connection.execute("PRAGMA query_only = 1")
    say(state, "Who?", "Maren.")
    assert "only in memory" in Library(state, Sample(Path("nowhere"))).view()["storage"]
    assert state.chat.exchanges[0].answer == "Maren."


def test_a_library_that_was_damaged_is_on_the_page_with_its_name(data: Path) -> None:
    file = data / "library.db"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(b"this is no database at all" * 100)
    state = make_state(data)
    kept = next(data.glob("library.db.damaged-*"))
    assert kept.name in Library(state, Sample(Path("nowhere"))).view()["storage"]
    state.close()


def test_suggestions_come_with_the_pages(data: Path) -> None:
    outline_free: Document = book()
    state = make_state(data)
    library = Library(state, Sample(Path("nowhere")))
    assert library.view()["suggestions"] == []
    open_book(state, outline_free.title)
    wait_for(lambda: "What is the book about?" in library.view()["suggestions"])
    state.close()


def test_suggestions_that_take_long_do_not_hold_the_page(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """600 KB of Roman numerals held the page for seven seconds."""
    go_on = threading.Event()
    monkeypatch.setattr(module, "suggestions", lambda *_, **__: go_on.wait(10) and ("Why?",))
    state = make_state(data)
    library = Library(state, Sample(Path("nowhere")))
    open_book(state, "A")
    assert library.view()["suggestions"] == []
    go_on.set()
    wait_for(lambda: library.view()["suggestions"] == ["Why?"])
    state.close()
