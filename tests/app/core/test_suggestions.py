"""Questions worth asking, from the table of contents and from how much has been read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from app.core.document_kind import called, called_record, kind_of
from app.core.format import absence, assumed
from app.core.suggestions import Sample, language_of_book, phrase_of, phrase_questions, suggestions, telling_headings
from engine.document import Document, OutlineItem, Page
from engine.passages import asks_for_whole
from tests.app.scripted import book


def with_outline(*items: tuple[str, int, int]) -> Document:
    return replace(book(), outline=tuple(OutlineItem(*item) for item in items))


def test_only_headings_that_tell_something() -> None:
    document = with_outline(
        ("Contents", 1, 0),
        ("Chapter IV", 2, 0),
        ("12.", 3, 0),
        ("The Open Hand", 4, 0),
        ("x", 5, 0),
        ("The Lamplighters of Orre", 5, 0),
        ("Fire and  Stairs", 6, 0),
        ("About the Author", 59, 0),
        ("W" * 80, 7, 0),
    )
    assert telling_headings(document, 60) == ["The Open Hand", "Fire and Stairs"]


def test_headings_from_all_over_the_book() -> None:
    document = with_outline(*((f"The story of number {page}", page, 0) for page in range(1, 60)))
    summary, *asked = suggestions(document, 60)
    assert summary == "Summarize the book in at most 60 words."
    assert asks_for_whole(summary), "it gets passages of the whole"
    assert len(asked) == 5
    numbers = [int(question.split("number ")[1].rstrip("”?")) for question in asked[:3]]
    assert numbers == sorted(numbers)
    assert numbers[0] < 20 < numbers[1] < 40 < numbers[2]


STORY = "She said to him that he was late. He told her that she had not asked him, and then he said no more. "
LEASE = (
    "The tenant shall pay the rent to the landlord. The deposit is kept by them until the lease ends. Each party "
    "may terminate this agreement; the notice is in writing. The deposit bears interest, and the deposit is paid back. "
)
MIETE = (
    "Der Mieter zahlt die Miete an den Vermieter. Die Kündigungsfrist beträgt drei Monate. Der Vertrag endet nach der "
    "Kündigungsfrist, und die Kaution ist nach der Kündigungsfrist zu zahlen. "
)


@pytest.mark.parametrize(
    ("text", "kind", "asked", "never"),
    [
        (STORY * 99, "story", "How does the book end?", "document"),
        (LEASE * 9, "contract", "Who are the parties?", "book"),
        (MIETE * 9, "contract", "Wer sind die Vertragsparteien?", "Buch"),
        (LEASE * 9, "contract", "What does the document say about “deposit”?", "end of"),
        (f"{LEASE} A month each month of a month. " * 9, "contract", "Who are the parties?", "“month”"),
        (MIETE * 9, "contract", "Was sagt das Dokument über „Kündigungsfrist“?", "endet das"),
        (
            "The chair opened the meeting. It was resolved to paint the hall. " * 9,
            "minutes",
            "What was decided?",
            "book",
        ),
        (
            "The findings of this report are in table 2: revenue fell. " * 9,
            "report",
            "What are the main results?",
            "book",
        ),
        ("Dear Ms Lind, the boat is ready. Sincerely yours, Odd. " * 9, "letter", "Who writes to whom?", "book"),
        ("Salt the water and boil the beans until soft. " * 9, "text", "What is the document about?", "book"),
    ],
)
def test_questions_fit_the_kind_of_a_document(text: str, kind: str, asked: str, never: str) -> None:
    """A lease was asked how it begins and how it ends."""
    document = Document.from_pages("Lease", [text])
    assert kind_of(document) == kind
    found = suggestions(document, 1)
    assert asked in found
    assert len(found) <= 6
    assert not any(never in question for question in found)


def test_a_part_of_a_book_is_not_asked_as_the_book() -> None:
    """Chapter 9 alone was asked to summarize the book, and how it begins."""
    found = suggestions(Document.from_pages("Novel", [STORY] * 9), 9, is_part=True)
    assert found[0] == "Summarize these pages in at most 60 words."
    assert not any("begin" in question or "end" in question for question in found)


def test_a_mail_is_a_letter() -> None:
    mail = replace(Document.from_pages("Re: boat", ["The boat is ready."]), kind="mail")
    assert kind_of(mail) == "letter"
    assert called(mail) == "document"


def test_a_page_is_no_book() -> None:
    """A scan of one page was called a book, above its answers and in the question box."""
    page, novel = Document.from_pages("Scan", [STORY]), Document.from_pages("Novel", [STORY] * 3)
    several = Document.together([page, novel])
    assert [called(text) for text in (page, novel, several)] == ["document", "book", "documents"]
    said = [
        (absence({"missing": missing, **called_record(text)})) for text in (page, novel) for missing in ([], ["Ada"])
    ]
    assert said == [
        "No passage of the document says this",
        "Not found in the document: Ada",
        "No passage of the book says this",
        "Not found in the book: Ada",
    ]
    place = {"pages": [{"number": 1, "label": "1"}], "extract": {"hit": "He left the book."}, "denied": True}
    (line,) = assumed({"assumed": ["stayed"], "assumed_at": place, **called_record(several)}, "page")
    assert line == "The documents say otherwise, page 1: He left the book."


def test_nothing_is_asked_about_pages_that_were_not_read() -> None:
    document = with_outline(("The Open Hand", 4, 0), ("Fire and Stairs", 50, 0))
    partly = suggestions(document, 24)
    assert partly[0] == "What does the book say in “The Open Hand”?", "a summary is of the whole"
    assert not any("Fire" in question or "end" in question.split() for question in partly)
    story = replace(document, pages=tuple(replace(page, text=STORY) for page in document.pages), outline=())
    assert "How does the book end?" in suggestions(story, 60)
    assert "How does the book end?" not in suggestions(story, 24)
    found = suggestions(document, 60, general=False)
    assert not any(question.startswith("How does the book") for question in found)
    assert found[0] == "What is the book about?"
    assert asks_for_whole(found[0]), "it gets passages of the whole"


def test_chapters_below_parts_are_taken_where_parts_are_few() -> None:
    document = with_outline(("Book the First", 1, 0), ("The Open Hand", 4, 1), ("Fire and Stairs", 9, 1))
    assert telling_headings(document, 60) == ["Book the First", "The Open Hand", "Fire and Stairs"]


def test_what_the_book_names_is_asked_about() -> None:
    text = "In winter the captain, Tove Lindqvist, would not sail to Skarn. Later they asked Tove Lindqvist again."
    named = replace(book(), pages=(Page(1, "1", f"Old Harbour. {text}"),), outline=())
    assert suggestions(named, 1)[1] == "What does the document say about Tove Lindqvist?"
    lease = (
        "This Boat Lease Agreement is between Tove Lindqvist and Jon Stone. Under this Boat Lease Agreement he pays."
    )
    titled = replace(named, pages=(Page(1, "1", f"BOAT LEASE AGREEMENT\n\n{lease}"),))
    assert not any("Boat Lease" in question for question in suggestions(titled, 1)), (
        "a title is what all of it is about"
    )
    owner = replace(
        named, pages=(Page(1, "1", "He took up Tove Lindqvist's hat, and again saw Tove Lindqvist’s hat."),)
    )
    assert suggestions(owner, 1)[1].endswith("about Tove Lindqvist?")
    torn = "A paper by Ana Ruiz\nAbstract. Harbour Ferry Trust: The Old Ferry sailed for Jon Falk of Skarn."
    asked = " ".join(suggestions(replace(named, pages=(Page(1, "1", torn),)), 1))
    assert [name in asked for name in ("Ruiz Abstract", "about Ferry Trust", "Old Ferry", "Jon Falk")] == [0, 0, 1, 1]
    german = "Im Winter wollte der alte Kapitän Ole Berg nicht zur Insel fahren, weil das Licht im Hafen aus war."
    assert suggestions(replace(named, pages=(Page(1, "1", german),)), 1)[1] == "Worum geht es in dem Dokument?"


def test_a_phrase_does_not_end_in_a_short_word() -> None:
    text = "Today the ferry stands in the museum of Aldmere beside the old customs house and waits."
    assert asked_of(pages_of(text), 1) == ["Today the ferry stands in the museum"]


FILLER = "The town was quiet and nobody walked upon the quay that day, for it had rained since the morning began. "


def pages_of(*texts: str) -> Document:
    pages = tuple(Page(number, str(number), FILLER * 3 + text) for number, text in enumerate(texts, 1))
    return replace(book(), pages=pages, outline=())


def asked_of(document: Document, pages_read: int) -> list[str]:
    return [question.split("“")[1].rstrip("”?") for question in phrase_questions(document, pages_read)]


def test_phrases_stand_once_in_the_book_and_begin_a_sentence() -> None:
    found = asked_of(
        pages_of(
            "Marlow carried the yellow lantern upstairs because the lower rooms had been flooded again.",
            "Marlow carried a heavy bundle downstairs and laid it upon the table before the cold fire.",
            "Nobody answered when Marlow knocked twice on the door of the house beside the old harbour.",
        ),
        3,
    )
    assert found == [
        "Marlow carried the yellow lantern upstairs",
        "Marlow carried a heavy bundle downstairs",
        "Nobody answered when Marlow knocked twice",
    ]


def test_sentences_that_can_be_quoted_without_a_slip_come_first() -> None:
    """Not a form's question, not one with figures, and no heading; where there is nothing else, they all the same."""
    form = "Has your purple lantern been checked by the harbour master and his (two) clerks this year?"
    plain = "Somebody polished the crooked lantern every night before the boats came into the harbour again."
    heading = "Accepting Crooked Lanterns from Unknown Collaborators without an answer from the harbour office."
    found = asked_of(pages_of(form, heading + " " + plain, form.replace("purple", "golden")), 3)
    assert found[0] == "Somebody polished the crooked lantern every"
    assert found[1:] == ["Has your purple lantern been checked", "Has your golden lantern been checked"]


def test_a_phrase_whose_sentence_runs_into_words_of_others_comes_later() -> None:
    """“until after the next” stands three times: who copies word by word may go on anywhere."""
    form = "This yellow form should be kept until after the next inspection of the harbour lamps by the clerk."
    other = "Nobody counted the crooked lanterns until after the next inspection of the old tower was over again."
    clear = "Somebody polished every single reflector with vinegar before boats came into our harbour again."
    assert asked_of(pages_of(f"{form} {other} {clear}"), 1)[0] == "Somebody polished every single reflector with"


def test_where_every_sentence_stands_there_twice_one_is_asked_for_all_the_same() -> None:
    page = "Hello again said the text without meaning to nobody in the room beside the harbour. " * 8
    document = replace(book(), pages=(Page(1, "1", page), Page(2, "2", page)), outline=())
    assert asked_of(document, 2) == ["Hello again said the text without"]


def test_a_letter_has_phrases_to_ask_for_too() -> None:
    letter = (
        "Dear Mrs. Alder, thank you for your letter of 3 May. The roof of your house will be repaired in the second "
        "week of June. Please take the car out of the yard before then, with all that you keep. Your old keys are with "
        "the baker in Mill Lane."
    )
    document = replace(book(), pages=(Page(1, "1", letter),), outline=())
    assert asked_of(document, 1) == [
        "Please take the car out of the yard",
        "The roof of your house will",
        "Your old keys are with",
    ]


def test_phrases_only_of_the_pages_that_were_read() -> None:
    document = pages_of(
        *(f"Marlow carried lantern {name} upstairs slowly and then went out to look at it." for name in "abc")
    )
    assert not any("lantern c" in phrase for phrase in asked_of(document, 2))
    assert any("lantern c" in phrase for phrase in asked_of(document, 3))


def test_no_phrase_is_made_of_headings_tables_or_capitals() -> None:
    table = "Total 12 14 19. Sum 3 4 5 6 7 8. Net 1 2 3. "
    shouted = "The FDA requires an answer within thirty days of the letter that it sends to everybody."
    headings = replace(book(), pages=(Page(1, "1", "One Two Three Four Five Sixth. " + table),), outline=())
    assert phrase_questions(headings, 1) == ()
    assert not any("FDA" in phrase for phrase in asked_of(pages_of(shouted), 1))


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        (
            "Die Lampe war hell, und der Hafen ist nah.",
            "Was sagt das Dokument in „Nordlicht“?",
            "Welche Daten werden genannt?",
        ),
        (
            "La lampe est claire, et le port est dans la ville.",
            "Que dit le document dans « Nordlicht » ?",
            "Quelles dates sont nommées ?",
        ),
        (
            "La lámpara era clara, y el puerto es una parte de la ciudad con los barcos.",
            "¿Qué dice el documento en «Nordlicht»?",
            "¿Qué fechas se nombran?",
        ),
    ],
)
def test_questions_come_in_the_language_of_the_book(text: str, first: str, last: str) -> None:
    pages = (Page(1, "1", text), Page(2, "2", text))
    document = replace(book(), pages=pages, outline=(OutlineItem("Vorwort", 1, 0), OutlineItem("Nordlicht", 2, 0)))
    asked = suggestions(document, 2)
    assert (asked[1], asked[-1]) == (first, last)
    assert language_of_book(document) == {"W": "de", "Q": "fr", "¿": "es"}[first[0]]
    assert suggestions(document, 2, general=False)[0] == "What is the book about?"


def test_the_sample_books_questions_come_with_the_pages_of_their_answers(tmp_path: Path) -> None:
    asked = ["Where does it say “a quiet town”?", "Where does it say “the lower rooms”?"]
    told = {"questions": [{"question": question} for question in asked]}
    (tmp_path / "sample.json").write_text(json.dumps(told), encoding="utf-8")
    pages = (Page(1, "1", "It was a quiet\ntown."), Page(2, "2", "In the lower rooms nobody slept."))
    assert [phrase_of(question) for question in (*asked, "Who is “he”?")] == ["a quiet town", "the lower rooms", ""]
    assert Sample(tmp_path).questions_about(pages[:1]) == (asked[0],)
    assert Sample(tmp_path).questions_about(pages) == tuple(asked)


def test_no_phrase_begins_in_the_middle_of_a_sentence() -> None:
    page = (
        "At 4 the clerk told Mr. Ballou fished out four matches from the harbour basin yesterday with a long net. "
        "“Halloo!” bending twigs together and throwing antelope meat was never allowed near the harbour of this town. "
        "Somebody polished the crooked lantern every night before the boats came into the harbour again."
    )
    document = replace(book(), pages=(Page(1, "1", page),), outline=())
    asked = asked_of(document, 1)
    assert "Somebody polished the crooked lantern every" in asked
    assert not any(phrase.startswith(("Ballou", "bending", "twigs")) for phrase in asked)


def test_a_long_text_is_called_a_book_in_all_of_its_questions() -> None:
    """ "Fasse das Buch ... zusammen." stood beside "Worum geht es in dem Dokument?"."""
    long = "Der Turm der Insel hat viele Stufen, und jede Stufe ist aus Stein von der Küste gehauen. " * 700
    german = Document("Der Turm", "", tuple(Page(n, str(n), long[:1500]) for n in range(1, 60)), "txt", "", "page")
    asked = suggestions(german, 59)
    assert "Worum geht es in dem Buch?" in asked
    assert not any("Dokument" in question for question in asked)
