"""Imports Gradio without the type stubs that it writes.

At every import, Gradio parses the source of each component, writes a ``.pyi`` file next to the source, and reads the
file back (``gradio.component_meta.create_or_modify_pyi``). This takes half of the import's 3.1 s. Gradio skips a
component whose file ``inspect.getfile`` does not find.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["gr"]


@contextmanager
def without_stubs() -> Iterator[None]:
    """Make ``inspect.getfile`` raise OSError for Gradio's classes, so that Gradio writes no stubs. For any other object
    the function works as usual, also in other threads.
    """
    usual = inspect.getfile

    def getfile(found: Any) -> str:
        if isinstance(found, type) and found.__module__.partition(".")[0] == "gradio":
            raise OSError("no stub is needed")
        return usual(found)

    inspect.getfile = getfile  # type: ignore[assignment]
    try:
        yield
    finally:
        inspect.getfile = usual


with without_stubs():
    import gradio as gr
