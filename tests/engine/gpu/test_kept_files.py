"""GGUF files whose weights stay on a simulated card as they are stored: a whole session, what it reads and launches."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from engine.config import UNCHANGED_NOTE
from engine.document import Document
from engine.kv.full import FullCache
from engine.model import architectures, gguf, loading
from engine.model.backends.joint import JointBackend
from engine.model.kernels.block_products import CARD_FORMATS
from engine.model.kernels.formats import FORMATS
from engine.model.products import card_blocks
from engine.model.products.card_blocks import CardEmbedding, CardLinear, CardWeights
from engine.plan import planner, probe
from engine.quantization import card_bytes_per_weight
from engine.session import Session
from engine.worker import describe
from tests.engine.gpu.simulated_cuda import Gpu, simulated_cuda
from tests.engine.gpu.simulated_kernels import WHY_NOT, CardKernels
from tests.engine.gpu.test_fitted import config_of
from tests.engine.model.test_card_blocks import stored
from tests.engine.model.test_gguf import (
    FAMILIES,
    answered_as_plain,
    at_hand,  # noqa: F401 - a fixture
    described,
    described_gpt_oss,
    gemma_4,
    in_turn,
    qwen_3_5,
    tried,  # noqa: F401 - a fixture
)

pytestmark = [pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT), pytest.mark.usefixtures("at_hand", "tried")]
GPU = torch.device("cuda", 0)
BOOK = Document.from_text("A book", "The light was out. Maren climbed the stairs. " * 8)
Use = Callable[[Gpu], None]


@pytest.fixture
def on_card(monkeypatch: pytest.MonkeyPatch) -> Use:
    """A function that gives a simulated device the kernels. Other tests show that they are right."""
    made: dict[int, CardKernels] = {}

    def use(gpu: Gpu) -> None:
        monkeypatch.setattr(card_blocks, "kernels_of", lambda _, kind: made.setdefault(kind, CardKernels(gpu, kind)))
        monkeypatch.setattr(card_blocks, "_is_right", lambda *_: True)

    return use


def logits(folder: Path, device: torch.device, *counts: int, **options: Any) -> torch.Tensor:
    """Of a book's first tokens, in passes over so many."""
    ids = torch.randint(0, 256, (max(counts),), generator=torch.Generator().manual_seed(0)).to(device)
    model, found = loading.load(str(folder), window=512, device=device, dtype="bfloat16", **options), []
    with torch.no_grad():
        for count in counts:
            full = FullCache(model.kv_shape, model.window)
            full.reserve(count)
            found.append(model.forward(ids[:count], full.extend(0)).cpu())
    return torch.cat(found)


def test_a_session_says_what_plain_decoding_says(tmp_path: Path, on_card: Use) -> None:
    _, folder = described(tmp_path, "qwen3", add_context_length=2048)
    with simulated_cuda("random", 1) as gpu:
        on_card(gpu)
        with closing(Session.load(config_of(folder))) as session:
            model = session.target.model
            assert {CardLinear, CardEmbedding} <= {type(part) for part in model.modules()}
            assert isinstance(session.target.backend, JointBackend)
            held = sum(part.nbytes for part in model.parameters())
            assert held == pytest.approx(sum(gguf.card_bytes(folder)), rel=0.05)
            assert session.target.bytes_read_by_step < held
            assert all(part.dtype != torch.float32 for part in model.parameters())
            info = describe(session, session.config)
            assert info.weights_note == UNCHANGED_NOTE
            assert "rounded" not in info.name
            answered_as_plain(session, BOOK, 8)


@pytest.mark.parametrize("name", ["phi3", "qwen3moe", "gemma3", "lfm2", "gpt-oss", "gemma4", "qwen3.5moe"])
def test_logits_are_those_of_the_expanded_file(
    name: str, tmp_path: Path, on_card: Use, tiny: Callable[..., str]
) -> None:
    """Of all kinds of layers and of mixtures of experts, after a few tokens and after many."""
    if name == "gpt-oss":
        folder = described_gpt_oss(tmp_path)[0]
    elif name in FAMILIES:
        folder = described(tmp_path, name, add_context_length=2048)[1]
    else:
        if name == "gemma4":
            held = Path(tiny("gemma4_text-experts"))
            weights = load_file(held / "model.safetensors")
            gemma_4(tmp_path / "small.gguf", architectures.load_config(str(held)), weights, in_turn)
        else:
            qwen_3_5(tmp_path / "small.gguf", 4)
        (folder := tmp_path / "folder").mkdir()
        gguf.describe([tmp_path / "small.gguf"], folder, "A card.\n")
    with simulated_cuda("lazy") as gpu:
        expected = logits(folder, GPU, 5, 66)
        on_card(gpu)
        for waiting in ([], [0, 1]) if name in ("phi3", "qwen3moe") else ([],):
            found = logits(folder, GPU, 5, 66, in_host=waiting)
            worst = (found - expected).abs().amax(1) / expected.abs().max()
            assert worst.median() < 0.03, waiting
            # in a mixture a near tie may choose another expert
            assert (worst > 0.08).float().mean() <= (0.0 if name in ("phi3", "gemma3", "lfm2") else 0.2), (
                waiting,
                worst,
            )


def test_the_host_does_not_wait_for_the_choice_of_experts(tmp_path: Path, on_card: Use) -> None:
    """So passes are recorded; and a step reads the chosen experts alone, in the bytes of the file."""
    _, folder = described(tmp_path, "qwen3moe", add_context_length=2048)
    with simulated_cuda("random", 1) as gpu:
        on_card(gpu)
        with closing(Session.load(config_of(folder))) as session:
            target = session.target
            assert not target.waits_for_experts
            held = sum({id(part): part.nbytes for part in target.model.parameters()}.values())
            assert held == pytest.approx(sum(gguf.card_bytes(folder)), rel=0.06)
            assert target.expert_bytes_read_by_step * 2 < held
            answered_as_plain(session, BOOK, 8)
            assert session.hierarchy.recorded().keys() >= {"verify"}


def test_a_product_reads_each_plane_once_in_a_launch_for_each_format(on_card: Use) -> None:
    """Queries and keys in Q4_K are one launch, values in Q6_K another."""
    parts = [stored("Q4_K", 48), stored("Q4_K", 16, seed=2), stored("Q6_K", 16, seed=3)]
    values = torch.cat([part.values() for part in parts])
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(0)).bfloat16()
    with simulated_cuda("eager") as gpu:
        on_card(gpu)
        layers = [CardLinear([CardWeights.of(part, GPU)], None) for part in parts]
        held = sum(plane.nbytes for layer in layers for plane in layer.parameters())
        joint = card_blocks.joined(layers)
        assert joint is not None
        assert sum(plane.nbytes for plane in joint.parameters()) == held
        rows = x.to(GPU)
        launches, touched = gpu.launches, gpu.touched
        out = joint(rows)
        assert gpu.launches - launches == 2
        assert gpu.touched - touched == held + 2 * rows.nbytes + out.nbytes
        launches = gpu.launches
        hidden = torch.zeros(1, 5, 80, dtype=torch.bfloat16, device=GPU)
        launches = gpu.launches
        joint.add_to(hidden, rows)
        assert gpu.launches - launches == 2, "what is added to the residual stream takes no launch of its own"
        expected = x.float() @ values.t()
        assert torch.allclose(out.cpu().float(), expected, atol=0.05)
        assert torch.allclose(hidden[0].cpu().float(), expected, atol=0.05)
        assert torch.allclose(layers[1](rows).cpu().float(), expected[:, 48:64], atol=0.05), (
            "a view of the joint weights"
        )


def test_the_list_of_models_counts_no_format_too_small() -> None:
    """The list estimates before there is a file, and knows which formats no GPU keeps."""
    for kind, form in FORMATS.items():
        estimate = card_bytes_per_weight(form.bytes / form.values, [0, kind])
        if kind in CARD_FORMATS:
            assert 1 <= estimate / CARD_FORMATS[kind].bytes_per_weight < 1.04, form.name
        else:
            assert not estimate


def test_the_plan_counts_the_bytes_of_the_file(tmp_path: Path, on_card: Use) -> None:
    _, folder = described(tmp_path, "qwen3", add_context_length=2048)
    settings, config = loading.settings_of(str(folder), None), config_of(folder)
    with simulated_cuda("eager") as gpu:
        expanded, _ = planner.model_bytes(config, settings, None, GPU)
        assert probe.kinds_of(str(folder), "stored", GPU, torch.bfloat16) == {}
        on_card(gpu)
        kept, taken = planner.model_bytes(config, settings, None, GPU)
        assert planner.with_fitting_weights(config, settings, None, [GPU]).weights == "stored"
        assert planner.weights_note(config, settings, GPU) == UNCHANGED_NOTE
        assert not planner.keeps_file(config_of(folder, dtype="float16"), settings, [GPU])
        assert not planner.keeps_file(config_of(folder, weights="8bit"), settings, [GPU])
        assert kept.weights < 0.6 * expanded.weights
        blocks, others = gguf.card_bytes(folder)
        assert (kept.weights, taken) == (blocks // settings.num_hidden_layers, others)
        costs = probe.measure(settings, torch.bfloat16, GPU, tmp_path, kinds=gguf.kinds_of_block(folder), limit_s=0.01)
        assert costs.step.base > 0
