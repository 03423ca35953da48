"""Defines the drafters, which propose tokens: from the draft model on its streaming cache, from the book, or from both.
``NoDrafter`` proposes none.

A drafter proposes tokens together with the distributions that they were drawn from. The drafter itself feeds the draft
model the tokens of the context that the model has not seen yet, before each proposal. The decoding loop only tells the
drafter which tokens were committed. A wrong proposal costs time but never changes the text's distribution.

To propose from the book, an index of n-grams of token ids finds earlier places of the newest tokens, in the book or the
chat. Among the latest of these places, the one with the longest match is taken, and the tokens that follow it are
proposed. Even if only the newest token occurs earlier, the token after its newest place is right in one of six cases
(summaries and explanations in the model's own words). The index consists of lists and dictionaries. It is built once
per book and extended with every committed token.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from engine.decode.acceptance import NO_EARLY_STOP, EarlyStop
from engine.decode.distributions import likeliest
from engine.decode.tuning import TUNING, Tuning
from engine.decode.verify import Distributions, Sampler, confidences, draw, instead, joined, to_host
from engine.events import TokenSource
from engine.kv.full import FullCache
from engine.kv.spilling import retry_with_spill
from engine.kv.streaming import StreamingCache
from engine.model.pieces import to_device

if TYPE_CHECKING:
    from engine.model.backends import Backend
    from engine.model.decoder import Decoder


# Bits for one token in the integer that stands for an n-gram. Token ids of every vocabulary fit into these bits.
_TOKEN_BITS = 32


@dataclass(frozen=True)
class Occurrence:
    """An earlier passage that equals the end of the text: the ``length`` tokens before ``position`` are the same as the
    last ``length`` tokens of the text. So the token at ``position`` is the first to be proposed. ``agreed`` is as in
    ``LookupMatch``.
    """

    position: int
    length: int
    agreed: bool | None = None


class _Places:
    """The places of all n-grams of ``size`` tokens in a text. The place of an n-gram is the position after it.

    Places and n-grams are plain integers. If each were an object, Python's garbage collector would traverse all of them
    while an answer waits, which took 0.3 s after 8,192 tokens.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._newest: dict[int, int] = {}  # the newest place, keyed by n-gram
        self._earlier = [0] * size  # the previous place of the same n-gram, keyed by place; 0 if there is none

    def extend(self, text: Sequence[int], count: int) -> None:
        """Add the n-grams that end within the last ``count`` tokens of ``text``. All earlier n-grams must have been
        added.
        """
        begin = max(len(text) - count, self.size - 1)
        ngram, mask = _number(text[begin - self.size + 1 : begin]), (1 << _TOKEN_BITS * self.size) - 1
        for end, token in enumerate(text[begin:], begin + 1):
            ngram = (ngram << _TOKEN_BITS | token) & mask
            self._earlier.append(self._newest.get(ngram, 0))
            self._newest[ngram] = end

    def drop_last(self, text: Sequence[int]) -> None:
        """Remove the n-gram at the end of ``text``."""
        if len(text) < self.size:
            return
        if earlier := self._earlier.pop():
            self._newest[_number(text[-self.size :])] = earlier
        else:
            del self._newest[_number(text[-self.size :])]

    def of(self, ngram: Sequence[int]) -> Iterator[int]:
        """Yield the places of an n-gram, newest first."""
        place = self._newest.get(_number(ngram), 0)
        while place:
            yield place
            place = self._earlier[place]


def _number(tokens: Sequence[int]) -> int:
    return functools.reduce(lambda number, token: number << _TOKEN_BITS | token, tokens, 0)


class LookupIndex:
    """An index of one growing text, which finds all places of every n-gram, for a few values of n
    (``Tuning.long_ngram``, ``Tuning.ngram`` and ``Tuning.short_ngrams``).
    """

    def __init__(self, tuning: Tuning = TUNING) -> None:
        self._tokens: list[int] = []
        self._tuning = tuning
        sizes = (tuning.long_ngram, tuning.ngram, *tuning.short_ngrams)
        self._places = [_Places(size) for size in sizes]

    def __len__(self) -> int:
        return len(self._tokens)

    def follow(self, tokens: Sequence[int]) -> None:
        """Make this the index of ``tokens``. Keep the indexed tokens up to the first difference from ``tokens``."""
        self._crop(_common(self._tokens, tokens))
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the tokens of ``tokens`` that are not indexed yet. ``tokens`` is the whole text, so it begins with the
        indexed tokens.
        """
        new = tokens[len(self._tokens) :]
        self._tokens.extend(new)
        for places in self._places:
            places.extend(self._tokens, len(new))

    def find(self, tail: Sequence[int], least: int = 1) -> Occurrence | None:
        """Find the longest earlier occurrence of the end of the text, which is the indexed tokens followed by
        ``tail``. None if not even the last ``least`` tokens occur earlier.
        """
        text = [*self._tokens[max(0, len(self._tokens) - self._tuning.longest_match) :], *tail]
        for places in self._places:
            if least <= places.size <= len(text) and (best := self._longest(places, text)):
                return best
        return None

    def _longest(self, places: _Places, text: Sequence[int]) -> Occurrence | None:
        """Find the longest match among the newest places of the n-gram that ends the text.

        A match counts as shorter than it is if few tokens follow its place (``Tuning.tokens_after``). Such a place is
        often a quotation from the book in the question. The tokens after the quotation are only the rest of the
        question and the beginning of this answer, so the same words in the book predict the answer better.

        Up to ``Tuning.peers`` other places that share the whole match tell whether it is ``agreed``.
        """
        tuning = self._tuning
        most = tuning.places if places.size >= tuning.ngram else tuning.peers + 1
        found: list[tuple[int, int]] = []  # the length of the match at each place, newest first, and the place
        for position in itertools.islice(places.of(text[-places.size :]), most + 1):
            # Skip this place, because it is the end of the text and not an earlier occurrence.
            if position < len(self._tokens):
                found.append((self._match_length(position, text, places.size), position))
        if not found:
            return None
        length, position = max(found, key=lambda each: self._rank(*each))  # the newest of equal rank
        peers = [at for shared, at in found if at != position and shared >= length][: tuning.peers]
        same = sum(self._tokens[at] == self._tokens[position] for at in peers)
        return Occurrence(position, length, None if not peers or 0 < same < len(peers) else same > 0)

    def _rank(self, length: int, position: int) -> int:
        """The length of a match, reduced if few tokens follow its place."""
        at_end = len(self._tokens) - position < self._tuning.tokens_after
        return max(1, length - self._tuning.end_penalty) if at_end else length

    def repeats(self, newest: int) -> bool:
        """Whether the last ``newest`` tokens quote earlier text, that is, contain ``Tuning.long_ngram`` consecutive
        tokens that also occur before them.
        """
        long, end = self._places[0], len(self._tokens)
        begin = max(0, end - newest)
        ngrams = (self._tokens[at : at + long.size] for at in range(begin, end - long.size + 1))
        return any(place <= begin for ngram in ngrams for place in long.of(ngram))

    def after(self, match: Occurrence, count: int, tail: Sequence[int] = ()) -> list[int]:
        """Return the ``count`` tokens that follow the place of a match in the indexed text. Fewer tokens are returned
        if the text ends earlier.

        If the text ends with a passage that occurs twice in a row, it is expected to go on repeating. The passage is
        then repeated until ``count`` tokens are returned.

        Args:
            tail: the ``tail`` that was given to ``find``.
        """
        found = self._tokens[match.position : match.position + count]
        circle = [*found, *tail]
        if len(found) == count or not 0 < len(circle) <= match.length:
            return found
        return list(itertools.islice(itertools.cycle(circle), count))

    def _match_length(self, position: int, text: Sequence[int], length: int) -> int:
        most = min(position, len(text), self._tuning.longest_match)
        while length < most and self._tokens[position - 1 - length] == text[-1 - length]:
            length += 1
        return length

    def _crop(self, length: int) -> None:
        while len(self._tokens) > length:
            for places in self._places:
                places.drop_last(self._tokens)
            self._tokens.pop()


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix of ``a`` and ``b``."""
    if len(a) <= len(b) and list(b[: len(a)]) == list(a):
        return len(a)
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[:middle]) == list(b[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


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
        start_ms: milliseconds that starting the draft model took during this proposal; close to 0 if it had been
            started before.
    """

    tokens: torch.Tensor
    probs: Distributions | None = None
    source: TokenSource = TokenSource.DRAFT
    confidences: tuple[float, ...] = ()
    steps: int = 0
    hinted: bool = False
    start_ms: float = 0.0


def _nothing(device: torch.device) -> Proposal:
    return Proposal(torch.empty(0, dtype=torch.long, device=device))


class Drafter(Protocol):
    """Proposes the tokens that may come next."""

    def begin(self, context: Sequence[int]) -> None:
        """Start on a new context, and forget any earlier context."""

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
        self._nothing = _nothing(device)

    def begin(self, context: Sequence[int]) -> None:
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
            seconds to start, and an answer may need no proposal.
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
        # number of committed tokens, while the start of the draft model is delayed; None after the start
        self._not_started_on: int | None = None
        self._full = full
        self._vocabulary = vocabulary
        self._slack = max(64, 3 * longest)
        self._settled = 0  # number of tokens that were in the cache at the last ``settle``, and are final since then
        self._fed: list[int] = []  # tokens in the cache after the first ``_settled`` tokens
        # tokens in the cache after ``_fed`` that were drawn on the device and that the host has not read yet
        self._unread: list[torch.Tensor] = []
        self.cache = StreamingCache(decoder.kv_shape, num_sink_tokens, window_size, self._slack, decoder.rotate)
        self._backend = backend or decoder.backend

    @property
    def started(self) -> bool:
        """Whether the draft model has been started on the context. If so, the next proposal takes only the time of its
        own steps.
        """
        return self._not_started_on is None

    def tokens_to_start(self, length: int) -> int:
        """Number of tokens that the draft model reads to start on a context of this length."""
        return min(length, self.cache.num_sink_tokens + 2 * self.cache.window_size)

    def begin(self, context: Sequence[int]) -> None:
        if self.waits:
            self._not_started_on = len(context)
        else:
            self._start(context)

    def _start(self, context: Sequence[int]) -> None:
        """Fill the cache with the sinks and with the newest tokens of the context: twice the window's number of tokens.

        All tokens in between are skipped, so that the start takes no longer after a long book than after a short one.

        Raises:
            ModelError: the draft model's logits are not finite.
        """
        cache, sinks = self.cache, self.cache.num_sink_tokens
        cache.reset()
        self._settled, self._fed, self._unread = 0, [], []
        wanted = 2 * cache.window_size
        skip = max(0, len(context) - 1 - sinks - wanted) // self._slack * self._slack
        self._feed(context[: min(sinks, len(context) - 1)])
        if skip:
            cache.skip(skip)
        self._settled, self._fed = cache.length, []
        logits = self._catch_up(context)
        # Only the largest logit is checked, which is NaN if any logit is NaN. Smaller logits may be minus infinity,
        # because a distilled head gives minus infinity to the tokens that it leaves out. The host waits for the device
        # to read this logit, once for each answer.
        if logits is not None and not torch.isfinite(logits.amax(-1)).all():
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
            return _nothing(self.decoder.token_device)
        clock = time.perf_counter()
        self._start_if_new(context)
        start_ms = (time.perf_counter() - clock) * 1000.0
        logits = self._after(context)
        hints = self.decoder.ids(list(hint))
        agrees = torch.ones(1, dtype=torch.bool, device=hints.device)
        tokens: list[torch.Tensor] = []
        probs: list[Distributions] = []
        sure: list[float] = []
        sampler = sampler.drafting()
        hinting, chance = bool(hint), 1.0
        while True:
            q = sampler(logits)
            if hinting:
                # Compare the hint with the most likely token and not with a drawn token. So the comparison does not
                # depend on a draw, and the text keeps its exact distribution.
                agrees = agrees & (likeliest(logits) == hints[len(tokens)])
                q = instead(agrees, hints[len(tokens) : len(tokens) + 1], q)
            # If the logits are not finite, ``draw`` returns -1, and token 0 is proposed instead. Any token may be
            # proposed, because ``q`` is not finite either, so that verification rejects the token.
            tokens.append(draw(q, generator).clamp(min=0))
            probs.append(q)
            sampler = sampler.after(tokens[-1])
            if stop.threshold > 0.0 or (hinting and len(tokens) == len(hint)):
                (found,), (same,) = to_host(confidences(logits, tokens[-1]), agrees)
                hinting = hinting and bool(same)
                if stop.threshold > 0.0:
                    sure.append(found)
                    chance *= stop.chance(found)
            hinted = hinting and len(tokens) == len(hint)
            if hinted or chance < stop.threshold or len(tokens) == count:
                return Proposal(
                    torch.cat(tokens),
                    joined(probs, len(probs)),
                    TokenSource.DRAFT,
                    tuple(sure),
                    len(tokens),
                    hinted,
                    start_ms,
                )
            logits = self._fit(self._forward(tokens[-1]))
            self._unread.append(tokens[-1])

    def _start_if_new(self, context: Sequence[int]) -> None:
        """Start the draft model on the committed tokens, if its start was delayed until now (``waits``). Tokens of
        ``context`` that are not committed are left out here, because they may be rejected later. ``_after`` feeds these
        tokens.
        """
        if self._not_started_on is not None:
            self._start(context[: self._not_started_on])
            self._not_started_on = None

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
        if self._not_started_on is not None:
            self._not_started_on = len(context)
            return
        self._crop_to(context)
        # While tokens are proposed from the book, tokens are committed that the draft model has not read. They are fed
        # before they become too many to be fed at once (``_slack``).
        if len(context) - self.cache.length > self._slack // 2:
            self._catch_up(context)
        self._settle()

    def _settle(self) -> None:
        self.cache.settle()
        self._settled, self._fed = self.cache.length, []

    def _crop_to(self, context: Sequence[int]) -> None:
        """Drop from the cache the first token that differs from ``context``, and all later tokens. The last token of
        ``context`` is dropped too, because it is the next input.
        """
        if self._unread:
            self.accept([int(token) for token in to_host(torch.cat(self._unread))[0]])
        same = 0
        for fed, token in zip(self._fed, context[self._settled : -1], strict=False):
            if fed != token:
                break
            same += 1
        del self._fed[same:]
        self.cache.crop(self._settled + same)

    def _catch_up(self, context: Sequence[int]) -> torch.Tensor | None:
        """Feed the committed tokens that the cache lacks, except the last committed token. Evict tokens when the cache
        is full.

        Returns:
            Logits (1, vocabulary) of the last token fed; None if nothing had to be fed.
        """
        cache, logits = self.cache, None
        while (missing := len(context) - 1 - cache.length) > 0:
            self._settle()
            logits = self._feed(context[cache.length : cache.length + min(missing, self._slack)])
        return logits

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
        missing = self._vocabulary - logits.shape[-1]
        if missing > 0:
            return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
        return logits[:, : self._vocabulary]


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

    def begin(self, context: Sequence[int]) -> None:
        self.index.follow(context)
        self.inner.begin(context)

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
        match = self.index.find(tail, self._tuning.ngram) if self._longest else None
        self._asked_inner = match is None or match.length < self._tuning.unchecked_match
        if match is None:
            return self.inner.propose(context, count, sampler, generator, stop)
        found = self.index.after(match, min(self._longest, 2 * match.length), tail)
        if match.length < self._tuning.unchecked_match:
            hint = found[: self._tuning.agreed_tokens]
            made = self.inner.propose(context, count, sampler, generator, stop, hint)
            # The choice between tokens of the book and drafted tokens must not depend on a draw. Drawn tokens may equal
            # the hint by chance, so ``hinted`` is tested and not the tokens.
            if not made.hinted:
                return made
        stride = self._tuning.stride
        if len(found) > stride:
            found = found[: len(found) // stride * stride]
        return Proposal(to_device(found, self._device), None, TokenSource.LOOKUP)

    def accept(self, tokens: Sequence[int]) -> None:
        if self._asked_inner:
            self.inner.accept(tokens)

    def commit(self, context: Sequence[int]) -> None:
        self.index.extend(context)
        self.inner.commit(context)
