"""What changes around the app while it runs: the model folder goes, the clock jumps, the port is taken, it is ended."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from app.core.settings import EXIT_BAD_INPUT
from tests.faults import jumping_clock
from tests.faults.conftest import LONG
from tests.faults.driver import HOST, ROOT, START_SECONDS, App, Asked
from tests.nursery import Nursery
from tests.tally import count

_OTHER_BOOK = b"The oar was cut from ash. " * 60
_YEARS = 10 * 365 * 24 * 3600


def _answers(app: App) -> None:
    asked = app.ask("Who lit it?")
    assert asked.whole, asked


def test_two_starts_at_once_are_one_app(tmp_path: Path, pair: tuple[str, ...], nursery: Nursery | None) -> None:
    """An impatient double-click. The third comes when the first was killed and could say nothing more."""
    apps = [App(tmp_path / "data", pair, nursery=nursery) for _ in range(2)]
    try:
        until = time.monotonic() + START_SECONDS
        while all(app.process.poll() is None for app in apps):
            assert time.monotonic() < until, [app.said for app in apps]
            time.sleep(0.05)
        ended, running = sorted(apps, key=lambda app: app.process.poll() is None)
        running.wait_up()
        assert f"Trifold is at http://{HOST}:{running.port}/" in ended.said, ended.said
        running.kill()
        with App(tmp_path / "data", pair, nursery=nursery) as third:
            assert third.request("GET", "/healthz", cookie=False).status == 200
    finally:
        for app in apps:
            app.end()
    count("starts at once", 2)


def test_the_data_folder_is_removed_under_it(
    tmp_path: Path, pair: tuple[str, ...], nursery: Nursery | None, small_book: bytes
) -> None:
    with App(tmp_path / "data", pair, nursery=nursery) as app:
        assert app.cookie
        assert app.read("lamp.txt", small_book)["book"]["stage"] == "ready"
        _answers(app)
        for _ in range(100):  # a file that the program writes meanwhile makes a removal fail
            shutil.rmtree(tmp_path / "data", ignore_errors=True)
            if not (tmp_path / "data").exists():
                break
        _answers(app)
        assert "was removed" in app.state()["storage"]
    with sqlite3.connect(tmp_path / "data" / "library.db") as kept:
        assert kept.execute("SELECT COUNT(*) FROM messages WHERE text <> ''").fetchone() == (4,)
    assert "Traceback" not in app.said
    count("surroundings that changed")


def test_the_model_folder_is_deleted_under_it(
    tmp_path: Path, pair: tuple[str, ...], nursery: Nursery | None, small_book: bytes
) -> None:
    options = []
    for name, folder in zip(pair[::2], pair[1::2], strict=True):
        options += [name, str(shutil.copytree(folder, tmp_path / Path(folder).name))]
    with App(tmp_path / "data", tuple(options), nursery=nursery) as app:
        assert app.read("lamp.txt", small_book)["book"]["stage"] == "ready"
        for folder in options[1::2]:
            shutil.rmtree(folder)
        _answers(app)
        assert app.read("oar.txt", _OTHER_BOOK)["book"]["stage"] == "ready"
        _answers(app)
        count("surroundings that changed")
    with App(tmp_path / "data", tuple(options), nursery=nursery) as app:
        state = app.until(lambda state: state["model"]["state"] not in ("loading", "ready"))
        assert options[1] in state["model"]["detail"] or Path(options[1]).name in state["model"]["detail"]
        assert "Traceback" not in app.said
        assert app.read("more.txt", _OTHER_BOOK + b"!")["book"]["stage"] == "failed"
    count("surroundings that changed")


def test_the_clock_jumps(tmp_path: Path, pair: tuple[str, ...], nursery: Nursery | None, small_book: bytes) -> None:
    """Ten years on, then twenty back, under an app that answers: no door closes, nothing is out of order."""
    jump = tmp_path / "jump"
    with App(tmp_path / "data", pair, {jumping_clock.FILE: str(jump)}, nursery=nursery) as app:
        assert app.read("lamp.txt", small_book)["book"]["stage"] == "ready"
        for years in (_YEARS, -_YEARS):
            jump.write_text(str(years), encoding="utf-8")
            _answers(app)
            assert app.read(f"{years}.txt", _OTHER_BOOK + str(years).encode())["book"]["stage"] == "ready"
            _answers(app)
            count("surroundings that changed")
        assert len(app.state()["books"]) == 3
        assert app.request("GET", "/").status == 200, "the cookie is still known"


def test_the_port_is_taken(tmp_path: Path, pair: tuple[str, ...], nursery: Nursery | None) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = other.getsockname()[1]
        app = App(tmp_path / "data", (*pair, "--port", str(taken)), nursery=nursery)
        try:
            until = time.monotonic() + 90
            while not (found := re.search(r"Trifold is at http://127.0.0.1:(\d+)/", app.said)):
                assert time.monotonic() < until, app.said
                time.sleep(0.1)
            assert f"Another program uses port {taken}" in app.said
            app.port = int(found[1])
            assert app.port != taken
            assert app.request("GET", "/").status == 200
        finally:
            app.end()
    count("surroundings that changed")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT] if LONG else [signal.SIGTERM])
def test_it_ends_when_told_in_the_middle_of_an_answer(
    tmp_path: Path, pair: tuple[str, ...], nursery: Nursery | None, small_book: bytes, number: int
) -> None:
    app = App(tmp_path / "data", pair, nursery=nursery)
    with app:
        app.read("lamp.txt", small_book)
        answer = app.asking("Tell all of it.", 2048, "hierarchical", Asked(), temperature=1.0)
        next(answer)
        began = time.monotonic()
        os.kill(app.process.pid, number)
        app.process.wait(40)
        assert time.monotonic() - began < 40
        answer.close()
    with App(tmp_path / "data", pair, nursery=nursery) as again:
        state = again.until(lambda state: state["book"]["stage"] == "ready")
        assert state["chat"]["turns"] == 1, "what was asked is kept"
    count("surroundings that changed")


def test_in_the_terminal_every_fault_is_a_sentence(tmp_path: Path, pair: tuple[str, ...]) -> None:
    environment = {**os.environ, "TRIFOLD_DATA": str(tmp_path / "data"), "OMP_NUM_THREADS": "1"}
    commands = (
        (["read", str(tmp_path / "absent.pdf")], "There is no file"),
        (["read", str(tmp_path)], "is a folder"),
        (["--port", "99999"], "port"),
        (["--listen", *pair], "needs a password"),
        (["doctor", "--selftest", "--model", str(tmp_path / "none")], "none"),
    )
    for arguments, says in commands if LONG else commands[-2:]:
        ended = subprocess.run(
            [sys.executable, "-m", "app.cli", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=120,
            check=False,
        )
        assert ended.returncode == EXIT_BAD_INPUT, (arguments, ended.stderr)
        assert says in ended.stderr
        assert "Traceback" not in ended.stderr
        count("faults in the terminal")
