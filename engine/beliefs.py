"""What is believed about acceptance: fading counts per level, per confidence of the proposer, per length of a match.

A proposer that is sure of a token is accepted more often; how often is counted, not assumed. The counts start from
weak beliefs, so that the first rounds are sensible. Pure: no model, no tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

# Trials that are remembered: older ones fade.
_MEMORY = 40.0
# Of what the book offers fewer: a copy that has ended must be noticed at once.
_BOOK_MEMORY = 16.0
# Trials that a first belief counts for, and those after which it counts for half as much.
_FIRST_TRIALS, _FORGOTTEN = 2.5, 4.0
# While nothing is tried, every token takes this share of the trials that are remembered, down to so many: the rate
# stays, and is changed the sooner by what is seen next.
_AGED, _AGEING = 6.0, 1.0 / 64.0
# What a trial counts for that another judge held.
_HEARSAY = 0.5
# Acceptance is never believed to be certain.
SUREST = 0.995

CONFIDENCE_EDGES = (0.2, 0.4, 0.6, 0.8, 0.95)
"""Borders of the classes of a proposer's probability for its own token."""

# Acceptance by confidence before anything has been seen: of a draft model, of the retrieval level.
_DRAFT_CHANCES = (0.15, 0.35, 0.5, 0.65, 0.8, 0.92)
_MIDDLE_CHANCES = (0.5, 0.65, 0.75, 0.85, 0.93, 0.98)

MATCH_EDGES = (6, 12, 24)
"""Borders of the classes of a match's length, in tokens."""

# What follows a short match is learned without trying it (see ``Controller.observe``), so little is promised.
_BOOK_CHANCES = (0.2, 0.5, 0.85, 0.96)


@dataclass(frozen=True)
class Trial:
    """One proposal that was looked at: how sure its proposer was of it, and whether it was accepted."""

    confidence: float
    accepted: bool


class Record:
    """Fading counts of accepted proposals and of trials.

    Args:
        belief: acceptance before anything has been seen.
        memory: trials that are remembered.
    """

    def __init__(self, belief: float, memory: float = _MEMORY) -> None:
        self.belief = belief
        self._memory = memory
        self._accepted = self._trials = 0.0

    @property
    def rate(self) -> float:
        """Acceptance as it is believed now."""
        return self.rate_from(self.belief)

    @property
    def seen(self) -> float:
        """Trials that are still remembered."""
        return self._trials

    def rate_from(self, belief: float) -> float:
        """Acceptance where ``belief`` takes the place of the first one."""
        first = _FIRST_TRIALS / (1.0 + self._trials / _FORGOTTEN)
        return min(SUREST, (self._accepted + belief * first) / (self._trials + first))

    def add(self, accepted: float, trials: float) -> None:
        """Only the accepted prefix and the rejection that ended it are trials: what came after was not looked at."""
        fade = max(0.0, 1.0 - trials / self._memory)
        self._accepted = fade * self._accepted + accepted
        self._trials = fade * self._trials + trials

    def hear(self, accepted: float, trials: float) -> None:
        """As ``add``, of trials before another judge: so many of them would have been accepted here."""
        self.add(_HEARSAY * accepted, _HEARSAY * trials)

    def age(self, tokens: int = 1) -> None:
        """So many tokens were made without a trial: the text may have become another one."""
        if self._trials > _AGED:
            kept = max(_AGED / self._trials, (1.0 - _AGEING) ** tokens)
            self._accepted, self._trials = kept * self._accepted, kept * self._trials


class Chances:
    """Acceptance by class of confidence."""

    def __init__(self, beliefs: tuple[float, ...]) -> None:
        self._records = [Record(belief) for belief in beliefs]

    def add(self, trials: list[Trial]) -> None:
        """Learn from trials."""
        for trial in trials:
            self._records[bisect_right(CONFIDENCE_EDGES, trial.confidence)].add(int(trial.accepted), 1)

    def age(self, tokens: int = 1) -> None:
        """As every ``Record.age``."""
        for record in self._records:
            record.age(tokens)

    def table(self) -> tuple[float, ...]:
        """Believed acceptance of each class."""
        return tuple(record.rate for record in self._records)


@dataclass(frozen=True)
class Patience:
    """How long proposing goes on: while all so far stand together with a chance of at least ``least``."""

    least: float = 0.0
    chances: tuple[float, ...] = _MIDDLE_CHANCES

    def chance(self, confidence: float) -> float:
        """Chance that a token of this confidence is accepted."""
        return self.chances[bisect_right(CONFIDENCE_EDGES, confidence)]


ENDLESS = Patience()
"""Never stops before its count."""


@dataclass(frozen=True)
class Rates:
    """Chance that a proposed token is accepted: of the draft by the middle level, of the middle by the full cache, of
    the draft by the full cache, and of what the book offers by the full cache."""

    middle: float
    verify: float
    direct: float = 0.0
    book: float = 0.0


class Beliefs:
    """Everything that rounds have taught about acceptance.

    Args:
        middle, verify: first beliefs of the draft at the middle level, and of that at the full cache.
    """

    def __init__(self, middle: float = 0.5, verify: float = 0.85) -> None:
        self.middle = Record(middle)
        self.verify = Record(verify)
        self.direct = Record(middle * verify)
        self.books = [Record(chance, _BOOK_MEMORY) for chance in _BOOK_CHANCES]
        self.drafted = Chances(_DRAFT_CHANCES)
        self.judged = Chances(_MIDDLE_CHANCES)

    def add_draft(self, accepted: int, trials: int, *, direct: bool) -> None:
        """The draft's proposals were judged by the full cache, ``direct``, or by the middle level. What the one says
        the other would say much the same: without that a way to speculate that failed once is never looked at again."""
        verify = self.verify.rate
        if direct:
            self.direct.add(accepted, trials)
            self.middle.hear(min(trials, accepted / verify), trials)
        else:
            self.middle.add(accepted, trials)
            self.direct.hear(accepted * verify, trials)

    def age(self, tokens: int) -> None:
        """So many tokens were made without speculation. What the book says is learned all the same."""
        self.verify.age(tokens)
        self.judged.age(tokens)
        self.age_draft(tokens)

    def age_draft(self, tokens: int = 1) -> None:
        """So many rounds were run without the draft model."""
        for records in (self.middle, self.direct, self.drafted):
            records.age(tokens)

    def book(self, match: int) -> Record:
        """The record of matches of this length."""
        return self.books[bisect_right(MATCH_EDGES, match)]

    def rates(self, match: int = 0) -> Rates:
        """Rates now, where the book offers a match of this length."""
        middle, verify = self.middle.rate, self.verify.rate
        return Rates(middle, verify, self.direct.rate_from(middle * verify), self.book(match).rate if match else 0.0)
