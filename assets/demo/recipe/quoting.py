"""The quoting test: questions with words of books that were held back from training. No passages are planted in the
books.

Owns how a model is asked at a given length and depth, and which answers are correct. Uses only transformers, so that
the figures do not depend on the project's decoding.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.cache_utils import Cache, DynamicLayer

from engine.chat_template import book_message
from recipe import questions
from recipe.corpus import Book
from recipe.samples import CHARS_PER_TOKEN

MAX_ANSWER_TOKENS = 160
NUM_DEPTHS = 5
MARKS = "“”… \"'‘’\n"


@dataclass(frozen=True)
class Quotation:
    """One question, the expected answer and the model's answer. `depth`: 0 for the first fifth of the text, 4 for the
    last.
    """

    length: int
    depth: int
    question: str
    expected: str
    answer: str

    @property
    def exact(self) -> bool:
        """Whether the answer is the whole passage, word for word. Marks around the passage do not count."""
        return self.answer.strip(MARKS) == self.expected.strip(MARKS)


class RoomyLayer(DynamicLayer):
    """A layer's keys and values with spare room at the end. Adding a token copies only the new token, not all earlier
    ones.
    """

    ROOM = 1024

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if start == 0 or end > self._rooms[0].shape[-2]:
            super().update(key_states, value_states)
            self._rooms = [functional.pad(part, (0, 0, 0, self.ROOM)) for part in (self.keys, self.values)]
        else:
            for room, states in zip(self._rooms, (key_states, value_states), strict=True):
                room[..., start:end, :] = states
        self.keys, self.values = (room[..., :end, :] for room in self._rooms)
        return self.keys, self.values


class Reader:
    """A model that has read one text and answers questions about it, greedily."""

    def __init__(self, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, title: str, text: str) -> None:
        self.model, self.tokenizer = model, tokenizer
        book = [{"role": "system", "content": book_message(title, text)}]
        self._prompt = tokenizer.apply_chat_template(book, tokenize=False)
        ids = self._encode(self._prompt)
        self.num_tokens = ids.shape[1]
        self._cache = Cache(layer_class_to_replicate=RoomyLayer)
        with torch.inference_mode():
            model(input_ids=ids, past_key_values=self._cache, logits_to_keep=1)

    @torch.inference_mode()
    def ask(self, question: str) -> str:
        """Answer a question. Afterwards, the cache holds only the text again."""
        turn = f"<|user|>\n{question}<|end|>\n<|assistant|>\n"
        ids, answer = self._encode(turn), []
        for _ in range(MAX_ANSWER_TOKENS):
            logits = self.model(input_ids=ids, past_key_values=self._cache, logits_to_keep=1).logits
            token = int(logits[0, -1].argmax())
            if token == self.tokenizer.eos_token_id:
                break
            answer.append(token)
            ids = torch.tensor([[token]], device=self.model.device)
        self._cache.crop(self.num_tokens - self._cache.get_seq_length())
        return self.tokenizer.decode(answer)

    def _encode(self, text: str) -> Tensor:
        return self.tokenizer(text, add_special_tokens=False, return_tensors="pt").input_ids.to(self.model.device)


def text_of(book: Book, num_tokens: int, rng: random.Random) -> str:
    """Pick about `num_tokens` of a book, from a random paragraph's start."""
    num_chars = int(num_tokens * CHARS_PER_TOKEN)
    start = book.text.rfind("\n", 0, rng.randrange(max(1, len(book.text) - num_chars))) + 1
    return book.text[start : start + num_chars].strip()


def turns_by_depth(text: str, per_depth: int, rng: random.Random) -> list[tuple[int, questions.Turn]]:
    """Make `per_depth` phrase questions for every fifth of `text`. Each quoted passage occurs once in the text."""
    turns = []
    for depth in range(NUM_DEPTHS):
        size = len(text) // NUM_DEPTHS
        part = text[depth * size : (depth + 1) * size]
        count = 0
        while count < per_depth:
            turn = questions.phrase_turn(part, rng)
            if turn and text.count(turn.answer.strip("“”… ")) == 1:
                turns.append((depth, turn))
                count += 1
    return turns


def quote(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    books: list[Book],
    length: int,
    per_depth: int,
    seed: int,
) -> list[Quotation]:
    """Ask `per_depth` questions at every depth of a text of `length` tokens from each of `books`."""
    results = []
    for number, book in enumerate(books):
        rng = random.Random(f"{seed}/{length}/{number}")
        text = text_of(book, length, rng)
        reader = Reader(model, tokenizer, book.title, text)
        for depth, turn in turns_by_depth(text, per_depth, rng):
            results.append(Quotation(length, depth, turn.question, turn.answer, reader.ask(turn.question)))
    return results


def absences(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    books: list[Book],
    length: int,
    count: int,
    seed: int,
) -> list[Quotation]:
    """Ask questions with words of another book. The correct answer says that the book does not have them."""
    results = []
    for number, book in enumerate(books):
        rng = random.Random(f"{seed}/absent/{number}")
        text, other = text_of(book, length, rng), text_of(books[number - 1], length, rng)
        reader = Reader(model, tokenizer, book.title, text)
        while len(results) < count * (number + 1):
            turn = questions.absent_turn(text, other, rng)
            if turn:
                results.append(Quotation(length, 0, turn.question, turn.answer, reader.ask(turn.question)))
    return results


def open_answers(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, books: list[Book], length: int, seed: int
) -> list[Quotation]:
    """Ask questions that no passage answers, in wordings that were not used in training. The correct answer says what
    can be asked.
    """
    results = []
    for number, book in enumerate(books):
        reader = Reader(model, tokenizer, book.title, text_of(book, length, random.Random(f"{seed}/open/{number}")))
        for question in questions.UNTRAINED_OPEN_QUESTIONS:
            results.append(Quotation(length, 0, question, questions.ONLY_QUOTES, reader.ask(question)))
    return results
