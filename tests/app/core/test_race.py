"""The race: two runs compared token for token, said in honest words, remembered only when it held."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.core import chat_run
from app.core.question import Ask
from app.core.race import Race, RaceQuestion, RaceResult, RaceRun, Verified
from app.core.state import AppState
from app.web import race_panel
from app.web.live import record_of
from engine import Question
from engine.errors import Busy, InputError, ResourceError
from engine.events import StopReason
from tests.app.scripted import ScriptedEngine, engine_status, figures, model_info, wait_for

Make = Callable[..., AppState]
ANSWER = " ".join(f"word{number}" for number in range(24))


def run(mode: str, ids: tuple[int, ...], mean: float = 10.0) -> RaceRun:
    measured = replace(figures(len(ids), mode), ms_per_token_mean=mean, speedup_vs_plain=None)
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
    assert found.times == (pytest.approx(2.0) if identical else None)


def test_the_verdict_and_what_is_said_when_the_texts_part() -> None:
    assert race_panel.verdict(result((1, 2, 3), (1, 2, 3), 1.42)) == "identical 3/3 tokens, 1.4 times faster"
    several = RaceResult(1, "0" * 64, 0.0, (asked((1, 2), (1, 2), 3.0), asked((3, 4), (3, 4), 1.0, "What?")))
    assert race_panel.verdict(several) == "identical 4/4 tokens, 2.0 times faster, over 2 answers"
    parted = result((1, 2, 3), (1, 5, 3))
    assert race_panel.verdict(parted) == "the texts part: identical 1/3 tokens, then different"
    assert "almost equally likely" in race_panel.detail(parted)
    assert "did not pay" in race_panel.detail(result((1, 2), (1, 2), 0.8))
    assert "replay of two runs" in race_panel.recording(parted)["replay"]
    assert "from the book" not in race_panel.recording(parted)["runs"][1]["note"]
    assert "from the book" in race_panel.recording(parted, lookup=True)["runs"][1]["note"]


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
    assert [(asked.text, asked.history, asked.mode, asked.plain_lane) for asked in engine.asked] == [
        ("Who kept the light?", (), "hierarchical", True)
    ]
    assert {(asked.sampling.temperature, asked.sampling.seed) for asked in engine.asked} == {(0.0, None)}
    found = race.result
    assert found is not None
    assert (found.same, found.identical) == (24, True)
    plain = found.questions[0].plain
    assert "".join(text for _, text in plain.steps) == ANSWER
    assert [at for at, _ in plain.steps] == sorted(at for at, _ in plain.steps)
    assert plain.ms == pytest.approx(24 * 41.0)
    assert state.chat is not None
    assert state.chat.exchanges == ()
    assert not state.current.asking
    record = Verified(tmp_path / "verified.json").of(model_info())
    assert record is not None
    assert (record.how, record.tokens) == ("race", 24)


def test_both_lanes_move_from_the_first_word_on(ready: Make, tmp_path: Path) -> None:
    engine = ScriptedEngine(answer=ANSWER, word_seconds=0.004)
    engine.thought = "Hm. Who was it? " * 4  # a model may think that cannot be kept from it
    race = Race(state := ready(engine), Verified(tmp_path / "verified.json"))
    panel = race_panel.RacePanel(state, race, Verified(tmp_path / "verified.json"))
    race.start("Who kept the light?")
    seen: list[dict[str, Any]] = []
    while (view := panel.view()["race"])["running"]:
        if not seen or view != seen[-1]:
            seen.append(view)
    live = "Both live, in turns. Each clock counts its own run alone."
    told = {(bool(view["lanes"][1]["text"]), view["line"]) for view in seen}
    assert told - {(False, "Reading the question…")} == {(False, "The model thinks first…"), (True, live)}
    texts = [tuple(lane["text"].split() for lane in view["lanes"]) for view in seen]
    assert len({len(plain) for plain, _ in texts}) > 8
    assert all(abs(len(plain) - len(fast)) <= 1 for plain, fast in texts), "neither waits for the other's end"
    plain, fast = (lane["clock"] for lane in seen[-1]["lanes"])
    assert float(plain.split()[0]) > 2 * float(fast.split()[0]), "each clock is its own run's"


class Own(ScriptedEngine):
    """Every question has an answer of its own; one with "nothing" is refused, one with "circle" has no end."""

    def ask(self, question: Question | str, **cancel: Any) -> Any:
        asked = Question.of(question).text
        self.own = getattr(self, "own", self.answer)
        self.answer = " ".join(f"{len(asked)}{asked[:3]}{word}" for word in self.own.split())
        self.answer = "The book does not say that." if "nothing" in asked else self.answer
        self.answer = " ".join(["round and round"] * 20) if "circle" in asked else self.answer
        return super().ask(question, **cancel)


QUESTIONS = ("Who kept the light?", "Who was drowned?", "Where was the goose?", "When?", "Why?", "How?")


@pytest.mark.parametrize(("words", "asked"), [(24, 4), (40, 3), (96, 1)])
def test_a_short_answer_is_followed_by_further_questions(
    ready: Make,
    tmp_path: Path,
    words: int,
    asked: int,
) -> None:
    engine = Own(answer=" ".join(f"word{number}" for number in range(words)), word_seconds=0.0)
    race = Race(ready(engine), Verified(tmp_path / "verified.json"), lambda _: QUESTIONS)
    race.start(QUESTIONS[0])
    wait_for(lambda: not race.state.running)
    assert [asked.text for asked in engine.asked] == list(QUESTIONS[:asked])
    found = race.result
    assert found is not None
    assert (found.same, found.tokens) == (asked * words, asked * words)


# Words of the scripted book, without which a model that only quotes is not asked.
PASSAGES = ("Where does it say “lamp3 lamp4 lamp5”?", "Quote “lamp30 lamp31 lamp32”.", "Find: lamp50 lamp51 lamp52")


@pytest.fixture
def quoting(ready: Make, tmp_path: Path) -> AppState:
    """A model that refuses with a sentence that its card knows, or answers in thirty words."""
    card = {"only_quotes": True, "refusals": ["The book does not say that."]}
    (tmp_path / "abilities.json").write_text(json.dumps(card), encoding="utf-8")
    engine = Own(answer=" ".join(f"word{number}" for number in range(30)), word_seconds=0.0)
    engine.now = engine_status(model=model_info(path=str(tmp_path)))
    return ready(engine)


def raced(state: AppState, tmp_path: Path, question: str) -> RaceResult:
    one = Race(state, Verified(tmp_path / "verified.json"), lambda _: PASSAGES)
    one.start(question)
    wait_for(lambda: not one.state.running)
    assert one.result is not None, one.state.trouble
    return one.result


def test_refusals_and_circles_are_counted_apart_and_passages_follow(quoting: AppState, tmp_path: Path) -> None:
    found = raced(quoting, tmp_path, "What of nothing?")
    assert [(one.question, one.uncounted) for one in found.questions] == [
        ("What of nothing?", "refused"),
        *((passage, "") for passage in PASSAGES),
    ]
    assert found.times == pytest.approx(41.0 / 14.0, rel=0.1), "of the passages alone"
    assert (found.same, found.tokens) == (96, 96), "the refusal is compared word for word all the same"
    told = race_panel.recording(found)
    assert "1 answer was no answer from the book: suggested questions were raced instead." in told["detail"]
    assert [part["question"] for part in told["runs"][0]["questions"]] == list(PASSAGES)
    going_round = raced(quoting, tmp_path, "Why in a circle?")
    assert going_round.questions[0].uncounted == "circles"
    assert "1 answer repeated itself" in race_panel.detail(going_round)


def test_where_no_answer_counts_no_speed_is_told() -> None:
    one = replace(asked((1, 2), (1, 2)), uncounted="refused")
    found = RaceResult(1, "0" * 64, 0.0, (one, replace(one, uncounted="circles")))
    assert found.times is None
    assert race_panel.verdict(found) == "identical 4/4 tokens, no speed to compare"
    told = race_panel.detail(found)
    assert "1 answer was no answer from the book, 1 answer repeated itself: equal in both" in told
    assert len(race_panel.recording(found)["runs"][0]["questions"]) == 2


def test_a_race_takes_a_passage_where_the_chat_has_only_refusals(quoting: AppState, tmp_path: Path) -> None:
    list(chat_run.ask(quoting, Ask("What of nothing?")))
    found = raced(quoting, tmp_path, "")
    assert (found.questions[0].question, found.is_substitute) == (PASSAGES[0], True)
    assert "No answer of this chat is sure to rest on the text" in race_panel.detail(found)


@pytest.mark.parametrize("doubt", [{"missing": ["900"]}, {"assumed": ["raised"]}])
def test_a_race_shows_no_answer_that_the_text_does_not_support(quoting: AppState, tmp_path: Path, doubt: Any) -> None:
    """The race of a lease's "Why was the deposit raised to 900?" showed the invented reason twice, and large."""
    list(chat_run.ask(quoting, Ask("Find: lamp60 lamp61 lamp62")))
    list(chat_run.ask(quoting, Ask("Find: lamp70 lamp71 lamp72")))
    chat = quoting.chat
    assert chat is not None
    last = chat.exchanges[1]
    quoting.chats.update(chat.id, 1, replace(last, notes={**(last.notes or {}), **doubt}))
    record_of(quoting.chat)
    assert raced(quoting, tmp_path, "").questions[0].question == "Find: lamp60 lamp61 lamp62"


def test_a_passage_that_was_asked_for_in_the_chat_is_no_stopgap(quoting: AppState, tmp_path: Path) -> None:
    list(chat_run.ask(quoting, Ask(PASSAGES[0])))
    found = raced(quoting, tmp_path, "")
    assert (found.questions[0].question, found.is_substitute) == (PASSAGES[0], False)


def test_an_answer_that_was_raced_has_one_speed_everywhere(quoting: AppState, tmp_path: Path) -> None:
    list(chat_run.ask(quoting, Ask("Find: lamp60 lamp61 lamp62")))
    chat = quoting.chat
    assert chat is not None
    slower = replace(figures(30), speedup_vs_plain=1.3)
    quoting.chats.update(chat.id, 0, replace(chat.exchanges[0], figures=slower))
    record = record_of(quoting.chat)
    found = raced(quoting, tmp_path, "")
    assert (found.questions[0].question, found.is_substitute) == ("Find: lamp60 lamp61 lamp62", False)
    turn = quoting.chats.get(chat.id).exchanges[0]
    assert turn.figures is not None
    assert turn.figures.speedup_vs_plain == pytest.approx(RaceResult(1, "", 0.0, found.questions[:1]).times)
    assert record_of(quoting.chat) != record, "the page shows it again"


def test_two_runs_that_the_machine_treated_differently_have_no_speed() -> None:
    """The clocks say 2.0, plain steps during the second run say 3.5."""
    one = asked((1, 2), (1, 2))
    assert one.fast.figures is not None
    other = replace(one.fast, figures=replace(one.fast.figures, speedup_vs_plain=3.5))
    found = RaceResult(1, "0" * 64, 0.0, (replace(one, fast=other),))
    assert found.times is None
    assert race_panel.verdict(found) == "identical 2/2 tokens, speed not measured"
    assert "had other work" in race_panel.detail(found)
    nearly = replace(one.fast, figures=replace(one.fast.figures, speedup_vs_plain=2.6))
    assert RaceResult(1, "0" * 64, 0.0, (replace(one, fast=nearly),)).times == pytest.approx(2.0)


def test_several_questions_are_replayed_one_behind_the_other_on_one_clock() -> None:
    found = RaceResult(1, "0" * 64, 0.0, (asked((1, 2), (1, 2), 4.0), asked((3, 4, 5), (3, 4, 5), 1.5, "Where?")))
    assert found.times == pytest.approx((2 * 40.0 + 3 * 15.0) / (5 * 10.0))
    told = race_panel.recording(found)
    assert (told["question"], told["more"]) == ("Who?", "… and 1 more")
    assert "replay of two runs" in told["replay"]
    assert "from each first token on" in told["replay"]
    plain = told["runs"][0]
    assert [(part["question"], part["begins"]) for part in plain["questions"]] == [("Who?", 0.0), ("Where?", 80.0)]
    assert plain["questions"][1]["steps"] == [[95.0, "a"]]
    assert (plain["ms"], plain["tokens"]) == (125.0, 5)


class Differing(ScriptedEngine):
    def ask(self, question: Question | str, **cancel: Any) -> Any:
        self.answer, self.plain_answer = f"{ANSWER} and more", ANSWER
        return super().ask(question, **cancel)


def test_a_race_that_differs_takes_the_badge_away(ready: Make, tmp_path: Path) -> None:
    state = ready(Differing(word_seconds=0.001))
    verified = Verified(tmp_path / "verified.json")
    verified.note(model_info(), "selftest", 64, 64)
    race = Race(state, verified, lambda _: QUESTIONS)
    race.start("Who?")
    wait_for(lambda: not race.state.running)
    assert race.result is not None
    assert len(race.result.questions) == 1, "the first difference ends it"
    assert (race.result.same, race.result.tokens) == (24, 26)
    assert verified.of(model_info()) is None


def test_a_long_answer_does_not_wait_for_the_suggested_questions(ready: Make, tmp_path: Path) -> None:
    """They are made after a book was read, which took longer than the first answer."""
    waited: list[bool] = []

    def suggested(wait: bool) -> tuple[str, ...]:
        waited.append(wait)
        return QUESTIONS

    engine = ScriptedEngine(answer=" ".join(f"word{number}" for number in range(96)), word_seconds=0.0)
    race = Race(ready(engine), Verified(tmp_path / "verified.json"), suggested)
    race.start("Who?")
    wait_for(lambda: not race.state.running)
    assert race.result is not None
    assert waited == []


def test_a_summary_is_the_last_thing_that_a_race_asks_for(ready: Make, tmp_path: Path) -> None:
    """No passage shows whether a summary is right, and a race is what a person shows to others."""
    asked = ("Summarize the document in at most 60 words.", "Who are the parties?")
    one = Race(ready(Own(answer="It says so.", word_seconds=0.0)), Verified(tmp_path / "v.json"), lambda _: asked)
    one.start("When was it signed?")
    wait_for(lambda: not one.state.running)
    assert one.result is not None
    assert [raced.question for raced in one.result.questions] == ["When was it signed?", *reversed(asked)]


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
    failure = ResourceError("The memory ran out.", "Read fewer pages.")
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
