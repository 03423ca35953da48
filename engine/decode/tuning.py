"""The constants that tune speculation, in one record: each with its unit and the reason for its value.

They change speed only, never the distribution of the text. Tests and sweeps pass a record of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """Rates are shares of trials, "times" are factors; everything else names its unit."""

    # Acceptance statistics (``acceptance``) -----------------------------------------------------------------------

    confidence_edges: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 0.95)
    """Borders of the classes of a proposer's probability for its own token: finer where most tokens are sure."""
    match_edges: tuple[int, ...] = (6, 12, 24)
    """Tokens: borders of the classes of a match's length."""
    memory: float = 40.0
    """Trials: older ones fade. A few rounds' worth, so that a change of the text shows within a paragraph."""
    lookup_memory: float = 16.0
    """Trials of what the book offers: fewer, since a copy that has ended must be noticed at once."""
    prior_trials: float = 2.5
    """Trials that the prior of a rate counts for at first: the first rounds are sensible, and soon overruled."""
    prior_half_life: float = 4.0
    """Trials after which the prior counts for half as much."""
    aged_trials: float = 6.0
    """Trials down to which a rate ages while nothing is tried: it stays, and is changed sooner by what comes next."""
    ageing: float = 1.0 / 64.0
    """Share of the trials that each token without a trial takes: after a page most of them are gone."""
    indirect_weight: float = 0.5
    """Times: weight of a trial whose outcome is inferred from the other level's."""
    highest_rate: float = 0.995
    """Acceptance is never taken to be certain: expected lengths would have no bound."""
    draft_priors: tuple[float, ...] = (0.15, 0.35, 0.5, 0.65, 0.8, 0.92)
    """Acceptance of the draft model's tokens by class of confidence, before any trial."""
    middle_priors: tuple[float, ...] = (0.5, 0.65, 0.75, 0.85, 0.93, 0.98)
    """Acceptance of the middle level's tokens at the full cache by class of confidence, before any trial."""
    lookup_priors: tuple[float, ...] = (0.2, 0.5, 0.85, 0.96)
    """Acceptance of the book's tokens by class of match length, before any trial. Short matches are learned without
    trying them (``Controller.observe``), so their prior is low."""
    middle_prior: float = 0.5
    """Acceptance of drafted tokens at the middle level, before any trial."""
    verify_prior: float = 0.85
    """Acceptance of pending tokens at the full cache, before any trial."""

    # Costs of passes (``acceptance``) -----------------------------------------------------------------------------

    least_ms: float = 1e-3
    """Milliseconds that a pass costs at least: speeds are divided by them."""
    slow_step_ms: float = 30.0
    """Milliseconds of a plain step above which no other pass is timed for an answer."""
    long_pass: int = 16
    """Tokens of the long pass that the first measurement stands for in the least squares."""

    cost_fade: float = 0.95
    """Times: what a pass counts after the next one, so that about twenty are remembered."""
    cost_forgetting: float = 0.98
    """Times: what earlier passes count after a plain step in their place. A slow moment must not count for ever."""
    first_cost_weight: float = 0.3
    """Passes that the first measurement counts for."""
    most_disturbed: float = 3.0
    """Times the expected duration that a pass, or a trial, counts for at most: what took longer was disturbed. Where
    this many times a pass's duration are less than was expected, that was."""
    newest_weight: float = 0.1
    """Share of the newest pass over one token in what such a pass costs, after the first few."""

    # When the selection is refreshed (``acceptance``) -------------------------------------------------------------

    refresh_every: int = 2
    """Verifications between two refreshes."""
    refresh_first: int = 4
    """Verifications before the first one: what a question itself chose holds for a short answer, such as a quotation,
    and a long one wanders."""
    refresh_tokens: int = 16
    """Least tokens verified between two refreshes, in addition: a refresh costs as much as a plain step or more."""
    refresh_share: float = 0.03
    """Share of the time that refreshes may take, in addition. With 30 layers after 15,872 tokens a refresh for every 16
    tokens took a twelfth of the time and gained less: 20.3 to 21.7 ms a token, against 18.3 to 19.7 with one for about
    50 tokens."""
    drop: float = 0.06
    """Share by which the newest acceptance must fall below the usual one: the text has moved on."""
    drop_newest: float = 12.0
    """Verified tokens that are the newest ones there: a few verifications."""
    drop_usual: float = 120.0
    """Verified tokens that say what is usual: some paragraphs."""
    usual_rate: float = 0.9
    """The usual acceptance, before any verification."""
    usual_trials: float = 12.0
    """Weight of that prior, in verified tokens."""
    drop_pause: int = 2
    """Verifications after a refresh before acceptance is looked at again: it needs some to show."""

    # Proposals from the book (``drafters``) -----------------------------------------------------------------------

    ngram: int = 3
    """Tokens that a place must share with the end of the text before it is looked at."""
    long_ngram: int = 8
    """Places that share this many tokens are looked at first: of the few words that are everywhere in a book only the
    newest places are compared, and the right one may be older."""
    places: int = 16
    """Places of one n-gram that are compared, newest first: a common n-gram occurs everywhere and says little."""
    enough_after: int = 64
    """Tokens: a place with fewer after it is near the end of everything, and its match counts as shorter."""
    end_penalty: int = 4
    """Tokens by which it does."""
    longest_match: int = 64
    """Tokens: a match is not followed back further than this."""
    alone: int = 8
    """Tokens: a shorter match says too little to go alone, and the draft model must agree with what follows it."""
    agreed: int = 2
    """Tokens of such a match that it must agree with."""
    stride: int = 8
    """Tokens: a longer proposal is a multiple of it, since every shape of a middle pass is recorded anew on a GPU."""

    # Lengths ------------------------------------------------------------------------------------------------------

    most_draft: int = 8
    """Drafted tokens before a middle pass, or straight before a verification, at most."""
    most_passes: int = 12
    """Middle passes of a round at most, where they take longer than its verification."""
    most_pending: int = 48
    """Tokens of one verification at most, apart from what the last middle pass adds beyond them."""
    copy_lengths: tuple[int, ...] = (4, 8, 16, 24, 32, 48, 64)
    """Tokens of the book that may be verified at once; ascending."""
    fixed_draft: int = 4
    """Drafted tokens where a seed asks for fixed lengths and none are given."""
    fixed_pending: int = 8
    """Pending tokens there."""
    fixed_match: int = 12
    """Tokens of a match at least that is copied there."""
    fixed_growth: int = 2
    """Times a match's length that is copied of it there."""

    # Choosing a plan (``controller``) -----------------------------------------------------------------------------

    worth_changing: float = 1.03
    """Times the present plan's speed that a plan must promise before it replaces it. Estimates are noisy."""
    worth_starting: float = 1.1
    """Times the speed of plain decoding that the first plan must promise, since it rests on priors alone. After 2,048
    tokens the demo pair was promised 1.07 times and lost 5 to 10 % of a short answer."""
    worth_risking: float = 1.2
    """Times the speed of plain decoding that speculation must promise to go on once it has lost time."""
    first_copy: int = 4
    """Tokens of the book that are copied before matches of this length have been tried."""
    copy_growth: float = 4.0
    """Further tokens for each trial of such matches, including those that were only watched."""
    highest_threshold: float = 0.9
    """Early stops are never so early that a sure token ends a proposal."""
    slow_pass_ms: float = 300.0
    """Milliseconds of a pass that brings KV over a bus, above which no verification is timed. What one costs is then
    derived from a plain step and corrected by the rounds."""
    overtime: int = 2
    """Tokens, and times the passes, by which an early-stopped round may exceed the average one."""
    first_passes: int = 2
    """Middle passes of the first rounds: an unknown text is tried in short rounds."""
    first_share: float = 0.1
    """Share of a verification's time that the middle passes of the first rounds may take, if that allows more of
    them."""
    tokens_per_pass: int = 3
    """Verified tokens that allow one more middle pass."""
    first_rounds: int = 16
    """Rounds at the start in which the plan is looked for every time."""
    rethink_rounds: int = 4
    """Rounds between two looks for a better plan while speculating."""
    rethink_plain_rounds: int = 16
    """Plain rounds between two looks for a better plan, while plain steps teach little."""

    # Staying no slower than plain decoding ------------------------------------------------------------------------

    loss_steps: float = 1.0
    """Plain steps that trying may lose at any time."""
    loss_share: float = 0.005
    """Share of the tokens, in plain steps, that trying may lose in addition."""
    loss_memory: float = 512.0
    """Tokens over which losses and gains are summed up."""
    credit_rounds: float = 2.0
    """Average rounds' time that may be lost again of what was won: a few unlucky rounds are no hard text."""
    most_debt: float = 5.0
    """Plain steps that are held against speculation at most: a text may become easy again."""
    recent_fade: float = 0.9
    """Weight of a speculating round relative to the next one, in judging whether they lose now."""
    recent_enough: float = 4.0
    """Weighted rounds before this is judged: an answer's first round is often a short one."""
    clear_loss: float = 1.5
    """Plain steps that such rounds must have lost together for two to be enough."""

    # Trying what is not chosen ------------------------------------------------------------------------------------

    trial_share: float = 0.01
    """Share of the time that trials may cost: what they take longer than the plan would have for their tokens."""
    most_allowance: float = 2.0
    """Plain steps up to which that share is saved for later trials; further only for one that is due and costs more."""
    hope: float = 0.5
    """Share of what is rejected now that a try supposes to be accepted."""
    first_probe: int = 16
    """Plain rounds before speculation is tried; every try that finds nothing doubles the wait."""
    last_probe: int = 64
    """The longest wait before speculation is tried, in plain rounds."""
    plain_rounds_close: int = 24
    """Rounds after which a plain step is timed again where the plan promises little more than plain decoding."""
    plain_rounds_far: int = 96
    """Rounds after which a plain step is timed again where the plan promises much more."""
    plain_rounds_first: int = 4
    """Rounds to the first such look: the first measurement is the best of a few."""
    close: float = 1.5
    """Times the speed of plain decoding up to which a plan counts as close to it."""
    surprise: float = 0.2
    """Share by which a plain step must differ from its estimate to be timed once more."""
    draft_rounds: int = 8
    """Rounds without the draft model after which it is tried; every try that finds nothing doubles the wait."""
    last_draft_rounds: int = 32
    """The longest wait before the draft model is tried, in rounds without it."""
    draft_found: float = 0.6
    """Accepted share above which such a try is followed by another at once."""


TUNING = Tuning()


def is_slow(plain_ms: float) -> bool:
    """Whether a plain step takes so long that costs are derived from it: timing all passes took 1 to 5 s with a model
    of 1.5 billion parameters."""
    return plain_ms > TUNING.slow_step_ms


def waits_for_bus(spilled: Sequence[int], pass_ms: float) -> bool:
    """Whether a pass with KV of ``spilled`` layers over a bus took so long that another one is not worth the wait."""
    return bool(spilled) and pass_ms > TUNING.slow_pass_ms
