"""Words of strangers in the terminal: none of them speaks to it."""

from __future__ import annotations

import json

import pytest

from app.launcher import console
from engine.errors import ModelError, on_one_line, plain

_HOSTILE = "\x1b[2J\x1b]0;owned\x07 All is\r\nwell \x9b31m\u202eelif\u2066\x7f \t."


def test_an_error_is_one_line_whatever_a_file_says_in_it() -> None:
    """An architecture's name in a GGUF file cleared the screen, and a converter's error took several lines."""
    error = ModelError(f"It holds {_HOSTILE}", "Line 1\nline 2")
    for said in (error.cause, error.remedy, str(error)):
        assert "\n" not in said
        assert plain(said) == said
    assert error.remedy == "Line 1 line 2"
    assert error.cause == "It holds \ufffd[2J\ufffd]0;owned\ufffd All is well \ufffd31m\ufffdelif\ufffd\ufffd ."


def test_ordinary_words_stay_as_they_are() -> None:
    for words in (
        "Tom\u2019s na\u00efve \u4e2d\u6587 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \U0001f642",
        "a\tb\nc",
    ):
        assert plain(words) == words
    assert on_one_line("a\tb\n\nc ") == "a b c"


def test_what_is_said_and_written_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    console.say(_HOSTILE)
    console.write(_HOSTILE)
    with console.ProgressLine(f"Reading {_HOSTILE}") as line:
        line.done(_HOSTILE)
    out, err = capsys.readouterr()
    assert plain(out) == out
    assert plain(err) == err
    assert "All is" in out
    assert len(err.splitlines()) == 4  # two of the sentence, and one for each state of the line


def test_json_is_plain_and_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    console.write_json({"answer": _HOSTILE}, indent=1)
    out = capsys.readouterr().out
    assert plain(out) == out
    assert json.loads(out) == {"answer": _HOSTILE}
