"""The edge: exit statuses, and what a person sees instead of a traceback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.cli import main as edge
from app.cli import read
from app.cli.main import main, prepare_libraries
from engine.errors import DocumentError


def run_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def fail(*_: object) -> int:
        raise error

    monkeypatch.setattr(read, "run", fail)
    return main(["read", "book.txt"])


def test_error_for_people_is_one_line_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(monkeypatch, DocumentError("It is torn.", "Get another.")) == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "It is torn. Get another.\n")


def test_fault_of_the_program_names_the_log_with_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], data_folder: Path
) -> None:
    assert run_with(monkeypatch, ValueError("odd")) == 1
    said = capsys.readouterr().err
    log = data_folder / "logs" / edge.LOG_NAME
    assert "ValueError: odd" in said
    assert str(log) in said
    assert "Traceback" not in said
    assert "Traceback" in log.read_text(encoding="utf-8")


def test_ctrl_c_is_quiet_and_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_with(monkeypatch, KeyboardInterrupt()) == 130
    assert capsys.readouterr().err.strip() == ""


def test_missing_package_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(monkeypatch, ModuleNotFoundError("No module", name="gradio")) == 2
    assert "gradio" in (said := capsys.readouterr().err)
    assert "--repair" in said


def test_log_that_cannot_be_written_keeps_nobody_from_working(
    monkeypatch: pytest.MonkeyPatch, data_folder: Path
) -> None:
    (data_folder / "logs").write_text("a file where the folder should be", encoding="utf-8")
    assert run_with(monkeypatch, DocumentError("x")) == 2


def test_value_out_of_range_is_refused_before_any_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ask", "book.txt", "Who?", "--context", "3"]) == 2
    assert "at least 64 tokens" in capsys.readouterr().err


def test_the_network_is_off_in_the_program_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", {"PATH": ""})
        prepare_libraries()
        assert os.environ["HF_HUB_OFFLINE"] == "1"
        assert os.environ["HF_HUB_DISABLE_TELEMETRY"] == "1"
        assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"


@pytest.mark.parametrize("buffering", [["-u"], []])
def test_reader_that_goes_away_is_no_fault(buffering: list[str], checkout: Path) -> None:
    """As in ``python launch.py --help | head -0``."""
    code = "import sys; from app.cli.main import main; sys.exit(main(['--help']))"
    process = subprocess.Popen(
        [sys.executable, *buffering, "-c", code], cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()


def test_a_file_gets_utf_8_on_windows_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program installed by pip wrote in the code page, and ended at the first letter that it lacks."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="cp1252"))
    assert main(["--help"]) == 0
    sys.stdout.write("Ω → 中")
    sys.stdout.flush()
    assert written.getvalue().decode("utf-8").endswith("Ω → 中")
