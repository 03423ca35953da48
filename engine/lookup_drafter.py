"""The book itself as a drafter: what followed the same words earlier, beside the draft model or in its place."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.beliefs import ENDLESS, Patience
from engine.drafters import Drafter, Proposal
from engine.events import Stage
from engine.lookup import LookupIndex
from engine.sampling import Sampler
from engine.transfers import to_device

# A match of fewer tokens says too little to go alone: the draft model must agree with what follows it.
_ALONE = 8
# So many tokens.
_AGREED = 2
# A proposal of more tokens is a multiple of these: every shape of a middle pass is recorded anew on a GPU.
_STRIDE = 8


class LookupDrafter:
    """Proposes what followed the same words earlier in the book or the chat; without such a place asks ``inner``.

    A proposal grows with the length of the match: a long match is a copy in progress and goes alone, a short one must
    agree with the first tokens of ``inner``. It is a point mass, so the text keeps its law at any temperature.

    Args:
        inner: who is asked where no long match is found.
        index: of the book and the chat; kept up to date here.
        longest: most tokens of one proposal; 0 leaves proposing to ``inner`` and keeps the index alone.
        device: where proposals are made.
    """

    def __init__(self, inner: Drafter, index: LookupIndex, longest: int, device: torch.device) -> None:
        self.inner = inner
        self.index = index
        self._longest = longest
        self._device = device
        self._asked_inner = False  # for the last proposal

    def begin(self, context: Sequence[int]) -> None:
        self.index.follow(context)
        self.inner.begin(context)

    def propose(
        self,
        context: Sequence[int],
        count: int,
        sampler: Sampler,
        generator: torch.Generator,
        patience: Patience = ENDLESS,
        hint: Sequence[int] = (),
    ) -> Proposal:
        tail = context[len(self.index) :]
        match = self.index.find(tail) if self._longest else None
        self._asked_inner = match is None or match.length < _ALONE
        if match is None:
            return self.inner.propose(context, count, sampler, generator, patience)
        found = self.index.after(match, min(self._longest, 2 * match.length), tail)
        if match.length < _ALONE:
            hint = found[:_AGREED]
            made = self.inner.propose(context, count, sampler, generator, patience, hint)
            # Tokens that were drawn and happen to be the hint do not count: what is proposed may not depend on a draw.
            if not made.hinted:
                return made
        if len(found) > _STRIDE:
            found = found[: len(found) // _STRIDE * _STRIDE]
        return Proposal(to_device(found, self._device), None, Stage.LOOKUP)

    def note(self, tokens: Sequence[int]) -> None:
        if self._asked_inner:
            self.inner.note(tokens)

    def settle(self, context: Sequence[int]) -> None:
        self.index.extend(context)
        self.inner.settle(context)
