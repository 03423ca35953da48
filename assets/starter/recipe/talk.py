"""What is not a question for a passage: small talk, and requests for a summary or for how the text goes on.

Works on plain strings; knows no tokens.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

from assets.demo.recipe.questions import CONTINUE_REQUESTS
from assets.starter.recipe.english import STOP_WORDS, Story
from assets.starter.recipe.forms import Asked, passage

_FILE = Path(__file__).with_name("talk.txt")
_SUMMARY_REQUESTS = (
    "Summarize {what}.", "Summarise {what}", "Summarize {what} in three sentences.", "Please summarize {what}.",
    "Can you summarise {what}?", "Give me a summary of {what}.", "Write a summary of {what}", "Sum up {what}.",
    "What is {what} about?", "What's {what} about?", "What happens in {what}?", "Tell me what happens in {what}",
    "Tell me in short what {what} says.", "What are the main points of {what}?", "Give me the gist of {what}.",
)  # fmt: skip
_WHOLES = (
    "the book",
    "this book",
    "the story",
    "this story",
    "the text",
    "this text",
    "this",
    "it",
    "what you have read",
)
_PARTS = (
    ("The text begins:", "Later:", "At the end:"),
    ("It begins so:", "Then:", "It ends so:"),
    ("First:", "Then:", "At last:"),
)
_CONTINUATION_WORDS = (30, 60)


@cache
def load() -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Wordings of small talk with the replies to them."""
    found = []
    for block in _FILE.read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith("#")]
        said = [line for line in lines if not line.startswith("> ")]
        replies = tuple(line[2:] for line in lines if line.startswith("> "))
        found.append((tuple(said[0].split(" | ")), replies))
    return tuple(found)


def small_talk(rng: random.Random) -> Asked:
    wordings, replies = rng.choice(load())
    return Asked(rng.choice(wordings), rng.choice(replies), "talk")


def summary(story: Story, rng: random.Random) -> Asked | None:
    """A request for a summary, answered by a telling sentence from each third of the text."""
    third = len(story.text) // len(_PARTS[0])
    parts = []
    for number, lead in enumerate(rng.choice(_PARTS)):
        places = [place for place in story.sentences if number * third <= place[0] < (number + 1) * third]
        if not places:
            return None
        best = max(places, key=lambda place: _weight(story, story.text[slice(*place)]))
        parts.append(f"{lead} {passage(story.text[slice(*best)])}")
    question = rng.choice(_SUMMARY_REQUESTS).format(what=rng.choice(_WHOLES))
    return Asked(question, " ".join(parts), "summary")


def continuation(following: str, rng: random.Random) -> Asked | None:
    """A request for how the text goes on, answered as it does."""
    words = following.split()
    count = rng.randint(*_CONTINUATION_WORDS)
    return Asked(rng.choice(CONTINUE_REQUESTS), " ".join(words[:count]), "continuation") if len(words) > count else None


def _weight(story: Story, sentence: str) -> float:
    """How much of what the text often speaks of stands in a sentence, for its length."""
    words = {word.strip(".,;:!?“”\"'’").lower() for word in sentence.split()} - STOP_WORDS
    often = sum(min(story.counts[word], 6) for word in words if len(word) > 3)
    return often / (8 + len(sentence.split())) if sentence[0].isupper() else 0.0
