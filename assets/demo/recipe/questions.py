"""Questions about a text and the answers that quote it.

Owns the wordings, how a passage is found (key, end of its sentence) and what is said when it is not there. Works on
plain strings; knows no tokens. An answer is an ellipsis and the passage, word for word, between curly quotes.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache

NOT_FOUND = "The book does not say that."
MAX_PASSAGE_CHARS = 420
KEY_WORDS = (3, 8)
ABBREVIATIONS = (
    "Mr",
    "Mrs",
    "Dr",
    "St",
    "Messrs",
    "Capt",
    "Col",
    "Gen",
    "Hon",
    "Rev",
    "Esq",
    "vol",
    "No",
    "Mme",
    "Mlle",
)

PHRASE_QUESTIONS = (
    'Find: "{key}"',
    "Find: {key}",
    'Find "{key}".',
    "Find the passage: {key}",
    'Where does it say "{key}"?',
    "Where does it say {key}?",
    "Where does the book say that {key}?",
    'Where is "{key}"?',
    'Quote "{key}".',
    'Quote the passage with "{key}".',
    "Quote the passage about {key}.",
    "What does the book say about {key}?",
    'What does the book say about "{key}"?',
    'What comes after "{key}"?',
    "How does it go on after {key}?",
    "{key}?",
    "“{key}”",
    "Tell me about {key}.",
    "What about {key}?",
    "Which passage speaks of {key}?",
)
FIRST_MENTION_QUESTIONS = (
    "Who is {key}?",
    "Who was {key}?",
    "Where is {key} first named?",
    "What is {key}?",
    "Introduce {key}.",
)
LAST_MENTION_QUESTIONS = (
    "What happens to {key}?",
    "What becomes of {key}?",
    "Where is {key} last named?",
    "What happens to {key} in the end?",
)
OPENING_QUESTIONS = (
    "How does the book begin?",
    "How does it begin?",
    "Quote the beginning.",
    "What is the first sentence?",
)
CHAPTER_QUESTIONS = (
    "Summarize chapter {number}.",
    "Summarise chapter {number}",
    "What happens in chapter {number}?",
    "How does chapter {number} begin?",
    "What is chapter {number} about?",
)
CONTINUE_REQUESTS = (
    "Continue the story.",
    "Continue.",
    "Continue the book in its own style.",
    "Write the next page.",
    "Go on.",
    "How does the story go on?",
)

_SENTENCE_END = re.compile(r"[.!?]+[\"'”’)\]_]*(?=\s|$)")
_NAME = re.compile(r"(?<=[a-z,;] )(?:[A-Z][a-z]{2,}(?: [A-Z][a-z]{2,}){0,2})\b")
_CHAPTER = re.compile(r"^(?:CHAPTER|Chapter) ([IVXLC]+|\d+)\b.*$", re.MULTILINE)
_ROMAN = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100}


@dataclass(frozen=True)
class Turn:
    """One question and its answer. `span`: where in the text the quoted passage stands, if one is quoted; `key`: where
    in the question the words stand that are looked for."""

    question: str
    answer: str
    span: tuple[int, int] | None = None
    key: int = 0


def quoted(passage: str, *, whole: bool = False) -> str:
    """A passage as an answer shows it: `whole` when it starts where its sentence starts."""
    return f"“{passage}”" if whole else f"“… {passage}”"


def sentence_end(text: str, start: int) -> int | None:
    """Where the sentence around `start` ends (exclusive), or None if it is too far or the text stops before."""
    limit = min(len(text), start + MAX_PASSAGE_CHARS)
    paragraph = text.find("\n\n", start, limit)
    for match in _SENTENCE_END.finditer(text, start, limit if paragraph < 0 else paragraph):
        word = re.search(r"(\w+)$", text[max(0, match.start() - 12) : match.start()])
        abbreviated = word and (word[1] in ABBREVIATIONS or (len(word[1]) == 1 and word[1].isupper()))
        if match.end() < limit and not abbreviated:
            return match.end()
    return paragraph if paragraph > 0 else None


def random_key(text: str, rng: random.Random) -> tuple[int, str] | None:
    """A place in `text` and a few words from there that stand nowhere else in it."""
    start = text.find(" ", rng.randrange(max(1, len(text) - 80))) + 1
    num_words = rng.randint(*KEY_WORDS)
    match = _words(num_words).match(text, start)
    if not match or start == 0 or "\n\n" in match[0] or _SENTENCE_END.search(match[0][:-1]):
        return None
    key = match[0].rstrip(".,;:!?\"'”’)—-")
    if len(key) < 10 or not key[0].isalnum() or text.count(key) != 1:
        return None
    return start, key


@cache
def _words(count: int) -> re.Pattern[str]:
    return re.compile(r"\S+(?:[ \n]\S+){" + str(count - 1) + "}")


def phrase_turn(text: str, rng: random.Random) -> Turn | None:
    """A question with words of the text, answered from these words to the end of their sentence."""
    found = random_key(text, rng)
    if found is None:
        return None
    start, key = found
    end = sentence_end(text, start + len(key) - 1)
    if end is None or end - start > MAX_PASSAGE_CHARS:
        return None
    return _asked(PHRASE_QUESTIONS, key, quoted(text[start:end]), rng, (start, end))


def name_turn(text: str, rng: random.Random) -> Turn | None:
    """A question about a name, answered with its first or its last mention."""
    seed = rng.randrange(max(1, len(text) - 400))
    match = _NAME.search(text, seed)
    if not match:
        return None
    first = rng.random() < 0.7
    start = text.find(match[0]) if first else text.rfind(match[0])
    end = sentence_end(text, start + len(match[0]) - 1)
    if end is None or end - start < len(match[0]) + 8:
        return None
    wordings = FIRST_MENTION_QUESTIONS if first else LAST_MENTION_QUESTIONS
    return _asked(wordings, match[0], quoted(text[start:end]), rng, (start, end))


def absent_turn(text: str, other: str, rng: random.Random) -> Turn | None:
    """A question about words of another book, which this one does not hold."""
    if rng.random() < 0.3:
        match = _NAME.search(other, rng.randrange(max(1, len(other) - 400)))
        if not match or match[0].split()[-1] in text:
            return None
        return _asked(FIRST_MENTION_QUESTIONS + LAST_MENTION_QUESTIONS, match[0], NOT_FOUND, rng)
    found = random_key(other, rng)
    if found is None or found[1] in text:
        return None
    return _asked(PHRASE_QUESTIONS, found[1], NOT_FOUND, rng)


def opening_turn(text: str, rng: random.Random) -> Turn | None:
    """A question about the beginning, or about a chapter's, answered with its first sentence."""
    chapters = list(_CHAPTER.finditer(text))
    if chapters and rng.random() < 0.7:
        chapter = rng.choice(chapters)
        start = chapter.end() + len(text[chapter.end() :]) - len(text[chapter.end() :].lstrip())
        number = int(chapter[1]) if chapter[1].isdigit() else _roman(chapter[1])
        opening, question = f"Chapter {number} begins: ", rng.choice(CHAPTER_QUESTIONS).format(number=number)
    else:
        start, opening, question = 0, "It begins: ", rng.choice(OPENING_QUESTIONS)
    end = sentence_end(text, start)
    return None if end is None else Turn(question, opening + quoted(text[start:end], whole=True))


def all_wordings() -> list[str]:
    """Every fixed piece of wording, for the vocabulary."""
    groups = PHRASE_QUESTIONS + FIRST_MENTION_QUESTIONS + LAST_MENTION_QUESTIONS + CHAPTER_QUESTIONS
    lines = [line.format(key="a word", number=1) for line in groups]
    return [
        *lines,
        *OPENING_QUESTIONS,
        *CONTINUE_REQUESTS,
        NOT_FOUND,
        quoted("a word."),
        "Chapter 1 begins: It begins: ",
    ]


def _asked(
    wordings: tuple[str, ...], key: str, answer: str, rng: random.Random, span: tuple[int, int] | None = None
) -> Turn:
    key = " ".join(key.split())
    if rng.random() < 0.1:
        key = key[0].lower() + key[1:] if key[0].isupper() else key[0].upper() + key[1:]
    question = rng.choice(wordings).format(key=key)
    question = question.rstrip("?.") if rng.random() < 0.1 else question
    return Turn(question, answer, span, question.find(key))


def _roman(numeral: str) -> int:
    values = [_ROMAN[letter] for letter in numeral]
    return sum(-a if a < b else a for a, b in zip(values, [*values[1:], 0], strict=True))
