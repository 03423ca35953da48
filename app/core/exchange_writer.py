"""Writes an answer into its chat, event by event, with everything that is stored beside it.

``ExchangeWriter`` keeps one exchange, a question with its answer: the words with the source of each token, the figures,
the thought, the citations that ``Citations`` collects, the passages that fit best, and how the answer was made. It
also decides whether an answer is a refusal or repeats an earlier one. It knows nothing of time or of the order in which
a question is run; ``app.core.chat_run`` runs the question and calls the writer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from app.core import best_passages, format, speed
from app.core.abilities import Abilities, Denials, abilities
from app.core.chats import Trouble, thought_record
from app.core.document_kind import called_record
from app.core.forecast import stretch
from app.core.notes import NOTES
from app.core.open_book import Awaited, OpenBook, Stage
from app.core.outside import asked_record, text_record
from app.core.part_run import NO_ANSWER, Joining, PartBegun, PartEvent, PartsAnswered
from app.core.parts import choose_parts, pages_numbered
from app.core.parts_record import PartsRecord
from app.core.question import Ask
from app.core.settings import model_name
from app.core.side_by_side import SideBySide
from app.core.state import AppState
from app.core.versions import Comparison
from app.language.referring import refers_back
from app.trust.citations import TARGET, VERSION, Citations
from app.trust.differences import compared
from app.trust.evidence import EvidenceIndex
from app.trust.failing import declines, repeats
from engine.config import GREEDY, OWN_SAMPLING, SamplingParams, options_of
from engine.document import Document
from engine.events import (
    AnswerDone,
    AnswerStarted,
    BookRead,
    Event,
    Figures,
    PagesScored,
    StopReason,
    TextDelta,
    ThoughtDelta,
)

_MOST_UNREAD = 5  # maximum number of unread pages that the note above an answer names
_FIGURE = re.compile(
    r"\b(?:fig(?:ures?|s?\.)?|abb(?:ildung(?:en)?|\.)|charts?|diagrams?|maps?|plates?|photos?)\s*(\d+(?:\.\d+)*)", re.I
)


class ExchangeWriter:
    """Stores one exchange, the question ``ask`` with its answer, event by event. ``begun`` is the text that the answer
    begins with: the text so far if the answer is continued, or the first words that the model's card prescribes.
    ``gives_way``: whether the answer from passages comes back if this one is stopped.
    """

    def __init__(self, state: AppState, chat: str, position: int, asked: Ask, *, gives_way: bool = False) -> None:
        known = state.chats.get(chat)
        assert known is not None
        self._exchange = known.exchanges[position]
        self.ask = asked
        self.begun = self._exchange.answer
        self._thought_before = self._thought = self._exchange.thought
        self.done = False
        self.waiting = "Reading the question…"
        self._state = state
        self.chat = chat
        self.position = position
        self._stages = self._exchange.stages
        self._citations: Citations | None = None
        self._found: Mapping[str, Any] = {}  # evidence of an answer that was made from several parts of the book
        self.abilities = Abilities()
        self._parts: PartsRecord | None = None
        self._made: dict[str, Any] = {"mode": asked.mode}
        self._unread: list[str] = []
        self._passages: list[dict[str, Any]] = list((self._exchange.notes or {}).get("passages", ()))
        self._by_passages: dict[str, str] = {}  # why the passages are the answer, in two sentences
        # words that the text lacks, and what the notes keep of the text for them; None before the first look
        self._text: tuple[object, dict[str, Any]] | None = None
        self._first: dict[str, Any] = {}  # of an answer from passages: their number, and how far the book had been read
        self._whole: dict[str, Any] = {}  # of an answer in the place of one from passages: what it comes from
        self._gives_way = gives_way
        self._denials: Denials | None = None
        # an earlier answer that was wrong would be repeated, and an earlier refusal too
        kept = (self._exchange.notes or {}).get("alone", {})
        self._alone = bool(kept) or not refers_back(asked.text)
        self.again = False
        self._first_try = str(kept.get("why", ""))  # what was wrong with the answer before this one
        self._goes_on = bool(self.begun)
        self._pace: tuple[format.PacePoint, ...] = ()

    @property
    def written(self) -> str:
        """The answer so far."""
        return self._exchange.answer

    @property
    def has_begun(self) -> bool:
        """Whether the model has begun to think or to answer."""
        return bool(self._exchange.answer or self._thought)

    @property
    def thought_before(self) -> str:
        """What the model had thought when the answer was cut off that is continued."""
        return str(self._thought_before.get("text", ""))

    @property
    def phase(self) -> tuple[str, bool, bool]:
        """What the answer waits for, whether the model has begun, and whether the answer's first word has come. The
        page is updated sooner after a change of these values (``Throttle.settle``).
        """
        return self.waiting, self.has_begun, bool(self._exchange.answer)

    def history(self) -> tuple[tuple[str, str], ...]:
        """The earlier questions and answers that the model gets; none if the question stands alone."""
        return () if self._alone else self._before()

    def _before(self) -> tuple[tuple[str, str], ...]:
        chat = self._state.chats.get(self.chat)
        return chat.before(self.position) if chat else ()

    @property
    def left_out(self) -> int:
        """How many earlier questions and answers the model does not get."""
        return len(self._before()) if self._alone else 0

    @property
    def kept_parts(self) -> Mapping[str, Any] | None:
        """The stored answers of the book's parts (``PartsRecord.view``) that an earlier run of this question has asked;
        None if there are none.
        """
        return (self._exchange.notes or {}).get("parts")

    @property
    def asks_every(self) -> bool:
        """Whether an earlier run of this question was meant to ask every part of the book."""
        return bool((self.kept_parts or {}).get("every"))

    @property
    def awaited(self) -> Awaited | None:
        """What the whole book is to answer when it has been read; None if this answer is enough, or has no end."""
        exchange, asked = self._exchange, self.ask
        ended = exchange.stopped not in (None, StopReason.CANCELLED) and exchange.trouble is None
        if asked.now or not self._first.get("reading") or not ended or exchange.by_passages:
            return None
        return Awaited(self.chat, exchange.answer_id, asked)

    def begin(self, in_parts: bool = False) -> None:
        """Record the model, its options and the number of pages read for the question that is about to be sent."""
        read, model = self._state.current.read, self._state.engine.status().model
        self._made |= _how(self.ask.sampling, model.own_sampling(self.ask.sampling.think) if model else None)
        if model is not None:
            name = model_name(model.name, str(model.path))
            draft = model.draft_name if self._made["mode"] != "plain" and name == model.name else None
            self._made = {"model": name, "draft": draft, **self._made}
            self.abilities = abilities(str(model.path))
            # A model's card may prescribe the first words of an answer. If the book is asked in parts, these are the
            # first words of each part's answer, not of the whole answer.
            if not in_parts:
                self.begun = self.begun or self.abilities.lead(self.ask.text)
        document = self._state.current.document
        self._unread = unread(document, self.ask.text) if document is not None else []
        if document is not None and self._exchange.first_answer is not None:
            self._whole = {"of": "" if in_parts else document.extent()}
        self._exchange = replace(self._exchange, pages_read=read.pages_read if read and read.stopped else 0)

    def take(self, events: Iterable[Event]) -> None:
        """Store and show the engine's events. If ``events`` raises an error, the events before it are stored and shown
        too.
        """
        taken = False
        try:
            for event in events:
                self._take(event)
                taken = True
        finally:
            if taken:
                self._write(notes=self._behind(self._citations.sketch() if self._citations else None))

    def show_passages(self, index: EvidenceIndex) -> None:
        """Show the passages of the open book that fit the question best, unless no evidence is wanted."""
        if self.ask.evidence and not self._passages:
            self._find_passages(index)
            self._write(notes=self._behind(self._exchange.notes))

    def end_with_passages(self, card: Abilities, index: EvidenceIndex) -> None:
        """End the answer: the passages that fit the question best take its place, because the model would guess."""
        self._find_passages(index)
        said, why = card.instead(bool(self._passages))
        said = format.of_text(said, called_record(self._state.current.whole or index.document))
        self._by_passages = {"said": said, "why": why}
        self._made = {}
        self._add(answer=f"{said} {why}", figures=None, stages="", stopped=StopReason.END)
        self.done, self._pace = True, ()
        outside = {} if self._passages else asked_record(self.ask.text, index.document, self._state.current.whole)
        self._write(notes=self._behind({"unit": index.document.unit, **outside}))

    def end_with_comparison(self, found: Comparison, unit: str) -> None:
        """End the answer: two versions of one text were compared by their words, without the model."""
        self._made, self._passages = {}, []
        self._add(answer=found.answer, figures=None, stages="", stopped=StopReason.END)
        self.done, self._pace = True, ()
        notes = {"v": VERSION, "unit": unit, "ink": "", "chips": found.chips, "compared": True}
        self._write(notes=self._behind(notes))

    def show_table(self, table: SideBySide, stopped: StopReason | None = None) -> None:
        """Show the answers of the open documents side by side. ``stopped``: how the last of them ended; None before."""
        self._add(answer=table.answer, figures=None, stages="", stopped=stopped)
        self.done = stopped is not None
        notes = {"v": VERSION, "unit": table.document.unit, "ink": "", "chips": table.chips, "each": True}
        self._write(notes=self._behind(notes))

    def _end_refused(self) -> bool:
        """Let passages take the place of a refusal. Return False if no document is open any more."""
        document = self._state.current.document
        if document is not None:
            self.end_with_passages(self.abilities, self._state.citation_finder.prepare(document).result())
        return document is not None

    def _find_passages(self, index: EvidenceIndex) -> None:
        self._passages = best_passages.records(index.words, self.ask.text)

    def begin_from_passages(self, excerpt: Document, current: OpenBook) -> None:
        """Begin to answer from an excerpt, and note how far the book has been read."""
        document, done = current.document, current.progress.pages_done if current.progress else 0
        assert document is not None
        if current.read is not None:
            done = current.read.pages_read
        self._first = {
            "passages": len(excerpt.pages),
            "read": format.read_until(document, done),
            "reading": current.stage is Stage.READING,
            "of": document.extent(),
            "never": current.stage is Stage.UNREAD and current.read is None,
            "parts": _parts_offer(self._state, self.ask.text),
        }

    def begin_parts(self, record: PartsRecord) -> None:
        """Begin to ask the parts of the book. Clear an existing answer, because a new answer is made from the answers
        of the parts.
        """
        self._parts, self.begun = record, ""
        self._stages = ""
        self._add(answer="", figures=None, stages="")
        self.write_parts()

    def take_step(self, event: PartEvent) -> None:
        """Handle one event that arrives while the question is put to the book's parts in turn."""
        record = self._parts
        assert record is not None
        record.take(event)
        model = self._state.engine.status().model
        if isinstance(event, PartBegun | Joining):
            self._pace = ()
        elif isinstance(event, TextDelta):
            self._measure(event)
            self._add(answer=self._exchange.answer + event.text if record.joins else "")
        elif isinstance(event, PagesScored):
            self._state.show(scores=record.scores(event.scores))
        elif isinstance(event, BookRead):
            self._state.experience.read(model, event)
        elif isinstance(event, AnswerDone):
            self._measure(event)
            self._state.experience.answered(model, event.figures)
        elif isinstance(event, PartsAnswered):
            self._end_parts(event)
        if isinstance(event, TextDelta | AnswerDone):
            self._write(notes={**(self._exchange.notes or {}), "pace": self._pace})

    def _end_parts(self, event: PartsAnswered) -> None:
        """End an answer that was made from the answers of parts. The answer gets the figures of the engine's last
        generation if it ends with the text of that generation, otherwise no figures.
        """
        done = event.done
        own = done if done is not None and done.text.strip() and event.text.endswith(done.text.strip()) else None
        reason = own.stop_reason if own else StopReason.END
        self._found = event.record
        if event.text == NO_ANSWER and self._end_refused():
            return
        self._add(
            answer=event.text,
            figures=own.figures if own else None,
            stopped=StopReason.CANCELLED if event.stopped else reason,
            stages=_letters(own) if own else "",
        )
        self.done = True
        self.write_parts()

    def write_parts(self) -> None:
        """Store the answers that the parts have given so far."""
        self._write(notes=self._behind(self._found))

    def cite(self) -> None:
        """Look up citations for the answer so far, and store them."""
        if self._citations is not None and not self.done:
            self._write(notes=self._behind(self._citations.record()))

    def _take(self, event: Event) -> None:
        if self._denials is None:
            self._denials = Denials(self.abilities, self.begun)
        for each in self._denials.pass_on(event):
            self._take_shown(each)

    def _take_shown(self, event: Event) -> None:
        if self._denials and self._denials.refused and self._end_refused():
            return
        if isinstance(event, AnswerDone) and (wrong := self._wrong(self.begun + event.text)):
            self.again, self.done, self._first_try = True, True, wrong
            return
        self._note(event)
        if isinstance(event, ThoughtDelta):
            text = self._thought.get("text", "").removeprefix(self.thought_before) + event.text
            self._think(text, event.figures, is_open=True)
            self.waiting = ""
        elif isinstance(event, TextDelta):
            self._measure(event)
            stages = self._exchange.stages + _letters(event)
            self._add(answer=(self._exchange.answer or self.begun) + event.text, stages=stages)
        elif isinstance(event, PagesScored):
            self._state.show(scores=event.scores)
        elif isinstance(event, AnswerStarted):
            self.waiting = "Writing…"
        elif isinstance(event, AnswerDone):
            self._measure(event)
            if event.page_scores:
                self._state.show(scores=event.page_scores)
            if (thought := event.thought) is not None:
                self._think(thought.text, thought.figures, is_open=thought.is_open, was_cut=thought.was_cut)
            answer, stages = self.begun + event.text, self._stages + _letters(event)
            self._add(answer=answer, stopped=event.stop_reason, stages=stages)
            self.done = True
            self._state.experience.answered(self._state.engine.status().model, event.figures)

    def _wrong(self, answer: str) -> str:
        """What is wrong with an answer that was given with earlier ones: it is a refusal, or repeats one of them. ""
        for any other answer.
        """
        earlier = [] if self._goes_on or self._first_try else [said for _, said in self.history()]
        if earlier and declines(answer):
            return "refused"
        return "repeated" if any(repeats(answer, said) for said in earlier) else ""

    def begin_again(self) -> None:
        """Begin to ask once more, without the earlier answers."""
        self.again = self.done = False
        self._alone, self._citations, self._denials, self._pace = True, None, None, ()
        self.begun, self.waiting = self.abilities.lead(self.ask.text), "Reading the question…"
        self._add(answer="", stages="", figures=None)
        self._thought_before = self._thought = {}
        self._write(notes=self._behind(None))

    def _think(self, text: str, figures: Figures, *, is_open: bool, was_cut: bool = False) -> None:
        """Keep what the model has thought since the answer was begun or continued."""
        earlier = self._thought_before
        self._thought = thought_record(text, figures, is_open=is_open, was_cut=was_cut, earlier=earlier)

    def fail(self, trouble: Trouble) -> None:
        self._end_now()
        self._write(trouble=trouble, stopped=StopReason.CANCELLED)

    def close(self) -> None:
        """Mark the answer as stopped, unless its end was stored before."""
        if self._exchange.stopped is None:
            self._end_now()
            self._write(stopped=StopReason.CANCELLED)
        ended = self._exchange
        lost = ended.stopped is StopReason.CANCELLED and ended.trouble is None
        if ended.by_passages or (lost and (self._gives_way or not ended.can_be_continued)):
            self._exchange = ended.back_to_first()
            self._write()
        if ended.by_passages and ended.first_answer is not None:
            self._state.wait_no_longer(ended.answer_id)  # the model would refuse again

    def _end_now(self) -> None:
        if self._parts is None:
            self.cite()
        else:
            self._parts.ended()
            if not self._exchange.answer:
                self._add(figures=None)  # those of a part are not the answer's
            self.write_parts()

    def _note(self, event: Event) -> None:
        """Pass an event to the answer's ``Citations``, which collect its citations. The ``Citations`` are made at the
        first event.
        """
        if self._citations is None:
            document, before = self._state.current.document, self._exchange.notes
            # first words that the model's card prescribes count as written by the target model
            if self.begun and not (before or {}).get("ink"):
                before = {"ink": f"{TARGET}{sum(map(str.isalpha, self.begun))}"}
            question = self.ask.text if self.ask.evidence else None
            self._citations = self._state.citation_finder.begin(
                document, question, self.begun, before, self._exchange.pages_read
            )
        self._citations.take(event)

    def _behind(self, notes: Mapping[str, Any] | None) -> Mapping[str, Any]:
        more: dict[str, Any] = {"parts": self._parts.view()} if self._parts else {}
        document = self._state.current.document
        if document is not None and document.kind == NOTES:
            more["from_notes"] = True
        if self.left_out:
            more["alone"] = {"left_out": self.left_out, "why": self._first_try}
        if self._unread:
            more["unread"] = self._unread
        if self._passages:
            more["passages"] = self._passages
        missing = (notes or {}).get("missing")
        if document is not None:
            # once for the same words, although a growing answer comes here often
            if self._text is None or self._text[0] != missing:
                self._text = missing, text_record(document, self._state.current.whole, missing)
            more |= self._text[1]
        if self._by_passages:
            more["by_passages"] = self._by_passages
        if self._thought:
            more["thought"] = {**self._thought, "open": self._thought["open"] and not self._exchange.answer}
        if self._first:
            more["first"] = self._first
        first, exchange = self._exchange.first_answer, self._exchange
        if first is not None:
            is_whole = exchange.stopped is StopReason.END
            said = compared(first["text"], exchange.answer, self.ask.text) if is_whole else ""
            more |= {"first_answer": first, "whole": {**self._whole, "said": said}}
        notes = {**(notes or {}), **more, "made": self._made, "pace": self._pace}
        earlier = [answer for _, answer in self._before()]
        refused, ended = bool(self._by_passages), self._exchange.stopped is not None
        notes["uncounted"] = speed.uncounted(self._exchange.answer, earlier, refused=refused, ended=ended)
        return notes

    def _measure(self, event: TextDelta | AnswerDone) -> None:
        """Keep the figures of an event and its point of the pace curve, which begins anew with every generation."""
        before = self._exchange.figures if self._pace else None
        self._pace = format.longer_pace(self._pace, event, before)
        self._add(figures=event.figures)

    def _add(self, **changes: Any) -> None:
        self._exchange = replace(self._exchange, **changes)

    def _write(self, **changes: Any) -> None:
        self._add(**changes)
        if (awaited := self.awaited) is not None:  # before the page learns of the end
            self._state.wait_for_whole(awaited)
        self._state.chats.update(self.chat, self.position, self._exchange)


def _parts_offer(state: AppState, question: str) -> str:
    """What the button says that puts a question to parts of the open book; "" if the book has no parts, or is read as a
    whole.
    """
    current = state.current
    if current.document is None or not current.parts or current.stage not in (Stage.PARTS, Stage.CHOOSING):
        return ""
    words = state.citation_finder.prepare(current.document).result().words
    tokens = sum(part.tokens for part in choose_parts(question, current.parts, words).parts)
    a_token = state.experience.a_token(state.engine.status().model, current.whole_fit) if current.whole_fit else None
    return f"Read the parts for this: {stretch(a_token.times(tokens))}" if a_token else "Read the parts for this"


def unread(document: Document, question: str) -> list[str]:
    """Lines for the note above an answer, one for each page that is wholly or mostly an unread picture, if the question
    names the page or a figure on it. At most ``_MOST_UNREAD`` lines.
    """
    pages = [page for page in document.pages if page.picture in ("unread", "figure")]
    named = pages_numbered(document, question) if pages else frozenset()
    figures = set(_FIGURE.findall(question))
    concerned = [page for page in pages if page.number in named or figures.intersection(_FIGURE.findall(page.text))]
    said = {"unread": "{} is a picture, which was not read", "figure": "Most of {} is a picture, which was not read"}
    lines = [said[page.picture].format(format.page_of(document, page, long=True)) for page in concerned[:_MOST_UNREAD]]
    return [line[:1].upper() + line[1:] for line in lines]


def _how(sampling: SamplingParams, defaults: SamplingParams | None) -> dict[str, Any]:
    """The sampling options to store with an answer. An option that ``sampling`` leaves open has the value from
    ``defaults``, the model's own settings; the names of such options are listed under "own". An option that is switched
    off is None. If ``defaults`` is None, because a server does not tell its settings, the result has only the options
    of ``sampling``.
    """
    if defaults is None:
        return asdict(sampling)
    whole = asdict(sampling.over(defaults).over(GREEDY))
    said = [name for name in OWN_SAMPLING if getattr(sampling, name) is None and getattr(defaults, name) is not None]
    off = [one.name for one in options_of(SamplingParams) if not one.said_if_off and whole[one.name] == one.off]
    return {**whole, **dict.fromkeys(off), "own": said}


def _letters(event: TextDelta | AnswerDone) -> str:
    """The first letters of the names of the tokens' sources, as stored in ``Exchange.stages``."""
    return "".join(source.value[0] for source in event.sources)
