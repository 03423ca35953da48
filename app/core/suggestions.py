"""Suggests questions about a book: the bundled book's own questions, or questions made from its table of contents, its
text and its kind.

The questions ask where the book says something, or what it says. They never ask for opinions, so that even a small
model can answer them. If a model can only quote (``Abilities.only_quotes``), the questions ask where a phrase of the
book is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from app.core.contents import ContentsEntry
from app.core.document_kind import Kind, called, kind_of
from app.language.words import fold_word, says_nothing, without_ending
from app.trust.figures import unit_of
from app.trust.quoted import sentences
from engine.document import Document, Page
from engine.languages import Language, language_of, sentence_ends

MOST = 5  # maximum number of suggested questions, beside a request for a summary
_FROM_CONTENTS = 3
_LOOKED_AT = 40  # number of pages, from the first, by which the language of a book is detected
_SHORTEST = 4  # minimum characters of a heading that a question may quote
_LONGEST = 60  # maximum characters of a heading that a question may quote
_FRAME = re.compile(
    r"\b(contents|index|preface|foreword|cover|title ?page|colophon|uncopyright|copyright|half[- ]title|imprint|"
    r"dedication|bibliography|"
    r"acknowledge?ments?|notes|endnotes|glossary|about the author|inhalt|\w*verzeichnis|vorwort|register|impressum|"
    r"danksagung|anmerkungen|glossar|bild(?:quellen|nachweise?)|table des matières|sommaire|avant-propos|remerciements|"
    r"bibliographie|índice|prólogo|agradecimientos|bibliografía)\b",
    re.I,
)
_ONLY_COUNTED = re.compile(
    r"(chapter|part|book|section|kapitel|teil|buch|abschnitt|chapitre|partie|capítulo|parte|page)?\s*([ivxlcdm]+|\d+)\.?",
    re.I,
)
_WHOLE = "What is the book about?"
_ENGLISH: Language = "en"
_ASKED: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "book": "the book",
        "document": "the document",
        "whole": "Summarize {} in at most 60 words.",
        "part": "Summarize these pages in at most 60 words.",
        "heading": "What does {} say in “{}”?",
        "name": "What does {} say about {}?",
        "term": "What does {} say about “{}”?",
        "two": "Where do the two documents differ?",
    },
    "de": {
        "book": "das Buch",
        "document": "das Dokument",
        "whole": "Worum geht es? Fasse {} in höchstens 60 Wörtern zusammen.",
        "part": "Worum geht es? Fasse diese Seiten in höchstens 60 Wörtern zusammen.",
        "heading": "Was sagt {} in „{}“?",
        "name": "Was sagt {} über {}?",
        "term": "Was sagt {} über „{}“?",
        "two": "Worin unterscheiden sich die beiden Dokumente?",
    },
    "fr": {
        "book": "le livre",
        "document": "le document",
        "whole": "Résume {} en 60 mots au plus.",
        "part": "Résume ces pages en 60 mots au plus.",
        "heading": "Que dit {} dans « {} » ?",
        "name": "Que dit {} de {} ?",
        "term": "Que dit {} de « {} » ?",
        "two": "En quoi les deux documents diffèrent-ils ?",
    },
    "es": {
        "book": "el libro",
        "document": "el documento",
        "whole": "Resume {} en 60 palabras como máximo.",
        "part": "Resume estas páginas en 60 palabras como máximo.",
        "heading": "¿Qué dice {} en «{}»?",
        "name": "¿Qué dice {} sobre {}?",
        "term": "¿Qué dice {} sobre «{}»?",
        "two": "¿En qué se diferencian los dos documentos?",
    },
}
"""Questions, keyed by language. They are asked in the language of the book, because most users do so, and a model
answers in the language of the question.
"""
_SUMMARIES = frozenset(
    asked
    for words in _ASKED.values()
    for asked in (words["part"], *(words["whole"].format(words[of]) for of in ("book", "document")))
)
_OF_KIND: Mapping[Language, Mapping[Kind, tuple[str, ...]]] = {
    "en": {
        "story": ("How does the book begin?", "Who is named in the book?", "How does the book end?"),
        "contract": (
            "Who are the parties?",
            "What has to be paid, and when?",
            "How can the agreement be ended?",
            "Which deadlines are there?",
        ),
        "minutes": ("What was decided?", "Who has to do what?", "When is the next meeting?"),
        "report": ("What are the main results?", "Which figures are given?", "What is recommended?"),
        "letter": ("Who writes to whom?", "What does the letter ask for?", "Which dates are named?"),
        "text": ("What is the document about?", "Who is named in the document?", "Which dates are named?"),
    },
    "de": {
        "story": ("Wie beginnt das Buch?", "Wer wird in dem Buch genannt?", "Wie endet das Buch?"),
        "contract": (
            "Wer sind die Vertragsparteien?",
            "Was ist zu zahlen, und wann?",
            "Wie kann der Vertrag beendet werden?",
            "Welche Fristen gibt es?",
        ),
        "minutes": ("Was wurde beschlossen?", "Wer hat was zu tun?", "Wann ist die nächste Sitzung?"),
        "report": ("Was sind die wichtigsten Ergebnisse?", "Welche Zahlen werden genannt?", "Was wird empfohlen?"),
        "letter": ("Wer schreibt an wen?", "Worum bittet der Brief?", "Welche Daten werden genannt?"),
        "text": ("Worum geht es in dem Dokument?", "Wer wird in dem Dokument genannt?", "Welche Daten werden genannt?"),
    },
    "fr": {
        "story": ("Comment le livre commence-t-il ?", "Qui est nommé dans le livre ?", "Comment le livre finit-il ?"),
        "contract": (
            "Qui sont les parties ?",
            "Que faut-il payer, et quand ?",
            "Comment le contrat peut-il être résilié ?",
            "Quels sont les délais ?",
        ),
        "minutes": ("Qu’a-t-on décidé ?", "Qui doit faire quoi ?", "Quand a lieu la prochaine séance ?"),
        "report": ("Quels sont les résultats principaux ?", "Quels chiffres sont donnés ?", "Que recommande-t-on ?"),
        "letter": ("Qui écrit à qui ?", "Que demande la lettre ?", "Quelles dates sont nommées ?"),
        "text": (
            "De quoi parle le document ?",
            "Qui est nommé dans le document ?",
            "Quelles dates sont nommées ?",
        ),
    },
    "es": {
        "story": ("¿Cómo empieza el libro?", "¿A quién se nombra en el libro?", "¿Cómo termina el libro?"),
        "contract": (
            "¿Quiénes son las partes?",
            "¿Qué hay que pagar y cuándo?",
            "¿Cómo se puede terminar el contrato?",
            "¿Qué plazos hay?",
        ),
        "minutes": ("¿Qué se decidió?", "¿Quién tiene que hacer qué?", "¿Cuándo es la próxima sesión?"),
        "report": ("¿Cuáles son los resultados principales?", "¿Qué cifras se dan?", "¿Qué se recomienda?"),
        "letter": ("¿Quién escribe a quién?", "¿Qué pide la carta?", "¿Qué fechas se nombran?"),
        "text": ("¿De qué trata el documento?", "¿A quién se nombra en el documento?", "¿Qué fechas se nombran?"),
    },
}
"""Questions that fit every document of a kind, keyed by language and kind. The last one of a story asks for its end."""
_OF_EACH: Mapping[Language, Mapping[Kind, tuple[str, ...]]] = {
    "en": {
        "story": ("How does each book begin?", "Who is named in each book?"),
        "contract": ("Who are the parties of each document?", "What has to be paid by each document, and when?"),
        "minutes": ("What was decided in each document?", "Who has to do what by each document?"),
        "report": ("What are the main results of each report?", "Which figures are given in each report?"),
        "letter": ("What does each letter ask for?", "Which dates are named in each letter?"),
        "text": ("What is each document about?", "Who is named in each document?"),
    },
    "de": {
        "story": ("Wie beginnt jedes Buch?", "Wer wird in jedem Buch genannt?"),
        "contract": ("Wer sind die Parteien in jedem Dokument?", "Was ist nach jedem Dokument zu zahlen, und wann?"),
        "minutes": ("Was wurde in jedem Dokument beschlossen?", "Wer hat nach jedem Dokument was zu tun?"),
        "report": ("Was sind die wichtigsten Ergebnisse in jedem Bericht?", "Welche Zahlen nennt jeder Bericht?"),
        "letter": ("Worum bittet jeder Brief?", "Welche Daten nennt jeder Brief?"),
        "text": ("Worum geht es in jedem Dokument?", "Wer wird in jedem Dokument genannt?"),
    },
    "fr": {
        "story": ("Comment chaque livre commence-t-il ?", "Qui est nommé dans chaque livre ?"),
        "contract": ("Qui sont les parties de chaque contrat ?", "Que faut-il payer d’après chaque contrat ?"),
        "minutes": ("Qu’a-t-on décidé dans chaque document ?", "Qui doit faire quoi d’après chaque document ?"),
        "report": ("Quels sont les résultats de chaque rapport ?", "Quels chiffres donne chaque rapport ?"),
        "letter": ("Que demande chaque lettre ?", "Quelles dates nomme chaque lettre ?"),
        "text": ("De quoi parle chaque document ?", "Qui est nommé dans chaque document ?"),
    },
    "es": {
        "story": ("¿Cómo empieza cada libro?", "¿A quién se nombra en cada libro?"),
        "contract": ("¿Quiénes son las partes de cada contrato?", "¿Qué hay que pagar según cada contrato?"),
        "minutes": ("¿Qué se decidió en cada documento?", "¿Quién tiene que hacer qué según cada documento?"),
        "report": ("¿Cuáles son los resultados de cada informe?", "¿Qué cifras da cada informe?"),
        "letter": ("¿Qué pide cada carta?", "¿Qué fechas nombra cada carta?"),
        "text": ("¿De qué trata cada documento?", "¿A quién se nombra en cada documento?"),
    },
}
"""The same of several documents; each of them is asked alone (``app.core.side_by_side``)."""
_NAME_WORDS = 4  # maximum words of a name
_OWN = 4  # maximum number of questions made of a document's own words, if the document is of a known kind
_TERMS = 3  # maximum number of a document's terms that questions name
_TERM_LETTERS = 5  # minimum letters of a term
_FEWEST_TERMS = 3  # minimum times that a term is used
# Match a noun of at least four letters after an article, and in German a noun in the middle of a sentence.
_NOUN: Mapping[Language, re.Pattern[str]] = {
    "en": re.compile(
        r"\b(?:[Tt]he|an?|any|each|his|her|its|our|their|this) ([a-z]{4,24})"
        r"(?=[.,;:)]| (?:of|is|was|are|were|has|had|in|on|at|to|and|or|with|for|from|by|that|shall|must|may|will)\b)"
    ),
    "de": re.compile(r"(?<=[a-zäöüß,] )([A-ZÄÖÜ][a-zäöüß]{3,24})\b"),
    "fr": re.compile(r"\b(?:le|la|les|un|une|du|des|au|aux|l[’'])\s?([a-zà-ÿœ]{5,24})\b"),
    "es": re.compile(r"\b(?:el|la|los|las|una?|del|al) ([a-zà-ÿ]{5,24})\b"),
}
_COMPARE: Mapping[Language, tuple[str, str, str]] = {
    "en": ("Compare {}.", "the ", "and"),
    "de": ("Vergleiche {}.", "", "und"),
}
"""For each language: a question that is put to each document point by point (``app.core.side_by_side``), the article of
a point, and the word before the last one.
"""
_FIGURE = re.compile(r"\d[\d.,]*\d")  # of two digits or more: a smaller one is often the number of a clause
_DIFFERING = 0.4  # minimum share of figures that differ beside a noun that a question compares (``differing``)
_NAMES = 2
# Matches names of two or more words in the middle of a sentence.
_POSSESSIVE = re.compile(r"['’]s\Z")  # "Miss Watson's" is about Miss Watson
_NAME = re.compile(r"(?:(?<=[a-z] )|(?<=[a-z], ))[A-Z][\w’'-]+(?: [A-Z][\w’'-]+)+")
_PHRASE_QUESTION = "Where does it say “{}”?"
_ASKS_FOR_PHRASE = re.compile(_PHRASE_QUESTION.replace("?", r"\?").format("([^“”]+)"))
_PHRASES = 3
# number of words of a phrase; up to two more are taken, so that the last word has at least ``_LAST_WORD`` letters
_PHRASE_WORDS = 6
_GOES_ON = 3  # minimum words that follow a phrase in its sentence; used only for short texts (``_beginnings``)
# maximum risk (``astray``) of a phrase in the second class; phrases with a higher risk are in the last class
# (``_rarest_first``)
_RISKY = 8
# addition to a phrase's risk (``astray``) for each word that occurs more than once in the phrase's sentence
_TWICE = 12
_KINDS = 3  # number of classes into which ``_rarest_first`` sorts phrases by their risk
_RUN_WORDS = (3, 4)  # lengths in words of the sequences by which a small model finds the next word (``astray``)
_LAST_WORD = 4  # minimum letters of a phrase's last word, because a phrase that ends with "the" or "of" looks cut off
# minimum words of a page from which phrases are taken, so that title pages are left out
_PAGE_HAS = 40
# ``_WORD`` matches a word without digits, which a small model copies badly. ``_BEGINNING`` matches the beginning of a
# sentence. It has only such words, separated by spaces or commas, and at least one more word and 30 more characters of
# the sentence follow.
_WORD = r"[^\W\d_]+(?:[’'-][^\W\d_]+)*"
_BEGINNING = re.compile(
    rf"\s({_WORD}(?:,?\s{_WORD}){{{_PHRASE_WORDS - 2},{_PHRASE_WORDS}}}?,?\s(?=\w{{{_LAST_WORD}}}){_WORD})"
    rf"(?=,?\s{_WORD}[^.!?]{{30,}})"
)
# Matches the rest of a sentence if it has only words and commas and ends with a full stop, because a small model can
# quote such a sentence without error. A phrase from another sentence, such as one with numbers or brackets, is taken
# only if there is no better one.
_PLAIN_END = re.compile(rf"(?:,?\s{_WORD}){{2,20}}\.")
_ANY_WORD = re.compile(_WORD)
_DESCRIPTION = "sample.json"
_FORMS = (".pdf", ".epub", ".txt")


def suggestions(document: Document, pages_read: int, *, general: bool = True, is_part: bool = False) -> tuple[str, ...]:
    """Suggest questions about the pages of a document that have been read.

    Args:
        pages_read: number of pages read, from the first. Headings of later pages are not used. If not all pages are
            read, no question asks about the end of the book.
        general: whether to add questions that suit the kind of document, to ask in its language, and to begin with a
            request for a summary of at most 60 words, if all of it has been read. False for a model that only quotes
            passages, because it finds no passage for a general question and is trained on English.
        is_part: whether the document is a part of a book. No question then asks how the book begins or ends.
    """
    language = (language_of_book(document) if general else None) or _ENGLISH
    words = _ASKED[language]
    if document.members and general and pages_read > document.members[-1].page_offset:
        return _about_several(document, language)
    kind = kind_of(document) if general else "story"
    is_book = not general or called(document) == "book"
    of = words["book" if is_book else "document"]
    headings = telling_headings(document, pages_read)
    asked = [words["heading"].format(of, heading) for heading in _spread(headings, _FROM_CONTENTS)]
    asked += [words["name"].format(of, name) for name in _names(document, pages_read)]
    if not general:
        return (_WHOLE, *asked)[:MOST]
    if len(asked) < _FROM_CONTENTS and kind != "story":
        asked += [words["term"].format(of, term) for term in _terms(document, pages_read, language)]
    is_whole = pages_read >= len(document.pages)
    fitting = _OF_KIND[language][kind]
    fitting = fitting if is_whole or kind != "story" else fitting[:-1]
    noun, book = (words[name].split()[-1] for name in ("document", "book"))
    fitting = tuple(question.replace(noun, book) for question in fitting) if is_book else fitting
    asked = asked if kind in ("story", "text") else asked[:_OWN]
    if is_part:
        return (words["part"], *[*asked, *(() if kind in ("story", "text") else fitting)][:MOST])
    return (*([words["whole"].format(of)] if is_whole else []), *[*asked, *fitting][:MOST])


def _about_several(document: Document, language: Language) -> tuple[str, ...]:
    """Questions about several documents. None asks for a summary of all, for what they have in common, or for every
    difference of more than two, because a small model tells of one what stands in another.
    """
    two = (_ASKED[language]["two"],) if len(document.members) == 2 else ()
    compared = _compared_terms(document, language)
    asked = [_list_of(compared, language)] if compared and language in _COMPARE else []
    kinds = {kind_of(Document("", "", one.pages, document.kind, "")) for one in document.stretches}
    return (*two, *asked, *_OF_EACH[language][kinds.pop() if len(kinds) == 1 else "text"])


def _compared_terms(document: Document, language: Language) -> list[str]:
    """Nouns beside which each of several documents has figures, and not the same ones, such as "rent", the best first.
    A noun that stands mostly in other sentences, or beside figures that all documents have, is left out ("tenant").
    """
    texts = ["\n".join(page.text for page in one.pages) for one in document.stretches]
    nouns = {noun for text in texts for noun in _NOUN[language].findall(text)}
    nouns = {noun for noun in nouns if not says_nothing(fold_word(noun)) and not unit_of(fold_word(noun))}
    beside: dict[str, list[set[str]]] = {noun: [set() for _ in texts] for noun in sorted(nouns)}
    times, counted = Counter[str](), Counter[str]()
    for at, text in enumerate(texts):
        for place in sentences(text):
            sentence = text[place.start : place.end]
            figures = _FIGURE.findall(sentence)
            for noun in nouns.intersection(_ANY_WORD.findall(sentence)):
                times[noun] += 1
                counted[noun] += bool(figures)
                beside[noun][at].update(figures)

    def differing(noun: str) -> float:
        """The share of the noun's sentences with figures, times the share of these that not all documents have."""
        everywhere, anywhere = set.intersection(*beside[noun]), set[str]().union(*beside[noun])
        return counted[noun] / times[noun] * (1 - len(everywhere) / len(anywhere))

    told = {noun: differing(noun) for noun in beside if all(beside[noun])}
    return sorted((noun for noun in told if told[noun] >= _DIFFERING), key=lambda noun: -told[noun])[:_TERMS]


def _list_of(terms: Sequence[str], language: Language) -> str:
    """Ask to compare terms: "Compare the rent and the deposit."."""
    asked, article, before_last = _COMPARE[language]
    named = [f"{article}{term}" for term in terms]
    return asked.format(f" {before_last} ".join([*([", ".join(named[:-1])] if len(named) > 1 else []), named[-1]]))


@dataclass(frozen=True)
class _Words:
    """The templates of one language for a summary of a chapter, or of one of several documents."""

    chapter: str
    document: str
    quoted: str
    units: Mapping[str, tuple[str, str]]
    to: str


_OF_CHAPTERS: Mapping[Language, _Words] = {
    "en": _Words(
        "Summarize the chapter {}.",
        "Summarize {}.",
        "“{}”",
        {"page": ("page", "pages"), "section": ("section", "sections")},
        "to",
    ),
    "de": _Words(
        "Fasse das Kapitel {} zusammen.",
        "Fasse {} zusammen.",
        "„{}“",
        {"page": ("Seite", "Seiten"), "section": ("Abschnitt", "Abschnitte")},
        "bis",
    ),
    "fr": _Words(
        "Résume le chapitre {}.",
        "Résume {}.",
        "« {} »",
        {"page": ("page", "pages"), "section": ("section", "sections")},
        "à",
    ),
    "es": _Words(
        "Resume el capítulo {}.",
        "Resume {}.",
        "«{}»",
        {"page": ("página", "páginas"), "section": ("sección", "secciones")},
        "a",
    ),
}


def asks_for_summary(question: str) -> bool:
    """Whether a suggested question asks for a summary of the whole text."""
    return question in _SUMMARIES


def chapter_question(chapter: ContentsEntry, document: Document, language: Language | None = None) -> str:
    """Ask for a summary of a chapter: "Summarize the chapter “The Gale” (pages 12 to 25).". If ``chapter`` stands for
    one of several documents, the summary is of this document.

    Args:
        language: the language to ask in; English if None.
    """
    asked = _OF_CHAPTERS[language or "en"]
    member = document.member_at(chapter.first)
    if member is not None and chapter.level == 0:
        return asked.document.format(asked.quoted.format(chapter.title))
    unit, before = (member.unit, member.page_offset) if member else (document.unit, 0)

    def called(number: int) -> str:
        page = document.page(number) if unit == "page" else None
        return page.label if page else str(number - before)

    one, several = asked.units[unit]
    first, last = called(chapter.first), called(chapter.last)
    where = f"{one} {first}" if first == last else f"{several} {first} {asked.to} {last}"
    where = f"{member.title}, {where}" if member else where
    return asked.chapter.format(f"{asked.quoted.format(chapter.title)} ({where})")


def language_of_book(document: Document) -> Language | None:
    """Detect the language of a book from its first ``_LOOKED_AT`` pages; None if it is not one of the known
    languages.
    """
    return language_of(" ".join(page.text for page in document.pages[:_LOOKED_AT]))


def _names(document: Document, pages_read: int) -> list[str]:
    """The names that occur most often in the pages read. Empty for a German text, because all nouns are capitalised
    there. A name that stands in no line as a whole is left out, because its end may belong to the next heading, and so
    is the title or the first line, which names what all of the document is about.
    """
    if language_of_book(document) == "de":
        return []
    pages = document.pages[:pages_read]
    text = " ".join(" ".join(page.text.split()) for page in pages)
    counts = Counter(
        _POSSESSIVE.sub("", name[0])
        for name in _NAME.finditer(text)
        if len(name[0]) <= _LONGEST and _is_name(name[0].split()) and _begins_name(text, name.start())
    )
    first = next((line for page in pages for line in page.text.splitlines() if line.strip()), "")
    titles = {" ".join(line.split()).casefold() for line in (first, document.title)}
    names = (name for name, _ in counts.most_common() if name.casefold() not in titles)
    return list(islice((name for name in names if any(name in page.text for page in pages)), _NAMES))


def _begins_name(text: str, start: int) -> bool:
    """Whether a name begins at ``start``, and not with the word before it ("Harbour" of "Harbour Ferry Trust")."""
    before = text[text.rfind(" ", 0, start - 1) + 1 : start - 1]
    return before.endswith(",") or not before[:1].isupper() or says_nothing(fold_word(before))


def _is_name(words: Sequence[str]) -> bool:
    """Whether words are a name, and not a title ("The Landlord") or a name that runs into the next sentence."""
    return len(words) <= _NAME_WORDS and not any(says_nothing(fold_word(word)) for word in (words[0], words[-1]))


def _terms(document: Document, pages_read: int, language: Language) -> list[str]:
    """The nouns that a document uses most, at least ``_FEWEST_TERMS`` times, without words that every text uses, and
    without units ("month"), because nobody asks what a document says about a unit.
    """
    text = " ".join(" ".join(page.text.split()) for page in document.pages[:pages_read])
    nouns = ((noun, fold_word(noun)) for noun in _NOUN[language].findall(text))
    counts = Counter(noun for noun, folded in nouns if not says_nothing(folded) and not unit_of(folded))
    terms: dict[str, str] = {}  # by their forms without an ending, so that no term stands there twice
    for noun, times in counts.most_common():
        if times >= _FEWEST_TERMS and len(noun) >= _TERM_LETTERS:
            terms.setdefault(without_ending(noun.lower()), noun)
    return list(terms.values())[:_TERMS]


def phrase_questions(document: Document, pages_read: int) -> tuple[str, ...]:
    """Make questions for a model that can only quote passages. Each question asks where a phrase is in the book. A
    phrase begins a sentence, has rare words and occurs only once. If there is no such phrase, one that occurs more
    often is used.

    Args:
        pages_read: number of pages read, from the first; only these pages are used.

    Returns:
        Questions, the most likely to be answered first. Of equally likely questions, one is taken from each third of
            the read pages in turn.
    """
    return tuple(_PHRASE_QUESTION.format(phrase) for phrase in _telling_phrases(document, pages_read))


def phrase_of(question: str) -> str:
    """The phrase that a question asks for, as in ``phrase_questions``; "" if the question asks for none."""
    asked = _ASKS_FOR_PHRASE.fullmatch(question)
    return asked[1] if asked else ""


def _telling_phrases(document: Document, pages_read: int) -> list[str]:
    pages = [" ".join(page.text.split()) for page in document.pages[:pages_read]]
    known = Counter(word.lower() for page in pages for word in _ANY_WORD.findall(page))
    whole = " ".join(pages)
    thirds = [pages[len(pages) * n // _PHRASES : len(pages) * (n + 1) // _PHRASES] for n in range(_PHRASES)]
    if len(pages) < _PHRASES:
        thirds = [pages]
    ranked = [_rarest_first(third, known, whole, most=1) for third in thirds]
    # (class, rank) pairs: all ranks of the first class, then all ranks of the second class, and so on. For each pair,
    # ``phrases`` gets a phrase from each third of the book.
    places = [(kind, rank) for kind in range(_KINDS) for rank in range(_PHRASES)]
    phrases = [third[kind][rank] for kind, rank in places for third in ranked if len(third[kind]) > rank]
    if len(phrases) < _PHRASES:  # too few phrases were found because the text is short, such as a letter or a form
        begun = _beginnings(pages, whole.lower())
        phrases += [phrase for phrase in begun if not any(one.startswith(phrase) for one in phrases)]
    return phrases or [phrase for kind in _rarest_first(pages, known, whole, most=len(whole)) for phrase in kind][:1]


def _beginnings(pages: Sequence[str], lowered: str) -> Iterator[str]:
    """Yield beginnings of sentences as phrases. Used for short texts, which have few phrases that meet stricter
    conditions.
    """
    for page in pages:
        for place in sentences(page):
            sentence = page[place.start : place.end].split()
            words = sentence[: _PHRASE_WORDS - 1]
            phrase = " ".join(words).rstrip(",;:")
            plain = len(words) == _PHRASE_WORDS - 1 and all(map(_ANY_WORD.fullmatch, phrase.replace(",", "").split()))
            goes_on = len(sentence) >= len(words) + _GOES_ON
            if plain and goes_on and not _is_heading(words) and lowered.count(phrase.lower()) == 1:
                yield phrase


def _rarest_first(pages: Sequence[str], word_counts: Counter[str], text: str, most: int) -> tuple[list[str], ...]:
    """Sort the phrases of ``pages`` into classes, and return at most ``_PHRASES`` phrases of each class. A phrase may
    occur at most ``most`` times in the whole text. A phrase of the first class is from a plain sentence that a small
    model copies without risk (``astray``), a phrase of the second class from a plain sentence with a small risk. All
    other phrases are in the last class. Within a class, phrases are ordered by their risk, then by the rarity of their
    words.
    """
    lowered = text.lower()
    runs = Counter(_runs(lowered))
    best: tuple[list[str], ...] = tuple([] for _ in range(_KINDS))
    rests = dict(_phrases(pages))

    def astray(phrase: str) -> int:
        """The risk that a small model goes wrong when it copies the phrase's sentence; 0 for no risk. Such a model
        finds the next word by the place in the book where the last few words stand. If these words occur at several
        places of the book, the model may continue at the wrong place. If a word occurs twice in the sentence, the model
        may skip from one occurrence to the other.
        """
        sentence = f"{phrase}{rests[phrase]}".lower()
        words = Counter(word for word in _ANY_WORD.findall(sentence) if len(word) >= _LAST_WORD)
        elsewhere = sum(max(0, runs[run] - 1) for run in _runs(sentence))
        return elsewhere + _TWICE * sum(number > 1 for number in words.values())

    for phrase in sorted(rests, key=lambda phrase: (astray(phrase), _commonness(phrase, word_counts), phrase)):
        kind = best[_KINDS - 1 if not rests[phrase] or astray(phrase) > _RISKY else min(1, astray(phrase))]
        if len(kind) < _PHRASES and lowered.count(phrase.lower()) <= most:
            kind.append(phrase)
    return best


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    words = _ANY_WORD.findall(text)
    for length in _RUN_WORDS:
        yield from zip(*(words[start:] for start in range(length)), strict=False)


def _phrases(pages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each phrase with the rest of its sentence. The rest is "" unless it matches ``_PLAIN_END`` (only words and
    commas).
    """
    for page in pages:
        if len(_ANY_WORD.findall(page)) >= _PAGE_HAS:
            for match in filter(None, (_BEGINNING.match(page, end) for end in sentence_ends(page))):
                phrase = match[1]
                words = phrase.split()
                if "," not in phrase and not _is_heading(words):
                    end = _PLAIN_END.match(page, match.end())
                    yield phrase, end[0] if end else ""


def _is_heading(words: Sequence[str]) -> bool:
    """Whether the words of a sentence look like a heading, because most are capitalised, or contain a word in capitals,
    which a small model copies badly.
    """
    shouted = any(len(word) > 1 and word.isupper() for word in words)
    return shouted or sum(word[0].isupper() for word in words) > len(words) // 2


def _commonness(phrase: str, word_counts: Counter[str]) -> float:
    """How common a phrase's words are: the number of occurrences of its two rarest words in the book. A word that
    occurs only once counts as common, because it may be an error of text recognition.
    """
    times = sorted(word_counts[word.lower()] for word in _ANY_WORD.findall(phrase))
    return sum(count if count > 1 else _PAGE_HAS for count in times[:2])


def telling_headings(document: Document, pages_read: int) -> list[str]:
    """Headings of the outermost level that name the subject of their chapter, unlike "Preface" or "Chapter 3", in the
    order of the book. If there are fewer than ``_FROM_CONTENTS``, headings of the second level follow.
    """
    read = {page.number for page in document.pages[:pages_read]}
    headings: dict[str, None] = {}
    for level in (0, 1):
        for item in document.outline:
            title = " ".join(item.title.split())
            fits = (
                _SHORTEST <= len(title) <= _LONGEST and not _FRAME.search(title) and not _ONLY_COUNTED.fullmatch(title)
            )
            if item.level == level and item.page in read and fits and title != document.title:
                headings.setdefault(title)
        if len(headings) >= _FROM_CONTENTS:
            break
    return list(headings)


def _spread(headings: Sequence[str], count: int) -> list[str]:
    """Choose ``count`` headings, spread evenly over ``headings``; all of them if there are at most ``count``."""
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
        vars(self)  # as in ``Document.__post_init__``

    @cached_property
    def file(self) -> Path | None:
        """The book's file, as named in ``sample.json``. If that file is missing, any PDF, EPUB or text file in the
        folder; None if there is none.
        """
        named = self._folder / str(self._description.get("file", ""))
        if named.is_file():
            return named
        return next((file for form in _FORMS for file in sorted(self._folder.glob(f"*{form}"))), None)

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.file.read_bytes()).hexdigest() if self.file else ""

    def questions_about(self, pages: Sequence[Page]) -> tuple[str, ...]:
        """The book's own questions whose phrases stand in ``pages``."""
        text = " ".join(" ".join(page.text for page in pages).split())
        return tuple(question for question in self._questions if phrase_of(question) in text)

    @cached_property
    def _questions(self) -> tuple[str, ...]:
        questions = self._description.get("questions", ())
        return tuple(str(item["question"]) for item in questions if isinstance(item, dict) and "question" in item)

    @cached_property
    def _description(self) -> dict:
        try:
            description = json.loads((self._folder / _DESCRIPTION).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return {}
        return description if isinstance(description, dict) else {}
