"""Asks a model other people's questions about their documents, and prints how right its answers and their marks are.

    python assets/evaluation/others.py QUESTIONS --docs FOLDER --log answers.jsonl --model reader.gguf
    python assets/evaluation/others.py QUESTIONS --docs FOLDER --log answers.jsonl --server http://127.0.0.1:8080

``QUESTIONS`` is a file of MMLongBench-Doc (``samples.json``), of FinanceBench (``financebench_open_source.jsonl``), of
L-Eval (``legal_contract_qa.jsonl``, which holds its documents), or a list of objects with ``file``, ``question`` and
``answer``. Of MMLongBench-Doc only the questions are asked that rest on text or tables, or cannot be answered. No data
of these sets belongs to the project: their licences are CC BY-NC (MMLongBench-Doc), none stated (FinanceBench) and
GPL-3 (L-Eval).

Every answer is logged at once, and a stopped command continues. Each run adds a column to the table: all models and
servers in the log are compared, and answers that are there are judged by the present rules. ``--judged`` names a JSON
list of what a person decided by reading: objects with ``file``, ``question``, ``answer`` and ``right``, or with
``file``, ``question``, ``sentence`` and ``true``.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from app.cli.arguments import parse  # noqa: E402  (found from the repository's root)
from app.cli.ask import loaded_engine  # noqa: E402
from app.cli.main import prepare_libraries  # noqa: E402
from app.cli.models import on_this_machine  # noqa: E402
from app.core.answer_table import FROM_PASSAGES, ask_document  # noqa: E402
from app.core.question import Ask  # noqa: E402
from app.core.settings import NO_DRAFT, Remote, make_settings  # noqa: E402
from app.language.tokens import tokenize  # noqa: E402
from app.language.words import numbers_in  # noqa: E402
from app.models.remote import RemoteEngine  # noqa: E402
from app.readers import read_document  # noqa: E402
from app.trust.citations import CitationFinder  # noqa: E402
from app.trust.evidence import is_refusal  # noqa: E402
from app.trust.figures import stems  # noqa: E402
from assets.evaluation.evaluate import logged  # noqa: E402
from assets.evaluation.scoring import has_fact  # noqa: E402
from engine import EngineLike  # noqa: E402
from engine.config import SamplingParams  # noqa: E402
from engine.document import Document, Reading  # noqa: E402

TOKENS = 160
"""Maximum tokens of an answer."""
MOST_OF_A_FACT = 0.75
"""Minimum share of the words of an expected answer that a right answer has, besides all its numbers."""
ABSENT = "not answerable"
"""The expected answer to a question that the document does not answer."""
_WRITTEN = frozenset({"Pure-text (Plain-text)", "Table"})
"""The sources of MMLongBench-Doc that a text has."""
SUPPORTED, RED = frozenset({"says", "verbatim", "quoted"}), frozenset({"absent", "missing"})
"""The kinds of citations that support a sentence, and those that suspect it."""
ROWS = {
    "fact": "facts right",
    "supported": "… of these: a sentence is supported or quoted",
    "red": "… of these: marked red",
    "false": "supported sentences that are false",
    "false at absent": "supported answers to what is not there",
    "absent": "what is not there: the answer or the app says so",
    "near": "right answers among those that are only *near*",
}


@dataclass(frozen=True)
class Asked:
    """A question of others. ``facts``: what a right answer has, all of it; empty if the document does not answer it.
    ``text``: the document's text, if the set itself holds it.
    """

    file: str
    question: str
    facts: tuple[str, ...] = ()
    text: str = ""


def questions(path: Path) -> list[Asked]:
    """Read the questions of a set in any of the known forms, ordered by document.

    Raises:
        SystemExit: a line has no known form.
    """
    content = path.read_text(encoding="utf-8")
    try:
        rows = json.loads(content)
    except ValueError:
        rows = [json.loads(line) for line in content.splitlines() if line.strip()]
    asked = [one for row in ([rows] if isinstance(rows, dict) else rows) for one in _asked(row)]
    return sorted(asked, key=lambda one: one.file)


def _asked(row: Mapping[str, Any]) -> Iterator[Asked]:
    """The questions of one row of a set."""
    if "instructions" in row:  # L-Eval: all questions about one text
        name = str(row.get("source") or hash(row["input"]))
        for question, answer in zip(row["instructions"], row["outputs"], strict=True):
            yield Asked(name, question, facts_of(answer), row["input"])
    elif "doc_name" in row:  # FinanceBench
        yield Asked(f"{row['doc_name']}.pdf", row["question"], facts_of(row["answer"]))
    elif "question" in row and ("doc_id" in row or "file" in row):
        facts = row.get("facts") or facts_of(row["answer"])
        sources = row.get("evidence_sources") or ()
        sources = ast.literal_eval(sources) if isinstance(sources, str) else sources
        if not facts or _WRITTEN.issuperset(sources):
            yield Asked(row.get("doc_id") or row["file"], row["question"], tuple(facts))
    else:
        raise SystemExit(f"A question has none of the known forms: {sorted(row)}")


def facts_of(answer: object) -> tuple[str, ...]:
    """The parts of an expected answer: the items of a list, or the answer itself. Empty if the document does not
    answer.
    """
    text = str(answer).strip()
    if text.casefold().startswith(ABSENT):
        return ()
    if text.startswith("["):
        try:
            return tuple(map(str, ast.literal_eval(text)))
        except (ValueError, SyntaxError):
            pass
    return (text,)


def is_right(answer: str, facts: Sequence[str]) -> bool:
    """Whether an answer has all parts of the expected answer: word for word, or most of its words and all its
    numbers. A reading of the answer may decide otherwise (``--judged``).
    """
    said = _numbers(answer)
    return bool(facts) and all(
        _numbers(fact) <= said and (has_fact(answer, [fact]) or _has_most(answer, fact)) for fact in facts
    )


def _has_most(answer: str, fact: str) -> bool:
    """Whether an answer has most words of an expected answer, which has words or a number."""
    wanted = stems(fact)
    return bool(wanted or _numbers(fact)) and len(wanted & stems(answer)) >= MOST_OF_A_FACT * len(wanted)


def _numbers(text: str) -> set[str]:
    """The values of the numbers of a text, however they are written."""
    return {value for value, _, _ in numbers_in(list(tokenize(text)), text)}


def marks(document: Document, finder: CitationFinder, question: str, answer: str) -> dict[str, Any]:
    """The marks of an answer by the present rules: the ``supported`` sentences, and whether the app calls something
    ``red`` or not found.
    """
    finder.prepare(document).result()
    notes = finder.begin(document, question, answer)
    notes.close()
    record = notes.record()
    chips = record["chips"]
    supported = [" ".join(answer[chip["from"] : chip["at"]].split()) for chip in chips if chip["kind"] in SUPPORTED]
    red = bool(record.get("missing")) or any(chip["kind"] in RED for chip in chips)
    return {
        "supported": supported,
        "red": red,
        "told": red or bool(record.get("assumed")) or is_refusal(answer),
        "near": not supported and any(chip["kind"] == "near" for chip in chips),
    }


def judged(
    rows: Sequence[Mapping[str, Any]], documents: Mapping[str, Document], read: Sequence[Mapping[str, Any]]
) -> dict[str, dict[str, list[bool]]]:
    """Judge all logged answers. Return, for each model, the marks of every kind of ``ROWS``."""
    right = {(one["file"], one["question"], one["answer"]): one["right"] for one in read if "right" in one}
    true = {(one["file"], one["question"], one["sentence"]): one["true"] for one in read if "sentence" in one}
    by_model: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for file, about in groupby(sorted(rows, key=lambda row: row["file"]), key=lambda row: row["file"]):
        finder = CitationFinder()
        for row in about:
            kinds, question, answer = by_model[row["model"]], row["question"], row["answer"]
            marked = marks(documents[file], finder, question, answer)
            is_good = right.get((file, question, answer), is_right(answer, row["facts"]))
            says = marked["supported"]
            kinds["false"] += [not true.get((file, question, one), is_good) for one in says]
            if row["facts"]:
                kinds["fact"].append(is_good)
            else:
                kinds["absent"].append(marked["told"])
                kinds["false at absent"].append(bool(says))
            if is_good:
                kinds["supported"].append(bool(says))
                kinds["red"].append(marked["red"])
            if marked["near"]:
                kinds["near"].append(is_good)
    return by_model


def table(found: Mapping[str, Mapping[str, Sequence[bool]]], rows: Sequence[Mapping[str, Any]]) -> str:
    """The Markdown table of ``judged``, with a column for every model."""
    lines = [f"| | {' | '.join(found)} |", "|---" * (len(found) + 1) + "|"]
    for kind, words in ROWS.items():
        cells = [f"{sum(one[kind])} of {len(one[kind])}" if one.get(kind) else "–" for one in found.values()]
        lines.append(f"| {words} | {' | '.join(cells)} |")
    times = (median(row["seconds"] for row in rows if row["model"] == name) for name in found)
    lines.append(f"| seconds of an answer, median | {' | '.join(f'{one:.1f}' for one in times)} |")
    return "\n".join(lines)


def document_of(one: Asked, folder: Path) -> Document:
    """The document of a question."""
    return Document.from_text(one.file, one.text) if one.text else read_document(folder / one.file)


def _key(path: Path | None) -> str:
    return path.read_text(encoding="utf-8").strip() if path else ""


@contextmanager
def engine_of(options: argparse.Namespace) -> Iterator[EngineLike]:
    """The engine of the model, or of the server, that a command line names."""
    if options.server:
        remote = RemoteEngine(Remote(options.server, key=_key(options.key), context=options.context))
        try:
            remote.wait_ready()
            yield remote
        finally:
            remote.close()
        return
    line = parse(["ask", "BOOK", "Question?", "--model", options.model, "--draft", NO_DRAFT])
    with loaded_engine(on_this_machine(line, make_settings(options.model, NO_DRAFT))) as engine:
        yield engine


def ask(options: argparse.Namespace, asked: Sequence[Asked], documents: Mapping[str, Document]) -> None:
    """Ask all questions that the log lacks, and log every answer."""
    name = options.name or options.server or Path(options.model).stem
    known = {(row["file"], row["question"]) for row in logged(options.log) if row["model"] == name}
    left = [one for one in asked if (one.file, one.question) not in known]
    if not left:
        return
    how = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    with engine_of(options) as engine, options.log.open("a", encoding="utf-8") as log:
        for one in left:
            began = time.monotonic()
            reading = Reading(documents[one.file], fit=True)
            steps = ask_document(engine, reading, Ask(one.question, sampling=how, now=options.now, whole=True))
            while True:
                try:
                    next(steps)
                except StopIteration as ended:
                    answer = ended.value.row
                    break
            row = {"model": name, "file": one.file, "question": one.question, "facts": one.facts}
            row |= {"answer": answer["answer"], "passages": answer["answered_from"] == FROM_PASSAGES}
            row["seconds"] = round(time.monotonic() - began, 1)
            log.write(json.dumps(row, ensure_ascii=False) + "\n")
            log.flush()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("questions", type=Path)
    parser.add_argument("--docs", type=Path, default=Path(), help="folder of the documents")
    parser.add_argument("--log", type=Path, required=True, help="every answer, a line each; gone on with")
    parser.add_argument("--model", default="", help="model that answers; without it and --server the log is judged")
    parser.add_argument("--server", default="", help="address of a server with OpenAI's protocol, such as llama.cpp's")
    parser.add_argument("--key", type=Path, help="file with the server's access key")
    parser.add_argument("--context", type=int, help="window of the server in tokens")
    parser.add_argument("--name", default="", help="name of the row; the model's file name otherwise")
    parser.add_argument("--only", default="", help="only questions about files whose names begin so")
    parser.add_argument("--now", action="store_true", help="answer from passages, without reading the documents")
    parser.add_argument("--judged", type=Path, help="what a person decided by reading")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    prepare_libraries()
    asked = [one for one in questions(options.questions) if one.file.startswith(options.only)]
    documents = {one.file: document_of(one, options.docs) for one in {one.file: one for one in asked}.values()}
    with tempfile.TemporaryDirectory() as data:
        os.environ.setdefault("TRIFOLD_DATA", data)
        if options.model or options.server:
            ask(options, asked, documents)
    rows = [row for row in logged(options.log) if row["file"] in documents]
    read = json.loads(options.judged.read_text(encoding="utf-8")) if options.judged else []
    print(table(judged(rows, documents, read), rows))


if __name__ == "__main__":
    main()
