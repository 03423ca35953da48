"""Reads HTML and XHTML as blocks of text. Reads an HTML file as a book whose headings start sections.

lxml (libxml2) parses the markup in pieces and sends events. lxml repairs broken nesting, and its time grows only
linearly with the markup's length and nesting. No script is run, and nothing is fetched. Runs only in the child process
(``app.readers.child``).
"""

from __future__ import annotations

import codecs
import html
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lxml import etree

from app.readers import encoding
from app.readers.collector import PUT_AWAY, BlockCollector
from app.readers.css import Styles
from app.readers.left_out import told
from app.readers.parsed import Limits, Opening, Parsed, Refused, Step
from app.readers.picture_marks import IN_PAGE, named, with_keys
from app.readers.sections import Block, by_headings, finish, split_levels

_PIECE = 1 << 16  # characters between two progress reports
# Matches tags that are removed before parsing. Without the end tags of the page, the text after them is read, as
# browsers show it. Without the "noframes" tags, the text between them is read in place of the frames.
_PASSED_OVER = re.compile(r"</(?:body|html)\s*>|</?noframes\b[^<>]*>", re.I)
# Matches tags with very long attributes, which are embedded images or an attack. The attributes are dropped, because
# older versions of libxml2 take quadratic time to parse them.
_ENDLESS_TAG = re.compile(r"<([A-Za-z][\w:-]*)\s[^<>]{8000,}>")
# Matches each "<" that begins no tag. A private-use character replaces it during parsing, because the parser would send
# a separate event for each "<".
_NO_TAG = re.compile(r"<+(?![A-Za-z/!?])")
# matches character references with a code of Windows-1252, such as "&#150;"; older versions of libxml2 drop such
# references
_WINDOWS_NUMBER = re.compile(r"&#(1[2-5]\d);?")

_CHARSET = re.compile(rb"<meta[^>]{0,200}?charset=[\"']?([A-Za-z0-9_.:-]{1,40})", re.I)
_XML_CHARSET = re.compile(rb"\s*<\?xml[^>]{0,100}?encoding=[\"']([A-Za-z0-9_.:-]{1,40})", re.I)
_NAMES = {".html", ".htm", ".xhtml"}
_PAGE = re.compile(r"<!doctype\s+html|<html[\s>]|<(?:head|body)[\s>]", re.I)
_OF_A_HEAD = re.compile(r"<(?:script|style|link|meta|title|base)[\s>]", re.I)
_TAG = re.compile(r"</[a-z][a-z0-9]*>|<(?:br|hr|p)\s*/?>", re.I)
_NOT_OF_FILES = ("idna", "punycode", "unicode-escape", "raw-unicode-escape", "utf-7")
_NAMED = 5  # maximum file names in a warning
_MOST_INNER = 100  # maximum embedded pages that are read of one page
_DEEPEST = 3  # maximum nesting of pages that are embedded in pages; deeper pages are not read
_MOST_MARKUP = 5  # maximum bytes of a file, as a multiple of the maximum characters of a book


def is_page(opening: Opening) -> bool:
    """Whether a text is a web page, or a part of one by its name."""
    text, start, named = opening.text, opening.start, opening.suffix in _NAMES
    if start.startswith("<") and (
        _PAGE.search(start)
        or (named and not text.startswith("<?xml"))
        or (_OF_A_HEAD.match(start) and _PAGE.search(text))
    ):
        return True
    return named and not text.startswith("<?xml") and _TAG.search(text) is not None


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read an HTML file."""
    step(0, 1, None)
    data = path.read_bytes()
    if len(data) > _MOST_MARKUP * limits.characters:
        raise Refused(f"has {len(data) / 1e6:,.0f} MB; that is more than a book.", "Split it into parts.")
    return parsed([decode_html(data)], lambda: step(0, 1, None))


def parsed(pages: Sequence[str], progress: Callable[[], None]) -> Parsed:
    """Read a web page, and the pages in its frames after it."""
    page = read(pages[0], progress, marks=True)
    for inner in pages[1:]:
        frame = read(inner, progress, marks=True)
        page.pictures += frame.pictures
        page.blocks += frame.blocks
        page.left_out.update(frame.left_out)
    progress()
    page.pictures += named(page.blocks, lambda source: source if source.startswith(IN_PAGE) else "")
    sections, outline = finish(by_headings(page.blocks, split_levels(page.blocks)))
    first = next((block.text for block in page.blocks if block.level), "")
    warnings = told(page.left_out, (block.text for block in page.blocks))
    if page.framed and len(pages) == 1:
        one = len(page.framed) == 1
        parts = "1 part of the page is" if one else f"{len(page.framed)} parts of the page are"
        some = ", ".join(page.framed[:_NAMED]) + (", …" if len(page.framed) > _NAMED else "")
        warnings.append(f"{parts} in another file and not read: {some}. Open what you need by itself.")
    if page.pictures:
        warnings.append(f"Pictures without a description, whose words are not read: {page.pictures:,}.")
    title = page.title.strip() or first
    return Parsed(sections, title, page.author, outline, warnings, page.left_out, page.date)


def decode_html(data: bytes) -> str:
    """Decode HTML bytes: by their byte order mark, or else by the declared encoding, or else by a guess."""
    declared = _XML_CHARSET.match(data) or _CHARSET.search(data[:4096])
    if declared and encoding.decode_sample(data) is None:
        try:
            name = codecs.lookup(declared[1].decode("ascii")).name
            if name.replace("_", "-") not in _NOT_OF_FILES:
                return data.decode(name)
        except (LookupError, UnicodeError):
            pass
    return encoding.decode(data)[0]


@dataclass
class Markup:
    """The content of an HTML or XHTML page.

    ``left_out``: number of omitted characters, keyed by reason. ``framed``: names of text files that the page embeds as
    frames. The frames themselves are not read. ``pictures``: number of pictures without a description.
    """

    blocks: list[Block]
    title: str
    author: str
    date: str
    left_out: Counter[str]
    framed: list[str] = field(default_factory=list)
    pictures: int = 0


def read(
    text: str,
    progress: Callable[[], None] = lambda: None,
    styles: Styles | None = None,
    *,
    contents: bool = True,
    marks: bool = False,
    depth: int = 0,
) -> Markup:
    """Read HTML or XHTML.

    Args:
        text: the markup.
        progress: called after each piece, to report progress.
        styles: rules of the style sheets that the markup links to.
        contents: whether to read tables of contents (``nav`` elements) too.
        marks: whether the places of pictures are marked (``app.readers.picture_marks.named``).
        depth: nesting depth of this page; 0 if it is not embedded in another page.
    """
    text = with_keys(text) if marks else text
    text = _PASSED_OVER.sub("", text.replace("\0", "").replace(PUT_AWAY, ""))
    text = _NO_TAG.sub(lambda match: PUT_AWAY * len(match[0]), text)
    text = _ENDLESS_TAG.sub(r"<\1>", text)
    text = _WINDOWS_NUMBER.sub(lambda number: html.unescape(number[0]), text)
    collected = _collected(text, progress, styles, hides=True, contents=contents, marks=marks)
    # Hidden text is read too if a hidden element was never closed, or if all text is hidden, because a script may show
    # it.
    if collected.lost or not collected.blocks:
        collected = _collected(text, progress, styles, hides=False, contents=contents, marks=marks)
    framed = list(dict.fromkeys(collected.framed))
    said = Markup(collected.blocks, collected.title, collected.author, collected.date, collected.left_out, framed)
    said.pictures = collected.pictures
    for inner in collected.inner[:_MOST_INNER] if depth < _DEEPEST else ():
        page = read(inner, progress, styles, depth=depth + 1)
        said.blocks += page.blocks
        said.left_out.update(page.left_out)
    return said


def _collected(
    text: str, progress: Callable[[], None], styles: Styles | None, *, hides: bool, contents: bool, marks: bool
) -> BlockCollector:
    collector = BlockCollector(text, hides=hides, styles=styles, contents=contents, marks=marks)
    if not text.strip():
        return collector
    parser = etree.HTMLParser(target=collector, encoding="utf-8", huge_tree=True)
    for start in range(0, len(text), _PIECE):
        progress()
        parser.feed(text[start : start + _PIECE].encode("utf-8", errors="replace"))
    collector.at_end = True
    parser.close()
    return collector
