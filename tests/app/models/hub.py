"""A small hub on loopback: a real HTTP server that speaks as much of the hub's API as its own library uses.

It serves folders as models, and does on request what a hub or a network does on a bad day.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

REVISION = "0123456789abcdef0123456789abcdef01234567"
PROPOSED = "89abcdef0123456789abcdef0123456789abcdef"


@dataclass
class Proposal:
    """A pull request: who made it, the commit that it stands on, and the files of its branch."""

    author: str
    files: dict[str, bytes]
    parent: str = REVISION


@dataclass
class Hub:
    """What is served and what goes wrong. ``cut`` maps a file to the bytes after which connections break, ``lies``
    to sizes that the listing claims; ``damaged`` files arrive with another first byte, that many times; ``stalled``
    maps a file to the byte at which its first connection breaks; nothing after it comes until ``go_on`` is set."""

    models: dict[str, dict[str, bytes]] = field(default_factory=dict)
    proposals: dict[str, list[Proposal]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    key: str = "hf_right"
    cut: dict[str, int] = field(default_factory=dict)
    lies: dict[str, int] = field(default_factory=dict)
    damaged: dict[str, int] = field(default_factory=dict)
    stalled: dict[str, int] = field(default_factory=dict)
    go_on: threading.Event = field(default_factory=threading.Event)
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, range
    port: int = 0

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def add(self, name: str, folder: Path) -> None:
        self.models[name] = {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}

    def size(self, name: str, file: str = "model.safetensors") -> int:
        """Bytes of a file that is served."""
        return len(self.models[name][file])

    def fetched(self, file: str) -> list[str]:
        """The Range headers of the times a file's content was asked for."""
        return [wanted for method, path, wanted in self.asked if method == "GET" and path.endswith(f"/{file}")]

    def contents(self, name: str, revision: str) -> dict[str, bytes]:
        """The files of a revision: a commit, or a pull request such as refs/pr/1."""
        number = revision.rpartition("/")[2]
        if revision == PROPOSED or revision.startswith("refs/pr/"):
            return self.proposals[name][int(number) - 1 if number.isdigit() else 0].files
        return self.models[name]

    def discussions(self, name: str) -> dict[str, Any]:
        found = [
            {
                "title": "Adding `safetensors` variant of this model",
                "num": number,
                "author": {"name": proposal.author},
                "createdAt": "2024-03-01T12:00:00.000Z",
                "status": "open",
                "repo": {"name": name, "type": "model"},
                "isPullRequest": True,
            }
            for number, proposal in enumerate(self.proposals.get(name, ()), 1)
        ]
        return {"discussions": found, "count": len(found), "start": 0}

    def commits(self, name: str, revision: str) -> list[dict[str, Any]]:
        proposal = self.proposals[name][int(revision.rpartition("/")[2]) - 1]
        entry = {"authors": [], "date": "2024-03-01T12:00:00.000Z", "title": "", "message": ""}
        return [{**entry, "id": commit} for commit in (PROPOSED, proposal.parent)]

    def listing(self, name: str, revision: str = "main") -> dict[str, Any]:
        siblings = []
        for file, content in self.contents(name, revision).items():
            entry: dict[str, Any] = {"rfilename": file, "size": self.lies.get(file, len(content))}
            if file.endswith((".safetensors", ".bin", ".gguf")):
                digest = hashlib.sha256(content).hexdigest()
                entry["blobId"] = hashlib.sha1(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": entry["size"], "pointerSize": 134}
            else:
                entry["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            siblings.append(entry)
        return {
            "id": name,
            "modelId": name,
            "sha": PROPOSED if revision.startswith("refs/pr/") else REVISION,
            "gated": "manual" if name in self.gated else False,
            "private": False,
            "tags": [],
            "downloads": 0,
            "cardData": {"license": "apache-2.0"},
            "siblings": siblings,
        }


def start(hub: Hub) -> ThreadingHTTPServer:
    """Serve until ``shutdown`` is called."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            hub.asked.append((self.command, path, self.headers.get("Range", "")))
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"] and len(parts) >= 4:
                self._about("/".join(parts[2:4]), parts[4:])
            elif len(parts) == 5 and parts[2] == "resolve":
                self._file("/".join(parts[:2]), unquote(parts[3]), parts[4], with_body)
            else:
                self._refuse(404, "RepoNotFound")

        def _about(self, name: str, rest: list[str]) -> None:
            if name not in hub.models:
                return self._refuse(401, "RepoNotFound")
            revision = unquote(rest[1]) if len(rest) > 1 else "main"
            if rest[:1] == ["discussions"]:
                if name not in hub.proposals:
                    return self._refuse(403, "DiscussionsDisabled")
                answer: Any = hub.discussions(name)
            else:
                answer = hub.commits(name, revision) if rest[:1] == ["commits"] else hub.listing(name, revision)
            body = json.dumps(answer).encode()
            self._head(200, {"Content-Type": "application/json", "Content-Length": str(len(body))})
            self.wfile.write(body)

        def _file(self, name: str, revision: str, file: str, with_body: bool) -> None:
            if name not in hub.models:
                return self._refuse(401, "RepoNotFound")
            if name in hub.gated and self.headers.get("Authorization") != f"Bearer {hub.key}":
                return self._refuse(403 if self.headers.get("Authorization") else 401, "GatedRepo")
            content = hub.contents(name, revision).get(file)
            if content is None:
                return self._refuse(404, "EntryNotFound")
            if with_body and hub.damaged.get(file, 0) > 0:
                hub.damaged[file] -= 1
                content = bytes([content[0] ^ 1]) + content[1:]
            self._content(file, content, with_body)

        def _content(self, file: str, content: bytes, with_body: bool) -> None:
            wanted = self.headers.get("Range", "")
            begin = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
            head = {
                "Content-Length": str(len(content) - begin),
                "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
                "X-Repo-Commit": REVISION,
                "Accept-Ranges": "bytes",
            }
            if wanted:
                head["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
            self._head(206 if wanted else 200, head)
            if not with_body:
                return
            stop = hub.stalled.get(file, begin + hub.cut.get(file, len(content)))
            if begin >= stop:
                hub.go_on.wait()
            if stop < len(content):
                self.wfile.write(content[begin:stop])
                self.wfile.flush()
                self.close_connection = True
                self.connection.shutdown(2)
            else:
                self.wfile.write(content[begin:])

        def _refuse(self, status: int, code: str) -> None:
            self._head(status, {"X-Error-Code": code, "X-Error-Message": code, "Content-Length": "0"})

        def _head(self, status: int, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
