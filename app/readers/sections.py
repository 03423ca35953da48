"""Splits books without pages into sections that a citation can refer to. Runs only in the child process
(``app.readers.child``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from app.readers import cleaning
from app.readers.parsed import Heading, Section
from engine.languages import sentence_ends

PART = 3_000
"""Approximate characters of a section in a text without headings."""

LONGEST = 20_000
"""Characters above which a chapter with a title is split into several sections."""

_CUT_CHAPTER = 8_000  # approximate characters of the sections into which a long chapter with a title is split

INDENTED = {"style": "white-space:pre-wrap"}
"""Attributes of a paragraph of HTML whose white space is kept, such as an indented line of program text."""

# matches a heading with which a text counts its own sections, as contracts do
_OWN_SECTION = re.compile(r"^[ \t#*]{0,9}(?:section|sec\.|abschnitt) ?\d", re.I | re.M)
_LONGEST_LINE = 120  # maximum characters of a paragraph that may be a line of program text


@dataclass
class Block:
    """A paragraph or a heading.

    ``level`` is 0 for text, from 1 for headings. ``anchors`` are the link targets in the block. ``kept``: whether its
    white space has a meaning, as in program text.
    """

    text: str
    level: int = 0
    anchors: tuple[str, ...] = ()
    kept: bool = False


@dataclass
class Chapter:
    """The text of several blocks under one title. ``level`` counts from 0. ``listed``: whether the table of contents
    lists the chapter.
    """

    title: str
    text: str
    level: int = 0
    listed: bool = True


def with_listings(blocks: Sequence[Block]) -> list[Block]:
    """Join each paragraph that begins with blanks to the one above, as lines of program text that are paragraphs."""
    joined: list[Block] = []
    for block in blocks:
        above = joined[-1] if joined and not joined[-1].level else None
        is_line = block.kept and block.text.startswith("  ") and not block.level and len(block.text) < _LONGEST_LINE
        if is_line and above is not None and len(above.text) - above.text.rfind("\n") < _LONGEST_LINE:
            above.text += f"\n{block.text}"
            above.anchors += block.anchors
            above.kept = True
        else:
            joined.append(block)
    return joined


def by_headings(blocks: Sequence[Block], deepest: int = 2) -> list[Chapter]:
    """Split blocks into chapters at headings whose level is at most ``deepest``. The heading stays in the text. A
    heading that directly follows a higher heading starts no chapter of its own.
    """
    chapters: list[Chapter] = []
    texts: list[str] = []
    title, level = "", 0

    def close() -> None:
        text = "\n\n".join(texts)
        if text:
            chapters.append(Chapter(title, text, level, bool(title)))

    for block in blocks:
        if 0 < block.level <= deepest:
            only_headings = texts and all(text == title for text in texts) and block.level > level + 1
            if not only_headings:
                close()
                texts = []
                title, level = cleaning.one_line(block.text), block.level - 1
        if block.text:
            texts.append(block.text)
    close()
    return chapters


def split_levels(blocks: Sequence[Block]) -> int:
    """Return the deepest heading level at which to split: the second level in use, or the only level; 0 if there are no
    headings.
    """
    used = sorted({block.level for block in blocks if block.level})
    return used[min(1, len(used) - 1)] if used else 0


def finish(chapters: Sequence[Chapter]) -> tuple[list[Section], list[Heading]]:
    """Make named sections and the table of contents from chapters. A long chapter becomes several sections. What has no
    title is called "section 2" or, in a text that counts sections of its own, "part 2".
    """
    sections: list[Section] = []
    outline: list[Heading] = []
    named = any(chapter.title for chapter in chapters)
    unit = "part" if any(_OWN_SECTION.search(chapter.text) for chapter in chapters) else "section"
    seen: Counter[str] = Counter()
    number = 0
    for chapter in chapters:
        text = cleaning.line_ends(chapter.text)
        if not text:
            continue
        title = cleaning.one_line(chapter.title, 80)
        if chapter.listed and title:
            outline.append(Heading(cleaning.one_line(chapter.title), len(sections) + 1, chapter.level))
        limit = LONGEST if title else PART + PART // 2
        parts = cut(text, _CUT_CHAPTER if title else PART) if len(text) > limit else [text]
        for at, part in enumerate(parts):
            if title:
                label = title if at == 0 else f"{title.rstrip('.')}, part {at + 1}"
            else:
                number += 1
                label = "opening" if named and len(parts) == 1 and not sections else f"{unit} {number}"
            seen[label] += 1
            sections.append(Section(label if seen[label] == 1 else f"{label} ({seen[label]})", part))
    least = min((entry.level for entry in outline), default=0)
    for entry in outline:
        entry.level -= least
    return sections, outline


def labelled(label: str, text: str) -> list[Section]:
    """Make a section from the text of a part that is cited by its own name, such as a slide. A long text becomes
    several sections, an empty text none.
    """
    parts = cut(text, _CUT_CHAPTER) if len(text) > LONGEST else [text] if text else []
    return [Section(label if at == 0 else f"{label}, part {at + 1}", part) for at, part in enumerate(parts)]


def cut(text: str, size: int) -> list[str]:
    """Split text into parts of about ``size`` characters. The text is split between paragraphs if possible, or else
    between lines, sentences or words, or else anywhere.
    """
    parts: list[str] = []
    current: list[str] = []
    length = 0
    for paragraph in text.split("\n\n"):
        for piece in _pieces(paragraph, size):
            if current and length + len(piece) > size * 1.25:
                parts.append("\n\n".join(current))
                current, length = [], 0
            current.append(piece)
            length += len(piece) + 2
            if length >= size:
                parts.append("\n\n".join(current))
                current, length = [], 0
    if current:
        if parts and length < size // 4:
            parts[-1] += "\n\n" + "\n\n".join(current)
        else:
            parts.append("\n\n".join(current))
    return parts


def _pieces(paragraph: str, size: int) -> list[str]:
    """Split a paragraph that is longer than twice ``size``."""
    if len(paragraph) <= 2 * size:
        return [paragraph]
    pieces: list[str] = []
    start = 0
    while len(paragraph) - start > 2 * size:
        window = paragraph[start : start + size + size // 4]
        end = window.rfind("\n") + 1
        if end <= size // 2:
            ends = [end for end in sentence_ends(window) if end > size // 2]
            end = ends[-1] if ends else window.rfind(" ") + 1
        if end < size // 2:
            end = len(window)
        pieces.append(window[:end].rstrip().strip("\n"))
        start += end
    pieces.append(paragraph[start:].rstrip().strip("\n"))
    return [piece for piece in pieces if piece]
