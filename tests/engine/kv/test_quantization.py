"""KV in 8 bits: near what it stands for, a fraction of the memory, and exact decoding with respect to it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from app.core.settings import DEMO_DRAFT, DEMO_MODEL, SAMPLE_BOOKS
from engine.config import KV_NOTES, EngineConfig, Mode, SamplingParams
from engine.decode import prefill
from engine.document import Document, Page
from engine.errors import OptionError, SnapshotRefused
from engine.events import AnswerDone, BookRead
from engine.kv.full import FullCache
from engine.kv.manifest import Shard, Snapshot
from engine.kv.offload import Placement, Tier
from engine.kv.snapshot_io import restore
from engine.model import loading
from engine.model.kernels import plain as attend_slowly
from engine.model.kv_shape import LARGEST_QUANT, KvShape
from engine.plan.hardware import inspect_model
from engine.plan.memory_budget import FINE_CHUNK
from engine.plan.planner import Resources, plan
from engine.prompt import Question, Turn
from engine.session import Session
from engine.worker import describe
from tests.engine.kv.test_snapshots import identity_of

CPU = torch.device("cpu")
SHAPE = KvShape(layers=2, kv_heads=2, head_dim=64, dtype=torch.float32, device=CPU, quantized=True)
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def noise(*size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


# Numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_comes_back_is_the_nearest_quant(dtype: torch.dtype) -> None:
    shape = replace(SHAPE, dtype=dtype)
    sizes = 10.0 ** torch.arange(-2, 3).repeat_interleave(20).reshape(1, 1, -1, 1)  # every token has its own scale
    x = (noise(1, 2, 100, 64) * sizes).to(dtype)
    kept = shape.quantize(x)
    assert (kept.dtype, kept.shape) == (torch.int8, (1, 2, 100, 66))
    step = x.float().abs().amax(dim=-1, keepdim=True) / LARGEST_QUANT
    back = shape.dequantize(kept)
    assert (back.dtype, back.shape) == (dtype, x.shape)
    # Half a step; more where the scale is rounded up, and where the product has the model's few bits.
    eps = {torch.float32: 2.0**-8, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    assert (
        (back.float() - x.float()).abs() <= 0.5001 * (1 + eps) * step + torch.finfo(dtype).eps * x.float().abs()
    ).all()
    assert (kept[..., :64].abs().amax(dim=-1) == LARGEST_QUANT).all()


def test_codes_and_scales_number_by_number() -> None:
    x = noise(1, 2, 5, 64)
    kept, back = SHAPE.quantize(x), SHAPE.dequantize(SHAPE.quantize(x))
    for head in range(2):
        for token in range(5):
            numbers = x[0, head, token].tolist()
            scale = float(torch.tensor(max(map(abs, numbers)) / 127).bfloat16())
            codes = kept[0, head, token, :64].tolist()
            assert float(kept[0, head, token, 64:].view(torch.bfloat16)) == scale
            assert all(abs(code - number / scale) <= 0.5 + 1e-4 for code, number in zip(codes, numbers, strict=True))
            assert all(code * scale == value for code, value in zip(codes, back[0, head, token].tolist(), strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_odd_numbers(dtype: torch.dtype) -> None:
    shape = replace(SHAPE, dtype=dtype)
    largest = torch.finfo(dtype).max
    for value in (0.0, torch.finfo(dtype).tiny, 1e-30, largest, -largest):
        back = shape.dequantize(shape.quantize(torch.full((1, 2, 1, 64), value, dtype=dtype)))
        assert back.isfinite().all() or math.isclose(abs(value), largest)
        if value == 0.0:
            assert (back == 0).all()
    x = noise(1, 2, 9, 64).to(dtype)
    assert torch.equal(shape.dequantize(shape.quantize(-x)), -shape.dequantize(shape.quantize(x)))


def test_a_token_is_rounded_by_itself() -> None:
    x = noise(1, 2, 40, 64)
    together = SHAPE.quantize(x)
    assert torch.equal(together[:, :, 7:8], SHAPE.quantize(x[:, :, 7:8]))
    assert torch.equal(together[:, :, 30:], SHAPE.quantize(x.transpose(1, 2).contiguous().transpose(1, 2)[:, :, 30:]))


def test_other_kv_is_left_alone() -> None:
    x, whole = noise(1, 2, 5, 64), SHAPE.stored_as("model")
    assert whole.quantize(x) is x
    assert whole.dequantize(x) is x


# Memory ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "share"), [(torch.float32, 0.254), (torch.bfloat16, 0.508), (torch.float16, 0.508)])
def test_the_memory_is_a_half_or_a_quarter(dtype: torch.dtype, share: float, tmp_path: Path) -> None:
    shape = KvShape(4, 2, 128, dtype, CPU)
    bytes_of = {}
    for kv in ("model", "8bit"):
        cache = FullCache(shape.stored_as(kv), 4096, Placement.spread(4, 2, 1), tmp_path)
        cache.reserve(1024)
        for layer in range(4):
            cache.write(layer, 0, noise(1, 2, 1024, 128).to(dtype), noise(1, 2, 1024, 128).to(dtype))
        cache.advance(1024)
        resident, host, disk = (cache._stores[cache.placement.tiers.index(tier)] for tier in Tier)
        room = cache.capacity
        held = resident.keys.nbytes + resident.values.nbytes, host._rows.nbytes
        assert {size / room for size in held} == {cache.shape.bytes_per_token / 4}
        disk._file.seek(0, 2)
        assert disk._file.tell() == cache.kv_bytes().disk == 1024 * cache.shape.bytes_per_token / 4
        exported = sum(part.nbytes for layer in range(4) for part in cache.export(layer, 0, 1024))
        bytes_of[kv] = exported
        assert exported == cache.kv_bytes().total
        cache.clear()
    assert bytes_of["8bit"] / bytes_of["model"] == pytest.approx(share, abs=0.001)


def test_the_plan_counts_what_is_kept_and_the_buffers_in_full() -> None:
    shape = KvShape(32, 8, 128, torch.bfloat16, CPU)
    layer, small = 2 * 8 * 128 * 2 * 1000, 2 * 8 * 130 * 1000
    tight = Resources(32 * small + layer)  # far too little for KV that is not rounded
    assert plan(shape, 1000, tight) is None
    found = plan(shape.stored_as("8bit"), 1000, tight)
    assert found is not None
    assert (found.placement.spilled, found.staging, found.kv.total) == ((), layer, 32 * small)
    less = plan(shape.stored_as("8bit"), 1000, Resources(32 * small + layer - 1, disk=10**12))
    assert less is not None
    assert less.staging + less.kv.host <= 32 * small + layer - 1
    assert less.staging == 3 * layer + 2 * small
    assert less.placement.count(Tier.DISK) == 6  # two buffers more, which hold 8 bits too, take their place


# One cache ------------------------------------------------------------------------------------------------------


def test_a_pass_sees_rounded_numbers_its_own_too() -> None:
    shape = KvShape(1, 2, 64, torch.float32, CPU, quantized=True)
    cache = FullCache(shape, 100)
    cache.reserve(50)
    k, v, q = noise(1, 2, 50, 64, seed=1), noise(1, 2, 50, 64, seed=2), noise(1, 4, 50, 64, seed=3)
    first = cache.extend(0).attend(0, q[:, :, :1], k[:, :, :1], v[:, :, :1], 1.0)
    own = shape.dequantize(shape.quantize(v[:, :, :1]))
    assert torch.allclose(first, own.repeat_interleave(2, dim=1), atol=1e-6)
    assert not torch.allclose(first, v[:, :, :1].repeat_interleave(2, dim=1), atol=1e-4)
    cache.advance(1)
    found = cache.extend(1).attend(0, q[:, :, 1:], k[:, :, 1:], v[:, :, 1:], 0.1)
    near_k, near_v = (shape.dequantize(shape.quantize(x)).repeat_interleave(2, dim=1) for x in (k, v))
    mask = torch.ones(50, 50, dtype=torch.bool).tril()[1:]
    expected = attend_slowly(q[:, :, 1:], near_k, near_v, 0.1, mask)[0]
    assert torch.allclose(found, expected, atol=1e-5)


def layers_of(cache: FullCache) -> list[torch.Tensor]:
    return [part for layer in range(cache.shape.layers) for part in cache.export(layer, 0, cache.length)]


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DISK])
def test_spilled_in_the_middle_of_a_segment(tier: Tier, tiny: Callable[..., str], tmp_path: Path) -> None:
    decoder = loading.load(tiny("llama", layers=4), window=2048, device=CPU)
    ids = torch.randint(6, 380, (300,), generator=torch.Generator().manual_seed(0))
    whole = FullCache(decoder.kv_shape.stored_as("8bit"), 2048)
    cache = FullCache(decoder.kv_shape.stored_as("8bit"), 2048, spill_folder=tmp_path)
    prefill.run(decoder, whole, ids, segment=200, block=50)
    passes = 0

    class Spills:
        def observe(self, layer: int, q: torch.Tensor, scaling: float) -> None:
            nonlocal passes
            passes += 1
            if passes == 11:  # the third layer, of whose segment two blocks are done
                cache.spill([0, 1, 2], tier)

    prefill.run(decoder, cache, ids, segment=200, block=50, observer=Spills())
    assert cache.placement.count(tier) == 3
    assert all(torch.equal(one, other) for one, other in zip(layers_of(cache), layers_of(whole), strict=True))


def test_cropped_and_grown_again_it_never_was_cropped() -> None:
    straight, grown = FullCache(SHAPE, 9000), FullCache(SHAPE, 9000)
    k, v, q = noise(1, 2, 600, 64, seed=1), noise(1, 2, 600, 64, seed=2), noise(1, 2, 600, 64, seed=3)

    def add(cache: FullCache, start: int, stop: int, *, wrong: bool = False) -> list[torch.Tensor]:
        cache.reserve(stop)
        view, part = cache.extend(start), slice(start, stop)
        sign = -1 if wrong else 1
        out = [view.attend(layer, q[:, :, part], sign * k[:, :, part], v[:, :, part], 0.1) for layer in range(2)]
        cache.advance(stop - start)
        return out

    for start in range(0, 600, 100):
        expected = add(straight, start, start + 100)
        add(grown, start, start + 60)
        add(grown, start + 60, start + 90, wrong=True)
        grown.crop(start + 60)
        found = add(grown, start + 60, start + 100)
        assert all(torch.allclose(a, b[:, :, 60:], atol=1e-6) for a, b in zip(found, expected, strict=True))
        if start == 200:
            grown.reserve(8000)
    for layer in range(2):
        assert torch.equal(grown.keys(layer, 0, 600), straight.keys(layer, 0, 600))
        assert torch.equal(grown.values(layer, 3, 599), SHAPE.dequantize(SHAPE.quantize(v))[0, :, 3:599])
    heads, chunks = torch.tensor([0, 1, 1]), torch.tensor([0, 7, 74])
    keys, values = grown.gather(0, heads, chunks, 8)
    for index, (head, chunk) in enumerate(zip(heads.tolist(), chunks.tolist(), strict=True)):
        assert torch.equal(keys[index], straight.keys(0, 8 * chunk, 8 * chunk + 8)[head])
        assert torch.equal(values[index], straight.values(0, 8 * chunk, 8 * chunk + 8)[head])


@pytest.mark.parametrize("where", [Placement.resident(1), Placement.spread(1, 0, 1)])
def test_what_comes_from_disk_replaces_what_was_unpacked(where: Placement) -> None:
    """A turn that is brought back lies where another was read: the buffer must not go on with that."""
    shape = replace(SHAPE, layers=1)
    one, other = FullCache(shape, 100, where), FullCache(shape, 100)
    for cache, seed in ((one, 1), (other, 2)):
        cache.reserve(50)
        k, v, q = noise(1, 2, 50, 64, seed=seed), noise(1, 2, 50, 64, seed=seed), noise(1, 2, 50, 64, seed=3)
        cache.extend(0).attend(0, q, k, v, 0.1)
        cache.advance(50)
    one.crop(20)
    one.adopt(0, 20, *(part.unsqueeze(0) for part in other.export(0, 20, 50)))
    one.advance(30)
    one.bring(0, 50)
    assert torch.equal(one.keys(0, 20, 50), other.keys(0, 20, 50))
    assert torch.equal(one.values(0, 20, 50), other.values(0, 20, 50))
    assert not torch.equal(one.keys(0, 0, 20), other.keys(0, 0, 20))


@pytest.mark.parametrize(("saved", "wanted"), [("8bit", "model"), ("model", "8bit")])
def test_a_shard_of_the_other_kind_is_refused(saved: str, wanted: str, tmp_path: Path) -> None:
    import zlib

    from safetensors.torch import save

    mine, other = SHAPE.stored_as(saved), SHAPE.stored_as(wanted)
    size, kind = (2, 10, mine.storage_dim), mine.storage_dtype
    data = save({f"{side}.{layer}": torch.zeros(size, dtype=kind) for side in ("keys", "values") for layer in range(2)})
    shard = Shard(0, 10, len(data), zlib.crc32(data))
    (tmp_path / shard.file).write_bytes(data)
    snapshot = Snapshot(tmp_path, identity_of([0] * 10), 10, "", (shard,))
    assert list(restore(snapshot, FullCache(mine, 100))) == [10]
    cache = FullCache(other, 100)
    with pytest.raises(SnapshotRefused, match=r"another (shape|dtype)"):
        list(restore(snapshot, cache))
    assert cache.length == 0


# A whole session ------------------------------------------------------------------------------------------------

QUESTIONS = ("Where is the key?", "Who lit the lamp?")


def open_session(tiny: Callable[..., str], kind: str = "llama", layers: int = 3, **options: object) -> Session:
    given: dict[str, object] = {"context": 4096, "retrieval_budget": 64, "refresh_every": 2, "kv": "8bit"}
    draft = tiny("llama", seed=1, layers=1, width=32)
    return Session.load(EngineConfig(tiny(kind, spread=0.1, layers=layers), draft, **{**given, **options}))  # type: ignore[arg-type]


def ask(session: Session, question: str, *history: Turn, mode: Mode = "hierarchical", tokens: int = 32) -> AnswerDone:
    *_, done = session.ask(Question(question, history, SamplingParams(max_tokens=tokens), mode, chat="one"))
    assert isinstance(done, AnswerDone)
    return done


def read(session: Session, book: Document) -> BookRead:
    *_, done = session.read(book)
    assert isinstance(done, BookRead)
    return done


@pytest.mark.parametrize("kind", ["llama", "qwen3", "phi3"])
def test_greedy_hierarchical_is_greedy_plain(kind: str, tiny: Callable[..., str], book: Document) -> None:
    session = open_session(tiny, kind, num_draft_tokens=2, num_pending_tokens=6)
    read(session, book)
    assert session.full.kv_bytes().total == session.full.length * 2 * 3 * 2 * 18  # 16 codes and a scale
    fast = ask(session, QUESTIONS[0], tokens=40)
    slow = ask(session, QUESTIONS[0], mode="plain", tokens=40)
    assert fast.token_ids == slow.token_ids
    assert fast.figures.verify.proposed > 0
    session.close()


def test_the_same_answers_wherever_it_lies_and_after_a_snapshot(
    tiny: Callable[..., str], book: Document, tmp_path: Path
) -> None:
    layers = 14
    resident = open_session(tiny, layers=layers)
    read(resident, book)
    said = [ask(resident, question).token_ids for question in QUESTIONS]
    layer = resident.full.shape.compute_bytes_per_token // layers
    small = resident.full.shape.bytes_per_token // layers
    index = resident.full.shape.indexed(FINE_CHUNK).index_bytes_per_token
    limits = {"host_memory": str(4096 * (3 * layer + 4 * small + index)), "spill_folder": str(tmp_path / "s")}
    kept = []
    for source in ("read", "snapshot"):
        spilled = open_session(tiny, layers=layers, snapshot_folder=str(tmp_path / "k"), **limits)
        done = read(spilled, book)
        assert done.source == source
        assert done.kv_bytes.disk > done.kv_bytes.host > 0
        kept.append(layers_of(spilled.full))
        assert [ask(spilled, question).token_ids for question in QUESTIONS] == said
        assert ask(spilled, QUESTIONS[0], mode="plain").token_ids == said[0]
        spilled.close()
    assert all(torch.equal(one, other) for one, other in zip(*kept, strict=True))
    files = sum(file.stat().st_size for file in (tmp_path / "k").rglob("tokens-*.safetensors"))
    tokens = done.tokens
    assert files > tokens * resident.full.shape.bytes_per_token
    assert files < 0.5 * tokens * resident.target.kv_shape.bytes_per_token
    resident.close()


def test_a_chat_goes_on_after_a_restart(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    first = open_session(tiny, snapshot_folder=str(tmp_path))
    read(first, book)
    turn = Turn(QUESTIONS[0], ask(first, QUESTIONS[0]).text)
    first.persistence.finish()
    expected = ask(first, QUESTIONS[1], turn)
    first.close()
    second = open_session(tiny, snapshot_folder=str(tmp_path))
    assert read(second, book).source == "snapshot"
    found = ask(second, QUESTIONS[1], turn)
    assert found.token_ids == expected.token_ids
    assert found.figures.prefilled_tokens == expected.figures.prefilled_tokens
    second.close()


def test_a_saved_reading_belongs_to_its_kind(tiny: Callable[..., str], book: Document, tmp_path: Path) -> None:
    sources = []
    for kv in ("model", "8bit", "model", "8bit"):
        session = open_session(tiny, kv=kv, snapshot_folder=str(tmp_path))
        sources.append(read(session, book).source)
        session.close()
    assert sources == ["read", "read", "snapshot", "snapshot"]
    # One that has taken the other's place is told by its header, and the book is read again.
    folders = [folder for folder in tmp_path.iterdir() if (folder / "snapshot.json").is_file()]
    small, large = sorted(folders, key=lambda folder: sum(file.stat().st_size for file in folder.iterdir()))
    for source, target, kv, reason in (
        (small, large, "model", "float32 in 8 bits instead of float32"),
        (large, small, "8bit", "float32 instead of float32 in 8 bits"),
    ):
        name = tmp_path.parent / f"{kv}-{tmp_path.name}" / target.name
        name.parent.mkdir()
        source.rename(name)
        session = open_session(tiny, kv=kv, snapshot_folder=str(name.parent))
        done = read(session, book)
        assert (done.source, reason in done.refused) == ("read", True)
        session.close()


def test_the_mode_is_named(tiny: Callable[..., str]) -> None:
    session = open_session(tiny)
    about = describe(session, session.config)
    assert about.kv_note == KV_NOTES["8bit"] == "KV 8-bit: approximate; exact with respect to 8-bit KV"
    assert about.name == f"{session.target.name} (8-bit KV)"
    assert about.kv_bytes_per_token == 2 * 3 * 2 * 18
    session.close()
    whole = open_session(tiny, kv="model")
    about = describe(whole, whole.config)
    assert (about.kv_note, about.name) == ("", whole.target.name)
    whole.close()
    with pytest.raises(OptionError, match="8bit"):
        EngineConfig("m", kv="4bit")


def test_what_doctor_is_told(tiny: Callable[..., str], tmp_path: Path) -> None:
    config = EngineConfig(tiny("llama"), kv="8bit", spill_folder=str(tmp_path))
    target, draft = (inspect_model(name, config) for name in (config.model, tiny("llama", seed=1, layers=1, width=32)))
    assert (target.kv_bytes_per_token, target.kv_note) == (2 * 3 * 2 * 18, KV_NOTES["8bit"])
    assert (draft.kv_bytes_per_token, draft.kv_note) == (2 * 1 * 2 * 8 * 4, "")  # a draft's stays as it is


def test_the_demo_pair_answers_from_a_part_of_the_sample_book() -> None:
    """Plainly, and with guesses, as many as are given: a controller may decide from measured times to guess nothing."""
    text = next(iter(sorted(SAMPLE_BOOKS.glob("*.txt")))).read_text(encoding="utf-8")[:6000]
    pages = tuple(Page(n, str(n), text[1500 * (n - 1) : 1500 * n]) for n in range(1, 5))
    part = Document("The Lamplighters of Orre", "", pages, "text", "0" * 64)
    config = EngineConfig(
        str(DEMO_MODEL), str(DEMO_DRAFT), 4096, dtype="float32", kv="8bit", num_draft_tokens=2, num_pending_tokens=4
    )
    session = Session.load(config)
    read(session, part)
    words = " ".join(part.pages[1].text.split()[20:26])
    question = f"Quote the passage that begins with “{words}”."
    slow, fast = (ask(session, question, mode=mode, tokens=48) for mode in ("plain", "hierarchical"))
    assert slow.token_ids == fast.token_ids
    assert fast.figures.verify.proposed > 0
    session.close()
