"""GGUF files that a person has already: where LM Studio, Ollama and llama.cpp keep them, and what can answer of them.

Looks into the known folders and nowhere else; a file elsewhere is named by its path. Its header is read in the bounded
child process (``app.readers.gguf``). To answer, its settings and vocabulary are written once into a folder of our own,
by this program:

    python -m app.models.gguf get FILE FOLDER

Its weights stay where they are and as they are (``engine.model.gguf``).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.core.settings import EXPANDED_FOLDER, GGUF_SUFFIX, OLLAMA_BLOB
from app.models import hub
from app.models.hub import MARKER, PARTS, Say
from app.readers.parsed import Limits
from app.readers.sandbox import ChildFailed, run_in_child
from engine.errors import ModelError, ModelNotFound, ResourceError, TrifoldError
from engine.model import weights
from engine.plan import ModelShape, shape_of

logger = logging.getLogger(__name__)

_OLLAMA_KIND = "application/vnd.ollama.image.model"
_MOST_FILES = 60  # of all folders together
_MOST_MANIFEST = 1 << 20  # bytes
_LIMITS = Limits(memory_bytes=1_000_000_000, seconds_per_page=20.0, seconds=20.0)
_VOCABULARY_BYTES = 50_000_000  # of the largest one, written

# Kinds of models that transformers reads from GGUF and the engine answers with: architecture there and here.
_KINDS = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text"}
_VOCABULARIES = ("gpt2", "llama")
_NUMBERS = {
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "context_length": "max_position_embeddings",
}
# What llama.cpp calls the kinds of rounding, by ``general.file_type``.
_ROUNDED = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 32: "BF16"},
}
_ELSEWHERE = "Many more models are read as safetensors: a folder of this machine, or owner/name on the hub."


@dataclass(frozen=True)
class GgufFile:
    """A file in a place that is known. ``owner`` is the program that it belongs to; ``title`` what that calls it."""

    path: Path
    title: str
    owner: str


@dataclass(frozen=True)
class GgufModel:
    """What a file's header says. ``changes`` are settings that transformers does not take from it."""

    shape: ModelShape
    rounded: str
    licence: str
    changes: Mapping[str, Any]

    def note(self, owner: str = "") -> str:
        """What it is and takes, for whoever is to choose."""
        of = f" of {owner}" if owner else ""
        rounded = f", weights in {self.rounded}" if self.rounded else ""
        return f"A GGUF file{of}{rounded}, opened as it is stored: answers are exact for these weights."


# Which files there are -----------------------------------------------------------------------------------------------


def found(environ: Mapping[str, str] = os.environ, system: str = sys.platform) -> list[GgufFile]:
    """The files in the folders of LM Studio, Ollama and llama.cpp, each once, in order of their titles."""
    home = Path(environ.get("USERPROFILE" if system == "win32" else "HOME") or Path.home())
    files: dict[Path, GgufFile] = {}
    for file in (*_lm_studio(home), *_ollama(environ, home), *_llama_cpp(environ, home, system)):
        files.setdefault(file.path, file)
        if len(files) >= _MOST_FILES:
            break
    return sorted(files.values(), key=lambda file: file.title.lower())


def _lm_studio(home: Path) -> Iterator[GgufFile]:
    for folder in (home / ".lmstudio" / "models", home / ".cache" / "lm-studio" / "models"):
        for path in _listed(folder, f"*/*/*{GGUF_SUFFIX}"):
            yield GgufFile(path, path.stem, "LM Studio")


def _ollama(environ: Mapping[str, str], home: Path) -> Iterator[GgufFile]:
    named = environ.get("OLLAMA_MODELS")
    service = Path("/usr/share/ollama/.ollama/models")  # where it runs for everybody on Linux
    for folder in [Path(named).expanduser()] if named else [home / ".ollama" / "models", service]:
        for manifest in _listed(folder / "manifests" / "registry.ollama.ai", "*/*/*"):
            digest = _model_digest(manifest)
            blob = folder / "blobs" / digest.replace(":", "-")
            if digest and blob.is_file():
                owner = "" if manifest.parent.parent.name == "library" else f"{manifest.parent.parent.name}/"
                yield GgufFile(blob, f"{owner}{manifest.parent.name}:{manifest.name}", "Ollama")


def _llama_cpp(environ: Mapping[str, str], home: Path, system: str) -> Iterator[GgufFile]:
    if environ.get("LLAMA_CACHE"):
        folder = Path(environ["LLAMA_CACHE"]).expanduser()
    elif system == "win32":
        folder = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "llama.cpp"
    elif system == "darwin":
        folder = home / "Library" / "Caches" / "llama.cpp"
    else:
        folder = Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "llama.cpp"
    for path in _listed(folder, f"*{GGUF_SUFFIX}"):
        yield GgufFile(path, path.stem, "llama.cpp")


def _listed(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(path for path in folder.glob(pattern) if path.is_file())[:_MOST_FILES]
    except OSError as error:  # somebody else's folder
        logger.info("%s cannot be looked through: %s", folder, error.strerror)
        return []


def _model_digest(manifest: Path) -> str:
    """The digest of the weights that a manifest of Ollama names; "" where it names none."""
    try:
        if manifest.stat().st_size > _MOST_MANIFEST:
            return ""
        layers = json.loads(manifest.read_bytes())["layers"]
        digest = next(str(layer["digest"]) for layer in layers if layer["mediaType"] == _OLLAMA_KIND)
    except (OSError, ValueError, KeyError, TypeError, StopIteration, RecursionError):
        return ""
    kind, _, number = digest.partition(":")
    return digest if kind == "sha256" and number.isalnum() else ""


# What is in one ------------------------------------------------------------------------------------------------------


def look(path: Path) -> GgufModel:
    """What a file holds.

    Raises:
        ModelNotFound: there is no such file.
        ModelError: it is damaged, or of a kind that is not read from GGUF.
    """
    try:
        seen = path.stat()
    except OSError as error:
        raise ModelNotFound(f"There is no file {path}.", "Check the path.") from error
    if not stat.S_ISREG(seen.st_mode):
        raise ModelError(f"{path.name} is no regular file.", "Choose another one.")
    answer = _looked(str(path), seen.st_mtime_ns, seen.st_size)
    if isinstance(answer, ModelError):
        raise answer
    return answer


@lru_cache(maxsize=2 * _MOST_FILES)
def _looked(path: str, _changed: int, file_bytes: int) -> GgufModel | ModelError:
    try:
        return _model(_header(Path(path)), Path(path).name, file_bytes)
    except ModelError as error:
        return error


def _header(path: Path) -> dict[str, Any]:
    request = {"work": "gguf", "path": str(path.resolve())}
    try:
        with closing(run_in_child(request, _LIMITS, time.monotonic() + _LIMITS.seconds)) as heard:
            for message in heard:
                if message["type"] == "refused":
                    raise ModelError(f"{path.name} {message['cause']}", message["remedy"])
                if message["type"] == "answer":
                    return dict(message["value"])
    except ChildFailed as failure:
        logger.info("%s: %s", path.name, failure)
    raise ModelError(f"{path.name} broke the reader of its header.", "It is damaged; get the file again.")


def _model(facts: dict[str, Any], file: str, file_bytes: int) -> GgufModel:
    fields = facts["fields"]
    architecture = str(fields.get("general.architecture", ""))
    kind = _KINDS.get(architecture)
    if kind is None or fields.get(f"{architecture}.expert_count"):
        named = f"{architecture} with experts" if kind else architecture or "nameless"
        raise ModelError(f"{file} holds a model of the kind {named}, which is not read from GGUF.", _ELSEWHERE)
    if fields.get("tokenizer.ggml.model") not in _VOCABULARIES:
        named = fields.get("tokenizer.ggml.model", "nameless")
        raise ModelError(f"{file} has a vocabulary of the kind {named}, which is not read from GGUF.", _ELSEWHERE)
    _check_positions(fields, architecture, facts["names"], file)
    if facts["lists"]:
        raise ModelError(f"{file} holds layers of several shapes, which are not read from GGUF.", _ELSEWHERE)
    numbers = {
        here: fields[f"{architecture}.{there}"]
        for there, here in _NUMBERS.items()
        if f"{architecture}.{there}" in fields
    }
    config = {
        "model_type": kind,
        "vocab_size": fields.get(f"{architecture}.vocab_size", facts["vocabulary"]),
        "tie_word_embeddings": "output.weight" not in facts["names"],
        "stored_bytes_per_weight": file_bytes / max(1, facts["parameters"]),
        **numbers,
    }
    shape = shape_of(config, file, file_bytes)
    changes = {"vocab_size": config["vocab_size"], **({"head_dim": shape.head_dim} if kind == "qwen3" else {})}
    rounded = _ROUNDED.get(fields.get("general.file_type"), "")
    return GgufModel(shape, rounded, str(fields.get("general.license", "")), changes)


def _check_positions(fields: Mapping[str, Any], architecture: str, names: list[str], file: str) -> None:
    """transformers takes none of what stretches positions from GGUF; of Llama 3 the engine knows it."""
    stretched = fields.get(f"{architecture}.rope.scaling.type", "none") != "none"
    if stretched or any(name.startswith("rope_factors") for name in names):
        raise ModelError(f"{file} has a window that was stretched, which is not read from GGUF.", _ELSEWHERE)
    turned = fields.get(f"{architecture}.rope.dimension_count")
    heads = fields.get(f"{architecture}.attention.head_count")
    usual = fields.get(f"{architecture}.attention.key_length")
    width = fields.get(f"{architecture}.embedding_length")
    if usual is None and isinstance(width, int) and isinstance(heads, int) and heads:
        usual = width // heads
    if turned is not None and turned != usual:
        raise ModelError(f"{file} turns a part of each head only, which is not read from GGUF.", _ELSEWHERE)


# The folder that the engine loads ------------------------------------------------------------------------------------


def folder_of(models: Path, name: str) -> Path:
    """Where a file's settings belong: another place when the file has changed."""
    path = Path(name).expanduser().absolute()
    try:
        seen = path.stat()
    except OSError as error:
        raise ModelNotFound(f"There is no file {name}.", "Check the path.") from error
    key = hashlib.sha256(f"{path.resolve()} {seen.st_size} {seen.st_mtime_ns}".encode()).hexdigest()[:16]
    return models / EXPANDED_FOLDER / key / title_of(path)


def title_of(path: Path) -> str:
    """What a file is called: by its name, or as Ollama calls it."""
    if path.suffix.lower() == GGUF_SUFFIX:
        return path.stem
    resolved = path.resolve()
    known = next(
        (file.title for file in found() if file.path.resolve() == resolved), path.name[: len(OLLAMA_BLOB) + 12]
    )
    return known.replace("/", "-").replace(":", "-")


def is_made(folder: Path) -> bool:
    """Whether a file's settings are there, and the file is the one that it was."""
    try:
        return (folder / MARKER).is_file() and weights.check_folder(folder) > 0
    except ModelError:  # it is made anew
        return False


# The program ---------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """One command. The last line says how it ended; the exit status is 0 or 1."""
    os.environ.update(TQDM_DISABLE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")  # read on import
    _, name, folder = arguments
    return hub.as_program(lambda say: get(Path(name).expanduser(), Path(folder), say))


def get(path: Path, folder: Path, say: Say) -> None:
    """Write a file's settings and vocabulary into a folder.

    Raises:
        TrifoldError: it cannot be read, or there is no room for it.
    """
    try:
        model = look(path)
        folder.mkdir(parents=True, exist_ok=True)
        hub.check_disk(folder, f"The vocabulary of {path.name}", _VOCABULARY_BYTES)
        make(path, model, folder, say)
        say("done", revision=folder.parent.name, licence=model.licence)
    except TrifoldError:
        raise
    except MemoryError as error:
        raise ResourceError(f"There is not enough memory to open {path.name}.", "Close other programs.") from error
    except OSError as error:
        raise hub.disk_error(error) or _broken(path, error) from error
    except Exception as error:  # of libraries that read foreign formats; none may reach a person as it is
        raise _broken(path, error) from error


def make(path: Path, model: GgufModel, folder: Path, say: Say) -> None:
    """Write settings, vocabulary and marker. Raises what the libraries raise that read the file."""
    from engine.model import gguf

    say("building", done=0, total=1)
    readme = f"# {title_of(path)}\n\nSettings and vocabulary of {path}, made by Trifold. Its weights stay there.\n"
    shutil.rmtree(folder / PARTS, ignore_errors=True)  # of a run that was killed
    (folder / PARTS).mkdir()
    with tempfile.TemporaryDirectory(dir=folder / PARTS) as made:
        gguf.describe([path], Path(made), model.changes, readme)
        for file in Path(made).iterdir():
            os.replace(file, folder / file.name)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    written = folder / f"{MARKER}.new"
    marker = {"id": str(path), "revision": folder.parent.name, "licence": model.licence}
    written.write_text(json.dumps(marker, indent=1), encoding="utf-8")
    os.replace(written, folder / MARKER)


def _broken(path: Path, error: Exception) -> ModelError:
    logger.error("%s cannot be opened", path, exc_info=error)
    return ModelError(f"{path.name} cannot be opened: {type(error).__name__}: {error}.", "Choose another file.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
