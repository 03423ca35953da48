"""Cuts a chat template into the pieces that never change: the words around the book, the questions and the answers.

Finds out too whether the template lets its model think before it answers (``engine.thinking``), and with which words
after a question it does. Templates have a variable for this (``_SWITCHES``), obey a word in the system message
(``_NO_THINK``), or always begin a thought.

A template is a program that is not trusted. So ``engine.foreign`` runs ``chat_format`` in a child process. Needs only
the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from engine.errors import ModelError
from engine.thinking import FAMILIES, NO_THINKING, ThinkingForm, ThoughtMarks

__all__ = ["book_message"]

INSTRUCTION = "Answer questions about the book below, using only what it says."

# Placeholders for the title, the book, the questions and the answer. A template is rendered with them, and the result
# is split where they stand. They consist of letters, so that no template escapes or trims them.
_TITLE_MARK = "TRIFOLDTITLEMARK"
_BOOK_MARK = "TRIFOLDBOOKMARK"
_QUESTION_MARK = "TRIFOLDFIRSTQUESTIONMARK"
_ANSWER_MARK = "TRIFOLDANSWERMARK"
_SECOND_MARK = "TRIFOLDSECONDQUESTIONMARK"
_MOST_WORDS = 1 << 16  # maximum characters of a rendered template, placeholders included

_SWITCHES: Mapping[str, tuple[bool | str, bool | str]] = {
    "enable_thinking": (False, True),
    "thinking": (False, True),
    "reasoning_effort": ("low", "low"),
}
"""Variables of templates with the values that turn thinking off and on. ``reasoning_effort`` has one value, because it
stands before the book, which is read once for all questions.
"""
_NO_THINK = "/no_think"  # a word of the system message that turns thinking off

FALLBACK_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n"
    "{% elif message['role'] == 'user' %}\nQuestion: {{ message['content'] }}\n"
    "{% else %}Answer: {{ message['content'] }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)
"""The chat template for base models, which have no template."""


Renderer = Callable[..., str]
"""Renders messages, each with a role and content, to text as the tokenizer's chat template does. Is called with
``add_generation_prompt`` and the template's variables by name.
"""


def book_message(title: str, text: str) -> str:
    """Make the content of the message that carries the book.

    Args:
        title: the book's title on one line.
        text: the whole text that the model is to read.
    """
    return f"{_book_lead(title)}{text}"


def _book_lead(title: str) -> str:
    """The words before the book's text in the message that carries the book."""
    return f"{INSTRUCTION}\n\n# {_on_one_line(title)}\n\n"


def _on_one_line(title: str) -> str:
    return " ".join(title.split())


@dataclass(frozen=True)
class ChatFormat:
    """A chat template cut into the pieces that never change.

    A chat is ``before_title`` ``title`` ``before_book`` book ``after_book`` question ``after_question`` answer
    ``between_turns`` question ``after_question`` answer ... All pieces except the title come from the template. If the
    model can think, ``thinking.asked`` takes the place of ``after_question`` after the last question, whose answer the
    model is to write.
    """

    before_title: str
    title: str
    before_book: str
    after_book: str
    after_question: str
    between_turns: str
    thinking: ThinkingForm | None = None

    @property
    def pieces(self) -> tuple[str, ...]:
        """The template's pieces, for ``of_pieces``."""
        cut = (self.before_title, self.before_book, self.after_book, self.after_question, self.between_turns)
        return (*cut, *(self.thinking.pieces if self.thinking else NO_THINKING))

    @classmethod
    def of_pieces(cls, pieces: Sequence[str], title: str) -> ChatFormat:
        """Make the format from the template's pieces and a book's title."""
        before_title, before_book, after_book, after_question, between_turns, *thinking = pieces
        cut = before_title, _on_one_line(title), before_book, after_book, after_question, between_turns
        return cls(*cut, ThinkingForm.of_pieces(tuple(thinking)))

    def asked(self, think: bool) -> str:
        """The words between a question and the answer that the model is to write."""
        return self.thinking.asked(think) if self.thinking else self.after_question


PIECES = 5 + len(NO_THINKING)
"""Number of ``ChatFormat.pieces``."""


def chat_format(render: Renderer, title: str, template: str = "") -> ChatFormat:
    """Cut a chat template into pieces around a book.

    The book goes into the system message, if the template renders that message before the conversation. Otherwise the
    book goes to the beginning of the first question. In both places, the text up to the end of the book must stay the
    same at every turn.

    Args:
        render: renders messages by the template. It may raise for roles that the template does not know.
        title: the book's title.
        template: the template's source, which names its variables and marks; "" looks for no thoughts.

    Raises:
        ModelError: the text up to the end of the book changes with the conversation in both places, or the template
            renders too many characters.
    """
    family = next((one for one in FAMILIES if one.is_in(template)), None)
    named = {name: values for name, values in _SWITCHES.items() if name in template}
    off = partial(render, **{name: values[0] for name, values in named.items()})
    found = _around_book(off, title)
    if found is None and named:  # the template breaks at a value that this program gives to a variable
        off, named = partial(render), {}
        found = _around_book(off, title)
    if found is None:
        raise ModelError(
            "This model's chat template does not keep a book in front of the conversation.",
            "Choose another model.",
        )
    if family is None:
        return replace(found.shown, after_question=found.generation)
    on = _around_book(partial(render, **{name: values[1] for name, values in named.items()}), title)
    silent = None
    if _NO_THINK in template and not family.leaves_open(found.generation):
        silent = _around_book(off, title, f"{_NO_THINK}\n")
    return _with_thinking(family, found, on or found, silent or found)


@dataclass(frozen=True)
class _Cut:
    """A template cut into pieces. ``shown``: with the words before an answer in the history of a chat.
    ``generation``: the words after a question that the model is to answer.
    """

    shown: ChatFormat
    generation: str


def _with_thinking(family: ThoughtMarks, off: _Cut, on: _Cut, silent: _Cut) -> ChatFormat:
    """Find out what a template writes so that its model thinks, or does not.

    The text before the book is that of ``off``, because the book is read once for all questions. If the template
    writes another text there for a thought, the thought is begun for the model after the question.

    Args:
        off, on: the template with thinking turned off and on.
        silent: the template with ``_NO_THINK`` in the system message.
    """
    shown = off.shown
    quiet = off.generation if family.closing in off.generation else silent.generation
    loud = on.generation
    switched = quiet != loud or on.shown != off.shown
    if family.has_channels:
        thinking = ThinkingForm(family, on.generation, off.generation, can_stop=False, can_think=True)
        return replace(shown, thinking=thinking)
    if not switched and family.leaves_open(loud):
        thinking = ThinkingForm(family, loud, loud, can_stop=False, can_think=True)
        return replace(shown, thinking=thinking)
    if on.shown != off.shown and not family.leaves_open(loud):
        loud = _without_thought(family, loud) + family.begin
    elif not switched:
        loud += family.begin
    thinking = ThinkingForm(family, loud, quiet, can_stop=True, can_think=True)
    # A turn without a thought keeps the words with which it was asked, so that its KV stays valid.
    return replace(shown, after_question=quiet, thinking=thinking)


def _without_thought(family: ThoughtMarks, words: str) -> str:
    """The words before an empty thought that a template writes after a question."""
    return words[: words.index(family.opening)] if family.opening in words else words


def _around_book(render: Renderer, title: str, before: str = "") -> _Cut | None:
    """Cut a template around a book in the system message or in the first question; None if it keeps a book in neither.

    Args:
        before: words at the beginning of the system message.
    """
    book = f"{before}{_book_lead(_TITLE_MARK)}{_BOOK_MARK}"
    system = ({"role": "system", "content": book},)
    for opening, first in ((system, ""), ((), f"{book}\n\n")):
        found = _cut(render, opening, first, _on_one_line(title))
        if found is not None:
            return found
    return None


def _cut(render: Renderer, opening: Sequence[Mapping[str, str]], lead: str, title: str) -> _Cut | None:
    first = {"role": "user", "content": f"{lead}{_QUESTION_MARK}"}
    answer = {"role": "assistant", "content": _ANSWER_MARK}
    second = {"role": "user", "content": _SECOND_MARK}
    try:
        one = render([*opening, first], add_generation_prompt=True)
        two = render([*opening, first, answer, second], add_generation_prompt=True)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - a template is foreign code and may raise anything
        return None
    if (length := max(len(one), len(two))) > _MOST_WORDS:
        raise ModelError(
            f"This model's chat template writes {length:,} characters around a question.", "Choose another model."
        )
    first_marks = (_TITLE_MARK, _BOOK_MARK, _QUESTION_MARK)
    if any(one.count(mark) != 1 for mark in first_marks):
        return None
    if any(two.count(mark) != 1 for mark in (*first_marks, _ANSWER_MARK, _SECOND_MARK)):
        return None
    before, rest = one.split(_BOOK_MARK)
    if _TITLE_MARK not in before or _QUESTION_MARK not in rest or not two.startswith(one[: one.index(_QUESTION_MARK)]):
        return None
    after_book, generation = rest.split(_QUESTION_MARK)
    before_answer, after_answer = two.split(_ANSWER_MARK)
    between_turns = after_answer.split(_SECOND_MARK)[0]
    before_title, before_book = before.split(_TITLE_MARK)
    in_history = before_answer.split(_QUESTION_MARK)[1]
    shown = ChatFormat(before_title, title, before_book, after_book, in_history, between_turns)
    return _Cut(shown, generation)
