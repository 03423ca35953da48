"""READ THIS FIRST. One change of model from the click to the first question that the new one answers.

    chosen -> on this machine? else download -> close the old engine, load the new one -> kept as the choice
           -> the open book is read again      (did not load: the former one comes back, with the reason)

Owns the one thread that does it, and what the page is told meanwhile. Chats and books live elsewhere and stay.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app.models import choice, room
from app.models.bring import bring
from app.models.choice import Choice, Remote
from app.models.download import Cancelled, Download, Progress
from app.models.places import Places
from app.models.slot import Slot
from app.remote import address
from app.settings import NO_DRAFT, Settings
from engine.errors import Busy, OptionError, ResourceError, TrifoldError

logger = logging.getLogger(__name__)

MODELS_FOLDER = "models"

MakeEngine = Callable[[Any], Any]
"""From the engine's configuration to an engine that is being loaded."""


@dataclass(frozen=True)
class Doing:
    """What is under way. ``stage``: "" (nothing), "looking", "downloading", "loading"; ``wanted`` is its choice."""

    stage: str = ""
    wanted: Choice | None = None
    progress: Progress | None = None
    cause: str = ""
    remedy: str = ""
    note: str = ""


class Setup:
    """Every method returns at once and may be called from any thread.

    Args:
        slot: where the engine stands.
        settings: of this start; its model is the first one.
        make_engine: makes a local engine.
        again: called when another model has been loaded: the open book has to be read by it.
    """

    def __init__(
        self, slot: Slot, settings: Settings, make_engine: MakeEngine, again: Callable[[], None] = lambda: None
    ) -> None:
        self.slot = slot
        self.again = again
        self._settings = settings
        self._make_engine = make_engine
        self._places = Places(settings.data / MODELS_FOLDER)
        self._lock = threading.Lock()
        self._doing = Doing()
        self._download: Download | None = None
        self._present: Choice | None = None

    @property
    def doing(self) -> Doing:
        return self._doing

    @property
    def present(self) -> Choice | None:
        """What answers now; None until the first model has been loaded."""
        return self._present or (None if self.slot.empty else self._first)

    @property
    def _first(self) -> Choice:
        return Choice(self._settings.model, self._settings.draft, self._settings.remote)

    @property
    def places(self) -> Places:
        return self._places

    @property
    def data(self) -> Path:
        return self._settings.data

    @property
    def kv(self) -> str:
        return self._settings.kv

    @property
    def rounding(self) -> str:
        return self._settings.rounding

    def begin(self) -> None:
        """Load what this start's settings name."""
        self._start(self._first, first=True)

    def use(self, model: str, draft: str | None) -> None:
        """Let another pair answer: hub ids or folders.

        Raises:
            Busy: another change is under way.
            OptionError: no model is named.
        """
        if not model.strip():
            raise OptionError("No model is named.", "Type a folder, or a hub id such as Qwen/Qwen3-0.6B.")
        named = (draft or "").strip()
        self._start(Choice(model.strip(), None if named in ("", NO_DRAFT) else named))

    def use_remote(self, remote: Remote, confirmed: bool) -> None:
        """Let a server answer; the local pair stays chosen for when it is left.

        Raises:
            Busy: another change is under way.
            OptionError: the address is none, or leads off this machine and nobody has agreed to that.
        """
        found = address.parse(remote.address)
        if not found.stays_here and not confirmed:
            unprotected = "" if found.encrypted else " The connection is not encrypted."
            raise OptionError(
                f"{found.host} is another machine: the book and the chat will be sent there.{unprotected}",
                "Confirm it if you want that.",
            )
        present = self._present or self._first
        self._start(replace(present, remote=replace(remote, address=found.base)))

    def leave_remote(self) -> None:
        """Back to the local pair. Raises ``Busy``."""
        present = self._present or self._first
        self._start(replace(present, remote=None))

    def cancel(self) -> None:
        """Stop a download; what has arrived is kept."""
        with self._lock:
            if self._download is not None:
                self._download.cancel()

    # The thread ----------------------------------------------------------------------------------------------

    def _start(self, wanted: Choice, first: bool = False) -> None:
        with self._lock:
            if self._doing.stage:
                raise Busy("Another model is being brought in.", "Wait for it, or stop its download.")
            self._doing = Doing("looking", wanted)
            self._download = Download()
        threading.Thread(target=self._run, args=(wanted, first), name="trifold-setup", daemon=True).start()

    def _run(self, wanted: Choice, first: bool) -> None:
        try:
            note = self._change(wanted)
            self._present = wanted
            self._finish(note=note)
        except Cancelled:
            self._finish(note="The download was stopped. What has arrived is kept.")
            if first:
                self.slot.fail(ResourceError("The download of the model was stopped.", "Choose a model."))
            return
        except TrifoldError as error:
            self._finish(cause=error.cause, remedy=error.remedy)
            if first:
                self.slot.fail(error)
            return
        except Exception:  # the page must say something whatever broke; the log keeps the trace
            logger.exception("changing the model failed")
            surprise = TrifoldError("Something in Trifold broke while the model was changed.", "Try it again.")
            self._finish(cause=surprise.cause, remedy=surprise.remedy)
            if first:
                self.slot.fail(surprise)
            return
        if not first:
            self._keep(wanted)
            self.again()

    def _change(self, wanted: Choice) -> str:
        """Bring the models and exchange the engine. Returns a note for the person."""
        former = self.present
        make, note = self._maker(wanted)
        self._show(stage="loading", progress=None)
        try:
            self.slot.put(make, "The model is being loaded.")
        except Exception as error:
            if former is not None:
                self._go_back(former)
            elif isinstance(error, TrifoldError):
                self.slot.fail(error)
            raise
        return note

    def _maker(self, wanted: Choice) -> tuple[Callable[[], Any], str]:
        if (remote := wanted.remote) is not None:
            from app.remote.engine import RemoteEngine

            return lambda: RemoteEngine(remote), ""
        download = self._download or Download()
        space = room.measure(self.data, self.slot.status(), kv=self.kv, rounding=self.rounding)
        brought = bring(self._places, download, wanted.model, wanted.draft, self._progress, space)
        config = self._config(wanted, brought.model, brought.draft)
        return lambda: self._make_engine(config), brought.note

    def _config(self, wanted: Choice, model: str, draft: str | None) -> Any:
        """The engine's settings; a window that was asked for belongs to the model that it was asked with."""
        same = wanted.model == self._settings.model
        context = self._settings.context if same else None
        return replace(self._settings, model=model, draft=draft, context=context).engine_config()

    def _go_back(self, former: Choice) -> None:
        """The former model, which is on this machine; if even that fails, the page says so."""
        self._show(stage="loading", progress=None)
        try:
            make, _ = self._maker(former)
            self.slot.put(make, "The former model is being loaded again.")
        except TrifoldError as error:
            self.slot.fail(error)
        else:
            self.again()

    def _progress(self, progress: Progress) -> None:
        self._show(stage="downloading", progress=progress)
        part = progress.done / progress.total if progress.total else 0.0
        self.slot.tell(f"{progress.name} is being downloaded: {part:.0%}.")

    def _show(self, **changes: Any) -> None:
        with self._lock:
            self._doing = replace(self._doing, **changes)

    def _finish(self, cause: str = "", remedy: str = "", note: str = "") -> None:
        with self._lock:
            self._doing = Doing(wanted=self._doing.wanted, cause=cause, remedy=remedy, note=note)
            self._download = None

    def _keep(self, chosen: Choice) -> None:
        try:
            choice.save(self.data, chosen)
        except OSError as error:  # the model answers all the same; only the next start forgets it
            logger.warning("the choice of the model could not be kept: %s", error.strerror)
