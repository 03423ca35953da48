"""What programs send to /v1, taken apart without a server: bodies of any size end in time, in OpenAI's terms."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from app.web.openai_schema import MOST_MESSAGES, ApiError, parse
from engine.config import MAX_COUNT, SamplingParams

_SOON = 5.0  # seconds, on a busy machine; joined one by one these took 31 to 73


def body(**more: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "Who?"}], **more}).encode()


@pytest.mark.parametrize("roles", [("user",), ("system",), ("user", "assistant")])
def test_more_messages_than_any_chat_has_are_refused_at_once(roles: tuple[str, ...]) -> None:
    messages = [{"role": roles[at % len(roles)], "content": "x" * 21} for at in range(300_000)]
    sent = body(messages=messages)
    began = time.monotonic()
    with pytest.raises(ApiError, match="10,000 messages at most"):
        parse(sent)
    assert time.monotonic() - began < _SOON


def test_as_many_messages_as_may_be_are_joined_at_once() -> None:
    long = "x" * 1500
    messages = [{"role": "user", "content": long}] * (MOST_MESSAGES // 2)
    messages += [{"role": "assistant", "content": long}] * (MOST_MESSAGES // 2 - 1)
    sent = body(messages=[*messages, {"role": "user", "content": "Who?"}])
    began = time.monotonic()
    system, history, question = parse(sent).conversation
    assert time.monotonic() - began < _SOON
    assert (system, question) == ("", "Who?")
    ((asked, answered),) = history
    assert asked == "\n\n".join([long] * (MOST_MESSAGES // 2))
    assert answered == long * (MOST_MESSAGES // 2 - 1)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens", "top_k", "seed"])
def test_numbers_without_end_are_refused_by_name(name: str) -> None:
    with pytest.raises(ApiError, match=r"top_k|max_tokens|seed") as caught:
        parse(body(**{name: 10**40}))
    assert str(caught.value).count("0") < 100
    if name != "seed":
        assert parse(body(**{name: MAX_COUNT})).sampling


def test_what_is_not_said_of_sampling_is_left_to_the_model() -> None:
    assert parse(body()).sampling == SamplingParams()
    named: Any = {"temperature": 0, "top_p": 0.9, "top_k": 20, "repetition_penalty": 1.1, "exact_quotes": True}
    assert parse(body(**named)).sampling == SamplingParams(**named)
    with pytest.raises(ApiError, match="repetition_penalty"):
        parse(body(repetition_penalty=0))


def test_what_was_sent_is_not_sent_back_whole() -> None:
    with pytest.raises(ApiError) as caught:
        parse(body(messages=[{"role": "x" * 100_000, "content": "Who?"}]))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("question", "kept"), [("Where does Tom keep his hens?", 0), ("And then?", 1)])
def test_a_question_that_stands_alone_leaves_the_earlier_answers_out(question: str, kept: int) -> None:
    """A refusal was repeated in a chat of another program, as in the page before."""
    messages = [("system", "Be brief."), ("user", "Who is Ada?"), ("assistant", "I can't assist."), ("user", question)]
    request = parse(json.dumps({"messages": [{"role": role, "content": text} for role, text in messages]}).encode())
    assert (len(request.instructed.history), request.left_out) == (kept, 1 - kept)
    assert "Be brief." in (request.instructed.history[0].question if kept else request.instructed.text)
