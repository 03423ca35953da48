"""Whether a draft speaks its target's vocabulary, told from two small files before any weights are fetched.

The engine checks the same with the tokenizers themselves when it loads them; this only keeps people from downloading
a draft that would be refused.
"""

from __future__ import annotations

import json
from pathlib import Path

SHARED = 0.95
"""A draft must know this share of the tokens by the same ids (as in ``engine.models.check_vocabulary``)."""

_FILE = "tokenizer.json"


def fits(target: Path, draft: Path) -> bool | None:
    """Whether two model folders share a vocabulary; None where it cannot be told from their files."""
    theirs, ours = _tokens(target), _tokens(draft)
    if not theirs or not ours:
        return None
    both = theirs.keys() & ours.keys()
    alike = all(theirs[token] == ours[token] for token in both)
    return alike and len(both) >= SHARED * max(len(theirs), len(ours))


def _tokens(folder: Path) -> dict[str, int]:
    try:
        content = json.loads((folder / _FILE).read_bytes())
        vocabulary = content["model"]["vocab"]
        added = {entry["content"]: entry["id"] for entry in content.get("added_tokens", ())}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    if isinstance(vocabulary, list):  # unigram models: (token, score) in the order of ids
        vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
    return {**vocabulary, **added}
