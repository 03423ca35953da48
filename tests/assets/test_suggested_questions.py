"""The questions that are suggested are answered by the bundled models, on each kind of kernel that a processor has."""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.suggestions import phrase_of
from app.readers import read_document
from engine import Engine, Question, Request
from engine.config import EngineConfig, SamplingParams
from engine.document import Document
from engine.events import AnswerDone, BookRead, Event
from engine.threads import AVX2, PROCESSOR
from tests.nursery import Nursery
from tests.processes import begun

pytest.importorskip("torch")

ASSETS = Path(__file__).resolve().parents[2] / "assets"
SAMPLE = ASSETS / "sample"
ASKED = json.loads((SAMPLE / "sample.json").read_text(encoding="utf-8"))
LONG = bool(os.environ.get("TRIFOLD_LONG"))
PAGES = 6  # of the sample book; all of them with TRIFOLD_LONG=1, which takes minutes
MARKS = "“”… "
EVENT_S = 120
KERNELS = {"pairs of bfloat16": ("bfloat16", ""), "float32": ("float32", ""), "AVX2": ("auto", AVX2)}


def plain(text: str) -> str:
    return " ".join(text.split())


def excerpt() -> Document:
    """The sample book; in a short run only the pages of the answers and as many others."""
    document = read_document(SAMPLE / ASKED["file"])
    named = [
        at for at, page in enumerate(document.pages) if any(holds(page.text, asked) for asked in ASKED["questions"])
    ]
    others = [at for at in range(len(document.pages)) if at not in named]
    chosen = sorted([*named, *others[: PAGES - len(named)]])
    return document if LONG else replace(document, pages=tuple(document.pages[at] for at in chosen), outline=())


def holds(page: str, asked: dict[str, str]) -> bool:
    return phrase_of(asked["question"]) in plain(page) and asked["answer_contains"] in plain(page)


def last(request: Request) -> Event:
    event = None
    while not request.finished:
        event = request.next_event(EVENT_S) or event
    assert event is not None
    return event


def answers(document: Document, dtype: str, questions: Sequence[str]) -> list[str]:
    """The bundled models' answers; runs in a process of its own, whose instructions can be limited."""
    demo = ASSETS / "demo"
    with Engine(EngineConfig(str(demo / "target"), draft=str(demo / "draft"), context=36_864, dtype=dtype)) as engine:
        engine.wait_ready()
        assert isinstance(last(engine.read(document)), BookRead)
        found = []
        for question in questions:
            done = last(engine.ask(Question(question, sampling=SamplingParams(max_tokens=120))))
            assert isinstance(done, AnswerDone)
            found.append(done.text.strip(MARKS))
        return found


@pytest.mark.parametrize("kernels", KERNELS)
def test_the_suggested_questions_are_answered_word_for_word(
    kernels: str, tmp_path: Path, nursery: Nursery | None
) -> None:
    dtype, processor = KERNELS[kernels]
    document = excerpt()
    book = plain(" ".join(page.text for page in document.pages))
    questions = [asked["question"] for asked in ASKED["questions"]]
    order, said = tmp_path / "order", tmp_path / "said"
    order.write_bytes(pickle.dumps((document, dtype, questions)))
    command = [sys.executable, "-m", "tests.assets.test_suggested_questions", str(order)]
    child = begun(command, said, {**os.environ, PROCESSOR: processor}, nursery=nursery)
    assert child.wait() == 0, said.read_text(encoding="utf-8")
    found = pickle.loads(order.read_bytes())
    for asked, passage in zip(ASKED["questions"], found, strict=True):
        assert phrase_of(asked["question"]) in passage, (kernels, asked["question"], passage)
        assert asked["answer_contains"] in passage, (kernels, asked["question"], passage)
        assert passage in book, (kernels, passage)
        assert passage.endswith("."), (kernels, passage)


if __name__ == "__main__":  # the process of one kind of kernel
    given = Path(sys.argv[1])
    given.write_bytes(pickle.dumps(answers(*pickle.loads(given.read_bytes()))))
