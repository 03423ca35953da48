"""The loops of a decoding step as kernels for this processor, written with llvmlite.

They read their large operand once, at the speed of memory, and give a row of the result the same bits however many
rows come with it: every sum has a fixed order that depends on the row and on absolute positions alone. So a
verification over several tokens says, bit by bit, what plain decoding says.

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
"""Emits each kernel: ``(module, name, lanes, *kind)``, for vectors of ``lanes`` numbers."""
