"""What is known before a download: the catalogue's arithmetic, what fits, settings from strangers, kept choices."""

from __future__ import annotations

import dataclasses
import json
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import settings as choice
from app.core.settings import DEMO_DRAFT, DEMO_MODEL, ModelChoice, Remote
from app.models import catalogue, fit, switch
from app.models.fit import fit_in_words, pace, pages_of, rounding_in_words, rounding_options
from app.models.local import LocalModels
from app.web.preferences import model_options
from engine import Status
from engine.config import EngineConfig
from engine.errors import ModelError, ModelNotFound, TrifoldError, UnsupportedModel
from engine.model.expected import kv_shape_of
from engine.model.kernels import native
from engine.model.kv_shape import KvShape, Recurrent, Sliding
from engine.plan import (
    FreeMemory,
    ModelShape,
    Rounding,
    fit_pair,
    measure_free_memory,
    model_fit,
    planner,
    read_config,
    rounding,
    roundings,
    shape_of,
)
from engine.plan.cost_model import MIN_BUDGET
from engine.plan.hardware import MachineRates
from engine.plan.memory_budget import CHUNK, RETRIEVAL_TAIL, DeviceRoom, largest, share_layers, spread_over
from engine.quantization import StateSize
from tests.engine.gpu.simulated_cuda import simulated_cuda, why_not
from tests.engine.gpu.test_bytes import PAIRS

KIB = 1024


@pytest.mark.parametrize(
    ("id", "kib"),
    [
        *(("llama-3.1-8b", 128), ("qwen3-8b", 144), ("qwen3-4b", 144), ("qwen2.5-7b-1m", 56), ("yarn-7b", 512)),
        *(("gemma-3-1b", 4), ("gemma-3-4b", 20), ("gemma-3-12b", 64)),
        *(("gemma-4-e2b", 6), ("gemma-4-31b", 80)),
    ],
)
def test_cache_per_token_follows_from_the_shapes(id: str, kib: int) -> None:
    """The figures of the project's research, which come from the models' papers."""
    shape = next(pair.target.shape for pair in catalogue.pairs() if pair.id == id)
    assert shape is not None
    assert shape.kv_bytes_per_token() == kib * KIB


# hub id: hidden_size, num_attention_heads, intermediate_size, vocab_size, tied embeddings, biases of q, k and v,
# norms of q and k; as in the models' config.json. Layers, KV heads and head size stand in the catalogue itself.
SETTINGS = {
    "meta-llama/Llama-3.1-8B-Instruct": (4096, 32, 14_336, 128_256, False, False, False),
    "meta-llama/Llama-3.2-1B-Instruct": (2048, 32, 8192, 128_256, True, False, False),
    "Qwen/Qwen2.5-0.5B-Instruct": (896, 14, 4864, 151_936, True, True, False),
    "Qwen/Qwen2.5-7B-Instruct-1M": (3584, 28, 18_944, 152_064, False, True, False),
    "Qwen/Qwen2.5-14B-Instruct-1M": (5120, 40, 13_824, 152_064, False, True, False),
    "Qwen/Qwen3-0.6B": (1024, 16, 3072, 151_936, True, False, True),
    "Qwen/Qwen3-4B-Instruct-2507": (2560, 32, 9728, 151_936, True, False, True),
    "Qwen/Qwen3-8B": (4096, 32, 12_288, 151_936, False, False, True),
    "Qwen/Qwen3-1.7B": (2048, 16, 6144, 151_936, True, False, True),
    "ibm-granite/granite-4.1-3b": (2560, 40, 8192, 100_352, True, False, False),
    "ibm-granite/granite-4.1-8b": (4096, 32, 12_800, 100_352, False, False, False),
    "HuggingFaceTB/SmolLM3-3B": (2048, 16, 11_008, 128_256, True, False, False),
    "mistralai/Ministral-3-3B-Instruct-2512-BF16": (3072, 32, 9216, 131_072, True, False, False),
    "mistralai/Ministral-3-8B-Instruct-2512-BF16": (4096, 32, 14_336, 131_072, False, False, False),
    "mistralai/Ministral-3-14B-Instruct-2512-BF16": (5120, 32, 16_384, 131_072, False, False, False),
    "zai-org/glm-4-9b-chat-hf": (4096, 32, 13_696, 151_552, False, True, False),
    "ByteDance-Seed/Seed-OSS-36B-Instruct": (5120, 80, 27_648, 155_136, False, True, False),
    "google/gemma-3-270m-it": (640, 4, 2048, 262_144, True, False, True),
    "google/gemma-3-1b-it": (1152, 4, 6912, 262_144, True, False, True),
    "google/gemma-3-4b-it": (2560, 8, 10_240, 262_208, True, False, True),
    "google/gemma-3-12b-it": (3840, 16, 15_360, 262_208, True, False, True),
    "microsoft/Phi-4-mini-instruct": (3072, 24, 8192, 200_064, True, False, False),
    "microsoft/Phi-3-mini-128k-instruct": (3072, 32, 8192, 32_064, False, False, False),
    "LargeWorldModel/LWM-Text-Chat-128K": (4096, 32, 11_008, 32_000, False, False, False),
    "NousResearch/Yarn-Llama-2-7b-128k": (4096, 32, 11_008, 32_000, False, False, False),
    "NousResearch/Yarn-Llama-2-13b-128k": (5120, 40, 13_824, 32_000, False, False, False),
    "LGAI-EXAONE/EXAONE-4.0-1.2B": (2048, 32, 4096, 102_400, True, False, True),
    "allenai/Olmo-3-7B-Instruct": (4096, 32, 11_008, 100_278, False, False, False),
    "CohereLabs/c4ai-command-r7b-12-2024": (4096, 32, 14_336, 256_000, True, False, False),
    "starter": (576, 9, 1536, 49_152, True, False, False),
    "starter-16k": (576, 9, 1536, 49_152, True, False, False),
    "reader": (1536, 12, 8960, 151_936, False, True, False),
    "reader-128k": (1536, 12, 8960, 151_936, False, True, False),
    "JackFram/llama-68m": (768, 12, 3072, 32_000, False, False, False),
}


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_parameters_follow_from_the_settings(name: str) -> None:
    """Counted one matrix at a time: a wrong layer, KV head or head size would not give the published number."""
    model = catalogue.known(name)
    assert model is not None
    assert model.shape is not None
    shape = model.shape
    width, heads, inner, vocabulary, tied, biased, normed = SETTINGS[name]
    queries, keys = heads * shape.head_dim, shape.kv_heads * shape.head_dim
    attention = 2 * width * queries + 2 * width * keys
    attention += (queries + 2 * keys) * biased + 2 * shape.head_dim * normed
    # Of OLMo 3 queries and keys are as wide as the model, and so are their norms.
    norms = next((count for kind, count in (("gemma", 4), ("Olmo", 4), ("command", 1)) if kind in name), 2)
    layer = attention + 3 * width * inner + norms * width
    embeddings = vocabulary * width * (1 if tied else 2)
    assert shape.parameters == shape.layers * layer + embeddings + width
    is_target = name in {pair.target.name for pair in catalogue.pairs()}
    assert shape.embeddings == embeddings * is_target  # of a draft they are not asked: its weights are never rounded


QWEN_3_5 = {"vocab_size": 248_320, "head_dim": 256, "linear_num_key_heads": 16, "max_position_embeddings": 262_144}
EXPERTS = {"num_experts_per_tok": 8, "num_hidden_layers": 40, "hidden_size": 2048, "tie_word_embeddings": False}


def qwen(width: int, inner: int, layers: int, heads: int, kv_heads: int, states: int, *, tied: bool) -> dict[str, Any]:
    heads_of = {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "linear_num_value_heads": states}
    sizes = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    return {**QWEN_3_5, **heads_of, **sizes, "tie_word_embeddings": tied}


def lfm2(inner: int, layers: int, full: Iterable[int]) -> dict[str, Any]:
    kinds = ["full_attention" if layer in full else "conv" for layer in range(layers)]
    named = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65_536}
    named |= {"num_hidden_layers": layers, "intermediate_size": inner, "max_position_embeddings": 32_768}
    return {**named, "layer_types": kinds, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True}


def granite(width: int, heads: int, kv_heads: int, states: int, shared: int, **experts: int) -> dict[str, Any]:
    kinds = ["attention" if layer % 10 == 5 else "mamba" for layer in range(40)]
    named = {"hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "vocab_size": 100_352}
    named |= {
        "mamba_n_heads": states,
        "mamba_d_state": 128,
        "num_hidden_layers": 40,
        "shared_intermediate_size": shared,
    }
    named |= {"max_position_embeddings": 131_072, **experts}
    return {**named, "layer_types": kinds, "tie_word_embeddings": True, "position_embedding_type": "nope"}


def mixture(count: int, chosen: int, inner: int) -> dict[str, int]:
    return {"num_local_experts": count, "num_experts_per_tok": chosen, "intermediate_size": inner}


def gemma_4(
    width: int, inner: int, layers: int, full_every: int, heads: int, kv_heads: int, **own: Any
) -> dict[str, Any]:
    kinds = ["sliding_attention" if layer % full_every else "full_attention" for layer in range(1, layers + 1)]
    named = {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers, "layer_types": kinds}
    named |= {"num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": 256, "global_head_dim": 512}
    return {**named, "vocab_size": 262_144, "vocab_size_per_layer_input": 262_144, "tie_word_embeddings": True, **own}


LARGE: dict[str, Any] = {
    **{"hidden_size_per_layer_input": 0, "attention_k_eq_v": True},
    **{"sliding_window": 1024, "max_position_embeddings": 262_144},
}

# hub id: kind and config.json of models whose layers differ, or have experts.
BUILT: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen/Qwen3.5-0.8B": ("qwen3_5_text", qwen(1024, 3584, 24, 8, 2, 16, tied=True)),
    "Qwen/Qwen3.5-2B": ("qwen3_5_text", qwen(2048, 6144, 24, 8, 2, 16, tied=True)),
    "Qwen/Qwen3.5-4B": ("qwen3_5_text", qwen(2560, 9216, 32, 16, 4, 32, tied=True)),
    "Qwen/Qwen3.5-9B": ("qwen3_5_text", qwen(4096, 12_288, 32, 16, 4, 32, tied=False)),
    "Qwen/Qwen3.5-27B": ("qwen3_5_text", qwen(5120, 17_408, 64, 24, 4, 48, tied=False)),
    "Qwen/Qwen3.5-35B-A3B": (
        "qwen3_5_moe_text",
        {
            **{**QWEN_3_5, **EXPERTS, "num_experts": 256, "moe_intermediate_size": 512},
            **{"num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_value_heads": 32},
        },
    ),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": (
        "qwen3_moe",
        {
            **{**EXPERTS, "num_experts": 128, "moe_intermediate_size": 768, "num_hidden_layers": 48, "head_dim": 128},
            **{"num_attention_heads": 32, "num_key_value_heads": 4, "max_position_embeddings": 262_144},
        },
    ),
    "openai/gpt-oss-20b": (
        "gpt_oss",
        {"num_hidden_layers": 24, "num_local_experts": 32, "quantization_config": {"quant_method": "mxfp4"}},
    ),
    "ibm-granite/granite-4.0-h-micro": ("granitemoehybrid", granite(2048, 32, 8, 64, 8192, **mixture(0, 0, 8192))),
    "ibm-granite/granite-4.0-h-tiny": ("granitemoehybrid", granite(1536, 12, 4, 48, 1024, **mixture(64, 6, 512))),
    "ibm-granite/granite-4.0-h-small": ("granitemoehybrid", granite(4096, 32, 8, 128, 1536, **mixture(72, 10, 768))),
    "LiquidAI/LFM2-1.2B": ("lfm2", lfm2(8192, 16, (2, 5, 8, 10, 12, 14))),
    "LiquidAI/LFM2-8B-A1B": (
        "lfm2_moe",
        {**lfm2(7168, 24, (2, 6, 10, 14, 18, 21)), "num_experts": 32, "moe_intermediate_size": 1792},
    ),
    "google/gemma-4-E2B-it": (
        "gemma4_text",
        gemma_4(1536, 6144, 35, 5, 8, 1, num_kv_shared_layers=20, use_double_wide_mlp=True),
    ),
    "google/gemma-4-E4B-it": ("gemma4_text", gemma_4(2560, 10_240, 42, 6, 8, 2, num_kv_shared_layers=18)),
    "google/gemma-4-31B-it": (
        "gemma4_text",
        gemma_4(5376, 21_504, 60, 6, 32, 16, num_global_key_value_heads=4, **LARGE),
    ),
    "google/gemma-4-26B-A4B-it": (
        "gemma4_text",
        {
            **gemma_4(2816, 2112, 30, 6, 16, 8, num_global_key_value_heads=2, **LARGE),
            **{"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704},
        },
    ),
    "LiquidAI/LFM2-2.6B": ("lfm2", lfm2(10_752, 30, range(3, 27, 3))),
}


@pytest.mark.parametrize("name", sorted(BUILT))
def test_models_whose_layers_differ_are_counted_by_building_them(name: str) -> None:
    """transformers' own model of these settings, without memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    family, said = BUILT[name]
    config = AutoConfig.for_model(family, pad_token_id=0, **said)
    with torch.device("meta"):
        parts = AutoModelForCausalLM.from_config(config).parameters()
    known = catalogue.known(name)
    assert known is not None
    assert known.shape is not None
    shape, found = known.shape, shape_of({**config.to_dict(), **said, "model_type": family}, name)
    assert shape.parameters == sum(part.numel() for part in parts)
    assert found.parameters == pytest.approx(shape.parameters, rel=2e-3)  # norms and biases are not estimated
    is_target = name in {pair.target.name for pair in catalogue.pairs()}
    found = dataclasses.replace(found, parameters=shape.parameters, weights_bytes=shape.weights_bytes)
    assert dataclasses.replace(found, embeddings=found.embeddings * is_target) == shape


@pytest.mark.parametrize(
    "family", ["qwen3_moe", "gpt_oss", "qwen3_5_moe_text", "granitemoehybrid", "lfm2", "gemma4_text"]
)
def test_settings_of_layers_that_differ_mean_something_or_are_refused(family: str) -> None:
    """Each of them replaced by what strangers may write there, and left out."""
    from transformers import AutoConfig

    kinds = {"granitemoehybrid": {"layer_types": [*["mamba"] * 31, "attention"]}}.get(family, {})
    whole = {**AutoConfig.for_model(family, pad_token_id=0).to_dict(), "model_type": family, **kinds}
    assert shape_of(whole, "it").layers == whole["num_hidden_layers"]
    for key in whole.keys() - {"model_type"}:
        for odd in (None, "auto", -1, 0, 1 << 40, ["a"], {"a": 1}, 1.5):
            with suppress(TrifoldError):
                shape_of({**whole, key: odd}, "it")
        with suppress(TrifoldError):
            shape_of({name: said for name, said in whole.items() if name != key}, "it")
    with pytest.raises(ModelError, match="gives"):
        shape_of({**whole, "intermediate_size": -1, "moe_intermediate_size": -1}, "it")


def test_every_model_that_is_offered_is_counted() -> None:
    models = [model for pair in catalogue.pairs() for model in (pair.target, pair.draft) if model]
    assert {model.name for model in models if model.shape and not choice.is_hub_gguf(model.name)} == {*SETTINGS, *BUILT}


def test_no_field_of_the_catalogue_is_overlooked_or_misspelt() -> None:
    rows = json.loads(catalogue.FILE.read_text(encoding="utf-8"))
    numbers = {field.name for field in dataclasses.fields(ModelShape)}
    for name, row in rows["models"].items():
        assert row.keys() <= numbers | {"licence", "gated", "pickled", "sources"}, name
        assert row["sources"].keys() <= {"shape", "size", "window", "licence"}, name
    used = {name for row in rows["pairs"] for name in (row["target"], row.get("draft")) if name}
    assert used == rows["models"].keys()
    for row in rows["pairs"]:
        assert row.keys() <= {"id", "title", "target", "draft", "note", "remarks", "tested"}
    assert {name for row in rows["pairs"] for name in row.get("remarks", ())} | {"file"} == rows["remarks"].keys()
    for row in rows["files"]:
        assert row.keys() == {"id", "title", "name", "of", "bytes", "note", "tested"}


def test_the_catalogue_holds_what_was_promised() -> None:
    ids = [pair.id for pair in catalogue.pairs()]
    assert len(set(ids)) == len(ids)
    targets = " ".join(pair.target.name for pair in catalogue.pairs())
    for name in ("Llama-3.1-8B", "Qwen2.5", "Qwen3", "Phi-3-mini-128k", "LWM-Text-Chat-128K", "Yarn-Llama-2-13b-128k"):
        assert name in targets
    drafts = {pair.draft.name for pair in catalogue.pairs() if pair.draft}
    assert {"JackFram/llama-68m", "meta-llama/Llama-3.2-1B-Instruct"} <= drafts
    assert catalogue.find(*catalogue.DEMO.names) is catalogue.DEMO


def test_a_file_of_4_bits_takes_the_memory_of_its_bytes() -> None:
    """gpt-oss is expanded as safetensors, to 42 GB, and not as a GGUF file."""
    files = {row["id"]: row["of"] for row in json.loads(catalogue.FILE.read_text(encoding="utf-8"))["files"]}
    for family in ("Qwen3-", "Qwen3.5-", "gemma-3-", "gemma-4-", "Ministral-3-", "Llama-3.1-", "gpt-oss-"):
        assert any(f"/{family}" in of for of in files.values()), family
    shapes = {pair.id: pair.target.shape for pair in catalogue.pairs() if pair.id in files}
    for memory, name, tokens in (
        (6, "qwen3.5-4b-file", 60_000),
        (14, "qwen3.5-9b-file", 180_000),
        (20, "gpt-oss-20b-file", 131_072),
    ):
        shape = shapes[name]
        assert shape is not None
        found = fit_pair(shape, None, FreeMemory(memory * 10**9, 0, on_gpu=False))
        assert found.weights == pytest.approx(shape.weights_bytes)
        assert found.tokens >= tokens


def test_the_class_of_gpu_that_a_pair_needs() -> None:
    shapes = {pair.id: (pair.target.shape, pair.draft.shape if pair.draft else None) for pair in catalogue.pairs()}
    said = {name: fit.gpu_in_words(target, draft) for name, (target, draft) in shapes.items() if target}
    assert said["granite-4.1-3b"] == "GPU of 12 GB, of 8 with weights in 4 bits"
    assert said["glm-4-9b"] == "GPU of 24 GB, of 12 with weights in 4 bits"
    assert said["ministral-3-14b"] == "GPU of 48 GB"
    assert said["seed-oss-36b"] == "GPU of 48 GB with weights in 4 bits"
    assert fit.gpu_in_words(ModelShape(96, 96, 128, 10**12, 0, 131_072), None) == ""
    for size in model_fit.GPU_CLASSES:
        assert any(f"of {size} " in f"{words} " for words in said.values()), f"there is something for {size} GB"


def test_what_settings_leave_out_is_as_the_library_has_it() -> None:
    """Gemma 3 4B on the hub names neither heads nor vocabulary, nor which layers see a window alone."""
    named = {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10_240, "num_hidden_layers": 34}
    found = shape_of({"model_type": "gemma3", "text_config": {**named, "sliding_window": 1024}}, "a model")
    known = catalogue.known("google/gemma-3-4b-it")
    assert known is not None
    expected = known.shape
    assert expected is not None
    assert found.parameters == pytest.approx(expected.parameters, rel=1e-3)  # norms are not estimated
    weights = expected.weights_bytes
    assert dataclasses.replace(found, parameters=expected.parameters, weights_bytes=weights) == expected
    with pytest.raises(ModelError, match="layers that the model does not have"):
        shape_of({**named, "layer_types": [*["sliding_attention"] * 34, "full_attention"]}, "a model")


def test_settings_of_lfm2_as_they_were_published_first() -> None:
    """Of LFM2-1.2B, with other names than the library's own: 1,170 million parameters."""
    named = {"model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32}
    found = shape_of({**named, "vocab_size": 65_536, "block_ff_dim": 12_288, "full_attn_idxs": [2, 5, 8]}, "it")
    assert (found.full_layers, found.recurrent_layers) == (3, 13)
    idxs = {"full_attn_idxs": [2, 5, 8, 10, 12, 14]}
    whole = shape_of({**named, **idxs, "vocab_size": 65_536, "block_ff_dim": 12_288}, "it")
    assert whole.parameters == pytest.approx(1_170_340_608, rel=1e-3)


def test_what_the_middle_level_can_gain_where_few_layers_read_the_book() -> None:
    """Qwen3.5-9B: 32 KiB of KV a token in 8 layers of 32."""
    target = ModelShape(32, 4, 256, 9 * 10**9, 0, 262_144, 10**9, 0, 0, 24, StateSize(32, 128, 128, 8192, 4))
    for quantization, gain in (("stored", 1.2), ("4bit", 1.6)):
        free = FreeMemory(48 * 10**9, 0, on_gpu=True, quantization=quantization)
        said = fit.gain_in_words(target, fit_pair(target, None, free))
        assert said.startswith("8 of its 32 layers read the whole book: after 300 pages the retrieval cache makes ")
        assert f"answers {gain} times as fast at most" in said
    llama = ModelShape(32, 8, 128, 8 * 10**9, 0, 131_072)
    assert fit.gain_in_words(llama, fit_pair(llama, None, free)) == ""


def test_weights_that_are_expanded_need_room_beside_the_card_and_where_they_are_rounded_for_a_layer() -> None:
    """gpt-oss-20b: 14 GB of files, 42 GB in memory; where 4 bits are asked for 15 GB, and a layer on the way there."""
    target = catalogue.known("openai/gpt-oss-20b").shape
    assert target
    small, enough, card, large = (gb * 10**9 for gb in (16, 24, 48, 64))
    for free, needed in (
        (FreeMemory(enough, 0, on_gpu=False), "41.8 GB"),
        (FreeMemory(large, 0, on_gpu=False), ""),
        (FreeMemory(small, 0, on_gpu=False, quantization="4bit"), "16.3 GB"),
        (FreeMemory(enough, 0, on_gpu=False, quantization="4bit"), ""),
        (FreeMemory(card, 0, on_gpu=True, host=enough), "41.8 GB"),
        (FreeMemory(card, 0, on_gpu=True, host=small, quantization="4bit"), "16.3 GB"),
        (FreeMemory(card, 0, on_gpu=True, host=enough, quantization="4bit"), ""),
    ):
        found = fit_pair(target, None, free)
        assert (found.verdict == "none") == bool(needed)
        assert (f"stored in 4 bits, take {needed} of memory when they are loaded" in fit_in_words(found)) == bool(
            needed
        )


def test_a_file_that_does_not_fit_a_card_is_counted_as_it_is_rounded() -> None:
    """Llama 3.1 8B in a Q4_K_M file: 16 GB expanded, and at most 7.3 GB where the card makes the engine round it."""
    target = catalogue.known("bartowski/Meta-Llama-3.1-8B-Instruct-GGUF/Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf").shape
    assert target
    small, large = (FreeMemory(gb * 10**9, 0, on_gpu=True, host=32 * 10**9) for gb in (11, 40))
    rounded, whole = fit_pair(target, None, small), fit_pair(target, None, large)
    said = "The file's weights are rounded to 4 or 8 bits to fit the GPU."
    assert rounded.verdict != "none"
    assert fit_in_words(rounded).endswith(said)
    assert rounded.weights == pytest.approx(2 * target.embeddings + 0.75 * (target.parameters - target.embeddings))
    assert said not in fit_in_words(whole)
    assert whole.weights == 2 * target.parameters
    assert roundings(target, None, small) == [], "the engine rounds it without being asked"
    for memory in (7, 11, 40):  # a card that reads the blocks of the file needs no rounding
        kept = fit_pair(target, None, dataclasses.replace(small, memory=memory * 10**9, keeps_files=True))
        assert kept.weights == pytest.approx(1.03 * target.weights_bytes)
        assert kept.verdict != "none"
        assert said not in fit_in_words(kept)
    for other in (
        dataclasses.replace(small, rounds_files=False),  # a card whose products with 4-bit weights do not work
        dataclasses.replace(small, memory=5 * 10**9),
    ):
        found = fit_pair(target, None, other)
        assert found.verdict == "none"
        assert fit_in_words(found).startswith("Does not fit")
    folder = catalogue.known("meta-llama/Llama-3.1-8B-Instruct").shape
    assert folder
    assert fit_pair(folder, None, small).verdict == "none"


def test_experts_that_a_token_does_not_ask_take_memory_and_no_time() -> None:
    mixture, rates = catalogue.known("Qwen/Qwen3-30B-A3B-Instruct-2507").shape, MachineRates(10**12, 10**11, 0, 10**9)
    assert mixture
    free = FreeMemory(128 * 10**9, 0, on_gpu=False)
    found = fit_pair(mixture, None, free)
    assert found.weights == 2 * mixture.parameters
    whole = dataclasses.replace(mixture, asked=0)
    quick, slow = (pace(shape, found, rates) for shape in (mixture, whole))
    assert quick
    assert slow
    assert slow.reading.low > 2 * quick.reading.low
    assert quick.writing.low > 3 * slow.writing.low


def test_where_the_figures_of_a_model_come_from_is_said() -> None:
    by_id = {pair.id: pair for pair in catalogue.pairs()}
    assert by_id["qwen3-1.7b"].target.sources == (
        "Source of layers and widths: counted by others in its weights",
        "Source of the licence: copies and lists",
    )
    files = [pair.target for pair in by_id.values() if pair.target.name.endswith(".gguf")]
    assert files
    for model in files:
        sizes = [words for words in model.sources if words.startswith("Source of the size: ")]
        assert sizes == ["Source of the size: lists in other programs"], "the size of a file is not that of the folder"


def test_what_a_model_was_tested_with_is_said() -> None:
    assert all("tested" in pair.tested for pair in catalogue.pairs())


def test_fit_is_weights_and_cache_against_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    target = ModelShape(32, 8, 128, 8_000_000_000, 16_000_000_000, 131_072)
    whole = fit_pair(target, None, FreeMemory(64 * 10**9, 0, on_gpu=True))
    assert (whole.verdict, whole.tokens, whole.spilled) == ("whole", 131_072, 131_072)
    part = fit_pair(target, None, FreeMemory(24 * 10**9, 0, on_gpu=True))
    assert part.verdict == "part"
    retrieval = (MIN_BUDGET + RETRIEVAL_TAIL) * 128 * KIB
    left = model_fit.usable(24 * 10**9 - 16_000_000_000 - retrieval)
    index = 32 * 8 * (128 + 2) / CHUNK  # a mean key in 8 bits for every eight tokens
    assert part.tokens == pytest.approx(left / (128 * KIB + index), rel=0.001)
    assert f"{pages_of(part.tokens):,} pages" in fit_in_words(part)
    assert part.kv_per_1k == 1000 * 128 * KIB
    spilled = fit_pair(target, None, FreeMemory(24 * 10**9, 10**12, on_gpu=True))
    assert spilled.tokens == part.tokens
    assert spilled.spilled == 131_072
    assert "slower" in fit_in_words(spilled)
    none = fit_pair(target, None, FreeMemory(16 * 10**9, 10**12, on_gpu=True))
    assert none.verdict == "none"
    small = ModelShape(24, 2, 64, 500_000_000, 0, 32_768)
    for pairs, held in (
        (True, 1_000_000_000),
        (False, 2_000_000_000),
    ):  # on a CPU
        monkeypatch.setattr(native, "multiplies_pairs", lambda pairs=pairs: pairs)
        assert fit_pair(small, None, FreeMemory(10**11, 0, on_gpu=False)).weights == held
    assert fit_pair(target, small, FreeMemory(10**11, 0, on_gpu=True)).weights == 17_000_000_000


@settings(max_examples=60, deadline=None)
@given(
    layers=st.integers(1, 80),
    heads=st.integers(1, 40),
    device=st.integers(-(10**9), 10**11),
    host=st.integers(0, 10**11),
    disk=st.integers(0, 10**12),
    kv=st.sampled_from(["model", "8bit"]),
    width=st.sampled_from([64, 72, 128]),
    where=st.sampled_from(["cpu", "cuda"]),
    others=st.sampled_from([(0, 0), (1, 0), (5, 0), (0, 3)]),
)
def test_the_planner_will_say_the_same(
    layers: int,
    heads: int,
    device: int,
    host: int,
    disk: int,
    kv: str,
    width: int,
    where: str,
    others: tuple[int, int],
) -> None:
    slide, states = others
    size_of_one = StateSize(32, 128, 128, 8192, 4) if states else None
    count = layers + slide + states
    shape = ModelShape(count, heads, width, 1, 1, 131_072, 0, slide, 512 if slide else 0, states, size_of_one)
    sliding = Sliding(tuple(range(slide)), 512, heads, width) if slide else None
    recurrent = Recurrent(tuple(range(states)), size_of_one) if size_of_one else None
    theirs = KvShape(layers, heads, width, torch.bfloat16, torch.device(where), sliding=sliding, recurrent=recurrent)
    theirs = theirs.stored_as(kv).indexed(CHUNK)
    said = planner.longest_context(theirs, shape.window, planner.Resources(device, host, disk))
    size = model_fit._kv_size(shape, 2, FreeMemory(0, 0, on_gpu=where == "cuda", kv=kv))
    parts = theirs.bytes_per_token, theirs.compute_bytes_per_token, theirs.index_bytes_per_token
    assert (size.stored, size.computed, size.index) == parts
    found = largest(shape.window, lambda tokens: spread_over([size], tokens, [device], host, disk) is not None)
    assert found == said


def test_a_second_card_counts_and_is_shared_as_the_planner_shares_it() -> None:
    """Llama 3.1 8B with its draft on two cards of 16 GB, of which one alone holds the weights in 8 bits only."""
    target = catalogue.known("meta-llama/Llama-3.1-8B-Instruct").shape
    draft = catalogue.known("meta-llama/Llama-3.2-1B-Instruct").shape
    assert target
    assert draft
    card = 16 * 10**9
    alone, both = (fit_pair(target, draft, FreeMemory(card, 0, on_gpu=True, others=others)) for others in ((), (card,)))
    assert (alone.verdict, both.verdict) == ("none", "part")
    assert "of memory on 2 GPUs" in fit_in_words(
        fit_pair(target, draft, FreeMemory(10**9, 0, on_gpu=True, others=(10**9,)))
    )
    # The planner's own arithmetic, on its own shapes.
    models = PAIRS["Llama-3.1-8B + 1B"]
    devices = [torch.device("cuda", place) for place in range(2)]
    size, taken = planner.model_bytes(EngineConfig(model="m", context=target.window), *models, devices[0])
    shares = share_layers(32, size, [DeviceRoom(card, taken), DeviceRoom(card)])
    layout = planner.layout_of(shares, devices)
    held = planner.weights_by_device(layout, 32, size, taken)
    left = [model_fit.usable(card - bytes_) for bytes_ in held]
    kv = kv_shape_of(models[0], torch.bfloat16, devices[0]).indexed(CHUNK)
    kv = dataclasses.replace(kv, split=layout.split)
    free = planner.beside_retrieval(kv, planner.Resources(left[0], 0, 0, (left[1],)))
    said = planner.longest_context(kv, target.window, free)
    assert both.tokens == pytest.approx(said, rel=0.01)


def test_free_memory_is_that_of_the_cards_that_may_be_used(tmp_path: Path) -> None:
    if why := why_not():
        pytest.skip(why)
    with simulated_cuda("eager", cards=2, limit=1000):
        held = torch.empty(400, dtype=torch.uint8, device="cuda:0")  # of the model that would make way
        free = {
            device: measure_free_memory(tmp_path, Status("idle", ""), device=device)
            for device in ("auto", "cuda:1", "cpu")
        }
        assert held.device.index == 0
    assert free["auto"].cards == (1000, 1000)
    assert free["cuda:1"].cards == (1000,)
    assert not free["cpu"].on_gpu
    assert free["auto"].host > 0


def test_a_cache_in_8_bits_makes_room_for_longer_books() -> None:
    target = ModelShape(32, 8, 128, 8_000_000_000, 16_000_000_000, 131_072)
    whole, rounded = (fit_pair(target, None, FreeMemory(24 * 10**9, 0, on_gpu=True, kv=kv)) for kv in ("model", "8bit"))
    assert rounded.kv_per_1k == 1000 * 2 * 32 * 8 * 130
    # A layer's buffer takes its part, and the mean keys are not rounded.
    assert 1.7 * whole.tokens < rounded.tokens < whole.tokens * (256 + 16) / (130 + 16)


def test_rounded_weights_make_room_where_the_model_itself_would_not_fit() -> None:
    """Llama 3.1 8B: 6.98 billion weights in its blocks, 1.05 billion in embedding and head."""
    target = catalogue.known("meta-llama/Llama-3.1-8B-Instruct").shape
    draft = catalogue.known("meta-llama/Llama-3.2-1B-Instruct").shape
    assert target
    stored, eight, four = (
        fit_pair(target, draft, FreeMemory(16 * 10**9, 0, on_gpu=True, quantization=quantization))
        for quantization in ("stored", "8bit", "4bit")
    )
    blocks, rest = 8_030_261_248 - 1_050_673_152, 1_050_673_152
    assert stored.verdict == "none"
    ways = [rounding(target, draft, FreeMemory(gb * 10**9, 0, on_gpu=True)) for gb in (24, 16, 11, 6)]
    assert ways == [None, Rounding("8bit", ""), Rounding("4bit", ""), None]
    assert ways[1] is not None
    assert (rounding_in_words(ways[1]), rounding_options(ways[1])) == ("8-bit weights", "--weights 8bit")
    both = Rounding("4bit", "8bit")
    assert (rounding_in_words(both), rounding_options(both)) == (
        "4-bit weights and an 8-bit cache",
        "--weights 4bit --kv 8bit",
    )
    assert eight.weights == blocks + 2 * rest + 2 * 1_235_814_400
    assert four.weights == pytest.approx(0.625 * blocks + 2 * rest + 2 * 1_235_814_400)
    assert (eight.verdict, four.verdict) == ("part", "part")
    assert stored.tokens < eight.tokens < four.tokens


def test_the_weights_of_the_demo_model_take_what_the_engine_says() -> None:
    from engine.model import loading
    from engine.model.products.packed import count_parameters

    shape = shape_of(read_config(DEMO_MODEL), "demo")
    for quantization in ("8bit", "4bit"):
        model = loading.load(
            str(DEMO_MODEL), window=None, device=torch.device("cpu"), dtype="bfloat16", weights=quantization
        ).model
        held = sum(weight.numel() * weight.element_size() for weight in model.parameters())
        assert count_parameters(model) == pytest.approx(shape.parameters, rel=0.01)
        free = FreeMemory(10**10, 0, on_gpu=False, quantization=quantization)
        assert model_fit._weights(shape, 2, free) == pytest.approx(held, rel=0.02)


def test_the_shape_of_the_demo_model_is_that_of_its_weights() -> None:
    from engine.model import weights

    shape = shape_of(read_config(DEMO_MODEL), "demo")
    assert shape.parameters == pytest.approx(weights.check_folder(DEMO_MODEL), rel=0.01)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden_size": None},
        {"hidden_size": "256"},
        {"num_hidden_layers": 0},
        {"num_hidden_layers": -3},
        {"num_hidden_layers": True},
        {"vocab_size": 1e300},
        {"max_position_embeddings": 2**80},
        {"num_attention_heads": []},
    ],
)
def test_settings_that_cannot_be_right_are_refused(change: dict[str, Any]) -> None:
    config = {**read_config(DEMO_MODEL), **change}
    with pytest.raises(ModelError, match="can be right"):
        shape_of(config, "it")


@pytest.mark.parametrize("kind", [None, "mamba", 7, ["llama"]])
def test_other_kinds_are_refused(kind: Any) -> None:
    with pytest.raises(UnsupportedModel):
        shape_of({"model_type": kind}, "it")


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 200_000])
def test_settings_that_cannot_be_read_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError):
        read_config(tmp_path)


def test_the_demo_pair_shares_a_vocabulary() -> None:
    assert switch.shares_vocabulary(DEMO_MODEL, DEMO_DRAFT) is True
    assert switch.shares_vocabulary(DEMO_MODEL, DEMO_MODEL.parent) is None


def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    local_models = LocalModels(tmp_path)
    for name in ("../x", "a/..", "a/../b", "/etc", "a", "a/b/c", ".git/config", "a/b\\c", "a\n/b"):
        with pytest.raises(ModelNotFound):
            local_models.own(name)


def test_a_model_in_the_hubs_cache_is_found(tmp_path: Path, copy_of_demo: Path) -> None:
    cache = tmp_path / "hub" / "models--acme--tiny"
    (cache / "snapshots").mkdir(parents=True)
    copy_of_demo.rename(cache / "snapshots" / "abc123")
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("abc123")
    local_models = LocalModels(tmp_path / "models", {"HF_HOME": str(tmp_path)})
    assert local_models.find("acme/tiny") == "acme/tiny"
    weights = cache / "snapshots" / "abc123" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert local_models.find("acme/tiny") is None, "half a download of another tool is not taken for a model"


def test_a_damaged_folder_says_so(tmp_path: Path, copy_of_demo: Path) -> None:
    weights = copy_of_demo / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match="cut off"):
        LocalModels(tmp_path).find(str(copy_of_demo))


def test_a_choice_is_kept_for_this_person_alone(tmp_path: Path) -> None:
    kept = ModelChoice("a/b", None, Remote("http://127.0.0.1:8000/v1", "m", "key", 4096))
    choice.save(tmp_path, kept)
    assert choice.load(tmp_path) == kept
    assert stat.S_IMODE((tmp_path / choice.FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": 3, "draft": null}', '{"model": "a", "draft": {}}'])
def test_a_choice_that_makes_no_sense_is_no_choice(tmp_path: Path, content: str) -> None:
    (tmp_path / choice.FILE).write_text(content)
    assert choice.load(tmp_path) is None
    (tmp_path / choice.FILE).write_text(json.dumps({"model": "a", "draft": None, "remote": {"address": 1}}))
    assert choice.load(tmp_path) is None


def test_the_numbers_of_a_model_that_sees_are_those_of_its_text_part() -> None:
    text = {**read_config(DEMO_MODEL), "model_type": "ministral3"}
    whole = {"model_type": "mistral3", "tie_word_embeddings": False, "text_config": text, "hidden_size": 7}
    assert shape_of(whole, "it") == shape_of(text, "it")
    text["sliding_window"] = 64
    with pytest.raises(UnsupportedModel, match="a sliding window of 64 tokens"):
        shape_of(whole, "it")
    with pytest.raises(UnsupportedModel, match="a recurrent state"):
        shape_of({"text_config": {"model_type": "qwen3_5_text", "layer_types": ["linear_attention"]}}, "it")
    with pytest.raises(UnsupportedModel, match=r"quantized \(fp8\)"):
        shape_of({**whole, "quantization_config": {"quant_method": "fp8"}}, "it")


# What a model would do with a book here ----------------------------------------------------------------------------

LAPTOP = MachineRates(flops=200e9, memory=20e9, bus=0.0, disk=1e9)
CARD = MachineRates(flops=80e12, memory=800e9, bus=20e9, disk=2e9)


def test_reading_computes_and_writing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hidden layers' worth by hand: 12 weights per width squared, so that the width is 1,000."""
    monkeypatch.setattr(native, "multiplies_pairs", lambda: False)
    shape = ModelShape(10, 2, 64, 120_000_000, 240_000_000, 131_072)
    free = FreeMemory(24 * 10**9, 0, on_gpu=False)
    found = fit_pair(shape, None, free)
    told = pace(shape, found, LAPTOP)
    assert told is not None
    tokens = 120_000
    seconds = (2 * 120e6 * tokens + 2 * 10 * 1000 * tokens**2) / (0.6 * 200e9)
    assert told.reading.low < seconds < told.reading.high
    assert told.reading.low * told.reading.high == pytest.approx(seconds**2)
    step = (found.weights + tokens * found.kv_per_1k / 1000) / 20e9
    assert told.writing.low < 0.75 / step < told.writing.high
    assert told.words.startswith("A 300-page book: 30 min to 1 h to read, then 6 to 20 words a second")


def test_a_gpu_reads_faster_and_what_is_spilled_slows_it() -> None:
    shape = catalogue.known("meta-llama/Llama-3.1-8B-Instruct").shape
    assert shape
    told = []
    for memory in (80, 24):
        free = FreeMemory(memory * 10**9, 10**12, on_gpu=True, host=64 * 10**9)
        told.append(pace(shape, fit_pair(shape, None, free), CARD))
    assert told[0] is not None
    assert told[1] is not None
    assert told[0].reading.high < 300
    assert told[0].writing.low > 2 * told[1].writing.low
    short = dataclasses.replace(shape, window=40_000)
    free = FreeMemory(80 * 10**9, 0, on_gpu=True)
    part = pace(short, fit_pair(short, None, free), CARD)
    assert part is not None
    assert part.words.startswith("Up to 97 pages of a book: ")
    nothing = FreeMemory(10**9, 0, on_gpu=True)
    assert pace(shape, fit_pair(shape, None, nothing), CARD) is None


def test_the_list_offers_rounding_where_it_makes_a_model_fit(local_models: LocalModels) -> None:
    free = FreeMemory(16 * 10**9, 0, on_gpu=True)
    entries = {entry["id"]: entry["numbers"] for entry in model_options(local_models, free, None, CARD)}
    large = entries["llama-3.1-8b"]
    assert large["rounded"] == {"weights": "8bit", "kv": "", "words": "8-bit weights"}
    assert large["verdict"] == "part"
    assert "Does not fit" in large["sentence"]
    assert "With 8-bit weights it does" in large["sentence"]
    assert "to read, then" in large["pace"]
    assert entries["qwen3-4b"]["rounded"] is None
    assert all(numbers["pace"] for numbers in entries.values() if numbers["verdict"] != "none")


def test_the_rounding_that_is_proposed_holds_a_book_where_one_does(local_models: LocalModels) -> None:
    """On 24 GB gpt-oss-20b got 8 bits and 60,000 tokens, where 4 bits hold its whole window."""
    pair = catalogue.find("openai/gpt-oss-20b", None)
    assert pair is not None
    assert pair.target.shape is not None
    for card, proposed, mildest in ((16, "4bit", "4bit"), (24, "4bit", "8bit"), (32, "8bit", "8bit")):
        free = FreeMemory(card * 10**9, 0, on_gpu=True, host=64 * 10**9)
        numbers = {entry["id"]: entry["numbers"] for entry in model_options(local_models, free, None)}[pair.id]
        assert numbers["rounded"]["weights"] == proposed
        (milder, held), *_ = roundings(pair.target.shape, None, free)
        assert milder == Rounding(mildest, "")
        words = (
            "They differ less with 8-bit weights (--weights 8bit in the terminal), for books of up to "
            f"{pages_of(held.tokens):,} pages instead of 327."
        )
        assert (words in numbers["sentence"]) == ("differ less" in numbers["sentence"]) == (proposed != mildest)


def test_a_rounded_choice_is_kept_and_is_the_models_own(tmp_path: Path) -> None:
    choice.save(tmp_path, ModelChoice("a/b", None, None, "8bit", "8bit"))
    kept = choice.load(tmp_path)
    assert kept is not None
    assert kept.rounding == {"weights": "8bit", "kv": "8bit"}
    start = choice.make_settings(environ={"TRIFOLD_DATA": str(tmp_path)})
    assert (start.quantization, start.kv) == ("8bit", "8bit")
    assert start.engine_config().weights == "8bit"
    asked = choice.make_settings(options={"weights": "4bit"}, environ={"TRIFOLD_DATA": str(tmp_path)})
    assert asked.engine_config().weights == "4bit", "what is asked for on the command line wins"
    other = choice.make_settings(model="c/d", environ={"TRIFOLD_DATA": str(tmp_path)})
    assert other.engine_config().weights == "stored", "another model is not rounded by the choice of this one"
    (tmp_path / choice.FILE).write_text('{"model": "a/b", "draft": null, "weights": "2bit"}', encoding="utf-8")
    assert choice.load(tmp_path) is None
