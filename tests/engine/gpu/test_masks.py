"""Attention with a mask, as passes of fixed shape need it: by torch's kernel with a bias where that is right, over keys
and values that are read once."""

from __future__ import annotations

import logging
import math

import pytest
import torch

from engine.model import attention
from engine.model.attention import Seen
from engine.model.kernels import cuda, plain
from engine.model.kv_shape import KvShape
from tests.engine.gpu import simulated_cuda as simulated_cuda_module
from tests.engine.gpu.simulated_cuda import simulated_cuda

GPU = torch.device("cuda", 0)
HEADS, KV_HEADS, DIM = 8, 2, 16
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def tensors(count: int, keys: int, dtype: torch.dtype) -> Three:
    made = torch.Generator().manual_seed(keys)
    shapes = ((1, HEADS, count, DIM), (1, KV_HEADS, keys, DIM), (1, KV_HEADS, keys, DIM))
    q, k, v = (torch.randn(shape, generator=made).to(dtype) for shape in shapes)
    return q, k, v


def on_card(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Three:
    return q.to(GPU), k.to(GPU), v.to(GPU)


def defined(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By the definition, in float32."""
    wide = [x.float().repeat_interleave(HEADS // x.shape[1], 1) for x in (q, k, v)]
    return plain(wide[0], wide[1], wide[2], 0.25, seen)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("count", "keys", "first"), [(1, 40, 3), (5, 1029, 300), (3, 2048, 2000), (4, 1543, 0)])
def test_what_is_hidden_has_no_weight(count: int, keys: int, first: int, dtype: torch.dtype) -> None:
    """Also where a whole piece of the keys is hidden, whose log-sum-exp torch's kernel would call 0, and where neither
    the keys nor their pieces come in steps of what the kernel reads at once."""
    q, k, v = tensors(count, keys, dtype)
    seen = torch.arange(keys) <= first + torch.arange(count)[:, None]
    expected, sums = defined(q, k, v, seen)
    with simulated_cuda("lazy"):
        assert cuda.takes_masks(GPU, dtype, KV_HEADS, DIM)
        given = on_card(q, k, v)
        out, lse = attention._attend_masked(*given, 0.25, Seen(seen.to(GPU)), None)
        assert torch.allclose(out.cpu().float(), expected, atol=2e-2)
        assert torch.allclose(lse.cpu(), sums, atol=2e-2)


def test_keys_and_values_are_read_once() -> None:
    """The plain path writes and reads scores in float32 about a dozen times: 3 GB in a middle pass of 32 layers."""
    q, k, v = tensors(8, 6144, torch.bfloat16)
    whole = k.nbytes + v.nbytes
    with simulated_cuda("eager") as gpu:
        given = on_card(q, k, v)
        seen = Seen((torch.arange(6144) <= 6000).repeat(8, 1).to(GPU))
        cuda.takes_masks(GPU, torch.bfloat16, KV_HEADS, DIM)
        spent = []
        for _ in range(2):  # the first makes the bias for all of them
            before = gpu.touched
            attention.attend_seen(*given, 0.25, seen)
            spent.append(gpu.touched - before)
        before = gpu.touched
        plain(given[0].reshape(1, KV_HEADS, -1, DIM), given[1], given[2], 0.25, seen.rows(HEADS // KV_HEADS))
        assert spent[1] < 2.2 * whole  # the bias is as large as this narrow model's keys
        assert gpu.touched - before > 20 * whole


def test_a_kernel_with_a_bias_that_is_wrong_here_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = simulated_cuda_module.efficient_attention
    monkeypatch.setattr(
        simulated_cuda_module,
        "efficient_attention",
        lambda gpu, q, k, v, _, *more, **scale: real(gpu, q, k, v, None, *more, **scale),
    )
    q, k, v = tensors(2, 100, torch.bfloat16)
    seen = torch.arange(100) <= 50 + torch.arange(2)[:, None]
    expected = defined(q, k, v, seen)[0]
    with simulated_cuda("lazy"), caplog.at_level(logging.WARNING, "engine.model.kernels.cuda"):
        given = on_card(q, k, v)
        out = attention.attend_seen(*given, 0.25, Seen(seen.to(GPU)))
        assert torch.allclose(out.cpu().float(), expected, atol=2e-2)
    assert "by the plain path" in caplog.text


def test_the_kernel_is_tried_at_load_and_not_in_a_capture() -> None:
    with simulated_cuda("lazy") as gpu:
        attention.choose_kernels(KvShape(1, KV_HEADS, DIM, torch.bfloat16, GPU), HEADS)
        before = gpu.launches
        assert cuda.takes_masks(torch.device("cuda"), torch.bfloat16, KV_HEADS, DIM)
        assert gpu.launches == before


@pytest.mark.parametrize("values", [(0.1, 1.0), (1.0, 0.1)])
@pytest.mark.parametrize("share", [1e-3, 0.3, 0.999])
def test_a_small_share_is_not_rounded_away(share: float, values: tuple[float, float]) -> None:
    """The past or the new tokens have nearly all the weight, and the others have other values."""
    past, new = (torch.full((1, 1, 4, 8), value) for value in values)
    lse = torch.zeros(1, 1, 4), torch.full((1, 1, 4), math.log(share / (1 - share)))
    with simulated_cuda("lazy"):
        parts = [(out.bfloat16().to(GPU), sums.to(GPU)) for out, sums in zip((past, new), lse, strict=True)]
        found = attention.merge(parts).cpu().float()
    expected = (1 - share) * past + share * new
    assert ((found - expected).abs() / expected).max() < 5e-3
