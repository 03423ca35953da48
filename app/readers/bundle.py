"""Reads a zip archive of documents as one book: the sections of each document follow its name. Also unpacks it, so that
each document can be a book of its own. Runs only in the child process (``app.readers.child``).

Each document is unpacked by itself into a temporary folder, read by the parser of its format, and deleted. Pictures of
pages are not recognised; documents with such pages are told.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Any

from app.readers import archive, cleaning, detect
from app.readers.file_formats import documents, is_hidden
from app.readers.parsed import Heading, Limits, Parsed, Refused, Section, Step
from engine.model_files import TEMPORARY

_MOST = 500  # maximum documents that are read of an archive
_MOST_NAMED = 5  # maximum names in a warning
_LONGEST_NAME = 60  # maximum characters of a document's name in a label


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a zip archive of documents. The sections have labels such as "Lease 2024.pdf, page 3"."""
    step(0, 1, None)
    parsed = Parsed([])
    left_out: Counter[str] = Counter()
    with archive.opened_whole(path, limits) as files, tempfile.TemporaryDirectory(prefix=TEMPORARY) as folder:
        names, others = _entries(files)
        for number, name in enumerate(names[:_MOST]):
            step(number, len(names), None)
            shown = _shown(name)
            inner = Path(folder) / f"{number}{PurePosixPath(name).suffix.lower()}"
            try:
                inner.write_bytes(archive.read_part(files, name, "a document"))
                _add(parsed, _parsed(inner, request, limits, step), shown, left_out)
            except Refused as refused:
                parsed.warnings.append(f"“{shown}” is not read: {refused.cause}")
            inner.unlink(missing_ok=True)
    _tell(parsed.warnings, others, len(names))
    if not parsed.sections:
        raise Refused("holds no document that can be read.", "Unpack it and open what you need by itself.")
    parsed.left_out = left_out
    return parsed


def unpack(path: Path, folder: Path, most: int, limits: Limits, step: Step) -> dict[str, Any]:
    """Unpack each document of a zip archive into a file of its own in ``folder``, numbered from 0.

    Returns:
        ``documents``: the suffix of the file and the name of each document; [] if the file is no archive of documents
        or has more than ``most``. ``warnings``: what is left out.
    """
    step(0, 1, None)
    unpacked: list[tuple[str, str]] = []
    warnings: list[str] = []
    if zipfile.is_zipfile(path) and detect.format_of(path, limits).parser == "bundle":
        with archive.opened_whole(path, limits) as files:
            names, others = _entries(files)
            for name in names if len(names) <= most else ():
                step(len(unpacked), len(names), None)
                suffix = PurePosixPath(name).suffix.lower()
                try:
                    (folder / f"{len(unpacked)}{suffix}").write_bytes(archive.read_part(files, name, "a document"))
                    unpacked.append((suffix, _shown(name)))
                except Refused as refused:
                    warnings.append(f"“{_shown(name)}” is not read: {refused.cause}")
            _tell(warnings, others, len(names))
    return {"documents": unpacked, "warnings": warnings}


def _entries(files: zipfile.ZipFile) -> tuple[list[str], list[str]]:
    """Return the entries of an archive that are documents, and those that a person put there but that are none."""
    names = documents(files.namelist())
    others = [name for name in files.namelist() if not name.endswith("/") and name not in names]
    return names, [name for name in others if not is_hidden(name)]


def _shown(name: str) -> str:
    return cleaning.one_line(PurePosixPath(name.replace("\\", "/")).name, _LONGEST_NAME)


def _parsed(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a document by the parser of its format."""
    if zipfile.is_zipfile(path) and detect.format_of(path, limits).parser == "bundle":
        raise Refused("is a zip archive, not a document.", "Unpack it and open the document inside.")
    alone = {key: value for key, value in request.items() if key not in ("trouble", "recognised", "unread", "kind")}
    return detect.parse(path, alone, limits, lambda done, total, page: step(0, 1, None))


def _add(parsed: Parsed, document: Parsed, name: str, left_out: Counter[str]) -> None:
    """Add the sections of a document."""
    filled = [at for at, section in enumerate(document.sections) if section.text]
    places = {at: place for place, at in enumerate(filled, len(parsed.sections) + 1)}
    if not filled:
        parsed.warnings.append(f"“{name}” has no text: its pages are pictures. Open it by itself to recognise them.")
        return
    if any(section.picture == "unread" for section in document.sections):
        parsed.warnings.append(f"“{name}” has pages that are pictures. Open it by itself to recognise them.")
    parsed.outline.append(Heading(name, len(parsed.sections) + 1, 0))
    for entry in document.outline:
        if (place := next((places[at] for at in filled if at + 1 >= entry.page), 0)) > 0:
            parsed.outline.append(Heading(entry.title, place, entry.level + 1))
    alone = len(filled) == 1
    before = "page " if document.unit == "page" else ""
    taken = {section.label for section in parsed.sections}
    for at in filled:
        label = name if alone else f"{name}, {before}{document.sections[at].label}"
        number = 2
        while label in taken:
            label = f"{label.rpartition(' (')[0] if number > 2 else label} ({number})"
            number += 1
        taken.add(label)
        parsed.sections.append(Section(label, document.sections[at].text))
    parsed.warnings += [f"“{name}”: {warning}" for warning in document.warnings]
    left_out.update(document.left_out)


def _tell(warnings: list[str], others: list[str], count: int) -> None:
    if count > _MOST:
        warnings.append(f"Only the first {_MOST:,} of {count:,} documents are read.")
    if others:
        named = ", ".join(cleaning.one_line(name, _LONGEST_NAME) for name in others[:_MOST_NAMED])
        more = ", …" if len(others) > _MOST_NAMED else ""
        warnings.append(f"Files of other kinds are not read: {len(others):,} ({named}{more}).")
