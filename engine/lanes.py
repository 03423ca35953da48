"""Lets a speculative answer and a plain run of the same prompt take turns, so that both can be watched at once.

Both lanes begin with the book and the prompt in the same full cache. The lane whose own clock shows less has the next
turn. So both lanes are shown at about the same time of their own clocks, and a slow moment of the machine slows both.
Before a turn, the tokens that the other lane has added to the cache are copied to host memory, and the lane's own
tokens are put back. A lane computes exactly what it would compute alone.

The time in which a lane does not decode does not count in its figures (``Generation.skip``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine.events import AnswerDone, PlainLane, TextDelta, ThoughtDelta

if TYPE_CHECKING:
    from engine.events import Event
    from engine.generation import Generation
    from engine.kv.full import FullCache, Tail

_TURN_S = 0.1
"""Minimum seconds of a turn, so that the copies between two turns take little time. A person sees both lanes move."""


@dataclass
class Lane:
    """One of two answers that take turns.

    Args:
        events: the answer's events, made by decoding ``tokens``.
        generation: the answer.
        tokens: the prompt, and the committed tokens.
        tail: the lane's tokens in the cache, while the other lane has its turn.
    """

    events: Generator[Event, None, None]
    generation: Generation
    tokens: list[int]
    tail: Tail
    own_s: float = 0.0
    ended: bool = False
    _left: float = field(default_factory=time.perf_counter)

    def turn(self, other: Lane) -> Iterator[Event]:
        """Decode until this lane's own clock is ``_TURN_S`` ahead of the other lane's, or until the end."""
        until = math.inf if other.ended else other.own_s + _TURN_S
        while not self.ended:
            began = time.perf_counter()
            self.generation.skip(began - self._left)
            event = next(self.events, None)
            self._left = time.perf_counter()
            self.own_s += self._left - began
            if event is None:
                self.ended = True
            else:
                yield event
            if self.own_s >= until:
                return


def take_turns(full: FullCache, fast: Lane, plain: Lane) -> Generator[Event, None, None]:
    """Yield the events of both lanes. The cache must hold the prompt, and holds the tokens of ``fast`` at the end."""
    current = fast
    with closing(fast.events), closing(plain.events):
        try:
            while not (fast.ended and plain.ended):
                lane = min((one for one in (fast, plain) if not one.ended), key=lambda one: one.own_s)
                if lane is not current:
                    current = _switch(full, current, lane)
                for event in lane.turn(plain if lane is fast else fast):
                    yield from _told(event, lane, plain)
                if lane is plain and plain.ended:
                    yield from _last(full, plain)
        finally:
            if current is not fast:
                full.replace_tail(fast.tail)


def _switch(full: FullCache, old: Lane, new: Lane) -> Lane:
    """Exchange the tokens of two lanes in the cache, and return the new current lane."""
    old.tail = full.tail(old.tail.start)
    full.replace_tail(new.tail)
    return new


def _told(event: Event, lane: Lane, plain: Lane) -> Iterator[Event]:
    if lane is not plain:
        yield event
    elif isinstance(event, TextDelta | ThoughtDelta):
        yield PlainLane(event)


def _last(full: FullCache, plain: Lane) -> Iterator[Event]:
    """The last events of the plain run."""
    kv_bytes, count = full.kv_bytes(), len(plain.tokens)
    for event in (*plain.generation.flush(kv_bytes, count), plain.generation.done(kv_bytes, count)):
        if isinstance(event, TextDelta | ThoughtDelta | AnswerDone):
            yield PlainLane(event)
