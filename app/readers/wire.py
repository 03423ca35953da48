"""Messages between the app and the child: four bytes of length, then JSON. Knows nothing of what they say."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

_LENGTH = struct.Struct(">I")
LARGEST = 512 << 20


class Broken(Exception):
    """The other end sent something that is not a message."""


def send(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Write one message and flush it."""
    body = json.dumps(message, ensure_ascii=False).encode("utf-8", errors="replace")
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def receive(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, or None at the end of the stream.

    Raises:
        Broken: the stream ends inside a message or holds something else.
    """
    head = _exactly(stream, _LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise Broken("cut short")
    (length,) = _LENGTH.unpack(head)
    if length > LARGEST:
        raise Broken("too long")
    body = _exactly(stream, length)
    if len(body) < length:
        raise Broken("cut short")
    try:
        message = json.loads(body)
    except ValueError as error:
        raise Broken("not JSON") from error
    if not isinstance(message, dict):
        raise Broken("not an object")
    return message


def _exactly(stream: BinaryIO, length: int) -> bytes:
    parts: list[bytes] = []
    while length:
        part = stream.read(length)
        if not part:
            break
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
