"""Where there is no GPU: what a CUDA graph does, done by a tape of tensor operations.

Recording runs the work once and writes down every operation with the very tensors that it was given and gave. A replay
runs no Python of the work: it does the operations again on the same memory, so whatever number the work looked up by
itself is as it was at the recording, as on a GPU. What a GPU cannot record, reading a number of the device, raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.engine.leaves import tree_leaves

_T = TypeVar("_T")
_READS = ("item", "_local_scalar_dense", "nonzero", "masked_select", "equal")


class Tape(TorchDispatchMode):
    """The operations of one recording."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in _READS:
            raise RuntimeError(f"{func} waits for the device, which cannot be recorded")
        out = func(*args, **(kwargs or {}))
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if func._schema.is_mutable:
            self._steps.append((func, args, kwargs or {}, []))
        elif not {_memory(x) for x in made} & {_memory(x) for x in given}:  # a view is where it is
            self._steps.append((func, args, kwargs or {}, made))
        return out

    def play(self) -> None:
        for func, args, kwargs, made in self._steps:
            again = func(*args, **kwargs)
            for old, new in zip(made, (x for x in tree_leaves(again) if isinstance(x, torch.Tensor)), strict=False):
                old.copy_(new)


def _memory(x: torch.Tensor) -> int:
    return x.untyped_storage().data_ptr()


class TapeRecorder:
    """Stands where ``CudaRecorder`` stands. Replays count as faster unless ``slow``.

    Args:
        spoil: what is done to a replay's logits, by the number of the replay.
    """

    def __init__(self, *, slow: bool = False, spoil: Callable[[int, torch.Tensor], object] | None = None) -> None:
        self._slow, self._spoil = slow, spoil
        self.recorded = self.replayed = 0

    def record(self, work: Callable[[], _T]) -> Callable[[], _T]:
        tape = Tape()
        with tape:
            out = work()
        self.recorded += 1

        def replay() -> _T:
            tape.play()
            if self._spoil is not None:
                self._spoil(self.replayed, next(iter(tree_leaves(out))))
            self.replayed += 1
            return out

        return replay

    def forget(self) -> None:
        """A tape holds no more than its tensors."""

    def milliseconds(self, work: Callable[[], object]) -> float:
        """An ordinary pass takes 1, a replay less, or more if it is to be slow."""
        before = self.replayed
        work()
        if self.replayed == before:
            return 1.0
        return 2.0 if self._slow else 0.5
