"""Chooses the bench's books, and makes the prompts of every workload from one book's tokens. Also names the bundled
models and book.

``prose`` continues the book. ``quote`` asks for passages of the book, one after another from the same cache.
``followup`` asks about another place of the book after a first answer. The retrieval cache still holds the chunks that
were chosen for the first question, so this workload measures how well chunks are chosen again. ``summary``,
``question`` and ``explain`` ask what people ask: for a summary of the text, about names in it, and to explain what
happens at some of its places.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.document import Document, Page
from engine.errors import InputError
from engine.prompt import BookTokenizer

ASSETS = Path(__file__).resolve().parents[2] / "assets"
TARGET, DRAFT = (str(ASSETS / "demo" / name) for name in ("target", "draft"))
SAMPLE = ASSETS / "sample" / "the-lamplighters-of-orre.txt"

CHATS = ("summary", "question", "explain")
WORKLOADS = ("prose", "quote", "followup", *CHATS)
# A book is held back from training if the hash of its name is divisible by this number: about 5 % of all books.
_HOLD_OUT_EVERY = 20
# Number of words that a question quotes from the beginning of a sentence.
_KEY_WORDS = 6
# Places in the book about which questions are asked, as shares of the book's length. ``_SPREAD`` gives the places of
# further questions.
_DEPTHS = (0.4, 0.15, 0.85, 0.62)
_SPREAD = 0.618  # golden ratio, whose multiples modulo 1 are spread evenly and do not repeat
# Number of tokens after a place in the book (``_DEPTHS``), among which the sentence to ask about is chosen.
_REACH = 400
# Maximum words of a sentence that a question asks about, because the demo model does not quote longer sentences.
_MOST_WORDS = 60
# Matches a name: a capitalised word after a lower-case letter or a comma. So the first words of sentences and headings
# do not match.
_NAMES = re.compile(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b")
# ``_MARKS``: characters that are stripped from both ends of an answer. ``_ENDS``: the endings of a complete sentence.
_MARKS, _ENDS = "“”… ", (".", "!", "?", ".’", "!’", "?’", '."', '!"', '?"', ".'", "!'", "?'")
# Maximum tokens of the first answer in the workload ``followup``.
_FIRST_ANSWER = 48
# Maximum tokens of a question, including the words of the chat template around it.
_LONGEST_QUESTION = 128
# Maximum tokens of a pass that is timed after a prompt and before its answer. The window needs room for these tokens.
_TIMED = 16


def tokens_behind(workloads: Sequence[str], tokens: int) -> int:
    """Maximum number of tokens that the workloads add after the book. ``tokens`` is the maximum length of an answer."""
    asked = {"prose": 0, "followup": 2 * _LONGEST_QUESTION + _FIRST_ANSWER}
    return max(asked.get(workload, _LONGEST_QUESTION) for workload in workloads) + max(tokens, _TIMED)


def _name_hash(book: Path) -> int:
    return int(hashlib.sha256(book.stem.encode()).hexdigest(), 16)


def is_held_back(book: Path) -> bool:
    """Whether a book was held back from the training of the bundled models, by the rule of
    ``assets/demo/recipe/corpus.py``.
    """
    return _name_hash(book) % _HOLD_OUT_EVERY == 0


def held_back_books(folder: Path) -> list[Path]:
    """The books (.txt) of a folder that were held back from training, sorted by the hash of their names, so that the
    order favours no book.
    """
    return sorted((book for book in folder.glob("*.txt") if is_held_back(book)), key=_name_hash)


def open_text(path: Path) -> Document:
    """Open a text file as a document of one page."""
    return Document(path.stem, "", (Page(1, "1", path.read_text(encoding="utf-8")),), "text", "")


@dataclass(frozen=True)
class Case:
    """One prompt whose continuation is decoded.

    Args:
        prompt: tokens of the whole prompt.
        selection_position: position in the prompt before which the newest tokens' queries choose the retrieval cache's
            first chunks. It is the end of the prompt, except in ``followup``.
        ends: whether the model may end its answer; otherwise the answer has exactly the requested number of tokens.
        key: the words that a question quotes; "" in other workloads.
    """

    prompt: list[int]
    selection_position: int
    ends: bool
    key: str = ""


class Workloads:
    """Makes prompts from one book.

    Args:
        ids: tokens of the beginning of the chat template and of the book.
        tokenizer: the target's tokenizer.
        answer: called with a prompt and a number; returns a greedy answer of at most this number of tokens.
    """

    def __init__(
        self, ids: Sequence[int], tokenizer: BookTokenizer, answer: Callable[[list[int], int], list[int]]
    ) -> None:
        self._ids = list(ids)
        self._tokenizer = tokenizer
        self._answer = answer
        self._form = tokenizer.format_for("Bench")
        self._text = 0, ""  # (context, text of the book's first ``context`` tokens), cached for ``is_quotation``

    def cases(self, workload: str, context: int, questions: int = len(_DEPTHS)) -> list[Case]:
        """Make the cases of a workload on the first ``context`` tokens of the book. "quote" and each of ``CHATS`` have
        at most ``questions`` cases, other workloads have one.

        Raises:
            InputError: the book has fewer than ``context`` tokens.
        """
        if context > len(self._ids):
            raise InputError(
                f"The book has {len(self._ids):,} tokens, and a context of {context:,} was asked for.",
                "Choose a longer book (--book) or a shorter context.",
            )
        book = self._ids[:context]
        if workload == "prose":
            return [Case(book, len(book), ends=False)]
        if workload in CHATS:
            prompts = [[*book, *self._question(asked, self._form.after_book)] for asked in self._chats(workload, book)]
            return [Case(prompt, len(prompt), ends=True) for prompt in prompts[:questions]]
        spread = [0.05 + 0.9 * (number * _SPREAD % 1) for number in range(questions - len(_DEPTHS))]
        keys = [self._key(book, depth) for depth in (*_DEPTHS, *spread)]
        asked = [f"Where does it say “{key}”?" for key in keys]
        prompts = [[*book, *self._question(question, self._form.after_book)] for question in asked]
        if workload == "quote":
            pairs = list(zip(prompts, keys, strict=True))[:questions]
            return [Case(prompt, len(prompt), ends=True, key=key) for prompt, key in pairs]
        first = [*prompts[0], *self._answer(prompts[0], _FIRST_ANSWER)]
        second = self._question(asked[2], self._form.between_turns)
        # The tokens ``second`` begin with the token that closes the first answer's turn. If the model ended that answer
        # itself, the answer has this token already, so it is left out of ``second``.
        return [Case([*first, *second[int(first[-1] == second[0]) :]], len(prompts[0]), ends=True)]

    def is_quotation(self, case: Case, context: int, answer: Sequence[int]) -> bool:
        """Whether an answer is the book's own text, begins with the words that the question quotes, and ends at the end
        of a sentence.
        """
        said = " ".join(self._tokenizer.decode(answer).split()).strip(_MARKS)
        if self._text[0] != context:
            self._text = context, " ".join(self._tokenizer.decode(self._ids[:context]).split())
        return said.startswith(case.key) and said in self._text[1] and said.endswith(_ENDS)

    def _question(self, question: str, lead: str) -> list[int]:
        tokenizer = self._tokenizer
        end = tokenizer.template_words(self._form.after_question)
        return [*tokenizer.template_words(lead), *tokenizer.words(question), *end]

    def _chats(self, workload: str, book: list[int]) -> list[str]:
        """Make the questions of one of the workloads ``CHATS``: what a person might ask about the book."""
        if workload == "summary":
            return ["What is this text about? Go through it chapter by chapter."]
        if workload == "explain":
            keys = [self._key(book, depth) for depth in _DEPTHS]
            return [f"Explain in your own words what happens where it says “{key}”." for key in keys]
        forms = ("Who is {}?", "What does {} want?", "How does {} know the others?", "What happens to {}?")
        return [form.format(name) for form, name in zip(forms, self._names(book), strict=False)]

    def _names(self, book: list[int]) -> list[str]:
        """Return the names that are most frequent in the book: as many as ``_DEPTHS`` has places."""
        counts = Counter(_NAMES.findall(self._tokenizer.decode(book)))
        return [name for name, _ in counts.most_common(len(_DEPTHS))]

    def _key(self, book: list[int], depth: float) -> str:
        """Return the first ``_KEY_WORDS`` words of a sentence of the book.

        The sentence is chosen among ``_REACH`` tokens of the book that begin at ``depth``, from 0 (the book's start) to
        1 (its end): the longest sentence of at most ``_MOST_WORDS`` words or, if all sentences have more words, the
        longest of all.
        """
        start = int(len(book) * depth)
        text = self._tokenizer.decode(book[start : start + _REACH])
        sentences = [sentence.split() for sentence in text.replace("! ", ". ").replace("? ", ". ").split(". ")[1:-1]]
        good = [words for words in sentences if len(words) <= _MOST_WORDS]
        return " ".join(max(good or sentences or [text.split()], key=len)[:_KEY_WORDS])
