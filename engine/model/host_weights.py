"""Weights that wait in host memory beside a GPU: pinned, and brought one layer ahead of the one that computes.

A card that cannot hold a model leaves the weights of some layers there, and every pass brings them. Two pieces of the
card's memory take them in turns: while a layer computes, the next one comes over the bus on a stream of its own.
Between the calls of a layer its parameters are those in host memory, so whoever else reads weights finds them whole. Of
experts only those that are asked come, one after the other, by the hooks of accelerate.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from engine.devices import KINDS, pin, stream_of
from engine.model.experts import Experts
from engine.model.products import fixed

# Weights begin at multiples of so many bytes: more than any kernel asks of an address.
_ALIGNED = 256
_SLOTS = 2


class _Layer:
    """A decoder block whose weights lie in one piece of host memory."""

    def __init__(self, block: nn.Module, device: torch.device) -> None:
        self._named: list[tuple[nn.Module, str]] = []
        self._places: list[tuple[int, torch.Size, torch.dtype]] = []
        found: list[torch.Tensor] = []
        size = 0
        apart = {id(part) for mixture in block.modules() if isinstance(mixture, Experts) for part in mixture.modules()}
        for part in block.modules():
            for name, weights in part._parameters.items():
                if weights is None or id(part) in apart:
                    continue
                self._named.append((part, name))
                self._places.append((size, weights.shape, weights.dtype))
                found.append(weights.detach())
                size += -(-weights.nbytes // _ALIGNED) * _ALIGNED
            for name, buffer in part._buffers.items():
                part._buffers[name] = None if buffer is None else buffer.to(device)
        self.held = torch.empty(size, dtype=torch.uint8)
        if KINDS[device.type].streams:
            pin(self.held, device)
        self.own = self.within(self.held)
        for mine, given in zip(self.own, found, strict=True):
            mine.copy_(given)
        self.use(self.own)

    def within(self, memory: torch.Tensor) -> list[nn.Parameter]:
        """The weights as they lie in memory that has a copy of ``held``."""
        made = []
        for start, shape, dtype in self._places:
            count = shape.numel() * dtype.itemsize
            made.append(fixed(memory[start : start + count].view(dtype).view(shape)))
        return made

    def use(self, weights: list[nn.Parameter]) -> None:
        """Let the block compute with these."""
        for (part, name), held in zip(self._named, weights, strict=True):
            part._parameters[name] = held


class _Slot:
    """Memory of the device for one layer's weights; ``layer`` is whose it has, or is getting."""

    def __init__(self, layers: Mapping[int, _Layer], device: torch.device) -> None:
        self.memory = torch.empty(max(len(layer.held) for layer in layers.values()), dtype=torch.uint8, device=device)
        self.weights = {number: layer.within(self.memory) for number, layer in layers.items()}
        self.layer: int | None = None
        self.filled: Any = torch.cuda.Event() if KINDS[device.type].streams else None


class HostWeights:
    """The weights of decoder blocks that compute on one device and wait in host memory. Their calls bring them.

    Args:
        blocks: by the number of their layer.
    """

    def __init__(self, blocks: Mapping[int, nn.Module], device: torch.device) -> None:
        self._device, self._streams = device, KINDS[device.type].streams
        self._stream: Any = stream_of(device, "weights") if self._streams else None
        self._layers = {number: _Layer(block, device) for number, block in sorted(blocks.items())}
        self._slots = [_Slot(self._layers, device) for _ in range(min(_SLOTS, len(blocks)))]
        self._order = list(self._layers)
        self._current = self._slots[0]
        for number, block in blocks.items():
            before, after = self._hooks(number)
            block.register_forward_pre_hook(before)
            block.register_forward_hook(after)
        if self._stream is not None:  # what is on its way would read and write memory that others have by then
            for whole in (self, *(layer.held for layer in self._layers.values())):
                weakref.finalize(whole, self._stream.synchronize).atexit = False

    def _hooks(self, number: int) -> tuple[Callable[..., None], Callable[..., None]]:
        layer = self._layers[number]

        def before(*_: object) -> None:
            layer.use(self._bring(number).weights[number])

        def after(*_: object) -> None:
            layer.use(layer.own)

        return before, after

    def _bring(self, number: int) -> _Slot:
        """The slot with a layer's weights; the next layer's begin to come."""
        slot = self._holding(number)
        if slot is None:
            slot = self._other()
            self._begin(slot, number)
        if self._streams:
            torch.cuda.current_stream(self._device).wait_event(slot.filled)
        self._current = slot
        following = self._order[(self._order.index(number) + 1) % len(self._order)]
        if self._holding(following) is None:
            self._begin(self._other(), following)
        return slot

    def _holding(self, number: int) -> _Slot | None:
        return next((slot for slot in self._slots if slot.layer == number), None)

    def _other(self) -> _Slot:
        return next((slot for slot in self._slots if slot is not self._current), self._current)

    def _begin(self, slot: _Slot, number: int) -> None:
        held = self._layers[number].held
        slot.layer, memory = number, slot.memory[: len(held)]
        if not self._streams:
            memory.copy_(held)
            return
        # What has been enqueued so far may still read this slot.
        before = torch.cuda.current_stream(self._device).record_event()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(before)
            memory.copy_(held, non_blocking=True)
            slot.filled.record(self._stream)


def wait_in_host(blocks: Mapping[int, nn.Module], device: torch.device) -> dict[str, torch.Tensor]:
    """Let the weights of decoder blocks, by the number of their layer, wait in host memory: they are returned by their
    names in the model."""
    held: dict[str, torch.Tensor] = {}
    for number, block in blocks.items():
        for path, part in block.named_modules():
            if isinstance(part, Experts):
                from accelerate import cpu_offload

                own = {name: weights.data for name, weights in part.named_parameters()}
                held |= {f"model.layers.{number}.{path}.{name}": weights for name, weights in own.items()}
                cpu_offload(part, device, state_dict=own)
    HostWeights(blocks, device)
    for number, block in blocks.items():
        names = ((f"model.layers.{number}.{name}", weights) for name, weights in block.named_parameters())
        held |= {name: weights for name, weights in names if name not in held}
    return held
