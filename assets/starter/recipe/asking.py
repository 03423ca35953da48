"""Asks a model questions about one text, as the app does.

Owns the rules for correct answers. Works with any model folder that the app can open. Contains no questions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from engine import Document, Engine, EngineConfig, Question, SamplingParams

MOST_TOKENS = 100
SHORTEST_QUOTATION = 12
"""Minimum characters of a quotation. Shorter ones are ignored."""
REPEATED_WORDS, REPEATS = 6, 3
"""An answer repeats itself if a sequence of REPEATED_WORDS words occurs at least REPEATS times."""

MARKS = "“”\"‘’' \n….,;:!?"
_QUOTED = re.compile(r"“([^“”]+(?:“[^“”]*”[^“”]*)*)”|\"([^\"\n]+)\"|“ ?“([^”]+)”")
_NOT_THERE = re.compile(
    r"\b(?:does not (?:say|mention|tell|contain|provide|specify|state)|doesn[’']t (?:say|mention|tell|specify|state)"
    r"|not (?:mentioned|stated|specified|said|in the (?:book|text))|no (?:mention|information)|is not there)\b",
    re.I,
)


class Reader:
    """A model, run by the app's engine, that has read one text. Every question is asked as the first question of a
    chat.

    Args:
        kept: folder for the KV of texts that were read; None to keep nothing.
    """

    def __init__(self, folder: Path, dtype: str = "auto", kept: Path | None = None) -> None:
        self._engine = Engine(EngineConfig(model=str(folder), dtype=dtype, snapshot_folder=str(kept or "")))

    def __enter__(self) -> Reader:
        self._engine.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.__exit__(*error)

    def read(self, document: Document) -> None:
        """Open a document instead of the current one.

        Raises:
            TrifoldError: the text cannot be read, for example because it is too long for the window.
        """
        self._engine.read(document).result()

    def ask(self, questions: Sequence[str]) -> list[str]:
        """Return the greedy answers, each of at most MOST_TOKENS tokens. Quotations follow the model's settings."""
        how = SamplingParams(temperature=0.0, max_tokens=MOST_TOKENS)
        return [self._engine.ask(Question(question, sampling=how)).result().text for question in questions]


def plain(words: str) -> str:
    """Normalize a text: straight quotation marks, no ellipses, single spaces."""
    words = words.replace("’", "'").replace("‘", "'").replace("“", '"').replace("”", '"').replace("…", " ")
    return " ".join(words.split())


def quotations(answer: str) -> list[str]:
    """Return the quotations of an answer, without the marks and punctuation at their ends."""
    quoted = [next(part for part in match if part) for match in _QUOTED.findall(answer)]
    return [part for part in (words.strip(MARKS) for words in quoted) if len(part) >= SHORTEST_QUOTATION]


def verified(answer: str, text: str) -> bool:
    """Whether an answer has quotations and all of them are in the text, word for word."""
    whole, parts = plain(text), quotations(answer)
    return bool(parts) and all(plain(part) in whole for part in parts)


def has_fact(answer: str, facts: Sequence[str]) -> bool:
    """Whether an answer has one of the wordings of a fact."""
    return any(plain(fact).lower() in plain(answer).lower() for fact in facts)


def says_absent(answer: str) -> bool:
    return bool(_NOT_THERE.search(answer))


def circles(answer: str) -> bool:
    """Whether an answer repeats the same sequence of words several times."""
    words = answer.lower().split()
    runs = Counter(tuple(words[place : place + REPEATED_WORDS]) for place in range(len(words) - REPEATED_WORDS + 1))
    return bool(runs) and max(runs.values()) >= REPEATS


def is_talk(answer: str) -> bool:
    """Whether an answer is a plain reply: not empty, without quotation, without repetition, and without a statement
    that the book lacks something.
    """
    return bool(answer.strip()) and not quotations(answer) and not says_absent(answer) and not circles(answer)


def summarizes(answer: str, text: str) -> bool:
    """Whether an answer has several different passages of the text and no other quotations."""
    parts = [plain(part) for part in quotations(answer)]
    return len(parts) > 1 and len(set(parts)) == len(parts) and verified(answer, text)


def quotes(answer: str, passage: str) -> bool:
    """Whether an answer has a passage, word for word."""
    return plain(passage).strip(MARKS) in plain(answer)
