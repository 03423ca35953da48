"""Weights in 8 and 4 bits: near what they stand for, computed as they say, and exact decoding with respect to them.
Norms in one kernel of torch are transformers'."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from app.core.settings import DEMO_MODEL
from engine.config import EngineConfig, SamplingParams
from engine.document import Document
from engine.errors import ModelError, OptionError
from engine.events import AnswerDone, BookRead
from engine.kv import persistence
from engine.model import loading
from engine.model.products import quantized
from engine.model.products.norms import FusedNorm
from engine.model.products.quantized import Linear4, Linear8
from engine.prompt import Question
from engine.quantization import BITS, GROUP, bytes_per_weight
from engine.session import Session

CPU = torch.device("cpu")
KINDS = [Linear8, Linear4]


def linear(dtype: torch.dtype = torch.float32, *, bias: bool = False, width: int = 96) -> nn.Linear:
    torch.manual_seed(0)
    layer = nn.Linear(width, 80, bias=bias)
    return layer.to(dtype).requires_grad_(False)


def test_a_busy_machine_does_not_make_bfloat16_look_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products in float32 that wait for a core, and slow ones in bfloat16 that do not."""

    def product(left: torch.Tensor, _: torch.Tensor) -> None:
        began = time.thread_time()
        while left.dtype is torch.bfloat16 and time.thread_time() < began + 0.002:
            pass
        time.sleep(0.01 if left.dtype is torch.float32 else 0.0)

    monkeypatch.setattr(quantized.torch, "matmul", product)
    assert not quantized.computes_in_half.__wrapped__()


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("offset", [0.0, 1.0], ids=["llama", "gemma"])
def test_a_norm_in_one_kernel_is_that_of_transformers(offset: float, dtype: torch.dtype, near: float) -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm: Any = (Gemma3RMSNorm if offset else LlamaRMSNorm)(96, eps=1e-5).requires_grad_(False).to(dtype)
    norm.weight.copy_(torch.randn(96, generator=torch.Generator().manual_seed(0)))
    x = torch.randn(1, 5, 96, generator=torch.Generator().manual_seed(1)).to(dtype)
    found = FusedNorm(norm, offset)(x)
    assert found.dtype == dtype
    assert torch.allclose(found.float(), norm(x).float(), rtol=near, atol=near)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_to_the_nearest_quant(dtype: torch.dtype) -> None:
    layer = linear(dtype)
    weight = layer.weight.float()
    eight = Linear8(layer).unpacked().float()
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    slack = 1.0 if dtype is torch.float32 else 2.5  # of half a step: bfloat16 rounds what is unpacked once more
    assert ((eight - weight).abs() <= slack * 0.5001 * step).all()
    four = Linear4(layer).unpacked().float()
    groups = weight.reshape(80, -1, GROUP)
    step = ((groups.amax(-1) - groups.amin(-1)) / 15).repeat_interleave(GROUP, dim=1)
    slack = 1.05 if dtype is torch.float32 else 1.3  # scale and middle are rounded, too
    assert ((four - weight).abs() <= slack * 0.5001 * step).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 65])
def test_a_product_is_that_of_the_unpacked_weights(kind: type, dtype: torch.dtype, bias: bool, rows: int) -> None:
    layer = linear(dtype, bias=bias)
    if bias:
        layer.bias.copy_(torch.randn(80, generator=torch.Generator().manual_seed(2)))
    small = kind(layer)
    x = torch.randn(1, rows, 96, generator=torch.Generator().manual_seed(1)).to(dtype)
    expected = x.double() @ small.unpacked().double().t() + (layer.bias.double() if bias else 0.0)
    found = small(x)
    assert found.shape == (1, rows, 80)
    assert found.dtype == dtype
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    assert (found.double() - expected).abs().max() <= tolerance * expected.abs().max()


def stored(model: nn.Module) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_memory_is_what_the_plan_says(dtype: str) -> None:
    whole = loading.load(str(DEMO_MODEL), window=None, device=CPU, dtype=dtype, packed=False)
    for weights in BITS:
        small = loading.load(str(DEMO_MODEL), window=None, device=CPU, dtype=dtype, weights=weights)
        assert small.parameters == whole.parameters
        share = stored(small.model.model.layers) / stored(whole.model.model.layers)
        planned = bytes_per_weight(weights, whole.dtype.itemsize) / whole.dtype.itemsize
        assert share == pytest.approx(planned, rel=0.02)
        assert f"{BITS[weights]}-bit weights" in small.name
    assert whole.name.endswith("target")


@pytest.mark.parametrize("weights", ["8bit", "4bit"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "phi3"])
def test_greedy_hierarchical_is_greedy_plain(
    weights: str, kind: str, tiny: Callable[..., str], book: Document, tmp_path: Path
) -> None:
    given = {"num_draft_tokens": 2, "num_pending_tokens": 6, "retrieval_budget": 64, "refresh_every": 2}
    session = Session.load(
        EngineConfig(tiny(kind, spread=0.1), tiny("llama", seed=1, layers=1, width=32), 4096, weights=weights, **given)  # type: ignore[arg-type]
    )
    list(session.read(book))
    answers = []
    for mode in ("hierarchical", "plain"):
        *_, done = session.ask(Question("Where is the key?", sampling=SamplingParams(max_tokens=40), mode=mode))
        assert isinstance(done, AnswerDone)
        answers.append(done)
    assert answers[0].token_ids == answers[1].token_ids
    assert answers[0].figures.verify.proposed > 0
    session.close()


def test_a_saved_reading_belongs_to_its_weights(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    sources = []
    for weights in ("stored", "8bit", "4bit", "8bit"):
        config = EngineConfig(tiny("llama"), context=4096, weights=weights, snapshot_folder=str(tmp_path))
        session = Session.load(config)
        *_, done = session.read(book)
        assert isinstance(done, BookRead)
        sources.append(done.source)
        session.close()
    assert sources == ["read", "read", "read", "snapshot"]


def test_fingerprints_tell_weights_apart(tiny: Callable[..., str]) -> None:
    loaded = [
        loading.load(tiny("llama"), window=256, device=CPU, weights=weights) for weights in ("stored", "8bit", "4bit")
    ]
    assert len({persistence.model_fingerprint(decoder) for decoder in loaded}) == 3


def test_what_cannot_be_rounded_is_refused(tiny: Callable[..., str]) -> None:
    with pytest.raises(ModelError, match="groups of 32"):
        loading.load(tiny("llama", width=48), window=256, device=CPU, weights="4bit")
    with pytest.raises(OptionError, match="8bit"):
        EngineConfig("m", weights="2bit")
