"""What fits and what lives where: model, book and window against this machine, as numbers and a sentence.

Residency first: every layer whose KV fits where the model computes stays there, since each spilled gigabyte has to be
moved for every verification; the rest goes to host memory, then to disk. Looks at what is free and moves nothing.
Costs come from short probes (``probe``); a plan without them says nothing about time.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import torch

from engine.config import EngineConfig, bytes_of
from engine.document import Document
from engine.errors import OptionError
from engine.events import KvBytes
from engine.kv.offload import Placement
from engine.kv.shape import KvShape
from engine.plan.cost_model import BUDGET_SHARE, MIN_BUDGET, CostModel, sentence
from engine.plan.memory_budget import (
    CHUNK,
    DISK_SHARE,
    FINE_CHUNK,
    MEMORY_SHARE,
    MIN_CHAT_TOKENS,
    PINNED_SHARE,
    BookFit,
    KvSize,
)
from engine.tokenizer import BookTokens

# Tokens that are set aside for a chat where the window has them.
_CHAT_TOKENS = 4096


@dataclass(frozen=True)
class Resources:
    """Bytes that KV may take: where the model computes, in host memory beside a GPU, and on disk."""

    device: int
    host: int = 0
    disk: int = 0


@dataclass(frozen=True)
class Plan:
    """Where the KV of ``tokens`` tokens goes. ``kv`` are the bytes by tier; ``staging`` those of the buffers."""

    tokens: int
    placement: Placement
    kv: KvBytes
    staging: int


def pick_device(wanted: str) -> torch.device:
    """The device to compute on.

    Raises:
        OptionError: the device is unknown or absent.
    """
    if wanted == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError as error:
        raise OptionError(f"There is no device {wanted!r}.", "Use auto, cpu, cuda or cuda:1.") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise OptionError(
            f"The device {wanted} was asked for, and PyTorch sees {torch.cuda.device_count()} NVIDIA GPUs.",
            "Use --device cpu, or install the NVIDIA driver; the command doctor says what else is missing.",
        )
    return device


def spill_folder(config: EngineConfig) -> Path | None:
    """Where files with spilled KV are made; None is the system's own place for temporary files."""
    if config.spill_folder != "auto":
        return Path(config.spill_folder)
    return Path(config.snapshot_folder) if config.snapshot_folder else None


def free_resources(device: torch.device, config: EngineConfig, given_back: KvBytes | None = None) -> Resources:
    """Bytes that KV may take on this machine now, within the limits that the configuration sets.

    Args:
        given_back: bytes of the open book, which makes way.
    """
    given_back = given_back or KvBytes()
    host_limit, device_limit = bytes_of(config.host_memory), bytes_of(config.device_memory)
    available = int(psutil.virtual_memory().available) + given_back.host
    folder = (spill_folder(config) or Path(tempfile.gettempdir())).absolute()
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    disk = int((shutil.disk_usage(existing).free + given_back.disk) * DISK_SHARE)
    if device.type == "cpu":
        return Resources(int(available * MEMORY_SHARE) if host_limit is None else host_limit, 0, disk)
    # torch keeps what has been given back to it for itself.
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    free = int((torch.cuda.mem_get_info(device)[0] + idle + given_back.device) * MEMORY_SHARE)
    host = int(available * PINNED_SHARE) if host_limit is None else host_limit
    return Resources(free if device_limit is None else device_limit, host, disk)


def complete_config(config: EngineConfig, costs: CostModel | None, window: int, shape: KvShape) -> EngineConfig:
    """The configuration with its open settings chosen: by measured costs, and by free memory."""
    block = config.prefill_block or (costs.prefill_block if costs else 0) or None
    budget = config.retrieval_budget or (costs.retrieval_budget(window) if costs else MIN_BUDGET)
    chunk, share = config.chunk_size or _chunk_size(shape, window, config), config.retrieval_share
    if share is None:
        # On a GPU passes of one fixed shape run over all slots of the cache, and more slots make all of them slower.
        share = BUDGET_SHARE if config.retrieval_budget is None and shape.device.type == "cpu" else 0
    budget = max(budget, chunk)
    return replace(config, prefill_block=block, retrieval_budget=budget, retrieval_share=share, chunk_size=chunk)


def _chunk_size(shape: KvShape, window: int, config: EngineConfig) -> int:
    """Fine chunks find what sharp attention looks for; their mean keys have to fit beside the KV of a whole window."""
    if shape.device.type != "cpu":
        return CHUNK
    needed = window * (shape.bytes_per_token + shape.indexed(FINE_CHUNK).index_bytes_per_token)
    return FINE_CHUNK if needed <= free_resources(shape.device, config).device else CHUNK


def plan(shape: KvShape, tokens: int, resources: Resources) -> Plan | None:
    """Where the KV of ``tokens`` tokens can live; None if there is no place for it."""
    found = _size(shape).spread(tokens, resources.device, resources.host, resources.disk)
    if found is None:
        return None
    placement = Placement.spread(shape.layers, found.resident, found.in_host)
    return Plan(tokens, placement, placement.bytes(shape, tokens), found.staging)


def plan_for_book(shape: KvShape, tokens: int, limit: int, resources: Resources) -> Plan:
    """The plan for a book that fits, with a chat behind it."""
    wanted = min(limit, tokens + _CHAT_TOKENS)
    found = plan(shape, wanted, resources) or plan(shape, min(limit, tokens + MIN_CHAT_TOKENS), resources)
    return found or Plan(wanted, Placement.resident(shape.layers), KvBytes(), 0)


def longest_context(shape: KvShape, limit: int, resources: Resources) -> int:
    """The longest context, at most ``limit``, that has a place."""
    return _size(shape).longest_context(limit, resources.device, resources.host, resources.disk)


def _size(shape: KvShape) -> KvSize:
    index = shape.index_bytes_per_token
    return KvSize(shape.layers, shape.bytes_per_token, shape.compute_bytes_per_token, shape.quantized, index)


def fit_book(
    document: Document,
    book: BookTokens,
    limit: int,
    shape: KvShape,
    resources: Resources,
    costs: CostModel | None = None,
) -> BookFit:
    """Compare a book with the window and with what is free, and say how long it will take."""
    tokens = len(book.ids)
    longest = longest_context(shape, limit, resources) - MIN_CHAT_TOKENS
    pages = book.pages_within(max(0, longest))
    fitting = min(tokens, max(0, longest))
    found = plan_for_book(shape, fitting, limit, resources)
    kv = found.placement.bytes(shape, fitting)
    words = _sentence(document, tokens, limit, longest, pages, kv)
    fit = BookFit(tokens, limit, tokens <= longest, pages, kv.total, words, kv)
    if costs is None:
        return fit
    estimate = sentence(costs, fitting, kv)
    seconds, ms = costs.reading_s(fitting, kv), costs.step_ms(fitting, kv)
    return replace(fit, reading_s=seconds, step_ms=ms, estimate=estimate, sentence=f"{words} Expect {estimate}.")


def tiers_in_words(kv: KvBytes) -> str:
    """Bytes by tier in words; what is spilled makes answers slower, and that is said."""
    tiers = [("on the GPU", kv.device), ("of memory", kv.host), ("on disk", kv.disk)]
    words = ", ".join(f"{count / 1e9:.2f} GB {place}" for place, count in tiers if count)
    if kv.disk or (kv.device and kv.host):
        return f"{words}, which makes answers slower"
    return words


def _sentence(document: Document, tokens: int, limit: int, longest: int, pages: int, kv: KvBytes) -> str:
    count = len(document.pages)
    unit = document.unit if count == 1 else f"{document.unit}s"
    head = f"{count:,} {unit}, {tokens:,} tokens"
    if tokens <= longest:
        return f"{head} of {limit:,}: it fits ({tiers_in_words(kv)} for its cache)."
    short = "the window" if longest + MIN_CHAT_TOKENS >= limit else "the free memory"
    cause = f"{head}: too long for {short}, which holds {max(0, longest):,} tokens of a book."
    if pages == 0:
        return f"{cause} Not even the first {document.unit} fits."
    return f"{cause} The first {pages:,} of {count:,} {unit} fit."
