"""Wakes the live streams after a change, whichever thread has made it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class Signal:
    """Sent from any thread, awaited in event loops."""

    def __init__(self) -> None:
        self._awaited: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    def send(self) -> None:
        for event, loop in tuple(self._awaited.items()):
            if not event.is_set():
                with suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(event.set)

    @contextmanager
    def awaited(self) -> Iterator[asyncio.Event]:
        """Give an event that each ``send`` sets. Whoever waits for the event clears it."""
        event = asyncio.Event()
        self._awaited[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            del self._awaited[event]
