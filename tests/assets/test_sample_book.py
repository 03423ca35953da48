"""The sample book that ships with the application: its text, its PDF and its suggested questions agree."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pypdfium2
import pytest

SAMPLE = Path(__file__).resolve().parents[2] / "assets" / "sample"
TITLE = "The Lamplighters of Orre"
MAX_PDF_BYTES = 1_000_000
MIN_PAGES = 60
WORD_LIMITS = (16_000, 22_000)
CHAPTER_LIMITS = (14, 18)
KEY_WORD_LIMITS = (3, 8)
HEADING = re.compile(r"^Chapter (\d+): .+$", re.MULTILINE)
QUESTION = re.compile(r"(?:What does the book say about|Where does it say(?: that)?) (?:the |“)?(.+?)”?\?")


def normalised(text: str) -> str:
    """One space for every run of white space."""
    return re.sub(r"\s+", " ", text).strip()


def sentences(text: str) -> list[str]:
    """Pieces of normalised text that end with a full stop, question or exclamation mark and any closing quote."""
    ends = r"(?<=[.!?])(?<!Mr\.)(?<!Dr\.)(?<!Mrs\.)(?<!St\.) |(?<=[.!?]”) "
    return [piece for piece in re.split(ends, text) if piece]


def key_of(question: str) -> str:
    """What a question asks about, word for word."""
    match = QUESTION.fullmatch(question)
    assert match, f"not one of the forms of question: {question}"
    return match[1]


@pytest.fixture(scope="module")
def sample() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((SAMPLE / "sample.json").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def text(sample: dict[str, Any]) -> str:
    return (SAMPLE / sample["text"]).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def chapters(text: str) -> dict[str, str]:
    """Heading to the normalised text under it."""
    starts = list(HEADING.finditer(text))
    ends = [m.start() for m in starts[1:]] + [len(text)]
    return {m[0]: normalised(text[m.end() : end]) for m, end in zip(starts, ends, strict=True)}


@pytest.fixture(scope="module")
def pdf(sample: dict[str, Any]) -> Iterator[pypdfium2.PdfDocument]:
    document = pypdfium2.PdfDocument(SAMPLE / sample["file"])
    yield document
    document.close()


@pytest.fixture(scope="module")
def pages(pdf: pypdfium2.PdfDocument) -> list[str]:
    """The text of each page without its folio. Page 1, the title page, has none."""
    read = [normalised(page.get_textpage().get_text_range()) for page in pdf]
    for number, page in enumerate(read[1:], start=2):
        assert page.endswith(f" {number}"), f"page {number} has no folio: {page[-20:]!r}"
    return [read[0], *(page.rsplit(" ", 1)[0] for page in read[1:])]


def test_text_is_a_book_of_the_promised_length(text: str, chapters: dict[str, str]) -> None:
    assert text.split("\n\n")[:2] == [TITLE, "A Trifold original"]
    assert WORD_LIMITS[0] <= len(text.split()) <= WORD_LIMITS[1]
    assert CHAPTER_LIMITS[0] <= len(chapters) <= CHAPTER_LIMITS[1]
    assert [int(m[1]) for m in HEADING.finditer(text)] == list(range(1, len(chapters) + 1))


def test_text_has_one_paragraph_a_line(text: str) -> None:
    lines = text.removesuffix("\n").split("\n")
    assert all(lines[0::2]), "a paragraph is missing"
    assert not any(lines[1::2]), "paragraphs are not separated by exactly one empty line"
    assert not [line for line in lines if line != normalised(line)]


def test_text_is_typeset_with_real_quotation_marks(text: str) -> None:
    assert not set(text) & set("\"'\t\r\ufeff")
    assert text.count("“") > 300
    assert "—" in text


def test_no_paragraph_appears_twice(text: str) -> None:
    long_paragraphs = [block for block in text.split("\n\n") if len(block.split()) > 8]
    assert len(long_paragraphs) == len(set(long_paragraphs))


def test_sample_json_names_the_book(sample: dict[str, Any]) -> None:
    assert (sample["title"], sample["author"]) == (TITLE, "A Trifold original")
    assert 3 <= len(sample["questions"]) <= 5
    assert all(set(q) == {"question", "answer_contains", "chapter"} for q in sample["questions"])


def test_each_key_occurs_once_and_its_sentence_answers(sample: dict[str, Any], chapters: dict[str, str]) -> None:
    book = " ".join(chapters.values())
    for asked in sample["questions"]:
        key = key_of(asked["question"])
        assert KEY_WORD_LIMITS[0] <= len(key.split()) <= KEY_WORD_LIMITS[1], key
        assert book.lower().count(key.lower()) == 1, key
        (sentence,) = (s for s in sentences(chapters[asked["chapter"]]) if key in s)
        assert asked["answer_contains"] in sentence


def test_answers_are_printed_on_one_page(sample: dict[str, Any], chapters: dict[str, str], pages: list[str]) -> None:
    for asked in sample["questions"]:
        key = key_of(asked["question"])
        (sentence,) = (s for s in sentences(chapters[asked["chapter"]]) if key in s)
        assert sum(sentence in page for page in pages) == 1, sentence


def test_pdf_contains_every_sentence(chapters: dict[str, str], pages: list[str]) -> None:
    printed = " ".join(pages)
    wanted = [s for chapter in chapters.values() for s in sentences(chapter)]
    assert len(wanted) > 1000
    assert [s for s in wanted if s not in printed] == []


def test_pdf_contains_nothing_but_the_book(text: str, pages: list[str]) -> None:
    headings_as_printed = HEADING.sub(lambda m: m[0].replace(": ", " "), text)
    assert normalised(" ".join(pages)) == normalised(headings_as_printed)


def test_outline_leads_to_each_chapter(pdf: pypdfium2.PdfDocument, chapters: dict[str, str], pages: list[str]) -> None:
    outline = [(entry.get_title(), entry.get_dest().get_index()) for entry in pdf.get_toc()]
    assert [title for title, _ in outline] == list(chapters)
    for title, index in outline:
        opening = chapters[title][:60]
        assert pages[index].startswith(title.replace(": ", " ")), title
        assert opening in pages[index], title


def test_pdf_metadata_and_size(sample: dict[str, Any], pdf: pypdfium2.PdfDocument) -> None:
    metadata = pdf.get_metadata_dict()
    assert (metadata["Title"], metadata["Author"]) == (sample["title"], sample["author"])
    assert len(pdf) > MIN_PAGES
    assert (SAMPLE / sample["file"]).stat().st_size < MAX_PDF_BYTES
