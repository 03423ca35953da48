"""Passes of the cheap levels, recorded once and replayed: on a GPU a CUDA graph, so that Python does not set the pace.

A draft step and a middle pass have the same shapes again and again; only where their tokens stand differs, and that is
given in a tensor (``StreamingCache.extend_at``, ``RetrievalCache.extend_at``). The buffers that they write to are made
once and live as long as their cache, so a recording stays right when the selection is renewed, another book is read or
tokens are cropped: what lies in the buffers changes, not where they are.

A replay can cost speed, never the answer: what these levels say is only ever proposed. Even so a recording is taken
only if its first replay says what the ordinary pass says, and if it is faster here; an exception or a difference ends
all recording of the level, with a line in the log. ``--graphs off`` never begins. Full passes are not recorded: their
keys grow with every round, and attention over a long context is what they cost, not Python.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import torch

Pass = Callable[[], torch.Tensor]

_log = logging.getLogger(__name__)

# Passes of a shape before it is recorded; shapes that are; tokens of the longest such pass.
_RECORD_AFTER, _MAX_RECORDINGS, _MAX_TOKENS = 3, 12, 64
# Runs before a recording, in which libraries make what they keep; timed runs of which the best counts.
_WARM_UPS, _TIMED = 2, 3
# Largest difference of a replay's logits to those of the ordinary pass, as a share of the largest of them: other
# kernels round otherwise, more so in half precision, and a wrong pass is off by the whole.
_NEAR = {torch.float32: 1e-3, torch.float64: 1e-3}
_NEAR_HALF = 5e-2


class Recorder(Protocol):
    """Records work that launches the same operations on the same memory whenever it runs."""

    def record(self, work: Pass) -> Pass:
        """A replay of ``work``, which gives the same tensor every time, with new contents."""

    def milliseconds(self, work: Pass) -> float:
        """Milliseconds of ``work``, waited for."""


class CudaRecorder:
    """Records CUDA graphs on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def record(self, work: Pass) -> Pass:
        with torch.cuda.device(self._device):
            aside = torch.cuda.Stream(self._device)
            aside.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UPS):
                    work()
            graph = torch.cuda.CUDAGraph()
            # A capture waits for the whole device before it begins. Another thread may be bringing spilled layers
            # meanwhile; what it does is not part of this. The outer block puts the stream back: a capture that fails
            # leaves its own in place.
            with (
                torch.cuda.stream(torch.cuda.current_stream(self._device)),
                torch.cuda.graph(graph, capture_error_mode="thread_local"),
            ):
                out = work()

        def replay() -> torch.Tensor:
            graph.replay()
            return out

        return replay

    def milliseconds(self, work: Pass) -> float:
        torch.cuda.synchronize(self._device)
        began = time.perf_counter()
        work()
        torch.cuda.synchronize(self._device)
        return (time.perf_counter() - began) * 1000.0


def recorder_for(device: torch.device) -> Recorder | None:
    """The recorder of a device; None on a processor, where launching costs nothing."""
    return CudaRecorder(device) if device.type == "cuda" else None


class Replays:
    """The recorded passes of one level.

    Args:
        recorder: who records.
        level: its name, for the log.
        dtype: of the passes, whose logits come in float32 whatever they were computed in.
    """

    def __init__(self, recorder: Recorder, level: str, dtype: torch.dtype = torch.float32) -> None:
        self._recorder = recorder
        self._near = _NEAR.get(dtype, _NEAR_HALF)
        self._level = level
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._recordings: dict[tuple[int, ...], _Recording | None] = {}
        self.off = False
        """Whether recording has ended for good."""
        self.replayed = 0
        """Passes that were replayed."""

    def run(
        self, key: tuple[int, ...], eager: Pass, fixed: Callable[..., torch.Tensor], *inputs: torch.Tensor
    ) -> torch.Tensor:
        """Logits of one pass.

        Args:
            key: what shapes depend on; first the count of tokens.
            eager: the ordinary pass.
            fixed: the same pass of ``inputs``, with no number in it that changes from one pass to the next.
            inputs: small tensors on the device.
        """
        recording = self._recordings.get(key)
        if recording is not None and not self.off:
            try:
                out = recording.replay(inputs)
            except RuntimeError as error:
                self._give_up(f"a replay failed: {error}")
                return eager()
            self.replayed += 1
            return out
        self._seen[key] += 1
        known = key in self._recordings or len(self._recordings) >= _MAX_RECORDINGS
        if self.off or known or key[0] > _MAX_TOKENS or self._seen[key] < _RECORD_AFTER:
            return eager()
        return self._record(key, eager, lambda: _Recording(self._recorder, fixed, inputs), inputs)

    def _record(
        self, key: tuple[int, ...], eager: Pass, make: Callable[[], _Recording], inputs: tuple[torch.Tensor, ...]
    ) -> torch.Tensor:
        """Record a pass and hold the first replay against the ordinary pass, whose logits are returned."""
        expected = eager().clone()
        try:
            recording = make()
            off = _difference(recording.replay(inputs), expected)
            slow, fast = (self._best(work) for work in (eager, lambda: recording.replay(inputs)))
        except Exception as error:  # noqa: BLE001 - whatever a driver says, the ordinary pass is still there
            self._give_up(f"recording failed: {type(error).__name__}: {error}")
            return eager()  # the tokens' KV may be half written
        if not off <= self._near:
            self._give_up(f"the first replay differs by {off:.1e} of the largest logit")
            return eager()
        self._recordings[key] = recording if fast < slow else None
        what = "replayed" if fast < slow else "not replayed"
        _log.info("%s passes %s are %s: %.3f ms against %.3f", self._level, key, what, fast, slow)
        return expected

    def _best(self, work: Pass) -> float:
        return min(self._recorder.milliseconds(work) for _ in range(_TIMED))

    def _give_up(self, reason: str) -> None:
        self.off = True
        self._recordings = {}
        _log.warning("%s passes are not replayed any more: %s", self._level, reason)


class _Recording:
    """One recorded pass with the memory that its inputs are copied to."""

    def __init__(
        self, recorder: Recorder, fixed: Callable[..., torch.Tensor], inputs: tuple[torch.Tensor, ...]
    ) -> None:
        self._inputs = [given.clone() for given in inputs]
        self._replay = recorder.record(lambda: fixed(*self._inputs))

    def replay(self, inputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given)
        return self._replay().clone()  # the next replay writes to the same place


def _difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference as a share of the largest value; not a number counts as one. A head may leave tokens out, with
    logits of minus infinity: these must be the same ones, and count no further."""
    out = expected == float("-inf")
    if not torch.equal(out, found == float("-inf")):
        return float("inf")
    found, expected = (logits.masked_fill(out, 0.0) for logits in (found, expected))
    share = (found.float() - expected.float()).abs().max() / expected.float().abs().max().clamp(min=1e-9)
    return float(share.nan_to_num(nan=float("inf")))
