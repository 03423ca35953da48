"""What a GGUF file holds, from its header alone: the model's numbers, and whether all of its weights are there.

Runs in the child process (``app.readers.child``), as whatever parses foreign bytes does; nothing is allocated whose
size a file has merely claimed, and of the vocabulary only the length is kept. The format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from app.readers.parsed import Refused
from engine.errors import on_one_line

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_FIELDS = 4_096
_MOST_TENSORS = 65_536
_LONGEST_NAME = 512  # bytes, of a field or a tensor
_LONGEST_STRING = 1 << 22  # bytes that are kept or skipped at once; the longest is a chat template
_LONGEST_ARRAY = 1 << 20  # elements: vocabularies have up to 300,000, and the merges of one up to 600,000
_MOST_HEADER = 1 << 28  # bytes
_MOST_DIMENSIONS = 4
_LARGEST = 1 << 40  # values of one tensor
_ALIGNMENT = 32
_LOOKED_AT = 1 << 20  # bytes of strings in memory
_LENGTH = struct.Struct("<Q")

# Kinds of values of a field: struct's letters; a string and an array are their own.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_FLOATS = (6, 12)

BLOCKS = {
    **{0: (1, 4), 1: (1, 2), 30: (1, 2), 28: (1, 8)},
    **{2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34)},
    **{10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210)},
    **{16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82)},
    **{23: (256, 136), 29: (256, 56), 34: (256, 54), 35: (256, 66), 39: (32, 17)},
}
"""Values and bytes of one block, by the format's number of the kind of a tensor."""

_TOKENS, _EMBEDDING = "tokenizer.ggml.tokens", "token_embd.weight"
_BY_TOKEN = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")  # lists with a value for each token
_KEPT = ("general.", "split.", "tokenizer.ggml.model", "tokenizer.ggml.pre")
_AGAIN = "Get the file again."
_WHOLE = "A model in one file is read, with its vocabulary in it."


def header(path: Path) -> dict[str, Any]:
    """The facts of a file, as plain JSON: ``fields`` (numbers and words), ``vocabulary`` (its length), ``parameters``,
    ``names`` of tensors that say something of the kind.

    Raises:
        Refused: it is none, cut off, altered, one part of several, or holds no whole model.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise Refused("is no GGUF file.", "Choose another one.")
        try:
            return _header(_Bytes(file, size), size)
        except (EOFError, struct.error, UnicodeDecodeError, OverflowError):
            raise Refused("is cut off or damaged: its header does not come to an end.", _AGAIN) from None


class _Bytes:
    """The bytes of the header, in order, and never more of them than there are."""

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

    def skip(self, length: int) -> None:
        if length < 0 or self.at + length > self._end:
            raise EOFError
        self._file.seek(length, 1)

    def number(self, letter: str) -> Any:
        return struct.unpack(f"<{letter}", self.take(struct.calcsize(f"<{letter}")))[0]

    def text(self, longest: int = _LONGEST_STRING) -> str:
        length = self.number("Q")
        if length > longest:
            raise EOFError
        return self.take(length).decode("utf-8")

    def floats(self, count: int, letter: str) -> Iterator[tuple[float, ...]]:
        """So many numbers of one kind, piece by piece."""
        size = struct.calcsize(f"<{letter}")
        while count:
            piece = min(count, _LOOKED_AT // size)
            yield struct.unpack(f"<{piece}{letter}", self.take(piece * size))
            count -= piece

    def skip_texts(self, count: int) -> None:
        """So many strings: hundreds of thousands, so that they are looked at in memory."""
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


def _header(taken: _Bytes, size: int) -> dict[str, Any]:
    version = taken.number("I")
    if version not in _VERSIONS:
        raise Refused(f"is a GGUF file of version {version}; {_VERSIONS[0]} and {_VERSIONS[1]} are read.", _AGAIN)
    tensors, count = taken.number("Q"), taken.number("Q")
    if tensors > _MOST_TENSORS or count > _MOST_FIELDS:
        raise Refused("claims more parts than any model has.", _AGAIN)
    fields: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(count):
        name = taken.text(_LONGEST_NAME)
        if name in fields or name in lengths:
            raise Refused(f"says {name!r} twice.", _AGAIN)
        kind = taken.number("I")
        if kind == _ARRAY:
            lengths[name] = _skip_array(taken, name)
        elif kind == _STRING:
            fields[name] = on_one_line(taken.text()[:_LONGEST_NAME])
        elif kind in _SCALARS:
            fields[name] = taken.number(_SCALARS[kind])
            _check_finite((fields[name],), name)
        else:
            raise EOFError
    if fields.get("split.count", 0) > 1:
        raise Refused(
            f"is one of {fields['split.count']} parts of a model.",
            "Put them together with llama-gguf-split --merge of llama.cpp, or choose a model in one file.",
        )
    if fields.get("general.type", "model") != "model" or not tensors:
        raise Refused("holds no language model.", _WHOLE)
    parameters, shapes = _tensors(taken, tensors, int(fields.get("general.alignment", _ALIGNMENT)), size)
    architecture = str(fields.get("general.architecture", ""))
    _check_vocabulary(lengths, shapes, fields.get(f"{architecture}.vocab_size"))
    return {
        "fields": {name: value for name, value in fields.items() if name.startswith((*_KEPT, f"{architecture}."))},
        "lists": [name for name in lengths if name.startswith(f"{architecture}.")],
        "vocabulary": lengths["tokenizer.ggml.tokens"],
        "parameters": parameters,
        "names": sorted(name for name in shapes if not name.startswith("blk.")),
    }


def _check_vocabulary(lengths: Mapping[str, int], shapes: Mapping[str, Sequence[int]], stated: Any) -> None:
    """A vocabulary must be there, and no longer than is stated or the embedding is: each token has a row of that."""
    tokens = lengths.get(_TOKENS, 0)
    if not tokens:
        raise Refused("holds no vocabulary.", _WHOLE)
    rows = [*shapes.get(_EMBEDDING, ())[-1:], *([stated] if type(stated) is int else [])]
    if rows and tokens > min(rows):
        raise Refused(f"holds a vocabulary of {tokens:,} tokens, and says that it knows {min(rows):,}.", _AGAIN)
    for name in _BY_TOKEN:
        if lengths.get(name, tokens) != tokens:
            raise Refused(f"has {lengths[name]:,} values of {name} for {tokens:,} tokens.", _AGAIN)


def _check_finite(values: Iterable[Any], name: str) -> None:
    if not all(map(math.isfinite, values)):
        raise Refused(f"says of {on_one_line(name)} what is no number.", _AGAIN)


def _skip_array(taken: _Bytes, name: str) -> int:
    """Its length."""
    kind, length = taken.number("I"), taken.number("Q")
    if length > _LONGEST_ARRAY:
        raise Refused(f"has {length:,} values of {on_one_line(name)}, more than any model.", _AGAIN)
    if kind == _STRING:
        taken.skip_texts(length)
    elif kind in _FLOATS:
        for values in taken.floats(length, _SCALARS[kind]):
            _check_finite(values, name)
    elif kind in _SCALARS:
        taken.skip(length * struct.calcsize(f"<{_SCALARS[kind]}"))
    else:
        raise EOFError
    return int(length)


def _tensors(taken: _Bytes, count: int, alignment: int, size: int) -> tuple[int, dict[str, list[int]]]:
    """How many values they have in all, and the shape of each."""
    if not 0 < alignment <= 1 << 16 or alignment & (alignment - 1):
        raise Refused("is damaged: its parts are not aligned.", _AGAIN)
    spans: list[tuple[int, int]] = []
    shapes: dict[str, list[int]] = {}
    parameters = 0
    for _ in range(count):
        name = taken.text(_LONGEST_NAME)
        dimensions = taken.number("I")
        if name in shapes or not 0 < dimensions <= _MOST_DIMENSIONS:
            raise EOFError
        shape = shapes[name] = [taken.number("Q") for _ in range(dimensions)]
        kind, offset = taken.number("I"), taken.number("Q")
        values = math.prod(shape)
        if kind not in BLOCKS:
            raise Refused(f"holds weights of a kind that is not known here (number {kind}).", "Choose another file.")
        block, each = BLOCKS[kind]
        if not 0 < values < _LARGEST or shape[0] % block or offset % alignment:
            raise EOFError
        spans.append((offset, offset + values // block * each))
        parameters += values
    begin = -(-taken.at // alignment) * alignment
    if (needed := begin + max(end for _, end in spans)) > size:
        raise Refused(f"is cut off: it describes {needed:,} bytes, and {size:,} are there.", _AGAIN)
    end = 0
    for start, stop in sorted(spans):
        if start < end:
            raise Refused("is damaged: its weights overlap.", _AGAIN)
        end = stop
    return parameters, shapes
