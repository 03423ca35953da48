"""A data folder of Trifold 0.1, recorded once from that program, is opened by this one: nothing in it is lost.

``data-0.1`` holds the files; the library stands there as SQL, which can be read and does not grow.
"""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app.core import db, settings
from app.core.export import as_markdown
from app.core.race import Verified
from app.core.state import AppState
from app.models.engine_proxy import EngineProxy
from app.web.server import VERIFIED_FILE, make_state
from engine.events import StopReason
from tests.app.scripted import ScriptedEngine, model_info, wait_for

OLD = Path(__file__).parent / "data-0.1"
BOOK = "a99d8fed2f2d65d0e6d28eafbc9838e641a0ecf3a41e03158de7d93a56d993b3"
LIGHTS, OTHER = "cWUWmUrkuQY0", "nwA7M5pCuBHz"  # its two chats
SHADOWS = ("sqlite_", "words_")  # tables that SQLite makes for itself


@pytest.fixture
def old(tmp_path: Path) -> settings.Settings:
    """The settings of a program that is started on a copy of the folder."""
    folder = tmp_path / "Trifold"
    shutil.copytree(OLD, folder)
    script = (folder / "library.sql").read_text(encoding="utf-8")
    (folder / "library.sql").unlink()
    with closing(sqlite3.connect(folder / "library.db")) as connection:
        connection.executescript(script)
    return settings.make_settings(environ={"TRIFOLD_DATA": str(folder)})


def started(of: settings.Settings) -> AppState:
    state = make_state(of)
    state.engine = EngineProxy.around(ScriptedEngine(answer="Nobody.", word_seconds=0.0))
    return state


def tables(connection: sqlite3.Connection) -> dict[str, str]:
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {name: " ".join(sql.split()) for name, sql in rows if not name.startswith(SHADOWS)}


def test_the_scripts_that_0_1_ran_still_make_its_tables(old: settings.Settings) -> None:
    """So that a library of any age comes to the tables of today by one road."""
    with closing(sqlite3.connect(old.library)) as theirs, closing(sqlite3.connect(":memory:")) as ours:
        (version,) = theirs.execute("PRAGMA user_version").fetchone()
        for script in db.MIGRATIONS[:version]:
            ours.executescript(script)
        assert tables(ours) == tables(theirs)


def test_chats_with_all_their_versions_are_there_and_go_on(old: settings.Settings) -> None:
    state = started(old)
    assert {line.title for line in state.chats.of_book(BOOK)} == {"Lights", "Another chat?"}
    chat = state.chats.get(LIGHTS)
    assert chat is not None
    assert [(turn.question, turn.answer) for turn in chat.exchanges] == [
        ("Who kept the north light?", "Maren Holt kept “the north light”."),
        ("And before her?", "She was followed by Tobias Wren."),
        ("Why?", "She was followed"),
    ]
    first, second, last = chat.exchanges
    assert (len(second.questions), second.stopped) == (2, StopReason.END)
    assert first.figures is not None
    assert (first.figures.answer_tokens, first.figures.kv_bytes.device) == (6, 9 << 30)
    assert (len(first.stages), (first.notes or {})["made"]["temperature"]) == (6, 0.7)
    assert [chip["kind"] for chip in (first.notes or {})["chips"]][:1] == ["quoted"]
    exported = as_markdown(chat, "Lamps")
    assert "Maren Holt kept “the north light”.[^1]" in exported, "an answer from before evidence was looked for"
    assert "Not found in the book" not in exported
    assert last.trouble is not None
    assert (last.trouble.cause, last.can_be_continued) == ("The memory ran out.", True)
    assert [found.chat for found in state.chats.search("Tobias")] != []
    assert state.chats.show(LIGHTS, second.questions[0]), "the first version of the edited question"
    state.chats.ask(OTHER, "Is it still there?")
    state.close()
    again = started(old)
    shown, other = again.chats.get(LIGHTS), again.chats.get(OTHER)
    assert shown is not None
    assert other is not None
    assert [turn.question for turn in shown.exchanges] == ["Who kept the north light?", "And after her?"]
    assert [turn.question for turn in other.exchanges] == ["Another chat?", "Is it still there?"]
    again.close()


def test_the_open_book_comes_back_and_the_choices_of_the_page(old: settings.Settings) -> None:
    assert (old.model, old.draft) == ("models/demo/target", "models/demo/draft")
    verified = Verified(old.data / VERIFIED_FILE).of(model_info())
    assert verified is not None
    assert (verified.how, verified.tokens) == ("race", 40)
    state = started(old)
    (book,) = state.books.all()
    assert (book.shown, book.pages_read, book.unit) == ("Lamps", 2, "section")
    state.restore()
    wait_for(lambda: state.current.stage.value == "ready")
    assert state.current.chat == OTHER
    assert state.current.document is not None
    assert "Tobias Wren kept the south light." in state.current.document.text
    state.close()
