"""Kernels for CUDA as far as a CPU can check them: the Triton one in its interpreter, splits and choice everywhere."""

from __future__ import annotations

import itertools

import pytest
import torch

from engine.model import attention, kernels
from engine.model.kernels import cuda

CPU = torch.device("cpu")


def tensors(heads: int, rows: int, seq: int, dim: int) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(heads + rows + seq)
    return tuple(torch.randn(1, heads, n, dim, generator=g) for n in (rows, seq, seq))


@pytest.fixture(scope="module")
def interpreted() -> None:
    """Triton without a GPU runs in its interpreter: the tests' settings ask for it before anything imports it."""
    pytest.importorskip("triton", reason="Triton is not installed: it comes with torch for CUDA on Linux")


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(("heads", "rows", "seq", "dim"), [(2, 1, 1, 64), (1, 8, 700, 64), (3, 70, 130, 48)])
@pytest.mark.parametrize("splits", [1, 3])
def test_the_triton_kernel_is_exact(heads: int, rows: int, seq: int, dim: int, splits: int) -> None:
    from engine.model.kernels.triton_attention import attend_pieces

    q, k, v = tensors(heads, rows, seq, dim)
    wide = torch.randn(1, heads, seq + 9, dim)  # keys are a view of a longer buffer, as in a cache
    wide[:, :, :seq] = k
    outs, lses = attend_pieces(q, wide[:, :, :seq], v, 0.2, splits)
    assert 1 <= outs.shape[0] <= splits
    expected, expected_lse = kernels.plain(q.double(), k.double(), v.double(), 0.2)
    parts = [(out.unsqueeze(0), lse.unsqueeze(0)) for out, lse in zip(outs, lses, strict=True)]
    assert torch.allclose(attention.merge(parts).double(), expected, atol=2e-6)
    assert torch.allclose(torch.logsumexp(lses, 0).double(), expected_lse[0].double(), atol=1e-5)


@pytest.mark.usefixtures("interpreted")
def test_the_triton_kernel_behind_the_common_signature() -> None:
    q, k, v = (x.half() for x in tensors(2, 12, 300, 64))
    out, lse = cuda.triton(q, k, v, 0.125)
    expected, expected_lse = kernels.plain(q.float(), k.float(), v.float(), 0.125)
    assert out.shape == q.shape
    assert out.dtype == torch.float16
    assert torch.allclose(out.float(), expected, atol=2e-3)
    assert torch.allclose(lse, expected_lse, atol=2e-3)


def test_a_gpu_gets_enough_pieces() -> None:
    # 132 processors, two blocks each: 264 blocks wanted.
    assert cuda.splits(heads=8, rows=8, seq=131_072, processors=132) == 33
    assert cuda.splits(heads=32, rows=8, seq=131_072, processors=132) == 9
    assert cuda.splits(heads=8, rows=4 * 4096, seq=131_072, processors=132) == 1
    assert cuda.splits(heads=8, rows=8, seq=1_500, processors=132) == 2
    assert cuda.splits(heads=8, rows=8, seq=100, processors=132) == 1


def test_keys_in_pieces_are_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, rows, 16, generator=g) for rows in (5, 203, 203))
    expected, expected_lse = kernels.plain(q, k, v, 0.25)
    assert torch.equal(kernels.in_pieces(q, k, v, 0.25)[0], expected)
    monkeypatch.setattr(kernels, "_MOST_SCORES", 2 * 5 * 40)  # six pieces, the last of them short
    out, lse = kernels.in_pieces(q, k, v, 0.25)
    assert out.shape == expected.shape
    assert torch.allclose(out, expected, atol=1e-5)
    assert torch.allclose(lse, expected_lse, atol=1e-5)


def test_what_does_not_run_or_is_wrong_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> tuple[torch.Tensor, torch.Tensor]:
        raise RuntimeError("no kernel image is available")

    def wrong(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = kernels.plain(q, k, v, scaling)
        return out * 1.1, lse

    table = {"split_flash": broken, "efficient": wrong, "flash_attn": kernels.plain, "triton": kernels.plain}
    monkeypatch.setattr(cuda, "KERNELS", table)
    monkeypatch.setattr(cuda, "installed", lambda: ("split_flash", "efficient", "flash_attn", "triton"))
    cuda.measured.cache_clear()
    try:
        measured = {name: cuda.measure(name, CPU, torch.float32, 2, 16, keys=64) for name in table}
        assert measured["split_flash"] is None
        assert measured["efficient"] is None
        assert (measured["flash_attn"] or 0) > 0
        assert cuda.fastest(CPU, torch.float32, 2, 16) is kernels.in_pieces
    finally:
        cuda.measured.cache_clear()


def test_the_default_needs_torch_alone() -> None:
    assert cuda.installed()[0] == "split_flash"
    assert "triton" in cuda.NEED_COMPILER


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_kernels_on_a_gpu() -> None:
    sizes = itertools.product(((8, 128), (32, 128), (4, 64)), (300, 5_003), (1, 13, 64))
    shapes = [(heads, dim, keys, rows) for (heads, dim), keys, rows in sizes]
    failed = [
        (name, *shape)
        for name, shape in itertools.product(cuda.installed(), shapes)
        if cuda.measure(name, torch.device("cuda"), torch.bfloat16, *shape) is None
    ]
    assert failed == []
