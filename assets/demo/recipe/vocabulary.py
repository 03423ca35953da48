"""The tokenizer: byte-level BPE with a chat template, the same files for target and draft.

Owns the special tokens, the template and how the vocabulary is trained. Knows the corpus only as an iterator of text.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recipe.corpus import Book, curl_quotes

VOCABULARY_SIZE = 4096
MAX_POSITIONS = 131072
BOS, PAD, SYSTEM, USER, ASSISTANT, END = "<|bos|>", "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
SPECIAL_TOKENS = (BOS, PAD, SYSTEM, USER, ASSISTANT, END)
SAMPLE_CHARS = 120_000
"""Characters of every training book that are used to train the vocabulary. More characters change few entries."""

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)


def train_tokenizer(books: list[Book], phrases: list[str], seed: int) -> PreTrainedTokenizerFast:
    """Train a vocabulary on these books and on the `phrases` of the chat. Half of the books get curly quotes."""
    tokenizer = Tokenizer(models.BPE())
    # Curly double quotes are separate tokens, so that the marks around a quotation never change the tokens inside.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("[“”]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_vocabulary_text(books, phrases, random.Random(seed)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def load_or_train_tokenizer(folder: Path, books: list[Book], phrases: list[str], seed: int) -> PreTrainedTokenizerFast:
    """Load the tokenizer from `folder`. If there is none, train and save it first."""
    if not (folder / "tokenizer.json").exists():
        train_tokenizer(books, phrases, seed).save_pretrained(folder)
    return PreTrainedTokenizerFast.from_pretrained(folder)


def closers(tokenizer: PreTrainedTokenizerFast) -> tuple[int, ...]:
    """Return the ids of the tokens that may follow the searched words in a question: marks, and the message's end."""
    marks = [number for number in range(len(tokenizer)) if set(tokenizer.decode([number])) <= set('"”?.!')]
    return (*(number for number in marks if tokenizer.decode([number])), tokenizer.eos_token_id)


def _vocabulary_text(books: list[Book], phrases: list[str], rng: random.Random) -> Iterator[str]:
    for number, book in enumerate(books):
        start = rng.randrange(max(1, len(book.text) - SAMPLE_CHARS))
        text = book.text[start : start + SAMPLE_CHARS]
        yield curl_quotes(text) if number % 2 else text
    repeats = 20
    yield from phrases * repeats
