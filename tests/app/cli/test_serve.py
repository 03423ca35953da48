"""The app command from start to end, as processes: ports, the second start, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.cli import serve
from app.cli import serve as instance
from app.core.settings import HOST
from engine.errors import ResourceError
from tests.nursery import Nursery
from tests.processes import Process, begun

LIMIT_S = 120
ADDRESS = re.compile(r"Trifold is at (http://127\.0\.0\.1:(\d+)/\?token=\S+)")

Start = Callable[..., Process]


@pytest.fixture
def start(pair: list[str], tmp_path: Path, nursery: Nursery | None) -> Iterator[Start]:
    """Starts the app; what it says goes to a file "said" with its number."""
    processes: list[Process] = []

    def run(*options: str) -> Process:
        command = [sys.executable, "-m", "app.cli", *pair, *options]
        process = begun(command, tmp_path / f"said-{len(processes)}", os.environ, nursery=nursery)
        processes.append(process)
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()


def stand_in_for_a_browser(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From now on a page is opened by a program that notes what it gets. Returns where."""
    notes, program = folder / "opened", folder / "browser.py"
    program.write_text(
        "import re, sys, urllib.request\n"
        "address = sys.argv[1]\n"
        "if address.startswith('file:'):\n"  # as browsers follow a page that leads to another one
        '    address = re.search("url=([^\']+)", urllib.request.urlopen(address).read().decode())[1]\n'
        f"with urllib.request.urlopen(address) as page, open({str(notes)!r}, 'a') as notes:\n"
        "    notes.write(f'{page.status}\\n')\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("BROWSER", shlex.join([sys.executable, str(program), "%s"]))
    monkeypatch.setenv("DISPLAY", ":0")
    return notes


def wait_for_address(file: Path, process: Process) -> tuple[str, int]:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        found = ADDRESS.search(file.read_text(encoding="utf-8"))
        if found:
            return found[1], int(found[2])
        assert process.poll() is None, file.read_text(encoding="utf-8")
        time.sleep(0.1)
    raise AssertionError("the app did not say its address: " + file.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_app_from_start_to_end(
    start: Start, tmp_path: Path, data_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = stand_in_for_a_browser(tmp_path, monkeypatch)
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        taken = int(other.getsockname()[1])
        first = start("--port", str(taken))
        address, port = wait_for_address(tmp_path / "said-0", first)
    assert port != taken
    assert f"uses port {taken}" in (tmp_path / "said-0").read_text(encoding="utf-8")
    announced = json.loads((data_folder / "instance.json").read_text(encoding="utf-8"))
    assert announced == {"pid": first.pid, "port": port}
    with urllib.request.urlopen(address) as page:
        assert page.status == 200
    deadline = time.monotonic() + LIMIT_S
    while not (opened.exists() and opened.read_text()):
        assert time.monotonic() < deadline, "no browser was opened"
        time.sleep(0.1)
    assert opened.read_text() == "200\n"  # at the first attempt: the page was ready

    (data_folder / "instance.json").unlink()  # as somebody does who tidies up
    second = start("--no-browser")
    again, same_port = wait_for_address(tmp_path / "said-1", second)
    assert second.wait(LIMIT_S) == 0
    assert same_port == port
    assert "running already" in (tmp_path / "said-1").read_text(encoding="utf-8")
    with urllib.request.urlopen(again) as page:  # another login token than the first, which has been used
        assert page.status == 200
    assert opened.read_text() == "200\n"
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(address)

    first.send_signal(signal.SIGINT)
    assert first.wait(LIMIT_S) == 130
    assert not (data_folder / "instance.json").exists()
    said = (tmp_path / "said-0").read_text(encoding="utf-8")
    assert "Traceback" not in said
    assert instance.find_running(data_folder / "instance.json") is None


def test_being_told_to_end_leaves_by_the_front_door() -> None:
    with pytest.raises(SystemExit) as caught:
        serve._leave(signal.SIGTERM, None)
    assert caught.value.code == 128 + signal.SIGTERM


def test_no_browser_is_opened_without_a_screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr(serve.webbrowser, "open", lambda url: opened.append(url) or True)
    monkeypatch.setattr(serve.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    assert not serve._open_browser("http://x", tmp_path)
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(serve, "browser_reads_files", lambda: False)
    assert serve._open_browser("http://x", tmp_path)
    assert opened == ["http://x"]


def test_the_token_stands_in_no_command_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    opened: list[str] = []
    monkeypatch.setattr(serve.webbrowser, "open", lambda url: opened.append(url) or True)
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(serve, "browser_reads_files", lambda: True)
    (tmp_path / serve.OPENING_FILE).write_text("an old one that others can read")
    assert serve._open_browser("http://127.0.0.1:1/?token=1.x.y", tmp_path)
    leading = tmp_path / serve.OPENING_FILE
    assert opened == [leading.as_uri()]
    assert "url=http://127.0.0.1:1/?token=1.x.y'" in leading.read_text()
    assert os.name != "posix" or leading.stat().st_mode & 0o077 == 0


def test_a_folder_that_cannot_be_written_is_said_and_no_name_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On Windows ``tempfile`` went on with other names, without an end."""

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(ResourceError, match="Permission denied"):
        serve._make_folder(tmp_path / "uploads")
