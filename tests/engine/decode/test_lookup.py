"""The lookup index against a slow, obvious search, and the drafter that proposes from the book."""

from __future__ import annotations

import gc
import random
from unittest.mock import Mock

import pytest
import torch

from engine.config import SamplingParams
from engine.decode.drafters import LookupDrafter, NoDrafter
from engine.decode.lookup import NO_MATCH, LookupIndex, LookupMatch
from engine.decode.tuning import TUNING
from engine.decode.verify import Sampler, make_generator
from engine.events import TokenSource


def longest_match(text: list[int], tail: list[int]) -> int:
    """Length of the longest earlier occurrence of the end of text + tail that ends inside text, by trying all."""
    whole = text + tail
    best = 0
    for end in range(1, len(text)):
        length = 0
        while length < end and text[end - 1 - length] == whole[-1 - length]:
            length += 1
        best = max(best, length)
    return best


@pytest.mark.parametrize("seed", range(6))
def test_finds_the_longest_match(seed: int) -> None:
    rng = random.Random(seed)
    text = [rng.randrange(8) for _ in range(120)]
    index = LookupIndex()
    index.follow(text)
    for cut in range(0, 6):
        tail = [rng.randrange(8) for _ in range(cut)]
        match = index.find(tail, 1)
        expected = longest_match(text, tail)
        # A place near the end counts for a little less, so a slightly longer match may be passed over there.
        assert expected - 4 <= match.length <= expected
        assert (match.length == 0) == (expected == 0)
        if match.length:
            found = [*(text + tail)[-match.length :], *match.tokens]
            assert any(text[at : at + len(found)] == found for at in range(len(text)))


@pytest.mark.parametrize(
    ("text", "length", "agreed"),
    [
        ([1, 2, 9, 8, 2], 1, None),  # no other place
        ([1, 2, 9, 3, 2, 9, 8, 2], 1, True),
        ([1, 2, 8, 3, 2, 9, 8, 2], 1, False),
        ([2, 7, 2, 9, 3, 2, 9, 8, 2], 1, None),  # one agrees, one does not
        ([1, 2, 9, 0, 1, 2, 9, 5, 1, 2], 2, True),
        ([7, 2, 8, 4, 1, 2, 9, 5, 1, 2], 2, None),  # a place that shares less is not asked
    ],
)
def test_a_match_tells_whether_other_places_go_on_alike(text: list[int], length: int, agreed: bool | None) -> None:
    index = LookupIndex()
    index.follow(text)
    assert index.find(most=1) == LookupMatch(length, (9,), agreed)
    assert index.find(least=3) == NO_MATCH


def test_a_question_that_quotes_the_book_is_known() -> None:
    book, size = list(range(100)), TUNING.long_ngram
    for question, quotes in (
        ([200, 201, *book[40 : 40 + size], 202], True),
        ([200, 201, *book[40 : 39 + size], 202], False),
        ([300, *range(200, 200 + size), *range(200, 200 + size)], False),  # its own words
    ):
        index = LookupIndex()
        index.follow([*book, *question])
        assert index.repeats(len(question)) is quotes
    assert not LookupIndex().repeats(10)


def test_following_another_text_equals_a_new_index() -> None:
    rng = random.Random(0)
    used = LookupIndex()
    text = [rng.randrange(9) for _ in range(200)]
    for _ in range(30):
        keep = rng.randrange(len(text) + 1)
        text = text[:keep] + [rng.randrange(9) for _ in range(rng.randrange(40))]
        used.follow(text)
        new = LookupIndex()
        new.follow(text)
        assert len(used) == len(text)
        assert used.find() == new.find()
        sizes = (TUNING.long_ngram, TUNING.ngram, *TUNING.short_ngrams)
        for places, size in zip(used._places, sizes, strict=True):
            assert len(places._newest) == len({tuple(text[at : at + size]) for at in range(len(text) - size + 1)})
            for at in range(len(text) - size + 1):
                ngram = text[at : at + size]
                ends = [end for end in range(len(text), size - 1, -1) if text[end - size : end] == ngram]
                assert list(places.of(ngram)) == ends


@pytest.mark.parametrize("name", ["extend", "drop_last"])
def test_an_index_that_broke_off_is_made_anew(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Every later question failed, because n-grams were missing after memory had run out."""
    text, other = [1, 2, 3, 4, 5] * 6, [1, 2, 3, 4, 5] * 3 + [6, 7] * 9
    used, new = LookupIndex(), LookupIndex()
    used.follow(text)
    with monkeypatch.context() as broken:
        broken.setattr(used._places[1], name, Mock(side_effect=MemoryError))
        with pytest.raises(MemoryError):
            used.follow(other)
    used.follow(other)
    new.follow(other)
    assert used.find() == new.find() != NO_MATCH
    used.follow(text)


def test_proposal_grows_with_the_match_and_is_a_point_mass() -> None:
    device = torch.device("cpu")
    index = LookupIndex()
    drafter = LookupDrafter(NoDrafter(device), index, longest=20, device=device)
    sampler, generator = Sampler(SamplingParams()), make_generator(1, device)
    book = list(range(100, 200))
    sizes = []
    for copied in (3, 9, 30):
        context = [*book, 7, *book[10 : 10 + copied]]
        drafter.begin(context)
        proposal = drafter.propose(context, 4, sampler, generator)
        sizes.append(proposal.tokens.shape[0])
        assert proposal.probs is None
        if sizes[-1]:
            assert proposal.tokens.tolist() == book[10 + copied : 10 + copied + sizes[-1]]
            assert proposal.source is TokenSource.LOOKUP
    assert sizes == [0, 16, 16]


def test_a_drafter_of_no_length_leaves_proposing_to_the_draft_model() -> None:
    """The index follows what is committed all the same: the other way into the book needs it."""
    device = torch.device("cpu")
    loud, silent = (LookupDrafter(NoDrafter(device), LookupIndex(), longest, device) for longest in (8, 0))
    words = [*range(20), *range(10)]
    for drafter, proposed in ((loud, [10, 11, 12, 13]), (silent, [])):
        drafter.begin(words[:25])
        drafter.commit(words)
        made = drafter.propose(words, 4, Sampler(SamplingParams(temperature=0.0)), make_generator(1, device))
        assert made.tokens.tolist()[:4] == proposed
        assert len(drafter.index) == len(words)


def test_a_rare_phrase_is_found_behind_a_common_ending() -> None:
    """The newest places of three common words are not the place where the whole sentence stands."""
    common = [1, 2, 3]
    sentence = [50, 51, 52, 53, 54, 55, 56, *common]
    text = [*sentence, 60, 61, *[*common, 9] * 40]
    index = LookupIndex()
    index.follow(text)
    match = index.find([70, *sentence], 2)
    assert (match.length, match.tokens) == (len(sentence), (60, 61))


def test_a_quotation_goes_on_as_the_book_does_not_as_the_question() -> None:
    book, key = list(range(100, 400)), list(range(150, 156))
    question = [10, 11, 99, *key, 12, 13, 14]  # one token more is as in the answer
    index = LookupIndex()
    index.follow([*book, *question, 20, 99, *key])
    assert index.find(most=3).tokens == (156, 157, 158)


@pytest.mark.parametrize("unread", [0, 1, 2, 5])
@pytest.mark.parametrize("length", [1, 2, 7, 30])
def test_a_circle_that_has_closed_goes_on(length: int, unread: int) -> None:
    """``unread`` of the newest tokens are not in the index yet: proposals that nobody has judged."""
    circle = list(range(1000, 1000 + length))
    text = [*range(100, 300), *(circle * 20)[: 2 * length + 4 + 2 * unread]]
    index = LookupIndex()
    index.follow(text[: len(text) - unread])
    tail = text[len(text) - unread :]
    ahead = (circle * 80)[2 * length + 4 + 2 * unread :]
    assert index.find(tail).tokens == tuple(ahead[:64])


def test_what_has_not_come_twice_is_no_circle() -> None:
    """Four words said again are followed by what followed them, up to the end of the text and not beyond."""
    index = LookupIndex()
    index.follow([*range(100, 200), 1, 2, 3, 4, 50, 51, 1, 2, 3, 4])
    assert index.find().tokens == (50, 51, 1, 2, 3, 4)


def test_indexing_a_book_makes_no_work_for_the_garbage_collector() -> None:
    """A collection of all generations takes 0.2 s with torch loaded, within an answer's first round."""
    made = []
    for _ in range(3):  # other threads of the tests may make objects meanwhile
        before = gc.get_stats()[0]["collections"]
        LookupIndex().follow([token % 5000 for token in range(20_000)])
        made.append(gc.get_stats()[0]["collections"] - before)
    assert min(made) <= 3
