"""One running app, found by those that come later; a free port for a new one."""

from __future__ import annotations

import errno
import http.server
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from app.cli import serve as instance
from app.core.settings import HOST, make_settings
from app.web import auth
from engine.errors import ResourceError

SECRET = "s" * 43


class Health(http.server.BaseHTTPRequestHandler):
    """Trifold: it knows the secret of the data folder."""

    secret = SECRET
    name = "trifold"

    def do_GET(self) -> None:
        path, _, challenge = self.path.partition("?challenge=")
        self.send_response(200 if path == "/healthz" else 404)
        self.end_headers()
        proof = auth.LoginTokens(self.secret).prove(challenge, self.connection.getsockname()[1])
        self.wfile.write(json.dumps({"app": self.name, "status": "ok", "proof": proof}).encode())

    def log_message(self, *_: object) -> None:
        return


class Stranger(Health):
    name = "something else"


class Forger(Health):
    """A program of another user that says it is Trifold."""

    secret = "o" * 43


Serve = Callable[[type[Health]], int]


@pytest.fixture(autouse=True)
def secret(tmp_path: Path) -> None:
    (tmp_path / auth.SECRET_FILE).write_text(SECRET, encoding="ascii")


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers = []

    def start(handler: type[Health]) -> int:
        server = http.server.ThreadingHTTPServer((HOST, 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return int(server.server_address[1])

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_running_app_is_found_by_its_announcement(serve: Serve, tmp_path: Path) -> None:
    port = serve(Health)
    file = tmp_path / "instance.json"
    instance.announce(file, port)
    assert os.name != "posix" or file.stat().st_mode & 0o077 == 0
    assert json.loads(file.read_text(encoding="utf-8")) == {"pid": os.getpid(), "port": port}
    assert instance.find_running(file) == port


def test_left_over_announcement_is_not_believed(serve: Serve, tmp_path: Path) -> None:
    file = tmp_path / "instance.json"
    assert instance.find_running(file) is None
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        instance.announce(file, taken.getsockname()[1])  # nothing listens there
    assert instance.find_running(file) is None
    for other in (Stranger, Forger):  # another program has taken the port since
        instance.announce(file, serve(other))
        assert instance.find_running(file) is None
    instance.announce(file, serve(Health))
    (tmp_path / auth.SECRET_FILE).unlink()
    assert instance.find_running(file) is None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"port": "x"}', '{"pid": 1}'])
def test_damaged_announcement_is_not_believed(content: str, tmp_path: Path) -> None:
    file = tmp_path / "instance.json"
    file.write_text(content, encoding="utf-8")
    assert instance.find_running(file) is None
    instance.withdraw(file)


def test_only_its_own_announcement_is_withdrawn(tmp_path: Path) -> None:
    file = tmp_path / "instance.json"
    instance.announce(file, 1)
    instance.withdraw(file)
    assert not file.exists()
    file.write_text(json.dumps({"pid": os.getpid() + 1, "port": 1}), encoding="utf-8")
    instance.withdraw(file)
    assert file.exists()


def test_one_at_a_time_holds_the_data_folder(tmp_path: Path) -> None:
    file = tmp_path / "instance.lock"
    with ExitStack() as first, ExitStack() as second:
        assert instance.hold(first, file)
        assert not instance.hold(second, file)
        first.close()
        assert instance.hold(second, file)
    with ExitStack() as nowhere:
        assert instance.hold(nowhere, tmp_path / "missing" / "instance.lock"), "what cannot be locked keeps nobody out"


def test_a_second_start_waits_for_the_page_of_the_first(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = replace(make_settings(), data=tmp_path)
    port = serve(Health)
    with ExitStack() as first, ExitStack() as second:
        assert instance._hold_or_find(first, settings) is None
        late = threading.Timer(0.2, instance.announce, (settings.instance_file, port))
        late.start()
        assert instance._hold_or_find(second, settings) == port
        late.join()
    assert "one moment" in capsys.readouterr().err


def test_a_removed_announcement_comes_again(serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instance, "_ANNOUNCE_S", 0.01)
    settings, port, ended = replace(make_settings(), data=tmp_path), serve(Health), threading.Event()
    where = settings.instance_file, port, ended
    keeping = threading.Thread(target=instance.keep_announced, args=where)
    with ExitStack() as first, ExitStack() as second:
        assert instance._hold_or_find(first, settings) is None
        assert instance.announce(settings.instance_file, port)
        keeping.start()
        settings.instance_file.unlink()
        assert instance._hold_or_find(second, settings) == port
        ended.set()
        keeping.join()


def test_a_second_start_takes_over_from_one_that_ends(tmp_path: Path) -> None:
    settings = replace(make_settings(), data=tmp_path)
    with ExitStack() as first, ExitStack() as second:
        assert instance._hold_or_find(first, settings) is None
        late = threading.Timer(0.2, first.close)
        late.start()
        assert instance._hold_or_find(second, settings) is None
        late.join()


def test_one_that_never_answers_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(make_settings(), data=tmp_path)
    monkeypatch.setattr(instance, "_START_TIMEOUT_S", 0.0)
    with ExitStack() as first, ExitStack() as second:
        assert instance._hold_or_find(first, settings) is None
        with pytest.raises(ResourceError, match="does not answer"):
            instance._hold_or_find(second, settings)


def test_a_full_disk_keeps_nobody_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert not instance.announce(tmp_path / "instance.json", 1)


def test_taken_port_gives_way_to_a_free_one() -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        other.listen()
        wanted = int(other.getsockname()[1])
        picked = instance.pick_port(wanted)
        assert picked != wanted
        assert 0 < picked < 65536
    assert instance.pick_port(wanted) == wanted
