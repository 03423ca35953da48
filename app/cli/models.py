"""Finds the models for a command of the terminal on this machine, or downloads them and shows the progress on one line.

A model that is named by its hub id is downloaded at once. Before a model with a short name is downloaded, the person is
asked.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path

from app.cli.arguments import PAIR
from app.core.format import size
from app.core.settings import (
    COMMAND,
    DEMO_DRAFT,
    DEMO_MODEL,
    MODELS_FOLDER,
    SHORT_NAMES,
    Settings,
    is_any_gguf,
    is_hub_id,
)
from app.launcher.console import ProgressLine, say
from app.models.hub import Download, Progress
from app.models.local import LocalModels
from app.models.short_names import SOURCES
from app.models.switch import install
from engine import Status
from engine.errors import ModelNotFound
from engine.plan import measure_free_memory

# commands that download missing models; the app downloads from its page instead, and ``doctor`` never downloads
_FETCHING = ("ask", "read", "bench")


def on_this_machine(options: argparse.Namespace, settings: Settings) -> Settings:
    """Replace the models in the settings by models that the engine can load without a network. Return the new settings.

    - ``ask``, ``read``, ``bench``: missing models are downloaded first.
    - ``app``: if the model from the saved settings is missing, the built-in demo replaces it.
    - ``doctor``: a missing model keeps its name in the settings.

    Raises:
        TrifoldError: a model is missing and cannot be fetched.
    """
    local_models = LocalModels(settings.data / MODELS_FOLDER)
    if options.command == "app" and settings.model in SHORT_NAMES:
        if options.model is not None:
            ask_first(local_models, settings.model, options.yes)
        elif not local_models.is_at_hand(settings.model):
            gone = f"The {_called(settings.model).lower()} is not on this machine any more."
            say(f"{gone} The built-in demo answers; the settings have the others.")
            return dataclasses.replace(settings, model=str(DEMO_MODEL), draft=str(DEMO_DRAFT))
    if options.command not in (*_FETCHING, "doctor"):
        return settings
    if options.command == "read":  # ``read`` only counts tokens, with the target's tokenizer, so it needs no draft
        settings = dataclasses.replace(settings, draft=None)
    if not any(
        is_hub_id(name) or is_any_gguf(name) or name in SHORT_NAMES for name in (settings.model, settings.draft) if name
    ):
        return settings
    if options.command == "doctor":
        model = local_models.find(settings.model) or settings.model
        draft = settings.draft and (local_models.find(settings.draft) or settings.draft)
        return dataclasses.replace(settings, model=model, draft=draft)
    for name in (settings.model, settings.draft):
        if name in SHORT_NAMES:
            ask_first(local_models, name, any(vars(options).get(option) for option in ("yes", "pair")))
    return _install(options, settings, local_models)


def ask_first(local_models: LocalModels, name: str, yes: bool) -> None:
    """Ask whether a missing model with a short name may be downloaded. ``yes`` answers the question in advance.

    Raises:
        ModelNotFound: the model is missing, and the person has not agreed to the download.
    """
    if local_models.is_at_hand(name):
        return
    source, called = SOURCES[name], _called(name).lower()
    question = f"The {called} is not on this machine. It comes once, {source.download_words(name)}."
    remedy = f"Agree with --yes, or choose another model, such as --model demo: {COMMAND} --help"
    if yes:
        say(f"{question} Fetching it.")
        return
    if not sys.stdin.isatty():
        raise ModelNotFound(question, remedy)
    sys.stderr.write(f"{question} {source.verdict(name)}\nFetch it now? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise ModelNotFound(f"The {called} was not fetched.", remedy)


def _install(options: argparse.Namespace, settings: Settings, local_models: LocalModels) -> Settings:
    device = str(settings.options.get("device", "auto"))
    free = measure_free_memory(settings.data, Status("loading", ""), kv=settings.kv, device=device)
    with ProgressLine(f"Looking for {_called(settings.model)}") as line:

        def show(progress: Progress) -> None:
            if progress.building and is_any_gguf(progress.name):
                line.update(f"opening {_called(progress.name)}")
                return
            doing = "making" if progress.building else "checking" if progress.checking else "fetching"
            line.update(f"{doing} {_called(progress.name)}, {size(progress.done)} of {size(progress.total)}")

        installed = install(local_models, Download(), settings.model, settings.draft, show, free)
        line.done()
    if installed.note:
        say(installed.note)
    # the bench parses ``rest`` again, and ``--model`` there would override the model that was found
    if options.command == "bench":
        options.rest = _without_models(options.rest)
    return dataclasses.replace(settings, model=installed.model, draft=installed.draft)


def _called(name: str) -> str:
    return Path(name).name if is_any_gguf(name) else SHORT_NAMES.get(name, name)


def _without_models(line: list[str]) -> list[str]:
    """The command line without the options that choose models, because the settings already have the models."""
    names = ("--model", "--draft")
    line = [word for word in line if word != PAIR]
    kept: list[str] = []
    for at, word in enumerate(line):
        is_value = at > 0 and line[at - 1] in names
        if not is_value and word.partition("=")[0] not in names:
            kept.append(word)
    return kept
