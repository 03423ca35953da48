"""What headers of GGUF files mean: stretched positions, scales that no file states, kinds that are not read."""

from __future__ import annotations

from typing import Any

import pytest
from gguf.constants import MODEL_ARCH_NAMES, MODEL_TENSORS, TENSOR_NAMES

from engine.errors import ModelError
from engine.model.families import LAYOUTS, gguf_layout
from engine.model.families.gemma4 import turned_part
from engine.model.families.gguf_layout import LLAMA_3_FACTORS, LONG_FACTORS, SHORT_FACTORS, Header, llama_3_rope
from engine.model.gguf_header import SplitFile, parts_of
from engine.model.gguf_settings import generation_of, settings_of

OPTIONAL = {
    *("output", "output_norm", "attn_q_norm", "attn_k_norm", "attn_q", "attn_k", "attn_v"),
    *("ffn_gate", "ffn_norm", "ffn_up", "ffn_down"),
}
"""Of Llama; not every kind has them."""


def header(architecture: str, names: tuple[str, ...] = (), **changes: Any) -> Header:
    usual = {"block_count": 2, "embedding_length": 256, "attention.head_count": 4, "attention.head_count_kv": 2}
    own = {f"{architecture}.{name}": value for name, value in {**usual, "context_length": 512, **changes}.items()}
    fields = {"general.architecture": architecture, "tokenizer.ggml.model": "gpt2", **own}
    return Header(fields, names, 260, "It.gguf")


def rope(architecture: str, names: tuple[str, ...] = (), **changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = settings_of(header(architecture, names, **changes))["rope_parameters"]
    return found


def test_windows_that_fields_stretch() -> None:
    linear: dict[str, Any] = {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0, "rope.freq_base": 1e6}
    assert rope("llama", **linear) == {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    yarn: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 4.0,
        "rope.scaling.original_context_length": 128,
    }
    assert rope("qwen3", **yarn) == {
        **{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        "rope_theta": 10_000.0,
    }
    assert rope("gemma3", **linear) == {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    }


def test_windows_that_tensors_stretch() -> None:
    original: dict[str, Any] = {"rope.scaling.original_context_length": 128, "rope.dimension_count": 48}
    settings = settings_of(header("phi3", (LONG_FACTORS, SHORT_FACTORS), **original))
    LAYOUTS["phi3"].stretch(settings["rope_parameters"], {LONG_FACTORS: [2.0] * 24, SHORT_FACTORS: [1.0] * 24})
    assert settings["original_max_position_embeddings"] == 128
    assert settings["rope_parameters"] == {
        **{"rope_type": "longrope", "rope_theta": 10_000.0, "partial_rotary_factor": 0.75},
        **{"long_factor": [2.0] * 24, "short_factor": [1.0] * 24, "original_max_position_embeddings": 128},
    }
    with pytest.raises(ModelError, match="stretched in a way that is not read"):
        rope("phi3", (LONG_FACTORS,), **original)
    with pytest.raises(ModelError, match="not known here"):
        LAYOUTS["llama"].stretch({"rope_theta": 500000.0}, {LLAMA_3_FACTORS: [1.0] * 20 + [8.0] * 12})
    usual = [gguf_layout._llama_3_factor(500000.0 ** (pair / 64), 32.0) for pair in range(64)]
    assert llama_3_rope(500000.0, usual)["factor"] == 32.0


@pytest.mark.parametrize(("architecture", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_largest_gemmas_scale_queries_by_their_width(architecture: str, layers: int) -> None:
    """Of 27 billion parameters: 144 and 168, though heads have 128 numbers."""
    usual: dict[str, Any] = {"attention.key_length": 128}
    assert settings_of(header(architecture, **usual))["query_pre_attn_scalar"] == 128
    assert settings_of(header(architecture, **usual, block_count=layers))["query_pre_attn_scalar"] == 64


E2B: dict[str, Any] = {
    **{"block_count": 35, "embedding_length": 1536, "feed_forward_length": [6144] * 15 + [12_288] * 20},
    **{"attention.head_count": 8, "attention.head_count_kv": 1, "attention.key_length": 512},
    **{"attention.key_length_swa": 256, "rope.dimension_count": 512, "rope.dimension_count_swa": 256},
    **{"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "attention.sliding_window": 512},
    **{"attention.sliding_window_pattern": ([True] * 4 + [False]) * 7, "attention.shared_kv_layers": 20},
    **{"embedding_length_per_layer_input": 256, "final_logit_softcapping": 30.0},
}
"""What the file of a small Gemma 4 states."""

A4B: dict[str, Any] = {
    **{**E2B, "block_count": 30, "embedding_length": 2816, "feed_forward_length": 2112, "attention.head_count": 16},
    **{"attention.head_count_kv": ([8] * 5 + [2]) * 5, "attention.shared_kv_layers": 0},
    **{"attention.sliding_window_pattern": ([True] * 5 + [False]) * 5, "embedding_length_per_layer_input": 0},
    **{"expert_count": 128, "expert_used_count": 8, "expert_feed_forward_length": 704},
}
"""What the file of the Gemma 4 with experts states."""


def test_gemma_4_has_layers_of_several_shapes() -> None:
    small = settings_of(header("gemma4", (LLAMA_3_FACTORS, "blk.4.attn_v.weight"), **E2B))
    LAYOUTS["gemma4"].stretch(small["rope_parameters"]["full_attention"], {LLAMA_3_FACTORS: [1.0] * 64 + [1e30] * 192})
    assert small["layer_types"][:5] == ["sliding_attention"] * 4 + ["full_attention"]
    shapes = ("intermediate_size", "num_key_value_heads", "head_dim", "global_head_dim", "num_kv_shared_layers")
    assert [small[name] for name in shapes] == [6144, 1, 256, 512, 20]
    assert (small["use_double_wide_mlp"], small["attention_k_eq_v"]) == (True, False)
    assert small["rope_parameters"] == {
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    large = settings_of(header("gemma4", (LLAMA_3_FACTORS,), **A4B))
    experts = ("num_experts", "top_k_experts", "moe_intermediate_size", "num_global_key_value_heads")
    assert [large[name] for name in experts] == [128, 8, 704, 2]
    assert (large["num_key_value_heads"], large["attention_k_eq_v"], large["enable_moe_block"]) == (8, True, True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"attention.sliding_window_pattern": 6}, "which layers have windows"),
        ({"attention.sliding_window_pattern": [True] * 35}, "which layers have windows"),
        ({"attention.shared_kv_layers": 35}, "layers of several shapes"),
        ({"rope.dimension_count_swa": 128}, "a part of each head"),
        ({"rope.dimension_count": 128}, "a part of each head"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}, "a window that was stretched"),
        ({"feed_forward_length": [6144] * 34 + [12_288]}, "layers of several shapes"),
        ({"attention.head_count_kv": ([2] * 4 + [1]) * 7}, "layers of several shapes"),
        ({"attention.key_length_swa": None}, "no attention.key_length_swa"),
        ({"rope.freq_base_swa": None}, "no rope.freq_base_swa"),
    ],
)
def test_variants_of_gemma_4_that_are_not_read_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as refused:
        settings_of(header("gemma4", (LLAMA_3_FACTORS, "blk.4.attn_v.weight"), **{**E2B, **changes}))
    assert words in refused.value.cause
    assert refused.value.remedy


def test_positions_of_gemma_4_need_factors_that_are_known() -> None:
    with pytest.raises(ModelError, match=r"lacks rope_freqs\.weight"):
        settings_of(header("gemma4", ("blk.4.attn_v.weight",), **E2B))
    for factors in ([1.0, 1e30, 1.0, 1e30], [2.0, 1e30], [1e30, 1e30], [1.0, 8.0]):
        with pytest.raises(ModelError, match="not known here"):
            turned_part(factors)
    assert turned_part([1.0, 1.0]) == 1.0


def test_a_token_that_is_none_is_left_out() -> None:
    found = header("qwen2")
    found.fields = {**found.fields, "tokenizer.ggml.eos_token_id": 4, "tokenizer.ggml.padding_token_id": 2**32 - 1}
    assert generation_of(found) == {"eos_token_id": [4]}
    assert settings_of(found)["pad_token_id"] is None


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("gemma3n", {}, "a model of the kind gemma3n"),
        ("llama", {"expert_count": 8}, "the kind llama with experts"),
        ("qwen2", {"attention.head_count_kv": [2, 4]}, "layers of several shapes"),
        ("lfm2", {}, "which layers have attention"),
        ("gemma3", {"attention.sliding_window_pattern": 4}, "windows in other layers"),
    ],
)
def test_what_is_not_read_is_named(architecture: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as refused:
        settings_of(header(architecture, **changes))
    assert words in refused.value.cause
    assert refused.value.remedy


def test_weights_have_the_names_of_transformers() -> None:
    assert LAYOUTS["qwen2"].name("blk.11.attn_q.bias") == "model.layers.11.self_attn.q_proj.bias"
    assert LAYOUTS["qwen3moe"].name("blk.0.ffn_up_exps.weight") == "model.layers.0.mlp.experts.up.weight"
    assert LAYOUTS["llama"].name("output.weight") == "lm_head.weight"
    assert LAYOUTS["llama"].name("blk.0.ssm_a") is None


def test_ministral_3_stretches_its_window() -> None:
    stated: dict[str, Any] = {
        **{"rope.scaling.type": "yarn", "rope.scaling.factor": 16.0, "rope.scaling.original_context_length": 16_384},
        **{"rope.scaling.yarn_log_multiplier": 1.0, "attention.temperature_scale": 0.1, "rope.freq_base": 1e6},
    }
    assert rope("mistral3", **stated) == {
        **{"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16_384},
        **{"beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
    }
    for without in ("rope.scaling.type", "attention.temperature_scale"):
        with pytest.raises(ModelError, match="in another way than Ministral 3"):
            rope("mistral3", **{name: value for name, value in stated.items() if name != without})
    with pytest.raises(ModelError, match="mistral3 with experts"):
        rope("mistral3", **stated, expert_count=4)


@pytest.mark.parametrize("architecture", LAYOUTS)
def test_weights_have_the_names_of_llama_cpp(architecture: str) -> None:
    numbers = [at for at, name in MODEL_ARCH_NAMES.items() if name in (architecture, f"{architecture}moe")]
    known = {TENSOR_NAMES[tensor].removeprefix("blk.{bid}.") for at in numbers for tensor in MODEL_TENSORS[at]}
    layout = LAYOUTS[architecture]
    named = {
        *layout.top,
        *(
            name.strip(".").removesuffix(".weight").removesuffix(".bias").removesuffix(".scale")
            for name in layout.names
        ),
    }
    assert named - OPTIONAL <= known


def test_parts_are_told_by_their_names(tmp_path: Any) -> None:
    names = [f"Big-Q4_K_M-{number:05}-of-00002.gguf" for number in (1, 2)]
    assert SplitFile.of(names[1]) == SplitFile("Big-Q4_K_M", 2, 2)
    assert [path.name for path in parts_of(tmp_path / names[1])] == names
    for other in ("Big-00003-of-00002.gguf", "Big-00000-of-00002.gguf", "Big-1-of-2.gguf", "Big.gguf"):
        assert parts_of(tmp_path / other) == [tmp_path / other]
