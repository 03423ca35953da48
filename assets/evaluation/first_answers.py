"""Measures what a person waits for and gets at each stage of an answer, for texts of several lengths.

    python assets/evaluation/first_answers.py BOOKS --model reader.gguf [--pages 10,80,300,1000] [--answers 5]
        [--llama-cpp]

``BOOKS`` is a folder with the book of ``first_answers.json`` as a text file, or an archive of this folder. Its first
pages are taken as a document of 10, 80, 300 and 1,000 pages of ``PAGE`` characters. All questions are about the first
ten pages, so that every document answers them, and only its length differs. If a document fits into the window, its
reading begins first, and the questions interrupt it, as on the page.

Stages of a question: the passages that are shown; the first word and the end of the answer from passages; and, for
documents of ``--read`` pages, the answer from all pages. The rows are printed as a Markdown table.

With ``--llama-cpp`` the same file is asked by llama.cpp instead (its Python binding, flash attention, float16 KV): it
reads all pages for the first question, and later questions read only themselves.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from app.cli.arguments import parse  # noqa: E402  (found from the repository's root)
from app.cli.ask import loaded_engine  # noqa: E402
from app.cli.main import prepare_libraries  # noqa: E402
from app.cli.models import on_this_machine  # noqa: E402
from app.core import best_passages  # noqa: E402
from app.core.forecast import PROBED, Range, stretch  # noqa: E402
from app.core.settings import NO_DRAFT, make_settings  # noqa: E402
from app.trust.book_words import BookWords  # noqa: E402
from app.trust.quoted import fold_words  # noqa: E402
from assets.evaluation.scoring import has_fact  # noqa: E402
from engine import HANDOVER_S, Engine, Question  # noqa: E402
from engine.config import SamplingParams  # noqa: E402
from engine.document import Document, Reading  # noqa: E402
from engine.events import AnswerDone, TextDelta  # noqa: E402

ABOUT = HERE / "first_answers.json"
PAGE = 1600
"""Characters of a page. A printed novel has 1,500 to 1,800."""
TOKENS = 64
"""Maximum tokens of an answer."""
ROOM = 2 * TOKENS
"""Tokens of a window that a question and its answer need."""
BEGUN_S = 3.0
"""Seconds for which a document is read before the first question interrupts the reading."""


@dataclass
class Stage:
    """One stage of the questions about one document: seconds to the first word and to the end of each answer, and
    whether each has the fact.
    """

    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)


def main() -> None:
    options = arguments()
    prepare_libraries()
    about = json.loads(ABOUT.read_text(encoding="utf-8"))
    text = text_of(options.books, about["book"])
    asked = about["questions"][:: max(1, len(about["questions"]) // options.answers)][: options.answers]
    if options.llama_cpp:
        print_llama_cpp(options.model, [cut(text, about, pages) for pages in options.pages], asked)
        return
    print("| pages | passages | fact in them | first word | first answer | right | all pages read | answer | right |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as data:
        os.environ["TRIFOLD_DATA"] = data
        line = parse(["ask", "BOOK", "Question?", "--model", options.model, "--draft", NO_DRAFT])
        with loaded_engine(on_this_machine(line, make_settings(options.model, NO_DRAFT))) as engine:
            for pages in options.pages:
                document = cut(text, about, pages)
                print(row(engine, document, about["questions"], asked, is_read=pages in options.read), flush=True)


def arguments() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(number) for number in text.split(",") if number]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("books", type=Path, help="folder of books, or an archive of it")
    parser.add_argument("--model", required=True, help="model that answers")
    parser.add_argument("--pages", type=numbers, default=[10, 80, 300, 1000], help="lengths of the documents")
    parser.add_argument("--answers", type=int, default=5, help="number of questions that the model answers")
    parser.add_argument(
        "--read", type=numbers, default=[10], help="lengths of the documents that are read to their end"
    )
    parser.add_argument("--llama-cpp", action="store_true", help="ask llama.cpp instead; --model is a GGUF file")
    return parser.parse_args()


def text_of(books: Path, name: str) -> str:
    """The text of a book in a folder or in an archive."""
    if books.is_dir():
        return next(books.rglob(f"{name}.txt")).read_text(encoding="utf-8")
    with tarfile.open(books) as archive:
        for member in archive:
            if member.name.endswith(f"/{name}.txt") and (file := archive.extractfile(member)) is not None:
                return file.read().decode("utf-8")
    raise SystemExit(f"{books} has no book {name}.txt.")


def cut(text: str, about: dict[str, Any], pages: int) -> Document:
    """The first pages of a text as a document. A page ends with a word."""
    texts, start = [], 0
    while len(texts) < pages and start < len(text):
        end = text.rfind(" ", start, start + PAGE + 1) if start + PAGE < len(text) else len(text)
        texts.append(text[start:end])
        start = end
    return Document.from_pages(about["title"], texts)


def row(
    engine: Engine,
    document: Document,
    questions: Sequence[dict[str, Any]],
    asked: Sequence[dict[str, Any]],
    is_read: bool,
) -> str:
    """Measure one document, and return its row of the table."""
    began = time.perf_counter()
    words = BookWords(document)
    indexed, taken, shown, ten = time.perf_counter() - began, [], 0, 0
    for one in questions:
        began = time.perf_counter()
        passages = best_passages.records(words, one["question"])
        taken.append(time.perf_counter() - began)
        near = fold_words(one["near"])
        shown += any(near in fold_words(passage["text"]) for passage in passages)
        ten += near in fold_words(best_passages.excerpt(words, one["question"]).text)
    fit = engine.measure(document)
    request = engine.read(Reading(document)) if fit.fits else None
    began = time.perf_counter()
    if request is not None:
        time.sleep(BEGUN_S)
    first = Stage()
    for one in asked:
        answer(engine, words, one, first, is_first=True)
    whole, read = Stage(), f"about {stretch(Range.about(fit.reading_s, PROBED))}" if fit.reading_s else "–"
    if request is not None and not is_read:
        request.cancel()
    if request is not None and is_read:
        for _ in request:
            pass
        read = f"{time.perf_counter() - began - sum(first.whole):.0f} s"
        for one in asked:
            answer(engine, words, one, whole, is_first=False)
    return (
        " | ".join(
            (
                f"| {len(document.pages):,} ({fit.tokens:,} tokens)",
                f"{median(taken):.2f} s, index {indexed:.1f} s",
                f"{shown} of {len(questions)}, in ten {ten}",
                *cells(first),
                read,
                *cells(whole)[1:],
            )
        )
        + " |"
    )


def print_llama_cpp(model: str, documents: Sequence[Document], asked: Sequence[dict[str, Any]]) -> None:
    """Ask llama.cpp about each document that fits into the window of ``model``, and print its rows."""
    import llama_cpp

    print("| pages | first word of the first answer | of the next ones | right |\n|---|---|---|---|", flush=True)
    for document in documents:
        how = {"n_threads": os.cpu_count(), "n_threads_batch": os.cpu_count(), "flash_attn": True, "verbose": False}
        facts = llama_cpp.Llama(model, vocab_only=True, verbose=False).metadata
        window = next(int(value) for name, value in facts.items() if name.endswith(".context_length"))
        llama = llama_cpp.Llama(model, n_ctx=window, **how)
        tokens = len(llama.tokenize(document.text.encode()))
        if tokens + ROOM > window:
            print(f"| {len(document.pages):,} ({tokens:,} tokens) | does not fit into {window:,} tokens | – | – |")
            continue
        stage = Stage()
        for one in asked:
            began, parts = time.perf_counter(), []
            said = [{"role": "user", "content": f"{document.text}\n\n{one['question']}"}]
            for part in llama.create_chat_completion(said, temperature=0.0, max_tokens=TOKENS, stream=True):
                if text := part["choices"][0]["delta"].get("content"):
                    if not parts:
                        stage.first.append(time.perf_counter() - began)
                    parts.append(text)
            stage.right.append(has_fact("".join(parts), one["facts"]))
            print(f"{one['question']} {' '.join(''.join(parts).split())!r}: {stage.right[-1]}", file=sys.stderr)
        later = f"{median(stage.first[1:]):.1f} s" if len(stage.first) > 1 else "–"
        right = f"{sum(stage.right)} of {len(stage.right)}"
        print(
            f"| {len(document.pages):,} ({tokens:,} tokens) | {stage.first[0]:.1f} s | {later} | {right} |", flush=True
        )


def cells(stage: Stage) -> tuple[str, str, str]:
    if not stage.first:
        return "–", "–", "–"
    first, whole = (f"{median(times):.1f} s (to {max(times):.1f})" for times in (stage.first, stage.whole))
    return first, whole, f"{sum(stage.right)} of {len(stage.right)}"


def answer(engine: Engine, words: BookWords, one: dict[str, Any], stage: Stage, *, is_first: bool) -> None:
    """Ask a question, from passages or about all pages, and add what was measured to ``stage``."""
    began, first, text = time.perf_counter(), 0.0, ""
    excerpt = best_passages.excerpt(words, one["question"]) if is_first else None
    sampling = SamplingParams(temperature=0.0, max_tokens=TOKENS)
    question = Question(one["question"], sampling=sampling, excerpt=excerpt, wait=HANDOVER_S)
    for event in engine.ask(question):
        if isinstance(event, TextDelta) and not first:
            first = time.perf_counter() - began
        if isinstance(event, AnswerDone):
            text = event.text
    stage.first.append(first)
    stage.whole.append(time.perf_counter() - began)
    stage.right.append(has_fact(text, one["facts"]))
    print(f"{one['question']} {' '.join(text.split())!r}: {stage.right[-1]}", file=sys.stderr)


if __name__ == "__main__":
    main()
