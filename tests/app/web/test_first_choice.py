"""What the choice before the first book says, and who is offered a book that is too long."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.open_book import OpenBook, Stage
from app.core.settings import DEMO_DRAFT, DEMO_MODEL, STARTER, STARTER_LONG, ModelChoice, Remote
from app.models import starter
from app.models.local import LocalModels
from app.models.proposal import best_pair
from app.web.first_choice import choices, others
from app.web.preferences import cards
from engine.plan import BOOK_TOKENS, FreeMemory, MachineRates, fit_pair
from engine.plan.memory_budget import BookFit

GB = 10**9
LAPTOP = FreeMemory(32 * GB, 10**12, on_gpu=False)
CARD = FreeMemory(80 * GB, 10**12, on_gpu=True)


def by_id(models: Path, free: FreeMemory) -> dict[str, Any]:
    return {option["id"]: option for option in choices(LocalModels(models), free)}


def test_what_is_proposed_is_what_the_memory_and_the_evaluation_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = by_id(tmp_path, LAPTOP)
    best = best_pair(LAPTOP).pair
    assert list(found) == ["demo", "starter", "reader", best.id]
    assert found["reader"]["title"] == "Reader: a real conversation, 1.1 GB"
    assert found["reader"]["action"] == "Fetch 1.1 GB and use it"
    assert "Qwen2.5-Coder-1.5B-Instruct, 4 bits" in found["reader"]["more"]
    assert found["reader"]["proposed"]
    assert found["starter"]["line"] == "Answers about documents of up to about 17 pages of 300 words here."
    assert found["starter"]["action"] == "Fetch 93 MB and use it"
    assert [found[name]["more"].rpartition(" ")[2] for name in ("demo", "starter", "reader")] == [
        "MIT.",
        "2.0.",
        "2.0.",
    ]
    assert found[best.id]["title"].startswith(f"The best that fits this machine: {best.title}, ")
    assert (
        found[best.id]["line"]
        == "A model of the Hugging Face hub, for documents of up to about 272 pages of 300 words here."
    )
    assert [option["look"] for option in found.values()] == [False, False, False, True]
    little = FreeMemory(2 * GB, 10**12, on_gpu=False)
    for right, proposed in ((0.07, "demo"), (0.6, "starter")):
        monkeypatch.setattr(starter, "right_answers", lambda right=right: right)
        assert [id for id, option in by_id(tmp_path, little).items() if option["proposed"]] == [proposed]


def test_what_does_not_fit_is_neither_offered_nor_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starter, "right_answers", lambda: 1.0)
    found = by_id(tmp_path, FreeMemory(GB // 4, 0, on_gpu=False))
    assert list(found) == ["demo", "starter", "reader"]
    for name in ("starter", "reader"):
        assert found[name]["action"] == ""
        assert found[name]["line"].startswith("Does not fit")
    assert found["demo"]["proposed"]


RATES = MachineRates(flops=10**12, memory=10**11, bus=0, disk=10**9)


def test_the_settings_compare_the_present_model_with_two_that_suit_the_machine(tmp_path: Path) -> None:
    """The list of models had sixty entries, each with the bytes of its cache."""
    models = LocalModels(tmp_path)
    best = best_pair(LAPTOP).pair
    shown = cards(models, LAPTOP, ModelChoice(str(DEMO_MODEL), str(DEMO_DRAFT)), RATES)
    assert [card["id"] for card in shown] == ["demo", "reader", best.id]
    assert shown[0]["does"].startswith("Only quotes")
    assert shown[0]["name"] == "trifold-demo-11M"
    assert shown[1]["does"] == "Talks in its own words about documents of up to about 79 pages of 300 words here."
    assert shown[1]["name"] == "Qwen2.5-Coder-1.5B-Instruct, 4 bits"
    assert shown[1]["pace"].startswith("A 79-page book: ")
    assert shown[2]["name"] == best.target.name
    assert shown[2]["pace"].startswith("A 100-page book: ")
    assert [card["id"] for card in cards(models, LAPTOP, ModelChoice(STARTER, None))] == ["starter", "reader", best.id]
    little = FreeMemory(GB // 4, 0, on_gpu=False)
    assert [card["id"] for card in cards(models, little, None)] == ["demo"]
    tight = FreeMemory(22 * GB, 60 * GB, on_gpu=False)  # memory for fewer pages than the disk has room for
    large = cards(models, tight, None, RATES)[1]
    assert re.findall(r"up to about (\d+) pages", large["does"]) == re.findall(r"A (\d+)-page", large["pace"])
    own = cards(models, LAPTOP, ModelChoice("owner/name", None))
    assert (own[0]["name"], own[0]["does"]) == ("owner/name", "Talks in its own words.")


def test_a_card_gets_the_largest_that_holds_a_book_and_a_laptop_a_file_of_4_bits() -> None:
    large = best_pair(CARD)
    shape: Any = large.pair.target.shape
    assert shape.parameters > 13 * GB
    assert fit_pair(shape, large.pair.draft.shape if large.pair.draft else None, CARD).tokens >= BOOK_TOKENS
    assert not large.pair.target.gated
    for memory, proposed in (
        (9, "qwen3-4b-file"),
        (11, "llama-3.1-8b-file"),
        (16, "qwen3-8b-file"),
        (24, "qwen3-30b-a3b-file"),
    ):
        assert best_pair(FreeMemory(memory * GB, 10**12, on_gpu=False)).pair.id == proposed
    assert best_pair(FreeMemory(GB, 0, on_gpu=False)) is None


@pytest.mark.parametrize(
    ("card", "chosen", "rounded"),
    [
        (8, "granite-4.0-h-tiny", "4bit"),
        (12, "gemma-4-e4b", "4bit"),
        (16, "qwen3.5-9b", "4bit"),
        (24, "gemma-4-26b-a4b", "4bit"),
        (80, "gemma-4-31b", ""),
    ],
)
def test_a_card_gets_a_larger_model_rounded(tmp_path: Path, card: int, chosen: str, rounded: str) -> None:
    """A card of 24 GB was offered 8 billion parameters in 16 bits, and holds 26 billion in 4 with a whole book."""
    free = FreeMemory(int(card * 0.92 * 2**30), 10**12, on_gpu=True, host=64 * GB)
    best = best_pair(free)
    assert (best.pair.id, best.rounding.weights if best.rounding else "") == (chosen, rounded)
    assert best.fit.tokens >= BOOK_TOKENS
    option = by_id(tmp_path, free)[chosen]
    assert option["weights"] == rounded
    assert ("rounded here to 4-bit weights" in option["line"]) == bool(rounded)


DEMO_CHOICE = ModelChoice(str(DEMO_MODEL), str(DEMO_DRAFT))


@pytest.mark.parametrize(
    ("present", "tokens", "here", "offered"),
    [
        (ModelChoice(STARTER, None), 12_000, True, [STARTER_LONG, str(DEMO_MODEL)]),
        (ModelChoice(STARTER, None), 40_000, True, [str(DEMO_MODEL)]),
        (ModelChoice(STARTER, None), 120_000, True, []),
        (ModelChoice("owner/name", None), 12_000, False, [str(DEMO_MODEL)]),
        (ModelChoice("owner/name", None), 12_000, True, [str(DEMO_MODEL)]),
        (DEMO_CHOICE, 150_000, True, []),
        (ModelChoice(STARTER, None, Remote("http://127.0.0.1:9/v1")), 12_000, True, []),
    ],
)
def test_a_book_that_is_too_long_is_offered_to_models_that_hold_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: ModelChoice, tokens: int, here: bool, offered: list[str]
) -> None:
    monkeypatch.setattr(starter, "is_made", lambda *_: here)
    switch: Any = SimpleNamespace(present=present, local_models=LocalModels(tmp_path))
    fit = BookFit(tokens, 8192, False, 10, 0, "It is too long.")
    current = dataclasses.replace(OpenBook(), stage=Stage.CHOOSING, fit=fit)
    found = others(current, switch)
    assert [one["target"] for one in found] == offered
    assert [bool(one["worth"]) for one in found] == [one != str(DEMO_MODEL) for one in offered]
    assert others(dataclasses.replace(current, stage=Stage.READY), switch) == []
