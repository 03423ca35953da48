"""Runs the command that a command line names, and turns every error into words and an exit status.

The exit statuses are ``app.core.settings.EXIT_DONE`` and the constants after it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path

from app.cli.arguments import HelpAsked, engine_options, parse
from app.core.private import make_private
from app.core.settings import (
    EXIT_BAD_INPUT,
    EXIT_DONE,
    EXIT_FAULT,
    EXIT_INTERRUPTED,
    LOG_NAME,
    REPAIR,
    data_folder,
    make_settings,
)
from engine.errors import TrifoldError, on_one_line
from engine.threads import limit_instructions, sleep_while_waiting

_LOG_BYTES = 2_000_000  # maximum bytes of a log file; beyond this size a new file is begun
_LOG_FILES = 3

# Module and function of each command. The module is in this folder and imported when the command is used. The function
# takes ``options`` and ``settings`` and returns the exit status.
_COMMANDS = {
    "app": "serve:run",
    "ask": "ask:run",
    "read": "read:run",
    "notes": "notes:run",
    "doctor": "doctor:run",
    "bench": "develop:run_bench",
    "test": "develop:run_checks",
}


_ASK_MANY = "ask_many:run"
_ASK_PARTS = "ask_parts:run"


def main(arguments: Sequence[str]) -> int:
    """Run one command line. Returns the exit status."""
    _write_utf8()
    _close_data_folder(data_folder())
    with logging_to(data_folder() / "logs") as log, _ended_as_by_ctrl_c():
        try:
            status = _run(arguments)
            sys.stdout.flush()  # flushed inside this block, because an error from a closed pipe is handled below
            return status
        except TrifoldError as error:
            sys.stderr.write(f"{error}\n")
            return EXIT_BAD_INPUT
        except KeyboardInterrupt:
            sys.stderr.write("\n")
            return EXIT_INTERRUPTED
        # The program that reads the output has closed the pipe. Stdout is redirected, so that Python does not report
        # this error again when it exits.
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_FAULT
        except ModuleNotFoundError as error:
            sys.stderr.write(f"The package {error.name} is missing. Run: {REPAIR}\n")
            return EXIT_BAD_INPUT
        except Exception as error:  # no error may reach the person as a traceback
            logging.getLogger(__name__).error("unexpected error", exc_info=error)
            said = on_one_line(f"{type(error).__name__}: {error}")
            sys.stderr.write(f"This should not have happened: {said}. Details: {log}\n")
            return EXIT_FAULT


def _close_data_folder(data: Path) -> None:
    with contextlib.suppress(OSError):  # a folder that cannot be made is reported where it is needed
        if make_private(data):
            sys.stderr.write(f"Other users of this machine could look into {data}; it is closed to them now.\n")


def _write_utf8() -> None:
    """Make stdout UTF-8 on Windows if a file or a program reads it, as ``launch.py`` does by PYTHONUTF8. Otherwise a
    letter that the machine's code page lacks would end the command.
    """
    if sys.platform == "win32" and isinstance(sys.stdout, io.TextIOWrapper) and not sys.stdout.isatty():
        sys.stdout.reconfigure(encoding="utf-8")


@contextlib.contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Let a request to end the program (SIGTERM) act like Ctrl-C, so that the KV of the pages read so far is saved."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may handle signals, so in another thread nothing is changed
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _run(arguments: Sequence[str]) -> int:
    try:
        options = parse(arguments)
    except HelpAsked as help_text:
        sys.stdout.write(str(help_text))
        return EXIT_DONE
    named = vars(options)
    settings = make_settings(
        model=named.get("model"),
        draft=named.get("draft"),
        context=named.get("context"),
        options=engine_options(options) | ({"snapshot_folder": ""} if named.get("no_snapshot") else {}),
        **({"port": options.port} if "port" in named else {}),
    )
    settings.engine_config()  # called for its check, which raises an error if a value is out of range
    prepare_libraries()
    # imported only here, because ``--help`` must work before the packages that ``app.cli.models`` imports are installed
    from app.cli.models import on_this_machine

    settings = on_this_machine(options, settings)
    module, function = _command(options).split(":")
    status: int = getattr(importlib.import_module(f"app.cli.{module}"), function)(options, settings)
    return status


def _command(options: argparse.Namespace) -> str:
    """The module and function that run a command, as "module:function". ``ask`` has three functions: for one book, for
    the parts of a book, and for every document of a folder.
    """
    if options.command == "ask" and (options.csv or Path(options.file).expanduser().is_dir()):
        return _ASK_MANY
    if options.command == "ask" and options.parts is not None:
        return _ASK_PARTS
    return _COMMANDS[options.command]


def prepare_libraries() -> None:
    """Set environment variables that keep libraries quiet and off the network. Call this before a library is imported,
    because libraries read the variables on import.
    """
    os.environ.update(
        GRADIO_ANALYTICS_ENABLED="False",
        HF_HUB_OFFLINE="1",  # only a separate process downloads models (``app.models.hub``)
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        # Messages of libraries may contain text from a model's files, so only critical messages are logged. Errors are
        # raised as exceptions regardless of these settings.
        HF_HUB_VERBOSITY="critical",
        TRANSFORMERS_VERBOSITY="critical",
        TOKENIZERS_PARALLELISM="false",
    )
    sleep_while_waiting()
    limit_instructions()


class _LogFile(RotatingFileHandler):
    """A log file that drops lines when the disk is full, so that logging never disturbs the program."""

    def handleError(self, record: logging.LogRecord) -> None:
        return

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()


@contextlib.contextmanager
def logging_to(folder: Path) -> Iterator[Path]:
    """Write the program's log to a file of limited size, and nowhere else, until the ``with`` block ends. Yield the
    file's path.
    """
    path = folder / LOG_NAME
    handler: logging.Handler = logging.NullHandler()
    with contextlib.suppress(OSError):  # a log that cannot be written must not stop the program
        folder.mkdir(parents=True, exist_ok=True)
        handler = _LogFile(path, maxBytes=_LOG_BYTES, backupCount=_LOG_FILES, encoding="utf-8", delay=True)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    logging.captureWarnings(True)
    # only the loggers of this program write messages of level INFO; libraries keep the root logger's level, which is
    # WARNING
    for name in ("app", "engine"):
        logging.getLogger(name).setLevel(logging.INFO)
    try:
        yield path
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        handler.close()
