"""One model on two simulated cards: what one device says, each layer on its card, each card's KV over its own bus."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from app.cli.doctor import Findings, lines_of
from app.core.diagnostics import Machine
from engine.config import EngineConfig, SamplingParams
from engine.decode.rounds import full_pass, middle_logits
from engine.document import Document, Page
from engine.events import AnswerDone, KvBytes
from engine.kv import offload
from engine.kv.full import FullCache
from engine.kv.offload import Placement, Tier
from engine.kv.retrieval import RetrievalCache
from engine.kv.spilling import retry_with_spill
from engine.model import decoder, loading
from engine.model.backends.recorded import RecordedBackend
from engine.model.graphs import CudaRecorder, Replays
from engine.model.kv_shape import KvShape, Split
from engine.plan import hardware, planner, probe
from engine.plan.memory_budget import Share
from engine.plan.planner import Layout
from engine.prompt import Question
from engine.session import Session
from engine.worker import describe
from tests.engine.conftest import TEXT
from tests.engine.gpu.simulated_cuda import Gpu, simulated_cuda

LAYERS, CONTEXT = 6, 400
ROW = 2 * 2 * 16 * 4  # bytes of a token in one layer: keys and values of two heads
CARDS = [torch.device("cuda", card) for card in range(2)]
SPILLED = [Share(3, 3), Share(3, 3)]
BOOK = Document("The Lamp", "Nobody", (Page(1, "1", TEXT), Page(2, "2", TEXT)), "text", "0" * 64)
OPTIONS: dict[str, Any] = {
    "context": 1024,
    "dtype": "float32",
    "retrieval_budget": 64,
    "refresh_every": 2,
    "num_draft_tokens": 2,
    "num_pending_tokens": 6,
}


Answer = Callable[..., tuple[int, ...]]


@pytest.fixture
def answered(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Token ids of an answer to one question, with the layers shared out so and their KV lying there."""

    def answer(device: str, shares: Sequence[Share] = (), tier: Tier = Tier.DEVICE, **options: Any) -> tuple[int, ...]:
        if shares:
            monkeypatch.setattr(planner, "lay_out", lambda *_: planner.layout_of(shares, CARDS))
        placement = Placement((tier,) * LAYERS)
        monkeypatch.setattr(
            planner, "plan_for_book", lambda _, tokens, *__: planner.MemoryPlan(tokens + 200, placement, KvBytes(), 0)
        )
        session = Session.load(EngineConfig(model=pair[0], draft=pair[1], device=device, **{**OPTIONS, **options}))
        list(session.read(BOOK))
        done = list(session.ask(Question("Where does the key hang?", sampling=SamplingParams(max_tokens=6))))[-1]
        assert isinstance(done, AnswerDone)
        session.close()
        return done.token_ids

    return answer


def test_a_session_on_two_cards_says_what_it_says_on_one(
    answered: Answer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verifications are not recorded, and it is said why; middle passes and the draft's steps are."""
    expected, made = answered("cpu"), []
    monkeypatch.setattr(Replays, "is_faster", lambda self, *_: not made.append(self._level))
    with simulated_cuda("delayed", 2, cards=2), caplog.at_level(logging.INFO, "engine.decode.levels"):
        assert answered("cuda:0,cuda:1", SPILLED, Tier.HOST) == expected
    reason = "verify passes are not recorded: layers on several GPUs are read for longer than they are launched"
    assert [said for record in caplog.records if "not recorded" in (said := record.getMessage())] == [reason]
    assert {*made} == {"draft", "middle"}


@pytest.mark.parametrize(("schedule", "shares", "runs"), [("delayed", SPILLED, 6), ("random", [Share(4), Share(2)], 2)])
def test_a_middle_pass_on_two_cards_is_a_graph_for_each_run_of_layers(
    schedule: str, shares: list[Share], runs: int, pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between them hidden states cross. It says what the ordinary pass says, wherever it stands and whatever lies in
    the memory of others, waits for nothing, and the host launches a handful for each run."""
    monkeypatch.setattr(Replays, "is_faster", lambda *_: True)
    with simulated_cuda(schedule, 4, cards=2) as gpu, torch.no_grad():
        made = Passes.on(gpu, pair[0], planner.layout_of(shares, CARDS), Tier.DEVICE)
        model, retrieval = made.model, RetrievalCache(made.cache, 64, 8, 256)
        heads = [torch.ones(1, 4, 20, 16, device=made.cache.shape.device_of(layer)) for layer in range(LAYERS)]
        retrieval.select_at(CONTEXT - 40, heads, 0.25)
        replays = Replays(CudaRecorder(*CARDS), "middle", model.dtype)
        backend = RecordedBackend(model, replays)
        for at in range(10):
            fed, count = [20 + at, 40 + at, 60 + at, 80 + at], 1 + at % 2 * 3
            ids = model.ids(fed[:count])
            expected = middle_logits(model, retrieval, ids, count).cpu()
            before, waits, replayed = gpu.launches - gpu.replayed, Counter(gpu.waits), replays.replayed
            gpu.crossed.clear()
            found = middle_logits(backend, retrieval, ids, count)
            if replays.replayed > replayed:
                assert gpu.launches - gpu.replayed - before <= 3 * runs + 16
                assert sum(gpu.crossed.values()) == runs + 4, "with the tokens' places and RoPE"
                assert not gpu.waits - waits
            held = [torch.full((4096,), float("nan"), device=card) for card in CARDS]
            assert torch.allclose(found.cpu(), expected, atol=1e-4), at
            retrieval.advance(count)
            del held
        assert not replays.off
        assert replays.replayed == 4
        replays.drop()
        made.cache.clear()


def test_doctor_and_page_say_who_holds_what(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "lay_out", lambda *_: planner.layout_of([Share(4, 2), Share(2, 2, 1)], CARDS))
    for name in ("_PROBE_BYTES", "_CUDA_BLOCK", "_CONTEXT"):
        monkeypatch.setattr(probe, name, 64)
    monkeypatch.setattr(hardware, "PROBE_WIDTH", {"cpu": 8, "gpu": 8})
    with simulated_cuda("eager", cards=2), torch.no_grad():
        config = EngineConfig(model=pair[0], draft=pair[1], device="cuda:0,cuda:1", context=1024)
        target, seen = hardware.inspect_model(pair[0], config), hardware.probe_torch()
        session = Session.load(config)
        told = describe(session, config)
        session.close()
    holds = "cuda:0 (4 layers and the draft) and cuda:1 (2 layers), the weights of 1 layers in memory"
    assert told.device == holds
    here = Machine("System", "3.11", "/python", "Processor", 2, 2, 1, 1, 1, "/data", (), None)
    lines = lines_of(Findings(here, {}, seen, None, target, None, ()))
    assert any(f" on {holds}, window" in line for line in lines if line.startswith("Target"))
    for card in CARDS:
        assert any(f"{card}: simulated (compute capability 8.9), " in line for line in lines), lines


@pytest.mark.parametrize("kind", ["gemma4_text", "qwen3_5_text"])
def test_layers_that_hold_something_of_fixed_size_lie_on_both(
    kind: str, tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch, small_windows: None
) -> None:
    """And what one card says to the middle level it says to the full one."""
    target, draft = tiny(kind, layers=LAYERS), tiny(kind, seed=1, layers=2, width=32)
    monkeypatch.setattr(planner, "lay_out", lambda *_: planner.layout_of([Share(3), Share(3)], CARDS))
    options = {**OPTIONS, "model": target, "draft": draft}
    with simulated_cuda("delayed", 2, cards=2):
        session = Session.load(EngineConfig(device="cuda:0,cuda:1", **options))
        list(session.read(BOOK))
        fast, plain = (
            list(session.ask(Question("Where?", sampling=SamplingParams(max_tokens=6), mode=mode)))[-1]
            for mode in ("hierarchical", "plain")
        )
        shape = session.full.shape
        assert (shape.layers, shape.model_layers) == (2, LAYERS)
        there = {layer for layer in range(LAYERS) if shape.place_of(layer) is None}
        assert {shape.device_of(layer) for layer in there} == set(CARDS)  # of windows one reads what the other card has
        assert all(bytes_ > 0 for bytes_ in session.full.allocated().cards)
        session.close()
    assert isinstance(fast, AnswerDone)
    assert isinstance(plain, AnswerDone)
    monkeypatch.undo()
    alone = Session.load(EngineConfig(device="cpu", **options))
    list(alone.read(BOOK))
    done = list(alone.ask(Question("Where?", sampling=SamplingParams(max_tokens=6))))[-1]
    assert isinstance(done, AnswerDone)
    assert fast.token_ids == plain.token_ids == done.token_ids


@dataclass
class Passes:
    """A model with some tokens in its cache, and passes of three more tokens over them."""

    model: decoder.Decoder
    cache: FullCache
    gpu: Gpu

    @classmethod
    def on(cls, gpu: Gpu, name: str, layout: Layout, tier: Tier, **options: Any) -> Passes:
        places: dict[str, Any] = {"split": layout.split, "in_host": layout.in_host}
        model = loading.load(name, window=1024, device=layout.device, dtype="float32", **places, **options)
        made = cls(model, FullCache(model.kv_shape, 1024, Placement((tier,) * LAYERS)), gpu)
        full_pass(model, made.cache, 0, [10 + index % 90 for index in range(CONTEXT)])
        made.cache.advance(CONTEXT)
        return made

    def said(self) -> list[int]:
        """The likeliest token behind each of the three."""
        logits = full_pass(self.model, self.cache, CONTEXT, [7, 8, 9])
        self.cache.crop(CONTEXT)
        return [int(token) for token in logits.argmax(-1).tolist()]

    def took(self) -> int:
        """How long a pass takes, by the clock on which only buses take time; what it moves is counted anew."""
        self._pass()
        self.gpu.sent.clear()
        self.gpu.crossed.clear()
        before = self.gpu.clock
        self._pass()
        return self.gpu.clock - before

    def _pass(self) -> None:
        """A pass, and what its end begins: each card's thread fetches the first spilled layer of the next pass."""
        self.said()
        for staging in self.cache._stagings.values():
            staging.settle()


@pytest.fixture(scope="module")
def alone(pair: tuple[str, str]) -> tuple[list[int], int, int]:
    """What one card says, how long its bus takes, and the bytes that come over it."""
    with simulated_cuda("eager") as gpu, torch.no_grad():
        passes = Passes.on(gpu, pair[0], Layout(CARDS[0]), Tier.HOST)
        return passes.said(), passes.took(), gpu.sent[0]


def test_two_buses_halve_what_a_pass_waits_for(pair: tuple[str, str], alone: tuple[list[int], int, int]) -> None:
    said, took, sent = alone
    with simulated_cuda("random", cards=2) as gpu, torch.no_grad():
        passes = Passes.on(gpu, pair[0], planner.layout_of(SPILLED, CARDS), Tier.HOST)
        assert passes.said() == said
        assert passes.took() == pytest.approx(took / 2, rel=0.1)
        assert gpu.sent[0] == pytest.approx(gpu.sent[1], rel=0.01)
        assert gpu.sent[0] + gpu.sent[1] == pytest.approx(sent, rel=0.01)


def test_copies_follow_one_another_without_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes over the bus is turned into the kernels' order meanwhile. On one stream with the copies that took a
    sixteenth more, even if a byte of a card's memory takes no more than a 32nd of one that comes over the bus."""
    monkeypatch.setattr(offload, "CUDA_PIECE", 1 << 12)
    shape, tokens = KvShape(4, 2, 32, torch.bfloat16, CARDS[0]), 1024
    with simulated_cuda("eager") as gpu, torch.no_grad():
        cache = FullCache(shape, tokens, Placement((Tier.HOST,) * 4), tmp_path)
        k = torch.randn(1, 2, tokens, 32).bfloat16().to(CARDS[0])
        cache.reserve(tokens)
        for layer in range(4):
            cache.write(layer, 0, k, k)
        cache.advance(tokens)
        cache.bring(0, tokens)
        gpu.synchronize()
        began, sent, gpu.pace = gpu.clock, gpu.sent[0], 1 / 32
        for layer in range(1, 4):
            cache.bring(layer, tokens)
        gpu.synchronize()
        moved = gpu.sent[0] - sent
        assert moved == 3 * tokens * shape.bytes_per_token // 4
        assert gpu.clock - began < 1.02 * moved
        assert torch.equal(cache.keys(3, 0, tokens), k[0])
        gpu.pace = 0.0
        cache.clear()


def test_hidden_states_cross_once_per_border(pair: tuple[str, str], alone: tuple[list[int], int, int]) -> None:
    with simulated_cuda("random", cards=2) as gpu, torch.no_grad():
        layout = planner.layout_of([Share(4), Share(2)], CARDS)
        passes = Passes.on(gpu, pair[0], layout, Tier.DEVICE)
        assert passes.said() == alone[0]
        passes.took()
        assert gpu.crossed == {(0, 1): 4, (1, 0): 1}  # there with the three parts of RoPE
        assert passes.cache.kv_bytes().cards == (4 * CONTEXT * ROW, 2 * CONTEXT * ROW)
        assert passes.cache.allocated().cards == (4 * 1024 * ROW, 2 * 1024 * ROW)


def test_what_fits_no_card_waits_in_host_memory(pair: tuple[str, str], alone: tuple[list[int], int, int]) -> None:
    """Weights of a layer come to the card of that layer before it computes, and the next ones take their place."""
    with simulated_cuda("lazy", cards=2) as gpu, torch.no_grad():
        passes = Passes.on(gpu, pair[0], planner.layout_of([Share(3), Share(3, 0, 3)], CARDS), Tier.DEVICE)
        assert passes.said() == alone[0]
        held = list(gpu.allocated)
        passes.took()
        assert gpu.allocated == held
        layer = sum(weights.nbytes for name, weights in passes.model.named_weights() if ".layers.3." in name)
        assert gpu.sent[1] == pytest.approx(3 * layer, rel=0.02)
        assert gpu.sent[0] < layer
        assert passes.model.layers_in_host == 3


def test_the_card_that_is_full_spills_its_own_layers(pair: tuple[str, str], alone: tuple[list[int], int, int]) -> None:
    with simulated_cuda("lazy", cards=2) as gpu, torch.no_grad():
        passes = Passes.on(gpu, pair[0], planner.layout_of([Share(3), Share(3)], CARDS), Tier.DEVICE)
        tiers = passes.cache.placement.tiers
        gpu.limit = gpu.allocated[1] + 1000 * ROW
        attempts: list[torch.Tensor] = []

        def work() -> None:
            attempts.append(torch.empty(1200 * ROW, dtype=torch.uint8, device=CARDS[1]))

        retry_with_spill(passes.cache, work)
        gpu.limit = None
        where = passes.cache.placement.tiers
        assert where[:3] == tiers[:3]
        assert where[3:].count(Tier.HOST) >= 1
        assert passes.said() == alone[0]


def test_a_processor_of_two_halves(pair: tuple[str, str], tmp_path: Path) -> None:
    """Each half moves its own layers; a device in no hurry to be a GPU."""
    name, half = pair[0], torch.device("cpu")
    said = []
    for split in (None, Split((half, half), (0, 1, 0, 1, 0, 1))):
        model = loading.load(name, window=1024, device=half, dtype="float32", split=split)
        cache = FullCache(model.kv_shape, 1024, Placement((Tier.DISK,) * LAYERS), tmp_path)
        with torch.inference_mode():
            full_pass(model, cache, 0, [10 + index % 90 for index in range(CONTEXT)])
            cache.advance(CONTEXT)
            said.append(full_pass(model, cache, CONTEXT, [7, 8, 9]).tolist())
        cache.clear()
    assert said[0] == said[1]
