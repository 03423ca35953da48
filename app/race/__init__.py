"""The race: a question answered twice, plainly and hierarchically, and whether the words are the same.

    race = Race(keeper, verified)
    race.start(question)               returns at once
    race.state, race.result            what can be shown

The two runs follow one another on the same book, which is not read again; what is shown later is a replay of both on
one clock. A race whose texts are equal is a real check of losslessness and is remembered (``verified``).
"""

from app.race.lanes import Heat, Lane, Result
from app.race.running import Race, State
from app.race.verified import Verified

__all__ = ["Heat", "Lane", "Race", "Result", "State", "Verified"]
