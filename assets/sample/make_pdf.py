"""Typesets the sample book as a PDF of 5.5 x 8.5 inches, from the text in this file's folder.

Owns the look of the printed sample: measure, line breaking, page breaking, folios, outline. Does not know the
story: everything it needs is read from `the-lamplighters-of-orre.txt` (title, author line, chapters headed
"Chapter N: Title", one paragraph a line). A development tool, not part of the application and not in
requirements.txt. To run it:

    python -m pip install reportlab
    sudo apt install fonts-ebgaramond-extra
    python assets/sample/make_pdf.py

EB Garamond (SIL Open Font License 1.1, which permits embedding) is embedded as a subset. The margins have only a page
number (folio). The page number is drawn after the page's text, so that a sentence that continues on the next page stays
whole when the text is extracted. The same text, font and reportlab give the same bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from reportlab import rl_config
from reportlab.lib.utils import simpleSplit
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFError, TTFont
from reportlab.pdfgen.canvas import Canvas

SOURCE = Path(__file__).resolve().with_name("the-lamplighters-of-orre.txt")
FONT_FOLDER = Path("/usr/share/fonts/truetype/ebgaramond")
FONT_FILES = {
    "Roman": "EBGaramond12-Regular.ttf",
    "Italic": "EBGaramond12-Italic.ttf",
    "SmallCaps": "EBGaramondSC12-Regular.ttf",
}
ITALIC_NAMES = ("Clementine", "Marigold", "Ever Obliged", "Carrow Mercury", "The Practical Electrician")

# All lengths in points (1/72 inch).
PAGE_WIDTH, PAGE_HEIGHT = 396.0, 612.0
MARGIN_SIDE = 54.0
MEASURE = PAGE_WIDTH - 2 * MARGIN_SIDE
FONT_SIZE, LEADING = 11.5, 15.5
FIRST_BASELINE = PAGE_HEIGHT - 66.0
LINES_PER_PAGE = 31
CHAPTER_SINK_LINES = 8  # lines left empty, or used for the heading, above the text of a chapter
INDENT = 15.0
FOLIO_BASELINE = 40.0
OPENING_WORDS = 3  # number of words in small capitals at the start of a chapter

# Line breaking: a space may be up to a fifth narrower than the natural space. Narrowing counts three times as much as
# widening, because tight lines look worse.
MAX_SHRINK, SHRINK_COST = 0.2, 3.0
# A last line shorter than this share of the measure (the line width) costs more, so it is avoided.
SHORT_LINE, SHORT_LINE_COST = 1 / 8, 4.0

LIST_HEADING = re.compile(r"THE [A-Z]+ WALK,")
LIST_ENTRY = re.compile(r"[A-Z][a-z]+(-[a-z]+)?( and [a-z]+)?\. [A-Z]")
CHAPTER_HEADING = re.compile(r"Chapter (\d+): (.+)")
LIST_CHAPTER = "The Book of Lamps"


class Word(NamedTuple):
    """One unbreakable piece of a line: runs of (font, text) and their width in points."""

    runs: tuple[tuple[str, str], ...]
    width: float


class Chapter(NamedTuple):
    """Number and title as in the heading, and the paragraphs under it."""

    number: int
    title: str
    paragraphs: tuple[str, ...]


class Line(NamedTuple):
    """A set line: its left edge, its words, and the width of the spaces between them. An empty line has no words."""

    left: float = 0.0
    words: tuple[Word, ...] = ()
    space: float = 0.0


class Shape(NamedTuple):
    """Indentations of a paragraph in points, and the number of its first words in small capitals."""

    first_indent: float = INDENT
    rest_indent: float = 0.0
    opening_words: int = 0


def read_book(source: Path) -> tuple[str, str, list[Chapter]]:
    """Return title, author line and chapters of the text file. Raises ValueError if the file has no chapter."""
    blocks = [b.strip() for b in source.read_text(encoding="utf-8").split("\n\n") if b.strip()]
    title, author, *body = blocks
    chapters: list[Chapter] = []
    for block in body:
        if heading := CHAPTER_HEADING.fullmatch(block):
            chapters.append(Chapter(int(heading[1]), heading[2], ()))
        elif chapters:
            last = chapters[-1]
            chapters[-1] = Chapter(last.number, last.title, (*last.paragraphs, block))
    if not chapters:
        raise ValueError(f"{source} has no line of the form 'Chapter 1: Title'")
    return title, author, chapters


def register_fonts(folder: Path) -> None:
    """Load the three font faces. If they are missing, stop with a message that has the command to install them."""
    remedy = "On Debian: sudo apt install fonts-ebgaramond-extra. Elsewhere, pass the folder that has it with --fonts."
    for name, file in FONT_FILES.items():
        try:
            pdfmetrics.registerFont(TTFont(name, str(folder / file)))
        except (TTFError, OSError):
            sys.exit(f"The font file {folder / file} cannot be read. {remedy}")


def words_of(text: str, opening_words: int) -> list[Word]:
    """Split a paragraph into words. Names of ships and periodicals are in italics, the first words of a chapter in
    small capitals.
    """
    pieces = re.split(f"({'|'.join(ITALIC_NAMES)})", text)
    fonts = [face for piece in pieces for face in ["Italic" if piece in ITALIC_NAMES else "Roman"] * len(piece)]
    words = []
    for number, match in enumerate(re.finditer(r"\S+", text)):
        face = fonts[match.start() : match.end()]
        if number < opening_words:
            face = ["SmallCaps" if f == "Roman" else f for f in face]
        pairs = groupby(zip(face, match[0], strict=True), key=lambda pair: pair[0])
        runs = tuple((font, "".join(letter for _, letter in group)) for font, group in pairs)
        words.append(Word(runs, sum(pdfmetrics.stringWidth(t, f, FONT_SIZE) for f, t in runs)))
    return words


def break_lines(words: list[Word], first_width: float, rest_width: float) -> list[tuple[int, int]]:
    """Break a paragraph into lines by total fit. Returns the (start, end) word ranges whose spaces are most even over
    the paragraph.

    The badness of a line is the cube of the difference between its spaces and the natural space, as in Knuth and Plass
    (1981). Words are not hyphenated. The last line may be short, but should not be a single short word.
    """
    space = pdfmetrics.stringWidth(" ", "Roman", FONT_SIZE)
    best: list[tuple[float, int]] = [(0.0, -1)] + [(float("inf"), -1)] * len(words)
    for start in range(len(words)):
        width = first_width if start == 0 else rest_width
        used = -space
        for end in range(start + 1, len(words) + 1):
            used += words[end - 1].width + space
            slack = (width - used) / max(end - start - 1, 1) / space
            if slack < -MAX_SHRINK:
                break
            is_last = end == len(words)
            badness = 0.0 if is_last and slack > 0 else abs(slack if slack > 0 else slack * SHRINK_COST) ** 3
            if is_last and used < width * SHORT_LINE:
                badness += SHORT_LINE_COST
            cost = best[start][0] + (1.0 + badness) ** 2
            if cost < best[end][0]:
                best[end] = (cost, start)
    ends = [len(words)]
    while best[ends[-1]][1] > 0:
        ends.append(best[ends[-1]][1])
    return list(zip([0, *ends[:0:-1]], ends[::-1], strict=True))


def set_paragraph(text: str, shape: Shape) -> list[Line]:
    """Return the lines of a paragraph. All lines are justified except the last."""
    words = words_of(text, shape.opening_words)
    natural = pdfmetrics.stringWidth(" ", "Roman", FONT_SIZE)
    lines = []
    for start, end in break_lines(words, MEASURE - shape.first_indent, MEASURE - shape.rest_indent):
        left = shape.first_indent if start == 0 else shape.rest_indent
        chosen = tuple(words[start:end])
        slack = MEASURE - left - sum(w.width for w in chosen) - natural * (len(chosen) - 1)
        is_justified = (slack < 0 or end < len(words)) and len(chosen) > 1
        lines.append(Line(left, chosen, natural + (slack / (len(chosen) - 1) if is_justified else 0.0)))
    return lines


def set_chapter(chapter: Chapter) -> Iterator[list[Line]]:
    """Set every paragraph of a chapter as a block of lines. An empty line around a list is a separate block."""
    entries = [chapter.title == LIST_CHAPTER and bool(LIST_ENTRY.match(p)) for p in chapter.paragraphs]
    for number, text in enumerate(chapter.paragraphs):
        is_heading = bool(LIST_HEADING.match(text))
        if is_heading or (entries[number - 1] and not entries[number]):
            yield [Line()]
        if entries[number]:
            yield set_paragraph(text, Shape(first_indent=0.0, rest_indent=INDENT))
        elif number == 0:
            yield set_paragraph(text, Shape(first_indent=0.0, opening_words=OPENING_WORDS))
        else:
            yield set_paragraph(text, Shape(first_indent=0.0 if is_heading else INDENT))


def break_pages(blocks: list[list[Line]], sink: int) -> list[list[Line]]:
    """Fill pages line by line. No page starts with the last line of a paragraph, or ends with the first line of one.

    If needed, a page is left a line short. An empty line never starts a page, and a heading stays with the text after
    it.
    """
    lines = [(line, index, len(block)) for block in blocks for index, line in enumerate(block)]
    pages: list[list[Line]] = []
    start, room = 0, LINES_PER_PAGE - sink
    while start < len(lines):
        while pages and not lines[start][0].words:
            start += 1
        end = min(start + room, len(lines))
        if end < len(lines):
            _, index, length = lines[end]
            widow = length > 1 and index == length - 1
            orphan = length > 1 and index == 1
            after_empty = end >= 2 and index == 0 and not lines[end - 2][0].words
            end -= (2 if length == 3 else 1) if widow else 1 if orphan else 2 if after_empty else 0
        pages.append([line for line, _, _ in lines[start:end]])
        start, room = end, LINES_PER_PAGE
    return pages


def draw_line(canvas: Canvas, line: Line, baseline: float) -> None:
    """Draw a line, with its spaces, as one text object, so that the extracted line has the same words and spaces."""
    pieces = [run for word in line.words for run in (*word.runs, ("", " "))][:-1]
    runs: list[tuple[str, str]] = []
    for font, part in pieces:
        # A space has the font of the word before it. Drawn separately, a narrow space would be lost when text is
        # extracted.
        if runs and font in ("", runs[-1][0]):
            runs[-1] = (runs[-1][0], runs[-1][1] + part)
        else:
            runs.append((font, part))
    text = canvas.beginText(MARGIN_SIDE + line.left, baseline)
    for font, part in runs:
        text.setFont(font, FONT_SIZE)
        text.setWordSpace(line.space - pdfmetrics.stringWidth(" ", font, FONT_SIZE))
        text.textOut(part)
    canvas.drawText(text)


def draw_heading(canvas: Canvas, chapter: Chapter) -> None:
    """Draw the chapter's number and title, centred, and add its entry to the outline."""
    key = f"chapter-{chapter.number}"
    canvas.bookmarkPage(key)
    canvas.addOutlineEntry(f"Chapter {chapter.number}: {chapter.title}", key, level=0)
    canvas.setFont("SmallCaps", 12)
    canvas.drawCentredString(PAGE_WIDTH / 2, FIRST_BASELINE - 2 * LEADING, f"Chapter {chapter.number}", charSpace=1.2)
    canvas.setFont("Roman", 21)
    canvas.drawCentredString(PAGE_WIDTH / 2, FIRST_BASELINE - 4 * LEADING, chapter.title)


def draw_title_page(canvas: Canvas, title: str, author: str) -> None:
    """Draw the title page, which has no page number."""
    baseline = PAGE_HEIGHT * 0.66
    canvas.setFont("Roman", 30)
    for row in simpleSplit(title, "Roman", 30, MEASURE * 0.8):
        canvas.drawCentredString(PAGE_WIDTH / 2, baseline, row)
        baseline -= 37
    canvas.setLineWidth(0.5)
    canvas.line(PAGE_WIDTH / 2 - 24, baseline + 8, PAGE_WIDTH / 2 + 24, baseline + 8)
    canvas.setFont("Italic", 14)
    canvas.drawCentredString(PAGE_WIDTH / 2, baseline - 20, author)
    canvas.showPage()


def draw_chapter(canvas: Canvas, chapter: Chapter) -> None:
    """Draw all pages of a chapter. On each page, the text is drawn first and the page number last."""
    draw_heading(canvas, chapter)
    first_row = CHAPTER_SINK_LINES
    for page in break_pages(list(set_chapter(chapter)), first_row):
        for row, line in enumerate(page, start=first_row):
            draw_line(canvas, line, FIRST_BASELINE - row * LEADING)
        canvas.setFont("Roman", 10)
        canvas.drawCentredString(PAGE_WIDTH / 2, FOLIO_BASELINE, str(canvas.getPageNumber()))
        canvas.showPage()
        first_row = 0


def make_pdf(source: Path, target: Path) -> int:
    """Write the PDF with the registered fonts and return the number of its pages."""
    title, author, chapters = read_book(source)
    rl_config.useA85 = 0  # write binary streams, which are smaller, and which version control never takes for text
    canvas = Canvas(str(target), pagesize=(PAGE_WIDTH, PAGE_HEIGHT), invariant=1, pageCompression=1, lang="en-GB")
    canvas.setTitle(title)
    canvas.setAuthor(author)
    canvas.setSubject("A story. Dedicated to the public domain (CC0 1.0)")
    draw_title_page(canvas, title, author)
    for chapter in chapters:
        draw_chapter(canvas, chapter)
    canvas.showOutline()
    canvas.save()
    return int(canvas.getPageNumber()) - 1


def main() -> None:
    """Parse the command line and set the book."""
    parser = argparse.ArgumentParser(description="Set the sample book as a PDF.")
    parser.add_argument("--fonts", type=Path, default=FONT_FOLDER, help="folder with the EB Garamond .ttf files")
    register_fonts(parser.parse_args().fonts)
    pages = make_pdf(SOURCE, target := SOURCE.with_suffix(".pdf"))
    print(f"{target.name}: {pages} pages, {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
