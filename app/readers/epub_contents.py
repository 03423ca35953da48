"""The table of contents of an EPUB book, of either kind, and references inside its container.

Runs in the child only. Knows which file and anchor each line leads to; knows no chapter's text.
"""

from __future__ import annotations

import posixpath
import zipfile
from dataclasses import dataclass
from urllib.parse import unquote
from xml.etree import ElementTree

from app.readers import archive
from app.readers.archive import local
from app.readers.parsed import Refused


@dataclass
class Entry:
    """One line of the table of contents."""

    title: str
    file: str
    anchor: str
    level: int


def read(files: zipfile.ZipFile, nav: str, ncx: str) -> list[Entry]:
    """The table of contents; a broken one costs the names, not the book.

    Args:
        nav, ncx: where it is as a page and as a file of its own, as paths inside the container; "" where it is not.
    """
    names = archive.Names(files)
    try:
        if nav in names:
            root = archive.read_xml(files.read(names.find(nav) or ""), "its table of contents")
            entries = _nav_entries(root, posixpath.dirname(nav))
            if entries:
                return entries
        if ncx in names:
            root = archive.read_xml(files.read(names.find(ncx) or ""), "its table of contents")
            entries = []
            for node in root.iter():
                if local(node.tag) == "navMap":
                    _ncx_entries(node, posixpath.dirname(ncx), 0, entries)
            return entries
    except (Refused, zipfile.BadZipFile, RecursionError):
        pass
    return []


def _nav_entries(root: ElementTree.Element, base: str) -> list[Entry]:
    lists = [node for node in root.iter() if local(node.tag) == "nav"]
    kinds = [" ".join(value for key, value in node.attrib.items() if local(key) == "type") for node in lists]
    chosen = next((node for node, kind in zip(lists, kinds, strict=True) if kind == "toc"), None)
    if chosen is None:
        chosen = lists[0] if lists else root
    entries: list[Entry] = []

    def walk(node: ElementTree.Element, level: int) -> None:
        for child in node:
            name = local(child.tag)
            if name == "a" and child.get("href"):
                file, anchor = inside(base, child.get("href", ""))
                entries.append(Entry(" ".join("".join(child.itertext()).split()), file, anchor, max(level, 0)))
            else:
                walk(child, level + (name == "ol"))

    walk(chosen, -1)
    return entries


def _ncx_entries(node: ElementTree.Element, base: str, level: int, entries: list[Entry]) -> None:
    for point in node:
        if local(point.tag) != "navPoint":
            continue
        title, place = "", ""
        for child in point:
            if local(child.tag) == "navLabel":
                title = " ".join("".join(child.itertext()).split())
            elif local(child.tag) == "content":
                place = child.get("src", "")
        file, anchor = inside(base, place)
        if title and file:
            entries.append(Entry(title, file, anchor, level))
        _ncx_entries(point, base, level + 1, entries)


def inside(base: str, reference: str) -> tuple[str, str]:
    """A reference as a path inside the container, and its anchor."""
    target, _, anchor = reference.partition("#")
    if not target:
        return "", anchor
    place = posixpath.join(base, unquote(target).replace("\\", "/"))
    return posixpath.normpath(place).lstrip("/"), unquote(anchor)
