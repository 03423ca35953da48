"""Every family that is supported beside the first ones: its whole life on a tiny random model of it.

What is compared with ``transformers``' own ``generate`` is what only this family does: positions in queries, layers
without RoPE, multipliers, norms in other places. The first families are in ``test_equality``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.document import Document
from engine.errors import UnsupportedModel
from engine.events import AnswerDone, BookRead, TextDelta
from engine.kv.full import FullCache
from engine.kv.streaming import StreamingCache
from engine.model import loading
from engine.prompt import Question, Turn
from engine.session import Session
from tests.engine.conftest import SHAPES, TRAINED, VOCABULARY, build_tokenizer
from tests.engine.test_random_acts import assert_the_cache_is_what_its_tokens_say

CPU = torch.device("cpu")
TOKENS = 10


def ask(session: Session, question: str, history: list[Turn], mode: Any = "hierarchical") -> AnswerDone:
    done = list(session.ask(Question(question, history, SamplingParams(max_tokens=TOKENS), mode, chat="chat")))[-1]
    assert isinstance(done, AnswerDone)
    return done


def generate(folder: str, prompt: list[int]) -> list[int]:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32)
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
    return out[0, len(prompt) :].tolist()


def turn(question: str, done: AnswerDone) -> Turn:
    return Turn(question, done.text)


@pytest.mark.parametrize("kind", TRAINED)
def test_a_chat_on_every_family(kind: str, tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    """Read, ask, ask again and stop, go back, close, open again; every text is ``generate``'s."""
    folder = tiny(kind)
    config = EngineConfig(
        model=folder,
        draft=tiny(kind, seed=1, layers=1, width=32),
        context=1024,
        retrieval_budget=128,
        prefill_segment=256,
        snapshot_folder=str(tmp_path),
    )
    session = Session.load(config)
    few = book.select(1, 3)
    assert isinstance(list(session.read(few))[-1], BookRead)
    fast = ask(session, "Where is the key?", [])
    plain = ask(session, "Where is the key?", [], "plain")
    talk = session.conversation
    assert talk is not None
    expected = generate(folder, talk.tokens[: plain.figures.prompt_tokens])
    assert list(fast.token_ids) == list(plain.token_ids) == expected

    history, cancel = [turn("Where is the key?", fast)], threading.Event()
    sampling = SamplingParams(max_tokens=TOKENS)
    for event in session.ask(Question("Who lit it?", history, sampling, chat="chat"), cancel=cancel):
        if isinstance(event, TextDelta):
            cancel.set()
    assert talk.turns[-1].turn.question == "Who lit it?"
    again = ask(session, "And when?", history)  # behind the first turn: the stopped one is cropped away
    assert_the_cache_is_what_its_tokens_say(session)
    session.close()

    other = Session.load(config)
    read = list(other.read(few))[-1]
    assert isinstance(read, BookRead)
    assert read.source == "snapshot"
    assert ask(other, "And when?", history).token_ids == again.token_ids
    other.close()


@pytest.mark.parametrize("kind", TRAINED)
def test_the_walk_and_a_draft_say_what_transformers_says(kind: str, tiny: Callable[..., str]) -> None:
    """The draft while nothing is evicted; its keys are kept unrotated, and rotated by layers as the model does it."""
    from transformers import AutoModelForCausalLM

    model = loading.load(tiny(kind), window=256, device=CPU)
    ids = torch.randint(6, 380, (200,), generator=torch.Generator().manual_seed(0))
    cache, full = StreamingCache(model.kv_shape, 4, 100, 64, model.rotate), FullCache(model.kv_shape, 256)
    full.reserve(200)
    with torch.inference_mode():
        rows = []
        for piece in (ids[:40], ids[40:41], ids[41:60]):
            rows.append(model.forward(piece, cache.extend(len(piece))))
            cache.advance(len(piece))
            cache._renew()
        walked = model.forward(ids, full.extend(0))
        whole: Any = AutoModelForCausalLM.from_pretrained(tiny(kind), attn_implementation="eager")
        expected = whole(input_ids=ids[None]).logits[0]
    # Where there are states what is read is divided by its own length, however small that is, and its error grows.
    # Sums of eight lanes and of sixteen, as processors have them, differ by up to 1.4e-5 in the deepest model.
    near = (1e-4 if model.kv_shape.recurrent else 3e-5) * expected.abs().max()
    assert (walked - expected).abs().max() < near
    assert (torch.cat(rows) - expected[:60]).abs().max() < near


def mistral_that_sees(tied: bool) -> Any:
    from transformers import Mistral3Config, Mistral3ForConditionalGeneration

    text = {**TEXT_PART, **SHAPES["ministral3"], "model_type": "ministral3", "tie_word_embeddings": tied}
    eyes = {**EYES, "model_type": "pixtral", "head_dim": 16}
    config = Mistral3Config(text_config=text, vision_config=eyes, tie_word_embeddings=tied, image_token_index=3)
    return Mistral3ForConditionalGeneration(config)


def gemma_that_sees(tied: bool) -> Any:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = {**TEXT_PART, **SHAPES["gemma3_text"], "model_type": "gemma3_text", "tie_word_embeddings": tied}
    text["layer_types"] = text["layer_types"][-2:]
    config = Gemma3Config(text_config=text, vision_config=EYES, tie_word_embeddings=tied, mm_tokens_per_image=4)
    return Gemma3ForConditionalGeneration(config)


def gemma_4_that_sees(tied: bool) -> Any:
    from transformers import Gemma4Config, Gemma4ForConditionalGeneration

    text = {**TEXT_PART, **SHAPES["gemma4_text"], "model_type": "gemma4_text", "tie_word_embeddings": tied}
    eyes = {**EYES, "num_key_value_heads": 2, "head_dim": 16}
    return Gemma4ForConditionalGeneration(Gemma4Config(text_config=text, vision_config=eyes, tie_word_embeddings=tied))


def qwen_that_sees(tied: bool) -> Any:
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    return Qwen3_5ForConditionalGeneration(Qwen3_5Config(**parts_of_qwen("qwen3_5_text", tied)))


def qwen_with_experts_that_sees(tied: bool) -> Any:
    from transformers import Qwen3_5MoeConfig, Qwen3_5MoeForConditionalGeneration

    return Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeConfig(**parts_of_qwen("qwen3_5_moe_text", tied)))


def parts_of_qwen(kind: str, tied: bool) -> dict[str, Any]:
    text = {**TEXT_PART, **SHAPES[kind], "model_type": kind, "tie_word_embeddings": tied}
    text["layer_types"] = text["layer_types"][-2:]
    eyes = {"hidden_size": 32, "intermediate_size": 32, "depth": 1, "num_heads": 2, "out_hidden_size": 64}
    return {"text_config": text, "vision_config": eyes, "tie_word_embeddings": tied}


def muse_that_sees(tied: bool) -> Any:
    from transformers import MuseGlimmerConfig, MuseGlimmerForConditionalGeneration

    text = {**TEXT_PART, **SHAPES["muse_glimmer_text"], "model_type": "muse_glimmer_text", "tie_word_embeddings": tied}
    text["layer_types"] = text["layer_types"][-2:]
    eyes = {**EYES, "pos_emb_height": 2, "pos_emb_width": 2, "model_type": "muse_glimmer_vision"}
    given: dict[str, Any] = {
        "text_config": text,
        "vision_config": eyes,
        "tie_word_embeddings": tied,
        "out_hidden_size": 128,
    }
    return MuseGlimmerForConditionalGeneration(MuseGlimmerConfig(**given, image_token_id=3, video_token_id=4))


TEXT_PART: dict[str, Any] = {
    **{"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2},
    **{"max_position_embeddings": 512, "eos_token_id": 5, "pad_token_id": 1},
}
EYES = {
    **{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
    **{"image_size": 28, "patch_size": 14},
}


@pytest.mark.parametrize("tied", [False, True], ids=["two embeddings", "tied"])
@pytest.mark.parametrize(
    "build",
    [
        *(mistral_that_sees, gemma_that_sees, gemma_4_that_sees, qwen_that_sees, qwen_with_experts_that_sees),
        muse_that_sees,
    ],
)
def test_the_text_part_of_a_model_that_sees(build: Callable[[bool], Any], tied: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = build(tied).eval()
    whole.save_pretrained(tmp_path)
    build_tokenizer(tmp_path)

    session = Session.load(EngineConfig(model=str(tmp_path), draft=None))
    model = session.target
    assert (model.window, model.num_layers) == (512, whole.config.text_config.num_hidden_layers)
    eyes = ("vision", "visual", "multi_modal_projector")
    own = sum(weights.numel() for name, weights in whole.named_parameters() if not any(part in name for part in eyes))
    assert model.parameters == own
    ids = torch.randint(6, 380, (300,), generator=torch.Generator().manual_seed(0))
    cache = FullCache(model.kv_shape, 512)
    cache.reserve(300)
    with torch.inference_mode():
        out = model.forward(ids, cache.extend(0))
        assert torch.allclose(
            out, whole(input_ids=ids[None]).logits[0], atol=1e-3 if model.kv_shape.recurrent else 1e-4
        )


GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 6}
GEMMA_4 = {"model_type": "gemma4_text"}
QWEN = {"model_type": "qwen3_5_text"}
ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
MUSE = {"model_type": "muse_glimmer_text"}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({**GEMMA, "layer_types": ["sliding_attention"] * 6}, "a sliding window of 4,096 tokens, which is not"),
        (
            {**GEMMA, "num_hidden_layers": 5},
            "a sliding window of 4,096 tokens, which is not supported yet: they do not",
        ),
        ({**GEMMA, "sliding_window": 0}, "sliding_window is 0"),
        ({**GEMMA, "attn_logit_softcapping": 50.0}, "caps its attention scores, which is not supported yet"),
        ({**GEMMA, "final_logit_softcapping": -1.0}, "final_logit_softcapping is -1.0"),
        ({**GEMMA, "use_bidirectional_attention": True}, "lets tokens see those after them, which is not"),
        ({**GEMMA, "rope_parameters": {"sliding_attention": {"rope_theta": -1}}}, "rope_theta is -1"),
        ({**GEMMA_4, "rope_parameters": {"full_attention": ROPE}}, "has no rope_theta for sliding_attention"),
        ({**GEMMA_4, "rope_parameters": {"full_attention": ROPE, "sliding_attention": {}}}, "for sliding_attention"),
        ({"model_type": "llama", "rope_parameters": {"full_attention": ROPE}}, "speaks of full_attention, and all"),
        ({"model_type": "qwen3", "rope_parameters": {"full_attention": ROPE}}, "speaks of full_attention, and all"),
        ({"model_type": "llama", "rope_parameters": {"other": {}, "rope_theta": -1}}, "speaks of other, and all"),
        ({**QWEN, "layer_types": ["linear_attention"] * 32}, "layers with a recurrent state, which is not supported"),
        ({**QWEN, "linear_value_head_dim": 1 << 20}, "linear_value_head_dim is 1048576"),
        ({"model_type": "lfm2", "layer_types": ["conv"] * 32}, "layers with a recurrent state, which is not supported"),
        ({"model_type": "bamba"}, "layers with a recurrent state, which is not supported yet"),
        ({"model_type": "granitemoehybrid", "mamba_n_groups": 0}, "mamba_n_groups is 0"),
        ({**GEMMA_4, "use_bidirectional_attention": "all"}, "lets tokens see those after them, which is not"),
        ({**GEMMA_4, "num_kv_shared_layers": 30}, "cannot be used"),
        ({**GEMMA_4, "per_layer_config": {"5": {"head_dim": 64}}}, "global_head_dim is 0"),
        ({**GEMMA_4, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 8}, "is 8 of 4"),
        ({"model_type": "vaultgemma"}, "layers with a sliding window"),
        ({"model_type": "gemma2", "attn_logit_softcapping": 0.0}, "attn_logit_softcapping is 0.0"),
        ({"model_type": "gpt_oss", "layer_types": ["sliding_attention"] * 36}, "a sliding window of 128 tokens"),
        ({"model_type": "gpt_oss", "quantization_config": {"quant_method": "fp8"}}, "stored quantized (fp8)"),
        ({"model_type": "mixtral"}, "is a mixture of 8 experts"),
        ({"model_type": "qwen3_moe", "num_experts": 4}, "num_experts_per_tok is 8 of 4"),
        ({"model_type": "starcoder2"}, "is a starcoder2 model"),
        ({"model_type": "llama", "num_key_value_heads": 64}, "num_attention_heads is 32 for 64"),
        ({"model_type": "paligemma", "text_config": {"model_type": "gemma"}}, "is a paligemma model"),
        ({"model_type": "llava"}, "is a llava model around Llama"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}, "stored quantized (fp8)"),
        ({"model_type": "mistral3", "quantization_config": {"quant_method": "fp8"}}, "stored quantized (fp8)"),
        ({"model_type": "ministral3", "rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}, "is missing"),
        ({"model_type": "granite", "logits_scaling": 0}, "logits_scaling is 0"),
        ({**MUSE, "layer_types": ["sliding_attention"] * 52}, "a sliding window of 2,048 tokens, which is not"),
        ({**MUSE, "layer_rope_theta": [1e4] * 51}, "layer_rope_theta does not speak of every layer"),
        ({**MUSE, "output_multiplier": 0.0}, "output_multiplier is 0.0"),
    ],
)
def test_what_is_missing_is_said_before_weights_are_looked_for(
    settings: dict[str, Any], why: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 8192, **settings}))
    with pytest.raises(Exception, match=r"^[^\n]*$") as refused:
        loading.load(str(tmp_path), window=None, device=CPU)
    assert why in str(refused.value)
    assert isinstance(refused.value, UnsupportedModel) or "cannot be used" in str(refused.value)
