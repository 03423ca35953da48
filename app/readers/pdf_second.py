"""The second reader of PDF files: pypdf. For pages and files that pdfium cannot read, and for what fonts are missing.

Slower, and blind to geometry; written in another language by other people, so it seldom fails on the same file. Runs
in the child only.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Literal

from app.readers import cleaning
from app.readers.limits import Limits
from app.readers.lines import Line, reflow
from app.readers.parsed import Heading, Parsed, Refused, Section, damaged

FontTrouble = Literal["", "unmapped", "absent"]

_SYMBOLIC = 4
_CJK = ("Japan1", "GB1", "CNS1", "Korea1", "KR")


class Second:
    """A PDF as pypdf sees it; opened when first asked for, silent where it cannot be."""

    def __init__(self, path: Path, password: str | None) -> None:
        self._path = path
        self._password = password
        self._reader: Any = None
        self._failed = False
        self._fonts: dict[Any, FontTrouble] = {}

    def lines(self, index: int) -> list[Line]:
        """The lines of a page, with made-up geometry: one under the other."""
        text = self._open().pages[index].extract_text()
        return _as_lines(text)

    def font_trouble(self, index: int) -> FontTrouble:
        """Whether a font of this page gives wrong or no text; "" also where it cannot be told."""
        if self._failed:
            return ""
        try:
            resources = self._open().pages[index].get("/Resources", {}).get_object()
            fonts = resources.get("/Font", {}).get_object()
            found = [self._judged(reference) for reference in fonts.values()]
        except Exception:  # noqa: BLE001 - only a hint is lost
            self._failed = True
            return ""
        return "absent" if "absent" in found else "unmapped" if "unmapped" in found else ""

    def _judged(self, reference: Any) -> FontTrouble:
        key = getattr(reference, "idnum", None)
        if key is None:
            return _judge(reference.get_object())
        if key not in self._fonts:
            self._fonts[key] = _judge(reference.get_object())
        return self._fonts[key]

    def _open(self) -> Any:
        if self._reader is None:
            self._reader = _reader(self._path, self._password)
        return self._reader


def _judge(font: Any) -> FontTrouble:
    if "/ToUnicode" in font:
        return ""
    if font.get("/Subtype") != "/Type0":
        descriptor = font.get("/FontDescriptor", {}).get_object() if "/FontDescriptor" in font else {}
        own = font.get("/Subtype") == "/TrueType" and "/FontFile2" in descriptor
        symbolic = int(descriptor.get("/Flags", 0)) & _SYMBOLIC
        return "unmapped" if own and symbolic and "/Encoding" not in font else ""
    descendant = font["/DescendantFonts"].get_object()[0].get_object()
    descriptor = descendant.get("/FontDescriptor", {}).get_object() if "/FontDescriptor" in descendant else {}
    embedded = any(name in descriptor for name in ("/FontFile", "/FontFile2", "/FontFile3"))
    ordering = str(descendant.get("/CIDSystemInfo", {}).get_object().get("/Ordering", ""))
    if ordering in _CJK:
        return "" if embedded else "absent"
    return "unmapped" if str(font.get("/Encoding", "")).startswith("/Identity") else ""


def _reader(path: Path, password: str | None) -> Any:
    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    reader = PdfReader(path, strict=False)
    if reader.is_encrypted and not reader.decrypt(password or ""):
        from app.readers.pdf import password_needed

        raise password_needed(password)
    return reader


def _as_lines(text: str) -> list[Line]:
    rows = [" ".join(row.split()) for row in cleaning.characters(text).split("\n")]
    return [Line(row, 0.0, float(len(row)), float(at), at + 1.0) for at, row in enumerate(rows) if row]


def parse(path: Path, password: str | None, limits: Limits, step: Any) -> Parsed:
    """Read a whole file with pypdf alone, because pdfium could not open it."""
    try:
        reader = _reader(path, password)
        count = len(reader.pages)
    except Refused:
        raise
    except Exception:  # noqa: BLE001 - both readers have failed now, each in its own way
        raise damaged() from None
    if not count:
        raise damaged("has no pages.")
    if count > limits.pages:
        raise Refused(f"claims {count:,} pages; the limit is {limits.pages:,}.", "Split it into smaller files.")
    sections: list[Section] = []
    warnings = ["The file is damaged; it was read by a simpler reader, and parts may be missing."]
    for index in range(count):
        step(index, count, index + 1)
        try:
            lines = _as_lines(reader.pages[index].extract_text())
        except Exception:  # noqa: BLE001 - one bad page is a warning, not a lost book
            warnings.append(f"Page {index + 1} could not be read: it is damaged.")
            lines = []
        text = cleaning.spaces(reflow(lines, cleaning.vocabulary(line.text for line in lines)))
        sections.append(Section(str(index + 1), text))
    if not any(section.text for section in sections):
        raise damaged("is damaged; no text could be found in it.")
    return Parsed("pdf", "page", sections, outline=_outline(reader), warnings=warnings)


def _outline(reader: Any) -> list[Heading]:
    entries: list[Heading] = []

    def walk(items: Any, level: int) -> None:
        for item in items:
            if isinstance(item, list):
                walk(item, level + 1)
                continue
            number = reader.get_destination_page_number(item)
            if number is not None and number >= 0:
                entries.append(Heading(cleaning.one_line(str(item.title)), number + 1, level))

    try:
        walk(reader.outline, 0)
    except Exception:  # noqa: BLE001 - a broken table of contents costs the contents, not the book
        return []
    return entries
