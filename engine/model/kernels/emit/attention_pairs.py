"""Emits attention in bfloat16 for processors that multiply pairs of bfloat16 numbers
(``engine.model.kernels.emit.products``).

The neighbouring numbers of a key already form pairs. The keys of a block are transposed, so that a lane holds a key and
no sum over lanes is needed. The values of two neighbouring keys are interleaved into pairs. Transposing and
interleaving take as much time as computing two rows. So this kernel pays off for three or more rows, and a single token
usually has at least three rows, one for each query head of the KV head. The softmax weights are rounded to bfloat16, as
in torch's kernels. For float32 there is no such kernel, because transposing would cost more than it gains.

All keys of a piece are processed before its values, so that memory is read in long runs and each row needs only one
softmax. While a block is computed, the next one is prefetched. Everything else is as in ``attention``.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from engine.model.kernels.abi import BLOCK, PIECE, Attention
from engine.model.kernels.emit.attention import (
    LOWEST,
    VALUE_VECTORS,
    Ahead,
    Vectors,
    add_values,
    block_of,
    blocks_of_rows,
    scale_of,
    scaled,
)
from engine.model.kernels.emit.emitter import F32, I8, I16, I32, I64, KINDS, PTR, VOID, Emitter, long, number
from engine.model.kernels.emit.products import add_products, are_many, row_blocks

_KEY_VECTORS = 4  # number of vectors of keys that are multiplied with a query together: all keys of a block


def _emit_attend_pairs(module: ir.Module, name: str, lanes: int, head_dim: int, stored: str, capped: bool) -> None:
    """Emit the attention of all query rows of one KV head to one piece of its keys. Arguments and results are those of
    the kernel ``attend``.

    Args:
        lanes: must be 16.
        head_dim: must be a multiple of ``2 * lanes``.
        stored: the dtype of keys and values, "bfloat16" or "int8". Queries are bfloat16 in both cases.
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
    kind, words = KINDS[stored], head_dim // 2
    keys = e.at(keys, e.b.mul(head, e.load_long(arguments, Attention.KEY_HEAD)), kind)
    values = e.at(values, e.b.mul(head, e.load_long(arguments, Attention.VALUE_HEAD)), kind)
    key_token, value_token = e.load_long(arguments, Attention.KEY_TOKEN), e.load_long(arguments, Attention.VALUE_TOKEN)
    queries = e.at(queries, e.b.mul(head, e.b.mul(rows, long(head_dim))), I16)
    parts = e.at(parts, e.b.mul(tile, e.b.mul(rows, long(head_dim + 2))), F32)

    # Scratch memory of a worker: a copy of the current block of keys or values, if the block is incomplete; the scales
    # of the block's quants; the block laid out in pairs; the scales of the piece's values; the scores of all rows.
    room = e.at(scratch, e.b.mul(worker, e.load_long(arguments, Attention.SCRATCH_SIZE)), F32)
    laid_out = e.at(room, long(BLOCK * (head_dim + 1)), F32)
    value_scales = e.at(laid_out, long(BLOCK * head_dim), F32) if kind is I8 else None
    scores = e.at(laid_out, long(BLOCK * head_dim + PIECE), F32)

    def paired(pair: ir.Value, places: list[ir.Value]) -> list[ir.Value]:
        base = e.b.mul(pair, long(head_dim))
        return [e.load_vector(laid_out, e.b.add(base, place)) for place in places]

    first = e.b.mul(piece, long(PIECE))
    stop = e.b.add(first, long(PIECE))
    stop = e.b.select(e.b.icmp_signed("<", stop, length), stop, length)
    count = e.b.sub(stop, first)
    with e.loop(first, stop, BLOCK) as start:
        near = block_of(e, keys, key_token, room, start, length, head_dim, kind)
        ahead = Ahead(e, keys, key_token, start, kind, head_dim)
        _turn(e, near, ahead, are_many(e, rows, _KEY_VECTORS), laid_out, words)
        blocks = row_blocks(lanes, _KEY_VECTORS)
        for row, block in blocks_of_rows(e, rows, blocks):
            own = e.at(scores, e.b.add(e.b.mul(row, long(PIECE)), e.b.sub(start, first)), F32)
            line = e.at(queries, e.b.mul(row, long(head_dim)), I16)
            done = e.b.mul(e.b.sdiv(row, long(block)), long(words))
            shares = e.b.mul(e.b.sdiv(rows, long(block)), long(words))
            asked = (ahead, done, shares) if block == blocks[0] else None
            _score(e, line, block, laid_out, near.scales, own, words, asked)
    if value_scales is not None:
        _collect_scales(e, e.at(values, e.b.mul(first, value_token), kind), value_token, count, value_scales, head_dim)
    with e.loop(long(0), rows) as row:
        line = e.at(parts, e.b.mul(row, long(head_dim + 2)), F32)
        own = e.at(scores, e.b.mul(row, long(PIECE)), F32)
        begin, limit = (e.b.sub(e.load(e.at(of, row, I64), I64, align=8), first) for of in (first_seen, seen))
        _soften(e, own, begin, limit, count, scale, cap, line, value_scales, head_dim)
    with e.loop(first, stop, BLOCK) as start:
        near = block_of(e, values, value_token, room, start, length, head_dim, kind)
        ahead = Ahead(e, values, value_token, start, kind, head_dim)
        _pair(e, near, ahead, are_many(e, rows, VALUE_VECTORS), laid_out, head_dim)
        weights = e.at(scores, e.b.sub(start, first), I16)
        add_values(e, weights, PIECE, BLOCK // 2, paired, parts, rows, head_dim, [ahead], pairs=True)
    e.end()


def _collect_scales(
    e: Emitter, quants: ir.Value, stride: ir.Value, count: ir.Value, room: ir.Value, head_dim: int
) -> None:
    """Emit code that copies the scales of a piece's values to ``room``, and fills it with zeros up to ``PIECE``
    numbers.
    """
    with e.loop(long(0), count) as at:
        e.store(scale_of(e, e.at(quants, e.b.mul(at, stride), I8), head_dim), e.at(room, at, F32))
    with e.loop(count, long(PIECE)) as at:
        e.store(number(0.0), e.at(room, at, F32))


def _turn(e: Emitter, keys: Vectors, prefetch: Ahead, later: ir.Value, transposed: ir.Value, words: int) -> None:
    """Emit a loop that transposes a block's keys, as pairs of numbers, to (words, BLOCK). In each step, ``prefetch``
    prefetches the keys of some tokens of the next block. If ``later`` is true, no step prefetches, because a later loop
    does.
    """
    with e.loop(long(0), long(BLOCK), e.lanes) as token, e.loop(long(0), long(words), e.lanes) as word:
        loaded = [keys.load_pairs(e.b.add(token, long(at)), e.b.mul(word, long(2))) for at in range(e.lanes)]
        # The division is rounded up: some tokens are prefetched twice, but all are prefetched.
        tokens = -(-e.lanes * e.lanes // words)
        asked = e.b.add(token, e.b.mul(e.b.sdiv(word, long(e.lanes)), long(tokens)))
        with e.b.if_then(e.b.not_(later)):
            for at in range(tokens):
                prefetch.ask_token(e.b.add(asked, long(at)))
        for at, vector in enumerate(e.transposed(loaded)):
            place = e.b.add(e.b.mul(e.b.add(word, long(at)), long(BLOCK)), token)
            e.store(vector, e.at(transposed, place, F32))


def _pair(e: Emitter, values: Vectors, prefetch: Ahead, later: ir.Value, paired: ir.Value, head_dim: int) -> None:
    """Emit a loop that interleaves the values of neighbouring keys, two at a time, to (BLOCK / 2, head_dim) pairs.
    ``prefetch`` and ``later`` are as in ``_turn``.
    """
    with e.loop(long(0), long(BLOCK), 2) as token, e.loop(long(0), long(head_dim), 2 * e.lanes) as column:
        both = [values.load_pairs(e.b.add(token, long(at)), column) for at in range(2)]
        with e.b.if_then(e.b.not_(later)):
            for at in range(2):
                prefetch.ask(e.b.add(token, long(at)), column)
        place = e.b.add(e.b.mul(e.b.sdiv(token, long(2)), long(head_dim)), column)
        for at, vector in enumerate(e.interleaved(*both)):
            e.store(vector, e.at(paired, e.b.add(place, long(at * e.lanes)), F32))


def _score(
    e: Emitter,
    queries: ir.Value,
    rows: int,
    transposed: ir.Value,
    scales: ir.Value | None,
    scores: ir.Value,
    words: int,
    prefetch: tuple[Ahead, ir.Value, ir.Value] | None,
) -> None:
    """Emit the products of ``rows`` queries with the transposed keys of a block.

    Args:
        prefetch: (prefetches, done, total). The next block is prefetched in ``total`` shares, one in each step of a
            loop. ``done`` shares are prefetched before this loop. With None, no step prefetches.
    """
    with e.loop(long(0), long(BLOCK), _KEY_VECTORS * e.lanes) as start:
        offsets = [e.b.add(start, long(at * e.lanes)) for at in range(_KEY_VECTORS)]
        sums = [[e.variable(e.constant(0.0)) for _ in offsets] for _ in range(rows)]
        lines = [e.at(queries, long(row * words), F32) for row in range(rows)]
        with e.loop(long(0), long(words)) as word:
            base = e.b.mul(word, long(BLOCK))
            near = [e.load_vector(transposed, e.b.add(base, offset)) for offset in offsets]
            if prefetch is not None:
                ahead, done, shares = prefetch
                ahead.ask_share(e.b.add(done, word), shares)
            add_products(e, lines, word, near, sums, pairs=True)
        for row, own in enumerate(sums):
            for offset, total in zip(offsets, own, strict=True):
                score = total.value
                if scales is not None:
                    score = e.b.fmul(score, e.load_vector(scales, offset))
                e.store(score, e.at(scores, e.b.add(offset, long(row * PIECE)), F32))


def _soften(
    e: Emitter,
    scores: ir.Value,
    begin: ir.Value,
    limit: ir.Value,
    count: ir.Value,
    scale: ir.Value,
    cap: ir.Value | None,
    line: ir.Value,
    value_scales: ir.Value | None,
    head_dim: int,
) -> None:
    """Emit code that computes the softmax weights of one row. It overwrites the float32 scores with bfloat16 weights,
    which take half the space. It sets the first head_dim numbers of ``line``, the sums of values, to zero, and writes
    the row's maximum and the sum of its weights after them.

    Args:
        begin, limit: the row sees the keys [begin, limit), counted from the piece's first key. Both may lie outside of
            the piece.
        count: number of keys of the piece.
        line: the row's results in ``PARTS``.
        value_scales: scales of quantized values. After the weights are summed, they are multiplied by these scales.
            None if the values are not quantized.
    """
    together = range(0, _KEY_VECTORS * e.lanes, e.lanes)
    width = len(together) * e.lanes
    stop = e.b.and_(e.b.add(count, long(width - 1)), long(-width))
    maximum = e.splat(_hide(e, scores, begin, limit, stop, scale, cap))
    nothing = e.b.fcmp_ordered("<=", maximum, e.constant(LOWEST))
    factor = scale if cap is None else e.constant(1.0)
    maximum = e.b.fmul(maximum, factor)
    # If the row sees no key, its maximum ``LOWEST`` is replaced by 0. Otherwise hidden keys would get the weight 2 **
    # (LOWEST - LOWEST) = 1.
    below = e.b.fneg(e.b.select(nothing, e.constant(0.0), maximum))
    sums = [e.variable(e.constant(0.0)) for _ in together]
    with e.loop(long(0), stop, width) as start:
        for offset, added in zip(together, sums, strict=True):
            at = e.b.add(start, long(offset))
            weight = e.scaled_power(e.fma(e.load_vector(scores, at), factor, below))
            added.value = e.b.fadd(added.value, weight)
            if value_scales is not None:
                weight = e.b.fmul(weight, e.load_vector(value_scales, at))
            e.store_halves(weight, scores, at)
    total = sums[0].value
    for added in sums[1:]:
        total = e.b.fadd(total, added.value)
    for at in range(0, head_dim, e.lanes):
        e.store(e.constant(0.0), e.at(line, long(at), F32))
    maximum = e.b.select(nothing, e.constant(LOWEST), maximum)
    e.store(e.b.extract_element(maximum, I32(0)), e.at(line, long(head_dim), F32))
    e.store(e.fold(total, e.b.fadd), e.at(line, long(head_dim + 1), F32))


def _hide(
    e: Emitter,
    scores: ir.Value,
    begin: ir.Value,
    limit: ir.Value,
    stop: ir.Value,
    scale: ir.Value,
    cap: ir.Value | None,
) -> ir.Value:
    """Emit code that caps a row's scores, if the model caps scores, and sets the scores of hidden keys to ``LOWEST``.
    Return the largest score.

    Args:
        begin, limit: as in ``_soften``.
        stop: number of scores, rounded up to whole steps of the loop.
    """
    steps = ir.Constant(ir.VectorType(I32, e.lanes), [I32(at) for at in range(e.lanes)])
    edges = [e.b.trunc(border, I32) for border in (begin, limit)]
    together = range(0, _KEY_VECTORS * e.lanes, e.lanes)
    maxima = [e.variable(e.constant(LOWEST)) for _ in together]
    sees_all = e.b.and_(e.b.icmp_signed("<=", begin, long(0)), e.b.icmp_signed(">=", limit, stop))

    def look(hides: bool) -> None:
        with e.loop(long(0), stop, len(together) * e.lanes) as start:
            for offset, largest in zip(together, maxima, strict=True):
                at = e.b.add(start, long(offset))
                score = e.load_vector(scores, at)
                if cap is not None:
                    score = scaled(e, score, scale, cap)
                if hides:
                    low, high = (e.splat(e.b.sub(edge, e.b.trunc(at, I32))) for edge in edges)
                    hidden = e.b.or_(e.b.icmp_signed("<", steps, low), e.b.icmp_signed(">=", steps, high))
                    score = e.b.select(hidden, e.constant(LOWEST), score)
                if hides or cap is not None:
                    e.store(score, e.at(scores, at, F32))
                largest.value = e.larger(largest.value, score)

    with e.b.if_else(sees_all) as (most, few):
        with most:
            look(hides=False)
        with few:
            look(hides=True)
    largest_of_all = maxima[0].value
    for largest in maxima[1:]:
        largest_of_all = e.larger(largest_of_all, largest.value)
    return e.fold(largest_of_all, e.larger)


EMIT: dict[str, Callable[..., None]] = {"attend_pairs": _emit_attend_pairs}
"""Emitters of these kernels, keyed by name."""
