"""Numbers as people read them: counts, sizes, durations, rates. Pure; knows nothing else."""

from __future__ import annotations

import time

_SIZES = ((1 << 40, "TB"), (1 << 30, "GB"), (1 << 20, "MB"), (1 << 10, "KB"))
_SECONDS_SHOWN_EXACTLY = 10
_MINUTE = 60
_HOUR = 3600
_DAY = 24 * 3600
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def count(number: int) -> str:
    """28412 -> "28,412"."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """(1, "page") -> "1 page"; (212, "page") -> "212 pages"."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def size(number_of_bytes: int) -> str:
    """Bytes with three significant digits at most, in powers of 1024."""
    for unit, name in _SIZES:
        if number_of_bytes >= unit:
            value = number_of_bytes / unit
            return f"{value:.0f} {name}" if value >= 100 else f"{value:.1f} {name}"
    return f"{number_of_bytes} B"


def rate(per_second: float) -> str:
    """Tokens a second: whole from ten on, one decimal below."""
    return count(round(per_second)) if per_second >= 10 else f"{per_second:.1f}"


def milliseconds(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def percent(fraction: float) -> str:
    """Never 100 for less than all, never 0 for more than nothing."""
    if 0.995 <= fraction < 1.0:
        return "99 %"
    if 0.0 < fraction < 0.005:
        return "under 1 %"
    return f"{fraction * 100:.0f} %"


def duration(seconds: float) -> str:
    """A stretch of time that was measured."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _SECONDS_SHOWN_EXACTLY:
        return f"{seconds:.1f} s"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{int(seconds) // _MINUTE} min {int(seconds) % _MINUTE} s"
    return f"{int(seconds) // _HOUR} h {int(seconds) % _HOUR // _MINUTE} min"


def time_left(seconds: float) -> str:
    """A stretch of time that is guessed: coarser the longer it is."""
    if seconds < _SECONDS_SHOWN_EXACTLY:
        return "a few seconds left"
    if seconds < _MINUTE:
        return f"about {5 * round(seconds / 5)} s left"
    minutes = round(seconds / _MINUTE)
    if minutes < _MINUTE:
        return f"about {minutes} min left"
    return f"about {seconds / _HOUR:.1f} h left"


def day(when: float, now: float) -> str:
    """A moment (seconds since the epoch) as its day, in this machine's time: "today", "yesterday", "12 Mar 2026"."""
    then, today = time.localtime(when), time.localtime(now)
    if then[:3] == today[:3]:
        return "today"
    if then[:3] == time.localtime(now - _DAY)[:3]:
        return "yesterday"
    year = "" if then.tm_year == today.tm_year else f" {then.tm_year}"
    return f"{then.tm_mday} {_MONTHS[then.tm_mon - 1]}{year}"


def moment(when: float, now: float) -> str:
    """Its day, with the hour where it was today, to tell things apart that were done one after the other."""
    named = day(when, now)
    return f"{named}, {time.strftime('%H:%M', time.localtime(when))}" if named == "today" else named
