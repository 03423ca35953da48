"""Tiny, randomly initialised models of every supported family, in the ordinary folder format. For tests only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from engine import quantization
from engine.bench.synthetic_weights import LlamaShape
from engine.decode import prefill
from engine.kv import bounded, snapshot_io, windowed
from engine.model import graphs
from engine.model.architectures import load_config
from engine.model.families import FAMILIES, ORDINARY
from engine.model.kernels import kept, native
from tests.engine.small_caches import SHAPE


@pytest.fixture(scope="session", autouse=True)
def float32_unless_asked() -> Iterator[None]:
    """Small models compute in float32 on every processor here, so that all see the same tests and the same tolerances.

    What a person's processor makes of "auto" is tested beside ``pick_dtype``, and by the tests of the app.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "multiplies_pairs", lambda: False)
        yield


@pytest.fixture(scope="session", autouse=True)
def recorded_early() -> Iterator[None]:
    """Short answers repeat a shape a few times only, and have it recorded all the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "RECORD_AFTER", 3)
        yield


TEXT = (
    "The lamp stood on the sill. Maren lit it at dusk and read the log by its light, as her mother had done. "
    "Nobody on the island remembered a winter so long; the harbour froze twice, and the boats lay on the shingle. "
    "“Where is the key?” he asked. It hung behind the clock, with a blue thread: naïve, café, 東京, 🙂 and 12,345.\n"
)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIALS = ["<|bos|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
VOCABULARY = 384


def deeper(model: str) -> LlamaShape:
    """The shape of a model with one more layer, to grow it into."""
    own = load_config(model)
    heads = own.num_attention_heads, own.num_key_value_heads, own.head_dim
    return LlamaShape(own.hidden_size, own.intermediate_size, own.num_hidden_layers + 1, *heads)


WINDOWS = {"sliding_window": 48, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-mha": {"num_key_value_heads": 4},
    "llama-yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "original_max_position_embeddings": 512,  # fewer than the tokens of the book, so that it goes beyond
        }
    },
    "llama-llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 512,
        }
    },
    "llama-linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "mistral": {"sliding_window": None},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "phi3": {"sliding_window": None},
    # The book is longer than the original window, so transformers uses the long factors too.
    "phi3-longrope": {
        "sliding_window": None,
        "original_max_position_embeddings": 512,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 512,
            "short_factor": [1.0] * 8,
            "long_factor": [1.0 + n / 2 for n in range(8)],
        },
    },
    # As in Phi-4-mini: a quarter of each head is not rotated, and embedding and head are one matrix.
    "phi3-partial": {"sliding_window": None, "partial_rotary_factor": 0.75, "tie_word_embeddings": True},
    # The book passes the border behind which queries grow several times.
    "ministral3": {
        "head_dim": 16,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 16.0,
            "original_max_position_embeddings": 64,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.1,
        },
    },
    "smollm3": {"no_rope_layer_interval": 3, "tie_word_embeddings": True},
    "granite": {
        "embedding_multiplier": 12.0,
        "attention_multiplier": 0.11,
        "residual_multiplier": 0.22,
        "logits_scaling": 10.0,
        "tie_word_embeddings": True,
    },
    "olmo2": {"num_key_value_heads": 4},
    "seed_oss": {"head_dim": 16},
    "apertus": {},
    "hunyuan_v1_dense": {
        "head_dim": 16,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 1000.0, "factor": 1.0},
    },
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"]},
    "ernie4_5": {"head_dim": 16, "tie_word_embeddings": True},
    "arcee": {},
    "internlm3": {"head_dim": 16},
    "gemma": {"head_dim": 16, "initializer_range": 0.05, "tie_word_embeddings": True},
    "glm": {"head_dim": 16},
    "glm4": {"head_dim": 16},
    "hyperclovax": {
        "head_dim": 16,
        "embedding_multiplier": 10.0,
        "attention_multiplier": 0.1,
        "residual_multiplier": 0.25,
        "logits_scaling": 0.125,
    },
    # Many scores are far above their cap: without it every answer is another one.
    "gemma2": {
        **{"head_dim": 16, "query_pre_attn_scalar": 1, "sliding_window": 48},
        **{"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0},
        "layer_types": ["sliding_attention", "full_attention"],
    },
    # Heads as in the 1B model. The book is many times as long as the window. Embeddings are small
    # and attention is sharp, or the model would say one word for ever: its head is the embedding, multiplied.
    "gemma3_text": {
        "initializer_range": 0.02,
        "head_dim": 16,
        "num_key_value_heads": 1,
        "query_pre_attn_scalar": 1,
        **WINDOWS,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
        },
    },
    # As the small ones: layers without KV of their own, with wider MLPs, and what each layer takes of the token itself.
    "gemma4_text": {
        "num_hidden_layers": 4,
        **{"initializer_range": 0.05, "head_dim": 16, "global_head_dim": 32, "num_key_value_heads": 1},
        **{"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": VOCABULARY},
        **{"num_kv_shared_layers": 2, "use_double_wide_mlp": True, "final_logit_softcapping": 5.0},
        **{"sliding_window": 48, "tie_word_embeddings": True},
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 10000.0},
        },
    },
    "olmo3": {
        **WINDOWS,
        "num_key_value_heads": 4,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 1024,
            },
        },
    },
    "exaone4-windows": {**WINDOWS},
    # The last layer alone has no RoPE, and not every other one a window.
    "muse_glimmer_text": {**WINDOWS, "head_dim": 16, "output_multiplier": 0.5, "final_logit_softcapping": 4.0},
    "cohere2": {**WINDOWS, "logit_scale": 0.25, "tie_word_embeddings": True},
    "lfm2": {
        "layer_types": ["conv"] * 2 + ["full_attention"],
        **{"conv_L_cache": 3, "block_auto_adjust_ff_dim": False, "tie_word_embeddings": True},
    },
    # One of three layers has no experts.
    "qwen3_moe": {
        **{"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32},
        **{"norm_topk_prob": True, "mlp_only_layers": [1]},
    },
    "gpt_oss": {
        **WINDOWS,
        **{"head_dim": 16, "num_attention_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        "rope_parameters": {
            **{"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "truncate": False},
            **{"beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 256},
        },
    },
    # Two heads of values for each of keys, and RoPE on a quarter of a head, as in the larger models.
    "qwen3_5_text": {
        "head_dim": 32,
        "layer_types": ["linear_attention"] * 2 + ["full_attention"],
        **{"linear_num_key_heads": 2, "linear_num_value_heads": 4},
        **{"linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4},
        "rope_parameters": {
            **{"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
            **{"mrope_section": [2, 1, 1], "mrope_interleaved": True},
        },
    },
}

_MIXTURE = {
    **{"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
}
SHAPES["qwen3_5_moe_text"] = {**SHAPES["qwen3_5_text"], **_MIXTURE}
SHAPES["qwen3_next"] = {
    **{**SHAPES["qwen3_5_text"], **_MIXTURE, "norm_topk_prob": True, "mlp_only_layers": [1]},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
}

# Heads of a state share keys, as attention's do; without positions, and with experts or not.
SHAPES["granitemoehybrid"] = {
    **{"layer_types": ["linear_attention"] * 2 + ["full_attention"], "position_embedding_type": "nope"},
    **{"mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4},
    **{"num_local_experts": 8, "num_experts_per_tok": 3, "shared_intermediate_size": 64, "tie_word_embeddings": True},
    **{"embedding_multiplier": 12.0, "attention_multiplier": 0.11, "residual_multiplier": 0.22, "logits_scaling": 8.0},
}
SHAPES["granitemoehybrid-dense"] = {
    **{**SHAPES["granitemoehybrid"], "num_local_experts": 0, "num_experts_per_tok": 0},
    **{"mamba_n_groups": 1, "mamba_d_state": 32, "position_embedding_type": "rope"},
}

SHAPES["lfm2_moe"] = {
    **{"layer_types": ["conv"] * 2 + ["full_attention"], "conv_L_cache": 3, "tie_word_embeddings": True},
    **{"num_dense_layers": 1, "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32},
}

# As the large ones: in full layers values are keys before their norm; beside an MLP there are experts.
SHAPES["gemma4_text-experts"] = {
    **{
        **SHAPES["gemma4_text"],
        **WINDOWS,
        "num_hidden_layers": 3,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
    },
    **{"num_key_value_heads": 2, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    **{"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 32},
}

# Kinds whose biases and norms are not what they are made with, zeros and ones: they would hide what is left out.
TRAINED = tuple(SHAPES)[tuple(SHAPES).index("phi3-partial") :]


def build_tokenizer(folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator([TEXT] * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, bos_token="<|bos|>", eos_token="<|end|>", pad_token="<|pad|>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(folder)


def build_model(folder: Path, kind: str, seed: int, layers: int, width: int, spread: float) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    family = kind.split("-")[0]
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "initializer_range": spread,
        "bos_token_id": 0,
        "eos_token_id": 5,
        "pad_token_id": 1,
        "tie_word_embeddings": False,
    }
    shape.update(SHAPES[kind])
    shape["num_hidden_layers"] = layers = max(layers, shape["num_hidden_layers"])
    if "layer_types" in shape:
        shape["layer_types"] = (shape["layer_types"] * layers)[-layers:]
    torch.manual_seed(seed)
    FAMILIES.get(family, ORDINARY).register()
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **shape))
    if kind in TRAINED:
        for name, weights in model.named_parameters():
            if weights.dim() == 1 or name.endswith("bias"):
                weights.data.add_(torch.randn_like(weights), alpha=0.1)
            if name.endswith("sinks"):
                weights.data.add_(2.0)
    for name, values in model.named_buffers():
        if name.endswith("expert_bias"):
            values.copy_(torch.randn_like(values))
        if name.endswith("layer_scalar"):
            values.fill_(0.8)
    model.generation_config.eos_token_id = 5
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def torch_alone() -> Iterator[None]:
    """Without our own kernels for processors: a GPU has none of them, and a tape hears torch's operations only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "own", lambda: None)
        yield


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers with a sliding window hold little beside it, so that a short text leaves it behind."""
    for module in (quantization, windowed, prefill):
        monkeypatch.setattr(module, "SLIDING_SLACK", 128)
    for module in (quantization, windowed, bounded):
        monkeypatch.setattr(module, "SLIDING_BORDER", 32)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """``tiny(kind, seed=0, layers=3, width=64, spread=0.2)`` -> folder of a model with tokenizer, made once."""
    made: dict[tuple[object, ...], str] = {}

    def make(kind: str = "llama", *, seed: int = 0, layers: int = 3, width: int = 64, spread: float = 0.2) -> str:
        key = (kind, seed, layers, width, spread)
        if key not in made:
            folder = tmp_path_factory.mktemp(f"{kind}-{seed}")
            build_tokenizer(folder)
            build_model(folder, kind, seed, layers, width, spread)
            made[key] = str(folder)
        return made[key]

    return make


@pytest.fixture(scope="session")
def book() -> object:
    """A small book of eight pages."""
    from engine.document import Document, Page

    pages = tuple(Page(n, str(n), f"Page {n}. " + TEXT) for n in range(1, 9))
    return Document("The Lamp", "Nobody", pages, "text", "0" * 64)


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of 64 tokens of a small cache."""
    monkeypatch.setattr(snapshot_io, "SHARD_BYTES", 64 * SHAPE.bytes_per_token)


@pytest.fixture
def keep_no_kernels() -> Iterator[Callable[[], None]]:
    """Called in a test, from then on no kernels are read from disk, so that all are emitted."""
    with pytest.MonkeyPatch.context() as patch:

        def keep_none() -> None:
            patch.delenv(kept.VARIABLE)
            kept.keep_in("")

        yield keep_none
    kept.keep_in("")
