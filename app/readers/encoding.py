"""Decodes the bytes of a text file. Runs only in the child process (``app.readers.child``).

Byte order marks, escape sequences and zero bytes identify an encoding for certain. Otherwise, bytes that decode as
UTF-8 are UTF-8. For other bytes, ``app.readers.guess`` chooses an encoding. If it finds none, the library
charset-normalizer chooses one; that library needs long texts, but knows rare scripts.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter

from app.readers import guess

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ESCAPES = ((b"\x1b$)C", "iso2022_kr"), (b"\x1b$B", "iso2022_jp"), (b"\x1b$@", "iso2022_jp"))
_HZ = re.compile(rb"~\{((?:[!-w][!-~])+)~\}")  # matches Chinese text in the seven-bit encoding HZ (RFC 1843)
# lowest lead byte of a Chinese character in seven-bit GB 2312; lower lead bytes are for symbols
_FIRST_CHARACTER = 0x30
_LAST_COMMON = 0x57  # last lead byte of the common characters (level 1) of GB 2312
_SIGNS = (0x21, 0x23)  # lead bytes of punctuation and full-width forms in GB 2312
_COMMON = 0.7  # minimum share of common characters and punctuation among byte pairs that count as Chinese text
_SAMPLE = 256 << 10  # number of bytes, or of characters after decoding, that are examined at the beginning of a file
_LAST_PLANE = 0x10  # number of the last plane of Unicode
_NOTHING = 0.9  # maximum share of zero bytes in a text; UTF-32 has at most 0.75, so data with a larger share is binary
# minimum share, among the even or the odd bytes of UTF-16 text, of bytes that can be a character's high byte
_ONE_SCRIPT = 0.95
_MOSTLY = 0.4  # minimum share of zeros among the even or the odd bytes of Latin text in UTF-16
HEAD = 64 << 10
"""Number of leading bytes that are used to detect a file's format."""

CONTROL = re.compile(rb"[\x00-\x06\x0e-\x1a\x1c-\x1f]")
"""Matches control bytes that are rare in text."""

_MOST_CONTROL = 0.005  # maximum share of control bytes in a text; data with a larger share is binary
_BROKEN = 0.002  # maximum share of undecodable characters in a text that still counts as UTF-8
MIXED = "utf-8 mixed with cp1252"
_WESTERN_PIECES = "trifold-western-pieces"


def decode(data: bytes) -> tuple[str, str]:
    """Decode text, and return it with the name of its encoding. Undecodable bytes become U+FFFD."""
    encoding = decode_sample(data)
    if encoding is not None:
        return data.decode(encoding, errors="replace"), encoding
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        pass
    mixed = _mixed(data)
    if mixed is not None:
        return mixed, MIXED
    text = data.decode("utf-8", errors="replace")
    beyond = sum(sign > "\x7f" for sign in text[:_SAMPLE])
    if text.count("\ufffd") < max(_BROKEN * len(text), 1) and beyond > 2 * text[:_SAMPLE].count("\ufffd"):
        return text, "utf-8"
    encoding = _guess(data)
    return data.decode(encoding, errors="replace"), encoding


def is_text(data: bytes) -> bool:
    """Whether bytes can be text in some encoding. Encrypted and compressed data is recognised as no text."""
    head = data[:HEAD]
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff")) or decode_sample(head) is not None
    return wide or len(CONTROL.findall(head)) <= max(_MOST_CONTROL * len(head), 1)


def _mixed(data: bytes) -> str | None:
    """Decode UTF-8 text that contains pieces in cp1252; None if the bytes are not such a mixture."""
    text = data.decode("utf-8", errors=_WESTERN_PIECES)
    wrong = data.decode("utf-8", errors="replace").count("\ufffd")
    right = sum(sign > "\x7f" for sign in text) - wrong
    return text if wrong > _BROKEN * len(text) and right >= 0.5 * wrong and _is_latin(text) else None


def _is_latin(text: str) -> bool:
    """Whether nearly all letters beyond ASCII are letters of Western European languages."""
    letters = [sign for sign in text if sign > "\x7f" and sign.isalpha()]
    return sum(sign <= "\u017f" for sign in letters) > 0.95 * len(letters)


def _western_piece(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("cp1252", errors="replace"), error.end


codecs.register_error(_WESTERN_PIECES, _western_piece)


def decode_sample(data: bytes) -> str | None:
    """Return the encoding that a byte order mark, escape sequences, zero bytes or the high bytes of UTF-16 identify;
    None if there is no such sign.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding
    if max(data[:_SAMPLE], default=0) < 0x80 and (escaped := _escaped(data)):
        return escaped
    head = data[: 4096 - 4096 % 2]
    half = len(head) // 2
    if head.count(0) > _NOTHING * len(head):
        return None
    quarters = [head[offset : 4 * (half // 2) : 4] for offset in range(4)]
    if half >= 4 and not any(quarters[3]) and max(quarters[2]) <= _LAST_PLANE:
        return "utf-32-le"
    if half >= 4 and not any(quarters[0]) and max(quarters[1]) <= _LAST_PLANE:
        return "utf-32-be"
    if half >= 2:
        if head[1::2].count(0) > _MOSTLY * half and head[0::2].count(0) < 0.05 * half:
            return "utf-16-le"
        if head[0::2].count(0) > _MOSTLY * half and head[1::2].count(0) < 0.05 * half:
            return "utf-16-be"
        low, high = _leading(head[0::2]), _leading(head[1::2])
        if high > _ONE_SCRIPT * half and low < 0.5 * half:
            return "utf-16-le"
        if low > _ONE_SCRIPT * half and high < 0.5 * half:
            return "utf-16-be"
    return None


def _escaped(data: bytes) -> str | None:
    """Return the seven-bit encoding that a text's escape sequences identify; None if it has no such sequences."""
    head = data[:_SAMPLE]
    for escape, encoding in _ESCAPES:
        if escape in head:
            return encoding
    leads = b"".join(_HZ.findall(head))[::2]
    # Program text may contain "~{" and "~}" too. The bytes between these marks count as Chinese only if most of them
    # are common characters.
    common = sum(_FIRST_CHARACTER <= lead <= _LAST_COMMON or lead in _SIGNS for lead in leads)
    if any(lead >= _FIRST_CHARACTER for lead in leads) and common > _COMMON * len(leads):
        return "hz"
    return None


def _leading(half: bytes) -> int:
    """Count how many bytes of ``half``, which has every second byte of a text, can be high bytes of UTF-16 characters.
    High bytes from 0x01 to 0x10 belong to letters, 0x00 to ASCII, and 0x20 to punctuation. Return 0 if at most 30 % of
    the bytes belong to letters.
    """
    counts = Counter(half)
    scripts = sum(counts[byte] for byte in range(0x01, 0x11) if byte not in (0x09, 0x0A, 0x0D))
    return scripts + counts[0] + counts[0x20] if scripts > 0.3 * len(half) else 0


def _guess(data: bytes) -> str:
    found = guess.guess(data)
    if found is not None:
        return found
    from charset_normalizer import from_bytes

    first = next(index for index, byte in enumerate(data) if byte > 0x7F)
    best = from_bytes(data[max(0, first - 1024) :][:_SAMPLE]).best()
    return "cp1252" if best is None else best.encoding
