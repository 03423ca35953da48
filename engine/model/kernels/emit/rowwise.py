"""Emits the operations of a decoder layer between its matrix products: norms, RoPE, SiLU, residual sums. Another
kernel, ``gathered``, copies chunks of KV.

A tile is one row, or a piece of a row. It is computed in float32 in a fixed order, so its bits do not depend on the
number of rows in the pass. Inputs and outputs of a layer have the model's dtype. All numbers in between are float32,
except inputs of products, which have the dtype that the product takes.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from engine.model.kernels.abi import (
    COPIED,
    LINE_WORDS,
    Collected,
    Gated,
    Gathered,
    GatheredLine,
    Norm,
    Residual,
    Rotated,
)
from engine.model.kernels.emit.emitter import F32, I8, I16, I64, KINDS, PTR, VOID, Emitter, long, number

LN2 = 0.6931471805599453


def _emit_normed(module: ir.Module, name: str, lanes: int, kind: str, adds: bool, result_dtype: str) -> None:
    """Emit the kernel ``normed``, which stores the RMS norm of row ``tile`` of x in the dtype ``result_dtype``. If
    ``adds`` is true, the kernel first adds ``DELTA`` to x, and also stores this sum, in float32.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, row, _ = e.arguments
    x, weights, out = e.pointers(Residual.X, Residual.WEIGHTS, Residual.OUT)
    width = e.load_long(arguments, Residual.WIDTH)
    epsilon = e.load_float(arguments, Residual.EPSILON)
    first = e.b.mul(row, width)
    kept = e.load_pointer(arguments, Residual.SUM) if adds else x
    squares = e.variable(e.constant(0.0))
    with e.loop(long(0), width, lanes) as column:
        place = e.b.add(first, column)
        value = e.load_vector(x, place, KINDS[kind])
        if adds:
            value = e.b.fadd(value, _delta(e, row, column))
            e.store(value, e.at(kept, place, F32))
        squares.value = e.fma(value, value, squares.value)
    scale = _inverse_root(e, squares.value, e.b.sitofp(width, F32), epsilon)
    with e.loop(long(0), width, lanes) as column:
        place = e.b.add(first, column)
        value = e.b.fmul(e.load_vector(kept, place, F32 if adds else KINDS[kind]), scale)
        e.store_vector(e.b.fmul(value, e.load_vector(weights, column)), out, place, KINDS[result_dtype])
    e.end()


def _emit_added(module: ir.Module, name: str, lanes: int, kind: str) -> None:
    """Emit the kernel ``added``, which adds a product's result ``DELTA`` to row ``tile`` of the residual stream ``SUM``
    and stores the sum in the model's dtype.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, row, _ = e.arguments
    kept, out, width = (
        e.load_pointer(arguments, Residual.SUM),
        e.load_pointer(arguments, Residual.OUT),
        e.load_long(arguments, Residual.WIDTH),
    )
    with e.loop(long(0), width, lanes) as column:
        place = e.b.add(e.b.mul(row, width), column)
        e.store_vector(e.b.fadd(e.load_vector(kept, place), _delta(e, row, column)), out, place, KINDS[kind])
    e.end()


def _delta(e: Emitter, row: ir.Value, column: ir.Value) -> ir.Value:
    """Load a vector of the product's result ``DELTA``, and add the product's bias."""
    arguments = e.arguments[0]
    delta, bias = e.load_pointer(arguments, Residual.DELTA), e.load_pointer(arguments, Residual.BIAS)
    start = e.b.mul(row, e.load_long(arguments, Residual.DELTA_STRIDE))
    return e.b.fadd(e.load_vector(delta, e.b.add(start, column)), e.load_vector(bias, column))


def _inverse_root(e: Emitter, squares: ir.Value, count: ir.Value, epsilon: ir.Value) -> ir.Value:
    mean = e.b.fdiv(e.fold(squares, e.b.fadd), count)
    return e.splat(e.b.fdiv(number(1.0), e.call("llvm.sqrt", e.b.fadd(mean, epsilon))))


def _emit_rotated(
    module: ir.Module, name: str, lanes: int, kind: str, head_dim: int, rotary: int, normed: bool
) -> None:
    """Emit the kernel ``rotated``, which splits row ``tile`` of the joint product into queries, keys and values,
    rotates queries and keys, and stores all three in the model's dtype. The keys before their rotation are stored at
    ``UNTURNED``, unless this address is 0.

    Args:
        lanes: a divisor of half of ``rotary``, and of ``head_dim``.
        rotary: how many numbers of a head RoPE rotates. Each number of their first half is rotated together with its
            counterpart in the second half.
        normed: whether queries and keys have an RMS norm.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, row, _ = e.arguments
    x, bias, cos, sin = e.pointers(Rotated.X, Rotated.BIAS, Rotated.COS, Rotated.SIN)
    rows, heads, key_heads, kv_head = e.longs(Rotated.ROWS, Rotated.HEADS, Rotated.KEY_HEADS, Rotated.KV_HEAD)
    per_head = e.b.mul(rows, long(head_dim))
    epsilon = e.load_float(arguments, Rotated.NORM_EPSILON)
    first = e.b.mul(row, e.load_long(arguments, Rotated.X_STRIDE))
    angle = e.b.mul(row, long(rotary))
    half = rotary // 2 // lanes
    keys_end = e.b.add(heads, key_heads)
    for start, stop, norm, made, stride in (
        (long(0), heads, Rotated.QUERY_NORM, Rotated.QUERIES, per_head),
        (heads, keys_end, Rotated.KEY_NORM, Rotated.KEYS, kv_head),
        (keys_end, e.b.add(keys_end, key_heads), None, Rotated.VALUES, kv_head),
    ):
        out = e.load_pointer(arguments, made)
        weights = e.load_pointer(arguments, norm) if normed and norm is not None else None
        with e.loop(start, stop) as head:
            base = e.b.mul(head, long(head_dim))
            parts = []
            for column in range(0, head_dim, lanes):
                place = e.b.add(base, long(column))
                parts.append(e.b.fadd(e.load_vector(x, e.b.add(first, place)), e.load_vector(bias, place)))
            if weights is not None:
                squares = e.constant(0.0)
                for part in parts:
                    squares = e.fma(part, part, squares)
                scale = _inverse_root(e, squares, number(float(head_dim)), epsilon)
                parts = [
                    e.b.fmul(e.b.fmul(part, scale), e.load_vector(weights, long(index * lanes)))
                    for index, part in enumerate(parts)
                ]
            line = e.b.add(e.b.mul(e.b.sub(head, start), stride), e.b.mul(row, long(head_dim)))
            if norm == Rotated.KEY_NORM:
                with e.b.if_then(e.b.icmp_signed("!=", e.load_long(arguments, Rotated.UNTURNED), long(0))):
                    _store(e, parts, e.load_pointer(arguments, Rotated.UNTURNED), line, KINDS[kind])
            if norm is not None:
                parts = [
                    *_turned(e, parts[: 2 * half], cos, sin, angle, KINDS[kind]),
                    *parts[2 * half :],
                ]
            _store(e, parts, out, line, KINDS[kind])
    e.end()


def _store(e: Emitter, parts: list[ir.Value], out: ir.Value, line: ir.Value, kind: ir.Type) -> None:
    for index, part in enumerate(parts):
        e.store_vector(part, out, e.b.add(line, long(index * e.lanes)), kind)


def _turned(
    e: Emitter, parts: list[ir.Value], cos: ir.Value, sin: ir.Value, angle: ir.Value, kind: ir.Type
) -> list[ir.Value]:
    half = len(parts) // 2
    turned = []
    for index, part in enumerate(parts):
        place = e.b.add(angle, long(index * e.lanes))
        across = parts[index - half] if index >= half else e.b.fneg(parts[index + half])
        along = e.b.fmul(part, e.load_vector(cos, place, kind))
        turned.append(e.fma(across, e.load_vector(sin, place, kind), along))
    return turned


def _emit_collected(module: ir.Module, name: str, lanes: int, kind: str, head_dim: int, result_dtype: str) -> None:
    """Emit the kernel ``collected``, which concatenates all heads of row ``tile`` in the dtype ``result_dtype``."""
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, row, _ = e.arguments
    x, out = e.load_pointer(arguments, Collected.X), e.load_pointer(arguments, Collected.OUT)
    rows, heads = e.load_long(arguments, Collected.ROWS), e.load_long(arguments, Collected.HEADS)
    with e.loop(long(0), heads) as head:
        source = e.b.mul(e.b.add(e.b.mul(head, rows), row), long(head_dim))
        target = e.b.mul(e.b.add(e.b.mul(row, heads), head), long(head_dim))
        for column in range(0, head_dim, lanes):
            loaded = e.load_vector(x, e.b.add(source, long(column)), KINDS[kind])
            e.store_vector(loaded, out, e.b.add(target, long(column)), KINDS[result_dtype])
    e.end()


def _emit_gated(module: ir.Module, name: str, lanes: int, result_dtype: str) -> None:
    """Emit the kernel ``gated``, which stores SiLU(gates) * values for piece ``tile`` in the dtype ``result_dtype``. In
    a row of ``X``, the gates come before the values.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    _, tile, _ = e.arguments
    x, bias, out = e.pointers(Gated.X, Gated.BIAS, Gated.OUT)
    stride, gates, size, pieces = e.longs(Gated.X_STRIDE, Gated.GATES, Gated.PIECE, Gated.PIECES)
    row = e.b.sdiv(tile, pieces)
    first = e.b.mul(e.b.srem(tile, pieces), size)
    stop = e.b.add(first, size)
    stop = e.b.select(e.b.icmp_signed("<", stop, gates), stop, gates)
    line = e.b.mul(row, stride)
    with e.loop(first, stop, lanes) as column:
        gate, up = (
            e.b.fadd(e.load_vector(x, e.b.add(line, place)), e.load_vector(bias, place))
            for place in (column, e.b.add(column, gates))
        )
        power = e.exp2(e.b.fmul(e.call("llvm.fabs", gate), e.constant(-1.0 / LN2)))
        share = e.b.fdiv(e.constant(1.0), e.b.fadd(e.constant(1.0), power))
        share = e.b.select(e.b.fcmp_ordered("<", gate, e.constant(0.0)), e.b.fmul(power, share), share)
        value = e.b.fmul(e.b.fmul(gate, share), up)
        e.store_vector(value, out, e.b.add(e.b.mul(row, gates), column), KINDS[result_dtype])
    e.end()


def _emit_gathered(module: ir.Module, name: str, lanes: int) -> None:
    """Emit the kernel ``gathered``, which copies the chosen chunks of one head, one chunk after another. Line ``tile``
    of ``Gathered.LINES`` has the addresses of the head's chunks and of the chosen chunks' indices.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, tile, _ = e.arguments
    lines, count, size = (
        e.load_pointer(arguments, Gathered.LINES),
        e.load_long(arguments, Gathered.CHOSEN),
        e.load_long(arguments, Gathered.CHUNK_BYTES),
    )
    line = e.at(lines, e.b.mul(tile, long(LINE_WORDS)), I64)
    source, target, chosen = (
        e.load_pointer(line, slot) for slot in (GatheredLine.SOURCE, GatheredLine.TARGET, GatheredLine.CHUNKS)
    )
    vector = ir.VectorType(I64, COPIED // 8)
    with e.loop(long(0), count) as place:
        chunk = e.load(e.at(chosen, place, I64), I64, align=8)
        first, out = e.b.mul(chunk, size), e.b.mul(place, size)
        following = e.b.add(place, long(1))
        following = e.b.select(e.b.icmp_signed("<", following, count), following, place)
        coming = e.b.mul(e.load(e.at(chosen, following, I64), I64, align=8), size)
        with e.loop(long(0), size, COPIED) as offset:
            e.prefetch(e.at(source, e.b.add(coming, offset), I8))
            value = e.load(e.at(source, e.b.add(first, offset), I8), vector)
            e.store(value, e.at(target, e.b.add(out, offset), I8))
    e.end()


def _emit_norm(module: ir.Module, name: str, lanes: int, kind: str) -> None:
    """Emit the kernel ``norm``, which computes out = weights * x / sqrt(mean(x ** 2) + epsilon) for ``TILE_ROWS`` rows.
    Results are rounded as in transformers' RMS norms.

    Args:
        kind: the dtype of x and out. If it is bfloat16, the normalized x is rounded before it is multiplied by the
            weights, which are float32.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, tile, _ = e.arguments
    x, weights, out = e.pointers(Norm.X, Norm.WEIGHTS, Norm.OUT)
    rows, width, count = e.longs(Norm.ROWS, Norm.WIDTH, Norm.TILE_ROWS)
    epsilon = e.load_float(arguments, Norm.EPSILON)
    first = e.b.mul(tile, count)
    stop = e.b.add(first, count)
    stop = e.b.select(e.b.icmp_signed("<", stop, rows), stop, rows)
    with e.loop(first, stop) as row:
        base = e.b.mul(row, width)
        squares = e.variable(e.constant(0.0))
        with e.loop(long(0), width, lanes) as column:
            loaded = e.load_vector(x, e.b.add(base, column), KINDS[kind])
            squares.value = e.fma(loaded, loaded, squares.value)
        mean = e.b.fdiv(e.fold(squares.value, e.b.fadd), e.b.sitofp(width, F32))
        scale = e.splat(e.b.fdiv(number(1.0), e.call("llvm.sqrt", e.b.fadd(mean, epsilon))))
        with e.loop(long(0), width, lanes) as column:
            place = e.b.add(base, column)
            value = e.b.fmul(e.load_vector(x, place, KINDS[kind]), scale)
            if kind == "bfloat16":
                value = e.widened(e.narrowed(value))
            value = e.b.fmul(e.load_vector(weights, column), value)
            if kind == "bfloat16":
                e.store(e.narrowed(value), e.at(out, place, I16), align=2)
            else:
                e.store(value, e.at(out, place, F32))
    e.end()


EMIT: dict[str, Callable[..., None]] = {
    "norm": _emit_norm,
    "normed": _emit_normed,
    "added": _emit_added,
    "rotated": _emit_rotated,
    "collected": _emit_collected,
    "gated": _emit_gated,
    "gathered": _emit_gathered,
}
"""Emitters of these kernels, keyed by name."""
