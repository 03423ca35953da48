"""Describes the devices that torch sees on this machine, and the memory and time that a model takes there. Loads no
weights.

The app calls this module in a separate process, because a broken driver can crash the process, and importing torch
takes seconds. Every result can be pickled.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from engine.config import EngineConfig
    from engine.plan.cost_model import CostModel
    from engine.plan.planner import MemoryPlan, Resources

PROBE_DTYPES = ("float32", "bfloat16")
PROBE_WIDTH = {"cpu": 1024, "gpu": 4096}
_PROBE_REPEATS = 5
_USUAL_LENGTHS = (32_768, 131_072)  # tokens of a novel, and the usual maximum context of models


@dataclass(frozen=True)
class DeviceFacts:
    """A device that torch sees, with sizes in bytes. ``trouble`` says why torch cannot use the device, or is None.
    ``gflops`` are the measured speeds of matrix products, as pairs of a dtype and its GFLOP/s.
    """

    device: str
    name: str
    memory_total: int
    memory_free: int
    capability: str | None = None
    trouble: str | None = None
    gflops: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class TorchFacts:
    """The installed torch. ``threads`` is the number of threads that torch uses on the processor. ``devices`` are the
    devices that it can use. ``cuda``, ``rocm`` and ``xpu`` are the versions of these platforms that torch was built
    for; None if torch was not built for the platform.
    """

    version: str
    cuda: str | None
    threads: int
    devices: tuple[DeviceFacts, ...]
    rocm: str | None = None
    xpu: str | None = None


@dataclass(frozen=True)
class Expected:
    """Expected times for a book of ``tokens`` tokens, computed from probes: ``reading_s`` to read the book, and
    ``step_ms`` to decode a token after the book without speculation. ``kv`` describes in words where the book's KV is
    placed.
    """

    tokens: int
    reading_s: float
    step_ms: float
    kv: str


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model on this machine, from the model's configuration and from probes.

    ``context_limit`` is the model's maximum number of tokens of context. ``device`` describes in words where the model
    computes. ``context_in_memory`` is the longest context, in tokens, whose KV fits on the compute devices.
    ``context_in_all`` is the longest context, in tokens, whose KV fits on the compute devices, in host memory and on
    disk together. ``window_kv`` describes in words where the KV of the longest possible context is placed ("" if there
    is no room). ``speeds`` are the costs that were measured with one layer of the model's shape. ``expected`` are the
    estimated times for books of several lengths.

    The planner chooses ``prefill_block`` (0: the default block), ``retrieval_budget`` and ``retrieval_share``. If
    ``retrieval_share`` is 0, the budget does not grow with the book. ``kv_note`` and ``weights_note`` are notes about
    the formats of KV and weights. ``thinking`` says whether the model can think before it answers ("" if it cannot).
    ``others`` is the share of the processors that other programs used during the probes. ``probed_busy`` says whether
    this share was too large for valid probes.
    """

    name: str
    architecture: str
    context_limit: int
    dtype: str
    device: str
    weights_bytes: int
    kv_bytes_per_token: int
    context_in_memory: int
    context_in_all: int
    window_kv: str
    prefill_block: int = 0
    retrieval_budget: int = 0
    retrieval_share: int = 0
    expected: tuple[Expected, ...] = ()
    speeds: CostModel | None = None
    kv_note: str = ""
    weights_note: str = ""
    thinking: str = ""
    others: float = 0.0
    probed_busy: bool = False


@dataclass(frozen=True)
class MachineRates:
    """The speeds of this machine, whatever the model.

    ``flops`` are floating point operations per second in large matrix products. ``memory``, ``bus`` and ``disk`` are
    bytes per second, as in ``CostModel``; ``bus`` is 0 if the device has no memory of its own. ``quiet`` says whether
    other programs were almost idle during the measurement.
    """

    flops: float
    memory: float
    bus: float
    disk: float
    quiet: bool = True

    def best_of(self, other: MachineRates) -> MachineRates:
        """Combine two measurements by taking the better of each speed, because other programs can only slow a
        measurement down.
        """
        flops, memory = max(self.flops, other.flops), max(self.memory, other.memory)
        return MachineRates(
            flops, memory, max(self.bus, other.bus), max(self.disk, other.disk), self.quiet or other.quiet
        )


def machine_rates(folder: Path | None) -> MachineRates:
    """Measure the machine's speeds, in about a second.

    Args:
        folder: a folder on the disk to measure; None takes the system's temporary folder.
    """
    import torch

    from engine.devices import KINDS
    from engine.plan import cost_model, planner, probe

    device, others = planner.pick_device("auto"), probe.OtherPrograms()
    # The speed of the fastest dtype counts, because a model gets a dtype that the device computes fast.
    flops = max(probe.matrix_rate(device, getattr(torch, dtype)) for dtype in PROBE_DTYPES)
    bus = probe.bus_rate(device) if KINDS[device.type].own_memory else 0.0
    memory, disk = probe.copy_rate(device), probe.disk_rate(folder)
    return MachineRates(flops, memory, bus, disk, cost_model.is_quiet(others.share()))


def probe_torch() -> TorchFacts:
    """Look at every device, run one kernel on each, and time matrix products."""
    import psutil
    import torch

    from engine import devices

    memory = psutil.virtual_memory()
    cpu = DeviceFacts("cpu", "processor", memory.total, memory.available, gflops=_matrix_rates("cpu"))
    gpus = tuple(_probe_gpu(device) for kind, of in devices.KINDS.items() if of.gpu for device in devices.found(kind))
    version: Any = torch.version
    others = version.hip, getattr(version, "xpu", None)
    return TorchFacts(torch.__version__, version.cuda, torch.get_num_threads(), (cpu, *gpus), *others)


def _thinking_of(name: str, config: EngineConfig) -> str:
    """Whether the model in a folder can think before it answers, as a sentence; "" if not, or if it is not here."""
    from engine import model_files
    from engine.prompt import BookTokenizer

    if model_files.folder_of(name) is None:
        return ""
    form = BookTokenizer(name, config.tried_folder).format_for("")
    return form.thinking.sentence if form.thinking else ""


def inspect_model(name: str, config: EngineConfig) -> ModelFacts:
    """Find out how much memory and time a model takes on this machine, from its configuration and a short measurement.

    Args:
        name: folder or hub id.
        config: gives the device, the dtype and the limits of memory.

    Raises:
        ModelError: there is no such model.
        OptionError: there is no such device.
    """
    from engine.config import KV_NOTES
    from engine.model import architectures
    from engine.model.expected import kv_shape_of
    from engine.plan import cost_model, planner, probe

    model = architectures.load_config(name)
    architectures.check_numbers(model, name)
    limit = int(model.max_position_embeddings)
    window = config.context or limit
    architectures.check_architecture(model, name, window)
    device, *_ = devices = planner.pick_devices(config.device)
    is_target = name == config.model
    kv = config.kv if is_target else "model"  # a draft model's KV is small, so it is not quantized
    shape = kv_shape_of(model, architectures.pick_dtype(model, config.dtype, device), device).stored_as(kv)
    if is_target:
        shape = shape.indexed(planner.complete_config(config, None, window, shape).chunk_size or 0)
    draft = architectures.load_config(config.draft) if config.draft and is_target else None
    if is_target:
        config = planner.with_fitting_weights(config, model, draft, devices)
    layout = planner.lay_out(config, model, draft, devices)
    shape = dataclasses.replace(shape, split=layout.split)
    size, taken = planner.model_bytes(config, model, draft, device)
    _, outside = planner.model_bytes(config, model, None, device)
    waiting = planner.host_weights(model, len(layout.in_host) * size.weights).step
    held = planner.weights_by_device(layout, shape.model_layers, size, taken)
    left = _free_beside(held, config, device, layout.others)
    kv_room = planner.beside_retrieval(shape, left, config.retrieval_budget or cost_model.MIN_BUDGET)
    room = kv_room.device + sum(kv_room.others) - shape.most_bounded_bytes
    longest = planner.longest_context(shape, limit, kv_room)
    plan = planner.plan(shape, longest, kv_room)
    watch = probe.OtherPrograms()
    kinds = probe.kinds_of(name, config.weights, device, shape.dtype)
    probed = probe.measure(model, shape.dtype, device, planner.spill_folder(config), config.weights, kv, kinds, watch)
    others = watch.share()
    chosen = planner.complete_config(config, probed, window, shape, left)
    return ModelFacts(
        name=architectures.display_name(name),
        architecture=model.model_type,
        context_limit=limit,
        dtype=str(shape.dtype).removeprefix("torch."),
        device=planner.devices_in_words(device, layout.split, len(layout.in_host), drafts=draft is not None),
        weights_bytes=outside + shape.model_layers * size.weights,
        kv_bytes_per_token=shape.bytes_per_token,
        context_in_memory=min(limit, max(0, room) // shape.bytes_per_token),
        context_in_all=longest,
        window_kv=planner.tiers_in_words(plan.kv) if plan else "",
        prefill_block=chosen.prefill_block or 0,
        retrieval_budget=chosen.retrieval_budget or 0,
        retrieval_share=chosen.retrieval_share or 0,
        expected=tuple(
            _expected(planner.plan_for_book(shape, n, longest, kv_room), n, probed, waiting) for n in _lengths(longest)
        ),
        speeds=probed,
        kv_note=KV_NOTES[kv],
        weights_note=planner.weights_note(config, model, device),
        thinking=_thinking_of(name, config) if is_target else "",
        others=round(others, 2),
        probed_busy=not cost_model.is_quiet(others),
    )


def _free_beside(
    weights_bytes: Sequence[int], config: EngineConfig, device: torch.device, others: Sequence[torch.device]
) -> Resources:
    """The bytes that caches may take in addition to the model's weights.

    Args:
        weights_bytes: bytes of weights on ``device`` and on each of ``others``.
        device: where passes begin and end.
        others: further devices that have layers of the model.
    """
    from engine.devices import KINDS
    from engine.plan import planner

    free = planner.free_resources(device, config, None, others)
    # A limit that the person has set applies to the caches alone, so no weights are subtracted from it.
    limited = config.device_memory if KINDS[device.type].own_memory else config.host_memory
    if limited != "auto":
        return free
    rooms = [max(0, room - weights) for room, weights in zip((free.device, *free.others), weights_bytes, strict=True)]
    return dataclasses.replace(free, device=rooms[0], others=tuple(rooms[1:]))


def _lengths(longest: int) -> list[int]:
    """Lengths in tokens of the books for which times are estimated: the usual lengths below ``longest``, and
    ``longest``. Empty if ``longest`` is 0.
    """
    usual = [tokens for tokens in _USUAL_LENGTHS if tokens < longest]
    return [*usual, longest] if longest > 0 else []


def _expected(plan: MemoryPlan, tokens: int, costs: CostModel, waiting: float) -> Expected:
    from engine.plan import planner

    kv = plan.kv
    step_ms = costs.step_ms(tokens, kv, max(1, len(kv.cards)), waiting)
    return Expected(tokens, costs.reading_s(tokens, kv), step_ms, planner.tiers_in_words(kv))


def _probe_gpu(device: torch.device) -> DeviceFacts:
    import torch

    from engine import devices

    name, capability = devices.name_of(device), None
    if device.type == "cuda":
        capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    try:
        free, total = devices.free_memory(device), devices.total_memory(device)
        # This operation fails if this build of torch has no kernels for the GPU. The calls above succeed even then.
        torch.ones(1, device=device).add_(1).item()
        return DeviceFacts(str(device), name, total, free, capability, gflops=_matrix_rates(str(device)))
    except RuntimeError as error:
        built_for = ", ".join(torch.cuda.get_arch_list()) or "no GPU"
        build = f"; this build is for {built_for}" if device.type == "cuda" else ""
        trouble = f"torch cannot use it ({str(error).splitlines()[0]}){build}"
        return DeviceFacts(str(device), name, devices.total_memory(device), 0, capability, trouble)


def _matrix_rates(device: str) -> tuple[tuple[str, float], ...]:
    return tuple((dtype, round(_gflops(device, dtype), 1)) for dtype in PROBE_DTYPES)


def _gflops(device: str, dtype: str) -> float:
    """Measure the speed of a square matrix product in GFLOP/s: the best of a few runs."""
    import torch

    width = PROBE_WIDTH["cpu" if device == "cpu" else "gpu"]
    left = torch.ones(width, width, device=device, dtype=getattr(torch, dtype))
    seconds = []
    for _ in range(_PROBE_REPEATS):
        begin = time.perf_counter()
        product = left @ left
        product[0, 0].item()  # reading a number makes the host wait until the product is computed
        seconds.append(time.perf_counter() - begin)
    return 2 * width**3 / min(seconds) / 1e9
