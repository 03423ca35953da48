"""Words of charts and other pictures beside the text: their order and place in the text, what is kept, bad pictures."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pypdfium2 as pdfium
import pytest
from PIL import Image, ImageDraw, ImageFont

from app.readers import detect, ocr, picture_pixels, pictures, read_document, recognition
from app.readers.inner_pictures import PicturePlace, pictures_on, place_of, without_repeated
from app.readers.page_images import find_on_page
from app.readers.parsed import Limits, Parsed, Section
from app.readers.pdf import parse
from app.readers.pdf_lines import page_lines
from app.readers.picture_marks import mark, resolve
from app.readers.picture_words import with_words, words_of
from app.readers.recognised import RecognisedLine, RecognisedPage, Word, picture_at
from app.readers.recognition import Recognition
from engine.errors import DocumentError
from tests.app.readers import samples
from tests.app.readers.conftest import Files, assembled, stream

HIGH, LETTER = 12.0, 6.0  # height of a line and width of a letter in the pictures below
CAPTION = "Figure 2: Passengers of the ferry."
BEFORE, AFTER = "The harbour grew in these years.", "After the winter the ferries were repaired."


def at(x: float, y: float, text: str) -> RecognisedLine:
    words = []
    for part in text.split():
        words.append(Word(part, x, x + LETTER * len(part)))
        x = words[-1].x1 + LETTER
    return RecognisedLine(y, y + HIGH, words)


def upwards(x: float, bottom: float, text: str) -> RecognisedLine:
    return RecognisedLine(bottom - LETTER * len(text), bottom, [Word(text, x, x + HIGH)])


def record(*lines: RecognisedLine) -> dict[str, Any]:
    return RecognisedPage(0, 0.0, (600.0, 400.0), list(lines), 0.99).as_json()


MARKS = [at(40, 60 + 60 * step, str(120 - 30 * step)) for step in range(5)]
YEARS = [at(100 + 120 * step, 320, str(2019 + step)) for step in range(4)]


def test_a_chart_is_read_with_its_axes_and_the_numbers_over_their_columns() -> None:
    numbers = [
        at(103 + 120 * step, top, text)
        for step, (top, text) in enumerate([(55, "118"), (150, "70"), (90, "99"), (71, "105")])
    ]
    chart = record(
        at(200, 20, "Ferry passengers"),
        *MARKS,
        *YEARS,
        *numbers,
        upwards(10, 172, "(thousands)"),
        upwards(10, 240, "Passengers"),
        at(280, 360, "Year"),
    )
    assert words_of(chart).split("\n") == [
        "Ferry passengers",
        "Passengers (thousands): 0, 30, 60, 90, 120",
        "2019: 118, 2020: 70, 2021: 99, 2022: 105",
        "Year",
    ]


def test_a_legend_and_labels_that_are_no_numbers_stay_together() -> None:
    chart = record(
        *MARKS, at(300, 62, "North harbour"), at(300, 78, "South harbour"), at(460, 70, "a calm day"), *YEARS
    )
    assert words_of(chart).split("\n") == [
        "0, 30, 60, 90, 120",
        "North harbour",
        "South harbour",
        "a calm day",
        "2019, 2020, 2021, 2022",
    ]


def test_the_mark_behind_a_name_is_no_hyphen() -> None:
    assert words_of(record(at(20, 20, "Salaries-"), at(200, 20, "-9.80"))) == "Salaries, -9.80"


def test_a_table_that_is_a_picture_keeps_its_rows() -> None:
    rows = [("Vessel", "Built", "Crew"), ("Aurora", "1990", "24"), ("Corvus", "2000", "31"), ("Dorado", "2010", "15")]
    table = record(*(at(20 + 150 * c, 20 + 30 * r, cell) for r, row in enumerate(rows) for c, cell in enumerate(row)))
    assert words_of(table) == "Vessel | Built | Crew\nAurora | 1990 | 24\nCorvus | 2000 | 31\nDorado | 2010 | 15"


def test_words_go_after_the_paragraph_that_they_belong_to() -> None:
    text = f"{BEFORE}\n\n{CAPTION}\n\n{AFTER}"
    found = with_words(
        text, [("one", CAPTION, False), ("two", CAPTION, False), ("three", BEFORE, True), ("end", "", False)]
    )
    assert found == (
        f"[picture: three]\n\n{BEFORE}\n\n{CAPTION}\n\n[picture: one]\n\n[picture: two]\n\n{AFTER}\n\n[picture: end]"
    )
    assert picture_at(found, found.index("wo]")) == "[picture: two]"
    assert picture_at(found, found.index("harbour")) == ""


def with_picture(
    place: bytes, picture: bytes, size: tuple[int, int], *, rotate: int = 0, in_form: bool = False, pages: int = 1
) -> bytes:
    """A PDF of pages with a picture in gray between two paragraphs and above a caption."""
    lines = ((740, BEFORE), (370, CAPTION), (340, AFTER))
    words = b"".join(b"BT /F 10 Tf 60 %d Td (%s) Tj ET\n" % (y, text.encode()) for y, text in lines)
    drawn = b"q %s /I Do Q\n" % place
    image = b"/XObject << /I 6 0 R >>"
    form = (
        b"<< /Type /XObject /Subtype /Form /BBox [0 0 600 800] /Matrix [0.5 0 0 0.5 0 0] /Resources << %s >> " % image
    )
    kids = b" ".join(b"%d 0 R" % (8 + at) for at in range(pages))
    page = (
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Rotate %d /Contents 4 0 R /Resources "
        b"<< /Font << /F 5 0 R >> /XObject << %s >> >> >>" % (rotate, b"/G 7 0 R" if in_form else b"/I 6 0 R")
    )
    return assembled(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, pages),
            b"<< >>",
            stream((b"q 2 0 0 2 0 0 cm /G Do Q\n" if in_form else drawn) + words),
            b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
            b"<< /Type /XObject /Subtype /Image /Width %d /Height %d /ColorSpace /DeviceGray /BitsPerComponent 8 "
            b"/Length %d >>\nstream\n%s\nendstream" % (*size, len(picture), picture),
            form + b"/Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn),
            *[page] * pages,
        ]
    )


PLACE = b"300 0 0 300 150 400 cm"
GRAY = bytes(200 * 200)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ({}, ["1:0:150,450,100,400:200"]),
        ({"rotate": 90}, ["1:0:150,450,100,400:200"]),
        ({"in_form": True}, ["1:0:150,450,100,400:200"]),
        ({"place": b"60 0 0 60 150 400 cm"}, []),  # an icon
        ({"size": (40, 40), "picture": bytes(1600)}, []),
        ({"size": (1, 1), "picture": b"\\x80"}, []),
        ({"place": b"500 0 0 240 50 400 cm"}, ["1:0:50,550,160,400:200"]),
        ({"place": b"500 0 0 700 50 90 cm"}, []),  # a background
        ({"place": b"300 0 0 300 900 400 cm"}, []),  # off the page
        ({"pages": 3}, []),  # on every page, as a logo is
    ],
    ids=[
        "plain",
        "turned",
        "in a group",
        "small",
        "few pixels",
        "one pixel",
        "wide",
        "behind text",
        "outside",
        "repeated",
    ],
)
def test_pictures_that_may_have_words_are_found_by_their_size(how: dict[str, Any], expected: list[str]) -> None:
    made = {"place": PLACE, "picture": GRAY, "size": (200, 200), **how}
    document = pdfium.PdfDocument(with_picture(**made))
    found = []
    for index in range(len(document)):
        drawn: list[Any] = []
        page = document[index]
        lines = page_lines(page, pictures=drawn)
        found.append(pictures_on(page, index + 1, drawn, lines))
    assert [key for keys in without_repeated(found) for key in keys] == expected


def read(path: Path, **request: Any) -> Parsed:
    return parse(path, request, Limits(), lambda *_: None)


def test_words_stand_after_the_caption_and_the_pictures_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "report.pdf"
    path.write_bytes(with_picture(PLACE, GRAY, (200, 200)))
    (section,) = read(path).sections
    assert section.text == f"{BEFORE}\n\n{CAPTION}\n{AFTER}"
    (key,) = section.pictures
    unread = "Pictures beside the text that may have words, which are not read: 1."
    assert read(path).warnings == [unread]

    known = read(path, pictures={key: record(at(200, 20, "Ferry passengers"), *MARKS)})
    words = "[picture: Ferry passengers\n0, 30, 60, 90, 120]"
    assert known.sections[0].text == f"{BEFORE}\n\n{CAPTION}\n\n{words}\n\n{AFTER}"
    assert (known.sections[0].pictures, known.warnings) == (
        [],
        ["Pictures beside the text: 1; words were recognised in 1 and may have slips."],
    )
    for nothing in (None, record()):
        none = read(path, pictures={key: nothing})
        assert none.sections[0].text == section.text
        assert none.warnings == ["Pictures beside the text: 1; none has words."]


def test_words_that_the_page_has_as_text_are_not_said_twice(tmp_path: Path) -> None:
    path = tmp_path / "report.pdf"
    path.write_bytes(with_picture(b"400 0 0 350 40 350 cm", GRAY, (200, 200)))
    (section,) = read(path).sections
    (key,) = section.pictures
    x0, x1, top, bottom = place_of(key).box
    over = RecognisedPage(
        0, 0.0, (x1 - x0, bottom - top), [at(25, 420 - top, "Figure 2: Passengers"), at(30, 200, "Orre")], 0.99
    )
    assert "[picture: Orre]" in read(path, pictures={key: over.as_json()}).sections[0].text


def test_a_picture_is_recognised_once_and_a_broken_one_never_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[list[str]] = []

    def child(request: dict[str, Any], *_: object) -> Iterator[dict[str, Any]]:
        runs.append(list(request["keys"]))
        for done, key in enumerate(request["keys"]):
            yield {"type": "step", "done": done, "total": 9, "page": done + 1}
            if key == "b":
                raise recognition.ChildFailed("memory", None)
            yield {"type": "picture", "key": key, "words": record(at(0, 0, key * 3)), "seconds": 1.0}

    monkeypatch.setattr(recognition, "run_in_child", child)
    how = Recognition(lambda sha256: tmp_path)
    known: recognition.PictureRecords = {}
    recognition.recognise_pictures(tmp_path / "a.pdf", "0", None, ["a", "b", "c"], how, known)
    assert runs == [["a", "b", "c"], ["c"]]
    assert known == recognition.load_pictures(tmp_path) == {"a": known["a"], "b": None, "c": known["c"]}
    recognition.recognise_pictures(tmp_path / "a.pdf", "0", None, ["a", "b", "c"], how, known)
    assert len(runs) == 2


def chart() -> Image.Image:
    """A chart with the name of its axis upwards."""
    font = ImageFont.load_default(26)
    drawn = Image.new("L", (620, 420), 255)
    pen = ImageDraw.Draw(drawn)
    pen.text((200, 20), "Ferry passengers", 0, font)
    for step in range(4):
        pen.text((70, 90 + 80 * step), str(400 - 100 * step), 0, font)
        pen.rectangle((150 + 110 * step, 150 + 30 * step, 210 + 110 * step, 360), 120)
        pen.text((150 + 110 * step, 370), str(2019 + step), 0, font)
    name = Image.new("L", (160, 40), 255)
    ImageDraw.Draw(name).text((5, 4), "Thousands", 0, font)
    drawn.paste(name.rotate(90, expand=True), (15, 140))
    return drawn


def test_a_real_chart_is_read_marked_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.pdf"
    picture = chart()
    path.write_bytes(with_picture(b"310 0 0 210 150 400 cm", picture.tobytes(), picture.size))
    how = Recognition(lambda sha256: tmp_path, pictures="all")
    document = read_document(path, recognition=how)
    words = "[picture: Ferry passengers\nThousands: 100, 200, 300, 400\n2019, 2020, 2021, 2022]"
    assert document.pages[0].text == f"{BEFORE}\n\n{CAPTION}\n\n{words}\n\n{AFTER}"
    assert find_on_page(path, 1, words) == [(0.25, 0.2375, 0.76667, 0.5)]
    assert find_on_page(path, 1, "Passengers of the ferry")[0][1] > 0.5
    monkeypatch.setattr(recognition, "run_in_child", pytest.fail)
    assert read_document(path, recognition=how) == document
    none = read_document(path, recognition=Recognition(lambda sha256: tmp_path, pictures=""))
    assert "[picture" not in none.pages[0].text


def test_a_pattern_without_words_gives_none(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(7).integers(0, 255, (120, 160, 3)).astype(np.uint8)
    noise[::7] = 0
    assert ocr.recognise_picture(noise, (160.0, 120.0), lambda: None).lines == []


def encoded(picture: Image.Image, kind: str, **how: Any) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **how)
    return stream.getvalue()


WHITE = Image.new("RGB", (400, 200), "white")


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        (encoded(WHITE, "PNG"), True),
        (encoded(WHITE.convert("CMYK"), "JPEG"), True),
        (encoded(WHITE.convert("RGBA"), "PNG"), True),
        (encoded(WHITE.convert("P"), "GIF"), True),
        (encoded(WHITE.convert("1"), "PNG"), True),
        (encoded(WHITE.convert("I;16"), "PNG"), True),
        (encoded(Image.new("RGB", (1, 1)), "PNG"), False),
        (encoded(Image.new("L", (9000, 9000)), "PNG"), False),  # 81 million pixels in 80 kB
        (encoded(WHITE, "JPEG")[:400], False),
        (encoded(WHITE, "PNG").replace(b"IDAT", b"IDAX"), False),
        (b"GIF89a" + bytes(300), False),
        (b"", False),
    ],
    ids=["rgb", "cmyk", "alpha", "palette", "bits", "deep", "pixel", "bomb", "cut", "no data", "not a gif", "empty"],
)
def test_a_picture_of_any_kind_is_opened_or_left_out(data: bytes, shown: bool) -> None:
    pixels = picture_pixels.opened(data)
    assert (pixels is not None) is shown
    assert pixels is None or (pixels.shape[2] == 3 and max(pixels.shape[:2]) == 800)


def test_white_words_without_a_background_stay_visible() -> None:
    clear = Image.new("RGBA", (300, 100), (255, 255, 255, 0))
    ImageDraw.Draw(clear).text((20, 20), "Orre", "white", ImageFont.load_default(40))
    assert np.asarray(pictures.plain(clear)).min() == 0


@pytest.mark.parametrize("key", ["", "1", "1:0:1,2,3:4", "x:0:1,2,3,4:5", "1:0:1,2,3,4:5\n", "9" * 40 + ":0:1,2,3,4:5"])
def test_what_is_no_place_on_a_page_is_told(key: str) -> None:
    with pytest.raises(ValueError, match="no key"):
        place_of(key)
    place = PicturePlace(3, 90, (1.0, 2.0, 3.0, 4.0), 5)
    assert place_of(place.key) == place


REPORT = "[picture: Ferry passengers\n0, 30, 60, 90, 120]"


def _docx(files: Files) -> Path:
    picture = (
        '<w:p><w:r><w:t>Before</w:t></w:r><w:r><w:drawing><extent cx="5400000" cy="5400000"/><docPr id="1"/>'
        '<a:pic xmlns:a="a"><a:blip r:embed="r7"/></a:pic></w:drawing></w:r></w:p>'
    )
    names = 'xmlns:w="w" xmlns:r="r"'
    body = f"<w:document {names}><w:body>{picture}<w:p><w:r><w:t>After</w:t></w:r></w:p></w:body></w:document>"
    links = '<Relationships><Relationship Id="r7" Type="x/image" Target="media/i.png"/></Relationships>'
    parts: list[tuple[str, str | bytes]] = [
        ("word/document.xml", body),
        ("word/_rels/document.xml.rels", links),
        ("word/media/i.png", PNG),
    ]
    return files.zipped("a.docx", parts)


def _pptx(files: Files) -> Path:
    picture = '<p:pic><p:nvPicPr><p:cNvPr/></p:nvPicPr><p:blipFill><a:blip r:embed="r1"/></p:blipFill></p:pic>'
    links = ("ppt/slides/_rels/slide1.xml.rels", samples.relations(("image", "../media/i.png")))
    shapes = samples.shape("Before") + picture + samples.shape("After")
    return samples.pptx(files, [shapes], more=[links, ("ppt/media/i.png", PNG)])


def _epub(files: Files) -> Path:
    page = '<html><body><p>Before</p><figure><img src="../i.png" alt="A chart"/></figure><p>After</p></body></html>'
    return files.epub("a.epub", [("t/one.xhtml", page)], more=[("OPS/i.png", PNG)])


def _html(files: Files) -> Path:
    data = base64.b64encode(PNG).decode()
    return files.text("a.html", f'<html><p>Before</p><img src="data:image/png;base64,{data}"><p>After</p></html>')


def _mail(files: Files, head: str = "From: a@b.c\nTo: d@e.f\n", name: str = "a.eml") -> Path:
    page = "<html><body><p>Before</p><img src='cid:one'><p>After</p></body></html>"
    text = f"--x\nContent-Type: text/html\n\n{page}\n--x\nContent-Type: image/png\nContent-ID: <one>\n"
    data = base64.encodebytes(PNG).decode()
    kind = "MIME-Version: 1.0\nContent-Type: multipart/related; boundary=x\n\n"
    return files.text(name, f"{head}{kind}{text}Content-Transfer-Encoding: base64\n\n{data}\n--x--\n")


def _mhtml(files: Files) -> Path:
    return _mail(files, "From: <Saved by Blink>\n", "a.mhtml")


def _odt(files: Files) -> Path:
    frame = "<draw:frame><draw:image xlink:href='Pictures/1.png'/></draw:frame>"
    body = f"<text:p>Before</text:p><text:p>{frame}</text:p><text:p>After</text:p>"
    return samples.odf(files, "text", body, more=[("Pictures/1.png", PNG)])


PNG = encoded(chart(), "PNG")


@pytest.mark.parametrize("made", [_docx, _pptx, _html, _epub, _odt, _mhtml, _mail])
def test_pictures_of_other_formats_are_read_at_their_place(files: Files, made: Callable[[Files], Path]) -> None:
    path = made(files)
    parsed = detect.parse(path, {}, Limits(), lambda *_: None)
    text = "\n\n".join(section.text for section in parsed.sections)
    (key,) = [key for section in parsed.sections for key in section.pictures]
    assert "\ufdd4" not in text
    assert "Pictures beside the text that may have words, which are not read: 1." in parsed.warnings
    with picture_pixels.opening(path, None, lambda: None) as pixels_of:
        pixels = pixels_of(key)
        assert pixels is not None
        assert pixels.shape[:2] == (840, 1240)
        assert pixels_of("elsewhere.png") is None
    known = detect.parse(
        path, {"pictures": {key: record(at(200, 20, "Ferry passengers"), *MARKS)}}, Limits(), lambda *_: None
    )
    words = "\n\n".join(section.text for section in known.sections)
    assert words == text.replace("\n\nAfter", f"\n\n{REPORT}\n\nAfter")
    assert "Pictures beside the text: 1; words were recognised in 1 and may have slips." in known.warnings


def test_drawings_that_nothing_here_opens_are_told() -> None:
    """They were counted among the pictures without words."""
    parsed = Parsed([Section("1", f"The lamp.\n\n{mark('word/media/image1.EMF')}")])
    resolve(parsed, {})
    assert (parsed.sections[0].text, parsed.sections[0].pictures) == ("The lamp.", [])
    assert parsed.warnings == ["Drawings in a format that is not read here (EMF, WMF): 1."]


def test_a_word_file_that_is_only_a_scan_is_read_or_refused(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _docx(files)
    with zipfile.ZipFile(path) as held:
        body = held.read("word/document.xml")
        parts: list[tuple[str, str | bytes]] = [(name, held.read(name)) for name in held.namelist()[1:]]
    body = body.replace(b"<w:t>Before</w:t>", b"").replace(b"<w:t>After</w:t>", b"")
    path = files.zipped("scan.docx", [("word/document.xml", body), *parts])

    def child(found: Any, request: dict[str, Any], *_: object) -> Iterator[dict[str, Any]]:
        for key in request["keys"]:
            yield {"type": "picture", "key": key, "words": found, "seconds": 1.0}

    words = record(at(200, 20, "Ferry passengers"), *MARKS)
    monkeypatch.setattr(recognition, "run_in_child", lambda *args: child(words, *args))
    assert read_document(path, recognition=Recognition()).pages[0].text == REPORT
    monkeypatch.setattr(recognition, "run_in_child", lambda *args: child(None, *args))
    for how in (Recognition(), Recognition(pictures="")):
        with pytest.raises(DocumentError, match="has no text"):
            read_document(path, recognition=how)
