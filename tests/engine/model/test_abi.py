"""Slots of kernels have no number but the one in ``abi``: in any other order the same is computed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType, quants

from engine.decode import prefill
from engine.kv.full import FullCache
from engine.kv.retrieval import QueryRecorder, RetrievalCache
from engine.model import loading
from engine.model.kernels import abi, native
from engine.model.products.blocks import BlockLinear, Stored
from engine.model.products.packed import PackedBlocks, Unpacked

HALF, WIDE = torch.bfloat16, torch.float32


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shuffle(slots: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every slot of a class another number, among all that an array has; of a line among its own words."""
    names = [name for name in vars(slots) if name.isupper()]
    most = abi.LINE_WORDS if slots is abi.GatheredLine else abi.NUM_ARGUMENTS
    places = random.Random(len(names)).sample(range(most), len(names))
    assert places != [getattr(slots, name) for name in names]
    for name, place in zip(names, places, strict=True):
        monkeypatch.setattr(slots, name, place)


def everything(name: str, kernels: native.Native) -> list[torch.Tensor]:
    """What every kernel of our own computes, in one kind of each: of those for pairs where the processor has them."""
    found = []
    for dtype, head_dim, cap in ((WIDE, 16, None), (HALF, 32, 2.0))[: 1 + kernels.multiplies_pairs]:
        x, weight = numbers(5, 64).to(dtype), numbers(96, 64, seed=1)
        pairs = dtype is HALF
        large, scales = (weight * 40).round().clamp(-127, 127).to(torch.int8), numbers(96, seed=2).to(dtype)
        found.append(kernels.product(x, kernels.pack(large, pairs), kernels.pack(scales[:, None]).flatten()))
        small = (weight * 4 + 8).round().clamp(0, 15).to(torch.uint8)
        steps = torch.stack([kernels.pack(numbers(96, 2, seed=at).to(HALF)) for at in (3, 4)], dim=2)
        found.append(kernels.product4(x, kernels.pack4(small, pairs), steps))
        q, k, v = (numbers(1, 2, count, head_dim, seed=count).to(dtype) for count in (6, 700, 701))
        found += kernels.attention.attend(q, k, v[:, :, :700], 0.2, torch.arange(600, 606), torch.arange(6), cap)
    for kind in (GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16):
        data = torch.from_numpy(quants.quantize(numbers(40, 64).numpy(), kind)).view(torch.uint8)
        blocks = PackedBlocks([BlockLinear(Stored(data, int(kind), 64), None, HALF)], kernels, Unpacked())
        found += [blocks(numbers(3, 64).to(HALF)), blocks.unpacked()]
    data = torch.from_numpy(quants.quantize(numbers(40, 64).numpy(), GGMLQuantizationType.Q4_0))
    layer = BlockLinear(Stored(data, int(GGMLQuantizationType.Q4_0), 64), None, WIDE)
    found.append(PackedBlocks([layer], kernels, Unpacked())(numbers(3, 64)))
    keys, values, memory = numbers(4, 2, 16), numbers(4, 4, 16, seed=1), numbers(4, 16, 16, seed=2)
    decays, rates = -numbers(4, 4, seed=3).abs(), numbers(4, 4, seed=4).sigmoid()
    for rule in ("delta", "scan"):
        out, updates, behind = kernels.delta(keys, keys, values, decays, rates, memory, rule=rule)
        found += [out, updates, behind, kernels.replayed(keys, updates, decays, memory)]
    for logits in (numbers(3, 64), numbers(3, 64).to(HALF)):
        tokens = kernels.sampling.likeliest(logits)
        patches = torch.tensor([[3, -1], [5, 3], [7, 7]]), numbers(3, 2, seed=5)
        stats = kernels.sampling.measured(logits, 2.0, 9, 0.9, patches)
        found += [tokens, stats, kernels.sampling.asked(logits, 2.0, stats, patches, tokens)]
        found.append(kernels.sampling.probabilities(logits[:1], 2.0, stats[:1], patches))
    return [*found, kernels.norm(numbers(3, 64), torch.ones(64), 1e-5), *a_chat(name)]


def a_chat(name: str) -> list[torch.Tensor]:
    """Logits of passes in one call, over chunks that were gathered too, and a layer in two calls."""
    found = []
    model = loading.load(name, window=None, device=torch.device("cpu"))
    ids = torch.randint(10, 300, (340,), generator=torch.Generator().manual_seed(1))
    full, queries = FullCache(model.kv_shape, model.window), QueryRecorder(model.num_layers)
    prefill.run(model, full, ids[:300], segment=256, observer=queries)
    cache = RetrievalCache(full, budget=64, chunk_size=8, tail=128)
    with torch.inference_mode():
        cache.select_at(280, queries.queries, queries.scaling)
        full.reserve(340)
        rope = model.rope(model.span(300, 9))
        for view in (full.extend(300), cache.extend()):
            found.append(model.forward(ids[300:309], view))
        return [*found, model.layer(0, model.embed(ids[300:309]), rope, full.extend(300))]


def test_slots_may_be_in_any_order(
    tiny: Callable[..., str], keep_no_kernels: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = native.own()
    if known is None:
        pytest.skip("no kernels of our own on this processor")

    expected = everything(tiny("qwen3"), known)
    emitted: set[str] = set()
    by_name = native.Native.address

    def noted(self: native.Native, name: str, *kind: Any, **lanes: Any) -> int:
        emitted.add(name)
        return by_name(self, name, *kind, **lanes)

    monkeypatch.setattr(native.Native, "address", noted)
    monkeypatch.setattr(native.Native, "prepare", lambda *_: None)  # only what is used is compiled
    keep_no_kernels()  # they are found by the program's files, which stay
    for slots in abi.SLOTS:
        shuffle(slots, monkeypatch)
    own = native.Native(workers=2)
    monkeypatch.setattr(native, "own", lambda: own)

    found = everything(tiny("qwen3"), own)
    assert all(torch.equal(mine, other) for mine, other in zip(found, expected, strict=True))
    left = {name for name in own.emitters if name not in emitted}
    assert not left or not own.multiplies_pairs, f"{left} were not emitted"


def test_a_kernel_that_was_compiled_reads_the_slots_of_that_time(
    keep_no_kernels: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a slot that emitters number by themselves is missed by the test above."""
    if native.own() is None:
        pytest.skip("no kernels of our own on this processor")
    x, weight, own = numbers(3, 64), torch.ones(64), native.Native(workers=1)
    expected = own.norm(x, weight, 1e3)
    keep_no_kernels()
    monkeypatch.setattr(abi.Norm, "EPSILON", abi.NUM_ARGUMENTS - 1)
    assert not torch.equal(own.norm(x, weight, 1e3), expected)
    assert torch.equal(native.Native(workers=1).norm(x, weight, 1e3), expected)
