"""Words of pages that are pictures: their order, their places, what is kept of them, and one real recognition."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from app.readers import document_reader, ocr, read_document, recognition
from app.readers.detect import format_of, parse
from app.readers.page_images import find_on_page
from app.readers.parsed import Limits, Refused
from app.readers.pdf import open_pdf
from app.readers.pdf_lines import recognised_lines
from app.readers.recognised import RecognisedLine, RecognisedPage, Word, letters_of, rectangles
from app.readers.recognition import LongRecognition, Recognition
from app.sealed import sealed_text
from engine.document import Document, Page

SHEETS = range(1, 10)
PITCH, HEIGHT, LETTER = 14.0, 10.0, 5.0  # points


def line(x: float, top: float, text: str, gap: float = LETTER) -> RecognisedLine:
    words = []
    for part in text.split():
        words.append(Word(part, x, x + LETTER * len(part)))
        x = words[-1].x1 + gap
    return RecognisedLine(top, top + HEIGHT, words)


def page(lines: list[RecognisedLine], turns: int = 0, slant: float = 0.0) -> RecognisedPage:
    return RecognisedPage(turns, slant, (600.0, 800.0), lines, 0.99)


def texts(lines: list[RecognisedLine]) -> list[str]:
    return [found.text for found in recognised_lines(page(lines))]


LEFT = [f"left line number {at} of the column" for at in range(8)]
RIGHT = [f"right line number {at} of the other" for at in range(8)]


def columns(shift: float = 0.0) -> list[RecognisedLine]:
    both = [line(50, 100 + PITCH * at, text) for at, text in enumerate(LEFT)]
    return both + [line(300, 100 + shift + PITCH * at, text) for at, text in enumerate(RIGHT)]


@pytest.mark.parametrize("shift", [0.0, 7.0])
def test_two_columns_are_read_one_after_the_other(shift: float) -> None:
    title = line(200, 60, "A title over both of the columns")
    assert texts([title, *columns(shift)]) == ["A title over both of the columns", *LEFT, *RIGHT]


def test_a_line_that_was_found_across_both_columns_is_parted() -> None:
    across = RecognisedLine(100, 110, line(50, 100, LEFT[0]).words + line(300, 100, RIGHT[0]).words)
    narrow = [RecognisedLine(each.top, each.bottom, each.words) for each in columns() if each.top > 100]
    assert texts([across, *narrow]) == [*LEFT, *RIGHT]


def test_rows_of_a_table_stay_rows() -> None:
    rows = [
        line(50, 100 + PITCH * at, name) for at, name in enumerate(["Rent", "Water", "Heating", "Waste", "Lift", "Sum"])
    ]
    rows += [line(300, 100 + PITCH * at, f"{at}00.00") for at in range(6)]
    assert [" ".join(text.replace("|", " ").split()) for text in texts(rows)] == [
        f"{name} {at}00.00" for at, name in enumerate(["Rent", "Water", "Heating", "Waste", "Lift", "Sum"])
    ]


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (0, [0.1, 0.1, 0.2, 0.1125]),
        (1, [0.8875, 0.1, 0.9, 0.2]),
        (2, [0.8, 0.8875, 0.9, 0.9]),
        (3, [0.1, 0.8, 0.1125, 0.9]),
    ],
)
def test_words_of_a_turned_page_are_marked_where_its_picture_has_them(turns: int, expected: list[float]) -> None:
    found = page([line(60, 80, "abcdefghijkl")], turns)
    assert rectangles(found, [box for _, box in letters_of(found)]) == [expected]


def test_words_of_a_leaning_page_are_marked_where_its_picture_has_them() -> None:
    leaning = page([], slant=0.035)
    x, y = leaning.straightened(*(100.0, 700.0))
    assert leaning.on_picture(x, y) == pytest.approx((100 / 600, 700 / 800))
    assert y != pytest.approx(700, abs=5)


def test_what_is_kept_comes_back_the_same() -> None:
    found = replace(page(columns(), 3, 0.02), illegible=2)
    assert RecognisedPage.from_json(json.loads(json.dumps(found.as_json()))) == found


class Models:
    """Finds lines at fixed places and reads a line whose dark end is on the left."""

    def __init__(self, quads: list[list[list[float]]]) -> None:
        self.quads, self.found, self.read = quads, 0, 0

    def __call__(self, picture: ocr.Picture, **_: bool) -> SimpleNamespace:
        self.found += 1
        return SimpleNamespace(boxes=self.quads)

    def crop_text_regions(self, picture: ocr.Picture, quads: ocr.Quads) -> list[ocr.Picture]:
        corners = [(quad.min(axis=0).astype(int), quad.max(axis=0).astype(int)) for quad in quads]
        return [picture[top:bottom, left:right] for (left, top), (right, bottom) in corners]

    def recognize_txt(self, crops: list[ocr.Picture]) -> SimpleNamespace:
        self.read += 1
        (crop,) = crops
        upright = crop[:, :5].mean() < crop[:, -5:].mean()
        info = SimpleNamespace(word_cols=[[0, 1, 2, 3]], line_txt_len=4)
        return SimpleNamespace(
            txts=["line" if upright else "euil"], scores=[0.99 if upright else 0.3], word_results=[info]
        )


@pytest.mark.parametrize(("turns", "reads"), [(0, 5), (2, 3 + 3 + 5)])
def test_lines_are_found_once_and_read_once_on_either_end(
    turns: int, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = np.full((200, 300, 3), 255, np.uint8)
    for at in range(5):
        picture[20 + 30 * at : 40 + 30 * at, 10:20] = 0
    quads = np.array([[[10, y], [90, y], [90, y + 20], [10, y + 20]] for y in range(20, 170, 30)], np.float32)
    shown = np.ascontiguousarray(np.rot90(picture, turns))
    models = Models((quads if turns == 0 else ocr._turned(quads, picture)).tolist())
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(ocr, "ocr_engine", lambda: ocr.OcrEngine(models, models, pool))
        found = ocr.recognise(shown, (300.0, 200.0), lambda: None)
    assert (found.turns, models.found, models.read) == (turns, 1, reads)
    assert [(line.words[0].text, line.top, line.words[0].x0) for line in found.lines] == [
        ("line", 20.0 + 30 * at, 10.0) for at in range(5)
    ]


class Scripts(Models):
    """Reads lines of 200 pixels in Latin script, Cyrillic, Greek and Arabic, and a page number."""

    READ = (
        *(("a line of Latin words", 0.99),) * 8,
        ("      .", 0.95),
        ("ενι ρτη ηρα ε να", 0.86),
        ("00 000", 0.3),
        ("1 Boats....", 0.84),  # of a table of contents: a dot leader has more dots than are read
    )

    def __init__(self) -> None:
        ends = [*(210 for _ in self.READ), 50]
        super().__init__(
            [[[10, y], [x, y], [x, y + 20], [10, y + 20]] for y, x in zip(count(0, 30), ends, strict=False)]
        )

    def recognize_txt(self, crops: list[ocr.Picture]) -> SimpleNamespace:
        (crop,) = crops
        text, certainty = dict(enumerate(self.READ)).get(int(crop[0, 0, 0]), ("-7-", 0.8))
        info = SimpleNamespace(word_cols=[list(range(len(text)))], line_txt_len=len(text))
        return SimpleNamespace(txts=[text], scores=[certainty], word_results=[info])


def test_lines_in_an_unknown_script_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were left out, or read as other letters, and nothing said so."""
    models = Scripts()
    picture = np.repeat(np.arange(600) // 30, 300 * 3).reshape(600, 300, 3).astype(np.uint8)
    with ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(ocr, "ocr_engine", lambda: ocr.OcrEngine(models, models, pool))
        found = ocr.recognise(picture, (300.0, 600.0), lambda: None)
    assert (len(found.lines), found.illegible) == (12, 3)


class Reader(Models):
    """Is certain of a narrowed line if it is dark, and reads a number in a grey one."""

    def __init__(self) -> None:
        super().__init__([])
        self.widths: list[int] = []

    def recognize_txt(self, crops: list[ocr.Picture]) -> SimpleNamespace:
        (crop,) = crops
        self.widths.append(crop.shape[1])
        narrow, shade = crop.shape[1] == 360, int(crop[0, 0, 0])
        read = {PALE: ("no", 0.9), GREY: ("99", 0.99)}.get(shade, ("ok", 0.99)) if narrow else ("ok", 0.99)
        info = SimpleNamespace(word_cols=[[0, 1]], line_txt_len=2)
        return SimpleNamespace(txts=[read[0]], scores=[read[1]], word_results=[info])


DARK, GREY, PALE = 10, 100, 200


@pytest.mark.parametrize(
    ("shades", "narrowed", "full"),
    [
        ([DARK] * 30, 30, 0),
        ([DARK] * 20 + [PALE, PALE, GREY] + [DARK] * 7, 30, 3),
        ([PALE] * 12 + [DARK] * 18, 24, 12 + 6),
        ([GREY] * 12 + [DARK] * 18, 24, 12 + 6),
    ],
)
def test_a_long_line_is_read_from_a_narrow_picture_unless_that_is_doubtful(
    shades: list[int], narrowed: int, full: int
) -> None:
    lines = [np.full((48, 480, 3), shade, np.uint8) for shade in shades]
    short = np.full((48, 400, 3), PALE, np.uint8)
    reader = Reader()
    with ThreadPoolExecutor(1) as pool:
        known = ocr._read_lines(ocr.OcrEngine(reader, reader, pool), [*lines, short], range(31), lambda: None)
    assert [known[at][0] for at in range(31)] == ["ok"] * 31
    assert [reader.widths.count(width) for width in (360, 480, 400)] == [narrowed, full, 1]


# With the child ----------------------------------------------------------------------------------------------------


def scan(path: Path, words: str, turn: int = 0) -> Path:
    """A page that is a picture."""
    picture = Image.new("RGB", (1000, 420), "white")
    ImageDraw.Draw(picture).multiline_text((60, 60), words, "black", ImageFont.load_default(46), spacing=24)
    picture.rotate(turn, expand=True).save(path, "PDF", resolution=150)
    return path


def test_a_real_scan_that_stands_on_its_head_is_read_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = scan(
        tmp_path / "scan.pdf", "The lighthouse at Orre was\nlit for the first time in\nSeptember 1873.", turn=180
    )
    told: list[tuple[int, int]] = []
    how = Recognition(lambda sha256: tmp_path, progress=lambda done, total, seconds: told.append((done, total)))
    document = read_document(path, recognition=how)
    text = "The lighthouse at Orre was lit for the first time in September 1873."
    assert " ".join(document.pages[0].text.split()) == text
    assert document.pages[0].picture == "recognised"
    assert document.warnings == ("Its page was recognised from a picture and may have slips.",)
    assert (told[0], told[-1]) == ((0, 1), (1, 1))

    (x0, y0, x1, y1) = find_on_page(path, 1, "September 1873")[0]  # its last line is the uppermost of the picture
    assert (x0 > 0.5, x1 > 0.9, 0.3 < y0 < y1 < 0.6) == (True, True, True)

    monkeypatch.setattr(recognition, "run_in_child", pytest.fail)
    assert read_document(path, recognition=how) == document


@pytest.mark.parametrize(("kind", "count"), [("PNG", 1), ("JPEG", 1), ("TIFF", 3)])
def test_a_scan_that_came_as_a_picture_has_pages_of_its_size(tmp_path: Path, kind: str, count: int) -> None:
    path = tmp_path / f"scan.{kind.lower()}"
    sheets = [Image.new("RGB", (826, 1169), "white") for _ in range(count)]
    more = {"save_all": True, "append_images": sheets[1:]} if count > 1 else {}
    sheets[0].save(path, kind, dpi=(100, 100), **more)
    assert format_of(path, Limits()).kind == "pdf"
    document = open_pdf(path, None)
    assert document is not None
    sizes = [tuple(round(side / 72, 2) for side in document[at].get_size()) for at in range(len(document))]
    assert sizes == [(8.26, 11.69)] * count


def drawn(path: Path, number: int | None = None) -> tuple[list[tuple[float, float]], list[float]]:
    """Sizes in inches and mean shades of the pages of a picture."""
    document = open_pdf(path, None, only=number)
    assert document is not None
    pages = [document[at] for at in range(len(document))]
    sizes = [(round(page.get_size()[0] / 72, 1), round(page.get_size()[1] / 72, 1)) for page in pages]
    return sizes, [float(page.render(scale=0.1, grayscale=True).to_numpy().mean()) for page in pages]


def test_ink_stays_dark_and_paper_bright(tmp_path: Path) -> None:
    paper = Image.new("L", (80, 100), 255)
    ImageDraw.Draw(paper).rectangle((0, 0, 40, 100), fill=0)
    ink = Image.merge("LA", (Image.new("L", paper.size, 0), paper.point(lambda shade: 255 - shade)))
    deep = paper.convert("I").point(lambda shade: shade * 16).convert("I;16")  # of a scanner with 12 bits
    for name, picture in {
        "clear.png": ink,
        "clear.webp": ink.convert("RGBA"),
        "deep.png": deep,
        "deep.tif": deep,
    }.items():
        picture.save(tmp_path / name)
        assert drawn(tmp_path / name)[1] == [pytest.approx(127, abs=15)], name


def test_a_photograph_is_one_page_and_stands_as_the_camera_says(tmp_path: Path) -> None:
    photo, small = Image.new("RGB", (200, 100), "white"), Image.new("RGB", (20, 10), "white")
    turned = Image.Exif()
    turned[0x0112] = 6
    photo.save(tmp_path / "photo.jpg", "MPO", save_all=True, append_images=[small], exif=turned, dpi=(100, 100))
    assert drawn(tmp_path / "photo.jpg")[0] == [(1.0, 2.0)]


def test_a_fax_is_not_squeezed_and_of_its_pages_only_the_wanted_one_is_drawn(tmp_path: Path) -> None:
    sheets = [Image.new("1", (1700, 1100), 0)] * 3
    sheets[0].save(tmp_path / "fax.tif", save_all=True, append_images=sheets[1:], dpi=(200, 100))
    assert drawn(tmp_path / "fax.tif") == ([(8.5, 11.0)] * 3, [0.0] * 3)
    assert drawn(tmp_path / "fax.tif", 2)[1] == [255.0, 0.0, 255.0]


def test_no_pdf_is_looked_for_in_the_bytes_of_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("L", (80, 100), 255).save(tmp_path / "sheet.png")
    looked: list[Path] = []
    monkeypatch.setattr("pypdf.PdfReader", lambda path, **_: looked.append(path))
    found = parse(tmp_path / "sheet.png", {"unread": True}, Limits(), lambda done, total, page: None)
    assert not looked
    assert [section.picture for section in found.sections] == ["unread"]


def test_a_damaged_picture_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "scan.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(200))
    with pytest.raises(Refused, match="damaged"):
        open_pdf(path, None)


def test_a_long_scan_that_was_stopped_is_opened_with_what_was_recognised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[list[int]] = []

    def recognised(request: dict[str, list[int]]) -> Iterator[dict[str, object]]:
        runs.append(list(request["numbers"]))
        for number in runs[-1]:
            yield {"type": "recognised", "number": number, "page": {}, "seconds": 100.0}

    def read(request: dict[str, Any], *_: object) -> Document:
        pages = [Page(at, str(at), "", "recognised" if str(at) in request["recognised"] else "unread") for at in SHEETS]
        return Document("Scan", "", tuple(pages), "pdf", "0" * 64)

    monkeypatch.setattr(recognition, "run_in_child", lambda request, *_: recognised(request))
    monkeypatch.setattr(document_reader, "read_bounded", read)
    (path := tmp_path / "scan.pdf").write_bytes(b"%PDF")
    how = Recognition(lambda sha256: tmp_path)
    with pytest.raises(LongRecognition):
        read_document(path, recognition=how)
    agreed = Recognition(lambda sha256: tmp_path, agreed=True)

    def stop_at_two(done: int, total: int, seconds: float | None) -> None:
        if done == 2:
            agreed.stop.set()

    agreed.progress = stop_at_two
    read_document(path, recognition=agreed)
    opened = read_document(path, recognition=how)
    assert [page.number for page in opened.pages if page.picture == "recognised"] == [1, 2, 3, 4, 5]
    assert len(runs) == 2, "no page is recognised anew without being asked for"


def heard(pages: int, seconds: float) -> Iterator[dict[str, object]]:
    for number in range(1, pages + 1):
        yield {"type": "recognised", "number": number, "page": page(columns()).as_json(), "seconds": seconds}


def test_a_page_on_which_the_recogniser_gives_up_costs_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[list[int]] = []

    def gives_up(broken: set[int], request: dict[str, list[int]]) -> Iterator[dict[str, object]]:
        runs.append(list(request["numbers"]))
        for number in runs[-1]:
            yield {"type": "step", "done": 0, "total": 9, "page": number}
            if number in broken:
                yield {"type": "refused", "kind": "document", "cause": "could not be read.", "remedy": ""}
                return
            yield {"type": "recognised", "number": number, "page": {}, "seconds": 1.0}

    monkeypatch.setattr(recognition, "run_in_child", lambda request, *_: gives_up({3, 5}, request))
    records = {}  # type: ignore[var-annotated]
    recognition.recognise(tmp_path / "book.pdf", "a", None, range(1, 8), Recognition(), records)
    assert sorted(records) == [1, 2, 4, 6, 7]
    runs.clear()
    monkeypatch.setattr(recognition, "run_in_child", lambda request, *_: gives_up(set(range(100)), request))
    recognition.recognise(tmp_path / "book.pdf", "a", None, range(1, 100), Recognition(), {})
    assert len(runs) == 8, "a recogniser that is broken is not tried on every page"


def test_a_long_scan_is_offered_with_its_minutes_and_nothing_done_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recognition, "run_in_child", lambda *_: heard(2000, 3.0))
    how, records = Recognition(lambda sha256: tmp_path), {}  # type: ignore[var-annotated]
    with pytest.raises(LongRecognition, match=r"2,000 pages that are pictures.* about 1\.7 hours"):
        recognition.recognise(tmp_path / "book.pdf", "a", None, range(1, 2001), how, records)
    assert sorted(recognition.load(tmp_path)) == [1, 2, 3]

    how.agreed = True
    recognition.recognise(tmp_path / "book.pdf", "a", None, range(1, 4), how, records)
    assert sorted(records) == [1, 2, 3]


@pytest.mark.parametrize(("pages", "stop_at"), [(9, 2), (2000, recognition.PROBED_PAGES)])
def test_a_stop_keeps_the_pages_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pages: int, stop_at: int
) -> None:
    monkeypatch.setattr(recognition, "run_in_child", lambda *_: heard(pages, 1.0))
    how = Recognition(lambda sha256: tmp_path)
    how.progress = lambda done, total, seconds: how.stop.set() if done == stop_at else None
    records: recognition.Records = {}
    recognition.recognise(tmp_path / "book.pdf", "a", None, range(1, pages + 1), how, records)
    assert sorted(records) == sorted(recognition.load(tmp_path)) == list(range(1, stop_at + 1))


class MixedBook:
    """A book of which the first 400 of 900 pages are pictures. A page takes a second, and the recogniser starts in
    twenty.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.path, self.clock = folder, folder / "book.pdf", 0.0
        self.asked: list[int] = []
        self.path.write_bytes(b"%PDF")
        monkeypatch.setattr(recognition, "time", SimpleNamespace(monotonic=lambda: self.clock))
        monkeypatch.setattr(recognition, "run_in_child", lambda request, *_: self.recognised(request["numbers"]))
        monkeypatch.setattr(document_reader, "read_bounded", lambda request, *_: self.read(request))
        monkeypatch.setattr(document_reader, "missing", lambda: "")

    def recognised(self, numbers: list[int]) -> Iterator[dict[str, object]]:
        self.clock += 20
        for number in list(numbers):
            yield {"type": "step", "done": 0, "total": 400, "page": number}
            self.clock += 1
            self.asked.append(number)
            yield {"type": "recognised", "number": number, "page": {"lines": []}, "seconds": 1.0}

    def read(self, request: dict[str, Any]) -> Document:
        seen = [str(at) in request["recognised"] for at in range(1, 401)]
        scanned = [
            Page(at, str(at), "words" if known else "", "recognised" if known else "unread")
            for at, known in enumerate(seen, 1)
        ]
        return Document("Book", "", (*scanned, *(Page(at, str(at), "text") for at in range(401, 901))), "pdf", "0" * 64)

    def opened(self, **how: Any) -> Document:
        return read_document(self.path, recognition=Recognition(lambda sha256: self.folder, **how))


def test_pages_that_were_never_agreed_to_are_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each opening recognised three more, so that the text of the book changed and was read anew."""
    book = MixedBook(monkeypatch, tmp_path)
    first = book.opened()
    assert [page.number for page in first.pages if page.picture == "recognised"] == book.asked == [1, 2, 3]
    assert (book.opened(), book.opened()) == (first, first)
    assert book.asked == [1, 2, 3]
    book.opened(agreed=True)
    assert book.asked == list(range(1, 401)), "who agrees has the other pages recognised"


def test_the_start_of_the_recogniser_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = MixedBook(monkeypatch, tmp_path)
    told: list[tuple[int, float]] = []
    for _ in range(2):
        (warning,) = book.opened(estimated=lambda *estimate: told.append(estimate)).warnings
        assert "400 pages that are pictures. To recognise their words takes about 7 minutes" in warning
    assert told == [(397, 20 + 397 * 1.0)] * 2


@pytest.mark.parametrize(
    "line",
    [
        "",  # files of earlier versions have no such line
        '{"made_by":"MADE BY","start":"soon","seconds_a_page":1}',
        '{"made_by":"MADE BY","start":NaN,"seconds_a_page":1}',
        '{"made_by":"MADE BY","start":1,"seconds_a_page":-1}',
        '{"made_by":"MADE BY","start":1,"seconds_a_page":1' + "0" * 400 + "}",
        '{"made_by":"MADE BY","start":1}',
        '{"made_by":"another recogniser","start":1,"seconds_a_page":1}',
        '{"made_by":"MADE BY","start":1,"seco',
    ],
)
def test_without_a_measured_time_three_more_pages_are_tried_once(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = MixedBook(monkeypatch, tmp_path)
    book.opened()
    pages = [one for one in (tmp_path / recognition.FILE).read_text().splitlines() if '"page":' in one]
    told = line.replace("MADE BY", recognition._MADE_BY)
    (tmp_path / recognition.FILE).write_text("\n".join([*pages, told, ""]))
    assert sorted(recognition.load(tmp_path)) == [1, 2, 3]
    assert book.opened() == book.opened()
    assert book.asked == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("damage", ["cut", "flipped", "not UTF-8", "killed", "of version 0.1"])
def test_damage_costs_the_page_that_it_hits(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "run_in_child", lambda *_: heard(4, 1.0))
    kept, wanted = Recognition(lambda sha256: tmp_path), {1, 2, 3, 4}
    recognition.recognise(tmp_path / "a.pdf", "a", None, range(1, 5), kept, {})
    file = tmp_path / recognition.FILE
    lines = file.read_bytes().splitlines(keepends=True)
    (second,) = [number for number, line in enumerate(lines) if b'"number":2,' in line]
    pages = recognition.load(tmp_path)
    if damage == "cut":
        lines[second] = lines[second][:90] + b"\n"
    elif damage == "flipped":
        lines[second] = lines[second].replace(b'"page":', b'"page" :')
    elif damage == "not UTF-8":
        lines[second] = lines[second].replace(b'"page":', b'"\xff\xfe":')
    elif damage == "killed":
        lines[-1] = lines[-1][:-10]
    else:
        lines = [sealed_text(line) for line in lines]
    file.write_bytes(b"".join(lines))
    lost = set() if damage == "of version 0.1" else {4 if damage == "killed" else 2}
    assert recognition.load(tmp_path) == {number: page for number, page in pages.items() if number not in lost}
    recognition._keep(kept, "a", {"number": 5, "agreed": False, "page": pages[1]}, None)
    assert set(recognition.load(tmp_path)) == (wanted - lost) | {5}


def test_a_page_is_loaded_without_parsing_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "run_in_child", lambda *_: heard(12, 1.0))
    recognition.recognise(tmp_path / "a.pdf", "a", None, range(1, 13), Recognition(lambda sha256: tmp_path), {})
    pages, parse = recognition.load(tmp_path), Mock(wraps=json.loads)
    monkeypatch.setattr(json, "loads", parse)
    assert recognition.load_page(tmp_path, 1) == pages[1]
    assert recognition.load_page(tmp_path, 13) is None
    assert parse.call_count == 1


def test_a_page_that_breaks_the_recogniser_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def child(request: dict[str, list[int]], *_: object) -> object:
        asked.append(list(request["numbers"]))
        for message in heard(4, 1.0):
            if message["number"] == 3 and 3 in request["numbers"]:
                raise recognition.ChildFailed("memory", 3)
            if message["number"] in request["numbers"]:
                yield message

    monkeypatch.setattr(recognition, "run_in_child", child)
    records: recognition.Records = {}
    recognition.recognise(tmp_path / "book.pdf", "a", None, range(1, 5), Recognition(), records)
    assert (sorted(records), asked) == ([1, 2, 4], [[1, 2, 3, 4], [4]])
