"""HTML and XHTML as blocks of text, and HTML files as books with sections by headings. Child only.

libxml2 reads the markup (through lxml), piece by piece and as events, so that broken nesting is closed for us and no
depth, tag or reference takes more than linear time. Nothing is run, nothing is fetched.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lxml import etree

from app.readers import cleaning, encoding
from app.readers.parsed import Limits, Parsed, Refused, Step
from app.readers.sections import Block, by_headings, finish, split_levels

_SKIPPED = frozenset(re.findall(r"\w+", "script style template noscript svg iframe object rt rp select button title"))
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote body caption center dd details div dl dt fieldset figcaption figure footer"
        " form header hr html li main nav ol p pre section summary table tbody tfoot thead tr ul h1 h2 h3 h4 h5 h6",
    )
)
_CELLS = ("td", "th")
_OF_THE_HEAD = ("base", "link", "meta")
_HEADING = re.compile(r"h([1-6])$")
_SPACE = re.compile(r"[ \t\r\n\f]+")
_HIDING = re.compile(r"(?:display\s*:\s*none|visibility\s*:\s*hidden)", re.I)
_LONGEST_TITLE = 1000
_PIECE = 1 << 16  # characters between two signs of life
# What lies behind the end of a page is still shown; a frame page's words are for those who see no frames.
_PASSED_OVER = re.compile(r"</(?:body|html)\s*>|</?noframes\b[^<>]*>", re.I)
# The attributes of a tag this long are an image or an attack; older libxml2 takes the square of their number.
_ENDLESS_TAG = re.compile(r"<([A-Za-z][\w:-]*)\s[^<>]{8000,}>")
# A sign that begins no tag would be an event each: it is put away under a sign that no text has, and put back.
_NO_TAG = re.compile(r"<+(?![A-Za-z/!?])")
_PUT_AWAY = "\ue000"
_WINDOWS_NUMBER = re.compile(r"&#(1[2-5]\d);?")  # of a character as Windows counts them; older libxml2 drops it

_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset=[\"']?([A-Za-z0-9_.:-]{1,40})", re.I)
_XML_CHARSET = re.compile(rb"\s*<\?xml[^>]{0,100}?encoding=[\"']([A-Za-z0-9_.:-]{1,40})", re.I)
_NOT_OF_FILES = ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "utf-7")
_MOST_MARKUP = 5  # bytes of a file for each character that a book may have


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read an HTML file."""
    step(0, 1, None)
    data = path.read_bytes()
    if len(data) > _MOST_MARKUP * limits.characters:
        raise Refused(f"has {len(data) / 1e6:,.0f} MB; that is more than a book.", "Split it into parts.")
    blocks, title, author = read(decode_html(data), lambda: step(0, 1, None))
    step(0, 1, None)
    sections, outline = finish(by_headings(blocks, split_levels(blocks)))
    first = next((block.text for block in blocks if block.level), "")
    return Parsed("html", "section", sections, title.strip() or first, author, outline)


def decode_html(data: bytes) -> str:
    """Text of HTML bytes: marks, then what the file declares, as XML or as HTML, then a guess."""
    declared = _XML_CHARSET.match(data) or _CHARSET.search(data[:4096])
    if declared and encoding.decode_sample(data) is None:
        try:
            name = codecs.lookup(declared[1].decode("ascii")).name
            if name.replace("_", "-") not in _NOT_OF_FILES:
                return data.decode(name)
        except (LookupError, UnicodeError):
            pass
    return encoding.decode(data)[0]


def read(text: str, alive: Callable[[], None] = lambda: None) -> tuple[list[Block], str, str]:
    """The blocks of an HTML text, its title and its author; ``alive`` is called now and then."""
    text = _PASSED_OVER.sub("", text.replace("\0", "").replace(_PUT_AWAY, ""))
    text = _NO_TAG.sub(lambda found: _PUT_AWAY * len(found[0]), text)
    text = _ENDLESS_TAG.sub(r"<\1>", text)
    text = _WINDOWS_NUMBER.sub(lambda number: html.unescape(number[0]), text)
    found = _collected(text, alive, hides=True)
    if found.lost or not found.blocks:  # hidden up to the end: nobody closed it, or a script was to show it
        found = _collected(text, alive, hides=False)
    return found.blocks, found.title, found.author


def _collected(text: str, alive: Callable[[], None], *, hides: bool) -> _BlockCollector:
    collector = _BlockCollector(hides)
    if not text.strip():
        return collector
    parser = etree.HTMLParser(target=collector, encoding="utf-8", huge_tree=True)
    for start in range(0, len(text), _PIECE):
        alive()
        parser.feed(text[start : start + _PIECE].encode("utf-8", errors="replace"))
    collector.at_end = True
    parser.close()
    return collector


class _BlockCollector:
    """Takes the parser's events and makes blocks of them; ``title`` and ``author`` come from the head.

    Args:
        hides: leave out what no browser shows: what a reader cannot see is not read to the model either.
    """

    def __init__(self, hides: bool) -> None:
        self._hides = hides
        self.at_end = False  # all of the text is parsed: what ends now was never closed
        self.lost = False  # something hidden was open at the end
        self.blocks: list[Block] = []
        self.title = ""
        self.author = ""
        self._parts: list[str] = []
        self._anchors: list[str] = []
        self._level = 0
        self._skipped: list[str] = []  # the elements that are open, from the skipped or hidden one on
        self._preformatted = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._skipped or tag in _SKIPPED or (self._hides and _is_hidden(attributes)):
            self._skipped.append(tag)
            return
        if tag == "meta" and attributes.get("name", "").casefold() in ("author", "dc.creator"):
            self.author = self.author or attributes.get("content", "")
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
        anchor = attributes.get("id") or (attributes.get("name") if tag == "a" else None)
        if anchor and tag not in _OF_THE_HEAD:
            self._anchors.append(anchor)

    def end(self, tag: str) -> None:
        if self._skipped:
            self._skipped.pop()
            self.lost = self.lost or (self.at_end and not self._skipped and tag not in _SKIPPED)
        elif tag in _BLOCKS:
            self._close_block()
            self._preformatted -= tag == "pre"

    def data(self, data: str) -> None:
        data = data.replace(_PUT_AWAY, "<")
        if self._skipped == ["title"] and len(self.title) < _LONGEST_TITLE:
            self.title += data
        elif not self._skipped:
            self._parts.append(data if self._preformatted else _SPACE.sub(" ", data))

    def close(self) -> None:
        self._close_block()
        if self._anchors:
            self.blocks.append(Block("", 0, tuple(self._anchors)))

    def _close_block(self) -> None:
        if self._parts:
            text = cleaning.characters("".join(self._parts))
            text = text.strip("\n") if self._preformatted else cleaning.spaces(text)
            if text.strip():
                self.blocks.append(Block(text, self._level, tuple(self._anchors)))
                self._anchors.clear()
            self._parts.clear()
        self._level = 0


def _is_hidden(attributes: Mapping[str, str]) -> bool:
    return "hidden" in attributes or bool(_HIDING.search(attributes.get("style", "")))
