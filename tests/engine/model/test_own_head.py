"""A model's own draft head, against its published equations: what it computes, and where its weights are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.errors import ModelError
from engine.kv.hidden_states import HiddenStates
from engine.kv.streaming import StreamingCache
from engine.model import loading, own_head
from engine.model.own_head import DraftHead
from tests.engine.conftest import VOCABULARY
from tests.engine.heads import Reference, add_head

CPU = torch.device("cpu")


def loaded(folder: str, *, packed: bool = True) -> DraftHead:
    target = loading.load(folder, window=None, device=CPU, dtype="float32", packed=packed)
    settings = own_head.settings_in(folder, target.config)
    assert settings is not None
    return own_head.load(folder, settings, target)


def numbers(count: int, width: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(1)
    return torch.randn(count, width, generator=random), torch.randint(6, VOCABULARY, (count,), generator=random)


@pytest.mark.parametrize("packed", [True, False], ids=["own kernels", "torch"])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3_5_text"])
def test_a_head_computes_what_its_equations_say(
    kind: str, packed: bool, tiny: Callable[..., str], tmp_path: Path
) -> None:
    """Some tokens at once, others one by one, with states of the head itself before the last."""
    folder = add_head(tiny(kind), tmp_path / "model")
    head, reference = loaded(folder, packed=packed), Reference(folder)
    hidden, tokens = numbers(12)
    cache = StreamingCache(head.kv_shape, 4, 60, 64, head.rotate)
    with torch.inference_mode():
        found = []
        for start, stop in ((0, 9), (9, 10), (10, 12)):
            logits, states = head.read(tokens[start:stop], hidden[None, start:stop], cache.extend(stop - start))
            cache.advance(stop - start)
            found.append(logits)
        expected, own = reference(hidden, tokens)
        scale = expected.abs().max()
        assert (torch.cat(found) - expected).abs().max() < 2e-4 * scale
        assert torch.allclose(states[0, -1], own[-1], atol=2e-4 * float(own.abs().max()))
        further, _ = head.read(tokens[:1], states[:, -1:], cache.extend(1))
        expected, _ = reference(torch.cat([hidden, own[-1:]]), torch.cat([tokens, tokens[:1]]))
        assert (further[0] - expected[-1]).abs().max() < 2e-4 * scale
    assert head.parameters == sum(part.numel() for name, part in reference.weights.items() if name.startswith("mtp."))


@pytest.mark.parametrize("kind", ["qwen3_5_moe_text", "qwen3_next"])
def test_experts_that_are_stored_one_by_one_are_joined(kind: str, tiny: Callable[..., str], tmp_path: Path) -> None:
    hidden, tokens = numbers(5)
    found = []
    for apart in (False, True):
        head = loaded(add_head(tiny(kind), tmp_path / f"model-{apart}", apart=apart))
        cache = StreamingCache(head.kv_shape, 4, 60, 64, head.rotate)
        with torch.inference_mode():
            found.append(head.read(tokens, hidden[None], cache.extend(5))[0])
    assert torch.equal(*found)
    assert found[0].std() > 0.1


def test_a_head_of_another_size_is_refused(tiny: Callable[..., str], tmp_path: Path) -> None:
    folder = Path(add_head(tiny("llama"), tmp_path / "model"))
    whole = load_file(folder / "model.safetensors")
    target = loading.load(str(folder), window=None, device=CPU)
    for name, new in (("mtp.fc.weight", whole["mtp.fc.weight"][:, :-1]), ("mtp.norm.weight", None)):
        changed = {key: value.contiguous() for key, value in {**whole, name: new}.items() if value is not None}
        save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match="own draft head"):
            own_head.load(str(folder), own_head.config_of(target.config), target)


@pytest.mark.parametrize("kind", ["llama", "gemma4_text"])
def test_a_model_without_a_head_has_none(kind: str, tiny: Callable[..., str]) -> None:
    folder = tiny(kind)
    assert own_head.settings_in(folder, loading.settings_of(folder, None)) is None


def test_the_newest_hidden_states_are_those_of_the_context(tiny: Callable[..., str]) -> None:
    """Whatever is computed again, cut off, or skipped: what is held is what was noted last for each position."""
    target = loading.load(tiny("llama"), window=None, device=CPU)
    held, random = HiddenStates(target, 10), torch.Generator().manual_seed(2)
    known: dict[int, torch.Tensor] = {}
    for step in range(300):
        count, back = (int(torch.randint(1, most, (), generator=random)) for most in (14, 4))
        start = max(0, held.stop - back) if step % 17 else held.stop + 3
        states = torch.randn(1, count, 4, generator=random)
        held.note(start, states)
        known |= {start + at: states[0, at] for at in range(count)}
        if step % 5 == 0:
            held.crop(held.stop - 1)
        assert held.stop == start + count - (step % 5 == 0)
        assert held.stop - held.start >= min(10, count) - 1
        for position, own in enumerate(held.between(held.start, held.stop)[0], held.start):
            assert torch.equal(own, known[position])
    held.forget_before(held.stop - 1)
    assert held.stop - held.start == 1
