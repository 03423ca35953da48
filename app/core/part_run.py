"""Asks the parts of a book a question: reads each part, or restores it from disk, asks it the question, and joins the
answers.

    for event in ask_parts(engine, choice, question, document, card): ...
        PartBegun(part 3, 1 of 4)          then the engine's events of reading and answering
        PartAnswered(...)                  the part's answer, with the evidence of its sentences
        Joining(...)                       a pass begins that joins answers; then its events
        PartsAnswered(...)                 the final answer

The engine treats a part as an ordinary document: its reading is saved on disk and restored, so that no part is computed
twice, and a stopped reading continues where it was. The last pass reads the parts' answers as a small document, with
the names of their pages, and answers the question from this document. Evidence for each sentence of the last answer is
then looked up in the whole book. This module knows neither the page nor the terminal.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.core.abilities import Abilities, Denials
from app.core.parts import Part, PartsChoice, Reach, cut
from app.core.question import Ask
from app.trust.citations import VERSION, CitationFinder, Citations, evidence
from app.trust.evidence import is_refusal
from app.trust.quoted import sentences
from engine import HANDOVER_S, EngineLike, Question, Turn
from engine.document import Document, Reading
from engine.errors import ContextTooSmall
from engine.events import AnswerDone, BookRead, Event, StopReason
from engine.passages import reminded

PART_TOKENS = 256
"""Maximum tokens of a part's answer, if the answers of several parts are to be joined. All these answers have to fit
into the window of the last pass.
"""
HISTORY_LETTERS = 1500
"""Maximum characters of earlier turns that each part is given, since each part has to prefill them."""
TOGETHER = (
    "These are answers to one question, each from another part of one book, in the order of the book. Put them "
    "together into one answer to the question. Say nothing that is not in them, and do not speak of parts."
)
NO_ANSWER = "No answer was found in this part."
"""The answer of a part if a small model refuses to answer, because it cannot know that the part says nothing."""
BORNE_OUT = ("says so", "near", "not found")


@dataclass(frozen=True)
class PartBegun:
    """Event: ``part`` is about to be read. It is number ``number`` (from 1) of the ``count`` parts that are asked."""

    part: Part
    number: int
    count: int


@dataclass(frozen=True)
class PartAnswer:
    """The answer of one part.

    ``part`` is the number of the part, and ``pages`` names its pages. ``stopped`` says how the answer ended. ``level``
    is the best level of evidence among the answer's sentences, or "" if no evidence was looked up or the sentences
    claim nothing. ``found``: whether the answer is more than a refusal. ``record``: the answer's evidence, as stored by
    ``app.trust.citations``. ``from_disk``: whether the part was restored from disk completely.
    """

    part: int
    pages: str
    text: str
    found: bool
    level: str
    record: Mapping[str, Any]
    stopped: StopReason
    from_disk: bool = False


@dataclass(frozen=True)
class PartAnswered:
    answer: PartAnswer


@dataclass(frozen=True)
class Joining:
    """Event: a pass begins that joins ``count`` answers. If there are too many answers for one pass, they are first
    joined in groups. ``last``: whether this is the final pass, which joins everything that is left.
    """

    count: int
    last: bool


@dataclass(frozen=True)
class PartsAnswered:
    """Event: the run has ended. It is the last event.

    - ``text``: the answer. If ``joined``, it comes from the final joining pass. Otherwise it is the answer of one part,
      or the answers of several parts in order.
    - ``record``: the evidence of ``text``, as stored by ``app.trust.citations``
    - ``answers``: the answers of the parts
    - ``done``: the final event of the engine's last answer. None if the engine answered nothing in this run, or if the
      run was stopped while the engine was reading the parts' answers for the final joining pass.
    - ``stopped``: whether the run was stopped
    """

    text: str
    record: Mapping[str, Any]
    answers: tuple[PartAnswer, ...]
    joined: bool
    done: AnswerDone | None
    stopped: bool = False


PartEvent = PartBegun | PartAnswered | Joining | PartsAnswered | Event
Steps = Generator[PartEvent, None, Any]


def ask_parts(
    engine: EngineLike,
    choice: PartsChoice,
    question: Ask,
    document: Document,
    card: Abilities,
    *,
    citation_finder: CitationFinder,
    known_answers: Sequence[PartAnswer] = (),
    cancel: threading.Event | None = None,
) -> Steps:
    """Ask the chosen parts, one after another, and join their answers.

    Args:
        document: the whole book.
        card: the model's abilities.
        citation_finder: finds evidence in the whole book.
        known_answers: the parts' answers from an earlier run; these parts are not asked again.
        cancel: stops the run; the last event then has the answers so far.

    Raises:
        TrifoldError: a part could not be read or answered. The KV of the parts read so far stays on disk.
    """
    return _Run(engine, choice, question, document, card, citation_finder, cancel).steps(known_answers)


def needs_join(answers: Sequence[PartAnswer], choice: PartsChoice, card: Abilities) -> bool:
    """Whether the model has to join the answers. This is so if several answers are worth joining, all chosen parts are
    asked, not only those up to the first supported answer, and the model can do more than quote.
    """
    return len(worth_joining(answers)) > 1 and not choice.until_found and not card.only_quotes


def worth_joining(answers: Sequence[PartAnswer]) -> list[PartAnswer]:
    """The answers to join, in the order of the book: all except empty answers, refusals, and answers for which no
    evidence was found in their part.
    """
    said = (one for one in answers if one.found and one.text.strip() and one.level != "not found")
    return sorted(said, key=lambda one: one.part)


@dataclass
class _Run:
    engine: EngineLike
    choice: PartsChoice
    question: Ask
    document: Document
    card: Abilities
    citation_finder: CitationFinder
    cancel: threading.Event | None

    def steps(self, known_answers: Sequence[PartAnswer]) -> Steps:
        answers = list(known_answers)
        asked = {one.part for one in answers}
        last: AnswerDone | None = None
        hints = dict(zip((part.number for part in self.choice.parts), self.choice.hints, strict=False))
        for number, part in enumerate(self.choice.parts, start=1):
            if self._is_enough(answers):
                break
            if part.number in asked:
                continue
            yield PartBegun(part, number, len(self.choice.parts))
            read = yield from self._read(part.document)
            if self._stopped() or read.stopped:
                yield self._ended(answers, last, stopped=True)
                return
            answer, last = yield from self._asked(part, hints.get(part.number, ()), read)
            if last.stop_reason is StopReason.CANCELLED:
                yield self._ended(answers, last, stopped=True)
                return
            answers.append(answer)
            yield PartAnswered(answer)
        if needs_join(answers, self.choice, self.card):
            yield from self._join(answers)
        else:
            yield self._ended(answers, last)

    def _is_enough(self, answers: Sequence[PartAnswer]) -> bool:
        """Whether the newest answer ends the run: it stops at the first supported answer, and this answer is
        supported. If the question is about the first or last place of a name, a related passage ("near") is enough
        support, because the question was sent together with the text of that place.
        """
        if not self.choice.until_found or not answers:
            return False
        levels = ("says so",) if self.choice.reach is Reach.FEW else ("says so", "near")
        return answers[-1].found and (not self.question.evidence or answers[-1].level in levels)

    def _stopped(self) -> bool:
        return self.cancel is not None and self.cancel.is_set()

    def _read(self, document: Document) -> Generator[PartEvent, None, BookRead]:
        # done first, because reading ``document`` would stop the saving of the part that is in the engine
        self.engine.finish_saving()
        request = self.engine.read(Reading(document, wait=HANDOVER_S), cancel=self.cancel)
        yield from request
        return request.result()

    def _asked(
        self, part: Part, hints: Sequence[str], read: BookRead
    ) -> Generator[PartEvent, None, tuple[PartAnswer, AnswerDone]]:
        sampling = self.question.sampling
        if not self.choice.until_found and len(self.choice.parts) > 1:
            sampling = replace(sampling, max_tokens=min(sampling.max_tokens, PART_TOKENS))
        question = replace(
            self.question,
            text=reminded(self.question.text, hints),
            history=recent(self.question.history),
            sampling=sampling,
            begun=self.card.lead(self.question.text),
            chat="",
            wait=HANDOVER_S,
        )
        citations = CitationFinder().begin(
            part.document, self.question.text if self.question.evidence else None, question.begun
        )
        denials = Denials(self.card, question.begun)
        done = yield from self._answered(question, citations, denials)
        text = NO_ANSWER if denials.refused else question.begun + done.text
        record = shifted(citations.record(), len(text.lstrip()) - len(text))
        level = _best(evidence(record, text))
        answer = PartAnswer(
            part.number,
            part.pages,
            text.strip(),
            not denials.refused and _claims(text),
            level,
            self._of_book(record),
            done.stop_reason,
            from_disk=read.tokens_restored >= read.tokens,
        )
        return answer, done

    def _of_book(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """Correct the evidence of a part's answer: remove words from its lists "missing" if another part of the book
        has them.
        """
        if not self.question.evidence:
            return dict(record)
        book = self.citation_finder.prepare(self.document).result().words
        kept = {**record, "chips": []}
        for chip in record["chips"]:
            missing = [words for words in chip.get("missing", ()) if book.lacks(words)]
            if missing or not chip.get("missing"):
                kept["chips"].append({**chip, "missing": missing} if missing else chip)
        if record.get("missing"):
            kept["missing"] = [words for words in record["missing"] if book.lacks(words)]
            if not kept["missing"]:
                del kept["missing"]
        return kept

    def _answered(
        self, question: Question, citations: Citations, denials: Denials
    ) -> Generator[PartEvent, None, AnswerDone]:
        request = self.engine.ask(question, cancel=self.cancel)
        for event in (each for one in request for each in denials.pass_on(one)):
            citations.take(event)
            yield event
        return request.result()

    def _join(self, answers: Sequence[PartAnswer]) -> Steps:
        texts = [f"{one.pages[:1].upper()}{one.pages[1:]}:\n{_once(one)}" for one in worth_joining(answers)]
        while True:
            answers_text = replace(Document.from_pages(f"Answers about {self.document.title}", texts), sha256="")
            groups = cut(answers_text, self.engine.measure(answers_text))
            if len(groups) >= len(texts):
                raise ContextTooSmall(
                    "The answers of the parts are too long to be put together in this window.",
                    "They stand above. A model with a larger window puts them together.",
                )
            yield Joining(len(texts), last=len(groups) == 1)
            texts = []
            for group in groups:
                read = yield from self._read(group.document)
                if self._stopped() or read.stopped:
                    yield self._ended(answers, None, stopped=True)
                    return
                question = replace(
                    self.question,
                    text=f"{TOGETHER}\n\n{self.question.text}",
                    history=(),
                    begun="",
                    chat="",
                    wait=HANDOVER_S,
                )
                citations = self.citation_finder.begin(
                    self.document, self.question.text if self.question.evidence else None
                )
                done = yield from self._answered(question, citations, Denials(Abilities()))
                texts.append(done.text.strip())
            if len(groups) == 1 or done.stop_reason is StopReason.CANCELLED:
                stopped = done.stop_reason is StopReason.CANCELLED
                yield PartsAnswered(done.text, citations.record(), tuple(answers), True, done, stopped)
                return

    def _ended(self, answers: Sequence[PartAnswer], done: AnswerDone | None, stopped: bool = False) -> PartsAnswered:
        """Make the final event of a run in which the model has not joined the parts' answers into one answer."""
        said = worth_joining(answers)
        if self.choice.until_found:
            said = sorted(said, key=lambda one: _rank(one.level))[:1]
        if len(said) == 1 or not said:
            one = said[0] if said else answers[-1] if answers else None
            text, record = (one.text, one.record) if one else ("", {})
            return PartsAnswered(text, record, tuple(answers), False, done, stopped)
        text, chips = "", list[Any]()
        # The evidence of each part's answer is kept and moved to the answer's position in the joined text. No evidence
        # is looked up for the joined text in the whole book.
        for one in said:
            text += ("\n\n" if text else "") + f"{one.pages[:1].upper()}{one.pages[1:]}: "
            chips += shifted(one.record, len(text))["chips"]
            text += one.text
        record = {"v": VERSION, "unit": self.document.unit, "ink": "", "chips": chips}
        return PartsAnswered(text, record, tuple(answers), False, done, stopped)


def shifted(record: Mapping[str, Any], offset: int) -> dict[str, Any]:
    """Move the positions of citations in a text by ``offset`` characters. ``offset`` is negative if characters at the
    beginning of the text were removed.
    """
    moved = [{**chip, "at": chip["at"] + offset, "from": chip["from"] + offset} for chip in record.get("chips", ())]
    return {**record, "chips": moved}


def recent(history: Sequence[Turn]) -> tuple[Turn, ...]:
    """The newest turns whose questions and answers together have at most ``HISTORY_LETTERS`` characters."""
    kept: list[Turn] = []
    letters = 0
    for turn in reversed(history):
        letters += len(turn.question) + len(turn.answer)
        if letters > HISTORY_LETTERS:
            break
        kept.insert(0, turn)
    return tuple(kept)


def _once(answer: PartAnswer) -> str:
    """The text of an answer. If the answer was stopped because it repeated itself, each of its items between commas is
    kept only once, so that the joining pass does not repeat it too.
    """
    return ", ".join(dict.fromkeys(answer.text.split(", "))) if answer.stopped is StopReason.LOOP else answer.text


def _claims(text: str) -> bool:
    return any(not is_refusal(text[span.start : span.end]) for span in sentences(text))


def _best(found: Sequence[Mapping[str, Any]]) -> str:
    return min((str(one["level"]) for one in found), key=_rank, default="")


def _rank(level: str) -> int:
    return BORNE_OUT.index(level) if level in BORNE_OUT else len(BORNE_OUT)
