"""Decides which requests are admitted, and what the page may load and do in the browser. All checks are made before a
route is called.

Owns the guard, and the headers of every response, including the content security policy. The guard admits a request
only from this machine, to our own host name, from our own origin, to a route that exists, with a body within the
route's limit, and with the cookie of the person who started the program. Open routes need no cookie.

A browser is admitted as follows. The program opens an address with a login token, which works once and is made from a
secret in the data folder. The token is exchanged for a cookie that other sites cannot send and scripts cannot read. Any
process that can read the data folder can make a token. So a second start of the program can open the page of the
program that already runs. Browsers send cookies to every port of this machine, so the cookie is worth nothing after
this run of the program. A page that is still open works again once the program's new page has been opened.

On Linux a request with the cookie or a token is also refused if another user of this machine sends it
(``private.foreign_user``).

With the option ``--listen``, people on other machines are admitted with a password. After several wrong passwords they
have to wait (``LanAuth``). The cookie and the tokens of the person who started the program are worth nothing there,
because they could be read on the way.
"""

from __future__ import annotations

import asyncio
import base64
import getpass
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from app.core.private import foreign_user
from app.core.whole_files import write_whole
from app.web import secret_file
from engine.errors import OptionError

logger = logging.getLogger(__name__)

SECRET_FILE = "page.key"
USED_FILE = "page.used"
TOKEN_SECONDS = 24 * 3600
_USED_KEPT = 100  # number of used tokens that are kept longer than ``TOKEN_SECONDS``
LONGEST_CHALLENGE = 64
"""Maximum characters of a challenge (``LoginTokens.prove``); further ones are ignored."""


def opening_address(data: Path, port: int) -> str:
    """The address that opens the page of the program on ``port`` with this data folder. The address works once."""
    return f"http://127.0.0.1:{port}/?token={LoginTokens(load_secret(data)).issue()}"


def load_secret(data: Path) -> str:
    """Read the secret of this data folder, which is made on first use and readable by this person alone.

    Raises:
        ResourceError: the data folder cannot be read or written.
    """
    return secret_file.load(data / SECRET_FILE)


class LoginTokens:
    """Makes and redeems the login tokens of one data folder.

    Args:
        secret: the result of ``load_secret``.
        clock: returns the seconds since the epoch.
        used_file: the file with the used tokens, so that no token works twice, even after a restart.
    """

    def __init__(self, secret: str, clock: Callable[[], float] = time.time, used_file: Path | None = None) -> None:
        self._secret = secret.encode()
        self._clock = clock
        self._used_file = used_file
        self._run = secrets.token_hex(16)
        self._used = _read_used(used_file) if used_file is not None else {}
        self._lock = threading.Lock()

    def cookie(self, port: int) -> str:
        """The value of the cookie that a redeemed token is exchanged for. Another run of the program, and a program on
        another port, has another one.
        """
        return self._sign(f"owner {port} {self._run}")

    def cookie_for(self, password: str) -> str:
        """The value of the cookie for a password. The cookie becomes invalid when the password changes."""
        return self._sign(f"password {password}")

    def prove(self, challenge: str, port: int) -> str:
        """The proof that a program on ``port`` knows the secret of the data folder. It tells nothing about the secret,
        and is worth nothing for another challenge or port.
        """
        return self._sign(f"health {port} {challenge}")

    def issue(self) -> str:
        content = f"{int(self._clock())}.{secrets.token_urlsafe(12)}"
        return f"{content}.{self._sign(content)}"

    def redeem(self, token: str) -> bool:
        """Redeem a token. Return False if the token was not made with this secret, is too old, or was used before. A
        redeemed token counts as used.
        """
        content, _, signature = token.rpartition(".")
        if not hmac.compare_digest(self._sign(content).encode(), signature.encode()):
            return False
        now = self._clock()
        made = int(content.partition(".")[0])
        with self._lock:
            # the newest stay whatever the clock says: it may be wrong now, and go back to when they were valid
            newest = [*self._used][-_USED_KEPT:]
            self._used = {
                used: when for used, when in self._used.items() if now - when <= TOKEN_SECONDS or used in newest
            }
            if content in self._used or not 0 <= now - made + 1 <= TOKEN_SECONDS:
                return False
            self._used[content] = made
            self._write_used()
        return True

    def _write_used(self) -> None:
        """Store the used tokens. If the disk cannot be written, the program remembers the tokens only until it ends."""
        if self._used_file is not None:
            try:
                write_whole(self._used_file, json.dumps(self._used).encode())
            except OSError as error:
                logger.warning("which addresses were used cannot be written down: %s", error)

    def _sign(self, content: str) -> str:
        return hmac.new(self._secret, content.encode(), hashlib.sha256).hexdigest()


def _read_used(file: Path) -> dict[str, float]:
    try:
        used = json.loads(file.read_text(encoding="utf-8"))
        return {str(content): float(made) for content, made in used.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


VARIABLE = "TRIFOLD_PASSWORD"
EVERYWHERE = "0.0.0.0"
ENGLISH, GERMAN = "en", "de"  # languages of the pages for people who are not logged in
ENTRANCE = "/enter"
SHORTEST = 12  # minimum characters of a password
MEANING = (
    "Anybody on your network who knows the password can do here what you can: read and delete books and chats, ask. "
    "The connection is not encrypted: do this only in a network that you trust, never on the open internet."
)

# maximum wrong passwords from one address within ``_WITHIN_S`` seconds; further passwords from there are refused
_MOST_WRONG = 10
# The same for all addresses together: who has many addresses guesses no faster, and people on other machines wait a
# minute while somebody does. Cookies, and the login tokens of this machine, are not affected.
_MOST_WRONG_TOGETHER = 100
_WITHIN_S = 60.0  # seconds for which a wrong password counts
_MOST_ADDRESSES = 1000  # maximum number of addresses for which wrong passwords are counted
_IPV6_NETWORK = 64  # bits of an IPv6 address that identify the network; a guest can choose the other bits freely

INVITATION = "Trifold is open to this network. Its password lets you in."
WRONG = "This is not the password. Go back and try again."
TOO_OFTEN = "The password was wrong too often. Wait a minute, then try again."


def demand_password(environ: Mapping[str, str] = os.environ) -> str:
    """Get the password of this run from the environment, or have it typed twice at the terminal.

    Raises:
        OptionError: there is no password, the two typed passwords differ, or the password is too short.
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


class LanAuth:
    """Admits people on other machines if they know the password.

    Args:
        password: the password.
        clock: returns seconds that never go back.
    """

    def __init__(self, password: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.password = password
        self._clock = clock
        self._wrong: dict[str, deque[float]] = {}
        self._wrong_together: deque[float] = deque()
        self._lock = threading.Lock()
        self._name = socket.gethostname().lower()

    def is_called(self, host: str, port: int) -> bool:
        """Whether a Host header can mean this machine: it must be an IP address or the machine's own name. Other names
        are refused, because an attacker can let a name of his own resolve to this machine (DNS rebinding).
        """
        name, _, port_text = host.lower().rpartition(":")
        if port_text != str(port):
            return False
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return name in (self._name, f"{self._name}.local")
        return True

    def refuses(self, form: bytes, address: str) -> str:
        """Check the password of a form. Return a sentence that says why it is refused; "" if it is right. A guest who
        has sent too many wrong passwords is refused for a while. If all guests together have sent far too many, every
        guest is.
        """
        shown = parse_qs(form.decode("utf-8", "replace")).get("password", [""])[0].encode()
        with self._lock:
            now, guest = self._clock(), _guest(address)
            wrong = self._wrong.pop(guest, deque())
            for counted in (wrong, self._wrong_together):
                while counted and now - counted[0] > _WITHIN_S:
                    counted.popleft()
            may_try = len(wrong) < _MOST_WRONG and len(self._wrong_together) < _MOST_WRONG_TOGETHER
            if may_try and hmac.compare_digest(shown, self.password.encode()):
                return ""
            self._wrong[guest] = wrong
            if len(self._wrong) > _MOST_ADDRESSES:
                del self._wrong[next(iter(self._wrong))]
            if not may_try:
                return TOO_OFTEN
            wrong.append(now)
            self._wrong_together.append(now)
            return WRONG


def _guest(address: str) -> str:
    """The guest's IPv4 address, or the network of the guest's IPv6 address."""
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address):
        return address
    return str(ip.ipv4_mapped or ipaddress.ip_network((int(ip), _IPV6_NETWORK), strict=False))


AsgiMessage = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_LOOPBACK_CLIENTS = ("127.0.0.1", "::1", "::ffff:127.0.0.1")
COOKIE_SECONDS = 30 * 24 * 3600
MEGABYTE = 1_000_000
_MOST_FORM = 4 << 10  # maximum bytes of the form with a password
_FORM_SECONDS = 20.0  # maximum seconds for its arrival, so that a guest cannot hold connections by sending slowly

POLICY = (
    "default-src 'none'; script-src 'self'{hashes}; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "font-src 'self' data:; connect-src 'self'; manifest-src 'self'; worker-src 'self'; object-src 'none'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # not "no-referrer", with which browsers state no origin for forms, so that the form with the password was refused
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=(), usb=()"),
)
_SAID_ONCE = (b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"content-length")
_NEVER_IN_A_PATH = ("\\", "\0", "//", ":")  # strings with which a path may become absolute on some systems
_LONGEST_PATH = 250  # maximum bytes of a path; the routes of this program are shorter, and file names cannot be longer
MOST_DIGITS = 18  # maximum digits of a number in a path
_INLINE_SCRIPT = re.compile(rb"<script(?![^>]*\bsrc\s*=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
_ANSWER = (
    "<!doctype html><html lang={language}><meta charset=utf-8><meta name=viewport content='width=device-width'>"
    "<title>Trifold</title>{head}<body style='font:18px/1.6 Georgia,serif;max-width:34em;margin:18vh auto;"
    "padding:0 1.5em'><h1 style='font-size:1.3em'>Trifold</h1><p>{sentence}</p>"
)


@dataclass(frozen=True)
class AllowedRoute:
    """A route of the program. A ``path`` that ends in "*" covers every path that begins with the text before the "*".
    ``limit``: maximum bytes of the body. ``open``: whether the route needs no cookie.
    """

    method: str
    path: str
    limit: int = 0
    open: bool = False

    def matches(self, method: str, path: str) -> bool:
        if method != self.method and (method, self.method) != ("HEAD", "GET"):
            return False
        return path.startswith(self.path[:-1]) if self.path.endswith("*") else path == self.path


class Guard:
    """ASGI middleware around the whole app, which admits or refuses every request.

    Args:
        app: the guarded app.
        port: the port on which the server listens; other ports of this machine count as foreign.
        tokens: the tokens that may be exchanged for the cookie.
        allowed: every route that exists; anything else is 404 before the app sees it.
        lan: admits people on other machines; None admits none.
    """

    def __init__(
        self, app: App, port: int, tokens: LoginTokens, allowed: Sequence[AllowedRoute], lan: LanAuth | None = None
    ) -> None:
        self._app = app
        self._hosts = frozenset(f"{name}:{port}" for name in LOOPBACK)
        self._origins = frozenset(f"http://{host}" for host in self._hosts)
        self._cookie = f"trifold_{port}"
        self._key = tokens.cookie(port)
        self._guest_key = tokens.cookie_for(lan.password) if lan is not None else ""
        self._tokens = tokens
        self._allowed = tuple(allowed)
        self._port = port
        self._lan = lan

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, _with_headers(send))
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        language = _preferred(headers)
        refusal = _contradicts_itself(scope) or self._stranger(scope, headers)
        if refusal:
            return await _answer(send, *refusal, language)
        if self._lan is not None and (scope["method"], scope["path"]) == ("POST", ENTRANCE):
            return await self._enter(self._lan, scope, receive, send, language)
        route = self._route(scope["method"], scope["path"])
        if route is None:
            return await _answer(send, 404, "There is nothing at this address.", language)
        if not route.open and not self._known(scope, headers):
            return await self._admit(scope, headers, send, language)
        if not route.open and not _says_its_origin(scope["method"], headers):
            return await _answer(send, 403, "This request does not say which page it is from.", language)
        if int(headers.get("content-length", "0") or "0") > route.limit:
            return await _answer(send, 413, _too_large(route), language)
        await _limited(self._app, route, scope, receive, send, language)

    def _stranger(self, scope: Scope, headers: MutableMapping[str, str]) -> tuple[int, str] | None:
        client, host = scope.get("client"), headers.get("host", "").lower()
        if self._lan is None and client is not None and client[0] not in _LOOPBACK_CLIENTS:
            return 403, "Trifold answers this machine only."
        known = self._lan is not None and self._lan.is_called(host, self._port)
        if host not in self._hosts and not known:
            return 400, ELSEWHERE
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > MOST_DIGITS:
            return 400, "The request states no length that makes sense."
        if _is_navigation(scope["method"], headers):
            return None
        if headers.get("origin", f"http://{host}") not in {*self._origins, f"http://{host}"}:
            return 403, "Another site may not talk to Trifold."
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "Another site may not talk to Trifold."
        return None

    def _route(self, method: str, path: str) -> AllowedRoute | None:
        too_long = len(path.encode("utf-8", "replace")) > _LONGEST_PATH
        if too_long or ".." in path.split("/") or any(sign in path for sign in _NEVER_IN_A_PATH):
            return None
        return next((route for route in self._allowed if route.matches(method, path)), None)

    def _known(self, scope: Scope, headers: MutableMapping[str, str]) -> bool:
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name != self._cookie:
                continue
            if hmac.compare_digest(value.encode(), self._key.encode()):
                return not self._is_foreign(scope)
            if self._guest_key and hmac.compare_digest(value.encode(), self._guest_key.encode()):
                return True
        return False

    def _is_foreign(self, scope: Scope) -> bool:
        """Whether another machine, or another user of this machine, sends the request. A connection from this machine
        to its own address in the network comes from the same address.
        """
        client, server = scope.get("client"), scope.get("server")
        if client and client[0] not in _LOOPBACK_CLIENTS and not (server and client[0] == server[0]):
            logger.warning("%s was refused: it has the cookie or a token of this machine's owner", client[0])
            return True
        owner = foreign_user(scope.get("client"), self._port)
        if owner is not None:
            logger.warning("the user %d of this machine was refused", owner)
        return owner is not None

    async def _admit(self, scope: Scope, headers: MutableMapping[str, str], send: Send, language: str) -> None:
        token = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        fetched_ahead = "prefetch" in headers.get("sec-purpose", headers.get("purpose", ""))
        first_page = scope["method"] == "GET" and scope["path"] == "/"
        may_redeem = first_page and token and not fetched_ahead and not self._is_foreign(scope)
        if not (may_redeem and self._tokens.redeem(token)):
            entrance = self._lan is not None and first_page
            form = _form(language) if entrance else ""
            return await _answer(send, 401, INVITATION if entrance else LOCKED, language, form=form)
        await self._let_in(self._key, send, language)

    async def _enter(self, lan: LanAuth, scope: Scope, receive: Receive, send: Send, language: str) -> None:
        """Check a password that was sent from the entrance page, and set the cookie if it is right."""
        form, more = b"", True
        try:
            async with asyncio.timeout(_FORM_SECONDS):
                while more and len(form) <= _MOST_FORM:
                    message = await receive()
                    form += message.get("body", b"")
                    more = bool(message.get("more_body"))
        except TimeoutError:
            return await _answer(send, 408, WRONG, language)
        client = scope.get("client")
        refusal = lan.refuses(form[:_MOST_FORM], client[0] if client else "")
        if refusal:
            return await _answer(send, 429 if refusal == TOO_OFTEN else 401, refusal, language)
        await self._let_in(self._guest_key, send, language)

    async def _let_in(self, key: str, send: Send, language: str) -> None:
        cookie = (f"{self._cookie}={key}; HttpOnly; SameSite=Strict; Path=/; Max-Age={COOKIE_SECONDS}").encode("ascii")
        # The answer is a page that opens the app. A redirect would not work: the browser would count it as a part of
        # the link that the person followed, and would not send the cookie (SameSite=Strict) from another site's link.
        await _answer(
            send,
            200,
            "One moment.",
            language,
            head="<meta http-equiv=refresh content='0;url=/'>",
            extra=[(b"set-cookie", cookie)],
        )


LOCKED = (
    "This address has been used already or is incomplete. Only the person who started Trifold on this machine can open "
    "this page. Start Trifold again: it then opens the page."
)
ELSEWHERE = "Trifold does not answer at this address. Open the address that it showed when it started."


def _contradicts_itself(scope: Scope) -> tuple[int, str] | None:
    """Refuse a request that repeats a header of ``_SAID_ONCE``, because the guard and the app could read different
    values. Return status and sentence of the refusal; None for any other request. Browsers never repeat these headers.
    """
    names = [name for name, _ in scope["headers"] if name in _SAID_ONCE]
    return (400, "The request says two things at once.") if len(set(names)) < len(names) else None


def _says_its_origin(method: str, headers: MutableMapping[str, str]) -> bool:
    """Whether a request states its origin, as browsers do for every request that changes something. True for any
    request that only reads. ``_stranger`` has already checked that a stated origin is our own.
    """
    reads = method in ("GET", "HEAD")
    return reads or "origin" in headers or headers.get("sec-fetch-site") == "same-origin"


def _is_navigation(method: str, headers: MutableMapping[str, str]) -> bool:
    """Whether the browser sent a request because a person followed a link or typed the address. Such a request only
    reads a page. If the link was on another site, the browser sends none of our cookies.
    """
    return method == "GET" and headers.get("sec-fetch-mode") == "navigate" and "origin" not in headers


async def _limited(app: App, route: AllowedRoute, scope: Scope, receive: Receive, send: Send, language: str) -> None:
    """Pass a request to the app with at most ``route.limit`` bytes of its body. If the body is larger, the app is told
    that the client has disconnected, and the request is answered with an error.
    """
    received = 0
    started = refused = False

    async def counted() -> AsgiMessage:
        nonlocal received, refused
        message = await receive()
        received += len(message.get("body", b""))
        if received <= route.limit:
            return message
        if not started and not refused:
            refused = True
            await _answer(send, 413, _too_large(route), language)
        return {"type": "http.disconnect"}

    async def watched(message: AsgiMessage) -> None:
        nonlocal started
        if not refused:
            started = True
            await send(message)

    try:
        await app(scope, counted, watched)
    except Exception:
        # After a refusal, the app was told that the client has disconnected, so an error of the app is expected.
        if not refused:
            raise


def _too_large(route: AllowedRoute) -> str:
    if route.limit < MEGABYTE:
        return "This is too large to be taken in."
    return f"This is too large: {route.limit // MEGABYTE} MB is the most that can be taken in."


def _with_headers(send: Send) -> Send:
    """Add our headers to every response. A page is sent only when it is complete, because its headers need the hashes
    of its inline scripts.
    """
    held: list[AsgiMessage] = []

    async def sender(message: AsgiMessage) -> None:
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


def _preferred(headers: Mapping[str, str]) -> str:
    """Return the first of the browser's languages that the pages for people who are not logged in support; English if
    they support none of these languages.
    """
    offered = (part.strip()[:2].lower() for part in headers.get("accept-language", "").split(","))
    return next((language for language in offered if language in (ENGLISH, GERMAN)), ENGLISH)


@cache
def _german() -> Mapping[str, str]:
    table: dict[str, str] = json.loads((Path(__file__).parent / "page" / "de.json").read_text(encoding="utf-8"))
    return table


def in_language(sentence: str, language: str) -> str:
    return _german().get(sentence, sentence) if language == GERMAN else sentence


def _form(language: str) -> str:
    """The form of the entrance page. It is translated on the server, because the scripts that translate the page are
    only served after the login.
    """
    return (
        f"<form method=post action={ENTRANCE}><p><label>{in_language('Password', language)} <input type=password "
        "name=password autofocus required autocomplete=current-password></label> "
        f"<button>{in_language('Open', language)}</button></form>"
    )


async def _answer(
    send: Send,
    status: int,
    sentence: str,
    language: str = ENGLISH,
    *,
    head: str = "",
    form: str = "",
    extra: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    page = _ANSWER.format(head=head, sentence=in_language(sentence, language), language=language) + form
    body = page.encode()
    headers = [
        (b"content-type", b"text/html; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
