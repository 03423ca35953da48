"""Marks the places of pictures in texts of other formats than PDF, until the words of the pictures take these places.

A parser writes ``mark(key)`` as a paragraph where a picture stands. When the whole file has been read, ``resolve`` puts
the picture's words there, or tells that they are not known. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import hashlib
import html
import re
from collections import Counter
from collections.abc import Callable, Mapping
from email.message import Message
from typing import Any

from app.readers.parsed import Parsed
from app.readers.sections import Block

_START, _END = "\ufdd4", "\ufdd5"  # Unicode reserves them, so no text has them
_MARK = re.compile(f"{_START}([^{_START}{_END}]{{1,1001}}){_END}")
IN_PAGE = "data:"
"""Begins the key of a picture whose data stands in the page."""

DATA = re.compile(r"data:image/[a-z+.-]{1,20};base64,([A-Za-z0-9+/=%\s]{100,})")
"""Matches the address of a picture that has its data, up to the data."""

_WRITTEN = re.compile(
    rb"(?:iVBORw0KGgo|/9j/|R0lGOD|UklGR)[A-Za-z0-9+/=\s]{100,}|(?:89504[eE]47|[fF][fF][dD]8[fF][fF])[0-9A-Fa-f\s]{200,}"
)
"""Matches a picture that a file of text holds: a PNG, JPEG, GIF or WebP in base64, or a PNG or JPEG in hexadecimal
digits.
"""

_LONGEST_SCHEME = 12  # leading characters of an address in which the colon of its scheme is
_DIGITS = 64  # characters of a hash
_LONGEST_KEY = 1_000  # maximum characters of a key
_UNDESCRIBED = "?"  # begins the source of a picture without a description; no address of a file begins with it
_GAP = re.compile(r"\n{3,}")
_DRAWINGS = (".emf", ".wmf", ".emz", ".wmz")  # formats of Windows that nothing here can draw
_REPEATED = 3  # minimum number of places with the same picture that make it a logo or an ornament


def mark(key: str) -> str:
    """Return the mark for the place of a picture in a text."""
    return f"{_START}{key}{_END}"


def with_keys(text: str) -> str:
    """Replace each address that has a picture's data, in a page of HTML, by the picture's key, which is a hash."""
    return DATA.sub(lambda found: f"{IN_PAGE}{hashlib.sha256(found[1].encode()).hexdigest()}", text)


def key_of_data(written: str | bytes) -> str:
    """Return the key of a picture from its data as a file of text holds it (``embedded``)."""
    data = written.encode() if isinstance(written, str) else written
    return f"{IN_PAGE}{hashlib.sha256(b''.join(data.split())).hexdigest()}"


def key_of_written(text: str) -> str:
    """Return the key of a picture in a text that is nothing but its data; "" if it is of an unknown format."""
    match = _WRITTEN.search(text.encode("ascii", "replace"))
    return key_of_data(match[0]) if match is not None else ""


def embedded(content: bytes) -> dict[str, bytes]:
    """Find the pictures that a file of text holds, such as a saved page, a mail or rich text. Return their data as the
    file holds it, keyed by their keys.
    """
    pictures = {with_keys(one[0]): one[1].encode() for one in DATA.finditer(content.decode("latin-1"))}
    return pictures | {key_of_data(one[0]): b"".join(one[0].split()) for one in _WRITTEN.finditer(content)}


_SOURCE = re.compile(r"""(<img\s[^<>]{0,2000}?\bsrc\s{0,9}=\s{0,9}["']?)([^"'\s<>]{1,2000})""", re.I)


def with_keys_of_parts(text: str, keys: Mapping[str, str]) -> str:
    """Replace the address of each picture of a page of HTML by its key in ``keys``."""
    return _SOURCE.sub(lambda found: found[1] + keys.get(html.unescape(found[2]), found[2]), text) if keys else text


def keys_of_parts(mail: Message) -> dict[str, str]:
    """Return the keys of the pictures in the parts of a mail or a saved page, by the addresses that its pages use."""
    keys = {}
    for part in mail.walk():
        if key := key_of_part(part):
            keys["cid:" + str(part.get("Content-ID", "")).strip().strip("<>")] = key
            keys[str(part.get("Content-Location", "")).strip()] = key
    return keys


def key_of_part(part: Message) -> str:
    """Return the key of a part of a mail that is a picture; "" for another part, or one of an unknown format."""
    payload = part.get_payload() if part.get_content_maintype() == "image" else ""
    return key_of_written(payload) if isinstance(payload, str) else ""


def marks_in(text: str) -> list[str]:
    """Return the marks of pictures in a text."""
    return [match[0] for match in _MARK.finditer(text)]


def key_of_source(source: str) -> str:
    """Return the key of a picture from the address in a page of HTML: the key that ``with_keys`` put there, or the
    address itself if it is relative; "" if the picture is elsewhere.
    """
    if source.startswith(IN_PAGE):
        return source if len(source) == len(IN_PAGE) + _DIGITS else ""
    return "" if ":" in source[:_LONGEST_SCHEME] or source.startswith("//") or len(source) > _LONGEST_KEY else source


def mark_of_source(source: str, *, described: bool) -> str:
    """Return the mark of a picture in a page of HTML, before the page's place in the file is known (``named``)."""
    return mark(f"{'' if described else _UNDESCRIBED}{source}")


def named(blocks: list[Block], name: Callable[[str], str]) -> int:
    """Give the marks of a page of HTML their keys ``name(source)``. If the key is "", drop the mark. Return the number
    of dropped marks of pictures without a description.
    """
    dropped = 0

    def changed(found: re.Match[str]) -> str:
        nonlocal dropped
        key = name(found[1].removeprefix(_UNDESCRIBED))
        dropped += not key and found[1].startswith(_UNDESCRIBED)
        return mark(key) if key else ""

    for block in blocks:
        if _START in block.text:
            block.text = _MARK.sub(changed, block.text)
    blocks[:] = [block for block in blocks if block.text or block.anchors]
    return dropped


def resolve(parsed: Parsed, known: Mapping[str, Any]) -> None:
    """Put the words of pictures at their marks, and add warnings. A picture that stands in several places is read at
    the first; in many places it is a logo, and not read.

    Args:
        known: records of recognised pictures by key (``app.readers.recognition.PictureRecords``).
    """
    places = Counter(key for section in parsed.sections for key in _MARK.findall(section.text))
    if not places:
        return
    from app.readers import inner_pictures, picture_words
    from app.readers.recognised import bracketed

    seen: set[str] = set()
    waiting = with_words = 0
    drawn = {key for key in places if key.lower().endswith(_DRAWINGS)}
    unread = drawn | {key for key, count in places.items() if count >= _REPEATED}

    def words(found: re.Match[str]) -> str:
        nonlocal with_words
        key = found[1]
        if key in unread or key in seen or key not in known:
            return ""
        seen.add(key)
        read = picture_words.words_of(known[key]) if known[key] else ""
        with_words += bool(read)
        before, after = found.string[: found.start()], found.string[found.end() :]
        alone = (not before or before.endswith("\n\n")) and (not after or after.startswith("\n\n"))
        return bracketed(read if alone else read.replace("\n", "; ")) if read else ""

    for section in parsed.sections:
        keys = [key for key in _MARK.findall(section.text) if key not in unread and key not in known]
        section.pictures = list(dict.fromkeys(keys))
        waiting += len(section.pictures)
        section.text = _GAP.sub("\n\n", _MARK.sub(words, section.text)).strip()
        section.label = _MARK.sub("", section.label)
    for heading in parsed.outline:
        heading.title = _MARK.sub("", heading.title)
    parsed.title = _MARK.sub("", parsed.title)
    parsed.warnings += inner_pictures.told(len(seen), with_words, waiting)
    if drawn:
        parsed.warnings.append(f"Drawings in a format that is not read here (EMF, WMF): {len(drawn):,}.")
