"""Chooses the plan of every round (``plans``). Pure: no tensors.

``Controller`` estimates costs of passes and acceptance rates, and updates its estimates after every round. Acceptance
changes with the text, so the controller sometimes tries a plan that does not look fastest. The cost of such a trial is
its time minus the current plan's time for the same tokens. All trials together may cost only a small share of the
answer's time (``Tuning.trial_share``). Plans change only speed, never the distribution of the text.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from engine.decode.acceptance import (
    AcceptanceRates,
    AcceptanceStatistics,
    Costs,
    EarlyStop,
    PassCost,
    PassCostEstimate,
    ProposalOutcome,
)
from engine.decode.lookup import NO_MATCH, LookupMatch
from engine.decode.plans import (
    PLAIN,
    DraftPlan,
    PlanLimits,
    best_plan,
    expected_round,
    stop_thresholds,
    tokens_per_ms,
)
from engine.decode.tuning import TUNING, Tuning, is_slow
from engine.events import TimeSplit

if TYPE_CHECKING:
    from engine.events import Round

UNLIMITED = 1 << 30
"""The number of tokens that stands for "no limit" of an answer's length."""


@dataclass
class RoundObservation:
    """What was observed in a round, besides its tokens.

    ``match``: the earlier place in the book that equals the end of the context. ``draft_outcomes`` and
    ``middle_outcomes``: the verified proposals of the draft model and of the middle level (the target on the retrieval
    cache). ``passes``: the number of tokens and the milliseconds of each pass of the middle level. ``selection_ms``:
    milliseconds in which the retrieval cache chose its chunks for the first time in this answer; 0 in all other rounds.
    ``draft_ms``: milliseconds of ``draft_steps`` steps of the draft model. ``draft_start_ms``: milliseconds in which
    the draft model was started, or read tokens that it had not read yet. ``records``: whether passes were recorded (as
    CUDA graphs) in the round. If so, no costs are learned from the round, because recording takes longer than a pass.
    """

    match: LookupMatch = NO_MATCH
    draft_outcomes: list[ProposalOutcome] = field(default_factory=list)
    middle_outcomes: list[ProposalOutcome] = field(default_factory=list)
    passes: list[tuple[int, float]] = field(default_factory=list)
    draft_steps: int = 0
    draft_ms: float = 0.0
    draft_start_ms: float = 0.0
    selection_ms: float = 0.0
    records: bool = False

    @property
    def once_ms(self) -> float:
        """Milliseconds that the round spent on what further rounds need not do again."""
        return self.draft_start_ms + self.selection_ms


# Policies ------------------------------------------------------------------------------------------------------


class SpeculationPolicy(Protocol):
    """Decides how much to speculate in the next round, and learns from the result."""

    def next(self, match: LookupMatch = NO_MATCH) -> DraftPlan:
        """Choose the plan of the next round. The plan may copy tokens of ``match``."""

    def observe(self, plan: DraftPlan, done: Round, observation: RoundObservation) -> None:
        """Learn from a round that was run with ``plan``."""


class FixedLengths:
    """Proposes the same numbers of tokens in every round. Used by tests and sweeps, and for answers with a seed, which
    must be repeatable.

    Args:
        draft: number of drafted tokens before a pass over the retrieval cache.
        pending: number of pending tokens before a verification.
        copies: whether tokens of the book go straight to verification after a long match (``Tuning.fixed_match``).
    """

    def __init__(self, draft: int, pending: int, *, copies: bool = False) -> None:
        self.plan = DraftPlan(draft, pending, pending)
        self._copies = copies

    def next(self, match: LookupMatch = NO_MATCH) -> DraftPlan:
        if self._copies and match.length >= TUNING.fixed_match:
            return DraftPlan(copy=min(len(match.tokens), TUNING.fixed_growth * match.length))
        return self.plan

    def observe(self, plan: DraftPlan, done: Round, observation: RoundObservation) -> None:
        pass


class FixedDraft(FixedLengths):
    """Sends ``draft`` drafted tokens straight to verification in every round."""

    def __init__(self, draft: int) -> None:
        super().__init__(draft, TUNING.most_pending)
        self.plan = DraftPlan(draft)


class Unclocked:
    """A controller with assumed costs of passes in place of measured costs, so that its choices depend only on the
    tokens. Used for answers with a seed, which must be repeatable.

    Args:
        costs: assumed costs. They must be the same whenever the same question is asked.
        limits: the maximum numbers in a plan.
        draft_start_ms, tokens: as in ``Controller.begin``.
    """

    def __init__(self, costs: Costs, limits: PlanLimits, draft_start_ms: float, tokens: int = UNLIMITED) -> None:
        self._costs, self._draft_start_ms = costs, draft_start_ms
        # The assumed costs hold in every round, so no plain steps are needed to correct them.
        self._controller = Controller(replace(costs, is_derived=False), limits)
        self._controller.begin(draft_start_ms, costs.selection, tokens)

    def next(self, match: LookupMatch = NO_MATCH) -> DraftPlan:
        return self._controller.next(match)

    def observe(self, plan: DraftPlan, done: Round, observation: RoundObservation) -> None:
        costs = self._costs
        passes = [(tokens, costs.middle.ms(tokens)) for tokens, _ in observation.passes]
        draft_ms = observation.draft_steps * costs.draft
        middle_ms, verify_ms = sum(ms for _, ms in passes), costs.verify.ms(done.verified_rows)
        selection_ms = costs.selection if observation.selection_ms else 0.0
        start_ms = self._draft_start_ms if observation.draft_start_ms else 0.0
        believed = replace(
            observation,
            passes=passes,
            draft_ms=draft_ms,
            draft_start_ms=start_ms,
            selection_ms=selection_ms,
            records=False,
        )
        split = TimeSplit(draft=draft_ms + start_ms, middle=middle_ms, verify=verify_ms, other=selection_ms)
        self._controller.observe(plan, replace(done, split=split), believed)


class Controller:
    """Chooses how much to speculate in the next round.

    Args:
        costs: initial costs of passes on this context.
        limits: the maximum numbers in a plan.
        tuning: the constants of speculation.
        statistics: acceptance observed on earlier texts, to which the controller adds; None starts from the priors.
    """

    def __init__(
        self,
        costs: Costs,
        limits: PlanLimits,
        tuning: Tuning = TUNING,
        statistics: AcceptanceStatistics | None = None,
    ) -> None:
        self.statistics = statistics or AcceptanceStatistics(tuning)
        self._tuning = tuning
        self.replace_costs(costs, limits)
        # Milliseconds to start the draft model, and to choose the chunks of the retrieval cache; 0 once this answer has
        # spent the time.
        self._draft_start = self._selecting = 0.0
        # ``_made``: number of this answer's tokens so far. ``_left``: maximum number of tokens that it may still get.
        self._made, self._left = 0, UNLIMITED
        self._was_plain = False  # whether the last round was plain
        # Factor over the current plan's speed that another plan must promise
        self._worth_changing = tuning.worth_changing if self.statistics.tried else tuning.worth_starting
        self.plan = PLAIN
        self._awaits_tokens = False  # whether a plan may pay when the answer has more tokens
        self._most_draft = 0  # maximum number of drafted tokens that the next rounds may risk at once
        self._rounds = self._plain_rounds = 0
        # ``_since_rethink``: number of rounds since a plan was chosen. ``_not_aged``: number of plain rounds since the
        # last call of ``_age``.
        self._since_rethink = self._not_aged = 0
        self._since_plain = tuning.plain_rounds_close - tuning.plain_rounds_first
        self._since_draft, self._draft_wait = 0, tuning.draft_rounds
        self._wait = tuning.first_probe
        # ``_tokens``: sum of the tokens of all rounds. ``_lost``: sum of the time that speculation lost, in plain
        # steps. In both sums, earlier rounds weigh less than later rounds. ``_invested``: time, in plain steps, that
        # this answer spent once (``RoundObservation.once_ms``) and has not gained since.
        self._tokens = self._lost = self._invested = 0.0
        # Time that trials may still cost, in plain steps
        self._allowance = 0.0
        self._awaited = 0.0  # cost, in plain steps, of a due trial that waits until ``_allowance`` covers it
        # During a trial, two expected times in plain steps: of one token with the current plan, and of the trial's
        # whole round. None if no trial is running.
        self._planned: tuple[float, float] | None = None
        # Sums over speculating rounds: tokens, time in plain steps, and weights. Earlier rounds weigh less.
        self._recent = (0.0, 0.0, 0.0)

    def begin(self, draft_start_ms: float = 0.0, selection_ms: float = 0.0, tokens: int = UNLIMITED) -> None:
        """Begin another answer. Time that speculation gained in earlier answers is not credited to this answer, because
        no answer may be slower than plain decoding. Time that speculation lost in earlier answers still counts.

        Args:
            draft_start_ms: milliseconds of starting the draft model, in addition to its first step; 0 if it has been
                started.
            selection_ms: milliseconds to choose the chunks of the retrieval cache before the answer's first pass over
                it; 0 if they have been chosen.
            tokens: maximum number of tokens of the answer.
        """
        self._draft_start, self._selecting = draft_start_ms, selection_ms
        self._made, self._left = 0, tokens
        self._tokens, self._lost, self._invested = 0.0, max(0.0, self._lost), 0.0
        self.statistics.begin_answer()
        if (draft_start_ms and self.plan.draft) or (selection_ms and self.plan.passes):
            self.plan = PLAIN
            self._since_rethink = self._tuning.rethink_plain_rounds

    def replace_costs(self, costs: Costs, limits: PlanLimits) -> None:
        """Forget all learned costs of passes. Begin again with ``costs``, and with ``limits``, the bounds of plans at
        these costs.
        """
        self.limits, tuning = limits, self._tuning
        self._is_derived = costs.is_derived  # until enough plain steps have been timed (``Tuning.first_plain``)
        self._draft, self._middle, self._verify = (
            PassCostEstimate(cost, tuning, is_known=not costs.is_derived)
            for cost in (PassCost(costs.draft, 0.0), costs.middle, costs.verify)
        )
        # ``_beside``: the estimate of ``Costs.overhead``. ``_hierarchical``: number of rounds in this estimate.
        self._beside, self._hierarchical = 0.0, 0
        self._selection = costs.selection

    @property
    def costs(self) -> Costs:
        """The current estimate of the costs of passes."""
        verify, is_derived = self._verify.cost, self._is_derived
        return Costs(self._draft.cost.ms(1), self._middle.cost, verify, self._beside, self._selection, is_derived)

    @property
    def rates(self) -> AcceptanceRates:
        """The current estimate of the acceptance rates."""
        return self.statistics.rates()

    def next(self, match: LookupMatch = NO_MATCH) -> DraftPlan:
        """Choose the plan of the next round."""
        tuning = self._tuning
        eager = self.plan.speculates and (self._rounds < tuning.first_rounds or self._in_debt)
        if eager or not self._rounds or self._since_rethink >= self._rethink_rounds:
            self._age()
            self._rethink()
        self._rounds += 1
        self._since_rethink += 1
        # A copy from the book is considered in every round, because the text may begin or cease to repeat the book in
        # any round. Some texts share words with the book again and again, but continue differently. So a copy must not
        # risk much (``_may_copy``), and after speculation has lost time, it must promise a larger gain. A single token
        # is copied after nearly every match if a verification of two tokens takes hardly longer than a plain step.
        most = min(len(match.tokens), self.limits.copy)
        copies = [DraftPlan(copy=copy) for copy in tuning.copy_lengths if copy <= most and self._may_copy(copy, match)]
        plan, self._planned = self.plan, None
        if copies:
            costs, rates = self.costs, self.statistics.rates(match)
            copy = max(copies, key=lambda plan: tokens_per_ms(plan, costs, rates))
            worth = tuning.worth_risking if self._in_debt else tuning.worth_changing
            gain = tokens_per_ms(copy, costs, rates) / tokens_per_ms(plan, costs, rates)
            # Most texts have a match in nearly every round. So a plain step must be timed again from time to time, if
            # its time decides whether a copy pays.
            timed = plan.speculates or gain > tuning.close or self._since_plain < tuning.plain_rounds_close
            if gain > worth and timed:
                return copy
        if not plan.speculates:
            plan = self._probe()
        elif self._since_plain >= (tuning.plain_rounds_close if self._is_close(plan) else tuning.plain_rounds_far):
            plan = self._within_bound(PLAIN, has_begun=self._was_plain)
        elif plan.passes and not plan.draft and self.limits.draft:
            plan = self._try_draft(plan)
        return self._with_early_stops(plan)

    def observe(self, plan: DraftPlan, done: Round, observation: RoundObservation) -> None:
        """Learn from a round that was run with ``plan``."""
        verify_ms, plain_ms = done.split.verify + done.split.transfer, self._verify.cost.ms(1)
        # The first plain step after a speculating round is slower than the following plain steps, because less of its
        # data is in the processor's cache (2.7 instead of 2.2 ms with the demo pair after 2,048 tokens). If plain
        # decoding is about as fast as the plan, the time of this first step would mislead the choice, so it is not
        # counted. Slow steps read so much that this does not matter.
        tells = plan.speculates or self._was_plain or is_slow(plain_ms) or not self._is_close(self.plan)
        tells = tells and not observation.records
        self._was_plain = not plan.speculates
        if plan.speculates:
            self._age()
            self._learn(plan, done, observation)
            self._since_plain += 1
            if not self.plan.speculates and not plan.copy:
                # a trial was made: choose a plan again in the next round, so that the trial's result is used
                # immediately
                self._since_rethink = self._tuning.rethink_plain_rounds
        elif tells:
            self._since_plain = 0
        if tells:
            self._verify.add(done.verify.proposed + done.lookup.proposed + 1, verify_ms)
            self._is_derived &= self._verify.num_ones < self._tuning.first_plain
        match = observation.match
        if match.length:
            # Learn in every round how good the match is, even if its tokens were not proposed. The tokens of the round
            # show how many tokens after the match were right.
            seen = match.tokens[: len(done.tokens)]
            same = next((i for i, pair in enumerate(zip(seen, done.tokens, strict=False)) if pair[0] != pair[1]), None)
            rate = self.statistics.lookup(match)
            rate.add(len(seen) if same is None else same, len(seen) if same is None else same + 1)
        self._left, self._made = self._left - len(done.tokens), self._made + len(done.tokens)
        if not observation.records:
            self._account(plan, done, observation.once_ms)

    def _learn(self, plan: DraftPlan, done: Round, observation: RoundObservation) -> None:
        """Learn from a speculating round: from the times of its passes, and from the verified proposals of the draft
        model and the target on the retrieval cache.
        """
        statistics, outcomes = self.statistics, observation.draft_outcomes
        if not plan.copy:
            self._worth_changing = self._tuning.worth_changing
        for tokens, ms in () if observation.records else observation.passes:
            self._middle.add(tokens, ms)
        if plan.passes and not observation.records:
            self._hierarchical += 1
            weight = max(self._tuning.newest_weight, 1.0 / self._hierarchical)
            self._beside += weight * (done.split.other - observation.selection_ms - self._beside)
        if observation.selection_ms:
            self._selection = observation.selection_ms
            self._selecting = 0.0
        if observation.draft_steps and not observation.records:
            self._draft.add(1, observation.draft_ms / observation.draft_steps)
            self._draft_start = 0.0
        hits = sum(outcome.accepted for outcome in outcomes)
        statistics.add_draft(hits, len(outcomes), direct=not plan.passes)
        if plan.passes and not plan.draft:
            statistics.age_draft()
        elif plan.passes and not self.plan.draft and hits > self._tuning.draft_found * len(outcomes):
            self._since_draft = self._draft_wait
        statistics.draft_by_confidence.add(outcomes)
        statistics.middle_by_confidence.add(observation.middle_outcomes)
        if plan.passes:
            statistics.verify.add(done.verify.accepted, min(done.verify.proposed, done.verify.accepted + 1))

    def _account(self, plan: DraftPlan, done: Round, once_ms: float) -> None:
        """Count the time that the round gained or lost compared with plain decoding. The unit is the time of a plain
        step, so that a temporary slowdown of the machine hardly changes the count.

        ``once_ms`` is the time that the round spent on what further rounds need not do again. It counts as invested
        until as much has been gained. It does not count as lost, because losses tell whether further rounds pay.
        """
        tuning = self._tuning
        made, fade = len(done.tokens), max(0.0, 1.0 - len(done.tokens) / tuning.loss_memory)
        step_ms = self._verify.cost.ms(1)
        steps, again = done.split.total / step_ms, (done.split.total - once_ms) / step_ms
        self._tokens = fade * self._tokens + made
        self._lost *= fade
        self._allowance += tuning.trial_share * steps
        if self._planned is not None:
            planned, expected = self._planned
            self._allowance -= min(steps, tuning.most_disturbed * expected) - made * planned
        self._allowance = min(max(tuning.most_allowance, self._awaited), self._allowance)
        if not plan.speculates:
            self._not_aged += 1
            return
        recent = tuning.recent_fade
        tokens, spans, weight = self._recent
        self._recent = recent * tokens + made, recent * spans + again, recent * weight + 1.0
        credit = tuning.credit_rounds * self._recent[1] / self._recent[2]
        self._lost = max(-credit, self._lost + again - made)
        self._invested = max(0.0, self._invested + steps - again - max(0.0, made - again))
        won = made > max(1.0, tuning.worth_starting * again)
        if won and not plan.copy and not self.plan.speculates:
            self._plain_rounds, self.statistics.loses = self._wait, False

    def _age(self) -> None:
        """Reduce the weight of all estimates according to the number of plain steps since the last call. Called only
        before estimates are used, because a call in every plain step would slow down the step.
        """
        if self._not_aged:
            self.statistics.age(self._not_aged)
            self._verify.forget(self._not_aged, one=False)
            self._middle.forget(self._not_aged, one=True)
            self._draft.forget(self._not_aged, one=True)
            self._not_aged = 0

    def _is_close(self, plan: DraftPlan) -> bool:
        """Whether the plan promises only a little more speed than plain decoding (``Tuning.close``), so that a new
        timing of a plain step could change the choice.
        """
        costs, rates = self.costs, self.rates
        return tokens_per_ms(plan, costs, rates) < self._tuning.close * tokens_per_ms(PLAIN, costs, rates)

    @property
    def _rethink_rounds(self) -> int:
        soon = self.plan.speculates or self._awaits_tokens
        return self._tuning.rethink_rounds if soon else self._tuning.rethink_plain_rounds

    @property
    def _in_debt(self) -> bool:
        """Whether speculation has lost more time than the constants in ``Tuning`` allow."""
        return self._unspent < 0.0

    @property
    def _unspent(self) -> float:
        """Time, in plain steps, that speculating rounds may still lose. It is negative if they have lost more time than
        they may.
        """
        return self._tuning.loss_steps + self._tuning.loss_share * self._tokens - self._lost

    @property
    def _may_lose(self) -> float:
        """Time, in plain steps, that may still be risked: what rounds may still lose, less what has been invested."""
        return self._unspent - self._invested

    def _may_copy(self, copy: int, match: LookupMatch) -> bool:
        """Whether speculation may risk a copy of ``copy`` tokens. The risk is the time that is lost if the whole copy
        is rejected, times the doubt in the match's acceptance rate (``FadingRate.doubt``). The risk must not exceed the
        time that speculation may still lose, or ``Tuning.small_risk`` if ``Tuning.small_risk`` is larger. A rejected
        copy of sixteen tokens, for example, cost six plain steps.
        """
        verify = self._verify.cost
        lost = verify.ms(copy + 1) / verify.ms(1) - 1.0
        doubt = self.statistics.lookup(match).doubt
        return lost * doubt <= max(self._may_lose, self._tuning.small_risk)

    def _may_draft(self, draft: int) -> bool:
        """Whether speculation may risk ``draft`` drafted tokens at once. The risk is the time that is lost if all of
        them are rejected, times the doubt in their acceptance rate, and has the same bound as for copies.
        """
        if not draft:
            return True
        verify, doubt = self._verify.cost, min(self.statistics.direct.doubt, self.statistics.middle.doubt)
        lost = (draft * self._draft.cost.ms(1) + verify.ms(draft + 1)) / verify.ms(1) - 1.0
        return lost * doubt <= max(self._unspent, self._tuning.small_risk)

    @property
    def _loses(self) -> bool:
        """Whether the newest speculating rounds together were slower than plain decoding. Two rounds are enough to
        judge a large loss (``Tuning.clear_loss``). A smaller loss is judged only after more rounds
        (``Tuning.recent_enough``).
        """
        made, steps, weight = self._recent
        clear = weight > 1.0 and steps - made > self._tuning.clear_loss
        return clear or (weight > self._tuning.recent_enough and made < steps)

    def _rethink(self) -> None:
        tuning, costs, rates = self._tuning, self.costs, self.rates
        self._since_rethink = 0
        if self._is_derived:
            self._awaits_tokens = True
            return
        first = max(tuning.first_passes, int(tuning.first_share * costs.verify.ms(1) / costs.middle.ms(1)))
        allowed = first + int(self.statistics.verify.num_outcomes / tuning.tokens_per_pass)
        self._most_draft = max(filter(self._may_draft, range(self.limits.draft + 1)))
        limits = PlanLimits(self._most_draft, min(self.limits.passes, allowed))
        best = best_plan(costs, rates, limits)
        self._awaits_tokens = self._once_ms(best) > 0.0
        best = self._repaid(best, costs, rates, limits)
        plain = tokens_per_ms(PLAIN, costs, rates)
        promised = tokens_per_ms(best, costs, rates)
        if self._in_debt and self.plan.speculates and self._loses:
            self.statistics.loses, self._lost = True, 0.0
        if self.statistics.loses or (self._in_debt and promised < tuning.worth_risking * plain):
            self.plan = PLAIN
        elif promised > self._worth_changing * tokens_per_ms(self.plan, costs, rates):
            self.plan = best
        if self.plan.speculates:
            self._plain_rounds, self._wait = 0, tuning.first_probe
        if self.plan.draft:
            self._since_draft, self._draft_wait = 0, tuning.draft_rounds

    def _repaid(self, best: DraftPlan, costs: Costs, rates: AcceptanceRates, limits: PlanLimits) -> DraftPlan:
        """Return ``best``, the fastest plan within ``limits``, if it has no one-time cost: to start the draft model, or
        to choose the retrieval cache's chunks. Otherwise return the plan that saves most time in the rest of the answer
        after its one-time cost is paid. The answer is expected to get about as many further tokens as it has, and at
        least ``Tuning.repayment_tokens``. Moreover, a plan with a one-time cost must promise
        ``Tuning.worth_investing`` times the speed of plain decoding.
        """
        if not self._once_ms(best):
            return best
        # Use the time of a plain step that other programs did not slow down. Otherwise a few slow plain steps could
        # make speculation look better than it is.
        one = min(costs.verify.ms(1), self._verify.undisturbed_one)
        costs = replace(costs, verify=replace(costs.verify, one=one))
        drafts, passes = {0, limits.draft}, {0, limits.passes}
        plans = [best_plan(costs, rates, PlanLimits(draft, most)) for draft in drafts for most in passes]
        plain = tokens_per_ms(PLAIN, costs, rates)
        tokens = min(self._left, max(self._tuning.repayment_tokens, self._made))

        def saved_ms(plan: DraftPlan) -> float:
            once_ms, speed = self._once_ms(plan), tokens_per_ms(plan, costs, rates)
            if once_ms and speed < self._tuning.worth_investing * plain:
                return -once_ms
            return tokens * (1.0 / plain - 1.0 / speed) - once_ms

        return max(plans, key=saved_ms)

    def _once_ms(self, plan: DraftPlan) -> float:
        """Milliseconds that a plan takes once, in addition to the time of its rounds."""
        return (self._draft_start if plan.draft else 0.0) + (self._selecting if plan.passes else 0.0)

    def _probe(self) -> DraftPlan:
        """Return a plain step or, from time to time, a trial of a short speculation. A trial is made only if some plan
        would be faster than plain decoding at a better acceptance than observed.
        """
        tuning = self._tuning
        self._plain_rounds += 1
        if self._plain_rounds < self._wait or self._in_debt:
            return PLAIN
        costs, rates = self.costs, self.rates
        self._plain_rounds, wait = 0, self._wait
        self._wait = min(tuning.last_probe, 2 * wait)
        hopes = AcceptanceRates(*(r + tuning.hope * (1.0 - r) for r in (rates.middle, rates.verify, rates.direct)))
        limits = PlanLimits(self.limits.draft, self.limits.passes)
        hoped = self._repaid(best_plan(costs, hopes, limits), costs, hopes, limits)
        if tokens_per_ms(hoped, costs, hopes) < tuning.worth_changing * tokens_per_ms(PLAIN, costs, rates):
            return PLAIN
        trial = self._within_bound(DraftPlan(min(2, hoped.draft), min(1, hoped.passes)))
        self._wait = self._wait if trial.speculates else wait
        return trial

    def _try_draft(self, plan: DraftPlan) -> DraftPlan:
        """Return ``plan``, which has passes over the retrieval cache without drafted tokens, or from time to time a
        trial with one drafted token before each pass. One token is enough to learn the acceptance rate. More tokens
        would risk too much time before the rate is known.
        """
        self._since_draft += 1
        if self._since_draft < self._draft_wait:
            return plan
        trial = self._within_bound(replace(plan, draft=1))
        if trial.draft:
            self._since_draft, self._draft_wait = 0, min(self._tuning.last_draft_rounds, 2 * self._draft_wait)
        return trial

    def _within_bound(self, trial: DraftPlan, *, has_begun: bool = False) -> DraftPlan:
        """Return the trial if the allowance for trials covers its cost, otherwise the current plan. If ``has_begun`` is
        true, a trial is going on and is returned at any cost.
        """
        costs, rates = self.costs, self.rates
        step_ms = costs.verify.ms(1)
        planned = 1.0 / (step_ms * tokens_per_ms(self.plan, costs, rates))
        # If the current plan speculates, assume that the target on the retrieval cache rejects all drafted tokens of
        # the trial.
        tokens, ms = expected_round(trial, costs, replace(rates, middle=0.0) if self.plan.speculates else rates)
        ms += self._once_ms(trial)
        steps = ms / step_ms - tokens * planned
        if steps > min(self._allowance, self._tuning.trial_in_answer * self._made) and not has_begun:
            self._awaited = steps
            return self.plan
        if trial.speculates:
            self._awaited = 0.0
        self._planned = planned, ms / step_ms
        return trial

    def _with_early_stops(self, plan: DraftPlan) -> DraftPlan:
        """Let proposals end early when their proposer's confidence is low, and be longer than planned
        (``Tuning.overtime``) while it is high. A plan without speculation is returned unchanged.
        """
        if not plan.speculates:
            return plan
        overtime, edges = self._tuning.overtime, self._tuning.confidence_edges
        draft, middle = stop_thresholds(plan, self.costs, self.rates, self._tuning.highest_threshold)
        return replace(
            plan,
            draft=min(max(plan.draft, self._most_draft), plan.draft + overtime) if plan.draft else 0,
            passes=min(self.limits.passes, overtime * plan.passes),
            draft_stop=EarlyStop(draft, self.statistics.draft_by_confidence.table(), edges),
            middle_stop=EarlyStop(middle, self.statistics.middle_by_confidence.table(), edges),
        )
