"""Stores the recurrent states of a layer without KV: the states after certain tokens, and traces of how the newest
tokens changed the state.

An older state cannot be recovered from a newer state. So a pass over a few tokens, such as a verification, leaves a
trace of every token. If the next pass begins after one of these tokens, the state after this token is computed from an
older state and the traces of the tokens in between. A trace is about fifty times smaller than a state. Applying the
traces takes half as long as the pass that left them, and is needed only for accepted tokens. (When a state was stored
for every token instead, passes over 4 to 33 tokens took at least five times as long, because a state has 2 MB in every
layer of Qwen3.5-9B; measured on two cores.)

Three states are stored: the state after the committed tokens, and the states before and after the newest pass. A pass
of the other level (over the retrieval cache or over the full cache) and the first pass after an answer was stopped
begin after the committed tokens. If memory runs out in a pass, the pass is repeated from the state before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from engine.model.recurrent import Advance, RecurrentState, Trace

if TYPE_CHECKING:
    from engine.quantization import StateSize


class RecurrentLayer:
    """The recurrent states of one layer, and the traces of its newest tokens.

    Args:
        size: dimensions of a state.
        dtype: the model's dtype.
        most: maximum number of newest tokens whose traces are stored; a longer pass leaves no traces.
    """

    def __init__(self, size: StateSize, dtype: torch.dtype, device: torch.device, most: int) -> None:
        self._size, self._dtype, self._device, self._most = size, dtype, device, most
        # States, keyed by the number of tokens after which they are the layer's state.
        self._states: dict[int, RecurrentState] = {}
        # Traces of passes in order, each with the number of tokens before the pass.
        self._traces: list[tuple[int, Trace]] = []
        self.clear()

    @property
    def allocated(self) -> int:
        """Bytes of the layer's states and traces."""
        traces = sum(trace.nbytes for _, trace in self._traces)
        return traces + sum(state.nbytes for state in self._states.values())

    def clear(self) -> None:
        """Forget all tokens."""
        held = {
            name: torch.zeros(size, dtype=dtype, device=self._device)
            for name, (size, dtype) in self.sizes(0, 0).items()
        }
        self._states, self._traces = {0: RecurrentState(**held)}, []

    def reaches(self, length: int) -> bool:
        """Whether the state after ``length`` tokens is stored or can be computed from traces."""
        return self._way_to(length) is not None

    def recur(self, start: int, count: int, advance: Advance, length: int) -> torch.Tensor:
        """Run a pass over the ``count`` tokens that follow the first ``start`` tokens. Forget all tokens from ``start``
        on that earlier passes computed.

        Args:
            length: committed tokens, at most ``start``.

        Returns:
            The pass's output, as ``advance`` returns it.
        """
        before = self._state(start)
        committed = before if start == length else self._state(length)
        out, after, trace = advance(before)
        self.crop(start)
        self._states = {length: committed, start: before, start + count: after}
        self._traces.append((start, trace))
        while self._traces and (self._traces[0][0] < length or start + count - self._traces[0][0] > self._most):
            del self._traces[0]
        return out

    def crop(self, length: int) -> None:
        """Forget all but the first ``length`` tokens."""
        self._states = {tokens: state for tokens, state in self._states.items() if tokens <= length}
        self._traces = [
            (start, trace.first(min(trace.count, length - start))) for start, trace in self._traces if start < length
        ]

    def move(self, count: int) -> None:
        """Skip ``count`` tokens: take the newest state, without a change, as the state after them. Forget all other
        states and traces.
        """
        newest = max(self._states)
        self._states, self._traces = {newest + count: self._states[newest]}, []

    def commit(self) -> None:
        """Do nothing, because each call of ``recur`` says how many tokens are committed."""

    def forget_uncommitted(self, length: int) -> None:
        """Do nothing, because the state after the committed tokens is always stored."""

    def gives(self, start: int, stop: int) -> int | None:
        """Return 0, because a copy of a state covers all tokens from the first on. None if the state after ``stop``
        tokens is not available.
        """
        return 0 if self.reaches(stop) else None

    def held(self, start: int, stop: int) -> Mapping[str, torch.Tensor]:
        """The state of the layer after its first ``stop`` tokens."""
        state = self._state(stop)
        return {"memory": state.memory, "inputs": state.inputs}

    def adopt(self, start: int, stop: int, tensors: Mapping[str, torch.Tensor], length: int) -> None:
        """Store ``tensors``, which ``held`` returned, as the state after ``stop`` tokens. Of all other states only that
        after ``length`` committed tokens is kept; none if ``length`` is negative.
        """
        here = {name: part.to(self._device, copy=True) for name, part in tensors.items()}
        kept = {length: self._state(length)} if length >= 0 else {}
        self._states, self._traces = {**kept, stop: RecurrentState(**here)}, []

    def sizes(self, start: int, stop: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and dtype of the tensors of a state, keyed by name."""
        size = self._size
        return {
            "memory": ((size.heads, size.key_dim, size.value_dim), torch.float32),
            "inputs": ((size.taps - 1, size.channels), self._dtype),
        }

    def _state(self, tokens: int) -> RecurrentState:
        """The state after the first ``tokens`` tokens."""
        way = self._way_to(tokens)
        if way is None:
            raise ValueError(f"a layer has states after {sorted(self._states)} tokens, not after {tokens}")
        state, traces = way
        for trace in traces:
            state = trace.after(state)
        return state

    def _way_to(self, tokens: int) -> tuple[RecurrentState, list[Trace]] | None:
        """A stored state, and the traces that lead from it to the state after ``tokens`` tokens; None if there is no
        such way.
        """
        for known in sorted((known for known in self._states if known <= tokens), reverse=True):
            reached, traces = known, []
            for start, trace in self._traces:
                if start == reached < tokens:
                    traces.append(trace.first(min(trace.count, tokens - start)))
                    reached += traces[-1].count
            if reached == tokens:
                return self._states[known], traces
        return None
