"""What the tests have tried, counted while they run: bad inputs, faults, load. Shown at the end of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_TRIED: Counter[str] = Counter()


def count(kind: str, times: int = 1) -> None:
    """One more of a kind was tried and came out as it must."""
    _TRIED[kind] += times


def counts() -> dict[str, int]:
    """What this process has tried."""
    return dict(_TRIED)


def add(counted: Mapping[str, int]) -> None:
    """What another process has tried."""
    _TRIED.update(counted)


def lines() -> list[str]:
    return [f"{times:8,} {kind}" for kind, times in sorted(_TRIED.items())]
