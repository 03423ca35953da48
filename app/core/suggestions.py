"""Suggests questions about a book: the bundled book's own questions, or questions made from its table of contents or
its text.

The questions ask for places and statements of the book, and not for opinions, so that a small model can answer them
too. A model that can only quote (its card says so, ``app.core.abilities.Abilities``) is given phrases of the book to
find.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from app.core.contents import Chapter
from app.quoted import sentences
from engine.document import Document
from engine.languages import Language, language_of

MOST = 5
_FROM_CONTENTS = 3
_LOOKED_AT = 40  # first pages from which the language of a book is detected
_SHORTEST, _LONGEST = 4, 60  # minimum and maximum characters of a heading that a question may quote
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
"""Questions, keyed by language: they are asked in the language of the book, since most people do so and a model answers
in the language of the question.
"""
_NAMES = 2
# Matches names of two or more words in the middle of a sentence.
_NAME = re.compile(r"(?:(?<=[a-z] )|(?<=[a-z], ))[A-Z][\w’'-]+(?: [A-Z][\w’'-]+)+")
# matches common German words
_GERMAN = re.compile(r" (?:und|der|die|das|ist) ")
# maximum share of words that ``_GERMAN`` matches; a text with more counts as German, where capitals mark no names
_MOST_GERMAN = 0.02
_PHRASES = 3
_PHRASE_WORDS = 6  # words of a phrase; up to two more if the sixth is short
_GOES_ON = 3  # words of plain text that must follow the phrase
_RISKY = 8  # a phrase with a higher risk (``astray``) is put into the last class (``_KINDS``)
_TWICE = 12  # risk that a word adds if it occurs twice in its sentence
_KINDS = 3  # classes of phrases, ranked by how well their sentences can be copied
_RUN_WORDS = (3, 4)  # lengths in words of the sequences that let a copying model find its place
_LAST_WORD = 4  # minimum letters of a phrase's last word: a phrase that ends in "the" or "of" looks cut off
# minimum words of running text on a page from which a phrase is taken; title pages and tables have fewer
_PAGE_HAS = 40
# Matches the beginning of a sentence of prose. The sentence begins after the end of another sentence, has plain words
# with at most a comma between them, and continues for some words after the phrase.
_WORD = r"[^\W\d_]+(?:[’'-][^\W\d_]+)*"
_SENTENCE = re.compile(
    rf"(?<=[.!?]\s)({_WORD}(?:,?\s{_WORD}){{{_PHRASE_WORDS - 2},{_PHRASE_WORDS}}}?,?\s(?=\w{{{_LAST_WORD}}}){_WORD})"
    rf"(?=,?\s{_WORD}[^.!?]{{30,}})"
)
# Matches the rest of a sentence that can be quoted without error: a few plain words and a full stop. Sentences with
# figures, brackets or an open end are used only if there are no others.
_PLAIN_END = re.compile(rf"(?:,?\s{_WORD}){{2,20}}\.")
_ANY_WORD = re.compile(_WORD)
_DESCRIPTION = "sample.json"
_FORMS = (".pdf", ".epub", ".txt")


def suggestions(document: Document, pages_read: int, *, general: bool = True) -> tuple[str, ...]:
    """Questions about the part of a document that has been read.

    Args:
        pages_read: number of pages read, from the first; headings of later pages are left out. Unless all pages are
            read, the end of the book is not asked about.
        general: whether to add questions that suit any book, and to ask in the book's language. False for a model that
            only finds passages: it is trained on English, and finds no passage for such questions.
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


@dataclass(frozen=True)
class _Words:
    """How a chapter, or one of several documents, is asked about in one language."""

    chapter: tuple[str, str]
    document: tuple[str, str]
    quoted: str
    units: Mapping[str, tuple[str, str]]
    to: str


_OF_CHAPTERS: Mapping[Language, _Words] = {
    "en": _Words(
        ("Summarize the chapter {}.", "What happens in the chapter {}?"),
        ("Summarize {}.", "What does {} say?"),
        "“{}”",
        {"page": ("page", "pages"), "section": ("section", "sections")},
        "to",
    ),
    "de": _Words(
        ("Fasse das Kapitel {} zusammen.", "Was geschieht in dem Kapitel {}?"),
        ("Fasse {} zusammen.", "Was steht in {}?"),
        "„{}“",
        {"page": ("Seite", "Seiten"), "section": ("Abschnitt", "Abschnitte")},
        "bis",
    ),
    "fr": _Words(
        ("Résume le chapitre {}.", "Que se passe-t-il dans le chapitre {} ?"),
        ("Résume {}.", "Que dit {} ?"),
        "« {} »",
        {"page": ("page", "pages"), "section": ("section", "sections")},
        "à",
    ),
    "es": _Words(
        ("Resume el capítulo {}.", "¿Qué ocurre en el capítulo {}?"),
        ("Resume {}.", "¿Qué dice {}?"),
        "«{}»",
        {"page": ("página", "páginas"), "section": ("sección", "secciones")},
        "a",
    ),
}


def chapter_questions(chapter: Chapter, document: Document, language: Language | None = None) -> tuple[str, str]:
    """Questions about one chapter, or about one document of several: "Summarize the chapter “The Gale” (pages 12 to
    25).".

    Args:
        language: the language to ask in; English if None.
    """
    asked = _OF_CHAPTERS[language or "en"]
    member = document.member_at(chapter.first)
    if member is not None and chapter.level == 0:
        title = asked.quoted.format(chapter.title)
        return asked.document[0].format(title), asked.document[1].format(title)
    unit, before = (member.unit, member.before) if member else (document.unit, 0)

    def called(number: int) -> str:
        page = document.page(number) if unit == "page" else None
        return page.label if page else str(number - before)

    one, several = asked.units[unit]
    first, last = called(chapter.first), called(chapter.last)
    where = f"{one} {first}" if first == last else f"{several} {first} {asked.to} {last}"
    where = f"{member.title}, {where}" if member else where
    named = f"{asked.quoted.format(chapter.title)} ({where})"
    return asked.chapter[0].format(named), asked.chapter[1].format(named)


def language_of_book(document: Document) -> Language | None:
    """The language of a book's first pages; None if it is not one of the known languages."""
    return language_of(" ".join(page.text for page in document.pages[:_LOOKED_AT]))


def _names(document: Document, pages_read: int) -> list[str]:
    """The people and things that the book names most often. Empty for a German text."""
    text = " ".join(" ".join(page.text.split()) for page in document.pages[:pages_read])
    if len(_GERMAN.findall(text)) > _MOST_GERMAN * text.count(" "):
        return []
    found = Counter(name for name in _NAME.findall(text) if len(name) <= _LONGEST)
    return [name for name, _ in found.most_common(_NAMES)]


def phrase_questions(document: Document, pages_read: int) -> tuple[str, ...]:
    """Questions for a model that can only find passages. A question asks for the place of a phrase that occurs only
    once in the book.

    Args:
        pages_read: number of pages read, from the first; only these pages are used.

    Returns:
        Questions, the most likely answered first. Of equally likely questions, one from each third of the read part
            comes first, then a second one from each third, and so on. A phrase begins a sentence and has rare words.
            The sentence has plain words if possible. If every sentence occurs several times, a repeated sentence is
            used.
    """
    return tuple(f"Where does it say “{phrase}”?" for phrase in _telling_phrases(document, pages_read))


def continuations(document: Document, pages_read: int) -> tuple[str, ...]:
    """Questions that ask a model to continue the phrases of ``phrase_questions``, for a model that follows
    instructions. The answers need only the book's text, whatever its subject.
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
    # By class. Within a class, the best phrase of each third of the book, then the second phrase of each third, and so
    # on.
    places = [(kind, at) for kind in range(_KINDS) for at in range(_PHRASES)]
    found = [third[kind][at] for kind, at in places for third in ranked if len(third[kind]) > at]
    if len(found) < _PHRASES:  # a short text, such as a letter or a form, has few phrases
        begun = _beginnings(pages, whole.lower())
        found += [phrase for phrase in begun if not any(one.startswith(phrase) for one in found)]
    return found or [phrase for kind in _rarest_first(pages, known, whole, most=len(whole)) for phrase in kind][:1]


def _beginnings(pages: Sequence[str], lowered: str) -> Iterator[str]:
    """Yield the beginnings of a short text's sentences that can serve as phrases."""
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
    """The best few phrases of each class, among the phrases of ``pages`` that occur at most ``most`` times in the whole
    text. The first class has phrases of plain sentences that can be copied without risk (``astray``). The second class
    has phrases of plain sentences with a small risk. All other phrases are in the last class. Within a class, phrases
    are ordered by their risk, then by the rarity of their words.
    """
    lowered = whole.lower()
    runs = Counter(_runs(lowered))
    best: tuple[list[str], ...] = tuple([] for _ in range(_KINDS))
    rests = dict(_phrases(pages))

    def astray(phrase: str) -> int:
        """The risk that the model goes wrong when it copies this sentence. A small model finds the next word by the
        last few words. If these words occur at several places, the model may continue at the wrong place. If a word
        occurs twice in the sentence, the model may skip from one occurrence to the other.
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
    """Phrases, each with the rest of its sentence if that rest is plain."""
    for page in pages:
        if len(_ANY_WORD.findall(page)) >= _PAGE_HAS:
            for match in _SENTENCE.finditer(page):
                phrase = match[1]
                words = phrase.split()
                if "," not in phrase and not _is_heading(words):
                    end = _PLAIN_END.match(page, match.end())
                    yield phrase, end[0] if end else ""


def _is_heading(words: Sequence[str]) -> bool:
    """Whether a sentence is a heading, or contains abbreviations in capitals, which a small model copies badly."""
    shouted = any(len(word) > 1 and word.isupper() for word in words)
    return shouted or sum(word[0].isupper() for word in words) > len(words) // 2


def _commonness(phrase: str, known: Counter[str]) -> float:
    """How often the two rarest words of a phrase occur in the book. A word that occurs once may be a misread word, so
    it counts as common.
    """
    times = sorted(known[word.lower()] for word in _ANY_WORD.findall(phrase))
    return sum(count if count > 1 else _PAGE_HAS for count in times[:2])


def telling_headings(document: Document, pages_read: int) -> list[str]:
    """Headings of the outermost level that say what their chapter is about, in order. If these are few, headings of the
    second level follow.
    """
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
    """Choose ``count`` headings, spread evenly over ``headings``; all of them if there are no more."""
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
        """The file of the book, in the best format that exists."""
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
