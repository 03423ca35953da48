"""Implements layers that store their past as a state of fixed size: the gated delta rule, Mamba-2 and short
convolutions.

Under the gated delta rule, a token changes the state of each head in three steps. First the state is multiplied by a
decay. Then the state is read with the token's key. Finally the difference between the token's value and the value read
is multiplied by a rate and added under the key. The token's output is what its query reads from the new state. In
Mamba-2 a token adds its whole value instead of the difference. In all kinds of layers a short convolution over the
newest tokens comes first. LFM2's layers consist of this convolution only.

A ``Trace`` records the changes that each of a few tokens makes to a state, so that the state after any of these tokens
can be computed. A trace is about fifty times smaller than a copy of the state for each token. The cache stores the
states (``engine.kv.states``); layers get the cache as the argument ``kv``.

On a processor our own kernel (``kernels.emit``) computes a few tokens one after another. A token's output has the same
bits whatever other tokens are in the pass, and a state computed from a trace has the same bits as the state of a pass
that ended at this token. Passes over many tokens, and all passes on other devices, are computed in chunks by matrix
products.

Source: gated DeltaNet (arXiv 2412.06464); chunks as in arXiv 2406.06484, section 3. Mamba-2 (arXiv 2405.21060).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import nn
from torch.nn import functional

from engine.model.products import WHOLE, linear, padded

if TYPE_CHECKING:
    from engine.model.kernels.native import Native

_CHUNK = 64  # maximum number of tokens in a chunk of ``in_chunks``
# Added to the squared L2 norm of a key or query, so that a vector of zeros causes no division by 0.
_LEAST_SQUARE = 1e-6


@dataclass(frozen=True)
class RecurrentState:
    """A layer's state after a token: ``memory`` (heads, key_dim, value_dim) in float32, and ``inputs`` (taps - 1,
    channels), the newest inputs of the convolution, which are needed for the next tokens. The tensors are never changed
    in place.
    """

    memory: torch.Tensor
    inputs: torch.Tensor

    @property
    def nbytes(self) -> int:
        return self.memory.nbytes + self.inputs.nbytes


class Trace(Protocol):
    """Records the changes that n tokens made to a recurrent state."""

    @property
    def count(self) -> int:
        """Number of tokens in the trace."""

    @property
    def nbytes(self) -> int: ...

    def first(self, count: int) -> Trace:
        """Make the trace of only the first ``count`` tokens."""

    def after(self, state: RecurrentState) -> RecurrentState:
        """Compute the state after the trace's last token from ``state``, the state before the trace's first token."""


@dataclass(frozen=True)
class InputTrace:
    """The trace of a layer that consists only of a short convolution. ``inputs`` (taps - 1 + ``count``, channels) are
    the inputs of the convolution, beginning with the taps - 1 inputs before the first token.
    """

    inputs: torch.Tensor
    count: int

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes

    def first(self, count: int) -> InputTrace:
        # The inputs before the trace's first token are kept, because the convolution needs them.
        return InputTrace(self.inputs[: self.inputs.shape[0] - self.count + count], count)

    def after(self, state: RecurrentState) -> RecurrentState:
        return RecurrentState(state.memory, self.inputs[self.count :].clone())


@dataclass(frozen=True)
class DeltaTrace:
    """The trace of a layer with the gated delta rule, or of a Mamba-2 layer.

    Args:
        inputs: (taps - 1 + n, channels), inputs of the convolution, beginning with those of the taps - 1 tokens before
            the first token.
        keys: (n, key_heads, key_dim) in float32; under the delta rule their L2 norm is 1.
        updates: (n, heads, value_dim), the value that each token added under its key.
        decays: (n, heads), logarithms of the factors by which each token multiplies the state.
        kernels: the kernels that computed the trace; None if it was computed in chunks.
    """

    inputs: torch.Tensor
    keys: torch.Tensor
    updates: torch.Tensor
    decays: torch.Tensor
    kernels: Native | None

    @property
    def count(self) -> int:
        return self.keys.shape[0]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.inputs, self.keys, self.updates, self.decays))

    def first(self, count: int) -> DeltaTrace:
        taps = self.inputs.shape[0] - self.count
        keys, updates, decays = (part[:count] for part in (self.keys, self.updates, self.decays))
        return DeltaTrace(self.inputs[: taps + count], keys, updates, decays, self.kernels)

    def after(self, state: RecurrentState) -> RecurrentState:
        inputs = self.inputs[self.count :].clone()
        if self.kernels is not None:
            memory = self.kernels.replayed(self.keys, self.updates, self.decays, state.memory)
            return RecurrentState(memory, inputs)
        faded = self.decays.double().cumsum(dim=0)
        # The share of each token's update that remains after the decays of all later tokens.
        left = (faded[-1] - faded).float().exp()
        keys = _for_each_head(self.keys, self.updates.shape[1]) * left.unsqueeze(-1)
        added = torch.einsum("nhk,nhv->hkv", keys, self.updates)
        return RecurrentState(state.memory * faded[-1].float().exp()[:, None, None] + added, inputs)


class Step(NamedTuple):
    """The result of a pass over n tokens: ``out`` (n, ...) in float32, the state after the last token, and the trace of
    the tokens.
    """

    out: torch.Tensor
    state: RecurrentState
    trace: Trace


Advance = Callable[[RecurrentState], Step]
"""Runs a layer over its new tokens, from the state before them."""


class States(Protocol):
    """Gives the recurrent layers of one pass access to their states in a cache. ``recur`` calls ``advance`` with a
    layer's state, stores the state after ``count`` new tokens, and returns the tokens' output.
    """

    def recur(self, layer: int, count: int, advance: Advance) -> torch.Tensor: ...


class DeltaNet(nn.Module):
    """A gated DeltaNet layer with the weights of transformers' layer. A cache (``kv``) stores its states.

    Args:
        net: transformers' layer.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.layer_idx, self.out_proj = net.layer_idx, net.out_proj
        self.heads, self.key_heads = net.num_v_heads, net.num_k_heads
        self.key_dim, self.value_dim = net.head_k_dim, net.head_v_dim
        for name, layer in zip(INPUTS, _inputs_of(net), strict=True):
            setattr(self, name, layer)
        self.taps = _fixed(net.conv1d.weight.squeeze(1).t())
        self.pace, self.shift = _fixed(-net.A_log.float().exp()), _fixed(net.dt_bias)
        self.norm, self.epsilon = _fixed(net.norm.weight), float(net.norm.variance_epsilon)
        self.order: torch.Tensor | None
        # Order of the inputs of the output projection, for layers from some GGUF files; otherwise None.
        self.register_buffer("order", getattr(net, "output_order", None), persistent=False)
        self._kernels: Native | None = None
        self._lengths: dict[float, torch.Tensor] = {}

    def take(self, kernels: Native) -> None:
        """Use these kernels in passes of at most ``kernels.most_rows`` tokens. Does nothing unless the layer's widths
        fill whole SIMD vectors.
        """
        widths = (self.taps.shape[1], self.heads * self.value_dim)
        heads = (self.key_dim, self.value_dim)
        if not any(width % kernels.lanes for width in heads) and not any(width % WHOLE for width in widths):
            self._kernels = kernels
            for name in ("delta", "replayed"):
                kernels.address(name, *heads)

    def forward(self, hidden_states: torch.Tensor, *, kv: States, **_: Any) -> torch.Tensor:
        x, z, b, a = (getattr(self, name)(hidden_states)[0] for name in INPUTS)
        count = x.shape[0]
        kernels = self._kernels if self._kernels and count <= self._kernels.most_rows else None
        rates, softened = (padded(part).contiguous() for part in (b.float(), a.float() + self.shift))
        rates = rates.sigmoid()[:, : self.heads]
        decays = functional.softplus(softened)[:, : self.heads] * self.pace
        out = kv.recur(self.layer_idx, count, lambda state: self._advance(state, x, decays, rates, kernels))
        if kernels is None:
            out = out * (out.square().mean(dim=-1, keepdim=True) + self.epsilon).rsqrt() * self.norm
        else:
            out = kernels.norm(out, self.norm, self.epsilon)
        mixed = out.flatten(1) * functional.silu(z.float())
        mixed = mixed if self.order is None else mixed[:, self.order]
        answer: torch.Tensor = self.out_proj(mixed.to(hidden_states.dtype).unsqueeze(0))
        return answer

    def _advance(
        self,
        state: RecurrentState,
        x: torch.Tensor,
        decays: torch.Tensor,
        rates: torch.Tensor,
        kernels: Native | None,
    ) -> Step:
        count, width = x.shape[0], self.key_heads * self.key_dim
        inputs = torch.cat([state.inputs, x])
        mixed = functional.silu(convolved(inputs, self.taps))
        q, k, v = mixed.split((width, width, self.heads * self.value_dim), dim=1)
        q, k = (part.unflatten(1, (self.key_heads, self.key_dim)) for part in (q, k))
        q, k = self._of_length(q, self.key_dim**-0.5, kernels), self._of_length(k, 1.0, kernels)
        v = v.unflatten(1, (self.heads, self.value_dim))
        if kernels is None:
            out, updates, memory = in_chunks(q, k, v, decays, rates, state.memory)
        else:
            out, updates, memory = kernels.delta(q, k, v, decays, rates, state.memory)
        return Step(
            out, RecurrentState(memory, inputs[count:].clone()), DeltaTrace(inputs, k, updates, decays, kernels)
        )

    def _of_length(self, x: torch.Tensor, length: float, kernels: Native | None) -> torch.Tensor:
        """Scale each vector of x (n, heads, key_dim) to the L2 norm ``length``."""
        if kernels is None:
            return x * (length * (x.square().sum(dim=-1, keepdim=True) + _LEAST_SQUARE).rsqrt())
        # ``kernels.norm`` divides by the root mean square. With the weights ``length / sqrt(key_dim)`` the resulting
        # vectors have the L2 norm ``length``.
        weights = self._lengths.setdefault(length, torch.full((self.key_dim,), length * self.key_dim**-0.5))
        return kernels.norm(x, weights, _LEAST_SQUARE / self.key_dim)


class Mamba(nn.Module):
    """A Mamba-2 layer with the weights of transformers' layer. A cache (``kv``) stores its states. This class uses the
    names of the delta rule instead of Mamba's: key for B, query for C, value for x, and rate for the step size.

    Args:
        net: transformers' layer.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.layer_idx, self.in_proj, self.out_proj = net.layer_idx, net.in_proj, net.out_proj
        self.heads, self.key_heads = net.num_heads, net.n_groups
        self.key_dim, self.value_dim = net.ssm_state_size, net.head_dim
        self.taps = _fixed(net.conv1d.weight.squeeze(1).t())
        self.bias = None if net.conv1d.bias is None else _fixed(net.conv1d.bias)
        self.pace, self.shift, self.kept = _fixed(-net.A_log.float().exp()), _fixed(net.dt_bias), _fixed(net.D)
        self.norm, self.epsilon = _fixed(net.norm.weight), float(net.norm.variance_epsilon)
        self.unit = _fixed(torch.ones(net.norm.group_size, device=net.norm.weight.device))
        self._limits = net.time_step_limit or (0.0, float("inf"))
        self._kernels: Native | None = None

    def take(self, kernels: Native) -> None:
        """Use these kernels in passes of at most ``kernels.most_rows`` tokens. Does nothing unless the layer's widths
        fill whole SIMD vectors.
        """
        widths = (self.taps.shape[1], self.heads * self.value_dim, self.unit.shape[0])
        heads = (self.key_dim, self.value_dim)
        if not any(width % kernels.lanes for width in heads) and not any(width % WHOLE for width in widths):
            self._kernels = kernels
            for name in ("scan", "replayed"):
                kernels.address(name, *heads)

    def forward(self, hidden_states: torch.Tensor, *, kv: States, **_: Any) -> torch.Tensor:
        inner = self.heads * self.value_dim
        gate, x, steps = self.in_proj(hidden_states)[0].split((inner, self.taps.shape[1], self.heads), dim=-1)
        kernels = self._kernels if self._kernels and x.shape[0] <= self._kernels.most_rows else None
        steps = functional.softplus(padded(steps.float() + self.shift).contiguous())[:, : self.heads]
        steps = steps.clamp(*self._limits)
        out = kv.recur(self.layer_idx, x.shape[0], lambda state: self._advance(state, x, steps, kernels))
        mixed = (out.flatten(1) * functional.silu(gate.float())).unflatten(1, (-1, self.unit.shape[0]))
        if kernels is None:
            mixed = mixed * (mixed.square().mean(dim=-1, keepdim=True) + self.epsilon).rsqrt()
        else:
            mixed = kernels.norm(mixed, self.unit, self.epsilon)
        answer: torch.Tensor = self.out_proj((mixed.flatten(1) * self.norm).to(hidden_states.dtype).unsqueeze(0))
        return answer

    def _advance(self, state: RecurrentState, x: torch.Tensor, steps: torch.Tensor, kernels: Native | None) -> Step:
        inner, width = self.heads * self.value_dim, self.key_heads * self.key_dim
        inputs = torch.cat([state.inputs, x])
        mixed = convolved(inputs, self.taps)
        mixed = functional.silu(mixed if self.bias is None else mixed + self.bias)
        v, k, q = mixed.split((inner, width, width), dim=1)
        v = v.unflatten(1, (self.heads, self.value_dim))
        k, q = (part.unflatten(1, (self.key_heads, self.key_dim)) for part in (k, q))
        given = (q, k, v, steps * self.pace, steps, state.memory)
        if kernels is None:
            out, updates, memory = in_chunks(*given, corrects=False)
        else:
            out, updates, memory = kernels.delta(*given, rule="scan")
        trace = DeltaTrace(inputs, k, updates, given[3], kernels)
        return Step(out + v * self.kept[:, None], RecurrentState(memory, inputs[x.shape[0] :].clone()), trace)


def _inputs_of(net: Any) -> Sequence[nn.Linear]:
    """Return the four input projections of a linear-attention layer, in the order of ``INPUTS``. Qwen3-Next stores them
    in two matrices, whose outputs are interleaved by key head; these matrices are split into the four projections.
    """
    if hasattr(net, INPUTS[0]):
        return [getattr(net, name) for name in INPUTS]
    heads, group = net.num_k_heads, net.num_v_heads // net.num_k_heads
    wide, narrow = (net.in_proj_qkvz.weight.detach(), net.in_proj_ba.weight.detach())
    q, k, v, z = wide.unflatten(0, (heads, -1)).split([net.head_k_dim] * 2 + [group * net.head_v_dim] * 2, dim=1)
    b, a = narrow.unflatten(0, (heads, -1)).split(group, dim=1)
    qkv = torch.cat([part.flatten(0, 1) for part in (q, k, v)])
    return [linear(part) for part in (qkv, *(part.flatten(0, 1) for part in (z, b, a)))]


class ShortConv(nn.Module):
    """A gated short convolution (LFM2) with the weights of transformers' layer. A cache (``kv``) stores its states.

    Args:
        net: transformers' layer.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.layer_idx, self.in_proj, self.out_proj = net.layer_idx, net.in_proj, net.out_proj
        self.taps = _fixed(net.conv.weight.squeeze(1).t())
        self.bias = None if net.conv.bias is None else _fixed(net.conv.bias)

    def forward(self, hidden_states: torch.Tensor, *, kv: States, **_: Any) -> torch.Tensor:
        opens, closes, x = self.in_proj(hidden_states)[0].chunk(3, dim=-1)
        x = opens * x

        def advance(state: RecurrentState) -> Step:
            inputs, count = torch.cat([state.inputs, x]), x.shape[0]
            after = RecurrentState(state.memory, inputs[count:].clone())
            return Step(convolved(inputs, self.taps), after, InputTrace(inputs, count))

        out = kv.recur(self.layer_idx, x.shape[0], advance)
        out = out if self.bias is None else out + self.bias
        answer: torch.Tensor = self.out_proj((closes * out).to(hidden_states.dtype).unsqueeze(0))
        return answer


INPUTS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")
"""Names of the input projections of a linear-attention layer, in this order: inputs of the convolution, gates of the
output, write rates, decays of the state.
"""


def install(model: Any) -> None:
    """Replace the recurrent layers of a transformers causal LM by layers whose states a cache stores."""
    for layer in model.model.layers:
        if hasattr(layer, "linear_attn"):
            layer.linear_attn = DeltaNet(layer.linear_attn)
        elif getattr(layer, "mamba", None) is not None:
            layer.mamba = Mamba(layer.mamba)
        elif hasattr(layer, "conv"):
            layer.conv = ShortConv(layer.conv)


def convolved(inputs: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Compute a convolution over tokens, separately for each channel: the sum of the inputs of a token and of the taps
    - 1 tokens before it, weighted by ``taps``. Returns (n, channels) in float32.

    Args:
        inputs: (taps - 1 + n, channels), beginning with the inputs of the taps - 1 tokens before the first new token.
        taps: (taps, channels).
    """
    wide, count = inputs.float(), inputs.shape[0] - taps.shape[0] + 1
    total = wide[:count] * taps[0]
    for tap in range(1, taps.shape[0]):
        total += wide[tap : tap + count] * taps[tap]
    return total


def in_chunks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decays: torch.Tensor,
    rates: torch.Tensor,
    memory: torch.Tensor,
    *,
    corrects: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the gated delta rule, or Mamba-2's rule, over n tokens. All tensors are in float32.

    Args:
        q, k: (n, key_heads, key_dim); v: (n, heads, value_dim).
        decays: (n, heads), logarithms of the factors by which each token multiplies the state.
        rates: (n, heads), factor of what each token writes.
        memory: (heads, key_dim, value_dim), the state before the tokens.
        corrects: whether a token writes the difference between its value and the value read under its key (the delta
            rule), or its whole value (Mamba-2).

    Returns:
        The tokens' outputs and the values that they write, both (n, heads, value_dim), and the state after the last
            token.
    """
    n, heads, width = v.shape
    size = min(_CHUNK, n)
    queries, keys, values, fading, rate = (_cut(x, size) for x in (q, k, v, decays, rates))
    rate = rate.unsqueeze(-1)
    # Only differences between these sums of logarithms are used. The differences are much smaller than the sums, so the
    # sums are computed in float64.
    faded = fading.double().cumsum(dim=-1)
    later = torch.ones(size, size, dtype=torch.bool, device=v.device).triu(1)
    between = (faded.unsqueeze(-1) - faded.unsqueeze(-2)).float().masked_fill_(later, float("-inf")).exp_()
    left, whole = faded.float().exp().unsqueeze(-1), faded[..., -1:].float().exp().unsqueeze(-1)
    seen = _for_each_head(queries @ keys.transpose(-1, -2), heads) * between
    # The value that a token reads depends on the memory before the chunk and on what earlier tokens of the chunk add.
    # So the values that the tokens of a chunk add are the solution of a triangular system. It is solved for all chunks
    # before their memory is known: the solution is ``own``, which depends only on the chunk's tokens, plus
    # ``of_memory`` times the memory.
    own, of_memory = values * rate, None
    if corrects:
        system = _for_each_head(keys @ keys.transpose(-1, -2), heads) * between * rate
        sides = torch.cat([own, _for_each_head(keys, heads) * (-rate * left)], dim=-1)
        solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True)
        own, of_memory = solved.split((width, k.shape[2]), dim=-1)
    queries, keys = _for_each_head(queries, heads), _for_each_head(keys, heads)
    asking, writing = queries * left, (keys * (faded[..., -1:] - faded).float().exp().unsqueeze(-1)).transpose(-1, -2)
    out, updates = torch.empty_like(values), torch.empty_like(values)
    for chunk in range(values.shape[0]):
        update = own[chunk] if of_memory is None else torch.baddbmm(own[chunk], of_memory[chunk], memory)
        out[chunk] = torch.baddbmm(asking[chunk] @ memory, seen[chunk], update)
        memory = torch.baddbmm(whole[chunk] * memory, writing[chunk], update)
        updates[chunk] = update
    read, added = (part.transpose(1, 2).reshape(-1, heads, width)[:n] for part in (out, updates))
    return read, added, memory


def _cut(x: torch.Tensor, size: int) -> torch.Tensor:
    """Cut (n, heads, ...) into chunks (chunks, heads, size, ...). The last chunk is padded with zeros, which do not
    change the memory.
    """
    if missing := -len(x) % size:
        x = torch.cat([x, x.new_zeros(missing, *x.shape[1:])])
    return x.unflatten(0, (-1, size)).transpose(1, 2).contiguous()


def _for_each_head(x: torch.Tensor, heads: int) -> torch.Tensor:
    """Repeat the tensor of each key head, in x (n or chunks, key_heads, ...), for all heads that share it. Return (n or
    chunks, heads, ...).
    """
    group = heads // x.shape[1]
    return x if group == 1 else x.repeat_interleave(group, dim=1)


def _fixed(values: torch.Tensor) -> nn.Parameter:
    return nn.Parameter(values.detach().float().contiguous(), requires_grad=False)
