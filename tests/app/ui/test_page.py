"""The page as a browser gets it, without a browser: frame, files, live stream, routes, and the doors that are shut."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from app.books import Books
from app.chats import Chats
from app.ui import layout, live, rhythm, shell, tabs, trackers, view
from app.ui.desk import Desk, Keeper, Stage
from app.ui.handlers import Handlers
from app.ui.live import changes
from app.ui.presentation import glow
from app.ui.rhythm import Rhythm, rhythm_of
from app.ui.tabs import Tabs
from app.ui.view import Growing, map_view, page_view
from engine.errors import EngineError
from engine.events import StopReason
from engine.status import Status
from tests.app.ui.entering import enter
from tests.app.ui.scripted import ScriptedEngine, book, engine_status, figures, model_info, wait_for
from tests.loops import run

PORT = 7862


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, Keeper]]:
    """A client with the cookie in front of the whole guarded app, and the keeper behind it."""
    data = tmp_path_factory.mktemp("data")
    keeper = Keeper(ScriptedEngine(), Books(data / "books"), Chats(), lambda path, password=None: book())
    with enter(keeper, data, PORT) as client:
        yield client, keeper
    keeper.close()


@pytest.fixture
def browser(served: tuple[TestClient, Keeper]) -> TestClient:
    return served[0]


@pytest.fixture
def keeper(served: tuple[TestClient, Keeper]) -> Keeper:
    return served[1]


def ready_with(keeper: Keeper, name: str) -> Callable[[], bool]:
    return lambda: keeper.desk.stage is Stage.READY and keeper.desk.book.name == name


def test_the_start_page_is_ours_around_gradios_chat(browser: TestClient) -> None:
    page = browser.get("/").text
    assert page.index('id="trifold"') < page.index("<gradio-app") < page.index('id="figures"')
    assert page.count("<base") == 0
    assert "https://raw.githubusercontent.com" not in page
    assert '<script src="/ui/theme.js">' in page


def test_every_file_that_the_page_names_is_served(browser: TestClient) -> None:
    for name in ("theme.js", "main.js", "writing.js", "map.js", "figures.js", "trifold.css", "chat.css", "trifold.svg"):
        answer = browser.get(f"/ui/{name}")
        assert answer.status_code == 200, name
        assert answer.content
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
        ("POST", "/gradio_api/call/ask"),
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


def test_a_book_comes_in_by_its_bytes(browser: TestClient, keeper: Keeper) -> None:
    name = quote("Das <b>Licht</b> é.txt")
    assert browser.post("/books", content=b"Es werde Licht.", headers={"x-file-name": name}).status_code == 200
    wait_for(ready_with(keeper, "b> é.txt"))  # all before the last slash is a folder's name
    assert keeper.desk.book.title == "The Lamplighters of Orre"


def test_the_sample_is_one_press_away(browser: TestClient, keeper: Keeper) -> None:
    assert browser.post("/books/sample", json={}).status_code == 200
    wait_for(ready_with(keeper, "the-lamplighters-of-orre.pdf"))
    reopened = browser.post("/books/open", json={"id": keeper.desk.book.sha256})
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
    ],
)
def test_a_bad_request_is_answered_in_a_sentence(browser: TestClient, path: str, body: bytes, cause: str) -> None:
    answer = browser.post(path, content=body)
    assert answer.status_code == 400
    assert cause in answer.json()["cause"]


def test_pages_outside_the_book_are_refused(
    browser: TestClient, keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper.engine, "limit", 4000)
    browser.post("/books", content=b"x")
    wait_for(lambda: keeper.desk.stage is Stage.CHOOSING)
    answer = browser.post("/reading/choose", json={"first": 5, "last": 999})
    assert answer.status_code == 400
    assert "5-999" in answer.json()["cause"]


def test_gradio_answers_through_the_guard(browser: TestClient) -> None:
    config = browser.get("/config").json()
    named = {component["props"].get("elem_id") for component in config["components"]}
    assert {"chat", "ask-box", "send", "stop", "how"} <= named
    assert all(dependency["api_visibility"] == "private" for dependency in config["dependencies"])


def test_another_start_page_is_refused_not_broken() -> None:
    with pytest.raises(EngineError, match="start page"):
        shell.frame("<html><body><new-gradio></new-gradio></body></html>")


def view_of(desk: Desk, status: Status | None = None) -> dict:
    return page_view(desk, status or engine_status())


def test_an_empty_desk() -> None:
    view = view_of(Desk())
    assert view["book"]["stage"] == "empty"
    assert map_view(Desk()) == {"pages": 0, "unit": "page", "labels": []}
    assert view["figures"] is None
    assert view["model"]["line"] == "Storyteller 27M"
    assert view["model"]["parts"][0] == "27.0 million parameters, bfloat16, on cpu"


def test_kv_that_is_not_exact_is_named() -> None:
    note = "KV 8-bit: approximate; exact with respect to 8-bit KV"
    told = view_of(Desk(), engine_status(model=model_info(kv_note=note)))["model"]["parts"]
    assert note in told
    assert [part for part in told if part != note] == view_of(Desk())["model"]["parts"]


def test_of_a_model_elsewhere_only_the_pace_is_known() -> None:
    elsewhere = model_info(parameters=0)
    assert view_of(Desk())["model"]["here"]
    assert not view_of(Desk(), engine_status(model=elsewhere))["model"]["here"]


def test_the_view_of_a_model_looks_at_the_disk_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    monkeypatch.setattr(view, "is_same_folder", lambda path, _: bool(looks.append(path)))
    status = engine_status(model=model_info(path="/models/of/this/test"))
    for _ in range(10):
        assert view_of(Desk(), status)["model"]["state"] == "ready"
    assert looks == ["/models/of/this/test"]


def test_a_model_on_its_way_and_one_that_failed() -> None:
    loading = view_of(Desk(), engine_status(state="loading", model=None))["model"]
    assert (loading["state"], loading["line"]) == ("loading", "Loading the model…")
    assert "open a book already" in loading["detail"]
    failed = view_of(Desk(), engine_status(state="failed", detail="No folder.", model=None))["model"]
    assert (failed["state"], failed["detail"]) == ("failed", "No folder.")


def test_a_choice_proposes_what_fits() -> None:
    engine = ScriptedEngine(limit=4000)
    document = book(60)
    desk = Desk(stage=Stage.CHOOSING, whole=document, document=document, fit=engine.measure(document))
    choose = view_of(desk)["book"]["choose"]
    assert choose["pages"] == 60
    assert (choose["first"], choose["last"]) == (1, desk.fit.pages_that_fit)
    assert "too long" in choose["sentence"]


def test_labels_are_sent_only_where_they_are_not_the_numbers() -> None:
    document = book(3)
    assert map_view(Desk(document=document))["labels"] == []
    pages = tuple(dataclasses.replace(page, label=label) for page, label in zip(document.pages, "iv1", strict=True))
    named = dataclasses.replace(document, pages=pages)
    assert map_view(Desk(document=named))["labels"] == ["i", "v", "1"]


def at_once() -> Rhythm:
    return Rhythm(words=0.0, figures=0.4, layout=1.0, settle=0.0)


def test_the_stream_sends_all_once_and_then_what_has_changed() -> None:
    views = iter([{"a": 1, "b": [1]}, {"a": 1, "b": [1]}, {"a": 2, "b": [1]}, {"a": 2, "b": None}])
    left = iter([False, False, False, False, True])

    async def gone() -> bool:
        return next(left)

    async def collect() -> list[dict]:
        return [json.loads(event.removeprefix("data: ")) async for event in changes(lambda: next(views), gone, at_once)]

    assert run(collect()) == [{"a": 1, "b": [1]}, {"a": 2}, {"b": None}]


def test_figures_move_more_seldom_than_words_and_the_last_ones_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.1, 0.2, 0.5, 0.6, 1.0])
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    views = iter([{"figures": min(step, 4), "words": step} for step in range(6)])
    left = iter([*[False] * 6, True])

    async def gone() -> bool:
        return next(left)

    async def collect() -> list[dict]:
        return [json.loads(event.removeprefix("data: ")) async for event in changes(lambda: next(views), gone, at_once)]

    sent = run(collect())
    assert [news["words"] for news in sent] == [0, 1, 2, 3, 4, 5]
    assert [news.get("figures") for news in sent] == [0, None, None, 3, None, 4]


def test_where_the_engine_computes_on_the_processor_the_page_moves_more_seldom() -> None:
    elsewhere = engine_status(model=model_info(device="cuda"))
    assert rhythm_of(elsewhere, card=False) == rhythm_of(elsewhere, card=True) == rhythm.OWN
    assert rhythm_of(engine_status(), card=True) == rhythm.BESIDE
    assert rhythm_of(engine_status()) == rhythm.SHARED
    often, seldom, most_seldom = map(dataclasses.astuple, (rhythm.OWN, rhythm.BESIDE, rhythm.SHARED))
    assert all(a <= b <= c for a, b, c in zip(often, seldom, most_seldom, strict=True))
    assert rhythm.OWN.words < rhythm.BESIDE.words < rhythm.SHARED.words


def test_news_come_at_once_while_the_engine_has_nothing_to_do(keeper: Keeper) -> None:
    stream = live.Live(keeper)
    assert stream._rhythm(card=False) == rhythm.OWN
    keeper.engine.now = engine_status(state="answering")
    assert stream._rhythm(card=False) == rhythm.SHARED
    assert stream._rhythm(card=True) == rhythm.BESIDE


def test_gradios_status_trackers_are_served_without_their_clock(browser: TestClient) -> None:
    address = trackers.route().path
    script = browser.get(address).text
    assert "performance.now()" in script  # it still notes when something began
    assert not trackers._CLOCK.search(script)
    with pytest.raises(EngineError, match="status trackers"):
        trackers.without_clock(script)


def test_of_an_answer_that_grows_only_the_new_words_are_sent() -> None:
    texts = [Growing(7, "It was"), *[Growing(7, "It was Maren")] * 2, Growing(8, "It was no"), None]
    views = iter([{"writing": text} for text in texts])
    left = iter([*[False] * 5, True])

    async def gone() -> bool:
        return next(left)

    async def collect() -> list[dict]:
        return [json.loads(event.removeprefix("data: ")) async for event in changes(lambda: next(views), gone, at_once)]

    assert [news["writing"] for news in run(collect())] == [
        {"answer": 7, "whole": True, "text": "It was"},
        {"answer": 7, "whole": False, "text": " Maren"},
        {"answer": 8, "whole": True, "text": "It was no"},
        None,
    ]


def test_a_tab_that_goes_before_its_answer_has_ended_is_noticed() -> None:
    left: list[str] = []

    def stream(*bodies: bool) -> Callable:
        async def app(scope: dict, receive: object, send: Callable) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for more in bodies:
                await send({"type": "http.response.body", "body": b"x", "more_body": more})

        return app

    async def send(message: object) -> None:
        pass

    def ask(path: str, *bodies: bool) -> None:
        scope = {"type": "http", "path": path, "query_string": b"session_hash=tab7"}
        run(Tabs(stream(*bodies), left.append)(scope, None, send))  # type: ignore[arg-type]

    ask(tabs.STREAM, True, False)
    ask("/live", True)
    assert left == []
    ask(tabs.STREAM, True)
    assert left == ["tab7"]


def test_only_the_tab_that_asks_can_end_its_answer_by_leaving(keeper: Keeper) -> None:
    keeper.close_book()
    keeper.open(keeper.books.all()[0])
    wait_for(lambda: keeper.desk.stage is Stage.READY)
    handlers, how = Handlers(keeper), ("hierarchical", 0.0, 1.0, 64)
    mine, other = (SimpleNamespace(session_hash=tab) for tab in ("mine", "other"))
    steps = handlers.ask(mine, "Who?", "", *how)  # type: ignore[arg-type]
    next(steps)
    refused = list(handlers.ask(other, "And I?", "", *how))  # type: ignore[arg-type]
    assert "Another tab" in refused[-1][0][-1]["content"]
    handlers.leave("other")
    handlers.leave("")
    list(steps)
    assert keeper.chat.exchanges[-1].stopped is StopReason.END
    steps = handlers.ask(mine, "Who?", "", *how)  # type: ignore[arg-type]
    next(steps)
    handlers.leave("mine")
    list(steps)
    assert keeper.chat.exchanges[-1].stopped is StopReason.CANCELLED


def test_gradios_queue_sleeps_while_nobody_asks(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = layout.build(Handlers(keeper))._queue
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


def test_a_view_is_json_and_small() -> None:
    document = book(2000, words=3)
    desk = Desk(stage=Stage.READY, document=document, scores=tuple([1 / 2000] * 2000), figures=figures())
    moving = {"scores": glow(desk.scores), **{key: view_of(desk)[key] for key in ("figures", "pace")}}
    assert len(json.dumps(moving)) < 16_000


def test_what_glows_is_worked_out_once_for_all_looks_at_it(keeper: Keeper, monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[int] = []
    monkeypatch.setattr(live, "glow", lambda scores: worked.append(len(scores)) or [len(scores)])
    stream = live.Live(keeper)
    for scores in ((0.5, 0.5), (0.1, 0.2, 0.7)):
        keeper.show(scores=scores)
        assert [stream.view()["scores"] for _ in range(3)] == [[len(scores)]] * 3
    assert worked == [2, 3]


def test_the_map_is_sent_before_what_glows_on_it(served: tuple[TestClient, Keeper]) -> None:
    from app.ui.live import Live

    view = Live(served[1]).view()
    assert list(view).index("map") < list(view).index("scores")
