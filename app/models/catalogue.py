"""The catalogue of models for whole books: pairs of a target and a draft model, with the facts known before a download.

The data is in ``catalogue.json``. For each model, ``sources`` states where values were looked up in November 2026:
``shape`` (layers, widths, heads, parameters), ``size`` (bytes of the files), ``window`` and ``licence``. Values without
a source were not looked up. A test checks that the number of parameters follows from the shape. Parameters of vision
and audio parts (Qwen 3.5, Gemma 4) are not counted. The values only inform the user: before a download, the program
asks the hub for the list of files and the model's settings.

``files`` has 4-bit GGUF files of these models, from the repository of the model's maker or from a widely used one. The
names and sizes of the files were taken from other programs. If the engine does not support GGUF files of an
architecture, its models have no file.

Before a download, ``switch.shares_vocabulary`` checks with both tokenizers whether a draft has its target's vocabulary.
In the catalogue, target and draft are of the same family, or both use the tokenizer of Llama 2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from app.core.settings import DEMO_DRAFT, DEMO_MODEL, READER, READER_LONG, SHORT_NAMES, STARTER, STARTER_LONG
from app.models import reader
from app.models.short_names import SOURCES
from engine.plan import Q4_K_M_FITTED, ModelShape, StateSize, card_bytes_per_weight

FILE = Path(__file__).with_suffix(".json")

COUNTED = "counted from its parameters"
"""Source of a size that was not looked up but computed from the number of parameters. The pair's note tells the user
so.
"""

_PICKLED = "Published as pickled weights, which are never opened: the hub's own conversion of them is taken."
_GATED = "Its maker wants the licence accepted on the hub first."
_NOT_LOOKED_UP = "Its size is counted from its numbers, and was not looked up."
_RUN = "tested with these weights"
_FIGURES = {
    "shape": "Source of layers and widths",
    "size": "Source of the size",
    "window": "Source of the window",
    "licence": "Source of the licence",
}
_OF_A_FILE = "lists in other programs"  # the source of a GGUF file's size


@dataclass(frozen=True)
class Model:
    """A model of the catalogue.

    Args:
        name: the model's hub id or folder.
        shape: the model's dimensions; None for a folder on this machine, whose files have the dimensions.
        licence: name of the licence.
        gated: whether the user must accept the licence on the hub before the download.
        pickled: whether the maker publishes the weights only as pickles. The hub's conversion to safetensors is then
            downloaded, if there is one.
        sources: where the figures were looked up, each as words for people.
    """

    name: str
    shape: ModelShape | None
    licence: str
    gated: bool = False
    pickled: bool = False
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pair:
    """A target model with its draft model. If ``draft`` is None, only the book's own text is used for drafting.

    ``tested`` says how far Trifold was tested with the pair.
    """

    id: str
    title: str
    target: Model
    draft: Model | None
    note: str
    tested: str = ""

    @property
    def names(self) -> tuple[str, str | None]:
        return self.target.name, self.draft.name if self.draft else None


DEMO = Pair(
    "demo",
    "Demo pair",
    Model(str(DEMO_MODEL), None, "MIT"),
    Model(str(DEMO_DRAFT), None, "MIT"),
    "Bundled. Shows the machine at work and can quote; it does not understand.",
    _RUN,
)


def _short(name: str, note: str) -> Pair:
    """Make a pair from a model with a short name. The pair has no draft."""
    source = SOURCES[name]
    model = Model(name, source.shape_of(name), source.LICENCE)
    return Pair(name, SHORT_NAMES[name], model, None, f"{note} {source.verdict(name)}", _RUN)


STARTER_PAIR = _short(
    STARTER,
    "SmolLM2 135M with Trifold's adapter, from the package index instead of the hub. For documents, not for books.",
)
STARTER_LONG_PAIR = _short(STARTER_LONG, "The same weights with twice the window (YaRN).")
READER_PAIR = _short(
    READER,
    "Qwen 2.5 Coder 1.5B in 4 bits, its publisher's own file, for a real conversation. From the hub, or in pieces "
    "from the package index.",
)
READER_LONG_PAIR = _short(
    READER_LONG,
    f"The same file with {reader.FACTOR} times the window, by YaRN as its makers say. They say too that short texts "
    "can suffer.",
)
SHORT_PAIRS = (STARTER_PAIR, STARTER_LONG_PAIR, READER_PAIR, READER_LONG_PAIR)


@lru_cache(maxsize=1)
def pairs() -> tuple[Pair, ...]:
    """Return the demo pair, the pairs with short names, the GGUF files, and the pairs of the catalogue file."""
    rows = json.loads(FILE.read_text(encoding="utf-8"))
    models = {name: _model(name, row) for name, row in rows["models"].items()}
    files = (_file(row, models[row["of"]], rows) for row in rows["files"])
    return (DEMO, *SHORT_PAIRS, *files, *(_pair(row, models, rows) for row in rows["pairs"]))


def _model(name: str, row: Mapping[str, Any]) -> Model:
    numbers = {field.name: row[field.name] for field in fields(ModelShape) if field.name in row}
    if "state" in numbers:
        numbers["state"] = StateSize(**numbers["state"])
    if "sliding_kv" in numbers:
        numbers["sliding_kv"] = tuple(numbers["sliding_kv"])
    shape, sources = ModelShape(**numbers), _sources(row["sources"])
    return Model(name, shape, row["licence"], row.get("gated", False), row.get("pickled", False), sources)


def _sources(found: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(f"{words}: {found[name]}" for name, words in _FIGURES.items() if name in found)


def _pair(row: Mapping[str, Any], models: Mapping[str, Model], rows: Mapping[str, Any]) -> Pair:
    target = models[row["target"]]
    draft = models[row["draft"]] if "draft" in row else None
    return Pair(row["id"], row["title"], target, draft, _note(row, target, rows), rows["tested"][row["tested"]])


def _file(row: Mapping[str, Any], original: Model, rows: Mapping[str, Any]) -> Pair:
    """Make a pair from a 4-bit GGUF file of the model ``original``. The pair has no draft."""
    assert original.shape is not None
    stored = row["bytes"] / original.shape.parameters
    fitted = Q4_K_M_FITTED if "Q4_K_M" in row["name"] else 1.0
    shape = replace(original.shape, weights_bytes=row["bytes"], stored=stored, fitted=fitted, expanded=False)
    shape = replace(shape, on_card=card_bytes_per_weight(stored, ()))
    sources = _sources({**rows["models"][row["of"]]["sources"], "size": _OF_A_FILE})
    model = Model(row["name"], shape, original.licence, sources=sources)
    note = f"{rows['remarks']['file']} {row['note']}".strip()
    return Pair(row["id"], row["title"], model, None, note, rows["tested"][row["tested"]])


def _note(row: Mapping[str, Any], target: Model, rows: Mapping[str, Any]) -> str:
    """Join the notes of a row: its own note, remarks that several rows share, and notes about the size, the licence and
    pickled weights.
    """
    asked = target.shape.parameters_asked / 1e9 if target.shape else 0.0
    shared = [rows["remarks"][name].format(asked=asked) for name in row.get("remarks", ())]
    counted = rows["models"][target.name]["sources"].get("size") == COUNTED
    follows = ((counted, _NOT_LOOKED_UP), (target.gated, _GATED), (target.pickled, _PICKLED))
    return " ".join((row["note"], *shared, *(words for applies, words in follows if applies)))


def find(target: str, draft: str | None) -> Pair | None:
    """Return the pair with this target and this draft; None if there is none."""
    return next((pair for pair in pairs() if pair.names == (target, draft)), None)


def known(name: str) -> Model | None:
    """Return the catalogue's model of this name; None if there is none."""
    models = [model for pair in pairs() for model in (pair.target, pair.draft) if model]
    return next((model for model in models if model.name == name), None)
