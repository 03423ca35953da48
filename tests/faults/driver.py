"""The app from outside: a process started as a person starts it, and a client that speaks to it as a browser does.

Owns nothing of the app but what any browser sees: its address, its cookie, its routes. What is tested through it
holds whatever is behind the door.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from app.web.auth import opening_address
from tests.nursery import Nursery
from tests.processes import free_port

Self = TypeVar("Self", bound="App")

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90.0
HOST = "127.0.0.1"

# The figures under an answer: they begin with what was written, and how fast, only where the engine ended the answer.
_LINE = re.compile(
    r'<span class="full">(?:<svg>.*?</svg>)?<span class="line">[\d,]+ (?:word|character|token)s? · '
    r"(?:at last )?[\d,.]+ m?s a token · [\d,.]+ tokens a second((?: · [^<]*)?)</span>"
)
_CUT = ("stopped", "cut off when Trifold ended")  # by a person or a crash, not at the length or for its repetitions


@dataclass
class Answer:
    """What came back. ``text`` is the body."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def json(self) -> Any:
        return json.loads(self.body)


class App:
    """One app process.

    Attributes:
        script: what a shell does before in the process that a nursery forks, as root of a namespace of its own.

    Args:
        data: its data folder.
        options: of the command line, such as the models.
        environment: beside this process's own.
        module: what is started; a module of the tests may break something first and then start the app.
        nursery: starts the app in a process forked from one that has the libraries loaded, in a fifth of the time.
    """

    script = ""

    def __init__(
        self,
        data: Path,
        options: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        module: str = "app.cli",
        before: Callable[[], None] | None = None,
        nursery: Nursery | None = None,
    ) -> None:
        data.mkdir(parents=True, exist_ok=True)
        self.data = data
        self.port = free_port()
        self.log = data.parent / f"{data.name}.{secrets.token_hex(3)}.log"
        settings = {**os.environ, "TRIFOLD_DATA": str(data), "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
        settings.update(environment or {})
        arguments = ["--no-browser", "--port", str(self.port), *options]
        self.process: Any
        if nursery is not None:
            self.process = nursery.start(module, arguments, settings, self.log, self.script)
        else:
            with self.log.open("wb") as log:
                self.process = subprocess.Popen(
                    self.command(module, arguments),
                    cwd=ROOT,
                    env=settings,
                    stdout=log,
                    stderr=log,
                    preexec_fn=before,
                    start_new_session=True,
                )
        self._cookie = ""
        self._config: dict[str, Any] | None = None

    def command(self, module: str, arguments: list[str]) -> list[str]:
        """How it is started."""
        return [sys.executable, "-m", module, *arguments]

    def __enter__(self: Self) -> Self:
        try:
            self.wait_up()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def wait_up(self) -> None:
        until = time.monotonic() + START_SECONDS
        while True:
            assert self.process.poll() is None, self.said
            assert time.monotonic() < until, self.said
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.request("GET", "/healthz", cookie=False, timeout=2).status == 200:
                    return
            time.sleep(0.05)

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """As a power cut does: the app and everything that it has started, at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(20)

    def end(self) -> None:
        """As a person does."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    # Requests ------------------------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        cookie: bool = True,
        timeout: float = 60.0,
    ) -> Answer:
        """One request on a connection of its own; nothing is tidied up on its way."""
        own = f"{HOST}:{self.port}"
        sent = {"Host": own, **({"Cookie": self.cookie} if cookie else {})}
        sent |= {**({"Origin": f"http://{own}"} if method == "POST" else {}), **(headers or {})}
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in sent.items():
                connection.putheader(name, value)
            if body is not None and "Transfer-Encoding" not in sent:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            got = connection.getresponse()
            return Answer(got.status, {name.lower(): value for name, value in got.getheaders()}, got.read())
        finally:
            connection.close()

    @property
    def cookie(self) -> str:
        """Let in as the browser is, by a login token."""
        if not self._cookie:
            address = opening_address(self.data, self.port)
            answer = self.request("GET", address.partition(str(self.port))[2], cookie=False)
            assert answer.status == 200, answer.text
            self._cookie = answer.headers["set-cookie"].partition(";")[0]
        return self._cookie

    def post(self, path: str, content: Mapping[str, Any] | None = None) -> Answer:
        return self.request("POST", path, json.dumps(content or {}).encode(), {"Content-Type": "application/json"})

    def give(self, name: str, data: bytes) -> Answer:
        """Hand a file to the page."""
        return self.request("POST", "/books", data, {"x-file-name": quote(name)})

    # The live stream -----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def live(self, tab: str = "", seconds: float = 60.0) -> Iterator[Live]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=seconds)
        headers = {"Host": f"{HOST}:{self.port}", "Cookie": self.cookie}
        connection.request("GET", f"/live?tab={tab}", headers=headers)
        answer = connection.getresponse()
        assert answer.status == 200
        try:
            yield Live(answer)
        finally:
            answer.close()
            connection.close()

    def state(self) -> dict[str, Any]:
        """What a page that is opened now shows."""
        with self.live() as live:
            live.more()
            return live.state

    def until(self, holds: Callable[[dict[str, Any]], Any], seconds: float = 60.0) -> dict[str, Any]:
        """Watch the live stream until something holds."""
        with self.live() as live:
            return live.until(holds, seconds)

    def read(self, name: str, data: bytes, seconds: float = 90.0) -> dict[str, Any]:
        """Give a book and wait until it has been read, or why not."""
        answer = self.give(name, data)
        assert answer.status == 200, answer.text
        return self.until(
            lambda state: state["book"]["stage"] not in ("empty", "opening", "waiting", "reading"), seconds
        )

    # Questions -----------------------------------------------------------------------------------------------

    def ask(self, question: str, tokens: int = 32, mode: str = "hierarchical", seconds: float = 120.0) -> Asked:
        """Ask as the page does, and wait for the last word."""
        asked = Asked()
        for _ in self.asking(question, tokens, mode, asked, seconds):
            pass
        return asked

    def asking(
        self, question: str, tokens: int, mode: str, asked: Asked, seconds: float = 120.0, temperature: float = 0.0
    ) -> Generator[Asked]:
        """Ask, and yield whenever the page would draw."""
        tab = secrets.token_hex(6)
        wanted = {
            "question": question, "mode": mode, "temperature": temperature, "max_tokens": tokens, "tab": tab
        }  # fmt: skip
        with self.live(tab, seconds) as live:
            live.more()
            told = self.post("/asking", wanted)
            assert told.status in (200, 400), told.text
            said = told.json()
            if "cause" in said:
                words = {"type": "text", "text": f"{said['cause']} {said['remedy']}"}
                asked.messages = [{"role": "assistant", "content": [words]}]
                asked.ended = True
                yield asked
                return
            while live.state["chat"]["last"] < said["answer"] or live.state["asked_by"] == tab:
                live.more()
                asked.updates += 1
                yield asked
            asked.take(self.chat(), said["answer"])
            yield asked

    def chat(self) -> list[dict[str, Any]]:
        """The messages that a page opened now shows."""
        index = self._index("show")
        answer = self.post("/gradio_api/run/predict", {"data": [], "fn_index": index, "session_hash": "x"})
        assert answer.status == 200, answer.text
        return list(answer.json()["data"][0])

    @property
    def config(self) -> dict[str, Any]:
        """What Gradio tells the page about its parts."""
        if self._config is None:
            self._config = self.request("GET", "/config").json()
        return self._config

    def _index(self, name: str) -> int:
        return next(int(part["id"]) for part in self.config["dependencies"] if part["api_name"] == name)


@dataclass
class Asked:
    """An answer as the page has it: ``messages`` of the chat up to it, once it has ended, or why it was refused."""

    messages: list[Any] = field(default_factory=list)
    updates: int = 0
    ended: bool = False

    def take(self, messages: list[dict[str, Any]], answer: int) -> None:
        """Up to the answer with this number: other tabs ask too."""
        row = f'value="again:{answer}"'
        last = next((at for at, message in enumerate(messages) if row in str(message["content"])), len(messages) - 1)
        self.messages = messages[: last + 1]
        self.ended = True

    @property
    def last(self) -> str:
        """The HTML of the last message."""
        return "".join(part.get("text", "") for part in self.messages[-1]["content"])

    @property
    def whole(self) -> bool:
        """Whether the answer came to the end that the engine gave it, without trouble and with its figures."""
        line = _LINE.search(self.last)
        return self.ended and line is not None and not set(_CUT) & set(line[1].split(" · "))


class Live:
    """The state that the live stream has told so far."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.state: dict[str, Any] = {}

    def more(self, end: float = math.inf) -> None:
        """Wait for the next news, at most until ``end`` on the monotonic clock."""
        while True:
            line = self._stream.readline()
            assert line, "the live stream ended"
            if line.startswith(b"data: "):
                self._take(json.loads(line[6:]))
                return
            assert time.monotonic() < end, f"it never happened: {self.state.get('book')}"

    def _take(self, news: dict[str, Any]) -> None:
        """Put news into the state, as the page does: of an answer that grows, only what is new is sent."""
        known, growing = self.state.get("writing") or {}, news.get("writing") or {}
        if growing.get("whole") is False:
            news["writing"] = {**known, **growing, "text": known.get("text", "") + growing["text"]}
        self.state.update(news)

    def until(self, holds: Callable[[dict[str, Any]], Any], seconds: float) -> dict[str, Any]:
        end = time.monotonic() + seconds
        while not (self.state and holds(self.state)):
            assert time.monotonic() < end, f"it never happened: {self.state.get('book')}"
            self.more(end)
        return self.state
