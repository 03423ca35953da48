"""OpenAI's protocol as data: what a request asks for, and what an answer looks like. Pure.

Source: the API reference of chat completions (https://platform.openai.com/docs/api-reference/chat). What is not
supported is refused by name; nothing that would change an answer is silently ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.config import MODES, Mode, SamplingParams
from engine.errors import Busy, ContextTooSmall, InputError, ModelError, TrifoldError
from engine.events import AnswerDone, Failed, Figures, StopReason

MESSAGES = "messages"
"""As ``trifold.book``: the system message is the book."""

MOST_STOPS = 4
_FINISH = {
    StopReason.END: "stop",
    StopReason.LENGTH: "length",
    StopReason.CONTEXT: "length",
    StopReason.CANCELLED: "stop",
}
_USUAL = SamplingParams()
# Fields that would change the answer, with the values that ask for nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "tools": ([],),
    "functions": ([],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "audio": (),
    "response_format": ({"type": "text"},),
}


class Refused(Exception):
    """A request that cannot be done, in OpenAI's terms."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = {"error": {"message": message, "type": _type(status), "param": param, "code": code}}


@dataclass(frozen=True)
class Asked:
    """One request. ``book`` is None (the open one), ``MESSAGES`` or the hash of a book in the library."""

    question: str
    history: tuple[tuple[str, str], ...]
    system: str
    sampling: SamplingParams
    model: str
    mode: Mode = "hierarchical"
    book: str | None = None
    stream: bool = False
    include_usage: bool = False
    stops: tuple[str, ...] = field(default=())

    @property
    def instructed(self) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Question and history with the system message at the head of the first question: the book has its place."""
        if not self.system:
            return self.question, self.history
        if not self.history:
            return f"{self.system}\n\n{self.question}", ()
        (first, answer), *rest = self.history
        return self.question, ((f"{self.system}\n\n{first}", answer), *rest)


def parse(body: bytes) -> Asked:
    """Read a request's body.

    Raises:
        Refused: what is wrong with it.
    """
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        raise Refused(400, "The body is not JSON.", "invalid_json") from None
    if not isinstance(asked, dict):
        raise Refused(400, "The body is not a JSON object.", "invalid_json")
    for name, nothing in _UNSUPPORTED.items():
        if asked.get(name) is not None and asked[name] not in nothing:
            raise Refused(400, f"{name} is not supported by Trifold.", "unsupported_parameter", name)
    system, history, question = _conversation(asked.get("messages"))
    extra = _object(asked, "trifold")
    mode = extra.get("mode", MODES[0])
    if mode not in MODES:
        raise Refused(400, f"trifold.mode must be one of {', '.join(MODES)}.", "invalid_value", "trifold.mode")
    return Asked(
        question=question,
        history=history,
        system=system,
        sampling=_sampling(asked),
        model=_text(asked, "model", "model"),
        mode=mode,
        book=_text(extra, "book", "trifold.book") or None,
        stream=_flag(asked, "stream"),
        include_usage=_flag(_object(asked, "stream_options"), "include_usage"),
        stops=_stops(asked.get("stop")),
    )


def refused(error: TrifoldError) -> Refused:
    """An error of the program in OpenAI's terms."""
    message = f"{error.cause} {error.remedy}".strip()
    if isinstance(error, Busy):
        return Refused(429, message, "busy")
    if isinstance(error, ContextTooSmall):
        return Refused(400, message, "context_length_exceeded", "messages")
    if isinstance(error, InputError):
        return Refused(400, message, "invalid_value")
    return Refused(503 if isinstance(error, ModelError) else 500, message, type(error).__name__)


def failed(event: Failed) -> Refused:
    """An answer that ended with an error."""
    from engine import errors

    kind = getattr(errors, event.kind, TrifoldError)
    return refused(kind(event.cause, event.remedy))


def completion(head: Mapping[str, Any], text: str, done: AnswerDone, more: Mapping[str, Any]) -> dict[str, Any]:
    """A whole answer. ``head``: id, created, model; ``more`` goes into the field ``trifold``."""
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _FINISH[done.stop_reason]}
    return {
        **head,
        "object": "chat.completion",
        "choices": [choice],
        "usage": usage(done.figures),
        "trifold": figures(done, more),
    }


def chunk(head: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    """A piece of a streamed answer."""
    choice = {"index": 0, "delta": dict(delta), "logprobs": None, "finish_reason": finish}
    return {**head, "object": "chat.completion.chunk", "choices": [choice]}


def last_chunk(head: Mapping[str, Any], done: AnswerDone, more: Mapping[str, Any]) -> dict[str, Any]:
    """The piece that ends the choice, with our figures."""
    return {**chunk(head, {}, _FINISH[done.stop_reason]), "trifold": figures(done, more)}


def usage_chunk(head: Mapping[str, Any], done: AnswerDone) -> dict[str, Any]:
    """What follows it when the request asked for usage."""
    return {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage(done.figures)}


def usage(counted: Figures) -> dict[str, Any]:
    """Tokens; those of the book and earlier turns that came out of the cache count as cached."""
    cached = counted.prompt_tokens - counted.prefilled_tokens
    return {
        "prompt_tokens": counted.prompt_tokens,
        "completion_tokens": counted.answer_tokens,
        "total_tokens": counted.prompt_tokens + counted.answer_tokens,
        "prompt_tokens_details": {"cached_tokens": max(0, cached)},
    }


def figures(done: AnswerDone, more: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's own figures under its own names, how the answer ended, and which token came from where."""
    stages = [stage.value for stage in done.stages]
    produced = {stage: stages.count(stage) for stage in sorted(set(stages))}
    return {**asdict(done.figures), "stop_reason": done.stop_reason.value, "tokens_by_stage": produced, **more}


def _conversation(messages: Any) -> tuple[str, tuple[tuple[str, str], ...], str]:
    if not isinstance(messages, list) or not messages:
        raise Refused(400, "messages must be a list with at least one message.", "invalid_value", "messages")
    system: list[str] = []
    turns: list[list[str]] = []  # question, answer
    last = ""
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, dict):
            raise Refused(400, f"{where} is not an object.", "invalid_value", where)
        last, words = message.get("role", ""), _words(message.get("content"), where)
        if last in ("system", "developer") and not turns:
            system.append(words)
        elif last == "user" and turns and not turns[-1][1]:
            turns[-1][0] += f"\n\n{words}"
        elif last == "user":
            turns.append([words, ""])
        elif last == "assistant" and turns:
            turns[-1][1] += words
        else:
            raise Refused(400, f"A message of the role {last!r} cannot stand here.", "invalid_value", f"{where}.role")
    if last != "user":
        raise Refused(400, "The last message must be the user's.", "invalid_value", "messages")
    question = turns.pop()[0]
    return "\n\n".join(system), tuple((asked, answer) for asked, answer in turns), question


def _words(content: Any, where: str) -> str:
    parts: Sequence[Any] = content if isinstance(content, list) else [{"type": "text", "text": content}]
    words = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        if not isinstance(text, str):
            raise Refused(400, "Only text can be asked.", "invalid_value", f"{where}.content")
        words.append(text)
    return "\n".join(words)


def _sampling(asked: Mapping[str, Any]) -> SamplingParams:
    def number(name: str, usual: Any, whole: bool = False) -> Any:
        value = asked.get(name)
        if value is None:
            return usual
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
            raise Refused(400, f"{name} must be a number.", "invalid_type", name)
        return value

    most = number("max_completion_tokens", number("max_tokens", _USUAL.max_tokens, whole=True), whole=True)
    try:
        return SamplingParams(
            temperature=float(number("temperature", _USUAL.temperature)),
            top_p=float(number("top_p", _USUAL.top_p)),
            top_k=number("top_k", _USUAL.top_k, whole=True),
            max_tokens=most,
            seed=number("seed", None, whole=True),
        )
    except InputError as error:
        raise Refused(400, f"{error.cause} {error.remedy}", "invalid_value") from error


def _stops(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise Refused(400, f"stop must be a text or a list of up to {MOST_STOPS}.", "invalid_value", "stop")
    return tuple(stops)


def _object(asked: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = asked.get(name)
    if value is not None and not isinstance(value, dict):
        raise Refused(400, f"{name} must be an object.", "invalid_type", name)
    return value or {}


def _flag(asked: Mapping[str, Any], name: str) -> bool:
    value = asked.get(name)
    if value is not None and not isinstance(value, bool):
        raise Refused(400, f"{name} must be true or false.", "invalid_type", name)
    return bool(value)


def _text(asked: Mapping[str, Any], name: str, param: str) -> str:
    value = asked.get(name)
    if value is not None and not isinstance(value, str):
        raise Refused(400, f"{param} must be text.", "invalid_type", param)
    return value or ""


def _type(status: int) -> str:
    return {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
