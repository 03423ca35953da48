"""Brings one model from the hub into a folder: a program of its own, the only part of Trifold that uses the network.

    python -m app.models.fetch about OWNER/NAME            what it is: settings, licence, size
    python -m app.models.fetch get OWNER/NAME FOLDER       all of it
    python -m app.models.fetch small OWNER/NAME FOLDER     all but the weights

Only weights in safetensors, settings and tokenizer are taken. What has arrived in part is kept and gone on with; what
is whole is compared with the hub's checksum before it gets its name. Says what it does in lines of JSON on stdout and
ends when its stdin does, so that it never outlives the program that started it. Knows no engine and no page.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from app.models.hub_words import words_for
from app.models.listing import FIRST_ANSWER_SECONDS, File, Listing, look_up
from engine.errors import ModelError, ResourceError, TrifoldError

MARKER = "trifold-model.json"
"""Written last: a folder with it holds everything that the hub had, checked."""
PARTS = ".parts"

DISK_RESERVE = 1_000_000_000  # bytes that stay free for everything else on the disk
_REPORT_SECONDS = 0.2
_BLOCK = 1 << 20

Say = Callable[..., None]


def main(arguments: list[str]) -> int:
    """One command. The last line says how it ended; the exit status is 0 or 1."""
    prepare_hub()

    def say(kind: str, **what: Any) -> None:
        sys.stdout.write(json.dumps({"kind": kind, **what}) + "\n")
        sys.stdout.flush()

    threading.Thread(target=_end_with_parent, daemon=True).start()
    command, name, *rest = arguments
    try:
        if command == "about":
            about(name, say)
        else:
            get(name, Path(rest[0]), say, weights=command == "get")
    except TrifoldError as error:
        say("failed", error=type(error).__name__, cause=error.cause, remedy=error.remedy)
        return 1
    return 0


def prepare_hub() -> None:
    """The hub's library reads these when it is imported."""
    os.environ.update(
        HF_HUB_DISABLE_XET="1",  # plain downloads can be gone on with, byte for byte
        HF_HUB_DISABLE_TELEMETRY="1",
        HF_HUB_DISABLE_PROGRESS_BARS="1",
        HF_HUB_VERBOSITY="error",
        HF_HUB_ETAG_TIMEOUT=str(int(FIRST_ANSWER_SECONDS)),
    )
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):  # the person has asked for this download
        os.environ.pop(name, None)


def about(name: str, say: Say) -> None:
    """Say what a model is, without its weights."""
    with words_for(name):
        listing = look_up(name)
        config = json.loads(_small_text(listing, "config.json"))
    weights = sum(file.size for file in listing.files if file.is_weights)
    total = sum(file.size for file in listing.files)
    say("about", config=config, licence=listing.licence, gated=listing.gated, weights=weights, total=total)


def get(name: str, folder: Path, say: Say, weights: bool = True) -> None:
    """Bring a model into a folder, as far as it is not there.

    Raises:
        ModelNotFound: there is no such model, it is not given out to this person, or the hub cannot be reached.
        ModelError: it has no safetensors weights, or a file arrived damaged twice.
        ResourceError: the disk is too small or cannot be written.
    """
    with words_for(name):
        listing = look_up(name)
        folder.mkdir(parents=True, exist_ok=True)
        wanted = [file for file in listing.files if weights or not file.is_weights]
        missing = [file for file in wanted if not _is_here(folder, file)]
        total = sum(file.size for file in wanted)
        done = total - sum(file.size - _arrived(folder, file) for file in missing)
        _check_disk(folder, name, total - done)
        say("plan", total=total, done=done, files=len(missing))
        for file in missing:
            _bring(listing, file, folder, total, say)
        if weights:
            _finish(listing, folder)
        say("done", revision=listing.revision, licence=listing.licence)


def _is_here(folder: Path, file: File) -> bool:
    """Whether the file is there. It got its name when its checksum had been compared, so its size is enough here."""
    path = folder / file.name
    return path.is_file() and path.stat().st_size == file.size


def _part(folder: Path, file: File) -> Path:
    """Where a file grows; named after its content, so that another revision never goes on with it."""
    return folder / PARTS / f"{file.name}.{file.digest.partition(':')[2][:16]}"


def _arrived(folder: Path, file: File) -> int:
    part = _part(folder, file)
    return min(part.stat().st_size, file.size) if part.is_file() else 0


def _check_disk(folder: Path, name: str, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if need and free < need + DISK_RESERVE:
        raise ResourceError(
            f"{name} needs {need / 1e9:.1f} GB more on the disk, and {free / 1e9:.1f} GB are free at {folder}.",
            "Free some space, or set TRIFOLD_DATA to a folder on another disk.",
        )


def _bring(listing: Listing, file: File, folder: Path, total: int, say: Say) -> None:
    """Fetch one file, compare it, and give it its name. A damaged one is fetched once more from its start."""
    part = _part(folder, file)
    part.parent.mkdir(exist_ok=True)
    others = sum(path.stat().st_size for path in folder.iterdir() if path.is_file() and path.name != file.name)
    for _attempt in range(2):
        with _Counted(part, lambda here: say("progress", done=others + here, total=total, file=file.name)) as out:
            if out.tell() < file.size:
                _transfer(listing, file, out)
        say("checking", done=others + file.size, total=total, file=file.name)
        if digest_of(part, file.digest) == file.digest:
            os.replace(part, folder / file.name)
            return
        part.unlink()
    raise ModelError(
        f"{file.name} of {listing.id} arrived damaged twice: its checksum is not the one that the hub states.",
        "Try again later, or from another network.",
    )


def _transfer(listing: Listing, file: File, out: _Counted) -> None:
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    constants.DOWNLOAD_CHUNK_SIZE = _BLOCK  # what is lost when the connection breaks
    url = hf_hub_url(listing.id, file.name, revision=listing.revision)
    headers = build_hf_headers()
    found = get_hf_file_metadata(url, timeout=FIRST_ANSWER_SECONDS)
    if urlsplit(found.location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # the hub's key is nobody else's business
    http_get(
        found.location,
        out,  # type: ignore[arg-type]
        resume_size=out.tell(),
        headers=headers,
        expected_size=file.size,
    )


def digest_of(path: Path, like: str) -> str:
    """The checksum of a file, of the kind that ``like`` is of."""
    kind = like.partition(":")[0]
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"{kind}:{digest.hexdigest()}"


def _finish(listing: Listing, folder: Path) -> None:
    marker = {
        "id": listing.id,
        "revision": listing.revision,
        "licence": listing.licence,
        "converted": listing.converted,
        "files": {file.name: {"size": file.size, "digest": file.digest} for file in listing.files},
    }
    written = folder / f"{MARKER}.new"
    written.write_text(json.dumps(marker, indent=1), encoding="utf-8")
    os.replace(written, folder / MARKER)
    shutil.rmtree(folder / PARTS, ignore_errors=True)


def _small_text(listing: Listing, name: str) -> str:
    import io

    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    content = io.BytesIO()
    http_get(hf_hub_url(listing.id, name, revision=listing.revision), content, headers=build_hf_headers())
    return content.getvalue().decode("utf-8")


class _Counted:
    """A file that grows at its end and tells how long it is, a few times a second."""

    def __init__(self, path: Path, tell: Callable[[int], None]) -> None:
        self._file: IO[bytes] = path.open("ab")
        self._tell = tell
        self._told = 0.0

    def __enter__(self) -> _Counted:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, block: bytes) -> int:
        count = self._file.write(block)
        now = time.monotonic()
        if now - self._told > _REPORT_SECONDS:
            self._told = now
            self._file.flush()  # what the next start goes on from
            self._tell(self._file.tell())
        return count

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, position: int) -> int:
        return self._file.seek(position)

    def truncate(self) -> int:
        return self._file.truncate()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
