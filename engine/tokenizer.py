"""Text to token ids and back: the book with the page of every token, turns, and text that streams.

Wraps a fast tokenizer of transformers. Words of a book or a person are encoded so that nothing in them can act as a
special token.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.document import Document
from engine.errors import ModelError
from engine.prompt import FALLBACK_TEMPLATE, ChatFormat, chat_format

_REPLACEMENT = "\ufffd"
# Tokens that decoding looks back over, so that joins between tokens come out as in one decode.
_LOOKBACK = 8
_BYTES = 4  # of the longest character, and so its most tokens


@dataclass(frozen=True)
class BookTokens:
    """The constant beginning of every prompt.

    ``ids`` are the template's words before the book and the book; ``page_starts`` gives for each page the index in
    ``ids`` of its first token.
    """

    ids: tuple[int, ...]
    page_starts: tuple[int, ...]

    def pages_within(self, count: int) -> int:
        """How many pages, from the first, have all their tokens among the first ``count`` ids."""
        ends = (*self.page_starts[1:], len(self.ids))
        return bisect.bisect_right(ends, count)


class BookTokenizer:
    """Encodes books and turns for one model.

    Args:
        name: folder or hub id.

    Raises:
        ModelError: no fast tokenizer can be loaded.
    """

    def __init__(self, name: str) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except Exception as error:
            raise ModelError(
                f"The tokenizer of {name} could not be loaded.", "The folder may be incomplete; download it again."
            ) from error
        if not self._tokenizer.is_fast:
            raise ModelError(f"{name} has no tokenizer.json, which is needed to map words to pages.", "Choose another.")
        # Whether special tokens are split is a state of the tokenizer, and pages and engine encode from two threads.
        self._lock = threading.Lock()
        # Books are longer than a model's limit by nature; what fits is checked by the session, with numbers.
        logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every token and its id."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return vocabulary

    @property
    def largest_id(self) -> int:
        """The largest id that words and the template's words can become.

        Tokens that were added to a vocabulary, such as one for padding, count only where one of them gives it: many
        folders have some behind the model's last, which nothing ever becomes.
        """
        tokenizer, vocabulary = self._tokenizer, self.vocabulary
        template = str(getattr(tokenizer, "chat_template", None) or "")
        named = {str(token) for name, token in tokenizer.special_tokens_map.items() if name in template}
        for token, number in tokenizer.get_added_vocab().items():
            if token not in template and token not in named and number not in self.words(token):
                vocabulary.pop(token, None)
        return max(vocabulary.values(), default=-1)

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that the tokenizer itself declares to end a text."""
        end = self._tokenizer.eos_token_id
        return () if end is None else (int(end),)

    def format_for(self, title: str) -> ChatFormat:
        """The model's chat template cut into pieces around a book; a plain one for base models."""
        template = getattr(self._tokenizer, "chat_template", None) or FALLBACK_TEMPLATE

        def render(messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
            text: str = self._tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=add_generation_prompt, chat_template=template
            )
            return text

        return chat_format(render, title)

    def book(self, document: Document, form: ChatFormat) -> BookTokens:
        """Encode a book with the template's words before it, and find where its pages start."""
        head = self._opening(form)
        with self._lock:
            encoded = self._tokenizer(
                document.text, add_special_tokens=False, split_special_tokens=True, return_offsets_mapping=True
            )
        begins = np.fromiter((start for start, _ in encoded["offset_mapping"]), dtype=np.int64)
        # A token that straddles a page border belongs to the page on which it starts.
        starts = np.searchsorted(begins, np.asarray(document.page_starts), side="left") + len(head)
        return BookTokens((*head, *encoded["input_ids"]), tuple(int(s) for s in starts))

    def words(self, text: str) -> list[int]:
        """Encode a person's words; nothing in them becomes a special token."""
        return self._ids(text, split_special_tokens=True)

    def template_words(self, text: str) -> list[int]:
        """Encode a template's own words, special tokens included."""
        return self._ids(text, split_special_tokens=False) if text else []

    def _ids(self, text: str, *, split_special_tokens: bool) -> list[int]:
        text = text.encode("utf-8", "replace").decode("utf-8")  # a request may hold half of a surrogate pair
        with self._lock:
            encoded = self._tokenizer(text, add_special_tokens=False, split_special_tokens=split_special_tokens)
        ids: list[int] = encoded["input_ids"]
        return ids

    def _opening(self, form: ChatFormat) -> list[int]:
        """The template's words before the book, with the begin token that some templates leave to the tokenizer.

        A title is encoded with the words around it, unless something in it would act as a special token.
        """
        title = self.words(form.title)
        if title == self.template_words(form.title):
            ids = self.template_words(form.before_title + form.title + form.before_book)
        else:
            ids = [*self.template_words(form.before_title), *title, *self.template_words(form.before_book)]
        begin = self._tokenizer.bos_token_id
        adds = getattr(self._tokenizer, "add_bos_token", False)
        if begin is not None and adds and ids[:1] != [begin]:
            ids = [begin, *ids]
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Token ids to text, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def stream(self, after: Sequence[int] = (), shown: str = "") -> TextStream:
        """A streaming decoder of what comes after some ids, whose text ``shown`` has been shown."""
        return TextStream(self, after, shown)


class TextStream:
    """Decodes token by token. The join of all deltas, ``flush`` included, equals one decode of all ids.

    Args:
        tokenizer: decodes the ids.
        after: ids that come before: where they end, words and spaces join as in one text.
        shown: their text as it has been shown, which may end before a character that they leave unfinished.
    """

    def __init__(self, tokenizer: BookTokenizer, after: Sequence[int] = (), shown: str = "") -> None:
        self._tokenizer = tokenizer
        self._from = 0  # ids before this are out of sight
        start, stop = self._whole_characters(after)
        self._ids: list[int] = list(after[start:])
        # ids before this have been shown
        self._shown = (len(after) if shown.endswith(_REPLACEMENT) else stop) - start

    def add(self, ids: Sequence[int]) -> str:
        """Text that became complete with these ids; an unfinished character is held back."""
        self._ids += ids
        shown = self._tokenizer.decode(self._ids[self._from : self._shown])
        whole = self._tokenizer.decode(self._ids[self._from :])
        if whole.endswith(_REPLACEMENT) or len(whole) <= len(shown):
            return ""
        self._shown = len(self._ids)
        self._from = max(self._from, self._shown - _LOOKBACK) if self._clean_cut() else self._from
        return whole[len(shown) :]

    def flush(self) -> str:
        """What was held back at the end, broken characters as U+FFFD."""
        shown = self._tokenizer.decode(self._ids[self._from : self._shown])
        whole = self._tokenizer.decode(self._ids[self._from :])
        self._shown = len(self._ids)
        return whole[len(shown) :]

    def _whole_characters(self, ids: Sequence[int]) -> tuple[int, int]:
        """Where to look back to in ids, and where the last of their whole characters ends: both between characters."""
        first, end = max(0, len(ids) - _LOOKBACK), len(ids)
        for stop in range(end, max(first, end - _BYTES), -1):
            for start in range(first, max(-1, first - _BYTES), -1):
                text = self._tokenizer.decode(ids[start:stop])
                if not text.startswith(_REPLACEMENT) and not text.endswith(_REPLACEMENT):
                    return start, stop
        return first, end

    def _clean_cut(self) -> bool:
        """Whether the text decodes alike when it starts ``_LOOKBACK`` tokens back, so older ids can be left out."""
        cut = self._shown - _LOOKBACK
        if cut <= self._from:
            return False
        late = self._tokenizer.decode(self._ids[cut : self._shown])
        return not late.startswith(_REPLACEMENT) and self._tokenizer.decode(
            self._ids[self._from : self._shown]
        ).endswith(late)
