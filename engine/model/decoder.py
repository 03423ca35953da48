"""Loads target and draft, unmodified, from transformers, and walks them layer by layer.

Only this module and ``attention`` know transformers' internals. Weights are safetensors, never remote code; the pieces
are embed, one layer, head, and a forward pass is given the object that stores and reads KV. The architectures that the
walk is right for are in ``architectures``.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch

from engine.config import SamplingParams, own_sampling
from engine.devices import KINDS
from engine.errors import ModelError, ResourceError, UnsupportedModel, VocabularyMismatch
from engine.kv.shape import KvShape, Recurrent, Sliding, Split
from engine.model import attention, experts, gguf, recurrent, weights
from engine.model.architectures import (
    SHARED_VOCABULARY,
    TEXT_WEIGHTS,
    check_architecture,
    check_numbers,
    display_name,
    embedding_multiplier,
    embedding_parameters,
    estimate_parameters,
    experts_of,
    head_dim_of,
    inputs_of_layers,
    is_expanded,
    kv_heads_of,
    kv_sources,
    load_config,
    logits_cap,
    logits_divisor,
    parameters_asked,
    parameters_of_block,
    pick_dtype,
    recurrent_layers,
    rope_kinds,
    rotated_layers,
    sliding_layers,
    state_size,
)
from engine.model.backends.program import fuse, has_kernels, pack
from engine.model.backends.tiled import MOST_TILED_ROWS, tiled_blocks
from engine.model.families import FAMILIES, FULL, MAMBA, RECURRENT, SLIDING
from engine.model.kernels import native
from engine.model.kernels.abi import MOST_ROWS
from engine.model.kernels.native import torch_alone
from engine.model.mxfp4 import holding_stored
from engine.model.products.norms import fuse_norms
from engine.model.products.packed import PackedBlocks, PackedLinear, count_parameters, rounded
from engine.model.products.quantized import quantize
from engine.passages import MOST_PASSAGES
from engine.quantization import BITS, bytes_per_weight

# RoPE kinds whose frequencies depend on the longest position of a call.
_LENGTH_DEPENDENT_ROPE = ("longrope", "dynamic")

ROPE_NAMES = ("rotary_emb", "pos_emb")
"""What transformers calls a model's RoPE."""

# Largest ratio of described to stored parameters: the description is an estimate, and heads can be tied.
_MAX_DESCRIBED = 3


class Rope(NamedTuple):
    """Where tokens stand, as the layers are told: RoPE's ``cos`` and ``sin``, each (1, n, rotary_dim), and the numbers
    of the positions (1, n). ``sliding_cos`` and ``sliding_sin`` are those of layers with a sliding window, often the
    same. ``inputs`` (1, n, layers, width) is what each layer takes of the token itself, in models that have such."""

    cos: torch.Tensor
    sin: torch.Tensor
    position_ids: torch.Tensor
    sliding_cos: torch.Tensor
    sliding_sin: torch.Tensor
    inputs: torch.Tensor | None = None

    def part(self, start: int, stop: int) -> Rope:
        """That of the tokens [start, stop)."""
        inputs = None if self.inputs is None else self.inputs[:, start:stop]
        return Rope(*(part[:, start:stop] for part in self._placed))._replace(inputs=inputs)

    def on(self, device: torch.device) -> Rope:
        """The same on another device; what is the same tensor is sent once."""
        sent = {id(part): part for part in self._placed}
        sent = {name: _sent(part, device) for name, part in sent.items()}
        inputs = None if self.inputs is None else _sent(self.inputs, device)
        return Rope(*(sent[id(part)] for part in self._placed))._replace(inputs=inputs)

    @property
    def _placed(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """What positions alone decide."""
        return self.cos, self.sin, self.position_ids, self.sliding_cos, self.sliding_sin


class _OtherLayersKv:
    """In the place where Gemma 4 puts keys and values that layers share: the cache knows them, so there are none."""

    def __setitem__(self, kind: str, kv: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Whoever stores them here has stored them in the cache."""

    def __getitem__(self, kind: str) -> tuple[None, None]:
        return None, None


class _NoRope:
    """In the place of RoPE where a model has none: it turns nothing.

    Args:
        width: numbers of a head.
    """

    rope_type, attention_scaling = "none", 1.0

    def __init__(self, width: int) -> None:
        self._width = width

    def __call__(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cos = x.new_ones(*positions.shape, self._width)
        return cos, torch.zeros_like(cos)


class Decoder:
    """One loaded causal language model, walked by hand.

    Args:
        model: a transformers causal LM with the attention implementation of ``engine.model.attention``.
        name: what to call it.
        window: tokens that it will be used with; settles RoPE kinds that depend on the length.
        dtype: of its activations; None is that of its weights, which packed ones can differ from.
        split: which layers lie on which device; None has all of them on the model's.
        host_weights: of layers whose weights wait in host memory, by name; on the device they are there for the moment
            of their layer alone.
    """

    def __init__(
        self,
        model: Any,
        name: str,
        window: int,
        dtype: torch.dtype | None = None,
        split: Split | None = None,
        host_weights: Mapping[str, torch.Tensor] | None = None,
    ) -> None:
        self.model = model
        self.config = model.config
        self.name = name
        self.window = window
        self.device: torch.device = model.device
        self.split = split
        self._host_weights = host_weights or {}
        self.dtype: torch.dtype = dtype or model.dtype
        self._layers = list(model.model.layers)
        self._fused = fuse(model, self.dtype) if FAMILIES[self.config.model_type].plain else None
        self._has_kernels = has_kernels(model)
        self._norm, self._head = getattr(model.model, FAMILIES[self.config.model_type].last_norm), model.lm_head
        self.rounded_bits = 0
        """Of a rounded twin; 0 of the model itself."""
        self._tiled: list[Any] = []
        ropes = (getattr(model.model, name, None) for name in ROPE_NAMES)
        self._rope = next((rope for rope in ropes if rope is not None), _NoRope(head_dim_of(self.config)))
        self._apply_rope = sys.modules[type(model.model).__module__].apply_rotary_pos_emb
        self._rotated = rotated_layers(self.config)
        left_out = FAMILIES[self.config.model_type].rope_left_out
        self._told_rope = self._rotated if left_out else (True,) * len(self._rotated)
        self._sliding = frozenset(sliding_layers(self.config))
        self._rope_kinds: list[tuple[str, ...]] = [(kind,) for kind in rope_kinds(self.config)] or [()]
        self._embedding_multiplier = embedding_multiplier(self.config)
        self._logits_divisor, self._logits_cap = logits_divisor(self.config), logits_cap(self.config)
        self._inputs = inputs_of_layers(self.config)
        self._shares: dict[str, Any] = {"shared_kv_states": _OtherLayersKv()} if kv_sources(self.config) else {}
        types = self._rope.rope_type
        named = types.values() if isinstance(types, dict) else (types,)
        self.rope_depends_on_window = not {*named}.isdisjoint(_LENGTH_DEPENDENT_ROPE)

    @cached_property
    def kv_shape(self) -> KvShape:
        return replace(kv_shape_of(self.config, self.dtype, self.device), split=self.split)

    @property
    def token_device(self) -> torch.device:
        """Where tokens are drawn, in float64, and lie until a pass takes them: logits come there."""
        return self.device if KINDS[self.device.type].has_64_bits else torch.device("cpu")

    @property
    def layers_in_host(self) -> int:
        """Layers whose weights wait in host memory."""
        return len({name.split(".")[2] for name in self._host_weights})

    def named_weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor of weights and its name, sorted by it."""
        for name, held in sorted(self.model.named_parameters()):
            yield name, self._host_weights.get(name, held)

    def part_of(self, layer: int) -> int:
        """The index of the device of a layer."""
        return self.split.part_of[layer] if self.split else 0

    def scaling(self, layer: int) -> float:
        """What the products of a layer's queries and keys are multiplied by."""
        return float(self._layers[layer].self_attn.scaling)

    @property
    def num_layers(self) -> int:
        return len(self._layers)

    @property
    def parameters(self) -> int:
        return count_parameters(self.model)

    @cached_property
    def keeps_blocks(self) -> bool:
        """Whether weights have the form that they have in a GGUF file."""
        return any(isinstance(part, PackedBlocks) for part in self.model.modules())

    @property
    def bytes_read_by_step(self) -> int:
        """Of weights, by a step of one token: all of them but the rows of an embedding that is not the head too, and
        the experts that it does not ask."""
        head = {id(weight) for weight in self.model.lm_head.parameters()}
        names = ("embed_tokens", "embed_tokens_per_layer")
        tables = [table for name in names if (table := getattr(self.model.model, name, None)) is not None]
        left_out = {id(weight) for table in tables for weight in table.parameters()} - head
        whole = sum(weight.nbytes for weight in self.model.parameters() if id(weight) not in left_out)
        return whole - experts.nbytes(self.model) + self.expert_bytes_read_by_step

    @property
    def expert_bytes_read_by_step(self) -> int:
        """Of the experts, by a step of one token; 0 without any."""
        found = experts_of(self.config)
        return experts.nbytes(self.model) * found.chosen // found.count if found else 0

    @property
    def waits_for_experts(self) -> bool:
        """Whether every pass waits to know which experts it asks."""
        return experts.waits_for_host(self.model)

    @cached_property
    def block_parameters(self) -> int:
        """Parameters of one layer that a token meets, whatever is done to its weights; a share of the work of every
        block of a prompt."""
        return parameters_asked(self.config)

    @property
    def vocabulary(self) -> int:
        return int(self.config.vocab_size)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Token ids that the model's own settings declare to end a text."""
        ends: list[int] = []
        for source in (self.config, getattr(self.model, "generation_config", None)):
            value = getattr(source, "eos_token_id", None)
            ends += [end for end in (value if isinstance(value, list) else [value]) if type(end) is int]
        return tuple(dict.fromkeys(ends))

    @cached_property
    def sampling(self) -> SamplingParams:
        """What the model's own settings say of how it is sampled."""
        own = getattr(self.model, "generation_config", None)
        return own_sampling({} if own is None else own.to_dict())

    @property
    def num_passages(self) -> int:
        """How many passages of the book the model's own settings want beside a question (``engine.passages``)."""
        number = getattr(getattr(self.model, "generation_config", None), "passages", 0)
        return min(number, MOST_PASSAGES) if type(number) is int and number > 0 else 0

    def embed(self, input_ids: torch.Tensor) -> torch.Tensor:
        """(n,) token ids to hidden states (1, n, hidden)."""
        hidden: torch.Tensor = self.model.model.embed_tokens(input_ids.to(self.device).unsqueeze(0))
        return hidden if self._embedding_multiplier == 1.0 else hidden * self._embedding_multiplier

    def with_inputs(self, rope: Rope, input_ids: torch.Tensor, hidden: torch.Tensor) -> Rope:
        """The same with what each layer takes of tokens (n,), whose embeddings are ``hidden`` (1, n, hidden)."""
        if not self._inputs:
            return rope
        text = self.model.model
        own = text.get_per_layer_inputs(input_ids.to(self.device).unsqueeze(0), hidden)
        return rope._replace(inputs=text.project_per_layer_inputs(hidden, own))

    def rope(self, position_ids: torch.Tensor) -> Rope:
        """What the layers are told of positions (n,)."""
        positions = position_ids.unsqueeze(0)
        found = [self._cos_sin(positions, *kind) for kind in self._rope_kinds]
        return Rope(*found[0], positions, *found[-1])

    def _cos_sin(self, positions: torch.Tensor, *kind: str) -> tuple[torch.Tensor, torch.Tensor]:
        """``cos`` and ``sin`` of positions (1, n), for layers of a kind where each has its own."""
        probe = torch.empty(1, dtype=self.dtype, device=self.device)
        if not self.rope_depends_on_window:
            cos, sin = self._rope(probe, positions, *kind)
            return cos, sin
        # One position at the window's end makes the frequencies those of the whole window in every call, so that
        # keys of early and late calls fit together.
        last = positions.new_full((1, 1), self.window - 1)
        cos, sin = self._rope(probe, torch.cat([positions, last], dim=1), *kind)
        return cos[:, :-1], sin[:, :-1]

    def _cos_sin_of(self, layer: int, rope: Rope) -> tuple[torch.Tensor, torch.Tensor]:
        """``cos`` and ``sin`` of a layer."""
        return (rope.sliding_cos, rope.sliding_sin) if layer in self._sliding else (rope.cos, rope.sin)

    def no_rope(self, count: int) -> Rope:
        """The first position, with identity embeddings: the layer's queries and keys come out unrotated."""
        rope = self.rope(torch.zeros(1, dtype=torch.long, device=self.device))
        wide, near = (torch.ones_like(cos).expand(1, count, -1) for cos in (rope.cos, rope.sliding_cos))
        positions = rope.position_ids.expand(1, count)
        return Rope(wide, torch.zeros_like(wide), positions, near, torch.zeros_like(near))

    def rotate(self, layer: int, x: torch.Tensor, positions: torch.Tensor, queries: int = 0) -> torch.Tensor:
        """Rotate x (1, heads, n, head_dim), as it came out of a layer under ``no_rope``, to positions (n,).

        Args:
            queries: how many of the heads, the first ones, are queries; the others are keys.
        """
        if not self._rotated[layer]:
            return x
        cos, sin = self._cos_sin_of(layer, self.rope(positions))
        names = FAMILIES[self.config.model_type].norms_after_rope
        if names is None:
            return self._rotate(x, cos, sin)
        # The norm came first here. It divides by a length that no rotation changes, so only its weights have to change
        # places with RoPE; a factor on cos and sin is gone after a norm.
        block = self._layers[layer].self_attn
        of_queries, of_keys = (getattr(block, name).weight.float() for name in names)
        weights = torch.cat([of_queries.expand(queries, 1, -1), of_keys.expand(x.shape[1] - queries, 1, -1)])
        bare = x.float() / weights.where(weights != 0, 1.0)
        turned = self._rotate(bare, cos.float(), sin.float()) * weights / self._rope.attention_scaling
        return turned.to(x.dtype)

    def _rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        if FAMILIES[self.config.model_type].rotates_apart:
            turned: torch.Tensor = self._apply_rope(x, cos, sin)
            return turned
        both: tuple[torch.Tensor, torch.Tensor] = self._apply_rope(x, x[:, :1], cos, sin)
        return both[0]

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, kv: attention.KeyValues) -> torch.Tensor:
        """One decoder layer over hidden states (1, n, hidden), attending through ``kv``."""
        if self._fused is not None and hidden.shape[1] <= MOST_ROWS:
            return self._fused.layer(index, hidden, rope, kv)
        blocks = self._tiled if self._tiled and hidden.shape[1] <= MOST_TILED_ROWS else self._layers
        out: torch.Tensor = blocks[index](
            hidden,
            attention_mask=None,
            position_ids=rope.position_ids,
            position_embeddings=self._cos_sin_of(index, rope) if self._told_rope[index] else None,
            kv=kv,
            **self._shares,
            **({} if rope.inputs is None else {"per_layer_input": rope.inputs[:, :, index]}),
        )
        return out

    def carry(self, hidden: torch.Tensor, layer: int) -> torch.Tensor:
        """Hidden states on the device of a layer: they cross where the layer before it lies on another."""
        return hidden if self.split is None else _sent(hidden, self.split.devices[self.split.part_of[layer]])

    def on_devices(self, rope: Rope) -> list[Rope]:
        """The same on each device that has layers, by ``part_of``."""
        devices = self.split.devices[1:] if self.split else ()
        return [rope, *(rope.on(device) for device in devices)]

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states (1, n, hidden) to logits (n, vocabulary) in float32, where tokens are drawn."""
        hidden = hidden if self.split is None else _sent(hidden, self.device)
        logits: torch.Tensor = self._head(self._norm(hidden))[0]
        logits = logits if self._logits_divisor == 1.0 else logits / self._logits_divisor
        logits = logits.float()
        if self._logits_cap is not None:
            logits = torch.tanh(logits / self._logits_cap) * self._logits_cap
        return logits.to(self.token_device)

    def forward(
        self,
        input_ids: torch.Tensor,
        rope: Rope | None,
        kv: attention.KeyValues,
        rows: int | None = None,
    ) -> torch.Tensor:
        """All layers over n new tokens; logits of the last ``rows`` of them (all if None).

        Args:
            rope: None where ``kv`` turns queries and keys by itself.
        """
        hidden = self.embed(input_ids)
        if self._fused is not None and hidden.shape[1] <= MOST_ROWS and self._has_kernels:
            place = kv.in_place(hidden.shape[1])
            if place is not None:
                turned = rope if place.positions is None else self.rope(place.positions)
                hidden = self._fused.through(hidden, turned, place)
                return self.head(hidden if rows is None else hidden[:, -rows:])
        rope = self.no_rope(len(input_ids)) if rope is None else rope
        ropes = self.on_devices(self.with_inputs(rope, input_ids, hidden))
        for index in range(self.num_layers):
            hidden = self.layer(index, self.carry(hidden, index), ropes[self.part_of(index)], kv)
        return self.head(hidden if rows is None else hidden[:, -rows:])

    def rounded(self, weights: str) -> Decoder | None:
        """The same model with products of "8bit" or "4bit" in passes over a few tokens, beside this one, with which it
        shares all else. On a processor its head has 8 bits, on a GPU it stays. None where the layers are not computed
        by our own kernels, or on a GPU by torch's product with 4 bits."""
        twin = copy.copy(self)
        twin.rounded_bits = BITS[weights]
        if KINDS[self.device.type].gpu:
            can = can_round(self.config, weights, self.dtype, self.device)
            parts = self.split.devices if self.split else (self.device,)
            devices = [parts[self.part_of(layer)] for layer in range(self.num_layers)]
            waiting = self._host_weights.values()
            twin._tiled = (tiled_blocks(self.model, devices, waiting) if can else None) or []
            return twin if twin._tiled else None
        if self._fused is None or not isinstance(self._head, PackedLinear):
            return None
        twin._fused, twin._head = fuse(self.model, self.dtype, weights), rounded(self._head, "8bit")
        return twin

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """What passes over a few tokens run in, and what is done with their logits."""
        with torch.inference_mode(), torch_alone() if self._has_kernels else nullcontext():
            yield

    def span(self, start: int, count: int) -> torch.Tensor:
        """Positions start..start+count-1 as a tensor on the model's device."""
        return torch.arange(start, start + count, device=self.device)

    def ids(self, tokens: list[int]) -> torch.Tensor:
        """Token ids as a tensor where tokens are drawn."""
        return to_device(tokens, self.token_device)


def load(
    name: str,
    *,
    window: int | None,
    device: torch.device,
    dtype: str = "auto",
    weights: str = "stored",
    packed: bool = True,
    split: Split | None = None,
    in_host: Collection[int] = (),
) -> Decoder:
    """Load a model from a folder or, if it is not one, a hub id.

    Args:
        window: tokens that it will be used with; None takes the model's own limit.
        weights: "stored", or "8bit" or "4bit" to quantize them; the decoder's name says so.
        packed: lay weights out for the kernels of a processor, and take norms of one kernel on a GPU; without, all
            stays as transformers has it.
        split: which layers lie on which device, of which ``device`` is the first; None has all of them there.
        in_host: layers whose weights wait in host memory, beside a GPU.

    Raises:
        ModelNotFound: no such folder or hub model.
        UnsupportedModel: an architecture that ``architectures.check_architecture`` refuses, or that this device cannot
            compute.
        ModelError: weights are missing, damaged, or not safetensors.
        ResourceError: weights that have to be expanded find no room.
    """
    config = settings_of(name, window)
    window = window or int(config.max_position_embeddings)
    if FAMILIES[config.model_type].others in (RECURRENT, MAMBA) and not KINDS[device.type].has_64_bits:
        raise UnsupportedModel(
            f"{display_name(name)} has layers that sum in float64, which devices of the kind {device.type} have not.",
            "Use --device cpu.",
        )
    _check_weights(name, config)
    attention.register()
    wanted = pick_dtype(config, dtype, device)
    _check_memory(name, config, wanted, weights)
    keeps_blocks = packed and weights not in BITS and device.type == "cpu" and native.own() is not None
    if gguf.is_described(Path(name)):
        model = gguf.build(Path(name), config, wanted, attention.IMPLEMENTATION, keeps_blocks)
    else:
        model = _from_pretrained(name, config, wanted, weights)
        wanted = model.dtype
    model.requires_grad_(False)
    recurrent.install(model)
    on_host = not KINDS[device.type].streams and packed
    title = display_name(name)
    for number, block in enumerate(model.model.layers):  # experts that are expanded take the memory of one layer
        if on_host or weights in BITS or number in in_host:
            experts.install([block])
        if weights in BITS:
            quantize([block], weights, title)
    if weights in BITS:
        title = f"{title} ({BITS[weights]}-bit weights)"
    family = FAMILIES[config.model_type]
    if packed and device.type == "cuda":
        fuse_norms(model, family)
    host_weights = place(model, device, split, in_host)
    model.eval()
    if packed:
        pack(model, family, wanted)
    return Decoder(model, title, window, wanted, split, host_weights)


def place(
    model: Any, device: torch.device, split: Split | None = None, in_host: Collection[int] = ()
) -> Mapping[str, torch.Tensor]:
    """Move a model's weights to where they compute; those that wait in host memory are returned by name.

    The hooks of accelerate bring these to the layer's device when it is called, and take them away behind it.
    """
    if split is None and not in_host:
        model.to(device)
        return {}
    blocks, model.model.layers = model.model.layers, torch.nn.ModuleList()
    model.to(device)  # in one call: tied weights stay one
    model.model.layers = blocks
    waiting: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(blocks):
        place = split.devices[split.part_of[index]] if split else device
        if index not in in_host:
            layer.to(place)
            continue
        from accelerate import cpu_offload

        held = {name: weights.data for name, weights in layer.named_parameters()}
        waiting |= {f"model.layers.{index}.{name}": weights for name, weights in held.items()}
        cpu_offload(layer, place, state_dict=held)
    return waiting


def _sent(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on another GPU, without the host waiting: torch lets the streams of both wait for each other."""
    return x if x.device == device else x.to(device, non_blocking=True)


def kv_shape_of(config: Any, dtype: torch.dtype, device: torch.device) -> KvShape:
    """Shape of a model's KV, from its configuration alone."""
    sources = kv_sources(config)
    found = tuple(layer for layer in sliding_layers(config) if layer not in sources)
    sliding = Sliding(found, config.sliding_window, *kv_heads_of(config, SLIDING)) if found else None
    numbers = recurrent_layers(config)
    states = Recurrent(numbers, state_size(config)) if numbers else None
    layers = config.num_hidden_layers - len(found) - len(numbers) - len(sources)
    heads = kv_heads_of(config, FULL)
    shared = tuple(sources.items())
    return KvShape(layers, *heads, dtype, device, sliding=sliding, recurrent=states, sources=shared)


def can_round(config: Any, weights: str, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a GPU may compute a model's middle level by a copy in ``weights``. 8 bits have no product there that is
    worth it: torch's has one thread read the weights of an output, far from those that its neighbours read (pytorch
    190529)."""
    known = FAMILIES[config.model_type].plain and dtype is torch.bfloat16
    return known and device.type == "cuda" and weights in BITS and BITS[weights] == 4


def settings_of(name: str, window: int | None) -> Any:
    """A model's configuration, once nothing in it speaks against loading it; no weights are looked at.

    Args:
        window: tokens that it will be used with; None takes the model's own limit.

    Raises:
        ModelNotFound: no such folder or hub model.
        UnsupportedModel: an architecture that ``architectures.check_architecture`` refuses.
        ModelError: the settings mean nothing, or the window is larger than the model's limit.
    """
    config = load_config(name)
    check_numbers(config, name)
    limit = int(getattr(config, "max_position_embeddings", None) or 0)  # kinds that are not supported may have none
    check_architecture(config, name, window or limit)
    if window is not None and window > limit:
        raise ModelError(
            f"{display_name(name)} reads at most {limit:,} tokens, and a window of {window:,} was asked for.",
            f"Use --context {limit} or less.",
        )
    return config


def check_embedding(name: str, config: Any, largest_id: int) -> None:
    """Refuse a model that has no row of its embedding for a token that its tokenizer gives.

    Raises:
        ModelError: with both numbers.
    """
    if largest_id >= config.vocab_size:
        raise ModelError(
            f"The tokenizer of {display_name(name)} gives token ids up to {largest_id:,}, and its config.json says "
            f"that the model knows {config.vocab_size:,} tokens.",
            "The two files are not of one model; download it again.",
        )


def check_vocabulary(draft: str, draft_tokens: Mapping[str, int], target_tokens: Mapping[str, int]) -> None:
    """Refuse a draft whose tokens mean something else than the target's.

    Compared by tokens, not by sizes: models of one family pad their vocabularies differently and add a few special
    tokens of their own. Those are harmless: a proposal that the target does not know is rejected.

    Raises:
        VocabularyMismatch: with both sizes and, where there is one, a token that differs.
    """
    shared = draft_tokens.keys() & target_tokens.keys()
    odd = sorted(token for token in shared if draft_tokens[token] != target_tokens[token])
    if not odd and len(shared) >= SHARED_VOCABULARY * max(len(draft_tokens), len(target_tokens)):
        return
    example = f", and differ, for example, at {odd[0]!r}" if odd else ""
    raise VocabularyMismatch(
        f"The draft model {display_name(draft)} has {len(draft_tokens):,} tokens and the target has "
        f"{len(target_tokens):,}; they share {len(shared) - len(odd):,}{example}.",
        "Both must speak one vocabulary: choose a draft of the same family, or --draft none.",
    )


def _check_weights(name: str, config: Any) -> None:
    folder = Path(name)
    if not folder.is_dir():
        return
    stored, described = weights.check_folder(folder), estimate_parameters(config)
    if described > _MAX_DESCRIBED * stored:  # memory would be taken for weights that are nowhere
        raise ModelError(
            f"config.json of {display_name(name)} describes about {described:,} parameters, and its weights hold "
            f"{stored:,}.",
            "They do not belong together; download the model again.",
        )


def _check_memory(name: str, config: Any, dtype: torch.dtype, rounded_to: str) -> None:
    """Refuse weights that are expanded to more than there is room for: others are read from their files as they are
    needed. Where they are rounded, one layer at a time is expanded."""
    free = psutil.virtual_memory().available
    block, rest = parameters_of_block(config), embedding_parameters(config) * dtype.itemsize
    count = int(config.num_hidden_layers)
    needed = rest + count * block * bytes_per_weight(rounded_to, dtype.itemsize)
    needed += block * dtype.itemsize if rounded_to in BITS else 0
    if is_expanded(config) and needed > free:
        raise ResourceError(
            f"The weights of {display_name(name)} are stored in 4 bits and take {needed / 1e9:.0f} GB when they are "
            f"{'rounded' if rounded_to in BITS else 'expanded'}, and {free / 1e9:.0f} GB of memory are free.",
            "Close other programs, choose a smaller model" + (", or --weights 4bit." if rounded_to != "4bit" else "."),
        )


def _from_pretrained(name: str, config: Any, dtype: torch.dtype, rounded_to: str) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    library: Any = AutoModelForCausalLM  # its types do not know that it can return two things
    expanding = _expanding(config)
    if is_expanded(config) and rounded_to in BITS:  # matrix by matrix, later
        library, expanding = holding_stored(MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]), {}
        config = copy.deepcopy(config)
        del config.quantization_config
    folder = Path(name)
    try:
        with weights.with_whole_index(folder) if folder.is_dir() else nullcontext(name) as place:
            model, found = library.from_pretrained(
                place,
                config=config,
                dtype=dtype,
                use_safetensors=True,
                trust_remote_code=False,
                attn_implementation=attention.IMPLEMENTATION,
                output_loading_info=True,
                key_mapping=TEXT_WEIGHTS if getattr(config, "wrapper", None) else None,
                **expanding,
            )
    except Exception as error:
        if isinstance(error, KeyError) and error.args[0] in _words(config.to_dict()):  # an activation, a kind of RoPE
            raise UnsupportedModel(
                f"config.json of {display_name(name)} asks for {error}, which is not known.", "Choose another model."
            ) from error
        cause = f"{error} is not described" if isinstance(error, KeyError) else _first_line(error)
        raise ModelError(
            f"The weights of {display_name(name)} could not be loaded: {cause}.",
            "The files may be incomplete or damaged; download them again.",
        ) from error
    if missing := sorted(found["missing_keys"]):  # transformers would go on with random numbers in their place
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        raise ModelError(
            f"The weights of {display_name(name)} lack {missing[0]}{more}.",
            "The files may be incomplete or altered; download them again.",
        )
    return model


def _expanding(config: Any) -> dict[str, Any]:
    """What transformers has to be told to expand weights of 4 bits, which it would keep where it can."""
    if not is_expanded(config):
        return {}
    from transformers.utils.quantization_config import Mxfp4Config

    return {"quantization_config": Mxfp4Config(dequantize=True)}


def _words(settings: Any) -> set[str]:
    """All strings among the values of settings."""
    if isinstance(settings, str):
        return {settings}
    values = settings.values() if isinstance(settings, Mapping) else settings if isinstance(settings, list) else ()
    found: set[str] = set()
    return found.union(*map(_words, values))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:200].rstrip(".!") if lines else type(error).__name__


def to_device(numbers: Sequence[int], device: torch.device) -> torch.Tensor:
    """Whole numbers as a tensor (n,) int64 on a device. Waits for nothing: a GPU fetches them from pinned memory."""
    if KINDS[device.type].streams:
        return torch.tensor(numbers, dtype=torch.long, pin_memory=True).to(device, non_blocking=True)
    return torch.tensor(numbers, dtype=torch.long, device=device)
