"""Finds passages of a book that share words with a question, for models that are too small to find passages by
themselves.

A model whose generation settings contain `passages` gets passages repeated after the question. A small chat model
without such settings gets the best passage repeated before a question about the book. The prompt holds the whole book
in any case. Passages are ranked by BM25 (Robertson and Zaragoza 2009) over sentences. The chosen passages depend only
on the book and the question, so a repeated question gives the same tokens. For a question about the whole text, the
passages are the text's beginning and, from each later part, the passage that is most typical of the text.

The list of stop words is English. In other languages frequent words only have a small weight, because they are in many
passages. Questions about the whole text are detected in English, German, French and Spanish.
"""

from __future__ import annotations

import heapq
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from engine.languages import QUOTED, Language, language_of, language_of_question, sentence_ends

__all__ = ["OFTEN", "SILENT", "STEM", "asks_about_part", "asks_about_several", "asks_for_whole", "reminded", "spans"]

SHORTEST = 60
"""Minimum characters of a passage. A shorter sentence is joined to the next sentence of its paragraph."""
LONGEST = 320
"""Maximum characters of a passage. A longer passage is cut, if possible at a comma."""
POINTED_SHORTEST = 200
"""Minimum characters of the single passage that is put before a question (``pointed``). With this minimum, the passage
contained the fact that was asked for in 49 of 62 questions. With a smaller minimum it did in 43.
"""
SATURATION = 1.2
"""BM25's parameter k1: how soon further occurrences of a word in a passage count less."""
LENGTH_SHARE = 0.4
"""BM25's parameter b: how much a long passage counts less. Passages have about the same length, so it matters little.
"""
NEIGHBOURS = 0.3
"""Weight of a word that occurs only in the previous or the next passage."""
MOST_PASSAGES = 16
"""Maximum number of passages, for any model."""
MOST_COMPARED = 6
"""Maximum number of documents of which a question that compares documents gets a passage each."""
POINTED_PARAMETERS = range(400_000_000, 3_000_000_001)
"""Range of model sizes, in parameters, for which a passage is put before the question. Measured with 1.5 billion
(``assets/evaluation``). A smaller model must be trained to use such a passage, as the bundled starter model was. For
larger models it has not been measured whether the passage is worth its tokens.
"""
STUB = 120
"""Minimum characters of the passage that is put before a question. A heading or a cut line tells too little."""
BEFORE = 0.5
"""Weight of a word that only the question before has, to which a question refers."""
STEM = 5
"""Number of first letters by which words are compared, after a final s is removed: "lamps" equals "lamp", "lighted"
equals "lighting".
"""

_WORD = re.compile(r"[^\W_]+(?:[’'][^\W_]+)*")
_PARAGRAPH = re.compile(r"\n\s*\n")
_WHOLE_SENTENCE = re.compile(r"[“\"‘']?[^\W\d_a-z].*[.!?][”\"’')]*$", re.DOTALL)
_PAUSE = re.compile(r"[;:,—–](?=\s)|\s(?=[—–])")
CELLS = " | "  # between the cells of a table's row
SILENT = frozenset(
    word
    for line in (
        "a about all also an and any are as at be been book but by call called can could did do does for from give had",
        "has have he her him his how i if in into is it its kind long many me much my name named no not of on one or",
        "our out say says she so some tell text than that the their them then there they this those to up us very was",
        "we were what when where which who whom whose why will with would you your",
    )
    for word in line.split()
)

FROM_THE_BOOK: Mapping[Language, str] = {
    "en": "From the book:",
    "de": "Aus dem Buch:",
    "fr": "Tiré du livre :",
    "es": "Del libro:",
}
"""The line above a passage that is put before a question (``pointed``), keyed by the book's language."""

ANSWER_IN: Mapping[Language, str] = {
    "en": "(Answer in English.)",
    "de": "(Antworte auf Deutsch.)",
    "fr": "(Réponds en français.)",
    "es": "(Responde en español.)",
}
"""Sentence that is added to a question whose language is not the book's, keyed by the question's language. Without the
sentence some answers were in the book's language.
"""

_POLITE = re.compile(
    r"^(?:(?:please|bitte)\W+)?"
    r"(?:(?:can|could|would|will) you (?:please )?(?:tell|show|explain|find|give|say|name|list)(?: (?:to )?me)?"
    r"|do you know(?= (?:who|what|where|when|why|how|which|if|whether)\b)"
    r"|i(?:['’]d| would) like to know|i want to know|tell me"
    r"|(?:kannst du|können sie|könnten sie) (?:mir |uns )?(?:bitte )?sagen|weißt du|wissen sie|sag mir"
    r"|(?:pouvez-vous|peux-tu) me dire|sais-tu|savez-vous|dis-moi)\b\W*",
    re.IGNORECASE,
)
_ASKING = re.compile(
    r"(?:who|whom|whose|what|which|when|where|why|how|is|are|was|were|does?|did|has|have|had|name|list|explain"
    r"|describe|find|show|give|quote|compar\w*|contrast\w*|vergleich\w*"
    r"|wer|wen|wem|wessen|welche[mnrs]?|wann|wo|wohin|woher|warum|weshalb|wie|ist|sind"
    r"|war|waren|hat|haben|nenne|erkläre|finde|zeige?|qui|que|quoi|quelle?s?|quand|où|pourquoi|comment|combien"
    r"|est-ce)\b",
    re.IGNORECASE,
)
_TO_MODEL = re.compile(
    r"\b(?i:you|yours?|yourself|tu|toi|vous|votre|vos|dich|dir|deine?[mnrs]?|ihnen)\b|(?<=\s)Sie\b|(?<=st )du\b"
)
# "And when was he paid?": a question that refers to the one before
_FOLLOWS = re.compile(
    r"^\W*(?:and|but|so|or|then|what about|how about|why|und|aber|oder|dann|warum|et|mais|ou|pourquoi|y|pero)\b"
    r"|\b(?:he|she|it|him|her|his|hers|its|they|them|their|this|that|these|those|there"
    r"|er|sie|es|ihn|ihm|ihr|ihre[mnrs]?|sein|seine[mnrs]?|dort|il|elle|ils|elles|lui|leurs?|son|sa|ses)\b",
    re.IGNORECASE,
)
_RETELLING = re.compile(
    r"\b(?:summar|summ(?:ing)? up|sum up|gist\b|outline|overview|retell"
    r"|zusammenf|fasse?\b|überblick|worum|résum|de quoi)",
    re.IGNORECASE,
)
_SMALL_TALK = (
    "anybody anyone anything ask date day evening everything explain fine funny going good great hello help here hey "
    "hi home joke key know laugh like may morning must nice night now okay other poem question raining really right "
    "should song something story sure thank thing time today true use useful weather well work write wrong"
)
_WHOLE = (
    "article both brief briefly content contents document essay few file idea main novel paper please read report "
    "sentences short story these three two whole words write"
)
_ASKS_FOR_WHOLE = "describe gist happen happened happens overview point points subject sum summarize summary tl topic"
# matches the length that a question names for its answer
_LENGTH = re.compile(
    r"(?:,? (?:in|mit|en|with) )?"
    r"(?:(?:at most|up to|no more than|about|around|exactly|höchstens|maximal|etwa|moins de) )?"
    r"\b(?:\d{1,3}|two|three|four|five|ten|zwei|drei|vier|fünf|zehn|deux|trois|quatre|cinq|dix"
    r"|dos|tres|cuatro|cinco|diez) (?:short )?"
    r"(?:sentences|words|lines|sätzen?|wörtern|worten|zeilen|phrases|mots|lignes|frases|palabras|líneas)"
    r"(?: (?:or less|at most|au plus|au maximum|como máximo))?\b",
    re.IGNORECASE,
)
# matches a word by which a question compares things or names several of them
_COMPARING = re.compile(
    r"^\W*(?:la|les?)quel|\b(?:both|each|either|every|all|two|three|differ\w*|compar\w*|contrast\w*|than|versus|vs"
    r"|beide[nrm]?|jede[nrms]?|zwei|drei|unterschied\w*|unterscheid\w*|vergleich\w*"
    r"|chaque|chacune?|deux|trois|diff[èé]r\w*"
    r"|cada|ambos|ambas|dos|tres|difieren?|diferen\w*"
    r"|which of|welche[mnrs]? (?:der|von)|quel(?:le)?s? (?:de|des)|cuál(?:es)? de"
    r"|which (?:agreement|article|book|contract|document|file|lease|letter|offer|paper|policy|report|text)"
    r"|welche[mnrs]? (?:angebot|artikel|bericht|brief|buch|dokument|text|vertrag|\w+vertrag)"
    r"|quel(?:le)? (?:article|bail|contrat|document|lettre|livre|offre|rapport|texte)"
    r"|qué (?:artículo|carta|contrato|documento|informe|libro|oferta|texto))\b",
    re.IGNORECASE,
)
Whole = Literal["en", "de", "fr", "es"]
"""A language in which questions about a whole text are recognised."""
# For each language except English (``_WHOLE``): words that ask for the whole text, and words that may accompany them. A
# question is about the whole text if it has at least one word of the first list and all its words are in the two lists.
_ELSEWHERE: Mapping[Whole, tuple[str, str]] = {
    "de": (
        "worum zusammen zusammenfassen zusammenfassung zusammenfassend handelt überblick hauptgedanken inhalt",
        "fasse fass fassen sie mir uns bitte das den die dieses diesen dem diesem der einem im in von vom des es "
        "er sie geht wovon was ist gib eine einen kurz kurze kurzen knapp wenigen sätzen drei zwei fünf worten "
        "ganze ganzen über buch buches buchs text textes texts dokument dokuments bericht berichts artikel "
        "artikels roman romans geschichte erzählung aufsatz aufsatzes kannst du können",
    ),
    "fr": (
        "résume résumer résumez résumé parle traite sujet thème idées",
        "de quoi le la les ce cet cette ces du des un une est quel quelle sont moi nous en il elle livre texte "
        "document rapport article roman histoire tout entier bref brièvement quelques deux trois cinq phrases "
        "mots peux tu pouvez vous fais faites donne donnez principal principale principales s'il te plaît",
    ),
    "es": (
        "resume resumir resúmeme resumen trata tema ideas",
        "de qué el la los las este esta un una es cuál cuáles son del en libro texto documento informe artículo "
        "novela historia todo entero brevemente breve pocas dos tres cinco frases palabras puedes puede haz hazme"
        " dame principal principales por favor me se",
    ),
}
_WHOLE_ELSEWHERE = {
    language: (frozenset(asking.split()), frozenset(f"{asking} {beside}".split()))
    for language, (asking, beside) in _ELSEWHERE.items()
}
WHOLE_PASSAGES = 3
"""Maximum number of passages for a question about the whole text."""
OFTEN = 6
"""Maximum number of passages with a word that counts in ``_tells``, so that a frequent word does not outweigh rare
words.
"""


def reminded(question: str, passages: Sequence[str]) -> str:
    """Return the question, followed by the passages. Without passages the question stays unchanged."""
    if not passages:
        return question
    return "\n".join((f"{question}\n\nFrom the book:", *(f"- {passage}" for passage in passages)))


def pointed(question: str, passages: Sequence[str], language: Language | None = None) -> str:
    """Return the passages, followed by the question, because the prompt should end with the question. Without passages
    the question stays unchanged.

    The line above the passages is in the book's ``language``, or in English if ``language`` is None. (With an English
    line, a German question about a German book was answered in English.) If the question is in a different language
    than the book, a sentence after the question asks for an answer in the question's language.
    """
    own = language_of_question(question)
    if own and language and own != language:
        question = f"{question} {ANSWER_IN[own]}"
    if not passages:
        return question
    lines = (f"- {passage}" for passage in passages)
    return "\n".join((FROM_THE_BOOK[language or "en"], *lines, "", question))


class Passages:
    """The passages of one text, mostly of at least ``shortest`` characters. For a long book, making them takes about a
    second.
    """

    def __init__(self, text: str, shortest: int = SHORTEST) -> None:
        self.language = language_of(text)
        places = list(spans(text, shortest))
        self._all = [" ".join(text[start:stop].split()) for start, stop in places]
        self._heads = [_head_above(text, start, stop) for start, stop in places]
        self._words = [Counter(stems(passage)) for passage in self._all]
        self._places: dict[str, list[int]] = {}
        for place, words in enumerate(self._words):
            for word in words:
                self._places.setdefault(word, []).append(place)
        self._mean = max(1.0, sum(words.total() for words in self._words) / max(1, len(self._words)))

    def about(self, question: str, most: int) -> list[str]:
        """Choose up to ``most`` passages. Their line breaks are replaced by spaces. Passages that share more and rarer
        words with the question come first.

        A question about the whole text gets passages from all parts of the text, in the text's order.
        """
        if asks_for_whole(question):
            return self._throughout(min(most, WHOLE_PASSAGES))
        return [self._all[place] for place in self._ranked(question, "", most)]

    def best(self, question: str, before: str = "") -> list[str]:
        """Choose the best passage for a question about a part, or none. Rows of a table have its head before them, and
        a passage of few characters, such as a heading, has the passages behind it.

        Args:
            before: the question before this one, to which this one may refer. Its words count half.
        """
        places = self._ranked(question, before if _FOLLOWS.search(question) else "", 1)
        return [self._with_neighbours(place) for place in places]

    def _with_neighbours(self, place: int) -> str:
        text, head = self._all[place], self._heads[place]
        if head:
            return f"{head} / {text}"
        while len(text) < STUB and place + 1 < len(self._all):
            place += 1
            text = f"{text} {self._all[place]}"
        return text

    def _ranked(self, question: str, before: str, most: int) -> list[int]:
        """The indexes of the ``most`` best passages."""
        scores: defaultdict[int, float] = defaultdict(float)
        asked = dict.fromkeys(stems(question), 1.0)
        for word, share in {**dict.fromkeys(stems(before), BEFORE), **asked}.items():
            places = self._places.get(word, [])
            weight = share * math.log(1 + (len(self._all) - len(places) + 0.5) / (len(places) + 0.5))
            beside = set()
            for place in places:
                scores[place] += weight * self._count(word, place)
                beside |= {place - 1, place + 1}
            for place in beside.difference(places):
                scores[place] += NEIGHBOURS * weight
        known = ((score, -place) for place, score in scores.items() if 0 <= place < len(self._all))
        return [-place for _, place in heapq.nlargest(most, known)]

    def _throughout(self, most: int) -> list[str]:
        """Return the first passage, and the most typical passage of each of the ``most`` - 1 equal parts into which the
        other passages are divided.
        """
        size, rest = len(self._all), range(1, most)
        borders = [1 + (size - 1) * part // max(1, most - 1) for part in range(most)]
        parts = [range(borders[part - 1], borders[part]) for part in rest]
        telling = [max(part, key=self._tells) for part in parts if part]
        return [self._all[place] for place in [0, *telling][: min(most, size)]]

    def _tells(self, place: int) -> float:
        """Score how typical of the text the passage with the index ``place`` is.

        For each different word of the passage, the number of passages with this word is counted, up to ``OFTEN``. The
        score is the sum of these counts relative to the passage's length. It is 0 for a passage that begins or ends
        within a sentence.
        """
        words = self._words[place]
        often = sum(min(len(self._places[word]), OFTEN) for word in words)
        return often / (OFTEN + words.total()) if _WHOLE_SENTENCE.match(self._all[place]) else 0.0

    def _count(self, word: str, place: int) -> float:
        """Return how often a passage has a word, saturated and normalized by the passage's length as in BM25."""
        words = self._words[place]
        size = 1 - LENGTH_SHARE + LENGTH_SHARE * words.total() / self._mean
        return words[word] * (SATURATION + 1) / (words[word] + SATURATION * size)


def asks_for_whole(question: str) -> bool:
    """Whether a question is about a text as a whole: "What is this report about?", "Summarize it in few words."."""
    return whole_asked_in(question) is not None


def names_length(question: str) -> bool:
    """Whether a question names the length of its answer: "in at most 60 words"."""
    return _LENGTH.search(question) is not None


def whole_asked_in(question: str) -> Whole | None:
    """The language of a question about a text as a whole; None for any other question."""
    question = _LENGTH.sub("", question)
    asked = set(stems(question))
    if asked <= _WHOLE_STEMS:
        _, about, behind = question.lower().rpartition("about")
        aimed = bool(about) and not re.search(r"\b(?:you(?! have)|me|us)\b", behind)
        if asked & _ASKING_STEMS or aimed:
            return "en"
    words = {match[0].lower().replace("’", "'") for match in _WORD.finditer(question)}
    elsewhere = _WHOLE_ELSEWHERE.items()
    return next((name for name, (asking, allowed) in elsewhere if words & asking and words <= allowed), None)


def asks_about_part(question: str) -> bool:
    """Whether a question is about a detail of the book: not about the whole book, not about the model, and no small
    talk.

    False in unclear cases, and for a question of several lines, which may contain a text of its own.
    """
    # whom a quotation speaks to does not matter
    asked = QUOTED.sub('""', _POLITE.sub("", question.strip()))
    asks = asked.endswith(("?", "？", "؟")) or bool(_ASKING.match(asked))
    if not asks or "\n" in asked or _TO_MODEL.search(asked) or asks_for_whole(question) or _RETELLING.search(asked):
        return False
    return not set(stems(asked)) <= _SMALL_TALK_STEMS | _WHOLE_STEMS


def asks_about_several(question: str) -> bool:
    """Whether a question may be about several documents, because it compares things or names several of them."""
    return _COMPARING.search(question) is not None


def stems(text: str) -> Iterator[str]:
    """Yield the stem of each word of a text: the first ``STEM`` letters, without a final s. Stop words (``SILENT``) are
    skipped.
    """
    for match in _WORD.finditer(text):
        word = match[0].lower().replace("’", "'").removesuffix("'s")
        if word not in SILENT:
            yield word.removesuffix("s")[:STEM] if len(word) > 3 else word


_ASKING_STEMS = frozenset(stems(_ASKS_FOR_WHOLE)) | {"summa"}
_SMALL_TALK_STEMS = frozenset(stems(_SMALL_TALK))
_WHOLE_STEMS = frozenset(stems(_WHOLE)) | _ASKING_STEMS | {"dr", "what's"}


def spans(text: str, shortest: int = SHORTEST) -> Iterator[tuple[int, int]]:
    """Yield the start and end offset of each passage of a text. A passage is one or more sentences, or a part of a long
    sentence, and never crosses a blank line.
    """
    start = 0
    for gap in [*_PARAGRAPH.finditer(text), None]:
        stop = gap.start() if gap else len(text)
        ends = sentence_ends(text, start, stop)
        for end in [*ends, stop]:
            if end - start >= shortest or end == stop:
                yield from _parts(text, start, end)
                start = end
        start = gap.end() if gap else stop


def _head_above(text: str, start: int, stop: int) -> str:
    """The head of a table, if a passage is made of rows below it: the first line of the rows' paragraph."""
    if CELLS not in text[start:stop]:
        return ""
    first = text.rfind("\n\n", 0, start) + 2 if "\n\n" in text[:start] else 0
    line = text[first : text.find("\n", first)] if first < start else ""
    return " ".join(line.split()) if CELLS in line and "\n" in text[first:stop] else ""


def _parts(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Cut a passage into parts of at most ``LONGEST`` characters, if possible at a comma or the like."""
    while stop - start > LONGEST:
        pauses = [match.end() for match in _PAUSE.finditer(text, start + SHORTEST, start + LONGEST)]
        cut = pauses[-1] if pauses else start + LONGEST
        yield start, cut
        start = cut
    if text[start:stop].strip():
        yield start, stop
