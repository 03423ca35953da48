"""The doors of the real app, tried from outside: strangers, other sites, paths that lead out, bodies without end.

``tests/app/test_guard.py`` holds the guard to its rules one by one; here the whole server stands behind it.
"""

from __future__ import annotations

import http.client
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.driver import HOST, App
from tests.nursery import Nursery
from tests.tally import count

_SECRET = "the-key-to-everything"
_OUTSIDE = (
    "/{0}", "/../{0}", "/..%2f{0}", "/%2e%2e/{0}", "/%2e%2e%2f{0}", "/..%5c{0}", "/..\\{0}", "/....//{0}",
    "/%252e%252e/{0}",
    "/..;/{0}", "/%c0%ae%c0%ae/{0}", "/.%00./{0}", "/{0}%00.js", "//{0}", "/./{0}", "/C:/{0}", "/~/{0}",
)  # fmt: skip
_SERVERS = (
    "/ui", "/assets", "/static", "/static/img", "/pages", "/citations", "/gradio_api/file=", "/file=",
    "/gradio_api/file", "/custom_component", "/gradio_api/stream", "/gradio_api/download", "",
)  # fmt: skip
_WANTED = (
    "etc/passwd",
    "../../etc/passwd",
    "../../../../../../etc/passwd",
    "page.key",
    "../page.key",
    "app/web/auth.py",
)
_GRADIO = (
    ("POST", "/gradio_api/upload"), ("GET", "/gradio_api/info"), ("GET", "/gradio_api/api_info"),
    ("POST", "/gradio_api/call/ask"),
    ("GET", "/gradio_api/proxy=http://evil.example/"), ("GET", "/proxy=http://evil.example/"), ("POST", "/login"),
    ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/gradio_api/heartbeat/x"),
    ("POST", "/gradio_api/component_server"), ("GET", "/monitoring"), ("GET", "/gradio_api/mcp/sse"),
    ("GET", "/robots.txt"),
    ("GET", "/manifest.json"), ("POST", "/gradio_api/vibe-editor"), ("GET", "/svelte/x.js"), ("GET", "/token"),
    ("PUT", "/books"), ("DELETE", "/"), ("OPTIONS", "/books"), ("TRACE", "/"), ("CONNECT", "/"), ("PATCH", "/live"),
)  # fmt: skip
_WRITES = (
    "/books",
    "/books/open",
    "/books/sample",
    "/reading/stop",
    "/chats/open",
    "/asking/stop",
    "/asking",
)


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, pair: tuple[str, ...], nursery: Nursery | None) -> Iterator[App]:
    with App(tmp_path_factory.mktemp("doors") / "data", pair, nursery=nursery) as running:
        yield running


def test_it_listens_on_this_machine_only(app: App) -> None:
    import psutil

    held = [link.laddr.ip for link in psutil.Process(app.process.pid).net_connections() if link.status == "LISTEN"]
    assert held == [HOST]


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example", "127.0.0.1.nip.io", "127.0.0.1", "0.0.0.0:{port}", "[::]:{port}", "", "a\tb"),
        *("localhost.:{port}", "127.1:{port}", "2130706433:{port}", "0x7f000001:{port}", "[::ffff:127.0.0.1]:{port}"),
        *("127.0.0.1:{port},evil.example", "x@127.0.0.1:{port}", "127.0.0.1:0{port}", "evil.example#127.0.0.1:{port}"),
    ],
)
def test_a_rebound_name_is_refused_with_and_without_the_cookie(app: App, host: str) -> None:
    for path, cookie in itertools.product(("/", "/healthz", "/live", "/config"), (True, False)):
        answer = app.request("GET", path, headers={"Host": host.format(port=app.port)}, cookie=cookie)
        assert answer.status == 400
        count("requests refused at the doors")


def test_a_request_is_what_it_says_itself(app: App) -> None:
    """Lines that proxies write, absolute addresses, two lengths, an upgrade: none of them opens anything."""
    own = f"{HOST}:{app.port}"
    for target, host, lines in (
        ("/config", "evil.example", (f"X-Forwarded-Host: {own}", f"Forwarded: host={own}")),
        (f"http://{own}/config", "evil.example", ()),
        ("http://evil.example/config", own, ()),
        ("/books/open", own, ("X-HTTP-Method-Override: POST",)),
        ("/config", own, ("Content-Length: 0", "Content-Length: 5")),
        ("/config", own, ("Origin: http://evil.example", f"Origin: http://{own}")),
        ("/asking", own, ("Upgrade: websocket", "Sec-WebSocket-Key: eA==", "Sec-WebSocket-Version: 13")),
    ):
        head = "\r\n".join([f"GET {target} HTTP/1.1", f"Host: {host}", *lines, f"Cookie: {app.cookie}", "", ""])
        with socket.create_connection((HOST, app.port), timeout=20) as raw:
            raw.sendall(head.encode())
            assert raw.recv(200).split(b" ")[1] in (b"400", b"403", b"404"), (target, host, lines)
        count("requests refused at the doors")
    forwarded = app.request("GET", "/config", headers={"X-Forwarded-For": "192.0.2.7"})
    assert forwarded.status == 200, "a line that anybody can write is believed"


def test_two_hosts_in_one_request_are_refused(app: App) -> None:
    good = f"Host: {HOST}:{app.port}"
    for lines in ((good, "Host: evil.example"), ("Host: evil.example", good)):
        head = "\r\n".join(["GET /config HTTP/1.1", *lines, f"Cookie: {app.cookie}", "Connection: close", "", ""])
        with socket.create_connection((HOST, app.port), timeout=10) as raw:
            raw.sendall(head.encode())
            assert raw.recv(200).split(b" ")[1] == b"400"
        count("requests refused at the doors")


@pytest.mark.parametrize("path", _WRITES)
def test_another_site_cannot_write(app: App, path: str) -> None:
    for headers in (
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://{HOST}:{app.port + 1}"},
        {"Origin": f"https://{HOST}:{app.port}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Content-Type": "text/plain"},
    ):
        answer = app.request("POST", path, b"{}", headers)
        assert answer.status == 403, (path, headers)
        assert not [name for name in answer.headers if name.startswith("access-control")]
        count("requests refused at the doors")
    assert app.request("POST", path, b"{}", cookie=False).status == 401


@pytest.mark.parametrize("server", _SERVERS)
def test_no_path_leads_out(app: App, server: str, tmp_path: Path) -> None:
    (app.data / "secret.txt").write_text(_SECRET, encoding="utf-8")
    wanted = (*_WANTED, str(app.data / "secret.txt").lstrip("/"))
    for shape, file in itertools.product(_OUTSIDE, wanted):
        target = (server + shape.format(file)).encode("latin-1", "replace").decode("latin-1")
        if target == "/" or " " in target:
            continue
        answer = app.request("GET", target)
        assert answer.status in (400, 404), target
        assert "root:" not in answer.text
        assert _SECRET not in answer.text
        count("paths that lead nowhere")


def test_nothing_of_gradio_is_open_that_we_do_not_use(app: App) -> None:
    for method, path in _GRADIO:
        answer = app.request(method, path, b"" if method != "GET" else None)
        assert answer.status in (400, 404), (method, path)
        count("requests refused at the doors")


def test_every_answer_has_its_headers(app: App) -> None:
    for path in ("/", "/config", "/healthz", "/theme.css", "/ui/main.js", "/nothing", "/assets/nothing.js"):
        answer = app.request("GET", path)
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert answer.headers["x-frame-options"] == "DENY"
        policy = answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy
        assert "default-src 'none'" in policy
        assert "unsafe-eval" not in policy
        assert "script-src 'self' 'unsafe-inline'" not in policy
        assert answer.headers["referrer-policy"] == "same-origin"
        assert "server" not in answer.headers


def test_an_upload_has_its_limit_and_its_kinds(app: App) -> None:
    promised = {"Content-Length": str((200 << 20) + 1)}
    connection = http.client.HTTPConnection(HOST, app.port, timeout=20)
    page = {"Cookie": app.cookie, "Origin": f"http://{HOST}:{app.port}"}
    connection.request("POST", "/books", headers={**page, "x-file-name": "a.txt", **promised})
    assert connection.getresponse().status == 413
    connection.close()
    assert app.give("empty.txt", b"").status == 400
    program, picture = b"MZ\x90\0" + b"\0" * 99, b"\x89PNG\r\n\x1a\n" + b"\0" * 99
    for name, data, cause in (("a.pdf", program, "is a"), ("a.html", picture, "is damaged")):
        state = app.read(name, data)
        assert state["book"]["stage"] == "failed"
        assert cause in state["book"]["trouble"]["cause"]
        count("requests refused at the doors")
    assert app.request("POST", "/books/open", b"x" * (20 << 10)).status == 413
    assert app.post("/books/open", {"id": "../" * 20}).status == 400
    assert app.post("/books/open", {"id": ["a"]}).status == 400
    assert app.request("POST", "/books/open", b"\xff{").status == 400


@pytest.mark.parametrize(
    "name",
    ["../../evil.txt", "/etc/evil", "a\0b.txt", "<img src=x onerror=alert(1)>.txt", "x" * 5000, "con.txt", "‮txt.exe"],
)
def test_a_hostile_file_name_stays_a_name(app: App, name: str) -> None:
    before = {path for path in app.data.rglob("*") if "evil" in path.name}
    assert app.give(name, b"The lamp was lit. " * 40 + name[:40].encode("utf-8", "replace")).status == 200
    state = app.until(lambda state: state["book"]["stage"] in ("ready", "failed"))
    assert state["book"]["stage"] == "ready"
    assert not {path for path in app.data.rglob("*") if "evil" in path.name} - before
    kept = {path.name for path in app.data.rglob("book*") if path.is_file()}
    assert all(len(item) < 20 for item in kept)
    count("hostile file names")


def test_half_a_request_and_endless_heads_do_not_hold_it_up(app: App) -> None:
    open_ends = [socket.create_connection((HOST, app.port), timeout=20) for _ in range(30)]
    for end in open_ends:
        end.sendall(b"POST /books HTTP/1.1\r\nHost: x\r\nX-A: ")
    assert app.request("GET", "/healthz").status == 200
    flood = open_ends[0]
    with pytest.raises(OSError, match=r"."):
        flood.sendall(b"a" * (32 << 20))
    for end in open_ends:
        end.close()
    assert app.request("GET", "/healthz").status == 200
