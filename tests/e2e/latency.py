"""Token to screen: ``python -m tests.e2e.latency [--device cpu] [--tokens 200] [--seconds 0.05]``.

A scripted engine notes when it emits each word, and a real browser when the word stands in the page. Prints the median
and the tenth and ninetieth percentile of the milliseconds between the two, and the processor's share that an open page
of an idle program takes. With ``--device cuda`` the page may be drawn often, with ``cpu`` it leaves the processor to
the engine (``app.core.chat_run.Throttle``). On a busy machine, compare two versions in turn.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from app.core import settings
from app.core.books import Books
from app.core.chats import Chats
from app.core.db import Database
from app.core.state import AppState
from app.web import server
from app.web.auth import opening_address
from app.web.preferences import Preferences
from engine import Question
from engine.events import Event, TextDelta
from tests.app.scripted import ScriptedEngine, engine_status, model_info, wait_for
from tests.e2e.scripted_server import RATES, read
from tests.e2e.steps import PATIENCE, ask
from tests.processes import free_port

IDLE_SECONDS = 3.0
_SETTLED_SECONDS = 1.5  # until the page has drawn all that came last
_WATCH = r"""
() => {
  window.seen = {};
  new MutationObserver(() => {
    const now = performance.timeOrigin + performance.now();
    const words = document.querySelector("#chat .bot .writing")?.textContent.match(/w\d+w/g) ?? [];
    for (const word of words) window.seen[word] ??= now;
  }).observe(document.querySelector("#chat"), { subtree: true, childList: true, characterData: true });
}
"""


class Noting(ScriptedEngine):
    """Notes when it emits each word, in milliseconds since the epoch."""

    def __init__(self, device: str, tokens: int, seconds: float) -> None:
        super().__init__(" ".join(f"w{number}w" for number in range(tokens)), seconds)
        self.now = engine_status(model=model_info(device=device))
        self.emitted: dict[str, float] = {}

    def ask(self, question: Question | str, **cancel: Any) -> Any:
        self.now = dataclasses.replace(self.now, state="answering")
        return super().ask(question, **cancel)

    def _answering(self, *about: Any) -> Iterator[Event]:
        for event in super()._answering(*about):
            if isinstance(event, TextDelta):
                self.emitted[event.text.strip()] = 1000.0 * time.time()
            yield event


def measure(engine: Noting, chromium: str, folder: Path) -> dict[str, float]:
    """Ask one question in a browser."""
    chosen = dataclasses.replace(settings.make_settings(), data=folder, port=free_port())
    database = Database(chosen.library)
    state = AppState(engine, Books(chosen.books, database), Chats(database), read)
    Preferences.rates = lambda _: RATES  # type: ignore[method-assign, assignment]
    http = server._server(server.guarded_app(state, chosen), None)
    (folder / "lamp.txt").write_text("The lamp was lit.")
    state.open(state.books.copy_in(folder / "lamp.txt"))
    with server._listen(chosen.port) as listening, sync_playwright() as driver:
        serving = threading.Thread(target=http.run, kwargs={"sockets": [listening]}, daemon=True)
        serving.start()
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(opening_address(chosen.data, chosen.port))
        page.wait_for_selector('#trifold[data-shown="yes"]', timeout=PATIENCE)
        page.evaluate(_WATCH)
        time.sleep(_SETTLED_SECONDS)
        began = time.process_time()
        time.sleep(IDLE_SECONDS)
        idle = (time.process_time() - began) / IDLE_SECONDS
        ask(page, "Say it.")
        wait_for(lambda: not state.current.asking, PATIENCE)
        time.sleep(_SETTLED_SECONDS)
        seen = page.evaluate("window.seen")
        browser.close()
        http.should_exit = True
        serving.join()
    state.close()
    late = [seen[word] - emitted for word, emitted in engine.emitted.items() if word in seen]
    low, *_, high = statistics.quantiles(late, n=10)
    return {"words": len(late), "median_ms": statistics.median(late), "p10_ms": low, "p90_ms": high, "idle": idle}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.latency")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=0.05, help="between two words")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        chromium = shutil.which("chromium") or shutil.which("google-chrome") or ""
        found = measure(Noting(asked.device, asked.tokens, asked.seconds), chromium, Path(folder))
    print(json.dumps({name: round(value, 3) for name, value in found.items()}))  # noqa: T201 - a tool's result


if __name__ == "__main__":
    main()
