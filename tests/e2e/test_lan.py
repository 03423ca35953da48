"""``--listen`` in a browser: whatever name of the machine is opened, the password lets in, and nothing else does."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from app.web.auth import WRONG
from tests.app.running import free_port
from tests.e2e.scripted_server import PASSWORD
from tests.e2e.steps import scripted_command, serving
from tests.nursery import Nursery


def names_of_this_machine() -> list[str]:
    """The loopback, the machine's name and its address in the network, as far as it has them."""
    found = ["127.0.0.1", "localhost"]
    with suppress(OSError):
        socket.getaddrinfo(socket.gethostname(), 80, socket.AF_INET)
        found.append(socket.gethostname())
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        asked.connect(("192.0.2.1", 9))  # sends nothing; the system only chooses the address
        found.append(asked.getsockname()[0])
    return list(dict.fromkeys(found))


@pytest.mark.browser
def test_the_password_lets_a_browser_in(browser: Browser, tmp_path: Path, nursery: Nursery | None) -> None:
    """It gave 403: with "no-referrer" the form said that its origin is null."""
    port = free_port()
    with serving(scripted_command(port, tmp_path, "lan"), tmp_path, port, nursery):
        for name in names_of_this_machine():
            context = browser.new_context(java_script_enabled=False)  # nothing of this needs the page's scripts
            page = context.new_page()
            page.goto(f"http://{name}:{port}/")
            page.fill("[name=password]", "not the password")
            page.click("button")
            assert WRONG in page.inner_text("body"), name
            page.goto(f"http://{name}:{port}/")
            page.fill("[name=password]", PASSWORD)
            page.click("button")
            page.wait_for_selector("#ask-row", state="attached")
            # a form of another site is still refused
            form = f"<form method=post action=http://{name}:{port}/enter><input name=password value='{PASSWORD}'>"
            page.goto(f"data:text/html,{form}<button>go</button></form>")
            page.click("button")
            assert "Another site may not talk to Trifold." in page.inner_text("body"), name
            context.close()
