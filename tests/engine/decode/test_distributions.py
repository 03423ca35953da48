"""Distributions that are computed where they are asked: by the definition, by transformers, and as tensors are."""

from __future__ import annotations

import math

import pytest
import torch
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from engine.config import SamplingParams
from engine.decode import distributions
from engine.decode.distributions import (
    NO_TOKEN,
    JoinedRows,
    KernelRows,
    PointMasses,
    draw_from,
    kernel_rows,
    likeliest,
    patched,
)
from engine.decode.verify import Sampler, confidences, draw, instead, joined, make_generator, make_sampler
from engine.decode.verify import rejection_sample as judged
from tests.engine.dense import dense

LARGE = 151_936
SETTINGS = [(0.7, 0, 1.0), (0.7, 20, 0.8), (0.6, 0, 0.9), (1.0, 0, 0.999999), (1.3, 50, 1.0), (1.0, 1, 0.5)]


@pytest.fixture(autouse=True)
def kernels() -> None:
    if kernel_rows(torch.zeros(1, 32)) is None:
        pytest.skip("llvmlite does not know this processor")


def logits_of(rows: int, vocabulary: int, spread: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocabulary + rows)
    return (spread * torch.randn(rows, vocabulary, generator=generator)).to(dtype)


def by_definition(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> torch.Tensor:
    """In float64: tokens in the order of their probabilities, equal ones by their ids."""
    scaled = logits.double() / temperature
    if top_k:
        scaled = scaled.masked_fill(scaled < scaled.topk(top_k).values[..., -1:], -math.inf)
    law = scaled.softmax(-1)
    ordered, order = torch.sort(law, dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.zeros_like(law).scatter_(-1, order, ordered.masked_fill(before >= top_p, 0.0))
    return kept / kept.sum(-1, keepdim=True)


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("vocabulary", "spread"), [(50, 2.0), (384, 0.0), (4096, 0.3), (4096, 4.0)])
def test_rows_are_as_the_definition_says(
    vocabulary: int, spread: float, dtype: torch.dtype, setting: tuple[float, int, float]
) -> None:
    """In bfloat16, and with all alike, tokens tie; 50 are no multiple of a vector."""
    logits = logits_of(3, vocabulary, spread, dtype)
    rows = kernel_rows(logits, *setting)
    assert rows is not None
    found, expected = dense(rows, vocabulary), by_definition(logits, *setting)
    assert float((found - expected).abs().sum(1).max()) < 3e-6
    tokens = torch.cat([found[:2].argmax(1), torch.tensor([vocabulary - 1])])
    assert torch.equal(rows.of(tokens), found.gather(1, tokens.unsqueeze(1)).squeeze(1)), "the very same bits"


@pytest.mark.parametrize("spread", [0.3, 4.0])
def test_a_large_vocabulary_as_transformers_has_it(spread: float) -> None:
    """With its own processors, which sort all of it."""
    logits = logits_of(1, LARGE, spread)
    for temperature, top_k, top_p in SETTINGS:
        theirs = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
        theirs += [TopKLogitsWarper(top_k)] if top_k else []
        theirs += [TopPLogitsWarper(top_p)] if top_p < 1.0 else []
        # In float64: in float32 their sum ends 6e-6 too early where top-p is close to 1.
        expected = theirs(torch.LongTensor([[0]]), logits.double()).softmax(-1)
        rows = kernel_rows(logits, temperature, top_k, top_p)
        assert rows is not None
        found = rows.row(0)
        assert float((found - expected[0]).abs().sum()) < 3e-6, (temperature, top_k, top_p)
        # Weights that differ by a rounding alone may change places at the border.
        assert int((found > 0).sum()) == pytest.approx(int((expected > 0).sum()), abs=2)


def test_tensors_keep_all_that_top_p_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where our kernels do not run: the sum of float32 reached 0.999999 some 750 of 114,000 tokens too early."""
    monkeypatch.setattr(distributions.native, "own", lambda: None)
    logits = logits_of(1, LARGE, 0.3)
    found = Sampler(SamplingParams(temperature=1.0, top_p=0.999999))(logits)
    assert isinstance(found, torch.Tensor)
    expected = by_definition(logits, 1.0, 0, 0.999999)
    assert int((found > 0).sum()) == pytest.approx(int((expected > 0).sum()), abs=2)


@pytest.mark.parametrize("penalty", [1.0, 1.3])
@pytest.mark.parametrize("setting", SETTINGS[:5], ids=str)
def test_the_same_chances_give_the_same_tokens_as_tensors(
    setting: tuple[float, int, float], penalty: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is proven of tensors by enumeration holds of rows: acceptance, residual, bonus, with and without a draft's
    distributions, with a point mass among them."""
    temperature, top_k, top_p = setting
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, repetition_penalty=penalty)
    sampler = make_sampler(params, torch.tensor([3, 5, 3]))
    for seed in range(30):
        ours = logits_of(5, 64 + seed, 2.0)
        drafts = ours[:4] + logits_of(4, 64 + seed, 1.0)
        found = []
        for rows in (True, False):
            with monkeypatch.context() as patch:
                if not rows:
                    patch.setattr(distributions.native, "own", lambda: None)
                generator = make_generator(seed, torch.device("cpu"))
                laws = [sampler(drafts[at : at + 1]) for at in range(4)]
                laws[1] = instead(torch.tensor([seed % 2 == 0]), torch.tensor([7]), laws[1])
                proposed = torch.cat([draw(law, generator) for law in laws])
                q = joined(laws, 4)
                assert isinstance(q, JoinedRows) == rows
                p = sampler(ours, proposed)
                found.append(
                    (proposed.tolist(), judged(proposed, q, p, generator), judged(proposed, None, p, generator))
                )
                if q is not None and rows and not isinstance(q, torch.Tensor):
                    assert q[1:3].of(proposed[1:3]).tolist() == q.of(proposed)[1:3].tolist()
        assert found[0] == found[1]


def test_what_is_likeliest_and_how_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        logits = logits_of(9, 4096, 1.0, dtype)
        logits[3, 5:900:7] = 9.0
        tokens = likeliest(logits)
        assert tokens.tolist() == [int((row == row.max()).nonzero()[0]) for row in logits]
        assert int(tokens[3]) == 5, "the first of several"
        sure = confidences(logits, tokens)
        assert torch.allclose(sure, logits.float().softmax(-1).amax(-1), atol=1e-6)
    assert likeliest(torch.tensor([[0.0, 2.0, 1.0]])).tolist() == [1]


def test_rows_that_are_not_finite_give_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels and tensors alike; kernels left such values out, and the answer went on with what was left."""
    nan, settings = float("nan"), ((0.0, 0, 1.0), (0.7, 0, 1.0), (0.7, 20, 1.0), (0.7, 0, 0.8), (0.7, 20, 0.8))
    for dtype in (torch.float32, torch.bfloat16):
        logits = logits_of(5, 4096, 1.0, dtype)
        logits[1], logits[2, 777], logits[3, 5] = nan, nan, math.inf
        for rows in (True, False):
            with monkeypatch.context() as patch:
                if not rows:
                    patch.setattr(distributions.native, "own", lambda: None)
                for temperature, top_k, top_p in settings:
                    law = Sampler(SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p))(logits)
                    drawn = draw(law, make_generator(1, torch.device("cpu")))
                    assert (drawn < 0).tolist() == [False, True, True, True, False]
                    for row in (1, 2, 3):
                        proposed = logits[row : row + 1].argmax(-1)
                        sampled = judged(proposed, None, law[row : row + 2], make_generator(1, torch.device("cpu")))
                        assert sampled.tokens == (NO_TOKEN,), "a token that such a row follows is never accepted"


def test_draws_are_by_the_cumulative_distribution() -> None:
    row = torch.tensor([0.0, 0.5, 0.0, 1.5, 0.0] * 256)
    reached = row.double().cumsum(0) / row.double().sum()
    for chance in (0.0, 0.2499, 0.5, 0.7777, 1.0 - 1e-12):
        assert draw_from(row.numpy(), chance) == int((reached > chance).nonzero()[0])
    assert row[draw_from(row.numpy(), math.nextafter(1.0, 0.0))] > 0


def test_point_masses() -> None:
    rows = PointMasses(torch.tensor([4, 1]), 6)
    assert rows.of(torch.tensor([4, 4])).tolist() == [1.0, 0.0]
    assert rows[1:].row(0).tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    with pytest.raises(IndexError):
        JoinedRows([rows]).row(2)


def test_a_whole_row_is_not_kept_for_every_token() -> None:
    """17 rows of a large vocabulary are 10 MB in float32; what is kept beside the logits is a few numbers a row."""
    rows = kernel_rows(logits_of(3, LARGE, 1.0, torch.bfloat16), 0.7, 0, 0.8)
    assert isinstance(rows, KernelRows)
    assert rows.stats.numel() == 3 * 5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_likeliest_token_with_a_few_changed_is_that_of_the_changed_whole(dtype: torch.dtype) -> None:
    """Of few values, so that many are equal, and of one that no token of a row keeps; nothing is left of the search."""
    generator = torch.Generator().manual_seed(0)
    for count in (0, 1, 9, 64):
        logits = torch.randint(-3, 4, (8, 64), generator=generator).to(dtype)
        ids = torch.randint(-1, 64, (8, count), generator=generator)
        ids[0] = -1
        if count == 64:
            ids[1] = torch.arange(64)
        found = logits.gather(1, ids.clamp(min=0)).float()
        patches = ids, torch.minimum(found * 1.5, found / 1.5)
        before = logits.clone()
        with torch.inference_mode():
            assert torch.equal(likeliest(logits, patches), patched(logits, patches).argmax(-1))
        assert torch.equal(logits, before)
    for bad in (math.nan, math.inf):
        for changed in (0.0, bad):  # among the others, or among the changed
            logits = torch.zeros(1, 64, dtype=dtype)
            logits[0, 3 if changed else 9] = bad
            assert likeliest(logits, (torch.tensor([[3]]), torch.tensor([[changed]]))).tolist() == [NO_TOKEN]
