"""A book under a memory limit that its KV exceeds, through the command line: peak memory as the system counts it, and
the very answer of a run that holds everything in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from app.core.settings import DEMO_MODEL, SAMPLE_BOOKS
from engine.model.architectures import load_config

LONG = bool(os.environ.get("TRIFOLD_LONG"))
# Tokens of the book and the limit: with TRIFOLD_LONG=1 the whole window of the demo pair, whose KV takes 3.2 GB. The
# buffers that it passes through are of two layers, a quarter of that: much less than here cannot hold it.
TOKENS, LIMIT, LIMIT_BYTES = (126_000, "1200M", 1_200_000_000) if LONG else (2_200, "26M", 26_000_000)
# Share of what is not in memory that must show in the peak: the rest are the mover's buffers and what allocators keep.
VISIBLE = 0.5

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the system for a child's peak memory, in KiB")


@dataclass(frozen=True)
class Run:
    report: dict[str, Any]
    peak: int  # bytes


# A process begins with the peak of the one that started it, and the tests' own may be larger than what is measured
# here: a small one stands between them, and says the peak of its child, in KiB.
_MEASURE = """
import os, resource, subprocess, sys
status = subprocess.run(sys.argv[2:]).returncode
open(sys.argv[1], "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))
sys.exit(status)
"""


def ask(book: Path, folder: Path, *options: str) -> Run:
    """``ask`` in a process of its own, whose peak memory is known when it has ended."""
    folder.mkdir()
    peak = folder / "peak.txt"
    line = [sys.executable, "-c", _MEASURE, str(peak)]
    line += [
        sys.executable,
        "-m",
        "app.cli",
        "ask",
        str(book),
        "Find: asked two deckhands whether they had heard a splash",
        "--json",
        "--no-snapshot",
    ]
    line += ["--max-tokens", "24", "--dtype", "float32", "--speeds-file", "", *options]
    environment = {**os.environ, "TRIFOLD_DATA": str(folder), "OMP_NUM_THREADS": "2"}
    done = subprocess.run(line, capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return Run(json.loads(done.stdout), int(peak.read_text()) * 1024)


@pytest.mark.slow
def test_a_book_larger_than_its_memory_is_answered_alike(tmp_path: Path) -> None:
    text = next(SAMPLE_BOOKS.glob("*.txt")).read_text(encoding="utf-8")
    book = tmp_path / "book.txt"
    characters = 4 * TOKENS
    book.write_text((text * (1 + characters // len(text)))[:characters], encoding="utf-8")
    resident = ask(book, tmp_path / "resident", "--fit")
    spill = tmp_path / "spill"
    limited = ask(book, tmp_path / "limited", "--fit", "--host-memory", LIMIT, "--spill-folder", str(spill))

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
