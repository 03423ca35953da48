"""``doctor --selftest``: the engine's own checks on this machine, in sentences; the outcome is kept in the data folder.

Owns the file of outcomes and the choice of text and questions. The page asks ``last_result``. Knows nothing of how a
check works: that is ``engine.selftest``.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.settings import SAMPLE_BOOKS, Settings
from engine.errors import DocumentError

if TYPE_CHECKING:
    from engine.document import Document

FILE = "selftest.json"
_CHARACTERS = 3_500  # of the sample book: enough to be chosen from, little enough for a slow machine
_PAGE = 500
_QUESTIONS = ("Who counted the lamps?", "What happened in the storm?", "Continue the story.")


@dataclass(frozen=True)
class Result:
    """One run. ``when`` is in seconds since the epoch; ``checks`` holds name, passed, sentence and seconds of each."""

    when: float
    passed: bool
    model: str
    draft: str | None
    device: str
    dtype: str
    machine: str
    seconds: float
    tokens: int
    checks: list[dict[str, Any]] = field(default_factory=list)


def last_result(data: Path) -> Result | None:
    """The outcome of the last run with this data folder; None where there is none that can be read."""
    try:
        return Result(**json.loads((data / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def run(settings: Settings, say: Callable[[str], None]) -> Result:
    """Check everything, say each outcome, and keep the result.

    Raises:
        ModelError: a model cannot be loaded.
        DocumentError: the sample book is missing.
    """
    from engine import selftest
    from engine.worker import describe

    began = time.perf_counter()
    document = _text()
    with tempfile.TemporaryDirectory(prefix="trifold-", ignore_cleanup_errors=True) as folder:
        config = selftest.configured(settings.engine_config(), folder)
        session = selftest.load(config)
        try:
            found = []
            for check in selftest.checks(session, document, _QUESTIONS):
                found.append(check)
                say(f"{'ok  ' if check.passed else 'FAIL'} {check.sentence}")
            model = describe(session, config)
        finally:
            session.close()
    passed = all(check.passed for check in found)
    tokens = sum(check.tokens for check in found)
    result = Result(
        when=time.time(),
        passed=passed,
        model=model.name,
        draft=model.draft_name,
        device=model.device,
        dtype=model.dtype,
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        seconds=time.perf_counter() - began,
        tokens=tokens,
        checks=[asdict(check) for check in found],
    )
    _keep(settings, result, model)
    return result


def _text() -> Document:
    """The beginning of the sample book as a few short pages."""
    from engine.document import Document, Page

    file = next(iter(sorted(SAMPLE_BOOKS.glob("*.txt"))), None)
    if file is None:
        raise DocumentError("The sample book is missing from this copy of Trifold.", "Get a fresh copy.")
    text = file.read_text(encoding="utf-8")[:_CHARACTERS]
    parts = [text[start : start + _PAGE] for start in range(0, len(text), _PAGE)]
    pages = tuple(Page(number, str(number), part) for number, part in enumerate(parts, 1))
    return Document("The Lamplighters of Orre", "", pages, "text", "0" * 64)


def _keep(settings: Settings, result: Result, model: Any) -> None:
    """Whole or not at all; a run that failed takes the badge away too."""
    from app.race.verified import Verified
    from app.server import VERIFIED_FILE

    settings.data.mkdir(parents=True, exist_ok=True)
    written = settings.data / f"{FILE}.{secrets.token_hex(4)}"
    written.write_text(json.dumps(asdict(result), ensure_ascii=False, indent=1), encoding="utf-8")
    os.replace(written, settings.data / FILE)
    same = result.tokens if result.passed else -1
    Verified(settings.data / VERIFIED_FILE).note(model, "selftest", same, result.tokens)
