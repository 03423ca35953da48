"""The app command: one running app per person, on a free port, in the browser when its page is ready."""

from __future__ import annotations

import _thread
import argparse
import dataclasses
import errno
import os
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path

from app import visitors
from app.cli import instance, window
from app.launcher.speech import say
from app.settings import Settings
from engine.errors import ResourceError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BROWSER, WINDOW, NOWHERE = "browser", "window", "nowhere"
EXIT_SIGNALLED = 128  # plus the signal's number, as shells count


def run(options: argparse.Namespace, settings: Settings) -> int:
    running = instance.find_running(settings.instance_file)
    if running is not None:
        say("Trifold is running already. To start it with other settings, close it first.")
        _show(dataclasses.replace(settings, port=running), _how(options))
        return 0
    if options.listen:
        settings = dataclasses.replace(settings, password=visitors.demand_password())
        say(visitors.MEANING)
    _make_folder(settings.uploads)
    port = instance.pick_port(settings.port)
    if port != settings.port:
        say(f"Another program uses port {settings.port}; Trifold takes {port}.")
    return _serve(dataclasses.replace(settings, port=port), _how(options))


def _how(options: argparse.Namespace) -> str:
    """Where the page is opened."""
    if not options.window:
        return NOWHERE if options.no_browser else BROWSER
    if window.is_possible():
        return WINDOW
    say(window.MISSING)
    return BROWSER


def _make_folder(folder: Path) -> None:
    """Said at once and in words, and not by the first library that wants to write there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        if error.errno in _FULL:
            return  # what is kept can be read all the same
        reason = error.strerror or type(error).__name__
        raise ResourceError(
            f"Trifold cannot write to {folder.parent} ({reason}).", "Set TRIFOLD_DATA to another folder."
        ) from error


def _serve(settings: Settings, how: str) -> int:
    say("Starting. Ctrl-C ends it.")
    from app.server import serve

    signal.signal(signal.SIGTERM, _leave)
    closed = threading.Event()

    def show() -> None:
        if _show(settings, how):
            closed.set()
            _thread.interrupt_main()  # as Ctrl-C does: the server ends what it is doing

    def greet() -> None:
        instance.announce(settings.instance_file, settings.port)
        # A browser can take its time to return; the server must not wait for it.
        threading.Thread(target=show, daemon=True).start()

    try:
        serve(settings, greet)
    except KeyboardInterrupt:
        if not closed.is_set():
            raise
    finally:
        instance.withdraw(settings.instance_file)
    return 0


def _show(settings: Settings, how: str) -> bool:
    """Say where the page is, and open it. Each address works once, so the browser gets one of its own.

    Returns:
        whether it was a window, and the person has closed it.
    """
    from app.tickets import opening_address

    say(f"Trifold is at {opening_address(settings.data, settings.port)}")
    if settings.password:
        say(f"For others: http://{socket.gethostname()}:{settings.port}/ and the password.")
    if how == WINDOW:
        if window.show(opening_address(settings.data, settings.port), settings.data) == 0:
            return True
        say("The window could not be opened; the page opens in the browser.")
    if how != NOWHERE and not _open_browser(opening_address(settings.data, settings.port)):
        say("No browser could be opened here: open that address in one.")
    return False


def _open_browser(url: str) -> bool:
    """Open the page, unless there is no screen: then the default would be a text browser in this very terminal."""
    has_screen = sys.platform in ("win32", "darwin") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    return has_screen and webbrowser.open(url)


def _leave(number: int, _frame: object) -> None:
    """Being told to end is no fault, and what is open gets closed on the way out."""
    sys.exit(EXIT_SIGNALLED + number)
