"""Requests of the page's own scripts: small JSON in, small JSON out, an error as its two sentences. Knows no route."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from engine.errors import InputError, OptionError, TrifoldError

SMALL_BODY = 16 << 10

Handler = Callable[[Request], Awaitable[Any]]


def said(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Run a handler; an error meant for the person becomes its two sentences."""

    async def answer(request: Request) -> Response:
        try:
            answered = await handler(request)
        except ClientDisconnect:
            return Response(status_code=499)
        except TrifoldError as error:
            status = 400 if isinstance(error, InputError) else 500
            return JSONResponse({"cause": error.cause, "remedy": error.remedy}, status_code=status)
        return answered if isinstance(answered, Response) else JSONResponse({})

    return answer


async def body(request: Request) -> dict[str, Any]:
    """The JSON object of a request. Raises: OptionError."""
    try:
        asked = json.loads(await request.body())
    except ValueError as error:
        raise OptionError("The request is not JSON.") from error
    if not isinstance(asked, dict):
        raise OptionError("The request is not a JSON object.")
    return asked


def text(asked: dict[str, Any], name: str) -> str:
    """Text, "" if it is missing. Raises: OptionError."""
    value = asked.get(name, "")
    if not isinstance(value, str):
        raise OptionError(f"{name} must be text.")
    return value


def number(asked: dict[str, Any], name: str) -> int:
    """A whole number. Raises: OptionError."""
    value = asked.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise OptionError(f"The {name} must be a whole number.")
    return value
