"""Detects a file's format from its content (``app.readers.file_formats``), and calls its parser. Runs only in the child
process (``app.readers.child``).

The file name matters only for Markdown, notebooks, tables and HTML fragments, which can look like plain text. The error
for an unsupported file names its format. Also sets title and author and checks the limits, for all formats alike.
"""

from __future__ import annotations

import re
import zipfile
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any

from app.readers import archive, cleaning, encoding, picture_marks, pictures
from app.readers.file_formats import FORMATS, FileFormat, documents, names
from app.readers.parsed import Heading, Limits, Opening, Parsed, RefusalKind, Refused, Step

_DOCUMENTS = f"Choose a file of another kind: {', '.join(names())}."
_OFFICE = "Save it as .docx, .pptx, .xlsx or PDF, or install LibreOffice, which then converts it."
_SAVE_DOCX = "Open it in a word processor and save it as .docx or PDF."
_EBOOK = "Convert it to EPUB, for instance with Calibre, and open that."

# The library puremagic lacks 7 of these (GGUF and Kindle books among them), takes a tar archive and a Kindle book for
# an embroidery file, and has no words for a person.
_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"MZ", "is a Windows program", _DOCUMENTS),
    (0, b"\x7fELF", "is a Linux program", _DOCUMENTS),
    (0, b"\xcf\xfa\xed\xfe", "is a macOS program", _DOCUMENTS),
    (0, b"\xce\xfa\xed\xfe", "is a macOS program", _DOCUMENTS),
    (0, b"\xca\xfe\xba\xbe", "is a program", _DOCUMENTS),
    (0, b"GIF8", "is an image (GIF)", _DOCUMENTS),
    (4, b"ftyp", "is a video or an image", _DOCUMENTS),
    (0, b"RIFF", "is a sound or video file", _DOCUMENTS),
    (0, b"ID3", "is a sound file (MP3)", _DOCUMENTS),
    (0, b"OggS", "is a sound or video file (Ogg)", _DOCUMENTS),
    (0, b"fLaC", "is a sound file (FLAC)", _DOCUMENTS),
    (0, b"Rar!", "is a RAR archive", "Unpack it and open the document inside."),
    (0, b"7z\xbc\xaf", "is a 7z archive", "Unpack it and open the document inside."),
    (0, b"\x1f\x8b", "is a gzip archive", "Unpack it and open the document inside."),
    (0, b"BZh", "is a bzip2 archive", "Unpack it and open the document inside."),
    (0, b"\xfd7zXZ", "is an xz archive", "Unpack it and open the document inside."),
    (0, b"\x28\xb5\x2f\xfd", "is a Zstandard archive", "Unpack it and open the document inside."),
    (257, b"ustar", "is a tar archive", "Unpack it and open the document inside."),
    (0, b"SQLite format 3", "is a database", _DOCUMENTS),
    (0, b"%!PS", "is a PostScript file", "Convert it to PDF."),
    (0, b"AT&TFORM", "is a DjVu file", "Convert it to PDF."),
    (60, b"BOOKMOBI", "is a Kindle book (MOBI or AZW3)", _EBOOK),
    (60, b"TEXtREAd", "is a Palm book (PDB)", _EBOOK),
    (60, b"TPZ3", "is a Kindle book (Topaz)", _EBOOK),
    (0, b"TPZ0", "is a Kindle book (Topaz)", _EBOOK),
    (
        0,
        b"\xeaDRMION",
        "is a Kindle book locked by copy protection (KFX)",
        "Read it in the shop's own program, or get a copy without copy protection.",
    ),
    (0, b"CONT\x02\x00", "is a Kindle book (KFX)", _EBOOK),
    (0, b"ITOLITLS", "is a Microsoft Reader book (LIT)", _EBOOK),
    (0, b"L\x00R\x00F\x00", "is a Sony Reader book (LRF)", _EBOOK),
    (0, b"\xffWPC", "is a WordPerfect file", _SAVE_DOCX),
    (0, b"bplist00", "is a file of Apple's own (a web archive or a list of settings)", "Save it as PDF or text."),
    (0, b"GGUF", "is a language model (GGUF)", _DOCUMENTS),
    (0, b"wOFF", "is a font", _DOCUMENTS),
    (0, b"wOF2", "is a font", _DOCUMENTS),
    (0, b"OTTO\x00", "is a font", _DOCUMENTS),
    (0, b"\x00\x01\x00\x00\x00", "is a font", _DOCUMENTS),
    (0, b"L\x00\x00\x00\x01\x14\x02\x00", "is a shortcut (Windows)", _DOCUMENTS),
    (0, b"ITSF", "is a Windows help file (CHM)", _EBOOK),
)
# Magic bytes of formats that consist of text. All other magic bytes are ignored in text, because a story may begin with
# "RIFF".
_PLAIN_MAGIC = (b"%!PS",)
# names of streams that identify the program of an OLE file, with the format to which an office suite can convert it
_OLE_KINDS: tuple[tuple[str, str, str, RefusalKind], ...] = (
    (
        "EncryptedPackage",
        "is an Office file protected by a password.",
        "Save it without a password and open that.",
        "document",
    ),
    ("__substg1.0_", "is an Outlook message (.msg).", "Save it as text or PDF.", "document"),
    ("WordDocument", "is an old Word file (.doc).", _OFFICE, "docx"),
    ("PowerPoint Document", "is an old PowerPoint presentation (.ppt).", _OFFICE, "pptx"),
)
# prefixes and suffixes of entry names that identify the format of a zip file
_ZIP_KINDS: tuple[tuple[tuple[str, ...], tuple[str, ...], str, str, RefusalKind], ...] = (
    (("xl/",), (), "is a binary Excel workbook (.xlsb).", _OFFICE, "xlsx"),
    (
        ("Index/Document.iwa", "Index.zip"),
        (),
        "is a Pages, Numbers or Keynote file.",
        "Export it as PDF or DOCX.",
        "document",
    ),
    (("FixedDocSeq.fdseq", "FixedDocumentSequence.fdseq"), (), "is an XPS file.", "Convert it to PDF.", "document"),
)
_XML_KINDS = (
    ("svg", "is a drawing (SVG).", _DOCUMENTS),
    ("opml", "is an outline (OPML).", "Export it as text or HTML."),
    ("plist", "is a list of settings of Apple's.", _DOCUMENTS),
)
# matches the comments and instructions at the start of a page
_FOREWORDS = re.compile(r"\A(?:\s+|<\?[^>]*>|<!--.*?-->)+", re.S)
_HTML_NAMES = (".html", ".htm", ".xhtml")
_ROOT = re.compile(r"<([A-Za-z_][\w.-]*:)?([A-Za-z_][\w.-]*)")
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OLE_REACH = 16 << 20  # leading bytes of an OLE file that are searched for the names of its streams
_PDF_REACH = 1024  # bytes at each end of a file that are searched for "%PDF-" and "%%EOF"
_PDF = re.compile(rb"%PDF-\d\.\d")
_PROLOGUE = re.compile(r"<\?[^>]*>|<!--.*?-->|<!DOCTYPE[^>\[]*(?:\[[^\]]*\])?[^>]*>", re.S | re.I)


# Matches a PDF after readable text, such as the headers of a server's reply. A PDF object must follow "%PDF-", so that
# a text about PDFs does not match.
_PDF_AFTER_TEXT = re.compile(rb"\A.{0,1016}^%PDF-\d\.\d\s.{0,200}^\d+ \d+ obj\b", re.S | re.M)

_WARNINGS = 30  # maximum warnings that are listed one by one; further warnings are only counted
_NOT_A_TITLE = re.compile(
    r"^(untitled|\(?(?:anonymous|unspecified)\)?|title|document\d*|microsoft word.*|unknown|no title|none|noname"
    r"|about:blank|(https?|file)://\S*|.*\.(docx?|pdf|tex|dvi|indd|qxd|rtf|ps|txt))$",
    re.I,
)
_LONGEST_DATE = 40  # maximum characters of a date; a longer date is cut
_NOT_AN_AUTHOR = re.compile(
    r"^(unknown|author|admin(istrator)?|user|owner|root|none|anonymous user|\(?(anonymous|unspecified)\)?|.*@.*)$", re.I
)


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a file of any supported format.

    Raises:
        Refused: the file cannot be read as a book.
    """
    file_format = format_of(path, limits)
    parser = import_module(f"app.readers.{file_format.parser}")
    parsed: Parsed = parser.parse(path, {**request, "kind": file_format.kind}, limits, step)
    parsed.kind, parsed.unit = file_format.kind, file_format.unit
    picture_marks.resolve(parsed, request.get("pictures", {}))
    if len(parsed.sections) > limits.pages:
        raise Refused(f"has more than {limits.pages:,} {parsed.unit}s.", "Split it into smaller files.")
    characters = sum(len(section.text) for section in parsed.sections)
    if characters > limits.characters:
        raise Refused(
            f"has {characters:,} characters; the limit is {limits.characters:,}.", "Split it into smaller files."
        )
    waiting = request.get("unread") and any(section.pictures for section in parsed.sections)
    if not characters and not waiting and not any(section.picture == "unread" for section in parsed.sections):
        raise Refused("has no text in it.", "Choose a document with text.")
    if len(parsed.warnings) > _WARNINGS:
        more = len(parsed.warnings) - _WARNINGS
        parsed.warnings[_WARNINGS:] = [f"There are {more:,} more warnings of this kind."]
    parsed.title = _book_title(parsed, path)
    parsed.author = _book_author(parsed.author)
    parsed.date = cleaning.one_line(parsed.date, _LONGEST_DATE)
    count = len(parsed.sections)
    parsed.outline = [
        Heading(entry.title, min(max(entry.page, 1), count), max(entry.level, 0)) for entry in parsed.outline
    ]
    step(count, count, None)
    return parsed


def _book_title(parsed: Parsed, path: Path) -> str:
    title = cleaning.one_line(parsed.title)
    if sum(sign.isalnum() for sign in title) > 1 and not _NOT_A_TITLE.match(title):
        return title
    return cleaning.one_line(path.stem.replace("_", " ")) or "Untitled"


def _book_author(author: str) -> str:
    author = cleaning.one_line(author)
    return "" if _NOT_AN_AUTHOR.match(author) else author


def format_of(path: Path, limits: Limits) -> FileFormat:
    """Detect the format of a file.

    Raises:
        Refused: the format is not supported. The message names the format.
    """
    with path.open("rb") as file:
        head = file.read(encoding.HEAD)
    if not head:
        raise Refused("is empty (0 bytes).", "Get the file again.")
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zipped(path, limits)
    binary = encoding.CONTROL.search(head[:1024]) is not None
    if _is_pdf(head, path, binary) or pictures.is_picture(path):
        return FORMATS[0]  # the PDF parser converts a picture to a PDF first
    if head.startswith(_OLE):
        return _old_office(path)
    for one in FORMATS:
        if one.magic and head.startswith(one.magic):
            return one
    for place, magic, what, remedy in _MAGIC:
        if head.startswith(magic, place) and (binary or magic in _PLAIN_MAGIC):
            raise Refused(f"{what}, not a document.", remedy)
    return _textual(head, path, limits)


def _is_pdf(head: bytes, path: Path, binary: bool) -> bool:
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"%PDF-") or (binary and b"%PDF-" in head[:_PDF_REACH]):
        return True
    # A text about PDFs may contain "%PDF-" too, so " obj" and "%%EOF" are required as well.
    if _PDF.search(head[:_PDF_REACH]) and b" obj" in head and b"%%EOF" in _tail(path):
        return True
    return _PDF_AFTER_TEXT.search(head) is not None


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _PDF_REACH))
        return file.read()


def _zipped(path: Path, limits: Limits) -> FileFormat:
    with archive.opened_whole(path, limits) as files:
        names = set(files.namelist())
        mimetype = _mimetype(files) if "mimetype" in names else b""
        main = archive.main_type(files)
    for one in FORMATS:
        if (one.mimetypes and mimetype.startswith(one.mimetypes)) or (one.main and one.main.search(main)):
            return one
        if any(fnmatchcase(name, pattern) for pattern in one.entries for name in names):
            return one
    if mimetype.startswith(b"application/vnd.oasis.opendocument"):
        raise Refused("is an OpenDocument drawing or database.", "Export it as PDF.")
    for starts, ends, what, remedy, target in _ZIP_KINDS:
        if any(name.startswith(starts) or name.endswith(ends) for name in names):
            raise Refused(what, remedy, target)
    if pictures.pages_of(sorted(names)):
        return FORMATS[0]  # the PDF parser converts the pictures to a PDF first
    if documents(sorted(names)):
        return next(one for one in FORMATS if one.parser == "bundle")
    raise Refused("is a zip archive, not a document.", "Unpack it and open the document inside.")


def _mimetype(files: zipfile.ZipFile) -> bytes:
    try:
        return archive.read_part(files, "mimetype", "its kind")[:100].strip()
    except archive.BrokenXml:
        return b""


def _old_office(path: Path) -> FileFormat:
    with path.open("rb") as file:
        content = file.read(_OLE_REACH)
    for stream, what, remedy, target in _OLE_KINDS:
        if stream.encode("utf-16-le") in content:
            raise Refused(what, remedy, target)
    for one in FORMATS:
        if any(f"{stream}\0".encode("utf-16-le") in content for stream in one.streams):
            return one
    raise Refused("is an old Office file (.doc, .xls or .ppt).", _SAVE_DOCX)


def _textual(head: bytes, path: Path, limits: Limits) -> FileFormat:
    if not encoding.is_text(head):
        if zipfile.is_zipfile(path):  # the file has other bytes before its zip archive
            return _zipped(path, limits)
        raise Refused("is not a document: it holds binary data of no known kind.", _DOCUMENTS)
    text = head.decode(encoding.decode_sample(head) or "utf-8", errors="replace")
    text = text.lstrip("\ufeff \t\r\n")
    start = _FOREWORDS.sub("", text)[:2000] or text[:2000]
    first = _ROOT.search(_PROLOGUE.sub("", start)) if start.startswith("<") else None
    opening = Opening(text, start, first[2] if first else "", path.suffix.casefold())
    # an element of HTML may have the name of a root, such as "article"
    is_xml = text.startswith("<?xml") or opening.suffix not in _HTML_NAMES
    for name, what, remedy in _XML_KINDS:
        if opening.root == name:
            raise Refused(what, remedy)
    by_root = (one for one in FORMATS if is_xml and opening.root in one.roots)
    judged = (one for one in FORMATS if one.judge and _judged(one, opening))
    if one := next(by_root, None) or next(judged, None):
        return one
    if text.startswith("<?xml"):
        raise Refused("is an XML file of a kind that is not read here.", _DOCUMENTS)
    return FORMATS[-1]


def _judged(one: FileFormat, opening: Opening) -> bool:
    module, _, judge = one.judge.partition(".")
    return bool(getattr(import_module(f"app.readers.{module}"), judge)(opening))
