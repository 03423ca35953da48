"""PowerPoint presentations: titles, nested lists, tables, charts, notes, comments, and what is told."""

from __future__ import annotations

from typing import Any

from app.readers import read_document
from tests.app.readers import samples
from tests.app.readers.samples import relations, shape

_TABLE = (
    '<p:graphicFrame><a:graphic><a:graphicData><a:tbl><a:tblPr firstRow="1"/>'
    "<a:tr><a:tc><a:txBody><a:p><a:r><a:t>Year</a:t></a:r></a:p></a:txBody></a:tc>"
    "<a:tc><a:txBody><a:p><a:r><a:t>Euros</a:t></a:r></a:p></a:txBody></a:tc></a:tr>"
    "<a:tr><a:tc><a:txBody><a:p><a:r><a:t>2025</a:t></a:r></a:p></a:txBody></a:tc>"
    "<a:tc><a:txBody><a:p/></a:txBody></a:tc></a:tr></a:tbl></a:graphicData></a:graphic></p:graphicFrame>"
)


def test_slides_are_sections_with_titles_and_notes(files: Any) -> None:
    slides = [shape("from nine to four", "body") + shape("The light", "title"), "", shape("The end")]
    document = read_document(samples.pptx(files, slides, notes="Say: the oil is dear."))
    assert [page.label for page in document.pages] == ["slide 1", "slide 3"]
    assert document.pages[0].text == "The light\n\nfrom nine to four\n\nNotes: Say: the oil is dear."
    assert [(item.title, item.page) for item in document.outline] == [("The light", 1)]
    assert (document.title, document.kind, document.unit) == ("The light", "pptx", "section")


def test_levels_numbers_struck_words_and_raised_ones(files: Any) -> None:
    paragraphs = "".join(
        f"<a:p><a:pPr{level}>{mark}</a:pPr><a:r><a:rPr{look}/><a:t>{text}</a:t></a:r></a:p>"
        for level, mark, look, text in (
            ("", '<a:buAutoNum type="arabicPeriod"/>', "", "Lamp"),
            (' lvl="1"', '<a:buChar char="-"/>', "", "oil"),
            ("", '<a:buAutoNum type="arabicPeriod"/>', ' strike="sngStrike"', "Horn"),
            ("", '<a:buAutoNum type="romanLcParenR" startAt="4"/>', "", "Bell"),
            ("", "<a:buNone/>", "", "area 3 m"),
        )
    ).replace("area 3 m", 'area 3 m</a:t></a:r><a:r><a:rPr baseline="30000"/><a:t>2')
    document = read_document(samples.pptx(files, [shape(paragraphs)]))
    assert document.pages[0].text == "1. Lamp\n  • oil\n2. ~~Horn~~\niii) Bell\narea 3 m^2"


def test_program_text_keeps_its_indentation(files: Any) -> None:
    lines = "".join(f"<a:p><a:r><a:t>{line}</a:t></a:r></a:p>" for line in ("while lit:", "    burn()"))
    lines += "<a:p><a:r><a:t>if out:</a:t></a:r><a:br/><a:r><a:t>    light()</a:t></a:r></a:p>"
    document = read_document(samples.pptx(files, [shape(lines)]))
    assert document.pages[0].text == "while lit:\n    burn()\nif out:\n    light()"


def test_tables_groups_and_alternatives_are_read(files: Any) -> None:
    chosen = "<mc:AlternateContent><mc:Choice>" + shape("chosen") + "</mc:Choice></mc:AlternateContent>"
    group = f"<p:grpSp><p:grpSp>{shape('inside')}</p:grpSp></p:grpSp>"
    document = read_document(samples.pptx(files, [_TABLE + group + chosen]))
    assert document.pages[0].text == "Year | Euros\n2025 |\n\ninside\n\nchosen"


def test_what_is_hidden_repeated_or_a_picture_is_told(files: Any) -> None:
    footer = shape("Harbour Board, internal and for members only", "ftr") + shape("7", "sldNum")
    slides = [shape("one") + footer, shape("two HIDDEN") + footer + "<p:pic><p:nvPicPr><p:cNvPr/></p:nvPicPr></p:pic>"]
    document = read_document(samples.pptx(files, slides))
    assert [page.text for page in document.pages] == [
        "one\n\nHarbour Board, internal and for members only",
        "two HIDDEN",
    ]
    said = " ".join(document.warnings)
    assert "hidden in the show are read too: 1." in said
    assert "Pictures without a description, whose words are not read: 1." in said
    assert "rows that are the same on many pages" in said


def test_comments_are_read_or_left_out_as_asked(files: Any) -> None:
    more = [
        ("ppt/slides/_rels/slide1.xml.rels", relations(("comments", "../comments/c1.xml"))),
        ("ppt/comments/c1.xml", "<p:cmLst xmlns:p='p'><p:cm><p:text>Is this true?</p:text></p:cm></p:cmLst>"),
    ]
    path = samples.pptx(files, [shape("one")], more=more)
    assert read_document(path).pages[0].text == "one\n\nComment: Is this true?"
    left_out = read_document(path, comments=False)
    assert left_out.pages[0].text == "one"
    assert left_out.warnings == ("Comments of reviewers were left out, as asked: 1.",)


def test_a_broken_slide_costs_only_itself(files: Any) -> None:
    path = samples.pptx(files, [shape("one"), "</p:spTree></nothing>", shape("three")])
    document = read_document(path)
    assert [page.label for page in document.pages] == ["slide 1", "slide 3"]
    assert "Slide 2 could not be read." in document.warnings
