"""Figures of the GPU measurements: one record each, gathered in a file, printed as a table. Measures nothing."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from engine.bench.report import machine
from engine.errors import TrifoldError
from engine.standin import NOTE


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    part: str
    what: str
    value: float | str
    unit: str
    target: str = ""
    note: str = ""


def table(results: dict[str, Any]) -> str:
    """All figures as Markdown."""
    lines = []
    for run in results["runs"]:
        where = run["machine"]["gpu"] or f"{run['machine']['processor']}, no GPU"
        versions = f"torch {run['machine']['torch']}, transformers {run['machine']['transformers']}"
        lines += [f"{run['part']}: {run['date']}, {where}, {versions}; {run['model']}", ""]
        lines += ["| figure | value | unit | target | note |", "|---|---|---|---|---|"]
        for figure in run["figures"]:
            value = figure["value"]
            shown = value if isinstance(value, str) else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
            lines.append(f"| {figure['what']} | {shown} | {figure['unit']} | {figure['target']} | {figure['note']} |")
        lines.append("")
    return "\n".join(lines)


def collect(figures: Iterator[Figure], part: str) -> list[Figure]:
    """Take figures as they come; an error ends the part and is a line of its own."""
    taken = []
    try:
        for figure in figures:
            taken.append(figure)
            sys.stderr.write(f"{figure.what}: {figure.value} {figure.unit} {figure.note}\n")
    except (RuntimeError, TrifoldError, ValueError, TypeError) as error:
        taken.append(Figure(part, "ended early", f"{type(error).__name__}: {error}"[:200], ""))
    return taken


def add(
    out: Path, part: str, shape: str, figures: Sequence[Figure], weights: str = f"shape {{}}, {NOTE}"
) -> dict[str, Any]:
    """Add a part's figures to the file of results.

    Args:
        shape: of the model.
        weights: what is said of its weights, with ``{}`` in the place of the shape.
    """
    results: dict[str, Any] = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"runs": []}
    run = {
        "part": part,
        "date": datetime.date.today().isoformat(),
        "machine": machine(),
        "model": weights.format(shape),
        "figures": [asdict(figure) for figure in figures],
    }
    results["runs"] = [other for other in results["runs"] if other["part"] != part] + [run]
    out.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results
