"""Defines the settings of the program and their defaults, such as the data folder, the pair of models and the port.
Loads and saves the model that the user chose in the page.

This choice is saved for the next start. The file with the choice is readable only by this user, because it may contain
the access key of a server.

Importing this module takes milliseconds, needs no installed package and writes nothing to disk.

Environment variables:
    TRIFOLD_DATA: the data folder, instead of the platform's usual place.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.core.whole_files import PRIVATE, write_whole

if TYPE_CHECKING:
    from engine.config import EngineConfig

CHECKOUT = Path(__file__).resolve().parents[2]
DEMO_MODEL = CHECKOUT / "assets" / "demo" / "target"
DEMO_DRAFT = CHECKOUT / "assets" / "demo" / "draft"
DEMO_NAME = "Demo model"
DEMO = "demo"
"""The name with which the user selects the bundled pair in place of a model that was chosen in the page."""
STARTER, STARTER_LONG = "starter", "starter-16k"
STARTERS = {STARTER: "Starter", STARTER_LONG: "Starter, stretched"}
"""Small models from the package index (``app.models.starter``). The keys are the names that the user types. The values
are the models' titles.
"""
READER, READER_LONG = "reader", "reader-128k"
READERS = {READER: "Reader", READER_LONG: "Reader, stretched"}
"""The models for conversations (``app.models.reader``). The keys are the names that the user types. The values are the
models' titles.
"""
READER_DRAFT = "reader-draft"
"""The name that the user types for the reader's draft model."""
SHORT_NAMES = STARTERS | READERS | {READER_DRAFT: "Reader's draft"}
SAMPLE_BOOKS = CHECKOUT / "assets" / "sample"

INSTALLED = not (CHECKOUT / "requirements.txt").is_file()
"""Whether the program was installed by pip, so that pip manages its packages and the tests are missing. False in a git
checkout.
"""

COMMAND = "trifold" if INSTALLED else "python launch.py"
"""The command that starts the program."""


# In the command, ``FOLDER_OF_TRIFOLD`` stands for the folder that the program was installed from. The command does not
# name the package "trifold", because another project of the package index could have that name.
REPAIR = "pip install --force-reinstall FOLDER_OF_TRIFOLD" if INSTALLED else f"{COMMAND} --repair"
"""The command to run when a package of the program is missing or broken."""

EXIT_DONE = 0
EXIT_FAULT = 1
"""Exit status for an error of the program itself, or a failed check."""
EXIT_BAD_INPUT = 2
"""Exit status for an error that the user can correct. ``launch.py`` repeats this value, because it must also run under
an old Python, which cannot import this module.
"""
EXIT_INTERRUPTED = 130
"""Exit status after Ctrl-C."""

HOST = "127.0.0.1"
DEFAULT_PORT = 7860
HEALTH_PATH, PROGRAM_NAME = "/healthz", "trifold"
"""Path at which a running program answers with ``PROGRAM_NAME``. A second start recognises the running program by this
name.
"""

NO_DRAFT = "none"
"""The value of ``--draft`` for decoding without a draft model."""

MODELS_FOLDER = "models"
"""The folder of downloads within the data folder."""
TRIED_FOLDER = "tried"
GGUF_SUFFIX = ".gguf"
EXPANDED_FOLDER = "gguf"
"""A folder within the folder of models. It has a subfolder for each GGUF file, with the settings and the vocabulary
that were extracted from the file.
"""
_NAMED = r"[A-Za-z0-9][\w.-]{0,95}"
_HUB_GGUF = re.compile(rf"{_NAMED}/{_NAMED}/{_NAMED}\.gguf")
OLLAMA_BLOB = "sha256-"
"""The prefix of the names of Ollama's weight files."""
FILE = "model.json"
_STORE = "WindowsApps"  # a folder in the path of every program of Microsoft's Store
ROUNDED_WEIGHTS, ROUNDED_KV = ("", "8bit", "4bit"), ("", "8bit")
LOG_NAME = "trifold.log"


@dataclass(frozen=True)
class Remote:
    """A server whose model answers instead of this program's engine. ``key`` is the access key, ``context`` the size of
    the window in tokens. If ``model`` is empty, the first model that the server offers is used.
    """

    address: str
    model: str = ""
    key: str = ""
    context: int | None = None


@dataclass(frozen=True)
class ModelChoice:
    """The model that the user chose in the page: a target and a draft model under the names that the user gave, or a
    server.

    ``weights`` ("8bit", "4bit") and ``kv`` ("8bit") are formats in which the model fits into memory. If a format is "",
    the command line's options or the defaults decide.
    """

    model: str
    draft: str | None
    remote: Remote | None = None
    weights: str = ""
    kv: str = ""

    @property
    def rounding(self) -> dict[str, str]:
        """The formats of the weights and the KV, keyed by the names of the engine's options. Formats that are "" are
        left out.
        """
        return {name: value for name, value in (("weights", self.weights), ("kv", self.kv)) if value}


@dataclass(frozen=True)
class Settings:
    """The settings of one start of the program.

    Args:
        data: the folder of everything that the program stores; created on first use.
        model: folder or hub id of the target model.
        draft: folder or hub id of the draft model, or None.
        context: size of the window in tokens; None for the model's own size.
        port: where the page listens on this machine.
        options: further settings of the engine, keyed by their names in ``EngineConfig``.
        rounding: formats of the model that was chosen in the page (``ModelChoice.rounding``). ``options`` override
            these formats.
        remote: a server that answers instead of the model; None if no server was chosen.
        password: password for users on other machines. If it is empty, other machines are refused.
        chosen: whether the user chose the model, on the command line or in the page. If not, ``model`` is the bundled
            one.
    """

    data: Path
    model: str
    draft: str | None
    context: int | None = None
    port: int = DEFAULT_PORT
    options: Mapping[str, Any] = field(default_factory=dict)
    rounding: Mapping[str, str] = field(default_factory=dict)
    remote: Remote | None = None
    password: str = field(default="", repr=False)
    chosen: bool = False

    @property
    def kv(self) -> str:
        """The format of the model's KV cache: "model" (the model's own dtype) or a name from ``EngineConfig.kv``.
        Needed to compute sizes before the engine's configuration is made.
        """
        return str({**self.rounding, **self.options}.get("kv", "model"))

    @property
    def quantization(self) -> str:
        """The format of the model's weights: "stored", "8bit" or "4bit"."""
        return str({**self.rounding, **self.options}.get("weights", "stored"))

    @property
    def uploads(self) -> Path:
        return self.data / "uploads"

    @property
    def books(self) -> Path:
        return self.data / "books"

    @property
    def library(self) -> Path:
        """The database of books and chats."""
        return self.data / "library.db"

    @property
    def snapshots(self) -> Path:
        """The folder in which the engine saves the KV of books, so that a book that was read once opens again at
        once.
        """
        return self.data / "snapshots"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def instance_file(self) -> Path:
        """The file with the process id and the port of the running app. A second start of the program finds the running
        app with it.
        """
        return self.data / "instance.json"

    @property
    def lock_file(self) -> Path:
        """The file that the running app locks, so that no second app uses this data folder."""
        return self.data / "instance.lock"

    @property
    def own_files(self) -> list[Path]:
        """Everything in the data folder that no other user may read. Downloaded models are left out."""
        written = (self.uploads, self.books, self.snapshots, self.logs, self.data / "spilled", self.data / TRIED_FOLDER)
        files = (path for path in self.data.glob("*") if path.is_file()) if self.data.is_dir() else ()
        return [*written, *files]

    def engine_config(self) -> EngineConfig:
        """Make the configuration of the engine.

        Raises:
            OptionError: an unknown name in ``options``, or a value out of range.
        """
        from engine.config import EngineConfig, from_mapping

        named = {"model": self.model, "draft": self.draft, "context": self.context}
        # KV that does not fit into memory is written to the data folder, because the system's folder for temporary
        # files may itself be in RAM.
        named |= {"snapshot_folder": str(self.snapshots), "spill_folder": str(self.data / "spilled")}
        named |= {"speeds_file": str(self.data / "speeds.json"), "tried_folder": str(self.data / TRIED_FOLDER)}
        named |= {"kernels_folder": str(self.data / "kernels")}
        return from_mapping(EngineConfig, {**named, **self.rounding, **self.options})


def make_settings(
    model: str | None = None,
    draft: str | None = None,
    context: int | None = None,
    port: int = DEFAULT_PORT,
    options: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Settings:
    """Make the settings of a start: take the settings that the user gave, and fill in the other settings.

    The bundled draft model is used only with the bundled target, because other targets have other vocabularies. For
    another target, the user has to name a draft model. If the user names neither a target nor a draft model, the models
    that were last chosen in the page are used.

    Raises:
        OptionError: a model's name cannot be looked up as a path (``check_place``).
    """
    for place in (model, draft):
        check_place(place or "")
    data, remote = data_folder(environ), None
    rounding: dict[str, str] = {}
    if model is None and draft is None and (kept := load(data)) is not None:
        model, draft, remote, rounding = kept.model, kept.draft or NO_DRAFT, kept.remote, kept.rounding
    named = model is not None or draft is not None
    chosen = str(DEMO_MODEL) if model is None or model == DEMO else model
    if draft is None and is_same_folder(chosen, DEMO_MODEL):
        draft = str(DEMO_DRAFT)
    if draft is not None and draft.lower() == NO_DRAFT:
        draft = None
    return Settings(data, chosen, draft, context, port, dict(options or {}), rounding, remote, chosen=named)


def check_place(model: str) -> None:
    """Raise an error if a model's name cannot be looked up as a path on this machine. The path need not exist.

    Raises:
        OptionError: the path is too long, cannot be accessed, or contains "~" with an unknown user.
    """
    from engine.errors import OptionError

    try:
        Path(model).expanduser().exists()
    except (OSError, RuntimeError) as error:
        raise OptionError("A model cannot be looked up under this name.", "Check the path.") from error


def tried_folder_of(folder: Path) -> str:
    """The folder in which the engine records which tokenizers have passed its check. "" for a model whose folder
    ``folder`` is not in the program's own folder of models.
    """
    models = next((parent for parent in folder.absolute().parents if parent.name == MODELS_FOLDER), None)
    return str(models.parent / TRIED_FOLDER) if models else ""


def data_folder(
    environ: Mapping[str, str] = os.environ, platform: str = sys.platform, python: str = sys.base_prefix
) -> Path:
    """The folder for everything that the program stores for this person, by the platform's convention.

    ``python`` is the folder of the running Python. If that Python is from Microsoft's Store, Windows redirects its
    files in AppData to a folder that other programs do not see, and deletes them together with this Python. So the data
    folder is made in the home folder, where every Python finds it.
    """
    if environ.get("TRIFOLD_DATA"):
        return Path(environ["TRIFOLD_DATA"]).expanduser().absolute()
    home = Path.home()
    if platform == "win32":
        usual = Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "Trifold"
        apart = home / ".trifold"
        return apart if apart.is_dir() or (_STORE in python and not usual.exists()) else usual
    if platform == "darwin":
        return home / "Library" / "Application Support" / "Trifold"
    return Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "trifold"


def is_hub_id(model: str) -> bool:
    """Whether a name is a hub id (owner/name) and not a path on this machine."""
    owner, slash, name = model.partition("/")
    plain = bool(slash and owner and name) and not any(mark in name for mark in "/\\")
    return plain and not _looks_local(model) and not is_gguf(model)


def is_hub_gguf(model: str) -> bool:
    """Whether a name is a GGUF file on the hub (owner/name/FILE.gguf) and not a path on this machine."""
    return bool(_HUB_GGUF.fullmatch(model)) and ".." not in model and not _looks_local(model)


def is_any_gguf(model: str) -> bool:
    """Whether a name is a GGUF file, on this machine or on the hub."""
    return is_gguf(model) or is_hub_gguf(model)


def is_gguf(model: str) -> bool:
    """Whether a name is a GGUF file on this machine. The file is recognised by its extension or by the prefix of
    Ollama's names.
    """
    if is_hub_gguf(model):
        return False
    return model.lower().endswith(GGUF_SUFFIX) or (Path(model).name.startswith(OLLAMA_BLOB) and _looks_local(model))


def is_same_folder(model: str, folder: Path) -> bool:
    return not is_hub_id(model) and Path(model).expanduser().absolute().resolve() == folder.resolve()


def model_name(name: str, path: str) -> str:
    """The name of a model as shown to the user. Models in the program's own folders are shown by their titles."""
    if _is_demo(path):
        return DEMO_NAME
    folder = Path(path)
    if folder.parent.parent.name == EXPANDED_FOLDER:
        return folder.name
    return SHORT_NAMES.get(folder.name, name) if folder.parent.name == MODELS_FOLDER else name


@lru_cache(maxsize=8)
def _is_demo(path: str) -> bool:
    """Whether a path is the folder of the bundled target. The result is cached, because the function reads the disk and
    is called ten times a second.
    """
    return is_same_folder(path, DEMO_MODEL)


def _looks_local(model: str) -> bool:
    return model.startswith((".", "~", "/")) or Path(model).exists() or Path(model).is_absolute()


# The model that was chosen in the page -------------------------------------------------------------------------------


def load(data: Path) -> ModelChoice | None:
    """Load the model that was last chosen in the page; None if none was chosen, or if the file cannot be read."""
    try:
        kept = json.loads((data / FILE).read_text(encoding="utf-8"))
        remote = Remote(**kept["remote"]) if kept.get("remote") else None
        choice = ModelChoice(kept["model"], kept["draft"], remote, kept.get("weights", ""), kept.get("kv", ""))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return choice if _makes_sense(choice) else None


def save(data: Path, choice: ModelChoice) -> None:
    """Save the model that was chosen in the page.

    Raises:
        OSError: the file cannot be written.
    """
    data.mkdir(parents=True, exist_ok=True)
    write_whole(data / FILE, json.dumps(asdict(choice), indent=1), PRIVATE)


def _makes_sense(choice: ModelChoice) -> bool:
    def text(value: Any) -> bool:
        return isinstance(value, str) and bool(value)

    pair = text(choice.model) and (choice.draft is None or text(choice.draft))
    remote = choice.remote
    known = choice.weights in ROUNDED_WEIGHTS and choice.kv in ROUNDED_KV
    return (
        pair
        and known
        and (remote is None or (text(remote.address) and isinstance(remote.model, str) and isinstance(remote.key, str)))
    )
