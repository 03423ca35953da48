"""Two answers: from passages at once, and from the whole book when it has been read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.e2e.conftest import Kept
from tests.e2e.steps import Server, answered, ask, clean_page, give_text, until

LATER = "Book One that is read later"
YEAR = "And in which year was lamp7 lit?"


def reading(page: Page) -> None:
    """Open the book anew, with a reading that waits."""
    give_text(page, LATER)
    until(page, lambda: page.get_attribute("#trifold", "data-stage") in ("reading", "ready"))
    if page.get_attribute("#trifold", "data-stage") == "ready":
        page.evaluate("fetch('/reading/again', { method: 'POST', body: '{}' })")
    page.wait_for_selector('#trifold[data-stage="reading"]')
    clean_page(page)


@pytest.fixture
def page(kept: Kept, scripted: Server) -> Iterator[Page]:
    """The page as a newcomer sees it."""
    with kept(scripted, demo=False) as shared:
        yield shared


def test_the_whole_book_answers_in_place_of_passages(page: Page) -> None:
    reading(page)
    until(page, lambda: page.inner_text("#hint-words").startswith("Answers from passages at once"))
    ask(page, YEAR)
    answered(page)
    answer = page.locator("#chat .bot").first
    assert "in 1911." in answer.inner_text()
    assert "The answer from all 60 pages follows by itself." in answer.inner_text()
    assert answer.get_by_role("button", name="Enough").is_visible()
    ask(page, "Would you read on?")
    until(page, lambda: page.locator("#chat .first-answer").count() == 2)
    answered(page)
    until(page, lambda: page.locator("#chat .first-answer[open]").count() == 0)
    assert "From all 60 pages. The first answer says 1911, where this one says 1912." in answer.inner_text()
    assert "in 1911." not in answer.inner_text(), "it is folded"
    assert page.get_by_role("button", name="Enough").count() == 0
    page.locator("#chat .first-answer summary").first.click()
    assert "in 1911." in answer.inner_text()
    numbers = page.locator("#chat .bot").first.locator(".cite").evaluate_all("all => all.map((one) => one.value)")
    assert len(set(numbers)) == len(numbers)


def test_enough_keeps_the_answer_from_passages(page: Page) -> None:
    reading(page)
    ask(page, YEAR)
    answered(page)
    page.get_by_role("button", name="Enough").click()
    whole = page.get_by_role("button", name="Ask the whole book")
    until(page, lambda: whole.count() == 1 and page.get_by_role("button", name="Enough").count() == 0)
    page.evaluate("fetch('/reading/stop', { method: 'POST', body: '{}' })")
    page.wait_for_selector('#trifold[data-stage="ready"]')
    assert "in 1911." in page.locator("#chat .bot").first.inner_text()
    whole.click()
    until(page, lambda: "in 1912." in page.locator("#chat .bot").first.inner_text())
    answered(page)


def test_what_answers_come_from_is_set_and_said(page: Page) -> None:
    reading(page)

    def choose(words: str) -> None:
        page.click("#open-preferences")
        page.get_by_role("tab", name="Reading").click()
        page.select_option("#source", label=words)
        page.keyboard.press("Escape")

    choose("passages only: no book is read")
    page.wait_for_selector('#trifold[data-stage="unread"]')
    assert "nothing is read" in page.inner_text("#hint-words")
    ask(page, YEAR)
    answered(page)
    said = page.locator("#chat .bot").first.inner_text()
    assert "Your settings say that no more is read." in said
    assert "in 1911." in said
    assert page.locator("#chat").get_by_role("button", name="Ask the whole book").count() == 0
    choose("the whole book: a question waits until it has been read")
    page.wait_for_selector('#trifold[data-stage="reading"]')
    page.reload()
    page.wait_for_selector('#trifold[data-stage="reading"]')
    assert page.input_value("#source") == "whole"
    ask(page, YEAR)
    until(page, lambda: "as soon as it has been read" in page.inner_text("#chat"))
    page.click("#stop")
    answered(page)
    choose("passages at once, then the whole book")
    page.evaluate("fetch('/reading/stop', { method: 'POST', body: '{}' })")
    page.wait_for_selector('#trifold[data-stage="ready"]')
