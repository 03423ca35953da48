"""The page by keyboard alone: the focus is always where one would type on, and never lost."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.e2e.steps import (
    PATIENCE,
    answered,
    ask,
    clean_page,
    has_read,
    questions,
    read_text,
    until,
    writing,
)

_FOCUS = """
() => {
  const at = document.activeElement;
  return at.closest('#ask-box') ? 'question' : at === document.body ? 'nothing' : at.id || at.dataset.id || at.tagName;
}
"""


def focus(page: Page) -> str:
    return str(page.evaluate(_FOCUS))


def tab_to(page: Page, wanted: str) -> None:
    for _ in range(40):
        page.keyboard.press("Tab")
        if focus(page) == wanted:
            return
    raise AssertionError(f"no way to {wanted} by Tab")


def test_a_book_is_opened_asked_and_asked_otherwise_by_keys(page: Page) -> None:
    text = b"Book Opened by keys"
    page.evaluate("document.activeElement.blur()")
    if page.locator("#drop").is_visible():
        with page.expect_file_chooser() as chooser:
            tab_to(page, "drop")
            page.keyboard.press("Enter")
        chooser.value.set_files({"name": "keys.txt", "mimeType": "text/plain", "buffer": text})
    else:
        page.set_input_files("#file", {"name": "keys.txt", "mimeType": "text/plain", "buffer": text})
    has_read(page, text)
    until(page, lambda: focus(page) == "question")
    page.keyboard.type("Two")
    page.keyboard.press("Shift+Enter")
    page.keyboard.insert_text(f"lines >>>{' '.join(f'w{number}' for number in range(400))}<<< slowly")
    before = questions(page)
    page.keyboard.press("Enter")
    until(page, lambda: questions(page) == before + 1)
    writing(page)
    nothing_but_the_topmost_closes(page)
    page.keyboard.press("Escape")
    assert page.get_attribute("#trifold", "data-asking") == "yes", "Escape stops no answer"
    tab_to(page, "stop")
    page.keyboard.press("Enter")
    answered(page)
    assert focus(page) == "question"
    page.keyboard.press("ArrowUp")
    page.wait_for_selector("#editing", state="visible")
    assert page.input_value("#ask-box textarea").startswith("Two\nlines")
    page.keyboard.press("Escape")
    page.wait_for_selector("#editing", state="hidden")
    assert page.input_value("#ask-box textarea") == ""


def nothing_but_the_topmost_closes(page: Page) -> None:
    """Opens four parts above each other while an answer is written, and closes one with each Escape."""
    page.click("#open-notes")
    page.click("#map-canvas", position={"x": 5, "y": 5})
    page.wait_for_selector("#page-panel", state="visible")
    page.click("#page-find")
    page.evaluate("document.querySelector('#chats button.more').click()")
    page.keyboard.press("ArrowDown")
    parts = ["#menu", "#find", "#page-panel", "#notes"]
    for closed in range(len(parts) + 1):
        assert [page.locator(part).is_visible() for part in parts] == [at >= closed for at in range(len(parts))]
        if closed < len(parts):
            page.keyboard.press("Escape")
    page.click("#map-canvas", position={"x": 5, "y": 5})
    page.wait_for_selector("#page-panel", state="visible")
    page.click("#open-notes")
    page.keyboard.press("Escape")
    assert [page.locator(part).is_visible() for part in ("#notes", "#page-panel")] == [False, True], (
        "the focus was there"
    )
    page.keyboard.press("Escape")
    page.click("#how > button")
    page.keyboard.press("Escape")
    assert page.locator("#how-parts").is_hidden()
    page.locator("#ask-box textarea").focus()


def test_a_new_name_leaves_the_focus_at_the_chat(page: Page) -> None:
    read_text(page, "Book Named by keys", "named.txt")
    clean_page(page)
    ask(page, "Who?")
    answered(page)
    chat = page.locator('#chats button.open[aria-current="true"]')
    page.wait_for_selector('#chats button.open[aria-current="true"]')
    place = str(chat.get_attribute("data-id"))
    page.click("#begin-chat")
    chat.wait_for(state="detached")
    page.locator(f'#chats button.more[data-id="{place}"]').focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert focus(page) == "INPUT"
    page.keyboard.type("By keys")
    page.keyboard.press("Enter")
    until(page, lambda: "By keys" in page.inner_text("#chats"))
    page.wait_for_timeout(400)
    assert focus(page) == place
    assert chat.count() == 0, "the key that ends the name opens nothing"


def test_a_race_that_was_closed_stays_closed(page: Page) -> None:
    read_text(page, "Book Raced by keys", "raced.txt")
    clean_page(page)
    page.wait_for_selector("#suggestions button")
    page.locator("#race-start").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#race-running", state="visible")
    page.keyboard.press("Escape")
    assert page.locator("#race").is_hidden()
    page.wait_for_selector(
        '#race-start:text-is("Race it against plain"), #race-start:text-is("Show the race")', timeout=PATIENCE
    )
    page.wait_for_timeout(400)
    assert page.locator("#race").is_hidden()
    assert focus(page) == "race-start"
