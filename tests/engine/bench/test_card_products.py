"""Products with the weights of GGUF files in the script for GPUs, on the processor."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.bench import card_products
from engine.bench.card_products import figures
from engine.model.products import card_blocks
from tests.engine.gpu.simulated_kernels import WHY_NOT, SimulatedKernels

CPU = torch.device("cpu")


def timed(_: torch.device, work: Callable[[], object]) -> float:
    before = SimulatedKernels.launches
    work()
    return 0.25 * max(1, SimulatedKernels.launches - before)


@pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
def test_each_format_is_compared_with_the_bytes_that_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(card_products, "_READ_BYTES", 3 * 16 * 128 - 1)
    monkeypatch.setattr(card_products, "_NAMES", ("Q4_0", "Q4_K"))
    monkeypatch.setattr(card_products, "multiplies_blocks", lambda _, kinds: kinds == [2])
    monkeypatch.setattr(card_blocks, "kernels_of", lambda _, kind: SimulatedKernels(kind))
    monkeypatch.setattr(card_products, "SHAPES", ((16, 256),))
    monkeypatch.setattr(card_products, "_ROWS", (3,))
    whole, four, refused = figures(CPU, 1e6, timed)
    assert whole.what == "product with bfloat16: 3 rows, 16 x 256"
    assert four.what == "product with Q4_0: 3 rows, 16 x 256"
    assert four.value == 0.25, "of three matrices, of which none stays in the cache"
    # 16 times 8 blocks of 18 bytes in a quarter of a millisecond, where a copy reads and writes a MB in a second.
    assert four.note == f"0.0 MB of weights, {16 * 8 * 18 / 0.25e-3 / 1e6:.0%} of the copy rate"
    assert refused.value == "does not compile here, or is wrong"
