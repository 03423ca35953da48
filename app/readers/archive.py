"""Opens zip containers and parses XML, both with checks against hostile files.

The limits are checked before anything is unpacked. XML that defines entities is refused. Runs only in the child process
(``app.readers.child``).
"""

from __future__ import annotations

import html.entities
import re
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import BinaryIO
from xml.etree import ElementTree

from app.readers.parsed import Limits, Refused, damaged

_ENCRYPTED = 1  # flag bit of an encrypted entry
# minimum unpacked bytes of an entry whose compression ratio is checked; a smaller entry may have any ratio
_RATIO_FROM = 1 << 20
_DRIVE = re.compile(r"[A-Za-z]:")
_TYPES = "[Content_Types].xml"
DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError)
"""What opening a zip container or unpacking an entry raises if the file is damaged. ``KeyError`` means that an entry is
missing.
"""
_HOSTILE = "It is damaged, or made to harm the program that opens it. Get it from another source."


def open_bounded(path: Path | BinaryIO, limits: Limits) -> zipfile.ZipFile:
    """Open a zip file after checking its central directory against the limits.

    Checking the directory is enough, because ``zipfile`` never unpacks more bytes of an entry than the directory
    states.

    Raises:
        Refused: the file has too many entries, is too large or too strongly compressed, is encrypted, or has entry
            names that lead outside the archive.
        zipfile.BadZipFile: the file is no zip file, or its directory cannot be read.
    """
    try:
        files = zipfile.ZipFile(path)
    except (*DAMAGE, ValueError) as error:
        raise zipfile.BadZipFile(str(error)) from error
    try:
        _check(files.infolist(), limits)
    except BaseException:
        files.close()
        raise
    return files


@contextmanager
def opened_whole(path: Path, limits: Limits) -> Iterator[zipfile.ZipFile]:
    """Open a zip container with a document that cannot be read in part: damage that the reading meets in it refuses the
    document.

    Raises:
        Refused: as ``open_bounded``, or the container is damaged.
    """
    try:
        with open_bounded(path, limits) as files:
            yield files
    except (*DAMAGE, KeyError):
        raise damaged("is damaged: its zip container cannot be read.") from None


def _check(entries: list[zipfile.ZipInfo], limits: Limits) -> None:
    if len(entries) > limits.zip_entries:
        raise Refused(f"holds {len(entries):,} files; the limit is {limits.zip_entries:,}.", _HOSTILE)
    total = sum(entry.file_size for entry in entries)
    if total > limits.zip_bytes:
        raise Refused(f"unpacks to {total / 1e6:,.0f} MB; the limit is {limits.zip_bytes / 1e6:,.0f} MB.", _HOSTILE)
    for entry in entries:
        if entry.file_size > _RATIO_FROM and entry.file_size > limits.zip_ratio * max(entry.compress_size, 1):
            ratio = entry.file_size / max(entry.compress_size, 1)
            raise Refused(f"is a zip bomb: a part of it is packed {ratio:,.0f} to 1.", _HOSTILE)
        if entry.flag_bits & _ENCRYPTED:
            raise Refused("is a zip container locked by a password.", "Unlock it in the program that made it.")
        name = entry.filename.replace("\\", "/")
        if name.startswith("/") or _DRIVE.match(name) or ".." in PurePosixPath(name).parts:
            raise Refused(f"holds a file name that leads outside of it ({entry.filename[:60]!r}).", _HOSTILE)


def main_type(files: zipfile.ZipFile) -> str:
    """Return the type of the main part of an Office file; "" if the container is none."""
    if _TYPES not in files.namelist():
        return ""
    try:
        types = read_xml(read_part(files, _TYPES, "its list of parts"), "its list of parts").iter()
    except BrokenXml:
        return ""
    return next((one for part in types if (one := part.get("ContentType", "")).endswith("main+xml")), "")


def read_part(files: zipfile.ZipFile, name: str, part: str) -> bytes:
    """Unpack an entry. ``part`` is what it is, for the error message, such as "its table of contents".

    Raises:
        BrokenXml: the entry cannot be unpacked.
    """
    try:
        return files.read(name)
    except (*DAMAGE, RuntimeError, ValueError):
        broken = damaged(f"is damaged: {part} cannot be unpacked.")
        raise BrokenXml(broken.cause, broken.remedy) from None


class Names:
    """Looks up entries of a zip container by name. Ignores case and takes a backslash for a slash, as other programs
    do.
    """

    def __init__(self, files: zipfile.ZipFile) -> None:
        self._names = {name: name for name in files.namelist()}
        self._folded = {_folded(name): name for name in self._names}

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def find(self, name: str) -> str | None:
        """Return the entry's name as the container spells it; None if there is no such entry."""
        return self._names.get(name) or self._folded.get(_folded(name))


def _folded(name: str) -> str:
    return name.replace("\\", "/").casefold()


def read_xml(data: bytes, part: str) -> ElementTree.Element:
    """Parse XML. If that fails, repair common mistakes and parse it again.

    Args:
        data: the XML.
        part: what the XML is, for the error message, such as "its table of contents".

    Raises:
        Refused: the XML defines entities.
        BrokenXml: the XML is not well formed even after the repair.
    """
    try:
        return _parsed(data, part)
    except (ElementTree.ParseError, ValueError, LookupError):
        pass
    try:
        return _parsed(_mended(data), part)
    except (ElementTree.ParseError, ValueError, LookupError):
        broken = damaged(f"is damaged: {part} is not valid XML.")
        raise BrokenXml(broken.cause, broken.remedy) from None


class BrokenXml(Refused):
    """Raised for XML that is not well formed. For hostile XML the base class ``Refused`` is raised."""


def _parsed(data: bytes, part: str) -> ElementTree.Element:
    if b"<!ENTITY" in data or "<!ENTITY".encode("utf-16-le") in data or "<!ENTITY".encode("utf-16-be") in data:
        raise Refused(f"defines XML entities in {part}, which can grow without limit.", _HOSTILE)
    return ElementTree.fromstring(data)


def _mended(data: bytes) -> bytes:
    """Repair common mistakes in XML: a bare "&", HTML entities (such as ``&nbsp;``), leading spaces, and undeclared
    namespace prefixes.
    """
    data = _AMPERSAND.sub(_spelled, data.removeprefix(b"\xef\xbb\xbf").lstrip())
    declared = {match[1] for match in _DECLARED.finditer(data)} | {b"xml", b"xmlns"}
    return _PREFIX.sub(lambda found: found[0] if found[2] in declared else found[1], data)


def _spelled(found: re.Match[bytes]) -> bytes:
    name = (found[1] or b"").decode("ascii")
    if name in ("amp", "lt", "gt", "quot", "apos"):
        return found[0]
    code = html.entities.name2codepoint.get(name)
    return b"&#%d;" % code if code else b"&amp;" + found[0][1:]


_AMPERSAND = re.compile(rb"&(?!#)(?:([A-Za-z][A-Za-z0-9]{0,31});)?")
_DECLARED = re.compile(rb"xmlns:([\w-]+)\s*=")
_PREFIX = re.compile(rb"(</?|\s)([A-Za-z_][\w-]*):(?=[A-Za-z_][\w-]*[\s=/>])")


@lru_cache(maxsize=4096)
def local(tag: object) -> str:
    """Return an element's name without its namespace; "" for a comment."""
    return tag.rsplit("}", 1)[-1] if isinstance(tag, str) else ""


def attribute(node: ElementTree.Element, name: str) -> str:
    """Return an attribute, looked up by its name without its namespace; "" if the element lacks it."""
    return next((value for key, value in node.attrib.items() if local(key) == name), "")
