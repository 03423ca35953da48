"""The law of the sampled text: exact by enumeration at every level, and within sampling noise by draws."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from engine.config import MIN_TEMPERATURE, MIN_TOP_P, SamplingParams
from engine.decode import distributions, verify
from engine.decode.verify import Sampler, draw, make_generator, make_sampler, rejection_sample, residual
from engine.model.distilled import PartialHead
from tests.engine.dense import dense

DRAWS = 100_000
# Draws through rejection_sample itself, which takes one text at a time: with these the rule that draws from p after a
# rejection is off by three times the bound of each test below, or more.
JUDGED = 7_000
SETTINGS = [SamplingParams(temperature=0.6, top_p=0.9), SamplingParams(temperature=1.0)]


def laws(count: int, vocabulary: int, seed: int, params: SamplingParams) -> torch.Tensor:
    """Peaked, overlapping, unequal distributions, as the levels of the hierarchy have."""
    logits = 1.5 * torch.randn(count, vocabulary, generator=torch.Generator().manual_seed(seed))
    return dense(Sampler(params)(logits), vocabulary)


def total_variation(counts: torch.Tensor, law: torch.Tensor) -> float:
    return 0.5 * float((counts / counts.sum() - law).abs().sum())


def noise(law: torch.Tensor, draws: int) -> float:
    """Four times the expected total variation of ``draws`` samples from the law itself."""
    return 4.0 * 0.5 * float(torch.sqrt(2 * law * (1 - law) / (math.pi * draws)).sum())


BLOCK = 8


def judged(q: torch.Tensor, p: torch.Tensor, g: torch.Generator) -> list[int]:
    """Judge a block of tokens drawn from q, all against the same p: every token that comes out is a draw from p."""
    proposed = draw(q.expand(BLOCK, -1), g)
    sampled = rejection_sample(proposed, q.expand(BLOCK, -1), p.expand(BLOCK + 1, -1), g)
    return [*proposed[: sampled.num_accepted].tolist(), sampled.tokens[-1]]


@pytest.mark.parametrize("params", SETTINGS, ids=["T=0.6,p=0.9", "T=1.0"])
def test_one_level_by_enumeration(params: SamplingParams) -> None:
    """sum over x of q(x) [accept -> x, reject -> residual] is p, for the numbers it computes with."""
    q, p = laws(64, 12, 1, params), laws(64, 12, 2, params)
    kept = torch.minimum(p, q)
    rejected = 1.0 - kept.sum(dim=1, keepdim=True)
    assert torch.allclose(kept + rejected * residual(p, q), p, atol=1e-6)


@pytest.mark.parametrize("params", SETTINGS, ids=["T=0.6,p=0.9", "T=1.0"])
def test_two_levels_by_draws(params: SamplingParams) -> None:
    """Draft -> middle -> verify: the first token that comes out has the law of the full target."""
    vocabulary, g = 12, make_generator(7, torch.device("cpu"))
    draft, middle, full = (laws(1, vocabulary, seed, params) for seed in (3, 4, 5))
    inner, outer = torch.zeros(vocabulary), torch.zeros(vocabulary)
    while outer.sum() < JUDGED:
        pending = torch.tensor(judged(draft, middle, g))
        inner += torch.bincount(pending, minlength=vocabulary)
        n = pending.shape[0]
        sampled = rejection_sample(pending, middle.expand(n, -1), full.expand(n + 1, -1), g)
        out = torch.tensor([*pending[: sampled.num_accepted].tolist(), sampled.tokens[-1]])
        outer += torch.bincount(out, minlength=vocabulary)
    assert total_variation(inner, middle[0]) < noise(middle[0], JUDGED)
    assert total_variation(outer, full[0]) < noise(full[0], JUDGED)
    # The levels really differ: without the judging the test could not fail.
    assert total_variation(inner, full[0]) > 2 * noise(full[0], JUDGED)


@pytest.mark.parametrize(
    "params",
    [*SETTINGS, SamplingParams(temperature=0.8, top_k=4, top_p=0.95, repetition_penalty=1.3)],
    ids=["T=0.6,p=0.9", "T=1.0", "T=0.8,k=4,p=0.95,penalty=1.3"],
)
def test_a_draft_that_cannot_say_some_tokens_leaves_the_law_as_it_is(params: SamplingParams) -> None:
    """A distilled draft's head has the most frequent tokens alone. Those that it lacks come by the residual, also where
    they are the likeliest, or where what it says is nothing that the target could."""
    vocabulary, rows, g = 12, 64, torch.Generator().manual_seed(21)
    wanted = 1.5 * torch.randn(rows, vocabulary, generator=g)
    head = PartialHead(torch.nn.Identity(), torch.arange(0, vocabulary, 3), vocabulary)
    said = head(wanted[:, ::3] + torch.randn(rows, vocabulary // 3, generator=g))
    sampler = make_sampler(params, torch.tensor([0, 5, 6]))
    p, q = (dense(sampler(logits), vocabulary) for logits in (wanted, said))
    assert bool((q.view(rows, -1, 3)[..., 1:] == 0).all())
    kept = torch.minimum(p, q)
    rejected = 1.0 - kept.sum(dim=1, keepdim=True)
    assert torch.allclose(kept + rejected * residual(p, q), p, atol=1e-6)
    assert bool((kept.sum(dim=1) == 0).any()) or params.top_k is None
    missing = (p * (q == 0)).sum(dim=1)
    at = int((missing * (1.0 - missing)).argmax())
    row = slice(at, at + 1)
    counts, draws, enough = torch.zeros(vocabulary), make_generator(22, torch.device("cpu")), JUDGED // 4
    while counts.sum() < enough:
        counts += torch.bincount(torch.tensor(judged(q[row], p[row], draws)), minlength=vocabulary)
    assert total_variation(counts, p[row]) < noise(p[row], enough) < 0.3 * float(missing[row])


def test_the_known_wrong_rule_is_caught() -> None:
    vocabulary, g = 12, make_generator(8, torch.device("cpu"))
    draft, middle = laws(1, vocabulary, 3, SETTINGS[1]), laws(1, vocabulary, 4, SETTINGS[1])
    proposed = draw(draft.expand(DRAWS, -1), g)
    chance = torch.rand(DRAWS, generator=g)
    stands = chance * draft[0, proposed] < middle[0, proposed]
    # The rule of TriForce's published code at the middle level: after a rejection draw from p, not the residual.
    out = torch.where(stands, proposed, draw(middle.expand(DRAWS, -1), g))
    counts = torch.bincount(out, minlength=vocabulary).float()
    assert total_variation(counts, middle[0]) > 3 * noise(middle[0], DRAWS)


def test_point_mass_proposal_is_exact() -> None:
    """Text lookup proposes without a law of its own: one-hot q."""
    vocabulary, g = 6, make_generator(13, torch.device("cpu"))
    p, bonus = laws(1, vocabulary, 14, SETTINGS[1]), laws(1, vocabulary, 15, SETTINGS[1])
    token = int(p[0].argsort()[-2])
    q = torch.zeros(1, vocabulary)
    q[0, token] = 1.0
    # By enumeration: accepted with probability p(token), else drawn from the residual.
    rest = residual(p, q)
    assert torch.allclose(p[0, token] * q[0] + (1 - p[0, token]) * rest[0], p[0], atol=1e-6)
    proposed, laws_asked = torch.tensor([token]), torch.cat([p, bonus])
    for law in (q, None):
        counts = torch.zeros(vocabulary)
        for _ in range(JUDGED):
            sampled = rejection_sample(proposed, law, laws_asked, g)
            counts[token if sampled.num_accepted else sampled.tokens[-1]] += 1
        assert total_variation(counts, p[0]) < noise(p[0], JUDGED)


def test_greedy_is_the_one_hot_case() -> None:
    """Tokens that have all of a row are judged as the rows that they stand for would be."""
    sampler = Sampler(SamplingParams(temperature=0.0))
    g = make_generator(1, torch.device("cpu"))
    p = sampler(torch.tensor([[0.0, 2.0, 1.0], [3.0, 0.0, 1.0], [0.0, 0.0, 9.0]]))
    assert isinstance(p, torch.Tensor)
    assert draw(p, g).tolist() == p.tolist() == [1, 0, 2]
    rows = torch.nn.functional.one_hot(p, 3).float()
    for first, second in itertools.product(range(3), repeat=2):
        proposed = torch.tensor([first, second])
        for q in (None, proposed):
            hot = None if q is None else torch.nn.functional.one_hot(q, 3).float()
            sampled = rejection_sample(proposed, q, p, g)
            agree = 0 if first != 1 else 1 if second != 0 else 2
            assert sampled == rejection_sample(proposed, hot, rows, g)
            assert sampled.num_accepted == agree
            assert sampled.tokens[-1] == [1, 0, 2][agree]


def test_equal_laws_accept_everything() -> None:
    g = make_generator(2, torch.device("cpu"))
    p = laws(9, 20, 16, SETTINGS[1])
    for _ in range(200):
        proposed = draw(p[:8], g)
        assert rejection_sample(proposed, p[:8], p, g).num_accepted == 8


@pytest.mark.parametrize("at_once", [False, True], ids=["a few first", "by selection, as on a GPU"])
@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
def test_nucleus_equals_a_full_sort(spread: float, at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peaked laws are cut among their likeliest tokens, flat ones after a sort; both as the definition says."""
    if at_once:
        monkeypatch.setattr(distributions.native, "own", lambda: None)
        monkeypatch.setattr(verify, "waits_are_cheap", lambda _: False)
    logits = spread * torch.randn(7, 1000, generator=torch.Generator().manual_seed(5))
    found = dense(Sampler(SamplingParams(temperature=1.0, top_p=0.9))(logits), 1000)
    for row, law in zip(found, torch.softmax(logits, -1), strict=True):
        ordered, order = law.sort(descending=True)
        kept = int((ordered.cumsum(0) < 0.9).sum()) + 1
        expected = torch.zeros_like(law)
        expected[order[:kept]] = ordered[:kept] / ordered[:kept].sum()
        assert int((row > 0).sum()) == pytest.approx(kept, abs=1)
        assert float((row - expected).abs().max()) < 0.01


@pytest.mark.parametrize("top_p", [1e-6, 0.5, 0.9, 0.999999])
@pytest.mark.parametrize("kind", ["peaked", "flat", "alike", "rounded", "certain"])
def test_the_selected_nucleus_is_that_of_a_stable_sort(kind: str, top_p: float) -> None:
    """Also of tokens that are equally likely, as logits in half precision make many of them: the first are kept."""
    g = torch.Generator().manual_seed(7)
    logits = torch.randn(5, 3000, generator=g)
    logits = {
        "peaked": 8 * logits,
        "flat": 0.01 * logits,
        "alike": torch.zeros_like(logits),
        "rounded": (4 * logits).bfloat16().float(),
        "certain": logits.scatter(1, torch.arange(5)[:, None], 200.0),
    }[kind]
    probs = torch.softmax(logits, -1)
    found = verify._nucleus_by_selection(probs, top_p)
    ordered, order = torch.sort(probs, dim=-1, descending=True, stable=True)
    kept = torch.zeros_like(probs).scatter_(-1, order, verify._within(ordered, top_p))
    differs = ((found > 0) != (kept > 0)).sum(-1)
    assert int(differs.max()) <= 1, "where sums in float64 end just beside the bound"
    assert torch.allclose(found.sum(-1), torch.ones(5))
    assert torch.allclose(found, kept / kept.sum(-1, keepdim=True), atol=1e-3)


@pytest.mark.parametrize("top_p", [1e-6, 0.5, 0.9, 0.999999])
@pytest.mark.parametrize("top_k", [1, 20, 500])
def test_the_nucleus_of_the_tokens_of_top_k_is_that_of_all(top_k: int, top_p: float) -> None:
    """Also where several tokens are as likely as the last of them, of which top-k keeps all and names some."""
    g = torch.Generator().manual_seed(7)
    scaled = torch.cat([(4 * torch.randn(5, 3000, generator=g)).bfloat16().float(), torch.zeros(1, 3000)])
    values, order = scaled.topk(top_k, dim=-1)
    probs = torch.softmax(scaled.masked_fill(scaled < values[:, -1:], float("-inf")), -1)
    assert torch.equal(verify._nucleus_of(probs, top_p, order), verify._nucleus_by_selection(probs, top_p))


def test_a_draft_is_drawn_from_few_tokens_where_looking_at_all_costs_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its law decides nothing: on a processor, and of who judges it, it is the whole nucleus."""
    logits = 0.01 * torch.randn(3, 1000, generator=torch.Generator().manual_seed(5))
    sampler = Sampler(SamplingParams(temperature=1.0, top_p=0.9))
    monkeypatch.setattr(distributions.native, "own", lambda: None)
    assert torch.equal(dense(sampler.drafting()(logits), 1000), dense(sampler(logits), 1000))
    monkeypatch.setattr(verify, "waits_are_cheap", lambda _: False)
    drawn = dense(sampler.drafting().after(torch.tensor([1]))(logits), 1000)
    assert ((drawn > 0).sum(-1) == 128).all()
    assert torch.allclose(drawn.sum(-1), torch.ones(3))
    assert ((dense(sampler(logits), 1000) > 0).sum(-1) > 800).all()


def test_draws_have_the_law_they_were_given() -> None:
    law = torch.tensor([[0.0, 0.5, 0.0, 1.5, 0.0]])
    tokens = draw(law.expand(DRAWS, -1), make_generator(3, torch.device("cpu")))
    counts = torch.bincount(tokens, minlength=5).float()
    assert counts[0] == counts[2] == counts[4] == 0
    assert float(counts[3]) / DRAWS == pytest.approx(0.75, abs=0.01)


def test_top_k_and_top_p() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    nucleus = dense(Sampler(SamplingParams(temperature=1.0, top_p=0.75))(logits), 4)
    assert torch.allclose(nucleus, torch.tensor([[0.625, 0.375, 0.0, 0.0]]), atol=1e-6)
    smallest = dense(Sampler(SamplingParams(temperature=1.0, top_p=0.01))(logits), 4)
    assert smallest.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    top = dense(Sampler(SamplingParams(temperature=1.0, top_k=3))(logits), 4)
    assert torch.allclose(top, torch.tensor([[0.5, 0.3, 0.15, 0.0]]) / 0.95, atol=1e-6)
    warm = dense(Sampler(SamplingParams(temperature=2.0))(logits), 4)
    assert torch.allclose(warm, torch.softmax(logits / 2, -1), atol=1e-6)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=MIN_TEMPERATURE),
        SamplingParams(temperature=1.0, top_p=MIN_TOP_P),
        SamplingParams(temperature=MIN_TEMPERATURE, top_p=MIN_TOP_P, top_k=3),
    ],
    ids=str,
)
def test_the_smallest_settings_still_give_the_likeliest_token(params: SamplingParams) -> None:
    logits = torch.randn(5, 300, generator=torch.Generator().manual_seed(0))
    for scale in (1.0, 1e4):
        probs, likeliest = dense(Sampler(params)(scale * logits), 300), Sampler(SamplingParams())(logits)
        assert isinstance(likeliest, torch.Tensor)
        assert torch.equal(probs.nonzero(), torch.stack([torch.arange(5), likeliest], dim=1))
