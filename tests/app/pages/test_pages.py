"""Pages behind the words: text folded and found, quotations checked, sentences cut, attention told from habit."""

from __future__ import annotations

import re
import time
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.pages import NoteTaker, drawing, quoting
from app.pages.folding import fold, numbers, places
from app.pages.index import BookIndex
from app.pages.notes import MOST_DRAWN
from app.pages.passages import closest, extract
from app.pages.sentences import quotations, sentences
from engine.document import Document, Page
from engine.events import AnswerDone, PagesScored, Stage, StopReason, TextDelta
from tests.app.ui.scripted import figures

PAGES = (
    "Chapter one. It was Maren Holt who kept the north light, as her\nmother had kept it before her.",
    "The oﬃce of the lamp-\nlighters stood at the harbour. “We light the lamps,” she said, “and nobody else",
    "does.” The bread takes 10.5 pounds of flour and 1,912 grains of salt. It was Maren Holt who kept the books.",
    "The café — its owner’s pride — was shut. Nobody came to the harbour in the winter of that year.",
)


def make(*texts: str) -> Document:
    pages = tuple(Page(number, str(number), text) for number, text in enumerate(texts, start=1))
    return Document("Orre", "", pages, "txt", "0" * 64)


@pytest.fixture(scope="module")
def index() -> BookIndex:
    return BookIndex(make(*PAGES))


@given(st.text(max_size=200))
def test_every_folded_letter_knows_where_it_comes_from(text: str) -> None:
    folded, way = fold(text), places(text)
    assert len(way) == len(folded)
    assert all(sign in fold(text[at]) for sign, at in zip(folded, way, strict=True))


@given(st.text(max_size=60), st.text(max_size=60))
def test_the_fold_of_a_join_is_the_join_of_the_folds(one: str, two: str) -> None:
    assert fold(one + two) == fold(one) + fold(two)


def test_two_printings_of_the_same_words_fold_alike() -> None:
    assert fold("The oﬃce of the lamp-\nlighters") == fold("the office  of the lamplighters")
    assert fold("“It’s late”") == fold('"It\'s late"')
    assert fold("café") == fold(unicodedata.normalize("NFD", "café"))
    assert numbers("10.5 pounds, 1,912 grains, 12:30.") == ["10.5", "1912", "12:30"]


@pytest.mark.parametrize(
    ("quote", "shown"),
    [
        ("it was Maren Holt who kept the north light, as her mother had kept it", [1]),
        ("the office of the lamplighters stood", [2]),
        ("We light the lamps, she said, and nobody else does.", [2, 3]),
        ("… kept the north light …", [1]),
        ("Maren Holt kept … nobody else does", None),
        ("kept the north light, … stood at the harbour", [1, 2]),
        ("stood at the harbour … kept the north light", None),
        ("The bread takes 10.5 pounds", [3]),
        ("The bread takes 105 pounds", None),
        ("flour and 1912 grains of salt", [3]),
        ("the cafe—its owner's pride—was shut", [4]),
        ("aren Holt who kept the books", None),
        ("*Maren* Holt who **kept** the books", [3]),
        ("nobody came to the harbor", None),
    ],
)
def test_a_quotation_is_verified_or_not(index: BookIndex, quote: str, shown: list[int] | None) -> None:
    found = quoting.check(index, quote)
    assert found is not None
    assert found.verified == (shown is not None)
    if shown:
        assert sorted({span.page + 1 for span in found.spans}) == shown
        words = fold(" ".join(index.text(span) for span in found.spans))
        assert words == fold(re.sub(r"[*…]", "", quote))


def test_words_that_stand_twice_are_named_where_the_model_looked(index: BookIndex) -> None:
    for favour, page in (([0.9, 0, 0.1, 0], 0), ([0.1, 0, 0.9, 0], 2)):
        found = quoting.check(index, "It was Maren Holt who kept the", favour)
        assert found is not None
        assert found.spans[0].page == page


def test_of_a_wrong_quotation_the_longest_true_part_is_shown(index: BookIndex) -> None:
    found = quoting.check(index, "that Maren Holt who kept the north light was never seen again")
    assert found is not None
    assert (found.verified, found.matched) == (False, 7)
    assert index.text(found.spans[0]) == "Maren Holt who kept the north light"
    nothing = quoting.check(index, "wholly other words in here")
    assert nothing is not None
    assert (nothing.verified, nothing.spans) == (False, ())


def test_two_words_are_no_quotation(index: BookIndex) -> None:
    assert quoting.check(index, "north light") is None


def test_sentences_and_quotations_of_an_answer() -> None:
    answer = (
        "Mr. Holt says “… kept the *light*.” Then he “asked “why” twice” and left!\n\n- an item\n- two\n\n"
        '```\n"no quotation. here"\n```\nAnd "one more of them" too, “not closed'
    )
    assert [answer[span.start : span.end] for span in sentences(answer)] == [
        "Mr. Holt says “… kept the *light*.”",
        "Then he “asked “why” twice” and left!",
        "- an item",
        "- two",
        'And "one more of them" too, “not closed',
    ]
    assert [(answer[one.whole.start : one.whole.end], one.closed) for one in quotations(answer)] == [
        ("“… kept the *light*.”", True),
        ("“asked “why” twice”", True),
        ('"one more of them"', True),
        ("“not closed", False),
    ]


@pytest.mark.parametrize("mark", ["“", "“a", "\n", '"a ', "“ ” ", "«", "`", "a.", "1. ", "…", "\n\n", "„a “"])
def test_no_answer_takes_long(mark: str, index: BookIndex) -> None:
    text = (mark * 20_000)[:20_000]
    began = time.process_time()
    sentences(text)
    quotations(text)
    quoting.check(index, text[:3000])
    assert time.process_time() - began < 2.0


def test_a_page_that_always_draws_is_not_cited() -> None:
    usual = drawing.Usual(40)
    habit = [0.5 if page == 7 else 0.5 / 39 for page in range(40)]
    assert [page for page, _ in drawing.sharp_pages(habit, usual)] == [7]
    for _ in range(4):
        usual.add(habit)
    assert drawing.sharp_pages(habit, usual) == []
    fresh = [0.4 if page in (7, 20) else 0.2 / 38 for page in range(40)]
    assert drawing.sharp_pages(fresh, usual) == [(20, pytest.approx(16.0))]
    many = [0.2 if page < 5 else 0.0 for page in range(40)]
    assert len(drawing.sharp_pages(many, drawing.Usual(40))) == drawing.MOST_PAGES
    assert drawing.sharp_pages([1 / 40] * 40, drawing.Usual(40)) == []
    assert drawing.sharp_pages([0.0] * 40, drawing.Usual(40)) == []


def test_an_extract_is_cut_at_words() -> None:
    text = "word " * 80 + "the passage" + " other" * 80
    cut = extract(text, 400, 411)
    assert cut.hit == "the passage"
    assert cut.before.startswith("…word ")
    assert cut.after.endswith(" other…")


def test_an_extract_stands_as_printed_at_its_joints() -> None:
    cut = extract("She was called\nthe Ever Obliged, and  green.", 19, 31)
    assert cut.before + cut.hit + cut.after == "She was called the Ever Obliged, and green."
    assert cut.hit == "Ever Obliged"


def test_the_closest_sentence_shares_words() -> None:
    page = "Nothing here. The harbour master counted lanterns in winter. The end."
    start, end = closest(page, "In winter the lanterns were counted by the master.") or (0, 0)
    assert page[start:end] == "The harbour master counted lanterns in winter."
    assert closest(page, "Wholly other words") is None


def events(answer: str, readings: tuple[PagesScored, ...] = ()) -> list[object]:
    """One token per word, in turn from each stage."""
    pieces = re.findall(r"\S+\s*", answer)
    stages = [list(Stage)[number % 4] for number in range(len(pieces))]
    deltas: list[object] = [
        TextDelta(piece, (1,), (stage,), figures(), (len(piece),)) for piece, stage in zip(pieces, stages, strict=True)
    ]
    done = AnswerDone(answer, (1,) * len(pieces), tuple(stages), StopReason.END, figures(), (), readings)
    return [*deltas, done]


def test_the_notes_of_an_answer() -> None:
    document = make(*PAGES, *["Other words on a page of its own."] * 36)
    answer = (
        "“It was Maren Holt who kept the north light.” Nobody came to the harbour in the winter. "
        'Now "words that stand nowhere at all". She was proud of the lamps there.'
    )
    words = answer.split()
    peak = tuple(0.61 if page == 1 else 0.39 / 39 for page in range(40))
    last = PagesScored(peak, words.index("She"), len(words) - 1)
    notes = NoteTaker().begin(document)
    for event in events(answer, (last,)):
        notes.take(event)
    record = notes.record()
    kinds = [(chip["kind"], [page["label"] for page in chip["pages"]]) for chip in record["chips"]]
    assert kinds == [("quoted", ["1"]), ("verbatim", ["4"]), ("missing", []), ("drew", ["2"])]
    for chip in record["chips"]:
        assert answer[: chip["at"]].endswith(("”", ".", '"'))
        for number, start, end in chip["marks"]:
            assert document.pages[number - 1].text[start:end]
    assert record["chips"][0]["extract"]["hit"] == "It was Maren Holt who kept the north light"
    counts = [int(count) for count in re.findall(r"\d+", record["ink"])]
    assert sum(counts) == sum(map(str.isalpha, answer))
    assert record["ink"].startswith("D2L3R5T4D3")


def test_a_continued_answer_keeps_its_ink_and_is_checked_as_a_whole() -> None:
    taker, document = NoteTaker(), make(*PAGES)
    first = taker.begin(document)
    for event in events("It was “Maren Holt who kept the north ")[:-1]:
        first.take(event)
    first.close()
    assert [chip["kind"] for chip in first.record()["chips"]] == ["quoted"]
    more = taker.begin(document, "It was “Maren Holt who kept the north ", first.record())
    for event in events("moon.”"):
        more.take(event)
    assert [chip["kind"] for chip in more.record()["chips"]] == ["missing"]
    assert more.record()["ink"] == first.record()["ink"] + "D4"


def test_hints_are_few_and_not_said_twice() -> None:
    document = make(*PAGES, *["Other words on a page of its own."] * 96)
    answer = " ".join(["Something else happened then."] * 60)
    words = 4

    def drew(page_of: Callable[[int], int]) -> int:
        readings = tuple(
            PagesScored(
                tuple(0.9 if page == page_of(at) else 0.1 / 99 for page in range(100)), at * words, at * words + 3
            )
            for at in range(60)
        )
        notes = NoteTaker().begin(document)
        for event in events(answer, readings):
            notes.take(event)
        chips = notes.record()["chips"]
        assert {chip["kind"] for chip in chips} == {"drew"}
        return len(chips)

    assert drew(lambda at: 50) == 1
    assert drew(lambda at: 10 + at) == MOST_DRAWN


def test_citations_come_while_the_answer_is_written() -> None:
    notes = NoteTaker().begin(make(*PAGES))
    changed = [notes.take(event) for event in events("So “we light the lamps” it says and goes on")[:-1]]
    assert [number for number, now in enumerate(changed) if now] == [1, 4]
    assert [chip["kind"] for chip in notes.record()["chips"]] == ["quoted"]


def test_every_sentence_of_a_real_book_is_found_in_it(checkout: Path) -> None:
    import random

    from app.readers import read_document

    document = read_document(checkout / "assets" / "sample" / "the-lamplighters-of-orre.pdf")
    index = BookIndex(document)
    picked = random.Random(0)
    for _ in range(40):
        page = picked.randrange(len(document.pages) - 1)
        words = f"{document.pages[page].text}\n{document.pages[page + 1].text}".split()
        if len(words) < 20:
            continue
        start = picked.randrange(len(words) - 15)
        found = quoting.check(index, " ".join(words[start : start + 12]).replace("’", "'"))
        assert found is not None
        assert found.verified, words[start : start + 12]
