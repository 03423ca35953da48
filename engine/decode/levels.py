"""The cheap levels of one session: drafter and retrieval cache, built from a configuration, and their controllers.

A controller lives as long as the book; its first costs are timed here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import psutil
import torch

from engine.config import OWN_SAMPLING, SamplingParams
from engine.decode import rounds
from engine.decode.acceptance import NO_EXPERTS, Costs, ExpertReads, PassCost, cost_of, policy_of
from engine.decode.controller import Controller, FixedLengths, PlanLimits, Unclocked, most_passes
from engine.decode.drafters import LookupDrafter, LookupIndex, ModelDrafter, NoDrafter
from engine.decode.rounds import Speculation, full_pass, middle_logits, newest, since
from engine.decode.tuning import TUNING, is_slow, waits_for_bus
from engine.decode.verify import make_generator, rejection_sample
from engine.devices import KINDS
from engine.kv.retrieval import RetrievalCache
from engine.kv.spilling import retry_with_spill
from engine.model import graphs
from engine.model.architectures import experts_of
from engine.model.backends.recorded import RecordedBackend
from engine.model.graphs import Replays
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
    from engine.plan.cost_model import CostModel

# Tokens of an answer that the tail of the retrieval cache takes before the selection starts anew.
_TAIL_TOKENS = 1024
# Passes that are timed on a new book: tokens in the long one of each level, and in a run of the draft model.
_LONG_VERIFY, _LONG_MIDDLE, _DRAFT_RUN = 16, 8, 2

# Share of a plain step that a further token of a pass takes, where nothing tells: what 1.5 billion parameters in 4 bits
# took on two cores after 4,096 tokens (assets/measurements/NOTES.md: 13 ms of 48).
_ROW_SHARE = 0.27

# Parameters times tokens up to which a draft model is started with every answer on a processor: some 50 ms.
_STARTED_AT_ONCE = 5e9

# Bytes of weights that a step reads from which on its time is that of reading them: a seeded text's lengths are chosen
# by what passes read. What smaller models read stays in the processor's cache in part.
_COSTS_ITS_BYTES = 250_000_000

# Newest tokens of a prompt that are looked at for words of the book.
_QUESTION = 128

# Share of a plain step from which on a step of the draft model costs too much to be asked.
_COSTLY_DRAFT = 1 / 3

# The middle level's weights are rounded where they are this many times its cache, where there are at most so many of
# them (a second for every 90 million), and where they take at most one in so many bytes of the free memory.
_MOSTLY_WEIGHTS, _MOST_ROUNDED, _SMALL_COPY = 4, 1_000_000_000, 8

# Replays of verifications, plain steps among them, of which one is held against the ordinary pass: half a percent of
# their time for knowing that what they say stays right.
_CHECK_EVERY = 256

_log = logging.getLogger(__name__)


class Belief(NamedTuple):
    """What beliefs of acceptance are about: how tokens are drawn, and whether the question ``quotes`` the book, which
    an answer that copies it is then likelier to do."""

    own: SamplingParams
    quotes: bool


class Hierarchy:
    """Draft and middle level above a full cache.

    Args:
        config: lengths and budgets.
        target: the target model; draft: the draft model, or None.
        full: the target's full cache.
        machine: costs of this machine, which first costs are derived from where passes are slow; None knows none.
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
        self._machine = machine
        self._full = full
        draft_tokens = TUNING.fixed_draft if config.num_draft_tokens is None else config.num_draft_tokens
        self.fixed = FixedLengths(
            0 if draft is None else draft_tokens, config.num_pending_tokens or TUNING.fixed_pending
        )
        most_draft, most_pending = TUNING.most_draft, TUNING.most_pending
        if self.lengths_are_given:
            most_draft, most_pending = self.fixed.plan.draft, self.fixed.plan.pending
        self.longest = most_pending + max(most_draft, config.num_lookup_tokens) + 1
        self._target = target
        self._recordings: dict[str, Replays] = {}
        self._middle = middle_of(target, config, full) or target.backend
        self.verify = self._recorded(target, target.backend, "verify", _CHECK_EVERY)
        """Runs the passes over the full cache."""
        if (recordings := self._recordings.get("verify")) is not None:
            full.when_spilled(recordings.drop)
        self.middle = self.make_middle()
        """Runs the passes over the retrieval cache."""
        self.retrieval = self.make_retrieval()
        full.when_at_hand(self.retrieval.index_layer)
        self.model_drafter = self._make_model_drafter(draft)
        self.index = LookupIndex() if config.num_lookup_tokens else None
        self.drafter: Drafter = self.model_drafter or NoDrafter(target.token_device)
        if self.index is not None:
            self.drafter = LookupDrafter(self.drafter, self.index, config.num_lookup_tokens, target.token_device)
        self._controllers: dict[Belief, Controller] = {}
        self._beliefs: dict[Belief, AcceptanceStatistics] = {}  # of earlier books
        self._costs: Costs | None = None  # on the last of them

    @property
    def has_draft_model(self) -> bool:
        return self.fixed.plan.draft > 0

    @property
    def middle_note(self) -> str:
        """What a person may know of the middle level's weights; nothing where they are the target's own."""
        if not self.middle.bits:
            return ""
        return f"Proposed by a copy in {self.middle.bits} bits, checked by the weights as they are"

    @property
    def lengths_are_given(self) -> bool:
        """Whether the configuration fixes the speculation lengths."""
        return self.config.num_draft_tokens is not None or self.config.num_pending_tokens is not None

    def _make_model_drafter(self, draft: Decoder | None) -> ModelDrafter | None:
        if draft is None or not self.has_draft_model:
            return None
        sinks, window = self.config.num_sink_tokens, self.config.window_size
        backend = self._recorded(draft, draft.backend, "draft")
        work = draft.block_parameters * draft.num_layers * (sinks + 2 * window)
        waits = not KINDS[draft.device.type].gpu and work > _STARTED_AT_ONCE
        return ModelDrafter(draft, self._target.vocabulary, sinks, window, self.longest, backend, self._full, waits)

    def make_middle(self) -> Backend:
        """What runs the passes over one retrieval cache, recorded where this is done at all."""
        return self._recorded(self._target, self._middle, "middle")

    def make_retrieval(self, policy: SelectionPolicy | None = None) -> RetrievalCache:
        """A retrieval cache of this configuration's sizes."""
        config, tail = self.config, _TAIL_TOKENS + rounds.RECENT + 4 * self.longest
        budget, chunk = config.retrieval_budget or MIN_BUDGET, config.chunk_size or CHUNK
        return RetrievalCache(self._full, budget, chunk, tail, config.retrieval_share or 0, MAX_BUDGET, policy)

    def _recorded(self, decoder: Decoder, backend: Backend, level: str, check_every: int = 0) -> Backend:
        """A backend of a model whose passes over one cache are recorded, where this is done at all."""
        others = decoder.split.devices[1:] if decoder.split else ()
        recorder = None if self.config.graphs == "off" else graphs.recorder_for(decoder.device, *others)
        if recorder is None:
            return backend
        for reason, holds in (
            ("its RoPE asks the device for positions to choose frequencies", decoder.rope_depends_on_window),
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
        replays = Replays(recorder, level, decoder.dtype, check_every)
        self._recordings.setdefault(level, replays)
        return RecordedBackend(backend, replays)

    def recorded(self) -> dict[str, Replays]:
        """Recorded passes by level, where there are any."""
        return self._recordings

    def reset(self) -> None:
        """Forget the book. What its answers have taught of acceptance and costs is where the next one begins."""
        self.retrieval.reset()
        for about, controller in self._controllers.items():
            self._beliefs[about] = controller.statistics.for_another_book()
            self._costs = controller.costs
        self._controllers = {}

    def close(self) -> None:
        """Forget the book, and give back what recorded passes hold."""
        self.reset()
        for replays in self.recorded().values():
            replays.drop()

    def rounds(self, context: Context, sampling: SamplingParams, plain_ms: float) -> Iterator[Round]:
        """Decode from a context that the levels have been started on. Quick passes are timed first, once per book."""
        speculation = self.speculation(self._policy(context, sampling, plain_ms), self.index)
        return rounds.hierarchical(context, self.retrieval, self.drafter, speculation)

    def speculation(
        self, policy: SpeculationPolicy, index: LookupIndex | None, middle: Backend | None = None
    ) -> Speculation:
        """How these levels speculate by a policy, copying from this index.

        Args:
            middle: runs the passes of the middle level; None is ``middle`` of these levels.
        """
        timed = isinstance(policy, Controller)
        refresh = policy_of(self.config.refresh, self.config.refresh_every, timed=timed)
        return Speculation(policy, refresh, self.longest, index, self._count_recordings, middle or self.middle)

    def _count_recordings(self) -> int:
        return sum(replays.recorded for replays in self.recorded().values())

    def _policy(self, context: Context, sampling: SamplingParams, plain_ms: float) -> SpeculationPolicy:
        """The controller, or fixed lengths where they are given, or where the window ends before it could measure.

        Acceptance depends on how the text is sampled, so each way has its own controller.
        """
        if self.lengths_are_given:
            return self.fixed
        if sampling.seed is not None and sampling.temperature:
            return self.seeded_policy(context)
        own = SamplingParams(**{name: getattr(sampling, name) for name in OWN_SAMPLING})
        about = Belief(own, self.index is not None and self.index.repeats(_QUESTION))
        if about not in self._controllers:
            # Passes cost the same however tokens are drawn from them: measured once per book.
            known = next((other.costs for other in self._controllers.values()), None)
            if known is None and len(context.tokens) - 1 + _LONG_VERIFY > context.full.limit:
                # So near the end of the window there is no place to measure in, and little to gain.
                return FixedLengths(self.fixed.plan.draft, self.fixed.plan.pending, copies=True)
            costs = known or self.first_costs(context, plain_ms, self.retrieval, self.middle, self.model_drafter)
            limits = self.limits(costs)
            self._controllers[about] = Controller(costs, limits, statistics=self._beliefs.get(about))
        controller = self._controllers[about]
        controller.begin(draft_start_ms(context, controller.costs, self._target, self.model_drafter))
        return controller

    def seeded_policy(self, context: Context) -> SpeculationPolicy:
        """The policy of a text that a seed must repeat.

        Which random number meets which token depends on the lengths, and those of a controller depend on the clock and
        on earlier answers. So they are chosen by the tokens alone where a pass costs what it reads of a processor's
        memory, and fixed elsewhere. The distribution of the text is the same either way.
        """
        target, draft = self._target, self.model_drafter
        on_gpu, spilled = KINDS[target.device.type].gpu, self._full.placement.spilled
        if on_gpu or spilled or target.bytes_read_by_step < _COSTS_ITS_BYTES:
            return FixedLengths(self.fixed.plan.draft, self.fixed.plan.pending, copies=True)
        costs = derived(len(context.tokens), 1.0, None, target, self.retrieval, draft)
        return Unclocked(costs, self.limits(costs), draft_start_ms(context, costs, target, draft))

    def first_costs(
        self,
        context: Context,
        plain_ms: float,
        retrieval: RetrievalCache,
        middle: Backend,
        draft: ModelDrafter | None,
    ) -> Costs:
        """What passes cost on a context that the levels have been started on.

        They are timed by ``measure`` where they are quick. Timing slow ones took longer than an answer's first four
        tokens. So these cost what they did on another book, by what a plain step takes, or what they read and compute
        by this machine's probed costs; rounds correct that.
        """
        # Where a bus is waited for ``measure`` times no verification either.
        if not is_slow(plain_ms) or waits_for_bus(self._full.placement.spilled, plain_ms):
            return measure(context, plain_ms, self._target, retrieval, middle, draft)
        if self._costs is not None:
            return self._costs.behind_another_book(plain_ms)
        return derived(len(context.tokens), plain_ms, self._machine, self._target, retrieval, draft)

    def limits(self, costs: Costs) -> PlanLimits:
        """Of plans at these costs: a draft model whose step takes long is not asked."""
        pays = self.has_draft_model and costs.draft < _COSTLY_DRAFT * costs.verify.ms(1)
        copies = TUNING.copy_lengths[-1] if self.index is not None else 0
        return PlanLimits(TUNING.most_draft if pays else 0, most_passes(costs), copies)


def middle_of(target: Decoder, config: EngineConfig, full: FullCache) -> Backend | None:
    """A backend of the target with rounded weights, which computes the middle level where that is asked for or pays;
    None where the target's own does.

    A middle pass reads all weights and a small cache. Weights of 8 bits halve what it reads, and the full level judges
    all the same (QuantSpec, arXiv 2502.10424, rounds the cache so). It pays where weights are most of what is read, and
    where the copy is small beside the memory that is free and made while a person waits for the model. On a GPU only
    where it is asked for: there it has not been run.
    """
    asked = config.middle
    if asked == "auto":
        cache = full.shape.compute_bytes_per_token * (config.retrieval_budget or MIN_BUDGET)
        weights = target.block_parameters * target.num_layers
        free = psutil.virtual_memory().available
        pays = not KINDS[target.device.type].gpu and config.weights == "stored"
        pays = pays and not target.keeps_blocks  # which have fewer bits than the copy
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
    draft: ModelDrafter | None,
) -> Costs:
    """Time the passes of each level on a context that they have been started on. Leaves every cache as it was.

    In the order of a round and with the sampling that is part of it: a pass finds less of what it reads in the
    processor's cache behind another level's than behind its like. The better of two runs counts: the first one pays for
    memory that is touched for the first time. Of two tokens there is one, since a pass may take a second. Where KV
    comes over a bus for longer than that (``waits_for_bus``) no verification is timed: a row more costs the computing
    that it costs a middle pass.
    """
    with context.backend.decoding():
        retry_with_spill(context.full, retrieval.ensure_selected)
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
        return Costs(draft_ms, cheap_cost, PassCost(plain_ms, cheap_cost.slope, experts=reads))
    first, two, last = verified
    return Costs(draft_ms, cheap_cost, cost_of(plain_ms, min(first, last), _LONG_VERIFY, reads, two))


def derived(
    count: int,
    plain_ms: float,
    machine: CostModel | None,
    target: Decoder,
    retrieval: RetrievalCache,
    draft: ModelDrafter | None,
) -> Costs:
    """What passes after ``count`` tokens cost where nothing but a plain step is timed: a middle pass by what it reads
    in a plain step's time, a further token by what it computes in a long block."""
    row = _ROW_SHARE * plain_ms if machine is None else machine.row_ms(count)
    middle_reads, reads = (expert_reads(target, seen) for seen in (retrieval.held, count))
    share = _bytes_read(target, retrieval.held) / _bytes_read(target, count)
    cheap, verify = (PassCost(ms, row, experts=of) for ms, of in ((share * plain_ms, middle_reads), (plain_ms, reads)))
    return Costs(_unstarted_draft_ms(count, plain_ms, target, draft), cheap, verify)


def _bytes_read(target: Decoder, context: int) -> int:
    """What a pass over one token reads after a context."""
    return target.bytes_read_by_step + target.kv_shape.bytes_per_token * context


def _unstarted_draft_ms(count: int, plain_ms: float, target: Decoder, draft: ModelDrafter | None) -> float:
    """A step of the draft model by what it reads, in a plain step's time after ``count`` tokens."""
    return 0.0 if draft is None else plain_ms * draft.decoder.bytes_read_by_step / _bytes_read(target, count)


def draft_start_ms(context: Context, costs: Costs, target: Decoder, draft: ModelDrafter | None) -> float:
    """What starting the draft model on a context takes, by what more tokens cost the target; 0 where it is started."""
    if draft is None or draft.started:
        return 0.0
    own = draft.decoder
    share = own.block_parameters * own.num_layers / (target.block_parameters * target.num_layers)
    return costs.verify.slope * share * draft.tokens_to_start(len(context.tokens))


def expert_reads(target: Decoder, context: int) -> ExpertReads:
    """What passes of a model over so many tokens of ``context`` read of its experts."""
    found = experts_of(target.config)
    if found is None:
        return NO_EXPERTS
    share = target.expert_bytes_read_by_step / _bytes_read(target, context)
    return ExpertReads(found.count, found.chosen, share)


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


def _draft_ms(model: ModelDrafter, context: Context, generator: torch.Generator) -> float:
    start = time.perf_counter()
    with context.backend.decoding():
        model.propose(context.tokens, _DRAFT_RUN, context.sampler, generator)
    return since(start)
