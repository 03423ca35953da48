"""The draft model's drafter: whatever happened before, it proposes what a fresh one would."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from engine.config import SamplingParams
from engine.decode.drafters import ModelDrafter
from engine.decode.verify import Sampler, make_generator, to_host
from engine.model import loading
from tests.engine.dense import dense

CPU = torch.device("cpu")
GREEDY, WARM = Sampler(SamplingParams()), Sampler(SamplingParams(temperature=1.0))


def proposal(drafter: ModelDrafter, context: list[int]) -> list[int]:
    return drafter.propose(context, 4, GREEDY, make_generator(0, CPU)).tokens.tolist()


def test_detours_leave_no_trace(tiny: Callable[..., str]) -> None:
    """Proposals that were rejected, and tokens that came from elsewhere, are as if they had never been fed."""
    decoder = loading.load(tiny("llama", spread=0.1), window=512, device=CPU)
    rng = random.Random(1)
    used = ModelDrafter(decoder, decoder.vocabulary, 4, 400, longest=30)
    context = [rng.randrange(6, 380) for _ in range(50)]
    with torch.inference_mode():
        used.begin(context)
        for step in range(25):
            ahead = list(context)
            for _ in range(rng.randrange(1, 4)):
                drafted = proposal(used, ahead)
                ahead += [*drafted[: rng.randrange(4)], rng.randrange(6, 380)]
                if rng.random() < 0.4:  # a copy from the book that the draft model was not asked about
                    ahead += [rng.randrange(6, 380) for _ in range(rng.randrange(1, 9))]
            context += ahead[len(context) : len(context) + rng.randrange(1, 5)] or [7]
            context.append(rng.randrange(6, 380))
            used.commit(context)
            if step % 6 == 0:
                fresh = ModelDrafter(decoder, decoder.vocabulary, 4, 400, longest=30)
                fresh.begin(context)
                assert proposal(used, context) == proposal(fresh, context)


def test_one_that_waits_proposes_as_one_that_began(tiny: Callable[..., str]) -> None:
    """Started when it is first asked, with tokens that are not committed and may be taken back."""
    decoder = loading.load(tiny("llama", spread=0.1), window=512, device=CPU)
    context, more = [n * 7 % 300 + 20 for n in range(90)], [31, 32, 33]
    with torch.inference_mode():
        waiting = ModelDrafter(decoder, decoder.vocabulary, 4, 60, longest=10, waits=True)
        waiting.begin(context)
        waiting.commit([*context, 21])
        assert (waiting.started, waiting.cache.length) == (False, 0), "nobody has asked"
        context.append(21)
        assert waiting.tokens_to_start(len(context)) == 68
        for known in ([*context, *more], [*context, 40], [*context, *more, 50]):
            began = ModelDrafter(decoder, decoder.vocabulary, 4, 60, longest=10)
            began.begin(context[:4] + context[-65:])
            known_briefly = context[:4] + context[-65:] + known[len(context) :]
            made = waiting.propose(known, 4, GREEDY, make_generator(0, CPU))
            assert made.tokens.tolist() == proposal(began, known_briefly)
            assert (made.start_ms > 1e-2) == (known[-1] == more[-1]), "the first time alone"
            assert waiting.started
        waiting.begin(context, anew=True)
        assert not waiting.started, "an answer with a seed begins anew"


def _waiting(tiny: Callable[..., str]) -> ModelDrafter:
    decoder = loading.load(tiny("llama", spread=0.1), window=512, device=CPU)
    return ModelDrafter(decoder, decoder.vocabulary, 4, 60, longest=10, waits=True)


def test_the_next_question_needs_only_its_own_tokens(tiny: Callable[..., str]) -> None:
    """A large draft model goes on from what it has read, in the same chat and in a new one about the same book."""
    rng = random.Random(3)
    book, chat, other = ([rng.randrange(6, 380) for _ in range(count)] for count in (300, 90, 20))
    with torch.inference_mode():
        drafter = _waiting(tiny)
        assert len(list(drafter.start_ahead(book, book))) > 3, "it can be stopped between a few tokens"
        assert drafter.cache.length == len(book)
        assert not list(drafter.start_ahead(book, book)), "read once more"
        for context in ([*book, *chat], [*book, *chat, *other], [*book, *other], [*book, *other]):
            drafter.begin(context)
            assert drafter.started
            new = len(context) - 1 - drafter.cache.length
            assert new == drafter.tokens_to_start(len(context)) <= len(chat)
            made = drafter.propose(context, 4, GREEDY, make_generator(0, CPU))
            assert made.start_ms > 1e-2
            if chat + other != context[len(book) :]:  # which tokens were evicted meanwhile depends on the passes
                fresh = _waiting(tiny)
                list(fresh.start_ahead(book, book))
                fresh.begin(context)
                assert made.tokens.tolist() == proposal(fresh, context)
            drafter.commit([*context, 7])
            assert drafter.tokens_to_start(len(context) + 1) == 0
        drafter.forget()
        drafter.begin(chat)
        assert not drafter.started, "another book"


def test_it_proposes_what_most_of_the_text_consists_of(tiny: Callable[..., str]) -> None:
    """A third of a large draft model's step may be the head, and most texts need half of it or less."""
    context = [20 + n * 7 % 100 for n in range(300)] + [380] * 5
    with torch.inference_mode():
        drafter = _waiting(tiny)
        drafter.begin(context)
        made = drafter.propose(context, 6, WARM, make_generator(0, CPU))
        assert int(made.tokens.max()) < 128
        assert made.probs is not None
        probs = dense(made.probs, drafter.decoder.vocabulary)
        assert probs.shape == (6, drafter.decoder.vocabulary)
        assert float(probs[:, 128:].sum()) == 0.0
        assert torch.allclose(probs.sum(dim=1), torch.ones(6))
        drafter.begin([379] * 50, anew=True)
        drafter.propose([379] * 50, 1, WARM, make_generator(0, CPU))
        assert drafter.decoder.forward(drafter.decoder.ids([1]), drafter.cache.extend(1)).shape[1] == 384


def test_reading_ahead_may_stop_anywhere(tiny: Callable[..., str]) -> None:
    rng = random.Random(4)
    book, chat, other = ([rng.randrange(6, 380) for _ in range(count)] for count in (300, 90, 20))
    with torch.inference_mode():
        whole = _waiting(tiny)
        steps = len(list(whole.start_ahead(book, [*book, *chat])))
        for stopped in range(steps):
            drafter = _waiting(tiny)
            for _ in zip(range(stopped), drafter.start_ahead(book, [*book, *chat]), strict=False):
                pass
            context = [*book, *other]
            drafter.begin(context)
            drafter.commit(context)
            assert len(proposal(drafter, context)) == 4
            assert drafter._fed[: len(context)] == context
            list(drafter.start_ahead(book, [*context, 9]))
            drafter.begin([*context, 9, 10])
            assert drafter.started
            assert drafter.tokens_to_start(len(context) + 2) == 0


def test_long_context_costs_a_window(tiny: Callable[..., str]) -> None:
    decoder = loading.load(tiny("llama", spread=0.1), window=512, device=CPU)
    drafter = ModelDrafter(decoder, decoder.vocabulary, 4, 60, longest=10)
    with torch.inference_mode():
        drafter.begin([7] * 100_000)
        assert drafter.cache.held <= drafter.cache.capacity
        assert drafter.cache.length == 99_999
        assert len(proposal(drafter, [7] * 100_000)) == 4


def test_vocabularies_padded_differently_are_fitted(tiny: Callable[..., str]) -> None:
    decoder = loading.load(tiny("llama", spread=0.1), window=512, device=CPU)
    with torch.inference_mode():
        for size in (300, 384, 400):
            drafter = ModelDrafter(decoder, size, 4, 60, longest=10)
            drafter.begin([9, 10, 11])
            made = drafter.propose([9, 10, 11], 3, WARM, make_generator(0, CPU))
            assert made.probs is not None
            assert dense(made.probs, size).shape == (3, size)
            assert int(made.tokens.max()) < min(size, 384)


def test_catches_up_after_a_long_copy(tiny: Callable[..., str]) -> None:
    """While the book itself is copied the draft model is not asked; it must still know what was said."""
    decoder = loading.load(tiny("llama", spread=0.1), window=512, device=CPU)
    drafter = ModelDrafter(decoder, decoder.vocabulary, 4, 60, longest=40)
    rng = random.Random(2)
    context = [rng.randrange(6, 380) for _ in range(30)]
    with torch.inference_mode():
        drafter.begin(context)
        for _ in range(40):
            context += [rng.randrange(6, 380) for _ in range(33)]
            drafter.commit(context)
            if rng.random() < 0.5:
                assert len(proposal(drafter, context)) == 4
        ahead = [*context, *range(10, 50)]
        assert len(proposal(drafter, ahead)) == 4
        assert drafter._fed[-1:] == ahead[-1:]  # then three that were drawn and that nobody has read


def test_a_hint_is_taken_only_where_it_is_likeliest(tiny: Callable[..., str]) -> None:
    """Not where it was drawn by chance: what is proposed would then depend on the draw, and bend the law."""
    decoder = loading.load(tiny("llama", spread=0.1), window=512, device=CPU)
    drafter = ModelDrafter(decoder, decoder.vocabulary, 4, 60, longest=10)
    context = [9, 10, 11, 12]
    hot = Sampler(SamplingParams(temperature=1.0))

    def first(seed: int, hint: tuple[int, ...]) -> tuple[int, bool]:
        made = drafter.propose(context, 3, hot, make_generator(seed, CPU), hint=hint)
        return int(made.tokens[0]), made.hinted

    with torch.inference_mode():
        drafter.begin(context)
        likeliest = proposal(drafter, context)[0]
        assert first(0, (likeliest,)) == (likeliest, True)
        drawn = {seed: first(seed, ())[0] for seed in range(20)}
        for seed, token in drawn.items():
            if token != likeliest:
                assert first(seed, (token,)) == (token, False)
    assert set(drawn.values()) != {likeliest}


def test_what_was_read_for_the_verdict_is_not_read_again(
    tiny: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter that is told what stands goes on as one that looks for itself, and without looking."""
    decoder = loading.load(tiny("llama", spread=0.1), window=512, device=CPU)
    told, alone = (ModelDrafter(decoder, decoder.vocabulary, 4, 60, longest=10) for _ in range(2))
    looks: list[int] = []

    def look(*tensors: torch.Tensor) -> list[list[float]]:
        looks.append(len(tensors))
        return to_host(*tensors)

    monkeypatch.setattr("engine.decode.drafters.to_host", look)
    rng, context = random.Random(4), list(range(20, 60))
    with torch.inference_mode():
        told.begin(context)
        alone.begin(context)
        for _ in range(12):
            looks.clear()
            drafted = proposal(told, context)
            assert looks == []
            assert proposal(alone, context) == drafted
            stands = drafted[: rng.randrange(5)]
            told.accept(stands)
            context += [*stands, rng.randrange(6, 380)]
    assert looks == [1]  # the other one's
