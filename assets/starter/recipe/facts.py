"""Invented facts that are inserted into texts, with questions about them in different words.

`facts.txt` has the facts. Names, numbers and things are drawn again each time, so that a model cannot memorize them.
Works on strings, not on tokens.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FILE = Path(__file__).with_name("facts.txt")
_SLOT = re.compile(r"\{(?:(an?) )?(\w+)\}")
_FORMS_OF_ADDRESS = ("Mr.", "Mrs.", "Miss", "Captain", "Dr.", "old", "Aunt", "Professor")
TITLES = frozenset(word.rstrip(".") for word in _FORMS_OF_ADDRESS) - {"old"}
_PRONOUNS = ({"him": "him", "his": "his"}, {"him": "her", "his": "her"})


@dataclass(frozen=True)
class Fact:
    """Statements of one fact, questions for it, and a short answer. Slots in these stand for names and things."""

    statements: tuple[str, ...]
    questions: tuple[str, ...]
    answer: str


@dataclass(frozen=True)
class Stated:
    """A fact whose slots are filled with names and things. `sentence` is inserted into the text. Each of `questions`
    asks for the fact.
    """

    sentence: str
    questions: tuple[str, ...]
    answer: str


@cache
def load() -> tuple[dict[str, tuple[str, ...]], tuple[Fact, ...]]:
    """Read `facts.txt`. Return the words that can fill each slot, and the facts."""
    fillers, facts = {}, []
    for block in _FILE.read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith("#")]
        for line in lines:
            if " = " in line:
                name, _, words = line.partition(" = ")
                fillers[name] = tuple(word.rstrip() for word in words.split(" | "))
        parts = {kind: tuple(line[2:] for line in lines if line.startswith(f"{kind} ")) for kind in "SQA"}
        if parts["S"]:
            facts.append(Fact(parts["S"], parts["Q"], parts["A"][0]))
    return fillers, tuple(facts)


def draw(rng: random.Random, fact: Fact | None = None) -> Stated:
    """Fill the slots of a fact. If no fact is given, a random fact of the file is used."""
    fillers, facts = load()
    fact = fact or rng.choice(facts)
    values = {name: rng.choice(words) for name, words in fillers.items()}
    values |= rng.choice(_PRONOUNS)
    values["place2"] = rng.choice([place for place in fillers["place"] if place != values["place"]])
    values["A"], values["B"] = (_person(fillers, rng) for _ in range(2))
    statement = _fill(rng.choice(fact.statements), values)
    questions = tuple(_fill(question, values) for question in fact.questions)
    return Stated(_sentence(statement), questions, _sentence(_fill(fact.answer, values)))


def same_kind(rng: random.Random, count: int) -> list[Stated]:
    """Make several facts of one kind about different people and places, as in a book."""
    fact = rng.choice(load()[1])
    return [draw(rng, fact) for _ in range(count)]


def joined(sentence: str) -> str:
    """Write a statement as a continuation of a sentence. Names keep their capital letters."""
    first = sentence.split()[0].strip("“,.")
    fillers, _ = load()
    names = {word for kind in ("given", "family", "place") for words in fillers[kind] for word in words.split()}
    capital = first == "I" or first in TITLES or first.removesuffix("'s") in names or sentence.startswith("“")
    return f"and {sentence}" if capital else f"and {sentence[0].lower()}{sentence[1:]}"


def _person(fillers: dict[str, tuple[str, ...]], rng: random.Random) -> str:
    given, family = rng.choice(fillers["given"]), rng.choice(fillers["family"])
    kind = rng.random()
    if kind < 0.5:
        return f"{given} {family}"
    if kind < 0.75:
        return given
    return f"{rng.choice(_FORMS_OF_ADDRESS)} {family}"


def _fill(words: str, values: dict[str, str]) -> str:
    def value(slot: re.Match[str]) -> str:
        word = values[slot[2]]
        return f"{'an' if word[0] in 'aeiou' else 'a'} {word}" if slot[1] else word

    return " ".join(_SLOT.sub(value, words).split()).replace(" ,", ",")


def _sentence(words: str) -> str:
    first = re.search(r"[A-Za-z]", words)
    return (
        words if first is None else words[: first.start()] + words[first.start()].upper() + words[first.start() + 1 :]
    )
