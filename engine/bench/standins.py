"""Sessions whose models are stand-ins of real sizes: a trained small pair grown into larger shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine import architecture, models, standin
from engine.config import EngineConfig
from engine.errors import OptionError, UnsupportedModel
from engine.models import Decoder
from engine.planner import pick_device
from engine.session import Session
from engine.standin import SHAPES, Shape
from engine.tokenizer import BookTokenizer

# The draft that goes with a target where nobody says otherwise.
DRAFTS = {
    "llama-2-7b": "llama-68m",
    "llama-2-13b": "llama-68m",
    "llama-3.1-8b": "llama-3.2-1b",
}


def session(config: EngineConfig, shape: str, draft_shape: str | None = None) -> Session:
    """A session on stand-in weights. ``config`` names the small pair, the window, the device and the dtype.

    Raises:
        OptionError: an unknown shape, or one that is too small for the pair.
        UnsupportedModel: the pair cannot be grown.
    """
    device = pick_device(config.device)
    grown: dict[str, Any] = {"window": config.context, "device": device, "dtype": config.dtype}
    target = standin.load(config.model, named(shape), shape, **grown)
    draft = None
    if config.draft is not None:
        draft = _draft(config, draft_shape or DRAFTS.get(shape, shape), target, grown)
    return Session(config, BookTokenizer(config.model), target, draft)


def named(shape: str) -> Shape:
    """The shape of this name.

    Raises:
        OptionError: there is none.
    """
    if shape not in SHAPES:
        raise OptionError(f"There is no shape {shape!r}.", f"Known: {', '.join(SHAPES)}.")
    return SHAPES[shape]


def note(session: Session) -> dict[str, str]:
    """What each row of a table has to say about weights and KV; nothing if they are the model's own."""
    said = {"weights": "stand-in"} if standin.NOTE in session.target.name else {}
    return {**said, "kv": session.config.kv} if session.full.shape.rounded else said


def _draft(config: EngineConfig, shape: str, target: Decoder, grown: dict[str, Any]) -> Decoder:
    """The draft in its shape; with more layers if it has more, and as it was trained if it cannot be grown so."""
    assert config.draft is not None
    small = architecture.load_config(config.draft)
    wanted = named(shape)
    deep = replace(wanted, num_hidden_layers=max(wanted.num_hidden_layers, small.num_hidden_layers))
    dtype = str(target.dtype).removeprefix("torch.")
    try:
        return standin.load(config.draft, deep, shape, **{**grown, "dtype": dtype})
    except (OptionError, UnsupportedModel):
        return models.load(config.draft, window=None, device=grown["device"], dtype=dtype)
