"""Numbers and events as words: every figure that the page shows, from records made by hand."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from app.core import format
from app.core.forecast import Range, Remaining
from engine.document import Document
from engine.events import Acceptance, BookRead, KvBytes, ReadingProgress, StopReason, TextDelta, TimeSplit, TokenSource
from tests.app.scripted import figures


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        *((0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (1500, "1.5 KB"), (500 * 10**6, "500 MB")),
        *((9 * 10**9, "9.0 GB"), (25_276_514_304, "25.3 GB"), (3 * 10**15, "3000 TB")),
    ],
)
def test_sizes(number: int, shown: str) -> None:
    assert format.size(number) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0.42, "420 ms"), (4.21, "4.2 s"), (42.4, "42 s"), (61.0, "1 min 1 s"), (3720.0, "1 h 2 min")],
)
def test_durations(seconds: float, shown: str) -> None:
    assert format.duration(seconds) == shown


@pytest.mark.parametrize(
    ("fraction", "shown"), [(0.0, "0 %"), (0.001, "under 1 %"), (0.62, "62 %"), (0.999, "99 %"), (1.0, "100 %")]
)
def test_percent_never_rounds_to_all_or_nothing(fraction: float, shown: str) -> None:
    assert format.percent(fraction) == shown


def test_counts_and_rates() -> None:
    assert format.counted(1, "page") == "1 page"
    assert format.counted(28_412, "token") == "28,412 tokens"
    assert format.rate(7274.4) == "7,274"
    assert format.rate(0.94) == "0.9"
    assert format.milliseconds(14.18) == "14.2 ms"
    assert format.milliseconds(1234.0) == "1.2 s"


def book(pages: int, unit: str = "page") -> Document:
    return Document.from_pages("The light", [str(page) for page in range(pages)], unit=unit)


def test_documents_with_pages_and_sections_are_counted_by_both() -> None:
    """Pages and sections of several documents were added up and called pages."""
    both = Document.together([book(76), replace(book(4, "section"), title="Log")])
    stopped = BookRead(100, 200, 78, 80, 4.2, 6800.0, KvBytes(), True)
    assert both.extent() == "76 pages and 4 sections"
    assert (both.extent(77), both.extent(3), book(1, "section").extent()) == (
        "76 pages and 1 section",
        "3 pages",
        "1 section",
    )
    assert Document.together([book(70), book(4, "section"), book(6)]).extent() == "76 pages and 4 sections"
    assert format.book_line(stopped, both, both.extent()) == "76 pages and 4 sections · read to Log, section 2"
    assert [format.read_until(both, pages) for pages in (0, stopped.pages_read)] == ["", "Log, section 2"]
    assert format.read_until(book(9), 3) == "page 3 of 9"
    assert format.first_line({"passages": 1, "read": ""}) == "From 1 passage. Nothing else has been read."
    said = format.first_line({"passages": 7, "read": "page 3 of 9"})
    assert said == "From 7 passages. Read so far: to page 3 of 9."
    assert format.read_line(stopped, both).startswith("Stopped at Log, section 2. ")
    assert format.read_line(replace(stopped, stopped=False), both).startswith(
        "Read 76 pages and 2 sections in 4.2 s. They"
    )


def test_reading_says_how_much_and_how_long() -> None:
    halfway = ReadingProgress(11_000, 22_000, 3, 212, 812.3, 13.5)
    view = format.reading_view(halfway, book(212), Remaining(left=Range(13.5, 13.5)))
    assert view == {"fraction": 0.5, "pages": 3, "where": "Reading 212 pages: 50 %", "pace": "about 15 s left"}
    assert format.reading_view(halfway, book(1), Remaining())["where"] == "Reading 1 page: 50 %"
    assert format.reading_view(halfway, book(212), Remaining())["pace"] == ""


def test_the_books_line() -> None:
    read = BookRead(100, 200, 84, 212, 4.2, 6800.0, KvBytes(), True)
    assert format.book_line(None, book(212), "212 pages") == "212 pages"
    assert format.book_line(read, book(212), "212 pages") == "212 pages · read to page 84"


def test_how_the_reading_went() -> None:
    whole = BookRead(200, 200, 212, 212, 4.2, 6800.0, KvBytes(), False)
    part = BookRead(100, 200, 84, 212, 4.2, 6800.0, KvBytes(), True)
    assert format.read_line(whole, book(212)).startswith("Read 212 pages in 4.2 s. They stay in memory")
    kept = replace(whole, source="snapshot", tokens_restored=whole.tokens)
    added = replace(kept, tokens_restored=190)
    assert (
        format.read_line(added, book(212)) == f"Opened 212 pages in 4.2 s: {format.percent(0.95)} had been read before."
    )
    assert format.read_line(kept, book(212)) == "Opened 212 pages in 4.2 s: they were read before."
    kept = replace(kept, pages_read=1)
    assert format.read_line(kept, book(1)) == "Opened 1 page in 4.2 s: it was read before."
    assert format.read_line(part, book(212)) == (
        "Stopped at page 84 of 212. Questions are answered from what was read."
    )


def test_every_figure_of_an_answer() -> None:
    view = format.figures_view(replace(figures(40), ms_per_token_mean=14.2, tokens_per_s=70.4))
    assert view["ms"] == "14.2 ms"
    assert (view["p50"], view["p95"]) == ("13.1 ms", "22.7 ms")
    assert view["rate"] == "70"
    assert view["plain"] == "41.0 ms (5 timed, the last 2.5 s ago)"
    assert format.figures_view(figures(40))["speedup"] != ""
    apart = format.figures_view(figures(40), "repeats")
    assert (apart["speedup"], apart["uncounted"]) == ("", "repeats an earlier answer, so no speed to compare")
    assert view["middle"] == {"share": 0.62, "text": "62 %"}
    assert view["verify"] == {"share": 0.96, "text": "96 %"}
    assert view["length"] == "7.8"
    assert view["first"] == "420 ms"
    assert view["window"] == {"share": 0.8694, "text": "28,490 of 32,768 tokens"}
    assert view["reused"] == "38 new tokens read for this question, 28,412 kept from before"


def test_what_was_not_measured_is_empty() -> None:
    bare = replace(
        figures(1),
        ms_per_token_mean=None,
        ms_per_token_p50=None,
        ms_per_token_p95=None,
        tokens_per_s=None,
        middle=Acceptance(),
        verify=Acceptance(),
        mean_acceptance_length=None,
        plain_ms=None,
        speedup_vs_plain=None,
        ttft_s=None,
        time_split=TimeSplit(),
        kv_bytes=KvBytes(),
    )
    view = format.figures_view(bare)
    assert {view[name] for name in ("ms", "p50", "p95", "rate", "speedup", "plain", "length", "first")} == {""}
    assert view["middle"] == {"share": 0.0, "text": ""}
    assert view["split"] == []
    assert view["kv"] == []


def test_time_and_memory_are_shares_of_a_whole() -> None:
    split = format.split_view(TimeSplit(20.0, 30.0, 40.0, 10.0, 0.0))
    assert [(part["part"], part["text"]) for part in split] == [
        ("draft", "20 %"),
        ("middle", "30 %"),
        ("verify", "40 %"),
        ("transfer", "10 %"),
    ]
    assert sum(part["share"] for part in split) == pytest.approx(1.0)
    kv = format.kv_view(KvBytes(3 * 10**9, 10**9, 0))
    assert [(part["name"], part["text"], part["share"]) for part in kv] == [
        ("GPU", "3.0 GB", 0.75),
        ("memory", "1.0 GB", 0.25),
    ]
    (both,) = format.kv_view(KvBytes(3 * 10**9, cards=(2 * 10**9, 10**9)))
    assert both["text"] == "3.0 GB (2.0 GB, 1.0 GB)"


def test_pace_is_the_time_of_the_newest_tokens_alone() -> None:
    before = replace(figures(10), ms_per_token_mean=10.0)
    after = replace(figures(14), ms_per_token_mean=20.0)
    assert format.pace_of(None, before) == 10.0
    assert format.pace_of(before, after) == pytest.approx((14 * 20 - 10 * 10) / 4)
    assert format.pace_of(after, after) is None


def test_the_moving_line_has_an_end() -> None:
    pace: tuple[format.PacePoint, ...] = ()
    before = None
    for number in range(1, format.PACE_TOKENS + 30):
        event = TextDelta("a", (1,), (TokenSource.DRAFT,), replace(figures(number), ms_per_token_mean=5.0))
        pace = format.longer_pace(pace, event, before)
        before = event.figures
    assert pace == tuple((5.0, 13.1, 22.7, number) for number in range(30, format.PACE_TOKENS + 30))


def test_a_line_of_rounds_of_several_tokens_reaches_as_far_back_in_tokens() -> None:
    pace: tuple[format.PacePoint, ...] = ()
    for tokens in range(7, 300, 7):
        event = TextDelta("a", (1,), (TokenSource.DRAFT,), replace(figures(tokens), ms_per_token_mean=5.0))
        pace = format.longer_pace(pace, event, replace(figures(tokens - 7), ms_per_token_mean=5.0))
    assert [point[3] for point in pace] == list(range(196, 295, 7))
    again = TextDelta("a", (1,), (TokenSource.DRAFT,), replace(figures(3), ms_per_token_mean=8.0))
    assert format.longer_pace(pace, again, None) == ((8.0, 13.1, 22.7, 3),), "an answer that is continued"


def test_now_is_the_last_ten_tokens() -> None:
    assert format.ms_now(()) is None
    assert format.ms_now([(30.0, 0, 0, 4)]) == 30.0
    assert format.ms_now([(90.0, 0, 0, 20), (30.0, 0, 0, 24), (10.0, 0, 0, 30)]) == (6 * 10 + 4 * 30) / 10
    assert format.ms_now([(90.0, 0, 0, 20), (30.0, 0, 0, 24)]) == (4 * 30 + 6 * 90) / 10


def test_the_small_drawing_fills_its_width_from_the_first_token_on() -> None:
    assert format.spark(()) == ""
    assert format.spark([(30.0, 0, 0, 1)]) == "0.0,1.0 72.0,1.0"
    assert format.spark([(30.0, 0, 0, 1), (15.0, 0, 0, 4)]) == "0.0,1.0 18.0,1.0 72.0,7.0"
    assert format.spark([(10.0, 0, 0, 150), (10.0, 0, 0, 200)]) == "0.0,1.0 36.0,1.0 72.0,1.0"


def test_the_line_while_it_is_written_says_what_is_known() -> None:
    measured = replace(figures(40), tokens_per_s=70.0, speedup_vs_plain=2.9)
    pace = [(9.0, 13.1, 22.7, 40)]
    assert format.figures_view(measured)["line"] == "", "no token of this answer has come"
    line = "9.0 ms a token now · 70 tokens a second on average"
    accepted = "acceptance: first check 62\u00a0%, whole book 96\u00a0%"
    assert format.figures_view(measured, "", pace)["line"] == f"{line} · {accepted} · 2.9 times faster than plain"
    brief = "9.0 ms a token · 70 a second · 2.9× plain"
    assert format.figures_view(measured, "", pace)["brief"] == f"{brief} · {accepted}", "on a phone, in two rows"
    assert format.figures_view(measured, "circles", pace)["brief"] == f"9.0 ms a token · 70 a second · {accepted}"
    copied = replace(measured, middle=Acceptance(), verify=Acceptance(), lookup=Acceptance(3, 4), speedup_vs_plain=None)
    assert format.figures_view(copied, "", pace)["line"] == f"{line} · acceptance: copied 75\u00a0%"
    plain = replace(copied, lookup=Acceptance(), mode="plain")
    assert format.figures_view(plain, "circles", pace)["line"] == f"{line} · repeats itself, so no speed to compare"


def test_only_what_stands_out_glows() -> None:
    assert format.glow((0.1, 0.4, 0.0, 0.1, 0.25)) == [0, 100, 0, 0, 50]
    assert format.glow((0.25, 0.25, 0.25, 0.25)) == [0, 0, 0, 0]
    assert format.glow((0.0, 0.0)) == [0, 0]
    assert format.glow(()) == []


def test_the_line_under_an_answer() -> None:
    done = replace(figures(142), ms_per_token_mean=14.3, tokens_per_s=70.0, speedup_vs_plain=2.9)
    words = "Maren Holt kept the light. " * 20  # a hundred
    line = format.answer_line(done, StopReason.END, answer=words)
    pace = "14.3 ms a token · 70 tokens a second"
    accepted = "acceptance: first check 62\u00a0%, whole book 96\u00a0%"
    assert line == f"100 words · {pace} · {accepted} · 2.9 times faster than plain"
    plain = replace(done, mode="plain", middle=Acceptance(), verify=Acceptance())
    assert format.answer_line(plain, StopReason.CANCELLED) == f"142 tokens · {pace} · stopped"
    assert format.answer_line(plain, StopReason.END, 180) == f"180 tokens · at last {pace}", (
        "an answer that was continued: the figures are of its end"
    )
    slower = replace(done, speedup_vs_plain=0.7, plain_steps=30)
    assert format.answer_line(slower, StopReason.END, answer=words).endswith("1.4 times slower than plain")
    early = format.answer_line(replace(slower, plain_steps=29), StopReason.END, answer=words)
    assert early == f"100 words · {pace} · {accepted}", "too early to say"
    assert "×" not in format.brief_answer_line(replace(slower, plain_steps=29), StopReason.END, answer=words)
    assert format.answer_line(done, StopReason.END, answer=words, why_not="circles") == (
        f"100 words · {pace} · {accepted} · repeats itself, so no speed to compare"
    )
    assert format.answer_line(None, StopReason.CANCELLED) == "stopped"
    assert format.answer_line(None, None) == ""


def test_the_line_under_an_answer_without_figures() -> None:
    done = replace(figures(142), ms_per_token_mean=20.0, ttft_s=2.16)
    pages = [{"label": "7"}, {"label": "9"}]
    chips = [{"kind": kind, "pages": pages} for kind in ("near", "drew")]
    words = "Maren Holt kept the light. " * 20
    assert format.short_line(done, StopReason.END, answer=words, chips=chips) == "100 words · 5.0 s"
    chips += [{"kind": "says", "pages": pages[:1]}, {"kind": "quoted", "pages": pages[:1]}]
    assert format.short_line(done, StopReason.LOOP, answer=words, chips=chips) == (
        "100 words · 5.0 s · 1 page · stopped, it only repeated itself"
    )
    assert format.short_line(done, StopReason.END, answer=words, chips=chips, unit="section").endswith("1 section")
    assert format.short_line(done, StopReason.END, 180) == "180 tokens", "the figures are of its end"
    assert format.short_line(None, StopReason.CANCELLED) == "stopped"


def test_the_line_under_an_answer_takes_two_rows_of_a_phone() -> None:
    copied = replace(figures(142), ms_per_token_mean=14.3, speedup_vs_plain=2.9, lookup=Acceptance(8, 10))
    line = format.brief_answer_line(copied, StopReason.END, answer="Maren Holt kept the light. " * 200)
    assert line == (
        "1,000 words · 14.3 ms a token · 2.9× plain · "
        "acceptance: first check 62\u00a0%, whole book 96\u00a0%, copied 80\u00a0%"
    )
    assert format.brief_answer_line(copied, StopReason.LOOP, 180, why_not="circles") == (
        "180 tokens · at last 14.3 ms a token · acceptance: first check 62\u00a0%, whole book 96\u00a0%, "
        "copied 80\u00a0% · repeats itself, so no speed to compare · stopped, it only repeated itself"
    )
    assert format.brief_answer_line(None, StopReason.CANCELLED) == "stopped"


def test_what_was_done_today_is_told_apart_by_the_hour() -> None:
    now = time.mktime((2026, 5, 14, 21, 30, 0, 0, 0, -1))
    assert format.moment(now - 3 * 3600 - 25 * 60, now) == "today, 18:05"
    assert format.moment(now - 24 * 3600, now) == format.day(now - 24 * 3600, now) == "yesterday"
    assert format.moment(now - 40 * 24 * 3600, now) == "4 Apr"
