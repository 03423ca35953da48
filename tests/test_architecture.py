"""Imports point one way: from folders further down this list to folders further up, never in a circle.

The rule is a list of folders (and of the few modules that stand by themselves), not of files: a new file belongs to the
layer of its folder. What a module imports inside a function or for type checking only counts for the circles, not for
the order: such an import says that the way up is a door that is opened late, on purpose.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.house import LONG_LINES, ROOT, Module, all_imports, circles, depth, module_paths, modules

# From the ground up. A module imports only from its own layer and from those before it.
ENGINE: tuple[tuple[str, ...], ...] = (
    (
        "engine.errors",
        "engine.events",
        "engine.config",
        "engine.devices",
        "engine.document",
        "engine.threads",
        "engine.quantization",
        "engine.sources",
        "engine.languages",
        "engine.passages",
        "engine.contents",
        "engine.places",
        "engine.version",
        "engine.sandbox",
        "engine.model_files",
        "engine.thinking",
        "engine.chat_template",
        "engine.foreign",
        "engine.foreign_child",
    ),
    ("engine.prompt",),
    ("engine.model.kv_shape",),
    ("engine.model",),
    ("engine.kv",),
    ("engine.decode", "engine.plan"),
    ("engine.phases", "engine.generation", "engine.lanes", "engine.aside", "engine.session"),
    ("engine.worker", "engine.selftest"),
    ("engine",),
    ("engine.bench",),
    ("engine.distill",),
)
APP: tuple[tuple[str, ...], ...] = (
    ("app.core.settings", "app.core.whole_files"),
    ("app.launcher",),
    ("app.sealed",),
    ("app.readers", "app.language"),
    ("app.trust",),
    ("app.core",),
    ("app.models",),
    ("app.web",),
    ("app.cli",),
    ("app.launcher.start",),
)
# Modules in the longest chain of imports: of the engine, and with the bench that stands on top of it. Kernels for
# processors are four of them (slots, what is compiled, how each is called, the choice between ours and torch's), what
# runs a pass three more (formats of weights, the walk, the program).
MOST_ENGINE_FLOORS, MOST_FLOORS_WITH_BENCH = 12, 12
# Files that a question passes on its way from the page to its last word: fewer than these.
MOST_ON_THE_PATH = 70
# Functions that are long because they are one sequence that is read from top to bottom: so many, and none longer.
MOST_LONG_FUNCTIONS, MOST_LINES = 20, 60

NAMES = sorted(module_paths())
ENGINE_MODULES = [name for name in NAMES if name.split(".")[0] == "engine"]
APP_MODULES = [name for name in NAMES if name.split(".")[0] == "app"]


@functools.cache
def graph() -> dict[str, Module]:
    """Every module with its imports; read by the first test that asks, since every process collects the tests."""
    return modules()


def rank(name: str, layers: tuple[tuple[str, ...], ...]) -> int:
    """The layer of a module: that of the longest folder name that it begins with."""
    best, found = -1, -1
    for number, layer in enumerate(layers):
        for folder in layer:
            if (name == folder or name.startswith(folder + ".")) and len(folder) > best:
                best, found = len(folder), number
    assert found >= 0, f"{name} has no layer"
    return found


def test_imports_point_down() -> None:
    for side, layers in ((ENGINE_MODULES, ENGINE), (APP_MODULES, APP)):
        # Every folder may name the front door.
        inside = [(name, other) for name in side for other in graph()[name].imports & set(side) - {"engine"}]
        assert [(name, other) for name, other in inside if rank(other, layers) > rank(name, layers)] == []


# The modules of the engine that the app may import: its words, planning, prompts and passages, files of models, what is
# kept on disk, and processes. All others are private. A new one is a decision; one that the app has left goes. Of a
# door, the app may use what its ``__all__`` names, which has nothing that neither the app nor ``engine.__all__`` has.
# Tests and the scripts of assets may import any module, because they look at parts that the app does not see.
DOORS = [
    "engine",
    "engine.bench",
    "engine.chat_template",
    "engine.config",
    "engine.contents",
    "engine.devices",
    "engine.document",
    "engine.errors",
    "engine.events",
    "engine.foreign",
    "engine.kv.snapshots",
    "engine.languages",
    "engine.model.architectures",
    "engine.model.families.gguf_layout",
    "engine.model.gguf",
    "engine.model.gguf_header",
    "engine.model.gguf_settings",
    "engine.model.real_model",
    "engine.model.weights",
    "engine.model_files",
    "engine.passages",
    "engine.plan",
    "engine.prompt",
    "engine.sandbox",
    "engine.selftest",
    "engine.sources",
    "engine.thinking",
    "engine.threads",
    "engine.version",
    "engine.worker",
]


def names_of_the_engine(path: Path) -> Iterator[tuple[str, str]]:
    """Yield each name that a file takes from a module of the engine, with the module: imported, or after a dot."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    doors = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "engine":
            for one in node.names:
                if f"{node.module}.{one.name}" in NAMES:
                    doors[one.asname or one.name] = f"{node.module}.{one.name}"
                else:
                    yield str(node.module), one.name
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in doors:
            yield doors[node.value.id], node.attr


def test_the_app_enters_the_engine_by_its_doors_and_takes_public_names() -> None:
    named = {(name, other) for name in APP_MODULES for other in all_imports(graph())[name] & set(ENGINE_MODULES)}
    assert sorted((name, other) for name, other in named if other not in DOORS) == []
    assert sorted(set(DOORS) - {other for _, other in named}) == [], "doors that nobody uses"
    public = {door: frozenset(importlib.import_module(door).__all__) for door in DOORS}
    used = {(door, name) for module in APP_MODULES for door, name in names_of_the_engine(graph()[module].path)}
    assert sorted((door, name) for door, name in used if name not in public[door]) == []
    offered = {(door, name) for door in DOORS[1:] for name in public[door] - public["engine"]}
    assert sorted(offered - used) == [], "public names that the app does not use"
    private = [
        (name, one.name)
        for name in APP_MODULES
        for node in ast.walk(ast.parse(graph()[name].path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom)
        for one in node.names
        if one.name.startswith("_") and not one.name.startswith("__")
    ]
    assert private == []


def test_no_circles() -> None:
    assert circles(all_imports(graph())) == []


def test_a_file_name_that_stands_twice_is_one_concept_in_two_layers() -> None:
    """Attention and block products are called and emitted; notes are kept and printed; a table of contents is found by
    the app and put to the model by the engine; a program is a list of kernels, and what runs layers as one; tiled
    products make up tiled layers."""
    names = Counter(module.path.name for module in graph().values() if not module.path.name.startswith("__"))
    twice = {name for name, count in names.items() if count > 1}
    assert twice == {"attention.py", "blocks.py", "contents.py", "notes.py", "program.py", "tiled.py"}


def test_the_name_of_a_class_stands_for_one_thing() -> None:
    """Private names may stand in several modules, because nobody meets two of them at once."""
    named: dict[str, list[str]] = {}
    for name, module in graph().items():
        for one in module.classes:
            named.setdefault(one, []).append(name)
    assert len(named) > len(NAMES) / 2
    assert {one: homes for one, homes in named.items() if len(homes) > 1} == {}


def test_the_engine_is_no_deeper_than_a_reader_can_follow() -> None:
    engine = {name: graph()[name].imports & set(ENGINE_MODULES) for name in ENGINE_MODULES}
    assert depth(engine) <= MOST_FLOORS_WITH_BENCH
    without_bench = {name: imports for name, imports in engine.items() if not name.startswith("engine.bench")}
    assert depth(without_bench) <= MOST_ENGINE_FLOORS


def test_engine_knows_no_app() -> None:
    foreign = {"gradio", "fastapi", "uvicorn", "app"}
    named = [(name, other) for name in ENGINE_MODULES for other in graph()[name].everything]
    assert [(name, other) for name, other in named if other.split(".")[0] in foreign] == []


def test_only_the_engine_imports_torch_at_the_top() -> None:
    named = [(name, other) for name in APP_MODULES for other in graph()[name].top]
    assert [(name, other) for name, other in named if other.split(".")[0] in ("torch", "transformers")] == []


def test_the_page_uses_the_front_door() -> None:
    """The page needs no part of the engine that deals in tensors."""
    heavy = ("engine.session", "engine.generation", "engine.decode", "engine.model.decoder", "engine.model.attention")
    page = [name for name in APP_MODULES if not name.startswith("app.cli")]
    assert [(name, other) for name in page for other in graph()[name].everything if other.startswith(heavy)] == []


def test_the_rule_can_fail() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c"]]
    assert depth({"a": {"b"}, "b": {"c"}, "c": set()}) == 3
    assert (
        rank("engine.model.kv_shape", ENGINE) < rank("engine.model.attention", ENGINE) < rank("engine.kv.full", ENGINE)
    )
    assert (ROOT / "launch.py").is_file()


def test_what_the_scripts_of_assets_import_is_there() -> None:
    """They are outside the type checker, which would see that a name has gone."""
    missing = []
    for script in (ROOT / "assets").rglob("*.py"):
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("engine", "app"):
                module = importlib.import_module(node.module)
                names = [alias.name for alias in node.names if f"{node.module}.{alias.name}" not in NAMES]
                missing += [f"{script.name}: {name}" for name in names if not hasattr(module, name)]
    assert missing == []


def test_functions_are_short_but_for_a_few() -> None:
    functions = {f"{name}.{one}": lines for name, each in graph().items() for one, lines in each.functions.items()}
    long = {one: lines for one, lines in functions.items() if lines > LONG_LINES}
    assert len(functions) > len(NAMES)
    assert len(long) <= MOST_LONG_FUNCTIONS, sorted(long)
    assert max(long.values()) <= MOST_LINES, max(long, key=lambda one: long[one])


def test_a_constant_has_a_line_of_its_own_and_so_has_an_entry() -> None:
    shared = [f"{name}:{line}" for name, module in graph().items() for line in module.shared_lines]
    assert shared == []


def test_the_path_of_a_question_is_told_of_files_that_are_there() -> None:
    """Counted in the running program by ``tests.house``, which takes a minute; here only what was written down."""
    told = (ROOT / "engine" / "README.md").read_text(encoding="utf-8").split("## The path of a question")[1]
    table = told.split("\n## ")[0]
    files = [name for line in table.splitlines() if line.startswith("|") for name in re.findall(r"`([^`]+\.py)`", line)]
    assert [name for name in files if not (ROOT / name).is_file()] == []
    assert len(set(files)) == len(files) == int(re.findall(r"these (\d+) files run", table)[0])
    assert len(files) < MOST_ON_THE_PATH
