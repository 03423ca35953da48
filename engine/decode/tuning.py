"""Holds the constants that tune speculation in one record, each with its unit and the reason for its value.

The constants change speed only, never the distribution of the text. Tests and sweeps pass a record of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """The constants of speculation. An outcome is a proposed token that was accepted or rejected, and a rate is the
    share of accepted tokens. Factors, shares and rates have no unit. The docstrings of all other constants name the
    unit.
    """

    # Acceptance statistics (``acceptance``) -----------------------------------------------------------------------

    confidence_edges: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 0.95)
    """Borders of the classes of confidence, which is a proposer's probability for its own token. The classes are
    narrower near 1, because most tokens have a high confidence.
    """
    match_edges: tuple[int, ...] = (2, 3, 6, 12, 24)
    """Borders, in tokens, of the classes of a match's length."""
    memory: float = 40.0
    """Time constant, in outcomes, with which older outcomes fade. A few rounds make this many outcomes, so that a
    change of the text shows within a paragraph.
    """
    lookup_memory: float = 16.0
    """Time constant, in lookup outcomes, with which older outcomes fade. It is smaller than ``memory``, because the end
    of a copy must be noticed at once.
    """
    prior_outcomes: float = 2.5
    """Weight of a rate's prior before the first outcome, in outcomes. The weight suffices for sensible first rounds,
    but outcomes soon outweigh the prior.
    """
    prior_half_life: float = 4.0
    """Number of outcomes after which the prior weighs half as much."""
    firmness: float = 2.0
    """Factor of the weight and the half-life of a firm prior. The prior of drafted tokens that go straight to
    verification is firm: 0.45 to 0.6 of them were accepted in every text (1.5 and 0.5 billion parameters, temperature
    0.7). With an ordinary prior, one rejected token ended drafting for the rest of an answer.
    """
    aged_outcomes: float = 6.0
    """Minimum weight, in outcomes, to which ageing reduces a rate. Ageing keeps the estimate, but new outcomes then
    change it sooner.
    """
    ageing: float = 1.0 / 64.0
    """Share of a rate's outcomes that fades with each token that is made without an outcome. With this share, a rate
    falls to its minimum weight (``aged_outcomes``) within half a page.
    """
    indirect_weight: float = 0.5
    """Factor: weight of an outcome that is inferred from another level."""
    highest_rate: float = 0.995
    """Maximum acceptance rate. It is below 1, because with a rate of 1 expected lengths would be unbounded."""
    draft_priors: tuple[float, ...] = (0.15, 0.35, 0.5, 0.65, 0.8, 0.92)
    """Acceptance rates of the draft model's tokens by class of confidence, before any outcome."""
    middle_priors: tuple[float, ...] = (0.5, 0.65, 0.75, 0.85, 0.93, 0.98)
    """Rates at which verifications accept the tokens that the target makes on the retrieval cache, by class of
    confidence, before any outcome.
    """
    lookup_priors: tuple[float, ...] = (0.18, 0.25, 0.35, 0.6, 0.85, 0.96)
    """Acceptance rates of the book's tokens by class of match length, before any outcome. Short matches are observed
    even when they are not proposed (``Controller.observe``), so their prior may be low.
    """
    agreed_prior: float = 0.65
    """Acceptance rate of the book's tokens after a short match (``clear_match``) that goes on with the same token at
    other places too, before any outcome.
    """
    disputed_prior: float = 0.08
    """Acceptance rate of the book's tokens after a short match (``clear_match``) that goes on with another token at all
    other places, before any outcome.
    """
    middle_prior: float = 0.5
    """Rate at which the target on the retrieval cache accepts drafted tokens, before any outcome."""
    verify_prior: float = 0.85
    """Acceptance rate of pending tokens at the full cache, before any outcome."""

    direct_prior: float = 0.5
    """Acceptance rate of drafted tokens that go straight to the full cache, before any outcome."""

    # Costs of passes (``acceptance``) -----------------------------------------------------------------------------

    least_ms: float = 1e-3
    """Minimum cost of a pass in milliseconds, so that a speed (tokens divided by cost) is never infinite."""
    slow_step_ms: float = 30.0
    """Milliseconds of a plain step above which the costs of other passes are derived instead of timed."""
    long_pass: int = 16
    """Number of tokens in a pass. In the least-squares fit, the initial slope counts as if it had been measured with
    passes of this length.
    """

    cost_fade: float = 0.95
    """Factor by which the weight of earlier passes falls with each new pass over several tokens. So the fit follows
    about the newest twenty passes.
    """
    cost_forgetting: float = 0.98
    """Factor by which the weight of earlier passes falls with each plain step. So a pass over several tokens that was
    measured in a slow moment does not count for ever, even if no new one follows.
    """
    first_cost_weight: float = 0.3
    """Weight of the initial cost in the least-squares fit, as a number of passes."""
    most_disturbed: float = 3.0
    """Maximum duration of a pass or a trial that counts in full, as a factor of the expected duration. A longer
    duration counts as disturbed by other work of the machine, and only this maximum is used. Conversely, an estimate is
    lowered if it exceeds this factor times a new duration.
    """
    undisturbed_passes: int = 8
    """Number of newest one-token passes of which the fastest counts as undisturbed."""
    newest_weight: float = 0.1
    """Weight of the newest one-token pass in the estimate of the time of a one-token pass, after the first few passes.
    """

    # Refreshes of the retrieval cache's chunks (``acceptance``) ----------------------------------------------------

    refresh_every: int = 2
    """Minimum number of verifications from one refresh to the next."""
    refresh_first: int = 4
    """The verification of an answer, counted from 1, at which the first refresh is due. The chunks of the retrieval
    cache chosen for the question suit a short answer, such as a quotation, whereas a long answer moves on.
    """
    refresh_tokens: int = 16
    """Minimum number of tokens verified between two refreshes, because a refresh costs at least as much as a plain
    step. In addition, ``refresh_every`` verifications are required.
    """
    refresh_share: float = 0.03
    """Maximum share of the time that refreshes may take. Measured with 30 layers after 15,872 tokens: with a refresh
    for every 16 tokens, refreshes took a twelfth of the time and a token took 20.3 to 21.7 ms. With a refresh for about
    every 50 tokens, a token took 18.3 to 19.7 ms.
    """
    acceptance_drop: float = 0.06
    """Minimum amount by which the newest acceptance rate must be below the usual rate, for the text to count as
    changed.
    """
    drop_newest: float = 12.0
    """Number of newest verified tokens that are compared with the usual acceptance: a few verifications."""
    drop_usual: float = 120.0
    """Number of verified tokens over which the usual acceptance is measured: some paragraphs."""
    usual_rate: float = 0.9
    """The usual acceptance rate, before any verification."""
    usual_outcomes: float = 12.0
    """Weight of ``usual_rate`` as a prior, in verified tokens."""
    drop_pause: int = 2
    """Number of verifications after a refresh before acceptance is compared again, because the refresh takes effect
    only over some verifications.
    """

    # Proposals from the book (``lookup`` and ``drafters``) ------------------------------------------------------------

    ngram: int = 3
    """Number of tokens that a place must share with the end of the text, to be preferred to the newest place of fewer
    tokens.
    """
    long_ngram: int = 8
    """Number of tokens in the long n-gram. Its places are compared before those of the short n-gram (``ngram``). A
    short n-gram occurs often and only its newest places are compared, so the right place might be missed.
    """
    short_ngrams: tuple[int, ...] = (2, 1)
    """Numbers of tokens in shorter n-grams, which are searched if the last ``ngram`` tokens occur nowhere. The newest
    place of such an n-gram is right as often as the most frequent next token (0.25 and 0.26 of 1,066 tokens of
    summaries, 1.5 billion parameters, temperature 0.7).
    """
    peers: int = 3
    """Maximum number of other places of a match that are compared with it (``LookupMatch.agreed``)."""
    clear_match: int = 6
    """Minimum length of a match, in tokens, whose acceptance does not depend on ``LookupMatch.agreed``. Of tokens after
    shorter matches, 0.6 to 0.9 were right if other places agreed, 0.08 if they disagreed, and 0.2 to 0.6 without other
    places (69 answers about three books, temperature 0.7).
    """
    places: int = 16
    """Maximum number of places of an n-gram that are compared, newest first. It limits the work for frequent n-grams,
    whose places say little.
    """
    tokens_after: int = 64
    """Minimum number of tokens after a place, for its match to count in full. With fewer tokens the place is near the
    end of the text, and its match counts as shorter (``end_penalty``).
    """
    end_penalty: int = 4
    """Number of tokens by which a match near the end counts as shorter."""
    longest_match: int = 64
    """Maximum number of tokens over which a match is compared backwards."""
    unchecked_match: int = 8
    """Minimum length, in tokens, of a match that is proposed without asking the draft model. A shorter match is
    proposed only if the draft model agrees with its continuation.
    """
    agreed_tokens: int = 2
    """Number of tokens with which the draft model must agree, from the start of a short match's continuation."""
    stride: int = 8
    """Copies in a middle pass (a pass of the target over the retrieval cache) that are longer than this number of
    tokens are cut to a multiple of it. This limits the number of different lengths of middle passes, because a GPU
    records each length separately.
    """

    # Lengths ------------------------------------------------------------------------------------------------------

    most_draft: int = 8
    """Maximum number of drafted tokens before a pass over the retrieval cache, or straight to verification."""
    most_passes: int = 12
    """Maximum number of middle passes (passes of the target over the retrieval cache) in a round. More are allowed only
    as long as all middle passes together take no longer than the verification.
    """
    most_pending: int = 48
    """Number of pending tokens at which a round makes no further pass over the retrieval cache. The last pass may
    exceed this number.
    """
    copy_lengths: tuple[int, ...] = (1, 2, 3, 4, 8, 16, 24, 32, 48, 64)
    """Possible numbers of the book's tokens that are verified at once, ascending."""
    fixed_draft: int = 4
    """Number of drafted tokens before a pass over the retrieval cache, if lengths are fixed and the configuration gives
    none.
    """
    fixed_pending: int = 8
    """Number of pending tokens before a verification, if lengths are fixed and the configuration gives none."""
    fixed_match: int = 12
    """Minimum length of a match, in tokens, that is copied if lengths are fixed."""
    fixed_growth: int = 2
    """Length of a copy as a factor of the match's length, if lengths are fixed."""

    # Choosing a plan (``controller``) -----------------------------------------------------------------------------

    worth_changing: float = 1.03
    """Factor by which a plan must promise more speed than the present plan, to replace it. Estimates are noisy."""
    worth_starting: float = 1.1
    """Factor over plain decoding's speed that the first plan must promise. It is larger than ``worth_changing``,
    because the promise is based on priors alone: after 2,048 tokens the demo pair was promised 1.07, and a short answer
    became 5 to 10 % slower.
    """
    worth_risking: float = 1.2
    """Factor over plain decoding's speed that a plan must promise after speculation has lost more time than it may."""
    highest_threshold: float = 0.9
    """Maximum threshold of an early stop, so that a token of high confidence does not end a proposal."""
    slow_pass_ms: float = 300.0
    """Maximum milliseconds of a plain step with KV that is fetched over a bus, for verifications to be timed on a new
    book. If a plain step takes longer, the cost of a verification is derived from it, and corrected by later rounds.
    """
    overtime: int = 2
    """Allowance of a round with early stops over its plan. A proposal may have ``overtime`` more drafted tokens than
    planned, and the round may have up to ``overtime`` times as many passes over the retrieval cache as planned.
    """
    first_passes: int = 2
    """Maximum number of passes over the retrieval cache in the first rounds, so that an unknown text is tried in short
    rounds.
    """
    first_share: float = 0.1
    """Share of a verification's time that all passes over the retrieval cache may take in one of the first rounds. It
    matters only if it allows more passes than ``first_passes``.
    """
    first_plain: int = 3
    """Number of plain steps that must have been timed before tokens are drafted, by the draft model or on the retrieval
    cache, if all costs were derived from the first step after a prompt. That step took up to 1.7 times as long as the
    next ones (123 and 72 ms), so drafts promised what they could not keep.
    """
    tokens_per_pass: int = 3
    """Number of verified tokens that raise the maximum number of passes over the retrieval cache by one."""
    first_rounds: int = 16
    """Number of rounds at the start in which a plan is chosen in every round, while speculating."""
    rethink_rounds: int = 4
    """Number of rounds between two choices of a plan while speculating."""
    rethink_plain_rounds: int = 16
    """Number of plain rounds between two choices of a plan. It is large, because plain steps teach little."""

    # Staying no slower than plain decoding ------------------------------------------------------------------------

    loss_steps: float = 0.8
    """Time that speculation may lose in a text of any length, in plain steps."""
    loss_share: float = 0.005
    """Time that speculation may lose in addition to ``loss_steps``, in plain steps for each token of the text."""
    loss_memory: float = 512.0
    """Time constant, in tokens, with which earlier losses and gains fade from their sum."""
    credit_rounds: float = 2.0
    """Maximum gain that is remembered, in average rounds. A remembered gain lets a few rounds lose time before
    speculation counts as losing.
    """
    recent_fade: float = 0.9
    """Factor by which each speculating round multiplies the weights of all earlier speculating rounds. The loss of the
    newest rounds is judged from sums with these weights.
    """
    recent_enough: float = 4.0
    """Minimum sum of the rounds' weights (``recent_fade``) for a small loss to be judged. Fewer rounds are not enough,
    because the first round of an answer is often short.
    """
    clear_loss: float = 1.5
    """Minimum loss of the newest speculating rounds together, in plain steps, for two rounds to be enough to judge
    speculation.
    """

    small_risk: float = 0.15
    """Maximum risk of a copy, in plain steps, that is always taken, even after losses. The risk is the time lost if the
    whole copy is rejected, times the doubt in its match (``FadingRate.doubt``).
    """
    worth_investing: float = 1.12
    """Factor over plain decoding's speed that a plan must promise for the draft model to be started, or for the
    retrieval cache's chunks to be chosen. It exceeds ``worth_starting``, because copies from the book, which need
    no start, gain about a tenth over plain decoding.
    """
    repayment_tokens: int = 16
    """Minimum number of further tokens that an answer is expected to get, when deciding whether to start the draft
    model or to choose the retrieval cache's chunks. If the answer has more tokens already, it is expected to get as
    many again.
    """

    # Trials of other plans --------------------------------------------------------------------------------------------

    trial_share: float = 0.01
    """Maximum share of the time that trials may cost. The cost of a trial is its time minus the plan's time for the
    same tokens.
    """
    trial_in_answer: float = 0.02
    """Maximum cost of a trial, in plain steps for each token of the answer so far, because the answer may end soon."""
    most_allowance: float = 2.0
    """Maximum allowance for trials that is saved, in plain steps. If a trial that is due costs more, the allowance may
    grow to the cost of this trial.
    """
    hope: float = 0.5
    """Share of the present rejections that are assumed to become acceptances, when deciding whether speculation is
    worth a trial.
    """
    first_probe: int = 16
    """Number of plain rounds before speculation is tried. Every trial without gain doubles this number."""
    last_probe: int = 64
    """Maximum number of plain rounds before speculation is tried."""
    plain_rounds_close: int = 24
    """Number of rounds after which a plain step is timed again, if the plan promises little more than plain
    decoding.
    """
    plain_rounds_far: int = 96
    """Number of rounds after which a plain step is timed again, if the plan promises much more."""
    plain_rounds_first: int = 4
    """Number of rounds before a plain step is timed again for the first time. It is small, because the first
    measurement rests on at most ``PLAIN_PROBES`` steps.
    """
    close: float = 1.5
    """Maximum speed of a plan, as a factor of plain decoding's speed, for the plan to count as close to plain
    decoding.
    """
    draft_rounds: int = 8
    """Number of rounds without the draft model after which it is tried. Every trial without gain doubles this
    number.
    """
    last_draft_rounds: int = 32
    """Maximum number of rounds without the draft model before it is tried."""
    draft_found: float = 0.6
    """If more than this share of a trial's drafted tokens is accepted, another trial of the draft model follows
    immediately.
    """


TUNING = Tuning()


def is_slow(plain_ms: float) -> bool:
    """Whether a plain step takes so long that the costs of all other passes are derived from it and not measured.
    Timing all passes of a model with 1.5 billion parameters took 1 to 5 s.
    """
    return plain_ms > TUNING.slow_step_ms


def waits_for_bus(spilled: Sequence[int], pass_ms: float) -> bool:
    """Whether a pass took so long, because the KV of ``spilled`` layers came over a bus, that no other such pass should
    be timed.
    """
    return bool(spilled) and pass_ms > TUNING.slow_pass_ms
