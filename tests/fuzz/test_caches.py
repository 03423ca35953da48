"""The three caches against a list of tokens: whatever is accepted, cropped, evicted and committed, they hold the same.

The list knows nothing of tensors: it says which tokens a cache must hold and in which order. Keys and values are made
from the token and its position alone, so that every one that is held can be told from every other.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ContextTooSmall
from engine.kv.full import FullCache, KvShape
from engine.kv.retrieval import RetrievalCache
from engine.kv.streaming import StreamingCache
from tests.fuzz.conftest import looked_at
from tests.tally import count

LAYERS, HEADS, DIM, CHUNK, SLACK, SINKS, WINDOW = 2, 2, 4, 4, 6, 3, 10
SHAPE = KvShape(LAYERS, HEADS, DIM, torch.float32, torch.device("cpu"))
# How many tokens are proposed in a round, and how many of them stand.
ROUNDS = st.lists(st.tuples(st.integers(0, SLACK), st.integers(0, SLACK)), max_size=25)


def _kv(layer: int, tokens: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """k, v (1, heads, n, dim) that name layer, head and token."""
    marks = torch.tensor(tokens, dtype=torch.float32).reshape(1, 1, -1, 1) + 1000.0 * layer
    k = marks + torch.arange(HEADS).reshape(1, -1, 1, 1) * 100_000.0 + torch.arange(DIM) * 0.25
    return k, -k


def _q(count: int) -> torch.Tensor:
    return torch.ones(1, 2 * HEADS, count, DIM) * 1e-6


def _store(full: FullCache, start: int, tokens: list[int]) -> None:
    full.reserve(start + len(tokens))
    step = full.extend(start)
    for layer in range(LAYERS):
        step.attend(layer, _q(len(tokens)), *_kv(layer, tokens), 1.0)
    full.advance(len(tokens))


def _holds(full: FullCache, tokens: list[int]) -> None:
    assert full.length == len(tokens)
    for layer in range(LAYERS):
        k, v = _kv(layer, tokens)
        assert torch.equal(full.keys(layer, 0, full.length), k[0])
        assert torch.equal(full.values(layer, 0, full.length), v[0])


@looked_at(60)
@given(st.integers(0, 30), ROUNDS, st.integers(40, 120))
def test_full(prompt: int, rounds: list[tuple[int, int]], limit: int) -> None:
    full, tokens, fresh = FullCache(SHAPE, limit), list(range(prompt)), prompt
    if prompt:
        _store(full, 0, tokens)
    for proposed, accepted in rounds:
        new = list(range(fresh, fresh + proposed))
        fresh += proposed
        if len(tokens) + len(new) > limit:
            with pytest.raises(ContextTooSmall):
                full.reserve(len(tokens) + len(new))
            continue
        if new:
            _store(full, len(tokens), new)
        tokens += new[: min(accepted, proposed)]
        full.crop(len(tokens))
        _holds(full, tokens)
    with pytest.raises(ValueError, match="crop"):
        full.crop(len(tokens) + 1)
    count("random histories of caches")


@looked_at(60)
@given(st.integers(1, 60), ROUNDS, st.integers(1, 6))
def test_streaming(prompt: int, rounds: list[tuple[int, int]], batch: int) -> None:
    """The sinks, at least the newest window, at most ``SLACK`` more, in order."""
    cache = StreamingCache(SHAPE, SINKS, WINDOW, SLACK, lambda layer, x, slots, queries: x)
    tokens: list[int] = []

    def add(new: list[int]) -> None:
        step = cache.extend(len(new))
        for layer in range(LAYERS):
            step.attend(layer, _q(len(new)), *_kv(layer, new), 1.0)
        cache.advance(len(new))

    for start in range(0, prompt, batch):
        new = list(range(start, min(prompt, start + batch)))
        add(new)
        tokens += new
        cache.settle()
        _streams(cache, tokens)
    fresh = prompt
    for proposed, accepted in rounds:
        new = list(range(fresh, fresh + proposed))
        fresh += proposed
        if new:
            add(new)
        tokens += new[: min(accepted, proposed)]
        cache.crop(len(tokens))
        cache.settle()
        _streams(cache, tokens)
    count("random histories of caches")


def _streams(cache: StreamingCache, tokens: list[int]) -> None:
    held = cache.held
    assert cache.length == len(tokens)
    assert min(len(tokens), SINKS + WINDOW) <= held <= SINKS + WINDOW + SLACK
    expected = tokens[:SINKS] + tokens[len(tokens) - (held - SINKS) :] if held > SINKS else tokens
    for layer in range(LAYERS):
        k, v = _kv(layer, expected)
        assert torch.equal(cache._raw[layer][:, :held], k[0])
        assert torch.equal(cache._rotated[layer][:, :held], k[0])
        assert torch.equal(cache._values[layer][:, :held], v[0])


@looked_at(60)
@given(st.integers(1, 60), ROUNDS, st.integers(1, 5), st.integers(0, 4), st.randoms(use_true_random=False))
def test_retrieval(prompt: int, rounds: list[tuple[int, int]], slots: int, share: int, dice: object) -> None:
    """Chosen chunks hold what the full cache holds there; the tail holds every token since the boundary, in order."""
    full = FullCache(SHAPE, 400)
    tokens = list(range(prompt))
    _store(full, 0, tokens)
    cache = RetrievalCache(full, slots * CHUNK, CHUNK, tail=120, share=share, most=10 * CHUNK)
    cache.select_at(max(0, prompt - 5), [_q(1)] * LAYERS, 1.0)
    _retrieves(cache, full, tokens)
    fresh = prompt
    for proposed, accepted in rounds:
        new = list(range(fresh, fresh + proposed))
        fresh += proposed
        base = len(tokens)
        if cache.free_slots() < 2 * SLACK:
            cache.select_at(max(0, base - 5), [_q(1)] * LAYERS, 1.0)
        if new:  # the middle level writes what it computed itself, and crops to what it let stand
            step = cache.extend()
            for layer in range(LAYERS):
                step.attend(layer, _q(len(new)), *_kv(layer, [-token for token in new]), 1.0)
            cache.advance(len(new))
            _store(full, base, new)
        tokens += new[: min(accepted, proposed)]
        cache.crop(len(tokens))
        full.crop(len(tokens))
        cache.copy_from_full(len(tokens))
        _retrieves(cache, full, tokens)
    count("random histories of caches")


def _retrieves(cache: RetrievalCache, full: FullCache, tokens: list[int]) -> None:
    assert cache.length == full.length == len(tokens)
    assert cache.boundary % CHUNK == 0
    first = cache.selected
    tail = tokens[cache.boundary :]
    for layer in range(LAYERS):
        keys, values = cache._parts(layer)
        k, v = _kv(layer, tail)
        assert torch.equal(keys[:, first : first + len(tail)], k[0])
        assert torch.equal(values[:, first : first + len(tail)], v[0])
        for head in range(HEADS):
            chosen = keys[head, :first, 0] - 1000.0 * layer - 100_000.0 * head
            chunks = [int(mark) // CHUNK for mark in chosen[::CHUNK]]
            assert len(set(chunks)) == len(chunks), "a chunk is held twice"
            assert all(0 <= chunk * CHUNK < cache.boundary for chunk in chunks)
            assert chosen.tolist() == [float(chunk * CHUNK + at) for chunk in chunks for at in range(CHUNK)]
            assert torch.equal(values[head, :first], -keys[head, :first])
