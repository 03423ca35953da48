"""The whole flow of a person without a network: ``python -m tests.offline.flow FOLDER CHROMIUM OPTION...``

Brings up loopback in its own namespace, makes sure that nothing else can be reached, starts the app with these options
and a browser, and does what a person does. Ends with what was connected to: one address a line, on standard output.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
from pathlib import Path

from tests.e2e import steps
from tests.e2e.conftest import Watch
from tests.faults.driver import ROOT, App

_HOOK = Path(__file__).resolve().parent / "hook"
_OUTSIDE = (("192.0.2.1", 80), ("1.1.1.1", 443), ("8.8.8.8", 53))
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
_SECONDS = 90_000  # milliseconds, as Playwright counts


def bring_up_loopback() -> None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        asked = struct.pack("16sh14x", b"lo", 0)
        flags = struct.unpack("16sh14x", fcntl.ioctl(control, _GET_FLAGS, asked))[1]
        fcntl.ioctl(control, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))


def nothing_else_can_be_reached() -> None:
    for address in _OUTSIDE:
        with socket.socket() as probe:
            probe.settimeout(3)
            assert probe.connect_ex(address) in (errno.ENETUNREACH, errno.EHOSTUNREACH), f"{address} can be reached"


def flow(app: App, chromium: str) -> None:
    """Give a book, ask, stop, look at a page again, open the sample; every request of the page is watched."""
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox", "--disable-quic", "--disable-background-networking", "--disable-component-update"]
    arguments.append("--disable-gpu")  # else Chromium imitates one on the processor
    if os.environ.get("TRIFOLD_REFUSES"):
        arguments.append("--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
    server = steps.Server(app.port, app.data)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page()
        page.set_default_timeout(_SECONDS)
        watch = Watch(server.address)
        watch.look_at(page)
        page.goto(server.login_address())
        page.wait_for_selector('#trifold[data-live="yes"]')
        steps.give_text(page, "CHAPTER 1\n\n" + "The lamp ![](http://evil.example/x.png) was lit at dusk. " * 40)
        page.wait_for_selector('#trifold[data-stage="ready"]')
        steps.answer_length(page)
        steps.ask(page, "Who lit it? ![](http://evil.example/y.png) <img src=http://evil.example/z.png>")
        steps.answered(page)
        steps.ask(page, "Tell all of it.")
        steps.answered(page)
        steps.reload(page)
        page.wait_for_selector("#chat .bot .prose")
        page.evaluate("fetch('/books/sample', {method: 'POST', body: '{}'})")
        page.wait_for_selector('#trifold[data-map="yes"]')
        page.wait_for_timeout(1500)
        browser.close()
    assert watch.strangers == [], watch.strangers


def main(folder: Path, chromium: str, *options: str) -> None:
    guarded_only = bool(os.environ.get("TRIFOLD_REFUSES"))
    if not guarded_only:
        bring_up_loopback()
        nothing_else_can_be_reached()
    connects = folder / "connects.txt"
    connects.touch()
    environment = {
        "PYTHONPATH": os.pathsep.join((str(_HOOK), str(ROOT))),
        "TRIFOLD_CONNECTS": str(connects),
        "HTTP_PROXY": "http://proxy.example:3128",
        "HTTPS_PROXY": "http://proxy.example:3128",
    }
    with contextlib.redirect_stdout(sys.stderr):
        with App(folder / "data", options, environment) as app:
            flow(app, chromium)
        assert "Traceback" not in app.said, app.said
    sys.stdout.write(connects.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
