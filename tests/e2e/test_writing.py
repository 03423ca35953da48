"""The words of an answer come by one road: none is missing, none is there twice, and Gradio, which shows what was
written down, is asked for the chat twice an answer."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.e2e.steps import (
    answered,
    ask,
    clean_page,
    last_answer,
    read_text,
    reload,
    unfold_settings,
    until,
)

WORDS = [f"w{number}" for number in range(1, 301)]
# What stood in the answer at every change, and how many layouts of it there were: each brings its own caret.
WITNESS = """
() => {
  window.seen = new Set();
  window.layouts = new Set();
  new MutationObserver(() => {
    const caret = [...document.querySelectorAll('#chat .caret')].at(-1);
    if (!caret) return;
    window.layouts.add(caret.className);
    const words = caret.closest('.prose').cloneNode(true);
    words.querySelector('.live')?.remove();
    window.seen.add(words.textContent);
  }).observe(document.querySelector('#chat'), {subtree: true, childList: true, characterData: true});
}
"""


# Every record that Gradio has shown, and every place of an open answer that it has made.
RECORDS = """
() => {
  window.records = [];
  window.places = new Set();
  new MutationObserver(() => {
    const record = document.querySelector('#refresh').textContent.trim();
    if (record !== window.records.at(-1)) window.records.push(record);
    for (const place of document.querySelectorAll('#chat .writing')) window.places.add(place);
  }).observe(document.querySelector('#chat'), {subtree: true, childList: true, characterData: true});
}
"""
HIDE = """
() => {
  Object.defineProperty(document, 'hidden', {get: () => true, configurable: true});
  document.dispatchEvent(new Event('visibilitychange'));
}
"""
SEND_AND_HIDE = f"""
() => {{
  document.querySelector('#ask-row').requestSubmit();
  ({HIDE.strip()})();
}}
"""
SHOW = "() => { delete document.hidden; document.dispatchEvent(new Event('visibilitychange')); }"


def plain(text: str) -> list[str]:
    return text.replace("\u00a0", " ").split()


def seen(page: Page) -> list[str]:
    return list(page.evaluate("[...window.seen]"))


def test_words_come_between_layouts_and_none_is_lost_or_doubled(page: Page) -> None:
    read_text(page, "Words of a lamplighter", "writing.txt")
    clean_page(page)
    page.evaluate(WITNESS)
    ask(page, f">>>{' '.join(WORDS)}<<<")
    answered(page)
    texts, layouts = seen(page), page.evaluate("window.layouts.size")
    assert plain(last_answer(page))[: len(WORDS)] == WORDS
    for text in texts:
        shown = plain(text)
        assert shown == WORDS[: len(shown)]
    assert len(texts) > 2 * layouts, f"{len(texts)} texts in {layouts} layouts"


def test_what_a_model_thinks_is_folded_above_its_answer(page: Page) -> None:
    read_text(page, "Words of a lamplighter who thinks", "thinking.txt")
    clean_page(page)
    switch = page.get_by_label("Think first")
    unfold_settings(page)
    ask(page, "Who kept it?")
    answered(page)
    assert page.locator("#chat .thought").count() == 0
    switch.check()
    ask(page, "Who kept it then, slowly?")
    thought = page.locator("#chat .thought")
    until(page, lambda: thought.count() == 1 and thought.locator("summary").inner_text().startswith("Thinks, "))
    assert not thought.locator("div").is_visible()
    thought.locator("summary").click()
    early = thought.locator("div").inner_text()
    until(page, lambda: len(thought.locator("div").inner_text()) > len(early))
    assert thought.locator("div").is_visible(), "what was opened stays open while more comes"
    answered(page)
    assert thought.locator("summary").inner_text().startswith("Thought, 28 words, ")
    assert not thought.locator("div").is_visible()
    assert "<b>light</b>" in thought.locator("div").text_content()  # type: ignore[operator]
    assert "Maren Holt kept the north light" in last_answer(page)
    switch.uncheck()


def test_gradio_shows_the_chat_when_an_answer_begins_and_when_it_has_ended(page: Page) -> None:
    read_text(page, "Words of a third lamplighter", "roads.txt")
    clean_page(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/gradio_api/" in request.url else None)
    page.evaluate(RECORDS)
    ask(page, f">>>{' '.join(WORDS[:60])}<<<")
    answered(page)
    page.wait_for_timeout(300)
    records = [record for record in page.evaluate("window.records") if "." in record]  # not of the empty chat
    assert [record.rpartition(".")[2] for record in records] == ["open", "ended"]
    assert page.evaluate("window.places.size") == 1
    assert {url.rpartition("/gradio_api")[2] for url in asked} == {"/run/predict"}, "its queue was used"
    assert plain(last_answer(page))[:60] == WORDS[:60]
    assert page.locator("#spoken p").count() > 0
    clean_page(page)
    assert page.locator("#spoken p").count() == 0, "a screen reader found the sentences of another chat"


def test_what_is_formatted_stays_while_more_comes(page: Page) -> None:
    read_text(page, "Words of a fourth lamplighter", "formatted.txt")
    clean_page(page)
    ask(page, f">>>- **one**\n- two `<b>`\n\n{' '.join(WORDS[:120])}<<<")
    until(page, lambda: page.locator("#chat .writing li strong").count() > 0)
    assert page.locator("#chat .writing li strong").inner_text() == "one"
    until(page, lambda: page.locator("#chat .writing p .caret").count() > 0)
    assert page.locator("#chat .writing li code").inner_text() == "<b>"
    answered(page)
    assert page.locator("#chat .bot li strong").inner_text() == "one"
    assert page.locator("#chat .writing").count() == 0


def test_a_tab_that_nobody_sees_waits_for_its_answer(page: Page) -> None:
    read_text(page, "Words of a fifth lamplighter", "hidden.txt")
    clean_page(page)
    page.fill("#ask-box textarea", f">>>{' '.join(WORDS[:200])}<<<")
    page.evaluate(SEND_AND_HIDE)  # before the stream can have said whose question it is
    until(page, lambda: page.get_attribute("#trifold", "data-mine") == "yes")
    until(page, lambda: page.get_attribute("#trifold", "data-asking") == "no")
    page.evaluate(SHOW)
    answered(page)
    assert plain(last_answer(page))[:200] == WORDS[:200]
    assert "stopped" not in page.locator("#chat .under").last.inner_text()


# A voice of this machine and one of a server, and what was said by which.
VOICES = """
() => {
  window.said = [];
  window.SpeechSynthesisUtterance = class { constructor(text) { this.text = text; } };
  const [near, far] = [true, false].map((localService) => ({ localService, lang: 'en-GB', default: !localService }));
  Object.assign(speechSynthesis, {
    getVoices: () => [far, near],
    speak: (utterance) => { window.said.push(utterance); },
    cancel: () => { window.said.push(null); },
  });
  speechSynthesis.dispatchEvent(new Event('voiceschanged'));
}
"""
SAID = "window.said.map((each) => each && `${each.voice.localService} ${each.lang} ${each.text}`)"


def test_a_voice_of_this_machine_reads_an_answer_sentence_by_sentence(page: Page) -> None:
    read_text(page, "Words of a voice", "voice.txt")
    clean_page(page)
    ask(page, ">>>It was **late**. The lamp was lit. It burned.<<<")
    answered(page)
    button = page.locator("#chat button.aloud")
    assert button.is_hidden(), "this machine has no voice"
    page.evaluate(VOICES)
    first, second, third = (f"true en-GB {words}" for words in ("It was late.", "The lamp was lit.", "It burned."))
    button.click()
    until(page, lambda: page.evaluate(SAID) == [first])
    page.evaluate("window.said[0].onend()")
    assert page.evaluate(SAID) == [first, second]
    assert page.inner_text("#aloud-words") == "The lamp was lit."
    labels = page.eval_on_selector_all(
        "#chat [data-testid]", "all => all.map((each) => each.getAttribute('aria-label'))"
    )
    assert any("The lamp was lit." in label for label in labels if label)
    assert not [label for label in labels if label and "<" in label], "a screen reader hears no HTML"
    page.click("#aloud-pause")
    page.evaluate("window.said[1].onerror()")  # the sentence that was cancelled is not gone on from
    page.keyboard.press("Enter")  # "Go on" has the focus, and begins the sentence again
    assert page.evaluate(SAID) == [first, second, None, second]
    page.evaluate("window.said[3].onend()")
    assert page.evaluate(SAID)[4:] == [third]
    page.keyboard.press("Escape")
    assert page.evaluate(SAID)[5:] == [None]
    assert page.locator("#aloud").is_hidden()
    assert page.evaluate("Boolean(document.activeElement.closest('#ask-box'))")


# The vertical place of a word of the answer, and whether it is there yet.
WORD_AT = """
(word) => {
  const texts = document.createTreeWalker(document.querySelector('#chat .bot .prose'), NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    const at = node.data.search(new RegExp(`\\\\b${word}\\\\b`));
    if (at < 0) continue;
    const range = document.createRange();
    range.setStart(node, at);
    range.setEnd(node, at + word.length);
    return range.getBoundingClientRect().top;
  }
  return null;
}
"""
# The first word of the topmost visible line. What stands below it moves by a line if a citation above breaks the lines
# elsewhere, which depends on the fonts of the machine.
TOPMOST = """
() => {
  const edge = document.querySelector('#chat .panel-wrap').getBoundingClientRect().top;
  const texts = document.createTreeWalker(document.querySelector('#chat .bot .prose'), NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node; node = texts.nextNode()) {
    for (const { 0: word, index } of node.data.matchAll(/\\bword[a-z]{2}\\b/g)) {
      const range = document.createRange();
      range.setStart(node, index);
      range.setEnd(node, index + word.length);
      if (range.getBoundingClientRect().bottom > edge) return word;
    }
  }
}
"""
HEARD = "[...document.querySelectorAll('#spoken p')].map((sentence) => sentence.textContent)"


def test_what_is_read_stays_in_place_while_more_comes(page: Page) -> None:
    """Words and marks come above and below, the answer ends and Gradio draws it anew: the line that somebody reads
    moved by up to three lines before, and was pulled away by every word near the end of the chat."""
    page.set_viewport_size({"width": 700, "height": 420})
    read_text(page, "Words of a seventh lamplighter", "peace.txt")
    clean_page(page)
    named = "Then " + " ".join(f"word{letter}{other}" for letter in "abcdefghij" for other in "abcdefghijklmnopqrst")
    quotes = "“she counted every lamp in Orre twice before the dawn came”, it says. " * 3
    page.evaluate("document.querySelector('#spoken').replaceChildren()")
    ask(page, f">>>{quotes}{named} and so on. It ended<<<")
    until(page, lambda: page.evaluate(WORD_AT, "worddt") is not None)
    box = page.locator("#chat").bounding_box()  # not at the word: it may still stand below what is seen
    assert box is not None
    page.mouse.move(350, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -120)
    page.wait_for_selector("#to-end", state="visible")
    topmost = page.evaluate(TOPMOST)
    before = page.evaluate(WORD_AT, topmost)
    answered(page)
    assert page.locator("#chat .bot .cite").count() >= 3
    assert abs(page.evaluate(WORD_AT, topmost) - before) < 2
    page.click("#to-end")
    page.wait_for_selector("#to-end", state="hidden")
    until(page, lambda: page.evaluate(HEARD)[-1:] == ["It ended"])
    assert page.evaluate(HEARD) == [quotes.strip(), f"{named} and so on.", "It ended"]
    assert page.get_attribute('#chat [role="log"]', "aria-live") == "off"


EVIL = (
    '<button id="refresh" class="cite says" value="0.0" style="position:fixed;inset:0">verified, part 2</button>'
    '<form id="ask-row" action="/models/use"><input name="model" value="evil/hub"></form><img src="http://e.example/x">'
)
HOSTILE = (
    f"He said: \\`{EVIL}` so.",  # an escaped backtick opens no code
    f"One ` here.\n\nTwo {EVIL} ` there.",  # backticks across blocks
    f"| a | b |\n|---|---|\n| ` | {EVIL} |\n| ` | c |",
    f"```x`{EVIL}\nbody\n```",  # not a fence: its info string holds a backtick
    f"~~~ ` {EVIL}\n`\n~~~\n{EVIL}",
    f"- ```\n{EVIL}\n- ```",
    f"> ```\n{EVIL}\n> ```",
    f"``` `` {EVIL} ` ``",
    f"<!-- ` -->{EVIL}<!-- ` -->",
    f"<![CDATA[ ` ]]>{EVIL}`",
    f"[a]: <`\n{EVIL}\n`>",
    f"[x](<`{EVIL}`>) [y](http://e.example/`{EVIL}`)",
    f"**`**{EVIL}**`**",
    f"&#96;{EVIL}&#96; &lt;button id=refresh&gt;",
    f"<pre>\n\n{EVIL}\n\n</pre>\n\n<details><summary>{EVIL}",
    f"`\u200b`{EVIL}`\u200b`",
    f"\\<button id=refresh>\\</button> {EVIL}",
    f"    code\n\n{EVIL}\n<div\n\nid=refresh>",
)
# What an answer holds beside words: all buttons but the program's own, ids, styles, forms, pictures, foreign classes.
FOREIGN = """
() => [...document.querySelectorAll('#chat .bot .prose *')].filter(one =>
    one.id || one.matches('form, input, img, details:not(.passages)') ||
    (one.hasAttribute('style') && !one.closest('.under')) ||
    (one.matches('button') && !/^([a-z]+:[0-9]+|[0-9]+[.][0-9]+)$/.test(one.value)) ||
    (one.matches('button') && one.textContent.includes('part 2'))).map(one => one.outerHTML)
"""


def test_no_text_of_a_model_becomes_a_part_of_the_page(page: Page) -> None:
    """While it is written, when Gradio shows it, and after a reload."""
    read_text(page, "Words of a forger", "forged.txt")
    clean_page(page)
    text = "\n\n".join(f"{number}.\n\n{one}" for number, one in enumerate(HOSTILE)) + "\n\nThe end."
    ask(page, f">>>{text}<<<")
    answered(page)
    assert "The end." in last_answer(page)
    assert "verified, part 2" in last_answer(page)  # as words
    assert page.evaluate(FOREIGN) == []
    for one in HOSTILE[:6]:
        ask(page, f">>>{one}\n\nThe end.<<<")
        answered(page)
        assert page.evaluate(FOREIGN) == [], one
    reload(page)
    until(page, lambda: page.locator("#refresh").count() == 1 and "The end." in last_answer(page))
    assert page.evaluate(FOREIGN) == []
