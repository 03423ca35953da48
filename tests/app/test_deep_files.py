"""Brackets within brackets without end, in a file of the data folder, are as if the file were not there.

JSON's reader gives up on them with an error of its own, which ended the library's list.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from app.cli import doctor, serve
from app.core import db, race, settings, suggestions
from app.core.books import load_text
from app.core.forecast import _load as load_speeds
from app.launcher.environment import Environment
from app.models import starter
from app.models.hub import MARKER
from app.readers import recognition
from app.web import auth
from engine.events import ModelInfo

_MODEL = ModelInfo("model", "path", 1, "llama", 1024, "float32", "cpu", 64, 1, None, None)

READ: dict[str, tuple[str, Callable[[Path], object]]] = {
    "the text of a book": ("text.json", load_text),
    "the addresses of the page": ("used.json", auth._read_used),
    "the model that was chosen": (settings.FILE, lambda file: settings.load(file.parent)),
    "what was verified": ("verified.json", lambda file: race.Verified(file).of(_MODEL)),
    "the sample": ("sample.json", lambda file: suggestions.Sample(file.parent)._description),
    "what was recognised": (recognition.FILE, lambda file: recognition.load(file.parent)),
    "the program that runs": ("instance.json", serve.find_running),
    "the program that ends": ("instance.json", serve.withdraw),
    "the self-test": (doctor.FILE, lambda file: doctor.last_result(file.parent)),
    "how fast it was": ("speeds.json", load_speeds),
    "the starter": (MARKER, lambda file: starter.is_made(file.parent.parent, file.parent.name)),
    "the environment": (".venv/trifold-program.json", lambda file: Environment(file.parents[1]).is_usable()),
    "a row of the database": ("row", lambda file: db.figures_from_json(file.read_text(encoding="utf-8"))),
}


@pytest.mark.parametrize("name", READ)
def test_brackets_without_end_are_no_file(name: str, tmp_path: Path) -> None:
    file, read = READ[name]
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("[" * 100_000, encoding="utf-8")
    assert not read(tmp_path / file)
