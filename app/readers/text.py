"""Plain text and Markdown: hard line ends, chapters that are only lines like "CHAPTER IV". Child only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.readers import cleaning, encoding
from app.readers.layout import Line, Margins, reflow
from app.readers.parsed import Limits, Parsed, Refused, Step
from app.readers.running import number_value
from app.readers.sections import Block, Chapter, by_headings, finish, split_levels

_NO_WRAP = 3  # characters: lines this short were ended for another reason than a margin
_HARD_WRAP = 120  # characters; a text with longer lines has no hard line ends
_NUMERAL = (
    r"(?:\d{1,3}|[ivxlcdm]+|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|[a-z]+teen"
    r"|twenty(?:[- ]\w+)?|the \w+|first|second|third|last)"
)
_NAMED = (
    r"chapter|book|part|volume|letter|act|scene|canto|stave|kapitel|teil|buch|brief|chapitre|partie|livre|cap[ií]tulo|parte"
    r"|libro|capitolo|hoofdstuk|глава|часть|книга"
)
_NUMBERED = re.compile(rf"(?:{_NAMED})\s+{_NUMERAL}(?:[.:)\]—–-]*$|\s?[.:)\]—–-]+\s*\S.*$|\s+[\"“A-Z].*$)", re.I)
_ALONE = re.compile(
    r"(?:prologue|epilogue|preface|foreword|introduction|afterword|appendix|conclusion|etymology)\.?$", re.I
)
_COUNTED = re.compile(r"([IVXLC]+|\d{1,3})(?:\.?$|\.\s+\S.*$)")
_COUNTED_LENGTH = 800  # characters between counted headings at least, on average; a list has less
_UPPER_PARTS = re.compile(r"(?:book|part|volume|act|buch|teil|livre|partie|libro|parte|часть|книга)\b", re.I)
_LONGEST_HEADING = 90
_CONTENTS_RUN = 3  # headings with nothing between them that make a list of contents
_NOTHING = 60  # characters
_ALIVE = 2000  # paragraphs between two signs of life
_LONGEST_GROUP = 2000  # lines without a blank one that are looked at together; a list of words has any number
_MARK = re.compile(r"(#{1,6})\s+(\S.*)?$")
_UNDERLINE = re.compile(r"^(=+|-{3,})\s*$")
_FENCE = re.compile(r"^\s*(```|~~~)")
_FRONT_MATTER = re.compile(r"\ufeff?(---|\+\+\+)[ \t]*\n((?:[^\n]{0,500}\n){1,100}?)\1[ \t]*(?:\n|$)")
_SETTING = re.compile(r"^(title|author)\s*[:=]\s*(\S.*)$", re.I | re.M)
_GUTENBERG = re.compile(r"^(title|author):\s+(\S.*)$", re.I | re.M)
_KEPT_LINE = re.compile(r"^\s*(?:[-*+>|]|\d+[.)]\s|```|~~~)|^ {4}")


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a text or Markdown file; ``request["kind"]`` says which."""
    step(0, 1, None)
    data = path.read_bytes()
    if len(data) > 4 * limits.characters:
        raise Refused(f"has {len(data) / 1e6:,.0f} MB of text; that is more than a book.", "Split it into parts.")
    raw, name = encoding.decode(data)
    wrong = raw.count("\ufffd")
    text = cleaning.characters(raw)
    if len(text) > limits.characters:
        raise Refused(
            f"has {len(text):,} characters; the limit is {limits.characters:,}.", "Split it into smaller files."
        )
    step(0, 1, None)
    if request["kind"] == "markdown":
        title, author, text = _front_matter(text)
        blocks = markdown_blocks(text)
        chapters = by_headings(blocks, split_levels(blocks))
        title = title or next((block.text for block in blocks if block.level == 1), "")
    else:
        chapters = plain_chapters(text, lambda: step(0, 1, None))
        title, author = _names(text)
    step(0, 1, None)
    sections, outline = finish(chapters)
    warnings = [f"{wrong} characters could not be read as {name} and are shown as \ufffd."] if wrong else []
    if name == encoding.MIXED:
        warnings.append("The file mixes two encodings, UTF-8 and Windows-1252; letters with accents may be wrong.")
    return Parsed(request["kind"], "section", sections, title, author, outline, warnings)


def _names(text: str) -> tuple[str, str]:
    """Title and author where the head of a file names them, as Project Gutenberg's do."""
    found = {match[1].casefold(): match[2] for match in _GUTENBERG.finditer(text[:4000])}
    return (found["title"], found.get("author", "")) if "title" in found else ("", "")


def _front_matter(text: str) -> tuple[str, str, str]:
    """Title and author from the settings that programs for web pages put at the head of a text; the text behind."""
    match = _FRONT_MATTER.match(text)
    if match is None:
        return "", "", text
    found = {key.casefold(): value.strip("\"' []") for key, value in _SETTING.findall(match[2])}
    return found.get("title", ""), found.get("author", ""), text[match.end() :]


def plain_chapters(text: str, alive: Callable[[], None] = lambda: None) -> list[Chapter]:
    """Chapters of a plain text, its paragraphs re-flowed; ``alive`` is called now and then."""
    paragraphs = _paragraphs(text, alive)
    alive()
    heads = _headings(paragraphs)
    if len(heads) < 2:
        return [Chapter("", "\n\n".join(paragraphs), listed=False)]
    chapters = []
    starts = sorted(heads)
    if starts[0]:
        chapters.append(Chapter("", "\n\n".join(paragraphs[: starts[0]]), listed=False))
    nested = any(_UPPER_PARTS.match(heads[start]) for start in starts) and not all(
        _UPPER_PARTS.match(heads[start]) for start in starts
    )
    for start, end in zip(starts, [*starts[1:], len(paragraphs)], strict=True):
        level = 1 if nested and not _UPPER_PARTS.match(heads[start]) else 0
        chapters.append(Chapter(heads[start], "\n\n".join(paragraphs[start:end]), level))
    return chapters


def _headings(paragraphs: list[str]) -> dict[int, str]:
    """Which paragraphs are chapter headings: index -> title. Lists of contents are not."""
    found = {at: paragraph for at, paragraph in enumerate(paragraphs) if _is_heading(paragraph)}
    if len(found) < 2:
        found.update(_counted(paragraphs))
    keys = {at: " ".join(_first_line(text).casefold().split()) for at, text in found.items()}
    later: Counter[str] = Counter(keys.values())
    order = sorted(found)
    runs: list[list[int]] = []
    for at in order:
        between = sum(map(len, paragraphs[runs[-1][-1] + 1 : at])) if runs else _NOTHING
        if runs and between < _NOTHING:
            runs[-1].append(at)
        else:
            runs.append([at])
    kept: dict[int, str] = {}
    for run in runs:
        contents = len(run) >= _CONTENTS_RUN
        for at in run:
            later[keys[at]] -= 1
            if contents and (later[keys[at]] > 0 or at != run[-1]):
                continue
            kept[at] = _title(paragraphs, at)
    return kept


def _counted(paragraphs: list[str]) -> dict[int, str]:
    """Headings that are only numbers, or begin with one: they count from 1 without a gap, with text between them."""
    found: dict[int, str] = {}
    wanted = 1
    for at, text in enumerate(paragraphs):
        match = _COUNTED.match(text) if len(text) <= _LONGEST_HEADING else None
        if match and number_value(match[1].casefold()) == wanted:
            found[at] = text
            wanted += 1
    if len(found) < _CONTENTS_RUN:
        return {}
    first, last = min(found), max(found)
    return found if sum(map(len, paragraphs[first:last])) > _COUNTED_LENGTH * (len(found) - 1) else {}


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0].strip().rstrip(".:")


def _is_heading(paragraph: str) -> bool:
    first = _first_line(paragraph)
    if len(first) > _LONGEST_HEADING or paragraph.count("\n") > 2:
        return False
    return bool(_NUMBERED.match(first) or _ALONE.match(first))


def _title(paragraphs: list[str], at: int) -> str:
    """A heading's own words; where it is only a number, with the short line below it."""
    title = " ".join(paragraphs[at].split())
    bare = len(title.split()) <= 2
    below = paragraphs[at + 1] if bare and at + 1 < len(paragraphs) else ""
    short = below and len(below) <= _LONGEST_HEADING // 2 and "\n" not in below and not _is_heading(below)
    if short and not below.rstrip().endswith((".", ",", ";", "!", "?", "”", '"')):
        return f"{title.rstrip('.')}. {below}"
    return title if len(title) <= _LONGEST_HEADING else _first_line(paragraphs[at])


def _paragraphs(text: str, alive: Callable[[], None]) -> list[str]:
    """Paragraphs on one line each where the file has hard line ends; verse and lists keep theirs."""
    groups = [group.strip("\n") for group in re.split(r"\n[ ]*\n+", text)]
    groups = [part for group in groups if group.strip() for part in _parts(group)]
    lengths = sorted(len(line) for group in groups for line in group.split("\n"))
    usual = lengths[int(len(lengths) * 0.98)] if lengths else 0
    if not _NO_WRAP < usual <= _HARD_WRAP or lengths[-1] > 4 * _HARD_WRAP:
        return [group.strip() for group in groups]
    words = cleaning.vocabulary(groups)
    alive()
    pages = [_lines(group) for group in groups]
    margins = Margins(pages)
    paragraphs = []
    for at, lines in enumerate(pages):
        if at % _ALIVE == 0 or len(lines) > _LONGEST_GROUP // 2:
            alive()
        if lines:
            paragraphs.append(reflow(lines, words, margins))
    return paragraphs


def _parts(group: str) -> list[str]:
    rows = group.split("\n")
    if len(rows) <= _LONGEST_GROUP:
        return [group]
    starts = range(0, len(rows), _LONGEST_GROUP)
    return [part for start in starts if (part := "\n".join(rows[start : start + _LONGEST_GROUP])).strip()]


def _lines(group: str) -> list[Line]:
    lines = []
    for at, row in enumerate(group.split("\n")):
        stripped = row.strip()
        if stripped:
            indent = len(row) - len(row.lstrip())
            words = " ".join(stripped.split())
            lines.append(Line(words, float(indent), float(indent + len(stripped)), float(at), at + 1.0))
    return lines


def markdown_blocks(text: str) -> list[Block]:
    """Headings and paragraphs of Markdown; everything else stays as it is written."""
    blocks: list[Block] = []
    current: list[str] = []
    fenced = False

    def close() -> None:
        if current:
            blocks.append(Block(_unwrapped(current)))
            current.clear()

    for row in text.split("\n"):
        if _FENCE.match(row):
            fenced = not fenced
            current.append(row)
            continue
        mark = None if fenced else _MARK.match(row)
        if mark:
            close()
            blocks.append(Block((mark[2] or "").rstrip().rstrip("#").rstrip(), len(mark[1])))
        elif not fenced and current and len(current) == 1 and _UNDERLINE.match(row):
            blocks.append(Block(current.pop().strip(), 1 if row.startswith("=") else 2))
        elif row.strip() or fenced:
            current.append(row)
        else:
            close()
    close()
    return [block for block in blocks if block.text]


def _unwrapped(rows: list[str]) -> str:
    """A paragraph's lines made one; lists, quotes, tables, code and forced line ends keep theirs."""
    if any(_FENCE.match(row) for row in rows):
        return "\n".join(rows)
    parts = [rows[0].rstrip()]
    for above, row in pairwise(rows):
        hard = above.endswith(("  ", "\\")) or _KEPT_LINE.match(row)
        parts.append(("\n" if hard else " ") + (row.rstrip() if hard else row.strip()))
    return "".join(parts)
