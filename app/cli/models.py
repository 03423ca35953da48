"""Models of the hub for the terminal's commands: found on this machine, or fetched with a line of progress."""

from __future__ import annotations

import argparse
import dataclasses

from app.launcher.speech import Stage, say
from app.models import room
from app.models.bring import bring
from app.models.download import Download, Progress
from app.models.places import Places
from app.models.setup import MODELS_FOLDER
from app.settings import Settings, is_hub_id
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
    places = Places(settings.data / MODELS_FOLDER)
    if options.command == "doctor":
        model = places.find(settings.model) or settings.model
        draft = settings.draft and (places.find(settings.draft) or settings.draft)
        return dataclasses.replace(settings, model=model, draft=draft)
    return _bring(options, settings, places)


def _bring(options: argparse.Namespace, settings: Settings, places: Places) -> Settings:
    free = room.measure(settings.data, Status("loading", ""), kv=settings.kv)
    with Stage(f"Looking for {settings.model}") as stage:

        def show(progress: Progress) -> None:
            doing = "checking" if progress.checking else "fetching"
            stage.update(f"{doing} {progress.name}, {progress.done / 1e9:.2f} of {progress.total / 1e9:.2f} GB")

        found = bring(places, Download(), settings.model, settings.draft, show, free)
        stage.done()
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
