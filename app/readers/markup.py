"""HTML and XHTML as blocks of text, by the standard library's tolerant parser. Runs nothing, fetches nothing."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

from app.readers import cleaning
from app.readers.sections import Block

_SKIPPED = frozenset(re.findall(r"\w+", "script style head template noscript svg iframe object rt rp select button"))
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote body caption center dd details div dl dt fieldset figcaption figure footer"
        " form header hr html li main nav ol p pre section summary table tbody tfoot thead tr ul h1 h2 h3 h4 h5 h6",
    )
)
_VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
_CELLS = {"td", "th"}
_HEADING = re.compile(r"h([1-6])$")
_SPACE = re.compile(r"[ \t\r\n\f]+")


_OPTIONAL_END = _VOID | set(re.findall(r"\w+", "html body dt dd li option td th tr thead tbody tfoot colgroup"))
_HIDING = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.I)


def _is_hidden(found: dict[str, str | None]) -> bool:
    """Whether no browser shows this element: what a reader cannot see is not read to the model either."""
    return "hidden" in found or bool(_HIDING.search(found.get("style") or ""))


class _Reader(HTMLParser):
    """Collects blocks, of what is hidden too unless it ``hides``; ``title`` and ``author`` come from the head."""

    def __init__(self, hides: bool) -> None:
        super().__init__(convert_charrefs=True)
        self._hides = hides
        self.blocks: list[Block] = []
        self.title = ""
        self.author = ""
        self._parts: list[str] = []
        self._anchors: list[str] = []
        self._level = 0
        self._skipping: list[str] = []
        self._preformatted = 0
        self._in_title = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "title" and not self.title and "svg" not in self._skipping:
            self._in_title = True
        if tag == "meta" and (found.get("name") or "").casefold() in ("author", "dc.creator"):
            self.author = self.author or found.get("content") or ""
        if tag in ("body", "h1", "p") and self._skipping == ["head"]:
            self._skipping.clear()  # a head that nobody closed
        if self._skipping == ["p"] and tag in _BLOCKS:
            self._skipping.clear()  # a hidden paragraph ends where the next one begins
        if self._skipping:
            if tag in _SKIPPED or tag == self._skipping[-1]:
                self._skipping.append(tag)
            return
        if tag in _SKIPPED or (self._hides and tag not in _OPTIONAL_END and _is_hidden(found)):
            self._skipping.append(tag)
            return
        self._open(tag, found)

    def _open(self, tag: str, found: dict[str, str | None]) -> None:
        if tag == "br":
            self._parts.append("\n")
        elif tag in _BLOCKS:
            self._close_block()
            heading = _HEADING.match(tag)
            if heading:
                self._level = int(heading[1])
            self._preformatted += tag == "pre"
        elif tag in _CELLS and self._parts:
            self._parts.append(" ")
        anchor = found.get("id") or (found.get("name") if tag == "a" else None)
        if anchor:
            self._anchors.append(anchor)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _SKIPPED or tag == "title":
            return  # opened and closed at once
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        if self._skipping:
            if tag in self._skipping:
                while self._skipping.pop() != tag:
                    pass
            return
        if tag in _BLOCKS:
            self._close_block()
            if tag == "pre":
                self._preformatted = max(0, self._preformatted - 1)

    def handle_data(self, data: str) -> None:
        if self._in_title and len(self.title) < 1000:
            self.title += data
        if not self._skipping:
            self._parts.append(data if self._preformatted else _SPACE.sub(" ", data))

    def _close_block(self) -> None:
        if not self._parts:
            self._level = 0
            return
        text = cleaning.characters("".join(self._parts))
        text = text.strip("\n") if self._preformatted else cleaning.spaces(text)
        if text.strip():
            self.blocks.append(Block(text, self._level, tuple(self._anchors)))
            self._anchors.clear()
        self._parts.clear()
        self._level = 0

    @property
    def lost(self) -> bool:
        """Whether something hidden was open at the end."""
        return any(tag not in _SKIPPED for tag in self._skipping)

    def finish(self) -> None:
        self.close()
        self._close_block()
        if self._anchors:
            self.blocks.append(Block("", 0, tuple(self._anchors)))


def read(text: str, alive: Callable[[], None] = lambda: None) -> tuple[list[Block], str, str]:
    """The blocks of an HTML text, its title and its author; ``alive`` is called now and then."""
    text = _tamed(text)
    reader = _fed(_Reader(hides=True), text, alive)
    if reader.lost or not reader.blocks:  # hidden up to the end: nobody closed it, or a script was to show it
        reader = _fed(_Reader(hides=False), text, alive)
    return reader.blocks, reader.title, reader.author


def _fed(reader: _Reader, text: str, alive: Callable[[], None]) -> _Reader:
    start, size = 0, _FEED
    while start < len(text):
        alive()
        reader.feed(text[start : start + size])
        start += size
        size = max(_FEED, len(reader.rawdata))  # what waits for its end is looked at again each time
    reader.finish()
    return reader


def _tamed(text: str) -> str:
    """Without what makes the parser look at the same signs again and again: tags that nothing can close, and numbers
    of characters that do not exist."""
    last = text.rfind(">") + 1
    return _ENDLESS_NUMBER.sub("\ufffd", text[:last] + text[last:].replace("<", "&lt;"))


_FEED = 1 << 16
_ENDLESS_NUMBER = re.compile(r"&#(?:0*[1-9][0-9]{7,}|[xX]0*[1-9a-fA-F][0-9a-fA-F]{6,});?")
