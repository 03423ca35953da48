"""The loops of a decoding step as kernels for this processor, written with llvmlite.

The kernels read their large operand once, at the speed of memory. A row of the result has the same bits however many
rows are computed together: every sum has a fixed order, which depends only on the row and on absolute positions. So a
verification over several tokens equals plain decoding bit by bit.

A kernel does one tile: ``kernel(arguments, tile, worker)``, with the slots of ``engine.model.kernels.abi``.
``engine.model.kernels.pool`` compiles kernels and runs their tiles.
"""

from __future__ import annotations

from collections.abc import Callable

from engine.model.kernels.emit import attention, attention_pairs, blocks, products, recurrence, rows, sampling

EMIT: dict[str, Callable[..., None]] = {
    **products.EMIT,
    **blocks.EMIT,
    **attention.EMIT,
    **attention_pairs.EMIT,
    **rows.EMIT,
    **recurrence.EMIT,
    **sampling.EMIT,
}
"""Emitters of all kernels by name, called as ``(module, name, lanes, *kind)``, for vectors of ``lanes`` numbers."""
