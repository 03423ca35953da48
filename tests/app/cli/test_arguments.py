"""What a command line means, and how a wrong one is refused."""

from __future__ import annotations

import dataclasses

import pytest

from app.cli.arguments import COMMANDS, HelpAsked, engine_options, is_complete, parse
from app.cli.develop import run_bench
from app.core import settings
from engine.bench.rows import ROWS
from engine.config import EngineConfig, SamplingParams
from engine.errors import OptionError
from engine.version import VERSION


def test_no_command_is_the_app() -> None:
    options = parse([])
    assert options.command == "app"
    assert (options.port, options.no_browser) == (7860, False)
    assert parse(["--no-browser", "--port", "8000"]).port == 8000
    assert parse(["app", "--no-browser"]).no_browser


def test_ask_has_the_defaults_of_the_engine() -> None:
    options = parse(["ask", "book.pdf", "Who", "kept", "the", "light?"])
    assert options.question == ["Who", "kept", "the", "light?"]
    assert options.mode == "hierarchical"
    usual = SamplingParams()
    for field in dataclasses.fields(SamplingParams):
        assert getattr(options, field.name) == getattr(usual, field.name)
    assert engine_options(options) == {}


def test_every_setting_of_the_engine_can_be_named() -> None:
    line = ["ask", "book.pdf", "Who?"]
    named = {}
    for field in dataclasses.fields(EngineConfig):
        if field.name not in ("model", "draft", "context"):
            named[field.name] = 7 if field.default is None else field.default
            line += ["--" + field.name.replace("_", "-"), str(named[field.name])]
    assert engine_options(parse(line)) == named


def test_names_from_the_paper() -> None:
    options = parse(["ask", "b", "q", "--gamma1", "3", "--gamma2", "9", "--budget", "512"])
    assert engine_options(options) == {"num_draft_tokens": 3, "num_pending_tokens": 9, "retrieval_budget": 512}


@pytest.mark.parametrize(("text", "pages"), [("10-80", (10, 80)), ("7", (7, 7))])
def test_page_range(text: str, pages: tuple[int, int]) -> None:
    assert parse(["ask", "b", "q", "--pages", text]).pages == pages


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["aks"], "Did you mean 'ask'?"),
        (["doktor"], "Did you mean 'doctor'?"),
        (["zzz"], "See: python launch.py --help"),
        (["ask", "b", "q", "--max-token", "3"], "Did you mean '--max-tokens'?"),
        (["ask", "b", "q", "--mode", "fast"], "hierarchical"),
        (["ask", "b", "q", "--pages", "x-9"], "not a range such as 10-80"),
        (["ask", "b", "q", "--temperature", "warm"], "warm"),
        (["ask", "b"], "QUESTION is missing. See: python launch.py ask --help"),
        (["ask"], "FILE and QUESTION are missing."),
        (["read", "b", "--pages", "1"], "See: python launch.py read --help"),
        (["--port", "70000"], "between 1 and 65535"),
        (["read"], "python launch.py read --help"),
        (["read", "b", "--kv", "8bit"], "There is no option '--kv'."),
        (["doctor", "", ""], "There is no option ''."),
        (["doctor", " "], "There is no option ''."),
    ],
)
def test_wrong_line_names_what_is_right(line: list[str], words: str) -> None:
    with pytest.raises(OptionError) as caught:
        parse(line)
    assert words in str(caught.value)
    assert not is_complete(line)


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "bench"])
def test_every_command_has_help(command: str) -> None:
    with pytest.raises(HelpAsked) as caught:
        parse([command, "--help"])
    assert str(caught.value).startswith("usage: python launch.py")
    with pytest.raises(HelpAsked, match="bench"):
        parse(["--help"])


def test_the_version_is_said_before_anything_is_installed() -> None:
    with pytest.raises(HelpAsked) as caught:
        parse(["--version"])
    assert str(caught.value) == f"Trifold {VERSION}\n"
    assert not is_complete(["--version"])


def test_read_offers_no_option_that_changes_nothing() -> None:
    settings_of_the_engine = {field.name for field in dataclasses.fields(EngineConfig)}
    assert settings_of_the_engine & vars(parse(["read", "book.pdf"])).keys() == {"model"}


def test_help_explains_every_setting_of_the_engine() -> None:
    with pytest.raises(HelpAsked) as caught:
        parse(["ask", "--help"])
    assert "`" not in str(caught.value), "marks of a docstring, and names that only its code knows"
    lines = str(caught.value).splitlines()
    for index, line in enumerate(lines):
        if line.startswith("  --"):  # the explanation stands on the same line or on the next
            assert len(line.split("  ")) > 2 or lines[index + 1].startswith(" " * 20), line


def test_test_and_bench_pass_on_what_they_do_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(["test", "tests/app", "-k", "name", "-x"]).rest == ["tests/app", "-k", "name", "-x"]
    bench = parse(["bench", "--context", "512", "--model", "/m"])
    assert bench.rest == ["--context", "512", "--model", "/m"]
    assert (bench.model, bench.draft) == ("/m", None)
    pair = parse(["bench", "--pair", "--tokens", "8"])
    assert (pair.model, pair.draft) == ("reader", "reader-draft")
    assert parse(["bench", "--pair", "--draft", "none"]).draft == "none"
    for other in (["--real"], ["--model", "reader"]):
        with pytest.raises(OptionError, match="brings its own"):
            parse(["bench", "--pair", *other])
    asked = parse(["bench", "--help"])
    assert asked.rest == ["--help"]
    with pytest.raises(SystemExit):
        run_bench(asked, settings.make_settings())
    said = capsys.readouterr().out
    assert said.startswith(f"usage: {settings.COMMAND} bench ")
    assert {f"{row}," for row in ROWS[:-1]} <= set(said.split()), "no name of a row is cut at a line's end"
