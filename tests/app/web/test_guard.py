"""The guard: who is let in, what is turned away with which status, and what every answer carries."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from app.web import auth
from app.web.auth import (
    LOCKED,
    TOKEN_SECONDS,
    AllowedRoute,
    AsgiMessage,
    Guard,
    LanAuth,
    LoginTokens,
    load_secret,
    opening_address,
)
from engine.errors import ResourceError
from tests.loops import run

PORT = 7860
BASE = f"http://127.0.0.1:{PORT}"
SECRET = "s" * 43
SCRIPT = "console.log('ours')"
ALLOWED = (
    AllowedRoute("GET", "/healthz", open=True),
    AllowedRoute("GET", "/"),
    AllowedRoute("GET", "/files/*"),
    AllowedRoute("POST", "/ask", limit=1000),
)


async def page(request: Request) -> Response:
    headers = {"access-control-allow-origin": "*", "x-frame-options": "SAMEORIGIN"}
    return HTMLResponse(f"<html><script>{SCRIPT}</script><script src='/a.js'></script></html>", headers=headers)


async def ask(request: Request) -> Response:
    return PlainTextResponse(f"{len(await request.body())}")


async def other(request: Request) -> Response:
    return PlainTextResponse("inside")


def guarded(tokens: LoginTokens, lan: LanAuth | None = None) -> Guard:
    routes = [
        Route("/", page),
        Route("/healthz", other),
        Route("/files/{name:path}", other),
        Route("/hidden", other),
        Route("/ask", ask, methods=["POST"]),
    ]
    return Guard(Starlette(routes=routes), PORT, tokens, ALLOWED, lan)


@pytest.fixture
def tokens() -> LoginTokens:
    return LoginTokens(SECRET)


@pytest.fixture
def stranger(tokens: LoginTokens) -> TestClient:
    """A client of this machine that holds nothing."""
    return TestClient(guarded(tokens), base_url=BASE, client=("127.0.0.1", 50000), follow_redirects=False)


@pytest.fixture
def owner(stranger: TestClient, tokens: LoginTokens) -> TestClient:
    """The same client after it has redeemed a login token."""
    assert stranger.get("/", params={"token": tokens.issue()}).status_code == 200
    return stranger


def test_a_login_token_becomes_a_cookie_that_scripts_and_other_sites_cannot_use(
    stranger: TestClient, tokens: LoginTokens
) -> None:
    answer = stranger.get("/", params={"token": tokens.issue()})
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert SECRET not in cookie
    assert stranger.get("/").status_code == 200
    assert SCRIPT in stranger.get("/").text


def test_a_login_token_works_once(tokens: LoginTokens) -> None:
    token = tokens.issue()
    first, second = (TestClient(guarded(tokens), base_url=BASE, client=("127.0.0.1", 1)) for _ in range(2))
    assert first.get("/", params={"token": token}).status_code == 200
    answer = second.get("/", params={"token": token})
    assert answer.status_code == 401
    assert LOCKED in answer.text


def test_a_login_token_works_once_over_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "page.used"
    first = LoginTokens(SECRET, used_file=file)
    used, unused = first.issue(), first.issue()
    assert first.redeem(used)
    again = LoginTokens(SECRET, used_file=file)
    assert not again.redeem(used)
    assert again.redeem(unused)
    file.write_bytes(b"\xff{")
    assert LoginTokens(SECRET, used_file=file).redeem(again.issue()), "a damaged file keeps nobody out"
    nowhere = LoginTokens(SECRET, used_file=tmp_path / "missing" / "page.used")
    assert nowhere.redeem(nowhere.issue())


def test_a_prefetch_does_not_use_a_login_token_up(stranger: TestClient, tokens: LoginTokens) -> None:
    token = tokens.issue()
    assert stranger.get("/", params={"token": token}, headers={"sec-purpose": "prefetch"}).status_code == 401
    assert stranger.get("/", params={"token": token}).status_code == 200


@pytest.mark.parametrize("token", ["", "1.2.3", "x", "....", "１.ａ.b", "a" * 10_000])
def test_a_made_up_login_token_opens_nothing(stranger: TestClient, token: str) -> None:
    assert stranger.get("/", params={"token": token}).status_code == 401


def test_a_login_token_of_another_data_folder_opens_nothing(stranger: TestClient) -> None:
    assert stranger.get("/", params={"token": LoginTokens("o" * 43).issue()}).status_code == 401


def test_a_used_token_stays_used_when_the_clock_was_wrong_for_a_while() -> None:
    now = [1e9]
    tokens = LoginTokens(SECRET, clock=lambda: now[0])
    used = tokens.issue()
    assert tokens.redeem(used)
    now[0] += 2 * TOKEN_SECONDS
    assert tokens.redeem(tokens.issue())
    now[0] -= 2 * TOKEN_SECONDS
    assert not tokens.redeem(used)


def test_a_login_token_grows_old() -> None:
    now = [1_000_000.0]
    tokens = LoginTokens(SECRET, clock=lambda: now[0])
    token = tokens.issue()
    now[0] += TOKEN_SECONDS + 2
    assert not tokens.redeem(token)


@pytest.mark.parametrize("path", ["/", "/files/a", "/ask"])
def test_without_the_cookie_nothing_but_health_answers(stranger: TestClient, path: str) -> None:
    answer = stranger.post(path) if path == "/ask" else stranger.get(path)
    assert answer.status_code == 401
    assert stranger.get("/healthz").status_code == 200


def test_a_wrong_cookie_is_no_cookie(stranger: TestClient) -> None:
    for value in ("", "x", SECRET, LoginTokens("o" * 43).cookie(PORT), LoginTokens(SECRET).cookie(PORT)):
        assert stranger.get("/", headers={"cookie": f"trifold_{PORT}={value}"}).status_code == 401


def test_the_cookie_is_of_one_run_and_one_port(tokens: LoginTokens) -> None:
    """Browsers send it to every port of this machine."""
    others = {tokens.cookie(PORT + 1), LoginTokens(SECRET).cookie(PORT), tokens.cookie_for(SECRET)}
    assert len(others) == 3
    assert tokens.cookie(PORT) not in others


def test_another_user_of_the_machine_is_refused(
    stranger: TestClient, owner: TestClient, tokens: LoginTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert owner.get("/").status_code == 200
    monkeypatch.setattr(auth, "foreign_user", lambda client, port: 1001)
    assert owner.get("/").status_code == 401
    token = tokens.issue()
    assert stranger.get("/", params={"token": token}).status_code == 401
    monkeypatch.setattr(auth, "foreign_user", lambda client, port: None)
    assert stranger.get("/", params={"token": token}).status_code == 200, "who may not use a token does not use it up"


def test_the_owners_cookie_and_tokens_work_on_no_other_machine(owner: TestClient, tokens: LoginTokens) -> None:
    """With ``--listen`` a cookie that was carried to another machine let in there, without the password."""
    app = guarded(tokens, LanAuth("a long password"))
    cookie = {"cookie": f"trifold_{PORT}={tokens.cookie(PORT)}"}
    for address, base, status in (
        ("192.168.1.7", "http://192.168.1.5", 401),
        ("192.168.1.5", "http://192.168.1.5", 200),
        ("127.0.0.1", "http://127.0.0.1", 200),
    ):
        client = TestClient(app, base_url=f"{base}:{PORT}", client=(address, 50000))
        assert client.get("/", headers=cookie).status_code == status
        assert client.get("/", params={"token": tokens.issue()}).status_code == status


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:7860", "127.0.0.1", "127.0.0.1:7861", "127.0.0.1.evil.example:7860", ""]
)
def test_a_foreign_host_is_refused(owner: TestClient, host: str) -> None:
    assert owner.get("/", headers={"host": host}).status_code == 400
    assert owner.get("/healthz", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "LOCALHOST:7860", "[::1]:7860"])
def test_our_own_names_are_known(stranger: TestClient, host: str) -> None:
    assert stranger.get("/healthz", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:7860", "http://127.0.0.1:7861"])
def test_a_foreign_origin_is_refused(owner: TestClient, origin: str) -> None:
    assert owner.post("/ask", headers={"origin": origin}).status_code == 403
    assert owner.get("/files/a", headers={"origin": origin}).status_code == 403


@pytest.mark.parametrize("name", ["origin", "sec-fetch-site", "sec-fetch-mode", "host", "content-length"])
def test_a_request_that_says_two_things_is_refused(owner: TestClient, name: str) -> None:
    """Only the last of the two was looked at."""
    good = {"origin": BASE, "sec-fetch-site": "same-origin", "host": f"127.0.0.1:{PORT}", "content-length": "0"}
    for first, second in (("evil", good.get(name, "cors")), (good.get(name, "cors"), "evil")):
        assert owner.post("/ask", headers=[(name, first), (name, second)]).status_code == 400


def test_our_own_origin_may_write(owner: TestClient) -> None:
    answer = owner.post("/ask", content=b"abc", headers={"origin": BASE, "sec-fetch-site": "same-origin"})
    assert (answer.status_code, answer.text) == (200, "3")


def test_a_change_says_where_it_is_from(owner: TestClient) -> None:
    """A POST with the cookie and nothing else was taken. Every browser says its origin, and others have no cookie."""
    assert owner.post("/ask").status_code == 403
    assert owner.post("/ask", headers={"sec-fetch-site": "none"}).status_code == 403
    for headers in ({"origin": BASE}, {"sec-fetch-site": "same-origin"}):
        assert owner.post("/ask", headers=headers).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_site_may_only_link_here(owner: TestClient, site: str) -> None:
    assert owner.post("/ask", headers={"sec-fetch-site": site}).status_code == 403
    assert owner.get("/files/a", headers={"sec-fetch-site": site, "sec-fetch-mode": "no-cors"}).status_code == 403
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert owner.get("/", headers=link).status_code == 200
    assert owner.post("/ask", headers=link).status_code == 403


def test_a_client_of_another_machine_is_refused(tokens: LoginTokens) -> None:
    far = TestClient(guarded(tokens), base_url=BASE, client=("192.168.1.7", 50000))
    assert far.get("/healthz").status_code == 403


@pytest.mark.parametrize("path", ["/hidden", "/files/../hidden", "/files/%2e%2e/hidden", "/files/..%5chidden", "/x"])
def test_only_known_routes_exist(owner: TestClient, path: str) -> None:
    """Nothing that a library adds to the server is reachable unless it was let in by name."""
    # The client would tidy ".." away, so the path goes in as it stands.
    assert run(raw_status(guarded(LoginTokens(SECRET)), path, owner)) == 404


async def raw_status(app: Guard, path: str, owner: TestClient) -> int:
    from urllib.parse import unquote

    cookie = "; ".join(f"{name}={value}" for name, value in owner.cookies.items())
    scope = {
        "type": "http",
        "method": "GET",
        "path": unquote(path),
        "query_string": b"",
        "headers": [(b"host", f"127.0.0.1:{PORT}".encode()), (b"cookie", cookie.encode())],
        "client": ("127.0.0.1", 1),
    }
    status: list[int] = []

    async def receive() -> AsgiMessage:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: AsgiMessage) -> None:
        if message["type"] == "http.response.start":
            status.append(message["status"])

    await app(scope, receive, send)
    return status[0]


def test_a_method_that_a_route_does_not_have_is_unknown(owner: TestClient) -> None:
    assert owner.post("/files/a").status_code == 404
    assert owner.delete("/").status_code == 404
    assert owner.head("/files/a").status_code == 200


def test_a_body_has_its_limit_stated_or_not(owner: TestClient) -> None:
    owner.headers["origin"] = BASE
    assert owner.post("/ask", content=b"x" * 1000).text == "1000"
    assert owner.post("/ask", content=b"x" * 1001).status_code == 413

    def chunks() -> Iterator[bytes]:
        for _ in range(11):
            yield b"x" * 100

    assert owner.post("/ask", content=chunks()).status_code == 413
    assert owner.post("/ask", content=b"x", headers={"content-length": "many"}).status_code == 400


def test_a_websocket_is_closed(owner: TestClient) -> None:
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), owner.websocket_connect("/"):
        pass


def test_every_answer_carries_the_headers_and_no_cors(owner: TestClient) -> None:
    for answer in (owner.get("/"), owner.get("/files/a"), owner.get("/hidden"), owner.get("/", headers={"host": "e"})):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "same-origin"
        assert answer.headers.get_list("x-frame-options") == ["DENY"]
        assert not [name for name in answer.headers if name.startswith("access-control-")]
        policy = answer.headers["content-security-policy"]
        for rule in (
            "default-src 'none'",
            "img-src 'self' data: blob:",
            "connect-src 'self'",
            "frame-ancestors 'none'",
            "object-src 'none'",
            "base-uri 'none'",
            "form-action 'self'",
        ):
            assert rule in policy


def test_scripts_run_from_our_files_and_from_the_page_as_we_sent_it_only(owner: TestClient) -> None:
    import base64
    import hashlib

    policy = owner.get("/").headers["content-security-policy"]
    scripts = re.search(r"script-src ([^;]*)", policy)
    assert scripts is not None
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert scripts[1].split() == ["'self'", f"'sha256-{digest}'"]


def test_the_secret_is_made_once_and_for_this_person_alone(tmp_path: Path) -> None:
    data = tmp_path / "Mes données"
    secret = load_secret(data)
    assert load_secret(data) == secret
    assert len(secret) >= 32
    if os.name != "nt":
        assert (data / "page.key").stat().st_mode & 0o077 == 0
    (data / "page.key").write_text("short", encoding="ascii")
    assert len(load_secret(data)) >= 32


def test_a_data_folder_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(ResourceError, match="cannot use"):
        load_secret(tmp_path / "file")


def test_a_second_start_can_open_the_page_of_the_first(tmp_path: Path) -> None:
    running = TestClient(guarded(LoginTokens(load_secret(tmp_path))), base_url=BASE, client=("127.0.0.1", 1))
    address = opening_address(tmp_path, PORT)
    assert address.startswith(BASE)
    assert running.get(address.removeprefix(BASE)).status_code == 200
    assert SCRIPT in running.get("/").text
