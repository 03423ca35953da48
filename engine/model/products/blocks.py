"""Computes linear layers and embeddings whose weights stay in the format of a GGUF file.

The weights of ``BlockLinear`` and ``BlockEmbedding`` are views of the file's bytes. An embedding dequantizes rows on
use. A linear layer is packed for our own kernels (``PackedBlocks``): its blocks are copied into panels, interleaved
(``engine.model.kernels.emit.blocks``), and the file's pages are released. Layers with the same input are computed as
one joint product, even if their formats differ: each tensor of the file is a segment of the product (``Segment``) with
its own kernel call, and all segments write into one result.

Because blocks are interleaved, each lane of a SIMD vector holds a different output. So one multiplication applies the
scales of 16 outputs, and no sum over lanes is needed. Interleaving takes 0.7 s for each GB, once per start.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn

from engine.model.kernels import abi
from engine.model.kernels.abi import KIND, is_paired
from engine.model.kernels.formats import FORMATS, Format
from engine.model.products import fixed

if TYPE_CHECKING:
    from engine.model.kernels.native import Native
    from engine.model.kernels.program import Call

FLOATS = {0: torch.float32, 1: torch.float16, 30: torch.bfloat16}
"""Formats without blocks, keyed by GGML's number for the kind of a tensor."""

ROWS_AT_ONCE = 64
"""Maximum rows of a packed embedding that are unpacked at once. The maximum is small, because unpacking a row takes the
memory of a whole panel.
"""


# Number of weights that are dequantized to float32 at once (``Stored.expanded``): 16 MiB, which is faster than a whole
# matrix.
_EXPANDED_AT_ONCE = 1 << 22


class Stored(NamedTuple):
    """A matrix of weights in a file's format.

    Args:
        data: the rows as bytes (outputs, bytes of a row).
        kind: GGML's number for the format.
        inputs: number of weights in a row.
        order: (outputs,), the index in ``data`` of the row of each output; None if ``data`` is in the order of outputs.
        release: releases the memory of the rows, and is called when the rows will not be read again.
    """

    data: torch.Tensor
    kind: int
    inputs: int
    order: np.ndarray[Any, np.dtype[np.int64]] | None = None
    release: Callable[[], None] = lambda: None

    @property
    def outputs(self) -> int:
        return self.data.shape[0] if self.order is None else len(self.order)

    def values(self, ids: torch.Tensor | None = None) -> torch.Tensor:
        """Dequantize the weights of the outputs ``ids`` (n,), or of all outputs if ``ids`` is None, with the package
        gguf. Return them in float32 (n, inputs).
        """
        from gguf import GGMLQuantizationType, dequantize

        rows = self.data.numpy()
        if self.order is not None:
            rows = rows[self.order if ids is None else self.order[ids.numpy()]]
        elif ids is not None:
            rows = rows[ids.numpy()]
        return torch.from_numpy(dequantize(rows, GGMLQuantizationType(self.kind)).reshape(-1, self.inputs).copy())

    def expanded(self, dtype: torch.dtype, device: torch.device | None = None) -> torch.Tensor:
        """Dequantize all weights (outputs, inputs) to ``dtype`` on ``device`` (None: in host memory). A few rows at a
        time are in host memory in float32, so that host memory never holds what a GPU shall hold.
        """
        made = torch.empty(self.outputs, self.inputs, dtype=dtype, device=device)
        for ids in torch.arange(self.outputs).split(max(1, _EXPANDED_AT_ONCE // self.inputs)):
            made[int(ids[0]) : int(ids[-1]) + 1] = self.values(ids).to(dtype)
        return made


class BlockLinear(nn.Module):
    """A linear layer whose weights stay in the blocks of a file. It dequantizes them for each product, which is slow,
    and is therefore usually replaced by a packed layer.

    Args:
        parts: the layer's weights, or those of several joined layers in the order of outputs.
        dtype: dtype of the layer's inputs.
    """

    def __init__(self, parts: Stored | Sequence[Stored], bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.parts = (parts,) if isinstance(parts, Stored) else tuple(parts)
        self.in_features, self.out_features = self.parts[0].inputs, sum(part.outputs for part in self.parts)
        self.dtype = dtype
        self.weight = fixed(self.parts[0].data)
        self.bias = None if bias is None else fixed(bias)

    def values(self) -> torch.Tensor:
        """Dequantize all weights (out, in) to float32."""
        return torch.cat([part.values() for part in self.parts])

    def expanded(self) -> torch.Tensor:
        """Dequantize all weights (out, in) to ``dtype``."""
        made = [part.expanded(self.dtype) for part in self.parts]
        return made[0] if len(made) == 1 else torch.cat(made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(self.dtype)
        return nn.functional.linear(x, self.values().to(self.dtype), bias)


class BlockEmbedding(nn.Module):
    """An embedding that keeps its rows in the blocks of a file, and dequantizes the rows that it looks up.

    Args:
        embedding: transformers' embedding, which this replaces.
        dtype: dtype of the returned rows.
    """

    bias = None

    def __init__(self, stored: Stored, embedding: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.in_features, self.out_features = stored.inputs, stored.outputs
        self.stored, self.dtype = stored, dtype
        self.weight = fixed(stored.data)
        self.embed_scale = getattr(embedding, "embed_scale", None)
        self.embed_norm = getattr(embedding, "embed_norm", None)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = self.stored.values(ids.flatten()).to(self.dtype).view(*ids.shape, self.in_features)
        rows = rows if self.embed_scale is None else rows * self.embed_scale.to(self.dtype)
        return rows if self.embed_norm is None else self.embed_norm(rows)


class BlockExperts(nn.Module):
    """The experts of a layer in the blocks of a GGUF file.

    Args:
        experts: transformers' experts, without weights.
        found: tensors ``gate``, ``up`` and ``down``, or ``gate_up`` and ``down``, each with ``.weight`` and possibly
            ``.bias``. A tensor holds the matrices of all experts, stacked.
        dtype: dtype of activations.

    Raises:
        KeyError: a tensor is missing. ValueError: a tensor has a wrong shape.
    """

    def __init__(self, experts: Any, found: Mapping[str, Stored], dtype: torch.dtype) -> None:
        super().__init__()
        for name in ("act_fn", "alpha", "limit"):
            if hasattr(experts, name):
                setattr(self, name, getattr(experts, name))
        self.is_transposed, self.is_concatenated = experts.is_transposed, experts.is_concatenated
        # In a tuple, so that the experts without weights are no part of this module
        self._given = (experts,)
        count, shapes = len(experts.down_proj), shapes_of_experts(experts, joined="gate_up.weight" in found)
        self._matrices = {name: _split(found[f"{name}.weight"], count, *shapes[name]) for name in shapes}
        self._biases = {
            name: found[f"{name}.bias"].values().view(count, shapes[name][0])
            for name in shapes
            if f"{name}.bias" in found
        }
        self._dtype, self._count = dtype, count

    def linear_layers(self, name: str) -> Iterator[BlockLinear]:
        """Yield the matrix ``name`` of every expert as a linear layer: "gate_up_proj", whose outputs begin with the
        gates, or "down_proj".
        """
        parts = self._parts(name)
        for expert in range(self._count):
            biases = [self._biases[part][expert] for part in parts if part in self._biases]
            matrices = [self._matrices[part][expert] for part in parts]
            yield BlockLinear(matrices, torch.cat(biases) if biases else None, self._dtype)

    def in_transformers(self) -> Any:
        """Give transformers' experts the weights and biases of all experts, dequantized to the dtype of activations.
        Return transformers' experts.
        """
        (experts,) = self._given
        for name, _ in list(experts.named_parameters()):
            setattr(experts, name, fixed(self._joined(name)))
        return experts

    def _joined(self, name: str) -> torch.Tensor:
        """Make transformers' parameter ``name`` of all experts."""
        if name.endswith("_bias"):
            held = {part: each.to(self._dtype) for part, each in self._biases.items()}
        else:
            held = {
                part: torch.stack([each.expanded(self._dtype) for each in self._matrices[part]])
                for part in self._parts(name)
            }
        found = [held[part] for part in self._parts(name.removesuffix("_bias"))]
        joined = torch.cat(found, dim=1) if self.is_concatenated else torch.stack(found, dim=2).flatten(1, 2)
        return joined.transpose(1, 2) if self.is_transposed and joined.dim() > 2 else joined

    def _parts(self, name: str) -> list[str]:
        return [part for part in _PARTS[name] if part in self._matrices]


def shapes_of_experts(experts: Any, joined: bool) -> dict[str, tuple[int, int]]:
    """The shape (out, in) of each matrix of one expert in a GGUF file. Gate and up are one matrix if ``joined`` is
    true.

    Args:
        experts: transformers' experts.
    """
    width, inner = experts.down_proj.shape[:0:-1] if experts.is_transposed else experts.down_proj.shape[1:]
    gates = {"gate_up": (2 * inner, width)} if joined else {"gate": (inner, width), "up": (inner, width)}
    return {**gates, "down": (width, inner)}


_PARTS = {"gate_up_proj": ("gate_up", "gate", "up"), "down_proj": ("down",)}
"""The names of the GGUF tensors that can form a weight of transformers' experts, keyed by the weight's name. The
outputs of those that a file has are joined in this order.
"""


def _split(stored: Stored, count: int, outputs: int, inputs: int) -> list[Stored]:
    """Split a tensor into the matrices (outputs, inputs) of ``count`` experts. Only the last matrix keeps the tensor's
    ``release``, because the tensor's memory is no longer needed when the last expert is packed.
    """
    if (stored.outputs, stored.inputs) != (count * outputs, inputs):
        raise ValueError(stored.data.shape)
    rows = stored.data.split(outputs)
    return [stored._replace(data=each, release=lambda: None) for each in rows[:-1]] + [stored._replace(data=rows[-1])]


def is_bfloat16(stored: Stored) -> bool:
    """Whether a tensor's weights are stored as bfloat16 numbers instead of blocks."""
    return FLOATS.get(stored.kind) is torch.bfloat16


class Segment:
    """The part of a joint product that belongs to one tensor of a file: the tensor's weights, packed in panels, and the
    kernel call.

    ``input_form`` names the form of the activations x that the call takes: "same" is x itself. ``Native.arranged_call``
    makes all other forms from x.

    Args:
        stored: the weights.
        input_form: "fixed" or "shares", the form of x for a format with blocks; or "pairs" if all parts of the joint
            product are bfloat16 and are stored as pairs.
        start: index of the segment's first output among the outputs of the joint product.
    """

    def __init__(self, stored: Stored, kernels: Native, input_form: str, start: int) -> None:
        self._kernels, self.start, self._inputs = kernels, start, stored.inputs
        self.form: Format | None = FORMATS.get(stored.kind)
        if self.form is not None:
            self.packed, self.input_form = self._interleaved(stored), input_form
        else:
            weight = stored.data.view(FLOATS[stored.kind])
            weight = weight if stored.order is None else weight[torch.from_numpy(stored.order)]
            self.packed, self.input_form = kernels.pack(weight.contiguous(), input_form == "pairs"), "same"
        stored.release()
        self.outputs, self.columns = stored.outputs, self.packed.shape[0] * kernels.columns

    def _interleaved(self, stored: Stored) -> torch.Tensor:
        kernels, form, slot = self._kernels, FORMATS[stored.kind], abi.Interleaved
        panels = -(-stored.outputs // kernels.columns)
        order = np.full(panels * kernels.columns, -1, np.int64)
        order[: stored.outputs] = np.arange(stored.outputs) if stored.order is None else stored.order
        packed = torch.empty(panels, self._inputs // form.values, form.held_bytes * kernels.columns, dtype=torch.uint8)
        arguments = {
            slot.BLOCKS: stored.data.data_ptr(),
            slot.ROW_BYTES: stored.data.stride(0),
            slot.ORDER: order.ctypes.data,
            slot.WEIGHTS: packed.data_ptr(),
            slot.INPUTS: self._inputs,
        }
        kernels.call(kernels.address("interleaved", form.number), abi.arguments(arguments), panels)
        return packed

    def first(self, panels: int) -> Segment:
        """Make a segment of the first panels, which shares this segment's weights."""
        one = copy.copy(self)
        one.packed = self.packed[:panels]
        one.outputs = one.columns = one.packed.shape[0] * self._kernels.columns
        return one

    def call(self, x: torch.Tensor, sums: torch.Tensor, units: torch.Tensor, out: torch.Tensor) -> Call:
        """Make the kernel call that multiplies x by the segment's weights and writes the result to the segment's
        columns of ``out``. x has the form ``input_form``; ``sums`` and ``units`` are what ``Native.arranged_call``
        computed from it.
        """
        kernels, slot = self._kernels, abi.Product
        if self.form is not None:
            name, kind = (
                ("product_fixed", (kernels.adds_dots,)) if self.input_form == "fixed" else ("product_blocks", ())
            )
            kernel = kernels.address(name, self.form.number, *kind)
        elif self.packed.dtype is torch.float16:
            kernel = kernels.address("product_halves")
        else:
            name = "product_pairs" if is_paired(self.packed) else "product"
            kernel = kernels.address(name, KIND[self.packed.dtype])
        others = {
            slot.SUMS: sums.data_ptr(),
            slot.UNITS: units.data_ptr(),
            slot.OUT: out.data_ptr() + out.element_size() * self.start,
        }
        return kernels.panels_call(kernel, x, self.packed, out, others)

    def unpack(self, panels: torch.Tensor, out: torch.Tensor, start: int) -> None:
        """Unpack the panels with the indices ``panels`` (n,), and write their weights, in the dtype of ``out``, into
        ``out`` (in, ...) from column ``start`` on.
        """
        kernels, slot = self._kernels, abi.Expanded
        if self.form is None:
            columns = kernels.unpack(self.packed[panels]).transpose(0, 1).reshape(self._inputs, -1)
            out[:, start : start + columns.shape[1]] = columns
            return
        arguments = {
            slot.WEIGHTS: self.packed.data_ptr(),
            slot.CHOSEN: panels.data_ptr(),
            slot.INPUTS: self._inputs,
            slot.OUT: out.data_ptr() + out.element_size() * start,
            slot.OUTPUTS: out.shape[1],
        }
        kernel = kernels.address("expanded", self.form.number, KIND[out.dtype])
        kernels.call(kernel, abi.arguments(arguments), len(panels))


def arranged_dtype(form: str) -> torch.dtype:
    """The dtype of activations in the form ``form`` (``Segment``): int32 for "fixed", otherwise float32. In the form
    "fixed" each int32 holds two 16-bit integers, in different layouts.
    """
    return torch.int32 if form == "fixed" else torch.float32
