"""Runs another backend's passes on a GPU as recorded CUDA graphs (``engine.model.graphs``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from engine.model.backends import Backend
    from engine.model.graphs import Outputs, Replays
    from engine.model.pieces import Rope
    from engine.model.view import View


class RecordedBackend:
    """Records and replays the passes whose operations and memory do not depend on the position of the tokens
    (``FixedForm``). The inner backend runs all other passes.

    Args:
        inner: the backend whose passes are recorded.
        replays: the recordings of the passes over one cache.
    """

    def __init__(self, inner: Backend, replays: Replays) -> None:
        self._inner, self.replays = inner, replays

    @property
    def bits(self) -> int:
        return self._inner.bits

    @property
    def most_rows(self) -> int:
        return self._inner.most_rows

    @property
    def token_device(self) -> torch.device:
        return self._inner.token_device

    def ids(self, tokens: Sequence[int]) -> torch.Tensor:
        return self._inner.ids(tokens)

    def scaling(self, layer: int) -> float:
        return self._inner.scaling(layer)

    def decoding(self) -> AbstractContextManager[object]:
        return self._inner.decoding()

    def layer(self, index: int, hidden: torch.Tensor, rope: Rope, view: View) -> torch.Tensor:
        return self._inner.layer(index, hidden, rope, view)

    def forward(self, input_ids: torch.Tensor, view: View, rows: int | None = None) -> torch.Tensor:
        """Replay the pass if ``view`` has a fixed form for it, and give its queries to the view's observer. Otherwise
        the inner backend runs the pass.
        """
        count, inner = len(input_ids), self._inner
        form = view.fixed(count)
        if form is None:
            return inner.forward(input_ids, view, rows)

        def eager() -> Outputs:
            own = form.ordinary()
            logits = inner.forward(input_ids, own, rows)
            return (logits, *own.queries)

        def fixed(ids: torch.Tensor, places: torch.Tensor) -> Outputs:
            own = form.at(places)
            logits = inner.forward(ids, own, rows)
            return (logits, *own.queries)

        missing = form.count - count
        filled = functional.pad(input_ids, (0, missing)) if missing else input_ids
        key = (form.count,) if rows is None else (form.count, rows)
        logits, *queries = self.replays.run(key, eager, fixed, filled, inner.ids(form.places), bound=form.bound)
        form.observe(queries, inner.scaling)
        return logits[:count]

    def record_ahead(
        self,
        usual: Iterable[tuple[int, ...]],
        tokens_of: Callable[[int], Sequence[int]],
        view_of: Callable[[int], View | None],
    ) -> Iterator[None]:
        """Record the ``usual`` passes and those that ran before, except passes that are already recorded. Yield before
        each recording, so that the caller can stop. The caches stay unchanged, because the tokens of these passes are
        not committed.

        Args:
            usual: keys of passes, as ``Replays.run`` takes them.
            tokens_of: makes the input of a pass over the given number of tokens.
            view_of: makes the view of a pass over the given number of new tokens; None if the cache has no room.
        """
        view = view_of(1)
        form = None if view is None else view.fixed(1)
        for count, *rows in [] if form is None else self.replays.due(usual, form.bound):
            if (view := view_of(count)) is not None:
                yield
                with self.decoding(), self.replays.ahead():
                    self.forward(self.ids(tokens_of(count)), view, *rows)
