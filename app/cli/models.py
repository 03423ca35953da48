"""Models of the hub for the terminal's commands: found on this machine, or fetched with a line of progress."""

from __future__ import annotations

import argparse
import dataclasses

from app.core.format import size
from app.core.settings import Settings, is_hub_id
from app.launcher.console import ProgressLine, say
from app.models import fit
from app.models.hub import Download, Progress
from app.models.local import LocalModels
from app.models.switch import MODELS_FOLDER, install
from engine import Status

_FETCHING = ("ask", "read", "bench")  # the app shows its own progress, and the doctor changes nothing


def on_this_machine(options: argparse.Namespace, settings: Settings) -> Settings:
    """Settings whose models the engine can load without a network.

    Raises:
        TrifoldError: a model is not here and cannot be fetched.
    """
    if options.command not in (*_FETCHING, "doctor"):
        return settings
    if not any(is_hub_id(name) for name in (settings.model, settings.draft) if name):
        return settings
    local_models = LocalModels(settings.data / MODELS_FOLDER)
    if options.command == "doctor":
        model = local_models.find(settings.model) or settings.model
        draft = settings.draft and (local_models.find(settings.draft) or settings.draft)
        return dataclasses.replace(settings, model=model, draft=draft)
    return _install(options, settings, local_models)


def _install(options: argparse.Namespace, settings: Settings, local_models: LocalModels) -> Settings:
    free = fit.measure(settings.data, Status("loading", ""), kv=settings.kv)
    with ProgressLine(f"Looking for {settings.model}") as line:

        def show(progress: Progress) -> None:
            doing = "checking" if progress.checking else "fetching"
            line.update(f"{doing} {progress.name}, {size(progress.done)} of {size(progress.total)}")

        found = install(local_models, Download(), settings.model, settings.draft, show, free)
        line.done()
    if found.note:
        say(found.note)
    if options.command == "bench":  # it reads its own line
        options.rest = _without_models(options.rest)
    return dataclasses.replace(settings, model=found.model, draft=found.draft)


def _without_models(line: list[str]) -> list[str]:
    """A command line without the options that name models: the settings name what they have become."""
    names = ("--model", "--draft")
    kept: list[str] = []
    for at, word in enumerate(line):
        is_value = at > 0 and line[at - 1] in names
        if not is_value and word.partition("=")[0] not in names:
            kept.append(word)
    return kept
