"""A GGUF file on the hub, named as owner/name/FILE.gguf: weights in 4 bits where a model's own take 16.

Fetched with the hub's checksum as ``hub`` fetches, then opened as any GGUF file (``gguf``). A program of its own:

    python -m app.models.hub_gguf about OWNER/NAME/FILE.gguf            whether the hub has it, its size and licence
    python -m app.models.hub_gguf get OWNER/NAME/FILE.gguf FOLDER       all of it, and its settings
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from pathlib import Path

from app.models import gguf, hub
from app.models.hub import FIRST_ANSWER_SECONDS, HubFile, HubModel, Say
from engine.errors import ModelError, ModelNotFound

logger = logging.getLogger(__name__)

_WRITTEN_BYTES = 60_000_000  # of settings and vocabulary


def parts(name: str) -> tuple[str, str]:
    """The repository and the file in it."""
    repository, _, file = name.rpartition("/")
    return repository, file


def folder_of(models: Path, name: str) -> Path:
    """Where a file and its settings belong."""
    repository, file = parts(name)
    return models.joinpath(*repository.split("/"), file.removesuffix(".gguf"))


def main(arguments: list[str]) -> int:
    """One command. The last line says how it ended; the exit status is 0 or 1."""
    hub.configure_library()
    command, name, *rest = arguments

    def work(say: Say) -> None:
        with hub.error_words(parts(name)[0]):
            if command == "about":
                model = look_up(name)
                say("about", licence=model.licence, gated=model.gated, total=model.files[0].size)
            else:
                get(name, Path(rest[0]), say)

    return hub.as_program(work)


def look_up(name: str) -> HubModel:
    """Ask the hub for a file.

    Raises:
        ModelNotFound: the repository has no such file.
        Exception: whatever the hub's library raises.
    """
    from huggingface_hub import HfApi

    repository, wanted = parts(name)
    info = HfApi().model_info(repository, files_metadata=True, timeout=FIRST_ANSWER_SECONDS)
    found = next((one for one in info.siblings or () if one.rfilename == wanted and one.lfs), None)
    if found is None or found.lfs is None:
        raise ModelNotFound(f"{repository} has no file {wanted}.", "Look at its files on the hub.")
    file = HubFile(wanted, int(found.size or 0), f"sha256:{found.lfs.sha256}")
    card = info.card_data
    licence = str((card.get("license_name") or card.get("license") or "") if card else "")
    return HubModel(repository, str(info.sha), (file,), licence, bool(info.gated))


def get(name: str, folder: Path, say: Say) -> None:
    """Download what is missing of a file, and write its settings beside it.

    Raises:
        TrifoldError: it is not to be had, damaged, of a kind that is not read, or there is no room for it.
    """
    model = look_up(name)
    (file,) = model.files
    folder.mkdir(parents=True, exist_ok=True)
    place, part = folder / file.name, hub.part_of(folder, file)
    if not (place.is_file() and place.stat().st_size == file.size):
        arrived = part.stat().st_size if part.is_file() else 0
        hub.check_disk(folder, file.name, file.size - arrived + _WRITTEN_BYTES)
        say("plan", total=file.size, done=arrived, files=1)
        hub.fetch_file(model, file, folder, partial(say, total=file.size), 0)
    os.environ.update(TQDM_DISABLE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")  # for children
    try:
        gguf.make(place, gguf.look(place), folder, say)
    except ModelError:
        raise
    except Exception as error:  # of libraries that read foreign formats; none may reach a person as it is
        logger.error("%s cannot be opened", name, exc_info=error)
        raise ModelError(f"{file.name} cannot be opened: {type(error).__name__}.", "Choose another file.") from error
    say("done", revision=model.revision, licence=model.licence)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
