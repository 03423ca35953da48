"""The simulated device itself: right numbers, and that it sees what a card would punish."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch

from engine.model import attention
from engine.model.kernels import cuda, in_pieces, plain
from engine.model.kv_shape import KvShape
from tests.engine.gpu import simulated_cuda as simulated_cuda_module
from tests.engine.gpu.simulated_cuda import SCHEDULES, simulated_cuda

GPU = torch.device("cuda")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_numbers_are_right_under_every_schedule(schedule: str) -> None:
    left, right = torch.randn(7, 5), torch.randn(5, 3)
    with simulated_cuda(schedule, 1):
        found = (left.to(GPU) @ right.to(GPU)).softmax(-1).cpu()
    assert torch.allclose(found, (left @ right).softmax(-1))


def test_memory_that_nobody_wrote_is_not_a_number() -> None:
    with simulated_cuda():
        assert bool(torch.empty(4, device=GPU).isnan().all().cpu())


def test_a_missing_wait_between_streams_is_seen() -> None:
    found = []
    for waits in (True, False):
        with simulated_cuda("lazy"):
            aside = torch.cuda.Stream()
            with torch.cuda.stream(aside):
                made = torch.ones(4, device=GPU) * 2
            if waits:
                torch.cuda.current_stream().wait_stream(aside)
            found.append(made.cpu().tolist() == [2.0] * 4)
    assert found == [True, False]


def test_memory_in_use_by_a_late_stream_goes_to_the_next_who_asks() -> None:
    with simulated_cuda("lazy"):
        first = torch.ones(8, device=GPU)
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            doubled = first * 2
        del first
        torch.zeros(8, device=GPU)  # takes its place before the other stream has read it
        torch.cuda.current_stream().synchronize()
        aside.synchronize()
        assert doubled.cpu().tolist() == [0.0] * 8


def test_waits_are_counted_by_what_causes_them() -> None:
    with simulated_cuda() as gpu:
        x = torch.arange(6, device=GPU)
        x[x > 2].cpu()
        int(x.sum())
        assert gpu.waits["index with a mask"] == 1
        assert gpu.waits["to the host"] == 1
        assert gpu.waits["_local_scalar_dense"] == 1


def test_a_copy_from_memory_that_is_not_pinned_waits_whatever_is_asked() -> None:
    """The driver first waits for the stream, and returns when the numbers are in its own buffer."""
    with simulated_cuda() as gpu:
        into = torch.zeros(4, device=GPU)
        into.copy_(torch.ones(4), non_blocking=True)
        assert gpu.waits["from memory that is not pinned"] == 1
        into.copy_(gpu.pin(torch.ones(4)), non_blocking=True)
        assert gpu.waits["from memory that is not pinned"] == 1


def test_what_has_no_kernel_on_the_device_is_refused() -> None:
    with simulated_cuda():
        x = torch.ones(1, 1, 4, 8, device=GPU)
        with pytest.raises(NotImplementedError, match="CUDA"):
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(x, x, x)


def test_a_wait_in_a_capture_makes_it_void() -> None:
    with simulated_cuda():
        x = torch.ones(4, device=GPU)
        with pytest.raises(RuntimeError, match="captur"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            (x * 2).cpu()


def test_a_graph_runs_again_on_what_lies_there_now() -> None:
    with simulated_cuda("lazy"):
        x = torch.ones(3, device=GPU)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = x * 3
        x.copy_(torch.tensor([1.0, 2.0, 3.0], device=GPU))
        graph.replay()
        assert out.cpu().tolist() == [3.0, 6.0, 9.0]


def test_a_graph_has_no_pool_and_no_replay_before_its_capture_has_ended() -> None:
    with simulated_cuda("lazy"):
        x, graph = torch.ones(3, device=GPU), torch.cuda.CUDAGraph()
        for ask in (graph.pool, graph.replay):
            with pytest.raises(RuntimeError, match="without a preceding successful capture"):
                ask()
        with torch.cuda.graph(graph):
            doubled = x * 2
            with pytest.raises(RuntimeError, match="without a preceding successful capture"):
                graph.pool()
        with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=graph.pool()):
            doubled + 1
        with (
            pytest.raises(RuntimeError, match="already owns"),
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph),
        ):
            pass
        graph.reset()
        with pytest.raises(RuntimeError, match="without a preceding successful capture"):
            graph.replay()


def test_graphs_are_captured_on_another_stream_than_the_first() -> None:
    with simulated_cuda("lazy"):
        own = torch.cuda.current_stream()
        with pytest.raises(RuntimeError, match="non-default"), torch.cuda.graph(torch.cuda.CUDAGraph(), stream=own):
            pass


def test_the_memory_of_graphs_is_free_once_none_of_its_pool_is_left() -> None:
    """And then no graph is made in it again while a tensor of it lives."""
    with simulated_cuda("lazy") as gpu:
        x, pool = torch.ones(100, device=GPU), torch.cuda.graph_pool_handle()
        began = gpu.reserved()
        graphs = [torch.cuda.CUDAGraph() for _ in range(2)]
        for graph in graphs:
            with torch.cuda.graph(graph, pool=pool):
                held = x * 2 + 1
        for graph, left in zip(
            graphs, (3, 1), strict=True
        ):  # two results, of which one is known, and what lies between
            torch.cuda.empty_cache()
            assert gpu.reserved() - began >= left * x.nbytes
            graph.reset()
        torch.cuda.empty_cache()
        assert gpu.reserved() - began == held.nbytes
        with (
            pytest.raises(RuntimeError, match="use_count"),
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool),
        ):
            pass
        del held
        with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool):
            x * 2


def test_a_capture_that_fails_keeps_its_memory() -> None:
    """Up to torch 2.13.0 (pytorch 190348)."""
    with simulated_cuda("lazy") as gpu:
        x, graph = torch.ones(100, device=GPU), torch.cuda.CUDAGraph()
        began = gpu.reserved()
        with (
            pytest.raises(RuntimeError, match="captur"),
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph),
        ):
            (x * 2).cpu()
        graph.reset()
        del graph
        torch.cuda.empty_cache()
        assert gpu.reserved() - began == x.nbytes


def test_who_captures_asks_no_other_card_for_memory() -> None:
    """That is a call of the driver, which a capture on this thread forbids."""
    with simulated_cuda("eager", cards=2):
        there = torch.zeros(4, device="cuda:1")
        with pytest.raises(RuntimeError, match="not permitted"), torch.cuda.graph(torch.cuda.CUDAGraph()):
            there.clone()


def test_memory_ends() -> None:
    with simulated_cuda(limit=1000), pytest.raises(torch.OutOfMemoryError):
        torch.empty(2000, dtype=torch.uint8, device=GPU)


def test_two_cards_meet_in_copies_alone() -> None:
    with simulated_cuda("lazy", cards=2) as gpu:
        here, there = (torch.ones(3, device=f"cuda:{card}") * (card + 1) for card in range(2))
        with pytest.raises(RuntimeError, match="same device"):
            here + there
        moved = here.to("cuda:1", non_blocking=True)
        assert (moved + there).cpu().tolist() == [3.0] * 3
        here.copy_(there)
        assert here.cpu().tolist() == [2.0] * 3
        assert [str(x.device) for x in (here, there, moved)] == ["cuda:0", "cuda:1", "cuda:1"]
        assert gpu.crossed == {(0, 1): 1, (1, 0): 1}


def test_each_card_has_its_own_memory_streams_and_bus() -> None:
    with simulated_cuda("lazy", cards=2, limit=1000) as gpu:
        held = torch.empty(900, dtype=torch.uint8, device="cuda:1")
        with pytest.raises(torch.OutOfMemoryError, match="GPU 1 "):
            torch.empty(200, dtype=torch.uint8, device="cuda:1")
        torch.empty(200, dtype=torch.uint8, device="cuda:0")
        assert torch.cuda.mem_get_info(1)[0] == 100
        assert held.device.index == 1
        with torch.cuda.device(1):
            aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            assert torch.cuda.current_stream() is aside
            assert torch.cuda.current_stream(0) is not aside
        rows = gpu.pin(torch.ones(10, dtype=torch.uint8))
        both = [rows.to(f"cuda:{card}", non_blocking=True) for card in range(2)]
        assert gpu.sent == {0: 10, 1: 10}
        assert [x.cpu().sum().item() for x in both] == [10, 10]
        assert gpu.clock == 10  # side by side


def test_everything_is_as_before_afterwards() -> None:
    before = torch.cuda.is_available, torch.tensor, torch.nn.Module.to, torch.Generator
    with simulated_cuda():
        assert torch.cuda.is_available()
    assert (torch.cuda.is_available, torch.tensor, torch.nn.Module.to, torch.Generator) == before
    assert not torch.cuda.is_available()


# The choice of kernels on it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flash", "capability", "dtype", "expected"),
    [
        (True, (8, 6), torch.bfloat16, ("split_flash", "flash", "efficient")),
        (True, (7, 5), torch.float16, ("efficient",)),  # Turing
        (False, (8, 9), torch.bfloat16, ("efficient",)),  # torch's wheels for Windows
        (True, (8, 6), torch.float32, ("plain",)),
    ],
)
def test_a_kernel_that_runs_is_chosen(
    flash: bool, capability: tuple[int, int], dtype: torch.dtype, expected: tuple[str, ...]
) -> None:
    with simulated_cuda("eager") as gpu:
        gpu.flash, gpu.capability = flash, capability
        chosen = cuda.fastest(GPU, dtype, 2, 16)
        names = {kernel: name for name, kernel in cuda.KERNELS.items()} | {in_pieces: "plain"}
        assert names[chosen] in expected
        q, k, v = (torch.randn(1, 2, n, 16).to(dtype) for n in (3, 40, 40))
        out, lse = chosen(q.to(GPU), k.to(GPU), v.to(GPU), 0.25)
        right, right_lse = plain(q.float(), k.float(), v.float(), 0.25)
        assert torch.allclose(out.cpu().float(), right, atol=2e-2)
        assert torch.allclose(lse.cpu(), right_lse, atol=2e-2)
        causal = cuda.attend_causal(q.to(GPU), k[:, :, :3].to(GPU), v[:, :, :3].to(GPU), 0.25)[0].cpu().float()
        mask = torch.ones(3, 3, dtype=torch.bool).tril()
        expected_out = plain(q.float(), k[:, :, :3].float(), v[:, :, :3].float(), 0.25, mask)[0]
        assert torch.allclose(causal, expected_out, atol=2e-2)


def test_a_kernel_for_which_there_is_no_memory_is_not_taken_for_wrong(caplog: pytest.LogCaptureFixture) -> None:
    """A full card once chose the plain path for good. At load kernels are measured where there is memory, and else in
    the first pass, which makes some."""
    shape = KvShape(1, 2, 16, torch.bfloat16, GPU)
    with simulated_cuda("eager") as gpu, caplog.at_level(logging.INFO, "engine.model.attention"):
        for failing in (1, 12, 14):
            gpu.allocations, gpu.fails_at = 0, failing
            with pytest.raises(torch.OutOfMemoryError):
                cuda.fastest(torch.device("cuda", 0), torch.bfloat16, 2, 16)
        for failing in (1, 14, 20):
            gpu.allocations, gpu.fails_at = 0, failing
            with pytest.raises(torch.OutOfMemoryError):
                cuda.takes_masks(GPU, torch.bfloat16, 2, 16)
        gpu.fails_at = None
        assert cuda.takes_masks(GPU, torch.bfloat16, 2, 16)
        gpu.allocations, gpu.fails_at = 0, 5
        attention.choose_kernels(shape, 4)
        assert "measured later" in caplog.text
        assert cuda.fastest(torch.device("cuda", 0), torch.bfloat16, 2, 16) is not in_pieces
        attention.choose_kernels(shape, 4)
        known = gpu.launches
        cuda.fastest(torch.device("cuda", 0), torch.bfloat16, 4, 16)
        assert gpu.launches == known


def test_a_prompt_takes_the_kernel_that_is_fastest_for_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest for a few rows, which read keys and compute little, once read the whole book."""
    monkeypatch.setattr(cuda, "MANY_ROWS", 600)
    monkeypatch.setattr(cuda, "MANY_KEYS", 16)
    kernels = {name: cuda.KERNELS[name] for name in ("flash", "efficient")}
    few, many = {"flash": 2.0, "efficient": 1.0}, {"flash": 1.0, "efficient": 2.0}
    names = {kernel: name for name, kernel in kernels.items()}
    monkeypatch.setattr(cuda, "measure", lambda name, *_: few.get(name))
    monkeypatch.setattr(cuda, "_milliseconds", lambda kernel, *_: many[names[kernel]])
    used: list[tuple[str, int]] = []
    for name, kernel in kernels.items():

        def watched(q: torch.Tensor, *given: Any, name: str = name, kernel: Any = kernel) -> Any:
            used.append((name, q.shape[2]))
            return kernel(q, *given)

        monkeypatch.setitem(cuda.KERNELS, name, watched)
        names[watched] = name
    with simulated_cuda("eager"):
        k, v = (torch.ones(1, 2, 20, 16, dtype=torch.bfloat16, device=GPU) for _ in range(2))
        for rows in (1, 100, 300):  # of two heads of queries for each of keys
            attention.attend(torch.ones(1, 4, rows, 16, dtype=torch.bfloat16, device=GPU), k, v, 0.25)
    assert used == [("efficient", 2), ("efficient", 200), ("flash", 600)]


def test_where_no_kernel_is_right_the_plain_path_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with simulated_cuda("eager"):
        monkeypatch.setattr(cuda, "measure", lambda *_: None)
        assert cuda.fastest(GPU, torch.bfloat16, 2, 16) is in_pieces


def test_causal_attention_takes_no_kernel_that_failed_its_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flash that is there and wrong, as of a build for other cards: the other one is right."""
    real = simulated_cuda_module.flash_attention
    monkeypatch.setattr(simulated_cuda_module, "flash_attention", lambda *call, scale: real(*call, scale=2 * scale))
    q, k, v = (torch.randn(1, 2, 5, 16).to(torch.bfloat16) for _ in range(3))
    expected = plain(q.float(), k.float(), v.float(), 0.25, torch.ones(5, 5, dtype=torch.bool).tril())[0]
    with simulated_cuda("eager"):
        found = cuda.attend_causal(q.to(GPU), k.to(GPU), v.to(GPU), 0.25)[0].cpu().float()
        assert cuda.fastest(GPU, torch.bfloat16, 2, 16) is cuda.efficient
    assert torch.allclose(found, expected, atol=2e-2)
