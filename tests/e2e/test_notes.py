"""Notes in a real browser: from the picture of a page to an answer that comes from them."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.e2e.steps import PHONE, Open, Server, answered, ask, questions, until
from tests.e2e.test_page_viewer import QUOTE, fine, open_quote, with_answer

NOTED = "The tower was not large."
ANOTHER_BOOK = """
import("/ui/notes.js").then((notes) => notes.showNotes({ version: "b-1", count: 0, on_pages: 0, asked: false }))
"""
DELETE_LAST = """
const { id } = document.querySelector("#notes-list").lastChild.dataset;
fetch("/notes/delete", { method: "POST", body: JSON.stringify({ id }) });
"""
CHANGE_FIRST = """
async () => {
  const { id, colour } = document.querySelector("#notes-list").firstChild.dataset;
  await fetch("/notes/change", { method: "POST", body: JSON.stringify({ id, colour, words: "Of another tab" }) });
}
"""
OWN = "Compare the lamp of the harbour"


def select_on_picture(page: Page, words: str) -> None:
    """Drag the mouse over words of the page's picture."""
    page.wait_for_selector("#page-letters span")
    texts = [text.strip() for text in page.locator("#page-letters span").all_text_contents()]
    wanted = words.split()
    first = next(at for at in range(len(texts)) if texts[at : at + len(wanted)] == wanted)
    start, end = (page.locator("#page-letters span").nth(at).bounding_box() for at in (first, first + len(wanted) - 1))
    assert start is not None
    assert end is not None
    page.mouse.move(start["x"] + 1, start["y"] + start["height"] / 2)
    page.mouse.down()
    page.mouse.move(end["x"] + end["width"] - 1, end["y"] + end["height"] / 2, steps=3)
    page.mouse.up()
    page.wait_for_selector("#note-bar", state="visible")


def test_a_passage_becomes_a_note_and_notes_answer(scripted: Server, open_page: Open) -> None:
    page = open_page(scripted)
    with_answer(page)
    open_quote(page)
    select_on_picture(page, NOTED)
    fine(page)
    page.click("#note-bar [data-colour=green]")
    until(page, lambda: page.locator("#page-noted i").count() == 1)
    page.keyboard.press("Escape")
    page.focus("#chat button.action[value^='note:']")  # of the answer, without a mouse
    page.keyboard.press("Enter")
    page.wait_for_selector("#note-sentences[open]")
    page.keyboard.press("Tab")  # the first sentence, "Maren Holt did.", only repeats the question: it cites nothing
    page.keyboard.press("Enter")
    page.wait_for_selector("#note-sentences", state="hidden")
    until(page, lambda: page.inner_text("#notes-count") == "2")
    page.focus("#open-notes")
    page.keyboard.press("Enter")
    until(page, lambda: page.locator("#notes .note").count() == 2)
    first, second = page.locator("#notes .note").all()
    assert NOTED in first.inner_text()
    assert "p. 39" in second.inner_text()
    assert "The book says that" in second.inner_text()
    assert QUOTE in second.inner_text()
    fine(page)
    words = second.get_by_text("Add words").bounding_box()
    assert words is not None
    page.mouse.move(words["x"] + words["width"] / 2, words["y"] + words["height"] / 2)
    page.mouse.down()
    page.evaluate("fetch('/notes/add', { method: 'POST', body: JSON.stringify({ page: 70 }) })")
    until(page, lambda: page.locator("#notes .note").count() == 3)
    page.mouse.up()  # it was lost when the list was drawn anew meanwhile
    page.locator("#notes .note form").wait_for()
    page.keyboard.press("Escape")
    page.locator("#notes .note form").wait_for(state="detached")
    page.evaluate(DELETE_LAST)
    until(page, lambda: page.locator("#notes .note").count() == 2)
    first.get_by_text("Add words").click()
    page.evaluate(CHANGE_FIRST)
    page.keyboard.type(OWN)
    page.keyboard.press("Control+Enter")  # another tab was faster: its words are shown, and ours stay in the field
    until(page, lambda: page.locator("#notes .meanwhile span").all_inner_texts() == ["Of another tab"])
    assert page.input_value("#notes textarea") == OWN
    fine(page)
    page.keyboard.press("Control+Enter")
    until(page, lambda: page.locator("#notes .words").all_inner_texts() == [OWN])
    page.fill("#notes-words", "HÁRBOUR")
    until(page, lambda: page.inner_text("#notes-said") == "1 of 2 notes")
    page.locator("#notes .open").click()
    page.wait_for_selector("#page-marks i")
    assert page.inner_text("#page-said") == OWN
    page.keyboard.press("Escape")
    page.fill("#notes-words", "")
    until(page, lambda: page.locator("#notes .note").count() == 2)
    page.locator("#notes .note").nth(1).get_by_text("Delete").click()
    page.locator("#notes .gone button").click()
    until(page, lambda: page.locator("#notes .note").count() == 2 and page.locator("#notes .gone").count() == 0)
    page.click("#notes-ask")
    until(page, lambda: page.inner_text("#book-title").startswith("Notes on"))
    page.wait_for_selector('#trifold[data-stage="ready"]')
    until(page, lambda: questions(page) == 0)  # a chat of its own
    ask(page, f">>>The book says: “{NOTED}” I thought so.<<<")
    answered(page)
    page.locator("#chat .cite.quoted").click()
    page.wait_for_selector("#page-marks i")
    assert page.inner_text("#page-name") == "Page 39 of 76"
    assert page.inner_text("#chat .cite.quoted") == "in your notes, p. 39"
    page.keyboard.press("Escape")
    page.click("#notes-leave")
    until(page, lambda: page.inner_text("#book-line").startswith("76 pages"))
    page.wait_for_selector('#trifold[data-stage="ready"]')
    delete = page.locator("#notes .note .tools button:last-child").first
    delete.evaluate("(button) => { button.click(); button.click(); }")  # the second one asks for nothing
    page.locator("#notes .gone").wait_for()
    until(page, lambda: page.locator("#notes .note").count() == 1)
    page.locator("#notes .note .tools button:last-child").click()
    until(page, lambda: page.inner_text("#notes-count") == "" and page.locator("#notes .gone").count() == 2)
    page.evaluate(ANOTHER_BOOK)
    until(page, lambda: page.locator("#notes .gone").count() == 0)
    page.click("#notes-close")
    until(page, lambda: questions(page) == 1 and page.locator("#chat .cite.missing").count() > 0)  # the one before
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#chat .bot .prose p'))")
    page.wait_for_selector("#note-bar", state="visible")
    box = page.locator("#note-bar").bounding_box()
    assert box is not None
    assert PHONE[1] - 80 < box["y"] < PHONE[1] - box["height"], "at the foot, out of the way of the phone's own"
    fine(page)
    page.locator("#note-bar .colour").first.click()
    page.wait_for_selector("#toast", state="visible")
    page.evaluate("document.querySelector('#open-notes').click()")
    assert not page.locator("#toast").is_visible(), "it lay over the panel that it names"
