"""Reads plain text, tables in text, Markdown and notebooks. Runs only in the child process (``app.readers.child``).

Joins hard-wrapped lines into paragraphs. Finds chapters in plain text by lines such as "CHAPTER IV".
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from app.readers import cleaning, delimited, encoding, lines
from app.readers.layout import Line, Margins, reflow
from app.readers.parsed import Limits, Opening, Parsed, Refused, Step
from app.readers.running import number_value
from app.readers.sections import Block, Chapter, by_headings, finish, split_levels

_NO_WRAP = 38  # a text is not hard-wrapped if nearly all of its lines have at most this many characters
# a text in a script without spaces is not hard-wrapped if nearly all of its lines have at most this many characters
_NO_WRAP_WIDE = 3
_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7a3\uff00-\uff60]")
_HARD_WRAP = 120  # maximum characters of a hard-wrapped line; a text with longer lines has one line per paragraph
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
_COUNTED_LENGTH = 800  # minimum mean characters between numbered headings; between the items of a list there are fewer
_UPPER_PARTS = re.compile(r"(?:book|part|volume|act|buch|teil|livre|partie|libro|parte|часть|книга)\b", re.I)
_LONGEST_HEADING = 90  # maximum characters of a heading
_CONTENTS_RUN = 3  # this many headings or more without text between them are a table of contents
_NOTHING = 60  # minimum characters between two headings for these to have text between them
_ALIVE = 2000  # paragraphs between two progress reports
# maximum lines without a blank line that are handled together; a longer run, such as a word list, is divided
_LONGEST_GROUP = 2000
_MARK = re.compile(r"(#{1,6})\s+(\S.*)?$")
# matches the number signs that close a Markdown heading, but not the sign in "C#"
_CLOSING = re.compile(r"(?:^|(?<=\s))#+$")
_UNDERLINE = re.compile(r"^(=+|-{3,})\s*$")
# matches a fence of program text; the words after backticks have no backticks, unlike those of code within a line
_FENCE = re.compile(r"^\s*(`{3,}(?=[^`]*$)|~{3,})(.*)$")
_TABS = re.compile(r"^[ ]{0,3}\t[\t ]*", re.M)
_FRONT_MATTER = re.compile(r"\ufeff?(---|\+\+\+)[ \t]*\n((?:[^\n]{0,500}\n){1,100}?)\1[ \t]*(?:\n|$)")
_SETTING = re.compile(r"^(title|author)\s*[:=]\s*(\S.*)$", re.I | re.M)
_GUTENBERG = re.compile(r"^(title|author):\s+(\S.*)$", re.I | re.M)
_MARKDOWN_NAMES = {".md", ".markdown", ".mdown", ".mkd"}
_HEADING = re.compile(r"^#{1,6} +\S", re.M)
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")  # matches colour codes in terminal output
_KEPT_LINE = re.compile(r"^\s*(?:[-*+>|]|\d+[.)]\s|```|~~~)|^ {4}")


def is_markdown(opening: Opening) -> bool:
    """Whether a text is Markdown by its name or, if its name has no suffix, by its headings."""
    return opening.suffix in _MARKDOWN_NAMES or (not opening.suffix and len(_HEADING.findall(opening.text)) > 2)


def is_notebook(opening: Opening) -> bool:
    """Whether a text is a Jupyter notebook."""
    return opening.suffix == ".ipynb" and opening.text.startswith("{")


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a text, table, Markdown or notebook file; ``request["kind"]`` names the format."""
    step(0, 1, None)
    data = path.read_bytes()
    if len(data) > 4 * limits.characters:
        raise Refused(f"has {len(data) / 1e6:,.0f} MB of text; that is more than a book.", "Split it into parts.")
    raw, name = encoding.decode(data)
    if len(raw) > limits.characters:
        raise Refused(
            f"has {len(raw):,} characters; the limit is {limits.characters:,}.", "Split it into smaller files."
        )
    step(0, 1, None)
    parsed = _PARSERS[request["kind"]](raw, path.suffix.casefold(), lambda: step(0, 1, None))
    parsed.warnings += losses(raw, name)
    return parsed


def losses(raw: str, name: str) -> list[str]:
    """Return warnings about characters that were lost in decoding: unreadable, in mixed encodings, or of private
    fonts.
    """
    said = []
    if wrong := raw.count("\ufffd"):
        said.append(f"{wrong} characters could not be read as {name} and are shown as \ufffd.")
    if name == encoding.MIXED:
        said.append("The file mixes two encodings, UTF-8 and Windows-1252; letters with accents may be wrong.")
    if strange := len(cleaning.PRIVATE.findall(raw)):
        said.append(f"{strange} signs of a font of their own, which no other program knows, are left out.")
    return said


def _plain(raw: str, suffix: str, progress: Callable[[], None]) -> Parsed:
    raw = lines.without_cue_tags(raw.replace("\r\n", "\n").replace("\r", "\n"))
    whole = lines.kept(raw, suffix)
    text = cleaning.characters(lines.tabs(raw, whole))
    progress()
    chapters = [Chapter("", text, listed=False)] if whole else plain_chapters(text, progress)
    progress()
    title, author = ("", "") if whole else _names(text)
    sections, outline = finish(chapters)
    return Parsed(sections, title, author, outline)


def _markdown(raw: str, suffix: str, progress: Callable[[], None]) -> Parsed:
    raw = _TABS.sub(lambda found: found[0].expandtabs(4), raw)
    title, author, text = _front_matter(cleaning.characters(raw))
    blocks = markdown_blocks(text)
    progress()
    title = title or next((block.text for block in blocks if block.level == 1), "")
    sections, outline = finish(by_headings(blocks, split_levels(blocks)))
    return Parsed(sections, title, author, outline)


def _notebook(raw: str, suffix: str, progress: Callable[[], None]) -> Parsed:
    """Read a Jupyter notebook: text, code and output, in order. A damaged notebook is read as plain text."""
    try:
        book = json.loads(raw)
        # before version 4, cells stood in work sheets
        cells = book["cells"] if "cells" in book else [cell for sheet in book["worksheets"] for cell in sheet["cells"]]
        parts = [part for cell in cells for part in _cell(cell)]
        drawn = sum("image/" in kind for cell in cells for kind in _kinds(cell))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return _plain(raw, ".json", progress)
    parsed = _markdown("\n\n".join(part.strip("\n") for part in parts if part.strip()), suffix, progress)
    if drawn:
        parsed.warnings.append(f"Pictures that the program drew are not read: {drawn}.")
    return parsed


def _cell(cell: dict[str, Any]) -> list[str]:
    source = "".join(cell["source"] if "source" in cell else cell["input"])
    if cell["cell_type"] == "heading":
        return [f"{'#' * min(max(int(cell.get('level', 1)), 1), 6)} {source}"]
    if cell["cell_type"] != "code":
        return [source]
    printed = [
        "".join(
            output.get("text") or output.get("data", {}).get("text/plain") or "\n".join(output.get("traceback", ()))
        )
        for output in cell.get("outputs", ())
    ]
    return [
        f"```\n{text.rstrip()}\n```" for text in (source, *(_COLOUR.sub("", text) for text in printed)) if text.strip()
    ]


def _kinds(cell: dict[str, Any]) -> list[str]:
    kinds = [kind for output in cell.get("outputs", ()) for kind in output.get("data", ())]
    return kinds + ["image/png" for output in cell.get("outputs", ()) if "png" in output]  # as before version 4


def _table(raw: str, suffix: str, progress: Callable[[], None]) -> Parsed:
    raw = raw.replace("\r\n", "\n").replace("\r", "\n")
    separator = delimited.separator_of(raw[: encoding.HEAD], suffix)
    sections, said = delimited.pages(raw, separator or ",")
    return Parsed(sections, warnings=said)


_PARSERS: dict[str, Callable[[str, str, Callable[[], None]], Parsed]] = {
    "text": _plain,
    "markdown": _markdown,
    "notebook": _notebook,
    "table": _table,
}


def _names(text: str) -> tuple[str, str]:
    """Return title and author as the start of the text states them, like the files of Project Gutenberg; "" if it
    states none.
    """
    facts = {match[1].casefold(): match[2] for match in _GUTENBERG.finditer(text[:4000])}
    return (facts["title"], facts.get("author", "")) if "title" in facts else ("", "")


def _front_matter(text: str) -> tuple[str, str, str]:
    """Read title and author from front matter, the settings that static site generators put at the start of a file.
    Return title, author and the remaining text.

    Other settings, such as a date, stay in the text.
    """
    match = _FRONT_MATTER.match(text)
    if match is None:
        return "", "", text
    settings = {key.casefold(): value.strip("\"' []") for key, value in _SETTING.findall(match[2])}
    others = [row.rstrip() for row in _SETTING.sub("", match[2]).split("\n") if row.strip()]
    kept = "  \n".join(others) + "\n\n" if others else ""
    return settings.get("title", ""), settings.get("author", ""), kept + text[match.end() :]


def plain_chapters(text: str, progress: Callable[[], None] = lambda: None) -> list[Chapter]:
    """Split a plain text into chapters, and join each paragraph into one line. ``progress`` is called to report
    progress.
    """
    paragraphs = _paragraphs(text, progress)
    progress()
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


def flowed(text: str) -> str:
    """Join each paragraph of a plain text into one line, without finding chapters."""
    return "\n\n".join(_paragraphs(text, lambda: None))


def _headings(paragraphs: list[str]) -> dict[int, str]:
    """Return the chapter headings as paragraph index -> title. Leave out the entries of a table of contents."""
    headings = {at: paragraph for at, paragraph in enumerate(paragraphs) if _is_heading(paragraph)}
    if len(headings) < 2:
        headings.update(_counted(paragraphs))
    keys = {at: " ".join(_first_line(text).casefold().split()) for at, text in headings.items()}
    later: Counter[str] = Counter(keys.values())
    order = sorted(headings)
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
    """Return the headings that start with a number, if the numbers count from 1 and have enough text between them."""
    headings: dict[int, str] = {}
    wanted = 1
    for at, text in enumerate(paragraphs):
        match = _COUNTED.match(text) if len(text) <= _LONGEST_HEADING else None
        if match and number_value(match[1].casefold()) == wanted:
            headings[at] = text
            wanted += 1
    if len(headings) < _CONTENTS_RUN:
        return {}
    first, last = min(headings), max(headings)
    return headings if sum(map(len, paragraphs[first:last])) > _COUNTED_LENGTH * (len(headings) - 1) else {}


def _first_line(text: str) -> str:
    return text.split("\n", 1)[0].strip().rstrip(".:")


def _is_heading(paragraph: str) -> bool:
    first = _first_line(paragraph)
    if len(first) > _LONGEST_HEADING or paragraph.count("\n") > 2:
        return False
    return bool(_NUMBERED.match(first) or _ALONE.match(first))


def _title(paragraphs: list[str], index: int) -> str:
    """Return a heading as a title. If it has only one or two words, such as "CHAPTER IV", add the short line below
    it.
    """
    title = " ".join(paragraphs[index].split())
    bare = len(title.split()) <= 2
    below = paragraphs[index + 1] if bare and index + 1 < len(paragraphs) else ""
    short = below and len(below) <= _LONGEST_HEADING // 2 and "\n" not in below and not _is_heading(below)
    if short and not below.rstrip().endswith((".", ",", ";", "!", "?", "”", '"')):
        return f"{title.rstrip('.')}. {below}"
    return title if len(title) <= _LONGEST_HEADING else _first_line(paragraphs[index])


def _paragraphs(text: str, progress: Callable[[], None]) -> list[str]:
    """Join each paragraph into one line if the file is hard-wrapped. Verse, lists, columns and code keep their
    lines.
    """
    groups = [group.strip("\n") for group in re.split(r"\n[ ]*\n+", text)]
    groups = [part for group in groups if group.strip() for part in _parts(group)]
    lengths = sorted(len(line) for group in groups for line in group.split("\n"))
    usual = lengths[int(len(lengths) * 0.98)] if lengths else 0
    narrowest = _NO_WRAP_WIDE if _WIDE.search(text) else _NO_WRAP
    if not narrowest < usual <= _HARD_WRAP or lengths[-1] > 4 * _HARD_WRAP:
        return [
            group if all(kept for kept, _ in lines.blocks(group.split("\n"))) else group.strip() for group in groups
        ]
    words = cleaning.vocabulary(groups)
    progress()
    cut = [_cut(group) for group in groups]
    margins = Margins([part for parts in cut for part in parts if not isinstance(part, str)])
    paragraphs = []
    for at, parts in enumerate(cut):
        if at % _ALIVE == 0 or sum(map(len, parts)) > _LONGEST_GROUP // 2:
            progress()
        if parts:
            paragraphs.append(
                "\n".join(part if isinstance(part, str) else reflow(part, words, margins) for part in parts)
            )
    return paragraphs


def _cut(group: str) -> list[str | list[Line]]:
    """Split consecutive lines. Lines that keep their line breaks become one string. Each paragraph or list item becomes
    a list of ``Line`` objects, which are joined later.
    """
    parts: list[str | list[Line]] = []
    for kept, rows in lines.blocks(group.split("\n")):
        if kept:
            parts.append("\n".join(rows))
        else:
            items = lines.items(rows)
            parts += [_lines(item, hanging=len(items) > 1) for item in items]
    return parts


def _parts(group: str) -> list[str]:
    rows = group.split("\n")
    if len(rows) <= _LONGEST_GROUP:
        return [group]
    starts = range(0, len(rows), _LONGEST_GROUP)
    return [part for start in starts if (part := "\n".join(rows[start : start + _LONGEST_GROUP])).strip()]


def _lines(rows: list[str], hanging: bool) -> list[Line]:
    """Convert rows to ``Line`` objects in which each character has width 1 and height 1. If ``hanging`` is set, the
    first line gets the indentation of the second line.
    """
    rows = [row for row in rows if row.strip()]
    indents = [float(len(row) - len(row.lstrip())) for row in rows]
    converted = []
    for at, (row, indent) in enumerate(zip(rows, indents, strict=True)):
        end = indent + len(row.strip())
        start = indents[1] if hanging and len(rows) > 1 else indent
        converted.append(Line(" ".join(row.split()), min(start, end - 1), end, float(at), at + 1.0))
    return converted


def markdown_blocks(text: str) -> list[Block]:
    """Split Markdown into headings and paragraphs. The lines of a paragraph are joined; everything else stays as
    written.
    """
    blocks: list[Block] = []
    current: list[str] = []
    fence = ""  # the signs of the open fence

    def close() -> None:
        if current:
            blocks.append(Block(_unwrapped(current)))
            current.clear()

    for row in text.split("\n"):
        signs = _FENCE.match(row)
        if signs and (not fence or (signs[1].startswith(fence) and not signs[2].strip())):
            fence = "" if fence else signs[1]
            current.append(row)
            continue
        mark = None if fence else _MARK.match(row)
        if mark:
            close()
            blocks.append(Block(_CLOSING.sub("", (mark[2] or "").rstrip()), len(mark[1])))
        elif not fence and current and len(current) == 1 and _UNDERLINE.match(row):
            blocks.append(Block(current.pop().strip(), 1 if row.startswith("=") else 2))
        elif row.strip() or fence:
            current.append(row)
        else:
            close()
    close()
    return [block for block in blocks if block.text]


def _unwrapped(rows: list[str]) -> str:
    """Join the lines of a paragraph. The line breaks of lists, quotes, tables and code are kept, and so are forced line
    breaks.
    """
    if any(_FENCE.match(row) for row in rows):
        return "\n".join(rows)
    parts = [rows[0].rstrip()]
    for above, row in pairwise(rows):
        hard = above.endswith(("  ", "\\")) or _KEPT_LINE.match(row)
        parts.append(("\n" if hard else " ") + (row.rstrip() if hard else row.strip()))
    return "".join(parts)
