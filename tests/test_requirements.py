"""What is imported is declared, and what is declared is imported: requirements.txt against the code."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.house import ROOT

OURS = {"app", "engine", "assets", "tests", "recipe"}  # the last: assets/demo runs with its own folder as the root
OPTIONAL = {
    "flash_attn": "the engine runs without it, and the package index has no binary of it",
    "llama_cpp": "a row of the bench where it is installed; it is compiled for minutes",
    "triton": "comes with torch for CUDA; without it there is no such kernel",
    "matplotlib": "draws the bench's pictures where one is asked for; the bench says how to install it",
    "reportlab": "sets the sample book as a PDF once; that file says how to install it",
}
READ_BY_OTHERS = {
    "sentencepiece": "transformers reads tokenizer.model with it",
    "protobuf": "transformers reads tokenizer.model with it",
    "matplotlib": "the tests ask the bench for pictures",
    "onnxruntime": "rapidocr runs its models in it",
    "setuptools": "pip builds the wheel with it",
    "pytest-rerunfailures": "pytest runs failed tests again with it",
    "ruff": "a program",
    "mypy": "a program",
    "triton": "the tests' machine needs it for what the engine imports where it is",
}


def imported(*folders: str) -> set[str]:
    """Top-level names that are imported anywhere in these folders, without the standard library and our own."""
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    names = {name for path in files for name in _names(path)}
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - OURS


@cache
def _names(path: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {
        node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level
    }


def declared(*files: str) -> dict[str, str]:
    """Requirement lines by the name of their distribution."""
    text = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return {_plain(re.split(r"[\[<>=;!~ ]", line)[0]): line for line in lines if line and not line.startswith("-")}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def sources() -> Mapping[str, list[str]]:
    """Distributions by the names that can be imported from them."""
    return importlib.metadata.packages_distributions()


def undeclared(names: set[str], known: dict[str, str]) -> set[str]:
    return {name for name in names if not {_plain(source) for source in sources().get(name, [name])} & known.keys()}


def test_what_the_program_imports_is_declared() -> None:
    assert undeclared(imported("engine", "app") - OPTIONAL.keys(), declared("requirements.txt")) == set()


def test_what_tests_and_assets_import_is_declared() -> None:
    known = declared("requirements.txt", "tests/requirements.txt")
    assert undeclared(imported("tests", "assets") - OPTIONAL.keys(), known) == set()


def test_nothing_is_declared_that_nobody_imports() -> None:
    for file, folders in (("requirements.txt", ("engine", "app")), ("tests/requirements.txt", ("tests", "assets"))):
        used = {_plain(source) for name in imported(*folders) for source in sources().get(name, [name])}
        assert declared(file).keys() - used - READ_BY_OTHERS.keys() == set(), file


def test_every_version_has_a_bound_above() -> None:
    lines = declared("requirements.txt", "tests/requirements.txt").values()
    assert [line for line in lines if "==" not in line and "<" not in line] == []


def test_the_check_can_fail() -> None:
    assert undeclared({"psutil"}, {"torch": "torch==1"}) == {"psutil"}


def test_the_oldest_python_can_install_everything() -> None:
    """Python 3.10 was offered, and could install no transformers of the version that is asked for."""
    oldest = re.search(r"^OLDEST = \((\d+), (\d+)\)", (ROOT / "launch.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert oldest
    assert f'requires-python = ">={oldest[1]}.{oldest[2]},' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    stated = {name: importlib.metadata.metadata(name)["Requires-Python"] or "" for name in declared("requirements.txt")}
    needed = {name: re.search(r">=\s*3\.(\d+)", text) for name, text in stated.items()}
    assert [name for name, found in needed.items() if found and int(found[1]) > int(oldest[2])] == []
