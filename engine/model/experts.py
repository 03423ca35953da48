"""Runs mixtures of experts: a router chooses a few of a layer's many MLPs for every token.

transformers holds the experts of a layer as tensors of three axes. In this module each expert is two ordinary linear
layers. They are packed and rounded like all linear layers, and each can be copied from host memory by itself
(``host_weights``). So only the chosen experts are read. On a processor with our own kernels, router and experts give a
token the same bits whatever other tokens are in the pass, so a verification chooses the same experts as a plain step.

If a GPU has a kernel for grouped products (``devices.multiplies_groups``), models whose weights are not rounded keep
transformers' code for experts. That kernel reads the choice of experts on the device. So do the kernels for the blocks
of a GGUF file, for the few tokens of a pass that decodes (``Experts.choose_by``). Otherwise this module needs the
choice on the host, which then has to wait.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from engine.model.mxfp4 import StoredExperts
from engine.model.products import linear, padded

if TYPE_CHECKING:
    from engine.model.families import Family

ExpertProduct = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Multiplies rows (n, in) by the matrices of the experts whose indices are given (places,): (places, out)."""

_Asked = tuple[int, torch.Tensor]
"""The index of an expert, and the places where it occurs in the flattened (n, chosen) indices of all tokens."""

Fetch = Callable[[Iterator[_Asked]], Iterator[_Asked]]
"""Yields the chosen experts again, each while its weights are on the compute device."""


class Router(nn.Module):
    """Chooses experts for each token, and computes each chosen expert's share: the factor of its output.

    Args:
        router: transformers' router.
        softmax_of_all: as ``Family.softmax_of_all``.
    """

    def __init__(self, router: Any, softmax_of_all: bool) -> None:
        super().__init__()
        self.product = linear(router.weight, getattr(router, "bias", None))
        self._chosen = int(router.top_k)
        self._of_all = softmax_of_all
        # whether the shares of the chosen experts are scaled to a sum of 1 after a softmax over all
        self._to_whole = bool(getattr(router, "norm_topk_prob", True))
        # A factor of all shares. Only routers with a sigmoid instead of a softmax have it.
        self._factor: float | None = getattr(router, "routed_scaling_factor", None)

    def forward(
        self, hidden_states: torch.Tensor, expert_bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Score the experts for tokens (n, hidden). Return the scores (n, experts), and the chosen experts' shares and
        indices, both (n, chosen).

        Args:
            expert_bias: (experts,), added to the shares while experts are chosen. The returned shares are without it.
        """
        scores = self.product(hidden_states)
        if self._factor is not None:
            each = padded(scores).contiguous().sigmoid()[:, : scores.shape[1]]
            ids = (each if expert_bias is None else each + expert_bias).topk(self._chosen, dim=-1)[1]
            shares = each.gather(1, ids)
            if self._to_whole:
                shares = shares / (shares.sum(dim=-1, keepdim=True) + _LEAST_SHARE)
            return scores, shares * self._factor, ids
        if not self._of_all:
            best, ids = scores.topk(self._chosen, dim=-1)
            return scores, best.softmax(dim=-1), ids
        shares, ids = functional.softmax(scores, dim=-1, dtype=torch.float32).topk(self._chosen, dim=-1)
        if self._to_whole:
            shares = shares / shares.sum(dim=-1, keepdim=True)
        return scores, shares.to(scores.dtype), ids


class NormedRouter(nn.Module):
    """The router of Gemma 4: its input is normalised, and the share of each expert has a factor of its own.

    Args:
        router: transformers' router.
    """

    def __init__(self, router: Any) -> None:
        super().__init__()
        self.norm = _ChoiceRMSNorm(router.scale.detach().float() * router.scalar_root_size, router.eps)
        self.product = linear(router.proj.weight, None)
        self.per_expert_scale = router.per_expert_scale
        self._chosen = int(router.config.top_k_experts)

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Route as ``Router.forward``."""
        scores = self.product(self.norm(hidden_states))
        shares, ids = functional.softmax(scores, dim=-1, dtype=torch.float32).topk(self._chosen, dim=-1)
        shares = shares / shares.sum(dim=-1, keepdim=True)
        return scores, shares * self.per_expert_scale[ids], ids


class _ChoiceRMSNorm(nn.Module):
    """An RMS norm that keeps its weights (width,) in float32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(weight, requires_grad=False), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps).to(x.dtype)


class Experts(nn.Module):
    """The experts of a layer.

    Args:
        experts: transformers' experts.
    """

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.opens: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = silu_gate
        """The activation: a function of the gates and the up projections that returns the input of the down
        projection.
        """
        if hasattr(experts, "limit"):
            self.opens = functools.partial(_clamped, alpha=experts.alpha, limit=experts.limit)
        elif experts.act_fn is not functional.silu and not type(experts.act_fn).__name__.startswith("SiLU"):
            self.opens = functools.partial(_opened, act=experts.act_fn)
        self._fetched: Fetch = iter
        self.fused: Sequence[Callable[[torch.Tensor], torch.Tensor]] = ()
        """One function for each expert that computes it in one call (``engine.model.backends.program``); () if there
        are none.
        """
        self._most_rows = 0
        # the products with the gates and with the down projections of chosen experts, and the most tokens for which
        # both are used; None if the host has to know the choice
        self._chosen: tuple[ExpertProduct, ExpertProduct] | None = None
        self._most_tokens = 0
        self.gates = nn.ModuleList(_layers_of(experts, "gate_up_proj", interleaved=not experts.is_concatenated))
        self.down = nn.ModuleList(_layers_of(experts, "down_proj"))

    def fetch_by(self, fetch: Fetch) -> None:
        """Set the function that iterates over the chosen experts. While it yields an expert, the expert's weights must
        be on the compute device. ``fetch`` can be ``iter`` if all experts are always on this device.
        """
        self._fetched = fetch

    def fuse(self, fused: Sequence[Callable[[torch.Tensor], torch.Tensor]], most_rows: int) -> None:
        """Set functions, one for each expert, that compute the expert for at most ``most_rows`` tokens."""
        self.fused, self._most_rows = fused, most_rows

    def choose_by(self, gates: ExpertProduct, down: ExpertProduct, most_tokens: int) -> None:
        """Set functions that multiply rows by the gates and by the down projections of chosen experts, for at most
        ``most_tokens`` tokens. They read the choice on the device.
        """
        self._chosen, self._most_tokens = (gates, down), most_tokens

    @property
    def waits_for_host(self) -> bool:
        """Whether the host has to know the choice of experts, also for a few tokens."""
        return self._chosen is None

    def forward(self, hidden_states: torch.Tensor, ids: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        """Compute the outputs of the experts ``ids`` (n, chosen) for tokens (n, hidden). Return their sum, weighted by
        ``shares`` (n, chosen).
        """
        (count, chosen), width = ids.shape, hidden_states.shape[1]
        if self._chosen is not None and count <= self._most_tokens:
            gates, down = self._chosen
            gate, up = gates(hidden_states, ids.flatten()).chunk(2, dim=-1)
            answers = down(self.opens(gate, up), ids.flatten()).float()
        else:
            answers = self._asked_one_by_one(hidden_states, ids)
        # The experts' outputs are added one after another. If torch summed them over an axis, the order, and with it
        # the rounding, would depend on the shape.
        total = torch.zeros(count, width, dtype=torch.float32, device=hidden_states.device)
        for rank, answer in enumerate(answers.unflatten(0, (count, chosen)).unbind(1)):
            total += answer * shares[:, rank, None].float()
        return total.to(hidden_states.dtype)

    def _asked_one_by_one(self, hidden_states: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Compute the outputs (n * chosen, hidden) in float32 of the experts ``ids`` (n, chosen), one expert after
        another.
        """
        chosen = ids.shape[1]
        answers = hidden_states.new_empty(ids.numel(), hidden_states.shape[1], dtype=torch.float32)
        for expert, places in self._fetched(_asked(ids.flatten())):
            asking = hidden_states[places // chosen]
            if len(places) <= self._most_rows:
                answers[places] = self.fused[expert](asking)
            else:
                gate, up = self.gates[expert](asking).chunk(2, dim=-1)
                answers[places] = self.down[expert](self.opens(gate, up)).float()
        return answers


class WithShared(nn.Module):
    """A mixture of experts with an additional, gated expert that is active for every token.

    Args:
        block: transformers' block, after ``install`` has replaced its router and experts.
    """

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.gate, self.experts = block.gate, block.experts
        self.shared_expert, self.shared_expert_gate = block.shared_expert, block.shared_expert_gate

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        x = hidden_states.flatten(0, 1)
        _, shares, ids = self.gate(x)
        opened = padded(self.shared_expert_gate(x)).sigmoid()[:, :1]
        return (self.experts(x, ids, shares) + opened * self.shared_expert(x)).view_as(hidden_states)


def install(blocks: Iterable[Any], family: Family) -> None:
    """Replace the routers and experts in the decoder blocks of a transformers causal LM. Blocks without experts are
    left unchanged.
    """
    for layer in blocks:
        block = _mixture_of(layer)
        if block is None:
            continue
        block.experts = Experts(block.experts)
        for name in _ROUTERS:
            if (router := getattr(block, name, None)) is not None:
                setattr(block, name, _router_of(router, family))
        if hasattr(block, "shared_expert"):
            layer.mlp = WithShared(block)


def _router_of(router: Any, family: Family) -> nn.Module:
    return NormedRouter(router) if hasattr(router, "proj") else Router(router, family.softmax_of_all)


def choosing(block: nn.Module) -> Iterator[nn.Linear]:
    """Yield the linear layers of a block that choose experts or compute a factor of their outputs."""
    for part in block.modules():
        if isinstance(part, Router | NormedRouter):
            yield part.product
        if isinstance(part, WithShared):
            yield part.shared_expert_gate


def waits_for_host(model: Any) -> bool:
    """Whether the host waits for the choice of experts in every pass of a transformers causal LM."""
    return any(isinstance(part, Experts) and part.waits_for_host for part in model.modules())


def nbytes(model: Any) -> int:
    """Bytes of all experts of a transformers causal LM."""
    found = (_mixture_of(layer) for layer in model.model.layers)
    return sum(weight.nbytes for block in found if block is not None for weight in block.experts.parameters())


def chooses(name: str) -> bool:
    """Whether the weight with this name in transformers belongs to a router of experts."""
    return name in ["router.proj.weight", *(f"{block}.{router}.weight" for block in _BLOCKS for router in _ROUTERS)]


_BLOCKS, _ROUTERS = ("mlp", "block_sparse_moe", "feed_forward"), ("gate", "router")
_LEAST_SHARE = 1e-6  # added to the sum that a token's shares are divided by, as in LFM2


def _mixture_of(layer: Any) -> Any:
    """The part of a layer that holds experts, which may be the layer itself; None if the layer has no experts."""
    blocks = (layer, *(getattr(layer, name, None) for name in _BLOCKS))
    return next((block for block in blocks if hasattr(block, "experts")), None)


def _asked(ids: torch.Tensor) -> Iterator[_Asked]:
    """Yield each expert in ``ids`` (places,) once, with the indices of its occurrences."""
    order = ids.argsort(stable=True)
    at = 0
    for expert, group in itertools.groupby(ids[order].tolist()):  # ``tolist`` makes the host wait for a GPU
        stop = at + sum(1 for _ in group)
        yield expert, order[at:stop]
        at = stop


def silu_gate(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The gated activation of Llama and most other families."""
    return functional.silu(gate) * up


def _opened(gate: torch.Tensor, up: torch.Tensor, act: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return act(gate) * up


def _clamped(gate: torch.Tensor, up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """The gated activation of gpt-oss, which clamps its inputs."""
    gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return (up + 1.0) * (gate * torch.sigmoid(gate * alpha))


def _matrices(experts: Any, name: str) -> Iterator[torch.Tensor]:
    """Yield the matrix ``name`` (out, in) of each expert, in the order of experts."""
    if isinstance(experts, StoredExperts):
        return (experts.matrix(name, expert) for expert in range(len(getattr(experts, f"{name}_scales"))))
    return (weight.t() if experts.is_transposed else weight for weight in getattr(experts, name))


def _layers_of(experts: Any, name: str, *, interleaved: bool = False) -> Iterator[nn.Module]:
    """Make a linear layer from the matrix ``name`` of each of transformers' experts.

    Args:
        interleaved: whether rows of the gate and up projections alternate in the matrix. The layer has all rows of the
            gate projection first.
    """
    if hasattr(experts, "linear_layers"):  # the experts are stored in the blocks of a GGUF file
        yield from experts.linear_layers(name)
        return
    biases = getattr(experts, f"{name}_bias", None)
    for expert, weight in enumerate(_matrices(experts, name)):
        bias = None if biases is None else biases[expert]
        if interleaved:
            weight = torch.cat([weight[::2], weight[1::2]])
            bias = None if bias is None else torch.cat([bias[::2], bias[1::2]])
        yield linear(weight, bias)
