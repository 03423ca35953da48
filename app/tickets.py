"""What opens the page for its owner: a secret in the data folder, and tickets made from it.

Owns the secret, the tickets (they open the door once each) and the cookie that a ticket is exchanged for. Whoever
can read the data folder can make a ticket; so a second start of the program can open the page of the first. Knows
no server.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path

from engine.errors import ResourceError

SECRET_FILE = "page.key"
TICKET_SECONDS = 24 * 3600

_SECRET_LENGTH = 32


def opening_address(data: Path, port: int) -> str:
    """The address that opens the page of the program that runs on ``port`` with this data folder; it works once."""
    return f"http://127.0.0.1:{port}/?token={Tickets(load_secret(data)).issue()}"


def load_secret(data: Path) -> str:
    """The secret of this data folder, made on first use and readable by this person alone.

    Raises:
        ResourceError: the data folder cannot be read or written.
    """
    path = data / SECRET_FILE
    try:
        return _read_secret(path) or _make_secret(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ResourceError(f"Trifold cannot use {path} ({reason}).", "Set TRIFOLD_DATA to another folder.") from error


def _read_secret(path: Path) -> str | None:
    try:
        secret = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return secret if len(secret) >= _SECRET_LENGTH else None


def _make_secret(path: Path) -> str:
    secret = secrets.token_urlsafe(_SECRET_LENGTH)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(secret, encoding="ascii")
    return secret


class Tickets:
    """Args:
    secret: what ``load_secret`` gave.
    clock: seconds since the epoch.
    """

    def __init__(self, secret: str, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret.encode()
        self._clock = clock
        self._used: dict[str, float] = {}
        self._lock = threading.Lock()

    @property
    def cookie(self) -> str:
        """The value of the cookie that stands for a ticket that was redeemed."""
        return self._sign("cookie")

    def issue(self) -> str:
        content = f"{int(self._clock())}.{secrets.token_urlsafe(12)}"
        return f"{content}.{self._sign(content)}"

    def redeem(self, ticket: str) -> bool:
        """Whether the ticket is ours, fresh and unused; it is used now."""
        content, _, signature = ticket.rpartition(".")
        if not hmac.compare_digest(self._sign(content).encode(), signature.encode()):
            return False
        now = self._clock()
        made = int(content.partition(".")[0])
        with self._lock:
            self._used = {used: when for used, when in self._used.items() if now - when <= TICKET_SECONDS}
            if content in self._used or not 0 <= now - made + 1 <= TICKET_SECONDS:
                return False
            self._used[content] = made
        return True

    def _sign(self, content: str) -> str:
        return hmac.new(self._secret, content.encode(), hashlib.sha256).hexdigest()
