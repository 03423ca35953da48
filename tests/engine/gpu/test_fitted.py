"""GGUF files whose expanded weights do not fit a simulated card: rounded, and said."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine.config import UNCHANGED_NOTE, WEIGHTS_NOTES, EngineConfig
from engine.document import Document
from engine.errors import OptionError, ResourceError
from engine.model import architectures, gguf, loading
from engine.model.products.tiled import TiledLinear4, TiledLinear8
from engine.plan import hardware, planner, probe
from engine.plan.cost_model import CostModel, LayerCost
from engine.quantization import FITTED
from engine.session import Session
from engine.worker import describe
from tests.engine.gpu.simulated_cuda import DeviceTensor, simulated_cuda
from tests.engine.model.test_gguf import answered_as_plain, at_hand, described, tried  # noqa: F401 - fixtures

GPU = torch.device("cuda", 0)


def config_of(folder: Path, **options: Any) -> EngineConfig:
    usual: dict[str, Any] = {"retrieval_budget": 64, "chunk_size": 8, "num_draft_tokens": 2, "num_pending_tokens": 4}
    return EngineConfig(str(folder), None, device="cuda", **{**usual, **options})


@pytest.mark.usefixtures("at_hand", "tried")
def test_only_a_file_whose_blocks_are_multiplied_is_called_unchanged(tmp_path: Path) -> None:
    _, folder = described(tmp_path, "qwen2", add_context_length=2048)
    settings = loading.settings_of(str(folder), None)
    assert planner.weights_note(config_of(folder), settings, torch.device("cpu")) == UNCHANGED_NOTE
    with simulated_cuda("eager"):  # which compiles no kernels
        assert planner.weights_note(config_of(folder), settings, GPU) == "", "expanded"
        assert planner.weights_note(config_of(folder, weights=FITTED), settings, GPU) == WEIGHTS_NOTES[FITTED]
    assert planner.weights_note(config_of(tmp_path), settings, torch.device("cpu")) == "", "no file"


def limits(folder: Path) -> tuple[int, int]:
    """Memory of a card that has just no room for the expanded weights, and of one with just no room for the rounded."""
    settings = loading.settings_of(str(folder), None)

    def waits(limit: int, weights: str) -> bool:
        with simulated_cuda("eager", limit=limit):
            return bool(planner.lay_out(config_of(folder, weights=weights), settings, None, [GPU]).in_host)

    found = []
    for weights in ("stored", FITTED):
        low, high = 0, 1 << 30
        while high - low > 1000:
            middle = (low + high) // 2
            low, high = (middle, high) if waits(middle, weights) else (low, middle)
        found.append(low)
    return found[0], found[1]


@pytest.mark.usefixtures("at_hand", "tried")
def test_where_rounding_gains_nothing_only_weights_that_do_not_fit_are_rounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``test_cards`` has the other cards."""
    monkeypatch.setattr(planner, "gains_from_tiles", lambda _: False)
    _, folder = described(tmp_path, "qwen2", add_context_length=2048)
    settings = loading.settings_of(str(folder), None)
    most, least = limits(folder)
    assert least < most - 1_000_000
    for limit, expected in ((most + 1000, "stored"), (most, FITTED), (least, FITTED)):
        with simulated_cuda("eager", limit=limit):
            config = planner.with_fitting_weights(config_of(folder), settings, None, [GPU])
            assert config.weights == expected
            assert bool(planner.lay_out(config, settings, None, [GPU]).in_host) == (limit == least)
            assert (
                planner.with_fitting_weights(config_of(folder, weights="8bit"), settings, None, [GPU]).weights == "8bit"
            )
            with pytest.raises(OptionError, match="weights fitted is only for GGUF files"):
                planner.with_fitting_weights(config_of(tmp_path, weights=FITTED), settings, None, [GPU])
            half = config_of(folder, dtype="float16")
            assert planner.with_fitting_weights(half, settings, None, [GPU]).weights == "stored"


@pytest.mark.parametrize("name", ["qwen3", "qwen3moe", "phi3"])
@pytest.mark.usefixtures("at_hand", "tried")
def test_a_file_that_does_not_fit_answers_with_rounded_weights(tmp_path: Path, name: str) -> None:
    _, folder = described(tmp_path, name, add_context_length=2048)
    limit, _ = limits(folder)
    book = Document.from_text("A book", "The light was out. Maren climbed the stairs and counted them. " * 12)
    with simulated_cuda("random", 1, limit=limit) as gpu, closing(Session.load(config_of(folder))) as session:
        gpu.limit = None
        model = session.target.model
        kinds = {type(part) for part in model.modules()}
        assert {TiledLinear4, TiledLinear8, torch.nn.Linear} <= kinds, "Q4_K, Q6_K and Q8_0, half precision"
        held = sum(part.nbytes for part in model.model.layers.parameters())
        assert held == pytest.approx(gguf.fitted_bytes(folder), rel=0.1)
        assert all(part.dtype != torch.float32 for part in model.parameters())
        info = describe(session, session.config)
        assert info.name.endswith("(weights rounded to fit)")
        assert info.weights_note == WEIGHTS_NOTES[FITTED]
        answered_as_plain(session, book, 12)


@pytest.mark.usefixtures("at_hand", "tried")
def test_the_forecast_counts_the_rounded_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = described(tmp_path, "qwen2", add_context_length=2048)
    limit, _ = limits(folder)
    costs = CostModel(1e9, 1e9, 1e9, 2, 0.0, LayerCost(1.0, 0.0), LayerCost(1.0, 0.0), 8, ((16, 1.0),), 0.0)
    monkeypatch.setattr(probe, "measure", lambda *_: costs)
    with simulated_cuda("eager", limit=limit):
        facts = hardware.inspect_model(str(folder), config_of(folder))
    assert facts.weights_note == WEIGHTS_NOTES[FITTED]
    assert gguf.fitted_bytes(folder) < facts.weights_bytes < 2 * gguf.fitted_bytes(folder)
    assert "in memory" not in facts.device
    with simulated_cuda("eager"):
        facts = hardware.inspect_model(str(folder), config_of(folder, dtype="float16"))
    whole = 2 * architectures.estimate_parameters(architectures.load_config(str(folder)))
    assert facts.weights_bytes == pytest.approx(whole, rel=0.01), "the bytes of the file, and not the expanded ones"


@pytest.mark.parametrize(("name", "grouped"), [("qwen3", False), ("qwen3moe", False), ("qwen3moe", True)])
@pytest.mark.usefixtures("at_hand")
def test_a_file_is_expanded_layer_by_layer_on_its_way_to_the_card(
    tmp_path: Path, name: str, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it was expanded in host memory first: beside 16 GB of it, a card of 24 GB refused what one of 12 GB could
    open, because it did not round. ``grouped``: experts stay in transformers' own code."""
    monkeypatch.setattr(loading, "multiplies_groups", lambda *_: grouped)
    _, folder = described(tmp_path, name)
    plain = loading.load(str(folder), window=None, device=torch.device("cpu"), dtype="float32", packed=False)
    expected = dict(plain.model.named_parameters()) if grouped or name == "qwen3" else {}
    layers = [sum(weights.nbytes for weights in layer.parameters()) for layer in plain.model.model.layers]
    assert len(layers) > 1
    held: list[int] = []
    built: list[Any] = []
    build, reduce = gguf.build, loading.reduce

    def noted(*given: Any) -> Any:
        built.append(build(*given))
        return built[-1]

    def reduced(*given: Any) -> None:
        reduce(*given)
        here = [weights for weights in built[0].parameters() if not isinstance(weights.data, DeviceTensor)]
        here += [weights for layer in built[0].model.layers for weights in layer.parameters()]
        parts = {id(part): part for part in here if part.device.type == "cpu" and part.dtype is torch.float32}
        held.append(sum(weights.nbytes for weights in parts.values() if weights.dim() > 1))

    monkeypatch.setattr(gguf, "build", noted)
    monkeypatch.setattr(loading, "reduce", reduced)
    free = SimpleNamespace(available=int(1.2 * max(layers)))
    monkeypatch.setattr(loading.psutil, "virtual_memory", lambda: free)
    with simulated_cuda("lazy"), torch.no_grad():
        model = loading.load(str(folder), window=None, device=GPU, dtype="float32")
        assert max(held) <= 1.01 * max(layers), "one layer, and the routers of the others"
        for weights, values in model.model.named_parameters():
            assert values.device == GPU, weights
            if weights in expected:
                assert torch.equal(values.cpu(), expected.pop(weights)), weights
        assert not [weights for weights in expected if expected[weights].dim() > 1]
        with pytest.raises(ResourceError, match=r"bits and take 0 GB when they are expanded"):
            loading.load(str(folder), window=None, device=GPU, dtype="float32", in_host=range(len(layers)))
