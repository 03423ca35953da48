"""Training sequences: tokens, positions and the weight of every token in the loss.

Owns the four kinds of sequence and their layout in tokens. The wording of questions is in `questions.py`.

    quote   a book message and many questions about it
    repeat  book text, then pieces of this text again in random order, which teaches plain copying
    random  as repeat, but with random tokens, so that knowing English does not help
    prose   book text alone
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerFast

from engine.chat_template import book_message
from recipe import questions
from recipe.corpus import Book, lay_out, random_span
from recipe.vocabulary import ASSISTANT, BOS, END, MAX_POSITIONS, SPECIAL_TOKENS, SYSTEM, USER

CHARS_PER_TOKEN = 3.4
QUESTION_WEIGHT = 0.2
"""Loss weight of a question's tokens. It is low, because a question cannot be predicted."""
ANSWER_WEIGHT = 2.0
DECISION_WEIGHT = 8.0
"""Loss weight of an answer's first token, which decides the kind of the answer."""
COPY_LENGTHS = (8, 48)
LONGEST_MATCH = 8
UNSURE = 2
"""Number of first tokens of a copy without a source, because too few tokens precede them to find the place."""
POSITION_SKIPS = 3
CONTINUE_SHARE = 0.3


@dataclass
class Sample:
    """Tokens with their loss weights, growing until a sequence is full."""

    ids: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    echoes: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    def add(self, ids: list[int], weight: float, source: int | None = None) -> None:
        """Append tokens with a loss weight. `source`: if the tokens are copied, the index of the token from which the
        first one is copied; the following tokens are copied from the following places. None if they are not copied.
        """
        self.ids += ids
        self.weights += [weight] * len(ids)
        self.sources += [-1] * len(ids) if source is None else range(source, source + len(ids))
        self.echoes += [-1] * len(ids)
        self.starts += [-1] * len(ids)

    def mark_matches(self, begin: int, end: int) -> None:
        """Set the sources of all tokens after the text [begin, end): the place in the text that follows the longest
        match of the newest tokens.

        A match has at least three tokens. If not even two tokens match, the source is the first token of the sequence
        (the sink). If only two tokens match, or several longest matches are equally long, there is no source.
        """
        ids, threes = self.ids, defaultdict(list)
        for place in range(begin + 2, end - 1):
            threes[tuple(ids[place - 2 : place + 1])].append(place)
        twos = {three[1:] for three in threes}
        for place in range(end, len(ids) - 1):
            found = threes.get(tuple(ids[place - 2 : place + 1]), [])
            lengths = [self._match(place, one) for one in found]
            if not found:
                self.sources[place + 1] = -1 if tuple(ids[place - 1 : place + 1]) in twos else 0
            elif lengths.count(max(lengths)) == 1:
                self.sources[place + 1] = found[lengths.index(max(lengths))] + 1

    def _match(self, place: int, other: int) -> int:
        length = 0
        while length < LONGEST_MATCH and self.ids[place - length] == self.ids[other - length]:
            length += 1
        return length

    def mark_echo(self, begin: int, question: int) -> None:
        """Record that the tokens from `begin` on repeat the tokens of the question from `question` on. Up to the first
        difference, each repeated token gets its place in the question.
        """
        self.starts[begin] = question
        for offset in range(1, len(self.ids) - begin):
            if self.ids[begin + offset] != self.ids[question + offset]:
                break
            self.echoes[begin + offset] = question + offset


@dataclass(frozen=True)
class _Places:
    """Maps characters of the book's text to tokens of a sequence. `text_begin`: character in the message at which the
    text begins. `token_begins`: first character of every token of the message. `message_begin`: index of the message's
    first token in the sequence.
    """

    text_begin: int
    token_begins: list[int]
    message_begin: int

    def token_at(self, char: int) -> int:
        return self.message_begin + bisect_right(self.token_begins, self.text_begin + char) - 1


class Samples(IterableDataset):
    """Yields (ids, weights, positions, sources, echoes, starts) without end, each of shape (length + 1,)."""

    def __init__(
        self,
        books: list[Book],
        tokenizer: PreTrainedTokenizerFast,
        *,
        length: int,
        mix: dict[str, float],
        skip_share: float,
        seed: int,
    ) -> None:
        self.books, self.length, self.mix, self.skip_share, self.seed = books, length, mix, skip_share, seed
        self._backend = tokenizer.backend_tokenizer
        self._special = {token: self._backend.token_to_id(token) for token in SPECIAL_TOKENS}
        self._vocabulary_size = len(tokenizer)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        worker = get_worker_info()
        rng = random.Random(f"{self.seed}/{worker.id if worker else 0}")
        makers = {"quote": self._quote, "repeat": self._repeat, "random": self._random, "prose": self._prose}
        kinds, shares = list(self.mix), list(self.mix.values())
        while True:
            sample = makers[rng.choices(kinds, shares)[0]](rng)
            size = self.length + 1
            if len(sample.ids) >= size:
                yield (
                    torch.tensor(sample.ids[:size]),
                    torch.tensor(sample.weights[:size]),
                    torch.from_numpy(self._positions(size, rng)),
                    torch.tensor(sample.sources[:size]),
                    torch.tensor(sample.echoes[:size]),
                    torch.tensor(sample.starts[:size]),
                )

    def with_memory(self, memory: int, rows: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield long texts without end, each with short rows that follow the text: (text (1, memory), ids, weights).

        Rows have length + 1 tokens. The first row continues the text. Each other row ends the text and asks questions
        about it.
        """
        rng = random.Random(f"{self.seed}/memory")
        while True:
            book, text, _ = self._span(memory + 2 * self.length, rng)
            _, other, _ = self._span(400, rng)
            text = lay_out(text, rng)
            content = "\n" + book_message(book.title, text)
            encoded = self._backend.encode(content, add_special_tokens=False)
            begins = [begin for begin, _ in encoded.offsets]
            opening = [self._special[BOS], self._special[SYSTEM]]
            size = memory - len(opening)
            if len(begins) <= size + self.length:
                continue
            cut = begins[size] - (len(content) - len(text))
            text, rest = text[:cut], text[cut:]
            places = _Places(len(content) - len(text), begins, len(opening))
            following = encoded.ids[size : size + self.length + 1]
            samples = [Sample(following, [1.0] * len(following))]
            for _ in range(rows - 1):
                sample = Sample()
                sample.add([self._special[END], *self.encode("\n")], 0.0)
                self._ask(sample, places, text, other, rest, rng)
                samples.append(sample)
            if all(len(sample.ids) > self.length for sample in samples):
                whole = slice(0, self.length + 1)
                yield (
                    torch.tensor([opening + encoded.ids[:size]]),
                    torch.tensor([sample.ids[whole] for sample in samples]),
                    torch.tensor([sample.weights[whole] for sample in samples]),
                )

    def encode(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

    def _positions(self, size: int, rng: random.Random) -> np.ndarray:
        """Make positions that sometimes skip ahead, so that short sequences contain large distances (PoSE)."""
        positions = np.arange(size)
        if rng.random() < self.skip_share:
            room = int(max(0, MAX_POSITIONS - size) ** rng.uniform(0.5, 1.0))
            cuts = sorted(rng.randrange(1, size) for _ in range(rng.randint(1, POSITION_SKIPS)))
            for cut in cuts:
                positions[cut:] += rng.randint(0, room // len(cuts))
        return positions

    def _span(self, num_tokens: int, rng: random.Random) -> tuple[Book, str, str]:
        return random_span(self.books, int(num_tokens * CHARS_PER_TOKEN), rng)

    def _prose(self, rng: random.Random) -> Sample:
        sample = Sample()
        _, text, _ = self._span(int(self.length * 1.3), rng)
        sample.add([self._special[BOS]], 0.0)
        sample.add(self.encode(lay_out(text, rng)), 1.0)
        return sample

    def _repeat(self, rng: random.Random) -> Sample:
        _, text, _ = self._span(self.length // 2, rng)
        return self._with_copies(self.encode(lay_out(text, rng)), 1.0, rng)

    def _random(self, rng: random.Random) -> Sample:
        first = len(SPECIAL_TOKENS)
        return self._with_copies(
            [rng.randrange(first, self._vocabulary_size) for _ in range(self.length // 2)], 0.0, rng
        )

    def _with_copies(self, source: list[int], source_weight: float, rng: random.Random) -> Sample:
        sample = Sample()
        sample.add([self._special[BOS]], 0.0)
        begin = len(sample.ids)
        sample.add(source, source_weight)
        while len(sample.ids) <= self.length:
            size = min(rng.randint(*COPY_LENGTHS), len(source))
            start = rng.randrange(len(source) - size + 1)
            sample.add(source[start : start + UNSURE], 0.0)
            sample.add(source[start + UNSURE : start + size], 1.0, begin + start + UNSURE)
        return sample

    def _quote(self, rng: random.Random) -> Sample:
        share = min(0.85, 0.5 + 0.06 * max(0, self.length.bit_length() - 9) + rng.uniform(-0.1, 0.1))
        book, text, following = self._span(int(self.length * share), rng)
        _, other, _ = self._span(400, rng)
        text = lay_out(text, rng)
        sample = Sample()
        sample.add([self._special[BOS], self._special[SYSTEM]], 0.0)
        content = "\n" + book_message(book.title, text)
        encoded = self._backend.encode(content, add_special_tokens=False)
        places = _Places(len(content) - len(text), [begin for begin, _ in encoded.offsets], len(sample.ids))
        sample.add(encoded.ids, 1.0)
        sample.add([self._special[END], *self.encode("\n")], 0.0)
        end = len(sample.ids)
        self._ask(sample, places, text, other, following, rng)
        sample.mark_matches(places.message_begin, end)
        return sample

    def _ask(self, sample: Sample, places: _Places, text: str, other: str, following: str, rng: random.Random) -> None:
        """Add questions and answers until the sample is long enough. The first question sometimes asks to continue the
        text.
        """
        if rng.random() < CONTINUE_SHARE:
            words = following[: rng.randint(200, 700)].rsplit(" ", 1)[0].lstrip()
            turn = questions.Turn(rng.choice(questions.CONTINUE_REQUESTS), questions.continued(words))
            self._add_turn(sample, places, turn, 1.0)
        failures, limit = 0, 60
        while len(sample.ids) <= self.length and failures < limit:
            turn = self._turn(text, other, rng)
            if turn is None:
                failures += 1
            else:
                self._add_turn(sample, places, turn, ANSWER_WEIGHT)

    def _turn(self, text: str, other: str, rng: random.Random) -> questions.Turn | None:
        kind = rng.random()
        if kind < 0.64:
            return questions.phrase_turn(text, rng)
        if kind < 0.75:
            return questions.name_turn(text, rng)
        if kind < 0.91:
            return questions.absent_turn(text, other, rng)
        return questions.open_turn(rng)

    def _add_turn(self, sample: Sample, places: _Places, turn: questions.Turn, weight: float) -> None:
        asked = self._backend.encode("\n" + turn.question, add_special_tokens=False)
        key = len(sample.ids) + bisect_right([begin for begin, _ in asked.offsets], turn.key + 1)
        sample.add([self._special[USER], *asked.ids], QUESTION_WEIGHT)
        sample.add([self._special[END], *self.encode("\n"), self._special[ASSISTANT]], QUESTION_WEIGHT)
        answer = self._backend.encode("\n" + turn.answer, add_special_tokens=False)
        first = len(sample.ids) + 1
        if turn.span is None:
            sample.add(answer.ids, weight)
        else:
            self._add_quotation(sample, places, turn, answer, weight, key)
        sample.weights[first] = DECISION_WEIGHT
        sample.add([self._special[END]], weight)
        sample.add(self.encode("\n"), QUESTION_WEIGHT)

    def _add_quotation(
        self, sample: Sample, places: _Places, turn: questions.Turn, answer: Any, weight: float, key: int
    ) -> None:
        """Add an answer with a quotation. If the question has the first quoted words, record their place in the
        question (`mark_echo`).
        """
        assert turn.span is not None
        begins = [begin for begin, _ in answer.offsets]
        passage = len("\n" + turn.answer) - len("”") - (turn.span[1] - turn.span[0])
        first = bisect_right(begins, passage) - 1
        begin = len(sample.ids) + first
        sample.add(answer.ids, weight)
        if turn.key >= 0:
            sample.mark_echo(begin, key)
