"""No network, no difference: the whole flow in a namespace with loopback alone, and nothing else was even tried.

Where this system gives nobody a namespace, the same flow runs behind a guard that refuses every other address, in
Python and in the browser.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.conftest import make_pair
from tests.processes import browser_path
from tests.tally import count

ROOT = Path(__file__).resolve().parents[2]
_OURS = ("127.0.0.1", "::1", "localhost", "", "0.0.0.0", "None")
_SECONDS = 400

pytestmark = [pytest.mark.browser, pytest.mark.skipif(sys.platform != "linux", reason="namespaces are Linux's")]


def _namespace() -> list[str]:
    """The command that starts another in a network of its own; empty where it is not allowed."""
    command = ["unshare", "-rn"]
    try:
        allowed = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    except OSError:
        allowed = False
    return command if allowed else []


def test_the_whole_flow_without_a_network(tmp_path: Path) -> None:
    chromium = browser_path()
    if chromium is None:
        pytest.skip("no Chromium found on this machine")
    namespace = _namespace()
    environment = {**os.environ, **({} if namespace else {"TRIFOLD_REFUSES": "1"})}
    ended = subprocess.run(
        [*namespace, sys.executable, "-m", "tests.offline.flow", str(tmp_path), chromium, *make_pair(tmp_path)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    asked = [line.split(" ", 1) for line in ended.stdout.splitlines()]
    assert any(event == "watched" for event, _ in asked), "the app was not watched"
    strangers = [(event, host) for event, host in asked if event != "watched" and host not in _OURS]
    assert strangers == []
    count("whole flows without a network")


def test_the_watch_sees_what_it_has_to_see(tmp_path: Path) -> None:
    """A program that calls out is caught, by name and by address."""
    log = tmp_path / "connects.txt"
    program = (
        "import socket, contextlib\n"
        "with contextlib.suppress(OSError): socket.getaddrinfo('evil.example', 80)\n"
        "with contextlib.suppress(OSError): socket.create_connection(('192.0.2.1', 9), 0.2)"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "tests" / "offline" / "hook"),
        "TRIFOLD_CONNECTS": str(log),
        "TRIFOLD_REFUSES": "1",
    }
    subprocess.run([sys.executable, "-c", program], env=environment, timeout=60, check=True)
    seen = log.read_text(encoding="utf-8")
    assert "socket.getaddrinfo evil.example" in seen
    assert "192.0.2.1" in seen
