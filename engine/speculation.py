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

from engine.sampling import draw, point_mass
from engine.transfers import to_host


@dataclass(frozen=True)
class Verdict:
    """``stands``: the leading proposals that were accepted, and the token that follows them (a residual, or a bonus if
    all were)."""

    stands: tuple[int, ...]

    @property
    def accepted(self) -> int:
        """How many of the proposals stand."""
        return len(self.stands) - 1

    @property
    def token(self) -> int:
        """What follows them."""
        return self.stands[-1]


@dataclass(frozen=True)
class Ruling:
    """A verdict on n proposals that nobody has read yet, on the device.

    ``accepted`` (1,) int64; ``tokens`` (n + 1,) int64: the accepted proposals, and in all places after them the token
    that follows.
    """

    accepted: torch.Tensor
    tokens: torch.Tensor

    def read(self, *more: torch.Tensor) -> tuple[Verdict, list[list[float]]]:
        """The verdict, with the numbers of other small tensors (n,): one wait for all of it."""
        (accepted,), tokens, *others = to_host(self.accepted, self.tokens, *more)
        stands = tuple(int(token) for token in tokens[: int(accepted) + 1])
        return Verdict(stands), others


def judge(proposed: torch.Tensor, q: torch.Tensor | None, p: torch.Tensor, generator: torch.Generator) -> Verdict:
    """Judge n proposed tokens and wait for the verdict. Arguments as ``rule``."""
    return rule(proposed, q, p, generator).read()[0]


def rule(proposed: torch.Tensor, q: torch.Tensor | None, p: torch.Tensor, generator: torch.Generator) -> Ruling:
    """Judge n proposed tokens; the processor waits for nothing.

    Args:
        proposed: (n,) int64, n may be 0.
        q: (n, vocabulary) proposal laws, one row per proposed token; None if every proposal is a point mass.
        p: (n + 1, vocabulary) target laws.
        generator: source of randomness, on the device of p.
    """
    n = proposed.shape[0]
    if n == 0:
        return Ruling(proposed.new_zeros(1), draw(p[:1], generator))
    at = proposed.unsqueeze(1)
    asked = p[:n].gather(1, at).squeeze(1)
    given = torch.ones_like(asked) if q is None else q.gather(1, at).squeeze(1)
    chance = torch.rand(n, generator=generator, device=p.device)
    # u < p/q written without the division: a proposal always has q > 0.
    accepted = (chance * given < asked).to(torch.int64).cumprod(0).sum(0, keepdim=True)
    law, rejected = p.index_select(0, accepted), accepted.clamp(max=n - 1)
    against = point_mass(proposed.index_select(0, rejected), p) if q is None else q.index_select(0, rejected)
    token = draw(torch.where(accepted == n, law, residual(law, against)), generator)
    places = torch.arange(n + 1, device=p.device)
    return Ruling(accepted, torch.where(places < accepted, torch.cat([proposed, token]), token))


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """norm(max(p - q, 0)) by rows. Where p = q up to rounding nothing is left, and p stands in for it."""
    rest = (p - q).clamp_min_(0.0)
    mass = rest.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, rest / mass.clamp_min(torch.finfo(rest.dtype).tiny), p)
