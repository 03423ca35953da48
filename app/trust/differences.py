"""Says in one sentence how the facts of two answers to one question differ: their numbers, dates and names.

    compared("In 1911.", "The ferry was built in 1912.", "When was the ferry built?")
    "The first answer says 1911, where this one says 1912."

Nothing is said in unclear cases: two answers may tell the same with other words, and a longer answer may leave out what
a shorter one says. This module has no side effects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from app.language.tokens import tokenize
from app.language.words import fold_word, is_first_name, is_german, numbers_in, says_nothing, without_ending
from app.trust.evidence import is_refusal
from app.trust.quoted import sentences

SAME = "The same facts as in the first answer."
FOUND = "The first answer had not found it."
_MOST_NAMED = 3  # maximum number of facts that a sentence names
_ALIKE = 0.5
"""Minimum share of the words of a sentence that another sentence has too, if both are about the same thing."""
_STARTS = '.!?:;\n-•"“”„*_(['  # characters after which a word is capitalised though it may be no name


@dataclass(frozen=True)
class _Fact:
    """A number or a name in an answer. ``said``: as the answer spells it. ``around``: the other words of its
    sentence.
    """

    said: str
    is_number: bool
    around: frozenset[str]


def compared(first: str, whole: str, question: str) -> str:
    """Say how the facts of an answer from the whole book differ from those of the first answer; "" in unclear cases.

    Args:
        first: the answer from passages.
        whole: the answer from the whole book.
        question: facts that the question has are left out.
    """
    if not whole.strip() or _refuses(whole):
        return ""
    asked = set(_facts(question, ()))
    names = {*_capitals(first), *_capitals(whole)}
    before, after = (
        {key: one for key, one in _facts(text, names).items() if key not in asked} for text in (first, whole)
    )
    if _refuses(first):
        return FOUND if after else ""
    gone = [one for key, one in before.items() if not _is_in(key, after)]
    new = [one for key, one in after.items() if not _is_in(key, before)]
    if not gone and not new:
        return SAME if before else ""
    if not gone and before:
        listed = ", ".join(one.said for one in new[:_MOST_NAMED])
        return f"The same facts as in the first answer, and more: {listed}."
    if len(gone) == len(new) == 1 and _contradict(gone[0], new[0]):
        return f"The first answer says {gone[0].said}, where this one says {new[0].said}."
    return ""


def _refuses(text: str) -> bool:
    """Whether every sentence of an answer only says that the book does not answer the question."""
    spans = sentences(text)
    return bool(spans) and all(is_refusal(text[span.start : span.end]) for span in spans)


def _contradict(one: _Fact, other: _Fact) -> bool:
    """Whether two facts of the same kind stand in sentences about the same thing. A sentence that has only the fact is
    about the question.
    """
    shared, size = len(one.around & other.around), min(len(one.around), len(other.around))
    return one.is_number is other.is_number and shared >= _ALIKE * size


def _is_in(key: str, facts: Collection[str]) -> bool:
    """Whether facts have this one. A name is the same with its first name or without: "Lindqvist", "Tove Lindqvist"."""
    words = set(key.split())
    return key in facts or any(words <= set(one.split()) or words >= set(one.split()) for one in facts)


def _facts(text: str, names: Collection[str]) -> Mapping[str, _Fact]:
    """The numbers and names of a text. German capitalises every noun, so only first names count as names there.

    Args:
        names: folded words that are names though they begin a sentence.
    """
    facts: dict[str, _Fact] = {}
    for span in sentences(text):
        part = text[span.start : span.end]
        tokens = list(tokenize(part))
        said = {without_ending(fold_word(raw)) for raw, _ in tokens if not says_nothing(raw) and not raw[0].isdigit()}
        german = is_german(raw for raw, _ in tokens)
        run: list[str] = []
        for raw, at in (*tokens, ("", len(part))):
            if raw and _is_name(part, raw, at, names, german):
                run.append(raw)
                continue
            if run:
                key = " ".join(map(fold_word, run))
                facts.setdefault(key, _Fact(" ".join(run), False, frozenset(said - set(key.split()))))
                run = []
        for key, raw, _ in numbers_in(tokens, part):
            facts.setdefault(key, _Fact(raw, True, frozenset(said)))
    return facts


def _is_name(text: str, raw: str, at: int, names: Collection[str], german: bool) -> bool:
    if not raw[0].isupper() or len(raw) < 2:
        return False
    word = fold_word(raw)
    return is_first_name(word) or (not german and not says_nothing(raw) and (word in names or _within(text, at)))


def _within(text: str, at: int) -> bool:
    """Whether a word stands within a sentence, where only names are capitalised."""
    before = text[:at].rstrip(" ")
    return bool(before) and before[-1] not in _STARTS


def _capitals(text: str) -> list[str]:
    """The folded words that are capitalised within a sentence."""
    return [fold_word(raw) for raw, at in tokenize(text) if raw[0].isupper() and len(raw) > 1 and _within(text, at)]
