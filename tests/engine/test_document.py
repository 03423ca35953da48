"""Several documents as one book: numbers, labels, titles, and what of their tokens is the same whatever follows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from app.trust.evidence import EvidenceIndex
from engine.contents import ALONG, guided
from engine.document import Document, Member, OutlineItem
from engine.errors import OptionError
from engine.prompt import BookTokenizer

LEASE = replace(
    Document.from_pages("Lease 2024", ["Notice is three months.", "The rent is 900 a month, payable"]),
    author="Holt",
    outline=(OutlineItem("Notice", 1, 0), OutlineItem("Rent", 2, 0)),
    warnings=("One picture was not read.",),
)
NEXT = Document.from_pages("Lease 2025", ["notice is one month.", "", "The rent is 950."])
LETTER = Document.from_text("Lease 2024", "Dear tenant, the roof leaks.")


def test_pages_are_numbered_on_and_keep_their_labels() -> None:
    both = Document.together([LEASE, NEXT])
    assert [(page.number, page.label) for page in both.pages] == [(1, "1"), (2, "2"), (3, "1"), (4, "2"), (5, "3")]
    assert both.members == (
        Member("Lease 2024", "Holt", "text", LEASE.sha256, "page", 0),
        Member("Lease 2025", "", "text", NEXT.sha256, "page", 2),
    )
    assert [both.member_at(number) for number in (1, 2, 3, 5)] == [both.members[at] for at in (0, 0, 1, 1)]
    assert LEASE.member_at(1) is None
    assert (both.title, both.author, both.unit) == ("Lease 2024 + Lease 2025", "Holt", "page")
    assert both.warnings == ("“Lease 2024”: One picture was not read.",)
    assert [(item.title, item.page, item.level) for item in both.outline] == [
        ("Lease 2024", 1, 0),
        ("Notice", 1, 1),
        ("Rent", 2, 1),
        ("Lease 2025", 3, 0),
    ]
    with pytest.raises(OptionError):
        Document.together([])


def test_a_title_that_is_the_first_heading_stands_once_in_the_contents() -> None:
    headed = replace(NEXT, outline=(OutlineItem("Lease 2025", 1, 0), OutlineItem("Notice", 1, 1)))
    both = Document.together([headed, LEASE])
    assert [(item.title, item.level) for item in both.outline][:3] == [
        ("Lease 2025", 0),
        ("Notice", 1),
        ("Lease 2024", 0),
    ]


def test_titles_are_told_apart_and_units_may_differ() -> None:
    three = Document.together([LEASE, NEXT, LETTER], sha256="c" * 64)
    assert [member.title for member in three.members] == ["Lease 2024", "Lease 2025", "Lease 2024 (2)"]
    assert (three.title, three.unit, three.sha256) == ("Lease 2024 + 2 more", "page", "c" * 64)
    assert Document.together([LEASE, NEXT]).sha256 != Document.together([NEXT, LEASE]).sha256


def test_no_sentence_runs_from_one_document_into_the_next() -> None:
    both = Document.together([LEASE, NEXT])
    assert "payable\n\nnotice" in both.text
    assert [both.text[start:].lstrip()[:6] for start in both.page_starts] == [
        "Notice",
        "The re",
        "notice",
        "The re",
        "The re",
    ]
    (passage,) = EvidenceIndex(both).find("When is the rent payable?", "The rent is 900 a month.").passages
    assert [part.page for part in passage.parts] == [1]


def test_a_choice_of_pages_begins_with_its_own_title() -> None:
    some = Document.together([LEASE, NEXT]).select(3, 5)
    assert some.opening == "Lease 2025"
    assert [stretch.title for stretch in some.stretches] == ["Lease 2025"]
    assert some.member_at(3) == some.members[1]


def test_the_tokens_of_the_first_documents_do_not_depend_on_the_others(tiny: Callable[..., str]) -> None:
    tokenizer = BookTokenizer(tiny("llama"))
    alone, both, all_of_them = (
        tokenizer.book(document, tokenizer.format_for(document.opening))
        for document in (LEASE, Document.together([LEASE, NEXT]), Document.together([LEASE, NEXT, LETTER]))
    )
    assert alone.borders == ()
    assert both.borders == (len(alone.ids),)
    assert all_of_them.borders == (len(alone.ids), len(both.ids))
    assert all_of_them.ids[: len(both.ids)] == both.ids
    assert both.ids[: len(alone.ids)] == alone.ids
    assert sum(both.sizes) + both.head == len(both.ids)
    assert (
        tokenizer.decode(both.ids[both.borders[0] :]) == "\n\n# Lease 2025\n\nnotice is one month.\n\nThe rent is 950."
    )
    assert both.pages_within(both.borders[0]) == 2


def test_a_summary_of_several_documents_goes_along_them() -> None:
    three = Document.together([LEASE, NEXT, LETTER])
    asked = "What are these documents about?"
    assert guided(asked, three, 6) == f"{asked}\n\n{ALONG['en']} Lease 2024; Lease 2025; Lease 2024 (2)"


# CPython 3.11 makes the ``__dict__`` of an object when it is first asked for. If the interpreter has no spare dict,
# that may collect garbage, and a finalizer may let another thread make the same ``__dict__``. The script forces this.
TWO_THREADS = """
import gc, threading, time
from engine.document import Document

class LetsOthersRun:
    def __init__(self):
        self.me = self

    def __del__(self):
        time.sleep(0.001)

def first_use(document, together):
    together.wait()
    LetsOthersRun()
    document.text

held = [{} for _ in range(500)]
for _ in range(300):
    held.append([{} for _ in range(90)])
    document, together = Document.from_pages("A", ["x", "y"]), threading.Barrier(2)
    threads = [threading.Thread(target=first_use, args=(document, together)) for _ in range(2)]
    gc.set_threshold(1)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.set_threshold(700)
    document.__dict__.get("text")
    ["abcdefgh" * 20 for _ in range(50)]
gc.collect()
"""


def test_two_threads_may_be_the_first_to_use_a_document() -> None:
    """The process ended with a segmentation fault."""
    ran = subprocess.run([sys.executable, "-c", TWO_THREADS], cwd=Path(__file__).parents[2], timeout=120, check=False)
    assert ran.returncode == 0
