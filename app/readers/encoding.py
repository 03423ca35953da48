"""Bytes of a text file become text. Byte order marks first, then UTF-8, then UTF-16 by its zeros, then a guess."""

from __future__ import annotations

import codecs

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CYRILLIC = ("cp1251", "koi8_r", "iso8859_5", "cp866", "mac_cyrillic")
_SAMPLE = 256 << 10
_MOSTLY = 0.4  # of the even or odd bytes are zero in UTF-16 of a Latin text
_BROKEN = 0.002  # of the characters may be wrong in a text that is still UTF-8
_WESTERN = 0.25  # of the letters of a Western text are outside ASCII at most


def decode(data: bytes) -> tuple[str, str]:
    """The text and the name of its encoding; what cannot be decoded becomes U+FFFD."""
    encoding = decode_sample(data)
    if encoding is not None:
        return data.decode(encoding, errors="replace"), encoding
    try:
        return data.decode("utf-8"), "utf-8"
    except UnicodeDecodeError:
        pass
    text = data.decode("utf-8", errors="replace")
    beyond = sum(sign > "\x7f" for sign in text[:_SAMPLE])
    if text.count("\ufffd") < max(_BROKEN * len(text), 1) and beyond > 2 * text[:_SAMPLE].count("\ufffd"):
        return text, "utf-8"
    encoding = _guess(data)
    return data.decode(encoding, errors="replace"), encoding


def decode_sample(data: bytes) -> str | None:
    """The Unicode encoding that marks or zeros give away; None for all others."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding
    head = data[: 4096 - 4096 % 2]
    half = len(head) // 2
    if half >= 2:
        if head[1::2].count(0) > _MOSTLY * half and head[0::2].count(0) < 0.05 * half:
            return "utf-16-le"
        if head[0::2].count(0) > _MOSTLY * half and head[1::2].count(0) < 0.05 * half:
            return "utf-16-be"
    return None


def _guess(data: bytes) -> str:
    first = next(index for index, byte in enumerate(data) if byte > 0x7F)
    start = max(0, first - 1024)
    sample = data[start : start + _SAMPLE]
    western = sample.decode("cp1252", errors="replace")
    letters = [sign for sign in western if sign.isalpha()]
    foreign = sum(sign > "\x7f" for sign in letters)
    signs = sum(sign > "\x7f" and not sign.isalpha() and sign not in "“”‘’–—…«»°§£€©® ¿¡•·" for sign in western)
    if letters and foreign < _WESTERN * len(letters) and signs <= 0.1 * (foreign + 1) + 1:
        return "cp1252"
    from charset_normalizer import from_bytes

    best = from_bytes(sample).best()
    if best is None:
        return "cp1252"
    return _cyrillic(sample) if best.encoding in _CYRILLIC else best.encoding


def _cyrillic(sample: bytes) -> str:
    """The Cyrillic code page that gives the most small letters: the wrong ones turn case round or give signs."""

    def small(encoding: str) -> int:
        return sum("а" <= sign <= "я" for sign in sample.decode(encoding, errors="replace"))

    return max(_CYRILLIC, key=small)
