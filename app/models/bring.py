"""A pair onto this machine: small files first, so that what cannot work is known before gigabytes are fetched.

names -> here already? -> settings and tokenizers -> do they fit together, is there room? -> weights
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from app.models import vocabulary
from app.models.catalogue import known
from app.models.download import Download, Progress
from app.models.fit import Room, fit
from app.models.places import Places
from app.models.shapes import Shape, read_config, shape_of
from engine.errors import ModelError, ModelNotFound, ResourceError

Show = Callable[[Progress], None]


@dataclass(frozen=True)
class Brought:
    """What the engine is given to load; ``note`` says why there is no draft where one was wanted."""

    model: str
    draft: str | None
    note: str = ""


def bring(
    places: Places, download: Download, target: str, draft: str | None, show: Show, room: Room | None = None
) -> Brought:
    """Make sure that a pair is on this machine.

    Args:
        room: what the machine has; None leaves the question to the engine.

    Raises:
        TrifoldError: a model is not to be had, damaged, not supported or too large for this machine.
        Cancelled: the person has stopped the download.
    """
    here = places.find(target)
    guesser = places.find(draft) if draft else None
    if here and (guesser or not draft):
        return Brought(here, guesser)
    at = _settings(places, download, target, here)
    draft, note = _usable_draft(places, download, at, draft, guesser)
    if room is not None:
        _check_room(at, _shape(places, draft) if draft else None, target, room)
    here = here or _fetch(places, download, target, show)
    return Brought(here, (guesser or _fetch(places, download, draft, show)) if draft else None, note)


def _settings(places: Places, download: Download, name: str, here: str | None) -> Path:
    """The folder with a model's settings and tokenizer, fetched if need be; checked for a kind that is supported."""
    folder = (places.folder(name) if here else None) or places.own(name)
    if here is None:
        download.get(name, folder, lambda _: None, weights=False)  # small files: the progress of weights is what counts
    shape_of(read_config(folder), name)
    return folder


def _usable_draft(
    places: Places, download: Download, target: Path, draft: str | None, here: str | None
) -> tuple[str | None, str]:
    """A draft that cannot be used is left out: the answers are the same without it."""
    if draft is None:
        return None, ""
    try:
        folder = _settings(places, download, draft, here)
    except ModelNotFound:
        raise
    except ModelError as error:
        return None, f"Without a draft model: {error.cause}"
    if vocabulary.fits(target, folder) is False:
        return None, f"Without a draft model: {draft} speaks another vocabulary."
    return draft, ""


def _shape(places: Places, name: str) -> Shape | None:
    folder = places.folder(name) or places.own(name)
    model = known(name)
    return shape_of(read_config(folder), name) if folder.is_dir() else model.shape if model else None


def _check_room(target: Path, draft: Shape | None, name: str, room: Room) -> None:
    found = fit(shape_of(read_config(target), name), draft, room)
    if found.verdict == "none":
        raise ResourceError(f"{name}: {found.sentence}", "Choose a smaller model, or close other programs.")


def _fetch(places: Places, download: Download, name: str, show: Show) -> str:
    download.get(name, places.own(name), show)
    found = places.find(name)
    if found is None:
        raise ModelError(f"{name} is not whole although its download has ended.", "Try it again.")
    return found
