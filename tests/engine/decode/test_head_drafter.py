"""A model's own draft head as the lowest level: what it proposes, and that it changes no answer."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.decode.head_drafter import HeadDrafter
from engine.decode.rounds import full_pass
from engine.decode.verify import Sampler, make_generator, rejection_sample
from engine.document import Document
from engine.events import AnswerDone
from engine.kv.full import FullCache
from engine.kv.hidden_states import HiddenStates
from engine.model import loading, own_head
from engine.prompt import Question
from engine.session import Session
from tests.engine.conftest import VOCABULARY
from tests.engine.decode.test_speculation import noise, total_variation
from tests.engine.dense import dense
from tests.engine.heads import Reference, add_head

CPU = torch.device("cpu")
GREEDY, WARM = Sampler(SamplingParams()), Sampler(SamplingParams(temperature=0.5, top_k=6))
Made = tuple[Any, FullCache, HeadDrafter, Reference]


@pytest.fixture(scope="module")
def with_head(tiny: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """``with_head(kind)`` -> folder of a tiny model with a random draft head, made once."""
    made: dict[str, str] = {}

    def make(kind: str) -> str:
        if kind not in made:
            made[kind] = add_head(tiny(kind, spread=0.1), tmp_path_factory.mktemp("heads") / kind)
        return made[kind]

    return make


def levels(folder: str, *, most: int = 60, waits: bool = False) -> Made:
    """A target on a full cache that its head listens to, the head's drafter, and the head's equations."""
    target = loading.load(folder, window=512, device=CPU, dtype="float32")
    settings = own_head.settings_in(folder, target.config)
    full = FullCache(target.kv_shape, 512)
    full.hidden = HiddenStates(target, most)
    full.when_cropped(full.hidden.crop)
    head = own_head.load(folder, settings, target)
    return target, full, HeadDrafter(head, full.hidden, 4, most, 30, waits=waits), Reference(folder)


def pass_over(target: Any, full: FullCache, context: list[int], start: int) -> torch.Tensor:
    """Commit all tokens but the last, from ``start`` on, and return the logits after each of those read."""
    logits = full_pass(target.backend, full, start, context[start:])
    full.advance(len(context) - start)
    full.crop(len(context) - 1)
    return logits


def by_equations(states: torch.Tensor, context: list[int], reference: Reference, count: int, base: int) -> list[int]:
    """The likeliest tokens, each from a fresh pass over everything from position ``base`` on."""
    hidden, tokens = states[base : len(context) - 1], list(context[base + 1 :])
    made: list[int] = []
    for _ in range(count):
        logits, own = reference(hidden, torch.tensor(tokens))
        made.append(int(logits[-1].argmax()))
        hidden, tokens = torch.cat([hidden, own[-1:]]), [*tokens, made[-1]]
    return made


@pytest.mark.parametrize("kind", ["llama", "qwen3_5_text"])
def test_detours_leave_no_trace(kind: str, with_head: Callable[[str], str]) -> None:
    """Proposals after pending tokens, rejected tokens, copies and pauses: what is proposed follows the equations."""
    target, full, drafter, reference = levels(with_head(kind), most=400)
    rng = random.Random(1)
    context = [rng.randrange(6, 380) for _ in range(40)]
    states = torch.empty(0, 64)
    with torch.inference_mode():
        for step in range(12):
            start = len(states)
            pass_over(target, full, context, start)
            assert full.hidden is not None
            states = torch.cat([states, full.hidden.between(start, len(context) - 1)[0].clone()])
            if step:
                drafter.commit(context)
            else:
                drafter.begin(context)
            if step % 3 != 1:
                made = drafter.propose(context, 3, GREEDY, make_generator(0, CPU))
                assert made.tokens.tolist() == by_equations(states, context, reference, 3, 0)
                # Another level accepts some of them, and its own hidden states stand for the full level's meanwhile.
                ahead = [*context, *made.tokens.tolist()[:2], 9]
                full_pass(target.backend, full, len(context) - 1, ahead[len(context) - 1 :])
                pending = torch.cat([states, full.hidden.between(len(context) - 1, len(ahead) - 1)[0].clone()])
                further = drafter.propose(ahead, 2, GREEDY, make_generator(0, CPU))
                assert further.tokens.tolist() == by_equations(pending, ahead, reference, 2, 0)
            context += [rng.randrange(6, 380) for _ in range(rng.choice([1, 2, 3, 80 if step == 7 else 5]))]
            full.crop(len(states))


def test_a_head_begins_with_the_hidden_states_at_hand(with_head: Callable[[str], str]) -> None:
    """After a book that was restored only the question's are known, and a long text leaves the oldest behind."""
    # Among the rarest words of which a slow head proposes none, there is none.
    context = [n * 7 % 300 + 20 if n % 20 else VOCABULARY - 1 for n in range(150)]
    for waits in (False, True):
        target, full, drafter, reference = levels(with_head("llama"), waits=waits)
        with torch.inference_mode():
            pass_over(target, full, context[:101], 0)
            full.hidden.forget_before(90)
            pass_over(target, full, context, 100)
            states = torch.zeros(149, 64)
            states[90:] = full.hidden.between(90, 149)[0]
            drafter.begin(context)
            assert drafter.started != waits
            assert drafter.tokens_to_start(150) == (59 if waits else 0)
            made = drafter.propose(context, 4, GREEDY, make_generator(0, CPU))
            assert made.tokens.tolist() == by_equations(states, context, reference, 4, 90)
            assert (made.start_ms > 0.0) == waits
            drafter.begin(context, anew=True)
            made = drafter.propose(context, 4, GREEDY, make_generator(0, CPU))
            assert made.tokens.tolist() == by_equations(states, context, reference, 4, 148), "a seed has no past"
            full.crop(100)
            drafter.forget()
            assert not len(drafter.propose(context, 4, GREEDY, make_generator(0, CPU)).tokens), "nothing is known"


def test_what_is_proposed_has_the_law_that_is_told(with_head: Callable[[str], str]) -> None:
    """The law of each token is the head's at this temperature, and judged by the target the text has the target's."""
    target, full, drafter, reference = levels(with_head("llama"))
    context = [n * 7 % 300 + 20 for n in range(40)]
    draws, most = 400, target.vocabulary
    with torch.inference_mode():
        logits = pass_over(target, full, context, 0)
        drafter.begin(context)
        states = full.hidden.between(0, 39)[0].clone()
        law = dense(WARM(reference(states, torch.tensor(context[1:]))[0][-1:]), most)[0]
        p = dense(WARM(logits[-1:]), most)
        g = make_generator(5, CPU)
        proposed, kept = torch.zeros(most), torch.zeros(most)
        for _ in range(draws):
            made = drafter.propose(context, 1, WARM, g)
            assert made.probs is not None
            q = dense(made.probs, most)
            assert torch.allclose(q[0], law, atol=1e-4)
            sampled = rejection_sample(made.tokens, made.probs, WARM(logits[-1:].expand(2, -1)), g)
            proposed[made.tokens] += 1
            kept[made.tokens if sampled.num_accepted else sampled.tokens[-1]] += 1
    assert total_variation(proposed, law) < noise(law, draws)
    assert total_variation(kept, p[0]) < noise(p[0], draws)
    assert total_variation(proposed, p[0]) > noise(p[0], draws), "or judging had nothing to do"


FIXED = {"num_draft_tokens": 3, "num_pending_tokens": 6, "num_lookup_tokens": 0}


@pytest.mark.parametrize(("kind", "lengths"), [("llama", {}), ("qwen3_5_text", FIXED), ("qwen3_5_moe_text", FIXED)])
def test_no_head_changes_an_answer(
    kind: str, lengths: dict[str, Any], with_head: Callable[[str], str], book: Document
) -> None:
    """Of a recurrent model too, whose states go back after a rejection. The head is found in the model's own files."""
    session = Session.load(EngineConfig(model=with_head(kind), context=4096, retrieval_budget=256, **lengths))
    assert session.draft is not None
    assert session.draft.name.endswith("own draft head")
    list(session.read(book))
    found = []
    for seed, mode in ((None, "hierarchical"), (None, "plain"), (4, "hierarchical"), (4, "hierarchical")):
        sampling = SamplingParams(max_tokens=30, seed=seed, temperature=0.0 if seed is None else 1.0)
        *_, done = session.ask(Question("Where does the key hang?", sampling=sampling, mode=mode))  # type: ignore[arg-type]
        assert isinstance(done, AnswerDone)
        found.append(done)
    assert found[0].token_ids == found[1].token_ids
    assert found[2].token_ids == found[3].token_ids, "the same seed, the same text"
    if lengths:
        assert found[0].figures.middle.proposed > 20
        assert found[0].figures.verify.proposed > 20
