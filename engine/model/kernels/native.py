"""The loops of a decoding step as kernels for this processor: skinny products, attention over long KV, and norms.

They read their large operand once, at the speed of memory, and give a row of the result the same bits however many
rows come with it: every sum has a fixed order that depends on the row and on absolute positions alone. So a
verification over several tokens says, bit by bit, what plain decoding says.

``product`` takes weights packed in panels of output columns, (panels, in, columns): the columns of a panel are the
lanes of the vectors, so an output is one sum over the inputs in their order. They may be levels of 8 bits, or of 4
(``product4``). ``attend`` takes the keys in blocks whose borders are absolute positions: scores of a block, online
softmax, values; pieces of ``PIECE`` keys are joined in their order by ``join``. All arithmetic is in float32. What is
long may lie in bfloat16 or in levels, and is widened in registers, which is exact. ``rowwise`` has what lies between.

A kernel does one tile: ``kernel(arguments, tile, worker)``, arguments being an array of i64, among which a float32
lies in the lower half of its word. ``engine.model.kernels.pool`` compiles them and runs the tiles. Where the processor
multiplies pairs of bfloat16 numbers, ``pairs`` has products and attention for models in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from llvmlite import ir

from engine.model.kernels.abi import BLOCK, PANEL_VECTORS, PIECE, Attention, Norm, Product, Spread
from engine.model.kernels.emit import BYTES, F32, I8, I16, I32, I64, KINDS, PTR, VOID, Emitter, Variable, long, number
from engine.quantization import GROUP, LAST_LEVEL, LEVEL_BITS, MIDDLE_LEVEL, WORD_LEVELS

_SUM_WORDS = 2  # words of a group that are summed before they meet the scale: short chains of additions

_ROW_BLOCKS = (8, 6, 4, 3, 2, 1)  # rows that share what is loaded of the weights, or of the values
ACCUMULATORS = {16: 16}  # vectors of this many numbers, with 32 registers: accumulators beside what is loaded
_FEW_ACCUMULATORS = 12  # with 16 registers
_KEYS = 4  # that meet a query together
_SCORE_ROWS = (2, 1)  # queries that meet them together, so that keys are widened once for both
VALUE_VECTORS, _VALUE_CHUNKS = 2, (8, 5, 4, 3, 2, 1)  # of a value that are summed at once: with many rows, with few
LINE = 64  # bytes of a cache line
_SHARE_BITS = 20  # behind the point of how many lines a step asks for
LOWEST = -1e30  # stands for minus infinity, whose difference with itself is no number

Sums = list[list[Variable]]
"""Of rows, and in each of the vectors of a panel."""


def _emit_product(module: ir.Module, name: str, lanes: int, weights: str, scales: str = "") -> None:
    """out (rows, outputs) = x (rows, inputs) @ weights, for ``TILE_PANELS`` panels; x and out in float32.

    Args:
        weights: their kind; "int8" are levels.
        scales: of what kind those of levels are, one for each output.
    """

    def near(e: Emitter, place: ir.Value) -> list[ir.Value]:
        return [e.load_vector(place, long(at * lanes), KINDS[weights]) for at in range(PANEL_VECTORS)]

    emit_product(module, name, lanes, weights, scales, near)


def emit_product(
    module: ir.Module,
    name: str,
    lanes: int,
    weights: str,
    scales: str,
    near: Callable[[Emitter, ir.Value], list[ir.Value]],
    pairs: bool = False,
) -> None:
    """``_emit_product``, also of pairs, with a word of a panel being an input of each column, or a pair of them.

    Args:
        near: the vectors of the word that lies at an address.
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
            add_products(e, lines, word, near(e, place), sums, pairs)
        places = [e.b.add(column, long(at * lanes)) for at in range(PANEL_VECTORS)]
        factors = [e.load_vector(scale, place, KINDS[scales]) for place in places] if scale is not None else []
        _store_sums(e, out, row, column, outputs, sums, factors)

    _each_panel(e, rows_of)
    e.end()


def _emit_product4(module: ir.Module, name: str, lanes: int, scales: str) -> None:
    """The same with weights of 4 bits, ``(level - 8) * scale + middle`` for each group of inputs.

    A word of a panel holds the levels of ``WORD_LEVELS`` inputs of one output. They are cut out of it where they
    stand, a power of 16 too large, for which ``spread`` has made x smaller. Both is exact.

    Args:
        scales: of what kind scales and middles are: (panels, groups, 2, columns).
    """
    width = lanes * PANEL_VECTORS

    def add_some(e: Emitter, here: ir.Value, start: ir.Value, lines: list[ir.Value], sums: Sums) -> None:
        for ahead in range(_SUM_WORDS):
            word = e.b.add(start, long(ahead))
            base = e.b.mul(word, long(width))
            loaded = [e.load(e.at(here, e.b.add(base, long(at * lanes)), I32), e.whole) for at in range(PANEL_VECTORS)]
            for place in range(WORD_LEVELS):
                levels = [_level(e, vector, place) for vector in loaded]
                k = e.b.add(e.b.mul(word, long(WORD_LEVELS)), long(place))
                add_products(e, lines, k, levels, sums)

    emit_product4(module, name, lanes, scales, -float(MIDDLE_LEVEL), GROUP // WORD_LEVELS, _SUM_WORDS, add_some)


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
    """``_emit_product4``, also of pairs. Sums meet the scale behind each ``step`` of a group's ``words``.

    Args:
        lowest: the level, counted from the middle one, that ``add_some`` takes for 0.
        add_some: adds the products of so many words: of a group's part of a panel, from a word on, with the lines of x
            from the group on.
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
                [e.load_vector(mine, long(start + at * lanes), kind) for at in range(PANEL_VECTORS)]
                for start in (0, width)
            )
            if lowest:
                lows = [e.fma(step, e.constant(lowest), low) for step, low in zip(steps, lows, strict=True)]
            for at, own in enumerate(totals):
                place = e.b.add(e.b.mul(e.b.add(row, long(at)), groups), group)
                sum_of_x = e.splat(e.load(e.at(sums_of_x, place, F32), F32))
                for low, total in zip(lows, own, strict=True):
                    total.value = e.fma(sum_of_x, low, total.value)
            here = e.at(packed, e.b.mul(number_of_group, long(GROUP * width * LEVEL_BITS // 8)), I8)
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
        _store_sums(e, out, row, column, outputs, totals)

    _each_panel(e, rows_of)
    e.end()


def _level(e: Emitter, words: ir.Value, place: int) -> ir.Value:
    """The level at a place of each word as float32, times what ``_spread_of`` divides by."""
    if place == WORD_LEVELS - 1:  # the sign is there
        return e.b.sitofp(e.b.lshr(words, e.whole_splat(LEVEL_BITS * place)), e.vector)
    return e.b.sitofp(e.b.and_(words, e.whole_splat(LAST_LEVEL << LEVEL_BITS * place)), e.vector)


def _spread_of(place: int) -> float:
    return 1.0 if place == WORD_LEVELS - 1 else 2.0 ** (-LEVEL_BITS * place)


def _emit_spread(module: ir.Module, name: str, lanes: int, kind: str) -> None:
    """x (rows, inputs) as ``product4`` wants it: ``OUT`` in float32 by ``_spread_of``, ``SUMS`` (rows, groups) of x."""
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
            factors = ir.Constant(e.vector, [number(_spread_of((offset + at) % WORD_LEVELS)) for at in range(lanes)])
            e.store(e.b.fmul(loaded, factors), e.at(out, place, F32))
        place = e.b.add(e.b.sdiv(first, long(GROUP)), group)
        e.store(e.fold(total, e.b.fadd), e.at(sums, place, F32))
    e.end()


def _each_panel(e: Emitter, rows_of: Callable[[ir.Value, int, ir.Value], None]) -> None:
    """Emit the panels of a tile of a product, and in each all rows in blocks: ``rows_of(first row, rows, panel)``."""
    _, tile, _ = e.arguments
    rows, count, panels = e.longs(Product.ROWS, Product.TILE_PANELS, Product.PANELS)
    first = e.b.mul(tile, count)
    stop = e.b.add(first, count)
    stop = e.b.select(e.b.icmp_signed("<", stop, panels), stop, panels)
    with e.loop(first, stop) as panel:
        done = e.variable(long(0))
        for block in row_blocks(e.lanes, PANEL_VECTORS):
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
    """Add the ``k``-th number of every line times the vectors to its sums; or the ``k``-th pair by pairs."""
    multiply = e.dot_pairs if pairs else e.fma
    for line, own in zip(lines, sums, strict=True):
        number_of_row = e.splat(e.load(e.at(line, k, F32), F32))
        for vector, total in zip(loaded, own, strict=True):
            total.value = multiply(number_of_row, vector, total.value)


def _store_sums(
    e: Emitter,
    out: ir.Value,
    row: ir.Value,
    column: ir.Value,
    outputs: ir.Value,
    sums: list[list[Variable]],
    factors: Sequence[ir.Value] = (),
) -> None:
    """Store the sums of rows from ``row`` on, and outputs from ``column`` on, each vector times its factor if there
    are any."""
    for at, own in enumerate(sums):
        place = e.b.add(e.b.mul(e.b.add(row, long(at)), outputs), column)
        for index, total in enumerate(own):
            value = e.b.fmul(total.value, factors[index]) if factors else total.value
            e.store(value, e.at(out, e.b.add(place, long(index * e.lanes)), F32))


def are_many(e: Emitter, rows: ir.Value, vectors: int) -> ir.Value:
    """Whether a block of rows as large as ``row_blocks`` has them can be had of these."""
    return e.b.icmp_signed(">=", rows, long(row_blocks(e.lanes, vectors)[0]))


def row_blocks(lanes: int, vectors: int) -> list[int]:
    """Rows that are computed together, largest first, so that the sums of ``vectors`` for each stay in registers."""
    most = max(1, ACCUMULATORS.get(lanes, _FEW_ACCUMULATORS) // vectors)
    return [rows for rows in _ROW_BLOCKS if rows <= most]


def _emit_attend(module: ir.Module, name: str, lanes: int, head_dim: int, stored: str, capped: bool) -> None:
    """One piece of one KV head's keys for all rows of its queries.

    A row sees the keys [``FIRST[row]``, ``SEEN[row]``). Writes unnormalised sums, their maximum and their sum into
    ``PARTS``: (kv_heads, pieces, rows, head_dim + 2). Scores are to base 2: ``SCALE`` is log2(e) times the usual scale.
    With a cap ``CAP`` is log2(e) times that, and ``SCALE`` as ``scaled`` wants it.

    Args:
        stored: the kind of keys and values; strides are in numbers of it. "int8" are levels, with their scale behind
            them in bfloat16. Queries are of this kind too, but float32 beside levels.
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

    # The worker's scratch: room for keys and values of the last block and for scales, then queries and scores of all
    # rows in float32.
    mine = e.at(scratch, e.b.mul(worker, e.load_long(arguments, Attention.SCRATCH_SIZE)), F32)
    rooms = [e.at(mine, long(at * BLOCK * (head_dim + 1)), F32) for at in range(2)]
    wide = e.at(mine, long(2 * BLOCK * (head_dim + 1)), F32)
    scores = e.at(wide, e.b.mul(rows, long(head_dim)), F32)

    with e.loop(long(0), rows) as row:
        line = e.at(parts, e.b.mul(row, long(head_dim + 2)), F32)
        start = e.b.mul(row, long(head_dim))
        for at in range(0, head_dim, lanes):
            place = e.b.add(start, long(at))
            e.store(e.load_vector(queries, place, query_kind), e.at(wide, place, F32))
            e.store(e.constant(0.0), e.at(line, long(at), F32))
        e.store(number(LOWEST), e.at(line, long(head_dim), F32))
        e.store(number(0.0), e.at(line, long(head_dim + 1), F32))

    first = e.b.mul(piece, long(PIECE))
    stop = e.b.add(first, long(PIECE))
    stop = e.b.select(e.b.icmp_signed("<", stop, length), stop, length)
    with e.loop(first, stop, BLOCK) as start:
        near_keys = block_of(e, keys, key_token, rooms[0], start, length, head_dim, kind)
        near_values = block_of(e, values, value_token, rooms[1], start, length, head_dim, kind)
        for row, block in blocks_of_rows(e, rows, _SCORE_ROWS if kind is not F32 else (1,)):
            own = e.at(scores, e.b.mul(row, long(BLOCK)), F32)
            _score(e, e.at(wide, e.b.mul(row, long(head_dim)), F32), block, near_keys, own, head_dim)
        with e.loop(long(0), rows) as row:
            line = e.at(parts, e.b.mul(row, long(head_dim + 2)), F32)
            own = e.at(scores, e.b.mul(row, long(BLOCK)), F32)
            begin, limit = (e.b.sub(e.load(e.at(of, row, I64), I64, align=8), start) for of in (first_seen, seen))
            _soften(e, own, begin, limit, scale, cap, line, near_values.scales, head_dim)
        ahead = [
            Ahead(e, source, stride, start, kind, head_dim)
            for source, stride in ((keys, key_token), (values, value_token))
        ]
        add_values(e, scores, BLOCK, BLOCK, near_values.load_all, parts, rows, head_dim, ahead)
    e.end()


class Vectors:
    """Keys or values of a block as they are stored: ``step`` numbers from one to the next.

    ``scales`` are those of levels, in float32; None where numbers are no levels.
    """

    def __init__(self, e: Emitter, place: ir.Value, step: ir.Value, kind: ir.Type, scales: ir.Value | None) -> None:
        self._e, self._place, self._step, self.kind, self.scales = e, place, step, kind, scales

    def load(self, token: ir.Value, at: ir.Value) -> ir.Value:
        """Numbers from ``at`` on of the block's ``token``-th key or value; levels without their scale."""
        return self._e.load_vector(self._place, self._where(token, at), self.kind)

    def load_pairs(self, token: ir.Value, at: ir.Value) -> ir.Value:
        """As many pairs of numbers as a vector has lanes, in bfloat16; levels are exact in it."""
        return self._e.load_pairs(self._place, self._where(token, at), self.kind)

    def load_all(self, token: ir.Value, places: list[ir.Value]) -> list[ir.Value]:
        """``load`` from each of the places on."""
        return [self.load(token, place) for place in places]

    def _where(self, token: ir.Value, at: ir.Value) -> ir.Value:
        return self._e.b.add(self._e.b.mul(token, self._step), at)


class Ahead:
    """The keys or values behind the block that begins at ``start``, which are brought near while that is computed.

    Asked for all at once they come while nothing is multiplied, and the memory rests while something is. So each step
    of the sums asks for a few lines where there are many, and who lays a block out for few rows asks for its tokens.
    """

    def __init__(
        self, e: Emitter, source: ir.Value, stride: ir.Value, start: ir.Value, kind: ir.Type, head_dim: int
    ) -> None:
        self._e, self._stride, self._kind = e, stride, kind
        self._place = e.at(source, e.b.mul(e.b.add(start, long(BLOCK)), stride), kind)
        self._numbers = LINE // BYTES[kind]
        self._lines = -(-head_dim // self._numbers)  # of a token

    def ask_share(self, share: ir.Value, shares: ir.Value) -> None:
        """Ask for one of so many equal shares of the block's lines."""
        e, lines = self._e, self._lines
        # Rounded up, or the last share would end before the last line; the same for all, and computed once.
        step = e.b.sdiv(e.b.add(long((BLOCK * lines << _SHARE_BITS) - 1), shares), shares)
        begin = e.b.lshr(e.b.mul(share, step), long(_SHARE_BITS))
        end = e.b.lshr(e.b.mul(e.b.add(share, long(1)), step), long(_SHARE_BITS))
        with e.loop(begin, end) as line:
            token, number = e.b.sdiv(line, long(lines)), e.b.srem(line, long(lines))
            self.ask(token, e.b.mul(number, long(self._numbers)))

    def ask_token(self, token: ir.Value) -> None:
        for line in range(self._lines):
            self.ask(token, long(line * self._numbers))

    def ask(self, token: ir.Value, at: ir.Value) -> None:
        """Ask for the line in which the ``at``-th number of the ``token``-th key or value lies."""
        self._e.prefetch(self._e.at(self._place, self._e.b.add(self._e.b.mul(token, self._stride), at), self._kind))


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
    """The keys or values of a block: where they lie, or, if it is not whole, in ``room``, zeros behind the last.

    Their scales, if there are any, lie behind the room for them.
    """
    size = head_dim + 2 if kind is I8 else head_dim  # the scale lies behind
    whole = e.b.icmp_signed("<=", e.b.add(start, long(BLOCK)), length)
    here = e.at(source, e.b.mul(start, stride), kind)
    with e.b.if_then(e.b.not_(whole)):
        with e.loop(long(0), e.b.sub(length, start)) as at, e.loop(long(0), long(size)) as offset:
            loaded = e.load(e.at(here, e.b.add(e.b.mul(at, stride), offset), kind), kind, align=BYTES[kind])
            e.store(loaded, e.at(room, e.b.add(e.b.mul(at, long(size)), offset), kind), align=BYTES[kind])
        with e.loop(e.b.mul(e.b.sub(length, start), long(size)), long(BLOCK * size)) as at:
            e.store(ir.Constant(kind, 0.0 if kind is F32 else 0), e.at(room, at, kind), align=BYTES[kind])
    place, step = e.b.select(whole, here, room), e.b.select(whole, stride, long(size))
    if kind is not I8:
        return Vectors(e, place, step, kind, None)
    scales = e.at(room, long(BLOCK * head_dim), F32)
    with e.loop(long(0), long(BLOCK)) as at:
        e.store(scale_of(e, e.at(place, e.b.mul(at, step), I8), head_dim), e.at(scales, at, F32))
    return Vectors(e, place, step, kind, scales)


def scale_of(e: Emitter, levels: ir.Value, head_dim: int) -> ir.Value:
    """The scale behind the levels of a key or value."""
    bits = e.b.zext(e.load(e.at(levels, long(head_dim), I8), I16, align=1), I32)
    return e.b.bitcast(e.b.shl(bits, I32(16)), F32)


def blocks_of_rows(e: Emitter, rows: ir.Value, sizes: Sequence[int]) -> Iterator[tuple[ir.Value, int]]:
    """Emit a loop for each size, largest first, that takes as many rows together as long as there are as many left."""
    done = e.variable(long(0))
    for size in sizes:
        start = done.value
        left = e.b.sub(rows, start)
        stop = e.b.add(start, e.b.sub(left, e.b.srem(left, long(size))))
        with e.loop(start, stop, size) as row:
            yield row, size
        done.value = stop


def _score(e: Emitter, queries: ir.Value, rows: int, keys: Vectors, scores: ir.Value, head_dim: int) -> None:
    """Products of ``rows`` queries, one behind the other in float32, with a block's keys, which are read once."""
    with e.loop(long(0), long(BLOCK), e.lanes) as start:
        some: list[list[ir.Value]] = [[] for _ in range(rows)]
        for first in range(0, e.lanes, _KEYS):
            totals = [[e.constant(0.0)] * _KEYS for _ in range(rows)]
            for part in range(0, head_dim, e.lanes):
                near = [keys.load(e.b.add(start, long(first + at)), long(part)) for at in range(_KEYS)]
                for row, own in enumerate(totals):
                    query = e.load_vector(queries, long(row * head_dim + part))
                    own[:] = [e.fma(query, key, total) for key, total in zip(near, own, strict=True)]
            for own, total in zip(some, totals, strict=True):
                own.append(e.sums(total))
        for row, own in enumerate(some):
            total = e.sums(own, _KEYS)
            if keys.scales is not None:
                total = e.b.fmul(total, e.load_vector(keys.scales, start))
            e.store(total, e.at(scores, e.b.add(start, long(row * BLOCK)), F32))


def scaled(e: Emitter, score: ir.Value, scale: ir.Value, cap: ir.Value | None) -> ir.Value:
    """A vector of scores to base 2.

    With a ``cap`` they go through a tangens hyperbolicus of that height, to 2e-7 of it: ``scale`` makes them the
    exponent of ``2 ** -abs(score)``, by which it is computed.
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
    """Turn a row's scores into weights of the online softmax, and bring its sums to the new maximum.

    Args:
        begin, limit: the row sees the keys of the block between them; either may lie outside of it.
        value_scales: which the weights are multiplied with.
    """
    steps = ir.Constant(ir.VectorType(I32, e.lanes), [I32(at) for at in range(e.lanes)])
    edges = [e.b.trunc(border, I32) for border in (begin, limit)]
    vectors = []
    for at in range(0, BLOCK, e.lanes):
        low, high = (e.splat(e.b.sub(edge, I32(at))) for edge in edges)
        hidden = e.b.or_(e.b.icmp_signed("<", steps, low), e.b.icmp_signed(">=", steps, high))
        score = scaled(e, e.load_vector(scores, long(at)), scale, cap)
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
        # What is not seen counts nothing, also where nothing has been seen yet.
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
    for at in range(0, head_dim, e.lanes):
        place = e.at(line, long(at), F32)
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
    ahead: Sequence[Ahead],
    pairs: bool = False,
) -> None:
    """Add a block's values by their weights to the sums of every row.

    Args:
        weights: of the block's first key, ``step`` words from a row's to the next row's.
        words: of the block's weights in a row: numbers, or pairs of them.
        near: the vectors at places of the ``word``-th value, or pair of values.
        ahead: asked for meanwhile; of pairs where ``are_many`` of ``VALUE_VECTORS``, else at the first.
    """
    count, most = head_dim // e.lanes, ACCUMULATORS.get(e.lanes, _FEW_ACCUMULATORS)
    blocks = row_blocks(e.lanes, VALUE_VECTORS)
    for row, block in blocks_of_rows(e, rows, blocks):
        together = max(n for n in _VALUE_CHUNKS if n * block <= most and count % n == 0)
        lines, own_weights = [], []
        for at in range(block):
            one = e.b.add(row, long(at))
            lines.append(e.at(parts, e.b.mul(one, long(head_dim + 2)), F32))
            own_weights.append(e.at(weights, e.b.mul(one, long(step)), F32))
        with e.loop(long(0), long(head_dim), together * e.lanes) as column:
            places = [e.b.add(column, long(at * e.lanes)) for at in range(together)]
            sums = [[e.variable(e.load_vector(line, place)) for place in places] for line in lines]
            is_first = e.b.icmp_signed("==", e.b.add(row, column), long(0))
            passes = count // together
            one = e.b.add(e.b.mul(e.b.sdiv(row, long(block)), long(passes)), e.b.sdiv(column, long(together * e.lanes)))
            shares = e.b.mul(e.b.sdiv(rows, long(block)), long(passes * words))
            with e.loop(long(0), long(words)) as word:
                for other in ahead:
                    if block == blocks[0]:
                        other.ask_share(e.b.add(e.b.mul(one, long(words)), word), shares)
                    elif not pairs:
                        with e.b.if_then(is_first):
                            other.ask_token(word)
                add_products(e, own_weights, word, near(word, places), sums, pairs)
            for line, own in zip(lines, sums, strict=True):
                for place, total in zip(places, own, strict=True):
                    e.store(total.value, e.at(line, place, F32))


def _emit_join(module: ir.Module, name: str, lanes: int, head_dim: int, made: str) -> None:
    """Join the pieces of one KV head: ``RESULT`` (kv_heads, rows, head_dim), of the kind ``made``, and ``LOGSUM``
    (kv_heads, rows) to base 2."""
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, head, _ = e.arguments
    rows, pieces = e.load_long(arguments, Attention.HEAD_ROWS), e.load_long(arguments, Attention.PIECES)
    parts, result, logsum = e.pointers(Attention.PARTS, Attention.RESULT, Attention.LOGSUM)
    size = e.b.mul(rows, long(head_dim + 2))
    parts = e.at(parts, e.b.mul(e.b.mul(head, pieces), size), F32)
    out = e.at(result, e.b.mul(e.b.mul(head, rows), long(head_dim)), KINDS[made])
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
            e.store_vector(e.b.fmul(part.value, share), out, place, KINDS[made])
        e.store(e.b.fadd(largest.value, e.call("llvm.log2", total.value)), e.at(logsum, row, F32))
    e.end()


def _emit_norm(module: ir.Module, name: str, lanes: int, kind: str) -> None:
    """out = weights * x / sqrt(mean(x ** 2) + epsilon) for ``TILE_ROWS`` rows, as transformers' RMS norms round it.

    Args:
        kind: of x and out; in bfloat16 x is rounded to it before it meets the weights. These are float32.
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
        with e.loop(long(0), width, lanes) as at:
            loaded = e.load_vector(x, e.b.add(base, at), KINDS[kind])
            squares.value = e.fma(loaded, loaded, squares.value)
        mean = e.b.fdiv(e.fold(squares.value, e.b.fadd), e.b.sitofp(width, F32))
        scale = e.splat(e.b.fdiv(number(1.0), e.call("llvm.sqrt", e.b.fadd(mean, epsilon))))
        with e.loop(long(0), width, lanes) as at:
            place = e.b.add(base, at)
            value = e.b.fmul(e.load_vector(x, place, KINDS[kind]), scale)
            if kind == "bfloat16":
                value = e.widened(e.narrowed(value))
            value = e.b.fmul(e.load_vector(weights, at), value)
            if kind == "bfloat16":
                e.store(e.narrowed(value), e.at(out, place, I16), align=2)
            else:
                e.store(value, e.at(out, place, F32))
    e.end()


EMIT: dict[str, Callable[..., None]] = {
    "product": _emit_product,
    "product4": _emit_product4,
    "spread": _emit_spread,
    "attend": _emit_attend,
    "join": _emit_join,
    "norm": _emit_norm,
}
"""Emits each kernel: ``(module, name, lanes, *kind)``, for vectors of ``lanes`` numbers."""
