"""Questions that are worth asking a book: the bundled one's own, or made from its table of contents or its text.

They ask where and what the book says, not what to think of it: that is what a small model can answer too. A model
that can only quote (its card says so, ``app.core.abilities.Abilities``) is given phrases of the book to find.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from app.citations import sentences
from app.core.languages import Language, language_of
from engine.document import Document

MOST = 5
_FROM_CONTENTS = 3
_LOOKED_AT = 40  # pages for the language of a book
_SHORTEST, _LONGEST = 4, 60  # characters of a heading that can stand in a question
_FRAME = re.compile(
    r"\b(contents|index|preface|foreword|cover|title page|copyright|half[- ]title|imprint|dedication|bibliography|"
    r"acknowledge?ments?|notes|endnotes|glossary|about the author|inhalt|inhaltsverzeichnis|vorwort|register|impressum|"
    r"danksagung|literaturverzeichnis|anmerkungen|glossar|table des matières|sommaire|avant-propos|remerciements|"
    r"bibliographie|índice|prólogo|agradecimientos|bibliografía)\b",
    re.I,
)
_ONLY_COUNTED = re.compile(
    r"(chapter|part|book|section|kapitel|teil|buch|abschnitt|chapitre|partie|capítulo|parte|page)?\s*([ivxlcdm]+|\d+)\.?",
    re.I,
)
_WHOLE = "What is the book about?"
_ENGLISH: Language = "en"
_ASKED = {
    "en": {
        "heading": "What does the book say in “{}”?",
        "name": "What does the book say about {}?",
        "any": ("How does the book begin?", "Who is named in the book?", "How does the book end?"),
        "two": "Where do the two documents differ?",
        "several": "Where do the several documents differ?",
        "common": "What do they have in common?",
    },
    "de": {
        "heading": "Was sagt das Buch in „{}“?",
        "name": "Was sagt das Buch über {}?",
        "any": ("Wie beginnt das Buch?", "Wer wird in dem Buch genannt?", "Wie endet das Buch?"),
        "two": "Worin unterscheiden sich die beiden Dokumente?",
        "several": "Worin unterscheiden sich die Dokumente?",
        "common": "Was haben sie gemeinsam?",
    },
    "fr": {
        "heading": "Que dit le livre dans « {} » ?",
        "name": "Que dit le livre de {} ?",
        "any": ("Comment le livre commence-t-il ?", "Qui est nommé dans le livre ?", "Comment le livre finit-il ?"),
        "two": "En quoi les deux documents diffèrent-ils ?",
        "several": "En quoi les documents diffèrent-ils ?",
        "common": "Qu’ont-ils en commun ?",
    },
    "es": {
        "heading": "¿Qué dice el libro en «{}»?",
        "name": "¿Qué dice el libro sobre {}?",
        "any": ("¿Cómo empieza el libro?", "¿A quién se nombra en el libro?", "¿Cómo termina el libro?"),
        "two": "¿En qué se diferencian los dos documentos?",
        "several": "¿En qué se diferencian los documentos?",
        "common": "¿Qué tienen en común?",
    },
}
"""Questions in the language of the book, since most people ask in it, and a model answers in the language that it is
asked in."""
_NAMES = 2
# Names of two words and more, in the middle of a sentence.
_NAME = re.compile(r"(?:(?<=[a-z] )|(?<=[a-z], ))[A-Z][\w’'-]+(?: [A-Z][\w’'-]+)+")
_GERMAN = re.compile(r" (?:und|der|die|das|ist) ")  # its nouns have capitals, which tell no names
_MOST_GERMAN = 0.02  # of all words
_PHRASES = 3
_PHRASE_WORDS = 6  # or up to two more, where the sixth is a short one
_GOES_ON = 3  # words after the beginning of a sentence, where
_RISKY = 8  # runs that stand elsewhere, from which a sentence is likelier lost than copied
_TWICE = 12  # runs that stand elsewhere, which a word that stands twice in its sentence counts like
_KINDS = 3  # of phrases, by how well their sentences can be copied
_RUN_WORDS = (3, 4)  # words by which a copy finds its place
_LAST_WORD = 4  # letters of a phrase's last word: one that ends in "the" or "of" reads as if cut off
_PAGE_HAS = 40  # words of running text that a page needs to give a phrase; title pages and tables have fewer
# A sentence of prose: begins behind the end of another one, plain words with at most a comma between them, and it
# goes on for a while behind the words that are asked for.
_WORD = r"[^\W\d_]+(?:[’'-][^\W\d_]+)*"
_SENTENCE = re.compile(
    rf"(?<=[.!?]\s)({_WORD}(?:,?\s{_WORD}){{{_PHRASE_WORDS - 2},{_PHRASE_WORDS}}}?,?\s(?=\w{{{_LAST_WORD}}}){_WORD})"
    rf"(?=,?\s{_WORD}[^.!?]{{30,}})"
)
# The rest of a sentence that can be quoted without a slip: a few plain words, and a full stop. What has figures,
# brackets or an open end is asked for only where there is nothing else.
_PLAIN_END = re.compile(rf"(?:,?\s{_WORD}){{2,20}}\.")
_ANY_WORD = re.compile(_WORD)
_DESCRIPTION = "sample.json"
_FORMS = (".pdf", ".epub", ".txt")


def suggestions(document: Document, pages_read: int, *, general: bool = True) -> tuple[str, ...]:
    """Questions about what has been read of a document.

    Args:
        pages_read: pages from its start; the headings of others are left out, and its end is not asked about.
        general: those that can be asked of any book too, and all in the book's language. Who was taught to find
            passages has no passage for them, and some for what the book is about; it was taught in English.
    """
    words: Any = _ASKED[(language_of_book(document) if general else None) or _ENGLISH]
    if document.members and general and pages_read > document.members[-1].before:
        both = "two" if len(document.members) == 2 else "several"
        others = suggestions(replace(document, members=()), pages_read)
        return (words[both], words["common"], *others)[:MOST]
    headings = telling_headings(document, pages_read)
    asked = [words["heading"].format(heading) for heading in _spread(headings, _FROM_CONTENTS)]
    named = [words["name"].format(name) for name in _names(document, pages_read)]
    of_any = words["any"] if pages_read >= len(document.pages) else words["any"][:-1]
    return (*asked, *named, *of_any)[:MOST] if general else (_WHOLE, *asked, *named)[:MOST]


def language_of_book(document: Document) -> Language | None:
    """The language of its first pages; None where it is not known here."""
    return language_of(" ".join(page.text for page in document.pages[:_LOOKED_AT]))


def _names(document: Document, pages_read: int) -> list[str]:
    """Whom and what the book names most often."""
    text = " ".join(" ".join(page.text.split()) for page in document.pages[:pages_read])
    if len(_GERMAN.findall(text)) > _MOST_GERMAN * text.count(" "):
        return []
    found = Counter(name for name in _NAME.findall(text) if len(name) <= _LONGEST)
    return [name for name, _ in found.most_common(_NAMES)]


def phrase_questions(document: Document, pages_read: int) -> tuple[str, ...]:
    """Questions for a model that can only find passages: where the book says some words that stand in it once.

    Args:
        pages_read: pages from its start; only these are looked at.

    Returns:
        The likeliest to be answered first, then others in their place: one from each third of what has been read, then
        a second one, and so on. A phrase begins a sentence, of plain words if there is such a one, and its words are
        rare. Where every sentence stands there several times, one of them all the same.
    """
    return tuple(f"Where does it say “{phrase}”?" for phrase in _telling_phrases(document, pages_read))


def continuations(document: Document, pages_read: int) -> tuple[str, ...]:
    """Questions about the same phrases for a model that follows instructions: text of the book, whatever it is
    about."""
    asked = "Write down word for word how the text goes on after “{}”, for a whole paragraph."
    return tuple(asked.format(phrase) for phrase in _telling_phrases(document, pages_read))


def _telling_phrases(document: Document, pages_read: int) -> list[str]:
    pages = [" ".join(page.text.split()) for page in document.pages[:pages_read]]
    known = Counter(word.lower() for page in pages for word in _ANY_WORD.findall(page))
    whole = " ".join(pages)
    thirds = [pages[len(pages) * n // _PHRASES : len(pages) * (n + 1) // _PHRASES] for n in range(_PHRASES)]
    if len(pages) < _PHRASES:
        thirds = [pages]
    ranked = [_rarest_first(third, known, whole, most=1) for third in thirds]
    # The best one of every third of the book, then further ones of the best kind from anywhere, then whatever there is.
    places = [(kind, at) for kind in range(_KINDS) for at in range(_PHRASES)]
    found = [third[kind][at] for kind, at in places for third in ranked if len(third[kind]) > at]
    if len(found) < _PHRASES:  # a letter or a form
        begun = _beginnings(pages, whole.lower())
        found += [phrase for phrase in begun if not any(one.startswith(phrase) for one in found)]
    return found or [phrase for kind in _rarest_first(pages, known, whole, most=len(whole)) for phrase in kind][:1]


def _beginnings(pages: Sequence[str], lowered: str) -> Iterator[str]:
    """How the sentences of a short text begin, wherever it has one and however it goes on."""
    for page in pages:
        for place in sentences(page):
            sentence = page[place.start : place.end].split()
            words = sentence[: _PHRASE_WORDS - 1]
            phrase = " ".join(words).rstrip(",;:")
            plain = len(words) == _PHRASE_WORDS - 1 and all(map(_ANY_WORD.fullmatch, phrase.replace(",", "").split()))
            goes_on = len(sentence) >= len(words) + _GOES_ON
            if plain and goes_on and not _is_heading(words) and lowered.count(phrase.lower()) == 1:
                yield phrase


def _rarest_first(pages: Sequence[str], known: Counter[str], whole: str, most: int) -> tuple[list[str], ...]:
    """The best few phrases of these pages, found up to ``most`` times in the whole text: those whose sentences are
    plain and lead no copy astray, those that are plain, and the others; of each the ones with rare words first."""
    lowered = whole.lower()
    runs = Counter(_runs(lowered))
    best: tuple[list[str], ...] = tuple([] for _ in range(_KINDS))
    rests = dict(_phrases(pages))

    def astray(phrase: str) -> int:
        """A small model that copies goes by the last few words: where these stand in several places it may go on in
        the wrong one, and come round again; a word that stands twice in the sentence makes it skip from one to the
        other."""
        sentence = f"{phrase}{rests[phrase]}".lower()
        words = Counter(word for word in _ANY_WORD.findall(sentence) if len(word) >= _LAST_WORD)
        elsewhere = sum(max(0, runs[run] - 1) for run in _runs(sentence))
        return elsewhere + _TWICE * sum(number > 1 for number in words.values())

    for phrase in sorted(rests, key=lambda phrase: (astray(phrase), _commonness(phrase, known), phrase)):
        kind = best[_KINDS - 1 if not rests[phrase] or astray(phrase) > _RISKY else min(1, astray(phrase))]
        if len(kind) < _PHRASES and lowered.count(phrase.lower()) <= most:
            kind.append(phrase)
    return best


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = _ANY_WORD.findall(text)
    for length in _RUN_WORDS:
        yield from zip(*(words[at:] for at in range(length)), strict=False)


def _phrases(pages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Phrases, and the rest of their sentences where it is plain."""
    for page in pages:
        if len(_ANY_WORD.findall(page)) >= _PAGE_HAS:
            for match in _SENTENCE.finditer(page):
                phrase = match[1]
                words = phrase.split()
                if "," not in phrase and not _is_heading(words):
                    end = _PLAIN_END.match(page, match.end())
                    yield phrase, end[0] if end else ""


def _is_heading(words: Sequence[str]) -> bool:
    """Headings, and what has abbreviations in capitals, which a small model copies badly."""
    shouted = any(len(word) > 1 and word.isupper() for word in words)
    return shouted or sum(word[0].isupper() for word in words) > len(words) // 2


def _commonness(phrase: str, known: Counter[str]) -> float:
    """How often its two rarest words stand in the book; a word that stands once may be misread and counts as common."""
    times = sorted(known[word.lower()] for word in _ANY_WORD.findall(phrase))
    return sum(count if count > 1 else _PAGE_HAS for count in times[:2])


def telling_headings(document: Document, pages_read: int) -> list[str]:
    """Headings of the outermost levels that say what their chapter is about, in order."""
    read = {page.number for page in document.pages[:pages_read]}
    found: dict[str, None] = {}
    for level in (0, 1):
        for item in document.outline:
            title = " ".join(item.title.split())
            fits = (
                _SHORTEST <= len(title) <= _LONGEST and not _FRAME.search(title) and not _ONLY_COUNTED.fullmatch(title)
            )
            if item.level == level and item.page in read and fits and title != document.title:
                found.setdefault(title)
        if len(found) >= _FROM_CONTENTS:
            break
    return list(found)


def _spread(headings: Sequence[str], count: int) -> list[str]:
    """Some of them, from all over the book."""
    if len(headings) <= count:
        return list(headings)
    return [headings[(2 * number + 1) * len(headings) // (2 * count)] for number in range(count)]


class Sample:
    """Args:
    folder: holds the book and ``sample.json``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def file(self) -> Path | None:
        """The book in the best form there is."""
        named = self._folder / str(self._description.get("file", ""))
        if named.is_file():
            return named
        return next((file for form in _FORMS for file in sorted(self._folder.glob(f"*{form}"))), None)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.file.read_bytes()).hexdigest() if self.file else ""

    @cached_property
    def questions(self) -> tuple[str, ...]:
        found = self._description.get("questions", ())
        return tuple(str(item["question"]) for item in found if isinstance(item, dict) and "question" in item)

    @cached_property
    def _description(self) -> dict:
        try:
            found = json.loads((self._folder / _DESCRIPTION).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}
