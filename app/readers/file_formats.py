"""The table of formats: a line for each, with its name, the suffixes of its files, how it is detected, and its parser.

A format is one module with ``parse`` and one line here. ``app.readers.detect`` finds the line of a file by the file's
content; the file chooser, the terminal and the list for people take their suffixes and names from here. Imports no
parser, because parsers run in the child process only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal


@dataclass(frozen=True)
class FileFormat:
    """One format.

    Args:
        kind: the format's name in ``engine.document.Document.kind``.
        name: the name for a person; "" if another line of the table has it.
        parser: the module with ``parse``, in ``app.readers``.
        suffixes: suffixes of the files' names, which the file chooser offers.
        unit: what a person calls a part with a label: the page of a file that has pages, or else a section.
        magic: the leading bytes of a file; one of them tells the format.
        mimetypes: how the entry "mimetype" of a zip container begins; one of them tells the format.
        main: matches the type of the main part of an Office file, which tells the format.
        entries: patterns of names of entries of a zip container; a name that fits one of them tells the format.
        streams: names of streams of an OLE file, the container of old Office files; one of them tells the format.
        roots: names of root elements of XML, without namespace; one of them tells the format.
        judge: a function ``module.name`` in ``app.readers`` that tells the format of a text by its ``Opening``.
    """

    kind: str
    name: str
    parser: str
    suffixes: tuple[str, ...] = ()
    unit: Literal["page", "section"] = "section"
    magic: tuple[bytes, ...] = ()
    mimetypes: tuple[bytes, ...] = ()
    main: re.Pattern[str] | None = None
    entries: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    judge: str = ""


_ODF = b"application/vnd.oasis.opendocument."
_ARTICLES = ("article", "TEI", "TEI.2", "teiCorpus", "book", "chapter")
# suffixes of files that are documents here, but no reason to take an archive for a bundle of documents
_PARTS = (".xml", ".json", ".py", ".log", ".zip")
# The first line that fits is the format of a file. Text is the last, because everything that can be read is text.
FORMATS = (
    FileFormat("pdf", "PDF", "pdf", (".pdf",), "page"),
    FileFormat(
        "epub", "EPUB", "epub", (".epub",), mimetypes=(b"application/epub+zip",), entries=("META-INF/container.xml",)
    ),
    FileFormat(
        "docx", "Word", "docx", (".docx",), main=re.compile("wordprocessingml|ms-word"), entries=("word/document.xml",)
    ),
    FileFormat("epub", "", "epub", entries=("*.opf",)),
    FileFormat(
        "pptx", "PowerPoint", "pptx", (".pptx",), main=re.compile("presentationml|ms-powerpoint"), entries=("ppt/*",)
    ),
    FileFormat(
        "xlsx", "Excel", "xlsx", (".xlsx", ".xlsm"), main=re.compile("spreadsheetml|ms-excel"),
        entries=("xl/workbook.xml",),
    ),
    FileFormat("xls", "", "xls", (".xls",), streams=("Workbook", "Book")),
    FileFormat("odt", "OpenDocument", "odf", (".odt", ".fodt"), mimetypes=(_ODF + b"text",), judge="odf.is_flat_text"),
    FileFormat(
        "odp", "", "odf", (".odp", ".fodp"), mimetypes=(_ODF + b"presentation",), judge="odf.is_flat_presentation"
    ),
    FileFormat("ods", "", "odf", (".ods", ".fods"), mimetypes=(_ODF + b"spreadsheet",), judge="odf.is_flat_workbook"),
    FileFormat("rtf", "RTF", "rtf", (".rtf",), magic=(b"{\\rtf",)),
    FileFormat("html", "HTML", "markup", (".html", ".htm", ".xhtml"), judge="markup.is_page"),
    FileFormat("html", "MHTML", "mhtml", (".mhtml", ".mht"), judge="mhtml.is_saved_page"),
    FileFormat("mail", "EML", "mail", (".eml", ".mbox"), judge="mail.is_mail"),
    FileFormat("markdown", "Markdown", "text", (".md", ".markdown", ".mdown", ".mkd"), judge="text.is_markdown"),
    FileFormat("notebook", "Jupyter", "text", (".ipynb",), judge="text.is_notebook"),
    FileFormat("table", "CSV", "text", (".csv", ".tsv", ".tab"), judge="delimited.is_table"),
    FileFormat("fb2", "FictionBook", "xml_text", (".fb2",), roots=("FictionBook",), entries=("*.fb2",)),
    FileFormat("xml", "JATS, TEI, DocBook", "xml_text", (".xml",), roots=_ARTICLES),
    FileFormat("feed", "RSS, Atom", "feed", (".rss", ".atom"), roots=("rss", "feed", "RDF")),
    # The parser of PDFs makes a PDF of pictures. Detection finds these two lines and the next one by themselves.
    FileFormat("pdf", "PNG, JPEG, TIFF", "pdf", (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp"), "page"),
    FileFormat("pdf", "CBZ", "pdf", (".cbz",), "page"),
    FileFormat("zip", "ZIP", "bundle", (".zip",)),
    FileFormat(
        "text", "TXT", "text", (".txt", ".text", ".srt", ".vtt", ".log", ".json", ".tex", ".rst", ".org", ".py"),
    ),
)  # fmt: skip


def suffixes() -> tuple[str, ...]:
    """The suffixes of all files that the file chooser offers, in the order of the table."""
    return tuple(suffix for one in FORMATS for suffix in one.suffixes)


def names() -> tuple[str, ...]:
    """What a person calls the formats, in the order of the table. The names are the same in every language."""
    return tuple(one.name for one in FORMATS if one.name)


def documents(names: Sequence[str]) -> list[str]:
    """Return the entries of a zip container that are documents; [] if it is no bundle of documents."""
    known = tuple(suffix for suffix in suffixes() if suffix != ".zip")
    kept = [name for name in names if name.lower().endswith(known) and not is_hidden(name)]
    is_bundle = any(not name.lower().endswith(_PARTS) for name in kept) and "META-INF/MANIFEST.MF" not in names
    return kept if is_bundle else []


def is_hidden(name: str) -> bool:
    """Whether an entry of a zip container is one that no person put there to be read."""
    return any(part.startswith((".", "__MACOSX")) for part in PurePosixPath(name.replace("\\", "/")).parts)
