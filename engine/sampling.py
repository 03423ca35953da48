"""From logits to the distribution that is sampled: temperature, then top-k, then top-p.

Every level of the hierarchy uses the same ``Sampler``, so that p and q of an acceptance test are laws of the same kind.
Greedy is the one-hot case of the same code. Knows no model and no cache.
"""

from __future__ import annotations

import torch

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
    """Keep the smallest set of most likely tokens whose mass reaches top_p (always at least one), renormalised."""
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

    By the inverse of the cumulative law in float64: one random number a row, where ``torch.multinomial`` draws one for
    every token of the vocabulary.
    """
    reached = probs.double().cumsum(dim=-1)
    chance = torch.rand(probs.shape[0], 1, generator=generator, device=probs.device, dtype=torch.float64)
    # "right" steps over tokens of probability 0; the clamp is for a product that rounds up to the whole mass.
    drawn = torch.searchsorted(reached, chance * reached[:, -1:], right=True).squeeze(-1)
    return drawn.clamp_(max=probs.shape[-1] - 1)


def point_mass(token: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """All mass on ``token`` (1,), as a row (1, vocabulary) of the kind of those of ``like`` (n, vocabulary)."""
    return torch.zeros_like(like[:1]).scatter_(1, token.unsqueeze(1), 1.0)


def make_generator(seed: int | None, device: torch.device) -> torch.Generator:
    """The one source of randomness of an answer."""
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator
