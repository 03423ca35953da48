"""What the documents name is there: links, files, modules to run, and command lines that the program takes."""

from __future__ import annotations

import contextlib
import re
import shlex
from pathlib import Path

import pytest

from app.cli.arguments import HelpAsked, parse

ROOT = Path(__file__).resolve().parents[1]
MOST_WORDS = 800  # of the README: who wants more follows its links
DOCUMENTS = sorted(
    file.relative_to(ROOT).as_posix()
    for place in (".", "app", "engine", "engine/docs", "tests", "assets/*")
    for file in ROOT.glob(f"{place}/*.md")
)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_CODE = re.compile(r"`([^`\n]+)`|^ {4}(\S.*?)(?: {3,}.*)?$", re.M)
_FILE = re.compile(r"^[\w./-]+(?:\.(?:py|js|html|md|txt|toml|json)|/)$")
_MODULE = re.compile(r"python -m ([\w.]+)")
_DRAWN = re.compile(r"^ {4}.*$", re.M)
_MODULES = re.compile(r"[\w/]+\.py").findall
_LAUNCH = "python launch.py"


def code_of(text: str) -> list[str]:
    """What stands in backticks, and lines of code without the remark beside them."""
    return [inline or line for inline, line in _CODE.findall(text)]


@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_a_document_names_is_there(name: str) -> None:
    document = ROOT / name
    text = document.read_text(encoding="utf-8")
    code = code_of(text)
    missing = [link for link in _LINK.findall(text) if not (document.parent / link).exists()]
    for path in filter(_FILE.match, code):
        if not any((folder / path).exists() for folder in document.parents if folder.is_relative_to(ROOT)):
            missing.append(path)
    for module in _MODULE.findall("\n".join(code)):
        place = ROOT / module.replace(".", "/")
        if not (place.is_dir() or place.with_suffix(".py").exists()):
            missing.append(f"python -m {module}")
    assert missing == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_command_lines_can_be_given(name: str) -> None:
    for line in code_of((ROOT / name).read_text(encoding="utf-8")):
        if line.startswith(_LAUNCH) and "COMMAND" not in line and "--repair" not in line:
            with contextlib.suppress(HelpAsked):
                parse(shlex.split(line.removeprefix(_LAUNCH)))


@pytest.mark.parametrize("name", ["app/README.md", "engine/docs/house.md", "CONTRIBUTING.md"])
def test_every_file_of_a_drawn_tree_is_there(name: str) -> None:
    """Lines such as ``state.py   which book is open``: there is a file of that name."""
    text = (ROOT / name).read_text(encoding="utf-8")
    there = {file.name for place in ("app", "engine", "tests") for file in (ROOT / place).rglob("*.py")} | {"launch.py"}
    drawn = {file.rpartition("/")[2] for line in _DRAWN.findall(text) for file in _MODULES(line)}
    assert drawn - there == set()


def test_the_path_of_a_question_is_counted_right() -> None:
    text = (ROOT / "engine" / "README.md").read_text(encoding="utf-8").partition("## The path of a question")[2]
    counted = re.search(r"these (\d+) files", section := text.partition("\n## ")[0])
    assert counted
    assert len(set(re.findall(r"`((?:app|engine)/[\w/]+\.py)`", section))) == int(counted[1])


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS
