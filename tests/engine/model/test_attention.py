"""The fast attention paths against the plain definition in double precision, and the merge of pieces."""

from __future__ import annotations

import pytest
import torch

from engine.model import attention, kernels
from engine.model.attention import Seen
from engine.model.kernels import cpu, native


def definition(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    causal: bool,
    window: int = 1 << 30,
    cap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Softmax attention spelled out; with ``causal`` the queries are the last positions of the keys."""
    group = q.shape[1] // k.shape[1]
    k, v = k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    scores = q.double() @ k.transpose(-1, -2) * scaling
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    if causal:
        n, seq = q.shape[2], k.shape[2]
        own = (seq - n + torch.arange(n)).unsqueeze(1)
        seen = (torch.arange(seq) <= own) & (torch.arange(seq) > own - window)
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def with_sinks(expected: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """What is left where each head has one more score, of a value of zeros."""
    whole = torch.logaddexp(lse, sinks.double()[None, :, None])
    return expected * (lse - whole).exp().unsqueeze(-1)


def tensors(heads: int, kv_heads: int, n: int, seq: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    return (
        torch.randn(1, heads, n, dim, generator=g),
        torch.randn(1, kv_heads, seq, dim, generator=g),
        torch.randn(1, kv_heads, seq, dim, generator=g),
    )


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2), (6, 1)])
@pytest.mark.parametrize("n", [1, 5, 64])
@pytest.mark.parametrize("seq", [1, 7, 5000])
def test_attend_is_exact(heads: int, kv_heads: int, n: int, seq: int) -> None:
    q, k, v = tensors(heads, kv_heads, n, seq, 32)
    out, lse = attention.attend(q, k, v, 0.2)
    expected, expected_lse = definition(q, k, v, 0.2, causal=False)
    assert torch.allclose(out.double(), expected, atol=2e-6)
    assert torch.allclose(lse.double(), expected_lse, atol=1e-5)


@pytest.mark.parametrize("splits", [2, 4, 16])
@pytest.mark.parametrize("seq", [4096, 5003])
def test_split_keys_are_exact(splits: int, seq: int) -> None:
    q, k, v = tensors(3, 3, 4, seq, 16, seed=splits)
    kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    out, lse = kernels.split_attend(q, k, v, splits, lambda a, b, c: kernel(a, b, c, 0.0, False, scale=0.3))
    expected, expected_lse = definition(q, k, v, 0.3, causal=False)
    assert torch.allclose(out.double(), expected, atol=2e-6)
    assert torch.allclose(lse.double(), expected_lse, atol=1e-5)


def test_split_count_keeps_workers_busy() -> None:
    assert cpu.splits(heads=8, seq=100_000, workers=8) == 1
    assert cpu.splits(heads=2, seq=100_000, workers=8) == 4
    assert cpu.splits(heads=1, seq=100_000, workers=132) == 16
    assert cpu.splits(heads=1, seq=3_000, workers=132) == 1


def test_split_count_leaves_no_worker_waiting_for_the_last_head() -> None:
    assert cpu.splits(heads=3, seq=32_768, workers=2) == 2
    assert cpu.splits(heads=8, seq=32_768, workers=6) == 3
    assert cpu.splits(heads=3, seq=1_024, workers=2) == 1, "short keys are not worth a merge"


@pytest.mark.parametrize("own", [True, False], ids=["own kernels", "torch alone"])
@pytest.mark.parametrize("n", [1, 13, 72, 73, 700])
@pytest.mark.parametrize(("past", "window"), [(0, 50), (40, 50), (900, 50), (900, 1000), (1100, 1000)])
def test_a_window_hides_what_lies_before_it(
    past: int, window: int, n: int, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not own:
        monkeypatch.setattr(native, "own", lambda: None)
    q, k, v = tensors(6, 3, n, past + n, 16, seed=past)
    expected, lse = definition(q, k, v, 0.2, causal=True, window=window)
    assert torch.allclose(attention.attend_newest(q, k, v, 0.2, window).double(), expected, atol=2e-6)
    sinks = torch.linspace(-1.0, 6.0, 6)
    found = attention.attend_newest(q, k, v, 0.2, window, sinks).double()
    assert torch.allclose(found, with_sinks(expected, lse, sinks), atol=2e-6)


@pytest.mark.parametrize("own", [True, False], ids=["own kernels", "torch alone"])
@pytest.mark.parametrize("cap", [2.0, 50.0])
@pytest.mark.parametrize("n", [1, 13, 200])
@pytest.mark.parametrize(("past", "window"), [(0, None), (900, None), (900, 50)])
def test_scores_stay_below_their_cap(
    past: int, window: int | None, n: int, cap: float, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whatever path: from a few tokens in one call to those of a graph, and with scores of up to 20."""
    if not own:
        monkeypatch.setattr(native, "own", lambda: None)
    q, k, v = tensors(6, 3, n, past + n, 16, seed=past)
    expected, _ = definition(q, k, v, 1.0, causal=True, window=window or past + n, cap=cap)
    found = attention.attend_newest(q, k, v, 1.0, window, cap=cap)
    assert torch.allclose(found.double(), expected, atol=3e-6)
    if own:
        return
    whole, places = torch.arange(past + n), torch.arange(past, past + n)[:, None]
    seen = (whole <= places) & (whole > places - (window or past + n))
    others = [attention._attend_windows(q, k, v, 1.0, window or past + n, None, cap)]
    others.append(attention.attend_seen(q, k, v, 1.0, Seen(seen), cap=cap))
    if window is None:
        new = torch.ones(n, n, dtype=torch.bool).tril()
        others.append(attention.attend_past_and_seen(q, k, v, 1.0, past, Seen(new), cap=cap))
        parts = [attention.attend(q, k[:, :, :past], v[:, :, :past], 1.0, cap)]
        others.append(attention.merge([*parts, attention.attend_causal(q, k[:, :, past:], v[:, :, past:], 1.0, cap)]))
    for found in others:
        assert torch.allclose(found.double(), expected, atol=3e-6)


@pytest.mark.parametrize(("past", "window"), [(0, None), (1500, None), (0, 100), (1500, 600)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 3), (8, 1)])
def test_many_tokens_in_half_precision_see_what_each_alone_would(
    heads: int, kv_heads: int, past: int, window: int | None
) -> None:
    """A book that is read in bfloat16: in turn by our kernel where it multiplies pairs, else by torch's."""
    n = 211
    q, k, v = (x.bfloat16() for x in tensors(heads, kv_heads, n, past + n, 64, seed=past))
    expected, _ = definition(q, k, v, 0.125, causal=True, window=window or past + n)
    out = attention.attend_newest(q, k, v, 0.125, window)
    assert (out.double() - expected).abs().max() < 2e-2
    if cpu.reads_in_pairs(q) and window is None:  # a row's bits do not depend on those around it
        for at in (0, 1, 95, 96, n - 1):
            keys, values = (x[:, :, : past + at + 1] for x in (k, v))
            alone = attention.attend_newest(q[:, :, at : at + 1], keys, values, 0.125)
            assert torch.equal(out[:, :, at : at + 1], alone)


@pytest.mark.parametrize("n", [1, 2, 13, 64])
@pytest.mark.parametrize("past", [8_190, 8_191, 12_288])
def test_new_tokens_behind_keys_in_pieces_see_what_they_should(
    n: int, past: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    q, k, v = tensors(6, 3, n, past + n, 16, seed=past)
    expected, lse = definition(q, k, v, 0.2, causal=True)
    assert cpu.splits(3, past, 2) > 1
    assert torch.allclose(attention.attend_newest(q, k, v, 0.2).double(), expected, atol=2e-6)
    monkeypatch.setattr(native, "own", lambda: None)  # whose parts are merged
    sinks = torch.linspace(-1.0, 9.0, 6)
    found = attention.attend_newest(q, k, v, 0.2, sinks=sinks).double()
    assert torch.allclose(found, with_sinks(expected, lse, sinks), atol=2e-6)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (8, 2)])
@pytest.mark.parametrize("n", [1, 2, 33])
@pytest.mark.parametrize("past", [0, 1, 300])
def test_past_and_new_merge_to_causal_attention(heads: int, kv_heads: int, n: int, past: int) -> None:
    q, k, v = tensors(heads, kv_heads, n, past + n, 32, seed=past)
    parts = [
        attention.attend(q, k[:, :, :past], v[:, :, :past], 0.2),
        attention.attend_causal(q, k[:, :, past:], v[:, :, past:], 0.2),
    ]
    expected, lse = definition(q, k, v, 0.2, causal=True)
    assert torch.allclose(attention.merge(parts).double(), expected, atol=2e-6)
    assert torch.allclose(attention.attend_newest(q, k, v, 0.2).double(), expected, atol=2e-6)
    sinks, seen = torch.linspace(-1.0, 6.0, heads), torch.ones(n, n, dtype=torch.bool).tril()
    whole = torch.cat([torch.ones(n, past, dtype=torch.bool), seen], dim=1)
    for found in (
        attention.joined(parts, sinks),
        attention.attend_newest(q, k, v, 0.2, sinks=sinks),
        attention.attend_seen(q, k, v, 0.2, Seen(whole), sinks),
        attention.attend_past_and_seen(q, k, v, 0.2, past, Seen(seen), sinks),
    ):
        assert torch.allclose(found.double(), with_sinks(expected, lse, sinks), atol=2e-6)


@pytest.mark.parametrize("n", [65, 130])
def test_many_new_tokens_take_the_merged_path(n: int) -> None:
    q, k, v = tensors(4, 2, n, 400, 32)
    expected, _ = definition(q, k, v, 0.2, causal=True)
    assert torch.allclose(attention.attend_newest(q, k, v, 0.2).double(), expected, atol=2e-6)


def test_merge_of_many_pieces_in_any_order() -> None:
    q, k, v = tensors(4, 2, 3, 900, 16)
    cuts = [(500, 900), (0, 1), (1, 500)]
    parts = [attention.attend(q, k[:, :, a:b], v[:, :, a:b], 0.25) for a, b in cuts]
    expected, _ = definition(q, k, v, 0.25, causal=False)
    assert torch.allclose(attention.merge(parts).double(), expected, atol=2e-6)


def test_plain_path_is_the_definition() -> None:
    q, k, v = tensors(3, 3, 6, 40, 8)
    out, lse = kernels.plain(q, k, v, 0.5)
    expected, expected_lse = definition(q, k, v, 0.5, causal=False)
    assert torch.allclose(out.double(), expected, atol=1e-6)
    assert torch.allclose(lse.double(), expected_lse, atol=1e-6)


def test_large_scores_do_not_overflow() -> None:
    q, k, v = tensors(2, 2, 2, 50, 8)
    out, lse = attention.attend(100 * q, 100 * k, v, 1.0)
    assert torch.isfinite(out).all()
    assert torch.isfinite(lse).all()
