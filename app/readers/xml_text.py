"""Reads books and articles in XML: FictionBook, JATS (articles of journals), TEI (editions) and DocBook.

Each vocabulary is a table of the HTML elements that its elements stand for. Headings are those of its divisions. Runs
only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import fnmatch
import re
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from app.readers import archive, cleaning, formulas, picture_marks
from app.readers.archive import attribute, local
from app.readers.collector import NAMELESS
from app.readers.parsed import Limits, Parsed, Step
from app.readers.sections import INDENTED, Block, Chapter, by_headings, finish, split_levels, with_listings
from app.readers.xml_events import FORMULA, Tags, Teller

_DIVISIONS = frozenset(
    re.findall(
        r"\S+",
        "sec app abstract ack ref-list sub-article response boxed-text chapter part preface appendix section sect1"
        " sect2 sect3 sect4 sect5 glossary bibliography simplesect div div1 div2 div3 div4 div5 div6",
    )
)
_HEADS = frozenset(("title", "head", "article-title", "book-title"))
_LEFT_OUT = frozenset(
    re.findall(
        r"\S+",
        "teiHeader description binary stylesheet journal-meta article-id article-categories pub-date volume issue fpage"
        " lpage elocation-id history counts custom-meta-group self-uri fw related-article processing-meta alt-title"
        " contrib-id isbn issn publisher-loc info bookinfo articleinfo alt-text long-desc indexterm index-term"
        " pub-history pb cb",
    )
)
_PLAIN: dict[str, Tags] = {
    "p": (("p", {}),), "para": (("p", {}),), "simpara": (("p", {}),), "subtitle": (("p", {}),), "v": (("div", {}),),
    "l": (("div", {}),), "lg": (("div", {}),), "stanza": (("div", {}),), "text-author": (("p", {}),),
    "speaker": (("p", {}),), "stage": (("p", {}),), "sp": (("div", {}),), "kwd": (("span", {}),), "aff": (("p", {}),),
    "contrib-group": (("p", {}),), "kwd-group": (("p", {}),), "fn": (("p", {}),), "ref": (("p", {}),),
    "caption": (("div", {}),), "fig": (("div", {}),), "table-wrap": (("div", {}),), "figure": (("div", {}),),
    "disp-quote": (("blockquote", {}),), "cite": (("blockquote", {}),), "epigraph": (("blockquote", {}),),
    "disp-formula": (("p", {}),), "list-item": (("li", {}),), "item": (("li", {}),), "listitem": (("li", {}),),
    "orderedlist": (("ol", {}),), "itemizedlist": (("ul", {}),), "def-list": (("dl", {}),), "dd": (("dd", {}),),
    "variablelist": (("dl", {}),), "def-item": (("div", {}),), "term": (("dt", {}),), "def": (("dd", {}),),
    "table": (("table", {}),), "thead": (("thead", {}),), "tbody": (("tbody", {}),), "tr": (("tr", {}),),
    "row": (("tr", {}),), "tgroup": (("table", {}),), "entry": (("td", {}),), "tfoot": (("tfoot", {}),),
    "table-wrap-foot": (("div", {}),), "sup": (("sup", {}),), "sub": (("sub", {}),), "superscript": (("sup", {}),),
    "subscript": (("sub", {}),), "strike": (("s", {}),), "strikethrough": (("s", {}),), "del": (("s", {}),),
    "break": (("br", {}),), "lb": (("br", {}),), "preformat": (("pre", {}),),
    "code": (("span", {"style": "white-space:pre-wrap"}),),
    "programlisting": (("pre", {}),), "screen": (("pre", {}),), "literallayout": (("pre", {}),), "q": (("q", {}),),
    "quote": (("q", {}),), "statement": (("div", {}),), "permissions": (("div", {}),),
    "copyright-statement": (("p", {}),),
    "license": (("div", {}),), "author-notes": (("div", {}),), "figDesc": (("p", {}),), "opener": (("p", {}),),
    "closer": (("p", {}),), "signed": (("p", {}),), "salute": (("p", {}),), "dateline": (("p", {}),),
    "byline": (("p", {}),), "titlePart": (("p", {}),), "docTitle": (("div", {}),), "front": (("div", {}),),
    "date": (("span", {}),), "body": (("div", {}),), "back": (("div", {}),),
}  # fmt: skip
# what attributes say of the look of words, keyed by the HTML element for it
_LOOKS = {
    "s": re.compile(r"\b(?:strike|strikethrough|line-through)\b"),
    "sup": re.compile(r"\b(?:sup|super|superscript|raised)\b"),
    "sub": re.compile(r"\b(?:sub|subscript)\b"),
}
# elements that say of the whole of a DocBook file what its title is
_INFOS = ("info", "bookinfo", "articleinfo")
_DEEPEST_LEVEL = 6  # deepest level of a heading in HTML
_DEEPEST = 1_000  # maximum nesting of elements in which the nesting of divisions is counted
_LISTS = {
    "order": "ol",
    "ordered": "ol",
    "arabic": "ol",
    "loweralpha": "a",
    "upperalpha": "A",
    "lowerroman": "i",
    "upperroman": "I",
    "alpha-lower": "a",
    "alpha-upper": "A",
    "roman-lower": "i",
    "roman-upper": "I",
}
_GLOSSARIES = ("gloss", "definition")  # types of lists of terms
_INDENTED = re.compile(r"[ \u00a0]{2,}\S")  # matches the beginning of an indented line
_NOTES = "Notes"


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a book or an article in XML, or the first FictionBook in a zip container."""
    step(0, 1, None)
    zipped = zipfile.is_zipfile(path)
    data = _unzipped(path, limits) if zipped else path.read_bytes()
    root = archive.read_xml(data, "its text")
    step(0, 1, None)
    return _Xml(root, lambda: step(0, 1, None), zipped=zipped).parsed()


def _unzipped(path: Path, limits: Limits) -> bytes:
    with archive.opened_whole(path, limits) as files:
        named = sorted(fnmatch.filter(files.namelist(), "*.fb2"))
        return archive.read_part(files, named[0] if named else "", "its book")


class _Xml:
    def __init__(self, root: ElementTree.Element, progress: Callable[[], None], *, zipped: bool) -> None:
        self._root = root
        self._alive = progress
        self._levels: dict[int, int] = {}  # depth of the division around each heading, by the heading's identity
        self._parents = {id(child): parent for parent in root.iter() for child in parent}
        self._notes: list[str] = []
        self._pictures = 0
        # keys of the pictures in the file, by the names under which the text refers to them
        self._keys = {
            attribute(node, "id"): picture_marks.key_of_written(node.text or "")
            for node in root.iter()
            if local(node.tag) == "binary" and not zipped
        }
        self.left_out: Counter[str] = Counter()

    def parsed(self) -> Parsed:
        root = self._root
        blocks = self._blocks(root)
        title, author, date = self._names()
        chapters = by_headings(blocks, split_levels(blocks))
        chapters += [Chapter(_NOTES, "\n\n".join(self._notes))] if self._notes else []
        sections, outline = finish(chapters)
        first = next((block.text for block in blocks if block.level == 1), "")
        said = [f"Pictures without a description, whose words are not read: {self._pictures:,}."]
        return Parsed(sections, title or first, author, outline, said if self._pictures else [], date=date)

    def _blocks(self, node: ElementTree.Element) -> list[Block]:
        teller = Teller(self._tags, self._alive)
        teller.tell(node)
        blocks = teller.blocks()
        self._pictures += picture_marks.named(blocks, lambda key: key if key.startswith(picture_marks.IN_PAGE) else "")
        return with_listings([block for block in blocks if block.text])

    def _names(self) -> tuple[str, str, str]:
        """Return the title, the authors and the date of publication that the file states."""
        stated: dict[str, list[str]] = {}
        for node in self._root.iter():
            tag = local(node.tag)
            if tag in (
                "title",
                "book-title",
                "article-title",
                "titleStmt",
                "title-info",
                "contrib",
                "author",
                "pub-date",
                "date",
            ):
                around = self._around(node)
                text = " ".join(" ".join(node.itertext()).split())
                if tag == "contrib":
                    name = {local(part.tag): part.text or "" for part in node.iter()}
                    text = f"{name.get('given-names', '')} {name.get('surname', '')}".strip()
                    stated.setdefault("author", []).append(text)
                elif tag == "author" and around in ("title-info", "titleStmt"):
                    if around == "title-info":
                        parts = {local(part.tag): part.text or "" for part in node}
                        names = (parts.get(one, "") for one in ("first-name", "middle-name", "last-name"))
                        text = " ".join(name for name in names if name) or parts.get("nickname", "")
                    stated.setdefault("author", []).append(text)
                elif tag.endswith("title") and self._names_the_file(node, around):
                    stated.setdefault("title", []).append(text)
                elif tag == "titleStmt":
                    named = (part for part in node if local(part.tag) == "title")
                    stated.setdefault("title", []).extend(" ".join("".join(part.itertext()).split()) for part in named)
                elif tag == "pub-date" or (tag == "date" and around in ("title-info", "publicationStmt")):
                    stated.setdefault("date", []).append(attribute(node, "when") or text)
        texts = {name: [cleaning.one_line(text) for text in values if text] for name, values in stated.items()}
        first = {name: values[0] for name, values in texts.items() if values}
        return first.get("title", ""), ", ".join(texts.get("author", [])), first.get("date", "")

    def _names_the_file(self, node: ElementTree.Element, around: str) -> bool:
        if local(node.tag) == "title":
            return around in _INFOS and self._parents[id(node)] in list(self._root)
        return around in ("title-info", "title-group")

    def _around(self, node: ElementTree.Element) -> str:
        """Return the name of the element around an element."""
        parent = self._parents.get(id(node))
        return local(parent.tag) if parent is not None else ""

    def _level(self, node: ElementTree.Element) -> int:
        """Return the number of divisions around an element, at least 1."""
        level, ancestor = 0, self._parents.get(id(node))
        for _ in range(_DEEPEST):
            if ancestor is None:
                break
            level += local(ancestor.tag) in _DIVISIONS
            ancestor = self._parents.get(id(ancestor))
        article = local(self._root.tag) == "article" and self._has_title()
        return min(max(level + article, 1), _DEEPEST_LEVEL)

    @property
    def _is_tei(self) -> bool:
        return local(self._root.tag).lower().startswith("tei")

    def _has_title(self) -> bool:
        if not hasattr(self, "_titled"):
            self._titled = any(local(node.tag) == "title-group" for node in self._root.iter())
        return self._titled

    def _tags(self, node: ElementTree.Element) -> Tags | None:
        """Return the HTML elements that stand for an element; None to leave it out."""
        tag, around = local(node.tag), self._around(node)
        if tag in _LEFT_OUT:
            return None
        if tag in _HEADS:
            return self._head(node, around)
        if tag == "label":
            return self._label(node, around)
        if tag == "body" and attribute(node, "name") in ("notes", "comments"):
            return (("div", {}),)
        if tag == "section" and self._around(node) == "body" and attribute(node, "id"):
            return (("div", {"id": attribute(node, "id")}),)
        if tag == "p" and around != "td" and _INDENTED.match("".join(node.itertext())) and not self._is_tei:
            return (("p", INDENTED),)
        if tag == "fn":
            _numbered(node)
        if tag == "item" and around == "list" and attribute(self._parents[id(node)], "type") in _GLOSSARIES:
            return (("div", {}),)
        if tag == "list":
            kind = attribute(node, "list-type") or attribute(node, "type") or attribute(node, "rend")
            kind = _LISTS.get(kind.removeprefix("ordered:"), "ul")
            return (("ul", {}),) if kind == "ul" else (("ol", {} if kind == "ol" else {"type": kind}),)
        if tag in ("td", "th", "cell"):
            across = attribute(node, "colspan") or attribute(node, "cols") or "1"
            down = attribute(node, "rowspan") or attribute(node, "rows") or "1"
            return (
                (
                    "th" if tag == "th" or attribute(node, "role") == "label" else "td",
                    {"colspan": across, "rowspan": down},
                ),
            )
        if tag in _DIVISIONS:
            return (("section", {}),)
        return self._within_a_line(node, tag, around)

    def _within_a_line(self, node: ElementTree.Element, tag: str, around: str) -> Tags | None:
        """Return the HTML elements that stand for an element of a paragraph."""
        if tag in ("graphic", "inline-graphic", "image", "imagedata"):
            return self._picture(node)
        if tag in ("xref", "a", "ref", "link") and (target := _target(node)):
            is_note = "note" in (attribute(node, "type"), attribute(node, "ref-type").replace("fn", "note"))
            return (("a", {"href": target, "role": "doc-noteref" if is_note else ""}),)
        if tag == "footnote" or (tag == "note" and around and self._is_tei):
            return self._note(node)
        if tag in ("q", "quote") and any(local(part.tag) in ("p", "para") for part in node):
            return (("blockquote", {}),)
        if tag == "hi" or (tag == "emphasis" and attribute(node, "role")):
            looks = " ".join(attribute(node, one) for one in ("rend", "rendition", "role", "style"))
            return next((((html, {}),) for html, look in _LOOKS.items() if look.search(looks)), ())
        if tag == "ab" and "code" in attribute(node, "type"):
            return (("pre", {}),)
        if tag == "tex-math":
            beside = self._parents.get(id(node))
            if beside is not None and any(local(part.tag) == FORMULA for part in beside):
                return None
            node.text = formulas.tex(node.text or "")
            return ()
        if tag in ("sic", "orig", "expan") and around == "choice":
            return None
        if tag == "gap":
            node.text = "[…]"
        if tag in ("ref", "element-citation", "mixed-citation", "contrib", "name", "date"):
            _spaced(node)
        return _PLAIN.get(tag, ())

    def _head(self, node: ElementTree.Element, around: str) -> Tags | None:
        if around in ("caption", "figure", "table", "fig", "table-wrap", "list") or around.endswith("citation"):
            return (("p", {}),) if not around.endswith("citation") else ()
        if around == "title-group" or around in ("article", "book", "part"):
            return (("h1", {}),)
        parent = self._parents.get(id(node))
        label = next((part for part in parent if local(part.tag) == "label"), None) if parent is not None else None
        if label is not None and label.text:
            node.text = f"{label.text.strip()} {node.text or ''}"
        # the paragraphs of a title of a FictionBook are its lines
        for at, line in enumerate(part for part in node if local(part.tag) == "p"):
            line.tag = "line"
            if at:
                line.text = f" {line.text or ''}"
        return ((f"h{self._level(node)}", {}),)

    def _label(self, node: ElementTree.Element, around: str) -> Tags | None:
        if around in _DIVISIONS:
            return None  # the heading has it
        node.tail = f" {node.tail or ''}"
        return (("p", {}),) if around in ("fig", "table-wrap", "list") else ()

    def _picture(self, node: ElementTree.Element) -> Tags:
        words = attribute(node, "alt")
        parent = self._parents.get(id(node))
        places = [node, *([parent] if parent is not None else [])]
        texts = ("".join(part.itertext()) for place in places for part in place if local(part.tag) == "alt-text")
        words = " ".join((words or next(texts, "")).split())
        described = {"alt": words} if words and not NAMELESS.match(words) else {}
        if key := self._keys.get(_target(node).removeprefix("#"), ""):
            return (("img", {"src": key, **described}),)
        if described:
            return (("img", described),)
        self._pictures += 1
        return ()

    def _note(self, node: ElementTree.Element) -> Tags:
        """Move a note within the text to the end of the document, and leave its number in its place."""
        mark = attribute(node, "n") or str(len(self._notes) + 1)
        inner = ElementTree.Element("div")
        inner.text, inner[:] = node.text, list(node)
        text = "\n".join(block.text for block in self._blocks(inner))
        self._notes.append(f"{mark}. {text}")
        node[:] = []
        node.text = mark
        return (("sup", {}), ("a", {"href": "#note", "role": "doc-noteref"}))


def _target(node: ElementTree.Element) -> str:
    """Return the place in the same file to which an element refers; "" if there is none."""
    if identity := attribute(node, "rid") or attribute(node, "linkend"):
        return f"#{identity}"
    place = attribute(node, "href") or attribute(node, "target")
    return place if place.startswith("#") else ""


def _numbered(note: ElementTree.Element) -> None:
    """Write the number of a note before its first paragraph."""
    label = next((part for part in note if local(part.tag) == "label"), None)
    first = next((part for part in note if local(part.tag) == "p"), None)
    if label is not None and label.text and first is not None:
        first.text = f"{label.text.strip().rstrip('.')}. {first.text or ''}"
        note.remove(label)


def _spaced(node: ElementTree.Element) -> None:
    """Put a space after each part of an element whose parts are set apart by the program that shows it."""
    if node.text and node.text.strip():
        return
    for part in node:
        part.tail = f" {part.tail or ''}"
