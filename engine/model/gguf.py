"""Opens a GGUF file in place: the weights are mapped into memory instead of being converted and stored a second time.

``describe`` writes a folder with everything in a file except its weights: settings (``gguf_settings``), the
vocabulary in transformers' form (made in a bounded child process), and ``INDEX``, which gives the place of each tensor.
``build`` makes the model of such a folder. Linear layers, embeddings and experts can keep the file's blocks
(``engine.model.products.blocks``), with the rows in transformers' order. ``app.models.gguf_files`` has already checked
the header: the file is complete and of a supported kind.
"""

from __future__ import annotations

import json
import math
import mmap
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from engine import foreign, model_files
from engine.errors import ModelError
from engine.model import gguf_settings, weights
from engine.model.architectures import kv_sources
from engine.model.families import FULL, LAYOUTS, GgufLayout
from engine.model.families.gguf_layout import EXPERTS, FACTORS, STATE_DECAY, STATE_NORM, Header
from engine.model.gguf_header import BLOCKS, Tensor, floats, read
from engine.model.weights import GGUF_INDEX as INDEX
from engine.quantization import card_bytes_per_weight, fitted_size

__all__ = ["describe"]

_TIED = "lm_head.weight"
_FLOAT = 0  # GGML's number for the format float32
_HALF_BYTES = 2  # bytes of a number in bfloat16
# Prefixes of the names that a layer's tensors have if they compute keys and values.
_KV_TENSORS = ("attn_k.", "attn_v.", "attn_k_norm.")
_BLOCK, _DECODER = "blk.", "model.layers."  # prefixes of a decoder block's weights, in the file and in transformers
_OTHER = "Choose another file."
_HEAD_PROJECTION = "nextn.eh_proj.weight"  # the tensor that every draft head has
# Names of a draft head's tensors beside its layer's, and our own names (``engine.model.own_head``).
_HEAD_NAMES = {
    "nextn.eh_proj": "model.fusion.projection",
    "nextn.enorm": "model.fusion.embedding_norm",
    "nextn.hnorm": "model.fusion.hidden_norm",
    "nextn.shared_head_norm": "model.norm",
}
# Tensors of a draft head that repeat the target's embedding and head, and our names of the target's.
_COPIES, _OF_TARGET = ("nextn.embed_tokens", "nextn.shared_head_head"), ("model.embed_tokens.", "lm_head.")
_TOKENS = "tokenizer.ggml.tokens"

Blocks = Literal["all", "card", "decoder", "none"]


# From a file to a folder of settings ---------------------------------------------------------------------------------


def describe(files: Sequence[Path], out: Path, readme: str) -> tuple[str, ...]:
    """Write everything of a model except its weights into an empty folder. ``files`` are all files of the model.

    Returns:
        The result of a child process that tried the new tokenizer. ``foreign.keep`` stores this result.

    Raises:
        ModelError: the kind of model or of weights is not supported, or the vocabulary cannot be read.
    """
    fields: dict[str, Any] = {}
    all_tensors: list[Tensor] = []
    for number, file in enumerate(files):
        own, tensors = read(file, number)
        fields, all_tensors = {**own, **fields}, all_tensors + tensors
    for tensor in all_tensors:
        if tensor.kind not in BLOCKS:
            raise ModelError(f"{files[0].name} holds {tensor.name} in a kind that is not read here.", _OTHER)
    header = Header(fields, {tensor.name for tensor in all_tensors}, fields[_TOKENS], files[0].name)
    settings = gguf_settings.settings_of(header)
    factors = {each.name: floats(files[each.file], each) for each in all_tensors if each.name in FACTORS}
    rope = settings["rope_parameters"]
    LAYOUTS[header.architecture].stretch(rope.get(FULL, rope), factors)
    parameters = sum(math.prod(tensor.shape) for tensor in all_tensors)
    size = sum(tensor.rows * tensor.row_bytes for tensor in all_tensors)
    settings["stored_bytes_per_weight"] = round(size / parameters, 3)
    blocks = sum(math.prod(tensor.shape) for tensor in all_tensors if tensor.name.startswith(_BLOCK))
    fitted = _fitted((tensor.name, tensor.kind, tensor.shape) for tensor in all_tensors)
    settings["fitted_bytes_per_weight"] = round(fitted / max(1, blocks), 3)
    on_card = card_bytes_per_weight(size / parameters, {tensor.kind for tensor in all_tensors})
    settings |= {"card_bytes_per_weight": round(on_card, 3)} if on_card else {}
    seen = [file.stat() for file in files]
    index = {
        "architecture": header.architecture,
        "files": [
            {"path": str(file.resolve()), "bytes": stat.st_size, "changed": stat.st_mtime_ns}
            for file, stat in zip(files, seen, strict=True)
        ],
        "parameters": parameters,
        "tensors": [[each.name, each.kind, each.shape, each.file, each.offset] for each in all_tensors],
    }
    _write(out / model_files.SETTINGS, settings)
    _write(out / model_files.GENERATION, gguf_settings.generation_of(header, _ids_of(header, files[0])))
    _write(out / INDEX, index)
    (out / "README.md").write_text(readme, encoding="utf-8")
    return foreign.save_gguf_tokenizer(files[0], settings["model_type"], out)


def _ids_of(header: Header, file: Path) -> list[int]:
    """Find the ids of the tokens that end a text in every model of the file's kind (``GgufLayout.ends``), although the
    file does not say so.
    """
    ends = LAYOUTS[header.architecture].ends
    words = read(file, vocabulary=True)[0][_TOKENS] if ends else ()
    return [words.index(end) for end in ends if end in words]


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")


# From a folder of settings to a model --------------------------------------------------------------------------------


def is_described(folder: Path) -> bool:
    """Whether a folder's weights lie in a GGUF file."""
    return (folder / INDEX).is_file()


def keeps_blocks(weights: str, device: Any) -> bool:
    """Whether products on ``device`` (a ``torch.device``) read the blocks of a GGUF file as they are stored, without
    rounding or expanding them.

    Args:
        weights: the value of the setting ``weights``.
    """
    from engine.model.kernels import native

    return weights == "stored" and device.type == "cpu" and native.own() is not None


def kinds_of(folder: Path) -> list[int]:
    """Return GGML's numbers for the formats of all matrices in a file."""
    return sorted({kind for _, kind, shape, *_ in weights.gguf_index(folder)["tensors"] if len(shape) > 1})


def card_bytes(folder: Path) -> tuple[int, int]:
    """Bytes that the weights of the decoder blocks and all other weights take on a GPU that keeps the file's blocks
    (``engine.model.products.card_blocks``).
    """
    from engine.model.kernels.block_products import CARD_FORMATS

    blocks = others = 0.0
    for name, kind, shape, *_ in weights.gguf_index(folder)["tensors"]:
        form = CARD_FORMATS.get(kind)
        size = math.prod(shape) * (form.bytes_per_weight if form else _HALF_BYTES)
        blocks, others = (blocks + size, others) if name.startswith(_BLOCK) else (blocks, others + size)
    return int(blocks), int(others)


def keeps_on_card(name: str, weights: str, dtype: Any, devices: Sequence[Any]) -> bool:
    """Whether products on these devices (``torch.device``) are on GPUs and read weights that have exactly the values of
    a model's GGUF file. Other models are expanded.

    Args:
        name: the model's folder, or its name on the hub.
        weights: the value of the setting ``weights``.
        dtype: the ``torch.dtype`` of activations.
    """
    import torch

    from engine.model.products.card_blocks import multiplies_blocks

    if weights != "stored" or dtype is not torch.bfloat16:
        return False
    if any(device.type != "cuda" for device in devices) or not is_described(Path(name)):
        return False
    kinds = kinds_of(Path(name))
    return all(multiplies_blocks(device, kinds) for device in devices)


def fitted_bytes(folder: Path) -> int:
    """Bytes that the weights of the decoder blocks take on a GPU after rounding (``FITTED``). A file is rounded if it
    does not fit the GPU.
    """
    return int(_fitted((name, kind, shape) for name, kind, shape, *_ in weights.gguf_index(folder)["tensors"]))


def _fitted(tensors: Iterable[tuple[str, int, Sequence[int]]]) -> float:
    """Bytes of the decoder blocks' tensors in the formats that ``FITTED`` chooses. Each tensor is given as its name,
    its format and its shape.
    """
    blocks = ((kind if len(shape) > 1 else _FLOAT, shape) for name, kind, shape in tensors if name.startswith(_BLOCK))
    return sum(fitted_size(kind, math.prod(shape)) for kind, shape in blocks)


def kinds_of_block(folder: Path) -> dict[str, int]:
    """Return GGML's number for the most common format of each tensor in the decoder blocks, keyed by transformers' name
    of the tensor in its block, such as "mlp.down_proj.weight".
    """
    index = weights.gguf_index(folder)
    names, counted = LAYOUTS[index["architecture"]], defaultdict[str, Counter[int]](Counter)
    for tensor, kind, *_ in index["tensors"]:
        if (name := names.name(tensor) or "").startswith(_DECODER):
            counted[name.split(".", 3)[-1]][kind] += 1
    return {name: kinds.most_common(1)[0][0] for name, kinds in counted.items()}


def build(folder: Path, config: Any, dtype: Any, attention: str, blocks: Blocks, device: Any = None) -> Any:
    """Build a transformers causal LM from a folder that ``describe`` wrote.

    Args:
        dtype: dtype of activations.
        attention: name of the attention implementation.
        blocks: the layers that keep the file's blocks: "all" and "card" are linear layers, embeddings and experts;
            "decoder" are the linear layers and experts of decoder blocks; "none" are no layers. All other weights are
            expanded in memory: to float32 with "all", because our own kernels take float32 and few weights are left,
            otherwise to ``dtype``.
        device: the ``torch.device`` for weights outside of decoder blocks, such as the embedding; None: host memory.

    Raises:
        ModelError: the file is missing or has changed, or its weights do not fit the model's kind.
    """
    from engine.model.products import fixed

    index = weights.gguf_index(folder)
    layout = LAYOUTS[index["architecture"]]
    model = _without_weights(folder, config, dtype, attention)
    biases = _fill(model, _named(index, layout, config), index, config, dtype, blocks, device)
    if layout.tiled:
        _order_outputs(model, config)
    for path, bias in biases.items():
        model.get_submodule(path).bias = fixed(bias)
    if config.tie_word_embeddings:
        _tie(model, dtype)
    return model


def holds_head(folder: Path) -> bool:
    """Whether the GGUF files of a folder hold a draft head (``engine.model.own_head``)."""
    return _block_of_head(weights.gguf_index(folder)) is not None


def fill_head(folder: Path, model: Any, config: Any, dtype: Any, *, keeps_blocks: bool) -> None:
    """Give a draft head its weights from the GGUF files of a folder.

    Args:
        model: the head without weights, as ``own_head.skeleton`` makes it.
        config: the head's configuration.
        dtype: dtype of activations.
        keeps_blocks: whether linear layers and experts keep the file's blocks.

    Raises:
        ModelError: the file has changed, or its weights do not fit the model's kind.
    """
    index = weights.gguf_index(folder)
    named = _named_of_head(index, LAYOUTS[index["architecture"]], config)
    _fill(model, named, index, config, dtype, "all" if keeps_blocks else "none", shared=_OF_TARGET)


def _fill(
    model: Any,
    named: Iterable[tuple[Tensor, str, Any]],
    index: Mapping[str, Any],
    config: Any,
    dtype: Any,
    blocks: Blocks,
    device: Any = None,
    shared: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Give a model its weights. Return the biases of linear layers, keyed by the layer's path, which the caller sets.

    Args:
        named: the tensors, as ``_named`` yields them.
        device: as in ``build``.
        shared: prefixes of the weights that another model gives.

    Raises:
        ModelError: the weights do not fit the model.
    """
    title, layout = Path(index["files"][0]["path"]).name, LAYOUTS[index["architecture"]]
    wanted = {name: tuple(part.shape) for name, part in model.state_dict().items() if not name.startswith(shared)}
    if getattr(config, "tie_word_embeddings", False):
        wanted.pop(_TIED, None)
    biases: dict[str, Any] = {}
    experts: dict[str, dict[str, tuple[Tensor, Any]]] = {}
    for tensor, name, stored in named:
        path, _, last = name.rpartition(".")
        if path.rpartition(".")[0].endswith(EXPERTS):  # an expert's gate, up or down projection
            path, _, part = path.rpartition(".")
            experts.setdefault(path, {})[f"{part}.{last}"] = tensor, stored
            continue
        if (shape := wanted.pop(name, None)) is None:
            raise ModelError(f"{title} holds {tensor.name}, which a model of its kind does not have.", _OTHER)
        if (stored.outputs, stored.inputs) != (math.prod(shape[:-1]), shape[-1]):
            raise ModelError(f"{title} holds {tensor.name} in a shape that a model of its kind does not have.", _OTHER)
        if not _takes_blocks(model, name, stored, dtype, blocks):
            place = None if name.startswith(_DECODER) else device
            if blocks != "all" and len(shape) > 1:
                values = stored.expanded(dtype, place).view(shape)
            else:
                values = _as_in_transformers(stored.values().view(shape), tensor, name, layout, config)
                values = values if blocks == "all" else values.to(device=place, dtype=dtype)
            _give(model, name, values, biases)
            stored.release()
    for path, parts in experts.items():
        if f"{path}.down_proj" not in wanted:
            raise ModelError(f"{title} holds {path}, which a model of its kind does not have.", _OTHER)
        for name in _take_experts(model, path, parts, title, dtype, blocks != "none"):
            wanted.pop(name)
    if wanted:
        raise ModelError(f"{title} lacks {min(wanted)}.", _OTHER)
    return biases


def _without_weights(folder: Path, config: Any, dtype: Any, attention: str) -> Any:
    from accelerate import init_empty_weights
    from transformers import AutoModelForCausalLM, GenerationConfig

    # The file has no buffers, such as the frequencies of RoPE, so buffers are computed here.
    with init_empty_weights(include_buffers=False):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)
    model.generation_config = GenerationConfig.from_pretrained(folder)
    return model


def _named(index: Mapping[str, Any], layout: GgufLayout, config: Any) -> Iterator[tuple[Tensor, str, Any]]:
    """Yield every tensor that the model uses, with its name in transformers ("" if it has none) and its bytes."""
    # Prefixes of the names of the tensors that are left out: RoPE factors, which are settings in transformers; tensors
    # for the keys and values of a layer that reads another layer's KV (Gemma 4); and the layer for multi-token
    # prediction, which follows the last layer (Qwen 3.5).
    left_out = [*FACTORS, *(f"blk.{layer}.{own}" for layer in kv_sources(config) for own in _KV_TENSORS)]
    if layout.tiled:
        left_out.append(f"blk.{config.num_hidden_layers}.")
    for tensor, stored in _stored(index, layout, config):
        if not tensor.name.startswith(tuple(left_out)):
            yield tensor, layout.name(tensor.name) or "", stored


def _block_of_head(index: Mapping[str, Any]) -> str | None:
    """Return the prefix of the names of the draft head's tensors; None if there is no head. The first of several heads
    is taken.
    """
    heads = [name for name, *_ in index["tensors"] if name.endswith(_HEAD_PROJECTION)]
    return min(heads, key=lambda name: (len(name), name)).removesuffix(_HEAD_PROJECTION) if heads else None


def _named_of_head(index: Mapping[str, Any], layout: GgufLayout, config: Any) -> Iterator[tuple[Tensor, str, Any]]:
    """Yield every tensor of the draft head that is not the target's, as ``_named``."""
    prefix = _block_of_head(index)
    assert prefix is not None
    for tensor, stored in _stored(index, layout, config):
        own = tensor.name.removeprefix(prefix)
        if own == tensor.name or own.startswith(_COPIES):
            continue
        name, _, last = own.rpartition(".")
        if name in _HEAD_NAMES:
            yield tensor, f"{_HEAD_NAMES[name]}.{last}", stored
        else:
            yield tensor, layout.name(f"blk.0.{own}") or "", stored


def _takes_blocks(model: Any, name: str, stored: Any, dtype: Any, blocks: Blocks) -> bool:
    """Replace a linear layer or an embedding by one that keeps the file's blocks. Return whether it was replaced. Other
    kinds of layers, and layers that ``blocks`` leaves out (``build``), are not replaced.
    """
    from torch import nn

    from engine.model.experts import chooses
    from engine.model.products import replace
    from engine.model.products.blocks import BlockEmbedding, BlockLinear

    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    included = blocks in ("all", "card") or (blocks == "decoder" and name.startswith(_DECODER))
    # Routers of experts are expanded, not kept in blocks.
    included = included and not chooses(".".join(name.split(".")[3:]))
    if not included or last != "weight" or not isinstance(module, nn.Linear | nn.Embedding):
        return False
    embeds = isinstance(module, nn.Embedding)
    replace(model, path, BlockEmbedding(stored, module, dtype) if embeds else BlockLinear(stored, None, dtype))
    return True


def _give(model: Any, name: str, values: Any, biases: dict[str, Any]) -> None:
    """Set the weight ``name`` of a model. The bias of a linear layer is only noted in ``biases``, keyed by the layer's
    path, because the layer may be replaced later.
    """
    from torch import nn

    from engine.model.products import fixed
    from engine.model.products.blocks import BlockLinear

    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    if last == "bias" and isinstance(module, nn.Linear | BlockLinear):
        biases[path] = values
    else:
        setattr(module, last, fixed(values))


def _as_in_transformers(values: Any, tensor: Tensor, name: str, layout: GgufLayout, config: Any) -> Any:
    """Convert the values of a weight to transformers' form. Undoes three changes of llama.cpp's converter: it reorders
    values, adds 1 to the weights of norms, and stores -exp(A_log) instead of A_log.

    Args:
        name: transformers' name of the weight.
    """
    import torch

    path, _, last = name.rpartition(".")
    if values.ndim == 1 and (order := _order(tensor, layout, config)) is not None:
        values = values[torch.from_numpy(order)]
    if layout.centred and last == "weight" and values.ndim == 1 and not path.endswith(STATE_NORM):
        values = values - 1.0
    return (-values).log() if last == STATE_DECAY else values


def _order_outputs(model: Any, config: Any) -> None:
    """Set ``output_order`` of each recurrent layer: the order in which the layer passes its values to the output
    projection, whose columns stay in the file's order.
    """
    import numpy as np
    import torch

    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            back = np.argsort(_tiled(config, config.linear_value_head_dim))
            layer.linear_attn.output_order = torch.from_numpy(back)


def _take_experts(
    model: Any, path: str, found: Mapping[str, tuple[Tensor, Any]], title: str, dtype: Any, as_stored: bool
) -> list[str]:
    """Set the experts of a layer from a file's tensors. Return the names of the experts' weights in transformers.

    Args:
        path: path of the layer's experts.
        found: the tensors and their bytes, keyed by ``gate.weight`` and so on. Each tensor holds a matrix of every
            expert.
        title: the file's name, for messages.
    """
    from engine.model.products import replace
    from engine.model.products.blocks import BlockExperts

    module = model.get_submodule(path)
    names = [name for name, _ in module.named_parameters()]
    try:
        new = BlockExperts(module, {name: stored for name, (_, stored) in found.items()}, dtype)
    except (KeyError, ValueError) as error:
        raise ModelError(f"{title} does not store {path} like a model of its kind.", _OTHER) from error
    replace(model, path, new if as_stored else new.in_transformers())
    return [f"{path}.{name}" for name in names]


def _tie(model: Any, dtype: Any) -> None:
    from engine.model.products.blocks import BlockEmbedding, BlockLinear

    embedding = model.get_input_embeddings()
    if isinstance(embedding, BlockEmbedding):
        model.lm_head = BlockLinear(embedding.stored, None, dtype)
    model.lm_head.weight = embedding.weight


def _stored(index: Mapping[str, Any], layout: GgufLayout, config: Any) -> Iterator[tuple[Tensor, Any]]:
    """Yield every tensor with its bytes. The bytes are mapped, so they are read from the file only when they are
    used.
    """
    import torch

    from engine.model.products.blocks import Stored

    maps = [_mapped(file) for file in index["files"]]
    for given in index["tensors"]:
        tensor = Tensor(given[0], given[1], tuple(given[2]), given[3], given[4])
        held, size = maps[tensor.file], tensor.rows * tensor.row_bytes
        with warnings.catch_warnings():  # torch warns that the memory cannot be written to, which nothing does
            warnings.simplefilter("ignore", UserWarning)
            data = torch.frombuffer(held, dtype=torch.uint8, count=size, offset=tensor.offset)
        order = _order(tensor, layout, config) if len(tensor.shape) > 1 else None
        rows = data.view(tensor.rows, tensor.row_bytes)
        yield tensor, Stored(rows, tensor.kind, tensor.shape[-1], order, _letting_go(held, tensor.offset, size))


def _order(tensor: Tensor, layout: GgufLayout, config: Any) -> Any:
    """Compute the order in which transformers stores the rows of a tensor, as indices of rows in the file. None if the
    file has the same order. A tensor with one axis has single numbers instead of rows.

    The orders of queries and keys differ because llama.cpp's RoPE pairs neighbouring numbers, whereas transformers'
    RoPE pairs the two halves of a head. Value heads of recurrent layers differ too (``GgufLayout.tiled``).
    """
    import numpy as np

    own, count = tensor.name.split(".", 2)[-1], tensor.rows if len(tensor.shape) > 1 else tensor.shape[0]
    heads = {"attn_q.weight": "num_attention_heads", "attn_k.weight": "num_key_value_heads"} if layout.halves else {}
    # If the number of rows does not fit the number of heads, the later check of shapes refuses the tensor.
    if own in heads and count % (2 * getattr(config, heads[own])) == 0:
        return np.arange(count).reshape(getattr(config, heads[own]), -1, 2).swapaxes(1, 2).flatten()
    if (
        not layout.tiled
        or not own.startswith(("ssm_", "attn_qkv", "attn_gate"))
        or own.startswith(("ssm_norm", "ssm_out"))
    ):
        return None
    # These tensors have rows for queries and keys before those for values.
    whole = own.startswith(("attn_qkv", "ssm_conv1d"))
    before = 2 * config.linear_num_key_heads * config.linear_key_head_dim if whole else 0
    width = config.linear_value_head_dim if whole or own.startswith("attn_gate") else 1
    order = np.concatenate([np.arange(before), before + _tiled(config, width)])
    return order if len(order) == count else None


def _tiled(config: Any, width: int) -> Any:
    """Compute the order in which transformers stores the numbers of all value heads, as indices of numbers in the file.
    Each head has ``width`` numbers.
    """
    import numpy as np

    groups = config.linear_num_key_heads
    return np.arange(config.linear_num_value_heads * width).reshape(-1, groups, width).swapaxes(0, 1).flatten()


def _mapped(file: Mapping[str, Any]) -> mmap.mmap:
    """Map a file into memory, so that each page is read when it is first used. The mapping is read-only, because
    Windows reserves memory for the whole file if a mapping can be written to.
    """
    with Path(file["path"]).open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def _letting_go(file_map: mmap.mmap, offset: int, size: int) -> Any:
    """Make a function that releases the memory of a tensor's pages. A released page is read again when it is used. On
    systems without ``madvise`` the function does nothing.
    """

    def let_go() -> None:
        # Only pages that lie completely in the tensor are released, because the pages at its ends also hold other
        # tensors.
        first = -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE
        length = (offset + size) // mmap.PAGESIZE * mmap.PAGESIZE - first
        if length > 0 and hasattr(file_map, "madvise"):
            file_map.madvise(mmap.MADV_DONTNEED, first, length)

    return let_go
