"""Reads the header of a GGUF file: its fields, and the places of its tensors.

This module checks nothing, because ``app.readers.gguf_facts`` has already checked the file in a child process with
limits. Standard library only. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import mmap
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ALIGNMENT", "ARRAY", "BLOCKS", "SCALARS", "STRING", "SplitFile", "parts_of"]

BLOCKS = {
    0: (1, 4),
    1: (1, 2),
    30: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    20: (32, 18),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    23: (256, 136),
    39: (32, 17),
}
"""Number of weights in a block, and size of a block in bytes, keyed by GGML's number for the format.
``engine.model.kernels.formats`` describes the blocks.
"""

_PART = re.compile(r"(?P<title>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
ALIGNMENT = 32  # bytes by which tensors are aligned, unless a field says otherwise
# Format characters of ``struct``, keyed by GGUF's id of a field's type. Strings and arrays have other ids.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING = 8  # GGUF's id of the type string
ARRAY = 9  # GGUF's id of the type array
# Maximum length of a list of numbers that ``read`` returns if ``vocabulary`` is false. Longer lists belong to the
# vocabulary.
_LONGEST_LIST = 4096
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class Tensor:
    """The place of a tensor in the files of a model.

    Args:
        kind: GGML's number for the format.
        shape: in torch's order of axes.
        file: index of the file that holds the tensor; 0 if the model is a single file.
        offset: bytes from the beginning of the file to the tensor.
    """

    name: str
    kind: int
    shape: tuple[int, ...]
    file: int
    offset: int

    @property
    def row_bytes(self) -> int:
        values, size = BLOCKS[self.kind]
        return self.shape[-1] // values * size

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])


@dataclass(frozen=True)
class SplitFile:
    """One file of a model that is split into several files, as described by the file's name (llama.cpp's naming)."""

    title: str
    number: int
    count: int

    @classmethod
    def of(cls, name: str) -> SplitFile | None:
        """Parse a file name; None if it is not the name of one file of a split model."""
        found = _PART.fullmatch(name)
        part = found and cls(found["title"], int(found["number"]), int(found["count"]))
        return part if part and 1 <= part.number <= part.count else None

    def name(self, number: int) -> str:
        """The name of the file with this number in the same model."""
        return f"{self.title}-{number:05}-of-{self.count:05}.gguf"


def parts_of(path: Path) -> list[Path]:
    """The paths of all files of the model to which the file ``path`` belongs, in order. The files need not exist."""
    part = SplitFile.of(path.name)
    return [path] if part is None else [path.with_name(part.name(number)) for number in range(1, part.count + 1)]


def read(path: Path, number: int = 0, *, vocabulary: bool = False) -> tuple[dict[str, Any], list[Tensor]]:
    """Read the fields and tensors of a file.

    Args:
        number: index of the file in its model, which becomes ``Tensor.file``.
        vocabulary: whether to return lists of strings and long lists of numbers. If false, their lengths are returned
            instead.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        tensors, count = struct.unpack_from("<QQ", held, 8)
        fields: dict[str, Any] = {}
        at = 24
        for _ in range(count):
            name, at = _text(held, at)
            fields[name], at = _value(held, at, vocabulary)
        found = []
        for _ in range(tensors):
            name, at = _text(held, at)
            (dimensions,) = struct.unpack_from("<I", held, at)
            shape = struct.unpack_from(f"<{dimensions}Q", held, at + 4)
            at += 4 + 8 * dimensions
            kind, offset = struct.unpack_from("<IQ", held, at)
            at += 12
            found.append((name, kind, shape[::-1], offset))
    alignment = int(fields.get("general.alignment", ALIGNMENT))
    begin = -(-at // alignment) * alignment
    return fields, [Tensor(name, kind, shape, number, begin + offset) for name, kind, shape, offset in found]


def floats(path: Path, tensor: Tensor) -> list[float]:
    """Read the numbers of a tensor in the format F32."""
    with path.open("rb") as file:
        file.seek(tensor.offset)
        return list(struct.unpack(f"<{math.prod(tensor.shape)}f", file.read(4 * math.prod(tensor.shape))))


def _text(data: mmap.mmap, offset: int) -> tuple[str, int]:
    (length,) = _LENGTH.unpack_from(data, offset)
    return data[offset + 8 : offset + 8 + length].decode("utf-8"), offset + 8 + length


def _value(data: mmap.mmap, offset: int, vocabulary: bool) -> tuple[Any, int]:
    """Read the value of a field. Return the value and the offset after it."""
    (kind,) = struct.unpack_from("<I", data, offset)
    offset += 4
    if kind == STRING:
        return _text(data, offset)
    if kind != ARRAY:
        return struct.unpack_from(f"<{SCALARS[kind]}", data, offset)[0], offset + struct.calcsize(SCALARS[kind])
    kind, count = struct.unpack_from("<IQ", data, offset)
    offset += 12
    if kind == STRING:
        words, offset = _words(data, offset, count, vocabulary)
        return words if vocabulary else count, offset
    end = offset + count * struct.calcsize(SCALARS[kind])
    if count > _LONGEST_LIST and not vocabulary:
        return count, end
    return list(struct.unpack_from(f"<{count}{SCALARS[kind]}", data, offset)), end


def _words(data: mmap.mmap, offset: int, count: int, is_needed: bool) -> tuple[Sequence[str], int]:
    """Read a list of ``count`` strings. Return the strings and the offset after them. If ``is_needed`` is false, the
    list is skipped and returned empty.
    """
    words = []
    for _ in range(count):
        start = offset + 8
        offset = start + _LENGTH.unpack_from(data, offset)[0]
        if is_needed:
            words.append(data[start:offset].decode("utf-8"))
    return words, offset
