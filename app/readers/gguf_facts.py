"""Reads the metadata of a model from the headers of its GGUF files, and checks that no weights are missing.

Runs in the child process (``app.readers.child``), like all parsing of untrusted bytes. Only the length of the
vocabulary is kept, not its tokens. ``engine.model.gguf_header`` reads the bytes, within limits.
"""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.readers.parsed import Refused
from engine.errors import on_one_line
from engine.model.gguf_header import ALIGNMENT, ARRAY, LONGEST_NAME, SCALARS, STRING, HeaderBytes
from engine.model.gguf_header import BLOCKS as KERNEL_BLOCKS

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MOST_FIELDS = 4_096
_MOST_TENSORS = 65_536
# maximum elements of an array; the longest arrays are the merges of tokenizers, with up to 600,000 elements
_LONGEST_ARRAY = 1 << 20
_LARGEST = 1 << 40  # maximum elements of one tensor
# maximum elements of an array of numbers whose values are kept; for a longer array, only the length is kept
_SHORT = 1 << 10

_FLOATS = (6, 12)

BLOCKS = {
    **KERNEL_BLOCKS,
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    21: (256, 110),
    22: (256, 82),
    28: (1, 8),
    29: (256, 56),
    34: (256, 54),
    35: (256, 66),
}
"""(elements, bytes) of one block, keyed by the id of the tensor type: those that the kernels read, and all others that
a file may hold.
"""

_TENSORS = "split.tensors.count"
_LAYER = "blk."  # prefix of the names of a layer's tensors
_VALUES = ".attn_v.weight"  # suffix of the name of a layer's value projection
_TOKENS, _EMBEDDING = "tokenizer.ggml.tokens", "token_embd.weight"
_BY_TOKEN = ("tokenizer.ggml.scores", "tokenizer.ggml.token_type")  # arrays with a value for each token
_ENDS = ("bos", "eos", "eot", "eom", "padding")  # special tokens whose ids the metadata may state
_KEPT = ("general.", "tokenizer.ggml.model", *(f"tokenizer.ggml.{end}_" for end in _ENDS))
_REMEDY = "Get the file again."
_WHOLE = "A language model is read, with its vocabulary in it."


def header(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the metadata of a model as plain JSON.

    ``fields``: numbers, short lists of numbers, and strings. ``vocabulary``: number of tokens. ``parameters``: number
    of weights. ``names``: names of the tensors outside of layers, and of the value projections, which some layers lack.
    ``kinds``: ids of all tensor types in the files. ``blocks``: for the matrices of the layers, pairs of a tensor type
    and the number of weights of this type.

    Args:
        paths: paths of the file, or of all parts in order.

    Raises:
        Refused: a file is no GGUF file, is damaged or is the wrong part, or the files together are no complete model.
    """
    facts = _one(paths[0])
    _check_part(facts, 0, len(paths), paths[0].name)
    for number, path in enumerate(paths[1:], 1):
        try:
            part = _one(path)
        except Refused as refused:
            raise Refused(f"has a part that cannot be used: {path.name} {refused.cause}", refused.remedy) from refused
        _check_part(part, number, len(paths), path.name)
        facts.add(part, path.name)
    if facts.fields.get("general.type", "model") != "model" or not facts.shapes:
        raise Refused("holds no language model.", _WHOLE)
    stated = facts.fields.get(_TENSORS, len(facts.shapes))
    if len(paths) > 1 and stated != len(facts.shapes):
        raise Refused(f"has {len(facts.shapes)} tensors in its parts, and says that it has {stated}.", _REMEDY)
    own = f"{facts.fields.get('general.architecture', '')}."
    _check_vocabulary(facts.lengths, facts.shapes, facts.fields.get(f"{own}vocab_size"))
    return {
        "fields": {name: value for name, value in facts.fields.items() if name.startswith((*_KEPT, own))},
        "vocabulary": facts.lengths[_TOKENS],
        "parameters": facts.parameters,
        "names": sorted(name for name in facts.shapes if not name.startswith(_LAYER) or name.endswith(_VALUES)),
        "kinds": sorted(facts.kinds),
        "blocks": sorted(facts.blocks.items()),
    }


@dataclass
class _Found:
    """The metadata of a file. ``fields`` has the kept values by field name, ``lengths`` the length of each array, and
    ``shapes`` the shape of each tensor. ``kinds`` has all tensor types, ``blocks`` the number of weights of each type
    in the layers' matrices, and ``parameters`` the total number of weights.
    """

    fields: dict[str, Any]
    lengths: dict[str, int]
    shapes: dict[str, list[int]]
    kinds: set[int]
    blocks: Counter[int]
    parameters: int

    def add(self, part: _Found, name: str) -> None:
        """Add the tensors of another part. The part's fields are not added, because they only tell its number."""
        if twice := self.shapes.keys() & part.shapes.keys():
            raise Refused(f"holds {on_one_line(min(twice))} twice, once in {name}.", _REMEDY)
        self.shapes |= part.shapes
        self.kinds |= part.kinds
        self.blocks += part.blocks
        self.parameters += part.parameters


def _check_part(found: _Found, number: int, count: int, name: str) -> None:
    """Check that a file is part ``number`` (from 0) of ``count`` parts."""
    stated, whole = (found.fields.get(f"split.{each}") or 0 for each in ("no", "count"))
    if not type(stated) is type(whole) is int:
        raise Refused("is damaged: it does not say which part of a model it is.", _REMEDY)
    whole = max(1, whole)
    if count == 1 and whole > 1:
        raise Refused(
            f"is one of {whole} parts of a model.", "Give it its original name, such as NAME-00001-of-00003.gguf."
        )
    if (stated, whole) != (number, count):
        raise Refused(
            f"has parts that do not belong together: {name} says that it is part {stated + 1} of {whole}.", _REMEDY
        )


def _one(path: Path) -> _Found:
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise Refused("is no GGUF file.", "Choose another one.")
        try:
            return _found(HeaderBytes(file, size), size)
        except (EOFError, struct.error, UnicodeDecodeError, OverflowError):
            raise Refused("is cut off or damaged: its header does not come to an end.", _REMEDY) from None


def _found(data: HeaderBytes, size: int) -> _Found:
    version = data.number("I")
    if version not in _VERSIONS:
        raise Refused(f"is a GGUF file of version {version}; {_VERSIONS[0]} and {_VERSIONS[1]} are read.", _REMEDY)
    tensors, count = data.number("Q"), data.number("Q")
    if tensors > _MOST_TENSORS or count > _MOST_FIELDS:
        raise Refused("claims more parts than any model has.", _REMEDY)
    fields: dict[str, Any] = {}
    lengths: dict[str, int] = {}
    for _ in range(count):
        name = data.text(LONGEST_NAME)
        if name in fields or name in lengths:
            raise Refused(f"says {name!r} twice.", _REMEDY)
        kind = data.number("I")
        if kind == ARRAY:
            lengths[name], values = _array(data, name)
            if values:
                fields[name] = values
        elif kind == STRING:
            fields[name] = on_one_line(data.text()[:LONGEST_NAME])
        else:
            fields[name] = data.value(kind)
            _check_finite((fields[name],), name)
    facts = _Found(fields, lengths, {}, set(), Counter(), 0)
    _take_tensors(data, tensors, size, facts)
    return facts


def _check_vocabulary(lengths: Mapping[str, int], shapes: Mapping[str, Sequence[int]], stated: Any) -> None:
    """Check that there is a vocabulary, that it has at most ``stated`` tokens, and that the embedding and the arrays of
    token scores and token types have an entry for each token.
    """
    tokens = lengths.get(_TOKENS, 0)
    if not tokens:
        raise Refused("holds no vocabulary.", _WHOLE)
    rows = [*shapes.get(_EMBEDDING, ())[-1:], *([stated] if type(stated) is int else [])]
    if rows and tokens > min(rows):
        raise Refused(f"holds a vocabulary of {tokens:,} tokens, and says that it knows {min(rows):,}.", _REMEDY)
    for name in _BY_TOKEN:
        if lengths.get(name, tokens) != tokens:
            raise Refused(f"has {lengths[name]:,} values of {name} for {tokens:,} tokens.", _REMEDY)


def _check_finite(values: Iterable[Any], name: str) -> None:
    if not all(map(math.isfinite, values)):
        raise Refused(f"says of {on_one_line(name)} what is no number.", _REMEDY)


def _array(data: HeaderBytes, name: str) -> tuple[int, list[Any]]:
    """Read an array. Return its length and its values. The values are [] for strings and for more than ``_SHORT``
    numbers.
    """
    kind, length = data.number("I"), data.number("Q")
    if length > _LONGEST_ARRAY:
        raise Refused(f"has {length:,} values of {on_one_line(name)}, more than any model.", _REMEDY)
    if kind in _FLOATS and length > _SHORT:
        for values in data.numbers(length, SCALARS[kind]):
            _check_finite(values, name)
        return int(length), []
    found = data.values(kind, length, kept=kind != STRING and length <= _SHORT)
    _check_finite(found, name)
    return int(length), found


def _take_tensors(data: HeaderBytes, count: int, size: int, found: _Found) -> None:
    """Read the shapes, types and offsets of ``count`` tensors into ``found``. Check that all tensors lie within the
    ``size`` bytes of the file and do not overlap.
    """
    alignment = found.fields.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 0 < alignment <= 1 << 16 or alignment & (alignment - 1):
        raise Refused("is damaged: its parts are not aligned.", _REMEDY)
    spans: list[tuple[int, int]] = []
    for _ in range(count):
        name, shape, kind, offset = data.tensor()
        if name in found.shapes:
            raise EOFError
        found.shapes[name] = shape
        values = math.prod(shape)
        if kind not in BLOCKS:
            raise Refused(f"holds weights of a kind that is not known here (number {kind}).", "Choose another file.")
        block, each = BLOCKS[kind]
        if not 0 < values < _LARGEST or shape[0] % block or offset % alignment:
            raise EOFError
        spans.append((offset, offset + values // block * each))
        found.parameters += values
        found.kinds.add(kind)
        if len(shape) > 1 and name.startswith(_LAYER):
            found.blocks[kind] += values
    begin = -(-data.at // alignment) * alignment
    if spans and (needed := begin + max(end for _, end in spans)) > size:
        raise Refused(f"is cut off: it describes {needed:,} bytes, and {size:,} are there.", _REMEDY)
    end = 0
    for start, stop in sorted(spans):
        if start < end:
            raise Refused("is damaged: its weights overlap.", _REMEDY)
        end = stop
