"""The measured part of the card: a table of the figures in evaluation.json, between two marks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
_ROWS = (
    ("natural", "right", "natural question after {n} tokens: fact and verified quotation"),
    ("natural", "fact", "… the fact alone"),
    ("natural", "quoted", "… all quotations verified"),
    ("natural", "circles", "… answers that run in a circle"),
    ("absent", "said_so", "not in the text, after {n} tokens: said so"),
    ("quoting", "exact", "phrase after {n} tokens: passage word for word"),
    ("summary", "held", "summary after {n} tokens: several passages, each once, word for word"),
    ("talk", "chat", "small talk after {n} tokens: answered as such"),
)


def table(report: dict[str, dict[str, Any]]) -> str:
    """Make the table: a row for each figure and a column for each model. A dash means not measured."""
    models = list(report)
    lines = ["| | questions | " + " | ".join(models) + " |", "|---" * (len(models) + 2) + "|"]
    keys = sorted({key for figures in report.values() for key in figures}, key=_order)
    for key in keys:
        part, _, length = key.partition(" ")
        for kind, name, words in _ROWS:
            if kind != part:
                continue
            values = [report[model].get(key) for model in models]
            count = next(one["questions"] for one in values if one)
            cells = [f"{100 * one[name]:.0f} %" if one else "–" for one in values]
            lines.append(f"| {words.format(n=f'{int(length or 0):,}')} | {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def update(path: Path, report: dict[str, dict[str, Any]]) -> None:
    """Write the table between the card's marks."""
    before, _, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    path.write_text(f"{before}{BEGIN}\n{table(report)}\n{END}{after}", encoding="utf-8")


def _order(key: str) -> tuple[int, int]:
    part, _, length = key.partition(" ")
    return [kind for kind, *_ in _ROWS].index(part), int(length or 0)
