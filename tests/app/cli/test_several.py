"""Several files on one command line: which words are files, and what is said of each document."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import ask
from app.cli.arguments import parse
from app.cli.ask import files_and_question
from app.cli.ask_many import documents
from app.cli.read import lines_of, open_books, report_of, text_of, unpacked
from app.core.abilities import abilities
from app.core.question import Ask
from app.core.settings import Settings
from app.readers.recognition import Recognition
from engine.document import Document
from engine.errors import InputError, OptionError
from tests.app.scripted import ScriptedEngine

BOTH = Document.together(
    [Document.from_pages("Lease 2024", ["One.", "Two."]), Document.from_text("Letter", "Dear tenant.")]
)


def test_the_files_come_first_and_the_question_last(tmp_path: Path) -> None:
    first, second = (str(tmp_path / name) for name in ("a.txt", "b.txt"))
    Path(second).touch()
    assert files_and_question(first, [second, "Where do they differ?"]) == ([first, second], "Where do they differ?")
    assert files_and_question(first, ["Where", "is", "it?"]) == ([first], "Where is it?")
    assert files_and_question(first, [second]) == ([first, second], "")
    assert files_and_question(first, ["What is in index.html?"]) == ([first], "What is in index.html?")
    assert files_and_question(first, ["x" * 10_000]) == ([first], "x" * 10_000)
    with pytest.raises(InputError, match="no file “lease"):
        files_and_question(first, [second, "lease.pdf", "Where?"])


def test_every_document_has_its_title_and_its_own_page_numbers() -> None:
    report = report_of(BOTH, 40)
    assert [(part["title"], part["pages"]) for part in report["documents"]] == [("Lease 2024", 2), ("Letter", 1)]
    assert [(page["document"], page["page"]) for page in report["page_texts"]] == [
        ("Lease 2024", 1),
        ("Lease 2024", 2),
        ("Letter", 1),
    ]
    assert lines_of(report)[2:4] == ["- Lease 2024: 2 pages", "- Letter: 1 section"]
    assert text_of(BOTH).splitlines()[::2] == [
        "=== Lease 2024, page 1 ===",
        "=== Lease 2024, page 2 ===",
        "=== Letter, 1 ===",
    ]
    assert "documents" not in report_of(Document.from_text("Letter", "Dear tenant."), 4)


def test_a_zip_archive_is_its_documents(tmp_path: Path) -> None:
    """It was read as one book, whose pages had no numbers of their own and whose scans were not recognised."""
    entries = {
        "deeds/Lease.txt": b"The rent is 480.",
        "b/Lease.txt": b"It was 460.",
        "bad.docx": b"PK\x03\x04",
        "a.mp4": b"",
    }
    archive = tmp_path / "papers.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name, content in entries.items():
            file.writestr(name, content)
    document = open_books([str(archive)])
    assert document.title == "papers"
    assert [(one.title, one.unit) for one in document.members] == [("Lease", "section"), ("Lease (2)", "section")]
    assert [page.text for page in document.pages] == ["The rent is 480.", "It was 460."]
    assert [warning[:10] for warning in document.warnings] == ["Files of o", "“bad.docx”"]
    assert len(open_books([str(archive), __file__]).members) == 3
    with pytest.raises(OptionError, match="several"):
        ask.opened_and_asked(parse(["ask", str(archive), "Why?", "--pages", "1-2"]), Settings(tmp_path, "model", None))
    told: list[str] = []
    with unpacked(archive, told) as parts:
        found = documents(archive, tmp_path / "table.csv", parts)
        assert [*found] == ["Lease.txt", "Lease.txt (2)", "bad.docx"]
        assert found["Lease.txt (2)"].read_bytes() == b"It was 460."


def test_pages_are_chosen_of_one_document_alone(tmp_path: Path) -> None:
    options = parse(["ask", __file__, __file__, "Why?", "--pages", "1-2"])
    with pytest.raises(OptionError, match="several"):
        ask.opened_and_asked(options, Settings(tmp_path, "model", None))


@pytest.mark.parametrize("option", [[], ["--no-snapshot"]])
def test_nothing_that_is_recognised_is_kept_where_nothing_of_the_reading_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: list[str]
) -> None:
    kept: list[Path | None] = []
    monkeypatch.setattr(ask, "open_books", lambda *_, books, **__: kept.append(books) or BOTH)
    settings = Settings(tmp_path, "model", None)
    ask.opened_and_asked(parse(["ask", "scan.pdf", "Why?", *option]), settings)
    assert kept == [None if option else settings.books]


@pytest.mark.parametrize("wanted", [True, False])
def test_pages_with_garbled_text_are_recognised_where_that_is_asked(
    wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the page of the browser could have them read from their pictures."""
    line = ["read", "a.pdf", *(["--recognise"] if wanted else [])]
    seen: list[bool] = []

    def opened(path: Path, password: str | None, *, recognition: Recognition, **_: bool) -> Document:
        seen.append(recognition.doubtful)
        return BOTH

    monkeypatch.setattr("app.readers.read_document", opened)
    options = parse(line)
    open_books(options.files, options.password, doubtful=options.recognise)
    assert seen == [wanted]


def test_a_comparing_question_is_put_to_each_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leases = Document.together(
        [
            Document.from_pages("Harbour Street", ["The rent is 890 euros a month."]),
            Document.from_pages("Mill | Lane", ["The rent is 980 euros a month."]),
        ]
    )
    question = Ask("Which lease has the lower rent?")
    first = ask.FirstPassages(leases, leases, question, abilities(str(tmp_path)), as_json=False)
    table = first.side_by_side
    assert table is not None
    ask.ask_each(ScriptedEngine("The rent is 890 euros a month."), table, question, as_json=False)  # type: ignore[arg-type]
    written, said = capsys.readouterr()
    assert written.splitlines() == [
        "Harbour Street:",
        "  The rent is 890 euros a month.",
        "Mill | Lane:",
        "  The rent is 890 euros a month.",
    ]
    assert "Harbour Street" in said
    waits = replace(question, whole=True)
    assert ask.FirstPassages(leases, leases, waits, abilities(str(tmp_path)), as_json=False).side_by_side is None
