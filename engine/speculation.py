"""Accept, reject, residual: the rule that keeps speculative decoding exact, used by every level.

Given tokens x_1..x_n, each drawn from its proposal law q_i, and the laws p_1..p_{n+1} that were asked for: accept x_i
with probability min(1, p_i(x_i) / q_i(x_i)); at the first rejection draw from the residual norm(max(p_i - q_i, 0)); if
all are accepted draw a bonus token from p_{n+1}. The tokens then have exactly the law p, whatever q was.

Source: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318). A level of the hierarchy returns
tokens of law p, so they are proposals with q = p for the level above. Drawing from p itself on a rejection, as the
published code of TriForce does at the middle level, is not exact at temperature above 0.

A proposal without a law of its own (text lookup) is a point mass: q is one-hot. Pure: no model, no cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.sampling import draw


@dataclass(frozen=True)
class Verdict:
    """``accepted`` leading proposals stand; ``token`` follows them: a residual, or a bonus if all stand."""

    accepted: int
    token: int


def judge(proposed: torch.Tensor, q: torch.Tensor | None, p: torch.Tensor, generator: torch.Generator) -> Verdict:
    """Judge n proposed tokens.

    Args:
        proposed: (n,) int64, n may be 0.
        q: (n, vocabulary) proposal laws, one row per proposed token; None if every proposal is a point mass.
        p: (n + 1, vocabulary) target laws.
        generator: source of randomness, on the device of p.
    """
    n = proposed.shape[0]
    if n == 0:
        return Verdict(0, int(draw(p[:1], generator)))
    at = proposed.unsqueeze(1)
    asked = p[:n].gather(1, at).squeeze(1)
    given = torch.ones_like(asked) if q is None else q.gather(1, at).squeeze(1)
    chance = torch.rand(n, generator=generator, device=p.device)
    # u < p/q written without the division: a proposal always has q > 0.
    accepted = int((chance * given < asked).to(torch.int64).cumprod(0).sum())
    # Where the prefix ends is needed on the host: one row's residual costs less than those of all rows.
    if accepted == n:
        return Verdict(n, int(draw(p[n:], generator)))
    row = slice(accepted, accepted + 1)
    rest = residual(p[row], _point(proposed[row], p) if q is None else q[row])
    return Verdict(accepted, int(draw(rest, generator)))


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """norm(max(p - q, 0)) by rows. Where p = q up to rounding nothing is left, and p stands in for it."""
    rest = (p - q).clamp_min_(0.0)
    mass = rest.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, rest / mass.clamp_min(torch.finfo(rest.dtype).tiny), p)


def _point(token: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """The point mass on ``token`` (1,), as a row like those of p."""
    return torch.zeros_like(p[:1]).scatter_(1, token.unsqueeze(1), 1.0)
