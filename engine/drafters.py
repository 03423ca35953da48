"""Who proposes tokens to the middle level: here the draft model on its streaming cache.

A drafter proposes with the law that each token was drawn from, follows the context by itself (tokens that it has not
seen are fed when it is asked next), and is told what was committed. It can be wrong about everything: only speed
depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.cache.streaming import StreamingCache
from engine.models import Decoder
from engine.sampling import Sampler, draw


@dataclass(frozen=True)
class Proposal:
    """``tokens`` (n,) on the device with their laws ``probs`` (n, vocabulary of the target)."""

    tokens: torch.Tensor
    probs: torch.Tensor

    @property
    def count(self) -> int:
        return int(self.tokens.shape[0])


class Drafter(Protocol):
    """Proposes what may come next."""

    def begin(self, context: Sequence[int]) -> None:
        """Start on a new context; nothing of an earlier one may remain."""

    def propose(self, context: Sequence[int], count: int, sampler: Sampler, generator: torch.Generator) -> Proposal:
        """At most ``count`` tokens to follow ``context``, which extends or crops the context of the last call."""

    def settle(self, length: int) -> None:
        """The first ``length`` tokens of the context are committed and will not be taken back."""


class NoDrafter:
    """Proposes nothing: the middle level then makes one token per pass."""

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._nothing = Proposal(
            torch.empty(0, dtype=torch.long, device=device), torch.empty(0, vocabulary, device=device)
        )

    def begin(self, context: Sequence[int]) -> None:
        pass

    def propose(self, context: Sequence[int], count: int, sampler: Sampler, generator: torch.Generator) -> Proposal:
        return self._nothing

    def settle(self, length: int) -> None:
        pass


class ModelDrafter:
    """The draft model on a streaming cache.

    Args:
        decoder: the draft model.
        vocabulary: of the target; laws are cut or padded to it, since families pad their embeddings differently.
        num_sink_tokens, window_size: of the streaming cache.
        longest: most tokens that are ever ahead of the committed context.
    """

    def __init__(self, decoder: Decoder, vocabulary: int, num_sink_tokens: int, window_size: int, longest: int) -> None:
        self._decoder = decoder
        self._vocabulary = vocabulary
        self._slack = max(64, 2 * longest)
        self.cache = StreamingCache(decoder.kv_shape, num_sink_tokens, window_size, self._slack, decoder.rotate)

    def begin(self, context: Sequence[int]) -> None:
        """Fill the cache from the sinks and the end of the context, with a lead-in of one more window.

        The tokens between are skipped: the draft could not see them anyway, and a long book costs nothing to open.
        """
        cache, sinks = self.cache, self.cache.num_sink_tokens
        cache.reset()
        wanted = 2 * cache.window_size
        skip = max(0, len(context) - 1 - sinks - wanted) // self._slack * self._slack
        self._feed(context[:sinks])
        if skip:
            cache.skip(skip)
        self._catch_up(context, upto=len(context) - 1)

    def propose(self, context: Sequence[int], count: int, sampler: Sampler, generator: torch.Generator) -> Proposal:
        cache = self.cache
        cache.crop(min(cache.length, len(context) - 1))
        if len(context) - cache.length > self._slack:
            self._catch_up(context, upto=len(context) - 1)
        feed = self._decoder.ids(list(context[cache.length :]))
        tokens, laws = [], []
        for _ in range(count):
            law = sampler(self._fit(self._forward(feed)[-1:]))
            feed = draw(law, generator)
            tokens.append(feed)
            laws.append(law)
        return Proposal(torch.cat(tokens), torch.cat(laws))

    def settle(self, length: int) -> None:
        self.cache.crop(min(self.cache.length, length))
        self.cache.settle()

    def _catch_up(self, context: Sequence[int], upto: int) -> None:
        """Feed the tokens of the context that the cache has not seen, evicting as it fills."""
        cache = self.cache
        while cache.length < upto:
            count = min(upto - cache.length, self._slack)
            if count > cache.room() - self._slack:
                cache.settle()
            self._feed(context[cache.length : cache.length + count])

    def _feed(self, tokens: Sequence[int]) -> None:
        if tokens:
            self._forward(self._decoder.ids(list(tokens)))

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        decoder, count = self._decoder, ids.shape[0]
        logits = decoder.forward(ids, decoder.no_rope(count), self.cache.extend(count), rows=1)
        self.cache.advance(count)
        return logits

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        missing = self._vocabulary - logits.shape[-1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
        return logits[:, : self._vocabulary]
