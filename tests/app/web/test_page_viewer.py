"""The panels' routes behind the guard: cards, pages with marks, pictures, the race, and what they refuse."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from app.core import chat_run, settings
from app.core.books import Books
from app.core.chats import Chats
from app.core.question import Ask
from app.core.state import AppState
from app.readers import read_document, recognition
from app.readers.page_images import MOST_BYTES, WIDTHS, PageImages
from app.web.page_viewer import _line_of, _outline, _tables
from tests.app.scripted import ScriptedEngine, wait_for
from tests.app.web.entering import enter

PORT = 7864
ANSWER = (
    "It says “Maren Holt kept the north light, as her mother had kept it before her”. And “words that stand nowhere”."
)
HITS = ("GET", "/citations/0/0"), ("GET", "/pages/39"), ("GET", "/race"), ("POST", "/race"), ("GET", "/provenance")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TestClient, AppState]]:
    """The app with the sample book read and one question answered."""
    data = tmp_path_factory.mktemp("data")
    engine = ScriptedEngine(answer=ANSWER, word_seconds=0.001, limit=100_000)
    state = AppState(engine, Books(data / "books"), Chats(), read_document)
    sample = settings.SAMPLE_BOOKS / "the-lamplighters-of-orre.pdf"
    state.open(state.books.copy_in(sample))
    wait_for(lambda: state.current.stage.value == "ready", 60)
    list(chat_run.ask(state, Ask("Where?")))
    with enter(state, data, PORT) as client:
        yield client, state
    state.close()


@pytest.fixture
def client(served: tuple[TestClient, AppState]) -> TestClient:
    return served[0]


def test_an_answer_has_its_citations(served: tuple[TestClient, AppState]) -> None:
    from app.web import messages

    client, state = served
    assert state.chat is not None
    shown = messages.messages(state.chat.exchanges)[1]["content"]
    assert 'class="cite quoted" value="0.0">verified, p. 39</button>' in shown
    assert 'class="cite missing" value="0.1">not found</button>' in shown
    card = client.get("/citations/0/0").json()
    assert card["page"] == 39
    assert card["extract"]["hit"] == "Maren Holt kept the north light, as her mother had kept it before her"
    letters = sum(map(str.isalpha, ANSWER))
    answers = client.get("/provenance").json()["answers"]
    assert sum(int(count) for count in re.findall(r"\d+", answers[0])) == letters


def test_a_page_has_its_text_its_marks_and_its_picture(client: TestClient) -> None:
    page = client.get("/pages/39?turn=0&chip=0").json()
    ((start, end),) = page["marks"]
    assert page["text"][start:end].replace("\n", " ").startswith("Maren Holt kept the north light")
    assert (page["number"], page["first"], page["last"], page["name"]) == (39, 1, 76, "page 39")
    rectangles = client.get("/pages/39/marks?turn=0&chip=0").json()["marks"]
    assert len(rectangles) == 2, "the passage runs over two printed lines"
    assert all(0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1 for x0, y0, x1, y1 in rectangles)
    picture = client.get(f"{page['picture']}/700.png")
    assert picture.headers["content-type"] == "image/png"
    assert struct.unpack(">I", picture.content[16:20])[0] == pytest.approx(900, abs=1)  # the next width that is drawn
    assert "immutable" in picture.headers["cache-control"]


@pytest.mark.parametrize(
    ("lines", "more"),
    [(0, ""), (1, " 1 line could not be read reliably."), (3, " 3 lines could not be read reliably.")],
)
def test_a_recognised_page_says_how_many_lines_were_illegible(
    lines: int, more: str, served: tuple[TestClient, AppState], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, state = served
    document = state.current.document
    assert document is not None
    pages = list(document.pages)
    pages[38] = replace(pages[38], picture="recognised")
    document = replace(document, pages=tuple(pages))
    monkeypatch.setattr(state, "current", replace(state.current, whole=document))
    monkeypatch.setattr(recognition, "load_page", lambda *_: {"illegible": lines})
    assert client.get("/pages/39").json()["origin"] == f"Recognised from a picture; may have slips.{more}"
    assert client.get("/pages/40").json()["origin"] == ""


def test_without_a_citation_nothing_is_marked(client: TestClient) -> None:
    for query in ("", "?turn=0", "?turn=x&chip=0", "?turn=0&chip=99"):
        assert client.get(f"/pages/39{query}").json()["marks"] == []
    assert client.get("/pages/40?turn=0&chip=0").json()["marks"] == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/pages/0", 404),
        ("/pages/77", 404),
        ("/pages/-1", 404),
        ("/pages/x", 404),
        (f"/pages/{'0' * 64}/1/900.png", 404),
        ("/pages/..%2f..%2fsecret/1/900.png", 404),
        ("/citations/9/0", 404),
        ("/citations/0/9", 404),
        ("/pages/1/900.png", 404),
    ],
)
def test_what_is_not_there_is_refused_in_words(client: TestClient, path: str, status: int) -> None:
    assert client.get(path).status_code == status


@pytest.mark.parametrize(("method", "path"), HITS)
def test_strangers_get_nothing(client: TestClient, method: str, path: str) -> None:
    without = TestClient(client.app, base_url=f"http://127.0.0.1:{PORT}", client=("127.0.0.1", 1))
    assert without.request(method, path).status_code == 401
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert client.request(method, path, headers=headers).status_code in (400, 403)


def test_a_race_through_the_page(served: tuple[TestClient, AppState]) -> None:
    client, state = served
    assert client.get("/race").status_code == 404
    assert client.post("/race", content=b"{}").status_code == 200  # the last question of the chat
    wait_for(lambda: not state.current.asking)
    recording = client.get("/race").json()
    # The answer is short, so more is raced; this engine says the same of everything, which is counted once.
    assert recording["question"] == "Where?"
    assert "3 answers repeated an earlier one" in recording["detail"]
    assert recording["identical"] is True
    tokens = 4 * len(ANSWER.split())
    assert recording["verdict"].startswith(f"identical {tokens}/{tokens} tokens, ")
    for run in recording["runs"]:
        said = ["".join(text for _, text in part["steps"]) for part in run["questions"]]
        assert said == [ANSWER]
    assert client.post("/race", content=b"not json").status_code == 400
    assert client.post("/race", content=b"x" * 70_000).status_code == 413


def test_pictures_are_few_bounded_and_kept() -> None:
    drawn: list[tuple[int, int]] = []

    def draw(path: Path, number: int, password: str | None, width: int) -> bytes:
        drawn.append((number, width))
        return bytes(400)

    pictures = PageImages(draw, most_bytes=1000)
    for width in (1, 599, 600):
        assert len(pictures.page("a", Path("a"), 1, width)) == 400
    assert drawn == [(1, 600)]
    pictures.page("a", Path("a"), 1, 10**9)
    assert drawn[-1] == (1, WIDTHS[-1])
    pictures.page("a", Path("a"), 2, 600)
    pictures.page("a", Path("a"), 1, 600)  # was pushed out by the two newer ones
    assert len(drawn) == 4
    assert MOST_BYTES <= 64 << 20


def test_words_are_found_and_marked_each_at_its_own_place(client: TestClient) -> None:
    found = client.post("/find", json={"words": "maren HOLT"}).json()
    assert re.fullmatch(r"\d+ places", found["said"])
    first = next(hit for hit in found["hits"] if hit["page"] == 39)
    assert first["name"] == "p. 39"
    assert first["line"][1] == "Maren Holt"
    page = client.get("/pages/39?find=maren+HOLT&now=5").json()
    assert [start for start, _ in page["marks"]] == [hit["start"] for hit in found["hits"] if hit["page"] == 39]
    start, end = client.get(f"/pages/39?find=maren+HOLT&now={first['start']}").json()["line"]
    assert start <= first["start"]
    assert page["text"][start:end].endswith(".")
    assert (page["line"] or [0])[0] <= 5
    boxes = client.get("/pages/2/marks?find=the").json()
    assert len(boxes["marks"]) == len(boxes["of"]) > 5
    assert len(set(map(tuple, boxes["marks"]))) == len(boxes["marks"]), "the same words stand at different places"
    assert client.post("/find", json={"words": "xyzzy"}).json() == {"hits": [], "said": "Not found"}
    assert client.get("/pages/40?find=xyzzy").json()["marks"] == []


def test_contents_are_told_with_what_can_be_asked(served: tuple[TestClient, AppState]) -> None:
    client, _ = served
    told = client.get("/contents").json()
    assert told["said"] == ""
    entry = told["entries"][1]
    assert entry["first"] <= entry["last"] < told["entries"][2]["first"] + 1
    assert entry["ask"].startswith(f"Summarize the chapter “{entry['title']}” (page")


TABLE = "Fees\n\nKind | Price\nAdult | 12\nReduced rates\nChild | 4\n\nPaid at the door."


@pytest.mark.parametrize(
    ("text", "word", "line"),
    [
        ("It rained. The gun\nbread was dry. Nobody ate.", "bread", "The gun\nbread was dry."),
        (TABLE, "Adult", "Adult | 12"),
        ("word " * 90 + "\nthe gun bread\n" + "more " * 90, "bread", "the gun bread"),
    ],
)
def test_a_hit_has_the_line_that_a_note_of_it_keeps(text: str, word: str, line: str) -> None:
    """A note of a hit had the searched word alone."""
    found = _line_of(text, {"find": word, "now": str(text.index(word))})
    assert found is not None
    assert text[slice(*found)] == line
    assert _line_of(text, {"find": word}) is None
    assert _line_of(text, {"find": word, "now": str(len(text))}) is None


def test_a_passage_in_a_row_marks_the_whole_table() -> None:
    start = TABLE.index("Child | 4")
    (table,) = _tables(TABLE, [(start, start + 5)])
    assert [TABLE[begin:end] for begin, end in table.rows] == [
        "Kind | Price",
        "Adult | 12",
        "Reduced rates",
        "Child | 4",
    ]
    assert table.marked == {3}
    assert _tables(TABLE, [(0, 4)]) == []
    assert _tables("Only | one line", [(0, 4)]) == [], "a bar makes no table"
    assert _tables("A | 1\n\nB | 2", [(0, 1)]) == [], "an empty line parts them"
    places = [[(0.1, 0.1, 0.3, 0.12)], [], [(0.1, 0.2, 0.2, 0.22)], [(0.15, 0.3, 0.5, 0.32)]]
    assert _outline(table, places) == {"box": (0.1, 0.1, 0.5, 0.32), "rows": [(0.1, 0.3, 0.5, 0.32)]}
    assert _outline(table, [[], [], [], places[3]]) is None


def test_the_words_of_a_picture_can_be_selected(client: TestClient) -> None:
    words = client.get("/pages/39/words").json()["words"]
    assert "Maren Holt kept the north light, as her mother" in "".join(text for text, *_ in words)
    assert all(0 <= x0 <= x1 <= 1 and 0 <= y0 <= y1 <= 1 for _, x0, y0, x1, y1 in words)
    assert client.get("/pages/999/words").status_code == 404
