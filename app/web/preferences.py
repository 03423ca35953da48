"""Serves the dialog of preferences: the model, comments, access for other programs, a server elsewhere, the report
about faults.

Turns requests into calls of ``app.models.switch``. The API key, the diagnostics and the list of models are read when
the dialog opens. The progress of loading another model comes through the live stream. The first half of this file
describes models as plain data, the second half has the routes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BeforeValidator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from app.core import diagnostics
from app.core.forecast import expected
from app.core.format import View, size
from app.core.question import AnswersFrom
from app.core.settings import (
    HOST,
    REPAIR,
    SHORT_NAMES,
    ModelChoice,
    Remote,
    Settings,
    check_place,
    is_any_gguf,
    is_gguf,
    is_hub_gguf,
    is_hub_id,
)
from app.core.state import AppState
from app.models import gguf_files
from app.models.catalogue import DEMO, SHORT_PAIRS, Model, Pair, known, pairs
from app.models.engine_proxy import EngineProxy
from app.models.fit import (
    BOOK_PAGES,
    TOKENS_PER_PAGE,
    fit_in_words,
    gain_in_words,
    gpu_in_words,
    pace,
    pages_of,
    rounding_in_words,
    rounding_options,
)
from app.models.hub import Cancelled, Download
from app.models.local import LocalModels
from app.models.openai_client import parse_address
from app.models.proposal import able, compared
from app.models.short_names import SOURCES
from app.models.switch import ModelSwitch, SwitchState
from app.web import openai_api
from app.web.routes import REQUIRED, Flag, Handler, PageRoute, RequestBody, Text, gets, parsed, posts
from engine.errors import ModelError, OptionError, ResourceError, TrifoldError
from engine.plan import (
    FreeMemory,
    ModelFit,
    ModelShape,
    fit_pair,
    measure_free_memory,
    read_config,
    rounding,
    roundings,
    shape_of,
)
from engine.version import VERSION

if TYPE_CHECKING:
    from engine.events import ModelInfo
    from engine.plan import MachineRates

logger = logging.getLogger(__name__)

CARD_PAGES = 100
"""Pages of the document whose reading time the cards state: a report, or half a novel."""
DEMO_REAL_NAME = "trifold-demo-11M"


def model_options(
    local_models: LocalModels, free: FreeMemory, present: ModelChoice | None, rates: MachineRates | None = None
) -> list[View]:
    """Return the entries of the list of models: one for each pair of the catalogue, one for each GGUF file of this
    machine, and one for ``present``, the loaded model, if it is in neither group.

    Args:
        free: free memory, with the formats of the startup settings (``kv``, ``quantization``). ``present`` may have
            other formats.
    """
    return [_option(pair, local_models, free, present, rates) for pair in _listed(local_models, present)]


def _listed(local_models: LocalModels, present: ModelChoice | None) -> list[Pair]:
    offered = pairs()
    # GGUF files on this machine are listed before models that must be downloaded
    here = offered.index(SHORT_PAIRS[-1]) + 1
    listed = [*offered[:here], *_gguf_pairs(local_models), *offered[here:]]
    if present is not None and present.remote is None and not any(_is_present(pair, present) for pair in listed):
        model = Model(present.model, None, "")
        draft = Model(present.draft, None, "") if present.draft else None
        listed.insert(0, Pair("own", _short(present.model), model, draft, ""))
    return listed


def _is_present(pair: Pair, present: ModelChoice | None) -> bool:
    return present is not None and present.remote is None and (present.model, present.draft) == pair.names


def cards(
    local_models: LocalModels, free: FreeMemory, present: ModelChoice | None, rates: MachineRates | None = None
) -> list[View]:
    """Return the models to compare first (``app.models.proposal.compared``). Each has the ``id`` of its entry in
    ``model_options``, what it can do here, how long ``CARD_PAGES`` pages take, or
    those that fit, and its real name.
    """
    loaded = next((pair for pair in _listed(local_models, present) if _is_present(pair, present)), None)
    return [_card(pair, local_models, free, rates) for pair in compared(loaded, free)]


def _card(pair: Pair, local_models: LocalModels, free: FreeMemory, rates: MachineRates | None) -> View:
    fit, here = None, None
    if (target := shape_at_hand(pair.target, local_models)) is not None:
        draft = shape_at_hand(pair.draft, local_models) if pair.draft else None
        way = rounding(target, draft, free)
        fit = fit_pair(target, draft, way.of(free) if way else free)
        pages = min(CARD_PAGES, pages_of(min(fit.tokens, target.window)))  # as ``able`` says
        here = pace(target, fit, rates, pages) if rates and fit.verdict != "none" else None
    name = pair.target.name
    real = DEMO_REAL_NAME if pair is DEMO else SOURCES[name].NAME if name in SOURCES else name
    return {"id": pair.id, "does": able(pair, fit, target), "pace": here.words if here else "", "name": real}


def _gguf_pairs(local_models: LocalModels) -> list[Pair]:
    """Return a pair for each usable GGUF file that other programs have downloaded. Unusable files are left out. If a
    person asks for such a file by name, the page then shows the reason.
    """
    choices = []
    for file in local_models.gguf_files():
        try:
            model = gguf_files.look(file.path)
        except ModelError as error:
            logger.info("%s", error)
            continue
        target = Model(str(file.path), model.shape, model.licence)
        choices.append(Pair(f"gguf:{file.path}", file.title, target, None, model.note(file.owner)))
    return choices


def sized(
    target: ModelShape,
    draft: ModelShape | None,
    licence: str,
    gated: bool,
    free: FreeMemory,
    rates: MachineRates | None = None,
) -> View:
    """Return the figures of a pair on this machine: memory, speed, window. If the pair fits only with quantized weights
    or KV, the figures are those of the quantized pair.

    Args:
        rates: speeds of the machine; None if they have not been measured.
    """
    fit: ModelFit = fit_pair(target, draft, free)
    rounded: View | None = None
    sentence = fit_in_words(fit)
    if (way := rounding(target, draft, free)) is not None:
        asked, free = free, way.of(free)
        fit = fit_pair(target, draft, free)
        words = rounding_in_words(way)
        rounded = {"weights": way.weights, "kv": way.kv, "words": words}
        sentence += f" With {words} it does; answers then differ a little from those of the model as it was made."
        if (mildest := roundings(target, draft, asked)[0])[0] != way:
            milder, held = mildest
            sentence += (
                f" They differ less with {rounding_in_words(milder)} ({rounding_options(milder)} in the terminal), "
                f"for books of up to {pages_of(held.tokens):,} pages instead of {pages_of(fit.tokens):,}."
            )
    if fit.verdict != "none" and (gain := gain_in_words(target, fit)):
        sentence += f" {gain}"
    here = pace(target, fit, rates) if rates else None
    return {
        "verdict": fit.verdict,
        "sentence": sentence,
        "pace": here.words if here else "",
        "rounded": rounded,
        "window": f"{target.window:,} tokens",
        "size": size(target.weights_bytes + (draft.weights_bytes if draft else 0)),
        "kv": f"{size(fit.kv_per_1k)} per 1,000 tokens",
        "gpu": gpu_in_words(target, draft),
        "licence": licence,
        "gated": gated,
    }


def switch_view(switching: SwitchState, present: ModelChoice | None) -> View:
    """The state of a switch to another model, with the progress of the download, for the live stream."""
    wanted, progress = switching.choice, switching.progress
    view: View = {
        "stage": switching.stage,
        "line": _line(switching),
        "stoppable": switching.stage in ("looking", "downloading") and (wanted is None or wanted.remote is None),
        "part": round(progress.done / progress.total, 3) if progress and progress.total else None,
        "wanted": [wanted.model, wanted.draft] if wanted and switching.stage else [],
        "cause": switching.cause,
        "remedy": switching.remedy,
        "note": switching.note,
        "away": "",
    }
    if present is not None and present.remote is not None:
        view["away"] = _away(present.remote.address)
    return view


def _option(
    pair: Pair,
    local_models: LocalModels,
    free: FreeMemory,
    present: ModelChoice | None,
    rates: MachineRates | None,
) -> View:
    view: View = {
        "id": pair.id,
        "title": pair.title,
        "note": pair.note,
        "target": pair.target.name,
        "draft": pair.draft.name if pair.draft else "",
        "draft_line": _draft_line(pair.draft),
        "present": _is_present(pair, present),
        "here": _is_here(local_models, pair),
        "tested": pair.tested,
        "sources": pair.target.sources,
        "numbers": None,
    }
    target = shape_at_hand(pair.target, local_models)
    if target is not None:
        draft = shape_at_hand(pair.draft, local_models) if pair.draft else None
        view["numbers"] = sized(target, draft, pair.target.licence, pair.target.gated, free, rates)
    return view


def _draft_line(draft: Model | None) -> str:
    if draft is None:
        return "guesses from the book's words"
    return f"guesses by {_short(draft.name)}" if is_hub_id(draft.name) else "with a draft model"


def shape_at_hand(model: Model, local_models: LocalModels) -> ModelShape | None:
    """Return the shape of a model, from the catalogue or else from the model's files on this machine. None if there are
    no such files, or they cannot be read.
    """
    if model.shape is not None:
        return model.shape
    try:
        if is_gguf(model.name):
            return gguf_files.look(Path(model.name).expanduser()).shape
        folder = local_models.folder(model.name)
        if folder is None:
            return None
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        return shape_of(read_config(folder), model.name, weights)
    except (ModelError, OSError):
        return None


def _is_here(local_models: LocalModels, pair: Pair) -> bool:
    return all(local_models.is_at_hand(name) for name in pair.names if name)


def _line(switching: SwitchState) -> str:
    progress = switching.progress
    if switching.stage == "looking":
        wanted = switching.choice
        if wanted and wanted.remote:
            return f"Asking {_host(wanted.remote.address)} for its models…"
        return f"Reading {_short(wanted.model)}…" if wanted and is_gguf(wanted.model) else "Looking for the model…"
    if switching.stage == "loading":
        return "Loading the model…"
    if switching.stage == "downloading" and progress is not None:
        if progress.building:
            return f"{'Opening' if is_any_gguf(progress.name) else 'Making'} {_short(progress.name)}…"
        if progress.checking:
            return f"Checking {_short(progress.name)}…"
        return f"{_short(progress.name)}: {size(progress.done)} of {size(progress.total)}"
    return ""


def _away(text: str) -> str:
    """The host that the book would be sent to; "" if the book stays on this machine."""
    try:
        return "" if parse_address(text).stays_here else _host(text)
    except OptionError:
        return text


def _host(address: str) -> str:
    try:
        return parse_address(address).host
    except OptionError:
        return address


def _short(name: str) -> str:
    return SHORT_NAMES.get(name) or name.replace("\\", "/").rstrip("/").rpartition("/")[2]


def ask_the_hub(name: str) -> dict[str, Any]:
    """Return the hub's facts about a model.

    Raises:
        TrifoldError: the model is not available, or the query was stopped.
    """
    try:
        return Download().about(name)
    except Cancelled as error:
        raise ResourceError("The request to the hub was not completed.", "Try again.") from error


def about_view(description: dict[str, Any], name: str, free: FreeMemory, rates: MachineRates | None = None) -> View:
    """Describe a model of the hub that is not in the catalogue. ``description`` is the result of ``ask_the_hub``.

    Raises:
        ModelError: the engine does not support this kind of model.
    """
    shape = shape_of(description["config"], name, description["weights"])
    return sized(shape, None, description["licence"], description["gated"], free, rates)


_LONGEST_NAME = 1000  # maximum characters of a model's name
_MOST_MEASUREMENTS = 2  # maximum measurements of the machine, if other programs disturb each of them
_RATES_S = 3.0  # maximum seconds that a reply waits for the measurement of the machine, which may take half a minute


def make_switch(state: AppState, settings: Settings) -> ModelSwitch:
    """Make the ``ModelSwitch``, which replaces the engine in the engine proxy. If the proxy has no engine yet, begin to
    load the first model.
    """
    from engine import Engine

    proxy = state.engine if isinstance(state.engine, EngineProxy) else EngineProxy.around(state.engine)
    switch = ModelSwitch(proxy, settings, Engine, state.read_again)
    if proxy.empty:
        switch.begin()
    return switch


def _model_name(name: str) -> str:
    if len(name) > _LONGEST_NAME or not name.isprintable():
        raise OptionError("This is not the name of a model.", "Type a folder, or a hub id such as Qwen/Qwen3-0.6B.")
    check_place(name)
    return name


ModelName = Annotated[Text, AfterValidator(_model_name)]
"""The name of a model: a folder, a file, or a hub id."""


class ModelAsked(RequestBody):
    """A request for a model. ``weights`` and ``kv`` are formats; "" leaves a format unchanged."""

    weights: Text = ""
    kv: Text = ""
    model: ModelName = ""
    draft: ModelName = ""


class RemoteAsked(RequestBody):
    """A request for a server. ``confirmed``: whether the person has agreed that the book is sent there."""

    address: Text = ""
    model: Text = ""
    key: Text = ""
    confirmed: Any = False


class SwitchAsked(RequestBody):
    read: Flag = REQUIRED


def _source(value: Any) -> AnswersFrom:
    if value not in [source.value for source in AnswersFrom]:
        raise OptionError("Answers cannot come from that.", "Load the page again.")
    return AnswersFrom(value)


class SourceAsked(RequestBody):
    source: Annotated[AnswersFrom, BeforeValidator(_source)] = REQUIRED


class Preferences:
    """Serves the dialog of preferences. A self-contained part of the page (``app.web.live.Panel``).

    Args:
        state: the state of the program.
        switch: changes the model.
        port: the page's port, which is part of the address that other programs use.
    """

    def __init__(self, state: AppState, switch: ModelSwitch, port: int) -> None:
        self._state = state
        self._switch = switch
        self._port = port
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._ended.set()
        self._measured: MachineRates | None = None
        self._measurements_left = _MOST_MEASUREMENTS

    def routes(self) -> Sequence[PageRoute]:
        handlers: dict[str, Handler] = {
            "/models/use": self.use,
            "/models/stop": self.stop,
            "/models/look": self.look,
            "/remote/use": self.use_remote,
            "/remote/leave": self.leave_remote,
            "/key/renew": self.renew_key,
            "/preferences/comments": self.read_comments,
            "/preferences/pictures": self.read_pictures,
            "/preferences/source": self.answer_from,
        }
        return *gets({"/preferences": self.show, "/diagnostics": self.report}), *posts(handlers)

    def view(self) -> View:
        setup = switch_view(self._switch.state, self._switch.present)
        read = {"comments": self._state.comments, "pictures": self._state.parser.pictures}
        return {"setup": setup, **read, "source": self._state.source.value}

    async def show(self, request: Request) -> Response:
        """Everything that the dialog shows when it is opened."""
        return JSONResponse(self._later(await run_in_threadpool(self._shown)))

    async def use(self, request: Request) -> None:
        asked = await parsed(request, ModelAsked)
        self._switch.use(asked.model, asked.draft or None, weights=asked.weights, kv=asked.kv)

    async def stop(self, request: Request) -> None:
        self._switch.cancel()

    async def look(self, request: Request) -> Response:
        """Describe the model in a folder or under a hub id, before any large file is downloaded."""
        name = (await parsed(request, ModelAsked)).model.strip()
        if not name:
            raise OptionError("No model is named.", "Type a folder, or a hub id such as Qwen/Qwen3-0.6B.")
        return JSONResponse(self._later(await run_in_threadpool(self._look, name)))

    async def use_remote(self, request: Request) -> None:
        asked = await parsed(request, RemoteAsked)
        remote = Remote(asked.address, asked.model.strip(), asked.key.strip())
        self._switch.use_remote(remote, asked.confirmed is True)

    async def leave_remote(self, request: Request) -> None:
        self._switch.leave_remote()

    async def renew_key(self, request: Request) -> Response:
        return JSONResponse({"key": await run_in_threadpool(openai_api.renew, self._switch.data)})

    async def read_comments(self, request: Request) -> None:
        self._state.read_comments((await parsed(request, SwitchAsked)).read)

    async def read_pictures(self, request: Request) -> None:
        self._state.read_pictures((await parsed(request, SwitchAsked)).read)

    async def answer_from(self, request: Request) -> None:
        """Set what answers come from."""
        self._state.answer_from((await parsed(request, SourceAsked)).source)

    async def report(self, request: Request) -> Response:
        """The diagnostics as text, to be copied."""
        return PlainTextResponse(await run_in_threadpool(self._report))

    def _shown(self) -> View:
        present = self._switch.present
        remote = present.remote if present else None
        free, rates = self._free_memory(), self.rates()
        models = model_options(self._switch.local_models, free, present, rates)
        first = cards(self._switch.local_models, free, present, rates)
        self._correct(models, first)
        return {
            "models": models,
            "cards": first,
            "api": {"address": f"http://{HOST}:{self._port}/v1", "key": openai_api.load(self._switch.data)},
            "remote": {"address": remote.address, "model": remote.model} if remote else None,
            "folder": str(self._switch.data),
            "repair": REPAIR,
            "version": VERSION,
        }

    def _correct(self, models: Sequence[View], first: Sequence[View]) -> None:
        """Replace the estimated speed of the loaded model by its speed in earlier readings and answers, in the list of
        models and in the cards ``first``.
        """
        model = self._state.engine.status().model
        for entry in models:
            if entry["present"] and entry["numbers"] and model is not None:
                entry["numbers"]["pace"] = self._seen_pace(model, BOOK_PAGES) or entry["numbers"]["pace"]
                for card in first:
                    if card["id"] == entry["id"]:
                        card["pace"] = self._seen_pace(model, CARD_PAGES) or card["pace"]

    def _seen_pace(self, model: ModelInfo, wanted: int) -> str:
        """Describe the speed of the loaded model with a book of ``wanted`` pages, or of those that its window holds;
        "" before it has read.
        """
        tokens = min(wanted * TOKENS_PER_PAGE, model.context_limit)
        experience, pages = self._state.experience, min(wanted, pages_of(model.context_limit))
        reading, writing = experience.reading(model, tokens, None), experience.writing(model, tokens, None)
        book = f"A {wanted}-page book" if pages == wanted else f"Up to {pages} pages of a book"
        return f"{book}: {expected(reading, writing)}." if reading else ""

    def rates(self) -> MachineRates | None:
        """Return the speeds of this machine; None if they are not known within ``_RATES_S`` seconds.

        A separate process measures the speeds, and only while no answer is being written. If other programs disturbed
        the first measurement, the next call starts a second one, and the better result counts. A failed measurement is
        never repeated, because the page asks again as long as a measurement runs, and would ask forever.
        """
        with self._lock:
            known = self._measured
            if (known is None or not known.quiet) and self._may_measure:
                self._ended.clear()
                threading.Thread(target=self._measure, name="trifold-rates", daemon=True).start()
        if known is None:
            self._ended.wait(_RATES_S)
        return self._measured

    @property
    def news(self) -> str:
        """Whether the speeds of this machine are available: "known" if they have been measured, "now" if a measurement
        can start now, "" otherwise. The live stream sends this value. When it changes, a page that lacks the speeds
        asks for them again.
        """
        return "known" if self._measured else "now" if self._may_measure else ""

    @property
    def _may_measure(self) -> bool:
        resting = self._state.engine.status().state in ("idle", "loading", "failed")
        return resting and self._measurements_left > 0 and not self.measuring

    @property
    def measuring(self) -> bool:
        return not self._ended.is_set()

    def _measure(self) -> None:
        from engine.plan import machine_rates

        known = self._measured
        self._measurements_left -= 1
        try:
            with diagnostics.ChildProcess() as child:
                measured = child.call(machine_rates, self._switch.data)
            self._measured = measured.best_of(known) if known else measured
        except (diagnostics.ProbeFailed, TrifoldError, RuntimeError, MemoryError, OSError) as error:
            logger.warning("the rates of this machine could not be measured: %s", error)
            self._measurements_left = 0
        finally:
            self._ended.set()

    def _later(self, shown: View) -> View:
        """Add the key ``measuring``: whether the speeds are missing and being measured now."""
        return {**shown, "measuring": self._measured is None and self.measuring}

    def _look(self, name: str) -> View:
        where = self._free_memory()
        if name in SHORT_NAMES:
            source = SOURCES[name]
            return sized(source.shape_of(name), None, source.LICENCE, False, where, self.rates())
        if is_hub_gguf(name) and self._switch.local_models.find(name) is None:
            return self._file_on_the_hub(name, where)
        if is_gguf(name):
            model = gguf_files.look(Path(name).expanduser())
            view = sized(model.shape, None, model.licence, False, where, self.rates())
            return {**view, "sentence": f"{view['sentence']} {model.note()}"}
        if is_hub_id(name) and self._switch.local_models.find(name) is None:
            return about_view(ask_the_hub(name), name, where, self.rates())
        self._switch.local_models.find(name)
        folder = self._switch.local_models.folder(name) or Path(name).expanduser()
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        return sized(shape_of(read_config(folder), name, weights), None, "", False, where, self.rates())

    def _file_on_the_hub(self, name: str, free: FreeMemory) -> View:
        about = ask_the_hub(name)
        if (model := known(name)) is None or model.shape is None:
            later = "known once it is here"
            return {"sentence": "The hub has it.", "size": size(about["total"]), "window": later, "kv": later}
        return sized(model.shape, None, about["licence"], about["gated"], free, self.rates())

    def _free_memory(self) -> FreeMemory:
        read = self._state.current.read
        held = read.kv_bytes.device or read.kv_bytes.host if read else 0
        switch = self._switch
        free = measure_free_memory(
            switch.data, self._state.engine.status(), held, switch.kv, switch.quantization, switch.device
        )
        start = switch.start
        return replace(free, kv=start.kv, quantization=start.quantization)

    def _report(self) -> str:
        switching: Any = self._switch.state
        facts = diagnostics.facts_of(self._switch.data, self._state.engine.status())
        facts.append(f"When       {time.strftime('%Y-%m-%d %H:%M:%S %z')}")
        if switching.cause:
            facts.append(f"Model      {switching.cause}")
        return diagnostics.report(self._switch.data, facts)
