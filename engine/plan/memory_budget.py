"""Computes how KV is spread over device, host memory and disk, and whether a book fits.

The planner uses this module. The module neither imports torch nor inspects the machine, so it also serves the app's
list of models before torch is installed, and models on other machines.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine.events import KvBytes

MIN_CHAT_TOKENS = 256
"""Minimum tokens of the window that stay free after a book, for a question and an answer."""

MEMORY_SHARE = 0.85
"""Share of the free memory that weights and cache may always take. The rest is for activations and other programs."""

RESERVE = 1_500_000_000
"""Maximum bytes of a GPU's free memory that are left to other things than weights and cache, by an estimate for an 8B:
0.5 GB for a block of prefill, 0.6 GB to draw 64 tokens of 128,256, and 0.4 GB for recorded passes, workspaces and
kernels that are loaded late. If it is too little, layers are spilled while the program runs.
"""

PINNED_SHARE = 0.6
"""Maximum share of the free host memory for weights and cache if there is a GPU, because pinned memory cannot be
swapped out.
"""

WEIGHTS_SHARE = 0.95
"""Maximum share of a GPU's free memory for weights. Further weights wait in host memory. The share is larger than
``MEMORY_SHARE``, because weights in host memory slow down every pass, but spilled KV only verifications.
"""

DISK_SHARE = 0.8
"""Maximum share of the free disk for spilled KV."""

CHUNK = 8
"""Tokens of a chunk in the retrieval cache: TriForce's size."""
FINE_CHUNK = 2
"""Tokens of a small chunk in the retrieval cache. It is better at selecting the passages that the bundled pair is asked
to quote (assets/measurements), but needs more memory for mean keys.
"""

RETRIEVAL_TAIL = 2048
"""Estimated capacity, in tokens, of a retrieval cache's tail, which holds the newest tokens in addition to the chosen
chunks. ``decode.levels`` sets the exact capacity.
"""

# Number of buffers for moving the KV of spilled layers. If KV is quantized, there is one more buffer for resident
# layers.
_STAGING_BUFFERS = 2
# Number of layers from host memory whose weights are on the device at the same time: one layer computes while the next
# is copied.
_WEIGHT_BUFFERS = 2
# Approximate number of passes of the target from one verification to the next. Each of these passes copies the weights
# that wait in host memory.
_PASSES = 4


def usable(free_bytes: int) -> int:
    """Bytes of a GPU's free memory that weights and cache may take."""
    return max(int(free_bytes * MEMORY_SHARE), free_bytes - RESERVE)


def beside(room: int, taken: int) -> int:
    """The part of ``room`` (a result of ``usable``) that remains after ``taken`` bytes have been allocated; below 0 if
    they exceed it.
    """
    return usable(min(int(room / MEMORY_SHARE), room + RESERVE) - taken)


@dataclass(frozen=True)
class BookFit:
    """Whether a book fits. ``tokens`` is the number of the book's tokens, ``limit`` the number of the window's tokens.
    ``pages_that_fit`` is the number of pages that fit, counted from the first page. ``sentence`` states the result for
    the person. ``kv_bytes`` are the bytes of the cache after the book has been read.

    ``kv`` divides ``kv_bytes`` by tier. ``reading_s`` and ``step_ms`` are the expected times of reading the book and of
    decoding a token, None without measurements; ``estimate`` states both in words. If the model runs on another
    machine, ``tokens`` is a guess, and ``kv_bytes`` is 0. The first ``kept`` tokens are restored from disk. If several
    documents are too long together, ``leave_out`` are the indices of documents to leave out, so that the remaining
    documents fit. ``page_tokens`` is the number of tokens of each page, without the template's tokens. ``room`` is the
    maximum number of a book's tokens that fit.
    """

    tokens: int
    limit: int
    fits: bool
    pages_that_fit: int
    kv_bytes: int
    sentence: str
    kv: KvBytes = field(default_factory=KvBytes)
    reading_s: float | None = None
    step_ms: float | None = None
    estimate: str = ""
    page_tokens: tuple[int, ...] = ()
    room: int = 0
    kept: int = 0
    leave_out: tuple[int, ...] = ()


def to_leave_out(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """Choose the indices of documents to leave out, so that the remaining documents take at most ``most`` tokens.

    Documents are chosen one by one. If leaving out one more document is enough, the smallest such document is chosen.
    If it is not enough, the largest of the remaining documents is chosen.
    """
    excess = sum(sizes) - most
    left: list[int] = []
    while excess > 0:
        others = [place for place in range(len(sizes)) if place not in left]
        enough = [place for place in others if sizes[place] >= excess]
        chosen = min(enough, key=lambda place: sizes[place]) if enough else max(others, key=lambda place: sizes[place])
        left.append(chosen)
        excess -= sizes[chosen]
    return tuple(sorted(left))


def leaving_out(titles: Sequence[str], sizes: Sequence[int], most: int) -> str:
    """Make the sentence that tells the person which documents to leave out, because all of them exceed the maximum of
    ``most`` tokens.
    """
    left = to_leave_out(sizes, most)
    if len(left) == len(sizes):
        return "Each of them is too long by itself."
    named = " and ".join(f"“{titles[place]}”" for place in left)
    return f"Leave out {named}, and the others fit."


@dataclass(frozen=True)
class LayersByTier:
    """The number of layers whose KV is in each tier: ``resident`` on the device, ``in_host`` in host memory, and
    ``on_disk``. ``staging`` are the bytes of buffers for spilled and quantized KV.
    """

    resident: int
    in_host: int
    on_disk: int
    staging: int


@dataclass(frozen=True)
class KvSize:
    """Bytes of KV per token, summed over the ``layers`` layers that keep the whole context.

    Args:
        stored: bytes in the storage format.
        computed: bytes in the compute dtype.
        staged: bytes in a buffer for spilled layers.
        quantized: whether KV is stored in 8 bits. If so, resident layers need a buffer in the compute dtype.
        index: bytes of the retrieval cache's mean keys per token. Mean keys are always on the device.
        fixed: total bytes, not per token, of the sliding windows and states of all other layers. These are always on
            the device.
    """

    layers: int
    stored: int
    computed: int
    staged: int
    quantized: bool = False
    index: int = 0
    fixed: int = 0

    def spread(self, tokens: int, device: int, host: int, disk: int) -> LayersByTier | None:
        """Place the KV of ``tokens`` tokens: as many layers as fit on the device, then in host memory, then on disk.
        ``device``, ``host`` and ``disk`` are the bytes that KV may take there. None if there is no room.
        """
        per_layer = max(1, tokens * self.stored // self.layers)
        buffer, staged = (max(1, tokens * size // self.layers) for size in (self.computed, self.staged))
        device -= tokens * self.index + self.fixed
        staging = buffer * self.quantized
        resident = min(self.layers, (device - staging) // per_layer)
        if resident < self.layers:
            staging += _STAGING_BUFFERS * staged
            resident = (device - staging) // per_layer
        if resident < 0:
            return None
        in_host = min(self.layers - resident, host // per_layer)
        on_disk = self.layers - resident - in_host
        return LayersByTier(resident, in_host, on_disk, staging) if on_disk * per_layer <= disk else None


def spread_over(
    sizes: Sequence[KvSize], tokens: int, devices: Sequence[int], host: int, disk: int
) -> list[LayersByTier] | None:
    """Place the KV of ``tokens`` tokens if the layers are on several devices. Host memory and disk are shared by all
    devices. Returns one ``LayersByTier`` for each device, or None if there is no room.
    """
    parts = []
    for size, room in zip(sizes, devices, strict=True):
        part = size.spread(tokens, room, host, disk) if size.layers else LayersByTier(0, 0, 0, 0)
        if part is None:
            return None
        layer = tokens * size.stored // max(1, size.layers)
        host, disk = host - part.in_host * layer, disk - part.on_disk * layer
        parts.append(part)
    return parts


def retrieval_bytes(size: KvSize, budget: int) -> int:
    """Bytes of the retrieval cache of these layers: chosen chunks of ``budget`` tokens in total, and the tail
    (``RETRIEVAL_TAIL``).
    """
    return (budget + RETRIEVAL_TAIL) * size.computed


def fitting_budget(
    sizes: Sequence[KvSize], budget: int, least: int, window: int, devices: Sequence[int], host: int, disk: int
) -> int:
    """Reduce the retrieval budget until it no longer shortens the longest context that fits: halve ``budget`` until
    this context is as long as with the budget ``least``. Budgets are in tokens. The result is at least ``least``.

    Args:
        sizes: KV sizes of each device's layers.
        window: maximum length of the context, in tokens.
        devices: bytes of each device that retrieval cache and KV may take.
        host, disk: bytes that spilled KV may take.
    """

    def longest(budget: int) -> int:
        left = [beside(room, retrieval_bytes(size, budget)) for room, size in zip(devices, sizes, strict=True)]
        return largest(window, lambda tokens: spread_over(sizes, tokens, left, host, disk) is not None)

    most = longest(least)
    while budget > least and longest(budget) < most:
        budget = max(least, budget // 2)
    return budget


def largest(limit: int, holds: Callable[[int], bool]) -> int:
    """Find by bisection the largest number from 0 to ``limit`` for which ``holds`` is true; 0 if there is none.
    ``holds`` must be true for all numbers below the result, and false for all numbers above it.
    """
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


# Layers over several devices --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerBytes:
    """Bytes that one layer takes: ``weights``; ``kv`` for a full window; ``buffer`` for one buffer of spilled KV; and
    ``other_caches`` for retrieval cache, mean keys, sliding window and state.

    ``copied_share`` is not in bytes. If the layer's weights wait in host memory, a pass over a few tokens copies this
    share of the weights. It is below 1 for a mixture of experts, because only the chosen experts are copied.
    """

    weights: int
    other_caches: int
    kv: int
    buffer: int
    copied_share: float = 1.0


def layer_bytes(layers: int, weights: int, kv: KvSize, window: int, budget: int) -> LayerBytes:
    """Compute the mean bytes of a layer of a model with ``layers`` layers.

    Args:
        weights: bytes of one layer's weights.
        kv: KV size of the layers that keep the whole context.
        window: tokens of the model's window.
        budget: tokens of the retrieval cache's chosen chunks.
    """
    return LayerBytes(
        weights=weights,
        other_caches=(retrieval_bytes(kv, budget) + window * kv.index + kv.fixed) // layers,
        kv=window * kv.stored // layers,
        buffer=window * kv.staged // layers,
    )


@dataclass(frozen=True)
class DeviceRoom:
    """The memory of a device that a model may take: ``free_bytes`` bytes. The parts of the model outside of its layers,
    such as the embedding, need ``taken_bytes`` of these. ``kv_limit`` is the configured maximum of bytes for KV, or
    None.
    """

    free_bytes: int
    taken_bytes: int = 0
    kv_limit: int | None = None


@dataclass(frozen=True)
class Share:
    """A device's share of a model. The device computes ``layers`` layers. When the window is full, ``spilled`` of these
    layers have their KV elsewhere. ``in_host`` of these layers have their weights in host memory.
    """

    layers: int = 0
    spilled: int = 0
    in_host: int = 0

    def moved(self, size: LayerBytes) -> int:
        """Bytes that cross the device's bus between two verifications: once the KV of the spilled layers, and
        ``_PASSES`` times the weights that a pass copies from host memory.
        """
        return self.spilled * size.kv + int(_PASSES * self.in_host * size.weights * size.copied_share)

    def fits(self, size: LayerBytes, room: DeviceRoom) -> bool:
        """Whether the device has room for its layers without their KV: for weights that do not wait in host memory, for
        buffers, and for ``other_caches``.
        """
        held = self.layers - self.in_host + min(self.in_host, _WEIGHT_BUFFERS)
        needed = (
            room.taken_bytes + self.layers * size.other_caches + held * size.weights + _STAGING_BUFFERS * size.buffer
        )
        return needed <= int(room.free_bytes * WEIGHTS_SHARE)


def fitted_share(layers: int, size: LayerBytes, room: DeviceRoom) -> Share:
    """Choose how many layers keep their weights on a device, and how many keep their KV there. The device has
    ``layers`` layers. Weights have priority, because every pass needs them.
    """
    buffers = _STAGING_BUFFERS * size.buffer
    fixed = room.taken_bytes + layers * size.other_caches
    most = int(room.free_bytes * WEIGHTS_SHARE) - fixed
    left = usable(room.free_bytes) - fixed - layers * size.weights
    if layers * size.weights + buffers > most:
        held = max(0, (most - buffers) // max(1, size.weights) - _WEIGHT_BUFFERS)
        return Share(layers, layers, layers - min(layers - 1, held))
    if room.kv_limit is not None:
        left = min(left, room.kv_limit)
    if left >= layers * size.kv:
        return Share(layers)
    return Share(layers, layers - max(0, left - buffers) // max(1, size.kv))


def share_layers(layers: int, size: LayerBytes, rooms: Sequence[DeviceRoom]) -> list[Share]:
    """Divide layers among devices. Each layer goes to the device whose bus has the fewest bytes to move with this layer
    included, because buses work in parallel. Among equal devices the layer goes to the first, so that earlier devices
    are filled first.
    """
    shares = [Share() for _ in rooms]
    for _ in range(layers):
        more = [fitted_share(share.layers + 1, size, room) for share, room in zip(shares, rooms, strict=True)]
        chosen = min(range(len(rooms)), key=lambda place: more[place].moved(size))
        shares[chosen] = more[chosen]
    return shares


def interleaved(shares: Sequence[Share]) -> tuple[int, ...]:
    """The device of every layer, as an index into ``shares``.

    The layers of a device are divided into as many runs of consecutive layers as the device has spilled layers. The
    runs of different devices alternate. While one device computes a run, every other device receives its next spilled
    layer over its own bus. Without spilled layers each device has one run, so hidden states move to the next device
    only once.
    """
    runs: list[tuple[float, int, int]] = []
    for place, share in enumerate(shares):
        count = min(share.layers, max(1, share.spilled))
        for run in range(count):
            size = (run + 1) * share.layers // count - run * share.layers // count
            runs.append(((run + 0.5) / count, place, size))
    return tuple(place for _, place, size in sorted(runs) for _ in range(size))
