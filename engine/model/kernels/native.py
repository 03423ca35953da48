"""The loops of a decoding step as kernels for this processor: skinny products, attention over long KV, and norms.

They read their large operand once, at the speed of memory, and give a row of the result the same bits however many
rows come with it: every sum has a fixed order that depends on the row and on absolute positions alone. So a
verification over several tokens says, bit by bit, what plain decoding says.

``product`` takes weights packed in panels of output columns, (panels, in, columns): the columns of a panel are the
lanes of the vectors, so an output is one sum over the inputs in their order. ``attend`` takes the keys in blocks whose
borders are absolute positions: scores of a block, online softmax, values; pieces of ``PIECE`` keys are joined in their
order by ``join``. All arithmetic is in float32. What is long may lie in bfloat16, and is widened, which is exact.

A kernel does one tile: ``kernel(arguments, tile, worker)``, arguments being an array of i64, among which a float32 lies
in the lower half of its word. ``engine.model.kernels.pool`` compiles them and runs the tiles. Tried and left out: the
processor's dot product of bfloat16 pairs for the scores, which was not faster (one port against two for float32).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from engine.model.kernels.emit import F32, FLOAT_BYTES, I16, I64, PTR, VOID, Emitter, long, number

PANEL_VECTORS = 2
"""Vectors in a panel of packed weights."""

PIECE = 512
"""Keys of a tile; a multiple of ``BLOCK``."""

BLOCK = 64
"""Keys between two steps of the online softmax."""

_ROW_BLOCKS = (8, 6, 4, 2, 1)  # rows that share what is loaded of the weights, or of the values
_SUMS = {16: 16}  # vectors of this many numbers, with 32 registers: accumulators beside what is loaded
_FEW_SUMS = 12  # with 16 registers
_WHOLE_SUMS = 16
_VALUE_VECTORS, _VALUE_CHUNKS = 2, (8, 4, 2, 1)  # of a head's numbers that are summed at once: with many rows, at most
_LINE = 64  # bytes of a cache line
_LOWEST = -1e30  # stands for minus infinity, whose difference with itself is no number

# Arguments of ``product``.
X, WEIGHTS, OUT, ROWS, INPUTS, OUTPUTS, TILE_PANELS, PANELS = range(8)
# Arguments of ``attend`` and ``join``. Strides in numbers.
QUERIES, KEYS, VALUES, KEY_HEAD, KEY_TOKEN, VALUE_HEAD, VALUE_TOKEN, LENGTH = range(8)
HEAD_ROWS, PIECES, SEEN, PARTS, SCRATCH, SCRATCH_SIZE, RESULT, LOGSUM, SCALE = range(8, 17)
# Arguments of ``norm``, behind ``X`` to ``ROWS``.
WIDTH, TILE_ROWS, EPSILON = range(4, 7)
NUM_ARGUMENTS = 17


def module(name: str, lanes: int, *kind: Any) -> ir.Module:
    """A module with one kernel, for vectors of ``lanes`` numbers.

    Args:
        name: "product" or "norm" with (half,), "attend" with (head_dim, half), or "join" with (head_dim,);
            ``half``: what is long lies in bfloat16.
    """
    made = ir.Module(name)
    _EMIT[name](made, name, lanes, *kind)
    return made


def _emit_product(module: ir.Module, name: str, lanes: int, half: bool) -> None:
    """out (rows, outputs) = x (rows, inputs) @ weights, for ``TILE_PANELS`` panels. ``half``: weights in bfloat16."""
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, tile, _ = e.arguments
    x, weights, out = (e.load_pointer(arguments, at) for at in (X, WEIGHTS, OUT))
    rows, inputs, outputs = (e.load_long(arguments, at) for at in (ROWS, INPUTS, OUTPUTS))
    count, panels = e.load_long(arguments, TILE_PANELS), e.load_long(arguments, PANELS)
    width = lanes * PANEL_VECTORS
    first = e.b.mul(tile, count)
    stop = e.b.add(first, count)
    stop = e.b.select(e.b.icmp_signed("<", stop, panels), stop, panels)
    with e.loop(first, stop) as panel:
        here = e.at(weights, e.b.mul(panel, e.b.mul(inputs, long(width))), I16 if half else F32)
        column = e.b.mul(panel, long(width))
        done = e.variable(long(0))
        for block in _row_blocks(lanes, PANEL_VECTORS):
            left = e.b.sub(rows, done.value)
            whole = e.b.sub(left, e.b.srem(left, long(block)))
            start = done.value
            with e.loop(start, e.b.add(start, whole), block) as row:
                _rows_of_product(e, x, here, out, row, column, inputs, outputs, block, half)
            done.value = e.b.add(start, whole)
    e.end()


def _row_blocks(lanes: int, vectors: int) -> list[int]:
    """Rows that are computed together, largest first, so that the sums of ``vectors`` for each stay in registers."""
    most = max(1, _SUMS.get(lanes, _FEW_SUMS) // vectors)
    return [rows for rows in _ROW_BLOCKS if rows <= most]


def _rows_of_product(
    e: Emitter,
    x: ir.Value,
    panel: ir.Value,
    out: ir.Value,
    row: ir.Value,
    column: ir.Value,
    inputs: ir.Value,
    outputs: ir.Value,
    block: int,
    half: bool,
) -> None:
    width = e.lanes * PANEL_VECTORS
    zero = e.constant(0.0)
    sums = [[e.variable(zero) for _ in range(PANEL_VECTORS)] for _ in range(block)]
    lines = [e.at(x, e.b.mul(e.b.add(row, long(at)), inputs), F32) for at in range(block)]
    with e.loop(long(0), inputs) as k:
        base = e.b.mul(k, long(width))
        loaded = [e.load_vector(panel, e.b.add(base, long(at * e.lanes)), half) for at in range(PANEL_VECTORS)]
        for line, own in zip(lines, sums, strict=True):
            number_of_row = e.splat(e.load(e.at(line, k, F32), F32))
            for vector, total in zip(loaded, own, strict=True):
                total.value = e.fma(number_of_row, vector, total.value)
    for at, own in enumerate(sums):
        place = e.b.add(e.b.mul(e.b.add(row, long(at)), outputs), column)
        for index, total in enumerate(own):
            e.store(total.value, e.at(out, e.b.add(place, long(index * e.lanes)), F32))


def _emit_attend(module: ir.Module, name: str, lanes: int, head_dim: int, half: bool) -> None:
    """One piece of one KV head's keys for all rows of its queries.

    A row sees the first ``SEEN[row]`` keys. Writes unnormalised sums, their maximum and their sum into ``PARTS``:
    (kv_heads, pieces, rows, head_dim + 2). Scores are to base 2: ``SCALE`` is log2(e) times the usual scale.

    Args:
        half: queries, keys and values lie in bfloat16.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, tile, worker = e.arguments
    queries, keys, values = (e.load_pointer(arguments, at) for at in (QUERIES, KEYS, VALUES))
    rows, pieces, length = (e.load_long(arguments, at) for at in (HEAD_ROWS, PIECES, LENGTH))
    seen, parts, scratch = (e.load_pointer(arguments, at) for at in (SEEN, PARTS, SCRATCH))
    scale = e.splat(e.load(e.at(arguments, long(SCALE), I64), F32))
    head, piece = e.b.sdiv(tile, pieces), e.b.srem(tile, pieces)
    kind = I16 if half else F32
    keys = e.at(keys, e.b.mul(head, e.load_long(arguments, KEY_HEAD)), kind)
    values = e.at(values, e.b.mul(head, e.load_long(arguments, VALUE_HEAD)), kind)
    key_token, value_token = e.load_long(arguments, KEY_TOKEN), e.load_long(arguments, VALUE_TOKEN)
    queries = e.at(queries, e.b.mul(head, e.b.mul(rows, long(head_dim))), kind)
    parts = e.at(parts, e.b.mul(tile, e.b.mul(rows, long(head_dim + 2))), F32)

    # The worker's scratch: values, then keys of a block as float32, then scores of every row.
    mine = e.at(scratch, e.b.mul(worker, e.load_long(arguments, SCRATCH_SIZE)), F32)
    value_block, key_block = mine, e.at(mine, long(BLOCK * head_dim), F32)
    scores = e.at(mine, long(2 * BLOCK * head_dim), F32)

    with e.loop(long(0), rows) as row:
        line = e.at(parts, e.b.mul(row, long(head_dim + 2)), F32)
        for at in range(0, head_dim, lanes):
            e.store(e.constant(0.0), e.at(line, long(at), F32))
        e.store(number(_LOWEST), e.at(line, long(head_dim), F32))
        e.store(number(0.0), e.at(line, long(head_dim + 1), F32))

    first = e.b.mul(piece, long(PIECE))
    stop = e.b.add(first, long(PIECE))
    stop = e.b.select(e.b.icmp_signed("<", stop, length), stop, length)
    with e.loop(first, stop, BLOCK) as start:
        key_place, key_step = _block(e, keys, key_token, key_block, start, length, head_dim, half)
        value_place, value_step = _block(e, values, value_token, value_block, start, length, head_dim, half)
        with e.loop(long(0), rows) as row:
            query = e.at(queries, e.b.mul(row, long(head_dim)), kind)
            line = e.at(parts, e.b.mul(row, long(head_dim + 2)), F32)
            own = e.at(scores, e.b.mul(row, long(BLOCK)), F32)
            limit = e.b.sub(e.load(e.at(seen, row, I64), I64, align=8), start)
            _score(e, query, key_place, key_step, own, limit, scale, head_dim, half)
            _soften(e, own, line, head_dim)
        ahead = e.b.add(start, long(BLOCK))
        later = [
            (e.at(source, e.b.mul(ahead, stride), kind), stride)
            for source, stride in ((keys, key_token), (values, value_token))
        ]
        _add_values(e, scores, value_place, value_step, parts, rows, later, kind, head_dim)
    e.end()


def _block(
    e: Emitter,
    source: ir.Value,
    stride: ir.Value,
    block: ir.Value,
    start: ir.Value,
    length: ir.Value,
    head_dim: int,
    half: bool,
) -> tuple[ir.Value, ir.Value]:
    """A block of keys or values in float32, with the step from one to the next: where they lie, if they lie so."""
    if half:
        _widen(e, source, stride, block, start, length, head_dim, half=True)
        return block, long(head_dim)
    whole = e.b.icmp_signed("<=", e.b.add(start, long(BLOCK)), length)
    with e.b.if_then(e.b.not_(whole)):
        _widen(e, source, stride, block, start, length, head_dim, half=False)
    place = e.b.select(whole, e.at(source, e.b.mul(start, stride), F32), block)
    return place, e.b.select(whole, stride, long(head_dim))


def _widen(
    e: Emitter,
    source: ir.Value,
    stride: ir.Value,
    block: ir.Value,
    start: ir.Value,
    length: ir.Value,
    head_dim: int,
    half: bool,
) -> None:
    """Copy a block of keys or values as float32; zeros behind the last."""
    left = e.b.sub(length, start)
    held = e.b.select(e.b.icmp_signed("<", left, long(BLOCK)), left, long(BLOCK))
    with e.loop(long(0), held) as at:
        place = e.b.mul(e.b.add(start, at), stride)
        for offset in range(0, head_dim, e.lanes):
            loaded = e.load_vector(source, e.b.add(place, long(offset)), half)
            e.store(loaded, e.at(block, e.b.add(e.b.mul(at, long(head_dim)), long(offset)), F32))
    with e.loop(held, long(BLOCK)) as at:
        for offset in range(0, head_dim, e.lanes):
            e.store(e.constant(0.0), e.at(block, e.b.add(e.b.mul(at, long(head_dim)), long(offset)), F32))


def _score(
    e: Emitter,
    query: ir.Value,
    keys: ir.Value,
    step: ir.Value,
    scores: ir.Value,
    limit: ir.Value,
    scale: ir.Value,
    head_dim: int,
    half: bool,
) -> None:
    """Scores of a block for one row; the lowest number where the row does not see the key."""
    parts = [e.load_vector(query, long(at), half) for at in range(0, head_dim, e.lanes)]
    steps = ir.Constant(ir.VectorType(I64, e.lanes), [I64(at) for at in range(e.lanes)])
    with e.loop(long(0), long(BLOCK), e.lanes) as start:
        sums = []
        for at in range(e.lanes):
            key = e.at(keys, e.b.mul(e.b.add(start, long(at)), step), F32)
            total = e.constant(0.0)
            for count, part in enumerate(parts):
                total = e.fma(part, e.load_vector(key, long(count * e.lanes)), total)
            sums.append(total)
        joined = e.b.fmul(e.sums(sums), scale)
        hidden = e.b.icmp_signed(">=", e.b.add(e.splat(start), steps), e.splat(limit))
        e.store(e.b.select(hidden, e.constant(_LOWEST), joined), e.at(scores, start, F32))


def _soften(e: Emitter, scores: ir.Value, line: ir.Value, head_dim: int) -> None:
    """Turn scores into weights of the online softmax, and bring the row's sums to the new maximum."""
    vectors = [e.load_vector(scores, long(at)) for at in range(0, BLOCK, e.lanes)]
    largest = vectors[0]
    for vector in vectors[1:]:
        largest = e.larger(largest, vector)
    maximum, total = e.at(line, long(head_dim), F32), e.at(line, long(head_dim + 1), F32)
    before = e.load(maximum, F32)
    now = e.larger(before, e.fold(largest, e.larger))
    shift = e.splat(now)
    added = e.constant(0.0)
    for at, vector in enumerate(vectors):
        # What is not seen counts nothing, also where nothing has been seen yet.
        hidden = e.b.fcmp_ordered("<=", vector, e.constant(_LOWEST))
        weight = e.b.select(hidden, e.constant(0.0), e.exp2(e.b.fsub(vector, shift)))
        e.store(weight, e.at(scores, long(at * e.lanes), F32))
        added = e.b.fadd(added, weight)
    scale = e.exp2(e.splat(e.b.fsub(before, now)))
    one = e.b.extract_element(scale, ir.Constant(ir.IntType(32), 0))
    e.store(e.fma(e.load(total, F32), one, e.fold(added, e.b.fadd)), total)
    e.store(now, maximum)
    for at in range(0, head_dim, e.lanes):
        place = e.at(line, long(at), F32)
        e.store(e.b.fmul(e.load(place, e.vector), scale), place)


def _add_values(
    e: Emitter,
    scores: ir.Value,
    values: ir.Value,
    step: ir.Value,
    parts: ir.Value,
    rows: ir.Value,
    later: list[tuple[ir.Value, ir.Value]],
    kind: ir.Type,
    head_dim: int,
) -> None:
    """Add a block's values by their weights to the sums of every row.

    Args:
        later: what the next block begins with and its stride, in numbers of ``kind``: brought near meanwhile.
    """
    count = head_dim // e.lanes
    done = e.variable(long(0))
    for block, together in _value_blocks(e.lanes, count, half=kind is I16):
        start = done.value
        left = e.b.sub(rows, start)
        whole = e.b.sub(left, e.b.srem(left, long(block)))
        with e.loop(start, e.b.add(start, whole), block) as row:
            lines, weights = [], []
            for at in range(block):
                one = e.b.add(row, long(at))
                lines.append(e.at(parts, e.b.mul(one, long(head_dim + 2)), F32))
                weights.append(e.at(scores, e.b.mul(one, long(BLOCK)), F32))
            with e.loop(long(0), long(head_dim), together * e.lanes) as column:
                places = [e.b.add(column, long(at * e.lanes)) for at in range(together)]
                sums = [[e.variable(e.load_vector(line, place)) for place in places] for line in lines]
                is_first = e.b.icmp_signed("==", e.b.add(row, column), long(0))
                with e.loop(long(0), long(BLOCK)) as key:
                    if together < count or kind is I16:  # the processor itself foresees whole rows of float32
                        with e.b.if_then(is_first):
                            for source, stride in later:
                                for offset in range(0, head_dim, _LINE // (2 if kind is I16 else FLOAT_BYTES)):
                                    e.prefetch(e.at(source, e.b.add(e.b.mul(key, stride), long(offset)), kind))
                    base = e.b.mul(key, step)
                    loaded = [e.load_vector(values, e.b.add(base, place)) for place in places]
                    for weight, own in zip(weights, sums, strict=True):
                        factor = e.splat(e.load(e.at(weight, key, F32), F32))
                        for vector, total in zip(loaded, own, strict=True):
                            total.value = e.fma(factor, vector, total.value)
                for line, own in zip(lines, sums, strict=True):
                    for place, total in zip(places, own, strict=True):
                        e.store(total.value, e.at(line, place, F32))
        done.value = e.b.add(start, whole)


def _emit_join(module: ir.Module, name: str, lanes: int, head_dim: int) -> None:
    """Join the pieces of one KV head: ``RESULT`` (kv_heads, rows, head_dim), ``LOGSUM`` (kv_heads, rows) to base 2."""
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, head, _ = e.arguments
    rows, pieces = e.load_long(arguments, HEAD_ROWS), e.load_long(arguments, PIECES)
    parts, result, logsum = (e.load_pointer(arguments, at) for at in (PARTS, RESULT, LOGSUM))
    size = e.b.mul(rows, long(head_dim + 2))
    parts = e.at(parts, e.b.mul(e.b.mul(head, pieces), size), F32)
    out = e.at(result, e.b.mul(e.b.mul(head, rows), long(head_dim)), F32)
    logsum = e.at(logsum, e.b.mul(head, rows), F32)
    with e.loop(long(0), rows) as row:
        own = e.b.mul(row, long(head_dim + 2))
        largest = e.variable(number(_LOWEST))
        with e.loop(long(0), pieces) as piece:
            line = e.at(parts, e.b.add(e.b.mul(piece, size), own), F32)
            largest.value = e.larger(largest.value, e.load(e.at(line, long(head_dim), F32), F32))
        sums = [e.variable(e.constant(0.0)) for _ in range(0, head_dim, lanes)]
        total = e.variable(number(0.0))
        with e.loop(long(0), pieces) as piece:
            line = e.at(parts, e.b.add(e.b.mul(piece, size), own), F32)
            behind = e.b.fsub(e.load(e.at(line, long(head_dim), F32), F32), largest.value)
            weight = e.exp2(e.splat(behind))
            one = e.b.extract_element(weight, ir.Constant(ir.IntType(32), 0))
            total.value = e.fma(e.load(e.at(line, long(head_dim + 1), F32), F32), one, total.value)
            for at, part in enumerate(sums):
                part.value = e.fma(e.load_vector(line, long(at * lanes)), weight, part.value)
        share = e.splat(e.b.fdiv(number(1.0), total.value))
        for at, part in enumerate(sums):
            place = e.b.add(e.b.mul(row, long(head_dim)), long(at * lanes))
            e.store(e.b.fmul(part.value, share), e.at(out, place, F32))
        e.store(e.b.fadd(largest.value, e.call("llvm.log2", total.value)), e.at(logsum, row, F32))
    e.end()


def _emit_norm(module: ir.Module, name: str, lanes: int, half: bool) -> None:
    """out = weights * x / sqrt(mean(x ** 2) + epsilon) for ``TILE_ROWS`` rows, as transformers' RMS norms round it.

    Args:
        half: x and out lie in bfloat16, and x is rounded to it before it meets the weights; these are float32.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, tile, _ = e.arguments
    x, weights, out = (e.load_pointer(arguments, at) for at in (X, WEIGHTS, OUT))
    rows, width, count = (e.load_long(arguments, at) for at in (ROWS, WIDTH, TILE_ROWS))
    epsilon = e.load(e.at(arguments, long(EPSILON), I64), F32)
    first = e.b.mul(tile, count)
    stop = e.b.add(first, count)
    stop = e.b.select(e.b.icmp_signed("<", stop, rows), stop, rows)
    with e.loop(first, stop) as row:
        base = e.b.mul(row, width)
        squares = e.variable(e.constant(0.0))
        with e.loop(long(0), width, lanes) as at:
            loaded = e.load_vector(x, e.b.add(base, at), half)
            squares.value = e.fma(loaded, loaded, squares.value)
        mean = e.b.fdiv(e.fold(squares.value, e.b.fadd), e.b.sitofp(width, F32))
        scale = e.splat(e.b.fdiv(number(1.0), e.call("llvm.sqrt", e.b.fadd(mean, epsilon))))
        with e.loop(long(0), width, lanes) as at:
            place = e.b.add(base, at)
            value = e.b.fmul(e.load_vector(x, place, half), scale)
            if half:
                value = e.widened(e.narrowed(value))
            value = e.b.fmul(e.load_vector(weights, at), value)
            if half:
                e.store(e.narrowed(value), e.at(out, place, I16), align=2)
            else:
                e.store(value, e.at(out, place, F32))
    e.end()


def _value_blocks(lanes: int, count: int, half: bool) -> list[tuple[int, int]]:
    """Rows that are computed together, largest first, and how many of a value's ``count`` vectors are summed at once.

    Few rows wait for memory, which is fastest in its own order: values in float32, which are read where they lie, are
    then taken whole.
    """
    most = _SUMS.get(lanes, _FEW_SUMS)
    blocks = _row_blocks(lanes, _VALUE_VECTORS)
    if half:
        return [(rows, max(n for n in _VALUE_CHUNKS if n * rows <= most and count % n == 0)) for rows in blocks]
    whole = [(rows, count) for rows in (2, 1) if rows == 1 or rows * count <= _WHOLE_SUMS]
    return [(blocks[0], max(n for n in _VALUE_CHUNKS if n <= _VALUE_VECTORS and count % n == 0)), *whole]


_EMIT: dict[str, Callable[..., None]] = {
    "product": _emit_product,
    "attend": _emit_attend,
    "join": _emit_join,
    "norm": _emit_norm,
}
