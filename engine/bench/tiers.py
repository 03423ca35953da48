"""Measures the cost of the tiers on this machine, with or without a GPU. Compares the times of reading a book and of
opening it again from its snapshot. Also compares the times of verifications with all KV in memory and with all KV on
disk.

    python -m engine.bench.tiers --book BOOK.txt --context 32768 --out tiers.json

The same question is answered after every opening, and a note says whether the answer was the same. The operating system
may cache a file of spilled KV in free memory, and then reads it faster than the disk allows. ``doctor`` measures the
disk itself.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from engine.bench.report import Figure, add_figures, collect, figure_table
from engine.bench.workloads import DRAFT, SAMPLE, TARGET
from engine.config import GREEDY, KV_NOTES, EngineConfig
from engine.decode.rounds import pass_ms
from engine.document import Document, Page, Reading
from engine.errors import TrifoldError
from engine.events import AnswerDone, BookRead
from engine.prompt import Question
from engine.session import Session
from engine.threads import sleep_while_waiting

_PAGE = 2_000  # characters of a page
_VERIFIED = (1, 16)  # numbers of tokens of the verifications that are timed
_TIMED = 3  # number of timed passes of each length; the fastest counts
_ANSWER = 24  # maximum tokens of the answer to the question
# The limit of host memory, as a multiple of one layer's KV, with which the planner spills all KV of a book to disk.
# This memory has room for the two buffers of spilled layers, but not for a resident layer in addition.
_BUFFERS = 2.5
_CHAT = 4_096  # number of tokens reserved for a chat after a book, as in the planner


@dataclass(frozen=True)
class Opened:
    """Results of opening the book once and asking a question. ``answer`` are the ids of the answer's tokens, and
    ``layers`` is the number of the model's layers. ``verify_ms`` holds milliseconds of a verification, keyed by its
    number of tokens.
    """

    read: BookRead
    layers: int
    answer: tuple[int, ...]
    verify_ms: dict[int, float]


def measure(config: EngineConfig, text: str, question: str) -> Iterator[Figure]:
    """Measure all figures. ``config`` names the models and the window; the text is repeated to fill the window."""
    with tempfile.TemporaryDirectory(prefix="tiers-", ignore_cleanup_errors=True) as folder:
        saving = replace(config, snapshot_folder=folder)
        book = _filling(text, config.context or 0)
        first = _open(saving, book, question)
        tokens = first.read.tokens
        yield Figure("tiers", f"reading {tokens:,} tokens", first.read.seconds, "s")
        again = _open(saving, book, question)
        if again.read.source != "snapshot":
            raise ValueError(f"the book was not opened again: {again.read.refused or 'it was not saved'}")
        yield _opened("opening it again", first, again)
        spilled = _open(replace(saving, host_memory=_all_on_disk(first, config.context or 0)), book, question)
        if spilled.read.kv_bytes.disk != first.read.kv_bytes.total or spilled.read.source != "snapshot":
            raise ValueError(f"not all KV of the book lies on disk: {spilled.read}")
        yield _opened("opening it again, all KV to a file", first, spilled)
        for count in _VERIFIED:
            resident, disk = first.verify_ms[count], spilled.verify_ms[count]
            yield Figure("tiers", f"verifying {count} tokens, all KV in memory", resident, "ms")
            what = f"verifying {count} tokens, all KV in a file"
            yield Figure("tiers", what, disk, "ms", note=f"{disk / resident:.1f}x")


def _open(config: EngineConfig, book: Document, question: str) -> Opened:
    with closing(Session.load(config)) as session:
        *_, read = session.read(Reading(book, fit=True))
        *_, done = session.ask(Question(question, sampling=replace(GREEDY, max_tokens=_ANSWER)))
        conversation = session.conversation
        if not (isinstance(read, BookRead) and isinstance(done, AnswerDone) and conversation is not None):
            raise TypeError("a reading or an answer ended without a result")
        tokens = conversation.tokens[: session.full.length + 1]
        times = {
            count: min(pass_ms(session.hierarchy.verify, session.full, tokens, count, None) for _ in range(_TIMED))
            for count in _VERIFIED
        }
        return Opened(read, session.target.num_layers, tuple(done.token_ids), times)


def _opened(name: str, first: Opened, repetition: Opened) -> Figure:
    same = "the same answer" if repetition.answer == first.answer else "ANOTHER ANSWER"
    ratio = first.read.seconds / repetition.read.seconds
    return Figure("tiers", name, repetition.read.seconds, "s", "20x at 32K", f"{ratio:.1f}x of reading; {same}")


def _filling(text: str, window: int) -> Document:
    """Make a document that repeats the text until it has far more tokens than the window."""
    wanted = 8 * window
    whole = text * (1 + wanted // len(text))
    pages = (Page(n + 1, str(n + 1), whole[n * _PAGE : (n + 1) * _PAGE]) for n in range(wanted // _PAGE + 1))
    return Document("Book", "", tuple(pages), "text", "0" * 64)


def _all_on_disk(first: Opened, window: int) -> str:
    """Return the value of the setting ``host_memory`` (bytes) with which all KV of the book is spilled to disk."""
    read = first.read
    per_token = read.kv_bytes.total / read.tokens / first.layers
    return str(int(_BUFFERS * per_token * min(window, read.tokens + _CHAT)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure as the command line asks, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m engine.bench.tiers", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--model", default=TARGET, help="target model (the bundled model)")
    parser.add_argument("--draft", default=DRAFT, help="draft model (the bundled draft)")
    parser.add_argument("--book", type=Path, default=SAMPLE, help="file of the text (the sample book)")
    parser.add_argument(
        "--context", type=int, default=32_768, help="window in tokens; the text is repeated to fill the window"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:1")
    parser.add_argument("--kv", choices=KV_NOTES, default="model", help="format of the full KV cache")
    parser.add_argument("--out", type=Path, default=Path("tiers.json"), help="file for the results")
    given = parser.parse_args(arguments)
    config = EngineConfig(given.model, given.draft, given.context, given.device, kv=given.kv)
    text = given.book.read_text(encoding="utf-8")
    figures = collect(measure(config, text, "Who kept the north light?"), "tiers")
    results = add_figures(given.out, "tiers", Path(given.model).name, figures)
    sys.stdout.write(figure_table({"runs": results["runs"][-1:]}) + "\n")
    return 0


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    sleep_while_waiting()
    try:
        sys.exit(main())
    except TrifoldError as error:
        sys.exit(str(error))
