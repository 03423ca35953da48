"""Sampling, and the rejection sampling that keeps speculative decoding exact, used by every level. Pure: no model.

Given tokens x_1..x_n, each drawn from its proposal distribution q_i, and the target distributions p_1..p_{n+1}: accept
x_i with probability min(1, p_i(x_i) / q_i(x_i)); at the first rejection draw from the residual norm(max(p_i - q_i, 0));
if all are accepted draw a bonus token from p_{n+1}. The tokens then have exactly the distribution p, whatever q was.
Every level maps logits by the same ``Sampler`` (temperature, then top-k, then top-p), so that p and q are of the same
kind; greedy is the one-hot case of the same code.

Source: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318). A level of the hierarchy returns
tokens of distribution p, so they are proposals with q = p for the level above. Drawing from p itself on a rejection, as
the published code of TriForce does at the middle level, is not exact at temperature above 0. A proposal from text
lookup is a point mass: q is one-hot.

A GPU works asynchronously until a result is read. ``to_host`` is the only reading in a round, once for every
verification: a round without a middle level reads once, one with k middle passes k + 1 times, since the accepted part
of a proposal decides what is drafted next. With early stopping the draft model is read after every token as well: a
wait costs tens of microseconds, and a step that is not run several times that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from engine.config import SamplingParams

# Tokens among which the nucleus of top-p is looked for first.
_LIKELIEST = 128


class Sampler:
    """Maps logits (n, vocabulary) to probabilities (n, vocabulary) in float32, rows summing to 1."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        params = self.params
        if params.temperature == 0.0:
            return torch.zeros_like(logits, dtype=torch.float32).scatter_(-1, logits.argmax(-1, keepdim=True), 1.0)
        scaled = logits.float() / params.temperature
        if params.top_k and params.top_k < scaled.shape[-1]:
            least = scaled.topk(params.top_k, dim=-1).values[..., -1:]
            scaled = scaled.masked_fill(scaled < least, float("-inf"))
        probs = torch.softmax(scaled, dim=-1)
        return probs if params.top_p >= 1.0 else _nucleus(probs, params.top_p)


def _nucleus(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of most likely tokens whose sum reaches top_p (always at least one), renormalised."""
    most = _first_look(probs)
    likeliest, order = probs.topk(most, dim=-1)
    out = torch.zeros_like(probs).scatter_(-1, order, _within(likeliest, top_p))
    if most < probs.shape[-1]:
        flat = (likeliest.sum(dim=-1) < top_p).nonzero().squeeze(-1)
        if flat.numel():
            ordered, order = probs[flat].sort(dim=-1, descending=True)
            out[flat] = torch.zeros_like(ordered).scatter_(-1, order, _within(ordered, top_p))
    return out / out.sum(dim=-1, keepdim=True)


def _first_look(probs: torch.Tensor) -> int:
    """Tokens that are put in order at first: on a processor a few, since sorting a whole vocabulary there costs more
    than a small model's forward pass; on a GPU all, since asking whether the few suffice would be a wait."""
    return min(_LIKELIEST, probs.shape[-1]) if probs.device.type == "cpu" else probs.shape[-1]


def _within(ordered: torch.Tensor, top_p: float) -> torch.Tensor:
    """Descending probabilities, with zeros for those that come after top_p has been reached."""
    before = ordered.cumsum(dim=-1) - ordered
    return ordered.masked_fill(before >= top_p, 0.0)


def draw(probs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One token from each row of probs (n, vocabulary), which need not sum to 1: (n,) int64.

    By the inverse of the cumulative distribution in float64: one random number a row, where ``torch.multinomial`` draws
    one for every token of the vocabulary.
    """
    reached = probs.double().cumsum(dim=-1)
    chance = torch.rand(probs.shape[0], 1, generator=generator, device=probs.device, dtype=torch.float64)
    # "right" steps over tokens of probability 0; the clamp is for a product that rounds up to the whole mass.
    drawn = torch.searchsorted(reached, chance * reached[:, -1:], right=True).squeeze(-1)
    return drawn.clamp_(max=probs.shape[-1] - 1)


def point_mass(token: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """All mass on ``token`` (1,), as a row (1, vocabulary) of the kind of those of ``like`` (n, vocabulary)."""
    return torch.zeros_like(like[:1]).scatter_(1, token.unsqueeze(1), 1.0)


def confidences(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Probability (n,) that each row of logits (n, vocabulary) gives its token (n,), before temperature and
    truncation."""
    chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return (chosen - logits.logsumexp(dim=-1)).exp()


def make_generator(seed: int | None, device: torch.device) -> torch.Generator:
    """The one source of randomness of an answer."""
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


@dataclass(frozen=True)
class SampledTokens:
    """``tokens``: the accepted proposals, and the token that follows them: a residual, or a bonus if all were."""

    tokens: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        return len(self.tokens) - 1


@dataclass(frozen=True)
class DeviceSample:
    """The same, of n proposals, on the device: nobody has waited for it yet.

    ``num_accepted`` (1,) int64; ``tokens`` (n + 1,) int64: the accepted proposals, and in all places after them the
    token that follows.
    """

    num_accepted: torch.Tensor
    tokens: torch.Tensor

    def read(self, *more: torch.Tensor) -> tuple[SampledTokens, list[list[float]]]:
        """The tokens on the host, with the numbers of other small tensors (n,): one host sync for all of it."""
        (accepted,), tokens, *others = to_host(self.num_accepted, self.tokens, *more)
        return SampledTokens(tuple(int(token) for token in tokens[: int(accepted) + 1])), others


def rejection_sample(
    proposed: torch.Tensor, q: torch.Tensor | None, p: torch.Tensor, generator: torch.Generator
) -> SampledTokens:
    """``rejection_sample_on_device``, read."""
    return rejection_sample_on_device(proposed, q, p, generator).read()[0]


def rejection_sample_on_device(
    proposed: torch.Tensor, q: torch.Tensor | None, p: torch.Tensor, generator: torch.Generator
) -> DeviceSample:
    """Accept a prefix of n proposed tokens and draw the token that follows it. No host sync.

    Args:
        proposed: (n,) int64, n may be 0.
        q: (n, vocabulary) proposal distributions, one row per proposed token; None if every proposal is a point mass.
        p: (n + 1, vocabulary) target distributions.
        generator: source of randomness, on the device of p.
    """
    n = proposed.shape[0]
    if n == 0:
        return DeviceSample(proposed.new_zeros(1), draw(p[:1], generator))
    at = proposed.unsqueeze(1)
    target = p[:n].gather(1, at).squeeze(1)
    proposal = torch.ones_like(target) if q is None else q.gather(1, at).squeeze(1)
    chance = torch.rand(n, generator=generator, device=p.device)
    # u < p/q written without the division: a proposal always has q > 0.
    accepted = (chance * proposal < target).to(torch.int64).cumprod(0).sum(0, keepdim=True)
    p_next, rejected = p.index_select(0, accepted), accepted.clamp(max=n - 1)
    q_next = point_mass(proposed.index_select(0, rejected), p) if q is None else q.index_select(0, rejected)
    token = draw(torch.where(accepted == n, p_next, residual(p_next, q_next)), generator)
    places = torch.arange(n + 1, device=p.device)
    return DeviceSample(accepted, torch.where(places < accepted, torch.cat([proposed, token]), token))


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """norm(max(p - q, 0)) by rows. Where p = q up to rounding nothing is left, and p takes its place."""
    rest = (p - q).clamp_min_(0.0)
    mass = rest.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, rest / mass.clamp_min(torch.finfo(rest.dtype).tiny), p)


def to_host(*tensors: torch.Tensor) -> list[list[float]]:
    """The numbers of several small tensors (n,) of one device, in one transfer and so with one wait.

    As float64, which token ids and probabilities in float32 go through unchanged.
    """
    joined: list[float] = torch.cat([tensor.double() for tensor in tensors]).tolist()
    found, start = [], 0
    for tensor in tensors:
        found.append(joined[start : start + tensor.shape[0]])
        start += tensor.shape[0]
    return found
