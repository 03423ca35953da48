"""Turns the events of an HTML parser into blocks of text: paragraphs, headings, tables, lists, formulas.

Adds the text that a browser would generate: list numbers, numbers of notes, superscripts and subscripts, ticks in
forms, ruby readings, alternative texts of pictures. Counts all omitted characters by reason. Runs only in the child
process (``app.readers.child``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

from app.readers import cleaning, css, formulas, lists, scripts, struck, symbols, tables
from app.readers.css import Styles
from app.readers.lists import List, Lists, whole
from app.readers.picture_marks import key_of_source, mark_of_source
from app.readers.sections import Block
from app.readers.tables import Cell, Row, Table

_SKIPPED = frozenset(re.findall(r"\w+", "script style template noscript iframe object rp button title"))
_FRAMES = frozenset(("iframe", "frame", "object", "embed"))
# matches a reference without scheme and host to an HTML or text file
_TEXT_FILE = re.compile(r"(?![a-z]+:|//)[^?#]+\.(?:x?html?|txt)(?:[?#].*)?", re.I)
_NOT_TEXT = frozenset(("script", "style", "template", "title", "rp"))
_BLOCKS = frozenset(
    re.findall(
        r"\w+",
        "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset figcaption"
        " figure footer form header hr html legend li main menu nav ol p pre section summary textarea ul h1 h2 h3 h4 h5"
        " h6"
        # elements of DTBook, the format of DAISY books
        " author bridgehead byline dateline docauthor doctitle epigraph hd level level1 level2 level3 level4 level5"
        " level6 line linegroup list note poem prodnote sidebar",
    )
)
_SPACED = frozenset(("pre", "textarea", "listing", "xmp"))
_SHADOWS = ("open", "closed")
# elements without a text of their own, before and after which nothing is put
_NOTHING_AROUND = frozenset(
    re.findall(
        r"\w+", "html head body table thead tbody tfoot tr colgroup col ol ul menu dir br hr img image input svg"
    )
)
_ICONS = frozenset(("i", "span", "svg", "b", "em", "abbr"))
_GENERIC = re.compile(r"(?:image|img|picture|photo|figure|illustration|graphic)\s?\d*", re.I)
_ICON = 48  # maximum sides of an icon in pixels
_STRUCK = frozenset(("s", "strike", "del"))
_CONDITIONAL = frozenset(("nav", "dialog", "epub:case", "epub:default"))
_FRAMED = frozenset(("sup", "sub", "ruby", "rt", "rtc", "pagenum", "noteref", "select", "option"))
_TABLE_PARTS = frozenset(("table", "thead", "tbody", "tfoot", "tr", "td", "th", "colgroup", "col"))
_DATES = ("dc.date", "dcterms.date", "dcterms.issued", "citation_publication_date", "citation_date")
_OF_THE_HEAD = ("base", "link", "meta")
_HEADING = re.compile(r"(?:h|level)([1-6])$")
_SPACE = re.compile(r"[ \t\r\n\f]+")
_LONGEST_TITLE = 1000
PUT_AWAY = "\ue000"
"""Replaces each "<" that begins no tag, while the markup is parsed."""

_KEPT_CLASSES = frozenset(("mwe-math-mathml-a11y", "mwe-math-mathml-inline", "katex-mathml", "mjx_assistive_mathml"))
_REPEATED_CLASSES = frozenset(
    ("mathjax", "mathjax_preview", "mathjax_display", "mathjax_chtml", "mathjax_svg", "mjx-chtml", "mjxc-display")
)
_FORMULA_IMAGES = frozenset(("mwe-math-fallback-image-inline", "mwe-math-fallback-image-display", "tex", "latex"))
_NOTE_TYPES = re.compile(r"\b(?:doc-)?(?:foot|end|rear)notes?\b")
_NOTE_LIKE = re.compile(r"note|fn|ftn|foot", re.I)
_REFERENCES = re.compile(r"\b(?:noteref|doc-noteref|footnote-?ref|note-?ref|fnref|annoref)\b", re.I)
_PAGE_CLASSES = frozenset(("pagenum", "pageno", "pagenumber", "page-number", "pagebreak", "x-ebookmaker-pageno"))
_PAGE_NUMBER = re.compile(r"[\[({]?\s*(?:p(?:g|age)?\.?\s*)?(?:\d{1,5}|[ivxlcdm]{1,9})\s*[\])}]?$", re.I)
_EMPHASIS = re.compile(r"[\s・•﹅﹆●○◎、﹅﹆．.]*$")
NAMELESS = re.compile(
    r"(?:(?:an? |the )?(?:image|img|picture|photo(?:graph)?|figure|fig|illustration|icon|logo|cover|ornament|decoration"
    r"|decorative|divider|separator|spacer|break|title ?(?:page)?|book|front|illus|graphic|bullet|blank|drop ?cap)\b"
    r"[ .:_\-\d]*)*(?:[ivxlcdm\d]+)?$|[a-z_-]+\d+[a-z]?$|\S+\.(?:jpe?g|png|gif|svg|webp|bmp|tiff?)$|https?://\S*$",
    re.I,
)
"""Matches alternative texts that only say that there is a picture."""

# maximum nesting of a formula's elements; a deeper element is left out, and its text belongs to the element around it
_DEEPEST_FORMULA = 200
_FONT = re.compile(r"font-family\s*:\s*[\"']?([^;,\"']{1,40})", re.I)
_SECTION = re.compile(r"\s*(?:\d+|[IVX]+)(?:\.\d+)*\.?$")
_NEAR = 4  # number of preceding pieces of text that are examined to write a superscript or subscript
_BACK = ("^", "↩", "↑", "⏎", "←", "⮌", "⤴")  # texts of links that lead from a note back to the text
# maximum nesting of elements whose text is changed when they end, such as superscripts; deeper elements are read as
# plain text
_DEEPEST_FRAME = 40
_TICKED, _OPEN = "☒", "☐"
_SILENT_INPUTS = ("hidden", "submit", "button", "reset", "image", "file", "password", "range", "color")
_SWITCHED = ("MathML", "xhtml", "svg")  # an ``epub:case`` is read if it requires one of these namespaces


@dataclass
class _OpenTable:
    table: Table
    row: Row | None = None
    cell: Cell | None = None
    in_head: bool = False
    in_foot: bool = False


@dataclass
class _Frame:
    """An open element whose text may be changed when it ends, such as a superscript or a link.

    ``start`` is the index at which the element's text starts in ``BlockCollector._parts``, the text collected so far.
    """

    kind: str
    start: int = 0
    target: str = ""
    linked: bool = False
    chosen: str | None = None
    values: list[str] = field(default_factory=list)


class BlockCollector:
    """Collects blocks of text from the parser's events.

    ``title``, ``author`` and ``date`` come from the page's head. ``framed`` has the names of text files that the page
    embeds as frames. ``inner`` has pages embedded as ``srcdoc`` attributes.

    Args:
        text: the whole markup. It is searched for links and formulas that the parser has not reached yet.
        hides: whether to leave out hidden text, so that the model reads only what a browser shows.
        styles: rules of external style sheets.
        contents: whether to read tables of contents (``nav`` elements) too.
        marks: whether the places of pictures are marked (``app.readers.picture_marks``).
    """

    def __init__(
        self, text: str, *, hides: bool, styles: Styles | None = None, contents: bool = True, marks: bool = False
    ) -> None:
        self._hides = hides
        self._styles = styles or Styles()
        self._contents = contents
        self._text = text
        self._targets: set[str] | None = None
        self._repeats_formulas = 'type="math/tex' in text
        self._has_katex = "katex-mathml" in text
        # whether the parser has read the whole text; elements that are closed after that lack an end tag
        self.at_end = False
        self.lost = False  # whether a hidden element had no end tag, so that all text after its start tag was skipped
        self.blocks: list[Block] = []
        self.title = ""
        self.author = ""
        self.date = ""
        self.framed: list[str] = []
        self.inner: list[str] = []
        self.left_out: Counter[str] = Counter()
        self._parts: list[str] = []
        # alternative texts of pictures, keyed by the index in ``_parts`` at which they belong
        self._images: dict[int, str] = {}
        self._anchors: list[str] = []
        self._level = 0
        self._skipped: list[str] = []  # the outermost skipped element, and the elements open inside it
        # key in ``left_out`` under which the skipped characters are counted; "" if they are not counted
        self._reason = ""
        self._captured: list[str] = []  # text of a skipped style or script element
        # for each open element that shows white space as it is written or ends that, the number of elements around it
        self._spaced: list[tuple[int, bool]] = []
        self._kept = False  # whether the open block has white space with a meaning
        # texts that a style sheet puts after open elements, each with the number of elements around the element
        self._after: list[tuple[int, str]] = []
        self._drawn_titles: list[str] = []  # the title of each open drawing
        self.pictures = 0  # number of pictures without a description
        self._marks_pictures = marks
        # marks of pictures, which are put after the present block, or after a picture's caption
        self._sources: list[str] = []
        self._had_description = False
        self._initial = False  # whether the open block may be a drop cap: the large first letter of the next block
        self._held = ""
        # the ``_Frame`` of each open element; None for an element whose text stays as it is
        self._open: list[_Frame | None] = []
        self._frames: list[_Frame] = []
        self._struck: list[int] = []  # for each open element that is struck out, the number of elements around it
        self._lists = Lists()
        self._marks: dict[str, str] = {}  # marks of footnotes and endnotes, such as "3", keyed by the note's anchor
        self._tables: list[_OpenTable] = []
        self._flat_tables = 0  # number of open tables beyond the maximum nesting
        self._navigation = 0
        self._formula: ElementTree.TreeBuilder | None = None
        self._formula_tags: list[str] = []
        self._after_formula = False
        self._after_script = False
        # vertical position of the last text in each open drawing; "" before the first text
        self._drawing: list[str] = []
        self._switch: list[bool] = []  # for each open ``epub:switch``, whether one of its cases was chosen

    # Methods that the parser calls

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._formula is not None:
            self._start_in_formula(tag, attributes)
            return
        if self._skipped:
            self._skipped.append(tag)
            return
        if ":" in tag and not tag.startswith("epub:"):
            tag = tag.partition(":")[2]
        reason = self._reason_to_skip(tag, attributes)
        if reason is not None:
            self._skipped.append(tag)
            self._reason = reason
            return
        frame = self._opened(tag, attributes)
        self._take_style(tag, attributes)
        self._open.append(frame)
        if frame is not None:
            self._frames.append(frame)
        anchor = attributes.get("id") or (attributes.get("name") if tag == "a" else None)
        if anchor and tag not in _OF_THE_HEAD:
            self._anchors.append(anchor)

    def end(self, tag: str) -> None:
        if self._formula is not None:
            self._end_in_formula()
            return
        if self._skipped:
            self._skipped.pop()
            if not self._skipped:
                self._end_skipped(tag)
            return
        if ":" in tag and not tag.startswith("epub:"):
            tag = tag.partition(":")[2]
        frame = self._open.pop() if self._open else None
        if self._struck and self._struck[-1] == len(self._open):
            self._struck.pop()
        if self._after and self._after[-1][0] == len(self._open):
            self._parts.append(self._after.pop()[1])
        if frame is not None:
            self._frames.pop()
            self._close_frame(frame)
        self._end_element(tag)
        if self._spaced and self._spaced[-1][0] == len(self._open):
            self._spaced.pop()

    def _end_element(self, tag: str) -> None:
        if tag in _BLOCKS:
            self._close_block()
            self._navigation -= tag == "nav"
            if tag == "li":
                self._lists.end_item()
            elif tag in lists.TAGS:
                self._lists.end()
        elif tag in _TABLE_PARTS:
            self._end_table_part(tag)
        elif tag == "svg" and self._drawing:
            title = " ".join(self._drawn_titles.pop().split())
            if self._drawing.pop():
                self._close_block()
            elif title and not NAMELESS.match(title):
                self._parts.append(title)
        elif tag == "epub:switch" and self._switch:
            self._switch.pop()
        elif tag == "q":
            self._parts.append("”")
        elif tag == "span" and self._level and _SECTION.match("".join(self._parts[-_NEAR:])):
            self._parts.append(" ")  # a style sheet puts space after a heading's number

    def data(self, data: str) -> None:
        if self._formula is not None:
            self._formula.data(data)
            return
        data = data.replace(PUT_AWAY, "<")
        if self._skipped:
            self._left(data)
            return
        if self._after_formula and data:
            self._after_formula = False
            if data[0].isalnum() and self._parts and self._parts[-1][-1:].isdigit():
                self._parts.append(" ")
        elif self._after_script and data:
            self._after_script = False
            if scripts.fuses("".join(self._parts[-_NEAR:]), data):
                self._parts.append(" ")
        if self._frames and self._frames[-1].kind in ("choice", "drawing"):
            if self._frames[-1].kind == "drawing":
                self.left_out["other"] += _size(data)
            else:
                self._frames[-1].values.append(data)
            return
        if self._drawing and not data.strip() and "\n" in data:
            return
        keeps = self._keeps_space()
        self._kept = self._kept or (keeps and bool(data.strip()))
        text = data if keeps else _SPACE.sub(" ", data)
        self._parts.append(f"{struck.ON}{text}{struck.OFF}" if self._struck else text)

    def comment(self, text: str) -> None:
        """Read the formulas that Word puts into conditional comments, where browsers ignore them."""
        if "msEquation" in text and not self._skipped and self._formula is None:
            for formula in re.findall(r"<m:oMath>.*?</m:oMath>", text, re.S):
                self._add_formula(_parsed(f'<r xmlns:m="m" xmlns:w="w" xmlns:o="o">{formula}</r>'))

    def close(self) -> None:
        while self._tables:
            self._end_table_part("table")
        self._close_block()
        if self._held:
            self._add(self._held, [])
        self._mark_pictures()
        if self._anchors:
            self.blocks.append(Block("", 0, tuple(self._anchors)))

    # Skipped elements

    def _reason_to_skip(self, tag: str, attributes: Mapping[str, str]) -> str | None:
        """Return None for an element that is read. For a skipped element, return the key under which its characters are
        counted; "" if they are not counted.
        """
        if tag in _FRAMES:
            self._remember_frame(attributes)
        if tag == "template" and attributes.get("shadowrootmode", attributes.get("shadowroot")) in _SHADOWS:
            self._close_block()
            return None
        if tag in _SKIPPED:
            self._captured.clear()
            return "" if tag in _NOT_TEXT else "other"
        if not attributes and tag not in _CONDITIONAL and not self._styles:
            return None
        classes = attributes.get("class", "").casefold().split()
        if self._repeats_formulas and tag != "mjx-container" and _REPEATED_CLASSES.intersection(classes):
            return ""
        if self._has_katex and "katex-html" in classes:
            return ""
        if tag == "nobr" and attributes.get("aria-hidden") == "true":
            return ""
        if tag == "nav" and not self._contents:
            return ""
        if tag == "epub:case":
            taken = any(name in attributes.get("required-namespace", "") for name in _SWITCHED)
            if not taken or (self._switch and self._switch[-1]):
                return ""
            if self._switch:
                self._switch[-1] = True
        elif tag == "epub:default" and self._switch and self._switch[-1]:
            return ""
        if self._hides and self._is_hidden(tag, classes, attributes):
            return "hidden"
        return None

    def _remember_frame(self, attributes: Mapping[str, str]) -> None:
        if "srcdoc" in attributes:
            self.inner.append(attributes["srcdoc"])
            return
        place = (attributes.get("src") or attributes.get("data") or "").strip()
        if _TEXT_FILE.fullmatch(place):
            self.framed.append(place)

    def _is_hidden(self, tag: str, classes: list[str], attributes: Mapping[str, str]) -> bool:
        hidden = "hidden" in attributes or (tag == "dialog" and "open" not in attributes)
        if not hidden and (self._styles or "style" in attributes):
            declarations = self._styles.of(tag, attributes.get("class", "").split())
            hidden = css.hides({**declarations, **css.declarations(attributes.get("style", ""))})
        if not hidden or tag == "math" or _KEPT_CLASSES.intersection(classes):
            return False
        kind = f"{attributes.get('epub:type', '')} {attributes.get('role', '')}"
        return not (_NOTE_TYPES.search(kind) or self._is_linked_note(kind, classes, attributes.get("id", "")))

    def _take_style(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Note how an element shows its text: struck, with its white space, with texts before and after it."""
        declarations: css.Declarations = {}
        if attributes or self._styles:
            declarations = self._styles.of(tag, attributes.get("class", "").split())
            declarations = {**declarations, **css.declarations(attributes.get("style", ""))}
            if tag not in _NOTHING_AROUND:
                self._parts.append(self._styles.generated(tag, attributes, "before"))
                if after := self._styles.generated(tag, attributes, "after"):
                    self._after.append((len(self._open), after))
        if tag in _STRUCK or css.strikes(declarations):
            self._struck.append(len(self._open))
        keeps = css.keeps_space(declarations)
        if keeps is not None or tag in _SPACED:
            self._spaced.append((len(self._open), tag in _SPACED if keeps is None else keeps))

    def _keeps_space(self) -> bool:
        return bool(self._spaced) and self._spaced[-1][1]

    def _is_linked_note(self, kind: str, classes: list[str], anchor: str) -> bool:
        """Whether this hidden element is a note that a link points to. E-readers show such a note in a popup."""
        if not anchor or not _NOTE_LIKE.search(" ".join((kind, anchor, *classes))):
            return False
        if self._targets is None:
            self._targets = set(re.findall(r"href\s*=\s*[\"'][^\"'#<>]*#([^\"'<>]{1,200})[\"']", self._text))
        return anchor in self._targets

    def _left(self, data: str) -> None:
        outer = self._skipped[0]
        if outer == "title" and len(self._skipped) == 1 and self._drawing:
            self._drawn_titles[-1] = self._drawn_titles[-1] or data[:_LONGEST_TITLE]
        elif outer == "title" and len(self._skipped) == 1:
            if len(self.title) < _LONGEST_TITLE:
                self.title += data
        elif outer in ("style", "script"):
            self._captured.append(data)
        elif self._reason and self._skipped[-1] not in _NOT_TEXT:
            self.left_out[self._reason] += _size(data)

    def _end_skipped(self, tag: str) -> None:
        self.lost = self.lost or (self.at_end and self._reason == "hidden")
        if tag == "style":
            self._styles = self._styles.joined("".join(self._captured))
        elif tag == "script" and self._repeats_formulas and self._captured:
            self._add_text_of_formula(formulas.tex("".join(self._captured)))
        self._captured.clear()

    # Elements that begin

    def _opened(self, tag: str, attributes: Mapping[str, str]) -> _Frame | None:
        if tag in _BLOCKS:
            self._start_block(tag, attributes)
        elif tag in _TABLE_PARTS:
            self._start_table_part(tag, attributes)
        elif tag == "br":
            self._parts.append("\n")
        elif tag == "img" or tag == "image":
            self._start_image(attributes)
        elif tag == "math":
            self._formula = ElementTree.TreeBuilder()
            self._start_in_formula(tag, attributes)
            return None
        elif tag == "meta" and attributes.get("name", "").casefold() in ("author", "dc.creator"):
            self.author = self.author or attributes.get("content", "")
        elif tag == "meta" and attributes.get("name", "").casefold() in _DATES:
            self.date = self.date or attributes.get("content", "")
        elif tag == "svg":
            self._drawing.append("")
            self._drawn_titles.append("")
        elif tag == "input":
            self._parts.append(_entered(attributes))
        elif tag == "q":
            self._parts.append("“")
        elif tag == "epub:switch":
            self._switch.append(False)
        if self._drawing and tag in ("text", "tspan"):
            self._start_drawn(tag, attributes)
        return self._frame(tag, attributes)

    def _frame(self, tag: str, attributes: Mapping[str, str]) -> _Frame | None:
        bare = not attributes and tag not in _FRAMED and not self._drawing and not self._styles
        if bare or len(self._frames) >= _DEEPEST_FRAME:
            return None
        start = len(self._parts)
        kind = f"{attributes.get('epub:type', '')} {attributes.get('role', '')}".strip()
        if (
            "pagebreak" in kind
            or tag == "pagenum"
            or _PAGE_CLASSES.intersection(attributes.get("class", "").casefold().split())
        ):
            return _Frame("page", start)
        if tag in ("sup", "sub", "ruby"):
            return _Frame(tag, start)
        if tag in ("rt", "rtc"):
            return _Frame("reading", start)
        if tag == "a":
            target = attributes.get("href", "").partition("#")[2]
            reference = bool(_REFERENCES.search(f"{kind} {attributes.get('class', '')}"))
            return _Frame("link", start, target, reference) if target or reference else None
        if tag == "noteref":
            return _Frame("link", start, attributes.get("idref", "").lstrip("#"), linked=True)
        if tag == "select":
            return _Frame("choice", start)
        if tag == "option":
            choice = next((frame for frame in reversed(self._frames) if frame.kind == "choice"), None)
            if choice is not None and (choice.chosen is None or "selected" in attributes):
                choice.values.clear()
                choice.chosen = "selected" if "selected" in attributes else ""
                return _Frame("choice", start, "taken")
            return _Frame("choice", start, "left")
        if self._drawing and tag in ("desc", "metadata", "defs"):
            return _Frame("drawing", start)
        label = attributes.get("aria-label") or (attributes.get("title") if attributes.get("role") == "img" else "")
        if label and tag in _ICONS and attributes.get("aria-hidden") != "true":
            return _Frame("label", start, label)
        if tag in ("span", "font"):
            style = attributes.get("style", "")
            font = _FONT.search(style) if tag == "span" else None
            name = (font[1] if font else attributes.get("face", "")).strip("'\" ")
            if symbols.is_symbolic(name):
                return _Frame("font", start, name)
            declarations = (
                css.declarations(style) if style else self._styles.of(tag, attributes.get("class", "").split())
            )
            align = declarations.get("vertical-align")
            return _Frame(align, start) if align in ("super", "sub") else None
        return None

    def _start_block(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._close_block()
        heading = _HEADING.match(tag)
        if heading and tag[0] == "h":
            self._level = int(heading[1])
        elif tag == "hd" or tag == "doctitle":
            self._level = 1
        self._initial = "dropcap" in attributes.get("class", "").casefold().replace("-", "").replace("_", "")
        self._navigation += tag == "nav"
        if tag in lists.TAGS:
            self._lists.start(tag, attributes, self._styles, bare=self._navigation > 0)
        elif tag == "li":
            self._lists.item(attributes, self._styles)
        elif attributes.get("id") in self._marks and (
            tag in ("aside", "note") or _NOTE_TYPES.search(f"{attributes.get('epub:type')} {attributes.get('role')}")
        ):
            self._lists.note(self._marks[attributes["id"]])

    # Tables

    def _start_table_part(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._close_block()
        if tag == "table":
            if len(self._tables) >= tables.DEEPEST:
                self._flat_tables += 1
                return
            layout = attributes.get("role") in ("presentation", "none")
            self._tables.append(_OpenTable(Table(layout=layout)))
        if not self._tables or self._flat_tables:
            return
        here = self._tables[-1]
        if tag in ("thead", "tbody", "tfoot"):
            here.in_head, here.in_foot = tag == "thead", tag == "tfoot"
            here.row = here.cell = None
        elif tag == "tr":
            here.row, here.cell = Row(header=here.in_head, footer=here.in_foot), None
            here.table.rows.append(here.row)
        elif tag in ("td", "th"):
            if here.row is None:
                here.row = Row(header=here.in_head, footer=here.in_foot)
                here.table.rows.append(here.row)
            columns, rows = whole(attributes.get("colspan")), whole(attributes.get("rowspan"))
            here.cell = Cell(columns=columns or 1, rows=rows or 1)
            if not here.in_head:  # without ``thead``, a first row that has only header cells is the header
                first = here.row is here.table.rows[0] and (not here.row.cells or here.row.header)
                here.row.header = tag == "th" and first
            here.row.cells.append(here.cell)

    def _end_table_part(self, tag: str) -> None:
        self._close_block()
        if tag == "table" and self._flat_tables:
            self._flat_tables -= 1
        elif self._tables and not self._flat_tables:
            here = self._tables[-1]
            if tag in ("td", "th"):
                here.cell = None
            elif tag == "tr":
                here.row = here.cell = None
            elif tag in ("thead", "tfoot"):
                here.in_head = here.in_foot = False
            elif tag == "table":
                self._tables.pop()
                here.table.rows.sort(key=lambda row: row.footer)
                sink = self._cell()
                if sink is None:
                    self.blocks += tables.as_blocks(here.table)
                else:
                    sink.content.append(here.table)

    def _cell(self) -> Cell | None:
        """Return the innermost open cell; None outside of tables."""
        return next((around.cell for around in reversed(self._tables) if around.cell is not None), None)

    # Pictures, drawings, formulas

    def _start_image(self, attributes: Mapping[str, str]) -> None:
        alt = " ".join((attributes.get("alt") or attributes.get("aria-label") or "").split())
        source = "" if not self._marks_pictures or _is_icon(attributes) else key_of_source(attributes.get("src") or "")
        plain = ("alt" not in attributes or bool(_GENERIC.fullmatch(alt))) and not _is_icon(attributes)
        undescribed = plain and (not alt or bool(_GENERIC.fullmatch(alt)))
        if source:
            self._sources.append(mark_of_source(source, described=not undescribed))
        else:
            self.pictures += undescribed
        if not alt:
            return
        if _FORMULA_IMAGES.intersection(attributes.get("class", "").casefold().split()):
            formula = formulas.tex(alt)
            if not any(part == formula for part in self._parts[-3:]):
                self._add_text_of_formula(formula)
        elif not NAMELESS.match(alt):
            self._images[len(self._parts)] = alt
            self._parts.append("")

    def _spell_images(self) -> None:
        """Write the alternative texts of a block's pictures. A picture's text is written without brackets if the
        picture is a whole heading, or shows a formula or a letter within text. Otherwise it becomes "[Image: ...]".
        """
        around = any(sign.isalnum() for part in self._parts for sign in part)
        for place, alt in self._images.items():
            if self._level and not around:
                self._parts[place] = alt
            elif around and formulas.looks_like(alt):
                self._parts[place] = formulas.tex(alt)
            else:
                self._parts[place] = f"[Image: {alt}]"
        self._images.clear()

    def _start_drawn(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin a text in a drawing. A text at a different vertical position starts a new line."""
        height = attributes.get("y") or (attributes.get("dy") if attributes.get("x") else None) or ""
        if tag == "text":
            height = height or attributes.get("transform", "") or " "
        if not height:
            return
        if not self._drawing[-1]:
            self._close_block()
        elif self._parts:
            self._parts.append(" " if height == self._drawing[-1] and "d" not in attributes else "\n")
        self._drawing[-1] = height

    def _start_in_formula(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._formula is not None and len(self._formula_tags) < _DEEPEST_FORMULA:
            self._formula.start(tag.rpartition(":")[2], {str(key): value for key, value in attributes.items()})
        self._formula_tags.append(tag)

    def _end_in_formula(self) -> None:
        tag = self._formula_tags.pop()
        if self._formula is not None and len(self._formula_tags) < _DEEPEST_FORMULA:
            self._formula.end(tag.rpartition(":")[2])
        if not self._formula_tags and self._formula is not None:
            root, self._formula = self._formula.close(), None
            self._open.pop()
            self._add_formula(root)

    def _add_formula(self, root: ElementTree.Element | None) -> None:
        if root is not None:
            self._add_text_of_formula(formulas.linear(root))

    def _add_text_of_formula(self, text: str) -> None:
        if not text:
            return
        before = next((part for part in reversed(self._parts) if part), "")
        if before and before[-1].isalnum() and text[0].isalnum():
            self._parts.append(" ")
        self._parts.append(text)
        self._after_formula = True

    # Elements that end

    def _close_frame(self, frame: _Frame) -> None:
        text = "".join(self._parts[frame.start :])
        if frame.kind in ("sup", "super", "sub"):
            if "\n" not in text.strip():
                near = max(frame.start - _NEAR, 0)
                before = "".join(self._parts[near : frame.start])
                if frame.kind == "sub" and not self._images and (fraction := scripts.over_a_line(before)) != before:
                    self._parts[near : frame.start] = [fraction]
                    frame.start, before = near + 1, fraction
                linked = frame.linked or any(outer.kind == "link" for outer in self._frames)
                written = scripts.lowered(before, text) if frame.kind == "sub" else None
                self._replace(frame, written or scripts.raised(before, text, linked=linked and bool(text.strip())))
                self._after_script = True
        elif frame.kind == "link":
            self._close_link(frame, text.strip())
        elif frame.kind == "reading":
            around = next((outer for outer in reversed(self._frames) if outer.kind == "ruby"), None)
            if around is not None:
                self._replace(frame, "")
                around.values.append(text.strip())
        elif frame.kind == "ruby":
            readings = [reading for reading in frame.values if reading and not _EMPHASIS.match(reading)]
            if readings:
                between = " " if all(reading.isascii() for reading in readings) else ""
                self._parts.append(f"({between.join(readings)})")
        elif frame.kind == "page" and _PAGE_NUMBER.match(text.strip()):
            self.left_out["page numbers"] += _size(text)
            self._replace(frame, "")
        elif frame.kind == "font":
            self._replace(frame, symbols.spelled(text, frame.target))
        elif frame.kind == "choice":
            self._close_choice(frame)
        elif frame.kind == "label" and not text.strip():
            self._replace(frame, cleaning.one_line(frame.target))

    def _close_link(self, frame: _Frame, text: str) -> None:
        """Close a link. A link from a note back to the text is removed. The text of a link to a note is the note's
        mark, which is put in brackets unless it is a superscript.
        """
        if not text or len(text) > 8:
            return
        raised = next((outer for outer in reversed(self._frames) if outer.kind in ("sup", "super")), None)
        mark = text.strip("[]^()")
        if frame.target and (mark or text).strip("\ufe0e\ufe0f") in _BACK:
            self._replace(frame, "")
            return
        if raised is not None:
            raised.linked = True
        elif frame.linked and text[0] not in "[(^" and text[0].isalnum():
            self._replace(frame, f"[{text}]")
        elif frame.target and not frame.start and mark[:1].isalnum():
            self._after_formula = True  # the link is the number of a note; the note's text may follow without a space
        if frame.target and (raised is not None or frame.linked or text != mark) and mark[:1].isalnum():
            self._marks.setdefault(frame.target, mark.strip("[]^()"))

    def _close_choice(self, frame: _Frame) -> None:
        text = "".join(frame.values)
        if not frame.target:
            self._parts.append(_SPACE.sub(" ", text).strip())
        elif frame.target == "taken":
            around = next((outer for outer in reversed(self._frames) if outer.kind == "choice"), None)
            if around is not None:
                around.values.append(text)
        else:
            self.left_out["other"] += _size(text)

    def _replace(self, frame: _Frame, text: str) -> None:
        for place in [place for place in self._images if place >= frame.start]:
            del self._images[place]
        self._parts[frame.start :] = [text] if text else []

    def _close_block(self) -> None:
        if self._parts:
            if self._images:
                self._spell_images()
            text = struck.spelled("".join(self._parts))
            if self._keeps_space():
                text = cleaning.characters(text).strip("\n")
            else:
                text = cleaning.characters(text).strip() if self._kept else cleaning.paragraph(text)
            if self._initial and len(text) == 1:
                self._held = text  # a drop cap, which belongs to the next block
            elif text.strip():
                text, self._held = self._held + text, ""
                text, marked = self._lists.headed(text)
                self._add(text, marked)
            self._parts.clear()
            self._kept = False
            for frame in self._frames:
                frame.start = 0
            self._after_formula = False
        self._level = 0
        if self._sources and not self._tables:
            described = bool(self.blocks) and self.blocks[-1].text.startswith("[Image: ")
            if not described or self._had_description:
                self._mark_pictures()
            else:
                self._had_description = True

    def _mark_pictures(self) -> None:
        self.blocks += map(Block, self._sources)
        self._sources.clear()
        self._had_description = False

    def _add(self, text: str, marked: list[tuple[str, List]]) -> None:
        cell = self._cell()
        last = next(_last_text(self.blocks if cell is None else cell.content), None)
        block = Block(text, self._level, tuple(self._anchors), self._kept)
        if last is not None and last.text == f"[Image: {text}]":  # the picture's caption repeats its alternative text
            last.text = text
            last.anchors += block.anchors
        elif cell is None:
            self.blocks.append(block)
        else:
            cell.content.append(block)
        for marker, around in marked:
            if around.backwards:
                around.marked.append((block, marker))
        self._anchors.clear()


def _last_text(content: list[Block] | list[Block | Table]) -> Iterator[Block]:
    if content and isinstance(content[-1], Block):
        yield content[-1]


def _is_icon(attributes: Mapping[str, str]) -> bool:
    """Whether a picture is as small as an icon."""
    sides = [attributes.get(side, "") for side in ("width", "height")]
    return any(side.isdigit() and int(side[:6]) <= _ICON for side in sides)


def _size(text: str) -> int:
    return sum(len(word) for word in text.split())


def _entered(attributes: Mapping[str, str]) -> str:
    """Return the text that an input element of a form shows."""
    kind = attributes.get("type", "text").casefold()
    if kind in ("checkbox", "radio"):
        return f" {_TICKED if 'checked' in attributes else _OPEN} "
    return "" if kind in _SILENT_INPUTS else attributes.get("value", "")


def _parsed(text: str) -> ElementTree.Element | None:
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError:
        return None
