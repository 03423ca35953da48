"""Requests that do not ask for a passage: small talk, and requests to summarize or to continue the text.

Works on strings, not on tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from assets.demo.recipe.questions import CONTINUE_REQUESTS
from assets.starter.recipe.forms import Asked, passage

_FILE = Path(__file__).with_name("talk.txt")
_SUMMARY_REQUESTS = (
    "Summarize {what}.", "Summarise {what}", "Summarize {what} in three sentences.", "Please summarize {what}.",
    "Can you summarise {what}?", "Give me a summary of {what}.", "Write a summary of {what}", "Sum up {what}.",
    "What is {what} about?", "What is {what} about?", "What's {what} about?", "What happens in {what}?",
    "Tell me what happens in {what}", "What are the main points of {what}?", "Give me the gist of {what}.",
    "Tell me about {what}.", "Describe {what}.", "What is the main topic of {what}?", "What is the subject of {what}?",
    "Give me a short overview of {what}.", "What are the main points?", "Give me a summary.", "Summary", "tl;dr",
)  # fmt: skip
_WHOLES = (
    "the book", "this book", "the story", "this story", "the text", "this text", "this", "it", "what you have read",
    "this document", "the document", "this report", "the report", "this paper", "this article",
)  # fmt: skip
_SUMMARY_LEADS = ("The text begins:", "Then:", "Later:")
_TYPED = 0.3
"""Share of the requests in lowercase, and of those without the mark at the end."""
_CONTINUATION_WORDS = (30, 60)


@cache
def load() -> tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]:
    """Read the wordings of small talk, and the replies."""
    wordings = []
    for block in _FILE.read_text(encoding="utf-8").split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith("#")]
        said = [line for line in lines if not line.startswith("> ")]
        replies = tuple(line[2:] for line in lines if line.startswith("> "))
        wordings.append((tuple(said[0].split(" | ")), replies))
    return tuple(wordings)


def small_talk(rng: random.Random) -> Asked:
    wordings, replies = rng.choice(load())
    return Asked(rng.choice(wordings), rng.choice(replies), "talk")


def summary(rng: random.Random) -> Asked:
    """Make a request for a summary. `summarized` makes the answer."""
    question = rng.choice(_SUMMARY_REQUESTS).format(what=rng.choice(_WHOLES))
    if rng.random() < _TYPED:
        question = question.rstrip(".?")
    return Asked(question.lower() if rng.random() < _TYPED else question, "", "summary")


def summarized(passages: Sequence[str]) -> str:
    """Make a summary from passages that represent the whole text."""
    leads = zip(_SUMMARY_LEADS, passages, strict=True)
    return " ".join(f"{lead} {passage(words)}" for lead, words in leads)


def continuation(following: str, rng: random.Random) -> Asked | None:
    """Make a request to continue the text. The answer is the text that follows; None if too little follows."""
    words = following.split()
    count = rng.randint(*_CONTINUATION_WORDS)
    return Asked(rng.choice(CONTINUE_REQUESTS), " ".join(words[:count]), "continuation") if len(words) > count else None
