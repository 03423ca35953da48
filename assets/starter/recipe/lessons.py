"""Makes lessons: a text to read, and rows with questions about the text and their answers.

Owns the mix: the shares of the kinds of questions. A lesson depends only on the seed and its number, so resumed
training makes the same lessons as training without a stop.
"""

from __future__ import annotations

import random
import re
import textwrap
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from assets.demo.recipe.corpus import Book, curl_quotes, random_span
from assets.demo.recipe.questions import NOT_FOUND, absent_turn, phrase_turn
from assets.starter.recipe import facts, talk
from assets.starter.recipe.english import Story
from assets.starter.recipe.forms import Asked, Questions, answered, asked_at, varied
from assets.starter.recipe.prompting import NUM_PASSAGES, Prompter, Row, packed
from engine.passages import WHOLE_PASSAGES, Passages, reminded

CHARS_PER_TOKEN = 4.0
CURLY_SHARE = 0.5
FACTS_PER_TOKENS = 100
MOST_FACTS = 40
"""Tokens of text for each inserted fact, and maximum number of facts."""
SAME_KIND = 3
JOINED_SHARE = 0.5
"""Share of the facts that continue a sentence of the text. Otherwise every passage would begin with the words of its
question, and starting a quotation with these words would always be correct.
"""
FACT_TEXTS = 0.75
"""Share of the texts with invented facts."""
CUT_SHARE, CUT_ANSWER = 0.7, 12
"""Share of the answers that are cut, and the number of tokens that are kept. These tokens already decide which passage
is quoted.
"""
WRAPPED_SHARE, LINE_WIDTHS = 0.5, (45, 60, 72, 90)
"""Share of the texts with broken lines, as in a PDF, and their widths in characters. Lines of answers are not broken.
"""
HEADED_SHARE, TITLED_SHARE = 0.6, 0.3
"""Share of the texts with a heading, and share of the headings in capitals."""
LONGEST_ROW = 384
SHUFFLED_SHARE = 0.15
"""Share of the questions with shuffled passages. Without shuffling, the first passage would be correct too often, and a
model would not read the others.
"""
_KNOWN_BY = 16
_ANSWERED = re.compile(r"“ ?(?:… )?(.*)”([^”]*)", re.DOTALL)
SECOND_TURN = 0.2
NAMED_SHARE, NAMES = 0.6, 12
"""Share of the unanswerable questions that get a name of the text, and the number of names to choose from. Passages
then have the name, but not the answer.
"""
MIX = {
    "form": 0.27,
    "fact": 0.26,
    "phrase": 0.13,
    "absent": 0.19,
    "talk": 0.03,
    "summary": 0.1,
    "continuation": 0.02,
}
IN_THEIR_WORDS = ("phrase", "absent", "talk", "continuation")
"""Kinds whose answers are used as drawn. Answers of all other kinds quote one of the passages."""
PLAIN_FORMS, PLAIN_SHARE = ("topic", "thing", "yes"), 0.4
"""Forms that fit nearly every sentence, and the share of drawn questions of these forms that are asked."""


@dataclass(frozen=True)
class Lesson:
    """A text as token ids of the prompt, and the rows that follow it. `turns`: the questions of each row."""

    book: list[int]
    rows: list[Row]
    turns: list[list[Asked]]


@dataclass
class Library:
    """The books of training, and the verbs of each book."""

    books: list[Book]

    @cached_property
    def _verbs(self) -> dict[str, frozenset[str]]:
        return {}

    def verbs(self, book: Book) -> frozenset[str]:
        """Return the words after "to" in a book: verbs, and a few other words that do no harm."""
        if book.slug not in self._verbs:
            self._verbs[book.slug] = frozenset(re.findall(r"\bto ([a-z]+)\b", book.text))
        return self._verbs[book.slug]


class LessonMaker:
    """Makes lessons from books, in the prompt format of one model."""

    def __init__(self, library: Library, prompter: Prompter, seed: int) -> None:
        self.library, self.prompter, self.seed = library, prompter, seed

    def lesson(self, number: int, text_tokens: int, row_tokens: int) -> Lesson:
        """Make the lesson with this number: a text of about `text_tokens` tokens, and rows that together have at least
        `row_tokens` tokens.
        """
        rng = random.Random(f"{self.seed}/{number}")
        num_chars = int(text_tokens * CHARS_PER_TOKEN)
        books = [book for book in self.library.books if len(book.text) > 2 * num_chars] or self.library.books
        book, text, following = random_span(books, num_chars, rng)
        other_book, other, _ = random_span(self.library.books, max(4000, num_chars // 2), rng)
        if rng.random() < CURLY_SHARE:
            text, following, other = curl_quotes(text), curl_quotes(following), curl_quotes(other)
        text, stated, unsaid = self._with_facts(text, text_tokens, rng)
        if rng.random() < HEADED_SHARE:
            text = f"{heading(book.title, text, rng)}\n\n{text}"
        story = Story(text, self.library.verbs(book))
        makers = _Makers(
            story, stated, unsaid, following, Story(other, self.library.verbs(other_book)), self.library, book, rng
        )
        lines = wrapped(text, rng.choice(LINE_WIDTHS)) if rng.random() < WRAPPED_SHARE else text
        ids = self.prompter.book(book.title, lines)
        places, opening = packed(ids), self.prompter.opening
        passages = self.prompter.passages(lines)
        rows: list[Row] = []
        turns: list[list[Asked]] = []
        while sum(len(row.ids) for row in rows) < row_tokens:
            drawn = [makers.draw() for _ in range(2 if rng.random() < SECOND_TURN else 1)]
            beside = [with_passages(one, passages, rng) for one in drawn]
            asked = [one for one in beside if one is not None]
            if not asked:
                continue
            most = CUT_ANSWER if rng.random() < CUT_SHARE and asked[-1].form != "summary" else None
            row = self.prompter.row([(one.question, one.answer) for one in asked], most)
            if len(row.ids) <= LONGEST_ROW:
                turns.append(asked)
                rows.append(row.looking(places, opening))
        return Lesson(ids, rows, turns)

    def _with_facts(
        self, text: str, text_tokens: int, rng: random.Random
    ) -> tuple[str, list[facts.Stated], list[facts.Stated]]:
        """Insert invented facts at random places. Returns the text, the inserted facts, and facts of the same kinds
        that were left out.
        """
        if rng.random() > FACT_TEXTS:
            return text, [], [facts.draw(rng) for _ in range(4)]
        drawn: list[facts.Stated] = []
        while len(drawn) < min(MOST_FACTS, max(2, text_tokens // FACTS_PER_TOKENS)):
            drawn += facts.same_kind(rng, rng.randint(1, SAME_KIND))
        kept = [fact for fact in drawn if rng.random() < 0.8]
        unsaid = [fact for fact in drawn if fact not in kept]
        stated: list[Any] = []
        for fact in kept:
            # Two facts with the same question would contradict each other.
            if any(set(fact.questions) & set(other.questions) for other in stated):
                continue
            ends = [match.end() for match in re.finditer(r"[a-z][.!?](?=[ \n])", text)]
            if not ends:
                break
            place = rng.choice(ends)
            if rng.random() < JOINED_SHARE:
                fact = replace(fact, sentence=facts.joined(fact.sentence))
                text = f"{text[: place - 1]}; {fact.sentence}{text[place:]}"
            else:
                text = f"{text[:place]} {fact.sentence}{text[place:]}"
            stated.append(fact)
        return text, stated, unsaid


def with_passages(asked: Asked, passages: Passages, rng: random.Random) -> Asked | None:
    """Add passages to a question. The answer quotes the right passage. Return None if the passages lack it."""
    found = passages.about(asked.question, NUM_PASSAGES)
    if asked.form == "summary":
        whole = len(found) == WHOLE_PASSAGES
        return (
            replace(asked, question=reminded(asked.question, found), answer=talk.summarized(found)) if whole else None
        )
    if rng.random() < SHUFFLED_SHARE:
        rng.shuffle(found)
    question, quoted = reminded(asked.question, found), _ANSWERED.fullmatch(asked.answer)
    if asked.form in IN_THEIR_WORDS or quoted is None:
        return replace(asked, question=question)
    begins = " ".join(quoted[1].split())[:_KNOWN_BY]
    passage = next((passage for passage in found if begins in passage), None)
    return replace(asked, question=question, answer=answered(passage, quoted[2].strip())) if passage else None


def heading(title: str, text: str, rng: random.Random) -> str:
    """Make a random heading from the title, a number or a few words of the text, sometimes in capitals."""
    words = rng.choice(re.findall(r"[^\n]+", text)).split()[: rng.randint(2, 8)]
    number = rng.randint(1, 2030)
    lines = (
        title,
        f"{title}: {' '.join(words)}",
        f"{title}, {number}",
        f"{number}. {' '.join(words)}",
        " ".join(words),
    )
    line = rng.choice(lines).rstrip(".,;:!?-")
    return line.upper() if rng.random() < TITLED_SHARE else line


def wrapped(text: str, width: int) -> str:
    """Break paragraphs into lines of at most `width` characters."""
    return "\n".join(
        textwrap.fill(block, width, break_long_words=False, break_on_hyphens=False) for block in text.split("\n")
    )


@dataclass
class _Makers:
    """Draws questions about one text."""

    story: Story
    stated: list[facts.Stated]
    unsaid: list[facts.Stated]
    following: str
    other: Story
    library: Library
    book: Book
    rng: random.Random
    done: set[str] = field(default_factory=set)

    @cached_property
    def _questions(self) -> Questions:
        return Questions(self.story, self.rng)

    @cached_property
    def _elsewhere(self) -> list[Questions]:
        """Make questions about another book, and questions about the later text of this book."""
        later = self.following[len(self.following) // 4 :]
        return [Questions(self.other, self.rng), Questions(Story(later, self.story.verbs), self.rng)]

    def draw(self) -> Asked:
        """Draw a question of a kind drawn from MIX. If the text has no such question, another kind is drawn."""
        while True:
            kind = self.rng.choices(list(MIX), list(MIX.values()))[0]
            asked: Asked | None = getattr(self, f"_{kind}")()
            if asked is not None and (asked.question not in self.done or kind == "talk"):
                self.done.add(asked.question)
                return asked

    def _form(self) -> Asked | None:
        asked = self._questions.draw()
        plain = asked is not None and asked.form in PLAIN_FORMS
        return None if plain and self.rng.random() > PLAIN_SHARE else asked

    def _fact(self) -> Asked | None:
        if not self.stated:
            return None
        fact = self.rng.choice(self.stated)
        place = self.story.text.find(fact.sentence)
        around = [one for one in self.story.sentences if one[0] <= place and place + len(fact.sentence) <= one[1]]
        if not around:
            return None
        question = varied(self.rng.choice(fact.questions), self.rng)
        return asked_at(self.story, around[0], question, fact.answer, form="fact")

    def _phrase(self) -> Asked | None:
        """Make a question with words of the text. The answer quotes from these words to the end of the sentence."""
        turn = phrase_turn(self.story.text, self.rng)
        if turn is None or turn.span is None:
            return None
        return Asked(turn.question, re.sub("^“…? ?", "“… ", turn.answer), "phrase")

    def _absent(self) -> Asked | None:
        draw = self.rng.random()
        if draw < 0.3:
            turn = absent_turn(self.story.text, self.other.text, self.rng)
            return Asked(turn.question, NOT_FOUND, "absent") if turn else None
        if draw < 0.55 and self.unsaid:
            question = self._named(self.rng.choice(self.rng.choice(self.unsaid).questions))
            if any(question in other.questions for other in self.stated):
                return None
            return Asked(varied(question, self.rng), NOT_FOUND, "absent")
        asked = self._elsewhere[0 if draw < 0.85 else 1].draw()
        if asked is None:
            return None
        elsewhere = self._named(asked.question)
        return Asked(elsewhere, NOT_FOUND, "absent") if self._is_absent(elsewhere) else None

    @cached_property
    def _names(self) -> list[str]:
        """Return the most frequent names of the text: words that are capitalised within sentences and never in
        lowercase.
        """
        large = re.findall(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b", self.story.text)
        counts = Counter(word for word in large if word.lower() not in self.story.small_words)
        return [name for name, _ in counts.most_common(NAMES)]

    def _named(self, question: str) -> str:
        """In some questions about other texts, replace a name by a name of this text."""
        names = list(re.finditer(r"(?<=[a-z,] )[A-Z][a-z]{2,}\b", question))
        if not names or not self._names or self.rng.random() > NAMED_SHARE:
            return question
        name = self.rng.choice(names)
        return question[: name.start()] + self.rng.choice(self._names) + question[name.end() :]

    def _is_absent(self, question: str) -> bool:
        """Whether the text lacks a long word of a question."""
        words = [word.lower() for word in re.findall(r"[A-Za-z]{5,}", question)[1:]]
        return any(self.story.counts[word] == 0 for word in words)

    def _talk(self) -> Asked | None:
        return talk.small_talk(self.rng)

    def _summary(self) -> Asked | None:
        return talk.summary(self.rng)

    def _continuation(self) -> Asked | None:
        return talk.continuation(self.following, self.rng)
