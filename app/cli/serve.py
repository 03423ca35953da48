"""The app command: one running app per person, on a free port, in the browser when its page is ready."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
import threading
import webbrowser

from app.cli import instance
from app.launcher.speech import say
from app.settings import Settings

EXIT_SIGNALLED = 128  # plus the signal's number, as shells count


def run(options: argparse.Namespace, settings: Settings) -> int:
    running = instance.find_running(settings.instance_file)
    if running is not None:
        say("Trifold is running already. To start it with other settings, close it first.")
        _show(dataclasses.replace(settings, port=running), browser=not options.no_browser)
        return 0
    port = instance.pick_port(settings.port)
    if port != settings.port:
        say(f"Another program uses port {settings.port}; Trifold takes {port}.")
    return _serve(dataclasses.replace(settings, port=port), browser=not options.no_browser)


def _serve(settings: Settings, browser: bool) -> int:
    say("Starting. Ctrl-C ends it.")
    from app.server import serve

    signal.signal(signal.SIGTERM, _leave)

    def greet() -> None:
        instance.announce(settings.instance_file, settings.port)
        # A browser can take its time to return; the server must not wait for it.
        threading.Thread(target=_show, args=(settings, browser), daemon=True).start()

    try:
        serve(settings, greet)
    finally:
        instance.withdraw(settings.instance_file)
    return 0


def _show(settings: Settings, browser: bool) -> None:
    """Say where the page is, and open it. Each address works once, so the browser gets one of its own."""
    from app.tickets import opening_address

    say(f"Trifold is at {opening_address(settings.data, settings.port)}")
    if browser and not _open_browser(opening_address(settings.data, settings.port)):
        say("No browser could be opened here: open that address in one.")


def _open_browser(url: str) -> bool:
    """Open the page, unless there is no screen: then the default would be a text browser in this very terminal."""
    has_screen = sys.platform in ("win32", "darwin") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return has_screen and webbrowser.open(url)


def _leave(number: int, _frame: object) -> None:
    """Being told to end is no fault, and what is open gets closed on the way out."""
    sys.exit(EXIT_SIGNALLED + number)
