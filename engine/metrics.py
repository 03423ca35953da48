"""Figures derived from rounds, once, with the field's names.

Acceptance rate: accepted / proposed at a level, bonus excluded; what was copied
straight from the book to verification is counted apart. Mean acceptance length: tokens per verification, bonus
included. Inter-token latency (ms per token): a round delivers its tokens as a burst, so each of them counts the round's
time over its tokens; p50 and p95 are over tokens. Speedup: one plain step measured on this very context over the mean
time per token. Durations are handed in.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence

from engine.events import Acceptance, Figures, KvBytes, Round, TimeSplit


class Meter:
    """Sums the rounds of one answer.

    Args:
        mode: name of the decoding loop.
        prompt_tokens: tokens of the whole context when decoding began.
        prefilled_tokens: those of them that this question had to prefill.
        context_limit: the window.
    """

    def __init__(self, mode: str, prompt_tokens: int, prefilled_tokens: int, context_limit: int) -> None:
        self.mode = mode
        self.prompt_tokens = prompt_tokens
        self.prefilled_tokens = prefilled_tokens
        self.context_limit = context_limit
        self.plain_ms: float | None = None
        self._ttft_s: float | None = None
        self._latencies: list[float] = []  # ascending: figures are asked for after every round
        self._total_ms = 0.0
        self._rounds = 0
        self._split = TimeSplit()
        self._middle = Acceptance()
        self._verify = Acceptance()
        self._lookup = Acceptance()

    def add(self, done: Round, elapsed_ms: float, since_asked_s: float) -> None:
        """Count a round that took ``elapsed_ms`` by the engine's clock."""
        if self._ttft_s is None:
            self._ttft_s = since_asked_s
        count = len(done.tokens)
        place = bisect(self._latencies, elapsed_ms / count)
        self._latencies[place:place] = [elapsed_ms / count] * count
        self._total_ms += elapsed_ms
        self._rounds += 1
        # What the stages do not account for (sampling, events, Python between rounds) must show up somewhere.
        spent = done.split
        rest = max(0.0, elapsed_ms - (spent.draft + spent.middle + spent.verify + spent.transfer))
        old = self._split
        self._split = TimeSplit(
            old.draft + spent.draft,
            old.middle + spent.middle,
            old.verify + spent.verify,
            old.transfer + spent.transfer,
            old.other + rest,
        )
        self._middle = _plus(self._middle, done.middle)
        self._verify = _plus(self._verify, done.verify)
        self._lookup = _plus(self._lookup, done.lookup)

    def median_ms(self) -> float | None:
        """Median time per token so far."""
        return _nearest_rank(self._latencies, 0.50)

    def figures(self, kv_bytes: KvBytes, context_tokens: int) -> Figures:
        """All figures so far."""
        tokens = len(self._latencies)
        mean = self._total_ms / tokens if tokens else None
        return Figures(
            mode=self.mode,
            answer_tokens=tokens,
            rounds=self._rounds,
            ttft_s=self._ttft_s,
            ms_per_token_mean=mean,
            ms_per_token_p50=_nearest_rank(self._latencies, 0.50),
            ms_per_token_p95=_nearest_rank(self._latencies, 0.95),
            tokens_per_s=1000.0 / mean if mean else None,
            middle=self._middle,
            verify=self._verify,
            mean_acceptance_length=tokens / self._rounds if self._rounds else None,
            plain_ms=self.plain_ms,
            speedup_vs_plain=self.plain_ms / mean if mean and self.plain_ms else None,
            time_split=self._split,
            kv_bytes=kv_bytes,
            prompt_tokens=self.prompt_tokens,
            prefilled_tokens=self.prefilled_tokens,
            context_tokens=context_tokens,
            context_limit=self.context_limit,
            lookup=self._lookup,
        )


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value below which ``share`` of the values lie (nearest rank); None without values."""
    return _nearest_rank(sorted(values), share)


def _nearest_rank(ascending: Sequence[float], share: float) -> float | None:
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))] if ascending else None


def _plus(a: Acceptance, b: Acceptance) -> Acceptance:
    return Acceptance(a.accepted + b.accepted, a.proposed + b.proposed)
