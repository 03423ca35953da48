"""The program ends and starts again, and a chat goes on in the page: neither the book nor its turns are read again."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from playwright.sync_api import Page

from engine.kv.manifest import TURN_MANIFEST
from engine.kv.snapshots import CHATS
from tests.e2e.conftest import SAMPLE
from tests.e2e.steps import (
    READ_SECONDS,
    Open,
    Server,
    answer_length,
    answered,
    ask,
    give,
    has_read,
    questions,
    serving,
    until,
)
from tests.nursery import Nursery
from tests.processes import app_command, free_port

CHARACTERS = 7_000  # long enough that a question is less than a fiftieth of it
MOST_READ_AGAIN = 0.02
REUSED = re.compile(r"([\d,]+) new tokens? read for this question, ([\d,]+) kept from before")


Start = Callable[[], AbstractContextManager[Server]]


@pytest.fixture
def long_text(tmp_path: Path) -> Path:
    file = tmp_path / "The Lamps.txt"
    file.write_text(next(SAMPLE.glob("*.txt")).read_text(encoding="utf-8")[:CHARACTERS], encoding="utf-8")
    return file


@pytest.fixture
def started(tmp_path: Path, nursery: Nursery | None) -> Start:
    """``started()`` -> the product in a new process, on the same data as the ones before."""
    data = tmp_path / "data"
    data.mkdir()
    port = free_port()
    return lambda: serving(app_command(port), data, port, nursery)


def reused(page: Page) -> tuple[int, int]:
    """Tokens that the newest question had to read, and those that were there."""
    found = REUSED.fullmatch(page.inner_text('[data-figure="reused"]'))
    assert found is not None, page.inner_text('[data-figure="reused"]')
    new, kept = (int(number.replace(",", "")) for number in found.groups())
    return new, kept


def turns_on_disk(server: Server) -> int:
    return len(list((server.data / "snapshots").glob(f"*{CHATS}/*/*/{TURN_MANIFEST}")))


def test_a_chat_goes_on_after_a_restart_and_nothing_is_read_again(
    started: Start, open_page: Open, long_text: Path
) -> None:
    with started() as server:
        page = open_page(server)
        give(page, long_text)
        has_read(page, long_text.read_bytes())
        answer_length(page)
        for count, question in enumerate(("Where does it say “I sold eighteen”?", "Find: I went round again"), start=1):
            ask(page, question)
            answered(page)
            until(page, lambda count=count: turns_on_disk(server) == count, READ_SECONDS / 1000)  # type: ignore[misc]
        book = sum(reused(page))
        said = page.locator("#chat .user").all_inner_texts(), page.locator("#chat .bot .prose").all_inner_texts()
        page.close()
    with started() as server:
        page = open_page(server)
        page.wait_for_selector('#trifold[data-stage="ready"]', timeout=READ_SECONDS)
        until(page, lambda: questions(page) == 2)
        again = page.locator("#chat .user").all_inner_texts(), page.locator("#chat .bot .prose").all_inner_texts()
        assert again == said
        assert "opened" in page.inner_text("#map-words").lower()
        answer_length(page)
        ask(page, "Where does it say “He wrote down eighteen”?")
        answered(page)
        new, kept = reused(page)
        assert kept >= book  # the book and both turns, with their answers
        assert new < MOST_READ_AGAIN * (new + kept), f"{new} tokens were read again, {kept} were there"
        assert page.locator("#chat .trouble").count() == 0
        page.close()  # before its server goes
