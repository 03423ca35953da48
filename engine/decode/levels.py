"""Builds what a session needs to speculate: the drafter, the retrieval cache for the middle level (the target on the
retrieval cache), and the controllers, which are kept as long as the book is open. Also measures or derives the initial
costs of passes, which a controller needs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import psutil
import torch

from engine.config import OWN_SAMPLING, SamplingParams
from engine.decode import rounds
from engine.decode.acceptance import NO_EXPERTS, Costs, ExpertReads, PassCost, cost_of, policy_of
from engine.decode.controller import Controller, FixedLengths, Unclocked
from engine.decode.drafters import LookupDrafter, ModelDrafter, NoDrafter
from engine.decode.head_drafter import HeadDrafter
from engine.decode.lookup import LookupIndex
from engine.decode.plans import PlanLimits, most_passes
from engine.decode.rounds import Speculation, full_pass, middle_logits, newest, pass_ms, since
from engine.decode.tuning import TUNING, is_slow, waits_for_bus
from engine.decode.verify import make_generator, rejection_sample
from engine.devices import KINDS
from engine.kv.hidden_states import HiddenStates
from engine.kv.retrieval import RetrievalCache
from engine.model import graphs
from engine.model.architectures import experts_of
from engine.model.backends.recorded import RecordedBackend
from engine.model.graphs import Replays
from engine.model.kernels.native import multiplies_pairs
from engine.plan.cost_model import MAX_BUDGET, MIN_BUDGET
from engine.plan.memory_budget import CHUNK
from engine.quantization import BITS

if TYPE_CHECKING:
    from engine.config import EngineConfig
    from engine.decode.acceptance import AcceptanceStatistics
    from engine.decode.controller import SpeculationPolicy
    from engine.decode.drafters import Drafter
    from engine.decode.rounds import Context
    from engine.events import Round
    from engine.kv.full import FullCache
    from engine.kv.selection import SelectionPolicy
    from engine.model.backends import Backend
    from engine.model.decoder import Decoder
    from engine.model.own_head import DraftHead
    from engine.model.view import View
    from engine.plan.cost_model import CostModel

# Number of an answer's tokens for which the retrieval cache has room in its tail, which holds all tokens after the last
# chunk. When the tail is full, chunks are chosen again among more of the context, and the tail becomes short.
_TAIL_TOKENS = 1024
# Number of tokens of the long verification that is timed on a new book.
_LONG_VERIFY = 16
# Number of tokens of the long pass over the retrieval cache that is timed on a new book.
_LONG_MIDDLE = 8
# Number of draft steps that are timed together on a new book.
_DRAFT_RUN = 2
# The passes that ``measure`` times, keyed by level. A pass is described by its number of tokens, and by the number of
# tokens for which logits are requested, unless they are requested for all. The timed verification of two tokens is
# listed as 4 tokens, because it is padded to 4.
_TIMED_PASSES: dict[str, tuple[tuple[int, ...], ...]] = {
    "verify": ((1,), (4,), (_LONG_VERIFY,)),
    "middle": ((1, 1), (_LONG_MIDDLE, _LONG_MIDDLE)),
    "draft": ((1, 1),),
}

# Assumed time that each token after the first adds to a pass, as a share of a plain step. Used if the machine's speeds
# are unknown. Measured: 13 ms, where a plain step took 48 ms (1.5 billion parameters in 4 bits on two cores, after
# 4,096 tokens; assets/measurements/NOTES.md).
_ROW_SHARE = 0.27
# The same with the blocks of a GGUF file on a processor that does not multiply pairs of bfloat16 numbers, where
# computing takes longer. Measured with the same model: 23 ms, where a plain step took 50 ms (after 8,192 tokens).
_ROW_SHARE_WITHOUT_PAIRS = 0.45

# Assumed time, in plain steps, to choose the retrieval cache's chunks for an answer, until this has been timed.
# Measured: 1.0 to 1.5, and up to 4 for the first selection after a book has been opened (after 32,000 tokens, with 1.5
# billion parameters in 4 bits on two cores).
_SELECTION_STEPS = 4.0

# Maximum work, in parameters times tokens read, for which a CPU starts the draft model at the beginning of every
# answer. This work takes about 50 ms. A start with more work is delayed until the first proposal.
STARTED_AT_ONCE = 5e9

# ``seeded_policy`` derives the times of passes from bytes only if a step reads at least this number of bytes of
# weights. A smaller model stays partly in the processor's cache, so its times do not follow from its bytes, and its
# speculation lengths are fixed.
_COSTS_ITS_BYTES = 250_000_000

# Number of a prompt's newest tokens in which quotations of the book are searched.
_QUESTION = 128

# Time in which a draft model that is started reads a token, as a share of a draft step. Measured: 2.3 ms, where a step
# took 15 (0.5 billion parameters in 4 bits on two cores, 32 tokens at once).
_READ_SHARE = 0.15

# Maximum time of a draft step, as a share of a plain step. If draft steps take longer, no tokens are drafted.
_COSTLY_DRAFT = 1 / 3

# Minimum bytes of the weights, as a multiple of the retrieval cache's bytes, for which weights are rounded for passes
# over this cache. With fewer bytes of weights, rounding them would save little.
_MOSTLY_WEIGHTS = 4
# Maximum number of weights that are rounded for passes over the retrieval cache, because rounding takes a second for
# every 90 million.
_MOST_ROUNDED = 1_000_000_000
# The rounded copy of the weights, with one byte for each weight, may take at most 1 / ``_SMALL_COPY`` of the free
# memory.
_SMALL_COPY = 8

# Of this number of replays of CUDA graphs (of verifications and plain steps), one is checked: its result is compared
# with the result of the ordinary pass, to detect wrong replays. All checks take half a percent of the time of these
# passes.
_CHECK_EVERY = 256

_log = logging.getLogger(__name__)


class Belief(NamedTuple):
    """The key of acceptance statistics, which are kept separately for different sampling options (``own``), and for
    questions that quote the book (``quotes``), because their answers more often copy the book.
    """

    own: SamplingParams
    quotes: bool


class Hierarchy:
    """The levels that propose tokens for the verification on the full cache: the draft model, and the target on the
    retrieval cache.

    Args:
        config: lengths of speculation and sizes of caches.
        target: the target model.
        draft: the draft model, or None.
        full: the target's full cache.
        machine: measured speeds of this machine. The initial costs of passes are derived from these speeds if passes
            are too slow to be timed. None if unknown.
    """

    def __init__(
        self,
        config: EngineConfig,
        target: Decoder,
        draft: Decoder | None,
        full: FullCache,
        machine: CostModel | None = None,
    ) -> None:
        self.config = config
        self._machine, self._full = machine, full
        draft_tokens = TUNING.fixed_draft if config.num_draft_tokens is None else config.num_draft_tokens
        self.fixed = FixedLengths(
            0 if draft is None else draft_tokens, config.num_pending_tokens or TUNING.fixed_pending
        )
        most_draft, most_pending = TUNING.most_draft, TUNING.most_pending
        if self.lengths_are_given:
            most_draft, most_pending = self.fixed.plan.draft, self.fixed.plan.pending
        self.longest = most_pending + max(most_draft, config.num_lookup_tokens) + 1
        self._target = target
        full.hidden = self._states_for(draft)
        self._recorded_backends: dict[str, RecordedBackend] = {}
        self._middle = middle_of(target, config, full) or target.backend
        self.verify = self._recorded(target, target.backend, "verify", _CHECK_EVERY)
        """Runs the passes over the full cache."""
        if (replays := self.recorded().get("verify")) is not None:
            full.when_spilled(replays.drop)
        self.middle = self.make_middle()
        """Runs the passes over the retrieval cache."""
        self.retrieval = self.make_retrieval()
        full.when_at_hand(self.retrieval.index_layer)
        full.when_cropped(self.retrieval.forget_after)
        self.model_drafter = self._make_model_drafter(draft)
        self.index = LookupIndex() if config.num_lookup_tokens else None
        self.drafter = self._make_drafter()
        self._controllers: dict[Belief, Controller] = {}
        # acceptance statistics from earlier books
        self._beliefs: dict[Belief, AcceptanceStatistics] = {}
        self._costs: Costs | None = None  # costs of passes on the most recent earlier book
        self._answered: Context | None = None  # state (context) of the most recent answer about this book
        self._timed_with = 0  # number of recorded passes (CUDA graphs) at the last timing by ``timed_again``

    @property
    def has_draft_model(self) -> bool:
        return self.fixed.plan.draft > 0

    @property
    def middle_note(self) -> str:
        """A note for the user that passes over the retrieval cache use a copy of the weights in fewer bits; empty if
        they use the target's own weights.
        """
        if not self.middle.bits:
            return ""
        return f"Proposed by a copy in {self.middle.bits} bits, checked by the weights as they are"

    @property
    def lengths_are_given(self) -> bool:
        """Whether the configuration fixes the speculation lengths."""
        return self.config.num_draft_tokens is not None or self.config.num_pending_tokens is not None

    def _states_for(self, draft: Decoder | None) -> HiddenStates | None:
        """Make the memory of the target's hidden states; None if the draft does not read them."""
        if draft is None or not draft.reads_states or not self.has_draft_model:
            return None
        states = HiddenStates(self._target, self.config.num_sink_tokens + self.config.window_size)
        self._full.when_cropped(states.crop)
        return states

    def _make_model_drafter(self, draft: Decoder | None) -> ModelDrafter | HeadDrafter | None:
        if draft is None or not self.has_draft_model:
            return None
        sinks, window = self.config.num_sink_tokens, self.config.window_size
        work = draft.block_parameters * draft.num_layers * (sinks + 2 * window)
        waits = not KINDS[draft.device.type].gpu and work > STARTED_AT_ONCE
        if self._full.hidden is not None:
            head = cast("DraftHead", draft)
            return HeadDrafter(head, self._full.hidden, sinks, window, self.longest, self._full, waits)
        backend = self._recorded(draft, draft.backend, "draft")
        return ModelDrafter(draft, self._target.vocabulary, sinks, window, self.longest, backend, self._full, waits)

    def _make_drafter(self) -> Drafter:
        drafter = self.model_drafter or NoDrafter(self._target.token_device)
        if self.index is None:
            return drafter
        return LookupDrafter(drafter, self.index, self.config.num_lookup_tokens, self._target.token_device)

    def make_middle(self) -> Backend:
        """Make the backend for passes over one retrieval cache. The backend records passes as CUDA graphs if the device
        can.
        """
        return self._recorded(self._target, self._middle, "middle")

    def make_retrieval(self, policy: SelectionPolicy | None = None) -> RetrievalCache:
        """Make a retrieval cache with the sizes of this configuration."""
        config, tail = self.config, _TAIL_TOKENS + rounds.RECENT + 4 * self.longest
        budget, chunk = config.retrieval_budget or MIN_BUDGET, config.chunk_size or CHUNK
        return RetrievalCache(self._full, budget, chunk, tail, config.retrieval_share or 0, MAX_BUDGET, policy)

    def _recorded(self, decoder: Decoder, backend: Backend, level: str, check_every: int = 0) -> Backend:
        """Make a backend that records the passes of ``backend`` over the cache of ``level`` as CUDA graphs. If these
        passes cannot be recorded, return ``backend`` itself.
        """
        others = decoder.split.devices[1:] if decoder.split else ()
        recorder = None if self.config.graphs == "off" else graphs.recorder_for(decoder.device, *others)
        if recorder is None:
            return backend
        for reason, holds in (
            ("its RoPE asks the device for positions to choose frequencies", decoder.rope_depends_on_window),
            ("a draft head reads hidden states, which a replay does not hand out", self._full.hidden),
            ("layers on several GPUs are read for longer than they are launched", level == "verify" and decoder.split),
            ("weights come from host memory, to another place every time", decoder.layers_in_host),
            ("a sliding window begins elsewhere in every pass", level != "draft" and decoder.kv_shape.sliding),
            ("a recurrent state lies elsewhere in every pass", decoder.kv_shape.recurrent),
            ("the host has to know which experts a pass asks", decoder.waits_for_experts),
            ("KV in 8 bits is unpacked as far as it is not yet", level == "verify" and self._full.shape.quantized),
        ):
            if holds:
                _log.info("%s passes are not recorded: %s", level, reason)
                return backend
        experts = experts_of(decoder.config) is not None
        recorded = RecordedBackend(backend, Replays(recorder, level, decoder.dtype, check_every, experts))
        self._recorded_backends.setdefault(level, recorded)
        return recorded

    def recorded(self) -> dict[str, Replays]:
        """The CUDA graphs of recorded passes, keyed by level. Empty if the device records none."""
        return {level: backend.replays for level, backend in self._recorded_backends.items()}

    def start_draft_ahead(self, book: Sequence[int], tokens: Sequence[int]) -> Iterator[None]:
        """Let the draft model read the end of the book and the chat before the next question comes, if it is too large
        to be started at the beginning of an answer. Yield before each pass, so that the caller can stop.

        Args:
            book: the book's tokens.
            tokens: all tokens so far, of the book and of the chat.
        """
        draft = self.model_drafter
        if draft is None or not draft.waits:
            return
        if _unstarted_draft_ms(len(tokens), 1.0, self._target, draft) >= _COSTLY_DRAFT:
            return
        passes, more = draft.start_ahead(book, tokens), True
        while more:
            yield
            with draft.decoder.backend.decoding():
                more = next(passes, passes) is None

    def record_ahead(self, tokens: Sequence[int]) -> Iterator[None]:
        """Record passes as CUDA graphs, so that the next answer need not: the passes that are timed to learn costs, and
        the passes that earlier answers used. Then time the recorded passes. Yield before each recording and before
        timing, so that the caller can stop. The contents of all caches stay unchanged.

        A recording takes as long as several passes, so call this while no answer is being made. Until the recorded
        passes have been timed, the controllers use the costs of unrecorded passes.

        Args:
            tokens: the tokens of the context. The passes run on the newest of them.
        """
        draft = self.model_drafter
        most = min(self._target.vocabulary, draft.decoder.vocabulary if draft else self._target.vocabulary) - 1
        known = [min(token, most) for token in tokens[-graphs.MAX_TOKENS :]]
        for level, backend in self._recorded_backends.items():
            yield from backend.record_ahead(
                _TIMED_PASSES[level], partial(newest, known), partial(self._view_ahead, level)
            )
        if not self._controllers or self._answered is None:
            return
        yield
        if costs := self.timed_again(self._answered, self.retrieval, self.middle, draft):
            for controller in self._controllers.values():
                controller.replace_costs(costs, self.limits(costs))

    def _view_ahead(self, level: str, count: int) -> View | None:
        """Make the view (access to the cache) for a level's pass over ``count`` tokens that will not be committed; None
        if the level's cache has no room for them.
        """
        full, retrieval, draft = self._full, self.retrieval, self.model_drafter
        if level == "verify":
            return full.extend(full.length) if full.length + count <= full.limit else None
        if level == "middle":
            return retrieval.extend() if retrieval.is_selected and count <= retrieval.free_slots() else None
        return draft.cache.extend(count) if draft and count <= draft.cache.free_slots() else None

    def timed_again(
        self, context: Context, retrieval: RetrievalCache, middle: Backend, draft: ModelDrafter | HeadDrafter | None
    ) -> Costs | None:
        """Time the passes of each level again after an answer, on the answer's context. Return None if no pass was
        recorded as a CUDA graph since the last timing, if passes are too slow to be timed, or if KV is spilled.
        """
        full, count = context.full, self._count_recordings()
        fits = full.length == len(context.tokens) - 1 and full.length + _LONG_VERIFY <= full.limit
        if count == self._timed_with or not fits or full.placement.spilled:
            return None
        self._timed_with = count
        plain_ms = min(pass_ms(self.verify, full, context.tokens, 1, None) for _ in range(2))
        return None if is_slow(plain_ms) else measure(context, plain_ms, self._target, retrieval, middle, draft)

    def reset(self) -> None:
        """Forget the book. Its acceptance statistics and costs are kept as initial values for the next book."""
        self.retrieval.reset()
        if self.model_drafter is not None:
            self.model_drafter.forget()
        for about, controller in self._controllers.items():
            self._beliefs[about] = controller.statistics.for_another_book()
            self._costs = controller.costs
        self._controllers = {}
        self._answered = None

    def close(self) -> None:
        """Forget the book, and free the memory of recorded passes (CUDA graphs)."""
        self.reset()
        for replays in self.recorded().values():
            replays.drop()

    def rounds(self, context: Context, sampling: SamplingParams, plain_ms: float) -> Iterator[Round]:
        """Decode speculatively from a context on which the levels have been started. On a new book, the costs of passes
        are first measured or estimated (``first_costs``).
        """
        self._answered = context
        speculation = self.speculation(self._policy(context, sampling, plain_ms), self.index)
        return rounds.hierarchical(context, self.retrieval, self.drafter, speculation)

    def speculation(
        self, policy: SpeculationPolicy, index: LookupIndex | None, middle: Backend | None = None
    ) -> Speculation:
        """Return the argument ``speculation`` of ``rounds.hierarchical``: ``policy``, ``index``, and settings of these
        levels.

        Args:
            middle: runs the passes of the target on the retrieval cache; None takes ``self.middle``.
        """
        timed = isinstance(policy, Controller)
        refresh = policy_of(self.config.refresh, self.config.refresh_every, timed=timed)
        return Speculation(policy, refresh, self.longest, index, self._count_recordings, middle or self.middle)

    def _count_recordings(self) -> int:
        return sum(replays.recorded for replays in self.recorded().values())

    def _policy(self, context: Context, sampling: SamplingParams, plain_ms: float) -> SpeculationPolicy:
        """Choose the policy of an answer, which decides how many tokens are proposed: usually a controller. The numbers
        are fixed if they are configured, or if the context window has no room left to time passes. An answer that
        is drawn with a seed has a policy of its own (``seeded_policy``).

        Acceptance depends on sampling, so there is a controller for each combination of sampling options.
        """
        if self.lengths_are_given:
            return self.fixed
        if context.repeats:
            return self.seeded_policy(context)
        own = SamplingParams(**{name: getattr(sampling, name) for name in OWN_SAMPLING})
        about = Belief(own, self.index is not None and self.index.repeats(_QUESTION))
        if about not in self._controllers:
            # The costs of passes do not depend on sampling options, so they are measured once per book.
            known = next((other.costs for other in self._controllers.values()), None)
            if known is None and len(context.tokens) - 1 + _LONG_VERIFY > context.full.limit:
                # The window has no room for a timed verification. So the answer will be too short to gain much from
                # learned lengths of proposals.
                return self._fixed_with_copies()
            costs = known or self.first_costs(context, plain_ms, self.retrieval, self.middle, self.model_drafter)
            limits = self.limits(costs)
            self._controllers[about] = Controller(costs, limits, statistics=self._beliefs.get(about))
        controller = self._controllers[about]
        start_ms = draft_start_ms(context, controller.costs, self.model_drafter)
        controller.begin(start_ms, selection_ms(self.retrieval, controller.costs), context.max_tokens)
        return controller

    def _fixed_with_copies(self) -> FixedLengths:
        return FixedLengths(self.fixed.plan.draft, self.fixed.plan.pending, copies=True)

    def seeded_policy(self, context: Context) -> SpeculationPolicy:
        """Choose the policy for an answer with a seed. The answer must be the same whenever the seed is used again.

        The lengths of proposals decide which random number is used for which token. A controller's lengths depend on
        the clock and on earlier answers, so it cannot be used.

        On a CPU, if no KV is spilled and the model is not small, ``Unclocked`` is used. It derives the cost of a pass
        from the bytes that the pass reads, so its lengths depend only on the tokens. In all other cases the lengths are
        fixed. The distribution of the text is the same with both policies.
        """
        target, draft = self._target, self.model_drafter
        on_gpu, spilled = KINDS[target.device.type].gpu, self._full.placement.spilled
        if on_gpu or spilled or target.bytes_read_by_step < _COSTS_ITS_BYTES:
            return self._fixed_with_copies()
        costs = derived(len(context.tokens), 1.0, None, target, self.retrieval, draft)
        start_ms = draft_start_ms(context, costs, draft)
        return Unclocked(costs, self.limits(costs), start_ms, context.max_tokens)

    def first_costs(
        self,
        context: Context,
        plain_ms: float,
        retrieval: RetrievalCache,
        middle: Backend,
        draft: ModelDrafter | HeadDrafter | None,
    ) -> Costs:
        """Determine the initial costs of passes on a context on which the levels have been started.

        Quick passes are timed (``measure``). Slow passes are not timed, because timing all of them took longer than
        generating four tokens. For slow passes, the costs of an earlier book are scaled to ``plain_ms``. Without an
        earlier book, ``derived`` computes the costs from the bytes and the computation of the passes, and from the
        measured speeds of this machine. Whatever the initial costs are, the rounds of the answer correct them.
        """
        # ``measure`` is quick even if KV is fetched over a slow bus, because it does not time verifications in that
        # case.
        if not is_slow(plain_ms) or waits_for_bus(self._full.placement.spilled, plain_ms):
            return measure(context, plain_ms, self._target, retrieval, middle, draft)
        if self._costs is not None:
            return self._costs.behind_another_book(plain_ms)
        return derived(len(context.tokens), plain_ms, self._machine, self._target, retrieval, draft)

    def limits(self, costs: Costs) -> PlanLimits:
        """Return how many tokens and passes a plan may have at these costs. No tokens are drafted if a draft step takes
        longer than ``_COSTLY_DRAFT`` times a plain step.
        """
        pays = self.has_draft_model and costs.draft < _COSTLY_DRAFT * costs.verify.ms(1)
        copies = TUNING.copy_lengths[-1] if self.index is not None else 0
        return PlanLimits(TUNING.most_draft if pays else 0, most_passes(costs), copies)


def middle_of(target: Decoder, config: EngineConfig, full: FullCache) -> Backend | None:
    """Make a backend of the target with rounded weights for the middle level (the target on the retrieval cache).
    Return None if the middle level uses the target's own weights.

    A pass of the middle level reads all weights and a small cache, so 8-bit weights halve the bytes that it reads.
    Rounding does not change the answer, because every token is verified with the target's own weights. (For the same
    reason, QuantSpec, arXiv 2502.10424, quantizes the cache of the passes that propose tokens.)

    ``config.middle`` may name the number of bits. With "auto", weights are rounded if a pass mostly reads weights, if
    the copy takes little of the free memory, and if the copy is made quickly, because a person is waiting for the
    model. On a GPU "auto" rounds nothing, because this has not been tried.
    """
    asked = config.middle
    if asked == "auto":
        cache = full.shape.compute_bytes_per_token * (config.retrieval_budget or MIN_BUDGET)
        weights = target.block_parameters * target.num_layers
        free = psutil.virtual_memory().available
        pays = not KINDS[target.device.type].gpu and config.weights == "stored"
        # round no weights of a GGUF model, because they have few bits already
        pays = pays and not target.keeps_blocks
        pays = pays and weights * target.dtype.itemsize >= _MOSTLY_WEIGHTS * cache
        asked = "8bit" if pays and weights <= min(_MOST_ROUNDED, free // _SMALL_COPY) else "stored"
    rounded = target.rounded(asked) if asked in BITS else None
    if rounded is None and config.middle in BITS:
        _log.warning("there is no copy of %s in %d bits on this device", target.name, BITS[config.middle])
    return rounded


def measure(
    context: Context,
    plain_ms: float,
    target: Decoder,
    retrieval: RetrievalCache,
    middle: Backend,
    draft: ModelDrafter | HeadDrafter | None,
) -> Costs:
    """Time the passes of each level on a context on which the levels have been started. All caches are left unchanged.

    Passes run in the order of a round, and with a round's sampling. In any other order they would be too quick: in a
    round, the pass of one level displaces the data of another level from the processor's cache. The faster of two runs
    counts, because the first run is slowed by memory that is used for the first time. A verification of two tokens runs
    only once, because it may take a second.

    If spilled KV comes over a slow bus (``waits_for_bus``), no verification is timed. In that case, each token after
    the first is assumed to add as much time to a verification as to a pass over the retrieval cache.
    """
    with context.backend.decoding():
        selecting_ms = rounds.select(retrieval)
    generator = make_generator(0, context.backend.token_device)
    slow = waits_for_bus(context.full.placement.spilled, plain_ms)
    cheap, verified = [], [] if slow else [_verify_ms(context, _LONG_VERIFY, generator)]
    for count in (2, _LONG_VERIFY):
        draft_ms = 0.0 if draft is None or not draft.started else _draft_ms(draft, context, generator) / _DRAFT_RUN
        cheap.append((draft_ms, *(_middle_ms(context, retrieval, middle, n, generator) for n in (1, _LONG_MIDDLE))))
        verified += [] if slow else [_verify_ms(context, count, generator)]
    draft_ms, one, long = (min(runs) for runs in zip(*cheap, strict=True))
    draft_ms = draft_ms or _unstarted_draft_ms(len(context.tokens), plain_ms, target, draft)
    middle_reads, reads = (expert_reads(target, seen) for seen in (retrieval.held, len(context.tokens)))
    cheap_cost = cost_of(one, long, _LONG_MIDDLE, middle_reads)
    if slow:
        verify = PassCost(plain_ms, cheap_cost.slope, experts=reads)
    else:
        first, two, last = verified
        verify = cost_of(plain_ms, min(first, last), _LONG_VERIFY, reads, two)
    return Costs(draft_ms, cheap_cost, verify, selection=selecting_ms)


def derived(
    count: int,
    plain_ms: float,
    machine: CostModel | None,
    target: Decoder,
    retrieval: RetrievalCache,
    draft: ModelDrafter | HeadDrafter | None,
) -> Costs:
    """Derive the costs of passes on a context of ``count`` tokens. The only measured time is that of a plain step,
    ``plain_ms``.

    A pass of the middle level (the target on the retrieval cache) over one token reads fewer bytes than a plain step,
    and is assumed to take proportionally less time. The time that each further token adds comes from ``machine``, or
    from ``_ROW_SHARE`` and ``_ROW_SHARE_WITHOUT_PAIRS`` if ``machine`` is None. The second token is assumed to add half
    of this time where a processor multiplies pairs of bfloat16 numbers: a pass over one token waits for memory, and a
    part of the second token's computation fits into this time. Measured with 1.5 billion parameters in 4 bits on two
    cores: 41.6, 45.5, 55.7 and 66.3 ms for one to four tokens after 8,192 tokens; 65.2, 71.7, 92.7 and 114.4 ms after
    32,000, where the second token adds up to 18 ms at other moments. Without such instructions: 50.0, 72.0, 95.6 and
    116.9 ms after 8,192.
    """
    pairs = target.device.type == "cpu" and target.dtype is torch.bfloat16 and multiplies_pairs()
    assumed = _ROW_SHARE_WITHOUT_PAIRS if target.keeps_blocks and not pairs else _ROW_SHARE
    row = assumed * plain_ms if machine is None else machine.row_ms(count)
    hidden = row / 2 if pairs else 0.0
    middle_reads, reads = (expert_reads(target, seen) for seen in (retrieval.held, count))
    share = _bytes_read(target, retrieval.held) / _bytes_read(target, count)
    cheap, verify = (
        PassCost(max(ms - hidden, ms / 2), row, ms, of)
        for ms, of in ((share * plain_ms, middle_reads), (plain_ms, reads))
    )
    draft_ms = _unstarted_draft_ms(count, plain_ms, target, draft)
    return Costs(draft_ms, cheap, verify, selection=_SELECTION_STEPS * plain_ms, is_derived=True)


def _bytes_read(target: Decoder, context: int) -> int:
    """Bytes that a pass over one token reads: weights, and the KV of ``context`` tokens."""
    return target.bytes_read_by_step + target.kv_shape.bytes_per_token * context


def _unstarted_draft_ms(
    count: int, plain_ms: float, target: Decoder, draft: ModelDrafter | HeadDrafter | None
) -> float:
    """Milliseconds of a draft step after ``count`` tokens, derived from the bytes that it reads and the time of a plain
    step.
    """
    return 0.0 if draft is None else plain_ms * draft.decoder.bytes_read_by_step / _bytes_read(target, count)


def draft_start_ms(context: Context, costs: Costs, draft: ModelDrafter | HeadDrafter | None) -> float:
    """Estimated milliseconds of starting the draft model on a context; 0 if there is no draft model, or if it has read
    the context.

    A token that is read with others takes ``_READ_SHARE`` of a draft step, and reading the weights takes one step.
    """
    tokens = draft.tokens_to_start(len(context.tokens)) if draft is not None else 0
    return (1.0 + _READ_SHARE * tokens) * costs.draft if tokens else 0.0


def selection_ms(retrieval: RetrievalCache, costs: Costs) -> float:
    """Estimated milliseconds to choose the chunks of the retrieval cache before the answer's first pass over it; 0 if
    the chunks have been chosen.
    """
    return 0.0 if retrieval.is_selected else costs.selection


def expert_reads(target: Decoder, context: int) -> ExpertReads:
    """Describe which experts a model's passes read after ``context`` tokens; ``NO_EXPERTS`` for a model without
    experts.
    """
    mixture = experts_of(target.config)
    if mixture is None:
        return NO_EXPERTS
    share = target.expert_bytes_read_by_step / _bytes_read(target, context)
    return ExpertReads(mixture.count, mixture.chosen, share)


def _verify_ms(context: Context, count: int, generator: torch.Generator) -> float:
    start, backend, tokens = time.perf_counter(), context.backend, context.tokens
    with backend.decoding():
        ids = backend.ids(newest(tokens, count))
        p = context.sampler(full_pass(backend, context.full, len(tokens) - 1, ids), ids[1:])
        rejection_sample(ids[1:], None, p, generator)
    return since(start)


def _middle_ms(
    context: Context, retrieval: RetrievalCache, middle: Backend, count: int, generator: torch.Generator
) -> float:
    start = time.perf_counter()
    with middle.decoding():
        ids = middle.ids(newest(context.tokens, count))
        logits = middle_logits(middle, retrieval, ids, count)
        rejection_sample(ids[1:], None, context.sampler(logits, ids[1:]), generator)
    return since(start)


def _draft_ms(model: ModelDrafter | HeadDrafter, context: Context, generator: torch.Generator) -> float:
    start = time.perf_counter()
    with context.backend.decoding():
        model.propose(context.tokens, _DRAFT_RUN, context.sampler, generator)
    return since(start)
