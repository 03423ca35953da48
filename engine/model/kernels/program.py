"""Lists kernels that run one after another in a single call, for any number of rows (``Program``), and holds the
buffers in which they compute (``Memory``).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from engine.model.kernels import abi
from engine.model.kernels.abi import MOST_ROWS

if TYPE_CHECKING:
    from engine.model.kernels.compiled import Compiled

Tiles = tuple[int, int]
"""Number of tiles of a kernel, as (a, b): ``a * rows + b`` tiles."""

EACH_ROW: Tiles = (1, 0)
"""One tile for each row."""


class Call(NamedTuple):
    """Describes a call of a kernel, for any number of rows.

    ``kernel`` is the kernel's address. ``rows_at`` is the index in ``arguments`` at which the number of rows is
    written; None if the kernel does not need this number.
    """

    kernel: int
    arguments: list[int]
    tiles: Tiles
    rows_at: int | None = None


class Program:
    """Runs kernels one after another in a single call.

    Args:
        kernels: the compiled kernels, with the threads that run them.
    """

    def __init__(self, kernels: Compiled) -> None:
        self._kernels = kernels
        self._jobs: list[tuple[int, list[int] | int, Tiles]] = []
        self._row_counts: list[tuple[int, int]] = []
        self._rows = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(
        self, kernel: int, slots: Mapping[int, int] | int, tiles: Tiles = (0, 1), rows_at: int | None = None
    ) -> int:
        """Append a kernel and return its index. This is allowed only before the first run.

        Args:
            slots: the values of the kernel's arguments, keyed by slot; or the index of an earlier kernel, to share that
                kernel's arguments.
            rows_at: the slot that gets the number of rows.
        """
        return self._append(kernel, slots if isinstance(slots, int) else abi.arguments(slots), tiles, rows_at)

    def add_call(self, call: Call) -> int:
        """Append a kernel call and return its index. This is allowed only before the first run."""
        return self._append(*call)

    def _append(self, kernel: int, arguments: list[int] | int, tiles: Tiles, rows_at: int | None) -> int:
        self._jobs.append((kernel, arguments, tiles))
        if rows_at is not None:
            self._row_counts.append((len(self._jobs) - 1, rows_at))
        return len(self._jobs) - 1

    @functools.cached_property
    def arguments(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The argument arrays of all kernels: (kernels, ``NUM_ARGUMENTS``)."""
        arrays = np.zeros((len(self._jobs), abi.NUM_ARGUMENTS), np.int64)
        for own, (_, given, _) in zip(arrays, self._jobs, strict=True):
            if not isinstance(given, int):
                own[:] = given
        return arrays

    @functools.cached_property
    def _table(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The table of jobs: each row has the addresses of a kernel and of its arguments, and the number of its
        tiles.
        """
        first, size = self.arguments.ctypes.data, self.arguments.strides[0]
        places = [given if isinstance(given, int) else place for place, (_, given, _) in enumerate(self._jobs)]
        return np.array([(job[0], first + size * place, 0) for job, place in zip(self._jobs, places, strict=True)])

    @functools.cached_property
    def _tiles(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The coefficients a and b, (2, kernels), of each kernel's number of tiles ``a * rows + b``."""
        return np.array([tiles for _, _, tiles in self._jobs]).T

    def set_tiles(self, places: Sequence[int], tiles: int) -> None:
        """Set the number of tiles of the kernels at the indices ``places``, until ``resize`` changes the number of
        rows.
        """
        self._table[places, 2] = tiles

    def resize(self, rows: int) -> None:
        """Set the number of rows for all later calls of ``run``."""
        if rows == self._rows:
            return
        self._table[:, 2] = self._tiles[0] * rows + self._tiles[1]
        for place, argument in self._row_counts:
            self.arguments[place, argument] = rows
        self._rows = rows

    def run(self, first: int = 0, stop: int | None = None) -> None:
        """Run the kernels [first, stop)."""
        stop = len(self._jobs) if stop is None else stop
        with self._kernels.lock:
            address = self._table.ctypes.data + first * self._table.strides[0]
            self._kernels.pool.run_all(address, stop - first)


class Memory:
    """Holds buffers (rows, width) that the layers of a model use in turn, keyed by name, width and dtype."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int, torch.dtype], torch.Tensor] = {}

    def of(self, name: str, width: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return self._held.setdefault((name, width, dtype), torch.empty(MOST_ROWS, width, dtype=dtype))
