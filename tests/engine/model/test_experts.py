"""Mixtures of experts: rounded, counted and timed as what a token asks of them. That a token has the same bits whatever
tokens come with it is in ``test_native``."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.decode import rounds
from engine.decode.levels import expert_reads
from engine.errors import ResourceError
from engine.kv.full import FullCache
from engine.model import experts, loading
from engine.model.families import family_of
from engine.model.kernels import native
from engine.model.products import linear
from engine.model.products.quantized import quantize
from engine.plan import probe, shape_of

CPU = torch.device("cpu")
ROUTERS = {
    **{"qwen3_moe": "mlp.gate", "gpt_oss": "mlp.router", "qwen3_next": "mlp.gate"},
    **{"granitemoehybrid": "block_sparse_moe.router", "gemma4_text-experts": "router"},
}
MIXTURES = tuple(ROUTERS)


@pytest.mark.parametrize("weights", ["8bit", "4bit"])
@pytest.mark.parametrize("kind", MIXTURES)
def test_experts_are_rounded_and_what_chooses_them_is_not(kind: str, weights: str, tiny: Callable[..., str]) -> None:
    """Packed and not, since a GPU has them so."""
    ids = torch.randint(6, 380, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    whole, *rounded = (
        loading.load(tiny(kind), window=64, device=CPU, weights=kept, packed=packed)
        for kept, packed in (("stored", False), (weights, False), (weights, True))
    )
    logits = []
    for model in (whole, *rounded):
        with torch.inference_mode():
            logits.append(rounds.full_pass(model, FullCache(model.kv_shape, 64), 0, ids))
    near = 1e-3 * logits[0].abs().max().item()
    assert torch.allclose(logits[1], logits[2], atol=near)
    assert not torch.allclose(logits[0], logits[1], atol=near)
    assert whole.parameters == rounded[0].parameters == rounded[1].parameters
    of_whole, of_small = (model.model.model.layers[0].get_submodule(ROUTERS[kind]) for model in (whole, rounded[0]))
    assert torch.equal(of_small.product.weight, getattr(of_whole, "proj", of_whole).weight)


@pytest.mark.parametrize("weights", ["stored", "8bit", "4bit"])
def test_an_expert_in_one_program_answers_as_its_layers_do(weights: str, tiny: Callable[..., str]) -> None:
    if native.own() is None:
        pytest.skip("no kernels of our own on this processor")
    model = loading.load(tiny("granitemoehybrid"), window=64, device=CPU, weights=weights)
    part = model.model.model.layers[0].block_sparse_moe.experts
    x, ids = torch.randn(9, 64), torch.randint(0, 8, (9, 3))
    shares = torch.rand(9, 3)
    with torch.inference_mode():
        fused = part(x, ids, shares)
        assert len(part.fused) == 8
        part.fuse(part.fused, most_rows=0)
        assert torch.allclose(part(x, ids, shares), fused, atol=1e-5)
    other = loading.load(tiny("gpt_oss"), window=64, device=CPU, weights=weights)
    assert not other.model.model.layers[0].mlp.experts.fused, "whose gates are clamped"


@pytest.mark.parametrize("packed", [False, True])
def test_a_step_reads_the_experts_that_it_asks_and_a_longer_pass_more(packed: bool, tiny: Callable[..., str]) -> None:
    model = loading.load(tiny("qwen3_moe"), window=64, device=CPU, packed=packed)
    expert = 3 * 64 * 32 * 4
    every = sum(weight.nbytes for weight in model.model.parameters())
    embedding = model.vocabulary * 64 * 4
    assert model.bytes_read_by_step == every - embedding - 2 * (8 - 3) * expert
    reads = expert_reads(model, 100)
    cache = 100 * model.kv_shape.bytes_per_token
    assert reads.share == pytest.approx(2 * 3 * expert / (model.bytes_read_by_step + cache))
    assert reads.growth(1) == pytest.approx(1.0)
    two = 8 * (1 - (5 / 8) ** 2)  # experts that two tokens ask, if they choose at random
    assert reads.growth(2) == pytest.approx(1 + reads.share * (two / 3 - 1))
    assert expert_reads(loading.load(tiny("llama"), window=64, device=CPU), 100).growth(9) == 1.0


@pytest.mark.parametrize(("kind", "weights"), [("qwen3_moe", "stored"), ("qwen3_moe", "8bit"), ("lfm2_moe", "stored")])
def test_a_probe_asks_other_experts_for_every_token(kind: str, weights: str, tiny: Callable[..., str]) -> None:
    """Also where the first layer has none."""
    config = loading.settings_of(tiny(kind), 64)
    layer = probe._one_layer(config, torch.float32, CPU, weights).model.model.layers[0]
    *_, ids = layer.get_submodule("feed_forward" if kind == "lfm2_moe" else "mlp").gate(probe._noise(8, 64))
    assert len(ids.unique()) == 8


@pytest.fixture
def in_4_bits(tiny: Callable[..., str], tmp_path: Path) -> Path:
    """As gpt-oss is published: MXFP4, two numbers in a byte and a power of two for every 32."""
    shutil.copytree(tiny("gpt_oss"), tmp_path, dirs_exist_ok=True)
    file, settings = tmp_path / "model.safetensors", tmp_path / "config.json"
    found, generator = load_file(file), torch.Generator().manual_seed(0)
    for name in [name for name in found if name.endswith("proj") and "experts" in name]:
        experts, inputs, outputs = found.pop(name).shape
        shape = (experts, outputs, inputs // 32, 16)
        found[f"{name}_blocks"] = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        found[f"{name}_scales"] = torch.randint(122, 125, shape[:3], dtype=torch.uint8, generator=generator)
    save_file(found, file, metadata={"format": "pt"})
    quantized = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "quantization_config": quantized}))
    return tmp_path


def test_weights_of_4_bits_are_expanded_where_there_is_room(in_4_bits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.utils.quantization_config import Mxfp4Config

    ids = torch.randint(6, 380, (1, 80), generator=torch.Generator().manual_seed(0))
    theirs: Any = AutoModelForCausalLM.from_pretrained(
        in_4_bits, dtype=torch.float32, attn_implementation="eager", quantization_config=Mxfp4Config(dequantize=True)
    )
    model = loading.load(str(in_4_bits), window=128, device=CPU)
    with torch.inference_mode():
        expected = theirs(input_ids=ids).logits[0]
        logits = rounds.full_pass(model, FullCache(model.kv_shape, 128), 0, ids[0].tolist())
    assert (logits - expected).abs().max() < 1e-5 * expected.abs().max()
    free = model.parameters * 3  # bytes: not of weights in float32, and of those in 4 bits
    monkeypatch.setattr(loading.psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    with pytest.raises(ResourceError, match="stored in 4 bits and take 0 GB when they are expanded, and 0 GB") as told:
        loading.load(str(in_4_bits), window=128, device=CPU)
    assert told.value.remedy.endswith("or use --weights 4bit.")
    loading.load(str(in_4_bits), window=128, device=CPU, weights="4bit")
    settings = json.loads((in_4_bits / "config.json").read_text())
    shape = shape_of(settings, "it", (in_4_bits / "model.safetensors").stat().st_size)
    assert shape.parameters == pytest.approx(model.parameters, rel=0.05)  # its memory is told by these


@pytest.mark.parametrize("weights", ["8bit", "4bit"])
def test_rounding_expands_one_layer_at_a_time(weights: str, in_4_bits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the very bits of a model that was expanded whole before it was rounded."""
    whole = loading.load(str(in_4_bits), window=64, device=CPU, packed=False).model
    experts.install(whole.model.layers, family_of(whole.config))
    quantize(whole.model.layers, weights, "it")
    alive: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
    most = 0

    def watched(*parts: torch.Tensor) -> torch.nn.Linear:
        nonlocal most
        made = linear(*parts)
        alive.add(made)
        most = max(most, len(alive))
        return made

    monkeypatch.setattr(experts, "linear", watched)
    model = loading.load(str(in_4_bits), window=64, device=CPU, weights=weights, packed=False).model
    numbers, config = model.state_dict(), model.config
    assert most <= 2 * config.num_local_experts + config.num_hidden_layers  # routers stay
    assert numbers.keys() == whole.state_dict().keys()
    assert all(torch.equal(numbers[name], held) for name, held in whole.state_dict().items())
