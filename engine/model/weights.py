"""Checks weights files before they are loaded: they must be safetensors files that are complete and match their
headers.

This module reads headers, never tensors. It compares every size that a header states with the file's size before it
allocates memory. The values of weights are not checked, because any values of the right shapes are a valid model. A
safetensors file has eight bytes with the length of the header, then the header in JSON, then the tensors without gaps
(https://huggingface.co/docs/safetensors). Imports only the standard library.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any

from engine.errors import ModelError
from engine.model_files import INDEX, TEMPORARY, object_in, read_object
from engine.model_files import check_file as check_regular

__all__ = ["check_folder"]

MAX_HEADER_BYTES = 100_000_000  # maximum bytes of a header, as in the safetensors library
SINGLE = "model.safetensors"

BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 8),
}
"""Bits of one value, keyed by safetensors' name of the dtype."""

GGUF_INDEX = "gguf.json"
"""Name of the index file in a model folder whose weights are in GGUF files outside the folder."""

_WHOLE_NUMBERS = ("I", "U", "BOOL")

_LENGTH_BYTES = 8
_REMEDY = "Download the model again."


def check_folder(folder: Path) -> int:
    """Check every weights file that loading the folder would open.

    Returns:
        the number of values in the weights.

    Raises:
        ModelError: there are no weights files, or a file is missing, cut off, damaged in its structure, or not a
            safetensors file.
    """
    if (folder / GGUF_INDEX).is_file():
        return int(gguf_index(folder)["parameters"])
    shards = _shards(folder)
    return sum(check_file(folder / name, expected) for name, expected in shards.items())


def gguf_index(folder: Path) -> dict[str, Any]:
    """Read the index of a folder whose weights lie in GGUF files (``engine.model.gguf``).

    Raises:
        ModelError: a GGUF file is missing or has changed.
    """
    index = read_object(folder / GGUF_INDEX)
    for file in index["files"]:
        path = Path(file["path"])
        try:
            seen = path.stat()
        except OSError as error:
            raise ModelError(
                f"{path.name}, the file of this model's weights, is gone.", "Choose the model again."
            ) from error
        if (seen.st_size, seen.st_mtime_ns) != (file["bytes"], file["changed"]):
            raise ModelError(f"{path.name} is no longer the file that it was.", "Choose the model again.")
    return index


def check_file(path: Path, expected: frozenset[str] = frozenset()) -> int:
    """Check the header of one safetensors file.

    Args:
        expected: names of tensors that the file must have.

    Returns:
        the number of values in the file.

    Raises:
        ModelError: the file is damaged, its header is too large, it lacks an expected tensor, or its weights are
            integers.
    """
    header, body = _header(path)
    values = _check_tensors(header, body, path.name)
    if missing := expected - header.keys():
        raise ModelError(f"{path.name} lacks {min(missing)}, which the index says it holds.", _REMEDY)
    return values


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Read the header of a safetensors file, without its metadata. Return the header and the bytes of the tensors.

    Raises:
        ModelError: the file is damaged, or its header is too large.
    """
    size = check_regular(path)
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if size < _LENGTH_BYTES or length > size - _LENGTH_BYTES:
                raise ModelError(f"{path.name} is cut off: its header does not fit into {size:,} bytes.", _REMEDY)
            if length > MAX_HEADER_BYTES:
                raise ModelError(f"{path.name} claims a header of {length:,} bytes, which no model has.", _REMEDY)
            header = object_in(file.read(length), path.name)
    except OSError as error:
        raise ModelError(f"{path.name} cannot be read: {error.strerror}.", "Check the folder of the model.") from error
    header.pop("__metadata__", None)
    return header, size - _LENGTH_BYTES - length


@contextmanager
def with_whole_index(folder: Path) -> Iterator[Path]:
    """Yield a folder whose index file has the entry "metadata", which transformers needs and some converters leave out.

    This is ``folder`` itself if its index has the entry, or if there is no index. Otherwise it is a temporary folder
    with a completed index, and with links to all other files of ``folder``.
    """
    index = folder / INDEX
    described = read_object(index) if index.is_file() else {"metadata": {}}
    if isinstance(described.get("metadata"), dict):
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix=TEMPORARY) as alone:
        for file in folder.iterdir():
            if file.is_file() and file != index:
                link(file, Path(alone) / file.name)
        (Path(alone) / INDEX).write_text(json.dumps({**described, "metadata": {}}), encoding="utf-8")
        yield Path(alone)


def link(file: Path, place: Path) -> None:
    """Create a link to ``file`` at the path ``place``: a symbolic link or, where the system forbids it, a hard link."""
    try:
        place.symlink_to(file.resolve())
    except OSError:  # on Windows a symbolic link needs a privilege that few users have
        os.link(file, place)


def files_by_tensor(folder: Path) -> dict[str, str]:
    """Return the name of the weights file of each tensor in a folder that ``check_folder`` has accepted, keyed by the
    tensor's name.
    """
    return {name: file for file in _shards(folder) for name in _header(folder / file)[0]}


def _shards(folder: Path) -> dict[str, frozenset[str]]:
    """List the weights files to check, each with the names of the tensors that the index expects in it. Without an
    index no tensors are expected.
    """
    index = folder / INDEX
    if os.path.lexists(index):
        return _of_index(index)
    names = sorted(file.name for file in folder.glob("*.safetensors"))
    if not names:
        raise ModelError(
            f"The model folder {folder} holds no .safetensors weights.",
            "Other formats can run code when opened and are refused; convert the weights to safetensors.",
        )
    # Without an index, transformers opens the file ``SINGLE`` alone, if it exists. Otherwise all files are checked.
    return dict.fromkeys([SINGLE] if SINGLE in names else names, frozenset())


def _of_index(index: Path) -> dict[str, frozenset[str]]:
    places = read_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ModelError(f"{index.name} does not say where the weights are.", _REMEDY)
    shards: dict[str, set[str]] = {}
    for tensor, name in places.items():
        if not isinstance(name, str) or PurePath(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{index.name} names {name!r}, which is not a .safetensors file of its folder.", _REMEDY)
        shards.setdefault(name, set()).add(tensor)
    for name in sorted(shards):
        if not (index.parent / name).is_file():
            raise ModelError(f"{name} is missing: the model has {len(shards)} files of weights.", _REMEDY)
    return {name: frozenset(tensors) for name, tensors in sorted(shards.items())}


def _check_tensors(header: Mapping[str, Any], body: int, file: str) -> int:
    """Check that the tensors fill the ``body`` bytes after the header without gaps or overlaps, and that the size of
    each tensor matches its shape. Return the number of values in all tensors.
    """
    spans: list[tuple[int, int]] = []
    values = 0
    for name, entry in header.items():
        try:
            bits, shape, (begin, end) = BITS[entry["dtype"]], entry["shape"], entry["data_offsets"]
            whole = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        except (KeyError, TypeError, ValueError):
            whole = False
        if not whole or (end - begin) * 8 != math.prod(shape) * bits:
            raise ModelError(f"{file} describes {name[:80]!r} in a way that cannot be right.", _REMEDY)
        if name.endswith(".weight") and entry["dtype"].startswith(_WHOLE_NUMBERS):
            raise ModelError(
                f"{file} holds {name[:80]!r} in whole numbers ({entry['dtype']}): it is quantized or altered.",
                "Choose the model in its usual precision; it can be rounded when it is loaded.",
            )
        spans.append((begin, end))
        values += math.prod(shape)
    position = 0
    for begin, end in sorted(spans):
        if begin != position:
            raise ModelError(f"{file} has tensors that overlap or leave gaps.", _REMEDY)
        position = end
    if position != body:
        what = "is cut off" if position > body else "has something behind its last tensor"
        raise ModelError(f"{file} {what}: {position:,} bytes of weights are described and {body:,} are there.", _REMEDY)
    return values
