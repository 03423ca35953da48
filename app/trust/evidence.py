"""Finds the evidence for an answer's sentence: the passage of the book that supports it, whichever model wrote it.

    index = EvidenceIndex(document)
    found = index.find("How far is Orre?", "It lies eleven miles from the mainland.")
    found.level, found.passages        "says so", (Passage(text="The island of Orre lies eleven miles ...", ...),)

The words of the sentence and of its question are looked up among the book's sentences (``app.trust.book_words``). A
passage *says so* if it has the words of the sentence's first part, passages around it have those of the other parts,
and none of them attributes the statement to another person (``app.trust.roles``) or its numbers and words to other
things (``app.trust.agreement``). A passage is *near* if it shares enough words with the sentence but
does not say so. A sentence is *not found* if the book lacks one of its names or numbers, or by a rule of
``app.trust.not_found``. A sentence that claims nothing about the book (small talk, an opinion, a refusal) has no level.
Words of the question that the book never uses are reported separately (``EvidenceIndex.unmentioned``), because a
passage may say so and still not answer the question.

This search uses no model. Weights of pages, such as the model's attention, only decide between equal passages. There
are two reasons not to ask the model whether a passage says so: a 1.5B model says yes to 9 of 16 sentences that
attribute an action to the wrong person (assets/evaluation), and asking takes a good part of an answer's time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Literal

from app.language.sentences import is_ended
from app.language.tokens import tokenize
from app.language.words import is_german
from app.trust import provisions, roles, table_rows
from app.trust.agreement import disagrees, exchanges
from app.trust.book_words import AROUND, FEW_WORDS, BookWords, PageRange, Passage, Term, is_negated, is_title
from app.trust.not_found import FAR, Absence, Premise, is_generic, nouns_of, only_repeats, says_little
from app.trust.speakers import reports_another
from engine.document import Document
from engine.languages import language_of, language_of_question
from engine.passages import asks_for_whole

Level = Literal["says so", "near", "not found", ""]
"""How far passages support a sentence. "" for a sentence that claims nothing about the book, or has no related passage.
"""

_A_YEAR = re.compile(r"(?:1\d|20)\d\d")
_ASKS_FOR_A_YEAR = re.compile(r"\b(?:(?:which|what) year|welche[mns]? jahr|quelle année|qué año)\b", re.IGNORECASE)
_YEARS = frozenset(["year", "jahr", "annee", "ano"])
MOST_OF_IT = 0.65
"""Minimum share of the words of a part of a sentence that a passage must have itself (``EvidenceIndex._has_part``)."""
FACT = 0.8
"""Weight, in the rank of a passage, of the share of the sentence's new words (words not in the question) that the
passage has. The share of all words of the sentence has the weight 1.
"""
SUBJECT = 0.2
"""Weight, in the rank of a passage, of the share of the question's words that the passage has."""
MANY = 4
"""Minimum number of new words in the sentence for a match to be sure, and not a coincidence (``_Judged.is_sure``)."""
NEARLY_ALL = 0.85
"""Minimum share of the new words that the passage must have for a match to be sure."""
OF_THE_SUBJECT = 0.45
"""Minimum share of the question's words that a passage with the level "says so" must have together with its
surroundings.
"""
OF_A_FRAGMENTS_SUBJECT = 0.65
"""Minimum share of the question's words for fragments such as "Seventeen." and "It was a gull.", which have a meaning
only together with the question.
"""
FEWEST_IN_A_PART = 3
"""Minimum number of words of a part of a sentence (``_parts``)."""
UNKNOWN_WORDS = 0.3
"""Maximum share of the words of a part of a sentence that the book never uses, because they may be synonyms."""
RELATED = 0.3
"""Minimum share of a sentence's words, or of its new words, that a passage with the level "near" must have."""
AROUND_ROW = 200
"""Maximum number of rows of a table before and after a row that are compared with it."""
BESIDE = 0.5
"""Factor on the weight of a word that the passage itself lacks. It applies to a word that the passage directly before
or after has, and to a name that one of ``AROUND`` passages before or after has.
"""

# Words by which an answer agrees to a request before it begins.
_ASSENT = (
    r"yes|no|sure(?: thing)?|certainly|of course|okay|ok|alright|all right|absolutely|definitely|gladly|indeed|right"
    r"|great(?: question)?|good question|understood|got it|no problem|with pleasure|my pleasure|happy to help|exactly"
    r"|correct|perfect|ja|nein|sicher|natürlich|selbstverständlich|klar|genau|gerne|verstanden|in ordnung"
    r"|oui|non|bien sûr|certainement|d['’]accord|volontiers|avec plaisir|sí|claro|por supuesto|desde luego"
)
_TALK = re.compile(
    r"^\W*+(?:hello|hi|hey|good (?:day|morning|evening|afternoon)|you(?:['’]re| are) welcome|welcome|thanks?|sorry"
    r"|please|my name|feel free|let(?:['’]s| me| us)|if you (?:have|need|want|would)|here(?:['’]s| is| are)"
    r"|goodbye|bye|as an? (?:ai|language)|hope (?:this|that|it)"
    r"|i(?:['’](?:m|d|ll|ve)| am| will) |i (?:think|believe|feel|hope|can|could|would|do|don|have no|cannot"
    r"|apologi[sz]e|find|like)"
    r"|(?:would|do|did|can|could|are) you (?:like|want|need|mean|tell|interested|looking)|shall i|should i"
    r"|hallo|guten|danke|gern|bitte|hier (?:ist|sind)|wenn sie|möchte(?:n sie|st du)|soll ich"
    r"|bonjour|merci|désolé|voici|n['’]hésite|voulez-vous|souhaitez-vous|aquí (?:está|tiene)"
    rf"|(?:{_ASSENT})[!.,] +(?:here|i|let|feel|please)"
    r"|ich (?:bin|denke|glaube|hoffe|kann|finde|habe keine)|je (?:suis|pense|crois|peux|ne)|j['’]espère)\b"
    rf"|^\W*+(?:{_ASSENT}|based on the (?:text|book|document|passage|context))\W*$",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\b(?:book|text|document|passage|story|excerpt|report|article|context|author|material|paper|it|section|content)\b"
    r"[^.!?]{0,40}?\b(?:does not|doesn['’]t|do not|don['’]t|did not|never|contains no|has no|provides no|gives no)\b"
    r"[^.!?]{0,40}?\b(?:say|state|mention|provide|contain|specify|describe|include|indicate|give|discuss|tell|name|"
    r"explain|information|details?|answer|refer|have|explicitly|directly)\b"
    r"|\b(?:is|are|was|were)(?: not|n['’]t)(?: \w+){0,2} (?:mentioned|stated|specified|provided|given|described|"
    r"indicated|included|available|discussed|named|clear|explicit)"
    r"|\b(?:is|are|was|were|contains?|provides?|gives?|have|find|found) no (?:\w+ )?(?:information|mention|indication|"
    r"details?|reference|record|answer)"
    r"|^\W*there (?:is|are|was|were) no\b"
    r"|^\W*(?:not (?:mentioned|specified|stated|provided|given|in the)|no information|unknown)"
    r"|\b(?:cannot|can['’]t|could not|couldn['’]t) (?:\w+ )?(?:answer|determine|find|tell|provide|say)"
    r"|\b(?:keine?|nicht)\b[^.!?]{0,40}\b(?:angaben?|information|informationen|erwähnt|genannt|angegeben|enthalten|hervor)"
    r"|\b(?:ne|n['’])\s?\w+ (?:pas|rien)\b[^.!?]{0,40}|aucune? (?:information|mention)",
    re.IGNORECASE,
)

# "There is no gym": the sentence denies a thing of the world, and says nothing about the text.
_DENIAL = re.compile(
    r"^\W*(?:no, )?(?:there (?:is|are|was|were) no|es gibt keine?[nmr]?|il n['’]y a (?:pas|aucun)e? d?e?|no hay) "
    r"(?!(?:\w+ )?(?:information|mention|indication|reference|record|evidence|answer|details?|passage|doubt|need|way"
    r"|reason|angaben?|informationen|hinweise?|mención|información))((?:[\w'’-]+ ?){1,4})[.!]?$",
    re.IGNORECASE,
)

_OWNED = re.compile(r"\b([A-ZÀ-ÖØ-Þ][\w-]{1,40})['’]s (\w{2,40})")  # "Tom's mother"
# the border between two parts of a sentence
_PART = re.compile(
    r"[,;:](?!\d)\s+|\s(?=(?:and|but|while|whereas|who|which|und|aber|während|et|mais|tandis|y|pero)\b)",
    re.IGNORECASE,
)
# matches a comma before a clause that contrasts one document with another
_CONTRAST = re.compile(
    r"[,;] +(?=(?:while|whereas|but|and|während|aber|und|wohingegen|tandis qu|alors qu|mais|et|mientras|pero|y)\b)",
    re.IGNORECASE,
)


def is_refusal(sentence: str) -> bool:
    """Whether a sentence only says that the book does not answer the question."""
    return _REFUSAL.search(sentence) is not None


Form = Literal["sentence", "heading", "cut"]
"""What a sentence of an answer is: a heading stands on a line of its own above other text, and a cut sentence is the
last one of an answer that did not end by itself.
"""


@dataclass(frozen=True)
class Evidence:
    """The evidence for a sentence of an answer.

    ``missing``: names and numbers of the sentence that occur nowhere in the book, as the sentence spells them.
    ``lacks``: words of the sentence that the passage of the level "near" lacks.
    ``claims``: whether the sentence claims anything about the book; small talk, opinions and refusals do not.
    """

    sentence: str
    level: Level
    passages: tuple[Passage, ...] = ()
    missing: tuple[str, ...] = ()
    claims: bool = True
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Judged:
    """A passage compared with a sentence. ``place`` is the index of the passage. ``level`` is how far it supports the
    sentence. ``support`` ranks the passage among other passages. ``is_sure``: whether the sentence has many new words
    (words that are not in the question), and the passage has nearly all of them.
    """

    place: int
    stating: Sequence[int]
    support: float
    level: Level
    is_sure: bool


@dataclass(frozen=True)
class _Part:
    """A part of a sentence, and its words. ``subject``: the keys of the sentence's first word and of the capitalised
    words right after it.
    """

    text: str
    terms: list[Term]
    subject: frozenset[str] = frozenset()


class EvidenceIndex:
    """Looks up the sentences of answers about one book. ``words``: the book's words by passage."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.words = BookWords(document)
        self._absence = Absence(self.words)
        self._language = language_of(document.text)

    def unmentioned(self, question: str, answered: bool = False) -> tuple[str, ...]:
        """The nouns and names of a question that the book never uses, as ``Absence.unmentioned`` finds them. Empty
        if the question is in a different language than the book.
        """
        if self._is_foreign(question, question):
            return ()
        return self._absence.unmentioned(question, answered)

    def premise(self, question: str) -> tuple[Premise, Passage | None] | None:
        """What a question takes for granted and no passage says, with the passage that denies it or is nearest
        (``Absence.premise``). None if the question is in a different language than the book.
        """
        found = None if self._is_foreign(question, question) else self._absence.premise(question)
        if found is None:
            return None
        return found, self.words.passage(found.place) if found.place is not None else None

    def unnamed(self, question: str, spans: Sequence[PageRange]) -> tuple[str, ...]:
        """The names of a question, if none of them stands in or near these places, which were cited for its answer.
        Empty if one does, and if a name is in the title of the book or of a document.
        """
        if not spans or self._is_foreign(question, question) or asks_for_whole(question):
            return ()
        names = [term for term in self.words.terms(question) if self.words.is_proper(term) and self.words.has(term)]
        places = [self.words.place_at(span) for span in spans]
        if any(map(self.words.is_told_by_one, places)):
            return ()  # "I" may be one of the names
        near = set[str]().union(*(self.words.keys_around(place, FAR) for place in places))
        is_near = any(term.key in near or self.words.is_of_title(term) for term in names)
        return () if is_near else tuple(term.raw for term in names)

    def clauses(self, sentence: str) -> list[tuple[int, int]]:
        """Cut a sentence that compares documents ("The rent of A is 890, while that of B is 980") into clauses, because
        each clause needs its own passage. Return the start and end of each clause. A sentence that compares no
        documents is one clause.
        """
        borders = [0, *(match.end() for match in _CONTRAST.finditer(sentence)), len(sentence)]
        clauses, whole = list(pairwise(borders)), [(0, len(sentence))]
        if len(clauses) == 1 or len(self.document.members) < 2:
            return whole
        named = [self.words.documents_named(self.words.terms(sentence[start:end]), 0.0) for start, end in clauses]
        apart = all(len(documents) == 1 for documents in named) and len({documents[0] for documents in named}) > 1
        return clauses if apart else whole

    def find(
        self,
        question: str,
        sentence: str,
        favour: Sequence[float] = (),
        pages_read: int | None = None,
        form: Form = "sentence",
        under: str = "",
    ) -> Evidence:
        """Find the evidence for one sentence of an answer.

        Args:
            sentence: a sentence of the answer.
            question: the question. Its words decide between passages that share the same words with the sentence.
            favour: a weight for each page, such as its attention, which decides between equal passages.
            pages_read: number of pages, from the first, that the model had read. Evidence is taken only from these
                pages; None means all pages. Names and numbers count as not found only if the whole book lacks them.
            under: the line above a list of which the sentence is an item. Its names belong to the sentence.
            form: a heading claims nothing, and the last word of a cut sentence does not count.
        """
        if form == "heading":
            return Evidence(sentence, "", claims=False)
        if pages_read is None or pages_read >= len(self.document.pages):
            return self._find(question, sentence, favour, len(self.words.places), form, under)
        found = self._find(question, sentence, favour, self.words.places_within(pages_read), form, under)
        # the question's subject may be in the part that was not read
        beyond = found.level == "not found" and not found.missing
        return replace(found, level="") if beyond else found

    def _is_foreign(self, question: str, sentence: str) -> bool:
        """Whether a sentence is in a different language than the book. If the sentence's language is not clear, the
        question's language decides.
        """
        own = language_of(sentence) or language_of_question(sentence) or language_of_question(question)
        return None not in (own, self._language) and own != self._language

    def _find_foreign(self, sentence: str, favour: Sequence[float], places: int) -> Evidence:
        """Find the evidence for a sentence in a different language than the book, by its numbers and by names that
        both have. Other words, also translated names, say nothing.
        """
        terms = self.words.terms(sentence)
        first = [self.words.is_unknown_first_name(term) for term in terms]
        missing = tuple(
            term.raw
            for term, is_first, after_first in zip(terms, first, [False, *first], strict=False)
            if is_first
            or (term.kind == "number" and not self.words.has(term))
            or (after_first and term.raw[0].isupper() and not self.words.has(term))
        )
        facts = [term for term in terms if term.kind == "number" or self.words.is_proper(term)]
        if missing or not facts:
            return Evidence(sentence, "not found" if missing else "", missing=missing, claims=bool(missing))
        best = next((place for place in self.words.ranked(facts, (), favour, places)), None)
        if best is None or any(term.key not in self.words.keys_around(best, AROUND) for term in facts):
            return Evidence(sentence, "", claims=False)
        return Evidence(sentence, "near", (self.words.passage(best),))

    def _find(
        self, question: str, sentence: str, favour: Sequence[float], places: int, form: Form, under: str
    ) -> Evidence:
        """Find the evidence among the first ``places`` passages."""
        above = [term for term in self.words.terms(under) if self.words.is_proper(term)]
        terms, asked = ([*self.words.terms(text), *above] for text in (sentence, question))
        last = sentence.split()[-1] if sentence.split() else ""
        if form == "cut":
            terms = [term for term in terms if term.raw not in last]
        if denial := _DENIAL.match(sentence):
            return self._find_denied(sentence, denial[1], favour, places)
        if not terms or sentence.rstrip().endswith("?") or _REFUSAL.search(sentence):
            return Evidence(sentence, "", claims=False)
        talk = bool(_TALK.search(sentence))
        if not talk and self._is_foreign(question, sentence):
            return self._find_foreign(sentence, favour, places)
        missing = tuple(dict.fromkeys(term.raw for term in terms if self.words.is_missing(term)))
        if missing and not talk:
            return Evidence(sentence, "not found", missing=missing)
        best = self._best(question, sentence, terms, asked, favour, places)
        if passive := provisions.passive(sentence):
            said = self._best(question, passive, self.words.terms(passive), asked, favour, places)
            if (provided := self._provided(sentence, passive, said, best)) is not None:
                return provided
        if best is not None and best.level == "says so":
            if only_repeats(question, sentence, terms, asked):
                return Evidence(sentence, "", claims=False)  # true, but no answer
            return Evidence(sentence, "says so", (self.words.passage(best.place),))
        if talk:
            return Evidence(sentence, "", claims=False)
        # A heading and a fragment state nothing that the book could lack.
        is_statement = form == "sentence" and not is_title(sentence) and is_ended(sentence)
        if is_statement and not asks_for_whole(question):
            strange = self._absent_subject(question, sentence, terms, asked, best)
            if strange is not None and not self._is_narrated(terms, places):
                return Evidence(sentence, "not found", missing=strange)
        if best is None or not best.level:
            return Evidence(sentence, "")
        return Evidence(sentence, "near", (self.words.passage(best.place),), lacks=self._lacks(terms, best.place))

    def _provided(self, sentence: str, passive: str, said: _Judged | None, best: _Judged | None) -> Evidence | None:
        """The evidence that the document allows or requires something; None if no passage has all of its words.

        Args:
            passive: the sentence in the passive voice.
            said: the best passage for that.
            best: the best passage for the sentence as it stands.
        """
        known = [(voice, found) for voice, found in (("passive", said), ("active", best)) if found is not None]
        known = [(voice, found) for voice, found in known if found.level == "says so"]
        for voice, found in known:
            if provisions.states(self.words.row(found.place), passive, voice, self.words.words_of):
                return Evidence(sentence, "says so", (self.words.passage(found.place),))
        return Evidence(sentence, "near", (self.words.passage(known[0][1].place),)) if known else None

    def _is_narrated(self, terms: Sequence[Term], places: int) -> bool:
        """Whether a passage has all words of a sentence, but says "I" for the sentence's names."""
        others = [term for term in terms if not self.words.is_proper(term)]
        return len(others) >= FEWEST_IN_A_PART and any(
            self.words.is_told_by_one(place) and all(term.key in self.words.keys_of(place) for term in others)
            for place in self.words.ranked(others, (), (), places)
        )

    def _lacks(self, terms: Sequence[Term], place: int) -> tuple[str, ...]:
        """The words of a sentence that neither a passage nor the ones directly before and after it have."""
        near = self.words.keys_around(place, 1)
        return tuple(dict.fromkeys(term.raw for term in terms if term.key not in near))

    def _find_denied(self, sentence: str, thing: str, favour: Sequence[float], places: int) -> Evidence:
        """Find the evidence for "There is no ...". If the book lacks a word of the ``thing``, this word is missing, and
        the sentence has no level. A passage says so if it negates the thing. Otherwise the passage that names it is
        near.
        """
        terms = self.words.terms(thing)
        missing = tuple(term.raw for term in terms if self._absence.is_unknown(term))
        ranked = [] if missing else self.words.ranked(terms, (), favour, places)
        having = [place for place in ranked if all(term.key in self.words.keys_of(place) for term in terms)]
        if not terms or not having:
            return Evidence(sentence, "", missing=missing, claims=False)
        denied = [place for place in having if any(term.key in self.words.places[place].denied for term in terms)]
        place = next(iter(denied or having))
        return Evidence(sentence, "says so" if denied else "near", (self.words.passage(place),))

    def _best(
        self,
        question: str,
        sentence: str,
        terms: Sequence[Term],
        asked: Sequence[Term],
        favour: Sequence[float],
        places: int,
    ) -> _Judged | None:
        """Judge the passages that share most words with a sentence, and return the best one; None if there are none.

        Args:
            terms: words of the sentence.
            asked: words of the question.
        """
        said = {term.key for term in terms}
        stranger = any(self._absence.is_unknown(term) and term.key in said for term in asked)
        stranger = stranger or bool(self._absence.unknown_names(sentence))
        negated = is_negated(sentence)
        ranked = self.words.ranked(terms, asked, favour, places)
        rest = _besides_a_year(question, asked, terms)
        about = [term for term in asked if self.words.has(term) or not is_generic(term)]
        in_rows = any(term.kind == "number" for term in terms)
        parts = _parts(sentence, terms, self.words)
        found = []
        most = max((self._shared(place, terms) for place in ranked), default=0)
        for place in ranked:
            judged = self._judged(place, terms, parts, about, rest, stranger, negated)
            if judged.level == "says so" and len({*judged.stating}) == 1 and self._shared(place, terms) < most:
                judged = replace(judged, level="near")
            if in_rows and self.words.table_of(place):
                says = not stranger and self._row_says(place, question, sentence, terms)
                found.append(replace(judged, level="says so" if says else judged.level and "near"))
            else:
                found.append(self._if_it_agrees(judged, sentence, question, parts))
        return min(found, key=lambda judged: (judged.level != "says so", -judged.support), default=None)

    def _shared(self, place: int, terms: Sequence[Term]) -> int:
        return sum(term.key in self.words.places[place].keys for term in terms)

    def _absent_subject(
        self, question: str, sentence: str, terms: Sequence[Term], asked: Sequence[Term], best: _Judged | None
    ) -> tuple[str, ...] | None:
        """Return the words of the question's subject that the book never uses, if the best passage is not about this
        subject or the sentence only repeats the question. None otherwise.
        """
        nouns = nouns_of(question)
        # Words that the book has only in related compounds ("Wohnfläche" for "Wohnung") are left out, because no
        # passage counts as having such a word.
        located = [term for term in asked if self.words.has(term) or self._absence.is_unknown(term)]
        subject = [term for term in located if term.raw in nouns and not is_generic(term)]
        # If the best passage has nearly all new words of the sentence (``is_sure``), only the question's names decide
        # whether it is about the question's subject.
        if best is not None and best.is_sure:
            subject = [term for term in subject if term.kind == "name"]
        place = best.place if best is not None else None
        beside = self._absence.is_beside_the_point(subject, asked, {term.key for term in terms}, place)
        beside = beside or self._absence.is_elsewhere(question, subject, place)
        if not beside and not only_repeats(question, sentence, terms, asked):
            return None
        return tuple(term.raw for term in subject if self._absence.is_unknown(term))

    def _judged(
        self,
        place: int,
        terms: Sequence[Term],
        parts: Sequence[_Part],
        question_terms: Sequence[Term],
        subject_terms: Sequence[Term],
        stranger: bool,
        negated: bool,
    ) -> _Judged:
        """Judge a passage by the share of a sentence's words that the passage has.

        Args:
            parts: the parts of the sentence.
            subject_terms: words of the question. A passage that has all these words is about the question's subject. If
                empty, the passage's share of ``question_terms`` decides.
            stranger: whether the sentence repeats a word of the question that the book never uses. If so, no
                passage can reach the level "says so".
            negated: whether the sentence negates something.
        """
        question = {term.key for term in question_terms}
        stating = self._stating(place, parts, question)
        own = self.words.keys_of(place).union(*(self.words.keys_of(other) for other in stating))
        if stating:
            own |= {term.key for term in parts[0].terms if self._is_subject(term, parts[0], place)}
        beside = self.words.keys_around(place, 1) | own
        around = self.words.keys_around(place, AROUND)

        def share(group: Sequence[Term]) -> float:
            whole = sum(self.words.weight(term) for term in group)
            had = 0.0
            for term in group:
                if term.key in own:
                    had += self.words.weight(term)
                elif term.key in (around if term.kind == "name" else beside):
                    had += BESIDE * self.words.weight(term)
            return had / whole if whole else 1.0

        new = [term for term in terms if term.key not in question]
        # If the question already has all words of the sentence, the passage must have them too.
        adds = bool(new) or all(term.key in own for term in terms)
        said, fact = share(terms), share(new)
        subject = 1.0 if subject_terms and all(term.key in own for term in subject_terms) else share(question_terms)
        needed = OF_THE_SUBJECT if len(terms) > FEW_WORDS else OF_A_FRAGMENTS_SUBJECT
        is_sure = len(new) >= MANY and fact >= NEARLY_ALL
        level: Level = "near" if max(said, fact if new else 0.0) >= RELATED else ""
        same = bool(stating) and self._negates_alike(stating, terms, negated) and (subject >= needed or is_sure)
        if same and adds and not (stranger or self.words.names_another_document(terms, place)):
            level = "says so"
        return _Judged(place, stating, said + FACT * fact + SUBJECT * subject, level, is_sure)

    def _stating(self, place: int, parts: Sequence[_Part], question: set[str]) -> list[int]:
        """The passages that have the parts of a sentence, one for each part: ``place`` has the first one, passages
        around it have the others. Empty if a part is in none of them.
        """
        reach = sorted(
            range(max(0, place - AROUND), min(len(self.words.places), place + AROUND + 1)),
            key=lambda other: abs(other - place),
        )
        if not self._has_part(place, parts[0], question):
            return []
        found = [place]
        for part in parts[1:]:
            found.append(next((other for other in reach if self._has_part(other, part, set())), -1))
        return [] if -1 in found else found

    def _has_part(self, place: int, part: _Part, question: set[str]) -> bool:
        """Whether a passage has the words of a part of a sentence. Words of the question and of the title may stand
        near it, and the sentence's subject directly before it if the passage says "it" for it. Words that say little
        may differ, and some of those that the book never uses.
        """
        own, around = self.words.keys_of(place), self.words.keys_around(place, AROUND)
        meant = self.words.keys_around(place, FAR) if self.words.has_pronoun(place) else around
        if self.words.table_of(place):
            question = set()  # what stands around a row is in other rows
        telling = [term for term in part.terms if not (says_little(term) or self.words.is_narrator(term, place))]
        if sum(term.key in own for term in telling) < MOST_OF_IT * len(telling):
            return False
        unknown = 0
        for term in part.terms:
            near = {"word": meant, "name": around, "number": own}[term.kind]
            # an answer's "is required" has to stand in the passage itself, though the question has it too
            is_asked = term.key in question and not provisions.is_verb(term.whole)
            is_near = term.key in near and (is_asked or self.words.is_of_title(term))
            if term.key in own or is_near or self.words.is_narrator(term, place):
                continue
            if self._is_subject(term, part, place):
                continue
            if term.kind != "word":
                return False
            if self.words.is_like_a_name(term):
                return False
            if not self.words.has(term):
                unknown += 1
            elif not says_little(term):
                return False
        return unknown <= UNKNOWN_WORDS * len(part.terms)

    def _is_subject(self, term: Term, part: _Part, place: int) -> bool:
        """Whether a word is a sentence's subject, and a passage says "it" or the like instead."""
        return term.key in part.subject and self.words.is_meant(term, place)

    def _negates_alike(self, places: Sequence[int], terms: Sequence[Term], negated: bool) -> bool:
        """Whether passages agree with the sentence about negation. If the sentence negates something, so must one
        of them. Otherwise none may deny a word of the sentence.
        """
        passages = [self.words.places[place] for place in places]
        if negated:
            return any(passage.negated for passage in passages)
        return not any(term.key in passage.denied for passage in passages for term in terms)

    def _row_says(self, place: int, question: str, sentence: str, terms: Sequence[Term]) -> bool:
        """Whether a row of a table has the figures of a sentence, in the row and the column that the sentence names.
        The names and numbers of the sentence must stand in the row or beside its table, and half of its other words,
        or all but one.
        """
        rows, near = self.words.table_of(place), self.words.keys_around(place, 1)
        facts = [
            term
            for term in terms
            if term.kind != "word" or (term.raw[0].isupper() and term.raw not in sentence[: len(term.raw)])
        ]
        plain = [term for term in terms if term not in facts]
        asked = {term.key for term in self.words.terms(question)}
        strange = [term for term in plain if term.key not in near and term.key not in asked and self.words.has(term)]
        if any(term.key not in near for term in facts) or 2 * len(strange) > max(2, len(plain)):
            return False
        if not self._negates_alike([place], terms, is_negated(sentence)):
            return False
        around = range(max(rows[0], place - AROUND_ROW), min(rows[-1] + 1, place + AROUND_ROW))
        head = self.words.table_head(place)
        others = [row for other in around if other != place and (row := self.words.row(other)) != head]
        return table_rows.states(sentence, question, self.words.row(place), head, others)

    def _is_scattered(self, place: int, part: _Part) -> bool:
        """Whether the words of a part of a sentence stand in several items of a passage that is a list."""
        items = self.words.row(place).split("•")
        keys = {term.key for term in part.terms}.intersection(self.words.places[place].keys)
        return len(items) > 1 and not any(keys <= {key for key, _ in self.words.words_of(item)} for item in items)

    def _is_anothers_own(self, sentence: str, place: int) -> bool:
        """Whether a passage says "his mother" where a sentence says "Tom's mother", and the name before is not Tom."""
        row = self.words.row(place)
        for owner, thing in _OWNED.findall(sentence):
            (term, *_) = [*self.words.terms(owner), None]
            if term is None or not self.words.is_proper(term) or term.key in self.words.places[place].keys:
                continue
            if his := re.search(rf"\b(?:his|her|its|their) (?:\w+ )?{re.escape(thing)}\b", row, re.IGNORECASE):
                named = self.words.last_name(place, row[: his.start()])
                return named not in ("", term.key)
        return False

    def _span(self, place: int) -> tuple[int, int]:
        return self.words.places[place].start, self.words.places[place].end

    def _if_it_agrees(self, judged: _Judged, sentence: str, question: str, parts: Sequence[_Part]) -> _Judged:
        """Lower the level from "says so" to "near" if the passages attribute the sentence's statement to another
        person, or its numbers to another thing (``app.trust.agreement``).
        """
        if judged.level != "says so":
            return judged
        rows = [self.words.row(place) for place in judged.stating]
        differs = any(disagrees(part.text, question, row) for part, row in zip(parts, rows, strict=True))
        if (
            differs
            or any(map(self._is_scattered, judged.stating, parts))
            or any(exchanges(sentence, row) for row in rows)
            or any(map(partial(self._is_anothers_own, sentence), judged.stating))
            or any(reports_another(sentence, self.document.text, *self._span(place)) for place in judged.stating)
        ):
            return replace(judged, level="near")
        there = set[str]().union(*(self.words.keys_of(place) for place in judged.stating))
        lacking = [term for part in parts for term in part.terms if says_little(term) or term.key not in there]
        if self.words.table_of(judged.place) and all(map(says_little, lacking)):
            return judged  # the cells of a row have no verbs
        # words that the passages need not have, except names and the subject
        subject = [term for term in parts[0].terms if term.key in parts[0].subject]
        light = {term.key for term in lacking if not (term.raw[0].isupper() or term in subject)}
        ordered = not is_german(raw for raw, _ in tokenize(sentence))
        passage = "".join(self.words.row(place) for place in sorted(set(judged.stating)))

        def words(text: str) -> list[tuple[str, int]]:
            return [word for word in self.words.words_of(text) if word[0] not in light]

        told = any(self.words.is_of_title(term) or is_generic(term) for term in subject)
        is_anothers = roles.contradicts(sentence, passage, words, ordered=ordered, told=told)
        return replace(judged, level="near") if is_anothers else judged


def _parts(sentence: str, terms: Sequence[Term], words: BookWords) -> list[_Part]:
    """Divide a sentence into its parts. A part ends with a comma or before "and" and the like, and has at least
    ``FEWEST_IN_A_PART`` words.
    """
    by_key = {term.key: term for term in terms}
    parts: list[_Part] = []
    for start, end in pairwise((0, *(match.end() for match in _PART.finditer(sentence)), len(sentence))):
        piece = sentence[start:end]
        keys = dict.fromkeys(term.key for term in words.terms(piece))
        found = [by_key[key] for key in keys if key in by_key]
        if parts and (len(found) < FEWEST_IN_A_PART or len(parts[-1].terms) < FEWEST_IN_A_PART):
            last = parts.pop()
            piece, found = last.text + piece, [*last.terms, *(term for term in found if term not in last.terms)]
        parts.append(_Part(piece, found))
    parts[0].terms.extend(term for term in terms if not any(term in part.terms for part in parts))
    first, subject = parts[0], list[str]()
    for key, start in words.words_of(first.text):
        if subject and not first.text[start].isupper():
            break
        subject.append(key)
    return [replace(first, subject=frozenset(subject)), *parts[1:]]


def _besides_a_year(question: str, question_terms: Sequence[Term], terms: Sequence[Term]) -> list[Term]:
    """Return the words of the question except "year" if the question asks for a year and one of ``terms`` is a year;
    otherwise nothing. "year" is left out, because a passage may state the year without this word.
    """
    if not _ASKS_FOR_A_YEAR.search(question) or not any(_A_YEAR.fullmatch(term.raw) for term in terms):
        return []
    return [term for term in question_terms if term.whole not in _YEARS]
