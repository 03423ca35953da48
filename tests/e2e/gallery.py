"""Every state of the page as a picture: ``python -m tests.e2e.gallery [FOLDER]``, with the scripted engine.

Writes STATE-wide|phone-dark|light-en|de.png into tests/e2e/screenshots (or FOLDER). For the eye; ``test_page_viewer``
and ``test_states`` look at the same states with rules.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from tests.e2e.steps import (
    PHONE,
    SCREENSHOTS,
    WIDE,
    Scheme,
    Server,
    answered,
    ask,
    clean_page,
    give,
    give_text,
    scripted_command,
    serving,
)
from tests.processes import browser_path, free_port

SAMPLE = Path(__file__).resolve().parents[2] / "assets" / "sample" / "the-lamplighters-of-orre.pdf"
QUESTION = "Where does it say that Maren Holt kept the north light?"
SIZES = {"wide": WIDE, "phone": PHONE}
SCHEMES: tuple[Scheme, ...] = ("dark", "light")
LANGUAGES = ("en", "de")
SETTLE_MS = 450


def press(page: Page, selector: str) -> None:
    """Click what may lie behind a drawer's button on a phone."""
    page.locator(selector).first.evaluate("(button) => button.click()")


def empty(page: Page) -> None:
    page.wait_for_selector("#drop", state="visible")


def reading(page: Page) -> None:
    give_text(page, "A slow and long book", "slow.txt")
    page.wait_for_selector("#stop-reading", state="visible")
    page.wait_for_timeout(900)


def second_book(page: Page) -> None:
    give(page, SAMPLE)
    page.wait_for_selector("#confirm[open]")


def begun(page: Page) -> None:
    page.click("#confirm-yes")
    page.wait_for_selector('#trifold[data-stage="opening"], #trifold[data-stage="reading"]')
    page.wait_for_selector('#trifold[data-stage="ready"]', timeout=60_000)
    clean_page(page)
    page.wait_for_timeout(400)


def answering(page: Page) -> None:
    ask(page, f"{QUESTION} Tell it slowly.")
    page.wait_for_selector("#chat .cite.quoted")


def answer(page: Page) -> None:
    page.keyboard.press("Escape")
    answered(page)
    clean_page(page)
    ask(page, QUESTION)
    answered(page)


def coloured(page: Page) -> None:
    press(page, "#provenance")
    page.wait_for_timeout(600)


def card(page: Page) -> None:
    press(page, "#provenance")
    page.locator("#chat .cite.missing").first.hover()
    page.wait_for_selector("#cite-card", state="visible")


def page_open(page: Page) -> None:
    page.locator("#chat .cite.quoted").first.click()
    page.wait_for_selector('#page-sheet[data-state="drawn"]')
    page.wait_for_selector("#page-marks i")


def noted(page: Page) -> None:
    """The notes of two sentences."""
    page.keyboard.press("Escape")
    for at in (0, 1):
        press(page, "#chat button.action[value^='note:']")
        page.locator("#note-sentences li button").nth(at).click()
        page.wait_for_selector("#note-sentences", state="hidden")
    press(page, "#open-notes")
    page.locator("#notes .note").nth(1).wait_for()


def chapters(page: Page) -> None:
    press(page, "#notes-close")
    press(page, "#open-contents")
    page.wait_for_selector("#contents .chapter")


def finding(page: Page) -> None:
    press(page, "#contents-close")
    press(page, "#open-find")
    page.fill("#find-words", "north light")
    page.wait_for_selector("#find-hits button")
    page.wait_for_selector("#page-marks i")  # the page of the citation is left with its marks before
    page.wait_for_selector('#page-sheet[data-state="drawn"]')


def race_running(page: Page) -> None:
    page.keyboard.press("Escape")
    press(page, "#race-start")
    page.wait_for_selector("#race-running", state="visible")
    page.wait_for_timeout(700)


def race_replay(page: Page) -> None:
    race_over(page)
    page.click("#race-replayed")
    page.wait_for_timeout(200)


def race_over(page: Page) -> None:
    page.wait_for_selector('#race-end[data-state="over"]', timeout=60_000)


def page_of_text(page: Page) -> None:
    page.keyboard.press("Escape")
    give_text(page, "Words Letters of a Keeper", "letters.txt")
    page.wait_for_selector('#trifold[data-stage="ready"]')
    page.wait_for_timeout(600)
    clean_page(page)
    ask(page, ">>>It says “lamp3 lamp4 lamp5 lamp6 lamp7” there.<<<")
    answered(page)
    page.locator("#chat .cite.quoted").first.click()
    page.wait_for_selector("#page-text mark")


def several(page: Page) -> None:
    page.keyboard.press("Escape")
    page.set_input_files(
        "#more-file", {"name": "logs.txt", "mimeType": "text/plain", "buffer": b"SHORT Logs of a Keeper"}
    )
    page.wait_for_selector("#confirm[open]")
    page.click("#confirm-yes")
    page.wait_for_selector('#trifold[data-stage="ready"]:has(#documents li + li)', timeout=60_000)
    shelf(page)


def each(page: Page) -> None:
    page.click("#open-each")
    page.fill("#each-question", "Who kept the north light?")
    page.keyboard.press("Enter")
    page.locator("#each-rows .answer").nth(1).wait_for()
    page.wait_for_timeout(2_000)


def searching(page: Page) -> None:
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.keyboard.type("north light")
    page.wait_for_selector("#search-found mark")


def models(page: Page) -> None:
    page.keyboard.press("Escape")
    press(page, "#open-preferences")
    page.wait_for_selector("#model-cards > li")


def reading_tab(page: Page) -> None:
    page.click('[data-tab="reading"]')


def other_programs(page: Page) -> None:
    page.click('[data-tab="api"]')


def another_server(page: Page) -> None:
    page.click('[data-tab="remote"]')
    page.fill("#remote-address", "http://cluster.example:8000/v1")
    page.wait_for_selector("#remote-agree", state="visible")


def server_refused(page: Page) -> None:
    page.fill("#remote-address", "http://127.0.0.1:9/v1")
    page.click("#remote-form button[type=submit]")
    page.wait_for_selector("#setup-trouble", state="visible")


def help_tab(page: Page) -> None:
    page.click('[data-tab="help"]')
    page.click("#report-make")
    page.wait_for_selector("#report", state="visible")


def shelf(page: Page) -> None:
    """A drawer on a phone; always there on a wide screen."""
    page.keyboard.press("Escape")
    if page.locator("#open-shelf").is_visible():
        page.click("#open-shelf")


def figures(page: Page) -> None:
    page.keyboard.press("Escape")
    if page.locator("#open-figures").is_visible():
        page.click("#open-figures")


def how(page: Page) -> None:
    page.keyboard.press("Escape")
    page.click("#how > button")


def library(page: Page) -> None:
    page.click("#how > button")
    page.locator("#books button.more").first.dispatch_event("click")
    page.get_by_role("menuitem").first.click()  # closes the open book
    page.wait_for_selector('#trifold[data-stage="empty"] #library li')


def locked(page: Page) -> None:
    give_text(page, "LOCKED book", "locked.txt")
    page.wait_for_selector("#password", state="visible")
    give_text(page, "", "empty.txt")
    page.wait_for_selector("#trouble-cause", state="visible")


def error(page: Page) -> None:
    give_text(page, "BROKEN book", "broken.txt")
    page.wait_for_selector("#trouble-cause", state="visible")


STATES: tuple[Callable[[Page], None], ...] = (
    empty,
    reading,
    second_book,
    begun,
    answering,
    answer,
    coloured,
    card,
    page_open,
    noted,
    chapters,
    finding,
    race_running,
    race_replay,
    race_over,
    page_of_text,
    several,
    each,
    searching,
    models,
    reading_tab,
    other_programs,
    another_server,
    server_refused,
    help_tab,
    shelf,
    figures,
    how,
    library,
    locked,
    error,
)


def visit(browser: Browser, server: Server, size: str, scheme: Scheme, language: str, folder: Path) -> None:
    """Walk through all states in one browser and take their pictures."""
    width, height = SIZES[size]
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme, locale=language)
    page.goto(server.login_address())
    page.wait_for_selector("#ask-box textarea", state="attached", timeout=60_000)
    page.wait_for_selector('#trifold[data-live="yes"]')
    for state in STATES:
        state(page)
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=str(folder / f"{state.__name__.replace('_', '-')}-{size}-{scheme}-{language}.png"))
    page.close()


def main(folder: Path, chromium: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for size, scheme, language in product(SIZES, SCHEMES, LANGUAGES):
            with tempfile.TemporaryDirectory() as data:
                port = free_port()
                with serving(scripted_command(port, Path(data)), Path(data), port) as server:
                    visit(browser, server, size, scheme, language, folder)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else SCREENSHOTS, browser_path() or "chromium")
