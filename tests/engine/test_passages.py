"""Passages that share words with a question: which they are, and that they stand in the prompt and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from engine.document import Document, Page
from engine.languages import Language
from engine.passages import (
    LONGEST,
    POINTED_SHORTEST,
    SHORTEST,
    WHOLE_PASSAGES,
    Passages,
    asks_about_part,
    asks_for_whole,
    pointed,
    reminded,
    spans,
)
from engine.prompt import BookTokenizer, CachedTurn, Conversation, Turn

TEXT = (
    "Mr. Fenwick kept the north light for thirty years, as his father had done before him. It was a cold house.\n\n"
    "“Ephraim Gough,” he said. “I am Town Clerk, and you have come about the lamps.” The clerk shut his book.\n\n"
    "Orre lies eleven miles from the mainland, and the boat\ntakes two hours on a quiet day in the summer months. "
    "Nobody had counted the hens since the wells ran dry. There are nine lamps in the street behind the chapel.\n"
)


@pytest.mark.parametrize(
    ("question", "begins"),
    [
        ("Who kept the north light?", "Mr. Fenwick kept"),
        ("How far is it to the mainland?", "Orre lies eleven"),
        ("what is the name of the TOWN CLERK", "“Ephraim Gough,”"),
        ("Who was counting hens?", "Nobody had counted"),
    ],
)
def test_the_passage_with_the_rarest_words_comes_first(question: str, begins: str) -> None:
    found = Passages(TEXT).about(question, 2)
    assert found[0].startswith(begins)
    assert len(found) <= 2


def test_a_question_without_words_of_the_book_gets_none() -> None:
    passages = Passages(TEXT)
    for question in ("Who is it?", "Zebra?", "", "¿?"):
        assert passages.about(question, 4) == []
        assert reminded(question, passages.about(question, 4)) == question
    assert Passages("").about("Who kept the light?", 4) == []


@pytest.mark.parametrize(
    "question",
    [
        "What is this report about?",
        "what's it all about",
        "Tell me about this document.",
        "Summarise it in three sentences!",
        "Summarize the document in at most 60 words.",
        "Worum geht es? Fasse das Buch in höchstens 60 Wörtern zusammen.",
        "Resume el documento en 60 palabras como máximo.",
        "Can you summarize this for me, please?",
        "What are the main points?",
        "Give me a short overview of what you have read.",
        "What happens in this story?",
        "What is the main topic of this paper?",
        "tl;dr",
    ],
)
def test_a_question_about_the_whole_text_gets_its_beginning_and_what_tells_most(question: str) -> None:
    found = Passages(TEXT).about(question, 4)
    assert len(found) == WHOLE_PASSAGES
    assert found[0].startswith("Mr. Fenwick kept the north light")
    places = [" ".join(TEXT.split()).index(passage) for passage in found]
    assert places == sorted(set(places)), "in the order of the text, each once"
    assert Passages(TEXT).about(question, 1) == found[:1]
    assert Passages("").about(question, 4) == []
    assert Passages("A lamp is lit.").about(question, 4) == ["A lamp is lit."]


def test_what_tells_most_is_a_sentence_of_words_that_come_often() -> None:
    heading = "LAMPS AND LIGHTS, OIL AND WICKS, 12, 14, 17, 203, AND THE LAMPS OF THE HARBOUR WALL"
    often = "The lamps of the harbour were lit with oil by the keeper of the lamps every evening of the year."
    rare = "Somebody had left a parcel of wet newspapers beneath a bench next to gate seven of a station."
    text = "\n\n".join(["A beginning that says nothing of what is to come, which is quite long.", heading, rare, often])
    assert Passages(text).about("What is it about?", 2)[1] == often


@pytest.mark.parametrize(
    "question",
    [
        "Who are you?",
        "What about you?",
        "Tell me about Fenwick.",
        "What does the book say about the lamps?",
        "Who wrote this report?",
        "What happened to the hens?",
        "What is the name of the book?",
    ],
)
def test_a_question_about_one_thing_is_not_about_the_whole(question: str) -> None:
    assert not asks_for_whole(question)


def test_passages_are_the_whole_text_in_order() -> None:
    long = "and then the sea came in again, " * 60
    text = f"{TEXT}\n \n{long}\n\n{'x' * 1_000} Mrs. Bly said so. A. B. Low went. Go!"
    found = list(spans(text))
    assert all(before[1] <= after[0] for before, after in pairwise(found))
    assert "".join("".join(text[slice(*span)].split()) for span in found) == "".join(text.split())
    assert all(stop - start <= LONGEST for start, stop in found)
    inner = [text[slice(*span)] for span in found]
    assert not any(words.rstrip().endswith(("Mr.", "Mrs.", " A.", " B.")) for words in inner)
    assert all(len(words) >= SHORTEST for words in inner if not words.endswith((".", ".”", "!", "\n")))


def test_passages_stand_behind_the_question_in_every_turn(tiny: Callable[..., str]) -> None:
    tokenizer = BookTokenizer(tiny())
    document = Document("Lamps", "", (Page(1, "1", TEXT),), "txt", "")
    form = tokenizer.format_for("Lamps")
    book = tokenizer.book(document, form)
    talk = Conversation(tokenizer, document, book, form, frozenset(), num_passages=2)
    talk.begin(len(book.ids))
    history = [Turn("Who kept the north light?", "Mr. Fenwick.")]
    prompt = talk.compose("How far is the mainland?", history)
    words = tokenizer.decode(prompt.tokens[len(book.ids) :])
    assert words.index("north light?\n\nFrom the book:\n- Mr. Fenwick kept") < words.index("mainland?\n\nFrom the book")
    assert prompt.tokens == talk.compose("How far is the mainland?", history).tokens
    assert "From the book" not in tokenizer.decode(
        replace(talk, num_passages=0).compose("How far is the mainland?", history).tokens
    )
    assert talk.words_read is talk.words_read, "exact quotes are made of the same text"
    # What has not been read is not laid beside a question.
    talk.begin(len(book.ids) // 3)
    assert "mainland, and" not in tokenizer.decode(talk.compose("How far is the mainland?", []).tokens)


@pytest.mark.parametrize(
    ("about", "questions"),
    [
        (
            True,
            """Who kept the north light?
            Could you please tell me who kept the north light?
            Do you know when the boat comes?
            I would like to know how far Orre is.
            Explain why the clerk shut his book
            What does "you shall not pass" mean on the bridge?
            When may I take the beans out?
            Können Sie mir bitte sagen, wer die Sternwarte leitete?
            Comment s'appelait le chat du dernier gardien ?
            Wo ist der rote Ball heute?
            島はどこですか？""",
        ),
        (
            False,
            """Hello, nice to meet you.
            Thank you! Good night?
            How are things?
            Are you a robot?
            Do you know a good joke?
            Would you write me a poem about the lamps?
            It was a hard day at the lighthouse.
            What time is it?
            Tell me a story.
            Wie geht es Ihnen?
            Was kannst du?
            Comment allez-vous ?
            What is this book about?
            Give me an overview of the lamps.
            Fasse die Sternwarte zusammen. Worum geht es?
            What are the key points?
            """,
        ),
    ],
)
def test_only_a_question_about_something_in_the_book_is_pointed_to_a_passage(about: bool, questions: str) -> None:
    wrong = [line.strip() for line in questions.splitlines() if line.strip() and asks_about_part(line) is not about]
    assert not wrong
    assert not asks_about_part("Put these together:\nWho kept the light? Mr. Fenwick."), "it brings its own text"


def pointed_talk(tokenizer: BookTokenizer, text: str) -> tuple[Conversation, Callable[[Sequence[int]], str]]:
    """A talk about a text by a model that is pointed to passages, and what decodes a prompt's tokens after the book."""
    document = Document("Light", "", (Page(1, "1", text),), "txt", "")
    form = tokenizer.format_for("Light")
    book = tokenizer.book(document, form)
    talk = Conversation(tokenizer, document, book, form, frozenset(), pointed=True)
    talk.begin(len(book.ids))
    return talk, lambda tokens: tokenizer.decode(tokens[len(book.ids) :])


@pytest.mark.parametrize(
    ("text", "question", "line"),
    [
        (TEXT, "Who kept the north light?", "From the book:"),
        ("Die Kuppel wurde im Jahr 1887 gebaut, und sie ist grün.", "Wann wurde die Kuppel gebaut?", "Aus dem Buch:"),
        ("Le phare est bâti sur les rochers, et il est haut.", "Qui a bâti le phare ?", "Tiré du livre :"),
        ("El faro se construyó con las piedras del puerto.", "¿Quién construyó el faro?", "Del libro:"),
        ("Lampa została zapalona.", "Kto zapalił lampa?", "From the book:"),
    ],
)
def test_the_line_above_the_passage_is_in_the_language_of_the_book(
    tiny: Callable[..., str], text: str, question: str, line: str
) -> None:
    talk, written = pointed_talk(BookTokenizer(tiny()), text)
    asked = written(talk.compose(question, []).tokens)
    assert f"{line}\n- " in asked
    assert asked.count(question) == 1


# Questions in the book's own language with words of another, and some that want an answer in the book's language.
OF_THE_BOOK = (
    ("Will Ahab die?", "en"),
    ("Describe Ahab's hat", "en"),
    ("Kommt Anna her?", "de"),
    ("Que hizo Sancho?", "es"),
    ("Explica que significa X", "es"),
    ("Wer ist Ahab? Antworte auf Englisch.", "en"),
    ("Explain von Neumann architecture.", "en"),
    ("Qui a écrit « The Picture of Dorian Gray » ?", "fr"),
    ("Wie lautet der erste Satz wörtlich?", "en"),
)


@pytest.mark.parametrize(
    ("question", "language", "asked"),
    [
        ("Wer zählte die Lampen?", "en", "Wer zählte die Lampen? (Antworte auf Deutsch.)"),
        ("Wieviel kostet es?", "en", "Wieviel kostet es? (Antworte auf Deutsch.)"),
        *((asked, language, asked) for asked, language in OF_THE_BOOK),
        ("Qui garde le phare ?", "en", "Qui garde le phare ? (Réponds en français.)"),
        ("¿Quién construyó el faro?", "de", "¿Quién construyó el faro? (Responde en español.)"),
        ("Who kept the light?", "de", "Who kept the light? (Answer in English.)"),
        ("Wer zählte die Lampen?", "de", "Wer zählte die Lampen?"),
        ("Was she there?", "en", "Was she there?"),
        ("Kto zapalił lampa?", "en", "Kto zapalił lampa?"),
        ("Wer zählte die Lampen?", None, "Wer zählte die Lampen?"),
    ],
)
def test_a_question_in_another_language_than_the_book_asks_for_an_answer_in_its_own(
    question: str, language: Language | None, asked: str
) -> None:
    """A German question about an English book was sometimes answered in English."""
    assert pointed(question, ["The lamps."], language).endswith(f"- The lamps.\n\n{asked}")


def test_a_model_that_is_pointed_gets_the_best_passage_before_its_question(tiny: Callable[..., str]) -> None:
    talk, written = pointed_talk(BookTokenizer(tiny()), TEXT)
    asked = "Who kept the north light?"
    prompt = talk.compose(asked, [])
    words = written(prompt.tokens)
    (passage,) = Passages(talk.words_read, POINTED_SHORTEST).best(asked)
    assert len(passage) >= len(Passages(talk.words_read).about(asked, 1)[0])
    assert pointed(asked, [passage]) in words
    assert words.count("From the book:") == 1
    bare = replace(talk, pointed=False)
    for other in ("Are you a robot?", "What is this book about?", "Zebra?"):
        assert talk.compose(other, []).tokens == bare.compose(other, []).tokens
    # The turns in the caches stay as they were computed.
    talk.remember([*prompt.turns, CachedTurn(Turn(asked, ""), len(prompt.tokens))], prompt.tokens)
    assert talk.compose("How far is it?", [Turn(asked, "")]).tokens[: len(prompt.tokens)] == prompt.tokens


@pytest.mark.parametrize(
    ("question", "compares"),
    [
        ("Where do the two leases differ on the rent?", True),
        ("What is the rent in each lease?", True),
        ("Wie unterscheiden sich die Mieten (rent)?", True),
        ("Compare the rents.", True),
        ("Vergleiche die Mieten (rent).", True),
        ("Which of these leases has the lower rent?", True),
        ("Which lease has the lower rent?", True),
        ("In welchem der Verträge ist die Miete (rent) niedriger?", True),
        ("Lequel des baux a le loyer (rent) le plus bas ?", True),
        ("¿Qué contrato tiene la renta (rent) más baja?", True),
        ("Which month is the rent of the boathouse due?", False),
        ("What is the rent of the boathouse?", False),
    ],
)
def test_a_question_that_compares_documents_is_pointed_to_each(
    tiny: Callable[..., str], question: str, compares: bool
) -> None:
    tokenizer = BookTokenizer(tiny())
    leases = [
        Document.from_text("Boathouse", "The rent of the boathouse is 1,450 pounds a month. The dog may stay."),
        Document.from_text("Net Loft", "The rent of the loft is 980 pounds a month. No dog may stay."),
    ]
    document = Document.together(leases)
    form = tokenizer.format_for("Light")
    book = tokenizer.book(document, form)
    talk = Conversation(tokenizer, document, book, form, frozenset(), pointed=True)
    talk.begin(len(book.ids))
    asked = tokenizer.decode(talk.compose(question, []).tokens[len(book.ids) :])
    assert ("- Net Loft: " in asked, "- Boathouse: " in asked) == (compares, compares)
    assert asked.count("\n- ") == 1 + compares
    talk.begin(book.borders[0])
    asked = tokenizer.decode(talk.compose(question, []).tokens[book.borders[0] :])
    assert "980" not in asked, "the second document has not been read"


def test_rows_have_their_head_a_heading_its_text_and_a_follow_up_the_question_before() -> None:
    """The hint was a bare row, a heading alone, or about nobody: "When was he paid?"."""
    rows = "\n".join(f"Clerk {name} | {day} | {day * 3}" for day, name in enumerate("ABCDEFGHIJKLMNOPQRST", 11))
    text = "\n\n".join(
        (
            "Wages",
            f"Name | Day | Month\n{rows}",
            "Duties of the porter",
            "He opens the gate at six and closes it at nine, and in between he sweeps the yard and carries the coal.",
            "Walter Rudd was paid on Fridays, and the money was counted twice.",
            "Mary Reed was paid on Mondays at the inn, where nobody counted anything at all.",
        )
    )
    passages = Passages(text, POINTED_SHORTEST)
    assert passages.best("What does clerk S get?")[0].startswith("Name | Day | Month / ")
    assert "opens the gate" in passages.best("What are the duties of the porter?")[0]
    assert "Fridays" in passages.best("And when was he paid?", "Who was Walter Rudd?")[0]
    assert "Mondays" in passages.best("And when was she paid?", "Who was Mary Reed?")[0]
    assert "Mondays" in passages.best("When was Mary Reed paid?", "Who was Walter Rudd?")[0]
