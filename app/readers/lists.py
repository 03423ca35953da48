"""Generates the numbers and bullets of HTML lists, as a browser counts them. Runs only in the child process
(``app.readers.child``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.readers import css, numerals
from app.readers.css import Styles
from app.readers.sections import Block

TAGS = frozenset(("ol", "ul", "menu", "dir", "list"))
"""Elements that contain list items. DTBook has "list"."""

_HEADED = re.compile(r"[(\[]?(?:(\d+(?:\.\d+)*)|([a-z])|([ivxlcdm]+))[.)\]](?:\s|$)", re.I)
_BULLETED = re.compile(r"[•‣◦▪●○–—*·☐☑☒✓-]\s")
_INDENT = "  "  # spaces for each list around an item's list
_NO_NUMBERS = "none"
_ONES = {"1": "decimal", "a": "lower-alpha", "A": "upper-alpha", "i": "lower-roman", "I": "upper-roman"}
_ROLES_WITHOUT = ("menu", "tree", "tablist", "presentation", "none")


@dataclass
class List:
    """An open list. ``kind`` is the kind of its marks, such as "disc". ``value`` is the number of the next item, and
    ``step`` is added to ``value`` after each item.

    ``counters`` and ``bullet`` come from a style sheet. A list with ``backwards`` set counts down to 1, so its numbers
    are known only when the list ends. Until then, ``marked`` has its numbered blocks.
    """

    kind: str
    value: int = 1
    step: int = 1
    backwards: bool = False
    counters: list[tuple[str, str]] = field(default_factory=list)
    bullet: str = ""
    marked: list[tuple[Block, str]] = field(default_factory=list)
    depth: int = 0  # number of lists around this one


class Lists:
    """Keeps the open lists, and the marks to be written before the text of the current list item or note."""

    def __init__(self) -> None:
        self._open: list[List] = []
        self._waiting: list[tuple[str, List | None]] = []
        self._counts: dict[str, int] = {}  # current values of the counters in style sheets, keyed by the counter's name

    def start(self, tag: str, attributes: Mapping[str, str], styles: Styles, *, bare: bool) -> None:
        """Begin a list. If ``bare`` is set, its items get no numbers or bullets."""
        kind = attributes.get("type", "") if tag != "list" else attributes.get("enum", "1")
        if tag == "ol" or (tag == "list" and attributes.get("type") == "ol"):
            kind = _ONES.get(kind, "decimal")
        else:
            kind = _NO_NUMBERS if kind in ("none", "pl") else "disc"
        classes = attributes.get("class", "").split()
        declared = {**styles.of(tag, classes), **styles.of(tag, classes, items=True)}
        kind = css.list_type(css.declarations(attributes.get("style", ""))) or css.list_type(declared) or kind
        if bare or attributes.get("role") in _ROLES_WITHOUT:
            kind = _NO_NUMBERS
        start, backwards = whole(attributes.get("start")), "reversed" in attributes
        begun = List(kind, 1 if start is None else start, -1 if backwards else 1, backwards and start is None)
        begun.depth = len(self._open)
        before = styles.of(tag, classes, items=True, place="before")
        begun.counters, begun.bullet = css.counters(before), css.bullet(before)
        self._open.append(begun)

    def item(self, attributes: Mapping[str, str], styles: Styles) -> None:
        """Begin a list item. ``headed`` writes the item's mark before the item's first text."""
        if not self._open:
            return
        around = self._open[-1]
        value = whole(attributes.get("value"))
        if value is not None:
            around.value, around.backwards = value, False
        declared = css.declarations(attributes.get("style", "")) or styles.of("li", attributes.get("class", "").split())
        kind = css.list_type(declared) or (_ONES.get(attributes.get("type", "")) or around.kind)
        mark = self._generated(around) if around.counters else _mark(kind, around.value)
        if not mark and around.bullet:
            mark = f"{around.bullet} "
        if mark:
            self._waiting.append((mark, around))
        around.value += around.step

    def end_item(self) -> None:
        """End a list item. If the item had no text, discard its mark."""
        self._waiting.clear()

    def end(self) -> None:
        """End a list. If the list counts backwards, renumber its items, because their number is known only now."""
        if not self._open:
            return
        ended = self._open.pop()
        for at, (block, mark) in enumerate(ended.marked if ended.backwards else ()):
            block.text = block.text.replace(mark, _mark(ended.kind, len(ended.marked) - at), 1)

    def note(self, mark: str) -> None:
        """Begin a footnote or endnote. ``mark`` is the number or sign that refers to the note in the text."""
        self._waiting.append((mark, None))

    def headed(self, text: str) -> tuple[str, list[tuple[str, List]]]:
        """Return a block's text with the marks of the current list item or note before it. A mark with which the text
        already starts is not added again.

        Returns:
            The text, and the added marks of list items as pairs (mark, list).
        """
        if not self._waiting:
            return text, []
        head = _HEADED.match(text)
        prefix, used = "", list[tuple[str, List]]()
        for mark, around in self._waiting:
            if around is None:
                prefix += "" if text.startswith((mark, "[", f"{mark} ", f"{mark}.")) else f"[{mark}] "
                continue
            bare = mark.strip(" .")
            said = head and (head[1] or text.casefold().startswith(bare.casefold()))
            if said or (not bare[:1].isalnum() and _BULLETED.match(text)):
                continue
            prefix += mark if used else _INDENT * around.depth + mark
            used.append((mark, around))
        self._waiting.clear()
        return prefix + text, used

    def _generated(self, outer: List) -> str:
        """Return the number that a style sheet generates for an item. The last counter of the list counts the items.
        The preceding counters belong to outer lists, as in files of Google Docs.
        """
        own = next(name for name, _ in reversed(outer.counters) if name)
        self._counts[own] = outer.value
        texts = (
            numerals.written(self._counts.get(name, 1), style) if name else style for name, style in outer.counters
        )
        return f"{''.join(texts).strip()} "


def _mark(kind: str, value: int) -> str:
    """Return the mark in front of a list item; "" for none."""
    if kind == _NO_NUMBERS:
        return ""
    if kind in ("disc", "circle", "square") or kind.startswith("disclosure"):
        return "• "
    if kind[:1] in "\"'" and len(kind) > 2:
        return f"{kind.strip(kind[0]).strip()} "
    return f"{numerals.written(value, kind)}. "


def whole(text: str | None) -> int | None:
    """Parse the integer at the start of an attribute's value; None if there is no integer."""
    match = re.match(r"\s*([+-]?\d{1,9})", text or "")
    return int(match[1]) if match else None
