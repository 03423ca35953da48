"""Reads OpenDocument files (ODT, ODP, ODS, and the flat form of each, which is one XML file): texts by their headings,
presentations by slides, workbooks by sheets.

The cells of a workbook are read as they are shown, which the file holds as text. Runs only in the child process
(``app.readers.child``).
"""

from __future__ import annotations

import io
import posixpath
import re
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from app.readers import archive, cleaning, numerals, picture_marks
from app.readers.archive import attribute, local
from app.readers.collector import NAMELESS
from app.readers.left_out import is_page_number, told
from app.readers.lists import whole
from app.readers.office import Package
from app.readers.parsed import Heading, Limits, Opening, Parsed, Refused, Section, Step
from app.readers.sections import INDENTED, Block, Chapter, by_headings, finish, labelled, split_levels, with_listings
from app.readers.spreadsheet import MOST_COLUMNS, Sheet, Workbook
from app.readers.xml_events import Tags, Teller

_CONTENT, _STYLES, _META, _MANIFEST = "content.xml", "styles.xml", "meta.xml", "META-INF/manifest.xml"
_BODIES = ("text", "presentation", "spreadsheet")  # names of the elements with the content
_LEFT_OUT = frozenset(
    re.findall(
        r"\S+",
        "tracked-changes change change-start change-end forms sequence-decls variable-decls user-field-decls script"
        " page-thumbnail event-listeners settings notes animations shapes par soft-page-break title desc binary-data"
        " index-title-template table-of-content-source alphabetical-index-source bibliography-source"
        " illustration-index-source user-index-source object-index-source",
    )
)
_PLAIN: dict[str, Tags] = {
    "p": (("p", {}),),
    "list": (("ul", {}),),
    "table": (("table", {}),),
    "table-header-rows": (("thead", {}),),
    "table-row": (("tr", {}),),
    "line-break": (("br", {}),),
    "ruby": (("ruby", {}),),
    "ruby-text": (("rt", {}),),
    "text-box": (("div", {}),),
    "custom-shape": (("div", {}),),
    "rect": (("div", {}),),
}
_DEEPEST_LEVEL = 6  # deepest level of a heading in HTML
_DEEPEST_STYLE = 20  # maximum styles from which a style inherits
_MOST_REPEATED = 1_000  # maximum rows or cells with content that a file repeats; a larger number is an attack
_MOST_INNER = 1_000  # maximum formulas and charts in files of their own
_NOT_SHOWN = ("collapse", "filter")
_REPEATED = ("page-number", "header", "footer", "date-time")  # classes of the frames that stand on every page of notes
_FLAT = "application/vnd.oasis.opendocument."  # begins the type of a flat file
_MOST_MARKUP = 5  # maximum bytes of a flat file with its pictures, as a multiple of the maximum characters of a book
_DATA = re.compile(rb"<office:binary-data>[^<]*</office:binary-data>")
_TITLES = ("title",)
_LEADS = "leads"  # attribute of a tab at the beginning of a paragraph: the blanks in its place
_TAB = 4  # number of these
_HEADERS, _NOTES, _COMMENTS = "Headers and footers", "Notes", "Comments"


@dataclass
class _Style:
    """What a style says of the text in it; None if it leaves that to the style from which it inherits."""

    parent: str = ""
    struck: bool | None = None
    position: str | None = None
    hidden: bool | None = None


def is_flat_text(opening: Opening) -> bool:
    """Whether a file is a text in one XML file (.fodt)."""
    return _is_flat(opening, "text")


def is_flat_presentation(opening: Opening) -> bool:
    """Whether a file is a presentation in one XML file (.fodp)."""
    return _is_flat(opening, "presentation")


def is_flat_workbook(opening: Opening) -> bool:
    """Whether a file is a workbook in one XML file (.fods)."""
    return _is_flat(opening, "spreadsheet")


def _is_flat(opening: Opening, name: str) -> bool:
    return opening.root == "document" and f'"{_FLAT}{name}' in opening.text


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read an OpenDocument file; ``request["kind"]`` names the kind: "odt", "odp" or "ods"."""
    step(0, 1, None)
    flat: ElementTree.Element | None = None
    if not zipfile.is_zipfile(path):
        data = path.read_bytes()
        data = _DATA.sub(b"", data) if len(data) > _MOST_MARKUP * limits.characters else data
        flat = archive.read_xml(data, "its text")
    with archive.opened_whole(path, limits) if flat is None else zipfile.ZipFile(io.BytesIO(), "w") as files:
        file = _File(files, flat, lambda: step(0, 1, None), comments=request.get("comments", True))
        body = file.body()
        read = {"odt": file.text, "odp": lambda found: file.slides(found, step)}.get(request["kind"])
        parsed = read(body) if read else file.workbook(body, limits)
        file.name(parsed)
    return parsed


class _File(Package):
    """The parts of a file; a flat file (``flat``) has all of them in one."""

    def __init__(
        self,
        files: zipfile.ZipFile,
        flat: ElementTree.Element | None,
        progress: Callable[[], None],
        *,
        comments: bool,
    ) -> None:
        super().__init__(files)
        self._flat = flat
        self._ended: dict[str, int] = {}  # number after the last one of a list, by the list's id and by its style
        self._alive = progress
        self._with_comments = comments
        self._styles: dict[str, _Style] = {}
        self._numbers: dict[tuple[str, int], tuple[str, int]] = {}  # list style and level -> kind and first number
        self._hidden_tables: set[str] = set()
        self._hidden_pages: set[str] = set()
        self._outline: dict[int, tuple[str, str, int]] = {}  # level of headings -> kind, sign after it, levels shown
        self._counts: dict[int, int] = {}
        self._notes: list[str] = []
        self._comments: list[str] = []
        self._pictures = self._inner = 0
        self._of_cells = False  # whether charts show what cells of a sheet say, so that only their titles are read
        self.left_out: Counter[str] = Counter()

    # Parts

    def xml(self, name: str, part: str) -> ElementTree.Element | None:
        if self._flat is None:
            return super().xml(name, part)
        return self._flat if name != _MANIFEST else None

    def body(self) -> ElementTree.Element:
        """Return the element with the content.

        Raises:
            Refused: the file is locked by a password, or damaged.
        """
        manifest = self.attempt(lambda: self.xml(_MANIFEST, "its list of parts"), None)
        if manifest is not None and any(local(node.tag) == "encryption-data" for node in manifest.iter()):
            raise Refused("is locked by a password.", "Save it without a password and open that.")
        styles = self.attempt(lambda: self.xml(_STYLES, "its list of styles"), None)
        root = self.xml(_CONTENT, "its text")
        if root is None:
            raise KeyError(_CONTENT)
        for part in (styles, root):
            self._read_styles(part)
        body = next((node for node in root.iter() if local(node.tag) == "body"), root)
        return next((node for node in body if local(node.tag) in _BODIES), body)

    def name(self, parsed: Parsed) -> None:
        """Set title and author from the document's properties, and tell what was left out."""
        meta = self.attempt(lambda: self.xml(_META, "its list of properties"), None)
        properties = {local(node.tag): node.text or "" for node in meta.iter()} if meta is not None else {}
        parsed.title = properties.get("title", "") or parsed.title
        parsed.author = properties.get("initial-creator", "") or properties.get("creator", "")
        if self._pictures:
            said = f"Pictures without a description, whose words are not read: {self._pictures:,}."
            parsed.warnings.append(said)
        if self._comments and not self._with_comments:
            parsed.warnings.append(f"Comments of reviewers were left out, as asked: {len(self._comments):,}.")
        parsed.warnings = self.warnings + parsed.warnings
        parsed.warnings += told(self.left_out, (section.text for section in parsed.sections))
        parsed.left_out = self.left_out

    def _read_styles(self, root: ElementTree.Element | None) -> None:
        for node in root.iter() if root is not None else ():
            tag = local(node.tag)
            if tag == "style":
                self._read_style(node)
            elif tag == "list-style":
                for level in node:
                    kind = attribute(level, "num-format") if local(level.tag) == "list-level-style-number" else ""
                    place = attribute(node, "name"), whole(attribute(level, "level")) or 1
                    self._numbers[place] = (kind, whole(attribute(level, "start-value")) or 1)
            elif tag == "outline-style":
                for level in node:
                    shown = whole(attribute(level, "display-levels")) or 1
                    sign = attribute(level, "num-suffix")
                    number = whole(attribute(level, "level")) or 1
                    self._outline[number] = (attribute(level, "num-format"), sign, shown)

    def _read_style(self, node: ElementTree.Element) -> None:
        name, style = attribute(node, "name"), _Style(attribute(node, "parent-style-name"))
        for part in node:
            tag = local(part.tag)
            if tag == "text-properties":
                struck = attribute(part, "text-line-through-style") or attribute(part, "text-line-through-type")
                style.struck = struck != "none" if struck else None
                style.position = attribute(part, "text-position").split(" ")[0] or None
                shown = attribute(part, "display")
                style.hidden = shown == "none" if shown else None
            elif tag == "table-properties" and attribute(part, "display") == "false":
                self._hidden_tables.add(name)
            elif tag == "drawing-page-properties" and attribute(part, "visibility") == "hidden":
                self._hidden_pages.add(name)
        self._styles[name] = style

    def _style(self, name: str) -> _Style:
        """Return a style with all that it inherits."""
        inherited = _Style()
        for _ in range(_DEEPEST_STYLE):
            style = self._styles.get(name)
            if style is None:
                break
            inherited.struck = style.struck if inherited.struck is None else inherited.struck
            inherited.position = style.position if inherited.position is None else inherited.position
            inherited.hidden = style.hidden if inherited.hidden is None else inherited.hidden
            name = style.parent
        return inherited

    # Texts and presentations

    def text(self, body: ElementTree.Element) -> Parsed:
        """Read a text."""
        for node in body:
            if local(node.tag) == "tracked-changes":
                deleted = (part for part in node.iter() if local(part.tag) == "deletion")
                self.left_out["deleted"] += sum(_size(part) for change in deleted for part in change if _is_text(part))
        blocks = self._blocks(body)
        chapters = by_headings(blocks, split_levels(blocks))
        chapters.append(Chapter(_NOTES, "\n\n".join(self._notes)))
        if self._with_comments:
            chapters.append(Chapter(_COMMENTS, "\n\n".join(self._comments)))
        chapters.append(Chapter(_HEADERS, self.attempt(lambda: self._headers(blocks), "")))
        sections, outline = finish([chapter for chapter in chapters if chapter.text])
        title = next((block.text for block in blocks if block.level == 1), "")
        return Parsed(sections, title, "", outline)

    def slides(self, body: ElementTree.Element, step: Step) -> Parsed:
        """Read a presentation. Each slide with text is a section with the label "slide 3"."""
        sections: list[Section] = []
        outline: list[Heading] = []
        pages = [node for node in body if local(node.tag) == "page"]
        hidden = 0
        for number, page in enumerate(pages, 1):
            step(number - 1, len(pages), None)
            before = len(self._comments)
            hidden += attribute(page, "style-name") in self._hidden_pages
            titles = [node for node in page if attribute(node, "class") in _TITLES]
            others = [node for node in page if attribute(node, "class") not in (*_TITLES, "page-number")]
            notes = [node for node in others if local(node.tag) == "notes"]
            head = [block.text for node in titles for block in self._blocks(node) if block.text]
            texts = head + [block.text for node in others if node not in notes for block in self._blocks(node)]
            parts = [node for part in notes for node in part if attribute(node, "class") not in _REPEATED]
            said = [block.text for node in parts for block in self._blocks(node) if block.text]
            texts += ["Notes: " + "\n\n".join(said)] if said else []
            texts += self._comments[before:] if self._with_comments else []
            text = "\n\n".join(text for text in map(cleaning.line_ends, texts) if text)
            if head and text:
                outline.append(Heading(cleaning.one_line(" ".join(head)), len(sections) + 1, 0))
            sections += labelled(f"slide {number}", text)
        warnings = [f"Slides that are hidden in the show are read too: {hidden:,}."] if hidden else []
        return Parsed(sections, next((entry.title for entry in outline), ""), "", outline, warnings)

    def _blocks(self, root: ElementTree.Element) -> list[Block]:
        teller = Teller(self._tags, self._alive)
        teller.tell(root)
        blocks = teller.blocks()
        self._pictures += teller.collector.pictures
        self._pictures += picture_marks.named(blocks, self._picture)
        return with_listings([block for block in blocks if block.text])

    def _picture(self, source: str) -> str:
        """Return the key of a picture: the name of its part, or its data in a flat file; "" if it is elsewhere."""
        return source if source.startswith(picture_marks.IN_PAGE) else self.names.find(source.removeprefix("./")) or ""

    def _headers(self, blocks: list[Block]) -> str:
        """Return the headers and footers, each once, without those that repeat a paragraph."""
        root = self.xml(_STYLES, "its list of styles")
        said, texts = {block.text.casefold() for block in blocks}, dict[str, None]()
        for node in root.iter() if root is not None else ():
            if local(node.tag) in ("header", "footer", "header-first", "footer-first", "header-left", "footer-left"):
                text = "\n".join(block.text for block in self._blocks(node))
                if text and not is_page_number(text) and text.casefold() not in said:
                    texts.setdefault(text)
        return "\n\n".join(texts)

    def _tags(self, node: ElementTree.Element) -> Tags | None:
        """Return the HTML elements that stand for an element; None to leave it out."""
        tag = local(node.tag)
        if tag in _LEFT_OUT:
            return None
        style = self._style(attribute(node, "style-name"))
        if style.hidden or attribute(node, "display") == "none":
            self.left_out["hidden"] += _size(node)
            return None
        if tag == "p" and not node.text and len(node) and local(node[0].tag) in ("s", "tab") and _leads(node[0]):
            return (("p", INDENTED),)
        handle = _HANDLERS.get(tag)
        tags = handle(self, node) if handle is not None else _PLAIN.get(tag, ())
        if tags is None or not (style.struck or style.position):
            return tags
        inner: list[tuple[str, dict[str, str]]] = [("s", {})] if style.struck else []
        if style.position and style.position not in ("0%", "100%"):
            below = style.position == "sub" or style.position.startswith("-")
            inner.append(("sub" if below else "sup", {}))
        return (*tags, *inner) if tag in ("span", "p", "a") else tags

    def _heading(self, node: ElementTree.Element) -> Tags:
        level = min(whole(attribute(node, "outline-level")) or 1, _DEEPEST_LEVEL)
        self._counts = {deep: count for deep, count in self._counts.items() if deep <= level}
        self._counts[level] = self._counts.get(level, 0) + 1
        kind, sign, shown = self._outline.get(level, ("", "", 1))
        if kind and attribute(node, "is-list-header") != "true":
            levels = range(max(level - shown + 1, 1), level + 1)
            numbers = (
                numerals.written(self._counts.get(deep, 1), _named(self._outline.get(deep, ("1", "", 1))[0]))
                for deep in levels
            )
            node.text = f"{'.'.join(numbers)}{sign} {node.text or ''}"
        return ((f"h{level}", {}),)

    def _list(self, node: ElementTree.Element) -> Tags:
        style, level = attribute(node, "style-name") or node.get("inherited", ""), whole(node.get("level")) or 1
        for inner in (inner for item in node for inner in item if local(inner.tag) == "list"):
            inner.attrib |= {"level": str(level + 1), "inherited": style}
        # some programs define only the first level of a list's style
        kind, start = self._numbers.get((style, level)) or self._numbers.get((style, 1), ("", 1))
        if not kind:
            return (("ul", {}),)
        before = attribute(node, "continue-list") or (style if attribute(node, "continue-numbering") == "true" else "")
        start = self._ended.get(f"{level}:{before}", start) if before else start
        items = [item for item in node if local(item.tag) == "list-item" and not _only_wraps(item)]
        if items:
            self._ended |= dict.fromkeys((f"{level}:{style}", f"{level}:{attribute(node, 'id')}"), start + len(items))
        return (("ol", {"style": f"list-style-type:{_named(kind)}", "start": str(start)}),)

    def _item(self, node: ElementTree.Element) -> Tags:
        if _only_wraps(node):
            return ()
        value = attribute(node, "start-value")
        return (("li", {"value": value} if value else {}),)

    def _cell(self, node: ElementTree.Element) -> Tags:
        across, down = attribute(node, "number-columns-spanned"), attribute(node, "number-rows-spanned")
        cell = ("td", {"colspan": across or "1", "rowspan": down or "1"})
        return (cell,)

    def _note(self, node: ElementTree.Element) -> Tags | None:
        mark = "".join(part.text or "" for part in node if local(part.tag) == "note-citation").strip()
        said = [block.text for part in node if local(part.tag) == "note-body" for block in self._blocks(part)]
        mark = mark or str(len(self._notes) + 1)
        self._notes.append(f"{mark}. " + "\n".join(said))
        node.text = mark
        for part in list(node):
            node.remove(part)
        return (("sup", {}), ("a", {"href": f"#note{len(self._notes)}", "role": "doc-noteref"}))

    def _comment(self, node: ElementTree.Element) -> None:
        texts = [block.text for part in node if local(part.tag) in ("p", "list") for block in self._blocks(part)]
        author = next((part.text or "" for part in node if local(part.tag) == "creator"), "")
        if texts:
            self._comments.append(f"{cleaning.one_line(author) or 'A reviewer'}: " + "\n".join(texts))

    def _frame(self, node: ElementTree.Element) -> Tags:
        """Read a frame: a picture with its description, a formula, or a box with text."""
        parts = {local(part.tag): part for part in node}
        if "object" in parts and self._inner < _MOST_INNER:
            self._inner += 1
            place = posixpath.normpath(attribute(parts["object"], "href"))
            root = self.attempt(lambda: self.xml(posixpath.join(place, _CONTENT), "an object"), None)
            root = parts["object"] if self._flat is not None else root
            inner = root.iter() if root is not None else ()
            shown = next((part for part in inner if local(part.tag) in ("math", "chart")), None)
            if shown is not None:
                for table in [part for part in shown.iter() if local(part.tag) == "table"] if self._of_cells else ():
                    table.clear()
                for part in list(node):
                    node.remove(part)
                node.append(shown)
                return ()
            node.remove(parts["object"])  # the picture beside it shows what is in it
        if "table" in parts and "image" in parts:
            node.remove(parts["image"])  # a picture of the table, for programs without tables
        elif "image" in parts and "text-box" not in parts:
            words = next((parts[one].text or "" for one in ("desc", "title") if one in parts), "")
            words = " ".join(words.split())
            source = attribute(parts["image"], "href")
            for data in parts["image"] if not source else ():
                if local(data.tag) == "binary-data":
                    source = picture_marks.key_of_data(data.text or "")
            described = {"alt": words} if words and not NAMELESS.match(words) else {}
            return (("img", {"src": source, **described}),)
        return ()

    def _space(self, node: ElementTree.Element) -> Tags:
        node.text = " " * min(whole(attribute(node, "c")) or 1, 80)
        return ()

    def _tab(self, node: ElementTree.Element) -> Tags:
        node.text = node.get(_LEADS, " ")
        return ()

    def _annotation(self, node: ElementTree.Element) -> Tags | None:
        self._comment(node)
        return None

    # Workbooks

    def workbook(self, body: ElementTree.Element, limits: Limits) -> Parsed:
        """Read a workbook. Each sheet becomes sections with labels such as "sheet Costs, rows 1–40"."""
        book = Workbook(limits, self._alive, comments=self._with_comments)
        self._of_cells = True
        for table in body:
            if local(table.tag) == "table":
                sheet = Sheet(attribute(table, "name"))
                book.sheets.append(sheet)
                is_hidden = attribute(table, "style-name") in self._hidden_tables
                self._rows(table, sheet, book, hidden=is_hidden)
                if not is_hidden:
                    sheet.texts += [block.text for shape in _shapes(table) for block in self._blocks(shape)]
        book.pictures, self._pictures = self._pictures, 0
        return book.parsed()

    def _rows(self, table: ElementTree.Element, sheet: Sheet, book: Workbook, *, hidden: bool) -> None:
        hidden_columns: set[int] = set()
        column, number = 0, 1
        for node in table.iter():
            tag = local(node.tag)
            if tag == "table-column":
                count = min(whole(attribute(node, "number-columns-repeated")) or 1, MOST_COLUMNS)
                if attribute(node, "visibility") in _NOT_SHOWN:
                    hidden_columns.update(range(column, min(column + count, MOST_COLUMNS)))
                column = min(column + count, MOST_COLUMNS)
            elif tag == "table-row":
                count = max(whole(attribute(node, "number-rows-repeated")) or 1, 1)
                cells = self._row(node, sheet, number)
                not_shown = hidden or attribute(node, "visibility") in _NOT_SHOWN
                for offset in range(min(count, _MOST_REPEATED) if cells else 0):
                    for place, text in cells.items():
                        book.put(sheet, number + offset, place, text, hidden=not_shown or place in hidden_columns)
                number += count

    def _row(self, row: ElementTree.Element, sheet: Sheet, number: int) -> dict[int, str]:
        """Return the texts of a row's cells, keyed by column."""
        cells: dict[int, str] = {}
        column = 0
        for cell in row:
            if local(cell.tag) not in ("table-cell", "covered-table-cell"):
                continue
            count = max(whole(attribute(cell, "number-columns-repeated")) or 1, 1)
            texts = [
                " ".join(block.text.split("\n")) for part in cell if _is_text(part) for block in self._blocks(part)
            ]
            text = " ".join(texts)
            for note in (part for part in cell if local(part.tag) == "annotation"):
                said = [block.text for part in note if _is_text(part) for block in self._blocks(part)]
                sheet.comments[f"{_letters(column)}{number}"] = " ".join(said)
            for offset in range(min(count, _MOST_REPEATED) if text else 0):
                if column + offset < MOST_COLUMNS:
                    cells[column + offset] = text
            column += count
        return cells


_HANDLERS: dict[str, Callable[[_File, ElementTree.Element], Tags | None]] = {
    "h": _File._heading,
    "list": _File._list,
    "list-item": _File._item,
    "table-cell": _File._cell,
    "note": _File._note,
    "annotation": _File._annotation,
    "frame": _File._frame,
    "s": _File._space,
    "tab": _File._tab,
}


def _named(kind: str) -> str:
    """Return the name in CSS of a kind of numbers."""
    return {"a": "lower-alpha", "A": "upper-alpha", "i": "lower-roman", "I": "upper-roman"}.get(kind, "decimal")


def _leads(blank: ElementTree.Element) -> bool:
    """Whether blanks at the beginning of a paragraph indent it."""
    if local(blank.tag) == "tab":
        blank.set(_LEADS, " " * _TAB)
        return True
    return (whole(attribute(blank, "c")) or 1) > 1


def _only_wraps(item: ElementTree.Element) -> bool:
    """Whether an item of a list has nothing but an inner list, so that it shows no number or bullet of its own."""
    return len(item) > 0 and local(item[0].tag) == "list"


def _is_text(node: ElementTree.Element) -> bool:
    return local(node.tag) in ("p", "h", "list")


def _size(node: ElementTree.Element) -> int:
    return sum(len(word) for text in node.itertext() for word in text.split())


def _shapes(table: ElementTree.Element) -> list[ElementTree.Element]:
    """Return what stands beside the cells of a sheet: pictures, and shapes with text. A chart shows what the cells say,
    so only its titles are read.
    """
    return [
        node
        for cell in table.iter()
        if local(cell.tag) in ("shapes", "table-cell")
        for node in cell
        if local(node.tag) in ("frame", "custom-shape", "rect", "g")
    ]


def _letters(column: int) -> str:
    """Return the letters of a column, from 0: "A", "B", ..., "AA"."""
    text = ""
    column += 1
    while column:
        column, rest = divmod(column - 1, 26)
        text = chr(ord("A") + rest) + text
    return text
