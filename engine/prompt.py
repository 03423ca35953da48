"""Makes the prompt: the tokens of the chat template, of the book, and of the chat about the book.

The book comes first and never changes by a byte; the chat follows. A chat template is cut into pieces: a prefix that
holds the book and never changes, and one piece per turn that is appended to the prefix. Because the pieces are
tokenized separately, the tokens of the book are the same for every question, and their KV is computed once.

A fast tokenizer of transformers encodes text, and decodes token ids one by one while an answer is generated. The text
of a book or a person is encoded so that nothing in it can act as a special token.

A ``Conversation`` only manages lists of token ids: the prompt, and the part of the prompt that the caches already hold.
Cached turns are recognised by their text. So regenerating, editing, switching chats and restoring a chat need no
special handling. Each is just a different history.

Importing this module needs only the standard library, because looking up a name in ``engine`` can import this module
before any package is installed.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from engine import foreign, model_files
from engine.chat_template import FALLBACK_TEMPLATE, ChatFormat
from engine.config import MODES, Mode, SamplingParams, check, option
from engine.contents import guided
from engine.document import Document
from engine.errors import ModelError
from engine.passages import (
    MOST_COMPARED,
    POINTED_SHORTEST,
    SHORTEST,
    Passages,
    asks_about_part,
    asks_about_several,
    pointed,
    reminded,
)
from engine.places import beside, named
from engine.thinking import FAMILIES, ThinkingForm, ThoughtMarks

__all__ = [
    "BookTokenizer",
    "Question",
    "Turn",
]

_REPLACEMENT = "\ufffd"
# Number of earlier tokens that are decoded again with new tokens, so that the text is the same as in a single decode.
_LOOKBACK = 8
_BYTES = 4  # maximum number of tokens that make up one character, because a character has at most 4 bytes in UTF-8
# Maximum characters of a text that are encoded to find out whether the text is too long, as a multiple of the window's
# tokens. Prose has about half as many characters per token.
_LONG = 8
# If the encoded beginning of a longer text (``_LONG``) has more tokens than the window times this factor, the text
# counts as too long. The factor is above 1, because the beginning alone may be tokenized a little differently than
# within the whole text.
_SURELY = 1.5


# Text and ids --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BookTokens:
    """The constant beginning of every prompt.

    ``ids`` are the token ids of the template's text before the book, and of the book. ``page_starts`` gives, for each
    page, the index of its first token in ``ids``. ``borders`` gives, for each document except the first, the index of
    its first token in ``ids``. The ids before a border do not depend on the text after it.
    """

    ids: tuple[int, ...]
    page_starts: tuple[int, ...]
    borders: tuple[int, ...] = ()

    @property
    def head(self) -> int:
        """Number of tokens before the book."""
        return self.page_starts[0] if self.page_starts else len(self.ids)

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """For each document of the book, the range [start, end) of its tokens in ``ids``."""
        return tuple(zip((self.head, *self.borders), (*self.borders, len(self.ids)), strict=True))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of tokens of each document of the book."""
        return tuple(end - start for start, end in self.spans)

    def pages_within(self, count: int) -> int:
        """Number of pages, from the first, whose tokens are all among the first ``count`` ids."""
        ends = (*self.page_starts[1:], len(self.ids))
        return bisect.bisect_right(ends, count)


class BookTokenizer:
    """Encodes books and turns for one model.

    Args:
        name: folder or hub id.
        results_folder: folder where ``engine.foreign`` records harmless tokenizers and templates; "" records nothing.

    Raises:
        ModelError: no fast tokenizer can be loaded.
    """

    def __init__(self, name: str, results_folder: str = "") -> None:
        from transformers import AutoTokenizer

        self._kept, folder = results_folder, model_files.folder_of(name)
        self._texts: foreign.Texts | None = None
        if folder is not None:
            # transformers reads the settings when it loads the tokenizer, so the settings are checked too if they
            # exist.
            check = model_files.check_settings if (folder / model_files.SETTINGS).exists() else model_files.check
            check(folder)
            self._texts = foreign.Texts(foreign.check_tokenizer(folder, results_folder), folder, results_folder)
        with _told(f"The tokenizer of {name} could not be loaded.", "The folder may be incomplete; download it again."):
            self._tokenizer: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        if not self._tokenizer.is_fast:
            raise ModelError(f"{name} has no tokenizer.json, which is needed to map words to pages.", "Choose another.")
        # ``split_special_tokens`` changes a state of the tokenizer, which the app's and the engine's threads share.
        self._lock = threading.Lock()
        # The tokenizer would warn of every text beyond the model's limit. The session itself checks whether a book
        # fits.
        logging.getLogger("transformers.tokenization_utils_base").setLevel(logging.ERROR)

    @property
    def vocabulary(self) -> dict[str, int]:
        """Every token with its id."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return vocabulary

    @property
    def bytes_of(self) -> Callable[[str], bytes] | None:
        """A function that returns the bytes of a token; None if the tokenizer is neither byte-level BPE nor
        SentencePiece.
        """
        decoder = str(self._tokenizer.backend_tokenizer.decoder)
        if "ByteLevel" in decoder:
            return _byte_level
        return _sentence_piece if "ByteFallback" in decoder or "Metaspace" in decoder else None

    @cached_property
    def pieces(self) -> list[bytes] | None:
        """The bytes of every token, indexed by token id and empty for special tokens. None if ``bytes_of`` is None."""
        if (bytes_of := self.bytes_of) is None:
            return None
        special = set(self._tokenizer.all_special_ids) | set(self._tokenizer.added_tokens_decoder)
        vocabulary = self.vocabulary
        pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for token, number in vocabulary.items():
            if number not in special:
                pieces[number] = bytes_of(token)
        return pieces

    @property
    def largest_id(self) -> int:
        """The largest token id that can occur in a prompt.

        An added token, such as one for padding, counts only if the template or the encoding of a text can produce it.
        Many folders have added tokens beyond the model's last id, which never occur.
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
        """Ids of the tokens that end a text by the tokenizer's own settings."""
        end = self._tokenizer.eos_token_id
        return () if end is None else (int(end),)

    def mark_ids(self, marks: ThoughtMarks) -> dict[str, int]:
        """The ids of the marks of thoughts that are single tokens."""
        added = self._tokenizer.get_added_vocab()
        return {mark: added[mark] for mark in marks.marks if mark in added}

    @property
    def has_template(self) -> bool:
        """Whether the model has a chat template. Without a template, a model can only continue a text."""
        return bool(getattr(self._tokenizer, "chat_template", None))

    def format_for(self, title: str) -> ChatFormat:
        """Cut the model's chat template into pieces around a book. Base models get a plain template.

        Raises:
            ModelError: the template does not keep the book before the conversation, or exceeds its limits.
        """
        stated = getattr(self._tokenizer, "chat_template", None)
        template = stated.get("default") if isinstance(stated, dict) else stated
        if not isinstance(template, str) and stated:
            raise ModelError("This model has several chat templates, and none for ordinary chats.", "Choose another.")
        tokens = self._tokenizer.special_tokens_map
        form = foreign.chat_format(template or FALLBACK_TEMPLATE, tokens, title, self._kept)
        if form.thinking is not None:
            return form
        # A model that knows marks of thoughts may use them, even if its template does not name them.
        added = self._tokenizer.get_added_vocab()
        family = next((one for one in FAMILIES if all(mark in added for mark in (one.opening, one.closing))), None)
        said = form.after_question
        silent = ThinkingForm(family, said, said, can_stop=True, can_think=False) if family else None
        return replace(form, thinking=silent)

    def book(self, document: Document, form: ChatFormat) -> BookTokens:
        """Encode a book with the template's words before it, and find where its pages start.

        Several documents are encoded separately. The title of each document except the first belongs to the document's
        first page.
        """
        ids, starts, borders = self._opening(form), list[int](), list[int]()
        for stretch in document.stretches:
            border = len(ids)
            if stretch.heading:
                borders.append(border)
                ids += self.words(stretch.heading)
            encoded = self._encode(stretch.text, split_special_tokens=True, return_offsets_mapping=True)
            begins = [start for start, _ in encoded["offset_mapping"]]
            # A token that crosses a page border belongs to the page on which it begins.
            own = [len(ids) + bisect.bisect_left(begins, start) for start in stretch.page_starts]
            starts += [border, *own[1:]] if stretch.heading else own
            ids += encoded["input_ids"]
        return BookTokens(tuple(ids), tuple(starts), tuple(borders))

    def overflow(self, text: str, window: int) -> int:
        """If a text is far too long for ``window`` tokens, return the number of tokens in the beginning of the text,
        which is above ``window``. Otherwise return 0.

        Encoding megabytes takes half a minute, so at most ``_LONG`` characters per token of the window are encoded.
        """
        most = _LONG * window
        count = len(self.words(text[:most])) if len(text) > most else 0
        return count if count > _SURELY * window else 0

    def words(self, text: str) -> list[int]:
        """Encode a person's words. No word becomes a special token."""
        return self._ids(text, split_special_tokens=True)

    def template_words(self, text: str) -> list[int]:
        """Encode a template's own words, special tokens included."""
        return self._ids(text, split_special_tokens=False) if text else []

    def _ids(self, text: str, *, split_special_tokens: bool) -> list[int]:
        # A request may contain a lone surrogate, which UTF-8 cannot encode
        text = text.encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = self._encode(text, split_special_tokens=split_special_tokens)["input_ids"]
        return ids

    def _encode(self, text: str, *, split_special_tokens: bool, **options: bool) -> Any:
        if self._texts is not None:
            self._texts.check(text, split_special_tokens=split_special_tokens)
        with self._lock, _told("This model's tokenizer breaks at this text.", "Choose another model."):
            options["split_special_tokens"] = split_special_tokens
            return self._tokenizer(text, add_special_tokens=False, **options)

    def _opening(self, form: ChatFormat) -> list[int]:
        """The token ids of the template's text before the book. The BOS token is put first if the tokenizer's settings
        ask for it and the template does not already begin with it.

        A title is encoded together with the text around it, unless a part of the title would act as a special token.
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
        """Decode token ids to text, without special tokens."""
        with _told("This model's tokenizer breaks at this answer.", "Choose another model."):
            text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def stream(self, prefix: Sequence[int] = (), shown_text: str = "") -> TextStream:
        """Make a streaming decoder for the tokens that follow ``prefix``.

        Args:
            prefix, shown_text: as in ``TextStream``.
        """
        return TextStream(self, prefix, shown_text)

    def stream_after(self, prompt: Prompt, question: Question) -> TextStream:
        """Make a streaming decoder for the answer to ``question``. It continues the answer or thought that ``prompt``
        ends with.
        """
        begun = question.thought if prompt.goes_on else question.begun
        return self.stream(prompt.tokens if begun else (), begun)


@contextmanager
def _told(cause: str, remedy: str) -> Iterator[None]:
    """Turn any exception of the tokenizer's library into an error with ``cause`` and ``remedy``. This includes a panic
    in Rust, which is not a subclass of ``Exception``.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise ModelError(cause, remedy) from error


def _byte_level(token: str) -> bytes:
    """The bytes of a token in byte-level BPE (Radford et al. 2019), which represents every byte by a printable
    character.
    """
    return bytes(_BYTE_OF.get(sign, ord("?")) for sign in token)


def _sentence_piece(token: str) -> bytes:
    """Return the bytes of a token in SentencePiece. There a special character stands for the space. A character without
    a token is written as tokens for its single bytes.
    """
    if len(token) == len("<0x00>") and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace("\u2581", " ").encode()


def _byte_signs() -> dict[str, int]:
    """Map characters to the bytes that they represent. A printable Latin-1 character represents its own byte. The
    characters from 256 on represent the remaining bytes, in order.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF = _byte_signs()


class TextStream:
    """Decodes token by token. The joined results of ``add`` and ``flush`` equal a single decode of all ids.

    Args:
        tokenizer: decodes the ids.
        prefix: ids of the text before the stream, so that words and spaces join as in one text.
        shown_text: the text of ``prefix`` that a person has already seen. An unfinished character at its end may be
            missing.
    """

    def __init__(self, tokenizer: BookTokenizer, prefix: Sequence[int] = (), shown_text: str = "") -> None:
        self._tokenizer = tokenizer
        self._from = 0  # index of the id at which decoding begins; earlier ids no longer change the text
        start, stop = self._whole_characters(prefix)
        self._ids: list[int] = list(prefix[start:])
        # Number of ``_ids`` whose text has been shown. An unfinished character counts only if it was shown as U+FFFD.
        self._shown = (len(prefix) if shown_text.endswith(_REPLACEMENT) else stop) - start

    def add(self, ids: Sequence[int]) -> str:
        """Add ids and return the text that they completed. An unfinished character is held back."""
        self._ids += ids
        shown = self._tokenizer.decode(self._ids[self._from : self._shown])
        whole = self._tokenizer.decode(self._ids[self._from :])
        if whole.endswith(_REPLACEMENT) or len(whole) <= len(shown):
            return ""
        self._shown = len(self._ids)
        self._from = max(self._from, self._shown - _LOOKBACK) if self._clean_cut() else self._from
        return whole[len(shown) :]

    def flush(self) -> str:
        """Return the text held back at the end, with broken characters as U+FFFD."""
        shown = self._tokenizer.decode(self._ids[self._from : self._shown])
        whole = self._tokenizer.decode(self._ids[self._from :])
        self._shown = len(self._ids)
        return whole[len(shown) :]

    def _whole_characters(self, ids: Sequence[int]) -> tuple[int, int]:
        """Return two indices in ``ids``: one near ``_LOOKBACK`` ids before the end, at which a character begins, and
        the index after the last complete character.
        """
        first, end = max(0, len(ids) - _LOOKBACK), len(ids)
        for stop in range(end, max(first, end - _BYTES), -1):
            for start in range(first, max(-1, first - _BYTES), -1):
                text = self._tokenizer.decode(ids[start:stop])
                if not text.startswith(_REPLACEMENT) and not text.endswith(_REPLACEMENT):
                    return start, stop
        return first, end

    def _clean_cut(self) -> bool:
        """Whether decoding only the last ``_LOOKBACK`` tokens gives the same end of the text as decoding all tokens. If
        so, older ids need not be decoded any more.
        """
        cut = self._shown - _LOOKBACK
        if cut <= self._from:
            return False
        late = self._tokenizer.decode(self._ids[cut : self._shown])
        return not late.startswith(_REPLACEMENT) and self._tokenizer.decode(
            self._ids[self._from : self._shown]
        ).endswith(late)


# Turns ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """One question with its answer. ``thought`` is what the model thought before it, if the turn is in the cache with
    it. In later questions the thought is left out, as templates do; such a turn has the thought "".
    """

    question: str
    answer: str
    thought: str = ""


@dataclass(frozen=True)
class Question:
    """A question about the open book, with everything that decides its answer.

    Args:
        text: the question itself.
        history: earlier turns of the chat, oldest first.
        sampling: options that are None fall back to the model's own settings, then to greedy decoding.
        mode: name of the decoding loop, which changes the speed, never the distribution of the text.
        begun: the beginning of an answer that was cut off; the new text continues it.
        chat: name under which the chat's turns are stored on disk, with the book; "" stores none.
        wait: seconds to wait until a cancelled request has released the engine (``engine.HANDOVER_S`` is enough).
        excerpt: a short text that takes the place of the open book (``engine.aside``). The question is then answered
            at once, also while a book is being read; None for the open book.
        thought: what the model thought before ``begun``. If ``begun`` is empty, the thought itself is continued.
        plain_lane: whether a plain run of the same prompt takes turns with the speculative answer (``engine.lanes``).
            The events of the plain run come as ``PlainLane``.
    """

    text: str
    history: Sequence[Turn] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    mode: Mode = option("hierarchical", kind=str, choices=MODES, help="decoding mode")
    begun: str = ""
    chat: str = ""
    wait: float = 0.0
    excerpt: Document | None = None
    thought: str = ""
    plain_lane: bool = False

    def __post_init__(self) -> None:
        check(self)
        # A copy, because the caller may append to the list later.
        object.__setattr__(self, "history", tuple(self.history))

    @classmethod
    def of(cls, question: Question | str) -> Question:
        """Make a ``Question`` of a text, with the model's defaults for everything else. If the argument is a
        ``Question`` already, return it unchanged.
        """
        return cls(question) if isinstance(question, str) else question


@dataclass(frozen=True)
class CachedTurn:
    """A turn in the cache. ``stop`` is the index in the context after the turn's last token. If the turn has a thought,
    the last ``answered`` tokens before ``stop`` are its answer.
    """

    turn: Turn
    stop: int
    answered: int = 0


@dataclass(frozen=True)
class Prompt:
    """A prompt: ``tokens`` are all its tokens, and the caches hold the first ``reused`` tokens. ``turns`` are the
    earlier turns of the chat.

    If the prompt continues an answer that is in the caches, ``reopened`` is the turn of that answer. The last
    ``begun_tokens`` tokens belong to the answer. ``opened``: whether the prompt ends within a thought; ``goes_on``:
    whether this thought was begun by the model.
    """

    tokens: list[int]
    turns: list[CachedTurn]
    reused: int
    reopened: CachedTurn | None = None
    begun_tokens: int = 0
    opened: bool = False
    goes_on: bool = False


@dataclass
class Conversation:
    """The open book and the turns about it.

    The KV of the first ``read`` tokens of the book is in the cache. ``tokens`` are the whole committed context: the
    book's tokens that were read, and all ``turns``. If ``num_passages`` is above 0, up to ``num_passages`` passages
    that share words with a question are put after the question. If ``pointed`` is True, the best passage is put before
    a question about a detail of the book. A question that compares several documents gets the best passage of each,
    with the document's title. The passages of earlier turns stay in the context, because KV of all later tokens depends
    on them.
    """

    tokenizer: BookTokenizer
    document: Document
    book: BookTokens
    form: ChatFormat
    end_ids: frozenset[int]
    num_passages: int = 0
    pointed: bool = False
    read: int = 0
    tokens: list[int] = field(default_factory=list)
    turns: list[CachedTurn] = field(default_factory=list)

    @property
    def pages_read(self) -> int:
        """Number of pages whose tokens have all been read."""
        return self.book.pages_within(self.read)

    def shares_documents(self, book: BookTokens) -> bool:
        """Whether another book begins with documents of this book whose tokens have all been read."""
        ends = (end for end in (*self.book.borders, *book.borders, len(self.book.ids)) if end <= self.read)
        return book.ids != self.book.ids and any(book.ids[:end] == self.book.ids[:end] for end in ends)

    @cached_property
    def words_read(self) -> str:
        """The text of the book's tokens that have been read."""
        return self.tokenizer.decode(self.book.ids[self.book.page_starts[0] : self.read])

    @cached_property
    def _passages(self) -> Passages:
        return Passages(self.words_read, POINTED_SHORTEST if self.pointed else SHORTEST)

    @cached_property
    def _passages_of_documents(self) -> list[tuple[str, Passages]]:
        """The title and the passages of each of several documents that have been read."""
        read = ((start, min(end, self.read)) for start, end in self.book.spans if start < self.read)
        texts = (self.tokenizer.decode(self.book.ids[start:end]) for start, end in read)
        return [
            (member.title, Passages(text, POINTED_SHORTEST))
            for member, text in zip(self.document.members, texts, strict=False)
        ]

    def begin(self, read: int) -> None:
        """Start with ``read`` tokens of the book and no turn."""
        self.read = read
        self.tokens = list(self.book.ids[:read])
        self.turns = []
        for made in ("words_read", "_passages", "_passages_of_documents"):  # drop cached values of an earlier reading
            vars(self).pop(made, None)

    def compose(
        self, question: str, history: Sequence[Turn], begun: str = "", *, thought: str = "", think: bool = False
    ) -> Prompt:
        """Compose the prompt that asks ``question`` after ``history``. The conversation stays unchanged.

        Args:
            begun: the beginning of the answer, which is continued.
            thought: what the model thought before ``begun``; it is continued if ``begun`` is empty.
            think: whether the model is to think first.
        """
        known = self.known(history)
        reused = self.turns[known - 1].stop if known else self.read
        tokens, turns = self.tokens[:reused], self.turns[:known]
        for turn in history[known:]:
            tokens += self._question(turn.question, tokens, self.form.after_question, turns)
            tokens += self.tokenizer.words(turn.answer)
            turns.append(CachedTurn(turn, len(tokens)))
        held = self.turns[known] if known == len(history) < len(self.turns) else None
        if (begun or thought) and held and held.turn == Turn(question, begun, thought):
            return self._reopened(known, turns)
        thinking, asked = self.form.thinking, self.form.asked(think)
        said, opened = self.tokenizer.words(begun), bool(thinking and thinking.family.leaves_open(asked))
        if thinking and thought:
            asked, opened = thinking.opened, not begun
            said = [*self.tokenizer.template_words("" if opened else thinking.family.close), *said]
        tokens += self._question(question, tokens, asked, turns)
        tokens += self.tokenizer.words(thought) if thinking else []
        if known < len(self.turns) and self.turns[known].turn.thought:
            # The turn's thought is left out now: what stands before it in the cache is used.
            reused = max(reused, _in_common(tokens, self.tokens))
        return Prompt(tokens + said, turns, reused, None, len(said), opened, opened and bool(thought))

    def known(self, history: Sequence[Turn]) -> int:
        """Number of turns, from the first on, that ``history`` and the cached ``turns`` have in common."""
        known = 0
        while known < min(len(history), len(self.turns)) and self.turns[known].turn == history[known]:
            known += 1
        return known

    def kv_start(self, turn: int) -> int:
        """Number of tokens whose KV was in the cache when the turn with the index ``turn`` began. The last token of the
        previous turn had no KV yet.
        """
        return self.turns[turn - 1].stop - 1 if turn else self.read

    def forget_from(self, position: int) -> None:
        """Forget the turn at ``position`` and all later ones."""
        self.turns = self.turns[:position]
        self.tokens = self.tokens[: self.turns[-1].stop if self.turns else self.read]

    def forget_beyond(self, length: int) -> None:
        """Forget the turns whose KV is lost when the cache is cropped to ``length`` tokens. The KV of a turn's last
        token may be missing, because it is computed only in the next pass.
        """
        self.forget_from(sum(held.stop - 1 <= length for held in self.turns))

    def remember(self, turns: Sequence[CachedTurn], tokens: Sequence[int]) -> None:
        """Restore an earlier, longer state of ``turns`` and ``tokens``. Does nothing unless ``tokens`` begin with the
        present tokens.
        """
        if len(turns) > len(self.turns) and list(tokens[: len(self.tokens)]) == self.tokens:
            self.turns, self.tokens = list(turns), list(tokens[: turns[-1].stop])

    def recall(self, turn: Turn, ids: Sequence[int]) -> None:
        """Append a turn whose KV has been restored.

        ``ids`` are the turn's tokens from ``kv_start`` on.
        """
        self.tokens = [*self.tokens[: self.kv_start(len(self.turns))], *ids]
        self.turns = [*self.turns, CachedTurn(turn, len(self.tokens))]

    def _reopened(self, position: int, turns: list[CachedTurn]) -> Prompt:
        """Make the prompt that continues a cached turn's answer. It has exactly the tokens of the turn in the cache."""
        held = self.turns[position]
        stop, turn = held.stop, held.turn
        if turn.thought:
            answer = stop - held.answered
        else:
            before = self.tokens[: self.turns[position - 1].stop if position else self.read]
            asked = self._question(turn.question, before, self.form.after_question, self.turns[:position])
            answer = len(before) + len(asked)
        if self.tokens[stop - 1] in self.end_ids:
            stop -= 1
        opened = bool(turn.thought) and not turn.answer
        reopened = CachedTurn(turn, stop, max(0, stop - answer))
        return Prompt(self.tokens[:stop], turns, stop, reopened, max(0, stop - answer), opened, opened)

    def rewind(self, prompt: Prompt) -> None:
        """Forget the turns that ``prompt`` does not build on."""
        self.tokens = prompt.tokens[: prompt.reused]
        self.turns = [turn for turn in prompt.turns if turn.stop <= prompt.reused]
        if prompt.reopened is not None:
            self.turns.append(prompt.reopened)

    def commit(self, prompt: Prompt, turn: Turn, answered: int) -> None:
        """Add ``turn``, whose tokens have been appended to ``tokens``; the last ``answered`` ones are its answer."""
        self.turns = [*prompt.turns, CachedTurn(turn, len(self.tokens), answered)]

    def _question(self, question: str, prefix: list[int], asked: str, turns: Sequence[CachedTurn]) -> list[int]:
        """The tokens of a question after ``prefix`` and ``turns``. ``asked``: the template's words after it."""
        first, before = not turns, turns[-1].turn.question if turns else ""
        lead = self.tokenizer.template_words(self.form.after_book if first else self.form.between_turns)
        # If the model ended the previous answer, the answer already contains the token that closes its turn.
        if not first and lead and prefix[-1] == lead[0] and lead[0] in self.end_ids:
            lead = lead[1:]
        words = self.tokenizer.words(self._reminded(question, before))
        return [*lead, *words, *self.tokenizer.template_words(asked)]

    def _reminded(self, question: str, before: str) -> str:
        if self.num_passages:
            return reminded(question, self._passages.about(question, self.num_passages))
        asked = guided(question, self.document, self.pages_read)
        if asked == question and (places := named(question, self.document, self.pages_read)):
            return beside(question, places)
        if self.pointed and asked == question and asks_about_part(question):
            return pointed(question, self._best(question, before), self._passages.language)
        return asked

    def _best(self, question: str, before: str) -> list[str]:
        """Return the best passage for a question; for a question that compares several documents, the best passage of
        each document.
        """
        if 1 < len(self.document.members) <= MOST_COMPARED and asks_about_several(question):
            best = [(title, one.best(question, before)) for title, one in self._passages_of_documents]
            return [f"{title}: {passages[0]}" for title, passages in best if passages]
        return self._passages.best(question, before)


def _in_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Number of equal tokens at the beginning of two texts."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
