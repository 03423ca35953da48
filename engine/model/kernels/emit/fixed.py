"""Emits products of activations x in fixed point with weights in the blocks of GGUF files, for AVX2 and AVX-512BW.

A number of x is a 16-bit integer times a unit, which ``SPAN`` neighbouring inputs share. The rounding error is up to
1.6e-5 of the largest of these inputs, whereas bfloat16 rounds every number by up to 2e-3 of itself. For each group of
weights, the sum of quants times numbers of x is an exact integer, which is then multiplied by the unit and the group's
scale. The sum is computed in one of three ways:

- Byte products with sums in 16 bits, for fewer than four rows and quants of up to 6 bits without a table of values. The
  two bytes of a number are each multiplied with the quants. One instruction multiplies 32 bytes and adds neighbouring
  products; the sums of several words fit into 16 bits. Quants need only a shift and a mask.
- Products of 16-bit integers, for all other quants and for four rows or more. Four rows at a time use a block that is
  unpacked once for all rows. This is faster than torch's products with unpacked weights, however many rows there are.
- Byte products with sums in 32 bits, instead of both other ways, for two rows or more if the processor has VNNI. One
  instruction multiplies 64 bytes and adds four products to each sum. With vectors of 16 lanes and eight rows or more, a
  block is unpacked once for all rows. With vectors of eight lanes, every four rows still use products of 16-bit
  integers.

The bits of a row do not depend on the other rows, because all integers are exact and the groups are added in a fixed
order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from llvmlite import ir

from engine.model.kernels.abi import PANEL_VECTORS, SPAN, Product, Spread
from engine.model.kernels.emit.blocks import BlockLoads, code_offset
from engine.model.kernels.emit.emitter import F32, I8, I16, I32, I64, KINDS, PTR, VOID, Emitter, long, number
from engine.model.kernels.emit.products import Sums, each_panel, store_sums
from engine.model.kernels.formats import FORMATS, RUN, RUN_WORDS, Bits, Format

_LARGEST = 32639.0  # largest number in fixed point: 127 * 256 + 127, so that both bytes are between -128 and 127
_SMALLEST = 1e-30  # minimum for the largest number of a span, so that a span of zeros is not divided by 0
_NUMBER_BYTES = 4  # Bytes of a number of x. It is stored twice: as a 16-bit integer, and as two separate bytes.
_HIGH = 256  # a 16-bit number is its higher byte times this factor, plus its lower byte
_MOST_HALF = 32767  # largest 16-bit integer
_SHARING_ROWS = 4  # number of rows that are computed together with unpacked weights
_FEW_ROWS = (3, 2, 1)  # numbers of rows that are computed together if fewer than ``_SHARING_ROWS`` are left
_HALF = 0x00010001  # a 32-bit word with the value 1 in both halves


def emit_arranged_fixed(module: ir.Module, name: str, lanes: int, kind: str) -> None:
    """Emit the kernel ``arranged_fixed``, which writes x in fixed point, the sum of each run (``RUN`` inputs) and the
    unit of each span (``SPAN`` inputs). A tile is one row.

    The unit is the span's largest number divided by ``_LARGEST``; it is NaN if a number of the span is not finite. A
    span takes ``_NUMBER_BYTES`` for each number. First come the 16-bit integers: of each four, the first and third come
    before the second and fourth. Then come their higher bytes, and then their lower bytes, both in the order of the
    inputs.

    Args:
        kind: dtype of x.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    _, row, _ = e.arguments
    x, out, sums, units = e.pointers(Spread.X, Spread.OUT, Spread.SUMS, Spread.UNITS)
    [inputs] = e.longs(Spread.INPUTS)
    first = e.b.mul(row, inputs)
    mask = ir.Constant(
        ir.VectorType(I32, lanes), [I32(lane // 4 * 4 + (0, 2, 1, 3)[lane % 4]) for lane in range(lanes)]
    )
    with e.loop(long(0), e.b.sdiv(inputs, long(SPAN))) as span:
        start = e.b.add(first, e.b.mul(span, long(SPAN)))
        offsets = range(0, SPAN, lanes)
        loaded = [e.load_vector(x, e.b.add(start, long(offset)), KINDS[kind]) for offset in offsets]
        largest, nothing = e.constant(_SMALLEST), e.constant(0.0)
        for vector in loaded:
            largest = e.larger(e.call("llvm.fabs", vector), largest)
            nothing = e.fma(vector, e.constant(0.0), nothing)
        most = e.fold(largest, e.larger)
        unit = e.b.fadd(e.b.fdiv(most, number(_LARGEST)), e.fold(nothing, e.b.fadd))
        e.store(unit, e.at(units, e.b.sdiv(start, long(SPAN)), F32))
        inverse = e.splat(e.b.fdiv(number(_LARGEST), most))
        wholes = [e.b.fptosi(e.call("llvm.rint", e.b.fmul(vector, inverse)), e.whole) for vector in loaded]
        here = e.at(out, e.b.mul(start, long(_NUMBER_BYTES)), I8)
        for offset, whole in zip(offsets, wholes, strict=True):
            both = e.b.trunc(e.b.shuffle_vector(whole, whole, mask), ir.VectorType(I16, lanes))
            e.store(both, e.at(here, long(offset), I16), align=2)
            # The higher byte is taken from the number plus 128, because the lower byte is signed.
            high = e.b.ashr(e.b.add(whole, e.whole_splat(_HIGH // 2)), e.whole_splat(8))
            for byte, place in ((high, 2 * SPAN), (whole, 3 * SPAN)):
                e.store(e.b.trunc(byte, ir.VectorType(I8, lanes)), e.at(here, long(place + offset), I8), align=1)
        for run in range(SPAN // RUN):
            some = wholes[run * RUN // lanes : (run + 1) * RUN // lanes]
            total = e.b.sitofp(e.fold(functools.reduce(e.b.add, some), e.b.add), F32)
            place = e.b.add(e.b.sdiv(start, long(RUN)), long(run))
            e.store(e.b.fmul(total, unit), e.at(sums, place, F32))
    e.end()


def emit_product_fixed(module: ir.Module, name: str, lanes: int, number_of_format: int, dots: bool) -> None:
    """Emit the kernel that multiplies ``TILE_PANELS`` panels of blocks with x. The kernel ``arranged_fixed`` has
    prepared x.

    Args:
        dots: whether the processor has VNNI. The bits of the result are the same with and without it.
    """
    _Product(Emitter(module, name, VOID, (PTR, I64, I64), lanes), FORMATS[number_of_format], dots).emit()


class _Product:
    """Emits the product with weights of one format. For all rows, the operations in float32 have the same order."""

    def __init__(self, e: Emitter, form: Format, dots: bool) -> None:
        self._e, self._form, self._dots = e, form, dots
        self._x, self._packed, self._out = e.pointers(Product.X, Product.WEIGHTS, Product.OUT)
        self._sums, self._units = e.pointers(Product.SUMS, Product.UNITS)
        self._inputs, self._outputs = e.longs(Product.INPUTS, Product.OUTPUTS)
        self._blocks, self._columns = e.b.sdiv(self._inputs, long(form.values)), e.lanes * PANEL_VECTORS
        self._zero = form.zero + code_offset(form)
        # Unpacked quants are bytes only with 16 lanes, because with eight lanes the sums of four rows would need too
        # many registers.
        self._unpacked = _Unpacked(e, form, dots and e.lanes == 16)
        self._halves = ir.VectorType(I16, 2 * e.lanes)
        largest = _HIGH if form.codes or form.flips else (1 << form.bits) - 1
        # Maximum number of words of quants whose products with bytes fit into a 16-bit sum. Each word adds two
        # products.
        self._depth = min(_MOST_HALF // (2 * (_HIGH // 2) * largest), form.group // RUN_WORDS)
        self._shared = _shared(form) if self._depth else None

    def emit(self) -> None:
        """Emit the kernel's whole body."""
        few = (_SHARING_ROWS, *_FEW_ROWS) if self._unpacked.bytes else _FEW_ROWS
        least = 2 * _SHARING_ROWS if self._unpacked.bytes else _SHARING_ROWS
        each_panel(self._e, self._few_rows, few, (_SHARING_ROWS, least, self._many_rows))
        self._e.end()

    def _few_rows(self, row: ir.Value, count: int, panel: ir.Value) -> None:
        """Emit the product of a panel with ``count`` rows. Quants are used as they are read, without unpacking a block
        first.
        """
        e, form = self._e, self._form
        rows = [e.b.mul(e.b.add(row, long(at)), self._inputs) for at in range(count)]
        totals = [[e.variable(e.constant(0.0)) for _ in range(PANEL_VECTORS)] for _ in rows]
        # Only for a single row, two groups use the same loaded words. The sums of two groups and several rows would
        # need too many registers.
        shared = self._shared if count == 1 else None
        together = 2 if shared else 1
        # VNNI is not used for a single row. The row has few sums, and consecutive additions to a sum wait for each
        # other.
        dots = self._dots and count > 1
        with e.loop(long(0), self._blocks) as block:
            own = self._block(panel, block, shared.quants if shared else ())
            self._unpacked.take_scales(own)
            lines = self._lines(block, rows)
            with e.loop(long(0), long(form.values // form.group // together)) as step:
                own.ask_next(step, self._size, together * form.group)
                first = self._group(e.b.mul(step, long(together)))
                groups = [first, e.b.add(first, long(shared.ahead))] if shared else [first]
                run = e.b.mul(step if shared else first, long(form.group // RUN))
                if dots:
                    sums = [self._dot_sums(functools.partial(_words_of, own), RUN_WORDS, first, lines)]
                elif self._depth:
                    sums = self._byte_sums(own, run, groups, lines, shared.shifts if shared else ())
                else:
                    sums = [self._pair_sums(functools.partial(_pairs_of, e, own), RUN_WORDS, first, lines)]
                for group, some in zip(groups, sums, strict=True):
                    self._add_group(group, lines, some, totals)
        store_sums(e, self._out, row, e.b.mul(panel, long(self._columns)), self._outputs, totals)

    def _many_rows(self, panel: ir.Value, whole: ir.Value) -> None:
        """Emit the product of a panel with the first ``whole`` rows. A block is unpacked once for all rows."""
        e, form, unpacked = self._e, self._form, self._unpacked
        column, groups = e.b.mul(panel, long(self._columns)), long(form.values // form.group)
        with e.loop(long(0), e.b.select(e.b.icmp_signed(">", whole, long(0)), self._blocks, long(0))) as block:
            own, begins = self._block(panel, block), e.b.icmp_signed("==", block, long(0))
            unpacked.take_scales(own)
            with e.loop(long(0), groups) as group:
                own.ask_next(group, self._size, form.group)
                unpacked.take_quants(own, group)
            with e.loop(long(0), whole, _SHARING_ROWS) as row:
                rows = [e.b.mul(e.b.add(row, long(at)), self._inputs) for at in range(_SHARING_ROWS)]
                lines, totals = self._lines(block, rows), []
                for at in range(_SHARING_ROWS):
                    place = e.b.add(e.b.mul(e.b.add(row, long(at)), self._outputs), column)
                    known = [e.load_vector(self._out, e.b.add(place, long(v * e.lanes))) for v in range(PANEL_VECTORS)]
                    totals.append([e.variable(e.b.select(begins, e.constant(0.0), some)) for some in known])
                with e.loop(long(0), groups) as at:
                    group = self._group(at)
                    if unpacked.bytes:
                        sums = self._dot_sums(unpacked.words, 1, group, lines)
                    else:
                        sums = self._pair_sums(unpacked.pairs, 1, group, lines)
                    self._add_group(group, lines, sums, totals)
                store_sums(e, self._out, row, column, self._outputs, totals)

    @property
    def _size(self) -> ir.Value:
        """Bytes of the interleaved blocks of all outputs of a panel, for the same inputs."""
        return long(self._form.held_bytes * self._columns)

    def _block(self, panel: ir.Value, block: ir.Value, quants: Sequence[Bits] = ()) -> BlockLoads:
        e = self._e
        place = e.b.mul(e.b.add(e.b.mul(panel, self._blocks), block), self._size)
        return BlockLoads(e, self._form, e.at(self._packed, place, I8), quants)

    def _group(self, index: ir.Value) -> ir.Value:
        """Return the group that is added as the ``index``-th. The two groups of a pair that shares words are added one
        after the other.
        """
        if self._shared is None or self._shared.ahead == 1:
            return index
        e, ahead = self._e, self._shared.ahead
        pair, second = e.b.lshr(index, long(1)), e.b.and_(index, long(1))
        within = e.b.and_(pair, long(ahead - 1))
        first = e.b.add(e.b.mul(e.b.sub(pair, within), long(2)), within)
        return e.b.add(first, e.b.mul(second, long(ahead)))

    def _lines(self, block: ir.Value, rows: list[ir.Value]) -> list[_Line]:
        """Return, for each row, the addresses of the numbers of x that a block is multiplied with, of their sums, and
        of their units.
        """
        e, lines = self._e, []
        for row in rows:
            place = e.b.add(row, e.b.mul(block, long(self._form.values)))
            x = e.at(self._x, e.b.mul(place, long(_NUMBER_BYTES)), I8)
            sums, units = (
                e.at(base, e.b.sdiv(place, long(size)), F32) for base, size in ((self._sums, RUN), (self._units, SPAN))
            )
            lines.append(_Line(x, sums, units))
        return lines

    def _byte_sums(
        self,
        block: BlockLoads,
        first_run: ir.Value,
        groups: Sequence[ir.Value],
        lines_of_x: Sequence[_Line],
        shifts: Sequence[int],
    ) -> list[list[list[ir.Value]]]:
        """Emit the sums of quants times numbers of x, as byte products with sums in 16 bits. Return a sum for each
        group, each row and each vector of the panel.

        Args:
            first_run: index of the run in ``block`` with which the first group begins.
            shifts: how far the quants of the second group are shifted in addition to those of the first (``_Shared``).
        """
        e, runs = self._e, self._form.group // RUN
        lines = [[self._numbers_at(line, group, 2 * SPAN, 1) for line in lines_of_x] for group in groups]
        totals = [[[e.whole_splat(0)] * PANEL_VECTORS for _ in own] for own in lines]
        for first in range(0, runs * RUN_WORDS, self._depth):
            # for each row of x, the sums for the higher bytes and the sums for the lower bytes of its numbers
            sums = [[[self._zeros(), self._zeros()] for _ in own] for own in lines]
            for word in range(first, first + self._depth):
                run = e.b.add(first_run, long(word // RUN_WORDS))
                for at, own in enumerate(lines):
                    further = shifts if at else ()
                    quants = [block.quants(run, word % RUN_WORDS, vector, further) for vector in range(PANEL_VECTORS)]
                    for line, parts in zip(own, sums[at], strict=True):
                        for byte, part in enumerate(parts):
                            place = e.at(line, long(byte * SPAN + RUN_WORDS * word), I8)
                            numbers = e.splat(e.load(place, I32))
                            part[:] = [
                                e.b.add(so_far, e.byte_sums(quant, numbers))
                                for so_far, quant in zip(part, quants, strict=True)
                            ]
            for mine, own in zip(totals, sums, strict=True):
                for total, (high, low) in zip(mine, own, strict=True):
                    total[:] = [
                        e.b.add(so_far, e.b.add(e.pair_sums(a, self._all(_HIGH)), e.pair_sums(b, self._all(1))))
                        for so_far, a, b in zip(total, high, low, strict=True)
                    ]
        return totals

    def _zeros(self) -> list[ir.Value]:
        return [self._all(0)] * PANEL_VECTORS

    def _all(self, value: int) -> ir.Value:
        """Make a vector with the same 16-bit integer in both halves of every lane."""
        return ir.Constant(self._halves, [I16(value)] * self._halves.count)

    def _pair_sums(
        self,
        pairs: Callable[[ir.Value], list[list[ir.Value]]],
        words: int,
        group: ir.Value,
        lines_of_x: Sequence[_Line],
    ) -> list[list[ir.Value]]:
        """Emit the sums of a group's quants times numbers of x, as products of 16-bit integers. Return a sum for each
        row and each vector of the panel.

        Args:
            pairs: loads ``words`` words of quants as pairs of 16-bit integers, for each vector of the panel. Its
                argument n means the words of a block from ``n * words`` on.
        """
        e, steps = self._e, self._form.group // (RUN_WORDS * words)
        lines = [self._numbers_at(line, group, 0, 2) for line in lines_of_x]
        sums = [[e.variable(e.whole_splat(0)) for _ in range(PANEL_VECTORS)] for _ in lines]
        with e.loop(long(0), long(steps)) as at:
            for half, quants in enumerate(pairs(e.b.add(e.b.mul(group, long(steps)), at))):
                place = e.b.add(e.b.mul(at, long(2 * words)), long(half))
                for line, own in zip(lines, sums, strict=True):
                    numbers = e.splat(e.load(e.at(line, place, I32), I32))
                    for quant, so_far in zip(quants, own, strict=True):
                        so_far.value = e.b.add(so_far.value, e.pair_sums(quant, numbers))
        return [[each.value for each in own] for own in sums]

    def _dot_sums(
        self,
        quants: Callable[[ir.Value], list[list[ir.Value]]],
        words: int,
        group: ir.Value,
        lines_of_x: Sequence[_Line],
    ) -> list[list[ir.Value]]:
        """Emit the same sums as ``_pair_sums``, as byte products with sums in 32 bits (VNNI).

        Args:
            quants: loads ``words`` words of quants, each as one vector for each vector of the panel. Its argument n
                means the words of a block from ``n * words`` on.
        """
        e, steps = self._e, self._form.group // (RUN_WORDS * words)
        lines = [self._numbers_at(line, group, 2 * SPAN, 1) for line in lines_of_x]
        # for each row of x, the sums for the higher bytes and the sums for the lower bytes of its numbers
        sums = [[[e.variable(e.whole_splat(0)) for _ in range(PANEL_VECTORS)] for _ in range(2)] for _ in lines]
        with e.loop(long(0), long(steps)) as at:
            for word, vectors in enumerate(quants(e.b.add(e.b.mul(group, long(steps)), at))):
                first = e.b.add(e.b.mul(at, long(RUN_WORDS * words)), long(RUN_WORDS * word))
                for line, own in zip(lines, sums, strict=True):
                    for byte, part in enumerate(own):
                        numbers = e.splat(e.load(e.at(line, e.b.add(first, long(byte * SPAN)), I8), I32))
                        for quant, so_far in zip(vectors, part, strict=True):
                            so_far.value = e.add_byte_dots(so_far.value, quant, numbers)
        return [
            [e.b.add(e.b.shl(a.value, e.whole_splat(8)), b.value) for a, b in zip(high, low, strict=True)]
            for high, low in sums
        ]

    def _numbers_at(self, line: _Line, group: ir.Value, offset: int, size: int) -> ir.Value:
        """Return the address of a group's numbers within a part of their span. The part begins at byte ``offset`` of
        the span and has ``size`` bytes for each number.
        """
        e, values = self._e, self._form.group
        if values == SPAN:
            return e.at(line.x, e.b.add(e.b.mul(group, long(SPAN * _NUMBER_BYTES)), long(offset)), I8)
        within = e.b.mul(e.b.and_(group, long(SPAN // values - 1)), long(values * size))
        place = e.b.add(e.b.mul(self._span(group), long(SPAN * _NUMBER_BYTES)), within)
        return e.at(line.x, e.b.add(place, long(offset)), I8)

    def _span(self, group: ir.Value) -> ir.Value:
        """Return the index of the span to which a group of a block belongs."""
        return self._e.b.udiv(group, long(SPAN // self._form.group))

    def _add_group(
        self, group: ir.Value, lines: Sequence[_Line], sums: Sequence[Sequence[ir.Value]], totals: Sums
    ) -> None:
        """Multiply a group's sums by its scales, and add the results to the totals of the rows."""
        e, form = self._e, self._form
        scales = self._unpacked.scales(group)
        for line, some, own in zip(lines, sums, totals, strict=True):
            unit = e.splat(e.load(e.at(line.units, self._span(group), F32), F32))
            sum_of_x = self._sum_of_x(line, group) if self._zero or form.has_least else None
            for (step, least), part, total in zip(scales, some, own, strict=True):
                value = e.b.sitofp(part, e.vector)
                if self._zero:
                    value = e.fma(value, unit, e.b.fmul(sum_of_x, e.constant(-float(self._zero))))
                else:
                    value = e.b.fmul(value, unit)
                if form.has_least:
                    total.value = e.fma(sum_of_x, least, total.value)
                total.value = e.fma(value, step, total.value)

    def _sum_of_x(self, line: _Line, group: ir.Value) -> ir.Value:
        """Emit a vector with the sum of a group's numbers of x in every lane."""
        e, runs = self._e, self._form.group // RUN
        first = e.b.mul(group, long(runs))
        run_sums = [e.load(e.at(line.sums, e.b.add(first, long(at)), F32), F32) for at in range(runs)]
        return e.splat(functools.reduce(e.b.fadd, run_sums))


class _Line(NamedTuple):
    """Addresses of a row's numbers, of their sums and of their units, beginning with a block's first input."""

    x: ir.Value
    sums: ir.Value
    units: ir.Value


class _Shared(NamedTuple):
    """Pairs of groups whose quants are in the same words, so that a word is loaded once for both groups.

    Args:
        ahead: distance from the first group of a pair to the second, in groups.
        quants: positions of the quants in a block, for the runs of the first groups of all pairs.
        shifts: for each part of a quant (low bits, high bits), how far the second group is shifted in addition to the
            first.
    """

    ahead: int
    quants: tuple[Bits, ...]
    shifts: tuple[int, ...]


def _shared(form: Format) -> _Shared | None:
    """Find the pairs of groups of a format whose quants are in the same words; return None if there are none. If
    several pairings are possible, return the one with the smallest distance between groups.
    """
    runs, own = form.values // RUN, form.group // RUN
    for ahead in (1, 2, 4):
        firsts = [run for run in range(runs) if run // (ahead * own) % 2 == 0]
        seconds = [run + ahead * own for run in firsts]
        if max(seconds) >= runs:
            return None
        moved = {
            (part.words[b] - part.words[a], at, part.shifts[b] - part.shifts[a])
            for at, part in enumerate(form.quants)
            for a, b in zip(firsts, seconds, strict=True)
        }
        if len(moved) == len(form.quants) and not any(words for words, *_ in moved):
            quants = tuple(
                replace(part, words=_picked(part.words, firsts), shifts=_picked(part.shifts, firsts))
                for part in form.quants
            )
            return _Shared(ahead, quants, tuple(shift for _, _, shift in sorted(moved)))
    return None


def _picked(values: Sequence[int], places: Sequence[int]) -> tuple[int, ...]:
    return tuple(values[place] for place in places)


def _words_of(block: BlockLoads, run: ir.Value) -> list[list[ir.Value]]:
    """Emit the quants of a run as bytes: for each word of four inputs, return one vector for each vector of the
    panel.
    """
    return [[block.quants(run, word, vector) for vector in range(PANEL_VECTORS)] for word in range(RUN_WORDS)]


def _pairs_of(e: Emitter, block: BlockLoads, run: ir.Value) -> list[list[ir.Value]]:
    """Emit the quants of a run as pairs of 16-bit integers: for each pair of inputs, return one vector for each vector
    of the panel. Of four inputs, the first and third are a pair, and the second and fourth.
    """
    mask, pairs = e.whole_splat(0xFF * _HALF), []
    for word in range(RUN_WORDS):
        quants = [block.quants(run, word, vector) for vector in range(PANEL_VECTORS)]
        pairs.append([e.b.and_(each, mask) for each in quants])
        pairs.append([e.b.and_(e.b.lshr(each, e.whole_splat(8)), mask) for each in quants])
    return pairs


class _Unpacked:
    """Emits access to an unpacked block on the stack: its scales, and its quants as bytes or as pairs of 16-bit
    integers.
    """

    def __init__(self, e: Emitter, form: Format, as_bytes: bool) -> None:
        self._e, self._form, self._groups, self.bytes = e, form, form.values // form.group, as_bytes
        self._quants = e.room(e.whole, form.values // (4 if as_bytes else 2) * PANEL_VECTORS)
        self._scales = e.room(e.vector, self._groups * PANEL_VECTORS * 2)

    def take_scales(self, block: BlockLoads) -> None:
        """Emit code that unpacks the scales of ``block`` into this object's memory. The number to add to a weight does
        not include the zero point of the quants, which ``_add_group`` subtracts.
        """
        for group in range(self._groups):
            scales = block.scales(long(group), -self._form.zero)
            for place, scale in zip(self._scale_places(long(group)), _flat(scales), strict=True):
                if scale is not block.nothing:
                    self._e.store(scale, place)

    def take_quants(self, block: BlockLoads, group: ir.Value) -> None:
        """Emit code that unpacks the quants of one group of ``block`` into this object's memory."""
        e, runs = self._e, self._form.group // RUN
        with e.loop(long(0), long(runs)) as at:
            run = e.b.add(e.b.mul(group, long(runs)), at)
            quants = _flat(_words_of(block, run) if self.bytes else _pairs_of(e, block, run))
            for place, each in zip(self._places(self._quants, e.whole, run, len(quants)), quants, strict=True):
                e.store(each, place)

    def scales(self, group: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
        """Load the unpacked scales of a group: for each vector of the panel, a factor and a number to add."""
        vectors = [self._e.load(place, self._e.vector) for place in self._scale_places(group)]
        return list(zip(vectors[::2], vectors[1::2], strict=True))

    def words(self, word: ir.Value) -> list[list[ir.Value]]:
        """Load the unpacked quants of a word as bytes, one vector for each vector of the panel."""
        places = self._places(self._quants, self._e.whole, word, PANEL_VECTORS)
        return [[self._e.load(place, self._e.whole) for place in places]]

    def pairs(self, word: ir.Value) -> list[list[ir.Value]]:
        """Load the unpacked quants of a word as pairs of 16-bit integers: two pairs for each vector of the panel."""
        places = self._places(self._quants, self._e.whole, word, 2 * PANEL_VECTORS)
        vectors = [self._e.load(place, self._e.whole) for place in places]
        return [vectors[:PANEL_VECTORS], vectors[PANEL_VECTORS:]]

    def _scale_places(self, group: ir.Value) -> list[ir.Value]:
        return self._places(self._scales, self._e.vector, group, 2 * PANEL_VECTORS)

    def _places(self, base: ir.Value, kind: ir.Type, index: ir.Value, count: int) -> list[ir.Value]:
        first = self._e.b.mul(index, long(count))
        return [self._e.at(base, self._e.b.add(first, long(at)), kind) for at in range(count)]


def _flat(nested: Sequence[Sequence[ir.Value]]) -> list[ir.Value]:
    return [value for some in nested for value in some]


EMIT: dict[str, Callable[..., None]] = {
    "arranged_fixed": emit_arranged_fixed,
    "product_fixed": emit_product_fixed,
}
"""Emitters of these kernels, keyed by name."""
