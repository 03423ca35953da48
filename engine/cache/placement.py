"""Which layer's KV lives where.

Tiers, fastest first: ``DEVICE`` is the memory that the model computes in (a GPU's; without one, host memory), ``HOST``
is host memory beside a GPU, ``DISK`` is a file. A whole layer lives in one tier; spilled layers lie evenly between the
resident ones, so that while some compute the next spilled one can be on its way. Pure: moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from engine.cache.shape import KvShape
from engine.events import KvBytes


class Tier(str, Enum):
    DEVICE = "device"
    HOST = "host"
    DISK = "disk"


@dataclass(frozen=True)
class Placement:
    """The tier of every layer."""

    tiers: tuple[Tier, ...]

    @staticmethod
    def resident(layers: int) -> Placement:
        """Everything where the model computes: the fastest there is."""
        return Placement((Tier.DEVICE,) * layers)

    @staticmethod
    def spread(layers: int, device: int, host: int) -> Placement:
        """``device`` layers resident, ``host`` in host memory, the rest on disk, each kind evenly spread."""
        spilled = _spread(layers, layers - device)
        on_disk = _spread(len(spilled), len(spilled) - host)
        tiers = [Tier.DEVICE] * layers
        for order, layer in enumerate(spilled):
            tiers[layer] = Tier.DISK if order in on_disk else Tier.HOST
        return Placement(tuple(tiers))

    @property
    def spilled(self) -> tuple[int, ...]:
        """Layers that are not resident, in order."""
        return tuple(layer for layer, tier in enumerate(self.tiers) if tier is not Tier.DEVICE)

    def count(self, tier: Tier) -> int:
        return self.tiers.count(tier)

    def bytes(self, shape: KvShape, tokens: int) -> KvBytes:
        """Bytes by tier that ``tokens`` tokens take. Without a GPU the model computes in host memory."""
        layer = tokens * shape.bytes_per_token // shape.layers
        device, host, disk = (layer * self.count(tier) for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK))
        return KvBytes(host=device + host, disk=disk) if shape.device.type == "cpu" else KvBytes(device, host, disk)


def _spread(places: int, count: int) -> list[int]:
    """``count`` of ``places`` indices, as evenly as can be."""
    return [(2 * index + 1) * places // (2 * count) for index in range(count)]
