"""The page in a process of its own with a scripted engine behind it: ``python -m tests.e2e.scripted_server PORT DATA``.

What the engine does is chosen by a word in the question, what the reader does by the first word of the file.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app import server, settings
from app.books import Books
from app.chats import Chats
from app.ui.desk import Keeper
from engine.document import Document
from engine.errors import DocumentError, PasswordNeeded
from engine.events import Failed
from tests.app.ui.scripted import Request, ScriptedEngine, book

LONG = "The lamp was lit and the boat came in. " * 200
FAILURE = Failed("The memory of this machine ran out.", "Read fewer pages.", "ResourceError")


class ByQuestion(ScriptedEngine):
    """Answers by a word in the question: "long", "fail", or the text between >>> and <<<."""

    def ask(self, question: str, history: Any = (), sampling: Any = None, mode: str = "hierarchical") -> Request:
        self.answer = LONG if "long" in question else "Maren Holt kept the **north light**, and nobody after her."
        if ">>>" in question:
            self.answer = question.partition(">>>")[2].partition("<<<")[0]
        self.failure = FAILURE if "fail" in question and not history else None
        self.word_seconds = 0.03
        return super().ask(question, history, sampling, mode)


def read(path: Path, password: str | None = None) -> Document:
    word, _, rest = path.read_text(encoding="utf-8", errors="replace").partition(" ")
    if word == "LOCKED" and password != "lamp":
        raise PasswordNeeded("This book is locked." if password is None else "This is not its password.", "")
    if word == "BROKEN":
        raise DocumentError("This file is no book.", "Choose a PDF, an EPUB or a text file.")
    return book(pages=600 if word == "HUGE" else 60, words=200, title=rest.strip() or "The Lamplighters of Orre")


def main(port: int, data: Path, slow: bool) -> None:
    chosen = dataclasses.replace(settings.make_settings(), data=data, port=port)
    engine = ByQuestion(reading_seconds=None if slow else 0.4, limit=32_768)
    make: Callable[[object], Keeper] = lambda _: Keeper(engine, Books(chosen.books), Chats(), read)  # noqa: E731
    server.make_keeper = make  # type: ignore[assignment]
    server.serve(chosen)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), "slow" in sys.argv[3:])
