"""Measures models on texts that the starter was not trained on, and writes evaluation.json and the card's figures.

    python assets/starter/evaluate.py --model starter=FOLDER --books FOLDER --docs FOLDER
        [--lengths 4096,7168] [--quoting 2048,7168]

Every given model is measured at the given lengths. Other figures of evaluation.json are kept. Answers are greedy, with
the app's prompt.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from assets.demo.recipe.corpus import Book, read_books  # noqa: E402  (found from the repository's root)
from assets.demo.recipe.questions import phrase_turn  # noqa: E402
from assets.starter.recipe import asking, card  # noqa: E402
from assets.starter.recipe.asking import Reader  # noqa: E402
from assets.starter.recipe.prompting import text_of  # noqa: E402
from engine import Document  # noqa: E402

QUESTIONS = HERE / "questions.json"
SAMPLE = HERE.parent / "sample"
CHARS_PER_TOKEN = 3.9
NUM_DEPTHS = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="append", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--books", type=Path, required=True, help="folder of *.txt books")
    parser.add_argument("--docs", type=Path, required=True, help="folder of the documents that questions.json names")
    parser.add_argument("--lengths", default="4096,7168", help="tokens of text before questions.json")
    parser.add_argument("--quoting", default="2048,7168", help="tokens of text before the phrases")
    parser.add_argument("--texts", type=int, default=3, help="held-back books for the phrases, at every length")
    parser.add_argument("--per-depth", type=int, default=2, help="phrases for each fifth of a text")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16", help="of the arithmetic")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--json", type=Path, default=HERE / "evaluation.json")
    parser.add_argument("--examples", type=Path, help="write every question and answer there, a line each")
    return parser.parse_args()


class Texts:
    """The documents of questions.json. ``cut`` shortens a document around the passages that the questions ask for."""

    def __init__(self, asked: dict[str, Any], docs: Path) -> None:
        self._asked, self._docs = asked, docs
        self._read: dict[str, str] = {}

    def title(self, name: str) -> str:
        return str(self._asked["texts"][name]["title"])

    def cut(self, name: str, num_tokens: int) -> str:
        """Cut about `num_tokens` from a document, from a paragraph's start, with all passages that the questions ask
        for.
        """
        file = self._asked["texts"][name]["file"]
        if file not in self._read:
            self._read[file] = text_of((SAMPLE if (SAMPLE / file).exists() else self._docs) / file)
        text = self._read[file]
        places = [text.index(one["near"]) for one in self._asked["natural"] if one["text"] == name]
        size = int(num_tokens * CHARS_PER_TOKEN)
        middle = (min(places) + max(places)) // 2
        start = max(0, min(middle - size // 2, len(text) - size))
        start = text.rfind("\n", 0, start) + 1
        end = text.rfind("\n", 0, start + size) if start + size < len(text) else len(text)
        if not start <= min(places) <= max(places) < end:
            raise SystemExit(f"{num_tokens} tokens are too few for the questions about {name}.")
        return text[start:end]


class Measuring:
    """Measures one model, and collects every question with its answer."""

    def __init__(self, name: str, reader: Reader, options: argparse.Namespace, asked: dict[str, Any]) -> None:
        self.name, self.options, self.asked = name, options, asked
        self.reader = reader
        self.texts = Texts(asked, options.docs)
        self.examples: list[dict[str, Any]] = []

    def questions(self, length: int) -> dict[str, Any]:
        """Measure the four kinds of question in questions.json. Each document is read once at this length.

        natural: "right" if the answer has the fact, and quotations that are all in the text, word for word. absent:
        "said_so" if the answer says that the text lacks the fact. talk: "chat" if the answer is a plain reply
        (`asking.is_talk`). summary: "held" if the answer has several different passages of the text, word for word.
        """
        hits: dict[str, dict[str, list[bool]]] = {
            "natural": {"right": [], "fact": [], "quoted": [], "circles": []},
            "absent": {"said_so": []},
            "talk": {"chat": []},
            "summary": {"held": []},
        }
        for number, name in enumerate(self.asked["texts"]):
            text = self.texts.cut(name, length)
            natural = [one for one in self.asked["natural"] if one["text"] == name]
            absent = [one["question"] for one in self.asked["absent"] if one["text"] == name]
            talk, whole = (self.asked[part][number :: len(self.asked["texts"])] for part in ("talk", "summary"))
            self.reader.read(Document.from_text(self.texts.title(name), text))
            answers = self.reader.ask([one["question"] for one in natural])
            for one, answer in zip(natural, answers, strict=True):
                fact, quoted = asking.has_fact(answer, one["facts"]), asking.verified(answer, text)
                marks = (fact and quoted, fact, quoted, asking.circles(answer))
                for kind, mark in zip(hits["natural"], marks, strict=True):
                    hits["natural"][kind].append(mark)
                self._note("natural", length, one["question"], answer, fact and quoted)
            answers = self.reader.ask([*absent, *talk])
            for question, answer in zip(absent, answers[: len(absent)], strict=True):
                hits["absent"]["said_so"].append(asking.says_absent(answer))
                self._note("absent", length, question, answer, hits["absent"]["said_so"][-1])
            for question, answer in zip(talk, answers[len(absent) :], strict=True):
                hits["talk"]["chat"].append(asking.is_talk(answer))
                self._note("talk", length, question, answer, hits["talk"]["chat"][-1])
            for question, answer in zip(whole, self.reader.ask(whole), strict=True):
                hits["summary"]["held"].append(asking.summarizes(answer, text))
                self._note("summary", length, question, answer, hits["summary"]["held"][-1])
            print(name, {kind: rate(marks) for part in hits.values() for kind, marks in part.items()}, flush=True)
        return {
            f"{part} {length}": {"questions": max(map(len, marks.values()))}
            | {kind: rate(values) for kind, values in marks.items()}
            for part, marks in hits.items()
        }

    def quoting(self, books: list[Book], length: int) -> dict[str, Any]:
        """Measure answers to phrase questions, which contain words of the text. An answer is correct if it has the
        passage from these words to the end of their sentence, word for word.
        """
        right = []
        options = self.options
        for number, book in enumerate(books[: options.texts]):
            rng = random.Random(f"{options.seed}/{length}/{number}")
            size = int(length * CHARS_PER_TOKEN)
            start = book.text.rfind("\n", 0, rng.randrange(max(1, len(book.text) - size))) + 1
            text = book.text[start : start + size].strip()
            asked = list(phrases(text, options.per_depth, rng))
            self.reader.read(Document.from_text(book.title, text))
            answers = self.reader.ask([question for question, _ in asked])
            for (question, passage), answer in zip(asked, answers, strict=True):
                right.append(asking.quotes(answer, passage))
                self._note("quoting", length, question, answer, right[-1])
        return {"questions": len(right), "exact": rate(right)}

    def _note(self, part: str, length: int, question: str, answer: str, right: bool) -> None:
        row = {"model": self.name, "part": part, "length": length, "right": right, "question": question}
        self.examples.append(row | {"answer": answer})


def phrases(text: str, per_depth: int, rng: random.Random) -> Iterator[tuple[str, str]]:
    """Yield `per_depth` questions with words of the text for every fifth of the text, with the right passages. Each
    passage occurs once in the text.
    """
    size = len(text) // NUM_DEPTHS
    for depth in range(NUM_DEPTHS):
        part, count = text[depth * size : (depth + 1) * size], 0
        while count < per_depth:
            turn = phrase_turn(part, rng)
            if turn is None or turn.span is None:
                continue
            passage = part[slice(*turn.span)]
            if text.count(passage) == 1:
                count += 1
                yield turn.question, passage


def rate(hits: list[bool]) -> float:
    return round(sum(hits) / max(1, len(hits)), 3)


def main() -> None:
    options = arguments()
    asked = json.loads(QUESTIONS.read_text(encoding="utf-8"))
    books = [book for book in read_books(options.books, held_back=True) if len(book.text) > 80_000]
    lengths, quoting = (
        [int(part) for part in words.split(",") if part] for words in (options.lengths, options.quoting)
    )
    for model in options.model:
        name, _, folder = model.partition("=")
        with Reader(Path(folder), options.dtype) as reader:
            measuring = Measuring(name, reader, options, asked)
            figures: dict[str, Any] = {}
            for length in quoting:
                figures[f"quoting {length}"] = measuring.quoting(books, length)
                print(name, length, json.dumps(figures), flush=True)
            for length in lengths:
                figures |= measuring.questions(length)
                print(name, length, json.dumps(figures), flush=True)
        report = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else {}
        report.setdefault(name, {}).update(figures)
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        if options.examples:
            with options.examples.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in measuring.examples)
    if options.json.resolve().parent == HERE:
        card.update(HERE / "README.md", report)


if __name__ == "__main__":
    main()
