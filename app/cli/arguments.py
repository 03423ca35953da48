"""Parses the command line: defines the commands and their options, and finds the errors in what a person typed.

Imports only the standard library and the engine's settings, so that the launcher can show help and refuse a wrong
command line before anything is installed. Runs no command.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from app.core.question import ALL_PARTS, Ask
from app.core.settings import COMMAND, DEFAULT_PORT, INSTALLED, READER, READER_DRAFT
from engine.config import EngineConfig, SamplingParams, options_of
from engine.errors import OptionError, TrifoldError
from engine.version import VERSION

APP = "app"

COMMANDS = {
    APP: "the app, opened in the browser (the default command)",
    "ask": "one answer in the terminal, with figures",
    "read": "title, pages, tokens and warnings of a file; with --text, its whole text",
    "notes": "your notes, on all books or on one; also as entries for reference managers",
    "doctor": "a check of this machine: which models fit, what is missing, and how to get it",
    "bench": "a table that compares plain and hierarchical decoding",
    "test": "the test suite: formatting, lint, types, tests",
}

_LAUNCHER_HELP = f"""\
{COMMAND} --repair builds the program's environment again.
"""
_LAUNCHER_VARIABLES = """\
  TRIFOLD_HOME   folder for the program's environment, if the program's own folder is read-only
  TRIFOLD_TORCH  build of torch to install: cpu, cu126, cu130, xpu or plain; detected if not set
"""
_EPILOG = f"""\
{COMMAND} COMMAND --help shows the options of a command.
{"" if INSTALLED else _LAUNCHER_HELP}
environment variables:
  TRIFOLD_DATA   folder for books, uploads and logs
{"" if INSTALLED else _LAUNCHER_VARIABLES}"""

PAIR = "--pair"
"""The option of ``bench`` that measures the reader model with its draft model."""

# Short names of some engine options, in addition to the full names, keyed by the setting. ``--gamma1`` and ``--gamma2``
# are the symbols of the TriForce paper.
_SHORT_NAMES = {
    "num_draft_tokens": "--gamma1",
    "num_pending_tokens": "--gamma2",
    "retrieval_budget": "--budget",
}
_MODEL_FIELDS = ("model", "draft", "context")
_MAX_PORT = 65535
NOTE_FORMS = ("md", "bib", "ris")


class HelpAsked(Exception):
    """Raised when the person asked for help. The message is the help text."""


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. In the result, ``command`` is always set. For ``bench`` and ``test``, ``rest`` has the
    arguments that the command passes on.

    Raises:
        OptionError: the line is wrong. For an unknown name, the message suggests the nearest known name, if there is
            one.
        HelpAsked: help was asked for.
    """
    command, rest = APP, list(arguments)
    if rest and not rest[0].startswith("-"):
        command = rest.pop(0)
    if command not in COMMANDS:
        raise OptionError(f"There is no command {command!r}.", _suggest(command, COMMANDS))
    parser = _PARSERS[command]()
    # the options for models are parsed here; the bench itself parses the rest of its command line
    if command == "bench":
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
    """Whether a command line runs a command. False for a line that only asks for help or is wrong."""
    try:
        parse(arguments)
    except (TrifoldError, HelpAsked):
        return False
    return True


def engine_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the engine settings that a command line gives, keyed by their names in ``EngineConfig``."""
    names = [field.name for field in _engine_fields()]
    return {name: vars(options)[name] for name in names if vars(options).get(name) is not None}


class Parser(argparse.ArgumentParser):
    """A parser that raises an error instead of printing it and exiting. If an option is unknown, the error suggests the
    nearest known option.
    """

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
            name = (names.split() or [""])[0].split("=")[0]  # an argument of spaces only has no name
            known = [text for action in self._actions for text in action.option_strings]
            raise OptionError(f"There is no option {name!r}.", _suggest(name, known, f"{self.prog} --help"))
        _, _, missing = message.partition("the following arguments are required: ")
        if missing:
            said = " and ".join(missing.split(", "))
            raise OptionError(f"{said} {'are' if ',' in missing else 'is'} missing.", f"See: {self.prog} --help")
        raise OptionError(message[:1].upper() + message[1:] + ".", f"See: {self.prog} --help")


class _Version(argparse.Action):
    """Handles ``--version`` like ``--help``: raises ``HelpAsked`` with the version, so that no command runs."""

    def __call__(self, *_: Any) -> NoReturn:
        raise HelpAsked(f"Trifold {VERSION}\n")


def _app_parser() -> Parser:
    commands = "\n".join(f"  {name:8} {what}" for name, what in COMMANDS.items())
    parser = Parser(
        APP,
        description="Talk with a whole book on this machine.\n\ncommands:\n" + commands,
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version of Trifold")
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument(
        "--window", action="store_true", help="open a window instead of the browser, if pywebview is installed"
    )
    parser.add_argument(
        "--listen", action="store_true", help="accept other machines too; they need the password TRIFOLD_PASSWORD"
    )
    _add_no_snapshot(parser)
    parser.add_argument(
        "--port", type=_port, default=DEFAULT_PORT, metavar="N", help=f"port of the page ({DEFAULT_PORT})"
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
        help="if FILE is a folder or a zip archive: ask each document in it, and write a row for each to this table; "
        "the same command resumes a stopped run",
    )
    parser.add_argument("--pages", type=_page_range, metavar="A-B", help="read only these pages, such as 10-80")
    parser.add_argument(
        "--chapters", metavar="LIST", help="read only these chapters, by number or title: “2, 5-7” or “The Gale; 9”"
    )
    parser.add_argument(
        "--parts",
        nargs="?",
        const=0,
        type=_num_parts,
        metavar="all|N",
        help="if a book is too long: read each part of it once, and ask the parts that the question needs, all parts, "
        "or the N most relevant parts",
    )
    _add_no_snapshot(parser)
    parser.add_argument(
        "--fit", action="store_true", help="if a book is too long: read only its start, as much as fits"
    )
    _add_options(parser, SamplingParams)
    _add_options(parser, Ask)
    _add_model(parser)
    return parser


def _add_options(parser: Parser, record: type) -> None:
    """Add the options of an answer that a record declares."""
    for one in options_of(record):
        otherwise = "the model's own" if one.is_models else "random" if one.default is None else one.default
        form: dict[str, Any] = {"type": one.kind, "metavar": "N"}
        if one.kind is bool:
            form = {"action": argparse.BooleanOptionalAction}
            otherwise = {True: "yes", False: "no"}.get(one.default, otherwise)
        elif one.choices:
            form = {"choices": one.choices, "metavar": "|".join(one.choices)}
        name = "--" + one.name.replace("_", "-")
        parser.add_argument(name, default=one.default, help=f"{one.help} ({otherwise})", **form)


def _read_parser() -> Parser:
    parser = Parser(
        "read", "FILE [FILE ...]", description="Show what Trifold reads in a file, without asking a question."
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="the book, or several documents as one")
    parser.add_argument(
        "--text",
        action="store_true",
        help="print the text as the model reads it; a line with the page's name precedes each page",
    )
    _add_document(parser)
    _add_target(parser.add_argument_group("model, whose tokens are counted"))
    return parser


def _notes_parser() -> Parser:
    parser = Parser("notes", "[BOOK]", description="Show your notes from the app, on all books or on one.")
    parser.add_argument(
        "book", metavar="BOOK", nargs="?", help="words of the book's title, or its file; if not given, all books"
    )
    parser.add_argument("--find", metavar="WORDS", help="only notes with these words; case and accents do not matter")
    parser.add_argument("--form", choices=NOTE_FORMS, default=NOTE_FORMS[0], metavar="|".join(NOTE_FORMS),
                        help="Markdown, or entries for reference managers: BibTeX or RIS (md)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else there")
    return parser


def _doctor_parser() -> Parser:
    parser = Parser("doctor", description="Check this machine: which models fit, what is missing, and how to get it.")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of sentences")
    parser.add_argument("--report", action="store_true", help="add the end of the log, for a request for help")
    parser.add_argument(
        "--selftest",
        action="store_true",
        help="check that no part of Trifold changes the model's answers on this machine",
    )
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
    parser.add_argument("--password", metavar="WORD", help="password of an encrypted document")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout and nothing else there")
    parser.add_argument(
        "--no-comments", action="store_true", help="leave out comments that readers and reviewers added to the file"
    )
    parser.add_argument(
        "--no-pictures", action="store_true", help="leave out the words of charts and other pictures beside the text"
    )
    parser.add_argument(
        "--recognise",
        action="store_true",
        help="recognise pages whose text in the file is garbled; pages without text are always recognised",
    )
    parser.add_argument(
        "--convert", action="store_true", help="let LibreOffice on this machine convert old Office files (.doc, .ppt)"
    )


def _add_no_snapshot(parser: Parser) -> None:
    parser.add_argument(
        "--no-snapshot", action="store_true", help="read every book again, and store nothing of the reading on disk"
    )


def _add_target(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        metavar="NAME",
        help="target model: a folder, a GGUF file or a hub id; or reader: for real conversations, 1.1 GB; starter: a "
        "small model, 93 MB; demo: the bundled model (demo)",
    )
    group.add_argument("--yes", action="store_true", help="download the named models without asking")


def _add_model(parser: Parser) -> None:
    group = parser.add_argument_group("model and engine")
    _add_target(group)
    group.add_argument(
        "--draft",
        metavar="NAME",
        help="draft model: a folder, a GGUF file, a hub id, or none, which leaves a draft head of the model's own; "
        "reader-draft: the draft for the reader",
    )
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
            meaning += " (chosen at run time)"
        group.add_argument(*names, dest=field.name, type=kind, metavar="N" if kind is int else "NAME", help=meaning)


def _engine_meanings() -> dict[str, str]:
    """The meaning of each setting of the engine, from the docstring of ``EngineConfig``."""
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
        raise argparse.ArgumentTypeError(
            f"{text!r} is neither all nor a number of parts; write the question before --parts"
        )
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port between 1 and {_MAX_PORT}")
    return int(text)


def _suggest(name: str, names: Sequence[str] | dict[str, str], advice: str = f"{COMMAND} --help") -> str:
    # names are compared without leading dashes, which would make all options look similar
    bare = {each.lstrip("-"): each for each in names}
    near = difflib.get_close_matches(name.lstrip("-"), list(bare), n=1)
    return f"Did you mean {bare[near[0]]!r}?" if near else f"See: {advice}"
