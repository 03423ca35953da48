"""Who proposes tokens to the middle level: the draft model on its streaming cache, or nobody.

A drafter proposes with the law that each token was drawn from, follows the context by itself (tokens that it has not
seen are fed when it is asked next), and is told what was committed. It can be wrong about everything: only speed
depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.beliefs import ENDLESS, Patience
from engine.cache.streaming import StreamingCache
from engine.events import Stage
from engine.graphs import Replays
from engine.models import Decoder
from engine.sampling import Sampler, draw, point_mass
from engine.transfers import to_host


@dataclass(frozen=True)
class Proposal:
    """``tokens`` (n,) on the device with their laws ``probs`` (n, vocabulary of the target), and who made them.

    Without ``probs`` every token is a point mass. ``confidences`` are the draft model's, where they were asked for;
    ``steps`` are the forward passes of the draft model. ``hinted``: the whole hint was its likeliest continuation.
    """

    tokens: torch.Tensor
    probs: torch.Tensor | None = None
    stage: Stage = Stage.DRAFT
    confidences: tuple[float, ...] = ()
    steps: int = 0
    hinted: bool = False


def _nothing(device: torch.device) -> Proposal:
    return Proposal(torch.empty(0, dtype=torch.long, device=device))


class Drafter(Protocol):
    """Proposes what may come next."""

    def begin(self, context: Sequence[int]) -> None:
        """Start on a new context; nothing of an earlier one may remain."""

    def propose(
        self,
        context: Sequence[int],
        count: int,
        sampler: Sampler,
        generator: torch.Generator,
        patience: Patience = ENDLESS,
        hint: Sequence[int] = (),
    ) -> Proposal:
        """At most ``count`` tokens to follow ``context``, which extends or crops the context of the last call.

        Args:
            patience: ends the proposal early.
            hint: while it is what the drafter holds likeliest it is proposed, as point masses, and nothing after it.
        """

    def note(self, tokens: Sequence[int]) -> None:
        """The first tokens of the last proposal, which somebody has read by now. Those after them were rejected."""

    def settle(self, context: Sequence[int]) -> None:
        """All tokens of ``context`` are committed and will not be taken back while this context is followed."""


class NoDrafter:
    """Proposes nothing: the middle level then makes one token per pass."""

    def __init__(self, device: torch.device) -> None:
        self._nothing = _nothing(device)

    def begin(self, context: Sequence[int]) -> None:
        pass

    def propose(
        self,
        context: Sequence[int],
        count: int,
        sampler: Sampler,
        generator: torch.Generator,
        patience: Patience = ENDLESS,
        hint: Sequence[int] = (),
    ) -> Proposal:
        return self._nothing

    def note(self, tokens: Sequence[int]) -> None:
        pass

    def settle(self, context: Sequence[int]) -> None:
        pass


class ModelDrafter:
    """The draft model on a streaming cache.

    Args:
        decoder: the draft model.
        vocabulary: of the target; laws are cut or padded to it, since families pad their embeddings differently.
        num_sink_tokens, window_size: of the streaming cache.
        longest: most tokens that are ever ahead of the committed context.
        replays: records steps; None runs every one anew.
    """

    def __init__(
        self,
        decoder: Decoder,
        vocabulary: int,
        num_sink_tokens: int,
        window_size: int,
        longest: int,
        replays: Replays | None = None,
    ) -> None:
        self._decoder = decoder
        self._vocabulary = vocabulary
        self._slack = max(64, 3 * longest)
        self._settled = 0  # length of the context that can no longer be taken back
        self._fed: list[int] = []  # tokens in the cache after that
        self._unread: list[torch.Tensor] = []  # tokens in the cache after those, drawn on the device and not read yet
        self.cache = StreamingCache(decoder.kv_shape, num_sink_tokens, window_size, self._slack, decoder.rotate)
        self.replays = replays
        if replays is not None:
            self.cache.zero()

    def begin(self, context: Sequence[int]) -> None:
        """Fill the cache from the sinks and the end of the context, with a lead-in of one more window.

        The tokens between are skipped: the draft could not see them anyway, and a long book costs nothing to open.
        """
        cache, sinks = self.cache, self.cache.num_sink_tokens
        cache.reset()
        self._settled, self._fed, self._unread = 0, [], []
        wanted = 2 * cache.window_size
        skip = max(0, len(context) - 1 - sinks - wanted) // self._slack * self._slack
        self._feed(context[: min(sinks, len(context) - 1)])
        if skip:
            cache.skip(skip)
        self._settled, self._fed = cache.length, []
        self._catch_up(context)
        self._settle()

    def propose(
        self,
        context: Sequence[int],
        count: int,
        sampler: Sampler,
        generator: torch.Generator,
        patience: Patience = ENDLESS,
        hint: Sequence[int] = (),
    ) -> Proposal:
        if count == 0:
            return _nothing(self._decoder.device)
        cache = self.cache
        self._crop_to(context)
        fresh = list(context[cache.length :])
        logits = self._fit(self._forward(self._decoder.ids(fresh)))
        self._fed += fresh
        hints = self._decoder.ids(list(hint))
        agrees = torch.ones(1, dtype=torch.bool, device=hints.device)
        tokens: list[torch.Tensor] = []
        laws: list[torch.Tensor] = []
        sure: list[float] = []
        hinting, chance = bool(hint), 1.0
        while True:
            law = sampler(logits)
            if hinting:
                # Looking only at the likeliest token keeps the hint independent of the draw, and so the law exact.
                agrees = agrees & (logits.argmax(-1) == hints[len(tokens)])
                law = torch.where(agrees, point_mass(hints[len(tokens) : len(tokens) + 1], law), law)
            tokens.append(draw(law, generator))
            laws.append(law)
            if patience.least > 0.0 or (hinting and len(tokens) == len(hint)):
                (found,), (same,) = to_host(confidences(logits, tokens[-1]), agrees)
                hinting = hinting and bool(same)
                if patience.least > 0.0:
                    sure.append(found)
                    chance *= patience.chance(found)
            hinted = hinting and len(tokens) == len(hint)
            if hinted or chance < patience.least or len(tokens) == count:
                return Proposal(torch.cat(tokens), torch.cat(laws), Stage.DRAFT, tuple(sure), len(tokens), hinted)
            logits = self._fit(self._forward(tokens[-1]))
            self._unread.append(tokens[-1])

    def note(self, tokens: Sequence[int]) -> None:
        # No context to come has what was rejected, so nobody need know what it was.
        self._fed += tokens[: len(self._unread)]
        self._unread = []

    def settle(self, context: Sequence[int]) -> None:
        self._crop_to(context)
        # Others may have proposed for a while: what was committed meanwhile is fed before it becomes too much at once.
        if len(context) - self.cache.length > self._slack // 2:
            self._catch_up(context)
        self._settle()

    def probe(self, ids: torch.Tensor) -> None:
        """Run a pass over these tokens (n,) and take it back: for timing."""
        with torch.inference_mode():
            self._decoder.forward(ids, self._decoder.no_rope(len(ids)), self.cache.extend(len(ids)), rows=len(ids))

    def _settle(self) -> None:
        self.cache.settle()
        self._settled, self._fed = self.cache.length, []

    def _crop_to(self, context: Sequence[int]) -> None:
        """Drop what was fed and is not in this context; its last token stays out, as the next input."""
        if self._unread:
            self.note([int(token) for token in to_host(torch.cat(self._unread))[0]])
        same = 0
        for fed, token in zip(self._fed, context[self._settled : -1], strict=False):
            if fed != token:
                break
            same += 1
        del self._fed[same:]
        self.cache.crop(self._settled + same)

    def _catch_up(self, context: Sequence[int]) -> None:
        """Feed the committed tokens that the cache has not seen, all but the last, evicting as it fills."""
        cache = self.cache
        while (missing := len(context) - 1 - cache.length) > 0:
            self._settle()
            self._feed(context[cache.length : cache.length + min(missing, self._slack)])

    def _feed(self, tokens: Sequence[int]) -> None:
        if tokens:
            self._forward(self._decoder.ids(list(tokens)))
            self._fed += tokens

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Feed tokens (n,): logits (1, vocabulary) of the last. Whoever feeds them keeps account of them."""
        decoder, cache, count = self._decoder, self.cache, ids.shape[0]
        # A token of the target's own, which the draft has no row for, is shown as another: that costs a guess at most.
        known = ids.clamp(max=decoder.vocabulary - 1)

        def eager() -> torch.Tensor:
            return decoder.forward(known, decoder.no_rope(count), cache.extend(count), rows=1)

        def fixed(known: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
            return decoder.forward(known, decoder.no_rope(count), cache.extend_at(place, count), rows=1)

        if self.replays is None or cache.room() < count:
            logits = eager()
        else:
            logits = self.replays.run((count,), eager, fixed, known, decoder.ids([cache.held]))
        cache.advance(count)
        return logits

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        missing = self._vocabulary - logits.shape[-1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
        return logits[:, : self._vocabulary]


def confidences(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Probability (n,) that each row of logits (n, vocabulary) gives its token (n,), before temperature and
    truncation."""
    chosen = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    return (chosen - logits.logsumexp(dim=-1)).exp()
