"""The index of mean keys and the scores from it, against their definition."""

from __future__ import annotations

import pytest
import torch

from engine.cache import selection
from engine.cache.full import FullCache
from engine.cache.retrieval import RetrievalCache
from engine.cache.selection import KeyIndex, scores, spread_forward
from engine.cache.shape import KvShape

SHAPE = KvShape(layers=1, kv_heads=2, head_dim=16, dtype=torch.float32, device=torch.device("cpu"))


def random(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def holding(k: torch.Tensor, limit: int) -> FullCache:
    """A cache of one layer with keys k (1, kv_heads, n, head_dim)."""
    cache = FullCache(SHAPE, limit)
    cache.reserve(limit)
    cache.extend(0).attend(0, torch.zeros_like(k), k, k, 1.0)
    cache.advance(k.shape[2])
    return cache


def test_an_index_that_grows_and_forgets_is_the_one_made_at_once() -> None:
    keys = random(2, 4 * 2_000, 16)
    index = KeyIndex(SHAPE)
    count = 0
    for step, more in enumerate((3, 700, 1, 500, 40, 600)):
        index.extend(keys[:, 4 * count : 4 * (count + more)], 4)
        count += more
        if step == 3:
            count -= 123
            index.forget_after(count)
    assert index.count == count
    index.forget_after(count + 50)  # forgets nothing
    whole = keys[:, : 4 * count].unflatten(1, (count, 4)).mean(dim=2)
    assert torch.equal(index.means(count), whole)


@pytest.mark.parametrize("heads", [2, 6], ids=["one query head", "a group of three"])
def test_scores_are_the_mean_attention_of_the_queries_that_are_asked(heads: int) -> None:
    means, q = random(2, 50, 16), random(1, heads, 11, 16, seed=1)
    asked = q[0][:, [10, 7, 4, 0]].reshape(2, -1, 16)
    expected = torch.softmax(asked @ means.transpose(1, 2) * 0.3, dim=-1).mean(dim=1)
    torch.testing.assert_close(scores(means, q, 0.3, 4), expected)
    whole = torch.softmax(q[0].reshape(2, -1, 16) @ means.transpose(1, 2) * 0.3, dim=-1).mean(dim=1)
    torch.testing.assert_close(scores(means, q, 0.3, 11), whole)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16])
def test_the_newest_query_is_always_asked(count: int) -> None:
    q = torch.arange(float(count)).reshape(1, 1, count, 1)
    asked = selection._spaced(q, 4).flatten().tolist()
    assert count - 1 in asked
    assert len(set(asked)) == len(asked) == min(4, count)


@pytest.mark.parametrize("chunk", [1, 2, 8, 64])
def test_a_score_reaches_forward_as_far_in_tokens_whatever_the_chunks(chunk: int) -> None:
    mass = torch.zeros(1, 100)
    mass[0, 10] = 1.0
    reach = spread_forward(mass, chunk)[0]
    steps = max(1, 32 // chunk)
    assert reach.nonzero().flatten().tolist() == list(range(10, 11 + steps))
    if chunk <= 8:
        assert float(reach[10 + 8 // chunk]) == pytest.approx(0.7)


def test_fine_chunks_find_a_sharp_key_that_coarse_ones_lose() -> None:
    """One key of 4,096 fits the query and its neighbours speak against it: as in a text that is copied."""
    place = 1_234
    k = random(1, 2, 4_200, 16, seed=2)
    direction = torch.nn.functional.normalize(random(16, seed=3), dim=0)
    k[0, :, place] = 12 * direction
    k[0, :, place + 1 : place + 6] = -3 * direction
    cache = holding(k, 5_000)
    held = {}
    for chunk in (2, 8):
        retrieval = RetrievalCache(cache, 64, chunk, 256)
        retrieval.rebase(4_096, [direction.expand(1, 2, 1, 16)], 1.0)
        slots = retrieval._slots[0]
        assert slots is not None
        held[chunk] = bool((slots == place // chunk).any(dim=1).all())
    assert held == {2: True, 8: False}


@pytest.mark.parametrize("chunk", [1, 2, 4, 8, 16])
def test_the_sinks_are_held_whatever_the_chunks(chunk: int) -> None:
    retrieval = RetrievalCache(holding(random(1, 2, 900, 16, seed=4), 1_000), 64, chunk, 256)
    retrieval.rebase(800, [random(1, 2, 3, 16, seed=5)], 1.0)
    slots, mass = retrieval._slots[0], retrieval.chunk_scores()
    assert slots is not None
    assert mass is not None
    sinks = max(1, 8 // chunk)
    for head in slots.tolist():
        assert set(range(sinks)) <= set(head)
    assert float(mass[:sinks].sum()) == 0.0
