"""Walks over the text of a Word file: paragraphs, tables, fields, references to notes, formulas, text boxes.

Reads the text that Word shows, in order. Counts the characters of hidden and deleted text. Runs only in the child
process (``app.readers.child``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from xml.etree import ElementTree

from app.readers import cleaning, formulas, scripts, struck, symbols, tables
from app.readers.archive import attribute, local
from app.readers.collector import NAMELESS
from app.readers.docx_numbers import Numbering
from app.readers.docx_styles import RAISED, SUNK, DocxStyles, Look, Numbered, Style, heading, look, numbered, over
from app.readers.lines import MONOSPACED
from app.readers.office import choice
from app.readers.picture_marks import mark
from app.readers.sections import Block
from app.readers.tables import Cell, Row, Table

MARK = "note-mark"
"""Tag of an element whose text is a note's number. Such elements replace the references to notes before the document
tree is walked.
"""

_SIGNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-", "softHyphen": ""}
_LEFT_OUT = frozenset(
    ("del", "moveFrom", "pPr", "rPr", "instrText", "delInstrText", "delText", "sdtPr", "sectPr", "tblPr", "tblGrid")
)
_HIDDEN, _DELETED = "hidden", "deleted"
_TICKED, _OPEN = "☒", "☐"
_NO = ("0", "false", "off")
_PAGE_FIELDS = ("PAGE", "NUMPAGES", "SECTIONPAGES")
# maximum characters of vertically offset text that counts as a superscript or subscript
_LONGEST_SCRIPT = 4
_LONGEST_NUMBER = 8  # maximum characters of a page number; a longer result of a page field is read as text
_ICON = 540_000  # maximum sides of an icon in 914,400ths of an inch: 1.5 cm
_ALIVE = 500  # paragraphs between two progress reports
# Maximum nesting of text boxes; a deeper box is read as one block. Also the maximum nesting of fractions and roots in
# an EQ field.
_DEEPEST = 12
_LONGEST_ANCHOR = 120  # maximum characters of the passage that a comment refers to; a longer passage is cut
_PRIVATE = re.compile("[\ue000-\uf8ff]")
# Number of parts of a line with one tab. A line with more parts may be a row of a table by itself. Lines with two parts
# are rows only if at least three such lines are consecutive.
_COLUMNS = 2
_FRACTION = re.compile(r"\\f\s*\(([^(),;]*)[,;]([^(),;]*)\)", re.I)
_ROOT = re.compile(r"\\r\s*\((?:[^(),;]*[,;])?([^(),;]*)\)", re.I)
_OPTION = re.compile(r"\\[a-z]+(?:\s*\d+)?", re.I)
_ENUMERATED = re.compile(r"\(?\w{1,4}(?:\.\w{1,4}){0,4}[.)]?$|\W+$")
_INDENTATION = 4  # spaces that replace a tab in program text
# a text of at least this many characters after a line's only tab is no table cell
_LONGEST_ENTRY = 60
_AUTOMATIC = re.compile(r"\s*(?:Description automatically generated|AI-generated content may be).*$", re.I)
_CODE_STYLE = re.compile(r"code|preformatted|verbatim|listing", re.I)
_SYMBOL = re.compile(r"SYMBOL\s+(0x[0-9a-f]{1,4}|\d{1,5})(?:.*?\\f\s*\"?([^\"\\]+))?", re.I)


@dataclass
class _Field:
    """A Word field whose end has not been reached. ``code`` is its instruction, such as "PAGE"; ``in_result`` tells
    whether its result has begun.
    """

    code: str = ""
    in_result: bool = False
    settings: ElementTree.Element | None = None
    has_text: bool = False


@dataclass(slots=True)
class _Run:
    """Text in one script: "superscript", "subscript" or "" (on the line). ``struck``: whether a line strikes it out."""

    text: str
    script: str = ""
    struck: bool = False


@dataclass(slots=True)
class _About:
    """Properties that a paragraph states itself. ``heading``: heading level, 0 for text, None if the style decides."""

    style: str = ""
    heading: int | None = None
    numbered: Numbered = field(default_factory=Numbered)
    is_initial: bool = False
    ends_deleted: bool = False


_NOTHING = _About()


@dataclass
class Surroundings:
    """Gives ``DocxParser`` access to the other parts of the file.

    ``progress`` is called to report progress. ``drawn`` returns the text of a diagram or a chart by relation id.
    ``inserted`` returns the blocks of an embedded document by relation id, ``picture`` the name of a picture's part, or
    "" if the file lacks it.
    """

    styles: DocxStyles = field(default_factory=DocxStyles)
    numbering: Numbering = field(default_factory=Numbering)
    drawn: Callable[[str], list[Block]] = lambda identity: []
    inserted: Callable[[str], list[Block]] = lambda identity: []
    picture: Callable[[str], str] = lambda identity: ""
    progress: Callable[[], None] = lambda: None


class DocxParser:
    """Reads the parts of a Word file, one call of ``blocks`` each. Counters and open comments are kept from part to
    part.
    """

    def __init__(self, surroundings: Surroundings) -> None:
        self._around = surroundings
        self.left_out: Counter[str] = Counter()
        self.objects: Counter[str] = Counter()  # number of embedded objects, keyed by program
        self.anchors: dict[str, str] = {}  # passages that comments refer to, keyed by comment id
        self.pictures = 0  # number of pictures without a description
        # whether page numbers are skipped, because the text is that of a header or footer, where each page has its own
        self.in_header = False
        # whether a page number was skipped; the caller sets it to False before each header or footer
        self.page_fields = False
        self._open_comments: set[str] = set()
        self._fields: list[_Field] = []
        self._runs: list[_Run] = []
        # text boxes and drawings of the current paragraph, which are put after the paragraph
        self._boxes: list[Block] = []
        self._held = ""  # text that the next paragraph continues: a drop cap, or a paragraph whose end mark is deleted
        self._monospaced = False  # whether all text of the paragraph so far is monospaced
        self._depth = 0
        self._in_table = 0
        self._paragraphs = 0

    def blocks(self, root: ElementTree.Element) -> list[Block]:
        """Return the paragraphs and tables of a part, in order."""
        self._fields.clear()
        blocks: list[Block] = []
        for part in self._content(root):
            if isinstance(part, Table):
                blocks += tables.as_blocks(part)
            else:
                blocks.append(part)
        if self._held:
            blocks.append(Block(_cleaned(self._held)))
            self._held = ""
        return _columns(blocks)

    # Blocks

    def _content(self, node: ElementTree.Element) -> Iterator[Block | Table]:
        for part in self._parts(node):
            tag = local(part.tag)
            if tag == "tbl":
                yield self._table(part)
            elif tag == "altChunk":
                yield from self._around.inserted(attribute(part, "id"))
            elif tag == "p":
                yield from self._paragraph(part)
            else:
                yield from self._loose(part)

    def _parts(self, node: ElementTree.Element) -> Iterator[ElementTree.Element]:
        """Yield paragraphs, tables and the elements between them, including those inside wrapper elements."""
        stack = [*reversed(node)]
        while stack:
            current = stack.pop()
            tag = local(current.tag)
            if tag in ("p", "tbl", "altChunk", "oMathPara", "oMath", "r"):
                yield current
            elif tag == "AlternateContent":
                stack.extend(reversed(choice(current)))
            elif tag in ("commentRangeStart", "commentRangeEnd"):
                self._comment_range(tag, attribute(current, "id"))
            elif tag in ("del", "moveFrom"):
                self._count_deleted(current)
            elif tag not in _LEFT_OUT:
                stack.extend(reversed(current))

    def _loose(self, node: ElementTree.Element) -> Iterator[Block]:
        """Read a formula or a run outside of any paragraph."""
        self._inline([node], Look())
        text = _cleaned(self._take())
        if text:
            yield Block(text)

    def _paragraph(self, node: ElementTree.Element) -> Iterator[Block]:
        self._paragraphs += 1
        if self._paragraphs % _ALIVE == 0:
            self._around.progress()
        for at, around in enumerate(self._fields):
            if not around.in_result:
                del self._fields[at:]  # the field was never closed, so its end is assumed here
                break
        about = _about(node)
        style = self._around.styles.of(about.style)
        runs, self._runs = self._runs, []
        boxes, self._boxes = self._boxes, []
        self._monospaced = False
        self._inline(node, style.look)
        text = self._held + self._take()
        self._held = ""
        drawn, self._runs, self._boxes = self._boxes, runs, boxes
        if about.is_initial:
            self._held = text.strip()
        elif about.ends_deleted:
            self._held = text
        else:
            level = (style.heading if about.heading is None else about.heading) or 0
            label, indent = self._label(about, style)
            if text and (self._monospaced or _CODE_STYLE.search(about.style)):
                text = cleaning.line_ends(cleaning.characters(text.replace("\t", " " * _INDENTATION)))
            elif text:
                text = _cleaned(text.replace("\t", " ") if style.is_contents else text)
            if text:
                if label and not text.startswith(label):
                    text = f"{label} {text}"
                yield Block(" ".join(text.split()) if level else indent + text, level)
        yield from drawn

    def _label(self, about: _About, style: Style) -> tuple[str, str]:
        """Count a paragraph in its list. Return the number in front of the paragraph, and its indentation; "" if it is
        in no list.
        """
        number = style.numbered.number if about.numbered.number is None else about.numbered.number
        if number is None or number == "0":
            return "", ""
        level = about.numbered.level
        if level is None:
            level = self._around.numbering.level_of(number, about.style)
        if level is None:
            level = style.numbered.level or 0
        return self._around.numbering.count(number, level), self._around.numbering.indent(number, level, style.inset)

    # Tables

    def _table(self, node: ElementTree.Element) -> Table:
        table = Table()
        self._in_table += 1
        open_cells: dict[int, Cell] = {}
        for row_node in _within(node, "tr"):
            row = Row()
            settings = next((part for part in row_node if local(part.tag) == "trPr"), None)
            for setting in settings if settings is not None else ():
                tag = local(setting.tag)
                if tag == "tblHeader":
                    row.header = attribute(setting, "val") not in _NO
                elif tag == "gridBefore":
                    row.skipped = _whole(attribute(setting, "val"), 0)
            column = row.skipped
            for cell_node in _within(row_node, "tc"):
                cell, goes_on = self._cell(cell_node)
                if goes_on and not cell.content:
                    above = open_cells.get(column)
                    cell.columns = above.columns if above is not None and cell.columns == 1 else cell.columns
                open_cells[column] = cell
                column += cell.columns
                row.cells.append(cell)
            table.rows.append(row)
        self._in_table -= 1
        return table

    def _cell(self, node: ElementTree.Element) -> tuple[Cell, bool]:
        """Read a table cell. Return the cell, and whether it continues a merged cell above or before it."""
        cell, goes_on = Cell(), False
        has_settings = len(node) > 0 and local(node[0].tag) == "tcPr"
        for setting in node[0] if has_settings else ():
            tag = local(setting.tag)
            if tag == "gridSpan":
                cell.columns = max(_whole(attribute(setting, "val"), 1), 1)
            elif tag in ("vMerge", "hMerge"):
                goes_on = attribute(setting, "val") != "restart"
        parts = node[1:] if has_settings else node[:]
        if len(parts) == 1 and local(parts[0].tag) == "p":  # fast path: most cells have a single paragraph
            cell.content = list(self._paragraph(parts[0]))
        elif self._in_table < tables.DEEPEST:
            cell.content = list(self._content(node))
        else:
            cell.content = [block for part in node.iter() if local(part.tag) == "p" for block in self._paragraph(part)]
        for part in cell.content:
            if isinstance(part, Block) and "\t" in part.text:
                part.text = part.text.replace("\t", " ")
        return cell, goes_on

    # Text within a paragraph

    def _inline(self, nodes: ElementTree.Element | list[ElementTree.Element], base: Look) -> None:
        stack = [*reversed(nodes)]
        while stack:
            current = stack.pop()
            tag = local(current.tag)
            if tag == "r":
                self._run(current, base)
            elif tag in ("oMath", "oMathPara"):
                self._formula(current)
            elif tag == "AlternateContent":
                stack.extend(reversed(choice(current)))
            elif tag in ("commentRangeStart", "commentRangeEnd"):
                self._comment_range(tag, attribute(current, "id"))
            elif tag == "fldSimple" and self.in_header and _name_of(attribute(current, "instr")) in _PAGE_FIELDS:
                self.page_fields = True
            elif tag in ("del", "moveFrom"):
                self._count_deleted(current)
            elif tag == "ruby":
                self._ruby(current, base)
            elif tag == "p":  # a paragraph inside a paragraph is invalid but occurs
                self._add("\n")
                stack.extend(reversed(current))
            elif tag == "t":
                self._add(current.text or "")
            elif tag not in _LEFT_OUT:
                stack.extend(reversed(current))

    def _run(self, node: ElementTree.Element, base: Look) -> None:
        properties = node[0] if len(node) and local(node[0].tag) == "rPr" else None
        own = self._look_of(properties, base)
        script = own.script if own.script in ("superscript", "subscript") else ""
        if own.script in (RAISED, SUNK) and len("".join(node.itertext()).strip()) <= _LONGEST_SCRIPT:
            script = "superscript" if own.script == RAISED else "subscript"
        # fast path: most runs have a single text
        if len(node) == 1 + (properties is not None) and local(node[-1].tag) == "t":
            self._text(node[-1].text or "", own, script)
            return
        stack = [*reversed(node)]
        while stack:
            current = stack.pop()
            tag = local(current.tag)
            if tag == "t":
                self._text(current.text or "", own, script)
            elif tag in _SIGNS:
                self._add(_SIGNS[tag])
            elif tag == MARK:
                self._add(f"[{current.text}]" if current.text else "")
            elif tag == "sym":
                self._text(_sign(current), Look(own.hidden, struck=own.struck), script)
            elif tag == "fldChar":
                self._field(current)
            elif tag == "instrText":
                if self._fields and not self._fields[-1].in_result:
                    self._fields[-1].code += current.text or ""
            elif tag == "delText":
                self.left_out[_DELETED] += _size(current.text or "")
            elif tag == "AlternateContent":
                stack.extend(reversed(choice(current)))
            elif tag in ("drawing", "pict", "object"):
                if not own.hidden:
                    self._drawing(current)
            elif tag == "ruby":
                self._ruby(current, own)
            elif tag not in _LEFT_OUT:
                stack.extend(reversed(current))

    def _look_of(self, properties: ElementTree.Element | None, base: Look) -> Look:
        """Combine the character properties of the paragraph (``base``), of the run's character style, and of the run
        itself (``properties``). The run's own properties override the style's, and these override the paragraph's.
        """
        if properties is None or not len(properties):
            return base
        character = _value(properties, "rStyle")
        styled = over(base, self._around.styles.of(character).look) if character else base
        return over(styled, look(properties))

    def _text(self, text: str, look: Look, script: str) -> None:
        if look.hidden:
            self.left_out[_HIDDEN] += _size(text)
            return
        if len(self._fields) > 1 and any(not around.in_result for around in self._fields[:-1]):
            # the text is the result of a field inside another field's code, so Word does not show it
            self.left_out["codes"] += _size(text)
            return
        is_number = self.in_header and self._fields and _name_of(self._fields[-1].code) in _PAGE_FIELDS
        if is_number and len(text) <= _LONGEST_NUMBER:
            self.page_fields = True
            return
        if self._fields and text.strip():
            self._fields[-1].has_text = True
        if text.strip():
            first = not any(run.text.strip() for run in self._runs)
            self._monospaced = (first or self._monospaced) and bool(look.font and MONOSPACED.search(look.font))
        if look.font and symbols.is_symbolic(look.font):
            text = symbols.spelled(text, look.font)
        elif not text.isascii() and _PRIVATE.search(text):
            self.left_out["signs"] += len(_PRIVATE.findall(text))
        self._add(text, script, is_struck=bool(look.struck))

    def _add(self, text: str, script: str = "", *, is_struck: bool = False) -> None:
        last = self._runs[-1] if self._runs else None
        if last is not None and last.script == script and last.struck == is_struck:
            last.text += text
        else:
            self._runs.append(_Run(text, script, is_struck))
        for comment in self._open_comments:
            if len(self.anchors[comment]) < _LONGEST_ANCHOR:
                self.anchors[comment] += text

    def _take(self) -> str:
        """Return the text of the runs so far, and clear the runs. Superscripts and subscripts are written in the line,
        such as 10^6. Struck words are written as ~~words~~.
        """
        if len(self._runs) == 1 and not self._runs[0].script and not self._runs[0].struck:
            return self._runs.pop().text
        text = ""
        for is_struck, runs in groupby(self._runs, key=lambda run: run.struck):
            joined = _joined(text, runs)
            if is_struck and joined.startswith(text):  # a subscript may have rewritten the text before it
                joined = text + struck.marked(joined[len(text) :])
            text = joined
        self._runs.clear()
        return text

    def _formula(self, node: ElementTree.Element) -> None:
        text = formulas.linear(node)
        before = self._runs[-1].text if self._runs else ""
        if text and before[-1:].isalnum() and text[0].isalnum():
            text = f" {text}"
        self._runs.append(_Run(text))  # a separate run, so that the next text is not appended to it
        if self._open_comments:
            for comment in self._open_comments:
                self.anchors[comment] += text

    def _ruby(self, node: ElementTree.Element, base: Look) -> None:
        """Write a word with ruby text: the word, then in parentheses its reading, which Word shows above the word."""
        for name, form in (("rubyBase", "{}"), ("rt", "({})")):
            runs, self._runs = self._runs, []
            part = next((part for part in node if local(part.tag) == name), None)
            if part is not None:
                self._inline(part, Look(base.hidden, font=base.font))
            text, self._runs = self._take(), runs
            if text.strip():
                self._add(form.format(text))

    # Fields

    def _field(self, node: ElementTree.Element) -> None:
        kind = attribute(node, "fldCharType")
        if kind == "begin":
            settings = next((part for part in node if local(part.tag) == "ffData"), None)
            self._fields.append(_Field(settings=settings))
        elif kind == "separate" and self._fields:
            self._fields[-1].in_result = True
        elif kind == "end" and self._fields:
            ended = self._fields.pop()
            listed = _name_of(ended.code) == "LISTNUM" and not ended.has_text
            shown = self._around.numbering.listnum(ended.code) if listed else _shown(ended)
            if shown:
                self._add(shown)

    # Text boxes, drawings, objects

    def _drawing(self, node: ElementTree.Element) -> None:
        if self._depth >= _DEEPEST:
            words = _cleaned("".join(part.text or "" for part in node.iter() if local(part.tag) == "t"))
            self._boxes += [Block(words)] if words else []
            return
        self._depth += 1
        stack = [*reversed(node)]
        while stack:
            current = stack.pop()
            tag = local(current.tag)
            if tag == "txbxContent":
                self._box(current)
            elif tag == "AlternateContent":
                stack.extend(reversed(choice(current)))
            elif tag == "relIds":
                self._boxes += self._around.drawn(attribute(current, "dm"))
            elif tag == "chart":
                self._boxes += self._around.drawn(attribute(current, "id"))
            elif tag == "OLEObject":
                self.objects[attribute(current, "ProgID") or "an unnamed program"] += 1
            elif tag == "textpath":
                if words := attribute(current, "string").strip():
                    self._boxes.append(Block(_cleaned(words)))
            elif tag == "docPr":
                alt = " ".join((attribute(current, "descr")).split())
                if alt and formulas.looks_like(alt) and len(alt) < _LONGEST_ANCHOR and "." not in alt[-5:]:
                    self._add(formulas.tex(alt))
                elif any(local(part.tag) == "pic" for part in node.iter()):
                    blips = (attribute(part, "embed") for part in node.iter() if local(part.tag) == "blip")
                    self._picture(alt, next(blips, ""), small=_is_small(node))
            elif tag == "shape" and any(local(part.tag) == "imagedata" for part in current):
                held = next(attribute(part, "id") for part in current if local(part.tag) == "imagedata")
                self._picture(" ".join(attribute(current, "alt").split()), held)
            elif tag == "t":  # the text of a locked drawing
                if words := _cleaned(current.text or ""):
                    self._boxes.append(Block(words))
            else:
                stack.extend(reversed(current))
        self._depth -= 1

    def _picture(self, alt: str, identity: str, *, small: bool = False) -> None:
        """Add a picture's description, and mark the picture's place after the paragraph. Ignore file names and Word's
        generated descriptions. A picture without a description that the file lacks is counted. A picture as small as an
        icon is ignored.
        """
        key = self._around.picture(identity) if identity and not small else ""
        if key:
            self._boxes.append(Block(mark(key)))
        words = _AUTOMATIC.sub("", alt).strip()
        if words and not NAMELESS.match(words):
            self._add(f"[Image: {words}]")
        elif not small and not key:
            self.pictures += 1

    def _box(self, node: ElementTree.Element) -> None:
        runs, self._runs = self._runs, []
        held, self._held = self._held, ""
        boxes, self._boxes = self._boxes, []
        fields, self._fields = self._fields, []
        blocks = self.blocks(node)
        self._runs, self._held, self._boxes, self._fields = runs, held, boxes, fields
        self._boxes += blocks

    # Comments and deletions

    def _comment_range(self, tag: str, identity: str) -> None:
        if tag == "commentRangeStart":
            self._open_comments.add(identity)
            self.anchors.setdefault(identity, "")
        else:
            self._open_comments.discard(identity)

    def _count_deleted(self, node: ElementTree.Element) -> None:
        if local(node.tag) == "del":  # text of "moveFrom" is not counted, because it is read at its new place
            texts = (part.text or "" for part in node.iter() if local(part.tag) in ("delText", "t"))
            self.left_out[_DELETED] += sum(map(_size, texts))


def _is_small(node: ElementTree.Element) -> bool:
    """Whether a drawing is as small as an icon."""
    sizes = (part for part in node.iter() if local(part.tag) == "extent")
    sides = [attribute(one, side) for one in sizes for side in ("cx", "cy")]
    return any(sides) and all(side.isdigit() and int(side[:12]) < _ICON for side in sides)


def _joined(text: str, runs: Iterable[_Run]) -> str:
    """Append runs to a text. Superscripts and subscripts are written in the line."""
    for run in runs:
        if run.script == "superscript":
            text += scripts.raised(text, run.text)
        elif run.script == "subscript":
            text = scripts.over_a_line(text)
            text += scripts.lowered(text, run.text)
        else:
            text += f" {run.text}" if scripts.fuses(text, run.text) else run.text
    return text


def _value(properties: ElementTree.Element | None, name: str) -> str:
    if properties is None:
        return ""
    return next((attribute(part, "val") for part in properties if local(part.tag) == name), "")


def _within(node: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    """Yield the rows of a table or the cells of a row, including those inside wrapper elements."""
    stack = [*reversed(node)]
    while stack:
        current = stack.pop()
        tag = local(current.tag)
        if tag == name:
            yield current
        elif tag in ("sdt", "sdtContent", "customXml", "ins", "moveTo", "smartTag"):
            stack.extend(reversed(current))


def _about(node: ElementTree.Element) -> _About:
    """Read a paragraph's own properties. If its end mark is deleted (``ends_deleted``), the next paragraph continues
    it.
    """
    if not len(node) or local(node[0].tag) != "pPr":
        return _NOTHING
    properties, about = node[0], _About()
    for part in properties:
        tag = local(part.tag)
        if tag == "pStyle":
            about.style = attribute(part, "val")
        elif tag == "numPr":
            about.numbered = numbered(properties)
        elif tag == "outlineLvl":
            about.heading = heading(properties, None)
        elif tag == "framePr":
            about.is_initial = attribute(part, "dropCap") in ("drop", "margin")
        elif tag == "rPr":
            about.ends_deleted = any(local(mark.tag) in ("del", "moveFrom") for mark in part)
    return about


def _sign(node: ElementTree.Element) -> str:
    code = attribute(node, "char")
    return symbols.sign(attribute(node, "font"), int(code, 16)) if re.fullmatch(r"[0-9A-Fa-f]{1,5}", code) else ""


def _shown(ended: _Field) -> str:
    """Return what Word shows for a field: a ticked or empty box for a checkbox; if the file has no text for the field,
    the chosen entry of a drop-down list, the equation of an EQ field or the symbol of a SYMBOL field; otherwise "".
    """
    for part in ended.settings if ended.settings is not None else ():
        tag = local(part.tag)
        if tag == "checkBox":
            state = {local(setting.tag): attribute(setting, "val") not in _NO for setting in part}
            return _TICKED if state.get("checked", state.get("default", False)) else _OPEN
        if tag == "ddList" and not ended.has_text:
            return _chosen(part)
    name = _name_of(ended.code)
    if name == "EQ" and not ended.has_text:
        return _equation(ended.code)
    if name == "SYMBOL" and not ended.has_text and (match := _SYMBOL.search(ended.code)):
        return symbols.sign((match[2] or "").strip(), int(match[1], 0))
    return ""


def _chosen(node: ElementTree.Element) -> str:
    """Return the chosen entry of a drop-down list."""
    entries = [attribute(part, "val") for part in node if local(part.tag) == "listEntry"]
    places = {local(part.tag): _whole(attribute(part, "val"), 0) for part in node}
    chosen = places.get("result", places.get("default", 0))
    return entries[chosen] if 0 <= chosen < len(entries) else ""


def _equation(code: str) -> str:
    """Read an EQ field, the formula of older versions of Word: ``{EQ \\f(1;4)}`` becomes "1/4"."""
    text = code.strip()[2:]
    for _ in range(_DEEPEST):
        again = _FRACTION.sub(lambda found: f"{_grouped(found[1])}/{_grouped(found[2])}", text)
        again = _ROOT.sub(lambda found: f"√{_grouped(found[1])}", again)
        if again == text:
            break
        text = again
    return _OPTION.sub("", text).strip()


def _grouped(text: str) -> str:
    text = text.strip()
    return text if text.isalnum() else f"({text})"


def _name_of(code: str) -> str:
    return code.split(None, 1)[0].upper() if code.strip() else ""


def _whole(text: str, default: int) -> int:
    return int(text) if re.fullmatch(r"\d{1,6}", text) else default


def _size(text: str) -> int:
    return sum(len(word) for word in text.split())


def _cleaned(text: str) -> str:
    """Clean the text between tabs. The tabs stay until ``_columns`` decides whether they separate columns."""
    if "\t" not in text:
        return cleaning.paragraph(text)
    return "\t".join(map(cleaning.paragraph, text.split("\t")))


def _columns(blocks: list[Block]) -> list[Block]:
    """Replace the tabs of blocks by spaces or cell separators. Consecutive blocks with equally many tabs become one
    table if the tabs separate columns.
    """
    result: list[Block] = []
    start = 0
    while start < len(blocks):
        end = start + 1
        tabs = blocks[start].text.count("\t")
        if tabs:
            while end < len(blocks) and blocks[end].text.count("\t") == tabs and not blocks[end].level:
                end += 1
            rows = [block.text.split("\t") for block in blocks[start:end]]
            if end - start > 1 and not blocks[start].level and _are_columns(rows):
                result.append(Block("\n".join(" | ".join(row).replace("  ", " ").strip() for row in rows)))
                start = end
                continue
            for block in blocks[start:end]:
                parts = [part for part in block.text.split("\t") if part]
                block.text = (" | " if len(parts) > _COLUMNS and not block.level else " ").join(parts)
        result += blocks[start:end]
        start = end
    return result


def _are_columns(rows: list[list[str]]) -> bool:
    """Whether the tabs of these lines separate columns.

    Two or more tabs per line separate columns if at least two lines have text before the last column. A single tab per
    line may also follow a list number or a name. It separates columns only in three or more lines, if the text after
    the tab is short.
    """
    if any("\n" in part for row in rows for part in row):
        return False
    if len(rows[0]) > _COLUMNS:
        return sum(any(row[1:-1]) or bool(row[0]) for row in rows) > 1
    return len(rows) > _COLUMNS and all(
        row[0] and row[1] and len(row[1]) < _LONGEST_ENTRY and not _ENUMERATED.match(row[0]) for row in rows
    )
