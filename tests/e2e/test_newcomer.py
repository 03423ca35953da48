"""The first five minutes of somebody who has never seen the page: a document of one's own, the questions that the page
itself suggests, the race. Nothing in it may contradict itself."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Page
from pypdf import PdfWriter

from app.core.abilities import abilities
from app.core.settings import FILE as CHOICE
from app.core.settings import MODELS_FOLDER, READER, STARTER, STARTER_LONG, STARTERS
from app.core.speed import AGREE
from app.core.tried_questions import WANTED
from tests.e2e.conftest import ROOT
from tests.e2e.steps import (
    READ_SECONDS,
    SCREENSHOTS,
    Open,
    Server,
    answered,
    ask,
    clean_page,
    fits_only_rounded,
    give,
    last_answer,
    read_text,
    serving,
    until,
)
from tests.nursery import Nursery
from tests.processes import app_command, free_port
from tests.real import LONG, reader_or_skip, starter_or_skip

DOCUMENT = ROOT.parent / "shared" / "docs" / "gov-report-15-pages.pdf"
PAGES = 15 if LONG else 3  # of it
REPORT = """\
The ferry between Aldmere and the island of Skarn was built in 1912 by the brothers Iversen, who had lost two boats \
to the ice. It carried forty passengers, eleven sheep and the mail. The first winter was so cold that nobody crossed \
the channel for seven weeks.

In the winter of 1931 the captain, Tove Lindqvist, refused to sail because the harbour lamp had gone out. Nobody \
believed her until the morning, when the wreck of a coal barge was found across the channel. The mayor of Aldmere \
gave her a silver whistle that she never used.

Today the ferry stands in the museum of Aldmere beside the old customs house. Visitors may ring its bell on Sundays \
when the tide is low. The logbook that Tove Lindqvist kept for thirty years is read aloud to the children of the town \
every spring.
"""
FACTS = (("In which year was the ferry built?", "1912"), ("Who gave Tove Lindqvist a whistle?", "mayor of Aldmere"))
SIZE = (1440, 900)
FASTER = re.compile(r"([\d.]+) times (faster|slower)")
SEVERAL = re.compile(r"over \d+ answers")
STRETCH = re.compile(r"(?:([\d.]+) (?:(s|min|h) )?to )?([\d.]+) (s|min|h) left")
READ_PATIENCE = 600.0  # seconds, on a machine that does much else
SECONDS = {"s": 1, "min": 60, "h": 3600}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery | None) -> object:
    """The product as it was fetched a minute ago: a data folder with nothing in it."""
    if not DOCUMENT.is_file():
        pytest.skip(f"{DOCUMENT.name} is not in the shared folder beside the checkout")
    port = free_port()
    with serving(app_command(port), tmp_path_factory.mktemp("new"), port, nursery) as server:
        yield server


def speeds(page: Page) -> list[float]:
    """Every speedup of the last answer that can be seen, as times plain decoding; a race over several names them."""
    found = [page.locator("#chat .under .line").last, page.locator("#race-verdict"), page.locator("#race-why")]
    shown = [place.inner_text() for place in found if place.count() and place.is_visible()]
    said = [line for line in shown if not SEVERAL.search(line)]
    times = [float(number) ** (1 if way == "faster" else -1) for line in said for number, way in FASTER.findall(line)]
    panel = page.locator('[data-figure="speedup"]')
    if panel.is_visible() and panel.inner_text().endswith("×"):
        times.append(float(panel.inner_text()[:-1]))
    return times


def picture(page: Page, name: str) -> None:
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=str(SCREENSHOTS / f"newcomer-{name}.png"))


def follow_the_reading(page: Page) -> list[str]:
    """What the page says until the document has been read."""
    said: list[str] = []

    def over() -> bool:
        words = page.inner_text("#map-words")
        if words and (not said or said[-1] != words):
            said.append(words)
        return page.get_attribute("#trifold", "data-stage") == "ready"

    until(page, over, READ_PATIENCE)
    return said


def latest(words: str) -> float | None:
    """The longest time that a sentence says is left, in seconds."""
    found = STRETCH.search(words)
    return float(found[3]) * SECONDS[found[4]] if found else None


def test_the_first_five_minutes(fresh: Server, open_page: Open, tmp_path: Path) -> None:
    page = open_page(fresh, SIZE, "light", demo=False)
    assert page.inner_text("header").count("Loading the model…") <= 1
    with PdfWriter() as beginning:
        beginning.append(DOCUMENT, pages=(0, PAGES))
        beginning.write(tmp_path / DOCUMENT.name)
    give(page, tmp_path / DOCUMENT.name)
    said = follow_the_reading(page)
    picture(page, "read")
    told = [seconds for words in said if (seconds := latest(words)) is not None]
    assert all(after <= before for before, after in pairwise(told)), f"the time that is left rose: {said}"
    assert not any(re.search(r"page 1 of", words) for words in said)
    assert not page.locator("#figures").is_visible(), "figures are folded for who reads"
    for question in suggested(page):
        ask(page, question)
        answered(page)
        picture(page, f"answer-{page.locator('#chat .user').count()}")
        answer = page.locator("#chat .bot").last
        assert answer.locator(".cite.quoted").count() >= 1, last_answer(page)
        assert answer.locator(".advice").count() == 0
    page.click("#open-figures")
    page.wait_for_selector("#race-start", state="visible")
    picture(page, "demo-view")
    agree(page)
    page.click("#race-start")
    page.wait_for_selector('#race-end[data-state="over"]', timeout=READ_SECONDS)
    picture(page, "race")
    assert "instead" not in page.inner_text("#race-detail"), "every answer was about the document"
    assert "identical" in page.inner_text("#race-verdict").lower()
    page.keyboard.press("Escape")
    page.wait_for_selector("#race", state="hidden")
    until(page, lambda: "identical" in page.inner_text("#race-why"))
    page.wait_for_timeout(1500)  # the chat is drawn again with what the race has measured
    agree(page)
    picture(page, "after-the-race")


def suggested(page: Page) -> list[str]:
    """The three questions that are offered, once the model has been asked them."""
    buttons = page.locator("#suggestions button")
    until(page, lambda: buttons.count() == WANTED)
    return buttons.all_inner_texts()


def agree(page: Page) -> None:
    """No two speeds of one text differ by more than what a person would call the same."""
    times = speeds(page)
    assert not times or max(times) <= AGREE * min(times), times


def test_the_starter_answers_what_it_is_offered_for(tmp_path: Path, open_page: Open, nursery: Nursery | None) -> None:
    """The questions that the page suggests have an answer of the real small model, with words of the document."""
    starter_or_skip(tmp_path / MODELS_FOLDER)
    port = free_port()
    with serving(app_command(port, "--model", STARTER), tmp_path, port, nursery) as server:
        page = open_page(server, SIZE, "light", demo=False)
        read_text(page, REPORT, "ferry.txt")
        for question in suggested(page)[: None if LONG else 1]:
            ask(page, question)
            answered(page)
            answer = last_answer(page)
            picture(page, f"starter-{page.locator('#chat .user').count()}")
            assert answer.strip()
            assert not abilities(str(tmp_path / MODELS_FOLDER / STARTER)).refuses(answer)
            assert page.locator("#chat .bot").last.locator(".cite.quoted").count() >= 1, answer
        if LONG:  # the model is loaded again, and reads the text again
            round_it(page, tmp_path)
            clean_page(page)  # what the rounded weights answer, whatever was asked before
            ask(page, "Where does it say “The first winter was so cold”?")
            answered(page)
            assert "nobody crossed the channel for seven weeks" in last_answer(page)
            picture(page, "rounded")
        page.close()  # before its server


@pytest.mark.skipif(not LONG, reason="a model of 1.1 GB writes three answers: TRIFOLD_LONG=1")
def test_a_conversation_with_the_reader(tmp_path: Path, open_page: Open, nursery: Nursery | None) -> None:
    """A model that was not trained to quote: each fact has the passage behind it, and the figures stand below."""
    reader_or_skip(tmp_path / MODELS_FOLDER)
    port = free_port()
    with serving(app_command(port, "--model", READER), tmp_path, port, nursery) as server:
        page = open_page(server, SIZE, "light", demo=False)
        read_text(page, REPORT, "ferry.txt")
        for question, fact in FACTS:
            ask(page, question)
            supported(page, fact)
            picture(page, f"reader-{page.locator('#chat .user').count()}")
        ask(page, "What is this about?")
        answered(page)
        assert page.locator("#chat .bot").last.locator(".cite").count() >= 1, last_answer(page)
        picture(page, "reader-summary")
        page.close()  # before its server


def supported(page: Page, fact: str) -> None:
    """The answer has the fact, a citation opens the passage with it, and a line says how it was written."""
    answered(page)
    answer = page.locator("#chat .bot").last
    assert fact in last_answer(page)
    answer.locator(".cite.says, .cite.verbatim, .cite.quoted").first.click()
    # the page may still show the mark of the question before
    until(page, lambda: fact in " ".join(page.locator("#page-text mark").all_inner_texts()))
    page.keyboard.press("Escape")
    page.wait_for_selector("#page-panel", state="hidden")
    under = answer.locator(".under:has(.figures)").first
    assert re.match(r"\d+ words · [\d.]+ s", under.inner_text())
    assert "token" not in under.inner_text()
    under.locator(".figures").click()
    assert " ms a token" in under.inner_text()


def round_it(page: Page, data: Path) -> None:
    """Click the button of a model that fits only rounded: the stretched starter, on a machine that says so."""
    page.route("**/preferences", lambda route: fits_only_rounded(route, STARTER_LONG))
    page.click("#open-preferences")
    page.get_by_text("All models", exact=True).click()
    page.get_by_role("button", name="Use rounded", exact=True).click()
    until(page, lambda: page.inner_text("#model-name") == STARTERS[STARTER_LONG], READ_PATIENCE)
    until(page, lambda: page.get_attribute("#trifold", "data-stage") == "ready", READ_PATIENCE)
    kept = json.loads((data / CHOICE).read_text(encoding="utf-8"))
    assert (kept["model"], kept["weights"], kept["kv"]) == (STARTER_LONG, "8bit", "8bit")
    page.keyboard.press("Escape")
