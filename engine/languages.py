"""Detects the language of a text or a question by its common words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Literal

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
_TITLE = re.compile(r"[“„\"«][^“”„\"«»]*[”“\"»]")
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
    words = Counter(word.lower() for word in _WORD.findall(_TITLE.sub(" ", question)))
    for word in _SHARED.split():
        del words[word]
    return _most(words, {language: f"{common} {_ASKING[language]}" for language, common in _COMMON.items()}, 1)


def _most(words: Counter[str], lists: Mapping[Language, str], fewest: int) -> Language | None:
    found = {language: sum(words[word] for word in common.split()) for language, common in lists.items()}
    best, second = sorted(found, key=lambda language: found[language], reverse=True)[:2]
    return best if found[best] >= fewest and found[best] > found[second] else None
