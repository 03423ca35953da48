"""Pictures of the page for the README: ``python -m tests.e2e.picture`` with real models and the sample book.

Writes assets/screenshots/chat-dark.png and chat-light.png. Not a test: run it when the page or the model has changed.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from tests.e2e.steps import WIDE, Server, answered, ask

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "assets" / "screenshots"
MINUTES = 20
SHOWN_QUESTIONS = 2


def main(chromium: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory() as data:
        command = [sys.executable, "-m", "app.cli", "--no-browser", "--port", str(port)]
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "TRIFOLD_DATA": data})
        try:
            _wait_for(port)
            _take(Server(port, Path(data)), chromium)
        finally:
            process.terminate()
            process.wait(30)


def _take(server: Server, chromium: str) -> None:
    questions = json.loads((ROOT / "assets" / "sample" / "sample.json").read_text(encoding="utf-8"))["questions"]
    PICTURES.mkdir(exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDE[0], "height": WIDE[1]}, color_scheme="dark")
        page.goto(server.ticket())
        page.wait_for_selector("#ask-box textarea", state="attached", timeout=60_000)
        page.click("#sample")
        page.wait_for_selector('#trifold[data-stage="ready"]', timeout=MINUTES * 60_000)
        for item in questions[:SHOWN_QUESTIONS]:
            ask(page, item["question"])
            answered(page, MINUTES * 60_000)
        _save(page, "dark")
        page.click("#theme")
        _save(page, "light")
        browser.close()


def _save(page: Page, scheme: str) -> None:
    page.mouse.move(5, 5)
    page.evaluate("document.activeElement.blur()")
    page.wait_for_timeout(800)
    page.screenshot(path=str(PICTURES / f"chat-{scheme}.png"))


def _wait_for(port: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2):
                return
        except OSError:
            time.sleep(0.3)
    raise SystemExit("The app did not start.")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "/usr/bin/chromium")
