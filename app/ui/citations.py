"""Citations in an answer: small buttons after its sentences, in words that claim no more than is known.

"verified" and "not found" are facts about the text of the book; "drew on" is attention, which is a hint. Turns the
notes of ``app.pages`` into HTML for the chat and into plain data for the card that explains a button. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from app.ui.presentation import View

_OPEN, _CLOSE = "\ue000", "\ue001"  # private characters that stand for a button until the text has been made harmless
_MARK = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_SAFE = " .,–-"
_LONGEST_LABEL = 28
_NEARLY = 0.5  # of the words of a quotation, neighbouring, that stand in the book: then its button says how many

_WORDS = {
    "quoted": "verified, {}",
    "verbatim": "word for word, {}",
    "missing": "not found",
    "nearly": "not exact, {} of {} words, {}",
    "drew": "drew on {}",
}
_SAID = {
    "quoted": "These words stand in the book, on {}.",
    "verbatim": "This sentence stands in the book word for word, on {}.",
    "missing": "These words stand nowhere in the book.",
    "partly": "These words do not stand in the book like this. {} of {} stand on {}.",
    "drew": "The model attended to {} while it wrote this sentence, {} times as much as to an average page. "
    "That is a hint, not a proof.",
}


def marked(answer: str, notes: Mapping[str, Any] | None, turn: int, harmless: Callable[[str], str]) -> str:
    """An answer as Markdown with its citations.

    Args:
        turn: position of the exchange in the chat; with a citation's number it names the button.
        harmless: makes text of a model harmless.
    """
    text = answer.replace(_OPEN, "\ufffd").replace(_CLOSE, "\ufffd")
    chips, unit = _chips(notes), _unit(notes)
    parts, start = [], 0
    for number, chip in enumerate(chips):  # in the order of the text
        end = min(max(start, int(chip["at"])), len(text))
        parts.append(f"{text[start:end]}{_OPEN}{number}{_CLOSE}")
        start = end

    def button(mark: re.Match[str]) -> str:
        number = int(mark[1])
        follows = number > 0 and _same_sentence(chips[number - 1], chips[number])
        return _button(chips[number], unit, f"{turn}.{number}", follows)

    return _MARK.sub(button, harmless("".join([*parts, text[start:]])))


def card(notes: Mapping[str, Any] | None, number: int) -> View | None:
    """What the card beside a button says; None if there is no such citation."""
    chips = _chips(notes)
    if not 0 <= number < len(chips):
        return None
    chip = chips[number]
    around = chip.get("extract") or {}
    return {
        "kind": chip["kind"],
        "said": _said(chip, places_named(chip["pages"], _unit(notes))),
        "extract": {part: around.get(part, "") for part in ("before", "hit", "after")},
        "page": chip["pages"][0]["number"] if chip["pages"] else None,
    }


def marks(notes: Mapping[str, Any] | None, number: int) -> list[tuple[int, int, int]]:
    """(page number, start, end) of the characters that a citation marks."""
    chips = _chips(notes)
    found = chips[number].get("marks", []) if 0 <= number < len(chips) else []
    return [(int(page), int(start), int(end)) for page, start, end in found]


def page_name(label: str, unit: str, long: bool = False) -> str:
    """ "12" -> "p. 12" or "page 12"; a section is called by its title."""
    label = " ".join(label.split())
    if len(label) > _LONGEST_LABEL:
        label = label[: _LONGEST_LABEL - 1].rstrip() + "…"
    if unit == "page":
        return f"page {label}" if long else f"p. {label}"
    return f"{unit} {label}" if label.isdecimal() else label


def places_named(pages: Sequence[Mapping[str, Any]], unit: str, long: bool = True) -> str:
    """Pages in a sentence: "page 12", "pages 12 to 13"."""
    if not pages:
        return ""
    first, last = str(pages[0]["label"]), str(pages[-1]["label"])
    if first == last:
        return page_name(first, unit, long)
    if unit == "page":
        return f"pages {first} to {last}" if long else f"p. {first}–{last}"
    return f"{page_name(first, unit)} to {page_name(last, unit)}"


def _chips(notes: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    return list((notes or {}).get("chips", ()))


def _unit(notes: Mapping[str, Any] | None) -> str:
    return str((notes or {}).get("unit", "page"))


def _same_sentence(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one["kind"] == other["kind"] == "drew" and one["at"] == other["at"]


def _said(chip: Mapping[str, Any], places: str) -> str:
    kind = str(chip["kind"])
    if kind == "missing" and chip["pages"]:
        return _SAID["partly"].format(f"{chip['matched']} neighbouring words", chip["total"], places)
    if kind == "drew":
        return _SAID[kind].format(places, f"{chip['times']:.0f}")
    return _SAID[kind].format(places)


def _button(chip: Mapping[str, Any], unit: str, name: str, follows: bool) -> str:
    kind = str(chip["kind"])
    places = places_named(chip["pages"], unit, long=False)
    words = places if follows else _WORDS[kind].format(places)
    if kind == "missing" and chip["pages"] and chip["matched"] >= _NEARLY * chip["total"]:
        kind, words = "missing nearly", _WORDS["nearly"].format(chip["matched"], chip["total"], places)
    return f' <button type="button" class="cite {kind}" value="{name}">{_only_words(words)}</button>'


def _only_words(text: str) -> str:
    """A book's own label, of which nothing is left that HTML or Markdown could take for a mark."""
    return "".join(sign if sign.isalnum() or sign in _SAFE else f"&#{ord(sign)};" for sign in text)
