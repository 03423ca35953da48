"""A book in parts in the page: it is offered, questions go to parts, and what they said is kept and shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from app.core import chat_run
from app.core.chats import Exchange
from app.core.export import as_markdown
from app.core.forecast import Range, stretch
from app.core.open_book import Stage
from app.core.part_run import PartBegun
from app.core.parts import Mention, PartsChoice, Reach, cut
from app.core.parts_record import PartsRecord
from app.core.question import ALL_PARTS, Ask
from app.core.race import Race, Verified
from app.core.state import AppState
from app.web import live, messages, openai_api
from app.web.contents_panel import ContentsPanel
from app.web.openai_schema import ApiError
from app.web.parts_panel import PartsPanel
from app.web.routes import ChatRoutes
from engine.document import Document
from engine.errors import InputError, OptionError, ResourceError
from engine.events import ReadingProgress, StopReason
from tests import loops
from tests.app.core.test_parts import BOOK, Reader, goose
from tests.app.scripted import engine_status, model_info, wait_for

Make = Callable[..., AppState]
LIMIT = 120
"""Tokens of a window that holds two pages of the book."""


def said(document: Document) -> str:
    if document.title.startswith("Answers"):
        return "Marta sold Jonas a goose at the bridge. Marta sailed to Riga."
    return goose(document) if "Riga" not in document.text else "Marta sailed to Riga in the spring."


def opened(make_state: Make, a_file: Path, engine: Reader | None = None) -> AppState:
    engine = engine or Reader(said, LIMIT)
    engine.now = engine_status(model=model_info(device="cuda"))  # what is new is shown at once
    state = make_state(engine, document=BOOK)
    state.open(state.books.copy_in(a_file))
    wait_for(lambda: state.current.stage in (Stage.CHOOSING, Stage.PARTS))
    return state


@pytest.fixture
def state(make_state: Make, a_file: Path) -> AppState:
    """A state whose book is read in three parts."""
    state = opened(make_state, a_file)
    state.read_in_parts()
    return state


def ask(state: AppState, question: str, **options: Any) -> Exchange:
    list(chat_run.ask(state, Ask(question, **{"whole": True, **options})))
    assert state.chat is not None
    return state.chat.exchanges[-1]


def go_on(state: AppState, **options: Any) -> Exchange:
    list(chat_run.go_on(state, Ask(state.chat.exchanges[0].question, position=0, **options)))
    assert state.chat is not None
    return state.chat.exchanges[0]


def parts_of(exchange: Exchange) -> list[int]:
    return [one["part"] for one in (exchange.notes or {})["parts"]["asked"]]


def test_parts_are_read_for_an_answer_from_passages_only_if_that_is_asked_for(make_state: Make, a_file: Path) -> None:
    engine = Reader(said, LIMIT)
    state = opened(make_state, a_file, engine)
    state.read_in_parts()
    first = ask(state, "List what Marta did.", whole=False)
    assert (first.answer, first.is_first, first.from_parts) == (engine.answer, False, "Read the parts for this")
    assert (engine.opened, state.current.awaited) == ([], ())
    assert ">Read the parts for this</button>" in messages.messages([first])[1]["content"]
    list(chat_run.ask_whole(state, Ask(first.question, position=0)))
    (turn,) = state.chat.exchanges
    assert turn.answer == "Marta sold Jonas a goose at the bridge. Marta sailed to Riga."
    assert len(parts_of(turn)) == 3
    assert (turn.first_answer or {})["text"] == first.answer
    content = messages.messages([turn])[1]["content"]
    numbers = [int(number) for number in re.findall(r'value="0\.(\d+)"', content)]
    assert sorted(numbers) == list(range(len(numbers))), "every citation has its own number"
    assert content.index('<details class="first-answer">') < content.index(turn.answer[:20])


def test_parts_are_offered_with_what_they_take_before_any_of_them_is_read(make_state: Make, a_file: Path) -> None:
    engine = Reader(said, LIMIT)
    state = opened(make_state, a_file, engine)
    assert state.current.stage is Stage.CHOOSING
    measure = engine.measure
    state.show(whole_fit=replace(measure(BOOK), reading_s=60.0))
    view = PartsPanel(state).view()["parts"]
    assert view["count"] == 3
    assert view["said"].startswith("3 parts of up to 2 pages, 25 s to 2 min each the first time; 1 to 5 min for all 3.")
    assert engine.opened == []
    state.show(parts=state.current.parts[:2])
    view = PartsPanel(state).view()["parts"]
    assert view["few"].removeprefix("the parts that it needs, at most ") in view["every"], "three of two were counted"
    state.show(parts=cut(BOOK, measure(BOOK)))
    state.read_in_parts()
    assert (state.current.stage, live.pages_read(state.current)) == (Stage.PARTS, 6)
    assert engine.opened == []


def test_a_book_with_a_page_that_no_part_holds_is_not_offered_in_parts(make_state: Make, a_file: Path) -> None:
    state = opened(make_state, a_file, Reader(said, 40))
    assert PartsPanel(state).view()["parts"]["count"] == 0
    with pytest.raises(OptionError, match="cannot be read in parts"):
        state.read_in_parts()


def test_an_answer_of_all_parts_is_put_together_and_its_claims_have_their_pages(state: AppState) -> None:
    turn = ask(state, "List what Marta did.")
    assert turn.answer == "Marta sold Jonas a goose at the bridge. Marta sailed to Riga."
    assert turn.stopped is StopReason.END
    notes = turn.notes or {}
    assert parts_of(turn) == [1, 2, 3]
    assert [chip["pages"][0]["number"] for chip in notes["chips"]] == [4, 6]
    assert (notes["parts"]["said"], notes["parts"]["now"]) == ("", None)
    assert turn.figures is not None
    assert turn.figures.answer_tokens == len(turn.answer.split()) == len(turn.stages)
    assert json.loads(json.dumps(notes["parts"])) == notes["parts"], "it is kept as JSON"


def test_a_citation_below_a_part_is_its_own(state: AppState) -> None:
    """All citations of an exchange are counted through: of what stands first, of the parts, of the answer."""
    turn = ask(state, "List what Marta did.")
    shown = messages.messages([turn])[1]["content"]
    first = len((turn.notes or {})["passages"])
    assert first
    names = re.findall(r'class="cite [a-z]+" value="0\.(\d+)"', shown)
    assert sorted(map(int, names)) == list(range(first + 4))
    pages = [(messages.card(turn.notes, number) or {})["page"] for number in range(first, first + 4)]
    assert pages == [4, 6, 4, 6]
    assert messages.marks(turn.notes, first)[0][0] == 4
    above, listed = shown.split('<details class="parts">')
    assert f'value="0.{first + 2}"' in above
    assert "<b>Part 2, pages 3 to 4</b>" in listed
    assert "\n\n" not in listed.split("</details>")[0], "an empty line would end it"


def test_what_was_not_asked_is_said_and_can_be_asked(state: AppState) -> None:
    turn = ask(state, "When does the goose first appear?")
    assert parts_of(turn) == [2]
    shown = messages.messages([turn])[1]["content"]
    assert "Parts 1 and 3 were not asked." in shown
    first = len((turn.notes or {})["passages"])
    assert f'“goose” first stands on page 4. <button type="button" class="cite names" value="0.{first}">' in shown
    assert (messages.card(turn.notes, first) or {})["said"] == "These words stand on page 4."
    [(page, start, end)] = messages.marks(turn.notes, first)
    assert (page, BOOK.pages[3].text[start:end]) == (4, "goose")
    assert "Ask the other parts" in shown
    assert "Parts 1 and 3 were not asked." in as_markdown(state.chat, "The Mill")  # type: ignore[arg-type]
    engine = state.engine
    assert isinstance(engine, Reader)
    before = len(engine.opened)
    turn = go_on(state, parts=ALL_PARTS)
    assert sorted(parts_of(turn)) == [1, 2, 3]
    assert [document.pages[0].number for document in engine.opened[before:]] == [1, 5, 1], "and the last pass"
    assert "not asked" not in messages.messages([turn])[1]["content"]


def test_all_parts_are_asked_where_that_is_wanted(state: AppState) -> None:
    assert parts_of(ask(state, "Who bought the goose?", parts=ALL_PARTS)) == [1, 2, 3]


def test_stopped_it_goes_on_with_the_parts_that_are_left(state: AppState) -> None:
    steps = chat_run.ask(state, Ask("List what Marta did.", whole=True))
    for _ in steps:
        asked = parts_of(state.chat.exchanges[0]) if "parts" in (state.chat.exchanges[0].notes or {}) else []
        if asked:
            state.stop_asking()
    turn = state.chat.exchanges[0]
    assert (turn.stopped, parts_of(turn), turn.can_be_continued) == (StopReason.CANCELLED, [1], True)
    assert (turn.notes or {})["parts"]["now"] is None
    turn = go_on(state)
    assert (turn.stopped, parts_of(turn)) == (StopReason.END, [1, 2, 3])
    assert turn.answer.endswith("Marta sailed to Riga.")


def test_a_part_that_fails_leaves_what_the_others_said(state: AppState) -> None:
    engine = state.engine
    assert isinstance(engine, Reader)

    def fails(document: Document) -> str:
        if document.pages[0].number == 3:
            raise ResourceError("The disk is full.", "Make room.")
        return "The mill stood by the river."

    engine.said = fails
    turn = ask(state, "List what Marta did.")
    assert turn.trouble is not None
    assert (parts_of(turn), turn.can_be_continued) == ([1], True)
    assert (turn.answer, turn.figures) == ("", None), "the speed of a part stood under an answer without words"
    engine.said = said
    assert parts_of(go_on(state)) == [1, 2, 3]


def test_while_parts_are_asked_the_page_tells_which(state: AppState) -> None:
    seen: list[str] = []
    stream = live.Live(state)
    for waiting in chat_run.ask(state, Ask("List what Marta did.", whole=True)):
        state.show(waiting=waiting, cited=state.chat.open_exchange)
        writing = stream.view()["writing"]
        seen.append(writing.html if writing else "")
    assert any("Part 1, pages 1 to 2 (1 of 3)" in html for html in seen)
    assert any("<b>Part 1, pages 1 to 2</b>" in html and "Part 2, pages 3 to 4 (2 of 3)" in html for html in seen)


def test_a_book_in_parts_is_opened_in_parts_again_until_it_is_read_otherwise(
    make_state: Make, a_file: Path, state: AppState
) -> None:
    state.open(state.current.book)  # type: ignore[arg-type]
    wait_for(lambda: state.current.stage is Stage.PARTS)
    state.choose_again()
    assert (state.current.stage, state.current.document) == (Stage.CHOOSING, state.current.whole)
    state.choose(1, 2)
    wait_for(lambda: state.current.stage is Stage.READY)
    assert PartsPanel(state).view()["parts"]["some"]
    state.open(state.current.book)  # type: ignore[arg-type]
    wait_for(lambda: state.current.stage is Stage.CHOOSING)


def test_the_time_of_a_part_is_the_one_that_was_told_before(state: AppState) -> None:
    """A busy machine's clock said 5 to 8 minutes for a part of which 1 to 4 had been told."""
    part = state.current.parts[0]
    notes = PartsRecord(BOOK, state.current.parts, PartsChoice(Reach.ALL, (part,), False), a_token=Range(1.0, 2.0))
    notes.take(PartBegun(part, 1, 1))
    notes.take(ReadingProgress(0, part.tokens, 0, 2, 1.0, 9999.0))
    line = notes.view()["now"]["line"]
    assert line == f"reading, 0 % · {stretch(Range(part.tokens, 2 * part.tokens))} left"


def test_of_several_documents_it_is_said_in_which_one_a_name_stands() -> None:
    log = replace(Document.from_pages("Log", ["The Gale.", "Nothing.", "Marta sold a goose."]), sha256="b" * 64)
    both = Document.together([replace(BOOK, sha256="a" * 64), replace(log, unit="section")], sha256="c" * 64)
    at = len(BOOK.pages) + 3
    choice = PartsChoice(Reach.FIRST, (), False, mentions=(Mention("goose", at, "3", ((13, 18),)),))
    (one,) = PartsRecord(both, (), choice).view()["mentions"]
    assert one["said"] == "“goose” first stands in Log, section 3."
    assert one["chip"]["of"] == "b" * 64
    assert one["chip"]["marks"] == [[3, 13, 18]], "its own page, as in every citation"
    alone = PartsChoice(Reach.FIRST, (), False, mentions=(Mention("goose", 3, "3"),))
    (one,) = PartsRecord(replace(log, unit="section"), (), alone).view()["mentions"]
    button = messages._mentions({"mentions": [one]}, 0, 0)
    assert button[0].count("section 3") == 2, "the sentence and its button"


def test_the_contents_are_told_anew_when_as_many_other_pages_are_read(state: AppState) -> None:
    panel, seen = ContentsPanel(state), set()
    for page in (1, 2):
        state.choose_pages({page})
        wait_for(lambda: state.current.stage is Stage.READY)
        seen.add(panel.view()["contents"])
    assert len(seen) == 2


def test_a_race_and_other_programs_are_told_that_the_book_is_read_in_parts(state: AppState, tmp_path: Path) -> None:
    race = Race(state, Verified(tmp_path))
    with pytest.raises(InputError, match=r"A race needs a text that has been read whole\. Choose chapters"):
        race.start("When does the goose first appear?")
    with pytest.raises(ApiError, match="The open book is read in parts, which are not asked from here"):
        loops.run(openai_api._book(state, None, Ask("Who?")))


def test_a_press_reads_the_parts_of_a_book_whose_pages_are_still_to_be_chosen(make_state: Make, a_file: Path) -> None:
    engine = Reader(said, LIMIT)
    state = opened(make_state, a_file, engine)
    first = ask(state, "List what Marta did.", whole=False)
    browser = TestClient(Starlette(routes=ChatRoutes(state).routes()))
    assert state.current.stage is Stage.CHOOSING
    told = browser.post("/asking/whole", json={"message": first.answer_id})
    assert (told.status_code, told.json()) == (200, {"answer": first.answer_id})
    wait_for(lambda: not state.current.asking)
    assert state.current.stage is Stage.PARTS
    turn = state.chat.exchanges[0]
    assert len(parts_of(turn)) == 3
    assert "no answer from passages" in browser.post("/asking/whole", json={"message": first.answer_id}).json()["cause"]
