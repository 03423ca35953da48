"""Whether a GGUF file is rounded for a card, by the time of the whole plan: weights and KV, for books of two lengths.
By the planner's arithmetic; no card is asked.

python -m tests.engine.gpu.test_cards
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from engine import devices
from engine.config import EngineConfig
from engine.plan import planner
from engine.quantization import FITTED
from tests.engine.gpu.test_bytes import CONTEXT_BYTES, GB, GIB, PAIRS, WINDOW, shape

GPU = torch.device("cuda", 0)
HOST = 64 * GIB
BOOKS = (32_768, 120_000)
# Name, GB of memory, GB per second of the memory and of the bus as published, compute capability.
CARDS = (
    ("RTX 4060", 8, 272, 15.8, (8, 9)),
    ("RTX 3060", 12, 360, 31.5, (8, 6)),
    ("RTX 4080", 16, 717, 31.5, (8, 9)),
    ("RTX 4090", 24, 1008, 31.5, (8, 9)),
    ("RTX 5090", 32, 1792, 63.0, (12, 0)),
    ("H200", 141, 4800, 63.0, (9, 0)),
)
MODELS = {
    "Llama-3.1-8B": PAIRS["Llama-3.1-8B + 1B"][0],
    "the reader, Qwen 2.5 1.5B": shape(1536, 8960, 28, 12, 2, 128, 151_936, tied=True),
}


def fitted_bytes(model: Any) -> int:
    """Of the blocks of a Q4_K_M file: attn_v and ffn_down of half of the layers are in Q6_K, which takes 8 bits."""
    width, inner, narrow = model.hidden_size, model.intermediate_size, model.num_key_value_heads * model.head_dim
    wide = model.num_attention_heads * model.head_dim
    six = width * (narrow + inner)
    four = width * (2 * wide + narrow + 2 * inner)
    return int(model.num_hidden_layers * (0.625 * (four + six / 2) + six / 2))


@dataclass(frozen=True)
class Step:
    """What a plain step reads on the card, and what crosses its bus, in bytes."""

    read: float
    moved: float

    def ms(self, rate: float, bus: float) -> float:
        return 1000 * max(self.read / (rate * GB), self.moved / (bus * GB))


class Card:
    """The planner's view of a card for as long as it is entered."""

    def __init__(self, model: Any, memory: int, capability: tuple[int, int], tiles: bool = True) -> None:
        self.model, self._stack = model, ExitStack()
        self._changes: list[tuple[Any, str, Any]] = [
            (devices, "free_memory", lambda _: memory * GIB - CONTEXT_BYTES),
            (planner.psutil, "virtual_memory", lambda: SimpleNamespace(available=HOST)),
            (planner.gguf, "is_described", lambda _: True),
            (planner.gguf, "fitted_bytes", lambda _: fitted_bytes(model)),
            (planner, "multiplies_tiles", lambda _: tiles),
            (torch.cuda, "get_device_capability", lambda *_: capability),
        ]
        self.config = EngineConfig(model="m", context=WINDOW, device="cuda")

    def __enter__(self) -> Card:
        for owner, name, value in self._changes:
            self._stack.enter_context(mock.patch.object(owner, name, value))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def weights(self) -> str:
        return planner.with_fitting_weights(self.config, self.model, None, [GPU]).weights

    def step(self, weights: str, tokens: int) -> Step:
        """By the planner's own costs: as many bytes as it counts, with a bus that costs nothing, and with it alone."""
        config = replace(self.config, weights=weights)
        with mock.patch.multiple(planner, _BUS_COST=0, _DISK_COST=0):
            read = planner.step_bytes(config, self.model, None, [GPU], tokens)
        with mock.patch.multiple(planner, _BUS_COST=10**6, _DISK_COST=0):
            moved = planner.step_bytes(config, self.model, None, [GPU], tokens) / 10**6
        return Step(read, moved if moved > read / 10**5 else 0.0)


def times(name: str, tokens: int) -> Iterator[tuple[str, str, float, float]]:
    """Of each card: what the planner chooses, and a step's milliseconds by the old rule and by the new one. The old one
    rounded only where expanded weights would wait in host memory."""
    for card, memory, rate, bus, capability in CARDS:
        with Card(MODELS[name], memory, capability) as here:
            waits = bool(planner.lay_out(here.config, here.model, None, [GPU]).in_host)
            chosen = here.weights()
            before = here.step(FITTED if waits else "stored", tokens).ms(rate, bus)
            yield card, chosen, before, here.step(chosen, tokens).ms(rate, bus)


def table() -> Iterator[str]:
    yield "| model | card | weights | 32,768 tokens: before | now | 120,000 tokens: before | now |"
    yield "|---|---|---|---|---|---|---|"
    for name in MODELS:
        for short, long in zip(*(times(name, tokens) for tokens in BOOKS), strict=True):
            words = "rounded" if short[1] == FITTED else "expanded"
            figures = " | ".join(f"{ms:.1f} ms" for ms in (*short[2:], *long[2:]))
            yield f"| {name} | {short[0]} | {words} | {figures} |"


@pytest.mark.parametrize("tokens", BOOKS)
@pytest.mark.parametrize("name", MODELS)
def test_a_larger_card_is_never_slower_with_the_same_file(name: str, tokens: int) -> None:
    """Llama-3.1-8B after 120,000 tokens took 312 ms on 24 GB and 296 on 16 GB, because only KV had to wait there."""
    found = [now for *_, now in times(name, tokens)]
    assert all(later <= sooner for sooner, later in pairwise(found)), found
    assert all(now <= 1.001 * before for _, _, before, now in times(name, tokens))


def test_rounding_pays_where_nothing_waits_but_not_on_the_fastest_memory() -> None:
    chosen = {card: weights for card, weights, *_ in times("Llama-3.1-8B", 32_768)}
    assert chosen == {card: "stored" if card == "H200" else FITTED for card, *_ in CARDS}
    long = {card: (before, now) for card, _, before, now in times("Llama-3.1-8B", 120_000)}
    assert long["RTX 4090"][0] > 4 * long["RTX 4090"][1]
    reader = {card: (before, now) for card, _, before, now in times("the reader, Qwen 2.5 1.5B", 32_768)}
    assert all(reader[card][0] > 1.5 * reader[card][1] for card in ("RTX 4060", "RTX 3060", "RTX 4090"))


def test_nothing_is_rounded_without_a_product_that_reads_rounded_weights() -> None:
    with Card(MODELS["Llama-3.1-8B"], 24, (8, 9), tiles=False) as card:
        assert card.weights() == "stored"
    with Card(MODELS["Llama-3.1-8B"], 24, (7, 5)) as card:
        assert card.weights() == "stored"


if __name__ == "__main__":
    import sys

    sys.stdout.write("\n".join(table()) + "\n")
