"""The settings in a real browser: every tab on a wide screen and on a phone, in light and dark, with the keyboard."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import APIResponse, Page, Route

from app.core.settings import STARTER_LONG
from app.models.catalogue import pairs
from engine.version import VERSION
from tests.e2e.steps import Scheme, fits_only_rounded, until
from tests.e2e.test_states import CONTRAST

TABS = ("models", "reading", "api", "remote", "help")


def opened(page: Page) -> None:
    page.click("#open-preferences")
    page.wait_for_selector("#model-cards > li")


def speak(page: Page, language: str, title: str) -> None:
    """Choose the language of the page, which changes at once."""
    page.click('[data-tab="reading"]')
    page.select_option("#language", language)
    until(page, lambda: page.inner_text("#preferences-title") == title)
    assert page.get_attribute("html", "lang") == (language or "en")


# Of a loaded model there is a name; before, its place says what is being done, which was English on every page.
SAYS_LOADING = """document.getElementById("trifold").dataset.model = "loading";
document.getElementById("model-name").textContent = "Loading the model…";"""
SAYS_NAME = """(name) => {
    document.getElementById("trifold").dataset.model = "ready";
    document.getElementById("model-name").textContent = name;
}"""


@pytest.fixture
def page(page: Page) -> Iterator[Page]:
    """The page of all tests, whose settings are closed afterwards."""
    yield page
    if page.locator("#preferences").is_visible():
        page.evaluate("document.querySelector('#all-models').open = false")
        page.keyboard.press("Escape")
        until(page, lambda: not page.locator("#preferences").is_visible())


def test_what_takes_a_while_is_said_and_what_comes_late_is_not_shown(page: Page) -> None:
    """The machine is measured when the settings are opened for the first time. Their answer came after the key had been
    renewed, and with it the key that no longer opens anything.
    """
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/preferences", lambda route: held.append((route, route.fetch())), times=1)
    page.click("#open-preferences")
    until(page, lambda: bool(held))
    assert page.inner_text("#offers-wait") == "Looking at this machine…"
    page.click('[data-tab="api"]')
    with page.expect_response("**/key/renew") as renewed:
        page.click("#api-renew")
    (key,) = renewed.value.json().values()
    until(page, lambda: page.input_value("#api-key") == key)
    (route, before) = held[0]
    assert before.json()["api"]["key"] != key
    with page.expect_event("requestfinished", lambda request: request.url.endswith("/preferences")):
        route.fulfill(response=before)
    page.wait_for_selector("#offers > li", state="attached")
    assert page.input_value("#api-key") == key


@pytest.mark.parametrize(("name", "scheme", "language"), [("page", "light", "en"), ("phone", "dark", "de")])
def test_every_tab_can_be_read_and_stays_within_the_screen(
    request: pytest.FixtureRequest, name: str, scheme: Scheme, language: str
) -> None:
    page: Page = request.getfixturevalue(name)
    page.emulate_media(color_scheme=scheme)
    opened(page)
    speak(page, language, "Einstellungen" if language == "de" else "Settings")
    assert page.locator("#offers > li").count() >= len(pairs()), "and files of other programs, where there are some"
    assert not page.locator("#offers-wait").is_visible()
    page.click('[data-tab="models"]')
    cards = page.locator("#model-cards > li")
    assert cards.count() == 3
    assert not page.locator("#offers").is_visible()
    for card in cards.all():
        words = card.inner_text()
        assert "·" in words, "size and licence"
        assert "cache" not in words.lower()
    assert page.evaluate(CONTRAST) == []
    page.click("#all-models > summary")
    page.wait_for_selector("#offers > li")
    assert "per 1,000 tokens" not in page.inner_text("#offers"), "the bytes of a cache are a detail"
    for tab in TABS:
        page.click(f'[data-tab="{tab}"]')
        assert page.locator(f"#tab-{tab}").is_visible()
        assert page.locator("#preferences [role=tabpanel]:visible").count() == 1
        assert page.evaluate(CONTRAST) == []
        panel = page.locator(f"#tab-{tab}")
        assert panel.evaluate("(e) => e.scrollWidth - e.clientWidth") <= 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    if language == "de":
        name = page.inner_text("#model-name")
        page.evaluate(SAYS_LOADING)
        until(page, lambda: page.inner_text("#model-name") == "Das Modell wird geladen…")
        page.evaluate(SAYS_NAME, name)
        assert page.inner_text("#model-name") == name, "a name is nobody's to translate"
    speak(page, "", "Settings")


def test_the_keyboard_is_enough(page: Page) -> None:
    page.focus("#open-preferences")
    page.keyboard.press("Enter")
    page.wait_for_selector("#model-cards > li")
    page.focus('[data-tab="models"]')
    page.keyboard.press("ArrowRight")
    assert page.locator("#tab-reading").is_visible()
    assert page.evaluate("document.activeElement.dataset.tab") == "reading"
    page.keyboard.press("Escape")
    until(page, lambda: not page.locator("#preferences").is_visible())
    assert page.evaluate("document.activeElement.id") == "open-preferences"


def test_the_key_is_hidden_until_it_is_asked_for(page: Page) -> None:
    opened(page)
    page.click('[data-tab="api"]')
    until(page, lambda: page.input_value("#api-key").startswith("sk-trifold-"))
    assert page.get_attribute("#api-key", "type") == "password"
    page.click("#api-show")
    assert page.get_attribute("#api-key", "type") == "text"
    before = page.input_value("#api-key")
    page.click("#api-renew")
    until(page, lambda: page.input_value("#api-key") != before)


def test_another_machine_has_to_be_agreed_to(page: Page) -> None:
    opened(page)
    page.click('[data-tab="remote"]')
    page.fill("#remote-address", "http://127.0.0.1:9/v1")
    assert not page.locator("#remote-agree").is_visible()
    for address in ("https://gpu.example.org/v1", "http://127.0.0.1.example.org", "192.168.1.7:8000"):
        page.fill("#remote-address", address)
        assert page.locator("#remote-agree").is_visible()
        assert not page.is_checked("#remote-yes")


def test_a_server_that_does_not_answer_is_told_in_place_and_changes_nothing(page: Page) -> None:
    opened(page)
    page.click('[data-tab="remote"]')
    page.fill("#remote-address", "http://127.0.0.1:9/v1")
    page.get_by_role("button", name="Let it answer").click()
    page.wait_for_selector("#setup-trouble", state="visible")
    assert page.locator("#tab-remote").is_visible()
    assert page.inner_text("#setup-trouble") == (
        "Nobody answers at 127.0.0.1:9. Start that server, or check its address."
    )
    assert not page.locator("#setup-chip").is_visible(), "it was seen"
    assert page.inner_text("#model-name") == "Storyteller 27M"
    assert page.get_attribute("#trifold", "data-model") == "ready"
    page.click('[data-tab="help"]')
    assert not page.locator("#setup-trouble").is_visible(), "nor does it stand above another tab"


def test_what_was_said_of_one_folder_does_not_stay_for_another(page: Page) -> None:
    opened(page)
    page.click("#all-models > summary")
    page.evaluate("document.querySelector('#own-said').textContent = 'There is no folder /no/such.'")
    page.fill("#own-model", "/no/other")
    assert page.inner_text("#own-said") == ""


def test_a_model_that_fits_only_rounded_is_used_so(page: Page) -> None:
    """What loading it so gives is tested with the engine; ``TRIFOLD_LONG=1`` clicks the button with real weights."""
    asked: list[object] = []

    def used(route: Route) -> None:
        asked.append(route.request.post_data_json)
        route.fulfill(json={})

    page.route("**/preferences", lambda route: fits_only_rounded(route, STARTER_LONG), times=1)
    page.route("**/models/use", used, times=1)
    opened(page)
    page.click("#all-models > summary")
    button = page.locator(f'#offers > li:has(details[data-id="{STARTER_LONG}"]) button')
    until(page, lambda: button.inner_text().endswith("se rounded"))  # before, what was told the last time
    assert button.get_attribute("title") == "With 8-bit weights and an 8-bit cache"
    button.click()
    until(page, lambda: bool(asked))
    assert asked == [{"model": STARTER_LONG, "draft": "", "weights": "8bit", "kv": "8bit"}]


def test_diagnostics_are_shown_and_hold_no_key(page: Page) -> None:
    opened(page)
    key = page.input_value("#api-key")
    page.click('[data-tab="help"]')
    page.click("#report-make")
    page.wait_for_selector("#report:not([hidden])")
    report = page.input_value("#report")
    assert "Processor" in report
    assert page.inner_text("#version") == VERSION
    assert report.count(f"Trifold    {VERSION}") == 1
    assert key not in report
