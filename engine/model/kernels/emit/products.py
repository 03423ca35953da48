"""Emits products of a few rows with packed weights, which are read once.

The weights of some neighbouring outputs are stored together as a panel: (panels, in, columns). Each column is a lane of
a vector, so a lane computes one output as a sum over the inputs in order. Weights may be 8-bit quants, or 4-bit quants
(``product4``).

Kernels whose names end with ``pairs`` are for models in bfloat16, on processors that multiply pairs of bfloat16 numbers
(AVX-512 BF16, on some x86 processors from 2022 on). One instruction multiplies 32 numbers and adds the two products of
each pair in float32, whereas the instruction for float32 multiplies 16 numbers. A lane still computes one output, but
it holds the weights of two neighbouring inputs. Activations are rounded to bfloat16, as transformers does in models in
bfloat16.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from llvmlite import ir

from engine.model.kernels.abi import PANEL_VECTORS, Product, Spread
from engine.model.kernels.emit.emitter import (
    F32,
    I8,
    I16,
    I32,
    I64,
    KINDS,
    PTR,
    QUANTS,
    VOID,
    Emitter,
    Variable,
    long,
    number,
)
from engine.quantization import GROUP, LAST_QUANT, MIDDLE_QUANT, QUANT_BITS, WORD_QUANTS

# number of words of 4-bit quants whose products are summed before the scale is applied; small, so that chains of
# additions stay short
_SUM_WORDS = 2
# Possible numbers of rows that are computed together, so that a loaded weight serves all of them.
_ROW_BLOCKS = (12, 8, 6, 4, 3, 2, 1)
# Number of vector registers that hold sums, keyed by lanes. With 16 lanes there are 32 registers, and the other 16 hold
# loaded operands.
_ACCUMULATORS = {16: 16}
_FEW_ACCUMULATORS = 12  # number of registers for sums on processors with only 16 vector registers

Sums = list[list[Variable]]
"""The sums of a product: for each row, one sum for each vector of a panel."""


def _emit_product(module: ir.Module, name: str, lanes: int, weights: str, scales: str = "") -> None:
    """Emit the kernel ``product`` for out (rows, outputs) = x (rows, inputs) @ weights. A tile is ``TILE_PANELS``
    panels of weights; x and out are in float32.

    Args:
        weights: dtype of the weights; "int8" means quants.
        scales: dtype of the quants' scales, one for each output.
    """

    def load_word(e: Emitter, place: ir.Value) -> list[ir.Value]:
        return [e.load_vector(place, long(vector * lanes), KINDS[weights]) for vector in range(PANEL_VECTORS)]

    emit_product(module, name, lanes, weights, scales, load_word)


def emit_product(
    module: ir.Module,
    name: str,
    lanes: int,
    weights: str,
    scales: str,
    load_word: Callable[[Emitter, ir.Value], list[ir.Value]],
    pairs: bool = False,
) -> None:
    """Emit a kernel for the product of activations with weights. With ``pairs``, one instruction multiplies two
    neighbouring bfloat16 numbers in each lane, otherwise one number. A panel holds the weights of some neighbouring
    outputs. A word is the part of a panel that belongs to one input, or to a pair of inputs.

    Args:
        load_word: loads the word at an address as ``PANEL_VECTORS`` vectors.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments = e.arguments[0]
    x, packed, out = e.pointers(Product.X, Product.WEIGHTS, Product.OUT)
    inputs, outputs = e.longs(Product.INPUTS, Product.OUTPUTS)
    scale = e.load_pointer(arguments, Product.SCALES) if scales else None
    width, together = lanes * PANEL_VECTORS, 2 if pairs else 1
    words = e.b.sdiv(inputs, long(together))

    def rows_of(row: ir.Value, block: int, panel: ir.Value) -> None:
        here = e.at(packed, e.b.mul(panel, e.b.mul(inputs, long(width))), KINDS[weights])
        column = e.b.mul(panel, long(width))
        lines = [e.at(x, e.b.mul(e.b.add(row, long(at)), words), F32) for at in range(block)]
        sums = [[e.variable(e.constant(0.0)) for _ in range(PANEL_VECTORS)] for _ in range(block)]
        with e.loop(long(0), words) as word:
            place = e.at(here, e.b.mul(word, long(together * width)), KINDS[weights])
            add_products(e, lines, word, load_word(e, place), sums, pairs)
        places = [e.b.add(column, long(vector * lanes)) for vector in range(PANEL_VECTORS)]
        factors = [e.load_vector(scale, place, KINDS[scales]) for place in places] if scale is not None else []
        store_sums(e, out, row, column, outputs, sums, factors)

    each_panel(e, rows_of)
    e.end()


def _emit_product4(module: ir.Module, name: str, lanes: int, scales: str) -> None:
    """Emit the kernel ``product4`` for the product with 4-bit weights. A weight is ``(quant - 8) * scale + middle``;
    each group of inputs has a scale and a middle.

    A word of 32 bits in a panel holds the quants of ``WORD_QUANTS`` inputs of one output. A quant is masked but not
    shifted, so it is too large by a power of 16. The kernel ``spread`` has divided x by this power. Both operations are
    exact.

    Args:
        scales: dtype of scales and middles (panels, groups, 2, columns).
    """
    width = lanes * PANEL_VECTORS

    def add_some(e: Emitter, here: ir.Value, start: ir.Value, lines: list[ir.Value], sums: Sums) -> None:
        for ahead in range(_SUM_WORDS):
            word = e.b.add(start, long(ahead))
            base = e.b.mul(word, long(width))
            loaded = [e.load(e.at(here, e.b.add(base, long(at * lanes)), I32), e.whole) for at in range(PANEL_VECTORS)]
            for place in range(WORD_QUANTS):
                quants = [_quant(e, vector, place) for vector in loaded]
                k = e.b.add(e.b.mul(word, long(WORD_QUANTS)), long(place))
                add_products(e, lines, k, quants, sums)

    emit_product4(module, name, lanes, scales, -float(MIDDLE_QUANT), GROUP // WORD_QUANTS, _SUM_WORDS, add_some)


def emit_product4(
    module: ir.Module,
    name: str,
    lanes: int,
    scales: str,
    lowest: float,
    words: int,
    step: int,
    add_some: Callable[[Emitter, ir.Value, ir.Value, list[ir.Value], Sums], None],
    pairs: bool = False,
) -> None:
    """Emit a kernel for the product of activations with 4-bit weights. With ``pairs``, one instruction multiplies two
    neighbouring bfloat16 numbers in each lane, otherwise one number.

    Args:
        lowest: number to add to each quant as ``add_some`` multiplies it: -8 if quants are 0 to 15, 0 if they are -8 to
            7.
        words: number of words of a group.
        step: number of words in one call of ``add_some``. After each call, the sums are multiplied by the group's
            scale.
        add_some: adds the products of ``step`` words with rows of x to the sums. Its arguments after the emitter are
            the address of the group's words, the index of the first of the ``step`` words, the address of the group's
            inputs in each row of x, and the sums.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    x, packed, out, sums_of_x, scale = e.pointers(Product.X, Product.WEIGHTS, Product.OUT, Product.SUMS, Product.SCALES)
    inputs, outputs = e.longs(Product.INPUTS, Product.OUTPUTS)
    groups, together = e.b.sdiv(inputs, long(GROUP)), 2 if pairs else 1
    width, kind = lanes * PANEL_VECTORS, KINDS[scales]

    def rows_of(row: ir.Value, block: int, panel: ir.Value) -> None:
        first_group = e.b.mul(panel, groups)
        column = e.b.mul(panel, long(width))
        totals = [[e.variable(e.constant(0.0)) for _ in range(PANEL_VECTORS)] for _ in range(block)]
        with e.loop(long(0), groups) as group:
            number_of_group = e.b.add(first_group, group)
            mine = e.at(scale, e.b.mul(number_of_group, long(2 * width)), kind)
            steps, lows = (
                [e.load_vector(mine, long(start + vector * lanes), kind) for vector in range(PANEL_VECTORS)]
                for start in (0, width)
            )
            if lowest:
                lows = [e.fma(step, e.constant(lowest), low) for step, low in zip(steps, lows, strict=True)]
            for at, own in enumerate(totals):
                place = e.b.add(e.b.mul(e.b.add(row, long(at)), groups), group)
                sum_of_x = e.splat(e.load(e.at(sums_of_x, place, F32), F32))
                for low, total in zip(lows, own, strict=True):
                    total.value = e.fma(sum_of_x, low, total.value)
            here = e.at(packed, e.b.mul(number_of_group, long(GROUP * width * QUANT_BITS // 8)), I8)
            lines = [
                e.at(
                    x,
                    e.b.sdiv(
                        e.b.add(e.b.mul(e.b.add(row, long(at)), inputs), e.b.mul(group, long(GROUP))), long(together)
                    ),
                    F32,
                )
                for at in range(block)
            ]
            with e.loop(long(0), long(words), step) as start:
                sums = [[e.variable(e.constant(0.0)) for _ in range(PANEL_VECTORS)] for _ in range(block)]
                add_some(e, here, start, lines, sums)
                for own, some in zip(totals, sums, strict=True):
                    for factor, total, part in zip(steps, own, some, strict=True):
                        total.value = e.fma(part.value, factor, total.value)
        store_sums(e, out, row, column, outputs, totals)

    each_panel(e, rows_of)
    e.end()


def _quant(e: Emitter, words: ir.Value, place: int) -> ir.Value:
    """Emit the quant at ``place`` of each word as float32. Because the quant is not shifted, the result is too large by
    a power of 16: it is the quant divided by ``_spread_of(place)``.
    """
    if place == WORD_QUANTS - 1:  # only the highest quant is shifted, because otherwise the integer could be negative
        return e.b.sitofp(e.b.lshr(words, e.whole_splat(QUANT_BITS * place)), e.vector)
    return e.b.sitofp(e.b.and_(words, e.whole_splat(LAST_QUANT << QUANT_BITS * place)), e.vector)


def _spread_of(place: int) -> float:
    return 1.0 if place == WORD_QUANTS - 1 else 2.0 ** (-QUANT_BITS * place)


def _emit_spread(module: ir.Module, name: str, lanes: int, kind: str) -> None:
    """Emit the kernel ``spread``, which writes x (rows, inputs) in the form that ``product4`` takes. ``OUT`` gets x in
    float32, each number divided by the power of 16 by which the unshifted quant is too large (``_spread_of``). ``SUMS``
    (rows, groups) gets the sum of x over each group. A tile is one row.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, row, _ = e.arguments
    x, out, sums = e.pointers(Spread.X, Spread.OUT, Spread.SUMS)
    inputs = e.load_long(arguments, Spread.INPUTS)
    first = e.b.mul(row, inputs)
    with e.loop(long(0), e.b.sdiv(inputs, long(GROUP))) as group:
        total = e.constant(0.0)
        for offset in range(0, GROUP, lanes):
            place = e.b.add(e.b.add(first, e.b.mul(group, long(GROUP))), long(offset))
            loaded = e.load_vector(x, place, KINDS[kind])
            total = e.b.fadd(total, loaded)
            factors = ir.Constant(
                e.vector, [number(_spread_of((offset + lane) % WORD_QUANTS)) for lane in range(lanes)]
            )
            e.store(e.b.fmul(loaded, factors), e.at(out, place, F32))
        place = e.b.add(e.b.sdiv(first, long(GROUP)), group)
        e.store(e.fold(total, e.b.fadd), e.at(sums, place, F32))
    e.end()


def each_panel(
    e: Emitter,
    rows_of: Callable[[ir.Value, int, ir.Value], None],
    sizes: Sequence[int] | None = None,
    leading_rows: tuple[int, int, Callable[[ir.Value, ir.Value], None]] | None = None,
) -> None:
    """Emit a loop over the panels of a tile, and within it loops over blocks of rows. ``rows_of(first row, number of
    rows, panel)`` emits the body.

    Args:
        sizes: numbers of rows in a block, the largest first; None takes ``row_blocks``.
        leading_rows: (n, minimum, emit), or None. ``emit(panel, count)`` emits the product of the first ``count`` rows,
            and the loops compute the remaining rows. ``count`` is the number of rows, rounded down to a multiple of n,
            or 0 if there are fewer rows than the minimum.
    """
    _, tile, _ = e.arguments
    rows, count, panels = e.longs(Product.ROWS, Product.TILE_PANELS, Product.PANELS)
    first = e.b.mul(tile, count)
    stop = e.b.add(first, count)
    stop = e.b.select(e.b.icmp_signed("<", stop, panels), stop, panels)
    with e.loop(first, stop) as panel:
        done = e.variable(long(0))
        if leading_rows is not None:
            several, least, compute = leading_rows
            whole = e.b.sub(rows, e.b.srem(rows, long(several)))
            done.value = e.b.select(e.b.icmp_signed("<", rows, long(least)), long(0), whole)
            compute(panel, done.value)
        for block in sizes or row_blocks(accumulators(e.lanes), PANEL_VECTORS):
            left = e.b.sub(rows, done.value)
            whole = e.b.sub(left, e.b.srem(left, long(block)))
            start = done.value
            with e.loop(start, e.b.add(start, whole), block) as row:
                rows_of(row, block, panel)
            done.value = e.b.add(start, whole)


def add_products(
    e: Emitter,
    lines: list[ir.Value],
    k: ir.Value,
    loaded: list[ir.Value],
    sums: list[list[Variable]],
    pairs: bool = False,
) -> None:
    """Multiply the vectors ``loaded`` by the ``k``-th number (or pair) of each row of x, and add the products to
    ``sums``. ``lines`` are the addresses of the rows.
    """
    multiply = e.dot_pairs if pairs else e.fma
    for line, own in zip(lines, sums, strict=True):
        number_of_row = e.splat(e.load(e.at(line, k, F32), F32))
        for vector, total in zip(loaded, own, strict=True):
            total.value = multiply(number_of_row, vector, total.value)


def store_sums(
    e: Emitter,
    out: ir.Value,
    row: ir.Value,
    column: ir.Value,
    outputs: ir.Value,
    sums: list[list[Variable]],
    factors: Sequence[ir.Value] = (),
) -> None:
    """Store the sums of the rows from ``row`` on and of the outputs from ``column`` on. If ``factors`` are given,
    vector i of each row is multiplied by factor i.
    """
    for at, own in enumerate(sums):
        place = e.b.add(e.b.mul(e.b.add(row, long(at)), outputs), column)
        for index, total in enumerate(own):
            value = e.b.fmul(total.value, factors[index]) if factors else total.value
            e.store(value, e.at(out, e.b.add(place, long(index * e.lanes)), F32))


def accumulators(lanes: int) -> int:
    """Return the number of vector registers that hold the sums of a product."""
    return _ACCUMULATORS.get(lanes, _FEW_ACCUMULATORS)


def row_blocks(registers: int, vectors: int) -> list[int]:
    """The possible numbers of rows in a block, the largest first. The sums of each block, ``vectors`` vectors for each
    row, fit into ``registers`` registers.
    """
    return [rows for rows in _ROW_BLOCKS if rows * vectors <= max(registers, vectors)]


def _emit_product_pairs(module: ir.Module, name: str, lanes: int, weights: str, scales: str = "") -> None:
    """Emit the kernel ``product_pairs`` for out (rows, outputs) = x (rows, inputs) @ weights. A tile is ``TILE_PANELS``
    panels of weights; x is in bfloat16, out in float32.

    Args:
        weights: dtype of the weights, "bfloat16" or "int8" (quants), in panels of pairs: (panels, inputs / 2, columns,
            2). The columns of quants are in the order ``abi.LOOKED_UP``.
        scales: dtype of the quants' scales, one for each output.
    """

    def load_word(e: Emitter, place: ir.Value) -> list[ir.Value]:
        if not scales:
            return [e.load_vector(place, long(vector * lanes)) for vector in range(PANEL_VECTORS)]
        quants = e.load(place, QUANTS, align=1)
        size = e.intrinsic(f"llvm.abs.v{QUANTS.count}i8", QUANTS, quants, ir.Constant(ir.IntType(1), 0))
        return [*e.looked_up(size, _SIZES, quants)]

    emit_product(module, name, lanes, weights, scales, load_word, pairs=True)


def _emit_product4_pairs(module: ir.Module, name: str, lanes: int, scales: str) -> None:
    """Emit the kernel ``product4_pairs`` for the product with 4-bit weights in pairs. A weight is ``(quant - 8) * scale
    + middle``; each group of inputs has a scale and a middle.

    A byte holds two quants. Of four inputs, the first two are in the lower bits of two bytes, and the last two in the
    upper bits. Panels are (panels, inputs / 4, columns, 2), with columns in the order ``abi.LOOKED_UP``. ``SUMS``
    (rows, groups) holds the sum of each group of x.

    Args:
        scales: dtype of scales and middles (panels, groups, 2, columns).
    """
    words, width = GROUP // 2, lanes * PANEL_VECTORS

    def add_some(e: Emitter, here: ir.Value, _: ir.Value, lines: list[ir.Value], sums: Sums) -> None:
        with e.loop(long(0), long(words), 2) as word:
            both = e.load(e.at(here, e.b.mul(word, long(width)), I8), QUANTS, align=1)
            for half in range(2):
                nibbles = e.b.lshr(both, e.all_bytes(QUANT_BITS * half))
                loaded = e.looked_up(e.b.and_(nibbles, e.all_bytes(LAST_QUANT)), _NIBBLES)
                add_products(e, lines, e.b.add(word, long(half)), [*loaded], sums, pairs=True)

    emit_product4(module, name, lanes, scales, 0.0, words, words, add_some, pairs=True)


def _emit_group_sums(module: ir.Module, name: str, lanes: int) -> None:
    """Emit the kernel ``group_sums``, which writes the sum of each group of x to ``SUMS`` (rows, groups). x (rows,
    inputs) is in bfloat16. A tile is one row.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, row, _ = e.arguments
    x, sums = e.load_pointer(arguments, Spread.X), e.load_pointer(arguments, Spread.SUMS)
    inputs = e.load_long(arguments, Spread.INPUTS)
    groups = e.b.sdiv(inputs, long(GROUP))
    with e.loop(long(0), groups) as group:
        first = e.b.add(e.b.mul(row, inputs), e.b.mul(group, long(GROUP)))
        total = e.constant(0.0)
        for offset in range(0, GROUP, lanes):
            total = e.b.fadd(total, e.load_vector(x, e.b.add(first, long(offset)), I16))
        e.store(e.fold(total, e.b.fadd), e.at(sums, e.b.add(e.b.mul(row, groups), group), F32))
    e.end()


def _half(value: int) -> int:
    """Return the bits that ``value`` has in bfloat16. The value must be exact in bfloat16."""
    return int.from_bytes(struct.pack("<f", float(value)), "little") >> 16


_SIZES = [_half(size) for size in range(128)]
_NIBBLES = [_half(quant - MIDDLE_QUANT) for quant in range(LAST_QUANT + 1)]

EMIT: dict[str, Callable[..., None]] = {
    "product": _emit_product,
    "product4": _emit_product4,
    "spread": _emit_spread,
    "product_pairs": _emit_product_pairs,
    "product4_pairs": _emit_product4_pairs,
    "group_sums": _emit_group_sums,
}
"""Emitters of these kernels, keyed by name."""
