"""Cuts a book that exceeds the window into parts that fit, and chooses which parts a question goes to, in which order.

    parts = cut(document, engine.measure(document))
    choice = choose_parts("When does Ahab first appear?", parts, BookWords(document))
    choice.parts, choice.reach               (part 3, part 4, ...), Reach.FIRST
    choice.left_out_sentence                 "Parts 1 and 2 do not name “Ahab”."

A question about one fact goes to the parts whose passages have the highest BM25 scores, until the evidence supports an
answer. A question about the first place of a subject goes to the parts that name the subject, in the order of the book.
A question about the last place goes to these parts in reverse order. A question about the whole book goes to every
part.

This module has no side effects.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from app.core.contents import chapters
from app.core.find import Finder, Found, Hit
from app.core.format import page_name, places_named, standing
from app.language.quoting import quoted_words
from app.language.spellings import spellings
from app.language.tokens import WORD
from app.language.words import FORMS_OF_ADDRESS, says_nothing
from app.trust.book_words import BookWords
from app.trust.quoted import excerpt, fold
from engine.contents import chapter_asked_for, chapters_of
from engine.document import Document, OutlineItem
from engine.errors import ContextTooSmall
from engine.languages import language_of_question
from engine.passages import asks_for_whole
from engine.plan import BookFit

CHAT_TOKENS = 1536
"""Maximum tokens that a part leaves free for the question and its answer. In a small window it leaves fewer
(``CHAT_SHARE``).
"""
CHAT_SHARE = 8
"""Divisor of the maximum size of a book. A part leaves the quotient, but at most ``CHAT_TOKENS`` tokens, free for the
question and its answer.
"""
FULL = 0.7
"""Minimum size of a part that ends early, before a chapter. It is a fraction of a part's maximum size."""
MOST_ASKED = 3
"""Maximum parts that a question about one fact goes to. Fewer are asked if the evidence supports an answer sooner."""
PROMISING = 4
"""How many of a part's best pages count. The part is ranked by the sum of their scores."""
AROUND = 160
"""Maximum characters shown to the model on each side of a name's occurrence."""
_FEWEST_LETTERS = 3  # minimum letters of a word of a subject that is also searched alone
# minimum number of different chapter titles on a page that counts as a table of contents. Titles of chapters that begin
# on the page itself are not counted.
_FEWEST_TITLES = 4
_SHORTEST_TITLE = 6  # minimum letters of a title that is searched on pages; a shorter title might occur there by chance

_SEEN = (
    r"(?:appear(?:s|ed|ance)?|mention(?:s|ed)?|introduced|occurs?|occurred|occurrence|named|meets?|met|meeting|sees?|saw"
    r"|seen|comes?|came|enters?|entered|speaks?|spoke|spoken|hears?|heard|used|arrives?|arrived|shown|shows? up"
    r"|turns? up|turned up)"
)
# matches the beginning of a question up to the word "first" or "last", unless an article or a possessive stands before
# that word
_ASKED_AT = (
    r"\b(?:when|where|(?:which|what)\s(?:page|chapter|part))\s(?:do|does|did|is|are|was|were)\b"
    r"(?:(?!\b(?:the|an?|his|her|its|their|my|our|at)\s(?:first|last)\b)[^?.])*?(?<!['’]s\s)\b"
)
_FIRST = re.compile(
    rf"\bfirst\s+(?:time\b|(?:page|place|part|chapter)\s+(?:that|which|where|in|on)\b|(?:{_SEEN}|names)\b)"
    rf"|\b{_SEEN}\s+(?:\w+\s+){{0,3}}first\b|{_ASKED_AT}first\s+[a-z]"
    r"|\b(?:erstmals|(?:zum ersten|das erste) mal|zuerst)\b"
    r"|\bpremière (?:fois|apparition)|\bprimera (?:vez|aparición)"
    r"|\berste[nrms]? (?:kapitel|seite|teil|stelle|abschnitt),? (?:das|die|der|in|auf|an|wo)\b"
    r"|\b(?:premier (?:chapitre|passage)|première (?:page|partie)) (?:qui|où|dans|à)\b"
    r"|\b(?:primer capítulo|primera (?:página|parte)) (?:que|donde|en)\b"
    r"|\b(?:où|quand|quelle page)\b.*\bd[’']abord\b",
    re.IGNORECASE,
)
_LAST = re.compile(
    rf"\blast\s+(?:time\b|(?:page|place|part|chapter)\s+(?:that|which|where|in|on)\b|(?:{_SEEN}|names)\b)"
    rf"|\b{_SEEN}\s+(?:\w+\s+){{0,3}}last\b|{_ASKED_AT}last\s+[a-z]"
    r"|\b(?:letztmals|(?:zum letzten|das letzte) mal|zuletzt)\b"
    r"|\bdernière (?:fois|apparition)|\búltima (?:vez|aparición)"
    r"|\bletzte[nrms]? (?:kapitel|seite|teil|stelle|abschnitt),? (?:das|die|der|in|auf|an|wo)\b"
    r"|\b(?:dernier (?:chapitre|passage)|dernière (?:page|partie)) (?:qui|où|dans|à)\b"
    r"|\b(?:último capítulo|última (?:página|parte)) (?:que|donde|en)\b",
    re.IGNORECASE,
)
_ALL = re.compile(
    r"\b(?:how (?:many times|often)|list|enumerate|every|each|throughout|altogether|in total|summari[sz]e|summary"
    r"|sum up|gist|overview|wie oft|alle|jede[rsmn]?|aufzähl\w*|zusammenfass\w*|fasse|combien de fois|tou[st]|toutes"
    r"|chaque|résum\w*|cuántas veces|tod[oa]s|cada|resum\w*)\b|(?<!\bat )(?<!\bafter )(?<!\babove )\ball\b",
    re.IGNORECASE,
)
_PAGES = re.compile(
    r"\b(pages?|p\.|seiten?|páginas?|sections?|abschnitte?|secci[oó]n(?:es)?)\s*(\d{1,5})"
    r"(?:\s*(?:to|bis|à|a|[-–])\s*(\d{1,5}))?(?!\.?\d)",
    re.IGNORECASE,
)
# first letters of those words for a section that ``_PAGES`` matches, such as "section" and "Abschnitt"
_SECTION = ("sec", "abs")
_LISTING = re.compile(
    r"^\W*(?:table of )?contents\W*$|^\W*(?:\w+ )?index\W*$|^\W*inhalt|^\W*table des mati|register\W*$", re.IGNORECASE
)
# matches the ending of a possessive, such as "Ahab's"
_POSSESSIVE = re.compile(r"[’']s$")
# matches the pronoun after the verb of a French question ("apparaît-elle"). It is removed only from words that begin
# with a small letter, unlike the name "Jong-il".
_INVERTED = re.compile(r"(?:-t)?-(?:ils?|elles?|on)$")
# matches an article or a preposition that French joins to the next word
_ELIDED = re.compile(r"^(?:[dDlLjmnstc]|qu)[’'](?=[^\W\d_])")
_DETERMINING = (
    "the a an his her its their my our your der die das den dem des ein eine einen einem einer eines le la les un une "
    "du au aux son sa ses el los las una al del su sus"
)
_DETERMINERS = frozenset(_DETERMINING.split())
# matches "the first chapter that mentions ...", which asks for a chapter and does not name chapter 1
_CHAPTER_SOUGHT = re.compile(
    r"\b(?:first|last|erste[nrms]?|letzte[nrms]?|premier|dernier|primer|último)\s+(?:chapter|kapitel|chapitre|capítulo),?"
    r"\s+(?:that|which|where|in|das|die|der|auf|wo|qui|où|dans|que|donde|en)\b",
    re.IGNORECASE,
)
# matches words that limit a question to a chapter, such as "in chapter"
_IN_CHAPTER = re.compile(
    r"\b(?:in|im|dans|en)\s+(?:(?:the|dem|le|el)\s+)?(?:chapter|kapitel|chapitre|capítulo)\b", re.IGNORECASE
)
_ASKING = (
    "appear appears appeared appearance mention mentions mentioned introduced introduction occur occurs occurred "
    "occurrence name named meet meets met meeting see sees saw seen come comes came enter enters entered speak speaks "
    "spoke spoken hear hears heard use used arrive arrives arrived show shows shown turn turns turned up first last "
    "time chapter page pages part section book story novel text point place scene quote passage character person "
    "erscheint erscheinen auftritt auftreten vorkommt erwähnt genannt erstmals zuerst zuletzt letztmals ersten "
    "letzten wann wo wer wen wem mal kapitel seite buch taucht tritt kommt première dernière fois "
    "apparition apparaît mentionné chapitre aparece aparición mencionado mencionada primera última vez cuándo dónde "
    "quién capítulo libro página word words wort make makes made names mentionnée paraît steht vor erste letzte teil "
    "partie mentionnés menciona mencionan nombra abord premier dernier primer último palabra rede"
)
"""Words that questions about a first or last place contain, whatever their subject."""
_OF_ASKING = frozenset(_ASKING.split())


class Reach(str, Enum):
    """How much of a book a question needs."""

    NAMED = "named"  # the parts with the pages or the chapter that the question names
    FIRST = "first"  # parts from the beginning of the book on, until one of them answers
    LAST = "last"  # parts from the end of the book backwards, until one of them answers
    ALL = "all"  # every part
    FEW = "few"  # the highest ranked parts


@dataclass(frozen=True)
class Part:
    """One part of a book. ``number`` counts from 1; ``document`` has only the part's pages, which have ``tokens``
    tokens.
    """

    number: int
    document: Document
    tokens: int

    @property
    def first(self) -> int:
        """The number of the part's first page."""
        return self.document.pages[0].number

    @property
    def last(self) -> int:
        """The number of the part's last page."""
        return self.document.pages[-1].number

    @property
    def pages(self) -> str:
        """The part's pages in words: "pages 31 to 58", "Chapter 4 to Chapter 7"."""
        ends = self.document.pages[:: max(1, len(self.document.pages) - 1)]
        return places_named([{"label": page.label} for page in ends], self.document.unit)


@dataclass(frozen=True)
class Mention:
    """The first or last occurrence of a name from the question, found by text search. ``words``: the whole name, or
    that one of its words which occurs there. ``page``: the page's number. ``label``: the label printed on the page.
    ``marks``: the ranges [start, end) of characters to highlight on the page.
    """

    words: str
    page: int
    label: str
    marks: tuple[tuple[int, int], ...] = field(default=(), compare=False)


@dataclass(frozen=True)
class PartsChoice:
    """The parts that a question may go to, in the order of asking. ``reach``: how much of the book the question needs.
    ``mentions``: occurrences of the question's names, which are shown to the person. ``hints``: for each part, excerpts
    that are shown to the model again, together with the question. ``left_out_sentence``: why the other parts are not
    asked, such as "Part 1 does not name “Ahab”."; "" if nothing is said. ``until_found``: whether to stop after the
    first supported answer.
    """

    reach: Reach
    parts: tuple[Part, ...]
    until_found: bool
    mentions: tuple[Mention, ...] = ()
    hints: tuple[tuple[str, ...], ...] = ()
    left_out_sentence: str = ""


def cut(document: Document, fit: BookFit) -> tuple[Part, ...]:
    """Cut a book into parts that leave room for a question. A part ends where a chapter begins if the part is then
    large enough (``FULL``), otherwise between any two pages.

    Args:
        fit: the engine's measurement of this document.

    Raises:
        ContextTooSmall: a single page is longer than a part.
    """
    room = fit.room - (fit.tokens - sum(fit.page_tokens)) - min(CHAT_TOKENS, fit.room // CHAT_SHARE)
    numbers = [page.number for page in document.pages]
    levels: dict[int, int] = {}
    for item in document.outline:
        levels[item.page] = min(item.level, levels.get(item.page, item.level))
    parts: list[Part] = []
    start = 0
    while start < len(numbers):
        stop, tokens = start, 0
        while stop < len(numbers) and tokens + fit.page_tokens[stop] <= room:
            tokens += fit.page_tokens[stop]
            stop += 1
        if stop == start:
            name = page_name(document.pages[start].label, document.unit, long=True)
            raise ContextTooSmall(
                f"One {document.unit} alone ({name}) takes {fit.page_tokens[start]:,} tokens, and a part may take "
                f"{max(0, room):,}.",
                "Choose a model with a larger window, or pages without it.",
            )
        if stop < len(numbers):
            stop = _before_a_chapter(fit.page_tokens, numbers, levels, start, stop, FULL * room)
        kept = document.only(frozenset(numbers[start:stop]))
        parts.append(Part(len(parts) + 1, kept, sum(fit.page_tokens[start:stop])))
        start = stop
    return tuple(parts)


def _before_a_chapter(
    tokens: Sequence[int], numbers: Sequence[int], levels: dict[int, int], start: int, stop: int, least: float
) -> int:
    """Choose where a part ends that begins at page index ``start`` and has room for the pages up to ``stop``.

    Returns:
        The index of the first page after the part: the page where a chapter begins, so that the part has at least
            ``least`` tokens. Of several such chapters, the last one of the outermost level is taken. The result is
            ``stop`` if there is none, or if a chapter of the same or an outer level begins at ``stop``.
    """
    best, size = stop, sum(tokens[start:stop])
    level = levels.get(numbers[stop], len(levels) + 1)
    for end in range(stop - 1, start, -1):
        size -= tokens[end]
        if size < least:
            break
        if levels.get(numbers[end], len(levels) + 1) < level:
            best, level = end, levels[numbers[end]]
    return best


def reach_of(question: str, document: Document) -> tuple[Reach, frozenset[int]]:
    """Return how much of a book a question needs, and the numbers of the pages that the question names."""
    item = chapter_asked_for(question, chapters_of(document, len(document.pages)))
    at_an_end = _FIRST.search(question) or _LAST.search(question)
    # The title of a chapter may be the name that the question is about. Such a question means the whole book, not this
    # chapter.
    is_title = item and at_an_end and not _IN_CHAPTER.search(question) and _names(item.title, subjects(question))
    is_sought = is_title or _CHAPTER_SOUGHT.search(question)
    if pages := pages_numbered(document, question) or (frozenset() if is_sought else _pages_of(item, document)):
        return Reach.NAMED, pages
    if _FIRST.search(question):
        return Reach.FIRST, frozenset()
    if _LAST.search(question):
        return Reach.LAST, frozenset()
    if _ALL.search(question) or asks_for_whole(question):
        return Reach.ALL, frozenset()
    return Reach.FEW, frozenset()


def _names(title: str, sought: Sequence[str]) -> bool:
    """Whether a title contains every word of all subjects in ``sought``. False without subjects."""
    words = {fold(word) for word in WORD.findall(title)}
    return bool(sought) and all(fold(word) in words for subject in sought for word in subject.split())


def choose_parts(question: str, parts: Sequence[Part], words: BookWords, count: int = 0) -> PartsChoice:
    """Choose the parts that a question goes to.

    Args:
        parts: all parts of the book, in order.
        words: the words of the whole book.
        count: number of parts to ask, which are then the highest ranked ones. If it is 0, the question decides.
    """
    document = words.document
    reach, pages = reach_of(question, document)
    if count:
        chosen = sorted(promising(question, parts, words)[:count], key=lambda part: part.number)
        return PartsChoice(reach if count < len(parts) else Reach.ALL, tuple(chosen), until_found=False)
    if reach is Reach.NAMED:
        chosen = [part for part in parts if any(page.number in pages for page in part.document.pages)]
        return PartsChoice(reach, tuple(chosen), until_found=False)
    if reach is Reach.ALL:
        return PartsChoice(reach, tuple(parts), until_found=False)
    if reach is Reach.FEW:
        return PartsChoice(reach, tuple(promising(question, parts, words)[:MOST_ASKED]), until_found=True)
    return _from_an_end(question, parts, reach, words)


def promising(question: str, parts: Sequence[Part], words: BookWords) -> list[Part]:
    """Rank the parts by the sum of the BM25 scores of their ``PROMISING`` best pages for the question. Parts with equal
    scores keep the order of the book.
    """
    scores = dict(zip((page.number for page in words.document.pages), words.page_scores(question), strict=True))

    def promise(part: Part) -> float:
        return sum(heapq.nlargest(PROMISING, (scores[page.number] for page in part.document.pages)))

    return sorted(parts, key=lambda part: -promise(part))


def subjects(question: str) -> list[str]:
    """The subjects of a question about a first or last place. A phrase in quotation marks is the only subject.
    Otherwise the subjects consist of the words that are neither stop words nor in ``_ASKING``; neighbouring words form
    one subject.

    Verbs are left out, because the book may use another form of them. In English, a word counts as a verb if it is not
    capitalised, has no article, and stands next to a name or after "first". In German, French and Spanish, groups of
    words without a capital and without an article are left out, because nearly every noun has one or the other there.
    """
    if quoted := quoted_words(question):
        return quoted
    groups = _groups(question)
    language = language_of_question(question)
    sure = [words for words in groups if any(word.is_name or word.is_determined for word in words)]
    if language in ("fr", "es") or (language == "de" and any(word.is_name for words in groups for word in words)):
        groups = sure or groups
    else:
        others = [words[words[0].is_after_first :] for words in groups]
        groups = [words for words in others if words] or groups
    return [" ".join(word.text for word in _without_verbs(words)) for words in groups]


@dataclass(frozen=True)
class _Asked:
    """A word of a question. ``is_name``: whether it is capitalised within the question. ``is_determined``: whether an
    article or a possessive stands before it. ``is_owned``: whether a possessive "'s" ends the word before it.
    ``is_after_first``: whether it begins with a small letter and follows "first" or "last" without an article.
    """

    text: str
    is_name: bool
    is_determined: bool
    is_owned: bool
    is_after_first: bool


def _groups(question: str) -> list[list[_Asked]]:
    """The words of a question that may belong to its subjects. Words that stand next to each other form a group."""
    groups: list[list[_Asked]] = []
    end: int | None = None
    earlier, last, before = "", "", ""
    for number, match in enumerate(match for match in WORD.finditer(question) if match[0][0].isalpha()):
        plain = _ELIDED.sub("", match[0])
        earlier, last, before = last, before, match[0]
        word = _POSSESSIVE.sub("", plain)
        word = _INVERTED.sub("", word) if word[0].islower() else word
        if says_nothing(word) or word.lower() in _OF_ASKING:
            continue
        is_determined = last.lower() in _DETERMINERS or plain != match[0]
        asked = _Asked(
            word,
            word[0].isupper() and number > 0,
            is_determined and word[0].islower(),
            last != _POSSESSIVE.sub("", last),
            word[0].islower() and last.lower() in ("first", "last") and earlier.lower() not in _DETERMINERS,
        )
        if groups and end is not None and question[end : match.start()].strip(". ") == "":
            groups[-1].append(asked)
        else:
            groups.append([asked])
        end = match.end()
    return groups


def _without_verbs(words: list[_Asked]) -> list[_Asked]:
    """The words of a subject from its first name to its last, so that verbs around the names are left out. All words if
    there is no name.
    """
    names = [at for at, word in enumerate(words) if word.is_name]
    if not names:
        return words
    first, last = names[0], names[-1]
    while last + 1 < len(words) and words[last + 1].is_owned:
        last += 1
    return words[first : last + 1]


def left_out(choice: PartsChoice, parts: Sequence[Part], asked_numbers: Sequence[int]) -> str:
    """Say which parts were not asked, and why; "" if all were asked.

    Args:
        asked_numbers: numbers of the parts that were asked.
    """
    others = [part.number for part in parts if part.number not in asked_numbers]
    words = f"{numbered(others, 'Part', 'Parts')} {'was' if len(others) == 1 else 'were'} not asked." if others else ""
    return " ".join(part for part in (words, choice.left_out_sentence if others else "") if part)


def mentioned(mention: Mention, reach: Reach, document: Document) -> str:
    """A mention in words: "“Ahab” first stands on page 93."; in a book of several documents "“Ahab” first stands in
    Log, page 3.".
    """
    last = "last" if reach is Reach.LAST else "first"
    member = document.member_at(mention.page)
    chip = {"pages": [{"label": mention.label}], "document": member.title if member else ""}
    return f"“{mention.words}” {last} stands {standing(chip, (member or document).unit)}."


def numbered(numbers: Sequence[int], one: str, several: str) -> str:
    """Part numbers in words: "Part 3", "Parts 3 and 4", "Parts 1, 3 to 5 and 9"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    said = [
        piece
        for run in runs
        for piece in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(number) for number in run])
    ]
    joined = " and ".join(filter(None, (", ".join(said[:-1]), said[-1])))
    return f"{one if len(numbers) == 1 else several} {joined}"


def _pages_of(item: OutlineItem | None, document: Document) -> frozenset[int]:
    """The numbers of the pages of the chapter ``item``; empty if it is None."""
    there = {page.number for page in document.pages}
    chapter = next(
        (one for one in chapters(document) if item and (one.title, one.first) == (item.title, item.page)), None
    )
    return frozenset(range(chapter.first, chapter.last + 1)) & there if chapter else frozenset()


def pages_numbered(document: Document, question: str) -> frozenset[int]:
    """The numbers of the pages that a question names by number. A number in the question means the number printed on a
    page. If no page has such a printed number, it means the page's position in the file.
    """
    named = _numbers_named(question)
    printed, counted = set[int](), set[int]()
    for page in document.pages if named else ():
        member = document.member_at(page.number)
        numbers = named.get((member or document).unit, ())
        if page.label in numbers:
            printed.add(page.number)
        if str(page.number - (member.page_offset if member else 0)) in numbers:
            counted.add(page.number)
    return frozenset(printed or counted)


def _numbers_named(question: str) -> dict[str, set[str]]:
    """The page numbers and section numbers in a question, keyed by "page" and "section"."""
    named: dict[str, set[str]] = {}
    for word, first, last in _PAGES.findall(question):
        numbers = named.setdefault("section" if word.lower().startswith(_SECTION) else "page", set())
        numbers |= {str(number) for number in range(int(first), int(last or first) + 1)}
    return named


@dataclass(frozen=True)
class _Standing:
    """Where the subjects of a question first occur within one part; for ``Reach.LAST``, where they last occur.
    ``places`` has a dictionary for each subject. It maps the whole subject, and each of the subject's words, to one
    occurrence.
    """

    part: Part
    places: dict[str, dict[str, Hit]]

    def has_all(self, subjects: Sequence[str]) -> bool:
        """Whether at least one word of every subject occurs in the part."""
        return all(self.places[subject] for subject in subjects)

    def names_all(self, subjects: Sequence[str]) -> bool:
        """Whether every word of every subject occurs in the part. A first name alone may belong to another person."""
        return self.has_all(subjects) and all(
            self.places[subject].keys() >= set(_telling(subject)) for subject in subjects
        )

    def hints(self) -> tuple[str, ...]:
        """For each subject that occurs in the part, an excerpt around the earliest occurrence in ``places``."""
        return tuple(self._line(min(hits.values(), key=_order)) for hits in self.places.values() if hits)

    def _line(self, hit: Hit) -> str:
        around = excerpt(self.part.document.pages[hit.page].text, hit.spans[0].start, hit.spans[0].end, AROUND)
        return f"{around.before}{around.hit}{around.after}"

    def mention(self, words: str, hit: Hit) -> Mention:
        page = self.part.document.pages[hit.page]
        marks = tuple((span.start, span.end) for span in hit.spans if span.page == hit.page)
        return Mention(words, page.number, page.label, marks)


def _from_an_end(question: str, parts: Sequence[Part], reach: Reach, words: BookWords) -> PartsChoice:
    """Choose parts for a question about a first or last place. Subjects that do not occur in the book are ignored. The
    parts with every word of all other subjects are asked first, from the beginning or the end of the book. The parts
    with at least one word of each of these subjects are asked next. If there is no such part, every part is asked. If
    no subject occurs in the book, the highest ranked parts are asked. A subject is searched as whole words; if it does
    not occur as such, it is searched at the beginnings of words too.
    """
    sought = subjects(question)
    ordered = list(reversed(parts)) if reach is Reach.LAST else list(parts)
    aside = listing_pages(words.document)
    genitives = _genitives(sought, words) if words.nouns_capitalized else frozenset()
    standing = [_standing(part, sought, reach, aside, genitives) for part in ordered]
    inflected = [subject for subject in sought if not any(candidate.places[subject] for candidate in standing)]
    for candidate in standing if inflected else ():
        candidate.places.update(_standing(candidate.part, inflected, reach, aside, None).places)
    there = [subject for subject in sought if any(candidate.places[subject] for candidate in standing)]
    strange = " and ".join(f"“{subject}”" for subject in sought if subject not in there)
    nowhere = f"{strange} {'stand' if ' and ' in strange else 'stands'} nowhere in the book." if strange else ""
    if not there:
        chosen = promising(question, parts, words)[:MOST_ASKED]
        return PartsChoice(reach, tuple(chosen), until_found=True, left_out_sentence=nowhere)
    some = [candidate for candidate in standing if candidate.has_all(there)]
    asked = sorted(some, key=lambda candidate: not candidate.names_all(there)) or standing
    without = sorted(candidate.part.number for candidate in standing if candidate not in asked)
    named = " and ".join(f"“{subject}”" for subject in there)
    verb = "does" if len(without) == 1 else "do"
    both = "both " if len(there) == 2 else ""
    said = f"{numbered(without, 'Part', 'Parts')} {verb} not name {both}{named}." if without else ""
    return PartsChoice(
        reach,
        tuple(candidate.part for candidate in asked),
        until_found=True,
        mentions=tuple(mention for subject in there for mention in _mentions(subject, standing, reach)),
        hints=tuple(candidate.hints() for candidate in asked),
        left_out_sentence=" ".join(filter(None, (nowhere, said))),
    )


def listing_pages(document: Document) -> frozenset[int]:
    """The numbers of pages with a table of contents or an index. A name on such a page does not count as an
    occurrence.
    """
    # keyed by the first letters of the titles, so that the search is fast even if a book has thousands of titles
    starts: dict[str, list[tuple[int, int, str]]] = {}
    for which, item in enumerate(document.outline):
        if len(title := fold(item.title)) >= _SHORTEST_TITLE:
            starts.setdefault(title[:_SHORTEST_TITLE], []).append((which, item.page, title))
    numbers = {
        number for one in chapters(document) if _LISTING.search(one.title) for number in range(one.first, one.last + 1)
    }
    for page in document.pages:
        text = fold(page.text)
        named = {
            which
            for at in range(len(text))
            for which, number, title in starts.get(text[at : at + _SHORTEST_TITLE], ())
            if number != page.number and text.startswith(title, at)
        }
        if len(named) >= _FEWEST_TITLES:
            numbers.add(page.number)
    return frozenset(numbers)


def _genitives(sought: Sequence[str], words: BookWords) -> frozenset[str]:
    """Return the names that are also searched with an s at the end, as in the German genitive "Annas". If the book has
    the form with s more often than the name, that form is probably another name ("Lukas" for "Luka") and does not
    count.
    """
    text = words.document.text
    names = {name for subject in sought for name in (subject, *_telling(subject)) if name[0].isupper()}

    def count(name: str) -> int:
        return len(re.findall(rf"\b{re.escape(name)}\b", text))

    return frozenset(name for name in names if 0 < count(f"{name}s") <= count(name))


def _standing(
    part: Part, sought: Sequence[str], reach: Reach, ignored_pages: frozenset[int], genitives: frozenset[str] | None
) -> _Standing:
    """Find the first or last place of each subject in a part.

    Args:
        ignored_pages: numbers of pages to ignore.
        genitives: names that may also stand with an s at the end. If it is None, the beginnings of words count too;
            otherwise only whole words count.
    """
    find = partial(Finder().find, from_end=reach is Reach.LAST)
    pages = part.document.pages
    places: dict[str, dict[str, Hit]] = {}
    for subject in sought:
        places[subject] = {}
        for form in dict.fromkeys((subject, *_telling(subject))):
            tried = [form] if genitives is None else [f"“{spelling}”" for spelling in spellings(form)]
            found = next(filter(lambda found: found.hits, (find(part.document, each) for each in tried)), Found())
            hits = list(found.hits) if found.how == "words" else []
            if genitives and form in genitives:
                hits = sorted((*hits, *find(part.document, f"“{form}s”").hits), key=_order)
            hits = [hit for hit in hits if pages[hit.page].number not in ignored_pages]
            if hits:
                places[subject][form] = hits[-1 if reach is Reach.LAST else 0]
    return _Standing(part, places)


def _mentions(subject: str, standing: Sequence[_Standing], reach: Reach) -> list[Mention]:
    """Find the first place of a subject. If some of its words occur on an earlier page, find their first places too.
    For ``Reach.LAST``, find the last place, and words on later pages.

    Args:
        standing: the places in each part, in the order in which parts are searched. For ``Reach.LAST``, the last part
            comes first.
    """
    mentions: list[Mention] = []
    for one in standing:
        places = one.places[subject]
        near = sorted(places.items(), key=lambda item: _order(item[1]), reverse=reach is Reach.LAST)
        for words, hit in near:
            with_others = words != subject and subject in places and places[subject].page == hit.page
            if not with_others and not any(mention.words in (words, subject) for mention in mentions):
                mentions.append(one.mention(words, hit))
    return mentions


def _order(hit: Hit) -> tuple[int, int]:
    return hit.page, hit.spans[0].start


def _telling(subject: str) -> list[str]:
    """The words that identify a subject even alone: its capitalised words or, without any, all its words. Titles such
    as "Mr", and words with fewer than ``_FEWEST_LETTERS`` letters, are left out.
    """
    words = [word for word in subject.split() if len(word) >= _FEWEST_LETTERS and word.lower() not in FORMS_OF_ADDRESS]
    return [word for word in words if word[0].isupper()] or words
