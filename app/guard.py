"""Who may come in, and what a page may do: the one door of the local server.

Owns the checks that run before any route: this machine only, our own host name, our own origin, a known route,
a body within its limit, the cookie of the person who started the program. Owns the headers that go out with every
answer, the content security policy among them. Knows no page and no engine.

How a browser gets in: the program opens an address with a ticket that works once; the ticket is turned into a cookie
that other sites cannot send and scripts cannot read (``tickets``). The cookie outlives the program, so that an open
page still works when the program has been started again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from app.tickets import Tickets
from app.visitors import ENTRANCE, FORM, TOO_OFTEN, Visitors

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_LOOPBACK_CLIENTS = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
COOKIE_SECONDS = 30 * 24 * 3600
MEBIBYTE = 1 << 20
_MOST_FORM = 4 << 10  # bytes of what the entrance sends

POLICY = (
    "default-src 'none'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; manifest-src 'self'; worker-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), usb=()"),
)
_SAID_ONCE = (b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"content-length")
_NEVER_IN_A_PATH = ("\\", "\0", "//", ":")  # what makes a path absolute on one system or another
_INLINE_SCRIPT = re.compile(rb"<script(?![^>]*\bsrc\s*=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
_ANSWER = (
    "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    "<title>Trifold</title>{head}<body style='font:18px/1.6 Georgia,serif;max-width:34em;margin:18vh auto;"
    "padding:0 1.5em'><h1 style='font-size:1.3em'>Trifold</h1><p>{sentence}</p>"
)


@dataclass(frozen=True)
class Door:
    """A route that exists. ``path`` ending in "*" stands for everything below it; ``limit`` is bytes of body."""

    method: str
    path: str
    limit: int = 0
    open: bool = False

    def leads(self, method: str, path: str) -> bool:
        if method != self.method and (method, self.method) != ("HEAD", "GET"):
            return False
        return path.startswith(self.path[:-1]) if self.path.endswith("*") else path == self.path


class Guard:
    """ASGI middleware around the whole app.

    Args:
        app: what is guarded.
        port: where the server listens; other ports of this machine are foreign.
        tickets: what may be exchanged for the cookie.
        doors: every route that exists; anything else is 404 before the app sees it.
        visitors: who may come in from other machines; nobody when left out.
    """

    def __init__(
        self, app: App, port: int, tickets: Tickets, doors: Sequence[Door], visitors: Visitors | None = None
    ) -> None:
        self._app = app
        self._hosts = frozenset(f"{name}:{port}" for name in LOOPBACK)
        self._origins = frozenset(f"http://{host}" for host in self._hosts)
        self._cookie = f"trifold_{port}"
        self._key = tickets.cookie
        self._tickets = tickets
        self._doors = tuple(doors)
        self._port = port
        self._visitors = visitors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, _with_headers(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        refusal = _contradicts_itself(scope) or self._stranger(scope, headers)
        if refusal:
            return await _answer(send, *refusal)
        if self._visitors is not None and (scope["method"], scope["path"]) == ("POST", ENTRANCE):
            return await self._enter(self._visitors, receive, send)
        door = self._door(scope["method"], scope["path"])
        if door is None:
            return await _answer(send, 404, "There is nothing at this address.")
        if not door.open and not self._known(headers):
            return await self._admit(scope, headers, send)
        if int(headers.get("content-length", "0") or "0") > door.limit:
            return await _answer(send, 413, _too_large(door))
        await _limited(self._app, door, scope, receive, send)

    def _stranger(self, scope: Scope, headers: MutableMapping[str, str]) -> tuple[int, str] | None:
        client, host = scope.get("client"), headers.get("host", "").lower()
        if self._visitors is None and client is not None and client[0] not in _LOOPBACK_CLIENTS:
            return 403, "Trifold answers this machine only."
        known = self._visitors is not None and self._visitors.is_called(host, self._port)
        if host not in self._hosts and not known:
            return 400, "This is not an address of Trifold. Use the one that it opened."
        if not headers.get("content-length", "0").isdecimal():
            return 400, "The request states no length that makes sense."
        if _is_navigation(scope["method"], headers):
            return None
        if headers.get("origin", f"http://{host}") not in {*self._origins, f"http://{host}"}:
            return 403, "Another site may not talk to Trifold."
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "Another site may not talk to Trifold."
        return None

    def _door(self, method: str, path: str) -> Door | None:
        if ".." in path.split("/") or any(sign in path for sign in _NEVER_IN_A_PATH):
            return None
        return next((door for door in self._doors if door.leads(method, path)), None)

    def _known(self, headers: MutableMapping[str, str]) -> bool:
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == self._cookie and hmac.compare_digest(value.encode(), self._key.encode()):
                return True
        return False

    async def _admit(self, scope: Scope, headers: MutableMapping[str, str], send: Send) -> None:
        token = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        fetched_ahead = "prefetch" in headers.get("sec-purpose", headers.get("purpose", ""))
        first_page = scope["method"] == "GET" and scope["path"] == "/"
        if not (first_page and token and not fetched_ahead and self._tickets.redeem(token)):
            entrance = self._visitors is not None and first_page
            return await _answer(send, 401, FORM if entrance else LOCKED)
        await self._let_in(send)

    async def _enter(self, visitors: Visitors, receive: Receive, send: Send) -> None:
        """A password was sent from the entrance."""
        form, more = b"", True
        while more and len(form) <= _MOST_FORM:
            message = await receive()
            form += message.get("body", b"")
            more = bool(message.get("more_body"))
        refusal = visitors.refuses(form[:_MOST_FORM])
        if refusal:
            return await _answer(send, 429 if refusal == TOO_OFTEN else 401, refusal)
        await self._let_in(send)

    async def _let_in(self, send: Send) -> None:
        cookie = (f"{self._cookie}={self._key}; HttpOnly; SameSite=Strict; Path=/; Max-Age={COOKIE_SECONDS}").encode(
            "ascii"
        )
        # A redirect would belong to the page that linked here, and the strict cookie would not travel with it.
        await _answer(
            send,
            200,
            "One moment.",
            head="<meta http-equiv=refresh content='0;url=/'>",
            extra=[(b"set-cookie", cookie)],
        )


LOCKED = (
    "This page is for the person who started Trifold on this machine, and this address has been used already or is "
    "incomplete. Open the address that Trifold shows when it starts, or start it again."
)


def _contradicts_itself(scope: Scope) -> tuple[int, str] | None:
    """A request that says twice who it is: whoever reads the other one of the two is deceived. No browser does it."""
    names = [name for name, _ in scope["headers"] if name in _SAID_ONCE]
    return (400, "The request says two things at once.") if len(set(names)) < len(names) else None


def _is_navigation(method: str, headers: MutableMapping[str, str]) -> bool:
    """A person following a link or typing the address: it reads a page and can carry no cookie of ours."""
    return method == "GET" and headers.get("sec-fetch-mode") == "navigate" and "origin" not in headers


async def _limited(app: App, door: Door, scope: Scope, receive: Receive, send: Send) -> None:
    """Run the app on a body that is cut off, and answered for, once it has grown past the door's limit."""
    received = 0
    started = refused = False

    async def counted() -> Message:
        nonlocal received, refused
        message = await receive()
        received += len(message.get("body", b""))
        if received <= door.limit:
            return message
        if not started and not refused:
            refused = True
            await _answer(send, 413, _too_large(door))
        return {"type": "http.disconnect"}

    async def watched(message: Message) -> None:
        nonlocal started
        if not refused:
            started = True
            await send(message)

    try:
        await app(scope, counted, watched)
    except Exception:
        if not refused:  # what an app says about a client that seems gone is of no interest
            raise


def _too_large(door: Door) -> str:
    if door.limit < MEBIBYTE:
        return "This is too large to be taken in."
    return f"This is too large: {door.limit // MEBIBYTE} MB is the most that can be taken in."


def _with_headers(send: Send) -> Send:
    """Add our headers to every answer. A page is held back until its end, for the hashes of its inline scripts."""
    held: list[Message] = []

    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = _outgoing(message["headers"])
            message["headers"] = headers
            if _is_page(headers):
                held.append(message)
                return
            headers.append((b"content-security-policy", _policy(b"")))
        elif held:
            held.append(message)
            if message.get("more_body"):
                return
            body = b"".join(part.get("body", b"") for part in held[1:])
            held[0]["headers"].append((b"content-security-policy", _policy(body)))
            await send(held[0])
            message = {"type": "http.response.body", "body": body}
        await send(message)

    return sender


def _outgoing(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    ours = {name for name, _ in _HEADERS}
    kept = [
        (name, value)
        for name, value in headers
        if not name.lower().startswith(b"access-control-") and name.lower() not in ours
    ]
    return [*kept, *_HEADERS]


def _is_page(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/html") for name, value in headers)


def _policy(page: bytes) -> bytes:
    digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _INLINE_SCRIPT.findall(page)]
    return POLICY.format(hashes="".join(f" 'sha256-{digest}'" for digest in digests)).encode("ascii")


async def _answer(
    send: Send, status: int, sentence: str, head: str = "", extra: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    body = _ANSWER.format(head=head, sentence=sentence).encode()
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
