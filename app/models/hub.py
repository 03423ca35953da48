"""Downloads a model from the Hugging Face hub.

This module is a program of its own. Only this program, ``hub_gguf``, ``starter`` and ``reader`` use the network for
models. The app starts, watches and stops these programs through the class ``Download``.

    python -m app.models.hub about OWNER/NAME            settings, licence and size of a model
    python -m app.models.hub get OWNER/NAME FOLDER       its weights, settings and tokenizer
    python -m app.models.hub small OWNER/NAME FOLDER     its settings and tokenizer

Weights are downloaded in the safetensors format only. The program reports in lines of JSON on stdout. It exits when its
stdin is closed, so that it never outlives the app.

``huggingface_hub`` finds models and transfers bytes. Its ``snapshot_download`` (version 2.4) is not used for two
reasons. It deletes an unfinished file when it is stopped; then the first 15 of 16 GB would be downloaded again. And it
compares sizes, never digests. So this module writes a file into the folder ``.parts`` and resumes the download there
after an interruption. The file is moved to its place once it has the digest that the hub states (SHA-256; git's SHA-1
for small files).
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from app.core.format import size
from app.core.settings import CHECKOUT, READER_DRAFT, READERS, STARTERS, is_gguf, is_hub_gguf
from app.core.whole_files import write_whole
from app.launcher.environment import child_variables
from engine import errors
from engine.errors import EngineError, ModelError, ModelNotFound, ResourceError, TrifoldError
from engine.sandbox import wait_for_bytes

MARKER = "trifold-model.json"
"""Name of the marker file. It is written last, so a folder with a marker has all files of the model, with correct
checksums.
"""
PARTS = ".parts"

WANTED = (
    "config.json",
    "generation_config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
UNWANTED = ("consolidated*", "adapter_*")  # files that are not downloaded: a second copy of the weights, and adapters
CONVERTER = "SFconvertbot"
"""The hub's own account that converts pickled weights. Pull requests from other accounts are ignored."""

PROGRAMS = dict.fromkeys(STARTERS, "app.models.starter") | dict.fromkeys((*READERS, READER_DRAFT), "app.models.reader")
"""Modules that download the models with short names, keyed by short name."""
DISK_RESERVE = 1_000_000_000  # bytes of the disk that a download must leave free
FIRST_ANSWER_SECONDS = 6.0
REPORT_SECONDS = 0.2  # minimum seconds between two progress reports
_BLOCK = 1 << 20  # bytes written to disk at once, and so the maximum that is lost if the connection breaks
_LAST_WORDS = 400  # maximum characters quoted from a failed process's output

Say = Callable[..., None]
"""Reports progress to the parent process."""


@dataclass(frozen=True)
class Progress:
    """Progress of one model: ``done`` of ``total`` bytes have arrived.

    ``checking``: a file's checksum is being computed. ``building``: the model is being made from the downloaded files.
    """

    name: str
    done: int
    total: int
    checking: bool = False
    building: bool = False


class Cancelled(Exception):
    """Raised if the user stopped the download. The bytes that arrived are kept."""


class Download:
    """The app's side of a download. ``about`` and ``get`` each run the download program once. ``cancel`` stops the
    program, may be called in any thread, and cannot be undone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._cancelled = False

    def about(self, name: str) -> dict[str, Any]:
        """Ask the hub about a model.

        Returns:
            ``config``, ``licence``, ``gated``, and the numbers of bytes in ``weights`` and in ``total``.

        Raises:
            TrifoldError: the model is not available; the message gives the reason.
            Cancelled: the user stopped the download.
        """
        answer: dict[str, Any] = {}
        for message in self._run("about", name):
            answer.update(message)
        return answer

    def get(self, name: str, folder: Path, show: Callable[[Progress], None], weights: bool = True) -> None:
        """Download a model into a folder.

        Args:
            show: called with the progress.
            weights: whether to download the weights too.

        Raises:
            TrifoldError, Cancelled: as in ``about``.
        """
        for message in self._run("get" if weights else "small", name, str(folder)):
            kind = message["kind"]
            if kind in ("plan", "progress", "checking", "building"):
                show(Progress(name, message["done"], message["total"], kind == "checking", kind == "building"))

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            if self._process is not None:
                self._process.terminate()

    def _run(self, *arguments: str) -> Iterator[dict[str, Any]]:
        process = self._start(arguments)
        said: list[str] = []
        # read at the same time, because a full pipe would stop the program; on Windows 4 KB fill it
        listener = threading.Thread(target=_collect, args=(process.stderr, said), daemon=True)
        listener.start()
        try:
            for line in process.stdout or ():
                message = json.loads(line)
                if message["kind"] == "failed":
                    raise _error(message)
                yield message
            status = process.wait()
        finally:
            process.kill()
            listener.join()
            process.communicate()
        with self._lock:
            if self._cancelled:
                raise Cancelled
        if status != 0:
            raise EngineError(f"The download broke off: {_last_words(''.join(said)) or status}.", "Try again.")

    def _start(self, arguments: tuple[str, ...]) -> subprocess.Popen[str]:
        with self._lock:
            if self._cancelled:
                raise Cancelled
            self._process = subprocess.Popen(
                [sys.executable, "-m", _program(arguments[1]), *arguments],
                cwd=CHECKOUT,
                env=child_variables(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
            return self._process


def _collect(stream: IO[str] | None, said: list[str]) -> None:
    if stream is not None:
        said.extend(stream)


def _last_words(output: str) -> str:
    """Return the last line of a failed process's output, which states the error. The traceback before it is left out,
    because it contains paths.
    """
    return (output.strip().splitlines() or [""])[-1][:_LAST_WORDS].rstrip(".")


def _program(name: str) -> str:
    """Return the module that downloads a model of this name."""
    if is_hub_gguf(name):
        return "app.models.hub_gguf"
    return "app.models.gguf_files" if is_gguf(name) else PROGRAMS.get(name, "app.models.hub")


def _error(message: dict[str, Any]) -> TrifoldError:
    kind = getattr(errors, str(message.get("error")), None)
    known = isinstance(kind, type) and issubclass(kind, TrifoldError)
    error: TrifoldError = (kind if known else EngineError)(message["cause"], message["remedy"])  # type: ignore[misc]
    return error


# The program ----------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    """Run one command. The last line of output reports the result. Return exit status 0 or 1."""
    configure_library()
    command, name, *rest = arguments

    def work(say: Say) -> None:
        with error_words(name):
            if command == "about":
                about(name, say)
            else:
                get(name, Path(rest[0]), say, weights=command == "get")

    return as_program(work)


def as_program(work: Callable[[Say], None]) -> int:
    """Run ``work`` and report its progress on stdout. Exit when the app exits, that is, when stdin is closed. Return
    the exit status.
    """

    def say(kind: str, **what: Any) -> None:
        sys.stdout.write(json.dumps({"kind": kind, **what}) + "\n")
        sys.stdout.flush()

    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(say)
    except TrifoldError as error:
        say("failed", error=type(error).__name__, cause=error.cause, remedy=error.remedy)
        return 1
    return 0


def configure_library() -> None:
    """Set environment variables that huggingface_hub reads when it is imported."""
    os.environ.update(HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_DISABLE_PROGRESS_BARS="1", HF_HUB_VERBOSITY="error")
    # the user asked for this download, so offline mode must not prevent it
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ.pop(name, None)


def read_quietly() -> None:
    """Set environment variables that transformers reads when it is imported, also in child processes. Transformers then
    downloads nothing and shows no progress.
    """
    os.environ.update(TQDM_DISABLE="1", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")


def _end_with_parent() -> None:
    wait_for_bytes(sys.stdin.buffer)
    sys.stdin.read()
    os._exit(1)


def about(name: str, say: Say) -> None:
    """Report a model's settings, licence and sizes, without downloading its weights."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

    model = look_up(name)
    answer = get_session().get(
        hf_hub_url(name, "config.json", revision=model.revision),
        headers=build_hf_headers(),
        timeout=FIRST_ANSWER_SECONDS,
    )
    hf_raise_for_status(answer)
    weights = sum(file.size for file in model.files if file.is_weights)
    total = sum(file.size for file in model.files)
    say("about", config=answer.json(), licence=model.licence, gated=model.gated, weights=weights, total=total)


def get(name: str, folder: Path, say: Say, weights: bool = True) -> None:
    """Download the missing files of a model, beginning with the small files. ``weights``: whether to download the
    weights too.

    Raises:
        ModelError: the model has no safetensors weights or no settings, or a file arrived damaged twice.
        ResourceError: the disk is too full.
        Exception: any exception of huggingface_hub. ``error_words`` turns it into an explained error.
    """
    model = look_up(name)
    folder.mkdir(parents=True, exist_ok=True)
    wanted = [file for file in model.files if weights or not file.is_weights]
    arrived = {file.name: _arrived(folder, file) for file in wanted}
    missing = [file for file in wanted if not _is_here(folder, file)]
    total, done = sum(file.size for file in wanted), sum(arrived.values())
    check_disk(folder, name, total - done)
    say("plan", total=total, done=done, files=len(missing))
    for file in missing:
        others = sum(arrived.values()) - arrived[file.name]
        fetch_file(model, file, folder, partial(say, total=total, file=file.name), others)
        arrived[file.name] = file.size
    if weights:
        _finish(model, folder)
    say("done", revision=model.revision, licence=model.licence)


# Files on the hub -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HubFile:
    """A file on the hub. ``digest`` is "sha256:" with the SHA-256, or "blob:" with the SHA-1 of git."""

    name: str
    size: int
    digest: str

    @property
    def is_weights(self) -> bool:
        return self.name.endswith(".safetensors")


@dataclass(frozen=True)
class HubModel:
    """The hub's facts about a model. ``id``: OWNER/NAME. ``revision``: the commit. ``gated``: whether the user must
    accept the licence on the hub before the download. ``files``: the files to download. ``converted``: the pull request
    of the hub's converter that has the files; "" if the maker published the files.
    """

    id: str
    revision: str
    files: tuple[HubFile, ...]
    licence: str
    gated: bool
    converted: str = ""


def look_up(name: str) -> HubModel:
    """Ask the hub for a model's files.

    Old models often have only pickled weights, which are never downloaded. For many of them, the hub's converter has
    proposed the same weights as safetensors in a pull request that was not merged. Such a pull request is used, as in
    transformers, if it adds exactly one commit to the published revision.

    Raises:
        ModelError: there are no weights in safetensors, or no settings.
        Exception: any exception of huggingface_hub.
    """
    from huggingface_hub import HfApi

    hub = HfApi()
    info = hub.model_info(name, files_metadata=True, timeout=FIRST_ANSWER_SECONDS)
    files, converted = _files(info), ""
    if not _has_weights(files) and (proposal := _conversion(hub, name, str(info.sha))):
        info = hub.model_info(name, revision=proposal, files_metadata=True, timeout=FIRST_ANSWER_SECONDS)
        files, converted = _files(info), proposal
    if not _has_weights(files):
        raise ModelError(
            f"{name} offers no weights in safetensors.",
            "Its other formats can run code when opened and are refused; choose another copy of this model.",
        )
    if not any(file.name == "config.json" for file in files):
        raise ModelError(f"{name} has no config.json: it is not a model of transformers.", "Choose another.")
    files.sort(key=lambda file: (file.is_weights, file.name))
    return HubModel(name, str(info.sha), tuple(files), licence_of(info), bool(info.gated), converted)


def licence_of(info: Any) -> str:
    """Return the licence that a repository states; "" if it states none."""
    card: Any = info.card_data or {}
    return str(card.get("license_name") or card.get("license") or "")


def _conversion(hub: Any, name: str, published: str) -> str | None:
    """Return the pull request in which the hub's converter added safetensors to the published revision; None if there
    is none.
    """
    from huggingface_hub.errors import HfHubHTTPError

    try:
        for proposal in hub.get_repo_discussions(
            name, author=CONVERTER, discussion_type="pull_request", discussion_status="open"
        ):
            if proposal.author != CONVERTER or not proposal.is_pull_request or proposal.status != "open":
                continue
            reference = str(proposal.git_reference)
            commits = hub.list_repo_commits(name, revision=reference)
            # The conversion must start from the published revision. Otherwise the maker may have changed the weights
            # after the conversion.
            if len(commits) > 1 and commits[1].commit_id == published:
                return reference
    except HfHubHTTPError:  # the repository has discussions and pull requests turned off
        return None
    return None


def _files(info: Any) -> list[HubFile]:
    return [_file(sibling) for sibling in info.siblings or () if _wanted(sibling.rfilename)]


def _file(sibling: Any) -> HubFile:
    digest = f"sha256:{sibling.lfs.sha256}" if sibling.lfs else f"blob:{sibling.blob_id}"
    return HubFile(sibling.rfilename, int(sibling.size or 0), digest)


def _has_weights(files: list[HubFile]) -> bool:
    return any(file.is_weights for file in files)


def _wanted(name: str) -> bool:
    """Whether to download a file. Files in subfolders are skipped, because they have the same model in other
    formats.
    """
    plain = "/" not in name and "\\" not in name
    refused = any(fnmatch.fnmatchcase(name, pattern) for pattern in UNWANTED)
    return plain and not refused and any(fnmatch.fnmatchcase(name, pattern) for pattern in WANTED)


# Files on this disk ---------------------------------------------------------------------------------------------


def _is_here(folder: Path, file: HubFile) -> bool:
    """Whether a file has been downloaded completely. Comparing the size is enough, because a file gets its final name
    only after its checksum was correct.
    """
    path = folder / file.name
    return path.is_file() and path.stat().st_size == file.size


def part_of(folder: Path, file: HubFile) -> Path:
    """Return the path of a file during its download. The name contains a part of the digest, so that an interrupted
    download of a different revision is not continued.
    """
    return folder / PARTS / f"{file.name}.{file.digest.partition(':')[2][:16]}"


def _arrived(folder: Path, file: HubFile) -> int:
    """Return how many bytes of a file have been downloaded."""
    if _is_here(folder, file):
        return file.size
    part = part_of(folder, file)
    return min(part.stat().st_size, file.size) if part.is_file() else 0


def check_disk(folder: Path, name: str, needed_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if needed_bytes and free < needed_bytes + DISK_RESERVE:
        raise ResourceError(
            f"{name} needs {size(needed_bytes)} more on the disk, and {size(free)} are free at {folder}.",
            "Free some space, or set TRIFOLD_DATA to a folder on another disk.",
        )


def fetch_file(model: HubModel, file: HubFile, folder: Path, say: Say, others: int) -> None:
    """Download one file, compare its digest, and give it its final name. A damaged file is downloaded once more.

    Args:
        model: the model on the hub.
        file: the file.
        folder: the model's folder.
        say: reports progress.
        others: bytes of the model's other files that have been downloaded; they are added to the reported progress.
    """
    part = part_of(folder, file)
    part.parent.mkdir(exist_ok=True)
    for _attempt in range(2):
        if _arrived(folder, file) < file.size:
            _transfer(model, file, part, lambda here: say("progress", done=others + here))
        say("checking", done=others + file.size)
        if digest_of(part, file.digest) == file.digest:
            os.replace(part, folder / file.name)
            return
        part.unlink()
    raise ModelError(
        f"{file.name} of {model.id} arrived damaged twice: its checksum is not the one that the hub states.",
        "Try again later, or from another network.",
    )


def _transfer(model: HubModel, file: HubFile, part: Path, tell: Callable[[int], None]) -> None:
    """Download the missing bytes of a file and append them to ``part``. If the connection breaks, the download is
    resumed.
    """
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers

    constants.DOWNLOAD_CHUNK_SIZE = _BLOCK
    with part.open("ab") as out:
        http_get(
            hf_hub_url(model.id, file.name, revision=model.revision),
            out,
            resume_size=out.tell(),
            headers=build_hf_headers(),
            expected_size=file.size,
            tqdm_class=partial(_ProgressHook, tell),  # type: ignore[arg-type]
        )


class _ProgressHook:
    """Replaces huggingface_hub's progress bar. Reports the bytes written, at most every ``REPORT_SECONDS``."""

    def __init__(self, tell: Callable[[int], None], initial: int = 0, **_: Any) -> None:
        self._tell = tell
        self._written = self._initial = initial
        self._told = 0.0

    def __enter__(self) -> _ProgressHook:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, count: int) -> None:
        """Count ``count`` more bytes. The library calls this method before it writes them, so only the bytes of earlier
        calls are reported as written.
        """
        now = time.monotonic()
        if self._written > self._initial and now - self._told > REPORT_SECONDS:
            self._told = now
            self._tell(self._written)
        self._written += count


def digest_of(path: Path, like: str) -> str:
    """Compute the digest of a file, either SHA-256 or git's SHA-1, whichever ``like`` is."""
    kind = like.partition(":")[0]
    digest = hashlib.sha256() if kind == "sha256" else hashlib.sha1(f"blob {path.stat().st_size}\0".encode())
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return f"{kind}:{digest.hexdigest()}"


def _finish(model: HubModel, folder: Path) -> None:
    marker = {
        "id": model.id,
        "revision": model.revision,
        "licence": model.licence,
        "converted": model.converted,
        "files": {file.name: {"size": file.size, "digest": file.digest} for file in model.files},
    }
    write_whole(folder / MARKER, json.dumps(marker, indent=1))
    shutil.rmtree(folder / PARTS, ignore_errors=True)


# Errors in words ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def error_words(name: str) -> Iterator[None]:
    """Turn exceptions of huggingface_hub and of the disk into errors with a cause and a remedy. ``name``: name of the
    model that the errors mention.
    """
    try:
        yield
    except TrifoldError:
        raise
    except OSError as error:
        raise disk_error(error) or _hub_error(name, error) from error
    # The library raises many kinds of exceptions, and the user must see a cause and a remedy instead.
    except Exception as error:
        raise _hub_error(name, error) from error


@contextlib.contextmanager
def reading_words(subject: str, broken: Callable[[Exception], ModelError]) -> Iterator[None]:
    """Turn exceptions during the reading of a file into errors with a cause and a remedy.

    Args:
        subject: what is being loaded, such as "the reader". It is named in the error if memory runs out.
        broken: makes the error from any exception that is not about memory or the disk.
    """
    try:
        yield
    except TrifoldError:
        raise
    except MemoryError as error:
        raise ResourceError(f"There is not enough memory for {subject}.", "Close other programs.") from error
    except OSError as error:
        raise disk_error(error) or broken(error) from error
    except Exception as error:
        raise broken(error) from error


def disk_error(error: OSError) -> ResourceError | None:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ResourceError("The disk is full.", "Free some space and go on: what has arrived is kept.")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return ResourceError(
            f"{error.filename} cannot be written ({error.strerror}).", "Set TRIFOLD_DATA to another folder."
        )
    return None


def _hub_error(name: str, error: Exception) -> ModelNotFound:
    from huggingface_hub import errors as hub

    if isinstance(error, hub.GatedRepoError):
        return _gated(name)
    if isinstance(error, hub.RepositoryNotFoundError):
        return ModelNotFound(
            f"There is no model {name} on the hub, or it is private.",
            "Check the name. For a private one run `hf auth login` in a terminal first.",
        )
    if isinstance(error, hub.HFValidationError):
        return ModelNotFound(f"{name} is not the name of a model on the hub.", "Its name has the form owner/name.")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return ModelNotFound(f"The hub answered with error {status} for {name}.", "Try again later.")
    if isinstance(error, OSError | hub.OfflineModeIsEnabled) or type(error).__module__.startswith("httpx"):
        return ModelNotFound(
            "The hub cannot be reached: this machine seems to be offline.",
            "Connect to the internet and try again; what has arrived is kept. Models on this machine work offline.",
        )
    return ModelNotFound(f"{name} could not be fetched: {type(error).__name__}.", "Try again later.")


def _gated(name: str) -> ModelNotFound:
    from huggingface_hub import constants, get_token

    page = f"{constants.ENDPOINT}/{name}"
    if get_token():
        remedy = f"Open {page} with the account of your key, accept its licence, and try again once it is granted."
    else:
        remedy = (
            f"Open {page}, sign in, and accept its licence. Then run `hf auth login` in a terminal, or set HF_TOKEN "
            "to a key of your account, and try again."
        )
    return ModelNotFound(f"{name} is available only to people who have accepted its licence.", remedy)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
