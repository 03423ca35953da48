"""A part of the page that stands by itself: its routes, the doors they need, and its keys of the live stream.

To add one: write a class with these three, name it in ``server.make_panels``, put its markup into ``page/frame.html``,
its style into a file of its own under ``assets/style`` (every one there is loaded), and its script under ``page/``
with one line in ``page/main.js``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from starlette.routing import BaseRoute

from app.guard import Door
from app.ui.presentation import View


class Panel(Protocol):
    """See the module."""

    @property
    def doors(self) -> Sequence[Door]:
        """Every route, as the guard must know it."""
        ...

    def routes(self) -> Sequence[BaseRoute]:
        """What answers at those doors."""
        ...

    def view(self) -> View:
        """Keys of the live stream. Called ten times a second: it must cost next to nothing."""
        ...
