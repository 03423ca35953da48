"""Every layer of the engine broken once, by an exception or by memory that ends: a sentence, and the next answer comes.

The functions are not chosen by hand: whatever the engine calls while it reads and answers is found by watching it, and
each is made to fail at its first and at a later call.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest
import torch

from engine import Engine, Question
from engine.config import EngineConfig, SamplingParams
from engine.document import Document, Page
from engine.errors import TrifoldError
from engine.events import AnswerDone, BookRead, Event
from tests.engine.conftest import TEXT
from tests.faults.conftest import LONG
from tests.tally import count

_SAMPLING = SamplingParams(max_tokens=16)
_QUESTION = "Where is the key?"
_ASKED = Question(_QUESTION, sampling=_SAMPLING)  # made before anything breaks: not by the engine
_SECONDS = 60.0
_BOOK = Document("Lamp", "", tuple(Page(at, str(at), f"Page {at}. {TEXT}") for at in range(1, 9)), "text", "0" * 64)
_OTHER = Document("Oar", "", tuple(Page(at, str(at), f"Sheet {at}. {TEXT}") for at in range(1, 5)), "text", "1" * 64)

_SAMPLE = 14  # of so many functions one is broken, unless all are asked for

# Records, and what only tells about the engine: a failure there is a failure of the test.
_APART = ("engine.events", "engine.errors", "engine.worker", "engine.worker", "engine.events", "engine.threads")


class Broken(RuntimeError):
    """Nothing that the engine knows."""


def _final(request: Any) -> Event | TrifoldError:
    try:
        return request.result(_SECONDS)
    except TrifoldError as error:
        return error


@pytest.fixture(scope="module")
def engine(pair: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    torch.set_num_threads(1)
    _, model, _, draft = pair
    with Engine(
        EngineConfig(model=model, draft=draft, context=4096, retrieval_budget=128, prefill_segment=256)
    ) as made:
        made.wait_ready(_SECONDS)
        yield made


def _answer(engine: Engine) -> Event | TrifoldError:
    return _final(engine.ask(_ASKED))


def _watched(work: Callable[[], object]) -> Counter[FunctionType]:
    """Which functions of the engine were called meanwhile, in any thread, and how often."""
    import threading

    codes: Counter[Any] = Counter()

    def look(frame: Any, event: str, _: object) -> None:
        if event == "call" and "/engine/" in frame.f_code.co_filename:
            codes[frame.f_code] += 1

    # The engine's thread is running already, so it is watched through the functions that it calls.
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return codes


def _owners() -> dict[Any, tuple[Any, str]]:
    """Code object -> where its function is kept, so that another can be put in its place."""
    found: dict[Any, tuple[Any, str]] = {}
    for name, module in list(sys.modules.items()):
        if not name.startswith("engine.") or name in _APART:
            continue
        for holder in [module, *(part for part in vars(module).values() if inspect.isclass(part))]:
            if inspect.isclass(holder) and holder.__module__ != name:
                continue
            for key, value in list(vars(holder).items()):
                if isinstance(value, FunctionType) and value.__module__ == name:
                    found.setdefault(value.__code__, (holder, key))
    return found


def _called(pair: tuple[str, ...]) -> list[tuple[Any, str, int]]:
    """Everything of the engine that a reading and an answer call: holder, name, calls."""
    _, model, _, draft = pair

    def work() -> None:
        config = EngineConfig(model=model, draft=draft, context=4096, retrieval_budget=128, prefill_segment=256)
        with Engine(config) as made:
            made.wait_ready(_SECONDS)
            _final(made.read(_BOOK))
            _answer(made)

    codes, owners = _watched(work), _owners()
    return sorted(
        ((*owners[code], times) for code, times in codes.items() if code in owners),
        key=lambda part: f"{part[0]}{part[1]}",
    )


class _Sabotage:
    """One function that raises at its n-th call, once."""

    def __init__(self, holder: Any, name: str, at: int, error: Callable[[], BaseException]) -> None:
        self.holder, self.name, self.at, self.error = holder, name, at, error
        self.calls = 0
        self.struck = False
        self._kept = vars(holder)[name]

    def __enter__(self) -> _Sabotage:
        kept = self._kept

        def strike() -> None:
            self.calls += 1
            if self.calls == self.at:
                self.struck = True
                raise self.error()

        if inspect.isgeneratorfunction(kept):

            def broken(*arguments: Any, **named: Any) -> Any:
                strike()
                return (yield from kept(*arguments, **named))

        else:

            def broken(*arguments: Any, **named: Any) -> Any:
                strike()
                return kept(*arguments, **named)

        setattr(self.holder, self.name, broken)
        return self

    def __exit__(self, *_: object) -> None:
        setattr(self.holder, self.name, self._kept)


_ERRORS: dict[str, Callable[[], BaseException]] = {
    "exception": lambda: Broken("injected"),
    "memory": MemoryError,
    "gpu memory": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"),
}


def _is_said(event: Event | TrifoldError, kind: str, where: str) -> None:
    if isinstance(event, TrifoldError):
        assert event.cause.endswith(".")
        assert event.remedy.endswith(".")
        assert "injected" not in event.cause
        known = kind == "exception" or event.cause == "No book is open."  # because its reading failed
        assert known or "memory" in event.cause.lower(), f"{event.cause} {where}"


def test_any_layer_may_break(engine: Engine, pair: tuple[str, ...]) -> None:
    assert isinstance(_final(engine.read(_BOOK)), BookRead)
    expected = _answer(engine)
    assert isinstance(expected, AnswerDone)
    places = _called(pair)
    assert len(places) > 60, places
    kinds = list(_ERRORS) if LONG else ["exception", "memory"]
    broken, failed = places if LONG else places[::_SAMPLE], 0
    for number, (holder, name, times) in enumerate(broken):
        for at in {1, max(1, times // 2)} if LONG else {1 if number % 2 else max(1, times // 2)}:
            kind = kinds[number % len(kinds)]
            with _Sabotage(holder, name, at, _ERRORS[kind]) as sabotage:
                first = _final(engine.read(_OTHER if number % 2 else _BOOK))
                second = _answer(engine)
            where = f"{getattr(holder, '__name__', holder)}.{name} at call {at} ({kind})"
            for event in (first, second):
                _is_said(event, kind, where)
                failed += isinstance(event, TrifoldError)
            if isinstance(second, TrifoldError) and isinstance(first, BookRead):
                assert isinstance(_answer(engine), AnswerDone), f"the next question failed: {where}"
            again = _final(engine.read(_BOOK))
            assert isinstance(again, BookRead), f"the next reading failed: {where}: {again}"
            after = _answer(engine)
            assert isinstance(after, AnswerDone), f"the next question failed: {where}: {after}"
            assert after.token_ids == expected.token_ids, f"another answer than before: {where}"
            if sabotage.struck:
                count("faults injected into the engine")
    assert failed > len(broken) // 3
