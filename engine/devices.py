"""The kinds of devices that a model computes on, and what each can do: the one place that knows them apart.

``cpu`` has kernels of our own. ``cuda`` are NVIDIA's GPUs, and AMD's in torch's build for ROCm. ``xpu`` are Intel's
with memory of their own, ``mps`` is Apple's. The last two have never been run: they take the plain way everywhere, one
copy after the other, and tokens are drawn on the processor. Which kernels compute is known beside the kernels.
"""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

_log = logging.getLogger(__name__)

# The first of NVIDIA's GPUs with fast products in bfloat16.
_BFLOAT16_CAPABILITY = (8, 0)
# Share of a GPU's free memory up to which Windows' driver pages nothing, with some left for the desktop.
_UNPAGED = 0.97
# cudaHostRegisterPortable: memory is pinned for every card, not for the one that is current.
_PORTABLE = 1


@dataclass(frozen=True)
class DeviceKind:
    """The abilities of one kind of device.

    Args:
        gpu: what a person calls one of them; empty for a processor.
        untested: whether nobody has run one, which a person is told.
        own_memory: has memory apart from the host's, from which KV can be spilled to the host. Without it the two are
            the same bytes, counted once.
        streams: copies from pinned memory run beside the computation in an order that events keep, and passes can be
            recorded.
        has_64_bits: float64, and sums of int64 that are right.
        takes_threads: several threads may use it at once. Apple's crashes the process where two do (pytorch 197805).
        block: tokens of a block of prefill by default. A CPU finishes one in well under a second, a GPU needs more to
            be busy, and plain attention holds a number for every two tokens of one.
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
"""By torch's name of the type."""


def found(kind: str) -> list[torch.device]:
    """The GPUs of a kind that are here and that this build of torch can use."""
    if kind == "mps":
        return [torch.device(kind, 0)] if torch.backends.mps.is_available() else []
    module: Any = getattr(torch, kind)
    indices = list(range(module.device_count())) if module.is_available() else []
    if kind == "xpu":  # one inside of a processor has the processor's memory
        indices = [index for index in indices if not torch.xpu.get_device_properties(index).is_integrated_gpu]
    return [torch.device(kind, index) for index in indices]


def name_of(device: torch.device) -> str:
    """The maker's name of a GPU."""
    return "Apple GPU" if device.type == "mps" else str(_module(device).get_device_name(device))


def total_memory(device: torch.device) -> int:
    """Bytes of a GPU's memory; of Apple's those that the system recommends to take at most."""
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    return int(_module(device).get_device_properties(device).total_memory)


def free_memory(device: torch.device) -> int:
    """Bytes of a GPU's memory that are free, with those that torch keeps for itself without use.

    The pools of recorded passes are not counted as free. On Apple's GPUs the free bytes are those that the system
    recommends, less those of this process; what other programs took shows in the host's memory alone.
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
    """Bytes that a GPU with memory of its own would have free if this process held nothing on it."""
    module = _module(device)
    return int(module.mem_get_info(device)[0] + module.memory_reserved(device))


def multiplies_bfloat16(device: torch.device) -> bool:
    """Whether a GPU has fast products in bfloat16. NVIDIA's before Ampere (RTX 20, T4) compute slowly in it."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= _BFLOAT16_CAPABILITY


def forbid_paging(device: torch.device) -> None:
    """Let torch say that a CUDA GPU's memory runs out where the driver would not: on Windows it moves memory to the
    host without a word, and everything becomes slow."""
    if device.type != "cuda" or sys.platform != "win32":
        return
    share = memory_without_us(device) / total_memory(device)
    torch.cuda.set_per_process_memory_fraction(min(1.0, _UNPAGED * share), device.index or 0)


@functools.cache
def stream_of(device: torch.device, purpose: str) -> Any:
    """The stream of a CUDA GPU for a purpose. torch makes 32 of them and then hands out the first ones again: who asked
    for a new one every time would meet one that records, or one whose matrix products hold a workspace."""
    return torch.cuda.Stream(device)


def pin(rows: torch.Tensor, device: torch.device) -> bool:
    """Pin memory in place: the allocator for pinned memory would take the next power of two.

    Returns:
        whether the system allows it. Windows is not asked: it counts pinned memory against the card, and one refusal
        makes it refuse what it would have allowed (a card of 24 GB with 19.5 in use pins 3.8 at most).
    """
    if sys.platform == "win32":
        return False
    runtime: Any = torch.cuda.cudart()
    address, size = rows.data_ptr(), rows.numel() * rows.element_size()
    if int(runtime.cudaHostRegister(address, size, _PORTABLE)) != 0:
        _log.info("%.1f GB of host memory could not be pinned and move through buffers", size / 1e9)
        forget_error(device)
        return False
    weakref.finalize(rows, runtime.cudaHostUnregister, address)
    return True


def forget_error(device: torch.device) -> None:
    """Clear the error that a call of CUDA's runtime has left, which the next launch would raise."""
    with suppress(RuntimeError):
        torch.zeros(1, device=device).add_(1)


def empty_cache(device: torch.device) -> None:
    """Let torch give back what it keeps of a GPU's memory without use."""
    if device.type != "cpu":
        _module(device).empty_cache()


def empty_caches() -> None:
    """Empty the caches of all GPUs that this process has used."""
    for module in (torch.cuda, torch.xpu):
        if module.is_available() and module.is_initialized():
            module.empty_cache()
    if torch.backends.mps.is_available():
        torch.mps.empty_cache()


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all that it was told."""
    if device.type == "mps":
        torch.mps.synchronize()
    elif device.type != "cpu":
        _module(device).synchronize(device)


def _module(device: torch.device) -> Any:
    """``torch.cuda`` and its like."""
    return getattr(torch, device.type)
