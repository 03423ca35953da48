"""One running app per data folder: finds it, announces it, and picks a port for a new one.

The instance file may be left over from a process that was killed, so it is believed only when the app answers.
"""

from __future__ import annotations

import json
import os
import socket
import urllib.request
from pathlib import Path
from typing import Any

from app.settings import HOST

HEALTH_PATH = "/healthz"
PROGRAM_NAME = "trifold"

_ANSWER_TIMEOUT_S = 2


def find_running(instance_file: Path) -> int | None:
    """The port of the app that runs with this data folder, or None."""
    try:
        port = json.loads(instance_file.read_text(encoding="utf-8"))["port"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return port if isinstance(port, int) and answers(port) else None


def announce(instance_file: Path, port: int) -> None:
    instance_file.parent.mkdir(parents=True, exist_ok=True)
    fresh = instance_file.with_suffix(".new")
    fresh.write_text(json.dumps({"pid": os.getpid(), "port": port}), encoding="utf-8")
    os.replace(fresh, instance_file)


def withdraw(instance_file: Path) -> None:
    """Take back the announcement, unless a later start has made its own."""
    try:
        if json.loads(instance_file.read_text(encoding="utf-8")).get("pid") == os.getpid():
            instance_file.unlink()
    except (OSError, ValueError, AttributeError):
        return


def answers(port: int) -> bool:
    """Whether this program, and not just any, answers on a port."""
    return read_health(port).get("app") == PROGRAM_NAME


def read_health(port: int) -> dict[str, Any]:
    """What the app says about itself; empty when it does not answer."""
    local = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy knows nothing of this machine
    try:
        with local.open(f"http://{HOST}:{port}{HEALTH_PATH}", timeout=_ANSWER_TIMEOUT_S) as response:
            health = json.load(response)
    except (OSError, ValueError):
        return {}
    return health if isinstance(health, dict) else {}


def pick_port(wanted: int) -> int:
    """The wanted port, or a free one when another program has it."""
    for port in (wanted, 0):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            if os.name != "nt":  # there it would let two programs share a port
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    return wanted
