"""Defines what a family of models is: the facts in which it differs from Llama, and what follows for a configuration.

A family that follows Llama states facts only. One whose layers differ in a way that no fact states derives a class from
``Family`` and overrides the method concerned, in the family's own file. Configurations are those of transformers, or
any object with the attributes of a ``config.json``. Knows no weights, and no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from engine.quantization import StateSize

FULL, SLIDING, RECURRENT, CONVOLUTION = "full_attention", "sliding_attention", "linear_attention", "conv"
MAMBA = "mamba"
"""Kinds of layers, named as in ``layer_types``. For Mamba layers transformers has the name ``linear_attention``, which
``Family.layer_words`` replaces by ``mamba``.
"""

MOST_LAYERS = 1_000
"""Maximum number of layers, far above that of every existing model. A model with more layers is refused."""

EXPERT_SIZES = {
    "num_experts": 1 << 14,
    "num_local_experts": 1 << 14,
    "num_experts_per_tok": 1 << 14,
    "moe_intermediate_size": 1 << 22,
    "decoder_sparse_step": 1 << 10,
}
"""Settings of experts that several families have, with the maximum of each."""

_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")  # number of experts of a layer
_SHARED = ("shared_expert_intermediate_size", "shared_intermediate_size")  # inner size of a shared expert


@dataclass(frozen=True)
class MixtureShape:
    """A mixture of experts.

    ``layers`` is the number of layers with experts; all other layers have one MLP. A layer with experts has ``count``
    MLPs of inner size ``inner``, of which ``chosen`` are active for a token. ``shared`` is the inner size of an
    additional MLP of these layers that is active for every token; 0 if there is none.
    """

    count: int
    chosen: int
    inner: int
    layers: int
    shared: int


@dataclass(frozen=True)
class Family:
    """The facts about an architecture that a pass must know, because transformers' layers do not handle them by
    themselves.

    Args:
        title: the family's name for people.
        wrapper: ``model_type`` of the family's models that also take images; only their text part is loaded.
        mlp_matrices: number of matrices of an MLP: three with a gate, two without.
        tied: whether embedding and output head are one matrix, if ``config.json`` does not say.
        norms_after_rope: names of the norms of queries and of keys, if they follow RoPE instead of preceding it.
        plain: whether ``engine.model.backends.program`` can compute the family's layers. They are Llama's layers,
            possibly with biases, norms of queries and keys, or fused input projections.
        gated: whether the attention output is multiplied by a gate, which is as wide as the queries.
        others: the supported kind of layers without full attention; empty if there is none.
        experts: whether MLPs of the family can be mixtures of experts.
        softmax_of_all: whether an expert's share is its part of the softmax over all experts, instead of over the
            chosen experts only.
        stored: the ``quant_method`` of quantized weights that can be loaded; empty if there is none.
        full_every: every ``full_every``-th layer keeps the whole context, if ``config.json`` does not name the kinds of
            layers.
        period: the setting with the model's own ``full_every``; empty if there is none.
        layer_words: the kinds of layers, keyed by the family's own words for them in ``layer_types``.
        overflows: whether the family's activations are known to exceed the range of float16.
        norm_offset: the number that RMS norms add to their weights.
        last_norm_offset: the number that the last norm adds; None if it is ``norm_offset``.
        rotates_apart: whether transformers' RoPE function rotates queries and keys in separate calls.
        rope_by_kind: whether each kind of layers has its own RoPE.
        rope_in_windows: whether, in a model with a sliding window, only the layers with the window have RoPE.
        rope_left_out: whether a layer without RoPE must be called without cosines and sines. In other families such a
            layer ignores them.
        rope_by_layer: the setting with one value for each layer, 0 for a layer without RoPE; empty if there is none.
        query_scale: the RoPE setting with the rate at which the scale of queries grows with their position; empty if
            there is none.
        last_norm: the name of the norm after the last layer.
        dense_inner: the setting with the inner size of a dense MLP.
        logits_factor: the setting with the number that logits are multiplied by; empty if there is none.
        reads: settings that have a meaning in this family and are ignored in other families (``setting``).
        sizes: the family's own settings that are whole numbers, with the maximum of each.
        may_be_zero: those of ``sizes`` that may be 0. All others are at least 1.
        positive: the family's own settings that are positive numbers.
        state_settings: those of ``sizes`` that a layer's recurrent state follows from.
        defaults: values of settings that ``config.json`` may leave out.
        card: the sampling options that the makers' cards recommend for answers after a thought (True) and without one
            (False), where they differ. The model's files hold those of one kind only, or none.
    """

    title: str
    wrapper: str = ""
    mlp_matrices: int = 3
    tied: bool = False
    norms_after_rope: tuple[str, str] | None = None
    plain: bool = False
    gated: bool = False
    others: str = ""
    experts: bool = False
    softmax_of_all: bool = False
    stored: str = ""
    full_every: int = 0
    period: str = ""
    layer_words: Mapping[str, str] = field(default_factory=dict)
    overflows: bool = False
    norm_offset: float = 0.0
    last_norm_offset: float | None = None
    rotates_apart: bool = False
    rope_by_kind: bool = False
    rope_in_windows: bool = False
    rope_left_out: bool = False
    rope_by_layer: str = ""
    query_scale: str = ""
    last_norm: str = "norm"
    dense_inner: str = "intermediate_size"
    logits_factor: str = ""
    reads: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    may_be_zero: tuple[str, ...] = ()
    positive: tuple[str, ...] = ()
    state_settings: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    card: Mapping[bool, Mapping[str, float]] = field(default_factory=dict)

    def norm_offset_of(self, path: str) -> float:
        """Return the number that the RMS norm at ``path`` in a causal LM adds to its weights."""
        is_last = self.last_norm_offset is not None and path == f"model.{self.last_norm}"
        return self.last_norm_offset or 0.0 if is_last else self.norm_offset

    def setting(self, config: Any, key: str, default: Any = None) -> Any:
        """The value of a setting in ``reads``; ``default`` if the setting is missing, or if the family ignores it."""
        return getattr(config, key, default) if key in self.reads else default

    def register(self) -> None:
        """Register the family's causal LM with transformers, if transformers has none."""

    def prepare(self, config: Any) -> None:
        """Set the settings that the engine reads, if the family's configuration has other names or forms for them."""

    def complete(self, settings: dict[str, Any]) -> None:
        """Set the settings that follow from others, in a parsed ``config.json`` whose values may be of any type."""

    def layer_kinds(self, config: Any) -> tuple[str, ...]:
        """The kind of every layer. Empty if all layers have full attention and the configuration names no kinds."""
        named = getattr(config, "layer_types", None)
        if isinstance(named, list | tuple):
            return tuple(self.layer_words.get(kind, kind) for kind in named if isinstance(kind, str))
        layers = getattr(config, "num_hidden_layers", None)
        if not self.others or type(layers) is not int:
            return ()
        if self.others == SLIDING and type(getattr(config, "sliding_window", None)) is not int:
            return ()
        return self.unnamed_kinds(config, min(layers, MOST_LAYERS))

    def unnamed_kinds(self, config: Any, layers: int) -> tuple[str, ...]:
        """The kinds of the ``layers`` layers of a model whose configuration does not name them."""
        own = getattr(config, self.period, None) if self.period else None
        every = own if type(own) is int and own > 0 else self.full_every
        return tuple(self.others if layer % every else FULL for layer in range(1, layers + 1))

    def layers_of(self, config: Any, *wanted: str) -> tuple[int, ...]:
        """The indices of the layers without full attention, if their kind is one of ``wanted``; otherwise empty."""
        if self.others not in wanted:
            return ()
        return tuple(layer for layer, kind in enumerate(self.layer_kinds(config)) if kind == self.others)

    def shared_kv_layers(self, config: Any) -> int:
        """Number of layers that have no KV of their own."""
        shared = self.setting(config, "num_kv_shared_layers")
        return shared if type(shared) is int else 0

    def kv_sources(self, config: Any) -> dict[int, int]:
        """Map each layer without its own keys and values to the layer whose KV it reads: the last layer of the same
        kind that has KV. Empty if there is no such layer.
        """
        kinds = self.layer_kinds(config)
        first = len(kinds) - self.shared_kv_layers(config)
        last = {kind: layer for layer, kind in enumerate(kinds[: max(0, first)])}
        sources = {layer: last.get(kinds[layer], -1) for layer in range(max(0, first), len(kinds))}
        return {} if -1 in sources.values() else sources

    def kv_heads(self, config: Any, kind: str) -> tuple[int, int]:
        """The number of KV heads, and the head_dim, of a layer of the kind ``kind``."""
        return int(config.num_key_value_heads), head_dim_of(config)

    def state_size(self, config: Any) -> StateSize:
        """Dimensions of the state of one recurrent layer."""
        raise NotImplementedError(f"{self.title} has no recurrent layers")

    def state_parameters(self, config: Any) -> int:
        """Number of parameters of one recurrent layer, without its MLP, norms and biases."""
        raise NotImplementedError(f"{self.title} has no recurrent layers")

    def mixture(self, config: Any) -> MixtureShape | None:
        """Describe the experts of a model; None if the model has none."""
        if not self.experts or not count_experts(config):
            return None
        every, dense = getattr(config, "decoder_sparse_step", 1), getattr(config, "mlp_only_layers", None)
        dense = dense if isinstance(dense, list | tuple) else ()
        numbers = range(1, min(config.num_hidden_layers, MOST_LAYERS) + 1)
        first = getattr(config, "num_dense_layers", 0)
        first = first if type(first) is int else 0
        layers = sum(number % every == 0 and number - 1 not in dense and number > first for number in numbers)
        inner = getattr(config, "moe_intermediate_size", None) or config.intermediate_size
        shared = next((n for key in _SHARED if (n := getattr(config, key, None))), 0)
        return MixtureShape(count_experts(config), config.num_experts_per_tok, inner, layers, shared)

    def whole_numbers(self, config: Any) -> dict[str, int | None]:
        """The family's own settings that must be whole numbers above 0 in this model, with the value that a missing one
        has; None if it must not be missing.
        """
        has_experts = self.experts and getattr(config, "num_local_experts", None) != 0
        numbers: dict[str, int | None] = {
            key: None
            for key in (*EXPERT_SIZES, *self.sizes)
            if key not in self.state_settings and hasattr(config, key) and (has_experts or "num" not in key)
        }
        if has_experts:
            numbers["num_experts"] = getattr(config, "num_local_experts", None)
        if self.layers_of(config, RECURRENT, CONVOLUTION, MAMBA):
            numbers |= dict.fromkeys(self.state_settings)
        return numbers

    def inner(self, config: Any) -> int:
        """Inner size of a dense MLP."""
        return int(getattr(config, self.dense_inner, None) or config.intermediate_size)

    def block_parameters(self, config: Any, experts: float) -> int:
        """Number of parameters of one decoder block with ``experts`` experts, without norms and biases; the mean over
        all blocks if they differ.
        """
        width, layers = config.hidden_size, config.num_hidden_layers
        # Number of projections that are as wide as the queries: query, output and, in some families, a gate.
        of_queries = 3 if self.gated else 2
        heads = of_queries * config.num_attention_heads + 2 * config.num_key_value_heads
        mixing = layers * width * heads * head_dim_of(config)
        if states := len(self.layers_of(config, RECURRENT, CONVOLUTION, MAMBA)):
            mixing += states * (self.state_parameters(config) - mixing // layers)
        mixture = self.mixture(config)
        if mixture is None:
            return int(mixing // layers + self.mlp_matrices * width * self.inner(config))
        asked = self.mlp_matrices * (experts * mixture.inner + mixture.shared) + mixture.count + bool(mixture.shared)
        # ``inner`` is called only if there are dense layers, because other models may lack the setting that it reads.
        dense = layers - mixture.layers
        alone = dense * self.mlp_matrices * self.inner(config) if dense else 0
        return int((mixing + width * (mixture.layers * asked + alone)) // layers)


def head_dim_of(config: Any) -> int:
    """Number of elements in the key or value of one head."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def count_experts(config: Any) -> int:
    """Number of experts of a layer; 0 if the configuration states none."""
    return max((n for key in _COUNTS if type(n := getattr(config, key, None)) is int), default=0)


ORDINARY = Family("")
"""Stands in for a family that is not supported."""
