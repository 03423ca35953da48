"""The page in a process of its own with a scripted engine behind it: ``python -m tests.e2e.scripted_server PORT DATA``.

What the engine does is chosen by a word in the question, what the reader does by the first word of the file.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from app.core import settings
from app.core.books import Books
from app.core.chats import Chats
from app.core.db import Database
from app.core.state import AppState
from app.readers import read_document
from app.web import server
from app.web.preferences import Preferences
from engine import Question
from engine.config import SamplingParams
from engine.document import Document, Reading
from engine.errors import DocumentError, PasswordNeeded, ResourceError
from engine.events import StopReason
from engine.plan import MachineRates
from tests.app.scripted import ScriptedEngine, book, engine_status, model_info

QUOTING = (
    "Maren Holt did. The book says that “Maren Holt kept the north light, as her mother had kept it before her”, and "
    "that “she counted every lamp in Orre twice before the dawn came”. She was a long woman with steel spectacles "
    "mended at the bridge with line.\n\nThe lamps were counted every evening, and the number was written into the book."
)
FURTHER = (
    "The boats: “"
    + " ".join(f"the boat of {day} came in before the tide" for day in ("Monday", "Tuesday", "Friday", "Sunday"))
    + "”, and of the tide that nobody in Orre had seen one like it since the bell was cast and hung above the harbour."
)
LONG = "The lamp was lit and the boat came in. " * 200
WARNING = "Text that nobody sees was left out on page 3."
FAILURE = ResourceError("The memory of this machine ran out.", "Read fewer pages.")


THOUGHT = "Well, the question is about a <b>light</b>. " * 4
OWN = SamplingParams(temperature=0.6)
RATES = MachineRates(flops=200e9, memory=20e9, bus=0, disk=1e9)
"""Of a machine that nobody measures: a process of its own with torch in it would take seconds in every test."""


class ByQuestion(ScriptedEngine):
    """Answers by a word in the question: "long", "fail", "quote", "settings" (those that it was asked with), "loop",
    "no quotes" (the model cannot hold to the book's), or the text between >>> and <<<; "apart" makes the two runs of a
    race differ; "in which year" has another answer from passages; "read on" ends the wait of a book called later."""

    def ask(self, question: Question | str, **cancel: Any) -> Any:
        asked = Question.of(question)
        text, begun, how = asked.text, asked.begun, asked.sampling
        self.answer = LONG if "long" in text else "Maren Holt kept the **north light**, and nobody after her."
        if ">>>" in text:
            self.answer = text.partition(">>>")[2].partition("<<<")[0]
        if "in which year" in text:
            self.answer = f"The lamp was lit in {1912 if asked.excerpt is None else 1911}."
        if "read on" in text:
            self.read_on.set()
        if "settings" in text:
            self.answer = f"{asked.mode}, temperature {how.temperature}, at most {how.max_tokens} tokens"
            self.answer += f", exact quotes {how.exact_quotes}"
        own = model_info(sampling=OWN, can_quote="no quotes" not in text, thinking="Can think before it answers")
        self.now = dataclasses.replace(self.now, model=own)
        self.thought = THOUGHT if how.think else ""
        self.ends = StopReason.LOOP if "loop" in text and not begun else StopReason.END
        if "loop" in text:
            self.answer = f"{begun} and at last it ended." if begun else "It goes round and round and round and round"
        if "quote" in text or "Where does it say" in text:
            self.answer = QUOTING if "quote" in text or "north light" in text else FURTHER
        self.plain_answer = f"{self.answer} Or so they say." if "apart" in text else ""
        self.failure = FAILURE if "fail" in text and not asked.history else None
        self.word_seconds = 0.2 if self.failure else 0.015  # a failure that a busy page has time to show
        if "long" in text:
            self.word_seconds = 0.25  # at a pace that a page on a busy machine keeps up with
        if "slowly" in text:
            self.word_seconds = 0.3
        return super().ask(question, **cancel)

    def read(self, reading: Reading | Document, **cancel: Any) -> Any:
        """A book that is called slow is never read to its end, one that is called later only when it is asked for."""
        title = Reading.of(reading).document.title.lower()
        self.read_on.clear()
        self.reading_seconds = None if "slow" in title or "later" in title else 0.4
        return super().read(reading, **cancel)


_PAGES = {"HUGE": 600, "SHORT": 12}


def read(path: Path, password: str | None = None) -> Document:
    if path.suffix == ".pdf":
        return read_document(path, password=password)
    word, _, rest = path.read_text(encoding="utf-8", errors="replace").partition(" ")
    if word == "LOCKED" and password != "lamp":
        raise PasswordNeeded("This book is locked." if password is None else "This is not its password.", "")
    if word == "BROKEN":
        raise DocumentError("This file is no book.", "Choose a PDF, an EPUB or a text file.")
    made = book(_PAGES.get(word, 60), words=200, title=rest.strip() or "The Lamplighters of Orre")
    warnings = (WARNING,) if word == "LOCKED" else ()
    return dataclasses.replace(made, sha256=path.parent.name, warnings=warnings)


PASSWORD = "correct horse battery"


def main(port: int, data: Path, slow: bool = False, lan: bool = False) -> None:
    chosen = dataclasses.replace(settings.make_settings(), data=data, port=port, password=PASSWORD if lan else "")
    engine = ByQuestion(reading_seconds=None if slow else 0.4, limit=32_768)
    engine.now = engine_status(model=model_info(sampling=OWN))

    def make(_: object) -> AppState:
        database = Database(chosen.library)
        return AppState(engine, Books(chosen.books, database), Chats(database), read)

    server.make_state = make  # type: ignore[assignment]
    Preferences.rates = lambda _: RATES  # type: ignore[method-assign, assignment]
    server.serve(chosen)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), "slow" in sys.argv[3:], "lan" in sys.argv[3:])
