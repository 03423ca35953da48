"""The cheap levels of one session: drafter, retrieval cache, and how much they speculate.

Owns what is between a question and ``decoding.hierarchical``: building the levels from a configuration, starting them
on a context, and the controller, which lives as long as the book. Knows no document and no chat.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from engine import decoding
from engine.cache.full import FullCache
from engine.cache.retrieval import QueryTap, RetrievalCache
from engine.config import EngineConfig, SamplingParams
from engine.controller import MOST_PENDING, Controller, FixedLengths, Pace
from engine.decoding import Context, Speculation
from engine.drafters import Drafter, LookupDrafter, ModelDrafter, NoDrafter
from engine.events import Round
from engine.models import Decoder

# Bounds where the controller chooses the lengths, and lengths where they are fixed and not given.
MOST_DRAFT, MOST_PASSES = 8, 8
_FIXED_DRAFT, _FIXED_PENDING = 4, 8
FIRST_QUERIES = 32
"""Newest tokens of a prompt whose queries choose the first retrieval selection."""

# Answer tokens that the retrieval tail takes before the context is cut anew.
_TAIL_TOKENS = 1024


class Hierarchy:
    """Draft and middle level above a full cache.

    Args:
        config: lengths and budgets.
        target: the target model; draft: the draft model, or None.
        full: the target's full cache.
    """

    def __init__(self, config: EngineConfig, target: Decoder, draft: Decoder | None, full: FullCache) -> None:
        self.config = config
        self._full = full
        draft_tokens = _FIXED_DRAFT if config.num_draft_tokens is None else config.num_draft_tokens
        self.fixed = FixedLengths(0 if draft is None else draft_tokens, config.num_pending_tokens or _FIXED_PENDING)
        most_draft, most_pending = MOST_DRAFT, MOST_PENDING
        if self.lengths_are_given:
            most_draft, most_pending = self.fixed.choice.draft, self.fixed.choice.pending
        self.longest = most_pending + max(most_draft, config.num_lookup_tokens) + 1
        tail = _TAIL_TOKENS + decoding.RECENT + 4 * self.longest
        self.retrieval = RetrievalCache(full, config.retrieval_budget, config.chunk_size, tail)
        self.drafter = self._make_drafter(target, draft)
        self._controller: Controller | None = None

    @property
    def has_draft_model(self) -> bool:
        return self.fixed.choice.draft > 0

    @property
    def lengths_are_given(self) -> bool:
        """Whether the configuration fixes the speculation lengths."""
        return self.config.num_draft_tokens is not None or self.config.num_pending_tokens is not None

    def _make_drafter(self, target: Decoder, draft: Decoder | None) -> Drafter:
        config = self.config
        drafter: Drafter = NoDrafter(target.vocabulary, target.device)
        if draft is not None and self.has_draft_model:
            sinks, window = config.num_sink_tokens, config.window_size
            drafter = ModelDrafter(draft, target.vocabulary, sinks, window, self.longest)
        if config.num_lookup_tokens == 0:
            return drafter
        return LookupDrafter(drafter, target.vocabulary, config.num_lookup_tokens, target.device)

    def reset(self) -> None:
        """Forget the book."""
        self.retrieval.reset()
        self._controller = None

    def crop(self, length: int) -> None:
        """The full cache has been cropped to ``length`` tokens: what was derived from later ones is void."""
        self.retrieval.forget_after(length)

    def aim(self, context: Context, tap: QueryTap) -> None:
        """Start the selection and the drafter on a context, with the queries of its newest tokens."""
        decoding.aim(context, self.retrieval, self.drafter, tap)

    def rounds(self, context: Context, sampling: SamplingParams, plain_ms: float) -> Iterator[Round]:
        """Decode from a context that the levels have been aimed at."""
        speculation = Speculation(self._pace(sampling, plain_ms), self.config.refresh_every, self.longest)
        return decoding.hierarchical(context, self.retrieval, self.drafter, speculation)

    def chunk_scores(self) -> torch.Tensor | None:
        """Attention mass per chunk at the last renewal."""
        return self.retrieval.chunk_scores()

    def new_controller(self, plain_ms: float) -> Controller:
        """A controller for these levels that knows nothing but the cost of a plain step."""
        return Controller(plain_ms, MOST_DRAFT if self.has_draft_model else 0, MOST_PASSES)

    def _pace(self, sampling: SamplingParams, plain_ms: float) -> Pace:
        """The controller, or fixed lengths where they are given.

        A seed asks for fixed ones too: which random number meets which token depends on the lengths, and the
        controller's depend on the clock. The law of the text is the same either way.
        """
        if self.lengths_are_given or (sampling.seed is not None and sampling.temperature > 0):
            return self.fixed
        if self._controller is None:
            self._controller = self.new_controller(plain_ms)
        return self._controller
