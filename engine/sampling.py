"""From logits to the distribution that is sampled: temperature, then top-k, then top-p.

Every level of the hierarchy uses the same ``Sampler``, so that p and q of an acceptance test are laws of the same kind.
Greedy is the one-hot case of the same code. Knows no model and no cache.
"""

from __future__ import annotations

import torch

from engine.config import SamplingParams


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
    ordered, order = probs.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    kept = ordered.masked_fill(before >= top_p, 0.0)
    out = torch.zeros_like(probs).scatter_(-1, order, kept)
    return out / out.sum(dim=-1, keepdim=True)


def draw(probs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """One token from each row of probs (n, vocabulary): (n,) int64."""
    return torch.multinomial(probs, 1, generator=generator).squeeze(-1)


def make_generator(seed: int | None, device: torch.device) -> torch.Generator:
    """The one source of randomness of an answer."""
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator
