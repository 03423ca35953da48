"""A model whose answers have no end: for every test in which an answer has to be stopped, waited for or left.

How soon a trained or a random model ends its answer by itself is its own affair, and no test may hang on it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from app.core.settings import DEMO_DRAFT, DEMO_MODEL


def endless(folder: Path) -> Path:
    """Take the end of a text away from a model folder: only a limit or a stop ends an answer of it.

    The end token can still be drawn, but it means nothing any more, and is not shown. Where nobody asks otherwise, a
    repetition penalty keeps the text out of a loop, which would end it too.
    """
    for file, name in (
        ("config.json", "eos_token_id"),
        ("generation_config.json", "eos_token_id"),
        ("tokenizer_config.json", "eos_token"),
    ):
        settings = json.loads((folder / file).read_text(encoding="utf-8"))
        settings[name] = None  # left out, it would be the library's usual one
        if file == "generation_config.json":
            settings["repetition_penalty"] = 1.3
        (folder / file).write_text(json.dumps(settings), encoding="utf-8")
    (folder / "abilities.json").unlink(missing_ok=True)  # the demo's card allows it few questions only
    return folder


def endless_demo(folder: Path) -> tuple[str, ...]:
    """Options that name the bundled pair with an endless target, a copy of it made in ``folder``."""
    return ("--model", str(endless(Path(shutil.copytree(DEMO_MODEL, folder / "endless")))), "--draft", str(DEMO_DRAFT))
