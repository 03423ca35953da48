"""The doctor: facts of this machine, and what follows from facts."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from app.cli import doctor
from app.cli.doctor import Findings, SelftestResult, advice_for, lines_of
from app.cli.main import main
from app.core import diagnostics
from app.core.diagnostics import ChildProcess, Machine, ProbeFailed
from app.launcher.torch_build import Gpu
from engine.config import KV_NOTES, EngineConfig
from engine.errors import ModelNotFound
from engine.plan.cost_model import CostModel, LayerCost
from engine.plan.hardware import DeviceFacts, Expected, ModelFacts, TorchFacts, inspect_model
from engine.version import VERSION

GB = 10**9
HERE = Machine("System", "3.11", "/python", "Processor", 2, 2, 16 * GB, 9 * GB, 90 * GB, "/data", (), "/chromium")
CPU = DeviceFacts("cpu", "processor", 16 * GB, 9 * GB, gflops=(("float32", 150.0),))
GPU = DeviceFacts("cuda:0", "NVIDIA Test", 24 * GB, 20 * GB, "8.9")
MODEL = ModelFacts("demo", "llama", 131072, "float32", "cpu", 100, 1000, 131072, 131072, "0.13 GB of memory")
WELL = Findings(HERE, {"torch": "2.13.0"}, TorchFacts("2.13.0", None, 2, (CPU,)), "cpu", MODEL, MODEL, ())


def test_nothing_to_mend_when_all_is_well() -> None:
    assert advice_for(WELL) == []
    text = "\n".join(lines_of(WELL))
    assert "float32 150 GFLOP/s" in text
    assert "books of up to 131,072 tokens, the model's whole window" in text
    assert "our own kernels on a processor, torch's on a GPU; flash-attn" in text


def test_whether_the_starter_and_the_reader_are_here_is_told() -> None:
    for name in ("starter", "reader"):
        called = f"{name.capitalize():11}"
        assert any(
            line.startswith(f"{called}not on this machine; --model {name} downloads it") for line in lines_of(WELL)
        )
        assert f"{called}on this machine: --model {name}" in lines_of(
            dataclasses.replace(WELL, starter=True, reader=True)
        )


def test_the_last_self_test_is_told_of() -> None:
    assert "Self-test  not run yet (--selftest runs it)" in lines_of(WELL)
    result = SelftestResult(time.time(), True, "demo", None, "cpu", "float32", "System", 1.0, 48)
    assert "Self-test  passed (today, demo on cpu)" in lines_of(dataclasses.replace(WELL, selftest=result))
    failed = dataclasses.replace(result, passed=False)
    assert "Self-test  FAILED (today, demo on cpu)" in lines_of(dataclasses.replace(WELL, selftest=failed))


def test_what_is_to_be_expected_says_where_it_comes_from() -> None:
    probed = CostModel(4e9, 0.0, 1e9, 8, 2.0, LayerCost(2e-3, 0.0), LayerCost(3e-3, 0.0), 8, ((512, 0.1),), 0.0)
    expected = (Expected(32_768, 51.2, 20.0, "0.9 GB of memory"), Expected(131_072, 600.0, 20.0, "3 GB of memory"))
    planned: dict[str, Any] = {"prefill_block": 512, "retrieval_budget": 1024, "retrieval_share": 16}
    told = dataclasses.replace(MODEL, speeds=probed, expected=expected, **planned)
    text = "\n".join(lines_of(dataclasses.replace(WELL, target=told)))
    assert "memory 4.0 GB/s, disk 1.0 GB/s; one layer 2.00 ms for one token" in text
    assert "blocks of 512 tokens, retrieval budget 1,024 tokens or 1/16 of the book (from the probes" in text
    assert "32,768 tokens: about 51 s to read, 20 ms a token before speculation, cache 0.9 GB of memory" in text
    assert "131,072 tokens: about 10 min to read" in text
    assert lines_of(WELL)[0] == f"Trifold    {VERSION}"
    assert "by the probes of one layer and the 8 layers of the configuration" in text
    assert "about" not in "\n".join(lines_of(WELL))  # nothing was measured, and nothing is said


def test_kv_that_is_not_exact_is_named() -> None:
    rounded = dataclasses.replace(MODEL, kv_note=KV_NOTES["8bit"])
    target, draft = lines_of(dataclasses.replace(WELL, target=rounded))[-4:-2]
    assert target.endswith("of cache per token (KV 8-bit: approximate; exact with respect to 8-bit KV)")
    assert draft.endswith("of cache per token")


def test_probes_of_a_busy_machine_are_called_so(pair: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    probed = CostModel(4e9, 0.0, 1e9, 8, 2.0, LayerCost(2e-3, 0.0), LayerCost(3e-3, 0.0), 8, ((512, 0.1),), 0.0)
    told = dataclasses.replace(MODEL, speeds=probed, others=0.43)
    quiet, busy = (
        "\n".join(lines_of(dataclasses.replace(WELL, target=dataclasses.replace(told, probed_busy=busy))))
        for busy in (False, True)
    )
    assert "Other programs" not in quiet
    assert "Other programs took 43% of this machine during the probes" in busy
    for share, expected in ((0.04, False), (0.5, True)):
        monkeypatch.setattr("engine.plan.probe.OtherPrograms.share", lambda self, share=share: share)
        facts = inspect_model(pair[1], EngineConfig(model=pair[1]))
        assert (facts.others, facts.probed_busy) == (share, expected)


def with_machine(**changes: Any) -> Findings:
    return dataclasses.replace(WELL, machine=dataclasses.replace(HERE, **changes))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (with_machine(memory_available=GB), "1.0 GB of memory"),
        (with_machine(disk_free=GB), "of disk"),
        (with_machine(browser=None), "sudo apt install chromium"),
        (with_machine(gpus=(Gpu("NVIDIA Test", 580, 8.9),)), "CUDA 13.0 build of torch"),
        (with_machine(amd_gpus=("gfx1100",)), "An AMD GPU (gfx1100) is here: the ROCm 7.2 build of torch, untested"),
        (with_machine(intel_gpus=("0x56a0",)), "An Intel GPU (0x56a0) is here: torch's build for those, untested"),
        (
            dataclasses.replace(
                with_machine(intel_gpus=("0x56a0",)), torch=TorchFacts("2.13.0", None, 2, (CPU,), None, "20250301")
            ),
            "torch for Intel GPUs sees none. It needs Intel's driver for computing",
        ),
        # Another install of the build that is there would change nothing.
        (
            dataclasses.replace(
                with_machine(amd_gpus=("gfx1100",)), torch=TorchFacts("2.13.0", None, 2, (CPU,), "7.2.5")
            ),
            "torch for ROCm 7.2.5 sees no GPU. AMD's driver only lets members of two groups compute: sudo usermod -aG",
        ),
        (
            dataclasses.replace(
                with_machine(gpus=(Gpu("NVIDIA Test", 580, 8.9),)), torch=TorchFacts("2.13.0", "13.0", 2, (CPU,))
            ),
            "CUDA_VISIBLE_DEVICES",
        ),
        (dataclasses.replace(WELL, troubles=("It is broken. Mend it.",)), "It is broken. Mend it."),
        (dataclasses.replace(WELL, target=dataclasses.replace(MODEL, context_in_memory=9)), "very long books"),
        (
            dataclasses.replace(
                WELL, torch=TorchFacts("2.13.0", "13.0", 2, (CPU, dataclasses.replace(GPU, trouble="no kernel")))
            ),
            "NVIDIA Test: no kernel",
        ),
    ],
)
def test_each_trouble_gets_one_sentence(found: Findings, words: str) -> None:
    advice = advice_for(found)
    assert len(advice) == 1
    assert words in advice[0]


def test_who_has_rocm_already_is_not_told_to_install_it_again() -> None:
    built = TorchFacts("2.13.0", None, 2, (CPU,), "7.2.5")
    (advice,) = advice_for(dataclasses.replace(with_machine(amd_gpus=("gfx1100",)), torch=built))
    assert "--repair" not in advice


def test_torch_for_rocm_is_called_so() -> None:
    built = TorchFacts("2.13.0", None, 2, (CPU, GPU), "7.2.5")
    assert "torch      2.13.0 for ROCm 7.2.5, 2 threads" in lines_of(dataclasses.replace(WELL, torch=built))
    assert "torch      2.13.0 for processors only, 2 threads" in lines_of(WELL)


def test_working_gpu_needs_no_advice() -> None:
    found = dataclasses.replace(
        with_machine(gpus=(Gpu("NVIDIA Test", 580, 8.9),)), torch=TorchFacts("2.13.0", "13.0", 2, (CPU, GPU))
    )
    assert advice_for(found) == []


def test_doctor_on_this_machine(pair: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *pair, "--dtype", "float32", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["machine"]["memory_total"] == psutil.virtual_memory().total
    assert report["machine"]["usable_cores"] >= 1
    speeds = dict(report["torch"]["devices"][0]["gflops"])
    assert set(speeds) == {"float32", "bfloat16"}
    assert min(speeds.values()) > 0
    # The tiny model: keys and values of 3 layers, 2 KV heads of 16, in 4-byte numbers.
    held = 4 if report["target"]["dtype"] == "float32" else 2  # by what this processor multiplies
    assert report["target"]["kv_bytes_per_token"] == 2 * 3 * 2 * 16 * held
    assert report["target"]["context_limit"] == report["target"]["context_in_memory"] == 4096
    assert report["draft"]["kv_bytes_per_token"] == 2 * 1 * 2 * 16 * held
    assert report["troubles"] == []


class _Here(ChildProcess):
    """Calls functions in this process, which the test above leaves to a child: a child imports torch for seconds."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


def test_doctor_goes_on_when_there_is_no_model(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "ChildProcess", _Here)
    assert main(["doctor", "--model", "/no/such/model"]) == 0
    said = capfd.readouterr()
    assert "Target     none" in said.out
    assert "/no/such/model" in said.out
    assert "Traceback" not in said.err


def test_child_that_crashes_or_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    before = multiprocessing.active_children()
    with ChildProcess() as child:
        with pytest.raises(ProbeFailed, match="crashed"):
            child.call(os._exit, 3)
        with pytest.raises(ModelNotFound, match="/no/such/model"):
            child.call(inspect_model, "/no/such/model", EngineConfig(model="m"))
        monkeypatch.setattr(diagnostics, "_PROBE_TIMEOUT_S", 0.01)
        with pytest.raises(ProbeFailed, match="did not answer"):
            child.call(time.sleep, 300)
        assert multiprocessing.active_children() == before  # the end of the program waited for it
