"""Writes measured figures into the model card: the part of README.md between two marks, and a picture of the quoting
test.

Owns how figures are shown. `evaluate.py` measures the figures.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- measured -->", "<!-- /measured -->"
CELL_WIDTH, CELL_HEIGHT, LEFT, TOP = 92, 40, 96, 34
CACHE_NAMES = {"retrieval": "chosen", "recent": "sinks + newest"}
DEPTH_NAMES = ("first fifth", "second", "middle", "fourth", "last fifth")


def percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def measured(report: dict[str, Any]) -> str:
    """Return the measured figures as Markdown tables."""
    lines = [
        "| text read (tokens, about) | questions | whole passage word for word | first 30 characters right |",
        "|---|---|---|---|",
    ]
    for length, row in report["quoting"].items():
        exact, begun = percent(row["exact"]), percent(row["begun_right"])
        lines.append(f"| {int(length):,} | {row['questions']} | {exact} | {begun} |")
    absent = report["absent"]
    asked = f"Asked for words that are not in the text (2,048 tokens, {absent['questions']} questions)"
    lines += ["", f"{asked}, it said so in {percent(absent['said_so'])} of the cases.", ""]
    if "open" in report:
        asked = f"Asked for more than a passage, in words not trained on ({report['open']['questions']} questions)"
        lines += [f"{asked}, it said what it can do in {percent(report['open']['said_so'])}.", ""]
    lines += ["![Exact quotations by length and depth](quoting.svg)", ""]
    lines += ["| | tokens | loss of target | loss of draft | draft accepted, greedy | draft accepted, T = 0.6 |"]
    lines += ["|---|---|---|---|---|---|"]
    for kind in ("prose", "quotes"):
        row = report["agreement"][kind]
        figures = [row[name] for name in ("target_loss", "draft_loss", "accepted_greedy", "accepted_T0.6")]
        lines.append(f"| {kind} | {row['tokens']:,} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |")
    if "levels" in report:
        lines += _levels(report["levels"])
    return "\n".join(lines)


def _levels(levels: dict[str, Any]) -> list[str]:
    """Make a table of how often the full cache accepts tokens of small caches, with a row for every kind of text and
    temperature.
    """
    rows = levels["rows"]
    caches = list(dict.fromkeys((row["cache"], row["budget"]) for row in rows))
    names = [f"{budget:,} {CACHE_NAMES[cache]}" for cache, budget in caches]
    lines = [
        "",
        f"| after {levels['tokens']:,} tokens | T | " + " | ".join(names) + " |",
        "|---" * (2 + len(names)) + "|",
    ]
    for text, temperature in dict.fromkeys((row["text"], row["temperature"]) for row in rows):
        accepted = {
            (row["cache"], row["budget"]): row["accepted"]
            for row in rows
            if (row["text"], row["temperature"]) == (text, temperature)
        }
        lines.append(f"| {text} | {temperature:g} | " + " | ".join(f"{accepted[cache]:.2f}" for cache in caches) + " |")
    return lines


def update(card: Path, report: dict[str, Any]) -> None:
    """Replace the measured part of the card, and draw the picture into the card's folder."""
    text = card.read_text(encoding="utf-8")
    part = f"{BEGIN}\n{measured(report)}\n{END}"
    card.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: part, text, flags=re.DOTALL), encoding="utf-8")
    card.with_name("quoting.svg").write_text(picture(report["quoting"]), encoding="utf-8")


def picture(quoting: dict[str, Any]) -> str:
    """Draw the exact-match rates as squares, with a row for every length and a column for every fifth of the text."""
    parts = []
    for column, name in enumerate(DEPTH_NAMES):
        parts.append(_text(LEFT + (column + 0.5) * CELL_WIDTH, TOP - 12, name, "middle"))
    for number, (length, row) in enumerate(quoting.items()):
        top = TOP + number * CELL_HEIGHT
        parts.append(_text(LEFT - 10, top + CELL_HEIGHT / 2 + 4, f"{int(length):,}", "end"))
        for column, share in enumerate(row["exact_by_depth"]):
            left, shade = LEFT + column * CELL_WIDTH, 0.06 + 0.7 * share
            parts.append(
                f'<rect x="{left}" y="{top}" width="{CELL_WIDTH - 3}" height="{CELL_HEIGHT - 3}" rx="4" '
                f'fill="#2b6f6b" fill-opacity="{shade:.2f}"/>'
            )
            parts.append(_text(left + CELL_WIDTH / 2, top + CELL_HEIGHT / 2 + 4, percent(share), "middle"))
    width, height = LEFT + len(DEPTH_NAMES) * CELL_WIDTH + 8, TOP + len(quoting) * CELL_HEIGHT + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'font-family="sans-serif" font-size="13" fill="#888">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{words}</text>'
