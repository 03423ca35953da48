"""Runs an answer in phases: what the model thinks, and then its answer.

    thoughts = Thoughts.of(tokenizer, form, prompt, sampling)
    for event in in_phases(generation, tokens, full, decode, read): ...

Each phase is decoded by the same loops, and so by the same law. Only the border of a phase and the budget of a thought
are chosen here: a phase ends at the token that closes or opens a thought, which is a stop like that at the end of an
answer. A thought whose budget is used up, or that only repeats itself, is closed by the words of its format; the answer
then has plain decoding's distribution after these words. A thought's tokens do not count for the length of the answer,
and neither exact quotations nor a repetition penalty reach from one phase into the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from engine.events import StopReason, Thought
from engine.thinking import ThinkingForm, ThoughtParser

if TYPE_CHECKING:
    from collections.abc import Generator

    from engine.config import SamplingParams
    from engine.events import Event, Figures
    from engine.kv.full import FullCache
    from engine.prompt import BookTokenizer, Prompt


@dataclass
class Thoughts:
    """What a model thinks while it makes one answer.

    Args:
        form: the marks of thoughts, and how the template writes them.
        parser: splits the model's text.
        encode: encodes words of the template.
        marks: the marks that the parser is given by name, keyed by token id.
        stops: tokens that end a phase of thinking.
        budget: maximum tokens of all thoughts of the answer.
        thinks: whether the present phase is one of thinking.
        goes_on: whether a thought that was cut off is continued.
    """

    form: ThinkingForm
    parser: ThoughtParser
    encode: Callable[[str], list[int]]
    marks: Mapping[int, str]
    stops: frozenset[int]
    budget: int
    thinks: bool
    goes_on: bool = False
    text: str = ""
    count: int = 0
    """Number of tokens of the thoughts so far."""
    was_cut: bool = False
    untold: str = ""
    """The end of a thought that was cut, which the next event tells."""

    @classmethod
    def of(
        cls, tokenizer: BookTokenizer, form: ThinkingForm | None, prompt: Prompt, sampling: SamplingParams
    ) -> Thoughts | None:
        """Prepare for the thoughts of an answer. None if its model has none, or if the answer has already begun.

        Args:
            form: the form of the prompt's template.
        """
        if form is None or prompt.begun_tokens:
            return None
        family, ids = form.family, tokenizer.mark_ids(form.family)
        think = form.wants(sampling.think, sampling.think_tokens)
        named = {number: mark for mark, number in ids.items() if family.has_channels or not tokenizer.decode((number,))}
        stops = {ids[mark] for mark in family.borders if mark in ids}
        return cls(
            form,
            ThoughtParser(family, opened=prompt.opened, goes_on=prompt.goes_on, special=frozenset(named.values())),
            tokenizer.template_words,
            named,
            frozenset(stops),
            form.budget(think or prompt.goes_on, sampling.think_tokens),
            thinks=prompt.opened or think or not form.can_stop,
            goes_on=prompt.goes_on,
        )

    @property
    def at_border(self) -> bool:
        """Whether the text so far ends the present phase."""
        return self.parser.answering if self.thinks else self.parser.thinking

    def done(self, figures: Figures) -> Thought | None:
        """The thoughts as they stand in the answer's last event, with their figures; None if there are none."""
        if not self.text.strip() and not self.parser.thinking:
            return None
        return Thought(self.text, figures, self.parser.thinking, self.was_cut)

    def next(self, reason: StopReason, made: int, limit: int) -> list[int] | None:
        """The tokens with which the prompt goes on after a phase, so that the next phase begins; None if the answer has
        ended.

        Args:
            reason: why the phase has ended, if not at a border.
            made: tokens of the phase.
            limit: maximum tokens of the phase.
        """
        if not self.thinks:
            self.thinks = self.parser.thinking
            return [] if self.thinks else None
        if self.parser.answering:
            self.thinks = False
            return []
        if reason is StopReason.END and not (self.goes_on and made <= 1):
            return None
        if reason in (StopReason.END, StopReason.LOOP) or self.count >= self.budget:
            return self._close()
        return None if reason is StopReason.CONTEXT and made >= limit else []

    def take_untold(self) -> str:
        """Return ``untold``, once."""
        untold, self.untold = self.untold, ""
        return untold

    def _close(self) -> list[int]:
        """Close the thought, and return the tokens that do it."""
        family = self.form.family
        words = family.close if self.parser.thinking else family.skip
        self.was_cut = bool(self.count)
        self.untold = self.parser.close().thought
        self.thinks = False
        return self.encode(words)


class PhasedAnswer(Protocol):
    """An answer that is made phase by phase. ``made``: number of its tokens after the prompt, in all phases."""

    made: int

    def next_phase(self) -> list[int] | None:
        """The tokens with which the prompt goes on after a phase; None if the answer has ended."""


def in_phases(
    answer: PhasedAnswer,
    tokens: list[int],
    full: FullCache,
    decode: Callable[[], Generator[Event, None, None]],
    read: Callable[[list[int]], Iterator[object]],
) -> Iterator[Event]:
    """Yield the events of an answer, phase by phase.

    Args:
        tokens: the prompt; the committed tokens are appended.
        full: the cache with the KV of all tokens but the last.
        decode: decodes one phase from ``tokens``, until ``answer`` has reached its end or a border.
        read: prefills tokens after those in the cache.
    """
    start = len(tokens)
    while True:
        with closing(decode()) as events:
            yield from events
        more = answer.next_phase()
        if more is None:
            return
        # tokens of a round after the border of the phase
        del tokens[start + answer.made :]
        full.crop(full.nearest(min(full.length, len(tokens) - 1)))
        tokens += more
        answer.made += len(more)
        for _ in read(tokens[full.length : -1]):
            pass
