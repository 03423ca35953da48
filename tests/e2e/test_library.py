"""The library in a browser: versions, search, names, deleting; and a program that is killed while it answers."""

from __future__ import annotations

import os
import signal

import pytest
from playwright.sync_api import Browser, Page

from tests.e2e.steps import (
    PATIENCE,
    Server,
    answered,
    ask,
    chat_is_shown,
    clean_page,
    last_answer,
    questions,
    read_text,
    scripted_command,
    until,
    versions,
)
from tests.nursery import Nursery
from tests.processes import free_port, started

# The first time that the page would fetch its chat again, it does not.
_MISS_ONE = """
() => {
  window.missed = 0;
  document.addEventListener('click', (event) => {
    if (event.target.closest('#refresh') && !window.missed) {
      window.missed = 1;
      event.stopImmediatePropagation();
    }
  }, true);
}
"""

_DOT = "getComputedStyle(document.querySelector('.dot')).backgroundColor"


def with_book(page: Page, text: str = "Book The Open Hand", name: str = "open.txt") -> None:
    read_text(page, text, name)
    clean_page(page)


def act(page: Page, name: str) -> None:
    """Press the last button of this kind; it is seen when the pointer is over its message."""
    page.locator(f'#chat button.action[value^="{name}"]').last.dispatch_event("click")


def ask_twice(page: Page) -> None:
    """A question with two answers, about a new book."""
    with_book(page)
    ask(page, "Who kept >>>one<<<")
    answered(page)
    act(page, "again")
    until(page, lambda: versions(page) == ["‹ 2 / 2 ›"])
    answered(page)


def test_questions_and_answers_have_versions(page: Page) -> None:
    ask_twice(page)
    act(page, "edit")
    page.wait_for_selector("#editing")
    assert page.input_value("#ask-box textarea") == "Who kept >>>one<<<"
    page.fill("#ask-box textarea", "Who kept >>>two<<<")
    page.keyboard.press("Enter")
    until(page, lambda: versions(page) == ["‹ 2 / 2 ›"] and questions(page) == 1)
    answered(page)
    until(page, lambda: last_answer(page).startswith("two"))
    page.locator("#chat .user button.arrow").first.click()
    until(page, lambda: last_answer(page).startswith("one") and versions(page) == ["‹ 1 / 2 ›", "‹ 2 / 2 ›"])
    page.reload()
    page.wait_for_selector("#chat .versions")
    assert versions(page) == ["‹ 1 / 2 ›", "‹ 2 / 2 ›"]


def test_another_version_is_shown_although_the_news_of_it_was_missed(page: Page) -> None:
    ask_twice(page)
    page.evaluate(_MISS_ONE)
    page.locator("#chat .bot button.arrow").first.dispatch_event("click")
    until(page, lambda: versions(page) == ["‹ 1 / 2 ›"])
    assert page.evaluate("window.missed") == 1


def test_words_are_found_in_a_chat_about_another_book(page: Page) -> None:
    with_book(page, "Book Fire and Stairs", "stairs.txt")
    ask(page, "Tell >>>the buttermilk was sour<<<")
    answered(page)
    with_book(page, "Book The Nursling", "nursling.txt")
    page.keyboard.press("Control+k")
    page.keyboard.type("butterm")
    page.wait_for_selector("#search-found mark")
    assert page.locator("#search-found mark").first.inner_text() == "buttermilk"
    page.keyboard.press("ArrowDown")
    page.keyboard.type("i")
    assert page.input_value("#search-words") == "buttermi", "who types on means the words"
    page.keyboard.press("Enter")
    until(page, lambda: page.inner_text("#book-title") == "Fire and Stairs")
    until(page, lambda: questions(page) == 1 and "the buttermilk was sour" in last_answer(page))
    assert not page.locator("#search").is_visible()


def test_a_chat_and_a_book_are_renamed_and_the_book_deleted_after_asking(page: Page) -> None:
    with_book(page, "Book To be deleted", "gone.txt")
    ask(page, "Who?")
    answered(page)
    page.locator("#chats button.more").first.dispatch_event("click")
    page.get_by_role("menuitem", name="Rename").click()
    page.keyboard.type("The keepers")
    page.keyboard.press("Enter")
    until(page, lambda: "The keepers" in page.inner_text("#chats"))
    assert "gone.txt" in page.locator("#books .file").first.text_content(), "the file's name stands beside the title"  # type: ignore[operator]
    page.locator('#books button.more[data-title="To be deleted"]').dispatch_event("click")
    page.get_by_role("menuitem", name="Rename").click()
    page.keyboard.type("To go")
    page.keyboard.press("Enter")
    until(page, lambda: page.inner_text("#book-title") == "To go")
    until(page, lambda: page.locator('#books button.more[data-title="To go"]').count() == 1)
    for answer, left in (("Keep it", 1), ("Delete", 0)):
        page.locator('#books button.more[data-title="To go"]').dispatch_event("click")
        page.get_by_role("menuitem", name="Delete…").click()
        page.get_by_role("button", name=answer, exact=True).click()
        until(page, lambda n=left: page.locator('#library button.more[data-title="To go"]').count() == n)  # type: ignore[misc]
    page.wait_for_selector('#trifold[data-stage="empty"]')
    assert page.locator("#drop").is_visible()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_killed_program_is_told_of_once_and_comes_back_with_the_half_answer(
    tmp_path_factory: pytest.TempPathFactory, browser: Browser, nursery: Nursery | None
) -> None:
    """Its own page, unwatched: what a page says while its server is gone is not the matter here."""
    data, port = tmp_path_factory.mktemp("killed"), free_port()
    words = " ".join(f"w{number}" for number in range(400))
    command = scripted_command(port, data)
    with started(command, data, port, nursery=nursery) as process:
        page = enter(browser, Server(port, data))
        with_book(page)
        assert not page.locator("#gone").is_visible()
        green = page.evaluate(_DOT)
        ask(page, f"Say slowly >>>{words}<<<")
        until(page, lambda: "w8 " in last_answer(page))
        seen = numbers(page)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(10)
        page.evaluate("document.querySelector('#refresh').click()")  # as when a record was being fetched
        page.wait_for_selector("#gone", state="visible")
        assert page.inner_text("#gone").startswith("Trifold does not answer. Reconnecting…")
        assert page.evaluate(_DOT) != green
        assert page.inner_text("#model-name") == "Storyteller 27M"
        page.fill("#ask-box textarea", "Is anybody there?")
        page.keyboard.press("Enter")
        page.wait_for_timeout(300)
        assert page.locator(".toast-wrap:visible, #refusal, #toast:visible").count() == 0
    with started(command, data, port, nursery=nursery):
        page.request.get(Server(port, data).login_address())  # as the page that a start opens in this browser does
        until(page, lambda: "cut off when Trifold ended" in page.inner_text("#chat"))  # Gradio loads it anew
        assert not page.locator("#gone").is_visible()
        assert page.evaluate(_DOT) == green
        assert page.input_value("#ask-box textarea") == "Is anybody there?"
        until(page, lambda: questions(page) == 1)
        assert "cut off when Trifold ended" in page.locator("#chat .under").last.inner_text()
        kept = numbers(page)
        assert kept == list(range(len(kept)))
        assert len(kept) > len(seen) - 5  # words of one second, and some
        page.get_by_role("button", name="Continue").click()
        until(page, lambda: len(numbers(page)) > len(kept) + 3)
        grown = numbers(page)
        assert grown == list(range(len(grown)))
        assert questions(page) == 1
        page.close()


def numbers(page: Page) -> list[int]:
    """Which of the counted words stand in the answer."""
    return [int(word[1:]) for word in last_answer(page).split() if word[0] == "w" and word[1:].isdecimal()]


def enter(browser: Browser, server: Server) -> Page:
    page = browser.new_page()
    page.goto(server.login_address())
    page.wait_for_selector("#ask-box textarea", state="attached", timeout=PATIENCE)
    page.wait_for_selector('#trifold[data-live="yes"]')
    chat_is_shown(page)
    return page
