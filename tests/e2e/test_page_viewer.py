"""The pages behind the words in a real browser: citations, the page beside the chat, the map, colours, the race."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route

from tests.e2e.gallery import QUESTION, SAMPLE, press
from tests.e2e.steps import PHONE, WIDE, Open, Server, answered, ask, clean_page, give, give_text, until, versions
from tests.e2e.test_states import CONTRAST
from tests.real import LONG

QUOTE = "Maren Holt kept the north light, as her mother had kept it before her"


@pytest.fixture
def page(page: Page) -> Iterator[Page]:
    """The page of all tests, without a page of a book beside the chat afterwards."""
    yield page
    if page.locator("#page-panel").is_visible():
        page.click("#page-close")
        page.wait_for_selector("#page-panel", state="hidden")


def with_answer(page: Page) -> None:
    """The sample book, open, and an answer with a true and a false quotation."""
    if page.inner_text("#book-title") != "The Lamplighters of Orre" or "76 pages" not in page.inner_text("#book-line"):
        give(page, SAMPLE)
        until(page, lambda: "76 pages" in page.inner_text("#book-line"))
        page.wait_for_selector('#trifold[data-stage="ready"]')
    clean_page(page)
    ask(page, QUESTION)
    answered(page)
    page.wait_for_selector("#chat .cite.quoted")


def open_quote(page: Page) -> None:
    page.locator("#chat .cite.quoted").first.click()
    page.wait_for_selector('#page-sheet[data-state="drawn"]')
    page.wait_for_selector("#page-marks i")


TOLD = "import('/ui/frame.js').then((frame) => frame.tell({ cause: 'Noted, p. 39.', remedy: 'It has words.' }))"
CUT = "(name => name.scrollWidth > name.clientWidth)(document.querySelector('#page-name'))"


def show_words(page: Page) -> None:
    """Switch to what the model read of the page with the quotation, and see that it is that, to the letter."""
    page.click("#page-words")
    page.wait_for_selector("#page-text mark")
    assert page.get_attribute("#page-words", "aria-pressed") == "true"
    assert page.inner_text("#page-text mark") == QUOTE
    told = page.evaluate("fetch('/pages/39').then((answer) => answer.json())")
    assert page.text_content("#page-text") == told["text"]
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#page-text'))")
    assert QUOTE in page.evaluate("getSelection().toString()")
    page.evaluate("getSelection().empty()")
    fine(page)


def fine(page: Page) -> None:
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_citation_says_what_it_knows_and_opens_its_page(page: Page) -> None:
    with_answer(page)
    assert page.locator("#chat .cite.quoted").first.inner_text() == "verified, p. 39"
    assert page.locator("#chat .cite.missing").first.inner_text() == "not found"
    page.locator("#chat .cite.quoted").first.hover()
    page.wait_for_selector("#cite-card", state="visible")
    assert page.locator("#cite-card mark").inner_text() == QUOTE
    open_quote(page)
    page.wait_for_selector("#cite-card", state="hidden")
    assert page.inner_text("#page-name") == "Page 39 of 76"
    assert page.locator("#page-marks i").count() == 2
    assert page.evaluate("document.querySelector('#page-picture').naturalWidth") >= 600
    chat, panel = page.locator("#chat").bounding_box(), page.locator("#page-panel").bounding_box()
    assert chat is not None
    assert panel is not None
    assert chat["x"] + chat["width"] <= panel["x"] + 1, "the page stands beside the chat"
    fine(page)
    assert page.locator("#page-text").is_hidden()
    show_words(page)
    picture, text = page.locator("#page-picture").bounding_box(), page.locator("#page-text").bounding_box()
    assert picture is not None
    assert text is not None
    assert picture["x"] + picture["width"] <= text["x"], "they stand side by side"
    page.click("#page-after")
    until(page, lambda: page.inner_text("#page-name").startswith("Page 40"))
    assert QUOTE not in (page.text_content("#page-text") or QUOTE)
    assert page.inner_text("#page-said") == "", "what was said of page 39 stood above page 40"
    page.click("#page-words")
    assert page.locator("#page-text").is_hidden()
    assert page.locator("#page-marks i").count() == 0
    page.focus("#page-panel")
    page.keyboard.press("ArrowLeft")
    until(page, lambda: page.inner_text("#page-name").startswith("Page 39"))
    until(page, lambda: page.inner_text("#page-said").startswith("These words stand in the book"))
    before = page.locator("#page-picture").bounding_box()
    assert before
    page.click("#page-larger")
    until(page, lambda: (page.locator("#page-picture").bounding_box() or before)["width"] > 1.3 * before["width"])
    page.keyboard.press("Escape")
    page.wait_for_selector("#page-panel", state="hidden")
    assert page.evaluate("document.activeElement.className").startswith("cite")
    says = page.locator("#chat .cite.says").first  # of a sentence that quotes nothing
    assert says.text_content() == "p. 39 says so"
    says.evaluate("(cite) => cite.classList.add('of-abc')")  # of one of several documents
    closed = says.evaluate("(cite) => getComputedStyle(cite, '::after').content")
    assert closed == '"]"', "the document's colour takes the place of no bracket"
    heard = says.locator(".unseen").bounding_box()
    assert heard is not None
    assert heard["width"] <= 1, "the last words are for the ear"
    says.focus()
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    page.wait_for_selector("#cite-card", state="visible")
    assert page.locator("#cite-card mark").inner_text().startswith("She was a long woman")
    page.keyboard.press("Enter")
    page.wait_for_selector("#page-marks i")
    assert page.inner_text("#page-name") == "Page 39 of 76"


# What a phone does for a long press and two dragged handles: no event of a mouse.
SELECT = """
([from, to]) => {
  const words = [...document.querySelectorAll("#page-letters span")];
  [from, to] = [from, to].map((at) => (at + words.length) % words.length);
  getSelection().setBaseAndExtent(words[from].firstChild, 0, words[to].firstChild, words[to].textContent.length);
  words[from].dispatchEvent(new PointerEvent("contextmenu", { bubbles: true, cancelable: true, pointerType: "touch" }));
}
"""
AT_THE_FOOT = """
() => {
  const { bottom } = document.querySelector("#page-sheet").getBoundingClientRect();
  document.querySelector("#page-sheet").style.marginTop = `${innerHeight - bottom}px`;
}
"""
# Some phones end the selection before the touch becomes a click.
END_AT_TOUCH = """
addEventListener("touchstart", () => {
  getSelection().empty();
  document.dispatchEvent(new Event("selectionchange"));
}, { capture: true, once: true });
"""
# Points between lines and beside them at which a dragged handle would leave the text, and so select the whole page.
OFF_THE_TEXT = """
() => {
  const layer = document.querySelector("#page-letters");
  const box = layer.getBoundingClientRect();
  const off = [];
  for (let x = 0.01; x < 1; x += 0.035) {
    for (let y = box.top + 1; y < Math.min(box.bottom, innerHeight); y += 3) {
      const found = document.caretRangeFromPoint(box.left + x * box.width, y)?.startContainer;
      if (!(found instanceof Text && layer.contains(found))) off.push([x, Math.round(y)]);
    }
  }
  return off;
}
"""
BAR_IS_SEEN = """
() => {
  const bar = document.querySelector("#note-bar").getBoundingClientRect();
  const { offsetLeft, offsetTop, width, height, scale } = visualViewport;
  return [scale, bar.left >= offsetLeft, bar.right <= offsetLeft + width, bar.bottom <= offsetTop + height,
    bar.height * scale >= 44, bar.top > offsetTop + height / 2];
}
"""


def note_by_touch(page: Page) -> None:
    """Mark words on the picture as a phone does, and note them; a page that two fingers enlarged shows the bar too."""
    phone = page.context.new_cdp_session(page)
    page.wait_for_selector("#page-letters span")
    assert page.evaluate(OFF_THE_TEXT) == []
    word = page.locator("#page-letters span").nth(30).bounding_box()
    assert word is not None
    at = [{"x": word["x"] + 2, "y": word["y"] + 2}]
    phone.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": at})
    page.evaluate(SELECT, [30, 45])
    phone.send("Input.dispatchTouchEvent", {"type": "touchCancel", "touchPoints": []})
    page.wait_for_selector("#note-bar", state="visible")
    assert page.evaluate(BAR_IS_SEEN) == [1, True, True, True, True, True], "away from the phone's own menu"
    page.evaluate("document.querySelector('#page-body').scrollBy(0, 40)")
    phone.send("Emulation.setPageScaleFactor", {"pageScaleFactor": 2})
    until(page, lambda: page.evaluate(BAR_IS_SEEN) == [2, True, True, True, True, True])
    phone.send("Emulation.setPageScaleFactor", {"pageScaleFactor": 1})
    until(page, lambda: page.evaluate(BAR_IS_SEEN)[0] == 1)
    page.evaluate(AT_THE_FOOT)
    page.evaluate(SELECT, [-20, -1])
    until(page, lambda: page.evaluate(BAR_IS_SEEN)[-1] is False)  # at the head: the handles are at the foot
    page.evaluate(END_AT_TOUCH)
    button = page.locator("#note-bar [data-colour=green]").bounding_box()
    assert button is not None
    page.touchscreen.tap(button["x"] + 10, button["y"] + 10)
    until(page, lambda: page.locator("#page-noted i").count() > 0)
    page.wait_for_selector("#note-bar", state="hidden")
    page.click("#toast")


def test_on_a_phone_the_page_is_the_whole_screen(scripted: Server, open_page: Open) -> None:
    page = open_page(scripted, PHONE, "light")
    with_answer(page)
    open_quote(page)
    panel = page.locator("#page-panel").bounding_box()
    under = page.locator("#chat .under").last.bounding_box()
    assert under is not None
    assert under["height"] < 45, "its line takes two rows"
    assert panel == {"x": 0, "y": 0, "width": PHONE[0], "height": PHONE[1]}
    fine(page)
    note_by_touch(page)
    assert page.evaluate(CUT) is False
    page.evaluate("document.querySelector('#page-name').innerHTML = 'Seite 1024 <small>von 1372</small>'")
    assert page.evaluate(CUT) is False, "a name in German has the room that it needs"
    page.evaluate(TOLD)
    page.wait_for_selector("#toast", state="visible")
    toast, body = page.locator("#toast").bounding_box(), page.locator("#page-body").bounding_box()
    assert toast is not None
    assert body is not None
    free = page.evaluate("parseFloat(getComputedStyle(document.querySelector('#page-body')).paddingBottom)")
    assert body["y"] + body["height"] - free <= toast["y"], "the end of the page can be scrolled up from below it"
    page.click("#toast")
    page.wait_for_selector("#toast", state="hidden")
    show_words(page)
    assert page.locator("#page-picture").is_hidden(), "words stand in the place of the picture"
    page.click("#page-close")
    page.wait_for_selector("#page-panel", state="hidden")


def test_the_map_opens_pages_with_the_mouse_and_the_keys(page: Page) -> None:
    with_answer(page)
    box = page.locator("#map-canvas").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 9.5 / 76, box["y"] + box["height"] - 4)
    until(page, lambda: page.inner_text("#page-name") == "Page 10 of 76")
    page.keyboard.press("Escape")
    page.focus("#map-canvas")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    chosen = page.inner_text("#map-tip").removeprefix("page ")
    page.keyboard.press("Enter")
    until(page, lambda: page.inner_text("#page-name") == f"Page {chosen} of 76")


def test_words_are_found_and_chapters_are_asked_about_without_a_mouse(page: Page) -> None:
    with_answer(page)
    page.fill("#ask-box textarea", "/find maren HOLT")
    page.keyboard.press("Enter")
    page.wait_for_selector("#page-marks i.now")
    assert page.evaluate("document.activeElement.id") == "find-words"
    places = page.locator("#find-hits button").count()
    assert page.inner_text("#find-said") == f"{places} places"
    first = page.inner_text("#page-name")
    page.keyboard.press("Shift+Enter")
    until(page, lambda: page.inner_text("#find-at") == f"{places} of {places}")
    until(page, lambda: page.inner_text("#page-name") != first)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    until(page, lambda: page.inner_text("#page-name") == first)
    until(page, lambda: page.locator("#page-marks i.now").count() > 0)
    fine(page)
    with page.expect_request("**/notes/add") as noted:
        page.click("#page-note")
    kept = (noted.value.post_data_json or {})["passage"]
    assert "Maren Holt" in kept
    assert len(kept) > len("Maren Holt") + 5, "a note of a hit keeps its line"
    page.focus("#find-words")
    page.keyboard.press("Escape")
    until(page, lambda: page.locator("#find").is_hidden() and page.locator("#page-marks i").count() == 0)
    page.keyboard.press("Control+f")
    assert page.locator("#find").is_visible()
    for _ in range(2):
        page.keyboard.press("Escape")
    page.wait_for_selector("#page-panel", state="hidden")
    assert page.evaluate("document.activeElement.tagName") == "TEXTAREA"
    page.click("#open-contents")
    page.wait_for_selector("#contents .chapter")
    asks = page.locator("#contents .chapter").nth(1).locator(".tf-link").all_inner_texts()
    assert asks == ["Summarize"], "one question about a chapter"
    until(page, lambda: page.evaluate("document.activeElement.matches('#contents button.open')"))
    assert page.locator("#contents i[data-image^=linear]").count() > 0, "what was read for the answer glows"
    fine(page)
    page.set_viewport_size({"width": WIDE[0] // 2, "height": WIDE[1] // 2})  # 200 % zoom
    chapters = page.locator("#contents-list").bounding_box()
    assert chapters is not None
    assert chapters["height"] > WIDE[1] / 3, "the chapters have the room of the header"
    fine(page)
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    page.wait_for_selector("#contents [aria-current=location]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#page-panel", state="hidden")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    until(page, lambda: "Summarize the chapter" in page.locator("#chat .asked").last.inner_text())
    answered(page)
    page.click("#contents-close")
    page.wait_for_selector("#contents", state="hidden")


def test_a_book_without_pictures_shows_its_text(scripted: Server, open_page: Open) -> None:
    page = open_page(scripted, scheme="light")
    give_text(page, "Words <b>Letters</b>", "letters.txt")
    until(page, lambda: "<b>Letters</b>" in page.inner_text("#book-title"))
    page.wait_for_selector('#trifold[data-stage="ready"]')
    clean_page(page)
    ask(page, ">>>It says “lamp3 lamp4 lamp5 lamp6 lamp7” there.<<<")
    answered(page)
    page.locator("#chat .cite.quoted").first.click()
    page.wait_for_selector("#page-text mark")
    assert page.inner_text("#page-text mark") == "lamp3 lamp4 lamp5 lamp6 lamp7"
    assert page.locator("#page-text").inner_text().count("lamp3 lamp4 lamp5") == 3
    assert page.locator("#page-picture").is_hidden()
    assert page.locator("#page-words").is_hidden(), "the text is all that there is to see"
    fine(page)


# The numbers between the arrows of versions, and other words of ours, are nobody's guesses.
PAINTED = """
() => Object.fromEntries([...CSS.highlights].map(([name, marks]) => [name, [...marks].map((mark) =>
  mark.startContainer.data.slice(mark.startOffset, mark.endOffset)).join('')]))
"""


def test_words_are_coloured_by_who_wrote_them(page: Page) -> None:
    with_answer(page)
    assert page.evaluate(PAINTED) == {}
    page.click("#provenance")
    until(page, lambda: len(page.evaluate(PAINTED)) == 4)
    painted = page.evaluate(PAINTED)
    letters = [sum(map(str.isalpha, words)) for words in painted.values()]
    answer = page.evaluate(
        "[...document.querySelectorAll('#chat .bot .prose > p')].slice(0, 2).map((p) => {const c = p.cloneNode(true);"
        " c.querySelectorAll('button').forEach((b) => b.remove()); return c.textContent}).join('')"
    )
    assert sum(letters) == sum(map(str.isalpha, answer))
    assert painted["provenance-target"].startswith("Maren")  # every ninth word is the large model's own
    fine(page)
    page.locator('#chat button.action[value^="again"]').last.dispatch_event("click")
    until(page, lambda: versions(page) == ["‹ 2 / 2 ›"])
    answered(page)
    until(page, lambda: page.evaluate(PAINTED) == painted)
    page.click("#provenance")
    until(page, lambda: page.evaluate(PAINTED) == {})


def raced(page: Page) -> None:
    """Start a race, of which the server may have had one already."""
    press(page, "#race-start")
    page.wait_for_selector("#race-running:visible, #race-again:visible")
    if page.locator("#race-again").is_visible():
        page.click("#race-again")
    page.wait_for_selector("#race-running", state="visible")


@pytest.mark.parametrize("size", [WIDE, PHONE] if LONG else [PHONE])
def test_the_race_is_a_replay_with_an_honest_end(scripted: Server, open_page: Open, size: tuple[int, int]) -> None:
    page = open_page(scripted, size)
    with_answer(page)
    raced(page)
    for lane in ("1", "0"):  # both move
        page.wait_for_selector(f"#race-replay[data-part='running'] article[data-run='{lane}'] .words:not(:empty)")
    page.wait_for_selector('#race-end[data-state="over"]')
    page.click("[data-speed='4']")
    page.click("#race-replayed")
    page.wait_for_selector('#race-end[data-state="racing"]')
    page.wait_for_selector('#race-end[data-state="over"]')
    page.wait_for_timeout(400)
    assert page.text_content("#race-verdict") == "identical 122/122 tokens, 2.9 times faster, over 2 answers"
    assert "replay of two runs" in page.inner_text("#race-note")
    texts = page.locator("#race .words").all_inner_texts()
    assert texts[0] == texts[1]
    fine(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('#race').contains(document.activeElement)")
    page.keyboard.press("Escape")
    page.wait_for_selector("#race", state="hidden")
    until(page, lambda: "verified on this machine" in (page.text_content("#verified") or ""))
    press(page, "#race-start")  # an idle race shows the last one
    page.wait_for_selector('#race-end[data-state="over"]')
    page.set_viewport_size({"width": 320, "height": 568})
    again = page.locator("#race-again").bounding_box()
    assert again is not None
    assert again["y"] + again["height"] <= 568, "on a small phone the verdict was below the edge"
    assert page.locator("#race .words").all_inner_texts() == texts
    page.click("#race-close")
    ask(page, "Something where they go apart?")
    answered(page)
    raced(page)
    page.wait_for_selector('#race-end[data-state="over"]')
    assert page.inner_text("#race-verdict").startswith("The texts part")
    assert page.locator("#race .words mark").first.text_content() == " Or so they say."
    assert page.locator("#verified").is_hidden()


def test_the_replay_ends_with_every_word(scripted: Server, open_page: Open) -> None:
    page = open_page(scripted)
    with_answer(page)

    def rounded_up(route: Route) -> None:
        """The clock's end and the last word are rounded figures of one moment: here the word comes too late."""
        if route.request.method != "GET":
            return route.continue_()
        told = route.fetch().json()
        for run in told["runs"]:
            run["questions"][-1]["steps"].append([run["ms"] + 0.01, " Finis."])
        return route.fulfill(json=told)

    page.route("**/race", rounded_up)
    raced(page)
    page.wait_for_selector('#race-end[data-state="over"]')
    for run in page.locator("#race article").all():
        assert run.locator(".words").inner_text().endswith("Finis.")
        assert run.locator(".asked").count() == 2, "a short answer is followed by another question"
        assert "122 tokens" in run.locator(".count").inner_text()
        assert run.locator(".track b").get_attribute("style") == "width: 100%;"
    fine(page)
