"""What the hub has of a model: its revision and the files that we want of it. Used by ``fetch`` alone.

Old models often hold pickled weights only, which are never taken. For many of them the hub's own converter has proposed
the same weights in safetensors, as a pull request that nobody merged: that is taken, as transformers itself does, where
it is the one commit on top of what the maker published.
"""

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

CONVERTER = "SFconvertbot"
"""The hub's own account that converts pickled weights; nobody else's pull requests are looked at."""


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
    """What the hub says about a model: its revision (a commit), its files that we want, and its licence.

    ``converted`` is the pull request of the hub's converter that the files come from, "" for what the maker published.
    """

    id: str
    revision: str
    files: tuple[File, ...]
    licence: str
    gated: bool
    converted: str = ""


def look_up(name: str) -> Listing:
    """Ask the hub for the list of a model's files.

    Raises:
        ModelError: there are no weights in safetensors, or no settings.
        Exception: whatever the hub's library raises (``hub_words`` has the words for it).
    """
    from huggingface_hub import HfApi

    hub = HfApi()
    info = hub.model_info(name, files_metadata=True, timeout=FIRST_ANSWER_SECONDS)
    files, converted = _files(info), ""
    if not _has_weights(files) and (proposal := _conversion(hub, name, str(info.sha))):
        info = hub.model_info(name, revision=proposal, files_metadata=True, timeout=FIRST_ANSWER_SECONDS)
        files, converted = _files(info), proposal
    if not _has_weights(files):
        raise ModelError(
            f"{name} offers no weights in safetensors.",
            "Its other formats can run code when opened and are refused; choose another copy of this model.",
        )
    if not any(file.name == "config.json" for file in files):
        raise ModelError(f"{name} has no config.json: it is not a model of transformers.", "Choose another.")
    card: Any = info.card_data or {}
    licence = card.get("license_name") or card.get("license") or ""
    files.sort(key=lambda file: (file.is_weights, file.name))
    return Listing(name, str(info.sha), tuple(files), str(licence), bool(info.gated), converted)


def _conversion(hub: Any, name: str, published: str) -> str | None:
    """The pull request in which the converter added safetensors to exactly what is published."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        for proposal in hub.get_repo_discussions(
            name, author=CONVERTER, discussion_type="pull_request", discussion_status="open"
        ):
            if proposal.author != CONVERTER or not proposal.is_pull_request or proposal.status != "open":
                continue
            reference = str(proposal.git_reference)
            commits = hub.list_repo_commits(name, revision=reference)
            if len(commits) > 1 and commits[1].commit_id == published:  # not of weights that were replaced since
                return reference
    except HfHubHTTPError:  # its maker has turned discussions off: then nothing was proposed
        return None
    return None


def _files(info: Any) -> list[File]:
    return [_file(sibling) for sibling in info.siblings or () if _wanted(sibling.rfilename)]


def _has_weights(files: list[File]) -> bool:
    return any(file.is_weights for file in files)


def _file(sibling: Any) -> File:
    digest = f"sha256:{sibling.lfs.sha256}" if sibling.lfs else f"blob:{sibling.blob_id}"
    return File(sibling.rfilename, int(sibling.size or 0), digest)


def _wanted(name: str) -> bool:
    """Files of the first level only: folders hold the same model in other formats."""
    plain = "/" not in name and "\\" not in name
    refused = any(fnmatch.fnmatchcase(name, pattern) for pattern in UNWANTED)
    return plain and not refused and any(fnmatch.fnmatchcase(name, pattern) for pattern in PATTERNS)
