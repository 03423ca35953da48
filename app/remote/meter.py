"""Figures of an answer that another machine writes: what can be seen from here, by the engine's own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.events import Acceptance, Figures, KvBytes, TimeSplit

MODE = "remote"


class Meter:
    """Times are seconds of one clock. A chunk counts as one token until the server says how many there were."""

    def __init__(self, asked: float, prompt_tokens: int, limit: int) -> None:
        self._asked = asked
        self._limit = limit
        self._prompt = prompt_tokens
        self._cached = 0
        self._tokens = 0
        self._first: float | None = None
        self._last = asked
        self._gaps: list[float] = []

    def chunk(self, now: float) -> None:
        """New words have come."""
        self._tokens += 1
        if self._first is None:
            self._first = now
        else:
            self._gaps.append((now - self._last) * 1000.0)
        self._last = now

    def usage(self, usage: Mapping[str, Any]) -> None:
        """What the server has counted."""
        details = usage.get("prompt_tokens_details") or {}
        self._prompt = _count(usage.get("prompt_tokens"), self._prompt)
        self._tokens = _count(usage.get("completion_tokens"), self._tokens)
        self._cached = min(self._prompt, _count(details.get("cached_tokens"), 0))

    @property
    def prompt_tokens(self) -> int:
        return self._prompt

    def figures(self) -> Figures:
        seconds = self._last - self._first if self._first is not None else 0.0
        mean = seconds * 1000.0 / (self._tokens - 1) if self._tokens > 1 else None
        return Figures(
            mode=MODE,
            answer_tokens=self._tokens,
            rounds=0,
            ttft_s=self._first - self._asked if self._first is not None else None,
            ms_per_token_mean=mean,
            ms_per_token_p50=_part(self._gaps, 0.5),
            ms_per_token_p95=_part(self._gaps, 0.95),
            tokens_per_s=1000.0 / mean if mean else None,
            middle=Acceptance(),
            verify=Acceptance(),
            mean_acceptance_length=None,
            plain_ms=None,
            speedup_vs_plain=None,
            time_split=TimeSplit(),
            kv_bytes=KvBytes(),
            prompt_tokens=self._prompt,
            prefilled_tokens=self._prompt - self._cached,
            context_tokens=self._prompt + self._tokens,
            context_limit=self._limit,
        )


def _count(value: Any, otherwise: int) -> int:
    return value if type(value) is int and value >= 0 else otherwise


def _part(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None
