"""Kernels for a few queries over many keys, behind one signature: ``kernel(q, k, v, scaling) -> (out, lse)``.

Queries are packed: q (1, kv_heads, rows, head_dim), the query group of a KV head and the new tokens together as rows; k
and v (1, kv_heads, seq, head_dim); out like q; lse (1, kv_heads, rows) in float32. Nothing is masked.

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
from collections.abc import Callable, Sequence
from typing import Any

import torch

Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]

# Keys are cut into at most so many pieces; shorter ones cost more in the merge than they gain.
_CPU_SPLITS, _CPU_PIECE = 16, 2048
# Time that may be lost to workers that wait for the last one, as a factor, before keys are cut further.
_LEAST_WAIT = 1.1
_CUDA_SPLITS, _CUDA_PIECE = 128, 512
# Query rows that one block of torch's flash kernel takes, and how many blocks each processor of a GPU should have.
_FLASH_ROWS, _BLOCKS_PER_PROCESSOR = 128, 2
# What the kernels are compared on: a verification of eight tokens over 16K keys.
_PROBE_KEYS, _PROBE_ROWS, _PROBE_REPEATS = 16_384, 8, 10
# Largest difference to the definition that a half-precision kernel may have, as a share of the largest output.
_NEAR = 2e-2


def merge(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Join parts (out, lse) over disjoint keys into the attention over all of them. Exact up to rounding."""
    if len(parts) == 1:
        return parts[0][0]
    lse = torch.stack([part[1] for part in parts])
    weights = torch.softmax(lse, dim=0).unsqueeze(-1)
    outs = torch.stack([part[0] for part in parts])
    return (outs * weights).sum(dim=0).to(outs.dtype)


def plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The definition that every fast path is tested against."""
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * scaling
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)
    weights = torch.exp(scores - lse.unsqueeze(-1))
    return torch.matmul(weights.to(v.dtype), v), lse


def cpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's fused CPU kernel; it also returns the log-sum-exp."""
    pieces = cpu_splits(q.shape[1], k.shape[2], torch.get_num_threads())
    if pieces == 1:
        return _cpu(q, k, v, scaling)
    return split_attend(q, k, v, pieces, functools.partial(_cpu, scaling=scaling))


def cpu_newest(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, new: int) -> torch.Tensor:
    """The same for the queries of the last ``new`` tokens, each of which sees the keys up to its own. Returns out."""
    past = k.shape[2] - new
    pieces = cpu_splits(k.shape[1], past, torch.get_num_threads())
    even = past // pieces * pieces if pieces > 1 else 0
    mask = _newest_mask(new, past - even, q.shape[2] // new, q.dtype)
    tail = _cpu(q, k[:, :, even:], v[:, :, even:], scaling, mask)
    if even == 0:
        return tail[0]
    kernel = functools.partial(_cpu, scaling=scaling)
    return merge([*attend_each(q, k[:, :, :even], v[:, :, :even], pieces, kernel), tail])


@functools.lru_cache(maxsize=4)
def _newest_mask(n: int, past: int, group: int, dtype: torch.dtype) -> torch.Tensor:
    """Additive mask (1, 1, group * n, past + n). The layers of a pass share it, so the last few are kept."""
    mask = torch.zeros(n, past + n, dtype=dtype)
    mask[:, past:] = torch.full((n, n), float("-inf"), dtype=dtype).triu_(1)
    return mask.repeat(group, 1)[None, None]


def _cpu(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, mask: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = kernel(q, k, v, 0.0, False, attn_mask=mask, scale=scaling)
    return out, lse


def cpu_splits(heads: int, seq: int, workers: int) -> int:
    """Pieces to cut ``seq`` keys into, so that heads times pieces keeps all workers busy, and about equally.

    Three heads on two workers would take as long as four.
    """
    most = max(1, min(_CPU_SPLITS, seq // _CPU_PIECE))
    waits = [-(-heads * n // workers) * workers / (heads * n) for n in range(1, most + 1)]
    return next(n for n, wait in enumerate(waits, 1) if wait <= max(_LEAST_WAIT, min(waits)))


def cuda_splits(heads: int, rows: int, seq: int, processors: int) -> int:
    """The same for a GPU, where rows come in blocks and each processor takes a few blocks."""
    blocks = heads * -(-rows // _FLASH_ROWS)
    wanted = -(-_BLOCKS_PER_PROCESSOR * processors // blocks)
    return max(1, min(wanted, _CUDA_SPLITS, seq // _CUDA_PIECE))


def split_attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, splits: int, kernel: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run ``kernel`` on equal pieces of the keys as one batch, and join them. The views copy nothing."""
    even = k.shape[2] // splits * splits
    parts = attend_each(q, k[:, :, :even], v[:, :, :even], splits, kernel)
    if even < k.shape[2]:
        parts.append(kernel(q, k[:, :, even:], v[:, :, even:]))
    joined = torch.logsumexp(torch.stack([lse for _, lse in parts]), dim=0)
    return merge(parts), joined


def attend_each(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, splits: int, kernel: Any
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What ``kernel`` says of each of ``splits`` equal pieces of the keys, which it takes as one batch."""
    heads, piece, dim = k.shape[1], k.shape[2] // splits, k.shape[3]

    def cut(x: torch.Tensor) -> torch.Tensor:
        return x[0].unflatten(1, (splits, piece)).transpose(0, 1)

    out, lse = kernel(q.expand(splits, heads, q.shape[2], dim), cut(k), cut(v))
    return list(zip(out.unsqueeze(1), lse.unsqueeze(1), strict=True))


def split_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's flash kernel with the pieces of the KV laid out as the batch."""

    def flash(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.ops.aten._scaled_dot_product_flash_attention(a, b, c, 0.0, False, scale=scaling)
        return made[0], made[1][..., : a.shape[2]]

    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    splits = cuda_splits(q.shape[1], q.shape[2], k.shape[2], processors)
    return flash(q, k, v) if splits == 1 else split_attend(q, k, v, splits, flash)


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
    from engine.triton_attention import attend_pieces

    processors = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 1
    outs, lses = attend_pieces(q, k, v, scaling, cuda_splits(q.shape[1], q.shape[2], k.shape[2], processors))
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
