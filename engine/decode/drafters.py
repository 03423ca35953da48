"""Defines the drafters, which propose tokens: from the draft model on its streaming cache, from the book, or from both.
``NoDrafter`` proposes none.

A drafter proposes tokens together with the distributions that they were drawn from. The drafter itself feeds the draft
model the tokens of the context that the model has not seen yet, before each proposal. The decoding loop only tells the
drafter which tokens were committed. A wrong proposal costs time but never changes the text's distribution.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch

from engine.decode.acceptance import NO_EARLY_STOP, EarlyStop
from engine.decode.distributions import likeliest
from engine.decode.lookup import NO_MATCH, LookupIndex, begins_with, common_length
from engine.decode.tuning import TUNING, Tuning
from engine.decode.verify import Distributions, Sampler, confidences, draw, instead, joined, to_host
from engine.events import TokenSource
from engine.kv.full import FullCache
from engine.kv.spilling import retry_with_spill
from engine.kv.streaming import Held, StreamingCache
from engine.model.pieces import to_device

if TYPE_CHECKING:
    from engine.model.backends import Backend
    from engine.model.decoder import Decoder


# Maximum number of committed tokens that a step of a large draft model reads together with its own token. More tokens
# are read in passes of their own, whose time does not count as the time of a step.
FED_IN_A_STEP = 8
# Number of the newest tokens that a large draft model reads if an answer waits for its start. The draft model (0.5
# billion parameters) then gave a mean probability of 0.54 to each of 1,500 tokens of answers, and 0.59 with the newest
# 504 tokens, whose reading takes 1.9 s, and also if the end of the book had been read before the question came.
_START_OF_LARGE = 64
# Share of a text's tokens that a large draft model can propose. It proposes only the vocabulary's first tokens, because
# a third of a step's bytes can be the head (0.5 billion parameters in 4 bits, 151,936 tokens). Of 3,500 tokens of
# answers about three books, 0.96 were among the first 65,536.
_COMMON = 0.97
# Number of tokens that a draft model reads at once if it is large and runs on a CPU. The kernels for few rows multiply
# them, and a question that comes meanwhile waits for one such pass (90 ms with 0.5 billion parameters in 4 bits).
READ_AT_ONCE = 32


def first_tokens(text: Sequence[int]) -> int:
    """Return how many of the vocabulary's first tokens include ``_COMMON`` of the tokens of a text. Most vocabularies
    are ordered from the most frequent to the rarest token.
    """
    ordered = sorted(text)
    return ordered[int(_COMMON * (len(ordered) - 1))] + 1


@dataclass(frozen=True)
class Proposal:
    """Tokens that a drafter proposes.

    Args:
        tokens: (n,) on the device.
        probs: the distributions over the target's vocabulary that the tokens were drawn from, as a ``Sampler`` gives
            them; None if every token is a point mass.
        source: the proposer.
        confidences: the draft model's probability for each token. Empty if the proposal cannot stop early, or if the
            tokens come from the book.
        steps: number of the draft model's forward passes.
        hinted: whether the draft model's most likely tokens are exactly the tokens of the hint that ``propose`` was
            given.
        start_ms: milliseconds in which the draft model was started, or read tokens that were committed without it,
            before its first step; 0 if there was nothing to read.
    """

    tokens: torch.Tensor
    probs: Distributions | None = None
    source: TokenSource = TokenSource.DRAFT
    confidences: tuple[float, ...] = ()
    steps: int = 0
    hinted: bool = False
    start_ms: float = 0.0


def no_tokens(device: torch.device) -> Proposal:
    """A proposal without tokens."""
    return Proposal(torch.empty(0, dtype=torch.long, device=device))


class Drafter(Protocol):
    """Proposes the tokens that may come next."""

    def begin(self, context: Sequence[int], *, anew: bool = False) -> None:
        """Start on the context of a new answer.

        Args:
            anew: whether nothing of earlier contexts may be used, because the same question with the same seed must
                always give the same proposals.
        """

    def propose(
        self,
        context: Sequence[int],
        count: int,
        sampler: Sampler,
        generator: torch.Generator,
        stop: EarlyStop = NO_EARLY_STOP,
        hint: Sequence[int] = (),
    ) -> Proposal:
        """Propose at most ``count`` tokens that may follow ``context``, which may be longer or shorter than the context
        of the last call.

        Args:
            generator: draws the proposed tokens.
            sampler: the sampler after ``context``.
            stop: ends the proposal early.
            hint: tokens that are expected. While the next expected token is the drafter's most likely token, it is
                proposed as a point mass and no token is drawn. The proposal ends with the last expected token. From the
                first expected token that is not the most likely one, the hint is ignored and tokens are drawn.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """Learn that exactly ``tokens`` of the last proposal were accepted, and that all its later tokens were
        rejected. The caller has already read ``tokens`` to the host.
        """

    def commit(self, context: Sequence[int]) -> None:
        """Take all tokens of ``context`` as final. The contexts of later calls begin with them, until ``begin`` is
        called.
        """


class NoDrafter:
    """Proposes no tokens. The target on the retrieval cache then makes one token per pass."""

    def __init__(self, device: torch.device) -> None:
        self._nothing = no_tokens(device)

    def begin(self, context: Sequence[int], *, anew: bool = False) -> None:
        pass

    def propose(
        self,
        context: Sequence[int],
        count: int,
        sampler: Sampler,
        generator: torch.Generator,
        stop: EarlyStop = NO_EARLY_STOP,
        hint: Sequence[int] = (),
    ) -> Proposal:
        return self._nothing

    def accept(self, tokens: Sequence[int]) -> None:
        pass

    def commit(self, context: Sequence[int]) -> None:
        pass


class ModelDrafter:
    """Proposes tokens of the draft model, which runs on a streaming cache.

    Args:
        decoder: the draft model.
        vocabulary: size of the target's vocabulary. Distributions are cut or padded to this size, because models of
            different sizes pad their embeddings differently.
        num_sink_tokens, window_size: sizes of the streaming cache.
        longest: maximum number of proposed tokens after the committed context.
        backend: runs the draft model's passes; None takes the model's own backend.
        full: the target's full cache, whose layers are spilled if a step runs out of memory; None spills nothing.
        waits: whether the start on a context is delayed until the first proposal, because a large draft model takes
            seconds to start, and an answer may need no proposal. Such a draft model keeps what it has read from answer
            to answer, and can be started before a question comes (``start_ahead``).
    """

    def __init__(
        self,
        decoder: Decoder,
        vocabulary: int,
        num_sink_tokens: int,
        window_size: int,
        longest: int,
        backend: Backend | None = None,
        full: FullCache | None = None,
        waits: bool = False,
    ) -> None:
        self.decoder = decoder
        self.waits = waits
        self._slack = max(64, 3 * longest)
        self.started = False
        """Whether the cache holds a beginning of the context, so that the draft model need not be started on it."""
        self._committed = 0  # number of committed tokens
        self._fed_in_a_step = FED_IN_A_STEP if waits else self._slack // 2
        self._full = full
        self._vocabulary = vocabulary
        self._settled = 0  # number of tokens that were in the cache at the last ``settle``, and are final since then
        # The context's first tokens, which are in the cache, or which the cache has evicted or skipped
        self._fed: list[int] = []
        # tokens in the cache after ``_fed`` that were drawn on the device and that the host has not read yet
        self._unread: list[torch.Tensor] = []
        self._book: list[int] = []  # the book's tokens, if the draft model has read their end ahead
        self._kept: Held | None = None  # the cache after these tokens; None if it cannot be copied
        self.cache = StreamingCache(decoder.kv_shape, num_sink_tokens, window_size, self._slack, decoder.rotate)
        self._backend = backend or decoder.backend

    def tokens_to_start(self, length: int) -> int:
        """Number of tokens that the draft model reads before its first step on a context of this length."""
        if not self.started:
            return min(length, self.cache.num_sink_tokens + self._newest)
        missing = length - 1 - self.cache.length
        return missing if missing > self._fed_in_a_step else 0

    @property
    def _newest(self) -> int:
        """Number of the newest tokens that a start reads while an answer waits for it."""
        most = 2 * self.cache.window_size
        return min(_START_OF_LARGE, most) if self.waits else most

    def begin(self, context: Sequence[int], *, anew: bool = False) -> None:
        self._committed = len(context)
        self.started = self.waits and not anew and self._resume(context)
        if not self.waits:
            self._read_all(context)

    def _resume(self, context: Sequence[int]) -> bool:
        """Go on from the tokens that the cache holds, or from the book's tokens after which it was kept, if ``context``
        begins with them. Return False if neither is possible, or if a new start reads fewer tokens.
        """
        self._read_drawn()
        same = min(common_length(self._fed, context), len(context) - 1)
        if same >= self._settled:
            del self._fed[same:]
            self.cache.crop(same)
        elif self._kept is not None and len(self._book) < len(context) and begins_with(context, self._book):
            self._fed = list(self._book)
            self.cache.put_back(self._kept)
            self._settled = len(self._fed)
        else:
            return False
        return self.cache.length > 0 and len(context) - self.cache.length <= 2 * self.cache.window_size

    def start_ahead(self, book: Sequence[int], context: Sequence[int]) -> Iterator[None]:
        """Read what the next answer needs before its question comes: the end of the book, and the chat so far. Yield
        before every few tokens, so that the caller can stop at once. Call this between two answers.

        Args:
            book: the book's tokens. The contexts of all later answers begin with them.
            context: all tokens so far, of the book and of the chat.
        """
        if self._book != list(book):
            if not begins_with(book, self._fed) or not self._fed:
                yield from self._new_start([*book, 0], 2 * self.cache.window_size)
            yield from self._reading([*book, 0])
            self._book, self._kept = list(book), self.cache.copied()
        if len(context) > len(book):
            if not self._resume(context):
                yield from self._new_start(context, 2 * self.cache.window_size)
            yield from self._reading(context)

    def forget(self) -> None:
        """Forget the book and the chat, because another book comes."""
        self._book, self._kept, self.started = [], None, False

    def _read_all(self, context: Sequence[int]) -> None:
        """Start on a context at once.

        Raises:
            ModelError: the draft model's logits are not finite.
        """
        for _ in self._new_start(context, self._newest):
            pass
        for _ in self._reading(context):
            pass
        self.started = True

    def _new_start(self, context: Sequence[int], newest: int) -> Iterator[None]:
        """Fill the cache with the sinks, and skip all further tokens but at least the ``newest``. So the start takes no
        longer after a long book than after a short one.
        """
        cache, sinks = self.cache, self.cache.num_sink_tokens
        cache.reset()
        self._settled, self._fed, self._unread = 0, [], []
        if self.waits:
            self.decoder.narrow(first_tokens(context))
        # Evictions are multiples of ``_slack`` tokens. If the number of skipped tokens is too, the cache holds the same
        # tokens as one that has followed the text from its beginning.
        unit = 1 if self.waits else self._slack
        skip = max(0, len(context) - 1 - sinks - newest) // unit * unit
        yield
        self._feed(context[: min(sinks, len(context) - 1)])
        if skip:
            cache.skip(skip)
            self._fed += context[sinks : sinks + skip]
        self._settled = cache.length

    def _reading(self, context: Sequence[int]) -> Iterator[None]:
        """Feed the committed tokens ``context`` that the cache lacks, except the last. Evict tokens when the cache is
        full. Yield before every pass.

        Raises:
            ModelError: the draft model's logits are not finite.
        """
        cache, logits = self.cache, None
        most = READ_AT_ONCE if self.waits else self._slack
        while (missing := len(context) - 1 - cache.length) > 0:
            yield
            self._settle()
            logits = self._feed(context[cache.length : cache.length + min(missing, most)])
        # Only the largest logit is checked, which is NaN if any logit is NaN. Smaller logits may be minus infinity,
        # because a distilled head gives minus infinity to the tokens that it leaves out. The host waits for the device
        # to read this logit, once for each answer.
        if logits is not None and not torch.isfinite(logits.amax(-1)).all():
            cache.reset()
            self._settled, self._fed, self.started = 0, [], False
            raise self.decoder.not_finite()
        self._settle()

    def propose(
        self,
        context: Sequence[int],
        count: int,
        sampler: Sampler,
        generator: torch.Generator,
        stop: EarlyStop = NO_EARLY_STOP,
        hint: Sequence[int] = (),
    ) -> Proposal:
        if count == 0:
            return no_tokens(self.decoder.token_device)
        start_ms = self._catch_up(context)

        def following(token: torch.Tensor) -> torch.Tensor:
            logits = self._fit(self._forward(token))
            self._unread.append(token)
            return logits

        made = drafted(self._after(context), following, count, sampler, generator, stop, self.decoder.ids(list(hint)))
        return replace(made, start_ms=start_ms)

    def _catch_up(self, context: Sequence[int]) -> float:
        """Start the draft model on the committed tokens, if its start was delayed until now (``waits``). Otherwise feed
        the committed tokens that the cache lacks, if they are too many for a step. These are the tokens of a question,
        or tokens that were proposed from the book. The other tokens of ``context`` may be rejected later. ``_after``
        feeds them.

        Returns:
            The milliseconds that this took; 0 if nothing was done.
        """
        clock = time.perf_counter()
        if not self.started:
            self._read_all(context[: self._committed])
        elif self._committed - 1 - self.cache.length > self._fed_in_a_step:
            for _ in self._reading(context[: self._committed]):
                pass
        else:
            return 0.0
        return (time.perf_counter() - clock) * 1000.0

    def _after(self, context: Sequence[int]) -> torch.Tensor:
        """Feed the tokens of ``context`` that the cache lacks, and return the logits of the next token."""
        self._crop_to(context)
        fresh = list(context[self.cache.length :])
        logits = self._fit(self._forward(self.decoder.ids(fresh)))
        self._fed += fresh
        return logits

    def accept(self, tokens: Sequence[int]) -> None:
        # Record in ``_fed`` the accepted tokens that are in the cache. All proposed tokens but the last were fed
        # (``_unread``), so an accepted last token is not recorded. Rejected tokens are not recorded either, because no
        # later context contains them.
        self._fed += tokens[: len(self._unread)]
        self._unread = []

    def commit(self, context: Sequence[int]) -> None:
        self._committed = len(context)
        if self.started:
            self._crop_to(context)
            self._settle()

    def _settle(self) -> None:
        self.cache.settle()
        self._settled = self.cache.length

    def _read_drawn(self) -> None:
        """Read the drawn tokens that are in the cache to the host."""
        if self._unread:
            self.accept([int(token) for token in to_host(torch.cat(self._unread))[0]])

    def _crop_to(self, context: Sequence[int]) -> None:
        """Drop from the cache the first token that differs from ``context``, and all later tokens. The last token of
        ``context`` is dropped too, because it is the next input.
        """
        self._read_drawn()
        same = self._settled
        for fed, token in zip(self._fed[same:], context[same:-1], strict=False):
            if fed != token:
                break
            same += 1
        del self._fed[same:]
        self.cache.crop(same)

    def _feed(self, tokens: Sequence[int]) -> torch.Tensor | None:
        if not tokens:
            return None
        logits = self._forward(self.decoder.ids(list(tokens)))
        self._fed += tokens
        return logits

    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Feed tokens (n,) and return the logits (1, vocabulary) of the last token. The caller must record that the
        tokens were fed.
        """
        cache, count = self.cache, ids.shape[0]
        # An id outside of the draft model's vocabulary is replaced by the highest id in the vocabulary, which costs at
        # most one rejected token.
        most = self.decoder.vocabulary - 1

        def work() -> torch.Tensor:
            return self._backend.forward(ids.clamp(max=most), cache.extend(count), rows=1)

        logits = work() if self._full is None else retry_with_spill(self._full, work)
        cache.advance(count)
        return logits

    def _fit(self, logits: torch.Tensor) -> torch.Tensor:
        return fitted(logits, self._vocabulary)


def fitted(logits: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Cut or pad logits (n, any size) to the target's vocabulary."""
    missing = vocabulary - logits.shape[-1]
    if missing > 0:
        return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
    return logits[:, :vocabulary]


def drafted(
    logits: torch.Tensor,
    following: Callable[[torch.Tensor], torch.Tensor],
    count: int,
    sampler: Sampler,
    generator: torch.Generator,
    stop: EarlyStop,
    hints: torch.Tensor,
) -> Proposal:
    """Draw at most ``count`` tokens, one after another.

    Args:
        logits: (1, vocabulary) logits of the first token.
        following: feeds a drawn token (1,), and returns the logits of the next.
        hints: (n,) the tokens of ``Drafter.propose``'s hint, on the device.
    """
    agrees = torch.ones(1, dtype=torch.bool, device=hints.device)
    tokens: list[torch.Tensor] = []
    probs: list[Distributions] = []
    sure: list[float] = []
    sampler = sampler.drafting()
    hinting, chance = bool(len(hints)), 1.0
    while True:
        q = sampler(logits)
        if hinting:
            # Compare the hint with the most likely token and not with a drawn token. So the comparison does not depend
            # on a draw, and the text keeps its exact distribution.
            agrees = agrees & (likeliest(logits) == hints[len(tokens)])
            q = instead(agrees, hints[len(tokens) : len(tokens) + 1], q)
        # If the logits are not finite, ``draw`` returns -1, and token 0 is proposed instead. Any token may be proposed,
        # because ``q`` is not finite either, so that verification rejects the token.
        tokens.append(draw(q, generator).clamp(min=0))
        probs.append(q)
        sampler = sampler.after(tokens[-1])
        if stop.threshold > 0.0 or (hinting and len(tokens) == len(hints)):
            (confidence,), (same,) = to_host(confidences(logits, tokens[-1]), agrees)
            hinting = hinting and bool(same)
            if stop.threshold > 0.0:
                sure.append(confidence)
                chance *= stop.chance(confidence)
        hinted = hinting and len(tokens) == len(hints)
        if hinted or chance < stop.threshold or len(tokens) == count:
            made = torch.cat(tokens), joined(probs, len(probs))
            return Proposal(*made, TokenSource.DRAFT, tuple(sure), len(tokens), hinted)
        logits = following(tokens[-1])


class LookupDrafter:
    """Searches the book and the chat for an earlier occurrence of the newest tokens, and proposes the tokens that
    follow there. If there is no such occurrence (match), the drafter ``inner`` proposes.

    The longer the match, the longer the proposal. A long match is a copy in progress and is proposed without asking
    ``inner``. A short match is proposed only if ``inner`` agrees with its first tokens. Proposals are point masses, so
    the text keeps its distribution at any temperature.

    Args:
        inner: the drafter that is asked if no long match is found.
        index: the index of the book and the chat, which this drafter keeps up to date.
        longest: maximum number of tokens in a proposal; with 0 only ``inner`` proposes.
        device: the device of the proposed tokens.
    """

    def __init__(
        self, inner: Drafter, index: LookupIndex, longest: int, device: torch.device, tuning: Tuning = TUNING
    ) -> None:
        self.inner = inner
        self.index = index
        self._longest = longest
        self._device = device
        self._tuning = tuning
        self._asked_inner = False  # whether ``inner`` was asked for the most recent proposal

    def begin(self, context: Sequence[int], *, anew: bool = False) -> None:
        self.index.follow(context)
        self.inner.begin(context, anew=anew)

    def propose(
        self,
        context: Sequence[int],
        count: int,
        sampler: Sampler,
        generator: torch.Generator,
        stop: EarlyStop = NO_EARLY_STOP,
        hint: Sequence[int] = (),
    ) -> Proposal:
        tail = context[len(self.index) :]
        match = self.index.find(tail, self._longest, self._tuning.ngram) if self._longest else NO_MATCH
        self._asked_inner = match.length < self._tuning.unchecked_match
        copied = match.tokens[: 2 * match.length]
        if self._asked_inner:
            hint = copied[: self._tuning.agreed_tokens]
            made = self.inner.propose(context, count, sampler, generator, stop, hint)
            # The choice between tokens of the book and drafted tokens must not depend on a draw. Drawn tokens may equal
            # the hint by chance, so ``hinted`` is tested and not the tokens.
            if not made.hinted:
                return made
        stride = self._tuning.stride
        if len(copied) > stride:
            copied = copied[: len(copied) // stride * stride]
        return Proposal(to_device(copied, self._device), None, TokenSource.LOOKUP)

    def accept(self, tokens: Sequence[int]) -> None:
        if self._asked_inner:
            self.inner.accept(tokens)

    def commit(self, context: Sequence[int]) -> None:
        self.index.extend(context)
        self.inner.commit(context)
