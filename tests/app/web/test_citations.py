"""Citations as buttons in the chat and as cards: harmless whatever the book or the answer holds."""

from __future__ import annotations

import html
import re
from typing import Any

import pytest

from app.core import format
from app.core.chats import Exchange
from app.web import messages
from engine.events import StopReason

EXTRACT = {"before": "…it was", "hit": "Maren Holt", "after": "who…"}


def chip(kind: str, at: int, *labels: str, **more: Any) -> dict[str, Any]:
    pages = [{"number": number, "label": label} for number, label in enumerate(labels, start=11)]
    return {"kind": kind, "at": at, "from": 0, "pages": pages, "marks": [[11, 3, 9]], "extract": EXTRACT, **more}


def notes(*chips: dict[str, Any], unit: str = "page") -> dict[str, Any]:
    return {"v": 1, "unit": unit, "ink": "D3", "chips": list(chips)}


@pytest.mark.parametrize(
    ("cited", "shown"),
    [
        (chip("quoted", 4, "12"), "verified, p. 12"),
        (chip("quoted", 4, "12", "13"), "verified, p. 12–13"),
        (chip("verbatim", 4, "xii"), "word for word, p. xii"),
        (chip("missing", 4, matched=0, total=5), "not found"),
        (chip("missing", 4, "9", matched=4, total=10), "not found"),
        (chip("near", 4, "7"), "check p. 7"),
        (chip("absent", 4, missing=["$40"]), "not in the book"),
        (chip("absent", 4, missing=[]), "no passage found"),
        (chip("drew", 4, "7", times=8.2), "drew on p. 7"),
    ],
)
def test_what_a_button_says(cited: dict[str, Any], shown: str) -> None:
    text = messages.marked("Yes. No.", notes(cited), 2)
    button = f'<button type="button" class="cite {cited["kind"]}" value="2.0">{shown}</button>'
    assert text == f"<p>Yes. {button} No.</p>"


def test_a_document_is_not_named_in_its_own_column() -> None:
    """Side by side, the titles in the cells of three leases did not fit a phone."""
    told = notes(chip("quoted", 4, "1", document="Lease of the flat at Mill Lane 9"))
    assert "verified, Lease of the flat at Mill" in messages.marked("Yes.", told, 0)
    assert ">verified, p. 1<" in messages.marked("Yes.", told | {"each": True}, 0)


def test_a_page_that_says_so_stands_alone_and_is_read_aloud_as_such() -> None:
    text = messages.marked("Yes.", notes(chip("says", 4, "7", "8")), 0)
    assert text.endswith(' class="cite says" value="0.0">p. 7–8<span class="unseen"> says so</span></button></p>')
    card = messages.card(notes(chip("says", 4, "7", "8")), 0)
    assert card is not None
    assert card["said"].startswith("The book says so on pages 7 to 8:")


def test_sentences_of_one_page_have_one_button() -> None:
    """A paragraph from one page had the same page after every sentence."""
    one, other = (chip("says", at, "7") | {"marks": [[7, at, at + 4]]} for at in (4, 9))
    told = notes(one | {"with_next": True}, other, chip("says", 15, "8"))
    text = messages.marked("One. Two. Three.", told, 0)
    assert re.findall(r'value="([^"]+)">([^<]+)<', text) == [("0.1", "p. 7"), ("0.2", "p. 8")]
    card = messages.card(told, 1)
    assert card is not None
    assert card["said"].endswith("most words of these 2 sentences.")
    assert messages.marks(told, 1) == [(7, 4, 8), (7, 9, 13)]
    assert messages.marks(told, 2) == [(11, 3, 9)]


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        (["$40,000", "<b>Hull</b>"], "Not found in the book: $40,000, <b>Hull</b>"),
        ([], "No passage of the book says this"),
        ([str(number) for number in range(20, 30)], "Not found in the book: 20, 21, 22, 23, 24, 25 and 4 more"),
        (None, ""),
    ],
)
def test_what_stands_nowhere_is_told_above_the_answer(missing: list[str] | None, line: str) -> None:
    told = notes(chip("absent", 4, missing=missing or [])) | ({} if missing is None else {"missing": missing})
    for stopped in (StopReason.END, None):
        exchange = Exchange("How much?", "Much.", stopped, notes=told, answer_id=3)
        text = messages.written(exchange, 0) if stopped is None else messages.messages([exchange])[1]["content"]
        above = re.match(r'<div class="above">(.*?)</div>', text)
        assert (html.unescape(above[1]) if above else "") == line
        assert "<b>" not in text
    card = messages.card(told, 0)
    assert card is not None
    assert (card["said"], card["page"]) == (f"{line or 'No passage of the book says this'}.", None)


def test_a_quotation_that_is_nearly_right_is_not_called_right() -> None:
    text = messages.marked("Yes.", notes(chip("missing", 4, "12", matched=41, total=43)), 0)
    assert text.endswith(' class="cite missing nearly" value="0.0">not exact, 41 of 43 words, p. 12</button></p>')


@pytest.mark.parametrize(
    ("cited", "unit", "place"),
    [
        (chip("quoted", 4, "12"), "page", "on page 12"),
        (chip("quoted", 4, "12", "13"), "page", "on pages 12 to 13"),
        (chip("quoted", 4, "section 3"), "section", "in section 3"),
        (chip("quoted", 4, "Chapter 9: North Head"), "section", "in Chapter 9: North Head"),
        (chip("quoted", 4, "slide 3"), "section", "on slide 3"),
        (chip("quoted", 4, "3", document="Log", unit="page"), "section", "in Log, page 3"),
    ],
)
def test_words_stand_on_a_page_and_in_a_section(cited: dict[str, Any], unit: str, place: str) -> None:
    """A card said "on section 1"."""
    card = messages.card(notes(cited, unit=unit), 0)
    assert card is not None
    assert card["said"] == f"These words stand in the book, {place}."


def test_attention_is_never_called_more_than_a_hint() -> None:
    said = messages.card(notes(chip("drew", 4, "7", times=8.2)), 0)
    assert said is not None
    assert "hint, not a proof" in said["said"]
    assert "8 times" in said["said"]
    for word in ("verified", "stands"):
        assert word not in said["said"]


def test_the_pages_of_one_sentence_are_said_once() -> None:
    text = messages.marked("Yes.", notes(chip("drew", 4, "7", times=9), chip("drew", 4, "9", times=8)), 0)
    assert re.findall(r">([^<]+)</button>", text) == ["drew on p. 7", "p. 9"]


@pytest.mark.parametrize(
    "label", ["<img src=x onerror=hit()>", "**b**", "![x](http://e.example/i)", "`a`", "&lt;b&gt;", "_i_"]
)
@pytest.mark.parametrize("unit", ["page", "section"])
def test_a_books_own_labels_are_only_words(label: str, unit: str) -> None:
    text = messages.marked("Yes.", notes(chip("quoted", 4, label), unit=unit), 0)
    inside = re.fullmatch(r'<p>Yes\. <button type="button" class="cite quoted" value="0\.0">(.*)</button></p>', text)
    assert inside is not None
    assert set(re.findall(r"[^\w .,–&#;]", inside[1])) == set()


def test_an_answer_cannot_make_buttons_of_its_own() -> None:
    text = messages.marked(
        "\ue0000\ue001 <button class='cite'>verified, p. 1</button>", notes(chip("quoted", 0, "3")), 0
    )
    assert text.count('<button type="button"') == 1
    assert "&lt;button class=&#x27;cite&#x27;&gt;" in text


def test_an_answer_without_notes_is_as_before() -> None:
    assert messages.marked("a < b **c**", None, 0) == "<p>a &lt; b <strong>c</strong></p>"


def test_a_wrong_quotation_says_how_much_of_it_is_true() -> None:
    told = messages.card(notes(chip("missing", 4, "12", matched=7, total=12)), 0)
    assert told is not None
    assert (
        told["said"] == "These words do not stand in the book like this. 7 neighbouring words of 12 stand on page 12."
    )
    assert told["page"] == 11
    assert messages.card(notes(), 0) is None
    nowhere = messages.card(notes(chip("missing", 4, matched=0, total=5) | {"pages": [], "marks": []}), 0)
    assert nowhere is not None
    assert nowhere["page"] is None


@pytest.mark.parametrize(
    ("label", "unit", "long", "short"),
    [
        ("12", "page", "page 12", "p. 12"),
        ("3", "section", "section 3", "section 3"),
        ("Chapter 9: North Head", "section", "Chapter 9: North Head", "Chapter 9: North Head"),
        ("A chapter with a very long name of its own", "section", "A chapter with a very long…", None),
    ],
)
def test_pages_are_called_as_people_call_them(label: str, unit: str, long: str, short: str | None) -> None:
    assert format.page_name(label, unit, long=True) == long
    assert format.page_name(label, unit) == (short or long)
