"""The structure of the code in figures: files, lines, floors, circles, and the files on the path of a question.

    python -m tests.house [CHECKOUT]
    python -m tests.house --path [CHECKOUT]

Floors are the longest chain of imports at the top of modules; a circle may go through any import. ``--path`` starts
the program with the bundled pair and a short book, asks one question in a real browser, and lists the files of ours in
which any function ran, in whatever thread, from the moment the question is sent until its last word comes, and those
that ran afterwards only, until the page shows the whole answer. Each stands with the functions that ran and the file
that called it first. An open page looks at the state of the program several times a second; a file that does nothing
else meanwhile than what it does when nobody asks is told apart.
"""

from __future__ import annotations

import ast
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import CodeType, FrameType

ROOT = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Module:
    """``imports``: modules of ours that are imported at the top; ``top``: all names imported there; ``everything``:
    also those imported inside functions and for type checking; ``functions``: the lines of each function without its
    docstring, by its name; ``classes``: the names of the classes at the top that are not private;
    ``shared_lines``: where one line gives numbers to several constants, or unpacks a literal where it is written."""

    path: Path
    lines: int
    imports: frozenset[str]
    top: frozenset[str]
    everything: frozenset[str]
    functions: Mapping[str, int]
    classes: tuple[str, ...]
    shared_lines: tuple[int, ...]


LONG_LINES = 40
"""A function with more lines than these is long."""


def modules(root: Path = ROOT) -> dict[str, Module]:
    """Every module of ``engine`` and ``app``, by its dotted name."""
    paths, found = module_paths(root), {}
    for name, path in paths.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        nodes = list(ast.walk(tree))
        top, everything = _imported(tree.body, paths), _imported(nodes, paths)
        ours = frozenset(other for other in top if other in paths and other != name)
        shared = tuple(sorted({*_several_constants(tree.body), *_unpacked_literals(nodes)}))
        functions, classes = dict(_functions(nodes)), tuple(_classes(tree.body))
        found[name] = Module(path, len(text.splitlines()), ours, top, everything, functions, classes, shared)
    return found


def _functions(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            tells = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            told = (first.end_lineno or 0) - first.lineno + 1 if tells else 0
            yield f"{node.name}:{node.lineno}", (node.end_lineno or 0) - node.lineno + 1 - told


def _classes(body: Iterable[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name


def _several_constants(body: Iterable[ast.stmt]) -> Iterator[int]:
    for node in body:
        if isinstance(node, ast.Assign):
            names, values = node.targets, [node.value]
            if isinstance(names[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
                names, values = names[0].elts, node.value.elts
            upper = [name for name in names if isinstance(name, ast.Name) and name.id.isupper()]
            parts = [part for value in values for part in ast.walk(value)]
            numbers = [part for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, int | float)]
            if len(upper) > 1 and numbers and not any(isinstance(part, ast.Call) for part in parts):
                yield node.lineno


def _unpacked_literals(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """``*(a, b)`` and ``**{a: b}``, which only keep several entries on a line."""
    for node in nodes:
        if isinstance(node, ast.Starred) and isinstance(node.value, ast.Tuple | ast.List):
            yield node.lineno
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield from (value.lineno for key, value in pairs if key is None and isinstance(value, ast.Dict))


def module_paths(root: Path = ROOT) -> dict[str, Path]:
    """The file of every module of ``engine`` and ``app``, by its dotted name."""
    return {_name(path, root): path for folder in ("engine", "app") for path in sorted((root / folder).rglob("*.py"))}


def _name(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(nodes: Iterable[ast.AST], known: Mapping[str, Path]) -> frozenset[str]:
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
    return frozenset(found)


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Groups of modules that import each other, each sorted (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph[node]:
            if other not in graph:
                continue
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while True:
                group.append(stack.pop())
                if group[-1] == node:
                    break
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def depth(graph: Mapping[str, Iterable[str]]) -> int:
    """Modules in the longest chain of imports. The graph must have no circles."""
    known: dict[str, int] = {}

    def floors(node: str) -> int:
        if node not in known:
            known[node] = 1 + max((floors(other) for other in graph[node] if other in graph), default=0)
        return known[node]

    return max(floors(node) for node in graph)


def chain(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """The longest chain of imports itself, from the top floor down."""

    def longest(node: str) -> list[str]:
        below = [longest(other) for other in graph[node] if other in graph]
        return [node, *max(below, key=len, default=[])]

    return max((longest(node) for node in graph), key=len)


def all_imports(found: Mapping[str, Module]) -> dict[str, frozenset[str]]:
    """Who names whom, wherever in the file: a circle through a function is a circle too."""
    return {name: module.everything & (found.keys() - {name}) for name, module in found.items()}


def report(root: Path = ROOT) -> str:
    """The figures of a checkout, as lines."""
    found = modules(root)
    lines = []
    for side in ("engine", "app"):
        part = {name: module for name, module in found.items() if name.split(".")[0] == side}
        graph = {name: module.imports & set(part) for name, module in part.items()}
        lines.append(f"{side}: {len(part)} files, {sum(module.lines for module in part.values()):,} lines")
        small = sum(module.lines < 100 for module in part.values())
        lines.append(f"    {small} files under 100 lines, {sum(m.lines > 600 for m in part.values())} over 600")
        long = sum(lines_of > LONG_LINES for module in part.values() for lines_of in module.functions.values())
        lines.append(f"    {long} functions over {LONG_LINES} lines")
        if not circles(graph):
            lines.append(f"    {depth(graph)} floors: " + " > ".join(chain(graph)))
        knots = circles(all_imports(part))
        lines.append(f"    {len(knots)} circles" + "".join(f"; {' <-> '.join(knot)}" for knot in knots))
    return "\n".join(lines)


QUESTION = "Where does it say “lit at dusk by the keeper”?"  # the bundled demo only quotes
BOOK = "CHAPTER 1\n\n" + "The lamp was lit at dusk by the keeper of the north light. " * 100
LOOK_SECONDS = 0.2
QUIET_MS = 4_000  # what goes on behind a book that has just been opened has ended by then
WATCH_MS = 11_000  # while nobody asks: twice as long as it takes until everything has been looked at again


WORDS = "TextDelta"  # the event that brings words: the path ends with the last of them


@dataclass
class Hop:
    """A file on the path: who called it first, and which of its functions ran. ``own``: not when nobody asks."""

    file: str
    caller: str
    functions: list[str]
    own: bool = False


@dataclass(frozen=True)
class QuestionPath:
    """In the order of first use. ``afterwards``: what ran only when the last word had come."""

    hops: list[Hop]
    afterwards: list[Hop]

    @property
    def own(self) -> list[Hop]:
        """Without those that only do what they do when nobody asks."""
        return [hop for hop in self.hops if hop.own]


class Recorder:
    """Notes which files under a checkout's ``engine`` and ``app`` run while ``on``; a profile function."""

    def __init__(self, root: Path) -> None:
        self.on = False
        self.hops: dict[str, Hop] = {}
        self.until_the_last_word = 0
        self._own: frozenset[str] = frozenset()  # of those, when that word came
        self._root = root
        self._sides = tuple(str(root / side) + os.sep for side in ("engine", "app"))
        self._seen: set[CodeType] = set()
        self._idle: set[CodeType] = set()

    def begin(self) -> None:
        """What ran so far runs when nobody asks."""
        self._idle, self._seen = self._seen, set()
        self.hops, self.until_the_last_word = {}, 0

    def path(self) -> list[Hop]:
        """The hops in order of first use; up to the last word, ``own`` says what was so by then."""
        hops = list(self.hops.items())
        words = [replace(hop, own=file in self._own) for file, hop in hops[: self.until_the_last_word]]
        return words + [hop for _, hop in hops[self.until_the_last_word :]]

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self.on or event != "call":
            return
        code = frame.f_code
        if code.co_filename == "<string>" and code.co_name == "__init__":  # of a dataclass
            if type(frame.f_locals.get("self")).__name__ == WORDS:
                self.until_the_last_word = len(self.hops)
                self._own = frozenset(file for file, hop in self.hops.items() if hop.own)
        elif code not in self._seen:
            self._seen.add(code)
            if self._is_ours(code) and code.co_name != "<module>":
                hop = self.hops.setdefault(code.co_filename, Hop(self._name(code), self._caller(frame), []))
                hop.functions.append(code.co_name)
                hop.own |= code not in self._idle

    def _is_ours(self, code: CodeType) -> bool:
        return code.co_filename.startswith(self._sides)

    def _name(self, code: CodeType) -> str:
        return Path(code.co_filename).relative_to(self._root).as_posix()

    def _caller(self, frame: FrameType) -> str:
        caller = frame.f_back
        while caller is not None and not self._is_ours(caller.f_code):
            caller = caller.f_back
        return self._name(caller.f_code) if caller else ""


def record(root: Path, arguments: list[str]) -> None:
    """Run the program of a checkout in this process, and record what runs: from a first line on standard input to a
    second one while nobody asks, from there to a third one the path.

    What was recorded goes to standard output as JSON.
    """
    recorder = Recorder(root)

    def listen() -> None:
        sys.stdin.readline()
        recorder.on = True
        sys.stdin.readline()
        recorder.begin()
        sys.stdin.readline()
        recorder.on = False
        hops = [asdict(hop) for hop in recorder.path()]
        sys.stdout.write(json.dumps([hops, recorder.until_the_last_word]) + "\n")
        sys.stdout.flush()

    threading.Thread(target=listen, daemon=True).start()  # before the recorder: it is not part of the program
    sys.path[0] = str(root)
    sys.argv = ["app.cli", *arguments]
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    runpy.run_module("app.cli", run_name="__main__", alter_sys=True)


def question_path(root: Path = ROOT) -> QuestionPath:
    """The files of a checkout on the path of a question.

    Raises:
        ValueError: no words came.
    """
    from playwright.sync_api import sync_playwright

    from tests.e2e import steps
    from tests.processes import browser_path, free_port, is_up

    chromium = browser_path() or "google-chrome"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        port = free_port()
        command = [sys.executable, __file__, "--record", str(root), "--no-browser", "--port", str(port)]
        environ = {**os.environ, "TRIFOLD_DATA": folder}
        program = subprocess.Popen(
            command, cwd=root, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert program.stdout

        def say(line: str) -> None:
            assert program.stdin
            program.stdin.write(f"{line}\n")
            program.stdin.flush()

        try:
            while not is_up(port):
                assert program.poll() is None, "the program has ended"
                time.sleep(LOOK_SECONDS)
            with sync_playwright() as driver:
                page = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"]).new_page()
                page.set_default_timeout(steps.PATIENCE)
                page.goto(steps.Server(port, Path(folder)).login_address())
                page.wait_for_selector('#trifold[data-live="yes"]')
                steps.read_text(page, BOOK)
                steps.answer_length(page)
                page.wait_for_timeout(QUIET_MS)
                say("nobody asks")
                page.wait_for_timeout(WATCH_MS)
                say("a question")
                steps.ask(page, QUESTION)
                steps.answered(page)
                say("it has been answered")
                found, words = json.loads(program.stdout.readline())
        finally:
            program.terminate()
            program.wait()
    if not words:
        raise ValueError(f"no {WORDS} was made: the end of the path is not known")
    hops = [Hop(**each) for each in found]
    return QuestionPath(hops[:words], hops[words:])


def path_report(path: QuestionPath) -> str:
    watching = [hop for hop in path.hops if not hop.own]
    parts = {
        f"{len(path.hops)} files run from the question to its last word, {len(path.own)} of them for it": path.own,
        f"{len(watching)} do what they do when nobody asks": watching,
        f"{len(path.afterwards)} run afterwards": path.afterwards,
    }
    return "\n".join("\n".join([title, *map(_line, hops)]) for title, hops in parts.items())


def _line(hop: Hop) -> str:
    return f"    {hop.file:36} from {hop.caller or 'a library':36} {', '.join(hop.functions)}"


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--record"]:
        return record(Path(arguments[1]), arguments[2:])
    path = arguments[:1] == ["--path"]
    root = Path(arguments[path]).resolve() if len(arguments) > path else ROOT
    if path:
        sys.stdout.write(path_report(question_path(root)) + "\n")
    else:
        sys.stdout.write(report(root) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
