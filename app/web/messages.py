"""Formats the chat as messages for Gradio's chatbot, and the answer being written as HTML for the live stream.

Owns the two kinds of buttons in the chat: message actions and citations.

Message actions are under a question and an answer (versions, copy, edit, ask again, go on). The value of a button names
its action and message ("edit:12" asks question 12 in other words). The page's ``ask.js`` executes the action.

Citations follow sentences, and claim no more than is known. "verified" and "not found" are facts about the text of the
book. A bare page number says that this page supports the sentence. "near" before it says that the page is only related
to the sentence. "drew on" names a page that the model attended to, which is a hint. Names and numbers that occur
nowhere in the book are listed above the answer. This module has no side effects.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from app.core import format
from app.core.best_passages import heading
from app.core.chats import Exchange, Trouble
from app.core.export import has_pages
from app.core.format import View
from app.core.settings import READER
from app.web.markdown import closed, rendered
from engine.events import StopReason

AGAIN, GO_ON, EDIT, COPY, NOTE, SHOW, USE = "again", "continue", "edit", "copy", "note", "show", "use"
PAGES, ALOUD, REST, FIGURES, WHOLE, ENOUGH = "pages", "aloud", "rest", "figures", "whole", "enough"
"""Message actions. ``NOTE`` keeps a sentence, ``SHOW`` shows another version, ``USE`` lets another model answer,
``PAGES`` copies with passages, ``REST`` asks the remaining parts of the book, ``FIGURES`` shows an answer's figures,
``WHOLE`` asks the whole book or parts of it what was answered from passages, ``ENOUGH`` ends the waiting for that.
"""


def under_question(exchange: Exchange) -> str:
    """Make the HTML of the row of buttons under a question."""
    if not exchange.question_id:
        return ""
    return _row(
        _versions(exchange.questions, exchange.question_id, "question"),
        _button(EDIT, exchange.question_id, "Edit"),
        _button(COPY, exchange.question_id, "Copy"),
    )


def under_answer(exchange: Exchange, awaited: bool = False) -> str:
    """Make the HTML of the row of buttons under a finished answer. ``awaited``: whether the answer from the whole book
    follows by itself.
    """
    if not exchange.answer_id:
        return ""
    whole = exchange.from_parts or (format.of_text("Ask the whole book", exchange.notes) if exchange.is_first else "")
    return _row(
        _versions(exchange.answers, exchange.answer_id, "answer"),
        _button(GO_ON, exchange.answer_id, "Continue", "action main") if exchange.can_be_continued else "",
        _button(COPY, exchange.answer_id, "Copy") if exchange.answer else "",
        _button(PAGES, exchange.answer_id, "Copy with pages") if has_pages(exchange.notes) else "",
        _button(ALOUD, exchange.answer_id, "Read aloud", "action aloud") if exchange.answer else "",
        _button(NOTE, exchange.answer_id, "Note") if exchange.answer else "",
        _button(WHOLE, exchange.answer_id, _only_words(whole)) if whole and not awaited else "",
        _button(AGAIN, exchange.answer_id, "Ask again"),
        _button(REST, exchange.answer_id, "Ask the other parts") if _parts(exchange.notes).get("left") else "",
    )


def _versions(versions: tuple[int, ...], shown: int, of_what: str) -> str:
    """Make the arrows that switch between versions, with the number of the shown version. "" if there is only one
    version.
    """
    if len(versions) < 2 or shown not in versions:
        return ""
    at = versions.index(shown)
    back = _arrow(versions[at - 1] if at else None, "‹", f"Earlier {of_what}")
    on = _arrow(versions[at + 1] if at + 1 < len(versions) else None, "›", f"Later {of_what}")
    return f'<span class="versions">{back}<span>{at + 1} / {len(versions)}</span>{on}</span>'


def _arrow(message: int | None, sign: str, name: str) -> str:
    if message is None:
        return f'<button type="button" class="action arrow" disabled aria-label="{name}">{sign}</button>'
    return f'<button type="button" class="action arrow" value="{SHOW}:{message}" aria-label="{name}">{sign}</button>'


def _button(action: str, message: int, words: str, classes: str = "action") -> str:
    return f'<button type="button" class="{classes}" value="{action}:{message}">{words}</button>'


def _row(*parts: str) -> str:
    return f'\n\n<div class="actions">{"".join(parts)}</div>'


# private characters before and after the number of a button; they mark the button's place until the text is HTML
_OPEN, _CLOSE = "\ue000", "\ue001"
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_END = "\ue002"  # a private character for the caret at the end of a growing answer
_BREAKS = re.compile(r"[^\S\u00a0]+")
_PRIVATE = re.compile(f"[{_OPEN}{_CLOSE}{_END}]")
_SAFE = " .,–-"
# matches the first 12 digits of a document's hash, from which the CSS class of its citation buttons is made
_HASH = re.compile(r"[0-9a-f]{12}")
# if at least this share of a quotation's words stand together in the book, its button says how many words these are
_NEARLY = 0.5
_MOST_LACKING = 5  # maximum words of a sentence that are listed because the nearest passage lacks them

_WORDS = {
    "quoted": "verified, {}",
    "verbatim": "word for word, {}",
    "missing": "not found",
    "nearly": "not exact, {} of {} words, {}",
    "says": "{}",
    "near": "check {}",
    "absent": "not in the book",
    "drew": "drew on {}",
    "names": "{}",
    "passage": "{}",
}
_ALOUD = {"says": '<span class="unseen"> says so</span>'}
"""Labels of buttons for screen readers."""
_SAID = {
    "quoted": "These words stand in the book, {}.",
    "verbatim": "This sentence stands in the book word for word, {}.",
    "missing": "These words stand nowhere in the book.",
    "partly": "These words do not stand in the book like this. {} of {} stand {}.",
    "says": "The book says so {}: a passage has the names, the numbers and most of the words of this sentence.",
    "group": "The book says so {}: passages have the names, numbers and most words of these {} sentences.",
    "near": "The nearest passage stands {}. It does not say all of this sentence.",
    "lacks": "The nearest passage stands {}. It does not have: {}.",
    "names": "These words stand {}.",
    "passage": "This passage has words of your question. It stands {}.",
    "drew": "The model attended to {} while it wrote this sentence, {} times as much as to an average page. "
    "That is a hint, not a proof.",
}


def marked(answer: str, notes: Mapping[str, Any] | None, turn: int) -> str:
    """A finished answer as HTML with its citations.

    Args:
        turn: position of the exchange in the chat. A button's value is this position and the number of its citation.
    """
    ours = partial(_with_buttons, record=notes, turn=turn, offset=_before(notes))
    return rendered(_with_marks(answer, notes), ours)


def _with_marks(answer: str, record: Mapping[str, Any] | None) -> str:
    """The answer with a mark at the place of each citation's button."""
    text = _PRIVATE.sub("\ufffd", answer)
    parts, start = [], 0
    for number, chip in enumerate(_own_chips(record)):  # the citations are in the order of the text
        end = min(max(start, int(chip["at"])), len(text))
        parts.append(f"{text[start:end]}{_OPEN}{number}{_CLOSE}")
        start = end
    return "".join([*parts, text[start:]])


def _with_buttons(text: str, record: Mapping[str, Any] | None, turn: int, offset: int = 0) -> str:
    """Replace marks by buttons.

    Args:
        offset: number of the exchange's citations before the first citation of ``record``.
    """
    chips, unit = _own_chips(record), _unit(record)

    def button(mark: re.Match[str]) -> str:
        number = int(mark[1])
        if _is_with_next(chips, number):
            return ""
        follows = number > 0 and _same_sentence(chips[number - 1], chips[number])
        chip, name = chips[number], f"{turn}.{offset + number}"
        return _citation_button(chip, unit, name, follows, record)

    return _MARK.sub(button, text)


def card(notes: Mapping[str, Any] | None, number: int) -> View | None:
    """The content of the card next to a citation's button; None if no citation has this number. The key ``of`` of the
    result is the hash of the page's document, if there are several documents.
    """
    chips = _chips(notes)
    if not 0 <= number < len(chips):
        return None
    chip, sentences = chips[number], len(_group(chips, number))
    around = chip.get("extract") or {}
    if chip["kind"] == "absent":
        said = f"{format.absence({**(notes or {}), 'missing': chip['missing']})}."
    else:
        said = _said(chip, _unit(notes), notes, sentences)
    if any(page.get("recognised") for page in chip["pages"]):
        said += " Recognised from a picture; may have slips."
    if any(page.get("unread") for page in chip["pages"]):
        said += " Most of that page is a picture, which was not read."
    return {
        "kind": chip["kind"],
        "said": said,
        "extract": {part: around.get(part, "") for part in ("before", "hit", "after")},
        "page": chip["pages"][0]["number"] if chip["pages"] else None,
        "of": chip.get("of", ""),
    }


def marks(notes: Mapping[str, Any] | None, number: int) -> list[tuple[int, int, int]]:
    """The characters that a citation marks, as (page number, start, end), in the order of the book."""
    chips = _chips(notes)
    group = _group(chips, number) if 0 <= number < len(chips) else []
    spans = {tuple(map(int, mark)) for chip in group for mark in chip.get("marks", ())}
    return [(page, start, end) for page, start, end in sorted(spans)]


def _is_with_next(chips: Sequence[Mapping[str, Any]], number: int) -> bool:
    """Whether the button of the next citation stands for this one too (``app.trust.citations``)."""
    return bool(chips[number].get("with_next")) and number + 1 < len(chips) and chips[number + 1]["kind"] == "says"


def _group(chips: Sequence[Mapping[str, Any]], number: int) -> Sequence[Mapping[str, Any]]:
    """The citations that the button of citation ``number`` stands for, in the order of the answer."""
    first = number
    while first and _is_with_next(chips, first - 1):
        first -= 1
    return chips[first : number + 1]


def _own_chips(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return list((record or {}).get("chips", ()))


def _parts(notes: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The record of a question that was asked of a book's parts (``app.core.parts_record``); empty for any other
    question.
    """
    return (notes or {}).get("parts") or {}


def _chips(notes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """All citations of an exchange, in the order of their numbers: the passages that were found first and the citations
    of the answer from passages (``_earlier``), the citations of a book's parts, and those in the answer, which may get
    more citations while it grows.
    """
    parts = _parts(notes)
    named = [one["chip"] for one in parts.get("mentions", ())]
    said = [chip for one in parts.get("asked", ()) for chip in _own_chips(one["record"])]
    return [*_earlier(notes), *named, *said, *_own_chips(notes)]


def _earlier(notes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    first = (notes or {}).get("first_answer") or {}
    return [*_passages_of(notes), *_own_chips(first.get("notes"))]


def _passages_of(notes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The passages that fit the question best (``app.core.best_passages``)."""
    return list((notes or {}).get("passages", ()))


def _before(notes: Mapping[str, Any] | None) -> int:
    return len(_chips(notes)) - len(_own_chips(notes))


def _unit(notes: Mapping[str, Any] | None) -> str:
    return str((notes or {}).get("unit", "page"))


def _same_sentence(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one["kind"] == other["kind"] == "drew" and one["at"] == other["at"]


def absent(notes: Mapping[str, Any] | None) -> str:
    """Return the line above an answer: which words of the answer or the question the book lacks, or that no passage
    supports the answer. "" if neither applies.
    """
    return format.absence(notes or {})


def _assumed(notes: Mapping[str, Any] | None) -> list[str]:
    return format.assumed(notes, _unit(notes)) if notes and not notes.get("from_notes") else []


def _said(chip: Mapping[str, Any], unit: str, notes: Mapping[str, Any] | None, sentences: int = 1) -> str:
    """What the card says of a citation that stands for a number of sentences."""
    places = format.standing(chip, unit)
    kind, values = str(chip["kind"]), [places]
    if sentences > 1:
        kind, values = "group", [places, str(sentences)]
    elif kind == "missing" and chip["pages"]:
        kind, values = "partly", [f"{chip['matched']} neighbouring words", str(chip["total"]), places]
    elif kind == "passage" and not chip.get("words"):
        kind = "names"
    elif kind == "near" and chip.get("lacks"):
        kind, values = "lacks", [places, ", ".join(chip["lacks"][:_MOST_LACKING])]
    elif kind == "drew":
        values = [format.place_named(chip, unit), f"{chip['times']:.0f}"]
    return format.of_text(_SAID[kind], notes).format(*values)


def _citation_button(
    chip: Mapping[str, Any], unit: str, name: str, follows: bool, notes: Mapping[str, Any] | None = None
) -> str:
    """Make the HTML of a citation's button. ``notes``: the answer's, which say what the text is called, and which part
    of it is open (``app.core.outside``).
    """
    part = (notes or {}).get("part")
    kind = str(chip["kind"])
    named = {**chip, "document": ""} if (notes or {}).get("each") else chip  # its column names its document
    places = format.place_named(named, unit, long=False)
    words = places if follows else _words_of(kind, notes).format(places)
    if kind == "missing" and chip["pages"] and chip["matched"] >= _NEARLY * chip["total"]:
        kind, words = "missing nearly", _WORDS["nearly"].format(chip["matched"], chip["total"], places)
    if kind == "absent" and not chip["missing"]:
        words = "no passage found"
    elif kind == "absent" and part and not part["elsewhere"].keys().isdisjoint(chip["missing"]):
        words = f"not in {part['where']}"
    aloud = _ALOUD.get(kind, "")
    if of := _HASH.match(str(chip.get("of", ""))):
        kind += f" of-{of[0]}"
    return f' <button type="button" class="cite {kind}" value="{name}">{_only_words(words)}{aloud}</button>'


def _words_of(kind: str, notes: Mapping[str, Any] | None) -> str:
    """The label of a citation's button, with {} for its place."""
    of_notes = kind in ("quoted", "verbatim") and (notes or {}).get("from_notes")
    return "in your notes, {}" if of_notes else format.of_text(_WORDS[kind], notes)


def _only_words(text: str) -> str:
    """Escape a label from the book, so that neither HTML nor Markdown interprets any of its characters."""
    return "".join(sign if sign.isalnum() or sign in _SAFE else f"&#{ord(sign)};" for sign in text)


def _one_line(text: str) -> str:
    """Escape a line for HTML. It has no line breaks, because in Markdown an empty line would end the HTML. Spaces that
    hold a number and its unit together stay.
    """
    return html.escape(_BREAKS.sub(" ", text).strip())


ChatMessage = dict[str, Any]
"""A message for ``gradio.Chatbot``: role and content, which is HTML without empty lines inside an element, so that
Gradio's Markdown leaves all of it alone.
"""

Made = dict[int, tuple[tuple[Exchange, bool], list[ChatMessage]]]
"""Exchanges with their finished messages, by position in the chat. The flag says whether the answer from the whole book
follows.
"""

_NEWEST_THOUGHT = 2_000  # characters of a growing thought that are sent to the page with every change
_ENDED_THINKING = "The answer ended while the model was still thinking. “Continue” lets it go on."

LONGEST_QUESTION = 20_000
"""Maximum characters of a question that are shown; the model gets the whole question."""

CARET = '<span class="caret at-{}"></span>'
"""HTML of the caret at the end of a growing answer. Its class has the length of the answer so far in UTF-16 units."""

WRITING = '<div class="writing"><span class="waiting">Thinking…</span></div>'
"""The placeholder of an answer that is being written. The answer's words, and the reason why it waits, come only
through the live stream, so this HTML never changes and Gradio draws it once.
"""


def messages(
    exchanges: Sequence[Exchange], messages_made: Made | None = None, awaited: Collection[int] = ()
) -> list[ChatMessage]:
    """Make the messages of the whole chat, with the placeholder ``WRITING`` for an answer that is being written.

    Args:
        messages_made: messages made earlier; finished exchanges are not made again, and new ones are added.
        awaited: ids of the answers from passages that the answer from the whole book follows.
    """
    messages_made = {} if messages_made is None else messages_made
    shown: list[ChatMessage] = []
    for turn, exchange in enumerate(exchanges):
        known, waits = messages_made.get(turn), exchange.is_first and exchange.answer_id in awaited
        if known is None or known[0][0] is not exchange or known[0][1] is not waits or exchange.stopped is None:
            asked = _asked(exchange.question) + under_question(exchange)
            answer = _answer(exchange, turn, waits)
            known = messages_made[turn] = (exchange, waits), [{"role": "user", "content": asked}, answer]
        shown += [dict(message) for message in known[1]]
    return shown


def _asked(question: str) -> str:
    """A question as typed, for the chatbot: no character is interpreted as Markdown, and line breaks are kept."""
    shown = question if len(question) <= LONGEST_QUESTION else question[:LONGEST_QUESTION] + " …"
    lines = html.escape(shown, quote=False).splitlines()
    return f'<div class="asked">{"<br>".join(lines)}</div>'


def _answer(exchange: Exchange, turn: int, awaited: bool = False) -> ChatMessage:
    if exchange.stopped is None:
        return {"role": "assistant", "content": WRITING}
    if exchange.by_passages:
        return {"role": "assistant", "content": _instead(exchange, turn) + under_answer(exchange)}
    content = f"{_found_first(exchange, turn)}\n\n" if _passages_of(exchange.notes) else ""
    content += _thought(exchange)
    content += _first_answer(exchange, turn, is_open=exchange.stopped is not StopReason.END)
    content += _above(exchange.notes) + marked(exchange.answer, exchange.notes, turn)
    content += _of_parts(exchange, turn)
    content += _following(exchange) if awaited else ""
    if exchange.trouble is not None:
        content += f"\n\n{_trouble(exchange.trouble)}"
    elif exchange.ended_thinking:
        content += f'\n\n<div class="under">{_ENDED_THINKING}</div>'
    elif under := _under(exchange):
        content += f'\n\n<div class="under">{under}</div>'
    return {"role": "assistant", "content": content + under_answer(exchange, awaited)}


def _following(exchange: Exchange) -> str:
    """The line under an answer from passages that the answer from the whole book follows, with the button that ends the
    waiting for it.
    """
    enough = _button(ENOUGH, exchange.answer_id, "Enough", "action main")
    of = format.all_of((exchange.notes or {})["first"]["of"])
    return f'\n\n<div class="under advice">{_one_line(f"The answer from {of} follows by itself.")} {enough}</div>'


def _thought(exchange: Exchange, *, newest: int | None = None) -> str:
    """What the model thought before it answered, as a folded line above the answer; "" if it thought nothing.

    Args:
        newest: maximum number of the newest characters that are shown; None for all.
    """
    thought = exchange.thought
    text = str(thought.get("text", "")).strip()
    if not text:
        return ""
    shown = text if newest is None or len(text) <= newest else f"… {text[-newest:]}"
    lines = "<br>".join(html.escape(line, quote=False) for line in shown.splitlines())
    line = _one_line(format.thought_line(thought))
    return f'<details class="thought"><summary>{line}</summary><div>{lines}</div></details>\n\n'


def _first_answer(exchange: Exchange, turn: int, *, is_open: bool) -> str:
    """The answer from passages in whose place this answer stands, as a part above it that can be folded. "" if there is
    none.
    """
    first = exchange.first_answer
    if first is None:
        return ""
    notes, text = first["notes"], str(first["text"])
    ours = partial(_with_buttons, record=notes, turn=turn, offset=len(_passages_of(exchange.notes)))
    line = f"The first answer, from {format.counted(notes['first']['passages'], 'passage')}"
    opened = " open" if is_open else ""
    words = _warnings(notes)
    return (
        f'<details class="first-answer"{opened}><summary>{line}</summary>'
        f"{words}{rendered(_with_marks(text, notes), ours)}</details>\n\n"
    )


def _instead(exchange: Exchange, turn: int) -> str:
    """What stands in place of an answer if passages are the answer: what the open text lacks, what they are, the
    passages, and who understands the book.
    """
    said, why = ((exchange.notes or {})["by_passages"][part] for part in ("said", "why"))
    fetch = f'<button type="button" class="action main" value="{USE}:{READER}">Use the reader</button>'
    passages = "".join(_passage(one, f"{turn}.{number}") for number, one in enumerate(_passages_of(exchange.notes)))
    return (
        f'{_warnings(exchange.notes)}<div class="under">{_one_line(said)}</div><div class="passages">{passages}</div>'
        f'<div class="under advice">{_one_line(why)} {fetch}</div>'
    )


def _found_first(exchange: Exchange, turn: int, *, is_open: bool = False) -> str:
    """The passages that fit the question best, as a part above the answer that can be folded. "" without passages."""
    passages = _passages_of(exchange.notes)
    if not passages:
        return ""
    rows = "".join(_passage(one, f"{turn}.{number}") for number, one in enumerate(passages))
    line = heading(len(passages), exchange.question)
    return f'<details class="passages"{" open" if is_open else ""}><summary>{line}</summary>{rows}</details>'


def _passage(chip: Mapping[str, Any], name: str) -> str:
    """A passage with the question's words marked, and the button that opens its page. No character of the book is
    interpreted as HTML or Markdown, and there is no empty line, which would end the HTML in Markdown.
    """
    signs = list(str(chip["text"]))
    for at in chip.get("lines", ()):
        signs[at - 1] = "\n"
    text, shown, at = "".join(signs), "", 0
    for start, end in chip["words"]:
        shown += f"{_only_words(text[at:start])}<mark>{_only_words(text[start:end])}</mark>"
        at = end
    return f'<div class="passage">{shown}{_only_words(text[at:])}{_citation_button(chip, "page", name, False)}</div>'


def _of_parts(exchange: Exchange, turn: int) -> str:
    """The text below an answer from parts of a book: the asked parts, their answers, and the parts not asked."""
    parts = _parts(exchange.notes)
    if not parts:
        return ""
    offset = len(_earlier(exchange.notes))
    asked = _said_by_parts(parts, turn, offset)
    line = _one_line(f"{parts['line'][:1].upper()}{parts['line'][1:]}")
    listed = f'<details class="parts"><summary>{line}</summary>{asked}</details>' if asked else ""
    told = "".join(
        f'<div class="under">{one}</div>' for one in (*_mentions(parts, turn, offset), _one_line(parts["said"])) if one
    )
    return f"\n\n{listed or f'<p>{line}</p>'}\n\n{told}"


def _mentions(parts: Mapping[str, Any], turn: int, offset: int) -> list[str]:
    return [
        _one_line(one["said"]) + _citation_button(one["chip"], "page", f"{turn}.{number}", False)
        for number, one in enumerate(parts.get("mentions", ()), offset)
    ]


def _said_by_parts(parts: Mapping[str, Any], turn: int, offset: int) -> str:
    """HTML of each part's answer, on one line.

    Args:
        offset: number of the exchange's citations before those of the parts.
    """
    before, rows = offset + len(parts.get("mentions", ())), []
    for one in parts.get("asked", ()):
        record = one["record"]
        ours = partial(_with_buttons, record=record, turn=turn, offset=before)
        words = rendered(_with_marks(one["text"], record), ours)
        name = _one_line(f"Part {one['part']}, {one['pages']}")
        rows.append(f'<div class="part"><b>{name}</b>{words}</div>')
        before += len(_own_chips(record))
    return "".join(rows)


def _parts_so_far(exchange: Exchange, turn: int) -> str:
    """The answers that the parts of a book have given so far, and the part that is being asked now."""
    parts = _parts(exchange.notes)
    if not parts:
        return ""
    now, going_on = parts.get("now"), ""
    if now:
        place = f" ({now['at']})" if now["at"] else ""
        line = f": {now['line']}" if now["line"] else ""
        words = f"<p>{_one_line(now['text'])}</p>" if now["text"] else ""
        going_on = f'<div class="part"><b class="waiting">{_one_line(now["name"] + place + line)}</b>{words}</div>'
    said = _said_by_parts(parts, turn, len(_earlier(exchange.notes)))
    return f'<div class="parts">{said}{going_on}</div>'


def _under(exchange: Exchange) -> str:
    """Make the HTML of the line under an answer. A click on the line opens the figures of the answer, with a small
    drawing of the pace curve (milliseconds per token). On a phone the figures have fewer words.
    """
    why_not = str((exchange.notes or {}).get("uncounted", ""))
    told_short = partial(format.short_line, unit=_unit(exchange.notes))
    short = _one_line(_line(exchange, told_short, _own_chips(exchange.notes)))
    if exchange.figures is None:
        return short
    alone = format.left_out((exchange.notes or {}).get("alone"))
    told_long = (_line(exchange, told, why_not) for told in (format.answer_line, format.brief_answer_line))
    line, brief = (f"{told} · {alone}" if alone else told for told in told_long)
    name = f'class="figures" value="{FIGURES}:{exchange.answer_id}"'
    return (
        f'<button type="button" {name} aria-expanded="false">{short}</button><span class="full">{_spark(exchange)}'
        f'<span class="line">{_one_line(line)}</span><span class="brief">{_one_line(brief)}</span></span>'
    )


def _line(exchange: Exchange, told: Callable[..., str], more: object) -> str:
    """The line under an answer. It begins with the result of ``told``, whose last argument is ``more``. It also says if
    the program ended before the answer did, and if the answer comes from notes or from the first pages instead of the
    whole book.
    """
    stopped = None if exchange.interrupted else exchange.stopped
    parts = [told(exchange.figures, stopped, len(exchange.stages), exchange.answer, more)]
    if exchange.interrupted:
        parts.append("cut off when Trifold ended")
    if (exchange.notes or {}).get("from_notes"):
        parts.append("from your notes")
    if exchange.pages_read:
        parts.append(f"from the first {format.read_so_far(exchange.pages_read, exchange.notes)}, read so far")
    if (exchange.notes or {}).get("each"):
        parts.append("each document asked by itself")
    return " · ".join(part for part in parts if part)


def _spark(exchange: Exchange) -> str:
    """Draw the pace curve of the answer's last tokens (milliseconds per token) as a small SVG."""
    points = format.spark(format.kept_pace(exchange.notes))
    # Gradio keeps only the attribute ``points`` of a drawing
    return f'<svg><polyline points="{points}"/></svg>' if points else ""


def written(exchange: Exchange, turn: int) -> str:
    """HTML of a growing answer: the passages that were found first, then the answer, formatted, with its citations, and
    with a caret at its end.
    """
    if exchange.by_passages:
        return _instead(exchange, turn)
    parts = _found_first(exchange, turn, is_open=exchange.first_answer is None)
    parts += _thought(exchange, newest=_NEWEST_THOUGHT)
    parts += _first_answer(exchange, turn, is_open=True) + _parts_so_far(exchange, turn)
    if not exchange.answer:
        return parts
    words = closed(_with_marks(exchange.answer, exchange.notes)) + _END
    end = CARET.format(utf16_length(exchange.answer))

    def ours(text: str) -> str:
        return _with_buttons(text, exchange.notes, turn, _before(exchange.notes)).replace(_END, end)

    return parts + _above(exchange.notes) + rendered(words, ours)


def utf16_length(text: str) -> int:
    """The length of a text in UTF-16 units, as a browser counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def _above(notes: Mapping[str, Any] | None) -> str:
    first, whole = ((notes or {}).get(name) for name in ("first", "whole"))
    line = format.first_line(first) if first else format.whole_line(whole) if whole else ""
    told = f'<div class="under">{_only_words(line)}</div>\n\n' if line else ""
    return told + _warnings(notes, "\n\n")


def _warnings(notes: Mapping[str, Any] | None, end: str = "") -> str:
    """The lines above an answer that say what it lacks, with ``end`` behind each."""
    lines = (absent(notes), *_assumed(notes), *(notes or {}).get("unread", ()))
    return "".join(f'<div class="above">{_only_words(line)}</div>{end}' for line in lines if line)


def _trouble(trouble: Trouble) -> str:
    said = _one_line(f"{trouble.cause} {trouble.remedy}")
    return f'<div class="trouble">{said}</div>'
