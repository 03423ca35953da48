"""What a model can do, by its own card: what is an answer of it at all, and what is a refusal."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

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
    """A model's own description for the page: the card ``CARD`` in its folder, where there is one.

        {"only_quotes": true, "refusals": ["The book does not say that."]}

    Any model may have a card; most have none, and nothing is assumed of those.

    Args:
        only_quotes: the model finds passages by words that stand in them and does nothing else.
        refusals: what it says instead of an answer, word for word.
        overview: how an answer about the whole text begins, for a model whose own first words would claim more than
            that it quotes some passages ("The text begins:").
    """

    only_quotes: bool = False
    refusals: tuple[str, ...] = ()
    overview: str = ""

    def lead(self, question: str) -> str:
        """The first words of the answer, where they are given."""
        return self.overview if self.overview and asks_for_whole(question) else ""

    def refuses(self, answer: str) -> bool:
        """Whether this is no answer: all of it is one of the model's refusals."""
        return " ".join(answer.split()) in self.refusals


@lru_cache(maxsize=8)
def abilities(folder: str) -> Abilities:
    """Read the card of the model in this folder; empty for a name of the hub, or a card that cannot be read."""
    try:
        if not os.path.lexists(Path(folder) / CARD):
            return Abilities()
        card = model_files.read_object(Path(folder) / CARD)
        refusals = tuple(str(words) for words in card.get("refusals", ()))
        return Abilities(bool(card.get("only_quotes")), refusals, str(card.get("overview", "")))
    except (ModelError, TypeError) as error:
        logger.warning("%s of %s cannot be read: %s", CARD, folder, error)
        return Abilities()
