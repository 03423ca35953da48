"""A pair that people really have, from the publisher's own files of 4-bit weights: 1.5 billion parameters, and a draft.

``TRIFOLD_REAL_PAIR`` names a folder with reader.gguf and reader-draft.gguf, any two files of one vocabulary; nothing is
fetched. Reading takes half a minute on two quiet cores.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from app.models.hub import Download
from app.models.local import LocalModels
from app.models.switch import install
from engine.bench.workloads import SAMPLE, open_text
from engine.config import EngineConfig, SamplingParams
from engine.document import Document
from engine.events import AnswerDone, BookRead
from engine.prompt import Question, Turn
from engine.session import Session
from tests.real import pair_or_skip

LEAST_TOKENS = 2000
CHARACTERS = 10_000
QUESTIONS = ("What is this about?", "Quote one sentence about it.")

pytestmark = pytest.mark.slow


@pytest.fixture
def pair() -> tuple[str, str]:
    files = pair_or_skip()
    return str(files[0]), str(files[1])


def test_a_file_with_a_file_as_its_draft_says_what_plain_decoding_says(tmp_path: Path, pair: tuple[str, str]) -> None:
    """Greedily, on weights as they are stored; a draft and a middle level propose whatever the controller thinks."""
    installed = install(LocalModels(tmp_path), Download(), *pair, lambda _: None)
    assert installed.draft is not None
    book = Document.from_text("The Lamplighters of Orre", open_text(SAMPLE).text[:CHARACTERS])
    levels: dict[str, Any] = {"num_draft_tokens": 3, "num_pending_tokens": 6, "retrieval_budget": 512}
    with closing(Session.load(EngineConfig(installed.model, installed.draft, context=4096, **levels))) as session:
        assert session.target.keeps_blocks
        *_, read = session.read(book)
        assert isinstance(read, BookRead)
        assert read.tokens >= LEAST_TOKENS
        history: list[Turn] = []
        for text in QUESTIONS:
            said = []
            for mode in ("plain", "hierarchical"):
                greedy = SamplingParams(0.0, top_p=1.0, top_k=0, repetition_penalty=1.0, max_tokens=60)
                *_, done = session.ask(Question(text, history, greedy, mode))
                assert isinstance(done, AnswerDone)
                said.append(done)
            assert said[0].token_ids == said[1].token_ids
            assert said[1].figures.verify.accepted
            history.append(Turn(text, said[0].text))
