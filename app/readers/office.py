"""Opens the parts of an Office file (DOCX, PPTX, XLSX) and follows the relations between them. A damaged part does not
stop the reading. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import posixpath
import zipfile
from collections.abc import Callable
from typing import TypeVar
from xml.etree import ElementTree

from app.readers import archive
from app.readers.archive import local
from app.readers.parsed import Refused

_Found = TypeVar("_Found")
_READABLE = ("t", "txbxContent", "oMath", "relIds", "chart", "sym", "r")


class Package:
    """The parts of an Office file. ``warnings`` tell which parts are damaged."""

    def __init__(self, files: zipfile.ZipFile) -> None:
        self.files = files
        self.names = archive.Names(files)
        self.warnings: list[str] = []
        self._relations: dict[str, dict[str, tuple[str, str]]] = {}

    def attempt(self, work: Callable[[], _Found], default: _Found) -> _Found:
        """Return what ``work`` returns. If it meets a damaged part, add a warning and return ``default``."""
        try:
            return work()
        except Refused as refused:
            self.warnings.append(f"A part of the file {refused.cause}")
            return default

    def xml(self, name: str, part: str) -> ElementTree.Element | None:
        """Parse a part as XML; None if there is no part of this name. ``part`` is what it is, for a warning."""
        found = self.names.find(name) if name else None
        return archive.read_xml(archive.read_part(self.files, found, part), part) if found is not None else None

    def related(self, part: str) -> dict[str, tuple[str, str]]:
        """Return the parts to which a part is related: relation id -> (kind, name). The relations of "" are the
        file's.
        """
        if part not in self._relations:
            folder, name = posixpath.split(part)
            relations: dict[str, tuple[str, str]] = {}
            place = posixpath.join(folder, "_rels", f"{name}.rels")
            root = self.attempt(lambda: self.xml(place, "its list of relations"), None)
            for node in root if root is not None else ():
                target = node.get("Target", "").replace("\\", "/")
                if node.get("TargetMode") != "External" and target:
                    place = target.lstrip("/") if target.startswith("/") else posixpath.join(folder, target)
                    kind = node.get("Type", "").rpartition("/")[2]
                    relations[node.get("Id", "")] = (kind, posixpath.normpath(place))
            self._relations[part] = relations
        return self._relations[part]

    def main(self, usual: str) -> str:
        """Return the name of the main part; ``usual`` if the file names none that it holds."""
        named = (name for kind, name in self.related("").values() if kind == "officeDocument" and name in self.names)
        return next(named, usual)

    def title_and_author(self) -> tuple[str, str]:
        """Return title and author from the document's properties."""

        def look_up() -> tuple[str, str]:
            root = self.xml("docProps/core.xml", "its list of properties")
            properties = {local(node.tag): node.text or "" for node in root} if root is not None else {}
            return properties.get("title", ""), properties.get("creator", "")

        return self.attempt(look_up, ("", ""))


def choice(node: ElementTree.Element) -> list[ElementTree.Element]:
    """Return the content of the first choice of an ``AlternateContent``, or of its fallback if the choice has nothing
    readable.
    """
    choices = [part for part in node if local(part.tag) == "Choice"]
    fallback = [part for part in node if local(part.tag) == "Fallback"]
    if choices and (not fallback or any(local(part.tag) in _READABLE for part in choices[0].iter())):
        return list(choices[0])
    chosen = fallback or choices[:1]
    return list(chosen[0]) if chosen else []
