"""Emits attention in bfloat16 for processors that multiply pairs of bfloat16 numbers
(``engine.model.kernels.emit.products``).

The neighbouring numbers of a key already form pairs. The keys of a block are transposed, so that a lane holds a key and
no sum over lanes is needed. The values of two neighbouring keys are interleaved into pairs. A single token usually has
several rows, one for each query head of the KV head, which share this work. The softmax weights are rounded to
bfloat16, as in torch's kernels. For float32 there is no such kernel, because transposing would cost more than it gains.

All keys of a piece are processed before its values, so that memory is read in long runs and each row needs only one
softmax. While a block is computed, the one that is needed next is prefetched. Everything else is as in ``attention``.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from engine.model.kernels.abi import BLOCK, PIECE, Attention
from engine.model.kernels.emit.attention import (
    LOWEST,
    Ahead,
    Vectors,
    add_values,
    block_of,
    blocks_of_rows,
    next_block,
    scale_of,
    scaled,
)
from engine.model.kernels.emit.emitter import F32, I8, I16, I32, I64, KINDS, PTR, VOID, Emitter, long, number
from engine.model.kernels.emit.products import add_products, row_blocks

_KEY_VECTORS = 4  # number of vectors of keys that are multiplied with a query together: all keys of a block
_ACCUMULATORS = 24  # number of vector registers that hold sums; the other 8 hold loaded operands
# Minimum number of rows for which a block's values are interleaved once, and not again for each block of rows.
_MANY_ROWS = 24
_QUAD = 4  # number of words that are transposed together


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

    first = e.b.mul(piece, long(PIECE))
    stop = e.b.add(first, long(PIECE))
    stop = e.b.select(e.b.icmp_signed("<", stop, length), stop, length)
    count = e.b.sub(stop, first)
    with e.loop(first, stop, BLOCK) as start:
        near = block_of(e, keys, key_token, room, start, length, head_dim, kind)
        # The last keys of the piece are followed by its first values.
        inside = e.b.add(start, long(BLOCK))
        after = (keys, inside, key_token), (values, first, value_token)
        ahead = _ahead(e, e.b.icmp_signed("<", inside, stop), *after, kind, head_dim)
        _turn(e, near, laid_out, words)
        for row, block in blocks_of_rows(e, rows, row_blocks(_ACCUMULATORS, _KEY_VECTORS)):
            own = e.at(scores, e.b.sub(start, first), F32)
            _score(e, queries, row, rows, block, laid_out, near.scales, own, words, ahead)
    if value_scales is not None:
        _collect_scales(e, e.at(values, e.b.mul(first, value_token), kind), value_token, count, value_scales, head_dim)
    with e.loop(long(0), rows) as row:
        line = e.at(parts, e.b.mul(row, long(head_dim + 2)), F32)
        own = e.at(scores, e.b.mul(row, long(PIECE)), F32)
        begin, limit = (e.b.sub(e.load(e.at(of, row, I64), I64, align=8), first) for of in (first_seen, seen))
        _soften(e, own, begin, limit, count, scale, cap, line, value_scales, head_dim)
    with e.loop(first, stop, BLOCK) as start:
        near = block_of(e, values, value_token, room, start, length, head_dim, kind)
        # The last values of the piece are followed by the first keys of the worker's next piece.
        following = next_block(e, start, stop)
        after = (values, following, value_token), (keys, following, key_token)
        ahead = _ahead(e, e.b.icmp_signed("<", following, stop), *after, kind, head_dim)
        weights = e.at(scores, e.b.sub(start, first), I16)
        _add_values(e, near, laid_out, weights, parts, rows, head_dim, ahead)
    e.end()


def _ahead(
    e: Emitter,
    condition: ir.Value,
    chosen: tuple[ir.Value, ir.Value, ir.Value],
    otherwise: tuple[ir.Value, ir.Value, ir.Value],
    kind: ir.Type,
    head_dim: int,
) -> Ahead:
    """Return prefetches of the block ``chosen`` if ``condition`` is true, else of the block ``otherwise``. A block is
    given as (address of keys or values, its first token, distance between tokens).
    """
    places = [e.at(source, e.b.mul(token, stride), kind) for source, token, stride in (chosen, otherwise)]
    return Ahead(e, e.b.select(condition, *places), e.b.select(condition, chosen[2], otherwise[2]), kind, head_dim)


def _collect_scales(
    e: Emitter, quants: ir.Value, stride: ir.Value, count: ir.Value, room: ir.Value, head_dim: int
) -> None:
    """Emit code that copies the scales of a piece's values to ``room``, and fills it with zeros up to ``PIECE``
    numbers.
    """
    with e.loop(long(0), count) as token:
        e.store(scale_of(e, e.at(quants, e.b.mul(token, stride), I8), head_dim), e.at(room, token, F32))
    with e.loop(count, long(PIECE)) as token:
        e.store(number(0.0), e.at(room, token, F32))


def _turn(e: Emitter, keys: Vectors, transposed: ir.Value, words: int) -> None:
    """Emit a loop that transposes a block's keys, as pairs of numbers (words), to (words, BLOCK).

    In each step ``_QUAD`` words of 16 keys are transposed. Every load takes these words of one key. The words of keys
    k, k + 4, k + 8 and k + 12 form one vector, so that words then change places only within groups of four lanes.
    """
    with e.loop(long(0), long(BLOCK), e.lanes) as token, e.loop(long(0), long(words), _QUAD) as word:
        index = e.b.mul(word, long(2))
        loaded = []
        for first in range(_QUAD):
            tokens = [e.b.add(token, long(at)) for at in range(first, e.lanes, _QUAD)]
            loaded.append(e.concatenated([keys.load_pairs(at, index, _QUAD) for at in tokens]))
        for at, vector in enumerate(e.transposed_quads(loaded)):
            place = e.b.add(e.b.mul(e.b.add(word, long(at)), long(BLOCK)), token)
            e.store(vector, e.at(transposed, place, F32))


def _add_values(
    e: Emitter,
    values: Vectors,
    laid_out: ir.Value,
    weights: ir.Value,
    parts: ir.Value,
    rows: ir.Value,
    head_dim: int,
    ahead: Ahead,
) -> None:
    """Add the weighted values of a block to the sums of every row (``add_values``).

    The values of neighbouring keys are interleaved when they are multiplied, if there are few rows. If there are many,
    they are interleaved before, once for all rows, and stored in ``laid_out`` as pairs: (BLOCK / 2, head_dim).
    """

    def interleaved(pair: ir.Value, places: list[ir.Value]) -> list[ir.Value]:
        tokens = [e.b.add(e.b.mul(pair, long(2)), long(at)) for at in range(2)]
        loaded = [[values.load_pairs(token, place, e.lanes) for token in tokens] for place in places[::2]]
        return [vector for both in loaded for vector in e.interleaved(*both)]

    def stored(pair: ir.Value, places: list[ir.Value]) -> list[ir.Value]:
        base = e.b.mul(pair, long(head_dim))
        return [e.load_vector(laid_out, e.b.add(base, place)) for place in places]

    def add(near: Callable[[ir.Value, list[ir.Value]], list[ir.Value]]) -> None:
        add_values(e, weights, PIECE, BLOCK // 2, near, parts, rows, head_dim, ahead, _ACCUMULATORS, pairs=True)

    with e.b.if_else(e.b.icmp_signed("<", rows, long(_MANY_ROWS))) as (few, many):
        with few:
            add(interleaved)
        with many:
            with e.loop(long(0), long(BLOCK // 2)) as pair, e.loop(long(0), long(head_dim), 2 * e.lanes) as column:
                places = [e.b.add(column, long(at)) for at in (0, e.lanes)]
                for place, vector in zip(places, interleaved(pair, places), strict=True):
                    e.store(vector, e.at(laid_out, e.b.add(e.b.mul(pair, long(head_dim)), place), F32))
            add(stored)


def _score(
    e: Emitter,
    queries: ir.Value,
    row: ir.Value,
    all_rows: ir.Value,
    rows: int,
    transposed: ir.Value,
    scales: ir.Value | None,
    scores: ir.Value,
    words: int,
    ahead: Ahead,
) -> None:
    """Emit the products of ``rows`` of the ``all_rows`` queries, from ``row`` on, with the transposed keys of a block.
    ``ahead`` prefetches the block that is needed next.

    Args:
        scores: address of the score of the block's first key and the first query. A query has ``PIECE`` scores.
    """
    scores = e.at(scores, e.b.mul(row, long(PIECE)), F32)
    # a step is one query and one word
    steps, before = (e.b.mul(number, long(words)) for number in (all_rows, row))
    with e.loop(long(0), long(BLOCK), _KEY_VECTORS * e.lanes) as start:
        offsets = [e.b.add(start, long(vector * e.lanes)) for vector in range(_KEY_VECTORS)]
        sums = [[e.variable(e.constant(0.0)) for _ in offsets] for _ in range(rows)]
        lines = [e.at(queries, e.b.add(before, long(at * words)), F32) for at in range(rows)]
        with e.loop(long(0), long(words)) as word:
            base = e.b.mul(word, long(BLOCK))
            near = [e.load_vector(transposed, e.b.add(base, offset)) for offset in offsets]
            ahead.ask(e.b.add(before, e.b.mul(word, long(rows))), rows, steps)
            add_products(e, lines, word, near, sums, pairs=True)
        for at, own in enumerate(sums):
            for offset, total in zip(offsets, own, strict=True):
                score = total.value
                if scales is not None:
                    score = e.b.fmul(score, e.load_vector(scales, offset))
                e.store(score, e.at(scores, e.b.add(offset, long(at * PIECE)), F32))


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
            key = e.b.add(start, long(offset))
            weight = e.scaled_power(e.fma(e.load_vector(scores, key), factor, below))
            added.value = e.b.fadd(added.value, weight)
            if value_scales is not None:
                weight = e.b.fmul(weight, e.load_vector(value_scales, key))
            e.store_halves(weight, scores, key)
    total = sums[0].value
    for added in sums[1:]:
        total = e.b.fadd(total, added.value)
    for column in range(0, head_dim, e.lanes):
        e.store(e.constant(0.0), e.at(line, long(column), F32))
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
    steps = ir.Constant(ir.VectorType(I32, e.lanes), [I32(lane) for lane in range(e.lanes)])
    edges = [e.b.trunc(border, I32) for border in (begin, limit)]
    together = range(0, _KEY_VECTORS * e.lanes, e.lanes)
    maxima = [e.variable(e.constant(LOWEST)) for _ in together]
    sees_all = e.b.and_(e.b.icmp_signed("<=", begin, long(0)), e.b.icmp_signed(">=", limit, stop))

    def look(hides: bool) -> None:
        with e.loop(long(0), stop, len(together) * e.lanes) as start:
            for offset, largest in zip(together, maxima, strict=True):
                key = e.b.add(start, long(offset))
                score = e.load_vector(scores, key)
                if cap is not None:
                    score = scaled(e, score, scale, cap)
                if hides:
                    low, high = (e.splat(e.b.sub(edge, e.b.trunc(key, I32))) for edge in edges)
                    hidden = e.b.or_(e.b.icmp_signed("<", steps, low), e.b.icmp_signed(">=", steps, high))
                    score = e.b.select(hidden, e.constant(LOWEST), score)
                if hides or cap is not None:
                    e.store(score, e.at(scores, key, F32))
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
