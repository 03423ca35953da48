"""The middle level by a copy in 4 bits on a simulated card: torch's product reads the quants as they are, the copy is
planned for, proposes, and changes no token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from engine import devices
from engine.config import EngineConfig, SamplingParams
from engine.decode.rounds import full_pass
from engine.document import Document, Page
from engine.errors import OptionError
from engine.events import AnswerDone
from engine.kv.full import FullCache
from engine.model import loading
from engine.model.backends import Backend
from engine.model.graphs import Replays
from engine.model.kernels import cuda
from engine.model.products.quantized import Linear4, Linear8
from engine.model.products.tiled import TiledLinear4, TiledLinear8, multiplies_tiles, tiled
from engine.plan import memory_budget, planner
from engine.prompt import Question
from engine.session import Session
from tests.engine.conftest import TEXT
from tests.engine.gpu import simulated_cuda as simulated_cuda_module
from tests.engine.gpu.simulated_cuda import simulated_cuda

LAYERS = 2
GPU = torch.device("cuda", 0)
BOOK = Document("The Lamp", "Nobody", (Page(1, "1", TEXT),), "text", "0" * 64)


@pytest.mark.parametrize(("width", "rows"), [(32, 1), (64, 5), (384, 17)])
def test_the_product_reads_the_quants_as_they_are(width: int, rows: int) -> None:
    linear = nn.Linear(width, 24, dtype=torch.bfloat16).requires_grad_(False)
    quantized = Linear4(linear)
    x = torch.randn(1, rows, width).bfloat16()
    expected = x.float() @ quantized.unpacked().float().t() + quantized.bias.float()
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        tiled = TiledLinear4(quantized.to(GPU))
        before = gpu.launches
        found = tiled(x.to(GPU))
        assert gpu.launches - before <= 3, "the input, the product and its bias"
        assert (found.cpu().float() - expected).abs().max() < 0.02 * expected.abs().max()
    held = sum(weights.nbytes for weights in (tiled.weight, tiled.scales_and_middles))
    assert held == width * 24 * 0.625


@pytest.mark.parametrize(("width", "rows"), [(32, 1), (96, 5), (512, 16), (256, 64)])
def test_the_product_of_8_bits_is_one_of_two_halves(width: int, rows: int) -> None:
    linear = nn.Linear(width, 24, dtype=torch.bfloat16).requires_grad_(False)
    quantized = Linear8(linear)
    x = torch.randn(rows, width).bfloat16()
    expected = x.float() @ quantized.unpacked().float().t() + quantized.bias.float()
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        made = TiledLinear8(quantized.to(GPU))
        before = gpu.launches
        found = made(x.to(GPU))
        assert gpu.launches - before <= 3
        assert (found.cpu().float() - expected).abs().max() < 0.02 * expected.abs().max()
        assert torch.equal(made.unpacked().cpu(), quantized.unpacked().cpu())
    held = sum(weights.nbytes for weights in (made.weight, made.scales_and_middles))
    assert held <= 1.25 * width * 24


def test_a_product_that_is_wrong_here_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    real = simulated_cuda_module.tiles_product
    with simulated_cuda("lazy"), torch.no_grad():
        assert multiplies_tiles(GPU)
        monkeypatch.setattr(simulated_cuda_module, "tiles_product", lambda *given: real(*given) * 1.1)
        assert not multiplies_tiles(GPU)


@pytest.mark.parametrize("kind", [Linear4, Linear8])
def test_many_rows_are_a_product_of_what_is_unpacked(kind: type[Linear4 | Linear8]) -> None:
    """A prompt: the same weights as for a few rows, from the same memory."""
    linear = nn.Linear(384, 24, dtype=torch.bfloat16).requires_grad_(False)
    quantized = kind(linear)
    x = torch.randn(1, 200, 384).bfloat16()
    expected = x.float() @ quantized.unpacked().float().t() + quantized.bias.float()
    with simulated_cuda("lazy"), torch.no_grad():
        made = tiled(quantized.to(GPU))
        assert made is not None
        assert (made.unpacked().cpu().float() - quantized.unpacked().cpu().float()).abs().max() < 2e-3
        assert (made(x.to(GPU)).cpu().float() - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize(("weights", "before", "now"), [("4bit", 20.0, 0.7), ("8bit", 7.0, 1.3)])
def test_a_step_reads_quantized_weights_as_they_are(
    weights: str, before: float, now: float, tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By bytes that the card reads and writes for a weight: unpacking all of them for every pass took 0.4 s with a
    model of 8B on a card of 12 GB. Where the product is wrong they are unpacked."""
    name, spent, said, parameters = tiny("qwen2", spread=0.1), [], [], set()
    for right in (True, False):
        monkeypatch.setattr(loading, "multiplies_tiles", lambda device, ok=right: ok and multiplies_tiles(device))
        with simulated_cuda("lazy") as gpu, torch.no_grad():
            target = loading.load(name, window=256, device=GPU, dtype="bfloat16", weights=weights)
            cache = FullCache(target.kv_shape, 256)
            full_pass(target, cache, 0, list(range(20, 40)))
            cache.advance(20)
            touched = gpu.touched
            said.append(full_pass(target, cache, 20, [7, 8, 9]).cpu())
            spent.append(gpu.touched - touched)
            inner = [layer for block in target.blocks for layer in block.modules() if hasattr(layer, "in_features")]
            count = sum(layer.in_features * layer.out_features for layer in inner)
            parameters.add(target.parameters)
            cache.clear()
    assert len(parameters) == 1, "they are counted as what they stand for"
    assert spent[1] - spent[0] > (before - now) * count
    assert (said[0] - said[1]).abs().mean() < 0.06 * said[1].abs().mean()


def test_a_copy_says_nearly_what_the_model_says_and_leaves_it_as_it_is(tiny: Callable[..., str]) -> None:
    """Within the rows that it is for; wider passes are the model's own."""
    with simulated_cuda("lazy") as gpu, torch.no_grad():
        target = loading.load(tiny("qwen2", spread=0.1), window=256, device=GPU, dtype="bfloat16")
        cache = FullCache(target.kv_shape, 256)

        def said(one: Backend, rows: int) -> torch.Tensor:
            return full_pass(one, cache, 0, list(range(20, 20 + rows))).cpu()

        few, many = said(target, 16), said(target, 17)
        held = gpu.allocated[0]
        twin = target.rounded("4bit")
        assert twin is not None
        block = sum(layer.weight.numel() for layer in target.blocks[0].modules() if isinstance(layer, nn.Linear))
        assert gpu.allocated[0] - held == target.num_layers * block * 0.625
        near = (said(twin, 16) - few).abs().mean() / few.abs().mean()
        assert 0 < near < 0.4
        assert torch.equal(said(twin, 17), many)
        assert torch.equal(said(target, 16), few)
        assert target.rounded("8bit") is None
        gpu.capability = (7, 5)
        assert target.rounded("4bit") is None
        cache.clear()


def test_a_copy_brings_no_weights_from_host_memory(tiny: Callable[..., str]) -> None:
    """Layers that wait there come for the full level alone; the copy of each lies on the card."""
    ids, name = list(range(20, 36)), tiny("qwen2", spread=0.1)
    logits = []
    for in_host in ((), (0, 1, 2)):
        with simulated_cuda("delayed", 3) as gpu, torch.no_grad():
            target = loading.load(name, window=256, device=GPU, dtype="bfloat16", in_host=in_host)
            cache = FullCache(target.kv_shape, 256)
            stored = {name: weights.clone() for name, weights in target.named_weights() if weights.device.type == "cpu"}
            held = full_pass(target, cache, 0, ids).cpu()
            twin = target.rounded("4bit")
            assert twin is not None
            sent, allocated = gpu.sent[0], gpu.allocated[0]
            logits.append(full_pass(twin, cache, 0, ids).cpu())
            layer = sum(weights.nbytes for weights in stored.values())
            assert bool(layer) == bool(in_host)
            assert gpu.sent[0] - sent < 1_000
            assert gpu.allocated[0] == allocated
            assert torch.equal(full_pass(target, cache, 0, ids).cpu(), held)
            assert gpu.sent[0] - sent >= layer
            assert all(torch.equal(weights, stored.get(name, weights)) for name, weights in target.named_weights())
            cache.clear()
    assert torch.equal(*logits)


def test_a_copy_proposes_and_changes_no_token(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replays, "is_faster", lambda *_: True)
    read: list[bool] = []
    product = TiledLinear4.forward
    monkeypatch.setattr(TiledLinear4, "forward", lambda *given: read.append(True) or product(*given))
    given: dict[str, Any] = {"retrieval_budget": 64, "num_draft_tokens": 3, "num_pending_tokens": 8, "context": 2048}
    with simulated_cuda("delayed", 2):
        config = EngineConfig(model=pair[0], draft=pair[1], device="cuda", dtype="bfloat16", middle="4bit", **given)
        unpaged: list[torch.device] = []
        monkeypatch.setattr(devices, "forbid_paging", unpaged.append)
        session = Session.load(config)
        assert unpaged == [torch.device("cuda")]
        assert cuda.measured.cache_info().currsize, "while there is memory"
        list(session.read(BOOK))
        said = []
        for mode in ("plain", "hierarchical"):
            read.clear()
            sampling = SamplingParams(max_tokens=12)
            done = list(session.ask(Question("Where does the key hang?", sampling=sampling, mode=mode)))[-1]
            assert isinstance(done, AnswerDone)
            assert bool(read) == (mode == "hierarchical")
            said.append(done.token_ids)
        assert done.figures.middle.proposed > 0
        assert said[0] == said[1]
        recorded = session.hierarchy.recorded()
        assert recorded.keys() == {"draft", "middle", "verify"}
        assert all(replays.replayed and not replays.off for replays in recorded.values())
        assert session.hierarchy.middle_note.startswith("Proposed by a copy in 4 bits")
        session.close()


def test_a_copy_is_planned_for_or_refused(pair: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_budget, "_WEIGHT_BUFFERS", 1)  # a model of two layers gains nothing by two
    settings = loading.settings_of(pair[0], 2048)
    config = EngineConfig(model=pair[0], device="cuda", dtype="bfloat16", context=2048)
    copied = replace(config, middle="4bit")
    with simulated_cuda("eager"):
        alone, taken = planner.model_bytes(config, settings, None, GPU)
        with_copy, _ = planner.model_bytes(copied, settings, None, GPU)
        assert with_copy.other_caches - alone.other_caches == pytest.approx(alone.weights * 0.625 / 2, rel=0.01)
        assert replace(with_copy, other_caches=alone.other_caches) == alone
        for other in (
            replace(copied, weights="8bit"),
            replace(copied, dtype="float32"),
            replace(copied, middle="8bit"),
        ):
            found, without = (
                planner.model_bytes(each, settings, None, GPU) for each in (other, replace(other, middle="stored"))
            )
            assert found == without
    wanted = taken + LAYERS * alone.other_caches + 2 * alone.buffer

    def card(weights: float) -> Any:
        """One with room for so many layers' weights beside all else."""
        return simulated_cuda("eager", limit=int((wanted + weights * alone.weights) / 0.95) + 1000)

    with card(LAYERS):
        assert not planner.lay_out(config, settings, None, [GPU]).in_host
        with pytest.raises(OptionError, match="does not fit beside them"):
            planner.lay_out(copied, settings, None, [GPU])
    with card(LAYERS - 0.2):  # weights wait in host memory anyway, and the copy spares the middle level from them
        assert planner.lay_out(config, settings, None, [GPU]).in_host
        assert planner.lay_out(copied, settings, None, [GPU]).in_host
    with card(LAYERS - 0.5), pytest.raises(OptionError, match="does not fit beside the buffers"):
        planner.lay_out(copied, settings, None, [GPU])
