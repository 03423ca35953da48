"""Says whether a text ends as a sentence does. Where sentences end within a text is found by
``engine.languages.sentence_ends``, because prompts need that too.
"""

from __future__ import annotations

import re

_CLOSING = r"[\"'”’“»«)\]*_]*"
_ENDED = re.compile(rf"[.!?…。！？؟]{_CLOSING}$")
# A line that is printed may also end with a colon, a semicolon, or the number of a note.
_LINE_ENDED = re.compile(rf"[.!?:;…。！？؟]{_CLOSING}(?:\d{{1,3}}|\[\d{{1,3}}\])?$")


def is_ended(sentence: str) -> bool:
    """Whether a sentence ends with a full stop, an exclamation mark or a question mark."""
    return _ENDED.search(sentence) is not None


def is_line_ended(line: str) -> bool:
    """Whether the next line of a paragraph may begin something new, because this line ends a sentence or announces the
    next line with a colon.
    """
    return _LINE_ENDED.search(line.rstrip()) is not None
