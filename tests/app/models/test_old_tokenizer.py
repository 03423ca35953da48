"""Models of the age of Llama 2 come with tokenizer.model alone: it is read, and maps words to pages as others do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import sentencepiece

from app.core.settings import SAMPLE_BOOKS
from engine.document import Document, Page
from engine.prompt import BookTokenizer

TOKENS = 800
PAGES = ("The lamp was lit.", "Who counted them? Nobody, in 1904.", "É\u00e9 \u4e2d\u6587 \U0001f525 last.")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A vocabulary as Llama 2's: byte pairs, with bytes for what has no token."""
    place = tmp_path_factory.mktemp("old")
    sentencepiece.SentencePieceTrainer.train(
        input=str(next(SAMPLE_BOOKS.glob("*.txt"))),
        model_prefix=str(place / "made"),
        vocab_size=TOKENS,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        num_threads=1,
        minloglevel=2,
    )
    (place / "made.model").rename(place / "tokenizer.model")
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (place / "tokenizer_config.json").write_text(json.dumps({**settings, "legacy": False}), encoding="utf-8")
    (place / "config.json").write_text(json.dumps({"model_type": "llama", "vocab_size": TOKENS}), encoding="utf-8")
    return place


def test_words_become_the_tokens_that_they_were_trained_as(folder: Path) -> None:
    ours, theirs = BookTokenizer(str(folder)), sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    assert len(ours.vocabulary) == TOKENS
    assert ours.end_ids == (theirs.eos_id(),)
    for text in (*PAGES, "two\n\nlines\tand  gaps"):
        assert ours.words(text) == theirs.encode(text)
    assert theirs.eos_id() not in ours.words("</s>"), "words of a book act as no special token"


def test_pages_of_a_book_are_found(folder: Path) -> None:
    tokenizer = BookTokenizer(str(folder))
    pages = tuple(Page(at, str(at), text) for at, text in enumerate(PAGES, 1))
    document = Document("Lamps", "", pages, "text", "0" * 64)
    book = tokenizer.book(document, tokenizer.format_for("Lamps"))
    starts = (*book.page_starts, len(book.ids))
    theirs = sentencepiece.SentencePieceProcessor(str(folder / "tokenizer.model"))
    for page, begin, end in zip(PAGES, starts[:-1], starts[1:], strict=True):
        assert page in theirs.decode(list(book.ids[begin:end]))
