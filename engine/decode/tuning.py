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
    """The same of the retrieval level's tokens at the full cache."""
    lookup_priors: tuple[float, ...] = (0.2, 0.5, 0.85, 0.96)
    """The same of tokens from the book, by class of match length. Short matches are learned without trying them
    (``Controller.observe``), so little is promised for them."""
    middle_prior: float = 0.5
    """Acceptance of drafted tokens at the middle level, before any trial."""
    verify_prior: float = 0.85
    """Acceptance of pending tokens at the full cache, before any trial."""

    # Costs of passes (``acceptance``) -----------------------------------------------------------------------------

    least_ms: float = 1e-3
    """Milliseconds that a pass costs at least: speeds are divided by them."""
    slow_step_ms: float = 30.0
    """Milliseconds of a plain step above which few passes are timed before an answer."""
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
    """Tokens verified between two refreshes, beside that: one costs as much as a plain step or more."""
    refresh_share: float = 0.03
    """Share of the time that refreshes may take, beside that. With 30 layers behind 15,872 tokens one for every 16
    tokens took a twelfth, and gained less: 20.3 to 21.7 ms a token, one for about 50 tokens 18.3 to 19.7."""
    drop: float = 0.06
    """Share by which the newest acceptance must fall below the usual one: the text has moved on."""
    drop_newest: float = 12.0
    """Verified tokens that are the newest ones there: a few verifications."""
    drop_usual: float = 120.0
    """Verified tokens that say what is usual: some paragraphs."""
    usual_rate: float = 0.9
    """Acceptance that is taken to be usual at first."""
    usual_trials: float = 12.0
    """Verified tokens that this counts for."""
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
    """Times: what a plan must promise over the present one before it replaces it. Estimates are noisy."""
    worth_starting: float = 1.1
    """Times: what the first plan must promise over plain decoding, which nothing but a prior speaks for. Behind 2,048
    tokens the demo pair was promised 1.07 times and lost 5 to 10 % of a short answer."""
    worth_risking: float = 1.2
    """Times: what speculation that has lost time must promise over plain decoding before it goes on."""
    first_copy: int = 4
    """Tokens of the book that are copied where nothing is known yet of matches of this length."""
    copy_growth: float = 4.0
    """Tokens that each trial of such matches, also one that was only watched, allows beside these."""
    highest_threshold: float = 0.9
    """Early stops are never so early that a sure token ends a proposal."""
    slow_pass_ms: float = 300.0
    """Of a pass that brings KV over a bus. Where it takes longer one is timed before an answer instead of six, and what
    passes over more tokens cost is derived from it and followed by the rounds."""
    overtime: int = 2
    """Tokens, and times the passes, by which an early-stopped round may exceed the average one."""
    first_passes: int = 2
    """Middle passes of the first rounds: an unknown text is tried in short rounds."""
    first_share: float = 0.1
    """Of a verification's time, which middle passes of the first rounds may take where that is more of them."""
    tokens_per_pass: int = 3
    """Verified tokens that allow one more middle pass."""
    first_rounds: int = 16
    """Rounds at the start in which the plan is looked for every time."""
    rethink_rounds: int = 4
    """Rounds between two looks for a better plan while speculating."""
    rethink_plain_rounds: int = 16
    """The same while plain steps teach little."""

    # Staying no slower than plain decoding ------------------------------------------------------------------------

    loss_steps: float = 1.0
    """Plain steps that trying may lose at any time."""
    loss_share: float = 0.005
    """Plain steps that trying may lose beside these, as a share of the tokens."""
    loss_memory: float = 512.0
    """Tokens over which losses and gains are summed up."""
    credit_rounds: float = 4.0
    """Average rounds' time that may be lost again of what was won: a few unlucky rounds are no hard text."""
    most_debt: float = 5.0
    """Plain steps that are held against speculation at most: a text may become easy again."""
    recent_fade: float = 0.9
    """Times: what a speculating round counts after the next one, where the question is whether they lose now."""
    recent_enough: float = 4.0
    """Rounds, so weighted, below which that is no question yet: an answer's first round is often a short one."""

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
    """The longest such wait in rounds."""
    plain_rounds_close: int = 24
    """Rounds after which a plain step is timed again where the plan promises little more than plain decoding."""
    plain_rounds_far: int = 96
    """The same where it promises much more."""
    plain_rounds_first: int = 4
    """Rounds to the first such look: the first measurement is the best of a few."""
    close: float = 1.5
    """Times the speed of plain decoding up to which a plan counts as close to it."""
    surprise: float = 0.2
    """Share by which a plain step must differ from its estimate to be timed once more."""
    draft_rounds: int = 8
    """Rounds without the draft model after which it is tried; every try that finds nothing doubles the wait."""
    last_draft_rounds: int = 32
    """The longest such wait in rounds."""
    draft_found: float = 0.6
    """Accepted share above which such a try is followed by another at once."""


TUNING = Tuning()


def is_slow(plain_ms: float) -> bool:
    """Whether a plain step takes so long that costs are derived from two passes: timing all of them took 1 to 5 s with
    a model of 1.5 billion parameters, which an answer's first word waited for."""
    return plain_ms > TUNING.slow_step_ms


def waits_for_bus(spilled: Sequence[int], pass_ms: float) -> bool:
    """Whether a pass took so long, because the KV of ``spilled`` layers came over a bus, that nobody should wait for
    one more."""
    return bool(spilled) and pass_ms > TUNING.slow_pass_ms
