"""The command line as data: the commands, their options, and the errors in a line.

Standard library and the engine's settings only, so that the launcher can show help and refuse a wrong line before
anything is installed. Runs nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from app.core.settings import COMMAND, DEFAULT_PORT, INSTALLED, READER, READER_DRAFT
from engine.config import GREEDY, MODES, OWN_SAMPLING, EngineConfig, SamplingParams
from engine.errors import OptionError, TrifoldError
from engine.version import VERSION

APP = "app"

COMMANDS = {
    APP: "the app, opened in the browser; what happens when no command is given",
    "ask": "one answer in the terminal, with figures",
    "read": "what was found in a file: title, pages, tokens, warnings; with --text all of its words",
    "notes": "what you have noted in your books: all of it, or of one, also for reference managers",
    "doctor": "this machine, what fits, what is missing and how to get it",
    "bench": "plain and hierarchical decoding side by side, one table",
    "test": "the test suite: formatting, lint, types, tests",
}

_LAUNCHER_HELP = f"""\
{COMMAND} --repair makes the program's environment afresh.
"""
_LAUNCHER_VARIABLES = """\
  TRIFOLD_HOME   folder for the program's environment, where this one cannot be written to
  TRIFOLD_TORCH  build of torch to install: cpu, cu126, cu130, xpu or plain; found out by itself otherwise
"""
_EPILOG = f"""\
{COMMAND} COMMAND --help tells more about one.
{"" if INSTALLED else _LAUNCHER_HELP}
environment variables:
  TRIFOLD_DATA   folder for books, uploads and logs
{"" if INSTALLED else _LAUNCHER_VARIABLES}"""

PAIR = "--pair"
"""The bench's option for the reader with its draft."""

# Short names of options, from the paper and the field, in addition to the engine's own.
_SHORT_NAMES = {
    "num_draft_tokens": "--gamma1",
    "num_pending_tokens": "--gamma2",
    "retrieval_budget": "--budget",
}
_SAMPLING_HELP = {
    "max_tokens": "longest answer, in tokens",
    "temperature": "0 always takes the likeliest token",
    "top_p": "keep the likeliest tokens up to this share of probability",
    "top_k": "keep this many of the likeliest tokens; 0 keeps all",
    "repetition_penalty": "above 1, tokens of the answer are less likely to come again",
    "exact_quotes": "between quotation marks only what stands in the book",
    "seed": "makes a sampled answer repeatable, with the same settings: give --budget and --chunk-size too",
}
_MODEL_FIELDS = ("model", "draft", "context")
_MAX_PORT = 65535
NOTE_FORMS = ("md", "bib", "ris")
ALL_PARTS = 10_000
"""The number that ``--parts all`` means: more parts than any book has."""


class HelpAsked(Exception):
    """Raised when the person asked for help. The message is the help text."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Read a command line. ``command`` is always set; ``rest`` holds the words that a command passes on.

    Raises:
        OptionError: the line is wrong; the message has the nearest right name.
        HelpAsked: help was asked for.
    """
    command, rest = APP, list(arguments)
    if rest and not rest[0].startswith("-"):
        command = rest.pop(0)
    if command not in COMMANDS:
        raise OptionError(f"There is no command {command!r}.", _suggest(command, COMMANDS))
    parser = _PARSERS[command]()
    if command == "bench":  # the bench parses its own line; only the models have to be known beforehand
        options = parser.parse_known_args(rest)[0]
        if options.pair:
            if options.model or options.real:
                raise OptionError(f"{PAIR} brings its own model.", "Leave out --model and --real.")
            options.model, options.draft = READER, options.draft or READER_DRAFT
        return argparse.Namespace(command=command, rest=rest, **vars(options))
    if command == "test":
        options, passed_on = parser.parse_known_args(rest)
        return argparse.Namespace(command=command, rest=passed_on, **vars(options))
    return parser.parse_args(rest, argparse.Namespace(command=command))


def is_complete(arguments: Sequence[str]) -> bool:
    """Whether a command line can be run. A line that only asks for help, or is wrong, cannot."""
    try:
        parse(arguments)
    except (TrifoldError, HelpAsked):
        return False
    return True


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """The engine's settings in a command line, keyed by their names in ``EngineConfig``."""
    names = [field.name for field in _engine_fields()]
    return {name: vars(options)[name] for name in names if vars(options).get(name) is not None}


class Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing and exiting, and names the nearest known option."""

    def __init__(self, command: str, takes: str = "", **more: Any) -> None:
        name = COMMAND if command == APP else f"{COMMAND} {command}"
        super().__init__(
            prog=name,
            usage=" ".join(part for part in (name, takes, "[options]") if part),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **more,
        )

    def print_help(self, file: Any = None) -> NoReturn:
        raise HelpAsked(self.format_help())

    def error(self, message: str) -> NoReturn:
        unknown, _, names = message.partition("unrecognized arguments: ")
        if names and not unknown:
            name = (names.split() or [""])[0].split("=")[0]  # a name may consist of nothing but spaces
            known = [text for action in self._actions for text in action.option_strings]
            raise OptionError(f"There is no option {name!r}.", _suggest(name, known, f"{self.prog} --help"))
        raise OptionError(message[:1].upper() + message[1:] + ".", f"See: {self.prog} --help")


class _Version(argparse.Action):
    """Answers ``--version`` in the way help is answered: with text, without running anything."""

    def __call__(self, *_: Any) -> NoReturn:
        raise HelpAsked(f"Trifold {VERSION}\n")


def _app_parser() -> Parser:
    commands = "\n".join(f"  {name:8} {what}" for name, what in COMMANDS.items())
    parser = Parser(
        APP,
        description="Talk with a whole book on this machine.\n\ncommands:\n" + commands,
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="which version of Trifold this is")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument("--window", action="store_true", help="a window of its own, where pywebview is installed")
    parser.add_argument(
        "--listen", action="store_true", help="answer other machines too, for those who know TRIFOLD_PASSWORD"
    )
    _add_no_snapshot(parser)
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, metavar="N", help=f"where the page listens ({DEFAULT_PORT})"
    )
    _add_model(parser)
    return parser


def _ask_parser() -> Parser:
    parser = Parser(
        "ask",
        "FILE [FILE ...] QUESTION",
        description="Read a book, or several documents as one, and answer one question about it in the terminal.",
    )
    parser.add_argument("file", metavar="FILE", help="the book; further files may follow")
    parser.add_argument("question", metavar="QUESTION", nargs="+", help="the question; quotes are optional")
    _add_document(parser)
    parser.add_argument(
        "--csv",
        metavar="TABLE",
        help="FILE is a folder: ask each of its documents, a row each in this table; the same command goes on where "
        "it was stopped",
    )
    parser.add_argument("--pages", type=_page_range, metavar="A-B", help="read these pages only, such as 10-80")
    parser.add_argument(
        "--chapters", metavar="LIST", help="read these chapters only, by number or title: “2, 5-7” or “The Gale; 9”"
    )
    parser.add_argument(
        "--parts",
        nargs="?",
        const=0,
        type=_num_parts,
        metavar="all|N",
        help="read a book that is too long in parts, each once, and ask those that the question needs; all of them, or "
        "the N most promising",
    )
    _add_no_snapshot(parser)
    parser.add_argument("--fit", action="store_true", help="of a book that is too long, read from its start what fits")
    parser.add_argument(
        "--mode", choices=MODES, default=MODES[0], metavar="|".join(MODES), help=f"how to decode ({MODES[0]})"
    )
    usual = SamplingParams()
    for name, meaning in _SAMPLING_HELP.items():
        default = getattr(usual, name)
        otherwise = "the model's own" if name in OWN_SAMPLING else "random" if default is None else default
        kind = type(getattr(GREEDY, name) if name in OWN_SAMPLING else 0)
        form: dict[str, Any] = {"type": kind, "metavar": "N"}
        if kind is bool:
            form = {"action": argparse.BooleanOptionalAction}
        parser.add_argument("--" + name.replace("_", "-"), default=default, help=f"{meaning} ({otherwise})", **form)
    parser.add_argument(
        "--evidence",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="after the answer, the passages that its sentences rest on (yes)",
    )
    _add_model(parser)
    return parser


def _read_parser() -> Parser:
    parser = Parser("read", "FILE [FILE ...]", description="Show what is found in a file, before asking anything.")
    parser.add_argument("files", metavar="FILE", nargs="+", help="the book, or several documents as one")
    parser.add_argument(
        "--text",
        action="store_true",
        help="the text of all pages as the model gets it, each after a line with its name",
    )
    _add_document(parser)
    _add_model(parser)
    return parser


def _notes_parser() -> Parser:
    parser = Parser("notes", "[BOOK]", description="Show what you have noted in the app, of all books or of one.")
    parser.add_argument("book", metavar="BOOK", nargs="?", help="words of its title, or its file; all books without it")
    parser.add_argument("--find", metavar="WORDS", help="only notes with these words; case and accents do not matter")
    parser.add_argument("--form", choices=NOTE_FORMS, default=NOTE_FORMS[0], metavar="|".join(NOTE_FORMS),
                        help="as Markdown, or as entries for reference managers: BibTeX, RIS (md)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else there")
    return parser


def _doctor_parser() -> Parser:
    parser = Parser("doctor", description="Look at this machine: what fits, what is missing and how to get it.")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of sentences")
    parser.add_argument("--report", action="store_true", help="with the end of the log, for somebody who is to help")
    parser.add_argument("--selftest", action="store_true", help="check that nothing here changes what the model says")
    _add_model(parser)
    return parser


def _test_parser() -> Parser:
    return Parser(
        "test",
        "[pytest arguments]",
        description="Check formatting, lint and types, then run the tests. Other arguments go to pytest.",
    )


def _bench_parser() -> Parser:
    parser = Parser("bench", add_help=False)
    parser.add_argument("--model")
    parser.add_argument("--draft")
    for name in (PAIR, "--real"):
        parser.add_argument(name, action="store_true")
    return parser


_PARSERS = {
    APP: _app_parser,
    "bench": _bench_parser,
    "ask": _ask_parser,
    "read": _read_parser,
    "notes": _notes_parser,
    "doctor": _doctor_parser,
    "test": _test_parser,
}


def _add_document(parser: Parser) -> None:
    parser.add_argument("--password", metavar="WORD", help="of an encrypted document")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else there")
    parser.add_argument(
        "--no-comments", action="store_true", help="leave out the comments that readers and reviewers put into the file"
    )
    parser.add_argument(
        "--recognise",
        action="store_true",
        help="read pages from their pictures where the file's own text is garbled; pages without text are so anyway",
    )


def _add_no_snapshot(parser: Parser) -> None:
    parser.add_argument(
        "--no-snapshot", action="store_true", help="read books anew, and keep nothing of the reading on disk"
    )


def _add_model(parser: Parser) -> None:
    group = parser.add_argument_group("model and engine")
    group.add_argument(
        "--model",
        metavar="NAME",
        help="folder, GGUF file or hub id of the target model; reader: a real conversation, 1.1 GB; starter: a small "
        "one, 93 MB; demo: the bundled one (demo)",
    )
    group.add_argument(
        "--draft",
        metavar="NAME",
        help="folder, GGUF file or hub id of the draft model, or none; reader-draft: for the reader",
    )
    group.add_argument("--yes", action="store_true", help="fetch the reader, its draft or the starter without asking")
    group.add_argument("--context", type=int, metavar="N", help="window in tokens (the model's own)")
    meanings = _engine_meanings()
    for field in _engine_fields():
        names = ["--" + field.name.replace("_", "-")]
        if field.name in _SHORT_NAMES:
            names.append(_SHORT_NAMES[field.name])
        kind = int if field.default is None else type(field.default)
        meaning = meanings.get(field.name, "")
        if field.default is not None:
            meaning += f" ({field.default or 'in the data folder'})"
        elif "if not given" not in meaning:
            meaning += " (chosen while it runs)"
        group.add_argument(*names, dest=field.name, type=kind, metavar="N" if kind is int else "NAME", help=meaning)


def _engine_meanings() -> dict[str, str]:
    """The meaning of each setting of the engine, from its own documentation."""
    text = (EngineConfig.__doc__ or "").partition("Args:")[2]
    meanings = {}
    for entry in re.split(r"\n(?=        \w[\w, ]*: )", text):
        names, _, meaning = entry.partition(": ")
        for name in names.split(","):
            meanings[name.strip()] = " ".join(meaning.split()).rstrip(".")
    return meanings


def _engine_fields() -> list[dataclasses.Field[Any]]:
    return [field for field in dataclasses.fields(EngineConfig) if field.name not in _MODEL_FIELDS]


def _page_range(text: str) -> tuple[int, int]:
    first, dash, last = text.partition("-")
    try:
        return int(first), int(last if dash else first)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a range such as 10-80") from None


def _num_parts(text: str) -> int:
    if text == "all":
        return ALL_PARTS
    if not text.isdecimal() or not 1 <= int(text) < ALL_PARTS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither all nor a number of parts; the question comes first")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port between 1 and {_MAX_PORT}")
    return int(text)


def _suggest(name: str, known: Sequence[str] | dict[str, str], otherwise: str = f"{COMMAND} --help") -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {near[0]!r}?" if near else f"See: {otherwise}"
