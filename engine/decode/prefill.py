"""Prefills: runs a long prompt through the target, layer by layer, into the full cache.

The prompt is divided into segments. The hidden states of a segment pass through one layer after another, and each layer
processes them in blocks. So the spilled KV of a layer is fetched once for each segment, and not for each block. After
every block, the progress is yielded to the caller, so that the prefill can be watched and stopped at any time.

After each segment, all layers of the cache have the same tokens, so a prefill that is stopped keeps all complete
segments. If the whole prompt were one segment, nothing could be kept before its end. Without spilled KV, segments cost
no extra time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from engine.devices import KINDS
from engine.errors import is_out_of_memory
from engine.kv.spilling import SMALLEST_BLOCK, exhausted, retry_with_spill, spill_more
from engine.quantization import SLIDING_SLACK

if TYPE_CHECKING:
    from engine.kv.full import FullCache, Observer
    from engine.model.decoder import Decoder
    from engine.model.pieces import Rope

# Maximum floating point operations of a block in one layer on a CPU. Such a block takes well under a second, so that
# stopping feels immediate. Larger blocks are halved, down to ``SMALLEST_BLOCK`` tokens.
_CPU_BLOCK_FLOP = 20e9


@dataclass(frozen=True)
class PrefillProgress:
    """Progress of a prefill. ``usable`` is the number of tokens whose KV is in all layers. ``work`` is the share of the
    work that is done, from 0 to 1.
    """

    usable: int
    work: float


def prefill(
    decoder: Decoder,
    cache: FullCache,
    ids: torch.Tensor,
    *,
    segment: int,
    block: int | None = None,
    observer: Observer | None = None,
) -> Iterator[PrefillProgress]:
    """Append ids (n,) to the cache, and yield after every block. ``block`` is the maximum number of tokens in a block;
    None chooses it by the device.

    If the generator is closed or raises an error, the cache keeps all complete segments. Callers leave out the
    context's last token, because it is the first input of the decoding loop.

    Raises:
        ModelError: the weights are damaged.
    """
    total = max(1.0, work_of(decoder, cache.length, ids.shape[0]))
    done = 0.0
    with torch.inference_mode():
        retry_with_spill(cache, lambda: cache.reserve(cache.length + ids.shape[0]))
        first = 0
        while first < ids.shape[0]:
            spilled_beside_gpu = bool(cache.placement.spilled) and KINDS[decoder.device.type].own_memory
            size = segment_size(segment, cache.length, moves=spilled_beside_gpu)
            # If layers read the KV of an earlier layer's sliding window, this window must still hold the whole segment
            # when they read it.
            if cache.shape.sources:
                size = min(size, SLIDING_SLACK)
            piece = ids[first : first + size]
            first += piece.shape[0]
            for work in _segment(decoder, cache, piece, block, observer):
                done += work
                yield PrefillProgress(cache.length, min(1.0, done / total))
            cache.advance(piece.shape[0])
        yield PrefillProgress(cache.length, 1.0)


def segment_size(segment: int, start: int, *, moves: bool) -> int:
    """The number of tokens in the segment that begins at ``start``.

    Args:
        segment: the usual number of tokens in a segment.
        moves: whether every segment fetches the spilled KV of all earlier segments over a bus. Fetching takes longer
            than the computation, so each segment is then at least half as long as the context before it. All segments
            together fetch about twice the bytes of the final KV, however long the book is. But a prefill that is
            stopped loses more tokens, because segments are longer.
    """
    return max(segment, start // 2) if moves else segment


def run(
    decoder: Decoder,
    cache: FullCache,
    ids: torch.Tensor,
    *,
    segment: int,
    block: int | None = None,
    observer: Observer | None = None,
) -> None:
    """Run ``prefill`` to its end, for callers that need no progress."""
    for _ in prefill(decoder, cache, ids, segment=segment, block=block, observer=observer):
        pass


def _segment(
    decoder: Decoder, cache: FullCache, ids: torch.Tensor, block: int | None, observer: Observer | None
) -> Iterator[float]:
    start, count = cache.length, ids.shape[0]

    def begun() -> tuple[torch.Tensor, list[Rope]]:
        hidden = decoder.embed(ids)
        rope = decoder.with_inputs(decoder.rope(decoder.span(start, count)), ids, hidden)
        return hidden, decoder.on_devices(rope)

    hidden, ropes = retry_with_spill(cache, begun)
    for layer in range(decoder.num_layers):
        first = 0
        rope = ropes[decoder.part_of(layer)]
        while first < count:
            position = start + first
            stop = min(count, first + _block_size(decoder, position, block))
            view = cache.extend(position, observer)
            failed: Exception | None = None
            try:
                hidden = decoder.carry(hidden, layer)
                hidden[:, first:stop] = decoder.layer(layer, hidden[:, first:stop], rope.part(first, stop), view)
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                # drop the traceback, which would keep all tensors of the failed block in memory
                failed = error.with_traceback(None)
            if failed is not None:
                block = _eased(failed, cache, stop - first)
                continue
            yield work_of(decoder, position, stop - first) / decoder.num_layers
            first = stop
    _end(decoder, cache, hidden)
    if not start:  # check only the first segment's logits, because they already show whether weights are damaged
        logits = decoder.logits(hidden[:, -1:], decoder.last_product)
        least, most = torch.stack(logits.aminmax()).tolist()  # ``least`` and ``most`` are NaN if any logit is NaN
        if not math.isfinite(most - least):
            raise decoder.not_finite()
        if least == most:  # all weights are zero, as in a file that was allocated but not completely downloaded
            raise decoder.not_telling()


def _end(decoder: Decoder, cache: FullCache, hidden: torch.Tensor) -> None:
    """Check that the hidden states (1, n, hidden) after the last layer are finite, and keep the newest for a draft
    head. For the check, the host waits for the device, once for each segment.

    Raises:
        ModelError: a number is not finite.
    """
    if not torch.isfinite(hidden).all():
        raise decoder.not_finite()
    if cache.hidden is not None:
        newest = hidden[:, -cache.hidden.most :]
        cache.hidden.note(cache.length + hidden.shape[1] - newest.shape[1], decoder.last_norm(newest))


def _eased(error: Exception, cache: FullCache, block: int) -> int:
    """Return the block size for another attempt, after memory ran out in a block of ``block`` tokens. The size is
    halved. If it is the minimum already, layers are spilled instead.

    The new attempt overwrites the KV of the failed block.
    """
    if block > SMALLEST_BLOCK:
        return max(SMALLEST_BLOCK, block // 2)
    if not spill_more(cache, error):
        raise exhausted(cache) from error
    return block


def _block_size(decoder: Decoder, position: int, block: int | None) -> int:
    block = block or KINDS[decoder.device.type].block
    if decoder.kv_shape.sliding is not None:
        block = min(block, SLIDING_SLACK)  # a layer with a sliding window takes at most this many tokens at once
    if decoder.device.type != "cpu":
        return block
    block = min(block, decoder.longest_block or block)
    per_token = work_of(decoder, position, 1) / decoder.num_layers
    while block > SMALLEST_BLOCK and block * per_token > _CPU_BLOCK_FLOP:
        block //= 2
    return block


def work_of(decoder: Decoder, start: int, count: int) -> float:
    """Number of floating point operations in a prefill of ``count`` tokens after the first ``start`` tokens. They are
    products with weights, and causal attention.
    """
    shape, heads, context = decoder.kv_shape, decoder.config.num_attention_heads, start + count / 2
    read = sum(shape.place_of(layer) is not None for layer in range(shape.model_layers))
    seen = read * shape.head_dim * context
    if shape.sliding is not None:
        windows = sum(shape.window_of(layer) is not None for layer in range(shape.model_layers))
        seen += windows * shape.sliding.head_dim * min(context, shape.sliding.window)
    return count * (2.0 * shape.model_layers * decoder.block_parameters + 4.0 * heads * seen)
