"""Recognises answers that failed because of the conversation before them: refusals of the model, and repetitions.

declines("I'm sorry, but I can't assist with that.")        True
repeats(summary, summary.replace("chapter", "part"))         True, if the summary is long enough
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from app.language.tokens import RUN

_DECLINES = re.compile(
    r"\W*(?:(?:i(?:['’]m| am) (?:very |really |so )?sorry|sorry|i apologi[sz]e|unfortunately)\b[^.!?]{0,20}?)?"
    r"(?:i (?:can(?:no|['’])t|can not|am unable to|am not able to|won['’]t)|i['’]m (?:unable|not able) to)"
    r" (?:assist|help|do|comply|fulfil+|provide|create|continue|complete|answer)\b"
    r"|\W*(?:as an? (?:ai|artificial|language)\b)"
    r"|\W*(?:es tut mir leid[^.!?]{0,20}?)?(?:ich kann|das kann ich|dabei kann ich)[^.!?]{0,40}\bnicht\b"
    r"|\W*(?:(?:je suis )?désolée?[^.!?]{0,20}?)?je ne peux pas\b",
    re.IGNORECASE,
)
# The first word of every refusal, or a part of it.
_OPENS = re.compile(
    r"\W*(?:(?:i(?:['’]m?)?|sorry|unfortunately|as|es|ich|das|dabei|je|désolée?)(?:\W|$)|[^\W_]*$)", re.IGNORECASE
)
_LONGEST_REFUSAL = 60
"""Maximum number of words of a refusal. A longer answer goes on with something else."""
_ENOUGH = 12
"""Number of words of an answer by which it is known whether it begins as a refusal."""
_FEWEST_WORDS = 15
"""Minimum number of words of an answer that repeats another one: short answers may be alike."""
_MOST_WORDS = 1500
"""Maximum number of words of an answer that are compared."""
_ALIKE = 0.9
"""Minimum share of words that a repetition has in common with the answer that it repeats."""


def declines(answer: str) -> bool:
    """Whether an answer only says that the model does not answer. (An answer that the book does not say something is
    no refusal.)
    """
    return _DECLINES.match(answer) is not None and len(RUN.findall(answer)) <= _LONGEST_REFUSAL


def may_decline(begun: str) -> bool:
    """Whether an answer that begins so, with any number of its words, may only say that the model does not answer."""
    few = len(RUN.findall(begun)) < _ENOUGH
    return declines(begun) or (few and _OPENS.match(begun) is not None)


def repeats(answer: str, earlier: str) -> bool:
    """Whether an answer has nearly the words of an earlier one, in their order."""
    said, before = (RUN.findall(text.casefold())[:_MOST_WORDS] for text in (answer, earlier))
    if min(len(said), len(before)) < _FEWEST_WORDS:
        return False
    match = SequenceMatcher(None, said, before, autojunk=False)
    return match.real_quick_ratio() >= _ALIKE and match.quick_ratio() >= _ALIKE and match.ratio() >= _ALIKE
