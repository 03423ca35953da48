"""What the host launches and waits for in a round, counted on the simulated device with a tiny pair whose tokens are
all accepted. Neither depends on the width of a model, only on its layers and on where their KV lies."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from engine.config import GREEDY, EngineConfig
from engine.decode import rounds
from engine.decode.drafters import ModelDrafter
from engine.decode.levels import Hierarchy
from engine.decode.rounds import Context, full_pass
from engine.decode.verify import make_generator, make_sampler
from engine.kv.full import FullCache
from engine.kv.offload import Placement, Tier
from engine.kv.retrieval import QueryRecorder
from engine.model import decoder, loading
from engine.model.graphs import Replays
from engine.model.kernels import cuda
from tests.engine.gpu.simulated_cuda import Gpu, simulated_cuda

DRAFTED, PASSES = 3, 2
"""Of the round that is counted: tokens that the draft proposes for a middle pass, and these passes."""

GPU = torch.device("cuda", 0)
_WORDS, _BOOK, _WINDOW, _SAID = 64, 200, 1024, 9
_WARM, RECORDED = 1, 4  # rounds before the one that is counted: caches catch up; all shapes are recorded


@dataclass(frozen=True)
class Calls:
    """Launches and waits of the host."""

    launches: int
    waits: int

    def __add__(self, other: Calls) -> Calls:
        return Calls(self.launches + other.launches, self.waits + other.waits)

    def __sub__(self, other: Calls) -> Calls:
        return self + other * -1

    def __mul__(self, times: int) -> Calls:
        return Calls(times * self.launches, times * self.waits)


@dataclass(frozen=True)
class RoundCalls:
    """Of each part, with what is drawn and accepted in it, and of the whole: the drafted tokens of a middle pass, this
    pass, and all that a verification and the end of the round take."""

    draft: Calls
    middle: Calls
    verify: Calls

    @property
    def whole(self) -> Calls:
        return self.draft * PASSES + self.middle * PASSES + self.verify


def _pair(folder: Path, layers: tuple[int, int], head_dim: int) -> list[str]:
    """Folders of two models with the proportions of Llama-3.1-8B's heads and widths, which say one word for ever."""
    from transformers import LlamaConfig, LlamaForCausalLM

    made = []
    for at, count in enumerate(layers):
        shape = LlamaConfig(
            vocab_size=_WORDS,
            hidden_size=8 * head_dim,
            intermediate_size=28 * head_dim,
            num_hidden_layers=count,
            num_attention_heads=8,
            num_key_value_heads=2,
            max_position_embeddings=_WINDOW,
        )
        model: Any = LlamaForCausalLM(shape)
        for weights in model.parameters():
            weights.data.fill_(1.0 if weights.dim() == 1 else 0.0)
        model.model.embed_tokens.weight.data.fill_(1.0)
        model.lm_head.weight.data[_SAID] = 1.0
        model.save_pretrained(folder / str(at))
        made.append(str(folder / str(at)))
    return made


def load_once() -> None:
    """Load a model outside of the simulation: transformers settles some things in the first load of a process, and no
    later one has RoPE's frequencies if that one is inside."""
    with tempfile.TemporaryDirectory() as folder:
        loading.load(_pair(Path(folder), (1, 1), 16)[0], window=64, device=torch.device("cpu"))


def round_calls(
    layers: tuple[int, int], *, middle: str, spilled: Iterable[int] = (), recorded: bool = False, head_dim: int = 16
) -> RoundCalls:
    """Of a round in which everything is accepted.

    Args:
        layers: of the target and of the draft.
        middle: as ``EngineConfig.middle``.
        spilled: layers whose KV lies in host memory.
        recorded: whether passes are replayed, as far as they can be.
    """
    config = EngineConfig(
        model="m",
        draft="d",
        middle=middle,
        graphs="auto" if recorded else "off",
        retrieval_budget=32,
        num_draft_tokens=DRAFTED,
        num_pending_tokens=PASSES * (DRAFTED + 1),
        num_lookup_tokens=0,
        refresh_every=1000,
    )
    away = frozenset(spilled)
    placement = Placement(tuple(Tier.HOST if at in away else Tier.DEVICE for at in range(layers[0])))
    with (
        tempfile.TemporaryDirectory() as folder,
        simulated_cuda("eager") as gpu,
        torch.no_grad(),
        mock.patch.object(Replays, "is_faster", return_value=True),
        mock.patch.object(cuda, "measured", return_value={"flash": 1.0}),  # which is fastest is not simulated
    ):
        target, draft = (
            loading.load(name, window=_WINDOW, device=GPU, dtype="bfloat16")
            for name in _pair(Path(folder), layers, head_dim)
        )
        full = FullCache(target.kv_shape.indexed(8), _WINDOW, placement)
        found = _counted(gpu, Hierarchy(config, target, draft, full), target, full, recorded)
        full.clear()
    return found


def _counted(gpu: Gpu, hierarchy: Hierarchy, target: decoder.Decoder, full: FullCache, recorded: bool) -> RoundCalls:
    queries = QueryRecorder(target.num_layers)
    full_pass(hierarchy.verify, full, 0, [_SAID] * _BOOK, queries)
    full.advance(_BOOK)
    sampler, generator = make_sampler(GREEDY, target.ids([])), make_generator(0, target.token_device)
    context = Context(hierarchy.verify, full, [_SAID] * (_BOOK + 1), sampler, generator, frozenset(), _WINDOW)
    rounds.start(context, hierarchy.retrieval, hierarchy.drafter, queries)
    spent = dict.fromkeys(("draft", "middle"), Calls(0, 0))

    def watched(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def inner(*args: Any, **options: Any) -> Any:
            _await_copies(full)
            before = _calls(gpu)
            out = work(*args, **options)
            spent[name] += _calls(gpu) - before
            return out

        return inner

    with (
        mock.patch.object(ModelDrafter, "propose", watched("draft", ModelDrafter.propose)),
        mock.patch.object(rounds, "_middle_pass", watched("middle", rounds._middle_pass)),
    ):
        speculation = hierarchy.speculation(hierarchy.fixed, None)
        made = rounds.hierarchical(context, hierarchy.retrieval, hierarchy.drafter, speculation)
        for _ in range(RECORDED if recorded else _WARM):
            next(made)
        spent |= dict.fromkeys(spent, Calls(0, 0))
        _await_copies(full)
        before = _calls(gpu)
        done = next(made)
        _await_copies(full)
        whole = _calls(gpu) - before
    assert done.passes == PASSES
    assert len(done.tokens) == PASSES * (DRAFTED + 1) + 1
    draft, middle = (Calls(part.launches // PASSES, part.waits // PASSES) for part in spent.values())
    found = RoundCalls(draft, middle, whole - draft * PASSES - middle * PASSES)
    assert found.whole == whole
    return found


def _await_copies(full: FullCache) -> None:
    """Until the threads that bring layers have launched what they began: else that counts where it comes late."""
    wait([buffer.job for staging in full._stagings.values() for buffer in staging._buffers if buffer.job is not None])


def _calls(gpu: Gpu) -> Calls:
    """So far, those of a replay as one."""
    return Calls(gpu.launches - gpu.replayed, sum(gpu.waits.values()))
