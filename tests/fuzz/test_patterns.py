"""No regular expression that sees a document's, a model's or a person's text in the app's own process is slow.

The parsers' patterns (``app/readers``) run in a child process whose processor time is limited. All others are found in
the source, and each is run, by the methods that it is used with, over texts made of its own parts: what it repeats,
repeated until its end does not fit. A pattern that tries again at every place needs a hundred times as long as allowed.
"""

import ast
import importlib
import random
import re
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from re import _constants as kind  # type: ignore[attr-defined]
from re import _parser as grammar  # type: ignore[attr-defined]
from types import FrameType

import pytest

from app.trust import speakers
from app.web import auth

ROOMS = ("app", "engine")
# The parsers run in a child process with limits; the others see no text of a person's documents or models.
OUTSIDE = ("app/readers", "app/launcher", "engine/bench", "engine/distill")
CALLS = frozenset({"compile", "findall", "finditer", "fullmatch", "match", "search", "split", "sub", "subn"})
ANCHORED = frozenset({"fullmatch", "match"})  # tried at one place only
# Collections of patterns of which each is tried at the beginning of a question only.
AT_BEGINNING = frozenset({"_HOW_MANY", "_PLACES"})
LENGTH = 4000  # characters of a text
SECONDS = 0.01  # of processor time for a text; a linear pattern needs less than 0.002
TRIALS = 3  # times that a pattern is slow before it is called so
MANY = 20  # repetitions from which a repeat counts as one without a limit
PUMPS = (" ", "a", "1", "A ", "_", "a.", "1,", "\n", " \n", "-", "a ", "a-", "(", '"')

OWN = frozenset({auth._INLINE_SCRIPT.pattern.decode()})  # sees the page that the program serves, and nothing else
# Used in no more than so many characters, whatever the document, the question or the answer: the code cuts before.
SHORT_SECONDS = 0.1  # for these; they need up to 0.02
SHORT: dict[str, int] = {
    speakers._BEFORE.pattern: speakers._LONGEST_SIDE,
    speakers._AFTER.pattern: speakers._LONGEST_SIDE,
}


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    """Yield each call of ``re`` whose pattern is written in ``path``, with the name it is assigned to or ``""``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        id(node.value): node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "re"
            and node.func.attr in CALLS
            and node.args
        ):
            yield node, names.get(id(node), "")


def patterns() -> Iterator[tuple[str, re.Pattern[str], bool]]:
    """Yield place, pattern, and whether it is tried at the beginning of a text only, for all patterns of the rooms:
    those of calls, and those that a module has made in a loop.
    """
    for path in sorted(path for room in ROOMS for path in Path(room).rglob("*.py")):
        found = list(calls(path))
        if not found or path.as_posix().startswith(OUTSIDE):
            continue
        source = path.read_text(encoding="utf-8")
        module, tried = importlib.import_module(".".join(path.with_suffix("").parts)), set()
        for call, name in found:
            method = call.func.attr  # type: ignore[attr-defined]
            given = call.args[: 2 if method == "compile" else 1]
            try:
                values = [eval(compile(ast.Expression(each), "", "eval"), vars(module)) for each in given]
            except NameError:  # made of a word of the moment: its form is another pattern's, or it is escaped
                continue
            if not isinstance(values[0], str | bytes):
                continue
            pattern = as_text(re.compile(values[0], values[1] if len(values) > 1 else 0))
            used = set(re.findall(rf"\b{name}\.(\w+)\(", source)) & CALLS if name else {method}
            tried.add(pattern)
            yield f"{path}:{call.lineno}", pattern, bool(used) and used <= ANCHORED
        for name, pattern in held(vars(module)):
            if pattern not in tried:
                yield f"{path}, {name}", pattern, name in AT_BEGINNING


def as_text(pattern: re.Pattern[str] | re.Pattern[bytes]) -> re.Pattern[str]:
    """Return the same pattern for text, if it is one for bytes."""
    if isinstance(pattern.pattern, str):
        return pattern
    return re.compile(pattern.pattern.decode("latin-1"), pattern.flags | re.ASCII)


def held(names: Mapping[str, object]) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Yield the patterns in the tuples, lists and dictionaries of a module, each with the name of its collection."""
    for name, value in names.items():
        waiting = [value] if isinstance(value, tuple | list | dict) and not name.startswith("__") else []
        while waiting:
            each = waiting.pop()
            if isinstance(each, re.Pattern):
                yield name, as_text(each)
            elif isinstance(each, tuple | list):
                waiting += each
            elif isinstance(each, dict):
                waiting += each.values()


def letters(items) -> list[str]:  # type: ignore[no-untyped-def]
    """Return some characters that a class of characters allows."""
    groups = {kind.CATEGORY_DIGIT: "1", kind.CATEGORY_SPACE: " ", kind.CATEGORY_NOT_WORD: " "}
    found: list[str] = []
    for operation, value in items:
        if operation is kind.LITERAL:
            found.append(chr(value))
        elif operation is kind.RANGE:
            found += [chr(each) for each in value]
        elif operation is kind.CATEGORY:
            found.append(groups.get(value, "a"))
    if items[0][0] is kind.NEGATE:
        return [each for each in "a1 .A\n_" if each not in found][:3] or ["x"]
    return found[:6]


def sample(parsed, chance: random.Random) -> str:  # type: ignore[no-untyped-def]
    """Return a text that the parsed pattern fits, nearly always."""
    made = ""
    for operation, value in parsed:
        if operation is kind.LITERAL:
            made += chr(value)
        elif operation in (kind.NOT_LITERAL, kind.ANY):
            made += "a"
        elif operation is kind.IN:
            made += chance.choice(letters(value))
        elif operation in (kind.MAX_REPEAT, kind.MIN_REPEAT, kind.POSSESSIVE_REPEAT):
            least, most, body = value
            times = max(least, min(1, most)) if chance.random() < 0.7 else least
            made += "".join(sample(body, chance) for _ in range(times))
        elif operation is kind.SUBPATTERN:
            made += sample(value[3], chance)
        elif operation is kind.BRANCH:
            made += sample(chance.choice(value[1]), chance)
        elif operation is kind.ATOMIC_GROUP:
            made += sample(value, chance)
    return made


def repeated(parsed) -> Iterator[object]:  # type: ignore[no-untyped-def]
    """Yield what the parsed pattern repeats without a limit."""
    for operation, value in parsed:
        if operation in (kind.MAX_REPEAT, kind.MIN_REPEAT, kind.POSSESSIVE_REPEAT):
            if value[1] is kind.MAXREPEAT or value[1] > MANY:
                yield value[2]
            yield from repeated(value[2])
        elif operation is kind.SUBPATTERN:
            yield from repeated(value[3])
        elif operation is kind.BRANCH:
            for branch in value[1]:
                yield from repeated(branch)
        elif operation is kind.ATOMIC_GROUP:
            yield from repeated(value)
        elif operation in (kind.ASSERT, kind.ASSERT_NOT):
            yield from repeated(value[1])


def hostile(pattern: re.Pattern[str], length: int) -> Iterator[str]:
    """Yield texts of ``length`` characters, each a part of the pattern again and again behind a beginning of it."""
    chance = random.Random(5)
    parsed = grammar.parse(pattern.pattern, pattern.flags)
    bodies = list(repeated(parsed))
    if not bodies:
        return
    whole = [sample(parsed, chance) for _ in range(4)]
    pumps = {*PUMPS, *whole, *(each[:-1] for each in whole), *(sample(each, chance) for each in bodies * 4)} - {""}
    heads = ["", *sorted({each[:cut] for each in whole for cut in (1, len(each) // 2)} - {""})[:2]]
    for pump in sorted(pumps):
        for head in heads:
            yield head + (pump * (length // len(pump) + 1))[:length] + "\0"


class _Late(Exception):
    """A pattern has used its time."""


def _late(number: int, frame: FrameType | None) -> None:
    raise _Late


def is_slow(pattern: re.Pattern[str], text: str, anchored: bool) -> bool:
    """Whether the pattern takes more processor time for ``text`` than it may, however often it is tried."""
    most = SHORT_SECONDS if pattern.pattern in SHORT else SECONDS
    return all(seconds(pattern, text, anchored, most) > most for _ in range(TRIALS))


def seconds(pattern: re.Pattern[str], text: str, anchored: bool, most: float) -> float:
    """Return the processor time for ``text``, at most about twice ``most``."""
    begun = time.process_time()
    signal.setitimer(signal.ITIMER_VIRTUAL, 2 * most)
    try:
        try:
            if anchored:
                pattern.match(text)
                pattern.fullmatch(text)
            else:
                for _ in pattern.finditer(text):
                    pass
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except _Late:  # may also come while the timer is stopped
        pass
    return time.process_time() - begun


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system cannot interrupt a pattern")
def test_no_pattern_is_slow_on_a_text_made_against_it(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    before = signal.signal(signal.SIGVTALRM, _late)
    slow = []
    try:
        for place, pattern, anchored in patterns():
            if pattern.pattern in OWN:
                continue
            for text in hostile(pattern, SHORT.get(pattern.pattern, LENGTH)):
                if is_slow(pattern, text, anchored):
                    slow.append(f"{place} {pattern.pattern[:80]!r}: {text[:12]!r} ...")
                    break
    finally:
        signal.signal(signal.SIGVTALRM, before)
    assert not slow, "\n".join(slow)
