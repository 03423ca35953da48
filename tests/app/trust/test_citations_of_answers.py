"""The notes of an answer: its citations, attention told from habit, and who wrote what."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import pytest

from app.core.chats import Chat, Exchange
from app.core.export import as_markdown
from app.trust.citations import MOST_ATTENDED, MOST_PAGES, AttentionBaseline, CitationFinder, attended_pages, evidence
from app.trust.quoted import BookIndex, fold
from app.trust.speakers import not_the_speaker
from app.web.messages import card, marked
from engine.document import Document
from engine.events import AnswerDone, PagesScored, StopReason, TextDelta, TokenSource
from tests.app.scripted import figures
from tests.app.trust.conftest import PAGES, make


def test_a_page_that_always_draws_is_not_cited() -> None:
    baseline = AttentionBaseline(40)
    habit = [0.5 if page == 7 else 0.5 / 39 for page in range(40)]
    assert [page for page, _ in attended_pages(habit, baseline)] == [7]
    for _ in range(4):
        baseline.add(habit)
    assert attended_pages(habit, baseline) == []
    fresh = [0.4 if page in (7, 20) else 0.2 / 38 for page in range(40)]
    assert attended_pages(fresh, baseline) == [(20, pytest.approx(16.0))]
    many = [0.2 if page < 5 else 0.0 for page in range(40)]
    assert len(attended_pages(many, AttentionBaseline(40))) == MOST_PAGES
    assert attended_pages([1 / 40] * 40, AttentionBaseline(40)) == []
    assert attended_pages([0.0] * 40, AttentionBaseline(40)) == []


def events(answer: str, readings: tuple[PagesScored, ...] = ()) -> list[object]:
    """One token per word, in turn from each stage."""
    pieces = re.findall(r"\S+\s*", answer)
    stages = [list(TokenSource)[number % 4] for number in range(len(pieces))]
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
    notes = CitationFinder().begin(document)
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


def test_sentences_that_one_page_supports_are_joined() -> None:
    document = make(
        "The keeper of the north light was called Maren Holt. She earned nine crowns for every winter.",
        "The bell of the harbour was cast in Bergen by two brothers.",
    )
    answer = (
        "The keeper was called Maren Holt. She earned nine crowns a winter. The bell was cast in Bergen.\n\n"
        "- She earned nine crowns in winter.\n- The keeper of the light was Maren Holt."
    )
    notes = CitationFinder().begin(document, "What is known of the keeper and of the bell?")
    for event in events(answer):
        notes.take(event)
    chips = notes.record()["chips"]
    assert [(chip["kind"], chip["pages"][0]["number"]) for chip in chips] == [("says", n) for n in (1, 1, 2, 1, 1)]
    assert [chip.get("with_next", False) for chip in chips] == [True, False, False, False, False]


def test_a_continued_answer_keeps_its_ink_and_is_checked_as_a_whole() -> None:
    finder, document = CitationFinder(), make(*PAGES)
    first = finder.begin(document)
    for event in events("It was “Maren Holt who kept the north ")[:-1]:
        first.take(event)
    first.close()
    assert [chip["kind"] for chip in first.record()["chips"]] == ["quoted"]
    more = finder.begin(document, None, "It was “Maren Holt who kept the north ", first.record())
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
        notes = CitationFinder().begin(document)
        for event in events(answer, readings):
            notes.take(event)
        chips = notes.record()["chips"]
        assert {chip["kind"] for chip in chips} == {"drew"}
        return len(chips)

    assert drew(lambda at: 50) == 1
    assert drew(lambda at: 10 + at) == MOST_ATTENDED


def test_a_sentence_rests_on_the_passage_that_says_so() -> None:
    document = make(*PAGES)
    answer = "The north light was Maren Holt's. She was paid $40,000 in Boston. Would you like more?"
    notes = CitationFinder().begin(document, "Who kept the north light?")
    for event in events(answer):
        notes.take(event)
    record = notes.record()
    says, absent = record["chips"]
    assert (says["kind"], answer[says["from"] : says["at"]]) == ("says", "The north light was Maren Holt's.")
    number, start, end = says["marks"][0]
    assert says["extract"]["hit"] == document.pages[number - 1].text[start:end].replace("\n", " ")
    assert "Maren Holt" in says["extract"]["hit"]
    assert (absent["kind"], absent["missing"], absent["pages"]) == ("absent", ["$40,000", "Boston"], [])
    assert record["missing"] == ["$40,000", "Boston"]


@pytest.mark.parametrize(
    "answer", ["It takes 10.5 pounds of flour.", "Nobody came to the harbour in the winter of that year."]
)
def test_an_answer_from_a_part_of_the_book_cites_no_page_beyond_it(answer: str) -> None:
    document = make(*PAGES)

    def cited(pages_read: int) -> list[int]:
        notes = CitationFinder().begin(document, "What does the bread take, and who came?", pages_read=pages_read)
        for event in events(answer):
            notes.take(event)
        return [page["number"] for chip in notes.record()["chips"] for page in chip["pages"]]

    (page,) = cited(0)
    assert cited(page) == [page]
    assert all(other < page for other in cited(page - 1)), "a passage near it may be shown, not this one"


def test_an_answer_from_a_part_of_the_book_says_of_what_part() -> None:
    guide = dataclasses.replace(make("Of lamps.", "Of boats."), unit="section")
    both = Document.together([make(*PAGES), guide])

    def read(pages: int) -> object:
        return CitationFinder().begin(both, "Who came?", pages_read=pages).record().get("read")

    assert read(len(PAGES) + 1) == f"{len(PAGES)} pages and 1 section"
    assert read(0) is read(len(both.pages)) is None


@pytest.mark.parametrize(
    ("answer", "missing"),
    [
        ("There are nine horses at the harbour.", ["horses", "nine"]),
        ("The north light was kept by Maren Holt. The horses drank of it.", ["horses"]),
        ("The north light was kept by Maren Holt.", ["horses"]),
        ("They were the Horses of Boston.", ["Horses", "Boston"]),
        ("Hello! How can I help you?", None),
    ],
)
def test_what_the_book_does_not_bear_out_is_told_of_the_whole_answer(answer: str, missing: list[str] | None) -> None:
    notes = CitationFinder().begin(make(*PAGES), "How many horses drank at the harbour?")
    for event in events(answer):
        notes.take(event)
    assert notes.record().get("missing") == missing


def test_nothing_is_said_of_a_sentence_that_claims_nothing() -> None:
    notes = CitationFinder().begin(make(*PAGES), "Hello!")
    for event in events("Hello! How can I help you?"):
        notes.take(event)
    assert notes.record()["chips"] == []


def test_citations_come_while_the_answer_is_written() -> None:
    notes = CitationFinder().begin(make(*PAGES))
    changed = [notes.take(event) for event in events("So “we light the lamps” it says and goes on")[:-1]]
    assert [number for number, now in enumerate(changed) if now] == [1, 4]
    assert [chip["kind"] for chip in notes.record()["chips"]] == ["quoted"]


LEASES = (
    Document.from_pages("Lease 2024", ["The tenant is Maren Holt.", "Notice is given three months before the end."]),
    Document.from_pages("Lease 2025", ["The tenant is Jonas Wren.", "", "Notice is given four weeks before the end."]),
)


def test_of_several_documents_a_citation_says_which_with_its_own_page() -> None:
    """And goes on saying so when another document stands before it: a record is kept, the order is not."""
    answer = "Notice is given three months before the end. The new notice is given four weeks before the end."
    records = []
    for documents in (LEASES, LEASES[::-1]):
        notes = CitationFinder().begin(Document.together(documents), "Where do the leases differ on notice?")
        for event in events(answer):
            notes.take(event)
        records.append(notes.record())
    assert records[0]["chips"] == records[1]["chips"]
    first, second = records[0]["chips"]
    assert (first["of"], first["document"], first["pages"]) == (
        LEASES[0].sha256,
        "Lease 2024",
        [{"number": 2, "label": "2"}],
    )
    (number, start, end), *_ = second["marks"]
    assert second["document"] == "Lease 2025"
    assert LEASES[1].pages[number - 1].text[start:end].startswith("Notice is given four weeks")
    said = [(entry["document"], entry["pages"][0]["number"]) for entry in evidence(records[0], answer)]
    assert said == [("Lease 2024", 2), ("Lease 2025", 3)]
    cards = [card(records[0], number) or {} for number in (0, 1)]
    assert [shown["said"].rpartition(" in ")[2][:18] for shown in cards] == [
        "Lease 2024, page 2",
        "Lease 2025, page 3",
    ]
    assert ">word for word, Lease 2024, p. 2<" in marked(answer, records[0], 0)
    exchange = Exchange("Where?", answer, notes=records[0])
    assert ": Word for word, Lease 2024, page 2: “Notice is given three" in as_markdown(
        Chat("c", "b", 0.0, (exchange,)), "Leases"
    )


def test_each_half_of_a_comparing_sentence_has_its_own_citation() -> None:
    answer = (
        "In the lease of 2024 notice has to be given three months before, "
        "while in the lease of 2025 notice has to be given four weeks before."
    )
    notes = CitationFinder().begin(Document.together(LEASES), "Where do the leases differ on notice?")
    for event in events(answer):
        notes.take(event)
    first, second = notes.record()["chips"]
    assert [(chip["document"], chip["pages"][0]["number"]) for chip in (first, second)] == [
        ("Lease 2024", 2),
        ("Lease 2025", 3),
    ]
    assert answer[: first["at"]].endswith("three months before,")
    assert answer[second["from"] :].startswith("while")
    assert {entry["sentence"] for entry in evidence(notes.record(), answer)} == {answer}


def test_no_words_are_found_across_the_border_of_two_documents() -> None:
    index = BookIndex(Document.together(LEASES))
    assert list(index.find(fold("before the end"))) != []
    assert list(index.find(fold("before the end. The tenant"))) == []
    (at,) = index.find(fold("Jonas Wren"))
    (span,) = index.spans(at, at + len(fold("Jonas Wren")))
    assert (span.page, index.text(span)) == (2, "Jonas Wren")


def test_headings_and_cut_ends_get_no_mark() -> None:
    """The headings of a lease and the words at which an answer was cut were red."""
    book = Document.from_text(
        "Tenancy", "Rent\n\nThe Tenant pays 1,485pounds a month.\n\nThe Landlord repairs the roof."
    )
    answer = (
        "Certainly!\n\nHouse Rules\n\nThe tenant pays 1,485 pounds a month.\n\n**Garden**\n\n"
        "The landlord repairs the roof.\n\nThe lease also says that Margar"
    )
    notes = CitationFinder().begin(book, "Explain every clause.", so_far=answer)
    notes.close()
    record = notes.record()
    assert [(chip["kind"], answer[chip["from"] : chip["at"]]) for chip in record["chips"]] == [
        ("verbatim", "The tenant pays 1,485 pounds a month."),
        ("says", "The landlord repairs the roof."),
    ]
    assert "missing" not in record


def test_an_item_of_a_list_belongs_to_the_person_above_it() -> None:
    """Each office of other people was *says so* below a person's name."""
    filler = " The harbour was quiet, and the boats lay on the sand." * 9
    book = Document.from_text(
        "Board",
        f"Maren Holt keeps the accounts of the harbour.{filler} Walter Rudd inspects the northern bridges.{filler}",
    )
    finder = CitationFinder()
    for name, says in (("Walter Rudd", [False, True]), ("Maren Holt", [True, False])):
        answer = f"The offices of {name}:\n\n- Keeps the accounts.\n- Inspects the northern bridges."
        notes = finder.begin(book, "Which offices are there?", so_far=answer)
        notes.close()
        found = [chip["kind"] == "says" for chip in notes.record()["chips"] if answer[chip["from"]] == "-"]
        assert found == says


SPOKEN = make(
    '"Oh, that would be unnecessary, Mr. Fogg," said Ralph politely. "We will trust your word, as a gentleman."\n\n'
    '"You do not forget when you are due in London?" asked Stuart.\n\n'
    '"I will be there in time," he said, and Daniel went out.\n\n'
    "But after some pause John Hayward, recovering himself, said, 'There is somebody in the cart not quite dead!' So "
    "another called to him and said, 'Who are you?'\n\n"
    '"They have found a hare," said my mother, "and if they come this way we shall see the hunt."',
    "The inspector wrote in his report that the boiler was never cleaned before the fire.",
)


@pytest.mark.parametrize(
    ("question", "answer", "kind"),
    [
        ("Who spoke?", 'Ralph said, "We will trust your word, as a gentleman."', "quoted"),
        ("Who spoke?", 'It was Stuart who said: "We will trust your word, as a gentleman."', "near"),
        ("Who spoke?", '"We will trust your word, as a gentleman," said Mr. Fogg.', "near"),
        ("Who spoke?", '"You do not forget when you are due in London?" asked Ralph.', "near"),
        ("Who spoke?", '"I will be there in time" was said by Daniel.', "quoted"),
        ("Who spoke?", '"I will be there in time" was said by Hayward\'s wife Martha.', "quoted"),
        ("Who spoke?", '"I will be there in time" was said by Merrylegs.', "near"),
        ("Who spoke?", 'John Hayward said: "There is somebody in the cart not quite dead!"', "quoted"),
        ("Who spoke?", 'The piper said: "There is somebody in the cart not quite dead!"', "near"),
        ("Who spoke?", 'The horse\'s mother said, "They have found a hare".', "quoted"),
        ("Who spoke?", 'The book says: "They have found a hare".', "quoted"),
        ("Who spoke?", 'The tenant says: "the boiler was never cleaned before the fire".', "near"),
        ("Who spoke?", 'The inspector says: "the boiler was never cleaned before the fire".', "quoted"),
        ('Who said "We will trust your word, as a gentleman"?', "Stuart said it.", "near"),
    ],
)
def test_a_quotation_belongs_to_its_speaker(question: str, answer: str, kind: str) -> None:
    """A right quotation with the wrong speaker had the strongest mark."""
    finder = CitationFinder()
    finder.prepare(SPOKEN).result()
    notes = finder.begin(SPOKEN, question, so_far=answer)
    notes.close()
    assert [chip["kind"] for chip in notes.record()["chips"]] == [kind]


@pytest.mark.parametrize("speaker", ["Marsh", "Prof. Marsh", "J. P. Marsh"])
def test_a_speaker_with_a_title_and_initials_is_one_speaker(speaker: str) -> None:
    book = "The rain went on. “It burns thirteen lamps,” said Prof. J. P. Marsh of Hull. Ada left."
    first, last = book.index("It burns"), book.index(",”")
    for name, found in ((speaker, ()), ("Ada", ("Ada",))):
        sentence = f'{name} said: "It burns thirteen lamps."'
        assert not_the_speaker(sentence, len(name) + 7, len(sentence), book, first, last) == found
