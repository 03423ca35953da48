"""Frees memory step by step when memory runs out, so that the engine can continue. First, prefill uses smaller blocks,
down to ``SMALLEST_BLOCK`` tokens. Then resident layers are spilled step by step (``spill_more``): from a GPU to host
memory if there is room, otherwise to disk. The request fails only when no resident layer is left (``exhausted``).
Committed tokens stay committed, so the chat is never lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from engine.devices import empty_cache
from engine.errors import ResourceError, full_card, is_out_of_memory
from engine.kv.offload import Tier

if TYPE_CHECKING:
    from engine.kv.offload import Placement
    from engine.model.kv_shape import KvShape

SMALLEST_BLOCK = 16
"""Minimum tokens of a block of prefill."""

# Number of buffers of a ``Staging``. They are allocated at the first spill, and a buffer can be larger than a layer's
# KV in 8 bits. So the first spill moves enough layers to make room for the buffers too.
_BUFFERS = 2

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


class Spillable(Protocol):
    """A cache whose layers can be spilled, that is, moved to a slower tier: ``engine.kv.full.FullCache``."""

    shape: KvShape
    placement: Placement
    length: int

    def spill(self, layers: Sequence[int], tier: Tier) -> None:
        """Move the KV of ``layers`` from the compute device to a slower tier. If one layer cannot be moved, no layer is
        moved.
        """


def spill_more(full: Spillable, error: BaseException | None = None) -> bool:
    """Spill the next layers of a cache that are still on a compute device. Return False if there are none.

    Args:
        error: the out-of-memory error. If it names a GPU, layers of this GPU are spilled. Otherwise layers of every
            device are spilled.
    """
    parts = full.shape.parts
    named = [part for part, shape in enumerate(parts) if shape.device.index is not None]
    told = [part for part in named if parts[part].device.index == full_card(error)]
    chosen = [layer for part in told or range(len(parts)) for layer in _next_to_spill(full, part)]
    if not chosen:
        return False
    empty_cache(full.shape.device)
    if full.shape.device_kind.own_memory:
        try:
            full.spill(chosen, Tier.HOST)
        except (RuntimeError, MemoryError):
            _log.info("host memory is full too; layers go to disk")
        else:
            return True
    full.spill(chosen, Tier.DISK)
    _log.info("memory ran out: layers %s of the cache were spilled", chosen)
    return True


def _next_to_spill(full: Spillable, part: int) -> list[int]:
    """Choose the next layers of one device to spill, among those that are still on the device."""
    mine = full.shape.layers_of(part)
    resident = [layer for layer in mine if full.placement.tiers[layer] is Tier.DEVICE]
    stored, staged = full.shape.bytes_per_token, full.shape.staged_bytes_per_token
    count = 1 if len(resident) < len(mine) else 1 - (-_BUFFERS * staged // stored)
    # The next layers are the middle ones of the resident layers, so that spilled layers are not all at one end of the
    # model.
    middle = max(0, (len(resident) - count) // 2)
    return resident[middle : middle + count]


def retry_with_spill(full: Spillable, work: Callable[[], _T]) -> _T:
    """Do ``work``. If memory runs out, spill layers and try again.

    Raises:
        ResourceError: memory ran out and no layer is left to spill.
    """
    while True:
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # drop the traceback, because it keeps alive every tensor that the failed work had made
            failed = error.with_traceback(None)
        if not spill_more(full, failed):
            raise exhausted(full) from failed


def exhausted(full: Spillable) -> ResourceError:
    """Make the error for a request that fails although every layer is spilled."""
    return ResourceError(
        f"Memory ran out at {full.length:,} tokens, although the whole cache is on disk already.",
        "Close other programs, choose a smaller model, or read fewer pages. The chat is kept.",
    )
