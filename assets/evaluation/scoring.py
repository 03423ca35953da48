"""What an answer is worth, and what was shown as its evidence: judged without a model.

A natural questionis answered right when the fact stands in the answer. The evidence of a right answer is right when the
passage that is shown for the sentence with the fact is the one of the document that has it. A *says so* is false where
reading sentence and document by hand showed it (``read.json``). One that was not read is true where it stands in
the document word for word, or in an answer with the fact, and false elsewhere. A question whose answer is not there is
recognised when the answer says so, or when the app says that its names or numbers, or words of the question, are not
found; a good answer is suspected when either happens to it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from app.quoted import sentences
from assets.starter.recipe import asking
from engine import Document
from engine.evidence import Evidence, EvidenceIndex

NEAR = 300
"""Characters before and behind the words of the passage with the fact, in which a passage that has it begins."""
FEWEST_VERBATIM = 4
"""Words of a sentence that stand in a document together by no chance."""
READ, SWAPPED = (Path(__file__).with_name(name) for name in ("read.json", "swapped.json"))
WHOLE = "documents"
"""In the place of a length: the six whole documents."""
SAYS_SO, NOT_FOUND = "says so", "not found"


def figures(rows: Iterable[Mapping[str, Any]], texts: Mapping[str, tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """The figures of every model, length and instruction in a log.

    Args:
        texts: title and words of each text, by its name.
    """
    indexes = {name: EvidenceIndex(Document.from_text(title, text)) for name, (title, text) in texts.items()}
    marks: defaultdict[str, defaultdict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        name = f"{row['model']} {row['length']} {row['instruction']}".strip()
        for kind, mark in _marks(row, indexes[row["text"]], texts[row["text"]][1]):
            marks[name][kind].append(mark)
    return {name: _shares(found) for name, found in marks.items()}


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
    """Write the figures between the marks of a card: a row each, a column for every model and length."""
    columns = [(name, length, figures) for name, found in report.items() for length, figures in found.items()]
    lengths = ["six documents" if length == WHOLE else f"{int(length):,} tokens" for _, length, _ in columns]
    heads = [f"{name}, {length}" for (name, _, _), length in zip(columns, lengths, strict=True)]
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
        right = asking.has_fact(answer, row["facts"])
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
    """Whether a *says so* is false, as far as that is known.

    Args:
        right: the answer has the fact.
    """
    read = _read().get((row["text"], row["question"], sentence))
    if read is not None:
        return not read
    words = asking.plain(sentence).strip(asking.MARKS)
    return not right and not (len(words.split()) >= FEWEST_VERBATIM and words in asking.plain(text))


@cache
def _read() -> dict[tuple[str, str, str], bool]:
    found = json.loads(READ.read_text(encoding="utf-8"))
    return {(one["text"], one["question"], one["sentence"]): one["true"] for one in found}


def swapped(texts: Mapping[str, tuple[str, str]]) -> dict[str, int]:
    """How many of the pairs of ``swapped.json`` about some texts there are, and of how many of their true and of their
    false sentences a passage says so. The false one gives an action to somebody else of the same text."""
    pairs = [pair for pair in json.loads(SWAPPED.read_text(encoding="utf-8")) if pair["text"] in texts]
    indexes = {name: EvidenceIndex(Document.from_text(*texts[name])) for name in {pair["text"] for pair in pairs}}
    says = {
        kind: sum(indexes[pair["text"]].find(pair["question"], pair[kind]).level == SAYS_SO for pair in pairs)
        for kind in ("true", "false")
    }
    return {"pairs": len(pairs), **says}


def _is_shown(found: Sequence[Evidence], row: Mapping[str, Any], text: str) -> bool:
    """Whether the first passage that is shown for a sentence with the fact is the one that has it."""
    whole, facts = asking.plain(text), row["facts"]
    place = whole.index(asking.plain(row["near"]))
    around = whole[max(0, place - NEAR) : place + len(row["near"]) + NEAR]
    shown = [one.passages[0] for one in found if one.passages and asking.has_fact(one.sentence, facts)]
    return any(asking.plain(one.text) in around and asking.has_fact(one.text, facts) for one in shown)
