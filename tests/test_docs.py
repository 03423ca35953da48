"""What the documents name is there: links, files, modules to run, and command lines that the program takes."""

from __future__ import annotations

import contextlib
import json
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


def test_what_is_said_of_a_card_is_in_its_file() -> None:
    """Four figures of the table had been measured and were in no file."""
    runs = json.loads((ROOT / "assets/measurements/gpu.json").read_text(encoding="utf-8"))["runs"]
    known = [(run["part"], figure) for run in runs for figure in run["figures"] if figure["unit"] == "ms/token"]
    text = (ROOT / "engine/docs/gpus.md").read_text(encoding="utf-8")
    section = text.partition("## Measured on an H200")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 6
    for name, *cells in rows:
        for cell in filter(None, map(str.strip, cells)):
            shown, ratio = re.fullmatch(r"([\d,.]+)(?: \((\d\.\d\dx)\))?", cell.strip()).groups()
            places = len(shown.partition(".")[2])
            assert [
                figure
                for part, figure in known
                if f"{figure['value']:,.{places}f}" == shown and (ratio is None or ratio in figure["note"])
            ], (name, cell)
