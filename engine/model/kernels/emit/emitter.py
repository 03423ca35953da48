"""Provides a thin layer over llvmlite's builder, for kernels written as loops over vectors.

The compiler may not reorder arithmetic, because no fast-math flag is set and every multiply-add is one fused operation.
So a kernel's sums have the order of its source. Their bits stay the same, however many rows its loops compute at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
F32, PTR, VOID = ir.FloatType(), ir.PointerType(), ir.VoidType()

QUANTS = ir.VectorType(I8, 64)
"""A vector of 64 bytes: one quant a byte. It is as large as a vector of 16 float32 lanes."""

FLOAT_BYTES = 4
BYTES = {F32: FLOAT_BYTES, I16: 2, I8: 1}
"""Bytes of a number in memory, keyed by its type: float32, bfloat16 (as i16) or an 8-bit quant."""


class _BFloat(ir.Type):
    """LLVM's bfloat16, for which llvmlite has no name. Only the operands and results of bfloat16 instructions have this
    type.
    """

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


KINDS = {"float32": F32, "bfloat16": I16, "int8": I8}
"""The types of numbers in memory, keyed by name."""


class Emitter:
    """Emits one function.

    Args:
        module: the module that the function belongs to.
        name: the function's name.
        result, parameters: types of the function's result and of its parameters.
        lanes: number of float32 numbers in a SIMD vector.
    """

    def __init__(
        self, module: ir.Module, name: str, result: ir.Type, parameters: Sequence[ir.Type], lanes: int = 1
    ) -> None:
        self.module = module
        self.function = ir.Function(module, ir.FunctionType(result, parameters), name)
        # Without exceptions, Windows needs no tables to unwind the stack. LLVM ends the process if it cannot place such
        # tables above the code in memory.
        self.function.attributes.add("nounwind")
        self.arguments: Sequence[ir.Value] = self.function.args
        self._entry = self.function.append_basic_block("entry")
        self.b = ir.IRBuilder(self.function.append_basic_block("body"))
        self.lanes = lanes
        self.vector = ir.VectorType(F32, lanes)
        self.whole = ir.VectorType(I32, lanes)

    def end(self, value: ir.Value | None = None) -> None:
        """Emit the return, and close the function."""
        if value is None:
            self.b.ret_void()
        else:
            self.b.ret(value)
        with self.b.goto_block(self._entry):
            self.b.branch(self.function.blocks[1])

    # Variables, which become registers -------------------------------------------------------------------------

    def variable(self, start: ir.Value) -> Variable:
        """Make a local variable, initialised with ``start``."""
        with self.b.goto_block(self._entry):
            place = self.b.alloca(start.type)
        variable = Variable(self, place, start.type)
        variable.value = start
        return variable

    def room(self, kind: ir.Type, count: int) -> ir.Value:
        """Reserve memory for ``count`` values on the stack. Returns its address."""
        with self.b.goto_block(self._entry):
            return self.b.alloca(kind, count)

    @contextmanager
    def loop(self, start: ir.Value, stop: ir.Value, step: int | ir.Value = 1) -> Iterator[ir.Value]:
        """Emit ``for i in range(start, stop, step)`` over i64."""
        index = self.variable(start)
        head, body, after = (self.function.append_basic_block(name) for name in ("head", "body", "after"))
        self.b.branch(head)
        self.b.position_at_end(head)
        self.b.cbranch(self.b.icmp_signed("<", index.value, stop), body, after)
        self.b.position_at_end(body)
        here = index.value
        yield here
        index.value = self.b.add(here, step if isinstance(step, ir.Value) else long(step))
        self.b.branch(head)
        self.b.position_at_end(after)

    @contextmanager
    def loop_while(self) -> Iterator[Any]:
        """Emit ``while True``. Yields a function that takes a condition and emits leaving the loop if the condition
        holds.
        """
        body, after = (self.function.append_basic_block(name) for name in ("body", "after"))
        self.b.branch(body)
        self.b.position_at_end(body)

        def leave_if(condition: ir.Value) -> None:
            rest = self.function.append_basic_block("rest")
            self.b.cbranch(condition, after, rest)
            self.b.position_at_end(rest)

        yield leave_if
        self.b.branch(body)
        self.b.position_at_end(after)

    # Memory ----------------------------------------------------------------------------------------------------

    def at(self, base: ir.Value, index: ir.Value, kind: ir.Type) -> ir.Value:
        """Emit the address of the ``index``-th value of type ``kind`` after ``base``."""
        return self.b.gep(base, [index], source_etype=kind)

    def load(self, address: ir.Value, kind: ir.Type, align: int = FLOAT_BYTES) -> ir.Value:
        return self.b.load(address, typ=kind, align=align)

    def store(self, value: ir.Value, address: ir.Value, align: int = FLOAT_BYTES) -> None:
        self.b.store(value, address, align=align)

    def load_vector(self, base: ir.Value, index: ir.Value, kind: ir.Type = F32) -> ir.Value:
        """Load ``lanes`` numbers, from the ``index``-th number after ``base`` on, and convert them to float32. The
        conversion is exact for every type in ``BYTES``.
        """
        loaded = self.load(self.at(base, index, kind), ir.VectorType(kind, self.lanes), align=BYTES[kind])
        if kind is F32:
            return loaded
        return self.widened(loaded) if kind is I16 else self.b.sitofp(self.b.sext(loaded, self.whole), self.vector)

    def store_vector(self, value: ir.Value, base: ir.Value, index: ir.Value, kind: ir.Type) -> None:
        """Store a float32 vector in the type ``kind``, float32 or bfloat16, rounded to the nearest number."""
        self.store(value if kind is F32 else self.narrowed(value), self.at(base, index, kind), align=BYTES[kind])

    def prefetch(self, address: ir.Value) -> None:
        """Prefetch the cache line of an address. An invalid address is harmless."""
        # These constants mean: prefetch for reading, into the second-level cache, and data instead of instructions.
        self.intrinsic("llvm.prefetch.p0", VOID, address, I32(0), I32(2), I32(1))

    def load_long(self, base: ir.Value, index: int) -> ir.Value:
        """Load an integer argument of a kernel: the ``index``-th i64 after ``base``."""
        return self.load(self.at(base, long(index), I64), I64, align=8)

    def load_pointer(self, base: ir.Value, index: int) -> ir.Value:
        return self.b.inttoptr(self.load_long(base, index), PTR)

    def load_float(self, base: ir.Value, index: int) -> ir.Value:
        """Load a float32 from the lower half of the ``index``-th i64 after ``base``."""
        return self.load(self.at(base, long(index), I64), F32)

    def longs(self, *slots: int) -> list[ir.Value]:
        """Load the integer arguments in these slots of the emitted kernel. The kernel's first parameter is the address
        of its argument array.
        """
        return [self.load_long(self.arguments[0], slot) for slot in slots]

    def pointers(self, *slots: int) -> list[ir.Value]:
        """Load the arguments in these slots of the emitted kernel as addresses."""
        return [self.load_pointer(self.arguments[0], slot) for slot in slots]

    # Arithmetic ------------------------------------------------------------------------------------------------

    def splat(self, value: ir.Value) -> ir.Value:
        """Emit a vector with one number in every lane."""
        kind = ir.VectorType(value.type, self.lanes)
        first = self.b.insert_element(ir.Constant(kind, ir.Undefined), value, I32(0))
        return self.b.shuffle_vector(first, ir.Constant(kind, ir.Undefined), _mask([0] * self.lanes))

    def constant(self, value: float) -> ir.Value:
        """Emit a vector with one float32 constant in every lane."""
        return ir.Constant(self.vector, [number(value)] * self.lanes)

    def whole_splat(self, value: int) -> ir.Value:
        return ir.Constant(self.whole, [I32(value)] * self.lanes)

    def call(self, name: str, *values: ir.Value) -> ir.Value:
        """Call an LLVM intrinsic whose operands and result have the same type."""
        kind = values[0].type
        name = f"{name}.v{kind.count}f32" if isinstance(kind, ir.VectorType) else f"{name}.f32"
        return self.intrinsic(name, kind, *values)

    def intrinsic(self, name: str, result: ir.Type, *values: ir.Value) -> ir.Value:
        """Call the LLVM intrinsic of this name."""
        known = self.module.globals.get(name)
        if known is None:
            known = ir.Function(self.module, ir.FunctionType(result, [value.type for value in values]), name)
        return self.b.call(known, values)

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Emit a * b + c, rounded once."""
        return self.call("llvm.fma", a, b, c)

    def dot_pairs(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """Emit, for each lane, c + a.first * b.first + a.second * b.second. A lane of ``a`` and ``b`` holds a pair of
        bfloat16 numbers. Needs 16 lanes.
        """
        pairs = ir.VectorType(_BFloat(), 2 * self.lanes)
        halves = [self.b.bitcast(x, pairs) for x in (a, b)]
        return self.intrinsic("llvm.x86.avx512bf16.dpbf16ps.512", self.vector, c, *halves)

    def pair_sums(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Emit, for each lane, a.first * b.first + a.second * b.second. A lane holds a pair of 16-bit integers. Needs 8
        lanes of AVX2 or 16 of AVX-512BW. If the result is added to a sum, LLVM emits a single instruction on processors
        with VNNI.
        """
        pairs = ir.VectorType(I16, 2 * self.lanes)
        name = {8: "llvm.x86.avx2.pmadd.wd", 16: "llvm.x86.avx512.pmaddw.d.512"}[self.lanes]
        return self.intrinsic(name, self.whole, *(self.b.bitcast(x, pairs) for x in (a, b)))

    def add_byte_dots(self, total: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """Emit, for each lane, the number in ``total`` plus the products of the four bytes in ``a`` with those in
        ``b``. The bytes of ``a`` are unsigned. Needs VNNI.
        """
        parts = ir.VectorType(I8, 4 * self.lanes)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * self.lanes}"
        return self.intrinsic(name, self.whole, total, *(self.b.bitcast(x, parts) for x in (a, b)))

    def byte_sums(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """Emit, for each 16-bit half of a lane, a.first * b.first + a.second * b.second. A half holds a pair of bytes.
        The bytes of ``a`` are unsigned. The results must fit in 16 bits. Needs 8 lanes of AVX2 or 16 of AVX-512BW.
        """
        parts, halves = ir.VectorType(I8, 4 * self.lanes), ir.VectorType(I16, 2 * self.lanes)
        name = {8: "llvm.x86.avx2.pmadd.ub.sw", 16: "llvm.x86.avx512.pmaddubs.w.512"}[self.lanes]
        return self.intrinsic(name, halves, *(self.b.bitcast(x, parts) for x in (a, b)))

    def load_pairs(self, base: ir.Value, index: ir.Value, kind: ir.Type, count: int) -> ir.Value:
        """Load ``count`` pairs of numbers, from the ``index``-th number after ``base`` on. The numbers are bfloat16, or
        8-bit quants that are converted to bfloat16. A pair fills one lane of the returned vector.
        """
        both = ir.VectorType(kind, 2 * count)
        loaded = self.load(self.at(base, index, kind), both, align=BYTES[kind])
        if kind is I8:
            wide = self.b.sitofp(loaded, ir.VectorType(F32, 2 * count))
            bits = self.b.bitcast(wide, ir.VectorType(I32, 2 * count))
            high = self.b.lshr(bits, ir.Constant(bits.type, [I32(16)] * 2 * count))
            # The conversion is exact, because the float32 of an 8-bit quant has zeros in its lower half.
            loaded = self.b.trunc(high, ir.VectorType(I16, 2 * count))
        return self.b.bitcast(loaded, ir.VectorType(F32, count))

    def looked_up(
        self, places: ir.Value, halves: Sequence[int], signs: ir.Value | None = None
    ) -> tuple[ir.Value, ir.Value]:
        """Look up entries of the table ``halves`` (bfloat16 as i16). Each byte of ``places``, a vector of the type
        ``QUANTS``, is an index into the table. Returns two vectors of 16 lanes, with a pair of entries in each lane.

        The table has 16 or 128 entries. Neighbouring bytes of ``places`` form a pair. Of every 16 bytes, the first 8
        select the entries of the first vector, and the last 8 those of the second.

        Args:
            signs: a vector whose bytes' highest bits become the signs of the entries; None leaves the entries
                unchanged.
        """
        low, high = (self._bytes_at(places, [half >> shift & 0xFF for half in halves]) for shift in (0, 8))
        if signs is not None:
            high = self.b.or_(high, self.b.and_(signs, self.all_bytes(0x80)))
        vectors = []
        for half in (0, 8):
            mask = [at + n for at in range(half, 64, 16) for n in range(8)]
            zipped = self.b.shuffle_vector(low, high, _mask([place for at in mask for place in (at, 64 + at)]))
            vectors.append(self.b.bitcast(zipped, self.vector))
        return vectors[0], vectors[1]

    def _bytes_at(self, places: ir.Value, table: Sequence[int]) -> ir.Value:
        if len(table) == 16:  # the instruction looks up within 16 bytes, so the table is repeated four times
            return self.intrinsic("llvm.x86.avx512.pshuf.b.512", QUANTS, _bytes([*table] * 4), places)
        first, second = _bytes(table[:64]), _bytes(table[64:])
        return self.intrinsic("llvm.x86.avx512.vpermi2var.qi.512", QUANTS, first, places, second)

    def all_bytes(self, value: int) -> ir.Value:
        """Emit a vector of the type ``QUANTS`` with the same value in every byte."""
        return _bytes([value] * QUANTS.count)

    def interleaved(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Interleave the 16-bit numbers of two vectors into two vectors of pairs."""
        halves = ir.VectorType(I16, 2 * self.lanes)
        a, b = self.b.bitcast(a, halves), self.b.bitcast(b, halves)
        count = 2 * self.lanes
        low, high = (
            self.b.shuffle_vector(
                a, b, _mask([lane for k in range(first, first + self.lanes) for lane in (k, count + k)])
            )
            for first in (0, self.lanes)
        )
        return self.b.bitcast(low, self.vector), self.b.bitcast(high, self.vector)

    def concatenated(self, parts: Sequence[ir.Value]) -> ir.Value:
        """Join vectors of the same size, a power of 2 of them, to one vector."""
        while len(parts) > 1:
            mask = _mask(range(2 * parts[0].type.count))
            parts = [self.b.shuffle_vector(a, b, mask) for a, b in zip(parts[0::2], parts[1::2], strict=True)]
        return parts[0]

    def transposed_quads(self, rows: Sequence[ir.Value]) -> list[ir.Value]:
        """Transpose four vectors within every four lanes: lane i of a quad in vector j becomes lane j of this quad in
        vector i.
        """
        a, b, c, d = rows
        ab, cd = (self._zipped(x, y, 1) for x, y in ((a, b), (c, d)))
        return [*self._zipped(ab[0], cd[0], 2), *self._zipped(ab[1], cd[1], 2)]

    def _zipped(self, a: ir.Value, b: ir.Value, width: int) -> tuple[ir.Value, ir.Value]:
        """Within every four lanes, interleave groups of ``width`` lanes of a and b. Return a vector made from the first
        two lanes of every four, and a vector made from the last two.
        """
        masks: list[list[int]] = [[], []]
        for quad in range(0, self.lanes, 4):
            for half, mask in enumerate(masks):
                for first in range(quad + 2 * half, quad + 2 * half + 2, width):
                    mask += [*range(first, first + width), *range(self.lanes + first, self.lanes + first + width)]
        low, high = (self.b.shuffle_vector(a, b, _mask(mask)) for mask in masks)
        return low, high

    def widened(self, half: ir.Value) -> ir.Value:
        """Convert bfloat16 (as i16) to float32, exactly."""
        return self.b.bitcast(self.b.shl(self.b.zext(half, self.whole), self.whole_splat(16)), self.vector)

    def narrowed(self, x: ir.Value) -> ir.Value:
        """Convert float32 to the nearest bfloat16 (as i16); ties go to even."""
        bits = self.b.bitcast(x, self.whole)
        odd = self.b.and_(self.b.lshr(bits, self.whole_splat(16)), self.whole_splat(1))
        up = self.b.add(self.b.add(bits, self.whole_splat(0x7FFF)), odd)
        return self.b.trunc(self.b.lshr(up, self.whole_splat(16)), ir.VectorType(I16, self.lanes))

    def larger(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.b.select(self.b.fcmp_ordered(">", a, b), a, b)

    def fold(self, x: ir.Value, join: Any) -> ir.Value:
        """Reduce a vector to one number: combine its two halves with ``join``, again and again until one number is
        left.
        """
        count = self.lanes
        while count > 1:
            count //= 2
            low, high = (self.b.shuffle_vector(x, x, _mask(range(first, first + count))) for first in (0, count))
            x = join(low, high)
        return self.b.extract_element(x, I32(0))

    def sums(self, vectors: Sequence[ir.Value], width: int = 1) -> ir.Value:
        """Sum the lanes of each of ``lanes`` vectors. Returns a vector with one sum in each lane.

        Every sum first adds neighbouring lanes, then neighbouring pairs of lanes, and so on. The work may also be done
        in two steps. In the first step, each call takes only ``width`` vectors and returns partial sums. In the second
        step, one call takes all partial sums.

        Args:
            width: 1, or in the second step the number of vectors that each call of the first step took.
        """
        rows = list(vectors)
        while len(rows) > 1:
            rows = [self._joined(a, b, width) for a, b in zip(rows[0::2], rows[1::2], strict=True)]
            width *= 2
        return rows[0]

    def _joined(self, a: ir.Value, b: ir.Value, width: int) -> ir.Value:
        """Add pairs of neighbouring lanes within a and within b. The result has groups of ``width`` lanes from a and
        from b in turn.
        """
        n = self.lanes
        even, odd = [], []
        for start in range(0, n, 2 * width):
            even += [start + lane for lane in range(width)] + [n + start + lane for lane in range(width)]
            odd += [start + width + lane for lane in range(width)] + [n + start + width + lane for lane in range(width)]
        return self.b.fadd(self.b.shuffle_vector(a, b, _mask(even)), self.b.shuffle_vector(a, b, _mask(odd)))

    def exp2(self, x: ir.Value) -> ir.Value:
        """Emit 2 ** x of a vector with x <= 0, with an error of 2e-7. The result is 0 for x below -126."""
        tiny = self.b.fcmp_ordered("<", x, self.constant(-126.0))
        x = self.b.select(tiny, self.constant(-126.0), x)
        near = self.call("llvm.rint", x)
        rest = self.b.fsub(x, near)
        power = self.constant(_EXP2[-1])
        for coefficient in reversed(_EXP2[:-1]):
            power = self.fma(power, rest, self.constant(coefficient))
        exponent = self.b.shl(self.b.fptosi(near, self.whole), self.whole_splat(23))
        value = self.b.bitcast(self.b.add(self.b.bitcast(power, self.whole), exponent), self.vector)
        return self.b.select(tiny, self.constant(0.0), value)

    def scaled_power(self, x: ir.Value) -> ir.Value:
        """Emit 2 ** x of 16 lanes with x <= 0, with half the operations of ``exp2``. The error is 4e-6, far below the
        error of rounding to bfloat16.
        """
        near = self.call("llvm.rint", x)
        rest = self.b.fsub(x, near)
        power = self.constant(_POWER[-1])
        for coefficient in reversed(_POWER[:-1]):
            power = self.fma(power, rest, self.constant(coefficient))
        # a mask with all lanes, and the constant for the current rounding mode
        every, rounding = ir.IntType(16)(0xFFFF), I32(4)
        return self.intrinsic("llvm.x86.avx512.mask.scalef.ps.512", self.vector, power, near, power, every, rounding)

    def store_halves(self, value: ir.Value, base: ir.Value, index: ir.Value) -> None:
        """Store 16 lanes in bfloat16 like ``store_vector``, but with one instruction. Subnormal numbers become 0."""
        halves = self.intrinsic("llvm.x86.avx512bf16.cvtneps2bf16.512", ir.VectorType(_BFloat(), self.lanes), value)
        self.store(self.b.bitcast(halves, ir.VectorType(I16, self.lanes)), self.at(base, index, I16), align=2)


class Variable:
    """A local variable, which LLVM keeps in a register."""

    def __init__(self, emitter: Emitter, place: ir.Value, kind: ir.Type) -> None:
        self._emitter, self._place, self._kind = emitter, place, kind

    @property
    def value(self) -> ir.Value:
        return self._emitter.b.load(self._place, typ=self._kind)

    @value.setter
    def value(self, value: ir.Value) -> None:
        self._emitter.b.store(value, self._place)


# Taylor coefficients of 2 ** x about 0: ln(2) ** n / n!. On [-0.5, 0.5] the next term is below 2e-9.
_EXP2 = [1.0, 0.6931471805599453, 0.2402265069591007, 0.0555041086648216, 0.009618129107628477]
_EXP2 += [0.0013333558146428443, 0.00015403530393381608, 1.525273380405984e-05]

# Coefficients of the polynomial of degree 4 with the smallest relative error to 2 ** x on [-0.5, 0.5].
_POWER = [0.9999992614359087, 0.6931218147559814, 0.24024744860429012, 0.05591786021593906, 0.009570100592456837]


def long(value: int) -> ir.Value:
    """Make a 64-bit integer constant."""
    return I64(value)


def number(value: float) -> ir.Value:
    """A float32 constant."""
    return F32(value)


def _bytes(values: Sequence[int]) -> ir.Value:
    return ir.Constant(QUANTS, [I8(value) for value in values])


def _mask(places: Sequence[int] | range) -> ir.Value:
    return ir.Constant(ir.VectorType(I32, len(places)), [I32(place) for place in places])
