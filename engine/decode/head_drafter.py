"""Proposes tokens of the target's own draft head, from the hidden states that the target's passes leave.

Every proposal first gives the head the tokens that were committed since the last one, with the target's hidden states
before them, in one pass. Further tokens follow from the head's own output. Tokens that only the target on the retrieval
cache has accepted are read with the hidden states of its pass, and read again after verification.

The head runs on a streaming cache, as a draft model does. The hidden states of a book that was restored from disk are
unknown, and those of a long book are not kept. So the cache begins with the oldest hidden states at hand, and the first
of them take the place of the attention sinks.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from engine.decode.acceptance import NO_EARLY_STOP, EarlyStop
from engine.decode.drafters import FED_IN_A_STEP, READ_AT_ONCE, Proposal, drafted, first_tokens, fitted, no_tokens
from engine.kv.spilling import retry_with_spill
from engine.kv.streaming import StreamingCache

if TYPE_CHECKING:
    from engine.decode.verify import Sampler
    from engine.kv.full import FullCache
    from engine.kv.hidden_states import HiddenStates
    from engine.model.own_head import DraftHead


class HeadDrafter:
    """Proposes tokens of a draft head.

    An entry of the head's cache stands for a position of the context: for the hidden state there, and the token after
    it.

    Args:
        head: the draft head.
        hidden: the target's newest hidden states.
        num_sink_tokens, window_size: sizes of the streaming cache.
        longest: maximum number of proposed tokens after the committed context.
        full: the target's full cache, whose layers are spilled if a step runs out of memory; None spills nothing.
        waits: whether the hidden states at hand are read only before the first proposal, because this takes long.
    """

    def __init__(
        self,
        head: DraftHead,
        hidden: HiddenStates,
        num_sink_tokens: int,
        window_size: int,
        longest: int,
        full: FullCache | None = None,
        waits: bool = False,
    ) -> None:
        self.decoder, self.waits = head, waits
        self.started = False
        """Whether the cache holds the entries that the hidden states at hand allow."""
        self._hidden, self._full = hidden, full
        self._slack = max(64, 3 * longest)
        self._fed_in_a_step = FED_IN_A_STEP if waits else self._slack // 2
        self.cache = StreamingCache(head.kv_shape, num_sink_tokens, window_size, self._slack, head.rotate)
        self._base = 0  # position of the cache's first entry
        self._settled = 0  # number of entries whose token is committed and whose hidden state is the full level's
        self._committed = 0  # number of committed tokens

    def tokens_to_start(self, length: int) -> int:
        """Number of entries that the head reads before its first step on a context of this length."""
        if not self.started:
            return max(0, length - 1 - self._hidden.start)
        missing = length - 1 - self._base - self._settled
        return missing if missing > self._fed_in_a_step else 0

    def begin(self, context: Sequence[int], *, anew: bool = False) -> None:
        self._committed, self.started = len(context), False
        if anew:
            # Which hidden states are at hand depends on earlier answers. That of the token before the last is left by
            # the step that made the last.
            self._hidden.forget_before(len(context) - 2)
        if not self.waits:
            self._catch_up(context)

    def start_ahead(self, book: Sequence[int], context: Sequence[int]) -> Iterator[None]:
        """Do nothing, because a head is started quickly."""
        return iter(())

    def forget(self) -> None:
        """Forget the context, because another book comes."""
        self.started = False

    def propose(
        self,
        context: Sequence[int],
        count: int,
        sampler: Sampler,
        generator: torch.Generator,
        stop: EarlyStop = NO_EARLY_STOP,
        hint: Sequence[int] = (),
    ) -> Proposal:
        if count == 0 or not self._hidden.start <= len(context) - 2 < self._hidden.stop:
            return no_tokens(self.decoder.token_device)
        start_ms = self._catch_up(context[: self._committed])
        logits, states = self._after(context)

        def following(token: torch.Tensor) -> torch.Tensor:
            nonlocal states
            logits, states = self._read(token, states)
            return logits

        made = drafted(logits, following, count, sampler, generator, stop, self.decoder.ids(list(hint)))
        return replace(made, start_ms=start_ms)

    def accept(self, tokens: Sequence[int]) -> None:
        pass

    def commit(self, context: Sequence[int]) -> None:
        self._committed = len(context)
        if self.started:
            self._settled = min(self._settled, len(context) - 2 - self._base)
            self.cache.crop(self._settled)
            self.cache.settle()

    def _catch_up(self, context: Sequence[int]) -> float:
        """Read the committed tokens ``context`` if they are too many for a step, or if nothing has been read yet.

        Returns:
            The milliseconds that this took; 0 if nothing was done.
        """
        clock, hidden = time.perf_counter(), self._hidden
        at_hand = hidden.start <= self._base + self._settled <= hidden.stop
        if self.started and at_hand and not self.tokens_to_start(len(context)):
            return 0.0
        if not (self.started and at_hand):
            self.cache.reset()
            self._base, self._settled, self.started = hidden.start, 0, True
            if self.waits:
                self.decoder.narrow(first_tokens(context))
        self.cache.crop(self._settled)
        # The last entry is left for the step whose logits are needed.
        last = min(len(context), hidden.stop + 1) - 2
        while (start := self._base + self._settled) < last:
            stop = min(last, start + (READ_AT_ONCE if self.waits else self._slack))
            self._read_from(start, context[start + 1 : stop + 1])
            self._settled = stop - self._base
            self.cache.settle()
        return (time.perf_counter() - clock) * 1000.0

    def _after(self, context: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Read the tokens of ``context`` that are not final in the cache. Return the logits of the next token, and the
        hidden state that stands for that of the last token.
        """
        # The last token is always read, because its logits are needed.
        start = min(self._base + self._settled, len(context) - 2)
        self.cache.crop(start - self._base)
        outputs = self._read_from(start, context[start + 1 :])
        self._settled = max(self._settled, self._committed - 1 - self._base)
        return outputs

    def _read_from(self, start: int, tokens: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """Read tokens after the target's hidden states from position ``start`` on."""
        states = self._hidden.between(start, start + len(tokens))
        return self._read(self.decoder.ids(list(tokens)), states)

    def _read(self, ids: torch.Tensor, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        cache, head = self.cache, self.decoder

        def work() -> tuple[torch.Tensor, torch.Tensor]:
            return head.read(ids, states, cache.extend(len(ids)), rows=1)

        logits, after = work() if self._full is None else retry_with_spill(self._full, work)
        cache.advance(len(ids))
        return fitted(logits, head.vocabulary), after
