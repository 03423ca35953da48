"""A tiny random model that thinks before it answers, in the whole program: page, terminal, /v1, and after a restart."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from app.cli.main import main
from tests.app.running import Running, running
from tests.endless import endless
from tests.engine.conftest import tiny  # noqa: F401 - a fixture
from tests.engine.thinking_templates import QWEN35
from tests.nursery import Nursery

TEXT = "The lamp stood on the sill. Maren lit it at dusk and read the log by its light.\n\n" * 20
TURNS: Any = [{"role": "user", "content": "Who lit the lamp?"}]
HOW = {"max_tokens": 24, "temperature": 0, "think": True, "think_tokens": 30}
# Long enough to be stopped within.
LONG = {**HOW, "temperature": 2, "think_tokens": 2500}


@pytest.fixture(scope="module")
def thinker(tiny: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Path:  # noqa: F811
    folder = tmp_path_factory.mktemp("thinker")
    shutil.copytree(tiny("qwen3"), folder, dirs_exist_ok=True)
    (folder / "chat_template.jinja").write_text(QWEN35, encoding="utf-8")
    return endless(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def app(thinker: Path, data: Path, nursery: Nursery | None) -> Iterator[Running]:
    with running(data, "--model", str(thinker), nursery=nursery) as started:
        started.open_text(TEXT)
        yield started


def asked(app: Running, question: str, **how: Any) -> None:
    """Ask on the page, and wait for the end of the answer."""
    answer = app.post("/asking", {"question": question, "mode": "hierarchical", "tab": "t", **HOW, **how})
    assert answer.status_code == 200, answer.text
    app.until(lambda state: not state["asking"])


def exported(app: Running, form: str = "json") -> Any:
    chat = app.look()["chat"]["id"]
    text = app.browser.get("/chats/export", params={"id": chat, "form": form}).text
    return json.loads(text) if form == "json" else text


def answers(app: Running) -> list[dict[str, Any]]:
    return [one for one in exported(app)["messages"] if one["role"] == "answer"]


def test_the_page_shows_the_switch_and_says_what_the_model_can_do(app: Running) -> None:
    state = app.look()
    assert state["sampling"]["can_think"] is True
    assert "Can think before it answers" in state["model"]["parts"]


def test_a_question_on_the_page_is_thought_about(app: Running) -> None:
    asked(app, "Who lit the lamp?")
    (answer,) = answers(app)
    thought = answer["notes"]["thought"]
    assert (thought["tokens"], thought["open"], thought["cut"]) == (30, False, True)
    assert answer["text"].strip()
    assert "<think>" not in answer["text"]
    assert "thought first" in exported(app, "md")
    asked(app, "And then?", think=False)
    assert "thought" not in answers(app)[1]["notes"]
    assert answers(app)[1]["text"].strip()


def test_a_thought_is_stopped_gone_on_with_and_the_question_edited(app: Running) -> None:
    app.post("/chats/new")
    assert app.post("/asking", {"question": "Why?", "mode": "plain", "tab": "t", **LONG}).status_code == 200
    app.until(lambda state: "Thinks, " in str((state["writing"] or {}).get("html", "")))
    app.post("/asking/stop")
    app.until(lambda state: not state["asking"])
    (stopped,) = answers(app)
    assert stopped["stopped"] == "cancelled"
    assert stopped["text"] == ""
    before = stopped["notes"]["thought"]
    assert before["open"]
    assert 0 < before["tokens"] < 2500
    number = stopped["id"]
    answer = app.post("/asking/continue", {"message": number, "mode": "plain", "tab": "t", **HOW})
    assert answer.status_code == 200, answer.text
    app.until(lambda state: not state["asking"])
    (whole,) = answers(app)
    assert whole["id"] == number
    assert not whole["notes"]["thought"]["open"]
    assert whole["notes"]["thought"]["tokens"] > before["tokens"]
    question = next(one for one in exported(app)["messages"] if one["role"] == "question")
    asked(app, "Why then?", message=question["id"])
    assert [one["notes"]["thought"]["tokens"] for one in answers(app)][1:] == [30]


def test_other_programs_get_the_thought_apart(app: Running) -> None:
    with httpx.Client(trust_env=False) as http:
        client = openai.OpenAI(base_url=app.api, api_key=app.key, max_retries=0, http_client=http)
        more = {"think": True, "think_tokens": 30}
        how: Any = {"model": "trifold", "messages": TURNS, "max_tokens": 24, "temperature": 0}
        done: Any = client.chat.completions.create(**how, extra_body=more)
        message = done.choices[0].message
        assert message.reasoning_content
        assert message.content
        assert message.reasoning_content not in message.content
        assert done.usage.completion_tokens_details.reasoning_tokens == 30
        assert done.usage.completion_tokens == 30 + done.trifold["answer_tokens"]
        assert done.trifold["thought"]["cut"] is True
        thought, said = "", ""
        for chunk in client.chat.completions.create(**how, extra_body=more, stream=True):
            delta: Any = chunk.choices[0].delta
            thought += getattr(delta, "reasoning_content", None) or ""
            said += delta.content or ""
        assert (thought.strip(), said) == (message.reasoning_content, message.content)
        silent: Any = client.chat.completions.create(**how)
        assert "reasoning_content" not in (silent.choices[0].message.model_extra or {})
        none: Any = client.chat.completions.create(**how, reasoning_effort="none")
        assert none.choices[0].message.content == silent.choices[0].message.content
        little: Any = client.chat.completions.create(**how, reasoning_effort="low", extra_body={"think_tokens": 9})
        assert little.usage.completion_tokens_details.reasoning_tokens <= 9
        with pytest.raises(openai.BadRequestError, match="reasoning_effort is 'vast'"):
            client.chat.completions.create(**how, reasoning_effort="vast")


def test_after_a_restart_the_chat_is_there_and_goes_on(thinker: Path, nursery: Nursery | None, tmp_path: Path) -> None:
    started = ("--model", str(thinker))
    with running(tmp_path, *started, nursery=nursery) as app:
        book = app.open_text(TEXT)
        asked(app, "Who lit the lamp?")
        chat, (answer,) = app.look()["chat"]["id"], answers(app)
    with running(tmp_path, *started, nursery=nursery) as app:
        app.post("/books/open", {"id": book})
        app.until(lambda state: state["book"]["stage"] == "ready")
        app.post("/chats/open", {"id": chat})
        assert answers(app) == [answer]
        asked(app, "And then?", think=False)
        assert answers(app)[1]["text"].strip()
        question = next(one for one in exported(app)["messages"] if one["role"] == "question")
        asked(app, "Who lit the lamp?", message=question["id"])
        again = answers(app)[-1]
        assert again["text"] == answer["text"]
        assert again["notes"]["thought"]["tokens"] == answer["notes"]["thought"]["tokens"]


def test_the_terminal(
    thinker: Path,
    tiny: Callable[..., str],  # noqa: F811
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    book = tmp_path / "book.txt"
    book.write_text(TEXT, encoding="utf-8")
    how = ["--model", str(thinker), "--max-tokens", "24", "--temperature", "0", "--dtype", "float32", "--mode", "plain"]
    line = ["ask", str(book), "Who lit the lamp?", *how]
    assert main([*line, "--think", "--think-tokens", "30", "--json"]) == 0
    report = json.loads(capfd.readouterr().out)
    assert report["thought"]["tokens"] == 30
    assert report["thought"]["text"]
    assert report["thought"]["text"] not in report["answer"]
    assert main([*line, "--think", "--think-tokens", "30"]) == 0
    told = capfd.readouterr()
    assert "The model thinks…" in told.err
    assert "Thought, " in told.err
    assert report["thought"]["text"].split()[0] not in told.out.split()
    assert main([*line, "--json"]) == 0
    assert "thought" not in json.loads(capfd.readouterr().out)
    assert main(["ask", str(book), "Who?", *how, "--think", "--model", tiny("qwen3")]) != 0
    assert "This model does not think before it answers. Turn “Think first” off." in capfd.readouterr().err
