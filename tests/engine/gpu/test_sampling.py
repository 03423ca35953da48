"""Drawing on a simulated card: no wait, and no sort of the vocabulary for any token."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from engine.config import SamplingParams
from engine.decode import verify
from engine.decode.verify import Sampler, draw, make_generator
from tests.engine.gpu import simulated_cuda as simulated_cuda_module
from tests.engine.gpu.simulated_cuda import Gpu, simulated_cuda

GPU = torch.device("cuda", 0)
WORDS = 5_000


@pytest.mark.parametrize("top_k", [None, 20])
def test_a_nucleus_is_selected_and_not_sorted(top_k: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = (3 * torch.randn(4, WORDS, generator=torch.Generator().manual_seed(1))).bfloat16()
    params = SamplingParams(temperature=0.7, top_p=0.9, top_k=top_k)
    ordered: list[int] = []
    added: list[int] = []
    real = simulated_cuda_module.dispatch_here

    def watched(gpu: Gpu, func: Any, args: Any, *rest: Any) -> Any:
        name = func.overloadpacket.__name__
        if name in ("sort", "topk", "argsort", "msort"):
            ordered.append(args[1] if name == "topk" else args[0].shape[-1])
        if name == "scatter_add_":
            added.append(args[2].shape[-1])
        return real(gpu, func, args, *rest)

    monkeypatch.setattr(simulated_cuda_module, "dispatch_here", watched)
    with simulated_cuda("lazy") as gpu:
        given, generator = logits.to(GPU), make_generator(1, GPU)
        waits = Counter(gpu.waits)
        exact, drafted = Sampler(params)(given), Sampler(params).drafting()(given)
        assert isinstance(exact, torch.Tensor)
        assert isinstance(drafted, torch.Tensor)
        tokens = draw(drafted, generator)
        assert not gpu.waits - waits
        assert max(ordered) <= 128
        assert added == ([] if top_k else [WORDS] * 2), "the zeros that top-k leaves all go to one address"
        found, few, tokens = exact.cpu(), drafted.cpu(), tokens.cpu()
    scaled = logits.float() / 0.7
    if top_k:
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[:, -1:], float("-inf"))
    expected = verify._nucleus_by_sorting(torch.softmax(scaled, -1), 0.9)
    assert torch.allclose(found, expected, atol=1e-6)
    assert (few.gather(1, tokens[:, None]) > 0).all()
    assert ((few > 0) <= (found > 0)).all(), "no token that the nucleus has not"
