"""Finds GGUF files that LM Studio, Ollama and llama.cpp downloaded, and prepares them for the engine.

Only the usual folders of these programs are searched. The user can name any other file by its path. A file's header is
read in a child process with limited memory and time (``app.readers.gguf_facts``). Before the engine uses a file for the
first time, this command writes the file's settings and vocabulary into Trifold's own folder FOLDER:

    python -m app.models.gguf_files get FILE FOLDER

The weights are not copied. The engine reads them from the GGUF file (``engine.model.gguf``).
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from app.core.settings import EXPANDED_FOLDER, GGUF_SUFFIX, OLLAMA_BLOB, tried_folder_of
from app.core.whole_files import write_whole
from app.models import hub
from app.models.hub import MARKER, PARTS, Say
from app.readers.parsed import Limits, packed
from app.readers.parser_process import BUSY, ChildFailed, run_in_child
from engine.errors import ModelError, ModelNotFound, on_one_line
from engine.model import gguf_settings, weights
from engine.model.families.gguf_layout import Header
from engine.model.gguf_header import BLOCKS, SplitFile, parts_of
from engine.plan import ModelShape, card_bytes_per_weight, fitted_size, shape_of

logger = logging.getLogger(__name__)

_OLLAMA_KIND = "application/vnd.ollama.image.model"
_MOST_FILES = 60  # maximum number of files that are found in all folders together
_MOST_MANIFEST = 1 << 20  # maximum bytes of an Ollama manifest; a larger manifest is ignored
_LIMITS = Limits(memory_bytes=1_000_000_000, seconds_per_page=20.0, seconds=20.0)
_VOCABULARY_BYTES = 50_000_000  # estimated maximum bytes of a vocabulary's files
_FORMAT = 2  # version of the written settings; settings of an older version are written again
_OTHER_ROUNDING = "Choose the file of another rounding, such as Q4_K_M."

# names of quantization formats as in llama.cpp, keyed by ``general.file_type``
_ROUNDED = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    25: "IQ4_NL",
    30: "IQ4_XS",
    32: "BF16",
    38: "MXFP4",
}


@dataclass(frozen=True)
class GgufFile:
    """A GGUF file of another program. ``owner`` is the program that downloaded it, and ``title`` is the file's name in
    that program.
    """

    path: Path
    title: str
    owner: str


@dataclass(frozen=True)
class GgufModel:
    """A model, as described by the header of its GGUF file. ``shape``: its dimensions. ``rounded``: name of the
    quantization format; "" if unknown. ``licence``: as the file states it; "" if it states none. ``files``: the file,
    or all parts of a split model.
    """

    shape: ModelShape
    rounded: str
    licence: str
    files: tuple[Path, ...]

    def note(self, owner: str = "") -> str:
        """Return a note about the model's origin and format, for the user who chooses."""
        of = f" of {owner}" if owner else ""
        rounded = f", weights in {self.rounded}" if self.rounded else ""
        exact = "Without a GPU it is opened as it is stored: answers are exact for its weights."
        return f"A GGUF file{of}{rounded}. {exact}"


# Finding files -------------------------------------------------------------------------------------------------------


def found(environ: Mapping[str, str] = os.environ, system: str = sys.platform) -> list[GgufFile]:
    """Return the files in the folders of LM Studio, Ollama and llama.cpp, without duplicates, sorted by title."""
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
            yield GgufFile(path, title_of(path), "LM Studio")


def _ollama(environ: Mapping[str, str], home: Path) -> Iterator[GgufFile]:
    named = environ.get("OLLAMA_MODELS")
    service = Path("/usr/share/ollama/.ollama/models")  # folder of Ollama if it runs as a system service on Linux
    for folder in [Path(named).expanduser()] if named else [home / ".ollama" / "models", service]:
        for manifest in _listed(folder / "manifests" / "registry.ollama.ai", "*/*/*"):
            digest = _model_digest(manifest)
            blob = folder / "blobs" / digest.replace(":", "-")
            if digest and blob.is_file():
                owner = "" if manifest.parent.parent.name == "library" else f"{manifest.parent.parent.name}/"
                yield GgufFile(blob, on_one_line(f"{owner}{manifest.parent.name}:{manifest.name}"), "Ollama")


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
        yield GgufFile(path, title_of(path), "llama.cpp")


def _listed(folder: Path, pattern: str) -> list[Path]:
    try:
        files = sorted(path for path in folder.glob(pattern) if path.is_file() and parts_of(path)[0] == path)
        return files[:_MOST_FILES]
    except OSError as error:  # the folder may belong to another user
        logger.info("%s cannot be looked through: %s", folder, error.strerror)
        return []


def _model_digest(manifest: Path) -> str:
    """Return the digest of the weights that an Ollama manifest names; "" if it names none."""
    try:
        if manifest.stat().st_size > _MOST_MANIFEST:
            return ""
        layers = json.loads(manifest.read_bytes())["layers"]
        digest = next(str(layer["digest"]) for layer in layers if layer["mediaType"] == _OLLAMA_KIND)
    except (OSError, ValueError, KeyError, TypeError, StopIteration, RecursionError):
        return ""
    kind, _, number = digest.partition(":")
    return digest if kind == "sha256" and number.isalnum() else ""


# Reading a file's header ---------------------------------------------------------------------------------------------


def look(path: Path) -> GgufModel:
    """Read the header of a file. If it is a part of a split model, the headers of all parts are read.

    Raises:
        ModelNotFound: there is no such file, or a part is missing.
        ModelError: the file is damaged, or GGUF files of its architecture are not supported.
    """
    seen = _seen(path)
    for file, each in seen:
        if not stat.S_ISREG(each.st_mode):
            raise ModelError(f"{file.name} is not an ordinary file.", "Choose another one.")
    answer = _looked(tuple((str(file), each.st_mtime_ns, each.st_size) for file, each in seen))
    if isinstance(answer, ModelError):
        raise answer
    return answer


def _seen(path: Path) -> list[tuple[Path, os.stat_result]]:
    """Return the path and the ``os.stat`` result of a file, or of each part of a split model in order.

    Raises:
        ModelNotFound: the file or a part is missing.
    """
    seen, parts = [], parts_of(path)
    for part in parts:
        try:
            seen.append((part, part.stat()))
        except OSError as error:
            if part == path:
                raise ModelNotFound(f"There is no file {path}.", "Check the path.") from error
            raise ModelNotFound(
                f"{part.name} is missing: the model of {path.name} has {len(parts)} parts.",
                "Put all parts into one folder.",
            ) from error
    return seen


@lru_cache(maxsize=2 * _MOST_FILES)
def _looked(files: tuple[tuple[str, int, int], ...]) -> GgufModel | ModelError:
    try:
        paths = tuple(Path(path) for path, _, _ in files)
        return _model(_header(paths), paths, sum(size for _, _, size in files))
    except ModelError as error:
        return error


def _header(paths: Sequence[Path]) -> dict[str, Any]:
    request = {"work": "gguf", "paths": [packed(path) for path in paths]}
    name = paths[0].name
    try:
        with closing(run_in_child(request, _LIMITS, time.monotonic() + _LIMITS.seconds)) as heard:
            for message in heard:
                if message["type"] == "refused":
                    raise ModelError(f"{name} {message['cause']}", message["remedy"])
                if message["type"] == "answer":
                    return dict(message["value"])
    except ChildFailed as failure:
        logger.info("%s: %s", name, failure)
        if failure.reason == "busy":
            raise ModelError(f"The header of {name} was not read in time.", BUSY) from failure
    raise ModelError(f"{name} broke the reader of its header.", "It is damaged; get the file again.")


def _model(facts: dict[str, Any], paths: tuple[Path, ...], file_bytes: int) -> GgufModel:
    fields, file = facts["fields"], paths[0].name
    header = Header(fields, facts["names"], facts["vocabulary"], file)
    settings = gguf_settings.settings_of(header)
    if not BLOCKS.keys() >= set(facts["kinds"]):
        raise ModelError(f"{file} holds weights in a block format that is not supported.", _OTHER_ROUNDING)
    settings["stored_bytes_per_weight"] = file_bytes / max(1, facts["parameters"])
    settings["card_bytes_per_weight"] = card_bytes_per_weight(settings["stored_bytes_per_weight"], facts["kinds"])
    weights_of_blocks = sum(count for _, count in facts["blocks"])
    fitted = sum(fitted_size(kind, count) for kind, count in facts["blocks"])
    settings["fitted_bytes_per_weight"] = fitted / max(1, weights_of_blocks)
    rounded = _ROUNDED.get(fields.get("general.file_type"), "")
    shape = shape_of(settings, file, file_bytes)
    return GgufModel(shape, rounded, str(fields.get("general.license", "")), paths)


# The folder that the engine loads ------------------------------------------------------------------------------------


def folder_of(models: Path, name: str) -> Path:
    """Return the folder for the settings of a GGUF file. The folder's name contains a hash of the file's size and
    modification time, so a changed file gets a new folder.
    """
    seen = _seen(Path(name).expanduser().absolute())
    named = " ".join(f"{path.resolve()} {each.st_size} {each.st_mtime_ns}" for path, each in seen)
    key = hashlib.sha256(f"{_FORMAT} {named}".encode()).hexdigest()[:16]
    return models / EXPANDED_FOLDER / key / title_of(seen[0][0])


def title_of(path: Path) -> str:
    """Return the title of a file: its name without the extension. A file of Ollama gets the model's name in Ollama."""
    if path.suffix.lower() == GGUF_SUFFIX:
        part = SplitFile.of(path.name)
        return on_one_line(part.title if part else path.stem)
    resolved = path.resolve()
    known = next(
        (file.title for file in found() if file.path.resolve() == resolved), path.name[: len(OLLAMA_BLOB) + 12]
    )
    return known.replace("/", "-").replace(":", "-")


def is_made(folder: Path) -> bool:
    """Whether the folder has a file's complete settings, and the file has not changed since they were written."""
    try:
        return (folder / MARKER).is_file() and weights.check_folder(folder) > 0
    except ModelError:  # weights files are missing or damaged
        return False


# The program ---------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Run one command. The last line of output reports the result. Return exit status 0 or 1."""
    hub.read_quietly()
    _, name, folder = arguments
    return hub.as_program(lambda say: get(Path(name).expanduser(), Path(folder), say))


def get(path: Path, folder: Path, say: Say) -> None:
    """Write a file's settings and vocabulary into a folder.

    Raises:
        TrifoldError: the file cannot be read, or the disk is too full.
    """
    with hub.reading_words(path.name, partial(broken, path)):
        model = look(path)
        folder.mkdir(parents=True, exist_ok=True)
        hub.check_disk(folder, f"The vocabulary of {path.name}", _VOCABULARY_BYTES)
        make(path, model, folder, say)
        say("done", revision=folder.parent.name, licence=model.licence)


def make(path: Path, model: GgufModel, folder: Path, say: Say) -> None:
    """Write the settings and the vocabulary, then the marker file that makes the folder count as complete. Any
    exception of the libraries that read the file is passed on.
    """
    from engine import foreign
    from engine.model import gguf

    say("building", done=0, total=1)
    readme = f"# {title_of(path)}\n\nSettings and vocabulary of {path}, made by Trifold. Its weights stay there.\n"
    shutil.rmtree(folder / PARTS, ignore_errors=True)  # partial files of a process that was killed
    (folder / PARTS).mkdir()
    with tempfile.TemporaryDirectory(dir=folder / PARTS) as made:
        pieces = gguf.describe(model.files, Path(made), readme)
        for file in Path(made).iterdir():
            os.replace(file, folder / file.name)
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    marker = {"id": str(path), "revision": folder.parent.name, "licence": model.licence}
    write_whole(folder / MARKER, json.dumps(marker, indent=1))
    foreign.keep(folder, pieces, tried_folder_of(folder))


def broken(path: Path, error: Exception) -> ModelError:
    logger.error("%s cannot be opened", path, exc_info=error)
    return ModelError(f"{path.name} cannot be opened: {type(error).__name__}: {error}.", "Choose another file.")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
