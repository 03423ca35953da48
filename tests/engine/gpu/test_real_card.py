"""Whole sessions on a real NVIDIA GPU: the processor's tokens, wherever the KV lies and whatever is recorded.

Skipped without such a GPU. What the simulated device cannot know is tested here: kernels, captures and copies of a real
driver. In float32 rounding decides no token of these models, so all tokens have to be equal.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engine.config import EngineConfig, SamplingParams
from engine.decode import tuning, verify
from engine.decode.rounds import full_pass
from engine.decode.verify import Sampler, draw, make_generator
from engine.devices import empty_caches
from engine.document import Document
from engine.events import AnswerDone, BookRead, KvBytes
from engine.kv import full
from engine.kv.full import FullCache
from engine.kv.offload import Placement, Tier
from engine.model import graphs, loading
from engine.model.architectures import experts_of
from engine.model.graphs import Replays
from engine.model.kernels import cuda
from engine.model.kernels.block_products import CARD_FORMATS
from engine.model.kernels.formats import FORMATS
from engine.model.products import card_blocks
from engine.model.products.blocks import BlockLinear, Stored
from engine.model.products.quantized import Linear4, Linear8
from engine.model.products.reduced import reduced
from engine.model.products.tiled import TiledLinear, multiplies_tiles, tiled
from engine.plan import planner
from engine.prompt import Question
from engine.quantization import FITTED, fitted_format
from engine.session import Session
from tests.engine.conftest import SHAPES
from tests.engine.dense import dense
from tests.engine.model import test_gguf
from tests.engine.model.test_gguf import at_hand, described, random_blocks, tried  # noqa: F401 - fixtures

pytestmark = [
    pytest.mark.real_gpu,
    pytest.mark.skipif(not (torch.version.cuda and torch.cuda.is_available()), reason="no NVIDIA GPU is here"),
]

GPU = torch.device("cuda", 0)
TOKENS = 24
QUESTIONS = ("Where does the key hang?", "What stood on the sill?")
TIERS = {"D": Tier.DEVICE, "H": Tier.HOST, "F": Tier.DISK}


@pytest.fixture(autouse=True)
def real(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Passes are recorded by older versions of torch too, whose failed captures leave their memory taken: here a
    capture that fails fails the test. Replays are compared with ordinary passes often, and used even if slower.
    """
    monkeypatch.setattr(graphs, "_FIRST_TORCH", (2, 0))
    monkeypatch.setattr(Replays, "is_faster", lambda *_: True)
    monkeypatch.setattr(tuning, "TUNING", replace(tuning.TUNING, slow_step_ms=math.inf))
    yield
    empty_caches()


def opened(target: str, draft: str | None, **options: Any) -> Session:
    usual: dict[str, Any] = {
        **{"context": 2048, "retrieval_budget": 128, "refresh_every": 2, "device": "cuda", "dtype": "float32"},
        **{"num_draft_tokens": 2, "num_pending_tokens": 6},
    }
    return Session.load(EngineConfig(model=target, draft=draft, **{**usual, **options}))


def read(session: Session, book: Document) -> None:
    assert isinstance(list(session.read(book))[-1], BookRead)


def ask(session: Session, question: str = QUESTIONS[0], mode: str = "hierarchical", **sampling: Any) -> AnswerDone:
    params = SamplingParams(**{"max_tokens": TOKENS, **sampling})
    done = list(session.ask(Question(question, sampling=params, mode=mode)))[-1]  # type: ignore[arg-type]
    list(session.work_ahead())  # as the engine does between two answers
    assert isinstance(done, AnswerDone)
    return done


def assert_recorded(session: Session, *levels: str) -> None:
    recorded = session.hierarchy.recorded()
    assert not [level for level, replays in recorded.items() if replays.off]
    for level in levels:
        assert recorded[level].replayed, level


@pytest.mark.parametrize("kind", SHAPES)
def test_every_family_says_what_it_says_on_the_processor(kind: str, tiny: Callable[..., str], book: Document) -> None:
    pair = tiny(kind), tiny("llama", seed=1, layers=1, width=32)
    found = {}
    for device in ("cpu", "cuda"):
        session = opened(*pair, device=device)
        try:
            read(session, book)
            found[device] = [ask(session, question).token_ids for question in QUESTIONS]
            found[f"{device}, plain"] = [ask(session, question, "plain").token_ids for question in QUESTIONS]
            if device == "cuda":
                assert_recorded(session)
        finally:
            session.close()
    assert len({str(tokens) for tokens in found.values()}) == 1, found


@pytest.mark.parametrize("tiers", ["DDD", "HHH", "FFF", "HDF", "DHD"])
@pytest.mark.parametrize("kv", ["model", "8bit"])
def test_kv_wherever_it_lies(
    tiers: str, kv: str, tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = tiny("llama"), tiny("llama", seed=1, layers=1, width=32)
    session = opened(*pair, device="cpu", kv=kv)
    read(session, book)
    expected = [ask(session, question).token_ids for question in QUESTIONS]
    session.close()
    place = Placement(tuple(TIERS[tier] for tier in tiers))
    monkeypatch.setattr(
        planner, "plan_for_book", lambda _, tokens, *__: planner.MemoryPlan(tokens + 300, place, KvBytes(), 0)
    )
    session = opened(*pair, kv=kv)
    try:
        read(session, book)
        assert [ask(session, question).token_ids for question in QUESTIONS] == expected
        assert_recorded(session)
    finally:
        session.close()


def test_book_after_book_is_recorded_and_right(tiny: Callable[..., str], book: Document) -> None:
    """Each book drops the recordings of verifications, whose workspace other recordings must not share."""
    pair = tiny("llama"), tiny("llama", seed=1, layers=1, width=32)
    books = [replace(book, pages=book.pages[first:]) for first in (0, 2, 4, 0)]
    found: dict[str, list[tuple[int, ...]]] = {}
    for device in ("cpu", "cuda"):
        session = opened(*pair, device=device)
        answers = found[device] = []
        for each in books:
            read(session, each)
            answers += [ask(session, question, max_tokens=96).token_ids for question in QUESTIONS]
        if device == "cuda":
            assert_recorded(session, "draft", "middle", "verify")
        session.close()
    assert found["cuda"] == found["cpu"]


def test_recordings_outgrow_their_span_and_their_memory(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full, "GROWTH", 128)
    monkeypatch.setattr(full, "RECORDED", 48)
    test_book_after_book_is_recorded_and_right(tiny, book)


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe", "gpt_oss", "gemma3_text", "qwen3_5_text"])
@pytest.mark.parametrize(
    "options",
    [
        *({"weights": "4bit"}, {"weights": "8bit"}, {"middle": "4bit"}, {"kv": "8bit"}, {"graphs": "off"}),
        *({"num_draft_tokens": 0}, {"num_draft_tokens": None, "num_pending_tokens": None}),
    ],
    ids=str,
)
def test_half_precision(kind: str, options: dict[str, Any], tiny: Callable[..., str], book: Document) -> None:
    """Passes of different lengths round differently in bfloat16, so tokens may differ between nearly equal logits.
    Logits are near those of the processor, speculation's tokens are near the top of plain decoding, and most are kept.
    """
    target = tiny(kind)
    session = opened(target, target, dtype="bfloat16", **options)
    try:
        read(session, book)
        done = ask(session, max_tokens=48)
        assert_recorded(session)
        plain = ask(session, "What stood on the sill?", "plain", max_tokens=48)
        assert done.token_ids
        assert plain.token_ids
        drawn: tuple[dict[str, Any], ...] = ({"temperature": 0.8, "top_p": 0.9}, {"temperature": 1.0, "top_k": 20})
        for params in drawn:
            assert ask(session, max_tokens=48, **params).token_ids
        assert_recorded(session)
    finally:
        session.close()


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_of_half_precision(kind: str, dtype: str, tiny: Callable[..., str]) -> None:
    """The first pass, one over the cache and a single token, against float32 on the processor."""
    ids = torch.randint(6, 380, (300,), generator=torch.Generator().manual_seed(0)).tolist()

    def logits(device: torch.device, dtype: str) -> tuple[torch.Tensor, bool]:
        model = loading.load(tiny(kind), window=512, device=device, dtype=dtype)
        cache, found = FullCache(model.kv_shape, 512), []
        with torch.inference_mode():
            for first, last in ((0, 290), (290, 299), (299, 300)):
                cache.reserve(last)
                found.append(full_pass(model, cache, first, ids[first:last])[-1:].float().cpu())
                cache.advance(last - first)
        return torch.cat(found), experts_of(model.config) is not None

    (expected, experts), (found, _) = logits(torch.device("cpu"), "float32"), logits(GPU, dtype)
    assert not found.isnan().any()
    difference = (found - expected).abs().amax(-1) / expected.abs().amax(-1)
    assert difference.max() < (0.25 if experts else 0.08), difference


@pytest.mark.parametrize(("width", "rows"), [(32, 1), (96, 5), (512, 16), (4096, 1), (4096, 64), (14336, 8)])
@pytest.mark.parametrize("kind", [Linear4, Linear8])
def test_products_with_quants(kind: type[Linear4 | Linear8], width: int, rows: int) -> None:
    quantized = kind(torch.nn.Linear(width, 64, dtype=torch.bfloat16).requires_grad_(False))
    x = torch.randn(rows, width).bfloat16()
    expected = x.float() @ quantized.unpacked().float().t() + quantized.bias.float()
    assert multiplies_tiles(GPU)
    with torch.no_grad():
        made = tiled(quantized.to(GPU))
        assert made is not None
        found = made(x.to(GPU)).cpu().float()
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize(("heads", "keys", "rows"), [(8, 16_384, 8), (2, 4_099, 1), (8, 700, 64), (1, 40_000, 33)])
def test_kernels(dtype: torch.dtype, head_dim: int, heads: int, keys: int, rows: int) -> None:
    for name in cuda.candidates(GPU, dtype, head_dim):
        assert cuda.measure(name, GPU, dtype, heads, head_dim, keys, rows) is not None, name
    assert cuda.takes_masks(GPU, dtype, heads, head_dim)
    for group in (1, 4, 8):
        assert cuda.takes_lengths(GPU, dtype, heads, group, head_dim), group


@pytest.mark.parametrize("vocabulary", [384, 151_936])
@pytest.mark.parametrize(
    "options",
    [
        *({"temperature": 0.7, "top_p": 0.8}, {"temperature": 1.0, "top_k": 40}),
        *({"temperature": 1.3, "top_p": 0.95, "top_k": 200}, {"temperature": 1.0}),
    ],
    ids=str,
)
@pytest.mark.parametrize("spread", [0.1, 4.0])
def test_distributions(vocabulary: int, options: dict[str, Any], spread: float) -> None:
    """Those of the processor, also where a nucleus has most of the vocabulary; what is drawn is in them."""
    logits = spread * torch.randn(16, vocabulary, generator=torch.Generator().manual_seed(1))
    sampler = Sampler(SamplingParams(**options))
    found, expected = sampler(logits.to(GPU)), verify.Sampler(SamplingParams(**options))(logits)
    laws = [dense(each, vocabulary).cpu() for each in (found, expected)]
    assert torch.allclose(laws[0].double(), laws[1].double(), atol=1e-5)
    generator = make_generator(1, GPU)
    tokens = draw(found, generator).cpu()
    assert (laws[1].gather(1, tokens[:, None]) > 0).all()


@pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="takes the card's whole memory: -n 0")
def test_a_card_that_is_full_makes_room(
    tiny: Callable[..., str], book: Document, caplog: pytest.LogCaptureFixture
) -> None:
    """All memory that is free is taken by somebody else after the book was read."""
    session = opened(tiny("llama"), tiny("llama", seed=1, layers=1, width=32))
    read(session, book)
    expected = [ask(session, question).token_ids for question in QUESTIONS]
    torch.cuda.empty_cache()
    taken = []
    for size in (1 << 30, 1 << 24, 1 << 21):
        while torch.cuda.mem_get_info(GPU)[0] > size + (1 << 22):
            try:
                taken.append(torch.empty(size, dtype=torch.uint8, device=GPU))
            except torch.OutOfMemoryError:
                break
    with caplog.at_level(logging.INFO):
        found = [ask(session, question).token_ids for question in QUESTIONS]
    session.close()
    del taken
    assert found == expected


def test_kept_and_opened_again(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    pair = tiny("llama"), tiny("llama", seed=1, layers=1, width=32)
    answers = []
    for _ in range(2):
        session = opened(*pair, snapshot_folder=str(tmp_path))
        *_, done = session.read(book)
        assert isinstance(done, BookRead)
        answers.append([ask(session, question).token_ids for question in QUESTIONS])
        session.close()
    assert done.tokens_restored > 0
    assert answers[0] == answers[1]


# Kinds of a file that torch's product takes over or that are rounded to 8 bits, by GGML's name.
GGUF_KINDS = ("Q4_K", "Q4_0", "Q4_1", "Q5_K", "Q6_K", "Q8_0", "IQ4_XS", "Q2_K", "Q3_K")
SHORT = Document.from_text("A book", "The light was out. Maren climbed the stairs and counted them. " * 12)


def number_of(kind: str) -> int:
    return next(number for number, form in FORMATS.items() if form.name == kind)


@pytest.mark.parametrize("rows", [1, 5, 16, 200])
@pytest.mark.parametrize("kind", GGUF_KINDS)
def test_gguf_products(kind: str, rows: int) -> None:
    """Those of the file's own weights, as near as they are rounded."""
    data = torch.from_numpy(random_blocks(np.random.default_rng(1), 64, 1024, number_of(kind)))
    layer = BlockLinear(Stored(data, number_of(kind), 1024), None, torch.bfloat16)
    x = torch.randn(rows, 1024, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = x.float() @ layer.values().t()
    made = tiled(reduced(layer, FITTED).to(GPU))
    assert made is not None
    with torch.no_grad():
        found = made(x.to(GPU)).cpu().float()
    near = 0.15 if kind in ("Q2_K", "Q3_K") else 0.01 if fitted_format(number_of(kind)) == "4bit" else 0.03
    assert (found - expected).norm() < near * expected.norm()


@pytest.mark.parametrize("kind", [form.form.name for form in CARD_FORMATS.values()])
def test_a_file_s_own_values_are_multiplied(kind: str) -> None:
    """The kernels compile on this card, expand the file's values bit for bit, and multiply by them."""
    assert card_blocks.multiplies_blocks(GPU, [number_of(kind)])


@pytest.mark.usefixtures("at_hand", "tried")
def test_a_session_with_a_file_s_own_values(tmp_path: Path) -> None:
    """It answers at every level, recorded passes included, and its weights take the bytes of the file."""
    _, folder = described(tmp_path, "qwen3", add_context_length=2048)
    session = opened(str(folder), None, dtype="bfloat16")
    try:
        assert any(isinstance(part, card_blocks.CardLinear) for part in session.target.model.modules())
        read(session, SHORT)
        plain = ask(session, QUESTIONS[0], "plain").token_ids
        assert ask(session).token_ids == plain
    finally:
        session.close()


@pytest.mark.parametrize("kind", [*GGUF_KINDS, "mixed"])
@pytest.mark.parametrize("family", ["qwen2", "qwen3moe"])
@pytest.mark.usefixtures("at_hand", "tried")
def test_gguf_that_does_not_fit_the_card(
    kind: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its logits are the processor's with the same rounded weights, and it answers at every level."""
    if kind != "mixed":
        monkeypatch.setattr(test_gguf, "KINDS", [number_of(kind)])
    _, folder = described(tmp_path, family, add_context_length=2048)
    ids = torch.randint(0, 256, (60,), generator=torch.Generator().manual_seed(0)).tolist()
    logits = []
    for device, dtype in ((torch.device("cpu"), "float32"), (GPU, "bfloat16")):
        model = loading.load(str(folder), window=512, device=device, dtype=dtype, weights=FITTED, packed=device is GPU)
        cache = FullCache(model.kv_shape, 512)
        cache.reserve(60)
        with torch.inference_mode():
            logits.append(full_pass(model, cache, 0, ids)[-1].float().cpu())
        cache.clear()
    assert logits[1].isfinite().all()
    difference = (logits[1] - logits[0]).abs().max() / logits[0].abs().max()
    assert difference < (0.3 if family == "qwen3moe" else 0.1), difference
    if kind not in ("Q4_K", "mixed"):
        return
    monkeypatch.setattr(planner, "with_fitting_weights", lambda config, *_: replace(config, weights=FITTED))
    session = opened(str(folder), None, dtype="bfloat16")
    try:
        assert any(isinstance(part, TiledLinear) for part in session.target.model.modules())
        assert not any(isinstance(part, Linear4 | Linear8) for part in session.target.model.modules())
        read(session, SHORT)
        assert ask(session).token_ids
        assert ask(session, QUESTIONS[1], "plain").token_ids
        assert ask(session, temperature=0.8, top_p=0.9).token_ids
    finally:
        session.close()


@pytest.mark.usefixtures("at_hand", "tried")
def test_gguf_is_rounded_where_the_card_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The card says that it has so much memory that the expanded weights would wait in host memory."""
    _, folder = described(tmp_path, "qwen2", add_context_length=2048)
    settings = loading.settings_of(str(folder), None)
    config = EngineConfig(str(folder), None, device="cuda", retrieval_budget=128)
    room = 1 << 30
    with monkeypatch.context() as card:
        card.setattr(planner.kinds, "free_memory", lambda _: room)
        card.setattr(planner.gguf, "keeps_on_card", lambda *_: False)
        card.setattr(planner, "gains_from_tiles", lambda _: False)  # else it may be rounded where there is room, too
        while not planner.lay_out(config, settings, None, [GPU]).in_host:
            assert planner.with_fitting_weights(config, settings, None, [GPU]).weights == "stored"
            room -= max(50_000, room // 20)
        fitted = planner.with_fitting_weights(config, settings, None, [GPU])
    assert fitted.weights == FITTED
    session = Session.load(fitted)
    try:
        assert session.target.name.endswith("(weights rounded to fit)")
        read(session, SHORT)
        assert ask(session).token_ids
    finally:
        session.close()
