"""``python -m engine.bench.measurements BOOKS``: every measurement in assets/measurements, in one process.

The models are loaded once. Tables are medians over books of a folder that were held back from the training of the
models. Sweeps take another such book, which no table uses. Each part of the measurements writes a file of results. At
the end a page of tables and the pictures are written. ``--parts`` measures some parts only. ``--page`` measures nothing
and writes the page from the files of results.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from engine.bench import BOOKS, check_enough, check_window, held_back_benches, load_session, parser
from engine.bench.report import Measurement, budget_of, check_matplotlib, machine, over_books, picture, table
from engine.bench.rows import COMPARED, ROWS, Bench, run_sweep, sweep_picture
from engine.bench.workloads import ASSETS, DRAFT, TARGET, open_text
from engine.errors import TrifoldError
from engine.threads import sleep_while_waiting

OURS = tuple(row for row in ROWS if not row.startswith("hf_"))
SPEEDS = ("plain", "hierarchical", "hierarchical_lookup")
LOOKUPS = ("plain", "hierarchical", *COMPARED, "hierarchical_lookup")
BOTH = ("prose", "quote")
ALL = (*BOTH, "followup")


LEFT_OUT = (
    "Trees of drafted tokens would gain 2 % at best at 2K, lose 12 % on prose at 32K and gain 10 % on quotations "
    "there, where the book itself proposes better: left out."
)
"""Results of experiments that cannot be repeated, because their code has been removed from the program."""


@dataclass(frozen=True)
class Experiment:
    """One part of the measurements, with its settings and the heading of its table (``title``)."""

    name: str
    title: str
    context: int
    rows: tuple[str, ...]
    workloads: tuple[str, ...]
    tokens: int = 96
    repeats: int = 1
    temperature: tuple[float, ...] = (0.0,)
    questions: int = 4
    sweep: str | None = None


# The parts of the measurements, shorter contexts first, so that each book is read once and only continued for longer
# contexts.
PARTS = (
    Experiment("2k", "All rows after 2,048 tokens.", 2048, ROWS, ALL, repeats=7),
    Experiment("8k", "All rows after 8,192 tokens.", 8192, ROWS, BOTH, repeats=2),
    Experiment("32k", "Our rows after 32,768 tokens.", 32768, OURS, ALL, repeats=2),
    Experiment(
        "generate", "transformers' generate after 32,768 tokens.", 32768, ("hf_generate", "plain"), ("prose",), 24
    ),
    Experiment("answers", "Answers of 1,000 tokens.", 32768, SPEEDS, ("prose",), 1000, 2),
    Experiment(
        "sampled", "The same, sampled, each run with a seed of its own.", 32768, SPEEDS, ("prose",), 1000, 5, (0.6,)
    ),
    Experiment("heat", "Warmer.", 32768, ("hierarchical",), ("prose",), 1000, 3, (1.0, 1.2)),
    Experiment(
        "quotations", "Twenty quotations, sampled too.", 32768, SPEEDS, ("quote",), 160, 1, (0.0, 0.6), questions=20
    ),
    Experiment("budget", "The retrieval budget.", 32768, ("hierarchical",), BOTH, 256, 1, (0.6,), sweep="budget"),
    Experiment("chunk", "The size of chunks.", 32768, ("hierarchical",), BOTH, 256, 1, (0.6,), sweep="chunk"),
    Experiment("temperature", "Temperature.", 32768, ("hierarchical",), BOTH, 256, sweep="temperature"),
    Experiment(
        "gammas", "Lengths given by hand.", 32768, ("hierarchical",), ("prose",), 256, 1, (0.6,), sweep="gammas"
    ),
    Experiment(
        "refresh", "How often the selection is refreshed.", 32768, SPEEDS[1:2], ALL, 1000, 1, (0.6,), sweep="refresh"
    ),
    Experiment("lookup", "Where words from the book go.", 32768, LOOKUPS, ALL, 160, 2, questions=8),
    Experiment("threads", "Threads.", 32768, ("hierarchical",), ("prose",), sweep="threads"),
    Experiment("128k", "Our rows after 128,000 tokens.", 128_000, OURS, ALL, repeats=3),
    Experiment("128k-quotations", "Twenty quotations there.", 128_000, SPEEDS[2:], ("quote",), 160, questions=20),
)


def arguments() -> argparse.Namespace:
    names = [part.name for part in PARTS]
    p = argparse.ArgumentParser(prog="python -m engine.bench.measurements", description=__doc__)
    p.add_argument("books", type=Path, help="a folder of texts (.txt), enough of them held back and long enough")
    p.add_argument("--out", type=Path, default=ASSETS / "measurements", help="folder of the results")
    p.add_argument("--parts", default=",".join(names), help="of " + ",".join(names))
    p.add_argument("--budget", type=int, help="retrieval budget, where it is not swept; else the engine's choice")
    p.add_argument("--page", action="store_true", help="measure nothing: draw the page from the files")
    options = p.parse_args()
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - set(names):
        p.error(f"no such part: {', '.join(sorted(unknown))}")
    return options


def run(options: argparse.Namespace, chosen: Sequence[Experiment], out: Path) -> None:
    """Measure the ``chosen`` parts, and write their files to the folder ``out``.

    Raises:
        OptionError: too few books that were held back from training are long enough, or the window is too short for a
            context with its questions and answers.
    """
    tables, sweeps = ([part for part in chosen if bool(part.sweep) is swept] for swept in (False, True))
    options.context = [part.context for part in tables or sweeps]
    options.workloads, options.tokens = list(ALL), max(part.tokens for part in chosen)
    check_window(options)
    session = load_session(options)
    results: dict[str, list[list[Measurement]]] = {part.name: [] for part in tables}
    books: list[Path] = []
    for path, bench in itertools.islice(held_back_benches(session, options, open_text), BOOKS):
        books.append(path)
        for part in tables:
            sys.stderr.write(f"-- {part.name}\n")
            results[part.name].append(measure(bench, part))
        options.context = [part.context for part in tables or sweeps]
    check_enough(options, len(books), BOOKS)
    for part in tables:
        medians = [over_books(lines) for lines in zip(*results[part.name], strict=True)]
        write(out, part, bench, ", ".join(book.stem for book in books), medians)
    if sweeps:
        options.context = [part.context for part in sweeps]
        others = held_back_benches(session, options, open_text, books)
        swept = list(itertools.islice(others, 1))
        check_enough(options, len(swept), 1)
        for (path, bench), part in itertools.product(swept, sweeps):
            sys.stderr.write(f"-- {part.name}\n")
            write(out, part, bench, path.stem, measure(bench, part))


def measure(bench: Bench, part: Experiment) -> list[Measurement]:
    """Measure one part of the measurements. If its context is longer than the text that has been read, more of the book
    is read.
    """
    for name in ("rows", "workloads", "tokens", "repeats", "questions"):
        setattr(bench.options, name, getattr(part, name))
    bench.options.context, bench.options.temperature = [part.context], list(part.temperature)
    return list(run_sweep(bench, part.sweep) if part.sweep else bench.run())


def write(out: Path, part: Experiment, bench: Bench, book: str, results: Sequence[Measurement]) -> None:
    """Write a part's file of results, with a description of the machine and the settings."""
    session = bench.session
    how = {
        "date": datetime.date.today().isoformat(),
        "book": book,
        "target": session.target.name,
        "target_parameters": session.target.parameters,
        "draft_parameters": session.draft.parameters if session.draft else None,
        "dtype": str(session.target.dtype).removeprefix("torch."),
        "budget": budget_of(session.config),
        "tokens": part.tokens,
        "repeats": part.repeats,
    }
    record = {"machine": machine(), "how": how, "results": [asdict(result) for result in results]}
    (out / f"{part.name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def read(out: Path) -> Iterator[tuple[Experiment, dict[str, Any], list[Measurement]]]:
    """Read the files of results. Yields each part that has been measured, the content of its file, and its results."""
    known = {field.name for field in fields(Measurement)}
    for part in PARTS:
        file = out / f"{part.name}.json"
        if file.is_file():
            record = json.loads(file.read_text(encoding="utf-8"))
            results = [
                Measurement(**{key: value for key, value in line.items() if key in known}) for line in record["results"]
            ]
            yield part, record, results


def draw(out: Path) -> None:
    """Write the page with the tables, a picture of every sweep, and a picture of time against context length."""
    sections: list[str] = []
    against: list[Measurement] = []
    for part, record, results in read(out):
        sections += [f"## {part.title}", "", conditions(record), "", table(results), ""]
        if part.sweep:
            (out / f"{part.name}.svg").write_text(sweep_picture(part.sweep, results), encoding="utf-8")
            sections += [f"![{part.title}]({part.name}.svg)", ""]
        elif part.name.endswith("k"):
            against += [result for result in results if result.workload == "prose"]
    made = (
        "Made by `python -m engine.bench.measurements`; the tables hold what the files beside them hold. "
        "[NOTES.md](NOTES.md) says what they mean."
    )
    head = ["# Measurements", "", made, ""]
    if against:
        (out / "contexts.svg").write_text(picture(against), encoding="utf-8")
        head += ["![Time per token against context, prose](contexts.svg)", ""]
    end = ["## What was tried and left out.", "", LEFT_OUT, ""]
    (out / "README.md").write_text("\n".join(head + sections + end), encoding="utf-8")


def conditions(record: dict[str, Any]) -> str:
    """Describe the machine and the settings of a part in one line."""
    how, on = record["how"], record["machine"]
    sizes = how["target_parameters"] / 1e6, (how["draft_parameters"] or 0) / 1e6
    runs = "one run" if how["repeats"] == 1 else f"median of {how['repeats']} runs"
    return (
        f"{how['date']}, {on['gpu'] or on['processor']}, {on['threads']} threads, torch {on['torch']}; "
        f"{how['target']}, {sizes[0]:.1f} million parameters, draft {sizes[1]:.2f} million, {how['dtype']}; "
        f"{how['book']}; at most {how['tokens']} tokens, budget {how['budget']}, {runs}."
    )


def main() -> None:
    options = arguments()
    check_matplotlib()
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.page:
        chosen = [part for part in PARTS if part.name in options.parts]
        own = parser().parse_args(["--model", TARGET, "--draft", DRAFT, "--books", str(options.books)])
        own.budget = options.budget
        run(own, chosen, options.out)
    draw(options.out)


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    sleep_while_waiting()
    try:
        main()
    except TrifoldError as error:
        sys.exit(str(error))
