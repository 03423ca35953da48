"""The importer of other people's questions, and how their answers are judged."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from assets.evaluation import others
from engine import Document

LONG = {"doc_id": "a.pdf", "question": "How long?", "evidence_sources": "['Table']"}
ROWS: dict[str, tuple[list[dict[str, Any]], list[others.Asked]]] = {
    "MMLongBench-Doc": (
        [
            {**LONG, "answer": "['MA', 'MSc']"},
            {**LONG, "answer": "Not answerable", "evidence_sources": "[]"},
            {**LONG, "answer": "8", "evidence_sources": "['Chart']"},
        ],
        [others.Asked("a.pdf", "How long?", ("MA", "MSc")), others.Asked("a.pdf", "How long?")],
    ),
    "FinanceBench": (
        [{"doc_name": "3M_2018_10K", "question": "Capital?", "answer": "$1577.00"}],
        [others.Asked("3M_2018_10K.pdf", "Capital?", ("$1577.00",))],
    ),
    "L-Eval": (
        [{"instructions": ["Who?"], "outputs": ["The Tenant"], "input": "The Tenant.", "source": "lease"}],
        [others.Asked("lease", "Who?", ("The Tenant",), "The Tenant.")],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_the_questions_of_a_public_set_are_read(name: str, tmp_path: Path) -> None:
    rows, expected = ROWS[name]
    path = tmp_path / "questions"
    path.write_text("\n".join(map(json.dumps, rows)) if name != "MMLongBench-Doc" else json.dumps(rows))
    assert others.questions(path) == expected


def test_a_servers_key_is_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with a key, such as Trifold's own, could not be measured."""
    asked = []

    class Server:
        def __init__(self, remote: others.Remote) -> None:
            asked.append(remote.key)

        def wait_ready(self) -> None: ...

        def close(self) -> None: ...

    (tmp_path / "key").write_text("sk-1\n", encoding="utf-8")
    monkeypatch.setattr(others, "RemoteEngine", Server)
    for key in (tmp_path / "key", None):
        with others.engine_of(argparse.Namespace(server="http://127.0.0.1:1", key=key, context=None)):
            pass
    assert asked == ["sk-1", ""]


def test_the_questions_with_premises_are_asked_like_others() -> None:
    found = others.questions(others.HERE / "premises.json")
    assert (len(found), sum(not one.facts for one in found)) == (32, 16)


@pytest.mark.parametrize(
    ("answer", "facts", "right"),
    [
        ("It has 18 data centers.", ("18",), True),
        ("It has 180 data centers.", ("18",), False),
        ("It is the National Atmospheric Research Laboratory.", ("National Atmospheric Research Laboratory",), True),
        ("IA co-source and IA advisory.", ("IA Co-source", "IA outsource"), False),
        ("The capital was 1577 dollars in 2018.", ("$1577.00 in 2018",), True),
        ("The book does not say.", (), False),
    ],
)
def test_an_answer_is_right_with_all_parts_of_the_expected_one(
    answer: str, facts: tuple[str, ...], right: bool
) -> None:
    assert others.is_right(answer, facts) == right


def test_the_table_compares_models_by_facts_and_marks() -> None:
    document = Document.from_text("Lease", "The rent is 900 euros. The tenant pays the deposit in May.")
    row = {"file": "lease", "question": "How much is the rent?", "facts": ["900"], "seconds": 2.0}
    absent = {"file": "lease", "question": "What is the fee of the gym?", "facts": [], "seconds": 4.0}
    rows = [
        {**row, "model": "one", "answer": "The rent is 900 euros."},
        {**row, "model": "other", "answer": "The rent is 800 euros."},
        {**absent, "model": "one", "answer": "The tenant pays the deposit in May."},
    ]
    found = others.judged(rows, {"lease": document}, [])
    assert found["one"]["fact"] == found["one"]["supported"] == [True]
    assert found["one"]["red"] == [False]
    assert found["one"]["false at absent"] == [True]
    assert found["other"]["fact"] == [False]
    lines = others.table(found, rows).splitlines()
    assert lines[0] == "| | one | other |"
    assert "| facts right | 1 of 1 | 0 of 1 |" in lines
    assert lines[-1] == "| seconds of an answer, median | 3.0 | 2.0 |"
    read = [{**rows[0], "right": False}, {**rows[2], "sentence": rows[2]["answer"], "true": True}]
    assert others.judged(rows, {"lease": document}, read)["one"]["fact"] == [False]
