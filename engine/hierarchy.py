"""The cheap levels of one session: drafter, retrieval cache, and how much they speculate.

Owns what is between a question and ``decoding.hierarchical``: building the levels from a configuration, starting them
on a context, and the controller, which lives as long as the book. Knows no document and no chat.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from engine import decoding, graphs
from engine.cache.full import FullCache
from engine.cache.retrieval import QueryTap, RetrievalCache
from engine.choice import COPY_LENGTHS, MOST_PENDING, Limits
from engine.config import EngineConfig, SamplingParams
from engine.context import Context, pass_ms, since
from engine.controller import Controller, FixedLengths, Pace
from engine.costs import Costs, cost_of
from engine.decoding import Speculation
from engine.drafters import Drafter, ModelDrafter, NoDrafter
from engine.events import Round
from engine.fitting import CHUNK
from engine.graphs import Replays
from engine.lookup import LookupIndex
from engine.lookup_drafter import LookupDrafter
from engine.models import Decoder
from engine.proposing import middle_logits
from engine.refresh import policy_of
from engine.sampling import make_generator
from engine.speeds import LEAST_BUDGET, MOST_BUDGET

# Bounds where the controller chooses the lengths, and lengths where they are fixed and not given.
MOST_DRAFT, MOST_PASSES = 8, 12
_FIXED_DRAFT, _FIXED_PENDING = 4, 8
FIRST_QUERIES = 32
"""Newest tokens of a prompt whose queries choose the first retrieval selection."""

# Answer tokens that the retrieval tail takes before the context is cut anew.
_TAIL_TOKENS = 1024
# Passes that are timed on a new book: so many tokens in the long one of each level, and in a run of the draft model.
_LONG_VERIFY, _LONG_MIDDLE, _DRAFT_RUN = 16, 8, 4


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
        self._target = target
        self.retrieval = self.make_retrieval()
        full.on_hand = self.retrieval.index_layer
        self.drafter = self._make_drafter(target, draft)
        self._controllers: dict[SamplingParams, Controller] = {}

    @property
    def has_draft_model(self) -> bool:
        return self.fixed.choice.draft > 0

    @property
    def lengths_are_given(self) -> bool:
        """Whether the configuration fixes the speculation lengths."""
        return self.config.num_draft_tokens is not None or self.config.num_pending_tokens is not None

    def _make_drafter(self, target: Decoder, draft: Decoder | None) -> Drafter:
        config = self.config
        drafter: Drafter = NoDrafter(target.device)
        if draft is not None and self.has_draft_model:
            sinks, window = config.num_sink_tokens, config.window_size
            replays = self._replays(draft, "draft")
            drafter = ModelDrafter(draft, target.vocabulary, sinks, window, self.longest, replays)
        if config.num_lookup_tokens == 0:
            return drafter
        return LookupDrafter(drafter, LookupIndex(), config.num_lookup_tokens, target.device)

    def make_retrieval(self, kind: type[RetrievalCache] = RetrievalCache) -> RetrievalCache:
        """A retrieval cache of this configuration's sizes, whose passes are recorded where this is done at all."""
        config, tail = self.config, _TAIL_TOKENS + decoding.RECENT + 4 * self.longest
        budget, chunk = config.retrieval_budget or LEAST_BUDGET, config.chunk_size or CHUNK
        retrieval = kind(self._full, budget, chunk, tail, config.retrieval_share or 0, MOST_BUDGET)
        retrieval.replays = self._replays(self._target, "middle")
        if retrieval.replays is not None:
            retrieval.zero()
        return retrieval

    def _replays(self, decoder: Decoder, level: str) -> Replays | None:
        # RoPE that looks at positions to choose its frequencies asks the device, which cannot be recorded.
        if self.config.graphs == "off" or decoder.rope_depends_on_window:
            return None
        recorder = graphs.recorder_for(decoder.device)
        return None if recorder is None else Replays(recorder, level)

    def recorded(self) -> dict[str, Replays]:
        """Recorded passes by level, where there are any."""
        model = self.drafter.inner if isinstance(self.drafter, LookupDrafter) else self.drafter
        draft = model.replays if isinstance(model, ModelDrafter) else None
        levels = {"draft": draft, "middle": self.retrieval.replays}
        return {level: replays for level, replays in levels.items() if replays is not None}

    def reset(self) -> None:
        """Forget the book."""
        self.retrieval.reset()
        self._controllers = {}

    def crop(self, length: int) -> None:
        """The full cache has been cropped to ``length`` tokens: what was derived from later ones is void."""
        self.retrieval.forget_after(length)

    def aim(self, context: Context, tap: QueryTap) -> None:
        """Start the selection and the drafter on a context, with the queries of its newest tokens."""
        decoding.aim(context, self.retrieval, self.drafter, tap)

    def rounds(self, context: Context, sampling: SamplingParams, plain_ms: float) -> Iterator[Round]:
        """Decode from a context that the levels have been aimed at. Measures costs first, where that is still to do."""
        pace = self._pace(context, sampling, plain_ms)
        return decoding.hierarchical(context, self.retrieval, self.drafter, self.speculation(pace, self.drafter))

    def speculation(self, pace: Pace, drafter: Drafter) -> Speculation:
        """How these levels speculate at a pace, with this drafter."""
        policy = policy_of(self.config.refresh, self.config.refresh_every)
        index = drafter.index if isinstance(drafter, LookupDrafter) else None
        return Speculation(pace, policy, self.longest, index)

    def chunk_scores(self) -> torch.Tensor | None:
        """Attention mass per chunk at the last renewal."""
        return self.retrieval.chunk_scores()

    def _pace(self, context: Context, sampling: SamplingParams, plain_ms: float) -> Pace:
        """The controller, or fixed lengths where they are given.

        A seed asks for fixed ones too: which random number meets which token depends on the lengths, and the
        controller's depend on the clock. The law of the text is the same either way. Acceptance depends on how the text
        is sampled, so each way has its own controller.
        """
        if self.lengths_are_given:
            return self.fixed
        if sampling.seed is not None and sampling.temperature > 0:
            return FixedLengths(self.fixed.choice.draft, self.fixed.choice.pending, copies=True)
        key = SamplingParams(sampling.temperature, sampling.top_p, sampling.top_k)
        if key not in self._controllers:
            copies = COPY_LENGTHS[-1] if isinstance(self.drafter, LookupDrafter) else 0
            limits = Limits(MOST_DRAFT if self.has_draft_model else 0, MOST_PASSES, copies)
            # Passes cost the same however tokens are drawn from them: measured once per book.
            known = next((other.costs for other in self._controllers.values()), None)
            costs = known or measure(context, plain_ms, self.retrieval, self.drafter)
            self._controllers[key] = Controller(costs, limits)
        return self._controllers[key]


def measure(context: Context, plain_ms: float, retrieval: RetrievalCache, drafter: Drafter) -> Costs:
    """Time the passes of each level on a context that they have been aimed at. Leaves every cache as it was.

    The better of two runs counts: the first one pays for memory that is touched for the first time.
    """
    tokens, draft_ms = context.tokens, 0.0
    verify = min(pass_ms(context.decoder, context.full, tokens, _LONG_VERIFY, None) for _ in range(2))
    one, long = (min(_middle_ms(context, retrieval, n) for _ in range(2)) for n in (1, _LONG_MIDDLE))
    model = drafter.inner if isinstance(drafter, LookupDrafter) else drafter
    if isinstance(model, ModelDrafter):
        draft_ms = min(_draft_ms(model, context) for _ in range(2)) / _DRAFT_RUN
    return Costs(draft_ms, cost_of(one, long, _LONG_MIDDLE), cost_of(plain_ms, verify, _LONG_VERIFY))


def _middle_ms(context: Context, retrieval: RetrievalCache, count: int) -> float:
    start = time.perf_counter()
    decoder = context.decoder
    with torch.inference_mode():
        middle_logits(decoder, retrieval, decoder.ids([context.tokens[-1]] * count), count).argmax(-1).tolist()
    return since(start)


def _draft_ms(model: ModelDrafter, context: Context) -> float:
    start = time.perf_counter()
    with torch.inference_mode():
        model.propose(context.tokens, _DRAFT_RUN, context.sampler, make_generator(0, context.decoder.device))
    return since(start)
