"""Offers the choice of a model: before the first book, and again for a book that the present model does not hold.

The choice is a sentence each: the bundled pair, the starter, the reader, and the model of the hub that suits this
machine. Nothing is asked of the network for it; the hub is asked what its model is when the person turns to that one.
The sentences are made here, what is fetched by ``app.models.switch`` as from the settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app.core.format import View, size
from app.core.settings import READER, READERS, STARTER, STARTERS, is_hub_gguf, is_hub_id
from app.core.state import AppState, OpenBook, Stage
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
    pairs,
)
from app.models.fit import fit_in_words, pages_of
from app.models.local import LocalModels
from app.models.short_names import SOURCES
from app.models.switch import ModelSwitch
from app.web.auth import AllowedRoute
from app.web.preferences import about_view, ask_the_hub, sized
from app.web.routes import SMALL_BODY, Asked, Text, answer_or_refusal, parsed, said
from engine.errors import OptionError
from engine.plan import (
    BOOK_TOKENS,
    FreeMemory,
    ModelFit,
    ModelShape,
    fit_pair,
    measure_free_memory,
    read_config,
    shape_of,
)

if TYPE_CHECKING:
    from engine.plan import MachineRates

_OTHER_VOCABULARY = 1.5
"""Tokens of one text by two models: more than this of one never stands against one of the other, in European texts."""
_DEMO_TITLE = "Built-in demo"
_NOVEL = 32_768
"""Tokens of a short one."""
_OLDER = ("glm-4-9b", "qwen2.5-7b-1m", "qwen2.5-14b-1m", "phi-4-mini", "phi-3-mini")
"""Pairs with a newer one of about their size in the catalogue, which is proposed instead."""


def choices(local_models: LocalModels, free: FreeMemory) -> list[View]:
    """The options of the first start, in the order of what they ask of the person."""
    quotes = "Only quotes, by words that stand in the book. Instant, whole books."
    small, talks = (_fit(pair, free) for pair in (STARTER_PAIR, READER_PAIR))
    options = [
        _option(DEMO, _DEMO_TITLE, quotes, "", ""),
        _fetched(STARTER_PAIR, "Starter: a real small model", "Answers", small, local_models),
        _fetched(READER_PAIR, "Reader: a real conversation", "Talks in its own words", talks, local_models),
    ]
    proposed = DEMO.id
    if talks.verdict == "whole":  # with less memory its cache lies on the disk, and the starter's does not
        proposed = READER
    elif starter.is_preselected() and small.verdict != "none":
        proposed = STARTER
    best = best_pair(free)
    if best is not None and best.target.shape is not None:
        draft = best.draft.shape if best.draft else None
        fetched = size(best.target.shape.weights_bytes + (draft.weights_bytes if draft else 0))
        view = _option(
            best,
            f"The best that fits this machine: {best.title}, {fetched}",
            f"A model of the Hugging Face hub, for {_length(best.target.shape, _fit(best, free))}.",
            "",
            f"Download {fetched} and use it",
        )
        options.append({**view, "look": True})
    return [{**option, "proposed": option["id"] == proposed} for option in options]


def _fetched(pair: Pair, title: str, does: str, found: ModelFit, local_models: LocalModels) -> View:
    """The option of a model with a short name."""
    assert pair.target.shape is not None
    source = SOURCES[pair.id]
    pages = pages_of(min(found.tokens, pair.target.shape.window))
    fits = found.verdict != "none"
    line = f"{does} about documents of up to about {pages} pages here." if fits else fit_in_words(found)
    action = "Use it" if local_models.is_at_hand(pair.id) else f"Fetch {source.SIZE} and use it"
    return _option(pair, f"{title}, {source.SIZE}", line, source.verdict(pair.id), action if fits else "")


def _length(shape: ModelShape, found: ModelFit) -> str:
    tokens = min(found.tokens, shape.window)
    return "whole books" if tokens >= BOOK_TOKENS else f"documents of up to about {pages_of(tokens)} pages here"


def _option(pair: Pair, title: str, line: str, more: str, action: str) -> View:
    """``more`` and ``action`` are shown once it is turned to; ``look``: the hub is asked then."""
    draft = pair.draft.name if pair.draft else ""
    names = {"id": pair.id, "target": pair.target.name, "draft": draft}
    return {**names, "title": title, "line": line, "more": more, "action": action, "look": False}


def best_pair(free: FreeMemory) -> Pair | None:
    """The pair of the hub that suits this machine, from what is known before anything is fetched.

    It chats, needs no account, is of the newest of its size, and holds a book of 300 pages in the memory that
    computes, or as much as there is of such a one. Of these a GPU gets the largest, which answers best, where a mixture
    of experts counts as the geometric mean of its parameters and those that a token asks: a rule of thumb. Tables of
    which a token reads a row do not count. Without a GPU it is the largest file of 4-bit weights behind which there is
    memory for a short novel; else the time to read a book decides, so it is the smallest.
    """
    ready = [pair for pair in pairs() if pair.target.shape and pair not in SHORT_PAIRS]
    older = (*_OLDER, *(pair.id for pair in ready if pair.target.pickled))
    chatting = [pair for pair in ready if not pair.target.gated and pair.id not in older]
    files = [pair for pair in chatting if is_hub_gguf(pair.target.name)]
    if not free.on_gpu and (held := [pair for pair in files if _fit(pair, free).tokens >= _NOVEL]):
        return max(held, key=lambda pair: _strength(pair.target.shape))
    chatting = [pair for pair in chatting if pair not in files]
    fits = [(pair, found) for pair in chatting if (found := _fit(pair, free)).verdict != "none"]
    if not fits:
        return None
    whole = [(pair, found) for pair, found in fits if found.tokens >= BOOK_TOKENS] or [
        max(fits, key=lambda one: one[1].tokens)
    ]
    if not free.on_gpu:
        return min(whole, key=lambda one: one[1].weights)[0]
    return max(whole, key=lambda one: _strength(one[0].target.shape))[0]


def _strength(shape: ModelShape | None) -> float:
    """In parameters of a model without experts."""
    return ((shape.parameters - shape.inputs) * shape.parameters_asked) ** 0.5 if shape else 0.0


def _fit(pair: Pair, free: FreeMemory) -> ModelFit:
    assert pair.target.shape is not None
    return fit_pair(pair.target.shape, pair.draft.shape if pair.draft else None, free)


def others(current: OpenBook, switch: ModelSwitch) -> list[View]:
    """Models of this machine that would hold the book that is too long for the present one."""
    present = switch.present
    if current.stage is not Stage.CHOOSING or current.fit is None or present is None or present.remote is not None:
        return []
    found = []
    for pair in (STARTER_LONG_PAIR, READER_PAIR, READER_LONG_PAIR, DEMO):
        window = pair.target.shape.window if pair.target.shape else _demo_window(switch)
        same = any(present.model in family and pair.id in family for family in (STARTERS, READERS))
        tokens = current.fit.tokens * (1.0 if same else _OTHER_VOCABULARY)
        if (
            switch.local_models.is_at_hand(pair.target.name)
            and pair.names != (present.model, present.draft)
            and tokens < window
        ):
            words = f"{_DEMO_TITLE}: only quotes, reads all of it" if pair is DEMO else f"{pair.title}: reads all of it"
            draft = pair.draft.name if pair.draft else ""
            found.append({"target": pair.target.name, "draft": draft, "words": words})
    return found


def _demo_window(switch: ModelSwitch) -> int:
    folder = switch.local_models.folder(DEMO.target.name)
    return shape_of(read_config(folder), DEMO.title).window if folder else 0


class PairAsked(Asked):
    target: Text = ""
    draft: Text = ""


class FirstChoice:
    """A panel of the page (``app.web.live``).

    Args:
        state: the state of the program.
        switch: changes the model.
        rates: of this machine.
    """

    allowed: Sequence[AllowedRoute] = (
        AllowedRoute("GET", "/models/first"),
        AllowedRoute("POST", "/models/first/look", limit=SMALL_BODY),
    )

    def __init__(self, state: AppState, switch: ModelSwitch, rates: Callable[[], MachineRates | None]) -> None:
        self._state = state
        self._rates = rates
        self._switch = switch
        self._others: tuple[object, list[View]] = None, []

    def routes(self) -> Sequence[Route]:
        return (
            Route("/models/first", said(self.show), methods=["GET"]),
            Route("/models/first/look", said(self.look), methods=["POST"]),
        )

    def view(self) -> View:
        """The choice to show. ``first``: no model has been chosen yet. ``others``: models for a book that is too
        long."""
        current = self._state.current
        seen = (current.stage, id(current.fit), self._switch.present)
        if self._others[0] != seen:
            self._others = seen, others(current, self._switch)
        return {"first": not self._switch.chosen, "others": self._others[1]}

    async def show(self, request: Request) -> Response:
        return JSONResponse({"options": await run_in_threadpool(self._options)})

    async def look(self, request: Request) -> Response:
        """Ask the hub for a model of the catalogue, and this machine how it would do with it."""
        asked = await parsed(request, PairAsked)
        pair = find(asked.target, asked.draft or None)
        shape, name = (pair.target.shape, pair.target.name) if pair else (None, "")
        if shape is None or not (is_hub_id(name) or is_hub_gguf(name)):
            raise OptionError("There is no such model of the hub in the list.", "Open the settings and name it there.")
        return await run_in_threadpool(answer_or_refusal, lambda: self._look(name, shape))

    def _options(self) -> list[View]:
        return choices(self._switch.local_models, self._free())

    def _free(self) -> FreeMemory:
        now, status = self._switch, self._state.engine.status()
        return measure_free_memory(now.data, status, kv=now.kv, quantization=now.quantization, device=now.device)

    def _look(self, name: str, shape: ModelShape) -> View:
        about = ask_the_hub(name)
        if is_hub_gguf(name):
            found = sized(shape, None, about["licence"], about["gated"], self._free(), self._rates())
        else:
            found = about_view(about, name, self._free(), self._rates())
        return {"line": f"The hub has it. {found['pace']}".strip()}
