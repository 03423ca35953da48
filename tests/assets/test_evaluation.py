"""The evaluation's questions stand on their documents; its figures say what an answer and its evidence are worth."""

from __future__ import annotations

import argparse
import functools
import json
import re
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from assets.evaluation import evaluate, scoring
from assets.starter import evaluate as starters
from assets.starter.recipe import asking
from engine import Document

OWN = json.loads(evaluate.QUESTIONS.read_text(encoding="utf-8"))


@functools.cache
def documents() -> dict[str, evaluate.Text]:
    return {
        name: evaluate.Text(about["title"], evaluate.text_of(evaluate.DOCUMENTS / about["file"]), ())
        for name, about in OWN["texts"].items()
    }


def test_every_passage_stands_in_its_document_and_has_the_fact() -> None:
    assert Counter(one["text"] for one in OWN["natural"]) == dict.fromkeys(OWN["texts"], 10)
    assert Counter(one["text"] for one in OWN["absent"]) == dict.fromkeys(OWN["texts"], 3)
    for one in OWN["natural"]:
        text = asking.plain(documents()[one["text"]].text)
        place = text.index(asking.plain(one["near"]))
        around = text[max(0, place - scoring.NEAR) : place + len(one["near"]) + scoring.NEAR]
        assert asking.has_fact(around, one["facts"]), one["question"]


def test_long_texts_are_asked_about_their_later_parts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the four texts only the sample book is in this repository. Its passages stand in the long cut, each with its
    fact."""
    later = json.loads(evaluate.LONG_QUESTIONS.read_text(encoding="utf-8"))
    asked = json.loads(evaluate.STARTERS_QUESTIONS.read_text(encoding="utf-8"))
    monkeypatch.setattr(starters, "text_of", lambda path: path.read_text(encoding="utf-8"))
    book = asking.plain(evaluate.Texts(asked, Path()).cut("orre-1", evaluate.LONG))
    own = [one for one in later["natural"] if one["text"] == "orre-1"]
    for one in own:
        place = book.index(asking.plain(one["near"]))
        around = book[max(0, place - scoring.NEAR) : place + len(one["near"]) + scoring.NEAR]
        assert asking.has_fact(around, one["facts"]), one["question"]
    monkeypatch.setattr(evaluate.Texts, "cut", lambda self, name, length: "")
    monkeypatch.setattr(evaluate, "text_of", lambda path: "")
    short, long = (evaluate.texts(Path(), length)["orre-1"].tasks for length in (evaluate.LONG - 1, evaluate.LONG))
    added = Counter(task.question for task in long) - Counter(task.question for task in short)
    assert added == Counter(one["question"] for kind in later.values() for one in kind if one["text"] == "orre-1")
    assert len(own) == 7
    assert {one["text"] for one in later["absent"]} == {"orre-1", "alice", "kidnapped", "culture"}


def test_halves_share_no_question_and_make_the_whole() -> None:
    tasks = tuple(evaluate.Task("a", kind, str(number)) for kind in ("natural", "absent") for number in range(5))
    tune, judge = (evaluate.half(tasks, which) for which in ("tune", "judge"))
    assert not {*tune} & {*judge}
    assert {*tune} | {*judge} == {*tasks}
    assert [task.kind for task in tune].count("natural") == 3


def row(kind: str, question: str, answer: str) -> dict[str, object]:
    asked = next((one for one in OWN["natural"] if one["question"] == question), {"facts": [], "near": ""})
    return {"model": "m", "length": 1, "instruction": "", "text": "contract", "kind": kind, **asked} | {
        "question": question,
        "answer": answer,
    }


@pytest.mark.parametrize(
    ("answer", "fact", "right"),
    [
        ("David was 17 years old.", "seventeen", True),
        ("Ninety-seven.", "97", True),
        ("She had thirty of them.", "30", True),
        ("He was 117 years old.", "seventeen", False),
        ("It was in 1912.", "nine", False),
        ("A blunderbuss.", "blunderbuss", True),
        ("A gun.", "blunderbuss", False),
    ],
)
def test_a_number_is_the_fact_however_it_is_written(answer: str, fact: str, right: bool) -> None:
    """ "17 years" was judged wrong where the fact is "seventeen"."""
    assert scoring.has_fact(answer, [fact]) == right


@pytest.mark.parametrize(
    ("kind", "question", "answer", "expected"),
    [
        (
            "natural",
            "How much is the monthly rent?",
            "The rent is 1,450 pounds a month.",
            {"fact": 1.0, "evidence": 1.0, "suspected": 0.0, "false says so": 0.0},
        ),
        ("natural", "How much is the monthly rent?", "The rent is 990 pounds a month.", {"fact": 0.0}),
        (
            "absent",
            "What does the heating cost each year?",
            "It costs $40,000.",
            {"absent recognised": 1.0, "absent said": 0.0},
        ),
        (
            "absent",
            "What does the heating cost each year?",
            "The book does not say that.",
            {"absent recognised": 1.0, "absent said": 1.0},
        ),
        ("absent", "How big was it?", "The rent is 1,450 pounds a month.", {"absent recognised": 0.0}),
        ("talk", "Hello!", "Hello! How can I help you?", {"talk": 1.0}),
    ],
)
def test_an_answer_is_judged_by_its_fact_and_by_the_passage_that_is_shown(
    kind: str, question: str, answer: str, expected: dict[str, float]
) -> None:
    texts = {"contract": (documents()["contract"].title, documents()["contract"].text)}
    (found,) = scoring.figures([row(kind, question, answer)], texts).values()
    assert expected.items() <= {kind: one["share"] for kind, one in found.items()}.items()


@pytest.mark.parametrize(
    ("question", "answer", "false"),
    [
        ("How much is the monthly rent?", "The rent is 1,450 pounds.", 0.0),
        (
            "What does the heating cost each year?",
            "The rent rises each year on 1 May by the rise of the consumer price index.",
            0.0,
        ),
        ("What does the heating cost each year?", "Each year the rent rises on 1 May.", 1.0),
        (
            "On which days may no power tools be used?",
            "On weekdays, from 7.30 in the morning to 7 in the evening, and on Saturdays, from 9 to 1.",
            1.0,
        ),
    ],
)
def test_a_sentence_is_false_that_was_read_so_or_that_nobody_has_read(question: str, answer: str, false: float) -> None:
    kind = "natural" if any(one["question"] == question for one in OWN["natural"]) else "absent"
    texts = {"contract": (documents()["contract"].title, documents()["contract"].text)}
    (found,) = scoring.figures([row(kind, question, answer)], texts).values()
    assert found["false says so"] == {"of": 1, "share": false}


def test_an_action_that_is_given_to_somebody_else_is_rarely_said_to_be_there() -> None:
    """Of these documents' pairs the false ones were said to be there in more than half of the cases."""
    found = scoring.swapped({name: (text.title, text.text) for name, text in documents().items()})
    assert found["pairs"] == 43
    assert found["true"] >= 35
    assert found["false"] <= 6


def strangers_texts(shared: Path) -> dict[str, str]:
    """The books that no rule was chosen on."""
    every = json.loads(scoring.STRANGERS.read_text(encoding="utf-8"))
    names = {one["text"] for one in every if one["half"] == "final"}
    texts = {}
    with tarfile.open(shared / "books" / "books.tar.xz") as books:
        for member in books:
            if (name := Path(member.name).stem) in names:
                file = books.extractfile(member)
                assert file is not None
                texts[name] = file.read().decode("utf-8")
            if texts.keys() == names:
                break
    return texts


def test_strangers_sentences_are_supported_only_where_they_are_right(checkout: Path, shared: Path) -> None:
    """What was judged at the end has the figures that are told of it, or better ones."""
    final = scoring.strangers("final", strangers_texts(shared))
    assert final["pairs"] == 24
    words = " ".join((checkout / "app" / "README.md").read_text(encoding="utf-8").split())
    told = re.search(r"supported (no|\d+) wrong and (\d+) of 24 right sentences, and (no|\d+) right", words)
    assert told is not None
    assert (final["false"], final["true"], final["suspected"]) == (0, int(told[2]), 0)


def test_the_table_of_the_card_has_a_column_for_every_model_and_length(tmp_path: Path) -> None:
    card = tmp_path / "README.md"
    card.write_text(f"Before\n{scoring.BEGIN}\nold\n{scoring.END}\nbehind\n")
    fact = {"measured": "2026-01-02, abc", "fact": {"of": 8, "share": 0.875}}
    talk = {**fact, "talk": {"of": 1, "share": 0.0}}
    scoring.write_table(card, {"reader": {"documents": fact, scoring.TOGETHER: fact}, "demo": {"4096": talk}})
    lines = card.read_text().splitlines()
    assert lines[0] == "Before"
    assert lines[-1] == "behind"
    assert "| | reader, six documents | reader, texts together | demo, 4,096 tokens |" in lines
    assert "| a fact that is there: answered right | 88 % of 8 | 88 % of 8 | 88 % of 8 |" in lines
    assert "| small talk: answered as such | – | – | 0 % of 1 |" in lines


def test_the_apps_readme_says_what_was_measured(checkout: Path) -> None:
    """It told the figures of an evaluation before the last one."""
    report = json.loads((evaluate.HERE / "evaluation.json").read_text(encoding="utf-8"))["reader"]
    words = " ".join((checkout / "app" / "README.md").read_text(encoding="utf-8").split())
    for kind, said in (
        ("evidence", "the right passage was shown for {} of 100 good answers"),
        ("suspected", "{} of 100 good answers were suspected"),
        ("absent recognised", "{} of 100 facts that are not in the book were recognised"),
    ):
        found = [figures[kind] for length, figures in report.items() if length != scoring.TOGETHER]
        right = sum(round(figure["of"] * figure["share"]) for figure in found)
        assert said.format(round(100 * right / sum(figure["of"] for figure in found))) in words


def test_a_log_that_was_cut_is_read_up_to_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"a": 1}\n{"a": ')
    assert list(evaluate.logged(log)) == [{"a": 1}]
    assert list(evaluate.logged(tmp_path / "none")) == []


def test_texts_that_are_read_together_are_asked_about_in_one_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question comes after all texts; a passage may be from any of them; a stopped run continues its log."""
    said: list[object] = []

    class Scripted:
        def __init__(self, folder: Path, kept: Path | None = None) -> None:
            said.append(kept)

        def __enter__(self) -> Scripted:
            return self

        def __exit__(self, *error: object) -> None: ...

        def read(self, document: Document) -> None:
            said.append([member.title for member in document.members])

        def ask(self, questions: list[str]) -> list[str]:
            return ["The rent is 1,450 pounds a month."]

    monkeypatch.setattr(evaluate, "Reader", Scripted)
    names = ("contract", "manual")
    found = {
        name: evaluate.Text(documents()[name].title, documents()[name].text, evaluate._tasks(name, OWN, ()))
        for name in names
    }
    options = argparse.Namespace(
        together=True, kv=tmp_path, log=tmp_path / "log", length=1, half="both", instruction=[]
    )
    evaluate.ask("reader", tmp_path, found, options)
    titles = [found[name].title for name in names]
    assert said == [tmp_path, titles[:1], titles]
    rows = list(evaluate.logged(options.log))
    assert [row["text"] for row in rows] == ["contract"] * 13 + ["manual"] * 13
    assert {row["length"] for row in rows} == {scoring.TOGETHER}
    evaluate.ask("reader", tmp_path, found, options)
    assert len(said) == 3
    evaluate.ask("reader", tmp_path, {"contract": found["contract"]}, options)  # another conversation asks anew
    assert len(said) == 5
    judged = evaluate.judged_by(found, together=True)
    assert judged["contract"] == judged["manual"]
    assert evaluate.judged_by(found, together=False)["manual"] == (titles[1], found["manual"].text)
    elsewhere = [{**row, "text": "manual"} for row in rows if row["question"] == "How much is the monthly rent?"]
    (figures,) = scoring.figures(elsewhere, judged).values()
    assert figures["evidence"]["share"] == 1.0
