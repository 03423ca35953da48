"""When the retrieval selection is chosen anew: policies over what verification has shown. Pure: no model, no tensors.

The queries and the KV are at hand in a verification pass, so a renewal there costs the scoring and the copy of the
chunks that changed. "never" is the published code of TriForce; "every" with 1 renews at every verification.
"""

from __future__ import annotations

from typing import Protocol

from engine.events import Acceptance

# Verified tokens whose acceptance is compared: the newest few, against a longer past.
_SOON, _LONG = 12.0, 120.0
# A fall of acceptance that means that the text has moved on.
_FALL = 0.06
# The first belief of the longer past, and the verified tokens that it counts for.
_USUAL, _USUAL_TRIALS = 0.9, 12.0
# Verifications after a renewal before acceptance is looked at again: it needs some to show.
_PAUSE = 2
# Verifications between two renewals, and before the first one: what a question itself chose holds for a short answer,
# such as a quotation, and a long one wanders.
_EVERY, _FIRST = 2, 4


class RefreshPolicy(Protocol):
    """Says whether the verification that comes renews the selection."""

    def due(self) -> bool:
        """Whether to renew now."""

    def observe(self, verify: Acceptance, *, renewed: bool) -> None:
        """A speculating round was verified."""


class Never:
    """The selection made for the question stays."""

    def due(self) -> bool:
        return False

    def observe(self, verify: Acceptance, *, renewed: bool) -> None:
        pass


class Every:
    """Renews at every ``count``-th verification of a speculating round, and first at the ``first``-th."""

    def __init__(self, count: int, first: int = 0) -> None:
        self._count = count
        self._since = count - (first or count)

    def due(self) -> bool:
        return self._since + 1 >= self._count

    def observe(self, verify: Acceptance, *, renewed: bool) -> None:
        self._since = 0 if renewed else self._since + 1


class WhenAcceptanceDrops:
    """Renews once the newest verifications accept clearly less than those before them."""

    def __init__(self) -> None:
        self._soon = _Fading(_SOON)
        self._long = _Fading(_LONG)
        self._long.add(_USUAL * _USUAL_TRIALS, _USUAL_TRIALS)
        self._pause = 0

    def due(self) -> bool:
        return self._pause == 0 and self._soon.rate < self._long.rate - _FALL

    def observe(self, verify: Acceptance, *, renewed: bool) -> None:
        trials = min(verify.proposed, verify.accepted + 1)
        for past in (self._soon, self._long):
            past.add(verify.accepted, trials)
        self._pause = _PAUSE if renewed else max(0, self._pause - 1)
        if renewed:
            self._soon = _Fading(_SOON)


class _Fading:
    """A rate over about the last ``memory`` trials; 1 before any."""

    def __init__(self, memory: float) -> None:
        self._memory = memory
        self._accepted = self._trials = 0.0

    @property
    def rate(self) -> float:
        return self._accepted / self._trials if self._trials else 1.0

    def add(self, accepted: float, trials: float) -> None:
        fade = max(0.0, 1.0 - trials / self._memory)
        self._accepted = fade * self._accepted + accepted
        self._trials = fade * self._trials + trials


def policy_of(name: str, every: int | None) -> RefreshPolicy:
    """The policy that a configuration names: "never", "drop" or "every" (with its count, or ours)."""
    if name == "every":
        return Every(every) if every else Every(_EVERY, _FIRST)
    return Never() if name == "never" else WhenAcceptanceDrops()
