"""Our own kernels for processors: exact, and a row has the same bits whatever rows come with it."""

from __future__ import annotations

import copy
import math
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from llvmlite import ir
from torch import nn

from app.core.settings import DEMO_MODEL
from engine.decode import prefill
from engine.decode.tuning import TUNING
from engine.kv.full import FullCache, Observer, PassQueries
from engine.model import attention, loading
from engine.model.architectures import pick_dtype
from engine.model.backends.program import pack
from engine.model.kernels import abi, native, own_attention
from engine.model.kernels.abi import BLOCK, PIECE
from engine.model.kernels.emit.attention import LINE
from engine.model.kernels.emit.emitter import I8, I64, PTR, Emitter, long
from engine.model.kv_shape import KvShape
from engine.model.products.norms import PackedNorm
from engine.model.products.packed import JointLayer, PackedLinear, PackedLinear4, PackedLinear8, Unpacked
from engine.model.products.quantized import Linear4, Linear8
from tests.engine.conftest import TRAINED

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
LONGEST = max(TUNING.copy_lengths[-1], TUNING.most_pending) + 1  # rows of a verification
SHORTER = 17  # of one on families whose products and attention are those of the others


@pytest.fixture(scope="module", params=[4, 8, 16])
def kernels(request: pytest.FixtureRequest) -> native.Native:
    """As on processors with narrow and wide vectors, and with more workers than one, on any machine."""
    return native.Native(workers=3, lanes=request.param)


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def joined(kernels: native.Native, inputs: int, outputs: list[int], bias: bool, dtype: torch.dtype) -> PackedLinear:
    torch.manual_seed(1)
    layers = [nn.Linear(inputs, count, bias=bias).to(dtype).requires_grad_(False) for count in outputs]
    return PackedLinear(layers, kernels, Unpacked())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, [96]), (50, [33]), (7, [1]), (128, [64, 16, 16])])
def test_a_product_is_exact_and_its_rows_do_not_depend_on_each_other(
    kernels: native.Native, inputs: int, outputs: list[int], bias: bool, dtype: torch.dtype
) -> None:
    layer = joined(kernels, inputs, outputs, bias, dtype)
    x = numbers(1, native.MOST_ROWS, inputs).to(dtype)
    expected = x.double() @ layer.unpacked().double()
    if layer.bias is not None:
        expected = expected + layer.bias.double()
    tolerance = 5e-6 if dtype is torch.float32 else 8e-3
    for rows in (1, 2, 3, 7, 8, 13, native.MOST_ROWS):
        out = layer(x[:, :rows])
        assert out.shape == (1, rows, sum(outputs))
        assert (out.double() - expected[:, :rows]).abs().max() <= tolerance * expected.abs().max()
        assert torch.equal(out, torch.cat([layer(x[:, at : at + 1]) for at in range(rows)], dim=1))
    check_first(layer, x[:, :3])


def check_first(layer: PackedLinear, x: torch.Tensor) -> None:
    """A product of the first outputs reads the same memory and gives the same bits."""
    whole = layer(x)
    for outputs in (1, min(17, layer.out_features), layer.out_features):
        few = layer.first(outputs)
        assert outputs <= few.out_features <= layer.out_features
        assert torch.equal(few(x), whole[..., : few.out_features])
    assert torch.equal(layer(x), whole), "the whole is as it was"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("small", "packed", "inputs", "outputs"),
    [
        (Linear8, PackedLinear8, 64, [96]),
        (Linear8, PackedLinear8, 7, [33, 1]),
        (Linear4, PackedLinear4, 96, [64, 16, 17]),
    ],
)
def test_a_product_reads_quants_as_they_are(
    kernels: native.Native,
    small: type[Linear8 | Linear4],
    packed: type[PackedLinear],
    inputs: int,
    outputs: list[int],
    bias: bool,
    dtype: torch.dtype,
) -> None:
    """Of 8 and 4 bits; the plain path is the definition, and a row has the same bits whatever rows come with it."""
    torch.manual_seed(1)
    layers = [small(nn.Linear(inputs, count, bias=bias).to(dtype).requires_grad_(False)) for count in outputs]
    layer = packed(layers, kernels, Unpacked())
    weight = torch.cat([each.unpacked() for each in layers])
    near = 0 if dtype is torch.float32 else 2**-8  # which unpacked weights are rounded to
    assert torch.allclose(
        layer.unpacked().float(), weight.t().float(), rtol=near, atol=near * float(weight.abs().max())
    )
    x = numbers(1, native.MOST_ROWS + 1, inputs).to(dtype)
    expected = x.double() @ weight.t().double()
    if layer.bias is not None:
        expected = expected + torch.cat([each.bias for each in layers]).double()
    tolerance = 5e-6 if dtype is torch.float32 else 1e-2
    for rows in (1, 2, 3, 7, 8, 13, 32, native.MOST_ROWS, native.MOST_ROWS + 1):
        out = layer(x[:, :rows])
        assert out.dtype is dtype
        assert out.shape == (1, rows, sum(outputs))
        assert (out.double() - expected[:, :rows]).abs().max() <= tolerance * expected.abs().max()
        if rows <= native.MOST_ROWS:
            assert torch.equal(out, torch.cat([layer(x[:, at : at + 1]) for at in range(rows)], dim=1))
    check_first(layer, x[:, :3])


def test_a_wide_product_uses_the_same_weights(kernels: native.Native) -> None:
    layer = joined(kernels, 48, [80], bias=True, dtype=torch.float32)
    x = numbers(1, native.MOST_ROWS + 1, 48)
    assert torch.allclose(layer(x)[:, :5], layer(x[:, :5]), atol=1e-6)


def test_wide_products_in_half_precision_are_not_far_slower_than_in_float32() -> None:
    """On a processor without instructions for bfloat16 a book was read 30 times slower in it."""
    width = 256
    kernels = native.own()
    if kernels is None:
        pytest.skip("no kernels of our own on this processor")
    seconds, outs = {}, {}
    for dtype in DTYPES:
        layer = joined(kernels, width, [width], bias=False, dtype=dtype)
        x = numbers(1, width, width).to(dtype)
        outs[dtype] = layer(x)
        assert outs[dtype].dtype is dtype
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            layer(x)
            taken.append(time.perf_counter() - began)
        seconds[dtype] = min(taken)
    assert torch.allclose(outs[torch.bfloat16].float(), outs[torch.float32], atol=0.05)
    assert seconds[torch.bfloat16] < 8 * seconds[torch.float32]


def test_weights_that_half_precision_holds_take_half_the_bytes(kernels: native.Native) -> None:
    plain = nn.Linear(64, 64, bias=False).requires_grad_(False)
    assert PackedLinear([plain], kernels, Unpacked()).weight.dtype is torch.float32
    plain.weight.copy_(plain.weight.bfloat16())
    packed = PackedLinear([plain], kernels, Unpacked())
    assert packed.weight.dtype is torch.bfloat16
    assert torch.equal(packed.unpacked(), plain.weight.t())


def test_layers_of_one_input_share_a_product_and_never_an_older_one(kernels: native.Native) -> None:
    product = joined(kernels, 32, [64, 16, 16], bias=False, dtype=torch.float32)
    held: list[torch.Tensor] = []
    shares = [JointLayer(product, *span, held) for span in ((0, 64), (64, 80), (80, 96))]
    for seed in range(3):
        x = numbers(1, 4, 32, seed=seed)
        assert torch.equal(torch.cat([share(x) for share in shares], dim=-1), product(x))
        assert not held
        assert torch.equal(shares[1](numbers(1, 2, 32, seed=9)), product(numbers(1, 2, 32, seed=9))[..., 64:80])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("offset", [0.0, 1.0], ids=["llama", "gemma"])
def test_a_norm_is_that_of_transformers(kernels: native.Native, offset: float, dtype: torch.dtype) -> None:
    from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norm: Any = (Gemma3RMSNorm if offset else LlamaRMSNorm)(96, eps=1e-5).requires_grad_(False)
    norm.weight.copy_(numbers(96, seed=2))
    norm = norm.to(dtype)
    x = (3 * numbers(1, 40, 96)).to(dtype)
    own, theirs = PackedNorm(norm, kernels, offset)(x), norm(x)
    assert own.dtype is dtype
    if dtype is torch.float32:
        assert torch.allclose(own, theirs, atol=1e-5)
    else:  # at most one rounding apart
        assert (own.float() - theirs.float()).abs().max() <= 2**-7 * theirs.float().abs().max()


def capped(scores: torch.Tensor, cap: float | None) -> torch.Tensor:
    return scores if cap is None else cap * torch.tanh(scores / cap)


def each_pair(heads: list[tuple[int, float | None]]) -> list[Any]:
    """Vectors, kinds of heads and dtypes in every pair of two of them, and all heads in bfloat16 with the widest."""
    return [
        pytest.param(lanes, dtype, head_dim, cap, id=f"{lanes}-{dtype}-{head_dim}")
        for row, lanes in enumerate((4, 8, 16))
        for column, (head_dim, cap) in enumerate(heads)
        for at, dtype in enumerate(DTYPES)
        if (row + column + at) % 2 or (lanes, dtype) == (16, torch.bfloat16)
    ]


VARIED = ("kernels", "dtype", "head_dim", "cap")


@pytest.mark.parametrize(VARIED, each_pair([(16, None), (80, None), (128, None), (32, 1.5)]), indirect=["kernels"])
@pytest.mark.parametrize("keys", [1, 63, 64, 65, 511, 512, 1300])
def test_attention_to_all_keys_is_exact(
    kernels: native.Native, keys: int, head_dim: int, dtype: torch.dtype, cap: float | None
) -> None:
    q, k, v = (numbers(1, 2, n, head_dim, seed=n).to(dtype) for n in (5, keys, keys))
    if not kernels.attention.takes(q, k, v):
        pytest.skip("the vectors of this processor do not fit")
    out, lse = kernels.attention.attend(q, k, v, 0.2, torch.full((5,), keys), cap=cap)
    scores = capped(q.double() @ k.double().transpose(-1, -2) * 0.2, cap)
    assert (out.double() - torch.softmax(scores, -1) @ v.double()).abs().max() <= (
        5e-6 if dtype is torch.float32 else 8e-3
    )
    assert (lse.double() - torch.logsumexp(scores, -1)).abs().max() <= 1e-5


@pytest.mark.parametrize(VARIED, each_pair([(16, None), (128, None), (32, 1.5)]), indirect=["kernels"])
@pytest.mark.parametrize("keys", [1, 65, 1300])
def test_attention_reads_quants_as_they_are(
    kernels: native.Native, keys: int, head_dim: int, dtype: torch.dtype, cap: float | None
) -> None:
    """KV in 8 bits; what is unpacked in float32 is the definition."""
    shape = KvShape(1, 2, head_dim, torch.float32, CPU, quantized=True)
    q = numbers(1, 2, 5, head_dim).to(dtype)
    k, v = (3 * numbers(1, 2, keys, head_dim, seed=seed) for seed in (1, 2))
    k[:, :, keys // 2] = 0.0  # of the smallest scale
    stored_k, stored_v = shape.quantize(k), shape.quantize(v)
    if not kernels.attention.takes(q, stored_k, stored_v):
        pytest.skip("the vectors of this processor do not fit")
    out, lse = kernels.attention.attend(q, stored_k, stored_v, 0.2, torch.full((5,), keys), cap=cap)
    scores = capped(q.double() @ shape.dequantize(stored_k).double().transpose(-1, -2) * 0.2, cap)
    expected = torch.softmax(scores, -1) @ shape.dequantize(stored_v).double()
    assert out.dtype is dtype
    # In bfloat16 the result is rounded to it, and where its pairs are multiplied the weights of the values are too.
    relative, absolute = (0.0, 1e-5) if dtype is torch.float32 else (2**-8, 2e-2)
    assert torch.allclose(out.double(), expected, rtol=relative, atol=absolute)
    assert (lse.double() - torch.logsumexp(scores, -1)).abs().max() <= 1e-5


@pytest.mark.parametrize(("kv", "window"), [("model", None), ("8bit", None), ("model", 90), ("model", 480)])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("past", [0, 40, 500, 1500])
def test_newest_tokens_see_what_each_of_them_would_see_alone(
    past: int, dtype: torch.dtype, kv: str, window: int | None
) -> None:
    """Bit by bit, across the borders of blocks and pieces, in a buffer with garbage behind it. Of keys before its
    window a token may be given more or fewer whole pieces."""
    n, group, head_dim = 33, 3, 64
    shape = KvShape(1, 2, head_dim, dtype, CPU).stored_as(kv)
    q = numbers(1, 2 * group, n, head_dim).to(dtype)
    if shape.quantized and not attention.reads_quants(q):
        pytest.skip("no kernels of our own on this processor")
    buffer = shape.quantize(torch.full((2, 2, past + n + 7, head_dim), float("nan")).to(dtype)).clone()
    buffer[:, :, : past + n] = shape.quantize(numbers(2, 2, past + n, head_dim, seed=5).to(dtype))
    keys, values = (side[None, :, : past + n] for side in buffer)
    together = attention.attend_newest(q, keys, values, 0.125, window)
    assert torch.isfinite(together).all()
    if native.own() is None:
        pytest.skip("no kernels of our own on this processor")
    for at in range(n):
        stop = past + at + 1
        seen = slice(0 if window is None else max(0, stop - window) // PIECE * PIECE, stop)
        alone = attention.attend_newest(q[:, :, at : at + 1], keys[:, :, seen], values[:, :, seen], 0.125, window)
        assert torch.equal(together[:, :, at : at + 1], alone)


@pytest.mark.parametrize(("head_dim", "dtype"), [(32, torch.bfloat16), (192, torch.bfloat16), (64, torch.float32)])
def test_every_line_of_the_next_block_is_asked_for(
    head_dim: int, dtype: torch.dtype, keep_no_kernels: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lines of two blocks are counted, and there is room behind them: the second block asks for the next piece,
    which begins there, because one worker takes all pieces. Where keys come before values, the first values too are
    asked for.
    """
    shape = 2, 1, 4 * BLOCK, head_dim
    memory = torch.zeros(math.prod(shape) + LINE, dtype=dtype)
    size = memory.element_size()
    memory = memory[-memory.data_ptr() % LINE // size :][: math.prod(shape)].view(shape)
    asked = torch.zeros(2, 4, BLOCK * head_dim * size // LINE, dtype=torch.int8)

    def counted(e: Emitter, address: ir.Value) -> None:
        line = e.b.udiv(e.b.sub(e.b.ptrtoint(address, I64), long(memory.data_ptr())), long(LINE))
        place = e.at(e.b.inttoptr(long(asked.data_ptr()), PTR), line, I8)
        e.store(e.b.add(e.load(place, I8, align=1), I8(1)), place, align=1)

    keep_no_kernels()
    monkeypatch.setattr(Emitter, "prefetch", counted)
    kernels = native.Native(workers=1)
    for rows in (1, 3, 12, 40):
        asked.zero_()
        k, v = memory[:, None, :, : 2 * BLOCK]
        kernels.attention.attend(
            torch.zeros(1, 1, rows, head_dim, dtype=dtype), k, v, 1.0, torch.full((rows,), 2 * BLOCK)
        )
        keys_first = dtype is torch.bfloat16 and kernels.attention.takes_pairs(head_dim)
        for side, wanted in zip(asked, ([0, 1, 1, 0], [1, 1, 0, 0] if keys_first else [0, 1, 1, 0]), strict=True):
            for block, lines in zip(wanted, side, strict=True):
                assert ((lines == 1) | (lines == 2)).all() if block else not lines.any(), rows


def test_scores_that_are_far_apart_stay_finite(kernels: native.Native) -> None:
    q, k, v = numbers(1, 1, 2, 16) * 1e4, numbers(1, 1, 200, 16), numbers(1, 1, 200, 16, seed=3)
    out, lse = kernels.attention.attend(q, k, v, 1.0, torch.full((2,), 200))
    assert torch.isfinite(out).all()
    best = (q[0, 0] @ k[0, 0].t()).argmax(-1)
    assert torch.allclose(out[0, 0], v[0, 0, best], atol=1e-4)
    assert torch.isfinite(lse).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("family", "weights", "kv"),
    [
        *(
            (name, "stored", "model")
            for name in ("llama", "llama-mha", "llama-yarn", "mistral", "qwen2", "qwen3", "phi3", *TRAINED)
        ),
        *((name, weights, "8bit") for name in ("qwen2", "phi3", "gemma3_text") for weights in ("8bit", "4bit")),
    ],
)
def test_a_verification_says_bit_by_bit_what_plain_steps_say(
    tiny: Callable[..., str], family: str, weights: str, kv: str, dtype: str
) -> None:
    model = loading.load(tiny(family), window=None, device=CPU, dtype=dtype, weights=weights)
    ids = torch.randint(10, 300, (700,), generator=torch.Generator().manual_seed(4))
    cache = FullCache(model.kv_shape.stored_as(kv), model.window)
    prefill.run(model, cache, ids[:600], segment=256)
    cache.bounded.mark()

    def logits(start: int, count: int, observer: Observer | None = None) -> torch.Tensor:
        cache.crop(start)
        cache.reserve(start + count)
        with torch.inference_mode():
            out = model.forward(ids[start : start + count], cache.extend(start, observer))
        cache.advance(count)
        return out

    longest = SHORTER if family in TRAINED else LONGEST
    plain = torch.cat([logits(600 + at, 1) for at in range(longest)])
    for count, observed in ((2, False), (3, True), (5, False), (8, True), (16, False), (longest, True)):
        observer = PassQueries() if observed else None  # somebody may look on
        assert torch.equal(logits(600, count, observer), plain[:count]), (count, observed)
        accepted = 600 + count // 2
        assert torch.equal(logits(accepted, 1)[0], plain[accepted - 600]), "some of it stands"
    assert torch.equal(logits(600, longest), plain), "with nobody looking on"


@pytest.mark.parametrize(("weights", "packed"), [("8bit", PackedLinear8), ("4bit", PackedLinear4)])
def test_quantized_layers_are_packed_too(tiny: Callable[..., str], weights: str, packed: type[PackedLinear]) -> None:
    model = loading.load(tiny("llama"), window=None, device=CPU, weights=weights)
    kinds = {type(layer) for layer in model.model.model.layers.modules()}
    assert packed in kinds
    assert not kinds & {nn.Linear, Linear8, Linear4}
    assert loading.load(tiny("llama"), window=None, device=CPU).parameters == model.parameters


@pytest.mark.parametrize("weights", ["stored", "8bit", "4bit"])
def test_without_a_compiler_for_the_processor_all_works_as_before(
    tiny: Callable[..., str], weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = torch.arange(20, 60)

    def last() -> torch.Tensor:
        model = loading.load(tiny("llama"), window=None, device=CPU, weights=weights)
        cache = FullCache(model.kv_shape, model.window)
        with torch.inference_mode():
            cache.reserve(40)
            return model.forward(ids, cache.extend(0))

    own = last()
    monkeypatch.setattr(native, "own", lambda: None)
    # The order of the sums is the processor's: with eight lanes 2.9e-5 were seen in 4 bits.
    assert torch.allclose(last(), own, atol=5e-5)


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_tiles_are_enough_for_all_threads(workers: int) -> None:
    """The last thread of a job ends within a tenth of the others, in the reader's shapes, on any machine."""
    some: Any = SimpleNamespace(pool=SimpleNamespace(workers=workers))
    x, out = torch.empty(1, 8), torch.empty(1, 8)
    for panels in (48, 96, 280, 560, 4_748, 9_496):  # of 32 or 16 outputs, where there are 1,536, 8,960 and 151,936
        call = native.Native.panels_call(some, 0, x, torch.empty(panels, 0), out, {})
        size, tiles = call.arguments[abi.Product.TILE_PANELS], call.tiles[1]
        assert size * tiles >= panels > size * (tiles - 1)
        assert -(-tiles // workers) * size * workers <= 1.1 * panels
    for length in (4_096, 24_576, 32_768):
        pieces = 2 * own_attention.OwnAttention.pieces(some, length)  # of two KV heads
        assert -(-pieces // workers) * workers <= 1.1 * pieces


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16], ids=str)
def test_weights_inserted_bit_by_bit_are_packed_as_at_once(
    kernels: native.Native, pairs: bool, dtype: torch.dtype
) -> None:
    if pairs and dtype is torch.int8 and kernels.columns != len(abi.LOOKED_UP):
        pytest.skip("8-bit pairs need panels of 32 columns")
    weights = (50 * numbers(150, 6)).to(dtype)
    expected = kernels.pack(weights, pairs)
    packed = torch.zeros_like(expected)
    for first, stop in ((0, 5), (5, 40), (40, 41), (41, 150)):
        kernels.insert(packed, first, weights[first:stop])
    assert torch.equal(packed, expected)


def test_every_tile_is_done_once_whoever_sleeps(kernels: native.Native) -> None:
    """Jobs one after the other, after a pause in which the workers go to sleep, and from several threads."""
    weights = kernels.pack(numbers(640, 8))
    x = numbers(3, 8, seed=2)
    expected = kernels.product(x, weights)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(200):
            if not torch.equal(kernels.product(x, weights), expected):
                wrong.append(1)

    for _ in range(2):
        work()
        time.sleep(0.05)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_embedding_that_is_the_head_stays_in_memory_once() -> None:
    """That of the demo model."""
    ids = torch.tensor([[0, 1, 31, 32, 33, 500]])
    loaded = [loading.load(str(DEMO_MODEL), window=None, device=CPU, packed=packed) for packed in (False, True)]
    assert loaded[0].dtype is loaded[1].dtype is torch.float32  # whatever the packed weights are kept in
    whole, packed = (each.model for each in loaded)
    assert whole.lm_head.weight is whole.model.embed_tokens.weight
    assert torch.equal(packed.model.embed_tokens(ids), whole.model.embed_tokens(ids))
    assert sum(weight.numel() for weight in packed.parameters()) == sum(w.numel() for w in whole.parameters())


@pytest.mark.parametrize(
    ("kind", "weights"), [("llama", "stored"), ("llama", "8bit"), ("llama", "4bit"), ("gemma2", "stored")]
)
def test_what_an_answer_needs_is_compiled_when_the_model_is_loaded(
    tiny: Callable[..., str], kind: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = native.Native(workers=1)
    monkeypatch.setattr(native, "own", lambda: kernels)
    model = loading.load(tiny(kind), window=None, device=CPU, weights=weights)
    known = set(kernels._addresses)
    for kv in ("model", "8bit"):
        cache = FullCache(model.kv_shape.stored_as(kv), model.window)
        cache.reserve(3)
        with torch.inference_mode():
            model.forward(torch.arange(20, 23), cache.extend(0))
    assert set(kernels._addresses) == known != set()


def test_a_model_is_packed_whole(tiny: Callable[..., str]) -> None:
    model = loading.load(tiny("llama"), window=None, device=CPU).model
    assert not [name for name, layer in model.named_modules() if type(layer) is nn.Linear]
    pack(model)  # again: nothing is left to do


@pytest.mark.parametrize("packed", [True, False])
def test_kernels_have_the_cores_to_themselves_while_decoding(tiny: Callable[..., str], packed: bool) -> None:
    """torch's threads and ours would wait for each other's cores between any two operations."""
    model = loading.load(tiny("llama"), window=None, device=CPU, packed=packed)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        own = native.own()
        spins = own.pool.patience if own else 0
        with model.decoding():
            assert torch.get_num_threads() == (1 if packed else 2)
            assert not own or (own.pool.patience > spins) == packed
        assert not own or own.pool.patience == spins
        assert torch.get_num_threads() == 2
        with pytest.raises(ValueError, match="in the middle"), model.decoding():
            raise ValueError("in the middle")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_processor_holds_in_half_precision_what_it_multiplies_so(monkeypatch: pytest.MonkeyPatch) -> None:
    config = loading.settings_of(str(DEMO_MODEL), None)
    large = copy.copy(config)
    large.num_hidden_layers = 5_000
    for pairs in (True, False):
        monkeypatch.setattr(native, "multiplies_pairs", lambda pairs=pairs: pairs)
        assert pick_dtype(config, "auto", CPU) is (torch.bfloat16 if pairs else torch.float32)
        assert pick_dtype(config, "float32", CPU) is torch.float32
        assert pick_dtype(large, "auto", CPU) is torch.bfloat16
