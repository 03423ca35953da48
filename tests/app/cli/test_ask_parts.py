"""``ask --parts`` and ``--chapters``: what is printed, and what is refused before a model is loaded."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli import ask, ask_parts
from app.cli.main import main
from app.core.abilities import Abilities, abilities
from engine.document import Document
from tests.app.scripted import ScriptedEngine

FILLER = "The day was long and the road was dry. " * 4
BEGINNINGS = ["The mill stood by the river.", "Marta sold Jonas a goose at the bridge.", "The goose sailed to Riga."]
PAGES = [f"{beginning} {FILLER}" for beginning in BEGINNINGS]
ANSWER = "Marta sold Jonas a goose at the bridge."


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    scripted = ScriptedEngine(answer=ANSWER, word_seconds=0.0, reading_seconds=0.001, limit=75)

    @contextlib.contextmanager
    def loaded(settings: object) -> Iterator[ScriptedEngine]:
        yield scripted

    for module in (ask, ask_parts):
        monkeypatch.setattr(module, "loaded_engine", loaded)
    monkeypatch.setattr(ask, "abilities", lambda _: Abilities())
    document = replace(Document.from_pages("The Mill", PAGES), warnings=("Page 4 could not be read.",))
    monkeypatch.setattr(ask, "open_books", lambda *_, **__: document)
    return scripted


def test_the_answer_with_its_pages_and_what_was_not_asked(
    engine: ScriptedEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", "mill.pdf", "When does the goose first appear?", "--parts", "--model", "demo"]) == 0
    printed, told = capfd.readouterr()
    assert printed == f"{ANSWER}\n"
    assert "Note: Page 4 could not be read.\n" in told
    assert "It is read in 3 parts; up to 2 asked." in told
    assert "Part 2, page 2: Marta sold Jonas a goose at the bridge." in told
    assert "[p. 2]" in told
    place, begun = told.index("“goose” first stands on page 2."), told.index("It is read in 3 parts")
    assert place < begun, "search knows it before any part is read"
    assert "Note: Parts 1 and 3 were not asked. Part 1 does not name “goose”." in told
    assert len(engine.readings) == 1


def test_one_object_with_the_parts(engine: ScriptedEngine, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "mill.pdf", "Who sold a goose?", "--parts", "2", "--json", "--model", "demo"]) == 0
    report: dict[str, Any] = json.loads(capfd.readouterr().out)
    assert (report["answer"], report["joined"]) == (ANSWER, False)
    assert [one["pages"] for one in report["parts"]] == [[1, 1], [2, 2], [3, 3]]
    assert [(one["part"], one["level"], one["source"]) for one in report["answers"]] == [
        (2, "says so", "read"),
        (3, "not found", "read"),
    ]
    assert (report["not_asked"], report["said"]) == ([1], "Part 1 was not asked.")
    assert [page["number"] for page in report["evidence"][0]["pages"]] == [2]


def test_the_demo_says_that_passages_are_the_answer_before_a_model_is_loaded(
    engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Asked of a lease for its deposit, the demo said "The book does not say that." about what stands there."""
    monkeypatch.setattr(ask, "abilities", abilities)
    for options in ([], ["--parts"]):
        assert main(["ask", "mill.pdf", "Who bought the goose from Marta?", "--model", "demo", *options]) == 0
        printed = capfd.readouterr().out
        assert printed.startswith("[p. 2] Marta sold Jonas a goose at the bridge.")
        assert "These passages fit best. The built-in demo does not understand" in printed
    assert main(["ask", "mill.pdf", "Who bought the goose from Marta?", "--model", "demo", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["by_passages"] is True
    assert [page["number"] for one in report["passages"] for page in one["pages"]][:1] == [2]
    assert main(["ask", "mill.pdf", "Why do whales sing?", "--model", "demo"]) == 0
    assert capfd.readouterr().out.startswith("No passage has a word of this question.")
    assert main(["ask", "mill.pdf", "Where is Riga?", "--model", "demo", "--pages", "1-2"]) == 0
    assert "Not in pages 1 to 2, but elsewhere in the document: Riga (page 3)." in capfd.readouterr().err
    assert engine.readings == []


@pytest.mark.parametrize("options", [[], ["--now"]])
def test_what_the_chosen_pages_lack_may_stand_elsewhere_in_the_book(
    engine: ScriptedEngine, capfd: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """The terminal said "Not found in the book" of what stands on a page that was not chosen."""
    engine.limit, engine.answer = 10_000, "Marta sold Jonas a goose at the bridge. She sailed to Riga in 1871."
    line = ["ask", "mill.pdf", "Who sold a goose?", "--pages", "1-2", "--model", "demo", *options]
    assert main(line) == 0
    said = "Not in pages 1 to 2, but elsewhere in the document: Riga (page 3). Not found in the document: 1871.\n"
    assert said in capfd.readouterr().err
    assert main([*line, "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["not_found"], report["elsewhere"]) == (["1871"], {"Riga": "page 3"})


def test_a_model_is_shown_with_the_passages_that_fit_its_question(
    engine: ScriptedEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    engine.limit = 10_000
    assert main(["ask", "mill.pdf", "Who sold a goose?", "--model", "demo"]) == 0
    printed, told = capfd.readouterr()
    assert printed == f"{ANSWER}\n"
    assert (
        told.index("2 passages that fit your question best:") < told.index("[p. 2] Marta sold") < told.index("Reading")
    )


def test_passages_alone_are_asked_now(engine: ScriptedEngine, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["ask", "mill.pdf", "Who sold a goose?", "--now", "--model", "demo"]) == 0
    printed, told = capfd.readouterr()
    assert printed == f"{ANSWER}\n"
    assert re.search(r"From \d passages\. Nothing else has been read\.", told)
    assert engine.readings == []
    assert engine.asked[0].excerpt is not None
    assert "[page 2]\nMarta sold" in engine.asked[0].excerpt.text
    assert main(["ask", "mill.pdf", "Who sold a goose?", "--now", "--json", "--model", "demo"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert (report["answer"], report["now"]) == (ANSWER, True)
    assert report["evidence"][0]["pages"][0]["number"] == 2


def test_a_book_that_fits_is_read_whole(engine: ScriptedEngine, capfd: pytest.CaptureFixture[str]) -> None:
    engine.limit = 10_000
    assert main(["ask", "mill.pdf", "Who sold a goose?", "--parts", "--model", "demo"]) == 0
    assert "the whole document fits" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--parts", "none"], "neither all nor a number of parts"),
        (["--parts", "0"], "neither all nor a number of parts"),
        (["--parts", "--fit"], "--parts and --fit cannot be combined."),
        (["--parts", "--csv", "out.csv"], "--csv asks whole documents"),
        (["--chapters", "1", "--csv", "out.csv"], "--csv asks whole documents"),
        (["--chapters", "9"], "This document names no chapters"),
        (["--chapters", "9", "--pages", "1-2"], "--pages and --chapters cannot be combined."),
    ],
)
def test_what_is_refused(options: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    book = tmp_path / "mill.txt"
    book.write_text("The mill stood by the river.", "utf-8")
    assert main(["ask", str(book), "Who?", "--model", "demo", *options]) == 2
    assert said in capfd.readouterr().err
