"""Checks which files may be opened in a model's folder: only regular files inside the folder, and none larger than a
model needs.

A folder is untrusted. A file in it may be an endless device, a pipe without a writer, a link that leads nowhere or out
of the folder, or terabytes of zeros. Libraries read whole files, so they may open a folder only after ``check``. This
module itself reads only small files, and imports only the standard library.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import ModelError

__all__ = ["TEMPORARY", "content", "read_object"]

SETTINGS = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer.json"
TEMPLATE = "chat_template.jinja"
TEMPLATES = "additional_chat_templates"
"""Name of the subfolder with chat templates other than ``TEMPLATE``."""
ABILITIES = "abilities.json"
INDEX = "model.safetensors.index.json"
TEMPORARY = "trifold-"
"""Beginning of the names of the program's folders in the system's folder for temporary files."""

_MEGABYTE = 1 << 20
MAX_VOCABULARY_BYTES = 256 * _MEGABYTE  # maximum bytes of a vocabulary file, ten times today's largest
_LARGEST = {
    SETTINGS: 4 * _MEGABYTE,
    GENERATION: _MEGABYTE,
    ABILITIES: _MEGABYTE,
    **dict.fromkeys(("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"), 16 * _MEGABYTE),
    **dict.fromkeys((TEMPLATE, "chat_template.json"), _MEGABYTE),
    INDEX: 50 * _MEGABYTE,
}
_TEMPLATE, _WEIGHTS = ".jinja", ".safetensors"
_VOCABULARIES = (".json", ".txt", ".model", ".tiktoken")
_READ = (*_VOCABULARIES, _TEMPLATE, _WEIGHTS)
"""Suffixes of the files that libraries read. Of these files, only weights may have any size, because they are mapped
into memory.
"""

_MOST_DIGITS = 100  # maximum digits of an integer; some settings contain a 31-digit integer that means "no limit"
_MOST_COUNTED = 1_000_000  # maximum value of settings that count something, such as layers, heads, experts or labels
_MOST_STATED = 10_000_000  # maximum value of other integer settings, except those that ``_NOT_COUNTED`` names
_MOST_LISTED = 10_000  # maximum number of values in a list, because transformers makes many copies of lists
_NOT_COUNTED = ("_id", "theta", "position", "window", "length", "tokens", "parameters", "bytes")
"""Substrings of names of settings. A setting whose name contains one of these substrings may have any value, because
transformers makes no list of that length.
"""

# Prefix of a model's folder in the hub's cache, and name of its subfolder with the files. The cache's model folders
# contain only links to these files.
_HUB = ("models--", "blobs")
_REMEDY = "Download the model again."


def folder_of(name: str) -> Path | None:
    """Find the folder of a model on this machine: the named folder, or the local copy of a hub id. None if this machine
    has neither.
    """
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, SETTINGS)
    except ValueError:  # ``name`` is not a valid hub id
        return None
    return Path(found).parent if isinstance(found, str) else None


def check(folder: Path) -> None:
    """Before a folder is loaded, check every file in it that may be opened.

    Raises:
        ModelError: as in ``check_file``.
    """
    for path in (*_listed(folder), *_listed(folder / TEMPLATES)):
        if path.suffix in _READ:
            check_file(path, folder)


def check_settings(folder: Path) -> None:
    """Check the files as ``check`` does, and the content of the settings.

    Raises:
        ModelError: as in ``check``; or the settings are missing, are not a JSON object, or have a number that is too
            large or a list that is too long.
    """
    check(folder)
    if not (folder / SETTINGS).exists():
        raise ModelError(f"The model folder {folder} has no {SETTINGS} that can be read.", _REMEDY)
    _check_counts(read_object(folder / SETTINGS))
    if (folder / GENERATION).exists():
        read_object(folder / GENERATION)


def _check_counts(stated: dict[str, Any]) -> None:
    """Refuse impossible numbers of layers or labels, because transformers makes lists as long as these numbers when it
    reads settings. Refuse long lists, because transformers copies them.

    Raises:
        ModelError: a number is too large, or a list too long; the message names the setting and its value or length.
    """
    left: list[tuple[str, Any]] = [("", stated)]
    while left:
        key, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
        elif isinstance(value, list):
            if len(value) > _MOST_LISTED:
                raise ModelError(f"{SETTINGS} cannot be used: {key} has {len(value):,} values.", _REMEDY)
            left += ((key, each) for each in value)
        most = _MOST_COUNTED if key.startswith(("num_", "n_")) or "layer" in key else _MOST_STATED
        if type(value) is int and value > most and not any(part in key for part in _NOT_COUNTED):
            raise ModelError(f"{SETTINGS} cannot be used: {key} is {value}.", _REMEDY)


def check_file(path: Path, folder: Path | None = None) -> int:
    """Check one file. Returns its size in bytes.

    Args:
        folder: the model's folder; by default the folder of the file.

    Raises:
        ModelError: the file is missing or not regular, is outside the folder, or is larger than any model needs.
    """
    try:
        seen, place = path.stat(), path.resolve(strict=True)
    except (OSError, RuntimeError) as error:  # up to Python 3.12, a cycle of links raises a RuntimeError
        raise ModelError(f"{path.name} leads to nothing that can be read.", _REMEDY) from error
    if not stat.S_ISREG(seen.st_mode):
        raise ModelError(f"{path.name} is not an ordinary file.", _REMEDY)
    if not _is_own(place, (folder or path.parent).resolve()):
        raise ModelError(
            f"{path.name} is a link that leads out of its folder.", "Put the file itself into the model's folder."
        )
    largest = _LARGEST.get(path.name, _LARGEST[TEMPLATE] if path.suffix == _TEMPLATE else None)
    if largest is None and path.suffix != _WEIGHTS:
        largest = MAX_VOCABULARY_BYTES
    if largest is not None and seen.st_size > largest:
        raise ModelError(f"{path.name} has {seen.st_size / 1e6:,.0f} MB, which no model needs.", _REMEDY)
    return seen.st_size


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a small file.

    Raises:
        ModelError: ``check_file`` refuses the file, or the file holds no object.
    """
    return object_in(content(path), path.name)


def content(path: Path) -> bytes:
    """Read the content of a file.

    Raises:
        ModelError: ``check_file`` refuses the file, or the system cannot read it.
    """
    check_file(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {error.strerror}.", "Check the folder of the model.") from error


def object_in(content: bytes, file: str) -> dict[str, Any]:
    """Parse a file's content as a JSON object.

    Raises:
        ModelError: the content is not a JSON object, an object has the same key twice, or an integer has more than
            ``_MOST_DIGITS`` digits.
    """
    try:
        value = json.loads(content, object_pairs_hook=_once, parse_int=_number)
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is damaged: no JSON can be read in it.", _REMEDY) from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} is damaged: it holds no JSON object.", _REMEDY)
    return value


def _number(digits: str) -> int:
    """Parse an integer. Refuses integers of more than ``_MOST_DIGITS`` digits. The limit keeps integers small enough to
    be converted to floats.
    """
    if len(digits) > _MOST_DIGITS:
        raise ValueError("a number is too long")
    return int(digits)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make a dictionary from the pairs of a JSON object. Refuses a key that occurs twice, because its value would be
    ambiguous.
    """
    if len({name for name, _ in pairs}) != len(pairs):
        raise ValueError("a name stands twice")
    return dict(pairs)


def tokenizer_files(folder: Path) -> list[Path]:
    """The files of a folder that may decide how text becomes tokens."""
    others = (SETTINGS, GENERATION, INDEX, ABILITIES, "chat_template.json")
    return [path for path in _listed(folder) if path.suffix in _VOCABULARIES and path.name not in others]


def _listed(folder: Path) -> Iterator[Path]:
    """The paths in a folder, sorted by name, without the contents of subfolders. Empty if there is no folder."""
    try:
        names = sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise ModelError(
            f"The folder {folder} cannot be read: {error.strerror}.", "Check the permissions of the folder."
        ) from error
    yield from (folder / name for name in names)


def _is_own(place: Path, folder: Path) -> bool:
    """Whether the file ``place``, with links resolved, is inside ``folder``, or in the hub cache's folder of a model's
    files (``_HUB``).
    """
    beginning, end = _HUB
    in_cache = place.parent.name == end and place.parent.parent.name.startswith(beginning)
    return place.is_relative_to(folder) or in_cache
