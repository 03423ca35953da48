"""Describes the kinds of devices that a model can compute on, and their abilities. Only this module distinguishes kinds
of devices.

``cpu`` has our own kernels. ``cuda`` are NVIDIA GPUs, and AMD GPUs in torch's build for ROCm. ``xpu`` are Intel GPUs
with their own memory, ``mps`` is Apple's GPU. ``xpu`` and ``mps`` have never been run, so they use the simplest path
everywhere: copies are made one after another, and tokens are drawn on the CPU. Each kernel decides by itself on which
devices it runs.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import platform
import sys
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from engine.errors import is_out_of_memory

__all__ = ["empty_caches"]

_log = logging.getLogger(__name__)

# Compute capability of the first NVIDIA GPUs with fast products in bfloat16.
_BFLOAT16_CAPABILITY = (8, 0)
# Compute capabilities (major) with a kernel for the products of many experts at once: Hopper, and Blackwell's data
# center cards.
_GROUPED_GENERATIONS = (9, 10)
# Share of a GPU's free memory that this process may use on Windows. The rest is left to the desktop. If that memory ran
# out, the driver would page memory to the host.
_UNPAGED = 0.97
# cudaHostRegisterPortable: memory is pinned for every card, and not only for the current one.
_PORTABLE = 1


@dataclass(frozen=True)
class DeviceKind:
    """The abilities of one kind of device.

    Args:
        gpu: the name of this kind for a person; empty for the CPU.
        untested: whether this program has never been run on this kind. The person is then told.
        own_memory: whether the device has separate memory, from which KV can be spilled to the host. Otherwise device
            and host share one memory, which is counted once.
        streams: whether passes can be recorded, and whether copies from pinned memory run in parallel with computation,
            ordered by events.
        has_64_bits: whether the device computes float64, and sums int64 correctly.
        takes_threads: whether several threads may use the device at once. On Apple's GPU, two threads crash the process
            (pytorch 197805).
        block: default number of tokens in a block of prefill. A CPU should finish a block in well under a second. A GPU
            needs large blocks to be busy, but plain attention needs memory for every pair of tokens in a block.
    """

    gpu: str = ""
    untested: bool = False
    own_memory: bool = True
    streams: bool = False
    has_64_bits: bool = False
    takes_threads: bool = True
    block: int = 1024


KINDS = {
    "cpu": DeviceKind(own_memory=False, has_64_bits=True, block=512),
    "cuda": DeviceKind("NVIDIA GPUs", streams=True, has_64_bits=True, block=4096),
    "xpu": DeviceKind("Intel GPUs with memory of their own", untested=True),
    "mps": DeviceKind("Apple GPUs", untested=True, own_memory=False, takes_threads=False),
}
"""Kinds of devices, keyed by torch's name of the type."""


def found(kind: str) -> list[torch.device]:
    """The GPUs of a kind that this computer has and that this build of torch can use."""
    if kind == "mps":
        return [torch.device(kind, 0)] if torch.backends.mps.is_available() else []
    module: Any = getattr(torch, kind)
    indices = list(range(module.device_count())) if module.is_available() else []
    if kind == "xpu":  # an Intel GPU inside of a processor uses the processor's memory
        indices = [index for index in indices if not torch.xpu.get_device_properties(index).is_integrated_gpu]
    return [torch.device(kind, index) for index in indices]


def name_of(device: torch.device) -> str:
    """The name that a GPU's maker gives it."""
    return "Apple GPU" if device.type == "mps" else str(_module(device).get_device_name(device))


def total_memory(device: torch.device) -> int:
    """Bytes of a GPU's memory; for Apple's GPU the maximum that the system recommends to use."""
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    return int(_module(device).get_device_properties(device).total_memory)


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU's memory that are free, including unused memory that torch holds.

    The pools of recorded passes do not count as free. On Apple's GPU the free bytes are the recommended maximum minus
    the bytes of this process. The bytes of other programs are not subtracted there.
    """
    if device.type == "mps":
        return total_memory(device) - torch.mps.current_allocated_memory()
    module = _module(device)
    idle = module.memory_reserved(device) - module.memory_allocated(device)
    pooled = sum(
        int(part["total_size"]) - int(part["allocated_size"])
        for part in (torch.cuda.memory_snapshot() if device.type == "cuda" else ())
        if part["device"] == (device.index or 0) and tuple(part["segment_pool_id"]) != (0, 0)
    )
    return int(module.mem_get_info(device)[0] + idle - pooled)


def memory_without_us(device: torch.device) -> int:
    """Bytes that would be free on a GPU with its own memory if this process did not use the GPU."""
    module = _module(device)
    return int(module.mem_get_info(device)[0] + module.memory_reserved(device))


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a GPU has fast products in bfloat16. NVIDIA GPUs before Ampere (RTX 20, T4) are slow at them."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= _BFLOAT16_CAPABILITY


def multiplies_groups(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has one kernel for the products of all experts of a mixture on a GPU. Without this
    kernel torch waits until the host knows the number of tokens of each expert, and launches a product for every
    expert, chosen or not (``GroupedBlas.cpp``).
    """
    if device.type != "cuda" or dtype is not torch.bfloat16 or sys.platform == "win32" or torch.version.hip:
        return False
    return torch.cuda.get_device_capability(device)[0] in _GROUPED_GENERATIONS


def forbid_paging(device: torch.device) -> None:
    """Make torch raise an error if a CUDA GPU's memory runs out. Otherwise the driver of Windows, also for Linux under
    Windows, would silently move memory to the host, and everything would become slow.
    """
    if device.type != "cuda" or not (sys.platform == "win32" or "microsoft" in platform.release().lower()):
        return
    share = memory_without_us(device) / total_memory(device)
    torch.cuda.set_per_process_memory_fraction(min(1.0, _UNPAGED * share), device.index or 0)


@functools.cache
def stream_of(device: torch.device, purpose: str) -> Any:
    """Return the CUDA stream of a GPU for a purpose. It is made once and used again.

    torch makes 32 streams and then returns the same streams again. If each caller requested a new stream, torch could
    return a stream that records passes, or a stream whose matrix products hold a workspace.
    """
    return torch.cuda.Stream(device)


def pins_in_place() -> bool:
    """Whether large amounts of host memory are pinned in place. False on Windows, for two reasons. Windows counts
    pinned memory against the GPU's memory: on a card of 24 GB with 19.5 GB in use, at most 3.8 GB could be pinned. And
    after one refusal, Windows also refuses amounts that it allowed before.
    """
    return sys.platform != "win32"


def pin(rows: torch.Tensor, device: torch.device) -> bool:
    """Pin memory in place. torch's own allocator for pinned memory is not used, because it rounds sizes up to the next
    power of two.

    Returns:
        whether the memory is pinned. Always False if ``pins_in_place`` is.
    """
    if not pins_in_place():
        return False
    runtime: Any = torch.cuda.cudart()
    address, size = rows.data_ptr(), rows.numel() * rows.element_size()
    if int(runtime.cudaHostRegister(address, size, _PORTABLE)) != 0:
        _log.info("%.1f GB of host memory could not be pinned and move through buffers", size / 1e9)
        forget_error(device)
        return False
    weakref.finalize(rows, runtime.cudaHostUnregister, address)
    return True


def pinned(make: Callable[..., torch.Tensor], device: torch.device) -> torch.Tensor:
    """Return the new tensor in host memory that ``make`` returns. ``make`` is called with ``pin_memory=True``. If the
    system refuses to pin more memory, ``make`` is called with ``pin_memory=False`` instead.

    The refusal must not leave this function. It reads as if the GPU's memory had run out, and every caller would then
    spill KV, which needs even more pinned memory.
    """
    try:
        return make(pin_memory=True)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        _log.warning("the system pins no more memory: %s", error)
        forget_error(device)
        return make(pin_memory=False)


def forget_error(device: torch.device) -> None:
    """Clear the error of a failed call of CUDA's runtime, because otherwise the next kernel launch would raise it."""
    with suppress(RuntimeError):
        torch.zeros(1, device=device).add_(1)


def empty_cache(device: torch.device) -> None:
    """Give unused memory back to the system: the memory that torch holds on a GPU, or, if ``device`` is the CPU, the
    memory that the C library holds.
    """
    if device.type == "cpu":
        trim_heap()
    else:
        _module(device).empty_cache()


def trim_heap() -> None:
    """Return freed heap memory to the system. glibc may keep hundreds of MB of it after many large tensors. Does
    nothing with other C libraries.
    """
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)


def empty_caches() -> None:
    """Empty the caches of all GPUs that this process has used, and trim the heap."""
    trim_heap()
    for module in (torch.cuda, torch.xpu):
        if module.is_available() and module.is_initialized():
            module.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has finished its queued work."""
    if device.type == "mps":
        torch.mps.synchronize()
    elif device.type != "cpu":
        _module(device).synchronize(device)


def answers(device: torch.device) -> bool:
    """Whether a GPU still computes for this process. After some errors, such as an illegal memory access, every later
    call fails until the process ends.
    """
    try:
        torch.zeros(1, device=device).add_(1)
        synchronize(device)
    except RuntimeError as error:
        return is_out_of_memory(error)
    return True


def all_answer() -> bool:
    """Whether all GPUs that hold memory of this process still compute for it (``answers``)."""
    modules = [module for module in (torch.cuda, torch.xpu) if module.is_available() and module.is_initialized()]
    used = [
        torch.device(module.__name__.rpartition(".")[2], index)
        for module in modules
        for index in range(module.device_count())
        if module.memory_reserved(index)
    ]
    return all(map(answers, used))


def _module(device: torch.device) -> Any:
    """The module of a kind of GPU: ``torch.cuda`` or its equivalent."""
    return getattr(torch, device.type)
