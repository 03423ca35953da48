"""Changes the model that answers. Read this module before the other modules of ``app.models``.

A change has four steps:

1. Download the model, unless it is on this machine.
2. Close the old engine, and load the new one. If loading fails, load the former model again and show the reason.
3. Save the choice.
4. Read the open book again.

If the new choice is a server, step 1 connects to the server instead. If the server does not answer, the current model
stays loaded.

``ModelSwitch`` owns the thread that changes the model, and the state that the page shows during a change. ``install``
downloads a target model and its draft model. It checks the small files first, so that most problems are known before
gigabytes are downloaded.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.core import settings
from app.core.settings import MODELS_FOLDER, NO_DRAFT, SHORT_NAMES, ModelChoice, Remote, Settings, is_any_gguf, is_gguf
from app.models import gguf_files
from app.models.catalogue import known
from app.models.engine_proxy import EngineProxy, Make
from app.models.fit import fit_in_words, rounding_in_words, rounding_options
from app.models.hub import Cancelled, Download, Progress
from app.models.local import LocalModels
from engine import EngineConfig, EngineLike, model_files, worker
from engine.errors import Busy, ModelError, ModelNotFound, OptionError, ResourceError, TrifoldError
from engine.model.architectures import SHARED_VOCABULARY
from engine.plan import FreeMemory, ModelShape, fit_pair, measure_free_memory, read_config, rounding, shape_of

logger = logging.getLogger(__name__)

_TOKENIZER = "tokenizer.json"

MakeEngine = Callable[[EngineConfig], EngineLike]
"""Starts an engine with this configuration. The engine loads in the background."""
Show = Callable[[Progress], None]


@dataclass(frozen=True)
class SwitchState:
    """The state of a change of model.

    ``stage`` is "looking", "downloading" or "loading"; "" if no change is running. ``choice`` is the new choice.
    ``progress`` is the progress of the download, if there is one. If the last change failed, ``cause`` is the reason
    and ``remedy`` is advice for the user. ``note`` is any other message about the last change.
    """

    stage: str = ""
    choice: ModelChoice | None = None
    progress: Progress | None = None
    cause: str = ""
    remedy: str = ""
    note: str = ""


class ModelSwitch:
    """Changes the model. Every method returns at once and may be called from any thread.

    Args:
        proxy: the proxy that holds the engine.
        settings: startup settings, whose model is loaded first.
        make_engine: starts a local engine.
        again: called after each change except the first load, so that the loaded model reads the open book.
    """

    def __init__(
        self, proxy: EngineProxy, settings: Settings, make_engine: MakeEngine, again: Callable[[], None] = lambda: None
    ) -> None:
        self.proxy = proxy
        self.again = again
        self._settings = settings
        self._make_engine = make_engine
        self._local_models = LocalModels(settings.data / MODELS_FOLDER)
        self._lock = threading.Lock()
        self._state = SwitchState()
        self._download: Download | None = None
        self._present: ModelChoice | None = None
        self._chosen = False

    @property
    def state(self) -> SwitchState:
        return self._state

    @property
    def present(self) -> ModelChoice | None:
        """The model that answers now; None until the first model is loaded."""
        return self._present or (None if self.proxy.empty else self._first)

    @property
    def chosen(self) -> bool:
        """Whether the user chose a model, in this run or an earlier one."""
        return self._settings.chosen or self._chosen

    @property
    def _first(self) -> ModelChoice:
        start = self._settings
        return ModelChoice(start.model, start.draft, start.remote, **start.rounding)

    def _rounded(self, choice: ModelChoice) -> Settings:
        """Return the startup settings with the weight and cache formats of ``choice``."""
        return replace(self._settings, rounding=choice.rounding)

    @property
    def local_models(self) -> LocalModels:
        return self._local_models

    @property
    def data(self) -> Path:
        return self._settings.data

    @property
    def start(self) -> Settings:
        """The startup settings without weight and cache formats, because these were chosen for the startup model
        only.
        """
        return replace(self._settings, rounding={})

    @property
    def device(self) -> str:
        """The device in the startup settings."""
        return str(self._settings.options.get("device", "auto"))

    @property
    def kv(self) -> str:
        """The format of the current model's KV cache."""
        return self._rounded(self.present or self._first).kv

    @property
    def quantization(self) -> str:
        """The format of the current model's weights."""
        return self._rounded(self.present or self._first).quantization

    def begin(self) -> None:
        """Load the model in the startup settings."""
        self._start(self._first, first=True)

    def use(self, model: str, draft: str | None, weights: str = "", kv: str = "") -> None:
        """Change to another target model on this machine, with or without a draft model.

        Args:
            model: name of the target model: a folder, a hub id, a GGUF file or a short name.
            draft: name of the draft model, of the same kinds; None for no draft model.
            weights: format to which the weights are rounded to save memory, "8bit" or "4bit"; "" for the format in the
                startup settings.
            kv: format to which the KV cache is rounded, "8bit"; "" for the format in the startup settings.

        Raises:
            Busy: another change is running.
            OptionError: no model is named, or the format in ``weights`` or ``kv`` is unknown.
        """
        if weights not in settings.ROUNDED_WEIGHTS or kv not in settings.ROUNDED_KV:
            raise OptionError("There is no such rounding.", "Weights: 8bit or 4bit. Cache: 8bit.")
        if not model.strip():
            raise OptionError("No model is named.", "Type a folder, or a hub id such as Qwen/Qwen3-0.6B.")
        named = (draft or "").strip()
        self._start(ModelChoice(model.strip(), None if named in ("", NO_DRAFT) else named, None, weights, kv))

    def use_remote(self, remote: Remote, confirmed: bool) -> None:
        """Change to a model on a server. ``leave_remote`` changes back to the models on this machine.

        Raises:
            Busy: another change is running.
            OptionError: the address is invalid, or the server is another machine and ``confirmed`` is false.
        """
        from app.models.openai_client import parse_address

        address = parse_address(remote.address)
        if not address.stays_here and not confirmed:
            unprotected = "" if address.encrypted else " The connection is not encrypted."
            raise OptionError(
                f"{address.host} is another machine: the book and the chat will be sent there.{unprotected}",
                "Confirm it if you want that.",
            )
        present = self._present or self._first
        self._start(replace(present, remote=replace(remote, address=address.base)))

    def leave_remote(self) -> None:
        """Change back from a server to the models on this machine. Raises ``Busy`` if another change is running."""
        present = self._present or self._first
        self._start(replace(present, remote=None))

    def cancel(self) -> None:
        """Stop the download, if one is running. The bytes that arrived are kept."""
        with self._lock:
            if self._download is not None:
                self._download.cancel()

    # The thread that changes the model ------------------------------------------------------------------------

    def _start(self, choice: ModelChoice, first: bool = False) -> None:
        with self._lock:
            if self._state.stage:
                raise Busy("Another model is being downloaded or loaded.", "Wait for it, or stop its download.")
            self._state = SwitchState("looking", choice)
            self._download = Download()
        threading.Thread(target=self._run, args=(choice, first), name="trifold-setup", daemon=True).start()

    def _run(self, choice: ModelChoice, first: bool) -> None:
        try:
            note = self._change(choice)
            self._present = choice
            unkept = "" if first else self._keep(choice)
            self._finish(note=f"{note} {unkept}".strip())
        except Cancelled:
            self._finish(note="The download was stopped. What has arrived is kept.")
            if first:
                self.proxy.fail(ResourceError("The download of the model was stopped.", "Choose a model."))
            return
        except TrifoldError as error:
            self._finish(cause=error.cause, remedy=error.remedy)
            if first:
                self.proxy.fail(error)
            return
        except Exception:  # any error must be shown on the page; the log has the traceback
            logger.exception("changing the model failed")
            surprise = TrifoldError("Something in Trifold broke while the model was changed.", "Try again.")
            self._finish(cause=surprise.cause, remedy=surprise.remedy)
            if first:
                self.proxy.fail(surprise)
            return
        if not first:
            self.again()

    def _change(self, choice: ModelChoice) -> str:
        """Make the wanted model available, and replace the engine. If the new engine cannot be loaded, load the former
        model again and raise the error. Return a note for the user; "" for none.
        """
        former = self.present
        make, note = self._maker(choice)
        self._show(stage="loading", progress=None)
        try:
            self.proxy.put(make, "The model is being loaded.")
        except Exception as error:
            if former is not None:
                self._go_back(former)
            elif isinstance(error, TrifoldError):
                self.proxy.fail(error)
            raise
        return note

    def _maker(self, choice: ModelChoice) -> tuple[Make, str]:
        if (remote := choice.remote) is not None:
            return self._reached(remote), ""
        download = self._download or Download()
        status = self.proxy.status()
        space = measure_free_memory(self.data, status, kv=self.kv, quantization=self.quantization, device=self.device)
        rounded = self._rounded(choice)
        space = replace(space, kv=rounded.kv, quantization=rounded.quantization)
        installed = install(self._local_models, download, choice.model, choice.draft, self._progress, space)
        config = self._config(choice, installed.model, installed.draft)
        return lambda: self._make_engine(config), installed.note

    def _reached(self, remote: Remote) -> Make:
        """Connect to a server, and return a function that returns the server's engine. If the server does not answer,
        an error is raised before the current model is closed.

        Raises:
            TrifoldError: the server cannot be used.
        """
        from app.models.remote import RemoteEngine

        engine = RemoteEngine(remote)
        try:
            engine.wait_ready()
        except TrifoldError:
            engine.close()
            raise
        return lambda: engine

    def _config(self, choice: ModelChoice, model: str, draft: str | None) -> EngineConfig:
        """Make the engine's configuration. The startup settings name a target model and a context window. The window
        applies only to this model.
        """
        same = choice.model == self._settings.model
        context = self._settings.context if same else None
        return replace(self._rounded(choice), model=model, draft=draft, context=context).engine_config()

    def _go_back(self, former: ModelChoice) -> None:
        """Load the former model again. If that fails too, the page shows the error."""
        self._show(stage="loading", progress=None)
        try:
            make, _ = self._maker(former)
            self.proxy.put(make, "The former model is being loaded again.")
        except TrifoldError as error:
            self.proxy.fail(error)
        else:
            self.again()

    def _progress(self, progress: Progress) -> None:
        self._show(stage="downloading", progress=progress)
        part = progress.done / progress.total if progress.total else 0.0
        is_file = is_any_gguf(progress.name)
        name = Path(progress.name).name if is_file else SHORT_NAMES.get(progress.name, progress.name)
        doing = "being made" if progress.building else f"being downloaded: {part:.0%}"
        self.proxy.tell(f"{name} is {'being opened' if is_file and progress.building else doing}.")

    def _show(self, **changes: Any) -> None:
        with self._lock:
            self._state = replace(self._state, **changes)

    def _finish(self, cause: str = "", remedy: str = "", note: str = "") -> None:
        with self._lock:
            self._state = SwitchState(choice=self._state.choice, cause=cause, remedy=remedy, note=note)
            self._download = None

    def _keep(self, chosen: ModelChoice) -> str:
        """Save the choice for the next start. Return a note for the user if that fails, otherwise ""."""
        self._chosen = True
        try:
            settings.save(self.data, chosen)
        except OSError as error:
            logger.warning("the choice of the model could not be kept: %s", error.strerror)
            return f"The choice was not saved ({error.strerror}): the next start uses the model before it."
        return ""


# Target and draft model on this machine ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Installed:
    """The models that the engine loads. ``note`` says why the requested draft model is not among them; "" if it is."""

    model: str
    draft: str | None
    note: str = ""


def install(
    local_models: LocalModels,
    download: Download,
    target: str,
    draft: str | None,
    show: Show,
    free: FreeMemory | None = None,
) -> Installed:
    """Download a target model and its draft model, unless they are on this machine already.

    Args:
        local_models: the models on this machine.
        download: runs the download.
        target: name of the target model.
        draft: name of the draft model; None for none.
        show: called with the progress of the download.
        free: free memory of the machine; None to skip the check whether the models fit.

    Raises:
        TrifoldError: a model is not available, damaged, unsupported or too large for this machine.
        Cancelled: the user stopped the download.
    """
    here = local_models.find(target) or _made(local_models, download, target, show, free)
    draft_here = (local_models.find(draft) or _made(local_models, download, draft, show, None)) if draft else None
    if here and (draft_here or not draft):
        return Installed(here, draft_here)
    folder = _settings(local_models, download, target, here)
    draft, note = _usable_draft(local_models, download, folder, draft, draft_here)
    if free is not None:
        _check_memory(folder, _shape(local_models, draft) if draft else None, target, free)
    here = here or _download(local_models, download, target, show)
    return Installed(here, (draft_here or _download(local_models, download, draft, show)) if draft else None, note)


def _made(local_models: LocalModels, download: Download, name: str, show: Show, free: FreeMemory | None) -> str | None:
    """Build the folder of a model that is named by a short name or a GGUF file, and return the folder's path. Return
    None for any other name.

    Such a model has no small files that could be checked before the build. So its memory is computed from the
    dimensions that ``_known_shape`` returns.
    """
    if name not in SHORT_NAMES and not is_any_gguf(name):
        return None
    if free is not None and (shape := _known_shape(name)) is not None:
        _check_fit(shape, None, SHORT_NAMES.get(name, Path(name).name), free)
    # While the child process builds the folder, this process imports the engine's modules.
    if free is not None and is_gguf(name):
        threading.Thread(target=worker.prepare, name="trifold-imports", daemon=True).start()
    return _download(local_models, download, name, show)


def _known_shape(name: str) -> ModelShape | None:
    """Return the dimensions of a model that is not on this machine yet: from the header of a GGUF file, or for a short
    name from the catalogue. Return None if they are unknown.
    """
    if is_gguf(name):
        return gguf_files.look(Path(name).expanduser()).shape
    model = known(name)
    return model.shape if model else None


def _settings(local_models: LocalModels, download: Download, name: str, here: str | None) -> Path:
    """Return the folder with a model's settings and tokenizer, after downloading them if needed.

    Raises:
        ModelError: the architecture is not supported.
    """
    folder = (local_models.folder(name) if here else None) or local_models.own(name)
    if here is None:
        # no progress is shown for small files
        download.get(name, folder, lambda _: None, weights=False)
    shape_of(read_config(folder), name)
    return folder


def _usable_draft(
    local_models: LocalModels, download: Download, target: Path, draft: str | None, here: str | None
) -> tuple[str | None, str]:
    """Check the draft model before it is downloaded. Return (``draft``, "") if it can be used, otherwise None and a
    note with the reason. An unusable draft model is no error, because the answers are the same without it.

    Raises:
        ModelNotFound: there is no such draft model.
    """
    if draft is None:
        return None, ""
    try:
        folder = _settings(local_models, download, draft, here)
    except ModelNotFound:
        raise
    except ModelError as error:
        return None, f"Without a draft model: {error.cause}"
    if shares_vocabulary(target, folder) is False:
        return None, f"Without a draft model: {draft} speaks another vocabulary."
    return draft, ""


def _shape(local_models: LocalModels, name: str) -> ModelShape | None:
    folder = local_models.folder(name) or local_models.own(name)
    model = known(name)
    return shape_of(read_config(folder), name) if folder.is_dir() else model.shape if model else None


def _check_memory(target: Path, draft: ModelShape | None, name: str, free: FreeMemory) -> None:
    _check_fit(shape_of(read_config(target), name), draft, name, free)


def _check_fit(target: ModelShape, draft: ModelShape | None, name: str, free: FreeMemory) -> None:
    fit = fit_pair(target, draft, free)
    if fit.verdict != "none":
        return
    way = rounding(target, draft, free)
    remedy = "Choose a smaller model, or close other programs."
    if way is not None:
        with_it, options = rounding_in_words(way), rounding_options(way)
        remedy = f"With {with_it} it would fit: the settings have a button for it, the terminal {options}."
    raise ResourceError(f"{name}: {fit_in_words(fit)}", remedy)


def _download(local_models: LocalModels, download: Download, name: str, show: Show) -> str:
    download.get(name, local_models.own(name), show)
    found = local_models.find(name)
    if found is None:
        raise ModelError(f"{name} is incomplete although its download has ended.", "Try again.")
    return found


def shares_vocabulary(target: Path, draft: Path) -> bool | None:
    """Whether two model folders share a vocabulary; None if a vocabulary cannot be read from the files.

    The engine compares the tokenizers when it loads the models. This check prevents a download of a draft that the
    engine would refuse.
    """
    theirs, ours = _tokens(target), _tokens(draft)
    if not theirs or not ours:
        return None
    both = theirs.keys() & ours.keys()
    alike = all(theirs[token] == ours[token] for token in both)
    return alike and len(both) >= SHARED_VOCABULARY * max(len(theirs), len(ours))


def _tokens(folder: Path) -> dict[str, int]:
    try:
        content = json.loads(model_files.content(folder / _TOKENIZER))
        vocabulary = content["model"]["vocab"]
        if isinstance(vocabulary, list):  # a unigram model lists (token, score); the id of a token is its index
            vocabulary = {entry[0]: number for number, entry in enumerate(vocabulary)}
        return {**vocabulary, **{entry["content"]: entry["id"] for entry in content.get("added_tokens", ())}}
    except (ModelError, ValueError, LookupError, TypeError, RecursionError):
        return {}
