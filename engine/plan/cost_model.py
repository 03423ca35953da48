"""Estimates how long a model's passes take on this machine, and chooses prefill block and retrieval budget accordingly.
Pure arithmetic.

A pass through a layer costs a base time, plus a time for each token of context. The cost of a whole model is computed
from timed passes through a single layer (``probe``). The constants in this module are limits for the choices, not
measured costs. A machine's measurements are saved in a file, so that later starts need not repeat them.
"""

from __future__ import annotations

import json
import math
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from engine.events import KvBytes

MIN_BUDGET = 1024
"""Minimum retrieval budget in tokens. It loses little acceptance with the bundled pair (assets/measurements)."""
MAX_BUDGET = 8192
"""Maximum retrieval budget in tokens: twice the budget of TriForce (arXiv 2404.11912) at 128K."""

BUDGET_SHARE = 10
"""Divisor for long books: the retrieval budget is raised to the number of the book's tokens divided by this number. A
longer book is more expensive to verify, and more of its tokens compete for the budget. TriForce divides by 32 at 128K.
Measured in assets/measurements.
"""

# Maximum time that attention to the retrieval cache adds to a pass, as a share of the time of the pass without context.
_MIDDLE_SLOWDOWN = 0.25
# Minimum ratio of the window to the retrieval budget. With a larger budget, a pass over the retrieval cache would save
# too little compared with the full cache.
_WINDOW_PER_BUDGET = 16
# Minimum tokens of a prefill block that probes choose. If the time for probes ended before this size was reached, the
# default block is used.
_MIN_BLOCK = 128
# Maximum seconds that one layer takes for a prefill block. A reading can only be stopped between blocks, so the Stop
# button takes effect within this time.
_BLOCK_S = 0.25
# Minimum rate of a prefill block that counts as fast enough, as a share of the fastest block's rate. It is below 1,
# because other programs disturb a short probe.
_EQUAL_RATE = 0.75
# Age in seconds at which saved measurements expire, because drivers and other programs change.
_FRESH_S = 7 * 24 * 3600.0
# Maximum share of the processors that other programs may use during a measurement. Beyond this share, the next start
# measures again.
_MAX_OTHERS = 0.1
# Maximum share of the processors that other programs are said to use. Windows counts a short run's processor time as 0,
# and the run would count as no time at all.
_MOST_OTHERS = 0.95


@dataclass(frozen=True)
class LayerCost:
    """Seconds of a pass through one layer: ``base`` without context, plus ``per_token`` for each token of context."""

    base: float
    per_token: float

    def seconds(self, context: float) -> float:
        return self.base + self.per_token * context


@dataclass(frozen=True)
class CostModel:
    """Measured costs of one model on this machine. All rates are in bytes per second.

    Args:
        memory: rate of a copy within the device's memory, counting bytes read and bytes written.
        bus: rate from host memory to the device, as spilled KV moves; 0 without a bus.
        disk: rate of reading a file in the folder for spilled KV; 0 if the disk was too full to measure it.
        layers: number of the model's layers.
        head: cost of the output head, as a multiple of a layer's cost. The input embedding costs nothing.
        step: cost of a pass over one token through one layer.
        middle: cost of a pass over ``middle_tokens`` tokens through one layer.
        blocks: the prefill blocks that were tried: (tokens, seconds in one layer without context).
        block_per_token: seconds that a token of context adds for each token of a block, in one layer.
    """

    memory: float
    bus: float
    disk: float
    layers: int
    head: float
    step: LayerCost
    middle: LayerCost
    middle_tokens: int
    blocks: tuple[tuple[int, float], ...]
    block_per_token: float

    @property
    def prefill_block(self) -> int:
        """The number of tokens of the largest prefill block that takes at most ``_BLOCK_S`` and processes at least
        ``_EQUAL_RATE`` times as many tokens per second as the fastest block. 0 if that block has fewer than
        ``_MIN_BLOCK`` tokens, or if every block takes too long.
        """
        best = max(tokens / seconds for tokens, seconds in self.blocks)
        short = ((tokens, tokens / seconds) for tokens, seconds in self.blocks if seconds <= _BLOCK_S)
        block = max((tokens for tokens, rate in short if rate >= _EQUAL_RATE * best), default=0)
        return block if block >= _MIN_BLOCK else 0

    def retrieval_budget(self, window: int) -> int:
        """Choose the retrieval budget in tokens: ``MIN_BUDGET``, doubled as often as three limits allow:
        ``MAX_BUDGET``, the window divided by ``_WINDOW_PER_BUDGET``, and the slowdown ``_MIDDLE_SLOWDOWN`` of passes
        over the retrieval cache.
        """
        free = _MIDDLE_SLOWDOWN * self.middle.base / max(self.middle.per_token, 1e-15)
        budget = MIN_BUDGET
        while 2 * budget <= min(free, MAX_BUDGET, window // _WINDOW_PER_BUDGET):
            budget *= 2
        return budget

    def reading_s(self, tokens: int, kv: KvBytes) -> float:
        """Seconds to read a book of ``tokens`` tokens. Computing and writing spilled KV to disk overlap, so the longer
        of the two times counts.
        """
        per_token = min(seconds / tokens for tokens, seconds in self.blocks)
        computing = self.layers * (per_token * tokens + self.block_per_token * tokens**2 / 2)
        return max(computing, over(kv.disk, self.disk))

    def row_ms(self, context: int) -> float:
        """Milliseconds of computation that each additional token adds to a pass after ``context`` tokens."""
        token = (self.layers + self.head) * min(seconds / tokens for tokens, seconds in self.blocks)
        return 1000.0 * (token + self.layers * self.block_per_token * context)

    def computing_ms(self, part: LayerCost, context: int) -> float:
        """Milliseconds of computation in one pass after ``context`` tokens.

        Args:
            part: the pass, ``step`` or ``middle``.
        """
        return 1000.0 * ((self.layers + self.head) * part.base + self.layers * part.per_token * context)

    def step_ms(self, context: int, kv: KvBytes, buses: int = 1, waiting: float = 0.0) -> float:
        """Milliseconds to decode one token without speculation. Spilled KV and ``waiting`` bytes of weights in host
        memory are moved to the device during the computation, over ``buses`` parallel buses. The longer of computation
        and moves counts.
        """
        moving = over(kv.disk, self.disk) + over(kv.host + waiting, buses * self.bus)
        return max(self.computing_ms(self.step, context), 1000.0 * moving)


def over(count: float, rate: float) -> float:
    """Seconds to move ``count`` bytes at ``rate`` bytes per second. 0 if ``rate`` is 0, which stands for a rate that
    was not measured.
    """
    return count / rate if rate else 0.0


def others_share(busy_s: float, own_s: float, seconds: float, cores: int) -> float:
    """Share of the time of all processors that other programs used.

    Args:
        busy_s: seconds that all processors worked, summed.
        own_s: seconds that processors worked for this program.
        seconds: elapsed seconds.
        cores: number of processors.
    """
    return min(_MOST_OTHERS, max(0.0, busy_s - own_s) / max(seconds * cores, 1e-9))


def counted_s(seconds: float, own_s: float, others: float) -> float:
    """Seconds to count for a run on processors that other programs use too: the geometric mean of the run's time and of
    its estimated time without them. Others may stop at any moment, or work on for as long as a book is read, so a
    forecast lies between both. Passes whose threads wait for each other lose far more time than others work.

    Args:
        seconds: elapsed seconds of the run.
        own_s: seconds that each of the program's threads computed in the run.
        others: share of the processors that other programs used. Without them the run takes at least the rest of
            ``seconds``, so that a machine that is slow by itself is not taken for a busy one.
    """
    alone = min(seconds, max(own_s, (1.0 - others) * seconds))
    return math.sqrt(alone * seconds)


def is_quiet(load: float) -> bool:
    """Whether other programs used so little of the processors (the share ``load``) that measurements are valid."""
    return load <= _MAX_OTHERS


def best_of(one: CostModel, other: CostModel) -> CostModel:
    """Combine two measurements of one model by taking the better of each value, because other programs can only slow a
    measurement down.
    """
    blocks = dict(one.blocks)
    for tokens, seconds in other.blocks:
        blocks[tokens] = min(seconds, blocks.get(tokens, seconds))
    return replace(
        other,
        memory=max(one.memory, other.memory),
        bus=max(one.bus, other.bus),
        disk=max(one.disk, other.disk),
        step=_faster(one.step, other.step),
        middle=_faster(one.middle, other.middle),
        blocks=tuple(sorted(blocks.items())),
        block_per_token=min(one.block_per_token, other.block_per_token),
    )


def _faster(one: LayerCost, other: LayerCost) -> LayerCost:
    return LayerCost(min(one.base, other.base), min(one.per_token, other.per_token))


# Saved measurements -------------------------------------------------------------------------------------------------


def load(file: Path, key: str, now: float) -> CostModel | None:
    """Load the measurements that ``save`` wrote to the file under this key. None if there are none, or if they are
    damaged, disturbed by other programs, or more than a week old at ``now`` (Unix seconds).
    """
    found = _load(file, key, now)
    return found[0] if found and found[1] else None


def load_rough(file: Path, key: str, now: float) -> CostModel | None:
    """Load measurements as ``load`` does, but accept also those that other programs disturbed."""
    found = _load(file, key, now)
    return found[0] if found else None


def _load(file: Path, key: str, now: float) -> tuple[CostModel, bool] | None:
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        entry = json.loads(file.read_text(encoding="utf-8"))[key]
        if 0.0 <= now - _number(entry["measured"]) <= _FRESH_S:
            return _from(entry["speeds"]), entry["quiet"] is True
    return None


def save(file: Path, key: str, costs: CostModel, now: float, *, quiet: bool) -> None:
    """Save measurements in the file under this key. If the file cannot be written, nothing is saved, so the next start
    measures again.

    Args:
        quiet: whether other programs were almost idle during the measurement (``is_quiet``).
    """
    saved: Any = {}
    with suppress(OSError, ValueError, RecursionError):
        saved = json.loads(file.read_text(encoding="utf-8"))
    saved = saved if isinstance(saved, dict) else {}
    partial = file.with_name(f".{file.name}-{os.getpid()}")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(
            json.dumps({**saved, key: {"measured": now, "quiet": quiet, "speeds": asdict(costs)}}, indent=1),
            encoding="utf-8",
        )
        os.replace(partial, file)


def _from(entry: dict[str, Any]) -> CostModel:
    """Make a cost model from an entry of the file. Every number is checked, because a person may have edited the
    file.
    """
    known = {field.name for field in fields(CostModel)}
    step, middle = (LayerCost(**{name: _number(value) for name, value in entry[part].items()}) for part in _PASSES)
    blocks = tuple((int(_number(tokens, 1)), _number(seconds, 1e-9)) for tokens, seconds in entry["blocks"])
    numbers = {name: _number(entry[name], 1.0 if name in _POSITIVE else 0.0) for name in known - _COMPOUND}
    numbers["layers"], numbers["middle_tokens"] = int(numbers["layers"]), int(numbers["middle_tokens"])
    if entry.keys() != known or not blocks:
        raise ValueError("an entry of another kind")
    return CostModel(**numbers, step=step, middle=middle, blocks=blocks)  # type: ignore[arg-type]


_PASSES = ("step", "middle")
_COMPOUND = {*_PASSES, "blocks"}
_POSITIVE = ("memory", "layers")
_LARGEST = 1e18


def _number(value: Any, smallest: float = 0.0) -> float:
    if type(value) not in (int, float) or not smallest <= value <= _LARGEST:
        raise ValueError("a number out of range")
    return float(value)
