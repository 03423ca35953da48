"""Defines views. A view gives one pass access to a cache: through the view the pass reads the cache's keys and values,
and adds the keys and values of its own tokens.

A view computes attention (``attend``), and runs recurrent layers on their states (``recur``). If every layer's KV is
resident on the compute device in the compute dtype, ``in_place`` returns the memory as tensors, and kernels read and
write it directly. If a pass can be repeated on the same memory with only a few numbers changed, ``fixed`` returns a
form of the pass that can be recorded.
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

    ``unturned`` is the memory of keys before RoPE; None if such keys are not stored. A cache that reallocates its
    memory makes a new object, so that the addresses in one object never change.
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
        observe: called after the pass, once for each layer, with the layer, its queries (1, heads, n, head_dim) and its
            scaling; None if there is no observer.
    """

    blocks: Blocks
    start: int
    positions: torch.Tensor
    observe: Callable[[int, torch.Tensor, float], None] | None = None


class View(States, Protocol):
    """Gives one forward pass access to the KV in a cache.

    A layer without KV of its own reads the KV of another layer, which runs earlier in every pass.
    """

    def positions(self, count: int) -> torch.Tensor | None:
        """The positions (count,) to which a backend rotates the new tokens' queries and keys by RoPE; None if
        ``attend`` rotates them instead.
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
        """Store the keys k and values v of the new tokens, and compute the attention of their queries q. k and v are
        None in a layer without KV of its own. Shapes as in ``engine.model.attention``.
        """

    def in_place(self, count: int) -> InPlace | None:
        """Return the memory of all layers' KV, so that a pass over ``count`` new tokens can write its KV there without
        this view. None if some KV is not resident on the compute device in the compute dtype, or if the memory is too
        small.
        """

    def fixed(self, count: int) -> FixedForm | None:
        """The form in which a pass over ``count`` new tokens can be recorded; None if it cannot be recorded."""


class KeepsQueries(View, Protocol):
    """A view that keeps the queries of each layer for an observer."""

    @property
    def queries(self) -> Sequence[torch.Tensor]: ...


class FixedForm(Protocol):
    """A form of a pass that can be recorded, because its operations and its memory do not depend on the position of its
    tokens.

    The pass is padded to ``count`` tokens; no token sees the padding. ``places`` are the numbers that change from pass
    to pass, such as the position of the first token. ``bound`` identifies everything else that a recording depends on.
    A recording is invalid for a pass with a different ``bound``.
    """

    @property
    def count(self) -> int: ...

    @property
    def places(self) -> list[int]: ...

    @property
    def bound(self) -> Hashable: ...

    def ordinary(self) -> KeepsQueries:
        """Make the view for the ordinary pass, which is not recorded."""

    def at(self, places: torch.Tensor) -> KeepsQueries:
        """Make the view for a recorded pass, which reads ``places`` from this tensor on the device, so that the pass
        can be replayed with other numbers.
        """

    def observe(self, queries: Sequence[torch.Tensor], scaling: Callable[[int], float]) -> None:
        """Pass each layer's queries to an observer, except the queries of padding tokens. ``scaling`` returns the
        scaling of a layer's scores.
        """


class FixedView:
    """The methods of ``View`` that are the same for all passes of fixed form."""

    def recur(self, layer: int, count: int, advance: object) -> torch.Tensor:
        raise ValueError(f"a pass through layer {layer}, which has states, cannot be recorded")

    def in_place(self, count: int) -> None:
        """Return None, because ``InPlace`` needs the places of tokens as numbers, and a recording has them in a
        tensor.
        """

    def fixed(self, count: int) -> None:
        """Return None, because this view already belongs to a fixed form."""
