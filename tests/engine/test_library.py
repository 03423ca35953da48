"""The engine as a library: the examples of its page, its public names, and its name where it is installed."""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import logging

import engine
from engine.config import options_of
from tests.house import ROOT

PAGE = ROOT / "engine" / "README.md"
MOST_LINES = 150
TEXT = "Maren Holt kept the north light, and Tobias kept the south light. " * 40


def examples() -> list[str]:
    """The blocks of Python of the page, in their order."""
    blocks = re.findall(r"(?:^ {4}.*\n|^\n(?= {4}))+", PAGE.read_text(encoding="utf-8"), re.M)
    return [textwrap.dedent(block) for block in blocks if block.lstrip().startswith("from engine import")]


def test_the_examples_of_the_page_run_and_print_nothing_else(
    tiny: Callable[..., str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "".join(examples())
    for name, folder in (("target", tiny("llama", spread=0.1)), ("draft", tiny("llama", seed=1, layers=1, width=32))):
        assert f'"assets/demo/{name}"' in code
        code = code.replace(f"assets/demo/{name}", folder)
    # As where nobody has set HF_HUB_DISABLE_PROGRESS_BARS.
    monkeypatch.setattr(sys.modules["huggingface_hub.utils.tqdm"], "HF_HUB_DISABLE_PROGRESS_BARS", None)
    monkeypatch.setattr(logging, "_tqdm_active", True)
    capsys.readouterr()
    exec(compile(code, str(PAGE), "exec"), {"text": TEXT})
    said = capsys.readouterr()
    assert len(said.out) > 20, "both answers are printed"
    assert said.err == ""
    assert logging.is_progress_bar_enabled(), "what else the program loads shows its bars as before"


def test_the_page_can_be_read_in_one_go() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    assert len(examples()) == 2


def public() -> dict[str, object]:
    return {name: getattr(engine, name) for name in engine.__all__}


def test_every_event_and_error_is_public_and_documented() -> None:
    names = public()
    assert {event.__name__ for event in typing.get_args(engine.Event)} <= names.keys()
    raised = {error.__name__ for error in subclasses(engine.TrifoldError)}
    assert raised <= names.keys()
    assert [name for name, value in names.items() if inspect.isclass(value) and not inspect.getdoc(value)] == []
    assert (ROOT / "engine" / "py.typed").is_file(), "and typed, for who checks types"


def subclasses(kind: type[Exception]) -> set[type[Exception]]:
    """The class and those below it in its module."""
    found = {kind}
    below: list[type[Exception]] = kind.__subclasses__()
    for one in below:
        found |= subclasses(one) if one.__module__ == kind.__module__ else set()
    return found


def test_what_a_public_record_holds_is_public() -> None:
    records = [value for value in public().values() if dataclasses.is_dataclass(value)]
    assert len(records) > 15
    held = {kind for record in records for hint in typing.get_type_hints(record).values() for kind in classes(hint)}
    hidden = {kind.__name__ for kind in held if kind.__module__.startswith("engine")} - public().keys()
    assert hidden == set()


def classes(hint: Any) -> set[type]:
    """The classes that an annotation is made of."""
    found = {hint} if inspect.isclass(hint) else set()
    for part in typing.get_args(hint):
        found |= classes(part)
    return found


def test_installed_it_is_one_package_under_two_names(tmp_path: Path) -> None:
    """``site-packages/trifold`` is this folder: here it is a package without a file of its own that points to it."""
    code = """
        import sys, types
        package = types.ModuleType("trifold"); package.__path__ = [sys.argv[1]]; sys.modules["trifold"] = package
        from trifold.engine import Document, InputError, __version__
        import engine, engine.errors, trifold.engine
        assert trifold.engine is engine and engine.errors.InputError is InputError, "no class is there twice"
        assert sys.argv[1] not in sys.path, "the names app and tests are nobody's business"
        try:
            import trifold.engine.errors
        except ImportError as error:
            print(error)
        import logging
        logging.getLogger("engine.worker").error("loading the models failed")
        """
    command = [sys.executable, "-c", textwrap.dedent(code), str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "trifold.engine itself" in done.stdout
    assert done.stderr == "", "an error that the program handles is logged, not printed"


def test_every_option_has_its_words() -> None:
    """In its declaration, which the command line's help takes them from, or in the docstring of its record."""
    for record in (engine.EngineConfig, engine.SamplingParams, engine.Question):
        told = inspect.getdoc(record) or ""
        declared = {option.name for option in options_of(record) if option.help}
        missing = [field.name for field in dataclasses.fields(record) if field.name not in told]
        assert [name for name in missing if name not in declared] == []
