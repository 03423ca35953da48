"""Runs the child process (``engine.sandbox``) that parses documents and headers of models. The child has limits on
memory and time.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from app.readers.parsed import Limits
from engine import sandbox
from engine.sandbox import Bounds, ChildFailed

__all__ = ["BUSY", "ChildFailed", "run_in_child"]

# Advice if a child ended as "busy", which says nothing against the file
BUSY = "Other programs have the processor, or the disk does not answer. Try again when the machine is less busy."


def run_in_child(request: dict[str, Any], limits: Limits, deadline: float) -> Generator[dict[str, Any], None, None]:
    """Run one request in a new child process, and yield its messages. The message "done" ends the generator and is not
    yielded.

    Args:
        request: the child's task, as JSON.
        limits: limits for memory (in bytes) and for the time between two messages (in seconds).
        deadline: value of ``time.monotonic()`` at which the child is killed.

    Raises:
        ChildFailed: a limit was exceeded, or the child ended without "done".
    """
    bounds = Bounds(limits.memory_bytes, limits.seconds_per_page)
    return sandbox.run_in_child("app.readers.child", request, bounds, deadline)
