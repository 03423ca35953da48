"""What a decoding loop works on, and one pass of the target over its full cache.

Between two rounds the caches hold the KV of all committed tokens but the last, which is the next round's first input.
Knows no text, no chat and no page.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.cache.full import FullCache, Observer
from engine.events import TimeSplit
from engine.models import Decoder
from engine.relief import with_relief
from engine.sampling import Sampler


@dataclass
class Context:
    """``tokens`` are all committed tokens; ``full`` holds the KV of all of them but the last."""

    decoder: Decoder
    full: FullCache
    tokens: list[int]
    sampler: Sampler
    generator: torch.Generator
    stop_ids: frozenset[int]
    max_tokens: int


def full_pass(
    decoder: Decoder,
    full: FullCache,
    start: int,
    tokens: Sequence[int] | torch.Tensor,
    observer: Observer | None = None,
) -> torch.Tensor:
    """Run tokens, the first at position ``start``, through the target on its full cache: logits (n, vocabulary).

    The KV that they leave behind counts once ``full.advance`` is called; before that the cache is as it was.

    Args:
        tokens: ids, as numbers or, where nobody has read them yet, (n,) on the device.
    """
    ids = tokens if isinstance(tokens, torch.Tensor) else decoder.ids(list(tokens))

    def work() -> torch.Tensor:
        full.reserve(start + len(ids))
        rope = decoder.rope(decoder.span(start, len(ids)))
        return decoder.forward(ids, rope, full.extend(start, observer))

    return with_relief(full, work)


def pass_ms(decoder: Decoder, full: FullCache, tokens: Sequence[int], count: int, observer: Observer | None) -> float:
    """Milliseconds of a pass over the last token of a context, repeated to ``count``. Leaves the cache as it was."""
    start = time.perf_counter()
    with torch.inference_mode():
        full_pass(decoder, full, len(tokens) - 1, [tokens[-1]] * count, observer).argmax(-1).tolist()
    return since(start)


def verify_split(full: FullCache, start: float, waited_s: float) -> TimeSplit:
    """What a verification that began at ``start`` was spent on; ``waited_s`` is what the cache had waited by then."""
    transfer = (full.waited_s - waited_s) * 1000.0
    return TimeSplit(verify=since(start) - transfer, transfer=transfer)


def until_end(tokens: list[int], stop_ids: frozenset[int]) -> list[int]:
    """Tokens up to and with the first that ends the text."""
    for index, token in enumerate(tokens):
        if token in stop_ids:
            return tokens[: index + 1]
    return tokens


def since(start: float) -> float:
    """Milliseconds since a ``time.perf_counter`` reading."""
    return (time.perf_counter() - start) * 1000.0
