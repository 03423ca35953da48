"""Compares who says a quotation: the speaker that an answer names with the one that the book names beside it.

    not_the_speaker('Tom said: "It burns thirteen lamps."', 11, 36, '"It burns thirteen lamps," said Ada.', 1, 25)
        ("Tom",)

The book names a speaker beside a quotation, together with a verb such as "said". If it names nobody there, or says
"she", the answer's speaker must be named in the surroundings. Knows the verbs of English, German and French.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from heapq import merge
from itertools import pairwise

from app.language.tokens import tokenize
from app.language.words import FIRST_PERSON, THIRD_PERSON, fold_word, says_nothing, without_ending
from engine.languages import sentence_ends

_SAYING = (
    r"(?:says?|said|saying|asks?|asked|repl(?:y|ies|ied)|answer(?:s|ed)|cr(?:y|ies|ied)|exclaim(?:s|ed)|return(?:s|ed)"
    r"|retort(?:s|ed)|add(?:s|ed)|remark(?:s|ed)|observe[sd]|declare[sd]|explain(?:s|ed)|whisper(?:s|ed)"
    r"|murmur(?:s|ed)|mutter(?:s|ed)|shout(?:s|ed)|call(?:s|ed)|tells?|told|writes?|wrote|continue[sd]|state[sd]"
    r"|insist(?:s|ed)|warn(?:s|ed)|suggest(?:s|ed)|responds?|responded|speaks?|spoke|utter(?:s|ed)"
    r"|sagte?n?|fragte?|antwortete?|rief|ruft|erklärte?|meinte?|schrieb|schreibt|flüsterte?"
    r"|dit|demanda|demande|répondit|répond|cria|crie|déclara|déclare|ajouta|écrit|écrivit)"
)
_VERB = re.compile(rf"\b{_SAYING}\b", re.IGNORECASE)
_BEFORE = re.compile(rf"([^.;:!?\"“”„«»]{{1,100}}?)\b{_SAYING}\b[^.;!?\"“”„«»]{{0,60}}[\"“„«‘' ]*$", re.IGNORECASE)
_AFTER = re.compile(
    rf"[\"”“»’'\s,.!?—–-]*+"
    rf"(?:{_SAYING}\s++([^.;:!?\"“”„«»]{{1,60}})|([^\s.;:!?,\"“”„«»][^.;:!?,\"“”„«»]{{0,59}}?)\s++{_SAYING}\b)",
    re.IGNORECASE,
)
_BY = re.compile(
    r"\b(?:said|spoken|asked|written|made|uttered|gesagt|dit)\s+(?:by|von|par)\s+([^.;:!?,\"“”„«»]{1,60})",
    re.IGNORECASE,
)
# "Tom said that ...": a sentence that says what somebody said, in its own words
_REPORTS = re.compile(rf"\W*+(\w[^.;:!?,\"“”„«»]{{0,59}}?) {_SAYING}\b,?(?: \w+){{0,2}}? (?:that|dass|que)\b")
_QUOTATION = re.compile(r"[“\"„«]([^“”\"„«»]{1,1000})[”\"“»]")
_ASKS_WHO = re.compile(rf"\W*(?:who|wer|qui)\b[^\"“„«]{{0,40}}\b{_SAYING}\b", re.IGNORECASE)
# matches the end of a stretch of text in which a speaker is named, unless the end of a sentence is meant
_BORDER = re.compile(r"[\"“”„«»;]|(?<!\w)['‘]|['’](?!\w)|\n[ \t]*\n")
# "said she": the speaker was named before
_SUBJECT = rf"(?:{THIRD_PERSON}|{FIRST_PERSON})"
_PRONOUN = re.compile(rf"\b{_SAYING} {_SUBJECT}\b|\b{_SUBJECT} (?:\w+ )?{_SAYING}\b", re.IGNORECASE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_NOBODY_WORDS = (
    "book text document author narrator passage page chapter story writer paper report article letter sentence quote "
    "quotation words following here it was this that is which who whom also then once later exactly namely "
    "buch text autor erzähler livre auteur narrateur"
)
_NOBODY = frozenset(map(fold_word, _NOBODY_WORDS.split()))
_LONGEST_SIDE = 200
"""Maximum characters beside a quotation in which its speaker is looked for."""
_SURROUNDINGS = 800
"""Maximum characters before and after a quotation in which a speaker must be named, if the book names nobody beside it.
"""


def asks_who_said(question: str) -> bool:
    """Whether a question asks who said something."""
    return _ASKS_WHO.match(question) is not None


def not_the_speaker(sentence: str, start: int, end: int, book: str, first: int, last: int) -> tuple[str, ...]:
    """The words with which a sentence names the speaker of a quotation, if the book has another speaker there.

    Args:
        sentence: a sentence of an answer, with the quotation at [start, end).
        book: the text of the book, with the quotation at [first, last).

    Returns:
        Empty if the sentence names no speaker, or if the book may agree.
    """
    return not_said_by(_named(sentence, start, end), book, first, last)


def not_said_by(who: tuple[str, ...], book: str, first: int, last: int) -> tuple[str, ...]:
    """``who`` if the book names another speaker of the quotation at [first, last) of its text, nothing otherwise."""
    if not who:
        return ()
    keys = {_key(word) for word in who}
    for beside in _beside(book, first, last):
        there = () if _PRONOUN.search(beside) else words_for_a_speaker(beside)
        if there:
            return () if keys & {_key(word) for word in there} else who
    around = book[max(0, first - _SURROUNDINGS) : last + _SURROUNDINGS]
    return () if keys & {_key(word) for word, _ in tokenize(around)} else who


def reports_another(sentence: str, book: str, first: int, last: int) -> bool:
    """Whether a sentence reports what somebody said ("Tom said that ..."), and the passage at [first, last) of the book
    quotes it from somebody else.
    """
    reported = _REPORTS.match(sentence)
    if reported is None:
        return False
    who, words = words_for_a_speaker(reported[1]), _keys(sentence[reported.end() :])
    quotations = list(_QUOTATION.finditer(book, first, last))
    best = max(quotations, key=lambda one: len(_keys(one[1]) & words), default=None)
    if best is None or not _keys(best[1]) & words:
        return False
    # whom the quotation speaks to is not who says it: "He's no fool, Horace, ..."
    spoken_to = any(re.search(rf"(?:^|, ){re.escape(word)}[,.!?]", best[1]) for word in who)
    return spoken_to or bool(not_said_by(who, book, best.start(1), best.end(1)))


def _keys(text: str) -> set[str]:
    return {_key(word) for word, _ in tokenize(text) if not says_nothing(word)}


def words_for_a_speaker(text: str) -> tuple[str, ...]:
    """The words of a text that may name a speaker."""
    return tuple(
        word
        for word, _ in tokenize(text)
        if word[0].isalpha() and not says_nothing(word) and fold_word(word) not in _NOBODY and not _VERB.fullmatch(word)
    )


def _named(sentence: str, start: int, end: int) -> tuple[str, ...]:
    """The words of a sentence that name the speaker of the quotation at [start, end)."""
    before, after = map(_without_stops, (sentence[:start][-_LONGEST_SIDE:], sentence[end:][:_LONGEST_SIDE]))
    if found := _BY.search(before) or _BY.search(after):
        return words_for_a_speaker(found[1])
    if found := _AFTER.match(after):
        return words_for_a_speaker(found[1] or found[2])
    if found := _BEFORE.search(before):
        return words_for_a_speaker(found[1])
    return ()


def _beside(book: str, first: int, last: int) -> Iterator[str]:
    """Yield the stretches of text beside a quotation that have a verb of speaking. The one after the quotation comes
    first, unless the one before leads up to it: "Tom said,".
    """
    # the sentence that was quoted may go on within the book's quotation
    after = book[last : last + _LONGEST_SIDE]
    closing = re.search(r"[\"”“»]|['’](?!\w)", after)
    behind = _stretches(after[closing.end() :])[0] if closing else ""
    before = _PARAGRAPH.split(book[max(0, first - _LONGEST_SIDE) : first])[-1]
    opening = max(before.rfind(mark) for mark in ('"', "“", "„", "«", "‘", " '"))
    ahead = _stretches((before[:opening] if opening >= 0 else before).rstrip())[-1]
    stretches = (ahead, behind) if ahead.endswith((",", ":")) else (behind, ahead)
    yield from (stretch for stretch in stretches if _VERB.search(stretch))


def _stretches(text: str) -> list[str]:
    """Cut a text at quotation marks, and where sentences end."""
    cuts = merge(sentence_ends(text), (match.end() for match in _BORDER.finditer(text)))
    return [text[start:end] for start, end in pairwise((0, *cuts, len(text)))]


def _without_stops(text: str) -> str:
    """Remove the full stops that end no sentence, such as those of titles and initials."""
    parts = pairwise((0, *sentence_ends(text), len(text)))
    return "".join(re.sub(r"\.(?=\s+\w)", "", text[start:end]) for start, end in parts)


def _key(word: str) -> str:
    return without_ending(fold_word(word))
