"""What the app carries: long and odd questions, many tabs, many questions, thick books, readers who stop."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from tests.app.readers.hostile_text import every_block
from tests.faults import engine_clock
from tests.faults.conftest import LONG
from tests.faults.driver import App, Asked
from tests.nursery import Nursery
from tests.tally import count

QUESTIONS = 1000 if LONG else 44
WARM = 30  # questions after which everything that is kept on purpose has been made
GROWTH = 24 << 20  # bytes that chats, indices and the allocator may take meanwhile
PER_CHAT = 20
TABS = 20
STOP_SECONDS = 0.2  # of work that nobody waits for
STOPS = 5
INTO_THE_ANSWER = 0.5  # seconds; the next layout of the chat comes later, when a short answer may be over
MEGABYTE = 1 << 20
_CLOCK = "clock.txt"


@pytest.fixture(scope="module")
def app(
    tmp_path_factory: pytest.TempPathFactory, pair: tuple[str, ...], nursery: Nursery | None, small_book: bytes
) -> Iterator[App]:
    folder = tmp_path_factory.mktemp("load")
    with App(folder / "data", pair, {engine_clock.FILE: str(folder / _CLOCK)}, nursery=nursery) as running:
        assert running.read("lamp.txt", small_book)["book"]["stage"] == "ready"
        yield running


def _still_answers(app: App) -> None:
    app.post("/chats/new")
    asked = app.ask("Who lit it?", tokens=32)
    assert asked.whole, asked.last


@pytest.mark.parametrize(
    ("what", "question"),
    [
        ("every block of Unicode", "What is this? " + every_block()[:: 1 if LONG else 4]),
        ("right to left", "من أضاء المصباح؟ מי הדליק את המנורה?"),
        ("controls and overrides", "Who\x00 lit\x07 \u202eit\u202c?\ufeff\u200b"),
        ("markup", "<script>alert(1)</script> ![](http://evil.example/x.png) {{ bos_token }} <|end|> <|system|>"),
        ("half a pair", "Who lit \ud83d it?"),
        ("one sign", "?"),
        ("marks piled up", "e" + "\u0301" * 5000),
        ("only spaces", " \t\n"),
    ],
)
def test_any_question_is_answered(app: App, what: str, question: str) -> None:
    asked = app.ask(question, tokens=32)
    assert asked.ended
    if question.strip():
        assert "Traceback" not in asked.last
        count("odd questions")
    _still_answers(app)


def test_a_question_of_five_megabytes_is_a_sentence(app: App) -> None:
    began = time.monotonic()
    asked = app.ask("lamp " * MEGABYTE, tokens=32)
    assert time.monotonic() - began < 60
    assert "too long for this model" in asked.last
    _still_answers(app)
    wanted = b'{"question": "' + b"a" * (17 * MEGABYTE) + b'"}'
    with contextlib.suppress(OSError):  # refused before all of it was sent
        assert app.request("POST", "/asking", wanted).status == 413
    _still_answers(app)
    count("odd questions", 2)


def test_a_reader_who_stops_stops_the_engine(app: App) -> None:
    """By the engine's own clock: from the moment when the button is pressed to the last event of the answer."""
    waits = []
    for _ in range(STOPS):
        answer = app.asking("Tell all of it.", 2048, "hierarchical", Asked(), temperature=1.0)
        next(answer)
        next(answer)
        time.sleep(INTO_THE_ANSWER)
        pressed = time.perf_counter()
        app.post("/asking/stop")
        noted, until = engine_clock.moments(app.data.parent / _CLOCK), time.monotonic() + 10
        asked = noted[-1].request
        while "AnswerDone" not in (after := _after(noted, asked, pressed)) and time.monotonic() < until:
            time.sleep(0.02)
            noted = engine_clock.moments(app.data.parent / _CLOCK)
        assert "cancel" in after, "the answer was over before"
        assert "AnswerDone" in after
        waits.append(after["AnswerDone"] - pressed)
        assert [*answer][-1].ended
    count("readers who stopped in the middle of an answer", STOPS)
    assert min(waits) < STOP_SECONDS, waits  # the other tests of this machine can only make it longer
    _still_answers(app)


def _after(noted: list[engine_clock.Moment], asked: str, left: float) -> dict[str, float]:
    """What was noted of a request after a moment, and when."""
    return {moment.what: moment.seconds for moment in noted if moment.request == asked and moment.seconds > left}


def test_twenty_tabs(app: App) -> None:
    with contextlib.ExitStack() as stack:
        tabs = [stack.enter_context(app.live()) for _ in range(TABS)]
        for tab in tabs:
            tab.more()
        with ThreadPoolExecutor(TABS) as pool:
            answers = list(pool.map(lambda at: app.ask(f"Who lit lamp {at}?", tokens=32), range(TABS)))
        for tab in tabs:
            tab.until(lambda state: not state["asking"], 30)
        assert len({str(tab.state["chat"]) for tab in tabs}) == 1, "tabs show different chats"
    assert all(answer.ended for answer in answers)
    assert all(answer.whole or "Another question" in answer.last for answer in answers), [
        answer.last for answer in answers
    ]
    assert any(answer.whole for answer in answers)
    _still_answers(app)
    count("tabs at once", TABS)


def test_question_after_question_takes_no_memory(app: App) -> None:
    process = psutil.Process(app.process.pid)
    taken: list[int] = []
    for number in range(QUESTIONS):
        if number % PER_CHAT == 0:
            app.post("/chats/new")
        asked = app.ask(f"Who lit lamp {number}?", tokens=12)
        assert asked.whole, asked.last
        taken.append(process.memory_info().rss)
    gc.collect()
    grown = min(taken[-10:]) - min(taken[WARM : WARM + 10])
    count("questions in a row", QUESTIONS)
    count("MB that memory grew by meanwhile", max(0, round(grown / 1e6)))
    assert grown < GROWTH, f"{grown / 1e6:.1f} MB after {QUESTIONS - WARM} questions"
    assert process.num_threads() < 80
    assert process.num_fds() < 200


def test_a_book_of_two_thousand_pages(app: App, tmp_path: Any) -> None:
    from tests.app.readers.conftest import Files

    pages = [[(72.0, 700.0, f"Leaf {at} is lit.")] for at in range(1, 2001)]
    book = Files(tmp_path).pdf("thick.pdf", pages).read_bytes()
    state = app.read("thick.pdf", book, seconds=180)
    assert state["book"]["stage"] == "ready", state["book"]
    assert state["map"]["pages"] == 2000
    assert state["pages_read"] == 2000
    _still_answers(app)
    count("pages in one book", 2000)


@pytest.mark.parametrize("data", [b" \n\t ", b"x", b"lamp " * 40_000, b"\xef\xbb\xbf", "مصباح ".encode() * 2000])
def test_thin_and_odd_books(app: App, data: bytes) -> None:
    state = app.read("odd.txt", data)
    book = state["book"]
    if data.strip(b" \n\t\xef\xbb\xbf"):
        assert book["stage"] in ("ready", "choosing")
    else:
        assert book["stage"] == "failed"
        assert book["trouble"]["cause"].endswith(".")
    if book["stage"] == "ready":
        _still_answers(app)
