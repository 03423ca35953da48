"""A session as an app uses it: read, ask, ask again, stop anywhere, edit, and be told what is wrong."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from engine import generation
from engine.config import EngineConfig, Mode, SamplingParams
from engine.decode import loops
from engine.document import Document, Page, Reading
from engine.errors import (
    ContextTooSmall,
    InputError,
    ModelError,
    ModelNotFound,
    UnsupportedModel,
    VocabularyMismatch,
)
from engine.events import (
    AnswerDone,
    AnswerStarted,
    BookRead,
    Event,
    PagesScored,
    ReadingProgress,
    Round,
    StopReason,
    TextDelta,
    TokenSource,
)
from engine.generation import Generation
from engine.model import decoder
from engine.model.loading import check_vocabulary
from engine.model.products.packed import PackedLinear, Unpacked
from engine.prompt import Question, Turn
from engine.session import Session

ASK = SamplingParams(max_tokens=24)


@pytest.fixture
def session(tiny: Callable[..., str]) -> Session:
    return open_session(tiny)


def open_session(tiny: Callable[..., str], **options: object) -> Session:
    settings: dict[str, object] = {"context": 4096, "retrieval_budget": 128, "refresh_every": 1, "prefill_segment": 256}
    settings.update(options)
    draft = tiny("llama", seed=1, layers=1, width=32)
    return Session.load(EngineConfig(model=tiny("llama", spread=0.1), draft=draft, **settings))  # type: ignore[arg-type]


def ask(session: Session, question: str, *history: Turn, mode: Mode = "hierarchical", **sampling: object) -> AnswerDone:
    params = SamplingParams(**{"max_tokens": 24, **sampling})  # type: ignore[arg-type]
    *_, done = session.ask(Question(question, history, params, mode))
    assert isinstance(done, AnswerDone)
    return done


def read(session: Session, book: Document) -> list[Event]:
    return list(session.read(book))


def stop_after(begin: Callable[[threading.Event], Iterator[Event]], kind: type[Event], count: int = 1) -> list[Event]:
    """Take events until the ``count``-th of a kind, cancel, and take the rest."""
    cancel, taken = threading.Event(), []
    for event in begin(cancel):
        taken.append(event)
        if isinstance(event, kind):
            count -= 1
            if count == 0:
                cancel.set()
    return taken


def test_reading_reports_progress(session: Session, book: Document) -> None:
    events = read(session, book)
    progress = [e for e in events if isinstance(e, ReadingProgress)]
    assert [e.tokens_done for e in progress] == sorted(e.tokens_done for e in progress)
    assert [e.pages_done for e in progress] == sorted(e.pages_done for e in progress)
    assert progress[-1].pages_done == progress[-1].pages_total == 8
    done = events[-1]
    assert isinstance(done, BookRead)
    assert done.tokens == done.tokens_total == session.full.length
    assert done.kv_bytes.total == done.tokens * session.full.shape.bytes_per_token
    assert not done.stopped


def test_nothing_that_only_a_reading_uses_is_held_after_it(
    session: Session, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers' unpacked weights stayed until a question came: 190 MB of a model of 1.5 billion parameters."""
    held: list[int] = []
    unpack = Unpacked.of

    def noted(self: Unpacked, layer: PackedLinear) -> torch.Tensor:
        weight = unpack(self, layer)
        held.append(len(self._held))
        return weight

    monkeypatch.setattr(Unpacked, "of", noted)
    read(session, book)
    last = [part.unpacked_last for part in session.target.model.modules() if isinstance(part, PackedLinear)]
    if not last:
        pytest.skip("no kernels of our own on this processor")
    assert max(held) > 0
    assert not any(each._held for each in last)


def test_second_question_does_not_read_the_book_again(session: Session, book: Document) -> None:
    long = tuple(Page(n, str(n), page.text) for n, page in enumerate(3 * book.pages, 1))
    read(session, dataclasses.replace(book, pages=long))
    first = ask(session, "Where is the key?")
    second = ask(session, "Who lit it?", Turn("Where is the key?", first.text))
    tokens = session.conversation.read
    assert second.figures.prompt_tokens > first.figures.prompt_tokens + len(first.token_ids)
    assert second.figures.prefilled_tokens < 0.01 * tokens


def test_a_small_model_that_chats_is_pointed_to_a_passage(
    session: Session, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened() -> bool:
        stop_after(lambda cancel: session.read(book, cancel=cancel), ReadingProgress)
        return session.conversation.pointed

    assert not opened(), "a model this small was not measured"
    monkeypatch.setattr(decoder, "POINTED_PARAMETERS", range(1, 10**9))
    assert opened()
    for settings in ({"passages": 0}, {"exact_quotes": True}):
        with monkeypatch.context() as its_own:
            for name, value in settings.items():
                its_own.setattr(session.target.model.generation_config, name, value, raising=False)
            assert not opened(), settings
    monkeypatch.setattr(type(session.tokenizer), "has_template", False)
    assert not opened(), "it only continues texts"


def test_second_question_equals_a_fresh_start(tiny: Callable[..., str], book: Document) -> None:
    """What is reused is exactly what would be computed."""
    used, fresh = open_session(tiny), open_session(tiny)
    for session in (used, fresh):
        read(session, book)
    first = ask(used, "Where is the key?")
    turn = Turn("Where is the key?", first.text)
    reused = ask(used, "Who lit it?", turn)
    # The tokens of the first answer, not a new encoding of its text, are what a fresh start must be given.
    fresh.conversation.turns, fresh.conversation.tokens = (
        used.conversation.turns[:1],
        used.conversation.tokens[: used.conversation.turns[0].stop],
    )
    assert ask(fresh, "Who lit it?", turn).token_ids == reused.token_ids


def test_regenerate_edit_and_other_chat(session: Session, book: Document) -> None:
    read(session, book)
    one = ask(session, "Where is the key?")
    again = ask(session, "Where is the key?")
    assert again.token_ids == one.token_ids
    ask(session, "Who lit it?", Turn("Where is the key?", one.text))
    edited = ask(session, "When was it lit?")
    assert edited.figures.prefilled_tokens < 40
    restored = ask(session, "Who lit it?", Turn("Where is the key?", one.text))
    assert restored.figures.prefilled_tokens > edited.figures.prefilled_tokens  # the turn itself, never the book
    assert restored.figures.prefilled_tokens < 120


@pytest.mark.parametrize("mode", ["hierarchical", "plain"])
def test_a_cut_answer_goes_on_as_if_it_had_never_been_cut(mode: Mode, session: Session, book: Document) -> None:
    read(session, book)
    whole = ask(session, "Who lit it?", mode=mode, max_tokens=24)
    ask(session, "Where is the key?", mode=mode)
    cut = ask(session, "Who lit it?", mode=mode, max_tokens=10)
    params = SamplingParams(max_tokens=14)
    *_, rest = session.ask(Question("Who lit it?", (), params, mode, begun=cut.text))
    assert isinstance(rest, AnswerDone)
    assert cut.token_ids + rest.token_ids == whole.token_ids
    assert cut.text + rest.text == whole.text
    assert rest.figures.prefilled_tokens == 1
    turn = Turn("Who lit it?", whole.text)
    assert ask(session, "And then?", turn, mode=mode).figures.prefilled_tokens < 40  # the turn is known as one


def test_a_plain_continuation_then_a_hierarchical_one(session: Session, book: Document) -> None:
    """The plain one prefills nothing and looks at no query: there is none yet to select chunks by."""
    read(session, book)
    whole = ask(session, "Who lit it?", max_tokens=16)
    cut = ask(session, "Who lit it?", mode="plain", max_tokens=10)

    def go_on(cancel: threading.Event) -> Iterator[Event]:
        return session.ask(Question("Who lit it?", (), ASK, "plain", begun=cut.text), cancel=cancel)

    stop_after(go_on, AnswerStarted)
    *_, done = session.ask(Question("Who lit it?", (), SamplingParams(max_tokens=6), begun=cut.text))
    assert isinstance(done, AnswerDone)
    assert cut.token_ids + done.token_ids == whole.token_ids


def test_what_was_asked_plainly_is_selected_for_by_its_newest_query_too(
    tiny: Callable[..., str], book: Document
) -> None:
    chosen = []
    for before in ("plain", None):
        session = open_session(tiny)
        read(session, book)
        if before == "plain":
            ask(session, "Who lit it?", mode="plain", max_tokens=4)
        ask(session, "Who lit it?", max_tokens=4)
        chosen.append(session.generation._queries.queries)
    for one, other in zip(*chosen, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("mode", ["hierarchical", "plain"])
def test_a_continuation_that_is_stopped_before_its_first_token_forgets_nothing(
    mode: Mode, session: Session, book: Document
) -> None:
    read(session, book)
    cut = ask(session, "Who lit it?", mode=mode, max_tokens=10)
    expected = ask(session, "And then?", Turn("Who lit it?", cut.text), mode=mode)
    ask(session, "Who lit it?", mode=mode, max_tokens=10)
    before = session.conversation

    def go_on(cancel: threading.Event) -> Iterator[Event]:
        return session.ask(Question("Who lit it?", (), ASK, mode, begun=cut.text), cancel=cancel)

    done = stop_after(go_on, AnswerStarted)[-1]
    assert isinstance(done, AnswerDone)
    assert done.token_ids == ()
    assert before is not None
    assert [held.turn for held in before.turns] == [Turn("Who lit it?", cut.text)]
    after = ask(session, "And then?", Turn("Who lit it?", cut.text), mode=mode)
    assert after.figures.prefilled_tokens == expected.figures.prefilled_tokens  # the question, not the turn
    assert after.token_ids == expected.token_ids


@pytest.mark.parametrize("mode", ["hierarchical", "plain"])
def test_a_fault_behind_a_commit_hides_no_token(
    mode: Mode, session: Session, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round has committed its tokens and then fails: nobody was told of them, so the turn does not hold them."""
    read(session, book)
    shown: list[int] = []

    def failing(self: Generation, done: Round, *more: Any) -> Iterator[Event]:
        if len(self.tokens) >= 4:
            raise RuntimeError("behind the commit")
        return add(self, done, *more)

    add = Generation.add
    with monkeypatch.context() as patch:
        patch.setattr(Generation, "add", failing)
        events = session.ask(Question("Where is the key?", (), ASK, mode))
        with pytest.raises(RuntimeError, match="commit"):
            shown.extend(token for event in events if isinstance(event, TextDelta) for token in event.token_ids)
    talk = session.conversation
    assert talk is not None
    (held,) = talk.turns
    start = held.stop - len(shown)
    assert talk.tokens[start:] == shown
    assert len(talk.tokens) == held.stop
    assert session.full.length == held.stop - 1
    assert held.turn.answer == session.tokenizer.decode(shown)


@pytest.mark.parametrize("mode", ["hierarchical", "plain"])
def test_an_answer_that_is_cut_inside_a_character_goes_on_with_all_of_it(
    mode: Mode, session: Session, book: Document
) -> None:
    read(session, book)
    whole = ask(session, "Who lit it?", mode=mode, max_tokens=24)
    decoded = [session.tokenizer.decode(whole.token_ids[:count]) for count in range(24)]
    (count, *_) = [count for count in range(4, 22) if decoded[count].endswith("\ufffd")]
    cut = ask(session, "Who lit it?", mode=mode, max_tokens=count)
    assert len(cut.token_ids) == count
    assert cut.text == decoded[count].rstrip("\ufffd")
    params = SamplingParams(max_tokens=24 - count)
    *_, rest = session.ask(Question("Who lit it?", (), params, mode, begun=cut.text))
    assert isinstance(rest, AnswerDone)
    assert cut.token_ids + rest.token_ids == whole.token_ids
    assert cut.text + rest.text == whole.text


def test_an_answer_from_elsewhere_goes_on_from_its_words(session: Session, book: Document) -> None:
    """After a restart the cache does not hold the half answer: its words are read."""
    read(session, book)
    *_, rest = session.ask(Question("Who lit it?", (), ASK, begun="The keeper lit it because"))
    assert isinstance(rest, AnswerDone)
    assert 5 < rest.figures.prefilled_tokens < 60
    assert rest.token_ids
    (turn,) = session.conversation.turns
    assert turn.turn == Turn("Who lit it?", "The keeper lit it because" + rest.text)


def test_reading_goes_on_after_a_question_in_between(tiny: Callable[..., str], book: Document) -> None:
    """Stopped at a border, asked, resumed: the cache and the next answer are those of one uninterrupted reading."""
    undisturbed, session = open_session(tiny), open_session(tiny)
    read(undisturbed, book)
    events = stop_after(lambda cancel: session.read(book, cancel=cancel), ReadingProgress, 8)
    partly = events[-1]
    assert isinstance(partly, BookRead)
    assert 0 < partly.pages_read < 8
    ask(session, "Where is the key?")
    events = list(session.read(Reading(book, resume=True)))
    first, done = events[0], events[-1]
    assert isinstance(first, ReadingProgress)
    assert isinstance(done, BookRead)
    assert first.tokens_done >= partly.tokens
    assert (done.pages_read, done.stopped) == (8, False)
    assert ask(session, "Who lit it?").token_ids == ask(undisturbed, "Who lit it?").token_ids


@pytest.mark.parametrize("mode", ["hierarchical", "plain"])
def test_stop_mid_answer_then_ask_equals_a_fresh_start(mode: Mode, session: Session, book: Document) -> None:
    read(session, book)
    undisturbed = ask(session, "Who lit it?", mode=mode)
    events = stop_after(
        lambda cancel: session.ask(Question("Where is the key?", (), ASK, mode), cancel=cancel), TextDelta, 2
    )
    done = events[-1]
    assert isinstance(done, AnswerDone)
    assert done.stop_reason is StopReason.CANCELLED
    assert 0 < len(done.token_ids) < 24
    assert session.full.length == len(session.conversation.tokens) - 1
    assert ask(session, "Who lit it?", mode=mode).token_ids == undisturbed.token_ids


def test_closing_the_generator_leaves_the_state_whole(session: Session, book: Document) -> None:
    read(session, book)
    undisturbed = ask(session, "Who lit it?")
    events = session.ask(Question("Where is the key?", (), ASK))
    for event in events:
        if isinstance(event, TextDelta):
            events.close()  # type: ignore[attr-defined]
            break
    assert ask(session, "Who lit it?").token_ids == undisturbed.token_ids


def test_samples_of_one_question_share_the_book_and_the_question(session: Session, book: Document) -> None:
    """Five answers from one prefilled book: after the first none prefills a token, and each is what it is alone."""
    read(session, book)
    one = ask(session, "Where is the key?")
    keys = [session.full.keys(layer, 0, 1).data_ptr() for layer in range(session.target.num_layers)]
    answers = {}
    for seed in range(4):
        done = ask(session, "Where is the key?", temperature=1.0, seed=seed)
        assert done.figures.prefilled_tokens == 1  # the first input of the decoding itself
        answers[seed] = done.token_ids
    assert len(set(answers.values())) > 1
    assert ask(session, "Where is the key?").token_ids == one.token_ids
    assert ask(session, "Where is the key?", temperature=1.0, seed=2).token_ids == answers[2]
    assert keys == [session.full.keys(layer, 0, 1).data_ptr() for layer in range(session.target.num_layers)]


def test_stop_before_the_first_token(session: Session, book: Document) -> None:
    read(session, book)
    before = session.full.length
    done = stop_after(lambda cancel: session.ask(Question("Where is the key?", (), ASK), cancel=cancel), AnswerStarted)[
        -1
    ]
    assert isinstance(done, AnswerDone)
    assert done.text == ""
    assert session.full.length == before
    assert session.conversation.turns == []


def test_stopped_reading_keeps_whole_pages(session: Session, book: Document) -> None:
    events = stop_after(lambda cancel: session.read(book, cancel=cancel), ReadingProgress, 10)
    done = events[-1]
    assert isinstance(done, BookRead)
    assert done.stopped
    assert 0 < done.pages_read < 8
    talk = session.conversation
    assert talk is not None
    assert done.tokens == session.full.length == talk.book.page_starts[done.pages_read]
    assert len(ask(session, "Who lit it?").token_ids) > 0


def test_deltas_joined_equal_the_answer(session: Session, book: Document) -> None:
    read(session, book)
    for seed in range(3):
        events = list(session.ask(Question("Where?", (), SamplingParams(temperature=1.0, seed=seed, max_tokens=60))))
        done = events[-1]
        assert isinstance(done, AnswerDone)
        deltas = [e for e in events if isinstance(e, TextDelta)]
        text = session.tokenizer.decode(done.token_ids)
        assert "".join(e.text for e in deltas) == done.text
        assert text.startswith(done.text)
        rest = text.removeprefix(done.text)
        assert not rest if done.stop_reason is StopReason.END else not rest.strip(" \ufffd"), "cut in a character"
        assert tuple(t for e in deltas for t in e.token_ids) == done.token_ids
        assert len(done.sources) == len(done.token_ids)
        assert all(len(d.lengths) == len(d.token_ids) and sum(d.lengths) == len(d.text) for d in deltas if d.token_ids)


def test_seed_makes_sampling_repeatable(session: Session, book: Document) -> None:
    read(session, book)
    one = ask(session, "Where?", temperature=0.9, top_p=0.9, seed=5)
    two = ask(session, "Where?", temperature=0.9, top_p=0.9, seed=5)
    other = ask(session, "Where?", temperature=0.9, top_p=0.9, seed=6)
    assert one.token_ids == two.token_ids != other.token_ids


def test_figures_add_up(session: Session, book: Document) -> None:
    read(session, book)
    done = ask(session, "Where?")
    f = done.figures
    assert f.answer_tokens == len(done.token_ids) == 24
    assert f.mean_acceptance_length == pytest.approx(24 / f.rounds)
    assert done.sources.count(TokenSource.TARGET) == f.rounds
    assert f.middle.accepted <= f.middle.proposed
    assert f.context_tokens == f.prompt_tokens + 24
    assert f.time_split.total == pytest.approx(f.ms_per_token_mean * 24, rel=0.05)  # type: ignore[operator]
    assert f.plain_steps >= 1
    assert (f.speedup_vs_plain or 0.0) == pytest.approx((f.plain_ms or 0.0) / (f.ms_per_token_mean or 1.0))
    plain = ask(session, "Where?", mode="plain")
    assert plain.figures.mean_acceptance_length == 1.0
    assert set(plain.sources) == {TokenSource.TARGET}


def test_pages_are_scored(session: Session, book: Document) -> None:
    read(session, book)
    events = list(session.ask(Question("Where?", (), ASK)))
    scored = [e.scores for e in events if isinstance(e, PagesScored)]
    assert len(scored) > 1
    for scores in scored:
        assert len(scores) == 8
        assert sum(scores) == pytest.approx(1.0, abs=1e-3)
    done = events[-1]
    assert isinstance(done, AnswerDone)
    assert sum(done.page_scores) == pytest.approx(1.0, abs=1e-3)


def test_page_scores_tell_their_tokens(session: Session, book: Document) -> None:
    """The first scores are of the question and the first token; the others follow each other through the answer, at
    delta borders."""
    read(session, book)
    shown, borders, scored = 0, {-1}, []
    for event in session.ask(Question("Where?", (), ASK)):
        if isinstance(event, TextDelta):
            shown += len(event.token_ids)
            borders.add(shown - 1)
        elif isinstance(event, PagesScored):
            scored.append(event)
            assert event.last_token == shown - 1
        elif isinstance(event, AnswerDone):
            assert list(event.pages_scored) == scored
    assert (scored[0].first_token, scored[0].last_token) == (0, 0)
    for before, after in itertools.pairwise(scored):
        assert after.first_token == before.last_token + 1 <= after.last_token
    assert {event.last_token for event in scored} <= borders


def test_behind_an_answer_of_one_token_nothing_is_timed_for_more(
    session: Session, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(session, book)
    passes = Mock(return_value=1.0)
    monkeypatch.setattr(generation, "is_slow", lambda ms: False)
    monkeypatch.setattr(generation, "pass_ms", passes)
    monkeypatch.setattr(generation.PlainSteps, "wanting", lambda self, answer_s: False)
    done = ask(session, "Where?", max_tokens=1)
    assert (len(done.token_ids), sum(done.page_scores)) == (1, pytest.approx(1.0, abs=1e-3))
    passes.assert_not_called()


def test_long_answer_outgrows_the_tail(
    tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the tail is full the context is cut anew in the middle of an answer; the text stays the same."""
    monkeypatch.setattr("engine.decode.levels._TAIL_TOKENS", 40)
    session = open_session(tiny, num_draft_tokens=2, num_pending_tokens=4, num_lookup_tokens=4)
    read(session, book)
    fast = ask(session, "Where?", max_tokens=150)
    assert session.hierarchy.retrieval.boundary > session.conversation.read
    assert fast.token_ids == ask(session, "Where?", mode="plain", max_tokens=150).token_ids


def test_answer_ends_at_the_window(tiny: Callable[..., str], book: Document, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LEAST_REPEATED", 1 << 20)  # random weights repeat themselves before that
    probe = open_session(tiny)
    read(probe, book)
    window = probe.full.length + 270
    session = open_session(tiny, context=window, num_draft_tokens=2, num_pending_tokens=3)
    read(session, book)
    done = ask(session, "Where?", max_tokens=5000)
    if done.stop_reason is not StopReason.END:
        assert done.stop_reason is StopReason.CONTEXT
        assert len(session.conversation.tokens) == window
    with pytest.raises(ContextTooSmall, match="too long for this model"):
        list(session.ask(Question("Where? " * 300, (), ASK)))


@pytest.mark.parametrize("room", [1, 2, 3, 10, 17])
def test_the_first_question_may_come_near_the_end_of_the_window(
    room: int, tiny: Callable[..., str], book: Document
) -> None:
    """What is measured on a new book takes more tokens than are left; the answer is as long as the plain one."""
    session = open_session(tiny, context=1500)
    read(session, book)
    talk, question = session.conversation, "Where is it?"
    assert talk is not None
    while len(talk.compose(question, ()).tokens) < 1500 - room:
        question += "7"
    fast = ask(session, question, max_tokens=500)
    assert fast.figures.prompt_tokens == 1500 - room
    assert fast.token_ids == ask(session, question, mode="plain", max_tokens=500).token_ids
    assert fast.stop_reason is StopReason.END or len(fast.token_ids) == room
    sampled = ask(session, question, max_tokens=500, temperature=1.0)
    assert 0 < len(sampled.token_ids) <= room


def test_a_book_that_does_not_fit_is_refused_with_its_pages(tiny: Callable[..., str], book: Document) -> None:
    session = open_session(tiny, context=700)
    fit = session.measure(book)
    assert not fit.fits
    assert 0 < fit.pages_that_fit < 8
    assert fit.sentence.endswith(f"The first {fit.pages_that_fit} of 8 pages fit.")
    with pytest.raises(ContextTooSmall, match="--fit"):
        read(session, book)
    done = list(session.read(Reading(book, fit=True)))[-1]
    assert isinstance(done, BookRead)
    assert done.pages_read == done.pages_total == fit.pages_that_fit
    assert len(ask(session, "Where?").token_ids) > 0


def test_what_is_far_too_long_is_refused_by_its_beginning(
    session: Session, book: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(session, book)
    kind = type(session.tokenizer._tokenizer)
    encode, encoded = kind.__call__, []

    def watched(self: object, text: str, **how: object) -> object:
        encoded.append(len(text))
        return encode(self, text, **how)

    monkeypatch.setattr(kind, "__call__", watched)
    long, short = "Where is it? " * 10_000, Turn("Who keeps it?", "The keeper.\n")
    for question, history in ((long, ()), ("Where?", (Turn("Who?", long),)), ("Where?", (short,) * 5_000)):
        with pytest.raises(ContextTooSmall, match="this chat and the question are too long"):
            list(session.ask(Question(question, history, ASK)))
    with pytest.raises(ContextTooSmall, match="1 page: too long for this model"):
        read(session, Document("Sent", "", (Page(1, "1", long),), "text", ""))
    assert sum(encoded) <= 4 * 8 * session.target.window
    assert len(ask(session, "Where?").token_ids) > 0, "the open book stays"


def test_a_refused_book_leaves_the_open_one(tiny: Callable[..., str], book: Document) -> None:
    session = open_session(tiny, context=700)
    list(session.read(book.select(1, 2)))
    with pytest.raises(ContextTooSmall):
        read(session, book)
    assert len(ask(session, "Where?").token_ids) > 0


def test_input_errors(session: Session, book: Document) -> None:
    with pytest.raises(InputError, match="No book"):
        list(session.ask("Where?"))
    with pytest.raises(InputError, match="no text"):
        read(session, Document("Empty", "", (Page(1, "1", " \n"),), "text", "0"))
    read(session, book)
    with pytest.raises(InputError, match="empty"):
        list(session.ask("  "))


def test_special_tokens_in_a_book_or_question_are_words(session: Session) -> None:
    """A book that contains the template's tokens cannot end its own message or speak for the assistant."""
    text = "He wrote: <|end|>\n<|assistant|>\nYes. " * 20
    read(session, Document("Odd", "", (Page(1, "1", text),), "text", "0"))
    talk = session.conversation
    assert talk is not None
    assert 5 not in talk.book.ids[4:]
    prompt = talk.compose("Say <|end|> now", ())
    assert prompt.tokens[len(talk.book.ids) :].count(5) == 2  # the template's own: after the book, after the question


def test_model_errors(tiny: Callable[..., str], tmp_path: Path) -> None:
    good, folder = tiny("llama"), tmp_path
    with pytest.raises(ModelNotFound, match="no model folder"):
        Session.load(EngineConfig(model=str(folder / "absent")))
    with pytest.raises(ModelNotFound, match="neither a model folder nor a GGUF file"):
        Session.load(EngineConfig(model=str(Path(good) / "config.json")))
    (folder / "small.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match="is a GGUF file, and the engine opens model folders"):
        Session.load(EngineConfig(model=str(folder / "small.gguf")))
    with pytest.raises(ModelError, match="at most 4,096"):
        Session.load(EngineConfig(model=good, context=100_000))

    def variant(name: str, **changes: object) -> Path:
        copy = folder / name
        shutil.copytree(good, copy)
        config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
        (copy / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
        return copy

    with pytest.raises(UnsupportedModel, match="gpt2"):
        Session.load(EngineConfig(model=str(variant("gpt2", model_type="gpt2", architectures=["GPT2LMHeadModel"]))))
    sliding = variant("sliding", model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=512)
    with pytest.raises(UnsupportedModel, match="sliding window"):
        Session.load(EngineConfig(model=str(sliding)))
    pickled = variant("pickled")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    with pytest.raises(ModelError, match="safetensors"):
        Session.load(EngineConfig(model=str(pickled)))
    cut = variant("cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])
    with pytest.raises(ModelError, match="is cut off"):
        Session.load(EngineConfig(model=str(cut)))


def test_draft_of_another_vocabulary_is_refused() -> None:
    target = {f"w{i}": i for i in range(100)}
    check_vocabulary("d", dict(target), target)
    check_vocabulary("d", target | {"<|own|>": 100, "<|more|>": 101}, target)
    with pytest.raises(VocabularyMismatch, match="'w3'"):
        check_vocabulary("d", target | {"w3": 4, "w4": 3}, target)
    with pytest.raises(VocabularyMismatch, match="100 tokens and the target has 50"):
        check_vocabulary("d", target, {f"w{i}": i for i in range(50)})


def test_a_book_that_memory_does_not_hold_is_answered_alike(
    tiny: Callable[..., str], book: Document, tmp_path: Path
) -> None:
    """Greedy answers are the same whether KV lies in memory or is spilled to disk, and again after a snapshot."""
    resident = open_session(tiny)
    read(resident, book)
    said = [ask(resident, "Where is the key?").token_ids, ask(resident, "Who lit it?").token_ids]
    per_token = resident.full.shape.bytes_per_token
    limit = str(int(0.85 * 4096 * per_token))  # of a book with room for a chat
    for source in ("read", "snapshot"):
        spilled = open_session(
            tiny, host_memory=limit, spill_folder=str(tmp_path / "spill"), snapshot_folder=str(tmp_path / "kept")
        )
        assert "on disk" in spilled.measure(book).sentence
        *_, done = spilled.read(book)
        assert isinstance(done, BookRead)
        assert done.source == source
        assert done.kv_bytes.disk > 0
        assert [ask(spilled, "Where is the key?").token_ids, ask(spilled, "Who lit it?").token_ids] == said
        spilled.close()
