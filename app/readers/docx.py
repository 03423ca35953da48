"""Reads Word files (DOCX): the text split by its headings, then notes, comments, headers and footers.

Walks the XML itself instead of using the library mammoth. mammoth would pass hidden text to the model, fails on the
whole file if only its styles or notes are broken, takes eight times as long, and reports no progress. Runs only in the
child process (``app.readers.child``).
"""

from __future__ import annotations

import email
import email.policy
import io
import posixpath
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from app.readers import archive, cleaning, docx_drawn, encoding, markup, numerals
from app.readers.archive import attribute, local
from app.readers.docx_bound import Bindings
from app.readers.docx_numbers import Numbering
from app.readers.docx_styles import DocxStyles
from app.readers.docx_text import MARK, DocxParser, Surroundings
from app.readers.left_out import told
from app.readers.office import Package
from app.readers.parsed import Limits, Parsed, Step
from app.readers.sections import Block, Chapter, by_headings, finish, split_levels

_BODY = "word/document.xml"
_TYPES = "[Content_Types].xml"
_BODY_TYPE = re.compile(r"(?:wordprocessingml|ms-word)\..*main\+xml$")
_NOTES = (("footnotes", "Footnotes", "footnoteReference"), ("endnotes", "Endnotes", "endnoteReference"))
_COMMENTS, _HEADERS = "Comments", "Headers and footers"
# a header or footer with a page number and at most this many letters is left out
_HEADER_LETTERS = 12
_DEEPEST_INSERTED = 3  # maximum nesting of embedded documents; a deeper document is left out with a warning
_EQUATIONS = ("equation", "mathtype")


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a DOCX file."""
    step(0, 1, None)
    with archive.opened_whole(path, limits) as files:
        parser = _File(files, limits, lambda: step(0, 1, None), comments=request.get("comments", True))
        chapters = parser.chapters()
        title, author = parser.title_and_author()
    sections, outline = finish(chapters)
    title = title or parser.title
    warnings = parser.warnings + told(parser.walk.left_out, (chapter.text for chapter in chapters))
    return Parsed(sections, title, author, outline, warnings, parser.walk.left_out)


def body(files: zipfile.ZipFile) -> str:
    """Return the name of the part with the main text; "" if the file is no Word file."""
    names = files.namelist()
    if _BODY in names:
        return _BODY
    if _TYPES not in names:
        return ""
    for part in archive.read_xml(files.read(_TYPES), "its list of parts"):
        name = part.get("PartName", "").lstrip("/")
        if _BODY_TYPE.search(part.get("ContentType", "")) and name in names:
            return name
    return ""


class _File(Package):
    """A Word file and its parts. A damaged part does not stop the reading, unless it is the main text."""

    def __init__(
        self,
        files: zipfile.ZipFile,
        limits: Limits,
        progress: Callable[[], None],
        depth: int = 0,
        *,
        comments: bool = True,
    ) -> None:
        super().__init__(files)
        self._with_comments = comments
        self._bindings = Bindings(self)
        self._limits = limits
        self._alive = progress
        self._depth = depth
        self._body = body(files)
        self.title = ""
        styles = self.attempt(lambda: DocxStyles(self.xml(self._part("styles"), "its list of styles")), DocxStyles())
        numbering = self.attempt(lambda: Numbering(self.xml(self._part("numbering"), "its lists")), Numbering())
        # name of the part that is being read; relation ids are looked up in this part's relations
        self._reading = self._body
        self.walk = DocxParser(Surroundings(styles, numbering, self._drawn, self._inserted, self._embedded, progress))

    def chapters(self) -> list[Chapter]:
        """Return the main text split by its headings, then notes, comments, headers and footers."""
        root = self.xml(self._body, "its text")
        if root is None:
            raise KeyError(self._body)
        self._bindings.fill(root)
        marks = {kind: _number_notes(root, kind, self._notes_of(kind)) for _, _, kind in _NOTES}
        blocks = self.walk.blocks(root)
        self.title = next((block.text for block in blocks if block.level == 1), "")
        chapters = by_headings(blocks, split_levels(blocks))
        for name, title, kind in _NOTES:
            text = self.attempt(partial(self._notes, name, marks[kind]), "")
            chapters.append(Chapter(title, text))
        chapters.append(Chapter(_COMMENTS, self.attempt(self._comments, "")))
        self.walk.in_header = True
        chapters.append(Chapter(_HEADERS, self.attempt(lambda: self._headers(root, blocks), "")))
        self._tell_objects()
        return [chapter for chapter in chapters if chapter.text]

    # Parts

    def _notes_of(self, kind: str) -> _NoteForm:
        """Return how notes are numbered that are referred to by elements ``kind``. Word numbers endnotes in Roman
        numerals unless the file says otherwise.
        """
        usual = _NoteForm("lowerRoman" if kind == "endnoteReference" else "decimal")
        root = self.attempt(lambda: self.xml(self._part("settings"), "its settings"), None)
        name = kind.replace("Reference", "Pr")
        return usual.changed(
            next((node for node in root if local(node.tag) == name), None) if root is not None else None
        )

    def _part(self, kind: str) -> str:
        """Return the name of the file's part of this kind, such as "styles". If the main text refers to no such part,
        return the part's usual name.
        """
        named = (name for relation, name in self.related(self._body).values() if relation == kind)
        return next(named, posixpath.join(posixpath.dirname(self._body), f"{kind}.xml"))

    def _drawn(self, identity: str) -> list[Block]:
        """Return the text of the diagram or chart with this relation id; [] if it cannot be read."""
        kind, name = self.related(self._reading).get(identity, ("", ""))
        root = self.attempt(lambda: self.xml(name, "a drawing"), None)
        if root is None:
            return []
        return docx_drawn.chart(root) if kind.startswith("chart") else docx_drawn.diagram(root)

    def _embedded(self, identity: str) -> str:
        """Return the name of the part of the picture with this relation id; "" if the file lacks it."""
        return self.names.find(self.related(self._reading).get(identity, ("", ""))[1]) or ""

    def _inserted(self, identity: str) -> list[Block]:
        """Return the text of the embedded document with this relation id. If it cannot be read, add a warning and
        return [].
        """
        name = self.names.find(self.related(self._reading).get(identity, ("", ""))[1])
        blocks: list[Block] | None = None
        if name is not None and self._depth < _DEEPEST_INSERTED:
            blocks = self.attempt(lambda: self._read_inserted(self.files.read(name)), None)
        if blocks is None:
            which = f" ({posixpath.basename(name)})" if name else ""
            self.warnings.append(f"A document inserted into this one{which} is not read.")
        return blocks or []

    def _read_inserted(self, data: bytes) -> list[Block] | None:
        if data.startswith(b"PK"):
            return self._read_inserted_file(data)
        if data.lstrip()[:5] == b"{\\rtf" or not encoding.is_text(data):
            return None
        head = data[:2000].lower()
        if b"mime-version:" in head or head.startswith(b"content-type:"):
            message = email.message_from_bytes(data, policy=email.policy.default)
            page = next((part for part in message.walk() if part.get_content_type() == "text/html"), None)
            content = page.get_payload(decode=True) if page is not None else b""
            data = content if isinstance(content, bytes) else b""
        text = markup.decode_html(data)
        if "<" in text:
            return markup.read(text, self._alive).blocks
        return [Block(part) for part in cleaning.characters(text).split("\n\n") if part.strip()]

    def _read_inserted_file(self, data: bytes) -> list[Block] | None:
        try:
            with archive.open_bounded(io.BytesIO(data), self._limits) as files:
                inner = _File(files, self._limits, self._alive, self._depth + 1, comments=self._with_comments)
                chapters = inner.chapters()
        except (*archive.DAMAGE, KeyError):
            return None
        self.warnings += inner.warnings
        self.walk.left_out.update(inner.walk.left_out)
        return [Block(part) for chapter in chapters for part in chapter.text.split("\n\n")]

    # Parts other than the main text

    def _text(self, node: ElementTree.Element, part: str) -> str:
        """Return the text of a note, a comment, or an element of a header. ``part`` is the name of the file's part that
        contains ``node``.
        """
        self._reading = part
        return "\n".join(block.text for block in self.walk.blocks(node) if block.text)

    def _notes(self, kind: str, numbers: dict[str, str]) -> str:
        part = self._part(kind)
        root = self.xml(part, "its notes")
        texts = {}
        for note in root if root is not None else ():
            if not attribute(note, "type") and (text := self._text(note, part)):
                texts[attribute(note, "id")] = text
        order = [*(identity for identity in numbers if identity in texts), *sorted(texts.keys() - numbers.keys())]
        marks = {identity: numbers.get(identity, identity) for identity in order}
        return "\n\n".join(
            f"{marks[identity]}. {texts[identity]}" if marks[identity] else texts[identity] for identity in order
        )

    def _comments(self) -> str:
        """Return the reviewers' comments. Each comment has its author and the passage to which it refers."""
        part = self._part("comments")
        root = self.xml(part, "its comments")
        lines = []
        for comment in root if root is not None else ():
            text = self._text(comment, part)
            if local(comment.tag) == "comment" and text:
                about = cleaning.one_line(self.walk.anchors.get(attribute(comment, "id"), ""))
                author = cleaning.one_line(attribute(comment, "author")) or "A reviewer"
                lines.append(f"{author}{f' on “{about}”' if about else ''}: {text}")
        if lines and not self._with_comments:
            self.warnings.append(f"Comments of reviewers were left out, as asked: {len(lines):,}.")
            return ""
        if lines:
            noun = "comment of a reviewer stands" if len(lines) == 1 else "comments of reviewers stand"
            self.warnings.append(f"{len(lines):,} {noun} at the end, in a section “{_COMMENTS}”.")
        return "\n\n".join(lines)

    def _headers(self, root: ElementTree.Element, blocks: list[Block]) -> str:
        """Return the headers and footers that Word shows, each once. Omit a header or footer that repeats a paragraph
        or has little more than a page number.
        """
        said = {" ".join(block.text.split()).casefold() for block in blocks}
        texts: dict[str, None] = {}
        related = self.related(self._body)
        for identity in _headers_shown(root):
            kind, part = related.get(identity, ("", ""))
            content = self.xml(part, f"a {kind}") if kind in ("header", "footer") else None
            if content is not None:
                self._bindings.fill(content)
            for node in content if content is not None else ():
                self.walk.page_fields = False
                text = self._text(_around(node), part)
                letters = sum(sign.isalpha() for sign in text)
                chrome = letters <= _HEADER_LETTERS if self.walk.page_fields else not letters and len(text) < 2
                if text and not chrome and " ".join(text.split()).casefold() not in said:
                    texts.setdefault(text)
        return "\n\n".join(texts)

    def _tell_objects(self) -> None:
        """Warn about embedded objects and private-use characters, which cannot be read. Only the program that made an
        object can show it, and only a font defines its private-use characters.
        """
        old = sum(count for name, count in self.walk.objects.items() if name.casefold().startswith(_EQUATIONS))
        others = {
            name: count for name, count in self.walk.objects.items() if not name.casefold().startswith(_EQUATIONS)
        }
        if old:
            self.warnings.append(f"Formulas of an old equation editor, which are pictures, are not read: {old:,}.")
        if others:
            programs = ", ".join(sorted(others)[:5])
            self.warnings.append(f"Embedded objects are not read: {sum(others.values()):,} ({programs}).")
        if self.walk.pictures:
            said = f"Pictures without a description, whose words are not read: {self.walk.pictures:,}."
            self.warnings.append(said)
        signs = self.walk.left_out.pop("signs", 0)
        if signs:
            self.warnings.append(f"Signs of fonts that only their maker knows are not read: {signs:,}.")


def _around(node: ElementTree.Element) -> ElementTree.Element:
    parent = ElementTree.Element("part")
    parent.append(node)
    return parent


def _headers_shown(root: ElementTree.Element) -> list[str]:
    """Return the relation ids of the headers and footers of all sections. A first-page header counts only if the
    section sets ``titlePg``.
    """
    ids: dict[str, None] = {}
    for section in root.iter(_named(root, "sectPr")):
        parts = {local(part.tag): part for part in section}
        first = "titlePg" in parts and attribute(parts["titlePg"], "val") not in ("0", "false", "off")
        for part in section:
            shown = attribute(part, "type") != "first" or first
            if local(part.tag) in ("headerReference", "footerReference") and shown:
                ids.setdefault(attribute(part, "id"))
    return list(ids)


@dataclass
class _NoteForm:
    """How the notes of a document or of a section are numbered. ``restarts``: whether each section starts anew."""

    style: str = "decimal"
    start: int = 1
    restarts: bool = False

    def changed(self, settings: ElementTree.Element | None) -> _NoteForm:
        """Return the form with the settings of an element ``footnotePr`` or ``endnotePr``."""
        values = {local(part.tag): attribute(part, "val") for part in settings} if settings is not None else {}
        start = values.get("numStart", "")
        return _NoteForm(
            values.get("numFmt", self.style),
            int(start) if start.isdigit() and len(start) < 6 else self.start,
            values.get("numRestart") == "eachSect" if "numRestart" in values else self.restarts,
        )


def _number_notes(root: ElementTree.Element, kind: str, usual: _NoteForm) -> dict[str, str]:
    """Number the references to notes in text order, as Word does. Turn each reference into an element with the number
    as its text.

    Args:
        root: the main text.
        kind: the name of the references' elements.
        usual: the form of the numbers in sections that state none.

    Returns:
        Numbers by note id; "" for a note with a custom mark, because the text already contains the mark.
    """
    numbers: dict[str, str] = {}
    name, section, settings = _named(root, kind), _named(root, "sectPr"), kind.replace("Reference", "Pr")
    nodes = [node for node in root.iter() if node.tag in (name, section)]
    ends = [node for node in nodes if node.tag == section]  # a section's settings stand at its end
    forms = [usual.changed(next((part for part in end if local(part.tag) == settings), None)) for end in ends]
    forms = forms or [usual]
    at, count = 0, forms[0].start - 1
    for node in nodes:
        if node.tag == section:
            at = min(at + 1, len(forms) - 1)
            count = forms[at].start - 1 if forms[at].restarts else count
            continue
        identity = attribute(node, "id")
        if identity not in numbers:
            marked = attribute(node, "customMarkFollows") in ("1", "true", "on")
            count += not marked
            numbers[identity] = "" if marked else numerals.written(count, forms[at].style)
        node.text = numbers[identity]
        node.tag = MARK
    return numbers


def _named(root: ElementTree.Element, name: str) -> str:
    """Return ``name`` qualified with the root's namespace, as ``Element.iter`` needs it."""
    return f"{root.tag.rpartition('}')[0]}}}{name}" if "}" in root.tag else name
