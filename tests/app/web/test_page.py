"""The page as a browser gets it, without a browser: frame, files, live stream, routes, and what is shut."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import quote

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from app.core import chat_run, settings
from app.core.books import Books
from app.core.chat_run import Throttle, throttle_of
from app.core.chats import Chat, Chats, Exchange
from app.core.forecast import Range, Remaining
from app.core.format import glow
from app.core.open_book import OpenBook, Stage
from app.core.question import Ask
from app.core.state import AppState
from app.web import gradio_page, live
from app.web.live import RunningAnswer, changes, map_view, page_view
from app.web.routes import AnswerAsked
from app.web.server import quiet_gradio
from engine.config import SamplingParams
from engine.document import Member
from engine.errors import OptionError
from engine.events import BookRead, KvBytes, ReadingProgress, Status, StopReason
from engine.plan import BookFit
from tests.app.scripted import ScriptedEngine, book, engine_status, figures, model_info, wait_for
from tests.app.web.entering import enter
from tests.loops import run
from tests.real import LONG

PORT = 7862


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, AppState]]:
    """A client with the cookie in front of the whole guarded app, and the state behind it."""
    data = tmp_path_factory.mktemp("data")
    engine = ScriptedEngine(word_seconds=0.1)  # slow enough to be stopped on a busy machine
    state = AppState(engine, Books(data / "books"), Chats(), lambda path, password=None: book())
    with enter(state, data, PORT) as client:
        yield client, state
    state.close()


@pytest.fixture
def browser(served: tuple[TestClient, AppState]) -> TestClient:
    return served[0]


@pytest.fixture
def state(served: tuple[TestClient, AppState]) -> AppState:
    return served[1]


def ready_with(state: AppState, name: str) -> Callable[[], bool]:
    return lambda: state.current.stage is Stage.READY and state.current.book.name == name


def test_the_start_page_is_ours_around_gradios_chat(browser: TestClient) -> None:
    page = browser.get("/").text
    assert page.index('id="trifold"') < page.index('id="chat"') < page.index('id="figures"')
    assert page.count("<base") == 0
    assert "http://" not in page.replace('placeholder="http://127.0.0.1:8000/v1"', "")
    assert "https://" not in page
    assert '<script src="/ui/theme.js">' in page
    assert page.index("/ui/trifold.css") < page.index("/ui/chat.css") < page.index("/ui/race.css")
    for name in ("ask-box", "send", "stop", "how"):
        assert f'id="{name}"' in page


def test_the_page_has_no_script_between_its_lines(browser: TestClient) -> None:
    """So the policy names no script but those of this server."""
    answer = browser.get("/")
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"


def test_every_file_that_the_page_names_is_served(browser: TestClient) -> None:
    for name in (
        "theme.js",
        "main.js",
        "chat.js",
        "ask.js",
        "map.js",
        "figures.js",
        "trifold.css",
        "chat.css",
        "trifold.svg",
    ):
        answer = browser.get(f"/ui/{name}")
        assert answer.status_code == 200, name
        assert answer.content
    assert "/assets/" in browser.get("/gradio.js").text
    assert browser.get("/ui/main.js").headers["content-type"].startswith("text/javascript")


@pytest.mark.parametrize("name", ["frame.html", "..%2f..%2fserver.py", "nothing.js", "%2fetc%2fpasswd"])
def test_no_other_file_is(browser: TestClient, name: str) -> None:
    assert browser.get(f"/ui/{name}").status_code == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/gradio_api/upload"),
        ("GET", "/gradio_api/file=/etc/passwd"),
        ("GET", "/gradio_api/file=http://evil.example/"),
        ("GET", "/gradio_api/proxy=http://evil.example/"),
        ("GET", "/gradio_api/info"),
        ("GET", "/gradio_api/startup-events"),
        ("GET", "/static/img/logo.svg"),
        ("POST", "/gradio_api/call/ask"),
        ("POST", "/gradio_api/queue/join"),
        ("GET", "/gradio_api/queue/data?session_hash=x"),
        ("POST", "/gradio_api/component_server"),
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
        ("GET", "/monitoring"),
        ("POST", "/login"),
    ],
)
def test_what_gradio_adds_and_the_page_does_not_need_is_shut(browser: TestClient, method: str, path: str) -> None:
    answer = browser.request(method, path)
    assert answer.status_code == 404
    assert "nothing at this address" in answer.text


def test_a_book_comes_in_by_its_bytes(browser: TestClient, state: AppState) -> None:
    name = quote("Das <b>Licht</b> é.txt")
    assert browser.post("/books", content=b"Es werde Licht.", headers={"x-file-name": name}).status_code == 200
    wait_for(ready_with(state, "b> é.txt"))  # all before the last slash is a folder's name
    assert state.current.book.title == "The Lamplighters of Orre"


def test_a_file_can_be_kept_without_being_opened_and_is_known_again(browser: TestClient, state: AppState) -> None:
    def give(name: str, **headers: str) -> str:
        answer = browser.post("/books", content=b"Two of them.", headers={"x-file-name": name, **headers})
        assert answer.status_code == 200
        return str(answer.json()["note"])

    opened = getattr(state.current.book, "sha256", None)  # its record is made anew while it is read
    assert give("one.txt", **{"x-open": "no"}) == ""
    assert getattr(state.current.book, "sha256", None) == opened
    assert "one.txt" in [book.name for book in state.books.all()]
    assert give("two.txt") == "“two.txt” is the same file as “one.txt”, which was in your library."
    wait_for(ready_with(state, "one.txt"))
    job = state._job
    assert give("one.txt") == ""
    assert state._job is job, "it is open already"


def test_the_sample_is_one_press_away(browser: TestClient, state: AppState) -> None:
    assert browser.post("/books/sample", json={}).status_code == 200
    wait_for(ready_with(state, "the-lamplighters-of-orre.pdf"))
    reopened = browser.post("/books/open", json={"id": state.current.book.sha256})
    assert reopened.status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "cause"),
    [
        ("/books", b"", "is empty"),
        ("/books/open", b'{"id": "../../x"}', "no longer"),
        ("/books/open", b'{"id": 5}', "must be text"),
        ("/books/open", b"not json", "not JSON"),
        ("/books/open", b"[1]", "not a JSON object"),
        ("/reading/choose", b'{"first": null, "last": 3}', "whole number"),
        ("/reading/choose", b'{"first": true, "last": 3}', "whole number"),
        ("/reading/chapters", b'{"pages": [[1, "2"]]}', "whole number"),
        ("/reading/chapters", b'{"pages": [[1]]}', "a list of ranges"),
        ("/reading/chapters", b'{"pages": null}', "a list of ranges"),
        ("/asking", b'{"question": " "}', "no question"),
        ("/asking", b'{"question": "Who?", "mode": "guess"}', "setting mode is 'guess'"),
        ("/asking", b'{"question": "Who?", "mode": "plain", "temperature": "hot"}', "setting temperature is 'hot'"),
        (
            "/asking",
            b'{"question": "Who?", "mode": "plain", "temperature": 9, "max_tokens": 9}',
            "temperature",
        ),
        ("/asking/again", b'{"message": "12"}', "whole number"),
        ("/asking/again", b'{"message": 999999}', "no such answer"),
        ("/asking/continue", b'{"message": 999999}', "no answer here that was cut"),
        ("/models/first/look", b'{"target": "nobody"}', "no such model of the hub"),
        ("/models/first/look", b'{"target": "demo"}', "no such model of the hub"),
    ],
)
def test_a_bad_request_is_answered_in_a_sentence(browser: TestClient, path: str, body: bytes, cause: str) -> None:
    answer = browser.post(path, content=body)
    assert answer.status_code == 400
    assert cause in answer.json()["cause"]


_HALF = dict.fromkeys(("question", "id", "words", "name", "model", "draft", "address", "key", "tab", "mode"), "\ud800")


def test_what_is_not_said_of_sampling_is_left_to_the_model() -> None:
    unsaid = {"mode": "plain", "temperature": None, "top_p": None, "top_k": None, "max_tokens": 64}
    assert AnswerAsked.model_validate(unsaid).ask("Who?") == Ask(
        "Who?", sampling=SamplingParams(max_tokens=64), mode="plain"
    )
    said = {
        "mode": "plain",
        "temperature": 0,
        "top_k": 20,
        "repetition_penalty": 1.1,
        "exact_quotes": True,
        "max_tokens": 64,
        "tab": "t",
        "evidence": False,
    }
    expected = SamplingParams(temperature=0.0, top_k=20, repetition_penalty=1.1, exact_quotes=True, max_tokens=64)
    asked = AnswerAsked.model_validate(said).ask("Who?", position=2)
    assert asked == Ask("Who?", sampling=expected, mode="plain", evidence=False, position=2, tab="t")
    with pytest.raises(OptionError, match="whole number"):
        AnswerAsked.model_validate({**said, "top_k": 1.5}).ask("Who?")


def test_exact_quotes_are_offered_where_they_can_be_had() -> None:
    for model, has in ((None, True), (model_info(), True), (model_info(sampling=None, can_quote=False), False)):
        assert live.sampling_view(engine_status(model=model))["can_quote"] is has


_HOW = {"mode": "plain", "temperature": 0, "top_p": 1, "max_tokens": 9}
_ODD = (
    b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b"[" * 5000,
    json.dumps(_HALF).encode(),
    json.dumps({**_HALF, **_HOW, "message": 1, "question": ""}).encode(),
    json.dumps({**_HOW, "message": 10**30, "page": 10**30, "first": 10**30, "last": 10**30, "question": " "}).encode(),
    b'{"message": ' + b"9" * 5000 + b"}",
    b'{"message": 1e999, "first": NaN, "last": -Infinity, "question": "Who?", "mode": "plain", "temperature": 1e999}',
    b'{"model": "/a\\u0000b", "id": "\\u0000", "words": "\\u0000"}',
    b'{"model": "' + b"/a" * 5000 + b'"}',
    b'{"data": [], "fn_index": 1e99}',
    b'{"data": [], "fn_index": 99}',
    b'{"data": ["a", "b"], "fn_index": 0, "session_hash": 5}',
    b'{"data": {}, "fn_index": null}',
    b"\xff\xfe\0",
    b"null",
    b"[]",
    b"",
)


def test_odd_bodies_are_no_fault_of_the_program(browser: TestClient, state: AppState) -> None:
    """Deep JSON, half letters, numbers without end, on every route, Gradio's too: refused in a sentence or done.

    A route gets each third of them, another third than the route before; with TRIFOLD_LONG=1 all of them.
    """
    chat = state.chats.begin("a" * 64)
    state.chats.ask(chat.id, "Who?")
    guard: Any = browser.app
    routes = [route.path for route in guard._allowed if route.method == "POST" and not route.open]
    routes = [path for path in routes if path not in ("/books", "/key/renew", "/remote/leave", "/models/stop")]
    assert gradio_page.PREDICT in routes
    kinds = itertools.cycle(("application/json", "text/plain"))  # an odd number of bodies: each comes as either
    assert len(_ODD) % 2 == 1
    tried = [(path, sent) for at, path in enumerate(routes) for sent in (_ODD if LONG else _ODD[at % 3 :: 3])]
    for (path, sent), kind in zip(tried, kinds, strict=False):
        answer = browser.post(path, content=sent, headers={"content-type": kind})
        assert answer.status_code < 500, (path, sent[:80], answer.text)
        assert answer.status_code == 200 or answer.json()["cause"], (path, sent[:80])
    state.stop_asking(wait=20)
    for nines in ("9" * 240, "9" * 900, "9" * 5000):
        for path in (
            "/pages/",
            "/pages/1?turn=0&chip=",
            "/pages/a/1/",
            "/citations/0/",
            "/assets/",
            "/chats/export?id=",
        ):
            assert browser.get(path + nines).status_code < 500, path
    for message in (2**63, 10**400, 1.5, "1", [1]):
        answer = browser.post("/chats/open", json={"id": chat.id, "message": message})
        assert answer.status_code == 400, message
        assert answer.json()["cause"]


def test_pages_outside_the_book_are_refused(
    browser: TestClient, state: AppState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state.engine, "limit", 4000)
    browser.post("/books", content=b"x")
    wait_for(lambda: state.current.stage is Stage.CHOOSING)
    answer = browser.post("/reading/choose", json={"first": 5, "last": 999})
    assert answer.status_code == 400
    assert "5-999" in answer.json()["cause"]


def test_chapters_are_chosen_with_their_sizes_before(
    browser: TestClient, state: AppState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state.engine, "limit", 4000)
    measure = state.engine.measure
    monkeypatch.setattr(state.engine, "measure", lambda document: dataclasses.replace(measure(document), room=3900))
    assert browser.get("/contents").json()["entries"] == []
    browser.post("/books", content=b"x")
    wait_for(lambda: state.current.stage is Stage.CHOOSING)
    sizes = browser.get("/contents").json()["sizes"]
    assert (sizes["first"], len(sizes["tokens"])) == (1, 60)
    fit = state.current.whole_fit
    assert fit is not None
    assert (sizes["room"], sizes["around"] + sum(sizes["tokens"])) == (fit.room, fit.tokens)
    assert 0 < sizes["room"] <= 3900 < sum(sizes["tokens"])
    assert page_view(state.current, state.engine.status())["book"]["figures"].endswith(f"too long for {fit.room:,}")
    assert browser.post("/reading/chapters", json={"pages": []}).status_code == 400
    assert browser.post("/reading/chapters", json={"pages": [[2, 3], [7, 7], [900, 10**9]]}).status_code == 200
    wait_for(lambda: state.current.stage is Stage.READY)
    assert state.current.document is not None
    assert [page.number for page in state.current.document.pages] == [2, 3, 7]
    again = browser.get("/contents").json()["sizes"]
    assert (again["tokens"], again["room"]) == (sizes["tokens"], sizes["room"]), "others can be chosen"
    assert browser.post("/reading/otherwise").status_code == 200
    assert state.current.stage is Stage.CHOOSING
    assert browser.post("/reading/parts").status_code == 200
    assert state.current.stage is Stage.PARTS
    refused = browser.post("/asking/continue", json={"message": 1, "every": True})
    assert refused.json()["cause"] == "There is no answer here that was cut."
    assert browser.post("/reading/chapters", json={"pages": [[2, 3]]}).status_code == 200
    refused = browser.post("/asking/continue", json={"message": 1, "every": True})
    assert refused.json()["cause"] == "This book is not read in parts now."
    wait_for(lambda: state.current.stage is Stage.READY)


def test_gradio_answers_through_the_guard(browser: TestClient) -> None:
    config = browser.get("/config").json()
    named = {component["props"].get("elem_id") for component in config["components"]}
    assert {"record", "refresh"} <= named
    assert all(dependency["api_visibility"] == "private" for dependency in config["dependencies"])


def view_of(current: OpenBook, status: Status | None = None) -> dict:
    return page_view(current, status or engine_status())


def test_a_page_without_a_book() -> None:
    view = view_of(OpenBook())
    assert view["book"]["stage"] == "empty"
    assert map_view(OpenBook()) == {"pages": 0, "unit": "page", "labels": []}
    assert view["figures"] is None
    assert view["model"]["line"] == "Storyteller 27M"
    assert view["model"]["parts"][0] == "27.0 million parameters, bfloat16, on cpu"


@pytest.mark.parametrize("what", ["weights_note", "kv_note", "middle_note"])
def test_kv_that_is_not_exact_and_a_copy_that_proposes_are_named(what: str) -> None:
    note = "KV 8-bit: approximate; exact with respect to 8-bit KV"
    told = view_of(OpenBook(), engine_status(model=model_info(**{what: note})))["model"]["parts"]
    assert note in told
    assert [part for part in told if part != note] == view_of(OpenBook())["model"]["parts"]


def test_of_a_model_elsewhere_only_the_pace_is_known() -> None:
    elsewhere = model_info(parameters=0)
    assert view_of(OpenBook())["model"]["here"]
    assert not view_of(OpenBook(), engine_status(model=elsewhere))["model"]["here"]


def test_the_view_of_a_model_looks_at_the_disk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(settings, "is_same_folder", lambda path, _: bool(looks.append(path)))
    status = engine_status(model=model_info(path="/models/of/this/test"))
    for _ in range(10):
        assert view_of(OpenBook(), status)["model"]["state"] == "ready"
    assert looks == ["/models/of/this/test"]


def test_a_model_on_its_way_and_one_that_failed() -> None:
    loading = view_of(OpenBook(), engine_status(state="loading", model=None))["model"]
    assert (loading["state"], loading["line"]) == ("loading", "Loading the model…")
    assert "open a book already" in loading["detail"]
    failed = view_of(OpenBook(), engine_status(state="failed", detail="No folder.", model=None))["model"]
    assert (failed["state"], failed["detail"]) == ("failed", "No folder.")


def test_a_choice_proposes_what_fits() -> None:
    engine = ScriptedEngine(limit=4000)
    document = book(60)
    current = OpenBook(stage=Stage.CHOOSING, whole=document, document=document, fit=engine.measure(document))
    choose = view_of(current)["book"]["choose"]
    assert choose["pages"] == 60
    assert (choose["first"], choose["last"]) == (1, current.fit.pages_that_fit)
    assert "too long" in choose["sentence"]
    assert choose["unit"] == "page"
    assert choose["lead"] == "You can ask at once: answers come from passages of all 60 pages."


def test_a_dense_book_says_why_fewer_pages_fit_than_were_promised() -> None:
    """79 pages were promised, and 33 of an annual report fitted."""
    fit = BookFit(
        152_000, 32_768, False, 33, 0, "The first 33 of 160 pages fit.", page_tokens=(950,) * 160, room=31_744
    )
    current = OpenBook(stage=Stage.CHOOSING, whole=book(160), document=book(160), fit=fit)
    sections = dataclasses.replace(book(160), unit="section")  # a section of a novel was called a dense page
    of_sections = dataclasses.replace(current, whole=sections, document=sections)
    assert view_of(of_sections)["book"]["choose"]["sentence"].endswith(
        "The first 33 of 160 pages fit. That room is for 79 pages of a printed book."
    )
    said = view_of(current)["book"]["choose"]["sentence"]
    assert said == ("The first 33 of 160 pages fit. Its pages are dense. That room is for 79 pages of a printed book.")
    light = dataclasses.replace(fit, page_tokens=(420,) * 160, pages_that_fit=75)
    assert "dense" not in view_of(dataclasses.replace(current, fit=light))["book"]["choose"]["sentence"]


def test_what_can_be_asked_already_is_said_as_it_is() -> None:
    """Of a book on its way a question is answered at once only if there is a page, and more than a moment's reading."""
    document = dataclasses.replace(book(60), unit="section")

    def hint(pages: int = 0, seconds: float = 60.0, **changes: Any) -> str:
        progress = ReadingProgress(pages, 60, pages, 60, 1.0, seconds) if pages or seconds != 60.0 else None
        current = OpenBook(stage=Stage.READING, document=document, progress=progress)
        return str(view_of(dataclasses.replace(current, **changes))["hint"])

    later = "You can ask already: your question is answered as soon as all of it has been read."
    assert hint() == later  # nothing is known of how far it is: a server elsewhere never tells
    assert hint(0, 50.0) == later
    assert hint(12, 2.0) == later
    assert hint(12, 50.0) == "Answers from passages at once, and after the reading from all 60 sections."
    left = Remaining(Range(400.0, 420.0))
    assert hint(12, 50.0, remaining=left) == "Answers from passages at once; after about 7 min from all 60 sections."
    short = OpenBook(stage=Stage.UNREAD, document=book(1))
    assert view_of(short)["hint"] == "Your first question begins the reading of all of it, if it needs that."
    late = dataclasses.replace(left, slower=True)  # "at least 15 min left" stood above "after 4 to 15 min"
    assert "after the reading" in hint(12, 50.0, remaining=late)
    read = BookRead(10, 100, 6, 60, 1.0, 1.0, KvBytes(), stopped=True)
    assert hint(stage=Stage.READY, read=read) == "Ask anything about the first 6 sections."
    whole = dataclasses.replace(read, stopped=False)
    assert hint(stage=Stage.READY, read=whole) == "Ask anything about this book."
    chapter = dataclasses.replace(document, pages=document.pages[4:8])
    told = hint(stage=Stage.READY, read=whole, document=chapter, whole=document)
    assert told == "Ask anything about section 5 – section 8."
    two = dataclasses.replace(
        book(60), members=(Member("A", "", "txt", "a", "page", 0), Member("B", "", "txt", "b", "page", 30))
    )
    assert hint(stage=Stage.READY, read=whole, document=two) == "Ask anything about these documents."


def test_what_only_finds_passages_is_not_asked_anything_else(tmp_path: Path) -> None:
    (tmp_path / "abilities.json").write_text('{"only_quotes": true}', encoding="utf-8")
    status = engine_status()
    assert status.model is not None
    quoting = dataclasses.replace(status, model=dataclasses.replace(status.model, path=str(tmp_path)))
    whole = BookRead(10, 100, 60, 60, 1.0, 1.0, KvBytes(), stopped=False)
    current = OpenBook(stage=Stage.READY, document=book(60), read=whole)
    assert view_of(current, quoting)["hint"] == "Ask where something is said in this book."
    partly = dataclasses.replace(current, read=dataclasses.replace(whole, pages_read=6, stopped=True))
    assert view_of(partly, quoting)["hint"] == "Ask where something is said in the first 6 pages."


def test_labels_are_sent_only_where_they_are_not_the_numbers() -> None:
    document = book(3)
    assert map_view(OpenBook(document=document))["labels"] == []
    pages = tuple(dataclasses.replace(page, label=label) for page, label in zip(document.pages, "iv1", strict=True))
    named = dataclasses.replace(document, pages=pages)
    assert map_view(OpenBook(document=named))["labels"] == ["i", "v", "1"]


class Told(asyncio.Event):
    """Always tells of a change."""

    async def wait(self) -> Literal[True]:
        return True


def at_once() -> Throttle:
    return Throttle(words=0.0, figures=0.4, layout=1.0, settle=0.0)


def test_the_stream_sends_all_once_and_then_what_has_changed() -> None:
    views: Iterator[dict[str, Any]] = iter(
        [{"a": 1, "b": [1]}, {"a": 1, "b": [1]}, {"a": 2, "b": [1]}, {"a": 2, "b": None}]
    )
    left = iter([False, False, False, False, True])

    async def gone() -> bool:
        return next(left)

    async def collect() -> list[dict[str, Any]]:
        return [
            json.loads(event.removeprefix("data: "))
            async for event in changes(lambda: next(views), Told(), gone, at_once)
        ]

    assert run(collect()) == [{"a": 1, "b": [1]}, {"a": 2}, {"b": None}]


@pytest.mark.parametrize(
    "change",
    [
        lambda state, chat: state.show(waiting="Writing…"),
        lambda state, chat: state.chats.update(chat.id, 0, Exchange("Who?", "Maren Holt.")),
        lambda state, chat: state.chats.rename(chat.id, "The lamps"),
    ],
    ids=["the open book", "a growing answer", "a table"],
)
def test_a_change_is_sent_when_it_happens(
    state: AppState, change: Callable[[AppState, Chat], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LOOK_SECONDS", 60.0)
    chat = state.chats.begin("0" * 64)
    state.chats.ask(chat.id, "Who?")

    def view() -> dict[str, Any]:
        known = state.chats.get(chat.id)
        return {"seen": [state.current.waiting, known.title, [turn.answer for turn in known.exchanges]]}

    async def gone() -> bool:
        return False

    async def second() -> str:
        with state.changed.awaited() as told:
            stream = changes(view, told, gone, at_once)
            await anext(stream)
            threading.Timer(0.05, change, (state, chat)).start()
            return await asyncio.wait_for(anext(stream), 20.0)

    assert any(words in run(second()) for words in ("Writing…", "Maren Holt.", "The lamps"))


def test_figures_move_more_seldom_than_words_and_the_last_ones_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.1, 0.2, 0.5, 0.6, 1.0])
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    views = iter([{"figures": min(step, 4), "words": step} for step in range(6)])
    left = iter([*[False] * 6, True])

    async def gone() -> bool:
        return next(left)

    async def collect() -> list[dict[str, Any]]:
        return [
            json.loads(event.removeprefix("data: "))
            async for event in changes(lambda: next(views), Told(), gone, at_once)
        ]

    sent = run(collect())
    assert [news["words"] for news in sent] == [0, 1, 2, 3, 4, 5]
    assert [news.get("figures") for news in sent] == [0, None, None, 3, None, 4]


def test_the_last_figures_come_with_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.1, 0.2])
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    views = iter([{"asking": step < 2, "figures": step} for step in range(3)])
    left = iter([False, False, False, True])

    async def gone() -> bool:
        return next(left)

    async def collect() -> list[dict[str, Any]]:
        return [
            json.loads(event.removeprefix("data: "))
            async for event in changes(lambda: next(views), Told(), gone, at_once)
        ]

    assert [news.get("figures") for news in run(collect())] == [0, 2]


def test_where_the_engine_computes_on_the_processor_the_page_moves_more_seldom() -> None:
    elsewhere = engine_status(model=model_info(device="cuda"))
    assert throttle_of(elsewhere, card=False) == throttle_of(elsewhere, card=True) == chat_run.OWN
    assert throttle_of(engine_status(), card=True) == chat_run.BESIDE
    assert throttle_of(engine_status()) == chat_run.SHARED
    often, seldom, most_seldom = map(dataclasses.astuple, (chat_run.OWN, chat_run.BESIDE, chat_run.SHARED))
    assert all(a <= b <= c for a, b, c in zip(often, seldom, most_seldom, strict=True))
    assert chat_run.OWN.words < chat_run.BESIDE.words < chat_run.SHARED.words


def test_an_error_in_a_panel_takes_nothing_from_the_others(ready: Callable[..., AppState], caplog: Any) -> None:
    """It ended the stream, and the page waited for ever without a word."""

    class _Panel:
        def __init__(self, key: str) -> None:
            self.key = key

        def routes(self) -> tuple[()]:
            return ()

        def view(self) -> dict[str, Any]:
            return {self.key: 1 // (self.key != "broken")}

    stream = live.Live(ready(), [_Panel("broken"), _Panel("sound")])
    shown = [stream.view() for _ in range(3)]
    assert all(one["sound"] == 1 and "broken" not in one and "book" in one for one in shown)
    assert len([one for one in caplog.records if one.exc_info]) == 1, "the log has it once"


def test_news_come_at_once_while_the_engine_has_nothing_to_do(state: AppState) -> None:
    stream = live.Live(state)
    assert stream._throttle(card=False) == chat_run.OWN
    state.engine.now = engine_status(state="answering")  # type: ignore[attr-defined]
    assert stream._throttle(card=False) == chat_run.SHARED
    assert stream._throttle(card=True) == chat_run.BESIDE


def test_of_an_answer_that_grows_only_what_is_new_is_sent() -> None:
    texts = [
        RunningAnswer(7, "", waiting="Thinking…"),
        RunningAnswer(7, "It was"),
        *[RunningAnswer(7, "It was Maren")] * 2,
        RunningAnswer(7, "It was Maren H", "<p>It was Maren</p>", 12),
        RunningAnswer(8, "It was no"),
        None,
    ]
    views = iter([{"writing": text} for text in texts])
    left = iter([*[False] * len(texts), True])

    async def gone() -> bool:
        return next(left)

    async def collect() -> list[dict]:
        return [
            json.loads(event.removeprefix("data: "))
            async for event in changes(lambda: next(views), Told(), gone, at_once)
        ]

    assert [news["writing"] for news in run(collect())] == [
        {"answer": 7, "whole": True, "text": "", "html": "", "at": 0, "waiting": "Thinking…"},
        {"answer": 7, "whole": False, "text": "It was", "waiting": ""},
        {"answer": 7, "whole": False, "text": " Maren"},
        {"answer": 7, "whole": False, "text": " H", "html": "<p>It was Maren</p>", "at": 12},
        {"answer": 8, "whole": True, "text": "It was no", "html": "", "at": 0, "waiting": ""},
        None,
    ]


HOW = {"mode": "hierarchical", "temperature": 0, "top_p": 1, "max_tokens": 64}


def with_book(state: AppState) -> None:
    state.close_book()
    wait_for(lambda: not state.current.asking)
    with state.books.receive("lamp.txt") as incoming:
        incoming.write(b"the reader of these tests has words of its own")
        state.open(incoming.keep())
    wait_for(lambda: state.current.stage is Stage.READY)


def asks(browser: TestClient, path: str = "/asking", **asked: object) -> dict:
    answer = browser.post(path, json={"question": "Who?", **HOW, **asked})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.fixture
def endless(state: AppState) -> Iterator[AppState]:
    """The state, whose engine answers until it is stopped."""
    engine: Any = state.engine
    usual = engine.answer, engine.word_seconds
    engine.answer, engine.word_seconds = "**Maren** Holt kept " + "the north light " * 5000, 0.02
    yield state
    state.stop_asking(wait=20)
    engine.answer, engine.word_seconds = usual


class Tab:
    """A page's live stream, opened and ended by the test."""

    def __init__(self, stream: live.Live) -> None:
        self._here, self._gone = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._listen(stream))

    async def come(self) -> None:
        await self._here.wait()

    async def leave(self) -> None:
        self._gone.set()
        await self._task

    async def _listen(self, stream: live.Live) -> None:
        scope = {"type": "http", "method": "GET", "path": "/live", "headers": [], "query_string": b""}

        async def receive() -> dict:
            await self._gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: dict) -> None:
            if message.get("body"):
                self._here.set()

        response = await stream.route().endpoint(Request(scope, receive))
        await response(scope, receive, send)


AWAY = 3600.0  # seconds, which pass by the loop's clock alone


def test_an_answer_goes_on_through_a_reload_and_ends_when_nobody_comes_back(
    browser: TestClient, endless: AppState
) -> None:
    state = endless
    with_book(state)
    stream = live.Live(state, away_seconds=AWAY)

    def written() -> str:
        return state.chat.exchanges[-1].answer if state.chat else ""

    async def goes_on() -> None:
        before = written()
        await asyncio.to_thread(wait_for, lambda: written() != before)

    async def come_and_go() -> None:
        loop, real, ahead = asyncio.get_running_loop(), time.monotonic, 0.0
        loop.time = lambda: real() + ahead  # type: ignore[method-assign]

        async def passes(seconds: float) -> None:
            nonlocal ahead
            ahead += seconds
            await asyncio.sleep(0.001)  # the loop looks at its timers

        first = Tab(stream)
        await first.come()
        answer = await asyncio.to_thread(asks, browser, tab="mine")
        await first.leave()
        await passes(AWAY / 2)
        again, beside = Tab(stream), Tab(stream)
        await again.come()
        await beside.come()
        await passes(2 * AWAY)
        await goes_on()
        await again.leave()
        await passes(2 * AWAY)
        await goes_on()  # another tab shows it
        await beside.leave()
        await passes(2 * AWAY)
        await asyncio.to_thread(wait_for, lambda: not state.current.asking)
        assert state.chat is not None
        assert state.chat.exchanges[-1].answer_id == answer["answer"]
        assert state.chat.exchanges[-1].stopped is StopReason.CANCELLED

    run(come_and_go())


def test_an_answer_that_no_page_asked_for_goes_on_without_one(browser: TestClient, state: AppState) -> None:
    with_book(state)
    asks(browser)
    state.leave()
    wait_for(lambda: not state.current.asking)
    assert state.chat is not None
    assert state.chat.exchanges[-1].stopped is StopReason.END


def test_one_question_at_a_time_on_all_tabs(browser: TestClient, state: AppState) -> None:
    with_book(state)
    asks(browser, tab="mine")
    refused = asks(browser, question="And I?", tab="other")
    assert "Another question" in refused["cause"]
    assert refused["busy"] is True
    state.stop_asking(wait=5.0)


def test_a_question_can_take_the_place_of_the_one_that_is_answered(browser: TestClient, state: AppState) -> None:
    with_book(state)
    asks(browser, tab="mine")
    taken = asks(browser, question="And I?", tab="other", instead=True)
    assert "cause" not in taken
    wait_for(lambda: not state.current.asking)
    assert state.chat is not None
    stopped = [turn.stopped for turn in state.chat.exchanges[-2:]]
    assert stopped == [StopReason.CANCELLED, StopReason.END]


def test_messages_are_asked_again_edited_and_continued_by_their_numbers(browser: TestClient, state: AppState) -> None:
    with_book(state)
    asks(browser, "/chats/new")
    wait_for(lambda: state.chat is not None and not state.chat.exchanges)
    first = asks(browser)
    wait_for(lambda: not state.current.asking)
    again = asks(browser, "/asking/again", message=first["answer"])
    wait_for(lambda: not state.current.asking)
    assert state.chat is not None
    (turn,) = state.chat.exchanges
    assert turn.answers == (first["answer"], again["answer"])
    asks(browser, question="Who else?", message=turn.question_id)
    wait_for(lambda: not state.current.asking)
    (turn,) = state.chat.exchanges
    assert (turn.question, len(turn.questions)) == ("Who else?", 2)
    cut = asks(browser)
    wait_for(lambda: bool(state.chat and state.chat.exchanges[-1].answer))
    browser.post("/asking/stop", json={})
    wait_for(lambda: not state.current.asking)
    begun = state.chat.exchanges[-1].answer
    assert asks(browser, "/asking/continue", message=cut["answer"])["answer"] == cut["answer"]
    wait_for(lambda: not state.current.asking)
    assert state.chat.exchanges[-1].answer.startswith(begun)
    assert state.chat.exchanges[-1].stopped is StopReason.END


def test_the_words_of_an_answer_come_through_the_live_stream_alone(browser: TestClient, state: AppState) -> None:
    """Gradio is told of its place when it begins and of all of it when it has ended, and of no word in between."""
    with_book(state)
    engine, stream, shown = state.engine, live.Live(state), gradio_page.Record(state)
    answer = asks(browser, tab="mine")
    records, streamed = set(), set()
    while state.current.asking:
        view = stream.view()
        if view["writing"] is not None:
            streamed.add(view["writing"].text)
            messages, record = shown.show()
            if record.endswith(".open"):
                records.add(record)
                assert messages[-1]["content"].startswith('<div class="writing">')
                assert not any(word in messages[-1]["content"] for word in ("Maren", "Holt", "north"))
    assert len(streamed) > 2
    assert len(records) == 1
    messages, record = shown.show()
    assert record.startswith(f"{state.current.chat}.{len(messages) // 2}.{answer['answer']}.")
    assert record.endswith(".ended")
    assert str(engine.answer) in messages[-1]["content"]  # type: ignore[attr-defined]


def test_an_answer_is_formatted_when_its_citations_are_looked_up(endless: AppState) -> None:
    with_book(endless)
    stream = live.Live(endless)
    chat_run.start(endless, chat_run.ask(endless, Ask("Who?", mode="plain")))

    def formatted() -> bool:
        writing = stream.view()["writing"]
        if writing is None or not writing.html:
            return False
        assert len(writing.text) >= writing.html_end
        assert f'<span class="caret at-{writing.html_end}"></span>' in writing.html
        return "<strong>Maren</strong>" in writing.html

    wait_for(formatted)


def test_gradios_queue_sleeps_while_nobody_asks(state: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = gradio_page.build(gradio_page.Record(state).show)._queue
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        queue.stopped = len(slept) >= 4
        await real(0)

    monkeypatch.setattr(asyncio, "sleep", sleep)

    async def look() -> None:
        await asyncio.gather(queue.start_processing(), queue.start_progress_updates())

    run(look())
    assert sum(1 / seconds for seconds in set(slept)) < 30  # looks in a second; Gradio's own are 1,100


def test_gradio_keeps_few_tabs_and_one_event(state: AppState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gradio.state_holder import StateHolder

    monkeypatch.setattr(os, "environ", dict(os.environ))
    quiet_gradio(tmp_path)

    async def built() -> Any:
        return gradio_page.build(gradio_page.Record(state).show)

    page, tabs = run(built()), StateHolder()
    tabs.set_blocks(page)
    for number in range(100):
        assert tabs[f"tab {number}"]
    assert len(tabs.session_data) <= 65  # one comes in before the oldest goes
    assert "tab 99" in tabs
    assert (page._queue.ANALYTICS_MAX_EVENTS, page.analytics_enabled) == (1, False)


def test_gradio_that_has_lost_its_server_finds_it_again(browser: TestClient) -> None:
    assert set(browser.get("/gradio_api/app_id").json()) == {"app_id"}


def test_the_chart_is_of_the_answer_whose_figures_are_shown() -> None:
    """Another version that was chosen had the figures of its own and the chart of the answer that came last."""
    last = [[9.0, 9.0, 9.0, 1]]
    current = OpenBook(stage=Stage.READY, document=book(2), figures=figures(), pace=((30.0, 30.0, 30.0, 1),))
    turns = [Exchange("Who?", "She.", StopReason.END, figures(), notes=notes) for notes in (None, {"pace": last})]
    shown = [page_view(current, engine_status(), Chat("a", "b", 0.0, (turn,)))["pace"] for turn in turns]
    assert [list(map(list, pace)) for pace in shown] == [[], last]
    asking = dataclasses.replace(current, asking=True)
    assert page_view(asking, engine_status(), Chat("a", "b", 0.0, tuple(turns)))["pace"] == current.pace
    begun = dataclasses.replace(asking, figures=None, pace=())
    turns.append(Exchange("And?"))
    seen = page_view(begun, engine_status(), Chat("a", "b", 0.0, tuple(turns)))
    assert (bool(seen["figures"]), seen["pace"]) == (True, ()), "figures stand there until the first token"
    turns[-1] = Exchange("And?", "He", None, figures(7), notes={"pace": [[5.0, 5.0, 5.0, 7]]})
    assert page_view(begun, engine_status(), Chat("a", "b", 0.0, tuple(turns)))["pace"] == ((5.0, 5.0, 5.0, 7),)


def test_a_view_is_json_and_small() -> None:
    document = book(2000, words=3)
    current = OpenBook(stage=Stage.READY, document=document, scores=tuple([1 / 2000] * 2000), figures=figures())
    moving = {"scores": glow(current.scores), **{key: view_of(current)[key] for key in ("figures", "pace")}}
    assert len(json.dumps(moving)) < 16_000


def test_what_glows_is_worked_out_once_for_all_looks_at_it(state: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[int] = []
    monkeypatch.setattr(live, "glow", lambda scores: worked.append(len(scores)) or [len(scores)])
    stream = live.Live(state)
    for scores in ((0.5, 0.5), (0.1, 0.2, 0.7)):
        state.show(scores=scores)
        assert [stream.view()["scores"] for _ in range(3)] == [[len(scores)]] * 3
    assert worked == [2, 3]


def test_the_map_is_sent_before_what_glows_on_it(served: tuple[TestClient, AppState]) -> None:
    from app.web.live import Live

    view = Live(served[1]).view()
    assert list(view).index("map") < list(view).index("scores")
