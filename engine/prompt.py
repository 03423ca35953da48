"""Prompt assembly: the book first and byte-for-byte stable, the chat after it.

Owns the words around the book and the rule by which a chat template is cut into pieces: a prefix that holds the
book and never changes, and one piece per turn that is appended to it. Because the pieces are tokenized apart, the
tokens of the book are the same for every question, and their KV is computed once. Knows no model and no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

INSTRUCTION = "Answer questions about the book below, using only what it says."

# Stands for the assistant's words while a template is cut. Letters only, so that no template escapes or trims it.
_MARK = "TRIFOLDANSWERMARK"
_QUESTION_MARK = "TRIFOLDQUESTIONMARK"
_BOOK_MARK = "TRIFOLDBOOKMARK"

FALLBACK_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n"
    "{% elif message['role'] == 'user' %}\nQuestion: {{ message['content'] }}\n"
    "{% else %}Answer: {{ message['content'] }}\n{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)
"""For base models, which bring no chat template of their own."""


class Renderer(Protocol):
    """Renders messages to text as the tokenizer's chat template does."""

    def __call__(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str: ...


def book_message(title: str, text: str) -> str:
    """The content of the message that carries the book.

    Args:
        title: the book's title on one line.
        text: the whole text that the model is to read.
    """
    before, after = book_frame(title)
    return f"{before}{text}{after}"


def book_frame(title: str) -> tuple[str, str]:
    """The words of the book's message before and after the text of the book."""
    return f"{INSTRUCTION}\n\n# {' '.join(title.split())}\n\n", ""
