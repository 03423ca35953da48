"""Plans where a model's weights and KV are placed on this machine, and describes the plan in words.

The KV of as many layers as fit stays on the device, because spilled KV has to be moved for every verification. The KV
of further layers goes to host memory, then to disk. The planner looks at free memory, but allocates and moves nothing.
Costs come from short probes (``probe``). Without probes no times are estimated.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from engine import devices as kinds
from engine.config import UNCHANGED_NOTE, WEIGHTS, WEIGHTS_NOTES, EngineConfig, bytes_of
from engine.devices import KINDS
from engine.document import Document
from engine.errors import OptionError
from engine.events import KvBytes
from engine.kv.offload import Placement, Tier, spread_evenly
from engine.model import architectures, gguf
from engine.model.expected import can_round, kv_shape_of
from engine.model.kernels.block_products import may_multiply_blocks
from engine.model.kv_shape import KvShape, Split
from engine.model.products.tiled import gains_from_tiles, may_multiply_tiles, multiplies_tiles
from engine.plan.cost_model import BUDGET_SHARE, MIN_BUDGET, CostModel
from engine.plan.memory_budget import (
    CHUNK,
    DISK_SHARE,
    FINE_CHUNK,
    MEMORY_SHARE,
    MIN_CHAT_TOKENS,
    PINNED_SHARE,
    BookFit,
    DeviceRoom,
    KvSize,
    LayerBytes,
    Share,
    beside,
    fitting_budget,
    interleaved,
    largest,
    layer_bytes,
    leaving_out,
    retrieval_bytes,
    share_layers,
    spread_over,
    to_leave_out,
    usable,
)
from engine.plan.round_model import NO_WEIGHTS, HostWeights, sentence
from engine.prompt import BookTokens
from engine.quantization import FITTED, bytes_per_weight

# Tokens that are reserved for a chat after the book, if the window is large enough.
_CHAT_TOKENS = 4096
# Tokens of the books whose plans decide whether a GGUF file is rounded for a GPU: a long article, and a typical book.
_BOOKS = (32_768, 120_000)
# Minimum ratio of the time of a plain step with a file's expanded weights to the time with rounded weights, for which
# the weights are rounded. It is above 1, because rounding changes the weights a little.
_WORTH_ROUNDING = 1.1
# Time of a byte that crosses a bus from pinned host memory, as a multiple of the time of a byte that a GPU reads from
# its own memory. It is 17 on an RTX 4060, 32 on an RTX 4090 and 76 on an H200, by published rates.
_BUS_COST = 24
# Time of a byte from disk as the same multiple: a disk of 3.5 GB/s beside memory of 700 GB/s.
_DISK_COST = 200
# Approximate number of tokens in a pass that copies experts from host memory. Most passes that do so verify drafted
# tokens on the retrieval cache.
_PASS_TOKENS = 4


@dataclass(frozen=True)
class Resources:
    """Bytes that KV may take: on the first compute device, in host memory next to a GPU, and on disk. ``others`` are
    the bytes on further devices, in the order of ``KvShape.parts``.
    """

    device: int
    host: int = 0
    disk: int = 0
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class Layout:
    """Where a model is placed: on ``device`` alone if ``split`` is None, otherwise on several devices. ``in_host`` are
    the indices of the layers whose weights wait in host memory.
    """

    device: torch.device
    split: Split | None = None
    in_host: frozenset[int] = frozenset()

    @property
    def others(self) -> tuple[torch.device, ...]:
        """The devices other than ``device`` that have layers."""
        return self.split.devices[1:] if self.split else ()


@dataclass(frozen=True)
class MemoryPlan:
    """Where the KV of ``tokens`` tokens is placed. ``placement`` has the tier of each layer, ``kv`` the bytes in each
    tier; ``staging`` are the bytes of the buffers for spilled and quantized KV.
    """

    tokens: int
    placement: Placement
    kv: KvBytes
    staging: int


def pick_device(names: str) -> torch.device:
    """Choose the first of ``pick_devices``, the device on which passes begin and end."""
    return pick_devices(names)[0]


def pick_devices(names: str) -> tuple[torch.device, ...]:
    """Choose the devices that may compute, in the order of decreasing free memory.

    "auto" takes the CUDA device with the most free memory, and all others of its generation, because a much older GPU
    would slow down the other GPUs. Without a CUDA device it takes an Intel GPU if torch was built for it, otherwise the
    processor. An Apple GPU is used only if named, because it shares the processor's memory.

    Raises:
        OptionError: a device is unknown, absent, or named twice.
    """
    if names == "auto":
        cards = sorted(kinds.found("cuda"), key=kinds.free_memory, reverse=True)
        generations = [torch.cuda.get_device_capability(card)[0] for card in cards]
        alike = [card for card, of in zip(cards, generations, strict=True) if of == generations[0]]
        if len(cards) > 1:
            return tuple(alike)
        return (torch.device("cuda") if cards else next(iter(kinds.found("xpu")), torch.device("cpu")),)
    devices = [_device(name.strip()) for name in names.split(",")]
    if len(devices) == 1:
        return (devices[0],)
    cards = [torch.device("cuda", device.index or 0) for device in devices if device.type == "cuda"]
    if len(cards) < len(devices) or len(set(cards)) < len(cards):
        raise OptionError(f"{names} cannot share a model.", "Name different GPUs, such as cuda:0,cuda:1.")
    return tuple(sorted(cards, key=kinds.free_memory, reverse=True))


def _device(name: str) -> torch.device:
    names = f"Use auto, {', '.join(KINDS)}, cuda:1 or cuda:0,cuda:1."
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise OptionError(f"There is no device {name!r}.", names) from error
    kind = KINDS.get(device.type)
    if kind is None:
        raise OptionError(f"Trifold does not compute on devices of the kind {device.type}.", names)
    if kind.gpu and torch.device(device.type, device.index or 0) not in (here := kinds.found(device.type)):
        raise OptionError(
            f"The device {name} was asked for, and PyTorch sees {len(here)} {kind.gpu}.",
            "Use --device cpu, or install the GPU's driver; the command doctor says what else is missing.",
        )
    return device


def memory_of_cards(names: str) -> tuple[int, ...]:
    """Bytes of each GPU in ``names`` that would be free if this process used no GPU memory, the largest number first.
    Empty if the model computes in host memory.

    Raises:
        OptionError: as in ``pick_devices``.
    """
    cards = [device for device in pick_devices(names) if KINDS[device.type].own_memory]
    return tuple(sorted(map(kinds.memory_without_us, cards), reverse=True))


def may_round_files(names: str) -> bool:
    """Whether ``with_fitting_weights`` will probably round a GGUF file that does not fit the GPUs in ``names``.
    Computes nothing on the GPUs.

    Raises:
        OptionError: as in ``pick_devices``.
    """
    return all(map(may_multiply_tiles, pick_devices(names)))


def may_keep_files(names: str) -> bool:
    """Whether the GPUs in ``names`` will probably read the blocks of a GGUF file. Computes nothing on the GPUs.

    Raises:
        OptionError: as in ``pick_devices``.
    """
    return all(map(may_multiply_blocks, pick_devices(names)))


def lay_out(config: EngineConfig, model: Any, draft: Any, devices: Sequence[torch.device]) -> Layout:
    """Choose the devices of a model's layers before it is loaded.

    The first device holds the embedding, the head and the draft model. Further devices are used only if the first one
    cannot hold all layers together with the KV of a full window.

    Args:
        model: the target's configuration.
        draft: the draft's configuration, or None.
        devices: devices that may be used, the one with most free memory first.

    Raises:
        OptionError: a second copy of the weights, for passes over the retrieval cache, is configured, but there is no
            room for it.
    """
    device, layers = devices[0], model.num_hidden_layers
    if not KINDS[device.type].own_memory:
        return Layout(device)
    size, taken = model_bytes(config, model, draft, device)
    limit = bytes_of(config.device_memory)
    rooms = [DeviceRoom(kinds.free_memory(card), taken if card == device else 0, limit) for card in devices]
    shares = share_layers(layers, size, rooms)
    layout, copied = layout_of(shares, devices), _copy_bytes(config, model, device)
    if layout.in_host and copied:
        alone = share_layers(layers, replace(size, other_caches=size.other_caches - copied), rooms)
        fits = all(share.fits(size, room) for share, room in zip(shares, rooms, strict=True))
        if not fits or not any(share.in_host for share in alone):
            others = "them and the buffers of a whole window" if fits else "the buffers of a whole window"
            raise OptionError(
                f"A copy of the weights for the middle level does not fit beside {others}.",
                "Use --middle stored, a smaller model, no draft model, or a shorter window.",
            )
    return layout


def with_fitting_weights(config: EngineConfig, model: Any, draft: Any, devices: Sequence[torch.device]) -> EngineConfig:
    """Set ``weights`` in the configuration to ``FITTED`` if the target is a GGUF file whose weights the GPUs cannot
    multiply as they are stored (``keeps_file``), all GPUs compute products with 4-bit weights, and a plain step then
    takes clearly less time (``_WORTH_ROUNDING``) after one of the books in ``_BOOKS``, because fewer bytes of weights
    or KV are read or cross a bus. For GPUs on which rounded weights slow down passes over several tokens
    (``gains_from_tiles``), weights are rounded only if expanded weights would wait in host memory. Return the
    configuration.

    The decision follows from bytes alone, never from a timing. Otherwise the same card could round the weights at one
    start and not at the next, and the stored KV of all books would be useless.

    Raises:
        OptionError: ``weights`` is ``FITTED``, and the target is no GGUF file.
    """
    if config.weights == FITTED and not gguf.is_described(Path(config.model)):
        raise OptionError(f"weights {FITTED} is only for GGUF files.", f"Use one of {', '.join(WEIGHTS)}.")
    from_file = config.weights == "stored" and gguf.is_described(Path(config.model))
    if not from_file or architectures.pick_dtype(model, config.dtype, devices[0]) is not torch.bfloat16:
        return config
    if not KINDS[devices[0].type].own_memory or keeps_file(config, model, devices):
        return config
    waits = bool(lay_out(replace(config, middle="stored"), model, draft, devices).in_host)
    if not waits and not (all(map(gains_from_tiles, devices)) and _gains_by_rounding(config, model, draft, devices)):
        return config
    return replace(config, weights=FITTED) if all(map(multiplies_tiles, devices)) else config


def _gains_by_rounding(config: EngineConfig, model: Any, draft: Any, devices: Sequence[torch.device]) -> bool:
    """Whether rounded weights shorten a plain step after one of the books in ``_BOOKS`` clearly."""
    fitted, window = replace(config, weights=FITTED), config.context or int(model.max_position_embeddings)
    for tokens in {min(tokens, window) for tokens in _BOOKS}:
        whole, rounded = (step_bytes(each, model, draft, devices, tokens) for each in (config, fitted))
        if whole > _WORTH_ROUNDING * rounded:
            return True
    return False


def step_bytes(config: EngineConfig, model: Any, draft: Any, devices: Sequence[torch.device], tokens: int) -> float:
    """Compute the cost of a plain step after a book of ``tokens`` tokens, in bytes that the devices read from their own
    memory in the same time: a byte that crosses a bus counts ``_BUS_COST`` times, a byte from disk ``_DISK_COST``
    times. Reading and moving overlap, so the larger of the two counts. Infinite if the book does not fit.
    """
    device, layout = devices[0], lay_out(replace(config, middle="stored"), model, draft, devices)
    size, taken = model_bytes(config, model, draft, device)
    shape = kv_shape_of(model, architectures.pick_dtype(model, config.dtype, device), device).stored_as(config.kv)
    shape = replace(shape.indexed(config.chunk_size or CHUNK), split=layout.split)
    held = weights_by_device(layout, shape.model_layers, size, taken)
    waiting = len(layout.in_host) * size.weights
    # The limits of the configuration are for KV alone, so weights count only against measured memory.
    free = free_resources(device, config, None, layout.others)
    rooms = [free.device, *free.others]
    if config.device_memory == "auto":
        rooms = [max(0, beside(room, bytes_)) for room, bytes_ in zip(rooms, held, strict=True)]
    host = free.host if config.host_memory != "auto" else max(0, free.host - waiting)
    left = replace(free, device=rooms[0], others=tuple(rooms[1:]), host=host)
    memory_plan = plan(shape, tokens, beside_retrieval(shape, left, config.retrieval_budget or MIN_BUDGET))
    if memory_plan is None:
        return math.inf
    # The draft model and the embedding are not read in a plain step, but they are read at the same pace in both plans.
    moved = memory_plan.kv.host + waiting * size.copied_share
    bus = _BUS_COST * moved / len(held) + _DISK_COST * memory_plan.kv.disk
    return max(sum(held) + memory_plan.kv.device + moved, bus)


def keeps_file(config: EngineConfig, model: Any, devices: Sequence[torch.device]) -> bool:
    """Whether the GPUs read the weights of the target's GGUF file as they are stored. ``model`` is the target's
    configuration.
    """
    dtype = architectures.pick_dtype(model, config.dtype, devices[0])
    return gguf.keeps_on_card(config.model, config.weights, dtype, devices)


def weights_note(config: EngineConfig, model: Any, device: torch.device) -> str:
    """Return a note for the person about the format of the target's weights; "" if the format needs no note. ``model``
    is the target's configuration.
    """
    if not gguf.is_described(Path(config.model)):
        return WEIGHTS_NOTES.get(config.weights, "")
    if gguf.keeps_blocks(config.weights, device) or keeps_file(config, model, [device]):
        return UNCHANGED_NOTE
    return WEIGHTS_NOTES.get(config.weights, "")


def layout_of(shares: Sequence[Share], devices: Sequence[torch.device]) -> Layout:
    """Assign each layer to a device according to ``shares``. Devices without layers, except the first, are left out."""
    used = [place for place, share in enumerate(shares) if share.layers or place == 0]
    shares, devices = [shares[place] for place in used], [devices[place] for place in used]
    split = Split(tuple(devices), interleaved(shares))
    in_host: list[int] = []
    for place, share in enumerate(shares):
        layers = split.layers(place)
        in_host += [layers[index] for index in spread_evenly(len(layers), share.in_host)]
    return Layout(devices[0], split if len(devices) > 1 else None, frozenset(in_host))


def weights_by_device(layout: Layout, layers: int, size: LayerBytes, taken_bytes: int) -> list[int]:
    """Bytes of weights on each device, without the weights that wait in host memory. The first device holds
    ``taken_bytes`` in addition to its layers.
    """
    parts = layout.split.part_of if layout.split else (0,) * layers
    held = [taken_bytes] + [0] * (len(layout.split.devices) - 1 if layout.split else 0)
    for layer, part in enumerate(parts):
        held[part] += 0 if layer in layout.in_host else size.weights
    return held


def devices_in_words(device: torch.device, split: Split | None, in_host: int, *, drafts: bool) -> str:
    """Describe in words which parts of the model are on which device.

    Args:
        device: the only device, if ``split`` is None.
        split: the device of each layer.
        in_host: number of layers whose weights wait in host memory.
        drafts: whether there is a draft model.
    """
    waiting = f", the weights of {in_host} layers in memory" if in_host else ""
    if split is None:
        return f"{device}{' (untested)' if KINDS[device.type].untested else ''}{waiting}"
    counts = [f"{len(split.layers(part))} layers" for part in range(len(split.devices))]
    counts[0] += " and the draft" if drafts else ""
    return " and ".join(f"{of} ({count})" for of, count in zip(split.devices, counts, strict=True)) + waiting


def model_bytes(config: EngineConfig, model: Any, draft: Any, device: torch.device) -> tuple[LayerBytes, int]:
    """Compute the bytes that one layer of a model takes, and the bytes that embedding, head and draft model take on the
    first device. A layer may have a second copy of its weights, for passes over the retrieval cache, which is included.
    """
    dtype = architectures.pick_dtype(model, config.dtype, device)
    window = config.context or int(model.max_position_embeddings)
    shape = kv_shape_of(model, dtype, device).stored_as(config.kv).indexed(config.chunk_size or CHUNK)
    layers, embeddings = shape.model_layers, architectures.embedding_parameters(model)
    block = (architectures.estimate_parameters(model) - embeddings) // layers
    rounds = KINDS[device.type].gpu or config.weights != "stored"
    stored = 0.0 if rounds else architectures.stored_bytes_per_weight(model)
    whole = int(embeddings * (stored or dtype.itemsize))
    if config.weights == FITTED:
        weights = gguf.fitted_bytes(Path(config.model)) // layers
    elif keeps_file(config, model, [device]):
        held, whole = gguf.card_bytes(Path(config.model))
        weights = held // layers
    else:
        weights = int(block * (stored or bytes_per_weight(config.weights, dtype.itemsize)))
    size = layer_bytes(layers, weights, _size(shape), window, config.retrieval_budget or MIN_BUDGET)
    asked = host_weights(model, weights)
    reads = asked.reads(asked.step).growth(_PASS_TOKENS)
    size = replace(
        size,
        other_caches=size.other_caches + _copy_bytes(config, model, device),
        copied_share=min(1.0, asked.step * reads / weights),
    )
    drafts = 0.0
    if draft is not None:
        own = 0.0 if KINDS[device.type].gpu else architectures.stored_bytes_per_weight(draft)
        drafts = architectures.estimate_parameters(draft) * (own or dtype.itemsize)
        if config.draft and gguf.keeps_on_card(config.draft, "stored", dtype, [device]):
            drafts = sum(gguf.card_bytes(Path(config.draft)))
    return size, int(whole + drafts)


def host_weights(model: Any, weights_bytes: int) -> HostWeights:
    """Compute the bytes that a pass over one token copies from the weights in host memory, which take ``weights_bytes``
    bytes in total.
    """
    experts = architectures.experts_of(model)
    if experts is None or not weights_bytes:
        return HostWeights(weights_bytes)
    each = weights_bytes / architectures.parameters_of_block(model)
    dense = each * architectures.parameters_of_block(model, 0)
    return HostWeights(dense, each * architectures.parameters_asked(model) - dense, experts.count, experts.chosen)


def _copy_bytes(config: EngineConfig, model: Any, device: torch.device) -> int:
    """Bytes of the second copy of one layer's weights, for passes over the retrieval cache; 0 if there is no such
    copy.
    """
    dtype = architectures.pick_dtype(model, config.dtype, device)
    if config.weights != "stored" or not can_round(model, config.middle, dtype, device):
        return 0
    if keeps_file(config, model, [device]):  # these weights have few bits already, and are not copied
        return 0
    block = architectures.estimate_parameters(model) - architectures.embedding_parameters(model)
    return int(block // model.num_hidden_layers * bytes_per_weight(config.middle, dtype.itemsize))


def spill_folder(config: EngineConfig) -> Path | None:
    """The folder for files with spilled KV; None means the system's temporary folder."""
    if config.spill_folder != "auto":
        return Path(config.spill_folder)
    return Path(config.snapshot_folder) if config.snapshot_folder else None


def free_resources(
    device: torch.device,
    config: EngineConfig,
    released: KvBytes | None = None,
    others: Sequence[torch.device] = (),
) -> Resources:
    """Measure the bytes that KV may take on this machine now. A limit in the configuration replaces the usual share of
    the free memory.

    Args:
        device: where passes begin and end.
        config: limits of host memory and device memory, and the folder for spilled KV.
        released: bytes of the open book and its buffers, which count as free because they are freed first.
        others: further devices with layers of the model.
    """
    released = released or KvBytes()
    host_limit, device_limit = bytes_of(config.host_memory), bytes_of(config.device_memory)
    available = int(psutil.virtual_memory().available) + released.host
    folder = (spill_folder(config) or Path(tempfile.gettempdir())).absolute()
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    disk = int((shutil.disk_usage(existing).free + released.disk) * DISK_SHARE)
    if not KINDS[device.type].own_memory:
        parts = 1 + len(others)
        # A GPU without memory of its own shares host memory, of which it can use only a part.
        if device.type != "cpu":
            available = min(available, kinds.free_memory(device) + released.host)
            host_limit = device_limit if host_limit is None else min(host_limit, device_limit or host_limit)
        room = (int(available * MEMORY_SHARE) if host_limit is None else host_limit) // parts
        return Resources(room, 0, disk, (room,) * len(others))
    devices = (device, *others)
    back = released.cards or (released.device, *(0 for _ in others))
    free = [usable(kinds.free_memory(card) + more) for card, more in zip(devices, back, strict=True)]
    rooms = free if device_limit is None else [device_limit] * len(free)
    host = int(available * PINNED_SHARE) if host_limit is None else host_limit
    return Resources(rooms[0], host, disk, tuple(rooms[1:]))


def complete_config(
    config: EngineConfig, costs: CostModel | None, window: int, shape: KvShape, free: Resources | None = None
) -> EngineConfig:
    """Fill in the settings that the configuration leaves open, according to measured costs and memory: prefill block,
    retrieval budget and share, and chunk size.

    Args:
        free: bytes that retrieval cache and KV may take. None measures the memory that is free now, after the models
            have been loaded.
    """
    block = config.prefill_block or (costs.prefill_block if costs else 0) or None
    budget = config.retrieval_budget or (costs.retrieval_budget(window) if costs else MIN_BUDGET)
    chunk, share = config.chunk_size or _chunk_size(shape, window, config), config.retrieval_share
    if share is None:
        # On a GPU the budget does not grow with the book. A GPU's passes have a fixed shape, which covers all slots of
        # the retrieval cache. A cache with room for the longest book's budget would therefore slow down the passes of
        # every book.
        share = BUDGET_SHARE if config.retrieval_budget is None and shape.device.type == "cpu" else 0
    kind = KINDS.get(shape.device.type)
    if config.retrieval_budget is None and kind is not None and kind.gpu and budget > MIN_BUDGET:
        others = shape.split.devices[1:] if shape.split else ()
        rooms = free or free_resources(shape.device, config, None, others)
        sizes, devices = [_size(part) for part in shape.indexed(chunk).parts], (rooms.device, *rooms.others)
        budget = fitting_budget(sizes, budget, MIN_BUDGET, window, devices, rooms.host, rooms.disk)
    budget = max(budget, chunk)
    return replace(config, prefill_block=block, retrieval_budget=budget, retrieval_share=share, chunk_size=chunk)


def _chunk_size(shape: KvShape, window: int, config: EngineConfig) -> int:
    """Choose the chunk size. On a CPU it is ``FINE_CHUNK`` if memory holds the KV of a full window and the mean keys of
    such small chunks. Otherwise it is ``CHUNK``. Small chunks select single important tokens better, but have more mean
    keys.
    """
    if shape.device.type != "cpu":
        return CHUNK
    needed = window * (shape.bytes_per_token + shape.indexed(FINE_CHUNK).index_bytes_per_token)
    needed += shape.most_bounded_bytes
    return FINE_CHUNK if needed <= free_resources(shape.device, config).device else CHUNK


def plan(shape: KvShape, tokens: int, resources: Resources) -> MemoryPlan | None:
    """Place the KV of ``tokens`` tokens; None if there is no room for it."""
    rooms = (resources.device, *resources.others)
    spreads = spread_over([_size(part) for part in shape.parts], tokens, rooms, resources.host, resources.disk)
    if spreads is None:
        return None
    tiers = [Tier.DEVICE] * shape.layers
    for part, spread in enumerate(spreads):
        mine = shape.layers_of(part)
        where = Placement.spread(len(mine), spread.resident, spread.in_host).tiers
        for index, tier in zip(mine, where, strict=True):
            tiers[index] = tier
    placement = Placement(tuple(tiers))
    return MemoryPlan(tokens, placement, placement.bytes(shape, tokens), sum(spread.staging for spread in spreads))


def plan_for_book(shape: KvShape, tokens: int, limit: int, resources: Resources) -> MemoryPlan:
    """Plan for a book of ``tokens`` tokens and a chat after the book. The chat has room for ``_CHAT_TOKENS`` tokens, or
    for ``MIN_CHAT_TOKENS`` if the machine has no room for more. If the book does not fit, return a plan with all layers
    on the device and with 0 bytes.
    """
    wanted = min(limit, tokens + _CHAT_TOKENS)
    found = plan(shape, wanted, resources) or plan(shape, min(limit, tokens + MIN_CHAT_TOKENS), resources)
    return found or MemoryPlan(wanted, Placement.resident(shape.layers), KvBytes(), 0)


def beside_retrieval(shape: KvShape, free: Resources, budget: int = MIN_BUDGET) -> Resources:
    """Return the bytes of ``free`` that remain for KV after the retrieval cache has been allocated."""
    rooms = (free.device, *free.others)
    taken = [retrieval_bytes(_size(part), budget) for part in shape.parts]
    if shape.device_kind.own_memory:
        left = [max(0, beside(room, bytes_)) for room, bytes_ in zip(rooms, taken, strict=True)]
    else:
        left = [max(0, room - int(bytes_ * MEMORY_SHARE)) for room, bytes_ in zip(rooms, taken, strict=True)]
    return replace(free, device=left[0], others=tuple(left[1:]))


def longest_context(shape: KvShape, limit: int, resources: Resources) -> int:
    """The longest context, at most ``limit`` tokens, whose KV fits; 0 if none fits."""
    return largest(limit, lambda tokens: plan(shape, tokens, resources) is not None)


def _size(shape: KvShape) -> KvSize:
    index = shape.index_bytes_per_token
    buffers = shape.compute_bytes_per_token, shape.staged_bytes_per_token
    return KvSize(shape.layers, shape.bytes_per_token, *buffers, shape.quantized, index, shape.most_bounded_bytes)


def fit_book(
    document: Document,
    book: BookTokens,
    limit: int,
    shape: KvShape,
    resources: Resources,
    costs: CostModel | None = None,
    waiting: HostWeights = NO_WEIGHTS,
) -> BookFit:
    """Compare a book with the window and with free memory, and estimate its times if ``costs`` are given.

    Args:
        limit: tokens of the window.
        waiting: weights that wait in host memory.
    """
    tokens = len(book.ids)
    longest = longest_context(shape, limit, resources) - MIN_CHAT_TOKENS
    pages = book.pages_within(max(0, longest))
    fitting = min(tokens, max(0, longest))
    memory_plan = plan_for_book(shape, fitting, limit, resources)
    kv = memory_plan.placement.bytes(shape, fitting)
    words = _sentence(document, book, limit, longest, pages, kv)
    left = to_leave_out(book.sizes, longest - book.head) if book.borders else ()
    fit = BookFit(tokens, limit, tokens <= longest, pages, kv.total, words, kv, leave_out=left)
    ends = (*book.page_starts[1:], tokens)
    each = tuple(end - start for start, end in zip(book.page_starts, ends, strict=True))
    fit = replace(fit, page_tokens=each, room=max(0, longest))
    if costs is None:
        return fit
    buses = len(shape.parts)
    estimate = sentence(costs, fitting, kv, buses, waiting)
    seconds, ms = costs.reading_s(fitting, kv), costs.step_ms(fitting, kv, buses, waiting.step)
    return replace(fit, reading_s=seconds, step_ms=ms, estimate=estimate, sentence=f"{words} Expect {estimate}.")


def tiers_in_words(kv: KvBytes) -> str:
    """Describe in words how many bytes are in each tier. If KV is spilled, the words add that this makes answers
    slower.
    """
    tiers = [("on the GPU", kv.device), ("of memory", kv.host), ("on disk", kv.disk)]
    words = ", ".join(f"{count / 1e9:.2f} GB {place}" for place, count in tiers if count)
    if kv.disk or (kv.device and kv.host):
        return f"{words}, which makes answers slower"
    return words


def _sentence(document: Document, book: BookTokens, limit: int, longest: int, pages: int, kv: KvBytes) -> str:
    tokens = len(book.ids)
    several = f"{len(book.sizes)} documents, " if book.borders else ""
    head = f"{several}{document.extent()}"
    if tokens <= longest:
        return f"{head}, {tokens:,} tokens of {limit:,}: it fits ({tiers_in_words(kv)} for its cache)."
    short = "this model" if longest + MIN_CHAT_TOKENS >= limit else "the free memory"
    cause = f"{head}: too long for {short}."
    if several:
        titles = [stretch.title for stretch in document.stretches]
        return f"{cause} {leaving_out(titles, book.sizes, longest - book.head)}"
    if pages == 0:
        return f"{cause} Not even the first {document.unit} fits."
    return f"{cause} The first {pages:,} of {document.extent()} fit."
