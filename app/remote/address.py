"""Addresses of other servers: what is one, and whether it leaves this machine. Pure."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from engine.errors import OptionError

_EXAMPLE = "It looks like http://127.0.0.1:8000/v1 or https://gpu.example.org/v1."
_MOST_CHARACTERS = 500


@dataclass(frozen=True)
class Address:
    """``base`` ends before /chat/completions; ``host`` is what a person is shown."""

    base: str
    host: str
    stays_here: bool
    encrypted: bool


def parse(text: str) -> Address:
    """Read an address that a person typed.

    Raises:
        OptionError: it is none, or holds a password.
    """
    text = text.strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise OptionError("This is not an address of a server.", _EXAMPLE) from None
    if parts.scheme not in ("http", "https") or not host or len(text) > _MOST_CHARACTERS or not text.isprintable():
        raise OptionError("This is not an address of a server.", _EXAMPLE)
    if parts.username or parts.password or parts.query or parts.fragment or " " in text:
        raise OptionError("The address holds more than a server and a path.", "Put the key into its own field.")
    path = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    shown = host if port is None else f"{host}:{port}"
    return Address(f"{parts.scheme}://{parts.netloc}{path}", shown, _stays_here(host), parts.scheme == "https")


def _stays_here(host: str) -> bool:
    """By its spelling alone: a name could mean another machine by the time it is used."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
