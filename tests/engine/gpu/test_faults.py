"""What goes wrong on a card, one thing at a time: memory that runs out, pinning that is refused, captures that others
work beside, or that fail."""

from __future__ import annotations

import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch

from engine import devices, worker
from engine.config import EngineConfig, SamplingParams
from engine.decode import prefill
from engine.decode.acceptance import Every
from engine.decode.controller import FixedLengths, RoundObservation
from engine.decode.drafters import ModelDrafter, NoDrafter
from engine.decode.plans import DraftPlan
from engine.decode.rounds import Context, Speculation, TokensAhead, full_pass, hierarchical, middle_logits, start
from engine.decode.verify import Sampler, make_generator
from engine.errors import Closed, EngineError, ModelError
from engine.events import Event, Round
from engine.kv import offload
from engine.kv.full import FullCache
from engine.kv.offload import HostStore, Placement, Tier
from engine.kv.retrieval import ChunkScoring, QueryRecorder, RetrievalCache, SelectionRefresh
from engine.kv.spilling import retry_with_spill
from engine.model import architectures, decoder, graphs, loading
from engine.model.graphs import CudaRecorder
from engine.model.kv_shape import KvShape
from engine.model.pieces import to_device
from engine.plan import probe
from tests.engine.gpu.simulated_cuda import simulated_cuda

LAYERS = 3
GPU = torch.device("cuda", 0)
SHAPE = KvShape(4, 2, 8, torch.float32, GPU)
LAYER = 2 * 2 * 8 * 4  # bytes of a token in one layer
TRIED = 0 if os.environ.get("TRIFOLD_LONG") else 12  # allocations that fail in turn; 0 is every one
SPILLED = Placement((Tier.HOST, Tier.DEVICE, Tier.DISK))


def passes(model: decoder.Decoder, placement: Placement, folder: Path) -> list[int]:
    """The likeliest tokens behind three, after a book of 100."""
    cache = FullCache(model.kv_shape, 1024, placement, folder)
    full_pass(model, cache, 0, list(range(10, 110)))
    cache.advance(100)
    logits = full_pass(model, cache, 100, [7, 8, 9])
    cache.clear()
    return [int(token) for token in logits.cpu().argmax(-1).tolist()]


@pytest.mark.parametrize("placement", [Placement.resident(LAYERS), SPILLED], ids=["resident", "spilled"])
def test_memory_may_run_out_at_every_allocation(
    pair: tuple[str, str], placement: Placement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offload, "CUDA_PIECE", 1 << 16)
    with simulated_cuda("eager") as gpu, torch.no_grad():
        model = loading.load(pair[0], window=1024, device=GPU, dtype="float32")
        gpu.allocations = 0
        expected = passes(model, placement, tmp_path)
        total = gpu.allocations
        assert total > 100
        for failing in range(1, total, total // TRIED if TRIED else 1):
            gpu.allocations, gpu.fails_at = 0, failing
            assert passes(model, placement, tmp_path) == expected, failing


def test_cheap_passes_find_room_too(pair: tuple[str, str]) -> None:
    """A draft step or a middle pass for which there is no memory spills layers of the full cache, and is done again."""
    with simulated_cuda("eager") as gpu, torch.no_grad():
        target, draft = (loading.load(name, window=1024, device=GPU, dtype="float32") for name in pair)
        cache, ids = FullCache(target.kv_shape, 1024), list(range(10, 110))

        def proposed(failing: int | None) -> tuple[list[int], list[int]]:
            cache.clear()
            drafter = ModelDrafter(draft, target.vocabulary, 4, 60, longest=10, full=cache)
            retrieval, queries = RetrievalCache(cache, 64, 8, 128), QueryRecorder(target.num_layers)
            full_pass(target, cache, 0, ids[:-1], queries)
            cache.advance(len(ids) - 1)
            retrieval.select_at(64, queries.queries, queries.scaling)
            drafter.begin(ids)
            fed = target.ids(ids[-1:] * 3)
            gpu.allocations, gpu.fails_at = 0, failing
            middle = middle_logits(target, retrieval, fed, 3)
            count[0] = gpu.allocations
            drafted = drafter._forward(fed)
            count[1] = gpu.allocations
            return middle.cpu().argmax(-1).tolist(), drafted.cpu().argmax(-1).tolist()

        count = [0, 0]
        expected = proposed(None)
        middle, both = count
        for failing in (2, middle // 2, middle - 1, middle + 2, (middle + both) // 2, both - 1):
            assert proposed(failing) == expected
            assert cache.placement.spilled
        cache.clear()


class Uncopied(list[int]):
    """Tokens of a book, which a round must not copy: it would for every middle pass."""

    def __add__(self, other: object) -> Any:
        raise AssertionError("all tokens of the context were copied")


class Told(FixedLengths):
    """Keeps what it is told of rounds that record."""

    records: ClassVar[list[bool]] = []

    def observe(self, plan: DraftPlan, done: Round, observation: RoundObservation) -> None:
        self.records.append(observation.records)


def test_tokens_ahead_are_read_as_one_list() -> None:
    for committed, pending in ((5, 3), (0, 3), (5, 0)):
        first, then = list(range(committed)), list(range(100, 100 + pending))
        both = TokensAhead(first, then)
        then.append(7)
        whole = first + then
        assert list(both) == whole
        assert both[-1] == 7
        for begin in range(-9, 10):
            assert both[begin:] == whole[begin:]
            for end in range(-9, 10):
                assert both[begin:end] == whole[begin:end]


def test_what_is_done_for_the_selection_finds_room_too(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes before and behind the pass, whose own second try does not help it."""
    with simulated_cuda("eager") as gpu, torch.no_grad():
        target, ids = loading.load(pair[0], window=1024, device=GPU, dtype="float32"), list(range(10, 210))

        def failing_once(work: Callable[..., None]) -> Callable[..., None]:
            failing = [2]

            def done(*given: Any) -> None:
                gpu.allocations, gpu.fails_at = 0, failing.pop() if failing else None
                work(*given)

            return done

        def answer() -> list[int]:
            cache = FullCache(target.kv_shape, 1024)
            retrieval, queries = RetrievalCache(cache, 64, 8, 256), QueryRecorder(target.num_layers)
            full_pass(target, cache, 0, ids[:-1], queries)
            cache.advance(len(ids) - 1)
            sampler, generator = Sampler(SamplingParams()), make_generator(0, target.token_device)
            context = Context(target, cache, Uncopied(ids), sampler, generator, frozenset(), 6)
            drafter = NoDrafter(target.token_device)
            start(context, retrieval, drafter, queries)
            recordings = itertools.count().__next__  # as if each round recorded a pass
            made = hierarchical(context, retrieval, drafter, Speculation(Told(0, 3), Every(1), 10, None, recordings))
            said = [token for done in made for token in done.tokens]
            spilled.append(bool(cache.placement.spilled))
            cache.clear()
            return said

        spilled: list[bool] = []
        expected = answer()
        for owner, name in ((SelectionRefresh, "finish"), (RetrievalCache, "aim"), (RetrievalCache, "ensure_selected")):
            with monkeypatch.context() as patch:
                patch.setattr(owner, name, failing_once(getattr(owner, name)))
                assert answer() == expected
        assert spilled == [False, True, True, True]
        assert {*Told.records} == {True}, "rounds that record tell no costs"


def test_placing_a_book_makes_room_for_it() -> None:
    """Three layers fit where four were planned."""
    with simulated_cuda("eager", limit=4096 * LAYER * 7 // 2) as gpu:
        cache = FullCache(SHAPE, 4096)
        cache.place(Placement.resident(4), 4096)
        assert 0 < len(cache.placement.spilled) < 4
        assert gpu.peak <= 4096 * LAYER * 7 // 2
        cache.clear()


def test_relief_takes_little_memory() -> None:
    """The card is full when layers are spilled: they go piece by piece."""
    with simulated_cuda("eager") as gpu:
        cache = FullCache(SHAPE, 8192)
        cache.reserve(8192)
        cache.advance(8192)
        gpu.peaks = list(gpu.allocated)
        before = gpu.peak
        cache.spill([1, 2], Tier.HOST)
        assert gpu.peak == before
        cache.spill([3], Tier.DISK)
        assert gpu.peak == before
        cache.clear()


def test_the_beginning_of_a_segment_finds_room_too(pair: tuple[str, str]) -> None:
    with simulated_cuda("eager") as gpu, torch.no_grad():
        target = loading.load(pair[0], window=1024, device=GPU, dtype="float32")
        ids = target.ids(list(range(10, 110)))
        for failing in (1, 3, 5):
            cache = FullCache(target.kv_shape, 1024)
            cache.reserve(200)
            gpu.allocations, gpu.fails_at = 0, failing
            prefill.run(target, cache, ids, segment=64)
            assert cache.length == 100
            assert cache.placement.spilled
            cache.clear()


def test_a_driver_that_moves_memory_away_does_not_hide_that_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows' never says so, nor does it under Linux there: memory goes to the host, and everything becomes slow."""
    kernels = (("linux", "6.8.0", False), ("win32", "11", True), ("linux", "6.6.36-microsoft-standard-WSL2", True))
    for system, release, raises in kernels:
        monkeypatch.setattr(devices, "sys", SimpleNamespace(platform=system))
        monkeypatch.setattr(devices, "platform", SimpleNamespace(release=lambda release=release: release))
        with simulated_cuda("eager", limit=100_000) as gpu:
            gpu.pages = True
            held = torch.empty(50_000, dtype=torch.uint8, device=GPU)
            devices.forbid_paging(GPU)
            with pytest.raises(torch.OutOfMemoryError) if raises else nullcontext():
                torch.empty(60_000, dtype=torch.uint8, device=GPU)
            assert held.nbytes + torch.empty(40_000, dtype=torch.uint8, device=GPU).nbytes == 90_000


@pytest.mark.parametrize(("kind", "expected"), [("llama", torch.float16), ("gemma3_text", torch.bfloat16)])
def test_turing_computes_in_float16_where_that_holds(
    kind: str, expected: torch.dtype, tiny: Callable[..., str]
) -> None:
    settings = loading.settings_of(tiny(kind), None)
    with simulated_cuda("eager") as gpu:
        assert architectures.pick_dtype(settings, "auto", GPU) is torch.bfloat16
        gpu.capability = (7, 5)
        assert architectures.pick_dtype(settings, "auto", GPU) is expected
        assert architectures.pick_dtype(settings, "bfloat16", GPU) is torch.bfloat16


def test_numbers_that_float16_does_not_hold_are_refused(pair: tuple[str, str]) -> None:
    """In later segments too; the first shows it in its logits."""
    with simulated_cuda("eager"), torch.no_grad():
        target = loading.load(pair[0], window=1024, device=GPU, dtype="float16")
        ids, begun = target.ids(list(range(10, 60))), FullCache(target.kv_shape, 1024)
        prefill.run(target, begun, ids, segment=64)
        target.model.model.layers[1].mlp.down_proj.weight.data.mul_(60_000.0)
        for cache in (begun, FullCache(target.kv_shape, 1024)):
            with pytest.raises(ModelError, match="float16 does not hold"):
                prefill.run(target, cache, ids, segment=64)


def test_old_versions_of_torch_record_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_cuda("eager"):
        assert graphs.recorder_for(GPU) is not None
        monkeypatch.setattr(torch, "__version__", "2.11.0+cu128")
        assert graphs.recorder_for(GPU) is None


def test_relief_finds_free_what_the_failed_work_had_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The traceback of an error holds whatever its frames hold."""
    with simulated_cuda("eager") as gpu:
        cache = FullCache(SHAPE, 64)
        taken: list[int] = []
        spill = cache.spill

        def work() -> None:
            held = torch.ones(1000, device=GPU)
            if not taken:
                raise torch.OutOfMemoryError(f"CUDA out of memory, with {held.shape} held")

        def noted(layers: Sequence[int], tier: Tier) -> None:
            taken.append(gpu.allocated[0])
            spill(layers, tier)

        monkeypatch.setattr(cache, "spill", noted)
        retry_with_spill(cache, work)
        assert len(taken) == 1
        assert taken[0] < 4000
        cache.clear()


def test_refused_pinning_is_forgotten() -> None:
    """A runtime that is asked for more than there is keeps the error, and the next launch would raise it."""
    with simulated_cuda("lazy", pin_limit=100 * LAYER) as gpu:
        stores = [HostStore(SHAPE.of_layer(0)) for _ in range(2)]
        for store in stores:
            store.reserve(80, 0)
        assert not gpu.pinned, "all layers of a book were pinned before the first was read"
        x = torch.ones(1, 2, 3, 8, device=GPU) * 2
        for store in stores:
            store.write(5, x, x)
        assert [store.moves_in_place for store in stores] == [True, False]
        assert not gpu.sticky
        for store in stores:
            store.arrived()
            assert store.rows(5, 8).eq(2).all()
            store.close()


def test_a_small_buffer_that_cannot_be_pinned_spills_no_layer() -> None:
    """The system's refusal to pin the ids of a few tokens was taken for a full card, and its whole cache was spilled,
    into memory that must be pinned too."""
    with simulated_cuda("lazy", pin_limit=0):
        cache = FullCache(SHAPE, 64)
        made = retry_with_spill(cache, lambda: to_device([3, 1, 2], GPU))
        assert made.tolist() == [3, 1, 2]
        assert not cache.placement.spilled
        cache.clear()


def test_a_gpu_that_computes_no_more_ends_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an illegal access each question failed with the advice to try again, for ever."""

    class Fails:
        conversation, asked = None, 0

        def ask(self, *_: object, **__: object) -> Iterator[Event]:
            self.asked += 1
            held.append(torch.ones(1, device=GPU))
            raise RuntimeError("an error of the program")
            yield

        def work_ahead(self) -> tuple[()]:
            return ()

    held: list[torch.Tensor] = []
    session = Fails()
    monkeypatch.setattr("engine.session.Session.load", lambda _: session)
    monkeypatch.setattr(worker, "describe", lambda *_: None)
    monkeypatch.setattr(worker.foreign, "begin", lambda *_: None)
    with simulated_cuda("eager") as gpu:
        engine = worker.Engine(EngineConfig(model="m"))
        engine.wait_ready(60)
        with pytest.raises(EngineError, match="Try again"):
            engine.ask("Where?").result(60)
        gpu.failed = "CUDA error: an illegal memory access was encountered"
        for _ in range(2):
            with pytest.raises(Closed, match=r"stopped computing .*Start Trifold again"):
                engine.ask("Where?").result(60)
        assert session.asked == 2, "a GPU that has failed is asked no more"
        assert engine.status().state == "failed"
        assert "Start Trifold again" in engine.status().detail
        with pytest.raises(Closed, match="stopped computing"):
            engine.wait_ready()
        engine.close()
        gpu.failed = ""


def test_the_bus_of_windows_is_timed_through_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecasts promised the rate of pinned memory, while KV moves through two small buffers there."""
    size = 1 << 16
    for system, largest in (("linux", size), ("win32", size // 8)):
        monkeypatch.setattr(devices, "sys", SimpleNamespace(platform=system))
        with simulated_cuda("lazy") as gpu:
            assert probe.bus_rate(GPU, size) > 0
            assert gpu.sent[0] == (1 + probe._RATE_REPEATS) * size
            assert max(gpu.pinned.values()) == largest
            into = torch.empty(1000, dtype=torch.uint8, device=GPU)
            numbers = torch.arange(1000).to(torch.uint8)
            probe._through_buffers(numbers, into)()
            assert torch.equal(into.cpu(), numbers)


def test_windows_is_not_asked_to_pin_a_book(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "sys", SimpleNamespace(platform="win32"))
    with simulated_cuda("lazy") as gpu:
        store = HostStore(SHAPE.of_layer(0))
        store.reserve(80, 0)
        store.write(0, *(torch.ones(1, 2, 3, 8, device=GPU) for _ in range(2)))
        assert not gpu.pinned
        assert not store.moves_in_place
        store.close()


@pytest.mark.parametrize("kv", ["model", "8bit"])
@pytest.mark.parametrize("kind", [SelectionRefresh, ChunkScoring])
def test_a_verification_that_is_scored_waits_for_nothing(tiny: Callable[..., str], kind: type, kv: str) -> None:
    """Once for every layer it did: an index that was a list of Python came from the host."""
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        model = loading.load(tiny(), window=512, device=GPU, dtype="float32")
        cache = FullCache(model.kv_shape.stored_as(kv), 512)
        retrieval = RetrievalCache(cache, 64, 8, 128)
        full_pass(model, cache, 0, list(range(10, 210)))
        cache.advance(200)
        retrieval.select_at(160, [torch.ones(1, 4, 20, 16, device=GPU)] * model.num_layers, 0.25)
        before = Counter(gpu.waits)
        observer = kind(retrieval)
        full_pass(model, cache, 200, list(range(20, 29)), observer)
        observer.finish()
        assert not gpu.waits - before


# Captures -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST])
def test_a_reading_is_kept_while_a_pass_is_recorded(tier: Tier) -> None:
    """A wait for the whole device, from the thread that keeps it, would end the recording."""
    with simulated_cuda("lazy"), torch.no_grad():
        cache = FullCache(SHAPE, 64, Placement((tier,) * 4))
        cache.reserve(64)
        numbers = torch.randn(1, 2, 10, 8)
        there = numbers.to(GPU)
        cache.write(0, 0, there * 1, there * 2)
        cache.advance(10)
        kept: list[tuple[torch.Tensor, torch.Tensor]] = []
        x = torch.ones(3, device=GPU)

        def work() -> torch.Tensor:
            keeper = threading.Thread(target=lambda: kept.append(cache.export(0, 0, 10)))
            keeper.start()
            keeper.join()
            return x * 3

        replay = CudaRecorder(GPU).record(work)
        assert replay().tolist() == [3.0] * 3
        assert len(kept) == 2
        for keys, values in kept:
            assert torch.equal(keys, numbers[0])
            assert torch.equal(values, numbers[0] * 2)
        cache.clear()


@pytest.mark.parametrize("refused", [False, True])
def test_a_recording_that_fails_leaves_the_stream_as_it_was(refused: bool) -> None:
    """Where it ends, and where it does not even begin."""
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        before = torch.cuda.current_stream()
        x = torch.ones(3, device=GPU)
        gpu.refuses_captures = refused
        with pytest.raises(RuntimeError, match="captur"):
            CudaRecorder(GPU).record(lambda: x * 2 if refused else x * float(x.sum()))
        assert torch.cuda.current_stream() is before
        assert (x * 2).tolist() == [2.0] * 3
