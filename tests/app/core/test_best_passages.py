"""The passages that fit a question best: which, in which order, where they stand, and which words are marked."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import groupby, pairwise

import pytest

from app.core.best_passages import LONGEST, MOST, as_evidence, best_passages, excerpt, heading, records
from app.language.referring import refers_back
from app.trust.book_words import BookWords
from app.web import messages
from engine.document import Document, OutlineItem

FILLER = "The day was long and the road was dry, and nobody had much to say about the weather in those years. "
LEASE = Document.from_pages(
    "Lease",
    [
        f"1. The flat has three rooms and a kitchen. {FILLER * 4}",
        f"{FILLER * 3} The tenant pays a deposit of 900 euros before moving in. {FILLER * 5}",
        f"{FILLER * 2} The deposit is returned within six weeks after the keys were handed back. {FILLER * 3}",
        f"{FILLER * 4} Dogs are allowed. Cats need a letter.",
    ],
)


def found(document: Document, question: str) -> list[str]:
    return [passage.text for passage in best_passages(BookWords(document), question)]


def test_both_passages_of_a_question_with_two_facts_are_found() -> None:
    shown = found(LEASE, "What is the deposit and when do I get it back?")
    assert 2 <= len(shown) <= MOST
    assert all(len(text) <= LONGEST for text in shown)
    assert "900 euros" in " ".join(shown)
    assert "six weeks" in " ".join(shown)


def test_a_passage_tells_its_pages_its_marks_and_the_words_of_the_question() -> None:
    first = records(BookWords(LEASE), "How many euros does the tenant pay?")[0]
    assert [page["number"] for page in first["pages"]] == [2]
    ((page, start, end),) = first["marks"]
    assert (page, " ".join(LEASE.pages[1].text[start:end].split())) == (2, first["text"])
    marked = {first["text"][start:end] for start, end in first["words"]}
    assert {"tenant", "pays", "euros"} <= marked
    assert "deposit" not in marked
    assert as_evidence([first]) == [{"passage": first["text"], "pages": first["pages"]}]


def test_a_heading_is_a_line_of_its_own_and_a_sentence_on_two_pages_is_none() -> None:
    """A heading ran into the sentence below it: "5 Outlook The board expects"."""
    pages = ["The Report\n\n5 Outlook\n\nThe board expects a revenue of 49", "million euros.\n\nA dividend is paid."]
    one = records(BookWords(Document.from_pages("Report", pages)), "What revenue does the outlook expect?")[0]
    begins = [0, *one["lines"], len(one["text"])]
    assert [one["text"][start:end].strip() for start, end in pairwise(begins)][-2:] == [
        "5 Outlook",
        "The board expects a revenue of 49 million euros.",
    ]
    assert "&#10;The board" in messages._passage(one, "0.0")


def test_numbers_are_marked_however_they_are_written() -> None:
    book = Document.from_pages("Log", ["There were seventeen gulls on the north wall that evening."])
    (one,) = records(BookWords(book), "Were there 17 of them?")
    assert [one["text"][start:end] for start, end in one["words"]] == ["seventeen"]


@pytest.mark.parametrize(
    "question",
    ["Who said “so be it, and not I”?", 'Where does it say "So be it,  and not I"?', "Where is 'be it, and not' said?"],
)
def test_quoted_words_are_found_though_each_of_them_stands_everywhere(question: str) -> None:
    book = Document.from_pages(
        "Trial",
        [f"{FILLER * 9} He and I, not she, said it is so. {FILLER * 9} “So be it, and\nnot I,” he wrote. {FILLER * 9}"],
    )
    assert "“So be it, and not I,”" in found(book, question)[0]


def test_of_a_question_of_five_megabytes_the_beginning_is_looked_at() -> None:
    words, question = BookWords(LEASE), "deposit " * (640 << 10)
    began = time.process_time()
    assert "900 euros" in "".join(one["text"] for one in records(words, question))
    assert excerpt(words, question).pages
    assert not refers_back(question)
    assert time.process_time() - began < 2


def test_a_question_without_a_word_of_the_book_finds_nothing() -> None:
    assert found(LEASE, "Why do whales sing?") == []
    assert found(LEASE, "?") == []
    assert found(Document.from_pages("Empty", [""]), "Who?") == []


def test_a_related_word_is_found_where_the_book_lacks_the_word_itself() -> None:
    """A model that was asked about a disease got passages from all of the book, and none about the malaria."""
    texts = ["Nothing happened."] * 30 + ["He fell a victim to malaria.", "He fell off a ladder."]
    pages = [f"{FILLER * 6} {text} {FILLER * 6}" for text in texts]
    book = Document.from_pages("Memoir", pages)
    words = BookWords(book)
    assert "malaria" in excerpt(words, "Which disease did he catch?").text
    assert "ladder" in found(book, "Which disease did he catch from the ladder?")[0]


def test_passages_without_a_word_of_the_question_are_not_shown() -> None:
    """A roaster's manual was asked which disease he caught, and "Fan wheel, once a year" fitted best."""
    assert records(BookWords(LEASE), "Which animal composed the letter's symphony?")
    assert records(BookWords(LEASE), "Which pet composed a symphony?") == []
    assert records(BookWords(LEASE), "Who owns the apartment building?") == []


@pytest.mark.parametrize("question", ["Welches Gift bekam das Pferd?", "Was für ein Brief kam an?"])
def test_words_of_a_question_in_another_language_are_no_english_ones(question: str) -> None:
    """German "Gift" is a poison, and "Brief" a letter."""
    book = Document.from_pages("Ball", [f"{FILLER * 6} The present was worth a short stamp. {FILLER * 6}"] * 3)
    assert excerpt(BookWords(book), question).text == excerpt(BookWords(book), "Zzyzx?").text


def test_related_words_are_not_looked_up_in_a_book_of_another_language() -> None:
    german = Document.from_pages("Buch", ["Die Männer waren im Krieg, und der Brief kam nicht an. " * 9] * 3)
    words = BookWords(german)
    assert words.meaning is None
    assert found(german, "Which disease did he catch?") == []


def test_only_pages_that_are_named_count() -> None:
    shown = records(BookWords(LEASE), "What does page 3 say about the deposit?")
    assert {page["number"] for one in shown for page in one["pages"]} == {3}
    assert records(BookWords(LEASE), "What stands on page 4?")[0]["pages"][0]["number"] == 4
    chapters = replace(LEASE, outline=(OutlineItem("Rooms", 1, 0), OutlineItem("Animals", 4, 0)))
    assert "Dogs" in found(chapters, "What does the chapter “Animals” allow?")[0]


def test_a_question_about_the_whole_gets_passages_from_all_of_it_in_order() -> None:
    pages = [page["number"] for one in records(BookWords(LEASE), "What is this about?") for page in one["pages"][:1]]
    assert pages[0] == 1
    assert pages == sorted(pages)
    assert len(pages) == MOST


def test_passages_from_all_of_a_text_are_not_said_to_have_words_of_the_question() -> None:
    """ "Summarize ... in at most 60 words." marked "sixty" in a lease, and called that words of the question."""
    document = Document.from_pages("Lease", [f"{FILLER * 6} The rent is unpaid for sixty days. {FILLER * 6}"])
    question = "Summarize the document in at most 60 words."
    shown = records(BookWords(document), question)
    assert len(shown) == MOST
    assert [one["words"] for one in shown] == [[]] * MOST
    assert heading(MOST, question) == "4 passages from all of the text"
    card = messages.card({"passages": shown}, 0)
    assert card is not None
    assert card["said"] == "These words stand on page 1."
    assert heading(1, "When is the rent unpaid?") == "1 passage that fits your question best"


def test_a_comparison_gets_a_passage_of_each_document_and_none_spans_two() -> None:
    def lease(name: str, rent: int) -> Document:
        return replace(Document.from_pages(name, [f"The rent is {rent} euros a month."]), sha256=name[-1] * 64)

    both = Document.together([lease("Lease A", 890), lease("Lease B", 980)], sha256="c" * 64)
    shown = records(BookWords(both), "Which of the two leases has the higher rent?")
    assert [(one["document"], one["pages"][0]["number"]) for one in shown] == [("Lease A", 1), ("Lease B", 1)]
    assert "980" not in shown[0]["text"]
    assert as_evidence(shown)[1]["document"] == "Lease B"


@pytest.mark.parametrize("question", ["What did the captain say about the lamp on the day of the storm?", "Who?" * 500])
def test_a_book_of_1500_pages_is_searched_in_a_fraction_of_a_second(question: str) -> None:
    page = f"The captain said little about the lamp. {FILLER * 12} On the day of the storm it was lit. {FILLER * 8}"
    words = BookWords(Document.from_pages("Long", [f"{page} Page {number}." for number in range(300)]))
    began = time.process_time()
    best_passages(words, question)
    assert time.process_time() - began < 0.5


def test_an_excerpt_is_in_the_order_of_the_book_and_names_its_pages() -> None:
    text = excerpt(BookWords(LEASE), "When is the deposit returned, and are cats allowed?")
    assert [name for name, _ in groupby(page.text.splitlines()[0] for page in text.pages)] == [
        "[page 2]",
        "[page 3]",
        "[page 4]",
    ]
    assert (text.title, text.sha256) == ("Lease", "")
    assert "six weeks" in text.text
    assert (
        "\n"
        in excerpt(BookWords(Document.from_pages("T", ["Rent | 890\nFee | 12"])), "What is the rent?").pages[0].text
    )


def test_an_excerpt_for_the_whole_has_the_contents_and_one_for_strange_words_is_from_everywhere() -> None:
    chapters = replace(LEASE, outline=(OutlineItem("Rooms", 1, 0), OutlineItem("Animals", 4, 0)))
    assert excerpt(BookWords(chapters), "What is this about?").pages[0].text == "Rooms\nAnimals"
    assert "[page 1]" in excerpt(BookWords(LEASE), "Why do whales sing?").pages[0].text
    assert excerpt(BookWords(Document.from_pages("Empty", [""])), "Who?").pages == ()


def test_a_question_for_a_number_prefers_a_passage_with_one() -> None:
    garden = " ".join(
        f"The garden has a wall of stone and moss, and a gate {way}." for way in ("north", "south", "east")
    )
    pages = [f"The stone wall of the garden is old. {garden}"] * 3 + [
        f"The stone wall of the garden is old (9). {garden}"
    ]
    words = BookWords(Document.from_pages("A Garden", pages))
    assert "old (9)" in best_passages(words, "How high is the stone wall of the garden?")[0].text
    assert "old (9)" not in best_passages(words, "Who built the stone wall of the garden?")[0].text


@pytest.mark.parametrize(
    ("question", "figure"),
    [
        ("When was the stone wall of the garden built?", "in March"),
        ("How much did the stone wall of the garden cost?", "40 pounds"),
        ("How long did they build the stone wall of the garden?", "three weeks"),
        ("How far is the stone wall of the garden?", "two miles"),
        ("How old is the man of the stone wall of the garden?", "aged fifty"),
    ],
)
def test_a_question_for_a_kind_of_figure_prefers_a_passage_with_one(question: str, figure: str) -> None:
    """Any number did, so "How much did it cost?" got a passage with a page's number."""
    said = (
        "in March",
        "for 40 pounds",
        "for three weeks",
        "by two miles",
        "by a man aged fifty",
        "by 12 men",
        "slowly",
    )
    wall = "The stone wall of the garden was built, as everybody there knows very well and tells gladly to all, "
    moss = (
        " Moss and ivy grow on it all the same, on every side that is not in the sun, and nobody minds it at all." * 4
    )
    words = BookWords(Document.from_pages("A Garden", [f"{wall}{one}.{moss}" for one in reversed(said)]))
    assert figure in best_passages(words, question)[0].text
