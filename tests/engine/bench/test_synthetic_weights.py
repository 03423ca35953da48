"""Synthetic weights: a grown model computes the same function, and costs what its shape costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.bench import synthetic_weights
from engine.bench.synthetic_weights import LlamaShape
from engine.errors import OptionError, UnsupportedModel
from engine.model import architectures, loading
from engine.model.expected import kv_shape_of

CPU = torch.device("cpu")
DEMO = Path(__file__).resolve().parents[3] / "assets" / "demo"
# The tiny models have width 64, intermediate 128, 3 layers, 4 heads in 2 groups, head_dim 16.
WIDER = LlamaShape(256, 160, 3, 4, 2, 16)
DEEPER_HEADS = LlamaShape(64, 128, 3, 4, 2, 64)
MORE_HEADS = LlamaShape(64, 128, 3, 12, 3, 16)
EVERYTHING = LlamaShape(256, 352, 5, 24, 6, 32)
ODD_WIDTH = LlamaShape(320, 128, 3, 4, 2, 16)


def exact(name: str) -> Any:
    return loading.load(name, window=2048, device=CPU, dtype="float64")


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        made: torch.Tensor = model(ids.unsqueeze(0)).logits[0]
    return made


def largest_difference(one: Any, other: Any, ids: torch.Tensor) -> float:
    return float((logits(one, ids) - logits(other, ids)).abs().max())


@pytest.mark.parametrize("kind", ["llama", "llama-mha", "llama-llama3", "llama-linear"])
@pytest.mark.parametrize("shape", [WIDER, DEEPER_HEADS, MORE_HEADS, EVERYTHING])
def test_the_function_is_kept(tiny: Callable[..., str], kind: str, shape: LlamaShape) -> None:
    small = exact(tiny(kind))
    if kind == "llama-mha":  # 4 KV heads
        shape = LlamaShape(*{**vars(shape), "num_key_value_heads": 6, "num_attention_heads": 12}.values())
    config = synthetic_weights.grown_config(small.config, shape)
    large = synthetic_weights.grow(small.model, config, CPU, torch.float64)
    ids = torch.randint(6, 380, (200,), generator=torch.Generator().manual_seed(0))
    assert largest_difference(large, small.model, ids) < 1e-9
    kv = kv_shape_of(config, torch.float64, CPU)
    assert (kv.layers, kv.kv_heads, kv.head_dim) == (
        shape.num_hidden_layers,
        shape.num_key_value_heads,
        shape.head_dim,
    )


def test_a_fourfold_width_changes_not_one_bit(tiny: Callable[..., str]) -> None:
    """Its scale factors are powers of two."""
    small = exact(tiny("llama"))
    large = synthetic_weights.grow(small.model, synthetic_weights.grown_config(small.config, WIDER), CPU, torch.float64)
    ids = torch.randint(6, 380, (50,), generator=torch.Generator().manual_seed(1))
    assert largest_difference(large, small.model, ids) < 1e-13


def test_any_other_width_changes_what_rounding_changes(tiny: Callable[..., str]) -> None:
    """transformers computes RMSNorm in float32, so a scale that is no power of two is rounded there."""
    small = exact(tiny("llama", spread=0.05))
    large = synthetic_weights.grow(
        small.model, synthetic_weights.grown_config(small.config, ODD_WIDTH), CPU, torch.float64
    )
    ids = torch.randint(6, 380, (50,), generator=torch.Generator().manual_seed(1))
    assert largest_difference(large, small.model, ids) < 1e-5


def test_the_bundled_pair_can_be_grown() -> None:
    """Into a shape with all kinds of growth; the real shapes are only checked, being gigabytes."""
    for role, names in (("target", ("llama-2-7b", "llama-3.1-8b", "llama-2-13b")), ("draft", ("llama-3.2-1b",))):
        config = architectures.load_config(str(DEMO / role))
        for name in names:
            grown = synthetic_weights.grown_config(config, synthetic_weights.SHAPES[name], 262_144)
            assert architectures.estimate_parameters(grown) > 100 * architectures.estimate_parameters(config)
            assert grown.max_position_embeddings == 262_144
    small = exact(str(DEMO / "draft"))
    own = small.config
    shape = LlamaShape(
        4 * own.hidden_size,
        own.intermediate_size,
        own.num_hidden_layers + 1,
        2 * own.num_attention_heads,
        own.num_key_value_heads,
        2 * own.head_dim,
    )
    large = synthetic_weights.grow(small.model, synthetic_weights.grown_config(own, shape), CPU, torch.float64)
    ids = torch.randint(6, own.vocab_size, (60,), generator=torch.Generator().manual_seed(2))
    assert largest_difference(large, small.model, ids) < 1e-9


def test_tokens_of_a_larger_vocabulary_are_never_chosen(tiny: Callable[..., str]) -> None:
    """A head of 128,256 tokens takes 1.05 GB of an 8B's step, and one of 4,096 took 34 MB."""
    small = exact(tiny("llama"))
    own = int(small.config.vocab_size)
    config = synthetic_weights.grown_config(small.config, replace(WIDER, vocab_size=3 * own))
    assert config.vocab_size == 3 * own
    assert not config.tie_word_embeddings
    large = synthetic_weights.grow(small.model, config, CPU, torch.float64)
    ids = torch.randint(6, own, (50,), generator=torch.Generator().manual_seed(1))
    expected, found = logits(small.model, ids), logits(large, ids)
    assert float((found[:, :own] - expected).abs().max()) < 1e-3
    assert float(torch.softmax(found, -1)[:, own:].sum(-1).max()) < 1e-15
    with pytest.raises(OptionError, match="no room for the mark"):
        synthetic_weights.grown_config(small.config, replace(MORE_HEADS, vocab_size=3 * own))


def test_it_is_loaded_as_a_decoder_that_says_what_it_is(tiny: Callable[..., str]) -> None:
    decoder = synthetic_weights.load(tiny("llama"), EVERYTHING, "llama-9", window=512, device=CPU, dtype="auto")
    assert decoder.name == "llama-9 (stand-in weights)"
    assert decoder.window == 512
    assert decoder.kv_shape.layers == 5


def test_what_cannot_be_grown_is_refused(tiny: Callable[..., str]) -> None:
    llama = architectures.load_config(tiny("llama"))
    for shape, words in (
        (LlamaShape(32, 128, 3, 4, 2, 16), "hidden_size"),
        (LlamaShape(64, 128, 2, 4, 2, 16), "num_hidden_layers"),
        (LlamaShape(64, 128, 3, 4, 4, 16), "per num_key_value_heads"),
        (LlamaShape(64, 128, 3, 4, 2, 24), "no multiple"),
    ):
        with pytest.raises(OptionError, match=words):
            synthetic_weights.grown_config(llama, shape)
    for kind in ("llama-yarn", "qwen2"):
        with pytest.raises(UnsupportedModel, match="cannot be grown"):
            synthetic_weights.grown_config(architectures.load_config(tiny(kind)), WIDER)
