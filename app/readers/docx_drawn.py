"""Reads Word's diagrams (SmartArt) and charts as text. Runs only in the child process (``app.readers.child``)."""

from __future__ import annotations

from collections.abc import Iterator
from xml.etree import ElementTree

from app.readers import cleaning, tables
from app.readers.archive import attribute, local
from app.readers.sections import Block
from app.readers.tables import Cell, Row, Table

_DEEPEST = 30  # maximum nesting of a diagram's points; a deeper point is listed at the top level
_MOST_POINTS = 5_000  # maximum points of a chart; further points are left out


def diagram(root: ElementTree.Element) -> list[Block]:
    """Return the texts of a diagram's points as a bulleted list, in the order and at the levels shown."""
    texts: dict[str, str] = {}
    below: dict[str, list[tuple[int, str]]] = {}
    for node in root.iter():
        if local(node.tag) == "pt":
            texts[attribute(node, "modelId")] = _words(next((part for part in node if local(part.tag) == "t"), None))
        elif local(node.tag) == "cxn" and attribute(node, "type") in ("", "parOf"):
            order = attribute(node, "srcOrd")
            place = int(order) if order.isdigit() else 0
            below.setdefault(attribute(node, "srcId"), []).append((place, attribute(node, "destId")))
    lines, seen = list[str](), set[str]()

    def walk(identity: str, level: int) -> None:
        if identity in seen or level > _DEEPEST:
            return
        seen.add(identity)
        if texts.get(identity):
            lines.append(f"{'  ' * max(level - 1, 0)}• {texts[identity]}")
        for _, child in sorted(below.get(identity, ())):
            walk(child, level + bool(texts.get(identity) or not level))

    heads = [name for name in below if all(name != child for children in below.values() for _, child in children)]
    for identity in [*heads, *texts]:
        walk(identity, 0)
    return [Block("\n".join(lines))] if lines else []


def chart(root: ElementTree.Element) -> list[Block]:
    """Return a chart's title, and a table of its numbers if the file stores them."""
    titles = [_words(node) for node in root.iter() if local(node.tag) == "title"]
    series = [node for node in root.iter() if local(node.tag) == "ser"]
    heads = [" ".join(_values(node, "tx").values()) for node in series]
    places = [_values(node, "cat") or _values(node, "xVal") for node in series]
    values = [_values(node, "val") or _values(node, "yVal") for node in series]
    names = next((column for column in places if column), {})
    table = Table([_row(["", *heads], header=True)])
    for point in sorted({point for column in (names, *values) for point in column})[:_MOST_POINTS]:
        table.rows.append(_row([names.get(point, ""), *(column.get(point, "") for column in values)]))
    head = "; ".join(title for title in titles if title)
    blocks = [Block(f"[Chart: {head}]")] if head else []
    return blocks + (tables.as_blocks(table) if len(table.rows) > 1 else [])


def _row(texts: list[str], *, header: bool = False) -> Row:
    return Row([Cell([Block(text)] if text else []) for text in texts], header=header)


def _values(series: ElementTree.Element, name: str) -> dict[int, str]:
    """Return the texts or numbers in the element ``name`` of a chart's series, keyed by the index of the point."""
    values: dict[int, str] = {}
    part = next((part for part in series if local(part.tag) == name), None)
    for point in part.iter() if part is not None else ():
        if local(point.tag) == "pt":
            value = next((child.text or "" for child in point if local(child.tag) == "v"), "")
            index = attribute(point, "idx")
            values[int(index) if index.isdigit() else len(values)] = _number(value)
    if part is not None and not values:
        values = {at: node.text or "" for at, node in enumerate(part.iter()) if local(node.tag) == "v"}
    return values


def _number(text: str) -> str:
    """Round a number to 12 significant digits, which removes floating-point errors. Return other text on one line."""
    try:
        return f"{float(text):.12g}" if "." in text else text
    except ValueError:
        return cleaning.one_line(text)


def _words(node: ElementTree.Element | None) -> str:
    return cleaning.one_line(" ".join(_paragraphs(node))) if node is not None else ""


def _paragraphs(node: ElementTree.Element) -> Iterator[str]:
    for part in node.iter():
        if local(part.tag) == "p":
            yield "".join(text.text or "" for text in part.iter() if local(text.tag) == "t")
