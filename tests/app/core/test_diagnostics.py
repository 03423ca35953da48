"""Diagnostics tell of the fault and of nothing that somebody has read, written or is called."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from app.cli import doctor
from app.cli.main import logging_to, main
from app.core import diagnostics
from app.core import diagnostics as machine
from engine import ModelInfo, Status
from engine.version import VERSION

SECRET = "Call me Ishmael"
MODEL = ModelInfo("demo/target", "x", 5_000_000, "llama", 131_072, "float32", "cpu", 4096, 12_288, None, None)


def test_the_log_is_shown_without_words_of_a_document(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "pypdf")  # a PDF that was read in this process silences it
    with logging_to(tmp_path / "logs"):
        logging.getLogger("app.core.state").info("a book was opened: %s", SECRET)
        logging.getLogger("pypdf").warning("odd object: %s", SECRET)
        try:
            try:
                raise ValueError(f"cannot read {SECRET}\n{SECRET} again")
            except ValueError as error:
                raise RuntimeError(SECRET) from error
        except RuntimeError:
            logging.getLogger("engine.worker").exception("a request failed")
    text = diagnostics.report(tmp_path, ["System     x"])
    assert SECRET not in text
    assert "a book was opened" in text
    assert "engine.worker: a request failed" in text
    assert "pypdf: (left out)" in text
    assert "ValueError\n" in text
    assert "RuntimeError" in text
    assert "test_diagnostics.py:" in text


def test_neither_keys_nor_names_of_people_are_shown() -> None:
    home = Path("/home/jane.doe")
    said = "at /home/jane.doe/books and /home/jane.doe with sk-trifold-abcdefghijkl hf_ABCDEFGHIJKL /?token=12.ab.cd"
    told = diagnostics.anonymous(said, home)
    assert told == "at ~/books and ~ with sk-(left out) hf_(left out) /?token=(left out)"
    assert diagnostics.anonymous("/home/jane.doe2/x", home) == "/home/jane.doe2/x"


def test_the_facts_name_machine_and_model(tmp_path: Path) -> None:
    facts = diagnostics.facts_of(tmp_path, Status("idle", "Ready for a book.", model=MODEL))
    text = "\n".join(facts)
    assert facts[0] == f"Trifold    {VERSION}"
    for word in ("Processor", "Memory", "torch", "demo/target", "131,072"):
        assert word in text


def test_a_log_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    assert "(empty)" in diagnostics.report(tmp_path, [])


def test_the_report_of_the_doctor(
    data_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = doctor.Findings(machine.look_around(data_folder), {"torch": "2"}, None, None, None, None, ())
    monkeypatch.setattr(doctor, "examine", lambda settings: found)  # asking torch takes seconds and is tested elsewhere
    monkeypatch.setenv("HOME", str(data_folder))
    assert main(["doctor", "--report"]) == 0
    said = capsys.readouterr().out
    assert "Log:" in said
    assert "Target " in said
    assert str(data_folder) not in said
