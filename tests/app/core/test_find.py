"""Words found in a book, however they are printed."""

from __future__ import annotations

import pytest

from app.core.find import _MOST_IN_ALL, MOST_HITS, Finder, Found
from app.language.spellings import without_endings
from app.language.words import without_ending
from engine.document import Document

PAGES = (
    "The Lamplighter of Orré kept the north\nlight. Nobody lit a lamp like him; the light-\nhouse was his.",
    "North, light and dark: his café had a light\u00adhouse in the window. He was an art lover with a heart, and",
    "the sea. A well-known keeper doesn’t sleep.",
)
BOOK = Document.from_pages("The Lamps", PAGES)


def test_a_search_keeps_letters_that_evidence_drops() -> None:
    stem = without_ending("study")
    assert without_ending("studies") == stem, "whole stems are compared"
    assert "student".startswith(stem), "and a search for the stem would find other words"
    assert not "student".startswith(without_endings("studies"))


def find(words: str, book: Document = BOOK) -> tuple[list[tuple[int, str]], Found]:
    """The page and the words of every place, and all that was found."""
    found = Finder().find(book, words)
    shown = [
        (hit.page + 1, " … ".join(book.pages[span.page].text[span.start : span.end] for span in hit.spans))
        for hit in found.hits
    ]
    return shown, found


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("NORTH light", [(1, "north\nlight"), (2, "North, light")]),
        ("orre", [(1, "Orré")]),
        ("Cafe", [(2, "café")]),
        ("lamp", [(1, "Lamp"), (1, "lamp")]),
        ("lighthouse", [(1, "light-\nhouse"), (2, "light\u00adhouse")]),
        ("light house", [(1, "light-\nhouse"), (2, "light\u00adhouse")]),
        ("and the sea", [(2, "and … the sea")]),
        ("well known", [(3, "well-known")]),
        ("well-known", [(3, "well-known")]),
        ("wellknown", [(3, "well-known")]),
        ("doesn't", [(3, "doesn’t")]),
        ('"north lighthouse"', []),
        ('"north light dark"', []),
        ("", []),
        (" -.", []),
    ],
)
def test_words_and_phrases(words: str, shown: list[tuple[int, str]]) -> None:
    assert find(words)[0] == shown


def test_a_phrase_begins_its_words_where_the_book_does() -> None:
    book = Document.from_pages("A", ["The heron sat on her one oar."])
    assert find("her on", book)[0] == [(1, "her on")], "not the heron"


def test_what_begins_a_word_comes_first_and_only_else_what_is_inside() -> None:
    assert find("art")[0] == [(2, "art")], "the heart is not meant"
    shown, found = find("ighte")
    assert (shown, found.how) == ([(1, "ighte")], "inside")
    assert find('"lamp"')[0] == [(1, "lamp")], "in quotation marks it is this very word"
    assert find("a")[0] == [(1, "a"), (2, "a"), (2, "a"), (3, "A")], "one letter is no part of a word"


def test_where_there_is_no_such_phrase_all_words_are_found_near_each_other() -> None:
    shown, found = find("keeper sea")
    assert (shown, found.how) == ([(3, "sea … keeper")], "near")
    assert find("keeper lamplighter nowhere")[0] == []
    assert find('"keeper sea"')[0] == []
    far = Document.from_pages("A", ["keeper " + "word " * 100 + "sea"])
    assert find("sea keeper", far)[0] == []


def test_a_common_word_has_an_end_and_what_was_found_is_kept() -> None:
    book = Document.from_pages("A", ["the sea and the lamp " * 600])
    finder = Finder()
    found = finder.find(book, "the")
    assert (len(found.hits), found.more) == (MOST_HITS, True)
    assert finder.find(book, "the") is found
    assert finder.find(book, "lamp").hits != found.hits


@pytest.mark.parametrize(
    ("text", "words", "shown"),
    [
        ("Die Laterne brannte, der Mietvertrag nicht.", "Laternen", "Latern"),
        ("Die Laterne brannte, der Mietvertrag nicht.", "Mietvertrags", "Mietvertrag"),
        ("La tempête passa; la lampe resta.", "tempetes", "tempêt"),
        ("La canción terminó.", "canciones", "canción"),
        ("He lighted one lantern.", "lanterns", "lantern"),
        ("He lighted one lantern.", "“lanterns”", ""),
    ],
)
def test_other_forms_of_a_word_are_found_where_it_does_not_occur(text: str, words: str, shown: str) -> None:
    found = Finder().find(Document.from_pages("", [text]), words)
    assert ["".join(text[span.start : span.end] for span in hit.spans) for hit in found.hits] == [shown] * bool(shown)
    assert found.how == ("forms" if shown else "words")


def test_joined_letters_are_found_by_two() -> None:
    found = Finder().find(Document.from_pages("", ["L’œuvre est là."]), "oeuvre")
    assert (len(found.hits), found.how) == (1, "words")


def test_short_words_have_an_end_whatever_their_spellings() -> None:
    """Each spelling and word had a bound of its own: 190 s for some short words in a long book."""
    book = Document.from_pages("Long", tuple("in of a the to ss ae oe ue " * 200 for _ in range(100)))
    asked: list[None] = []
    Finder().find(book, "ss ae oe ue ss ae oe ue to", unwanted=lambda: bool(asked.append(None)))
    assert 1_000 < len(asked) <= _MOST_IN_ALL + 1


def test_a_search_that_is_not_wanted_any_more_ends_and_is_not_kept() -> None:
    finder, asked = Finder(), [0]

    def unwanted() -> bool:
        asked[0] += 1
        return asked[0] > 1

    book = Document.from_pages("Long", ("light " * 5_000,))
    assert len(finder.find(book, "light", unwanted=unwanted).hits) == 1
    assert asked[0] == 3
    assert len(finder.find(book, "light").hits) == MOST_HITS
