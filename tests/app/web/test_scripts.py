"""The page's scripts and the server mean the same by the keys of what is sent.

``page.d.ts`` says what the live stream carries. The TypeScript compiler checks the scripts against it where it is
installed (on Debian and Ubuntu ``apt install node-typescript``); the rest needs Python alone.
"""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parents[2]
_PAGE = _ROOT / "app" / "web" / "page"
_STRING = re.compile(r"""(['"])(?:[^'"\n\\]|\\.)*?\1""")
_STREAMED = {"page_view", "view", "_writing", "_lists"}
"""Functions whose dictionaries are the stream itself, and no part of it."""


@cache
def _views() -> tuple[tuple[str, str, frozenset[str]], ...]:
    """File, name and keys of every function that makes something for the page."""
    found = []
    for file in (_ROOT / "app" / "core" / "format.py", *sorted((_ROOT / "app" / "web").glob("*.py"))):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.returns and re.search(r"\bView\b", ast.unparse(node.returns)):
                found.append((file.name, node.name, frozenset(_keys(node))))
    return tuple(found)


def _keys(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        places = [*node.keys] if isinstance(node, ast.Dict) else []
        if isinstance(node, ast.Assign):
            places += [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
        yield from (place.value for place in places if isinstance(place, ast.Constant) and isinstance(place.value, str))


def _read(scripts: str, page: str) -> set[str]:
    """Every name in the scripts, and the figures that the page has a place for."""
    code = _STRING.sub(" ", re.sub(r"//[^\n]*|/\*.*?\*/", " ", scripts, flags=re.DOTALL))
    return {*re.findall(r"[A-Za-z_]\w*", code), *re.findall(r'data-figure="(\w+)"', page)}


def test_every_key_that_the_server_sends_is_read() -> None:
    scripts = "\n".join(file.read_text(encoding="utf-8") for file in sorted(_PAGE.glob("*.js")))
    read = _read(scripts, (_PAGE / "frame.html").read_text(encoding="utf-8"))
    assert sum(len(keys) for _, _, keys in _views()) > 150
    assert [(file, name, keys - read) for file, name, keys in _views() if keys - read] == []
    assert _read('show(a.b, "c"); // d', '<i data-figure="e">') == {"show", "a", "b", "e"}


def test_the_stream_its_scripts_and_its_type_have_the_same_parts() -> None:
    sent = {key for file, name, keys in _views() for key in keys if name in _STREAMED and _is_part(file, name, key)}
    main = (_PAGE / "main.js").read_text(encoding="utf-8")
    shown = set(re.findall(r"^  (\w+):", main[main.index("const show = {") : main.index("\n};\n")], re.MULTILINE))
    types = (_HERE / "page.d.ts").read_text(encoding="utf-8")
    stated = set(re.findall(r"^  (\w+)\??:", types[types.index("interface View {") :], re.MULTILINE))
    assert sent == shown == stated


def _is_part(file: str, name: str, key: str) -> bool:
    """Whether a key is one of the stream; some of these functions make a part on the spot."""
    inner = {
        ("library.py", "_lists"): {"id", "title", "line"},
        ("live.py", "_writing"): {"turn", "sources"},
        ("notes_panel.py", "view"): {"version", "count", "on_pages", "asked"},
        ("page_viewer.py", "view"): {"book", "first", "numbers"},
    }
    return key not in inner.get((file, name), set())


def test_one_function_makes_elements_that_are_shown() -> None:
    """A canvas that only measures or asks what the machine can do is none."""
    made = [
        (script.name, line.strip())
        for script in sorted(_PAGE.glob("*.js"))
        for line in script.read_text(encoding="utf-8").splitlines()
        if "createElement" in line and 'createElement("canvas")' not in line
    ]
    assert made == [("frame.js", "const element = document.createElement(tag);")]


def test_the_scripts_agree_with_their_types() -> None:
    compiler = shutil.which("tsc")
    if compiler is None:
        pytest.skip("the page's scripts are not checked: no TypeScript compiler (apt install node-typescript)")
    done = subprocess.run(
        [compiler, "-p", str(_HERE / "tsconfig.json")], capture_output=True, text=True, encoding="utf-8", check=False
    )
    if "TS6046" in done.stdout:  # it does not know a value of tsconfig.json
        pytest.skip("the TypeScript compiler is too old: 4.8 or later is needed")
    assert done.returncode == 0, done.stdout
