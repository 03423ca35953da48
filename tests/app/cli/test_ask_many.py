"""The same question of every document of a folder: rows, what goes wrong, and going on."""

from __future__ import annotations

import contextlib
import csv
import multiprocessing
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.cli import ask_many
from app.cli.arguments import parse
from app.core.answer_table import COLUMNS, add_row, read_table, write_table
from app.core.settings import DEMO_MODEL, make_settings
from assets.demo.recipe.questions import NOT_FOUND
from engine.document import Document, Reading
from engine.errors import ContextTooSmall, DocumentError, InputError, OptionError, ResourceError, plain
from tests.app.scripted import ScriptedEngine, engine_status, model_info

ANSWER = "The rent is 1,200 euros a month. Bruno Keller pays it."
QUESTION = "What is the rent?"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "leases"
    (place / "2024").mkdir(parents=True)
    (place / "a.txt").write_text("The rent is 1,200 euros a month, paid by the tenant.", "utf-8")
    (place / "2024" / "b.txt").write_text("=1+1", "utf-8")
    (place / "broken.pdf").write_text("no book", "utf-8")
    (place / ".hidden").write_text("nothing", "utf-8")
    return place


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    scripted = ScriptedEngine(answer=ANSWER, word_seconds=0.0, reading_seconds=0.001)

    def read(path: Path, password: str | None = None, *, comments: bool = True, **_: object) -> Document:
        if path.suffix == ".pdf":
            raise DocumentError(f"“{path.name}” is no book.", "Get it again.")
        return Document.from_pages(path.stem, [*(["Preface."] if comments else []), path.read_text("utf-8")])

    @contextlib.contextmanager
    def loaded(settings: object) -> Iterator[ScriptedEngine]:
        yield scripted

    monkeypatch.setattr(ask_many, "read_document", read)
    monkeypatch.setattr(ask_many, "loaded_engine", loaded)
    return scripted


def asked(*line: object) -> list[dict[str, str]]:
    """The rows after a command line."""
    options = parse(["ask", *map(str, line)])
    assert ask_many.run(options, make_settings()) == 0
    with Path(options.csv).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_each_with_answer_evidence_and_page(folder: Path, engine: ScriptedEngine) -> None:
    rows = asked(folder, QUESTION, "--csv", folder / "out.csv")
    assert [row["file"] for row in rows] == ["2024/b.txt", "a.txt", "broken.pdf"]
    broken, rent = rows[2], rows[1]
    assert (broken["answer"], broken["error"]) == ("", "“broken.pdf” is no book. Get it again.")
    assert (rent["answer"], rent["page"], rent["evidence_level"]) == (ANSWER, "2", "says so")
    assert rent["evidence"] == "The rent is 1,200 euros a month"
    assert rent["not_found_in_document"] == "Bruno; Keller"
    assert (rent["pages_read"], rent["pages"], rent["stopped"], rent["error"]) == ("2", "2", "end", "")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such names")
def test_a_name_with_a_line_end_makes_no_line(
    folder: Path, engine: ScriptedEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a\n3 documents answered.txt").write_text("The rent is 900 euros.", encoding="utf-8")
    (folder / "b\x1b[2J\u202etxt.txt").write_text("The rent is 900 euros.", encoding="utf-8")
    asked(folder, QUESTION, "--csv", folder / "out.csv")
    names = [file for file, _ in read_table(folder / "out.csv")]
    assert "b\\x1b[2J\\u202etxt.txt" in names, "who prints the table prints no commands of a terminal"
    said = "".join(capsys.readouterr())
    assert "a\\n3 documents answered.txt" in said
    assert "\n3 documents answered.txt" not in said


def test_a_long_document_is_read_only_if_its_passages_do_not_answer(
    folder: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "The rent is 1,200 euros a month, paid by the tenant."
    (folder / "a.txt").write_text(f"{said} {'The garden is green. ' * 400}", "utf-8")
    table, told = folder.parent / "out.csv", ("answered_from", "pages_read", "evidence_level")

    def row(question: str, *more: str) -> tuple[str, ...]:
        found = asked(folder / "a.txt", question, "--csv", table, *more)
        return tuple(next(row for row in found if row["question"] == question)[name] for name in told)

    engine.answer = "The rent is 1,200 euros a month."
    assert row("What is the rent?") == ("passages", "0", "says so")
    assert (engine.readings, engine.asked[-1].excerpt is None) == ([], False)
    assert row("How high is the rent?", "--whole") == ("all pages", "2", "says so")
    engine.answer = ANSWER  # with a name that the document lacks
    assert row("Who pays the rent?", "--now") == ("passages", "0", "says so")
    assert row("Who pays this rent?") == ("all pages", "2", "says so")
    assert [one.excerpt is None for one in engine.asked] == [False, True, False, False, True]

    def too_long(*_: object, **__: object) -> object:
        raise ContextTooSmall("It is too long.", "Choose chapters.")

    monkeypatch.setattr(engine, "read", too_long)
    assert row("And who pays it?") == ("passages", "0", "says so")


def test_passages_take_the_place_of_a_small_models_answer(folder: Path, engine: ScriptedEngine) -> None:
    """The demo guesses at the first question, and refuses to answer the second."""
    engine.now = engine_status(model=model_info(path=str(DEMO_MODEL)))
    engine.answer = NOT_FOUND
    (folder / "a.txt").write_text("The rent is 1,200 euros a month.", "utf-8")
    for question, read in (("How high is the rent?", ""), ("Find: rent is 1,200 euros", "2")):
        rows = asked(folder, question, "--csv", folder / "out.csv")
        (rent,) = (row for row in rows if (row["file"], row["question"]) == ("a.txt", question))
        assert rent["answer"].startswith("These passages fit best. The built-in demo does not understand")
        assert (rent["page"], rent["evidence_level"], rent["stopped"]) == ("2", "", "end")
        assert rent["evidence"] == "The rent is 1,200 euros a month."
        assert rent["pages_read"] == read


def test_words_from_a_picture_are_told_from_read_ones(
    folder: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scan's row looked like that of a text that was read."""

    def read(path: Path, *_: object, **__: object) -> Document:
        document = Document.from_pages(path.stem, ["Preface.", path.read_text("utf-8")])
        preface, rent = document.pages
        return replace(document, pages=(preface, replace(rent, picture="recognised")))

    monkeypatch.setattr(ask_many, "read_document", read)
    (row,) = asked(folder / "a.txt", QUESTION, "--csv", folder / "out.csv")
    assert (row["page"], row["pages_recognised"]) == ("2 (recognised from a picture)", "1")
    assert "Note: Recognised from pictures: 1 of 2 pages; may have slips." in "".join(capsys.readouterr())


def test_a_table_of_an_earlier_version_goes_on(folder: Path, engine: ScriptedEngine) -> None:
    table = folder.parent / "out.csv"
    first = asked(folder, QUESTION, "--csv", table)
    for missing in (1, 2):
        with table.open("w", encoding="utf-8-sig", newline="") as file:
            lines = csv.DictWriter(file, COLUMNS[:-missing], extrasaction="ignore")
            lines.writeheader()
            lines.writerows(first)
        again = asked(folder, QUESTION, "--csv", table)
        assert [row["answer"] for row in again] == [row["answer"] for row in first]
    assert len(engine.asked) == 2


def test_what_is_said_of_a_book_that_is_too_long_can_be_done(
    folder: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It advised --chapters, --pages and --parts, which the same command refuses."""
    read = engine.read

    def fitting(reading: Reading, **how: Any) -> object:
        if not reading.fit:
            raise ContextTooSmall("It is too long.", "Choose chapters (--chapters), or ask it in parts (--parts).")
        return read(reading, **how)

    monkeypatch.setattr(engine, "read", fitting)
    (row,) = asked(folder / "a.txt", QUESTION, "--csv", folder / "out.csv")
    assert row["error"].endswith("without --csv; or read what fits with --fit.")
    assert asked(folder / "a.txt", QUESTION, "--csv", folder / "out.csv", "--fit")[0]["answer"] == ANSWER


def test_the_same_command_goes_on_and_asks_again_only_what_went_wrong_or_changed(
    folder: Path, engine: ScriptedEngine
) -> None:
    table = folder.parent / "out.csv"
    first = asked(folder, QUESTION, "--csv", table)
    assert len(engine.asked) == 2
    assert asked(folder, QUESTION, "--csv", table) == first
    assert len(engine.asked) == 2, "only the broken one was tried again"
    (folder / "a.txt").write_text("The rent is 900 euros.", "utf-8")
    asked(folder, QUESTION, "--csv", table)
    assert len(engine.asked) == 3
    rows = asked(folder, "And who pays?", "--csv", table)
    assert [row["question"] for row in rows] == [QUESTION] * 3 + ["And who pays?"] * 3


def test_comments_may_be_left_out(folder: Path, engine: ScriptedEngine) -> None:
    rows = asked(folder, QUESTION, "--csv", folder / "out.csv", "--no-comments")
    assert [row["pages"] for row in rows] == ["1", "1", ""]


def test_a_value_out_of_range_is_told_before_anything_is_read(folder: Path, engine: ScriptedEngine) -> None:
    options = parse(["ask", str(folder), QUESTION, "--csv", str(folder / "out.csv"), "--temperature", "9"])
    with pytest.raises(OptionError, match="temperature"):
        ask_many.run(options, make_settings())
    assert not (folder / "out.csv").exists()


def test_a_run_that_is_stopped_keeps_what_it_has(
    folder: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = folder.parent / "out.csv"
    ask = engine.ask

    def stopped(question: object, **how: object) -> object:
        if engine.asked:
            raise KeyboardInterrupt
        return ask(question, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "ask", stopped)
    with pytest.raises(KeyboardInterrupt):
        asked(folder, QUESTION, "--csv", table)
    assert [file for file, _ in read_table(table)] == ["2024/b.txt"]
    monkeypatch.setattr(engine, "ask", ask)
    assert len(asked(folder, QUESTION, "--csv", table)) == 3
    assert len(engine.asked) == 2


def test_no_cell_is_a_formula_and_every_text_comes_back(tmp_path: Path) -> None:
    table = tmp_path / "out.csv"
    answer = "=HYPERLINK(1)\n“é”; =1+1;@a;\n\"=cmd\";'b\n- one\n-1;it's;''=2"
    row = dict.fromkeys(COLUMNS, "") | {"file": "-a.txt", "question": "'=", "answer": answer}
    write_table(table, {("-a.txt", "'="): row})
    assert ",'=HYPERLINK" in table.read_text("utf-8-sig") or "\"'=HYPERLINK" in table.read_text("utf-8-sig")
    assert read_table(table)["-a.txt", "'="]["answer"] == row["answer"]
    for cell in re.split(r"[;\n]", table.read_text("utf-8-sig")):  # as the German Excel reads it
        assert not re.match(r"[ \"]*(?:[=@]|[+-](?! ))", cell), cell


@pytest.mark.parametrize(
    "text",
    [
        *(
            " =1+1",
            "   @a",
            "＝1+1",
            "a;＠b",
            " '=1",
            "' =1",
            "  - one",
            "\t=1",
            "’=1",
            "\u202e=1",
            "\0\xa0\u200b\ufeff=1",
        ),
        *(
            "\0\xa0\u200b\ufeff=1",
            "\u2028=1",
            "a;\ufeff=1",
            "a;\xa0\u200b@b",
            "a\n\xad=1",
            "\x1b]0;=1\x07",
            "a;\x9b=1",
            "\r=1",
        ),
    ],
)
def test_spaces_and_wide_signs_hide_no_formula(text: str, tmp_path: Path) -> None:
    table = tmp_path / "out.csv"
    write_table(table, {("a", "q"): dict.fromkeys(COLUMNS, "") | {"file": "a", "question": "q", "answer": text}})
    shown = plain(text.replace("\r", "\n"))
    assert read_table(table)["a", "q"]["answer"] == shown
    with table.open(encoding="utf-8-sig", newline="") as lines:
        (row,) = csv.DictReader(lines)
    assert plain(row["answer"]) == row["answer"]
    for cell in re.split("[;\n]", row["answer"]):
        assert not re.match(r"[\s\xad\u200b\ufeff\ufffd]*[=@+\-＝＠＋－]", cell), cell


def test_a_table_that_a_spreadsheet_has_open_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise PermissionError(13, "Access is denied", str(source))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(ResourceError, match="Close it in other programs"):
        write_table(tmp_path / "out.csv", {})
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_done_is_said_before_any_work(folder: Path) -> None:
    for line, error in (
        ([folder, "Q?"], OptionError),
        ([folder, "Q?", "--csv", folder], OptionError),
        ([folder, "Q?", "--csv", folder / "no" / "out.csv"], OptionError),
        ([folder, "Q?", "--csv", folder / "out.csv", "--json"], OptionError),
        ([folder / "nowhere", "Q?", "--csv", folder / "out.csv"], InputError),
        ([folder, "Q?", "--csv", folder / "a.txt"], InputError),
    ):
        with pytest.raises(error):
            ask_many.run(parse(["ask", *map(str, line)]), make_settings())
    empty = folder / "empty"
    empty.mkdir()
    with pytest.raises(InputError, match="no document"):
        ask_many.run(parse(["ask", str(empty), "Q?", "--csv", str(folder / "out.csv")]), make_settings())


def test_two_commands_that_write_to_one_table_lose_no_row(tmp_path: Path) -> None:
    """Each wrote its own copy of the table, without the rows of the other."""
    table = tmp_path / "out.csv"

    def write(command: int) -> None:
        for number in range(15):
            add_row(table, dict.fromkeys(COLUMNS, "") | {"file": f"{command}-{number}.txt", "question": QUESTION})

    commands = [multiprocessing.Process(target=write, args=(command,)) for command in range(3)]
    for one in commands:
        one.start()
    for one in commands:
        one.join()
    assert len(read_table(table)) == 45
    assert [path.name for path in tmp_path.iterdir()] == ["out.csv"]


def test_what_another_command_has_asked_meanwhile_is_kept_and_not_asked(
    folder: Path, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = folder.parent / "out.csv"
    asked(folder, QUESTION, "--csv", table)
    others = read_table(table)
    table.unlink()
    engine.asked.clear()
    ask = engine.ask

    def meanwhile(*how: Any, **options: Any) -> Any:
        add_row(table, others["a.txt", QUESTION])
        add_row(table, others["a.txt", QUESTION] | {"file": "elsewhere.txt"})
        return ask(*how, **options)

    monkeypatch.setattr(engine, "ask", meanwhile)
    rows = asked(folder, QUESTION, "--csv", table)
    assert {row["file"] for row in rows} == {"2024/b.txt", "a.txt", "broken.pdf", "elsewhere.txt"}
    assert len(engine.asked) == 1
