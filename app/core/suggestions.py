"""Suggests questions about a book: the bundled book's own questions, or questions made from its table of contents or
its text.

They ask for places and statements of the book, and not for opinions, so that a small model can answer them too. A model
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
_LOOKED_AT = 40  # pages by which the language of a book is told
_SHORTEST, _LONGEST = 4, 60  # characters of a heading in a question, least and most
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
"""Questions in the language of the book: most people ask in it, and a model answers in the language of the question."""
_NAMES = 2
# Names of two or more words, in the middle of a sentence.
_NAME = re.compile(r"(?:(?<=[a-z] )|(?<=[a-z], ))[A-Z][\w’'-]+(?: [A-Z][\w’'-]+)+")
_GERMAN = re.compile(r" (?:und|der|die|das|ist) ")  # German text: its nouns have capitals, which do not mark names
_MOST_GERMAN = 0.02  # share of all words
_PHRASES = 3
_PHRASE_WORDS = 6  # words of a phrase, or up to two more where the sixth is short
_GOES_ON = 3  # words that follow the beginning of a sentence within its plain part
_RISKY = 8  # other places of a sentence's runs from which on a copy probably goes astray
_TWICE = 12  # number of other places that a word standing twice in its sentence counts for
_KINDS = 3  # classes of phrases, by how well their sentences can be copied
_RUN_WORDS = (3, 4)  # words by which a copy finds its place
_LAST_WORD = 4  # letters of a phrase's last word: one that ends in "the" or "of" reads as if cut off
_PAGE_HAS = 40  # words of running text that a page needs to give a phrase; title pages and tables have fewer
# A sentence of prose: begins after the end of another one, has plain words with at most a comma between them, and
# continues for a while after the words that are asked for.
_WORD = r"[^\W\d_]+(?:[’'-][^\W\d_]+)*"
_SENTENCE = re.compile(
    rf"(?<=[.!?]\s)({_WORD}(?:,?\s{_WORD}){{{_PHRASE_WORDS - 2},{_PHRASE_WORDS}}}?,?\s(?=\w{{{_LAST_WORD}}}){_WORD})"
    rf"(?=,?\s{_WORD}[^.!?]{{30,}})"
)
# The rest of a sentence that can be quoted without error: a few plain words and a full stop. Sentences with figures,
# brackets or an open end are used only where there are no others.
_PLAIN_END = re.compile(rf"(?:,?\s{_WORD}){{2,20}}\.")
_ANY_WORD = re.compile(_WORD)
_DESCRIPTION = "sample.json"
_FORMS = (".pdf", ".epub", ".txt")


def suggestions(document: Document, pages_read: int, *, general: bool = True) -> tuple[str, ...]:
    """Questions about the part of a document that has been read.

    Args:
        pages_read: number of its first pages; headings of later pages are left out, and the end of the book is not
            asked about.
        general: whether to add questions that suit any book, and to ask in the book's language. A model that was
            trained to find passages finds none for such questions, and it was trained in English.
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
    """The people and things that the book names most often."""
    text = " ".join(" ".join(page.text.split()) for page in document.pages[:pages_read])
    if len(_GERMAN.findall(text)) > _MOST_GERMAN * text.count(" "):
        return []
    found = Counter(name for name in _NAME.findall(text) if len(name) <= _LONGEST)
    return [name for name, _ in found.most_common(_NAMES)]


def phrase_questions(document: Document, pages_read: int) -> tuple[str, ...]:
    """Questions for a model that can only find passages: they ask for the place of words that occur once in the book.

    Args:
        pages_read: number of its first pages; only these are used.

    Returns:
        The question that is most likely answered comes first, then others: one from each third of the read part, then a
            second one, and so on. A phrase begins a sentence, of plain words where possible, and its words are rare.
            Where every sentence occurs several times, one of them is used anyway.
    """
    return tuple(f"Where does it say “{phrase}”?" for phrase in _telling_phrases(document, pages_read))


def continuations(document: Document, pages_read: int) -> tuple[str, ...]:
    """Questions about the same phrases for a model that follows instructions: they need only the book's text, whatever
    its subject.
    """
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
    # The best phrase of every third of the book, then further ones of the best class from anywhere, then any others.
    places = [(kind, at) for kind in range(_KINDS) for at in range(_PHRASES)]
    found = [third[kind][at] for kind, at in places for third in ranked if len(third[kind]) > at]
    if len(found) < _PHRASES:  # a short text, such as a letter or a form, has few phrases
        begun = _beginnings(pages, whole.lower())
        found += [phrase for phrase in begun if not any(one.startswith(phrase) for one in found)]
    return found or [phrase for kind in _rarest_first(pages, known, whole, most=len(whole)) for phrase in kind][:1]


def _beginnings(pages: Sequence[str], lowered: str) -> Iterator[str]:
    """The beginnings of the sentences of a short text, at all their places."""
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
    """The best few phrases of these pages that occur up to ``most`` times in the whole text. First come phrases whose
    sentences are plain and lead no copy astray, then other plain ones, then the rest; within a class, rare words come
    first.
    """
    lowered = whole.lower()
    runs = Counter(_runs(lowered))
    best: tuple[list[str], ...] = tuple([] for _ in range(_KINDS))
    rests = dict(_phrases(pages))

    def astray(phrase: str) -> int:
        """How likely a copy of this sentence goes astray. A small model copies by the last few words. Where these occur
        at several places, the model may continue at the wrong place and return again; a word that occurs twice in the
        sentence makes the model skip from one place to the other.
        """
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
    """Whether a sentence is a heading, or has abbreviations in capitals, which a small model copies badly."""
    shouted = any(len(word) > 1 and word.isupper() for word in words)
    return shouted or sum(word[0].isupper() for word in words) > len(words) // 2


def _commonness(phrase: str, known: Counter[str]) -> float:
    """The number of places of a phrase's two rarest words in the book. A word that occurs once may be misread, and
    counts as common.
    """
    times = sorted(known[word.lower()] for word in _ANY_WORD.findall(phrase))
    return sum(count if count > 1 else _PAGE_HAS for count in times[:2])


def telling_headings(document: Document, pages_read: int) -> list[str]:
    """Headings of the outermost levels that tell the subject of their chapter, in order."""
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
    """Choose some items, spread over all of them."""
    if len(headings) <= count:
        return list(headings)
    return [headings[(2 * number + 1) * len(headings) // (2 * count)] for number in range(count)]


class Sample:
    """The bundled sample book.

    Args:
        folder: holds the book and ``sample.json``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def file(self) -> Path | None:
        """The book in its best available form."""
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
