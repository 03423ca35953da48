"""Runs one question, from the moment it is sent to the last word of its answer.

Waits for the book, passes the engine's events on no faster than a page can draw, and stores the answer even if the
person stops it or closes the page. ``start`` does this in a thread. ``ExchangeWriter`` writes the answer's words into
the chat (``app.core.chats``), and pages show the chat.

Also owns how often a page may change while an answer is written (``Throttle``). A browser lays out, paints and composes
a frame for every change. This work slows the engine down if the engine computes on the CPU.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from app.core import best_passages
from app.core.abilities import Abilities, abilities
from app.core.chats import Chat, Trouble
from app.core.exchange_writer import ExchangeWriter
from app.core.listed import found_by_program
from app.core.open_book import Awaited, OpenBook, Stage
from app.core.part_run import ask_parts
from app.core.parts import choose_parts
from app.core.parts_record import LOOKING, PartsRecord
from app.core.premise import check_later
from app.core.question import ALL_PARTS, Ask
from app.core.side_by_side import SideBySide
from app.core.state import AppState
from engine import HANDOVER_S, Request, Status, Turn
from engine.document import Document
from engine.errors import Busy, TrifoldError
from engine.events import AnswerDone, Event

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Throttle:
    """Minimum seconds between two changes of the page, for each kind of change.

    - ``words``: new words of the answer, and other changes in the live stream
    - ``figures``: figures, such as the speed
    - ``layout``: the formatted answer with its citations, which the browser has to lay out as a whole
    - ``settle``: the formatted answer at a change of its phase (``ExchangeWriter.phase``), such as its first word
    - ``silence``: the formatted answer while it has no words yet
    """

    words: float
    figures: float
    layout: float
    settle: float
    silence: float = 1.5


# New words come every ``UPDATE_SECONDS``. A page is ready half of that time before they come, so that none wait.
OWN = Throttle(words=0.05, figures=0.4, layout=1.5, settle=0.0)
BESIDE = Throttle(words=0.15, figures=0.4, layout=4.0, settle=0.25)
SHARED = Throttle(words=0.55, figures=1.1, layout=4.0, settle=0.25)


def throttle_of(status: Status, card: bool = False) -> Throttle:
    """Choose the throttle of a page. ``card``: whether the browser draws with a graphics card. The page changes least
    often if the CPU has to draw it and to run the engine.
    """
    if status.model is None or status.model.device != "cpu":
        return OWN
    return BESIDE if card else SHARED


# Minimum seconds between two times at which events of the engine are fetched. Fetching holds Python's interpreter lock,
# which the engine needs too, so events are fetched at most ten times a second.
UPDATE_SECONDS = 0.1
_POLL = 0.1  # maximum seconds of one wait for an event, after which the run checks whether the person has stopped it
# maximum remaining seconds of a reading whose end a question waits for. If more seconds remain, the question is
# answered from passages at once.
_WORTH_WAITING = 8.0


def ask(state: AppState, asked: Ask) -> Iterator[str]:
    """Ask a question, and write the answer into the open chat. Yield whenever the page has something new to draw. The
    yielded string says what the answer waits for; it is "" if the answer waits for nothing.

    Raises:
        Busy: another question is being answered.
        TrifoldError: there is no book to ask about.
    """

    def begin(chat: Chat) -> int:
        return state.chats.ask(chat.id, asked.text, asked.position)

    return _run(state, asked, begin)


def go_on(state: AppState, asked: Ask) -> Iterator[str]:
    """Continue an answer that was cut off, at ``asked.position`` of the open chat. If the answer was made from parts of
    the book, ask the parts that have not been asked yet. Yields and raises as in ``ask``.
    """
    position = asked.position
    assert position is not None

    def begin(chat: Chat) -> int:
        state.chats.resume(chat.id, position)
        return position

    return _run(state, asked, begin)


def ask_whole(state: AppState, asked: Ask, chat_id: str = "") -> Iterator[str]:
    """Ask the whole book, or the parts of it that the question needs, what was answered from passages at
    ``asked.position``. The new answer takes the place of that one, which is kept with it. Yields and raises as in
    ``ask``.

    Args:
        chat_id: the chat of a question that nobody has asked again (``follow``), so that it gives way to others; "" for
            the open chat.
    """
    position = asked.position
    assert position is not None

    def begin(chat: Chat) -> int:
        state.chats.begin_beside_first(chat.id, position)
        return position

    return _run(state, replace(asked, whole=True), begin, chat_id)


def follow(state: AppState, awaited: Awaited) -> None:
    """In a new thread, wait until the book has been read, and then ask it the question that was answered from passages
    meanwhile, unless the person has had enough. Other questions go first.
    """
    document = state.current.document
    state.wait_for_whole(awaited)

    def run() -> None:
        while awaited in state.current.awaited and state.engine.status().state != "closed":
            current = state.current
            stopped = current.read is not None and current.read.stopped
            if current.document is not document or stopped or not (current.stage.is_on_the_way or current.read):
                break
            if current.stage is Stage.READY and not current.asking and current.awaited[0] == awaited:
                _ask_awaited(state, awaited)
            time.sleep(_POLL)
        state.wait_no_longer(awaited.answer)

    threading.Thread(target=run, name="trifold-whole", daemon=True).start()


def _ask_awaited(state: AppState, awaited: Awaited) -> None:
    """Ask the whole book what was answered from passages. If that gives way to another question, it waits again."""
    chat = state.chats.get(awaited.chat)
    position = chat.position_of(awaited.answer) if chat else None
    if chat is None or position is None:
        return state.wait_no_longer(awaited.answer)
    try:
        _show_steps(state, ask_whole(state, replace(awaited.asked, position=position, tab=""), awaited.chat))
        chat = state.chats.get(awaited.chat)
        gave_way = chat is not None and chat.exchanges[position].first_answer is None
    except Busy:
        gave_way = True
    except Exception:  # an error in this thread reaches no caller, so it is logged
        logger.exception("the whole book could not be asked")
        gave_way = False
    if not gave_way:
        state.wait_no_longer(awaited.answer)


def _run(state: AppState, asked: Ask, begin: Callable[[Chat], int], chat_id: str = "") -> Iterator[str]:
    """Answer a question. ``begin`` stores the question in the chat, and returns its position there.

    Args:
        chat_id: as in ``ask_whole``.
    """
    asked = state.as_set(asked)
    state.read_for(asked)
    claim = state.claim(asked.tab, gives_way=bool(chat_id))
    try:
        chat = state.chats.get(chat_id) if chat_id else state.chat
        if chat is None:
            raise TrifoldError("No book is open.", "Open one first.")
        writer = ExchangeWriter(state, chat.id, begin(chat), asked, gives_way=bool(chat_id))
        yield "Thinking…"
        try:
            yield from _show_passages(state, writer, claim)
            if writer.done:
                return
            yield from _wait(state, claim, asked)
            in_parts = state.current.stage is Stage.PARTS
            at_once = answers_at_once(state.current, asked) and writer.kept_parts is None
            writer.begin(in_parts and not at_once)
            table = _table(state, writer)
            run = _answer_from_passages if at_once else _answer_in_parts if in_parts else _answer
            yield from _answer_one_by_one(state, writer, claim, table) if table else run(state, writer, claim)
            if (awaited := writer.awaited) is not None:
                follow(state, awaited)
            else:
                check_later(state, writer.chat, writer.position)
        except TrifoldError as error:
            writer.fail(Trouble(error.cause, error.remedy))
        finally:
            writer.close()
    finally:
        state.release(claim)


def start(state: AppState, steps: Iterator[str]) -> int:
    """Run ``steps``, the iterator that ``ask`` or ``go_on`` has returned. The first step runs in this thread and stores
    the question. The other steps run in a new thread and write the answer into the chat while it is generated.

    Returns:
        the id of the answer's message; 0 if there is no answer.

    Raises:
        Busy: another question is being answered.
        TrifoldError: there is no book to ask about.
    """
    state.show(waiting=next(steps))  # the first step stores the question
    chat = state.chat
    answer = chat.open_exchange if chat else None

    def run() -> None:
        try:
            _show_steps(state, steps)
        except Exception:  # an error in this thread reaches no caller, so it is logged
            logger.exception("an answer failed")

    threading.Thread(target=run, name="trifold-answer", daemon=True).start()
    return answer.answer_id if answer else 0


def _show_steps(state: AppState, steps: Iterator[str]) -> None:
    """Run ``steps``, and show each on the page."""
    for waiting in steps:
        chat = state.chat
        state.show(waiting=waiting, cited=chat.open_exchange if chat else None)


def _show_passages(state: AppState, writer: ExchangeWriter, claim: threading.Event) -> Iterator[str]:
    """Show the passages that fit the question best as soon as the book's text is there, before the model has read
    anything. If the model would only guess, these passages are the answer.
    """
    while state.current.stage is Stage.OPENING and not claim.wait(_POLL):
        yield _waiting_words(state.current)
    document = state.current.document
    if document is None:
        return
    index = state.citation_finder.prepare(document)
    while not index.done() and not claim.wait(_POLL):
        yield _waiting_words(state.current) if state.current.stage.is_on_the_way else "Looking for passages…"
    if claim.is_set():
        return
    if not writer.begun and (found := found_by_program(document, writer.ask.text)) is not None:
        writer.end_with_comparison(found, document.unit)
        yield ""
        return
    writer.show_passages(index.result())
    yield _waiting_words(state.current) if state.current.stage.is_on_the_way else "Thinking…"
    while state.engine.status().state == "loading" and not claim.wait(_POLL):
        yield "Waiting for the model…"
    model = state.engine.status().model
    card = abilities(str(model.path)) if model else Abilities()
    if not writer.begun and card.would_guess(writer.ask.text, index.result(), state.citation_finder.index_of(document)):
        writer.end_with_passages(card, index.result())
        yield ""


def _wait(state: AppState, claim: threading.Event, asked: Ask) -> Iterator[str]:
    """Wait until the question can be sent to the model: when the book has been read or, if that takes long, as soon as
    passages of it can be read instead (``answers_at_once``).

    Raises:
        TrifoldError: the book could not be read.
    """
    while state.current.stage.is_on_the_way and not answers_at_once(state.current, asked) and not claim.is_set():
        yield _waiting_words(state.current)
        time.sleep(_POLL)
    current = state.current
    at_once = answers_at_once(current, asked)
    if current.stage not in (Stage.READY, Stage.PARTS) and not at_once and not claim.is_set():
        trouble = current.trouble or Trouble("No book is open.", "Open one first.")
        raise TrifoldError(trouble.cause, trouble.remedy)


def answers_at_once(current: OpenBook, asked: Ask) -> bool:
    """Whether a question is answered from passages, in a context of its own, because the person wants that
    (``Ask.now``), because the book is too long, or because reading it takes more than ``_WORTH_WAITING`` seconds.
    """
    stage = current.stage
    if current.document is None or stage in (Stage.EMPTY, Stage.OPENING, Stage.LOCKED, Stage.FAILED, Stage.WAITING):
        return False
    if asked.now or stage in (Stage.CHOOSING, Stage.UNREAD):
        return True
    if asked.whole or asked.parts:
        return False
    return stage is Stage.PARTS or (stage is Stage.READING and _seconds_left(current) > _WORTH_WAITING)


def _seconds_left(current: OpenBook) -> float:
    """Seconds until the book has been read; 0 if nothing is known yet."""
    if current.progress is not None and current.progress.tokens_done:
        return current.progress.seconds_left
    return current.remaining.total.low if current.remaining.total else 0.0


def _waiting_words(current: OpenBook) -> str:
    if current.stage is not Stage.READING:
        return "Your question is asked as soon as it has been opened."
    return "Your question is asked as soon as it has been read."


def _answer_in_parts(state: AppState, writer: ExchangeWriter, claim: threading.Event) -> Iterator[str]:
    """Ask the parts of the open book that the question needs. Parts that an earlier run has asked are skipped."""
    current, finder = state.current, state.citation_finder
    document, parts = current.document, current.parts
    if document is None or claim.is_set():
        return
    yield LOOKING
    asked = replace(writer.ask, parts=ALL_PARTS) if writer.asks_every else writer.ask
    choice = choose_parts(asked.text, parts, finder.prepare(document).result().words, min(asked.parts, len(parts)))
    model, fit = state.engine.status().model, current.whole_fit
    time_a_token = state.experience.a_token(model, fit) if fit else None
    record = PartsRecord(document, parts, choice, writer.kept_parts, asked.all_parts, time_a_token)
    writer.begin_parts(record)
    steps = ask_parts(
        state.engine,
        choice,
        replace(asked, history=tuple(Turn(*turn) for turn in writer.history())),
        document,
        writer.abilities,
        citation_finder=finder,
        known_answers=record.known,
        cancel=claim,
    )
    throttle = throttle_of(state.engine.status())
    drawn, shown = time.monotonic(), None
    for event in steps:
        writer.take_step(event)
        now, phase = time.monotonic(), (*record.phase, *writer.phase)
        if now - drawn >= (throttle.settle if phase != shown else throttle.layout):
            drawn, shown = now, phase
            writer.write_parts()
            yield ""
        state.chats.save_in_time()


def _table(state: AppState, writer: ExchangeWriter) -> SideBySide | None:
    """The table of a question that compares the open documents; None if it is put to all of them at once."""
    document = state.current.document
    return None if document is None or writer.begun else SideBySide.of(document, writer.ask, writer.abilities)


def _answer_one_by_one(
    state: AppState, writer: ExchangeWriter, claim: threading.Event, table: SideBySide
) -> Iterator[str]:
    """Put a question that compares the open documents to each of them alone."""
    drawn, throttle = time.monotonic(), throttle_of(state.engine.status())
    for _ in table.ask(state.engine, writer.ask, claim):
        if (now := time.monotonic()) - drawn >= throttle.layout:
            drawn = now
            writer.show_table(table)
            yield "Asking each document…"
    writer.show_table(table, table.stopped)


def _answer_from_passages(state: AppState, writer: ExchangeWriter, claim: threading.Event) -> Iterator[str]:
    """Answer from the passages that fit the question best, while the book is being read or instead of it."""
    current = state.current
    if current.document is None or claim.is_set():
        return
    excerpt = best_passages.excerpt(state.citation_finder.prepare(current.document).result().words, writer.ask.text)
    writer.begin_from_passages(excerpt, current)
    yield from _answer(state, writer, claim, excerpt if excerpt.pages else None)


def _answer(
    state: AppState, writer: ExchangeWriter, claim: threading.Event, excerpt: Document | None = None
) -> Iterator[str]:
    while True:
        yield from _answer_once(state, writer, claim, excerpt)
        if not writer.again:
            return
        writer.begin_again()
        yield writer.waiting


def _answer_once(
    state: AppState, writer: ExchangeWriter, claim: threading.Event, excerpt: Document | None
) -> Iterator[str]:
    request = _request(state, writer, claim, excerpt)
    if request is None:
        return
    try:
        throttle = throttle_of(state.engine.status())
        drawn, shown = time.monotonic(), writer.phase
        while not writer.done and not request.finished:
            writer.take(_news(request))
            state.chats.save_in_time()
            now = time.monotonic()
            pause = throttle.layout if writer.has_begun else throttle.silence
            if now - drawn >= (throttle.settle if writer.phase != shown else pause):
                drawn, shown = now, writer.phase
                writer.cite()
                yield writer.waiting
            if writer.has_begun:
                claim.wait(UPDATE_SECONDS)
    finally:
        if not request.finished:
            request.cancel()


def _news(request: Request[AnswerDone]) -> Iterator[Event]:
    """Yield the engine's events since the last call. Without any, wait for one, at most ``_POLL`` seconds.

    Raises:
        TrifoldError: the answer failed. Events before the failure are yielded first.
    """
    patience = _POLL
    while (event := request.next_event(timeout=patience)) is not None:
        yield event
        patience = 0.0


def _request(
    state: AppState, writer: ExchangeWriter, claim: threading.Event, excerpt: Document | None
) -> Request[AnswerDone] | None:
    """Send the question to the engine. If the engine is still busy with a cancelled request, wait up to ``HANDOVER_S``
    seconds until that has ended. Return None if the question was stopped before it was sent.
    """
    history = tuple(Turn(question, answer) for question, answer in writer.history())
    if claim.is_set():
        return None
    thought = "" if excerpt else writer.thought_before
    question = replace(writer.ask, history=history, begun=writer.begun, thought=thought, wait=HANDOVER_S)
    # the stored turns of a chat are those of its last question with its history
    chat = "" if excerpt or writer.left_out else writer.chat
    question = replace(question, chat=chat, excerpt=excerpt)
    try:
        return state.engine.ask(question, cancel=claim)
    except Busy:
        if claim.is_set():
            return None
        raise
