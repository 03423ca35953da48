"""Hashes of code, as several threads ask for them at a first start."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.sources import code_hash

SOURCES = [file.read_bytes() for file in sorted(Path(__file__).resolve().parents[2].glob("engine/*.py"))[:2]]


class Litter:
    """Garbage whose collection lets another thread run."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


@pytest.fixture
def often_collected() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(200, 1000, 1000)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("often_collected")
def test_two_threads_hash_at_once() -> None:
    """One thread looked for the kept kernels, the other for a book's text: the book could not be opened."""
    found: list[str | SystemError] = []
    ended = threading.Event()

    def litter() -> None:
        while not ended.is_set():
            Litter()
            time.sleep(0.0002)

    def hashed() -> None:
        try:
            found.extend(code_hash(SOURCES) for _ in range(3))
        except SystemError as error:
            found.append(error)

    others = threading.Thread(target=litter)
    others.start()
    threads = [threading.Thread(target=hashed) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    others.join()
    assert len(found) == 6
    assert len(set(found)) == 1
