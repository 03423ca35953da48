"""How much to speculate, and with whom: chosen every round from measured costs and acceptance.

The decision itself is a pure function, ``choice.best_choice``. ``Controller`` keeps the running estimates that it is
made from, and now and then tries what it would not choose, because acceptance changes with the text. Choices change
only speed, never the law of the text. Knows no model and no tensors.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from engine.beliefs import Beliefs, Patience, Rates
from engine.choice import (
    COPY_LENGTHS,
    MOST_PENDING,
    NOTHING,
    PLAIN,
    Choice,
    Lesson,
    Limits,
    Offer,
    best_choice,
    least_chances,
    tokens_per_ms,
)
from engine.costs import CostFit, Costs, PassCost
from engine.events import Round

# Cost of one more token in a pass, as a share of the pass with one token, before it has been measured.
_FIRST_SLOPE = 0.04
# A choice must promise this much more than the present one before it replaces it: estimates are noisy.
_WORTH_CHANGING = 1.03
# Speculation that has lost time must promise this much more than plain decoding before it goes on.
_WORTH_RISKING = 1.2
# Plain steps that trying things out may lose, a share of all steps beside them, over so many tokens.
_LOSS_STEPS, _LOSS_SHARE, _LOSS_MEMORY = 1.0, 0.005, 512
# Of what was won before, so many average rounds' time may be lost again: a text that has become hard is to be noticed,
# and a few unlucky rounds are not. The most that is held against speculation, since a text may become easy again.
_CREDIT, _DEBT = 4.0, 5.0
# What the last speculating round counts for after the next one, where the question is whether they lose at the moment,
# and the weight of rounds below which that is no question yet: the first round of an answer is often a short one.
_LATELY, _ENOUGH = 0.9, 4.0
# After so many plain rounds one round tries speculation; each try that finds nothing doubles the wait, and one that
# saved time is followed by another at once.
_FIRST_PROBE, _LAST_PROBE = 16, 64
# Rounds after which the cost of a plain step is looked at again where the choice promises less than so much more, and
# where it promises more; the first measurement is the best of a few, and the first look follows soon. A step that took
# so much more or less than was believed is looked at once more.
_PLAIN_UNSEEN, _PLAIN_FAR, _PLAIN_FIRST, _CLOSE, _SURPRISE = 24, 96, 4, 1.5, 0.2
# Rounds without the draft model after which it is looked at again; each look that finds nothing doubles the wait, and
# one of which most was accepted is followed by another at once.
_DRAFT_UNSEEN, _DRAFT_LAST, _MOST = 8, 32, 0.6
# A try supposes that this part of what is rejected now would be accepted.
_HOPE = 0.5
# Rounds between two looks at the whole grid, after the first ones; while plain steps teach little, so many.
_RETHINK, _RETHINK_PLAIN, _FIRST_ROUNDS = 4, 16, 16
# Middle passes of the first rounds, and verified tokens that allow one more: an unknown text is tried in short rounds.
_FIRST_PASSES, _TOKENS_PER_PASS = 2, 3
# With patience, a round may go on for this much more than the average round should.
_OVERTIME = 2
# Lengths that are fixed by a seed: a match as long as this is copied, so many times its length.
_FIXED_MATCH, _FIXED_GROWTH = 12, 2


class Pace(Protocol):
    """Says how much to speculate in the next round, and learns from it."""

    def next(self, offer: Offer = NOTHING) -> Choice:
        """How to speculate in the next round, where the book offers this."""

    def observe(self, choice: Choice, done: Round, lesson: Lesson) -> None:
        """A round was run with ``choice``."""


class FixedLengths:
    """The same lengths in every round: for tests, for sweeps, and for sampling that a seed must be able to repeat.

    Args:
        draft: tokens per middle pass. pending: tokens per verification.
        copies: whether long matches are copied straight from the book.
    """

    def __init__(self, draft: int, pending: int, *, copies: bool = False) -> None:
        self.choice = Choice(draft, pending, pending)
        self._copies = copies

    def next(self, offer: Offer = NOTHING) -> Choice:
        if self._copies and offer.match >= _FIXED_MATCH:
            return Choice(copy=min(len(offer.tokens), _FIXED_GROWTH * offer.match))
        return self.choice

    def observe(self, choice: Choice, done: Round, lesson: Lesson) -> None:
        pass


class FixedDraft(FixedLengths):
    """So many drafted tokens straight to verification in every round."""

    def __init__(self, draft: int) -> None:
        super().__init__(draft, MOST_PENDING)
        self.choice = Choice(draft)


class Controller:
    """Chooses how to speculate in the next round.

    Args:
        costs: measured on this context, or ``guessed_costs``.
        limits: bounds of the choice.
    """

    def __init__(self, costs: Costs, limits: Limits) -> None:
        self.limits = limits
        self.beliefs = Beliefs()
        self._draft = CostFit(PassCost(costs.draft, 0.0))
        self._middle, self._verify = CostFit(costs.middle), CostFit(costs.verify)
        self.choice = PLAIN
        self._rounds = self._plain_rounds = 0
        self._unthought = self._untried = 0  # rounds since the grid was looked at; plain ones not yet forgotten for
        self._since_plain = _PLAIN_UNSEEN - _PLAIN_FIRST
        self._since_draft, self._draft_wait = 0, _DRAFT_UNSEEN
        self._wait = _FIRST_PROBE
        self._tokens = self._lost = 0.0  # of the newest rounds: tokens, and plain steps that speculation took too long
        self._lately = (0.0, 0.0, 0.0)  # of the last few speculating rounds: tokens, plain steps in their time, weight
        self._stopped = False  # because they lost time, whatever is believed: until a try wins some

    @property
    def costs(self) -> Costs:
        """Costs as they are believed now."""
        return Costs(self._draft.cost.ms(1), self._middle.cost, self._verify.cost)

    @property
    def rates(self) -> Rates:
        """Acceptance as it is believed now."""
        return self.beliefs.rates()

    def next(self, offer: Offer = NOTHING) -> Choice:
        """How to speculate in the next round."""
        young = self._rounds < _FIRST_ROUNDS or (self.choice.speculates and self._in_debt)
        if young or self._unthought >= (_RETHINK if self.choice.speculates else _RETHINK_PLAIN):
            self._forget()
            self._rethink()
        self._rounds += 1
        self._unthought += 1
        # The book is asked every round: a match comes and goes.
        copies = [Choice(copy=copy) for copy in COPY_LENGTHS if copy <= min(len(offer.tokens), self.limits.copy)]
        choice = self.choice
        if copies:
            costs, rates = self.costs, self.beliefs.rates(offer.match)
            choice = max([choice, *copies], key=lambda choice: tokens_per_ms(choice, costs, rates))
        if choice.copy:
            return choice
        if not choice.speculates:
            choice = self._probe()
        elif self._since_plain >= (_PLAIN_UNSEEN if self._is_close(choice) else _PLAIN_FAR):
            choice = PLAIN
        elif choice.passes and not choice.draft and self.limits.draft:
            choice = self._look_at_draft(choice)
        return self._patient(choice)

    def observe(self, choice: Choice, done: Round, lesson: Lesson) -> None:
        """Learn from a round that was run with ``choice``."""
        verify_ms, plain_ms = done.split.verify + done.split.transfer, self._verify.cost.ms(1)
        if choice.speculates:
            self._forget()
            self._learn(choice, done, lesson)
            self._since_plain += 1
            if not self.choice.speculates and not choice.copy:
                self._unthought = _RETHINK_PLAIN  # what a try has shown is looked at now
        elif abs(verify_ms - plain_ms) < _SURPRISE * plain_ms:
            self._since_plain = 0
        self._verify.add(done.verify.proposed + done.lookup.proposed + 1, verify_ms)
        offer = lesson.offer
        if offer.match:
            # What the book would have said is known whoever proposed.
            seen = offer.tokens[: len(done.tokens)]
            same = next((i for i, pair in enumerate(zip(seen, done.tokens, strict=False)) if pair[0] != pair[1]), None)
            record = self.beliefs.book(offer.match)
            record.add(len(seen) if same is None else same, len(seen) if same is None else same + 1)
        self._settle(choice, done)

    def _learn(self, choice: Choice, done: Round, lesson: Lesson) -> None:
        """What the draft model and the middle level showed in a round."""
        beliefs = self.beliefs
        for tokens, ms in lesson.passes:
            self._middle.add(tokens, ms)
        if lesson.draft_steps:
            self._draft.add(1, lesson.draft_ms / lesson.draft_steps)
        hits = sum(trial.accepted for trial in lesson.drafted)
        beliefs.add_draft(hits, len(lesson.drafted), direct=not choice.passes)
        if choice.passes and not choice.draft:
            beliefs.age_draft()
        elif choice.passes and not self.choice.draft and hits > _MOST * len(lesson.drafted):
            self._since_draft = self._draft_wait
        beliefs.drafted.add(lesson.drafted)
        beliefs.judged.add(lesson.judged)
        if choice.passes:
            beliefs.verify.add(done.verify.accepted, min(done.verify.proposed, done.verify.accepted + 1))

    def _settle(self, choice: Choice, done: Round) -> None:
        """Book what the round won or lost against plain decoding, in steps of it: a machine that is slow for a while is
        slow for both."""
        fade = max(0.0, 1.0 - len(done.tokens) / _LOSS_MEMORY)
        self._tokens = fade * self._tokens + len(done.tokens)
        self._lost *= fade
        if not choice.speculates:
            self._untried += 1
            return
        spent = done.split.draft + done.split.middle + done.split.verify + done.split.transfer
        steps, made = spent / self._verify.cost.ms(1), len(done.tokens)
        tokens, spans, weight = self._lately
        self._lately = _LATELY * tokens + made, _LATELY * spans + steps, _LATELY * weight + 1.0
        credit = _CREDIT * self._lately[1] / self._lately[2]
        self._lost = min(_DEBT, max(-credit, self._lost + steps - made))
        if made > steps and not choice.copy and not self.choice.speculates:
            self._plain_rounds, self._stopped = self._wait, False

    def _forget(self) -> None:
        """Believe less of what plain steps have not tried since. Done when it is asked for: a plain step has little
        time to spare."""
        if self._untried:
            self.beliefs.age(self._untried)
            self._verify.forget(self._untried, one=False)
            self._middle.forget(self._untried, one=True)
            self._draft.forget(self._untried, one=True)
            self._untried = 0

    def _is_close(self, choice: Choice) -> bool:
        """Whether plain decoding might be as fast as this choice, if it were looked at again."""
        costs, rates = self.costs, self.rates
        return tokens_per_ms(choice, costs, rates) < _CLOSE * tokens_per_ms(PLAIN, costs, rates)

    @property
    def _in_debt(self) -> bool:
        """Whether speculation has lost more time than trying things out may."""
        return self._lost > _LOSS_STEPS + _LOSS_SHARE * self._tokens

    @property
    def _loses(self) -> bool:
        """Whether the last speculating rounds, taken together, were slower than plain decoding."""
        made, steps, weight = self._lately
        return weight > _ENOUGH and made < steps

    def _rethink(self) -> None:
        costs, rates = self.costs, self.rates
        self._unthought = 0
        passes = min(self.limits.passes, _FIRST_PASSES + int(self.beliefs.verify.seen / _TOKENS_PER_PASS))
        best = best_choice(costs, rates, Limits(self.limits.draft, passes))
        plain = tokens_per_ms(PLAIN, costs, rates)
        promised = tokens_per_ms(best, costs, rates)
        if self._in_debt and self.choice.speculates and self._loses:
            self._stopped, self._lost = True, 0.0
        if self._stopped or (self._in_debt and promised < _WORTH_RISKING * plain):
            self.choice = PLAIN
        elif promised > _WORTH_CHANGING * tokens_per_ms(self.choice, costs, rates):
            self.choice = best
        if self.choice.speculates:
            self._plain_rounds, self._wait = 0, _FIRST_PROBE
        if self.choice.draft:
            self._since_draft, self._draft_wait = 0, _DRAFT_UNSEEN

    def _probe(self) -> Choice:
        """Plain decoding; now and then the cheapest look at what might pay, if it could pay at all."""
        self._plain_rounds += 1
        if self._plain_rounds < self._wait or self._in_debt:
            return PLAIN
        costs, rates = self.costs, self.rates
        self._plain_rounds, self._wait = 0, min(_LAST_PROBE, 2 * self._wait)
        hopes = Rates(*(rate + _HOPE * (1.0 - rate) for rate in (rates.middle, rates.verify, rates.direct)))
        hoped = best_choice(costs, hopes, Limits(self.limits.draft, self.limits.passes))
        if tokens_per_ms(hoped, costs, hopes) < _WORTH_CHANGING * tokens_per_ms(PLAIN, costs, rates):
            return PLAIN
        return Choice(min(2, hoped.draft), min(1, hoped.passes))

    def _look_at_draft(self, choice: Choice) -> Choice:
        """Passes without the draft model; now and then with one token of it each. The first few decide too much."""
        self._since_draft += 1
        if self._since_draft < self._draft_wait:
            return choice
        self._since_draft, self._draft_wait = 0, min(_DRAFT_LAST, 2 * self._draft_wait)
        return replace(choice, draft=1)

    def _patient(self, choice: Choice) -> Choice:
        """The choice with patience: longer where proposals are sure, shorter where they are not."""
        if not choice.speculates:
            return choice
        draft, middle = least_chances(choice, self.costs, self.rates)
        return replace(
            choice,
            draft=min(self.limits.draft, choice.draft + _OVERTIME) if choice.draft else 0,
            passes=min(self.limits.passes, _OVERTIME * choice.passes),
            draft_patience=Patience(draft, self.beliefs.drafted.table()),
            middle_patience=Patience(middle, self.beliefs.judged.table()),
        )


def guessed_costs(plain_ms: float) -> Costs:
    """Costs where only a plain step has been measured: the cheap levels are supposed to be cheap."""
    middle = 0.15 * plain_ms
    slope = _FIRST_SLOPE
    return Costs(0.02 * plain_ms, PassCost(middle, slope * middle), PassCost(plain_ms, slope * plain_ms))
