"""Full, retrieval and streaming cache: crop and regrow = never grown, reset = new, the planted chunk is selected."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from engine.errors import ContextTooSmall
from engine.kv.full import FullCache, KvShape
from engine.kv.retrieval import ChunkScoring, QueryRecorder, RetrievalCache, SelectionRefresh
from engine.kv.selection import exchanged
from engine.kv.streaming import StreamingCache
from engine.model import loading
from engine.model.kernels import cpu

CPU = torch.device("cpu")
SHAPE = KvShape(layers=2, kv_heads=2, head_dim=8, dtype=torch.float32, device=CPU)


def random_kv(n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(1, 2, n, 8, generator=g), torch.randn(1, 2, n, 8, generator=g)


def fill(cache: FullCache, length: int, seed: int = 0) -> None:
    cache.reserve(cache.length + length)
    for layer in range(SHAPE.layers):
        cache.write(layer, cache.length, *random_kv(length, seed + layer))
    cache.advance(length)


def test_full_cache_crop_and_regrow_equals_never_grown() -> None:
    grown, straight = FullCache(SHAPE, 10_000), FullCache(SHAPE, 10_000)
    fill(grown, 50)
    fill(straight, 50)
    fill(grown, 4200, seed=9)  # forces the buffers to grow
    grown.crop(50)
    fill(grown, 30, seed=5)
    fill(straight, 30, seed=5)
    assert grown.length == straight.length == 80
    for layer in range(SHAPE.layers):
        assert torch.equal(grown.keys(layer, 0, 80), straight.keys(layer, 0, 80))
        assert torch.equal(grown.values(layer, 0, 80), straight.values(layer, 0, 80))


def test_full_cache_refuses_more_than_the_window() -> None:
    cache = FullCache(SHAPE, 100)
    cache.reserve(100)
    with pytest.raises(ContextTooSmall, match=r"100 tokens and 101"):
        cache.reserve(101)
    with pytest.raises(ValueError, match="crop"):
        cache.crop(1)


def test_kv_bytes_count_what_is_stored() -> None:
    cache = FullCache(SHAPE, 100)
    fill(cache, 10)
    assert cache.kv_bytes().host == 10 * 2 * 2 * 2 * 8 * 4
    assert cache.kv_bytes().device == cache.kv_bytes().disk == 0


def planted(length: int, chunk: int, at: int) -> tuple[FullCache, torch.Tensor]:
    """A cache of noise in which one chunk's keys point along a direction, and queries along it."""
    cache = FullCache(SHAPE, length)
    fill(cache, length)
    direction = torch.zeros(8)
    direction[3] = 6.0
    for layer in range(SHAPE.layers):
        cache.keys(layer, at * chunk, (at + 1) * chunk)[:] = direction
    return cache, direction.expand(1, 4, 3, 8)


def test_planted_chunk_is_selected() -> None:
    chunk, at = 8, 77
    cache, queries = planted(1600, chunk, at)
    retrieval = RetrievalCache(cache, budget=64, chunk_size=chunk, tail=256)
    retrieval.select_at(1500, [queries] * SHAPE.layers, 1.0)
    assert retrieval.boundary == 1496
    for layer in range(SHAPE.layers):
        slots = retrieval._slots[layer]
        assert slots is not None
        assert slots.shape == (2, 8)
        assert (slots == at).any(dim=1).all()
        assert (slots == 0).any(dim=1).all()  # the sink
    scores = retrieval.chunk_scores()
    assert scores is not None
    assert int(scores.argmax()) == at
    assert float(scores[0]) == 0.0


def test_a_selection_that_waits_is_the_one_that_is_made_at_once() -> None:
    """Scores are there at once; chunks are copied when somebody asks, as the context is cut then."""
    cache, queries = planted(1600, 8, 77)
    cache.crop(1500)
    waits, made = (RetrievalCache(cache, budget=64, chunk_size=8, tail=256) for _ in range(2))
    waits.aim(64, [queries] * SHAPE.layers, 1.0)
    scores = waits.chunk_scores()
    assert scores is not None
    assert int(scores.argmax()) == 77
    assert (waits.is_selected, waits.boundary, waits.length) == (False, 1432, 1500)
    assert waits._slots == [None] * SHAPE.layers, "no chunk has been chosen"
    fill(cache, 40)
    waits.ensure_selected()
    made.select_at(1540 - 64, [queries] * SHAPE.layers, 1.0)
    assert (waits.is_selected, waits.boundary, waits.length, waits.num_exact) == (True, 1472, 1540, 1540)
    for layer in range(SHAPE.layers):
        for mine, other in zip(waits._parts(layer), made._parts(layer), strict=True):
            assert torch.equal(mine[:, : waits.held], other[:, : made.held])
    waits.aim(64, [queries] * SHAPE.layers, 1.0)
    waits.reset()
    assert waits.is_selected, "another book chooses nothing by this one's question"


@pytest.mark.parametrize("copied", ["by our kernel", "what changed", "all, as on a GPU"])
def test_retrieval_holds_what_it_says(copied: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every slot holds its chunk's KV, and the tail holds the newest tokens, after a refresh as after the first."""
    done: list[bool] = []
    if copied == "by our kernel":
        kernel = cpu.copy_chunks
        monkeypatch.setattr(cpu, "copy_chunks", lambda *given: done.append(kernel(*given)) or done[-1])
    else:
        monkeypatch.setattr(cpu, "copy_chunks", lambda *_: False)
        monkeypatch.setattr(RetrievalCache, "only_changes", lambda *_: copied == "what changed")
    chunk = 4
    cache = FullCache(SHAPE, 1000)
    fill(cache, 400)
    retrieval = RetrievalCache(cache, budget=40, chunk_size=chunk, tail=64)
    g = torch.Generator().manual_seed(3)
    retrieval.select_at(380, [torch.randn(1, 4, 2, 8, generator=g)] * 2, 1.0)
    for refresh in range(6):
        for layer in range(2):
            slots, keys = retrieval._slots[layer], retrieval._keys[layer]
            assert slots is not None
            for head in range(2):
                assert len(set(slots[head].tolist())) == 10
                for place, index in enumerate(slots[head].tolist()):
                    held = keys[head, place * chunk : (place + 1) * chunk]
                    assert torch.equal(held, cache.keys(layer, index * chunk, (index + 1) * chunk)[head])
            assert torch.equal(keys[:, 40:60], cache.keys(layer, 380, 400))
        observer = SelectionRefresh(retrieval)
        for layer in range(2):
            observer.observe(layer, torch.randn(1, 4, 5, 8, generator=g), 1.0 + refresh)
        observer.finish()
    assert all(done)
    assert len(done) == (7 if copied == "by our kernel" else 0), "all layers at once"


@pytest.mark.parametrize("seed", range(6))
def test_an_exchange_brings_what_is_chosen_and_moves_nothing_else(seed: int) -> None:
    rng = random.Random(seed)
    before, chosen = (torch.tensor([rng.sample(range(30), 12) for _ in range(3)]) for _ in range(2))
    after = exchanged(before, chosen, 30)
    for was, wanted, now in zip(before.tolist(), chosen.tolist(), after.tolist(), strict=True):
        assert set(now) == set(wanted)
        assert all(now[place] == chunk for place, chunk in enumerate(was) if chunk in wanted)


def test_the_budget_grows_with_the_context_and_shrinks_with_it() -> None:
    """A share of a long context; of a short one no less than the budget, and of the longest no more than there is room
    for."""
    cache = FullCache(SHAPE, 1000)
    retrieval = RetrievalCache(cache, budget=40, chunk_size=4, tail=64, share=8, most=96)
    assert retrieval._keys[0].shape[1] == 96 + 64
    g = torch.Generator().manual_seed(5)
    for length, expected in ((100, 40), (520, 64), (900, 96), (520, 64), (24, 24)):
        cache.crop(min(cache.length, length))
        retrieval.forget_after(cache.length)
        if length > cache.length:
            fill(cache, length - cache.length)
        retrieval.select_at(length - 4, [torch.randn(1, 4, 2, 8, generator=g)] * 2, 1.0)
        assert retrieval.selected == min(expected, retrieval.boundary)
        assert retrieval.held == retrieval.selected + length - retrieval.boundary
        for layer in range(2):
            slots, keys = retrieval._slots[layer], retrieval._keys[layer]
            assert slots is not None
            assert slots.shape[1] * 4 == retrieval.selected
            for head in range(2):
                assert len(set(slots[head].tolist())) == slots.shape[1]
                for place, index in enumerate(slots[head].tolist()):
                    held = keys[head, place * 4 : (place + 1) * 4]
                    assert torch.equal(held, cache.keys(layer, index * 4, (index + 1) * 4)[head])
            newest = cache.keys(layer, retrieval.boundary, length)
            assert torch.equal(keys[:, retrieval.selected : retrieval.held], newest)


@pytest.mark.parametrize(("layers", "scored"), [(2, [0, 1]), (8, [*range(8)]), (30, [*range(0, 30, 4)])])
def test_what_is_only_shown_is_scored_in_a_few_layers(layers: int, scored: list[int]) -> None:
    cache = FullCache(replace(SHAPE, layers=layers), 100)
    retrieval = RetrievalCache(cache, budget=8, chunk_size=4, tail=64)
    seen: list[int] = []
    retrieval.score = lambda queries: seen.extend(queries)  # type: ignore[method-assign]
    scoring = ChunkScoring(retrieval)
    for layer in range(layers):
        scoring.observe(layer, torch.randn(1, 4, 1, 8), 1.0)
    scoring.finish()
    assert seen == scored


def test_room_for_a_share_is_bounded_by_the_window() -> None:
    cache = FullCache(SHAPE, 1000)
    assert RetrievalCache(cache, 40, 4, 64, share=8, most=4096)._keys[0].shape[1] == 1000 // 8 // 4 * 4 + 64
    assert RetrievalCache(cache, 40, 4, 64, share=0, most=4096)._keys[0].shape[1] == 40 + 64


def test_small_context_is_held_whole() -> None:
    cache = FullCache(SHAPE, 1000)
    fill(cache, 50)
    retrieval = RetrievalCache(cache, budget=512, chunk_size=8, tail=64)
    retrieval.select_at(40, [torch.zeros(1, 4, 1, 8)] * 2, 1.0)
    assert retrieval.held == 50
    assert torch.equal(retrieval._keys[0][:, :50], cache.keys(0, 0, 50))
    assert retrieval.free_slots() == 64 - 10


def test_retrieval_reset_equals_new() -> None:
    cache, queries = planted(800, 8, 33)
    used = RetrievalCache(cache, 64, 8, 128)
    used.select_at(700, [queries * 0.5] * 2, 1.0)
    used.reset()
    new = RetrievalCache(cache, 64, 8, 128)
    for retrieval in (used, new):
        retrieval.select_at(780, [queries] * 2, 1.0)
    for layer in range(2):
        assert torch.equal(used._slots[layer], new._slots[layer])  # type: ignore[arg-type]
        assert torch.equal(used._keys[layer][:, : used.held], new._keys[layer][:, : new.held])


def test_query_tap_keeps_the_newest_over_passes() -> None:
    tap = QueryRecorder(layers=1, keep=4)
    q = torch.arange(7.0).reshape(1, 1, 7, 1)
    for piece in (q[:, :, :3], q[:, :, 3:5], q[:, :, 5:6], q[:, :, 6:]):
        tap.observe(0, piece, 1.0)
    assert tap.queries[0].flatten().tolist() == [3.0, 4.0, 5.0, 6.0]


def identity(layer: int, x: torch.Tensor, positions: torch.Tensor, queries: int) -> torch.Tensor:
    """A stand-in for RoPE that shows positions: adds the slot to every component."""
    return x + positions.to(x.dtype)[:, None]


class TokenList:
    """What a streaming cache must hold, as a list of tokens: the slow, obvious reference."""

    def __init__(self, sinks: int, window: int, slack: int) -> None:
        self.sinks, self.window, self.slack = sinks, window, slack
        self.tokens: list[float] = []
        self.dropped = 0

    def held(self) -> list[float]:
        return self.tokens[: self.sinks] + self.tokens[self.sinks + self.dropped :]

    def settle(self) -> None:
        over = max(0, len(self.tokens) - self.sinks - self.window) // self.slack * self.slack
        self.dropped = max(self.dropped, over)


def push(cache: StreamingCache, reference: TokenList, count: int, value: float) -> None:
    view = cache.extend(count)
    for layer in range(SHAPE.layers):
        k = torch.arange(count).float().add(value).reshape(1, 1, count, 1).expand(1, 2, count, 8)
        view.attend(layer, torch.zeros(1, 4, count, 8), k, k + 0.5, 1.0)
    cache.advance(count)
    reference.tokens += [value + i for i in range(count)]


@pytest.mark.parametrize("seed", range(8))
def test_streaming_cache_against_a_list_of_tokens(seed: int) -> None:
    """Random growth, crops and evictions: the same tokens, unrotated and rotated by slot, as a plain list."""
    rng = random.Random(seed)
    cache = StreamingCache(SHAPE, num_sink_tokens=2, window_size=10, slack=8, rotate=identity)
    reference = TokenList(2, 10, 8)
    for step in range(60):
        push(cache, reference, rng.randint(1, 8), 100.0 * step)
        keep = rng.randint(cache._floor, cache.length)
        cache.crop(keep)
        del reference.tokens[keep:]
        cache.settle()
        reference.settle()
        expected = reference.held()
        assert cache.held == len(expected)
        raw = cache._raw[1][0, : cache.held, 0]
        assert raw.tolist() == expected
        assert cache._values[0][1, : cache.held, 3].tolist() == [x + 0.5 for x in expected]
        slots = torch.arange(cache.held)
        assert torch.equal(cache._rotated[1][0, : cache.held, 0], raw + slots)


def test_streaming_cache_refuses_what_it_cannot_undo() -> None:
    cache, reference = StreamingCache(SHAPE, 2, 10, 8, identity), TokenList(2, 10, 8)
    for start in range(0, 32, 8):
        push(cache, reference, 8, float(start))
        cache.settle()
    with pytest.raises(ValueError, match="crop"):
        cache.crop(31)
    cache.reset()
    assert cache.held == cache.length == 0


def test_streaming_keys_unrotated_equal_rotated_attention(tiny: Callable[..., str]) -> None:
    """While nothing is evicted, a draft on the streaming cache computes what the model itself computes."""
    decoder = loading.load(tiny("llama"), window=256, device=CPU)
    ids = torch.randint(6, 380, (60,), generator=torch.Generator().manual_seed(0))
    cache = StreamingCache(decoder.kv_shape, 4, 100, 64, decoder.rotate)
    with torch.inference_mode():
        rows = []
        for piece in (ids[:40], ids[40:41], ids[41:]):
            n = piece.shape[0]
            rows.append(decoder.forward(piece, cache.extend(n)))
            cache.advance(n)
        full = FullCache(decoder.kv_shape, 256)
        full.reserve(60)
        expected = decoder.forward(ids, full.extend(0))
    assert torch.allclose(torch.cat(rows), expected, atol=1e-4)
