"""Small caches with known contents, for tests of what is kept on disk."""

from __future__ import annotations

import torch

from engine.kv.full import FullCache, KvShape

SHAPE = KvShape(layers=2, kv_heads=2, head_dim=8, dtype=torch.bfloat16, device=torch.device("cpu"))


def filled(length: int) -> FullCache:
    cache = FullCache(SHAPE, 4000)
    cache.reserve(length)
    g = torch.Generator().manual_seed(0)
    for layer in range(SHAPE.layers):
        k, v = (torch.randn(1, 2, length, 8, generator=g).to(SHAPE.dtype) for _ in range(2))
        cache.write(layer, 0, k, v)
    cache.advance(length)
    return cache


def assert_same(one: FullCache, other: FullCache, length: int) -> None:
    for layer in range(SHAPE.layers):
        assert torch.equal(one.keys(layer, 0, length), other.keys(layer, 0, length))
        assert torch.equal(one.values(layer, 0, length), other.values(layer, 0, length))
