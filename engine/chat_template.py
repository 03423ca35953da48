"""Cuts a chat template into the pieces that never change: the words around the book, the questions and the answers.

A template is a program that is not trusted. So ``engine.foreign`` runs ``chat_format`` in a child process. Needs only
the standard library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from engine.errors import ModelError

INSTRUCTION = "Answer questions about the book below, using only what it says."

# Placeholders for the title, the book, the questions and the answer. A template is rendered with them, and the result
# is split where they stand. They consist of letters, so that no template escapes or trims them.
_TITLE_MARK = "TRIFOLDTITLEMARK"
_BOOK_MARK = "TRIFOLDBOOKMARK"
_QUESTION_MARK = "TRIFOLDFIRSTQUESTIONMARK"
_ANSWER_MARK = "TRIFOLDANSWERMARK"
_SECOND_MARK = "TRIFOLDSECONDQUESTIONMARK"
_MOST_WORDS = 1 << 16  # maximum characters of a rendered template, placeholders included

FALLBACK_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n"
    "{% elif message['role'] == 'user' %}\nQuestion: {{ message['content'] }}\n"
    "{% else %}Answer: {{ message['content'] }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)
"""The chat template for base models, which have no template."""


class Renderer(Protocol):
    """Renders messages to text as the tokenizer's chat template does."""

    def __call__(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str: ...


def book_message(title: str, text: str) -> str:
    """Make the content of the message that carries the book.

    Args:
        title: the book's title on one line.
        text: the whole text that the model is to read.
    """
    before, after = book_frame(title)
    return f"{before}{text}{after}"


def book_frame(title: str) -> tuple[str, str]:
    """The words before the book's text in the message that carries the book, and those after it, which are none."""
    return f"{INSTRUCTION}\n\n# {_on_one_line(title)}\n\n", ""


def _on_one_line(title: str) -> str:
    return " ".join(title.split())


@dataclass(frozen=True)
class ChatFormat:
    """A chat template cut into the pieces that never change.

    A chat is ``before_title`` ``title`` ``before_book`` book ``after_book`` question ``after_question`` answer
    ``between_turns`` question ``after_question`` answer ... All pieces except the title come from the template.
    """

    before_title: str
    title: str
    before_book: str
    after_book: str
    after_question: str
    between_turns: str

    @property
    def pieces(self) -> tuple[str, ...]:
        """The template's pieces, in the order of the arguments of ``of_pieces``."""
        return (self.before_title, self.before_book, self.after_book, self.after_question, self.between_turns)

    @classmethod
    def of_pieces(cls, pieces: Sequence[str], title: str) -> ChatFormat:
        """Make the format from the template's pieces and a book's title."""
        before_title, *others = pieces
        return cls(before_title, _on_one_line(title), *others)


def chat_format(render: Renderer, title: str) -> ChatFormat:
    """Cut a chat template into pieces around a book.

    The book goes into the system message, if the template renders that message before the conversation. Otherwise the
    book goes to the beginning of the first question. In both places, the text up to the end of the book must stay the
    same at every turn.

    Args:
        render: renders messages by the template. It may raise for roles that the template does not know.
        title: the book's title.

    Raises:
        ModelError: the text up to the end of the book changes with the conversation in both places, or the template
            renders too many characters.
    """
    before, after = book_frame(_TITLE_MARK)
    book = f"{before}{_BOOK_MARK}{after}"
    system = ({"role": "system", "content": book},)
    for opening, lead in ((system, ""), ((), f"{book}\n\n")):
        found = _cut(render, opening, lead, _on_one_line(title))
        if found is not None:
            return found
    raise ModelError(
        "This model's chat template does not keep a book in front of the conversation.",
        "Choose another model.",
    )


def _cut(render: Renderer, opening: Sequence[Mapping[str, str]], lead: str, title: str) -> ChatFormat | None:
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
    after_book, after_question = rest.split(_QUESTION_MARK)
    between_turns = two.split(_ANSWER_MARK)[1].split(_SECOND_MARK)[0]
    before_title, before_book = before.split(_TITLE_MARK)
    return ChatFormat(before_title, title, before_book, after_book, after_question, between_turns)
