"""The constants that tune speculation, in one record: each with its unit and the reason for its value.

They change speed only, never the distribution of the text. Tests and sweeps pass their own record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Constants of speculation. Rates are shares of trials, "factor" has no unit; every other unit is named."""

    # Acceptance statistics (``acceptance``) -----------------------------------------------------------------------

    confidence_edges: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 0.95)
    """Borders of the classes of a proposer's probability for its own token: finer where most tokens are sure."""
    match_edges: tuple[int, ...] = (6, 12, 24)
    """Tokens: borders of the classes of a match's length."""
    memory: float = 40.0
    """Trials after which older ones have faded: a few rounds' worth, so that a change of the text shows within a
    paragraph.
    """
    lookup_memory: float = 16.0
    """Trials of lookup after which older ones have faded: fewer, since the end of a copy must be noticed at once."""
    prior_trials: float = 2.5
    """Trials that a rate's prior counts for at first: enough for sensible first rounds, and soon overruled."""
    prior_half_life: float = 4.0
    """Trials after which the prior counts half as much."""
    aged_trials: float = 6.0
    """Trials down to which a rate ages while it is not tried: the rate stays, and new trials change it sooner."""
    ageing: float = 1.0 / 64.0
    """Share of the trials that fades with each token without a trial: after a page most of them are gone."""
    indirect_weight: float = 0.5
    """Factor: weight of a trial whose outcome is inferred from another level's."""
    highest_rate: float = 0.995
    """The highest rate of acceptance: with certainty expected lengths would have no bound."""
    draft_priors: tuple[float, ...] = (0.15, 0.35, 0.5, 0.65, 0.8, 0.92)
    """Acceptance of the draft model's tokens by class of confidence, before any trial."""
    middle_priors: tuple[float, ...] = (0.5, 0.65, 0.75, 0.85, 0.93, 0.98)
    """Acceptance of the middle level's tokens at the full cache by class of confidence, before any trial."""
    lookup_priors: tuple[float, ...] = (0.2, 0.5, 0.85, 0.96)
    """Acceptance of the book's tokens by class of match length, before any trial. Short matches are learned without
    trying them (``Controller.observe``), so their prior is low.
    """
    middle_prior: float = 0.5
    """Acceptance of drafted tokens at the middle level, before any trial."""
    verify_prior: float = 0.85
    """Acceptance of pending tokens at the full cache, before any trial."""

    # Costs of passes (``acceptance``) -----------------------------------------------------------------------------

    least_ms: float = 1e-3
    """Milliseconds that a pass costs at least, since speeds are divided by costs."""
    slow_step_ms: float = 30.0
    """Milliseconds of a plain step above which no other pass is timed for an answer."""
    long_pass: int = 16
    """Tokens of the long pass that the first measurement stands for in the least squares."""

    cost_fade: float = 0.95
    """Factor: weight of a pass relative to the next one, so that about twenty passes are remembered."""
    cost_forgetting: float = 0.98
    """Factor by which earlier passes fade with each plain step in their place: a slow moment must not count for ever.
    """
    first_cost_weight: float = 0.3
    """Passes that the first measurement counts for."""
    most_disturbed: float = 3.0
    """Factor of the expected duration at which a pass, or a trial, is cut off: a longer one was disturbed. Where a pass
    takes less than an estimate divided by the factor, the estimate was disturbed.
    """
    newest_weight: float = 0.1
    """Weight of the newest pass over one token in the estimate of such a pass, after the first few."""

    # When the selection is refreshed (``acceptance``) -------------------------------------------------------------

    refresh_every: int = 2
    """Verifications between two refreshes."""
    refresh_first: int = 4
    """Verifications before the first refresh: the question's own selection suits a short answer, such as a quotation,
    while a long answer wanders.
    """
    refresh_tokens: int = 16
    """Tokens that must also be verified between two refreshes: a refresh costs as much as a plain step or more."""
    refresh_share: float = 0.03
    """Share of the time that refreshes may take. With 30 layers after 15,872 tokens, a refresh for every 16 tokens took
    a twelfth of the time and gained less: 20.3 to 21.7 ms a token, against 18.3 to 19.7 ms with one for about 50
    tokens.
    """
    drop: float = 0.06
    """Difference by which the newest acceptance must fall below the usual one before the text counts as changed."""
    drop_newest: float = 12.0
    """Newest verified tokens that are compared with the usual acceptance: a few verifications."""
    drop_usual: float = 120.0
    """Verified tokens over which the usual acceptance is measured: some paragraphs."""
    usual_rate: float = 0.9
    """The usual acceptance, before any verification."""
    usual_trials: float = 12.0
    """Weight of the prior ``usual_rate``, in verified tokens."""
    drop_pause: int = 2
    """Verifications after a refresh before acceptance is compared again: the effect needs some to show."""

    # Proposals from the book (``drafters``) -----------------------------------------------------------------------

    ngram: int = 3
    """Tokens that a place must share with the end of the text before it is looked at."""
    long_ngram: int = 8
    """Tokens of the long n-gram, whose places are looked at first. Only the newest places of a short, frequent n-gram
    are compared, and the right place may be older.
    """
    places: int = 16
    """Places of one n-gram that are compared, newest first: a frequent n-gram occurs everywhere and tells little."""
    enough_after: int = 64
    """Tokens after a place below which it is near the end of the text, and its match counts as shorter."""
    end_penalty: int = 4
    """Tokens by which a match near the end counts as shorter."""
    longest_match: int = 64
    """Tokens up to which a match is followed back."""
    alone: int = 8
    """Tokens of a match below which it tells too little to go alone: the draft model must agree with its continuation.
    """
    agreed: int = 2
    """Tokens of a short match's continuation that the draft model must agree with."""
    stride: int = 8
    """Tokens: a longer proposal is a multiple of this, since a GPU records every shape of a middle pass anew."""

    # Lengths ------------------------------------------------------------------------------------------------------

    most_draft: int = 8
    """Maximum drafted tokens before a middle pass, or straight to verification."""
    most_passes: int = 12
    """Middle passes of a round at most, where they take longer together than its verification."""
    most_pending: int = 48
    """Pending tokens of one verification at most; the last middle pass may add some beyond."""
    copy_lengths: tuple[int, ...] = (4, 8, 16, 24, 32, 48, 64)
    """Numbers of the book's tokens that may be verified at once; ascending."""
    fixed_draft: int = 4
    """Drafted tokens where a seed needs fixed lengths and the configuration gives none."""
    fixed_pending: int = 8
    """Pending tokens where a seed needs fixed lengths and the configuration gives none."""
    fixed_match: int = 12
    """Tokens of the shortest match that is copied with fixed lengths."""
    fixed_growth: int = 2
    """Factor of a match's length that is copied with fixed lengths."""

    # Choosing a plan (``controller``) -----------------------------------------------------------------------------

    worth_changing: float = 1.03
    """Factor of the present plan's speed that a plan must promise before it replaces the present one. Estimates are
    noisy.
    """
    worth_starting: float = 1.1
    """Factor of plain decoding's speed that the first plan must promise, since it rests on priors alone. After 2,048
    tokens the demo pair was promised 1.07 and lost 5 to 10 % of a short answer.
    """
    worth_risking: float = 1.2
    """Factor of plain decoding's speed that speculation must promise to continue once it has lost time."""
    first_copy: int = 4
    """Tokens of the book that are copied before matches of this length have been tried."""
    copy_growth: float = 4.0
    """Further tokens of a copy for each trial of such matches, including trials that were only watched."""
    highest_threshold: float = 0.9
    """The highest threshold of an early stop, so that a sure token does not end a proposal."""
    slow_pass_ms: float = 300.0
    """Milliseconds of a pass with KV over a bus above which no verification is timed. A verification's cost is then
    derived from a plain step and corrected by the rounds.
    """
    overtime: int = 2
    """Tokens, and factor of the passes, by which an early-stopped round may exceed the average one."""
    first_passes: int = 2
    """Middle passes of the first rounds at most: an unknown text is tried in short rounds."""
    first_share: float = 0.1
    """Share of a verification's time that the middle passes of the first rounds may take, where this allows more of
    them.
    """
    tokens_per_pass: int = 3
    """Verified tokens that allow one more middle pass."""
    first_rounds: int = 16
    """Rounds at the start in which the plan is chosen again every time."""
    rethink_rounds: int = 4
    """Rounds between two choices of a plan while speculating."""
    rethink_plain_rounds: int = 16
    """Plain rounds between two choices of a plan: plain steps teach little."""

    # Staying no slower than plain decoding ------------------------------------------------------------------------

    loss_steps: float = 1.0
    """Plain steps that trials may lose at any time."""
    loss_share: float = 0.005
    """Share of the tokens, in plain steps, that trials may lose in addition."""
    loss_memory: float = 512.0
    """Tokens over which losses and gains are summed up."""
    credit_rounds: float = 2.0
    """Average rounds' time that may be lost again of earlier gains: a few unlucky rounds do not make a hard text."""
    most_debt: float = 5.0
    """Plain steps of loss that are held against speculation at most: a text may become easy again."""
    recent_fade: float = 0.9
    """Factor: weight of a speculating round relative to the next one, when their loss is judged."""
    recent_enough: float = 4.0
    """Weighted rounds before their loss is judged: an answer's first round is often short."""
    clear_loss: float = 1.5
    """Plain steps that two speculating rounds must have lost together to be judged at once."""

    # Trials of other plans --------------------------------------------------------------------------------------------

    trial_share: float = 0.01
    """Share of the time that trials may cost. A trial costs the time by which it exceeds the plan's time for the same
    tokens.
    """
    most_allowance: float = 2.0
    """Plain steps of allowance that are saved for later trials; more only for a due trial that costs more."""
    hope: float = 0.5
    """Share of the present rejections that a trial assumes to be accepted."""
    first_probe: int = 16
    """Plain rounds before speculation is tried; every trial without gain doubles the wait."""
    last_probe: int = 64
    """The longest wait before speculation is tried, in plain rounds."""
    plain_rounds_close: int = 24
    """Rounds after which a plain step is timed again where the plan promises little more than plain decoding."""
    plain_rounds_far: int = 96
    """Rounds after which a plain step is timed again where the plan promises much more."""
    plain_rounds_first: int = 4
    """Rounds to the first such timing: the first measurement is the best of a few."""
    close: float = 1.5
    """Factor of plain decoding's speed up to which a plan counts as close to it."""
    surprise: float = 0.2
    """Share by which a plain step must differ from its estimate to be timed once more."""
    draft_rounds: int = 8
    """Rounds without the draft model after which the draft model is tried; every trial without gain doubles the wait.
    """
    last_draft_rounds: int = 32
    """The longest wait before the draft model is tried, in rounds without it."""
    draft_found: float = 0.6
    """Accepted share above which a trial of the draft model is followed by another at once."""


TUNING = Tuning()


def is_slow(plain_ms: float) -> bool:
    """Whether a plain step takes so long that costs are derived from it. With a model of 1.5 billion parameters, timing
    all passes took 1 to 5 s.
    """
    return plain_ms > TUNING.slow_step_ms


def waits_for_bus(spilled: Sequence[int], pass_ms: float) -> bool:
    """Whether a pass with KV of ``spilled`` layers over a bus took too long for timing another one."""
    return bool(spilled) and pass_ms > TUNING.slow_pass_ms
