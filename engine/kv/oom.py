"""What to do when memory runs out while the engine works: shrink in a fixed order and go on.

First prefill takes smaller blocks, down to ``SMALLEST_BLOCK`` tokens. Then resident layers of the full cache are
spilled, one after the other, to host memory beside a GPU, else to disk. Only when nothing is left is the request lost,
with the numbers; the chat never is: what was committed stays committed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch

from engine.errors import ResourceError, is_out_of_memory
from engine.kv.offload import Tier

if TYPE_CHECKING:
    from engine.kv.full import FullCache

SMALLEST_BLOCK = 16
# The first two spilled layers need a buffer each, in the dtype of the computation, whatever the format in storage.
_BUFFERS = 2

_log = logging.getLogger(__name__)
_T = TypeVar("_T")


def spill_more(full: FullCache) -> bool:
    """Spill the next resident layers of a cache; whether there were any."""
    resident = [layer for layer, tier in enumerate(full.placement.tiers) if tier is Tier.DEVICE]
    if not resident:
        return False
    stored, computed = full.shape.bytes_per_token, full.shape.compute_bytes_per_token
    count = 1 if full.placement.spilled else 1 - (-_BUFFERS * computed // stored)
    # From the middle of what is resident, so that spilled layers do not come in a row.
    middle = max(0, (len(resident) - count) // 2)
    chosen = resident[middle : middle + count]
    if full.shape.device.type == "cuda":
        torch.cuda.empty_cache()
        try:
            full.spill(chosen, Tier.HOST)
        except (RuntimeError, MemoryError):
            _log.info("host memory is full too; layers go to disk")
        else:
            return True
    left = [layer for layer in chosen if full.placement.tiers[layer] is Tier.DEVICE]
    full.spill(left, Tier.DISK)
    _log.info("memory ran out: layers %s of the cache were spilled", chosen)
    return True


def retry_with_spill(full: FullCache, work: Callable[[], _T]) -> _T:
    """Do ``work``; where memory runs out, spill and do it again.

    Raises:
        ResourceError: memory ran out with nothing left to spill.
    """
    while True:
        try:
            return work()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if not spill_more(full):
                raise exhausted(full) from error


def exhausted(full: FullCache) -> ResourceError:
    """The error of a request once every layer is spilled."""
    return ResourceError(
        f"Memory ran out at {full.length:,} tokens, with the whole cache spilled to disk already.",
        "Close other programs, choose a smaller model, or read fewer pages. The chat is kept.",
    )
