"""Emits kernels for sampling from rows of logits. They compute the most likely token, the tokens that top-k and top-p
keep with the sum of their weights, and the probabilities of one row.

A vocabulary may have 150,000 tokens, but top-k and top-p usually keep only a few. So no row is sorted. Instead, a lower
bound first rules out most tokens. Among the remaining tokens, bisection finds the smallest value that top-k or top-p
keeps. The bound never rules out a token that must be kept:

- For top-k, a row is cut into blocks. The k-th largest of the blocks' maxima is at most the k-th largest value of the
  row, so it is a lower bound.
- For top-p, let W be the sum of the weights of all V tokens. Tokens that weigh less than (1 - top_p) * W / V weigh less
  than (1 - top_p) * W together. So the heavier tokens alone reach top_p.

Probabilities are written only for a row that a token is drawn from.

A weight is exp((logit - largest logit) / temperature) in float32, sums of weights are in float64. Of tokens with equal
weight, top-p keeps those with the lowest ids until top_p is reached. Top-k also keeps all tokens that are as likely as
the k-th, as transformers does. Logits that were changed, for example by a repetition penalty, are passed separately
(``abi.Logits.PATCHES``) and first replace those of the row. One thread computes a row, so the bits of a row do not
depend on other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from llvmlite import ir

from engine.model.kernels.abi import BLOCK_VECTORS, STATS_WORDS, Logits, Stats
from engine.model.kernels.emit.emitter import BYTES, F32, I16, I32, I64, KINDS, PTR, VOID, Emitter, Variable, long

F64, I1 = ir.DoubleType(), ir.IntType(1)
_INFINITE = float("inf")


# Number of times that bisection halves the interval of all values of ``_key`` until one integer is left.
_KEY_BITS = 33
# Number of times that bisection halves the interval of weights until only a few tokens have a weight in it.
_FIRST_HALVINGS = 10


def _emit_likeliest(module: ir.Module, name: str, lanes: int, kind: str) -> None:
    """Emit the kernel ``likeliest``, which finds the most likely token of row ``tile``, the first one among equals. The
    result is -1 if the row has a NaN or its largest logit is infinite. Patches, which are changed logits, are ignored.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, row, _ = e.arguments
    logits, width = e.load_pointer(arguments, Logits.LOGITS), e.load_long(arguments, Logits.WIDTH)
    first = e.b.mul(row, e.load_long(arguments, Logits.STRIDE))
    best, odd = e.variable(e.constant(-_INFINITE)), _Odd(e)
    with e.loop(long(0), width, lanes) as column:
        x = e.load_vector(logits, e.b.add(first, column), KINDS[kind])
        best.value = e.larger(x, best.value)
        odd.look(x)
    largest = e.splat(e.fold(best.value, e.larger))
    found = e.variable(long(0))
    with e.loop_while() as leave_if:
        same = e.b.fcmp_ordered("==", e.load_vector(logits, e.b.add(first, found.value), KINDS[kind]), largest)
        mask = _bits(e, same)
        nothing = e.b.icmp_unsigned("==", mask, I32(0))
        past = e.b.icmp_signed(">=", e.b.add(found.value, long(lanes)), width)
        with e.b.if_then(e.b.not_(nothing)):
            found.value = e.b.add(found.value, e.b.zext(_first_bit(e, mask), I64))
        leave_if(e.b.or_(e.b.not_(nothing), past))
        found.value = e.b.add(found.value, long(lanes))
    token = e.b.select(odd.found(e.fold(best.value, e.larger)), long(-1), found.value)
    e.store(token, e.at(e.load_pointer(arguments, Logits.OUT), row, I64), align=8)
    e.end()


def _emit_measured(module: ir.Module, name: str, lanes: int, kind: str) -> None:
    """Emit the kernel ``measured``, which finds the tokens of row ``tile`` that top-k and top-p keep, and stores the
    ``Stats`` of the row.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, row, worker = e.arguments
    width, scale = e.load_long(arguments, Logits.WIDTH), e.splat(e.load_float(arguments, Logits.SCALE))
    top_k, top_p = e.load_long(arguments, Logits.TOP_K), e.b.bitcast(e.load_long(arguments, Logits.TOP_P), F64)
    size = e.load_long(arguments, Logits.SCRATCH_SIZE)
    values = e.at(e.load_pointer(arguments, Logits.SCRATCH), e.b.mul(worker, size), F32)
    some = e.at(values, width, F32)
    peaks = e.at(some, e.b.add(width, long(lanes * (BLOCK_VECTORS + 2))), F32)
    _copy(e, row, values, width, kind)
    for token, patch in _patches(e, row):
        with e.b.if_then(e.b.icmp_signed(">=", token, long(0))):
            e.store(patch, e.at(values, token, F32))
    blocks, largest, odd = _peaks(e, values, width, peaks)
    stats = e.at(e.load_pointer(arguments, Logits.STATS), e.b.mul(row, long(STATS_WORDS)), F64)
    by_top_k, by_top_p = e.b.icmp_signed(">", top_k, long(0)), e.b.fcmp_ordered("<", top_p, F64(1.0))

    def weigh(x: ir.Value) -> ir.Value:
        return e.exp2(e.b.fmul(e.b.fsub(x, e.splat(largest)), scale))

    chosen = _Chosen(e, values, width, weigh, some)
    with e.b.if_else(by_top_k) as (few, all_of_them):
        with few:
            _choose_top_k(e, chosen, top_k, peaks, blocks)
        with all_of_them:
            chosen.mass.value = _sum(e, values, width, weigh)
            with e.b.if_then(by_top_p):
                _choose_heavy(e, chosen, top_p)
    with e.b.if_then(by_top_p):
        _keep_top_p(e, chosen, top_p)
    mass = e.b.select(odd, F64(float("nan")), chosen.mass.value)
    for word, value in (
        (Stats.LARGEST, e.b.fpext(largest, F64)),
        (Stats.LEAST_LOGIT, e.b.fpext(chosen.least_logit.value, F64)),
        (Stats.LEAST_WEIGHT, e.b.fpext(chosen.least_weight.value, F64)),
        (Stats.LAST_ID, e.b.sitofp(chosen.last_id.value, F64)),
        (Stats.MASS, mass),
    ):
        e.store(value, e.at(stats, long(word), F64), align=8)
    e.end()


class _Chosen:
    """Holds a kernel's variables that say which tokens of a row are kept.

    A token is kept if its logit is at least ``least_logit`` and its weight is above ``least_weight``. Of the tokens
    whose weight equals ``least_weight``, those with ids up to ``last_id`` are kept. ``mass`` is the sum of the weights
    of the tokens kept so far. ``count`` is the number of entries in ``some``.

    Args:
        values: the logits of the row, ``width`` numbers.
        weigh: emits the weights of a vector of logits.
        some: memory for the weights of the chosen tokens.
    """

    def __init__(
        self, e: Emitter, values: ir.Value, width: ir.Value, weigh: Callable[[ir.Value], ir.Value], some: ir.Value
    ) -> None:
        self.values, self.width, self.weigh, self.some = values, width, weigh, some
        self.count = e.variable(long(0))
        self.least_logit, self.least_weight = e.variable(F32(-_INFINITE)), e.variable(F32(0.0))
        self.last_id, self.mass = e.variable(width), e.variable(F64(0.0))


def _choose_top_k(e: Emitter, chosen: _Chosen, top_k: ir.Value, peaks: ir.Value, blocks: ir.Value) -> None:
    """Choose the tokens whose logit is at least the ``top_k``-th largest. ``peaks`` are the largest logits of the row's
    ``blocks`` blocks.
    """
    some, count = chosen.some, chosen.count
    bound = e.variable(F32(-_INFINITE))
    with e.b.if_then(e.b.icmp_signed(">=", blocks, top_k)):
        bound.value = _largest_of(e, peaks, blocks, top_k)
    count.value = _compress(e, chosen.values, chosen.width, some, lambda x: x, e.splat(bound.value))
    chosen.least_logit.value = _largest_of(e, some, count.value, top_k)
    _pad(e, some, count.value, -_INFINITE)
    least = e.splat(chosen.least_logit.value)
    total = e.variable(ir.Constant(ir.VectorType(F64, e.lanes), [F64(0.0)] * e.lanes))
    with e.loop(long(0), count.value, e.lanes) as at:
        x = e.load_vector(some, at)
        kept = e.b.fcmp_ordered(">=", x, least)
        weight = e.b.select(kept, chosen.weigh(x), e.constant(0.0))
        e.store_vector(weight, some, at, F32)
        total.value = e.b.fadd(total.value, e.b.fpext(weight, total.value.type))
    chosen.mass.value = _folded(e, total.value)


def _choose_heavy(e: Emitter, chosen: _Chosen, top_p: ir.Value) -> None:
    """Choose the tokens that top-p may keep: those that weigh at least (1 - top_p) * W / V, where W is the sum of the
    weights of all V tokens. The module's docstring explains this bound.
    """
    rest = e.b.fsub(F64(1.0), top_p)
    # Half of the bound is used, so that rounding errors never rule out a token that is needed.
    share = e.b.fdiv(e.b.fmul(e.b.fmul(rest, chosen.mass.value), F64(0.5)), e.b.sitofp(chosen.width, F64))
    bound = e.splat(e.b.fptrunc(share, F32))
    chosen.count.value = _compress(e, chosen.values, chosen.width, chosen.some, chosen.weigh, bound)
    _pad(e, chosen.some, chosen.count.value, 0.0)


def _keep_top_p(e: Emitter, chosen: _Chosen, top_p: ir.Value) -> None:
    """Keep only the heaviest of the chosen tokens: the fewest that together weigh at least ``top_p * mass``."""
    wanted = e.b.fmul(top_p, chosen.mass.value)
    more, tau = _nucleus(e, chosen.some, chosen.count, wanted)
    chosen.least_weight.value = tau
    # tau is the lowest kept weight. If rounding makes the sum of all weights smaller than ``wanted``, tau is 0, and all
    # tokens are kept.
    with e.b.if_then(e.b.fcmp_ordered(">", tau, F32(0.0))):
        # Keep as many tokens of weight tau as ``wanted`` needs, and at least one.
        needed = e.b.fdiv(e.b.fsub(wanted, more), e.b.fpext(tau, F64))
        ties = e.variable(e.b.fptosi(e.intrinsic("llvm.ceil.f64", F64, needed), I64))
        with e.b.if_then(e.b.icmp_signed("<", ties.value, long(1))):
            ties.value = long(1)
        least = e.splat(chosen.least_logit.value)
        taken = _last_tie(e, chosen.values, chosen.width, chosen.weigh, least, tau, ties.value, chosen.last_id)
        chosen.mass.value = e.b.fadd(more, e.b.fmul(e.b.sitofp(taken, F64), e.b.fpext(tau, F64)))


def _emit_probabilities(module: ir.Module, name: str, lanes: int, kind: str) -> None:
    """Emit the kernel ``probabilities``, which computes the probabilities of the tokens in piece ``tile`` of the only
    row.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, tile, _ = e.arguments
    logits, out = e.load_pointer(arguments, Logits.LOGITS), e.load_pointer(arguments, Logits.OUT)
    width, piece = e.load_long(arguments, Logits.WIDTH), e.load_long(arguments, Logits.PIECE)
    probability = _probability(e, e.load_pointer(arguments, Logits.STATS))
    lane = ir.Constant(e.whole, [I32(n) for n in range(lanes)])
    start = e.b.mul(tile, piece)
    stop = _least(e, e.b.add(start, piece), width)
    with e.loop(start, stop, lanes) as at:
        ids = e.b.add(e.splat(e.b.trunc(at, I32)), lane)
        e.store_vector(probability(e.load_vector(logits, at, KINDS[kind]), ids), out, at, F32)
    for token, patch in _patches(e, long(0)):
        within = e.b.and_(e.b.icmp_signed(">=", token, start), e.b.icmp_signed("<", token, stop))
        with e.b.if_then(within):
            e.store(_single(e, probability, patch, token), e.at(out, token, F32))
    e.end()


def _emit_asked(module: ir.Module, name: str, lanes: int, kind: str) -> None:
    """Emit the kernel ``asked``, which computes the probability of the token that ``TOKENS`` names for row ``tile``.
    The probability has the same bits as the one that the kernel ``probabilities`` computes.
    """
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    arguments, row, _ = e.arguments
    logits, out = e.load_pointer(arguments, Logits.LOGITS), e.load_pointer(arguments, Logits.OUT)
    stats = e.at(e.load_pointer(arguments, Logits.STATS), e.b.mul(row, long(STATS_WORDS)), F64)
    asked = e.load(e.at(e.load_pointer(arguments, Logits.TOKENS), row, I64), I64, align=8)
    place = e.b.add(e.b.mul(row, e.load_long(arguments, Logits.STRIDE)), asked)
    x = e.load(e.at(logits, place, KINDS[kind]), KINDS[kind], align=BYTES[KINDS[kind]])
    if KINDS[kind] is I16:
        x = e.b.bitcast(e.b.shl(e.b.zext(x, I32), I32(16)), F32)
    logit = e.variable(x)
    for token, patch in _patches(e, row):
        logit.value = e.b.select(e.b.icmp_signed("==", token, asked), patch, logit.value)
    e.store(_single(e, _probability(e, stats), logit.value, asked), e.at(out, row, F32))
    e.end()


def _probability(e: Emitter, stats: ir.Value) -> Callable[[ir.Value, ir.Value], ir.Value]:
    """Return a function that maps vectors of logits and ids to probabilities, using the ``stats`` of their row."""
    scale = e.splat(e.load_float(e.arguments[0], Logits.SCALE))
    largest, least_logit, least_weight = (
        e.splat(e.b.fptrunc(_double(e, stats, word), F32))
        for word in (Stats.LARGEST, Stats.LEAST_LOGIT, Stats.LEAST_WEIGHT)
    )
    last = e.splat(e.b.fptosi(_double(e, stats, Stats.LAST_ID), I32))
    inverse = e.splat(e.b.fptrunc(e.b.fdiv(F64(1.0), _double(e, stats, Stats.MASS)), F32))

    def probability(x: ir.Value, ids: ir.Value) -> ir.Value:
        weight = e.exp2(e.b.fmul(e.b.fsub(x, largest), scale))
        above = e.b.fcmp_ordered(">", weight, least_weight)
        tied = e.b.and_(e.b.fcmp_ordered("==", weight, least_weight), e.b.icmp_signed("<=", ids, last))
        kept = e.b.and_(e.b.or_(above, tied), e.b.fcmp_ordered(">=", x, least_logit))
        return e.b.select(kept, e.b.fmul(weight, inverse), e.constant(0.0))

    return probability


def _single(
    e: Emitter, probability: Callable[[ir.Value, ir.Value], ir.Value], logit: ir.Value, token: ir.Value
) -> ir.Value:
    return e.b.extract_element(probability(e.splat(logit), e.splat(e.b.trunc(token, I32))), I32(0))


# A row in scratch memory ------------------------------------------------------------------------------------------


def _copy(e: Emitter, row: ir.Value, values: ir.Value, width: ir.Value, kind: str) -> None:
    """Copy the row to scratch memory in float32."""
    arguments = e.arguments[0]
    first = e.b.mul(row, e.load_long(arguments, Logits.STRIDE))
    logits = e.load_pointer(arguments, Logits.LOGITS)
    with e.loop(long(0), width, e.lanes) as column:
        e.store_vector(e.load_vector(logits, e.b.add(first, column), KINDS[kind]), values, column, F32)


def _patches(e: Emitter, row: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Emit a loop over the patches (changed logits) of a row. Yields the token id, where -1 means no token, and the
    logit.
    """
    arguments = e.arguments[0]
    count = e.load_long(arguments, Logits.PATCH_COUNT)
    first = e.b.mul(row, count)
    ids, patches = e.load_pointer(arguments, Logits.PATCH_IDS), e.load_pointer(arguments, Logits.PATCHES)
    with e.loop(first, e.b.add(first, count)) as at:
        yield e.load(e.at(ids, at, I64), I64, align=8), e.load(e.at(patches, at, F32), F32)


class _Odd:
    """Detects rows with a NaN or with an infinite largest value. The check runs while a kernel searches the row's
    largest value.
    """

    def __init__(self, e: Emitter) -> None:
        self._e, self._lanes = e, e.variable(e.whole_splat(0))

    def look(self, x: ir.Value) -> None:
        """Emit the check of a vector for NaN."""
        b = self._e.b
        self._lanes.value = b.or_(self._lanes.value, b.sext(b.fcmp_unordered("uno", x, x), self._e.whole))

    def found(self, largest: ir.Value) -> ir.Value:
        """Emit a bit that is 1 if a checked vector had a NaN, or if the ``largest`` value is infinite."""
        e = self._e
        none = e.b.icmp_signed("==", e.fold(self._lanes.value, e.b.or_), I32(0))
        above = e.b.fcmp_ordered(">", largest, F32(-_INFINITE))
        return e.b.not_(e.b.and_(none, e.b.and_(above, e.b.fcmp_ordered("<", largest, F32(_INFINITE)))))


def _peaks(e: Emitter, values: ir.Value, width: ir.Value, peaks: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Emit code that writes the largest value of each block into ``peaks``. Return the number of blocks, the row's
    largest value, and whether the row has a NaN or its largest value is infinite.
    """
    step, odd = BLOCK_VECTORS * e.lanes, _Odd(e)
    blocks, largest = e.variable(long(0)), e.variable(e.constant(-_INFINITE))
    with e.loop(long(0), width, step) as start:
        best = e.variable(e.constant(-_INFINITE))
        with e.loop(start, _least(e, e.b.add(start, long(step)), width), e.lanes) as at:
            x = e.load_vector(values, at)
            best.value = e.larger(x, best.value)
            odd.look(x)
        largest.value = e.larger(best.value, largest.value)
        e.store(e.fold(best.value, e.larger), e.at(peaks, blocks.value, F32))
        blocks.value = e.b.add(blocks.value, long(1))
    all_of_them = e.fold(largest.value, e.larger)
    return blocks.value, all_of_them, odd.found(all_of_them)


def _sum(e: Emitter, values: ir.Value, count: ir.Value, weigh: Callable[[ir.Value], ir.Value]) -> ir.Value:
    total = e.variable(ir.Constant(ir.VectorType(F64, e.lanes), [F64(0.0)] * e.lanes))
    with e.loop(long(0), count, e.lanes) as at:
        total.value = e.b.fadd(total.value, e.b.fpext(weigh(e.load_vector(values, at)), total.value.type))
    return _folded(e, total.value)


def _compress(
    e: Emitter,
    values: ir.Value,
    width: ir.Value,
    out: ir.Value,
    function: Callable[[ir.Value], ir.Value],
    bound: ir.Value,
    below: ir.Value | None = None,
) -> ir.Value:
    """Apply ``function`` to the values, and write the results that are at least ``bound``, and less than ``below`` if
    it is given, to ``out`` without gaps. Return the number of these results. ``out`` may overlap the values, because
    only places that were already read are overwritten.
    """
    count = e.variable(long(0))
    with e.loop(long(0), width, e.lanes) as at:
        x = function(e.load_vector(values, at))
        kept = e.b.fcmp_ordered(">=", x, bound)
        if below is not None:
            kept = e.b.and_(kept, e.b.fcmp_ordered("<", x, below))
        with e.b.if_then(e.b.icmp_unsigned("!=", _bits(e, kept), I32(0))):
            for lane in range(e.lanes):
                e.store(e.b.extract_element(x, I32(lane)), e.at(out, count.value, F32))
                count.value = e.b.add(count.value, e.b.zext(e.b.extract_element(kept, I32(lane)), I64))
    return count.value


def _pad(e: Emitter, values: ir.Value, count: ir.Value, value: float) -> None:
    """Store a vector filled with ``value`` after the first ``count`` values."""
    e.store_vector(e.constant(value), values, count, F32)


def _largest_of(e: Emitter, values: ir.Value, count: ir.Value, k: ir.Value) -> ir.Value:
    """Find the k-th largest of ``count`` values; -inf if there are fewer than k.

    The code bisects an interval of integers that are ordered like floats (``_key``).
    """
    _pad(e, values, count, -_INFINITE)
    low, high = e.variable(_key(e, F32(-_INFINITE))), e.variable(e.b.add(_key(e, F32(_INFINITE)), long(1)))
    with _halving(e, low, high, _KEY_BITS) as middle:
        bound = e.splat(_value(e, middle))
        num_reached = e.variable(e.whole_splat(0))
        with e.loop(long(0), count, e.lanes) as at:
            reached = e.b.fcmp_ordered(">=", e.load_vector(values, at), bound)
            num_reached.value = e.b.add(num_reached.value, e.b.zext(reached, e.whole))
        enough = e.b.icmp_signed(">=", e.b.zext(e.fold(num_reached.value, e.b.add), I64), k)
        low.value = e.b.select(enough, middle, low.value)
        high.value = e.b.select(enough, high.value, middle)
    return _value(e, low.value)


def _nucleus(e: Emitter, candidates: ir.Value, count: Variable, mass: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Find the largest weight w for which the weights of at least w among ``candidates`` have a sum of at least
    ``mass``. Return the sum of all weights above w, and w itself. ``candidates`` and ``count`` are overwritten.
    """
    low, high = e.variable(long(0)), e.variable(e.b.add(_key(e, F32(1.0)), long(1)))
    above = e.variable(F64(0.0))  # the sum of all weights whose ``_key`` is at least ``high``

    def halve(times: int) -> None:
        base = above.value
        with _halving(e, low, high, times) as middle:
            bound = e.splat(_value(e, middle))
            reached = e.b.fadd(
                base,
                _sum(
                    e,
                    candidates,
                    count.value,
                    lambda x: e.b.select(e.b.fcmp_ordered(">=", x, bound), x, e.constant(0.0)),
                ),
            )
            enough = e.b.fcmp_ordered(">=", reached, mass)
            low.value = e.b.select(enough, middle, low.value)
            high.value = e.b.select(enough, high.value, middle)
            above.value = e.b.select(enough, above.value, reached)

    halve(_FIRST_HALVINGS)
    # The interval now contains the weights of few candidates. All other candidates are dropped.
    bounds = [e.splat(_value(e, end.value)) for end in (low, high)]
    count.value = _compress(e, candidates, count.value, candidates, lambda x: x, *bounds)
    _pad(e, candidates, count.value, 0.0)
    halve(_KEY_BITS - _FIRST_HALVINGS)
    return above.value, _value(e, low.value)


def _last_tie(
    e: Emitter,
    values: ir.Value,
    width: ir.Value,
    weigh: Callable[[ir.Value], ir.Value],
    least_logit: ir.Value,
    tau: ir.Value,
    ties: ir.Value,
    last_id: Variable,
) -> ir.Value:
    """Set ``last_id`` to the id of the ``ties``-th token of weight ``tau``, or of the last such token if there are
    fewer. Tokens with a logit below ``least_logit`` do not count. Return the number of tokens of this weight up to
    ``last_id``.
    """
    count, position = e.variable(long(0)), e.variable(long(0))
    wanted = e.splat(tau)
    with e.loop_while() as leave_if:
        x = e.load_vector(values, position.value)
        same = e.b.and_(e.b.fcmp_ordered("==", weigh(x), wanted), e.b.fcmp_ordered(">=", x, least_logit))
        with e.b.if_then(e.b.icmp_unsigned("!=", _bits(e, same), I32(0))):
            for lane in range(e.lanes):
                more = e.b.and_(e.b.extract_element(same, I32(lane)), e.b.icmp_signed("<", count.value, ties))
                last_id.value = e.b.select(more, e.b.add(position.value, long(lane)), last_id.value)
                count.value = e.b.add(count.value, e.b.zext(more, I64))
        position.value = e.b.add(position.value, long(e.lanes))
        leave_if(
            e.b.or_(e.b.icmp_signed(">=", count.value, ties), e.b.icmp_signed(">=", position.value, width)),
        )
    return count.value


# Numbers ---------------------------------------------------------------------------------------------------------


@contextmanager
def _halving(e: Emitter, low: Variable, high: Variable, times: int) -> Iterator[ir.Value]:
    """Emit a bisection of the integers [low, high). Yields the middle, at most ``times`` times and only until one
    integer is left. The body of the loop sets ``low`` or ``high`` to the middle.
    """
    left = e.variable(long(times))
    with e.loop_while() as leave_if:
        done = e.b.icmp_signed("<=", e.b.sub(high.value, low.value), long(1))
        leave_if(e.b.or_(done, e.b.icmp_signed("<=", left.value, long(0))))
        left.value = e.b.sub(left.value, long(1))
        yield e.b.ashr(e.b.add(low.value, high.value), long(1))


def _key(e: Emitter, value: ir.Value) -> ir.Value:
    """Map a float32 to an integer, so that the integers have the same order as the floats."""
    bits = e.b.bitcast(value, I32)
    return e.b.sext(e.b.xor(bits, e.b.and_(e.b.ashr(bits, I32(31)), I32(0x7FFFFFFF))), I64)


def _value(e: Emitter, key: ir.Value) -> ir.Value:
    """Return the float32 that ``_key`` maps to the integer ``key``."""
    bits = e.b.trunc(key, I32)
    return e.b.bitcast(e.b.xor(bits, e.b.and_(e.b.ashr(bits, I32(31)), I32(0x7FFFFFFF))), F32)


def _bits(e: Emitter, mask: ir.Value) -> ir.Value:
    """Return the lanes of a mask as the bits of an integer."""
    return e.b.zext(e.b.bitcast(mask, ir.IntType(e.lanes)), I32)


def _first_bit(e: Emitter, mask: ir.Value) -> ir.Value:
    return e.intrinsic("llvm.cttz.i32", I32, mask, I1(1))


def _folded(e: Emitter, total: ir.Value) -> ir.Value:
    """Return the sum of the lanes of a float64 vector."""
    return e.fold(total, e.b.fadd)


def _double(e: Emitter, base: ir.Value, index: int) -> ir.Value:
    return e.load(e.at(base, long(index), F64), F64, align=8)


def _least(e: Emitter, a: ir.Value, b: ir.Value) -> ir.Value:
    return e.b.select(e.b.icmp_signed("<", a, b), a, b)


EMIT: dict[str, Callable[..., None]] = {
    "likeliest": _emit_likeliest,
    "measured": _emit_measured,
    "probabilities": _emit_probabilities,
    "asked": _emit_asked,
}
"""Emitters of these kernels, keyed by name."""
