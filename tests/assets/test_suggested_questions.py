"""The questions that the sample book comes with are answered by the bundled models."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from engine import Question

pytest.importorskip("torch")

from app.readers import read_document
from engine import Engine, Request
from engine.config import EngineConfig, SamplingParams
from engine.events import AnswerDone, BookRead, Event

ASSETS = Path(__file__).resolve().parents[2] / "assets"
SAMPLE = ASSETS / "sample"
LONG = bool(os.environ.get("TRIFOLD_LONG"))
MARKS = "“”… "
EVENT_S = 120


def last(request: Request) -> Event:
    event = None
    while not request.finished:
        event = request.next_event(EVENT_S) or event
    assert event is not None
    return event


def test_the_suggested_questions_are_answered_word_for_word() -> None:
    """From the first third of the book; from the whole of it, which takes minutes, with TRIFOLD_LONG=1."""
    sample = json.loads((SAMPLE / "sample.json").read_text(encoding="utf-8"))
    document = read_document(SAMPLE / sample["file"])
    pages = document.pages if LONG else document.pages[: len(document.pages) // 3]
    document, book = replace(document, pages=pages), " ".join(" ".join(page.text for page in pages).split())
    questions = [asked for asked in sample["questions"] if asked["answer_contains"] in book]
    assert len(questions) == len(sample["questions"]) if LONG else len(questions) >= 2
    demo = ASSETS / "demo"
    with Engine(EngineConfig(model=str(demo / "target"), draft=str(demo / "draft"), context=36_864)) as engine:
        engine.wait_ready()
        assert isinstance(last(engine.read(document)), BookRead)
        for asked in questions:
            done = last(
                engine.ask(Question(asked["question"], sampling=SamplingParams(max_tokens=120), mode="hierarchical"))
            )
            assert isinstance(done, AnswerDone)
            passage = done.text.strip(MARKS)
            assert asked["answer_contains"] in passage, asked["question"]
            assert passage in book, asked["question"]
            assert passage.endswith("."), asked["question"]
