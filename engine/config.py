"""Defines the settings of the engine and of one answer, and how an option is declared (``Option``).

Settings are checked when they are made, and frozen afterwards.

An unknown key or a value out of range raises an ``OptionError``, which names the nearest key or the allowed range.
Values that depend on a model (a window larger than the model's) are checked when the model is loaded.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, TypeVar

from engine.errors import OptionError
from engine.quantization import FITTED

__all__ = [
    "GREEDY",
    "MAX_COUNT",
    "OWN_SAMPLING",
    "Checkbox",
    "EngineConfig",
    "Mode",
    "Option",
    "SamplingParams",
    "Slider",
    "from_mapping",
    "option",
    "options_of",
]

_MOST_SHOWN = 40  # maximum characters of a refused value that an error shows


@dataclass(frozen=True)
class Slider:
    """A number on the page: its label, what its default means, and the range that the page offers."""

    label: str
    hint: str
    low: float
    high: float
    step: float


@dataclass(frozen=True)
class Checkbox:
    label: str


@dataclass(frozen=True)
class Option:
    """The declaration of an option of an answer. ``option`` declares one as a field of ``SamplingParams``, of
    ``engine.Question`` or of the app's ``Ask``:

        top_k: int | None = option(None, kind=int, high=1_000_000, off=0, help="sample from ...", page=Slider(...))

    The record checks the value. The terminal, the page, /v1, a server elsewhere, a GGUF file's header and the line
    under an answer read the declarations (``options_of``). So a new option is a new field, and the code that obeys it.

    Args:
        kind: type of a value: bool, int, float, or str with ``choices``.
        help: what the option does, for the terminal.
        low, high: range of a number, both included.
        off: the value that counts if neither the person nor the model gives one. It need not be in the range. None for
            an option that a model's own settings cannot give; its default counts instead.
        if_greedy: whether the setting of a model that does not sample counts too.
        in_openai: whether OpenAI's protocol has the option.
        gguf: name of the model's setting in a GGUF header, after "general.sampling."; "" for none.
        said: how the line under an answer states a value; "" leaves it out.
        said_if_off: whether the line also states ``off``.
        page: the control in the page's answer settings; None for an option with markup of its own, or without any.
        name, default: of the field; filled in by ``options_of``.
    """

    kind: type
    help: str
    low: float = 0
    high: float = 0
    choices: tuple[str, ...] = ()
    off: Any = None
    if_greedy: bool = False
    in_openai: bool = False
    gguf: str = ""
    said: str = ""
    said_if_off: bool = True
    page: Slider | Checkbox | None = None
    name: str = ""
    default: Any = None

    @property
    def is_models(self) -> bool:
        """Whether a model's own settings can give the option."""
        return self.off is not None

    @property
    def allowed(self) -> str:
        """The values that are allowed, in words."""
        if self.kind is bool:
            return "true or false"
        if self.choices:
            return "one of " + ", ".join(self.choices)
        span = f"between {_digits(self.low)} and {_digits(self.high)}"
        whole = f"a whole number {span}" if self.kind is int else span
        return whole if self.off is None or self.low <= self.off <= self.high else f"{_digits(self.off)} or {whole}"

    def checked(self, value: Any) -> Any:
        """Return a value as the option's type. A whole number is also taken for a fraction.

        Raises:
            OptionError: the value has another type, or is out of range.
        """
        if value is None and self.default is None:
            return None
        number = isinstance(value, (int, float) if self.kind is float else int) and not isinstance(value, bool)
        if self.kind is bool:
            fits = isinstance(value, bool)
        elif self.choices:
            fits = value in self.choices
        else:
            fits = number and (value == self.off or self.low <= value <= self.high)
        if not fits:
            text = repr(value)
            shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"
            raise OptionError(f"The setting {self.name} is {shown}.", f"It must be {self.allowed}.")
        return self.kind(value)


def _digits(number: float) -> str:
    return f"{number:f}".rstrip("0").rstrip(".") if isinstance(number, float) else str(number)


def option(default: Any, **declared: Any) -> Any:
    """Declare a field of a frozen dataclass as an ``Option``. ``declared``: the arguments of ``Option``."""
    return field(default=default, metadata={Option: Option(**declared)})


@cache
def options_of(record: Any) -> tuple[Option, ...]:
    """The options that a dataclass declares, in the order of its fields."""
    pairs = ((one, one.metadata.get(Option)) for one in fields(record))
    return tuple(
        replace(declared, name=one.name, default=None if one.default is MISSING else one.default)
        for one, declared in pairs
        if declared is not None
    )


def check(record: Any) -> None:
    """Check every option of a frozen dataclass while it is made, and give each value its type.

    Raises:
        OptionError: a value has the wrong type, or is out of range.
    """
    kind: Any = type(record)
    for one in options_of(kind):
        object.__setattr__(record, one.name, one.checked(getattr(record, one.name)))


# Settings ------------------------------------------------------------------------------------------------------------

Mode = Literal["hierarchical", "plain"]
MODES: tuple[Mode, ...] = ("hierarchical", "plain")

MAX_SEED = 2**63 - 1
MIN_TEMPERATURE = 1e-6
"""Minimum temperature above 0. A lower one makes logits infinite in float32."""
MIN_TOP_P = 1e-6
"""Minimum top_p. A lower one selects no token in float32."""
MIN_PENALTY = 0.1
"""Minimum repetition penalty. Penalties below 1 favour repetition."""
MAX_PRESENCE = 2
"""Maximum presence penalty, and minus the minimum, as in OpenAI's protocol."""
MAX_COUNT = 1_000_000
"""Maximum value of settings that count tokens. No window or vocabulary is larger."""


@dataclass(frozen=True)
class SamplingParams:
    """How one answer is sampled. If an option that a model can give is None, the model's own setting is used
    (``own_sampling``). If the model has none, the value in ``GREEDY`` is used.

    Raises:
        OptionError: a value is out of its range.
    """

    temperature: float | None = option(
        None,
        kind=float,
        low=MIN_TEMPERATURE,
        high=5,
        off=0.0,
        help="0 always takes the most probable token",
        in_openai=True,
        gguf="temp",
        said="temperature {:g}",
        page=Slider("Temperature", "0: the likeliest word", 0, 2, 0.05),
    )
    top_p: float | None = option(
        None,
        kind=float,
        low=MIN_TOP_P,
        high=1,
        off=1.0,
        help="sample from the most probable tokens that together have this probability",
        in_openai=True,
        gguf="top_p",
        said="top-p {:g}",
        page=Slider("Top-p", "1: any word may come", 0.05, 1, 0.05),
    )
    top_k: int | None = option(
        None,
        kind=int,
        high=MAX_COUNT,
        off=0,
        help="sample from this many of the most probable tokens; 0 takes all",
        gguf="top_k",
        said="top-k {}",
        said_if_off=False,
        page=Slider("Top-k", "0: any word may come", 0, 200, 1),
    )
    repetition_penalty: float | None = option(
        None,
        kind=float,
        low=MIN_PENALTY,
        high=10,
        off=1.0,
        if_greedy=True,
        help="above 1, tokens of the answer are less likely to be repeated",
        gguf="penalty_repeat",
        said="repetition penalty {:g}",
        said_if_off=False,
        page=Slider("Repetition penalty", "1: off; more: fewer repeats", 1, 2, 0.05),
    )
    presence_penalty: float | None = option(
        None,
        kind=float,
        low=-MAX_PRESENCE,
        high=MAX_PRESENCE,
        off=0.0,
        if_greedy=True,
        help="is subtracted from the logits of tokens that the answer has already",
        in_openai=True,
        said="presence penalty {:g}",
        said_if_off=False,
        page=Slider("Presence penalty", "0: off; more: other words", 0, MAX_PRESENCE, 0.1),
    )
    exact_quotes: bool | None = option(
        None,
        kind=bool,
        off=False,
        if_greedy=True,
        help="allow only words of the book between quotation marks",
        said="quotes only what stands in the book",
        said_if_off=False,
        page=Checkbox("Quote only what stands in the book, word for word"),
    )
    max_tokens: int = option(
        4096,
        kind=int,
        low=1,
        high=MAX_COUNT,
        help="maximum length of the answer, in tokens",
        in_openai=True,
        said="at most {} tokens",
        page=Slider("Length", "tokens at most", 32, 8192, 32),
    )
    think: bool | None = option(
        None,
        kind=bool,
        help="let the model think before it answers, if it can",
        said="thought first",
        page=Checkbox("Think first"),
    )
    think_tokens: int | None = option(
        None,
        kind=int,
        high=MAX_COUNT,
        help="maximum length of what the model thinks, in tokens; then its answer follows",
    )
    seed: int | None = option(
        None,
        kind=int,
        high=MAX_SEED,
        help="makes a sampled answer repeatable if all settings are equal; so give --budget and --chunk-size too",
        in_openai=True,
        said="seed {}",
    )

    def __post_init__(self) -> None:
        check(self)

    def over(self, defaults: SamplingParams) -> SamplingParams:
        """Replace each option that is None by the same option of ``defaults``."""
        return replace(self, **{name: getattr(defaults, name) for name in OWN_SAMPLING if getattr(self, name) is None})


@dataclass(frozen=True)
class EngineConfig:
    """Settings of the engine: its models, and how they decode. Lengths are in tokens.

    Args:
        model: folder or hub id of the target model.
        draft: folder or hub id of the draft model; None drafts with the model's own draft head, if its folder has one,
            and otherwise decodes with the middle level alone.
        context: tokens of the window to reserve; None takes the model's own window.
        device: "auto", "cpu", "cuda" or "cuda:1", "xpu" or "mps"; "cuda:0,cuda:1" allows both GPUs, if one cannot hold
            everything.
        dtype: "auto", "float32", "bfloat16" or "float16" for weights and KV.
        weights: format of the target's weights: "stored", or "8bit" or "4bit" to round them for less memory; answers
            are then exact with respect to the rounded weights.
        kv: format of the target's KV: "model" keeps it in the model's dtype; "8bit" rounds it for less memory, and
            answers are then approximate: exact only with respect to the rounded KV.
        middle: weights of the middle level, which only proposes: "stored" uses the target's weights; "8bit" and "4bit"
            use an additional rounded copy, on a GPU only "4bit"; "auto" makes a copy if it is expected to pay off.
        num_draft_tokens: tokens that the draft model proposes per pass of the middle level (the paper's gamma 1); if
            not given, gamma 1 and gamma 2 are chosen every round from measured costs and acceptance.
        num_lookup_tokens: maximum number of tokens of the book that are proposed at once while the answer copies the
            book; 0 turns this off.
        num_pending_tokens: tokens gathered before one verification (the paper's gamma 2).
        retrieval_budget: tokens of the book that the retrieval cache holds per layer and KV head; if not given, a
            number that hardly slows a pass on this machine, or 1,024 if nothing has been measured.
        retrieval_share: raises the budget for a long book to the book's tokens divided by this number, but to 8,192 at
            most; 0 never raises the budget. If neither a budget nor this number is given, a number is chosen for a
            model on a CPU, and 0 otherwise.
        chunk_size: neighbouring tokens that are selected together; if not given, a small number on a CPU with enough
            memory for the mean keys of small chunks, and a larger number otherwise.
        refresh: when the retrieval selection is refreshed: "every" (after a fixed number of verifications), "drop"
            (when acceptance drops) or "never".
        refresh_every: number of verifications from one refresh to the next, for "every"; if not given, at least 2, and
            at least 4 for the first refresh of an answer.
        num_sink_tokens: first tokens that the draft's streaming cache keeps.
        window_size: newest tokens that the draft's streaming cache keeps.
        graphs: on a GPU, "auto" records and replays steps of the draft model, passes of the middle level and
            verifications if that is exact and faster; "off" records nothing.
        prefill_block: tokens that go through a layer at once while a book is read; if not given, a number that is fast
            on this machine.
        prefill_segment: tokens that go through all layers before the next tokens start. After each segment, the part of
            a book that has been read can be used.
        host_memory: memory that the caches may take on this machine, such as 4G; "auto" takes most of what is free.
        device_memory: memory that the caches may take on each GPU, such as 12G; "auto" takes most of what is free.
        spill_folder: folder for KV that does not fit in memory; "auto" takes the snapshot folder, or the system's
            temporary folder.
        speeds_file: file with the results of short probes of this machine; with an empty name nothing is probed.
        tried_folder: folder that records which tokenizers and chat templates have been tried and found harmless; with
            an empty name nothing is recorded.
        kernels_folder: folder for compiled kernels; with an empty name they are compiled at each start.
        snapshot_folder: folder for the KV of books that were read; with an empty name nothing is stored.
        snapshot_cap: maximum disk space of all stored books together, such as 20G; "auto" takes a quarter of the free
            space.
    """

    model: str
    draft: str | None = None
    context: int | None = None
    device: str = "auto"
    dtype: str = "auto"
    weights: str = "stored"
    kv: str = "model"
    middle: str = "auto"
    num_draft_tokens: int | None = None
    num_lookup_tokens: int = 32
    num_pending_tokens: int | None = None
    retrieval_budget: int | None = None
    retrieval_share: int | None = None
    chunk_size: int | None = None
    refresh: str = "every"
    refresh_every: int | None = None
    num_sink_tokens: int = 4
    window_size: int = 252
    graphs: str = "auto"
    prefill_block: int | None = None
    prefill_segment: int = 4096
    host_memory: str = "auto"
    device_memory: str = "auto"
    spill_folder: str = "auto"
    speeds_file: str = ""
    tried_folder: str = ""
    kernels_folder: str = ""
    snapshot_folder: str = ""
    snapshot_cap: str = "auto"

    def __post_init__(self) -> None:
        _check(bool(self.model), "model", self.model, "a folder or a hub id")
        _check(self.context is None or self.context >= 64, "context", self.context, "at least 64 tokens")
        _check(self.dtype in DTYPES, "dtype", self.dtype, "one of " + ", ".join(DTYPES))
        _check(self.weights in (*WEIGHTS, FITTED), "weights", self.weights, "one of " + ", ".join(WEIGHTS))
        _check(self.kv in KV_NOTES, "kv", self.kv, "one of " + ", ".join(KV_NOTES))
        _check(self.middle in MIDDLES, "middle", self.middle, "one of " + ", ".join(MIDDLES))
        _check(0 <= (self.num_draft_tokens or 0) <= 64, "num_draft_tokens", self.num_draft_tokens, "0 to 64")
        _check(0 <= self.num_lookup_tokens <= 128, "num_lookup_tokens", self.num_lookup_tokens, "0 to 128")
        pending = self.num_pending_tokens
        _check(pending is None or 1 <= pending <= 256, "num_pending_tokens", pending, "1 to 256")
        chunk = 1 if self.chunk_size is None else self.chunk_size
        _check(1 <= chunk <= 256, "chunk_size", self.chunk_size, "1 to 256")
        _check(
            self.retrieval_budget is None or self.retrieval_budget >= chunk,
            "retrieval_budget",
            self.retrieval_budget,
            f"at least one chunk ({chunk})",
        )
        _check((self.retrieval_share or 0) >= 0, "retrieval_share", self.retrieval_share, "0 or more")
        _check(self.refresh in REFRESHES, "refresh", self.refresh, "one of " + ", ".join(REFRESHES))
        _check(self.refresh_every is None or self.refresh_every >= 1, "refresh_every", self.refresh_every, "at least 1")
        _check(self.graphs in GRAPHS, "graphs", self.graphs, "one of " + ", ".join(GRAPHS))
        _check(self.num_sink_tokens >= 0, "num_sink_tokens", self.num_sink_tokens, "0 or more")
        _check(self.window_size >= 8, "window_size", self.window_size, "at least 8")
        _check((self.prefill_block or 1) >= 1, "prefill_block", self.prefill_block, "at least 1")
        _check(self.prefill_segment >= 1, "prefill_segment", self.prefill_segment, "at least 1")
        for name in ("host_memory", "device_memory", "snapshot_cap"):
            value = getattr(self, name)
            _check(value == "auto" or _SIZE.fullmatch(value), name, value, "auto or a size such as 256M or 20G")


_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)B?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def bytes_of(size: str) -> int | None:
    """The number of bytes in a checked size such as "256M"; None for "auto"."""
    match = _SIZE.fullmatch(size)
    return int(float(match[1]) * _SIZE_UNITS[match[2].upper()]) if match else None


DTYPES = ("auto", "float32", "bfloat16", "float16")
WEIGHTS = ("stored", "8bit", "4bit")
MIDDLES = ("auto", *WEIGHTS)
KV_NOTES = {"model": "", "8bit": "KV 8-bit: approximate; exact with respect to 8-bit KV"}
"""Notes that are shown to the person, keyed by format of KV."""

WEIGHTS_NOTES = {
    FITTED: "Weights rounded to fit the GPU: exact with respect to the rounded weights",
}
"""Notes that are shown to the person, keyed by format of weights that the planner chose."""

UNCHANGED_NOTE = "Weights as stored in the GGUF file: exact with respect to them"
"""Note that is shown to the person if the products read the blocks of a GGUF file."""

REFRESHES = ("every", "drop", "never")
GRAPHS = ("auto", "off")

_Config = TypeVar("_Config", SamplingParams, EngineConfig)


def from_mapping(kind: type[_Config], values: Mapping[str, Any]) -> _Config:
    """Build a settings record from a mapping, refusing unknown keys.

    Raises:
        OptionError: a key is unknown (the message names the nearest known one), or a value has a wrong type or is out
            of range.
    """
    known = [f.name for f in fields(kind)]
    for key in values:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(known)}."
            raise OptionError(f"There is no setting {key!r}.", hint)
    try:
        return kind(**values)
    except TypeError as error:
        raise OptionError(f"A setting has a value of the wrong kind: {error}.") from error


def _check(ok: object, name: str, value: object, allowed: str) -> None:
    if isinstance(value, float) and math.isnan(value):
        ok = False
    if not ok:
        raise OptionError(f"The setting {name} is {value!r}.", f"It must be {allowed}.")


OWN_SAMPLING = tuple(one.name for one in options_of(SamplingParams) if one.is_models)
"""Options that a model's own settings can give."""

GREEDY = SamplingParams(**{one.name: one.off for one in options_of(SamplingParams) if one.is_models})
"""The values of options that are given neither by the person nor by the model."""


def own_sampling(settings: Mapping[str, Any]) -> SamplingParams:
    """Read the sampling options that a model's maker recommends.

    Without ``do_sample`` the model is greedy, and only options are read that count then (``Option.if_greedy``).
    ``exact_quotes`` is Trifold's own key, which other programs ignore. Options that ``settings`` lacks stay None,
    because the defaults of transformers (a top-k of 50, say) were not chosen for this model. The exception is the
    temperature of a model that samples: if missing, it is 1. Values out of range are ignored.

    Args:
        settings: content of the model's ``generation_config.json``.
    """
    sampled = settings.get("do_sample") is True
    own = SamplingParams(temperature=1.0 if sampled and settings.get("temperature") is None else None)
    for one in options_of(SamplingParams):
        value: Any = settings.get(one.name)
        if one.is_models and (sampled or one.if_greedy) and value is not None:
            if one.kind is int and isinstance(value, float):
                value = int(value) if math.isfinite(value) else None
            with suppress(OptionError):
                own = replace(own, **{one.name: value})
    return own
