"""Formats numbers for people (counts, sizes, durations, rates), and turns the engine's records into views for the page.

The functions have no side effects. A view is plain data (strings, numbers, lists). The live stream sends it, and the
page shows it without formatting anything itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from app.core.forecast import Remaining
from app.core.speed import WHY_NO_SPEED, speedup, than_plain, words_of
from app.language.titles import short_title
from engine.config import SamplingParams, options_of
from engine.document import Document, Page
from engine.events import AnswerDone, BookRead, Figures, KvBytes, ReadingProgress, StopReason, TextDelta, TimeSplit

_SIZES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB"))
_SECONDS_SHOWN_EXACTLY = 10
_MINUTE = 60
_HOUR = 3600
_DAY = 24 * 3600
_LONGEST_TOLD = 240
"""Maximum characters of a passage in a line above an answer."""
_MOST_MISSING = 6  # maximum number of items in a list of names and numbers that the book lacks
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def count(number: int) -> str:
    """Return a count with commas between thousands: 28412 -> "28,412"."""
    return f"{number:,}"


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: (1, "page") -> "1 page"; (212, "page") -> "212 pages"."""
    return f"{count(number)} {noun}" if number == 1 else f"{count(number)} {noun}s"


def all_of(extent: str) -> str:
    """Name all of a text by its number of pages: "all 60 pages", but "all of it" for "1 page"."""
    return "all of it" if extent.startswith("1 ") and " and " not in extent else f"all {extent}"


RECOGNISED = "Recognised from a picture; may have slips."


def recognised_line(recognised: int, pages: int) -> str:
    """State how many pages of a document were recognised from pictures; "" if no page was."""
    return f"Recognised from pictures: {recognised} of {counted(pages, 'page')}; may have slips." if recognised else ""


def size(number_of_bytes: int) -> str:
    """Return a number of bytes in the unit that keeps the number readable, such as "1.5 GB".

    1 GB is 10**9 bytes, as in the SI, in the sizes of disks and on the hub. (nvidia-smi counts in MiB.)
    """
    for unit, name in _SIZES:
        if number_of_bytes >= unit:
            value = number_of_bytes / unit
            return f"{value:.0f} {name}" if value >= 100 else f"{value:.1f} {name}"
    return f"{number_of_bytes} B"


def rate(per_second: float) -> str:
    """Return tokens per second as text without a unit: from 10 upwards a whole number, below 10 with one decimal."""
    return count(round(per_second)) if per_second >= 10 else f"{per_second:.1f}"


def milliseconds(value: float) -> str:
    if value >= 1000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"


def percent(fraction: float) -> str:
    """Return a share from 0 to 1 in percent, such as "42 %". Only a share of exactly 1 is shown as 100 %, and only a
    share of exactly 0 as 0 %.
    """
    if 0.995 <= fraction < 1.0:
        return "99 %"
    if 0.0 < fraction < 0.005:
        return "under 1 %"
    return f"{fraction * 100:.0f} %"


def duration(seconds: float) -> str:
    """Return a duration in ms, s, min or h, such as "3 min 20 s"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < _SECONDS_SHOWN_EXACTLY:
        return f"{seconds:.1f} s"
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < _HOUR:
        return f"{int(seconds) // _MINUTE} min {int(seconds) % _MINUTE} s"
    return f"{int(seconds) // _HOUR} h {int(seconds) % _HOUR // _MINUTE} min"


def day(time_s: float, now: float) -> str:
    """The day of the moment ``time_s`` (seconds since the epoch) in local time: "today", "yesterday", "12 Mar 2026"."""
    then, today = time.localtime(time_s), time.localtime(now)
    if then[:3] == today[:3]:
        return "today"
    if then[:3] == time.localtime(now - _DAY)[:3]:
        return "yesterday"
    year = "" if then.tm_year == today.tm_year else f" {then.tm_year}"
    return f"{then.tm_mday} {_MONTHS[then.tm_mon - 1]}{year}"


def moment(time_s: float, now: float) -> str:
    """The day of a moment, as ``day`` names it. For a moment of today, the time of day is added."""
    named = day(time_s, now)
    return f"{named}, {time.strftime('%H:%M', time.localtime(time_s))}" if named == "today" else named


# What the page shows ---------------------------------------------------------------------------------------------


View = dict[str, Any]
PacePoint = tuple[float, float, float, int]
"""A point of the pace curve: milliseconds per token since the previous point; median and 95th percentile of the
milliseconds per token in the answer so far; number of tokens in the answer so far.
"""

SCORE_LEVELS = 100  # highest level of highlighting of a page (``glow``)
PACE_TOKENS = 100  # maximum number of newest tokens that the pace curve covers
_NOW_TOKENS = 10  # maximum number of newest tokens over which the current pace is averaged
_SPARK_WIDTH = 72  # width in pixels of the small pace curve under an answer
_SPARK_HEIGHT = 14  # height in pixels of the small pace curve under an answer

_TIERS = (("device", "GPU"), ("host", "memory"), ("disk", "disk"))
_PARTS = ("draft", "middle", "verify", "transfer", "other")

MODES = {"hierarchical": "fast", "plain": "plain"}
"""The decoding loops, with the names that the page uses."""

WHY_STOPPED = {
    StopReason.END: "",
    StopReason.LENGTH: "cut at the greatest length",
    StopReason.CONTEXT: "the window is full",
    StopReason.CANCELLED: "stopped",
    StopReason.LOOP: "stopped, it only repeated itself",
}


def reached(document: Document, pages: int) -> str:
    """The name of the last page that was read: "page 84", or "Lease 2024, p. 3" in a book of several documents."""
    if document.members and pages:
        return page_of(document, document.pages[min(pages, len(document.pages)) - 1])
    return f"{document.unit} {count(pages)}"


def reached_of(document: Document, read: BookRead) -> str:
    """The result of ``reached``, followed by the number of all pages unless the book has several documents: "page 84 of
    212".
    """
    return reached(document, read.pages_read) + ("" if document.members else f" of {count(read.pages_total)}")


def read_until(document: Document, pages: int) -> str:
    """How far a document has been read: "page 31 of 297"; "" if no page has been read."""
    if not pages:
        return ""
    return reached(document, pages) + ("" if document.members else f" of {count(len(document.pages))}")


def first_line(first: Mapping[str, Any]) -> str:
    """The line above an answer from passages. ``first``: their number, the result of ``read_until``, and ``never``:
    whether the settings say that no book is read.
    """
    number = f"From {counted(first['passages'], 'passage')}."
    read = f"Read so far: to {first['read']}." if first["read"] else "Nothing else has been read."
    return " ".join((number, "Your settings say that no more is read." if first.get("never") else read))


def whole_line(whole: Mapping[str, Any]) -> str:
    """The line above an answer in the place of one from passages. ``whole``: ``of``, the pages of the book ("" for
    parts of it), and ``said``, how the facts differ (``app.trust.differences``).
    """
    return " ".join(filter(None, (f"From {all_of(whole['of'])}." if whole.get("of") else "", whole.get("said", ""))))


def read_so_far(pages: int, notes: Mapping[str, Any] | None) -> str:
    """How many pages had been read when a question was answered, in words from ``notes``: "76 pages and 4 sections". If
    an earlier version stored ``notes`` without these words, they are made from ``pages`` and the book's unit.
    """
    known = notes or {}
    return str(known.get("read") or counted(pages, str(known.get("unit", "page"))))


def reading_view(progress: ReadingProgress, document: Document, remaining: Remaining) -> View:
    """The status line and the progress bar during a reading. Both show the share that is read, because the model reads
    many pages at once, layer by layer. ``pages`` are those that have been read completely.
    """
    fraction = _share(progress.tokens_done, progress.tokens_total)
    return {
        "fraction": fraction,
        "pages": progress.pages_done,
        "where": f"Reading {document.extent()}: {percent(fraction)}",
        "pace": remaining.words,
    }


def book_line(read: BookRead | None, document: Document, extent: str) -> str:
    """Describe a book on one line: its ``extent``, and how far it was read if the reading was stopped."""
    if read is None or not read.stopped or not read.pages_read:
        return extent
    return " · ".join((extent, f"read to {reached(document, read.pages_read)}"))


def read_line(read: BookRead, document: Document) -> str:
    """A line about a reading that has ended or was stopped."""
    if not read.stopped and read.source == "snapshot" and read.tokens_restored >= read.tokens:
        opened = f"Opened {document.extent(read.pages_read)} in {duration(read.seconds)}"
        if read.pages_read == 1:
            return f"{opened}: it was read before."
        return f"{opened}: they were read before."
    if not read.stopped and read.tokens_restored:
        known = percent(_share(read.tokens_restored, read.tokens))
        return f"Opened {document.extent(read.pages_read)} in {duration(read.seconds)}: {known} had been read before."
    if not read.stopped:
        took = f"Read {document.extent(read.pages_read)} in {duration(read.seconds)}."
        return f"{took} {'It stays' if read.pages_read == 1 else 'They stay'} in memory for every question."
    if not read.pages_read:
        return "Stopped before a page was read. Answers come from passages."
    return f"Stopped at {reached_of(document, read)}. Questions are answered from what was read."


def figures_view(figures: Figures, why_not: str = "", pace: Sequence[PacePoint] = ()) -> View:
    """All texts of the figures panel, and three values for the space under the growing answer: the text ``line``, its
    short form ``brief`` for a narrow screen, and the pace curve ``spark``. A value that was not measured is an empty
    string.

    Args:
        why_not: the reason why the answer's speed does not count (``speed.uncounted``).
        pace: the points of this answer's pace curve so far.
    """
    return {
        "line": live_line(figures, why_not, pace),
        "brief": brief_line(figures, why_not, pace),
        "spark": spark(pace),
        "ms": _milliseconds(figures.ms_per_token_mean),
        "p50": _milliseconds(figures.ms_per_token_p50),
        "p95": _milliseconds(figures.ms_per_token_p95),
        "rate": "" if figures.tokens_per_s is None else rate(figures.tokens_per_s),
        "speedup": _times(speedup(figures, why_not)),
        "uncounted": WHY_NO_SPEED.get(why_not, ""),
        "plain": _plain_step(figures),
        "middle": _level(figures.middle.rate),
        "verify": _level(figures.verify.rate),
        "lookup": _level(figures.lookup.rate),
        "length": "" if figures.mean_acceptance_length is None else f"{figures.mean_acceptance_length:.1f}",
        "split": split_view(figures.time_split),
        "kv": kv_view(figures.kv_bytes),
        "window": window_view(figures.context_tokens, figures.context_limit),
        "first": "" if figures.ttft_s is None else duration(figures.ttft_s),
        "tokens": count(figures.answer_tokens),
        "reused": reused_line(figures),
        "mode": figures.mode,
    }


def _plain_step(figures: Figures) -> str:
    """The time of a plain decoding step, the number of plain steps that were timed, and the age of the newest one; ""
    if no plain step was timed. The speedup of an answer is computed from this time.
    """
    if figures.plain_ms is None or figures.plain_age_s is None:
        return ""
    ago = f"{duration(figures.plain_age_s)} ago" if figures.plain_age_s >= 1 else "just now"
    steps = f"{count(figures.plain_steps)} timed, the last {ago}"
    return f"{milliseconds(figures.plain_ms)} ({steps})"


def split_view(split: TimeSplit) -> list[View]:
    """The share of an answer's time that each stage took. Stages without any time are left out."""
    shares = [(part, spent / split.total) for part in _PARTS if (spent := getattr(split, part))]
    return [{"part": part, "share": round(share, 4), "text": percent(share)} for part, share in shares]


def kv_view(kv: KvBytes) -> list[View]:
    """The bytes of KV on the GPU, in memory and on disk. A place without KV is left out."""
    held = [(tier, name, getattr(kv, tier)) for tier, name in _TIERS]
    each = f" ({', '.join(map(size, kv.cards))})" if kv.cards else ""
    return [
        {
            "part": tier,
            "name": name,
            "share": _share(number, kv.total),
            "text": size(number) + (each if tier == "device" else ""),
        }
        for tier, name, number in held
        if number
    ]


def window_view(tokens: int, limit: int) -> View:
    """How much of the model's window is used."""
    return {"share": _share(tokens, limit), "text": f"{count(tokens)} of {count(limit)} tokens"}


def reused_line(figures: Figures) -> str:
    """State how many tokens were read for a question, and how many came from the cache. The two numbers show that the
    book was not read again.
    """
    return (
        f"{counted(figures.prefilled_tokens, 'new token')} read for this question, "
        f"{count(max(0, figures.prompt_tokens - figures.prefilled_tokens))} kept from before"
    )


def pace_of(previous: Figures | None, current: Figures) -> float | None:
    """Milliseconds per token between two figures of an answer; None if no token came in between or no time was
    measured.
    """
    if current.ms_per_token_mean is None:
        return None
    before = previous if previous is not None and previous.ms_per_token_mean is not None else None
    tokens_before = before.answer_tokens if before else 0
    spent_before = (before.ms_per_token_mean or 0.0) * tokens_before if before else 0.0
    tokens = current.answer_tokens - tokens_before
    if tokens <= 0:
        return None
    return max(0.0, (current.ms_per_token_mean * current.answer_tokens - spent_before) / tokens)


def longer_pace(
    pace: Sequence[PacePoint], event: TextDelta | AnswerDone, previous: Figures | None
) -> tuple[PacePoint, ...]:
    """The pace curve with a point for ``event`` added. Points that lie more than ``PACE_TOKENS`` tokens back are
    dropped.
    """
    point = pace_of(previous, event.figures)
    if point is None:
        return tuple(pace)
    p50, p95, tokens = event.figures.ms_per_token_p50, event.figures.ms_per_token_p95, event.figures.answer_tokens
    reached = tuple(point for point in pace if tokens - PACE_TOKENS < point[3] < tokens)
    return (*reached, (round(point, 2), round(p50 or 0.0, 2), round(p95 or 0.0, 2), tokens))


def kept_pace(notes: Mapping[str, Any] | None) -> tuple[PacePoint, ...]:
    """The pace curve that was stored with an answer. Empty for answers of earlier versions, which stored none."""
    points = (notes or {}).get("pace", ())
    return tuple((ms, p50, p95, tokens) for ms, p50, p95, tokens in points)


def ms_now(pace: Sequence[PacePoint]) -> float | None:
    """The mean milliseconds per token of the last ``_NOW_TOKENS`` tokens of a pace curve; None before the first
    token.
    """
    spent, tokens = 0.0, 0
    begun = [0, *(end for _, _, _, end in pace)]
    for before, (ms, _, _, end) in zip(reversed(begun[:-1]), reversed(pace), strict=True):
        taken = min(end - before, _NOW_TOKENS - tokens)
        spent, tokens = spent + ms * taken, tokens + taken
        if tokens == _NOW_TOKENS:
            break
    return spent / tokens if tokens else None


def spark(pace: Sequence[PacePoint]) -> str:
    """The pace curve as points of an SVG polyline. The curve always has the full width, even after few tokens. The
    bottom of the drawing stands for zero milliseconds.
    """
    if not pace:
        return ""
    first, last = max(0, pace[-1][3] - PACE_TOKENS), pace[-1][3]
    most = max(point[0] for point in pace) or 1.0
    heights = [_SPARK_HEIGHT - 1 - (_SPARK_HEIGHT - 2) * point[0] / most for point in pace]
    across = [_SPARK_WIDTH * max(0, point[3] - first) / (last - first) for point in pace]
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in zip((0.0, *across), (heights[0], *heights), strict=True))


def live_line(figures: Figures, why_not: str, pace: Sequence[PacePoint]) -> str:
    """The line under a growing answer; empty before its first tokens."""
    now = ms_now(pace)
    if now is None or figures.tokens_per_s is None:
        return ""
    said = WHY_NO_SPEED.get(why_not, "") or than_plain(speedup(figures))
    told = f"{milliseconds(now)} a token now", f"{rate(figures.tokens_per_s)} tokens a second on average"
    return " · ".join(part for part in (*told, acceptance_line(figures), said) if part)


def brief_line(figures: Figures, why_not: str, pace: Sequence[PacePoint]) -> str:
    """``live_line`` in fewer words, which fit into two rows of a phone's screen: "53.4 ms a token · 18 a second · 1.2×
    plain · acceptance: first check 72 %, whole book 91 %".
    """
    now = ms_now(pace)
    if now is None or figures.tokens_per_s is None:
        return ""
    told = f"{milliseconds(now)} a token", f"{rate(figures.tokens_per_s)} a second"
    times = _times(speedup(figures, why_not))
    return " · ".join(part for part in (*told, times and f"{times} plain", acceptance_line(figures)) if part)


def acceptance_line(figures: Figures) -> str:
    """The acceptance rates of an answer: "acceptance: first check 72 %, whole book 91 %". A rate is left out if no
    token was proposed for it.
    """
    levels = (("first check", figures.middle), ("whole book", figures.verify), ("copied", figures.lookup))
    told = [
        f"{name} {percent(level.rate)}".replace(" %", "\u00a0%") for name, level in levels if level.rate is not None
    ]
    return f"acceptance: {', '.join(told)}" if told else ""


def glow(scores: Sequence[float]) -> list[int]:
    """Turn page scores into integer levels of highlighting, from 0 to ``SCORE_LEVELS``. A page with at most the median
    score gets 0, and the page with the highest score gets ``SCORE_LEVELS``.

    Attention is spread thinly over all pages of a book. If the levels began at zero instead of the median, every page
    would be highlighted.
    """
    usual, strongest = (median(scores), max(scores)) if scores else (0.0, 0.0)
    if strongest <= usual:
        return [0] * len(scores)
    return [round(SCORE_LEVELS * max(0.0, (score - usual) / (strongest - usual))) for score in scores]


_CITED = ("quoted", "verbatim", "says")  # kinds of citations whose page supports a sentence


def thought_line(thought: Mapping[str, Any]) -> str:
    """What the model thought before its answer, in numbers: "Thought, 212 words, 14 s"; while it thinks, "Thinks, ...".

    Args:
        thought: the record of ``app.core.chats.thought_record``.
    """
    words, took = _written(thought["text"], thought["tokens"]), duration(thought["seconds"])
    return f"Thinks, {words}, {took}" if thought["open"] else f"Thought, {words}, {took}"


def short_line(
    figures: Figures | None,
    stopped: StopReason | None,
    tokens: int = 0,
    answer: str = "",
    chips: Sequence[View] = (),
    unit: str = "page",
) -> str:
    """The line under an answer without figures of the engine: "84 words · 6.3 s · 3 pages". The seconds pass between
    question and last word, and the pages are those that support a sentence.

    Args:
        chips: the citations of the answer. The other arguments are those of ``answer_line``.
        unit: the word for a page of the document.
    """
    parts = []
    if figures is not None and (last := figures.answer_tokens):
        parts.append(_written(answer, max(tokens, last)))
        if figures.ttft_s is not None and figures.ms_per_token_mean is not None and tokens <= last:
            parts.append(duration(figures.ttft_s + figures.ms_per_token_mean * last / 1000))
    cited = {(chip.get("of"), page["label"]) for chip in chips if chip["kind"] in _CITED for page in chip["pages"]}
    parts.append(counted(len(cited), unit) if cited else "")
    return " · ".join(part for part in (*parts, _ended(stopped)) if part)


def answer_line(
    figures: Figures | None, stopped: StopReason | None, tokens: int = 0, answer: str = "", why_not: str = ""
) -> str:
    """The line under an answer: "84 words · 12.3 ms a token · 81 tokens a second · acceptance: first check 72 %, whole
    book 91 % · 2.3 times faster than plain".

    Args:
        figures: the speed of the answer; None if it was not measured.
        stopped: how the answer ended; None if it has not ended.
        tokens: number of tokens of the whole answer; 0 if unknown. It may exceed the number in ``figures``, because
            these cover only the part that was written last.
        answer: the answer's text, whose words are counted.
        why_not: the reason why the answer's speed does not count (``speed.uncounted``).
    """
    parts = []
    if figures is not None and (last := figures.answer_tokens):
        parts.append(_written(answer, max(tokens, last)))
        if figures.tokens_per_s is not None:
            parts += [_pace(figures, tokens), f"{rate(figures.tokens_per_s)} tokens a second"]
        compared = WHY_NO_SPEED.get(why_not, "") if why_not else than_plain(speedup(figures))
        parts += [acceptance_line(figures), compared]
    return " · ".join(part for part in (*parts, _ended(stopped)) if part)


def brief_answer_line(
    figures: Figures | None, stopped: StopReason | None, tokens: int = 0, answer: str = "", why_not: str = ""
) -> str:
    """``answer_line`` in fewer words, which fit into two rows of a phone's screen: "84 words · 12.3 ms a token · 2.3×
    plain · acceptance: first check 72 %, whole book 91 %".
    """
    parts = []
    if figures is not None and (last := figures.answer_tokens):
        times = _times(speedup(figures, why_not))
        parts = [_written(answer, max(tokens, last)), _pace(figures, tokens), times and f"{times} plain"]
        parts += [acceptance_line(figures), WHY_NO_SPEED.get(why_not, "")]
    return " · ".join(part for part in (*parts, _ended(stopped)) if part)


def _written(answer: str, tokens: int) -> str:
    """The length of an answer in words, or in characters if it has no spaces between words. If only its number of
    tokens is known, that number.
    """
    if words := words_of(answer):
        return counted(words, "word")
    return counted(len(answer), "character") if answer else counted(tokens, "token")


def _pace(figures: Figures, tokens: int) -> str:
    """The mean time per token. The words "at last" are put before the time if ``figures`` cover only the end of an
    answer of ``tokens`` tokens. "" if the time was not measured.
    """
    if figures.ms_per_token_mean is None:
        return ""
    each = f"{milliseconds(figures.ms_per_token_mean)} a token"
    return f"at last {each}" if tokens > figures.answer_tokens else each


def _ended(stopped: StopReason | None) -> str:
    """Why an answer ended early; "" if the model ended it, or if it has not ended."""
    return WHY_STOPPED[stopped] if stopped is not None else ""


def made_line(made: Mapping[str, Any]) -> str:
    """The model and options that wrote an answer: "Qwen3-4B with Qwen3-0.6B · fast · temperature 0 · top-p 1 · at most
    64 tokens"."""
    models = [str(made[name]) for name in ("model", "draft") if made.get(name)]
    parts = [" with ".join(models), MODES.get(str(made.get("mode", "")), "")]
    own = made.get("own", ())
    parts += [
        one.said.format(made[one.name]) + (" (the model's own)" if one.name in own else "")
        for one in options_of(SamplingParams)
        if one.said and made.get(one.name) is not None and made[one.name] is not False
    ]
    return " · ".join(part for part in parts if part)


def _share(part: float, whole: float) -> float:
    return round(min(1.0, part / whole), 4) if whole else 0.0


def _milliseconds(value: float | None) -> str:
    return "" if value is None else milliseconds(value)


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}×"


def _level(rate: float | None) -> View:
    return {"share": 0.0, "text": ""} if rate is None else {"share": round(rate, 4), "text": percent(rate)}


def page_name(label: str, unit: str, long: bool = False) -> str:
    """The name of a page from its label: "12" -> "p. 12" or "page 12"; a section's name is its title."""
    label = short_title(label)
    if unit == "page":
        return f"page {label}" if long else f"p. {label}"
    return f"{unit} {label}" if label.isdecimal() else label


def place_named(chip: Mapping[str, Any], unit: str, long: bool = True) -> str:
    """The place of a citation within a sentence: "page 12", or "Lease 2024, page 12" in a book of several documents.
    The only section of a document is often called like the document, which is then named once.
    """
    places = places_named(chip["pages"], str(chip.get("unit", unit)), long)
    title = chip.get("document", "") and (chip.get("called") or short_title(chip["document"]))
    if title and places and all(_is_title(str(one["label"]), chip["document"]) for one in chip["pages"]):
        return str(title)
    return f"{title}, {places}" if title and places else places


def standing(chip: Mapping[str, Any], unit: str) -> str:
    """Where a citation stands, within a sentence: "on page 12", "in section 3", "in Lease 2024, page 12"."""
    place = place_named(chip, unit)
    on = not chip.get("document") and (chip.get("unit", unit) == "page" or place.startswith("slide "))
    return ("on " if on else "in ") + place


def _is_title(label: str, title: str) -> bool:
    """Whether a section is called like its document. Labels of sections end with "…" if they are cut."""
    return label == title or (label.endswith("…") and title.startswith(label[:-1]))


def page_of(document: Document, page: Page, long: bool = False) -> str:
    """The name of a page within a sentence, with its document's title if there are several documents."""
    member = document.member_at(page.number)
    title = member.title if member else ""
    called = short_title(title, [other.title for other in document.members])
    chip = {"pages": [{"label": page.label}], "document": title, "called": called}
    return place_named(chip, member.unit if member else document.unit, long)


def places_named(pages: Sequence[Mapping[str, Any]], unit: str, long: bool = True) -> str:
    """Consecutive pages within a sentence: "page 12", "pages 12 to 13"."""
    if not pages:
        return ""
    first, last = str(pages[0]["label"]), str(pages[-1]["label"])
    if first == last:
        return page_name(first, unit, long)
    if unit == "page":
        return f"pages {first} to {last}" if long else f"p. {first}–{last}"
    return f"{page_name(first, unit)} – {page_name(last, unit)}"


_NOTES = (("The book says so", "Your notes say so"), ("the book", "your notes"))
_OF_TEXT = {
    "document": (("The book", "The document"), ("the book", "the document"), ("the whole book", "the whole document")),
    "documents": (
        ("The book says", "The documents say"),
        ("The book", "The documents"),
        ("the book", "the documents"),
        ("the whole book", "all of the documents"),
    ),
}


def of_text(words: str, notes: Mapping[str, Any] | None) -> str:
    """Replace words about the book by words about the text that was asked: a document that is no book, several
    documents, or the person's notes.

    Args:
        words: a sentence of the program, without words of the text.
        notes: the notes of an answer.
    """
    notes = notes or {}
    for book, other in _NOTES if notes.get("from_notes") else _OF_TEXT.get(notes.get("called", ""), ()):
        words = words.replace(book, other)
    return words


def _not_found(missing: Sequence[str], notes: Mapping[str, Any]) -> str:
    """The sentence about an answer that the book does not support. It lists the names and numbers in ``missing``, which
    occur nowhere in the book.
    """
    if not missing:
        return of_text("No passage of the book says this", notes)
    more = len(missing) - _MOST_MISSING
    listed = f"{', '.join(missing[:_MOST_MISSING])}{f' and {more} more' if more > 0 else ''}"
    return of_text("Not found in the book: {}", notes).format(listed)


def absence(notes: Mapping[str, Any]) -> str:
    """The sentence about an answer that the open text does not support; "" if it does. If only a part of the book is
    open (``app.core.outside``), the sentence names the part, and the pages outside it that have the missing words.
    """
    missing, part = notes.get("missing"), notes.get("part")
    if missing is None:
        return ""
    if not part:
        return _not_found(missing, notes)
    if not missing:
        return f"No passage of {part['where']} says this"
    there = [f"{word} ({place})" for word, place in part["elsewhere"].items()]
    rest = [word for word in missing if word not in part["elsewhere"]]
    other = of_text("Not in {}, but elsewhere in the book: {}", notes)
    said = [other.format(part["where"], ", ".join(there))] if there else []
    return ". ".join([*said, *([_not_found(rest, notes)] if rest else [])])


_WHY_ALONE = {
    "": "without the earlier answers",
    "refused": "asked once more without the earlier answers: with them, the model refused",
    "repeated": "asked once more without the earlier answers: with them, the model repeated one",
}


def left_out(alone: Mapping[str, Any] | None) -> str:
    """Say that a question was asked without the earlier answers of its chat, and why; "" if it was not.

    Args:
        alone: the notes of such an answer: ``left_out``, the number of earlier answers, and ``why``: "" if the question
            does not refer back, otherwise what was wrong with the answer that was given with them.
    """
    return _WHY_ALONE[str(alone["why"])] if alone else ""


def not_found_in(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a program is told of an answer that the book does not support, by the notes of the answer. "not_found": the
    words that occur nowhere in the book or, if there are none, the sentence that a person reads. "elsewhere", if only a
    part of the book is open: words that this part lacks, with a page of the book for each.
    """
    missing, there = record.get("missing"), record.get("part", {}).get("elsewhere", {})
    nowhere = [] if missing is None else [word for word in missing if word not in there] or [absence(record)]
    return {"not_found": nowhere, **({"elsewhere": there} if there else {})}


def of_the_question(record: Mapping[str, Any]) -> dict[str, Any]:
    """What a program is told of a question by the notes of its answer: the words that it takes for granted and no
    passage says, the text of the nearest passage, and its names if no cited passage is near one.
    """
    near = (record.get("assumed_at") or {}).get("extract", {}).get("hit", "")
    return {
        "assumed": record.get("assumed", []),
        "assumed_passage": " ".join(near.split()),
        "unnamed": record.get("unnamed", []),
    }


def assumed(notes: Mapping[str, Any], unit: str) -> list[str]:
    """The lines about a question that assumes something which no passage says: the words of the question that no
    passage has together with its other words, and the nearest passage, or the passage that denies it; and the names of
    the question if no cited passage is near one of them.
    """
    words, place, names = notes.get("assumed", ()), notes.get("assumed_at"), notes.get("unnamed", ())
    lines = [f"No passage says what the question assumes: {', '.join(words[:_MOST_MISSING])}"] if words else []
    if words and place:
        told = " ".join(place["extract"]["hit"].split())
        told = f"{told[:_LONGEST_TOLD].rsplit(' ', 1)[0]} …" if len(told) > _LONGEST_TOLD else told
        where = place_named(place, unit)
        if place.get("denied"):
            lines = [of_text("The book says otherwise, {}: {}", notes).format(where, told)]
        else:
            lines.append(f"The nearest passage, {where}: {told}")
    return [*lines, *([f"What is cited does not name: {', '.join(names[:_MOST_MISSING])}"] if names else [])]
