"""Defines the fields of OpenAI's requests and answers, and the errors that refuse a request. This module does no I/O.

Source: the API reference of chat completions (https://platform.openai.com/docs/api-reference/chat). Unsupported fields
are refused by name. No field that would change an answer is silently ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from app.core.chats import thought_record
from app.core.question import Ask
from app.language.referring import refers_back
from engine import Turn
from engine.config import SamplingParams, options_of
from engine.errors import Busy, ContextTooSmall, InputError, ModelError, OptionError, TrifoldError
from engine.events import AnswerDone, StopReason
from engine.thinking import EFFORTS

MESSAGES = "messages"
"""The value of ``trifold.book`` that makes the text of the system message the book."""

REASONING = "reasoning_content"
"""The field of a message with what the model thought before it answered. OpenAI's protocol has none; most servers and
clients use this name.
"""
MOST_STOPS = 4
MOST_MESSAGES = 10_000
_MOST_SHOWN = 40  # maximum characters of a sent value that an error message shows
_FINISH = {
    StopReason.END: "stop",
    StopReason.LENGTH: "length",
    StopReason.CONTEXT: "length",
    StopReason.CANCELLED: "stop",
    StopReason.LOOP: "length",  # OpenAI has no reason for a loop; "length" says that the answer was cut off
}


class ApiError(Exception):
    """The refusal of a request, with the status and the JSON body of an error in OpenAI's protocol."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kinds = {401: "authentication_error", 404: "not_found_error", 429: "rate_limit_error"}
        kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}


def shown(sent: object) -> str:
    """Return a sent value as text for an error message, cut to ``_MOST_SHOWN`` characters."""
    text = repr(sent)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def api_error_of(error: TrifoldError) -> ApiError:
    """Turn an error of Trifold into an error of OpenAI's protocol."""
    message = f"{error.cause} {error.remedy}".strip()
    if isinstance(error, Busy):
        return ApiError(429, message, "busy")
    if isinstance(error, ContextTooSmall):
        return ApiError(400, message, "context_length_exceeded", "messages")
    if isinstance(error, InputError):
        return ApiError(400, message, "invalid_value")
    return ApiError(503 if isinstance(error, ModelError) else 500, message, type(error).__name__)


# Requests ------------------------------------------------------------------------------------------------------------


class _Wire(BaseModel):
    """The base class of requests. Types are strict: a field for a number accepts neither ``true`` nor ``"1"``."""

    model_config = ConfigDict(strict=True)


def _some_messages(messages: Any) -> Any:
    if not isinstance(messages, list) or not messages:
        raise ApiError(400, "messages must be a list with at least one message.", "invalid_value", "messages")
    if len(messages) > MOST_MESSAGES:
        raise ApiError(400, f"messages can hold {MOST_MESSAGES:,} messages at most.", "invalid_value", "messages")
    return messages


def _few_stops(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise ApiError(400, f"stop must be a text or a list of up to {MOST_STOPS}.", "invalid_value", "stop")
    return tuple(stops)


class Message(_Wire):
    role: Any = ""
    content: Any = None

    def words(self, where: str) -> str:
        """Return the text of the message. If ``content`` is a list of parts, their texts are joined by line breaks.

        Args:
            where: the message's path in the request, for errors.

        Raises:
            ApiError: a part is not text.
        """
        parts = self.content if isinstance(self.content, list) else [{"type": "text", "text": self.content}]
        words = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
        if not all(isinstance(word, str) for word in words):
            raise ApiError(400, "Only text can be asked.", "invalid_value", f"{where}.content")
        return "\n".join(map(str, words))


class StreamOptions(_Wire):
    include_usage: bool | None = None


class TrifoldOptions(_Wire):
    """The options in the field ``trifold``, which OpenAI's protocol lacks: those that ``Ask`` declares, and ``book``:
    None for the open book, ``MESSAGES`` for the text of the system message, or the hash of a book in the library.
    """

    model_config = ConfigDict(extra="allow")
    book: str | None = None


# Unsupported fields that would change the answer. Each field is accepted only with one of the listed values, because
# these values do not change the answer.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "tools": ([],),
    "functions": ([],),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "audio": (),
    "response_format": ({"type": "text"},),
    # options of vLLM, llama.cpp and other servers; some clients send them to every server of this protocol
    "min_p": (0,),
    "typical_p": (1,),
    "top_a": (0,),
    "tfs_z": (1,),
    "mirostat": (0,),
    "xtc_probability": (0,),
    "dry_multiplier": (0,),
    "dynatemp_range": (0,),
    "repeat_penalty": (1,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "best_of": (1,),
    "ignore_eos": (False,),
    "grammar": ("",),
    "json_schema": ({},),
}


class ChatRequest(_Wire):
    """A request for an answer. The options that ``SamplingParams`` declares stand in it under their own names. If
    several fields are wrong, only the first error is reported, in the order of the fields and then of the options.
    """

    model_config = ConfigDict(extra="allow")
    messages: Annotated[list[Message], BeforeValidator(_some_messages), Field(validate_default=True)] = []
    trifold: TrifoldOptions | None = None
    max_completion_tokens: int | None = None
    reasoning_effort: str | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_few_stops)] = ()
    _was_refused: bool = PrivateAttr(default=False)

    @model_validator(mode="before")
    @classmethod
    def _asks_for_nothing_else(cls, asked: Any) -> Any:
        for name, nothing in _UNSUPPORTED.items():
            if isinstance(asked, dict) and asked.get(name) is not None and asked[name] not in nothing:
                sentence = f"{name} is not supported by Trifold: leave it out"
                sentence += f", or send {json.dumps(nothing[0])}." if nothing else "."
                raise ApiError(400, sentence, "unsupported_parameter", name)
        return asked

    @property
    def options(self) -> TrifoldOptions:
        return self.trifold or TrifoldOptions()

    @property
    def include_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def sampling(self) -> SamplingParams:
        sent = dict(self.model_extra or {})
        if self.max_completion_tokens is not None:
            sent["max_tokens"] = self.max_completion_tokens
        if self.reasoning_effort is not None:
            if (tokens := EFFORTS.get(self.reasoning_effort)) is None:
                sentence = (
                    f"reasoning_effort is {shown(self.reasoning_effort)}. It must be one of {', '.join(EFFORTS)}."
                )
                raise ApiError(400, sentence, "invalid_value", "reasoning_effort")
            sent = {"think": tokens > 0, "think_tokens": tokens, **sent}
        return SamplingParams(**_options(SamplingParams, sent))

    @cached_property
    def conversation(self) -> tuple[str, tuple[tuple[str, str], ...], str]:
        """The system message, the earlier (question, answer) pairs, and the question."""
        system: list[str] = []
        turns: list[tuple[list[str], list[str]]] = []  # the pieces of the question and of the answer, for each turn
        role = ""
        for number, message in enumerate(self.messages):
            where = f"messages[{number}]"
            role, words = message.role, message.words(where)
            if role in ("system", "developer") and not turns:
                system.append(words)
            elif role == "user" and turns and not any(turns[-1][1]):
                turns[-1][0].append(words)
            elif role == "user":
                turns.append(([words], []))
            elif role == "assistant" and turns:
                turns[-1][1].append(words)
            else:
                sentence = f"A message of the role {shown(role)} cannot stand here."
                raise ApiError(400, sentence, "invalid_value", f"{where}.role")
        if role != "user":
            raise ApiError(400, "The last message must be the user's.", "invalid_value", "messages")
        joined = tuple(("\n\n".join(asked), "".join(answer)) for asked, answer in turns)
        return "\n\n".join(system), joined[:-1], joined[-1][0]

    @cached_property
    def ask(self) -> Ask:
        """The record of the question."""
        _, history, question = self.conversation
        turns = tuple(Turn(*turn) for turn in history)
        return Ask(question, turns, self.sampling, **_options(Ask, self.options.model_extra or {}, "trifold."))

    @property
    def left_out(self) -> int:
        """The number of earlier turns that a question about the open book is asked without, because it stands alone, or
        because the model refused it with them: wrong answers and refusals would be repeated.
        """
        return len(self.conversation[1]) if self._was_refused or not refers_back(self.conversation[2]) else 0

    def without_history(self) -> Ask:
        """The record of the question after the model has refused it: from now on, all earlier turns are left out."""
        self._was_refused = True
        return self.instructed

    @property
    def instructed(self) -> Ask:
        """The record of the question with the system message as the beginning of the conversation's first question,
        because the book takes the place of the system message in the prompt. Without the turns that are ``left_out``.
        """
        system, ask = self.conversation[0], self.ask
        ask = replace(ask, history=()) if self.left_out else ask
        if not system:
            return ask
        if not ask.history:
            return replace(ask, text=f"{system}\n\n{ask.text}")
        first, *rest = ask.history
        return replace(ask, history=(Turn(f"{system}\n\n{first.question}", first.answer), *rest))


def parse(body: bytes) -> ChatRequest:
    """Read a request's body.

    Raises:
        ApiError: the request is wrong; the message says why.
    """
    try:
        asked = ChatRequest.model_validate_json(body)
    except ValidationError as error:
        raise _refusal_of(error.errors(include_url=False, include_input=False)[0]) from None
    _ = asked.ask  # made now, so that an error in it refuses the request
    return asked


def _options(record: type, sent: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The options of a record that a request has, checked. ``where``: the path before their names, for errors."""
    said = {}
    for one in options_of(record):
        if (value := sent.get(one.name)) is not None:
            try:
                said[one.name] = one.checked(value)
            except OptionError as error:
                name = f"{where}{one.name}"
                raise ApiError(400, f"{name} is {shown(value)}. {error.remedy}", "invalid_value", name) from error
    return said


_KINDS = {
    "float_type": "a number",
    "int_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "model_type": "an object",
}


def _refusal_of(error: Mapping[str, Any]) -> ApiError:
    """Turn an error of pydantic into an ``ApiError`` that names the field as OpenAI does, such as
    "messages[0].role".
    """
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    if error["type"] == "json_invalid":
        return ApiError(400, "The body is not JSON.", "invalid_json")
    if not param:
        return ApiError(400, "The body is not a JSON object.", "invalid_json")
    return ApiError(400, f"{param} must be {_KINDS.get(error['type'], 'valid')}.", "invalid_type", param)


# Answers -------------------------------------------------------------------------------------------------------------


class ModelEntry(BaseModel):
    id: str
    object: str
    created: int
    owned_by: str
    context_length: int


class Usage(BaseModel):
    """The numbers of tokens of a request. Tokens of the prompt count as cached if their KV did not have to be
    computed.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int] = {}

    @classmethod
    def of(cls, done: AnswerDone) -> Usage:
        counted, thought = done.figures, done.thought
        cached = max(0, counted.prompt_tokens - counted.prefilled_tokens)
        thoughts = thought.figures.answer_tokens if thought else 0
        usage = cls(
            prompt_tokens=counted.prompt_tokens,
            completion_tokens=counted.answer_tokens + thoughts,
            total_tokens=counted.prompt_tokens + counted.answer_tokens + thoughts,
            prompt_tokens_details={"cached_tokens": cached},
        )
        return (
            usage.model_copy(update={"completion_tokens_details": {"reasoning_tokens": thoughts}}) if thought else usage
        )


class Choice(BaseModel):
    """A choice of a completion. A whole answer has ``message``, a piece of a streamed answer has ``delta``."""

    index: int
    message: dict[str, str | None] | None = None
    delta: dict[str, str] | None = None
    logprobs: None
    finish_reason: str | None


class Completion(BaseModel):
    """A whole answer, or a piece of a streamed answer. The JSON leaves out fields that were not set."""

    id: str
    created: int
    model: str
    object: str = "chat.completion.chunk"
    choices: list[Choice] = []
    usage: Usage | None = None
    trifold: dict[str, Any] | None = None

    def _with(self, **fields: Any) -> Completion:
        return self.model_copy(update={"object": self.object, "choices": [], **fields})

    def whole(self, text: str, done: AnswerDone, more: Mapping[str, Any]) -> Completion:
        """Make a whole answer. ``more`` holds values that are added to the figures in the field ``trifold``."""
        message = {"role": "assistant", "content": text, "refusal": None}
        if done.thought is not None:
            message[REASONING] = done.thought.text.strip()
        choice = Choice(index=0, message=message, logprobs=None, finish_reason=_FINISH[done.stop_reason])
        usage, ours = Usage.of(done), figures(done, more)
        return self._with(object="chat.completion", choices=[choice], usage=usage, trifold=ours)

    def piece(self, delta: dict[str, str], finish: str | None = None) -> Completion:
        return self._with(choices=[Choice(index=0, delta=delta, logprobs=None, finish_reason=finish)])

    def last_piece(self, done: AnswerDone, more: Mapping[str, Any]) -> Completion:
        """Make the last piece of a streamed answer. The piece has the finish reason and, in the field ``trifold``, the
        figures and ``more``.
        """
        return self.piece({}, _FINISH[done.stop_reason]).model_copy(update={"trifold": figures(done, more)})

    def later_piece(self, done: AnswerDone, more: Mapping[str, Any]) -> Completion:
        """Make a piece that follows the last one, for what became known only then, as the whole field ``trifold``."""
        return self.piece({}).model_copy(update={"trifold": figures(done, more)})

    def usage_piece(self, done: AnswerDone) -> Completion:
        """Make the piece with the numbers of tokens. It comes after the last piece, if the request asked for usage."""
        return self._with(usage=Usage.of(done))

    @property
    def json_text(self) -> str:
        return self.model_dump_json(exclude_unset=True)


def figures(done: AnswerDone, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the engine's figures under the engine's names, the stop reason, the number of tokens from each stage, and
    ``more``.
    """
    stages = [stage.value for stage in done.sources]
    produced = {stage: stages.count(stage) for stage in sorted(set(stages))}
    if (thought := done.thought) is not None:
        told = thought_record(thought.text, thought.figures, is_open=thought.is_open, was_cut=thought.was_cut)
        more = {**more, "thought": {name: value for name, value in told.items() if name != "text"}}
    return {**asdict(done.figures), "stop_reason": done.stop_reason.value, "tokens_by_stage": produced, **more}
