"""Tabulates the supported families of models, and the facts in which each family differs from Llama.

This module holds only facts and names of settings. ``architectures`` uses them to interpret a model's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Family:
    """The facts about an architecture that a pass must know, because transformers' layers do not handle them by
    themselves.

    Args:
        title: the family's name for people.
        mlp_matrices: number of matrices of an MLP: three with a gate, two without.
        tied: whether embedding and output head are one matrix, if ``config.json`` does not say.
        norms_after_rope: names of the norms of queries and of keys, if they follow RoPE instead of preceding it.
        plain: whether ``engine.model.backends.program`` can compute the family's layers. They are Llama's layers,
            possibly with biases, norms of queries and keys, or fused input projections.
        gated: whether the attention output is multiplied by a gate, which is as wide as the queries.
        others: the supported kind of layers without full attention; empty if there is none.
        experts: whether MLPs of the family can be mixtures of experts.
        stored: the ``quant_method`` of quantized weights that can be loaded; empty if there is none.
        full_every: every ``full_every``-th layer keeps the whole context, if ``config.json`` does not name the kinds of
            layers.
        overflows: whether the family's activations are known to exceed the range of float16.
        norm_offset: the number that RMS norms add to their weights.
        last_norm_offset: the number that the last norm adds; None if it is ``norm_offset``.
        rotates_apart: whether transformers' RoPE function rotates queries and keys in separate calls.
        rope_by_kind: whether each kind of layers has its own RoPE.
        rope_in_windows: whether, in a model with a sliding window, only the layers with the window have RoPE.
        rope_left_out: whether a layer without RoPE must be called without cosines and sines. In other families such a
            layer ignores them.
        last_norm: the name of the norm after the last layer.
        dense_inner: the setting with the inner size of a dense MLP.
        without_head: whether transformers has no causal LM of the family, so that ``engine.model.muse`` makes it.
        logits_factor: the setting with the number that logits are multiplied by; empty if there is none.
        reads: settings that have a meaning in this family and are ignored in other families (``setting``).
        defaults: values of settings that ``config.json`` may leave out.
    """

    title: str
    mlp_matrices: int = 3
    tied: bool = False
    norms_after_rope: tuple[str, str] | None = None
    plain: bool = False
    gated: bool = False
    others: str = ""
    experts: bool = False
    stored: str = ""
    full_every: int = 0
    overflows: bool = False
    norm_offset: float = 0.0
    last_norm_offset: float | None = None
    rotates_apart: bool = False
    rope_by_kind: bool = False
    rope_in_windows: bool = False
    rope_left_out: bool = False
    last_norm: str = "norm"
    dense_inner: str = "intermediate_size"
    without_head: bool = False
    logits_factor: str = ""
    reads: tuple[str, ...] = ()
    defaults: Mapping[str, int | str] = field(default_factory=dict)

    def norm_offset_of(self, path: str) -> float:
        """Return the number that the RMS norm at ``path`` in a causal LM adds to its weights."""
        is_last = self.last_norm_offset is not None and path == f"model.{self.last_norm}"
        return self.last_norm_offset or 0.0 if is_last else self.norm_offset


FULL, SLIDING, RECURRENT, CONVOLUTION = "full_attention", "sliding_attention", "linear_attention", "conv"
MAMBA = "mamba"
"""Kinds of layers, named as in ``layer_types``. For Mamba layers transformers has the name ``linear_attention``, which
``architectures.layer_kinds`` replaces by ``mamba``.
"""

MXFP4 = "mxfp4"
"""The format of 4-bit weights that can be loaded, named as in ``quant_method``."""

_GEMMA_2 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 256_000,
    "max_position_embeddings": 8_192,
    "sliding_window": 4_096,
}

_GEMMA_3 = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262_208,
    "max_position_embeddings": 131_072,
    "sliding_window": 4_096,
}

_GEMMA_4: dict[str, int | str] = {
    "hidden_size": 2_304,
    "intermediate_size": 9_216,
    "num_hidden_layers": 30,
    "vocab_size": 262_144,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "global_head_dim": 512,
    "max_position_embeddings": 131_072,
    "sliding_window": 512,
    "num_kv_shared_layers": 0,
    "vocab_size_per_layer_input": 262_144,
    "hidden_size_per_layer_input": 256,
}

_QWEN_3_5 = {
    "hidden_size": 4_096,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "vocab_size": 248_320,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 32_768,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
}

_QWEN_3_MOE = {
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "decoder_sparse_step": 1,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "use_sliding_window": False,
}

_EXPERTS_OF_QWEN_3_5 = {
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "decoder_sparse_step": 1,
    "num_key_value_heads": 2,
    "hidden_size": 2_048,
    "num_hidden_layers": 40,
}

_GPT_OSS = {"num_experts_per_tok": 4, "sliding_window": 128, "head_dim": 64, "decoder_sparse_step": 1}

_GRANITE_4: dict[str, int | str] = {
    "mamba_n_heads": 128,
    "mamba_n_groups": 1,
    "mamba_d_state": 256,
    "mamba_d_conv": 4,
    "mamba_d_head": "auto",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "shared_intermediate_size": 1_024,
}

_READ_BY_GEMMA_4 = (
    "global_head_dim",
    "num_global_key_value_heads",
    "attention_k_eq_v",
    "num_kv_shared_layers",
    "hidden_size_per_layer_input",
    "use_double_wide_mlp",
    "enable_moe_block",
    "final_logit_softcapping",
)

_MUSE_GLIMMER = {
    "hidden_size": 6_656,
    "intermediate_size": 19_968,
    "num_hidden_layers": 52,
    "vocab_size": 202_048,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "sliding_window": 2_048,
}

_LFM_2 = {"conv_L_cache": 3, "max_position_embeddings": 128_000, "num_key_value_heads": 8}

FAMILIES = {
    "llama": Family("Llama", plain=True),
    "mistral": Family("Mistral", plain=True),
    "ministral3": Family("Ministral 3", reads=("llama_4_scaling_beta",)),
    "qwen2": Family("Qwen 2", plain=True),
    "qwen3": Family("Qwen 3", plain=True),
    "qwen3_moe": Family("Qwen 3 with experts", experts=True, defaults=_QWEN_3_MOE),
    "gpt_oss": Family(
        "gpt-oss", others=SLIDING, full_every=2, experts=True, stored=MXFP4, overflows=True, defaults=_GPT_OSS
    ),
    "phi3": Family("Phi-3 and Phi-4", plain=True),
    "smollm3": Family("SmolLM3", tied=True, reads=("no_rope_layers",)),
    "granite": Family("Granite"),
    "olmo2": Family("OLMo 2"),
    "seed_oss": Family("Seed-OSS"),
    "apertus": Family("Apertus", mlp_matrices=2),
    "hunyuan_v1_dense": Family("Hunyuan", norms_after_rope=("query_layernorm", "key_layernorm")),
    "exaone4": Family("EXAONE 4", others=SLIDING, full_every=4, rope_in_windows=True),
    "ernie4_5": Family("ERNIE 4.5", tied=True),
    "arcee": Family("Arcee", mlp_matrices=2),
    "glm": Family("GLM-4"),
    "glm4": Family("GLM-4-0414"),
    "hyperclovax": Family("HyperCLOVA X", logits_factor="logits_scaling"),
    "gemma2": Family(
        "Gemma 2",
        overflows=True,
        tied=True,
        others=SLIDING,
        full_every=2,
        norm_offset=1.0,
        reads=("final_logit_softcapping", "attn_logit_softcapping"),
        defaults=_GEMMA_2,
    ),
    "gemma3_text": Family(
        "Gemma 3",
        overflows=True,
        tied=True,
        others=SLIDING,
        full_every=6,
        norm_offset=1.0,
        rope_by_kind=True,
        reads=("final_logit_softcapping",),
        defaults=_GEMMA_3,
    ),
    "gemma4_text": Family(
        "Gemma 4",
        overflows=True,
        tied=True,
        others=SLIDING,
        experts=True,
        full_every=6,
        rotates_apart=True,
        rope_by_kind=True,
        reads=_READ_BY_GEMMA_4,
        defaults=_GEMMA_4,
    ),
    "olmo3": Family("OLMo 3", others=SLIDING, full_every=4, rope_by_kind=True),
    "cohere2": Family(
        "Command A and R7B", tied=True, others=SLIDING, full_every=4, rope_in_windows=True, logits_factor="logit_scale"
    ),
    "muse_glimmer_text": Family(
        "Muse Glimmer",
        gated=True,
        others=SLIDING,
        full_every=4,
        norm_offset=1.0,
        last_norm_offset=0.0,
        rope_left_out=True,
        without_head=True,
        logits_factor="output_multiplier",
        reads=("final_logit_softcapping", "layer_rope_theta"),
        defaults=_MUSE_GLIMMER,
    ),
    "qwen3_5_text": Family("Qwen 3.5", gated=True, others=RECURRENT, full_every=4, norm_offset=1.0, defaults=_QWEN_3_5),
    "qwen3_5_moe_text": Family(
        "Qwen 3.5 with experts",
        gated=True,
        others=RECURRENT,
        experts=True,
        full_every=4,
        norm_offset=1.0,
        defaults={**_QWEN_3_5, **_EXPERTS_OF_QWEN_3_5},
    ),
    "granitemoehybrid": Family(
        "Granite 4 with Mamba",
        others=MAMBA,
        experts=True,
        full_every=10,
        dense_inner="shared_intermediate_size",  # ``intermediate_size`` is the inner size of the experts in this family
        reads=("position_embedding_type",),
        defaults=_GRANITE_4,
    ),
    "lfm2_moe": Family(
        "LFM2 with experts",
        tied=True,
        others=CONVOLUTION,
        experts=True,
        last_norm="embedding_norm",
        defaults={**_LFM_2, "num_experts_per_tok": 4, "num_dense_layers": 2, "moe_intermediate_size": 1_792},
    ),
    "lfm2": Family(
        "LFM2",
        tied=True,
        others=CONVOLUTION,
        last_norm="embedding_norm",
        dense_inner="block_ff_dim",
        reads=("block_auto_adjust_ff_dim",),
        defaults={**_LFM_2, "block_auto_adjust_ff_dim": True},
    ),
}
FAMILIES["qwen3_next"] = replace(
    FAMILIES["qwen3_5_moe_text"],
    title="Qwen3-Next",
    defaults={**_QWEN_3_5, **_EXPERTS_OF_QWEN_3_5, "num_experts_per_tok": 10, "num_hidden_layers": 48},
)
"""Supported families, keyed by ``model_type``. All or some of their decoder layers keep the whole context."""

ORDINARY = Family("")
"""Stands in for a family that is not supported."""
