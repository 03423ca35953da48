"""``bench``: the engine's own bench, with the bundled models and book where the person names no others."""

from __future__ import annotations

import argparse
from pathlib import Path

from app.cli.books import open_book
from app.settings import SAMPLE_BOOKS, Settings


def run(options: argparse.Namespace, settings: Settings) -> int:
    from app.ui.sample import Sample
    from engine.bench import main

    return main(
        options.rest,
        model=settings.model,
        draft=settings.draft,
        book=Sample(SAMPLE_BOOKS).file or SAMPLE_BOOKS,
        open_book=lambda path: open_book(str(Path(path))),
    )
