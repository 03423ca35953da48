"""Defines a cache's side of a pass: a view of its keys and values, which the pass reads and extends.

A view computes attention (``attend``), and runs recurrent layers on their states (``recur``). Where all KV lies in one
memory in the compute dtype, the view also gives that memory as tensors (``in_place``), from which a backend takes
addresses. Where a pass can be repeated on the same memory with other numbers, the view has a ``fixed`` form for
recording.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from engine.model.recurrent import States


@dataclass(frozen=True, eq=False)
class Blocks:
    """The memory of all layers' keys and values, each (kv_heads, capacity, head_dim), in the model's dtype.

    ``unturned`` is the memory of keys before RoPE; None if they are not stored. A cache that reallocates makes a new
    object.
    """

    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]
    unturned: tuple[torch.Tensor, ...] | None = None


@dataclass(frozen=True)
class InPlace:
    """The memory of all layers' KV, which a pass reads and to which it writes its new KV.

    Args:
        blocks: the memory.
        start: the slot of the first new token, which sees all earlier slots.
        positions: (n,), the positions to which RoPE rotates queries and keys.
        observe: called after the pass with each layer, its queries (1, heads, n, head_dim) and their scaling; None if
            there is no observer.
    """

    blocks: Blocks
    start: int
    positions: torch.Tensor
    observe: Callable[[int, torch.Tensor, float], None] | None = None


class View(States, Protocol):
    """The view through which one forward pass attends. A layer that reads another layer's KV stores no KV; the other
    layer runs earlier in every pass.
    """

    def positions(self, count: int) -> torch.Tensor | None:
        """The positions (count,) to which RoPE rotates the new tokens' queries and keys; None if the view rotates them
        itself.
        """

    def attend(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        scaling: float,
        sinks: torch.Tensor | None = None,
        cap: float | None = None,
    ) -> torch.Tensor:
        """Store the new tokens' k and v, and compute their attention. Shapes as in ``engine.model.attention``."""

    def in_place(self, count: int) -> InPlace | None:
        """The memory for a pass over ``count`` new tokens, if all KV lies in one memory in the compute dtype; else
        None. The caller writes the KV of the new tokens into it.
        """

    def fixed(self, count: int) -> FixedForm | None:
        """The form of a pass over ``count`` new tokens that can be recorded; None if there is none."""


class KeepsQueries(View, Protocol):
    """A view that keeps each layer's queries of its pass for an observer."""

    @property
    def queries(self) -> Sequence[torch.Tensor]: ...


class FixedForm(Protocol):
    """A form of a pass in which operations and memory do not depend on the position of its tokens.

    The pass is padded to ``count`` tokens; no token sees the padding. ``places`` are the numbers that change from pass
    to pass. ``bound`` is everything else that a recording depends on.
    """

    @property
    def count(self) -> int: ...

    @property
    def places(self) -> list[int]: ...

    @property
    def bound(self) -> Hashable: ...

    def ordinary(self) -> KeepsQueries:
        """The view for the ordinary pass, which is not recorded."""

    def at(self, places: torch.Tensor) -> KeepsQueries:
        """The view for a pass at places that only the device knows."""

    def observe(self, queries: Sequence[torch.Tensor], scaling: Callable[[int], float]) -> None:
        """Show an observer the queries of the pass's tokens in each layer, without padding. ``scaling`` gives the
        scaling of a layer.
        """


class FixedView:
    """The part of ``View`` that all passes of fixed form share."""

    def recur(self, layer: int, count: int, advance: object) -> torch.Tensor:
        raise ValueError(f"a pass through layer {layer}, which has states, cannot be recorded")

    def in_place(self, count: int) -> None:
        """Return None, because a recording knows the tokens' places only as tensors."""

    def fixed(self, count: int) -> None:
        """Return None, because this view is itself the fixed form."""
