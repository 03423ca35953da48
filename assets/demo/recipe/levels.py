"""Measures the middle level of speculation alone: how often the target on its full cache accepts the tokens that it
proposes on a small cache.

The target continues a long text with its full cache. Then the target predicts the same tokens on a retrieval cache, in
blocks. After every block, a pass over the full cache chooses the retrieval cache's chunks again, as in use. Uses the
engine's caches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.bench.rows import NewestChunks
from engine.decode import prefill
from engine.decode.rounds import RECENT
from engine.kv.full import FullCache
from engine.kv.retrieval import QueryRecorder, RetrievalCache, SelectionRefresh
from engine.kv.selection import MeanKeyAttention
from engine.model.decoder import Decoder
from engine.model.view import View
from engine.plan.memory_budget import FINE_CHUNK

BLOCK, TAIL = 8, 1024
KINDS = {"retrieval": MeanKeyAttention, "recent": NewestChunks}


@dataclass(frozen=True)
class Continuation:
    """A prompt, its continuation by the full cache, and the distribution (tokens, vocabulary) of each token."""

    prompt: list[int]
    tokens: list[int]
    probabilities: Tensor


class Levels:
    """A target that has read `ids` into its full cache, for tests of small caches."""

    def __init__(self, decoder: Decoder, ids: list[int]) -> None:
        self.decoder, self.ids = decoder, ids
        self.full = FullCache(decoder.kv_shape, len(ids) + 2 * TAIL)
        prefill.run(decoder, self.full, decoder.ids(ids), segment=4096, block=512)

    @torch.inference_mode()
    def continuation(self, question: list[int], count: int, end: int, temperature: float, seed: int) -> Continuation:
        """Continue the text and `question` up to the token `end`, at most by `count` tokens. Temperature 0: greedy."""
        prompt = self.ids + question
        self._refill(prompt, None)
        generator = torch.Generator(self.decoder.device).manual_seed(seed)
        tokens, rows = [prompt[-1]], []
        for _ in range(count):
            logits = self._pass(self.full.extend(self.full.length), tokens[-1:])
            self.full.advance(1)
            rows.append((logits[-1] / max(temperature, 1e-4)).softmax(-1))
            tokens.append(int(torch.multinomial(rows[-1], 1, generator=generator)))
            if tokens[-1] == end:
                break
        return Continuation(prompt, tokens[1:], torch.stack(rows))

    @torch.inference_mode()
    def accepted(self, made: Continuation, kind: str, budget: int, temperature: float) -> list[float]:
        """Return, for every token of a continuation, the probability that the full cache accepts the small cache's
        token: the overlap of both distributions.
        """
        recorder = QueryRecorder(self.decoder.num_layers)
        self._refill(made.prompt, recorder)
        small = RetrievalCache(self.full, budget, FINE_CHUNK, TAIL, policy=KINDS[kind]())
        small.select_at(self.full.length - RECENT, recorder.queries, recorder.scaling)
        inputs, overlaps = [made.prompt[-1], *made.tokens], []
        for first in range(0, len(made.tokens), BLOCK):
            block, start = inputs[first : first + BLOCK], self.full.length
            block = block[: len(made.tokens) - first]
            logits = self._pass(small.extend(), block)
            small.advance(len(block))
            mine = (logits / max(temperature, 1e-4)).softmax(-1)
            overlaps += torch.minimum(mine, made.probabilities[first : first + len(block)]).sum(-1).tolist()
            self._pass(self.full.extend(start, SelectionRefresh(small)), block)
            self.full.advance(len(block))
            small.copy_from_full(self.full.length)
        return overlaps

    def _refill(self, prompt: list[int], recorder: QueryRecorder | None) -> None:
        """Fill the full cache with all tokens of `prompt` but the last. `recorder` records the newest queries."""
        start = max(0, min(len(self.ids), len(prompt) - 1) - RECENT)
        self.full.crop(start)
        self.full.reserve(len(prompt) + TAIL)
        self._pass(self.full.extend(start, recorder), prompt[start:-1])
        self.full.advance(len(prompt) - 1 - start)

    def _pass(self, view: View, tokens: list[int]) -> Tensor:
        return self.decoder.forward(self.decoder.ids(tokens), view)


def acceptance(
    levels: Levels, questions: dict[str, list[list[int]]], budgets: list[int], count: int, end: int
) -> Iterator[dict[str, object]]:
    """Yield a row with the acceptance for every kind of question, temperature, kind of small cache, and budget."""
    for name, asked in questions.items():
        for temperature in (0.0, 0.6):
            made = [levels.continuation(one, count, end, temperature, seed) for seed, one in enumerate(asked)]
            for kind, budget in [("retrieval", budget) for budget in budgets] + [("recent", budgets[0])]:
                shares = [share for one in made for share in levels.accepted(one, kind, budget, temperature)]
                mean = round(sum(shares) / len(shares), 3)
                yield {"text": name, "temperature": temperature, "cache": kind, "budget": budget, "accepted": mean}
