"""Makes questions from the sentences of a text. An answer quotes the sentence word for word, and may add a few words.

Owns the forms: who, what, where, when, why, how many, how long, what is it called, who said it, what was said, and
questions that only name some words of a passage. Works on plain strings; knows no tokens.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from assets.starter.recipe.english import (
    ASKING,
    NAME,
    NUMBER,
    PLACES,
    STOP_WORDS,
    TIME,
    Clause,
    Story,
    reworded,
    spoken_of,
    trimmed,
)


@dataclass(frozen=True)
class Asked:
    """A question about a text, its answer and its form."""

    question: str
    answer: str
    form: str


Made = tuple[str, str] | None
"""A question, and the words after the quotation in its answer."""

TOPIC_FORMS = (
    "What does the book say about {a} and {b}?",
    "What do we read about {a} and {b}?",
    "Where is it about {a} and {b}?",
    "Is there anything about {a} and {b}?",
    "Tell me about {a} and {b}.",
    "Which passage is about {b} and {a}?",
    "What about {a} and {b}?",
    "{a}, {b}?",
    "{a} {b} {c}",
    "Which passage has to do with {c}, {a} and {b}?",
    "Is there a passage with {b}, {c} and {a}?",
    "What is said of {a}, {b} and {c}?",
    "How does {a} come together with {b} and {c}?",
    "What has {a} to do with {b}?",
    "Find something about {b} and {a}.",
)
THING_FORMS = (
    "What does the book say about {np}?",
    "What about {np}?",
    "Tell me about {np}.",
    "What do we learn about {np}?",
    "What is said of {np}?",
    "What is known about {np}?",
    "What happened with {np}?",
    "Describe {np}.",
    "Is {np} mentioned?",
)
SAYING = (
    r"(?:said|cried|answered|replied|asked|exclaimed|whispered|shouted|murmured|continued|added|observed|remarked"
    r"|returned)"
)
_SAID = re.compile(
    rf"[“\"]([^“”\"]{{12,260}}?)[,.!?—-]*[”\"],? (?:{SAYING} ({NAME}|the [a-z]+)|({NAME}|the [a-z]+) {SAYING})\b"
)
_CALLED = re.compile(rf"^(.{{3,60}}?) (?:was|were|is|had been) (?:called|named|known as) (?:the |“|\"|‘)?({NAME})")
_REASON = re.compile(r"^(.{8,120}?),? (because|in order to|so that|on account of|for fear) (.{6,140})$")
_OBJECT = re.compile(
    r"^((?:the|a|an|his|her|their|its|some|no|two|three|four|five|my|another) (?:[a-z-]+ ){0,2}?[a-z-]+)"
    r"((?: (?:to|in|on|at|from|with|into|for|upon|over|under|by|before|after|through|towards?) .*)?)$"
)
_PLACE = re.compile(
    r"^(.*?)\b((?:in|at|on|near|under|beside|behind|into|upon|across|over|by|through|from|to|outside|inside) "
    r"(?:(?:the|a|an|his|her|their|its|my|our) (?:[a-z-]+ ){0,2}([a-z-]+)|([A-Z][a-z]+(?: [A-Z][a-z]+)?)))(.*)$"
)
_COUNTED = re.compile(rf"\b({NUMBER}) ((?:[a-z-]+ )?[a-z]{{2,}}s)\b(.*)$", re.I)
_MEASURES = {
    "miles": "How far", "leagues": "How far", "yards": "How far", "feet": "How high or long", "pounds": "How much",
    "shillings": "How much", "dollars": "How much", "francs": "How much", "years": "How long", "days": "How long",
    "hours": "How long", "minutes": "How long", "weeks": "How long", "months": "How long",
}  # fmt: skip


def who(clause: Clause, rng: random.Random) -> Made:
    part = trimmed(clause.rest)
    if not clause.person or clause.subject in ("he", "she", "the narrator") or len(part.split()) < 2:
        return None
    return f"Who {clause.verb} {spoken_of(part)}?", f"It was {clause.subject}."


def what_object(clause: Clause, rng: random.Random) -> Made:
    match = _OBJECT.match(trimmed(clause.rest))
    if not clause.base or not match or clause.base in ("say", "be"):
        return None
    return f"What {clause.asked}{spoken_of(match[2])}?", f"It was {match[1]}."


def what_done(clause: Clause, rng: random.Random) -> Made:
    """Ask what the subject did. The question ends with the last words of the clause, such as "with the lamp"."""
    part = trimmed(clause.rest)
    tail = re.search(r" ((?:to|in|on|at|from|with|into|for|upon|over|under|before|after) .+)$", part)
    if not clause.base or clause.subject in ("he", "she", "it", "they") or not tail:
        return None
    return f"What did {clause.subject} do {spoken_of(tail[1])}?", ""


def where(clause: Clause, rng: random.Random) -> Made:
    match = _PLACE.match(trimmed(clause.rest, 16))
    if not match or not (match[4] or match[3] in PLACES):
        return None
    head = match[1].strip()
    if not head and not clause.base and clause.verb not in ("was", "were", "is", "are"):
        return None
    place = match[2][0].upper() + match[2][1:]
    return f"Where {clause.asked} {spoken_of(head)}".strip() + "?", f"{place}."


def when(clause: Clause, rng: random.Random) -> Made:
    match = TIME.search(clause.rest)
    if not match:
        return None
    part = trimmed(clause.rest.replace(match[0], "", 1))
    if not part:
        return None
    time = match[1][0].upper() + match[1][1:].rstrip()
    return f"When {clause.asked} {spoken_of(part)}?", f"{time}."


def why(clause: Clause, rng: random.Random) -> Made:
    match = _REASON.match(clause.rest.rstrip('.!?”"'))
    if not match:
        return None
    part = trimmed(match[1])
    if not part:
        return None
    reason = trimmed(match[3], 20) or match[3]
    return f"Why {clause.asked} {spoken_of(part)}?", f"{match[2][0].upper()}{match[2][1:]} {reason}."


def how_many(clause: Clause, rng: random.Random) -> Made:
    match = _COUNTED.match(trimmed(clause.rest, 16)) or _COUNTED.search(trimmed(clause.rest, 16))
    if not match:
        return None
    number, things, tail = match.groups()
    word = _MEASURES.get(things.split()[-1], f"How many {things}")
    head = trimmed(clause.rest, 16)[: match.start()].strip()
    words = " ".join(f"{word} {clause.asked} {head} {tail.strip()}".split())
    return f"{spoken_of(words)}?", f"{number[0].upper()}{number[1:]} {things}."


def what_was(clause: Clause, rng: random.Random) -> Made:
    if clause.verb not in ("was", "is", "were", "are") or clause.subject in ("it", "he", "she", "they", "the narrator"):
        return None
    part = trimmed(clause.rest)
    if not re.match(r"(?:a|an|the|one of|his|her|not|so|very|too|[a-z]+) ", f"{part} "):
        return None
    kind = (
        rng.choice(("Who {v} {s}?", "What do we learn about {s}?"))
        if clause.person
        else rng.choice(("What {v} {s}?", "What {v} {s} like?", "How {v} {s}?"))
    )
    answer = f"{clause.subject} {clause.verb} {part}."
    return kind.format(v=clause.verb, s=clause.subject), answer[0].upper() + answer[1:]


def what_happened(clause: Clause, rng: random.Random) -> Made:
    if clause.subject in ("it", "he", "she", "they", "the narrator") or not clause.base:
        return None
    kind = rng.choice(("What did {s} do?", "What happened to {s}?", "What becomes of {s}?", "What does {s} do?"))
    return kind.format(s=clause.subject), ""


def yes(clause: Clause, rng: random.Random) -> Made:
    part = trimmed(clause.rest)
    if clause.subject in ("it", "they") or len(part.split()) < 2:
        return None
    words = f"did {clause.subject} {clause.base}" if clause.base else f"{clause.verb} {clause.subject}"
    return f"{words[0].upper()}{words[1:]} {spoken_of(part)}?", ""


CLAUSE_FORMS: dict[str, Callable[[Clause, random.Random], Made]] = {
    "why": why,
    "when": when,
    "how many": how_many,
    "where": where,
    "what": what_object,
    "who": who,
    "what was": what_was,
    "what done": what_done,
    "yes": yes,
    "what happened": what_happened,
}
_FRONTS = (
    "According to the book, {q}",
    "Can you tell me {q}",
    "Do you know {q}",
    "In the book, {q}",
    "Tell me, {q}",
    "I would like to know: {q}",
)


SHORTEST_PASSAGE = 10
"""Minimum words of a passage, if another sentence follows it."""
_SAME_WORD = 5
"""Words with this many equal first letters count as forms of the same word."""
_MARKS = '“”"'
_CLOSE = 60
"""Maximum characters between two words of a question in a passage that count as close together."""


def asked_at(story: Story, place: tuple[int, int], question: str, behind: str = "", *, form: str) -> Asked:
    """Make a question about the sentence at `place`. The quoted passage begins at the first words that the sentence
    shares with the question or with the short answer `behind`.

    Reason: a model that reads a text once sees, at each word, only the words before it. It finds the sentence by the
    shared words and can continue the text from there, but it cannot easily go back to the beginning of the sentence.
    """
    start, end = place
    words = story.text[start:end]
    if any(mark in words for mark in _MARKS):
        return Asked(question, answered(words, behind), form)
    wanted = _telling(question) | _telling(behind)
    starts = [word.start() for word in re.finditer(r"[A-Za-z0-9]+", words) if _stem(word[0]) in wanted]
    close = (before for before, after in pairwise(starts) if after - before < _CLOSE)
    met = next(close, starts[0] if starts else 0)
    if len(words[met:].split()) < SHORTEST_PASSAGE:
        further = next((other for other in story.sentences if end <= other[0] <= end + 1), None)
        more = story.text[end : further[1]] if further else ""
        if not any(mark in more for mark in _MARKS + "\n"):
            words += more
    return Asked(question, answered(f"… {words[met:]}", behind), form)


def _telling(words: str) -> set[str]:
    return {_stem(word) for word in re.findall(r"[A-Za-z0-9]+", words) if word.lower() not in STOP_WORDS | ASKING}


def _stem(word: str) -> str:
    return word.lower()[:_SAME_WORD]


def passage(words: str) -> str:
    """Put a passage between quotation marks. If the passage itself begins with a quotation mark, a space separates the
    two marks.
    """
    return f"“ {words}”" if words.startswith("“") else f"“{words}”"


def answered(words: str, behind: str = "") -> str:
    return f"{passage(words)} {behind}".strip()


def varied(question: str, rng: random.Random) -> str:
    """Vary a question as people type: with a synonym, introductory words, a lowercase first letter, or no question
    mark.
    """
    question = reworded(" ".join(question.split()), rng)
    draw = rng.random()
    if draw < 0.10 and re.match(r"(?:Who|What|Where|When|Why|How) ", question):
        question = rng.choice(_FRONTS).format(q=question[0].lower() + question[1:])
    elif draw < 0.22:
        question = question[0].lower() + question[1:]
    if rng.random() < 0.15:
        question = question.rstrip("?.!")
    return question


def clause_questions(story: Story, place: tuple[int, int], rng: random.Random) -> Iterator[Asked]:
    """Yield a question of every form that fits the main clause of a sentence."""
    words = story.text[slice(*place)]
    clause = story.clause(words.rstrip())
    if clause is None:
        return
    for form, make in CLAUSE_FORMS.items():
        made = make(clause, rng)
        if made is not None:
            yield asked_at(story, place, varied(made[0], rng), made[1], form=form)


def name_question(story: Story, place: tuple[int, int], rng: random.Random) -> Asked | None:
    """Make a question about a sentence that tells a name, such as "What was the ship called?"."""
    words = story.text[slice(*place)]
    match = _CALLED.match(words)
    if not match:
        return None
    thing = spoken_of(match[1][0].lower() + match[1][1:]) if not story.is_name(match[1]) else match[1]
    kind = rng.choice(
        ("What was {t} called?", "What is the name of {t}?", "What was the name of {t}?", "What is {t} called?")
    )
    return asked_at(story, place, varied(kind.format(t=thing), rng), f"The name is {match[2]}.", form="called")


def speech_question(story: Story, place: tuple[int, int], rng: random.Random) -> Asked | None:
    """Make a question about spoken words: who said them, or what a speaker said."""
    words = story.text[slice(*place)]
    match = _SAID.search(words)
    if not match:
        return None
    speaker = match[2] or match[3]
    said = match[1].split()
    if speaker.split()[0] in ("He", "She", "They", "I", "It"):
        return None
    draw = rng.random()
    if draw < 0.5:
        start = rng.randrange(max(1, len(said) - 6))
        part = " ".join(said[start : start + rng.randint(4, 8)]).strip(",.;:!?—-’‘'")
        kind = rng.choice(
            (
                "Who said “{p}”?",
                'Who said "{p}"?',
                "Who says {p}?",
                "Who was it that said “{p}”?",
                "Whose words are “{p}”?",
            )
        )
        return Asked(kind.format(p=part), answered(words, f"It was {speaker}."), "who said")
    topics = _rare(story, match[1])
    if draw < 0.8 and topics:
        kind = rng.choice(
            (
                "What did {s} say about {t}?",
                "What does {s} say of {t}?",
                "What did {s} think about {t}?",
                "What did {s} answer about {t}?",
            )
        )
        return Asked(varied(kind.format(s=speaker, t=rng.choice(topics)), rng), answered(words), "what said")
    kind = rng.choice(
        ("What did {s} say?", "What does {s} say?", "What did {s} answer?", "What were the words of {s}?")
    )
    return Asked(varied(kind.format(s=speaker), rng), answered(words), "what said")


def topic_question(story: Story, place: tuple[int, int], rng: random.Random) -> Asked | None:
    """Make a question from some words of a passage, in any order."""
    words = story.text[slice(*place)]
    rare = _rare(story, words)
    if len(rare) < 3:
        return None
    a, b, c = rng.sample(rare, 3)
    kind = rng.choice(TOPIC_FORMS)
    if rng.random() < 0.5 and not kind.startswith("{"):
        a, b, c = (word if word[0].isupper() else f"the {word}" for word in (a, b, c))
    return asked_at(story, place, varied(kind.format(a=a, b=b, c=c), rng), form="topic")


def thing_question(story: Story, place: tuple[int, int], rng: random.Random) -> Asked | None:
    """Ask about a thing whose noun occurs only once in the text."""
    words = story.text[slice(*place)]
    things = re.findall(r"\b(?:[Tt]he|[Aa]n?|his|her|their|my) ((?:[a-z-]{3,} )?[a-z-]{4,})\b", words)
    rare = [thing for thing in things if thing.split()[-1] not in STOP_WORDS and story.counts[thing.split()[-1]] == 1]
    if not rare:
        return None
    question = varied(rng.choice(THING_FORMS).format(np=f"the {rng.choice(rare)}"), rng)
    return asked_at(story, place, question, form="thing")


def _rare(story: Story, words: str) -> list[str]:
    long_words = re.findall(r"\b[A-Za-z]{4,}\b", words)
    return sorted(
        {word for word in long_words[1:] if word.lower() not in STOP_WORDS and story.counts[word.lower()] <= 3}
    )


SENTENCE_FORMS: tuple[Callable[[Story, tuple[int, int], random.Random], Asked | None], ...] = (
    name_question,
    speech_question,
    topic_question,
    thing_question,
)
FORM_WEIGHTS = {"yes": 0.4, "what happened": 0.5, "topic": 1.5, "thing": 1.0, "who": 1.5, "what was": 1.5}
USUAL_WEIGHT = 3.0


class Questions:
    """Draws questions about a text. The form is drawn first, so that forms with few questions are not rare."""

    def __init__(self, story: Story, rng: random.Random) -> None:
        self._rng = rng
        self._by_form: dict[str, list[Asked]] = {}
        for place in story.sentences:
            if story.text.count(story.text[slice(*place)]) > 1:
                continue
            made = [*clause_questions(story, place, rng), *(make(story, place, rng) for make in SENTENCE_FORMS)]
            for asked in made:
                if asked is not None:
                    self._by_form.setdefault(asked.form, []).append(asked)

    def draw(self) -> Asked | None:
        """Draw a question that has not been drawn before; None if none is left."""
        forms = [form for form, asked in self._by_form.items() if asked]
        if not forms:
            return None
        form = self._rng.choices(forms, [FORM_WEIGHTS.get(form, USUAL_WEIGHT) for form in forms])[0]
        left = self._by_form[form]
        return left.pop(self._rng.randrange(len(left)))
