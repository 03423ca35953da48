"""Memory that runs out while the engine works: it shrinks in its stated order, goes on, and the text stays the same."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.decode import prefill
from engine.decode.rounds import full_pass
from engine.errors import ResourceError, is_out_of_memory
from engine.kv.full import FullCache, KvShape
from engine.kv.offload import DiskStore, LayerBuffer, Placement, StagedLayer, Tier
from engine.kv.spilling import retry_with_spill, spill_more
from engine.model import loading
from engine.model.backends.program import FusedLayers
from engine.model.backends.walk import Walk
from engine.model.decoder import Decoder

CPU = torch.device("cpu")
LAYERS = 6


@pytest.fixture(scope="module")
def decoder(tiny: Callable[..., str]) -> Decoder:
    return loading.load(tiny("llama", layers=LAYERS), window=2048, device=CPU)


def some_ids(count: int) -> torch.Tensor:
    return torch.randint(6, 380, (count,), generator=torch.Generator().manual_seed(0))


def reference(decoder: Decoder, ids: torch.Tensor) -> torch.Tensor:
    cache = FullCache(decoder.kv_shape, 2048)
    prefill.run(decoder, cache, ids[:-1], segment=256, block=64)
    with torch.inference_mode():
        return full_pass(decoder, cache, len(ids) - 1, [int(ids[-1])])


def failing(monkeypatch: pytest.MonkeyPatch, fails: Callable[[int], bool]) -> list[int]:
    """Let memory run out in layers, or in all of them at once, whose block size ``fails`` says; returns the sizes that
    were tried."""
    tried: list[int] = []

    def after(real: Callable[..., torch.Tensor], hidden_at: int) -> Callable[..., torch.Tensor]:
        def layers(*arguments: Any) -> torch.Tensor:
            size = arguments[hidden_at].shape[1]
            tried.append(size)
            made = real(*arguments)
            if fails(size):
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
            return made

        return layers

    for kind in (Walk, FusedLayers):
        monkeypatch.setattr(kind, "layer", after(kind.layer, 2))
    monkeypatch.setattr(FusedLayers, "through", after(FusedLayers.through, 1))
    return tried


def test_prefill_takes_smaller_blocks(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = some_ids(300)
    expected = reference(decoder, ids)
    cache = FullCache(decoder.kv_shape, 2048)
    with monkeypatch.context() as patch:
        tried = failing(patch, lambda size: size > 40)
        prefill.run(decoder, cache, ids[:-1], segment=256, block=128)
    assert tried[:3] == [128, 64, 32]
    assert cache.length == 299
    assert cache.placement.spilled == ()
    with torch.inference_mode():
        assert torch.allclose(full_pass(decoder, cache, 299, [int(ids[-1])]), expected, atol=1e-4)


def test_then_layers_are_spilled_and_nothing_is_lost(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = some_ids(300)
    expected = reference(decoder, ids)
    cache = FullCache(decoder.kv_shape, 2048)
    prefill.run(decoder, cache, ids[:-1], segment=256, block=64)
    attempts = iter([True, False, False, True])  # the first try, and later one in the middle of the second

    with monkeypatch.context() as patch, torch.inference_mode():
        failing(patch, lambda _: next(attempts, False))
        logits = full_pass(decoder, cache, 299, [int(ids[-1])])
    assert torch.equal(logits, expected)
    assert cache.placement.count(Tier.DISK) == 4  # three at first, since two buffers are needed, then one
    assert cache.length == 299


@pytest.mark.parametrize(("dtype", "first"), [(torch.float32, 11), (torch.bfloat16, 7)])
def test_of_kv_in_8_bits_enough_layers_are_spilled_at_once(dtype: torch.dtype, first: int) -> None:
    """The two buffers hold what is computed with, and what is stored: fewer layers than they take the place of would
    free nothing."""
    shape = KvShape(14, 2, 128, dtype, CPU, quantized=True)
    cache = FullCache(shape, 2048)
    assert spill_more(cache)
    assert len(cache.placement.spilled) == first
    buffers, layer = 2 * StagedLayer(shape, 1).allocated, shape.bytes_per_token // 14
    assert (first - 1) * layer >= buffers > (first - 2) * layer
    assert spill_more(cache)
    assert len(cache.placement.spilled) == first + 1


@pytest.mark.parametrize("tier", [Tier.DISK, Tier.HOST])
def test_what_is_written_and_not_yet_counted_moves_too(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, tier: Tier
) -> None:
    """A segment goes through layer after layer before its tokens count; memory ends when the fourth layer is at it.

    The layers that were spilled then had lost this segment: read back as nothing, or, from host memory, as anything.
    """
    ids = some_ids(300)
    expected = reference(decoder, ids)
    cache = FullCache(decoder.kv_shape, 2048)
    real = cache.spill
    monkeypatch.setattr(cache, "spill", lambda layers, _: real(layers, tier))
    blocks_of_a_layer = 256 // 16
    attempts = iter([False] * (3 * blocks_of_a_layer + 5) + [True])
    with monkeypatch.context() as patch:
        failing(patch, lambda _: next(attempts, False))
        prefill.run(decoder, cache, ids[:-1], segment=256, block=16)
    assert cache.placement.count(tier) == 3
    with torch.inference_mode():
        assert torch.allclose(full_pass(decoder, cache, 299, [int(ids[-1])]), expected, atol=1e-4)


def test_the_end_is_said_and_the_tokens_are_kept(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = some_ids(100)
    cache = FullCache(decoder.kv_shape, 2048)
    prefill.run(decoder, cache, ids, segment=256, block=64)
    with monkeypatch.context() as patch, torch.inference_mode():
        failing(patch, lambda _: True)
        with pytest.raises(ResourceError, match="100 tokens, although the whole cache is on disk"):
            full_pass(decoder, cache, 100, [7])
    assert cache.length == 100
    with torch.inference_mode():
        again = full_pass(decoder, cache, 100, [7])
    assert torch.equal(again, reference(decoder, torch.cat([ids, torch.tensor([7])])))


def test_room_that_cannot_be_had_is_made(decoder: Decoder) -> None:
    cache = FullCache(decoder.kv_shape, 2048)
    calls = iter([MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ..."), None])

    def work() -> str:
        if (error := next(calls)) is not None:
            raise error
        return "done"

    assert retry_with_spill(cache, work) == "done"
    assert len(cache.placement.spilled) == 4


@pytest.mark.parametrize(
    "words",
    [
        "CUDA out of memory. Tried to allocate 2 GiB",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    ],
)
def test_every_way_to_say_it_is_understood(words: str) -> None:
    assert is_out_of_memory(RuntimeError(words))


def test_other_errors_are_not_taken_for_it(decoder: Decoder) -> None:
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))
    with pytest.raises(RuntimeError, match="shapes"):
        retry_with_spill(FullCache(decoder.kv_shape, 64), lambda: (_ for _ in ()).throw(RuntimeError("shapes")))


@pytest.mark.parametrize("fails", ["second layer", "buffers"])
def test_a_spill_that_fails_leaves_what_was_there(
    fails: str, decoder: Decoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The disk is full at the second of three layers, or memory at the buffers: the next pass computes as before."""
    ids = some_ids(300)
    expected = reference(decoder, ids)
    cache = FullCache(decoder.kv_shape, 2048, spill_folder=tmp_path)
    prefill.run(decoder, cache, ids[:-1], segment=256, block=64)
    attempts = itertools.count()
    write, make = DiskStore.write, LayerBuffer.__init__

    def full(store: DiskStore, start: int, k: torch.Tensor, v: torch.Tensor) -> None:
        if next(attempts) >= 1:
            raise ResourceError(
                "The memory of the book (KV cache) could not be written to disk (No space left on device)."
            )
        write(store, start, k, v)

    def no_memory(buffer: LayerBuffer, shape: KvShape, capacity: int) -> None:
        if capacity:
            raise MemoryError
        make(buffer, shape, capacity)

    with monkeypatch.context() as patch:
        if fails == "buffers":
            patch.setattr(LayerBuffer, "__init__", no_memory)
        else:
            patch.setattr(DiskStore, "write", full)
        failing(patch, lambda _: True)
        with pytest.raises(ResourceError), torch.inference_mode():
            full_pass(decoder, cache, 299, [int(ids[-1])])
    if fails == "second layer":
        assert cache.placement.spilled == ()
    for count in (1, 3):
        with torch.inference_mode():
            logits = full_pass(decoder, cache, 299, [int(ids[-1])] * count)
        assert torch.allclose(logits[:1], expected, atol=1e-4)


def test_a_cache_that_cannot_grow_its_buffers_is_what_it_was(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ids = some_ids(100)
    expected = reference(decoder, ids)
    cache = FullCache(decoder.kv_shape, 20_000, Placement.spread(LAYERS, 0, 0), tmp_path)
    prefill.run(decoder, cache, ids[:-1], segment=256, block=64)
    make = LayerBuffer.__init__

    def no_memory(buffer: LayerBuffer, shape: KvShape, capacity: int) -> None:
        if capacity > 4096:
            raise MemoryError
        make(buffer, shape, capacity)

    with monkeypatch.context() as patch:
        patch.setattr(LayerBuffer, "__init__", no_memory)
        with pytest.raises(ResourceError):
            retry_with_spill(cache, lambda: cache.reserve(10_000))
    with torch.inference_mode():
        assert torch.allclose(full_pass(decoder, cache, 99, [int(ids[-1])]), expected, atol=1e-4)
