"""Writes list numbers in the numbering style of the list: Roman numerals, letters, words, digits of other scripts. Runs
only in the child process (``app.readers.child``).

Accepts the style names of Word and of CSS. A number in an unknown style is written in digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_LARGEST = 9_999  # maximum number that is written in a style; a larger number is written in digits
_ROMAN = (
    (1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl"), (10, "x"),
    (9, "ix"), (5, "v"), (4, "iv"), (1, "i"),
)  # fmt: skip
_LATIN = "abcdefghijklmnopqrstuvwxyz"
_GREEK = "αβγδεζηθικλμνξοπρστυφχψω"
_RUSSIAN = "абвгдежзиклмнопрстуфхцчшщыэюя"
_BULGARIAN = "абвгдежзийклмнопрстуфхцчшщъьюя"
_ARABIC = "أبتثجحخدذرزسشصضطظعغفقكلمنهوي"
_ABJAD = "أبجدهوزحطيكلمنسعفصقرشتثخذضظغ"
_HIRAGANA = "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわゐゑをん"
_KATAKANA = "アイウエオカキクケコサシスセソタチツテトナニヌネノハヒフヘホマミムメモヤユヨラリルレロワヰヱヲン"
_IROHA = "イロハニホヘトチリヌルヲワカヨタレソツネナラムウヰノオクヤマケフコエテアサキユメミシヱヒモセスン"
_GANADA = "가나다라마바사아자차카타파하"
_CHOSUNG = "ㄱㄴㄷㄹㅁㅂㅅㅇㅈㅊㅋㅌㅍㅎ"
_STEMS = "甲乙丙丁戊己庚辛壬癸"
_BRANCHES = "子丑寅卯辰巳午未申酉戌亥"
_THAI = "กขคงจฉชซฌญฎฏฐฑฒณดตถทธนบปผฝพฟภมยรลวศษสหฬอฮ"
_HINDI = "कखगघङचछजझञटठडढणतथदधनपफबभमयरलवशषसह"
_CHICAGO = "*†‡§"
_HEBREW = (
    (400, "ת"), (300, "ש"), (200, "ר"), (100, "ק"), (90, "צ"), (80, "פ"), (70, "ע"), (60, "ס"), (50, "נ"), (40, "מ"),
    (30, "ל"), (20, "כ"), (16, "טז"), (15, "טו"), (10, "י"), (9, "ט"), (8, "ח"), (7, "ז"), (6, "ו"), (5, "ה"),
    (4, "ד"), (3, "ג"), (2, "ב"), (1, "א"),
)  # fmt: skip
_CHINESE = "〇一二三四五六七八九"
_KOREAN = "영일이삼사오육칠팔구"
_UNITS = re.findall(
    r"\w+",
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen",
)
_TENS = re.findall(r"\w+", "zero ten twenty thirty forty fifty sixty seventy eighty ninety")
_IRREGULAR = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip


def written(value: int, style: str) -> str:
    """Return a number in a numbering style that is named as in Word ("upperRoman") or as in CSS ("upper-roman"). Return
    the number in digits if the style is unknown, or if the number is below 1 or above ``_LARGEST``.
    """
    form = _FORMS.get(style.replace("-", "").casefold())
    if form is None or not 0 < value <= _LARGEST:
        return str(value)
    return form(value)


def _added(value: int, parts: tuple[tuple[int, str], ...]) -> str:
    text = ""
    for worth, sign in parts:
        count, value = divmod(value, worth)
        text += sign * count
    return text


def _roman(value: int) -> str:
    return _added(value, _ROMAN)


def _repeated(value: int, letters: str) -> str:
    """Return the letters that Word writes for a number: a to z, then aa, bb, cc."""
    rounds, letter = divmod(value - 1, len(letters))
    return letters[letter] * (rounds + 1)


def _placed(value: int, letters: str) -> str:
    """Return the letters that a browser writes for a number: a to z, then aa, ab, ac."""
    text = ""
    while value > 0:
        value, letter = divmod(value - 1, len(letters))
        text = letters[letter] + text
    return text


def _digits(value: int, first: str) -> str:
    return "".join(chr(ord(first) + int(digit)) for digit in str(value))


def _enclosed(value: int, first: str, count: int) -> str:
    return chr(ord(first) + value - 1) if value <= count else f"({value})"


def _counted(value: int, names: str, units: str) -> str:
    """Return a number in Chinese, Japanese or Korean numerals, such as 二百三十一 for 231."""
    text, digits = "", str(value)
    for at, digit in enumerate(digits):
        unit = len(digits) - 1 - at
        if digit == "0":
            continue
        bare = digit == "1" and unit and (unit > 1 or at == 0)
        text += ("" if bare else names[int(digit)]) + (units[unit - 1] if unit else "")
    return text


def _cardinal(value: int) -> str:
    if value < len(_UNITS):
        return _UNITS[value]
    if value < 100:
        tens, unit = divmod(value, 10)
        return _TENS[tens] + (f"-{_UNITS[unit]}" if unit else "")
    for worth, name in ((1000, "thousand"), (100, "hundred")):
        if value >= worth:
            count, rest = divmod(value, worth)
            return f"{_cardinal(count)} {name}" + (f" {_cardinal(rest)}" if rest else "")
    return str(value)


def _ordinal_word(value: int) -> str:
    head, last = _cardinal(value), ""
    for mark in ("-", " "):
        if mark in head:
            before, _, last = head.rpartition(mark)
            head = before + mark
            break
    else:
        head, last = "", head
    if last.endswith("y"):
        return f"{head}{last[:-1]}ieth"
    return head + _IRREGULAR.get(last, f"{last}th")


def _ordinal(value: int) -> str:
    ending = "th" if value % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(value % 10, "th")
    return f"{value}{ending}"


def _letters(letters: str) -> Callable[[int], str]:
    return lambda value: _repeated(value, letters)


def _places(letters: str) -> Callable[[int], str]:
    return lambda value: _placed(value, letters)


_FORMS: dict[str, Callable[[int], str]] = {
    # style names of Word
    "lowerletter": _letters(_LATIN),
    "upperletter": _letters(_LATIN.upper()),
    "decimalzero": lambda value: f"{value:02}",
    "ordinal": _ordinal,
    "cardinaltext": lambda value: _cardinal(value).capitalize(),
    "ordinaltext": lambda value: _ordinal_word(value).capitalize(),
    "hex": lambda value: f"{value:X}",
    "numberindash": lambda value: f"- {value} -",
    "chicago": _letters(_CHICAGO),
    "decimalenclosedcircle": lambda value: _enclosed(value, "①", 20),
    "decimalenclosedcirclechinese": lambda value: _enclosed(value, "①", 20),
    "decimalenclosedparen": lambda value: f"({value})",
    "decimalenclosedfullstop": lambda value: f"{value}.",
    "decimalfullwidth": lambda value: _digits(value, "０"),
    "decimalfullwidth2": lambda value: _digits(value, "０"),
    "russianlower": _letters(_RUSSIAN),
    "russianupper": _letters(_RUSSIAN.upper()),
    "arabicalpha": _letters(_ARABIC),
    "arabicabjad": _letters(_ABJAD),
    "aiueo": _letters(_KATAKANA),
    "aiueofullwidth": _letters(_KATAKANA),
    "iroha": _letters(_IROHA),
    "irohafullwidth": _letters(_IROHA),
    "ganada": _letters(_GANADA),
    "chosung": _letters(_CHOSUNG),
    "ideographtraditional": _letters(_STEMS),
    "ideographzodiac": _letters(_BRANCHES),
    "ideographenclosedcircle": lambda value: _enclosed(value, "㊀", 10),
    "ideographdigital": lambda value: "".join(_CHINESE[int(digit)] for digit in str(value)),
    "japanesedigitaltenthousand": lambda value: "".join(_CHINESE[int(digit)] for digit in str(value)),
    "japanesecounting": lambda value: _counted(value, _CHINESE, "十百千"),
    "chinesecounting": lambda value: _counted(value, _CHINESE, "十百千"),
    "chinesecountingthousand": lambda value: _counted(value, _CHINESE, "十百千"),
    "taiwanesecounting": lambda value: _counted(value, _CHINESE, "十百千"),
    "taiwanesecountingthousand": lambda value: _counted(value, _CHINESE, "十百千"),
    "koreancounting": lambda value: _counted(value, _KOREAN, "십백천"),
    "koreandigital": lambda value: "".join(_KOREAN[int(digit)] for digit in str(value)),
    "thailetters": _letters(_THAI),
    "thainumbers": lambda value: _digits(value, "๐"),
    "hindiconsonants": _letters(_HINDI),
    "hindinumbers": lambda value: _digits(value, "०"),
    "hebrew1": lambda value: _added(value, _HEBREW),
    "hebrew2": _letters("אבגדהוזחטיכלמנסעפצקרשת"),
    # style names of both Word and CSS
    "lowerroman": _roman,
    "upperroman": lambda value: _roman(value).upper(),
    # style names of CSS
    "loweralpha": _places(_LATIN),
    "lowerlatin": _places(_LATIN),
    "upperalpha": _places(_LATIN.upper()),
    "upperlatin": _places(_LATIN.upper()),
    "lowergreek": _places(_GREEK),
    "lowerrussian": _places(_RUSSIAN),
    "upperrussian": _places(_RUSSIAN.upper()),
    "lowerbulgarian": _places(_BULGARIAN),
    "decimalleadingzero": lambda value: f"{value:02}",
    "hiragana": _places(_HIRAGANA),
    "katakana": _places(_KATAKANA),
    "katakanairoha": _places(_IROHA),
    "hebrew": lambda value: _added(value, _HEBREW),
    "cjkideographic": lambda value: _counted(value, _CHINESE, "十百千"),
    "simpchineseinformal": lambda value: _counted(value, _CHINESE, "十百千"),
    "tradchineseinformal": lambda value: _counted(value, _CHINESE, "十百千"),
    "japaneseinformal": lambda value: _counted(value, _CHINESE, "十百千"),
    "cjkdecimal": lambda value: "".join(_CHINESE[int(digit)] for digit in str(value)),
    "arabicindic": lambda value: _digits(value, "٠"),
    "persian": lambda value: _digits(value, "۰"),
    "devanagari": lambda value: _digits(value, "०"),
    "bengali": lambda value: _digits(value, "০"),
    "thai": lambda value: _digits(value, "๐"),
}
