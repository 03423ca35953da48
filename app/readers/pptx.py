"""Reads PowerPoint presentations (PPTX): the title, texts, tables, charts, diagrams, notes and comments of each slide.

Walks the XML itself instead of using the library python-pptx, which fails on the whole file if one slide is broken,
reads neither diagrams nor what newer versions of PowerPoint wrap in alternatives, such as formulas, and loads all media
into memory. Texts are in the order that PowerPoint gives to screen readers, the title first. Runs only in the child
process (``app.readers.child``).
"""

from __future__ import annotations

import re
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from app.readers import archive, cleaning, docx_drawn, formulas, numerals, scripts, struck, symbols, tables
from app.readers.archive import attribute, local
from app.readers.collector import NAMELESS
from app.readers.left_out import told
from app.readers.lists import whole
from app.readers.office import Package, choice
from app.readers.parsed import Heading, Limits, Parsed, Section, Step
from app.readers.picture_marks import mark
from app.readers.sections import Block, labelled
from app.readers.tables import Cell, Row, Table

_MAIN = "ppt/presentation.xml"
_TITLES = ("title", "ctrTitle")
_REPEATED = ("ftr", "dt", "hdr")  # kinds of placeholders whose text is the same on every slide
_NUMBER = "sldNum"
_DEEPEST_LEVEL = 8  # maximum level of a paragraph; PowerPoint has nine levels, from 0
_DEEPEST = 30  # maximum nesting of groups; a deeper group is left out
_COUNTED = re.compile(r"(alpha|roman|arabic)(Lc|Uc)?")
_STYLES = {"alphaLc": "lowerLetter", "alphaUc": "upperLetter", "romanLc": "lowerRoman", "romanUc": "upperRoman"}
_ENDS = (("ParenBoth", "({})"), ("ParenR", "{})"), ("Period", "{}."), ("Plain", "{}"))
_COMMENT = "Comment"  # stands before each comment


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a PPTX file. Each slide with text is a section with the label "slide 3"."""
    step(0, 1, None)
    with archive.opened_whole(path, limits) as files:
        parser = _Presentation(files, comments=request.get("comments", True))
        sections, outline = parser.sections(step)
        title, author = parser.title_and_author()
    title = title or next((entry.title for entry in outline), "")
    said = parser.warnings + told(parser.left_out, (section.text for section in sections))
    return Parsed(sections, title, author, outline, said, parser.left_out)


class _Presentation(Package):
    def __init__(self, files: zipfile.ZipFile, *, comments: bool) -> None:
        super().__init__(files)
        self._with_comments = comments
        self._part = ""  # name of the part that is being read; relation ids are looked up in this part's relations
        self._repeated: set[str] = set()
        self._pictures = 0
        self._comments = 0
        self.left_out: Counter[str] = Counter()

    def sections(self, step: Step) -> tuple[list[Section], list[Heading]]:
        main = self.main(_MAIN)
        root = self.xml(main, "its list of slides")
        if root is None:
            raise KeyError(main)
        parts = self.related(main)
        shown = [node for node in root.iter() if local(node.tag) == "sldId"]
        order = [parts.get(_relation(node), ("", ""))[1] for node in shown]
        sections: list[Section] = []
        outline: list[Heading] = []
        hidden = 0
        for number, part in enumerate(order, 1):
            step(number - 1, len(order), None)
            slide = self.attempt(lambda part=part: self.xml(part, "a slide"), None)  # type: ignore[misc]
            if slide is None:
                self.warnings.append(f"Slide {number} could not be read.")
                continue
            hidden += slide.get("show") in ("0", "false")
            title, text = self._slide(slide, part)
            if title and text:
                outline.append(Heading(title, len(sections) + 1, 0))
            sections += labelled(f"slide {number}", text)
        self._tell(hidden)
        return sections, outline

    def _tell(self, hidden: int) -> None:
        if hidden:
            self.warnings.append(f"Slides that are hidden in the show are read too: {hidden:,}.")
        if self._pictures:
            self.warnings.append(f"Pictures without a description, whose words are not read: {self._pictures:,}.")
        if self._comments and not self._with_comments:
            self.warnings.append(f"Comments of reviewers were left out, as asked: {self._comments:,}.")

    def _slide(self, slide: ElementTree.Element, part: str) -> tuple[str, str]:
        """Return the title and the text of a slide with its notes and comments."""
        self._part = part
        tree = next((node for node in slide.iter() if local(node.tag) == "spTree"), slide)
        titles: list[Block] = []
        blocks: list[Block] = []
        for shape in _shapes(tree):
            kind = _placeholder(shape)
            (titles if kind in _TITLES else blocks).extend(self._shape(shape, kind))
        title = cleaning.one_line(" ".join(block.text for block in titles))
        texts = [block.text for block in (*titles, *blocks)]
        for kind, name in self.related(part).values():
            if kind == "notesSlide":
                texts.append(self.attempt(lambda name=name: self._notes(name), ""))  # type: ignore[misc]
            elif kind == "comments":
                texts += self.attempt(lambda name=name: self._said(name), [])  # type: ignore[misc]
        return title, "\n\n".join(text for text in map(cleaning.line_ends, texts) if text)

    def _notes(self, name: str) -> str:
        root = self.xml(name, "the notes of a slide")
        shapes = [shape for shape in _shapes(root) if _placeholder(shape) == "body"] if root is not None else []
        text = "\n\n".join(block.text for shape in shapes for block in self._shape(shape, ""))
        return f"Notes: {text}" if text else ""

    def _said(self, name: str) -> list[str]:
        """Return the comments of reviewers, each after ``_COMMENT``."""
        root = self.xml(name, "its comments")
        comments = []
        for node in root.iter() if root is not None else ():
            if local(node.tag) in ("cm", "reply"):
                texts = ("".join(node.itertext()) for node in node if local(node.tag) in ("text", "txBody"))
                if text := cleaning.one_line(" ".join(texts), 10_000):
                    comments.append(f"{_COMMENT}: {text}")
        self._comments += len(comments)
        return comments if self._with_comments else []

    def _shape(self, shape: ElementTree.Element, kind: str) -> Iterator[Block]:
        """Yield the text of a shape: of its text body, table, chart, diagram or description."""
        if kind == _NUMBER:
            return
        name = local(shape.tag)
        if name == "pic":
            yield from self._picture(shape)
        for node in shape:
            tag = local(node.tag)
            if tag == "txBody":
                text = self._text(node)
                if kind in _REPEATED and text:
                    if text in self._repeated:
                        self.left_out["headers"] += sum(map(len, text.split()))
                        continue
                    self._repeated.add(text)
                if text:
                    yield Block(text)
            elif tag == "graphic":
                yield from self._graphic(node)

    def _picture(self, shape: ElementTree.Element) -> Iterator[Block]:
        properties = next((node for node in shape.iter() if local(node.tag) == "cNvPr"), None)
        words = " ".join(properties.get("descr", "").split()) if properties is not None else ""
        words = cleaning.characters(words.removesuffix("Description automatically generated").strip())
        blips = (attribute(node, "embed") for node in shape.iter() if local(node.tag) == "blip")
        key = self.names.find(self.related(self._part).get(next(blips, ""), ("", ""))[1])
        if words and not NAMELESS.match(words):
            yield Block(f"[Image: {words}]")
        elif not key:
            self._pictures += 1
        if key:
            yield Block(mark(key))

    def _graphic(self, graphic: ElementTree.Element) -> Iterator[Block]:
        for node in graphic.iter():
            tag = local(node.tag)
            if tag == "tbl":
                yield from tables.as_blocks(self._table(node))
            elif tag in ("chart", "relIds"):
                identity = attribute(node, "dm" if tag == "relIds" else "id")
                name = self.related(self._part).get(identity, ("", ""))[1]
                root = self.attempt(lambda name=name: self.xml(name, "a drawing"), None)  # type: ignore[misc]
                if root is not None:
                    yield from docx_drawn.chart(root) if tag == "chart" else docx_drawn.diagram(root)

    def _table(self, node: ElementTree.Element) -> Table:
        properties = next((part for part in node if local(part.tag) == "tblPr"), None)
        headed = properties is not None and properties.get("firstRow") in ("1", "true")
        table = Table()
        for at, row in enumerate(part for part in node if local(part.tag) == "tr"):
            cells: list[Cell] = []
            for cell in row:
                if local(cell.tag) != "tc" or cell.get("hMerge") or cell.get("vMerge"):
                    continue
                text = "\n".join(self._text(body) for body in cell if local(body.tag) == "txBody")
                span = whole(cell.get("gridSpan")) or 1, whole(cell.get("rowSpan")) or 1
                cells.append(Cell([Block(text)] if text else [], *span))
            table.rows.append(Row(cells, header=headed and at == 0))
        return table

    def _text(self, body: ElementTree.Element) -> str:
        """Return the paragraphs of a text body as lines. Paragraphs with numbers or bullets are indented by level."""
        lines: list[str] = []
        counts: dict[int, int] = {}
        for paragraph in body:
            if local(paragraph.tag) != "p":
                continue
            text = _indented(struck.spelled("".join(_runs(paragraph))))
            properties = next((node for node in paragraph if local(node.tag) == "pPr"), None)
            level = min(whole(attribute(properties, "lvl")) or 0, _DEEPEST_LEVEL) if properties is not None else 0
            counts = {deep: count for deep, count in counts.items() if deep <= level}
            mark = _mark(properties, level, counts) if text else ""
            if text:
                lines.append("  " * level + mark + text)
        return "\n".join(lines).strip("\n")


def _relation(node: ElementTree.Element) -> str:
    """Return the relation id of a slide's entry, which also has a number called id."""
    return next((value for key, value in node.attrib.items() if key.endswith("}id")), "")


def _shapes(tree: ElementTree.Element) -> Iterator[ElementTree.Element]:
    """Yield the shapes of a slide in order, including those in groups."""
    stack = [(node, 0) for node in reversed(tree)]
    while stack:
        node, depth = stack.pop()
        tag = local(node.tag)
        if tag in ("sp", "pic", "graphicFrame", "cxnSp"):
            if not any(local(part.tag) == "cNvPr" and part.get("hidden") in ("1", "true") for part in node.iter()):
                yield node
        elif depth < _DEEPEST:
            inner = choice(node) if tag == "AlternateContent" else node if tag in ("grpSp", "spTree", "cSld") else ()
            stack.extend((part, depth + 1) for part in reversed(list(inner)))


def _placeholder(shape: ElementTree.Element) -> str:
    """Return the kind of a placeholder, such as "title"; "" for another shape."""
    found = next((node for node in shape.iter() if local(node.tag) == "ph"), None)
    return found.get("type", "body") if found is not None else ""


def _mark(properties: ElementTree.Element | None, level: int, counts: dict[int, int]) -> str:
    """Return the number or bullet that a paragraph states for itself. ``counts`` has the last number of each level."""
    for node in properties if properties is not None else ():
        tag = local(node.tag)
        if tag == "buAutoNum":
            counts[level] = counts[level] + 1 if level in counts else whole(node.get("startAt")) or 1
            kind = node.get("type", "")
            style = _STYLES.get("".join(match.groups("")) if (match := _COUNTED.match(kind)) else "", "decimal")
            form = next((form for end, form in _ENDS if kind.endswith(end)), "{}.")
            return f"{form.format(numerals.written(counts[level], style))} "
        if tag in ("buChar", "buBlip"):
            counts.pop(level, None)
            return "• "
        if tag == "buNone":
            counts.pop(level, None)
            return ""
    counts.pop(level, None)
    return "• " if level else ""


def _runs(paragraph: ElementTree.Element) -> Iterator[str]:
    """Yield the text of a paragraph: runs, fields, line breaks and formulas."""
    before = ""
    stack = [*reversed(paragraph)]
    while stack:
        node = stack.pop()
        tag = local(node.tag)
        text = ""
        if tag in ("r", "fld"):
            text = _run(node, before)
        elif tag == "br":
            text = "\n"
        elif tag in ("oMath", "oMathPara"):
            text = formulas.linear(node)
        elif tag == "AlternateContent":
            stack.extend(reversed(choice(node)))
        elif tag == "m":
            stack.extend(reversed(node))
        before = (before + text)[-200:]
        yield text


def _indented(text: str) -> str:
    """Clean a paragraph. Lines of program text keep the blanks with which they begin."""
    lines = text.replace("\u00a0", " ").split("\n")
    if not any(line.startswith("  ") for line in lines):
        return cleaning.paragraph(text)
    cleaned = [" " * (len(line) - len(line.lstrip(" "))) + cleaning.paragraph(line) for line in lines]
    return "\n".join(cleaned).strip("\n") if text.strip() else ""


def _run(node: ElementTree.Element, before: str) -> str:
    look = next((part for part in node if local(part.tag) == "rPr"), None)
    text = "".join(part.text or "" for part in node if local(part.tag) == "t")
    if look is None or not text:
        return text
    fonts = {local(part.tag): part.get("typeface", "") for part in look}
    font = fonts.get("sym") or fonts.get("latin", "")
    if symbols.is_symbolic(font):
        text = symbols.spelled(text, font)
    offset = whole(look.get("baseline")) or 0
    if offset:
        text = scripts.raised(before, text) if offset > 0 else scripts.lowered(before, text)
    if look.get("strike", "noStrike") != "noStrike":
        text = f"{struck.ON}{text}{struck.OFF}"
    return text
