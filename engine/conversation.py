"""A conversation about one book as token ids: what the prompt is, and how much of it the caches already hold.

Bookkeeping over lists of ids. Turns that are in the cache are recognised by their words, so
regenerating, editing, another chat and a restored chat are all the same thing: another history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.document import Document
from engine.prompt import ChatFormat

if TYPE_CHECKING:  # the launcher reads the engine's settings before any package is installed
    from engine.tokenizer import BookTokenizer, BookTokens


@dataclass(frozen=True)
class Turn:
    """One question with its answer."""

    question: str
    answer: str


@dataclass(frozen=True)
class CachedTurn:
    """A turn whose last token is just before ``stop`` in the context."""

    turn: Turn
    stop: int


@dataclass(frozen=True)
class Prompt:
    """``tokens`` of the whole prompt; its first ``reused`` ones are in the caches; ``turns`` are those before it.

    ``reopened`` is the turn whose answer it goes on with, where that is in the caches. Its last ``begun`` tokens are
    of the answer.
    """

    tokens: list[int]
    turns: list[CachedTurn]
    reused: int
    reopened: CachedTurn | None = None
    begun: int = 0


@dataclass
class Conversation:
    """The open book and the turns about it.

    ``read`` tokens of the book are usable; ``tokens`` is the whole committed context.
    """

    tokenizer: BookTokenizer
    document: Document
    book: BookTokens
    form: ChatFormat
    end_ids: frozenset[int]
    read: int = 0
    tokens: list[int] = field(default_factory=list)
    turns: list[CachedTurn] = field(default_factory=list)

    @property
    def pages_read(self) -> int:
        """Pages whose tokens are all usable."""
        return self.book.pages_within(self.read)

    def begin(self, read: int) -> None:
        """Start with ``read`` tokens of the book and no turn."""
        self.read = read
        self.tokens = list(self.book.ids[:read])
        self.turns = []

    def compose(self, question: str, history: Sequence[Turn], begun: str = "") -> Prompt:
        """The prompt that asks ``question`` after ``history``. Changes nothing.

        Args:
            begun: the beginning of the answer, which is to be continued.
        """
        known = self.known(history)
        reused = self.turns[known - 1].stop if known else self.read
        tokens, turns = self.tokens[:reused], self.turns[:known]
        for turn in history[known:]:
            tokens += self._question(turn.question, tokens, first=not turns)
            tokens += self.tokenizer.words(turn.answer)
            turns.append(CachedTurn(turn, len(tokens)))
        if begun and self.turns[known : known + 1] and self.turns[known].turn == Turn(question, begun):
            return self._reopened(known, turns)
        tokens += self._question(question, tokens, first=not turns)
        said = self.tokenizer.words(begun)
        return Prompt(tokens + said, turns, reused, begun=len(said))

    def known(self, history: Sequence[Turn]) -> int:
        """How many turns of ``history``, from the first, are in the caches."""
        known = 0
        while known < min(len(history), len(self.turns)) and self.turns[known].turn == history[known]:
            known += 1
        return known

    def kv_start(self, turn: int) -> int:
        """Tokens of context whose KV was there before the turn at this position came: all but the newest token."""
        return self.turns[turn - 1].stop - 1 if turn else self.read

    def forget_from(self, position: int) -> None:
        """Forget the turn at ``position`` and all after it."""
        self.turns = self.turns[:position]
        self.tokens = self.tokens[: self.turns[-1].stop if self.turns else self.read]

    def recall(self, turn: Turn, ids: Sequence[int]) -> None:
        """Append a turn whose KV has been brought back.

        ``ids`` are its tokens from ``kv_start`` on.
        """
        self.tokens = [*self.tokens[: self.kv_start(len(self.turns))], *ids]
        self.turns = [*self.turns, CachedTurn(turn, len(self.tokens))]

    def _reopened(self, position: int, turns: list[CachedTurn]) -> Prompt:
        """The prompt that goes on with the answer of a turn that is in the cache, token for token."""
        stop, turn = self.turns[position].stop, self.turns[position].turn
        if self.tokens[stop - 1] in self.end_ids:
            stop -= 1
        before = self.tokens[: self.turns[position - 1].stop if position else self.read]
        answer = len(before) + len(self._question(turn.question, before, first=not position))
        return Prompt(self.tokens[:stop], turns, stop, CachedTurn(turn, stop), max(0, stop - answer))

    def rewind(self, prompt: Prompt) -> None:
        """Forget the turns that ``prompt`` does not build on."""
        self.tokens = prompt.tokens[: prompt.reused]
        self.turns = [turn for turn in prompt.turns if turn.stop <= prompt.reused]
        if prompt.reopened is not None:
            self.turns.append(prompt.reopened)

    def commit(self, prompt: Prompt, turn: Turn) -> None:
        """Keep ``turn``, whose tokens have been appended to ``tokens``."""
        self.turns = [*prompt.turns, CachedTurn(turn, len(self.tokens))]

    def _question(self, question: str, before: list[int], *, first: bool) -> list[int]:
        lead = self.tokenizer.template_words(self.form.after_book if first else self.form.between_turns)
        # An answer that ended by itself already carries the token that closes its turn.
        if not first and lead and before[-1] == lead[0] and lead[0] in self.end_ids:
            lead = lead[1:]
        return [*lead, *self.tokenizer.words(question), *self.tokenizer.template_words(self.form.after_question)]
