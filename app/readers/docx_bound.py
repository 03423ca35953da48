"""Fills the content controls of a Word file that are bound to data of the file, as Word does when it opens the file.

Source: ECMA-376, part 1, 17.5.2.6. Understands the paths that Word writes: elements with their numbers, and at the end
an attribute. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from xml.etree import ElementTree

from app.readers.archive import attribute, local
from app.readers.office import Package

_PROPERTIES = {
    "{6c3c8bc8-f283-45ae-878a-bab7291924a1}": "docProps/core.xml",
    "{6668398d-a668-4e3e-a5eb-62b293d839f1}": "docProps/app.xml",
    "{55af091b-3c7a-41e3-b477-f2fdaa23cfda}": "docProps/coverPageProps.xml",
}
_STEP = re.compile(r"/(@)?(?:[\w.-]+:)?([\w.-]+)(?:\[(\d{1,6})\])?")
_MOST_STORES = 200  # maximum parts with data that are looked at
# kinds of content controls whose text is not the text of the data: pictures, ticks, and dates, which Word formats
_OWN = ("picture", "checkbox", "date", "docPartObj", "docPartList", "group")
_CHOICES = ("dropDownList", "comboBox")


class Bindings:
    """Looks up the data to which content controls are bound."""

    def __init__(self, package: Package) -> None:
        self._package = package
        self._stores: dict[str, ElementTree.Element | None] | None = None

    def fill(self, root: ElementTree.Element) -> None:
        """Replace the text of every content control that is bound to data."""
        for control in (node for node in root.iter() if local(node.tag) == "sdt"):
            properties = next((part for part in control if local(part.tag) == "sdtPr"), None)
            content = next((part for part in control if local(part.tag) == "sdtContent"), None)
            if properties is None or content is None:
                continue
            kinds = {local(part.tag): part for part in properties}
            binding = kinds.get("dataBinding")
            if binding is None or any(kind in kinds for kind in _OWN):
                continue
            text = self._value(attribute(binding, "storeItemID"), attribute(binding, "xpath"))
            if text is None or (not text and "showingPlcHdr" in kinds):
                continue
            choices = (kinds[kind] for kind in _CHOICES if kind in kinds)
            shown = {attribute(one, "value"): attribute(one, "displayText") for kind in choices for one in kind}
            _write(content, shown.get(text) or text)

    def _value(self, store: str, path: str) -> str | None:
        """Return the text at a path; None if there is none."""
        root = self._store(store.casefold())
        steps = _STEP.findall(path)
        if root is None or not steps or "".join(match[0] for match in _STEP.finditer(path)) != path:
            return None
        if local(root.tag) != steps[0][1]:
            return None
        node = root
        for at_attribute, name, number in steps[1:]:
            if at_attribute:
                return attribute(node, name)
            children = [child for child in node if local(child.tag) == name]
            place = int(number) - 1 if number else 0
            if not 0 <= place < len(children):
                return None
            node = children[place]
        return "".join(node.itertext()) if len(node) == 0 else None

    def _store(self, identity: str) -> ElementTree.Element | None:
        if self._stores is None:
            self._stores = dict(self._found())
            for name, part in _PROPERTIES.items():
                self._stores[name] = self._package.attempt(lambda part=part: self._package.xml(part, "its data"), None)  # type: ignore[misc]
        return self._stores.get(identity)

    def _found(self) -> Iterator[tuple[str, ElementTree.Element | None]]:
        """Yield the parts with data by their identities."""
        named = [name for name in self._package.files.namelist() if name.casefold().startswith("customxml/")]
        for name in named[:_MOST_STORES]:
            if not name.endswith(".xml") or "/_rels/" in name:
                continue
            for kind, properties in self._package.related(name).values():
                root = self._package.attempt(lambda part=properties: self._package.xml(part, "its data"), None)  # type: ignore[misc]
                if kind == "customXmlProps" and root is not None:
                    data = self._package.attempt(lambda part=name: self._package.xml(part, "its data"), None)  # type: ignore[misc]
                    yield attribute(root, "itemID").casefold(), data


def _write(content: ElementTree.Element, text: str) -> None:
    """Put a text into the first text of a content control, and empty the others."""
    texts = [node for node in content.iter() if local(node.tag) == "t"]
    for at, node in enumerate(texts):
        node.text = text if at == 0 else ""
    if not texts:
        run = next((node for node in content.iter() if local(node.tag) in ("r", "p")), content)
        written = ElementTree.SubElement(run, content.tag.replace("sdtContent", "t"))
        written.text = text
