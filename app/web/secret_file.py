"""Stores a secret in a file that this person alone can read.

The file is first written under a temporary name, so that no program can read a half-written file. If two programs find
the file missing at once, both use the secret of the program that writes first.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from app.core.whole_files import PRIVATE, write_whole
from engine.errors import ResourceError

RANDOM_BYTES = 32


def load(path: Path, prefix: str = "") -> str:
    """Read the secret. It is made if the file is missing or damaged.

    Args:
        path: the file.
        prefix: the beginning of every valid secret.

    Raises:
        ResourceError: the folder cannot be read or written.
    """
    return _or_refusal(path, lambda: _read(path, prefix) or _make(path, prefix))


def renew(path: Path, prefix: str = "") -> str:
    """Replace the secret by a new one. Arguments and errors are those of ``load``."""
    return _or_refusal(path, lambda: _replace(path, prefix))


def _or_refusal(path: Path, work: Callable[[], str]) -> str:
    try:
        return work()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ResourceError(f"Trifold cannot use {path} ({reason}).", "Set TRIFOLD_DATA to another folder.") from error


def _read(path: Path, prefix: str) -> str:
    """Return the stored secret; "" if there is none, or a damaged one."""
    try:
        if not _is_ours(path):
            return ""
        secret = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        return ""
    return secret if secret.startswith(prefix) and len(secret) >= len(prefix) + RANDOM_BYTES else ""


def _is_ours(path: Path) -> bool:
    """Whether no other user has written the file, as one could into a folder that was open to others."""
    return os.name != "posix" or path.lstat().st_uid == os.getuid()


def _make(path: Path, prefix: str) -> str:
    if not path.exists():
        written = _written(path, prefix)
        try:
            with suppress(FileExistsError):  # another program has written the file first
                os.link(written, path)
        except OSError:  # the file system has no hard links
            os.replace(written, path)
        finally:
            written.unlink(missing_ok=True)
    # If nothing valid could be read, the file is damaged and is replaced.
    return _read(path, prefix) or _replace(path, prefix)


def _replace(path: Path, prefix: str) -> str:
    written = _written(path, prefix)
    secret = _read(written, prefix)
    os.replace(written, path)
    return secret


def _written(path: Path, prefix: str) -> Path:
    """Write a new secret into a temporary file next to ``path``, and return the path of this file."""
    written = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(written, prefix + secrets.token_urlsafe(RANDOM_BYTES), PRIVATE)
    return written
