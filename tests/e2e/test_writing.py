"""Words come between two layouts of the chat: none is missing, none is there twice, and other tabs see them too."""

from __future__ import annotations

from playwright.sync_api import Page

from tests.e2e.steps import Open, Server, answered, ask, clean_page, last_answer, read_text, until

WORDS = [f"w{number}" for number in range(1, 301)]
# What stood in the answer at every change, and how many layouts of the chat there were: each brings its own caret.
WITNESS = """
() => {
  window.seen = new Set();
  window.layouts = new Set();
  new MutationObserver(() => {
    const caret = [...document.querySelectorAll('#chat .caret')].at(-1);
    if (!caret) return;
    window.layouts.add(caret.className);
    window.seen.add(caret.closest('.prose').textContent);
  }).observe(document.querySelector('#chat'), {subtree: true, childList: true, characterData: true});
}
"""


def plain(text: str) -> list[str]:
    return text.replace("\u00a0", " ").split()


def seen(page: Page) -> list[str]:
    return list(page.evaluate("[...window.seen]"))


def test_words_come_between_layouts_and_none_is_lost_or_doubled(scripted: Server, open_page: Open) -> None:
    page = open_page(scripted)
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


def test_a_second_tab_sees_an_answer_grow(scripted: Server, open_page: Open) -> None:
    page = open_page(scripted)
    read_text(page, "Words of another lamplighter", "growing.txt")
    clean_page(page)
    ask(page, "Tell a long story.")
    until(page, lambda: page.locator("#chat .bot .caret").count() > 0)
    other = open_page(scripted, beside=page)
    until(other, lambda: other.locator("#chat .bot .caret").count() > 0)
    at = other.get_attribute("#chat .bot .caret", "class")
    until(other, lambda: len(plain(other.inner_text("#chat .bot .caret"))) >= 3)
    assert other.get_attribute("#chat .bot .caret", "class") == at  # it was not laid out again for that
    page.bring_to_front()
    page.click("#stop")
    answered(page)
