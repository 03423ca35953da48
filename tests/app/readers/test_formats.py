"""What comes out of each format: sections, names, tables of contents, encodings."""

from __future__ import annotations

import hashlib
import importlib
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.readers import detect, epub, markup, read_document
from app.readers.file_formats import FORMATS, names, suffixes
from app.readers.parsed import Limits
from app.readers.sections import cut
from app.web.server import start_page
from engine.document import Document
from engine.errors import DocumentError
from tests.app.readers.conftest import CONTAINER, Files

_PARAGRAPH = "The keeper went up the stairs. " * 12


def _labels(document: Document) -> list[str]:
    return [page.label for page in document.pages]


def _outline(document: Document) -> list[tuple[str, int, int]]:
    return [(item.title, item.page, item.level) for item in document.outline]


def test_every_line_of_the_table_has_a_reader_and_its_own_suffixes() -> None:
    for one in FORMATS:
        assert callable(importlib.import_module(f"app.readers.{one.parser}").parse)
        module, _, judge = one.judge.partition(".")
        assert not judge or callable(getattr(importlib.import_module(f"app.readers.{module}"), judge))
    assert len(set(suffixes())) == len(suffixes())
    page = start_page({})
    assert f'accept="{",".join(suffixes())}"' in page
    assert "PDF, EPUB, Word, PowerPoint, Excel, OpenDocument, …" in page
    assert ", ".join(names()).endswith("CBZ, ZIP, TXT")


def test_text_book_with_chapters(files: Any) -> None:
    contents = "CONTENTS\n\nCHAPTER I. The Light\n\nCHAPTER II. The Storm\n\nCHAPTER III. The Boat"
    body = "\n\n".join(
        f"{head}\n\n{_PARAGRAPH}\n\n{_PARAGRAPH}"
        for head in ("CHAPTER I. The Light", "CHAPTER II. The Storm", "CHAPTER III. The Boat")
    )
    document = read_document(files.text("north light.txt", f"A Tale\n\n{contents}\n\n{body}"))
    assert _labels(document) == ["opening", "CHAPTER I. The Light", "CHAPTER II. The Storm", "CHAPTER III. The Boat"]
    assert _outline(document) == [(label, at, 0) for at, label in enumerate(_labels(document), 1)][1:]
    assert (document.title, document.unit, document.kind) == ("north light", "section", "text")


def test_parts_and_chapters_are_nested(files: Any) -> None:
    text = "\n\n".join(
        f"{part}\n\nChapter 1\n\n{_PARAGRAPH}\n\nChapter 2: Later\n\n{_PARAGRAPH}" for part in ("BOOK ONE", "BOOK TWO")
    )
    document = read_document(files.text("two.txt", text))
    assert [(title, level) for title, _, level in _outline(document)] == [
        ("BOOK ONE", 0), ("Chapter 1", 1), ("Chapter 2: Later", 1),
        ("BOOK TWO", 0), ("Chapter 1", 1), ("Chapter 2: Later", 1),
    ]  # fmt: skip
    assert len(set(_labels(document))) == len(document.pages)


@pytest.mark.parametrize(
    "heads",
    [
        ["CHAPTER I - THE LIGHT", "CHAPTER II - THE STORM", "CHAPTER III - THE BOAT"],
        ["I. The Light", "II. The Storm", "III. The Boat"],
        ["1. The Light", "2. The Storm", "3. The Boat"],
        ["Chapter One", "Chapter Two", "Chapter Three"],
        ["Kapitel 1: Das Licht", "Kapitel 2: Der Sturm", "Kapitel 3: Das Boot"],
    ],
)
def test_ways_to_head_a_chapter(files: Any, heads: list[str]) -> None:
    text = "\n\n".join(f"{head}\n\n{_PARAGRAPH}\n\n{_PARAGRAPH}\n\n{_PARAGRAPH}" for head in heads)
    assert _labels(read_document(files.text("a.txt", text))) == heads


def test_numbered_list_is_no_table_of_chapters(files: Any) -> None:
    text = "\n\n".join(["Bring these:", "1. A lamp", "2. A rope", "3. A knife", _PARAGRAPH])
    assert _labels(read_document(files.text("a.txt", text))) == ["section 1"]


def test_sentence_that_begins_like_a_heading_is_text(files: Any) -> None:
    text = f"Part of the night he slept.\n\n{_PARAGRAPH}\n\nBook in hand, he sat.\n\n{_PARAGRAPH}"
    assert _labels(read_document(files.text("a.txt", text))) == ["section 1"]


def test_text_without_headings_is_cut_at_paragraphs(files: Any) -> None:
    paragraphs = [f"{at}: {_PARAGRAPH}".strip() for at in range(60)]
    document = read_document(files.text("plain.txt", "\n\n".join(paragraphs)))
    assert _labels(document)[:2] == ["section 1", "section 2"]
    assert all(1_500 < len(page.text) < 4_500 for page in document.pages)
    assert "\n\n".join(page.text for page in document.pages) == "\n\n".join(paragraphs)


def test_a_text_with_sections_of_its_own_is_cut_into_parts(files: Any) -> None:
    """The dog of "Section 9" was cited as "section 2"."""
    paragraphs = [f"Section {at}. {_PARAGRAPH}".strip() for at in range(1, 40)]
    document = read_document(files.text("lease.txt", "\n\n".join(["This lease is made.", *paragraphs])))
    assert not any(label.startswith("section") for label in _labels(document))


def test_hard_line_ends_are_re_flowed_and_verse_is_not(files: Any) -> None:
    prose = (
        "It was the last night of the year and the keeper of the north\nlight sat over his book, for the wind had gone"
        " round and there\nwas nothing to be seen of the sea."
    )
    verse = "The sea is calm tonight,\nThe tide is full,\nThe moon lies fair."
    text = read_document(files.text("wrapped.txt", f"{prose}\n\n{verse}\n\n" * 5)).text
    assert prose.replace("\n", " ") in text
    assert verse in text


def test_gutenberg_head_names_the_book(files: Any) -> None:
    text = f"The Project Gutenberg eBook\n\nTitle: The North Light\n\nAuthor: Ada Writer\n\n{_PARAGRAPH}"
    document = read_document(files.text("pg1.txt", text))
    assert (document.title, document.author) == ("The North Light", "Ada Writer")


_SAMPLES = {
    "german": "Der Wärter ging über die Brücke und grüßte müde. " * 4,
    "french": "« L’été dernier, à la plage, l’élève a mangé une crêpe — déjà ! » " * 4,
    "russian": "Все счастливые семьи похожи друг на друга, каждая несчастлива по-своему. " * 4,
    "japanese": "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 6,
    "lithuanian": "„Kur tu buvai?“ paklausė ji. Ąžuolas šlamėjo už lango, o šuo lojo prie vartų. Įėjęs jis tylėjo. "
    * 4,
    "latvian": "Viņi dzīvoja pie pašas zilās jūras, un ļoti lepojās. Ķēniņš ģērbās zelta mētelī. " * 4,
    "estonian": "„Kus sa olid?“ küsis ta. Öö oli pime, vana püüdis võrguga kala. Šokolaad ja žanr. " * 4,
    "polish": "„Gdzie byłeś?” – zapytała. Żył kiedyś stary rybak ze swoją żoną, dąb szumiał. Źdźbło, łąka, ćma. " * 4,
    "chinese": "从前有一个老渔夫，和他的妻子住在蓝色的大海边。“你去哪儿了？”她问道。" * 6,
    "korean": "옛날에 늙은 어부가 아내와 함께 푸른 바닷가에 살았다. 노인은 그물로 물고기를 잡았다. " * 6,
    "arabic": "كان يا ما كان في قديم الزمان رجل يحرس المنارة. " * 4,
}


_UNICODE = ("utf-8", "utf-8-sig", "utf-16", "utf-32")
_LOCAL = [
    ("german", "utf-16-le"), ("german", "utf-16-be"), ("german", "cp1252"), ("german", "iso8859-1"),
    ("french", "cp1252"), ("russian", "cp1251"), ("russian", "koi8-r"), ("japanese", "shift_jis"),
    ("japanese", "euc_jp"), ("japanese", "iso2022_jp"), ("lithuanian", "cp1257"), ("lithuanian", "iso8859_13"),
    ("latvian", "cp1257"), ("estonian", "cp1257"), ("polish", "cp1257"), ("polish", "cp1250"),
    ("chinese", "gb18030"), ("chinese", "hz"), ("korean", "euc_kr"), ("korean", "iso2022_kr"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sample", "encoding"), [(name, encoding) for name in _SAMPLES for encoding in _UNICODE] + _LOCAL
)
def test_encodings(files: Any, sample: str, encoding: str) -> None:
    document = read_document(files.text("a.txt", _SAMPLES[sample], encoding))
    assert document.text == " ".join(_SAMPLES[sample].split())
    assert document.warnings == ()


def test_chinese_in_seven_bits_among_other_words(files: Any) -> None:
    mixed = "Chapter 1\n\nThe first words, and a tilde ~.\n\n" + _SAMPLES["chinese"]
    assert read_document(files.text("a.txt", mixed, "hz")).text.split("\n\n")[-1] == _SAMPLES["chinese"]


@pytest.mark.parametrize("text", ["let f ~{ b ~} = 1", "~{xy~} ~{ab~} ~{0~}", "a ~{b~c~}", "~{~}", "~{!!~}~{"])
def test_tildes_and_braces_are_not_chinese(files: Any, text: str) -> None:
    assert read_document(files.text("a.txt", f"{_PARAGRAPH} {text}")).text.endswith(text)


def test_a_broken_character_is_a_warning(files: Any) -> None:
    data = ("Größe " * 2_000).encode()
    document = read_document(files.raw("a.txt", data[:6000] + b"\xff" + data[6000:]))
    assert document.text.count("Größe") >= 1_998
    assert document.warnings == ("1 characters could not be read as utf-8 and are shown as \ufffd.",)


def test_overrides_that_turn_text_around_are_dropped(files: Any) -> None:
    assert (
        read_document(files.text("a.txt", "invoice\u202efdp.exe and \u2067so on\u2069")).text
        == "invoicefdp.exe and so on"
    )


def test_name_does_not_tell_the_kind(files: Any) -> None:
    assert read_document(files.text("book.pdf", "Just words.")).kind == "text"
    assert read_document(files.text("book.txt", "<!DOCTYPE html><p>Just words.")).kind == "html"
    assert read_document(files.text("riff.txt", "RIFF raff and MZ; a file begins with %PDF- they say.")).kind == "text"
    real = files.pdf("a.txt", [[(72, 700, "Just words in a page.")]])
    assert read_document(real).kind == "pdf"


def test_markdown(files: Any) -> None:
    text = "# North Light\n\nFirst line\ngoes on.\n\n## One\n\n- a\n- b\n\n```\n# no heading\n```\n\nTwo\n---\n\nlast"
    document = read_document(files.text("a.md", text))
    assert document.title == "North Light"
    assert _outline(document) == [("North Light", 1, 0), ("One", 2, 1), ("Two", 3, 1)]
    assert document.pages[0].text == "North Light\n\nFirst line goes on."
    assert document.pages[1].text == "One\n\n- a\n- b\n\n```\n# no heading\n```"


def test_html(files: Any) -> None:
    text = (
        "<html><head><title>The Light</title><meta name='author' content='Ada Writer'><style>p{}</style></head><body>"
        "<script>alert('never')</script><h1>One</h1><p>A&nbsp;b &amp; c<br>d<p>e <em>f</em>g"
        "<table><tr><td>1<td>2</table>"
        "<h1>Two</h1><pre>x\n  y</pre>tail"
    )
    document = read_document(files.text("a.html", text))
    assert (document.title, document.author) == ("The Light", "Ada Writer")
    assert [page.text for page in document.pages] == ["One\n\nA b & c\nd\n\ne fg\n\n1 | 2", "Two\n\nx\n  y\n\ntail"]
    assert "never" not in document.text


def test_html_declares_its_encoding(files: Any) -> None:
    text = "<html><head><meta charset='windows-1251'></head><body><p>Все счастливые семьи"
    assert read_document(files.text("a.html", text, "cp1251")).text == "Все счастливые семьи"


def test_epub(files: Any) -> None:
    point = "<navPoint><navLabel><text>{}</text></navLabel><content src='{}'/>{}</navPoint>"
    toc = point.format("Part I", "a.xhtml", point.format("One", "a.xhtml#one", "") + point.format("Two", "b.xhtml", ""))
    chapters = [
        ("a.xhtml", "<html><body><h1>Part I</h1><h2 id='one'>One</h2><p>first</p></body></html>"),
        ("b.xhtml", "<html><body><h2>Two</h2><p>second"),
        ("c.xhtml", "<html><body><p>and on it goes"),
        ("gone.xhtml", ""),
    ]
    document = read_document(files.epub("a.epub", chapters, toc))
    assert (document.title, document.author, document.kind) == ("A Small Book", "Ada Writer", "epub")
    assert [(page.label, page.text) for page in document.pages] == [
        ("Part I", "Part I"),
        ("One", "One\n\nfirst"),
        ("Two", "Two\n\nsecond\n\nand on it goes"),
    ]
    assert _outline(document) == [("Part I", 1, 0), ("One", 2, 1), ("Two", 3, 1)]
    assert document.warnings == ("“gone.xhtml” could not be read: it is missing from the file.",)


_BOOKS: dict[str, tuple[str, list[tuple[str, str, str]], dict[str, str], str, tuple[str, ...]]] = {
    "chapters of other types": (
        "a b c",
        [("a.xml", "text/xml", ""), ("b.htm", "text/xhtml", ""), ("c.txt", "text/plain", "")],
        {"a.xml": "<html><p>first</p></html>", "b.htm": "<p>second</p>", "c.txt": "third\n\nfourth"},
        "first\n\nsecond\n\nthird\n\nfourth",
        (),
    ),
    "a book of DAISY": (
        "a",
        [("a.xml", "application/x-dtbook+xml", "")],
        {
            "a.xml": "<dtbook><book><level1><h1>One</h1><p>lit <pagenum>12</pagenum>the lamp<noteref idref='#n'>1"
            "</noteref></p><note id='n'><p>Colza.</p></note><list type='ol'><li>Ring</li></list></level1></book>"
        },
        "One\n\nlit the lamp[1]\n\n[1] Colza.\n\n1. Ring",
        ("6% of the text was left out: numbers of the printed pages.",),
    ),
    "the contents are the book": (
        "n",
        [("n.xhtml", "application/xhtml+xml", "properties='nav'")],
        {"n.xhtml": "<nav epub:type='toc'><ol><li><a href='#c'>One</a></ol></nav><h1 id='c'>One</h1><p>the words</p>"},
        "One\n\nthe words",
        (),
    ),
    "contents with a preface": (
        "n a",
        [("n.xhtml", "application/xhtml+xml", "properties='nav'"), ("a.xhtml", "application/xhtml+xml", "")],
        {"n.xhtml": "<p>preface</p><nav><ol><li><a href='a.xhtml'>A</a></ol></nav>", "a.xhtml": "<p>the words"},
        "preface\n\nthe words",
        (),
    ),
    "a drawn page": (
        "a",
        [("a.svg", "image/svg+xml", "")],
        {"a.svg": "<svg><title>x</title><text y='1'>The map</text><text y='9'>shows ships</text></svg>"},
        "The map\nshows ships",
        (),
    ),
    "pictures, one with a text in its place": (
        "p q",
        [
            ("p.jpg", "image/jpeg", "fallback='t'"),
            ("q.jpg", "image/jpeg", ""),
            ("t.xhtml", "application/xhtml+xml", ""),
        ],
        {"t.xhtml": "<p>the words</p>"},
        "the words",
        ("Pages that are pictures, whose words are not read: 1.",),
    ),
    "notes that only links lead to": (
        "a",
        [("a.xhtml", "application/xhtml+xml", ""), ("n.xhtml", "application/xhtml+xml", ""), ("x.xhtml", "", "")],
        {"a.xhtml": "<p>oil<a epub:type='noteref' href='n.xhtml#1'>1</a>", "n.xhtml": "<p>Colza", "x.xhtml": "<p>lost"},
        "oil[1]\n\nColza",
        (),
    ),
    "numbers by a style sheet of its own": (
        "a",
        [("a.xhtml", "application/xhtml+xml", ""), ("s.css", "text/css", "")],
        {"a.xhtml": "<link href='s.css' rel='stylesheet'/><ol><li>x</ol>", "s.css": "ol {list-style: lower-roman}"},
        "i. x",
        (),
    ),
}


@pytest.mark.parametrize("name", _BOOKS)
def test_parts_of_an_epub_beside_the_usual(files: Any, name: str) -> None:
    spine, items, contents, expected, warnings = _BOOKS[name]
    manifest = "".join(
        f"<item id='{file.partition('.')[0]}' href='{file}' media-type='{kind}' {more}/>" for file, kind, more in items
    )
    order = "".join(f"<itemref idref='{identity}'/>" for identity in spine.split())
    package = f"<package><metadata/><manifest>{manifest}</manifest><spine>{order}</spine></package>"
    entries = [("META-INF/container.xml", CONTAINER), ("OPS/book.opf", package)]
    path = files.zipped("a.epub", [*entries, *((f"OPS/{file}", text) for file, text in contents.items())])
    parsed = epub.parse(path, {}, Limits(), lambda done, total, page: None)
    assert "\n\n".join(section.text for section in parsed.sections) == expected
    assert tuple(parsed.warnings) == warnings


def test_a_part_that_a_page_of_an_epub_shows_is_read_or_said(files: Any) -> None:
    page = "<p>The lamp.</p><iframe src='../parts/a.xhtml'></iframe><object data='b.html' type='text/html'></object>"
    path = files.epub(
        "a.epub", [("one.xhtml", f"<html><body>{page}</body></html>")], more=[("parts/a.xhtml", "<p>Shown.</p>")]
    )
    book = read_document(path)
    assert "\n\n".join(page.text for page in book.pages) == "The lamp.\n\nShown."
    assert book.warnings == ("A part of “one.xhtml” is not in the book: b.html.",)


def test_epub_locked_by_drm(files: Any) -> None:
    lock = "<encryption><CipherData><CipherReference URI='OPS/a.xhtml'/></CipherData></encryption>"
    path = files.epub("a.epub", [("a.xhtml", "<p>x")], more=[("META-INF/encryption.xml", lock)])
    with pytest.raises(DocumentError, match="copy protection"):
        read_document(path)


def test_docx(files: Any) -> None:
    core = "<c xmlns:dc='x'><dc:title>The Light</dc:title><dc:creator>Ada Writer</dc:creator></c>"
    paragraphs = [("H1", "One"), ("", "first"), ("", "second"), ("H1", "Two"), ("", "third")]
    document = read_document(files.docx("a.docx", paragraphs, [("docProps/core.xml", core)]))
    assert (document.title, document.author) == ("The Light", "Ada Writer")
    assert [(page.label, page.text) for page in document.pages] == [
        ("One", "One\n\nfirst\n\nsecond"),
        ("Two", "Two\n\nthird"),
    ]
    assert _outline(document) == [("One", 1, 0), ("Two", 2, 0)]


def test_hash_is_of_the_bytes(files: Any) -> None:
    path: Path = files.text("ä book with spaces.txt", "Some words.")
    document = read_document(path)
    assert document.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert document.title == "ä book with spaces"


@given(
    st.lists(st.text(st.sampled_from("ab .\n"), min_size=1, max_size=300), min_size=1, max_size=20),
    st.integers(20, 200),
)
def test_cutting_loses_nothing(paragraphs: list[str], size: int) -> None:
    text = "\n\n".join(paragraphs)
    parts = cut(text, size)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(len(part) <= 4 * size for part in parts)


@pytest.mark.parametrize(
    ("dates", "found"),
    [
        ("<dc:date>1851-10-18</dc:date>", "1851-10-18"),
        ("<dc:date o:event='modification'>2024-01-02</dc:date><dc:date o:event='publication'>1851</dc:date>", "1851"),
        ("<dc:date o:event='modification'>2024-01-02</dc:date>", ""),
    ],
)
def test_the_date_of_an_epub_is_that_of_its_publication(files: Files, dates: str, found: str) -> None:
    path = files.epub("dated.epub", [("one.xhtml", "<html><body><p>Some words of a book.</p></body></html>")])
    with zipfile.ZipFile(path) as whole:
        entries = {name: whole.read(name) for name in whole.namelist()}
    named = f"<metadata xmlns:o='http://www.idpf.org/2007/opf'>{dates}".encode()
    entries["OPS/book.opf"] = entries["OPS/book.opf"].replace(b"<metadata>", named)
    files.zipped("dated.epub", list(entries.items()))
    assert detect.parse(path, {}, Limits(), lambda *_: None).date == found


def test_the_date_of_a_page_stands_in_its_head() -> None:
    head = "<head><meta name='citation_publication_date' content='2019/05'></head>"
    assert markup.read(f"<html>{head}<body><p>Words.</p></body></html>").date == "2019/05"
