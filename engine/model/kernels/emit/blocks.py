"""Emits products whose weights stay in the blocks of a GGUF file. No bit of a weight is changed.

``engine.model.kernels.formats`` describes the layout of a block. A panel has the blocks of some neighbouring outputs.
The kernel ``interleaved`` copies these blocks word by word: the first word of every output, then the second word of
every output, and so on. So each lane of a vector holds one output.

In every format, a word holds the quants of four neighbouring inputs as four bytes, after it is shifted and masked. How
quants are multiplied depends on the processor and the model:

- For models in bfloat16 on processors with AVX2 or AVX-512BW, activations are in fixed point
  (``engine.model.kernels.emit.fixed``).
- Otherwise a quant is converted to float32.

Activations are never rounded to 8-bit quants. As in ``products``, a row has the same bits whatever other rows are
computed, because sums have a fixed order: the products of a run of inputs (``formats.RUN``) are summed, the sums are
multiplied by the scale, and the results are added in the order of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from llvmlite import binding, ir

from engine.model.kernels.abi import PANEL_VECTORS, Expanded, Interleaved, Product, Spread
from engine.model.kernels.emit.emitter import F32, I8, I16, I32, I64, KINDS, PTR, VOID, Emitter, Variable, long, number
from engine.model.kernels.emit.products import Sums, accumulators, each_panel, emit_product, row_blocks, store_sums
from engine.model.kernels.formats import FORMATS, RUN, RUN_WORDS, Bits, Format

_LINE = 64  # bytes of a cache line
# Minimum distance in bytes from the block that is read to the block that is prefetched; rounded up to whole blocks.
_AHEAD = 4096
_BYTE = 0x01010101  # a word with the value 1 in each byte
# A number of rows for which no code is emitted, because compiling more code takes time. Six rows are computed as four
# and two, which takes hardly longer.
_LEFT_OUT = 6
_CODE_OFFSET = 128  # added to the numbers of a format's table ``codes``, so that they are unsigned bytes


# Access to interleaved blocks ----------------------------------------------------------------------------------------


class BlockLoads:
    """Emits loads from interleaved blocks: one block for each output of a panel, all for the same inputs.

    Args:
        base: address of the blocks.
        quants: positions of the quants of those runs with which the method ``quants`` is called; () takes the format's
            positions of all runs.
    """

    def __init__(self, e: Emitter, form: Format, base: ir.Value, quants: Sequence[Bits] = ()) -> None:
        self._e, self._form, self._base, self._quants = e, form, base, quants or form.quants
        self._columns, self.nothing = e.lanes * PANEL_VECTORS, e.constant(0.0)
        self._first_word = len(form.halves) * self._columns // 2
        self._fours: dict[tuple[tuple[Bits, ...], int, int], ir.Value] = {}
        widened = _power if form.has_exponent else _widened
        self._factors = [
            [widened(e, self._raw_half(at, vector)) for vector in range(PANEL_VECTORS)]
            for at in range(len(form.halves))
        ]
        self._negated = [e.b.fneg(factor) for factor in self._factors[1]] if form.least else []

    def word(self, index: ir.Value, vector: int) -> ir.Value:
        """Load word ``index`` of each output's block, for the outputs in vector ``vector`` of the panel."""
        e = self._e
        place = e.b.add(e.b.mul(index, long(self._columns)), long(self._first_word + vector * e.lanes))
        return e.load(e.at(self._base, place, I32), e.whole, align=2)

    def ask_next(self, group: ir.Value, size: ir.Value, values: int) -> None:
        """Prefetch a part of a later block, at least ``_AHEAD`` bytes ahead, because the processor does not do so on
        its own.

        Args:
            group: index of the part. The calls for all groups together prefetch the whole block.
            size: bytes of an interleaved block.
            values: number of weights of an output in one part.
        """
        e, lines = self._e, -(-self._form.held_bytes * self._columns * values // (_LINE * self._form.values))
        place = e.at(
            self._base,
            e.b.add(
                e.b.mul(size, long(-(-_AHEAD // (self._form.held_bytes * self._columns)))),
                e.b.mul(group, long(lines * _LINE)),
            ),
            I8,
        )
        for line in range(lines):
            e.prefetch(e.at(place, long(line * _LINE), I8))

    def _raw_half(self, index: int, vector: int) -> ir.Value:
        e = self._e
        place = e.at(self._base, long(index * self._columns + vector * e.lanes), I16)
        return e.load(place, ir.VectorType(I16, e.lanes), align=2)

    def scales(self, group: ir.Value, offset: int) -> list[tuple[ir.Value, ir.Value]]:
        """Emit, for each vector of the panel, the two numbers that turn a quant into a weight: a factor, and a number
        to add.

        Args:
            offset: number that was added to every quant (``code_offset``). The scales undo this addition, as they undo
                the format's ``zero``.
        """
        e, form = self._e, self._form
        scales = []
        for vector in range(PANEL_VECTORS):
            step = self._factors[0][vector]
            if form.scale:
                whole = self._gathered(form.scale, group, vector)
                if form.is_signed:
                    high = e.whole_splat(24)
                    whole = e.b.ashr(e.b.shl(whole, high), high)
                if form.scale_zero:
                    whole = e.b.sub(whole, e.whole_splat(form.scale_zero))
                step = e.b.fmul(step, e.b.sitofp(whole, e.vector))
            least = self.nothing
            if form.least:
                count = e.b.sitofp(self._gathered(form.least, group, vector), e.vector)
                least = e.b.fmul(self._negated[vector], count)
            elif form.adds:
                least = self._factors[1][vector]
            if form.zero + offset:
                least = e.fma(step, e.constant(-float(form.zero + offset)), least)
            scales.append((step, least))
        return scales

    def _gathered(self, parts: tuple[Bits, ...], group: ir.Value, vector: int) -> ir.Value:
        """Assemble one integer of a group, such as its scale, from its bits in different words. ``parts`` is the
        ``scale`` or the ``least`` of the format.
        """
        e, whole = self._e, None
        if isinstance(group, ir.Constant) and _are_bytes(parts, group.constant // 4 * 4):
            return self._byte_of(self._four(parts, group.constant // 4 * 4, vector), group.constant % 4)
        for part in parts:
            if part.in_half:
                word = e.b.zext(self._raw_half(part.words[0], vector), e.whole)
            else:
                word = self.word(_picked(e, part.words, group), vector)
            shifted = e.b.lshr(word, _shift(e, part.shifts, group))
            cut = e.b.and_(shifted, e.whole_splat((1 << part.count) - 1))
            cut = e.b.shl(cut, e.whole_splat(part.at)) if part.at else cut
            whole = cut if whole is None else e.b.or_(whole, cut)
        assert whole is not None
        return whole

    def _four(self, parts: tuple[Bits, ...], first: int, vector: int) -> ir.Value:
        """Emit a word whose four bytes are the integers (such as scales) of the four groups from ``first`` on. Later
        calls for the same groups return the same word.
        """
        e, key = self._e, (parts, first, vector)
        if key not in self._fours:
            word = None
            for part in parts:
                cut = e.b.lshr(self.word(long(part.words[first]), vector), e.whole_splat(part.shifts[first]))
                cut = e.b.and_(cut, e.whole_splat(((1 << part.count) - 1) * _BYTE))
                cut = e.b.shl(cut, e.whole_splat(part.at))
                word = cut if word is None else e.b.or_(word, cut)
            self._fours[key] = word
        return self._fours[key]

    def _byte_of(self, words: ir.Value, index: int) -> ir.Value:
        """Emit byte ``index`` of each word as an integer. On x86 this is one instruction."""
        e = self._e
        parts = ir.VectorType(I8, 4 * e.lanes)
        kept = [place for lane in range(e.lanes) for place in (4 * lane + index, *[4 * e.lanes] * 3)]
        mask = ir.Constant(ir.VectorType(I32, len(kept)), [I32(place) for place in kept])
        zeros = ir.Constant(parts, [I8(0)] * parts.count)
        return e.b.bitcast(e.b.shuffle_vector(e.b.bitcast(words, parts), zeros, mask), e.whole)

    def quants(self, run: ir.Value, word: int, vector: int, shifts: Sequence[int] = ()) -> ir.Value:
        """Emit a word whose four bytes are the quants of four inputs. If the format has a table ``codes``, the bytes
        are the quants' numbers in the table, plus ``_CODE_OFFSET``.

        Args:
            shifts: for each part of a quant (low bits, high bits), the number of bits by which it is shifted in
                addition to the shift for ``run``.
        """
        e, form, quants = self._e, self._form, None
        for part, shift in zip(self._quants, shifts or [0] * len(self._quants), strict=True):
            some = self._shifted(part, run, word, vector)
            some = e.b.lshr(some, e.whole_splat(shift)) if shift else some
            some = e.b.and_(some, e.whole_splat(((1 << part.count) - 1) * _BYTE))
            some = e.b.shl(some, e.whole_splat(part.at)) if part.at else some
            quants = some if quants is None else e.b.or_(quants, some)
        assert quants is not None
        if form.flips:
            return e.b.xor(quants, e.whole_splat(0x80 * _BYTE))
        if form.codes:
            return _bytes_at(e, quants, [code + _CODE_OFFSET for code in form.codes])
        return quants

    def _shifted(self, part: Bits, run: ir.Value, word: int, vector: int) -> ir.Value:
        """Emit a word, shifted so that the bits of ``part`` are the lowest of each byte. The caller masks all other
        bits.
        """
        e = self._e
        if not part.spread:
            index = e.b.add(_picked(e, part.words, run), long(word))
            return e.b.lshr(self.word(index, vector), _shift(e, part.shifts, run))
        whole = self.word(_picked(e, part.words, run), vector)
        four = e.b.lshr(whole, _shift(e, [shift + RUN_WORDS * word for shift in part.shifts], run))
        four = e.b.and_(four, e.whole_splat(0xF))
        # Bit n of ``four`` becomes the lowest bit of byte n of the product. No two bits are added, so there is no
        # carry.
        return e.b.mul(four, e.whole_splat(sum(1 << 7 * bit for bit in range(4))))


def code_offset(form: Format) -> int:
    """The offset that ``BlockLoads.quants`` adds to each quant."""
    return _CODE_OFFSET if form.codes else 0


def _widened(e: Emitter, halves: ir.Value) -> ir.Value:
    """Convert finite half-precision numbers to float32, exactly."""
    raw = e.b.zext(halves, e.whole)
    size = e.b.shl(e.b.and_(raw, e.whole_splat(0x7FFF)), e.whole_splat(13))
    # The product replaces the exponent bias of half precision (15) by that of float32 (127).
    scaled = e.b.fmul(e.b.bitcast(size, e.vector), e.constant(2.0**112))
    sign = e.b.shl(e.b.and_(raw, e.whole_splat(0x8000)), e.whole_splat(16))
    return e.b.bitcast(e.b.or_(e.b.bitcast(scaled, e.whole), sign), e.vector)


def _power(e: Emitter, exponents: ir.Value) -> ir.Value:
    """Emit ``2 ** (exponent - 128)`` for each stored exponent. This power is half of the format's factor, because the
    numbers of the format's table ``codes`` are doubled. Results below 2 ** -126 become 0.
    """
    raw = e.b.zext(exponents, e.whole)
    one = e.whole_splat(1)
    less = e.b.sub(e.b.select(e.b.icmp_unsigned("<", raw, one), one, raw), one)
    return e.b.bitcast(e.b.shl(less, e.whole_splat(23)), e.vector)


def _are_bytes(parts: Sequence[Bits], first: int) -> bool:
    """Whether the integers (such as scales) of the four groups from ``first`` on are the four bytes of the same
    words.
    """
    return all(
        not part.in_half
        and part.words[first : first + 4] == part.words[first : first + 1] * 4
        and part.shifts[first : first + 4] == tuple(part.shifts[first] + 8 * byte for byte in range(4))
        for part in parts
    )


def _picked(e: Emitter, values: Sequence[int], index: ir.Value) -> ir.Value:
    """Emit ``values[at]``."""
    if isinstance(index, ir.Constant):
        return long(values[index.constant])
    if len(set(values)) == 1:
        return long(values[0])
    name = "table." + ".".join(map(str, values))
    table = e.module.globals.get(name)
    if table is None:
        kind = ir.ArrayType(I64, len(values))
        table = ir.GlobalVariable(e.module, kind, name)
        table.initializer, table.global_constant, table.linkage = ir.Constant(kind, list(values)), True, "internal"
    return e.load(e.b.gep(table, [long(0), index], source_etype=table.value_type), I64, align=8)


def _shift(e: Emitter, values: Sequence[int], index: ir.Value) -> ir.Value:
    if isinstance(index, ir.Constant):
        return e.whole_splat(values[index.constant])
    if len(set(values)) == 1:
        return e.whole_splat(values[0])
    return e.splat(e.b.trunc(_picked(e, values, index), I32))


def _bytes_at(e: Emitter, places: ir.Value, table: Sequence[int]) -> ir.Value:
    """Look up the bytes of words in a table of 16 bytes."""
    kind = ir.VectorType(I8, 4 * e.lanes)
    constant = ir.Constant(kind, [I8(value) for value in table] * (4 * e.lanes // len(table)))
    x86 = "86" in binding.get_process_triple().partition("-")[0]
    wide = {4: "llvm.x86.ssse3.pshuf.b.128", 8: "llvm.x86.avx2.pshuf.b", 16: "llvm.x86.avx512.pshuf.b.512"}
    name = wide[e.lanes] if x86 else "llvm.aarch64.neon.tbl1.v16i8"
    return e.b.bitcast(e.intrinsic(name, kind, constant, e.b.bitcast(places, kind)), e.whole)


def _quant(e: Emitter, quants: ir.Value, index: int) -> ir.Value:
    """Emit byte ``index`` of each word as float32. Because the byte is not shifted, the result is too large by a power
    of 256: it is the byte divided by ``_share_of(index)``.
    """
    if index == RUN_WORDS - 1:  # only the highest byte is shifted, because otherwise the integer could be negative
        return e.b.sitofp(e.b.lshr(quants, e.whole_splat(8 * index)), e.vector)
    return e.b.sitofp(e.b.and_(quants, e.whole_splat(0xFF << 8 * index)), e.vector)


def _share_of(index: int) -> float:
    return 1.0 if index == RUN_WORDS - 1 else 2.0 ** (-8 * index)


# Kernels -------------------------------------------------------------------------------------------------------------


def emit_interleaved(module: ir.Module, name: str, lanes: int, number_of_format: int) -> None:
    """Emit the kernel ``interleaved``, which copies a panel's blocks in interleaved order: first each 16-bit number of
    a block (``Format.halves``), then each word, for all outputs of the panel. Columns without an output get zeros.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    form, columns = FORMATS[number_of_format], lanes * PANEL_VECTORS
    _, panel, _ = e.arguments
    source, order, weights = e.pointers(Interleaved.BLOCKS, Interleaved.ORDER, Interleaved.WEIGHTS)
    row_bytes, inputs = e.longs(Interleaved.ROW_BYTES, Interleaved.INPUTS)
    blocks, size = e.b.sdiv(inputs, long(form.values)), long(form.held_bytes * columns)
    target = e.at(weights, e.b.mul(panel, e.b.mul(blocks, size)), I8)
    with e.loop(long(0), long(columns)) as column:
        row = e.load(e.at(order, e.b.add(e.b.mul(panel, long(columns)), column), I64), I64, align=8)
        here = e.b.icmp_signed(">=", row, long(0))
        line = e.at(source, e.b.mul(row, row_bytes), I8)
        with e.loop(long(0), blocks) as block:
            own = e.at(target, e.b.mul(block, size), I8)
            taken = e.at(line, e.b.mul(block, long(form.bytes)), I8)
            factors = [(I8 if form.has_exponent else I16, I16, offset) for offset in form.halves]
            parts = factors + [(I32, I32, offset) for offset in form.word_offsets]
            begin = 0
            with e.b.if_else(here) as (some, none):
                for branch in (some, none):
                    with branch:
                        begin = 0
                        for stored, kind, offset in parts:
                            value = kind(0)
                            if branch is some:
                                value = e.load(e.at(taken, long(offset), I8), stored, align=1)
                                value = value if stored is kind else e.b.zext(value, kind)
                            place = e.at(e.at(own, long(begin), I8), column, kind)
                            e.store(value, place, align=2)
                            begin += columns * kind.width // 8
    e.end()


def emit_arranged(module: ir.Module, name: str, lanes: int, kind: str) -> None:
    """Emit the kernel ``arranged``, which writes x in float32 and the sum of each run of x. Each number of x is divided
    by the power of 256 by which the unshifted quant is too large (``_share_of``). A tile is one row.

    Args:
        kind: dtype of x.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    _, row, _ = e.arguments
    x, out, sums = e.pointers(Spread.X, Spread.OUT, Spread.SUMS)
    [inputs] = e.longs(Spread.INPUTS)
    first = e.b.mul(row, inputs)
    factors = ir.Constant(e.vector, [number(_share_of(lane % RUN_WORDS)) for lane in range(lanes)])
    with e.loop(long(0), e.b.sdiv(inputs, long(RUN))) as run:
        total = e.constant(0.0)
        for offset in range(0, RUN, lanes):
            place = e.b.add(e.b.add(first, e.b.mul(run, long(RUN))), long(offset))
            loaded = e.load_vector(x, place, KINDS[kind])
            total = e.b.fadd(total, loaded)
            e.store(e.b.fmul(loaded, factors), e.at(out, place, F32))
        place = e.b.add(e.b.sdiv(first, long(RUN)), run)
        e.store(e.fold(total, e.b.fadd), e.at(sums, place, F32))
    e.end()


def emit_product_blocks(module: ir.Module, name: str, lanes: int, number_of_format: int) -> None:
    """Emit the kernel that multiplies ``TILE_PANELS`` panels of blocks with x. The kernel ``arranged`` has prepared
    x.
    """
    e, form = Emitter(module, name, VOID, (PTR, I64, I64), lanes), FORMATS[number_of_format]
    columns = lanes * PANEL_VECTORS
    x, packed, out, sums_of_x = e.pointers(Product.X, Product.WEIGHTS, Product.OUT, Product.SUMS)
    inputs, outputs = e.longs(Product.INPUTS, Product.OUTPUTS)
    blocks, size = e.b.sdiv(inputs, long(form.values)), form.held_bytes * columns
    offset, runs, groups = code_offset(form), form.group // RUN, form.values // form.group
    has_least = form.has_least or bool(form.zero + offset)

    def add_group(own: BlockLoads, group: ir.Value, starts: list[ir.Value], totals: Sums) -> None:
        scales = own.scales(group, offset)
        if has_least:
            for start, total in zip(starts, totals, strict=True):
                _add_least(e, sums_of_x, e.b.sdiv(start, long(RUN)), runs, scales, total)
        lines = [e.at(x, start, F32) for start in starts]
        with e.loop(long(0), long(runs)) as at:
            run = e.b.add(e.b.mul(group, long(runs)), at)
            sums = [[e.variable(e.constant(0.0)) for _ in range(PANEL_VECTORS)] for _ in lines]
            own_lines = [e.at(line, e.b.mul(at, long(RUN)), F32) for line in lines]
            _add_run(e, own, run, own_lines, sums)
            for total, some in zip(totals, sums, strict=True):
                for (step, _), so_far, part in zip(scales, total, some, strict=True):
                    so_far.value = e.fma(part.value, step, so_far.value)

    def rows_of(row: ir.Value, count: int, panel: ir.Value) -> None:
        rows = [e.b.mul(e.b.add(row, long(at)), inputs) for at in range(count)]
        totals = [[e.variable(e.constant(0.0)) for _ in range(PANEL_VECTORS)] for _ in rows]
        with e.loop(long(0), blocks) as block:
            place = e.b.mul(e.b.add(e.b.mul(panel, blocks), block), long(size))
            own = BlockLoads(e, form, e.at(packed, place, I8))
            with e.loop(long(0), long(groups)) as group:
                own.ask_next(group, long(size), form.group)
                first = e.b.add(e.b.mul(block, long(form.values)), e.b.mul(group, long(form.group)))
                add_group(own, group, [e.b.add(start, first) for start in rows], totals)
        store_sums(e, out, row, e.b.mul(panel, long(columns)), outputs, totals)

    each_panel(e, rows_of, [count for count in row_blocks(accumulators(lanes), PANEL_VECTORS) if count != _LEFT_OUT])
    e.end()


def _add_least(
    e: Emitter,
    sums_of_x: ir.Value,
    first: ir.Value,
    runs: int,
    scales: list[tuple[ir.Value, ir.Value]],
    total: list[Variable],
) -> None:
    """Add the part of a group's product that does not depend on quants: the sum of x times the number added to every
    weight.
    """
    sum_of_x = e.load(e.at(sums_of_x, first, F32), F32)
    for at in range(1, runs):
        sum_of_x = e.b.fadd(sum_of_x, e.load(e.at(sums_of_x, e.b.add(first, long(at)), F32), F32))
    wide = e.splat(sum_of_x)
    for (_, least), so_far in zip(scales, total, strict=True):
        so_far.value = e.fma(wide, least, so_far.value)


def _add_run(e: Emitter, block: BlockLoads, run: ir.Value, lines: list[ir.Value], sums: Sums) -> None:
    """Add to ``sums`` the products of a run's quants with every row of x. ``lines`` are the addresses of the run's
    inputs in these rows.
    """
    for word in range(RUN_WORDS):
        for vector in range(PANEL_VECTORS):
            quants = block.quants(run, word, vector)
            for byte in range(RUN_WORDS):
                loaded = _quant(e, quants, byte)
                for line, own in zip(lines, sums, strict=True):
                    number_of_row = e.splat(e.load(e.at(line, long(RUN_WORDS * word + byte), F32), F32))
                    own[vector].value = e.fma(number_of_row, loaded, own[vector].value)


def emit_expanded(module: ir.Module, name: str, lanes: int, number_of_format: int, result_dtype: str) -> None:
    """Emit the kernel ``expanded``, which dequantizes a panel's weights to the dtype ``result_dtype`` and writes them
    to ``OUT`` (inputs, outputs).
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    form, columns = FORMATS[number_of_format], lanes * PANEL_VECTORS
    _, tile, _ = e.arguments
    packed, chosen, out = e.pointers(Expanded.WEIGHTS, Expanded.CHOSEN, Expanded.OUT)
    inputs, outputs = e.longs(Expanded.INPUTS, Expanded.OUTPUTS)
    panel = e.load(e.at(chosen, tile, I64), I64, align=8)
    blocks, size = e.b.sdiv(inputs, long(form.values)), form.held_bytes * columns
    here, column = e.at(packed, e.b.mul(panel, e.b.mul(blocks, long(size))), I8), e.b.mul(tile, long(columns))
    offset, runs = code_offset(form), form.group // RUN
    with e.loop(long(0), blocks) as block:
        own = BlockLoads(e, form, e.at(here, e.b.mul(block, long(size)), I8))
        with e.loop(long(0), long(form.values // form.group)) as group:
            scales = own.scales(group, offset)
            first = e.b.add(e.b.mul(block, long(form.values)), e.b.mul(group, long(form.group)))
            with e.loop(long(0), long(runs)) as at:
                run = e.b.add(e.b.mul(group, long(runs)), at)
                start = e.b.add(first, e.b.mul(at, long(RUN)))
                for word in range(RUN_WORDS):
                    for vector, (step, least) in enumerate(scales):
                        quants = own.quants(run, word, vector)
                        for byte in range(RUN_WORDS):
                            quant = e.b.fmul(_quant(e, quants, byte), e.constant(_share_of(byte)))
                            place = e.b.mul(e.b.add(start, long(RUN_WORDS * word + byte)), outputs)
                            place = e.b.add(place, e.b.add(column, long(vector * lanes)))
                            e.store_vector(e.fma(quant, step, least), out, place, KINDS[result_dtype])
    e.end()


def emit_product_halves(module: ir.Module, name: str, lanes: int) -> None:
    """Emit the kernel ``product_halves``, a product with weights in float16 (``emit_product``)."""

    def near(e: Emitter, place: ir.Value) -> list[ir.Value]:
        kind = ir.VectorType(I16, lanes)
        return [_widened(e, e.load(e.at(place, long(vector * lanes), I16), kind, 2)) for vector in range(PANEL_VECTORS)]

    emit_product(module, name, lanes, "bfloat16", "", near)


EMIT: dict[str, Callable[..., None]] = {
    "interleaved": emit_interleaved,
    "arranged": emit_arranged,
    "product_blocks": emit_product_blocks,
    "product_halves": emit_product_halves,
    "expanded": emit_expanded,
}
"""Emitters of these kernels, keyed by name."""
