"""Reads a model's card, a JSON file in the model's folder: what the model can do, and its refusals.

A model with a card is small, and cannot know what a book lacks. So it answers only the questions that its card allows.
To every other question the answer is the passages that fit best (``app.core.best_passages``), and a sentence that says
so. A refusal of such a model is replaced in the same way (``Denials``).
"""

from __future__ import annotations

import logging
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from app.language.quoting import quoted_words
from app.trust.evidence import EvidenceIndex
from app.trust.quoted import BookIndex, check_quotation
from engine import model_files
from engine.errors import ModelError
from engine.events import AnswerDone, Event, TextDelta
from engine.languages import language_of
from engine.passages import asks_about_part, asks_for_whole

logger = logging.getLogger(__name__)

CARD = "abilities.json"
FIT_BEST = "These passages fit best."
NO_PASSAGE = "No passage has a word of this question. The book may say it in other words."
LIMITS = {
    "demo": "The built-in demo does not understand what it finds; the reader does: fetch 1.1 GB.",
    "starter": "The starter would only guess here; the reader understands more: fetch 1.1 GB.",
    "": "This model would only guess here.",
}
"""Why a model does not answer, and which model does, keyed by ``Abilities.limit``."""

# Matches a request for a quotation by its words: "Find: the north light", "Where does it say that the gulls left?".
_REQUEST = re.compile(
    r"^\W*(?:please\s+|(?:can|could) you\s+)?"
    r"(?:find|search for|quote|cite|show me|where (?:does (?:it|the (?:book|text))|do they|is it) (?:say|said|written)"
    r"|what does (?:it|the (?:book|text)) say about|what is said about|which passage (?:speaks|talks) (?:of|about)"
    r"|does (?:it|the (?:book|text)) say|(?:what comes|how does it go on) after|is there anything about)\b"
    r"(?:\s+the\s+(?:passage|part|words?|sentences?|place)\b)?(?:\s+(?:about|with|on|of|that|where))?[\s:]*",
    re.IGNORECASE,
)
_ASKS = re.compile(r"[?？]\W*$")


@dataclass(frozen=True)
class Abilities:
    """A model's description, read from the file ``CARD`` in its folder, if there is one.

        {"only_quotes": true, "refusals": ["The book does not say that."]}

    Any model may have a card. A model without a card gets the default values.

    Args:
        only_quotes: whether the model answers only by quoting passages whose words the question has.
        refusals: the exact sentences that the model writes instead of an answer.
        limit: the key in ``LIMITS`` of the sentence that says why the model does not answer.
        languages: the languages that the model can answer about, if it was trained for some only; empty for any.
        overview: first words of an answer to a question about the whole text, such as "The text begins:"; "" if the
            card prescribes none.
    """

    only_quotes: bool = False
    refusals: tuple[str, ...] = ()
    overview: str = ""
    limit: str = ""
    languages: tuple[str, ...] = ()

    @property
    def has_limits(self) -> bool:
        """Whether there are questions at which the model would only guess."""
        return self.only_quotes or bool(self.languages)

    def would_guess(self, question: str, index: EvidenceIndex, text: BookIndex) -> bool:
        """Whether the model would only guess, so that passages are the answer.

        A model that only quotes guesses at every question but a request for a quotation whose words are in the book. A
        model that was trained for some languages guesses about a text in another one, and at a question about
        something that the book never mentions (measured in ``assets/starter``: it notices 60 % of these).

        Args:
            index, text: the indexes of the open document.
        """
        if self.only_quotes:
            return not asks_for_quotation(question, text)
        if not self.languages:
            return False
        language = language_of(text.document.text)
        strange = language is not None and language not in self.languages
        return strange or (asks_about_part(question) and bool(index.unmentioned(question)))

    def instead(self, found: bool) -> tuple[str, str]:
        """The two sentences in place of an answer: what is shown, and why the model does not answer.

        Args:
            found: whether there are passages for the question.
        """
        return FIT_BEST if found else NO_PASSAGE, LIMITS.get(self.limit, LIMITS[""])

    def lead(self, question: str) -> str:
        """The first words of the answer to a question, if the card prescribes them; else ""."""
        return self.overview if self.overview and asks_for_whole(question) else ""

    def refuses(self, answer: str) -> bool:
        """Whether an answer consists only of one of the model's refusals."""
        return " ".join(answer.split()) in self.refusals


class Denials:
    """Recognises a refusal while an answer grows. The beginning of the answer is held back as long as it may become a
    refusal, so that passages can take its place.

    Args:
        card: the card of the model that answers.
        begun: the words that the answer begins with.
    """

    def __init__(self, card: Abilities, begun: str = "") -> None:
        self._card = card
        self.begun = self._text = begun
        self._held: list[TextDelta] = []
        self.refused = False
        """Whether the answer was a refusal, or was stopped within one. Then its text was held back."""

    def pass_on(self, event: Event) -> tuple[Event, ...]:
        """Return the events that may be shown now: ``event``, later, or after those that were held back."""
        if isinstance(event, TextDelta):
            self._text += event.text
            self._held.append(event)
            if self._may_refuse():
                return ()
        elif isinstance(event, AnswerDone):
            self.refused = bool(self._text.strip()) and self._may_refuse()
            if self.refused:
                self._held.clear()
        else:
            return (event,)
        held, self._held = self._held, []
        return (*held, event) if isinstance(event, AnswerDone) else tuple(held)

    def _may_refuse(self) -> bool:
        said = " ".join(self._text.split())
        return any(refusal.startswith(said) for refusal in self._card.refusals)


def asks_for_quotation(question: str, text: BookIndex) -> bool:
    """Whether a question asks for a quotation by its words, and the book has these words one after the other. The words
    are in quotation marks, follow a request such as "Where does it say ...?", or are the whole question.
    """
    quoted = quoted_words(question)
    request = _REQUEST.match(question)
    if quoted:
        key = quoted[0]
    elif request or not _ASKS.search(question):
        key = question[request.end() if request else 0 :]
    else:
        return False
    found = check_quotation(text, key.strip(" \t\n.?!:"))
    return found is not None and found.verified


@lru_cache(maxsize=8)
def abilities(folder: str) -> Abilities:
    """Read the card of the model in this folder. The result has only default values if ``folder`` is a hub id, if it
    has no card, or if its card cannot be read.
    """
    try:
        if not os.path.lexists(Path(folder) / CARD):
            return Abilities()
        card = model_files.read_object(Path(folder) / CARD)
        refusals = tuple(str(words) for words in card.get("refusals", ()))
        return Abilities(
            bool(card.get("only_quotes")),
            refusals,
            overview=str(card.get("overview", "")),
            limit=str(card.get("limit", "")),
            languages=tuple(map(str, card.get("languages", ()))),
        )
    except (ModelError, TypeError) as error:
        logger.warning("%s of %s cannot be read: %s", CARD, folder, error)
        return Abilities()
