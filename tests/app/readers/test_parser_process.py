"""The child process: crashes, cancels, orphans, memory, what it loads and what it is told."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from app.readers import document_reader, read_document
from app.readers.parser_process import ChildFailed, run_in_child
from engine import sandbox
from engine.errors import DocumentError, ResourceError
from engine.sandbox import Bounds
from tests.parsers import reading_children

pytestmark = pytest.mark.usefixtures("real_children")

_PAGES = [[(72, 700, f"Words that stand on page {'abcdefgh'[at]} only.")] for at in range(8)]
_MANY = 3_000


@pytest.fixture
def slow(files: Any) -> Path:
    """So many pages that the child is met at work when the first ones are told."""
    path: Path = files.pdf("slow.pdf", [[(72, 700, f"Words that stand on page {at} only.")] for at in range(_MANY)])
    return path


def _child() -> psutil.Process:
    children = reading_children()
    assert len(children) == 1
    return children[0]


def test_crash_on_a_page_is_read_again_by_the_second_reader(slow: Path) -> None:
    killed: list[int] = []

    def crash(done: int, total: int) -> None:
        if done == 2 and not killed:
            killed.append(_child().pid)
            _child().kill()

    document = read_document(slow, progress=crash)
    assert killed
    assert len(document.pages) == _MANY
    assert all(page.text == f"Words that stand on page {at} only." for at, page in enumerate(document.pages))
    assert document.warnings == ()


def test_page_that_always_crashes_is_a_warning_with_its_number(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, str]] = []

    def failing(request: dict[str, Any], *rest: Any) -> Generator[dict[str, Any], None, None]:
        told.append(request["trouble"])
        if len(told) < 3:
            raise ChildFailed("crash", 3)
        yield from run_in_child(request, *rest)

    monkeypatch.setattr(document_reader, "run_in_child", failing)
    document = read_document(files.pdf("a.pdf", _PAGES))
    assert told == [{}, {"3": "second"}, {"3": "made its reader crash"}]
    assert [bool(page.text) for page in document.pages] == [True, True, False] + [True] * 5
    assert document.warnings == ("Page 3 could not be read: made its reader crash.",)


def test_file_that_breaks_on_every_page_is_given_up(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[int] = []

    def failing(request: dict[str, Any], *rest: Any) -> Generator[dict[str, Any], None, None]:
        tries.append(1)
        raise ChildFailed("crash", len(tries))
        yield {}

    monkeypatch.setattr(document_reader, "run_in_child", failing)
    with pytest.raises(DocumentError, match="too many pages"):
        read_document(files.pdf("a.pdf", _PAGES))
    assert len(tries) < 20


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_cancel_ends_the_child(slow: Path, error: type[BaseException]) -> None:
    started: list[psutil.Process] = []

    def cancel(done: int, total: int) -> None:
        if done == 2:
            started.append(_child())
            raise error

    with pytest.raises(error):
        read_document(slow, progress=cancel)
    assert not started[0].is_running()
    assert not reading_children()


def test_child_does_not_outlive_a_killed_parent(slow: Path, checkout: Path) -> None:
    program = (
        "import os, sys, psutil; from pathlib import Path; from app.readers import read_document\n"
        "def die(done, total):\n"
        "    if done == 2: print(psutil.Process().children()[0].pid, flush=True), os._exit(9)\n"
        "read_document(Path(sys.argv[1]), progress=die)"
    )
    out = subprocess.run(
        [sys.executable, "-c", program, str(slow)],
        cwd=checkout,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    pid = int(out.stdout)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                break  # ended; whoever adopted it has not looked yet
        time.sleep(0.05)
    else:
        assert not psutil.pid_exists(pid)


def test_memory_is_watched_where_the_system_does_not(checkout: Path) -> None:
    hungry = "import sys, time; held = bytearray(200 << 20); sys.stdout.flush(); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", hungry], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    arrived: queue.Queue[Any] = queue.Queue()
    arrived.put({"type": "ready", "bounded": False})
    try:
        with pytest.raises(ChildFailed) as caught:
            for _ in sandbox._messages(child, arrived, Bounds(100 << 20, 10.0), time.monotonic() + 30):
                pass
        assert caught.value.reason == "memory"
    finally:
        sandbox._end(child)
    assert child.returncode is not None


def waited_for(program: str, silence: float) -> str:
    """The limit that a child breaks that runs this program and says nothing more."""
    child = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    arrived: queue.Queue[Any] = queue.Queue()
    assert child.stdout is not None
    child.stdout.readline()
    arrived.put({"type": "ready", "bounded": True})
    try:
        with pytest.raises(ChildFailed) as caught:
            for _ in sandbox._messages(child, arrived, Bounds(1 << 30, silence), time.monotonic() + 30):
                pass
        return caught.value.reason
    finally:
        sandbox._end(child)


def test_a_child_is_ended_for_the_processor_that_it_uses() -> None:
    assert waited_for("print(flush=True)\nwhile True: pass", 0.2) == "page time"


def test_a_child_that_has_to_wait_for_the_processor_is_not_called_harmful(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a sound file was "made to harm the program that opens it"."""
    begun = time.monotonic()
    assert waited_for("import time; print(flush=True); time.sleep(60)", 0.3) == "busy"
    assert time.monotonic() - begun > sandbox._BUSY * 0.3


def test_a_machine_that_is_too_busy_keeps_the_file(files: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any) -> Generator[dict[str, Any], None, None]:
        raise ChildFailed("busy", 3)
        yield {}

    monkeypatch.setattr(document_reader, "run_in_child", busy)
    with pytest.raises(ResourceError, match="this machine is too busy"):
        read_document(files.pdf("a.pdf", _PAGES))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere names are UTF-8 or UTF-16")
@pytest.mark.parametrize("ending", ["txt", "pdf"])
def test_a_name_that_is_no_utf_8_is_read(files: Any, tmp_path: Path, ending: str) -> None:
    """Such a file was called damaged."""
    plain = tmp_path / "plain.txt"
    plain.write_text("Words that stand on page a only.", encoding="utf-8")
    source = files.pdf("plain.pdf", _PAGES) if ending == "pdf" else plain
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 \xc3\xa9." + ending.encode()))
    source.rename(odd)
    document = read_document(odd)
    assert document.pages[0].text == "Words that stand on page a only."
    document.title.encode()


def test_memory_counts_what_a_process_has_started() -> None:
    """On Windows the python.exe of an environment starts the one that works, and takes no memory itself."""
    hungry = "held = b'x' * (100 << 20); print('full', flush=True); import time; time.sleep(60)"
    starter = "import subprocess, sys; subprocess.call([sys.executable, '-c', sys.argv[1]])"
    child = subprocess.Popen([sys.executable, "-c", starter, hungry], stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline().strip() == b"full"
        assert sandbox.memory_of(child.pid) > 100 << 20
    finally:
        for started in psutil.Process(child.pid).children():
            started.kill()
        sandbox._end(child)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux holds a limit of memory")
def test_child_sets_its_own_memory_limit(slow: Path) -> None:
    seen: list[tuple[int, int]] = []

    def look(done: int, total: int) -> None:
        if done == 2:
            seen.append(_child().rlimit(psutil.RLIMIT_DATA))

    read_document(slow, progress=look)
    assert seen == [(2_000_000_000, 2_000_000_000)]


def test_child_loads_no_model_and_no_user_interface(checkout: Path) -> None:
    program = (
        "import sys, app.readers.child, app.readers.detect, app.readers.pdf, app.readers.pdf_lines, app.readers.epub,"
        " app.readers.docx, app.readers.markup, app.readers.text, app.readers.pdf_render\n"
        "heavy = ('torch', 'gradio', 'transformers', 'numpy', 'engine.session', 'psutil')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=checkout, capture_output=True, text=True, timeout=60, check=True
    )
    assert out.stdout.strip() == "[]"


def test_child_is_not_told_secrets(slow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_not_for_parsers")
    seen: list[dict[str, str]] = []

    def look(done: int, total: int) -> None:
        if done == 2:
            seen.append(_child().environ())

    read_document(slow, progress=look)
    assert "HF_TOKEN" not in seen[0]
    assert "hf_not_for_parsers" not in "".join(seen[0].values())


def test_child_finds_the_libraries_that_this_process_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "from engine import sandbox\n"
    program += "sandbox.serve(lambda _, voice: voice.say({'type': 'answer'}), lambda error: {'type': 'refused'})\n"
    (tmp_path / "brought.py").write_text(program, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    heard = sandbox.run_in_child("brought", {}, Bounds(1 << 30, 10.0), time.monotonic() + 30)
    assert [message["type"] for message in heard] == ["answer"]


def test_nothing_in_the_current_folder_is_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", "libraries", os.pathsep])
    assert sandbox.environment()["PYTHONPATH"] == os.pathsep.join(
        map(str, (sandbox._ROOT, Path("libraries").absolute()))
    )


def test_password_is_not_on_the_command_line(slow: Path) -> None:
    seen: list[str] = []

    def look(done: int, total: int) -> None:
        if done == 2:
            seen.extend(_child().cmdline())

    read_document(slow, "sesame", progress=look)
    assert "app.readers.child" in seen
    assert not any("sesame" in word for word in seen)


def test_nothing_is_left_on_disk(files: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    for name in ("TMPDIR", "TEMP", "TMP"):
        monkeypatch.setenv(name, str(temporary))
    path = files.epub("a.epub", [("a.xhtml", "<p>hello")])
    pdf = files.pdf("a.pdf", _PAGES)
    before = sorted(os.listdir(tmp_path))
    read_document(path)
    read_document(pdf)
    assert sorted(os.listdir(tmp_path)) == before
    assert not list(temporary.iterdir())


def test_many_at_once_do_not_disturb_each_other(files: Any) -> None:
    from concurrent.futures import ThreadPoolExecutor

    paths = [files.pdf(f"{at}.pdf", [[(72, 700, f"This is book number {at} of all.")]]) for at in range(6)]
    with ThreadPoolExecutor(3) as pool:
        texts = [document.text for document in pool.map(read_document, paths)]
    assert texts == [f"This is book number {at} of all." for at in range(6)]


class _Pipes:
    """``_winapi`` of Windows as far as a child needs it, for pipes of this system."""

    def PeekNamedPipe(self, handle: int, size: int) -> tuple[int, int]:
        import fcntl
        import termios

        if not select.select([handle], [], [], 0)[0]:
            return 0, 0
        there = struct.unpack("i", fcntl.ioctl(handle, termios.FIONREAD, bytes(4)))[0]
        if not there:
            raise BrokenPipeError
        return there, 0


class _Impatient(io.FileIO):
    """A pipe on which no read may wait."""

    def read(self, size: int | None = -1, /) -> bytes:
        assert select.select([self.fileno()], [], [], 0)[0], "a read waits"
        return super().read(size) or b""


@pytest.mark.skipif(sys.platform == "win32", reason="stands in for that system")
def test_no_read_of_the_parent_waits_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one waited there, importing numpy waited too: no model opened."""
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setitem(sys.modules, "_winapi", _Pipes())
    monkeypatch.setitem(sys.modules, "msvcrt", SimpleNamespace(get_osfhandle=int))
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    (heard, asks), arrived = os.pipe(), queue.SimpleQueue[dict[str, Any]]()
    with _Impatient(heard, "rb") as pipe, os.fdopen(asks, "wb") as parent:
        listener = threading.Thread(target=sandbox._hear_parent, args=(pipe, arrived))
        listener.start()
        for message in ({"number": 1}, {"number": 2, "text": "x" * 10_000}):
            sandbox.send_message(parent, message)
            assert arrived.get(timeout=10) == message
        parent.close()
        listener.join(10)
        assert not listener.is_alive()
    assert ended == [1]
