"""Questions about a text and the answers that quote it.

Owns the wordings, the choice of the quoted passage (from the searched words to the end of their sentence), and the
answer if the text lacks the words. Works on strings, not on tokens. An answer is an ellipsis and the passage, word for
word, between curly quotes. The first word of a passage is written as in the question, with or without a space before
it, so that its tokens are the same.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import cache

NOT_FOUND = "The book does not say that."
ONLY_QUOTES = "I can only find passages and quote them. Give me a few words that stand in the book."
"""Answer to a question that asks for more than a passage, such as a summary, an opinion or a greeting."""
MOST_CHAPTERS = 60
MAX_PASSAGE_CHARS = 420
KEY_WORDS = (3, 8)
ABBREVIATIONS = (
    "Mr",
    "Mrs",
    "Dr",
    "St",
    "Messrs",
    "Capt",
    "Col",
    "Gen",
    "Hon",
    "Rev",
    "Esq",
    "vol",
    "No",
    "Mme",
    "Mlle",
)

PHRASE_QUESTIONS = (
    'Find: "{key}"',
    "Find: {key}",
    'Find "{key}".',
    "Find the passage: {key}",
    'Where does it say "{key}"?',
    "Where does the book say that {key}?",
    'Where is "{key}"?',
    'Quote "{key}".',
    'Quote the passage with "{key}".',
    "Quote the passage about {key}.",
    "What does the book say about {key}?",
    'What does the book say about "{key}"?',
    'What comes after "{key}"?',
    "How does it go on after {key}?",
    "{key}?",
    "“{key}”",
    "Tell me about {key}.",
    "What about {key}?",
    "Which passage speaks of {key}?",
    "Where does it say that {key}?",
    "Where does it say that {key}?",
    "What does it say about {key}?",
    "What is said about {key}?",
    "Find the words {key}",
    "Find the words “{key}”.",
    "Where does it say “{key}”?",
    "Does the book say {key}?",
    "Does it say that {key}?",
    "Is there anything about {key}?",
    "Show me {key}.",
    "Please find {key}",
    "Can you find {key}?",
    "Can you quote the part about {key}?",
    "Search for {key}",
)
NAME_QUESTIONS = (
    "Who is {key}?",
    "Who was {key}?",
    "Where is {key} named?",
    "What is {key}?",
    "Introduce {key}.",
    "What happens to {key}?",
    "What happens to {key}?",
    "What becomes of {key}?",
    "What happens to {key} in the end?",
    "Who is {key}?",
    "Tell me who {key} is.",
    "What do we learn about {key}?",
)
OPEN_QUESTIONS = (
    "Summarize {what}.",
    "Summarise {what}",
    "Summarize {what} in three sentences.",
    "Please summarize {what}.",
    "Can you summarise {what}?",
    "Give me a summary of {what}.",
    "Write a summary of {what}",
    "Sum up {what}.",
    "Outline {what}.",
    "What is {what} about?",
    "What's {what} about?",
    "What happens in {what}?",
    "What happened in {what}?",
    "Tell me about {what}.",
    "Tell me what happens in {what}",
    "Explain {what}.",
    "Explain {what} to me",
    "Describe {what}.",
    "How does {what} begin?",
    "How does {what} start?",
    "How does {what} end?",
    "Quote the beginning of {what}.",
    "What is the first sentence of {what}?",
    "What is the main idea of {what}?",
    "What is the moral of {what}?",
    "What are the themes of {what}?",
    "What can we learn from {what}?",
    "What do you think of {what}?",
    "Did you like {what}?",
    "Is {what} any good?",
    "Who wrote {what}?",
    "Who is the author of {what}?",
    "Who is the hero of {what}?",
    "Who are the main characters in {what}?",
    "List the characters of {what}.",
    "Make a list of the people in {what}",
    "Name the places in {what}.",
    "Where does {what} take place?",
    "When does {what} take place?",
    "When was {what} written?",
    "How long is {what}?",
    "Write a review of {what}.",
    "Translate {what} into French.",
    "Rewrite {what} as a poem.",
    "What is the best part of {what}?",
    "Why should I read {what}?",
)
WHOLES = (
    "the book",
    "this book",
    "the story",
    "this story",
    "the novel",
    "the text",
    "this",
    "it",
    "everything",
    "the plot",
    "the whole book",
    "the first chapter",
    "the last chapter",
    "the second chapter",
    "the next chapter",
    "the ending",
    "the beginning",
    "the first page",
    "chapter {number}",
    "Chapter {number}",
    "chapters 1 to {number}",
    "part {number}",
    "page {number}",
)
SMALL_TALK = (
    "Hello",
    "Hello!",
    "Hi",
    "Hi there!",
    "Hey",
    "Good morning.",
    "Good evening!",
    "How are you?",
    "Who are you?",
    "What are you?",
    "What is your name?",
    "What can you do?",
    "What can I ask you?",
    "What should I ask?",
    "How does this work?",
    "How do I use this?",
    "Can you help me?",
    "Help",
    "Help me, please.",
    "Thanks",
    "Thank you!",
    "Great, thank you.",
    "Good bye",
    "Ok",
    "Yes",
    "No",
    "Why?",
    "Why is that?",
    "Really?",
    "Are you sure?",
    "That is wrong.",
    "What do you mean?",
    "Can you explain that?",
    "Tell me more.",
    "Say something.",
    "Tell me a joke.",
    "Write a poem.",
    "What time is it?",
    "What is the weather like?",
    "Do you speak French?",
    "test",
    "What do you think?",
    "Did you read the book?",
    "Ask me a question.",
    "Who is who?",
    "Why did he do that?",
    "What happened then?",
    "And then?",
)
UNTRAINED_OPEN_QUESTIONS = (
    "Give a short overview of chapter 3.",
    "What is this novel all about?",
    "Can you sum up the whole story for me?",
    "Shorten chapter 2 to one sentence",
    "Which characters are in the book?",
    "Is it a happy ending?",
    "Good day!",
    "Are you a robot?",
    "How does the first chapter begin?",
    "What is the title of the book?",
)
"""Not trained on, so that what is measured with them is not known by heart."""
CONTINUE_REQUESTS = (
    "Continue the story.",
    "Continue.",
    "Continue the book in its own style.",
    "Write the next page.",
    "Go on.",
    "How does the story go on?",
    "Continue the story, please.",
    "Please continue.",
    "Write on.",
    "Continue from here.",
    "Write more of the story.",
    "What comes next?",
)

_SENTENCE_END = re.compile(r"[.!?]+[\"'”’)\]_]*(?=\s|$)")
_NAME = re.compile(r"(?<=[a-z,;] )(?:[A-Z][a-z]{2,}(?: [A-Z][a-z]{2,}){0,2})\b")


@dataclass(frozen=True)
class Turn:
    """One question and its answer. `span`: start and end of the quoted passage in the text; None without a quotation.
    `key`: index in the question of the searched words; -1 if there are none.
    """

    question: str
    answer: str
    span: tuple[int, int] | None = None
    key: int = -1


def quoted(passage: str, *, whole: bool = False, space: str = " ") -> str:
    """Write a passage as an answer. `whole`: whether the passage starts at the start of its sentence."""
    return f"“{passage}”" if whole else f"“…{space}{passage}”"


def sentence_end(text: str, start: int) -> int | None:
    """Find the end (exclusive) of the sentence around `start`. Returns None if the end is too far away or the text
    stops first.
    """
    limit = min(len(text), start + MAX_PASSAGE_CHARS)
    paragraph = text.find("\n\n", start, limit)
    for match in _SENTENCE_END.finditer(text, start, limit if paragraph < 0 else paragraph):
        word = re.search(r"(\w+)$", text[max(0, match.start() - 12) : match.start()])
        abbreviated = word and (word[1] in ABBREVIATIONS or (len(word[1]) == 1 and word[1].isupper()))
        if match.end() < limit and not abbreviated:
            return match.end()
    return paragraph if paragraph > 0 else None


def random_key(text: str, rng: random.Random) -> tuple[int, str] | None:
    """Pick a random place in `text`. Return it with the next few words, which occur only once in the text; None if the
    words there are not suitable.
    """
    start = text.find(" ", rng.randrange(max(1, len(text) - 80))) + 1
    num_words = rng.randint(*KEY_WORDS)
    match = _words(num_words).match(text, start)
    if not match or start == 0 or "\n\n" in match[0] or _SENTENCE_END.search(match[0][:-1]):
        return None
    key = match[0].rstrip(".,;:!?\"'”’)—-")
    if len(key) < 10 or not key[0].isalnum() or text.count(key) != 1:
        return None
    return start, key


@cache
def _words(count: int) -> re.Pattern[str]:
    return re.compile(r"\S+(?:[ \n]\S+){" + str(count - 1) + "}")


def phrase_turn(text: str, rng: random.Random) -> Turn | None:
    """Make a question with words of the text. The answer runs from these words to the end of their sentence."""
    found = random_key(text, rng)
    if found is None:
        return None
    start, key = found
    end = sentence_end(text, start + len(key) - 1)
    if end is None or end - start > MAX_PASSAGE_CHARS:
        return None
    return _asked(PHRASE_QUESTIONS, key, text[start:end], rng, (start, end))


def name_turn(text: str, rng: random.Random) -> Turn | None:
    """Make a question about a name. The answer is a passage with the name."""
    match = _NAME.search(text, rng.randrange(max(1, len(text) - 400)))
    if not match:
        return None
    start, end = match.start(), sentence_end(text, match.end() - 1)
    if end is None or end - start < len(match[0]) + 8:
        return None
    return _asked(NAME_QUESTIONS, match[0], text[start:end], rng, (start, end))


def absent_turn(text: str, other: str, rng: random.Random) -> Turn | None:
    """Make a question about words that `text` lacks: words of another book, or the halves of two different phrases put
    together.
    """
    kind = rng.random()
    if kind < 0.2:
        match = _NAME.search(other, rng.randrange(max(1, len(other) - 400)))
        if not match or match[0].split()[-1] in text:
            return None
        return _asked(NAME_QUESTIONS, match[0], None, rng)
    found = random_key(other, rng)
    if found is None:
        return None
    key = found[1]
    if kind > 0.75:
        near = random_key(text, rng)
        if near is None:
            return None
        words, others = near[1].split(), key.split()
        half = rng.randint(1, len(words) - 1)
        key = " ".join(words[:half] + others[-max(2, len(words) - half) :])
    if " ".join(key.split()) in text:
        return None
    return _asked(PHRASE_QUESTIONS, key, None, rng)


def open_turn(rng: random.Random) -> Turn:
    """Make a question that no passage answers: about a whole book or chapter, or small talk."""
    if rng.random() < 0.3:
        question = rng.choice(SMALL_TALK)
    else:
        what = rng.choice(WHOLES).format(number=rng.randint(1, MOST_CHAPTERS))
        question = rng.choice(OPEN_QUESTIONS).format(what=what)
    question = question.rstrip("?.!") if rng.random() < 0.15 else question
    return Turn(question[0].lower() + question[1:] if rng.random() < 0.2 else question, ONLY_QUOTES)


def continued(words: str) -> str:
    """Write an answer that continues the text. The answer begins with three full stops, not with the ellipsis that
    starts a quotation.

    Without this fixed beginning, the model would have to begin with the next word of the text. Many words are possible
    there, so each has a low probability. The first word of another kind of answer would then be the most probable.
    """
    return f"... {words}"


def all_wordings() -> list[str]:
    """Return all fixed wordings, because the vocabulary is trained on them too."""
    lines = [line.format(key="a word") for line in PHRASE_QUESTIONS + NAME_QUESTIONS]
    lines += [line.format(what="the book") for line in OPEN_QUESTIONS]
    return [
        *lines,
        *SMALL_TALK,
        *CONTINUE_REQUESTS,
        NOT_FOUND,
        ONLY_QUOTES,
        quoted("a word."),
    ]


def _asked(
    wordings: tuple[str, ...], key: str, passage: str | None, rng: random.Random, span: tuple[int, int] | None = None
) -> Turn:
    key = " ".join(key.split())
    wording = rng.choice(wordings)
    wording = wording.rstrip("?.") if rng.random() < 0.1 else wording
    place = wording.index("{key}")
    space = " " if wording[:place].endswith(" ") else ""
    answer = NOT_FOUND if passage is None else quoted(passage, space=space)
    return Turn(wording.format(key=key), answer, span, place)
