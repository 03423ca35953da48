"""What a model says of itself that the page has to know: the card ``abilities.json`` in its folder, where there is one.

    {"only_quotes": true, "refusals": ["The book does not say that."]}

``only_quotes``: it finds passages by words that stand in them and does nothing else. ``refusals``: what it says instead
of an answer, word for word. Any model may have a card; most have none, and nothing is assumed of those.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

logger = logging.getLogger(__name__)

CARD = "abilities.json"
ADVICE = (
    "The built-in demo only finds passages, by words that stand in them. For answers in a model's own words, choose "
    "the starter in Settings (93 MB, early, for documents) or a larger model; in the terminal: --model starter."
)


@dataclass(frozen=True)
class Abilities:
    """See the module."""

    only_quotes: bool = False
    refusals: tuple[str, ...] = ()

    def refuses(self, answer: str) -> bool:
        """Whether this is no answer: all of it is one of the model's refusals."""
        return " ".join(answer.split()) in self.refusals


@lru_cache(maxsize=8)
def abilities(folder: str) -> Abilities:
    """Of the model in this folder; a name of the hub, or a card that cannot be read, promises nothing."""
    try:
        card = json.loads((Path(folder) / CARD).read_text(encoding="utf-8"))
        return Abilities(bool(card.get("only_quotes")), tuple(str(words) for words in card.get("refusals", ())))
    except FileNotFoundError:
        return Abilities()
    except (OSError, ValueError, AttributeError, TypeError) as error:
        logger.warning("%s of %s cannot be read: %s", CARD, folder, error)
        return Abilities()
