"""Computes the time of a speculation round, which ends with a verification. The time of each of its passes follows from
the bytes that the pass reads on the device, the bytes that cross buses, and the kernels that the host launches. This is
pure arithmetic.

These times serve to judge a model before its download, to forecast the time of a book (with computation times from
``cost_model``), to make the tables in engine/docs/gpus.md, and to predict the gain of a change before it is run on a
GPU. The acceptance rate is unknown beforehand, so times are given for a range of rates (``KEPT``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.decode.acceptance import NO_EXPERTS, AcceptanceRates, Costs, ExpertReads, PassCost
from engine.decode.plans import DraftPlan, PlanLimits, best_plan, expected_round, most_passes, tokens_per_ms
from engine.decode.tuning import is_slow
from engine.events import KvBytes
from engine.plan.cost_model import CostModel, over

LAUNCH_US = 14
"""Approximate microseconds that the host, mostly Python, takes to launch one kernel. Measured on the virtual machine of
an H200.
"""

FEW_TRIPS = 2
"""Number of passes over the full cache before the first word of a book's first answer, if a plain step is slow
(``is_slow``): the pass over the question, and the plain step that makes the word. Tests count them on the simulated
device.
"""
TRIPS = 8
"""Number of passes over the full cache before the first word, as ``FEW_TRIPS``, if a plain step is not slow. Further
plain steps and verifications are then timed before the word. Tests count them, too.
"""

KEPT = (0.8, 0.95)
"""Minimum and maximum share that verifications accepted of the tokens that the target made on the retrieval cache, over
the measured pairs (assets/measurements).
"""

DRAFT_KEPT = 0.7
"""Assumed share of the draft model's tokens that the target on the retrieval cache accepts."""

_MS = 1000.0


@dataclass(frozen=True)
class Rates:
    """Bytes per second of a device's memory, of a bus from host memory, and of the disk; 0 for a bus or disk that is
    absent or was not measured. ``buses`` is the number of parallel buses, each with the rate ``bus``.
    """

    memory: float
    bus: float = 0.0
    buses: int = 1
    disk: float = 0.0

    def pass_s(self, device_bytes: float, bus_bytes: float = 0.0, disk_bytes: float = 0.0) -> float:
        """Seconds of a pass that reads ``device_bytes`` on the device. At the same time it moves ``bus_bytes``
        over the buses and ``disk_bytes`` from the disk.
        """
        return max(device_bytes / self.memory, over(bus_bytes, self.bus * self.buses) + over(disk_bytes, self.disk))


@dataclass(frozen=True)
class Pass:
    """One pass: the bytes that it reads on the device, the bytes that it moves over buses and from disk, and its kernel
    launches. ``computing_ms`` are the milliseconds of its computation, 0 if they were not measured. ``experts``
    describes the experts that the pass copies from host memory.
    """

    device_bytes: float = 0.0
    bus_bytes: float = 0.0
    launches: int = 0
    disk_bytes: float = 0.0
    computing_ms: float = 0.0
    experts: ExpertReads = NO_EXPERTS

    def ms(self, rates: Rates) -> float:
        """Milliseconds of the pass. Moving bytes, computing and launching overlap, so the longest of the three times
        counts.
        """
        bytes_ms = _MS * rates.pass_s(self.device_bytes, self.bus_bytes, self.disk_bytes)
        return max(bytes_ms, self.computing_ms, self.launches * LAUNCH_US / _MS)

    def cost(self, rates: Rates) -> PassCost:
        """The cost of the pass in the form that the decoding controller takes."""
        return PassCost(self.ms(rates), 0.0, experts=self.experts)


@dataclass(frozen=True)
class HostWeights:
    """Weights that wait in host memory. A pass over one token copies ``experts`` bytes of the chosen experts and
    ``dense`` bytes of all other weights to the device. Each token chooses ``chosen`` of ``count`` experts.
    ``for_middle`` is False if passes over the retrieval cache copy no weights, because the device holds a second copy
    of the weights for these passes.
    """

    dense: float = 0.0
    experts: float = 0.0
    count: int = 1
    chosen: int = 1
    for_middle: bool = True

    @property
    def step(self) -> float:
        """Bytes of weights that a pass over one token copies to the device."""
        return self.dense + self.experts

    def reads(self, moved_bytes: float) -> ExpertReads:
        """Describe how the bytes that a pass moves grow with its number of tokens.

        Args:
            moved_bytes: bytes that a pass over one token moves: the weights and everything else, such as spilled KV.
        """
        return ExpertReads(self.count, self.chosen, self.experts / moved_bytes) if self.experts else NO_EXPERTS


@dataclass(frozen=True)
class Speed:
    """The gain of speculation at a given acceptance rate. ``plan`` is the draft plan of the fastest round, ``round_ms``
    are the milliseconds of this round, and ``gain`` is the number of tokens that speculation makes in the time of a
    plain step.
    """

    plan: DraftPlan
    round_ms: float
    gain: float


@dataclass(frozen=True)
class RoundModel:
    """The passes of a pair on a machine.

    Args:
        draft: a pass of the draft model over one token; None without a draft model.
        middle: a pass of the target over a few tokens on the retrieval cache.
        verify: a pass of the target over one or a few tokens on the full cache.
        drafts: maximum number of tokens that the draft model proposes for a pass over the retrieval cache.
    """

    rates: Rates
    draft: Pass | None
    middle: Pass
    verify: Pass
    drafts: int = 0

    @property
    def plain_ms(self) -> float:
        """Milliseconds of a plain step, which decodes one token without speculation."""
        return self.verify.ms(self.rates)

    @property
    def first_word_s(self) -> float:
        """Seconds until the first word of the first answer about a book, if the question is short."""
        return (FEW_TRIPS if is_slow(self.plain_ms) else TRIPS) * self.plain_ms / _MS

    @property
    def costs(self) -> Costs:
        """The costs of all passes in the form that the decoding controller takes."""
        draft = 0.0 if self.draft is None else self.draft.ms(self.rates)
        return Costs(draft, self.middle.cost(self.rates), self.verify.cost(self.rates))

    def speed(self, acceptance: float, plain_ms: float | None = None) -> Speed:
        """Compute the gain of speculation.

        Args:
            acceptance: accepted share of the tokens that the target proposes on the retrieval cache.
            plain_ms: milliseconds of the plain step to compare with; None takes ``self.plain_ms``.
        """
        costs, rates = self.costs, AcceptanceRates(DRAFT_KEPT, acceptance, DRAFT_KEPT * acceptance)
        limits = PlanLimits(self.drafts if self.draft else 0, most_passes(costs))
        plan = best_plan(costs, rates, limits)
        ms = expected_round(plan, costs, rates)[1]
        gain = tokens_per_ms(plan, costs, rates) * (self.plain_ms if plain_ms is None else plain_ms)
        return Speed(plan, ms, gain)

    def token_ms(self) -> tuple[float, float]:
        """Milliseconds per token with speculation: first at the maximum, then at the minimum acceptance rate in
        ``KEPT``.
        """
        few, many = (self.plain_ms / self.speed(kept).gain for kept in KEPT)
        return many, few

    def kept_for(self, token_ms: float) -> float | None:
        """Find the minimum acceptance rate, in steps of 0.01, at which a token takes at most ``token_ms``; None if no
        rate below 1 suffices.
        """
        shares = (hundredth / 100 for hundredth in range(100))
        return next((kept for kept in shares if self.plain_ms / self.speed(kept).gain <= token_ms), None)


NO_WEIGHTS = HostWeights()


def probed(
    costs: CostModel, context: int, kv: KvBytes, buses: int = 1, waiting: HostWeights = NO_WEIGHTS
) -> RoundModel:
    """Make the round model for a book of ``context`` tokens from probed costs, without a draft model. The retrieval
    cache is assumed to have the budget that ``costs`` choose for a window of ``context`` tokens.

    Args:
        kv: bytes of the book's KV in each tier.
        buses: number of parallel buses for spilled KV and for weights in host memory.
        waiting: weights in host memory.
    """
    rates, budget = Rates(costs.memory, costs.bus, buses, costs.disk), costs.retrieval_budget(context)
    moved, step = kv.host + waiting.step, costs.computing_ms(costs.step, context)
    middle = Pass(computing_ms=costs.computing_ms(costs.middle, budget))
    if waiting.for_middle:
        middle = replace(middle, bus_bytes=waiting.step, experts=waiting.reads(waiting.step))
    verify = Pass(bus_bytes=moved, disk_bytes=kv.disk, computing_ms=step, experts=waiting.reads(moved))
    return RoundModel(rates, None, middle, verify)


def sentence(costs: CostModel, tokens: int, kv: KvBytes, buses: int = 1, waiting: HostWeights = NO_WEIGHTS) -> str:
    """Make the sentence that says how long a book will take, and that this estimate comes from short probes. If
    verifications move bytes over a bus, the time of a token with speculation is added, because it can then be predicted
    from these bytes.
    """
    seconds, rounds = costs.reading_s(tokens, kv), probed(costs, tokens, kv, buses, waiting)
    how_long = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    pace = f"{rounds.plain_ms:.0f} ms a token before speculation"
    if rounds.verify.bus_bytes and rounds.rates.bus:
        fast, slow = rounds.token_ms()
        pace += f" and {fast:.0f} to {slow:.0f} with it"
    return f"about {how_long} to read, then {pace}, by short probes of this machine"
