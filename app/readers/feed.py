"""Reads feeds (RSS and Atom): each entry with its title, date, author and text. Runs only in the child process
(``app.readers.child``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from app.readers import archive, cleaning, markup
from app.readers.archive import attribute, local
from app.readers.parsed import Limits, Parsed, Refused, Step
from app.readers.sections import Chapter, finish

_ENTRIES = ("item", "entry")
_TEXTS = ("encoded", "content", "description", "summary")  # the fullest text of an entry first
_DATES = ("pubDate", "published", "updated", "date")
_AUTHORS = ("creator", "author")


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a feed. Each entry is a section with the entry's title."""
    step(0, 1, None)
    root = archive.read_xml(path.read_bytes(), "its text")
    entries = [node for node in root.iter() if local(node.tag) in _ENTRIES]
    if len(entries) > limits.pages:
        raise Refused(f"has more than {limits.pages:,} sections.", "Split it into smaller files.")
    about = next((node for node in root.iter() if local(node.tag) == "channel"), root)
    head = {local(node.tag): node for node in reversed(about)}
    title = _line(head.get("title"))
    chapters = [Chapter("", "\n\n".join(text for text in (title, _text(head)) if text), listed=False)]
    for at, entry in enumerate(entries):
        step(at, len(entries), None)
        parts = {local(node.tag): node for node in reversed(entry)}
        named = _line(parts.get("title"))
        facts = [_line(parts.get(next((one for one in names if one in parts), ""))) for names in (_DATES, _AUTHORS)]
        text = _text(parts)
        chapters.append(
            Chapter(named, "\n\n".join(one for one in (named, ", ".join(filter(None, facts)), text) if one))
        )
    sections, outline = finish(chapters)
    return Parsed(sections, title, _line(head.get("author")), outline)


def _line(node: ElementTree.Element | None) -> str:
    return cleaning.one_line("".join(node.itertext())) if node is not None else ""


def _text(parts: dict[str, ElementTree.Element]) -> str:
    """Return the text of an entry. The text of a feed is HTML in text or, in Atom, elements of XHTML."""
    node = next((parts[name] for name in _TEXTS if name in parts), None)
    if node is None:
        return ""
    if attribute(node, "type") == "xhtml":
        html = ElementTree.tostring(node, encoding="unicode")
    else:
        html = "".join(node.itertext())
    if "<" not in html and "&" not in html:
        return cleaning.characters(html).strip()
    return "\n\n".join(block.text for block in markup.read(html).blocks if block.text)
