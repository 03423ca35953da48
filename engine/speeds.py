"""How fast this machine runs a model, as numbers, and what follows from them: pure arithmetic, no measuring.

A pass over n tokens costs each layer a share for its weights and a share for every token of context. What a whole
model takes is put together from the measured passes of one of its layers; every constant here is a rule, not a
measurement, and says where it comes from.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from engine.events import KvBytes

LEAST_BUDGET, MOST_BUDGET = 1024, 8192
"""Bounds of the retrieval budget in tokens. The smaller one loses little acceptance on the bundled pair (README), the
larger is twice what TriForce (arXiv 2404.11912) takes at 128K."""

BUDGET_SHARE = 10
"""The retrieval budget is one token of the book in so many where that is more: the longer a book, the dearer it is to
verify, and the more tokens compete. TriForce takes a 32nd at 128K; measured in the README."""

# How much longer than one over no context a middle pass may take for the sake of its budget.
_BUDGET_SHARE = 0.25
# A larger part of the window than this is no selection any more.
_BUDGET_OF_WINDOW = 16
# Smaller blocks than this are the choice of a probe that ran out of time.
_LEAST_BLOCK = 128
# Seconds that a prefill block may take in one layer: stopping must feel immediate.
_BLOCK_S = 0.25
# Share of the best rate that counts as about as fast: other programs disturb a short probe.
_ABOUT = 0.75
# Seconds after which probes are taken again: drivers and other programs change.
_FRESH_S = 7 * 24 * 3600.0
# Share of the processors that other programs may have while the probes are taken for them to be kept so long.
_MOST_OTHERS = 0.1


@dataclass(frozen=True)
class PassSpeed:
    """Seconds of a pass through one layer: ``base`` without context, ``per_token`` more for each token of it."""

    base: float
    per_token: float

    def seconds(self, context: float) -> float:
        return self.base + self.per_token * context


@dataclass(frozen=True)
class Speeds:
    """What was measured on this machine for one model. Rates in bytes per second.

    Args:
        memory: copying within the memory that computes, what is read and what is written counted.
        bus: from pinned host memory to the device; 0 without one.
        disk: reading a file in the folder for spilled KV; 0 where it was too full to try.
        layers: of the model.
        head: what the output head weighs, in layers; one row of the embedding is nothing.
        step: a pass over one token. middle: over ``middle_tokens``.
        blocks: prefill blocks that were tried, (tokens, seconds without context).
        block_per_token: seconds more for each token of a block and each token of context before it.
    """

    memory: float
    bus: float
    disk: float
    layers: int
    head: float
    step: PassSpeed
    middle: PassSpeed
    middle_tokens: int
    blocks: tuple[tuple[int, float], ...]
    block_per_token: float

    @property
    def prefill_block(self) -> int:
        """The largest block that ends soon enough and is about as fast as any; 0 where only small ones were tried."""
        best = max(tokens / seconds for tokens, seconds in self.blocks)
        good = (tokens for tokens, seconds in self.blocks if seconds <= _BLOCK_S and tokens / seconds >= _ABOUT * best)
        block = max(good, default=0)
        return block if block >= _LEAST_BLOCK else 0

    def retrieval_budget(self, window: int) -> int:
        """Tokens of the retrieval cache: as many as a middle pass hardly notices."""
        free = _BUDGET_SHARE * self.middle.base / max(self.middle.per_token, 1e-15)
        budget = LEAST_BUDGET
        while 2 * budget <= min(free, MOST_BUDGET, window // _BUDGET_OF_WINDOW):
            budget *= 2
        return budget

    def reading_s(self, tokens: int, kv: KvBytes) -> float:
        """Seconds to read a book; what is spilled to disk is written while the model computes."""
        per_token = min(seconds / tokens for tokens, seconds in self.blocks)
        computing = self.layers * (per_token * tokens + self.block_per_token * tokens**2 / 2)
        return max(computing, _over(kv.disk, self.disk))

    def step_ms(self, context: int, kv: KvBytes) -> float:
        """Milliseconds of one plain step; spilled KV comes in while the model computes."""
        computing = (self.layers + self.head) * self.step.base + self.layers * self.step.per_token * context
        moving = _over(kv.disk, self.disk) + _over(kv.host, self.bus)
        return 1000.0 * max(computing, moving)


def _over(count: int, rate: float) -> float:
    """Seconds to move bytes at a rate; none where it was not measured."""
    return count / rate if rate else 0.0


def sentence(speeds: Speeds, tokens: int, kv: KvBytes) -> str:
    """What is to be expected of a book, for a person; it says where the numbers come from."""
    seconds, ms = speeds.reading_s(tokens, kv), speeds.step_ms(tokens, kv)
    how_long = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
    return f"about {how_long} to read, then {ms:.0f} ms a token before speculation, by short probes of this machine"


def others_share(busy_s: float, own_s: float, seconds: float, cores: int) -> float:
    """Share of all processors that other programs took.

    Args:
        busy_s: seconds that the processors worked, added up; own_s: those of them for this program.
        seconds: by the clock.
    """
    return min(1.0, max(0.0, busy_s - own_s) / max(seconds * cores, 1e-9))


def is_quiet(others: float) -> bool:
    """Whether probes say what the machine can do, and not what other programs leave of it."""
    return others <= _MOST_OTHERS


def best_of(one: Speeds, other: Speeds) -> Speeds:
    """The better of each measure of two probes of one model: whatever else runs makes all of them worse, and nothing
    makes one better."""
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


def _faster(one: PassSpeed, other: PassSpeed) -> PassSpeed:
    return PassSpeed(min(one.base, other.base), min(one.per_token, other.per_token))


# Kept from one start to the next ----------------------------------------------------------------------------------


def load(file: Path, key: str, now: float) -> Speeds | None:
    """What was measured not long before ``now`` (Unix seconds) under this key; None if nothing usable is there."""
    found = _load(file, key, now)
    return found[0] if found and found[1] else None


def load_rough(file: Path, key: str, now: float) -> Speeds | None:
    """The same, even where other programs were at work meanwhile: the best so far, to be measured again."""
    found = _load(file, key, now)
    return found[0] if found else None


def _load(file: Path, key: str, now: float) -> tuple[Speeds, bool] | None:
    with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        entry = json.loads(file.read_text(encoding="utf-8"))[key]
        if 0.0 <= now - _number(entry["measured"]) <= _FRESH_S:
            return _from(entry["speeds"]), entry["quiet"] is True
    return None


def keep(file: Path, key: str, speeds: Speeds, now: float, *, quiet: bool) -> None:
    """Write down what was measured. A folder that cannot be written to costs the next start another measurement.

    Args:
        quiet: whether the machine had nothing else to do.
    """
    kept: Any = {}
    with suppress(OSError, ValueError, RecursionError):
        kept = json.loads(file.read_text(encoding="utf-8"))
    kept = kept if isinstance(kept, dict) else {}
    partial = file.with_name(f".{file.name}-{os.getpid()}")
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(
            json.dumps({**kept, key: {"measured": now, "quiet": quiet, "speeds": asdict(speeds)}}, indent=1),
            encoding="utf-8",
        )
        os.replace(partial, file)


def _from(entry: dict[str, Any]) -> Speeds:
    """Checked: a file of ours that somebody else has changed must not make a plan."""
    known = {field.name for field in fields(Speeds)}
    step, middle = (PassSpeed(**{name: _number(value) for name, value in entry[part].items()}) for part in _PASSES)
    blocks = tuple((int(_number(tokens, 1)), _number(seconds, 1e-9)) for tokens, seconds in entry["blocks"])
    numbers = {name: _number(entry[name], 1.0 if name in _POSITIVE else 0.0) for name in known - _COMPOUND}
    numbers["layers"], numbers["middle_tokens"] = int(numbers["layers"]), int(numbers["middle_tokens"])
    if entry.keys() != known or not blocks:
        raise ValueError("an entry of another kind")
    return Speeds(**numbers, step=step, middle=middle, blocks=blocks)  # type: ignore[arg-type]


_PASSES = ("step", "middle")
_COMPOUND = {*_PASSES, "blocks"}
_POSITIVE = ("memory", "layers")
_MOST = 1e18


def _number(value: Any, least: float = 0.0) -> float:
    if type(value) not in (int, float) or not least <= value <= _MOST:
        raise ValueError("a number out of range")
    return float(value)
