"""The gated delta rule: exact in chunks and token by token, and the same bits whatever comes with a token."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.decode import rounds
from engine.kv.full import FullCache
from engine.kv.states import RecurrentLayer
from engine.model import loading, recurrent
from engine.model.kernels import native
from engine.model.recurrent import DeltaTrace, RecurrentState, in_chunks
from engine.quantization import StateSize

CPU = torch.device("cpu")
KEY_HEADS, HEADS, KEY_DIM, VALUE_DIM = 2, 4, 16, 32


def tokens(count: int, decays: float = 1.0) -> tuple[torch.Tensor, ...]:
    """Queries, keys, values, decays and rates of so many tokens, and a memory before them."""
    torch.manual_seed(count)
    q, k = (torch.nn.functional.normalize(torch.randn(count, KEY_HEADS, KEY_DIM), dim=-1) for _ in range(2))
    rates, memory = torch.rand(count, HEADS), torch.randn(HEADS, KEY_DIM, VALUE_DIM)
    return q, k, torch.randn(count, HEADS, VALUE_DIM), -decays * torch.rand(count, HEADS), rates, memory


def spelled_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    decays: torch.Tensor,
    rates: torch.Tensor,
    memory: torch.Tensor,
    *,
    corrects: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token by token and head by head, in float64."""
    memory, outs, updates = memory.double(), torch.zeros(v.shape).double(), torch.zeros(v.shape).double()
    for at in range(v.shape[0]):
        for head in range(HEADS):
            key, query = (part[at, head * KEY_HEADS // HEADS].double() for part in (k, q))
            memory[head] *= decays[at, head].double().exp()
            known = key @ memory[head] if corrects else 0.0
            updates[at, head] = (v[at, head].double() - known) * rates[at, head].double()
            memory[head] += key[:, None] * updates[at, head]
            outs[at, head] = query @ memory[head]
    return outs, updates, memory


@pytest.fixture(scope="module")
def widths() -> list[native.Native]:
    """As on processors with narrow and wide vectors, on any machine."""
    return [native.Native(workers=3, lanes=lanes) for lanes in (4, 16)]


@pytest.mark.parametrize("decays", [1e-3, 1.0, 40.0], ids=["keeps", "fades", "forgets"])
@pytest.mark.parametrize(("count", "rule"), [*((n, "delta") for n in (1, 5, 64, 65, 140)), (5, "scan"), (140, "scan")])
def test_chunks_and_kernel_follow_the_rule(count: int, rule: str, decays: float, widths: list[native.Native]) -> None:
    given = tokens(count, decays)
    expected = spelled_out(*(part.clone() for part in given), corrects=rule == "delta")
    ways = [in_chunks(*given, corrects=rule == "delta")]
    if count <= native.MOST_ROWS:
        ways += [kernels.delta(*given, rule=rule) for kernels in widths]
    for found in ways:
        for mine, theirs in zip(found, expected, strict=True):
            assert (mine.double() - theirs).abs().max() < 2e-5


@pytest.mark.parametrize(("wide", "rule"), [(False, "delta"), (True, "delta"), (True, "scan")])
def test_a_token_has_the_same_bits_alone_and_its_state_can_be_had_again(
    wide: bool, rule: str, widths: list[native.Native]
) -> None:
    kernels = widths[wide]
    q, k, v, decays, rates, memory = tokens(23)
    out, updates, last = kernels.delta(q, k, v, decays, rates, memory, rule=rule)
    whole = DeltaTrace(torch.zeros(26, 7), k, updates, decays, kernels)
    alone = RecurrentState(memory, torch.zeros(3, 7))
    for at in range(23):
        one = slice(at, at + 1)
        read, _, after = kernels.delta(q[one], k[one], v[one], decays[one], rates[one], alone.memory, rule=rule)
        assert torch.equal(read[0], out[at])
        alone = RecurrentState(after, alone.inputs)
        again = whole.first(at + 1).after(RecurrentState(memory, torch.zeros(3, 7)))
        assert torch.equal(again.memory, after)
    assert torch.equal(alone.memory, last)


def test_a_trace_of_chunks_leads_to_the_same_states() -> None:
    q, k, v, decays, rates, memory = tokens(9)
    whole = DeltaTrace(torch.arange(12.0)[:, None], k, in_chunks(q, k, v, decays, rates, memory)[1], decays, None)
    for count in (1, 4, 9):
        found = whole.first(count).after(RecurrentState(memory, torch.zeros(3, 1)))
        expected = in_chunks(q[:count], k[:count], v[:count], decays[:count], rates[:count], memory)[2]
        assert torch.allclose(found.memory, expected, atol=1e-5)
        assert found.inputs.flatten().tolist() == [count, count + 1, count + 2]


@pytest.mark.parametrize("own", [True, False], ids=["own kernels", "torch alone"])
def test_memory_that_ends_in_a_pass_leaves_the_states_as_they_were(
    own: bool, tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass is tried again, in all layers."""
    if not own:
        monkeypatch.setattr(native, "own", lambda: None)
    model = loading.load(tiny("qwen3_5_text"), window=64, device=CPU)
    cache = FullCache(model.kv_shape, 64)
    with torch.inference_mode():
        rounds.full_pass(model, cache, 0, list(range(10, 20)))
        cache.advance(10)
        expected = rounds.full_pass(model, cache, 10, [7, 8])
        real, left = recurrent.convolved, iter(range(1))

        def fails(inputs: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
            if next(left, None) is None:
                monkeypatch.setattr(recurrent, "convolved", real)
                raise MemoryError
            return real(inputs, taps)

        monkeypatch.setattr(recurrent, "convolved", fails)
        assert torch.equal(rounds.full_pass(model, cache, 10, [7, 8]), expected)
        assert cache.placement.spilled, "and some KV made room"
        cache.advance(2)
        cache.crop(11)
        once = rounds.full_pass(model, cache, 11, [9])
        cache.crop(11)
        assert torch.allclose(rounds.full_pass(model, cache, 11, [9]), once)
        cache.clear()


def test_a_layer_counts_what_it_is_never_shown() -> None:
    """A draft skips the middle of a long book: its state goes on behind the gap."""
    layer = RecurrentLayer(StateSize(1, 1, 1, 1, 2), torch.float32, CPU, 9)
    layer.move(100)
    assert layer.reaches(100)
    assert not layer.reaches(50)
