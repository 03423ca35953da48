"""Writes JSON values with their SHA-256, so that a changed byte is noticed when the value is read.

A sealed value is one line: 64 hexadecimal digits, a space, and the value as JSON. A file of several lines loses only
the lines that are damaged. The sum detects damage; it does not protect against somebody who writes a new sum.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

BROKEN = (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError)
"""The errors that reading a damaged or missing record may raise."""

_DIGITS = 64  # hexadecimal digits of a SHA-256


def seal(value: Any) -> bytes:
    """One line, with its line end."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return b"%s %s\n" % (hashlib.sha256(text).hexdigest().encode(), text)


def sealed_text(line: bytes) -> bytes:
    """The JSON of a sealed line, which may be damaged."""
    return line[_DIGITS + 1 :]


def unseal(line: bytes) -> Any:
    """Read a sealed line.

    Raises:
        ValueError: the line was changed or cut off.
    """
    total, text = line[:_DIGITS], sealed_text(line).rstrip(b"\r\n")
    if hashlib.sha256(text).hexdigest().encode() != total:
        raise ValueError
    return json.loads(text)
