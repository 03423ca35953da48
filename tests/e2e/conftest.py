"""A real Chromium in front of real server processes, and a watch over everything that the page does.

Three servers: the product with its own pair of models, the same with a model whose answers have no end, and the page
with a scripted engine for what real models do only by luck. A page that asks another host for anything, or writes an
error to its console, fails its test.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

from app.core.diagnostics import BROWSERS
from tests.app.running import Running
from tests.e2e.steps import (
    DEMO_VIEW,
    PATIENCE,
    PHONE,
    WIDE,
    Open,
    Scheme,
    Server,
    at_rest,
    chat_is_shown,
    scripted_command,
    serving,
)
from tests.nursery import Nursery
from tests.processes import app_command, browser_path, free_port

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SAMPLE = ROOT / "assets" / "sample"
BOOK_CHARACTERS = 12_000
PHONE_WIDTH = 500  # narrower screens are touched


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[FAILED] = report.failed
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium of this machine; in CI its absence is a failure."""
    found = browser_path()
    if found is None:
        reason = "no Chromium found on this machine (looked for " + ", ".join(BROWSERS) + ")"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    with sync_playwright() as driver:
        # Without ``--disable-gpu`` Chromium imitates a GPU on the processor, which takes longer than drawing there.
        options = ["--no-sandbox", "--disable-quic", "--disable-gpu"]
        launched = driver.chromium.launch(executable_path=chromium, args=options)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery | None) -> Iterator[Server]:
    """The product."""
    port = free_port()
    with serving(app_command(port), tmp_path_factory.mktemp("Données é"), port, nursery) as server:
        yield server


@pytest.fixture(scope="session")
def endless(endless_app: Running) -> Server:
    """The product with a model whose answers have no end."""
    return Server(endless_app.port, endless_app.data)


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery | None) -> Iterator[Server]:
    """The page with a scripted engine."""
    data, port = tmp_path_factory.mktemp("scripted"), free_port()
    with serving(scripted_command(port, data), data, port, nursery) as server:
        yield server


@dataclass
class Watch:
    """What a page did that it should not have done."""

    home: str
    strangers: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def look_at(self, page: Page) -> None:
        page.on("request", lambda request: self._request(request.url))
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def _request(self, url: str) -> None:
        if not url.startswith((self.home, "data:", "blob:")):
            self.strangers.append(url)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)


@pytest.fixture(scope="session")
def contexts(browser: Browser) -> Iterator[Callable[[bool], BrowserContext]]:
    """``contexts(has_touch)`` -> a context that all tests share, which compiles Gradio's scripts once."""
    made: dict[bool, BrowserContext] = {}

    def context(has_touch: bool) -> BrowserContext:
        if has_touch not in made:
            made[has_touch] = browser.new_context(has_touch=has_touch, is_mobile=has_touch)
        return made[has_touch]

    yield context
    for one in made.values():
        one.close()


def forget(page: Page, server: Server) -> None:
    """Take away what earlier tests have left in the page's context: what the server's pages keep, and cookies, unless
    another page needs them."""
    if page.context.pages == [page]:
        page.context.clear_cookies()
    kept = "local_storage,indexeddb,cache_storage,service_workers"
    session = page.context.new_cdp_session(page)
    session.send("Storage.clearDataForOrigin", {"origin": server.address.rstrip("/"), "storageTypes": kept})
    session.detach()


@contextmanager
def opener(contexts: Callable[[bool], BrowserContext]) -> Iterator[Open]:
    """``open_page(server, size, scheme)`` -> a page of the server in a browser that has been let in.

    It shows the demo view, in which everything is to be seen; ``demo=False`` is what a newcomer sees. ``script`` runs
    before those of the page.
    """
    watches: list[Watch] = []
    pages: list[Page] = []

    def open_it(
        server: Server,
        size: tuple[int, int] = WIDE,
        scheme: Scheme = "dark",
        beside: Page | None = None,
        demo: bool = True,
        script: str = "",
    ) -> Page:
        width, height = size
        page = (beside.context if beside else contexts(width < PHONE_WIDTH)).new_page()
        if beside is None and page.context not in [one.context for one in pages if not one.is_closed()]:
            forget(page, server)
        pages.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme)
        if demo:
            page.add_init_script(DEMO_VIEW)
        if script:
            page.add_init_script(script)
        page.set_default_timeout(PATIENCE)
        watch = Watch(server.address)
        watch.look_at(page)
        watches.append(watch)
        page.goto(server.address if beside else server.login_address())
        page.wait_for_selector("#ask-box textarea", state="attached")
        page.wait_for_selector('#trifold[data-live="yes"]')
        chat_is_shown(page)
        if beside is None and len(watches) == 1:
            at_rest(page)
        return page

    yield open_it
    for page in pages:
        page.close()
    assert [url for watch in watches for url in watch.strangers] == []
    assert [error for watch in watches for error in watch.errors] == []


@pytest.fixture
def open_page(contexts: Callable[[bool], BrowserContext]) -> Iterator[Open]:
    """Opens pages for one test."""
    with opener(contexts) as open_it:
        yield open_it


@pytest.fixture(scope="module")
def open_kept(contexts: Callable[[bool], BrowserContext]) -> Iterator[Open]:
    """Opens pages for all tests of a file; what they did that they should not have done fails the last one."""
    with opener(contexts) as open_it:
        yield open_it


Kept = Callable[..., AbstractContextManager[Page]]


Pages = dict[tuple[int, tuple[int, int], bool], Page]


@pytest.fixture(scope="module")
def pages() -> Pages:
    """The pages that a file's tests share, by server, size and view, once a test has needed them."""
    return {}


@pytest.fixture
def kept(request: pytest.FixtureRequest, open_kept: Open, pages: Pages) -> Kept:
    """``kept(server, size, scheme, demo=...)`` -> a page for all tests of a file that give their own book and begin
    their own chat, and leave nothing else behind: opening one takes longer than most of them. A test that fails leaves
    anything behind: the next one, or itself tried again, gets another page."""

    @contextmanager
    def share(
        server: Server, size: tuple[int, int] = WIDE, scheme: Scheme = "dark", demo: bool = True
    ) -> Iterator[Page]:
        key = server.port, size, demo
        if key not in pages:
            pages[key] = open_kept(server, size, scheme, demo=demo)
            at_rest(pages[key])  # a test that failed may have left an answer that is being written
        pages[key].bring_to_front()
        pages[key].set_viewport_size({"width": size[0], "height": size[1]})
        pages[key].emulate_media(color_scheme=scheme)
        yield pages[key]
        if request.node.stash.get(FAILED, False):
            pages.pop(key).close()

    return share


@pytest.fixture
def page(kept: Kept, scripted: Server) -> Iterator[Page]:
    """A wide page with the scripted engine."""
    with kept(scripted) as shared:
        yield shared


@pytest.fixture
def phone(kept: Kept, scripted: Server) -> Iterator[Page]:
    """The same on a phone."""
    with kept(scripted, PHONE, "light") as shared:
        yield shared


@pytest.fixture(scope="session")
def short_book(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The beginning of the sample book as text: real prose that two busy cores read in seconds."""
    text = next(SAMPLE.glob("*.txt")).read_text(encoding="utf-8")[:BOOK_CHARACTERS]
    file = tmp_path_factory.mktemp("books") / "Die Lampen von Orré.txt"
    file.write_text(text, encoding="utf-8")
    return file
