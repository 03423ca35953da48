"""Emits kernels for the attention of a few query rows to long KV. ``attend`` computes one piece of a head's keys, and
``join`` merges the pieces.

Keys are processed in blocks whose borders are absolute positions. For each block the scores are computed, then the
online softmax, then the weighted sum of the values. A piece has ``PIECE`` keys, and the pieces are merged in order. All
arithmetic is in float32. Keys and values may be stored in bfloat16, or as 8-bit integers (quants) with a scale for each
key or value. Both forms are converted to float32 in registers, which is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llvmlite import ir

from engine.model.kernels.abi import BLOCK, PIECE, Attention
from engine.model.kernels.emit.emitter import BYTES, F32, I8, I16, I32, I64, KINDS, PTR, VOID, Emitter, long, number
from engine.model.kernels.emit.products import accumulators, add_products, row_blocks

_KEYS = 4  # maximum number of keys whose products with a query are computed together
# Possible numbers of queries that are multiplied with a key at once, if keys are converted to float32. A key is then
# converted once for all of these queries. With 16 lanes, blocks of six queries were slower.
_SCORE_ROWS = {8: (6, 4, 2, 1)}
_FEW_SCORE_ROWS = (4, 2, 1)
# Number of a value's vectors whose sums are computed at once for the largest block of rows.
_VALUE_VECTORS = 2
# Possible numbers of SIMD vectors of a value that are summed at once. The code uses the largest number that divides the
# number of a value's vectors and whose sums, for all rows of a block, fit into the registers.
_VALUE_CHUNKS = (8, 6, 5, 4, 3, 2, 1)
LINE = 64  # bytes of a cache line
_SHARE_BITS = 20  # number of fractional bits of the fixed-point numbers in ``Ahead``, which count cache lines
LOWEST = -1e30  # used as minus infinity, because the difference of two infinities is NaN


def _emit_attend(module: ir.Module, name: str, lanes: int, head_dim: int, stored: str, capped: bool) -> None:
    """Emit the attention of all query rows of one KV head to one piece of its keys.

    A row sees the keys [``FIRST[row]``, ``SEEN[row]``). The kernel writes the unnormalised sums of the values, the
    maximum score and the sum of the weights into ``PARTS``: (kv_heads, pieces, rows, head_dim + 2). Scores are to base
    2: ``SCALE`` is log2(e) times the usual scale. With a cap, ``CAP`` is log2(e) times the cap, and ``SCALE`` is 2 *
    log2(e) / cap times the usual scale; ``scaled`` explains this.

    Args:
        stored: the dtype of keys and values; strides count numbers of this dtype. "int8" means that a key or value
            consists of quants, followed by their scale in bfloat16. Queries are then float32, and otherwise have the
            dtype ``stored``.
        capped: whether scores have a cap.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, tile, worker = e.arguments
    queries, keys, values = e.pointers(Attention.QUERIES, Attention.KEYS, Attention.VALUES)
    rows, pieces, length = e.longs(Attention.HEAD_ROWS, Attention.PIECES, Attention.LENGTH)
    seen, first_seen, parts, scratch = e.pointers(Attention.SEEN, Attention.FIRST, Attention.PARTS, Attention.SCRATCH)
    scale = e.splat(e.load_float(arguments, Attention.SCALE))
    cap = e.splat(e.load_float(arguments, Attention.CAP)) if capped else None
    head, piece = e.b.sdiv(tile, pieces), e.b.srem(tile, pieces)
    kind, query_kind = KINDS[stored], F32 if stored == "int8" else KINDS[stored]
    keys = e.at(keys, e.b.mul(head, e.load_long(arguments, Attention.KEY_HEAD)), kind)
    values = e.at(values, e.b.mul(head, e.load_long(arguments, Attention.VALUE_HEAD)), kind)
    key_token, value_token = e.load_long(arguments, Attention.KEY_TOKEN), e.load_long(arguments, Attention.VALUE_TOKEN)
    queries = e.at(queries, e.b.mul(head, e.b.mul(rows, long(head_dim))), query_kind)
    parts = e.at(parts, e.b.mul(tile, e.b.mul(rows, long(head_dim + 2))), F32)

    # Scratch memory of a worker, in float32: room for a block of keys, room for a block of values, the queries, and the
    # scores of all rows. The room for a block takes a copy of the block in the stored dtype, if the block is
    # incomplete, and the scales of quants.
    mine = e.at(scratch, e.b.mul(worker, e.load_long(arguments, Attention.SCRATCH_SIZE)), F32)
    rooms = [e.at(mine, long(at * BLOCK * (head_dim + 1)), F32) for at in range(2)]
    wide = e.at(mine, long(2 * BLOCK * (head_dim + 1)), F32)
    scores = e.at(wide, e.b.mul(rows, long(head_dim)), F32)

    with e.loop(long(0), rows) as row:
        line = e.at(parts, e.b.mul(row, long(head_dim + 2)), F32)
        start = e.b.mul(row, long(head_dim))
        for column in range(0, head_dim, lanes):
            place = e.b.add(start, long(column))
            e.store(e.load_vector(queries, place, query_kind), e.at(wide, place, F32))
            e.store(e.constant(0.0), e.at(line, long(column), F32))
        e.store(number(LOWEST), e.at(line, long(head_dim), F32))
        e.store(number(0.0), e.at(line, long(head_dim + 1), F32))

    first = e.b.mul(piece, long(PIECE))
    stop = e.b.add(first, long(PIECE))
    stop = e.b.select(e.b.icmp_signed("<", stop, length), stop, length)
    with e.loop(first, stop, BLOCK) as start:
        near_keys = block_of(e, keys, key_token, rooms[0], start, length, head_dim, kind)
        near_values = block_of(e, values, value_token, rooms[1], start, length, head_dim, kind)
        following = next_block(e, start, stop)
        next_keys, next_values = (
            Ahead(e, e.at(source, e.b.mul(following, stride), kind), stride, kind, head_dim)
            for source, stride in ((keys, key_token), (values, value_token))
        )
        for row, block in blocks_of_rows(e, rows, _score_rows(kind, lanes)):
            _score(e, wide, row, rows, block, near_keys, scores, head_dim, next_keys)
        with e.loop(long(0), rows) as row:
            line = e.at(parts, e.b.mul(row, long(head_dim + 2)), F32)
            own = e.at(scores, e.b.mul(row, long(BLOCK)), F32)
            begin, limit = (e.b.sub(e.load(e.at(of, row, I64), I64, align=8), start) for of in (first_seen, seen))
            _soften(e, own, begin, limit, scale, cap, line, near_values.scales, head_dim)
        sums = accumulators(lanes)
        add_values(e, scores, BLOCK, BLOCK, near_values.load_all, parts, rows, head_dim, next_values, sums)
    e.end()


class Vectors:
    """Loads the keys or values of a block from their stored form. Neighbouring tokens are ``step`` numbers apart.

    ``scales`` are the scales of quants in float32; None if the numbers are not quants.
    """

    def __init__(self, e: Emitter, place: ir.Value, step: ir.Value, kind: ir.Type, scales: ir.Value | None) -> None:
        self._e, self._place, self._step, self.kind, self.scales = e, place, step, kind, scales

    def load(self, token: ir.Value, index: ir.Value) -> ir.Value:
        """Load a vector of the block's ``token``-th key or value, beginning at its ``index``-th number. Quants are not
        multiplied by their scale.
        """
        return self._e.load_vector(self._place, self._where(token, index), self.kind)

    def load_pairs(self, token: ir.Value, index: ir.Value, count: int) -> ir.Value:
        """Load ``count`` pairs of bfloat16 numbers, one pair a lane. Quants are converted to bfloat16, which is exact,
        but not multiplied by their scale.
        """
        return self._e.load_pairs(self._place, self._where(token, index), self.kind, count)

    def load_all(self, token: ir.Value, places: list[ir.Value]) -> list[ir.Value]:
        """Load the vectors of a key or value that begin at the indices ``places``."""
        return [self.load(token, place) for place in places]

    def _where(self, token: ir.Value, index: ir.Value) -> ir.Value:
        return self._e.b.add(self._e.b.mul(token, self._step), index)


class Ahead:
    """Emits prefetches of the block of keys or values that is needed next, while another block is computed.

    The prefetches are spread evenly over the steps of the computation. If many ran at once, the processor could not
    hold all these loads, and would wait for them instead of computing.

    Args:
        place: address of the block. ``stride`` is the distance between its tokens in numbers of the type ``kind``.
    """

    def __init__(self, e: Emitter, place: ir.Value, stride: ir.Value, kind: ir.Type, head_dim: int) -> None:
        self._e, self._place, self._stride, self._kind = e, place, stride, kind
        self._numbers = LINE // BYTES[kind]
        self._lines = -(-head_dim // self._numbers)  # number of cache lines of one token's key or value

    def ask(self, first: ir.Value, count: int, steps: ir.Value) -> None:
        """Prefetch the cache lines that belong to ``count`` of the ``steps`` equal steps, from step ``first`` on."""
        e, lines = self._e, self._lines
        # The size of a step is rounded up, so that the last step ends at or after the last line.
        step = e.b.sdiv(e.b.add(long((BLOCK * lines << _SHARE_BITS) - 1), steps), steps)
        begin, end = (e.b.lshr(e.b.mul(at, step), long(_SHARE_BITS)) for at in (first, e.b.add(first, long(count))))
        with e.loop(begin, end) as line:
            token, number = e.b.sdiv(line, long(lines)), e.b.srem(line, long(lines))
            index = e.b.add(e.b.mul(token, self._stride), e.b.mul(number, long(self._numbers)))
            e.prefetch(e.at(self._place, index, self._kind))


def next_block(e: Emitter, start: ir.Value, stop: ir.Value) -> ir.Value:
    """Return the first token of the block that the worker probably needs after the block at ``start``: the next one of
    the piece, which ends at ``stop``, or the first one of the worker's next piece, if the workers take pieces in turn.
    """
    inside, between = e.b.add(start, long(BLOCK)), e.load_long(e.arguments[0], Attention.BETWEEN)
    return e.b.select(e.b.icmp_signed("<", inside, stop), inside, e.b.add(stop, between))


def block_of(
    e: Emitter,
    source: ir.Value,
    stride: ir.Value,
    room: ir.Value,
    start: ir.Value,
    length: ir.Value,
    head_dim: int,
    kind: ir.Type,
) -> Vectors:
    """Emit code that prepares a block's keys or values for loading, and return them as ``Vectors``.

    A whole block is read in place. An incomplete block is copied to ``room``, followed by zeros. The scales of quants
    are written to ``room``, after the space for the copy.
    """
    size = head_dim + 2 if kind is I8 else head_dim  # two more bytes for the scale after the quants
    whole = e.b.icmp_signed("<=", e.b.add(start, long(BLOCK)), length)
    here = e.at(source, e.b.mul(start, stride), kind)
    with e.b.if_then(e.b.not_(whole)):
        with e.loop(long(0), e.b.sub(length, start)) as token, e.loop(long(0), long(size)) as offset:
            loaded = e.load(e.at(here, e.b.add(e.b.mul(token, stride), offset), kind), kind, align=BYTES[kind])
            e.store(loaded, e.at(room, e.b.add(e.b.mul(token, long(size)), offset), kind), align=BYTES[kind])
        with e.loop(e.b.mul(e.b.sub(length, start), long(size)), long(BLOCK * size)) as at:
            e.store(ir.Constant(kind, 0.0 if kind is F32 else 0), e.at(room, at, kind), align=BYTES[kind])
    place, step = e.b.select(whole, here, room), e.b.select(whole, stride, long(size))
    if kind is not I8:
        return Vectors(e, place, step, kind, None)
    scales = e.at(room, long(BLOCK * head_dim), F32)
    with e.loop(long(0), long(BLOCK)) as token:
        e.store(scale_of(e, e.at(place, e.b.mul(token, step), I8), head_dim), e.at(scales, token, F32))
    return Vectors(e, place, step, kind, scales)


def scale_of(e: Emitter, quants: ir.Value, head_dim: int) -> ir.Value:
    """Load the scale of a key or value, which is stored in bfloat16 after its quants. Return the scale in float32."""
    bits = e.b.zext(e.load(e.at(quants, long(head_dim), I8), I16, align=1), I32)
    return e.b.bitcast(e.b.shl(bits, I32(16)), F32)


def blocks_of_rows(e: Emitter, rows: ir.Value, sizes: Sequence[int]) -> Iterator[tuple[ir.Value, int]]:
    """Emit one loop over blocks of rows for each size in ``sizes``, the largest first. Each loop computes as many whole
    blocks of its size as the remaining rows have. Yields the first row of a block and the size.
    """
    done = e.variable(long(0))
    for size in sizes:
        start = done.value
        left = e.b.sub(rows, start)
        stop = e.b.add(start, e.b.sub(left, e.b.srem(left, long(size))))
        with e.loop(start, stop, size) as row:
            yield row, size
        done.value = stop


def _score_rows(kind: ir.Type, lanes: int) -> Sequence[int]:
    """Return the possible numbers of queries that are multiplied at once with a key of the type ``kind``. It is 1 for
    float32, because a key that need not be converted is as quickly loaded again.
    """
    return (1,) if kind is F32 else _SCORE_ROWS.get(lanes, _FEW_SCORE_ROWS)


def _score(
    e: Emitter,
    queries: ir.Value,
    row: ir.Value,
    all_rows: ir.Value,
    rows: int,
    keys: Vectors,
    scores: ir.Value,
    head_dim: int,
    ahead: Ahead,
) -> None:
    """Emit the products of ``rows`` of the ``all_rows`` float32 queries, from ``row`` on, with the keys of a block. A
    key is loaded once for these queries. ``ahead`` prefetches the next keys.
    """
    queries = e.at(queries, e.b.mul(row, long(head_dim)), F32)
    scores = e.at(scores, e.b.mul(row, long(BLOCK)), F32)
    # a step is one query and one key
    steps, before = (e.b.mul(number, long(BLOCK)) for number in (all_rows, row))
    together = _KEYS if rows * _KEYS <= accumulators(e.lanes) else _KEYS // 2
    with e.loop(long(0), long(BLOCK), e.lanes) as start:
        ahead.ask(e.b.add(before, e.b.mul(start, long(rows))), rows * e.lanes, steps)
        some: list[list[ir.Value]] = [[] for _ in range(rows)]
        for first in range(0, e.lanes, _KEYS):
            products: list[list[ir.Value]] = [[] for _ in range(rows)]
            for key in range(first, first + _KEYS, together):
                totals = [[e.variable(e.constant(0.0)) for _ in range(together)] for _ in range(rows)]
                # This is a loop, because LLVM would move loads together in unrolled code, and sums out of registers.
                with e.loop(long(0), long(head_dim), e.lanes) as part:
                    near = [keys.load(e.b.add(start, long(key + at)), part) for at in range(together)]
                    for at, own in enumerate(totals):
                        query = e.load_vector(queries, e.b.add(part, long(at * head_dim)))
                        for one, total in zip(near, own, strict=True):
                            total.value = e.fma(query, one, total.value)
                for row_products, own in zip(products, totals, strict=True):
                    row_products += [total.value for total in own]
            for own, row_products in zip(some, products, strict=True):
                own.append(e.sums(row_products))
        for at, own in enumerate(some):
            total = e.sums(own, _KEYS)
            if keys.scales is not None:
                total = e.b.fmul(total, e.load_vector(keys.scales, start))
            e.store(total, e.at(scores, e.b.add(start, long(at * BLOCK)), F32))


def scaled(e: Emitter, score: ir.Value, scale: ir.Value, cap: ir.Value | None) -> ir.Value:
    """Scale a vector of scores, so that the softmax can use powers of 2. ``scale`` is the model's scale times log2(e).

    If the model caps scores at c, return log2(e) * c * tanh(s / c), where s is the score times the model's scale. In
    this case ``cap`` is log2(e) * c, and ``scale`` is also multiplied by 2 / c. The tanh is then computed from 2 **
    -abs(score * scale), with an error of 2e-7 times the cap.
    """
    score = e.b.fmul(score, scale)
    if cap is None:
        return score
    one, fallen = e.constant(1.0), e.exp2(e.b.fneg(e.call("llvm.fabs", score)))
    height = e.b.fdiv(e.b.fsub(one, fallen), e.b.fadd(one, fallen))
    return e.b.fmul(e.call("llvm.copysign", height, score), cap)


def _soften(
    e: Emitter,
    scores: ir.Value,
    begin: ir.Value,
    limit: ir.Value,
    scale: ir.Value,
    cap: ir.Value | None,
    line: ir.Value,
    value_scales: ir.Value | None,
    head_dim: int,
) -> None:
    """Turn a row's scores into softmax weights, and rescale the row's sums to the new maximum (online softmax).

    Args:
        begin, limit: the row sees the keys [begin, limit), counted from the block's first key. Both may lie outside of
            the block.
        value_scales: scales of quantized values. After the weights are summed, they are multiplied by these scales.
            None if the values are not quantized.
    """
    steps = ir.Constant(ir.VectorType(I32, e.lanes), [I32(lane) for lane in range(e.lanes)])
    edges = [e.b.trunc(border, I32) for border in (begin, limit)]
    vectors = []
    for key in range(0, BLOCK, e.lanes):
        low, high = (e.splat(e.b.sub(edge, I32(key))) for edge in edges)
        hidden = e.b.or_(e.b.icmp_signed("<", steps, low), e.b.icmp_signed(">=", steps, high))
        score = scaled(e, e.load_vector(scores, long(key)), scale, cap)
        vectors.append(e.b.select(hidden, e.constant(LOWEST), score))
    largest = vectors[0]
    for vector in vectors[1:]:
        largest = e.larger(largest, vector)
    maximum, total = e.at(line, long(head_dim), F32), e.at(line, long(head_dim + 1), F32)
    before = e.load(maximum, F32)
    now = e.larger(before, e.fold(largest, e.larger))
    shift = e.splat(now)
    added = e.constant(0.0)
    for at, vector in enumerate(vectors):
        # The weight of a hidden key is set to 0, because exp2 would return 1 as long as the row has seen no key.
        hidden = e.b.fcmp_ordered("<=", vector, e.constant(LOWEST))
        weight = e.b.select(hidden, e.constant(0.0), e.exp2(e.b.fsub(vector, shift)))
        added = e.b.fadd(added, weight)
        if value_scales is not None:
            weight = e.b.fmul(weight, e.load_vector(value_scales, long(at * e.lanes)))
        e.store(weight, e.at(scores, long(at * e.lanes), F32))
    scale = e.exp2(e.splat(e.b.fsub(before, now)))
    one = e.b.extract_element(scale, ir.Constant(ir.IntType(32), 0))
    e.store(e.fma(e.load(total, F32), one, e.fold(added, e.b.fadd)), total)
    e.store(now, maximum)
    for column in range(0, head_dim, e.lanes):
        place = e.at(line, long(column), F32)
        e.store(e.b.fmul(e.load(place, e.vector), scale), place)


def add_values(
    e: Emitter,
    weights: ir.Value,
    step: int,
    words: int,
    near: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
    parts: ir.Value,
    rows: ir.Value,
    head_dim: int,
    ahead: Ahead,
    registers: int,
    pairs: bool = False,
) -> None:
    """Add the weighted values of a block to the sums of every row.

    Args:
        weights: address of the weights of the block's first key. The weights of each further row are ``step`` words
            after those of the row before.
        words: number of words of a row's weights in the block. A word is a float32 number, or with ``pairs`` two
            bfloat16 numbers.
        near: loads vectors of values. Its arguments are the index of a word and the indices at which the vectors begin.
        ahead: prefetches of the block that is needed next.
        registers: number of vector registers that hold sums.
    """
    count = head_dim // e.lanes
    for row, block in blocks_of_rows(e, rows, row_blocks(registers, _VALUE_VECTORS)):
        # Vectors of pairs are loaded two at a time.
        least = 2 if pairs else 1
        chunks = [n for n in _VALUE_CHUNKS if count % n == n % least == 0]
        together = max(n for n in chunks if n * block <= max(least * block, registers))
        lines, own_weights = [], []
        for at in range(block):
            one = e.b.add(row, long(at))
            lines.append(e.at(parts, e.b.mul(one, long(head_dim + 2)), F32))
            own_weights.append(e.at(weights, e.b.mul(one, long(step)), F32))
        # A step is a word, for one row and one pass over the values.
        passes = count // together
        steps, before = (e.b.mul(number, long(passes * words)) for number in (rows, row))
        with e.loop(long(0), long(head_dim), together * e.lanes) as column:
            places = [e.b.add(column, long(vector * e.lanes)) for vector in range(together)]
            sums = [[e.variable(e.load_vector(line, place)) for place in places] for line in lines]
            done = e.b.add(before, e.b.mul(e.b.sdiv(column, long(together * e.lanes)), long(block * words)))
            with e.loop(long(0), long(words)) as word:
                ahead.ask(e.b.add(done, e.b.mul(word, long(block))), block, steps)
                add_products(e, own_weights, word, near(word, places), sums, pairs)
            for line, own in zip(lines, sums, strict=True):
                for place, total in zip(places, own, strict=True):
                    e.store(total.value, e.at(line, place, F32))


def _emit_join(module: ir.Module, name: str, lanes: int, head_dim: int, result_dtype: str) -> None:
    """Emit the kernel ``join``, which merges the results of all pieces of a KV head's keys. It writes the head's output
    to ``RESULT`` (kv_heads, rows, head_dim) in the dtype ``result_dtype``, and the log-sum-exps to base 2 to ``LOGSUM``
    (kv_heads, rows).
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, head, _ = e.arguments
    rows, pieces = e.load_long(arguments, Attention.HEAD_ROWS), e.load_long(arguments, Attention.PIECES)
    parts, result, logsum = e.pointers(Attention.PARTS, Attention.RESULT, Attention.LOGSUM)
    size = e.b.mul(rows, long(head_dim + 2))
    parts = e.at(parts, e.b.mul(e.b.mul(head, pieces), size), F32)
    out = e.at(result, e.b.mul(e.b.mul(head, rows), long(head_dim)), KINDS[result_dtype])
    logsum = e.at(logsum, e.b.mul(head, rows), F32)
    with e.loop(long(0), rows) as row:
        own = e.b.mul(row, long(head_dim + 2))
        largest = e.variable(number(LOWEST))
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
            e.store_vector(e.b.fmul(part.value, share), out, place, KINDS[result_dtype])
        e.store(e.b.fadd(largest.value, e.call("llvm.log2", total.value)), e.at(logsum, row, F32))
    e.end()


EMIT: dict[str, Callable[..., None]] = {"attend": _emit_attend, "join": _emit_join}
"""Emitters of these kernels, keyed by name."""
