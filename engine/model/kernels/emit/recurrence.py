"""Emits three kernels for recurrent layers in passes over few tokens. They update a head's state token by token, while
the state stays in the CPU's cache.

- ``delta`` computes the gated delta rule.
- ``scan`` computes the rule of Mamba-2, in which a token adds its whole value without reading the state first.
- ``replayed`` applies changes that ``delta`` or ``scan`` recorded, in the same order and with the same rounding. So the
  state has the bits of a pass that ended after the replayed tokens.

A tile is one head. Tokens are computed one after another, and every sum goes over the state's rows in order, so the
bits of a token do not depend on the number of tokens in the pass.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from engine.model.kernels.abi import Recurrence as Slot
from engine.model.kernels.emit.emitter import F32, I64, PTR, VOID, Emitter, long

_LOG2E = 1.4426950408889634
_BLOCKS = (4, 2, 1)  # possible numbers of vectors of a state's row that are computed together


def _emit_delta(module: ir.Module, name: str, lanes: int, key_dim: int, value_dim: int) -> None:
    """Emit the kernel ``delta``, which computes for one head the output of every token, the value that each token adds
    to the state, and the state after the last token.
    """
    _emit(module, name, lanes, key_dim, value_dim, answers=True, corrects=True)


def _emit_scan(module: ir.Module, name: str, lanes: int, key_dim: int, value_dim: int) -> None:
    """Emit the kernel ``scan``. It computes the same as ``delta``, but does not subtract the value that the state holds
    for a token's key: the token adds its whole value times its rate.
    """
    _emit(module, name, lanes, key_dim, value_dim, answers=True, corrects=False)


def _emit_replayed(module: ir.Module, name: str, lanes: int, key_dim: int, value_dim: int) -> None:
    """Emit the kernel ``replayed``, which computes a head's state after the last token from the values that the
    tokens added (``UPDATES``).
    """
    _emit(module, name, lanes, key_dim, value_dim, answers=False, corrects=False)


def _emit(
    module: ir.Module, name: str, lanes: int, key_dim: int, value_dim: int, *, answers: bool, corrects: bool
) -> None:
    e = Emitter(module, name, VOID, (PTR, I64, I64), lanes)
    _, head, _ = e.arguments
    queries, keys, values, decays, rates, updates, before, after, result = e.pointers(
        Slot.QUERIES,
        Slot.KEYS,
        Slot.VALUES,
        Slot.DECAYS,
        Slot.RATES,
        Slot.UPDATES,
        Slot.BEFORE,
        Slot.AFTER,
        Slot.RESULT,
    )
    rows, heads, key_heads = e.longs(Slot.ROWS, Slot.HEADS, Slot.KEY_HEADS)
    key_head = e.b.sdiv(head, e.b.sdiv(heads, key_heads))
    size = key_dim * value_dim
    before, state = (e.at(side, e.b.mul(head, long(size)), F32) for side in (before, after))
    with e.loop(long(0), long(size), lanes) as at:
        e.store(e.load_vector(before, at), e.at(state, at, F32))
    together = next(n for n in _BLOCKS if value_dim // lanes % n == 0)
    with e.loop(long(0), rows) as row:
        own = e.b.add(e.b.mul(row, heads), head)
        fades = e.exp2(e.b.fmul(e.splat(e.load(e.at(decays, own, F32), F32)), e.constant(_LOG2E)))
        line = e.b.mul(e.b.add(e.b.mul(row, key_heads), key_head), long(key_dim))
        key, query = e.at(keys, line, F32), e.at(queries, line, F32)
        first = e.b.mul(own, long(value_dim))
        with e.loop(long(0), long(value_dim), together * lanes) as column:
            places = [e.b.add(column, long(vector * lanes)) for vector in range(together)]
            if answers:
                known = [e.variable(e.constant(0.0)) for _ in places]
                if corrects:
                    with e.loop(long(0), long(key_dim)) as at:
                        factor = e.splat(e.load(e.at(key, at, F32), F32))
                        for faded, total in zip(_faded(e, state, at, places, fades, value_dim), known, strict=True):
                            total.value = e.fma(factor, faded, total.value)
                rate = e.splat(e.load(e.at(rates, own, F32), F32))
                for place, total in zip(places, known, strict=True):
                    wanted = e.load_vector(values, e.b.add(first, place))
                    update = e.b.fmul(e.b.fsub(wanted, total.value), rate)
                    e.store(update, e.at(updates, e.b.add(first, place), F32))
            added = [e.load_vector(updates, e.b.add(first, place)) for place in places]
            read = [e.variable(e.constant(0.0)) for _ in places]
            with e.loop(long(0), long(key_dim)) as at:
                factor = e.splat(e.load(e.at(key, at, F32), F32))
                base = e.b.mul(at, long(value_dim))
                for index, faded in enumerate(_faded(e, state, at, places, fades, value_dim)):
                    now = e.fma(factor, added[index], faded)
                    e.store(now, e.at(state, e.b.add(base, places[index]), F32))
                    if answers:
                        asked = e.splat(e.load(e.at(query, at, F32), F32))
                        read[index].value = e.fma(asked, now, read[index].value)
            if answers:
                for place, total in zip(places, read, strict=True):
                    e.store(total.value, e.at(result, e.b.add(first, place), F32))
    e.end()


def _faded(
    e: Emitter, state: ir.Value, row: ir.Value, places: list[ir.Value], fades: ir.Value, value_dim: int
) -> list[ir.Value]:
    """Emit the product of the state's row ``row`` with the token's decay ``fades``, as vectors. ``places`` are the
    vectors' first columns.
    """
    base = e.b.mul(row, long(value_dim))
    return [e.b.fmul(e.load_vector(state, e.b.add(base, place)), fades) for place in places]


EMIT: dict[str, Callable[..., None]] = {"delta": _emit_delta, "scan": _emit_scan, "replayed": _emit_replayed}
"""Emitters of these kernels, keyed by name."""
