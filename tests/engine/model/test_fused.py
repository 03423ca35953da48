"""Layers in our own kernels say what transformers says of them, in one call or in two for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from engine.decode import prefill
from engine.kv.full import FullCache, FullPass, PassQueries
from engine.kv.offload import Placement, Tier
from engine.kv.retrieval import QueryRecorder, RetrievalCache, RetrievalPass
from engine.kv.streaming import StreamingCache, StreamingPass
from engine.model import loading
from engine.model.backends import program
from engine.model.backends.program import FusedLayers, ProgramBackend, fuse
from engine.model.backends.walk import Walk
from engine.model.kernels import native
from engine.model.kv_shape import KvShape
from engine.model.view import InPlace
from tests.engine.small_caches import SHAPE

CPU = torch.device("cpu")
FAMILIES = ["llama", "llama-mha", "llama-yarn", "mistral", "qwen2", "qwen3", "phi3"]


def refused(model: Any) -> bool:
    return fuse(model, torch.float32) is None


@pytest.mark.parametrize("weights", ["stored", "4bit"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_logits_are_those_of_transformers(tiny: Callable[..., str], family: str, weights: str) -> None:
    if native.own() is None:
        pytest.skip("no kernels of our own on this processor")
    model = loading.load(tiny(family), window=None, device=CPU, weights=weights)
    ids = torch.randint(10, 300, (50,), generator=torch.Generator().manual_seed(1))

    def logits() -> torch.Tensor:
        cache = FullCache(model.kv_shape, model.window)
        cache.reserve(50)
        outs = []
        for start, stop in ((0, 30), (30, 50)):
            with torch.inference_mode():
                outs.append(model.forward(ids[start:stop], cache.extend(start)))
            cache.advance(stop - start)
        return torch.cat(outs)

    assert isinstance(model.backend, ProgramBackend)
    found = logits()
    model.backend = Walk(model)
    expected = logits()
    assert torch.allclose(found, expected, atol=2e-5 * float(expected.abs().max()))
    assert not torch.equal(found, expected)  # these were two ways


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("level", ["full", "retrieval"])
def test_a_pass_is_one_call_where_its_kv_is_in_place(
    tiny: Callable[..., str], level: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.own() is None:
        pytest.skip("no kernels of our own on this processor")
    model = loading.load(tiny("qwen3"), window=None, device=CPU, dtype=dtype)
    ids = torch.randint(10, 300, (400,), generator=torch.Generator().manual_seed(1))
    layers_called: list[int] = []
    by_layer = FusedLayers.layer

    def counted(self: FusedLayers, index: int, *arguments: Any) -> torch.Tensor:
        layers_called.append(index)
        return by_layer(self, index, *arguments)

    monkeypatch.setattr(FusedLayers, "layer", counted)

    def kv_and_logits() -> list[torch.Tensor]:
        full = FullCache(model.kv_shape, model.window)
        queries = QueryRecorder(full.shape.layers)
        prefill.run(model, full, ids[:300], segment=256, observer=queries)
        cache = RetrievalCache(full, budget=64, chunk_size=8, tail=128)
        cache.select_at(280, queries.queries, queries.scaling)
        layers_called.clear()
        looked = PassQueries()
        outs, at = looked.queries, 300
        for count in (1, 5, 1, 20, 64):
            full.reserve(at + count)
            view = full.extend(at, looked) if level == "full" else cache.extend()
            with torch.inference_mode():
                outs.append(model.forward(ids[at : at + count], view))
            (full if level == "full" else cache).advance(count)
            at += count
        held = range(full.shape.layers)
        if level == "full":
            return [
                *outs,
                *(full.keys(layer, 300, at) for layer in held),
                *(full.values(layer, 300, at) for layer in held),
            ]
        return [*outs, *(part[:, : cache.held] for layer in held for part in cache._parts(layer))]

    found = kv_and_logits()
    assert not layers_called
    for view in (FullPass, RetrievalPass):
        monkeypatch.setattr(view, "in_place", lambda self, count: None)
    expected = kv_and_logits()
    assert layers_called
    assert all(torch.equal(mine, others) for mine, others in zip(found, expected, strict=True))


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3"])
def test_a_draft_step_is_one_call_too_and_keeps_keys_as_they_were_before_rope(
    tiny: Callable[..., str], family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if native.own() is None:
        pytest.skip("no kernels of our own on this processor")
    model = loading.load(tiny(family), window=None, device=CPU)
    ids = torch.randint(10, 300, (90,), generator=torch.Generator().manual_seed(1))

    def logits_and_kv() -> tuple[torch.Tensor, list[torch.Tensor]]:
        cache, outs = StreamingCache(model.kv_shape, 4, 32, 16, model.rotate), []
        with torch.inference_mode():
            for part in ids.split([16, 1, 1, 14, 16, 1, 1, 14, 16, 1, 9]):  # twice as many as it holds
                outs.append(model.forward(part, cache.extend(len(part)), rows=1))
                cache.advance(len(part))
                cache.settle()
        return torch.cat(outs), [x[:, : cache.held] for x in (*cache._raw.values(), *cache._rotated.values())]

    found, kv = logits_and_kv()
    monkeypatch.setattr(StreamingPass, "in_place", lambda self, count: None)
    expected, others = logits_and_kv()
    assert torch.allclose(found, expected, atol=2e-5 * float(expected.abs().max()))
    assert all(torch.allclose(mine, other, atol=1e-5) for mine, other in zip(kv, others, strict=True))


def test_what_is_not_in_place_is_gone_through_layer_by_layer() -> None:
    def full(shape: KvShape = SHAPE, placement: Placement | None = None) -> FullCache:
        cache = FullCache(shape, 5000, placement)
        cache.reserve(10)
        return cache

    def place(cache: FullCache, start: int = 4) -> InPlace | None:
        return cache.extend(start).in_place(6)

    def addresses(found: InPlace) -> Any:
        return program._KvMemory.of(found.blocks).addresses.tolist()

    resident = full()
    first = place(resident)
    assert first is not None
    assert addresses(first)[1] == [resident.values(layer, 0, 1).data_ptr() for layer in range(SHAPE.layers)]
    assert place(resident, resident.capacity - 5) is None, "there is no room"
    resident.reserve(4500)
    grown = place(resident)
    assert grown is not None
    assert addresses(grown)[0] == [resident.keys(layer, 0, 1).data_ptr() for layer in range(SHAPE.layers)]
    assert place(full(SHAPE.stored_as("8bit"))) is None
    assert place(full(placement=Placement.spread(SHAPE.layers, SHAPE.layers - 1, 0))) is None
    resident.spill([0], Tier.DISK)
    assert place(resident) is None


def test_numbers_in_half_precision_are_nearer_to_the_truth(tiny: Callable[..., str]) -> None:
    """Since they are rounded where they leave a layer, and not at every step within."""
    if native.own() is None:
        pytest.skip("no kernels of our own on this processor")
    name, ids = tiny("qwen3"), torch.arange(20, 60)

    def logits(dtype: str, is_fused: bool) -> torch.Tensor:
        model = loading.load(name, window=None, device=CPU, dtype=dtype)
        if not is_fused:
            model.backend = Walk(model)
        cache = FullCache(model.kv_shape, model.window)
        cache.reserve(40)
        with torch.inference_mode():
            return model.forward(ids, cache.extend(0))

    truth = logits("float32", is_fused=False)
    errors = [(logits("bfloat16", is_fused) - truth).abs().mean() for is_fused in (True, False)]
    assert errors[0] < errors[1]


def test_a_layer_with_a_part_that_is_not_known_goes_through_transformers(tiny: Callable[..., str]) -> None:
    model = loading.load(tiny("llama"), window=None, device=CPU).model
    assert not refused(model)
    model.model.layers[1].mlp_norm = nn.LayerNorm(64)
    assert refused(model)
    del model.model.layers[1].mlp_norm
    model.config.hidden_act = "gelu"
    assert refused(model)


def test_a_model_that_is_not_packed_goes_through_transformers(tiny: Callable[..., str]) -> None:
    assert type(loading.load(tiny("llama"), window=None, device=CPU, packed=False).backend) is Walk
