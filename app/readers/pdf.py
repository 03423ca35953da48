"""Reads PDF files. Each page is read with pdfium, or with pypdf if pdfium fails on the page. Then all pages are cleaned
together, because running headers are found by comparing pages.

Handles passwords, damaged files, recognised text of scans, page labels, table of contents, title and warnings. Runs
only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import ctypes
import logging
import re
import stringprep
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import cleaning, pdf_bytes, pictures, running
from app.readers.inner_pictures import Facts, Image, pictures_on, place_of, without_repeated
from app.readers.inner_pictures import told as told_of_pictures
from app.readers.layout import INDENT, Line, Margins, mark_listings, reflow
from app.readers.left_out import told
from app.readers.parsed import SECOND_READER, Heading, Limits, Parsed, Refused, Section, Step, damaged
from app.readers.pdf_comments import attached_files, read_comments
from app.readers.pdf_lines import page_lines, recognised_lines
from app.readers.pdf_tables import repeat_heads
from app.readers.pdf_unseen import Layers, has_image, is_mostly_picture
from app.readers.pdf_values import form_values
from app.readers.recognised import RecognisedPage
from app.readers.symbols import UNKNOWN
from app.readers.wrong_letters import has_wrong_part, is_garbled, is_mismapped

_SCAN_CHARACTERS = 20
"""Minimum characters of a page that has an image and counts as text. A page with fewer is a picture, whose text can be
recognised.
"""

_IMAGE_SHARE = 0.5  # the book is a scan if more than this share of its pages are pictures; blank pages are not counted
# maximum characters of an XFA form whose pages only ask the reader to wait, in several languages
_WAITING = 1_500
_BLANK_SHARE = 0.25  # if more than this share of the pages are blank, a warning lists the blank pages
_NAMED = 5  # maximum names of attached files in a warning
_EXTRAS = 0
"""Reported as the page number while page labels and table of contents are read. If the child fails while this number is
reported, the next child reads the book without labels and table of contents.
"""

_ORNAMENT = re.compile(r"[\u2500-\u25ff\u2701-\u27bf\s]{6,}$")
_SCRIPTS = "letters of Latin script, Chinese and Japanese are known here, others by OCRmyPDF, and no handwriting."
_OCR = "Run it through a text recognition program (OCR) such as OCRmyPDF, then open the result."
_OTHER_SCRIPTS = (
    "Letters of Latin script, Chinese and Japanese are known here. For others, install OCRmyPDF with their language, "
    "run it on the file (for Russian: ocrmypdf --skip-text -l rus FILE words.pdf), then open the result."
)
_OUTLINE_DEPTH = 8
_OUTLINE_ENTRIES = 10_000
_SYMBOLIC = 4  # flag bit of a symbolic font, which has a character set of its own
_CJK = ("Japan1", "GB1", "CNS1", "Korea1", "KR")

FontTrouble = Literal["", "unmapped", "absent"]


class _Pages:
    """What was found on the pages so far. Page numbers count from 1."""

    def __init__(self) -> None:
        self.lines: list[list[Line]] = []
        self.labels: list[str] = []
        self.images: list[int] = []
        self.figures: list[int] = []  # pages that have text but are mostly a picture
        self.bad: dict[int, str] = {}
        self.unmapped: list[int] = []
        self.mismapped: list[int] = []
        self.absent: list[int] = []
        self.unseen: list[int] = []
        self.unnamed: Counter[int] = Counter()  # number of signs without a letter, keyed by page number
        self.comments: dict[int, list[str]] = {}
        self.attached: list[str] = []
        self.whole: set[str] = set()  # words already checked for missing spaces, in which none was missing
        # results of text recognition (OCR), keyed by page number; if the result has lines, they are the page's text
        self.recognised: dict[int, RecognisedPage] = {}
        # pictures beside the text that may have words: what tells whether two are the same, keyed by their keys
        self.pictures: dict[int, dict[str, Facts]] = {}
        self.characters = 0


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a PDF.

    Args:
        path: the file.
        request: ``password``: the password. ``comments``: whether to read comments. ``trouble``: failures of earlier
            attempts to read this file, keyed by page number (as text). The value is ``SECOND_READER`` for a page that
            pypdf reads, or the reason why the page is left out. The key ``_EXTRAS`` means that page labels and table of
            contents are skipped. ``recognised``: results of text recognition (OCR), keyed by page number (as text).
            ``unread``: whether to report pages that are pictures, instead of refusing a scan. ``pictures``: words of
            pictures beside the text (``app.readers.picture_words``), keyed by the key of the picture.
        limits: limits for the book's size.
        step: called before each page, to report progress.
    """
    document = open_pdf(path, request.get("password"), beat=lambda: step(0, 1, None))
    if document is None:
        return _parse_with_pypdf(path, request.get("password"), limits, step)
    count = len(document)
    if count == 0:
        raise Refused("has no pages.", "Get the file again; this copy is empty.")
    if count > limits.pages:
        raise Refused(f"claims {count:,} pages; the limit is {limits.pages:,}.", "Split it into smaller files.")
    pages = _read_pages(document, path, request, limits, step)
    if not request.get("unread"):
        _refuse_scan(pages, count)
    _refuse_form(document, pages)
    step(count, count, _EXTRAS)
    extras = str(_EXTRAS) not in request.get("trouble", {})
    pages.labels = [_label(document, index) if extras else "" for index in range(count)]
    outline = _outline(document) if extras else []
    headers = running.find_running_headers(pages.lines, pages.labels)
    labels = running.page_labels(pages.labels, headers.printed)
    texts = _texts(pages.lines, headers, step)
    for index, comments in pages.comments.items() if request.get("comments", True) else ():
        texts[index] = "\n\n".join(filter(None, [texts[index], "\n".join(comments)]))
    pages.attached += attached_files(document)
    title, author = _title_and_author(document)
    waiting, said_of_pictures = _with_pictures(texts, pages, request.get("pictures", {}))
    parsed = Parsed(_sections(labels, texts, pages), title, author)
    for number, keys in waiting.items():
        parsed.sections[number - 1].pictures = keys
    parsed.outline = outline
    parsed.left_out = left_out(pages.lines, headers)
    # hidden text gets its own warning
    said = {reason: count for reason, count in parsed.left_out.items() if reason != "hidden"}
    parsed.warnings = _warnings(pages, count, comments=request.get("comments", True)) + said_of_pictures
    parsed.warnings += told(said, texts)
    if not extras:
        parsed.warnings.append("Its page labels and its table of contents are damaged and were left out.")
    if not (pages.images and request.get("unread")):
        _refuse_empty(parsed, pages)
    return parsed


def _sections(labels: list[str], texts: list[str], pages: _Pages) -> list[Section]:
    sections = [Section(*pair) for pair in zip(labels, texts, strict=True)]
    for number in pages.figures:
        sections[number - 1].picture = "figure"
    for number in (*pages.unmapped, *pages.mismapped):
        sections[number - 1].picture = "doubtful"
    for number in pages.images:
        sections[number - 1].picture = "unread"
    for number, page in pages.recognised.items():
        if page.lines or not pages.lines[number - 1]:
            sections[number - 1].picture = "recognised"
    return sections


def _with_pictures(
    texts: list[str], pages: _Pages, known: dict[str, dict[str, Any] | None]
) -> tuple[dict[int, list[str]], list[str]]:
    """Insert the words of pictures into the texts of their pages.

    Returns:
        The keys of the pictures whose words are not known, keyed by page number, and warnings.
    """
    numbers = sorted(pages.pictures)
    page_pictures = dict(zip(numbers, without_repeated([pages.pictures[number] for number in numbers]), strict=True))
    waiting = {number: [key for key in keys if key not in known] for number, keys in page_pictures.items()}
    total, left = sum(map(len, page_pictures.values())), sum(map(len, waiting.values()))
    if not known:
        return waiting, told_of_pictures(0, 0, left)
    from app.readers import picture_words

    count = 0
    for number, keys in page_pictures.items():
        lines = [line for line in pages.lines[number - 1] if line.shown]
        placed = []
        for key in keys:
            words = picture_words.on_page(known.get(key), place_of(key).box, lines)
            if words is not None:
                placed.append(words)
        texts[number - 1] = picture_words.with_words(texts[number - 1], placed)
        count += len(placed)
        if number in pages.figures and not waiting[number]:
            pages.figures.remove(number)
    return waiting, told_of_pictures(total - left, count, left)


def open_pdf(
    path: Path, password: str | None, *, only: int | None = None, beat: Callable[[], None] = lambda: None
) -> pdfium.PdfDocument | None:
    """Open a PDF or picture file; None if pdfium cannot read it.

    Args:
        path: the file.
        password: password of an encrypted file.
        only: number (from 1) of the only page that is needed, or None for all pages. The other pages of a picture file
            are left blank.
        beat: called several times, to report progress.
    """
    try:
        document = pictures.as_pdf(path, only, beat) if pictures.is_picture(path) else _opened(path, password)
    except pdfium.PdfiumError as error:
        if "password" in str(error).casefold():
            raise password_needed(password) from None
        if "security" in str(error).casefold():
            raise Refused(
                "is encrypted in a way that is not supported.", "Save it without protection in its own program."
            ) from None
        return None
    with suppress(pdfium.PdfiumError):  # a broken form loses only its values
        document.init_forms()  # generates the appearance of form fields that have none
    return document


def _opened(path: Path, password: str | None) -> pdfium.PdfDocument:
    """Open a PDF with the password as typed. If that fails, try the password prepared as ISO 32000-2 (7.6.4.3.2)
    requires, because pdfium does not prepare passwords.
    """
    try:
        return pdfium.PdfDocument(path, password=password)
    except pdfium.PdfiumError as error:
        prepared = _prepared(password or "")
        if "password" not in str(error).casefold() or prepared in ("", password):
            raise
        return pdfium.PdfDocument(path, password=prepared)


def _prepared(password: str) -> str:
    """Prepare a password with SASLprep (RFC 4013): drop invisible characters, normalize spaces, apply NFKC."""
    mapped = (" " if stringprep.in_table_c12(sign) else sign for sign in password if not stringprep.in_table_b1(sign))
    return unicodedata.normalize("NFKC", "".join(mapped))


def password_needed(password: str | None) -> Refused:
    if password:
        return Refused("does not open with this password.", "Check it and try again.", "password")
    return Refused("is protected by a password.", "Enter its password.", "password")


def _read_pages(
    document: pdfium.PdfDocument, path: Path, request: dict[str, Any], limits: Limits, step: Step
) -> _Pages:
    trouble = {int(page): reason for page, reason in request.get("trouble", {}).items()}
    second = _SecondParser(path, request.get("password"))
    pages, count = _Pages(), len(document)
    recognised = request.get("recognised", {})
    layers = second.layers()
    for index in range(count):
        step(index, count, index + 1)
        reason = trouble.get(index + 1)
        lines: list[Line] = []
        if str(index + 1) in recognised:
            page = RecognisedPage.from_json(recognised[str(index + 1)])
            lines = recognised_lines(page)
            reason = None if lines or page.is_blank else reason
            pages.recognised[index + 1] = page
        # if recognition found no lines, the file's own text is read
        if not lines and (reason is None or reason == SECOND_READER):
            try:
                lines = second.lines(index) if reason else _one_page(document, index, pages, second, layers)
            except MemoryError:
                raise
            except pdfium.PdfiumError:
                lines, reason = _rescue(second, index), "it is damaged"
            except Exception:  # noqa: BLE001 - one bad page is a warning, not a lost book
                lines, reason = _rescue(second, index), "it could not be read"
        if reason and reason != SECOND_READER and not lines:
            pages.bad[index + 1] = reason
        pages.lines.append(lines)
        pages.characters += sum(len(line.text) for line in lines)
        if pages.characters > limits.characters:
            raise Refused(
                f"has more than {limits.characters:,} characters up to page {index + 1}.", "Split it into parts."
            )
    pages.images = [number for number in pages.images if number not in pages.recognised]
    return pages


def _one_page(
    document: pdfium.PdfDocument, index: int, pages: _Pages, second: _SecondParser, layers: Layers | None
) -> list[Line]:
    page = document[index]
    try:
        annotations = read_comments(page)
        pictures: list[Image] = []

        def filled(own: str) -> list[Line]:
            return [*form_values(document, index, page, own), *annotations.typed]

        lines = page_lines(page, filled, layers, pages.whole, pictures)
        pages.attached += annotations.files
        if annotations.comments:
            pages.comments[index] = annotations.comments
        text = sum(len(line.text) for line in lines if line.shown)
        if text < _SCAN_CHARACTERS and has_image(page):
            pages.images.append(index + 1)
        elif pictures:
            pages.pictures[index + 1] = pictures_on(page, index + 1, pictures, lines)
            if is_mostly_picture(page, lines, pictures):
                pages.figures.append(index + 1)
    finally:
        page.close()
    if unnamed := sum(line.text.count(UNKNOWN) for line in lines if line.shown):
        pages.unnamed[index + 1] = unnamed
    if any(line.unseen for line in lines):
        pages.unseen.append(index + 1)
    trouble = second.font_trouble(index)
    if trouble == "absent":
        pages.absent.append(index + 1)
    elif trouble == "unmapped" and is_garbled(" ".join(line.text for line in lines)):
        pages.unmapped.append(index + 1)
    elif is_mismapped(" ".join(line.text for line in lines)) or has_wrong_part([line.text for line in lines]):
        pages.mismapped.append(index + 1)
    return lines


def _rescue(second: Any, index: int) -> list[Line]:
    try:
        return second.lines(index)
    except Exception:  # noqa: BLE001 - the first failure is the one that is reported
        return []


def _refuse_scan(pages: _Pages, count: int) -> None:
    filled = sum(1 for lines in pages.lines if lines) + sum(1 for number in pages.images if not pages.lines[number - 1])
    if pages.images and len(pages.images) > _IMAGE_SHARE * max(filled, 1):
        which = "its only page is an image" if count == 1 else f"{len(pages.images)} of {count} pages are images"
        raise Refused(f"has no text to read: {which}.", _OCR, "no_text")


def _refuse_form(document: pdfium.PdfDocument, pages: _Pages) -> None:
    """Refuse an XFA form, because only Adobe's programs show it. The pages of such a file only ask the reader to
    wait.
    """
    if raw.FPDF_GetFormType(document.raw) == raw.FORMTYPE_XFA_FULL and pages.characters < _WAITING:
        raise Refused("is a form of a kind (XFA) that only Adobe's programs show.", "Print it to a new PDF there.")


def _refuse_empty(parsed: Parsed, pages: _Pages) -> None:
    if any(section.text for section in parsed.sections):
        return
    if pages.bad:
        number, reason = next(iter(pages.bad.items()))
        raise damaged(f"has no page that can be read (page {number}: {reason}).")
    if pages.attached:
        raise Refused("has no text on its pages, only files attached to it.", "Save these files and open them.")
    if pages.recognised:
        raise Refused("has no text, and no words could be recognised in the pictures of its pages.", _OTHER_SCRIPTS)
    raise Refused("has no text on any page.", "Its pages are blank, damaged or drawn. " + _OCR)


def _texts(pages: list[list[Line]], headers: running.RunningHeaders, step: Step) -> list[str]:
    kept, headed = [], []
    for index, lines in enumerate(pages):
        dropped = headers.drop(index) | headers.first[index]
        kept.append([line for at, line in enumerate(lines) if at not in dropped and _is_text(line)])
        headed.append(sorted((lines[at] for at in headers.first[index]), key=lambda line: line.top))
    repeat_heads(kept)
    words = cleaning.vocabulary(text for lines in kept for text in _whole_words(lines))
    margins = [Margins(kept[0::2]), Margins(kept[1::2])]  # left and right pages have different margins
    texts = []
    for index, lines in enumerate(kept):
        if index % 50 == 0:
            step(len(kept), len(kept), None)
        mark_listings(lines)
        texts.append(cleaning.spaces(reflow(lines, words, margins[index % 2])).replace(INDENT, " "))
    _join_pages(texts, words)
    return [_with_headers(*each) for each in zip(texts, kept, headed, strict=True)]


def _with_headers(text: str, body: list[Line], headers: list[Line]) -> str:
    """Return a page's text, with the kept running headers before the text and the kept running footers after it."""
    if not headers:
        return text
    middle = (min(line.top for line in body) + max(line.top for line in body)) / 2 if body else 0.0
    parts = [line.text for line in headers if line.top < middle]
    parts += [text] if text else []
    return "\n\n".join(parts + [line.text for line in headers if line.top >= middle])


def left_out(pages: list[list[Line]], headers: running.RunningHeaders) -> Counter[str]:
    """Count the omitted characters (without spaces) of all pages, keyed by the reason for the omission."""
    counts: Counter[str] = Counter()
    if parted := sum(headers.parted):
        counts["line numbers"] = parted
    for index, lines in enumerate(pages):
        for at, line in enumerate(lines):
            if line.doubled:
                counts["doubled"] += line.doubled
            if line.unseen:
                reason = "hidden"
            elif not line.shown:
                reason = "outside"
            elif at in headers.headers[index]:
                reason = "headers"
            elif at in headers.numbers[index]:
                reason = "page numbers"
            elif at in headers.margins[index]:
                reason = "line numbers"
            elif not _is_text(line):
                reason = "ornaments"
            else:
                continue
            counts[reason] += len(line.text.replace(" ", ""))
    return counts


def _is_text(line: Line) -> bool:
    return line.shown and not _ORNAMENT.match(line.text)


def _join_pages(texts: list[str], words: Counter[str]) -> None:
    """Join each word that a page end cuts in two. The whole word goes to the page where the word starts."""
    for index in range(len(texts) - 1):
        above, below = texts[index], texts[index + 1]
        if above.endswith("-") and below[:1].islower():
            rest = below.split(None, 1)[0]
            if len(rest) < len(below):
                texts[index] = cleaning.join_hyphenated(above, rest, words)
                texts[index + 1] = below[len(rest) :].lstrip()


def _whole_words(lines: list[Line]) -> Iterator[str]:
    """Yield the text of each line, without the parts of words that are cut at a line end."""
    cut = False
    for line in lines:
        words = line.text.split()
        cut, before = line.text.endswith("-"), cut
        yield " ".join(words[1 if before else 0 : -1 if cut else None])


def _warnings(pages: _Pages, count: int, *, comments: bool) -> list[str]:
    said = _of_pictures(pages, count)
    said += [f"Page {number} could not be read: {reason}." for number, reason in list(pages.bad.items())[:20]]
    if len(pages.bad) > 20:
        said.append(f"{len(pages.bad)} of {count} pages could not be read.")
    if pages.unmapped:
        said.append(f"A font has no table of its letters, so the text is probably wrong on {_pages(pages.unmapped)}.")
    if pages.mismapped:
        said.append(f"A font names wrong letters; the text is probably wrong on {_pages(pages.mismapped)}.")
    if pages.absent:
        said.append(f"A font is not inside the file; text may be missing on {_pages(pages.absent)}.")
    if pages.unnamed:
        said.append(
            f"Signs to which a font gives no letter are shown as \ufffd: {pages.unnamed.total():,} of them, "
            f"on {_pages(list(pages.unnamed))}."
        )
    if pages.unseen:
        said.append(f"Text that nobody sees was left out on {_pages(pages.unseen)}.")
    if pages.comments:
        count_of = sum(map(len, pages.comments.values()))
        numbers = _pages([index + 1 for index in pages.comments])
        which = "1 comment" if count_of == 1 else f"{count_of} comments"
        if comments:
            stand = "stands" if count_of == 1 else "stand"
            said.append(f"{which} of readers {stand} in brackets at the end of the text of {numbers}.")
        else:
            were = "was" if count_of == 1 else "were"
            said.append(f"{which} of readers {were} left out, as asked, on {numbers}.")
    if pages.attached:
        names = list(dict.fromkeys(pages.attached))
        files = "1 file is" if len(names) == 1 else f"{len(names)} files are"
        some = ", ".join(names[:_NAMED]) + (" and more" if len(names) > _NAMED else "")
        said.append(f"{files} attached to it and not part of its text: {some}. Save and open what you need.")
    blank = [number for number, lines in enumerate(pages.lines, 1) if not lines and number not in pages.bad]
    blank = sorted(set(blank) - set(pages.images))
    if len(blank) > _BLANK_SHARE * count:
        said.append(f"{len(blank)} of {count} pages have no text: {_listed(blank)}. They are blank, drawn or damaged.")
    return said


def _of_pictures(pages: _Pages, count: int) -> list[str]:
    said = []
    nothing = {number for number, page in pages.recognised.items() if not page.lines}
    # pages whose text comes from the file itself, because text recognition found none
    kept = {number for number in nothing if pages.lines[number - 1]}
    if read := [n for n, page in pages.recognised.items() if page.lines or (page.is_blank and n not in kept)]:
        numbers = _listed(read)
        which = f"Page {numbers} was" if len(read) == 1 else f"Pages {numbers} were"
        said.append(f"{'Its page was' if count == 1 else which} recognised from a picture and may have slips.")
    if illegible := {n: page.illegible for n, page in pages.recognised.items() if page.lines and page.illegible}:
        said.append(
            f"Lines that could not be read reliably on {_pages(list(illegible))}: {sum(illegible.values())}. "
            "They are blurred, handwritten, or in a script that is not known here."
        )
    if foreign := sorted(n for n in nothing if not pages.recognised[n].is_blank):
        said.append(f"No words could be recognised on {_pages(foreign)}: {_SCRIPTS}")
    if pages.images:
        numbers = _listed(pages.images)
        said.append(f"{len(pages.images)} of {count} pages are images without text and were left out: {numbers}.")
    return said


def _pages(numbers: list[int]) -> str:
    return f"{'page' if len(numbers) == 1 else 'pages'} {_listed(numbers)}"


def _listed(numbers: list[int]) -> str:
    """Return page numbers as text for the user, such as "3, 5-7". Long lists are cut."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    most = 12
    return ", ".join(shown[:most]) + (f" and {len(shown) - most} more" if len(shown) > most else "")


def _label(document: pdfium.PdfDocument, index: int) -> str:
    """Return the label of page ``index`` (from 0); "" if it has none."""
    try:
        return cleaning.one_line(document.get_page_label(index), 20)
    except (pdfium.PdfiumError, ValueError, UnicodeError):
        return ""


def _title_and_author(document: pdfium.PdfDocument) -> tuple[str, str]:
    """Return title and author from the metadata; "" if missing."""
    try:
        metadata = document.get_metadata_dict()
    except (pdfium.PdfiumError, ValueError, UnicodeError):
        return "", ""
    return metadata.get("Title", ""), metadata.get("Author", "")


def _outline(document: pdfium.PdfDocument) -> list[Heading]:
    """Return the entries of the table of contents that lead to a page."""
    entries: list[Heading] = []
    try:
        for bookmark in document.get_toc(max_depth=_OUTLINE_DEPTH):
            if len(entries) >= _OUTLINE_ENTRIES:
                break
            target = bookmark.get_dest()
            index = target.get_index() if target else None
            title = cleaning.one_line(bookmark.get_title())
            if title and index is not None and 0 <= index < len(document):
                entries.append(Heading(title, index + 1, bookmark.level))
    except (pdfium.PdfiumError, ValueError, UnicodeError, ctypes.ArgumentError):
        pass  # the book is read without a broken table of contents
    return entries


class _SecondParser:
    """Reads with pypdf what pdfium cannot give: pages on which pdfium fails, font problems and hidden layers.

    pypdf is slower and returns no positions. But pypdf is independent of pdfium, so the two seldom fail on the same
    file. The file is opened on first use.
    """

    def __init__(self, path: Path, password: str | None) -> None:
        self._path = path
        self._password = password
        self._parser: Any = None
        self._has_no_hint, self._has_no_layers = pdf_bytes.sure_of(path)
        self._fonts: dict[Any, FontTrouble] = {}

    def lines(self, index: int) -> list[Line]:
        """Return the lines of a page. pypdf gives no positions, so each line is put below the line before it."""
        text = self._open().pages[index].extract_text()
        return _as_lines(text)

    def font_trouble(self, index: int) -> FontTrouble:
        """Return "absent" if a font of this page gives no text, "unmapped" if a font gives wrong text, or else ""."""
        if self._has_no_hint:
            return ""
        try:
            resources = self._open().pages[index].get("/Resources", {}).get_object()
            fonts = resources.get("/Font", {}).get_object()
            troubles = [self._trouble_of(reference) for reference in fonts.values()]
        except Exception:  # noqa: BLE001 - only a hint is lost
            self._has_no_hint = True
            return ""
        return "absent" if "absent" in troubles else "unmapped" if "unmapped" in troubles else ""

    def layers(self) -> Layers | None:
        """Return the hidden layers of the file; None if no hidden layer is known."""
        if self._has_no_layers:
            return None
        try:
            properties = self._open().trailer["/Root"].get("/OCProperties", {}).get_object()
            if not properties:
                return None
            usual = properties.get("/D", {}).get_object()
            listed = {each.idnum for each in usual.get("/OFF", [])}
            if str(usual.get("/BaseState", "/ON")) == "/OFF":
                shown = {each.idnum for each in usual.get("/ON", [])}
                listed |= {each.idnum for each in properties["/OCGs"]} - shown
            names = {str(each.get_object().get("/Name", "")) for each in properties["/OCGs"] if each.idnum in listed}
        except Exception:  # noqa: BLE001 - hidden layers are then read as if they were shown
            return None
        return Layers(frozenset(names)) if listed else None

    def _trouble_of(self, reference: Any) -> FontTrouble:
        key = getattr(reference, "idnum", None)
        if key is None:
            return _font_trouble(reference.get_object())
        if key not in self._fonts:
            self._fonts[key] = _font_trouble(reference.get_object())
        return self._fonts[key]

    def _open(self) -> Any:
        if self._parser is None:
            self._parser = _open_pypdf(self._path, self._password)
        return self._parser


def _font_trouble(font: Any) -> FontTrouble:
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


def _open_pypdf(path: Path, password: str | None) -> Any:
    from pypdf import PdfReader

    if pictures.is_picture(path):
        raise ValueError("It is a picture, in every byte of which a PDF would be looked for.")
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    parser = PdfReader(path, strict=False)
    if parser.is_encrypted and not parser.decrypt(password or ""):
        raise password_needed(password)
    return parser


def _as_lines(text: str) -> list[Line]:
    rows = [" ".join(row.split()) for row in cleaning.characters(text).split("\n")]
    return [Line(row, 0.0, float(len(row)), float(at), at + 1.0) for at, row in enumerate(rows) if row]


def _parse_with_pypdf(path: Path, password: str | None, limits: Limits, step: Step) -> Parsed:
    """Read the whole file with pypdf alone, because pdfium cannot open it."""
    try:
        parser = _open_pypdf(path, password)
        count = len(parser.pages)
    except Refused:
        raise
    except Exception:  # noqa: BLE001 - pdfium and pypdf have both failed
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
            lines = _as_lines(parser.pages[index].extract_text())
        except Exception:  # noqa: BLE001 - one bad page is a warning, not a lost book
            warnings.append(f"Page {index + 1} could not be read: it is damaged.")
            lines = []
        text = cleaning.spaces(reflow(lines, cleaning.vocabulary(line.text for line in lines)))
        sections.append(Section(str(index + 1), text))
    if not any(section.text for section in sections):
        raise damaged("is damaged; no text could be found in it.")
    return Parsed(sections, outline=_pypdf_outline(parser), warnings=warnings)


def _pypdf_outline(parser: Any) -> list[Heading]:
    entries: list[Heading] = []

    def walk(items: Any, level: int) -> None:
        for item in items:
            if isinstance(item, list):
                walk(item, level + 1)
                continue
            number = parser.get_destination_page_number(item)
            if number is not None and number >= 0:
                entries.append(Heading(cleaning.one_line(str(item.title)), number + 1, level))

    try:
        walk(parser.outline, 0)
    except Exception:  # noqa: BLE001 - a broken table of contents costs the contents, not the book
        return []
    return entries
