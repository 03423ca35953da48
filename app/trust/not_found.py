"""Decides whether an answer's sentence is "not found" in the book, and which words of a question the book never uses.

A sentence is *not found* in three cases. First, the book never mentions the subject of the question, or mentions it
only far from the passage that best supports the sentence. Second, the question asks for the number of things ("how many
horses") or names a thing with its owner ("David's horse"), and the book mentions this thing only far from that passage.
Third, the sentence only repeats the question.

``app.trust.evidence`` chooses the passage, applies these rules, and decides about the other sentences.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.language.tokens import tokenize
from app.language.words import FORMS_OF_ADDRESS, fold_word, is_first_name, past_forms, without_ending
from app.trust.book_words import AROUND, ROMAN, BookWords, Term, is_negated, is_title
from engine.passages import asks_for_whole

FAR = 8
"""Maximum distance from a passage, in passages, at which the question's names and nouns count as near the passage."""
ELSEWHERE = 0.4
"""Minimum share, by weight, of a question's names and nouns that are near a passage (``FAR``). With a smaller share,
the passage counts as about a different subject.
"""
ABOUT = 0.5
"""Minimum share, by weight, of the question's words that are near a passage (``AROUND``). Words that the book never
uses do not count. With a smaller share, the passage does not count as about the question.
"""

ABOUT_IT = 0.7
"""Like ``ABOUT``, for a passage that is far from the question's names and nouns (``ELSEWHERE``). Such a passage may
still be about a named person, because the book may say "he".
"""

_ASKING = (
    "happen happened happens narrator author writer writers animal job work works earn earned income person "
    "people man woman place city town country year date time age old colour color number amount cost costs price "
    "reason way thing type title word words mean meaning book text document page chapter story character role "
    "purpose end beginning main allowed summary overview list table sentence paragraph passage example difference "
    "relationship argument theme plot moral conclusion tone genre style topic subject point idea problem fact kind "
    "sort detail quote quotation section protagonist hero distance height length weight width depth size speed "
    "duration hauteur longueur poids largeur Höhe Länge Gewicht Breite Größe Entfernung day week month hour minute "
    "mile meter metre kilometer kilometers kilometre foot feet percent dollar euro pound Tag Tagen Woche Monat Stunde "
    "Prozent "
    # what a text is called
    "lease contract agreement letter email mail message policy form manual guide guidebook brochure leaflet handbook "
    "document paper thesis study article essay report transcript minutes memo invoice receipt notice statement novel "
    "poem play file pdf scan website webpage newspaper magazine publication edition volume "
    "Vertrag Mietvertrag Brief Dokument Datei Handbuch Anleitung Bericht Artikel Studie Roman Rechnung Aufsatz contrat "
    "bail lettre courriel rapport brochure étude roman facture contrato carta informe folleto novela "
    # its parts
    "cover heading headline caption footnote footer header appendix annex figure chart graph diagram picture image "
    "photo column row cell bullet item line clause reference bibliography contents index "
    "Überschrift Anhang Abbildung Tabelle Spalte Zeile Abschnitt Absatz Kapitel Seite Satz Fußnote Klausel "
    "couverture titre annexe tableau colonne ligne chapitre phrase portada anexo tabla columna fila capítulo "
    # the form of an answer
    "answer question explain describe summarize summarise list name say tell give show every each "
    "format percentage money integer float decimal order yyyy mm dd markdown json csv keyword explanation description "
    "definition translation comparison version term reply response note please before after "
    "Antwort Format Zahl Prozentsatz Geld Erklärung Beschreibung Begriff Übersetzung Vergleich Stichpunkte réponse "
    "nombre pourcentage argent explication respuesta formato número porcentaje dinero explicación"
)
"""Words of questions about any book: what a text, its parts and its persons are called, the form of an answer, and
units of measurement.
"""
_BEFORE_NOUNS = (
    "the a an which what many much of his her their its my your our any some no other mention mentions der die das den "
    "dem des ein eine einen einem eines welche welcher welches welchem welchen viele le la les un une des quel quelle "
    "quels quelles"
)
_ADJECTIVES = (
    "new old big small large great little long short high low good bad best worst first last next other same main "
    "whole early late young full own real true only second third neue neuen neuer alte alten alter große großen erste "
    "ersten letzte letzten nouveau nouvelle vieux vieille grand grande petit petite premier première dernier dernière "
    "more most less least fewer fewest longer longest shorter shortest larger largest bigger biggest smaller smallest "
    "higher highest lower lowest better worse cheaper cheapest earlier earliest later latest older oldest newer newest "
    "younger youngest greater greatest längere längste längsten kürzere kürzeste kürzesten größere größte größten "
    "kleinere kleinste kleinsten höhere höchste höchsten niedrigere niedrigste niedrigsten billigere billigste "
    "billigsten teurere teuerste teuersten bessere beste besten frühere früheste frühesten spätere späteste spätesten "
    "ältere älteste ältesten jüngere jüngste jüngsten plus moins meilleur meilleure pire longue courte haut haute bas "
    "basse cher chère élevé élevée"
)
"""Adjectives that may stand between an article and a noun. The noun of a question is looked for after them."""
_KIND = re.compile(r"\b(?:which|what|welche[mnrs]?|quel(?:le)?s?) ([^\W\d_]+)", re.IGNORECASE)
# A question that asks "who", "how many" or the like, and that offers no alternatives ("or"). German "was" is left out,
# because it is also an English verb.
_OPEN = re.compile(
    r"\W*(?:who|whom|whose|what|which|when|where|how (?:many|much)|wer|wen|wem|wessen|welche[mnrs]?|wann|wo|wie ?viele?"
    r"|qui|quand|où|combien|quel(?:le)?s?)\b(?!.*\b(?:or|oder|ou)\b)",
    re.IGNORECASE | re.DOTALL,
)
# A second question in the same sentence, such as ", and is it ...", that is answered by yes or no.
_YES_OR_NO = re.compile(
    r"(?:,|\band)\s+(?:is|are|was|were|do|does|did|has|have|had|can|could|will|would)\b"
    r"|(?:,|\bund)\s+(?:ist|sind|war|waren|hat|hatte|wird|wurde|kann)\b|(?:,|\bet)\s+(?:est|sont|était)\b",
    re.IGNORECASE,
)
_CHOICE = re.compile(  # a question that names the possible answers: "Which of Karl and Hans ..."
    r"\W*(?:who|which|wer|welche[mnrs]?|qui)\b.{0,60}?\b(?:of|between|among|von|zwischen|unter|de|entre)\b"
    r".{1,60}?\b(?:and|und|et)\b",
    re.IGNORECASE | re.DOTALL,
)
# A question that takes for granted that something happened or is so.
_ASSUMES = re.compile(
    r"\W*(?:why|when|how(?= (?:did|was|were)\b))\s+(?:was|were|is|are|did|does|do|has|have|had|will|must)\b"
    r"|\W*(?:pourquoi|quand|cuándo|por qué)\b",
    re.IGNORECASE,
)
# A name of several words: capitalised words, also with "of" and the like between them.
_NAME = re.compile(
    r"(?<![^\W_])(?!(?:What|Who|Whom|Whose|When|Where|Why|How|Which|Is|Are|Was|Were|Did|Does|Do|The|In|On|At|A|An)\b)"
    r"[A-ZÀ-ÖØ-Þ][\w’'-]{0,40}(?:(?: (?:of|for|and|the|de|du|von)){0,2} [A-ZÀ-ÖØ-Þ][\w’'-]{0,40}){1,8}"
)
_COUNTING = re.compile(r"\W*(?:how many|wie ?viele|combien)\b", re.IGNORECASE)
_ONE = re.compile(r"\b(?:one|zero)\b", re.IGNORECASE)
# The number one in an answer to a ``_COUNTING`` question, where "a horse" also means one.
_ONE_COUNTED = re.compile(r"\b(?:one|zero|an?|eine?[mnr]?|une?)\b", re.IGNORECASE)
_THING = re.compile(r"(?:\bhow (?:many|much) |['’]s? )([^\W\d_]+)", re.IGNORECASE)
_LIGHT = (
    "use used do make made get got take took give gave go went come came become happen begin began start end occur "
    "exist mean say said tell told need want try call name state mention describe explain report note buy bought "
    "purchase pay paid receive obtain include contain consist provide lie live locate situate refer serve compare "
    "accord put rid try order find together around near beside dwell die"
)
"""Verbs that a book need not have for a question's premise to be right, because they say little."""
_PRICE = "price cost amount income"
_MONEY = re.compile(
    r"[$€£¥]|\b(?:dollars?|cents?|euros?|pounds?|shillings?|pence|francs?|marks?|mark|yen)\b", re.IGNORECASE
)
_GENERIC = frozenset(without_ending(fold_word(word)) for word in _ASKING.split())
_PLAIN = frozenset(_ADJECTIVES.split())
_PRICES = frozenset(without_ending(word) for word in _PRICE.split())
_ORDER = frozenset(["before", "after"])
_LIGHT_VERBS = frozenset(_LIGHT.split())
_OR = frozenset(["or", "nor", "oder", "ou", "o"])
_NOUN_FOLLOWS = frozenset(_BEFORE_NOUNS.split())


# The end of a clause: a "not" denies only what stands in its own clause.
_CLAUSE_ENDS = re.compile(r"[,;:!?]\s+|\s(?:[–—-]|but|aber|mais)\s|--")
# A clause that says what would be, or what is so from some time on.
_UNREAL = re.compile(r"\b(?:if|would|should|could|might|unless|until|before|wenn|si)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Premise:
    """What a question takes for granted, and no passage says.

    ``words``: the words of the premise that no passage has together with its other words; or, if ``is_denied``, the
    words that a passage denies. ``place``: the index of this passage, or of the nearest one; None if there is none.
    """

    words: tuple[str, ...]
    place: int | None = None
    is_denied: bool = False


class Absence:
    """Decides which words of a question a book never uses, and whether the book mentions the question's subject."""

    def __init__(self, words: BookWords) -> None:
        self._words = words
        self._has_money = _MONEY.search(words.document.text) is not None

    def unmentioned(self, question: str, answered: bool = False) -> tuple[str, ...]:
        """The nouns and names of a question that the book never uses.

        Empty for a question about the whole book. Also empty for a request without a question mark, in which a noun may
        name the form of the answer ("as a table").

        Args:
            answered: whether a passage supports the answer. If so, the noun right after "which" or "what" is left out,
                because a book may name a disease without using the word "disease".
        """
        if not question.rstrip().endswith("?") or asks_for_whole(question):
            return ()
        nouns = nouns_of(question)
        asked = [term for term in self._words.terms(question) if term.raw in nouns]
        found = [term.raw for term in asked if self.is_unknown(term) or self._is_price_of_nothing(term)]
        found += self.unknown_names(question)
        kinds = {match[1] for match in _KIND.finditer(question)} if answered else set()
        return tuple(word for word in dict.fromkeys(found) if word not in kinds)

    def unknown_names(self, text: str) -> list[str]:
        """The names of several words ("Department of Science for Health") whose words the book has, but never close to
        one another. Empty in a language that capitalises every noun.
        """
        if self._words.nouns_capitalized:
            return []
        found = []
        for name in _NAME.finditer(text):
            terms = self._words.terms(name[0])
            # two words of a person's name may stand in two sentences, those of an office stand in one
            reach = 0 if len(terms) > 2 else 1
            several = len(terms) > 2 or (len(terms) == 2 and is_first_name(terms[0].whole))
            if several and all(map(self._words.has, terms)) and not self._words.has_together(terms, reach):
                found.append(name[0])
        return found

    def premise(self, question: str) -> Premise | None:
        """What a question takes for granted and no passage says: "cancelled" for "Why was the survey cancelled?". None
        if a passage says it, if the question assumes nothing, and in a language that writes compounds as one word, such
        as German, because forms of a verb differ too much there.
        """
        if _ASSUMES.match(question) is None or asks_for_whole(question) or self._words.nouns_capitalized:
            return None
        every = self._words.terms(question)
        telling = [term for term in every if term.whole not in _LIGHT_VERBS and term.whole not in FORMS_OF_ADDRESS]
        if len(telling) > 1 and not all(map(self._words.is_proper, telling)) and not is_negated(question):
            for place in self._words.ranked(telling, (), (), len(self._words.places)):
                if denied := self._denied(place, telling, every):
                    return Premise(denied, place, is_denied=True)
        terms = [term for term in telling if not is_generic(term)]
        ranked = self._words.ranked(terms, (), (), len(self._words.places))
        had = [{term.key for term in terms if self._stands(term, place)} for place in ranked]
        # The nearest passage is about the things of the question: of "Why did the revenue fall?" it is one of revenue,
        # even if "fall" is the rarer word and stands elsewhere. A named person may be a passage's "I" or "he".
        nouns = nouns_of(question)
        things = [term for term in terms if term.raw in nouns and not self._words.is_proper(term)]
        shares = [[self._words.share(some, keys) for some in (things, terms) if some] for keys in had]
        _, best, keys = max(
            zip(shares, ranked, had, strict=True), key=lambda one: one[0], default=([], None, set[str]())
        )
        lacking = [term for term in terms if term.key not in keys]
        if not lacking or (best is not None and self._is_told_by(lacking, best)):
            return None
        return Premise(tuple(term.raw for term in lacking), best)

    def _is_told_by(self, lacking: Sequence[Term], place: int) -> bool:
        """Whether a passage lacks only names of a premise, and says "I"."""
        return self._words.is_told_by_one(place) and all(map(self._words.is_proper, lacking))

    def _stands(self, term: Term, place: int) -> bool:
        """Whether a word of a premise stands in a passage or beside it, in any form of a verb. A name may stand further
        away.
        """
        near = self._words.keys_around(place, 1)
        if term.key in near:
            return True
        if self._words.is_proper(term):
            return term.key in self._words.keys_around(place, FAR)
        return any(form.key in near for form in self._words.terms(past_forms(term.whole)))

    def _denied(self, place: int, terms: Sequence[Term], every: Sequence[Term]) -> tuple[str, ...]:
        """The words of a premise that a clause of a passage denies, if this clause has all ``terms``: "take" for "Why
        did he take the money?" in "He did not take the money". Names may stand near the passage.
        """
        around = self._words.keys_around(place, AROUND)
        for clause in _CLAUSE_ENDS.split(self._words.row(place)):
            if not is_negated(clause) or _UNREAL.search(clause):
                continue
            keys = {key for key, _ in self._words.words_of(clause)}
            if all(term.key in keys or (self._words.is_proper(term) and term.key in around) for term in terms):
                denied = set(self._words.denied_in(clause))
                if words := tuple(term.raw for term in every if term.key in denied):
                    return words
        return ()

    def is_unknown(self, term: Term) -> bool:
        """Whether the book never uses a word of the question.

        In a language that writes compounds as one word, such as German, only nouns can be unknown, because the forms of
        a verb differ too much. A noun counts as known if the book has a related compound (``BookWords.is_joined``).
        """
        if self._words.has(term) or is_generic(term) or ROMAN.fullmatch(term.whole):
            return False
        if not self._words.nouns_capitalized:
            return True
        return term.raw[0].isupper() and not self._words.is_joined(term)

    def is_beside_the_point(
        self, nouns: Sequence[Term], question_terms: Sequence[Term], sentence_keys: set[str], best_place: int | None
    ) -> bool:
        """Whether the book never mentions the subject of the question, or mentions it only far from the best passage.

        Args:
            nouns: names and nouns of the question.
            question_terms: all words of the question.
            sentence_keys: ``Term.key`` of every word of the answer's sentence.
            best_place: index of the passage that supports the sentence best. If no passage does (None), the result is
                True if there are any ``nouns``.
        """
        if best_place is None:
            return bool(nouns)
        known = [term for term in question_terms if self._words.has(term)]
        about = self._words.share(known, self._words.keys_around(best_place, AROUND)) if known else 1.0
        near = self._words.share(nouns, self._words.keys_around(best_place, FAR)) if nouns else 1.0
        unknown = [term for term in nouns if self.is_unknown(term)]
        if near < ELSEWHERE and (about < ABOUT_IT or any(term.kind == "name" for term in unknown)):
            return True
        if not unknown:
            return False
        return len(unknown) > 1 or about < ABOUT or any(term.key in sentence_keys for term in unknown)

    def is_elsewhere(self, question: str, nouns: Sequence[Term], best_place: int | None) -> bool:
        """Whether the question asks for the number of things or names a thing with its owner ("David's horse"), and the
        book mentions the thing only far from the passage ``best_place``.
        """
        things = {match[1] for match in _THING.finditer(question)}
        near = self._words.keys_around(best_place, FAR) if best_place is not None else set()
        return any(term.raw in things and self._words.has(term) and term.key not in near for term in nouns)

    def _is_price_of_nothing(self, term: Term) -> bool:
        """Whether ``term`` asks for a price ("cost"), and the book has neither this word nor any amount of money."""
        return not self._has_money and without_ending(term.whole) in _PRICES and not self._words.has(term)


def only_repeats(question: str, sentence: str, terms: Sequence[Term], question_terms: Sequence[Term]) -> bool:
    """Whether a question asks "who", "which" or the like, and the sentence has no words other than the question's:
    "Which university did the barber attend?", "The barber attended a university."

    False if the sentence is a heading, because the answer follows it. False if the sentence contains a negation or
    "one", which may be the answer although they are not among ``terms``. False if the question contains the possible
    answers ("or", "which of ... and ...") or has a second part ("and is it ...?").

    Args:
        terms: words of the sentence.
        question_terms: words of the question.
    """
    if _OPEN.match(question) is None or _YES_OR_NO.search(question) or _CHOICE.match(question):
        return False
    one = _ONE_COUNTED if _COUNTING.match(question) else _ONE
    if is_title(sentence) or is_negated(sentence) or one.search(sentence):
        return False
    known = {term.key for term in question_terms}
    return all(term.key in known for term in terms)


def is_generic(term: Term) -> bool:
    """Whether a word may occur in a question about any book (``_ASKING``)."""
    return without_ending(term.whole) in _GENERIC


def says_little(term: Term) -> bool:
    """Whether an answer may have a word where the book has another: a word of any question, or a verb such as "give".
    Not "before" and "after", which turn a meaning.
    """
    return (is_generic(term) or term.whole in _LIGHT_VERBS) and term.whole not in _ORDER


def nouns_of(question: str) -> set[str]:
    """The words of a question that are probably nouns: words after an article or a similar word, and capitalized words
    except the first.
    """
    words = [raw for raw, _ in tokenize(question)]
    found = {word for word in words[1:] if word[0].isupper()}
    expected, before = False, ""
    for word in words:
        if expected and word.lower() not in _PLAIN:
            found.add(word)
        plain = expected and word.lower() in _PLAIN
        # "a dog or cat": what follows "or" is of the same kind
        expected = (
            plain
            or (word.lower() in _OR and before in found)
            or word.lower() in _NOUN_FOLLOWS
            or word.endswith(("'s", "’s", "s'", "s’"))
        )
        if word[:2].lower() in ("l'", "l’", "d'", "d’"):
            found.add(word)
        before = word
    return found
