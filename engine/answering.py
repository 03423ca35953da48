"""From a prompt in the caches to the answer's events: what a session does between a question and its last token.

Keeps what one question leaves for the next on the same book: how long a plain step takes, and the queries of the last
question, so that asking it again (regenerate, best of several samples) prefills no token. Knows no chat format.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from engine import decoding
from engine.answer import Answer
from engine.cache.full import FullCache
from engine.cache.retrieval import QueryTap
from engine.config import Mode, SamplingParams
from engine.context import Context, pass_ms
from engine.events import Event, StopReason
from engine.hierarchy import FIRST_QUERIES, Hierarchy
from engine.models import Decoder
from engine.sampling import Sampler, make_generator

# Plain steps measured on a new context, to say how much faster the answer is; the median counts.
_PLAIN_PROBES = 3


class Answering:
    """Answers prompts on one session's caches.

    Args:
        target: the target model; full: its full cache; hierarchy: the levels above it.
        end_ids: tokens that end an answer.
    """

    def __init__(self, target: Decoder, full: FullCache, hierarchy: Hierarchy, end_ids: frozenset[int]) -> None:
        self._target = target
        self._full = full
        self._hierarchy = hierarchy
        self._end_ids = end_ids
        self._plain_ms: list[float] = []
        self._asked: list[int] = []
        self._tap = QueryTap(target.num_layers, FIRST_QUERIES)

    def reset(self) -> None:
        """Forget the book."""
        self._plain_ms = []
        self._asked = []

    def begin(self, prompt: list[int], reused: int) -> QueryTap:
        """Crop the caches to what of a prompt they hold, and say who is to look at the rest while it is prefilled.

        Args:
            prompt: all its tokens.
            reused: those of them, from the first, that are known to be held; more are where the same was asked last.
        """
        full = self._full
        if self._asked == prompt and full.length >= len(prompt) - 1:
            reused = len(prompt) - 1
        else:
            self._tap, self._asked = QueryTap(self._target.num_layers, FIRST_QUERIES), []
        full.crop(min(full.length, reused, len(prompt) - 1))
        self._hierarchy.crop(full.length)
        return self._tap

    def ready(self, prompt: list[int], mode: Mode) -> None:
        """All but the last token of ``prompt`` are in the cache: time plain steps on this very context.

        The first step also shows the newest query to the selection.
        """
        again, self._asked = self._asked == prompt, list(prompt)
        if mode == "plain":
            return
        for probe in range(1 if self._plain_ms else _PLAIN_PROBES):
            observer = self._tap if probe == 0 and not again else None
            self._plain_ms.append(pass_ms(self._target, self._full, prompt, 1, observer))
        self._plain_ms = self._plain_ms[-_PLAIN_PROBES:]

    def decode(self, tokens: list[int], answer: Answer, sampling: SamplingParams, mode: Mode) -> Iterator[Event]:
        """Answer; committed tokens are appended to ``tokens``, which begin as the prompt."""
        room = self._target.window - len(tokens)
        context = Context(
            self._target,
            self._full,
            tokens,
            Sampler(sampling),
            make_generator(sampling.seed, self._target.device),
            self._end_ids,
            min(sampling.max_tokens, room),
        )
        answer.reason = StopReason.LENGTH if sampling.max_tokens <= room else StopReason.CONTEXT
        hierarchy = self._hierarchy
        if mode == "plain":
            rounds = decoding.plain(context)
        else:
            hierarchy.aim(context, self._tap)
            yield answer.scored(hierarchy.chunk_scores())
            rounds = hierarchy.rounds(context, sampling, _median(self._plain_ms))
        # What comes before belongs to the time to first token.
        clock = time.perf_counter()
        for done in rounds:
            now = time.perf_counter()
            text = answer.add(done, (now - clock) * 1000.0, now - answer.asked)
            clock = now
            answer.meter.plain_ms = answer.meter.median_ms() if mode == "plain" else _median(self._plain_ms)
            yield answer.delta(text, done, self._full.kv_bytes(), len(tokens))
            if done.scored:
                yield answer.scored(hierarchy.chunk_scores())


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
