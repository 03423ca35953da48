"""Asks a server in OpenAI's protocol with the official client: parses its address, lists its models, streams a chat.

The key and the book are sent only to the host that the user named. Redirects are not followed. Headers that describe
this machine are removed. A proxy is not used for a server on this machine. Lines of an answer have a maximum length.
The server's own error messages are shortened to one line.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx2

from engine.errors import Busy, ContextTooSmall, EngineError, ModelNotFound, OptionError, TrifoldError

if TYPE_CHECKING:
    import openai

CONNECT_SECONDS = 5.0
# maximum seconds without data; high, because a server may read a whole book before its first word
SILENCE_SECONDS = 600.0
_LIST_SECONDS = 10.0
_LONGEST_LINE = 1 << 20  # maximum bytes of a line of the answer; a longer line is an error
_LONGEST_SHOWN = 200  # maximum characters shown of a server's own error message
_HEADERS = ("host", "accept", "connection", "content-type", "content-length", "transfer-encoding", "user-agent")
_TOO_LONG = ("context length", "maximum context", "too long", "max_model_len", "context_length")
# exceptions that mean that the server's JSON is invalid or has unexpected content
_UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, RecursionError)
_EXAMPLE = "It looks like http://127.0.0.1:8000/v1 or https://gpu.example.org/v1."
_MOST_CHARACTERS = 500
_REASONING = ("reasoning_content", "reasoning")  # vLLM, SGLang, llama.cpp and DeepSeek; Ollama and OpenRouter


@dataclass(frozen=True)
class Address:
    """The address of a server. ``base``: the URL without the final /chat/completions. ``host``: the host and port, as
    shown to the user. ``stays_here``: whether the server is on this machine. ``encrypted``: whether the URL begins with
    https.
    """

    base: str
    host: str
    stays_here: bool
    encrypted: bool


def parse_address(text: str) -> Address:
    """Parse an address that the user typed.

    Raises:
        OptionError: the text is not an address, or contains a password, a query or a fragment.
    """
    text = text.strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise OptionError("This is not an address of a server.", _EXAMPLE) from None
    if parts.scheme not in ("http", "https") or not host or len(text) > _MOST_CHARACTERS or not text.isprintable():
        raise OptionError("This is not an address of a server.", _EXAMPLE)
    if parts.username or parts.password or parts.query or parts.fragment or " " in text:
        raise OptionError("The address holds more than a server and a path.", "Put the key into its own field.")
    path = parts.path.rstrip("/").removesuffix("/chat/completions") or "/v1"
    shown = host if port is None else f"{host}:{port}"
    return Address(f"{parts.scheme}://{parts.netloc}{path}", shown, _stays_here(host), parts.scheme == "https")


def _stays_here(host: str) -> bool:
    """Whether ``host`` is this machine: "localhost" or a loopback address. Other names are not resolved, because a name
    may resolve to a different address later, when it is used.
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Client:
    """A client of one server.

    Args:
        address: the server's address.
        key: the server's key; "" for none.
    """

    def __init__(self, address: Address, key: str = "") -> None:
        self._address = address
        self._key = key

    async def models(self) -> list[dict[str, Any]]:
        """List the server's models. Each has at least an ``id``.

        Raises:
            TrifoldError: the server cannot be reached, refuses the key, or speaks another protocol.
        """
        async with self._open(_LIST_SECONDS) as client:
            try:
                listed: Any = (await client.models.list()).to_dict(warnings=False)
                return [entry for entry in listed["data"] if isinstance(entry["id"], str)]
            except _UNREADABLE as error:
                raise EngineError(
                    "The server does not speak OpenAI's protocol.", "Check the address; it often ends in /v1."
                ) from error

    async def chat(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks of one streamed answer. The connection is closed when the iteration ends.

        Args:
            body: the arguments of the client's ``chat.completions.create``. Options that OpenAI does not have are in
                ``extra_body``.

        Raises:
            TrifoldError: as in ``models``. Also if the server is busy, the book is too long for it, or the answer ends
                too early.
        """
        complete = False
        async with self._open(SILENCE_SECONDS) as client, await client.chat.completions.create(**body) as stream:
            chunks = aiter(stream)
            while True:
                try:
                    chunk = (await anext(chunks)).to_dict(warnings=False)
                except StopAsyncIteration:
                    break
                except _UNREADABLE as error:
                    raise EngineError("The server's answer cannot be read.", "Choose another server.") from error
                complete = complete or bool(finish_of(chunk))
                yield chunk
        if not complete:
            raise EngineError("The server broke off before its answer was complete.", "Ask again.")

    @asynccontextmanager
    async def _open(self, silence: float) -> AsyncIterator[openai.AsyncOpenAI]:
        """Open a connection. Exceptions of the client become errors with a cause and a remedy. ``silence``: maximum
        seconds without data.
        """
        import openai  # takes 1 to 2 seconds, so it is imported only when a server is used

        http = openai.DefaultAsyncHttpxClient(
            trust_env=not self._address.stays_here,  # a proxy must not see requests that stay on this machine
            follow_redirects=False,
            event_hooks={"request": [self._keep_headers], "response": [_bound]},
        )
        client = openai.AsyncOpenAI(
            base_url=self._address.base,
            api_key=self._key or "none",
            timeout=openai.Timeout(silence, connect=CONNECT_SECONDS),
            max_retries=0,
            http_client=http,
        )
        try:
            async with client:
                yield client
        except openai.APIStatusError as error:
            raise self._refusal(error.status_code, error.response.content) from error
        except openai.APIConnectionError as error:
            raise self._broken(error) from error
        except openai.APIError as error:
            said = _said(json.dumps(error.body).encode())
            raise EngineError(f"The server reports an error. {said}".strip(), "Ask again.") from error

    async def _keep_headers(self, request: httpx2.Request) -> None:
        """Remove all headers that the protocol does not need. OpenAI's client adds headers with the operating system,
        versions, and keys from environment variables.
        """
        for name in request.headers.keys() - set(_HEADERS):
            del request.headers[name]
        # no compression, because a few compressed bytes could expand to gigabytes
        request.headers["accept-encoding"] = "identity"
        if self._key:
            request.headers["authorization"] = f"Bearer {self._key}"

    def _refusal(self, status: int, content: bytes) -> TrifoldError:
        said = _said(content)
        host = self._address.host
        if status in (401, 403):
            return OptionError(f"{host} does not accept this key.", "Enter the key of that server.")
        if status == 404:
            return ModelNotFound(
                f"{host} does not know this model or this address. {said}".strip(),
                "Check the model's name and the server's address.",
            )
        if status == 429:
            return Busy(f"{host} is busy. {said}".strip(), "Try again in a moment.")
        if status in (400, 413, 422) and any(word in said.lower() for word in _TOO_LONG):
            return ContextTooSmall(
                f"The book does not fit into the model at {host}. {said}".strip(), "Read fewer pages."
            )
        return EngineError(
            f"{host} answered with error {status}. {said}".strip(), "Try again, or choose another server."
        )

    def _broken(self, error: Exception) -> EngineError:
        host = self._address.host
        if isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout):
            return EngineError(f"Nobody answers at {host}.", "Start that server, or check its address.")
        if isinstance(error.__cause__, httpx2.TimeoutException):
            return EngineError(f"{host} stopped answering.", "Try again, or choose another server.")
        return EngineError(f"The connection to {host} broke.", "Try again.")


async def _bound(response: httpx2.Response) -> None:
    """Limit the length of an answer's lines, and prevent its decompression, because no compression was requested."""
    response.headers.pop("content-encoding", None)
    response.stream = _BoundedLines(response.stream)


class _BoundedLines(httpx2.AsyncByteStream):
    """A response body whose lines have a maximum length. A JSON body without line breaks counts as one line."""

    def __init__(self, body: Any) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        length = 0
        async for block in self._body:
            _, newline, after = block.rpartition(b"\n")
            length = len(after) if newline else length + len(after)
            if length > _LONGEST_LINE:
                raise EngineError("The server's answer has a line that is too long.", "Choose another server.")
            yield block

    async def aclose(self) -> None:
        await self._body.aclose()


def _said(content: bytes) -> str:
    """Return the server's own error message on one line; "" if there is none."""
    try:
        said = json.loads(content)
        for key in ("error", "message"):
            said = said.get(key, said) if isinstance(said, dict) else said
    except (ValueError, RecursionError):
        return ""
    line = " ".join(said.split()) if isinstance(said, str) else ""
    line = "".join(character for character in line if character.isprintable())
    return line if len(line) <= _LONGEST_SHOWN else line[:_LONGEST_SHOWN] + "…"


def text_of(chunk: Mapping[str, Any]) -> str:
    """Return the new text of a chunk; "" if it has none."""
    choice = _choice(chunk)
    words = (choice.get("delta") or {}).get("content")
    return words if isinstance(words, str) else ""


def reasoning_of(chunk: Mapping[str, Any]) -> str:
    """Return the new text of what the model thinks before it answers; "" if the chunk has none. Servers use two names
    for it.
    """
    delta = _choice(chunk).get("delta") or {}
    return next((words for name in _REASONING if isinstance(words := delta.get(name), str)), "")


def finish_of(chunk: Mapping[str, Any]) -> str:
    """Return the reason why the answer ended with this chunk; "" if it has not ended."""
    return str(_choice(chunk).get("finish_reason") or "")


def _choice(chunk: Mapping[str, Any]) -> dict[str, Any]:
    choices: Sequence[Any] = chunk.get("choices") or ()
    return choices[0] if choices and isinstance(choices[0], dict) else {}
