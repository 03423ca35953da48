"""Each wait of the engine for a stream or an event is needed: with it KV is right under every schedule, and without it
wrong under one.

The waits are read from the source, so a new one is tried too. What is timed waits as well, and changes no number. With
TRIFOLD_LONG=1 there are more seeds.
"""

from __future__ import annotations

import ast
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from engine.kv import full, offload
from engine.kv.full import FullCache
from engine.kv.offload import Placement, Tier
from engine.model.graphs import CudaRecorder
from engine.model.host_weights import wait_in_host
from engine.model.kv_shape import KvShape
from tests.engine.gpu.simulated_cuda import SCHEDULES, Gpu, simulated_cuda
from tests.house import ROOT

GPU = torch.device("cuda", 0)
SEEDS = range(30 if os.environ.get("TRIFOLD_LONG") else 3)
PATIENCE = 5  # times as many where nothing is missed yet
SHAPE = KvShape(4, 2, 8, torch.float32, GPU)
PLACEMENT = Placement((Tier.HOST, Tier.DEVICE, Tier.DISK, Tier.HOST))
WAITS = ("wait_event", "wait_stream", "synchronize")
TIMED = (
    "milliseconds",
    "synchronize",
    "_seconds",
    "_best",
    "_timed",
    "_through_buffers",
    "send_pieces",
)  # of graphs.py, devices.py and probe.py
ASKING = ("answers",)  # of devices.py: it waits to see an error, and nothing is read after it
Line = tuple[str, int]


def waits_of_the_engine() -> Iterator[tuple[str, Line]]:
    """Name, file and line of every wait that is not there to measure time or to see an error."""
    for file in sorted((ROOT / "engine").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        if not any(name in text for name in WAITS):
            continue
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef) or function.name in ASKING:
                continue
            if function.name in TIMED and file.name != "offload.py":
                continue
            for call in ast.walk(function):
                if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in WAITS:
                    yield f"{file.stem}.{function.name}", (str(file), call.lineno)


LINES = list(waits_of_the_engine())


class Wrong(Exception):
    """Numbers that are not what was stored."""


def expect(found: torch.Tensor, right: torch.Tensor) -> None:
    if not torch.equal(found.cpu(), right):
        raise Wrong


class Kv:
    """Random keys and values of all layers, and a cache that they are written to, pass by pass."""

    def __init__(self, folder: Path) -> None:
        self.numbers = torch.randn(SHAPE.layers, 2, SHAPE.kv_heads, 200, SHAPE.head_dim)
        self._there = self.numbers.to(GPU)
        self.cache = FullCache(SHAPE, 256, PLACEMENT, folder)
        self._read: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run_pass(self, count: int) -> None:
        """Write some tokens, and read all that there are in every layer. The host waits for nothing."""
        cache, start = self.cache, self.cache.length
        stop = start + count
        cache.reserve(stop)
        for layer in range(SHAPE.layers):
            cache.bring(layer, start)
            k, v = (part.unsqueeze(0) * 1 for part in self._there[layer, :, :, start:stop])
            cache.write(layer, start, k, v)
            found = (part * 1 for part in (cache.keys(layer, 0, stop), cache.values(layer, 0, stop)))
            self._read += zip(found, self.numbers[layer, :, :, :stop], strict=True)
        cache.advance(count)

    def check(self) -> None:
        """What was read, and what a thread of its own keeps."""
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        stop = self.cache.length
        keeper = threading.Thread(target=lambda: kept.append(self.cache.export(3, 0, stop)))
        keeper.start()
        keeper.join()
        read, self._read = self._read, []
        for found, right in [*zip(kept[0], self.numbers[3, :, :, :stop], strict=True), *read]:
            expect(found, right)


def kv_is_right(gpu: Gpu, folder: Path) -> None:
    """Passes, more room for them, a layer that is spilled, and the end of it all."""
    kv = Kv(folder)
    for counts in ((48,), (1, 1), (30, 1)):
        for count in counts:
            kv.run_pass(count)
        kv.check()
    kv.cache.spill([1], Tier.HOST)
    size = (SHAPE.kv_heads, kv.cache.capacity, SHAPE.head_dim)
    taken = [torch.zeros(size, device=GPU) for _ in range(4)]  # where the buffers of spilled layers were
    for count in (1, 60, 1):
        kv.run_pass(count)
    for zeros in taken:
        expect(zeros, torch.zeros(size))
    heads, chunks = torch.tensor([0, 1], device=GPU), torch.tensor([3, 8], device=GPU)
    for found, numbers in zip(kv.cache.gather(0, heads, chunks, 8), kv.numbers[0], strict=True):
        expect(found, torch.stack([numbers[0, 24:32], numbers[1, 64:72]]))
    kv.check()
    kv.cache.clear()
    if gpu.freed_under_copy:
        raise Wrong


def recorded_passes_are_right() -> None:
    """A pass is recorded whose input is not there yet."""
    places = torch.arange(2, device=GPU)
    for _ in range(40):
        places = places + 1
    state = torch.zeros(64, device=GPU)
    replay = CudaRecorder(GPU).record(lambda: state.index_copy_(0, places, torch.ones(2, device=GPU)) * 2)
    places.add_(10)
    expect(replay(), 2.0 * torch.tensor([float(place in (40, 41, 50, 51)) for place in range(64)]))


def weights_are_right() -> None:
    """Of layers that wait in host memory and come in turns, while whoever computes is late."""
    layers = [nn.Linear(8, 8, bias=False).requires_grad_(False) for _ in range(3)]
    weights, x = [layer.weight.detach().clone() for layer in layers], torch.randn(2, 8)
    expected, there = x.clone(), x.to(GPU)
    wait_in_host(dict(enumerate(layers)), GPU)
    for layer, weight in list(zip(layers, weights, strict=True)) * 2:
        expected = expected @ weight.t()
        there = layer(there)
    if not torch.allclose(there.cpu(), expected, atol=1e-5):
        raise Wrong


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room and pieces so small that there are several of them."""
    monkeypatch.setattr(full, "GROWTH", 64)
    monkeypatch.setattr(offload, "CUDA_PIECE", 1)


def seeds(schedule: str) -> range:
    return SEEDS if schedule in ("random", "delayed") else range(1)


def tried(schedule: str, seed: int, lost: Line | None, folder: Path) -> None:
    with simulated_cuda(schedule, seed) as gpu, torch.no_grad():
        gpu.lost_wait = lost
        recorded_passes_are_right()
        weights_are_right()
        kv_is_right(gpu, folder)


def fails(schedule: str, seed: int, lost: Line, folder: Path) -> bool:
    try:
        tried(schedule, seed, lost, folder)
    except (Wrong, IndexError, RuntimeError):
        return True
    return False


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_with_all_waits_kv_is_right(schedule: str, tmp_path: Path) -> None:
    for seed in seeds(schedule):
        tried(schedule, seed, None, tmp_path)


@pytest.mark.parametrize("lost", [line for _, line in LINES], ids=[name for name, _ in LINES])
def test_each_wait_that_is_left_out_is_seen(lost: Line, tmp_path: Path) -> None:
    """Whether it is missed depends on the threads of this machine as well: until it is, more seeds are tried."""
    tries = ((schedule, seed) for seed in range(PATIENCE * len(SEEDS)) for schedule in SCHEDULES)
    assert any(fails(*each, lost, tmp_path) for each in tries)
