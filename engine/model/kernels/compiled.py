"""Compiles each of our own kernels for this processor when it is first needed, and calls the kernels one at a time."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from engine.model.kernels import abi


class Compiled:
    """Holds the kernels that have been compiled for the loaded models, and the threads that run the kernels.

    Args:
        workers: number of computing threads.
        lanes: float32 numbers in a SIMD vector; None takes this processor's number.
    """

    def __init__(self, workers: int, lanes: int | None = None) -> None:
        from engine.model.kernels import pool
        from engine.model.kernels.emit import EMIT

        self._compile, self.emitters = pool, EMIT
        self.lanes = lanes or pool.lanes()
        self.multiplies_pairs = lanes in (None, pool.lanes()) and pool.multiplies_pairs()
        self.looks_up_quants = self.multiplies_pairs and pool.looks_up_bytes()
        self.adds_dots = pool.adds_dots(self.lanes)
        """Whether products in fixed point use VNNI."""
        self.multiplies_fixed = pool.adds_integer_pairs(self.lanes)
        """Whether products with blocks of GGUF files take activations in fixed point."""
        self.columns = abi.PANEL_VECTORS * self.lanes
        """Number of outputs in a panel of packed weights."""
        self.pool = pool.Pool(workers)
        self._codes: list[Any] = []
        self._addresses: dict[tuple[Any, ...], int] = {}
        self.lock = threading.RLock()
        self._arguments = (ctypes.c_int64 * abi.NUM_ARGUMENTS)()
        self._at = ctypes.addressof(self._arguments)

    def address(self, name: str, *kind: Any, lanes: int | None = None) -> int:
        """The address of a kernel. The first call for a kernel compiles it.

        Args:
            name: the kernel's key in ``emitters``. Its value there is the function that emits the kernel's code.
            kind: further arguments of this function, such as the dtype of the weights.
            lanes: number of lanes of the kernel's vectors, if different from ``self.lanes``.
        """
        key = (name, lanes, *kind)
        known = self._addresses.get(key)
        if known is None:
            given, emitter = (lanes or self.lanes, *kind), self.emitters[name]
            code = self._compile.Code(name, given, lambda module: emitter(module, name, *given))
            self._codes.append(code)
            known = self._addresses[key] = code.address(name)
        return known

    def call(self, kernel: int, arguments: list[int], tiles: int, next_kernel: int = 0, next_tiles: int = 0) -> None:
        """Run every tile of a kernel. If ``next_kernel`` is the address of a second kernel, run its tiles afterwards
        with the same arguments.
        """
        with self.lock:
            self._arguments[:] = [*arguments]
            self.pool.run(kernel, self._at, tiles)
            if next_kernel:
                self.pool.run(next_kernel, self._at, next_tiles)
