"""Judges answers and their evidence, without a model.

The answer to a natural question is right if it has the fact. The evidence of a right answer is right if the passage
shown for the sentence with the fact is the document's passage with the fact. The app marks a sentence of an answer
*says so* if the document states it. Whether this mark is false was decided by reading sentence and document
(``read.json``). A mark that nobody checked counts as true if its sentence is in the document word for word or belongs
to a right answer, and as false otherwise. An absent fact is recognised if the answer says that the document lacks it,
or if the app states that names, numbers or words of the question are not found. A right answer counts as suspected if
either happens to it.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from app.language.tokens import tokenize
from app.language.words import numbers_in
from app.trust.citations import CitationFinder
from app.trust.evidence import Evidence, EvidenceIndex
from app.trust.quoted import sentences
from assets.starter.recipe import asking
from engine import Document

NEAR = 300
"""Maximum characters between a shown passage and the words ``near``, for the passage to count as the passage with the
fact.
"""
FEWEST_VERBATIM = 4
"""Minimum words of a sentence that are in a document word for word, because fewer words can match by chance."""
READ, SWAPPED, STRANGERS = (Path(__file__).with_name(name) for name in ("read.json", "swapped.json", "strangers.json"))
WHOLE = "documents"
"""Name of the six whole documents, in place of a length."""
TOGETHER = "together"
"""Name of several texts that were read as one collection, in place of a length."""
SAYS_SO, NOT_FOUND = "says so", "not found"


def figures(rows: Iterable[Mapping[str, Any]], texts: Mapping[str, tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """Compute the figures of every model, length and instruction in a log.

    Args:
        texts: title and words of each text, by its name.
    """
    indexes = {name: EvidenceIndex(Document.from_text(title, text)) for name, (title, text) in texts.items()}
    marks: defaultdict[str, defaultdict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        name = f"{row['model']} {row['length']} {row['instruction']}".strip()
        for kind, mark in _marks(row, indexes[row["text"]], texts[row["text"]][1]):
            marks[name][kind].append(mark)
    return {name: _shares(by_kind) for name, by_kind in marks.items()}


def has_fact(answer: str, facts: Sequence[str]) -> bool:
    """Whether an answer has one of the wordings of a fact. Numbers are compared by their value: "17" is "seventeen"."""
    if asking.has_fact(answer, facts):
        return True
    said = _in_digits(answer)
    return any(
        re.search(rf"(?<!\d){re.escape(fact)}(?!\d)", said) for fact in map(_in_digits, facts) if fact[:1].isdigit()
    )


def _in_digits(text: str) -> str:
    """Return a text in lower case, with its number words in digits."""
    text = asking.plain(text)
    for key, shown, start in reversed(list(numbers_in(list(tokenize(text)), text))):
        if shown[0].isalpha():
            text = text[:start] + key.removeprefix("#") + text[start + len(shown) :]
    return text.lower()


_ASKED = {WHOLE: "six documents", TOGETHER: "texts together"}
BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
_ROWS = {
    "fact": "a fact that is there: answered right",
    "evidence": "… of these: the passage that is shown has the fact",
    "suspected": "… of these: wrongly called not found, or refused",
    "absent said": "what is not there: the answer says so",
    "absent recognised": "… or the app does",
    "false says so": "sentences called *says so* that are false, of all such",
    "talk": "small talk: answered as such",
}


def write_table(path: Path, report: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Write the figures between the marks of a card: a row for each figure, a column for every model and length."""
    columns = [(name, length, figures) for name, lengths in report.items() for length, figures in lengths.items()]
    heads = [f"{name}, {_ASKED.get(length) or f'{int(length):,} tokens'}" for name, length, _ in columns]
    lines = [f"| | {' | '.join(heads)} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for kind, words in _ROWS.items():
        cells = [figures.get(kind) for _, _, figures in columns]
        shown = [f"{100 * cell['share']:.0f} % of {cell['of']}" if cell else "–" for cell in cells]
        lines.append(f"| {words} | " + " | ".join(shown) + " |")
    lines.append("| measured | " + " | ".join(figures["measured"] for _, _, figures in columns) + " |")
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    table = "\n".join(lines)
    path.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def _shares(found: Mapping[str, Sequence[bool]]) -> dict[str, Any]:
    return {kind: {"of": len(marks), "share": round(sum(marks) / len(marks), 3)} for kind, marks in found.items()}


def _marks(row: Mapping[str, Any], index: EvidenceIndex, text: str) -> Iterable[tuple[str, bool]]:
    answer = row["answer"]
    found = [index.find(row["question"], answer[span.start : span.end]) for span in sentences(answer)]
    says_so = [one for one in found if one.level == SAYS_SO]
    refused = asking.says_absent(answer) or (bool(found) and not any(one.claims for one in found))
    strange = index.unmentioned(row["question"], bool(says_so)) if any(one.claims for one in found) else ()
    suspected = refused or bool(strange) or any(one.level == NOT_FOUND for one in found)
    if row["kind"] == "natural":
        right = has_fact(answer, row["facts"])
        yield "fact", right
        yield from (("false says so", _is_false(one.sentence, row, right, text)) for one in says_so)
        if right:
            yield "evidence", _is_shown(found, row, text)
            yield "suspected", suspected
    elif row["kind"] == "absent":
        yield "absent said", refused
        yield "absent recognised", suspected
        yield from (("false says so", _is_false(one.sentence, row, False, text)) for one in says_so)
    else:
        yield "talk", asking.is_talk(answer)


def _is_false(sentence: str, row: Mapping[str, Any], right: bool, text: str) -> bool:
    """Whether the app wrongly marked a sentence as stated by the book (*says so*), by the rules of this module.

    Args:
        right: whether the answer has the fact.
    """
    read = _read().get((row["text"], row["question"], sentence))
    if read is not None:
        return not read
    words = asking.plain(sentence).strip(asking.MARKS)
    return not right and not (len(words.split()) >= FEWEST_VERBATIM and words in asking.plain(text))


@cache
def _read() -> dict[tuple[str, str, str], bool]:
    rows = json.loads(READ.read_text(encoding="utf-8"))
    return {(one["text"], one["question"], one["sentence"]): one["true"] for one in rows}


def swapped(texts: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """Count the pairs of ``swapped.json`` about these texts: each has a true sentence, and a false sentence that
    attributes an action to a different person of the same text. Also count the true and the false sentences with the
    evidence "says so".
    """
    pairs = [pair for pair in json.loads(SWAPPED.read_text(encoding="utf-8")) if pair["text"] in texts]
    indexes = {name: EvidenceIndex(Document.from_text(*texts[name])) for name in {pair["text"] for pair in pairs}}
    says = {
        kind: sum(indexes[pair["text"]].find(pair["question"], pair[kind]).level == SAYS_SO for pair in pairs)
        for kind in ("true", "false")
    }
    return {"pairs": len(pairs), **says}


def strangers(half: str, texts: Mapping[str, str]) -> dict[str, int]:
    """Count the pairs of ``strangers.json`` of one half: a right and a plausibly wrong sentence about a document. Count
    too how many of the right and of the wrong sentences are supported (their only citations say so or are quotations of
    the book), and how many right ones are suspected.

    Args:
        half: "chosen" for the sentences on which rules were chosen, "kept" for those on which they were judged first,
            "last" for those on which they were judged at the end.
        texts: the words of each document, by its name. Pairs about other documents do not count.
    """
    every = json.loads(STRANGERS.read_text(encoding="utf-8"))
    pairs = [pair for pair in every if pair["half"] == half and pair["text"] in texts]
    counts = {"pairs": len(pairs), "true": 0, "false": 0, "suspected": 0}
    books = {name: Document.from_text(name, texts[name]) for name in {pair["text"] for pair in pairs}}
    finders = {name: CitationFinder() for name in books}
    for pair, kind in product(pairs, ("true", "false")):
        finder = finders[pair["text"]]
        finder.prepare(books[pair["text"]]).result()
        notes = finder.begin(books[pair["text"]], pair["question"], pair[kind])
        notes.close()
        kinds = {chip["kind"] for chip in notes.record()["chips"]}
        counts[kind] += bool(kinds) and kinds <= {"says", "verbatim", "quoted"}
        counts["suspected"] += kind == "true" and not kinds.isdisjoint({"absent", "missing"})
    return counts


def _is_shown(found: Sequence[Evidence], row: Mapping[str, Any], text: str) -> bool:
    """Whether the first passage shown for a sentence with the fact is the document's passage with the fact."""
    whole, facts = asking.plain(text), row["facts"]
    place = whole.index(asking.plain(row["near"]))
    around = whole[max(0, place - NEAR) : place + len(row["near"]) + NEAR]
    shown = [one.passages[0] for one in found if one.passages and has_fact(one.sentence, facts)]
    return any(asking.plain(one.text) in around and has_fact(one.text, facts) for one in shown)
