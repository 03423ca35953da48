"""Makes the data that a draft learns from: rows of tokens, and the target's last hidden state for every token.

A row begins like a prompt of the app, followed by a passage of a book. In every second row a question about the passage
follows, in the model's chat format. The target writes the rest, at one of the temperatures ``TEMPERATURES``. When the
text ends or begins to loop, another question or passage is inserted, and the target goes on. Hidden states are stored
instead of logits, because they take a fiftieth of the space, and the head can compute the logits from them.

Rows are made in shards. A shard depends on the target, the books, the seed and the shard's number, but not on the
draft. A shard's file is either complete or absent.
"""

from __future__ import annotations

import os
import random
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers.cache_utils import DynamicCache

from engine.decode.loops import Repetition
from engine.document import Document
from engine.model.architectures import logits_divisor
from engine.prompt import BookTokenizer

ROWS = 64
"""Number of rows of a shard, which the target generates as one batch."""
PROMPT_TOKENS = 192
"""Number of tokens at the start of a row, which the target continues."""
WRITTEN_TOKENS = 192
"""Number of tokens of a row that the target writes after the prompt."""
TEMPERATURES = (0.0, 0.0, 0.6, 1.0)
"""Temperatures at which rows are generated, in turn. Half of the rows are greedy."""

# A text counts as a loop if it repeats at least this number of tokens. The text is then ended, because more repetitions
# would teach the draft little.
_REPEATED = 32
# Number of tokens of the passage that is inserted into a row after the target's text has ended.
_NEW_PASSAGE = 48
CHARACTERS_PER_TOKEN = 16
"""Number of a book's characters that are encoded for each token that a passage needs. No tokenizer needs more
characters for a token on average.
"""
# Number of words of the passage that are quoted in a question.
_NAMED_WORDS = 5
_QUESTIONS = (
    "Where does it say “{words}”?",
    "What comes after “{words}”?",
    "What does the book say about {name}?",
    "Who is {name}?",
    "Tell me about {name}.",
    "What happens here?",
    "Summarise this passage in a few sentences.",
    "Who speaks, and what about?",
    "Describe the place where this happens.",
    "What is this about?",
    "Why does this happen?",
    "Continue the text.",
)
_NAME = re.compile(r"(?<=[a-z,;] )[A-Z][a-z]{2,}(?: [A-Z][a-z]+)?")


@dataclass(frozen=True)
class CorpusShard:
    """Rows of the corpus. ``tokens``: (rows, length) int64. ``hidden``: (rows, length, hidden size) bfloat16, from
    which the target's head computes the distribution of each next token.
    """

    tokens: torch.Tensor
    hidden: torch.Tensor


class Prompts:
    """Makes the beginnings of rows, and the continuation of a row whose text has ended.

    Args:
        tokenizer: the target's tokenizer.
        texts: texts of the books.
        num_sink_tokens: number of tokens at the start of the app's prompt that every row begins with. A draft's cache
            never evicts them.
    """

    def __init__(self, tokenizer: BookTokenizer, texts: Sequence[str], num_sink_tokens: int) -> None:
        self._tokenizer, self._texts = tokenizer, texts
        self._weights = [len(text) for text in texts]
        self._form = tokenizer.format_for("Title")
        self._opening = list(tokenizer.book(Document("Title", "", (), "text", ""), self._form).ids)[:num_sink_tokens]

    def prompt(self, rng: random.Random, *, chat: bool) -> list[int]:
        """Make ``PROMPT_TOKENS`` tokens for the target to continue."""
        room = PROMPT_TOKENS - len(self._opening)
        passage = self.passage(room, rng)
        asked = self._asked(passage, self._form.after_book, rng)[-room // 2 :] if chat else []
        return [*self._opening, *passage[: room - len(asked)], *asked]

    def passage(self, count: int, rng: random.Random) -> list[int]:
        """Return ``count`` consecutive tokens of a random book, from the beginning of a word."""
        while True:
            text = rng.choices(self._texts, self._weights)[0]
            start = text.find(" ", rng.randrange(len(text))) + 1
            ids = self._tokenizer.words(text[start : start + CHARACTERS_PER_TOKEN * count])[:count]
            if len(ids) == count:
                return ids

    def further(self, row: Sequence[int], rng: random.Random, *, chat: bool) -> list[int]:
        """Make the tokens that continue a row after its text has ended: a question if ``chat``, otherwise a passage."""
        if not chat:
            return [*self._tokenizer.words("\n\n"), *self.passage(_NEW_PASSAGE, rng)]
        asked = self._asked(row[:PROMPT_TOKENS], self._form.between_turns, rng)
        # If the model has ended its answer itself, the token that closes the turn is already in the row, so it is not
        # added again.
        return asked[1:] if asked[:1] == [row[-1]] else asked

    def _asked(self, passage: Sequence[int], lead: str, rng: random.Random) -> list[int]:
        text = self._tokenizer.decode(passage)
        words = text.split()
        start = rng.randrange(max(1, len(words) - _NAMED_WORDS))
        names = _NAME.findall(text) or ["the author"]
        question = rng.choice(_QUESTIONS).format(
            words=" ".join(words[start : start + _NAMED_WORDS]), name=rng.choice(names)
        )
        tokenizer = self._tokenizer
        after = tokenizer.template_words(self._form.after_question)
        return [*tokenizer.template_words(lead), *tokenizer.words(question), *after]


class Corpus:
    """Makes the shards of the corpus, and stores them in a folder.

    Args:
        model: the target as a transformers model, with an attention implementation that supports batches.
        prompts: makes the beginnings of rows.
        end_ids: tokens that end a text.
        folder: folder of the shards' files.
        seed: seed of all random choices.
    """

    def __init__(self, model: Any, prompts: Prompts, end_ids: frozenset[int], folder: Path, seed: int) -> None:
        self._model, self._prompts, self._end_ids = model, prompts, end_ids
        self._folder, self._seed = folder, seed

    def shard(self, number: int) -> CorpusShard:
        """Read the shard with this number from its file. If there is no file, make the shard and save it first."""
        path = self._folder / f"shard-{number:05}.safetensors"
        if not path.exists():
            made = self._write(number)
            # The name of an unfinished file contains this process's id, because two processes may make the same shard.
            partial = path.with_suffix(f".{os.getpid()}.tmp")
            save_file({"tokens": made.tokens.to(torch.int32), "hidden": made.hidden}, partial)
            os.replace(partial, path)
        tensors = load_file(path)
        return CorpusShard(tensors["tokens"].long(), tensors["hidden"])

    @torch.inference_mode()
    def _write(self, number: int) -> CorpusShard:
        rng = random.Random(f"{self._seed}/{number}")
        device = self._model.device
        generator = torch.Generator(device).manual_seed(rng.getrandbits(63))
        rows = [_Row(self._prompts, self._end_ids, rng, chat=bool(index % 2)) for index in range(ROWS)]
        # Each pair of rows, one without and one with a question, has the same temperature.
        cycle = [TEMPERATURES[index // 2 % len(TEMPERATURES)] for index in range(ROWS)]
        temperature = torch.tensor(cycle, device=device)[:, None]
        cache: Any = DynamicCache(config=self._model.config)
        hidden = []
        newest = torch.tensor([row.tokens for row in rows], device=device)
        while True:
            out = self._model.model(input_ids=newest, past_key_values=cache, use_cache=True).last_hidden_state
            hidden.append(out.to("cpu", torch.bfloat16))
            if len(rows[0].tokens) == PROMPT_TOKENS + WRITTEN_TOKENS:
                break
            logits = logits_of(self._model, out[:, -1])
            likeliest = logits.argmax(-1, keepdim=True)
            drawn = torch.multinomial((logits / temperature.clamp(min=1.0e-2)).softmax(-1), 1, generator=generator)
            chosen = torch.where(temperature == 0.0, likeliest, drawn).flatten().tolist()
            newest = torch.tensor([[row.add(token)] for row, token in zip(rows, chosen, strict=True)], device=device)
        return CorpusShard(torch.tensor([row.tokens for row in rows]), torch.cat(hidden, dim=1))


def logits_of(model: Any, hidden: torch.Tensor) -> torch.Tensor:
    """Compute logits in float32 from a target's last hidden states (..., hidden size)."""
    logits: torch.Tensor = model.lm_head(hidden).float()
    return logits / logits_divisor(model.config)


class _Row:
    """A row of a shard while the target writes it. Whenever the target's text ends, a new question or passage is
    inserted.
    """

    def __init__(self, prompts: Prompts, end_ids: frozenset[int], rng: random.Random, *, chat: bool) -> None:
        self._prompts, self._end_ids, self._rng, self._chat = prompts, end_ids, rng, chat
        self.tokens = prompts.prompt(rng, chat=chat)
        self._given: deque[int] = deque()
        self._repetition = Repetition()

    def add(self, token: int) -> int:
        """Append a token to the row and return it: the next token of the inserted question or passage, if any is left,
        otherwise ``token``, which the target chose.
        """
        if self._given:
            token = self._given.popleft()
            self.tokens.append(token)
            return token
        self.tokens.append(token)
        self._repetition.add(token)
        repeats = any(same >= max(period, _REPEATED) for period, same in self._repetition.runs.items())
        if token in self._end_ids or repeats:
            self._given.extend(self._prompts.further(self.tokens, self._rng, chat=self._chat))
            self._repetition = Repetition()
        return token
