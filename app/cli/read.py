"""``read``: what was found in a file, before any question is asked."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from app.cli.books import count_tokens, open_book
from app.settings import Settings
from engine.document import Document
from engine.errors import ModelError


def run(options: argparse.Namespace, settings: Settings) -> int:
    document = open_book(options.file, options.password)
    try:
        tokens, trouble = count_tokens(document, settings.model), None
    except ModelError as error:  # what is in the file can be shown all the same
        tokens, trouble = None, f"The tokens are not counted. {error}"
    if trouble:
        sys.stderr.write(trouble + "\n")
    report = report_of(document, tokens)
    text = json.dumps(report, ensure_ascii=False, indent=2) if options.json else "\n".join(lines_of(report))
    sys.stdout.write(text + "\n")
    return 0


def report_of(document: Document, tokens: int | None) -> dict[str, Any]:
    return {
        "title": document.title,
        "author": document.author,
        "kind": document.kind,
        "unit": document.unit,
        "pages": len(document.pages),
        "characters": document.characters,
        "tokens": tokens,
        "sha256": document.sha256,
        "outline": [{"title": item.title, "page": item.page, "level": item.level} for item in document.outline],
        "warnings": list(document.warnings),
    }


def lines_of(report: dict[str, Any]) -> list[str]:
    """The report as a person reads it."""
    by = f" by {report['author']}" if report["author"] else ""
    unit = report["unit"] if report["pages"] == 1 else f"{report['unit']}s"
    size = f"{report['pages']:,} {unit}, {report['characters']:,} characters"
    if report["tokens"] is not None:
        size += f", {report['tokens']:,} tokens"
    lines = [f"{report['title']}{by}", size]
    if report["outline"]:
        lines.append(f"Table of contents with {len(report['outline'])} entries.")
    return lines + [f"Note: {warning}" for warning in report["warnings"]]
