"""Emits the loops of a decoding step as kernels for this processor, with llvmlite.

The kernels read weights or KV, their large operand, once and at the speed of memory. A row of the result has the same
bits however many rows are computed together, because every sum has a fixed order that depends only on the row and on
absolute positions. So a verification of several tokens equals plain decoding bit by bit.

A call ``kernel(arguments, tile, worker)`` computes one tile, a part of the result. ``engine.model.kernels.abi``
describes the arguments. ``engine.model.kernels.pool`` compiles kernels and runs their tiles.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.model.kernels.emit import attention, attention_pairs, blocks, fixed, products, recurrence, rowwise, sampling

EMIT: dict[str, Callable[..., None]] = {
    **products.EMIT,
    **blocks.EMIT,
    **fixed.EMIT,
    **attention.EMIT,
    **attention_pairs.EMIT,
    **rowwise.EMIT,
    **recurrence.EMIT,
    **sampling.EMIT,
}
"""Emitters of all kernels, keyed by the kernel's name. Each is called as ``(module, name, lanes, *kind)``; ``lanes`` is
the number of float32 numbers in a vector.
"""
