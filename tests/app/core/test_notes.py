"""Notes: where they stand, how they are found and kept, what is written of them for elsewhere, what a delete takes."""

from __future__ import annotations

import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from app.core import db, notes
from app.core.books import Books
from app.core.chats import Chat, Exchange
from app.core.db import Database
from app.core.export import answer_with_pages, as_json, as_markdown, harmless
from app.core.notes import Note, NoteStore
from app.core.references import FORMS, Source, as_bibtex, as_ris, sources_of
from engine.document import Document
from engine.errors import CONTROLS, OptionError
from engine.events import StopReason

LEASE, LOG = "a" * 64, "b" * 64


def note(book: str = LEASE, page: int = 1, passage: str = "the north light", **more: str) -> Note:
    return replace(Note("", book, page, str(page) if page else "", 0, 0, passage), **more)  # type: ignore[arg-type]


@pytest.fixture
def store() -> NoteStore:
    return NoteStore(Database())


def document(title: str, sha256: str, *pages: str) -> Document:
    return replace(Document.from_pages(title, pages), sha256=sha256)


def test_notes_stand_in_the_order_of_their_pages_and_are_found_without_accents_or_case(store: NoteStore) -> None:
    last = store.add(note(page=0, passage="", said="Nobody knows."))
    second = store.add(note(page=7, passage="Die Wärterin zählte", words="Compare the café"))
    first = store.add(note(page=2))
    other = store.add(note(LOG))
    kept = store.of((LEASE, LOG))
    assert [one.id for one in kept] == [first.id, second.id, last.id, other.id]
    assert [one.id for one in notes.search(kept, "CAFE warterin")] == [second.id]
    assert [one.id for one in notes.search(kept, "nobody")] == [last.id]
    assert notes.search(kept, "warterin nobody") == ()
    assert notes.search(kept, "  ") == kept
    assert store.counts() == {LEASE: 3, LOG: 1}


def test_who_changes_a_note_second_sees_the_words_of_the_first(store: NoteStore) -> None:
    kept = store.add(note(words="Ours"))
    store.change(kept.id, "Ours, of the first tab", "green", seen="Ours")
    with pytest.raises(notes.ChangedMeanwhile) as meanwhile:
        store.change(kept.id, "Ours, of the second tab", "rose", seen="Ours")
    assert meanwhile.value.note.words == store.get(kept.id).words == "Ours, of the first tab"
    assert store.get(kept.id).colour == "green"
    store.change(kept.id, "Ours, of both", "rose", seen="Ours, of the first tab")
    assert store.get(kept.id).words == "Ours, of both"
    assert store.change(kept.id, "Ours, of both", "blue", seen="Ours").colour == "blue", "the words are the same"
    assert store.change(kept.id, "Mine", "", seen="Ours, of both").colour == "blue", "the colour of another tab"


def test_two_tabs_that_note_one_passage_at_once_lose_no_words(store: NoteStore) -> None:
    with ThreadPoolExecutor(8) as tabs:
        list(tabs.map(lambda number: store.add(note(words=f"Words {number}")), range(40)))
    (kept,) = store.of([LEASE])
    assert sorted(kept.words.split("\n")) == sorted(f"Words {number}" for number in range(40))


def test_what_is_noted_again_keeps_its_note(store: NoteStore) -> None:
    kept = store.add(note(words="See the lease"))
    again = note(passage="the  north light", colour="green")
    assert store.noted_before(again) == kept
    assert store.add(again) == replace(kept, colour="green")
    assert store.add(note(words="And the log")).words == "See the lease\nAnd the log"
    others = [note(page=2), note(said="It shone."), note(passage="the south light"), note(LOG), note(passage="")]
    assert all(store.noted_before(other) is None for other in others)
    assert len({store.add(other).id for other in others} | {kept.id}) == 6
    own = store.add(note(page=3, passage="", words="A page to read"))
    assert store.add(note(page=3, passage="", words="A second thought")).id != own.id, (
        "on a page there are many thoughts"
    )
    assert [one.id for one in store.on_page(LEASE, 3)] == [one.id for one in store.of([LEASE]) if one.page == 3]


def test_a_note_is_changed_deleted_and_put_back_as_it_was(store: NoteStore) -> None:
    kept = store.add(note())
    changed = store.change(kept.id, "My own words", "blue")
    assert store.of([LEASE]) == (replace(kept, words="My own words", colour="blue"),)
    before = store.changes
    store.delete(kept.id)
    assert store.of([LEASE]) == ()
    store.put_back(kept.id)
    assert store.of([LEASE]) == (changed,)
    assert store.changes == before + 2
    store.delete(kept.id)
    store.forget_book(LEASE)
    with pytest.raises(OptionError, match="brought back"):  # what was deleted with its book is gone
        store.put_back(kept.id)
    with pytest.raises(OptionError, match="no longer there"):
        store.change(kept.id, "", "blue")


def test_a_note_that_could_not_be_put_back_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database()
    store = NoteStore(database)
    kept = store.add(note())
    store.delete(kept.id)
    with monkeypatch.context() as full:
        full.setattr(database, "write", lambda _: (_ for _ in ()).throw(sqlite3.OperationalError("disk is full")))
        with pytest.raises(sqlite3.OperationalError):
            store.put_back(kept.id)
    store.put_back(kept.id)
    assert store.of([LEASE]) == (kept,)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (note(page=0, passage=" "), "nothing to note"),
        (note(colour="plaid"), "no colour"),
        (note(words="x" * 20_001), "at most 20,000"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_words(store: NoteStore, wrong: Note, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        store.add(wrong)
    assert store.counts() == {}


def test_a_passage_is_found_on_its_page_whatever_its_spacing_and_the_right_one_of_two() -> None:
    page = document("Lease", LEASE, "The rent is due. The light-\nhouse stands. The rent is late.").pages[0]
    start, stop = notes.marked(page, "lighthouse  stands")
    assert page.text[start:stop] == "light-\nhouse stands"
    start, _ = notes.marked(page, "The rent is", text_before="house stands.", text_after="late")
    assert start == page.text.rindex("The rent")
    start, stop = notes.marked(page, "(The rent is due.)")
    assert page.text[start:stop] == "The rent is due.", "with its signs, as far as they stand there"
    assert notes.marked(page, "nowhere") == (0, 0)
    kept = replace(note(passage="The rent is late"), start=3, stop=9)  # the text was read otherwise then
    assert page.text[slice(*notes.marks(page, kept))] == "The rent is late"


def test_notes_of_a_document_are_there_when_it_is_one_of_several() -> None:
    both = Document.together([document("Log", LOG, "x", "y"), document("Lease", LEASE, "one", "two")], sha256="c" * 64)
    assert notes.books_of(both, "c" * 64) == (LOG, LEASE, "c" * 64)
    kept = note(page=2)
    page = notes.page_of(both, kept)
    assert page is not None
    assert (page.number, notes.place(both, kept)) == (4, "Lease, p. 2")
    assert notes.page_of(both, note("d" * 64)) is None
    assert notes.page_of(document("Lease", LEASE, "one"), note(page=2)) is None


def test_what_answers_come_from_are_the_notes_under_their_pages() -> None:
    both = Document.together([document("Log", LOG, "x", "y"), document("Lease", LEASE, "one", "two")], sha256="c" * 64)
    kept = [note(page=2, words="Mine."), note(page=2, passage="more", said="More."), note(LOG, 1), note(page=0)]
    read = notes.to_read(both, kept)
    assert [(page.number, page.label, page.text) for page in read.pages] == [
        (1, "1", "the north light"),
        (4, "2", "the north light\nMine.\n\nmore"),
    ]
    assert (read.kind, read.sha256) == (notes.NOTES, ""), "the engine keeps nothing of them"
    member = read.member_at(4)
    assert member is not None
    assert member.title == "Lease"


def test_notes_survive_a_restart_and_go_with_their_book(tmp_path: Path) -> None:
    file = tmp_path / "library.db"
    database = Database(file)
    kept = NoteStore(database).add(note(words="Mine"))
    NoteStore(database).add(note(LOG))
    database.close()
    again = Database(file)
    store = NoteStore(again)
    assert store.of([LEASE]) == (kept,)
    again.write(lambda connection: connection.execute("DELETE FROM books WHERE sha256 = ?", (LEASE,)))
    assert store.counts() == {LOG: 1}
    again.close()


def test_a_damaged_library_keeps_its_notes(tmp_path: Path) -> None:
    file = tmp_path / "library.db"
    database = Database(file)
    kept = [NoteStore(database).add(note(page=page, words=f"Number {page}")) for page in range(1, 40)]
    database.close()
    with closing(sqlite3.connect(file)) as connection:
        root = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_notes_1'"
        ).fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with file.open("r+b") as opened:
        opened.seek((root - 1) * size)
        opened.write(b"\xff" * 200)
    again = Database(file)
    assert NoteStore(again).of([LEASE]) == tuple(kept)
    assert "39 notes" in again.notice
    again.close()


def test_a_library_of_an_earlier_version_is_copied_before_it_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "library.db"
    with closing(sqlite3.connect(file)) as old:
        for script in db.MIGRATIONS[:2]:
            old.executescript(script)
        old.execute("INSERT INTO books (sha256, name) VALUES (?, 'Lamps')", (LEASE,))
        old.execute("PRAGMA user_version = 2")
        old.commit()
    Database(file).close()
    (copy,) = tmp_path.glob("library.db.version-*")
    with closing(sqlite3.connect(copy)) as kept:
        assert kept.execute("PRAGMA user_version").fetchone() == (2,)
        assert kept.execute("SELECT name FROM books").fetchone() == ("Lamps",)
        assert kept.execute("SELECT count(*) FROM sqlite_master WHERE name = 'notes'").fetchone() == (0,)
    Database(file).close()
    assert copy.exists(), "for a month"
    os.utime(copy, (0, 0))
    Database(file).close()
    assert not copy.exists(), "what was deleted since must not stay for good"


# For elsewhere -------------------------------------------------------------------------------------------------------

MOBY = Source(LEASE, "Moby-Dick & the 100% Whale", "Melville, Herman", "First published 1851-10-18")
PAPER = Source(LOG, "Lamps", "Maren Holt, Tobias Wren", "", "section")
KEPT = (
    Note("1", LEASE, 41, "xli", 0, 0, "Call me\nIshmael.", "He says his name.", "The _first_ line", "green"),
    Note("2", LOG, 0, "", 0, 0, "", "Nobody knows.", "", "rose"),
)


def written(form: str) -> str:
    return FORMS[form][1]("Whales", (MOBY, PAPER), KEPT)


def test_markdown_has_every_note_with_its_page_and_colour() -> None:
    assert written("md") == (
        "# Notes on Whales\n\n## Moby-Dick & the 100% Whale\n\n*Melville, Herman, 1851*\n\n1 note, made with Trifold."
        "\n\n**Page xli** (green)\n\n> Call me\n> Ishmael.\n\nFrom an answer: He says his name.\n\nThe _first_ line"
        "\n\n## Lamps\n\n*Maren Holt; Tobias Wren*\n\n1 note, made with Trifold."
        "\n\n**Without a page** (rose)\n\nFrom an answer: Nobody knows.\n"
    )


def test_bibtex_says_what_the_file_says_and_no_more() -> None:
    first, second = written("bib").split("\n\n@")
    assert first.startswith("@misc{melville1851moby,\n  title = {{Moby-Dick \\& the 100\\% Whale}},\n")
    assert "  author = {Melville, Herman},\n  year = {1851},\n" in first
    assert (
        "annote = {p. xli: “Call me Ishmael.” (From an answer: He says his name.) The \\_first\\_ line [green]}"
        in first
    )
    assert "author = {Maren Holt and Tobias Wren}" in second
    assert "year" not in second
    assert [text.count("{") - text.count("}") for text in (first, second)] == [0, 0]


@pytest.mark.parametrize(
    ("stated", "in_bibtex", "in_ris"),
    [
        ("Department of Veterans Affairs", "{Department of Veterans Affairs}", ["Department of Veterans Affairs"]),
        (
            "U.S. Department of Health and Human Services",
            "{U.S. Department of Health and Human Services}",
            ["U.S. Department of Health and Human Services"],
        ),
        ("Orre Lamps, Inc.", "{Orre Lamps, Inc.}", ["Orre Lamps, Inc."]),
        ("Holt & Wren Ltd.", r"{Holt \& Wren Ltd.}", ["Holt & Wren Ltd."]),
        ("Maren Holt; Universität Orre", "Maren Holt and {Universität Orre}", ["Maren Holt", "Universität Orre"]),
        ("University of Orre and Maren Holt", "{University of Orre} and Maren Holt", None),
        *(
            (name, f"{{{name}}}", [name])
            for name in (
                "National Institute of Standards and Technology",
                "Food and Drug Administration",
                "Securities and Exchange Commission",
                "National Institutes of Health",
            )
        ),
        ("Maren Holt and Department of Health", "Maren Holt and {Department of Health}", None),
        ("Bundesministerium der Finanzen", "{Bundesministerium der Finanzen}", None),
        ("Leuchtfeuer GmbH", "{Leuchtfeuer GmbH}", None),
        ("Frederic Church and Joseph Banks", "Frederic Church and Joseph Banks", None),
        ("Vincenzo Ministri", "Vincenzo Ministri", None),
        ("Ag, Tobias", "Ag, Tobias", None),
    ],
)
def test_an_institution_stays_one_name(stated: str, in_bibtex: str, in_ris: list[str] | None) -> None:
    source = Source("a" * 64, "Claims", stated)
    assert f"  author = {{{in_bibtex}}}\n" in as_bibtex((source,), ())
    written_names = [line[6:] for line in as_ris((source,), ()).split("\r\n") if line.startswith("AU")]
    assert in_ris is None or written_names == in_ris


def test_entries_of_the_same_name_are_told_apart() -> None:
    twins = FORMS["bib"][1]("", (MOBY, replace(MOBY, sha256=LOG), Source("c" * 64, "灯")), ())
    assert [line for line in twins.splitlines() if line.startswith("@")] == [
        "@misc{melville1851moby,",
        "@misc{melville1851moby2,",
        "@misc{document,",
    ]


def test_ris_has_a_line_for_each_note() -> None:
    assert written("ris").split("\r\n") == [
        "TY  - GEN", "TI  - Moby-Dick & the 100% Whale", "AU  - Melville, Herman", "PY  - 1851",
        "N1  - p. xli: “Call me Ishmael.” (From an answer: He says his name.) The _first_ line [green]", "ER  - ", "",
        "TY  - GEN", "TI  - Lamps", "AU  - Maren Holt", "AU  - Tobias Wren",
        "N1  - without a page: (From an answer: Nobody knows.) [rose]", "ER  - ", "",
    ]  # fmt: skip


def test_the_sources_of_several_documents_are_these_and_what_is_noted_of_all(tmp_path: Path) -> None:
    books = Books(tmp_path / "books")
    found = []
    for name in ("Lease", "Log"):
        (tmp_path / f"{name}.txt").write_text(name)
        book = books.copy_in(tmp_path / f"{name}.txt")
        found.append(books.remember(book, title=name, author="M. Holt", pages=1, unit="page"))
    both, store = books.collect(found), NoteStore(books.database)
    assert [source.title for source in sources_of(books, store, both)] == ["Lease", "Log"]
    store.add(note(both.sha256, 0))
    assert [source.sha256 for source in sources_of(books, store, both)] == [*(one.sha256 for one in found), both.sha256]
    opened = replace(document("Lease", found[0].sha256, "x"), author="M. Holt", date="2024-05-01")
    (alone,) = sources_of(books, store, found[0], opened)
    assert (alone.year, alone.authors) == ("2024", ("M. Holt",))


@pytest.mark.parametrize("title", ["One { brace", "}, note = {forged", "\\}", "{{}", "a \\textbf{b} @misc{x, y = {z}}"])
def test_a_title_adds_no_fields_to_bibtex(title: str) -> None:
    """BibTeX counts the braces of "\\{" too."""
    entry = as_bibtex((Source("a", title, "Holt, Maren"), Source("b", "Next")), ())
    depth, fields = 0, []
    for line in entry.splitlines():
        if depth == 1 and " = " in line:
            fields.append(line.split(" = ")[0].strip())
        depth += line.count("{") - line.count("}")
    assert depth == 0
    assert fields == ["title", "author", "title"]


def test_an_export_loads_no_picture() -> None:
    text = "![x](http://evil.example/x.png) <img src=http://evil.example/y> ![r][1] 1 < 2"
    kept = "!\\[x](http://evil.example/x.png) \\<img src=http://evil.example/y> !\\[r][1] 1 < 2"
    note = Note("n", "a", passage=text, said=text, words=text)
    shown = FORMS["md"][1](text, (Source("a", text),), (note,))
    assert shown.count(kept) == 4
    turns = (Exchange(text, text, StopReason.END), Exchange("b", text, StopReason.END))
    told = as_markdown(Chat("c", text, 0.0, turns), text)  # the chat's title is cut
    assert (told.count(kept), "![" in told) == (4, False)


@pytest.mark.parametrize("before", ["\\", "\\\\", "\\\\\\", "`a`\\", "!\\", "\\!"])
def test_no_backslash_of_a_text_brings_a_picture_back(before: str) -> None:
    """A backslash before a tag escaped the one that escapes the tag."""
    text = f"{before}<img src=http://evil.example/y> {before}![x](http://evil.example/x.png)"
    made = MarkdownIt("commonmark", {"html": True}).render(harmless(text))
    assert "<img" not in made


def test_no_export_has_characters_that_a_terminal_obeys() -> None:
    """Notes and answers may hold them; whoever prints a file of ours must not lose the title of the window to them."""
    text = "a\x1b]0;forged\x07 \x9b31m\u202eb\r\nc\rd\x00"
    note = Note("n", "a", 1, label=text, passage=text, said=text, words=text)
    turn = Exchange(text, text, StopReason.END)
    made = [form(text, (Source("a", text, text),), (note,)) for _, form in FORMS.values()]
    made += [as_markdown(Chat("c", "", 0.0, (turn,)), text), answer_with_pages(turn, text)]
    made.append(as_json(Chat("c", text, 0.0, ()), {"title": text}, ()))
    for written in made:
        assert not {ord(sign) for sign in written.replace("\r\n", "\n")} & set(CONTROLS), repr(written)
        assert "forged" in written


def test_a_footnote_after_an_exclamation_is_no_picture() -> None:
    chip = {"kind": "says", "pages": [{"number": 3, "label": "3"}], "text": "The bell rang.", "at": 8}
    turn = Exchange("Q?", "It rang! Then not.", StopReason.END, notes={"chips": [chip], "unit": "page"})
    assert "It rang! [^1] Then not." in answer_with_pages(turn, "The Bell")


def test_an_author_of_several_lines_stays_one_line() -> None:
    """An author's line that opened a block of code made all notes code."""
    shown = FORMS["md"][1]("T", (Source("a", "T", author="Holt\n\n```\n# Forged"),), ())
    assert "*Holt ``` # Forged*" in shown
