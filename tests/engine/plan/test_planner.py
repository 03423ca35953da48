"""What fits, in numbers and in a sentence; devices that are not there."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from engine.config import EngineConfig
from engine.document import Document, Page
from engine.errors import OptionError
from engine.events import KvBytes
from engine.generation import PageScores
from engine.kv.full import KvShape
from engine.kv.offload import Tier
from engine.plan.memory_budget import MIN_CHAT_TOKENS, to_leave_out
from engine.plan.planner import Resources, fit_book, free_resources, longest_context, pick_device, plan
from engine.prompt import BookTokens

SHAPE = KvShape(layers=10, kv_heads=4, head_dim=64, dtype=torch.float32, device=torch.device("cpu"))
PAGES = Document("T", "", tuple(Page(n + 1, str(n + 1), "text") for n in range(10)), "pdf", "0")
BOOK = BookTokens(tuple(range(10_000)), tuple(range(0, 10_000, 1000)))
PLENTY = Resources(10**12)
LAYER = SHAPE.bytes_per_token // SHAPE.layers  # bytes of one token in one layer


def test_a_book_that_fits() -> None:
    fit = fit_book(PAGES, BOOK, 32_768, SHAPE, PLENTY)
    assert fit.fits
    assert fit.pages_that_fit == 10
    assert fit.kv_bytes == 10_000 * 2 * 10 * 4 * 64 * 4
    assert fit.sentence.startswith("10 pages, 10,000 tokens of 32,768: it fits")
    assert (fit.page_tokens, fit.room) == ((1000,) * 10, 32_768 - MIN_CHAT_TOKENS)


def test_the_window_is_the_bound() -> None:
    exactly = fit_book(PAGES, BOOK, 10_000 + MIN_CHAT_TOKENS, SHAPE, PLENTY)
    assert exactly.fits
    short = fit_book(PAGES, BOOK, 10_000 + MIN_CHAT_TOKENS - 1, SHAPE, PLENTY)
    assert not short.fits
    assert short.pages_that_fit == 9
    assert "this model" in short.sentence
    assert "9 of 10" in short.sentence


def test_of_several_documents_it_is_said_which_to_leave_out() -> None:
    documents = [Document.from_pages(title, ["text"] * pages) for title, pages in (("A", 2), ("B", 5), ("C", 3))]
    book = replace(BOOK, borders=(2000, 7000))
    fit = fit_book(Document.together(documents), book, 8_256, SHAPE, PLENTY)
    assert not fit.fits
    assert fit.leave_out == (0,)
    assert fit.sentence == ("3 documents, 10 pages: too long for this model. Leave out “A”, and the others fit.")


@pytest.mark.parametrize(
    ("most", "left"), [(10, ()), (9, (0,)), (7, (2,)), (5, (1,)), (4, (0, 1)), (2, (1, 2)), (1, (0, 1, 2))]
)
def test_few_documents_are_left_out_and_no_larger_than_needed(most: int, left: tuple[int, ...]) -> None:
    assert to_leave_out((2, 5, 3), most) == left


def test_the_memory_is_the_bound() -> None:
    free = Resources(5_500 * SHAPE.bytes_per_token)
    fit = fit_book(PAGES, BOOK, 131_072, SHAPE, free)
    assert not fit.fits
    assert fit.pages_that_fit == 5
    assert "the free memory" in fit.sentence


def test_not_even_one_page() -> None:
    fit = fit_book(PAGES, BOOK, 900, SHAPE, PLENTY)
    assert fit.pages_that_fit == 0
    assert "Not even the first page fits" in fit.sentence


def test_the_index_of_mean_keys_takes_its_place_on_the_device() -> None:
    indexed = SHAPE.indexed(8)
    per_token = math.ceil(SHAPE.layers * SHAPE.kv_heads * (SHAPE.head_dim + 2) / 8)  # a byte a number, and a scale
    assert indexed.index_bytes_per_token == per_token
    assert replace(indexed, device=torch.device("cuda")).index_bytes_per_token == per_token
    assert SHAPE.index_bytes_per_token == 0
    room = 1000 * (SHAPE.bytes_per_token + per_token)
    assert longest_context(indexed, 10_000, Resources(room)) == 1000
    assert longest_context(SHAPE, 10_000, Resources(room)) == room // SHAPE.bytes_per_token > 1000
    # However much is spilled, the index is not: without room for it nothing fits.
    assert plan(indexed, 1000, Resources(1000 * per_token - 1, disk=10**12)) is None


def test_residency_first_then_host_then_disk() -> None:
    whole = plan(SHAPE, 1000, Resources(10 * 1000 * LAYER))
    assert whole is not None
    assert whole.placement.spilled == ()
    assert whole.staging == 0
    # Two layers' worth goes to the buffers that the spilled ones pass through.
    some = plan(SHAPE, 1000, Resources(9 * 1000 * LAYER, host=2 * 1000 * LAYER, disk=10**12))
    assert some is not None
    assert [some.placement.count(tier) for tier in (Tier.DEVICE, Tier.HOST, Tier.DISK)] == [7, 2, 1]
    assert some.staging + 7 * 1000 * LAYER <= 9 * 1000 * LAYER
    least = plan(SHAPE, 1000, Resources(2 * 1000 * LAYER, disk=10 * 1000 * LAYER))
    assert least is not None
    assert least.placement.count(Tier.DISK) == 10
    assert plan(SHAPE, 1000, Resources(2 * 1000 * LAYER - 1, disk=10**12)) is None
    assert plan(SHAPE, 1000, Resources(2 * 1000 * LAYER, disk=10 * 1000 * LAYER - 1)) is None


@pytest.mark.parametrize("resources", [Resources(10**8), Resources(10**8, 10**8), Resources(10**8, 10**7, 10**9)])
def test_the_longest_context_is_the_longest(resources: Resources) -> None:
    most = longest_context(SHAPE, 10**6, resources)
    assert 0 < most < 10**6
    assert plan(SHAPE, most, resources) is not None
    assert plan(SHAPE, most + 1, resources) is None


def test_a_book_that_is_spilled_says_so() -> None:
    fit = fit_book(PAGES, BOOK, 32_768, SHAPE, Resources(5_500 * SHAPE.bytes_per_token, disk=10**12))
    assert fit.fits
    assert fit.kv.disk > fit.kv.host > 0
    assert "on disk, which makes answers slower" in fit.sentence


def test_limits_that_are_set_are_kept(tmp_path: Path) -> None:
    config = EngineConfig(model="m", host_memory="256M", spill_folder=str(tmp_path / "not" / "there"))
    found = free_resources(torch.device("cpu"), config, KvBytes(host=10**9, disk=10**6))
    assert found.device == 256_000_000
    assert found.host == 0
    assert found.disk > 0
    free = free_resources(torch.device("cpu"), EngineConfig(model="m")).device
    assert free_resources(torch.device("cpu"), EngineConfig(model="m"), KvBytes(host=10**10)).device > free + 8 * 10**9


def test_devices() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda")
    with pytest.raises(OptionError, match="'abacus'"):
        pick_device("abacus")
    with pytest.raises(OptionError, match="NVIDIA GPUs"):
        pick_device(f"cuda:{torch.cuda.device_count()}")


def test_chunk_scores_become_page_scores() -> None:
    # Pages start at tokens 5, 16 and 40 of 60; chunks of 8: 0-7 8-15 | 16-23 24-31 32-39 | 40-47 48-55, and the rest.
    pages = PageScores((5, 16, 40), stop=60, chunk_size=8)
    scores = pages.add(torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 99.0, 99.0]))
    assert scores == pytest.approx((0.25, 0.5, 0.25))
    pages.add(torch.tensor([0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0]))
    assert pages.overall() == pytest.approx((0.125, 0.25, 0.625))
    assert PageScores((5, 16), 40, 8).add(None) == (0.0, 0.0)
