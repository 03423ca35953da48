"""A model server on the network, with the methods of ``engine.Engine``. So the page, the chats and /v1 can use a server
like the engine.

The server must use OpenAI's protocol (``openai_client``). To read a book means to send it once, so that the server has
it in its prefix cache before the first question. Each request has its own thread and connection. Cancelling a request
closes its connection within a tenth of a second. Retrieval scores, acceptance rates and KV tiers of the server are
unknown and left empty.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

from app.core.settings import Remote
from app.models.openai_client import Client, finish_of, parse_address, reasoning_of, text_of
from engine import BookInfo, EngineConfig, ModelInfo, Question, Request, SamplingParams, Status, Turn
from engine.chat_template import book_message
from engine.config import MAX_COUNT, options_of
from engine.document import Document, Reading
from engine.errors import (
    Closed,
    EngineError,
    InputError,
    ModelNotFound,
    OptionError,
    TrifoldError,
)
from engine.events import (
    Acceptance,
    AnswerDone,
    AnswerStarted,
    BookRead,
    Event,
    Figures,
    KvBytes,
    Loading,
    StopReason,
    TextDelta,
    Thought,
    ThoughtDelta,
    TimeSplit,
)
from engine.plan import MIN_CHAT_TOKENS, BookFit, leaving_out, to_leave_out
from engine.thinking import PLAIN_TAGS, ThoughtParser
from engine.worker import Admission, Final

logger = logging.getLogger(__name__)

ARCHITECTURE = "remote"
"""Value of ``ModelInfo.architecture`` that tells the page that the model is on a server."""

DEFAULT_CONTEXT = 131_072  # window in tokens that is assumed if neither the user nor the server states it
_LOOK_SECONDS = 0.1
_CONTEXT_KEYS = ("max_model_len", "context_length", "context_window", "max_context_length")
# minimum tokens of an answer that a server is asked for, however full its window is
_LEAST_ANSWER = 512
_ENDS = {"length": StopReason.LENGTH, "stop": StopReason.END}

# Assumed characters per token, to estimate the tokens of a book. The value is low, so that the estimate is high rather
# than low. After the book has been read, the server's own count is used.
_CHARACTERS_PER_TOKEN = 3.5


class RemoteEngine:
    """Uses a server like an engine.

    Args:
        remote: the server's address, its key, the model ("" for the first one that the server offers), and the window
            in tokens (None to ask the server).
    """

    def __init__(self, remote: Remote) -> None:
        self._remote = remote
        self._address = parse_address(remote.address)
        self._client = Client(self._address, remote.key)
        self._lock = threading.Lock()
        self._admission = Admission(reading="a book is being sent")
        self._document: Document | None = None
        self._book_tokens = 0
        self._model = remote.model
        self._is_trifold = False
        self._failure: TrifoldError | None = None
        self._ready = threading.Event()
        self._status = Status("loading", f"Asking {self._address.host} for its models…")
        threading.Thread(target=self._connect, name="trifold-remote", daemon=True).start()

    @property
    def config(self) -> EngineConfig | None:
        """None, because a server has no ``EngineConfig``."""
        return None

    def status(self) -> Status:
        return self._status

    def wait_ready(self, timeout: float | None = None) -> Status:
        """Wait until the server has listed its models.

        Raises:
            TrifoldError: the server cannot be used.
        """
        self._ready.wait(timeout)
        if self._failure is not None:
            raise self._failure
        return self._status

    def measure(self, document: Document) -> BookFit:
        """Estimate whether a book fits. Its tokens are estimated from its characters."""
        self.wait_ready()
        return fit_of(document, self._status.model.context_limit if self._status.model else DEFAULT_CONTEXT)

    def read(self, reading: Reading | Document, *, cancel: threading.Event | None = None) -> Request[BookRead]:
        """Send a book, so that the server has it in its prefix cache before the first question.

        Raises:
            Busy: another request is running.
            Closed: this engine was closed.
        """
        wanted = Reading.of(reading)
        document = wanted.document
        if wanted.fit and (pages := self.measure(document).pages_that_fit) and pages < len(document.pages):
            document = document.select(document.pages[0].number, document.pages[pages - 1].number)
        return self._submit(Request[BookRead]("reading", cancel), lambda: self._read(document), wanted.wait)

    def ask(self, question: Question | str, *, cancel: threading.Event | None = None) -> Request[AnswerDone]:
        """Ask about the book that was last read. The request contains ``question.history``, the earlier turns of the
        chat. Raises as ``read`` does.
        """
        asked = Question.of(question)
        if asked.excerpt is not None:  # has a connection of its own, also while a book is being sent
            request = Request[AnswerDone]("answering", cancel)
            threading.Thread(target=self._beside, args=(request, lambda: self._ask(asked)), daemon=True).start()
            return request
        return self._submit(Request[AnswerDone]("answering", cancel), lambda: self._ask(asked), asked.wait)

    def forget_book(self) -> None:
        """Do nothing, because the server has the book's memory."""

    def finish_saving(self) -> str:
        """Return "" at once, because books are not saved here."""
        return ""

    def close(self) -> None:
        self._admission.refuse(Closed("The connection has been closed.", "Start Trifold again."))
        with self._lock:
            self._status = replace(self._status, state="closed", detail="The connection has been closed.")

    # Connecting ----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        try:
            offered = asyncio.run(self._client.models())
            wanted = self._remote.model
            entry = next((entry for entry in offered if wanted in ("", entry["id"])), None)
            if entry is None:
                names = ", ".join(offer["id"] for offer in offered[:5]) or "none"
                raise ModelNotFound(
                    f"{self._address.host} has no model {wanted}".rstrip() + ".", f"Choose one that it offers: {names}."
                )
            self._model = entry["id"]
            self._is_trifold = entry.get("owned_by") == "trifold"
            self._settle(Status("idle", "Ready for a book.", model=self._info(entry)))
        except TrifoldError as error:
            self._failure = error
            self._settle(Status("failed", str(error)))
        except Exception:  # any error must be shown to the user
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
            can_quote=self._is_trifold,
        )

    # Requests ------------------------------------------------------------------------------------------------

    def _submit(self, request: Request[Final], work: Callable[[], AsyncIterator[Event]], wait: float) -> Request[Final]:
        if self._failure is not None:
            raise self._failure
        self._admission.admit(request, wait)
        with self._lock:
            if self._status.state != "closed":
                self._status = replace(self._status, state=request.state, detail="")
        threading.Thread(target=self._admitted, args=(request, work), name="trifold-remote", daemon=True).start()
        return request

    def _admitted(self, request: Request[Any], work: Callable[[], AsyncIterator[Event]]) -> None:
        end = self._ended(request, work)
        with self._lock:
            if self._status.state != "closed":
                self._status = replace(self._status, state="idle", book=self._book())
        self._admission.end()
        _deliver(request, end)

    def _beside(self, request: Request[Any], work: Callable[[], AsyncIterator[Event]]) -> None:
        _deliver(request, self._ended(request, work))

    def _ended(self, request: Request[Any], work: Callable[[], AsyncIterator[Event]]) -> Event | TrifoldError:
        end: Event | TrifoldError
        try:
            end = asyncio.run(_drive(request, work()))
        except TrifoldError as error:
            end = error
        except Exception:  # after any error, the next question must still be possible
            logger.exception("a remote request failed")
            end = EngineError(f"Something went wrong with {self._address.host}.", "Try again.")
        return end

    async def _read(self, document: Document) -> AsyncIterator[Event]:
        if not any(page.text.strip() for page in document.pages):
            raise InputError("There is no text in this document.", "Choose another one.")
        began = time.monotonic()
        self._document = None
        yield Loading(f"Sending the book to {self._address.host}.")
        body = self._body(document, [{"role": "user", "content": "Which book is this?"}], SamplingParams(max_tokens=1))
        metrics = RemoteMetrics(began, 0, 0)
        async for chunk in self._client.chat(body):
            metrics.usage(chunk.get("usage") or {})
            yield Loading(f"{self._address.host} has read the book.")
        tokens = metrics.prompt_tokens or sum(guess_tokens(page.text) for page in document.pages)
        self._document, self._book_tokens = document, tokens
        seconds, pages = max(time.monotonic() - began, 1e-9), len(document.pages)
        yield BookRead(tokens, tokens, pages, pages, seconds, tokens / seconds, KvBytes(), stopped=False)

    async def _ask(self, question: Question) -> AsyncIterator[Event]:
        document = question.excerpt or self._document
        if document is None:
            raise InputError("No book is open.", "Open one first.")
        if question.begun or question.thought:
            raise InputError("Another machine's answer cannot be continued where it was cut.", "Ask again.")
        messages = [
            message
            for turn in (*question.history, Turn(question.text, ""))
            for message in ({"role": "user", "content": turn.question}, {"role": "assistant", "content": turn.answer})
        ][:-1]
        limit = self._status.model.context_limit if self._status.model else 0
        asked_for = sum(guess_tokens(message["content"]) for message in messages)
        room = max(_LEAST_ANSWER, limit - self._book_tokens - asked_for) if limit else MAX_COUNT
        sampling = replace(question.sampling, max_tokens=min(question.sampling.max_tokens, room))
        async for event in self._answer(self._body(document, messages, sampling), limit):
            yield event

    async def _answer(self, body: dict[str, Any], limit: int) -> AsyncIterator[Event]:
        """Send a request, and yield the events of its answer.

        Args:
            limit: maximum tokens of the server's context; 0 if it is unknown.
        """
        asked = time.monotonic()
        metrics, thinking = (RemoteMetrics(asked, self._book_tokens, limit) for _ in range(2))
        answer, thought, reason = "", "", StopReason.CANCELLED
        # A server that does not know its model's marks leaves them in the answer.
        parser = ThoughtParser(PLAIN_TAGS)
        try:
            async for chunk in self._client.chat(body):
                metrics.usage(chunk.get("usage") or {}, thinking.tokens)
                if finish := finish_of(chunk):
                    reason = _ENDS.get(finish, StopReason.END)
                split = parser.feed(text_of(chunk))
                if words := reasoning_of(chunk) + split.thought:
                    thinking.chunk(time.monotonic())
                    thought += words
                    yield ThoughtDelta(words, thinking.figures())
                if split.answer:
                    if not answer:
                        yield AnswerStarted(metrics.prompt_tokens, 0, time.monotonic() - asked)
                    metrics.chunk(time.monotonic())
                    answer += split.answer
                    yield TextDelta(split.answer, (), (), metrics.figures())
            rest = parser.end()
            thought += rest.thought
            if rest.answer:
                answer += rest.answer
                yield TextDelta(rest.answer, (), (), metrics.figures())
        except asyncio.CancelledError:
            known = _thought(thought, thinking, answer)
            yield AnswerDone(answer, (), (), StopReason.CANCELLED, metrics.figures(), thought=known)
            raise
        known = _thought(thought, thinking, answer)
        yield AnswerDone(answer, (), (), reason, metrics.figures(), thought=known)

    def _body(self, document: Document, messages: list[dict[str, str]], sampling: SamplingParams) -> dict[str, Any]:
        """Build the body of a request. The first message contains the book and is the same for every question, so that
        the server can use its prefix cache.
        """
        text = "".join(
            stretch.heading + "\n\n".join(page.text for page in stretch.pages) for stretch in document.stretches
        )
        book = {"role": "system", "content": book_message(document.opening, text)}
        if sampling.exact_quotes and not self._is_trifold:
            raise OptionError(
                "This server cannot restrict quotations to the book's words.", "Turn that off in the answer settings."
            )
        # An option that the user has not set is not sent, so that the server's own default applies.
        options = [one for one in options_of(SamplingParams) if getattr(sampling, one.name) is not None]
        said = {one.name: getattr(sampling, one.name) for one in options if one.in_openai}
        # many servers, including Trifold's own, accept options that OpenAI does not have
        extra: dict[str, Any] = {one.name: getattr(sampling, one.name) for one in options if not one.in_openai}
        if self._is_trifold:
            extra["trifold"] = {"book": "messages"}
        elif extra.pop("think", None):
            # The name by which vLLM, SGLang and llama.cpp give a variable to the model's chat template.
            extra["chat_template_kwargs"] = {"enable_thinking": True}
        return {
            "model": self._model,
            "messages": [book, *messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            **said,
            "extra_body": extra,
        }

    def _book(self) -> BookInfo | None:
        if self._document is None:
            return None
        pages = len(self._document.pages)
        return BookInfo(self._document.title, self._book_tokens, self._book_tokens, pages, pages)


def _thought(text: str, metrics: RemoteMetrics, answer: str) -> Thought | None:
    """What the model thought before it answered; None if it thought nothing."""
    return Thought(text, metrics.figures(), is_open=not answer) if text.strip() else None


def _deliver(request: Request[Any], end: Event | TrifoldError) -> None:
    if isinstance(end, TrifoldError):
        request.fail(end)
    else:
        request.put(end)


async def _drive(request: Request[Any], events: AsyncIterator[Event]) -> Event:
    """Run the connection of a request. Put its events into the request, and return the final event. If the request is
    cancelled, close the connection.
    """
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


def _nothing(request: Request[Any]) -> Event:
    if request.state == "reading":
        return BookRead(0, 0, 0, 0, 0.0, 0.0, KvBytes(), stopped=True)
    raise EngineError("The question was stopped before it was answered.")


def fit_of(document: Document, limit: int) -> BookFit:
    """Estimate whether a book fits into a window of ``limit`` tokens."""
    room = limit - MIN_CHAT_TOKENS
    each = tuple(guess_tokens(page.text) for page in document.pages)
    tokens, pages = sum(each), sum(end <= room for end in accumulate(each))
    sizes = [sum(guess_tokens(page.text) for page in stretch.pages) for stretch in document.stretches]
    fit = BookFit(tokens, limit, tokens <= room, pages, 0, "", page_tokens=each, room=room)
    if fit.fits:
        return replace(fit, sentence=f"{document.extent()}, about {tokens:,} tokens of {limit:,}: it fits.")
    cause = f"{document.extent()}: too long for this model."
    if len(sizes) > 1:
        cause += f" {leaving_out([stretch.title for stretch in document.stretches], sizes, room)}"
        return replace(fit, sentence=cause, leave_out=to_leave_out(sizes, room))
    if pages == 0:
        return replace(fit, sentence=f"{cause} Not even the first {document.unit} fits.")
    return replace(fit, sentence=f"{cause} The first {pages:,} of {document.extent()} fit.")


def guess_tokens(text: str) -> int:
    return int(len(text) / _CHARACTERS_PER_TOKEN) + 1


class RemoteMetrics:
    """Measures an answer that a server writes, as the same ``Figures`` as the engine's. Figures that only the server
    could measure are empty.

    All times are in seconds, from the same clock. A chunk counts as one token, until the server states the number of
    tokens.
    """

    def __init__(self, start_s: float, prompt_tokens: int, limit: int) -> None:
        self._asked = start_s
        self._limit = limit
        self._prompt = prompt_tokens
        self._cached = 0
        self._tokens = 0
        self._first: float | None = None
        self._last = start_s
        self._gaps: list[float] = []

    def chunk(self, now: float) -> None:
        """Count a chunk with text. ``now``: the time at which the chunk arrived."""
        self._tokens += 1
        if self._first is None:
            self._first = now
        else:
            self._gaps.append((now - self._last) * 1000.0)
        self._last = now

    def usage(self, usage: Mapping[str, Any], thought_tokens: int = 0) -> None:
        """Replace the estimated numbers of tokens by the numbers that the server states.

        Args:
            thought_tokens: number of tokens of the thought before the answer, if the server does not state it.
        """
        details = usage.get("prompt_tokens_details") or {}
        self._prompt = _count(usage.get("prompt_tokens"), self._prompt)
        thoughts = _count((usage.get("completion_tokens_details") or {}).get("reasoning_tokens"), thought_tokens)
        if (made := _count(usage.get("completion_tokens"), -1)) >= 0:
            self._tokens = max(0, made - thoughts)
        self._cached = min(self._prompt, _count(details.get("cached_tokens"), 0))

    @property
    def prompt_tokens(self) -> int:
        return self._prompt

    @property
    def tokens(self) -> int:
        """Number of tokens so far."""
        return self._tokens

    def figures(self) -> Figures:
        seconds = self._last - self._first if self._first is not None else 0.0
        mean = seconds * 1000.0 / (self._tokens - 1) if self._tokens > 1 else None
        return Figures(
            mode=ARCHITECTURE,
            answer_tokens=self._tokens,
            rounds=0,
            ttft_s=self._first - self._asked if self._first is not None else None,
            ms_per_token_mean=mean,
            ms_per_token_p50=_part(self._gaps, 0.5),
            ms_per_token_p95=_part(self._gaps, 0.95),
            tokens_per_s=1000.0 / mean if mean else None,
            middle=Acceptance(),
            verify=Acceptance(),
            mean_acceptance_length=None,
            plain_ms=None,
            speedup_vs_plain=None,
            time_split=TimeSplit(),
            kv_bytes=KvBytes(),
            prompt_tokens=self._prompt,
            prefilled_tokens=self._prompt - self._cached,
            context_tokens=self._prompt + self._tokens,
            context_limit=self._limit,
        )


def _count(value: Any, default: int) -> int:
    return value if type(value) is int and value >= 0 else default


def _part(values: list[float], share: float) -> float | None:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None
