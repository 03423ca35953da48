"""Exports notes as Markdown for people, and as BibTeX and RIS for reference managers.

An entry has the facts that the document's file states: title, authors, year. Other facts are left out. An entry's type
is always ``@misc`` (BibTeX) or ``GEN`` (RIS), because files do not state the kind of publication.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.core import format
from app.core.books import Book, Books
from app.core.export import harmless
from app.core.notes import Note, NoteStore
from engine.document import Document
from engine.errors import on_one_line, plain

_YEAR = re.compile(r"(?<!\d)(1[0-9]{3}|20[0-9]{2})(?!\d)")
_WORD = re.compile(r"[a-z0-9]+")  # a key has only these signs
_BETWEEN_NAMES = re.compile(r"(?<!\s)\s*+;\s*|(?<!\s)\s++(?:and|&)\s+")
# English, German, French and Spanish words that occur in names of institutions and not in names of persons. Words that
# are also surnames (Church, Bank, Press, School) are therefore missing. Legal forms such as "GmbH" count only at the
# end of a name and only with these capitals.
_OF_AN_OFFICE = "Administration|Agency|Bureau|Cent(?:er|re)s?|Commission|Committee|Council|Department|Ministry|Office"
_INSTITUTION = re.compile(
    rf"\b(?:{_OF_AN_OFFICE}|Academy|Association|Authority|Company|Corporation|Federation|Foundation|Government|Institutes?"
    r"|Institution|Laborator(?:y|ies)|Nations|Organi[sz]ation|Parliament|Society|University|Akademie|Bundes\w+"
    r"|Gesellschaft|Hochschule|\w*[Mm]inisterium|Institut|Stiftung|Universität|Verein|Verlag|Académie|Agence|Ministère"
    r"|Société|Université|Agencia|Fundación|Instituto|Ministerio|Sociedad|Universidad)\b"
    r"|[\s,](?:AG|BV|Co\.|Corp\.?|e\. ?V\.|GmbH|Inc\.?|KG|LLC|LLP|Ltd\.?|N\.?V\.|PLC|plc|S\.A\.)$"
)
# Matches one name that contains "and" or "&": "Department of Health and Human Services", "Holt & Wren Ltd."
_NAME_WITH_AND = re.compile(
    rf"(?:(?!and )[\w.]+ )*(?:{_OF_AN_OFFICE}) (?:of|for|on) [^;,]+? and [^;,]+|\w+ & \w+,? [^;,]+"
    r"|(?:(?!and )[\w.]+ )*(?:Academy|Institutes?|University) (?:of|for) [\w ]+? and \w+$"
    rf"|(?:(?:U\.?S\.?|National) )?\w+ and (?:\w+ )*(?:{_OF_AN_OFFICE})\b"
)
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    # BibTeX counts braces even after a backslash, so that one brace more or less would end the entry elsewhere.
    "{": r"\textbraceleft{}",
    "}": r"\textbraceright{}",
    **{sign: f"\\{sign}" for sign in "&%$#_"},
}
_NO_PAGE = "without a page"


@dataclass(frozen=True)
class Source:
    """A document whose notes are exported. ``date``: the date of publication that the document's file states; "" if
    unknown.
    """

    sha256: str
    title: str
    author: str = ""
    date: str = ""
    unit: str = "page"

    @property
    def year(self) -> str:
        match = _YEAR.search(self.date)
        return match[1] if match else ""

    @property
    def authors(self) -> tuple[str, ...]:
        """The names of the authors, spelled as in the file: "Herman Melville" or "Melville, Herman"."""
        whole = self.author.strip()
        if _NAME_WITH_AND.fullmatch(whole) and is_institution(whole):
            return (whole,)
        names: list[str] = []
        for name in _BETWEEN_NAMES.split(whole):
            parts = [part.strip() for part in name.split(",")]
            names += parts if all(len(part.split()) > 1 for part in parts) else [name]
        return tuple(filter(None, names))


def is_institution(name: str) -> bool:
    """Whether an author's name contains a word of institutions or ends with a legal form, such as "University" or
    "GmbH". A name without such a word counts as a person's.
    """
    return _INSTITUTION.search(name) is not None


def sources_of(books: Books, store: NoteStore, book: Book, opened: Document | None = None) -> tuple[Source, ...]:
    """The documents that the exported notes belong to: the book itself, or the documents of a collection. A collection
    itself is added after its documents if it has notes of its own, which have no page.

    Args:
        opened: the open document. It provides the title and the authors of documents with a password, because their
            text is not stored.
    """
    members = books.members(book)
    own = store.counts().get(book.sha256, 0)
    return tuple(_source(books, one, opened) for one in (*members, *([book] if own or not members else [])))


def _source(books: Books, book: Book, opened: Document | None) -> Source:
    if opened is not None and opened.sha256 == book.sha256:
        return Source(book.sha256, opened.title, opened.author, opened.date, opened.unit)
    if (kept := books.text(book)) is not None:
        return Source(book.sha256, kept.title, kept.author, kept.date, kept.unit)
    for member in opened.members if opened is not None else ():
        if member.sha256 == book.sha256:
            return Source(book.sha256, member.title, member.author, "", member.unit)
    return Source(book.sha256, book.shown, book.author, "", book.unit)


def as_markdown(title: str, sources: Sequence[Source], notes: Sequence[Note]) -> str:
    """Return the notes as Markdown, document by document, in the given order. Each note is given with its page and its
    passage.

    Args:
        title: title of the book that the notes are about.
    """
    parts = [f"# Notes on {on_one_line(title)}"]
    several = len(sources) > 1
    for source in sources:
        own = [note for note in notes if note.book == source.sha256]
        if several:
            parts.append(f"## {on_one_line(source.title)}")
        about = ", ".join(filter(None, ["; ".join(map(on_one_line, source.authors)), source.year]))
        parts += [f"*{about}*"] if about else []
        parts.append(f"{format.counted(len(own), 'note')}, made with Trifold." if own else "No notes.")
        parts += [_markdown(note, source) for note in own]
    return harmless("\n\n".join(parts) + "\n")


def _markdown(note: Note, source: Source) -> str:
    lines = (
        "\n".join(f"> {line}".rstrip() for line in note.passage.strip().splitlines()) if note.passage.strip() else ""
    )
    place = f"**{_place(note, source, long=True)}** ({note.colour})"
    said = f"From an answer: {' '.join(note.said.split())}" if note.said.strip() else ""
    return "\n\n".join(part for part in (place, lines, said, note.words.strip()) if part)


def as_bibtex(sources: Sequence[Source], notes: Sequence[Note]) -> str:
    """Return a BibTeX file with an entry for each document. The document's notes are in the field ``annote``."""
    taken: set[str] = set()
    entries = []
    for source in sources:
        own = [_line(note, source) for note in notes if note.book == source.sha256]
        values = {
            "title": f"{{{_tex(source.title)}}}",
            "author": " and ".join(map(_bibtex_name, source.authors)),
            "year": source.year,
            "annote": "\n\n".join(map(_tex, own)),
        }
        lines = [f"  {name} = {{{value}}}" for name, value in values.items() if value]
        entries.append(f"@misc{{{_key(source, taken)},\n" + ",\n".join(lines) + "\n}\n")
    return "\n".join(entries)


def as_ris(sources: Sequence[Source], notes: Sequence[Note]) -> str:
    """Return a file in RIS format with an entry for each document. An entry has a line ``N1`` for each note of the
    document.
    """
    lines: list[str] = []
    for source in sources:
        lines += ["TY  - GEN", f"TI  - {on_one_line(source.title)}"]
        lines += [f"AU  - {on_one_line(name)}" for name in source.authors]
        lines += [f"PY  - {source.year}"] if source.year else []
        lines += [f"N1  - {_line(note, source)}" for note in notes if note.book == source.sha256]
        lines += ["ER  - ", ""]
    return "\r\n".join(lines)


FORMS: dict[str, tuple[str, Callable[[str, Sequence[Source], Sequence[Note]], str]]] = {
    "md": ("text/markdown; charset=utf-8", as_markdown),
    "bib": ("application/x-bibtex; charset=utf-8", lambda _, sources, notes: as_bibtex(sources, notes)),
    "ris": ("application/x-research-info-systems; charset=utf-8", lambda _, sources, notes: as_ris(sources, notes)),
}
"""Export formats, keyed by the file name's extension. Each has a media type, and a function that returns the file's
text.
"""


def _place(note: Note, source: Source, long: bool = False) -> str:
    name = format.page_name(note.label or str(note.page), source.unit, long=long) if note.page else _NO_PAGE
    return name[:1].upper() + name[1:] if long else name


def _line(note: Note, source: Source) -> str:
    """Return a note as one line, such as "p. 41: “the north light” (From an answer: Maren Holt kept it.) My own words.
    [yellow]".
    """
    passage, said, words = map(on_one_line, (note.passage, note.said, note.words))
    parts = [f"“{passage}”" if passage else "", f"(From an answer: {said})" if said else "", words, f"[{note.colour}]"]
    return f"{on_one_line(_place(note, source))}: {' '.join(filter(None, parts))}"


def _key(source: Source, used_keys: set[str]) -> str:
    """Make a unique citation key for an entry, such as "melville1851moby", and add it to ``used_keys``."""
    author = source.authors[0] if source.authors else ""
    last = author.split(",")[0] if "," in author else (author.split() or [""])[-1]
    title = next((word for word in _words(source.title) if len(word) > 3), "")
    key = f"{''.join(_words(last))}{source.year}{title}" or "document"
    number = next(
        count for count in range(1, len(used_keys) + 2) if f"{key}{'' if count == 1 else count}" not in used_keys
    )
    used_keys.add(key := f"{key}{'' if number == 1 else number}")
    return key


def _words(text: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode().lower()
    return _WORD.findall(plain)


def _bibtex_name(name: str) -> str:
    """Write an author's name for BibTeX. An institution's name is put into braces, because BibTeX would split it into
    first and last names.
    """
    return f"{{{_tex(name)}}}" if is_institution(name) else _tex(name)


def _tex(text: str) -> str:
    return "".join(_SPECIAL.get(sign, sign) for sign in plain(text.replace("\r", "")))
