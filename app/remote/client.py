"""Talks to one server in OpenAI's protocol: its models, and a chat as a stream. Knows no book and no page.

Follows no redirects: the key and the book go to the named host only. What a server answers is bounded before it is
kept, and its words are shown to a person in one short line at most.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import httpx

from app.remote.address import Address
from engine.errors import Busy, ContextTooSmall, EngineError, ModelNotFound, OptionError, TrifoldError

CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 600.0  # a server may read a whole book before its first word
_LIST_SECONDS = 10.0
_MOST_BYTES = 4 << 20
_LONGEST_LINE = 1 << 20
_WORDS = 200  # characters of a server's own explanation that are shown

_TOO_LONG = ("context length", "maximum context", "too long", "max_model_len", "context_length")


class Client:
    """Args:
    address: the server.
    key: its key, or "".
    """

    def __init__(self, address: Address, key: str = "") -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def models(self) -> list[dict[str, Any]]:
        """What the server offers: entries with an ``id``.

        Raises:
            TrifoldError: it cannot be reached, wants another key, or speaks something else.
        """
        with _words(self._address):
            async with self._open(_LIST_SECONDS) as client:
                answer = await client.get(f"{self._address.base}/models", headers=self._headers)
            self._refuse(answer.status_code, answer.content[:_MOST_BYTES])
            return _entries(answer.content)

    async def chat(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """The chunks of one streamed answer; the connection ends when the iteration does.

        Raises:
            TrifoldError: as ``models``; or the server is busy, finds the book too long, or breaks off.
        """
        with _words(self._address):
            async with (
                self._open(SILENCE_SECONDS) as client,
                client.stream(
                    "POST", f"{self._address.base}/chat/completions", json=dict(body), headers=self._headers
                ) as answer,
            ):
                if answer.status_code != httpx.codes.OK:
                    self._refuse(answer.status_code, await _some(answer))
                async for chunk in _chunks(answer):
                    yield chunk

    def _open(self, silence: float) -> httpx.AsyncClient:
        # A proxy knows nothing of this machine, and must not see what stays on it.
        limits = httpx.Timeout(silence, connect=CONNECT_SECONDS)
        return httpx.AsyncClient(timeout=limits, trust_env=not self._address.stays_here, follow_redirects=False)

    def _refuse(self, status: int, content: bytes) -> None:
        if status == httpx.codes.OK:
            return
        said = _said(content)
        host = self._address.host
        if status in (401, 403):
            raise OptionError(f"{host} does not accept this key.", "Enter the key of that server.")
        if status == 404:
            raise ModelNotFound(f"{host} does not know this model or this address. {said}".strip(), "Check both.")
        if status == 429:
            raise Busy(f"{host} is busy. {said}".strip(), "Try again in a moment.")
        if status in (400, 413, 422) and any(word in said.lower() for word in _TOO_LONG):
            raise ContextTooSmall(
                f"The book does not fit into the model at {host}. {said}".strip(), "Read fewer pages."
            )
        raise EngineError(
            f"{host} answered with error {status}. {said}".strip(), "Try again, or choose another server."
        )


class _words:
    """Turns what the connection raises into a cause and a remedy."""

    def __init__(self, address: Address) -> None:
        self._host = address.host

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if (
            error is None
            or isinstance(error, TrifoldError)
            or not isinstance(error, httpx.HTTPError | httpx.InvalidURL)
        ):
            return
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
            raise EngineError(f"Nobody answers at {self._host}.", "Start that server, or check its address.") from error
        if isinstance(error, httpx.TimeoutException):
            raise EngineError(f"{self._host} has fallen silent.", "Try again, or choose another server.") from error
        raise EngineError(f"The connection to {self._host} broke.", "Try again.") from error


async def _chunks(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Server-sent events to their JSON, up to [DONE]."""
    pending = ""
    async for text in answer.aiter_text():
        pending += text
        *lines, pending = pending.split("\n")
        if len(pending) > _LONGEST_LINE:
            raise EngineError("The server's answer has a line without end.", "Choose another server.")
        for line in lines:
            data = line.strip().removeprefix("data:").strip()
            if line.startswith("data:") and data == "[DONE]":
                return
            if line.startswith("data:"):
                yield _chunk(data)
    raise EngineError("The server broke off before its answer was complete.", "Ask again.")


def _chunk(data: str) -> dict[str, Any]:
    try:
        chunk = json.loads(data)
    except ValueError as error:
        raise EngineError("The server's answer cannot be read.", "Choose another server.") from error
    if not isinstance(chunk, dict):
        raise EngineError("The server's answer cannot be read.", "Choose another server.")
    if chunk.get("error"):
        raise EngineError(f"The server reports an error. {_said(data.encode())}".strip(), "Ask again.")
    return chunk


async def _some(answer: httpx.Response) -> bytes:
    content = b""
    async for block in answer.aiter_bytes():
        content += block
        if len(content) > _LONGEST_LINE:
            break
    return content


def _entries(content: bytes) -> list[dict[str, Any]]:
    try:
        listed = json.loads(content)["data"]
        entries = [entry for entry in listed if isinstance(entry["id"], str)]
    except (ValueError, KeyError, TypeError) as error:
        raise EngineError(
            "The server does not speak OpenAI's protocol.", "Check the address; it often ends in /v1."
        ) from error
    return entries


def _said(content: bytes) -> str:
    """The server's own explanation, on one line."""
    try:
        said = json.loads(content)
        for key in ("error", "message"):
            said = said.get(key, said) if isinstance(said, dict) else said
    except (ValueError, RecursionError):
        return ""
    line = " ".join(said.split()) if isinstance(said, str) else ""
    line = "".join(character for character in line if character.isprintable())
    return line if len(line) <= _WORDS else line[:_WORDS] + "…"


def text_of(chunk: Mapping[str, Any]) -> str:
    """The new words in a chunk."""
    choice = _choice(chunk)
    words = (choice.get("delta") or {}).get("content")
    return words if isinstance(words, str) else ""


def finish_of(chunk: Mapping[str, Any]) -> str:
    """Why the answer ended, if this chunk says so."""
    return str(_choice(chunk).get("finish_reason") or "")


def _choice(chunk: Mapping[str, Any]) -> dict[str, Any]:
    choices: Sequence[Any] = chunk.get("choices") or ()
    return choices[0] if choices and isinstance(choices[0], dict) else {}
