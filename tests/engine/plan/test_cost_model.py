"""Probes of this machine and what the planner makes of them: bounded, kept, injectable, and only ever a plan."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.document import Document
from engine.events import AnswerDone, KvBytes
from engine.kv.offload import ResidentStore, Workspace
from engine.model import architectures, loading
from engine.model.kernels import native
from engine.model.kv_shape import KvShape
from engine.plan import cost_model, planner, probe
from engine.plan.cost_model import CostModel, LayerCost
from engine.plan.memory_budget import CHUNK, FINE_CHUNK
from engine.plan.round_model import HostWeights, probed, sentence
from engine.prompt import Question
from engine.session import Session

CPU = torch.device("cpu")
NONE = KvBytes()
# A made-up machine: ten layers, 1 ms a layer for a token, 2 ms for eight, and 1 us more per 1,000 tokens of context.
MADE = CostModel(
    memory=1e10,
    bus=0.0,
    disk=1e9,
    layers=10,
    head=2.0,
    step=LayerCost(1e-3, 1e-9),
    middle=LayerCost(2e-3, 1e-7),
    middle_tokens=8,
    blocks=((64, 0.02), (128, 0.03), (256, 0.05), (512, 0.1), (1024, 0.3)),
    block_per_token=1e-8,
)


def test_a_step_is_its_layers_its_head_and_its_context() -> None:
    assert MADE.step_ms(0, NONE) == pytest.approx(12.0)
    assert MADE.step_ms(100_000, NONE) == pytest.approx(12.0 + 1.0)
    # Spilled KV comes in while the model computes, so the slower of the two counts.
    assert MADE.step_ms(100_000, KvBytes(host=10**9, disk=10**6)) == pytest.approx(13.0)
    assert MADE.step_ms(100_000, KvBytes(disk=10**9)) == pytest.approx(1000.0)
    assert replace(MADE, bus=1e10).step_ms(100_000, KvBytes(device=1, host=10**9)) == pytest.approx(100.0)


def test_what_speculation_makes_of_a_slow_bus_is_said() -> None:
    """By the same rounds as the tables in engine/docs/gpus.md: many middle passes for one trip over the bus."""
    fast = LayerCost(1e-4, 1e-10)
    costs = CostModel(1e12, 3e10, 0.0, 32, 1.0, fast, fast, 8, ((512, 0.01),), 1e-12)
    kv = KvBytes(device=0, host=60_000_000_000)
    rounds = probed(costs, 120_000, kv)
    assert costs.step_ms(120_000, kv) == rounds.plain_ms == pytest.approx(2000.0)
    assert costs.step_ms(120_000, kv, 2) == pytest.approx(1000.0)
    assert rounds.middle.ms(rounds.rates) == pytest.approx(1000 * (33 * 1e-4 + 32 * 1e-10 * 4096), rel=0.01)
    low, high = rounds.token_ms()
    assert 2000 / 64 < low < high < 2000 / 3
    words = sentence(costs, 120_000, kv)
    assert f"2000 ms a token before speculation and {low:.0f} to {high:.0f} with it" in words
    assert "with it" not in sentence(costs, 120_000, KvBytes(device=60_000_000_000))


def test_weights_that_wait_in_host_memory_are_in_the_forecast() -> None:
    """They come for every pass, for middle passes too where these have no copy; the forecast once left them out."""
    fast = LayerCost(1e-4, 1e-10)
    costs = CostModel(1e12, 3e10, 0.0, 32, 1.0, fast, fast, 8, ((512, 0.01),), 1e-12)
    kv, dense = KvBytes(device=10**9), HostWeights(9e9)
    rounds = probed(costs, 1000, kv, waiting=dense)
    assert costs.step_ms(1000, kv, waiting=dense.step) == rounds.plain_ms == pytest.approx(300.0)
    assert rounds.middle.ms(rounds.rates) == pytest.approx(300.0)
    assert "300 ms a token before speculation and" in sentence(costs, 1000, kv, waiting=dense)
    copied = probed(costs, 1000, kv, waiting=replace(dense, for_middle=False))
    assert copied.middle.ms(copied.rates) < 5
    assert copied.token_ms()[1] < rounds.token_ms()[0]
    sparse = HostWeights(1e9, 2e9, 64, 8)  # 17 GB in all
    chosen = probed(costs, 1000, kv, waiting=sparse)
    assert chosen.plain_ms == pytest.approx(100.0)
    assert chosen.costs.verify.ms(1000) == pytest.approx(17 / 3 * 100.0)
    assert rounds.costs.verify.ms(1000) == pytest.approx(300.0)


def test_reading_grows_with_the_square_of_the_length() -> None:
    best = 10 * 0.05 / 256  # seconds per token over all layers, without context
    assert MADE.reading_s(1000, NONE) == pytest.approx(1000 * best + 10 * 1e-8 * 1000**2 / 2)
    assert MADE.reading_s(100_000, NONE) == pytest.approx(100_000 * best + 10 * 1e-8 * 100_000**2 / 2)
    assert MADE.reading_s(1000, KvBytes(disk=10**11)) == pytest.approx(100.0)


def test_the_block_is_large_fast_and_soon_done() -> None:
    assert MADE.prefill_block == 512  # 1,024 takes too long, and 512 is as fast as 256
    assert replace(MADE, blocks=((128, 0.01), (256, 0.1))).prefill_block == 128
    assert replace(MADE, blocks=((16, 0.01), (32, 0.011))).prefill_block == 0  # the probe ran out of time
    assert replace(MADE, blocks=((128, 5.0),)).prefill_block == 0


def test_the_budget_is_what_a_pass_hardly_notices() -> None:
    assert MADE.retrieval_budget(131_072) == 4096  # 5,000 tokens cost a quarter of the pass
    assert MADE.retrieval_budget(32_768) == 2048  # no more than a sixteenth of the window
    assert replace(MADE, middle=LayerCost(2e-3, 1e-4)).retrieval_budget(131_072) == cost_model.MIN_BUDGET
    assert replace(MADE, middle=LayerCost(2e-3, 0.0)).retrieval_budget(10**6) == cost_model.MAX_BUDGET


def test_what_the_configuration_says_wins() -> None:
    shape = KvShape(10, 4, 64, torch.float32, CPU)
    chosen = planner.complete_config(EngineConfig(model="m"), MADE, 131_072, shape)
    assert (chosen.prefill_block, chosen.retrieval_budget) == (512, 4096)
    given = EngineConfig(model="m", prefill_block=33, retrieval_budget=96, retrieval_share=0, chunk_size=4)
    assert planner.complete_config(given, MADE, 131_072, shape) == given
    blind = planner.complete_config(EngineConfig(model="m"), None, 131_072, shape)
    assert (blind.prefill_block, blind.retrieval_budget) == (None, cost_model.MIN_BUDGET)


@pytest.mark.parametrize(
    ("device", "given", "share"),
    [
        ("cpu", {}, cost_model.BUDGET_SHARE),
        ("cpu", {"retrieval_budget": 2048}, 0),  # a budget that is named holds for every book
        ("cpu", {"retrieval_budget": 2048, "retrieval_share": 4}, 4),
        ("cpu", {"retrieval_share": 0}, 0),
        ("meta", {}, 0),
        ("meta", {"retrieval_share": 4}, 4),
    ],
)
def test_a_book_is_given_its_share_where_passes_cost_what_they_hold(
    device: str, given: dict[str, int], share: int
) -> None:
    shape = KvShape(10, 4, 64, torch.float32, torch.device(device))
    assert planner.complete_config(EngineConfig(model="m", **given), MADE, 131_072, shape).retrieval_share == share  # type: ignore[arg-type]


def test_chunks_are_fine_where_their_mean_keys_fit_beside_the_kv_of_a_whole_window() -> None:
    shape, window = KvShape(10, 4, 64, torch.float32, CPU), 4_000
    index = 10 * 4 * (64 + 2) // 2  # a byte a number, and a scale, for every other token
    assert shape.indexed(FINE_CHUNK).index_bytes_per_token == index
    needed = window * (shape.bytes_per_token + index)
    for memory, chunk in ((needed, FINE_CHUNK), (needed - 1, CHUNK)):
        config = EngineConfig(model="m", host_memory=str(memory))
        assert planner.complete_config(config, None, window, shape).chunk_size == chunk
    far = replace(shape, device=torch.device("cuda"))
    assert planner.complete_config(EngineConfig(model="m"), None, window, far).chunk_size == CHUNK


def test_what_is_kept_comes_back_until_it_is_old(tmp_path: Path) -> None:
    file = tmp_path / "not" / "there" / "speeds.json"
    assert cost_model.load(file, "here", 1e9) is None
    cost_model.save(file, "here", MADE, 1e9, quiet=True)
    other = replace(MADE, layers=3)
    cost_model.save(file, "there", other, 1e9, quiet=True)
    assert cost_model.load(file, "here", 1e9 + 5) == MADE
    assert cost_model.load(file, "there", 1e9 + 5) == other
    assert cost_model.load(file, "here", 1e9 + 8 * 24 * 3600) is None
    assert cost_model.load(file, "here", 1e9 - 5) is None  # a clock that was set back
    assert [entry.name for entry in file.parent.iterdir()] == ["speeds.json"]


def test_of_two_probes_the_better_of_each_measure_counts() -> None:
    """A machine that does something else as well measures slower, in whatever it did it during."""
    other = replace(
        MADE,
        memory=MADE.memory / 2,
        disk=MADE.disk * 2,
        step=LayerCost(MADE.step.base * 3, MADE.step.per_token / 2),
        blocks=(*((tokens, seconds * 2) for tokens, seconds in MADE.blocks[:-1]), (2 * MADE.blocks[-1][0], 9.0)),
        block_per_token=MADE.block_per_token / 2,
    )
    for best in (cost_model.best_of(MADE, other), cost_model.best_of(other, MADE)):
        assert (best.memory, best.disk) == (MADE.memory, 2 * MADE.disk)
        assert best.step == LayerCost(MADE.step.base, MADE.step.per_token / 2)
        assert best.blocks == (*MADE.blocks, (2 * MADE.blocks[-1][0], 9.0))
        assert best.block_per_token == MADE.block_per_token / 2
    assert cost_model.best_of(MADE, MADE) == MADE


def test_a_busy_machine_is_told_from_one_that_only_measures() -> None:
    assert cost_model.others_share(busy_s=3.9, own_s=3.8, seconds=2.0, cores=2) == pytest.approx(0.025)
    assert cost_model.others_share(busy_s=4.0, own_s=2.0, seconds=2.0, cores=2) == pytest.approx(0.5)
    assert cost_model.others_share(busy_s=1.99, own_s=2.0, seconds=2.0, cores=2) == 0.0  # clocks of different grain
    assert cost_model.is_quiet(0.025)
    assert not cost_model.is_quiet(0.5)


def test_another_program_at_work_is_seen() -> None:
    burn = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    busy = subprocess.Popen([sys.executable, "-c", burn])
    try:
        others, until = probe.OtherPrograms(), time.monotonic() + 30
        while others.share() * (os.cpu_count() or 1) < 0.3:  # of one processor; a crowded machine gives it no more
            assert time.monotonic() < until
            time.sleep(0.2)
    finally:
        busy.kill()
        busy.wait()


def test_probes_of_a_busy_machine_are_taken_again_and_the_best_is_kept(
    tiny: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = iter([replace(MADE, memory=5e9), replace(MADE, memory=3e9), replace(MADE, memory=4e9)])
    shares = iter([0.6, 0.6, 0.0])
    layers: list[weakref.ref[Mock]] = []

    def measured(*_: object) -> CostModel:
        layer = Mock()
        layer.itself = layer
        layers.append(weakref.ref(layer))
        return next(taken)

    monkeypatch.setattr(probe, "measure", measured)
    monkeypatch.setattr(probe.OtherPrograms, "share", lambda _: next(shares))
    config = EngineConfig(model=tiny("llama"), speeds_file=str(tmp_path / "speeds.json"))
    decoder = loading.load(config.model, window=None, device=CPU)
    # Best of two busy ones; a quiet one then says it better than both, and stays.
    assert [probe.of_engine(decoder, config).memory for _ in range(4)] == [5e9, 5e9, 4e9, 4e9]
    assert len(layers) == 3
    assert not any(layer() for layer in layers)  # the memory of the probe's layer, which refers to itself


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: entry["speeds"].update(memory=0),
        lambda entry: entry["speeds"].update(memory=float("nan")),
        lambda entry: entry["speeds"].update(layers="10"),
        lambda entry: entry["speeds"].update(blocks=[]),
        lambda entry: entry["speeds"].update(blocks=[[0, 1.0]]),
        lambda entry: entry["speeds"].update(extra=1),
        lambda entry: entry["speeds"].pop("step"),
        lambda entry: entry["speeds"].update(step={"base": -1.0, "per_token": 0.0}),
        lambda entry: entry.update(measured=None),
        lambda entry: entry.clear(),
    ],
)
def test_what_was_tampered_with_is_measured_again(damage: Callable[[dict[str, object]], None], tmp_path: Path) -> None:
    file = tmp_path / "speeds.json"
    cost_model.save(file, "here", MADE, 1e9, quiet=True)
    kept = json.loads(file.read_text())
    damage(kept["here"])
    file.write_text(json.dumps(kept))
    assert cost_model.load(file, "here", 1e9) is None
    file.write_text("[" * 100_000)
    assert cost_model.load(file, "here", 1e9) is None
    cost_model.save(file, "here", MADE, 1e9, quiet=True)
    assert cost_model.load(file, "here", 1e9) == MADE


class Clock:
    """Every look takes so many seconds."""

    def __init__(self, step: float) -> None:
        self.now, self.step, self.looks = 0.0, step, 0

    def __call__(self) -> float:
        self.looks += 1
        self.now += self.step
        return self.now


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "phi3", "ministral3", "smollm3", "exaone4", "gemma4_text"])
def test_one_layer_of_any_family_is_timed(kind: str, tiny: Callable[..., str], tmp_path: Path) -> None:
    config = architectures.load_config(tiny(kind))
    layers, clock = config.num_hidden_layers, Clock(0.001)
    found = probe.measure(config, torch.float32, CPU, tmp_path, clock=clock, limit_s=10.0)
    assert found.layers == layers
    assert (found.step.base, found.step.per_token) == (pytest.approx(0.001), pytest.approx(0.0))
    assert [tokens for tokens, _ in found.blocks] == [16, 32, 64, 128, 256, 512]
    assert found.prefill_block == 512
    assert found.disk == pytest.approx(probe._FILE_BYTES / 0.001)
    assert found.bus == 0.0
    assert list(tmp_path.iterdir()) == []  # the file that was read is gone
    assert config.num_hidden_layers == layers  # and the model's own configuration is as it was


@pytest.mark.parametrize("has_kernels", [True, False])
def test_kv_in_8_bits_is_unpacked_for_every_step_that_cannot_read_it(
    tiny: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_kernels: bool
) -> None:
    """In a whole model other layers come in between, so a step that finds its layer unpacked says too little."""
    if not has_kernels:
        monkeypatch.setattr(native, "own", lambda: None)
    elif native.own() is None:
        pytest.skip("no kernels of our own on this processor")
    config = architectures.load_config(tiny("llama"))
    unpacked: list[int] = []
    real = Workspace.acquire

    def acquire(self: Workspace, layer: int, store: ResidentStore, length: int) -> None:
        if not self.at_hand(layer, length):
            unpacked.append(length)
        real(self, layer, store, length)

    monkeypatch.setattr(Workspace, "acquire", acquire)
    probe.measure(config, torch.float32, CPU, tmp_path, kv="8bit", clock=Clock(0.001), limit_s=10.0)
    behind = 4096 - 512  # a window of 4,096, less the largest block
    # Every one of the steps, unless a kernel reads 8 bits; of the passes of the middle level and of the blocks only
    # the first.
    assert unpacked.count(behind) == (1 if has_kernels else 4 + 1 + 1)
    key = partial(probe.key_of, config, torch.float32, CPU, "stored")
    assert key() == key("model") != key("8bit")


def test_the_cost_of_context_is_timed_with_the_fastest_block(
    tiny: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer block can be far slower, where torch imitates bfloat16; what context adds is then lost in its time."""
    alone = {1: 0.001, 8: 0.002, 16: 0.01, 32: 0.019, 64: 0.032, 128: 0.9}

    def seconds(self: probe._Probe, tokens: int, context: int, *_: object) -> float:
        return alone[tokens] + (1e-7 * tokens * context if tokens < 128 else 0.0)

    monkeypatch.setattr(probe._Probe, "seconds", seconds)
    config = architectures.load_config(tiny("llama"))
    assert probe.measure(config, torch.float32, CPU, tmp_path).block_per_token == pytest.approx(1e-7)


def test_the_first_run_of_a_pass_alone_is_not_believed(tiny: Callable[..., str]) -> None:
    """torch prepares a product of a new size in its first run, which can take longer than a probe may."""
    clock = Clock(0.0)
    layer = probe._one_layer(architectures.load_config(tiny("llama")), torch.float32, CPU, "stored")
    timed = probe._Probe(layer, "model", clock, limit_s=2.0)
    took = iter([0.5, 0.01, 0.01, 0.01])

    def work() -> None:
        clock.now += next(took)

    assert timed._best(work) == pytest.approx(0.01)


def test_a_slow_machine_is_asked_less(tiny: Callable[..., str], tmp_path: Path) -> None:
    config = architectures.load_config(tiny("llama"))
    patient, hasty = Clock(0.001), Clock(0.3)
    probe.measure(config, torch.float32, CPU, tmp_path, clock=patient, limit_s=10.0)
    found = probe.measure(config, torch.float32, CPU, tmp_path, clock=hasty, limit_s=2.0)
    assert hasty.looks < patient.looks / 3
    assert len(found.blocks) == 1
    assert found.prefill_block == 0
    assert found.step_ms(1000, NONE) > 0


@pytest.mark.parametrize(
    ("own_s", "others", "counted"),
    [
        (1.0, 0.75, 2.0),  # with the machine for itself a quarter of the time
        (0.1, 0.75, 2.0),  # its threads waited for each other; others left it a quarter
        (3.9, 0.05, 3.95),
        (0.1, 0.0, 4.0),  # a processor that is slow, or limited, although nobody else is there
        (4.5, 0.0, 4.0),  # clocks of different grain
    ],
)
def test_a_busy_machine_is_told_from_a_slow_one(own_s: float, others: float, counted: float) -> None:
    assert cost_model.counted_s(4.0, own_s, others) == pytest.approx(counted, rel=0.01)


def test_probes_beside_other_programs_reach_long_blocks_and_count_what_they_computed(
    tiny: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passes that waited for processors made hours of a reading that took 26 minutes."""
    config, clock = architectures.load_config(tiny("llama")), Clock(0.08)
    monkeypatch.setattr(probe.time, "process_time", lambda: clock.now / 16 * torch.get_num_threads())
    monkeypatch.setattr(probe.OtherPrograms, "share", lambda _: 15 / 16)
    found = probe.measure(config, torch.float32, CPU, tmp_path, clock=clock, limit_s=2.0, others=probe.OtherPrograms())
    assert found.step.base == pytest.approx(0.08 / 4)
    assert [tokens for tokens, _ in found.blocks] == [16, 32, 64, 128, 256, 512]
    full = probe.measure(config, torch.float32, CPU, tmp_path, clock=clock, limit_s=2.0)
    assert full.step.base == pytest.approx(0.08)


def test_a_full_disk_and_a_closed_folder_are_not_probed(
    tiny: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that could not be loaded because the disk could not be measured would be a poor joke."""
    config = architectures.load_config(tiny("llama"))
    (tmp_path / "file").write_text("no folder")
    assert probe.measure(config, torch.float32, CPU, tmp_path / "file", clock=Clock(0.001)).disk == 0.0
    nearly_full = shutil._ntuple_diskusage(10**9, 10**9 - 10**7, 10**7)
    monkeypatch.setattr(probe.shutil, "disk_usage", lambda place: nearly_full)
    found = probe.measure(config, torch.float32, CPU, tmp_path, clock=Clock(0.001))
    assert found.disk == 0.0
    assert found.reading_s(1000, KvBytes(disk=10**9)) > 0


def test_what_cannot_be_measured_is_left_out(
    tiny: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> CostModel:
        raise MemoryError

    monkeypatch.setattr(probe, "measure", full)
    session = Session.load(EngineConfig(tiny("llama"), context=4096, speeds_file=str(tmp_path / "speeds.json")))
    assert session.costs is None
    assert session.config.retrieval_budget == cost_model.MIN_BUDGET
    session.close()


def test_a_session_measures_once_and_says_what_to_expect(
    tiny: Callable[..., str], book: Document, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(model=tiny("llama", spread=0.1), context=4096, speeds_file=str(tmp_path / "speeds.json"))
    monkeypatch.setattr(probe.OtherPrograms, "share", lambda _: 0.0)
    first = Session.load(config)
    assert first.costs is not None
    fit = first.measure(book)
    assert fit.reading_s is not None
    assert fit.reading_s > 0
    assert fit.step_ms is not None
    assert fit.estimate in fit.sentence
    assert "by short probes of this machine" in fit.sentence
    said = Session.load(replace(config, speeds_file="")).measure(book)
    assert (said.estimate, said.reading_s) == ("", None)  # what was not measured is not said
    first.close()

    def never(*_: object) -> CostModel:
        raise AssertionError("measured again")

    monkeypatch.setattr(probe, "measure", never)
    second = Session.load(config)
    assert second.costs == first.costs
    second.close()
    # Another model has costs of its own.
    with pytest.raises(AssertionError, match="measured again"):
        Session.load(replace(config, model=tiny("llama", width=32)))


def test_a_plan_changes_no_answer(tiny: Callable[..., str], book: Document) -> None:
    said = []
    for known in (None, MADE, replace(MADE, blocks=((128, 0.01),))):
        loaded = Session.load(EngineConfig(model=tiny("llama", spread=0.1), context=4096))
        session = Session(EngineConfig(model="m"), loaded.tokenizer, loaded.target, None, known)
        list(session.read(book))
        *_, done = session.ask(Question("Where is the key?", sampling=SamplingParams(max_tokens=12)))
        assert isinstance(done, AnswerDone)
        said.append(done.token_ids)
        session.close()
    assert said[0] == said[1] == said[2]


def test_a_processor_times_the_program_that_answers_use(tiny: Callable[..., str]) -> None:
    config = architectures.load_config(tiny("llama"))
    answers = loading.load(tiny("llama"), window=64, device=CPU, dtype="float32")
    assert type(probe._one_layer(config, torch.float32, CPU, "stored").backend) is type(answers.backend)
