"""Downloads a GGUF file from the hub, named OWNER/NAME/FILE.gguf. The weights in such a file usually take 4 bits
instead of 16.

The name of any part of a split model stands for the whole model. The file's digest is checked as in ``hub``. Then the
file is prepared like a GGUF file that was already on this machine (``gguf_files``). This module runs as a separate
program:

    python -m app.models.hub_gguf about OWNER/NAME/FILE.gguf            size and licence of the file, if the hub has it
    python -m app.models.hub_gguf get OWNER/NAME/FILE.gguf FOLDER       the whole file, and its settings
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from app.models import gguf_files, hub
from app.models.hub import FIRST_ANSWER_SECONDS, HubFile, HubModel, Say
from engine.errors import ModelNotFound
from engine.model.gguf_header import parts_of

_WRITTEN_BYTES = 60_000_000  # estimated bytes of the settings and the vocabulary that are written after the download


def parts(name: str) -> tuple[str, str]:
    """Split a name into the repository and the name of the file in it."""
    repository, _, file = name.rpartition("/")
    return repository, file


def folder_of(models: Path, name: str) -> Path:
    """Return the folder for a file and its settings."""
    repository, file = parts(name)
    return models.joinpath(*repository.split("/"), gguf_files.title_of(Path(file)))


def main(arguments: list[str]) -> int:
    """Run one command. The last line of output reports the result. Return exit status 0 or 1."""
    hub.configure_library()
    command, name, *rest = arguments

    def work(say: Say) -> None:
        with hub.error_words(parts(name)[0]):
            if command == "about":
                model = look_up(name)
                say("about", licence=model.licence, gated=model.gated, total=sum(file.size for file in model.files))
            else:
                get(name, Path(rest[0]), say)

    return hub.as_program(work)


def look_up(name: str) -> HubModel:
    """Ask the hub about a file, or about all parts of a split model.

    Raises:
        ModelNotFound: the repository lacks the file or a part.
        Exception: any exception of huggingface_hub.
    """
    from huggingface_hub import HfApi

    repository, wanted = parts(name)
    info = HfApi().model_info(repository, files_metadata=True, timeout=FIRST_ANSWER_SECONDS)
    there = {one.rfilename: one for one in info.siblings or ()}
    files = []
    for path in parts_of(Path(wanted)):
        found = there.get(path.name)
        if found is None or found.lfs is None:
            raise ModelNotFound(f"{repository} has no file {path.name}.", "Look at its files on the hub.")
        files.append(HubFile(path.name, int(found.size or 0), f"sha256:{found.lfs.sha256}"))
    return HubModel(repository, str(info.sha), tuple(files), hub.licence_of(info), bool(info.gated))


def get(name: str, folder: Path, say: Say) -> None:
    """Download the missing bytes of a file. Then write its settings into the same folder.

    Raises:
        TrifoldError: the file is not available or damaged, its architecture is not supported, or the disk is too full.
    """
    model = look_up(name)
    folder.mkdir(parents=True, exist_ok=True)
    total = sum(file.size for file in model.files)
    missing = [file for file in model.files if not _is_here(folder, file)]
    done = total - sum(file.size for file in missing)
    if missing:
        parts_here = [part for file in missing if (part := hub.part_of(folder, file)).is_file()]
        arrived = sum(part.stat().st_size for part in parts_here)
        hub.check_disk(folder, parts(name)[1], total - done - arrived + _WRITTEN_BYTES)
        say("plan", total=total, done=done + arrived, files=len(missing))
    for file in missing:
        hub.fetch_file(model, file, folder, partial(say, total=total), done)
        done += file.size
    place = folder / model.files[0].name
    hub.read_quietly()
    with hub.reading_words(place.name, partial(gguf_files.broken, place)):
        gguf_files.make(place, gguf_files.look(place), folder, say)
    say("done", revision=model.revision, licence=model.licence)


def _is_here(folder: Path, file: HubFile) -> bool:
    place = folder / file.name
    return place.is_file() and place.stat().st_size == file.size


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
