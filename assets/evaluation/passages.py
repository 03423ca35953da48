"""Measures how often the passages that are found by words have the fact, for questions that were asked from memory.

    python assets/evaluation/passages.py BOOKS

``BOOKS`` is a folder with the books of ``remembered.json`` as text files, or an archive of this folder. The questions
were written without looking at the books, as by somebody who has read them once. A passage has the fact if it matches
all patterns in ``facts``. Prints the share of questions whose shown passages have the fact, and of those whose passages
for a first answer have it, for each half: rules may be chosen on the first and are judged once on the second.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from app.core.best_passages import best_passages, excerpt  # noqa: E402  (found from the repository's root)
from app.trust.book_words import BookWords  # noqa: E402
from assets.evaluation.first_answers import text_of  # noqa: E402
from engine.document import Document  # noqa: E402

HALVES = ("chosen", "judged")


def has_all(text: str, facts: list[str]) -> bool:
    line = " ".join(text.split())
    return all(re.search(pattern, line) for pattern in facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("books", type=Path)
    options = parser.parse_args()
    asked = json.loads((HERE / "remembered.json").read_text(encoding="utf-8"))
    counts = {half: [0, 0, 0] for half in HALVES}
    for book in dict.fromkeys(one["book"] for one in asked):
        words = BookWords(Document.from_text(book.replace("-", " ").title(), text_of(options.books, book)))
        for one in (one for one in asked if one["book"] == book):
            count, question, facts = counts[one["half"]], one["question"], one["facts"]
            count[0] += 1
            count[1] += any(has_all(passage.text, facts) for passage in best_passages(words, question))
            count[2] += any(has_all(page.text, facts) for page in excerpt(words, question).pages)
    print("| half | questions | fact in the shown passages | fact in those of a first answer |\n|---|---|---|---|")
    for half, (number, shown, read) in counts.items():
        print(f"| {half} | {number} | {shown} ({shown / number:.0%}) | {read} ({read / number:.0%}) |")


if __name__ == "__main__":
    main()
