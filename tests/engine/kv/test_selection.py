"""The index of mean keys and the scores from it, against their definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.document import Document
from engine.events import AnswerDone
from engine.kv.full import FullCache
from engine.kv.retrieval import RetrievalCache
from engine.kv.selection import SCORED_QUERIES, KeyIndex, MeanKeyAttention, newest_spaced, spread_forward
from engine.model.kernels import native
from engine.model.kv_shape import KvShape
from engine.prompt import Question
from engine.session import Session

SHAPE = KvShape(layers=1, kv_heads=2, head_dim=16, dtype=torch.float32, device=torch.device("cpu"))


def scores(index: KeyIndex, count: int, q: torch.Tensor, scaling: float, most: int = 4) -> torch.Tensor:
    """As a cache asks its policy: within the query budget."""
    (found,) = MeanKeyAttention().score(newest_spaced(q, most) * scaling, [index], count)
    return found


def random(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def holding(k: torch.Tensor, limit: int) -> FullCache:
    """A cache of one layer with keys k (1, kv_heads, n, head_dim)."""
    cache = FullCache(SHAPE, limit)
    cache.reserve(limit)
    cache.extend(0).attend(0, torch.zeros_like(k), k, k, 1.0)
    cache.advance(k.shape[2])
    return cache


@pytest.fixture(params=["our kernels", "no kernels"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that our kernels multiply, and one on a processor that cannot compile them."""
    if request.param == "no kernels":
        monkeypatch.setattr(native, "own", lambda: None)


def index_of(means: torch.Tensor) -> KeyIndex:
    """An index of these mean keys (kv_heads, chunks, head_dim)."""
    index = KeyIndex(replace(SHAPE, head_dim=means.shape[2]))
    index.extend(means, 1)
    return index


@pytest.mark.usefixtures("kernels")
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
    means = keys[:, : 4 * count].unflatten(1, (count, 4)).mean(dim=2)
    asked = random(2, 3, 16, seed=9)
    found = index.products(asked, count)
    assert torch.equal(found, index_of(means).products(asked, count))
    torch.testing.assert_close(found[:, :, :701], index.products(asked, 701))
    off = (found.float() - asked @ means.transpose(1, 2)).abs().amax(dim=2) / asked.norm(dim=2)
    assert float(off.max()) < 0.02


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("width", [8, 16, 40, 64, 80, 96, 128])
def test_keys_of_every_width_are_asked(width: int) -> None:
    means, asked = random(2, 1_001, width), random(2, 5, width, seed=1)
    off = (index_of(means).products(asked, 997).float() - asked @ means[:, :997].transpose(1, 2)).abs().amax(dim=2)
    assert float((off / asked.norm(dim=2)).max()) < 0.04


@pytest.mark.parametrize("rows", [1, 24, 200])
def test_an_index_answers_any_number_of_queries(rows: int) -> None:
    means, asked = random(2, 333, 64), random(2, rows, 64, seed=1)
    off = (index_of(means).products(asked, 333).float() - asked @ means.transpose(1, 2)).abs().amax(dim=2)
    assert float((off / asked.norm(dim=2)).max()) < 0.04


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_mean_keys_in_8_bits_choose_what_whole_ones_choose(dtype: torch.dtype) -> None:
    """Keys with one channel that is far larger than the others, as trained models have them."""
    means = random(2, 5_003, 16, seed=6)
    means[:, :, 3] += 8.0
    q = random(1, 2, 4, 16, seed=7)
    index = KeyIndex(replace(SHAPE, dtype=dtype))
    index.extend(means.to(dtype), 1)
    chosen = scores(index, 5_003, q.to(dtype), 0.25).topk(500).indices
    best = torch.softmax(q[0] @ means.transpose(1, 2) * 0.25, dim=-1).mean(dim=1).topk(500).indices
    for mine, whole in zip(chosen.tolist(), best.tolist(), strict=True):
        assert len(set(mine) & set(whole)) >= 470


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("heads", [2, 6], ids=["one query head", "a group of three"])
def test_scores_are_the_mean_attention_of_the_queries_that_are_asked(heads: int) -> None:
    means, q = random(2, 50, 16), random(1, heads, 11, 16, seed=1)
    asked = q[0][:, [10, 7, 4, 0]].reshape(2, -1, 16)
    expected = torch.softmax(asked @ means.transpose(1, 2) * 0.3, dim=-1).mean(dim=1)
    near: dict[str, Any] = {"rtol": 0.03, "atol": 1e-4}
    index = index_of(means)
    torch.testing.assert_close(scores(index, 50, q, 0.3, 4), expected, **near)
    whole = torch.softmax(q[0].reshape(2, -1, 16) @ means.transpose(1, 2) * 0.3, dim=-1).mean(dim=1)
    torch.testing.assert_close(scores(index, 50, q, 0.3, 11), whole, **near)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16])
def test_the_newest_query_is_always_asked(count: int) -> None:
    q = torch.arange(float(count)).reshape(1, 1, count, 1)
    asked = newest_spaced(q, 4).flatten().tolist()
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


def test_a_score_fades_evenly_and_the_larger_one_counts() -> None:
    mass = random(2, 300, seed=8).abs()
    decay = 0.7 ** (2 / 8)
    expected = mass.clone()
    for step in range(1, 17):
        expected[:, step:] = torch.maximum(expected[:, step:], mass[:, :-step] * decay**step)
    torch.testing.assert_close(spread_forward(mass, 2), expected)
    assert torch.equal(mass, random(2, 300, seed=8).abs())  # what is shown to the reader stays as it was


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
        retrieval.select_at(4_096, [direction.expand(1, 2, 1, 16)], 1.0)
        slots = retrieval._slots[0]
        assert slots is not None
        held[chunk] = bool((slots == place // chunk).any(dim=1).all())
    assert held == {2: True, 8: False}


@pytest.mark.parametrize("chunk", [1, 2, 4, 8, 16])
def test_the_sinks_are_held_whatever_the_chunks(chunk: int) -> None:
    retrieval = RetrievalCache(holding(random(1, 2, 900, 16, seed=4), 1_000), 64, chunk, 256)
    retrieval.select_at(800, [random(1, 2, 3, 16, seed=5)], 1.0)
    slots, mass = retrieval._slots[0], retrieval.chunk_scores()
    assert slots is not None
    assert mass is not None
    sinks = max(1, 8 // chunk)
    for head in slots.tolist():
        assert set(range(sinks)) <= set(head)
    assert float(mass[:sinks].sum()) == 0.0


def test_a_first_selection_asks_four_queries_spread_over_a_prompts_newest_positions() -> None:
    """All sixteen took three times as long and chose nothing better; the newest four lost half of a quotation."""
    asked: list[list[float]] = []

    class Listening(MeanKeyAttention):
        def score(self, queries: torch.Tensor, keys: Sequence[KeyIndex], num_chunks: int) -> torch.Tensor:
            asked.append(queries[0, 0, :, 0].tolist())
            return super().score(queries, keys, num_chunks)

    retrieval = RetrievalCache(holding(random(1, 2, 900, 16, seed=4), 1_000), 64, 8, 256, policy=Listening())
    prompt = torch.arange(40.0).reshape(1, 1, 40, 1).expand(1, 2, 40, 16)
    retrieval.aim(64, [prompt], 1.0)
    retrieval.ensure_selected()
    assert [sorted(each) for each in asked] == [[24.0, 29.0, 34.0, 39.0]] * 2, "what is shown, and what is chosen"


class OldestChunks:
    """A newcomer's policy: one class with one method. The older the better."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def score(self, queries: torch.Tensor, keys: Sequence[KeyIndex], num_chunks: int) -> torch.Tensor:
        self.asked.append((queries.shape[2], num_chunks))
        return 1.0 / torch.arange(1, num_chunks + 1, device=queries.device).repeat(len(keys), keys[0].kv_heads, 1)


def test_a_newcomers_policy_chooses_and_no_answer_changes(tiny: Callable[..., str], book: Document) -> None:
    draft = tiny("llama", seed=1, layers=1, width=32)
    model = tiny("llama", spread=0.1)
    config = EngineConfig(
        model=model,
        draft=draft,
        context=4096,
        retrieval_budget=64,
        refresh_every=1,
        num_draft_tokens=2,  # fixed, since the controller may leave the middle level out, by the clock
        num_pending_tokens=4,
    )
    session = Session.load(config)
    policy = OldestChunks()
    levels = session.hierarchy
    levels.retrieval = retrieval = levels.make_retrieval(policy)
    list(session.read(book))
    sampling = SamplingParams(max_tokens=32)
    *_, plain = session.ask(Question("Who lit it?", sampling=sampling, mode="plain"))
    *_, done = session.ask(Question("Who lit it?", sampling=sampling))
    assert isinstance(plain, AnswerDone)
    assert isinstance(done, AnswerDone)
    assert done.token_ids == plain.token_ids
    assert done.figures.verify.proposed > 0
    assert max(queries for queries, _ in policy.asked) == SCORED_QUERIES
    slots = retrieval._slots[0]
    assert slots is not None
    assert set(slots[0].tolist()) == set(range(retrieval.num_slots))
    assert retrieval.num_slots < retrieval.boundary // retrieval.chunk_size, "there was something to choose from"
    assert all(index.count == 0 for index in retrieval._index), "mean keys that nobody asks for are not computed"
