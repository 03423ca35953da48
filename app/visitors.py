"""``--listen``: people on other machines, who come in with a password.

Owns the password's rules, the slowing down of those who guess, the names that this machine may be called by, and the
sentences that say what listening means. Knows no server; the guard asks.
"""

from __future__ import annotations

import getpass
import hmac
import ipaddress
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from urllib.parse import parse_qs

from engine.errors import OptionError

VARIABLE = "TRIFOLD_PASSWORD"
EVERYWHERE = "0.0.0.0"
ENTRANCE = "/enter"
SHORTEST = 12
MEANING = (
    "Anybody on your network who knows the password can do here what you can: read and delete books and chats, ask. "
    "The connection is not encrypted: do this only in a network that you trust, never on the open internet."
)

_MOST_WRONG, _WITHIN_S = 10, 60.0

FORM = (
    "Trifold is open to this network. Its password lets you in.</p>"
    f"<form method=post action={ENTRANCE}><p><label>Password <input type=password name=password autofocus required"
    " autocomplete=current-password></label> <button>Enter</button></form><p>"
)
WRONG = "This is not the password. Go back and try again."
TOO_OFTEN = "The password was wrong too often. Wait a minute, then try again."


def demand_password(environ: Mapping[str, str] = os.environ) -> str:
    """The password of this run: from the environment, else typed twice at the terminal.

    Raises:
        OptionError: there is none, or it is too short.
    """
    password = environ.get(VARIABLE, "")
    if not password and sys.stdin.isatty():
        password = getpass.getpass("Password for people on other machines: ")
        if getpass.getpass("Once more: ") != password:
            raise OptionError("The two passwords differ.", "Start again.")
    if not password:
        raise OptionError(
            "Listening to other machines needs a password.", f"Set {VARIABLE} to one of {SHORTEST} characters or more."
        )
    if len(password) < SHORTEST:
        raise OptionError(
            f"This password has {len(password)} characters and can be guessed.", f"Use {SHORTEST} or more."
        )
    return password


class Visitors:
    """Args:
    password: what lets people in.
    clock: seconds that only grow.
    """

    def __init__(self, password: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._password = password.encode()
        self._clock = clock
        self._wrong: deque[float] = deque()
        self._lock = threading.Lock()
        self._name = socket.gethostname().lower()

    def is_called(self, host: str, port: int) -> bool:
        """Whether a Host header can be this machine: an address in digits or its own name, never a name that
        somebody else may have pointed here."""
        name, _, found = host.lower().rpartition(":")
        if found != str(port):
            return False
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name in (self._name, f"{self._name}.local")
        return True

    def refuses(self, form: bytes) -> str:
        """Why the password in a form does not let its sender in, as a sentence; "" if it does."""
        shown = parse_qs(form.decode("utf-8", "replace")).get("password", [""])[0].encode()
        with self._lock:
            now = self._clock()
            while self._wrong and now - self._wrong[0] > _WITHIN_S:
                self._wrong.popleft()
            if len(self._wrong) >= _MOST_WRONG:
                return TOO_OFTEN
            if hmac.compare_digest(shown, self._password):
                return ""
            self._wrong.append(now)
            return WRONG
