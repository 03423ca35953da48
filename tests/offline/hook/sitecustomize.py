"""Loaded by every Python process of the offline proof: writes down each address that is asked for or connected to."""

import os
import sys

_FILE = os.environ.get("TRIFOLD_CONNECTS", "")
_REFUSES = bool(os.environ.get("TRIFOLD_REFUSES"))
_WATCHED = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg")
_OURS = ("127.0.0.1", "::1", "localhost", "", "0.0.0.0", "None")


def _note(event, host):  # type: ignore[no-untyped-def]
    with open(_FILE, "a", encoding="utf-8") as log:
        log.write(f"{event} {host}\n")


def _look(event, arguments):  # type: ignore[no-untyped-def]
    if event not in _WATCHED:
        return
    asked = arguments[1] if event in ("socket.connect", "socket.sendto", "socket.sendmsg") else arguments[0]
    host = asked[0] if isinstance(asked, tuple) and asked else asked
    host = host.decode("utf-8", "replace") if isinstance(host, bytes) else str(host)
    if host.startswith("/") or host.startswith("\0"):
        return  # a socket in the file system of this machine
    _note(event, host)
    if _REFUSES and host not in _OURS:
        raise OSError("no connection leaves this machine")


if _FILE:
    _note("watched", str(os.getpid()))
    sys.addaudithook(_look)
