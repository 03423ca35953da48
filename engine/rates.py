"""What the memory, the bus and the arithmetic of a device really give: the measures that others are set against."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

COPY_BYTES = 1 << 28
_MATRIX_WIDTH, _CPU_MATRIX_WIDTH = 8192, 512
_REPEATS = 10


def _seconds(device: torch.device, work: Callable[[], Any]) -> float:
    """Seconds of one call, of a few after a first."""
    work()
    _wait(device)
    began = time.perf_counter()
    for _ in range(_REPEATS):
        work()
    _wait(device)
    return (time.perf_counter() - began) / _REPEATS


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def copy_rate(device: torch.device) -> float:
    """Bytes per second of a copy within the device, what is read and what is written counted."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _seconds(device, lambda: target.copy_(source))


def bus_rate(device: torch.device, size: int = COPY_BYTES) -> float:
    """Bytes per second from pinned host memory to the device, in copies of ``size`` bytes."""
    source = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    target = torch.empty(size, dtype=torch.uint8, device=device)
    return size / _seconds(device, lambda: target.copy_(source, non_blocking=True))


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating point operations per second of a large matrix product."""
    width = _MATRIX_WIDTH if device.type == "cuda" else _CPU_MATRIX_WIDTH
    left = torch.randn(width, width, device=device).to(dtype)
    return float(2 * width**3 / _seconds(device, lambda: left @ left))
