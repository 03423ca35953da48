"""Several documents on the page: their colours and pages, citations that open the right one, what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from starlette.requests import Request

from app.core.format import page_of, place_named
from app.core.open_book import Stage
from app.core.state import AppState
from app.language.titles import short_title
from app.trust.citations import placed
from app.trust.quoted import PageSpan
from app.web.documents_panel import DocumentsAsked, DocumentsPanel, documents_view
from app.web.live import map_view
from app.web.page_viewer import GONE, PageViewer
from engine.document import Document
from engine.errors import OptionError
from tests import loops
from tests.app.scripted import ScriptedEngine, wait_for

PAGES = {
    "a": ["The lamp is lit.", "The oil is dear."],
    "b": ["The boat is late.", "Nobody sings.", "The oil is cheap."],
}


@pytest.fixture
def state(together: Callable[..., AppState]) -> AppState:
    return together(ScriptedEngine(reading_seconds=0.01), PAGES)


def request(query: str = "", **path: object) -> Request:
    return Request({"type": "http", "query_string": query.encode(), "path_params": path, "headers": []})


def told(answer: Any) -> Any:
    return json.loads(answer.body)


def cited(state: AppState, viewer: PageViewer, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that cites the last page of the second document, by that document's own number."""
    whole = state.current.whole
    assert whole is not None
    chip = {"kind": "says", "at": 3, "from": 0, "pages": [{"number": 3, "label": "3"}], "marks": [[3, 4, 7]]}
    chip |= {"of": whole.members[1].sha256, "document": "Log b", "unit": "page", "extract": {"hit": "oil"}}
    monkeypatch.setattr(viewer, "_notes", lambda turn: {"chips": [chip]})


def test_each_document_has_its_colour_and_its_pages(state: AppState) -> None:
    (first, second) = DocumentsPanel(state).view()["documents"]
    assert (first["title"], first["first"], first["pages"]) == ("Log a", 1, 2)
    assert (second["title"], second["first"], second["line"], second["file"]) == ("Log b", 3, "3 pages", "b.txt")
    assert map_view(state.current)["labels"][1:3] == ["Log a, p. 2", "Log b, p. 1"]


def test_a_colour_stays_with_its_document() -> None:
    documents = [
        replace(Document.from_text(name, name), sha256=f"{digits:06x}{'0' * 58}")
        for name, digits in (("a", 7), ("b", 7), ("c", 3), ("d", 0))
    ]
    one, other = (
        {shown["title"]: shown["colour"] for shown in documents_view(Document.together(order))}
        for order in (documents, [documents[at] for at in (3, 0, 1, 2)])
    )
    assert one == other == {"a": 1, "b": 2, "c": 3, "d": 0}
    many = documents_view(Document.together([documents[0]] * 14))
    assert all(here["colour"] != after["colour"] for here, after in pairwise(many))


def test_two_versions_of_one_contract_differ_in_words() -> None:
    """Their titles were cut before the word in which they differ, so that only the colour of a dot told them apart."""
    titles = [f"Frame contract on flour and bran, {part}" for part in ("draft of May", "draft of June", "signed")]
    whole = Document.together([Document.from_text(title, "The price is 40 euros.") for title in (*titles, "Lease")])
    called = ["Frame cont…May", "Frame cont…June", "Frame cont…signed", "Lease"]
    assert [one["called"] for one in documents_view(whole)] == called
    assert [page_of(whole, page) for page in whole.pages] == [f"{name}, section 1" for name in called]
    chips = [placed(whole, (PageSpan(at, 0, 9),)) for at in range(4)]
    assert [place_named(chip, "page") for chip in chips] == [f"{name}, section 1" for name in called]
    for label, place in ((titles[0], "May"), (f"{titles[0][:9]}…", "May"), ("9", "May, section 9")):
        chip = {"document": titles[0], "called": "May", "pages": [{"label": label}]}
        assert place_named(chip, "section") == place
    assert short_title(titles[0], ["Frame"]) == short_title(titles[0]) == "Frame contract on flour and…"
    spaced = [title.replace(" on ", "  on\n") for title in titles]
    assert [short_title(title, spaced) for title in spaced] == called[:3], "as titles of files may be"
    words = [f"MietvertragWohnungHafenstrasse{year}Entwurf" for year in (2023, 2024)]
    assert [short_title(word, words)[10:] for word in words] == ["…trasse2023Entwurf", "…trasse2024Entwurf"]


def test_a_citation_opens_the_page_of_its_own_document(state: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    viewer = PageViewer(state)
    cited(state, viewer, monkeypatch)
    card = told(viewer.card(request(turn=0, chip=0)))
    assert card["page"] == 5
    page = told(viewer.page(request("turn=0&chip=0", number=5)))
    assert (page["document"], page["name"], page["own"], page["own_last"]) == ("Log b", "page 3", 3, 3)
    assert (page["first"], page["last"], page["marks"]) == (1, 5, [[4, 7]])
    assert page["picture"] == f"/pages/{card['of']}/3"
    assert told(viewer.page(request("turn=0&chip=0", number=3)))["marks"] == []


def test_an_old_citation_finds_its_document_wherever_it_stands(
    state: AppState, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer = PageViewer(state)
    cited(state, viewer, monkeypatch)
    assert state.current.whole is not None
    a, b = (member.sha256 for member in state.current.whole.members)
    for order, number, said in (([b, a], 3, ""), ([b], 3, ""), ([a], None, GONE)):
        state.arrange(order)
        wait_for(lambda: state.current.stage in (Stage.READY, Stage.UNREAD))
        card = told(viewer.card(request(turn=0, chip=0)))
        assert card["page"] == number
        assert card["said"].endswith(said)


def test_what_is_found_says_in_which_document(state: AppState, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(self: Request) -> bytes:
        return b'{"words": "oil"}'

    monkeypatch.setattr(Request, "body", body)
    hits = told(loops.run(PageViewer(state).find(request())))["hits"]
    assert [(hit["name"], hit["page"]) for hit in hits] == [("Log a, p. 2", 2), ("Log b, p. 3", 5)]


@pytest.mark.parametrize(("value", "agreed"), [([], ()), (["a"], ("a",)), (False, ())])
def test_recognition_is_agreed_to_for_each_document(value: object, agreed: tuple[str, ...]) -> None:
    asked = DocumentsAsked.model_validate({"ids": ["a"], "recognise": value})
    assert asked.recognise == agreed


@pytest.mark.parametrize("ids", [None, [], "x", [7], ["0" * 64] * 101])
def test_a_list_that_is_none_is_refused(ids: object) -> None:
    with pytest.raises(OptionError):
        DocumentsAsked.model_validate({} if ids is None else {"ids": ids})
