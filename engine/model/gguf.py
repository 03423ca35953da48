"""A GGUF file is opened as it is stored: its weights are mapped, and nothing of them is written anywhere.

``describe`` writes a folder with what a file says beside its weights: settings and vocabulary as transformers reads
them (in a bounded child process), and ``INDEX``, which says where each tensor lies. ``build`` makes the model of such a
folder: transformers knows which tensor is which and in which order its rows lie, and the weights of linear layers and
embeddings stay blocks (``engine.model.products.blocks``). Whether a file is whole and of a kind that can be read is
judged beforehand, by who has looked at its header (``app.models.gguf``).
"""

from __future__ import annotations

import json
import math
import mmap
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine import foreign, model_files
from engine.errors import ModelError
from engine.model import weights
from engine.model.kernels.formats import FORMATS
from engine.model.weights import GGUF_INDEX as INDEX

ROPE_FACTORS = "rope_freqs.weight"
"""The tensor in which the stretching of Llama 3 lies, which its settings leave out."""

_FLOAT_BYTES = {0: 4, 1: 2, 30: 2}  # of a number, by GGML's number of the kind
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_LLAMA_3_FACTORS = (8.0, 32.0)  # of 3.1 and 3.3, and of 3.2
_CLOSE = 1e-3  # of factors that were rounded to 32 bits
_TIED = "lm_head.weight"
_OTHER = "Choose another file."
_ALIGNMENT = 32
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST_LIST = 4096  # numbers that are settings; longer lists are of the vocabulary


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies. ``shape`` as torch has it; ``kind``: GGML's number; ``offset``: in the file."""

    name: str
    kind: int
    shape: tuple[int, ...]
    file: int
    offset: int

    @property
    def row_bytes(self) -> int:
        width = self.shape[-1]
        if self.kind in _FLOAT_BYTES:
            return width * _FLOAT_BYTES[self.kind]
        form = FORMATS[self.kind]
        return width // form.values * form.bytes

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])


# From a file to a folder of settings ---------------------------------------------------------------------------------


def describe(files: Sequence[Path], out: Path, changes: Mapping[str, Any], readme: str) -> None:
    """Write the settings of a model, whose weights lie in one file or in several parts, into an empty folder.

    Args:
        changes: settings that the first file's header has and transformers leaves out.

    Raises:
        ModelError: its weights are of no known kind, or its vocabulary cannot be read.
    """
    found: list[Tensor] = []
    architecture, bare = "", b""
    for number, file in enumerate(files):
        fields, tensors, settings = _read(file, number)
        found += tensors
        if number == 0:
            architecture, bare = str(fields["general.architecture"]), settings
    for tensor in found:
        if tensor.kind not in FORMATS and tensor.kind not in _FLOAT_BYTES:
            raise ModelError(f"{files[0].name} holds {tensor.name} in a kind that is not read here.", _OTHER)
    names = {tensor.name for tensor in found}
    parameters = sum(math.prod(tensor.shape) for tensor in found)
    size = sum(tensor.rows * tensor.row_bytes for tensor in found)
    changes = {
        "tie_word_embeddings": "output.weight" not in names,
        "stored_bytes_per_weight": round(size / parameters, 3),
        **changes,
    }
    with tempfile.TemporaryDirectory(dir=out) as alone:  # beside it may lie files that mean other things
        weights.link(files[0], Path(alone) / "model.gguf")
        (Path(alone) / "settings.gguf").write_bytes(bare)
        foreign.save_gguf_settings(Path(alone) / "model.gguf", Path(alone) / "settings.gguf", changes, out)
    for tensor in found:
        if tensor.name == ROPE_FACTORS:
            _stretch(out / model_files.SETTINGS, _floats(files[tensor.file], tensor))
    seen = [file.stat() for file in files]
    index = {
        "architecture": architecture,
        "files": [
            {"path": str(file.resolve()), "bytes": stat.st_size, "changed": stat.st_mtime_ns}
            for file, stat in zip(files, seen, strict=True)
        ],
        "parameters": parameters,
        "tensors": [[each.name, each.kind, each.shape, each.file, each.offset] for each in found],
    }
    (out / "README.md").write_text(readme, encoding="utf-8")
    (out / INDEX).write_text(json.dumps(index), encoding="utf-8")


def _read(path: Path, number: int) -> tuple[dict[str, Any], list[Tensor], bytes]:
    """Fields and tensors of a file, and its header without vocabulary and tensors, which is a file of its own."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as held:
        version, tensors, count = struct.unpack_from("<IQQ", held, 4)
        fields: dict[str, Any] = {}
        kept: list[bytes] = []
        at = 24
        for _ in range(count):
            start = at
            name, at = _text(held, at)
            fields[name], at = _value(held, at)
            if fields[name] is not None:
                kept.append(held[start:at])
        found = []
        for _ in range(tensors):
            name, at = _text(held, at)
            (dimensions,) = struct.unpack_from("<I", held, at)
            shape = struct.unpack_from(f"<{dimensions}Q", held, at + 4)
            at += 4 + 8 * dimensions
            kind, offset = struct.unpack_from("<IQ", held, at)
            at += 12
            found.append(Tensor(name, kind, shape[::-1], number, offset))
        alignment = int(fields.get("general.alignment", _ALIGNMENT))
        begin = -(-at // alignment) * alignment
    placed = [Tensor(each.name, each.kind, each.shape, number, begin + each.offset) for each in found]
    return fields, placed, b"GGUF" + struct.pack("<IQQ", version, 0, len(kept)) + b"".join(kept)


def _text(held: mmap.mmap, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from("<Q", held, at)
    return held[at + 8 : at + 8 + length].decode("utf-8"), at + 8 + length


def _value(held: mmap.mmap, at: int) -> tuple[Any, int]:
    """A field's value, None for a list of the vocabulary, and where it ends."""
    (kind,) = struct.unpack_from("<I", held, at)
    at += 4
    if kind == _STRING:
        return _text(held, at)
    if kind != _ARRAY:
        return struct.unpack_from(f"<{_SCALARS[kind]}", held, at)[0], at + struct.calcsize(_SCALARS[kind])
    kind, count = struct.unpack_from("<IQ", held, at)
    at += 12
    if kind == _STRING:
        for _ in range(count):
            at += 8 + struct.unpack_from("<Q", held, at)[0]
        return None, at
    end = at + count * struct.calcsize(_SCALARS[kind])
    return (struct.unpack_from(f"<{count}{_SCALARS[kind]}", held, at) if count <= _LONGEST_LIST else None), end


def _floats(path: Path, tensor: Tensor) -> list[float]:
    with path.open("rb") as file:
        file.seek(tensor.offset)
        return list(struct.unpack(f"<{math.prod(tensor.shape)}f", file.read(4 * math.prod(tensor.shape))))


def _stretch(settings: Path, factors: list[float]) -> None:
    config = json.loads(settings.read_text(encoding="utf-8"))
    config["rope_parameters"] |= llama_3_rope(float(config["rope_parameters"]["rope_theta"]), factors)
    settings.write_text(json.dumps(config, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def llama_3_rope(theta: float, factors: list[float]) -> dict[str, Any]:
    """The settings that stretch RoPE by these factors, one for each pair of a head's values.

    Raises:
        ModelError: they are not those of Llama 3.
    """
    pairs = len(factors)
    for factor in _LLAMA_3_FACTORS:
        usual = [_llama_3_factor(theta ** (pair / pairs), factor) for pair in range(pairs)]
        if all(math.isclose(one, other, rel_tol=_CLOSE) for one, other in zip(factors, usual, strict=True)):
            return {"rope_type": "llama3", "factor": factor, **_LLAMA_3}
    raise ModelError("Its positions are stretched in a way that is not known here.", "Choose it as safetensors.")


def _llama_3_factor(inverse: float, factor: float) -> float:
    """By what a wave of ``2 pi inverse`` tokens is stretched (transformers' ``_compute_llama3_parameters``)."""
    original, low, high = _LLAMA_3["original_max_position_embeddings"], 1.0, _LLAMA_3["high_freq_factor"]
    length = 2 * math.pi * inverse
    if length < original / high:
        return 1.0
    if length > original / low:
        return factor
    smooth = (original / length - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)


# From a folder of settings to a model --------------------------------------------------------------------------------


def is_described(folder: Path) -> bool:
    """Whether a folder's weights lie in a GGUF file."""
    return (folder / INDEX).is_file()


def build(folder: Path, config: Any, dtype: Any, attention: str, as_stored: bool) -> Any:
    """The model of a folder that ``describe`` wrote, as a transformers causal LM.

    Args:
        dtype: of activations.
        attention: name of its implementation.
        as_stored: whether linear layers and embeddings keep the file's blocks; else all weights are expanded to the
            dtype, in memory.

    Raises:
        ModelError: the weights are not those of its kind.
    """
    import torch
    from torch import nn
    from transformers import AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

    from engine.model.products import fixed, replace
    from engine.model.products.blocks import BlockEmbedding, BlockLinear

    index = weights.gguf_index(folder)
    title = Path(index["files"][0]["path"]).name
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    _fill_buffers(model)
    processor = TENSOR_PROCESSORS.get(index["architecture"], TensorProcessor)(config=config.to_dict())
    names = get_gguf_hf_weights_map(_Names(model), processor)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if config.tie_word_embeddings:
        wanted.pop(_TIED, None)
    biases: dict[str, Any] = {}
    for tensor, stored in _stored(index, processor, names):
        name = names.get(tensor.name, tensor.name)
        if tensor.name == ROPE_FACTORS:
            continue
        path, _, last = name.rpartition(".")
        if wanted.get(name) is None:
            raise ModelError(f"{title} holds {tensor.name}, which its kind of model has not.", _OTHER)
        module = model.get_submodule(path)
        if as_stored and last == "weight" and isinstance(module, nn.Linear | nn.Embedding):
            shape = stored.outputs, stored.inputs
            embeds = isinstance(module, nn.Embedding)
            new = BlockEmbedding(stored, module, dtype) if embeds else BlockLinear(stored, None, dtype)
            replace(model, path, new)
        else:
            found = processor.process(
                stored._replace(order=None).values().view(tensor.shape).numpy(),
                tensor.name,
                tensor_key_mapping=names,
                parsed_parameters={},
            )
            values, shape = torch.from_numpy(found.weights.copy()), tuple(found.weights.shape)
            # Norms and biases have few numbers, and our own kernels take them in float32.
            kept = values if as_stored and values.dim() == 1 else values.to(dtype)
            if last == "bias" and isinstance(module, nn.Linear | BlockLinear):
                biases[path] = kept
            else:
                setattr(module, last, fixed(kept))
            stored.let_go()
        if wanted.pop(name) != shape:
            raise ModelError(f"{title} holds {tensor.name} in a shape that its kind of model has not.", _OTHER)
    if wanted:
        raise ModelError(f"{title} lacks {min(wanted)}.", _OTHER)
    for path, bias in biases.items():
        model.get_submodule(path).bias = fixed(bias)
    if config.tie_word_embeddings:
        _tie(model, dtype)
    return model


class _Names:
    """A model's names of tensors without those of its parts, which transformers would map one by one for 6 seconds."""

    def __init__(self, model: Any) -> None:
        self.config, self.state_dict = model.config, model.state_dict

    def named_children(self) -> list[Any]:
        return []


def _tie(model: Any, dtype: Any) -> None:
    from engine.model.products.blocks import BlockEmbedding, BlockLinear

    embedding = model.get_input_embeddings()
    if isinstance(embedding, BlockEmbedding):
        model.lm_head = BlockLinear(embedding.stored, None, dtype)
    model.lm_head.weight = embedding.weight


def _stored(index: Mapping[str, Any], processor: Any, names: Mapping[str, str]) -> Iterator[tuple[Tensor, Any]]:
    """Each tensor with its bytes, which are read when they are looked at."""
    import numpy as np
    import torch

    from engine.model.products.blocks import Stored

    maps = [_mapped(file) for file in index["files"]]
    for given in index["tensors"]:
        tensor = Tensor(given[0], given[1], tuple(given[2]), given[3], given[4])
        held, size = maps[tensor.file], tensor.rows * tensor.row_bytes
        data = torch.frombuffer(held, dtype=torch.uint8, count=size, offset=tensor.offset)
        order = None
        if len(tensor.shape) == 2:
            places = np.arange(tensor.rows)[:, None]
            found = processor.process(places, tensor.name, tensor_key_mapping=names, parsed_parameters={})
            if found.weights.shape == places.shape and not np.array_equal(found.weights, places):
                order = found.weights[:, 0].copy()
        rows = data.view(tensor.rows, tensor.row_bytes)
        yield tensor, Stored(rows, tensor.kind, tensor.shape[-1], order, _letting_go(held, tensor.offset, size))


def _mapped(file: Mapping[str, Any]) -> mmap.mmap:
    """A file in memory as far as it is looked at. Never written to: copies of pages would be this process's own."""
    with Path(file["path"]).open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)


def _letting_go(held: mmap.mmap, offset: int, size: int) -> Any:
    """Lets go of the pages that lie within a span, where the system can; they come back when they are looked at."""

    def let_go() -> None:
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0 and hasattr(held, "madvise"):
            held.madvise(mmap.MADV_DONTNEED, first, length)

    return let_go


def _fill_buffers(model: Any) -> None:
    """Buffers that no file has, as transformers fills them: frequencies of RoPE, factors of embeddings."""
    import torch

    for module in model.modules():
        own = {name: held for name, held in module.named_buffers(recurse=False) if held.is_meta}
        for name, held in own.items():
            setattr(module, name, torch.empty_like(held, device="cpu"))
        if own:
            model._init_weights(module)
