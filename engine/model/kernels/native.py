"""Computes products, norms and recurrences of a few rows with our own kernels. ``own`` returns the process's only set
of these kernels.

The kernels need llvmlite, and a model whose widths are multiples of the processor's SIMD width.
``engine.model.kernels.cpu`` decides whether attention uses these kernels or torch's.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext

import torch

from engine.model.kernels import abi
from engine.model.kernels.abi import KIND, MOST_ROWS, WIDE_DTYPES, bits, input_dtype, is_paired
from engine.model.kernels.compiled import Compiled
from engine.model.kernels.own_attention import OwnAttention
from engine.model.kernels.own_sampling import OwnSampling
from engine.model.kernels.program import EACH_ROW, Call
from engine.quantization import LAST_QUANT, QUANT_BITS, WORD_QUANTS

logger = logging.getLogger(__name__)

# Number of tiles for each worker into which a product is divided. With fewer tiles, some workers would wait for the
# others at the end. With more tiles, distributing them would take too long.
_TILES = 16
_NORM_ROWS = 16  # rows in a tile of ``norm``
# The place of every column of a panel whose columns are in the order ``abi.LOOKED_UP``
_PLACES = torch.tensor(abi.LOOKED_UP).argsort()


@functools.cache
def own() -> Native | None:
    """Return this process's only set of our own kernels; None if they cannot be compiled."""
    try:
        return Native(torch.get_num_threads())
    except Exception:  # torch's kernels are used if llvmlite is missing or does not know this processor
        logger.warning("no kernels of our own on this processor; torch's are used", exc_info=True)
        return None


def multiplies_pairs() -> bool:
    """Whether our own kernels can be used and this processor multiplies pairs of bfloat16 numbers."""
    kernels = own()
    return kernels is not None and kernels.multiplies_pairs


@contextmanager
def torch_alone() -> Iterator[None]:
    """Make torch compute only on the calling thread within this context, so that the threads of our own kernels have
    the other cores to themselves. The context is for decoding.

    torch has little to do between two of our kernels, and its threads would compete with ours for the cores: a step of
    plain decoding took 7 % longer, and a step that also scores chunks took twice as long (2 cores, SmolLM2-135M in
    bfloat16, 1,024 tokens).

    Outside of this context, for example while a book is read, the kernels' threads go to sleep soon. If they kept
    spinning, they would slow down torch's matrix products: reading went at 415 tokens a second instead of 488 (same
    machine and model, 7,680 tokens).
    """
    threads, kernels = torch.get_num_threads(), own()
    torch.set_num_threads(1)
    try:
        with kernels.pool.patient() if kernels else nullcontext():
            yield
    finally:
        torch.set_num_threads(threads)


class Native(Compiled):
    """Holds the kernels compiled for the loaded models, with a method to call each of them.

    Args:
        workers: number of computing threads.
        lanes: float32 numbers in a SIMD vector; None takes this processor's number.
    """

    def __init__(self, workers: int, lanes: int | None = None) -> None:
        super().__init__(workers, lanes)
        self.most_rows = MOST_ROWS
        self.attention, self.sampling = OwnAttention(self), OwnSampling(self)

    # Products --------------------------------------------------------------------------------------------------

    def pack(self, weight: torch.Tensor, pairs: bool = False) -> torch.Tensor:
        """Pack weights (out, in) as panels (panels, in, columns), with zeros after the last output.

        Args:
            pairs: whether to store pairs of inputs, (panels, in / 2, columns, 2). If the weights are quants, the
                columns are then in the order ``abi.LOOKED_UP``.
        """
        outputs, inputs = weight.shape
        panels = -(-outputs // self.columns)
        packed = weight.new_zeros(panels, *((inputs // 2, self.columns, 2) if pairs else (inputs, self.columns)))
        for panel in range(panels):
            rows = weight[panel * self.columns : (panel + 1) * self.columns]
            packed[panel, :, : rows.shape[0]] = rows.unflatten(1, (-1, 2)).transpose(0, 1) if pairs else rows.t()
        return packed[:, :, abi.LOOKED_UP].contiguous() if pairs and not weight.is_floating_point() else packed

    def insert(self, packed: torch.Tensor, first: int, weight: torch.Tensor) -> None:
        """Store weights (n, in) as the outputs ``first`` to ``first + n - 1`` of ``packed``, a result of ``pack``."""
        outputs = torch.arange(first, first + weight.shape[0])
        panels, columns = outputs // self.columns, outputs % self.columns
        if is_paired(packed) and not packed.is_floating_point():
            columns = _PLACES[columns]
        packed[panels, :, columns] = weight.unflatten(1, (-1, 2)) if is_paired(packed) else weight

    def unpack(self, packed: torch.Tensor) -> torch.Tensor:
        """Return the weights in ``packed``, the result of ``pack``, as panels (panels, in, columns)."""
        if not is_paired(packed):
            return packed
        if not packed.is_floating_point():
            packed = packed[:, :, _PLACES]
        return packed.transpose(2, 3).flatten(1, 2)

    def pack4(self, quants: torch.Tensor, pairs: bool = False) -> torch.Tensor:
        """Pack quants (out, in) from 0 to 15 as 32-bit words (panels, in / 8, columns). The quant of input ``8 * word +
        n`` begins at bit ``4 * n`` of the word.

        Args:
            pairs: whether to store bytes (panels, in / 4, columns, 2) instead. Of four inputs, the first two are in the
                lower bits of two bytes, and the last two in the upper bits.
        """
        if pairs:
            low, high = self.pack(quants, pairs=True).unflatten(1, (-1, 2)).unbind(2)
            return low | high << QUANT_BITS
        panels = self.pack(quants.to(torch.int32)).unflatten(1, (-1, WORD_QUANTS))
        words = torch.zeros_like(panels[:, :, 0])
        for place in range(panels.shape[2]):
            words |= panels[:, :, place] << QUANT_BITS * place
        return words

    def unpack4(self, words: torch.Tensor) -> torch.Tensor:
        """Return the quants in ``words``, the result of ``pack4``, as panels (panels, in, columns)."""
        if is_paired(words):
            both = torch.stack([words & LAST_QUANT, words >> QUANT_BITS], dim=2)
            return self.unpack(both.flatten(1, 2))
        places = QUANT_BITS * torch.arange(WORD_QUANTS, dtype=torch.int32)
        return ((words.unsqueeze(2) >> places[:, None]) & LAST_QUANT).flatten(1, 2)

    def product(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply x (rows, in) by packed weights. Returns (rows, panels * columns) in float32.

        Args:
            packed: the weights. If they are in pairs, x is rounded to bfloat16.
            scales: (panels * columns,), the scales of 8-bit weights.
        """
        # ``x`` refers to the converted tensor, which must live until the call ends, because the call holds only its
        # address.
        x = x.to(input_dtype(packed)).contiguous()
        out = torch.empty(x.shape[0], packed.shape[0] * packed.shape[2])
        self.run(x.shape[0], self.product_call(x, packed, scales, out))
        return out

    def product_call(
        self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor | None, out: torch.Tensor
    ) -> Call:
        """Make the kernel call that writes the product of x and ``packed`` to ``out``. x must have the dtype
        ``input_dtype(packed)``.
        """
        others: dict[int, int] = {}
        kinds = [KIND[packed.dtype]]
        if scales is not None:
            others, kinds = {abi.Product.SCALES: scales.data_ptr()}, [*kinds, KIND[scales.dtype]]
        name = "product_pairs" if is_paired(packed) else "product"
        return self.panels_call(self.address(name, *kinds), x, packed, out, others)

    def product4(self, x: torch.Tensor, words: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        """Multiply x (rows, in) by 4-bit weights. Returns (rows, panels * columns) in float32.

        Args:
            words: weights from ``pack4``.
            scales: scale and middle of each group, (panels, in / GROUP, 2, columns).
        """
        x = (x.to(input_dtype(words)) if is_paired(words) else x).contiguous()
        rows, inputs = x.shape
        spread, sums = torch.empty(rows, inputs), torch.empty(rows, scales.shape[1])
        out = torch.empty(rows, words.shape[0] * words.shape[2])
        self.run(rows, *self.product4_calls(x, words, scales, out, spread, sums))
        return out

    def product4_calls(
        self,
        x: torch.Tensor,
        words: torch.Tensor,
        scales: torch.Tensor,
        out: torch.Tensor,
        spread: torch.Tensor,
        sums: torch.Tensor,
    ) -> tuple[Call, Call]:
        """Make the two kernel calls that write the product of x and 4-bit weights to ``out``. The first call writes the
        ``sums`` (rows, in / GROUP) of the groups of x. If ``words`` are not in pairs, it also writes x to ``spread``
        (rows, in), in the form that the product takes.
        """
        slot = abi.Spread
        arguments = abi.arguments(
            {
                slot.X: x.data_ptr(),
                slot.OUT: spread.data_ptr(),
                slot.INPUTS: x.shape[1],
                slot.SUMS: sums.data_ptr(),
            }
        )
        pairs = is_paired(words)
        address = self.address("group_sums") if pairs else self.address("spread", KIND[x.dtype])
        kernel = self.address("product4_pairs" if pairs else "product4", KIND[scales.dtype])
        others = {abi.Product.SCALES: scales.data_ptr(), abi.Product.SUMS: sums.data_ptr()}
        product = self.panels_call(kernel, x if pairs else spread, words, out, others)
        return Call(address, arguments, EACH_ROW), product

    def panels_call(
        self, kernel: int, x: torch.Tensor, packed: torch.Tensor, out: torch.Tensor, slots: Mapping[int, int]
    ) -> Call:
        """Make the call of a kernel that computes a product with packed weights and has the slots of ``abi.Product``.
        ``slots`` sets further slots, or replaces values that this method would set.
        """
        slot, panels = abi.Product, packed.shape[0]
        size = max(1, panels // (_TILES * self.pool.workers))
        tiles = -(-panels // size)
        arguments = abi.arguments(
            {
                slot.X: x.data_ptr(),
                slot.WEIGHTS: packed.data_ptr(),
                slot.OUT: out.data_ptr(),
                slot.INPUTS: x.shape[1],
                slot.OUTPUTS: out.shape[1],
                slot.TILE_PANELS: size,
                slot.PANELS: panels,
                **slots,
            }
        )
        return Call(kernel, arguments, (0, tiles), slot.ROWS)

    def arranged_call(
        self, x: torch.Tensor, form: str, out: torch.Tensor, sums: torch.Tensor, units: torch.Tensor
    ) -> Call:
        """Make the call that writes x (rows, in) to ``out`` in the form ``form``, as products with blocks of GGUF files
        take it. The call also writes the ``sums`` (rows, in / RUN) of the runs of x and, if ``form`` is "fixed", the
        ``units`` (rows, in / SPAN).
        """
        slot = abi.Spread
        slots = {
            slot.X: x.data_ptr(),
            slot.OUT: out.data_ptr(),
            slot.INPUTS: x.shape[1],
            slot.SUMS: sums.data_ptr(),
            slot.UNITS: units.data_ptr(),
        }
        kind = KIND[x.dtype]
        kernel = self.address("arranged_fixed" if form == "fixed" else "arranged", kind)
        return Call(kernel, abi.arguments(slots), EACH_ROW)

    def run(self, rows: int, *calls: Call) -> None:
        """Run the kernel calls one after another, each for ``rows`` rows."""
        with self.lock:
            for call in calls:
                if call.rows_at is not None:
                    call.arguments[call.rows_at] = rows
                self.call(call.kernel, call.arguments, call.tiles[0] * rows + call.tiles[1])

    def norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Compute the RMS norm over the last axis of x, whose length is a multiple of ``lanes``. ``weight`` is in
        float32.
        """
        x = x.contiguous()
        out, width = torch.empty_like(x), x.shape[-1]
        rows = x.numel() // width
        kernel, slot = self.address("norm", KIND[x.dtype]), abi.Norm
        arguments = abi.arguments(
            {
                slot.X: x.data_ptr(),
                slot.WEIGHTS: weight.data_ptr(),
                slot.OUT: out.data_ptr(),
                slot.ROWS: rows,
                slot.WIDTH: width,
                slot.TILE_ROWS: _NORM_ROWS,
                slot.EPSILON: bits(epsilon),
            }
        )
        self.call(kernel, arguments, -(-rows // _NORM_ROWS))
        return out

    # Recurrence ------------------------------------------------------------------------------------------------

    def delta(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        decays: torch.Tensor,
        rates: torch.Tensor,
        memory: torch.Tensor,
        *,
        rule: str = "delta",
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Run a recurrent layer's rule over n tokens, one after another. Shapes and results are as in
        ``recurrent.in_chunks``.

        Args:
            rule: "delta" for the gated delta rule, or "scan" for Mamba-2's rule.
        """
        out, updates = torch.empty(v.shape), torch.empty(v.shape)
        return out, updates, self._recur(rule, (q, k, v, decays, rates, updates), memory, out)

    def replayed(
        self, k: torch.Tensor, updates: torch.Tensor, decays: torch.Tensor, memory: torch.Tensor
    ) -> torch.Tensor:
        """Compute the state after some tokens from their ``updates``, which ``delta`` returned, and from ``memory``,
        the state before them. The state has the same bits as after a pass over exactly these tokens.
        """
        return self._recur("replayed", (k, k, updates, decays, decays, updates), memory, updates)

    def _recur(
        self, name: str, tokens: tuple[torch.Tensor, ...], memory: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        tokens, behind = tuple(part.contiguous() for part in tokens), torch.empty_like(memory)
        (rows, key_heads, key_dim), (heads, value_dim) = tokens[1].shape, tokens[2].shape[1:]
        kernel, slot = self.address(name, key_dim, value_dim), abi.Recurrence
        given = (slot.QUERIES, slot.KEYS, slot.VALUES, slot.DECAYS, slot.RATES, slot.UPDATES)
        arguments = abi.arguments(
            {
                **{at: part.data_ptr() for at, part in zip(given, tokens, strict=True)},
                slot.BEFORE: memory.data_ptr(),
                slot.AFTER: behind.data_ptr(),
                slot.RESULT: out.data_ptr(),
                slot.ROWS: rows,
                slot.HEADS: heads,
                slot.KEY_HEADS: key_heads,
            }
        )
        self.call(kernel, arguments, heads)
        return behind

    def prepare(self, head_dim: int, dtype: torch.dtype, bits: Sequence[int] = (), capped: bool = False) -> None:
        """Compile the kernels that a model with this head_dim and dtype can need, so that no answer waits for them.

        Args:
            bits: the numbers of bits, 8 or 4 or both, to which weights of the model were quantized when it was loaded.
            capped: whether the model caps attention scores.
        """
        if head_dim % self.lanes == 0:
            for stored in (dtype, torch.int8):
                self.attention.addresses(head_dim, dtype, stored, capped)
        half = dtype is torch.bfloat16
        quants_as_pairs = half and self.looks_up_quants
        self.address("product_pairs" if self.looks_up_quants else "product", KIND[torch.int8], KIND[torch.bfloat16])
        if 8 in bits:
            self.address("product_pairs" if quants_as_pairs else "product", KIND[torch.int8], KIND[dtype])
        if 4 in bits:
            self.address(*(("group_sums",) if quants_as_pairs else ("spread", KIND[dtype])))
            self.address("product4_pairs" if quants_as_pairs else "product4", KIND[torch.bfloat16])
        if half:
            self.address("product_pairs" if self.multiplies_pairs else "product", KIND[dtype])
        else:
            for weights in WIDE_DTYPES:
                self.address("product", KIND[weights])
        self.address("norm", KIND[dtype])
        self.address("gathered")
        self.sampling.prepare()
