"""PDF files: every page through pdfium, a page that fails through pypdf, then all pages cleaned together.

Owns the opening (passwords, damage), the order of the readers, what is a scan, and the warnings. Runs in the child
only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import cleaning, furniture, pdf_extras, pdf_forms, pdf_unseen
from app.readers.limits import Limits
from app.readers.lines import Line, Margins, reflow
from app.readers.parsed import Parsed, Refused, Section, damaged, listed
from app.readers.pdf_lines import page_lines

SCAN_CHARACTERS = 20
"""A page with fewer characters and an image on it is a scan."""

_IMAGE_SHARE = 0.5  # of the pages with anything on them; above it the book is a scan
_SECOND_READER = "second"
_WAITING = 1_500  # characters of a page that says "please wait" in several languages
_BLANK_SHARE = 0.25  # of the pages; above it the blank ones are worth a word
EXTRAS = 0
"""Said instead of a page's number while labels and table of contents are read: damage there costs only them."""

_ORNAMENT = re.compile(r"[\u2500-\u25ff\u2701-\u27bf\s]{6,}$")
# No recognition in here: the light engines either fetch their models from the web on first use or are programs of their
# own (Tesseract), and OCRmyPDF, which drives that one well, leaves a PDF whose text layer keeps its places on the page.
_OCR = "Run it through a text recognition program (OCR) such as OCRmyPDF, then open the result."

Step = Callable[[int, int, "int | None"], None]


class _Pages:
    """What was found on the pages, as it grows."""

    def __init__(self) -> None:
        self.lines: list[list[Line]] = []
        self.labels: list[str] = []
        self.images: list[int] = []
        self.bad: dict[int, str] = {}
        self.unmapped: list[int] = []
        self.absent: list[int] = []
        self.unseen: list[int] = []
        self.characters = 0


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a PDF.

    Args:
        request: holds ``password`` and ``trouble`` (page number as text -> "second" or what befell it).
    """
    document = open_pdf(path, request.get("password"))
    if document is None:
        from app.readers import pdf_second

        return pdf_second.parse(path, request.get("password"), limits, step)
    count = len(document)
    if count == 0:
        raise Refused("has no pages.", "Get the file again; this copy is empty.")
    if count > limits.pages:
        raise Refused(f"claims {count:,} pages; the limit is {limits.pages:,}.", "Split it into smaller files.")
    pages = _read_pages(document, path, request, limits, step)
    _refuse_scan(pages, count)
    _refuse_form(document, pages)
    step(count, count, EXTRAS)
    extras = str(EXTRAS) not in request.get("trouble", {})
    pages.labels = [pdf_extras.label(document, index) if extras else "" for index in range(count)]
    outline = pdf_extras.outline(document) if extras else []
    found = furniture.find(pages.lines, pages.labels)
    labels = furniture.page_labels(pages.labels, found.printed)
    texts = _texts(pages.lines, found, step)
    title, author = pdf_extras.names(document)
    parsed = Parsed("pdf", "page", [Section(*pair) for pair in zip(labels, texts, strict=True)], title, author)
    parsed.outline = outline
    parsed.warnings = _warnings(pages, count)
    if not extras:
        parsed.warnings.append("Its page labels and its table of contents are damaged and were left out.")
    _refuse_empty(parsed, pages)
    return parsed


def open_pdf(path: Path, password: str | None) -> pdfium.PdfDocument | None:
    """The document; None where pdfium cannot make sense of it."""
    try:
        document = pdfium.PdfDocument(path, password=password)
    except pdfium.PdfiumError as error:
        if "password" in str(error).casefold():
            raise password_needed(password) from None
        if "security" in str(error).casefold():
            raise Refused(
                "is encrypted in a way that is not supported.", "Save it without protection in its own program."
            ) from None
        return None
    with suppress(pdfium.PdfiumError):  # of a broken form only the values are lost
        document.init_forms()  # fields without an appearance of their own are given one
    return document


def password_needed(password: str | None) -> Refused:
    if password:
        return Refused("does not open with this password.", "Check it and try again.", "password")
    return Refused("is protected by a password.", "Enter its password.", "password")


def _read_pages(
    document: pdfium.PdfDocument, path: Path, request: dict[str, Any], limits: Limits, step: Step
) -> _Pages:
    from app.readers import pdf_second

    trouble = {int(page): reason for page, reason in request.get("trouble", {}).items()}
    second = pdf_second.Second(path, request.get("password"))
    pages, count = _Pages(), len(document)
    for index in range(count):
        step(index, count, index + 1)
        reason = trouble.get(index + 1)
        lines: list[Line] = []
        if reason is None or reason == _SECOND_READER:
            try:
                lines = second.lines(index) if reason else _one_page(document, index, pages, second)
            except MemoryError:
                raise
            except pdfium.PdfiumError:
                lines, reason = _rescue(second, index), "it is damaged"
            except Exception:  # noqa: BLE001 - one bad page is a warning, not a lost book
                lines, reason = _rescue(second, index), "it could not be read"
        if reason and reason != _SECOND_READER and not lines:
            pages.bad[index + 1] = reason
        pages.lines.append(lines)
        pages.characters += sum(len(line.text) for line in lines)
        if pages.characters > limits.characters:
            raise Refused(
                f"has more than {limits.characters:,} characters up to page {index + 1}.", "Split it into parts."
            )
    return pages


def _one_page(document: pdfium.PdfDocument, index: int, pages: _Pages, second: Any) -> list[Line]:
    page = document[index]
    try:
        lines = page_lines(page, pdf_forms.values(document, index, page))
        text = sum(len(line.text) for line in lines if line.shown)
        if text < SCAN_CHARACTERS and pdf_unseen.has_image(page):
            pages.images.append(index + 1)
    finally:
        page.close()
    if any(line.unseen for line in lines):
        pages.unseen.append(index + 1)
    trouble = second.font_trouble(index)
    if trouble == "absent":
        pages.absent.append(index + 1)
    elif trouble == "unmapped" and _is_garbled(" ".join(line.text for line in lines)):
        pages.unmapped.append(index + 1)
    return lines


def _rescue(second: Any, index: int) -> list[Line]:
    try:
        found: list[Line] = second.lines(index)
    except Exception:  # noqa: BLE001 - the first failure is the one that is reported
        return []
    return found


def _is_garbled(text: str) -> bool:
    """Whether a text is more signs than letters, or letters without vowels."""
    signs = [sign for sign in text if not sign.isspace()]
    letters = [sign.casefold() for sign in signs if sign.isalpha()]
    if not signs:
        return False
    if len(letters) < 0.6 * len(signs):
        return True
    latin = [sign for sign in letters if sign.isascii()]
    vowels = sum(sign in "aeiouy" for sign in latin)
    return len(latin) > 0.8 * len(letters) and not 0.2 < vowels / len(latin) < 0.65


def _refuse_scan(pages: _Pages, count: int) -> None:
    filled = sum(1 for lines in pages.lines if lines) + sum(1 for number in pages.images if not pages.lines[number - 1])
    if pages.images and len(pages.images) > _IMAGE_SHARE * max(filled, 1):
        which = "its only page is an image" if count == 1 else f"{len(pages.images)} of {count} pages are images"
        raise Refused(f"has no text to read: {which}.", _OCR, "no_text")


def _refuse_form(document: pdfium.PdfDocument, pages: _Pages) -> None:
    """A form that is a program for Adobe's reader: its pages only ask to wait."""
    if raw.FPDF_GetFormType(document.raw) == raw.FORMTYPE_XFA_FULL and pages.characters < _WAITING:
        raise Refused("is a form of a kind (XFA) that only Adobe's programs show.", "Print it to a new PDF there.")


def _refuse_empty(parsed: Parsed, pages: _Pages) -> None:
    if any(section.text for section in parsed.sections):
        return
    if pages.bad:
        number, reason = next(iter(pages.bad.items()))
        raise damaged(f"has no page that can be read (page {number}: {reason}).")
    raise Refused("has no text on any page.", "Its pages are blank, damaged or drawn. " + _OCR)


def _texts(pages: list[list[Line]], found: furniture.Furniture, step: Step) -> list[str]:
    kept = [
        [line for at, line in enumerate(lines) if at not in found.drop[index] and _is_text(line)]
        for index, lines in enumerate(pages)
    ]
    words = cleaning.vocabulary(text for lines in kept for text in _whole_words(lines))
    margins = [Margins(kept[0::2]), Margins(kept[1::2])]  # left and right pages have margins of their own
    texts = []
    for index, lines in enumerate(kept):
        if index % 50 == 0:
            step(len(kept), len(kept), None)
        texts.append(cleaning.spaces(reflow(lines, words, margins[index % 2])))
    _join_pages(texts, words)
    return texts


def _is_text(line: Line) -> bool:
    return line.shown and not _ORNAMENT.match(line.text)


def _join_pages(texts: list[str], words: Counter[str]) -> None:
    """The rest of a word that a page's end has cut goes to the page where the word begins."""
    for index in range(len(texts) - 1):
        above, below = texts[index], texts[index + 1]
        if above.endswith("-") and below[:1].islower():
            rest = below.split(None, 1)[0]
            if len(rest) < len(below):
                texts[index] = cleaning.join_hyphenated(above, rest, words)
                texts[index + 1] = below[len(rest) :].lstrip()


def _whole_words(lines: list[Line]) -> Iterator[str]:
    """The lines without the halves of words that their ends cut."""
    cut = False
    for line in lines:
        words = line.text.split()
        cut, before = line.text.endswith("-"), cut
        yield " ".join(words[1 if before else 0 : -1 if cut else None])


def _warnings(pages: _Pages, count: int) -> list[str]:
    said = [f"Page {number} could not be read: {reason}." for number, reason in list(pages.bad.items())[:20]]
    if len(pages.bad) > 20:
        said.append(f"{len(pages.bad)} of {count} pages could not be read.")
    if pages.images:
        numbers = listed(pages.images)
        said.append(f"{len(pages.images)} of {count} pages are images without text and were left out: {numbers}.")
    if pages.unmapped:
        said.append(
            f"A font has no table of its letters, so the text is probably wrong on pages {listed(pages.unmapped)}."
        )
    if pages.absent:
        said.append(f"A font is not inside the file; text may be missing on pages {listed(pages.absent)}.")
    if pages.unseen:
        said.append(f"Text that nobody sees on the page was left out: pages {listed(pages.unseen)}.")
    blank = [at for at, lines in enumerate(pages.lines, 1) if not lines and at not in pages.bad]
    blank = sorted(set(blank) - set(pages.images))
    if len(blank) > _BLANK_SHARE * count:
        said.append(f"{len(blank)} of {count} pages have no text: {listed(blank)}. They are blank, drawn or damaged.")
    return said
