"""What a person does with the page, as steps that the browser tests share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page

from app.tickets import opening_address

SCREENSHOTS = Path(__file__).resolve().parent / "screenshots"
READ_SECONDS = 120_000  # milliseconds, as Playwright counts; a busy machine reads slowly
WIDE = (1400, 900)
PHONE = (390, 844)

Open = Callable[..., Page]


@dataclass(frozen=True)
class Server:
    """A server process and how to get in."""

    port: int
    data: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ticket(self) -> str:
        return opening_address(self.data, self.port)


def until(page: Page, holds: Callable[[], bool], seconds: float = 30.0) -> None:
    """Look again until something holds. (Playwright's own way evaluates a string, which the page's policy forbids.)"""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never happened"
        page.wait_for_timeout(40)


def questions(page: Page) -> int:
    return page.locator("#chat .user").count()


def clean_page(page: Page) -> None:
    """A new chat, through the page's own button."""
    page.evaluate("document.querySelector('#fresh').click()")
    until(page, lambda: questions(page) == 0)


def give(page: Page, file: Path) -> None:
    """Hand a file to the page, as a person does."""
    page.set_input_files("#file", str(file))


def give_text(page: Page, text: str, name: str = "book.txt") -> None:
    page.set_input_files("#file", {"name": name, "mimeType": "text/plain", "buffer": text.encode()})


def ask(page: Page, question: str) -> None:
    """Type a question, send it, and wait until the page has taken it or said why not."""
    before = questions(page), page.locator("#chat .trouble").count()
    page.fill("#ask-box textarea", question)
    page.keyboard.press("Enter")
    until(page, lambda: (questions(page), page.locator("#chat .trouble").count()) != before)


def answered(page: Page, timeout: int = READ_SECONDS) -> None:
    """Wait until this tab's question has been answered or stopped."""
    page.wait_for_selector("#send", state="visible", timeout=timeout)
    page.wait_for_selector('#trifold[data-asking="no"]', timeout=timeout)


def reload(page: Page) -> None:
    """Reload when Gradio has closed the stream of the last answer; cutting it off writes to the console."""
    page.wait_for_timeout(1000)
    page.reload()


def last_answer(page: Page) -> str:
    return page.locator("#chat .bot .prose").last.inner_text()


def short_answers(page: Page, tokens: int = 32) -> None:
    """Set the length of answers, through the page's own control."""
    if not page.locator("#sampling").is_visible():
        page.click("#how > button")
    field = page.get_by_label("number input for Length")
    field.fill(str(tokens))
    field.press("Tab")
    page.click("#how > button")


def rambling_answers(page: Page) -> None:
    """Set the temperature so high that an answer hardly ends by itself, through the page's own control."""
    if not page.locator("#sampling").is_visible():
        page.click("#how > button")
    field = page.get_by_label("number input for Temperature")
    field.fill("2")
    field.press("Tab")
    page.click("#how > button")
