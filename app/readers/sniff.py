"""What a file is, by its content; its name only tells Markdown from plain text. Refuses by name what is no book."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

from app.readers import archive, docx
from app.readers.limits import Limits
from app.readers.parsed import Refused, damaged

_HEAD = 64 << 10
_DOCUMENTS = "Choose a PDF, EPUB, DOCX, HTML, Markdown or text file."
_SAVE_DOCX = "Open it in a word processor and save it as .docx or PDF."
_EBOOK = "Convert it to EPUB, for instance with Calibre, and open that."

_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    (0, b"MZ", "is a Windows program", _DOCUMENTS),
    (0, b"\x7fELF", "is a Linux program", _DOCUMENTS),
    (0, b"\xcf\xfa\xed\xfe", "is a macOS program", _DOCUMENTS),
    (0, b"\xce\xfa\xed\xfe", "is a macOS program", _DOCUMENTS),
    (0, b"\xca\xfe\xba\xbe", "is a program", _DOCUMENTS),
    (0, b"\x89PNG\r\n", "is an image (PNG)", _DOCUMENTS),
    (0, b"\xff\xd8\xff", "is an image (JPEG)", _DOCUMENTS),
    (0, b"GIF8", "is an image (GIF)", _DOCUMENTS),
    (8, b"WEBP", "is an image (WebP)", _DOCUMENTS),
    (0, b"II*\x00", "is an image (TIFF)", _DOCUMENTS),
    (0, b"MM\x00*", "is an image (TIFF)", _DOCUMENTS),
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
    (0, b"{\\rtf", "is a rich text file (RTF)", _SAVE_DOCX),
    (0, b"%!PS", "is a PostScript file", "Convert it to PDF."),
    (0, b"AT&TFORM", "is a DjVu file", "Convert it to PDF."),
    (60, b"BOOKMOBI", "is a Kindle book (MOBI)", _EBOOK),
    (0, b"ITSF", "is a Windows help file (CHM)", _EBOOK),
)
_PLAIN_MAGIC = (b"{\\rtf", b"%!PS")  # formats that are text themselves; a tale may well begin with "RIFF"
_OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_MARKDOWN_NAMES = {".md", ".markdown", ".mdown", ".mkd"}
_HTML = re.compile(r"<!doctype\s+html|<html[\s>]|<(?:head|body)[\s>]", re.I)
_HEADING = re.compile(r"^#{1,6} +\S", re.M)
_CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
_MOST_CONTROL = 0.005  # of the bytes of a text


def kind(path: Path, limits: Limits) -> str:
    """ "pdf", "epub", "docx", "html", "markdown" or "text".

    Raises:
        Refused: the file is something else; says what.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD)
    if not head:
        raise Refused("is empty (0 bytes).", "Get the file again.")
    binary = _CONTROL.search(head[:1024]) is not None
    if head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"%PDF-") or (binary and b"%PDF-" in head[:1024]):
        return "pdf"
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return _zipped(path, limits)
    if head.startswith(_OLE):
        raise _old_office(path)
    for place, magic, what, remedy in _MAGIC:
        if head.startswith(magic, place) and (binary or magic in _PLAIN_MAGIC):
            raise Refused(f"{what}, not a document.", remedy)
    return _textual(head, path)


def _zipped(path: Path, limits: Limits) -> str:
    try:
        with archive.open_bounded(path, limits) as files:
            names = set(files.namelist())
            mimetype = files.read("mimetype")[:100].strip() if "mimetype" in names else b""
            is_word = bool(docx.body(files))
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        raise damaged("is damaged: its zip container cannot be opened.") from None
    if mimetype == b"application/epub+zip" or "META-INF/container.xml" in names:
        return "epub"
    if any(name.endswith(".opf") for name in names):
        return "epub"
    if is_word:
        return "docx"
    if mimetype.startswith(b"application/vnd.oasis.opendocument"):
        raise Refused("is an OpenDocument file.", _SAVE_DOCX)
    if any(name.startswith("xl/") for name in names):
        raise Refused("is an Excel workbook.", "Save the sheet as PDF or text.")
    if any(name.startswith("ppt/") for name in names):
        raise Refused("is a PowerPoint presentation.", "Save it as PDF.")
    raise Refused("is a zip archive, not a document.", "Unpack it and open the document inside.")


def _old_office(path: Path) -> Refused:
    with path.open("rb") as file:
        content = file.read(4 << 20)
    if "EncryptedPackage".encode("utf-16-le") in content:
        return Refused(
            "is an Office file protected by a password.",
            "Open it in its own program, save it without a password, and open that.",
        )
    return Refused("is an old Office file (.doc, .xls or .ppt).", _SAVE_DOCX)


def _textual(head: bytes, path: Path) -> str:
    from app.readers.encoding import decode_sample

    wide = head.startswith((b"\xff\xfe", b"\xfe\xff")) or decode_sample(head) is not None
    if not wide and len(_CONTROL.findall(head)) > _MOST_CONTROL * len(head):
        raise Refused("is not a document: it holds binary data of no known kind.", _DOCUMENTS)
    text = head.decode(decode_sample(head) or "utf-8", errors="replace")
    start = text.lstrip("\ufeff \t\r\n")[:2000]
    if start.startswith("<") and _HTML.search(start):
        return "html"
    if start.startswith("<?xml"):
        raise Refused("is an XML file of a kind that is not read here.", _DOCUMENTS)
    if path.suffix.casefold() in _MARKDOWN_NAMES:
        return "markdown"
    if not path.suffix and len(_HEADING.findall(text)) > 2:
        return "markdown"
    return "text"
