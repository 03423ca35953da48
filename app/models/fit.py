"""Whether a pair of models fits on this machine, before it is downloaded: its numbers, the free memory, a sentence.

The numbers come from settings files, which strangers write: every one is checked before it is used in arithmetic. The
engine's planner has the last word once a book is there; this says beforehand what it will say for the longest book.

And what the pair would do with a book of 300 pages, as a range. Reading computes: every weight and the attention of
every token to all before it. Writing moves: weights and cache once for every token without guesses. The machine's rates
are measured once (``engine.plan.hardware.machine_rates``). What was seen of a model here says it better
(``app.core.forecast.Experience``).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from app.core.forecast import PROBED, WORDS_PER_TOKEN, Span, expected
from app.core.format import size
from engine import Status, model_files
from engine.errors import ModelError, ModelNotFound, OptionError
from engine.model.architectures import (
    MLP_NUMBERS,
    STATE_NUMBERS,
    check_architecture,
    cpu_holds_halves,
    experts_of,
    is_expanded,
    kv_heads_of,
    kv_sources,
    parameters_asked,
    parameters_of_block,
    parameters_of_inputs,
    recurrent_layers,
    sliding_layers,
    state_size,
    text_settings,
)
from engine.model.families import FAMILIES, FULL
from engine.plan.cost_model import MIN_BUDGET
from engine.plan.hardware import MachineRates
from engine.plan.memory_budget import (
    CHUNK,
    DISK_SHARE,
    MEMORY_SHARE,
    PINNED_SHARE,
    DeviceRoom,
    KvSize,
    Share,
    largest,
    layer_bytes,
    share_layers,
    spread_over,
)
from engine.quantization import (
    BITS,
    SCALE_BYTES,
    StateSize,
    bytes_per_weight,
    index_bytes,
    index_is_quantized,
    sliding_capacity,
)

CONFIG = "config.json"
SHORTEST_BOOK = 4_096  # tokens; a machine that holds less than this of a book is no place for the model
_LARGEST = 1 << 31  # of any number in a settings file
GPU_CLASSES = (8, 12, 16, 24, 48)  # GB, as they are sold
_GPU_SHARE = 0.92  # of such a GPU, free where nothing else runs
_CLASS_BOOK = 32_768  # tokens of a book that a GPU of a model's class has room for
TOKENS_PER_PAGE = 400  # 300 words, as a printed page has
BOOK_PAGES = 300
BOOK_TOKENS = BOOK_PAGES * TOKENS_PER_PAGE
_TALK_TOKENS = 1_024  # of a window, for a question and its answer
_REACHED = 0.6  # share of its largest products that a machine reaches over a whole model
_WIDTH = 12  # weights of a block of the usual kind, over its width squared
_GUESSED = 2.5  # times the speed of plain steps at which a quotation is written (assets/measurements)
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

Verdict = Literal["whole", "part", "none"]


@dataclass(frozen=True)
class ModelShape:
    """The numbers of one model.

    ``weights_bytes`` are those of its files; ``window`` is the longest context in tokens that its settings allow;
    ``embeddings`` are the parameters of embedding and output head, which are never quantized. Of the layers
    ``sliding_layers`` hold a window of ``sliding_window`` tokens, and ``recurrent_layers`` a ``state``, whatever the
    context; ``sliding_kv`` are KV heads and numbers of a head of theirs, where they are not those of the others.
    ``sharing_layers`` have no cache of their own: ``full_sharing`` of them read that of one that keeps the whole
    context. ``inputs`` are those of the embeddings that give each layer a row for the token. ``asked`` are the
    parameters that a token meets, where they are not all: of experts the chosen ones alone.
    ``expanded``: the files hold weights in 4 bits, which are expanded in memory, layer by layer where they are rounded.
    """

    layers: int
    kv_heads: int
    head_dim: int
    parameters: int
    weights_bytes: int
    window: int
    embeddings: int = 0
    sliding_layers: int = 0
    sliding_window: int = 0
    recurrent_layers: int = 0
    state: StateSize | None = None
    asked: int = 0
    expanded: bool = False
    sliding_kv: tuple[int, int] | None = None
    sharing_layers: int = 0
    full_sharing: int = 0
    inputs: int = 0

    @property
    def parameters_asked(self) -> int:
        """The parameters that a token meets."""
        return self.asked or self.parameters

    @property
    def full_layers(self) -> int:
        """Layers that keep the whole context."""
        return self.layers - self.sliding_layers - self.recurrent_layers - self.sharing_layers

    @property
    def reading_layers(self) -> int:
        """Layers that read the whole context, their own or that of another one."""
        return self.full_layers + self.full_sharing

    def kv_bytes_per_token(self, itemsize: int = 2) -> int:
        """Bytes that one token takes in the full cache: keys and values of every KV head."""
        return 2 * self.full_layers * self.kv_heads * self.head_dim * itemsize

    def bounded_bytes(self, itemsize: int = 2) -> int:
        """Bytes of what the other layers hold, however many tokens there are."""
        held = sliding_capacity(self.sliding_window) + self.sliding_window
        heads, width = self.sliding_kv or (self.kv_heads, self.head_dim)
        windows = 2 * self.sliding_layers * heads * width * itemsize * held
        states = self.recurrent_layers * (self.state.held_bytes(itemsize) if self.state else 0)
        return windows + states

    @property
    def quantized_kv_bytes_per_token(self) -> int:
        """Of cache in 8 bits: a byte a number, and the scale of each key and value of a head."""
        return 2 * self.full_layers * self.kv_heads * (self.head_dim + SCALE_BYTES)


def read_config(folder: Path) -> dict[str, Any]:
    """The settings of a model folder.

    Raises:
        ModelNotFound: there is no such folder, or no settings in it.
        ModelError: they cannot be read.
    """
    path = folder / CONFIG
    if not os.path.lexists(path):
        raise ModelNotFound(f"There is no model in {folder}: {CONFIG} is missing.", "Choose the folder that holds it.")
    return model_files.read_object(path)


def shape_of(config: Mapping[str, Any], name: str, weights_bytes: int = 0) -> ModelShape:
    """The numbers in a model's settings.

    Args:
        weights_bytes: size of its files; 0 estimates it from the shape, at two bytes a parameter.

    Raises:
        UnsupportedModel: what the engine cannot do with it yet.
        ModelError: a number is missing or cannot be right.
    """
    config = text_settings(config)
    kind = config.get("model_type")
    config["model_type"] = kind = kind if isinstance(kind, str) else "nameless"
    window = _number(config, "max_position_embeddings", name) if kind in FAMILIES else 0
    check_architecture(SimpleNamespace(**config), name, window)
    family = FAMILIES[kind]
    width = _number(config, "hidden_size", name)
    layers = _number(config, "num_hidden_layers", name)
    heads = _number(config, "num_attention_heads", name)
    kv_heads = _number(config, "num_key_value_heads", name, heads)
    head_dim = _number(config, "head_dim", name, width // heads)
    inner = _number(config, "intermediate_size", name, config.get("block_ff_dim", config.get("moe_intermediate_size")))
    vocabulary = _number(config, "vocab_size", name)
    tied = config.get("tie_word_embeddings", family.tied)
    embeddings = (1 if tied else 2) * vocabulary * width
    chooses = "enable_moe_block" in family.reads
    has_experts = family.experts and config.get("num_local_experts") != 0  # where none are, it is said so
    has_experts = has_experts and (not chooses or config.get("enable_moe_block") is True)
    _check_own(config, family.reads, name)
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": inner, "head_dim": head_dim}
    sized = SimpleNamespace(**{**config, **sizes, "num_attention_heads": heads, "num_key_value_heads": kv_heads})
    recurrent = len(recurrent_layers(sized))
    for key in STATE_NUMBERS[family.others] if recurrent else ():
        _number(config, key, name)
    sources = _check_kv_sources(sized, name)
    for key in MLP_NUMBERS:
        if key in config and (has_experts or ("num" not in key and not chooses)):
            _number(config, key, name)
    if has_experts:
        _number(config, "num_experts", name, config.get("num_local_experts"))
        for key in ("top_k_experts", "moe_intermediate_size") if chooses else ():
            _number(config, key, name)
    factor = config.get("block_ffn_dim_multiplier", 1)
    if type(factor) not in (int, float) or not 0 < factor < _LARGEST:
        raise ModelError(f"{CONFIG} of {name} gives a factor of {factor}.", "Download the model again.")
    inputs = parameters_of_inputs(sized)
    embeddings += inputs
    parameters = layers * parameters_of_block(sized) + embeddings
    weights_bytes = weights_bytes or 2 * parameters
    own = kv_heads_of(sized, FULL)
    shape = ModelShape(layers, *own, parameters, weights_bytes, window, embeddings)
    shape = replace(shape, expanded=is_expanded(sized), inputs=inputs)
    if experts_of(sized) is not None or inputs:
        shape = replace(shape, asked=layers * parameters_asked(sized) + embeddings - inputs)
    windows = set(sliding_layers(sized))
    sliding = len(windows.difference(sources))
    if sources:
        shape = replace(shape, sharing_layers=len(sources), full_sharing=len(sources.keys() - windows))
    if own != (kv_heads, head_dim):
        shape = replace(shape, sliding_kv=(kv_heads, head_dim))
    if sliding + recurrent + len(sources) >= layers:
        raise ModelError(f"{CONFIG} of {name} names other layers than it has.", "Download the model again.")
    width = _number(config, "sliding_window", name) if sliding else 0
    shape = replace(shape, sliding_layers=sliding, sliding_window=width)
    return replace(shape, recurrent_layers=recurrent, state=state_size(sized) if recurrent else None)


def _check_own(config: Mapping[str, Any], own: Sequence[str], name: str) -> None:
    """The numbers of those settings that only some families know."""
    if "global_head_dim" in own:
        _number(config, "global_head_dim", name)
        _number(config, "num_global_key_value_heads", name, 1)
    if "hidden_size_per_layer_input" in own and config.get("hidden_size_per_layer_input"):
        _number(config, "hidden_size_per_layer_input", name)
        _number(config, "vocab_size_per_layer_input", name)


def _check_kv_sources(config: Any, name: str) -> dict[int, int]:
    """The layers without KV of their own, with those whose they read."""
    shared = getattr(config, "num_kv_shared_layers", None) or 0
    if type(shared) is not int or not 0 <= shared < config.num_hidden_layers:
        raise ModelError(f"{CONFIG} of {name} names other layers than it has.", "Download the model again.")
    return kv_sources(config)


def _number(config: Mapping[str, Any], key: str, name: str, otherwise: int | None = None) -> int:
    value = config.get(key)
    if value is None and otherwise is not None:
        value = otherwise
    if type(value) is not int or not 0 < value < _LARGEST:
        raise ModelError(f"{CONFIG} of {name} gives no {key} that can be right.", "Download the model again.")
    return value


@dataclass(frozen=True)
class FreeMemory:
    """What this machine has, in bytes. ``memory`` is where the model computes, once the present one is gone; ``host``
    is memory beside a GPU that a cache can spill to, 0 without one; ``disk`` is what is free there. ``others`` is the
    memory of further GPUs that may be used, none larger than that of the first. ``kv`` is how this start keeps a cache:
    "model", or "8bit"; ``quantization`` is the format of a target's weights: "8bit", "4bit", or "stored", as they come.
    """

    memory: int
    disk: int
    on_gpu: bool
    host: int = 0
    kv: str = "model"
    quantization: str = "stored"
    others: tuple[int, ...] = ()

    @property
    def where(self) -> str:
        if self.others:
            return f"memory on {1 + len(self.others)} GPUs"
        return "GPU memory" if self.on_gpu else "memory"

    @property
    def cards(self) -> tuple[int, ...]:
        """The memory of each device."""
        return (self.memory, *self.others)


@dataclass(frozen=True)
class ModelFit:
    """``tokens`` of context fit beside the weights, ``spilled`` of them if slower tiers are used as well.

    ``weights`` are bytes in memory; ``kv_per_1k`` is bytes of cache for 1,000 tokens.
    """

    verdict: Verdict
    tokens: int
    spilled: int
    weights: int
    kv_per_1k: int
    sentence: str


def fit_pair(target: ModelShape, draft: ModelShape | None, free: FreeMemory) -> ModelFit:
    """What running this pair takes here."""
    itemsize = _itemsize(target, free)
    weights = _weights(target, itemsize, free.quantization)
    layers = weights - target.embeddings * itemsize
    weights += _weights(draft, _itemsize(draft, free), "stored") if draft else 0
    kv = _kv_size(target, itemsize, free)
    rooms = [DeviceRoom(bytes_, 0 if place else weights - layers) for place, bytes_ in enumerate(free.cards)]
    shares = _shares(target, layers // target.layers, kv, rooms)
    parts = _parts(target, kv, shares)
    held = [room.taken + share.layers * layers // target.layers for room, share in zip(rooms, shares, strict=True)]
    left = [int((room.free - bytes_) * MEMORY_SHARE) for room, bytes_ in zip(rooms, held, strict=True)]

    def longest(host: int, disk: int) -> int:
        return largest(target.window, lambda count: spread_over(parts, count, left, host, disk) is not None)

    tokens, spilled = longest(0, 0), longest(int(free.host * PINNED_SHARE), int(free.disk * DISK_SHARE))
    verdict: Verdict = "whole" if tokens == target.window else "part" if spilled >= SHORTEST_BOOK else "none"
    sentence = _sentence(verdict, tokens, spilled, weights, free)
    loading, room = _weights(target, itemsize, free.quantization), free.host if free.on_gpu else free.memory
    if free.quantization in BITS:  # a layer at a time is expanded
        loading += (target.parameters - target.embeddings) // target.layers * itemsize
    if target.expanded and loading > room:
        verdict = "none"
        sentence = (
            f"Does not fit: its weights are stored in 4 bits, take {size(loading)} of memory when they are loaded, "
            f"and {size(room)} are free."
        )
    return ModelFit(verdict, tokens, spilled, weights, 1000 * kv.stored, sentence)


def gain_in_words(target: ModelShape, found: ModelFit) -> str:
    """What the middle level can gain at most with a model of which some layers alone read the whole book, behind a
    book of 300 pages; empty for others.

    A plain step moves weights and cache, a pass of the middle level hardly more than the weights.
    """
    if target.reading_layers == target.layers:
        return ""
    tokens = min(BOOK_TOKENS, target.window)
    kv_read = tokens * found.kv_per_1k / 1000 * target.reading_layers / target.full_layers
    gain = 1 + kv_read / _weights_read(target, found)
    return (
        f"{target.reading_layers} of its {target.layers} layers read the whole book: behind {tokens:,} tokens the "
        f"retrieval cache makes answers {gain:.1f} times as fast at most. Quotations gain as with other models."
    )


def _weights_read(target: ModelShape, found: ModelFit) -> float:
    """Bytes of the weights that a step of one token reads."""
    return found.weights * target.parameters_asked / target.parameters


def _shares(target: ModelShape, weights: int, kv: KvSize, rooms: Sequence[DeviceRoom]) -> list[Share]:
    """The layers of each device, as the planner shares them out.

    It lets weights that no GPU holds wait in host memory, from where every pass brings them. That is for who asks for
    it on the command line: what is offered here has its weights where it computes, so such a model does not fit.
    """
    if len(rooms) == 1:
        return [Share(target.layers)]
    return share_layers(target.layers, layer_bytes(target.layers, weights, kv, target.window, MIN_BUDGET), rooms)


def _parts(target: ModelShape, kv: KvSize, shares: Sequence[Share]) -> list[KvSize]:
    """The KV of each device's layers; layers with a window or a state lie evenly between the others."""
    ends = list(accumulate(share.layers for share in shares))
    parts = []
    for first, last in zip([0, *ends], ends, strict=False):
        begin, end = (place * target.full_layers // target.layers for place in (first, last))
        whole = kv.stored, kv.computed, kv.staged
        stored, computed, staged = (bytes_ * (end - begin) // target.full_layers for bytes_ in whole)
        index = kv.index * (end - begin) // target.full_layers
        fixed = kv.fixed * (last - first) // target.layers
        parts.append(KvSize(end - begin, stored, computed, staged, kv.quantized, index, fixed))
    return parts


def gpu_in_words(target: ModelShape, draft: ModelShape | None) -> str:
    """The smallest class of GPU that holds a pair and a book of 32,768 tokens, with weights as they come and in 4 bits;
    empty where none does."""
    whole, rounded = (_gpu_class(target, draft, weights) for weights in ("stored", "4bit"))
    if whole is None:
        return f"GPU of {rounded} GB with weights in 4 bits" if rounded else ""
    return f"GPU of {whole} GB" + (f", of {rounded} with weights in 4 bits" if rounded and rounded < whole else "")


def _gpu_class(target: ModelShape, draft: ModelShape | None, weights: str) -> int | None:
    for size_gb in GPU_CLASSES:
        card = int(size_gb * (1 << 30) * _GPU_SHARE)
        free = FreeMemory(card, 0, on_gpu=True, host=target.parameters * 2, quantization=weights)
        if fit_pair(target, draft, free).tokens >= min(_CLASS_BOOK, target.window):
            return size_gb
    return None


@dataclass(frozen=True)
class Rounding:
    """Formats that make a model fit that would not: of weights ("" or a key of ``BITS``) and of the cache ("" or
    "8bit")."""

    weights: str
    kv: str

    @property
    def words(self) -> str:
        bits = [f"{BITS[self.weights]}-bit weights"] if self.weights else []
        return " and ".join(bits + (["an 8-bit cache"] if self.kv else []))

    @property
    def options(self) -> str:
        """The same for the terminal."""
        return f"--weights {self.weights}" + (f" --kv {self.kv}" if self.kv else "")

    def of(self, free: FreeMemory) -> FreeMemory:
        return replace(free, quantization=self.weights or free.quantization, kv=self.kv or free.kv)


_ROUNDINGS = (Rounding("8bit", ""), Rounding("8bit", "8bit"), Rounding("4bit", ""), Rounding("4bit", "8bit"))


def roundings(target: ModelShape, draft: ModelShape | None, free: FreeMemory) -> list[tuple[Rounding, ModelFit]]:
    """The roundings with which a pair fits that does not fit as it comes, the mildest first; none where it does."""
    if fit_pair(target, draft, free).verdict != "none":
        return []
    found = [(one, fit_pair(target, draft, one.of(free))) for one in _ROUNDINGS]
    return [(one, fits) for one, fits in found if fits.verdict != "none"]


def rounding(target: ModelShape, draft: ModelShape | None, free: FreeMemory) -> Rounding | None:
    """The mildest of them that holds a book of 300 pages, or the whole window, where the model computes; the mildest of
    all where none does. None where none helps, or none is needed."""
    found = roundings(target, draft, free)
    book = min(BOOK_TOKENS, target.window)
    return next((one for one, fits in found if fits.tokens >= book), found[0][0] if found else None)


def _kv_size(shape: ModelShape, itemsize: int, free: FreeMemory) -> KvSize:
    whole = shape.kv_bytes_per_token(itemsize)
    quantized = free.kv == "8bit"
    kept = shape.quantized_kv_bytes_per_token if quantized else whole
    small = index_is_quantized(shape.head_dim, not free.on_gpu)
    index = index_bytes(shape.full_layers * shape.kv_heads, shape.head_dim, itemsize, CHUNK, small)
    staged = whole + (kept if quantized and not free.on_gpu else 0)  # as ``KvShape.staged_bytes_per_token``
    return KvSize(shape.full_layers, kept, whole, staged, quantized, index, shape.bounded_bytes(itemsize))


def _weights(shape: ModelShape, itemsize: int, quantization: str) -> int:
    """Bytes in memory; embedding and output head stay as they are."""
    blocks = shape.parameters - shape.embeddings
    return int(shape.embeddings * itemsize + blocks * bytes_per_weight(quantization, itemsize))


def _itemsize(shape: ModelShape, free: FreeMemory) -> int:
    return 2 if free.on_gpu or cpu_holds_halves(shape.parameters) else 4


def _sentence(verdict: Verdict, tokens: int, spilled: int, weights: int, free: FreeMemory) -> str:
    if verdict == "none":
        return (
            f"Does not fit: it needs {size(weights)} and room for a book, "
            f"and {size(max(0, sum(free.cards)))} of {free.where} are free."
        )
    if verdict == "whole":
        return f"Fits, with books of up to {_books(tokens)}."
    slower = "partly in slower memory or on disk" if free.on_gpu else "partly on disk"
    if tokens < SHORTEST_BOOK:
        return f"Fits, with little {free.where} left for books: they lie {slower}, and answers are slow."
    longer = "" if spilled <= tokens else f" Longer ones lie {slower}, and answers are slower."
    return f"Fits, with books of up to {_books(tokens)} in {free.where}.{longer}"


def pages_of(tokens: int) -> int:
    """Printed pages that this much context holds beside a question and its answer; of a whole book, its pages."""
    return max(1, (tokens if tokens >= BOOK_TOKENS else tokens - _TALK_TOKENS) // TOKENS_PER_PAGE)


def _books(tokens: int) -> str:
    return f"{tokens:,} tokens, about {round(tokens * WORDS_PER_TOKEN, -3):,.0f} words"


def measure(
    data: Path,
    status: Status,
    kv_bytes: int = 0,
    kv: str = "model",
    quantization: str = "stored",
    device: str = "auto",
) -> FreeMemory:
    """Look at memory and disk.

    Args:
        data: the folder whose disk matters.
        status: of the engine that runs; its weights are counted as free.
        kv_bytes: of the open book, in the memory that the engine uses.
        kv: how this start keeps a cache; quantization: the format of weights; device: where it may compute.
    """
    existing = next(folder for folder in (data, *data.parents) if folder.exists())
    disk = shutil.disk_usage(existing).free
    import psutil

    available = int(psutil.virtual_memory().available)
    if cards := _gpu_memory(device):
        return FreeMemory(
            cards[0], disk, on_gpu=True, host=available, kv=kv, quantization=quantization, others=cards[1:]
        )
    model = status.model
    itemsize = _BYTES.get(model.dtype, 0) if model else 0
    held = int(model.parameters * bytes_per_weight(quantization, itemsize)) if model and itemsize else 0
    held += (model.draft_parameters or 0) * itemsize if model else 0
    return FreeMemory(available + held + kv_bytes, disk, on_gpu=False, kv=kv, quantization=quantization)


def _gpu_memory(device: str) -> tuple[int, ...]:
    """Bytes of the GPUs that the engine may use, once it has given back what it holds, most first; none where it
    computes on a processor. Asks torch only if the engine has loaded it."""
    if "torch" not in sys.modules:
        return ()
    from engine.plan.planner import memory_of_cards

    try:
        return memory_of_cards(device)
    except OptionError:  # said where a model is loaded
        return ()


@dataclass(frozen=True)
class Pace:
    """``pages`` of a book of 300 that the model takes here; seconds to read them, words a second behind them."""

    pages: int
    reading: Span
    writing: Span

    @property
    def words(self) -> str:
        """For a person: "A 300-page book: about 8 min to read, then 5 to 12 words a second"."""
        book = f"A {BOOK_PAGES}-page book" if self.pages == BOOK_PAGES else f"Up to {self.pages} pages of a book"
        return f"{book}: {expected(self.reading, self.writing)}."


def pace(shape: ModelShape, found: ModelFit, free: FreeMemory, rates: MachineRates) -> Pace | None:
    """What is to be expected; None where the model does not fit.

    Args:
        found: as ``fit_pair`` says of this model and ``free``.
    """
    tokens = min(BOOK_TOKENS, shape.window, max(found.tokens, found.spilled))
    if found.verdict == "none" or tokens < TOKENS_PER_PAGE:
        return None
    pages = min(BOOK_PAGES, tokens // TOKENS_PER_PAGE)
    kv = tokens * found.kv_per_1k / 1000
    blocks = shape.parameters_asked - (shape.embeddings - shape.inputs)
    width = (blocks / shape.layers / _WIDTH) ** 0.5
    seen = shape.reading_layers * tokens + shape.sliding_layers * min(tokens, 2 * shape.sliding_window)
    work = 2.0 * blocks * tokens + 2.0 * seen * width * tokens
    spilled = max(0.0, tokens - found.tokens) / tokens * kv
    slower = rates.bus if free.on_gpu else rates.disk
    moved = spilled / (slower * len(free.cards)) if slower else 0.0  # each GPU brings its own over its own bus
    step = max((_weights_read(shape, found) + kv - spilled) / rates.memory, moved)
    reading = max(work / (_REACHED * rates.flops), moved)
    plain = WORDS_PER_TOKEN / step
    return Pace(pages, Span.about(reading, PROBED**0.5), Span(plain / PROBED**0.5, plain * _GUESSED))
