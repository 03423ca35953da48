"""Text folded and found, quotations checked, sentences and excerpts cut."""

from __future__ import annotations

import re
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.trust.quoted import (
    BookIndex,
    check_quotation,
    closest_sentence,
    excerpt,
    fold,
    numbers,
    places,
    quotations,
    sentences,
)
from tests.app.trust.conftest import PAGES, make


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
    found = check_quotation(index, quote)
    assert found is not None
    assert found.verified == (shown is not None)
    if shown:
        assert sorted({span.page + 1 for span in found.spans}) == shown
        words = fold(" ".join(index.text(span) for span in found.spans))
        assert words == fold(re.sub(r"[*…]", "", quote))


def test_words_that_stand_twice_are_named_where_the_model_looked(index: BookIndex) -> None:
    for favour, page in (([0.9, 0, 0.1, 0], 0), ([0.1, 0, 0.9, 0], 2)):
        found = check_quotation(index, "It was Maren Holt who kept the", favour)
        assert found is not None
        assert found.spans[0].page == page


def test_of_a_wrong_quotation_the_longest_true_part_is_shown(index: BookIndex) -> None:
    found = check_quotation(index, "that Maren Holt who kept the north light was never seen again")
    assert found is not None
    assert (found.verified, found.matched) == (False, 7)
    assert index.text(found.spans[0]) == "Maren Holt who kept the north light"
    nothing = check_quotation(index, "wholly other words in here")
    assert nothing is not None
    assert (nothing.verified, nothing.spans) == (False, ())


def test_two_words_are_no_quotation(index: BookIndex) -> None:
    assert check_quotation(index, "north light") is None


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
    assert [span.end for span in sentences("He came at 10 A. M.")] == [19], "it ends, whatever it ends with"
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
    check_quotation(index, text[:3000])
    assert time.process_time() - began < 2.0


def test_an_excerpt_is_cut_at_words() -> None:
    text = "word " * 80 + "the passage" + " other" * 80
    cut = excerpt(text, 400, 411)
    assert cut.hit == "the passage"
    assert cut.before.startswith("…word ")
    assert cut.after.endswith(" other…")


def test_an_excerpt_stands_as_printed_at_its_joints() -> None:
    page = "2 Rent\n\nIt is due. A tenant pays a deposit.\n\n3 Pets\n\nDogs are\n\nallowed."
    cut = excerpt(page, 19, 43)
    told = f"{cut.before}[{cut.hit}]{cut.after}"
    assert told == "2 Rent · It is due. [A tenant pays a deposit.] · 3 Pets · Dogs are allowed.", "a heading is apart"
    cut = excerpt("She was called\nthe Ever Obliged, and  green.", 19, 31)
    assert cut.before + cut.hit + cut.after == "She was called the Ever Obliged, and green."
    assert cut.hit == "Ever Obliged"


def test_the_closest_sentence_shares_words() -> None:
    page = "Nothing here. The harbour master counted lanterns in winter. The end."
    start, end = closest_sentence(page, "In winter the lanterns were counted by the master.") or (0, 0)
    assert page[start:end] == "The harbour master counted lanterns in winter."
    assert closest_sentence(page, "Wholly other words") is None


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
        found = check_quotation(index, " ".join(words[start : start + 12]).replace("’", "'"))
        assert found is not None
        assert found.verified, words[start : start + 12]


@pytest.mark.parametrize("end", ["\x0b", "\n", "\r\n", "\u2028", "\x0c", "\x85", " \t"])
def test_a_quotation_may_have_line_ends_of_any_kind(index: BookIndex, end: str) -> None:
    """Where an answer or the book breaks a line says nothing about the words."""
    answer = f"She said: “It was Maren Holt{end}who kept the north light”."
    (found,) = quotations(answer)
    check = check_quotation(index, answer[found.inner.start : found.inner.end])
    assert check is not None
    assert check.verified
    broken = BookIndex(make(PAGES[0].replace(" Holt who", f" Holt{end}who")))
    check = check_quotation(broken, "It was Maren Holt who kept the north light")
    assert check is not None
    assert check.verified
