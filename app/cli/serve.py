"""The app command: one running app per person, on a free port, in the browser when its page is ready."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import threading
import webbrowser

from app.cli import instance
from app.cli.main import log_to_file
from app.launcher.speech import say
from app.settings import Settings

_PAGE_TIMEOUT_S = 180


def run(options: argparse.Namespace, settings: Settings) -> int:
    running = instance.find_running(settings.instance_file)
    if running is not None:
        url = instance.url_of(running)
        say(f"Trifold is running already, at {url}. Close it first to start it with other settings.")
        if not options.no_browser:
            _open_browser(url)
        return 0
    port = instance.pick_port(settings.port)
    if port != settings.port:
        say(f"Another program uses port {settings.port}; Trifold takes {port}.")
    return _serve(dataclasses.replace(settings, port=port), browser=not options.no_browser)


def _serve(settings: Settings, browser: bool) -> int:
    say("Starting ...")
    from app.server import serve

    log_to_file(settings.logs)
    threading.Thread(target=_greet, args=(settings, browser), daemon=True).start()
    try:
        serve(settings)
    finally:
        instance.withdraw(settings.instance_file)
    return 0


def _greet(settings: Settings, browser: bool) -> None:
    """Announce the app as soon as its page answers, not before."""
    if not instance.wait_until_up(settings.port, _PAGE_TIMEOUT_S):
        return
    instance.announce(settings.instance_file, settings.port)
    url = instance.url_of(settings.port)
    say(f"Trifold is at {url}  (Ctrl-C ends it)")
    if browser:
        _open_browser(url)


def _open_browser(url: str) -> None:
    """Open the page, unless there is no screen: then the default would be a text browser in this very terminal."""
    has_screen = sys.platform in ("win32", "darwin") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if not (has_screen and webbrowser.open(url)):
        say("Open that address in a browser.")
