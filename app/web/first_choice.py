"""Offers the choice of a model: before the first book, and again for a book that is too long for the present model.

The options are the bundled demo, two small models (the starter and the reader), and the model of the hub that suits
this machine. Each option has a sentence about it, and is a pair of a target model and an optional draft model. The
choice needs no network. When the person looks at the hub's model, the hub is asked for the model's facts, and the speed
of this machine is measured. This module makes the sentences; ``app.models.switch`` fetches the chosen model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    pairs,
)
from app.models.fit import fit_in_words, pace, pages_of, rounding_in_words
from app.models.local import LocalModels
from app.models.short_names import SOURCES
from app.models.switch import ModelSwitch
from app.web.preferences import about_view, ask_the_hub, shape_at_hand, sized
from app.web.routes import PageRoute, RequestBody, Text, answer_or_refusal, gets, parsed, posts
from engine.errors import OptionError
from engine.plan import (
    BOOK_TOKENS,
    FreeMemory,
    ModelFit,
    ModelShape,
    Rounding,
    fit_pair,
    measure_free_memory,
    rounding,
)

if TYPE_CHECKING:
    from engine.plan import MachineRates

_OTHER_VOCABULARY = 1.5
"""Maximum factor by which the token counts of a European text differ between two models."""
_DEMO_TITLE = "Built-in demo"
_NOVEL = 32_768
"""Tokens of a short novel."""
_OLDER = ("glm-4-9b", "qwen2.5-7b-1m", "qwen2.5-14b-1m", "phi-4-mini", "phi-3-mini")
"""Pairs of the catalogue for which there is a newer pair of about the same size, which is proposed instead."""
_UNPROVEN = (
    "qwen3.5-4b-file",
    "qwen3.5-9b-file",
    "gpt-oss-20b-file",
    "ministral-3-8b-file",
    "gemma-4-e2b-file",
    "gemma-4-e4b-file",
    "gemma-4-26b-a4b-file",
)
"""GGUF files that are listed and not proposed, because their kinds were tested on tiny random weights only. For about
the same memory there is a file whose kind was tested with real weights.
"""


def choices(local_models: LocalModels, free: FreeMemory) -> list[View]:
    """The options of the first start. The option that needs the least memory comes first."""
    quotes = "Only quotes, by words that stand in the book. Instant, whole books."
    small, talks = (_fit(pair, free) for pair in (STARTER_PAIR, READER_PAIR))
    options = [
        _option(DEMO, _DEMO_TITLE, quotes, f"{DEMO.target.licence}.", ""),
        _fetched(STARTER_PAIR, "Starter: a real small model", "Answers", small, local_models),
        _fetched(READER_PAIR, "Reader: a real conversation", "Talks in its own words", talks, local_models),
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
        f"A model of the Hugging Face hub, for {_length(shape, best.fit)}{rounded}.",
        "",
        f"Download {fetched} and use it",
    )
    if best.rounding:
        view |= {"weights": best.rounding.weights, "kv": best.rounding.kv}
    return {**view, "look": True}


def _fetched(pair: Pair, title: str, does: str, found: ModelFit, local_models: LocalModels) -> View:
    """Make the option for one of the small models "starter" and "reader". ``found`` says how it fits into memory."""
    assert pair.target.shape is not None
    source = SOURCES[pair.id]
    pages = pages_of(min(found.tokens, pair.target.shape.window))
    fits = found.verdict != "none"
    line = f"{does} about documents of up to about {pages} pages here." if fits else fit_in_words(found)
    action = "Use it" if local_models.is_at_hand(pair.id) else f"Fetch {source.SIZE} and use it"
    more = f"{source.verdict(pair.id)} {source.LICENCE}."
    return _option(pair, f"{title}, {source.SIZE}", line, more, action if fits else "")


def _length(shape: ModelShape, found: ModelFit) -> str:
    tokens = min(found.tokens, shape.window)
    return "whole books" if tokens >= BOOK_TOKENS else f"documents of up to about {pages_of(tokens)} pages here"


def _option(pair: Pair, title: str, line: str, more: str, action: str) -> View:
    """Make an option. ``more`` and ``action`` are shown when the person looks at the option. If the caller sets the key
    ``look`` of the result to True, both are shown only after the hub has confirmed that it has the model.
    """
    draft = pair.draft.name if pair.draft else ""
    names = {"id": pair.id, "target": pair.target.name, "draft": draft, "weights": "", "kv": ""}
    return {**names, "title": title, "line": line, "more": more, "action": action, "look": False}


@dataclass(frozen=True)
class PairProposal:
    """A pair for this machine. ``rounding``: the formats to which weights or cache must be quantized for the pair to
    fit; None if the pair fits without quantization.
    """

    pair: Pair
    fit: ModelFit
    rounding: Rounding | None = None


def best_pair(free: FreeMemory) -> PairProposal | None:
    """Choose the pair of the hub that suits this machine, by facts that need no download; None if no pair fits.

    The candidates are models for chatting. They need no account, are among the newest of their size, and are not in
    ``_UNPROVEN``.

    Without a GPU, choose the strongest GGUF file that leaves memory for a short novel. With a GPU, leave GGUF files
    out, because a GPU would have to expand their 4-bit weights to compute.

    If no GGUF file was chosen, choose among the pairs that leave memory for a book of 300 pages. With a GPU, choose the
    strongest of these pairs. Without a GPU, choose the smallest, because the time to read a book matters most. If no
    pair leaves memory for such a book, choose the pair that leaves memory for the longest text.

    As a rule of thumb, a mixture of experts is as strong as a model without experts whose number of parameters is the
    geometric mean of the mixture's total and active parameters. Per-layer input embeddings do not count, because a
    token reads only one row of each.
    """
    ready = [pair for pair in pairs() if pair.target.shape and pair not in SHORT_PAIRS]
    passed_over = (*_OLDER, *_UNPROVEN, *(pair.id for pair in ready if pair.target.pickled))
    chatting = [pair for pair in ready if not pair.target.gated and pair.id not in passed_over]
    fits = [found for pair in chatting if (found := _proposal(pair, free)) is not None]
    files = [one for one in fits if is_hub_gguf(one.pair.target.name)]
    if not free.on_gpu and (held := [one for one in files if one.fit.tokens >= _NOVEL]):
        return max(held, key=_strength)
    fits = [one for one in fits if one not in files]
    if not fits:
        return None
    whole = [one for one in fits if one.fit.tokens >= BOOK_TOKENS] or [max(fits, key=lambda one: one.fit.tokens)]
    if not free.on_gpu:
        return min(whole, key=lambda one: one.fit.weights)
    return max(whole, key=_strength)


def _proposal(pair: Pair, free: FreeMemory) -> PairProposal | None:
    """Return the proposal for a pair; None if it does not fit. On a GPU, a pair that does not fit may be proposed with
    quantized weights or cache. Without a GPU, quantizing is not tried, because GGUF files have 4-bit weights already.
    """
    found = _fit(pair, free)
    if found.verdict != "none":
        return PairProposal(pair, found)
    assert pair.target.shape is not None
    way = rounding(pair.target.shape, pair.draft.shape if pair.draft else None, free) if free.on_gpu else None
    return PairProposal(pair, _fit(pair, way.of(free)), way) if way else None


def _strength(proposal: PairProposal) -> float:
    """Return the number of parameters that a model without experts would need to be as strong as this model."""
    shape = proposal.pair.target.shape
    return ((shape.parameters - shape.inputs) * shape.parameters_asked) ** 0.5 if shape else 0.0


def _fit(pair: Pair, free: FreeMemory) -> ModelFit:
    assert pair.target.shape is not None
    return fit_pair(pair.target.shape, pair.draft.shape if pair.draft else None, free)


def others(current: OpenBook, switch: ModelSwitch) -> list[View]:
    """If the open book is too long for the present model, return the models on this machine whose window holds it.
    ``worth`` of an entry is a sentence with the result of the model's evaluation.
    """
    present = switch.present
    if current.stage is not Stage.CHOOSING or current.fit is None or present is None or present.remote is not None:
        return []
    found = []
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
            found.append({"target": pair.target.name, "draft": draft, "words": words, "worth": worth})
    return found


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
            found = sized(shape, None, about["licence"], about["gated"], self._free(), self._rates())
        else:
            found = about_view(about, name, self._free(), self._rates())
        speed = f"Estimated here: {found['pace']}" if found["pace"] else ""
        licence = f"{found['licence']}." if found["licence"] else ""
        return {"line": " ".join(words for words in ("The hub has it.", licence, speed) if words)}


def _is_file(pair: Pair) -> bool:
    return is_hub_gguf(pair.target.name)
