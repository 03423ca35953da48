"""Reads a model's card, a JSON file in the model's folder: whether the model only quotes, and its refusals."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.citations import UNQUOTED
from engine import model_files
from engine.errors import ModelError
from engine.passages import asks_for_whole

logger = logging.getLogger(__name__)

CARD = "abilities.json"
ADVICE = (
    "The built-in demo only finds passages, by words that stand in them. For a real conversation fetch the reader "
    "(1.1 GB); the settings have a small model too (93 MB, for short documents) and larger ones. In the terminal: "
    "--model reader."
)


@dataclass(frozen=True)
class Abilities:
    """A model's description for the page, read from the file ``CARD`` in its folder, if there is one.

        {"only_quotes": true, "refusals": ["The book does not say that."]}

    Any model may have a card. A model without a card gets the default values.

    Args:
        only_quotes: whether the model answers only by quoting passages that share words with the question.
        refusals: the exact sentences that the model writes instead of an answer.
        overview: first words of an answer to a question about the whole text, such as "The text begins:"; "" if the
            card prescribes none.
    """

    only_quotes: bool = False
    refusals: tuple[str, ...] = ()
    overview: str = ""

    def lead(self, question: str) -> str:
        """The first words of the answer to a question, if the card prescribes them; else ""."""
        return self.overview if self.overview and asks_for_whole(question) else ""

    def refuses(self, answer: str) -> bool:
        """Whether an answer consists only of one of the model's refusals."""
        return " ".join(answer.split()) in self.refusals

    def supported(self, record: Mapping[str, Any], answer: str) -> dict[str, Any]:
        """Return ``record``, the evidence of an answer (``app.citations``). For a refusal, only the evidence of quoted
        words is kept, because the sentences of a refusal say nothing about the book that a page could support.
        """
        if not self.refuses(answer):
            return dict(record)
        chips = [chip for chip in record.get("chips", ()) if chip["kind"] not in UNQUOTED]
        return {name: kept for name, kept in record.items() if name != "missing"} | {"chips": chips}


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
        return Abilities(bool(card.get("only_quotes")), refusals, str(card.get("overview", "")))
    except (ModelError, TypeError) as error:
        logger.warning("%s of %s cannot be read: %s", CARD, folder, error)
        return Abilities()
