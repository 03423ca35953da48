"""Shows the page in a separate window (pywebview) instead of a browser tab, if pywebview is installed.

    python -m app.cli.window FOLDER < ADDRESS

The window runs in its own process, because pywebview and the server both need the main thread, and because a crash of
the window must not stop a reading. Closing the window ends the program.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

from app.core.settings import CHECKOUT

PACKAGE = "webview"
MISSING = (
    "A window of its own needs the package pywebview, which is not installed: the page opens in the browser. "
    f"To have the window: {sys.executable} -m pip install pywebview"
)
_SIZE = (1280, 860)
_SMALLEST = (360, 480)


def is_possible() -> bool:
    """Whether pywebview is installed. Checked without importing pywebview."""
    return importlib.util.find_spec(PACKAGE) is not None


def show(address: str, data: Path) -> int:
    """Open the window and wait until the person has closed it.

    Args:
        address: the page's address, which works only once.
        data: the data folder; the window keeps its settings, such as light or dark, in a subfolder.

    Returns:
        the window's exit status; 0 when the person has closed it.
    """
    command = [sys.executable, "-m", "app.cli.window", str(data / "window")]
    quiet = subprocess.DEVNULL
    # not as an argument, because other users of the machine can read a command line, and the token in it
    done = subprocess.run(command, cwd=CHECKOUT, input=address, encoding="ascii", stdout=quiet, stderr=quiet)
    return done.returncode


def main(address: str, folder: str) -> int:
    """Show the window. This is the main function of the window's own process."""
    webview = importlib.import_module(PACKAGE)
    # without this setting, the window would ignore a click that saves a chat
    webview.settings["ALLOW_DOWNLOADS"] = True
    width, height = _SIZE
    webview.create_window("Trifold", address, width=width, height=height, min_size=_SMALLEST, text_select=True)
    webview.start(private_mode=False, storage_path=folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.stdin.read(), sys.argv[1]))
