"""The figures of one answer, as the JSON that programs read and as lines that people read. Pure functions."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from engine.document import Document
from engine.events import AnswerDone, BookRead, Figures, KvBytes, ReadingProgress

if TYPE_CHECKING:
    from engine import ModelInfo

_UNITS = ("B", "KB", "MB", "GB", "TB")
_UNIT_STEP = 1000


def report_of(document: Document, book: BookRead, done: AnswerDone, model: ModelInfo | None) -> dict[str, Any]:
    """What ``ask --json`` prints: times in seconds or milliseconds as named, rates from 0 to 1, sizes in bytes."""
    live = done.figures
    return {
        "answer": done.answer,
        "token_ids": list(done.token_ids),
        "stages": [stage.value for stage in done.stages],
        "stop_reason": done.stop_reason.value,
        "mode": live.mode,
        "model": model.name if model else None,
        "draft": model.draft_name if model else None,
        "kv_note": model.kv_note if model else "",
        "title": document.title,
        "pages": [document.pages[0].number, document.pages[max(book.pages_read, 1) - 1].number],
        "prompt_tokens": live.prompt_tokens,
        "prefilled_tokens": live.prefilled_tokens,
        "book_tokens": book.tokens,
        "answer_tokens": live.answer_tokens,
        "context_tokens": live.context_tokens,
        "context_limit": live.context_limit,
        "ttft_s": live.ttft_s,
        "source": book.source,
        "open_s": book.seconds,
        "restored_tokens": book.tokens_restored,
        "refused": book.refused or None,
        "prefill_s": book.seconds,
        "prefill_tokens_per_s": book.tokens_per_s,
        "ms_per_token": {
            "mean": live.ms_per_token_mean,
            "p50": live.ms_per_token_p50,
            "p95": live.ms_per_token_p95,
        },
        "tokens_per_s": live.tokens_per_s,
        "rounds": live.rounds,
        "acceptance": {"middle": live.middle.rate, "verify": live.verify.rate},
        "mean_acceptance_length": live.mean_acceptance_length,
        "plain_ms_per_token": live.plain_ms,
        "speedup_vs_plain": live.speedup_vs_plain,
        "time_split_ms": dataclasses.asdict(live.time_split),
        "kv_bytes": dataclasses.asdict(live.kv_bytes),
    }


def lines_of(done: AnswerDone) -> list[str]:
    """The figures after an answer, for a person."""
    live = done.figures
    lines = [f"{live.answer_tokens:,} tokens ({done.stop_reason.value}), {live.mode} decoding"]
    lines += [line for line in (_speed_line(live), _acceptance_line(live)) if line]
    lines.append(
        f"KV cache: {_kv_line(live.kv_bytes)}; {live.context_tokens:,} of {live.context_limit:,} tokens used; "
        f"this question prefilled {live.prefilled_tokens:,}"
    )
    return lines


def book_line(book: BookRead) -> str:
    """One line for a book that has been read or opened from disk."""
    if book.source == "snapshot" and book.tokens_restored >= book.tokens:
        return f"{book.tokens:,} tokens from disk in {book.seconds:.2f} s"
    return f"{book.tokens:,} tokens, {book.tokens_per_s:,.0f} tokens/s"


def progress_line(event: ReadingProgress) -> str:
    share = event.tokens_done / event.tokens_total if event.tokens_total else 1.0
    return (
        f"{event.tokens_done:,} of {event.tokens_total:,} tokens, {share:.0%}, "
        f"{event.tokens_per_s:,.0f} tokens/s, {event.seconds_left:.0f} s left"
    )


def model_line(model: ModelInfo) -> str:
    draft = f" with {model.draft_name}" if model.draft_name else " without a draft model"
    note = f"; {model.kv_note}" if model.kv_note else ""
    return f"{model.name}{draft}, {model.dtype} on {model.device}{note}"


def size(count: int) -> str:
    """Bytes in the unit that keeps the number readable."""
    value = float(count)
    for unit in _UNITS:
        if value < _UNIT_STEP or unit == _UNITS[-1]:
            return f"{value:.0f} {unit}" if value >= 10 or unit == _UNITS[0] else f"{value:.1f} {unit}"
        value /= _UNIT_STEP
    raise AssertionError("unreachable: the last unit takes everything")


def _speed_line(live: Figures) -> str:
    parts = []
    if live.ttft_s is not None:
        parts.append(f"first token after {live.ttft_s:.2f} s")
    if live.ms_per_token_p50 is not None and live.ms_per_token_p95 is not None:
        parts.append(f"{live.ms_per_token_p50:.1f} ms per token (p95 {live.ms_per_token_p95:.1f})")
    if live.tokens_per_s is not None:
        parts.append(f"{live.tokens_per_s:.1f} tokens/s")
    if live.speedup_vs_plain is not None:
        parts.append(f"{live.speedup_vs_plain:.2f} times a plain step")
    return ", ".join(parts)


def _acceptance_line(live: Figures) -> str:
    parts = []
    for level, acceptance in (("middle", live.middle), ("verify", live.verify)):
        if acceptance.rate is not None:
            parts.append(f"{level} {acceptance.rate:.0%}")
    if live.mean_acceptance_length is not None:
        parts.append(f"{live.mean_acceptance_length:.1f} tokens per verification")
    return "accepted: " + ", ".join(parts) if parts else ""


def _kv_line(kv: KvBytes) -> str:
    tiers = [f"{size(count)} {tier}" for tier, count in dataclasses.asdict(kv).items() if count]
    return ", ".join(tiers) or "empty"
