"""What fits: model, book and window against this machine, as numbers and a sentence. Pure except for the probes.

Knows the shapes and the machine's memory; moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch

from engine.cache.full import KvShape
from engine.document import Document
from engine.errors import OptionError
from engine.tokenizer import BookTokens

MIN_CHAT_TOKENS = 256
"""Room that is kept free behind a book for a question and an answer."""

# Share of the free memory that the cache may take: the rest is for activations and for everything else that runs.
MEMORY_SHARE = 0.85


@dataclass(frozen=True)
class Fit:
    """Whether a book fits. ``tokens`` of the book, ``limit`` of the window, ``kv_bytes`` that reading it will take."""

    tokens: int
    limit: int
    fits: bool
    pages_that_fit: int
    kv_bytes: int
    sentence: str


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
            "Use --device cpu, or install the NVIDIA driver and run launch.py --repair.",
        )
    return device


def free_memory(device: torch.device) -> int:
    """Bytes that can still be taken where the full cache lives."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available)


def fit_of(document: Document, book: BookTokens, limit: int, shape: KvShape, free_bytes: int) -> Fit:
    """Compare a book with the window and with the free memory."""
    tokens = len(book.ids)
    room = min(limit, int(free_bytes * MEMORY_SHARE) // shape.bytes_per_token) - MIN_CHAT_TOKENS
    fits = tokens <= room
    pages = book.pages_within(max(0, room))
    kv_bytes = min(tokens, max(0, room)) * shape.bytes_per_token
    return Fit(tokens, limit, fits, pages, kv_bytes, _sentence(document, tokens, limit, room, pages, kv_bytes, fits))


def _sentence(document: Document, tokens: int, limit: int, room: int, pages: int, kv_bytes: int, fits: bool) -> str:
    count = len(document.pages)
    unit = document.unit if count == 1 else f"{document.unit}s"
    head = f"{count:,} {unit}, {tokens:,} tokens"
    if fits:
        return f"{head} of {limit:,}: it fits ({kv_bytes / 1e9:.2f} GB of memory for its cache)."
    short = "the window" if room + MIN_CHAT_TOKENS >= limit else "the free memory"
    cause = f"{head}: too long for {short}, which holds {max(0, room):,} tokens of a book."
    if pages == 0:
        return f"{cause} Not even the first {document.unit} fits."
    return f"{cause} The first {pages:,} of {count:,} {unit} fit."
