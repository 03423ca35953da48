"""GGUF files opened as they are stored, against the same file expanded by gguf and transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers import modeling_gguf_pytorch_utils as library
from transformers.convert_slow_tokenizer import bytes_to_unicode

from engine import foreign
from engine.decode import prefill
from engine.errors import ModelError
from engine.kv.full import FullCache
from engine.model import gguf, loading
from engine.model.kernels.formats import FORMATS
from engine.model.products.blocks import KNOWN, BlockLinear
from engine.model.products.packed import PackedBlocks

CPU = torch.device("cpu")
WIDTH, INNER, HEADS, KV_HEADS, LAYERS, VOCABULARY = 256, 512, 4, 2, 2, 260
KINDS = [kind for kind, name in KNOWN.items() if name in ("Q4_K", "Q6_K", "Q8_0")]
"""``test_blocks`` has all of them."""


def fields(writer: GGUFWriter, layers: int, **more: Any) -> None:
    writer.add_block_count(layers)
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    for name, value in more.items():
        getattr(writer, name)(value)
    tokens = [*bytes_to_unicode().values(), "ab", "abc", "<end>", "<pad>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 258 + [3, 3])
    writer.add_token_merges(["a b", "ab c"])
    writer.add_eos_token_id(258)


def random_blocks(random: np.random.Generator, rows: int, width: int, kind: int) -> np.ndarray[Any, Any]:
    """Any levels, with factors so small that weights are of a usual size."""
    form = FORMATS[kind]
    raw = random.integers(0, 256, (rows, width // form.values, form.bytes), dtype=np.uint8)
    size = 0.15 / 2**form.bits / (64 if form.scale else 1) / (8 if form.codes else 1)
    for offset in form.halves[: 1 if form.name == "IQ4_XS" else 2]:
        factors = (size * random.uniform(0.5, 1.0, (*raw.shape[:2], 1))).astype(np.float16)
        raw[:, :, offset : offset + 2] = factors.view(np.uint8)
    return raw.reshape(rows, -1)


def made(folder: Path, architecture: str, config: Any, tied: bool, **more: Any) -> Path:
    """A file of random weights in several formats, one after the other."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    processor = library.TENSOR_PROCESSORS.get(architecture, library.TensorProcessor)(config=config.to_dict())
    names = library.get_gguf_hf_weights_map(model, processor)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    path = folder / "small.gguf"
    writer = GGUFWriter(path, architecture)
    fields(writer, config.num_hidden_layers, **more)
    random, number = np.random.default_rng(0), 0
    for name, here in names.items():
        if here == "lm_head.weight" and tied:
            continue
        shape = shapes[here]
        if len(shape) == 1:
            numbers = 1 + 0.1 * random.standard_normal(shape) if "norm" in name else random.standard_normal(shape)
            writer.add_tensor(name, numbers.astype(np.float32))
        elif number % 7 == 3:
            numbers = (0.02 * random.standard_normal(shape)).astype(np.float16)
            writer.add_tensor(name, numbers)
            number += 1
        else:
            kind = KINDS[number % len(KINDS)]
            blocks = random_blocks(random, shape[0], shape[1], kind)
            writer.add_tensor(name, blocks, raw_dtype=GGMLQuantizationType(kind))
            number += 1
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's work in this process, which has the libraries already."""
    monkeypatch.setattr(
        library, "load_gguf_checkpoint", library.load_gguf_checkpoint
    )  # what it sets ends with the test
    monkeypatch.setattr(foreign, "save_gguf_settings", foreign._convert)


def config_of(kind: str, **more: Any) -> Any:
    usual = {
        **{"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY},
        **{"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 512},
        **{"head_dim": WIDTH // HEADS, "rms_norm_eps": 1e-6},
    }
    return AutoConfig.for_model(kind, **{**usual, **more})


FAMILIES: dict[str, tuple[str, str, bool, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", "llama", False, {}, {}),
    "qwen2": ("qwen2", "qwen2", True, {}, {}),
    "qwen3": ("qwen3", "qwen3", False, {}, {"add_key_length": 64}),
    "gemma3": (
        *("gemma3", "gemma3_text", True),
        {"sliding_window": 1024, "num_hidden_layers": 6},  # every sixth layer sees all
        {"add_key_length": 64, "add_sliding_window": 1024},
    ),
}


def described(tmp_path: Path, name: str) -> tuple[Path, Path]:
    architecture, kind, tied, here, there = FAMILIES[name]
    config = config_of(kind, tie_word_embeddings=tied, **here)
    path = made(tmp_path, architecture, config, tied, **there)
    folder = tmp_path / "folder"
    folder.mkdir()
    changes = {"head_dim": 64} if kind in ("qwen3", "gemma3_text") else {}
    gguf.describe([path], folder, {"vocab_size": VOCABULARY, **changes}, "A card.\n")
    return path, folder


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.usefixtures("at_hand")
def test_a_file_answers_as_transformers_does_with_its_expanded_weights(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = described(tmp_path, name)
    monkeypatch.undo()
    reference: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)
    found = library.load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=reference)
    reference.load_state_dict(found["tensors"], strict=False)
    reference.tie_weights()
    ids = torch.randint(0, 256, (140,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = reference.eval()(ids[None]).logits[0]
    for dtype, near in (("float32", 2e-5), ("bfloat16", 3e-2)):
        model = loading.load(str(folder), window=None, device=CPU, dtype=dtype)
        assert any(isinstance(part, PackedBlocks) for part in model.model.modules())
        assert not any(isinstance(part, BlockLinear | torch.nn.Linear) for part in model.model.modules())
        full = FullCache(model.kv_shape, model.window)
        prefill.run(model, full, ids[:130], segment=100)  # more rows than our own products take
        full.reserve(140)
        with model.decoding():
            many = model.forward(ids[130:], full.extend(130))
            assert (many - expected[130:]).abs().max() <= near * expected.abs().max()
            for at in range(130, 140):
                one = model.forward(ids[at : at + 1], full.extend(at))
                assert torch.equal(one[0], many[at - 130]), "a verification says what plain decoding says"


@pytest.mark.usefixtures("at_hand")
def test_its_vocabulary_is_the_one_that_transformers_reads(tmp_path: Path) -> None:
    path, folder = described(tmp_path, "qwen2")
    tokens = AutoTokenizer.from_pretrained(folder).encode("abc ab")
    assert tokens == AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name).encode("abc ab")


@pytest.mark.usefixtures("at_hand")
def test_without_our_kernels_all_weights_are_expanded(tmp_path: Path) -> None:
    _, folder = described(tmp_path, "qwen2")
    stored = loading.load(str(folder), window=None, device=CPU, dtype="float32")
    plain = loading.load(str(folder), window=None, device=CPU, dtype="float32", packed=False)
    assert stored.parameters == plain.parameters
    assert stored.bytes_read_by_step < plain.bytes_read_by_step / 4
    ids = torch.arange(20)
    logits = []
    for model in (stored, plain):
        full = FullCache(model.kv_shape, model.window)
        full.reserve(20)
        with torch.inference_mode():
            logits.append(model.forward(ids, full.extend(0)))
    assert (logits[0] - logits[1]).abs().max() <= 1e-4 * logits[1].abs().max()


@pytest.mark.usefixtures("at_hand")
def test_a_file_that_has_changed_is_not_taken_for_the_one_that_was_described(tmp_path: Path) -> None:
    path, folder = described(tmp_path, "qwen2")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ModelError, match="no longer the file"):
        loading.load(str(folder), window=None, device=CPU)
    path.unlink()
    with pytest.raises(ModelError, match="is gone"):
        loading.load(str(folder), window=None, device=CPU)


def test_the_stretching_of_llama_3_is_known_by_its_factors() -> None:
    factors = [1.0] * 20 + [8.0] * 12
    with pytest.raises(ModelError, match="not known here"):
        gguf.llama_3_rope(500000.0, factors)
    usual = [gguf._llama_3_factor(500000.0 ** (pair / 64), 32.0) for pair in range(64)]
    assert gguf.llama_3_rope(500000.0, usual)["factor"] == 32.0
