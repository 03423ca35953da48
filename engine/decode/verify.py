"""Implements sampling, and the rejection sampling that keeps speculative decoding exact. Every level uses both. Pure:
no model.

Given tokens x_1..x_n, each drawn from its proposal distribution q_i, and the target distributions p_1..p_{n+1}: accept
x_i with probability min(1, p_i(x_i) / q_i(x_i)); at the first rejection draw from the residual norm(max(p_i - q_i, 0));
if all are accepted draw a bonus token from p_{n+1}. The tokens then have exactly the distribution p, whatever q was.
Every level maps logits by the same ``Sampler`` (penalties, then temperature, top-k and top-p, in transformers'
order), so that p and q are of the same kind: a tensor of probabilities, or, on a CPU, rows that are computed on demand
(``distributions``). In greedy decoding every distribution is a point mass, and only its one token is stored. To make a
row of zeros over the whole vocabulary instead would take a tenth of a small model's plain step.

The repetition penalty and the presence penalty make a distribution depend on earlier tokens, including proposals: row
i of a pass counts the answer so far and the proposals x_1..x_{i-1}. p_i is used only if these proposals were accepted,
so it is the distribution of plain decoding at that place. The penalties count only tokens of the answer, like
transformers' ``prompt_ignore_length``, because the prompt is a whole book and nearly every word would be penalised.

The restriction of quotations to the book's words (``quotations``) depends on earlier tokens in the same way: within a
quotation, tokens with which it would not occur in the book are masked in each row. The host finds these tokens, so with
this restriction the tokens that any level draws are read to the host.

Source: Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318). A level of the hierarchy returns
tokens of distribution p, so for the next level they are proposals with q = p. The published code of TriForce draws from
p itself after a rejection at the middle level (the target on the retrieval cache), which is not exact at temperature
above 0. A proposal from text lookup is a point mass: q is one-hot.

A GPU works asynchronously until a result is read. So the host reads results rarely, with ``to_host``. A speculative
round without passes of the middle level reads once. A round with k passes of the middle level reads k + 1 times,
because the accepted part of a proposal decides the next draft. With early stops, the confidence of each drafted token
is read: a wait costs tens of microseconds, but a draft step that is saved takes several times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch

from engine.decode.distributions import (
    NO_TOKEN,
    JoinedRows,
    PointMasses,
    Rows,
    draw_from,
    kernel_rows,
    likeliest,
    patched,
)
from engine.model.kernels.own_sampling import PatchedLogits

if TYPE_CHECKING:
    from engine.config import SamplingParams
    from engine.decode.quotations import Quotable, Quotations

Distributions: TypeAlias = torch.Tensor | Rows
"""Distributions of n rows in one of three forms: probabilities (n, vocabulary) in float32, each row summing to 1;
``Rows``; or, for greedy decoding, the tokens (n,) int64 that have probability 1.
"""

# The nucleus of top-p is first searched among this number of most likely tokens, before it is searched in the whole
# vocabulary.
_LIKELIEST = 128
# Total probability 1 as an integer. Probabilities become integer multiples of 1 / 2^60, called parts. The sum of a
# row's parts stays below 2^63.
_WHOLE = 1 << 60
# Number of bits of the lower digit. The 32 bits of a float32 probability are divided into an upper and a lower half,
# which are called digits.
_LOWER_BITS = 16
# Largest lower digit.
_LOWER = 0xFFFF
# The upper 16 bits of the float32 number 1: the largest value that these bits of a probability can have.
_UPPER = 0x3F80


class Sampler:
    """Maps logits (n, vocabulary) to the distributions of the tokens after one text.

    Args:
        params: settings of sampling. A temperature of None means greedy; any other option that is None is off.
        seen: (m,) int64 on the device of the logits: the answer's tokens for the penalties, possibly with duplicates.
            None if there is no penalty.
        quotations: whether the text ends within a quotation, and with which words; None if quotations need not be in
            the book.
    """

    def __init__(
        self, params: SamplingParams, seen: torch.Tensor | None = None, quotations: Quotations | None = None
    ) -> None:
        self.params = params
        self._temperature, self._top_k = params.temperature or 0.0, params.top_k or 0
        self._top_p = params.top_p or 1.0
        self._penalty, self._presence = params.repetition_penalty or 1.0, params.presence_penalty or 0.0
        self._seen = seen
        self._quotations = quotations

    @property
    def remembers(self) -> bool:
        """Whether distributions depend on earlier tokens of the answer. If not, ``after`` need not be called."""
        return self._seen is not None or self._quotations is not None

    def after(self, tokens: torch.Tensor) -> Sampler:
        """Make the sampler for the text of this sampler with ``tokens`` (n,) appended. The tokens are on the sampler's
        device.
        """
        if not self.remembers:
            return self
        seen = None if self._seen is None else torch.cat([self._seen, tokens])
        quotations = None if self._quotations is None else self._quotations.after(tokens.tolist())
        return type(self)(self.params, seen, quotations)

    def drafting(self) -> Sampler:
        """The sampler of a draft model after the same text.

        The distribution of proposals does not change the distribution of the verified text. So the draft model may
        choose among a few tokens where searching the whole vocabulary takes too long.
        """
        return DraftSampler(self.params, self._seen, self._quotations)

    def __call__(self, logits: torch.Tensor, proposed: torch.Tensor | None = None) -> Distributions:
        """Map logits (n, vocabulary) to distributions.

        Args:
            proposed: (n - 1,) tokens. Row i of the logits is for the position after the first i of these tokens. If it
                is None, every row is for the position directly after the text.
        """
        patches = None if self._seen is None else self._penalised(logits, self._seen, proposed)
        if self._quotations is not None:
            logits = _within_book(patched(logits, patches), self._quotations, proposed)
            patches = None
        if self._temperature == 0.0:
            return likeliest(logits, patches)
        rows = kernel_rows(logits, self._temperature, self._top_k, self._top_p, patches)
        if rows is not None:
            return rows
        scaled, order = patched(logits, patches).float() / self._temperature, None
        if self._top_k and self._top_k < scaled.shape[-1]:
            values, order = scaled.topk(self._top_k, dim=-1)
            scaled = scaled.masked_fill(scaled < values[..., -1:], float("-inf"))
        probs = torch.softmax(scaled, dim=-1)
        return probs if self._top_p >= 1.0 else self._cut(probs, order)

    def _cut(self, probs: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
        """Keep only the nucleus of top-p in each of the distributions (n, vocabulary), and renormalise.

        Args:
            order: (n, top_k) ids of the tokens that top-k has kept, the most likely first. Among tokens that are as
                likely as the last one, it may lack some. None without top-k.
        """
        if waits_are_cheap(probs):
            return _nucleus_by_sorting(probs, self._top_p)
        return _nucleus_by_selection(probs, self._top_p) if order is None else _nucleus_of(probs, self._top_p, order)

    def _penalised(self, logits: torch.Tensor, seen: torch.Tensor, proposed: torch.Tensor | None) -> PatchedLogits:
        """Return the ids of tokens that the text already has, and their logits after the repetition penalty (Keskar et
        al. 2019, arXiv 1909.05858) and then the presence penalty. vLLM and llama.cpp have the same order.
        """
        ids = seen.expand(logits.shape[0], -1)
        if proposed is not None and (count := proposed.shape[0]):
            places = torch.arange(count + 1, device=proposed.device)
            ids = torch.cat([ids, torch.where(places[:count] < places.unsqueeze(1), proposed, -1)], dim=1)
        gathered = logits.gather(1, ids.clamp(min=0)).float()
        # Negative logits are multiplied by the penalty, positive logits divided by it. For a penalty above 1, the
        # result is the smaller of the product and the quotient; for a penalty below 1, it is the larger.
        chosen = torch.minimum if self._penalty > 1.0 else torch.maximum
        return ids, chosen(gathered * self._penalty, gathered / self._penalty) - self._presence


class DraftSampler(Sampler):
    """A draft model's sampler (``Sampler.drafting``). On a GPU, it keeps at most the ``_LIKELIEST`` most likely tokens
    if top-p is below 1.
    """

    def _cut(self, probs: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
        if waits_are_cheap(probs):
            return super()._cut(probs, order)
        likeliest, order = probs.topk(min(_LIKELIEST, probs.shape[-1]), dim=-1)
        kept = _within(likeliest, self._top_p)
        return torch.zeros_like(probs).scatter_(-1, order, kept / kept.sum(dim=-1, keepdim=True))


def make_sampler(params: SamplingParams, answer: torch.Tensor, book: Quotable | None = None) -> Sampler:
    """Make the sampler of an answer that has the tokens ``answer`` (n,) so far, on the model's device.

    Args:
        book: the text from which quotations must come; None if anything may be quoted.
    """
    seen = None
    if (params.repetition_penalty or 1.0) != 1.0 or params.presence_penalty:
        seen = answer[:0]
    return Sampler(params, seen, None if book is None else book.begin([])).after(answer)


def _within_book(logits: torch.Tensor, quotations: Quotations, proposed: torch.Tensor | None) -> torch.Tensor:
    """Mask the tokens of logits (n, vocabulary) that are not allowed within a quotation. ``proposed`` is as in
    ``Sampler.__call__``.

    A row stays unmasked if it has no finite logit for any allowed token. This happens if a draft model's vocabulary
    lacks all allowed tokens.
    """
    said = [] if proposed is None else proposed.tolist()
    masked = logits  # the logits are copied only if a row is within a quotation
    for row in range(logits.shape[0]):
        allowed = quotations.allowed()
        if allowed is not None:
            masked = logits.clone() if masked is logits else masked
            allowed = allowed[allowed < logits.shape[1]].to(logits.device)
            left = torch.full_like(logits[row], float("-inf")).index_copy_(0, allowed, logits[row, allowed])
            masked[row] = torch.where(left.amax() > float("-inf"), left, logits[row])
        quotations = quotations.after(said[row : row + 1])
    return masked


def _nucleus_by_sorting(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep in each distribution the fewest most likely tokens whose sum reaches top_p (at least one token), and
    renormalise.

    Only the most likely tokens are sorted first, because sorting a whole vocabulary costs more than a small model's
    forward pass. The host has to read whether the sorted tokens reach top_p, so this function waits for the device.
    """
    most = min(_LIKELIEST, probs.shape[-1])
    likeliest, order = probs.topk(most, dim=-1)
    out = torch.zeros_like(probs).scatter_(-1, order, _within(likeliest, top_p))
    if most < probs.shape[-1]:
        flat = (likeliest.sum(dim=-1) < top_p).nonzero().squeeze(-1)
        if flat.numel():
            ordered, order = probs[flat].sort(dim=-1, descending=True)
            out[flat] = torch.zeros_like(ordered).scatter_(-1, order, _within(ordered, top_p))
    return out / out.sum(dim=-1, keepdim=True)


def _nucleus_by_selection(probs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the same tokens as ``_nucleus_by_sorting``, but without sorting and without a wait for the device. Used on a
    GPU if there is no top-k.

    Two steps find the smallest probability of the nucleus: first its upper 16 bits, then its lower 16 bits. This is
    possible because non-negative float32 numbers have the same order as their bits. The first step sums the
    probabilities for each value of the upper bits, and adds these sums from the largest value downwards. The value at
    which ``top_p`` is reached is the upper half. The second step does the same with the lower bits of the probabilities
    that have this upper half. Probabilities are rounded down to integer multiples of 1 / ``_WHOLE``, so that the order
    of addition on a GPU does not matter. Among tokens whose probability equals the smallest, the first tokens of the
    vocabulary are kept.
    """
    bits, wanted = probs.view(torch.int32), int(top_p * _WHOLE)
    parts, upper, lower = (probs.double() * _WHOLE).long(), (bits >> _LOWER_BITS).long(), (bits & _LOWER).long()
    first, above = _least_digit(upper, parts, _UPPER + 1, wanted, 0)
    second, above = _least_digit(lower, parts * (upper == first), _LOWER + 1, wanted, above)
    least = ((first << _LOWER_BITS) | second).int().view(torch.float32)
    return _at_least(probs, least, above, wanted)


def _nucleus_of(probs: torch.Tensor, top_p: float, order: torch.Tensor) -> torch.Tensor:
    """Keep the same tokens as ``_nucleus_by_selection``, for use after top-k has left few tokens.

    Args:
        order: the tokens that top-k has left, as in ``Sampler._cut``. Only their probabilities are summed.
            ``_nucleus_by_selection`` also sums the zeros of all other tokens, which a GPU adds one by one because they
            go to the same address.
    """
    ordered, wanted = probs.gather(1, order), int(top_p * _WHOLE)
    parts = (ordered.double() * _WHOLE).long()
    last = (parts.cumsum(dim=-1) < wanted).sum(dim=-1, keepdim=True).clamp(max=order.shape[1] - 1)
    least = ordered.gather(1, last)
    return _at_least(probs, least, (parts * (ordered > least)).sum(dim=-1, keepdim=True), wanted)


def _at_least(probs: torch.Tensor, least: torch.Tensor, above: torch.Tensor, wanted: int) -> torch.Tensor:
    """Keep a nucleus, and renormalise. Of the tokens with the smallest probability in the nucleus, ``least`` (n, 1),
    keep the first ones until the parts reach ``wanted``. ``above`` (n, 1) are the parts of all larger probabilities.
    """
    alike = probs == least
    before = above + (alike.cumsum(dim=-1) - 1) * (least.double() * _WHOLE).long()
    out = probs * ((probs > least) | (alike & (before < wanted)))
    return out / out.sum(dim=-1, keepdim=True)


def _least_digit(
    digits: torch.Tensor, parts: torch.Tensor, count: int, mass: int, above: torch.Tensor | int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Find the digit (half of the bits) of the smallest probability in the nucleus.

    Args:
        digits: (n, vocabulary), each below ``count``.
        parts: probabilities in multiples of 1 / ``_WHOLE``.
        mass: sum that the parts of the nucleus must reach.
        above: sum of the parts of tokens with a larger upper digit, if ``digits`` are the lower digits; otherwise 0.

    Returns:
        The digit (n, 1), and the sum (n, 1) of the parts of all tokens with a larger digit.
    """
    sums = parts.new_zeros(parts.shape[0], count).scatter_add_(1, digits, parts)
    larger = above + sums.sum(dim=-1, keepdim=True) - sums.cumsum(dim=-1)
    least = (larger >= mass).sum(dim=-1, keepdim=True)
    return least, larger.gather(1, least)


def waits_are_cheap(probs: torch.Tensor) -> bool:
    """Whether the host can read these numbers without waiting. On a GPU, a read waits for all queued work."""
    return probs.device.type == "cpu"


def _within(ordered: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the first of the descending probabilities ``ordered`` whose sum reaches top_p, and set all others to zero.
    The sum is computed in float64, because in float32 the sum over 110,000 tokens was 6e-6 too large, which cut off the
    last 750 tokens.
    """
    before = ordered.double().cumsum(dim=-1) - ordered
    return ordered.masked_fill(before >= top_p, 0.0)


def joined(parts: Sequence[Distributions], count: int) -> Distributions | None:
    """Concatenate several distributions and keep the first ``count`` rows; None if ``parts`` is empty."""
    tensors = [part for part in parts if isinstance(part, torch.Tensor)]
    if len(tensors) == len(parts):
        return torch.cat(tensors)[:count] if parts else None
    return JoinedRows([part for part in parts if not isinstance(part, torch.Tensor)])[:count]


def draw(probs: Distributions, generator: torch.Generator) -> torch.Tensor:
    """Draw one token from each of the n distributions of a ``Sampler``, (n,) int64. Rows need not sum to 1. A row whose
    logits were not finite gives ``NO_TOKEN``.

    Inverts the cumulative distribution in float64 with one random number for each row. ``torch.multinomial`` would need
    a random number for every token of the vocabulary.
    """
    if not isinstance(probs, torch.Tensor):
        chances = torch.rand(len(probs), generator=generator, dtype=torch.float64).tolist()
        return torch.tensor([draw_from(probs.row(index).numpy(), chance) for index, chance in enumerate(chances)])
    if probs.dim() == 1:
        return probs
    reached = probs.double().cumsum(dim=-1)
    chance = torch.rand(probs.shape[0], 1, generator=generator, device=probs.device, dtype=torch.float64)
    # side "right" skips tokens of probability 0. The clamp keeps the index within the row if the product was rounded up
    # to the sum of the row.
    drawn = torch.searchsorted(reached, chance * reached[:, -1:], right=True).squeeze(-1)
    return drawn.clamp_(max=probs.shape[-1] - 1).where(reached[:, -1] < math.inf, NO_TOKEN)


def instead(agrees: torch.Tensor, token: torch.Tensor, q: Distributions) -> Distributions:
    """Return a point mass on ``token`` (1,) if ``agrees`` (1,) is true, otherwise ``q``, a single distribution. A point
    mass has the same form as ``q``.
    """
    if isinstance(q, torch.Tensor):
        return torch.where(agrees, point_mass(token, q), q)
    return PointMasses(token, q.row(0).shape[0]) if bool(agrees) else q


def point_mass(token: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Make a distribution in which ``token`` (1,) has probability 1, in the form of ``like``: only the token, or a row
    of probabilities.
    """
    return token if like.dim() == 1 else torch.zeros_like(like[:1]).scatter_(1, token.unsqueeze(1), 1.0)


def confidences(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """The probability (n,) that each row of logits (n, vocabulary) gives to its token (n,), before temperature and
    truncation. The result for ``NO_TOKEN`` has no meaning.
    """
    tokens = tokens.clamp(min=0)
    if (rows := kernel_rows(logits)) is not None:
        return rows.of(tokens)
    chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return (chosen - logits.logsumexp(dim=-1)).exp()


def make_generator(seed: int | None, device: torch.device) -> torch.Generator:
    """Make the generator from which all randomness of an answer comes. If ``seed`` is None, the seed is random."""
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    return generator


@dataclass(frozen=True)
class SampledTokens:
    """Sampled ``tokens``: the accepted proposals and the token that follows them, which is a residual token, or a bonus
    token if all proposals were accepted.
    """

    tokens: tuple[int, ...]

    @property
    def num_accepted(self) -> int:
        return len(self.tokens) - 1


@dataclass(frozen=True)
class DeviceSample:
    """The result of rejection sampling n proposals, as tensors on the device that the host has not read yet.

    Args:
        num_accepted: (1,) int64.
        tokens: (n + 1,) int64: the accepted proposals, then the token that follows them. All remaining places hold this
            following token too.
    """

    num_accepted: torch.Tensor
    tokens: torch.Tensor

    def read(self, *more: torch.Tensor) -> tuple[SampledTokens, list[list[float]]]:
        """Read the sampled tokens to the host, and return them. The small tensors ``more``, each (n,), are read in the
        same transfer, so that the host waits only once. They are returned as lists.
        """
        (accepted,), tokens, *others = to_host(self.num_accepted, self.tokens, *more)
        return SampledTokens(tuple(int(token) for token in tokens[: int(accepted) + 1])), others


def rejection_sample(
    proposed: torch.Tensor, q: Distributions | None, p: Distributions, generator: torch.Generator
) -> SampledTokens:
    """Accept or reject proposed tokens on the device (``rejection_sample_on_device``), and read the result to the
    host.
    """
    return rejection_sample_on_device(proposed, q, p, generator).read()[0]


def rejection_sample_on_device(
    proposed: torch.Tensor, q: Distributions | None, p: Distributions, generator: torch.Generator
) -> DeviceSample:
    """Accept a prefix of n proposed tokens, and draw the token that follows it. The host does not wait for the device.

    Args:
        proposed: (n,) int64, n may be 0.
        q: n proposal distributions, one row per proposed token, in the same form as p; None if every proposal is a
            point mass. Unused if ``p`` are point masses.
        p: n + 1 target distributions, as a ``Sampler`` gives them.
        generator: source of randomness, on the device of p.
    """
    n = proposed.shape[0]
    if n == 0:
        return DeviceSample(proposed.new_zeros(1), draw(p[:1], generator))
    if not isinstance(p, torch.Tensor):
        assert not isinstance(q, torch.Tensor)
        return _sample_rows(proposed, q, p, generator)
    assert q is None or isinstance(q, torch.Tensor)
    places = torch.arange(n + 1, device=p.device)
    if p.dim() == 1:  # greedy: accept proposals that equal the argmax; the token after a rejection is the argmax
        accepted = (proposed == p[:n]).to(torch.int64).cumprod(0).sum(0, keepdim=True)
        return DeviceSample(accepted, p.index_select(0, torch.minimum(places, accepted)))
    index = proposed.unsqueeze(1)
    target = p[:n].gather(1, index).squeeze(1)
    proposal = torch.ones_like(target) if q is None else q.gather(1, index).squeeze(1)
    chance = torch.rand(n, generator=generator, device=p.device)
    # Accept if u < p / q, where u is ``chance``. This is computed as u * q < p, which is the same because q is above 0:
    # the proposal was drawn from q.
    accepted = (chance * proposal < target).to(torch.int64).cumprod(0).sum(0, keepdim=True)
    p_next, rejected = p.index_select(0, accepted), accepted.clamp(max=n - 1)
    q_next = point_mass(proposed.index_select(0, rejected), p) if q is None else q.index_select(0, rejected)
    token = draw(torch.where(accepted == n, p_next, residual(p_next, q_next)), generator)
    return DeviceSample(accepted, torch.where(places < accepted, torch.cat([proposed, token]), token))


def _sample_rows(proposed: torch.Tensor, q: Rows | None, p: Rows, generator: torch.Generator) -> DeviceSample:
    """Compute ``rejection_sample_on_device`` on a CPU, where the host can read each number without waiting. Only one
    row of p, and at most one row of q, is computed completely.
    """
    n = proposed.shape[0]
    chances = torch.rand(n, generator=generator).numpy()
    taken = chances * (1.0 if q is None else q.of(proposed).numpy()) < p.of(proposed).numpy()
    accepted = n if taken.all() else int(taken.argmin())
    left = p.row(accepted).numpy()
    if accepted < n:
        rest = left - (PointMasses(proposed, len(left)) if q is None else q).row(accepted).numpy()
        left = np.maximum(rest, 0.0, out=rest) if (rest > 0.0).any() else left
    (chance,) = torch.rand(1, generator=generator, dtype=torch.float64).tolist()
    token = proposed.new_full((n + 1 - accepted,), draw_from(left, chance))
    return DeviceSample(proposed.new_full((1,), accepted), torch.cat([proposed[:accepted], token]))


def residual(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The residual norm(max(p - q, 0)), row by row. If p and q are equal up to rounding, the residual is zero
    everywhere, and p is returned.
    """
    rest = (p - q).clamp_min_(0.0)
    mass = rest.sum(dim=-1, keepdim=True)
    return torch.where(mass > 0, rest / mass.clamp_min(torch.finfo(rest.dtype).tiny), p)


def to_host(*tensors: torch.Tensor) -> list[list[float]]:
    """Read several small tensors (n,) on one device in one transfer, so that the host waits only once.

    The numbers are transferred as float64, which represents token ids and float32 probabilities exactly.
    """
    joined: list[float] = torch.cat([tensor.double() for tensor in tensors]).tolist()
    lists, start = [], 0
    for tensor in tensors:
        lists.append(joined[start : start + tensor.shape[0]])
        start += tensor.shape[0]
    return lists
