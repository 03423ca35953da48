"""A book under a memory limit that its KV exceeds, through the command line: peak memory as the system counts it, and
the very answer of a run that holds everything in memory."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.core.settings import DEMO_MODEL, SAMPLE_BOOKS
from engine.model.architectures import load_config
from tests.nursery import Nursery

LONG = bool(os.environ.get("TRIFOLD_LONG"))
# Tokens of the book and the limit: with TRIFOLD_LONG=1 the whole window of the demo pair, whose KV takes 3.2 GB. The
# buffers that it passes through are of two layers, a quarter of that: much less than here cannot hold it.
TOKENS, LIMIT, LIMIT_BYTES = (126_000, "1200M", 1_200_000_000) if LONG else (2_200, "26M", 26_000_000)
# Share of what is not in memory that must show in the peak: the rest are the mover's buffers and what allocators keep.
VISIBLE = 0.5
PATIENCE_S = 3600.0 if LONG else 300.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the system for the peak of a process")


@dataclass(frozen=True)
class Run:
    report: dict[str, Any]
    peak: int  # bytes


def ask(nursery: Nursery, book: Path, folder: Path, *options: str) -> Run:
    """``ask`` in a process of its own, whose peak memory is known when it has ended."""
    folder.mkdir()
    peak, report, said = (folder / name for name in ("peak.txt", "report.json", "said.txt"))
    line = [str(peak), "ask", str(book), "Find: asked two deckhands whether they had heard a splash"]
    line += ["--json", "--no-snapshot", "--max-tokens", "24", "--dtype", "float32", "--speeds-file", "", *options]
    environment = {**os.environ, "TRIFOLD_DATA": str(folder)}
    process = nursery.start("tests.app.cli.peak", line, environment, said, out=report)
    assert process.wait(PATIENCE_S) == 0, said.read_text(encoding="utf-8")
    return Run(json.loads(report.read_bytes()), int(peak.read_text()))


@pytest.mark.slow
def test_a_book_larger_than_its_memory_is_answered_alike(tmp_path: Path, nursery: Nursery) -> None:
    text = next(SAMPLE_BOOKS.glob("*.txt")).read_text(encoding="utf-8")
    book = tmp_path / "book.txt"
    characters = 4 * TOKENS
    book.write_text((text * (1 + characters // len(text)))[:characters], encoding="utf-8")
    resident = ask(nursery, book, tmp_path / "resident", "--fit")
    spill = tmp_path / "spill"
    limited = ask(nursery, book, tmp_path / "limited", "--fit", "--host-memory", LIMIT, "--spill-folder", str(spill))

    kv, spilled = resident.report["kv_bytes"], limited.report["kv_bytes"]
    assert kv["disk"] == 0
    assert kv["host"] > 1.5 * LIMIT_BYTES
    assert spilled["host"] + spilled["disk"] == kv["host"]
    assert spilled["host"] < LIMIT_BYTES < spilled["disk"]
    # What lies on disk is not in memory, but for the buffers of two layers.
    layers = load_config(str(DEMO_MODEL)).num_hidden_layers
    expected = spilled["disk"] * (1 - 2 / layers)
    assert resident.peak - limited.peak > VISIBLE * expected
    assert limited.report["token_ids"] == resident.report["token_ids"]
    assert len(limited.report["token_ids"]) > 1
    assert list(spill.iterdir()) == []  # the files are gone with the process
