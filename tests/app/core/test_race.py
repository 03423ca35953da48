"""The race: two runs compared token for token, said in honest words, remembered only when it held."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core.race import Race, RaceQuestion, RaceResult, RaceRun, Verified
from app.core.state import AppState
from app.web import race
from engine.errors import Busy, InputError
from engine.events import Failed, StopReason
from tests.app.scripted import ScriptedEngine, figures, model_info, wait_for

Make = Callable[..., AppState]
ANSWER = " ".join(f"word{number}" for number in range(24))


def run(mode: str, ids: tuple[int, ...], mean: float = 10.0) -> RaceRun:
    measured = replace(figures(len(ids), mode), ms_per_token_mean=mean)
    return RaceRun(mode, ((mean, "a"),), ids, measured, StopReason.END)


def result(plain: tuple[int, ...], fast: tuple[int, ...], times: float = 2.0) -> RaceResult:
    return RaceResult(1, "0" * 64, 0.0, (asked(plain, fast, times),))


def asked(plain: tuple[int, ...], fast: tuple[int, ...], times: float = 2.0, question: str = "Who?") -> RaceQuestion:
    return RaceQuestion(question, run("plain", plain, 10.0 * times), run("hierarchical", fast, 10.0))


@pytest.mark.parametrize(
    ("plain", "fast", "same", "identical"),
    [
        ((1, 2, 3), (1, 2, 3), 3, True),
        ((1, 2, 3), (1, 9, 3), 1, False),
        ((1, 2), (1, 2, 3), 2, False),
        ((), (), 0, False),
    ],
)
def test_tokens_are_compared_one_by_one(
    plain: tuple[int, ...], fast: tuple[int, ...], same: int, identical: bool
) -> None:
    found = result(plain, fast)
    assert (found.same, found.identical) == (same, identical)
    assert found.times == (pytest.approx(2.0) if found.tokens else None)


@pytest.mark.parametrize(
    ("times", "said"),
    [
        (2.94, "2.9 times faster"),
        (1.03, "equally fast"),
        (0.97, "equally fast"),
        (0.5, "2.0 times slower"),
        (None, "speed not measured"),
    ],
)
def test_slower_is_called_slower(times: float | None, said: str) -> None:
    assert race.speed(times) == said


def test_the_verdict_and_what_is_said_when_the_texts_part() -> None:
    assert race.verdict(result((1, 2, 3), (1, 2, 3), 1.42)) == "identical 3/3 tokens, 1.4 times faster"
    parted = result((1, 2, 3), (1, 5, 3))
    assert race.verdict(parted) == "the texts part: identical 1/3 tokens, then different"
    assert "almost equally likely" in race.detail(parted)
    assert "did not pay" in race.detail(result((1, 2), (1, 2), 0.8))
    assert "replay of two runs" in race.recording(parted)["replay"]
    assert "from the book" not in race.recording(parted)["lanes"][1]["note"]
    assert "from the book" in race.recording(parted, lookup=True)["lanes"][1]["note"]


def test_a_race_asks_twice_greedily_and_is_remembered(ready: Make, tmp_path: Path) -> None:
    engine = ScriptedEngine(answer=ANSWER, word_seconds=0.001)
    state = ready(engine)
    verified = Verified(tmp_path / "verified.json")
    race = Race(state, verified)
    race.start("Who kept the light?")
    assert race.state.running
    with pytest.raises(Busy):
        race.start("Who?")
    wait_for(lambda: not race.state.running)
    assert race.state.trouble is None
    assert [(question, history, mode) for question, history, _, mode in engine.asked] == [
        ("Who kept the light?", (), "plain"),
        ("Who kept the light?", (), "hierarchical"),
    ]
    assert {(sampling.temperature, sampling.seed) for _, _, sampling, _ in engine.asked} == {(0.0, None)}
    found = race.result
    assert found is not None
    assert (found.same, found.identical) == (24, True)
    plain = found.plain[0]
    assert "".join(text for _, text in plain.steps) == ANSWER
    assert [at for at, _ in plain.steps] == sorted(at for at, _ in plain.steps)
    assert plain.ms == pytest.approx(24 * 41.0)
    assert state.chat is not None
    assert state.chat.exchanges == ()
    assert not state.current.asking
    record = Verified(tmp_path / "verified.json").of(model_info())
    assert record is not None
    assert (record.how, record.tokens) == ("race", 24)


QUESTIONS = ("Who kept the light?", "Who was drowned?", "Where was the goose?", "When?", "Why?", "How?")


@pytest.mark.parametrize(("words", "asked"), [(24, 4), (40, 3), (96, 1)])
def test_a_short_answer_is_followed_by_further_questions(
    ready: Make,
    tmp_path: Path,
    words: int,
    asked: int,
) -> None:
    engine = ScriptedEngine(answer=" ".join(["word"] * words), word_seconds=0.0)
    race = Race(ready(engine), Verified(tmp_path / "verified.json"), lambda: QUESTIONS)
    race.start(QUESTIONS[0])
    wait_for(lambda: not race.state.running)
    expected = [(question, mode) for question in QUESTIONS[:asked] for mode in ("plain", "hierarchical")]
    assert [(question, mode) for question, _, _, mode in engine.asked] == expected
    found = race.result
    assert found is not None
    assert (found.same, found.tokens) == (asked * words, asked * words)


def test_several_questions_are_replayed_one_behind_the_other_on_one_clock() -> None:
    found = RaceResult(1, "0" * 64, 0.0, (asked((1, 2), (1, 2), 4.0), asked((3, 4, 5), (3, 4, 5), 1.5, "Where?")))
    assert found.times == pytest.approx((2 * 40.0 + 3 * 15.0) / (5 * 10.0))
    told = race.recording(found)
    assert told["question"] == "Who? … and 1 more"
    assert "replay of two runs" in told["replay"]
    assert "from each first token on" in told["replay"]
    plain = told["lanes"][0]
    assert [(part["question"], part["begins"]) for part in plain["heats"]] == [("Who?", 0.0), ("Where?", 80.0)]
    assert plain["heats"][1]["steps"] == [[95.0, "a"]]
    assert (plain["ms"], plain["tokens"], plain["first"]) == (125.0, 5, "")


class Differing(ScriptedEngine):
    def ask(self, *asked: Any, mode: Any = "hierarchical", **how: Any) -> Any:
        self.answer = ANSWER if mode == "plain" else f"{ANSWER} and more"
        return super().ask(*asked, mode=mode, **how)  # type: ignore[misc]


def test_a_race_that_differs_takes_the_badge_away(ready: Make, tmp_path: Path) -> None:
    state = ready(Differing(word_seconds=0.001))
    verified = Verified(tmp_path / "verified.json")
    verified.note(model_info(), "selftest", 64, 64)
    race = Race(state, verified, lambda: QUESTIONS)
    race.start("Who?")
    wait_for(lambda: not race.state.running)
    assert race.result is not None
    assert len(race.result.questions) == 1, "the first difference ends it"
    assert (race.result.same, race.result.tokens) == (24, 26)
    assert verified.of(model_info()) is None


def test_a_race_can_be_stopped_and_proves_nothing(ready: Make, tmp_path: Path) -> None:
    state = ready(ScriptedEngine(answer=ANSWER, word_seconds=0.2))
    race = Race(state, Verified(tmp_path / "verified.json"))
    race.start("Who?")
    state.stop_asking()
    wait_for(lambda: not race.state.running)
    assert race.state.trouble is not None
    assert race.state.trouble.cause == "The race was stopped."
    assert race.result is None
    assert not (tmp_path / "verified.json").exists()


def test_what_goes_wrong_is_said(ready: Make, make_state: Make, tmp_path: Path) -> None:
    failure = Failed("The memory ran out.", "Read fewer pages.", "ResourceError")
    race = Race(ready(ScriptedEngine(failure=failure)), Verified(tmp_path / "verified.json"))
    race.start("Who?")
    wait_for(lambda: not race.state.running)
    assert race.state.trouble is not None
    assert race.state.trouble.cause == "The memory ran out."
    race._app_state.engine.now = replace(race._app_state.engine.status(), model=model_info(parameters=0))  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="on this machine"):
        race.start("Who?")
    with pytest.raises(InputError, match="no question"):
        race.start("  ")
    with pytest.raises(InputError, match="has been read"):
        Race(make_state(), Verified(tmp_path / "v.json")).start("Who?")


def test_the_badge_belongs_to_one_pair_on_one_device(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "verified.json"
    verified = Verified(file, clock=lambda: 1.0)
    verified.note(model_info(), "race", 15, 15)
    assert verified.of(model_info()) is None, "too few tokens to prove anything"
    verified.note(model_info(), "race", 192, 192)
    assert verified.of(model_info()) is not None
    rounded = {"name": f"{model_info().name} (4-bit weights)"}  # the same folder, loaded otherwise
    for change in ({"device": "cuda"}, {"draft_name": None}, {"kv_note": "KV 8-bit"}, rounded):
        assert verified.of(model_info(**change)) is None
    assert verified.of(None) is None
    assert len(json.loads(file.read_text(encoding="utf-8"))) == 1
    Verified(file).note(model_info(device="cuda"), "selftest", 64, 64)  # another program's check
    assert verified.of(model_info(device="cuda")) is not None
    assert verified.of(model_info()) is not None
    file.write_text("not json", encoding="utf-8")
    assert Verified(file).of(model_info()) is None
