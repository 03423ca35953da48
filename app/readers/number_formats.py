"""Writes the numbers and dates of a spreadsheet's cells as the spreadsheet shows them: 0.15 as "15%", 45000 as a date.

Understands the format codes of ECMA-376 (part 1, 18.8.31). Where a code leaves the form of a date to the machine's
language, the date is written as 2026-05-04. Names of months and days are English. Runs only in the child process
(``app.readers.child``).
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from fractions import Fraction
from functools import lru_cache
from math import isfinite

GENERAL = "General"
_ISO, _ISO_TIME = "yyyy-mm-dd", "yyyy-mm-dd hh:mm"
BUILT_IN = {
    0: GENERAL, 1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00", 12: "# ?/?",
    13: "# ??/??", 14: _ISO, 15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy", 18: "h:mm AM/PM", 19: "h:mm:ss AM/PM",
    20: "h:mm", 21: "h:mm:ss", 22: _ISO_TIME, 37: "#,##0;(#,##0)", 38: "#,##0;(#,##0)", 39: "#,##0.00;(#,##0.00)",
    40: "#,##0.00;(#,##0.00)", 45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss.0", 48: "##0.0E+0", 49: "@",
}  # fmt: skip
"""The codes of the formats that a file names only by number."""

_LONGEST = 400  # maximum characters of a code; a longer one counts as ``GENERAL``
_LARGE = 1e15  # numbers from which on a cell shows zeros for the digits that it does not hold
_MOST_DIGITS = 30  # maximum decimals; Excel has 30
_LAST_DAY = 2_958_466  # the day number after 31 December 9999, with which the calendar ends
_MOMENT = 1e-5  # days; nearly a second
_DAYS_TO_1904 = 1_462  # days from 30 December 1899 to 1 January 1904
_USUAL = re.compile(r"([$€£]?)(#,##|)0(?:\.(0{1,8}))?(%?)([ ]?[€£]?)")
_SYSTEM = re.compile(r"\[\$-F[48]00\]", re.I)
_TOKEN = re.compile(
    r'"([^"]*)"?|\\(.)|_(.)|\*(.)|\[\$([^\]-]*)(?:-[^\]]*)?\]|\[(h+|m+|s+)\]|\[([<>=]{1,2}-?[\d.]+)\]|\[[^\]]*\]'
    r"|(General)|(AM/PM|A/P)|(E[+-])|(y+|m+|d+|h+|s+|e+|b+|g+)|([0#?]+)|([.,%/@])|(.)",
    re.I | re.S,
)
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
    "November", "December",
)  # fmt: skip
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

Token = tuple[str, str]  # a kind, and its text


def shown(value: float, code: str, *, from_1904: bool = False) -> str:
    """Return a number as a cell with the format ``code`` shows it. A code that is not understood counts as
    ``GENERAL``.

    Args:
        value: the cell's number; for a date the days since 30 December 1899.
        code: the format code, in English notation.
        from_1904: whether days count from 1 January 1904.
    """
    if not isfinite(value):  # only a damaged file has such a number
        return str(value)
    if abs(value) < _LARGE and (simple := _simple(code)) is not None:
        before, after, places, percent, grouped = simple
        number = abs(Decimal(repr(value)) * 100 if percent else Decimal(repr(value))).quantize(places, ROUND_HALF_UP)
        digits = f"{number:,f}" if grouped else f"{number:f}"
        return f"{'-' if value < 0 else ''}{before}{digits}{'%' if percent else ''}{after}"
    sections = _sections(code)
    section, negative = _chosen(sections, value)
    kinds = {kind for kind, _ in section}
    if kinds & {"date", "elapsed", "half"}:
        # only a workbook from 1904 shows times below zero; an elapsed time counts from no day
        days = (abs(value) if from_1904 else value) + (_DAYS_TO_1904 if from_1904 and "elapsed" not in kinds else 0)
        sign = "-" if from_1904 and value < 0 and not negative else ""
        # the last moment of the calendar may be rounded to the day after it
        return sign + _dated(days, section) if 0 <= days < _LAST_DAY - _MOMENT else general(value)
    if not section:
        return "" if code.strip() else general(value)
    sign = "-" if value < 0 and not negative else ""
    if not any(kind in ("digits", "general", "text") for kind, _ in section):
        return "".join(text for kind, text in section if kind == "words").strip() or general(value)
    try:
        return sign + _number(abs(value), section)
    except (InvalidOperation, ValueError, OverflowError):
        return general(value)


def general(value: float) -> str:
    """Return a number as a cell without a format shows it, with at most 10 significant digits after a point."""
    if value == int(value) and abs(value) < 1e15:
        return str(int(value))
    text = f"{value:.10g}"
    return text.replace("e", "E")


@lru_cache(maxsize=512)
def _simple(code: str) -> tuple[str, str, Decimal, bool, bool] | None:
    """Return what a usual code for numbers says, such as "#,##0.00": the signs before and after the digits, the last
    place, and whether it has percent and groups. None for any other code.
    """
    match = _USUAL.fullmatch(code)
    if match is None:
        return None
    before, group, decimals, percent, after = match.groups()
    return before, after, Decimal(1).scaleb(-len(decimals or "")), bool(percent), group == "#,##"


@lru_cache(maxsize=512)
def _sections(code: str) -> tuple[tuple[tuple[Token, ...], str], ...]:
    """Split a code into its sections, each with its tokens and its condition, such as ">=100"."""
    if _SYSTEM.search(code):
        code = "h:mm:ss" if "F4" in code.upper() else _ISO
    if len(code) > _LONGEST or not code.strip():
        code = GENERAL
    sections: list[tuple[tuple[Token, ...], str]] = []
    tokens: list[Token] = []
    condition = ""
    for match in _TOKEN.finditer(code):
        quoted, escaped, padded, filled, money, elapsed, tested, usual, half, power, date, digits, sign, other = (
            match.groups()
        )
        if other == ";":
            sections.append((tuple(tokens), condition))
            tokens, condition = [], ""
        elif tested:
            condition = tested
        elif elapsed:
            tokens.append(("elapsed", elapsed.lower()))
        elif usual:
            tokens.append(("general", ""))
        elif half:
            tokens.append(("half", half.upper()))
        elif power:
            tokens.append(("power", power.upper()))
        elif date:
            tokens.append(("date", date.lower()))
        elif digits:
            tokens.append(("digits", digits))
        elif sign:
            tokens.append(("text" if sign == "@" else "sign", sign))
        elif padded or filled:
            tokens.append(("words", " " if padded else ""))
        else:
            tokens.append(("words", next((one for one in (quoted, escaped, money, other) if one), "")))
    return (*sections, (tuple(tokens), condition))


def _chosen(sections: tuple[tuple[tuple[Token, ...], str], ...], value: float) -> tuple[tuple[Token, ...], bool]:
    """Return the section for a value, and whether the section is for negative numbers and shows their sign itself."""
    tested = [(tokens, condition) for tokens, condition in sections if condition]
    if tested:
        for tokens, condition in tested:
            if _fits(value, condition):
                return tokens, False
        rest = next((tokens for tokens, condition in sections if not condition), sections[-1][0])
        return rest, False
    if value < 0 and len(sections) > 1:
        return sections[1][0], True
    if value == 0 and len(sections) > 2:
        return sections[2][0], False
    return sections[0][0], False


def _fits(value: float, condition: str) -> bool:
    sign = condition.rstrip("-.0123456789")
    try:
        limit = float(condition[len(sign) :])
    except ValueError:
        return False
    return {
        "<": value < limit, ">": value > limit, "=": value == limit, "<=": value <= limit, ">=": value >= limit,
        "<>": value != limit,
    }.get(sign, False)  # fmt: skip


def _number(value: float, tokens: tuple[Token, ...]) -> str:
    if any(kind in ("general", "text") for kind, _ in tokens):
        return "".join(general(value) if kind in ("general", "text") else text for kind, text in tokens).strip()
    signs = [text for kind, text in tokens if kind == "sign"]
    kinds = [kind for kind, _ in tokens]
    if "/" in signs and "." not in signs:
        return _fraction(value, tokens)
    number = Decimal(repr(value)) * 100 ** signs.count("%")
    last = max(at for at, kind in enumerate(kinds) if kind == "digits")
    commas = [at for at, (kind, text) in enumerate(tokens) if kind == "sign" and text == ","]
    point = next((at for at, (kind, text) in enumerate(tokens) if kind == "sign" and text == "."), len(tokens))
    power = kinds.index("power") if "power" in kinds else len(tokens)
    whole_end = min(point, power)
    scaling = [at for at in commas if at > max((p for p in range(whole_end) if kinds[p] == "digits"), default=last)]
    number = number.scaleb(-3 * len(scaling))
    decimals = "".join(text for at, (kind, text) in enumerate(tokens) if kind == "digits" and point < at < power)
    decimals = decimals[:_MOST_DIGITS]
    exponent = 0
    whole_digits = "".join(text for at, (kind, text) in enumerate(tokens) if kind == "digits" and at < whole_end)
    if power < len(tokens) and number:
        step = max(len(whole_digits), 1)
        exponent = number.adjusted() // step * step if step > 1 else number.adjusted()
        number = number.scaleb(-exponent)
    number = number.quantize(Decimal(1).scaleb(-len(decimals)), ROUND_HALF_UP)
    before, _, after = f"{number:f}".partition(".")
    grouped = any(at not in scaling and at < whole_end for at in commas)
    return _spelled(tokens, before.lstrip("0"), after, exponent, (point, power), grouped=grouped)


def _spelled(
    tokens: tuple[Token, ...], before: str, after: str, exponent: int, places: tuple[int, int], *, grouped: bool
) -> str:
    """Put the digits before and after the point into the places of a format."""
    point, power = places
    wanted = sum(len(text) for at, (kind, text) in enumerate(tokens) if kind == "digits" and at < min(places))
    left, out, used = before, list[str](), 0
    rest = after
    for at, (kind, text) in enumerate(tokens):
        if kind == "words":
            out.append(text)
        elif kind == "power":
            out.append(f"E{'-' if exponent < 0 else '+' if text == 'E+' else ''}")
        elif kind == "digits" and at > power:
            out.append(str(abs(exponent)).zfill(text.count("0")))
        elif kind == "digits" and at > point:
            places_here, rest = rest[: len(text)], rest[len(text) :]
            kept = len(places_here)
            while kept and places_here[kept - 1] == "0" and text[kept - 1] in "#?" and not rest.strip("0"):
                kept -= 1
            out.append(places_here[:kept])
        elif kind == "digits":
            # the first place takes all digits that are left over for it
            start = len(left) - (wanted - used) if used else 0
            stop = max(len(left) - (wanted - used - len(text)), 0)
            digits = left[max(start, 0) : stop]
            missing = len(text) - len(digits)
            digits = "".join("0" for sign in text[: max(missing, 0)] if sign == "0") + digits
            used += len(text)
            out.append(digits)
        elif text == "." and at == point:
            out.append(".")
        elif text not in ",.":
            out.append(text)
    if grouped:
        out = _grouped(out, tokens, min(places))
    text = "".join(out).strip()
    return text.removesuffix(".") if not after.strip("0") and text.endswith(".") else text


def _grouped(out: list[str], tokens: tuple[Token, ...], end: int) -> list[str]:
    """Write the digits before the point with a comma after each group of three."""
    spelled = [at for at, (kind, text) in enumerate(tokens) if not (kind == "sign" and text == ",")]
    kept = dict(zip(spelled, out, strict=False)) if len(spelled) == len(out) else {}
    places = [at for at in spelled if at < end and tokens[at][0] == "digits"]
    if not kept or not places:
        return out
    digits = "".join(kept[at] for at in places)
    groups = [digits[max(stop - 3, 0) : stop] for stop in range(len(digits), 0, -3)]
    for at in places:
        kept[at] = ""
    kept[places[0]] = ",".join(reversed(groups))
    return list(kept.values())


def _fraction(value: float, tokens: tuple[Token, ...]) -> str:
    """Write a number as a fraction, such as "2 1/4"."""
    slash = next(at for at, (kind, text) in enumerate(tokens) if text == "/")
    digits = [(at, text) for at, (kind, text) in enumerate(tokens) if kind == "digits"]
    below = "".join(text for at, text in digits if at > slash)
    fixed = "".join(text for kind, text in tokens[slash + 1 :] if kind == "words").strip()
    has_whole = len([at for at, _ in digits if at < slash]) > 1
    whole, rest = divmod(Fraction(repr(value)), 1)
    rest = rest if has_whole else Fraction(repr(value))
    if fixed.isdigit():
        part = f"{round(rest * int(fixed))}/{fixed}"
        near = Fraction(round(rest * int(fixed)), int(fixed))
    else:
        near = rest.limit_denominator(10 ** min(max(len(below), 1), 7) - 1)
        part = f"{near.numerator}/{near.denominator}"
    if not has_whole:
        return part
    if near == 1:
        return str(whole + 1)
    return str(whole) if not near else f"{whole} {part}" if whole else part


def _dated(value: float, tokens: tuple[Token, ...]) -> str:
    """Write a number of days as a date or a time."""
    decimals = next(
        (
            len(text)
            for at, (kind, text) in enumerate(tokens)
            if kind == "digits" and at > 1 and tokens[at - 1][1] == "." and tokens[at - 2][1].startswith("s")
        ),
        0,
    )
    unit = 10 ** min(decimals, 3)
    ticks = round(value * 86_400 * unit)
    seconds, part = divmod(ticks, unit)
    days, clock = divmod(seconds, 86_400)
    # Excel counts a 29 February 1900 that never was
    moment = datetime(1899, 12, 30) + timedelta(days=days + (0 < days < 60), seconds=clock)
    halves = any(kind == "half" for kind, _ in tokens)
    out = []
    for at, (kind, text) in enumerate(tokens):
        if kind == "elapsed":
            total = {"h": seconds // 3600, "m": seconds // 60, "s": seconds}[text[0]]
            out.append(str(total).zfill(len(text)))
        elif kind == "half":
            out.append(("AM" if moment.hour < 12 else "PM")[: 2 if text == "AM/PM" else 1])
        elif kind == "date":
            out.append(_date_part(text, moment, halves=halves, minutes=_is_minutes(tokens, at)))
        elif kind == "digits":
            out.append(str(part).zfill(min(decimals, 3)) if decimals else "")
        else:
            out.append(text)
    return "".join(out).strip()


def _is_minutes(tokens: tuple[Token, ...], at: int) -> bool:
    """Whether an "m" means minutes: after hours or before seconds."""
    dates = [place for place, (kind, _) in enumerate(tokens) if kind in ("date", "elapsed")]
    here = dates.index(at)
    before = tokens[dates[here - 1]][1] if here else ""
    after = tokens[dates[here + 1]][1] if here + 1 < len(dates) else ""
    return before.startswith("h") or after.startswith("s")


def _date_part(text: str, moment: datetime, *, halves: bool, minutes: bool) -> str:
    sign, size = text[0], len(text)
    if sign == "y" or sign in "eb":
        return f"{moment.year % 100:02}" if size <= 2 and sign == "y" else str(moment.year)
    if sign == "m" and not minutes:
        name = _MONTHS[moment.month - 1]
        return (str(moment.month), f"{moment.month:02}", name[:3], name, name[0])[min(size, 5) - 1]
    if sign == "d":
        name = _DAYS[moment.weekday()]
        return (str(moment.day), f"{moment.day:02}", name[:3], name)[min(size, 4) - 1]
    if sign == "g":
        return ""
    value = {"h": (moment.hour % 12 or 12) if halves else moment.hour, "m": moment.minute, "s": moment.second}[sign]
    return str(value).zfill(min(size, 2))
