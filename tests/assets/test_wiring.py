"""The circuit that the demo recipe writes by hand: it looks words up before any training, at any distance."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

DEMO = Path(__file__).resolve().parents[2] / "assets" / "demo"
BOS, SYSTEM, USER, ASSISTANT, ELLIPSIS, CLOSER, NEW_LINE, FIRST_WORD = 0, 2, 3, 4, 6, 7, 8, 9
IDS = {"bos": BOS, "eos": 5, "pad": 1}
BOOK_TOKENS, ANSWER_TOKENS, QUESTION_TOKENS = 1500, 24, 6
SURE_FROM = 3
BOOK, BEGIN, QUESTION = 0, 1, 2
"""Heads of the lookup layer."""


@pytest.fixture(scope="module")
def recipe() -> Iterator[tuple[ModuleType, ModuleType, ModuleType]]:
    sys.path.insert(0, str(DEMO))
    try:
        from recipe import guidance, network, wiring

        yield guidance, network, wiring
    finally:
        sys.path.remove(str(DEMO))


@pytest.fixture(scope="module")
def model(recipe: tuple[ModuleType, ModuleType, ModuleType]) -> Any:
    _, network, wiring = recipe
    torch.manual_seed(0)
    wired = network.build(num_layers=4, width=384, ffn=64, heads=3, token_ids=IDS).eval()
    wiring.wire(wired, special(wiring), seed=1)
    return wired


def special(wiring: ModuleType) -> Any:
    return wiring.Special(BOS, SYSTEM, USER, ASSISTANT, ELLIPSIS, (CLOSER, IDS["eos"]))


def attention(
    recipe: tuple[ModuleType, ModuleType, ModuleType],
    model: Any,
    ids: list[int],
    places: list[int],
    far: int,
) -> torch.Tensor:
    """Probabilities (heads, places, seq) of the lookup layer; the chat after the book is `far` positions away."""
    guidance, _, wiring = recipe
    seq = torch.tensor([ids])
    positions = torch.arange(len(ids))[None]
    positions[:, BOOK_TOKENS:] += far
    with torch.no_grad():
        hidden = model.model.embed_tokens(seq)
        rotary = model.model.rotary_emb(hidden, positions)
        for layer in model.model.layers[: wiring.LOOKUP_LAYER]:
            hidden = layer(hidden, attention_mask=None, position_ids=positions, position_embeddings=rotary)
        layer = model.model.layers[wiring.LOOKUP_LAYER]
        queries, keys = guidance._queries_and_keys(layer, hidden, rotary, range(3))
        where = torch.tensor(places)
        scores = guidance._own_scores(queries, keys, torch.zeros_like(where), where)
        return (scores * layer.self_attn.scaling).softmax(-1)


@pytest.mark.parametrize("far", [0, 100_000])
def test_lookup_heads_find_the_passage_that_is_being_copied(
    recipe: tuple[ModuleType, ModuleType, ModuleType], model: Any, far: int
) -> None:
    rng = random.Random(5)
    ids = [BOS, SYSTEM, *(rng.randrange(FIRST_WORD, 4096) for _ in range(BOOK_TOKENS - 2))]
    source = rng.randrange(200, 1200)
    question = ids[source : source + QUESTION_TOKENS]
    ids += [USER, *question, IDS["eos"], ASSISTANT]
    begin = len(ids)
    ids += ids[source : source + ANSWER_TOKENS]
    places = [begin + offset for offset in range(SURE_FROM, ANSWER_TOKENS - 1)]
    seen = attention(recipe, model, ids, places, far)
    wanted = torch.tensor([source + offset + 1 for offset in range(SURE_FROM, ANSWER_TOKENS - 1)])
    mass = seen[BOOK].gather(1, wanted[:, None])
    assert (mass > 0.5).float().mean() > 0.8, mass.flatten()


@pytest.mark.parametrize("far", [0, 100_000])
def test_the_words_of_a_question_are_copied_from_it_and_then_the_book_goes_on(
    recipe: tuple[ModuleType, ModuleType, ModuleType], model: Any, far: int
) -> None:
    rng = random.Random(9)
    words = rng.sample(range(FIRST_WORD, 4096), BOOK_TOKENS - 2)
    ids, asked, goes_on = [BOS, SYSTEM, *words], [], []
    elsewhere: list[int] = []
    for _ in range(12):
        source = rng.randrange(10, BOOK_TOKENS - 60)
        key = ids[source : source + 4]
        ids += [IDS["eos"], NEW_LINE, USER, NEW_LINE, *rng.sample(words, 3), CLOSER]
        place = len(ids)
        ids += [*key, CLOSER, IDS["eos"], NEW_LINE, ASSISTANT, NEW_LINE, ELLIPSIS]
        asked += [(len(ids) + offset, place + offset + 1) for offset in range(3)]
        ids += key
        goes_on.append((len(ids) - 1, source + 4))
        ids += ids[source + 4 : source + 20]
        elsewhere += range(len(ids) - 6, len(ids) - 1)
    seen = attention(recipe, model, ids, [place for place, _ in asked], far)
    mass = seen[QUESTION].gather(1, torch.tensor([wanted for _, wanted in asked])[:, None])
    assert (mass > 0.5).float().mean() > 0.85, mass.flatten()
    seen = attention(recipe, model, ids, [place for place, _ in goes_on], far)
    mass = seen[BEGIN].gather(1, torch.tensor([wanted for _, wanted in goes_on])[:, None])
    assert (mass > 0.5).float().mean() > 0.7, mass.flatten()
    seen = attention(recipe, model, ids, elsewhere, far)
    assert (seen[BEGIN:, :, 0] > 0.5).float().mean() > 0.9, "both are silent further on in a quotation"


def test_what_ends_the_words_of_a_question_is_not_passed_on(
    recipe: tuple[ModuleType, ModuleType, ModuleType], model: Any
) -> None:
    wiring, heads = recipe[2], model.model.layers[recipe[2].LOOKUP_LAYER].self_attn
    columns = slice(QUESTION * wiring.HEAD_DIM, QUESTION * wiring.HEAD_DIM + wiring.CODE)
    codes = model.model.embed_tokens.weight[:, wiring.TOKEN]
    passed_on = (codes @ heads.o_proj.weight[wiring.COPY, columns].mT).norm(dim=1)
    assert passed_on[[BOS, CLOSER, IDS["eos"]]].max() < 1e-3 * passed_on.median()
    assert passed_on[FIRST_WORD:].min() > 0.7 * passed_on.median()


def test_without_a_match_the_first_token_wins(recipe: tuple[ModuleType, ModuleType, ModuleType], model: Any) -> None:
    rng = random.Random(6)
    words = rng.sample(range(FIRST_WORD, 4096), BOOK_TOKENS + 40)
    ids = [BOS, SYSTEM, *words[: BOOK_TOKENS - 2], USER, *words[BOOK_TOKENS : BOOK_TOKENS + 40]]
    seen = attention(recipe, model, ids, list(range(BOOK_TOKENS + 5, len(ids))), 0)
    assert (seen[0, :, 0] > 0.5).float().mean() > 0.6


def test_of_two_passages_that_share_their_last_words_the_longer_match_wins(
    recipe: tuple[ModuleType, ModuleType, ModuleType], model: Any
) -> None:
    rng = random.Random(7)
    ids = [BOS, SYSTEM, *(rng.randrange(FIRST_WORD, 4096) for _ in range(BOOK_TOKENS - 2))]
    shared, right = 5, []
    places = range(100, 1300, 100)
    for place in places:
        ids[place + 50 - shared : place + 50] = ids[place - shared : place]
    ids += [USER]
    for place in places:
        ids += [ASSISTANT, *ids[place - 9 : place]]
        right.append(len(ids) - 1)
    seen = attention(recipe, model, ids, right, 0)
    longer = seen[BOOK].gather(1, torch.tensor(places)[:, None]).flatten()
    other = seen[BOOK].gather(1, torch.tensor(places)[:, None] + 50).flatten()
    assert (longer > other).float().mean() > 0.9, (longer, other)


def test_training_cannot_blur_what_is_looked_up_in_the_book(
    recipe: tuple[ModuleType, ModuleType, ModuleType], model: Any
) -> None:
    _, _, wiring = recipe
    trained, guard = copy.deepcopy(model), wiring.Guard(model, special(wiring))
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in trained.model.layers.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    guard.restore(trained)
    ids = [BOS, SYSTEM, *(random.Random(8).randrange(FIRST_WORD, 4096) for _ in range(BOOK_TOKENS - 2))]
    ids += [USER, *ids[300:330], ASSISTANT, *ids[300:330]]
    places = list(range(len(ids) - 20, len(ids)))
    before, after = (attention(recipe, one, ids, places, 0) for one in (model, trained))
    heads = recipe[2].BOOK_HEADS
    torch.testing.assert_close(after[:heads], before[:heads], atol=1e-5, rtol=1e-3)


def test_a_trained_target_lends_its_layers_to_a_fresh_circuit(
    recipe: tuple[ModuleType, ModuleType, ModuleType], model: Any
) -> None:
    _, _, wiring = recipe
    torch.manual_seed(4)
    trained = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter.add_(torch.randn_like(parameter))
    fresh = copy.deepcopy(model)
    wiring.take_over(fresh, trained, special(wiring))
    kept = fresh.model.layers[wiring.LOOKUP_LAYER].self_attn.q_proj.weight
    assert torch.equal(kept, model.model.layers[wiring.LOOKUP_LAYER].self_attn.q_proj.weight)
    assert torch.equal(fresh.model.layers[0].mlp.up_proj.weight, model.model.layers[0].mlp.up_proj.weight)
    assert torch.equal(fresh.model.layers[3].mlp.up_proj.weight, trained.model.layers[3].mlp.up_proj.weight)
    mine, theirs, wired = (one.model.embed_tokens.weight for one in (fresh, trained, model))
    marks = torch.zeros(mine.shape[1], dtype=torch.bool)
    marks[wiring.MARKS] = True
    assert torch.equal(mine[:, ~marks], theirs[:, ~marks])
    # An opener's own mark is fitted to the rest of its row.
    marks[wiring.ANY_ROLE] = False
    assert torch.equal(mine[:, marks], wired[:, marks])
    assert torch.equal(mine[:, wiring.ANY_ROLE] > 0, wired[:, wiring.ANY_ROLE] > 0)
