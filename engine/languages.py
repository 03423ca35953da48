"""Detects the language of a text or a question by its common words, and finds where sentences end.

A full stop in English, German, French or Spanish may also belong to an abbreviation, an initial, a date or the number
of an item. Chinese and Japanese sentences end with a sign of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal

__all__ = ["Language", "language_of", "language_of_question", "sentence_ends"]

Language = Literal["en", "de", "fr", "es"]

_WORD = re.compile(r"[^\W\d_]+")
_LOOKED_AT = 20_000  # maximum number of words that are examined
_FEWEST = 2  # minimum number of a language's common words in a text of that language
# Words that nearly every text in a language has. Words that several of the languages have are left out, except “des”.
_COMMON: dict[Language, str] = {
    "en": "the of and to that is was it for with as his her at by not this are they from have which",
    "de": "der die das und ist nicht ein eine zu den mit sich auf dem von für auch wird des im sie",
    "fr": "le les des et est dans une pour qui pas au du sur avec il elle ce sont aux cette ne",
    "es": "el los las y una por con del su para como más al lo fue esta sus pero ha ser muy",
}


# Further words that are common in questions.
_ASKING: dict[Language, str] = {
    "en": "who whom whose what when where why how did does do many much",
    "de": "wer wen wem wessen was wann wo wohin warum wie welche welcher welches welchen wieviel viele hat haben",
    "fr": "qui que quoi quand où pourquoi comment combien quel quelle quels quelles",
    "es": "quién qué cuándo dónde cómo cuánto cuánta cuántos cuántas cuál cuáles",
}


# Words that say nothing about a question's language. Each is a common word of one language that also occurs in
# questions in another language: "Will Ahab die?", "Explain von Neumann's idea", "Kommt Anna her?", "Que hizo Sancho?".
_SHARED = "die den des hat her im mit von was wen es me que les le las los con ce ne sur ser sus ha pour para del"
QUOTED = re.compile(r"[\"“„«][^\"“”„«»\n]{1,500}[\"”“»]")  # a title or other words that a question quotes
_SMALL = "a-zß-öø-ÿ"
_CLOSING = r"(?:[\"'”’“»«)\]*_]|[ \u00a0\u202f]»)*"  # what may stand between a sentence's end and the space
# A small letter after it continues the sentence: "“Stop!” he said", "approx. ten", "and so on … but".
_SENTENCE_END = re.compile(
    rf"(?:(?<![.!?])[.!?]++|(?<![“„«\"])…){_CLOSING}(?=\s+[^{_SMALL}\s])|[。！？]++[」』）》”’]*"
)
_CAPITAL = "[A-ZÀ-ÖØ-Þ]"
# A full stop after these ends no sentence: titles, initials, and abbreviations that stand before a name.
_ABBREVIATION = re.compile(
    r"\b(?:Mrs?|Ms|Dr|St|Capt|Col|Gen|Prof|Rev|Lt|Sgt|Hon|Hr|Fr|Mme|Mlle|Messrs|[Aa]pprox|vs|cf|vgl|bzw|z"
    r"|e\. ?g|i\. ?e|d\. ?h|u\. ?a"
    rf"|{_CAPITAL})\.$"
)
# A full stop after these ends a sentence only before a word that often begins one.
_COMPANY = re.compile(r"\b(?:Inc|Ltd|Corp|Co|Bros)\.$")
_BEGINS = re.compile(
    r"\s{1,9}(?:The|This|These|That|Those|It|Its|He|She|They|We|I|You|In|On|At|By|For|From|With|As|If|When|After|Before"
    r"|No|A|An|All|Each|Both|Our|Their|His|Her|There|However|But|And|Under|Since|While|Der|Die|Das|Es|Er|Sie)\b"
    r"|\s{0,9}\n\s{0,9}\n"
)
_BEFORE_NUMBER = re.compile(r"\b(?:[Nn]os?|Nr|pp?|vol|ch|chap|Kap|Bd|Art|Abs|fig|Fig|Abb|sec|ca)\.$")
_ITEM_NUMBER = re.compile(r"\n[ \t]*(?:[-*+•][ \t]+)?[*_]*\d{1,3}\.$")
_DAY = re.compile(r"(?<!\d)\d{1,2}\.$")
_GERMAN_MONTH = re.compile(
    r"\s(?:Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember)\b"
)
_NUMBER_AFTER = re.compile(r"\s*\d")
_LONGEST_BEFORE = 24  # maximum characters before a full stop that decide whether it ends a sentence
# Beginnings of words that may ask for an answer in a different language: names of languages, and requests for a
# quotation from the book.
_WISH = re.compile(
    r"\b(?:english|german|french|spanish|englisch|deutsch|französisch|spanisch|anglais|allemand|français|espagnol"
    r"|inglés|alemán|francés|español|quot|cit[ae]|zitier|zitat|wörtlich|wortlaut|word for word|verbatim|mot à mot)",
    re.IGNORECASE,
)


def language_of(text: str) -> Language | None:
    """The language of a text. None if the text has too few common words, or equally many of two languages."""
    words = Counter(word.lower() for word in _WORD.findall(text[: _LOOKED_AT * 6])[:_LOOKED_AT])
    return _most(words, _COMMON, _FEWEST)


def language_of_question(question: str) -> Language | None:
    """The language in which a question wants its answer, detected by its common words. Quoted titles are ignored. A
    single common word is enough. None if no or several languages fit best, or if the question may ask for an answer in
    a different language.
    """
    if _WISH.search(question):
        return None
    words = Counter(word.lower() for word in _WORD.findall(QUOTED.sub(" ", question)))
    for word in _SHARED.split():
        del words[word]
    return _most(words, {language: f"{common} {_ASKING[language]}" for language, common in _COMMON.items()}, 1)


def _most(words: Counter[str], lists: Mapping[Language, str], fewest: int) -> Language | None:
    counts = {language: sum(words[word] for word in common.split()) for language, common in lists.items()}
    best, second = sorted(counts, key=lambda language: counts[language], reverse=True)[:2]
    return best if counts[best] >= fewest and counts[best] > counts[second] else None


def sentence_ends(text: str, start: int = 0, stop: int | None = None) -> Iterator[int]:
    """Yield where sentences end between two offsets of a text, after their closing quotation marks and brackets. Left
    out are the end of the text itself, and of a paragraph or an item without a full stop.
    """
    for match in _SENTENCE_END.finditer(text, start, len(text) if stop is None else stop):
        if match[0][0] != "." or not _goes_on(text, match.start() + 1):
            yield match.end()


def _goes_on(text: str, end: int) -> bool:
    """Whether the full stop before the offset ``end`` belongs to an abbreviation, a date or the number of an item."""
    before = f"\n{text[:end]}"[-_LONGEST_BEFORE:] if end < _LONGEST_BEFORE else text[end - _LONGEST_BEFORE : end]
    if _ABBREVIATION.search(before) or _ITEM_NUMBER.search(before):
        return True
    if _COMPANY.search(before):
        return _BEGINS.match(text, end) is None
    if _BEFORE_NUMBER.search(before):
        return _NUMBER_AFTER.match(text, end) is not None
    return _DAY.search(before) is not None and _GERMAN_MONTH.match(text, end) is not None
