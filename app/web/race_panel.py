"""Shows the race in the browser. A race answers questions with plain decoding and with fast decoding, and compares the
runs.

The live stream has the race's progress, and the badge that says that a check has passed on this machine. A route
returns the recording of both runs with the verdict. All texts about a race are made here. The page states that it shows
a replay of two runs, and states a slowdown as plainly as a speedup.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from app.core import format, speed
from app.core.format import View
from app.core.race import FAST, Race, RaceQuestion, RaceResult, RaceRun, RaceState, Verified, mean_ms
from app.core.state import AppState
from app.web.routes import PageRoute, RequestBody, Text, parsed
from engine.errors import InputError, TrifoldError

_BODY = 64 << 10  # maximum bytes of a request's body

NAMES = {"plain": "Plain", "hierarchical": "Fast"}
_NOTES = {"plain": "piece by piece", "hierarchical": "guess ahead, check, stay exact"}
_LIVE = "Both live, in turns. Each clock counts its own run alone."
_WITH_LOOKUP = "guess ahead, also from the book; check; stay exact"
REPLAY = "A replay of two runs, made in turns on this text, on one clock from the first token on."
_REPLAY_OF_SEVERAL = "A replay of two runs, made in turns on this text, on one clock from each first token on."


class RaceAsked(RequestBody):
    question: Text = ""


class RacePanel:
    """Serves the race. A self-contained part of the page (``app.web.live.Panel``).

    Args:
        state: the state of the program.
        race: runs races.
        verified: the checks that passed on this machine.
    """

    def __init__(self, state: AppState, race: Race, verified: Verified) -> None:
        self._state = state
        self._race = race
        self._verified = verified

    def routes(self) -> Sequence[PageRoute]:
        return PageRoute("GET", "/race", self.recording), PageRoute("POST", "/race", self.start, _BODY)

    def view(self) -> View:
        return {"race": self._progress(), "verified": self._badge()}

    async def start(self, request: Request) -> Response:
        try:
            self._race.start((await parsed(request, RaceAsked)).question)
        except TrifoldError as error:
            status = 400 if isinstance(error, InputError) else 409
            return JSONResponse({"cause": error.cause, "remedy": error.remedy}, status_code=status)
        return JSONResponse({})

    async def recording(self, request: Request) -> Response:
        """The two runs of the last race, for the replay."""
        result = self._race.result
        if result is None:
            return JSONResponse({"cause": "No race was run yet.", "remedy": "Start one."}, status_code=404)
        return JSONResponse(recording(result, self._has_lookup()))

    def _has_lookup(self) -> bool:
        config = self._state.engine.config
        return config is not None and config.num_lookup_tokens > 0

    def _progress(self) -> View:
        race, result, book = self._race.state, self._race.result, self._state.current.book
        view: View = {
            "possible": self._race.possible,
            "running": race.running,
            "question": race.question,
            "line": "",
            "trouble": None,
            "done": 0,
        }
        if race.running:
            begun = race.fast.steps or race.plain.steps
            view["line"] = _LIVE if begun else race.before or "Reading the question…"
            if race.question_at:
                view["line"] = f"Question {race.question_at + 1}. {view['line']}"
            view["lanes"] = self._lanes(race)
        elif race.trouble is not None:
            view["trouble"] = f"{race.trouble.cause} {race.trouble.remedy}".strip()
        elif result is not None and book is not None and result.book == book.sha256:
            view["done"] = result.number
            view["line"] = verdict(result)
        return view

    def _lanes(self, race: RaceState) -> list[View]:
        """Both runs as they are shown while the race runs. ``share``: how much of the answer there is, from 0 to 1."""
        done = [len(run.token_ids) for run in (race.fast, race.plain) if run.done]
        length = max(done, default=self._race.most_tokens)
        return [
            {
                **_names(run.mode, self._has_lookup()),
                "text": run.text,
                "clock": f"{run.ms / 1000:.1f} s" if run.steps else "",
                "share": min(1.0, len(run.token_ids) / max(1, length)),
            }
            for run in (race.plain, race.fast)
        ]

    def _badge(self) -> View | None:
        record = self._verified.of(self._state.engine.status().model)
        if record is None:
            return None
        how = "a race" if record.how == "race" else "a self-test"
        day = time.strftime("%d %B %Y", time.localtime(record.when)).lstrip("0")
        return {
            "line": "verified on this machine",
            "detail": f"Fast decoding gave the same {format.counted(record.tokens, 'token')} as plain "
            f"decoding in {how} on {day}, with these models on this machine.",
        }


def verdict(result: RaceResult) -> str:
    """The result of a race in one line, such as "identical 192/192 tokens, 1.4 times faster".

    If the speed was measured over several answers, the line states their number.
    """
    words = f"{result.same:,}/{result.tokens:,} tokens"
    if not result.identical:
        return f"the texts part: identical {words}, then different"
    if not result.counted:
        return f"identical {words}, no speed to compare"
    times = speed.speed_in_words(result.times)
    if len(result.counted) > 1 and result.times is not None:
        return f"identical {words}, {times}, over {len(result.counted)} answers"
    return f"identical {words}, {times}"


def recording(result: RaceResult, lookup: bool = False) -> View:
    """The data of the replay. ``lookup``: whether the fast run also proposed words from the book."""
    shown = result.shown
    runs = [_run_view(mode, shown, lookup) for mode in ("plain", FAST)]
    more = len(shown) - 1
    return {
        "number": result.number,
        "question": shown[0].question,
        "more": f"… and {more} more" if more else "",
        "runs": runs,
        "same": result.same,
        "identical": result.identical,
        "verdict": verdict(result),
        "detail": detail(result),
        "replay": _REPLAY_OF_SEVERAL if more else REPLAY,
    }


def detail(result: RaceResult) -> str:
    """Explain the verdict in a few sentences."""
    if not result.identical:
        return (
            "Greedy decoding takes the likeliest token. Where two are almost equally likely, the rounding of a pass "
            "over one token and of a pass over several can decide differently; from there on the texts go their own "
            "ways, and their times cannot be compared. Up to there they are the same."
        )
    told = ["Every token is the same: guessing ahead changed the time and nothing else."]
    if result.times is not None and speed.speed_in_words(result.times).endswith("slower"):
        told.append("Here it did not pay: the guesses were kept too seldom, or the text is too short for the gain.")
    if result.times is None and result.counted:
        told.append("The machine had other work during one of the runs, so the times say nothing. Race again later.")
    if result.is_substitute:
        told.append("No answer of this chat is sure to rest on the text: a suggested question was taken instead.")
    return " ".join([*told, *_left_out(result)])


_APART = {
    speed.REFUSED: ("{} was no answer from the book", "{} were no answers from the book"),
    speed.CIRCLES: ("{} repeated itself", "{} repeated themselves"),
    speed.REPEATS: ("{} repeated an earlier one", "{} repeated an earlier one"),
}


def _left_out(result: RaceResult) -> list[str]:
    """State which answers do not count for the speed, and whether suggested questions replaced them."""
    kinds = [one.uncounted for one in result.questions if one.uncounted]
    counts = [(words, kinds.count(kind)) for kind, words in _APART.items() if kind in kinds]
    said = [words[number > 1].format(format.counted(number, "answer")) for words, number in counts]
    if not said:
        return []
    rest = "suggested questions were raced instead" if result.counted else "equal in both runs, no measure of speed"
    return [f"{', '.join(said)}: {rest}."]


def _names(mode: str, lookup: bool) -> View:
    return {"name": NAMES[mode], "note": _WITH_LOOKUP if lookup and mode == FAST else _NOTES[mode]}


def _run_view(mode: str, raced: Sequence[RaceQuestion], lookup: bool) -> View:
    """Return the runs of one mode as data. The field ``questions`` holds for each question its text, the time when it
    begins, and the steps of its answer as (time, text). Times are milliseconds since the first run began.
    """
    runs: list[RaceRun] = [one.fast if mode == FAST else one.plain for one in raced]
    mean = mean_ms(tuple(runs))
    questions, before = [], 0.0
    for run, one in zip(runs, raced, strict=True):
        steps = [[round(before + ms, 2), text] for ms, text in run.steps]
        questions.append({"question": one.question, "begins": round(before, 2), "steps": steps})
        before += run.ms
    return {
        **_names(mode, lookup),
        "questions": questions,
        "tokens": sum(len(run.token_ids) for run in runs),
        "ms": round(before, 2),
        "pace": f"{format.milliseconds(mean)} per token" if mean else "",
    }
