"""Whole sessions on simulated GPUs of Apple and Intel: the processor's tokens, and what they have not is not used."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from app.cli.doctor import Findings, lines_of
from app.core.diagnostics import Machine
from engine.config import EngineConfig, SamplingParams
from engine.decode.rounds import full_pass
from engine.devices import KINDS as DEVICE_KINDS
from engine.document import Document, Page
from engine.errors import OptionError, UnsupportedModel, is_out_of_memory
from engine.events import AnswerDone, BookRead, KvBytes
from engine.kv.full import FullCache
from engine.kv.offload import Placement, Tier
from engine.kv.spilling import retry_with_spill
from engine.model import loading
from engine.plan import hardware, planner
from engine.plan.memory_budget import MEMORY_SHARE
from engine.prompt import Question
from engine.session import Session
from engine.worker import describe
from tests.engine.conftest import TEXT
from tests.engine.gpu.simulated_gpus import simulated_gpu

LAYERS = 3
BOOK = Document("The Lamp", "Nobody", tuple(Page(n, str(n), f"Page {n}. {TEXT}") for n in (1, 2)), "text", "0" * 64)
OPTIONS: dict[str, Any] = {
    "context": 1024,
    "dtype": "float32",
    "retrieval_budget": 64,
    "refresh_every": 2,
    "num_draft_tokens": 3,
    "num_pending_tokens": 8,
    # What a processor would choose otherwise: which random number meets which token depends on what is proposed.
    "chunk_size": 8,
    "retrieval_share": 0,
    "middle": "stored",
}
GREEDY = SamplingParams(max_tokens=6)
WARM = SamplingParams(max_tokens=6, temperature=0.8, seed=3, repetition_penalty=1.1)
KINDS = ("mps", "xpu")
LITTLE = 100_000  # bytes: what a layer that is copied takes beside itself
SPILLED = {
    "mps": Placement((Tier.DISK, Tier.DISK, Tier.DISK)),
    "xpu": Placement((Tier.HOST, Tier.DISK, Tier.HOST)),
}


@pytest.fixture
def open_session(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """A session on a device, with its layers lying there."""

    def make(device: str, placement: Placement | None = None, **options: Any) -> Session:
        where = placement or Placement.resident(LAYERS)
        monkeypatch.setattr(
            planner, "plan_for_book", lambda _, tokens, *__: planner.MemoryPlan(tokens + 200, where, KvBytes(), 0)
        )
        return Session.load(EngineConfig(model=pair[0], draft=pair[1], device=device, **{**OPTIONS, **options}))

    return make


def read(session: Session) -> BookRead:
    done = list(session.read(BOOK))[-1]
    assert isinstance(done, BookRead)
    return done


def asked(session: Session, sampling: SamplingParams = GREEDY, mode: Any = "hierarchical") -> tuple[int, ...]:
    done = list(session.ask(Question("Where does the key hang?", sampling=sampling, mode=mode, chat="one")))[-1]
    assert isinstance(done, AnswerDone)
    return done.token_ids


def answers(session: Session) -> dict[str, tuple[int, ...]]:
    """All ways to an answer: they share the book that was read."""
    said = {"plain": asked(session, mode="plain"), "hierarchical": asked(session), "drawn": asked(session, WARM)}
    assert said["plain"] == said["hierarchical"]
    return said


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    """What the processor says, by what was asked; filled by whoever asks first."""
    return {}


@pytest.fixture
def of_processor(open_session: Callable[..., Session], expected: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    if not expected:
        session = open_session("cpu")
        read(session)
        expected.update(answers(session))
        session.close()
    return expected


@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_the_processors(kind: str, open_session: Callable[..., Session], of_processor: Any) -> None:
    """Drawn ones too, for the same seed: random numbers and probabilities are in float64 on the processor."""
    with simulated_gpu(kind) as gpu:
        session = open_session(kind)
        read(session)
        assert answers(session) == of_processor
        kv = session.full.kv_bytes()
        assert (kv.device, kv.host) == ((0, kv.total) if kind == "mps" else (kv.total, 0))
        assert not session.hierarchy.recorded()
        assert describe(session, session.config).device.endswith(" (untested)")
        session.close()
        assert gpu.held < gpu.peak


@pytest.mark.parametrize("kind", KINDS)
def test_spilled_kept_and_brought_back(
    kind: str, open_session: Callable[..., Session], of_processor: Any, tmp_path: Path
) -> None:
    """Host memory and disk, the book's reading and the turns of a chat: at the next start nothing is read again."""
    options = {"snapshot_folder": str(tmp_path)}
    with simulated_gpu(kind):
        session = open_session(kind, SPILLED[kind], **options)
        assert read(session).source == "read"
        assert asked(session) == of_processor["hierarchical"]
        assert session.full.moved_bytes > 0
        assert session.persistence.finish() == ""
        session.close()
        again = open_session(kind, SPILLED[kind], **options)
        assert read(again).source == "snapshot"
        assert asked(again) == of_processor["hierarchical"]
        again.close()


def test_a_full_mac_spills_to_disk_and_goes_on(open_session: Callable[..., Session], of_processor: Any) -> None:
    """Host memory is the same memory: there is no use in moving anything there."""
    with simulated_gpu("mps") as gpu:
        session = open_session("mps")
        read(session)
        gpu.limit = gpu.held + LITTLE
        retry_with_spill(session.full, lambda: torch.empty(2 * LITTLE, dtype=torch.uint8, device="mps"))
        gpu.limit = None
        assert asked(session) == of_processor["hierarchical"]
        where = session.full.placement
        assert where.count(Tier.DISK) > 0
        assert where.count(Tier.HOST) == 0
        session.close()


def test_rounded_weights_and_kv(open_session: Callable[..., Session]) -> None:
    """4 bits are unpacked for every product, KV of 8 bits in the buffers that layers come to hand in."""
    said = []
    for kind in KINDS:
        with simulated_gpu(kind):
            session = open_session(kind, SPILLED[kind], weights="4bit", kv="8bit")
            read(session)
            said.append(asked(session))
            session.close()
    assert said[0] == said[1]


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "lfm2", "qwen3_moe", "gpt_oss"])
def test_layers_of_other_kinds(family: str, tiny: Callable[..., str]) -> None:
    """Windows, convolutions and experts say what they say on the processor."""
    name, tokens, said = tiny(family), [10 + index % 90 for index in range(200)], []
    for kind in ("cpu", "mps"):
        with simulated_gpu("mps"), torch.no_grad():
            model = loading.load(name, window=512, device=torch.device(kind), dtype="float32")
            cache = FullCache(model.kv_shape, 512)
            full_pass(model, cache, 0, tokens)
            cache.advance(len(tokens))
            logits = full_pass(model, cache, len(tokens), [7, 8, 9])
            assert logits.device.type == "cpu"
            said.append(logits)
    assert torch.allclose(said[0], said[1], atol=1e-4)


def test_two_threads_on_a_mac_would_have_been_seen(
    open_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were ``mps`` a kind that takes threads, the one that moves layers would be caught at it."""
    monkeypatch.setitem(DEVICE_KINDS, "mps", replace(DEVICE_KINDS["mps"], takes_threads=True))
    with simulated_gpu("mps"):
        session = open_session("mps", SPILLED["mps"])
        read(session)
        with pytest.raises(SystemError, match="trifold-mover"):
            asked(session)


# What is not to be had ---------------------------------------------------------------------------------------------


def test_devices_that_are_not_there_are_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, words in (
        ("mps", "The device mps was asked for, and PyTorch sees 0 Apple GPUs."),
        ("xpu", "The device xpu was asked for, and PyTorch sees 0 Intel GPUs with memory of their own."),
        ("vulkan", "Trifold does not compute on devices of the kind vulkan."),
    ):
        with pytest.raises(OptionError) as refused:
            planner.pick_devices(name)
        assert refused.value.cause == words
    with simulated_gpu("xpu"):
        inside = SimpleNamespace(is_integrated_gpu=True)
        monkeypatch.setattr(torch.xpu, "get_device_properties", lambda _: inside)
        with pytest.raises(OptionError, match="sees 0 Intel GPUs"):
            planner.pick_devices("xpu")
        assert planner.pick_devices("auto") == (torch.device("cpu"),)


def test_what_auto_takes() -> None:
    """Intel's, for whose sake a build of torch was fetched; Apple's by name alone."""
    with simulated_gpu("xpu"):
        assert planner.pick_devices("auto") == (torch.device("xpu", 0),)
        assert planner.pick_devices("xpu:0") == (torch.device("xpu", 0),)
        for wrong in ("xpu:1", "xpu:0,xpu:1", "mps"):
            with pytest.raises(OptionError):
                planner.pick_devices(wrong)
    with simulated_gpu("mps"):
        assert planner.pick_devices("auto") == (torch.device("cpu"),)
        assert planner.pick_devices("mps") == (torch.device("mps"),)


@pytest.mark.parametrize("kind", KINDS)
def test_layers_that_need_float64_are_refused_before_weights_are_read(
    kind: str, tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    name = tiny({"mps": "qwen3_5_text", "xpu": "granitemoehybrid"}[kind])
    with simulated_gpu(kind), pytest.raises(UnsupportedModel, match=f"of the kind {kind} do not have"):
        loading.load(name, window=512, device=torch.device(kind))


@pytest.mark.parametrize(
    "said",
    [
        "MPS backend out of memory (MPS allocated: 5.56 GB, other allocations: 1.10 GB, max allowed: 6.80 GB).",
        "Invalid buffer size: 9.75 GB",
        "XPU out of memory. Tried to allocate 1.00 GiB",
        "level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)",
        "UR backend failed. UR backend returns:40 (UR_RESULT_ERROR_OUT_OF_RESOURCES)",
    ],
)
def test_how_they_say_that_memory_ran_out(said: str) -> None:
    assert is_out_of_memory(RuntimeError(said))


# Memory ------------------------------------------------------------------------------------------------------------


def test_memory_of_a_mac_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than is free of it, than the system recommends for the GPU, or than either limit says."""
    here = SimpleNamespace(available=8_000_000_000)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: here)
    mac = torch.device("mps")

    def free(back: int = 0, **options: Any) -> planner.Resources:
        return planner.free_resources(mac, EngineConfig(model="m", **options), KvBytes(host=back))

    with simulated_gpu("mps", limit=6_000_000_000):
        found = free()
        assert (found.device, found.host) == (int(6_000_000_000 * MEMORY_SHARE), 0)
        assert found.disk > 0
        assert free(1_000_000_000).device == int(7_000_000_000 * MEMORY_SHARE)
        assert free(device_memory="1G").device == free(host_memory="1G").device == 10**9
        assert free(device_memory="1G", host_memory="2G").device == 10**9
        here.available = 2_000_000_000
        assert free().device == int(2_000_000_000 * MEMORY_SHARE)
        assert planner.memory_of_cards("mps") == ()
    with simulated_gpu("xpu", limit=6_000_000_000):
        assert planner.memory_of_cards("auto") == (6_000_000_000,)


# Doctor ------------------------------------------------------------------------------------------------------------


def test_doctor_says_that_they_are_untested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "PROBE_WIDTH", {"cpu": 8, "gpu": 8})
    here = Machine("System", "3.11", "/python", "Processor", 2, 2, 1, 1, 1, "/data", (), None)
    for kind, words in (("mps", "Apple GPU, "), ("xpu", "simulated, ")):
        with simulated_gpu(kind):
            found = Findings(here, {}, hardware.probe_torch(), None, None, None, ())
        (line,) = (line.strip() for line in lines_of(found) if line.strip().startswith(f"{kind}:0: {words}"))
        assert "bfloat16" in line
        assert "untested with Trifold" in line


# The device itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_it_refuses_what_the_real_ones_refuse(kind: str) -> None:
    with simulated_gpu(kind) as gpu:
        here = gpu.device
        x = torch.arange(6.0, device=here).view(2, 3)
        assert x.device == here
        assert (x @ x.T).sum().item() == 83.0
        for work in (
            lambda: x.double(),
            lambda: x.cumsum(0, dtype=torch.float64),
            lambda: torch.ones(1, dtype=torch.float64).to(here),
            lambda: x + torch.ones(3),
            lambda: torch.empty(3, pin_memory=True),
            lambda: torch.Generator(here),
            lambda: torch.cuda.current_stream(),
        ):
            with pytest.raises((RuntimeError, TypeError, AssertionError)):
                work()
    with simulated_gpu("mps") as gpu, pytest.raises(NotImplementedError, match="for the MPS device"):
        torch.ones(4, device=gpu.device).geqrf()


def test_memory_comes_back_with_the_last_view() -> None:
    with simulated_gpu("mps", limit=1000) as gpu:
        view = torch.ones(100, device=gpu.device)[10:]
        assert gpu.held == 400
        with pytest.raises(RuntimeError, match="out of memory"):
            torch.ones(200, device=gpu.device)
        del view
        assert gpu.held == 0
