"""A book in parts: where it is cut, which parts a question goes to, what they say and how it is put together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.core.abilities import Abilities
from app.core.part_run import Joining, PartAnswered, PartBegun, PartsAnswered, ask_parts, recent
from app.core.parts import (
    Mention,
    Part,
    Reach,
    choose_parts,
    cut,
    left_out,
    listing_pages,
    mentioned,
    reach_of,
    subjects,
)
from app.core.question import Ask
from app.trust.book_words import BookWords
from app.trust.citations import CitationFinder
from engine import Turn
from engine.document import Document, OutlineItem, Page, Reading
from engine.errors import ContextTooSmall
from engine.plan import BookFit
from tests.app.scripted import ScriptedEngine

FILLER = "The day was long and the road was dry. " * 4
TEXTS = [
    f"The mill stood by the river. {FILLER}",
    f"Marta came from the hills with a basket. {FILLER}",
    f"Old Jonas Weller counted his coins. {FILLER}",
    f"Marta met Jonas at the bridge and sold him a goose. {FILLER}",
    f"The goose laid nothing. {FILLER}",
    f"Marta sailed to Riga in the spring. {FILLER}",
]
BOOK = Document.from_pages("The Mill", TEXTS)


def fit(document: Document, room: int, each: int = 100) -> BookFit:
    tokens = each * len(document.pages) + 10
    return BookFit(tokens, room, tokens <= room, 0, 0, "", page_tokens=(each,) * len(document.pages), room=room)


def in_parts(pages: int = 2) -> tuple[Part, ...]:
    """The book, so many pages a part."""
    return cut(BOOK, fit(BOOK, (100 * pages + 10) * 8 // 7 + 2))


def numbers(parts: Sequence[Part]) -> list[tuple[int, int]]:
    return [(part.first, part.last) for part in parts]


# Where it is cut ------------------------------------------------------------------------------------------------------


def test_every_page_is_in_one_part_and_parts_leave_room_for_a_question() -> None:
    found = cut(BOOK, fit(BOOK, 400))
    assert numbers(found) == [(1, 3), (4, 6)]
    assert [part.tokens for part in found] == [300, 300]
    assert numbers(cut(BOOK, fit(BOOK, 340))) == [(1, 2), (3, 4), (5, 6)], "an eighth of the window is the question's"
    assert [part.document.sha256 for part in found] == [BOOK.sha256] * 2


def test_a_part_ends_before_the_highest_chapter_that_begins_late_in_it() -> None:
    long = replace(
        Document.from_pages("L", [f"Page {number}." for number in range(1, 21)]),
        outline=(OutlineItem("I", 1, 0), OutlineItem("a", 10, 1), OutlineItem("II", 9, 0), OutlineItem("III", 13, 0)),
    )
    assert numbers(cut(long, fit(long, 1160)))[0] == (1, 8), "chapter II begins on page 9, a section of it on 10"
    assert numbers(cut(long, fit(long, 1500)))[0] == (1, 12), "a chapter that the room reaches is not left earlier"


def test_a_page_that_no_part_holds_is_told_before_any_work() -> None:
    with pytest.raises(ContextTooSmall, match=r"One page alone \(page 1\) takes 100 tokens, and a part may take 60"):
        cut(BOOK, fit(BOOK, 80))


# Which parts a question goes to ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "reach"),
    [
        ("When does Marta first appear?", Reach.FIRST),
        ("Where is the goose mentioned first?", Reach.FIRST),
        ("Wann kommt Marta zum ersten Mal vor?", Reach.FIRST),
        ("When was Jonas last seen?", Reach.LAST),
        ("How many times does Marta go to the bridge?", Reach.ALL),
        ("List the animals.", Reach.ALL),
        ("What is it about?", Reach.ALL),
        ("Summarize the book.", Reach.ALL),
        ("What is Marta's first name?", Reach.FEW),
        ("Is there no goose at all?", Reach.FEW),
        ("Who bought the goose?", Reach.FEW),
        ("What happens on page 4?", Reach.NAMED),
        ("Summarize pages 2 to 3.", Reach.NAMED),
    ],
)
def test_how_much_of_the_book_a_question_needs(question: str, reach: Reach) -> None:
    assert reach_of(question, BOOK)[0] is reach


def test_a_chapter_with_the_name_that_is_sought_does_not_limit_the_search() -> None:
    titles = ("The Old Mill", "The Hills", "The Counted Coins", "The Bridge", "Jonas Weller", "The Long Journey")
    outline = tuple(OutlineItem(title, number, 0) for number, title in enumerate(titles, 1))
    book = replace(BOOK, outline=outline)
    assert reach_of("When does Jonas Weller first appear?", book)[0] is Reach.FIRST
    assert reach_of("What happens in Jonas Weller?", book) == (Reach.NAMED, {5})
    assert reach_of("When does Marta first appear in The Long Journey?", book) == (Reach.NAMED, {6})


def test_a_page_is_named_by_what_is_printed_on_it() -> None:
    labels = ["i", "ii", "iii", *map(str, range(1, 8))]
    book = replace(BOOK, pages=tuple(Page(at, label, "Text.") for at, label in enumerate(labels, 1)), outline=())
    assert reach_of("What happens on page 4?", book) == (Reach.NAMED, {7})
    assert reach_of("Summarize pages 2 to 3.", book) == (Reach.NAMED, {5, 6})
    assert reach_of("What stands on p. 9?", book) == (Reach.NAMED, {9}), "printed on none"
    assert reach_of("What does section 4 of the lease say?", book)[0] is Reach.FEW, "it has pages"
    assert reach_of("What does section 4.2 say?", replace(book, unit="section"))[0] is Reach.FEW
    assert reach_of("What does section 4 say?", replace(book, unit="section")) == (Reach.NAMED, {7})
    both = Document.together([book, Document.from_pages("Lease", ["One.", "Two."])])
    assert reach_of("What is on page 2?", both) == (Reach.NAMED, {5, 12}), "of each document"


def plan_for(question: str, wanted: int = 0) -> Any:
    return choose_parts(question, in_parts(), BookWords(BOOK), wanted)


def test_what_is_first_is_looked_for_from_the_start_in_the_parts_that_name_it() -> None:
    choice = plan_for("When does the goose first appear?")
    assert [part.number for part in choice.parts] == [2, 3]
    assert choice.mentions == (Mention("goose", 4, "4"),)
    assert "sold him a goose" in choice.hints[0][0]
    assert choice.left_out_sentence == "Part 1 does not name “goose”."
    assert left_out(choice, in_parts(), [2]) == "Parts 1 and 3 were not asked. Part 1 does not name “goose”."
    assert left_out(choice, in_parts(), [1, 2, 3]) == ""
    assert mentioned(choice.mentions[0], Reach.FIRST, BOOK) == "“goose” first stands on page 4."


def test_what_is_last_is_looked_for_from_the_end() -> None:
    choice = plan_for("When is Jonas Weller last mentioned?")
    assert [part.number for part in choice.parts] == [2]
    assert choice.mentions == (Mention("Jonas", 4, "4"), Mention("Jonas Weller", 3, "3"))


def test_two_names_have_to_stand_in_a_part() -> None:
    choice = plan_for("Where does Marta first meet Jonas?")
    assert [part.number for part in choice.parts] == [2]
    assert choice.left_out_sentence == "Parts 1 and 3 do not name both “Marta” and “Jonas”."


@pytest.mark.parametrize(
    ("question", "parts"),
    [
        ("On which page does Ann make her first appearance?", [3, 4]),
        ("Wann taucht Ann zum ersten Mal auf?", [3, 4]),
        ("Auf welcher Seite kommt Ann das erste Mal vor?", [3, 4]),
        ("À quelle page Ann apparaît-elle pour la première fois ?", [3, 4]),
        ("What is the first page that mentions Ann?", [3, 4]),
        ("When is Ann last mentioned?", [4, 3]),
        ("When does Mary Crawford first appear?", [2, 4, 1]),
        ("À quelle page Elodie apparaît-elle pour la première fois ?", [4]),
        ("Where does Elodie's brother first appear?", [4]),
    ],
)
def test_whole_words_decide_where_a_name_first_stands(question: str, parts: list[int]) -> None:
    texts = [
        "The annual fair will make Anna and Mary Bertram happy; it appears that the page of each part was turned.",
        "Mary Crawford sang to Anna.",
        "Then Ann came.",
        "Ann wrote to Mary Crawford and to Élodie.",
    ]
    book = Document.from_pages("The Fair", texts)
    choice = choose_parts(question, cut(book, fit(book, 110 * 8 // 7 + 2)), BookWords(book))
    assert [part.number for part in choice.parts] == parts
    assert choice.mentions[0].page == (1 if "Mary" in question else parts[0])


@pytest.mark.parametrize(
    ("question", "reach", "parts"),
    [
        ("When does Jo first appear?", Reach.FIRST, [2, 3]),
        ("Where is the word inflation first used?", Reach.FIRST, [1, 3]),
        ("When does Ann first appear in chapter 2?", Reach.NAMED, [2]),
        ("When does Kim Jong-il first appear?", Reach.FIRST, [3, 1]),
    ],
)
def test_short_names_and_chapters_of_a_first_place(question: str, reach: Reach, parts: list[int]) -> None:
    texts = [
        "Inflation rose when Kim Jong-un spoke of the price of grain and other things that the market had to bear.",
        "Jo read of it.",
        "Jo told Ann, and Kim Jong-il heard that the inflation was gone.",
        "The fair was over.",
    ]
    titles = "Prices", "Annual Fair", "Talk", "End"
    outline = tuple(OutlineItem(f"Chapter {at}: {title}", at, 1) for at, title in enumerate(titles, 1))
    book = replace(Document.from_pages("The Fair", texts), outline=outline)
    choice = choose_parts(question, cut(book, fit(book, 110 * 8 // 7 + 2)), BookWords(book))
    assert choice.reach is reach
    assert [part.number for part in choice.parts] == parts


def test_a_name_that_stands_nowhere_is_told() -> None:
    choice = plan_for("When does Ahab first appear?")
    assert choice.left_out_sentence == "“Ahab” stands nowhere in the book."
    assert choice.parts


def test_a_fact_is_asked_of_the_parts_that_promise_most() -> None:
    assert plan_for("When did Marta sail to Riga?").parts[0].number == 3
    assert [part.number for part in plan_for("When did Marta sail to Riga?", wanted=1).parts] == [3]
    assert [part.number for part in plan_for("List the animals.").parts] == [1, 2, 3]
    assert [part.number for part in plan_for("What happens on page 4?").parts] == [2]


def test_a_table_of_contents_is_no_appearance() -> None:
    titles = ["The Miller", "The Stranger", "A Journey to Riga", "The Goose Returns"]
    outline = tuple(OutlineItem(title, number, 0) for number, title in enumerate(titles, start=2))
    book = replace(Document.from_pages("B", ["\n".join(titles), *TEXTS[:4]]), outline=outline)
    assert listing_pages(book) == {1}
    assert listing_pages(replace(book, outline=(OutlineItem("Index", 5, 0),))) == {5}


def test_subjects() -> None:
    assert subjects("When does Captain Ahab first appear?") == ["Captain Ahab"]
    assert subjects("Where does Starbuck first meet Moby-Dick's crew?") == ["Starbuck", "Moby-Dick crew"]
    assert subjects("Wann erscheint Effi Briest zum ersten Mal?") == ["Effi Briest"]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Where does Kate first find the watch?", ["Kate", "watch"]),
        ("When does Kate find the watch for the first time?", ["Kate", "watch"]),
        ("When does Ahab first see land?", ["Ahab", "land"]),
        ("Where is opium first described?", ["opium"]),
        ("When does the old clock first strike?", ["old clock"]),
        ("When does Jane first discover Bertha?", ["Jane", "Bertha"]),
        ("What is the first chapter that mentions whaling?", ["whaling"]),
        ("Where does the phrase “call me Ishmael” first appear?", ["call me Ishmael"]),
        ("Where is the word inflation first used?", ["inflation"]),
        ("Wann findet Anna die Uhr zum ersten Mal?", ["Anna", "Uhr"]),
        ("Wann wird Opium zum ersten Mal beschrieben?", ["Opium"]),
        ("In welchem Kapitel kommt Annas Bruder zuerst vor?", ["Annas Bruder"]),
        ("Quand est-il question de l'opium pour la première fois ?", ["opium"]),
        ("Où d'Artagnan apparaît-il d'abord ?", ["Artagnan"]),
        ("Quel est le premier chapitre où l'on parle d'Anna ?", ["Anna"]),
        ("¿Cuándo se menciona a Sancho por primera vez?", ["Sancho"]),
        ("¿Dónde aparece la palabra libertad por primera vez?", ["libertad"]),
    ],
)
def test_verbs_and_articles_are_no_subjects(question: str, expected: list[str]) -> None:
    assert reach_of(question, BOOK)[0] is Reach.FIRST
    assert subjects(question) == expected


@pytest.mark.parametrize(
    "question",
    [
        "When did the last train leave?",
        "When is the first opium war mentioned?",
        "Where is Marta's first house?",
        "When did they at last leave the island?",
        "When was the first edition printed?",
    ],
)
def test_the_first_of_several_things_is_not_their_first_place(question: str) -> None:
    assert reach_of(question, BOOK)[0] is Reach.FEW


def test_the_first_chapter_that_names_something_is_not_chapter_1() -> None:
    outline = tuple(OutlineItem(f"Chapter {number}", number, 0) for number in range(1, 7))
    book = replace(BOOK, outline=outline)
    for question in (
        "What is the first chapter that mentions the goose?",
        "Which is the first chapter in which Riga appears?",
        "Was ist das erste Kapitel, in dem Marta vorkommt?",
    ):
        assert reach_of(question, book) == (Reach.FIRST, frozenset())
    assert reach_of("What happens in the first chapter?", book) == (Reach.NAMED, {1})


@pytest.mark.parametrize(
    ("question", "page"), [("Wann kommt Anna zum ersten Mal vor?", 1), ("Wann erscheint Luka zum ersten Mal?", 3)]
)
def test_a_german_genitive_is_a_place_of_the_name(question: str, page: int) -> None:
    texts = [
        "Am Abend sah der Müller Annas Haus hinter dem Hügel, und Lukas rief die Kinder in den Hof der Mühle.",
        "Im Garten stand Anna mit dem Korb, und Lukas brachte das Brot aus dem Dorf an den Tisch der Familie.",
        "Vor der Tür traf Anna einen Fremden mit Namen Luka, und Lukas gab ihm die Hand und ein Glas Wasser.",
    ]
    book = Document.from_pages("Der Hof", texts)
    choice = choose_parts(question, cut(book, fit(book, 110 * 8 // 7 + 2)), BookWords(book))
    assert choice.mentions[0].page == page


def test_the_last_of_more_places_than_a_search_returns_is_the_last() -> None:
    texts = ["Then Pierre spoke again to the old man. " * 30 for _ in range(40)]
    book = Document.from_pages("The Old Man", [*texts, "Nobody was left in the house."])
    part = Part(1, book, 9000)
    choice = choose_parts("When is Pierre last mentioned?", (part,), BookWords(book))
    assert [(mention.words, mention.page) for mention in choice.mentions] == [("Pierre", 40)]


def test_an_idiom_of_mentioning_is_no_subject() -> None:
    assert subjects("Wo ist zuerst von dem Chinesen die Rede?") == ["Chinesen"]


# Asking them ----------------------------------------------------------------------------------------------------------


class Reader(ScriptedEngine):
    """Answers from what is open."""

    def __init__(self, said: Callable[[Document], str], limit: int = 2_000) -> None:
        super().__init__(word_seconds=0.0, reading_seconds=0.001, limit=limit)
        self.said = said
        self.opened: list[Document] = []

    def read(self, reading: Reading | Document, **cancel: Any) -> Any:
        document = Reading.of(reading).document
        self.opened.append(document)
        self.answer = self.said(document)
        return super().read(reading, **cancel)


def asked(engine: Reader, question: str, wanted: int = 0, **options: Any) -> list[Any]:
    finder = CitationFinder()
    choice = choose_parts(question, in_parts(), finder.prepare(BOOK).result().words, wanted)
    steps = ask_parts(
        engine, choice, Ask(question), BOOK, options.pop("card", Abilities()), citation_finder=finder, **options
    )
    return list(steps)


def goose(document: Document) -> str:
    return "Marta sold Jonas a goose at the bridge." if "bridge" in document.text else "It is not mentioned."


def test_the_first_answer_that_the_book_bears_out_ends_it() -> None:
    engine = Reader(goose)
    done = asked(engine, "When does the goose first appear?")[-1]
    assert isinstance(done, PartsAnswered)
    assert (done.text, done.joined) == ("Marta sold Jonas a goose at the bridge.", False)
    assert [one.part for one in done.answers] == [2]
    assert done.record["chips"][0]["pages"] == [{"number": 4, "label": "4"}]
    assert "From the book:" in engine.asked[0].text
    assert [document.pages[0].number for document in engine.opened] == [3]


def test_words_that_another_part_has_are_not_said_to_be_missing_from_the_book() -> None:
    engine = Reader(lambda document: "Marta sold Jonas a goose at the bridge. Marta sailed to Riga in Atlantis.")
    done = asked(engine, "When does the basket first go to Riga?", wanted=1)[-1]
    assert [one.part for one in done.answers] == [3]
    missing = [words for chip in done.record["chips"] for words in chip.get("missing", ())]
    assert (missing, done.record["missing"]) == (["Atlantis"], ["Atlantis"])
    engine = Reader(lambda document: "Marta sold Jonas a goose at the bridge.")
    done = asked(engine, "When does the basket first go to Riga?", wanted=1)[-1]
    assert "missing" not in done.record
    assert done.answers[0].level == "not found", "its part does not bear it out"


def test_a_part_that_does_not_tell_is_followed_by_the_next() -> None:
    engine = Reader(lambda document: "Marta sailed to Riga." if "Riga" in document.text else "It is not mentioned.")
    done = asked(engine, "When does Marta first appear?")[-1]
    assert [(one.part, one.found) for one in done.answers] == [(1, False), (2, False), (3, True)]
    assert done.text == "Marta sailed to Riga."


def test_answers_of_all_parts_are_put_together_and_each_claim_is_looked_up() -> None:
    def said(document: Document) -> str:
        if document.title.startswith("Answers"):
            assert document.pages[0].text.startswith("Pages 3 to 4:\nMarta sold")
            assert document.sha256 == "", "it is not kept"
            return "Marta sold Jonas a goose at the bridge. Marta sailed to Riga."
        return goose(document) if "Riga" not in document.text else "Marta sailed to Riga in the spring."

    engine = Reader(said)
    events = asked(engine, "List what Marta did.")
    done = events[-1]
    assert done.joined
    assert [one.part for one in done.answers] == [1, 2, 3]
    assert [event for event in events if isinstance(event, Joining)] == [Joining(2, last=True)]
    assert [chip["pages"][0]["number"] for chip in done.record["chips"]] == [4, 6]
    assert engine.asked[0].sampling.max_tokens == 256


def test_a_model_that_only_quotes_puts_nothing_together() -> None:
    engine = Reader(lambda document: f"“{document.pages[0].text[:20]}”")
    done = asked(engine, "List what Marta did.", card=Abilities(only_quotes=True))[-1]
    assert not done.joined
    assert done.text.startswith("Pages 1 to 2: “The mill stood by th”\n\nPages 3 to 4: “Old Jonas")


def test_chapters_keep_their_letters_above_what_was_said_of_them() -> None:
    pages = tuple(replace(page, label=f"The {name} Gale") for page, name in zip(BOOK.pages, "ABCDEF", strict=True))
    book = replace(BOOK, pages=pages, unit="section")
    question, finder = "List what Marta did.", CitationFinder()
    choice = choose_parts(question, cut(book, fit(book, 340)), finder.prepare(book).result().words)
    engine = Reader(lambda document: f"“{document.pages[0].text[:20]}”")
    *_, done = ask_parts(engine, choice, Ask(question), book, Abilities(only_quotes=True), citation_finder=finder)
    assert isinstance(done, PartsAnswered)
    assert done.text.startswith("The A Gale – The B Gale: “The mill")


def test_answers_side_by_side_keep_the_pages_that_their_parts_gave_them() -> None:
    """The same words were looked up again in the whole book, and another page was told than beside the part."""
    engine = Reader(lambda document: "The road was dry that day." if document.pages[0].number != 3 else "No.")
    done = asked(engine, "List what Marta did.", card=Abilities(only_quotes=True))[-1]
    said = [(done.text[chip["from"] : chip["at"]], chip["pages"][0]["number"]) for chip in done.record["chips"]]
    own = [chip["pages"][0]["number"] for one in done.answers for chip in one.record["chips"] if one.found]
    assert [page for _, page in said] == own
    assert {words for words, _ in said} == {"The road was dry that day."}
    assert len(said) == 2


def test_stopped_it_goes_on_with_the_part_that_is_missing() -> None:
    engine, cancel = Reader(goose), threading.Event()
    finder = CitationFinder()
    choice = choose_parts("List the animals.", in_parts(), finder.prepare(BOOK).result().words)
    options: Any = {"citation_finder": finder}
    kept: list[Any] = []
    steps = ask_parts(engine, choice, Ask("List the animals."), BOOK, Abilities(), cancel=cancel, **options)
    for event in steps:
        if isinstance(event, PartAnswered):
            kept.append(event.answer)
            cancel.set()
    assert isinstance(event, PartsAnswered)
    assert (event.stopped, [one.part for one in event.answers]) == (True, [1])
    events = list(ask_parts(engine, choice, Ask("List the animals."), BOOK, Abilities(), known_answers=kept, **options))
    assert [event.part.number for event in events if isinstance(event, PartBegun)] == [2, 3]
    assert [one.part for one in events[-1].answers] == [1, 2, 3]


def test_only_the_newest_turns_go_before_a_part() -> None:
    old, new = Turn("Old?", "x" * 1500), Turn("New?", "Yes.")
    assert recent((old, new)) == (new,)
    assert recent((new, old)) == ()
