"""How often the page moves while an answer is written.

Every move is a frame that a browser lays out, paints and composes. Where the engine computes on the processor, that is
time of the engine's: there the page moves more seldom, what moves moves together, and where no graphics card draws the
page either, more seldom still.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine import Status


@dataclass(frozen=True)
class Rhythm:
    """Seconds from one move to the next.

    ``words``: of the live stream, which brings the newest words and whatever else has changed. ``figures``: of what
    need not move with every word. ``layout``: of the whole chat, for then the browser goes through all of it.
    ``settle``: of the chat, when the answer has come a step further, down to its first word. ``silence``: of the chat
    before it, when there is next to nothing to go through.
    """

    words: float
    figures: float
    layout: float
    settle: float
    silence: float = 1.5


OWN = Rhythm(words=0.1, figures=0.4, layout=1.5, settle=0.0)
BESIDE = Rhythm(words=0.2, figures=0.4, layout=4.0, settle=0.25)
SHARED = Rhythm(words=0.6, figures=1.1, layout=4.0, settle=0.25)


def rhythm_of(status: Status, card: bool = False) -> Rhythm:
    """The rhythm of a page beside this engine at work. ``card``: a graphics card draws the page."""
    if status.model is None or status.model.device != "cpu":
        return OWN
    return BESIDE if card else SHARED
