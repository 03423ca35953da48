"""What the hub has of a model: its revision and the files that we want of it. Used by ``fetch`` alone."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Any

from engine.errors import ModelError

PATTERNS = (
    *("config.json", "generation_config.json", "*.safetensors", "model.safetensors.index.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"),
)
UNWANTED = ("consolidated*", "adapter_*")  # the same weights a second time, and pieces of other models

FIRST_ANSWER_SECONDS = 6.0


@dataclass(frozen=True)
class File:
    """A file on the hub. ``digest`` is "sha256:..." or git's "blob:..."."""

    name: str
    size: int
    digest: str

    @property
    def is_weights(self) -> bool:
        return self.name.endswith(".safetensors")


@dataclass(frozen=True)
class Listing:
    """What the hub says about a model: its revision (a commit), its files that we want, and its licence."""

    id: str
    revision: str
    files: tuple[File, ...]
    licence: str
    gated: bool


def look_up(name: str) -> Listing:
    """Ask the hub for the list of a model's files."""
    from huggingface_hub import HfApi

    info = HfApi().model_info(name, files_metadata=True, timeout=FIRST_ANSWER_SECONDS)
    files = [_file(sibling) for sibling in info.siblings or () if _wanted(sibling.rfilename)]
    if not any(file.is_weights for file in files):
        raise ModelError(
            f"{name} offers no weights in safetensors.",
            "Its other formats can run code when opened and are refused; choose another copy of this model.",
        )
    if not any(file.name == "config.json" for file in files):
        raise ModelError(f"{name} has no config.json: it is not a model of transformers.", "Choose another.")
    card: Any = info.card_data or {}
    licence = card.get("license_name") or card.get("license") or ""
    files.sort(key=lambda file: (file.is_weights, file.name))
    return Listing(name, str(info.sha), tuple(files), str(licence), bool(info.gated))


def _file(sibling: Any) -> File:
    digest = f"sha256:{sibling.lfs.sha256}" if sibling.lfs else f"blob:{sibling.blob_id}"
    return File(sibling.rfilename, int(sibling.size or 0), digest)


def _wanted(name: str) -> bool:
    """Files of the first level only: folders hold the same model in other formats."""
    plain = "/" not in name and "\\" not in name
    refused = any(fnmatch.fnmatchcase(name, pattern) for pattern in UNWANTED)
    return plain and not refused and any(fnmatch.fnmatchcase(name, pattern) for pattern in PATTERNS)
