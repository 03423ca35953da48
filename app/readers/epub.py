"""Reads EPUB books: the files in the order of the spine, split into chapters that the table of contents names.

Unpacks nothing to disk, and follows no link out of the container. Runs only in the child process
(``app.readers.child``). EbookLib is not used, because it reads every file of the container into memory, whatever its
size, and is under the AGPL.
"""

from __future__ import annotations

import html
import posixpath
import re
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

from app.readers import archive, cleaning, encoding, markup
from app.readers.archive import local
from app.readers.css import Styles
from app.readers.left_out import told
from app.readers.markup import decode_html
from app.readers.parsed import Limits, Parsed, Refused, Step, damaged
from app.readers.picture_marks import IN_PAGE, named
from app.readers.sections import Block, Chapter, by_headings, finish, split_levels

_CONTAINER = "META-INF/container.xml"
_ENCRYPTION = "META-INF/encryption.xml"
_NO_TEXT_TYPES = re.compile(
    r"(?:image/(?!svg)|audio/|video/|font/|text/css|application/(?:pdf|font|vnd\.ms-|x-font|x-dtbncx))"
)
_TEXT_NAMES = (".xhtml", ".html", ".htm")
_RIGHTS = ("META-INF/rights.xml", "META-INF/sinf.xml", "META-INF/license.lcpl", _ENCRYPTION)
_NO_TEXT = "what is in it is not text"
_MOST_SAID = 20  # maximum warnings about missing parts; further warnings are dropped
_MOST_FALLBACKS = 10
_HEAD = 20_000  # leading characters of a file that are searched for links to style sheets
_MOST_SHEETS = 20
_LINK = re.compile(rb"href\s*=\s*[\"']([^\"'#<>]{1,300})")
_SHEET = re.compile(r"<link\b[^<>]{0,300}?href\s*=\s*[\"']([^\"'<>]{1,300}\.css)[\"']", re.I)
_CDATA = ("<![CDATA[", "]]>")
_SUBSET = re.compile(r"\s*(?:<\?[^>]{0,500}\?>\s*)?<!DOCTYPE[^\[\]<>]{0,500}\[[^\]]{0,20000}\]\s*>", re.I)
_ENTITY = re.compile(r"<!ENTITY\s+([\w.-]{1,60})\s+(?:\"([^\"<&%]{0,200})\"|'([^'<&%]{0,200})')\s*>")
_USE = re.compile(r"&([\w.-]{1,60});")
_MOST_ENTITIES = 500
_MOST_USES = 100_000  # maximum uses of entities in a file; with more, they stay as they are
# Minimum share of the spine's files that have an entry in a complete table of contents. If the table is complete, a
# file without entry and heading continues the preceding chapter. Otherwise such a file starts a chapter.
_NAMED_SHARE = 0.5


@dataclass
class _Package:
    """The content of the package file (OPF). ``spine``, ``nav``, ``ncx`` and ``texts`` hold paths inside the
    container.
    """

    title: str = ""
    author: str = ""
    date: str = ""
    spine: list[str] = field(default_factory=list)
    nav: str = ""
    ncx: str = ""
    texts: list[str] = field(default_factory=list)  # text files outside the spine
    pictures: int = 0  # number of spine items that have no text, not even in a fallback
    warnings: list[str] = field(default_factory=list)


@dataclass
class _Entry:
    """An entry of the table of contents."""

    title: str
    file: str
    anchor: str
    level: int


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read an EPUB book.

    Args:
        path: the file.
        request: ``trouble`` has the spine files on which an earlier attempt failed, as number (as text) -> reason.
            These files are skipped.
        limits: limits for the book's size.
        step: called before each file, to report progress.
    """
    with archive.opened_whole(path, limits) as files:
        package = _package(files)
        _refuse_locked(files, package)
        entries = _table_of_contents(files, package.nav, package.ncx)
        trouble = {int(number): reason for number, reason in request.get("trouble", {}).items()}
        chapters, warnings, left_out = _chapters(files, package, entries, trouble, limits, step)
        _refuse_unreadable(files, package, chapters, warnings)
    sections, outline = finish(chapters)
    if not sections:
        raise Refused("has no text in it: its pages are images or empty.", "Choose an edition with text.")
    said = package.warnings + warnings
    return Parsed(sections, package.title, package.author, outline, said, left_out, package.date)


def _package(files: zipfile.ZipFile) -> _Package:
    place = _place_of_package(files)
    if not place:
        return _by_names(files, _Package())
    try:
        root = archive.read_xml(files.read(archive.Names(files).find(place) or ""), "its package file")
    except archive.BrokenXml:
        return _by_names(files, _Package())
    base = posixpath.dirname(place)
    package, manifest = _Package(), dict[str, ElementTree.Element]()
    for node in root.iter():
        name = local(node.tag)
        if name == "title" and not package.title:
            package.title = node.text or ""
        elif name == "creator" and node.text:
            package.author = f"{package.author}, {node.text}" if package.author else node.text
        elif name == "date" and node.text and not _is_of_file(node):
            package.date = package.date or node.text
        elif name == "item":
            manifest[node.get("id", "")] = node
            target = _inside(base, node.get("href", ""))[0]
            if "nav" in (node.get("properties") or "").split():
                package.nav = target
            elif node.get("media-type") == "application/x-dtbncx+xml":
                package.ncx = target
    order = [manifest.get(node.get("idref", "")) for node in root.iter() if local(node.tag) == "itemref"]
    if missing := sum(item is None for item in order):
        package.warnings.append(f"Parts that the list of chapters names, but the file does not hold: {missing:,}.")
    texts = [_text_of(item, manifest) for item in order]
    package.pictures = sum(item is not None and text is None for item, text in zip(order, texts, strict=True))
    package.spine = list(dict.fromkeys(_inside(base, text.get("href", ""))[0] for text in texts if text is not None))
    if not package.spine and package.pictures:
        raise Refused("has no text in it: its pages are images.", "Choose an edition with text.")
    if package.pictures:
        package.warnings.append(f"Pages that are pictures, whose words are not read: {package.pictures:,}.")
    named = {_inside(base, item.get("href", ""))[0]: None for item in manifest.values() if _is_text(item)}
    ordered = set(package.spine)
    package.texts = [name for name in named if name not in ordered and name.lower().endswith(_TEXT_NAMES)]
    return package if package.spine else _by_names(files, package)


def _place_of_package(files: zipfile.ZipFile) -> str:
    """Return the path of the package file. Usually ``META-INF/container.xml`` states the path. Otherwise it is the
    first ``.opf`` file; "" if there is none.
    """
    names = archive.Names(files)
    place = ""
    if _CONTAINER in names:
        root = archive.read_xml(files.read(names.find(_CONTAINER) or ""), "its container file")
        place = next((node.get("full-path", "") for node in root.iter() if local(node.tag) == "rootfile"), "")
    if place not in names:
        place = next((name for name in sorted(files.namelist()) if name.endswith(".opf")), "")
    return place


def _text_of(item: ElementTree.Element | None, manifest: dict[str, ElementTree.Element]) -> ElementTree.Element | None:
    """Return the spine item if it is text, or else the first text among its fallbacks; None if none of them is text."""
    for _ in range(_MOST_FALLBACKS):
        if item is None or _is_text(item):
            return item
        item = manifest.get(item.get("fallback", ""))
    return None


def _is_text(item: ElementTree.Element) -> bool:
    return not _NO_TEXT_TYPES.match(item.get("media-type", ""))


def _by_names(files: zipfile.ZipFile, found: _Package) -> _Package:
    """Use all text files, sorted by name, as the spine of a book that has none."""
    names = [name for name in files.namelist() if name.lower().endswith(_TEXT_NAMES) and name != found.nav]
    if not names:
        raise damaged("is damaged: it has no list of chapters, and no chapters.")
    found.spine = sorted(names, key=_counting)
    found.warnings.append("The list of chapters is damaged; they are in the order of their file names.")
    return found


def _counting(name: str) -> list[tuple[int, str]]:
    """Return a sort key that puts chapter10 after chapter9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", name)]


def _refuse_locked(files: zipfile.ZipFile, package: _Package) -> None:
    names = archive.Names(files)
    if _ENCRYPTION not in names:
        return
    try:
        root = archive.read_xml(files.read(names.find(_ENCRYPTION) or ""), "its encryption file")
    except archive.BrokenXml:
        return  # encrypted chapters are detected by their bytes when they are read
    locked = {
        _inside("", node.get("URI", ""))[0].casefold() for node in root.iter() if local(node.tag) == "CipherReference"
    }
    # other encrypted files, such as fonts, are common and harmless
    if locked & {name.casefold() for name in package.spine}:
        raise _locked()


def _locked() -> Refused:
    return Refused(
        "is locked by copy protection (DRM).",
        "Read it in the shop's own program, or get a copy without copy protection.",
    )


def _refuse_unreadable(files: zipfile.ZipFile, package: _Package, chapters: list[Chapter], warnings: list[str]) -> None:
    """Refuse a book without any readable text, and state the reason."""
    if any(chapter.text for chapter in chapters) or not warnings:
        return
    if any(_NO_TEXT in warning for warning in warnings) and any(name in archive.Names(files) for name in _RIGHTS):
        raise _locked()
    raise damaged(f"is damaged: none of its {len(package.spine):,} chapters can be read. {warnings[0]}")


def _chapters(
    files: zipfile.ZipFile,
    package: _Package,
    entries: list[_Entry],
    trouble: dict[int, str],
    limits: Limits,
    step: Step,
) -> tuple[list[Chapter], list[str], Counter[str]]:
    by_file: dict[str, list[_Entry]] = {}
    for entry in entries:
        by_file.setdefault(entry.file, []).append(entry)
    named = sum(name in by_file for name in package.spine) >= _NAMED_SHARE * len(package.spine)
    chapters: list[Chapter] = []
    warnings: list[str] = []
    characters, waiting = 0, list[_Entry]()
    parser = _ChapterParser(files, package)
    spine = list(package.spine)
    # files that the spine's files link to are appended to ``spine`` during the loop
    for number, name in enumerate(spine, 1):
        step(number - 1, len(spine), number)
        reason = trouble.get(number) if trouble.get(number) != "second" else "its reader failed on it"
        blocks, reason = parser.read_or_say_why(name) if reason is None else ([], reason)
        if reason:
            warnings.append(f"“{posixpath.basename(name)}” could not be read: {reason}.")
        characters += sum(len(block.text) for block in blocks)
        if characters > limits.characters:
            raise Refused(f"has more than {limits.characters:,} characters.", "Split it into parts.")
        if number == len(spine):
            spine += [name for name in parser.linked() if name not in spine]
        here = waiting + by_file.get(name, [])
        # entries of the table of contents for a file without text, such as a cover image, pass to the next file
        waiting = [] if any(block.text for block in blocks) else here
        if entries:
            _split(blocks, here, chapters, named=named)
        else:  # without a table of contents, headings name the chapters
            chapters += by_headings(blocks, split_levels(blocks))
    warnings += parser.warnings[:_MOST_SAID]
    if parser.pictures and any(chapter.text for chapter in chapters):
        warnings.append(f"Pictures without a description, whose words are not read: {parser.pictures:,}.")
    return chapters, warnings + told(parser.left_out, (chapter.text for chapter in chapters)), parser.left_out


class _ChapterParser:
    """Reads the files of a book and their style sheets. Collects the links to other files of the book."""

    def __init__(self, files: zipfile.ZipFile, package: _Package) -> None:
        self._files = files
        self._names = archive.Names(files)
        self._package = package
        self._links: set[str] = set()
        self._framed: dict[str, None] = {}
        self.warnings: list[str] = []
        self._styles: dict[tuple[str, ...], Styles] = {}
        self.left_out: Counter[str] = Counter()
        self.pictures = 0

    def read_or_say_why(self, name: str) -> tuple[list[Block], str | None]:
        """Read a file. Return (its blocks, None), or ([], the reason) if the file is missing or cannot be read."""
        try:
            return self.read(name)
        except KeyError:
            return [], "it is missing from the file"
        except Exception:  # noqa: BLE001 - one bad chapter is a warning, not a lost book
            return [], "it is damaged"

    def read(self, name: str) -> tuple[list[Block], str | None]:
        """Read a file. Return (its blocks, None), or ([], the reason) if the file is not text."""
        data = self._files.read(self._names.find(name) or name)
        if not encoding.is_text(data):
            return [], _NO_TEXT
        if self._package.texts:
            self._links.update(_inside(posixpath.dirname(name), _spelled(link))[0] for link in _LINK.findall(data))
        text = _spelled_out(decode_html(data))
        if "<" not in text:
            return [Block(part) for part in cleaning.characters(text).split("\n\n") if part.strip()], None
        is_contents = name == self._package.nav
        page = markup.read(text, styles=self._sheets(name, text), contents=not is_contents, marks=True)
        if is_contents and all(block.level or not block.text for block in page.blocks):
            if len(self._package.spine) > 1:
                return [], None  # the page is only a table of contents, which the app shows elsewhere
            page = markup.read(text, styles=self._sheets(name, text), marks=True)
        base = posixpath.dirname(name)
        self.left_out.update(page.left_out)
        self.pictures += page.pictures + named(page.blocks, lambda source: self._part(base, source))
        for reference in page.framed:
            place = _inside(posixpath.dirname(name), reference)[0]
            if place in self._names:
                self._framed[self._names.find(place) or place] = None
            else:
                self.warnings.append(f"A part of “{posixpath.basename(name)}” is not in the book: {reference}.")
        return page.blocks, None

    def _part(self, base: str, key: str) -> str:
        """Return the name of a picture's part from its key in a page of the folder ``base``; "" if there is none."""
        return "" if key.startswith(IN_PAGE) else self._names.find(_inside(base, key)[0]) or ""

    def linked(self) -> list[str]:
        """Return the files outside the spine that the files read so far link to or embed as frames."""
        linked = [name for name in self._package.texts if name in self._links]
        return [name for name in dict.fromkeys([*linked, *self._framed]) if name != self._package.nav]

    def _sheets(self, name: str, text: str) -> Styles:
        base = posixpath.dirname(name)
        places = tuple(_inside(base, html.unescape(link))[0] for link in _SHEET.findall(text[:_HEAD])[:_MOST_SHEETS])
        if places not in self._styles:
            self._styles[places] = Styles(*(self._sheet(place) for place in places))
        return self._styles[places]

    def _sheet(self, place: str) -> str:
        try:
            return self._files.read(self._names.find(place) or place).decode("utf-8", errors="replace")
        except (*archive.DAMAGE, KeyError):
            return ""  # the book is read without this style sheet


def _spelled_out(text: str) -> str:
    """Write the parts of XHTML that HTML lacks as HTML: sections of plain characters (CDATA), and entities that the
    file defines. Entities in entities stay as they are, and so do all if they are many.
    """
    start, end = _CDATA
    head, *sections = text.split(start)
    for section in sections:
        plain, ended, rest = section.partition(end)
        head += html.escape(plain, quote=False) + rest if ended else start + section
    text = head
    subset = _SUBSET.match(text)
    if subset is None:
        return text
    text = text[subset.end() :]
    values = {name: one or other for name, one, other in _ENTITY.findall(subset[0])[:_MOST_ENTITIES]}
    if not values or text.count("&") > _MOST_USES:
        return text
    return _USE.sub(lambda found: values.get(found[1], found[0]), text)


def _spelled(link: bytes) -> str:
    return html.unescape(link.decode("utf-8", errors="replace"))


def _split(blocks: list[Block], entries: list[_Entry], chapters: list[Chapter], *, named: bool) -> None:
    """Split one file of the spine into chapters at the places that the table of contents points to.

    Args:
        blocks: the blocks of the file.
        entries: entries of the table of contents that point into the file.
        chapters: the chapters of the preceding files; the new chapters are appended. Text before the first place may be
            added to the last of the preceding chapters.
        named: whether the table of contents names most files. If so, a file without an entry continues the preceding
            chapter.
    """
    places = {anchor: at for at, block in reversed(list(enumerate(blocks))) for anchor in block.anchors}
    starts: dict[int, _Entry] = {}
    for entry in entries:
        starts.setdefault(places.get(entry.anchor, 0) if entry.anchor else 0, entry)
    if 0 not in starts and blocks:
        if chapters and starts and not any(block.level for block in blocks[: min(starts)]):
            chapters[-1].text += "\n\n" + _joined(blocks[: min(starts)])
        else:
            rest = blocks[: min(starts, default=len(blocks))]
            heading = next((block.text for block in rest if block.level), "")
            if not starts and not heading and chapters and named:
                chapters[-1].text += "\n\n" + _joined(rest)
            else:
                chapters.append(Chapter(heading, _joined(rest), 0, listed=bool(heading) and not named))
    order = sorted(starts)
    for start, end in zip(order, [*order[1:], len(blocks)][: len(order)], strict=True):
        entry = starts[start]
        chapters.append(Chapter(entry.title, _joined(blocks[start:end]), entry.level))


def _joined(blocks: list[Block]) -> str:
    return "\n\n".join(block.text for block in blocks if block.text)


def _table_of_contents(files: zipfile.ZipFile, nav: str, ncx: str) -> list[_Entry]:
    """Read the table of contents; [] if it is missing or broken.

    Args:
        files: the container.
        nav: path of the navigation page (EPUB 3) inside the container; "" if it is missing.
        ncx: path of the NCX file (EPUB 2) inside the container; "" if it is missing.
    """
    names = archive.Names(files)
    try:
        if nav in names:
            root = archive.read_xml(files.read(names.find(nav) or ""), "its table of contents")
            entries = _nav_entries(root, posixpath.dirname(nav))
            if entries:
                return entries
        if ncx in names:
            root = archive.read_xml(files.read(names.find(ncx) or ""), "its table of contents")
            entries = []
            for node in root.iter():
                if local(node.tag) == "navMap":
                    _ncx_entries(node, posixpath.dirname(ncx), 0, entries)
            return entries
    except (Refused, zipfile.BadZipFile, RecursionError):
        pass
    return []


def _nav_entries(root: ElementTree.Element, base: str) -> list[_Entry]:
    lists = [node for node in root.iter() if local(node.tag) == "nav"]
    kinds = [" ".join(value for key, value in node.attrib.items() if local(key) == "type") for node in lists]
    chosen = next((node for node, kind in zip(lists, kinds, strict=True) if kind == "toc"), None)
    if chosen is None:
        chosen = lists[0] if lists else root
    entries: list[_Entry] = []

    def walk(node: ElementTree.Element, level: int) -> None:
        for child in node:
            name = local(child.tag)
            if name == "a" and child.get("href"):
                file, anchor = _inside(base, child.get("href", ""))
                entries.append(_Entry(" ".join("".join(child.itertext()).split()), file, anchor, max(level, 0)))
            else:
                walk(child, level + (name == "ol"))

    walk(chosen, -1)
    return entries


def _ncx_entries(node: ElementTree.Element, base: str, level: int, entries: list[_Entry]) -> None:
    for point in node:
        if local(point.tag) != "navPoint":
            continue
        title, place = "", ""
        for child in point:
            if local(child.tag) == "navLabel":
                title = " ".join("".join(child.itertext()).split())
            elif local(child.tag) == "content":
                place = child.get("src", "")
        file, anchor = _inside(base, place)
        if title and file:
            entries.append(_Entry(title, file, anchor, level))
        _ncx_entries(point, base, level + 1, entries)


def _inside(base: str, reference: str) -> tuple[str, str]:
    """Resolve a reference that stands in a file of the folder ``base``. Return the path inside the container and the
    anchor.
    """
    target, _, anchor = reference.partition("#")
    if not target:
        return "", anchor
    place = posixpath.join(base, unquote(target).replace("\\", "/"))
    return posixpath.normpath(place).lstrip("/"), unquote(anchor)


def _is_of_file(node: ElementTree.Element) -> bool:
    """Whether a date is the file's date of creation or modification, rather than the date of publication."""
    return any(local(name) == "event" and "publication" not in value for name, value in node.attrib.items())
