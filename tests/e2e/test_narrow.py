"""Narrow screens: nothing is cut off or lies over something else, and what was typed is shown as it was typed."""

from __future__ import annotations

from itertools import pairwise

from playwright.sync_api import Page, Route

from tests.e2e.gallery import SAMPLE
from tests.e2e.steps import answered, ask, clean_page, give, give_text, read_text, until
from tests.e2e.test_page_viewer import with_answer

PHONE = (390, 844)
TABLET = (820, 1180)
SMALL_PHONE = (360, 740)
LOW = (640, 400)
SETTLE_MS = 600
# Lines that the progress of reading takes beside its button, within one task: nothing is drawn of it.
_LINES_WHILE_READING = """
() => {
  const [words, button] = ['map-words', 'stop-reading'].map((id) => document.getElementById(id));
  const before = [words.textContent, button.hidden];
  words.textContent = 'Reading 19 pages and 4 sections: 77 % · slower than expected, at least 15 s left';
  button.hidden = false;
  const lines = words.getBoundingClientRect().height / parseFloat(getComputedStyle(words).lineHeight);
  [words.textContent, button.hidden] = before;
  return Math.round(lines);
}
"""


def bottom(page: Page, selector: str) -> float:
    box = page.locator(selector).last.bounding_box()
    assert box is not None
    return box["y"] + box["height"]


def top(page: Page, selector: str) -> float:
    box = page.locator(selector).first.bounding_box()
    assert box is not None
    return box["y"]


def test_a_low_screen_leaves_half_of_it_to_the_chat(page: Page) -> None:
    """At 200 % zoom 70 of 400 pixels were left, and while a book was read 105."""
    page.set_viewport_size({"width": LOW[0], "height": LOW[1]})
    read_text(page, "Low Letters of a Keeper", "low.txt")
    clean_page(page)
    assert top(page, "#ask-row") - bottom(page, "#map") >= LOW[1] / 2
    for tool in page.locator("#top .tf-tool:visible, #map-foot .tf-tool:visible").all():
        box = tool.bounding_box()
        assert box is not None
        middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
        assert tool.evaluate("(tool, [x, y]) => tool.contains(document.elementFromPoint(x, y))", middle), tool
    page.click("#open-find")
    page.wait_for_selector("#find", state="visible")
    page.keyboard.press("Escape")
    page.wait_for_selector("#find", state="hidden")
    give_text(page, "A slow and long book", "slow.txt")
    page.wait_for_selector('#trifold[data-stage="reading"]')
    page.wait_for_selector("#stop-reading", state="visible")
    assert top(page, "#ask-row") - bottom(page, "#map") >= LOW[1] * 0.4
    page.click("#stop-reading")


def test_a_book_that_is_too_long_can_be_asked_at_once_on_every_screen(phone: Page) -> None:
    """The choice of pages stood where the question box is."""
    page = phone
    give_text(page, "HUGE The Annual Report", "report.txt")
    page.wait_for_selector('#trifold[data-stage="choosing"]')
    clean_page(page)
    assert page.inner_text("#choose-lead") == "You can ask at once: answers come from passages of all 600 pages."
    for width, height in (PHONE, LOW, (1280, 800)):
        page.set_viewport_size({"width": width, "height": height})
        until(page, lambda high=height: bottom(page, "#ask-row") <= high)  # type: ignore[misc]
        box = page.locator("#ask-box textarea").bounding_box()
        assert box is not None
        middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
        assert page.evaluate("([x, y]) => document.elementFromPoint(x, y).tagName", middle) == "TEXTAREA"
        assert top(page, "#ask-row") - bottom(page, "#top") >= height * 0.4
    ask(page, "Who kept the north light?")
    answered(page)


def test_a_narrow_screen_cuts_nothing_off(phone: Page) -> None:
    page = phone
    give(page, SAMPLE)
    until(page, lambda: "76 pages" in page.inner_text("#book-line"))
    page.wait_for_selector('#trifold[data-stage="ready"]')
    clean_page(page)
    page.wait_for_selector("#suggestions button")
    until(
        page,
        lambda: page.evaluate(
            "document.querySelector('#card').scrollHeight <= document.querySelector('#card').clientHeight"
        ),
    )
    assert bottom(page, "#suggestions li") <= top(page, "#ask-row")
    page.click("#how > button")
    page.click("#advanced summary")
    page.wait_for_timeout(SETTLE_MS)
    page.locator("#how .numbers input[type='range']").last.scroll_into_view_if_needed()
    assert bottom(page, "#how") <= PHONE[1]
    assert bottom(page, "#how .numbers input[type='range']") <= PHONE[1], "the last of the sliders can be reached"
    page.click("#how > button")
    page.set_viewport_size({"width": SMALL_PHONE[0], "height": SMALL_PHONE[1]})
    tools = [box["y"] for tool in page.locator("#top .tf-tool:visible").all() if (box := tool.bounding_box())]
    assert len(tools) == 5
    assert max(tools) - min(tools) <= 1, "the tools stand in one row"
    assert page.evaluate(_LINES_WHILE_READING) <= 2, "the progress of reading has the width of the screen"
    typed = "1. *Who* kept it?\n\n# And <b>why</b>?"
    ask(page, typed)
    answered(page)
    assert page.locator("#chat .user .asked").inner_text() == typed
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_of_a_server_elsewhere_only_what_is_known_is_shown(page: Page) -> None:
    until(page, lambda: page.get_attribute("#trifold", "data-here") == "yes")
    page.evaluate("document.querySelector('#figures-all').hidden = false")
    page.wait_for_selector("#split", state="attached")
    page.evaluate("document.querySelector('#trifold').dataset.here = 'no'")
    told = page.inner_text("#figures")
    assert "per token" in told
    assert "Guesses kept" not in told
    assert "Memory of the book" not in told
    page.evaluate("document.querySelector('#trifold').dataset.here = 'yes'")


def test_a_tablet_has_room_for_the_title_and_marks_wait_for_their_page(page: Page) -> None:
    page.set_viewport_size({"width": TABLET[0], "height": TABLET[1]})
    with_answer(page)
    page.evaluate("document.querySelector('#setup-chip').hidden = true")  # of a model that another test did not get
    parts = page.locator("#top > *:visible, #book-head > *:visible").all()
    boxes = [box for part in parts if part.get_attribute("id") != "book-head" and (box := part.bounding_box())]
    line = page.locator("#book-head").bounding_box()
    assert line
    boxes = [box for box in boxes if box["y"] < line["y"] + line["height"]]  # numbers that do not fit lie below, hidden
    boxes.sort(key=lambda box: box["x"])
    for left, right in pairwise(boxes):
        assert left["x"] + left["width"] <= right["x"] + 1
    title = page.locator("#book-title")
    assert title.evaluate("(title) => title.scrollWidth <= title.clientWidth"), "the whole title can be read"
    held: list[Route] = []
    page.route("**/*.png", lambda route: held.append(route))
    page.locator("#chat .cite.quoted").first.click()
    page.wait_for_selector("#page-marks i", state="attached")
    until(page, lambda: bool(held))
    assert not page.locator("#page-marks i").first.is_visible()
    before = page.locator("#page-picture").evaluate("(picture) => getComputedStyle(picture).objectPosition")
    assert before.startswith("-"), "no other page is seen under the new name"
    for route in held:
        route.continue_()
    page.wait_for_selector('#page-sheet[data-state="drawn"]')
    page.wait_for_selector("#page-marks i", state="visible")
    page.unroute_all()


def test_a_long_label_of_a_citation_is_seen_whole_on_a_phone(phone: Page) -> None:
    page = phone
    with_answer(page)
    cite, answer = page.locator("#chat .cite.quoted").first, page.locator("#chat .bot.message").last
    short = cite.bounding_box()
    cite.evaluate("(cite) => { cite.textContent = 'word for word, The lease of the boathouse at T…, 6. Ending'; }")
    cite.evaluate("(cite) => cite.classList.add('of-abc')")  # of one of several documents, whose dot ends the label
    long, room = cite.bounding_box(), answer.bounding_box()
    assert short
    assert long
    assert room
    assert long["x"] + long["width"] <= min(room["x"] + room["width"], PHONE[0])
    assert cite.evaluate("(cite) => cite.scrollWidth <= cite.clientWidth")
    assert long["height"] > 1.5 * short["height"], "what does not fit one line takes two"
