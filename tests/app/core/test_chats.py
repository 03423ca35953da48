"""Chats: what is shown of them, their versions, and what is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from app.core import chats as module
from app.core.chats import Chats, Exchange, Trouble
from app.core.db import Database
from engine.events import KvBytes, StopReason
from tests.app.scripted import figures

BOOK = "a" * 64


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "library.db")


@pytest.fixture
def chats(database: Database) -> Chats:
    return Chats(database)


def say(chats: Chats, chat: str, question: str, answer: str, position: int | None = None) -> int:
    at = chats.ask(chat, question, position)
    turn = chats.get(chat).exchanges[at]
    chats.update(chat, at, replace(turn, answer=answer, stopped=StopReason.END))
    return at


def shown(chats: Chats, chat: str) -> list[tuple[str, str]]:
    return [(turn.question, turn.answer) for turn in chats.get(chat).exchanges]


def turn(chats: Chats, chat: str, at: int) -> Exchange:
    return chats.get(chat).exchanges[at]


def test_everything_about_an_answer_is_kept(chats: Chats, database: Database) -> None:
    chat = chats.begin(BOOK).id
    at = chats.ask(chat, "Who?")
    told = replace(
        turn(chats, chat, at),
        answer="It was Maren.",
        stopped=StopReason.LENGTH,
        figures=replace(figures(9), kv_bytes=KvBytes(3, 4, 5, cards=(2, 1))),
        stages="dllrt",
        pages_read=12,
        notes={"sentences": [{"pages": [4, 7]}]},
        trouble=Trouble("The memory ran out.", "Read less."),
    )
    chats.update(chat, at, told)
    assert turn(Chats(database), chat, at) == told


def test_an_empty_chat_is_not_kept(chats: Chats, database: Database) -> None:
    chat = chats.begin(BOOK)
    assert chats.get(chat.id) == chat
    assert chats.of_book(BOOK) == ()
    assert Chats(database).get(chat.id) is None


def test_the_last_written_chat_comes_first(chats: Chats) -> None:
    first, second = chats.begin(BOOK).id, chats.begin(BOOK).id
    say(chats, first, "One?", "1")
    say(chats, second, "Two?", "2")
    assert [line.title for line in chats.of_book(BOOK)] == ["Two?", "One?"]
    say(chats, first, "Three?", "3")
    assert [line.title for line in chats.of_book(BOOK)] == ["One?", "Two?"]
    assert chats.of_book("b" * 64) == ()


def test_asked_again_is_another_answer_to_the_same_question(chats: Chats) -> None:
    chat = chats.begin(BOOK).id
    say(chats, chat, "Who?", "Maren.")
    say(chats, chat, "And then?", "Her daughter.")
    say(chats, chat, "Who?", "Nobody knows.", position=0)
    assert shown(chats, chat) == [("Who?", "Nobody knows.")]
    first = turn(chats, chat, 0)
    assert len(first.questions) == 1
    assert len(first.answers) == 2
    assert chats.show(chat, first.answers[0])
    assert shown(chats, chat) == [("Who?", "Maren."), ("And then?", "Her daughter.")]


def test_an_edited_question_is_a_branch_and_arrows_lead_back(chats: Chats, database: Database) -> None:
    chat = chats.begin(BOOK).id
    say(chats, chat, "Who?", "Maren.")
    say(chats, chat, "When?", "In spring.")
    say(chats, chat, "Where?", "At the head.", position=1)
    assert shown(chats, chat) == [("Who?", "Maren."), ("Where?", "At the head.")]
    say(chats, chat, "How far?", "Two miles.")
    edited = turn(chats, chat, 1)
    assert len(edited.questions) == 2
    assert edited.questions[1] == edited.question_id
    chats.show(chat, edited.questions[0])
    assert shown(chats, chat) == [("Who?", "Maren."), ("When?", "In spring.")]
    chats.show(chat, edited.questions[1])
    branch = [("Who?", "Maren."), ("Where?", "At the head."), ("How far?", "Two miles.")]
    assert shown(chats, chat) == branch
    assert shown(Chats(database), chat) == branch


def test_the_first_question_can_be_edited_too(chats: Chats) -> None:
    chat = chats.begin(BOOK).id
    say(chats, chat, "Who?", "Maren.")
    say(chats, chat, "Whom?", "Her.", position=0)
    assert shown(chats, chat) == [("Whom?", "Her.")]
    assert len(turn(chats, chat, 0).questions) == 2
    assert chats.of_book(BOOK)[0].title == "Whom?"


def test_a_message_of_another_chat_is_not_shown(chats: Chats) -> None:
    first, second = chats.begin(BOOK).id, chats.begin(BOOK).id
    say(chats, first, "One?", "1")
    say(chats, second, "Two?", "2")
    assert not chats.show(first, turn(chats, second, 0).answer_id)
    assert not chats.show(first, 999)
    assert not chats.show("nothing", 1)


def test_a_found_message_is_shown_with_all_that_leads_to_it(chats: Chats) -> None:
    chat = chats.begin(BOOK).id
    say(chats, chat, "Who?", "Maren.")
    say(chats, chat, "When?", "In a hidden spring.")
    say(chats, chat, "Who?", "Nobody.", position=0)
    (found,) = chats.search("hidden")
    assert chats.show(chat, found.message)
    assert shown(chats, chat)[1] == ("When?", "In a hidden spring.")


def test_a_growing_answer_is_saved_in_time_and_no_more_often(
    chats: Chats, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = chats.begin(BOOK).id
    at = chats.ask(chat, "Who?")

    def kept() -> str:
        return turn(Chats(Database(database._path)), chat, at).answer

    chats.update(chat, at, replace(turn(chats, chat, at), answer="It"))
    chats.update(chat, at, replace(turn(chats, chat, at), answer="It was"))
    chats.save_in_time()
    assert kept() in ("", "It")  # not time yet
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    chats.save_in_time()
    assert kept() == "It was"


def test_lists_are_made_anew_when_an_answer_has_ended_and_not_while_it_grows(
    chats: Chats, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAVE_SECONDS", 0.0)
    chat = chats.begin(BOOK).id
    at = chats.ask(chat, "Who?")
    before = database.changes
    chats.update(chat, at, replace(turn(chats, chat, at), answer="It was"))
    assert turn(Chats(Database(database._path)), chat, at).answer == "It was"
    assert database.changes == before
    chats.update(chat, at, replace(turn(chats, chat, at), answer="It was Maren.", stopped=StopReason.END))
    assert database.changes > before


def test_an_answer_that_was_cut_is_opened_again(chats: Chats, database: Database) -> None:
    chat = chats.begin(BOOK).id
    at = chats.ask(chat, "Who?")
    chats.update(chat, at, replace(turn(chats, chat, at), answer="It was", stopped=StopReason.CANCELLED))
    assert turn(chats, chat, at).can_be_continued
    assert chats.resume(chat, at).answer == "It was"
    assert turn(chats, chat, at).stopped is None
    after_a_crash = turn(Chats(database), chat, at)
    assert after_a_crash.interrupted
    assert after_a_crash.can_be_continued
    chats.update(chat, at, replace(after_a_crash, answer="It was Maren.", stopped=StopReason.END, interrupted=False))
    assert not turn(Chats(database), chat, at).can_be_continued


def test_names(chats: Chats, database: Database) -> None:
    chat = chats.begin(BOOK).id
    say(chats, chat, "Who kept the very long and winding light of the north head in the year of the storm?", "M.")
    assert chats.of_book(BOOK)[0].title.endswith("…")
    chats.rename(chat, "  The\nlight\u202e ")
    assert chats.get(chat).title == "The light"
    assert Chats(database).of_book(BOOK)[0].title == "The light"
    chats.rename(chat, "")
    assert chats.of_book(BOOK)[0].title.startswith("Who kept")


def test_a_name_is_kept_though_nothing_was_asked(chats: Chats, database: Database) -> None:
    """It was lost at the end of the program."""
    chat = chats.begin(BOOK).id
    chats.rename(chat, "About the light")
    assert chats.of_book(BOOK)[0].title == "About the light"
    again = Chats(database).get(chat)
    assert again is not None
    assert (again.name, again.exchanges) == ("About the light", ())
    say(chats, chat, "Who?", "Maren.")
    assert Chats(database).of_book(BOOK)[0].title == "About the light"
    chats.rename(unnamed := chats.begin(BOOK).id, " ")
    assert Chats(database).get(unnamed) is None


def test_deleting(chats: Chats, database: Database) -> None:
    keep, gone = chats.begin(BOOK).id, chats.begin(BOOK).id
    say(chats, keep, "One?", "1")
    say(chats, gone, "Two?", "2")
    chats.delete(gone)
    assert chats.get(gone) is None
    assert len(database.rows("SELECT id FROM messages")) == 2
    chats.forget_book(BOOK)
    assert chats.get(keep) is None
    assert database.rows("SELECT id FROM messages") == []


def test_only_the_last_used_chats_are_in_memory(database: Database) -> None:
    chats = Chats(database)
    first = chats.begin(BOOK).id
    say(chats, first, "Who?", "Maren.")
    begun = [chats.begin(BOOK).id for _ in range(3 * module.MOST_HELD)]
    at = chats.ask(begun[-1], "Where?")
    chats.update(begun[-1], at, replace(turn(chats, begun[-1], at), answer="On the"))  # and it is not saved yet
    looked_at = chats.begin(BOOK).id
    for number in range(3 * module.MOST_HELD):
        say(chats, chats.begin(BOOK).id, f"Who {number}?", "Maren.")
        assert chats.get(looked_at) is not None, "the empty chat that is looked at is gone"
    assert len(chats._chats) == module.MOST_HELD
    assert shown(chats, first) == [("Who?", "Maren.")]
    assert shown(chats, begun[-1]) == [("Where?", "On the")]
    assert len(chats._chats) == module.MOST_HELD


def test_a_chat_is_called_by_the_version_of_its_first_question_that_is_shown() -> None:
    chats = Chats()
    chat = chats.begin(BOOK).id
    chats.ask(chat, "Who?")
    first = chats.get(chat).exchanges[0].question_id
    chats.ask(chat, "Who, then?", 0)
    assert (chats.get(chat).title, chats.of_book(BOOK)[0].title) == ("Who, then?", "Who, then?")
    chats.show(chat, first)
    assert (chats.get(chat).title, chats.of_book(BOOK)[0].title) == ("Who?", "Who?")


def test_an_answer_that_had_no_word_yet_leaves_the_first_one() -> None:
    """The program ended after the whole book had been asked, and before it said anything."""
    database = Database()
    chats = Chats(database)
    chat = chats.begin("book")
    chats.ask(chat.id, "When?")
    notes = {"first": {"passages": 3, "reading": True}, "passages": [{"text": "In 1911."}]}
    first = replace(chats.get(chat.id).exchanges[0], answer="In 1911.", stopped=StopReason.END, notes=notes)
    chats.update(chat.id, 0, first)
    chats.begin_beside_first(chat.id, 0)
    assert chats.get(chat.id).exchanges[0].answer == ""
    (turn,) = Chats(database).get(chat.id).exchanges
    assert (turn.answer, turn.stopped, turn.notes, turn.is_first) == ("In 1911.", StopReason.END, notes, True)
