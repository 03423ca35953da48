"""Other users of the machine: what they may not read, lock or send."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from app.core.private import foreign_user, make_private, tighten
from app.web import secret_file
from tests.house import ROOT

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows has no POSIX permissions")
NOBODY = 65534
# what it needs is imported first: the folder of this Python may be closed to others
AS_NOBODY = f"import fcntl, os, socket; os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); "
is_root = pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can act as another user")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_data_folder_is_closed_and_an_old_one_is_closed_once(tmp_path: Path) -> None:
    assert not make_private(tmp_path / "parent" / "data")
    assert mode(tmp_path / "parent" / "data") == 0o700
    old = tmp_path / "old"
    old.mkdir(mode=0o755)
    assert make_private(old)
    assert mode(old) == 0o700
    assert not make_private(old)


def test_a_folder_with_another_purpose_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    assert not make_private(shared)
    assert mode(shared) == 0o1777
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    tmp_path.chmod(0o755)
    assert not make_private(tmp_path)
    assert mode(tmp_path) == 0o755


def test_old_files_are_closed_and_links_are_not_followed(tmp_path: Path) -> None:
    book, outside = tmp_path / "books" / "ab" / "text.json", tmp_path / "outside.txt"
    book.parent.mkdir(parents=True)
    for file in (book, outside):
        file.write_text("secret")
        file.chmod(0o644)
    (book.parent / "link").symlink_to(outside)
    assert tighten([tmp_path / "books", tmp_path / "missing"]) == 3
    assert [mode(path) for path in (tmp_path / "books", book.parent, book, outside)] == [0o700, 0o700, 0o600, 0o644]
    assert tighten([tmp_path / "books"]) == 0


@is_root
def test_another_user_neither_reads_nor_locks(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-1]):
        folder.chmod(mode(folder) | 0o711 if folder != tmp_path else 0o711)
    data = tmp_path / "data"
    make_private(data)
    (data / "instance.lock").touch(mode=0o644)
    acts = f"fcntl.flock(open({str(data / 'instance.lock')!r}), fcntl.LOCK_EX)"
    done = subprocess.run([sys.executable, "-c", AS_NOBODY + acts], capture_output=True, text=True)
    assert "PermissionError" in done.stderr


def test_who_connects_is_known_by_the_system() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as mine:
            assert foreign_user(mine.getsockname(), port) is None
        assert foreign_user(("127.0.0.1", 1), port) is None
        assert foreign_user(None, port) is None


def own_address() -> str:
    """The address of this machine in its network; "127.0.0.1" without a network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
        probe.connect(("192.0.2.1", 9))  # sends nothing
        return str(probe.getsockname()[0])
    return "127.0.0.1"


@is_root
@pytest.mark.skipif(sys.platform != "linux", reason="the table of connections is Linux'")
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", own_address(), "::1"])
def test_another_user_is_recognised(host: str) -> None:
    """Also at the machine's own address in its network, where ``--listen`` answers too."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as server:
        port = server.getsockname()[1]
        acts = f"s = socket.socket({int(family)}); s.connect(('{host}', {port})); s.recv(1)"
        server.settimeout(10)
        child = subprocess.Popen([sys.executable, "-c", AS_NOBODY + acts])
        try:
            connection, address = server.accept()
            assert foreign_user(address[:2], port) == NOBODY
            connection.close()
        finally:
            child.kill()
            child.wait()


def test_new_files_are_closed() -> None:
    code = "from app.core.private import hide_new_files; import tempfile, os; hide_new_files(); "
    code += "p = os.path.join(tempfile.mkdtemp(), 'f'); open(p, 'w').close(); print(oct(os.stat(p).st_mode & 0o777))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "0o600"


def test_a_data_folder_behind_a_link_is_closed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o755)
    (tmp_path / "data").symlink_to(tmp_path / "real")
    assert make_private(tmp_path / "data")
    assert mode(tmp_path / "real") == 0o700


@is_root
def test_a_secret_that_another_user_has_left_is_not_believed(tmp_path: Path) -> None:
    """In a folder that was open to others."""
    planted = tmp_path / "page.key"
    planted.write_text("p" * 43)
    os.chown(planted, NOBODY, NOBODY)
    assert secret_file.load(planted) != "p" * 43
    assert planted.stat().st_uid == os.getuid()
