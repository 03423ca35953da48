"""Knows how models mark what they think before they answer, and splits thought from answer, token by token.

A *thought* is the text that a model writes for itself before its answer. Its marks differ by family (``FAMILIES``):

    <think> ... </think> answer                                     Qwen 3, SmolLM3, DeepSeek's distilled models
    [THINK] ... [/THINK] answer                                     Magistral
    <|channel>thought ... <channel|> answer                         Gemma 4
    <|channel|>analysis<|message|> ... <|end|><|start|>assistant<|channel|>final<|message|> answer      gpt-oss

Sources: the chat templates and model cards that the makers publish; for gpt-oss also the harmony format
(https://cookbook.openai.com/articles/openai-harmony), for Gemma 4 its prompt formatting
(https://ai.google.dev/gemma/docs/core/prompt-formatting-gemma4).

``ThinkingForm`` says what a chat template writes so that its model thinks, or does not. ``ThoughtParser`` splits what a
model has written. Only text of the model goes through a parser, so marks in a book's text are never taken for the
model's. Needs only the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.errors import OptionError

__all__ = ["EFFORTS", "PLAIN_TAGS", "ThoughtParser"]

THOUGHT_BUDGET = 4096
"""Maximum tokens of a thought that a person wants, unless the person gives another number."""
UNWANTED_BUDGET = 512
"""Maximum tokens of a thought of a model that cannot be stopped from thinking."""
EFFORTS = {"none": 0, "minimal": 0, "low": 1024, "medium": THOUGHT_BUDGET, "high": 16_384}
"""The budgets of a thought in tokens, keyed by the values of ``reasoning_effort`` in OpenAI's protocol."""

_MOST_THOUGHTS = 8  # thoughts of one answer; further opening marks are words of the answer
_LONGEST_HEADER = 100  # characters before the message of a channel; a longer text is no header, but a thought
_QUOTES = {"`": "`", '"': '"', "'": "'", "\u201c": "\u201d", "\u201e": "\u201c", "\u00ab": "\u00bb"}
"""Quotation marks around a quoted mark: the sign before it, and the sign after it."""


@dataclass(frozen=True)
class ThoughtMarks:
    """How a family of models marks its thoughts.

    Args:
        opening: the mark before a thought; for a family of channels, before a channel's name.
        closing: the mark after a thought; for a family of channels, after a channel's text.
        lead: the words after ``opening`` that name the thought.
        close: the words with which a prompt ends a thought and begins the answer.
        others: further marks of the format, which are never shown.
    """

    opening: str
    closing: str
    lead: str = ""
    close: str = ""
    others: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.opening, self.closing, *self.others)

    @property
    def borders(self) -> tuple[str, ...]:
        """The marks after which the model's text may become its answer."""
        return (self.closing, *((_MESSAGE,) if self.has_channels else ()))

    @property
    def skip(self) -> str:
        """The words with which a prompt begins the answer before any thought."""
        return f"{self.opening}{_FINAL}{_MESSAGE}" if self.has_channels else self.begin + self.close

    @property
    def begin(self) -> str:
        """The words with which a prompt begins a thought."""
        return f"{self.opening}{_MESSAGE_OF_ANALYSIS if self.has_channels else self.lead}"

    @property
    def has_channels(self) -> bool:
        """Whether the model writes each text in a named channel, such as "analysis"; the answer is in "final"."""
        return _MESSAGE in self.others

    def is_in(self, template: str) -> bool:
        """Whether a chat template knows the family's marks."""
        if self.has_channels:
            return self.opening in template and _MESSAGE in template
        return self.closing in template or self.opening in template

    def leaves_open(self, prompt: str) -> bool:
        """Whether a prompt ends within a thought."""
        if self.has_channels:
            return prompt.rstrip().endswith(self.begin)
        return prompt.rfind(self.opening) > prompt.rfind(self.closing)


_START, _MESSAGE, _FINAL = "<|start|>", "<|message|>", "final"
_HEADERS = ("analysis", "commentary", "assistant", _FINAL)
_MESSAGE_OF_ANALYSIS = f"analysis{_MESSAGE}"
_HARMONY = ThoughtMarks(
    "<|channel|>",
    "<|end|>",
    close="<|end|><|start|>assistant<|channel|>final<|message|>",
    others=(_START, _MESSAGE, "<|constrain|>", "<|call|>", "<|return|>"),
)
FAMILIES = (
    _HARMONY,
    ThoughtMarks("<|channel>", "<channel|>", lead="thought\n", close="<channel|>", others=("<|think|>",)),
    ThoughtMarks("[THINK]", "[/THINK]", close="[/THINK]"),
    ThoughtMarks("<think>", "</think>", lead="\n", close="\n</think>\n\n"),
    ThoughtMarks("<seed:think>", "</seed:think>", lead="\n", close="\n</seed:think>\n\n"),
)
"""All known families. A family whose marks contain another family's marks comes first."""
PLAIN_TAGS = FAMILIES[3]
"""The family whose marks most servers leave in an answer."""


@dataclass(frozen=True)
class ThinkingForm:
    """What a chat template writes between a question and what its model writes.

    Args:
        family: the family of the marks.
        on, off: the words if the model is to think, and if it is not.
        can_stop: whether the model can answer without a thought. A thought of a model that cannot gets a budget.
        can_think: whether the template lets the model think on demand.
    """

    family: ThoughtMarks
    on: str
    off: str
    can_stop: bool
    can_think: bool

    @property
    def pieces(self) -> tuple[str, ...]:
        """The form as strings, for ``of_pieces``."""
        return self.family.opening, self.on, self.off, "stops" * self.can_stop, "thinks" * self.can_think

    @classmethod
    def of_pieces(cls, pieces: tuple[str, ...]) -> ThinkingForm | None:
        """Make the form from its ``pieces``; None if they are empty, because the template knows no thoughts."""
        opening, on, off, can_stop, can_think = pieces
        family = next((one for one in FAMILIES if one.opening == opening), None)
        return None if family is None else cls(family, on, off, bool(can_stop), bool(can_think))

    @property
    def sentence(self) -> str:
        """What the model can do, for a person; "" if it cannot think on demand."""
        if not self.can_think:
            return ""
        return "Can think before it answers" if self.can_stop else "Always thinks before it answers"

    def asked(self, think: bool) -> str:
        """The words after a question."""
        return self.on if think else self.off

    def wants(self, think: bool | None, tokens: int | None) -> bool:
        """Whether the model is to think. A thought of no tokens is none."""
        return bool(think) and tokens != 0

    @property
    def opened(self) -> str:
        """The words after a question that end within a thought."""
        return self.on if self.family.leaves_open(self.on) else self.on + self.family.begin

    def budget(self, think: bool, tokens: int | None) -> int:
        """Maximum tokens of a thought. ``tokens``: the number that the person gives; None for none."""
        if think:
            return THOUGHT_BUDGET if tokens is None else tokens
        return 0 if self.can_stop else min(UNWANTED_BUDGET, UNWANTED_BUDGET if tokens is None else tokens)


NO_THINKING = ("",) * 5
"""The pieces of a template that knows no thoughts."""


def check_wanted(form: ThinkingForm | None, think: bool | None) -> None:
    """Refuse a thought that the model cannot have.

    Raises:
        OptionError: the person wants a thought, and the model cannot think on demand.
    """
    if think and (form is None or not form.can_think):
        raise OptionError("This model does not think before it answers.", "Turn “Think first” off.")


class SplitText(NamedTuple):
    """New text of a thought, and new text of the answer after it."""

    thought: str
    answer: str


class ThoughtParser:
    """Splits the text of a model into thought and answer while it grows.

    A thought stands at the beginning. After the answer's first word, no mark opens a thought, so that an answer may
    quote marks. A closing mark between quotation marks or backticks does not end a thought. An opening mark at the
    beginning of a line of a thought opens a thought within it, which needs a closing mark of its own. If the outer
    thought is then never closed, the text after the last closing mark counts as the answer at the end.

    Args:
        family: the marks to look for.
        opened: whether the prompt ends within a thought.
        goes_on: whether this thought has words in the prompt.
        special: the marks that are special tokens. They are given to ``feed`` by name, and never looked for in a text.
    """

    def __init__(
        self,
        family: ThoughtMarks,
        *,
        opened: bool = False,
        goes_on: bool = False,
        special: frozenset[str] = frozenset(),
    ) -> None:
        self.family = family
        self._special = special
        self._held = ""  # text that may be the beginning of a mark
        self._before = "\n"  # the character before ``_held``
        self._depth = int(opened)
        self._lead = ""  # words that may still follow an opening mark, and name the thought
        self._wordless = not goes_on  # whether the present thought or answer has no word yet
        self._answered = False
        self._left = _MOST_THOUGHTS
        self._after_inner: str | None = None  # text of the thought after the last closing mark of an inner one
        self._header: str | None = None  # the header of a channel, while it is read
        self.closed = False
        """Whether a thought has been closed."""

    @property
    def thinking(self) -> bool:
        """Whether the text so far ends within a thought, or between a thought and the answer."""
        return bool(self._depth) or self._header is not None

    @property
    def answering(self) -> bool:
        """Whether the text so far ends within the answer, or after a thought."""
        return not self.thinking and (self._answered or self.closed)

    def feed(self, text: str, mark: str = "") -> SplitText:
        """Add text, and then a mark that is a special token. Returns the text that surely belongs to the thought or to
        the answer; the rest is held back.
        """
        thought, answer = self._add(text)
        if mark:
            more = self._flush()
            thought, answer = thought + more.thought, answer + more.answer
            self._at_mark(mark)
        return SplitText(thought, answer)

    def close(self) -> SplitText:
        """Note that the prompt has ended the thought and begun the answer. Returns what was held back."""
        held = SplitText("", "") if self._header is not None else self._flush()
        self._depth, self._header, self.closed = 0, None, True
        self._wordless, self._after_inner = True, None
        return held

    def end(self) -> SplitText:
        """End the text. Returns what was held back."""
        thought, answer = self._flush(ends=True)
        if self._header and not self._answered and self._header.split()[:1][0] not in _HEADERS:
            answer, self._header = self._header, None
        if self._after_inner and not self._answered:
            answer += self._after_inner.strip()
            self._after_inner, self._answered = None, bool(answer)
        return SplitText(thought, answer)

    # Text ----------------------------------------------------------------------------------------------------------

    def _add(self, text: str) -> SplitText:
        self._held += text
        thought, answer = "", ""
        while (found := self._next_mark()) is not None:
            at, mark = found
            words = self._held[:at]
            more = self._words(words)
            thought, answer = thought + more.thought, answer + more.answer
            self._before = words[-1:] or self._before
            self._held = self._held[at + len(mark) :]
            self._at_mark(mark)
            self._before = mark[-1]
        keep = self._kept()
        words, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        more = self._words(words)
        self._before = words[-1:] or self._before
        return SplitText(thought + more.thought, answer + more.answer)

    def _flush(self, ends: bool = False) -> SplitText:
        """Take the text that is held back as words; at the end of the text, a mark before it as a mark."""
        held, self._held = self._held, ""
        if ends and held == self.family.closing and self._depth:  # a closing mark that waited for a quotation mark
            self._at_mark(held)
            return SplitText("", "")
        self._before = held[-1:] or self._before
        return self._words(held)

    def _looks_for(self) -> tuple[str, ...]:
        if self._depth:
            marks: tuple[str, ...] = (self.family.closing, self.family.opening)
        elif self._wordless:
            marks = (self.family.opening, self.family.closing) if self._left else (self.family.closing,)
        else:
            marks = ()
        return tuple(mark for mark in marks if mark not in self._special and not self.family.has_channels)

    def _next_mark(self) -> tuple[int, str] | None:
        """The place of the next mark that counts, with the mark; None if there is none, or if it is not certain."""
        start = 0
        while True:
            places = [(at, mark) for mark in self._looks_for() if (at := self._held.find(mark, start)) >= 0]
            if not places:
                return None
            at, mark = min(places)
            if not self._depth and self._held[:at].strip():
                return None  # words of the answer come first
            before = self._held[at - 1] if at else self._before
            after = self._held[at + len(mark) : at + len(mark) + 1]
            if self._depth and mark == self.family.closing:
                quote = _QUOTES.get(before)
                if quote is None or (after and after != quote):
                    return at, mark
                if not after:
                    return None
            elif not self._depth or before == "\n" or (self._wordless and not self._held[:at].strip()):
                return at, mark  # within a thought, only an opening mark at the beginning of a line is one
            start = at + len(mark)

    def _kept(self) -> int:
        """Number of characters at the end of the held text that may belong to a mark."""
        held, kept = self._held, 0
        for mark in self._looks_for():
            longest = min(len(held), len(mark) - 1)
            kept = max(kept, next((size for size in range(longest, 0, -1) if held.endswith(mark[:size])), 0))
            if self._depth and mark == self.family.closing and held.endswith(mark):
                before = held[-len(mark) - 1 : -len(mark)] or self._before
                kept = max(kept, len(mark) if before in _QUOTES else 0)
        return kept

    def _words(self, words: str) -> SplitText:
        """Give words to the thought or to the answer, without the white space before its first word."""
        if not words:
            return SplitText("", "")
        if self._header is not None:
            self._header += words
            if len(self._header) <= _LONGEST_HEADER:
                return SplitText("", "")
            words, self._header, self._depth, self._wordless = self._header, None, 1, True
        if self._depth:
            return SplitText(self._of_thought(words), "")
        if self._wordless and (self.closed or not words.strip()):
            # White space before the first word shows nothing, and a thought may follow it.
            words = words.lstrip()
        self._answered = self._answered or bool(words.strip())
        self._wordless = self._wordless and not words.strip()
        return SplitText("", words)

    def _of_thought(self, words: str) -> str:
        if self._wordless:
            words = words.lstrip()
        if self._lead and words:
            if self._lead.startswith(words):  # the name of the thought, over the border of two tokens
                self._lead = self._lead[len(words) :]
                return ""
            words, self._lead = words.removeprefix(self._lead).lstrip(), ""
        self._wordless = self._wordless and not words
        if self._after_inner is not None:
            self._after_inner += words
        return words

    # Marks ---------------------------------------------------------------------------------------------------------

    def _at_mark(self, mark: str) -> None:
        if self.family.has_channels:
            self._at_channel_mark(mark)
        elif mark == self.family.opening:
            self._open()
        elif mark == self.family.closing:
            self._close_one()

    def _open(self) -> None:
        if self._depth:
            # A model that repeats the mark with which the prompt ends has opened nothing.
            self._depth += not self._wordless
        elif not self._answered and self._left:
            self._depth, self._left = 1, self._left - 1
            self._lead, self._wordless = self.family.lead.rstrip(), True

    def _close_one(self) -> None:
        if self._depth > 1:
            self._depth, self._after_inner = self._depth - 1, ""
        elif not self._answered:
            self._depth, self.closed = 0, True
            self._wordless, self._after_inner = True, None

    def _at_channel_mark(self, mark: str) -> None:
        if mark in (self.family.opening, _START):
            self._depth, self._header = 0, ""
        elif mark == _MESSAGE:
            name = (self._header or "").strip().split(" ")[0]
            self._header, self._wordless = None, True
            self._depth = int(name not in (_FINAL, "", "assistant"))
            self.closed = self.closed or not self._depth
        elif mark == self.family.closing:
            self._depth, self._header = 0, ""
