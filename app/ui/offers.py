"""The models that a person can choose, as plain data: what each is, what it needs, whether it fits here. Pure."""

from __future__ import annotations

from typing import Any

from app.models.catalogue import PAIRS, Model, Pair
from app.models.choice import Choice
from app.models.fit import Fit, Room, fit
from app.models.places import Places
from app.models.setup import Doing
from app.models.shapes import Shape, read_config, shape_of
from app.remote import address
from app.settings import is_hub_id
from app.ui.presentation import View
from engine.errors import ModelError, OptionError


def offers(places: Places, room: Room, present: Choice | None) -> list[View]:
    """One entry per pair of the catalogue, and one for what was chosen beside it."""
    entries = [_offer(pair, places, room, present) for pair in PAIRS]
    if present is not None and present.remote is None and not any(entry["present"] for entry in entries):
        model = Model(present.model, None, "")
        draft = Model(present.draft, None, "") if present.draft else None
        entries.insert(0, _offer(Pair("own", _short(present.model), model, draft, ""), places, room, present))
    return entries


def sized(target: Shape, draft: Shape | None, licence: str, gated: bool, room: Room) -> View:
    """The numbers of a pair on this machine."""
    found: Fit = fit(target, draft, room)
    return {
        "verdict": found.verdict,
        "sentence": found.sentence,
        "window": f"{target.window:,} tokens",
        "size": _gb(target.weights_bytes + (draft.weights_bytes if draft else 0)),
        "kv": f"{found.kv_per_1k / 1e6:,.0f} MB per 1,000 tokens",
        "licence": licence,
        "gated": gated,
    }


def setup_view(doing: Doing, present: Choice | None) -> View:
    """What is under way, for the live stream."""
    wanted, progress = doing.wanted, doing.progress
    view: View = {
        "stage": doing.stage,
        "line": _line(doing),
        "part": round(progress.done / progress.total, 3) if progress and progress.total else None,
        "wanted": [wanted.model, wanted.draft] if wanted and doing.stage else [],
        "cause": doing.cause,
        "remedy": doing.remedy,
        "note": doing.note,
        "away": "",
    }
    if present is not None and present.remote is not None:
        view["away"] = _away(present.remote.address)
    return view


def _offer(pair: Pair, places: Places, room: Room, present: Choice | None) -> View:
    chosen = present is not None and present.remote is None and (present.model, present.draft) == pair.names
    view: View = {
        "id": pair.id,
        "title": pair.title,
        "note": pair.note,
        "target": pair.target.name,
        "draft": pair.draft.name if pair.draft else "",
        "draft_line": _draft_line(pair.draft),
        "present": chosen,
        "here": _is_here(places, pair),
        "numbers": None,
    }
    target = _shape(pair.target, places)
    if target is not None:
        draft = _shape(pair.draft, places) if pair.draft else None
        view["numbers"] = sized(target, draft, pair.target.licence, pair.target.gated, room)
    return view


def _draft_line(draft: Model | None) -> str:
    if draft is None:
        return "guesses from the book's words"
    return f"guesses by {_short(draft.name)}" if is_hub_id(draft.name) else "with a draft model"


def _shape(model: Model, places: Places) -> Shape | None:
    """What the catalogue says, or for a model that is here its own files."""
    if model.shape is not None:
        return model.shape
    try:
        folder = places.folder(model.name)
        if folder is None:
            return None
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        return shape_of(read_config(folder), model.name, weights)
    except (ModelError, OSError):
        return None


def _is_here(places: Places, pair: Pair) -> bool:
    names = [name for name in pair.names if name]
    return all(not is_hub_id(name) or places.folder(name) is not None for name in names)


def _line(doing: Doing) -> str:
    progress = doing.progress
    if doing.stage == "looking":
        return "Looking for the model…"
    if doing.stage == "loading":
        return "Loading the model…"
    if doing.stage == "downloading" and progress is not None:
        if progress.checking:
            return f"Checking {_short(progress.name)}…"
        return f"{_short(progress.name)}: {_gb(progress.done)} of {_gb(progress.total)}"
    return ""


def _away(text: str) -> str:
    """The host that the book leaves for; "" while it stays on this machine."""
    try:
        found = address.parse(text)
    except OptionError:
        return text
    return "" if found.stays_here else found.host


def _short(name: str) -> str:
    return name.replace("\\", "/").rstrip("/").rpartition("/")[2]


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 100_000_000 else f"{count / 1e6:,.0f} MB"


def about_view(about: dict[str, Any], name: str, room: Room) -> View:
    """A model of the hub that is not in the catalogue, from its own settings.

    Raises:
        ModelError: it is of a kind that is not supported.
    """
    shape = shape_of(about["config"], name, about["weights"])
    return sized(shape, None, about["licence"], about["gated"], room)
