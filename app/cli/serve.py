"""``app`` starts the app on a free port, and opens its page in the browser when the page is ready. At most one app runs
per data folder.

A running app holds the operating system's lock on a file in the data folder. The lock ends with the app's process.
Another file, the instance file, has the running app's port. The instance file may be left over from a killed process,
and anybody may listen on its port since, so the port counts only if an app answers there that knows the secret of the
data folder.
"""

from __future__ import annotations

import _thread
import argparse
import dataclasses
import errno
import hmac
import json
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import webbrowser
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from app.cli import window
from app.core.atomic_upload import sweep_temporary
from app.core.private import hide_new_files, tighten, umask
from app.core.settings import HEALTH_PATH, HOST, PROGRAM_NAME, Settings
from app.core.whole_files import PRIVATE, write_whole
from app.launcher import lock
from app.launcher.console import say
from app.web import auth
from engine.errors import ResourceError

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 2
_START_TIMEOUT_S = 120.0  # maximum seconds to wait until an app that was started earlier answers or ends
_LOOK_S = 0.3
_ANNOUNCE_S = 1.0  # seconds between two checks whether the instance file was removed
_ASK_DESKTOP_S = 3.0  # maximum seconds to wait for each answer about the desktop's browser
OPENING_FILE = "open.html"
_LEADING = (
    "<!doctype html><meta charset=utf-8><meta name=referrer content=no-referrer>"
    "<meta http-equiv=refresh content='0;url={}'>"
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BROWSER, WINDOW, NOWHERE = "browser", "window", "nowhere"
# As in shells, the exit status of a program that a signal has ended is this number plus the signal's number.
EXIT_SIGNALLED = 128


def run(options: argparse.Namespace, settings: Settings) -> int:
    own_umask = hide_new_files()
    tighten(settings.own_files)
    running = find_running(settings.instance_file)
    if running is not None:
        return _show_running(running, options, settings, own_umask)
    if options.listen:
        settings = dataclasses.replace(settings, password=auth.demand_password())
        say(auth.MEANING)
    _make_folder(settings.uploads)
    sweep_temporary(Path(tempfile.gettempdir()))
    with ExitStack() as held:
        running = _hold_or_find(held, settings)
        if running is not None:
            return _show_running(running, options, settings, own_umask)
        port = pick_port(settings.port)
        if port != settings.port:
            say(f"Another program uses port {settings.port}; Trifold takes {port}.")
        return _serve(dataclasses.replace(settings, port=port), _how(options), own_umask)


def _show_running(port: int, options: argparse.Namespace, settings: Settings, own_umask: int) -> int:
    say("Trifold is running already. To start it with other settings, close it first.")
    _show(dataclasses.replace(settings, port=port), _how(options), own_umask)
    return 0


def _hold_or_find(locks: ExitStack, settings: Settings) -> int | None:
    """Lock the data folder until ``locks`` is closed, and return None. If another app has locked the folder, return
    that app's port as soon as that app answers.

    Raises:
        ResourceError: another app has locked the folder and does not answer.
    """
    until = time.monotonic() + _START_TIMEOUT_S
    said = False
    while not hold(locks, settings.lock_file):
        if (port := find_running(settings.instance_file)) is not None:
            return port
        if not said:
            say("Trifold is being started or closed already; one moment.")
            said = True
        if time.monotonic() > until:
            raise ResourceError(
                f"Another running Trifold uses {settings.data} and does not answer.",
                "End that Trifold, or set TRIFOLD_DATA to another folder.",
            )
        time.sleep(_LOOK_S)
    return None


def _how(options: argparse.Namespace) -> str:
    """Return how the page is to be opened: in a window, in the browser, or only as a printed address."""
    if not options.window:
        return NOWHERE if options.no_browser else BROWSER
    if window.is_possible():
        return WINDOW
    say(window.MISSING)
    return BROWSER


def _make_folder(folder: Path) -> None:
    """Make the data folder. Raise an error with a remedy if it cannot be written, before a library tries to write
    there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # ``tempfile`` is not used, because on Windows it may try names for ever in a folder that cannot be written to
        probe = folder / f".can-write-{os.getpid()}"
        probe.touch()
        with suppress(OSError):
            probe.unlink()
    except OSError as error:
        if error.errno in _FULL:
            return  # the app starts even with a full disk, because saved data can still be read
        reason = error.strerror or type(error).__name__
        raise ResourceError(
            f"Trifold cannot write to {folder.parent} ({reason}).", "Set TRIFOLD_DATA to another folder."
        ) from error


def _serve(settings: Settings, how: str, own_umask: int) -> int:
    say("Starting. Ctrl-C ends it.")
    from app.web.server import serve

    signal.signal(signal.SIGTERM, _leave)
    closed, ended = threading.Event(), threading.Event()

    def show() -> None:
        if _show(settings, how, own_umask):
            closed.set()
            _thread.interrupt_main()  # acts like Ctrl-C, which ends the server

    def greet() -> None:
        if announce(settings.instance_file, settings.port):
            where = settings.instance_file, settings.port, ended
            threading.Thread(target=keep_announced, args=where, daemon=True).start()
        # The call that opens the browser may take long, and the server must not wait for it.
        threading.Thread(target=show, daemon=True).start()

    try:
        serve(settings, greet)
    except KeyboardInterrupt:
        if not closed.is_set():
            raise
    finally:
        ended.set()
        withdraw(settings.instance_file)
    return 0


def _show(settings: Settings, how: str, own_umask: int) -> bool:
    """Print the page's address, and open the page. Each address works only once, so the printed address and the address
    for the browser differ.

    Returns:
        whether the page was shown in a window, which the person has closed by now.
    """
    from app.web.auth import opening_address

    say(f"Trifold is at {opening_address(settings.data, settings.port)}")
    if settings.password:
        say(f"For others: http://{socket.gethostname()}:{settings.port}/ and the password.")
    if how == WINDOW:
        if window.show(opening_address(settings.data, settings.port), settings.data) == 0:
            return True
        say("The window could not be opened; the page opens in the browser.")
    if how == NOWHERE:
        return False
    address = opening_address(settings.data, settings.port)
    with umask(own_umask):  # files that the browser saves are the person's own affair
        if not _open_browser(address, settings.data):
            say("No browser could be opened here: open that address in one.")
    return False


def _open_browser(url: str, data: Path) -> bool:
    """Open the page in the browser. Return whether that was possible. Without a screen no browser is opened, because
    Python would start a text browser in the terminal.

    The browser is given a file in the data folder that leads to ``url``, because other users of the machine can read a
    command line, and the token in it. A browser that cannot read the file is given ``url``; on Linux, where such
    browsers are (snaps cannot read hidden folders), the guard refuses a token from another user.
    """
    has_screen = sys.platform in ("win32", "darwin") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if not has_screen:
        return False
    if sys.platform == "linux" and not browser_reads_files():
        return webbrowser.open(url)
    leading = data / OPENING_FILE
    try:
        write_whole(leading, _LEADING.format(url), PRIVATE)
    except OSError:
        return webbrowser.open(url)
    return webbrowser.open(leading.as_uri())


def browser_reads_files() -> bool:
    """Whether a page in the data folder opens in the browser of this Linux desktop: HTML files belong to the browser,
    and it is no snap.
    """
    asked = (("xdg-settings", "get", "default-web-browser"), ("xdg-mime", "query", "default", "text/html"))
    try:
        names = {subprocess.run(one, capture_output=True, timeout=_ASK_DESKTOP_S).stdout.strip() for one in asked}
    except (OSError, subprocess.SubprocessError):
        return False
    name = names.pop().decode("utf-8", "replace") if len(names) == 1 else ""
    return bool(name) and not (Path("/var/lib/snapd/desktop/applications") / name).exists()


def _leave(number: int, _frame: object) -> None:
    """Exit in the ordinary way on SIGTERM, so that open files and the engine are closed."""
    sys.exit(EXIT_SIGNALLED + number)


# The lock ------------------------------------------------------------------------------------------------------------


def hold(locks: ExitStack, path: Path) -> bool:
    """Lock a file until ``locks`` is closed or the process ends. Return False if another process has locked the file. A
    file that cannot be opened counts as locked by this process.
    """
    try:
        file = locks.enter_context(path.open("ab"))
    except OSError as error:
        logger.warning("the data folder cannot be locked: %s", error)
        return True
    if lock.take(file):
        return True
    file.close()
    return False


# The instance file ---------------------------------------------------------------------------------------------------


def find_running(instance_file: Path) -> int | None:
    """Return the port that the instance file names if the app of this data folder answers there; otherwise None."""
    try:
        port = json.loads(instance_file.read_text(encoding="utf-8"))["port"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return port if isinstance(port, int) and answers(port, instance_file.parent) else None


def announce(instance_file: Path, port: int) -> bool:
    """Write the app's port into the instance file. Return False if the file cannot be written, for example on a full
    disk; the page works without it.
    """
    try:
        instance_file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(instance_file, json.dumps({"pid": os.getpid(), "port": port}), PRIVATE)
    except OSError as error:
        logger.warning("where the page is cannot be written down: %s", error)
        return False
    return True


def keep_announced(instance_file: Path, port: int, ended: threading.Event) -> None:
    """Write the instance file again whenever it is removed, until ``ended`` is set. Without the file, a second start
    would find the data folder locked, but could not find the running app's port.
    """
    while not ended.wait(_ANNOUNCE_S):
        if not instance_file.exists() and not (instance_file.parent.exists() and announce(instance_file, port)):
            return  # the data folder, with the lock file in it, was deleted, or the file cannot be written


def withdraw(instance_file: Path) -> None:
    """Remove the instance file, unless it belongs to another process."""
    try:
        if json.loads(instance_file.read_text(encoding="utf-8")).get("pid") == os.getpid():
            instance_file.unlink()
    except (OSError, ValueError, AttributeError, RecursionError):
        return


def answers(port: int, data: Path) -> bool:
    """Whether the program that answers on a port is the Trifold of a data folder: it proves that it knows the folder's
    secret, which is not sent.
    """
    if not (data / auth.SECRET_FILE).exists():
        return False
    challenge = secrets.token_hex(16)
    health = read_health(port, challenge)
    proof = auth.LoginTokens(auth.load_secret(data)).prove(challenge, port)
    return health.get("app") == PROGRAM_NAME and hmac.compare_digest(str(health.get("proof")).encode(), proof.encode())


def read_health(port: int, challenge: str = "") -> dict[str, Any]:
    """Ask the app on a port for its health report, with its answer to a ``challenge`` (``LoginTokens.prove``). Return
    {} if no app answers.
    """
    # no proxy is used, because a proxy could not reach an address of this machine
    local = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with local.open(
            f"http://{HOST}:{port}{HEALTH_PATH}?challenge={challenge}", timeout=_ANSWER_TIMEOUT_S
        ) as response:
            health = json.load(response)
    except (OSError, ValueError, RecursionError):
        return {}
    return health if isinstance(health, dict) else {}


def pick_port(preferred: int) -> int:
    """Return the port ``preferred``, or any free port if another program uses that one."""
    for port in (preferred, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            if os.name != "nt":  # on Windows, SO_REUSEADDR would let two programs share a port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return preferred
