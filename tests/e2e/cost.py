"""What the page costs the engine: ``python -m tests.e2e.cost [--runs 5] [--tokens 512] [--mode plain] [--json]``.

One process with the bundled models (the end of a text taken away from the target: an answer of eight tokens measures
nothing), the real server and the beginning of the sample book (``--read`` tokens of it: the page costs by the second,
so the book's length changes little); the same greedy answer in three ways, in turn:

    alone     the engine, with nobody looking
    served    asked as the page asks, with one live stream drained at full pace, and no browser
    shown     asked in a real browser that draws the page, the map and the figures

and the median milliseconds per token of each by the engine's own clock; what the pages cost is the median of the runs'
own ratios to "alone", since a machine drifts. "served" is what our code costs; "shown" adds a browser on the same
cores, whose start of an answer weighs the less the longer the answer. Five minutes on a machine that does nothing else,
and only there worth believing; every run is told on stderr as it ends. The promise is under 5 % for "served". Beside
it stands the processor's time of the whole process per token, which other programs disturb less, and of all Python
threads but the engine's (Linux): while one of them works the engine waits, so this is what the page's code costs at
least, and next to nothing disturbs it. The browser's own processor time per token (Linux) stands last: on a machine
without a graphics card it is the engine's cores that draw.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from playwright.sync_api import Page, sync_playwright

from app.core import chat_run, settings
from app.core.question import Ask
from app.core.state import AppState
from app.web import server
from app.web.auth import opening_address
from engine import Question
from engine.config import SamplingParams
from engine.events import Figures
from tests.e2e.steps import WIDE, answer_length, answered, ask
from tests.endless import endless
from tests.processes import free_port

Rounds = Callable[["Bench", Page, int, int, str], dict[str, Any]]

QUESTION = "Continue the story."
MINUTES = 20 * 60.0
READ = 8_192
PROMISE = 0.05
SHUTDOWN_SECONDS = 20.0
ENGINE_THREAD = "trifold-engine"
_LOOK_SECONDS = 0.3
_BROWSER = "chrom"
_PARENT, _TIMES = 1, (11, 12)  # fields of /proc/PID/stat, counted behind the name: parent, user time, system time


class Bench:
    """One app state with its server and one browser page, and three ways to ask."""

    def __init__(self, state: AppState, page: Page, address: str, tokens: int, mode: Any) -> None:
        self._state = state
        self._page = page
        self._address = address
        # Playwright's objects belong to one thread; the one that drains the stream needs the cookie too.
        self._cookies = {cookie["name"]: cookie["value"] for cookie in page.context.cookies()}
        self._sampling = SamplingParams(max_tokens=tokens)
        self._mode = mode
        self.drew = 0.0  # seconds of processor time that the browser spent on the last answer that was shown

    def alone(self) -> Figures:
        with _away(self._page):
            request = self._state.engine.ask(Question(QUESTION, (), self._sampling, self._mode))
            final = list(request)[-1]
        return final.figures

    def served(self) -> Figures:
        self._state.begin_chat()
        ended = threading.Event()
        with _away(self._page):
            reader = threading.Thread(target=self._drain, args=(ended,), daemon=True)
            reader.start()
            asked = Ask(QUESTION, sampling=self._sampling, mode=self._mode)
            chat_run.start(self._state, chat_run.ask(self._state, asked))
            while self.asking:
                time.sleep(_LOOK_SECONDS)
            ended.set()
            reader.join(5)
        return _figures(self._state)

    def shown(self) -> Figures:
        began = self.begin()
        while self.asking:  # looking at the page would cost the engine as well
            time.sleep(_LOOK_SECONDS)
        self.drew = sum(browsers().values()) - began
        return self.end()

    def begin(self) -> float:
        """Ask on the page, in a new chat; the browser's processor time before."""
        self._page.evaluate("document.querySelector('#begin-chat').click()")
        self._page.wait_for_timeout(800)
        began = sum(browsers().values())
        ask(self._page, QUESTION)
        return began

    @property
    def asking(self) -> bool:
        return self._state.current.asking

    @property
    def now(self) -> Figures | None:
        """The figures of the answer that is being written."""
        return self._state.current.figures

    def end(self) -> Figures:
        """Wait until the page shows the end of the answer."""
        answered(self._page, int(MINUTES * 1000))
        return _figures(self._state)

    def _drain(self, ended: threading.Event) -> None:
        with httpx.stream("GET", f"{self._address}live", cookies=self._cookies, timeout=30) as live:
            for _ in live.iter_raw():
                if ended.is_set():
                    return


class _away:
    """The browser looks at nothing while the others are measured."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._was = page.url

    def __enter__(self) -> None:
        self._page.goto("about:blank")

    def __exit__(self, *_: object) -> None:
        _visit(self._page, self._was)


def _visit(page: Page, address: str) -> None:
    """Open the page and wait until all of it is alive."""
    page.goto(address)
    page.wait_for_selector("#ask-box textarea", timeout=60_000)
    page.wait_for_selector('#trifold[data-live="yes"]')


def _figures(state: AppState) -> Figures:
    chat = state.chat
    assert chat is not None
    found = chat.exchanges[-1].figures
    assert found is not None, chat.exchanges[-1].trouble
    return found


def _wait(condition: Callable[[], bool], seconds: float) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.1)


def told(words: str) -> None:
    sys.stderr.write(words + "\n")
    sys.stderr.flush()


def _open(state: AppState, book: Path, read: int) -> None:
    """Have the beginning of a book read."""

    def enough() -> bool:
        current = state.current
        return current.stage.value in ("ready", "failed", "choosing") or (
            current.progress is not None and current.progress.tokens_done >= read
        )

    state.open(state.books.copy_in(book))
    _wait(enough, MINUTES)
    state.stop_reading()
    _wait(lambda: state.current.stage.value in ("ready", "failed", "choosing"), MINUTES)
    assert state.current.stage.value == "ready", state.current.trouble
    told(f"read {state.current.read.tokens if state.current.read else 0:,} tokens")


def measure(
    book: Path, read: int, runs: int, tokens: int, mode: str, chromium: str, rounds: Rounds | None = None
) -> dict[str, Any]:
    """Median milliseconds per token of each way to ask, and the cost of the two pages over the engine alone.

    Args:
        rounds: what to measure on the bench instead.
    """
    with tempfile.TemporaryDirectory() as folder:
        model = endless(Path(shutil.copytree(settings.DEMO_MODEL, Path(folder) / "endless")))
        chosen = dataclasses.replace(settings.make_settings(), data=Path(folder), port=free_port(), model=str(model))
        state = server.make_state(chosen)
        http = server._server(server.guarded_app(state, chosen), None)
        with server._listen(chosen.port) as listening:
            serving = threading.Thread(target=http.run, kwargs={"sockets": [listening]}, daemon=True)
            serving.start()
            _open(state, book, read)
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": WIDE[0], "height": WIDE[1]})
                _visit(page, opening_address(chosen.data, chosen.port))
                _visit(page, f"http://127.0.0.1:{chosen.port}/")
                bench = Bench(state, page, f"http://127.0.0.1:{chosen.port}/", tokens, mode)
                found = (rounds or _rounds)(bench, page, runs, tokens, mode)
                browser.close()
            http.should_exit = True
            serving.join(SHUTDOWN_SECONDS)
        state.close()
    return found


def _rounds(bench: Bench, page: Page, runs: int, tokens: int, mode: str) -> dict[str, Any]:
    ways = {"alone": bench.alone, "served": bench.served, "shown": bench.shown}
    times: dict[str, list[float]] = {name: [] for name in ways}
    processor: dict[str, list[float]] = {name: [] for name in ways}
    beside: dict[str, list[float]] = {name: [] for name in ways}
    browser: list[float] = []
    for run in range(runs + 1):  # the first of each warms up
        for name, way in ways.items():
            if name == "shown":
                same_settings(page, tokens, mode)
            began, others = time.process_time(), _beside_the_engine()
            figures = way()
            spent, others = time.process_time() - began, _beside_the_engine() - others
            same = figures.answer_tokens == tokens
            assert same, f"{name} wrote {figures.answer_tokens} of {tokens} tokens: these cannot be compared"
            told(f"{f'run {run}' if run else 'warming up'}, {name}: {figures.ms_per_token_mean:.1f} ms per token")
            if run:
                times[name].append(float(figures.ms_per_token_mean or 0.0))
                processor[name].append(1000.0 * spent / tokens)
                beside[name].append(1000.0 * others / tokens)
                if name == "shown":
                    browser.append(1000.0 * bench.drew / tokens)
    found: dict[str, Any] = {"tokens": tokens, "mode": mode, "runs": runs}
    for measured, values in (("ms_per_token", times), ("processor_ms_per_token", processor)):
        medians = {name: round(median(each), 3) for name, each in values.items()}
        cost = {
            name: round(median(own / alone for own, alone in zip(values[name], values["alone"], strict=True)) - 1, 4)
            for name in ("served", "shown")
        }
        found[measured] = {"medians": medians, "all": values, "cost": cost}
    alone = found["ms_per_token"]["medians"]["alone"]
    for measured, values in (("beside_the_engine_ms_per_token", beside), ("browser_ms_per_token", {"shown": browser})):
        medians = {name: round(median(each), 3) for name, each in values.items()}
        cost = {name: round(medians[name] / alone, 4) for name in medians if name != "alone"}
        found[measured] = {"medians": medians, "all": values, "cost": cost}
    return found


def _beside_the_engine() -> float:
    """Seconds of processor time of all Python threads but the engine's and this one, which plays the person."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return 0.0
    total = 0.0
    for thread in threading.enumerate():
        if thread.ident and thread.name != ENGINE_THREAD and thread is not threading.main_thread():
            with suppress(OSError):  # it has ended meanwhile
                total += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
    return total


def browsers() -> dict[int, float]:
    """The browser's processes, with seconds of processor time: those descendants of this one that are called so."""
    parents: dict[int, int] = {}
    spent: dict[int, float] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            name, _, rest = status.read_text(encoding="utf-8", errors="replace").rpartition(")")
            fields = rest.split()
            process = int(status.parent.name)
            parents[process] = int(fields[_PARENT])
            if _BROWSER in name:
                spent[process] = sum(int(fields[at]) for at in _TIMES) / os.sysconf("SC_CLK_TCK")
    return {process: seconds for process, seconds in spent.items() if _descends(process, parents)}


def _descends(process: int, parents: dict[int, int]) -> bool:
    while process and process != os.getpid():
        process = parents.get(process, 0)
    return process != 0


def same_settings(page: Page, tokens: int, mode: str) -> None:
    """The page asks as the others do: as many tokens, the same loop."""
    answer_length(page, tokens)
    page.click("#how > button")
    page.click(f"#mode input[value='{mode}']")
    page.click("#how > button")


def arguments(description: str | None, runs: int, tokens: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--book", type=Path, default=settings.SAMPLE_BOOKS / "the-lamplighters-of-orre.pdf")
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--tokens", type=int, default=tokens)
    parser.add_argument("--read", type=int, default=READ, help="tokens of the book that are read")
    parser.add_argument("--mode", choices=("plain", "hierarchical"), default="plain")
    parser.add_argument("--chromium", default=shutil.which("chromium") or "chromium")
    parser.add_argument("--json", action="store_true", help="all numbers as JSON")
    return parser


def main() -> int:
    chosen = arguments(__doc__, runs=5, tokens=512).parse_args()
    found = measure(chosen.book, chosen.read, chosen.runs, chosen.tokens, chosen.mode, chosen.chromium)
    if chosen.json:
        sys.stdout.write(json.dumps(found, indent=1) + "\n")
    else:
        for measured in (name for name, value in found.items() if isinstance(value, dict)):
            for name, value in found[measured]["medians"].items():
                over = found[measured]["cost"].get(name)
                sys.stdout.write(f"{name:8}{value:9.2f} {measured}{'' if over is None else f'  {over:+.1%}'}\n")
    return 0 if found["ms_per_token"]["cost"]["served"] < PROMISE else 1


if __name__ == "__main__":
    raise SystemExit(main())
