"""Recorded verifications on a simulated card: the numbers of ordinary passes, wherever the tokens come to stand and
however the cache grows, is cropped or spilled meanwhile; no wait for the card, and a handful of launches."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
import torch

from engine.config import EngineConfig
from engine.decode.levels import Hierarchy
from engine.decode.rounds import full_pass
from engine.kv import full
from engine.kv.full import FullCache, PassQueries
from engine.kv.offload import Tier
from engine.kv.retrieval import RetrievalCache, SelectionRefresh
from engine.model import decoder, graphs, loading
from engine.model.backends import Backend
from engine.model.backends.recorded import RecordedBackend
from engine.model.graphs import CudaRecorder, Replays
from tests.engine.gpu.simulated_cuda import simulated_cuda

GPU = torch.device("cuda", 0)
BOOK = 100
MOST_LAUNCHES = 10
"""Of the host in a replayed pass of any length and any number of layers."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room and spans so small that a few passes outgrow them."""
    monkeypatch.setattr(full, "GROWTH", 128)
    monkeypatch.setattr(full, "RECORDED", 48)


@pytest.fixture
def always_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is faster in simulation."""
    monkeypatch.setattr(Replays, "is_faster", lambda *_: True)


def begun(model: decoder.Decoder) -> FullCache:
    """A cache with a book in it."""
    cache = FullCache(model.kv_shape, 1024)
    read(model, cache)
    return cache


def recording(model: decoder.Decoder) -> RecordedBackend:
    """Who records passes over one cache."""
    return RecordedBackend(model, Replays(CudaRecorder(GPU), "verify", model.dtype, check_every=7))


def read(model: decoder.Decoder, cache: FullCache) -> None:
    full_pass(model, cache, 0, tokens(BOOK, 1))
    cache.advance(BOOK)


def tokens(count: int, seed: int) -> list[int]:
    draws = random.Random(seed)
    return [draws.randrange(6, 380) for _ in range(count)]


def passes(ways: Sequence[tuple[Backend, FullCache]], counts: Sequence[int]) -> None:
    """Passes of so many tokens, of which some stay: every way says the same."""
    for at, count in enumerate(counts):
        fed, found = tokens(count, at), []
        for backend, cache in ways:
            found.append(full_pass(backend, cache, cache.length, fed).cpu())
            cache.advance(count)
            cache.crop(cache.length - at % 3 % count)
        for logits in found[1:]:
            assert torch.allclose(logits, found[0], atol=1e-4), at


@pytest.mark.usefixtures("always_faster")
def test_replayed_verifications_say_what_passes_say(tiny: Callable[..., str]) -> None:
    with simulated_cuda("delayed", 3), torch.no_grad():
        model = loading.load(tiny("llama", spread=0.1), window=1024, device=GPU, dtype="float32")
        plain, recorded = begun(model), begun(model)
        backend, bounds = recording(model), set()
        replays, ways = backend.replays, ((model, plain), (backend, recorded))
        recorded.when_spilled(replays.drop)
        for at in range(6):
            passes(ways, [1, 5, 1, 3, 1, 7, 1, 4])
            bounds.add(replays._bound)
            if at == 3:  # another branch of the chat, before all that is recorded
                for cache in (plain, recorded):
                    cache.crop(BOOK + 3)
        assert not replays.off
        assert replays.replayed > 20
        assert len(bounds) > 3
        counts, spans = [1, 5, 1], []
        for _ in range(2):  # the same book again, in other memory: where it ends all is recorded anew
            held = []
            for cache in (plain, recorded):
                cache.clear()
                held.append(torch.full((8192,), float("nan"), device=GPU))  # has what was given back
                read(model, cache)
            passes(ways, counts)
            spans.append(replays._bound)
        assert spans[0] != spans[1]
        before = replays.replayed
        assert replays._recordings
        recorded.spill([1], Tier.HOST)
        assert not replays._recordings
        passes(ways, counts)
        assert replays.replayed == before
        for cache in (plain, recorded):
            cache.clear()


@pytest.mark.usefixtures("always_faster")
@pytest.mark.parametrize("count", [1, 6])
def test_a_replayed_verification_waits_for_nothing_and_launches_little(count: int, tiny: Callable[..., str]) -> None:
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        model = loading.load(tiny(), window=1024, device=GPU, dtype="bfloat16")
        cache = begun(model)
        backend = Hierarchy(EngineConfig(model="m", retrieval_budget=32), model, None, cache).verify
        assert isinstance(backend, RecordedBackend)
        for _ in range(5):
            full_pass(backend, cache, BOOK, tokens(count, 2))
        waits, launches = Counter(gpu.waits), gpu.launches - gpu.replayed
        replayed = backend.replays.replayed
        full_pass(backend, cache, BOOK, tokens(count, 3))
        assert backend.replays.replayed == replayed + 1
        assert not gpu.waits - waits
        assert gpu.launches - gpu.replayed - launches <= MOST_LAUNCHES
        cache.spill([0], Tier.HOST)
        assert not backend.replays._recordings, "they would keep the memory of what was spilled"
        cache.clear()


@pytest.mark.usefixtures("always_faster")
def test_who_looks_on_sees_the_queries_of_a_replay(tiny: Callable[..., str]) -> None:
    """The selection that a verification refreshes is the one that an ordinary pass would have chosen."""
    with simulated_cuda("lazy"), torch.no_grad():
        model = loading.load(tiny("llama", spread=0.1), window=1024, device=GPU, dtype="float32")
        chosen = []
        for records in (False, True):
            cache, recorded = begun(model), recording(model)
            backend: Backend = recorded if records else model
            retrieval, seen = RetrievalCache(cache, 32, 8, 128), PassQueries()
            retrieval.select_at(80, [torch.ones(1, 4, 20, 16, device=GPU)] * model.num_layers, 0.25)
            for at in range(4):
                refresh = SelectionRefresh(retrieval)
                full_pass(backend, cache, BOOK, tokens(5, at), refresh)
                refresh.finish()
            full_pass(backend, cache, BOOK, tokens(5, 9), seen)
            assert recorded.replays.replayed == (2 if records else 0)
            scores = retrieval.chunk_scores()
            assert scores is not None
            chosen.append([*(q.cpu() for q in seen.queries), scores.cpu()])
            cache.clear()
        assert [found.shape for found in chosen[0]] == [found.shape for found in chosen[1]]
        for found, expected in zip(*chosen, strict=True):
            assert torch.allclose(found, expected, atol=1e-4)


@pytest.mark.usefixtures("always_faster")
def test_a_book_is_kept_while_its_verifications_are_recorded(
    tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes it pauses for no capture, and none fails for it."""
    record, kept = CudaRecorder.record, []

    with simulated_cuda("lazy"), torch.no_grad():
        model = loading.load(tiny(), window=1024, device=GPU, dtype="float32")
        cache, backend = begun(model), recording(model)

        def beside(self: CudaRecorder, work: Callable[[], object]) -> Callable[[], object]:
            def watched() -> object:
                keeper = threading.Thread(target=lambda: kept.append(cache.export(1, 0, BOOK)))
                keeper.start()
                out = work()
                keeper.join()
                return out

            return record(self, watched)

        monkeypatch.setattr(CudaRecorder, "record", beside)
        passes([(backend, cache)], [1, 5] * 6)
        assert not backend.replays.off
        assert backend.replays.replayed > 3
        expected = cache.export(1, 0, BOOK)
        cache.clear()
    assert len(kept) >= 6  # warm-ups and captures
    assert all(torch.equal(a, b) for found in kept for a, b in zip(found, expected, strict=True))


def test_a_pass_that_stands_before_the_end_is_an_ordinary_one(tiny: Callable[..., str]) -> None:
    """What is filled up would be written over tokens that are committed."""
    with simulated_cuda("eager"), torch.no_grad():
        model = loading.load(tiny(), window=1024, device=GPU, dtype="float32")
        cache = begun(model)
        assert cache.fixed_span(BOOK, 8) is not None
        assert cache.fixed_span(BOOK - 1, 8) is None
        assert cache.fixed_span(BOOK, 128) is None
        cache.limit = BOOK + 7
        assert cache.fixed_span(BOOK, 8) is None
        cache.clear()


@pytest.mark.usefixtures("always_faster")
def test_levels_share_no_workspace() -> None:
    """The recordings of one go with every new book, and what the others' matrix products need must not go with them."""
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        x, w = torch.ones(1, 4, device=GPU), torch.ones(4, 4, device=GPU)
        verify, middle = (Replays(CudaRecorder(GPU), level) for level in ("verify", "middle"))

        def run(level: Replays, count: int, bound: int = 0) -> float:
            made = level.run((count,), lambda: (x @ w * count,), lambda x: (x @ w * count,), x, bound=bound)
            return float(made[0].sum())

        for book in range(3):
            for _ in range(5):
                for count in (1, 2):
                    assert run(verify, count, book) == run(middle, count) == 16.0 * count
        assert min(verify.replayed, middle.replayed) > 10
        assert not gpu.replays_on_freed_workspaces


def test_what_is_not_faster_takes_no_workspace_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording that is not used stays until the others of its level go."""
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        x, w = torch.ones(1, 4, device=GPU), torch.ones(4, 4, device=GPU)
        level = Replays(CudaRecorder(GPU), "middle")
        monkeypatch.setattr(Replays, "is_faster", lambda _, key, *__: key[0] > 1)
        for count in (2, 1) * 5:
            level.run((count,), lambda: (x @ w,), lambda x: (x @ w,), x)
        assert level.replayed
        assert not gpu.replays_on_freed_workspaces


def test_a_full_card_puts_a_recording_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever memory runs out while a pass is recorded or replayed, the level once was recorded no more. The pass goes
    on, or says that memory ran out to those who make room."""
    monkeypatch.setattr(Replays, "is_faster", lambda *_: True)
    monkeypatch.setattr(graphs, "_RETRY_AFTER", 2)
    with simulated_cuda("eager") as gpu, torch.no_grad():
        x, w = torch.ones(1, 4, device=GPU), torch.ones(4, 4, device=GPU)
        told = total = 0
        for failing in range(60):
            level = Replays(CudaRecorder(GPU), "middle")
            gpu.allocations, gpu.fails_at = 0, failing
            for _ in range(8):
                try:
                    found = level.run((1,), lambda: (x @ w * 2,), lambda x: (x @ w * 2,), x)
                    assert found[0].tolist() == [[8.0] * 4]
                except torch.OutOfMemoryError:
                    told += 1
            assert not level.off, failing
            assert level.replayed, failing
            total = max(total, gpu.allocations)
            level.drop()
        assert total < 60
        assert told, "ordinary passes and replays say so"


def test_recordings_of_a_level_share_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool for each took up to twelve times as much for each level."""
    monkeypatch.setattr(Replays, "is_faster", lambda *_: True)
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        x, level = torch.ones(1000, device=GPU), Replays(CudaRecorder(GPU), "middle")
        started = gpu.reserved()

        def run(count: int) -> torch.Tensor:
            return level.run((count,), lambda: (x * 2 + 1,), lambda x: (x * 2 + 1,), x)[0]

        taken = []
        for count in range(1, 5):
            for _ in range(4):
                run(count)
            torch.cuda.empty_cache()
            taken.append(gpu.reserved() - started)
        # Each keeps its input and its result; what lies between is the same memory for all.
        assert taken[1] - taken[0] == taken[2] - taken[1] == 2 * x.nbytes < taken[0]
        x.fill_(3.0)
        assert all(run(count).eq(7.0).all() for count in (4, 1, 3, 2))
        for _ in range(2):  # and again in another pool
            level.drop()
            torch.cuda.empty_cache()
            assert gpu.reserved() == started
            run(1), run(1), run(1)
            assert run(2).eq(7.0).all()


def test_a_result_that_is_still_held_prevents_no_later_recording() -> None:
    """torch makes no graph in a pool whose graphs are all freed while a tensor of it lives, so a new pool is taken."""
    with simulated_cuda("lazy"), torch.no_grad():
        x, recorder = torch.ones(4, device=GPU), CudaRecorder(GPU)
        held = recorder.record(lambda: x * 2)()
        recorder.forget()
        torch.cuda.empty_cache()
        assert recorder.record(lambda: x * 3)().tolist() == [3.0] * 4
        assert held.tolist() == [2.0] * 4


def test_recordings_take_few_streams() -> None:
    """Each stream with matrix products holds a workspace, and torch hands out 32 and then the same ones again."""
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        x, w = torch.ones(1, 4, device=GPU), torch.ones(4, 4, device=GPU)
        recorders = [CudaRecorder(GPU) for _ in range(3)]
        for recorder in recorders * 4:
            recorder.record(lambda: x @ w)
        assert gpu.drawn[0] - 32 <= len(recorders) + 1
        assert len(gpu.workspaces) <= len(recorders) + 2
