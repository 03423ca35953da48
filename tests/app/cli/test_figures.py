"""The figures in numbers and in words."""

from __future__ import annotations

import argparse
import dataclasses
import json
from types import SimpleNamespace
from typing import Any

import pytest

from app.cli import ask
from app.core.abilities import Abilities
from app.core.forecast import Remaining
from app.core.format import not_found_in
from app.core.question import Ask
from app.models import reader
from app.trust.citations import CitationFinder, evidence
from engine import ModelInfo
from engine.config import KV_NOTES
from engine.document import Document, Page
from engine.errors import ContextTooSmall
from engine.events import (
    Acceptance,
    AnswerDone,
    BookRead,
    Figures,
    KvBytes,
    ReadingProgress,
    StopReason,
    TimeSplit,
    TokenSource,
)
from tests.app.scripted import ScriptedEngine, engine_status, model_info

DOCUMENT = Document("The Lamp", "", tuple(Page(n, str(n), "x") for n in range(3, 9)), "text", "0" * 64)
BOOK = BookRead(1000, 1500, 4, 6, 2.0, 500.0, KvBytes(host=10), stopped=False)
FIGURES = Figures(
    mode="hierarchical",
    answer_tokens=40,
    rounds=5,
    ttft_s=0.5,
    ms_per_token_mean=12.0,
    ms_per_token_p50=10.0,
    ms_per_token_p95=31.0,
    tokens_per_s=83.3,
    middle=Acceptance(30, 60),
    verify=Acceptance(36, 40),
    mean_acceptance_length=8.0,
    plain_ms=30.0,
    speedup_vs_plain=2.5,
    plain_steps=4,
    plain_age_s=1.25,
    time_split=TimeSplit(1.0, 2.0, 3.0),
    kv_bytes=KvBytes(host=1_500_000),
    prompt_tokens=1020,
    prefilled_tokens=20,
    context_tokens=1060,
    context_limit=4096,
)
DONE = AnswerDone("Maren.", (1, 2), (TokenSource.DRAFT, TokenSource.TARGET), StopReason.END, FIGURES)
MODEL = ModelInfo("demo", "/m", 10, "llama", 4096, "float32", "cpu", 384, 100, "small", 5)


def test_kv_that_is_not_exact_is_named() -> None:
    rounded = dataclasses.replace(MODEL, kv_note=KV_NOTES["8bit"])
    assert ask.model_line(rounded).endswith("; KV 8-bit: approximate; exact with respect to 8-bit KV")
    assert ask.report_of(DOCUMENT, BOOK, DONE, rounded)["kv_note"] == KV_NOTES["8bit"]
    assert "KV" not in ask.model_line(MODEL)
    assert ask.report_of(DOCUMENT, BOOK, DONE, MODEL)["kv_note"] == ""


def test_report_holds_what_programs_rely_on() -> None:
    report = json.loads(json.dumps(ask.report_of(DOCUMENT, BOOK, DONE, MODEL)))
    expected = {
        "answer": "Maren.",
        "token_ids": [1, 2],
        "prompt_tokens": 1020,
        "answer_tokens": 40,
        "stop_reason": "end",
        "ttft_s": 0.5,
        "prefill_tokens_per_s": 500.0,
        "tokens_per_s": 83.3,
        "acceptance": {"middle": 0.5, "verify": 0.9},
        "mean_acceptance_length": 8.0,
        "speedup_vs_plain": 2.5,
        "kv_bytes": {"device": 0, "host": 1_500_000, "disk": 0},
        "mode": "hierarchical",
        "model": "demo",
        "stages": ["draft", "target"],
    }
    assert {name: report[name] for name in expected} == expected
    assert report["ms_per_token"]["p50"] == 10.0
    assert report["ms_per_token"]["p95"] == 31.0
    assert report["pages"] == [3, 6]  # by their numbers in the file, as far as they were read


def test_lines_for_people() -> None:
    text = "\n".join(ask.lines_of(DONE))
    for words in (
        "first token after 0.50 s",
        "12.0 ms per token (median 10.0, p95 31.0), 83.3 tokens/s",  # the mean, as the rate is
        "2.5 times faster than plain (4 plain steps timed, the last 1.2 s before the end)",
    ):
        assert words in text
    assert "middle 50%, verify 90%, 8.0 tokens per verification" in text
    assert "1.5 MB host" in text
    refused = "\n".join(ask.lines_of(DONE, Abilities(only_quotes=True, refusals=(DONE.text,))))
    assert "no answer from the book, so no speed to compare" in refused
    assert "faster" not in refused


def test_figures_that_do_not_exist_are_left_out() -> None:
    nothing = Acceptance()
    plain = dataclasses.replace(
        FIGURES, middle=nothing, verify=nothing, mean_acceptance_length=None, speedup_vs_plain=None, ttft_s=None
    )
    text = "\n".join(ask.lines_of(dataclasses.replace(DONE, figures=plain)))
    assert "accepted" not in text
    assert "None" not in text
    report = ask.report_of(DOCUMENT, BOOK, dataclasses.replace(DONE, figures=plain), None)
    assert report["acceptance"] == {"middle": None, "verify": None}


def test_progress_of_reading() -> None:
    now = ReadingProgress(12_288, 28_412, 90, 212, 1210.4, 13.3)
    remaining = Remaining().after(ReadingProgress(0, 28_412, 0, 212, 0.0, 0.0)).after(now)
    assert ask.progress_line(now, remaining) == "12,288 of 28,412 tokens, 43%, 1,210 tokens/s, about 15 s left"
    assert ask.progress_line(now, Remaining()) == "12,288 of 28,412 tokens, 43%, 1,210 tokens/s"


def test_what_an_answer_rests_on_in_numbers_and_in_words() -> None:
    pages = ("The lamp was lit at dusk.", "Walter Rudd was tally clerk on the wool wharf for thirty-eight years.")
    text = "Walter Rudd was tally clerk for 38 years. He was paid $40,000. “The lamp was lit at dusk,” it says."
    notes = CitationFinder().begin(Document.from_pages("The Lamp", pages), "What was Walter Rudd?", text)
    notes.close()
    said, absent, quoted = evidence(notes.record(), text)
    assert said == {
        "sentence": "Walter Rudd was tally clerk for 38 years.",
        "level": "says so",
        "pages": [{"number": 2, "label": "2"}],
        "passage": pages[1],
        "missing": [],
    }
    assert (absent["level"], absent["missing"], absent["pages"]) == ("not found", ["$40,000"], [])
    assert (quoted["sentence"], quoted["passage"]) == (
        "“The lamp was lit at dusk,” it says.",
        "The lamp was lit at dusk",
    )
    assert ask.evidence_lines(notes.record(), "page") == [
        "Not found in the book: $40,000.",
        f"[p. 2] {pages[1]}",
        "[p. 1] The lamp was lit at dusk",
    ]


def test_programs_are_told_what_the_terminal_says_is_not_found() -> None:
    """The terminal said that no passage says an answer, and ``--json`` had an empty list."""
    book = Document.from_pages("The Lamp", ("The lamp was lit at dusk.",))
    for answer in ("He was paid $40,000.", "Sailors repaired umbrellas.", "The lamp was lit at dusk."):
        notes = CitationFinder().begin(book, "Who repaired the umbrellas of the sailors?", answer)
        notes.close()
        told, said = not_found_in(notes.record())["not_found"], ask.evidence_lines(notes.record(), "page")
        assert (told != []) == said[0].startswith(("Not found", "No passage of"))
        assert all(word in said[0] for word in told)


def test_a_book_that_is_too_long_names_a_longer_form_and_what_its_answers_are_worth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The longer form was named without a word on what a stretched window costs."""

    def too_long(*_: object) -> BookRead:
        raise ContextTooSmall("It is too long.", "Choose pages.")

    def remedy(model: str) -> str:
        untouched: Any = None
        settings: Any = SimpleNamespace(model=model)
        options = argparse.Namespace(fit=False)
        first = ask.FirstPassages(DOCUMENT, DOCUMENT, Ask("Who?"), Abilities(), as_json=False)
        with pytest.raises(ContextTooSmall) as refused:
            ask.ask_whole(untouched, first, untouched, options, settings)
        return refused.value.remedy

    monkeypatch.setattr(ask, "read_book", too_long)
    monkeypatch.setattr(reader, "verdict", lambda name: f"This is said of {name}.")
    assert remedy("models/reader").endswith("reader-128k holds four times as much. This is said of reader-128k.")
    assert remedy("models/starter").endswith("four times.")
    assert remedy("owner/name") == "Choose pages."


def test_what_the_model_looks_up_comes_after_the_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    """The evidence waited for it, 4 to 6 s after the answer."""
    engine = ScriptedEngine("No.")
    engine.now = engine_status(model=model_info(parameters=1_500_000_000))
    survey = Document.from_pages("Survey", ["The council put an end to the survey of the harbour in June."])
    question = Ask("Why was the survey of the harbour cancelled?")
    first = ask.FirstPassages(survey, survey, question, Abilities(), as_json=False)
    ask.ask_now(engine, first, question, argparse.Namespace(json=False))
    *_, cache, assumed, nearest = capsys.readouterr().err.splitlines()
    assert cache.startswith("KV cache: ")
    assert assumed == "No passage says what the question assumes: cancelled."
    assert "put an end" in nearest
