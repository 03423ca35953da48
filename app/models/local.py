"""Finds models on this machine: in folders that the user names, in Trifold's own downloads, and in the cache of Hugging
Face's tools.

Downloads are in the folder ``models`` of the data folder, in a subfolder OWNER/NAME for each model. This module
downloads nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from app.core.settings import SHORT_NAMES, is_any_gguf, is_gguf, is_hub_gguf, is_hub_id
from app.models import gguf_files, hub_gguf
from app.models.gguf_files import GgufFile
from app.models.hub import MARKER
from app.models.short_names import SOURCES
from engine.errors import ModelError, ModelNotFound
from engine.model import weights

_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")


class LocalModels:
    """The models on this machine.

    Args:
        folder: the folder of Trifold's own downloads.
        environ: environment variables. They may name the cache of Hugging Face's tools.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str] = os.environ) -> None:
        self._folder = folder
        self._environ = environ

    def own(self, name: str) -> Path:
        """Return Trifold's own folder for a model: for the download if ``name`` is a hub id or a short name, for the
        settings if it is a GGUF file. The folder need not exist.

        Raises:
            ModelNotFound: the name is not a hub id, or there is no such file.
        """
        if name in SHORT_NAMES:
            return self._folder / name
        if is_gguf(name):
            return gguf_files.folder_of(self._folder, name)
        if is_hub_gguf(name):
            return hub_gguf.folder_of(self._folder, name)
        if not _ID.fullmatch(name) or ".." in name:
            raise ModelNotFound(f"{name} is not the name of a model on the hub.", "Its name has the form owner/name.")
        owner, _, title = name.partition("/")
        return self._folder / owner / title

    def find(self, name: str) -> str | None:
        """Return what the engine has to load: a folder, or the hub id of a model in the cache of Hugging Face's tools.
        Return None if the model is not complete on this machine.

        Raises:
            ModelNotFound: the name is neither a folder or GGUF file on this machine nor a hub id.
            ModelError: the weights in the folder are damaged.
        """
        if name in SHORT_NAMES:
            return str(self.own(name)) if self._made(name) else None
        if is_any_gguf(name):
            return str(self.own(name)) if gguf_files.is_made(self.own(name)) else None
        if not is_hub_id(name):
            folder = Path(name).expanduser()
            if not folder.is_dir():
                if folder.is_file():
                    raise ModelNotFound(f"{name} is neither a model folder nor a GGUF file (.gguf).", "Check the path.")
                raise ModelNotFound(f"There is no folder {name}.", "Check the path.")
            weights.check_folder(folder)
            return str(folder)
        own = self.own(name)
        if (own / MARKER).is_file():
            weights.check_folder(own)
            return str(own)
        cached = self._cached(name)
        return name if cached is not None and _is_whole(cached) else None

    def folder(self, name: str) -> Path | None:
        """Return the folder with a model's settings; None if the model is not on this machine. If ``name`` is a path,
        it is returned even if it does not exist.
        """
        if name in SHORT_NAMES:
            return self._made(name)
        if is_any_gguf(name):
            return self.own(name) if gguf_files.is_made(self.own(name)) else None
        if not is_hub_id(name):
            return Path(name).expanduser()
        own = self.own(name)
        return own if (own / MARKER).is_file() else self._cached(name)

    def is_at_hand(self, name: str) -> bool:
        """Whether the model can be loaded without a network. A model with a short name may first have to be built from
        its download.
        """
        if name in SHORT_NAMES:
            return SOURCES[name].is_at_hand(self._folder, name)
        if is_gguf(name):
            return Path(name).expanduser().is_file()
        return self.folder(name) is not None

    def gguf_files(self) -> list[GgufFile]:
        """Return the GGUF files of LM Studio, Ollama and llama.cpp on this machine."""
        return gguf_files.found(self._environ)

    def _made(self, name: str) -> Path | None:
        return self.own(name) if SOURCES[name].is_made(self._folder, name) else None

    def size(self, name: str) -> int:
        """Return how many bytes of a model's own folder are on disk, an unfinished download included."""
        folder = self.own(name)
        return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else 0

    def _cached(self, name: str) -> Path | None:
        """Return the folder of the newest revision in the cache of Hugging Face's tools; None if there is none."""
        cache = self._hub_cache() / f"models--{name.replace('/', '--')}"
        try:
            revision = (cache / "refs" / "main").read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        folder = cache / "snapshots" / revision
        return folder if revision and Path(revision).name == revision and folder.is_dir() else None

    def _hub_cache(self) -> Path:
        if self._environ.get("HF_HUB_CACHE"):
            return Path(self._environ["HF_HUB_CACHE"]).expanduser()
        if self._environ.get("HF_HOME"):
            return Path(self._environ["HF_HOME"]).expanduser() / "hub"
        return Path(self._environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def _is_whole(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file() and weights.check_folder(folder) > 0
    except ModelError:  # another tool's download is unfinished; this program cannot continue it
        return False
