"""Keeps weights of a GPU's layers in pinned host memory, and brings them to the device before their layer computes.

If a GPU cannot hold a model, the weights of some layers stay in host memory, and every pass copies them to the GPU. The
GPU has two buffers for these weights: while a layer computes from one buffer, a separate stream copies the next layer
into the other buffer. Before and after each call of a layer, its parameters are the tensors in host memory, so that
code that reads weights between passes always finds complete tensors.

Only the chosen experts of a layer are copied, after the router has chosen them. While an expert computes, the next one
is copied. The buffers for experts have room for the experts of two layers. The most recently used experts stay on the
GPU for tokens that choose them again.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from engine.devices import KINDS, pin, stream_of
from engine.model.experts import Experts
from engine.model.products import fixed

# Weights begin at multiples of this number of bytes, because kernels require aligned addresses. No kernel requires
# more.
_ALIGNED = 256
# Number of layers whose weights fit into the buffers on the GPU: one computes while the next is copied.
_LAYERS = 2


class _Piece:
    """Weights that are copied to the device together, and lie contiguously in host memory.

    Args:
        named: the module that owns each weight tensor, and the tensor's name in this module.
        held: host memory of ``size`` bytes, a part of ``whole``.
        whole: one block of host memory for several pieces, which stays pinned as long as it exists.
    """

    def __init__(self, named: Sequence[tuple[nn.Module, str]], held: torch.Tensor, whole: torch.Tensor) -> None:
        self.held, self.whole, self._named = held, whole, named
        tensors = _found(named)
        self._kinds = [(weights.shape, weights.dtype) for weights in tensors]
        self._own = self._within(held)
        for mine, given in zip(self._own, tensors, strict=True):
            mine.copy_(given)
        self.wait()

    @staticmethod
    def size(named: Sequence[tuple[nn.Module, str]]) -> int:
        return sum(_whole(weights.nbytes) for weights in _found(named))

    def _within(self, memory: torch.Tensor) -> list[nn.Parameter]:
        """Make views of the weights in ``memory``, which has the same layout as ``held``."""
        made, start = [], 0
        for shape, dtype in self._kinds:
            count = shape.numel() * dtype.itemsize
            made.append(fixed(memory[start : start + count].view(dtype).view(shape)))
            start += _whole(count)
        return made

    def compute_in(self, memory: torch.Tensor) -> None:
        """Make the modules compute with the weights in ``memory``, a copy of ``held``."""
        self._use(self._within(memory))

    def wait(self) -> None:
        """Let the weights wait in host memory: set the modules' parameters to the weights there."""
        self._use(self._own)

    def _use(self, weights: list[nn.Parameter]) -> None:
        for (part, name), held in zip(self._named, weights, strict=True):
            part._parameters[name] = held


class _Slot:
    """Device memory for one piece. ``key`` names the piece in the slot, which may still be being copied."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.memory = torch.empty(size, dtype=torch.uint8, device=device)
        self.key: Hashable = None
        self.filled: Any = torch.cuda.Event() if KINDS[device.type].streams else None


class _Places:
    """Copies pieces of weights from host memory into slots on a device.

    Args:
        count: number of slots.
    """

    def __init__(self, pieces: Mapping[Any, _Piece], count: int, device: torch.device) -> None:
        self._pieces, self._device, self._streams = pieces, device, KINDS[device.type].streams
        self._stream: Any = stream_of(device, "weights") if self._streams else None
        size = max(len(piece.held) for piece in pieces.values())
        # in the order of use, the most recently used slot last
        self._slots = [_Slot(size, device) for _ in range(min(count, len(pieces)))]
        # A buffer or pinned memory is freed only after copies in progress have ended. Otherwise a copy could use memory
        # that has been given to another tensor.
        if self._stream is not None:
            for whole in (self, *{id(piece.whole): piece.whole for piece in pieces.values()}.values()):
                weakref.finalize(whole, self._stream.synchronize).atexit = False

    def bring(self, key: Hashable, following: Hashable = None) -> None:
        """Bring a piece to the device and let its modules compute with it. Then begin to copy the piece
        ``following``.
        """
        slot = self._begin(key)
        if self._streams:
            torch.cuda.current_stream(self._device).wait_event(slot.filled)
        self._pieces[key].compute_in(slot.memory)
        if following is not None:
            self._begin(following)

    def wait(self, key: Hashable) -> None:
        """Set the parameters of a piece's modules to the weights in host memory again, after the modules have
        computed.
        """
        self._pieces[key].wait()

    def _begin(self, key: Hashable) -> _Slot:
        """Return the slot of a piece. If no slot has the piece, begin to copy it into the slot that was not used for
        longest.
        """
        slot = next((slot for slot in self._slots if slot.key == key), self._slots[0])
        self._slots.remove(slot)
        self._slots.append(slot)
        if slot.key != key:
            slot.key = key
            self._copy(self._pieces[key].held, slot)
        return slot

    def _copy(self, held: torch.Tensor, slot: _Slot) -> None:
        memory = slot.memory[: len(held)]
        if not self._streams:
            memory.copy_(held)
            return
        # The copy waits for all work that is already enqueued, because this work may still read the slot.
        before = torch.cuda.current_stream(self._device).record_event()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(before)
            memory.copy_(held, non_blocking=True)
            slot.filled.record(self._stream)


def wait_in_host(blocks: Mapping[int, nn.Module], device: torch.device) -> dict[str, torch.Tensor]:
    """Move the weights of decoder blocks to host memory, from where each call of a block copies them to the device.
    ``blocks`` is keyed by the index of the layer. Return the weights in host memory, keyed by their names in the model.
    """
    mixtures = {
        number: part for number, block in blocks.items() for part in block.modules() if isinstance(part, Experts)
    }
    experts: dict[tuple[int, int], _Piece] = {}
    layers: dict[int, _Piece] = {}
    for number, block in sorted(blocks.items()):
        for part in block.modules():
            for name, buffer in part._buffers.items():
                part._buffers[name] = None if buffer is None else buffer.to(device)
        apart = mixtures.get(number)
        if apart is not None:
            each = [_named(pair) for pair in zip(apart.gates, apart.down, strict=True)]
            experts |= {(number, expert): piece for expert, piece in enumerate(_pinned(each, device))}
        layers[number] = _pinned([_named([block], apart)], device)[0]
    places = _Places(layers, _LAYERS, device)
    order = list(layers)
    for at, number in enumerate(order):
        following = order[(at + 1) % len(order)]
        before, after = _hooks(places, number, following if len(order) > 1 else None)
        blocks[number].register_forward_pre_hook(before)
        blocks[number].register_forward_hook(after)
    if experts:
        most = max(len(part.gates) for part in mixtures.values())
        held = _Places(experts, _LAYERS * most, device)
        for number, part in mixtures.items():
            part.fetch_by(_one_by_one(held, number))
    return {
        f"model.layers.{number}.{name}": weights
        for number, block in blocks.items()
        for name, weights in block.named_parameters()
    }


def _whole(count: int) -> int:
    """Round ``count`` bytes up to a multiple of ``_ALIGNED``."""
    return -(-count // _ALIGNED) * _ALIGNED


def _found(named: Sequence[tuple[nn.Module, str]]) -> list[torch.Tensor]:
    """Return the weight tensors that ``named`` lists."""
    return [weights.detach() for part, name in named if (weights := part._parameters[name]) is not None]


def _named(parts: Sequence[nn.Module], without: nn.Module | None = None) -> list[tuple[nn.Module, str]]:
    """List the weights of the modules ``parts``. The weights of ``without``, a module inside of one of them, are left
    out.
    """
    apart = set() if without is None else {id(part) for part in without.modules()}
    modules = (part for whole in parts for part in whole.modules() if id(part) not in apart)
    return [(part, name) for part in modules for name, weights in part._parameters.items() if weights is not None]


def _pinned(groups: Sequence[Sequence[tuple[nn.Module, str]]], device: torch.device) -> list[_Piece]:
    """Make a piece for each group of weights, all in one block of host memory. The block is pinned only for a device
    that has streams (``DeviceKind.streams``) and can therefore copy while it computes.
    """
    sizes = [_Piece.size(named) for named in groups]
    whole = torch.empty(sum(sizes), dtype=torch.uint8)
    if KINDS[device.type].streams:
        pin(whole, device)
    return [_Piece(named, held, whole) for named, held in zip(groups, whole.split(sizes), strict=True)]


def _hooks(places: _Places, number: int, following: int | None) -> tuple[Callable[..., None], Callable[..., None]]:
    """Make the functions to call before and after a layer. The first copies the layer's weights to the device and
    begins to copy those of the layer ``following``. The second sets the layer's parameters to the weights in host
    memory again.
    """

    def before(*_: object) -> None:
        places.bring(number, following)

    def after(*_: object) -> None:
        places.wait(number)

    return before, after


def _one_by_one(places: _Places, number: int) -> Callable[..., Iterator[tuple[int, torch.Tensor]]]:
    """Make the function for ``Experts.fetch_by`` of layer ``number``, which copies each chosen expert's weights to the
    device before it yields the expert.
    """

    def bring(asked: Iterator[tuple[int, torch.Tensor]]) -> Iterator[tuple[int, torch.Tensor]]:
        order = list(asked)
        following = [(number, expert) for expert, _ in order[1:]]
        for (expert, where), then in zip(order, [*following, None], strict=True):
            places.bring((number, expert), then)
            try:
                yield expert, where
            finally:
                places.wait((number, expert))

    return bring
