"""Reads XML of any vocabulary as blocks, by telling ``BlockCollector`` the HTML elements that its elements stand for.

Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from xml.etree import ElementTree

from app.readers.archive import local
from app.readers.collector import PUT_AWAY, BlockCollector
from app.readers.sections import Block

Tags = Iterable[tuple[str, Mapping[str, str]]]
"""HTML elements with their attributes, the outermost first."""

_DEEPEST = 2_000  # maximum nesting of elements; what is nested deeper is left out
_ALIVE = 20_000  # elements between two progress reports
FORMULA = "math"
"""An element that is handed on as it is, with all that is in it."""


class Teller:
    """Walks over elements and tells a collector what they are.

    Args:
        tags: returns the HTML elements that stand for an element, or None to leave it out with all that is in it.
        progress: called after many elements, to report progress.
    """

    def __init__(self, tags: Callable[[ElementTree.Element], Tags | None], progress: Callable[[], None]) -> None:
        self._tags = tags
        self._alive = progress
        self._count = 0
        self.collector = BlockCollector("", hides=True, marks=True)

    def tell(self, root: ElementTree.Element) -> None:
        """Tell an element, with all that is in it."""
        stack: list[tuple[ElementTree.Element, list[str], int]] = []
        node, told = root, self._open(root, 0)
        stack.append((node, told if told is not None else [], 0 if told is not None else len(node)))
        while stack:
            node, told, at = stack.pop()
            if told and told[0] == FORMULA:
                self._told_formula(node)
                at = len(node)
            if at < len(node):
                stack.append((node, told, at + 1))
                child = node[at]
                inner = self._open(child, len(stack))
                if inner is None:
                    self._say(child.tail)
                else:
                    stack.append((child, inner, 0))
                continue
            for tag in reversed(told):
                self.collector.end(tag)
            if node is not root:
                self._say(node.tail)

    def blocks(self) -> list[Block]:
        """Return all that was told."""
        self.collector.close()
        return self.collector.blocks

    def _open(self, node: ElementTree.Element, depth: int) -> list[str] | None:
        self._count += 1
        if self._count % _ALIVE == 0:
            self._alive()
        if depth > _DEEPEST or not isinstance(node.tag, str):
            return None
        if local(node.tag) == FORMULA:
            return [FORMULA]
        tags = self._tags(node)
        if tags is None:
            return None
        told = []
        for tag, attributes in tags:
            self.collector.start(tag, attributes)
            told.append(tag)
        self._say(node.text)
        return told

    def _told_formula(self, formula: ElementTree.Element) -> None:
        """Tell a formula; its end is told with that of the other elements."""
        self.collector.start(FORMULA, {})
        self._say(formula.text)
        stack: list[tuple[ElementTree.Element, bool]] = [(child, True) for child in reversed(formula)]
        while stack:
            node, opens = stack.pop()
            if not isinstance(node.tag, str):
                continue
            if opens and len(stack) < _DEEPEST:
                self.collector.start(local(node.tag), dict(node.attrib))
                self._say(node.text)
                stack.append((node, False))
                stack.extend((child, True) for child in reversed(node))
            elif not opens:
                self.collector.end(local(node.tag))
                self._say(node.tail)

    def _say(self, text: str | None) -> None:
        if text:
            self.collector.data(text.replace(PUT_AWAY, ""))
