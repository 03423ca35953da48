"""Where sentences end: in prompts, answers, clauses and long chapters alike."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from app.language.sentences import is_ended, is_line_ended
from app.trust.quoted import sentences
from engine.languages import sentence_ends


def _cut(text: str) -> list[str]:
    return [
        text[start:end].strip()
        for start, end in pairwise((0, *sentence_ends(text), len(text)))
        if text[start:end].strip()
    ]


@pytest.mark.parametrize(
    "whole",
    [
        "Capt. Ahab met Dr. Holt and J. P. Marsh.",
        "He paid approx. ten pounds, e.g. for oil.",
        "Approx. 40 lamps and approx. Ten Mile Road.",
        "He works for Acme Inc. Holding of Hull and Bray Co. Ltd. Westhaven.",
        "“Stop!” he said.",
        "See no. 5, p. 12 and Nr. 7.",
        "Am 3. Mai 2024 kam z. B. Karl, d. h. Anna kam.",
        "Elle part… élégante.",
        "12. The tenant pays.",
        "- 3. **The tenant** pays.",
    ],
)
def test_a_full_stop_within_a_sentence_does_not_end_it(whole: str) -> None:
    assert _cut(whole) == [whole]


@pytest.mark.parametrize(
    "parts",
    [
        ["Was it so?", "No.", "He left."],
        ["The owner is Acme Inc.", "The tenant is Bray Ltd."],
        ["„Halt.“", "Dann ging er."],
        ["»Halt.«", "Dann ging er."],
        ["Il dit « non. »", "Puis il part."],
        ["Oil, rope etc.", "The rest is lost."],
        ["He was 12.", "She was in chapter 3.", "May came."],
        ["It is (he said.)", "So be it!", "“Go.”", "She ran…", "Then it was 2019.", "7 men stayed."],
    ],
)
def test_a_sentence_ends_with_its_closing_marks(parts: list[str]) -> None:
    text = " ".join(parts)
    assert _cut(text) == parts
    assert [text[span.start : span.end] for span in sentences(text)] == parts


def test_chinese_sentences_end_without_a_space() -> None:
    assert _cut("灯是他点的。“为什么？”她问。") == ["灯是他点的。", "“为什么？”", "她问。"]


def test_an_item_of_a_list_is_one_sentence_with_its_number() -> None:
    answer = "Steps:\n1. Fill the lamp.\n2. Light it. Then wait."
    found = [answer[span.start : span.end] for span in sentences(answer)]
    assert found == ["Steps:", "1. Fill the lamp.", "2. Light it.", "Then wait."]


@pytest.mark.parametrize("mark", [". ", "1. ", "z. B. ", "…", ".»", ". »", "。", "\n", " ", "A.", ".\n9"])
def test_no_text_takes_long(mark: str) -> None:
    text = mark * (400_000 // len(mark))
    began = time.process_time()
    list(sentence_ends(text))
    assert time.process_time() - began < 3


def test_what_ends_as_a_sentence_and_as_a_line() -> None:
    assert all(map(is_ended, ["He left.”", "**He left.**", "他走了。"]))
    assert not any(map(is_ended, ["He left:", "He left.12", "He left"]))
    assert all(map(is_line_ended, ["He left:", "He left.12", "He left.” ", "he said;", "He left.[3]"]))
    assert not any(map(is_line_ended, ["He left", "he said, “no,”"]))
