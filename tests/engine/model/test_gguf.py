"""GGUF files opened as they are stored, against the same file expanded by gguf and transformers."""

from __future__ import annotations

import json
import math
import mmap
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gguf import (
    MODEL_ARCH,
    GGMLQuantizationType,
    GGUFWriter,
    RopeScalingType,
    dequantize,
    get_tensor_name_map,
    quantize,
)
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers import modeling_gguf_pytorch_utils as library
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils.chat_template_utils import render_jinja_template

from engine import foreign, foreign_child
from engine.config import UNCHANGED_NOTE, EngineConfig, SamplingParams
from engine.decode import prefill
from engine.document import Document
from engine.errors import ModelError, OptionError, ResourceError
from engine.events import AnswerDone
from engine.kv.full import FullCache
from engine.kv.streaming import StreamingCache
from engine.model import architectures, gguf, loading, own_head
from engine.model.families import LAYOUTS
from engine.model.kernels import native
from engine.model.kernels.abi import MOST_ROWS
from engine.model.kernels.formats import FORMATS
from engine.model.products.blocks import BlockLinear
from engine.model.products.packed import PackedBlocks
from engine.plan import probe
from engine.prompt import Question
from engine.session import Session
from engine.worker import describe

CPU = torch.device("cpu")
WIDTH, INNER, HEADS, KV_HEADS, LAYERS, VOCABULARY = 256, 512, 4, 2, 2, 260
KINDS = [number for number, form in FORMATS.items() if form.name in ("Q4_K", "Q6_K", "Q8_0")]
"""``test_blocks`` has all of them."""

Rounded = Callable[[str, torch.Tensor], GGMLQuantizationType | None]
"""A function of a weight's name and values that returns its format in the file; None for float32."""


def fields(writer: GGUFWriter, layers: int, **more: Any) -> None:
    usual = {
        **{"add_block_count": layers, "add_context_length": 512, "add_embedding_length": WIDTH},
        **{"add_feed_forward_length": INNER, "add_head_count": HEADS, "add_head_count_kv": KV_HEADS},
        **{"add_rope_freq_base": 10000.0, "add_layer_norm_rms_eps": 1e-6},
    }
    for name, value in {**usual, **more}.items():
        getattr(writer, name)(value)
    tokens = [*bytes_to_unicode().values(), "ab", "abc", "<end>", "<pad>"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 258 + [3, 3])
    writer.add_token_merges(["a b", "ab c"])
    writer.add_eos_token_id(258)


def check_logits(folder: Path, reference: Any, near: float) -> None:
    """A folder's model, with packed products and without, says what ``reference`` says, by a part of its largest."""
    ids = torch.randint(0, 256, (100,), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = reference.eval()(ids[None]).logits[0]
        for packed in (True, False):
            model = loading.load(str(folder), window=None, device=CPU, dtype="float32", packed=packed)
            full = FullCache(model.kv_shape, model.window)
            prefill.run(model, full, ids[:90], segment=100)
            full.reserve(100)
            logits = model.forward(ids[90:], full.extend(90))
            assert (logits - expected[90:]).abs().max() <= near * expected.abs().max()


def random_blocks(random: np.random.Generator, rows: int, width: int, kind: int) -> np.ndarray[Any, Any]:
    """Any quants, with factors so small that weights are of a usual size."""
    form = FORMATS[kind]
    raw = random.integers(0, 256, (rows, width // form.values, form.bytes), dtype=np.uint8)
    size = 0.15 / 2**form.bits / (64 if form.scale else 1) / (8 if form.codes else 1)
    for offset in form.halves[: 1 if form.name == "IQ4_XS" else 2]:
        factors = (size * random.uniform(0.5, 1.0, (*raw.shape[:2], 1))).astype(np.float16)
        raw[:, :, offset : offset + 2] = factors.view(np.uint8)
    return raw.reshape(rows, -1)


def made(
    folder: Path,
    architecture: str,
    config: Any,
    tied: bool,
    *,
    parts: int = 0,
    seed: int = 0,
    halves: bool = True,
    **more: Any,
) -> list[Path]:
    """A file of random weights in several formats, one after the other, or so many tensors in each of its parts."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    processor = library.TENSOR_PROCESSORS.get(architecture, library.TensorProcessor)(config=config.to_dict())
    names = library.get_gguf_hf_weights_map(model, processor)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    path = folder / "small.gguf"
    writer = GGUFWriter(path, architecture, split_max_tensors=parts)
    fields(writer, config.num_hidden_layers, **more)
    random, number = np.random.default_rng(seed), 0
    for name, here in names.items():
        if here == "lm_head.weight" and tied:
            continue
        shape = shapes[here]
        if ".experts." in here:
            name = f"{name}.weight"
            shape = (shape[0], shape[1] // (1 if "down" in name else 2), shape[2])
        if len(shape) == 1 or "conv.conv" in here or "mlp.gate.weight" in here:
            shape = (shape[0], *shape[-1:]) if len(shape) > 1 else shape
            numbers = 1 + 0.1 * random.standard_normal(shape) if "norm" in name else random.standard_normal(shape)
            writer.add_tensor(name, numbers.astype(np.float32))
        elif number % 7 == 3 and halves:
            numbers = (0.02 * random.standard_normal(shape)).astype(np.float16)
            writer.add_tensor(name, numbers)
            number += 1
        else:
            kind = KINDS[number % len(KINDS)]
            blocks = random_blocks(random, math.prod(shape[:-1]), shape[-1], kind).reshape(*shape[:-1], -1)
            writer.add_tensor(name, blocks, raw_dtype=GGMLQuantizationType(kind))
            number += 1
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(folder.glob("small*.gguf"))


@pytest.fixture
def at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's work in this process, which has the libraries already."""
    monkeypatch.setattr(foreign, "save_gguf_tokenizer", lambda *given: foreign_child._convert(*given) and ("",))


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
    "qwen3moe": (
        *("qwen3moe", "qwen3_moe", False),
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": True},
        {
            **{"add_key_length": 64, "add_expert_count": 4, "add_expert_used_count": 2},
            "add_expert_feed_forward_length": 256,
        },
    ),
    "lfm2": (
        *("lfm2", "lfm2", True),
        {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_auto_adjust_ff_dim": False},
        {"add_head_count_kv": [0, KV_HEADS], "add_shortconv_l_cache": 3},
    ),
    "phi3": ("phi3", "phi3", False, {"pad_token_id": None}, {}),
    "gemma2": (
        *("gemma2", "gemma2", True),
        {"sliding_window": 1024, "query_pre_attn_scalar": 64},
        {"add_key_length": 64, "add_sliding_window": 1024},
    ),
    "gemma3": (
        *("gemma3", "gemma3_text", True),
        {"sliding_window": 1024, "num_hidden_layers": 6, "query_pre_attn_scalar": 64},  # every sixth layer sees all
        {"add_key_length": 64, "add_sliding_window": 1024},
    ),
}


def described(tmp_path: Path, name: str, **changes: Any) -> tuple[list[Path], Path]:
    """A file of a family, or its parts, and the folder of its settings."""
    architecture, kind, tied, here, there = FAMILIES[name]
    config = config_of(kind, tie_word_embeddings=tied, **here)
    files = made(tmp_path, architecture, config, tied, **there, **changes)
    folder = tmp_path / "folder"
    folder.mkdir()
    gguf.describe(files, folder, "A card.\n")
    return files, folder


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.usefixtures("at_hand")
def test_a_file_answers_as_transformers_does_with_its_expanded_weights(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    [path], folder = described(tmp_path, name)
    monkeypatch.undo()
    theirs = AutoConfig.from_pretrained(tmp_path, gguf_file=path.name).to_dict()
    ours = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Where a file says nothing transformers has a usual token, and it passes over how wide heads and experts are.
    others = {"query_pre_attn_scalar", "moe_intermediate_size", "head_dim", "num_experts", "stored_bytes_per_weight"}
    others |= {
        "fitted_bytes_per_weight",
        "card_bytes_per_weight",
        "bos_token_id",
        "pad_token_id",
        "dtype",
        "rms_norm_eps",
    }
    assert {name: ours[name] for name in ours.keys() - others} == {name: theirs[name] for name in ours.keys() - others}
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
            off = (many - expected[130:]).abs().amax(dim=1)
            of_experts = name == "qwen3moe" and dtype == "bfloat16"  # a token may ask another one there
            assert (off.median() if of_experts else off.max()) <= near * expected.abs().max()
            for at in range(130, 140):
                one = model.forward(ids[at : at + 1], full.extend(at))
                assert torch.equal(one[0], many[at - 130]), "a verification says what plain decoding says"


@pytest.mark.parametrize(
    ("name", "dtype", "longest"),
    [("llama", "bfloat16", MOST_ROWS), ("llama", "float32", 200), ("qwen3moe", "bfloat16", 200)],
)
@pytest.mark.usefixtures("at_hand")
def test_blocks_of_prefill_are_short_where_our_kernels_multiply_any_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, dtype: str, longest: int
) -> None:
    """Such a processor has AVX2 only. More rows at once would be torch's work, apart from the products. An expert has
    few of a block's rows, so mixtures take long blocks all the same.
    """
    kernels = native.Native(workers=2, lanes=8)
    monkeypatch.setattr(native, "own", lambda: kernels)
    _, folder = described(tmp_path, name, halves=False)
    model = loading.load(str(folder), window=None, device=CPU, dtype=dtype)
    full, rows, layer = FullCache(model.kv_shape, model.window), [], model.layer

    def counted(index: int, hidden: torch.Tensor, *given: Any) -> torch.Tensor:
        rows.append(hidden.shape[1])
        return layer(index, hidden, *given)

    monkeypatch.setattr(model, "layer", counted)
    prefill.run(model, full, torch.arange(200), segment=200, block=256)
    assert max(rows) == longest
    assert sum(rows) == 200 * LAYERS


@pytest.mark.parametrize("name", ["llama", "qwen3moe", "lfm2", "phi3", "gemma3"])
@pytest.mark.usefixtures("at_hand")
def test_the_layer_whose_passes_are_timed_is_stored_like_the_file(tmp_path: Path, name: str) -> None:
    _, folder = described(tmp_path, name)
    model = loading.load(str(folder), window=None, device=CPU, dtype="bfloat16")
    kinds = probe.kinds_of(str(folder), "stored", CPU)
    timed = probe._one_layer(model.config, torch.bfloat16, CPU, "stored", kinds).model.model.layers[0]
    at = next(n for n in range(model.config.num_hidden_layers) if model.kv_shape.window_of(n) is None)
    at = model.config.layer_types.index("full_attention") if name == "lfm2" else at
    own = model.model.model.layers[at]
    assert {path: type(part) for path, part in timed.named_modules()} == {
        path: type(part) for path, part in own.named_modules()
    }
    found = [part for part in timed.modules() if isinstance(part, PackedBlocks)]
    assert len(found) >= 4
    formats = {each.form and each.form.number for part in found for each in part._segments}
    assert formats <= {None, *KINDS}
    assert len(formats) > 1
    assert probe.kinds_of(str(folder), "4bit", CPU) == {}
    measured = probe.measure(model.config, torch.bfloat16, CPU, tmp_path, kinds=kinds, limit_s=0.2)
    assert 0 < measured.step.base < 1
    keys = [probe.key_of(model.config, torch.bfloat16, CPU, "stored", kinds=given) for given in ({}, kinds)]
    assert keys[0] != keys[1]


def described_gpt_oss(tmp_path: Path) -> tuple[Path, Any]:
    """The folder of a file whose experts are in MXFP4, gates and what they open apart, and have biases; and
    transformers' model with the same weights, expanded."""
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    counts = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 64, "sliding_window": 1024}
    torch.manual_seed(0)
    reference: Any = AutoModelForCausalLM.from_config(config_of("gpt_oss", rope_parameters=rope, **counts))
    writer = GGUFWriter(tmp_path / "small.gguf", "gpt-oss")
    own = {"add_key_length": 64, "add_expert_count": 4, "add_expert_used_count": 2, "add_sliding_window": 1024}
    fields(writer, LAYERS, **own, add_expert_feed_forward_length=64)
    random, kind = np.random.default_rng(0), LAYOUTS["gpt-oss"]
    state = {name: torch.randn_like(held) * 0.1 for name, held in reference.state_dict().items()}
    for layer in range(LAYERS):
        place = f"model.layers.{layer}.mlp.experts"
        matrices, biases = {}, {}
        for part, outputs, inputs in (("gate", 64, WIDTH), ("up", 64, WIDTH), ("down", WIDTH, 64)):
            raw = random.integers(0, 256, (4, outputs, inputs // 32, 17), dtype=np.uint8)
            raw[..., 0] = random.integers(119, 123, raw.shape[:3])
            raw = raw.reshape(4, outputs, -1)
            writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", raw, raw_dtype=GGMLQuantizationType.MXFP4)
            matrices[part] = torch.from_numpy(dequantize(raw, GGMLQuantizationType.MXFP4))
            biases[part] = 0.1 * torch.randn(4, outputs)
            writer.add_tensor(f"blk.{layer}.ffn_{part}_exps.bias", biases[part].numpy())
        for name, held in (("", matrices), ("_bias", biases)):
            joined = torch.stack([held["gate"], held["up"]], dim=2).flatten(1, 2)
            state[f"{place}.gate_up_proj{name}"] = joined if name else joined.transpose(1, 2)
            state[f"{place}.down_proj{name}"] = held["down"] if name else held["down"].transpose(1, 2)
    blocks = [f"blk.{layer}.{own}" for layer in range(LAYERS) for own in kind.names if "exps" not in own]
    for tensor in (*blocks, *kind.top):
        for stored in (tensor, f"{tensor}.weight", f"{tensor}.bias"):
            if (here := kind.name(stored)) in state:
                writer.add_tensor(stored, state[here].numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reference.load_state_dict(state)
    (tmp_path / "folder").mkdir()
    gguf.describe([tmp_path / "small.gguf"], tmp_path / "folder", "A card.\n")
    return tmp_path / "folder", reference


@pytest.mark.usefixtures("at_hand")
def test_gpt_oss_answers_as_transformers_does_with_its_expanded_weights(tmp_path: Path) -> None:
    folder, reference = described_gpt_oss(tmp_path)
    check_logits(folder, reference, 2e-5)
    kinds = probe.kinds_of(str(tmp_path / "folder"), "stored", CPU)
    config = architectures.load_config(str(tmp_path / "folder"))
    assert probe.measure(config, torch.float32, CPU, tmp_path, kinds=kinds, limit_s=0.2).step.base > 0


def qwen_3_5(path: Path, experts: int, *, head: bool = False) -> dict[str, Any]:
    """Write a random model as a file, with a draft head or without. Return the values that the file holds."""
    architecture = "qwen35moe" if experts else "qwen35"
    writer = GGUFWriter(path, architecture)
    own = {
        **{"add_key_length": 64, "add_rope_dimension_count": 16, "add_rope_dimension_sections": [3, 3, 2, 0]},
        **{"add_ssm_time_step_rank": 4, "add_ssm_inner_size": 256, "add_ssm_group_count": 2, "add_ssm_state_size": 32},
        **{"add_ssm_conv_kernel": 4, "add_full_attention_interval": 2},
    }
    if experts:
        own |= {"add_expert_count": experts, "add_expert_used_count": 2, "add_expert_feed_forward_length": 256}
        own |= {"add_expert_shared_feed_forward_length": 256}
    own |= {"add_nextn_predict_layers": 1} if head else {}
    layers = LAYERS + head
    fields(writer, layers, **own)
    attention = {
        **{"attn_q.weight": (512, WIDTH), "attn_k.weight": (128, WIDTH), "attn_v.weight": (128, WIDTH)},
        **{"attn_output.weight": (WIDTH, 256), "attn_q_norm.weight": (64,), "attn_k_norm.weight": (64,)},
    }
    fusion: dict[str, tuple[int, ...]] = {
        f"nextn.{name}.weight": (WIDTH,) for name in ("enorm", "hnorm", "shared_head_norm")
    }
    fusion["nextn.eh_proj.weight"] = (WIDTH, 2 * WIDTH)
    shapes = {
        **{"attn_norm.weight": (WIDTH,), "post_attention_norm.weight": (WIDTH,)},
        **{"0.attn_qkv.weight": (384, WIDTH), "0.attn_gate.weight": (256, WIDTH), "0.ssm_out.weight": (WIDTH, 256)},
        **{"0.ssm_alpha.weight": (4, WIDTH), "0.ssm_beta.weight": (4, WIDTH), "0.ssm_conv1d.weight": (384, 4)},
        **{"0.ssm_norm.weight": (64,), "0.ssm_a": (4,), "0.ssm_dt.bias": (4,)},
        **{f"1.{name}": shape for name, shape in attention.items()},
    }
    if head:
        shapes |= {f"{LAYERS}.{name}": shape for name, shape in (attention | fusion).items()}
    inner, wide = (256, (experts,)) if experts else (INNER, ())
    end = "_exps" if experts else ""
    shapes |= {f"ffn_{each}{end}.weight": (*wide, inner, WIDTH) for each in ("gate", "up")}
    shapes |= {f"ffn_down{end}.weight": (*wide, WIDTH, inner)}
    if experts:
        shapes |= {"ffn_gate_inp.weight": (experts, WIDTH), "ffn_gate_inp_shexp.weight": (WIDTH,)}
        shapes |= {f"ffn_{each}_shexp.weight": (256, WIDTH) for each in ("gate", "up", "down")}
    whole = {f"blk.{n}.{name}": shape for name, shape in shapes.items() if not name[0].isdigit() for n in range(layers)}
    whole |= {f"blk.{name}": shape for name, shape in shapes.items() if name[0].isdigit()}
    whole |= {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)}
    random, number, held = np.random.default_rng(0), 0, {}
    for name, shape in whole.items():
        values = 0.1 * random.standard_normal(shape).astype(np.float32)
        if name.endswith("ssm_a"):
            values = -np.exp(values)
        if "norm" in name:
            values = 1 + values
        if len(shape) > 1 and "conv" not in name and "_inp" not in name:
            # transformers' own reader knows these two of our formats.
            kind = (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0)[number % 2]
            raw = quantize(values, kind)
            writer.add_tensor(name, raw, raw_dtype=kind)
            values = dequantize(raw, kind).reshape(shape)
            number += 1
        else:
            writer.add_tensor(name, values)
        held[name] = torch.from_numpy(values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.usefixtures("at_hand")
def test_qwen_3_5_answers_as_transformers_does(tmp_path: Path, experts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads of values lie in another order in the file, also in the columns of what reads them."""
    qwen_3_5(tmp_path / "small.gguf", experts)
    (tmp_path / "folder").mkdir()
    gguf.describe([tmp_path / "small.gguf"], tmp_path / "folder", "A card.\n")
    monkeypatch.undo()
    theirs: Any = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="small.gguf", dtype=torch.float32)
    check_logits(tmp_path / "folder", theirs, 1e-4)


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.usefixtures("at_hand")
def test_a_file_s_draft_head_is_the_one_that_safetensors_hold(tmp_path: Path, experts: int) -> None:
    """The layer after the last one. Its norms are stored with 1 added, and the model itself goes without it."""
    held = qwen_3_5(tmp_path / "small.gguf", experts, head=True)
    for name in ("folder", "head"):
        (tmp_path / name).mkdir()
    folder = str(tmp_path / "folder")
    gguf.describe([tmp_path / "small.gguf"], tmp_path / "folder", "A card.\n")
    names = {"eh_proj": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden"}
    own = {f"nextn.{name}.weight": f"mtp.{here}.weight" for name, here in names.items()}
    own["nextn.shared_head_norm.weight"] = "mtp.norm.weight"
    stored = {}
    for name, values in held.items():
        layer, _, part = name.removeprefix("blk.").partition(".")
        if layer == str(LAYERS):
            here = LAYOUTS["qwen35"].name(f"blk.0.{part}") or ""
            here = own.get(part) or here.replace("model.layers.0", "mtp.layers.0")
            values = values - 1.0 if "norm" in part else values
            stored[here] = values[None] if part.startswith("ffn_gate_inp_shexp") else values
    for name in [name for name in stored if ".experts." in name]:
        for at, matrix in enumerate(stored.pop(name)):
            stored[name.replace("experts", f"experts.{at}").replace(".weight", "_proj.weight")] = matrix
    save_file({name: part.clone() for name, part in stored.items()}, tmp_path / "head" / "model.safetensors")
    ids, hidden = torch.arange(20, 28), torch.randn(1, 8, WIDTH, generator=torch.Generator().manual_seed(1))
    for packed in (True, False):
        target = loading.load(folder, window=None, device=CPU, dtype="float32", packed=packed)
        config = own_head.settings_in(folder, target.config)
        assert config is not None
        with torch.inference_mode():
            found = [
                head.read(ids, hidden, StreamingCache(head.kv_shape, 4, 20, 64, head.rotate).extend(8))[0]
                for head in (own_head.load(str(place), config, target) for place in (folder, tmp_path / "head"))
            ]
        assert (found[0] - found[1]).abs().max() < 1e-4 * found[1].abs().max()
        assert target.num_layers == LAYERS


def stored_name(names: Any, name: str) -> str:
    """What llama.cpp's converter calls a weight of Gemma 4."""
    own = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
    for end, stored in own.items():
        if name.endswith(end):
            return f"blk.{name.split('.')[2]}.{stored}"
    return str(names.get_name(name.removesuffix(".weight"))) + ".weight"


def gemma_4(path: Path, config: Any, weights: dict[str, torch.Tensor], rounded: Rounded) -> None:
    """Write these weights as a file, as llama.cpp's converter does, and change them to what the file then holds."""
    layers, sliding = config.num_hidden_layers, [kind == "sliding_attention" for kind in config.layer_types]
    own, inner = layers - config.num_kv_shared_layers, config.intermediate_size
    heads, full = config.num_key_value_heads, config.num_global_key_value_heads
    turned = config.global_head_dim // 2 // 4
    writer = GGUFWriter(path, "gemma4")
    for name, value in {
        **{"block_count": layers, "context_length": 4096, "embedding_length": config.hidden_size},
        **{"head_count": 4, "head_count_kv": [heads if each else full for each in sliding] if own == layers else heads},
        **{"feed_forward_length": [inner] * own + [2 * inner] * (layers - own) if own < layers else inner},
        **{"key_length": config.global_head_dim, "key_length_swa": config.head_dim, "sliding_window_pattern": sliding},
        **{"rope_dimension_count": config.global_head_dim, "rope_dimension_count_swa": config.head_dim},
        **{"rope_freq_base": 10000.0, "rope_freq_base_swa": 100.0, "sliding_window": config.sliding_window},
        **{"layer_norm_rms_eps": 1e-6, "final_logit_softcapping": 5.0, "shared_kv_layers": layers - own},
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
    }.items():
        getattr(writer, f"add_{name}")(value)
    if config.enable_moe_block:
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.top_k_experts)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁ab", "ab", "▁ab"]
    tokens += [f"x{number}" for number in range(config.vocab_size - len(tokens) - 2)] + ["<|turn>", "<turn|>"]
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([3] * 4 + [6] * 256 + [1] * (len(tokens) - 262) + [3, 3])
    writer.add_token_merges(["a b", "▁ ab"])
    writer.add_eos_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_tensor("rope_freqs.weight", np.array([1.0] * turned + [1e30] * (3 * turned), np.float32))
    for layer in range(own, layers):  # many files keep what is in Google's folder and never used
        writer.add_tensor(f"blk.{layer}.attn_k.weight", np.ones((16, config.hidden_size), np.float32))
        writer.add_tensor(f"blk.{layer}.attn_k_norm.weight", np.ones(16, np.float32))
    write(writer, get_tensor_name_map(MODEL_ARCH.GEMMA4, layers), weights, rounded)


def ministral_3(path: Path, config: Any, weights: dict[str, torch.Tensor], rounded: Rounded) -> None:
    """Write these weights as ``gemma_4`` does. Rows of queries and keys lie in another order in the file."""
    rope, layers = config.rope_parameters, config.num_hidden_layers
    writer = GGUFWriter(path, "mistral3")
    own = {
        **{"add_context_length": 4096, "add_embedding_length": config.hidden_size, "add_vocab_size": config.vocab_size},
        **{"add_feed_forward_length": config.intermediate_size, "add_key_length": 16, "add_rope_dimension_count": 16},
        **{"add_rope_scaling_type": RopeScalingType.YARN, "add_rope_scaling_factor": rope["factor"]},
        **{"add_rope_scaling_orig_ctx_len": rope["original_max_position_embeddings"]},
        **{"add_rope_scaling_yarn_log_mul": 1.0, "add_attn_temperature_scale": rope["llama_4_scaling_beta"]},
        "add_layer_norm_rms_eps": config.rms_norm_eps,
    }
    fields(writer, layers, **own)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    order = {
        name: torch.arange(count * 16).view(count, 2, -1).transpose(1, 2).flatten() for name, count in heads.items()
    }
    orders = {name: order[part] for name in weights if (part := name.split(".")[-2]) in order}
    weights |= {name: weights[name][order] for name, order in orders.items()}
    write(writer, get_tensor_name_map(MODEL_ARCH.MISTRAL3, layers), weights, rounded)
    weights |= {name: weights[name][order.argsort()] for name, order in orders.items()}


def write(writer: GGUFWriter, names: Any, weights: dict[str, torch.Tensor], rounded: Rounded) -> None:
    for name, values in weights.items():
        given, kind = values.numpy(), rounded(name, values)
        data = given if kind is None else quantize(given, kind)
        writer.add_tensor(stored_name(names, name), data, raw_dtype=kind)
        if kind is not None:
            weights[name] = torch.from_numpy(dequantize(data, kind).reshape(given.shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def last_logits(folder: Path, dtype: str, packed: bool = True) -> torch.Tensor:
    """What a folder's model says after each of the last 10 of 200 tokens."""
    ids = torch.randint(0, 384, (200,), generator=torch.Generator().manual_seed(0))
    model = loading.load(str(folder), window=None, device=CPU, dtype=dtype, packed=packed)
    full = FullCache(model.kv_shape, model.window)
    prefill.run(model, full, ids[:190], segment=64)
    full.reserve(200)
    with model.decoding():
        return model.forward(ids[190:], full.extend(190))


def not_rounded(_name: str, _values: torch.Tensor) -> None:
    return None


def in_turn(name: str, values: torch.Tensor) -> GGMLQuantizationType | None:
    """Another format for each matrix that has whole blocks."""
    if values.dim() < 2 or values.shape[-1] % 32 or "router" in name:
        return None
    return (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_0)[len(name) % 2]


@pytest.mark.parametrize("kind", ["gemma4_text", "gemma4_text-experts", "ministral3"])
@pytest.mark.parametrize("rounded", [not_rounded, in_turn])
@pytest.mark.usefixtures("at_hand")
def test_a_file_answers_as_the_folder_of_the_same_weights(
    tmp_path: Path, kind: str, rounded: Rounded, tiny: Callable[..., str]
) -> None:
    """Gemma 4 and Ministral 3, whose settings transformers does not read. Gemma 4 has layers without KV and with inputs
    of their own, as its small models, or experts, as a large one.
    """
    held = shutil.copytree(tiny(kind), tmp_path / "held")
    weights = load_file(held / "model.safetensors")
    made = gemma_4 if "gemma4" in kind else ministral_3
    made(tmp_path / "small.gguf", architectures.load_config(str(held)), weights, rounded)
    save_file(weights, held / "model.safetensors", {"format": "pt"})
    folder = tmp_path / "folder"
    folder.mkdir()
    gguf.describe([tmp_path / "small.gguf"], folder, "A card.\n")
    text, words, ends = ("ab<turn|>", [263, 383], (1, 383)) if "gemma4" in kind else ("ab", [256], (258,))
    assert AutoTokenizer.from_pretrained(folder).encode(text) == words
    assert loading.load(str(folder), window=None, device=CPU).end_ids == ends
    of_folder, of_file = (last_logits(each, "float32") for each in (held, folder))
    near = 0.0 if rounded is not_rounded else 2e-5
    assert (of_folder - of_file).abs().max() <= near * of_folder.abs().max()
    assert (last_logits(folder, "float32", packed=False) - of_folder).abs().max() <= 2e-5 * of_folder.abs().max()
    # bfloat16 changes much in models as small as these, whatever the weights are stored in
    coarse, own = ((last_logits(each, "bfloat16") - of_folder).abs().mean() for each in (held, folder))
    assert 0 < own <= 2 * coarse


@pytest.mark.usefixtures("at_hand")
def test_its_vocabulary_is_the_one_that_transformers_reads(tmp_path: Path) -> None:
    [path], folder = described(tmp_path, "qwen2")
    tokens = AutoTokenizer.from_pretrained(folder).encode("abc ab")
    assert tokens == AutoTokenizer.from_pretrained(tmp_path, gguf_file=path.name).encode("abc ab")


@pytest.mark.parametrize("name", ["qwen2", "qwen3moe"])
@pytest.mark.usefixtures("at_hand")
def test_without_our_kernels_all_weights_are_expanded(tmp_path: Path, name: str) -> None:
    _, folder = described(tmp_path, name)
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
def test_what_finds_no_room_when_it_is_expanded_is_refused_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = described(tmp_path, "qwen2")
    monkeypatch.setattr(loading.psutil, "virtual_memory", lambda: SimpleNamespace(available=3_000_000))
    assert loading.load(str(folder), window=None, device=CPU).keeps_blocks
    with pytest.raises(ResourceError, match=r"stored in [5-9](\.\d)? bits and take 0 GB when they are expanded"):
        loading.load(str(folder), window=None, device=CPU, packed=False)


@pytest.mark.usefixtures("at_hand")
def test_few_bits_are_not_rounded_again(tmp_path: Path) -> None:
    _, folder = described(tmp_path, "qwen2")
    settings = loading.settings_of(str(folder), None)
    with pytest.raises(OptionError, match="--weights 8bit would round them a second time"):
        loading.check_rounding(str(folder), settings, "8bit", CPU)
    loading.check_rounding(str(folder), settings, "stored", CPU)
    loading.check_rounding(str(folder), settings, "8bit", torch.device("cuda"))
    settings.stored_bytes_per_weight = 2.0
    loading.check_rounding(str(folder), settings, "4bit", CPU)


@pytest.mark.usefixtures("at_hand")
def test_a_file_is_mapped_only_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows would reserve memory for all of the file if the mapping could be written to."""
    asked = []

    class Mapping(mmap.mmap):
        def __new__(cls, *arguments: Any, **named: Any) -> Mapping:
            asked.append(named["access"])
            return super().__new__(cls, *arguments, **named)

    monkeypatch.setattr(mmap, "mmap", Mapping)
    _, folder = described(tmp_path, "qwen2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loading.load(str(folder), window=None, device=CPU)
    assert set(asked) == {mmap.ACCESS_READ}


@pytest.mark.usefixtures("at_hand")
def test_a_model_in_parts_is_the_same_model(tmp_path: Path) -> None:
    models = []
    for place, tensors in (("whole", 0), ("parts", 7)):
        (tmp_path / place).mkdir()
        files, folder = described(tmp_path / place, "qwen2", parts=tensors)
        assert len(files) == (4 if tensors else 1)
        models.append(loading.load(str(folder), window=None, device=CPU))
    for (name, whole), (_, part) in zip(*(model.named_weights() for model in models), strict=True):
        assert torch.equal(whole, part), name


@pytest.mark.usefixtures("at_hand")
def test_what_ends_an_answer_is_what_the_file_says(tmp_path: Path) -> None:
    _, folder = described(tmp_path, "qwen2", add_eot_token_id=259, add_sampling_temp=0.5)
    model = loading.load(str(folder), window=None, device=CPU)
    assert model.end_ids == (258, 259)
    assert model.sampling.temperature == 0.5


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a child would try, in this process."""

    def child(_module: str, request: dict[str, Any], *_: object) -> Iterator[dict[str, Any]]:
        value: tuple[str, ...] = (foreign_child.LINEAR,)
        if request["work"] == "template":
            value = foreign_child._render(request["template"], request["tokens"])
        yield {"type": "answer", "value": value}

    monkeypatch.setattr(foreign_child, "_renderer", lambda: render_jinja_template)
    monkeypatch.setattr(foreign, "run_in_child", child)


def answered_as_plain(session: Session, book: Document, tokens: int) -> AnswerDone:
    """Speculation's answer to a question about the book, which has the tokens of plain decoding."""
    list(session.read(book))
    answers: list[AnswerDone] = []
    for mode in ("plain", "hierarchical"):
        question = Question("Who?", sampling=SamplingParams(temperature=0.0, max_tokens=tokens), mode=mode)
        *_, done = session.ask(question)
        assert isinstance(done, AnswerDone)
        answers.append(done)
    plain, speculated = answers
    assert plain.token_ids == speculated.token_ids
    return speculated


@pytest.mark.usefixtures("at_hand", "tried")
def test_a_target_and_a_draft_of_files_say_what_plain_decoding_says(tmp_path: Path) -> None:
    pair = []
    for seed in range(2):
        (tmp_path / str(seed)).mkdir()
        pair.append(str(described(tmp_path / str(seed), "qwen2", seed=seed, add_context_length=2048)[1]))
    target, other = pair
    book = Document.from_text("A book", "The light was out. Maren climbed the stairs and counted them. " * 12)
    lengths: dict[str, Any] = {"num_draft_tokens": 2, "num_pending_tokens": 4, "retrieval_budget": 64, "chunk_size": 8}
    for draft in (target, other):
        with closing(Session.load(EngineConfig(target, draft, num_lookup_tokens=0, **lengths))) as session:
            assert describe(session, session.config).weights_note == UNCHANGED_NOTE
            proposed = answered_as_plain(session, book, 24).figures.middle
            assert proposed.proposed
            assert (proposed.accepted > 0.7 * proposed.proposed) == (draft == target)


@pytest.mark.usefixtures("at_hand")
def test_a_file_that_has_changed_is_not_taken_for_the_one_that_was_described(tmp_path: Path) -> None:
    [path], folder = described(tmp_path, "qwen2")
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ModelError, match="no longer the file"):
        loading.load(str(folder), window=None, device=CPU)
    path.unlink()
    with pytest.raises(ModelError, match="is gone"):
        loading.load(str(folder), window=None, device=CPU)
