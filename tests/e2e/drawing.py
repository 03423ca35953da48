"""What drawing the page costs the engine: ``python -m tests.e2e.drawing [--runs 3] [--mode plain] [--json]``.

The same bench as ``tests.e2e.cost``, measured within one answer: the browser's processes are stopped and set going in
turn, a few seconds each, and the engine's milliseconds per token of the one are compared with those of the other. What
drifts with the minutes drifts under both, so this shows a few per cent where whole answers do not. The start of an
answer is not in it, nor what the server does for the page. Linux, three minutes, on a machine that does nothing else.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from contextlib import suppress
from statistics import median
from typing import Any

from playwright.sync_api import Page

from engine.events import Figures
from tests.e2e.cost import Bench, arguments, browsers, measure, same_settings, told

WINDOW_SECONDS = 2.5
_SETTLE_SECONDS = 0.6  # a browser that goes on takes in what has come meanwhile
_BEGIN_SECONDS = 2.0
_ROOM = 4 * (WINDOW_SECONDS + _SETTLE_SECONDS)  # an answer that ends sooner has no further window


def windows(bench: Bench, page: Page, runs: int, tokens: int, mode: str) -> dict[str, Any]:
    """Milliseconds per token of every window, with the browser going and with it stopped."""
    same_settings(page, tokens, mode)
    drawn: list[float] = []
    still: list[float] = []
    drew: list[float] = []
    for run in range(runs):
        bench.begin()
        time.sleep(_BEGIN_SECONDS)
        stopped = bool(run % 2)
        try:
            while _seconds_left(bench, tokens) > _ROOM:
                _signal(signal.SIGSTOP if stopped else signal.SIGCONT)
                time.sleep(_SETTLE_SECONDS)
                before, first = sum(browsers().values()), _figures(bench)
                time.sleep(WINDOW_SECONDS)
                spent, last = sum(browsers().values()) - before, _figures(bench)
                took = (last.time_split.total - first.time_split.total) / (last.answer_tokens - first.answer_tokens)
                (still if stopped else drawn).append(took)
                if not stopped:
                    drew.append(1000.0 * spent / WINDOW_SECONDS)
                stopped = not stopped
        finally:
            _signal(signal.SIGCONT)  # a browser that stands still cannot be closed
        bench.end()
        told(f"run {run + 1}: {len(drawn)} windows drawn, {median(drawn):.1f} ms per token, still {median(still):.1f}")
    return {
        "windows": [len(drawn), len(still)],
        "drawn_ms_per_token": round(median(drawn), 3),
        "still_ms_per_token": round(median(still), 3),
        "cost": round(median(drawn) / median(still) - 1, 4),
        "cost_of_means": round(sum(drawn) / len(drawn) / (sum(still) / len(still)) - 1, 4),
        "browser_ms_per_second": round(median(drew), 1),
        "all": {"drawn": drawn, "still": still},
    }


def _figures(bench: Bench) -> Figures:
    now = bench.now
    assert now is not None, "no answer is being written"
    return now


def _seconds_left(bench: Bench, tokens: int) -> float:
    now = bench.now
    if not bench.asking or now is None:
        return 0.0
    return (tokens - now.answer_tokens) * (now.ms_per_token_mean or 0.0) / 1000.0


def _signal(what: signal.Signals) -> None:
    for process in browsers():
        with suppress(OSError):  # it has ended meanwhile
            os.kill(process, what)


def main() -> None:
    chosen = arguments(__doc__, runs=3, tokens=2048).parse_args()
    found = measure(chosen.book, chosen.read, chosen.runs, chosen.tokens, chosen.mode, chosen.chromium, rounds=windows)
    if not chosen.json:
        del found["all"]
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
