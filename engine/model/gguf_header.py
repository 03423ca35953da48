"""Reads the header of a GGUF file: its fields, and the places of its tensors.

A size that a file states is checked before memory is allocated (``HeaderBytes``). What the values mean is checked by
``app.readers.gguf_facts``, in a child process with limits, before the engine reads a file. Standard library only.
The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["ALIGNMENT", "ARRAY", "BLOCKS", "LONGEST_NAME", "SCALARS", "STRING", "HeaderBytes", "SplitFile", "parts_of"]

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
LONGEST_NAME = 512  # maximum bytes of the name of a field or a tensor
_LONGEST_STRING = 1 << 22  # maximum bytes of a string; the longest strings are chat templates
_MOST_HEADER = 1 << 28  # maximum bytes of a header
_MOST_DIMENSIONS = 4
_LOOKED_AT = 1 << 20  # maximum bytes of an array that are read into memory at a time
_BEFORE_COUNTS = 8  # bytes before the numbers of tensors and fields: "GGUF" and the version
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
        match = _PART.fullmatch(name)
        part = match and cls(match["title"], int(match["number"]), int(match["count"]))
        return part if part and 1 <= part.number <= part.count else None

    def name(self, number: int) -> str:
        """The name of the file with this number in the same model."""
        return f"{self.title}-{number:05}-of-{self.count:05}.gguf"


def parts_of(path: Path) -> list[Path]:
    """The paths of all files of the model to which the file ``path`` belongs, in order. The files need not exist."""
    part = SplitFile.of(path.name)
    return [path] if part is None else [path.with_name(part.name(number)) for number in range(1, part.count + 1)]


class HeaderBytes:
    """Reads the bytes of a header in order, from ``file`` of ``size`` bytes.

    Every method raises EOFError at the end of the file or at the maximum size of a header, and for what no header has.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._end = min(size, _MOST_HEADER)

    @property
    def at(self) -> int:
        return self._file.tell()

    def take(self, length: int) -> bytes:
        if length < 0 or length > _LONGEST_STRING or self.at + length > self._end:
            raise EOFError
        return self._file.read(length)

    def number(self, letter: str) -> Any:
        return struct.unpack(f"<{letter}", self.take(struct.calcsize(f"<{letter}")))[0]

    def text(self, longest: int = _LONGEST_STRING) -> str:
        length = self.number("Q")
        if length > longest:
            raise EOFError
        return self.take(length).decode("utf-8")

    def value(self, kind: int) -> Any:
        """The value of a field that is no array. ``kind``: GGUF's id of its type."""
        if kind != STRING and kind not in SCALARS:
            raise EOFError
        return self.text() if kind == STRING else self.number(SCALARS[kind])

    def values(self, kind: int, count: int, *, kept: bool) -> list[Any]:
        """Read an array of ``count`` elements. Return its elements if ``kept``; otherwise []."""
        if kind == STRING and kept:
            return [self.text() for _ in range(count)]
        if kind == STRING:
            self._skip_texts(count)
        elif kind not in SCALARS:
            raise EOFError
        elif kept:
            return list(chain.from_iterable(self.numbers(count, SCALARS[kind])))
        else:
            self._skip(count * struct.calcsize(f"<{SCALARS[kind]}"))
        return []

    def numbers(self, count: int, letter: str) -> Iterator[tuple[Any, ...]]:
        """Yield ``count`` numbers in several tuples. ``letter`` is the format character of their type in ``struct``."""
        size = struct.calcsize(f"<{letter}")
        while count:
            piece = min(count, _LOOKED_AT // size)
            yield struct.unpack(f"<{piece}{letter}", self.take(piece * size))
            count -= piece

    def tensor(self) -> tuple[str, list[int], int, int]:
        """Read the description of a tensor: name, shape in GGML's order of axes, GGML's number for the format, and
        offset.
        """
        name, dimensions = self.text(LONGEST_NAME), self.number("I")
        if not 0 < dimensions <= _MOST_DIMENSIONS:
            raise EOFError
        shape = [self.number("Q") for _ in range(dimensions)]
        return name, shape, self.number("I"), self.number("Q")

    def _skip(self, length: int) -> None:
        if length < 0 or self.at + length > self._end:
            raise EOFError
        self._file.seek(length, 1)

    def _skip_texts(self, count: int) -> None:
        """Skip ``count`` strings. Reads large blocks instead of single strings, because a vocabulary has hundreds of
        thousands of strings.
        """
        while count:
            start = self.at
            held = self._file.read(min(_LOOKED_AT, self._end - start))
            at = 0
            while count and at + _LENGTH.size <= len(held):
                at += _LENGTH.size + _LENGTH.unpack_from(held, at)[0]
                count -= 1
            if not at or start + at > self._end:
                raise EOFError
            self._file.seek(start + at)


def read(path: Path, number: int = 0, *, vocabulary: bool = False) -> tuple[dict[str, Any], list[Tensor]]:
    """Read the fields and tensors of a file that ``app.readers.gguf_facts`` has checked.

    Args:
        number: index of the file in its model, which becomes ``Tensor.file``.
        vocabulary: whether to return lists of strings and long lists of numbers. If false, their lengths are returned
            instead.
    """
    with path.open("rb") as file:
        data = HeaderBytes(file, path.stat().st_size)
        data.take(_BEFORE_COUNTS)
        tensors, count = data.number("Q"), data.number("Q")
        fields: dict[str, Any] = {}
        for _ in range(count):
            name, kind = data.text(), data.number("I")
            if kind != ARRAY:
                fields[name] = data.value(kind)
                continue
            kind, length = data.number("I"), data.number("Q")
            kept = vocabulary or (kind != STRING and length <= _LONGEST_LIST)
            values = data.values(kind, length, kept=kept)
            fields[name] = values if kept else length
        entries = [data.tensor() for _ in range(tensors)]
        end = data.at
    alignment = int(fields.get("general.alignment", ALIGNMENT))
    begin = -(-end // alignment) * alignment
    return fields, [
        Tensor(name, kind, tuple(shape[::-1]), number, begin + start) for name, shape, kind, start in entries
    ]


def floats(path: Path, tensor: Tensor) -> list[float]:
    """Read the numbers of a tensor in the format F32."""
    with path.open("rb") as file:
        file.seek(tensor.offset)
        return list(struct.unpack(f"<{math.prod(tensor.shape)}f", file.read(4 * math.prod(tensor.shape))))
