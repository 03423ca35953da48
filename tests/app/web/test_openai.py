"""The official client of OpenAI against the running program, as other tools will use it.

The model is a real one whose answers have no end: what is tested here is the protocol, not what a model has to say.
"""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.core.settings import DEMO_MODEL, SAMPLE_BOOKS
from app.core.state import AppState
from app.web import openai_api
from app.web.openai_schema import ApiError, parse
from assets.demo.recipe.questions import NOT_FOUND
from engine.document import Document
from engine.events import StopReason, TextDelta
from tests import loops
from tests.app.running import Running
from tests.app.scripted import ScriptedEngine, engine_status, model_info

QUESTION: Any = [{"role": "user", "content": "Who kept the lamp?"}]
MODEL = "trifold"
# Words at random repeat nothing that could be copied, so that a hundred thousand of them take minutes on any machine.
LONG: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 100_000, "temperature": 4, "stream": True}
SAME_WORDS: Any = {"model": MODEL, "messages": QUESTION, "max_tokens": 24, "temperature": 2, "seed": 7}


@pytest.fixture(scope="module")
def app(endless_app: Running) -> Running:
    return endless_app


@pytest.fixture(scope="module")
def book(app: Running) -> str:
    text = next(SAMPLE_BOOKS.glob("*.txt")).read_text(encoding="utf-8")[:12_000]
    return app.open_text(text)


@pytest.fixture(scope="module")
def client(app: Running) -> Iterator[openai.OpenAI]:
    with httpx.Client(trust_env=False) as http:
        yield openai.OpenAI(base_url=app.api, api_key=app.key, max_retries=0, http_client=http)


def test_models(client: openai.OpenAI, app: Running, book: str) -> None:
    (model,) = client.models.list().data
    assert model.owned_by == "trifold"
    assert client.models.retrieve(model.id).id == model.id
    assert model.model_extra is not None
    settings = json.loads((DEMO_MODEL / "config.json").read_text(encoding="utf-8"))
    assert model.model_extra["context_length"] == settings["max_position_embeddings"]
    with pytest.raises(openai.NotFoundError, match="not loaded"):
        client.models.retrieve("gpt-4")


def test_a_whole_answer_with_usage_and_our_figures(client: openai.OpenAI, book: str) -> None:
    done = client.chat.completions.create(**SAME_WORDS)
    (choice,) = done.choices
    assert choice.message.content
    assert choice.finish_reason == "length"
    assert done.usage is not None
    assert done.usage.completion_tokens == 24
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done.usage.prompt_tokens > 1000, "the book is part of the prompt"
    assert done.usage.prompt_tokens_details is not None
    assert done.usage.prompt_tokens_details.cached_tokens is not None
    assert done.usage.prompt_tokens_details.cached_tokens > 0.9 * done.usage.prompt_tokens, "and was read before"
    ours = done.model_extra["trifold"] if done.model_extra else {}
    assert ours["mode"] == "hierarchical"
    assert ours["answer_tokens"] == done.usage.completion_tokens
    assert sum(ours["tokens_by_stage"].values()) == done.usage.completion_tokens
    assert ours["book"]["id"] == book
    for found in ours["evidence"]:
        assert found["sentence"] in choice.message.content
        assert found["level"] in ("says so", "near", "not found")
        assert bool(found["pages"]) == bool(found["passage"])


def test_a_stream_says_the_same_as_a_whole_answer(client: openai.OpenAI, book: str) -> None:
    whole = client.chat.completions.create(**SAME_WORDS)
    assert whole.choices[0].message.content
    chunks = list(client.chat.completions.create(**SAME_WORDS, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    ends = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert ends == [whole.choices[0].finish_reason]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert any("trifold" in (chunk.model_extra or {}) for chunk in chunks)


def test_plain_and_hierarchical_answer_alike(client: openai.OpenAI, book: str) -> None:
    texts = [
        client.chat.completions.create(
            model=MODEL, messages=QUESTION, max_tokens=16, temperature=0, extra_body={"trifold": {"mode": mode}}
        )
        .choices[0]
        .message.content
        for mode in ("plain", "hierarchical")
    ]
    assert texts[0] == texts[1]


def test_history_is_part_of_the_prompt_and_stays_cached(client: openai.OpenAI, book: str) -> None:
    first = client.chat.completions.create(**SAME_WORDS)
    messages: Any = [
        *QUESTION,
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": [{"type": "text", "text": "And then?"}]},
    ]
    second = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) >= first.usage.prompt_tokens


def test_a_stop_word_ends_the_answer_before_it(client: openai.OpenAI, book: str) -> None:
    uncut = client.chat.completions.create(**SAME_WORDS)
    whole = uncut.choices[0].message.content
    assert whole
    assert len(whole) > 8, "24 words at random"
    stop = whole[5:8]
    cut = client.chat.completions.create(**SAME_WORDS, stop=[stop, "\x00never"])
    assert cut.choices[0].message.content == whole[: whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    ours, of_all = ((answer.model_extra or {})["trifold"] for answer in (cut, uncut))
    assert ours.keys() == of_all.keys() >= {"evidence", "not_found"}
    streamed = client.chat.completions.create(**SAME_WORDS, stop=stop, stream=True)
    text = "".join(choice.delta.content or "" for chunk in streamed for choice in chunk.choices)
    assert text == whole[: whole.index(stop)]


def test_a_wrong_key_opens_nothing(app: Running) -> None:
    with httpx.Client(trust_env=False) as http:
        for wrong in ("sk-wrong", app.key[:-1], "é"):
            answer = http.get(f"{app.api}/models", headers={b"authorization": f"Bearer {wrong}".encode()})
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        assert http.get(f"{app.api}/models").status_code == 401
        stranger = openai.OpenAI(base_url=app.api, api_key="sk-wrong", max_retries=0, http_client=http)
        with pytest.raises(openai.AuthenticationError):
            stranger.models.list()


def test_the_cookie_of_the_page_is_no_key(app: Running) -> None:
    assert app.browser.get("/v1/models").status_code == 401


@pytest.mark.parametrize(
    "headers",
    [{"host": "evil.example"}, {"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}],
)
def test_the_guard_stands_before_the_key(app: Running, headers: dict[str, str]) -> None:
    with httpx.Client(trust_env=False) as http:
        answer = http.get(f"{app.api}/models", headers={"authorization": f"Bearer {app.key}", **headers})
    assert answer.status_code in (400, 403)


def test_one_question_at_a_time(client: openai.OpenAI, app: Running, book: str) -> None:
    stream = client.chat.completions.create(**LONG)
    next(iter(stream))
    with pytest.raises(openai.RateLimitError) as refused:
        client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4)
    assert refused.value.code == "busy"
    assert refused.value.response.headers["retry-after"]
    assert app.look()["asking"] is True
    stream.close()
    app.until(lambda state: state["asking"] is False, 20)
    assert client.chat.completions.create(model=MODEL, messages=QUESTION, max_tokens=4).choices


def test_the_person_at_the_page_can_stop_it(client: openai.OpenAI, app: Running, book: str) -> None:
    stream = client.chat.completions.create(**LONG)
    chunks = iter(stream)
    next(chunks)
    threading.Timer(0.3, lambda: app.post("/asking/stop")).start()
    rest = list(chunks)
    ours = next(chunk.model_extra["trifold"] for chunk in rest if "trifold" in (chunk.model_extra or {}))
    assert ours["stop_reason"] == "cancelled"


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, None),
        ({"messages": [*QUESTION, {"role": "assistant", "content": "I"}]}, "messages"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"temperature": 9}, None),
        ({"max_tokens": 0}, None),
        ({"max_tokens": True}, "max_tokens"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"extra_body": {"trifold": {"mode": "magic"}}}, "trifold.mode"),
        ({"extra_body": {"trifold": {"book": "../../etc/passwd"}}}, None),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    client: openai.OpenAI, book: str, change: dict[str, Any], param: str | None
) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **change})
    assert refused.value.body
    if param:
        assert refused.value.param == param


def test_another_model_is_not_pretended(client: openai.OpenAI, book: str) -> None:
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.chat.completions.create(model="gpt-4", messages=QUESTION)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"[" * 100_000, b"\xff\xfe"])
def test_a_body_that_is_no_json_is_refused(app: Running, body: bytes) -> None:
    headers = {"authorization": f"Bearer {app.key}"}
    answer = httpx.post(f"{app.api}/chat/completions", content=body, headers=headers, trust_env=False)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_beyond_the_limit_is_cut_off(app: Running, declared: bool) -> None:
    blocks = (b" " * (1 << 20) for _ in range(20))
    headers = {"authorization": f"Bearer {app.key}"}
    content: Any = b" " * (20 << 20) if declared else blocks
    answer = httpx.post(f"{app.api}/chat/completions", content=content, headers=headers, trust_env=False, timeout=30)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


def test_an_unknown_address_answers_in_the_same_shape(app: Running) -> None:
    headers = {"authorization": f"Bearer {app.key}"}
    answer = httpx.post(f"{app.api}/embeddings", content=b"{}", headers=headers, trust_env=False)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("method", "path", "takes"), [("GET", "/chat/completions", "POST"), ("POST", "/models", "GET")]
)
def test_a_known_address_asked_the_wrong_way_says_which_is_right(
    app: Running, method: str, path: str, takes: str
) -> None:
    headers = {"authorization": f"Bearer {app.key}"}
    answer = httpx.request(method, app.api + path, headers=headers, trust_env=False)
    assert (answer.status_code, answer.headers["allow"]) == (405, takes)
    assert answer.json()["error"]["message"] == f"/v1{path} takes {takes}, not {method}."


def test_a_sampler_that_is_not_here_is_refused_and_one_that_is_off_is_not() -> None:
    asked = {"messages": [{"role": "user", "content": "Who?"}]}
    with pytest.raises(ApiError, match="min_p is not supported by Trifold: leave it out, or send 0"):
        parse(json.dumps({**asked, "min_p": 0.05}).encode())
    off = {"min_p": 0, "typical_p": 1.0, "repeat_penalty": 1, "mirostat": 0, "top_a": None}
    assert parse(json.dumps({**asked, **off}).encode()).sampling == parse(json.dumps(asked).encode()).sampling


@pytest.mark.parametrize(("question", "begins"), [("What is this document about?", "Some passages: “"), ("Who?", "")])
def test_the_first_words_of_a_models_card_are_part_of_the_answer(
    ready: Callable[..., AppState], checkout: Path, question: str, begins: str
) -> None:
    """Here the starter began with words of its own, which claim that a passage is the beginning."""
    engine = ScriptedEngine(answer="the lamp was lit.")
    engine.now = engine_status(model=model_info(path=str(checkout / "assets" / "starter")))
    asked = parse(json.dumps({"messages": [{"role": "user", "content": question}]}).encode())

    async def said() -> str:
        events = openai_api.ProgramsQuestion(ready(engine), asked).events()
        return "".join([event.text async for event in events if isinstance(event, TextDelta)])

    assert loops.run(said()).replace("“ ", "“") == f"{begins}the lamp was lit."
    assert [one.begun for one in engine.asked] == [begins]


@pytest.mark.parametrize(
    ("question", "asked"), [("Where is lamp7?", 0), ("Find: lamp7 lamp8 lamp9", 1)], ids=["a guess", "a refusal"]
)
def test_passages_are_the_answer_of_a_model_that_cannot_know(ready: Any, question: str, asked: int) -> None:
    """The demo told programs "The book does not say that." about what the book says."""
    engine = ScriptedEngine(answer=NOT_FOUND)
    engine.now = engine_status(model=model_info(path=str(DEMO_MODEL)))
    body = parse(json.dumps({"messages": [{"role": "user", "content": question}]}).encode())
    asking = openai_api.ProgramsQuestion(ready(engine), body)

    async def events() -> list[Any]:
        return [event async for event in asking.events()]

    *_, words, done = loops.run(events())
    assert words.text == done.text
    assert words.text.startswith("These passages fit best. The built-in demo does not understand")
    (more,) = asking.told(done, done.text)
    assert more["by_passages"] is True
    assert "lamp7" in more["passages"][0]["passage"]
    assert (more["evidence"], more["not_found"]) == ([], [])
    assert len(engine.asked) == asked


def test_places_are_counted_for_other_programs_too(ready: Any) -> None:
    """The page listed all places with some words, but /v1 asked the model how many there are."""
    engine = ScriptedEngine()
    question = "On which pages is lamp7 mentioned?"
    body = parse(json.dumps({"messages": [{"role": "user", "content": question}]}).encode())
    asking = openai_api.ProgramsQuestion(ready(engine), body)

    async def events() -> list[Any]:
        return [event async for event in asking.events()]

    *_, done = loops.run(events())
    assert "found by search" in done.text
    (more,) = asking.told(done, done.text)
    assert more["listed"] is True
    assert "lamp7" in more["evidence"][0]["passage"]
    assert not engine.asked


@pytest.mark.parametrize(
    ("question", "questions", "pieces"),
    [("Which lease has the lower rent?", 2, 3), ("Compare the rent and the deposit of the leases", 4, 5)],
)
def test_documents_are_compared_side_by_side(ready: Any, question: str, questions: int, pieces: int) -> None:
    """The page and the terminal asked each document, /v1 asked all at once. A stream's pieces are the whole table."""
    engine = ScriptedEngine("The rent is 890 euros.")
    engine.ends = StopReason.LENGTH
    state = ready(engine)
    pages = ["The rent is 890 euros.", "The deposit is 1,780 euros."]
    leases = [Document.from_pages(title, pages) for title in ("Harbour Street", "Mill Lane")]
    state.show(document=Document.together(leases))
    body = parse(json.dumps({"messages": [{"role": "user", "content": question}]}).encode())
    asking = openai_api.ProgramsQuestion(state, body)

    async def events() -> list[Any]:
        return [event async for event in asking.events()]

    *words, done = loops.run(events())
    assert "".join(piece.text for piece in words) == done.text
    assert sum(bool(piece.text) for piece in words) == pieces, "the head and each cell come when they are there"
    assert done.text.count("The rent is 890 euros.") == len(engine.asked) == questions
    assert "| Harbour Street | Mill Lane |" in done.text
    assert (done.figures.answer_tokens, done.stop_reason) == (questions * 5, StopReason.LENGTH)
    (more,) = asking.told(done, done.text)
    assert (more["side_by_side"], more["not_found"]) == (True, [])
    assert [(one["document"], one["level"], one["sentence"]) for one in more["evidence"]] == [
        (lease.title, "says so", engine.answer) for _ in range(questions // 2) for lease in leases
    ]
    assert not state.current.asking


def test_evidence_does_not_wait_for_what_the_model_looks_up(ready: Any) -> None:
    """It came 4 to 6 s after the last word if words doubted what the question assumes."""
    engine = ScriptedEngine("Yes, I cannot say.")
    engine.now = engine_status(model=model_info(parameters=1_500_000_000))
    state = ready(engine)
    state.show(document=Document.from_pages("Survey", ["The council put an end to the survey of the harbour in June."]))
    wanted = {"messages": [{"role": "user", "content": "Why was the survey of the harbour cancelled?"}]}
    asking = openai_api.ProgramsQuestion(state, parse(json.dumps(wanted).encode()))
    done = loops.run(last_of(asking))
    told = asking.told(done, done.text)
    first = next(told)
    assert len(engine.asked) == 1, "the model has not been asked about the premise yet"
    assert (first["assumed"], first["evidence"]) == ([], [])
    (second,) = told
    assert len(engine.asked) == 2
    assert second == first
    engine.answer = "No."
    assert [bool(more["assumed"]) for more in asking.told(done, done.text)] == [False, True]


async def last_of(asking: openai_api.ProgramsQuestion) -> Any:
    return [event async for event in asking.events()][-1]


def test_passages_alone_are_asked_now(ready: Any) -> None:
    engine = ScriptedEngine()
    wanted = {"messages": [{"role": "user", "content": "Where is lamp7?"}], "trifold": {"now": True}}
    asking = openai_api.ProgramsQuestion(ready(engine), parse(json.dumps(wanted).encode()))

    async def events() -> list[Any]:
        return [event async for event in asking.events()]

    *_, done = loops.run(events())
    assert done.text == engine.answer
    assert engine.asked[0].excerpt is not None
    assert "lamp7" in engine.asked[0].excerpt.text
    assert [more["now"] for more in asking.told(done, done.text)] == [True]


def test_a_refusal_is_asked_once_more_without_the_earlier_turns(ready: Any) -> None:
    """The page asked again, programs got the refusal."""
    engine = ScriptedEngine("I'm sorry, but I can't assist with that.")
    state, ours = ready(engine), engine.ask

    def in_turn(question: Any, **more: Any) -> Any:
        engine.answer = engine.answer if question.history else "It is nine."
        return ours(question, **more)

    engine.ask = in_turn  # type: ignore[method-assign]
    words = [("user", "Who kept the lamp?"), ("assistant", "Nobody."), ("user", "And what about it?")]
    body = parse(json.dumps({"messages": [{"role": role, "content": said} for role, said in words]}).encode())
    asking = openai_api.ProgramsQuestion(state, body)

    async def events() -> list[Any]:
        return [event async for event in asking.events()]

    found = loops.run(events())
    assert "".join(event.text for event in found if isinstance(event, TextDelta)) == "It is nine."
    assert [len(asked.history) for asked in engine.asked] == [1, 0]
    assert body.left_out == 1


def test_another_book_of_the_library_is_opened_when_it_is_named(client: openai.OpenAI, app: Running, book: str) -> None:
    other = app.open_text("The harbour of Orre has two lights. " * 60, "other.txt")
    done = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=4, extra_body={"trifold": {"book": book}}
    )
    assert done.model_extra is not None
    assert done.model_extra["trifold"]["book"]["id"] == book != other
    assert app.look()["book"]["id"] == book


def test_the_key_is_for_this_person_alone(tmp_path: Path) -> None:
    made = openai_api.load(tmp_path)
    assert openai_api.load(tmp_path) == made
    assert stat.S_IMODE((tmp_path / openai_api.FILE).stat().st_mode) == 0o600
    assert openai_api.renew(tmp_path) != made
    (tmp_path / openai_api.FILE).write_text("short")
    assert len(openai_api.load(tmp_path)) > 40


def test_without_a_book_the_system_message_is_the_text(client: openai.OpenAI, app: Running) -> None:
    app.post("/books/close")
    app.until(lambda state: state["book"]["stage"] == "empty")
    with pytest.raises(openai.ConflictError, match="No book is open"):
        client.chat.completions.create(model=MODEL, messages=QUESTION)
    text = "Maren Holt kept the north light. " * 80
    messages: Any = [{"role": "system", "content": text}, *QUESTION]
    first = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4)
    second = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 300, "the text was not read a second time"
    assert json.loads(second.model_dump_json())["choices"]
    books = [book["id"] for book in app.look()["books"]]
    kept = [path.name.partition("-")[0] for path in (app.data / "snapshots").glob("[!.]*")]
    assert all(head and any(book.startswith(head) for book in books) for head in kept), "what was sent is not kept"
