"""Offers the choice of a model: before the first book, and again for a book that is too long for the present model.

The options are the bundled demo, two small models (the starter and the reader), and the model of the hub that suits
this machine. Each option has a sentence about it, and is a pair of a target model and an optional draft model. The
choice needs no network. When the person looks at the hub's model, the hub is asked for the model's facts, and the speed
of this machine is measured. This module makes the options, ``app.models.proposal`` chooses the hub's model, and
``app.models.switch`` fetches the chosen one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.core.format import View, size
from app.core.open_book import OpenBook, Stage
from app.core.settings import READER, READERS, STARTER, STARTERS, is_hub_gguf, is_hub_id
from app.core.state import AppState
from app.models import starter
from app.models.catalogue import (
    DEMO,
    READER_LONG_PAIR,
    READER_PAIR,
    SHORT_PAIRS,
    STARTER_LONG_PAIR,
    STARTER_PAIR,
    Pair,
    find,
)
from app.models.fit import pace, rounding_in_words
from app.models.local import LocalModels
from app.models.proposal import PairProposal, able, best_pair, fit_on, length_in_words
from app.models.short_names import SOURCES
from app.models.switch import ModelSwitch
from app.web.preferences import about_view, ask_the_hub, shape_at_hand, sized
from app.web.routes import PageRoute, RequestBody, Text, answer_or_refusal, gets, parsed, posts
from engine.errors import OptionError
from engine.plan import FreeMemory, ModelFit, fit_pair, measure_free_memory

if TYPE_CHECKING:
    from engine.plan import MachineRates

_OTHER_VOCABULARY = 1.5
"""Maximum factor by which the token counts of a European text differ between two models."""
_DEMO_TITLE = "Built-in demo"


def choices(local_models: LocalModels, free: FreeMemory) -> list[View]:
    """The options of the first start. The option that needs the least memory comes first."""
    small, talks = (fit_on(pair, free) for pair in (STARTER_PAIR, READER_PAIR))
    options = [
        _option(DEMO, _DEMO_TITLE, able(DEMO, None), f"{DEMO.target.licence}.", ""),
        _fetched(STARTER_PAIR, "Starter: a real small model", small, local_models),
        _fetched(READER_PAIR, "Reader: a real conversation", talks, local_models),
    ]
    proposed = DEMO.id
    # The device's memory holds the weights of the model "reader" and the KV of its whole window.
    if talks.verdict == "whole":
        proposed = READER
    elif starter.is_preselected() and small.verdict != "none":
        proposed = STARTER
    if (best := best_pair(free)) is not None:
        options.append(_of_the_hub(best))
    return [{**option, "proposed": option["id"] == proposed} for option in options]


def _of_the_hub(best: PairProposal) -> View:
    pair, shape = best.pair, best.pair.target.shape
    assert shape is not None
    draft = pair.draft.shape if pair.draft else None
    fetched = size(shape.weights_bytes + (draft.weights_bytes if draft else 0))
    rounded = f", rounded here to {rounding_in_words(best.rounding)}" if best.rounding else ""
    view = _option(
        pair,
        f"The best that fits this machine: {pair.title}, {fetched}",
        f"A model of the Hugging Face hub, for {length_in_words(shape, best.fit)}{rounded}.",
        "",
        f"Download {fetched} and use it",
    )
    if best.rounding:
        view |= {"weights": best.rounding.weights, "kv": best.rounding.kv}
    return {**view, "look": True}


def _fetched(pair: Pair, title: str, found: ModelFit, local_models: LocalModels) -> View:
    """Make the option for one of the small models "starter" and "reader". ``found`` says how it fits into memory."""
    assert pair.target.shape is not None
    source = SOURCES[pair.id]
    action = "Use it" if local_models.is_at_hand(pair.id) else f"Fetch {source.SIZE} and use it"
    more = f"{source.verdict(pair.id)} {source.NAME}, {source.LICENCE}."
    return _option(pair, f"{title}, {source.SIZE}", able(pair, found), more, action if found.verdict != "none" else "")


def _option(pair: Pair, title: str, line: str, more: str, action: str) -> View:
    """Make an option. ``more`` and ``action`` are shown when the person looks at the option. If the caller sets the key
    ``look`` of the result to True, both are shown only after the hub has confirmed that it has the model.
    """
    draft = pair.draft.name if pair.draft else ""
    names = {"id": pair.id, "target": pair.target.name, "draft": draft, "weights": "", "kv": ""}
    return {**names, "title": title, "line": line, "more": more, "action": action, "look": False}


def others(current: OpenBook, switch: ModelSwitch) -> list[View]:
    """If the open book is too long for the present model, return the models on this machine whose window holds it.
    ``worth`` of an entry is a sentence with the result of the model's evaluation.
    """
    present = switch.present
    if current.stage is not Stage.CHOOSING or current.fit is None or present is None or present.remote is not None:
        return []
    views = []
    for pair in (STARTER_LONG_PAIR, READER_PAIR, READER_LONG_PAIR, DEMO):
        shape = shape_at_hand(pair.target, switch.local_models)
        window = shape.window if shape else 0
        same = any(present.model in family and pair.id in family for family in (STARTERS, READERS))
        tokens = current.fit.tokens * (1.0 if same else _OTHER_VOCABULARY)
        if (
            switch.local_models.is_at_hand(pair.target.name)
            and pair.names != (present.model, present.draft)
            and tokens < window
        ):
            words = f"{_DEMO_TITLE}: only quotes, reads all of it" if pair is DEMO else f"{pair.title}: reads all of it"
            draft = pair.draft.name if pair.draft else ""
            worth = "" if pair is DEMO else SOURCES[pair.id].verdict(pair.id)
            views.append({"target": pair.target.name, "draft": draft, "words": words, "worth": worth})
    return views


class PairAsked(RequestBody):
    target: Text = ""
    draft: Text = ""


class FirstChoice:
    """Serves the choice of a model. A self-contained part of the page (``app.web.live.Panel``).

    Args:
        state: the state of the program.
        switch: changes the model.
        rates: returns the measured speeds of this machine; None before they are measured.
        news: returns whether the speed of a model can be estimated (``Preferences.news``).
    """

    def __init__(
        self, state: AppState, switch: ModelSwitch, rates: Callable[[], MachineRates | None], news: Callable[[], str]
    ) -> None:
        self._state = state
        self._rates = rates
        self._news = news
        self._switch = switch
        self._others: tuple[object, list[View]] = None, []

    def routes(self) -> Sequence[PageRoute]:
        return *gets({"/models/first": self.show}), *posts({"/models/first/look": self.look})

    def view(self) -> View:
        """The choice to show. ``first``: whether no model has been chosen yet. ``others``: models for a book that is
        too long for the present model. ``rates``: the result of ``news``.
        """
        current = self._state.current
        seen = (current.stage, id(current.fit), self._switch.present)
        if self._others[0] != seen:
            self._others = seen, others(current, self._switch)
        return {"first": not self._switch.chosen, "others": self._others[1], "rates": self._news()}

    async def show(self, request: Request) -> Response:
        return JSONResponse({"options": await run_in_threadpool(self._options)})

    async def look(self, request: Request) -> Response:
        """Estimate how one of the offered models would run on this machine. For a model from the hub, first ask the hub
        about it.
        """
        asked = await parsed(request, PairAsked)
        pair = find(asked.target, asked.draft or None)
        if pair is None or not (pair in (DEMO, *SHORT_PAIRS) or is_hub_id(pair.target.name) or _is_file(pair)):
            raise OptionError("There is no such model of the hub in the list.", "Open the settings and name it there.")
        return await run_in_threadpool(answer_or_refusal, lambda: self._look(pair))

    def _options(self) -> list[View]:
        return choices(self._switch.local_models, self._free())

    def _free(self) -> FreeMemory:
        now, status = self._switch, self._state.engine.status()
        return measure_free_memory(now.data, status, kv=now.kv, quantization=now.quantization, device=now.device)

    def _look(self, pair: Pair) -> View:
        name, shape = pair.target.name, shape_at_hand(pair.target, self._switch.local_models)
        if pair in (DEMO, *SHORT_PAIRS):
            rates = self._rates() if shape else None
            here = pace(shape, fit_pair(shape, None, self._free()), rates) if shape and rates else None
            return {"line": f"Estimated here: {here.words}" if here else ""}
        about = ask_the_hub(name)
        if _is_file(pair) and shape is not None:
            view = sized(shape, None, about["licence"], about["gated"], self._free(), self._rates())
        else:
            view = about_view(about, name, self._free(), self._rates())
        speed = f"Estimated here: {view['pace']}" if view["pace"] else ""
        licence = f"{view['licence']}." if view["licence"] else ""
        return {"line": " ".join(words for words in ("The hub has it.", licence, speed) if words)}


def _is_file(pair: Pair) -> bool:
    return is_hub_gguf(pair.target.name)
