"""Guesses the encoding of a text that has bytes beyond ASCII and is not in UTF-8. Runs only in the child process
(``app.readers.child``).

Works on a single line as well as on a book. ``app.readers.encoding`` calls this module only if it has found no byte
order mark, no escape sequence and no UTF-8.

The text is decoded in each known encoding. Each character gets a score from 0 to 1. A score is high if the character is
usual in a language and at its place in the text. The encoding with the best mean score is chosen. A small penalty makes
rare encodings less likely.

The library charset-normalizer alone reads 7 of the 74 lines in ``tests/app/readers/test_guess.py``, because they are
short.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from functools import lru_cache

from app.language.tokens import LETTERS

_BYTES = 8 << 10  # approximate maximum bytes examined; only lines with bytes beyond ASCII are examined
_ENOUGH = 0.45  # minimum mean score of an encoding; an encoding with a lower score is rejected
_STEP = 0.002  # score penalty per position in the list of encodings, which starts with the most common encoding
# typical share of a script's most common letters in a text; a higher share does not raise the score further
_TYPICAL = 0.55

# Letters beyond ASCII, one string for each language. ``_LATIN`` lists for each encoding the languages that it serves.
_WESTERN = (
    "àâæçéèêëîïôœùûüÿ", "äöüßé", "áéíñóúü", "áâãàçéêíóôõúü", "åäöæøéüà", "àèéìîòùú", "áðéíóúýþæö", "äëéèïöüê", "äöüõšž",
)  # fmt: skip
_CENTRAL = ("áčďéěíňóřšťúůýž", "áäčďéíĺľňóôŕšťúýž", "ąćęłńóśźż", "áéíóöőúüű", "ăâîşţ", "čćžšđ", "äöüßé")
_BALTIC = ("āčēģīķļņšūž", "ąčęėįšųūž", "äöüõšž", "ąćęłńóśźż")
_LATIN = (
    ("cp1252", _WESTERN), ("iso8859_15", ("àâæçéèêëîïôœùûüÿ", "äöüõšž")), ("cp1250", _CENTRAL),
    ("cp1254", ("çğıöşüâîû",)),
    ("iso8859_2", _CENTRAL), ("cp1257", _BALTIC), ("iso8859_13", _BALTIC), ("iso8859_4", _BALTIC[:2]),
    ("mac_roman", _WESTERN[:6]), ("cp850", _WESTERN[:6]),
)  # fmt: skip
_RUSSIAN = "оеаинтсрвліїєў"
_ALPHABETS = (  # for each encoding: its name, the letters of its script, and the most common of these letters
    ("cp1251", "\u0400-\u045f\u0490\u0491", _RUSSIAN),
    ("koi8_u", "\u0400-\u045f\u0490\u0491", _RUSSIAN),
    ("koi8_r", "\u0400-\u045f", _RUSSIAN),
    ("cp866", "\u0400-\u045f", _RUSSIAN),
    ("iso8859_5", "\u0400-\u045f", _RUSSIAN),
    ("mac_cyrillic", "\u0400-\u045f", _RUSSIAN),
    ("cp855", "\u0400-\u045f", _RUSSIAN),
    ("cp1253", "\u0386-\u03ce", "αοιετσνηυρά"),
    ("cp1255", "\u05b0-\u05ea", "יוהלאמרתבש"),
    ("cp1256", "\u0621-\u0652\u067e\u0686\u0698\u06a9\u06af\u06cc", "اليمنوترب"),
    ("cp874", "\u0e01-\u0e5b", "านรกอเงมยลท่"),
)
_HAN = {  # the most common characters of texts in each encoding
    "cp932": (
        "日一国会人年大十二本中長出三同時政事自行社見月分議後前民生連五発間対上部東者党地合市業内相方四定今回"
        "新場金員九入選立開手米力学問高代明実円関決子動京全目表戦経通外最言理現体化田当八六約主題下首意法不来"
        "作性的要用制治度務強気小七成期公野協取都和統以機平総山家話世区多県続進正安設保改数記院女初北午指権心"
        "界支第結百点教報所先解名木川村森町島岡藤井松高橋佐石原林清"
    ),
    "gb18030": (
        "的一是不了在人有我他这个们中来上大为和国地到以说时要就出会可也你对生能而子那得于着下自之年过发后作里"
        "用道行所然家种事成方多经么去法学如都同现当没动面起看定天分还进好小部其些主样理心她本前开但因只从想实"
        "日军者意无力它与长把机十民第公此已工使情明性知全三又关点正业外将两高间由问很最重并物手应战向头文体政"
        "美相见被利什二等产或新己制身果加西斯月话合回特代内信表化老给世位次度门任常先海通教儿原东声提立及比员"
        "解水名真论处走义各入几口认条平系气题活王李张刘陈杨姓龄合同编号好"
    ),
    "big5": (
        "的一是不了在人有我他這個們中來上大為和國地到以說時要就出會可也你對生能而子那得於著下自之年過發後作裡"
        "用道行所然家種事成方多經去法學如都同現當沒動面起看定天分還進好小部其些主樣理心她本前開但因只從想實日"
        "軍者意無力它與長把機十民第公此已工使情明性知全三又關點正業外將兩高間由問很最重並物手應戰向頭文體政美"
        "相見被利二等產或新己制身果加西月話合回特代內信表化老給世位次度門任常先海通教原東聲提立及比員解水名真"
        "論處走義各入幾口認條平系氣題活王李張劉陳楊姓齡臺灣"
    ),
    "cp949": (
        "이다는에의가을로고하한지기를은도사서리인어시자나대해라정그수아으스일부있제것게여원장전보조구상들과면"
        "주비소동만니공성무관국용유행계방신오경문적우치세위개안었학으진람야마말까력모미레터토트체발실분산음당"
        "식생될되됐러저거내했요습합및년월등간와청강김박최철영녕름"
    ),
}
_HAN["euc_jp"] = _HAN["cp932"]
# for each encoding: its national standard, and the first and last lead byte of the common characters in that standard
_FIRST_LEVEL = {
    "cp932": ("shift_jis", 0x88, 0x98), "euc_jp": ("euc_jp", 0xB0, 0xCF), "gb18030": ("gb2312", 0xB0, 0xD7),
    "big5": ("big5", 0xA4, 0xC6), "cp949": ("euc_kr", 0xB0, 0xC8),
}  # fmt: skip
_KANA = re.compile("[\u3041-\u3096\u30a1-\u30fc]")
_HALF_KANA = re.compile("[\uff61-\uff9f]")
_WIDE_SIGNS = re.compile("[\u3000-\u3011\u3014-\u301f\uff01-\uff5e“”‘’…—·×°℃]")
_PAIR = re.compile(rb"[\x80-\xff]{2}")
_RUN = re.compile(r"([a-z]?)([^\x00-\x7f]+)(?=([a-z]?))")
_ALONE = frozenset("àéèíóúâêôõøöåæáìòùçîÿýñ")  # letters that may be a word by themselves
_OPENING, _CLOSING = frozenset("“‘„‚«‹¿¡"), frozenset("”’»›“‘")


def guess(data: bytes) -> str | None:
    """Return the most likely encoding of a text with bytes beyond ASCII.

    If no encoding fits and no two bytes beyond ASCII are adjacent, return "cp1252", because such bytes are symbols in a
    Western text. Otherwise return None.
    """
    sample = _sample(data)
    best, most = None, _ENOUGH
    readings: list[tuple[str, Callable[[], float]]] = [
        *((name, lambda name=name, known=known: _latin(_decoded(sample, name), known)) for name, known in _LATIN[:1]),
        *((name, lambda name=name: _wide(sample, name)) for name in ("cp932", "gb18030", "cp949", "big5", "euc_jp")),
        *(
            (name, lambda name=name, letters=letters, top=top: _alphabet(_decoded(sample, name), letters, top))
            for name, letters, top in _ALPHABETS
        ),
        *((name, lambda name=name, known=known: _latin(_decoded(sample, name), known)) for name, known in _LATIN[1:]),
    ]
    for place, (name, worth) in enumerate(readings):
        value = worth() - place * _STEP
        if value > most:
            best, most = name, value
    return best or (None if _PAIR.search(sample) else "cp1252")


def _sample(data: bytes) -> bytes:
    """Return the first lines that have bytes beyond ASCII, up to about ``_BYTES`` bytes."""
    lines: list[bytes] = []
    size = 0
    for line in data.split(b"\n"):
        if not line.isascii():
            lines.append(line)
            size += len(line)
            if size > _BYTES:
                break
    return b"\n".join(lines)[: 2 * _BYTES]


def _decoded(sample: bytes, name: str) -> str:
    return sample.decode(name, errors="replace")


# Single-byte encodings ------------------------------------------------------------------------------------------------


def _alphabet(text: str, letters: str, top: str) -> float:
    """Score a text in a non-Latin script. Words should consist of ``letters`` only, and the common letters (``top``)
    should be frequent.
    """
    beyond = sum(sign > "\x7f" for sign in text)
    script = re.compile(f"[{letters}]+")
    good = common = counted = 0.0
    for match in re.finditer(rf"[{letters}a-zA-Z\u00c0-\u024f]+", text):
        word = match[0]
        if not script.fullmatch(word):
            continue
        good += len(word) if _cased(word) and len(word) > 1 else 0.3 * len(word)
        common += sum(sign in top for sign in word.lower())
        counted += len(word)
    signs = sum(_in_place(text, at) for at, sign in enumerate(text) if sign > "\x7f" and not sign.isalpha())
    if not counted:
        return 0.0
    return (good * (0.4 + 0.6 * min(1.0, common / counted / _TYPICAL)) + 0.8 * signs) / beyond


def _cased(word: str) -> bool:
    return word.islower() or word.isupper() or word[1:].islower() or word.lower() == word.upper()


def _latin(text: str, languages: tuple[str, ...]) -> float:
    """Score a text in Latin letters. Letters beyond ASCII should be within words and belong to the alphabet of one
    language. Symbols should be at their usual places.
    """
    beyond = sum(sign > "\x7f" for sign in text)
    letters: dict[str, float] = {}
    for match in LETTERS.finditer(text):
        word = match[0]
        if not word.isascii():
            worth = _latin_word(text, match.start(), word)
            for sign in word.lower():
                if sign > "\x7f":
                    letters[sign] = letters.get(sign, 0.0) + worth
    signs = sum(_in_place(text, at) for at, sign in enumerate(text) if sign > "\x7f" and not sign.isalpha())
    signs += sum(_in_place(text, at) for at, sign in enumerate(text) if sign in "ªºµ")
    best = max(sum(worth * (1.0 if sign in known else 0.3) for sign, worth in letters.items()) for known in languages)
    return (best + signs) / max(beyond, 1)


def _latin_word(text: str, start: int, word: str) -> float:
    """Return the score from 0 to 1 of each letter beyond ASCII in ``word``."""
    plain = sum(sign < "\x80" for sign in word)
    around = text[start - 1 : start] + text[start + len(word) : start + len(word) + 1]
    if len(word) == 1:
        return 0.8 if word.lower() in _ALONE and not any(sign.isdigit() or sign in "+=/\\" for sign in around) else 0.1
    if any(sign.isdigit() for sign in around):
        return 0.3
    if not _cased(word) and not (
        word[:1].isupper() and plain > len(word) / 2 and word[-1].islower() and word[1].islower()
    ):
        return 0.1
    return 1.0 if 2 * plain >= len(word) else 0.8 if plain else 0.4


def _in_place(text: str, index: int) -> float:
    """Score a symbol from 0 to 1 by whether the characters around it are usual for it."""
    sign, before, after = text[index], text[index - 1 : index] or " ", text[index + 1 : index + 2] or " "
    outside = before.isspace() or before in "([{\"'/=*_-–—>,;:|"
    place = {
        "°": before.isdigit() or (before in " \u00a0" and after in "CF"),
        "§": after.isdigit() or after in " §\u00a0",
        "¶": after.isdigit() or after in " ¶\u00a0",
        "©": (after in " )\u00a0" or after.isdigit()) and not before.isalpha(),
        "®": before.isalnum() or before == " ",
        "™": before.isalnum() or before == " ",
        "±": after.isdigit() or after == " ",
        "×": before in " )" or before.isdigit(),
        "÷": before in " )" or before.isdigit(),
        "–": (before.isspace() == after.isspace() and not before.islower()) or before.isdigit(),
        "—": before.isspace() == after.isspace() or before in '”’"!?.,',
        "…": before.isalnum() or after.isspace() or after.isalpha() or after in ".!?”\"'",
        "•": outside and not after.isalnum(),
        "·": before.isspace() == after.isspace() and not before.isdigit(),
        "µ": after.isalpha() and not before.isalpha(),
        "†": before.isalnum() or before in " .",
    }
    if sign in place:
        return float(place[sign])
    if sign in "£€¥¢":
        return float(after.isdigit() or before.isdigit() or (before in "( /" and after in ") /"))
    if sign in "²³¹ªº":
        # a word of three or more letters is no unit such as km
        long_word = index > 2 and text[index - 3 : index].isalpha()
        return float(before.isalnum() and not after.isalpha() and not long_word)
    if sign in "½¼¾":
        return float(not before.isalpha() and not after.isalpha())
    if sign in _OPENING and outside and (not after.isspace() or sign == "«" or after == "\u00a0"):
        return float(after not in _CLOSING)
    if sign == "’" and after.isalnum() and (before.isalnum() or outside):
        return 1.0
    if sign in _CLOSING and not after.isalnum():
        return float((not before.isspace() or sign == "»") and before not in _OPENING)
    return {"\u00a0": 0.8, "\u00ad": 0.8}.get(sign, 0.1 if sign != "\ufffd" else 0.0)


# Double-byte encodings ------------------------------------------------------------------------------------------------


def _wide(sample: bytes, name: str) -> float:
    """Score Chinese, Japanese or Korean text by how common its characters are. A single character next to a Latin
    letter counts less.
    """
    try:
        text = codecs.getincrementaldecoder(name)("strict").decode(sample)
    except UnicodeDecodeError:
        return 0.0
    worth = total = 0.0
    for match in _RUN.finditer(text):
        run = match[2]
        alone = len(run) == 1 and bool(match[1] or match[3])  # a single character next to a Latin letter
        kana = _HALF_KANA.sub("", run) == run or len(_HALF_KANA.findall(run)) >= 3
        for sign in run:
            half = _HALF_KANA.match(sign)
            weight = 1 if half else 2
            value = (0.9 if kana and name in ("cp932", "euc_jp") else 0.1) if half else _character(sign, name)
            worth += weight * (0.1 * value if alone else value)
            total += weight
    return worth / total if total else 0.0


@lru_cache(maxsize=20_000)
def _character(sign: str, name: str) -> float:
    """Score how common a character is in texts of an encoding."""
    if _WIDE_SIGNS.match(sign):
        return 0.8
    if _KANA.match(sign):
        return 1.0 if name in ("cp932", "euc_jp") else 0.2
    if sign in _HAN[name]:
        return 1.0
    standard, first, last = _FIRST_LEVEL[name]
    try:
        lead = sign.encode(standard)[0]
    except UnicodeEncodeError:
        return 0.05
    if "\u4e00" <= sign <= "\u9fff" or "\uac00" <= sign <= "\ud7a3":
        return 0.7 if first <= lead <= last else 0.25
    return 0.05
