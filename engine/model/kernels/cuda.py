"""Runs the attention kernels for GPUs, and chooses the fastest kernel that gives right results on this GPU.

One sequence keeps a GPU busy only if its keys are cut into pieces. torch's flash kernel cuts the keys by its own
estimate (``set_params_splitkv`` in its flash_api.cpp). Alternatively, this module cuts the keys into enough pieces for
all multiprocessors of the GPU, passes the pieces to the kernel as a batch, and merges the results. ``fastest`` measures
once which kernel is fastest.

torch's wheels for Windows have no flash kernel, and GPUs before compute capability 8.0 cannot run it. In both cases
torch's memory-efficient kernel is used, or the plain path if no kernel gives right results. Triton needs a compiler on
the machine, so ``fastest`` never chooses our Triton kernel. Intel GPUs use the flash kernel of torch's build for Intel.
Apple's GPUs use the plain path, because torch has no kernel for them that returns the log-sum-exp.

In a pass that is recorded as a CUDA graph, only the GPU knows how many keys a token sees. The flash kernel then reads
this number from the GPU's memory, or the memory-efficient kernel gets a mask in the form of a bias.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from engine.devices import synchronize
from engine.errors import is_out_of_memory
from engine.model.kernels import Kernel, attend_each, in_pieces, join, plain, split_attend

_log = logging.getLogger(__name__)

# Maximum number of pieces that keys are cut into.
_MAX_SPLITS = 128
# Minimum keys of a piece. Shorter pieces cost more time for merging than they save.
_MIN_PIECE = 512
# Minimum compute capability for torch's flash kernel (Ampere).
_FLASH_CAPABILITY = (8, 0)
# Maximum head_dim of torch's flash kernel.
_FLASH_HEAD = 256
# A head_dim must be a multiple of this number for torch's flash kernel.
_FLASH_STEP = 8
_HALF = (torch.float16, torch.bfloat16)
# Number of query rows that one block of torch's flash kernel computes.
_FLASH_ROWS = 128
# Number of blocks of work that each multiprocessor of a GPU should get.
_BLOCKS_PER_PROCESSOR = 2
# Number of keys in the test in which kernels are compared.
_PROBE_KEYS = 16_384
# Number of query rows of each head in the test in which kernels are compared.
_PROBE_ROWS = 8
# Number of calls over which a kernel's time is averaged.
_PROBE_REPEATS = 10
# Maximum number of query rows for which reading the keys limits the speed of a pass. Such a pass uses the kernel that
# was fastest with ``_PROBE_ROWS`` rows. Computation limits the speed of a pass over more rows, which uses the kernel
# that was fastest with ``MANY_ROWS`` rows.
_FEW_ROWS = 512
# Number of query rows in the test that chooses the kernel for passes over more than ``_FEW_ROWS`` rows.
MANY_ROWS = 2048
# Number of keys in the test that chooses the kernel for passes over more than ``_FEW_ROWS`` rows.
MANY_KEYS = 4096
# Number of keys on which ``efficient_seen`` and ``flash_lengths`` are tested. The keys make several pieces and a
# remainder.
_MASKED_KEYS = 4096 + 24
# Each row and each piece of an attention bias must begin at a multiple of this number of elements (16 bytes), because
# torch's memory-efficient kernel requires it (kernel_forward.h).
_BIAS_STEP = 8
# The bias that hides a key, keyed by dtype. It is so low that the key gets weight 0, but it is finite (``bias_of``).
_UNSEEN = {torch.float16: -6e4, torch.bfloat16: -1e30}
# Maximum difference between a half-precision kernel and the plain path. For outputs it is a share of the largest
# output, for log-sum-exps an absolute difference.
_NEAR = 2e-2


def splits(heads: int, rows: int, seq: int, processors: int) -> int:
    """Return the number of pieces to cut ``seq`` keys into, so that each multiprocessor of the GPU gets
    ``_BLOCKS_PER_PROCESSOR`` blocks of work. A block is up to ``_FLASH_ROWS`` query rows of one head with one piece of
    the keys.
    """
    blocks = heads * -(-rows // _FLASH_ROWS)
    wanted = -(-_BLOCKS_PER_PROCESSOR * processors // blocks)
    return max(1, min(wanted, _MAX_SPLITS, seq // _MIN_PIECE))


def flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Run torch's flash kernel, which cuts the keys into pieces by its own estimate."""
    made = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, False, scale=scaling)
    return made[0], made[1][..., : q.shape[2]]


def split_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Run torch's flash kernel on pieces of the keys, which form a batch."""
    return _split(q, k, v, scaling, flash)


def efficient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Run torch's memory-efficient kernel on pieces of the keys, which form a batch. This kernel is for GPUs and builds
    of torch that lack the flash kernel.
    """
    return _split(q, k, v, scaling, _efficient)


def _efficient(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, scale=scaling)
    return made[0], made[1][..., : q.shape[2]]  # the kernel pads the log-sum-exp to whole blocks of rows


def bias_of(seen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Make the bias that ``efficient_seen`` adds to scores: 0 where ``seen`` (rows, keys) is true, elsewhere a number
    so low that the weight is 0.

    This low number is finite. With minus infinity, a row that sees no key of a piece would get a log-sum-exp of 0 for
    the piece (kernel_forward.h), and merging the pieces would then count it.

    Returns:
        (rows, keys). Rows begin at multiples of ``_BIAS_STEP`` numbers.
    """
    rows, keys = seen.shape
    room = torch.zeros(rows, -(-keys // _BIAS_STEP) * _BIAS_STEP, dtype=dtype, device=seen.device)
    return room[:, :keys].masked_fill_(~seen, _UNSEEN[dtype])


def efficient_seen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run torch's memory-efficient kernel on pieces of the keys, which form a batch. A bias hides keys from rows. All
    keys and values must be finite, hidden ones too.

    Args:
        bias: (rows, keys), made by ``bias_of``; all heads share it.
    """
    keys = k.shape[2]
    processors = torch.cuda.get_device_properties(q.device).multi_processor_count
    pieces = splits(q.shape[1], q.shape[2], keys, processors)
    even = keys if pieces == 1 else keys // (pieces * _BIAS_STEP) * pieces * _BIAS_STEP
    parts = [_biased(q, k, v, scaling, bias, slice(0, even), pieces)]
    if even < keys:
        parts.append(_biased(q, k, v, scaling, bias, slice(even, keys), 1))
    if pieces == 1:
        return parts[0]
    outs, lses = (torch.cat(part) for part in zip(*parts, strict=True))
    return join(outs, lses), torch.logsumexp(lses, dim=0, keepdim=True)


def _biased(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, bias: torch.Tensor, span: slice, pieces: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run torch's memory-efficient kernel with a bias on ``pieces`` equal pieces of the keys in ``span``. Return the
    same as ``attend_each``.
    """
    mine = bias[:, span].unflatten(1, (pieces, -1)).transpose(0, 1).unsqueeze(1).expand(-1, q.shape[1], -1, -1)
    return attend_each(q, k[:, :, span], v[:, :, span], pieces, lambda a, b, c: _efficient(a, b, c, scaling, mine))


class Lengths(NamedTuple):
    """The number of keys that each of n queries sees, in the form that ``flash_lengths`` takes.

    Args:
        keys: (n,) int32, each at least 1.
        ends: (n + 1,) int32, the numbers 0 to n, so that each query is a sequence of its own.
        starts: (n + 1,) int32, zeros, so that the keys of all sequences begin at the same place.
    """

    keys: torch.Tensor
    ends: torch.Tensor
    starts: torch.Tensor

    @classmethod
    def of(cls, keys: torch.Tensor) -> Lengths:
        """Make a ``Lengths`` from the number of keys of each query: query i sees the first ``keys[i]`` keys."""
        ends = torch.arange(len(keys) + 1, dtype=torch.int32, device=keys.device)
        return cls(keys.int(), ends, torch.zeros_like(ends))


def flash_lengths(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float, lengths: Lengths
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run torch's flash kernel on queries that see different numbers of keys. Only the device has to know the numbers,
    not the host.

    Every query is a sequence of its own, and all sequences have the same keys. Keys that no query sees are not read.
    The kernel cuts the keys of a sequence into pieces only if several query heads share a KV head.

    Shapes: q (1, heads, n, head_dim); k and v (1, kv_heads, seq, head_dim).
    """
    made = torch.ops.aten._flash_attention_forward(
        *(x[0].transpose(0, 1) for x in (q, k, v)),
        lengths.ends,
        lengths.starts,
        1,
        k.shape[2],
        0.0,
        False,
        False,
        scale=scaling,
        seqused_k=lengths.keys,
    )
    return made[0].transpose(0, 1).unsqueeze(0), made[1].unsqueeze(0)


def takes_lengths(device: torch.device, dtype: torch.dtype, kv_heads: int, group: int, head_dim: int) -> bool:
    """Whether ``flash_lengths`` gives right results on this GPU for these shapes. This is tested once. Always False in
    float32.

    Args:
        group: number of query heads that share a KV head.

    Raises:
        RuntimeError: memory ran out, so that the kernel could not be tested.
    """
    if device.type != "cuda":
        return False
    return _takes_lengths(torch.device(device.type, device.index or 0), dtype, kv_heads, group, head_dim)


@functools.lru_cache(maxsize=16)
def _takes_lengths(device: torch.device, dtype: torch.dtype, kv_heads: int, group: int, head_dim: int) -> bool:
    if not has_flash(device, dtype, head_dim):
        return False
    q, k, v = _probe(device, dtype, kv_heads, head_dim, _MASKED_KEYS, group * _PROBE_ROWS)
    q = q.reshape(1, kv_heads * group, _PROBE_ROWS, head_dim)
    # Keys that no query sees are NaN, so that a kernel that reads them gives a wrong result.
    lengths = torch.arange(_PROBE_ROWS, device=device) + (_MASKED_KEYS // 2 + 1)
    held = _MASKED_KEYS // 2 + _PROBE_ROWS
    seen = (torch.arange(held, device=device) < lengths[:, None]).repeat(group, 1)
    packed = q.reshape(1, kv_heads, -1, head_dim)
    wide, deep = k[:, :, :held].float(), v[:, :, :held].float()
    expected = plain(packed.float(), wide, deep, head_dim**-0.5, seen)
    expected = expected[0].reshape(q.shape), expected[1].reshape(q.shape[:3])
    k[:, :, held:], v[:, :, held:] = float("nan"), float("nan")
    right = _runs_right(lambda: flash_lengths(q, k, v, head_dim**-0.5, Lengths.of(lengths)), expected)
    if not right:
        _log.info("recorded passes attend with masks: torch's kernel with numbers of keys is wrong for %s here", dtype)
    return right


def takes_masks(device: torch.device, dtype: torch.dtype, heads: int, head_dim: int) -> bool:
    """Whether ``efficient_seen`` gives right results on this GPU for these shapes. This is tested once. Always False in
    float32.

    Raises:
        RuntimeError: memory ran out, so that the kernel could not be tested.
    """
    return _takes_masks(torch.device(device.type, device.index or 0), dtype, heads, head_dim)


@functools.lru_cache(maxsize=16)
def _takes_masks(device: torch.device, dtype: torch.dtype, heads: int, head_dim: int) -> bool:
    if dtype not in _HALF:
        return False
    q, k, v = _probe(device, dtype, heads, head_dim, _MASKED_KEYS, _PROBE_ROWS)
    # Each row sees a different number of keys, and no row sees the last pieces, so that a kernel that ignores the mask
    # gives a wrong result.
    rows, places = torch.arange(_PROBE_ROWS, device=device), torch.arange(_MASKED_KEYS, device=device)
    seen = places <= _MASKED_KEYS // 2 + rows[:, None]
    expected = plain(q.float(), k.float(), v.float(), head_dim**-0.5, seen)
    right = _runs_right(lambda: efficient_seen(q, k, v, head_dim**-0.5, bias_of(seen, dtype)), expected)
    if not right:
        _log.warning("recorded passes attend by the plain path: torch's kernel with a bias is wrong for %s here", dtype)
    return right


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
    """Compute the attention of n tokens to themselves: token i sees tokens 0..i. q is (1, heads, n, head_dim), k and v
    are (1, kv_heads, n, head_dim).

    Uses torch's flash kernel, its memory-efficient kernel, or the plain path: the first of these that gave right
    results without a mask (``measured``). Only the flash kernel takes fewer key heads than query heads, so keys and
    values are repeated for other kernels.
    """
    n, right = q.shape[2], measured(q.device, q.dtype, q.shape[1], q.shape[3])
    group = q.shape[1] // k.shape[1]
    if group > 1 and not ("flash" in right and _takes_groups(q.device)):
        k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
    if "flash" in right:
        made = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, scale=scaling)
        return made[0], made[1][..., :n]
    if "efficient" in right:
        made = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, True, scale=scaling)
        return made[0], made[1][..., :n]
    return plain(q, k, v, scaling, torch.ones(n, n, dtype=torch.bool, device=q.device).tril())


def _takes_groups(device: torch.device) -> bool:
    """Whether torch's flash kernel takes fewer key heads than query heads. True only on NVIDIA GPUs, because no other
    GPU has been tried.
    """
    return device.type == "cuda" and torch.version.hip is None


def has_flash(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether this build of torch has a flash kernel, and the kernel takes this dtype and head size on this GPU."""
    return (
        torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= _FLASH_CAPABILITY
        and dtype in _HALF
        and head_dim <= _FLASH_HEAD
        and head_dim % _FLASH_STEP == 0
    )


def flash_attn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the flash-attn package's function for decoding from a cache, which cuts the KV into pieces itself."""
    from flash_attn import flash_attn_with_kvcache

    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    out, lse = flash_attn_with_kvcache(q, k, v, softmax_scale=scaling, return_softmax_lse=True)
    return out.transpose(1, 2), lse


def triton(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scaling: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Run our own Triton kernel. The first call compiles it."""
    from engine.model.kernels.triton_attention import attend_pieces

    processors = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 1
    outs, lses = attend_pieces(q, k, v, scaling, splits(q.shape[1], q.shape[2], k.shape[2], processors))
    joined = torch.logsumexp(lses, dim=0)
    out = (outs * torch.exp(lses - joined).unsqueeze(-1)).sum(dim=0)
    return out.to(q.dtype).unsqueeze(0), joined.unsqueeze(0)


Timed = Callable[[Kernel, torch.Tensor, torch.Tensor, torch.Tensor], float]
"""Measures one call of a kernel, in milliseconds."""

KERNELS: dict[str, Kernel] = {
    "split_flash": split_flash,
    "flash": flash,
    "efficient": efficient,
    "flash_attn": flash_attn,
    "triton": triton,
}
"""Attention kernels, keyed by name."""

NEED_COMPILER = ("triton",)

MEASURED = ("cuda", "xpu")
"""Kinds of devices on which kernels are measured."""


def candidates(device: torch.device, dtype: torch.dtype, head_dim: int) -> tuple[str, ...]:
    """Return the names of the kernels that may be able to run on this GPU."""
    if device.type != "cuda":
        return ("flash",) if device.type == "xpu" else ()
    needs_flash = () if has_flash(device, dtype, head_dim) else ("split_flash", "flash")
    return tuple(name for name in installed() if name not in needs_flash)


def installed() -> tuple[str, ...]:
    """Return the names of the kernels whose packages are installed, whether or not the kernels run on this machine."""
    extra = [name for name in ("flash_attn", "triton") if importlib.util.find_spec(name)]
    return ("split_flash", "flash", "efficient", *extra)


def fastest(device: torch.device, dtype: torch.dtype, heads: int, head_dim: int, rows: int = _PROBE_ROWS) -> Kernel:
    """Choose the fastest kernel that gives right results on this GPU for this shape, and that needs no compiler. If no
    kernel gives right results, return ``in_pieces``, the plain path.
    """
    times = (measured if rows <= _FEW_ROWS else measured_for_many)(device, dtype, heads, head_dim)
    return KERNELS[min(times, key=times.__getitem__)] if times else in_pieces


@functools.lru_cache(maxsize=16)
def measured(device: torch.device, dtype: torch.dtype, heads: int, head_dim: int) -> dict[str, float]:
    """Measure the kernels that give right results on this GPU for this shape; later calls return the same figures.
    Returns milliseconds, keyed by the kernel's name; empty in float32.
    """
    if dtype not in _HALF:
        return {}
    names = [name for name in candidates(device, dtype, head_dim) if name not in NEED_COMPILER]
    times = {name: ms for name in names if (ms := measure(name, device, dtype, heads, head_dim)) is not None}
    if names and not times:
        _log.warning("no fused attention kernel is right for %s here: the plain path is taken", dtype)
    return times


@functools.lru_cache(maxsize=16)
def measured_for_many(device: torch.device, dtype: torch.dtype, heads: int, head_dim: int) -> dict[str, float]:
    """Measure kernels like ``measured``, but with ``MANY_ROWS`` query rows, for which a different kernel may be
    fastest. If fewer than two kernels give right results, return the result of ``measured``.
    """
    right = measured(device, dtype, heads, head_dim)
    if len(right) < 2:
        return right
    given = _probe(device, dtype, heads, head_dim, MANY_KEYS, MANY_ROWS)
    return {name: _milliseconds(KERNELS[name], *given) for name in right}


def measure(
    name: str,
    device: torch.device,
    dtype: torch.dtype,
    heads: int,
    head_dim: int,
    keys: int = _PROBE_KEYS,
    rows: int = _PROBE_ROWS,
    timed: Timed | None = None,
) -> float | None:
    """Measure one call of a kernel in milliseconds; None if the kernel does not run on this GPU, or gives wrong
    results.

    Args:
        timed: measures a call. With None, the time includes the launches by the host, as in an ordinary pass.

    Raises:
        RuntimeError: memory ran out, so that the kernel could not be tested.
    """
    q, k, v = _probe(device, dtype, heads, head_dim, keys, rows)
    kernel = KERNELS[name]
    try:
        if not _is_near(*kernel(q, k, v, head_dim**-0.5), plain(q.float(), k.float(), v.float(), head_dim**-0.5)):
            return None
        return (timed or _milliseconds)(kernel, q, k, v)
    except (RuntimeError, ImportError, TypeError, ValueError, NotImplementedError, OSError) as error:
        if is_out_of_memory(error):
            raise
        return None


def _milliseconds(kernel: Kernel, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> float:
    """Return the mean milliseconds of a kernel's calls, without the first call, which loads the kernel."""
    kernel(q, k, v, q.shape[3] ** -0.5)
    synchronize(q.device)
    began = time.perf_counter()
    for _ in range(_PROBE_REPEATS):
        kernel(q, k, v, q.shape[3] ** -0.5)
    synchronize(q.device)
    return (time.perf_counter() - began) * 1000.0 / _PROBE_REPEATS


def _probe(
    device: torch.device, dtype: torch.dtype, heads: int, head_dim: int, keys: int, rows: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make random queries, keys and values on which kernels are compared."""
    generator = torch.Generator(device).manual_seed(0)
    shapes = ((1, heads, rows, head_dim), (1, heads, keys, head_dim), (1, heads, keys, head_dim))
    q, k, v = (torch.randn(shape, generator=generator, device=device).to(dtype) for shape in shapes)
    return q, k, v


def _runs_right(
    call: Callable[[], tuple[torch.Tensor, torch.Tensor]], expected: tuple[torch.Tensor, torch.Tensor]
) -> bool:
    """Whether ``call``, which calls a kernel, runs on this GPU and returns a result near ``expected``.

    Raises:
        RuntimeError: memory ran out, so that the kernel could not be tested.
    """
    try:
        return _is_near(*call(), expected)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        return False


def _is_near(out: torch.Tensor, lse: torch.Tensor, expected: tuple[torch.Tensor, torch.Tensor]) -> bool:
    """Whether a kernel's result is near the plain path's result ``expected``. Outputs over many keys are small numbers,
    so their error is taken relative to the largest output.
    """
    off = (out.float() - expected[0]).abs().max() / expected[0].abs().max()
    return bool(off < _NEAR) and torch.allclose(lse, expected[1], atol=_NEAR)
