"""Measures this machine in short probes: the rates of copying and of reading from disk, and the times of passes through
one layer of a model.

One layer of the model's shape and formats is built with artificial weights, and passes of several lengths through it
are timed. No weights are loaded. Slow machines are probed with fewer tokens, so that all probes together take at most
about ``LIMIT_S`` seconds. ``cost_model`` chooses settings from the results. The rates at the end of this file, such as
``matrix_rate``, are measured longer, for ``hardware`` and for the bench.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import hashlib
import json
import logging
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any

import psutil
import torch
from torch import nn

from engine import devices
from engine.config import EngineConfig
from engine.devices import KINDS, multiplies_groups
from engine.kv.full import FullCache
from engine.model import attention, experts, gguf
from engine.model.architectures import experts_of, inputs_of_layers, kv_heads_of, kv_sources, parameters_asked
from engine.model.backends.program import pack
from engine.model.decoder import Decoder
from engine.model.expected import kv_shape_of
from engine.model.families import FAMILIES, FULL
from engine.model.gguf_header import BLOCKS
from engine.model.pieces import ROPE_NAMES
from engine.model.products import replace
from engine.model.products.blocks import BlockExperts, BlockLinear, Stored, shapes_of_experts
from engine.model.products.card_blocks import to_card
from engine.model.products.norms import fuse_norms
from engine.model.products.quantized import quantize
from engine.plan import cost_model
from engine.plan.cost_model import CostModel, LayerCost
from engine.plan.planner import spill_folder
from engine.quantization import FITTED

LIMIT_S = 2.0
"""Maximum counted seconds (``cost_model.counted_s``) of all probes of a model together, apart from the time to build
the layer. Beside other programs the probes take longer, so that they still reach the blocks that a reading uses.
"""

Clock = Callable[[], float]

_log = logging.getLogger(__name__)

# Maximum share of the time limit that the repetitions of one probe may take. After this time the probe is not repeated.
_PROBE_SHARE = 0.1
_REPEATS = 3  # maximum number of repetitions of a probe
# Maximum tokens of context in the timed passes that have a context.
_CONTEXT = 4096
_MIDDLE_TOKENS = 8  # tokens of the timed pass over the retrieval cache
_FIRST_BLOCK = 16  # tokens of the first block of prefill that is timed; further blocks are larger
_CPU_BLOCK = 512  # maximum tokens of a timed block on a processor
_CUDA_BLOCK = 4096  # maximum tokens of a timed block on a GPU
_PROBE_BYTES = 1 << 25  # bytes of the tensor with which memory and bus are timed
_FILE_BYTES = 1 << 25  # bytes of the file with which a disk is timed
_PIECE = 1 << 20  # bytes of the file that are written or read in one call
# A disk is probed only if its free space is at least this number of times the size of the probe's file.
_FREE_FILES = 16
# Value of the probed layer's weights and KV. Not zero, because processors may compute faster with zeros.
_FILLING = 0.01
# Value of every byte of the probed layer's weights in the blocks of a GGUF file. In every format such weights are
# finite numbers, and no zeros.
_FILLING_BYTE = 0x2C
# Formats of a model whose weights are not in the blocks of a GGUF file (``kinds_of``).
_NO_BLOCKS: Mapping[str, int] = MappingProxyType({})
# Bytes of each copy in ``copy_rate`` and ``bus_rate``.
COPY_BYTES = 1 << 28
_BUFFERED = 8  # number of pieces in which ``bus_rate`` copies memory that cannot be pinned
_MATRIX_WIDTH = 8192  # rows and columns of the matrices that a GPU multiplies
_CPU_MATRIX_WIDTH = 512  # rows and columns of the matrices that a processor multiplies
_RATE_REPEATS = 10  # number of calls whose mean time ``_seconds`` returns


def of_engine(decoder: Decoder, config: EngineConfig) -> CostModel | None:
    """Return the costs of a loaded model on this machine. They are loaded from the file ``speeds_file``, or measured
    now and saved there.

    If other programs disturbed the measurement, the next start measures again. If the second measurement is disturbed
    too, the better of the two is saved for each value. None if ``speeds_file`` is empty or if measuring fails.
    """
    if not config.speeds_file:
        return None
    file = Path(config.speeds_file)
    kinds = kinds_of(config.model, config.weights, decoder.device, decoder.dtype)
    key = key_of(decoder.config, decoder.dtype, decoder.device, config.weights, config.kv, kinds)
    known = cost_model.load(file, key, time.time())
    if known is not None:
        return known
    others = OtherPrograms()
    try:
        folder = spill_folder(config)
        taken = measure(decoder.config, decoder.dtype, decoder.device, folder, config.weights, config.kv, kinds, others)
    except (RuntimeError, MemoryError):  # the device has no memory for one more layer
        _log.exception("this machine could not be probed")
        return None
    gc.collect()  # reference cycles keep the probe's layer and cache alive: 200 MB with a real model
    quiet = cost_model.is_quiet(others.share())
    rough = cost_model.load_rough(file, key, time.time())
    if not quiet and rough is not None:
        taken = cost_model.best_of(rough, taken)
    cost_model.save(file, key, taken, time.time(), quiet=quiet)
    return taken


class OtherPrograms:
    """Measures the share of this machine's processors that other programs use, from the creation of this object on."""

    def __init__(self) -> None:
        self._began = self._look()

    def share(self) -> float:
        busy, own, seconds = (now - before for now, before in zip(self._look(), self._began, strict=True))
        return cost_model.others_share(busy, own, seconds, psutil.cpu_count() or 1)

    @staticmethod
    def _look() -> tuple[float, float, float]:
        """Seconds that all processors worked, seconds that they worked for this program, and the current time in
        seconds. Only differences between two calls are meaningful.
        """
        times = psutil.cpu_times()
        # Linux counts the time of virtual machines twice, in "user" and in "guest", so "guest" is subtracted.
        resting = sum(getattr(times, name, 0.0) for name in ("idle", "iowait", "guest", "guest_nice"))
        own = psutil.Process().cpu_times()
        return sum(times) - resting, own.user + own.system, time.monotonic()


def kinds_of(model: str, weights: str, device: torch.device, dtype: torch.dtype = torch.float32) -> dict[str, int]:
    """The format of each tensor in a model's decoder blocks, as in ``gguf.kinds_of_block``. Empty unless ``device``
    computes with the blocks of a GGUF file.

    Args:
        model: the model's folder.
        weights: "stored", or the format to which weights are quantized.
        dtype: dtype of activations.
    """
    folder = Path(model)
    keeps = gguf.is_described(folder) and gguf.keeps_blocks(weights, device)
    keeps = keeps or gguf.keeps_on_card(model, weights, dtype, [device])
    return gguf.kinds_of_block(folder) if keeps else {}


def key_of(
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    weights: str,
    kv: str = "model",
    kinds: Mapping[str, int] = _NO_BLOCKS,
) -> str:
    """The key of saved measurements: a hash of machine, torch version, and the model's shape and formats."""
    name = devices.name_of(device) if KINDS[device.type].gpu else platform.processor() or platform.machine()
    machine = [platform.node(), name, os.cpu_count(), torch.get_num_threads(), torch.__version__]
    shape = dataclasses.astuple(kv_shape_of(config, dtype, device).stored_as(kv))
    model = [config.model_type, config.hidden_size, config.vocab_size, *map(str, shape)]
    model += [getattr(config, "intermediate_size", 0), str(experts_of(config)), *map(str, sorted(kinds.items()))]
    return hashlib.sha256(json.dumps([*machine, weights, config.num_attention_heads, *model]).encode()).hexdigest()[:32]


def measure(
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    folder: Path | None = None,
    weights: str = "stored",
    kv: str = "model",
    kinds: Mapping[str, int] = _NO_BLOCKS,
    others: OtherPrograms | None = None,
    clock: Clock = time.perf_counter,
    limit_s: float = LIMIT_S,
) -> CostModel:
    """Measure the costs of a model on this machine.

    Args:
        config: the model's configuration.
        dtype, device: dtype and device of weights and KV.
        folder: folder for spilled KV, on the disk that is measured; None takes the system's temporary folder.
        weights: "stored", or the format to which weights are quantized.
        kv: "model", or the format to which KV is quantized.
        kinds: the formats of the tensors in a GGUF file whose blocks the device computes with (``kinds_of``).
        others: the other programs, whose work on the processors makes passes there count less. None counts passes in
            full.
        clock: returns seconds.
        limit_s: maximum counted seconds of the probes that run the layer.
    """
    probe = _Probe(_one_layer(config, dtype, device, weights, kinds), kv, clock, limit_s, others)
    with torch.inference_mode():
        memory = 2 * _PROBE_BYTES / probe.copy_seconds()
        disk = disk_rate(folder, clock)
        # Only a plain step dequantizes 8-bit KV, because the retrieval cache is not quantized.
        step, middle = probe.pass_speed(1, prepare=probe.forget), probe.pass_speed(_MIDDLE_TOKENS)
        blocks = probe.blocks()
        block_per_token = probe.block_per_token(blocks)
    layers, shape = config.num_hidden_layers, kv_shape_of(config, dtype, device)
    reading = sum(shape.place_of(layer) is not None for layer in range(layers))
    sees_all = reading / layers  # share of layers that read the whole context; the probed layer is one of these

    def of_mean_layer(cost: LayerCost) -> LayerCost:
        window = shape.sliding.window if shape.sliding else 0  # tokens that a sliding layer sees in any long context
        return LayerCost(cost.base + (1 - sees_all) * cost.per_token * window, sees_all * cost.per_token)

    return CostModel(
        memory=memory,
        bus=bus_rate(device, _PROBE_BYTES) if KINDS[device.type].own_memory else 0.0,
        disk=disk,
        layers=layers,
        head=config.vocab_size * config.hidden_size / max(1, parameters_asked(config)),
        step=of_mean_layer(step),
        middle=of_mean_layer(middle),
        middle_tokens=_MIDDLE_TOKENS,
        blocks=tuple(blocks),
        block_per_token=sees_all * block_per_token,
    )


def _nothing() -> None:
    pass


class _Probe:
    """Times passes through one layer with a filled cache."""

    def __init__(
        self, layer: Decoder, kv: str, clock: Clock, limit_s: float, others: OtherPrograms | None = None
    ) -> None:
        self._layer, self._clock, self._device = layer, clock, layer.device
        self._others = None if KINDS[layer.device.type].gpu else others
        config, device = layer.config, layer.device
        self._most = (layer.longest_block or _CPU_BLOCK) if device.type == "cpu" else _CUDA_BLOCK
        window = max(64, min(config.max_position_embeddings, _CONTEXT + self._most))
        self._most = min(self._most, window // 2)
        self.context = min(_CONTEXT, window - self._most)
        shape = layer.kv_shape.stored_as(kv)
        self._cache = FullCache(shape, window)
        self._cache.reserve(window)
        filling = torch.full((1, 1, 1, 1), _FILLING, dtype=shape.dtype, device=device)
        filling = filling.expand(1, shape.kv_heads, window, shape.head_dim)
        self._cache.write(0, 0, filling, filling)
        self._left = limit_s
        self._share = _PROBE_SHARE * limit_s

    def copy_seconds(self) -> float:
        source = torch.full((_PROBE_BYTES,), 1, dtype=torch.uint8, device=self._device)
        target = torch.zeros_like(source)
        return self._best(lambda: target.copy_(source))

    def pass_speed(self, tokens: int, prepare: Callable[[], None] = _nothing) -> LayerCost:
        alone, behind = self.seconds(tokens, 0), self.seconds(tokens, self.context, prepare)
        return LayerCost(alone, max(0.0, behind - alone) / self.context)

    def blocks(self) -> list[tuple[int, float]]:
        """Time prefill blocks, each twice as long as the previous one, until the limit or the maximum size is reached.
        Return pairs of tokens and seconds.
        """
        blocks, tokens = [], min(_FIRST_BLOCK, self._most)
        while tokens <= self._most:
            seconds = self.seconds(tokens, 0)
            blocks.append((tokens, seconds))
            if 2 * seconds > self._share or self._left < 0.0:
                break
            tokens *= 2
        return blocks

    def block_per_token(self, blocks: Sequence[tuple[int, float]]) -> float:
        """Time how many seconds a token of context adds for each token of a block. The fastest of ``blocks`` is timed,
        because prefill uses blocks of about that length, and a far longer time would hide what the context adds.
        """
        tokens, alone = max(blocks, key=lambda block: block[0] / block[1])
        return max(0.0, self.seconds(tokens, self.context) - alone) / (tokens * self.context)

    def forget(self) -> None:
        """Drop the dequantized copy of 8-bit KV that the last pass made. In a whole model the next layer overwrites
        this copy, so each pass through a layer has to make it again. Has no effect on KV in the model's dtype.
        """
        self._cache.crop(0)

    def seconds(self, tokens: int, context: int, prepare: Callable[[], None] = _nothing) -> float:
        """Seconds of a pass over ``tokens`` tokens after ``context`` tokens, including a call of ``prepare`` before
        each run.
        """
        layer, cache = self._layer, self._cache
        # Each token has different numbers, so that different tokens choose different experts.
        hidden = _noise(1, tokens, layer.config.hidden_size).to(self._device, layer.dtype)
        rope = layer.rope(torch.arange(context, context + tokens, device=self._device))

        def work() -> None:
            prepare()
            layer.layer(0, hidden, rope, cache.extend(context))

        return self._best(work)

    def _best(self, work: Callable[[], Any]) -> float:
        """Run ``work`` a few times, or less often if it is slow, and return the minimum counted seconds of a run.

        On a GPU the first run loads and chooses kernels. It is therefore not timed, and does not count towards the
        limit. On a processor torch prepares products of a new size in the first run, up to 0.2 s, so at least two runs
        are timed unless the limit is reached.
        """
        best, spent = float("inf"), 0.0
        if KINDS[self._device.type].gpu:
            work()
            devices.synchronize(self._device)
        for number in range(1 + _REPEATS):
            seconds = self._timed(work)
            best, spent = min(best, seconds), spent + (seconds if number else 0.0)
            self._left -= seconds
            if spent > self._share or self._left < 0.0:
                break
        return max(best, 1e-9)

    def _timed(self, work: Callable[[], Any]) -> float:
        """Run ``work`` once and return its counted seconds."""
        began, computed = self._clock(), time.process_time()
        work()
        devices.synchronize(self._device)
        own, seconds = time.process_time() - computed, self._clock() - began
        if self._others is None:
            return seconds
        return cost_model.counted_s(seconds, own / torch.get_num_threads(), self._others.share())


def _one_layer(
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    weights: str,
    kinds: Mapping[str, int] = _NO_BLOCKS,
) -> Decoder:
    """Make a decoder of the model's shape with a single layer, one that keeps the whole context. Embedding and output
    head have no weights.
    """
    from transformers import AutoModelForCausalLM

    attention.register()
    one, family = _settings_of_one_layer(config), FAMILIES[config.model_type]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(one, dtype=dtype, attn_implementation=attention.IMPLEMENTATION)
    model.requires_grad_(False).eval()
    model.model.layers[0].to_empty(device="cpu")
    for name, weight in model.model.layers[0].named_parameters():
        if experts.chooses(name):
            weight.copy_(_noise(*weight.shape))
        else:
            weight.fill_(_FILLING)
    for held in model.model.layers[0].buffers():
        held.zero_()
    _store_in_blocks(model.model.layers[0], kinds, dtype)
    if weights != "stored" or kinds or not multiplies_groups(device, dtype):
        experts.install(model.model.layers, family)
    if weights != "stored":
        # The format of each of the file's tensors is not known here. 4 bits are assumed, because most tensors have 4
        # bits.
        quantize(model.model.layers, "4bit" if weights == FITTED else weights, config.model_type)
    if device.type == "cuda":
        fuse_norms(model, family)
        to_card(model.model.layers[0], device)
    model.model.layers[0].to(device)
    pack(model, family, dtype)
    for name in ROPE_NAMES:
        if (rope := getattr(model.model, name, None)) is not None:
            setattr(model.model, name, type(rope)(config=one).to(device))
    decoder = Decoder(model, "probe", int(config.max_position_embeddings))
    decoder.device, decoder.dtype = device, dtype
    return decoder


def _store_in_blocks(block: nn.Module, kinds: Mapping[str, int], dtype: torch.dtype) -> None:
    """Replace the linear layers and experts of a decoder block by layers with artificial weights in the formats of a
    GGUF file.

    Args:
        kinds: GGML's number for the format of each tensor, keyed by name (``gguf.kinds_of_block``).
    """

    def artificial(name: str, outputs: int, inputs: int) -> Stored:
        values, size = BLOCKS[kinds[name]]
        data = torch.full((outputs, inputs // values * size), _FILLING_BYTE, dtype=torch.uint8)
        return Stored(data, kinds[name], inputs)

    for path, part in list(block.named_modules()):
        name = f"{path}.weight"
        if isinstance(part, nn.Linear) and name in kinds and not experts.chooses(name):
            stored = artificial(name, part.out_features, part.in_features)
            replace(block, path, BlockLinear(stored, part.bias, dtype))
        elif f"{path}.down.weight" in kinds:
            shapes = shapes_of_experts(part, joined=f"{path}.gate_up.weight" in kinds)
            count = len(part.down_proj)
            parts = {
                f"{own}.weight": artificial(f"{path}.{own}.weight", count * outputs, inputs)
                for own, (outputs, inputs) in shapes.items()
            }
            replace(block, path, BlockExperts(part, parts, dtype))


def _settings_of_one_layer(config: Any) -> Any:
    """Copy a model's settings, reduced to a single layer: one that keeps the whole context and, in a mixture of
    experts, has experts.
    """
    one = copy.deepcopy(config)
    if getattr(one, "layer_types", None):
        one.layer_types = [FULL]
    one.num_hidden_layers = 1
    if kv_sources(config) or inputs_of_layers(config):
        one.num_kv_shared_layers = one.hidden_size_per_layer_input = 0
    if getattr(one, "is_heterogeneous", False):
        one.per_layer_config = None
        one.num_key_value_heads, one.head_dim = kv_heads_of(config, FULL)
    for name, every in (("num_dense_layers", 0), ("mlp_only_layers", []), ("decoder_sparse_step", 1)):
        if hasattr(one, name):
            setattr(one, name, every)
    return one


def _noise(*shape: int) -> torch.Tensor:
    """Make normally distributed numbers. The same shape always gives the same numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def disk_rate(folder: Path | None, clock: Clock = time.perf_counter) -> float:
    """Measure in bytes per second how fast a file is read from disk, after the system was asked to drop it from memory.
    0 if the disk is too full or the folder cannot be written to.
    """
    try:
        place = Path(tempfile.gettempdir()) if folder is None else folder
        place.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(place).free < _FREE_FILES * _FILE_BYTES:
            return 0.0
        with tempfile.TemporaryFile(dir=place, prefix="probe-", buffering=0) as file:
            return _FILE_BYTES / _file_seconds(file, clock)
    except OSError as error:
        _log.info("the disk was not probed: %s", error.strerror)
        return 0.0


def _file_seconds(file: IO[bytes], clock: Clock) -> float:
    piece = os.urandom(_PIECE)
    for _ in range(_FILE_BYTES // _PIECE):
        file.write(piece)
    os.fsync(file.fileno())
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    file.seek(0)
    buffer = bytearray(_PIECE)
    began = clock()
    while file.readinto(buffer):  # type: ignore[attr-defined]
        pass
    return max(clock() - began, 1e-9)


# Rates ------------------------------------------------------------------------------------------------------------


def copy_rate(device: torch.device) -> float:
    """Measure the rate of a copy within the device, in bytes read and bytes written per second."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * COPY_BYTES / _seconds(device, lambda: target.copy_(source))


def bus_rate(device: torch.device, size: int = COPY_BYTES) -> float:
    """Measure the rate from host memory to the device in bytes per second, with copies of ``size`` bytes. They move as
    spilled KV does: from pinned memory if the device has streams, or through two pinned buffers if the system lets no
    more be pinned.
    """
    streams, target = KINDS[device.type].streams, torch.empty(size, dtype=torch.uint8, device=device)
    if streams and not devices.pins_in_place():
        return size / _seconds(device, _through_buffers(torch.ones(size, dtype=torch.uint8), target))
    source = torch.empty(size, dtype=torch.uint8, pin_memory=streams)
    return size / _seconds(device, lambda: target.copy_(source, non_blocking=True))


def _through_buffers(source: torch.Tensor, target: torch.Tensor) -> Callable[[], None]:
    """Make the function that copies host memory to a GPU through two pinned buffers. While the GPU fetches the content
    of one buffer, the host fills the other.
    """
    size = max(1, len(source) // _BUFFERED)
    buffers = [(torch.empty(size, dtype=torch.uint8, pin_memory=True), torch.cuda.Event()) for _ in range(2)]

    def send_pieces() -> None:
        for number, (given, taken) in enumerate(zip(source.split(size), target.split(size), strict=True)):
            buffer, moved = buffers[number % 2]
            moved.synchronize()
            taken.copy_(buffer[: len(given)].copy_(given), non_blocking=True)
            moved.record()

    return send_pieces


def matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Measure the floating point operations per second of a large matrix product."""
    width = _MATRIX_WIDTH if KINDS[device.type].gpu else _CPU_MATRIX_WIDTH
    left = torch.randn(width, width, device=device).to(dtype)
    return float(2 * width**3 / _seconds(device, lambda: left @ left))


def _seconds(device: torch.device, work: Callable[[], Any]) -> float:
    """Mean seconds of ``_RATE_REPEATS`` calls of ``work``, after a first call that is not timed."""
    work()
    devices.synchronize(device)
    began = time.perf_counter()
    for _ in range(_RATE_REPEATS):
        work()
    devices.synchronize(device)
    return (time.perf_counter() - began) / _RATE_REPEATS
