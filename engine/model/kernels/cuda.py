"""Kernels for GPUs, their registry, and the choice of the fastest that is right on this one.

A GPU is busy only if the keys of one sequence are cut into pieces. torch's flash kernel cuts them by itself where it
finds that worth while (``set_params_splitkv`` in its flash_api.cpp); here the pieces are also laid out as its batch and
merged, in as many as this GPU has processors for. ``fastest`` measures once which of the two is better, and takes
other kernels where they are installed, right, and faster. torch's wheels for Windows have no flash kernel, and GPUs
before compute capability 8.0 cannot run it: its memory-efficient kernel stands in, and where nothing is right the plain
path. Triton needs a compiler on the person's machine, so it takes part only when it is asked for by name. Of Intel's
GPUs torch's flash kernel is asked, which its build for them has; Apple's have none that says the log-sum-exp.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import time

import torch

from engine.devices import synchronize
from engine.errors import is_out_of_memory
from engine.model.kernels import Kernel, in_pieces, plain, split_attend

_log = logging.getLogger(__name__)

# Keys are cut into at most this number of pieces; shorter ones cost more in the merge than they gain.
_MAX_SPLITS, _MIN_PIECE = 128, 512
# The oldest GPUs that flash runs on (Ampere); the widest heads that it takes, in steps.
_FLASH_CAPABILITY, _FLASH_HEAD, _FLASH_STEP = (8, 0), 256, 8
_HALF = (torch.float16, torch.bfloat16)
# Query rows that one block of torch's flash kernel takes, and blocks that each processor of a GPU should have.
_FLASH_ROWS, _BLOCKS_PER_PROCESSOR = 128, 2
# The shape on which kernels are compared: a verification of eight tokens over 16K keys.
_PROBE_KEYS, _PROBE_ROWS, _PROBE_REPEATS = 16_384, 8, 10
# Largest difference to the definition that a half-precision kernel may have, as a share of the largest output.
_NEAR = 2e-2


def splits(heads: int, rows: int, seq: int, processors: int) -> int:
    """Pieces to cut ``seq`` keys into: rows come in blocks, and each processor of the GPU takes a few blocks."""
    blocks = heads * -(-rows // _FLASH_ROWS)
    wanted = -(-_BLOCKS_PER_PROCESSOR * processors // blocks)
    return max(1, min(wanted, _MAX_SPLITS, seq // _MIN_PIECE))


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's flash kernel as it is."""
    made = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, scale=scaling)
    return made[0], made[1][..., : q.shape[2]]


def split_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's flash kernel with the pieces of the KV laid out as the batch."""
    return _split(q, k, v, scaling, flash)


def efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """torch's memory-efficient kernel, for GPUs and builds without flash; pieces of the KV as its batch."""
    return _split(q, k, v, scaling, _efficient)


def _efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, scale=scaling)
    return made[0], made[1][..., : q.shape[2]]  # the log-sum-exp is padded to whole blocks of rows


def _split(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, kernel: Kernel
) -> tuple[torch.Tensor, torch.Tensor]:
    def one(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return kernel(a, b, c, scaling)

    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    pieces = splits(q.shape[1], q.shape[2], k.shape[2], processors)
    return one(q, k, v) if pieces == 1 else split_attend(q, k, v, pieces, one)


def attend_causal(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of n tokens to themselves, token i to 0..i: q, k and v (1, heads, n, head_dim), ungrouped.

    By torch's kernel that is right here for queries that see everything, flash before the other.
    """
    n, right = q.shape[2], measured(q.device, q.dtype, q.shape[1], q.shape[3])
    if "flash" in right:
        made = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=scaling)
        return made[0], made[1][..., :n]
    if "efficient" in right:
        made = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True, scale=scaling)
        return made[0], made[1][..., :n]
    return plain(q, k, v, scaling, torch.ones(n, n, dtype=torch.bool, device=q.device).tril())


def has_flash(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether torch's flash kernel is in this build and takes such heads on this GPU."""
    return (
        torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= _FLASH_CAPABILITY
        and dtype in _HALF
        and head_dim <= _FLASH_HEAD
        and head_dim % _FLASH_STEP == 0
    )


def flash_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The flash-attn package's call for decoding from a cache, which chooses the split of KV."""
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
    "flash": flash,
    "efficient": efficient,
    "flash_attn": flash_attn,
    "triton": triton,
}
"""Kernels for CUDA, the default first."""

NEED_COMPILER = ("triton",)

MEASURED = ("cuda", "xpu")
"""Kinds of devices that have some of them."""


def candidates(device: torch.device, dtype: torch.dtype, head_dim: int) -> tuple[str, ...]:
    """Names of the kernels that may be right on this GPU."""
    if device.type != "cuda":
        return ("flash",) if device.type == "xpu" else ()
    needs_flash = () if has_flash(device, dtype, head_dim) else ("split_flash", "flash")
    return tuple(name for name in installed() if name not in needs_flash)


def installed() -> tuple[str, ...]:
    """Names of the kernels whose packages are here; whether they run is another matter."""
    extra = [name for name in ("flash_attn", "triton") if importlib.util.find_spec(name)]
    return ("split_flash", "flash", "efficient", *extra)


def fastest(device: torch.device, dtype: torch.dtype, heads: int, head_dim: int) -> Kernel:
    """The fastest right kernel for this GPU and shape that needs no compiler; the plain path where none is right."""
    times = measured(device, dtype, heads, head_dim)
    return KERNELS[min(times, key=times.__getitem__)] if times else in_pieces


@functools.lru_cache(maxsize=16)
def measured(device: torch.device, dtype: torch.dtype, heads: int, head_dim: int) -> dict[str, float]:
    """The kernels that are right for this GPU and shape, with the milliseconds that each took once; none in float32."""
    if dtype not in _HALF:
        return {}
    names = [name for name in candidates(device, dtype, head_dim) if name not in NEED_COMPILER]
    times = {name: ms for name in names if (ms := measure(name, device, dtype, heads, head_dim)) is not None}
    if names and not times:
        _log.warning("no fused attention kernel is right for %s here: the plain path is taken", dtype)
    return times


def measure(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    head_dim: int,
    keys: int = _PROBE_KEYS,
    rows: int = _PROBE_ROWS,
) -> float | None:
    """Milliseconds of one call of a kernel; None if it does not run here, or is wrong.

    Raises:
        RuntimeError: memory ran out, which says nothing of the kernel.
    """
    generator = torch.Generator(device).manual_seed(0)
    shapes = ((1, heads, rows, head_dim), (1, heads, keys, head_dim), (1, heads, keys, head_dim))
    q, k, v = (torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes)
    kernel = KERNELS[name]
    try:
        out, lse = kernel(q, k, v, head_dim**-0.5)
        expected, expected_lse = plain(q.float(), k.float(), v.float(), head_dim**-0.5)
        # Outputs over many keys are small numbers, so an error counts relative to the largest of them.
        off = (out.float() - expected).abs().max() / expected.abs().max()
        if not (bool(off < _NEAR) and torch.allclose(lse, expected_lse, atol=_NEAR)):
            return None
        synchronize(device)
        began = time.perf_counter()
        for _ in range(_PROBE_REPEATS):
            kernel(q, k, v, head_dim**-0.5)
        synchronize(device)
    except (RuntimeError, ImportError, TypeError, ValueError, NotImplementedError, OSError) as error:
        if is_out_of_memory(error):
            raise
        return None
    return (time.perf_counter() - began) * 1000.0 / _PROBE_REPEATS
