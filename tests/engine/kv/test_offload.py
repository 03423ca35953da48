"""KV over the tiers: the same bits and answers wherever it lives, and each spilled byte moves once per pass.

Whole, and rounded to 8 bits: then with respect to what is rounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from engine import devices
from engine.decode import prefill
from engine.errors import ResourceError
from engine.kv.full import FullCache, KvShape
from engine.kv.offload import Placement, Tier
from engine.kv.retrieval import QueryRecorder, RetrievalCache
from engine.model import loading
from engine.model.decoder import Decoder

CPU = torch.device("cpu")
LAYERS = 5
grown = prefill.segment_size
PLACEMENTS = {
    "disk": Placement.spread(LAYERS, 0, 0),
    "mixed": Placement.spread(LAYERS, 2, 1),
    "one spilled": Placement.spread(LAYERS, 4, 0),
    "two spilled": Placement.spread(LAYERS, 3, 1),
    "host": Placement.spread(LAYERS, 0, LAYERS),
}


@pytest.fixture(scope="module")
def decoder(tiny: Callable[..., str]) -> Decoder:
    return loading.load(tiny("llama", layers=LAYERS), window=4096, device=CPU)


@pytest.fixture(params=["model", "8bit"])
def shape(request: pytest.FixtureRequest, decoder: Decoder) -> KvShape:
    return decoder.kv_shape.stored_as(request.param)


@pytest.fixture(params=PLACEMENTS)
def placed(request: pytest.FixtureRequest, shape: KvShape, tmp_path: Path) -> Iterator[FullCache]:
    cache = FullCache(shape, 4096, PLACEMENTS[request.param], tmp_path)
    yield cache
    cache.crop(0)
    cache.place(Placement.resident(LAYERS))


def some_ids(count: int) -> torch.Tensor:
    return torch.randint(6, 380, (count,), generator=torch.Generator().manual_seed(0))


def step(decoder: Decoder, cache: FullCache, ids: torch.Tensor) -> torch.Tensor:
    n = ids.shape[0]
    with torch.inference_mode():
        logits = decoder.forward(ids, cache.extend(cache.length))
    cache.advance(n)
    return logits


def run(decoder: Decoder, cache: FullCache) -> torch.Tensor:
    """Read, decode a few passes of several sizes with crops between them, as verification does."""
    ids = some_ids(700)
    prefill.run(decoder, cache, ids[:600], segment=256, block=100)
    rows = [step(decoder, cache, ids[600:601]), step(decoder, cache, ids[601:612])]
    cache.crop(605)
    rows.append(step(decoder, cache, ids[605:612].flip(0)))
    cache.crop(300)
    cache.reserve(4000)  # grows while layers are spilled
    rows += [step(decoder, cache, ids[300:340]), step(decoder, cache, ids[340:341])]
    return torch.cat(rows)


def test_every_placement_computes_the_same_bits(decoder: Decoder, placed: FullCache) -> None:
    resident = FullCache(placed.shape, 4096)
    assert torch.equal(run(decoder, placed), run(decoder, resident))
    for layer in range(LAYERS):
        for one, other in zip(placed.export(layer, 3, 341), resident.export(layer, 3, 341), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(placed.keys(layer, 7, 50), resident.keys(layer, 7, 50))
        assert torch.equal(placed.values(layer, 7, 50), resident.values(layer, 7, 50))


def test_each_spilled_byte_moves_once_per_pass(decoder: Decoder, placed: FullCache) -> None:
    ids = some_ids(620)
    prefill.run(decoder, placed, ids[:600], segment=1024, block=100)
    per_layer = placed.shape.bytes_per_token // LAYERS
    assert placed.moved_bytes <= 600 * per_layer  # one segment: KV goes out, and only the first layer is fetched ahead
    spilled = len(placed.placement.spilled)
    step(decoder, placed, ids[600:601])
    step(decoder, placed, ids[601:602])
    for n in (1, 8, 1):
        before, length = placed.moved_bytes, placed.length
        step(decoder, placed, ids[placed.length : placed.length + n])
        moved = placed.moved_bytes - before
        if spilled <= 2:
            assert moved == 0  # both buffers keep their layers
        else:
            # Everything once, and what the pass before has added to the layer that was fetched ahead of it.
            assert (spilled - 2) * length * per_layer <= moved <= (spilled * length + 8) * per_layer


def test_bytes_by_tier(decoder: Decoder, placed: FullCache) -> None:
    prefill.run(decoder, placed, some_ids(100), segment=256, block=100)
    counts, stored = placed.placement, placed.kv_bytes()
    per_layer = 100 * placed.shape.bytes_per_token // LAYERS
    assert stored.disk == counts.count(Tier.DISK) * per_layer
    assert stored.host == (LAYERS - counts.count(Tier.DISK)) * per_layer  # no GPU: host memory is what computes
    assert stored.device == 0


def test_retrieval_takes_the_same_chunks(decoder: Decoder, placed: FullCache) -> None:
    """Chosen while no layer is at hand, as at the start of an answer."""
    resident = FullCache(placed.shape, 4096)
    ids = some_ids(603)
    chosen = []
    for cache in (placed, resident):
        retrieval, tap = RetrievalCache(cache, 64, 4, 64), QueryRecorder(LAYERS, 8)
        cache.when_at_hand(retrieval.index_layer)
        prefill.run(decoder, cache, ids, segment=300, block=100, observer=tap)
        moved = cache.moved_bytes
        with torch.inference_mode():
            retrieval.select_at(590, tap.queries, tap.scaling)
        assert cache.moved_bytes == moved
        chosen.append(retrieval)
    for layer in range(LAYERS):
        assert torch.equal(chosen[0]._slots[layer], chosen[1]._slots[layer])  # type: ignore[arg-type]
        for one, other in zip(chosen[0]._parts(layer), chosen[1]._parts(layer), strict=True):
            assert torch.equal(one[:, : chosen[0].held], other[:, : chosen[1].held])


def test_a_layer_is_spilled_with_what_it_holds(decoder: Decoder, shape: KvShape, tmp_path: Path) -> None:
    resident, cache = FullCache(shape, 4096), FullCache(shape, 4096, spill_folder=tmp_path)
    ids = some_ids(300)
    for each in (resident, cache):
        prefill.run(decoder, each, ids, segment=256, block=100)
    for layers, tier in (((1, 0), Tier.DISK), ((4,), Tier.HOST)):
        cache.spill(layers, tier)
        more = some_ids(310)[300:]
        assert torch.equal(step(decoder, cache, more), step(decoder, resident, more))
        resident.crop(300)
        cache.crop(300)
    assert [tier.value for tier in cache.placement.tiers] == ["disk", "disk", "device", "device", "host"]
    with pytest.raises(ValueError, match="spilled"):
        cache.spill([1], Tier.HOST)


def test_reading_brings_each_byte_back_about_twice(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where moving costs time, segments grow with the context: fewer of them bring back what was read before."""
    ids, moved = some_ids(3000), []
    for moves in (False, True):
        monkeypatch.setattr(
            prefill, "segment_size", lambda size, start, *, moves, grow=moves: grown(size, start, moves=grow)
        )
        cache = FullCache(decoder.kv_shape, 4096, Placement.spread(LAYERS, 0, LAYERS))
        prefill.run(decoder, cache, ids, segment=128, block=256)
        moved.append(cache.moved_bytes / cache.kv_bytes().total)
    assert moved[0] > 10  # 24 segments, each of which brings back all before it
    assert moved[1] < 3
    assert [grown(4096, start, moves=True) for start in (0, 8192, 100_000)] == [4096, 4096, 50_000]


def test_spilled_layers_lie_between_resident_ones() -> None:
    tiers = "".join(tier.value[1] for tier in Placement.spread(8, 4, 2).tiers)  # e: device, o: host, i: disk
    assert sorted(tiers) == sorted("eeeeooii")
    assert tiers[0::2] == "eeee" or tiers[1::2] == "eeee"
    assert Placement.resident(3).spilled == ()
    assert Placement.spread(3, 0, 0).spilled == (0, 1, 2)


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shape = KvShape(1, 2, 8, torch.float32, CPU)
    with pytest.raises(ResourceError, match="--spill-folder"):
        FullCache(shape, 100, Placement.spread(1, 0, 0), Path("/dev/full"))


def test_memory_is_pinned_in_place_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a runtime that writes down what it is asked for: there is no GPU to pin for."""
    calls: list[tuple[str, int, int]] = []

    class Runtime:
        refuses = False

        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:
            calls.append(("pin", address, size))
            return 2 if self.refuses else 0

        def cudaHostUnregister(self, address: int) -> int:
            calls.append(("let go", address, 0))
            return 0

    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    rows = torch.empty(1000, 2, 4, 8)
    address = rows.data_ptr()
    assert devices.pin(rows, torch.device("cpu"))
    del rows
    assert calls == [("pin", address, 1000 * 2 * 4 * 8 * 4), ("let go", address, 0)]
    runtime.refuses = True
    assert not devices.pin(torch.empty(10), torch.device("cpu"))
    assert len(calls) == 3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_every_placement_computes_the_same_on_a_gpu(tiny: Callable[..., str]) -> None:
    decoder = loading.load(tiny("llama", layers=LAYERS), window=4096, device=torch.device("cuda"), dtype="float32")
    ids = some_ids(700).cuda()

    def computed(where: Placement) -> torch.Tensor:
        cache = FullCache(decoder.kv_shape, 4096, where)
        prefill.run(decoder, cache, ids[:600], segment=256, block=100)
        rows = [step(decoder, cache, ids[600:601]), step(decoder, cache, ids[601:612])]
        cache.crop(605)
        return torch.cat([*rows, step(decoder, cache, ids[605:612].flip(0))])

    resident = computed(Placement.resident(LAYERS))
    for name, placement in PLACEMENTS.items():
        assert torch.allclose(resident, computed(placement), atol=1e-5), name
