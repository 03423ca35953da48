"""Defines how the GGUF files of an architecture are laid out: names of tensors, and the settings that a header states.

States the changes that llama.cpp's converter made to tensors; ``engine.model.gguf`` undoes them. Standard library only,
because the app reads headers before any other work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ModelError

__all__ = ["Header"]

LLAMA_3_FACTORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = (LLAMA_3_FACTORS, LONG_FACTORS, SHORT_FACTORS)
"""Tensors with the factors that divide RoPE's frequencies, in Llama 3 and Phi-3. The fields of a header do not hold
these factors.
"""

EXPERTS = ".experts"
"""The last part of the path of a layer's experts in transformers."""

STATE_NORM = "linear_attn.norm"
"""The norm of a recurrent layer's output. Its weights are stored unchanged, even if other norms of the architecture are
stored with 1 added to the weights.
"""

STATE_DECAY = "A_log"
"""The decay of a recurrent state. The file stores -exp(A_log), where A_log is transformers' parameter."""

OUTPUT = "output.weight"
"""The tensor of the output head. A model without this tensor uses its embedding as the head."""

_ELSEWHERE = "Many more models are read as safetensors: a folder of this machine, or owner/name on the hub."
_REMEDY = "Get the file again."
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
# RoPE's long wavelengths are stretched by the factor 8 in Llama 3.1 and 3.3, and by 32 in Llama 3.2.
_LLAMA_3_FACTORS = (8.0, 32.0)
_CLOSE = 1e-3  # Relative tolerance in comparisons with stored factors, which were rounded to 32 bits.

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
NAMES = {
    "attn_norm": "input_layernorm",
    **{f"attn_{each}": f"self_attn.{each}_proj" for each in "qkv"},
    **{f"attn_{each}_norm": f"self_attn.{each}_norm" for each in "qk"},
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    **{f"ffn_{each}": f"mlp.{each}_proj" for each in ("gate", "up", "down")},
}
"""transformers' names of a layer's weights, keyed by the file's names. Both begin after the layer number."""

EXPERT_NAMES = {
    **NAMES,
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{each}_exps": f"mlp.experts.{each}" for each in ("gate", "up", "down")},
}
"""Names in kinds with experts, as in ``NAMES``. transformers joins the gate and up weights of experts in
``gate_up_proj``, so our own names are used below ``mlp.experts``.
"""

NAMES_AFTER_ATTENTION = {
    **{name: here for name, here in EXPERT_NAMES.items() if name != "ffn_norm"},
    "post_attention_norm": "post_attention_layernorm",
}
"""Names in kinds whose files call the norm before the MLP ``post_attention_norm`` instead of ``ffn_norm``."""


class Header:
    """The content of a GGUF file's header.

    Args:
        fields: values of the fields, keyed by name.
        names: names of the file's tensors.
        vocabulary: number of tokens of the vocabulary.
        file: the file's name for messages.
    """

    def __init__(self, fields: Mapping[str, Any], names: Collection[str], vocabulary: int, file: str) -> None:
        self.fields, self.names, self.vocabulary, self.file = fields, names, vocabulary, file
        self.architecture = str(fields.get("general.architecture", ""))

    def get(self, name: str, default: Any = None) -> Any:
        """Return a field of the model's architecture; ``default`` if the field is missing."""
        return self.fields.get(f"{self.architecture}.{name}", default)

    def number(self, name: str, default: float | None = None) -> Any:
        """Return a field of the model's architecture that must be a finite number; ``default`` if the field is missing.

        Raises:
            ModelError: the value is no finite number, or the field is missing and ``default`` is None.
        """
        value = self.get(name, default)
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ModelError(f"{self.file} gives no {name} that can be right.", _REMEDY)
        return value

    def token(self, name: str) -> int | None:
        """Return the id of a special token. None if the field is missing, or if the id is not in the vocabulary. Some
        files have such an id for the padding token.
        """
        value = self.fields.get(f"tokenizer.ggml.{name}")
        return value if type(value) is int and 0 <= value < self.vocabulary else None

    def refusal(self, property_name: str) -> ModelError:
        """Make the error for a property of the file that is not supported."""
        return ModelError(f"{self.file} {property_name} read from GGUF.", _ELSEWHERE)


def stretch_rope(rope: dict[str, Any], factors: Mapping[str, Sequence[float]]) -> None:
    """Set the scaling of RoPE settings from the factors of a file, which are keyed by the names in ``FACTORS``. Each
    list has one factor for each pair of head dimensions.

    Raises:
        ModelError: the factors are of an unsupported kind.
    """
    if LLAMA_3_FACTORS in factors:
        rope |= llama_3_rope(rope["rope_theta"], factors[LLAMA_3_FACTORS])
    if LONG_FACTORS in factors:
        rope |= {"rope_type": "longrope", "long_factor": list(factors[LONG_FACTORS])}
        rope |= {"short_factor": list(factors[SHORT_FACTORS])}


def llama_3_rope(theta: float, factors: Sequence[float]) -> dict[str, Any]:
    """Find the RoPE settings of the Llama 3 model that has these scaling factors, one for each pair of head dimensions.

    Raises:
        ModelError: the factors are not those of Llama 3.
    """
    pairs = len(factors)
    for factor in _LLAMA_3_FACTORS:
        usual = [_llama_3_factor(theta ** (pair / pairs), factor) for pair in range(pairs)]
        if all(math.isclose(one, other, rel_tol=_CLOSE) for one, other in zip(factors, usual, strict=True)):
            return {"rope_type": "llama3", "factor": factor, **_LLAMA_3}
    raise unknown_factors()


def _llama_3_factor(inverse: float, factor: float) -> float:
    """Compute the factor by which Llama 3 stretches one of RoPE's wavelengths, as ``_compute_llama3_parameters`` of
    transformers.

    Args:
        inverse: the reciprocal of the frequency; the wavelength is ``2 * pi * inverse`` tokens.
        factor: the factor for long wavelengths.
    """
    original, low, high = _LLAMA_3["original_max_position_embeddings"], 1.0, _LLAMA_3["high_freq_factor"]
    length = 2 * math.pi * inverse
    if length < original / high:
        return 1.0
    if length > original / low:
        return factor
    smooth = (original / length - low) / (high - low)
    return 1 / ((1 - smooth) / factor + smooth)


def unknown_factors() -> ModelError:
    """Make the error for factors of RoPE that no supported model has."""
    return ModelError("Its positions are stretched in a way that is not known here.", "Choose it as safetensors.")


@dataclass(frozen=True)
class GgufLayout:
    """How the GGUF files of an architecture are laid out.

    Args:
        model_type: the architecture's ``model_type`` in transformers.
        names: transformers' names of a layer's weights, keyed by the file's names. The last part (``weight`` or
            ``bias``) is left out where both names end with the same part.
        top: transformers' names of weights outside of layers, keyed by the file's names.
        more: makes the architecture's additional settings from a header.
        has_heads: whether the architecture's ``config.json`` states head_dim.
        centred: whether norms are stored with 1 added to their weights.
        halves: whether files store the rows of queries and keys in the order of llama.cpp's RoPE, which differs from
            transformers'.
        tiled: whether neighbouring value heads in the file belong to different key heads. transformers keeps the value
            heads of a key head together.
        experts: whether the architecture is a mixture of experts; None if some of its models are.
        ends: tokens that end a text, in addition to those that the file's fields name.
        stretch: sets RoPE settings of layers that keep the whole context from the factors in a file (``FACTORS``).
    """

    model_type: str
    names: Mapping[str, str] = field(default_factory=lambda: NAMES)
    top: Mapping[str, str] = field(default_factory=lambda: TOP)
    more: Callable[[Header], Mapping[str, Any]] = lambda _: {}
    has_heads: bool = True
    centred: bool = False
    halves: bool = False
    tiled: bool = False
    experts: bool | None = False
    ends: tuple[str, ...] = ()
    stretch: Callable[[dict[str, Any], Mapping[str, Sequence[float]]], None] = stretch_rope

    def name(self, tensor: str) -> str | None:
        """Translate a tensor's name in the file into the name of its weight or bias in transformers; None if
        transformers has no such weight.
        """
        path, _, last = tensor.rpartition(".")
        if not path.startswith("blk."):
            found = self.top.get(path)
            return found and f"{found}.{last}"
        _, layer, own = (*path.split(".", 2), "", "")[:3]
        if whole := self.names.get(f"{own}.{last}"):
            return f"model.layers.{layer}.{whole}"
        found = self.names.get(own)
        return found and f"model.layers.{layer}.{found}.{last}"


def head_dim(header: Header) -> int | None:
    """Return the head_dim that the header states or implies; None if it does neither."""
    width, heads = header.get("embedding_length"), header.get("attention.head_count")
    usual = width // heads if type(width) is int and type(heads) is int and heads else None
    dim = header.get("attention.key_length", usual)
    return dim if type(dim) is int else None


def rope_settings(header: Header) -> dict[str, Any]:
    """Make the RoPE settings. In models with sliding windows, these are the settings of layers that keep the whole
    context.
    """
    stretching = header.get("rope.scaling.type", "none")
    if LONG_FACTORS in header.names or stretching not in ("none", "linear", "yarn"):
        raise header.refusal("has a window that was stretched in a way that is not")
    turned = header.get("rope.dimension_count")
    if turned is not None and turned != head_dim(header):
        raise header.refusal("turns a part of each head only, which is not")
    rope = {"rope_type": "default", "rope_theta": float(header.number("rope.freq_base", 10_000.0))}
    if stretching == "none":
        return rope
    rope |= {"rope_type": stretching, "factor": float(header.number("rope.scaling.factor"))}
    if stretching == "yarn":
        rope["original_max_position_embeddings"] = int(header.number("rope.scaling.original_context_length"))
    return rope


def window(header: Header) -> int | None:
    """The size of a sliding window in tokens; None if there is none."""
    return header.get("attention.sliding_window") or None
