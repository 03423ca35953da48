"""``doctor --selftest``: it passes here, it says so in sentences, it is kept, and it fails where anything is wrong."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from app.cli import doctor
from app.core.race import Verified
from app.core.settings import Settings
from app.web.server import VERIFIED_FILE
from engine import selftest as checks
from engine.document import Document, Page
from engine.model.kernels import native
from engine.plan.memory_budget import BookFit
from engine.session import Session
from tests.engine.conftest import TEXT
from tests.faults.conftest import make_pair

_BOOK = Document("Lamp", "", tuple(Page(at, str(at), TEXT) for at in range(1, 4)), "text", "0" * 64)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> None:
    """Tiny tensors gain nothing from threads, and lose much where processes share the cores."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what is a little wrong is more than rounding, on every processor."""
    monkeypatch.setattr(native, "multiplies_pairs", lambda: False)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    folder = tmp_path_factory.mktemp("pair")
    _, model, _, draft = make_pair(folder)
    return Settings(folder / "data", model, draft, context=4096)


def test_a_sound_machine_passes_and_it_is_kept(settings: Settings) -> None:
    assert doctor.last_result(settings.data) is None
    said: list[str] = []
    result = doctor.run_selftest(settings, said.append)
    assert result.passed, said
    assert [check["name"] for check in result.checks] == [
        "attention",
        "speculation rule",
        "greedy answers",
        "kept book",
        "altered book",
    ]
    assert all(line.startswith("ok") and line.endswith(".") for line in said)
    assert result.tokens >= 3 * 16
    assert doctor.last_result(settings.data) == result
    kept = json.loads((settings.data / VERIFIED_FILE).read_text(encoding="utf-8"))
    assert [record["how"] for record in kept.values()] == ["selftest"]
    (settings.data / doctor.FILE).write_text("{", encoding="utf-8")
    assert doctor.last_result(settings.data) is None


_RULE = "speculation rule"
_FEW = 500  # draws where the rule is not what is tested: 20 times as many take a second


def _run(settings: Settings, folder: Path, last: str = "altered book") -> dict[str, checks.CheckResult]:
    """The checks up to and with one."""
    session, found = checks.load(checks.configured(settings.engine_config(), str(folder))), {}
    try:
        for check in checks.checks(session, _BOOK, ("Where is the key?", "Who lit it?")):
            found[check.name] = check
            if check.name == last:
                break
        return found
    finally:
        session.close()


def _sampling_from_p(proposed: Any, q: Any, p: Any, generator: torch.Generator) -> Any:
    """The rule of the published code: on a rejection it draws from p itself."""
    given = torch.ones(1) if q is None else q.gather(1, proposed.unsqueeze(1)).squeeze(1)
    accepted = bool(torch.rand(1, generator=generator) * given < p[:1].gather(1, proposed.unsqueeze(1)).squeeze(1))
    law = p[1:] if accepted else p[:1]
    from engine.decode.verify import SampledTokens

    token = int(torch.multinomial(law, 1, generator=generator))
    return SampledTokens((int(proposed[0]), token) if accepted else (token,))


@pytest.mark.parametrize(
    ("kv", "margin", "passes"), [("model", 0.02, False), ("8bit", 0.02, True), ("8bit", 0.5, False)]
)
def test_a_tie_is_what_rounding_of_this_kind_can_move(
    kv: str, margin: float, passes: bool, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "_margin", lambda *_: margin)
    config = dataclasses.replace(settings.engine_config(), kv=kv)
    session = checks.load(checks.configured(config, str(tmp_path)))
    passed, sentence, _ = checks._greedy(session, _BOOK, ("Where is the key?",), [])
    session.close()
    assert passed == passes, sentence


_BROKEN: dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]] = {
    "a kernel that is off by a little": (
        "attention",
        lambda patch: patch.setattr(checks.attention, "attend", _off(checks.attention.attend)),
    ),
    "a rule that is not exact": (
        _RULE,
        lambda patch: patch.setattr(checks, "rejection_sample", _sampling_from_p),
    ),
    "another answer by speculation": ("greedy answers", lambda patch: patch.setattr(checks, "_last", _other_words())),
    "a book that was not kept": (
        "kept book",
        lambda patch: patch.setattr("engine.kv.persistence.KvPersistence.save", lambda *arguments: None),
    ),
    "a checksum that nobody looks at": (
        "altered book",
        lambda patch: patch.setattr("engine.kv.snapshot_io._is_whole", lambda *arguments: True),
    ),
    "a fault in the middle": ("kept book", lambda patch: patch.setattr(checks, "_kept", _no_memory)),
}


def _off(attend: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*arguments: Any) -> Any:
        out, lse = attend(*arguments)
        return out * 1.01, lse

    return wrong


def _no_memory(*arguments: object) -> Any:
    raise MemoryError


def _other_words() -> Callable[..., Any]:
    kept = checks._last

    def wrong(events: Any, kind: Any) -> Any:
        done = kept(events, kind)
        if getattr(done, "figures", None) is None or done.figures.mode == "plain":
            return done
        least = 1 if done.token_ids[0] == 0 else 0
        return dataclasses.replace(done, token_ids=(least, *done.token_ids[1:]))

    return wrong


@pytest.mark.parametrize("fault", _BROKEN)
def test_what_is_wrong_is_found(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    name, breaks = _BROKEN[fault]
    breaks(monkeypatch)
    if name != _RULE:
        monkeypatch.setattr(checks, "DRAWS", _FEW)
    found = _run(settings, tmp_path, name)
    assert not found[name].passed, found[name].sentence
    assert found[name].sentence.endswith(".")


def test_a_slow_machine_reads_less_and_asks_for_less(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what its probes say: two minutes to read three pages, and two seconds for a token."""
    measure, read, pages = Session.measure, Session.read, []

    def slow(session: Session, document: Document) -> BookFit:
        fit = measure(session, document)
        return dataclasses.replace(fit, reading_s=40.0 * len(document.pages), step_ms=2_000.0)

    def noted(session: Session, document: Document, **how: Any) -> Any:
        pages.append(len(document.pages))
        return read(session, document, **how)

    monkeypatch.setattr(checks, "DRAWS", _FEW)
    monkeypatch.setattr(Session, "measure", slow)
    monkeypatch.setattr(Session, "read", noted)
    found = _run(settings, tmp_path)
    assert all(check.passed for check in found.values())
    assert set(pages) == {1}
    assert "tokens in 2 answers after " in found["greedy answers"].sentence


def test_answers_are_as_long_as_the_time_allows() -> None:
    assert checks._tokens(45.0, 2.0, 16) == 11
    assert checks._tokens(45.0, 30.0, 16) == 4
    assert checks._tokens(45.0, 0.0, 16) == 16


def test_a_failure_takes_the_badge_away(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(checks, "DRAWS", _FEW)
        assert doctor.run_selftest(settings, lambda line: None).passed
    assert Verified(settings.data / VERIFIED_FILE)._all()
    monkeypatch.setattr(checks, "rejection_sample", _sampling_from_p)
    result = doctor.run_selftest(settings, lambda line: None)
    assert not result.passed
    assert Verified(settings.data / VERIFIED_FILE)._all() == {}
