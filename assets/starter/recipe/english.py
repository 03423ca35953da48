"""The English grammar that the question forms need: sentences, names, past tenses and their base forms, synonyms.

Works on strings with rules, without a parser. If no rule fits, there is no result.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from assets.demo.recipe.questions import sentence_end

SENTENCE_CHARS = (24, 340)


def _lists() -> dict[str, list[str]]:
    """Read the word lists of `english.txt`. In the file, the name of a list is on a separate line above its words."""
    blocks = Path(__file__).with_name("english.txt").read_text(encoding="utf-8").split("\n\n")[1:]
    return {name: words.split() for name, _, words in (block.partition("\n") for block in blocks)}


_WORDS = _lists()

IRREGULAR = dict(pair.split(":") for pair in _WORDS["irregular"])
AUXILIARIES = frozenset(_WORDS["auxiliaries"])
STOP_WORDS = frozenset(_WORDS["stop_words"])
ASKING = frozenset(_WORDS["asking"])
"""Question words and frequent words, which do not identify a place in a text."""
PERSONS = frozenset(_WORDS["persons"])
PLACES = frozenset(_WORDS["places"])
NUMBERS = _WORDS["numbers"]
NUMBER = (
    r"(?:\d[\d,]*|(?:a |one )?(?:" + "|".join(NUMBERS) + r")(?:[- ](?:and )?(?:" + "|".join(["one", *NUMBERS]) + r"))*)"
)
TITLES = r"(?:" + "|".join(re.escape(word) for word in _WORDS["titles"]) + ")"
NAME = rf"(?:{TITLES} )?[A-Z][a-zé]+(?: (?:de |of |von )?[A-Z][a-zé]+){{0,2}}"
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_TIMES_OF_DAY = "morning|evening|afternoon"
_SEASONS = "spring|summer|autumn|winter"
TIME = re.compile(
    rf",? ?\b((?:in (?:the (?:year|{_SEASONS}|{_TIMES_OF_DAY})(?: of)? ?)?\d{{4}}"
    rf"|in (?:the )?(?:{_MONTHS}|{_SEASONS}|{_TIMES_OF_DAY})"
    r"|on (?:the )?(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)[a-z ]*"
    rf"|on the (?:\w+ of|following|next|same|first|second|third|last) (?:{_MONTHS}|day|night|{_TIMES_OF_DAY})"
    r"|at (?:about )?\w+ o[’']clock|at (?:noon|midnight|dawn|sunrise|sunset|daybreak|nightfall|night|dusk)"
    rf"|(?:the next|the following|that|the same) (?:day|night|week|year|{_TIMES_OF_DAY})"
    rf"|{NUMBER} (?:years|days|weeks|hours|months|minutes) (?:ago|later|before|after(?:wards)?)))\b",
    re.I,
)
SYNONYMS = dict(pair.split(":") for pair in _WORDS["synonyms"])

_LEAD = re.compile(
    r"^(?:And|But|So|Then|Now|For|Yet|Well|However|Indeed|Thus|Presently|At last|At length|Meanwhile),? "
)
_PAUSE = re.compile(r"(?:, |; |--|—| and | but )(?:and |but )?")
CLAUSES, LONGEST_SUBJECT = 3, 7
"""Maximum clauses of a sentence that are tried, and maximum words of a subject."""
_DETERMINERS = {word: word for word in ("the", "his", "her", "its", "their")} | {
    "my": "the narrator’s", "our": "their", "a": "the", "an": "the", "this": "the", "that": "the", "these": "the",
}  # fmt: skip
_NO_SUBJECT = frozenset(
    ("who", "which", "that", "when", "while", "as", "if", "and", "or", "he", "she", "they", "I", "it")
)
_PREPOSITIONS = frozenset(("of", "in", "on", "at", "with", "from", "for", "by", "to"))
_QUOTES = re.compile('[“”"]')


@dataclass(frozen=True)
class Clause:
    """A sentence split into subject, verb and rest. `base`: base form of the verb, "" for an auxiliary. `person`:
    whether the subject is a person, so that "who" asks for it.
    """

    subject: str
    verb: str
    base: str
    rest: str
    person: bool

    @property
    def asked(self) -> str:
        """Subject and verb in the order after a question word: "did the cook say", "was the boy"."""
        return f"{self.verb} {self.subject}" if not self.base else f"did {self.subject} {self.base}"


@dataclass
class Story:
    """A text with its sentences and word counts. `verbs`: base forms of verbs."""

    text: str
    verbs: frozenset[str] = field(default_factory=frozenset)

    @cached_property
    def counts(self) -> Counter[str]:
        return Counter(word.lower() for word in re.findall(r"[A-Za-z]+", self.text))

    @cached_property
    def small_words(self) -> frozenset[str]:
        """Words that the text writes in lowercase somewhere. Such words are not names."""
        return frozenset(re.findall(r"\b[a-z]+\b", self.text))

    @cached_property
    def sentences(self) -> list[tuple[int, int]]:
        """Start and end of every sentence of a useful length with balanced quotation marks."""
        spans = []
        for block in re.finditer(r"[^\n]+", self.text):
            start, end = block.start(), block.end()
            while start < end:
                stop = sentence_end(self.text, start) or end
                stop = min(max(stop, start + 1), end)
                if SENTENCE_CHARS[0] <= stop - start <= SENTENCE_CHARS[1] and balanced(self.text[start:stop]):
                    spans.append((start, stop))
                start = stop + len(self.text[stop:end]) - len(self.text[stop:end].lstrip())
        return spans

    def is_name(self, words: str) -> bool:
        parts = words.split()
        plain = [part for part in parts if part not in _WORDS["titles"] and part not in ("de", "of", "von")]
        return bool(plain) and all(len(part) > 1 and part.lower() not in self.small_words for part in plain)

    def base_of(self, word: str) -> str | None:
        """Return the base form of a verb in the past tense; None for any other word."""
        if word in IRREGULAR:
            return IRREGULAR[word]
        if not word.endswith("ed") or len(word) < 5:
            return None
        stem = word[:-2]
        tries = [f"{stem}e", stem]
        if stem.endswith("i"):
            tries = [f"{stem[:-1]}y"]
        elif len(stem) > 2 and stem[-1] == stem[-2]:
            tries = [stem[:-1], stem]
        return next((base for base in tries if base in self.verbs), None)

    def clause(self, sentence: str) -> Clause | None:
        """Return the first clause of a sentence that can be split into subject, verb and rest; None if there is none. A
        clause begins at the beginning of the sentence or after a pause.
        """
        plain = _LEAD.sub("", sentence)
        starts = [0, *(pause.end() for pause in _PAUSE.finditer(plain))]
        for start in starts[:CLAUSES]:
            found = self._clause_at(plain[start:].split())
            if found is not None:
                return found
        return None

    def _clause_at(self, words: list[str]) -> Clause | None:
        for place in range(1, min(LONGEST_SUBJECT + 1, len(words) - 2)):
            verb = words[place]
            if not verb.islower() or not verb.isalpha():
                if verb[-1] in ",;:":
                    return None
                continue
            base = "" if verb in AUXILIARIES else self.base_of(verb)
            if base is None:
                continue
            adverb = words[place - 1].endswith("ly") and place > 1
            kind = self._subject(" ".join(words[: place - 1 if adverb else place]))
            return kind and Clause(kind[0], verb, base, " ".join(words[place + 1 :]), kind[1])
        return None

    def _subject(self, words: str) -> tuple[str, bool] | None:
        """Return the form of a subject in a question, and whether the subject is a person. Return None if the words are
        not a subject.
        """
        small = words.lower()
        if small in ("he", "she"):
            return small, True
        if small in ("they", "it"):
            return small, False
        if words == "I":
            return "the narrator", True
        if re.fullmatch(NAME, words) and self.is_name(words):
            return words, True
        first, *rest = words.split()
        if not rest or first.lower() not in _DETERMINERS or rest[-1] in STOP_WORDS:
            return None
        if any(word in AUXILIARIES or word in _NO_SUBJECT for word in rest):
            return None
        lead = _DETERMINERS[first.lower()]
        head = next((rest[place - 1] for place, word in enumerate(rest) if place and word in _PREPOSITIONS), rest[-1])
        return " ".join([lead, *rest]), head in PERSONS


def balanced(sentence: str) -> bool:
    """Whether every quotation mark that opens in a sentence closes in it."""
    marks = _QUOTES.findall(sentence)
    return marks.count("“") == marks.count("”") and marks.count('"') % 2 == 0


def trimmed(words: str, most: int = 12) -> str:
    """Return the beginning of `words`, up to the first pause, with at most `most` words."""
    part = re.split(
        r"[,;:.!?—“”\"(]|--| (?:and|but|which|that|who|when|while|as|for|because|if|till|until|so) ", words
    )[0]
    return " ".join(part.split()[:most]).strip()


def spoken_of(words: str) -> str:
    """Replace the narrator's first-person words by the third person."""
    for mine, theirs in (
        ("my", "the narrator’s"),
        ("me", "the narrator"),
        ("our", "their"),
        ("us", "them"),
        ("myself", "himself"),
    ):
        words = re.sub(rf"\b{mine}\b", theirs, words)
    return words


def reworded(question: str, rng: random.Random, share: float = 0.25) -> str:
    """Replace some words by synonyms. `share`: probability that a word that has a synonym is replaced."""

    def other(match: re.Match[str]) -> str:
        word = match[0]
        return SYNONYMS[word].replace("-", " ") if word in SYNONYMS and rng.random() < share else word

    return re.sub(r"\b[a-z]+\b", other, question)
