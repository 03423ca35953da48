"""Every string that the page shows has a German entry, and no entry is left of a string that is gone.

Sentences that are put together from several strings are translated by the page's own script (``translation.js``), with
every translation blackened: a word that can still be read was not translated.

Strings are found in the sources: texts and attributes of ``frame.html``, literals of the scripts, and literals of the
modules that write for the page, f-strings with {} in their places. What looks like a sentence counts: with a space, or
a capital at its start. A word that looks like one and is shown to nobody is named in ``NOT_SHOWN``.
"""

from __future__ import annotations

import ast
import errno
import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

from playwright._impl._driver import compute_driver_executable

from app.core.question import Ask
from app.core.settings import SHORT_NAMES
from app.models.catalogue import pairs
from app.readers.file_formats import FORMATS
from app.web.live import _THESE
from app.web.server import start_page
from engine import errors
from engine.config import SamplingParams, options_of

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "app" / "web" / "page"
WRITES_FOR_THE_PAGE = ("app/web/*.py", "app/core/*.py", "app/trust/differences.py")
# They write for other programs, for the terminal, for files, or for the model.
OTHERS = (
    "answer_table",
    "auth",
    "openai_api",
    "openai_schema",
    "diagnostics",
    "export",
    "suggestions",
    "languages",
    "settings",
    "references",
    "question",
    "versions",  # in the language of the question
    "listed",  # likewise
    "side_by_side",  # it writes for the model
    "premise",  # likewise
)
# What is said of a book, and in its place of another text (``app.core.format.of_text``).
OF_TEXT = (
    ("The book says so", "Your notes say so"),
    ("the book", "your notes"),
    ("The book", "The document"),
    ("the book", "the document"),
    ("the whole book", "the whole document"),
    ("The book says", "The documents say"),
    ("The book", "The documents"),
    ("the book", "the documents"),
    ("the whole book", "all of the documents"),
)
LONGEST = 340  # letters of a sentence; lists of words to look for have more
ATTRIBUTES = ("title", "aria-label", "placeholder", "data-tip", "alt")
# They warn of what is in a document and was not read.
WARN = tuple(
    f"app/readers/{name}.py"
    for name in {"delimited", "detect", "inner_pictures", "office"}.union(one.parser for one in FORMATS)
)
# Their errors reach the page; how they name and count things too.
BEHIND = (
    "app/readers/*.py",
    "app/models/*.py",
    "engine/*.py",
    "engine/*/*.py",
    "engine/model/products/*.py",
    "engine/model/families/*.py",
)
# Commands of the terminal, and a model for tests.
OF_THE_TERMINAL = ("engine/bench/*.py", "engine/distill/*.py", "engine/model/real_model.py")
# What makes an error for a person, and what says what is being done.
AROUND = {"refusal": "{} _ read from GGUF.", "_meaningless": "_"}
REFUSE = {
    *("Refused", "damaged", "_told", "Loading", "Status", "put", *AROUND),
    *(name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.TrifoldError)),
}
NOT_SHOWN = frozenset(
    {
        # The same in German.
        "Trifold", "Deutsch", "English", "Top-k", "Top-p", "p50",
        "p95", "http://127.0.0.1:8000/v1", "{} · Trifold", "BibTeX", "Markdown", "RIS",
        # Names of keys, of browsers' parts, of styles and of fonts.
        "ArrowUp", "Backspace", "Enter", "Escape", "Tab", "BroadcastChannel", "Content-Type", "Files", "X-File-Name",
        "X-Open", "caret at-0", "header .quiet", "input, textarea, select", "li button.open, #begin-chat, #add-book",
        "calc(12px + {}em)", "color-mix(in srgb, {} {}%, transparent)", "linear-gradient(to right, {})",
        "{}px sans-serif",
        "Cantarell", "Cascadia Mono", "DejaVu Sans", "DejaVu Sans Mono", "Roboto", "Segoe UI", "Ubuntu", "False",
        "action aloud", "action main", "missing nearly", "attachment; filename*=utf-8''{}",
        # SQL of checksums.
        "{}new.{}; INSERT INTO sums VALUES ('{}', new.{}, {});", "{} WHERE sum IS NOT {}", "CAST({} AS BLOB)",
        # What the model is asked.
        "These are answers to one question, each from another part of one book, in the order of the book. Put them "
        "together into one answer to the question. Say nothing that is not in them, and do not speak of parts.",
        # Words that are looked for.

        "the a an his her its their my our your der die das den dem des ein eine einen einem einer eines le la les un "
        "une du au aux son sa ses el los las una al del su sus",
        # Words of the database, of logs, and of diagnostics that are sent to somebody.
        "Value", "malformed: its log is damaged", "malformed: there is only its log",
        "malformed: its tables are defined differently", "no row", "not a database",
        "unable to open", "vtable constructor failed", "in parts", "a number out of range", "Model {}",
        "When {}", "unsupported file format", "no stub is needed",
        # Pieces of sentences; the entries have these whole.
        "It stays", "They stay", "Part", "Parts", "do its {} notes", "does its note",
        "The book says so", "Your notes say so", "the book", "your notes", "The book", "The document", "the document",
        "The book says", "The documents say", "The documents", "the documents", "the whole book", "the whole document",
        "all of the documents",
    }
)  # fmt: skip

_LITERAL = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|"((?:\\.|[^"\\\n])*)"'
    r"|`((?:\\.|\$\{(?:[^{}`]|`[^`]*`|\{[^{}]*\})*\}|[^`\\])*)`"
    r"|(?<=[(=,:?&|;{])\s*/(?![/*])(?:\\.|\[(?:\\.|[^\]\n])*\]|[^/\\\n\[])+/[a-z]*",
    re.S,
)
_INNER = re.compile(r"\$\{((?:[^{}`]|`[^`]*`|\{[^{}]*\})*)\}")
_CODE = re.compile(r"[#.<:/(\[]|https?:|[A-Z_]{2,}(?:\s|$)|\S+/\S+$|.*[a-z]=|.*(?:::|, \.)")


def is_sentence(text: str) -> bool:
    bare = text.replace("{}", "").strip()
    words = re.search(r"[A-Za-z]{2}", bare) is not None and len(bare) < LONGEST
    capital = bare[:1].isupper() and not bare[1:2].isupper()
    return words and (" " in bare or capital) and not _CODE.match(text.strip())


def normal(text: str) -> str:
    """A text as entries are compared: places alike, and one where two touch; white space once."""
    return re.sub(r"(\{\})+", "{}", " ".join(text.replace("{n}", "{}").split()))


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, which the page translates one by one where it does not know the whole."""
    for part in re.split(r"(?<=[.!?…}])\s+(?=[A-Z“{])", text):
        yield re.sub(r"^\{\}\s+(?=[A-Z“])|(?<=\S)\{\}$", "", part)


def of_script(source: str) -> Iterator[str]:
    for found in _LITERAL.finditer(source):
        plain, template = found[1], found[2]
        if plain is not None:
            yield plain
        if template is not None:
            yield _INNER.sub("{}", template)
            for inner in _INNER.finditer(template):
                yield from of_script(inner[1])


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._kept = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._kept = ("translate", "no") in attrs or tag in ("script", "style")
        self.found += [value for name, value in attrs if name in ATTRIBUTES and value]

    def handle_endtag(self, tag: str) -> None:
        self._kept = False

    def handle_data(self, data: str) -> None:
        if not self._kept and re.search(r"[A-Za-z]", data):
            self.found.append(data)


def _owner(attribute: ast.Attribute) -> str:
    return attribute.value.id if isinstance(attribute.value, ast.Name) else ""


def walk(node: ast.AST) -> Sequence[ast.AST]:
    """The nodes of ``ast.walk``, in half of its time."""
    every = [node]
    for one in every:
        for value in vars(one).values():
            if isinstance(value, ast.AST):
                every.append(value)
            elif type(value) is list:
                every += [each for each in value if isinstance(each, ast.AST)]
    return every


@cache
def nodes_of(module: Path) -> Sequence[ast.AST]:
    return walk(ast.parse(module.read_text(encoding="utf-8")))


@cache
def of_module(module: Path) -> frozenset[str]:
    return frozenset(map(normal, literals(nodes_of(module))))


def literals(nodes: Sequence[ast.AST]) -> Iterator[str]:
    skipped: set[int] = set()
    for node in nodes:
        body = getattr(node, "body", None)
        if isinstance(body, list):  # docstrings
            skipped |= {id(line.value) for line in body if isinstance(line, ast.Expr)}
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and _owner(node.func) in ("logger", "re")
        ):
            skipped |= {id(part) for part in walk(node)}
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield re.sub(r"\{[^{}]*\}", "{}", node.value)


@cache
def strings() -> dict[str, str]:
    """Everything that may be shown, with the file that has it."""
    found: dict[str, str] = {}
    for script in sorted(PAGE.glob("*.js")):
        for text in of_script(script.read_text(encoding="utf-8")):
            found.setdefault(normal(text), script.name)
    for pattern in WRITES_FOR_THE_PAGE:
        for module in sorted(ROOT.glob(pattern)):
            if module.stem not in OTHERS:
                found |= dict.fromkeys(of_module(module) - found.keys(), module.name)
    return found


@cache
def behind() -> Sequence[Path]:
    others = {module for pattern in OF_THE_TERMINAL for module in ROOT.glob(pattern)}
    every = (module for pattern in BEHIND for module in ROOT.glob(pattern) if module not in others)
    refuse = re.compile(rf"\b(?:{'|'.join(REFUSE)})\(")
    return [module for module in every if "app" in module.parts or refuse.search(module.read_text(encoding="utf-8"))]


@cache
def refusals(module: Path) -> frozenset[str]:
    """What the errors of a module say, with the words that its callers put around it."""
    nodes = nodes_of(module)
    bound: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            bound.setdefault(node.targets[0].id, []).append(node.value)
    found = set()
    for node in nodes:
        if not isinstance(node, ast.Call):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        for place, part in enumerate(node.args if name in REFUSE else ()):
            around = AROUND.get(name) or ("{} _" if module.stem == "gguf_facts" and place == 0 else "_")
            for shown in bound.get(part.id, ()) if isinstance(part, ast.Name) else (part,):
                texts = map(normal, literals(walk(shown)))
                found |= {normal(around.replace("_", text)) for text in texts if is_sentence(text)}
    return frozenset(found)


@cache
def html_texts() -> tuple[str, ...]:
    texts = _Texts()
    texts.feed(start_page({}))
    return tuple(map(normal, texts.found))


def sources_of_models() -> set[str]:
    return {normal(words) for pair in pairs() for words in pair.target.sources}


@cache
def entries() -> dict[str, str]:
    found: dict[str, str] = json.loads((PAGE / "de.json").read_text(encoding="utf-8"))
    return found


def is_spelled_out(text: str, known: set[str]) -> bool:
    """Whether entries say what a text becomes with each of its few words: "{} {} not asked." with "was" and "were"."""
    becomes = re.compile(".+".join(map(re.escape, text.split("{}"))), re.I)
    return "{}" in text and any(becomes.fullmatch(entry) for entry in known)


def test_every_string_of_the_page_has_a_german_entry() -> None:
    known = {normal(key) for key in entries()}
    shown = {text: where for text, where in strings().items() if is_sentence(text)}
    shown |= dict.fromkeys(html_texts(), "frame.html")
    shown |= dict.fromkeys(sources_of_models(), "catalogue.json")
    missing = {
        text: where
        for text, where in shown.items()
        if text not in known | NOT_SHOWN
        and not {*sentences(text)} <= {*known, "{}"}
        and not is_spelled_out(text, known)
    }
    assert not missing, "\n".join(f'{where}: "{text}"' for text, where in sorted(missing.items()))
    assert shown.keys() >= NOT_SHOWN, f"named as not shown, and gone: {NOT_SHOWN - shown.keys()}"


def test_every_error_that_a_person_can_meet_has_a_german_entry() -> None:
    """Files that cannot be read, models that are refused, memory, disk, servers and the hub."""
    known = {normal(key) for key in entries()}
    missing = [
        f'{module.name}: "{text}"'
        for module in behind()
        for text in sorted(refusals(module))
        if text not in known and not {*sentences(text)} <= {*known, "{}"} and not is_spelled_out(text, known)
    ]
    assert missing == []


# What the functions of ``format`` and ``forecast`` write, by their names.
WRITTEN = {
    "stretch": ("about 5 s", "1 to 2 min", "40 s to 2 min"),
    "expected": ("about 1 min to read, then about 15 words a second",),
    "duration": ("3.2 s", "12 min 3 s"),
    "extent": ("76 pages and 4 sections", "1 section and 1 page"),
    "reached": ("page 84", "Xyz, section 7"),
    "reached_of": ("page 84 of 212", "Xyz, section 7"),
    "moment": ("today, 12:30", "12 Mar 2026"),
    "page_name": ("p. 7", "Xyz"),
    "place_named": ("page 12", "Xyz, pages 7 to 9", "Xyz, p. 7", "section 7 – section 9"),
    "standing": ("on page 12", "on pages 7 to 9", "on slide 7", "in Xyz, page 7", "in section 7 – section 9"),
    **{"size": ("1.2 GB",), "percent": ("40 %",), "count": ("1,234",), "milliseconds": ("53.4 ms",)},
}
UNITS = ("page", "section")
PLACE = "\0"  # what is not known
IN_PLACES = ("Xyz", "1,234", "7")
OF_NO_LANGUAGE = re.compile(r"Xyz|Trifold|\b(?:KB|MB|GB|TB|s|ms|min|h|p)\b|\b[A-Z]{2,}\b")
MOST_FORMS = 40  # of one sentence
DEEPEST = 14  # expressions within expressions
# Names of files, reports for others, words of an answer or of a book; and what is shown with a capital.
NOT_TRANSLATED = re.compile(r"attachment;|When  |Model  |Notes on |.* \(an image|asked |rows |A reviewer|\0 on “")


class Composed:
    """What the f-strings of a function become, with one thing or several, and with everything that is said only
    sometimes.

    ``nodes``: the function's. ``local``: nodes of the module's functions that return text. ``followed``: names of
    those that were followed.
    """

    def __init__(
        self, nodes: Sequence[ast.AST], local: Mapping[str, Sequence[ast.AST]], followed: set[str], one: bool
    ) -> None:
        self.nodes, self.local, self.followed, self.one = nodes, local, followed, one
        self.bound: dict[str, list[ast.expr]] = {}
        for node in nodes:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.bound.setdefault(node.targets[0].id, []).append(node.value)

    def sentences(self) -> Iterator[str]:
        made = [node for node in self.nodes if isinstance(node, ast.JoinedStr)]
        named = {node.id for whole in made for node in walk(whole) if isinstance(node, ast.Name)}
        pieces = {id(part) for whole in made for value in whole.values for part in walk(value)}
        pieces |= {id(part) for name in named for value in self.bound.get(name, ()) for part in walk(value)}
        for node in self.nodes:  # nobody on the page reads the log
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _owner(node.func) == "logger":
                pieces |= {id(part) for part in walk(node)}
        for node in made:
            if id(node) not in pieces:
                yield from self.of(node)

    def of(self, node: ast.expr, depth: int = 0) -> list[str]:
        if depth > DEEPEST:
            return [PLACE]
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.JoinedStr(values=values):
                parts = [self.of(value, depth + 1) for value in values]
                return ["".join(each) for each in itertools.islice(itertools.product(*parts), MOST_FORMS)]
            case ast.FormattedValue(value=value, format_spec=None):
                return self.of(value, depth + 1)
            case ast.IfExp(test=test, body=body, orelse=other):
                asks = ast.unparse(test)
                kept = [body] * (self.one or " == 1" not in asks) + [other] * (not self.one or " == 1" not in asks)
                return [text for each in kept for text in self.of(each, depth + 1)]
            case ast.BoolOp(op=ast.Or(), values=values):
                return [text for each in values for text in self.of(each, depth + 1)]
            case ast.Name(id="unit"):
                return list(UNITS)
            case ast.Name(id=name) if name in self.bound:
                values = self.bound.pop(name)
                found = [text for value in values for text in self.of(value, depth + 1)]
                self.bound[name] = values
                return found
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args):
                return self.of_call(name, args, depth)
        return [PLACE]

    def of_call(self, name: str, args: Sequence[ast.expr], depth: int) -> list[str]:
        if name == "counted":
            return [f"1 {noun}" if self.one else f"1,234 {noun}s" for noun in self.of(args[1], depth + 1)]
        if name in WRITTEN:
            return list(WRITTEN[name])
        if name == "_unit":
            return list(UNITS)
        if name not in self.local:
            return [PLACE]
        self.followed.add(name)
        inner = Composed(self.local[name], self.local, self.followed, self.one)
        returned = [node.value for node in inner.nodes if isinstance(node, ast.Return) and node.value]
        return [text for value in returned for text in inner.of(value, depth + 1)][:MOST_FORMS]


def composed(module: Path) -> set[str]:
    """The sentences that a module puts together."""
    functions = {node: walk(node) for node in nodes_of(module) if isinstance(node, ast.FunctionDef)}
    local = {each.name: nodes for each, nodes in functions.items() if "str" in ast.unparse(each.returns or each.args)}
    followed: set[str] = set()
    made = {
        each.name: [text for one in (True, False) for text in Composed(nodes, local, followed, one).sentences()]
        for each, nodes in functions.items()
        if any(isinstance(node, ast.JoinedStr) for node in nodes)
    }
    return {text for name, texts in made.items() if name not in followed for text in texts}


# What a script only compares, looks for or takes apart.
_NOT_PUT_IN = re.compile(
    r"""[!=]==\s*"[^"]*"|\b(?:replaceAll|replace|split|join|get|getAttribute|includes|toLocaleString|byId)\("[^"]*",?"""
)
_OF_STYLE = re.compile(r"(?:calc|color-mix|linear-gradient|transparent)\b|.*sans-serif$|.*\binput:")
_BINDS = r"""\b(?:const|let) {name} = ([^;]*);|(\[[^\[\];]*\])\.(?:forEach|map)\(\({name}\b"""
_TAKES = r"""(?:const (\w+) = \(|function (\w+)\()((?:\w+, )*){name}\b"""


def put_together(source: str, script: str) -> Iterator[str]:
    """What the templates of a script become, with every string that its places may have."""
    for found in _LITERAL.finditer(source):
        if found[2] is not None:
            pieces = _INNER.split(found[2])
            parts = [put_in(part, script) if at % 2 else [part] for at, part in enumerate(pieces)]
            yield from ("".join(each) for each in itertools.islice(itertools.product(*parts), MOST_FORMS))


def put_in(place: str, script: str) -> list[str]:
    """The strings that a template's place may have, without names of things; ``PLACE`` if none is known."""
    if re.fullmatch(r"[a-z]\w*", place):
        found = [bound[1] or bound[2] for bound in re.finditer(_BINDS.format(name=place), script)]
        for const, function, before in re.findall(_TAKES.format(name=place), script):
            given = re.findall(rf"\b{const or function}\(((?:[^(),]+, ){{{before.count(',')}}})(\"[^\"]*\")", script)
            found += [argument for _, argument in given]
        place = "; ".join(found)
    shown = _NOT_PUT_IN.sub("", place)
    plain = [text for found in _LITERAL.finditer(shown) if (text := found[1]) and not re.fullmatch("[a-z-]+", text)]
    return [*plain, *put_together(shown, script)] or [PLACE]


def blackened(texts: Sequence[Sequence[str]]) -> list[list[str]]:
    """What the page makes of texts, with its translations blackened."""
    script = f"""
    import {{ load, translated }} from {json.dumps((PAGE / "translation.js").as_uri())};
    import {{ readFileSync }} from "node:fs";
    const {{ entries, texts }} = JSON.parse(readFileSync(0));
    load("de", entries);
    console.log(JSON.stringify(texts.map((forms) => forms.map(translated))));
    """
    table = {key: re.sub(r"[^\W\d_]", "·", text) for key, text in entries().items()}
    node = compute_driver_executable()[0]
    done = subprocess.run(
        [node, "--input-type=module", "--eval", script],
        input=json.dumps({"entries": table, "texts": texts}).encode(),
        capture_output=True,
        check=True,
    )
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_what_is_put_together_of_several_strings_is_german_as_a_whole() -> None:
    """A count, a time and what is said only sometimes made sentences that no entry was for: "31,753 tokens are read,
    about 5 s." stayed English though each of its strings looked like a part of some entry. The scripts' templates made
    others: "Summarize this chapter: Loomings", which only a screen reader says.
    """
    patterns = (*WRITES_FOR_THE_PAGE, *WARN)
    modules = [file for pattern in patterns for file in ROOT.glob(pattern) if file.stem not in OTHERS]
    begun = re.compile(rf"^{PLACE} (?=[A-Z“])")  # by a sentence of its own
    made = {begun.sub("", text): file.name for file in sorted(modules) for text in composed(file)}
    for script in sorted(PAGE.glob("*.js")):
        source = script.read_text(encoding="utf-8")
        made |= dict.fromkeys(map(begun.sub, itertools.repeat(""), put_together(source, source)), script.name)
    texts = [text for text in made if is_sentence(text.replace(PLACE, "{}")) and not NOT_TRANSLATED.match(text)]
    texts = [text for text in texts if not _OF_STYLE.match(text) and text.replace(PLACE, "{}") not in NOT_SHOWN]
    assert len(texts) > 240
    # The parts of a line are translated one by one: this one's end was taken for "{} repeated itself".
    texts.append("9 words · 2.8 times faster than plain · stopped, it only repeated itself")
    made[texts[-1]] = "format.py"
    # The rest of a line is an element of its own: the mark at its begin was taken for a part of the number.
    texts.append("· 31,753 tokens · fits")
    made[texts[-1]] = "books.js"
    texts.append("The first 251 of 352 pages fit. Expect 2 to 6 min to read, then 2 to 9 words a second.")
    made[texts[-1]] = "planner.py"
    keys = [re.sub(r"\{n?\}", "7", re.sub(r"^\{\} (?=[A-Z][a-z]+ [a-z])", "Xyz. ", key)) for key in entries()]
    shown = blackened(
        [*([text.replace(PLACE, word) for word in IN_PLACES] for text in texts), *([key] for key in keys)]
    )
    left = [
        f'{made[text]}: "{text.replace(PLACE, "{}")}" becomes "{forms[0]}"'
        for text, forms in zip(texts, shown, strict=False)
        if all(re.search("[A-Za-z]{2}", OF_NO_LANGUAGE.sub("", form)) for form in forms)
    ]
    assert left == [], "\n".join(left)
    of_keys = [OF_NO_LANGUAGE.sub("", form) for (form,) in shown[len(texts) :]]
    assert [key for key, form in zip(keys, of_keys, strict=True) if re.search("[A-Za-z]{4}", form)] == []


def test_what_an_option_may_be_is_german() -> None:
    options = [one for record in (SamplingParams, Ask) for one in options_of(record) if not one.choices]
    shown = blackened([[f"It must be {one.allowed}."] for one in options])
    assert len(shown) > 6
    assert [form for (form,) in shown if re.search("[A-Za-z]{2}", form)] == []


def test_a_sentence_about_a_file_is_german_to_its_end() -> None:
    """Of several entries that matched, the one with most letters was taken, and its places stayed English."""
    causes = {text for module in behind() if module.parent.name == "readers" for text in refusals(module)}
    texts = [f"“7” {cause.replace('{}', '7')}" for cause in sorted(causes) if cause[0].islower()]
    assert "“7” has no pages." in texts
    shown = [OF_NO_LANGUAGE.sub("", form) for (form,) in blackened([[text] for text in texts])]
    assert [form for form in shown if re.search("[A-Za-z]{2}", form)] == []


def test_the_name_of_a_sheet_stays_as_the_person_wrote_it() -> None:
    shown = blackened([["sheet Notes"], ["sheet Summary, rows 1–40"], ["slide 3"]])
    assert shown == [["····· Notes"], ["····· Summary, ······ 1–40"], ["····· 3"]]


def test_no_german_entry_is_left_of_a_string_that_is_gone() -> None:
    """An entry may also be what a string of the program becomes, with others in its places."""
    plain = {*strings(), *html_texts()}
    for module in [*behind(), ROOT / "app" / "web" / "auth.py"]:
        plain |= of_module(module) | refusals(module)
    catalogue = (ROOT / "app" / "models" / "catalogue.json").read_text(encoding="utf-8")
    plain |= set(map(normal, re.findall(r'"((?:\\\\.|[^"\\\\])*)"', catalogue.replace("{asked:.1f}", "{}"))))
    plain |= sources_of_models()
    plain |= set(SHORT_NAMES.values())
    plain |= set(map(os.strerror, errno.errorcode))  # the system's own words
    plain |= {text.replace(book, notes) for text in plain for book, notes in OF_TEXT}
    plain |= {sentence for text in plain for sentence in sentences(text)}
    left = []
    for key in entries():
        entry = normal(key)
        rest = entry.removeprefix("1 ").replace("{}", "").strip(" .")
        fewest = 1 if "{}" in entry else FEWEST_LETTERS
        if not {entry, rest} & plain and not _composed(frozenset(plain), fewest).fullmatch(entry):
            left.append(key)
    assert left == []


FEWEST_LETTERS = 3  # that a string has outside of its places, to have become a whole sentence


@cache
def _composed(plain: frozenset[str], fewest: int) -> re.Pattern[str]:
    made = [text for text in plain if "{}" in text and len(re.sub(r"\{\}|\s", "", text)) >= fewest]
    return re.compile("|".join(".+".join(map(re.escape, text.split("{}"))) for text in made), re.I)


def test_the_heads_of_folded_parts_of_an_answer_are_translated() -> None:
    """ "The first answer, from 2 passages" was English on a German page."""
    heads = re.findall(r'<details class="([\w-]+)"', (ROOT / "app" / "web" / "messages.py").read_text(encoding="utf-8"))
    ours = (PAGE / "language.js").read_text(encoding="utf-8")
    assert len(heads) > 2
    assert [head for head in heads if f".{head} > summary" not in ours] == []


def test_what_is_asked_is_named_in_german_in_every_hint() -> None:
    begun = ("Ask anything about", "Ask where something is said in")
    hints = [f"{words} {what}." for words in begun for what in (*_THESE.values(), "your notes")]
    assert [hint for hint in hints if hint not in entries()] == []


def test_a_translation_has_the_places_of_its_text() -> None:
    for text, translation in entries().items():
        places = {str(place) for place in range(len(re.findall(r"\{n?\}", text)))}
        assert set(re.findall(r"\{(.*?)\}", translation)) <= places, text
        assert "  " not in translation, text
