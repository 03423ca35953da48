"""Kernels for NVIDIA GPUs, their registry, and the choice of the fastest that is right on this one.

A GPU is busy only if the keys of one sequence are cut into pieces, which torch's flash kernel does not do by itself:
here the pieces are laid out as its batch, and merged. That needs nothing but torch. Other kernels are taken where they
are installed, right, and faster on this GPU: ``fastest`` measures once. Triton needs a compiler on the person's
machine, so it takes part only when it is asked for by name.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import time

import torch

from engine.model.kernels import Kernel, plain, split_attend

# Keys are cut into at most this number of pieces; shorter ones cost more in the merge than they gain.
_MAX_SPLITS, _MIN_PIECE = 128, 512
# Query rows that one block of torch's flash kernel takes, and blocks that each processor of a GPU should have.
_FLASH_ROWS, _BLOCKS_PER_PROCESSOR = 128, 2
# What the kernels are compared on: a verification of eight tokens over 16K keys.
_PROBE_KEYS, _PROBE_ROWS, _PROBE_REPEATS = 16_384, 8, 10
# Largest difference to the definition that a half-precision kernel may have, as a share of the largest output.
_NEAR = 2e-2


def splits(heads: int, rows: int, seq: int, processors: int) -> int:
    """Pieces to cut ``seq`` keys into: rows come in blocks, and each processor of the GPU takes a few blocks."""
    blocks = heads * -(-rows // _FLASH_ROWS)
    wanted = -(-_BLOCKS_PER_PROCESSOR * processors // blocks)
    return max(1, min(wanted, _MAX_SPLITS, seq // _MIN_PIECE))


def split_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's flash kernel with the pieces of the KV laid out as the batch."""

    def flash(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.ops.aten._scaled_dot_product_flash_attention(a, b, c, 0.0, False, scale=scaling)
        return made[0], made[1][..., : a.shape[2]]

    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    pieces = splits(q.shape[1], q.shape[2], k.shape[2], processors)
    return flash(q, k, v) if pieces == 1 else split_attend(q, k, v, pieces, flash)


def varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's variable-length attention, which splits KV by itself (torch 2.12 and later)."""
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    rows, seq = q.shape[2], k.shape[2]
    bounds = torch.arange(2, dtype=torch.int32, device=q.device)  # made there: a list from here would be waited for
    ends = [bounds * n for n in (rows, seq)]
    a, b, c = (x[0].transpose(0, 1) for x in (q, k, v))
    out, lse = varlen_attn(a, b, c, ends[0], ends[1], rows, seq, return_aux=AuxRequest(lse=True), scale=scaling)
    # Given per token or per head, by the version.
    lse = lse.T if lse.shape[0] == rows and lse.shape[-1] == q.shape[1] else lse
    return out.transpose(0, 1).unsqueeze(0), lse.unsqueeze(0)[..., :rows]


def flash_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The flash-attn package's call for decoding from a cache, which splits KV by itself."""
    from flash_attn import flash_attn_with_kvcache

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = flash_attn_with_kvcache(q, k, v, softmax_scale=scaling, return_softmax_lse=True)
    return out.transpose(1, 2), lse


def triton(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Our own kernel; the first call compiles it."""
    from engine.model.kernels.triton_attention import attend_pieces

    processors = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 1
    outs, lses = attend_pieces(q, k, v, scaling, splits(q.shape[1], q.shape[2], k.shape[2], processors))
    joined = torch.logsumexp(lses, dim=0)
    out = (outs * torch.exp(lses - joined).unsqueeze(-1)).sum(dim=0)
    return out.to(q.dtype).unsqueeze(0), joined.unsqueeze(0)


KERNELS: dict[str, Kernel] = {
    "split_flash": split_flash,
    "varlen": varlen,
    "flash_attn": flash_attn,
    "triton": triton,
}
"""Kernels for CUDA, the default first."""

NEED_COMPILER = ("triton",)


def installed() -> tuple[str, ...]:
    """Names of the kernels whose packages are here; whether they run is another matter."""
    here = ["split_flash"]
    if importlib.util.find_spec("torch.nn.attention.varlen"):
        from torch.nn.attention.varlen import varlen_attn

        if "num_splits" in inspect.signature(varlen_attn).parameters:
            here.append("varlen")
    here += [name for name in ("flash_attn", "triton") if importlib.util.find_spec(name)]
    return tuple(here)


@functools.lru_cache(maxsize=8)
def fastest(device: torch.device, dtype: torch.dtype, heads: int, head_dim: int) -> Kernel:
    """The fastest right kernel for this GPU and shape that needs no compiler. Measured once, in milliseconds."""
    names = [name for name in installed() if name not in NEED_COMPILER]
    if len(names) == 1:
        return KERNELS[names[0]]
    times = {name: ms for name in names if (ms := measure(name, device, dtype, heads, head_dim)) is not None}
    return KERNELS[min(times, key=times.__getitem__, default="split_flash")]


def measure(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    head_dim: int,
    keys: int = _PROBE_KEYS,
    rows: int = _PROBE_ROWS,
) -> float | None:
    """Milliseconds of one call of a kernel; None if it does not run here, or is wrong."""
    generator = torch.Generator(device).manual_seed(0)
    shapes = ((1, heads, rows, head_dim), (1, heads, keys, head_dim), (1, heads, keys, head_dim))
    q, k, v = (torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes)
    kernel = KERNELS[name]
    try:
        out, lse = kernel(q, k, v, head_dim**-0.5)
        expected, expected_lse = plain(q.float(), k.float(), v.float(), head_dim**-0.5)
        # Many keys average to small numbers, so an output is near if it is so beside the largest of them.
        off = (out.float() - expected).abs().max() / expected.abs().max()
        if not (bool(off < _NEAR) and torch.allclose(lse, expected_lse, atol=_NEAR)):
            return None
        _wait(device)
        began = time.perf_counter()
        for _ in range(_PROBE_REPEATS):
            kernel(q, k, v, head_dim**-0.5)
        _wait(device)
    except (RuntimeError, ImportError, TypeError, ValueError, NotImplementedError, OSError):
        return None
    return (time.perf_counter() - began) * 1000.0 / _PROBE_REPEATS


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
