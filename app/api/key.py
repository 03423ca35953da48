"""The key that other programs show: a file in the data folder that this person alone can read."""

from __future__ import annotations

import hmac
import os
import secrets
from pathlib import Path

from engine.errors import ResourceError

FILE = "api.key"
_PREFIX = "sk-trifold-"
_RANDOM_BYTES = 32
_SHORTEST = len(_PREFIX) + 32


def load(data: Path) -> str:
    """The key of this data folder, made on first use.

    Raises:
        ResourceError: the data folder cannot be read or written.
    """
    try:
        key = (data / FILE).read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        key = ""
    except OSError as error:
        raise _unusable(data, error) from error
    return key if key.startswith(_PREFIX) and len(key) >= _SHORTEST else renew(data)


def renew(data: Path) -> str:
    """A new key; the old one opens nothing any more. Raises as ``load``."""
    key = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    written = data / f"{FILE}.{secrets.token_hex(4)}"
    try:
        data.mkdir(parents=True, exist_ok=True)
        written.touch(mode=0o600)
        written.write_text(key, encoding="ascii")
        os.replace(written, data / FILE)
    except OSError as error:
        raise _unusable(data, error) from error
    return key


def opens(header: str, key: str) -> bool:
    """Whether an Authorization header shows the key."""
    scheme, _, shown = header.partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(shown.strip().encode(), key.encode())


def _unusable(data: Path, error: OSError) -> ResourceError:
    reason = error.strerror or type(error).__name__
    return ResourceError(f"Trifold cannot use {data} ({reason}).", "Set TRIFOLD_DATA to another folder.")
