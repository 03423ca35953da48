"""A server elsewhere behind the methods of ``engine.Engine``: the page, the chats and /v1 need not know which it is.

Reading a book here means sending it once, so that the server has it in its prefix cache when the first question
comes. A thread per request drives the connection; a cancelled request closes it within a moment. Retrieval scores,
acceptance and tiers of KV are the server's own business and stay empty.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any

from app.models.choice import Remote
from app.remote import address, client
from app.remote.client import Client
from app.remote.fit import fit_of, guess_tokens
from app.remote.meter import Meter
from engine import BookInfo, ModelInfo, Request, SamplingParams, Status, Turn
from engine.config import Mode
from engine.document import Document
from engine.errors import Closed, EngineError, InputError, ModelNotFound, TrifoldError
from engine.events import AnswerDone, AnswerStarted, BookRead, Event, Failed, KvBytes, Loading, StopReason, TextDelta
from engine.fitting import Fit
from engine.prompt import book_message

logger = logging.getLogger(__name__)

ARCHITECTURE = "remote"
"""What ``ModelInfo.architecture`` says, so that a page can tell."""

DEFAULT_CONTEXT = 131_072  # tokens, for servers that do not say
_LOOK_SECONDS = 0.1
_CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length")
_ENDS = {"length": StopReason.LENGTH, "stop": StopReason.END}


class RemoteEngine:
    """Args:
    remote: the server, its key, its model ("": the first that it offers) and, where it does not say it, its context.
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._address = address.parse(remote.address)
        self._client = Client(self._address, remote.key)
        self._lock = threading.Lock()
        self._current: Request | None = None
        self._document: Document | None = None
        self._book_tokens = 0
        self._model = remote.model
        self._is_trifold = False
        self._failure: TrifoldError | None = None
        self._ready = threading.Event()
        self._status = Status("loading", f"Asking {self._address.host} for its models.")
        threading.Thread(target=self._connect, name="trifold-remote", daemon=True).start()

    def status(self) -> Status:
        return self._status

    def wait_ready(self, timeout: float | None = None) -> Status:
        """Raises:
        TrifoldError: the server cannot be used.
        """
        self._ready.wait(timeout)
        if self._failure is not None:
            raise self._failure
        return self._status

    def measure(self, document: Document) -> Fit:
        """Guess a book's tokens from its characters and say whether it fits."""
        self.wait_ready()
        return fit_of(document, self._status.model.context_limit if self._status.model else DEFAULT_CONTEXT)

    def read(self, document: Document, *, fit: bool = False, resume: bool = False) -> Request:
        """Send a book, so that the server has it when the first question comes.

        Raises:
            Busy: something else is under way.
            Closed: this has been closed.
        """
        if fit and (pages := self.measure(document).pages_that_fit) and pages < len(document.pages):
            document = document.select(document.pages[0].number, document.pages[pages - 1].number)
        return self._submit("reading", lambda request: self._read(document, request))

    def ask(
        self,
        question: str,
        history: Sequence[Turn] = (),
        sampling: SamplingParams | None = None,
        mode: Mode = "hierarchical",
        begun: str = "",
        chat: str = "",
    ) -> Request:
        """Ask about the book that was read. Raises as ``read``. Nothing of a ``chat`` is kept here."""
        turns, how = tuple(history), sampling or SamplingParams()
        return self._submit("answering", lambda request: self._ask(question, turns, how, begun))

    def finish_saving(self) -> str:
        """Nothing of a book is kept here."""
        return ""

    def close(self) -> None:
        with self._lock:
            if self._current is not None:
                self._current.cancel()
            self._status = replace(self._status, state="closed", detail="The connection has been closed.")

    # Connecting ----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        try:
            offered = asyncio.run(self._client.models())
            wanted = self._remote.model
            entry = next((entry for entry in offered if wanted in ("", entry["id"])), None)
            if entry is None:
                names = ", ".join(found["id"] for found in offered[:5]) or "none"
                raise ModelNotFound(
                    f"{self._address.host} has no model {wanted}".rstrip() + ".", f"It offers: {names}."
                )
            self._model = entry["id"]
            self._is_trifold = entry.get("owned_by") == "trifold"
            self._settle(Status("idle", "Ready for a book.", model=self._info(entry)))
        except TrifoldError as error:
            self._failure = error
            self._settle(Status("failed", str(error)))
        except Exception:  # whatever it is, the person is told
            logger.exception("connecting failed")
            self._failure = EngineError(f"{self._address.host} could not be asked.", "Check its address.")
            self._settle(Status("failed", str(self._failure)))
        finally:
            self._ready.set()

    def _settle(self, status: Status) -> None:
        with self._lock:
            if self._status.state != "closed":
                self._status = status

    def _info(self, entry: dict[str, Any]) -> ModelInfo:
        said = next((entry[key] for key in _CONTEXT_KEYS if type(entry.get(key)) is int and entry[key] > 0), None)
        return ModelInfo(
            name=self._model,
            path=self._address.base,
            parameters=0,
            architecture=ARCHITECTURE,
            context_limit=self._remote.context or said or DEFAULT_CONTEXT,
            dtype="",
            device=self._address.host,
            vocabulary=0,
            kv_bytes_per_token=0,
            draft_name=None,
            draft_parameters=None,
        )

    # Requests ------------------------------------------------------------------------------------------------

    def _submit(self, state: Any, work: Callable[[Request], AsyncIterator[Event]]) -> Request:
        request = Request(state, lambda session: iter(()))
        with self._lock:
            if self._status.state == "closed":
                raise Closed("The connection has been closed.", "Start Trifold again.")
            if self._failure is not None:
                raise self._failure
            if self._current is not None:
                raise self._current.busy(reading="a book is being sent")
            self._current = request
            self._status = replace(self._status, state=state, detail="")
        threading.Thread(target=self._run, args=(request, work), name="trifold-remote", daemon=True).start()
        return request

    def _run(self, request: Request, work: Callable[[Request], AsyncIterator[Event]]) -> None:
        try:
            final = asyncio.run(_drive(request, work(request)))
        except TrifoldError as error:
            final = Failed(error.cause, error.remedy, type(error).__name__)
        except Exception:  # the next question must be possible whatever this one met
            logger.exception("a remote request failed")
            final = Failed(f"Something went wrong with {self._address.host}.", "Try again.", "EngineError")
        with self._lock:
            self._current = None
            if self._status.state != "closed":
                self._status = replace(self._status, state="idle", book=self._book())
        request.put(final)

    async def _read(self, document: Document, request: Request) -> AsyncIterator[Event]:
        if not any(page.text.strip() for page in document.pages):
            raise InputError("There is no text in this document.", "Choose another one.")
        began = time.monotonic()
        self._document = None
        yield Loading(f"Sending the book to {self._address.host}.")
        body = self._body(document, [{"role": "user", "content": "Which book is this?"}], SamplingParams(max_tokens=1))
        meter = Meter(began, 0, 0)
        async for chunk in self._client.chat(body):
            meter.usage(chunk.get("usage") or {})
            yield Loading(f"{self._address.host} has read the book.")
        tokens = meter.prompt_tokens or sum(guess_tokens(page.text) for page in document.pages)
        self._document, self._book_tokens = document, tokens
        seconds, pages = max(time.monotonic() - began, 1e-9), len(document.pages)
        yield BookRead(tokens, tokens, pages, pages, seconds, tokens / seconds, KvBytes(), stopped=False)

    async def _ask(
        self, question: str, history: tuple[Turn, ...], how: SamplingParams, begun: str
    ) -> AsyncIterator[Event]:
        document = self._document
        if document is None:
            raise InputError("No book is open.", "Open one first.")
        if begun:
            raise InputError("Another machine's answer cannot be continued where it was cut.", "Ask again.")
        messages = [
            message
            for turn in (*history, Turn(question, ""))
            for message in ({"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer})
        ][:-1]
        asked = time.monotonic()
        limit = self._status.model.context_limit if self._status.model else 0
        meter = Meter(asked, self._book_tokens, limit)
        answer, reason = "", StopReason.CANCELLED
        try:
            async for chunk in self._client.chat(self._body(document, messages, how)):
                meter.usage(chunk.get("usage") or {})
                if finish := client.finish_of(chunk):
                    reason = _ENDS.get(finish, StopReason.END)
                if words := client.text_of(chunk):
                    if not answer:
                        yield AnswerStarted(meter.prompt_tokens, 0, time.monotonic() - asked)
                    meter.chunk(time.monotonic())
                    answer += words
                    yield TextDelta(words, (), (), meter.figures())
        except asyncio.CancelledError:
            yield AnswerDone(answer, (), (), StopReason.CANCELLED, meter.figures())
            raise
        yield AnswerDone(answer, (), (), reason, meter.figures())

    def _body(self, document: Document, messages: list[dict[str, str]], how: SamplingParams) -> dict[str, Any]:
        """The request. Its first message is the same for every question about a book, byte for byte."""
        text = "\n\n".join(page.text for page in document.pages)
        book = {"role": "system", "content": book_message(document.title, text)}
        extra: dict[str, Any] = {"top_k": how.top_k} if how.top_k else {}
        if how.seed is not None:
            extra["seed"] = how.seed
        if self._is_trifold:
            extra["trifold"] = {"book": "messages"}
        return {
            "model": self._model,
            "messages": [book, *messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": how.temperature,
            "top_p": how.top_p,
            "max_tokens": how.max_tokens,
            **extra,
        }

    def _book(self) -> BookInfo | None:
        if self._document is None:
            return None
        pages = len(self._document.pages)
        return BookInfo(self._document.title, self._book_tokens, self._book_tokens, pages, pages)


async def _drive(request: Request, events: AsyncIterator[Event]) -> Event:
    """Deliver events until the final one, which is returned; a cancelled request closes its connection."""
    final: list[Event] = []

    async def deliver() -> None:
        async for event in events:
            if isinstance(event, BookRead | AnswerDone):
                final.append(event)
            else:
                request.put(event)

    task = asyncio.ensure_future(deliver())
    while not task.done() and not request.cancelled:
        await asyncio.wait({task}, timeout=_LOOK_SECONDS)
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()
    return final[-1] if final else _nothing(request)


def _nothing(request: Request) -> Event:
    if request.state == "reading":
        return BookRead(0, 0, 0, 0, 0.0, 0.0, KvBytes(), stopped=True)
    return Failed("The question was stopped before it was answered.", "", "EngineError")
