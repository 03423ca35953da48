"""Asks models about facts that documents have and facts that they lack. Writes the shares of correct answers and of
correct evidence.

    python assets/evaluation/evaluate.py --model reader=FOLDER --docs FOLDER --log answers.jsonl [--length 4096]

Every answer is written to the log at once. After a stop, the same command asks the remaining questions, and the figures
cover the whole log. The questions of ``assets/starter/questions.json`` are asked after ``--length`` tokens of the texts
of that file. The questions of ``questions.json`` are asked after six whole documents. If ``--length`` is at least
16,000, the questions of ``long.json`` are asked too. With ``--together`` the model reads the chosen texts as one
collection, and every question is asked after all of them. Answers are greedy, with the app's prompt.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from assets.evaluation import scoring  # noqa: E402  (found from the repository's root)
from assets.starter.evaluate import QUESTIONS as STARTERS_QUESTIONS  # noqa: E402
from assets.starter.evaluate import Texts  # noqa: E402
from assets.starter.recipe.asking import Reader  # noqa: E402
from assets.starter.recipe.prompting import text_of  # noqa: E402
from engine import Document  # noqa: E402

QUESTIONS = HERE / "questions.json"
LONG_QUESTIONS = HERE / "long.json"
LONG = 16_000
"""Minimum tokens of text for ``LONG_QUESTIONS``, which are about all of the text; shorter cuts lack most answers."""
DOCUMENTS = HERE / "documents"
HALVES = ("both", "tune", "judge")


@dataclass(frozen=True)
class Task:
    """A question and the data for judging its answer. ``kind``: "natural", "absent" or "talk". For a natural question,
    ``facts`` are wordings of the fact, and ``near`` are words of the passage with the fact.
    """

    text: str
    kind: str
    question: str
    facts: tuple[str, ...] = ()
    near: str = ""


@dataclass(frozen=True)
class Text:
    """A document or a part of a document, with the tasks about it."""

    title: str
    text: str
    tasks: tuple[Task, ...]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--docs", type=Path, required=True, help="folder of the documents of the starter's questions")
    parser.add_argument("--length", type=int, default=4096, help="tokens of text before the starter's questions")
    parser.add_argument("--texts", default="", help="names of texts, with commas; all of them otherwise")
    parser.add_argument("--together", action="store_true", help="read the texts as one collection")
    parser.add_argument("--kv", type=Path, help="folder for the KV of texts, so that a stopped run reads none twice")
    parser.add_argument("--half", choices=HALVES, default="both", help="every second question, to choose a prompt by")
    parser.add_argument(
        "--instruction", action="append", default=[], help="words behind every question, to choose a prompt by"
    )
    parser.add_argument("--log", type=Path, required=True, help="every answer, a line each; gone on with")
    parser.add_argument("--json", type=Path, default=HERE / "evaluation.json")
    return parser.parse_args()


def texts(docs: Path, length: int) -> dict[str, Text]:
    """Return all texts, keyed by name. The starter's texts are cut to ``length`` tokens."""
    asked = json.loads(STARTERS_QUESTIONS.read_text(encoding="utf-8"))
    cut = Texts(asked, docs)
    names = list(asked["texts"])
    talk = {name: asked["talk"][number :: len(names)] for number, name in enumerate(names)}
    later = json.loads(LONG_QUESTIONS.read_text(encoding="utf-8")) if length >= LONG else {"natural": [], "absent": []}
    tasks = {name: _tasks(name, asked, talk[name]) + _tasks(name, later, ()) for name in names}
    by_name = {name: Text(cut.title(name), cut.cut(name, length), tasks[name]) for name in names}
    own = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    for name, about in own["texts"].items():
        by_name[name] = Text(about["title"], text_of(DOCUMENTS / about["file"]), _tasks(name, own, ()))
    return by_name


def _tasks(name: str, asked: dict[str, Any], talk: Any) -> tuple[Task, ...]:
    natural = [
        Task(name, "natural", one["question"], tuple(one["facts"]), one["near"])
        for one in asked["natural"]
        if one["text"] == name
    ]
    absent = [Task(name, "absent", one["question"]) for one in asked["absent"] if one["text"] == name]
    return (*natural, *absent, *(Task(name, "talk", question) for question in talk))


def judged_by(found: dict[str, Text], *, together: bool) -> dict[str, tuple[str, str]]:
    """Return, for each text, the title and the words by which answers are judged. If the texts were read together,
    these are the titles and words of all texts.
    """
    if not together:
        return {name: (text.title, text.text) for name, text in found.items()}
    whole = "; ".join(text.title for text in found.values()), "\n\n".join(text.text for text in found.values())
    return dict.fromkeys(found, whole)


def half(tasks: tuple[Task, ...], which: str) -> tuple[Task, ...]:
    """Return all tasks if ``which`` is "both", otherwise every second task of each kind."""
    if which == "both":
        return tasks
    kept = []
    for kind in dict.fromkeys(task.kind for task in tasks):
        kept += [task for task in tasks if task.kind == kind][HALVES.index(which) - 1 :: 2]
    return tuple(kept)


def logged(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log. A line that was cut off when a run was stopped is skipped."""
    if log.is_file():
        for line in log.read_text(encoding="utf-8").splitlines():
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _run(found: dict[str, Text], options: argparse.Namespace) -> dict[str, Any]:
    """Return what all log rows of a run have in common: the length of the texts, or the names of the texts that were
    read together.
    """
    if not options.together:
        return {"length": options.length}
    return {"length": scoring.TOGETHER, "together": f"{', '.join(found)} of {options.length}"}


def ask(name: str, folder: Path, found: dict[str, Text], options: argparse.Namespace) -> None:
    """Ask a model all questions that the log lacks, and log every answer."""
    run = _run(found, options)
    known = {
        (row["text"], row["question"], row["instruction"])
        for row in logged(options.log)
        if row["model"] == name and run.items() <= row.items()
    }
    missing: dict[str, list[tuple[Task, str]]] = {}
    for key, text in found.items():
        for instruction in options.instruction or [""]:
            for task in half(text.tasks, options.half):
                if (key, task.question, instruction) not in known:
                    missing.setdefault(key, []).append((task, instruction))
    if not missing:
        return
    books = {key: Document.from_text(text.title, text.text) for key, text in found.items()}
    with Reader(folder, kept=options.kv) as reader, options.log.open("a", encoding="utf-8") as log:
        if options.together:
            _read_together(reader, list(books.values()))
        for key, tasks in missing.items():
            if not options.together:
                reader.read(books[key])
            for task, instruction in tasks:
                began = time.monotonic()
                (answer,) = reader.ask([f"{task.question}\n\n{instruction}" if instruction else task.question])
                row = {"model": name, **run, "instruction": instruction, **asdict(task)}
                row |= {"answer": answer, "seconds": round(time.monotonic() - began, 2)}
                log.write(json.dumps(row, ensure_ascii=False) + "\n")
                log.flush()
            print(name, key, len(tasks), "answered", flush=True)


def _read_together(reader: Reader, books: Sequence[Document]) -> None:
    """Read several texts as one collection. Each reading adds one text, so that the app stores every text as soon as it
    is read.
    """
    for count in range(1, len(books) + 1):
        reader.read(Document.together(books[:count]))


def main() -> None:
    options = arguments()
    chosen = texts(options.docs, options.length)
    wanted = [name for name in options.texts.split(",") if name] or list(chosen)
    chosen = {name: chosen[name] for name in wanted}
    for model in options.model:
        name, _, folder = model.partition("=")
        ask(name, Path(folder), chosen, options)
    run = _run(chosen, options)
    rows = [row for row in logged(options.log) if run.items() <= row.items() and row["text"] in chosen]
    own = json.loads(QUESTIONS.read_text(encoding="utf-8"))["texts"]
    if not options.together:
        rows = [row | {"length": scoring.WHOLE} if row["text"] in own else row for row in rows]
    figures = scoring.figures(rows, judged_by(chosen, together=options.together))
    print(json.dumps(figures, indent=1))
    print("swapped", scoring.swapped({name: (text.title, text.text) for name, text in chosen.items()}))
    if options.half == "both" and not options.instruction:
        report = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
        for key, said in figures.items():
            name, length, *instructed = key.split(" ", 2)
            if not instructed:
                report.setdefault(name, {})[length] = {"measured": _when(), **said}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        if options.json.resolve().parent == HERE:
            scoring.write_table(HERE / "README.md", report)


def _when() -> str:
    """Return the date and the measured commit."""
    asked = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return f"{time.strftime('%Y-%m-%d')}, {asked.stdout.strip() or 'no commit'}"


if __name__ == "__main__":
    main()
