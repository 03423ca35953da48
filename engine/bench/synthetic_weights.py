"""Makes synthetic weights: grows a small trained Llama into a larger Llama's shape, so that it computes the same
function.

Speculation's speed depends on acceptance, and tokens proposed by random weights are never accepted. To measure a large
model whose real weights are not available, a small trained target and its draft are grown into its shape. They write
the same text with the same acceptance as before, but their weights, KV and arithmetic cost as much as the large
model's. Figures measured with them carry the note "stand-in weights".

How the function stays the same (W and D are the new width and head_dim, w and d the old ones):
    width     New components are zero. RMSNorm takes the mean square over W instead of w components, so its weight is
              multiplied by sqrt(w / W), and eps by w / W.
    head_dim  RoPE's component pair i, at frequency base^(-2i/d), becomes pair i * D / d, at the same frequency. The
              other component pairs are zero. Attention scores are divided by sqrt(D) instead of sqrt(d), so queries are
              multiplied by sqrt(D / d).
    heads     A KV head keeps its number, and its query heads come first in its new group. The outputs of new query
              heads are multiplied by zero.
    layers    New layers are random and add zeros to the residual stream. They have no effect, but they cost KV and
              computation.

    vocabulary
              New tokens are never chosen: their logits are far below those of the old tokens. The last component of the
              residual stream has the same small number in every embedding. No layer reads or writes it, and only the
              new tokens' rows of the head multiply it, by a large negative number.

RoPE can be grown only if its type is one of ``_GROWABLE_ROPE``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from engine.bench.report import STAND_IN
from engine.config import EngineConfig
from engine.errors import OptionError, UnsupportedModel
from engine.model import architectures, attention, loading
from engine.model.backends.program import pack
from engine.model.decoder import Decoder
from engine.model.kv_shape import Split
from engine.model.products.norms import fuse_norms
from engine.plan.planner import pick_device
from engine.prompt import BookTokenizer

_GROWABLE_ROPE = ("default", "linear", "llama3")
# Number in the last component of every embedding, if the vocabulary grows. It is exact in every dtype, and so small
# that norms of the other components hardly change.
_MARK = 2.0**-8
# Factor of this component in the head's rows for new tokens: within the range of float16, and so large that all new
# tokens together have almost no probability.
_SILENCE = -60_000.0


@dataclass(frozen=True)
class LlamaShape:
    """The shape of a Llama model. The fields have the names of transformers' configuration. A ``vocab_size`` of 0 keeps
    the small model's vocabulary.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int = 0


SHAPES = {
    "llama-2-7b": LlamaShape(4096, 11008, 32, 32, 32, 128, 32_000),
    "llama-2-13b": LlamaShape(5120, 13824, 40, 40, 40, 128, 32_000),
    "llama-3.1-8b": LlamaShape(4096, 14336, 32, 32, 8, 128, 128_256),
    # The real Llama 3.2 1B has twice as many heads, with half this head_dim. But the bundled draft has a head_dim of
    # 128, and can be grown only into a multiple of 128. Time and memory of a pass are as in the real model.
    "llama-3.2-1b": LlamaShape(2048, 8192, 16, 16, 4, 128, 128_256),
    "llama-68m": LlamaShape(768, 3072, 2, 6, 6, 128, 32_000),
}


# The shape into which the draft is grown, keyed by the target's shape. If the target's shape is not listed, the draft
# is grown into the same shape as the target.
DRAFTS = {
    "llama-2-7b": "llama-68m",
    "llama-2-13b": "llama-68m",
    "llama-3.1-8b": "llama-3.2-1b",
}


def synthetic_pair(
    config: EngineConfig, shape: str, draft_shape: str | None = None, split: Split | None = None
) -> tuple[BookTokenizer, Decoder, Decoder | None]:
    """Make the tokenizer, target and draft of a session whose models have synthetic weights.

    Args:
        config: names the small pair, the window, the device and the dtype.
        shape: name of the target's shape.
        draft_shape: name of the draft's shape; None uses ``DRAFTS``.
        split: assigns the target's layers to devices.

    Raises:
        OptionError: a shape is unknown, or smaller than the small model.
        UnsupportedModel: the pair cannot be grown.
    """
    device = pick_device(config.device)
    grown: dict[str, Any] = {"window": config.context, "device": device, "dtype": config.dtype}
    target = load(config.model, named(shape), shape, split=split, **grown)
    draft = None
    if config.draft is not None:
        draft = _draft(config, draft_shape or DRAFTS.get(shape, shape), target, grown)
    return BookTokenizer(config.model), target, draft


def named(shape: str) -> LlamaShape:
    """Return the shape that ``SHAPES`` has under a name.

    Raises:
        OptionError: there is no such shape.
    """
    if shape not in SHAPES:
        raise OptionError(f"There is no shape {shape!r}.", f"Known: {', '.join(SHAPES)}.")
    return SHAPES[shape]


def _draft(config: EngineConfig, shape: str, target: Decoder, grown: dict[str, Any]) -> Decoder:
    """Grow the small draft into ``shape``, but with at least as many layers as the small draft. If it cannot be grown
    into the shape, load the small draft itself.
    """
    assert config.draft is not None
    small = architectures.load_config(config.draft)
    wanted = named(shape)
    deep = replace(wanted, num_hidden_layers=max(wanted.num_hidden_layers, small.num_hidden_layers))
    dtype = str(target.dtype).removeprefix("torch.")
    try:
        return load(config.draft, deep, shape, **{**grown, "dtype": dtype})
    except (OptionError, UnsupportedModel):
        return loading.load(config.draft, window=None, device=grown["device"], dtype=dtype)


def load(
    name: str,
    shape: LlamaShape,
    label: str,
    *,
    window: int | None,
    device: torch.device,
    dtype: str,
    split: Split | None = None,
) -> Decoder:
    """Load a small model and grow it into ``shape`` on ``device``.

    Args:
        name: folder or hub id of the small model.
        label: name of the shape, which becomes part of the decoder's name.
        window, dtype, split: as in ``loading.load``; "auto" chooses the dtype by the shape's size.

    Raises:
        UnsupportedModel: the model is not a Llama, or its RoPE cannot be grown.
        OptionError: the shape is too small for the model.
    """
    small = loading.load(name, window=None, device=torch.device("cpu"), dtype="float32", packed=False)
    config = grown_config(small.config, shape, window)
    chosen = architectures.pick_dtype(config, dtype, device)
    large = grow(small.model, config, device, chosen)
    if device.type == "cuda":
        fuse_norms(large)
    loading.place(large, device, split)
    pack(large)
    return Decoder(large, f"{label} ({STAND_IN})", config.max_position_embeddings, chosen, split)


def grown_config(config: Any, shape: LlamaShape, window: int | None = None) -> Any:
    """Make the configuration of a model with the shape ``shape`` that can compute the same function as a model of
    ``config``.

    Raises:
        UnsupportedModel, OptionError: as in ``load``.
    """
    _check(config, shape)
    grown = type(config)(**config.to_dict())
    for key, value in vars(shape).items():
        setattr(grown, key, value or getattr(config, key))
    # New tokens need rows of their own in the head. A pass over a token reads no more bytes than with a tied head.
    grown.tie_word_embeddings = config.tie_word_embeddings and grown.vocab_size == config.vocab_size
    grown.rms_norm_eps = config.rms_norm_eps * config.hidden_size / shape.hidden_size
    grown.max_position_embeddings = window or config.max_position_embeddings
    if getattr(grown, "layer_types", None):
        grown.layer_types = ["full_attention"] * shape.num_hidden_layers
    return grown


def grow(small: Any, config: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """Make a transformers model of ``config`` (from ``grown_config``) that computes the same function as ``small``."""
    from transformers import AutoModelForCausalLM

    attention.register()
    with torch.device(device):
        large = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention.IMPLEMENTATION)
    large.requires_grad_(False)
    norm = math.sqrt(small.config.hidden_size / config.hidden_size)
    with torch.inference_mode():
        _corner(large.model.embed_tokens.weight, small.model.embed_tokens.weight)
        _corner(large.lm_head.weight, small.lm_head.weight)
        _corner(large.model.norm.weight, small.model.norm.weight * norm)
        for index, layer in enumerate(large.model.layers):
            if index < len(small.model.layers):
                _grow_layer(layer, small.model.layers[index], small.config, config, norm)
            else:
                layer.self_attn.o_proj.weight.zero_()
                layer.mlp.down_proj.weight.zero_()
        if config.vocab_size > small.config.vocab_size:
            large.model.embed_tokens.weight[:, -1] = _MARK
            large.model.norm.weight[-1] = 1.0
            large.lm_head.weight[small.config.vocab_size :, -1] = _SILENCE
    return large.eval()


def _check(config: Any, shape: LlamaShape) -> None:
    rope = getattr(config, "rope_parameters", None) or {}
    if config.model_type != "llama" or rope.get("rope_type", "default") not in _GROWABLE_ROPE:
        raise UnsupportedModel(
            f"A {config.model_type} model with RoPE of kind {rope.get('rope_type', 'default')!r} cannot be grown.",
            f"Stand-ins are made of Llama models with RoPE of the kinds {', '.join(_GROWABLE_ROPE)}.",
        )
    old, group = vars(shape), shape.num_attention_heads // shape.num_key_value_heads
    small = {key: getattr(config, key, None) or 0 for key in old}
    short = [key for key, value in small.items() if value > (old[key] or value)]
    if shape.vocab_size > small["vocab_size"] and shape.hidden_size == small["hidden_size"]:
        short.append("hidden_size (no room for the mark of new tokens)")
    if small["num_attention_heads"] // small["num_key_value_heads"] > group:
        short.append("num_attention_heads per num_key_value_heads")
    if shape.head_dim % max(1, small["head_dim"]):
        short.append("head_dim (no multiple)")
    if short:
        raise OptionError(f"The model does not fit into this shape: {', '.join(short)}.", "Choose a larger shape.")


def _grow_layer(layer: Any, small: Any, old: Any, new: Any, norm: float) -> None:
    for name in ("input_layernorm", "post_attention_layernorm"):
        _corner(getattr(layer, name).weight, getattr(small, name).weight * norm)
    for name in ("gate_proj", "up_proj", "down_proj"):
        _corner(getattr(layer.mlp, name).weight, getattr(small.mlp, name).weight)
    theirs, ours = small.self_attn, layer.self_attn
    dims, spread = _head_dims(old.head_dim, new.head_dim), math.sqrt(new.head_dim / old.head_dim)
    group, old_group = (c.num_attention_heads // c.num_key_value_heads for c in (new, old))
    # A KV head of the large shape may have more query heads. Each query head of the small model keeps its KV head.
    heads = [head // old_group * group + head % old_group for head in range(old.num_attention_heads)]
    queries = torch.tensor([head * new.head_dim + dim for head in heads for dim in dims])
    keys = torch.tensor([head * new.head_dim + dim for head in range(old.num_key_value_heads) for dim in dims])
    _rows(ours.q_proj.weight, theirs.q_proj.weight * spread, queries)
    _rows(ours.k_proj.weight, theirs.k_proj.weight, keys)
    _rows(ours.v_proj.weight, theirs.v_proj.weight, keys)
    _rows(ours.o_proj.weight.T, theirs.o_proj.weight.T, queries)


def _head_dims(old: int, new: int) -> list[int]:
    """Return the index in a grown head of each component of a small head. RoPE rotates component i together with
    component i + d/2, so each half of the small head is spread over one half of the grown head.
    """
    step, half = new // old, old // 2
    return [index * step + part * (new // 2) for part in range(2) for index in range(half)]


def _corner(large: torch.Tensor, small: torch.Tensor) -> None:
    """Fill ``large`` with zeros, and with ``small`` at the first indices of every axis."""
    large.zero_()
    large[tuple(slice(size) for size in small.shape)] = small.to(large.device, large.dtype)


def _rows(large: torch.Tensor, small: torch.Tensor, places: torch.Tensor) -> None:
    """Fill ``large`` with zeros, and with the rows of ``small`` at the indices ``places``."""
    large.zero_()
    large[places.to(large.device), : small.shape[1]] = small.to(large.device, large.dtype)
