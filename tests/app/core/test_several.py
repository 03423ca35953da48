"""Several documents read as one book: kept, opened again, changed, with the cost said before."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.core import chat_run
from app.core.archives import taken_apart
from app.core.books import COLLECTION, TEXT, Book, Books, TextCache
from app.core.chats import Chats
from app.core.contents import chapters
from app.core.db import Database
from app.core.forecast import Experience
from app.core.open_book import Stage
from app.core.question import Ask
from app.core.several import cost_of
from app.core.state import AppState
from app.core.suggestions import chapter_question, suggestions
from app.readers import document_reader, recognition
from app.readers.recognition import Recognition
from app.web.live import page_view
from engine.document import Document, OutlineItem
from engine.errors import DocumentError, NoTextLayer, PasswordNeeded
from engine.plan import BookFit
from tests.app.scripted import ScriptedEngine, wait_for

Make = Callable[..., AppState]
TEXTS = {"a": "The lamp is lit.", "b": "The boat is late. " * 40, "c": "The bell rang."}


class Counting(ScriptedEngine):
    """Counts a token for every character; what begins like a book that was read comes from disk."""

    def __init__(self, limit: int = 32_768) -> None:
        super().__init__(limit=limit, reading_seconds=0.01)
        self.known: list[str] = []

    def measure(self, document: Document) -> BookFit:
        texts = [stretch.text for stretch in document.stretches]
        kept = max((len(text) for text in self.known if "".join(texts).startswith(text)), default=0)
        fit = super().measure(document)
        tokens = sum(map(len, texts))
        left = (1,) if tokens > self.limit else ()
        return replace(fit, tokens=tokens, fits=not left, kept=kept, reading_s=tokens / 10, leave_out=left)


def reader(path: Path, password: str | None = None) -> Document:
    name = path.read_text()
    if name.startswith("locked") and password != "lamp":
        raise PasswordNeeded(f"“{path.name}” is locked.", "Type its password.")
    return Document.from_pages(f"Part {name}", [TEXTS[name[-1]], "The end."])


def taken_in(state: AppState, tmp_path: Path, *names: str) -> list[Book]:
    found = []
    for name in names:
        (tmp_path / f"{name}.txt").write_text(name)
        found.append(state.books.copy_in(tmp_path / f"{name}.txt"))
    return found


def opened(state: AppState, books: list[Book], **how: Any) -> Book:
    state.arrange([book.sha256 for book in books], **how)
    wait_for(lambda: state.current.stage is Stage.READY)
    assert state.current.book is not None
    return state.current.book


def test_documents_are_added_kept_and_opened_again(make_state: Make, tmp_path: Path) -> None:
    state = make_state(Counting(), reader=reader)
    a, b, c = taken_in(state, tmp_path, "a", "b", "c")
    state.open(a)
    wait_for(lambda: state.current.stage is Stage.READY)
    both = opened(state, [a, b])
    assert (both.title, both.pages, both.is_collection) == ("Part a + Part b", 4, True)
    assert state.current.document is not None
    assert [member.title for member in state.current.document.members] == ["Part a", "Part b"]
    added = state.books.get(b.sha256)
    assert (added.shown, added.pages) == ("Part b", 2), "the library shows it as if it had been opened by itself"
    chat = state.chat
    assert chat is not None
    more = opened(state, [both, c])  # changed in place: its chats stay
    assert more.sha256 == both.sha256
    assert [book.sha256 for book in state.books.members(more)] == [a.sha256, b.sha256, c.sha256]
    assert state.chat is not None
    assert state.chat.id == chat.id
    other = opened(state, [c, a], as_new=True)
    assert other.sha256 != both.sha256
    assert opened(state, [c, a], as_new=True).sha256 == other.sha256  # it was there
    again = Books(tmp_path / "books", Database())  # whose database was lost
    assert sorted(len(again.members(book)) for book in again.all() if book.is_collection) == [2, 3]


def arranged(state: AppState, ids: list[str], stage: Stage) -> None:
    state.arrange(ids)
    wait_for(lambda: state.current.stage is stage)


def test_moved_and_left_out_documents_are_read_when_a_question_needs_them(make_state: Make, tmp_path: Path) -> None:
    """Moving a document read all of them again, 97 s, before anything was asked."""
    engine = Counting()
    state = make_state(engine, reader=reader)
    a, b, c = (book.sha256 for book in taken_in(state, tmp_path, "a", "b", "c"))
    opened(state, [state.books.get(one) for one in (a, b, c)])
    assert len(engine.readings) == 1
    arranged(state, [c, a, b], Stage.UNREAD)
    arranged(state, [c, b], Stage.UNREAD)
    assert len(engine.readings) == 1
    assert state.current.document is not None
    assert [member.title for member in state.current.document.members] == ["Part c", "Part b"]
    assert page_view(state.current, engine.status())["hint"].startswith("Your first question begins the reading of all")
    state.read_for(Ask("What rang?", now=True))
    assert state.current.stage is Stage.UNREAD, "an answer from passages alone needs no reading"
    list(chat_run.ask(state, Ask("What rang?")))
    assert len(engine.readings) == 2
    assert state.chat is not None
    assert state.chat.exchanges[-1].answer
    wait_for(lambda: state.current.stage is Stage.READY)
    arranged(state, [b, c], Stage.UNREAD)
    assert state.current.whole is not None
    engine.known = ["".join(stretch.text for stretch in state.current.whole.stretches)]
    arranged(state, [b, c], Stage.READY)  # all of it comes back from disk


def test_a_collection_with_one_document_left_is_this_document(make_state: Make, tmp_path: Path) -> None:
    """A twin with "1 document" was left in the library."""
    state = make_state(Counting(), reader=reader)
    a, b = taken_in(state, tmp_path, "a", "b")
    both = opened(state, [a, b])
    list(chat_run.ask(state, Ask("What is lit?")))
    asked = state.chat
    assert asked is not None
    state.arrange([b.sha256])
    wait_for(lambda: state.current.stage is Stage.UNREAD)
    assert state.current.book is not None
    assert state.current.book.sha256 == b.sha256
    assert {book.sha256 for book in state.books.all()} == {a.sha256, b.sha256}
    assert state.chat is not None
    assert (state.chat.id, state.chat.book, len(state.chat.exchanges)) == (asked.id, b.sha256, 1)
    assert [line.id for line in state.chats.of_book(b.sha256)] == [asked.id]
    assert not state.chats.of_book(both.sha256)
    assert state.books.collect([a]).sha256 == a.sha256, "nor is a new one made"


def test_a_book_keeps_the_name_that_it_was_given(make_state: Make, tmp_path: Path) -> None:
    state = make_state(Counting(), reader=reader)
    (a,) = taken_in(state, tmp_path, "a")
    state.open(a)
    wait_for(lambda: state.current.stage is Stage.READY)
    state.rename(a.sha256, "  The lease\nof 2024 ")
    assert state.books.get(a.sha256).shown == "The lease of 2024"
    shown = page_view(state.current, state.engine.status())["book"]
    assert shown["title"] == "The lease of 2024"
    state.open(a)
    wait_for(lambda: state.current.stage is Stage.READY)
    assert state.books.get(a.sha256).shown == "The lease of 2024", "its own title does not come back with an opening"
    for database in (state.books.database, Database()):  # as it is, and after the database was lost
        assert Books(tmp_path / "books", database).get(a.sha256).shown == "The lease of 2024"
    state.rename(a.sha256, "")
    assert state.books.get(a.sha256).shown == "Part a"
    state.rename(a.sha256, "Lost")
    state.delete(a.sha256)
    assert not state.books.database.rows("SELECT given FROM books WHERE sha256 = ?", (a.sha256,))


def test_documents_that_were_agreed_to_of_another_book_leave_the_open_one_as_it_is(
    make_state: Make, tmp_path: Path
) -> None:
    state = make_state(Counting(), reader=reader)
    a, b, c = taken_in(state, tmp_path, "a", "b", "c")
    seen, other = opened(state, [a, b]), opened(state, [b, c], as_new=True)
    made = opened(state, [a, c], open_sha256=seen.sha256)  # seen in another tab
    assert len({seen.sha256, other.sha256, made.sha256}) == 3
    assert state.books.members(other) == (state.books.get(b.sha256), state.books.get(c.sha256))


def test_a_document_of_a_collection_is_not_deleted(make_state: Make, tmp_path: Path) -> None:
    state = make_state(Counting(), reader=reader)
    a, b = taken_in(state, tmp_path, "a", "b")
    both = opened(state, [a, b])
    with pytest.raises(DocumentError, match="one of the documents of “Part a \\+ Part b”"):
        state.delete(a.sha256)
    assert state.current.stage is Stage.READY
    state.delete(both.sha256)
    state.delete(a.sha256)
    assert [book.sha256 for book in state.books.all()] == [b.sha256]


def test_no_reading_of_a_document_outlives_it(tmp_path: Path) -> None:
    forgotten: list[str] = []
    saved = SimpleNamespace(forget=forgotten.append)
    state = AppState(Counting(), Books(tmp_path / "books"), Chats(), reader, saved)  # type: ignore[arg-type]
    a, b, c = taken_in(state, tmp_path, "a", "b", "c")
    had = state.books.collect([a, b])
    state.books.collect([c, b])
    state.books.collect([b], had)
    state.books.collect([b, c], had)
    state.delete(a.sha256)
    assert forgotten == [a.sha256, had.sha256], "the readings of what it was left out of have its words"
    state.close()


def test_the_cost_is_said_before(make_state: Make, tmp_path: Path) -> None:
    engine = Counting(limit=400)
    state = make_state(engine, reader=reader)
    a, b, c = (book.sha256 for book in taken_in(state, tmp_path, "a", "b", "c"))
    engine.known = [f"{TEXTS['a']}\n\nThe end."]
    assert cost_of(state, [a]).sentence == "All of it was read before and comes back from disk."
    cost = cost_of(state, [a, c, a])
    assert cost.fits
    assert cost.sentence.startswith("To read: ")
    assert cost.sentence.endswith(". The rest was read before and comes back from disk.")
    assert "was read before" not in cost_of(state, [c, a]).sentence, "another one comes first"
    long = cost_of(state, [a, b, c])
    assert (long.fits, long.fitting) == (False, (a, c))
    assert engine.readings == []


def test_only_what_does_not_come_from_disk_takes_time() -> None:
    fit = BookFit(1000, 4000, True, 4, 0, "", reading_s=100.0)
    whole, rest = (Experience().reading_on(None, replace(fit, kept=kept)) for kept in (0, 900))
    assert whole is not None
    assert rest is not None
    assert (whole.low, whole.high) == (50.0, 200.0)
    assert 0.1 * whole.low < rest.low < 0.13 * whole.low


def test_a_locked_document_asks_for_its_password_once(make_state: Make, tmp_path: Path) -> None:
    state = make_state(Counting(), reader=reader)
    a, locked = taken_in(state, tmp_path, "a", "locked b")
    with pytest.raises(PasswordNeeded, match="Open it by itself once"):
        cost_of(state, [a.sha256, locked.sha256])
    state.arrange([a.sha256, locked.sha256])
    wait_for(lambda: state.current.stage is Stage.LOCKED)
    assert state.current.trouble is not None
    assert state.current.trouble.cause == "“locked b.txt” is locked."
    assert state.current.book is not None
    state.open(state.current.book, "lamp")
    wait_for(lambda: state.current.stage is Stage.READY)
    assert state.parser.passwords == {locked.sha256: "lamp"}
    arranged(state, [locked.sha256, a.sha256], Stage.UNREAD)
    assert state.current.book is not None
    assert state.current.book.pages == 4


def scanned(asked: list[Recognition]) -> TextCache:
    """Reads a scan of six pages as recognition would: tells about each page that is done, until it is stopped."""

    def read(path: Path, password: str | None = None, recognition: Recognition | None = None) -> Document:
        if not path.read_text().startswith("scan"):
            return reader(path, password)
        if recognition is None:
            raise NoTextLayer("It has no text.")
        asked.append(recognition)
        recognition.progress(0, 6, None)
        done = 0
        while done < 6 and not recognition.stop.is_set():
            done += 1
            recognition.progress(done, 6, (6 - done) * 40.0)
            if done == 3:
                recognition.estimated(3, 120.0)
        whole = Document.from_pages("A scan", ["A line."] * 6)
        unread = [replace(page, text="", picture="unread") for page in whole.pages[done:]]
        return replace(whole, pages=(*whole.pages[:done], *unread))

    return TextCache(read)


def test_a_scan_that_was_never_opened_is_added_with_its_minutes_said(make_state: Make, tmp_path: Path) -> None:
    asked: list[Recognition] = []
    state = make_state(Counting(), reader=scanned(asked))
    a, scan = taken_in(state, tmp_path, "a", "scan")
    state.open(a)
    wait_for(lambda: state.current.stage is Stage.READY)
    cost = cost_of(state, [a.sha256, scan.sha256])
    assert (cost.fits, cost.recognises) == (True, (scan.sha256,))
    assert cost.sentence.startswith("Words in pictures of pages are recognised first: 3 pages, about 2 min. ")
    assert asked[0].folder is not None, "the pages that were recognised for the estimate are kept"
    both = opened(state, [a, scan], agreed=cost.recognises)
    assert (asked[-1].agreed, asked[-1].doubtful) == (True, False)
    assert both.pages == 8
    assert not cost_of(state, [a.sha256, scan.sha256]).recognises, "its text is kept"


def test_a_scan_whose_adding_is_cancelled_is_tried_once(
    make_state: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time three more of its pages were recognised before the cost was said."""
    tried: list[int] = []

    def recognised(request: dict[str, Any], *_: object) -> Iterator[dict[str, object]]:
        for number in list(request["numbers"]):
            yield {"type": "step", "done": 0, "total": 9, "page": number}
            tried.append(number)
            yield {"type": "recognised", "number": number, "page": {"lines": []}, "seconds": 15.0}

    def read(request: dict[str, Any], name: str, digest: str, *_: object) -> Document:
        whole = Document.from_pages(name, ["A line."] * 9)
        known = request.get("recognised", {})
        pages = [
            page if str(page.number) in known else replace(page, text="", picture="unread") for page in whole.pages
        ]
        return whole if Path(request["path"]).read_text() == "a" else replace(whole, pages=tuple(pages))

    monkeypatch.setattr(recognition, "run_in_child", recognised)
    monkeypatch.setattr(document_reader, "read_bounded", read)
    monkeypatch.setattr(document_reader, "missing", lambda: "")
    state = make_state(Counting(), reader=TextCache(document_reader.read_document))
    a, scan = taken_in(state, tmp_path, "a", "scan")
    state.open(a)
    wait_for(lambda: state.current.stage is Stage.READY)
    first = cost_of(state, [a.sha256, scan.sha256])
    assert ": 6 pages, about 2 min. " in first.sentence
    assert first.recognises == (scan.sha256,)
    assert cost_of(state, [a.sha256, scan.sha256]) == first
    assert tried == [1, 2, 3]


def test_agreeing_to_a_scan_that_is_added_resumes_no_other(make_state: Make, tmp_path: Path) -> None:
    asked: list[Recognition] = []
    state = make_state(Counting(), reader=scanned(asked))
    stopped, added = taken_in(state, tmp_path, "scan", "scan 2")
    state.open(stopped)
    wait_for(lambda: state.current.stage is Stage.READY)
    asked.clear()
    (tmp_path / "books" / stopped.sha256 / TEXT).unlink()  # as if the person had stopped its recognition
    cost = cost_of(state, [stopped.sha256, added.sha256])
    assert cost.recognises == (added.sha256,)
    assert ": 3 pages, " in cost.sentence, "of a document that is open no page is recognised"
    asked.clear()
    opened(state, [stopped, added], agreed=cost.recognises)
    assert [how.agreed for how in asked] == [False, True]


@pytest.mark.parametrize("damage", ['{"documents": [7]}', "[" * 100_000])
def test_a_damaged_list_of_documents_is_said(make_state: Make, tmp_path: Path, damage: str) -> None:
    state = make_state(Counting(), reader=reader)
    both = opened(state, taken_in(state, tmp_path, "a", "b"))
    (tmp_path / "books" / both.sha256 / COLLECTION).write_text(damage)
    assert state.books.listed(both) == list(state.books.collections_that_had("x")) == []
    assert len(state.books.all()) == 3
    with pytest.raises(DocumentError, match="damaged"):
        state.books.members(both)


def test_contents_and_questions_name_the_document() -> None:
    first = replace(
        Document.from_pages("Lease 2024", ["One.", "Notice", "Three."]), outline=(OutlineItem("Notice", 2, 0),)
    )
    both = Document.together(
        [Document.from_pages("Letter", ["The lease 2024 is long, said the letter. Lease 2024"]), first]
    )
    found = chapters(both)
    assert [(one.title, one.first, one.last) for one in found] == [
        ("Letter", 1, 1),
        ("Lease 2024", 2, 4),
        ("Notice", 3, 4),
    ]
    assert chapter_question(found[1], both) == "Summarize “Lease 2024”."
    assert chapter_question(found[2], both) == "Summarize the chapter “Notice” (Lease 2024, pages 2 to 3)."
    assert suggestions(both, 4)[0] == "Where do the two documents differ?"
    assert not any("60 words" in question for question in suggestions(both, 4)), "which of them?"
    assert suggestions(both, 1)[0] != "Where do the two documents differ?"
    assert not any("“Letter”" in question for question in suggestions(both, 4)), "a document's title is no heading"


def test_questions_about_several_documents_are_put_to_each() -> None:
    """Three leases were asked what "the document" says, and what they have in common: all three had the rent of one."""
    lease = (
        "The tenant signed on 12 May. The tenant pays a rent of {} euros. The deposit of {} euros is due in June. "
        "The tenant cleans the stairs and repairs what the tenant breaks. The landlord shall repair the boiler; "
        "either party may end the lease by notice."
    )
    figures = (("780", "1,560"), ("690", "1,380"), ("1,050", "2,100"))
    leases = [Document.from_pages(f"Lease {at}", [lease.format(*both)]) for at, both in enumerate(figures)]
    found = suggestions(Document.together(leases), 3)
    assert found[0] == "Compare the deposit and the rent."
    assert found[1] == "Who are the parties of each document?"
    assert not any("the document " in question or "in common" in question for question in found)
    mixed = Document.together([leases[0], Document.from_pages("Soup", ["Salt the water and boil the beans. " * 9])])
    assert suggestions(mixed, 2)[:2] == ("Where do the two documents differ?", "What is each document about?")


def test_an_archive_is_its_documents(make_state: Make, tmp_path: Path) -> None:
    """It was read as one book, so that no document of it could be moved, left out or opened by itself."""
    entries = {"deeds/Lease.txt": "a", "Costs.txt": "b", "Secret.txt": "locked", "film.mp4": "moving", "bad.txt": "x"}

    def read(path: Path, password: str | None = None) -> Document:
        if path.read_text() == "x":
            raise DocumentError(f"“{path.name}” is damaged.", "Get it again.")
        return reader(path, password)

    def given(name: str, entries: dict[str, str]) -> Book:
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for entry, text in entries.items():
                archive.writestr(entry, text)
        return taken_apart(state, state.books.copy_in(tmp_path / name))

    state = make_state(Counting(), reader=read)
    book = given("papers.zip", entries)
    state.open(book)
    wait_for(lambda: state.current.stage is Stage.READY)
    assert state.current.document is not None
    assert [member.title for member in state.current.document.members] == ["Part a", "Part b"]
    assert state.current.book is not None
    assert state.current.book.shown == "papers"
    said = " ".join(state.current.document.warnings)
    assert "“Secret.txt” is locked. Open it by itself once, with its password, and then add it." in said
    assert "“bad.txt” is damaged." in said
    assert "not read: 1 (film.mp4)." in said
    names = {one.name for one in state.books.all()}
    assert names == {"Lease.txt", "Costs.txt", "Secret.txt", state.current.book.name}
    assert given("papers.zip", entries).sha256 == book.sha256  # it was there
    assert given("one.zip", {"Lease.txt": "a"}).name == "Lease.txt"
    whole = given("nothing.zip", {"film.mp4": "moving"})
    assert whole.name == "nothing.zip"
    assert taken_apart(state, whole) == whole
