"""The bench: decoding loops side by side on one book, in one process, with one model load.

Rows take turns (A B C A B C), so a machine that drifts favours none, and medians are reported. The baseline of every
ratio is a row of the same run. ``rows`` runs, ``report`` prints; this module is the command line.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.bench.report import Result, machine, table, write_json
from engine.bench.rows import ROWS, WORKLOADS, Bench
from engine.config import EngineConfig
from engine.document import Document, Page
from engine.errors import OptionError
from engine.session import Session

# Characters that are encoded per token of the longest context: enough for any tokenizer, not a whole library.
_CHARACTERS_PER_TOKEN = 16


def _numbers(kind: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda text: [kind(part) for part in text.split(",") if part]


def _names(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        names = [part for part in text.split(",") if part]
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(allowed)}")
        return names

    return parse


def parser() -> argparse.ArgumentParser:
    """The bench's command line."""
    p = argparse.ArgumentParser(prog="launch.py bench", description="Decoding loops side by side on one book.")
    p.add_argument("--model", help="target model (default: the demo model)")
    p.add_argument("--draft", help="draft model, or none")
    p.add_argument("--book", type=Path, help="book to read (default: the sample book)")
    p.add_argument("--context", type=_numbers(int), default=[2048, 8192], help="context lengths, comma-separated")
    p.add_argument("--tokens", type=int, default=128, help="tokens to decode in each run")
    p.add_argument("--temperature", type=_numbers(float), default=[0.0], help="temperatures, comma-separated")
    p.add_argument("--top-p", type=float, default=0.9, help="top-p at temperatures above 0")
    p.add_argument("--rows", type=_names(ROWS), default=list(ROWS), help="rows: " + ",".join(ROWS))
    p.add_argument("--workloads", type=_names(WORKLOADS), default=["prose"], help=",".join(WORKLOADS))
    p.add_argument("--repeats", type=int, default=3, help="runs of every row, interleaved")
    p.add_argument("--budget", type=int, default=None, help="retrieval budget in tokens")
    p.add_argument("--chunk-size", type=int, default=None)
    p.add_argument("--gamma1", type=int, default=None, help="tokens that the draft proposes per middle pass")
    p.add_argument("--gamma2", type=int, default=None, help="tokens pending per verification")
    p.add_argument("--refresh-every", type=int, default=None, help="verifications between selections")
    p.add_argument("--device", default="auto")
    p.add_argument("--dtype", default="auto")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=Path, metavar="FILE", help="write machine, model and results to FILE")
    p.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return p


def load_session(options: argparse.Namespace) -> Session:
    """The session that the options ask for."""
    if options.tokens < 2 or options.repeats < 1:
        raise OptionError("--tokens must be at least 2 and --repeats at least 1.")
    chosen = {
        "retrieval_budget": options.budget,
        "chunk_size": options.chunk_size,
        "num_draft_tokens": options.gamma1,
        "num_pending_tokens": options.gamma2,
        "refresh_every": options.refresh_every,
    }
    given = {key: value for key, value in chosen.items() if value is not None}
    draft = None if options.draft in (None, "none") else options.draft
    return Session.load(
        EngineConfig(model=options.model, draft=draft, device=options.device, dtype=options.dtype, **given)
    )


def run(options: argparse.Namespace, document: Document) -> tuple[Session, list[Result]]:
    """Load the models, read the book, run every row."""
    session = load_session(options)
    form = session.tokenizer.format_for(document.title)
    longest = max(options.context)
    clipped = Document(
        document.title, document.author, (Page(1, "1", document.text[: _CHARACTERS_PER_TOKEN * longest]),), "text", ""
    )
    ids = session.tokenizer.book(clipped, form).ids
    return session, list(Bench(session, ids, options).run())


def main(
    arguments: Sequence[str], *, model: str, draft: str | None, book: Path, open_book: Callable[[Path], Document]
) -> int:
    """Run the bench as the command line asks, and print the table.

    Args:
        model, draft, book: used where the arguments do not name others.
        open_book: reads a file into a document.
    """
    options = parser().parse_args(arguments)
    if options.model is None:
        options.model, options.draft = model, options.draft or draft
    session, results = run(options, open_book(options.book or book))
    facts = machine()
    where = facts["gpu"] or f"{facts['processor']}, {facts['threads']} threads"
    header = f"{session.target.name} with {session.draft.name if session.draft else 'no draft'}, {where}"
    levels = session.hierarchy
    choice = levels.fixed.choice
    given = f"gamma1 {choice.draft}, gamma2 {choice.pending}"
    lengths = given if levels.lengths_are_given else "lengths by the controller"
    header += (
        f", torch {facts['torch']}, {session.target.dtype}; {options.tokens} tokens, budget "
        f"{session.config.retrieval_budget}, {lengths}, median of {options.repeats}"
    )
    sys.stdout.write(f"{header}\n\n{table(results)}\n")
    if options.json:
        write_json(options.json, session, results)
    return 0
