"""What a person does with the page, as steps that the browser tests share."""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, Route

from app.web.auth import opening_address
from tests.nursery import Nursery
from tests.processes import started

SCREENSHOTS = Path(__file__).resolve().parent / "screenshots"
# Milliseconds, as Playwright counts: for what a page does at once, and for reading and answering, on a busy machine.
PATIENCE = 60_000
READ_SECONDS = 120_000
WIDE = (1400, 900)
PHONE = (390, 844)
# Documents that belong to nobody (an empty frame) keep nothing.
DEMO_VIEW = "try { localStorage.getItem('trifold-demo') ?? localStorage.setItem('trifold-demo', 'yes') } catch {}"

Open = Callable[..., Page]
Scheme = Literal["dark", "light"]

# What of the page a failed wait is told with.
_SIGHT = """
() => ({
  ...document.querySelector('#trifold').dataset,
  questions: document.querySelectorAll('#chat .user').length,
  under: [...document.querySelectorAll('#chat .under, #chat .trouble')].map((e) => e.textContent),
  send: Boolean(document.querySelector('#send')?.checkVisibility()),
  stop: Boolean(document.querySelector('#stop')?.checkVisibility()),
  says: [...document.querySelectorAll('#chat .bot')].map((e) => e.innerText),
  versions: [...document.querySelectorAll('#chat .versions')].map((e) => e.innerText),
})
"""

# Gradio draws the chat in its own time, after the live stream has told of an answer's end. An answer has ended when
# every question has one, the last of them has its line below it, and both the buttons and the live stream say so.
_ANSWERED = """
() => {
  const last = [...document.querySelectorAll('#chat .bot')].at(-1);
  return document.querySelector('#trifold').dataset.asking === 'no'
    && document.querySelector('#send')?.checkVisibility() && !document.querySelector('#stop')?.checkVisibility()
    && document.querySelectorAll('#chat .user-row').length <= document.querySelectorAll('#chat .bot-row').length
    && last?.querySelector('.under, .trouble') && !last.querySelector('.waiting, .caret');
}
"""


@dataclass(frozen=True)
class Server:
    """A server process and how to get in."""

    port: int
    data: Path

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def login_address(self) -> str:
        return opening_address(self.data, self.port)


@contextmanager
def serving(command: Sequence[str], data: Path, port: int, nursery: Nursery | None = None) -> Iterator[Server]:
    """A server in a process of its own; ended on leaving."""
    with started(command, data, port, nursery=nursery):
        yield Server(port, data)


def scripted_command(port: int, data: Path, *options: str) -> list[str]:
    """The page with a scripted engine."""
    return [sys.executable, "-m", "tests.e2e.scripted_server", str(port), str(data), *options]


def until(page: Page, holds: Callable[[], bool], seconds: float = PATIENCE / 1000) -> None:
    """Look again until something holds. (Playwright's own way evaluates a string, which the page's policy forbids.)"""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"it never happened: {page.evaluate(_SIGHT)}"
        page.wait_for_timeout(40)


def questions(page: Page) -> int:
    return page.locator("#chat .user").count()


def chat_is_shown(page: Page) -> None:
    """Wait until the open chat is on the page: a page that has just been opened has no questions either way. Before,
    the page ends Gradio's frames, and with them those by which Playwright waits for something to stand still."""
    page.wait_for_selector('#trifold[data-shown="yes"]')
    until(page, lambda: (page.get_attribute("#trifold", "data-turns") == "some") == (questions(page) > 0))


def at_rest(page: Page) -> None:
    """End what was left under way: an answer does not end with its page, and another book would ask first."""
    state = page.locator("#trifold")
    if state.get_attribute("data-asking") == "yes":
        page.click("#stop")
    if state.get_attribute("data-stage") == "reading":
        page.click("#stop-reading")
    busy = page.locator('#trifold:is([data-asking="yes"], [data-stage="reading"])')
    until(page, lambda: busy.count() == 0)


def clean_page(page: Page) -> None:
    """A new chat, through the page's own button."""
    chat_is_shown(page)  # else the one before is drawn behind the new one's first question
    page.evaluate("document.querySelector('#begin-chat').click()")  # on a phone it lies in a drawer
    until(page, lambda: questions(page) == 0)
    chat_is_shown(page)


def give(page: Page, file: Path) -> None:
    """Hand a file to the page, as a person does."""
    page.set_input_files("#file", str(file))


def give_text(page: Page, text: str, name: str = "book.txt") -> None:
    page.set_input_files("#file", {"name": name, "mimeType": "text/plain", "buffer": text.encode()})


def read_text(page: Page, text: str, name: str = "book.txt") -> None:
    """Hand a text to the page, and wait until this very text is open and has been read."""
    give_text(page, text, name)
    has_read(page, text.encode())


def has_read(page: Page, file: bytes) -> None:
    """Wait until this very file is open and has been read."""
    book = f'#books button.open[data-id="{hashlib.sha256(file).hexdigest()}"][aria-current="true"]'
    ready = '#trifold[data-stage="ready"]'
    until(page, lambda: all(page.locator(part).count() for part in (book, ready)), READ_SECONDS / 1000)


def ask(page: Page, question: str) -> None:
    """Type a question, send it, and wait until the page has taken it or said why not."""
    before = questions(page), page.locator("#chat .trouble").count()
    page.fill("#ask-box textarea", question)
    page.keyboard.press("Enter")
    until(page, lambda: (questions(page), page.locator("#chat .trouble").count()) != before)


def answered(page: Page, timeout: int = READ_SECONDS) -> None:
    """Wait until this tab's question has been answered or stopped."""
    until(page, lambda: bool(page.evaluate(_ANSWERED)), timeout / 1000)


def writing(page: Page) -> None:
    """Wait until the first words of an answer are there. (A caret is replaced too often to be held on to.)"""
    until(page, lambda: page.locator("#chat .bot .caret").count() > 0, READ_SECONDS / 1000)


def versions(page: Page) -> list[str]:
    """What stands between the arrows of questions and answers."""
    return [" ".join(text.split()) for text in page.locator("#chat .versions").all_inner_texts()]


def reload(page: Page) -> None:
    """Reload, at once: nothing of an answer that has ended is left to be cut off."""
    page.reload()


# In one step, because the chat may be drawn anew between two.
_ANSWER_AND_PASSAGES = "(prose) => [prose.innerText, prose.querySelector(':scope > details.passages')?.innerText ?? '']"


def last_answer(page: Page) -> str:
    """The words of the last answer, without the passages that stand above it."""
    answer, above = page.locator("#chat .bot .prose").last.evaluate(_ANSWER_AND_PASSAGES)
    return str(answer).removeprefix(str(above)).lstrip("\n")


def answer_length(page: Page, tokens: int = 32) -> None:
    """Set the length of answers, through the page's own control."""
    _set(page, Length=tokens)


def long_answers(page: Page) -> None:
    """As long as they get, and of words at random: what repeats itself is written too fast to be stopped."""
    _set(page, Length=2048, Temperature=2)


def unfold_settings(page: Page) -> None:
    """Open what lies below "Answer settings"."""
    page.click("#how > button")
    if page.locator("#advanced[open]").count() == 0:
        page.click("#advanced summary")
    page.wait_for_selector("#advanced input[type=number]")


def _set(page: Page, **fields: int) -> None:
    if not page.locator("#advanced .numbers").is_visible():
        unfold_settings(page)
    for label, value in fields.items():
        field = page.get_by_label(f"number input for {label}")
        field.fill(str(value))
        field.press("Tab")
    page.click("#how > button")


def fits_only_rounded(route: Route, model: str) -> None:
    """Answer a request for the settings as a machine does on which a model fits only with rounded weights and KV."""
    told = route.fetch()
    shown = told.json()
    option = next(one for one in shown["models"] if one["id"] == model)
    option["numbers"]["rounded"] = {"weights": "8bit", "kv": "8bit", "words": "8-bit weights and an 8-bit cache"}
    route.fulfill(response=told, json=shown)
