"""``bench``: hands its arguments to the engine's own bench."""

from __future__ import annotations

import argparse

from app.settings import Settings


def run(options: argparse.Namespace, settings: Settings) -> int:
    from engine.bench import main

    return int(main(options.rest) or 0)
