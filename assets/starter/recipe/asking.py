"""A model that has read one text and answers questions about it, as the app would let it.

Owns what counts as a right answer. Works with any folder that the app could open. Knows no question by heart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from engine import Document, Engine, EngineConfig, Question, SamplingParams

MOST_TOKENS = 100
SHORTEST_QUOTATION = 12
"""Characters that a quotation needs to count as one."""
REPEATED_WORDS, REPEATS = 6, 3
"""An answer runs in a circle when so many words in a row come so often in it."""

MARKS = "“”\"‘’' \n….,;:!?"
_QUOTED = re.compile(r"“([^“”]+(?:“[^“”]*”[^“”]*)*)”|\"([^\"\n]+)\"|“ ?“([^”]+)”")
_NOT_THERE = re.compile(
    r"\b(?:does not (?:say|mention|tell|contain|provide|specify|state)|doesn[’']t (?:say|mention|tell|specify|state)"
    r"|not (?:mentioned|stated|specified|said|in the (?:book|text))|no (?:mention|information)|is not there)\b",
    re.I,
)


class Reader:
    """A model that has read one text, in the engine of the app. Every question is asked as if it were the first."""

    def __init__(self, folder: Path, dtype: str = "auto") -> None:
        self._engine = Engine(EngineConfig(model=str(folder), dtype=dtype))

    def __enter__(self) -> Reader:
        self._engine.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._engine.__exit__(*error)

    def read(self, title: str, text: str) -> None:
        """Opens a text in place of the one before.

        Raises:
            TrifoldError: it is too long for the window, say.
        """
        self._engine.read(Document.from_text(title, text)).result()

    def ask(self, questions: Sequence[str]) -> list[str]:
        """The answers, greedy, each up to its end or MOST_TOKENS; quotations as the model's own settings say."""
        how = SamplingParams(temperature=0.0, max_tokens=MOST_TOKENS)
        return [self._engine.ask(Question(question, sampling=how)).result().text for question in questions]


def plain(words: str) -> str:
    """Words without what type and lines do to them: one kind of quotation mark, single spaces."""
    words = words.replace("’", "'").replace("‘", "'").replace("“", '"').replace("”", '"').replace("…", " ")
    return " ".join(words.split())


def quotations(answer: str) -> list[str]:
    """What stands in an answer between quotation marks, without the marks and pauses at its ends."""
    found = [next(part for part in match if part) for match in _QUOTED.findall(answer)]
    return [part for part in (words.strip(MARKS) for words in found) if len(part) >= SHORTEST_QUOTATION]


def verified(answer: str, text: str) -> bool:
    """Whether an answer quotes the text, and all that it quotes stands there word for word."""
    whole, parts = plain(text), quotations(answer)
    return bool(parts) and all(plain(part) in whole for part in parts)


def has_fact(answer: str, facts: Sequence[str]) -> bool:
    """Whether one of the wordings of a fact stands in an answer."""
    return any(plain(fact).lower() in plain(answer).lower() for fact in facts)


def says_absent(answer: str) -> bool:
    return bool(_NOT_THERE.search(answer))


def circles(answer: str) -> bool:
    """Whether an answer says the same again and again."""
    words = answer.lower().split()
    runs = Counter(tuple(words[place : place + REPEATED_WORDS]) for place in range(len(words) - REPEATED_WORDS + 1))
    return bool(runs) and max(runs.values()) >= REPEATS


def is_talk(answer: str) -> bool:
    """Whether an answer is a plain reply: some words, no quotation, no word of what is or is not in the book."""
    return bool(answer.strip()) and not quotations(answer) and not says_absent(answer) and not circles(answer)


def summarizes(answer: str, text: str) -> bool:
    """Whether an answer is made of several passages of the text, none of them twice."""
    parts = [plain(part) for part in quotations(answer)]
    return len(parts) > 1 and len(set(parts)) == len(parts) and verified(answer, text)


def quotes(answer: str, passage: str) -> bool:
    """Whether an answer holds a passage word for word."""
    return plain(passage).strip(MARKS) in plain(answer)
