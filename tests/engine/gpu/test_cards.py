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
from engine.model.kernels.block_products import CARD_FORMATS
from engine.plan import planner
from engine.quantization import FITTED
from tests.engine.gpu.test_bytes import CONTEXT_BYTES, GB, GIB, PAIRS, WINDOW, shape

GPU = torch.device("cuda", 0)
HOST = 64 * GIB
K = ("Q4_K", "Q6_K")
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


def card_bytes(model: Any) -> tuple[int, int]:
    """Of the blocks and of all else in a Q4_K_M file whose values stay as they are: the head, which is in Q6_K, and an
    embedding of its own, in Q4_K."""
    four, six = (next(form.bytes_per_weight for form in CARD_FORMATS.values() if form.form.name == name) for name in K)
    width, inner, narrow = model.hidden_size, model.intermediate_size, model.num_key_value_heads * model.head_dim
    wide = model.num_attention_heads * model.head_dim
    both = width * (narrow + inner) / 2
    blocks = model.num_hidden_layers * (four * (width * (2 * wide + narrow + 2 * inner) + both) + six * both)
    table = model.vocab_size * width
    return int(blocks), int(table * (six if model.tie_word_embeddings else four + six))


@dataclass(frozen=True)
class Step:
    """What a plain step reads on the card, and what crosses its bus, in bytes."""

    read: float
    moved: float

    def ms(self, rate: float, bus: float) -> float:
        return 1000 * max(self.read / (rate * GB), self.moved / (bus * GB))


class Card:
    """The planner's view of a card for as long as it is entered."""

    def __init__(
        self, model: Any, memory: int, capability: tuple[int, int], *, tiles: bool = True, keeps: bool = False
    ) -> None:
        self.model, self._stack = model, ExitStack()
        self._changes: list[tuple[Any, str, Any]] = [
            (devices, "free_memory", lambda _: memory * GIB - CONTEXT_BYTES),
            (planner.psutil, "virtual_memory", lambda: SimpleNamespace(available=HOST)),
            (planner.gguf, "is_described", lambda _: True),
            (planner.gguf, "fitted_bytes", lambda _: fitted_bytes(model)),
            (planner.gguf, "card_bytes", lambda _: card_bytes(model)),
            (planner.gguf, "keeps_on_card", lambda *_: keeps),
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


@dataclass(frozen=True)
class Times:
    """A plain step's milliseconds on a card: by the old rule, which rounded only where expanded weights would wait in
    host memory; with the weights ``chosen`` now; and with the file's own values."""

    card: str
    chosen: str
    before: float
    now: float
    kept: float


def times(name: str, tokens: int) -> list[Times]:
    """Of each card."""
    found = []
    for card, memory, rate, bus, capability in CARDS:
        with Card(MODELS[name], memory, capability) as here:
            waits = bool(planner.lay_out(here.config, here.model, None, [GPU]).in_host)
            chosen = here.weights()
            before = here.step(FITTED if waits else "stored", tokens).ms(rate, bus)
            now = here.step(chosen, tokens).ms(rate, bus)
        with Card(MODELS[name], memory, capability, keeps=True) as here:
            assert here.weights() == "stored"
            found.append(Times(card, chosen, before, now, here.step("stored", tokens).ms(rate, bus)))
    return found


def table() -> Iterator[str]:
    lengths = " | ".join(f"{tokens:,} tokens: once | rounded | as stored" for tokens in BOOKS)
    yield f"| model | card | {lengths} |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in MODELS:
        for both in zip(*(times(name, tokens) for tokens in BOOKS), strict=True):
            figures = [
                f"{each.before:.1f} ms | {f'{each.now:.1f} ms' if each.chosen == FITTED else ''} | {each.kept:.1f} ms"
                for each in both
            ]
            yield f"| {name} | {both[0].card} | {' | '.join(figures)} |"


@pytest.mark.parametrize("tokens", BOOKS)
@pytest.mark.parametrize("name", MODELS)
def test_a_larger_card_is_never_slower_with_the_same_file(name: str, tokens: int) -> None:
    """Llama-3.1-8B after 120,000 tokens took 312 ms on 24 GB and 296 on 16 GB, because only KV had to wait there."""
    found = times(name, tokens)
    for steps in ([each.now for each in found], [each.kept for each in found]):
        assert all(later <= sooner for sooner, later in pairwise(steps)), steps
    assert all(each.kept <= each.now <= 1.001 * each.before for each in found)


def test_rounding_pays_where_nothing_waits_but_not_on_the_fastest_memory() -> None:
    chosen = {each.card: each.chosen for each in times("Llama-3.1-8B", 32_768)}
    assert chosen == {card: "stored" if card == "H200" else FITTED for card, *_ in CARDS}
    long = {each.card: (each.before, each.now) for each in times("Llama-3.1-8B", 120_000)}
    assert long["RTX 4090"][0] > 4 * long["RTX 4090"][1]
    reader = {each.card: (each.before, each.now) for each in times("the reader, Qwen 2.5 1.5B", 32_768)}
    assert all(reader[card][0] > 1.5 * reader[card][1] for card in ("RTX 4060", "RTX 3060", "RTX 4090"))


def test_nothing_is_rounded_without_a_product_that_reads_rounded_weights() -> None:
    with Card(MODELS["Llama-3.1-8B"], 24, (8, 9), tiles=False) as card:
        assert card.weights() == "stored"
    with Card(MODELS["Llama-3.1-8B"], 24, (7, 5)) as card:
        assert card.weights() == "stored"


if __name__ == "__main__":
    import sys

    sys.stdout.write("\n".join(table()) + "\n")
