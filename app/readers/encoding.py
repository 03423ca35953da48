"""Bytes of a text file become text. Marks and escapes first, UTF-16 by its zeros, then UTF-8, then a guess."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ESCAPES = ((b"\x1b$)C", "iso2022_kr"), (b"\x1b$B", "iso2022_jp"), (b"\x1b$@", "iso2022_jp"))
_HZ = re.compile(rb"~\{((?:[!-w][!-~])+)~\}")  # Chinese in seven bits (RFC 1843)
_FIRST_CHARACTER = 0x30  # below it a pair of that encoding is punctuation
_CYRILLIC = ("cp1251", "koi8_r", "koi8_u", "iso8859_5", "cp866", "mac_cyrillic")
# What charset-normalizer may take these for, and what tells them apart: signs that their texts are full of.
_EAST_ASIAN = ("cp932", "euc_jp", "gb18030", "big5", "euc_kr")
_CENTRAL = ("cp1252", "cp1250", "iso8859_2", "cp1257", "iso8859_13", "iso8859_4")
_CENTRAL_LETTERS = frozenset("ąćęłńóśźżáčďéěíňřšťúůýžőűäöüßçăîâșțđ„”–“àèêëïôùñåæøœ")
_CYRILLIC_GUESSES = (*_CYRILLIC, "cp1125", "kz1048", "ptcp154", "cp855", "koi8_t")
# Encodings of Latin letters, the common ones first, with the letters of each language that is written in them. A text
# belongs to the first under which what is beyond ASCII is of one language.
_LATIN: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "cp1252",
        (
            "àâæçéèêëîïôœùûüÿ", "äöüßé", "áéíñóúü", "áâãàçéêíóôõúü", "åäöæøéüà", "àèéìîòùú", "áðéíóúýþæö", "äëéèïöüê",
            "äöüõšž",
        ),
    ),
    ("iso8859_15", ("àâæçéèêëîïôœùûüÿ", "äöüõšž")),
    ("cp1254", ("çğıöşüâîû",)),
    ("cp1250", ("áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "ąćęłńóśźż", "áéíóöőúüű", "ăâîşţ", "čćžšđ")),
    ("iso8859_2", ("áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "ąćęłńóśźż", "áéíóöőúüű", "ăâîşţ", "čćžšđ")),
    ("cp1257", ("āčēģīķļņšūž", "ąčęėįšųūž", "äöüõšž", "ąćęłńóśźż")),
    ("iso8859_13", ("āčēģīķļņšūž", "ąčęėįšųūž", "äöüõšž", "ąćęłńóśźż")),
    ("iso8859_4", ("āčēģīķļņšūž", "ąčęėįšųūž")),
    ("cp850", ("àâæçéèêëîïôùûüÿ", "äöüßé", "áéíñóúü", "áâãàçéêíóôõúü", "åäöæøéüà", "àèéìîòùú")),
    ("mac_roman", ("àâæçéèêëîïôœùûüÿ", "äöüßé", "áéíñóúü", "áâãàçéêíóôõúü", "åäöæøéüà", "àèéìîòùú")),
)  # fmt: skip
_PRINTED = frozenset("“”„‘’‚–—…«»‹›°§£€©®·•¡¿ªº½¼¾²³±×\u00a0\u00ad")
_ONE_LANGUAGE = 0.985  # of the signs beyond ASCII
_HEBREW = frozenset(range(0xE0, 0xFB))
_SAMPLE = 256 << 10
_NOTHING = 0.9  # of the bytes are zero in what is no text; UTF-32 has three quarters
_ONE_SCRIPT = 0.95
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
    mixed = _mixed(data)
    if mixed is not None:
        return mixed, MIXED
    text = data.decode("utf-8", errors="replace")
    beyond = sum(sign > "\x7f" for sign in text[:_SAMPLE])
    if text.count("\ufffd") < max(_BROKEN * len(text), 1) and beyond > 2 * text[:_SAMPLE].count("\ufffd"):
        return text, "utf-8"
    encoding = _guess(data)
    return data.decode(encoding, errors="replace"), encoding


def _mixed(data: bytes) -> str | None:
    """UTF-8 with pieces of a Western encoding between; None where it is not mostly that."""
    text = data.decode("utf-8", errors=_WESTERN_PIECES)
    wrong = data.decode("utf-8", errors="replace").count("\ufffd")
    right = sum(sign > "\x7f" for sign in text) - wrong
    return text if wrong > _BROKEN * len(text) and right >= 0.5 * wrong and _is_latin(text) else None


def _is_latin(text: str) -> bool:
    """Whether nearly all letters beyond ASCII are those of Western Europe."""
    letters = [sign for sign in text if sign > "\x7f" and sign.isalpha()]
    return sum(sign <= "\u017f" for sign in letters) > 0.95 * len(letters)


def _western_piece(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return error.object[error.start : error.end].decode("cp1252", errors="replace"), error.end


MIXED = "utf-8 mixed with cp1252"
_WESTERN_PIECES = "trifold-western-pieces"
codecs.register_error(_WESTERN_PIECES, _western_piece)


def decode_sample(data: bytes) -> str | None:
    """The encoding that marks, escapes or zeros give away; None for all others."""
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return encoding
    if max(data[:_SAMPLE], default=0) < 0x80 and (escaped := _escaped(data)):
        return escaped
    head = data[: 4096 - 4096 % 2]
    half = len(head) // 2
    if head.count(0) > _NOTHING * len(head):
        return None
    if half >= 4 and not any(head[2 : 4 * (half // 2) : 4]) and not any(head[3 : 4 * (half // 2) : 4]):
        return "utf-32-le"
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
    """The encoding of seven bits that a text's escapes are of."""
    head = data[:_SAMPLE]
    for escape, encoding in _ESCAPES:
        if escape in head:
            return encoding
    pairs = b"".join(_HZ.findall(head))
    shifted = bytes(byte | 0x80 for byte in pairs) + b" "
    # A program may hold tildes and braces too: what stands between them is Chinese only as common characters.
    if any(byte >= _FIRST_CHARACTER for byte in pairs[::2]) and (
        _share(shifted, "gb18030", _is_common_asian("gb18030")) > _COMMON
    ):
        return "hz"
    return None


def _leading(half: bytes) -> int:
    """How many bytes are the first halves of an alphabet's letters (U+0100 to U+10FF) or of spaces and ASCII."""
    counts = Counter(half)
    scripts = sum(counts[byte] for byte in range(0x01, 0x11) if byte not in (0x09, 0x0A, 0x0D))
    return scripts + counts[0] + counts[0x20] if scripts > 0.3 * len(half) else 0


def _guess(data: bytes) -> str:
    first = next(index for index, byte in enumerate(data) if byte > 0x7F)
    start = max(0, first - 1024)
    sample = data[start : start + _SAMPLE]
    latin = _latin(sample)
    if latin:
        return latin
    western = sample.decode("cp1252", errors="replace")
    letters = [sign for sign in western if sign.isalpha()]
    foreign = sum(sign > "\x7f" for sign in letters)
    signs = sum(sign > "\x7f" and not sign.isalpha() and sign not in "“”‘’–—…«»°§£€©® ¿¡•·" for sign in western)
    if letters and foreign < _WESTERN * len(letters) and signs <= 0.1 * (foreign + 1) + 1:
        return "cp1254" if _is_turkish(western) else "cp1252"
    from charset_normalizer import from_bytes

    best = from_bytes(sample).best()
    if best is None:
        return "cp1252"
    if best.encoding in _CYRILLIC_GUESSES:
        return _cyrillic(sample)
    high = [byte for byte in sample if byte > 0x7F]
    if sum(byte in _HEBREW for byte in high) > 0.95 * len(high):
        return "cp1255"
    if best.encoding in _CENTRAL:
        return max(_CENTRAL, key=lambda encoding: _share(sample, encoding, _CENTRAL_LETTERS.__contains__))
    if _share(sample, "euc_kr", _is_common_asian("euc_kr")) > _KOREAN:
        return "euc_kr"
    asian = max(_EAST_ASIAN, key=lambda encoding: _share(sample, encoding, _is_common_asian(encoding)))
    return asian if _share(sample, asian, _is_common_asian(asian)) > _COMMON else best.encoding


def _latin(sample: bytes) -> str:
    """The encoding under which a text is written in one language of Latin letters; "" for none."""
    for encoding, alphabets in _LATIN:
        text = sample.decode(encoding, errors="replace").lower()
        beyond = Counter(sign for sign in text if sign > "\x7f")
        letters = sum(sign.isascii() and sign.isalpha() for sign in text)
        printed = sum(beyond[sign] for sign in _PRINTED)
        total = beyond.total()
        if total - printed > _WESTERN * (letters + total) or not letters:
            continue
        if any(sum(beyond[sign] for sign in alphabet) + printed >= _ONE_LANGUAGE * total for alphabet in alphabets):
            return encoding
    return ""


def _is_turkish(western: str) -> bool:
    """Read as Western, Turkish has Icelandic letters without any of the Icelandic vowels."""
    return any(sign in western for sign in "ýþðÝÞÐ") and not any(sign in western for sign in "áíóúæÁÍÓÚÆ")


_COMMON = 0.7  # of the signs beyond ASCII are common ones in a text that was decoded rightly


_KOREAN = 0.95  # its common signs lie within those of Chinese, so that a Chinese text has many of them too


def _share(sample: bytes, encoding: str, is_common: Callable[[str], bool]) -> float:
    """How much of what is beyond ASCII is common in texts of this encoding; 0 where it does not decode."""
    text = sample.decode(encoding, errors="replace")[:-1]
    beyond = [sign for sign in text if sign > "\x7f"]
    if not beyond or "\ufffd" in beyond:
        return 0.0
    return sum(map(is_common, beyond)) / len(beyond)


def _is_common_asian(encoding: str) -> Callable[[str], bool]:
    """Kana, and the first level of each standard, which its authors filled with the common characters."""
    levels = {
        "cp932": (0x88, 0x98),
        "euc_jp": (0xB0, 0xD0),
        "gb18030": (0xB0, 0xD8),
        "big5": (0xA4, 0xC7),
        "euc_kr": (0xB0, 0xC9),
    }
    first, last = levels[encoding]
    kana = encoding in ("cp932", "euc_jp")

    def is_common(sign: str) -> bool:
        if "\u3040" <= sign <= "\u30ff":
            return kana
        if "\u3000" <= sign <= "\u303f" or "\uff00" <= sign <= "\uff5e":
            return True
        coded = sign.encode(encoding, errors="replace")
        return len(coded) == 2 and first <= coded[0] < last

    return is_common


def _cyrillic(sample: bytes) -> str:
    """The Cyrillic code page that gives the most small letters: the wrong ones turn case round or give signs."""

    def small(encoding: str) -> int:
        return sum("а" <= sign <= "я" or sign in "іїєґё" for sign in sample.decode(encoding, errors="replace"))

    return max(_CYRILLIC, key=small)
