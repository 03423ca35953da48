"""Marks words that a line strikes out, so that the model does not take them for valid: "~~480~~ 520 euros".

Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import re

ON, OFF = "\ufdd0", "\ufdd1"
"""Put around struck text while a block is collected. Unicode reserves them, so no text has them."""

MARK = "~~"
"""Written before and after struck words."""

_LINE = re.compile(r"[^\t\n]*[^\s][^\t\n]*")
_BETWEEN = re.compile(f"{ON}([^{ON}{OFF}]*){OFF}")


def marked(text: str) -> str:
    """Mark a struck text, each line and each column by itself. Blanks at its ends stay outside of the marks."""
    return _LINE.sub(lambda line: line[0].replace(line[0].strip(), f"{MARK}{line[0].strip()}{MARK}", 1), text)


def spelled(text: str) -> str:
    """Replace ``ON`` and ``OFF`` by the marks of struck words."""
    if ON not in text:
        return text
    joined = re.sub(rf"{OFF}(\s*){ON}", r"\1", text)
    return _BETWEEN.sub(lambda found: marked(found[1]), joined).replace(ON, "").replace(OFF, "")
