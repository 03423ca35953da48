"""The view that the live stream sends: every key of it is read by the page's scripts or its HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.core import chat_run
from app.core.books import Books
from app.core.chats import Chats
from app.core.open_book import Stage
from app.core.question import Ask
from app.core.settings import make_settings
from app.core.state import AppState
from app.web.live import Growing, Live
from app.web.server import make_panels
from tests.app.scripted import ScriptedEngine, book, wait_for
from tests.house import ROOT

_PAGE = "".join(
    file.read_text(encoding="utf-8") for kind in ("*.js", "*.html") for file in (ROOT / "app/web/page").glob(kind)
)


def keys(view: object) -> Iterator[str]:
    if isinstance(view, Growing):
        yield from keys(view.since(None))
    elif isinstance(view, dict):
        for key, value in view.items():
            yield key
            yield from keys(value)
    elif isinstance(view, list | tuple):
        for value in view:
            yield from keys(value)


def is_read(key: str) -> bool:
    """As ``view.key``, as a name in ``{ key }``, or as the figure that an element shows."""
    return re.search(rf"""(?:\.|[{{,]\s*|"){re.escape(key)}\b""", _PAGE) is not None


@pytest.fixture
def state(tmp_path: Path) -> Iterator[AppState]:
    made = AppState(
        ScriptedEngine(word_seconds=0.0), Books(tmp_path / "books"), Chats(), lambda path, password=None: book()
    )
    yield made
    made.close()


def test_every_key_that_the_page_is_sent_is_read_there(state: AppState, a_file: Path) -> None:
    live = Live(state, make_panels(state, make_settings()))
    sent = set(keys(live.view()))
    state.open(state.books.copy_in(a_file))
    look: Callable[[], Any] = lambda: sent.update(keys(live.view()))  # noqa: E731
    wait_for(lambda: look() or state.current.stage is Stage.READY)
    for _ in chat_run.ask(state, Ask("Who?")):
        look()
    look()
    assert {"remedy", "p95", "speedup", "suggestions", "waiting"} <= sent, "it has been looked at in all states"
    assert {key for key in sent if not is_read(key)} == set()
    assert not is_read("key_of_nobody")
