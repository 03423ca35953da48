"""Records how a question is put to the parts of a book. The record is stored, and the page shows it.

    record = PartsRecord(document, parts, choice, kept)
    record.take(event)          every event of ``app.core.part_run.ask_parts``
    record.view()               plain JSON, kept with the exchange under "parts"

The record holds each part's answer with its evidence. If a run was stopped, or ended with the program, its record is
passed to ``PartsRecord`` for the next run. ``known`` then has the answers of the earlier run, and only the other parts
are asked. This module has no side effects.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from app.core import format
from app.core.forecast import Range, Remaining
from app.core.part_run import Joining, PartAnswer, PartAnswered, PartBegun, PartEvent, PartsAnswered
from app.core.parts import Mention, Part, PartsChoice, left_out, mentioned, numbered
from app.trust.citations import UNQUOTED
from engine.document import Document
from engine.events import BookRead, ReadingProgress, StopReason, TextDelta

LOOKING = "Looking for the parts that promise most…"


class PartsRecord:
    """The record of a question that is put to the parts of a book.

    Args:
        document: the whole book.
        record: the ``view`` of an earlier run of this question; None if there was none.
        all_parts: whether all parts are to be asked.
        a_token: expected seconds for reading one token.
    """

    def __init__(
        self,
        document: Document,
        parts: Sequence[Part],
        choice: PartsChoice,
        record: Mapping[str, Any] | None = None,
        all_parts: bool = False,
        a_token: Range | None = None,
    ) -> None:
        self._a_token = a_token
        self._document = document
        self._parts = {part.number: part for part in parts}
        self._choice = choice
        self._every = all_parts
        self.known = [answer for one in (record or {}).get("asked", ()) if (answer := self._answer(one)) is not None]
        self._answers = list(self.known)
        self._spent = float((record or {}).get("seconds", 0.0)) if self.known else 0.0
        self._began = time.monotonic()
        self._part: Part | None = None
        self._remaining = Remaining()
        self._now: dict[str, Any] | None = None
        self._joining = False
        self.joins = False
        """Whether the words that are now arriving come from the final pass, which joins the answers of the parts."""

    def take(self, event: PartEvent) -> None:
        if isinstance(event, PartBegun):
            time = self._a_token.times(event.part.tokens) if self._a_token else None
            self._part, self._remaining = event.part, Remaining(time)
            most = "up to " if self._choice.until_found and event.count > 1 else ""
            self._now = {
                "name": f"Part {event.part.number}, {event.part.pages}",
                "at": f"{event.number} of {most}{event.count}",
                "line": "opening",
                "text": "",
            }
        elif isinstance(event, Joining):
            self._part, self._joining, self.joins = None, True, event.last
            self._now = {
                "name": f"Putting {format.counted(event.count, 'answer')} together",
                "at": "",
                "line": "",
                "text": "",
            }
        elif isinstance(event, ReadingProgress) and self._now is not None:
            self._remaining = self._remaining.after(event)
            done = format.percent(event.tokens_done / event.tokens_total) if event.tokens_total else ""
            self._now["line"] = " · ".join(filter(None, (f"reading, {done}", self._remaining.words)))
        elif isinstance(event, BookRead) and self._now is not None:
            self._now["line"] = "answering"
        elif isinstance(event, TextDelta) and self._now is not None and not self._joining:
            self._now["text"] += event.text
        elif isinstance(event, PartAnswered):
            self._answers.append(event.answer)
            self._now = None
        elif isinstance(event, PartsAnswered):
            self._now = None

    @property
    def phase(self) -> tuple[int, str, bool]:
        """The number of parts that have answered, the name of the part that is asked now, and whether the first word of
        its answer has come. The page is updated sooner after a change of these values (``chat_run.Throttle.settle``).
        """
        now = self._now or {}
        return len(self._answers), str(now.get("name", "")), bool(now.get("text"))

    def scores(self, scores: Sequence[float]) -> tuple[float, ...]:
        """Return a score for every page of the book: ``scores`` for the pages of the part that is asked, 0 for all
        other pages. Empty while answers are joined, because no part is asked then.
        """
        if self._part is None or len(scores) != len(self._part.document.pages):
            return ()
        numbers = [page.number for page in self._document.pages]
        before = numbers.index(self._part.first)
        return (*[0.0] * before, *scores, *[0.0] * (len(numbers) - before - len(scores)))

    def ended(self) -> None:
        """Record that no part is being asked any more. Called at the end of every run, also after an error."""
        self._now = None

    def view(self) -> dict[str, Any]:
        """Return the record as plain data. ``asked``: each part's answer, in the order of asking. ``line``: a line that
        names these parts. ``said``: a sentence that names the parts that were not asked, with the reason. ``now``: the
        part that is being read or asked, or None.
        """
        asked = [answer.part for answer in self._answers]
        seconds = self._spent + time.monotonic() - self._began
        there = numbered(sorted(asked), "part", "parts") if asked else "no part"
        return {
            "every": self._every,
            "asked": [self._kept(answer) for answer in self._answers],
            "line": f"asked {there} of {len(self._parts)} in {format.duration(seconds)}",
            "left": len(self._parts) - len(asked),
            "said": left_out(self._choice, list(self._parts.values()), asked),
            "mentions": [
                {"said": mentioned(one, self._choice.reach, self._document), "chip": self._chip(one)}
                for one in self._choice.mentions
            ],
            "now": dict(self._now) if self._now else None,
            "seconds": round(seconds, 1),
        }

    def _chip(self, mention: Mention) -> dict[str, Any]:
        """Make the citation for a mention's page. In a book of several documents, a citation has the page's number
        within its own document.
        """
        member = self._document.member_at(mention.page)
        number = mention.page - (member.page_offset if member else 0)
        chip = {
            "kind": "names",
            "unit": (member or self._document).unit,
            "pages": [{"number": number, "label": mention.label}],
            "marks": [[number, start, end] for start, end in mention.marks],
        }
        return chip | ({"of": member.sha256, "document": member.title} if member else {})

    def _kept(self, answer: PartAnswer) -> dict[str, Any]:
        part = self._parts[answer.part]
        return {
            "part": answer.part,
            "first": part.first,
            "last": part.last,
            "pages": answer.pages,
            "text": answer.text,
            "found": answer.found,
            "level": answer.level,
            "record": _borne_out(answer),
            "stopped": answer.stopped.value,
        }

    def _answer(self, record: Mapping[str, Any]) -> PartAnswer | None:
        """Restore a part's answer from the record of an earlier run. Return None if the book is now cut into other
        parts, for example for another model.
        """
        part = self._parts.get(int(record["part"]))
        if part is None or (part.first, part.last) != (record["first"], record["last"]):
            return None
        return PartAnswer(
            part.number,
            str(record["pages"]),
            str(record["text"]),
            bool(record["found"]),
            str(record["level"]),
            dict(record["record"]),
            StopReason(record["stopped"]),
            from_disk=True,
        )


def _borne_out(answer: PartAnswer) -> dict[str, Any]:
    """The evidence of a part's answer. For a refusal, only the citations of quoted or copied words are kept."""
    record = dict(answer.record)
    if not answer.found:
        record["chips"] = [chip for chip in record.get("chips", ()) if chip["kind"] not in UNQUOTED]
    return record
