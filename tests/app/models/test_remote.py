"""A server elsewhere in the engine's place: a second Trifold in a process of its own, and servers that misbehave."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from app.core.settings import Remote
from app.models import openai_client
from app.models.remote import RemoteEngine, fit_of
from engine import Question, SamplingParams, Turn
from engine.document import Document, Page
from engine.errors import Busy, Closed, EngineError, InputError, ModelNotFound, OptionError, TrifoldError
from engine.events import AnswerDone, BookRead, Loading, StopReason, TextDelta
from engine.plan import MIN_CHAT_TOKENS
from tests.app.running import Running

WORDS = "Maren Holt kept the north light, and the boat came in at dusk. "
BOOK = Document("Orre", "", tuple(Page(number, str(number), WORDS * 20) for number in range(1, 6)), "text", "0" * 64)
SHORT = SamplingParams(max_tokens=16, temperature=2.0, seed=7)
LONG = SamplingParams(max_tokens=100_000, temperature=4.0)  # words at random: minutes on any machine


@pytest.fixture(scope="module")
def server(endless_app: Running) -> Running:
    endless_app.until(lambda state: state["model"]["state"] == "ready")
    endless_app.post("/books/close")  # a text that is sent takes the place of no book
    endless_app.until(lambda state: state["book"]["stage"] == "empty")
    return endless_app


@pytest.fixture
def engine(server: Running) -> Iterator[RemoteEngine]:
    made = RemoteEngine(Remote(server.api, "", server.key))
    made.wait_ready(20)
    yield made
    made.close()


def final(request: Any) -> tuple[list[Any], Any]:
    events = list(request)
    return events, events[-1]


def test_a_book_is_sent_once_and_then_asked_about(engine: RemoteEngine) -> None:
    fit = engine.measure(BOOK)
    assert fit.fits
    assert engine.status().model is not None
    _, read = final(engine.read(BOOK))
    assert isinstance(read, BookRead)
    assert read.pages_read == 5
    assert read.tokens > 1000
    events, done = final(engine.ask(Question("Who kept the light?", sampling=SHORT)))
    assert isinstance(done, AnswerDone), done
    assert done.text
    assert "".join(event.text for event in events if isinstance(event, TextDelta)) == done.text
    assert done.stop_reason is StopReason.LENGTH
    assert done.figures.answer_tokens == 16
    assert done.figures.prompt_tokens == pytest.approx(read.tokens, abs=30), "the book is part of every prompt"
    assert done.figures.prefilled_tokens < 0.1 * done.figures.prompt_tokens, "the server had the book in its cache"
    assert done.figures.ttft_s is not None
    turns = (Turn("Who kept the light?", done.text),)
    _, second = final(engine.ask(Question("And then?", turns, SHORT)))
    assert isinstance(second, AnswerDone)
    assert second.figures.prompt_tokens > done.figures.prompt_tokens
    book = engine.status().book
    assert book is not None
    assert book.complete


def test_an_answer_is_stopped_at_once_and_the_next_one_is_taken(engine: RemoteEngine) -> None:
    list(engine.read(BOOK))
    request = engine.ask(Question("Who?", sampling=LONG))
    with pytest.raises(Busy):
        engine.ask("Me too?")
    words = ""
    while not words:
        event = request.next_event(10)
        words = event.text if isinstance(event, TextDelta) else ""
    request.cancel()
    begin = time.monotonic()
    _, done = final(request)
    assert time.monotonic() - begin < 2
    assert isinstance(done, AnswerDone)
    assert done.stop_reason is StopReason.CANCELLED
    assert done.text.startswith(words)
    until = time.monotonic() + 20
    while True:  # the server notices that nobody listens any more, and is free again
        with suppress(Busy):
            assert isinstance(engine.ask(Question("Who?", sampling=SHORT)).result(), AnswerDone)
            break
        assert time.monotonic() < until
        time.sleep(0.2)


def test_a_wrong_key_is_named(server: Running) -> None:
    engine = RemoteEngine(Remote(server.api, "x", "sk-wrong"))
    with pytest.raises(OptionError, match="does not accept this key"):
        engine.wait_ready(20)
    assert engine.status().state == "failed"
    with pytest.raises(OptionError):
        engine.ask("Who?")


def test_a_model_that_is_not_there_is_named_with_those_that_are(server: Running) -> None:
    with pytest.raises(ModelNotFound, match=r"no model gpt-4\. Choose one that it offers: \w+"):
        RemoteEngine(Remote(server.api, "gpt-4", server.key)).wait_ready(20)


def test_nobody_there_is_one_quick_sentence() -> None:
    begin = time.monotonic()
    engine = RemoteEngine(Remote("http://127.0.0.1:9/v1", "x"))
    with pytest.raises(EngineError, match=r"Nobody answers at 127\.0\.0\.1:9"):
        engine.wait_ready(20)
    assert time.monotonic() - begin < 8


def test_closed_is_closed(engine: RemoteEngine) -> None:
    engine.close()
    with pytest.raises(Closed):
        engine.ask("Who?")


@contextmanager
def speaking(*answers: bytes, heard: list[bytes] | None = None) -> Iterator[str]:
    """A server that says exactly this, connection after connection, whatever is asked."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(8)

        def serve() -> None:
            for answer in answers:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    asked = connection.recv(1 << 20)
                    if heard is not None:
                        heard.append(asked)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(1 << 20):  # what comes late must not break what was said
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"


def http(body: bytes, status: str = "200 OK", head: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{head}\r\n".encode() + body


MODELS = http(b'{"data": [{"id": "m", "max_model_len": 4096}]}')


@pytest.mark.parametrize(("owner", "can"), [("someone", False), ("trifold", True)])
def test_only_another_trifold_can_hold_quotations_to_the_book(owner: str, can: bool) -> None:
    with speaking(http(b'{"data": [{"id": "m", "owned_by": "%s"}]}' % owner.encode())) as base:
        model = RemoteEngine(Remote(base, "m")).wait_ready(10).model
    assert model is not None
    assert model.can_quote is can


@pytest.mark.parametrize(
    "listing", [b"<html>", b"[]", b'{"data": 3}', b'{"data": [{}]}', b"[" * 50_000], ids=lambda body: body[:12].decode()
)
def test_a_server_that_speaks_something_else_is_refused(listing: bytes) -> None:
    with speaking(http(listing)) as base, pytest.raises(TrifoldError):
        RemoteEngine(Remote(base, "m")).wait_ready(10)


def test_a_server_that_leads_elsewhere_is_not_followed() -> None:
    with (
        speaking(http(b"", "302 Found", "Location: http://127.0.0.1:9/v1/models\r\n")) as base,
        pytest.raises(EngineError, match="error 302"),
    ):
        RemoteEngine(Remote(base, "m", "secret")).wait_ready(10)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http(b'{"error": {"message": "this model\'s maximum context length is 4096"}}', "400 Bad"), "does not fit"),
        (http(b'{"error": {"message": "later"}}', "429 No"), "busy"),
        (http(b"oops", "500 No"), "error 500"),
        (http(b'data: {"error": {"message": "CUDA out of memory"}}\n\n'), "CUDA out of memory"),
        (http(b'data: {"choices": [{"delta": {"content": "x"}}]}\n\n'), "broke off"),
        (http(b"data: {\n\n"), "cannot be read"),
        (http(b"data: " + b"x" * (2 << 20)), "too long"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\ndata: ", "broke"),
        (b"", "broke"),
    ],
    ids=range(9),
)
def test_what_goes_wrong_over_there_is_one_sentence(answer: bytes, said: str) -> None:
    with speaking(MODELS, answer) as base:
        engine = RemoteEngine(Remote(base, "m"))
        engine.wait_ready(10)
        with pytest.raises(TrifoldError) as failed:
            list(engine.read(BOOK))
    assert said in failed.value.cause
    assert engine.status().state == "idle"


def streamed(*deltas: dict[str, str], usage: dict[str, Any] | None = None) -> bytes:
    """A streamed answer of these pieces."""
    chunks: list[dict[str, Any]] = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks += [{"choices": [{"delta": {}, "finish_reason": "stop"}]}, {"choices": [], "usage": usage or {}}]
    return http("".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode(), head=_STREAM)


SAID = {"content": "was."}
_STREAM = "Content-Type: text/event-stream\r\n"


@pytest.mark.parametrize(
    ("deltas", "thought", "said"),
    [
        ([{"reasoning_content": "Well"}, {"reasoning_content": "."}, {"content": "It "}, SAID], "Well.", "It was."),
        ([{"reasoning": "Well."}, {"content": "It was."}], "Well.", "It was."),
        ([{"content": "<thi"}, {"content": "nk>\nWell.\n</think>\n\nIt "}, SAID], "Well.", "It was."),
        ([{"content": "It was <think>."}], "", "It was <think>."),
        ([{"reasoning_content": "On and on"}], "On and on", ""),
    ],
    ids=["reasoning_content", "reasoning", "tags", "no thought", "nothing but a thought"],
)
def test_what_a_server_thinks_is_not_its_answer(deltas: list[dict[str, str]], thought: str, said: str) -> None:
    usage = {"prompt_tokens": 90, "completion_tokens": 12, "completion_tokens_details": {"reasoning_tokens": 5}}
    answer = streamed(*deltas, usage=usage)
    with speaking(MODELS, streamed({"content": "Orre"}), answer) as base:
        engine = RemoteEngine(Remote(base, "m"))
        engine.wait_ready(10)
        final(engine.read(BOOK))
        events, done = final(engine.ask(Question("Who?", sampling=SamplingParams(think=True))))
    assert isinstance(done, AnswerDone)
    assert done.text == said == "".join(event.text for event in events if isinstance(event, TextDelta))
    assert (done.thought.text.strip() if done.thought else "") == thought
    assert done.thought is None or done.thought.is_open is (not said)
    assert done.figures.answer_tokens == 7
    sent = [engine._body(BOOK, [], SamplingParams(think=think))["extra_body"] for think in (True, False, None)]
    assert sent == [{"chat_template_kwargs": {"enable_thinking": True}}, {}, {}]


def test_a_reading_can_be_stopped() -> None:
    with speaking(MODELS) as base:  # the next connection stands, and nobody answers it
        engine = RemoteEngine(Remote(base, "m"))
        engine.wait_ready(10)
        request = engine.read(BOOK)
        assert isinstance(request.next_event(10), Loading), "it is on its way"
        request.cancel()
        begin = time.monotonic()
        _, read = final(request)
        assert time.monotonic() - begin < 2
    assert isinstance(read, BookRead)
    assert read.stopped
    assert read.tokens == 0
    with pytest.raises(InputError, match="No book"):
        engine.ask("Who?").result()


def test_nothing_is_told_about_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The official client adds the system, versions of Python, and keys that it finds in the environment."""
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"):
        monkeypatch.setenv(name, "of-another-service")
    heard: list[bytes] = []
    with speaking(MODELS, MODELS, heard=heard) as base:
        RemoteEngine(Remote(base, "m", "secret")).wait_ready(10)
        RemoteEngine(Remote(base, "m")).wait_ready(10)
    head = {line.partition(b":")[0].lower() for line in heard[0].splitlines()[1:] if line}
    assert head == {
        b"host",
        b"accept",
        b"accept-encoding",
        b"connection",
        b"user-agent",
        b"authorization",
    }
    assert b"Bearer secret" in heard[0]
    assert b"authorization" not in heard[1].lower()
    assert b"another-service" not in b"".join(heard)


def test_a_packed_answer_is_not_unpacked() -> None:
    packed = gzip.compress(b'{"data": [{"id": "m"}]}')
    with (
        speaking(http(packed, head="Content-Encoding: gzip\r\n")) as base,
        pytest.raises(EngineError, match="protocol"),
    ):
        RemoteEngine(Remote(base, "m")).wait_ready(10)


def test_the_window_of_the_server_counts() -> None:
    with speaking(MODELS) as base:
        engine = RemoteEngine(Remote(base, "m"))
        fit = engine.measure(Document("x", "", BOOK.pages * 4, "text", "0" * 64))
    assert fit.limit == 4096
    assert not fit.fits
    assert 0 < fit.pages_that_fit < 20
    assert sum(fit.page_tokens[: fit.pages_that_fit]) <= fit.room < sum(fit.page_tokens[: fit.pages_that_fit + 1])


def test_sections_are_not_counted_as_pages() -> None:
    """Of 76 pages and 4 sections "80 pages" was said."""
    both = Document.together(
        [Document.from_pages("Lease", ["a lamp"] * 76), Document.from_pages("Guide", ["a lamp"] * 4, unit="section")]
    )
    assert fit_of(both, 4096).sentence == "76 pages and 4 sections, about 160 tokens of 4,096: it fits."
    assert fit_of(both, 400).sentence.startswith("76 pages and 4 sections: too long for this model.")
    long = Document.from_pages("Guide", ["a lamp " * 100] * 9, unit="section")
    room = sum(fit_of(long, 4096).page_tokens[:4]) + MIN_CHAT_TOKENS
    assert fit_of(long, room).sentence.endswith("The first 4 of 9 sections fit.")
    assert fit_of(long, MIN_CHAT_TOKENS).sentence.endswith("Not even the first section fits.")


@pytest.mark.parametrize(
    ("text", "base", "stays"),
    [
        ("127.0.0.1:8000", "http://127.0.0.1:8000/v1", True),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1", True),
        ("http://[::1]:8000/v1/chat/completions", "http://[::1]:8000/v1", True),
        ("https://gpu.example.org/openai/v1", "https://gpu.example.org/openai/v1", False),
        ("http://127.0.0.1.example.org", "http://127.0.0.1.example.org/v1", False),
        ("http://192.168.1.7:8000", "http://192.168.1.7:8000/v1", False),
        ("http://0.0.0.0:8000", "http://0.0.0.0:8000/v1", False),
    ],
)
def test_addresses(text: str, base: str, stays: bool) -> None:
    found = openai_client.parse_address(text)
    assert found.base == base
    assert found.stays_here is stays


@pytest.mark.parametrize(
    "text",
    ["", "ftp://x", "http://", "http://user:pass@host", "http://h/v1?key=1", "http://h:99999", "http://a b", "x\n" * 2],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    check: Callable[[str], object] = openai_client.parse_address
    with pytest.raises(OptionError):
        check(text)
