"""``bench``: hands its arguments, the default models and the document readers to the engine's own bench."""

from __future__ import annotations

import argparse

from app.settings import SAMPLE_BOOKS, Settings


def run(options: argparse.Namespace, settings: Settings) -> int:
    from app.readers import read_document
    from engine.bench import main

    return main(
        options.rest,
        model=settings.model,
        draft=settings.draft,
        book=SAMPLE_BOOKS / "the-lamplighters-of-orre.txt",
        open_book=read_document,
    )
