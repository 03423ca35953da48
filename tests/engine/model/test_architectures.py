"""Parameters that a configuration describes, against those of the model that it makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig
from engine.model import architectures, families
from engine.plan import planner, shape_of

FAMILIES = families.FAMILIES


def described(family: str, **changes: Any) -> tuple[Any, Any]:
    """A configuration of a wide vocabulary and few heads for keys, and the model that it makes, without memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {
        "vocab_size": 50_000,
        "hidden_size": 256,
        "intermediate_size": 700,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": None,
        "pad_token_id": 0,
        **changes,
    }
    if family == "exaone4":
        shape["layer_types"] = ["full_attention"] * 4
    elif FAMILIES[family].others == families.RECURRENT:
        shape |= {"linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_value_head_dim": 64}
        shape |= {"num_experts": 16, "moe_intermediate_size": 96, "shared_expert_intermediate_size": 80}
    elif FAMILIES[family].others == families.MAMBA:
        shape |= {"layer_types": [*["mamba"] * 3, "attention"], "mamba_n_heads": 8, "mamba_d_state": 64}
        shape |= {"shared_intermediate_size": 300}
    elif FAMILIES[family].others == families.CONVOLUTION:
        shape |= {"layer_types": [*["conv"] * 3, "full_attention"], "moe_intermediate_size": 96, "num_experts": 16}
    elif FAMILIES[family].others:
        shape |= {"sliding_window": 64, "layer_types": [*["sliding_attention"] * 3, "full_attention"]}
    if family == "gemma4_text":
        shape |= {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2}
        shape |= {"global_head_dim": 64, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
        shape |= {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 1_000, "use_double_wide_mlp": True}
        shape |= {"enable_moe_block": True, "num_experts": 16, "top_k_experts": 4, "moe_intermediate_size": 96}
    elif family == "qwen3_moe":
        shape |= {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 96, "mlp_only_layers": [1]}
    elif FAMILIES[family].experts:
        shape |= {"num_local_experts": 16}
    FAMILIES[family].register()
    config = architectures.text_config(AutoConfig.for_model(family, **shape))
    with torch.device("meta"):
        return config, AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("tied", [False, True], ids=["two embeddings", "tied"])
@pytest.mark.parametrize("family", FAMILIES)
def test_both_embeddings_count_where_there_are_two(family: str, tied: bool) -> None:
    config, model = described(family, tie_word_embeddings=tied)
    real = sum(weight.numel() for weight in model.parameters())
    assert architectures.estimate_parameters(config) == pytest.approx(real, rel=0.01)
    inputs = 4 * 16 * (1_000 + 256) if family == "gemma4_text" else 0
    assert architectures.embedding_parameters(config) == (1 if tied else 2) * 50_000 * 256 + inputs
    assert shape_of(config.to_dict(), "it").parameters == architectures.estimate_parameters(config)


@pytest.mark.parametrize("family", FAMILIES)
def test_settings_that_do_not_say_mean_what_transformers_takes_them_for(family: str) -> None:
    from transformers import AutoConfig

    assert AutoConfig.for_model(family).tie_word_embeddings == FAMILIES[family].tied


def test_what_is_rounded_are_the_blocks_alone() -> None:
    config, model = described("llama", tie_word_embeddings=False)
    blocks = sum(weight.numel() for layer in model.model.layers for weight in layer.parameters())
    expected = 2 * 50_000 * 256 * 4 + blocks
    asked = EngineConfig("llama", weights="8bit", dtype="float32")
    size, outside = planner.model_bytes(asked, config, None, torch.device("cpu"))
    assert outside + config.num_hidden_layers * size.weights == pytest.approx(expected, rel=0.01)


def test_a_folder_named_by_a_hash_is_not_shown(tmp_path: Path) -> None:
    """A GGUF file's settings lie in such a folder, and errors called the file "bf530e9d8fde4886/reader"."""
    assert architectures.display_name(str(tmp_path / "bf530e9d8fde4886" / "reader")) == "reader"
    assert architectures.display_name(str(tmp_path / "demo" / "target")) == "demo/target"
