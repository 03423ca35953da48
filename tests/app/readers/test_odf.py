"""OpenDocument texts, presentations and workbooks: lists, notes, tables, formulas, sheets, and what is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.readers import picture_marks, read_document
from engine.errors import DocumentError
from tests.app.readers.samples import odf, page

_LIST = (
    "<text:list-style style:name='L'><text:list-level-style-number text:level='1' style:num-format='1'/>"
    "<text:list-level-style-bullet text:level='2'/></text:list-style>"
)

_SPACES = " ".join(f"xmlns:{name}='{name}'" for name in ("office", "text", "draw", "style", "chart", "table"))


def test_a_text_by_its_headings(files: Any) -> None:
    body = (
        "<text:h text:outline-level='1'>The light</text:h><text:p>from<text:s text:c='3'/>nine<text:line-break/>to"
        "<text:tab/>four</text:p><text:h text:outline-level='2'>Oil</text:h><text:p>barrels</text:p>"
    )
    meta = "<m xmlns:dc='dc'><dc:title>Keeper</dc:title><dc:creator>Ada Writer</dc:creator></m>"
    document = read_document(odf(files, "text", body, more=[("meta.xml", meta)]))
    assert document.pages[0].text == "The light\n\nfrom nine\nto four"
    assert [(item.title, item.level) for item in document.outline] == [("The light", 0), ("Oil", 1)]
    assert (document.title, document.author, document.kind) == ("Keeper", "Ada Writer", "odt")


def test_lists_are_numbered_and_nested(files: Any) -> None:
    inner = "<text:list><text:list-item><text:p>oil</text:p></text:list-item></text:list>"
    body = (
        f"<text:list text:style-name='L'><text:list-item><text:p>Lamp</text:p>{inner}</text:list-item>"
        "<text:list-item><text:p>Horn</text:p></text:list-item></text:list>"
    )
    wrapped = f"<text:list text:style-name='L'><text:list-item>{inner}</text:list-item></text:list>"
    more = body.replace("<text:list ", "<text:list text:continue-numbering='true' ", 1).replace(inner, "")
    made = odf(files, "text", body + wrapped + "<text:p>Between</text:p>" + more, _LIST)
    lines = [line.strip() for line in read_document(made).text.split("\n") if line]
    assert lines == ["1. Lamp", "• oil", "2. Horn", "• oil", "Between", "3. Lamp", "4. Horn"]


def test_an_inner_list_has_the_numbers_of_a_style_of_one_level(files: Any) -> None:
    style = "<text:list-style style:name='N'><text:list-level-style-number text:level='1' style:num-format='1'/>"
    inner = "<text:list text:style-name='N'><text:list-item><text:p>oil</text:p></text:list-item></text:list>"
    body = f"<text:list text:style-name='L'><text:list-item><text:p>Lamp</text:p>{inner}</text:list-item></text:list>"
    assert read_document(odf(files, "text", body, f"{_LIST}{style}</text:list-style>")).text == "1. Lamp\n\n  1. oil"


def test_program_text_keeps_its_indentation(files: Any) -> None:
    lines = ("", "while lit:"), ("<text:s text:c='4'/>", "burn()"), ("<text:tab/>", "wait()"), ("", "The lamp is out.")
    body = "".join(f"<text:p>{blanks}{line}</text:p>" for blanks, line in lines)
    assert read_document(odf(files, "text", body)).text == "while lit:\n    burn()\n    wait()\n\nThe lamp is out."


def test_notes_formulas_and_looks(files: Any) -> None:
    styles = (
        "<style:style style:name='S'><style:text-properties style:text-line-through-style='solid'/></style:style>"
        "<style:style style:name='U'><style:text-properties style:text-position='super 58%'/></style:style>"
        "<style:style style:name='H'><style:text-properties text:display='none'/></style:style>"
        "<style:style style:name='T' style:parent-style-name='H'/>"
    )
    note = (
        "<text:note><text:note-citation>1</text:note-citation>"
        "<text:note-body><text:p>A note.</text:p></text:note-body></text:note>"
    )
    body = (
        f"<text:p>The rent{note} is <text:span text:style-name='S'>480</text:span> 520 for 9 m"
        "<text:span text:style-name='U'>2</text:span><text:span text:style-name='T'>hidden words</text:span></text:p>"
        "<text:p><draw:frame><draw:object xlink:href='./Object 1'/></draw:frame></text:p>"
        "<text:p><draw:frame><draw:image/><svg:desc>A lamp on a rock</svg:desc></draw:frame></text:p>"
        "<text:p><draw:frame><draw:image/></draw:frame>end</text:p>"
    )  # fmt: skip
    formula = "<math xmlns='http://www.w3.org/1998/Math/MathML'><mfrac><mn>1</mn><mn>4</mn></mfrac></math>"
    document = read_document(odf(files, "text", body, styles, [("Object 1/content.xml", formula)]))
    assert document.text.split("\n\n") == [
        "The rent[1] is ~~480~~ 520 for 9 m^2", "1/4", "[Image: A lamp on a rock]", "end\n1. A note.",
    ]  # fmt: skip
    assert document.pages[-1].label == "Notes"
    said = " ".join(document.warnings)
    assert "Pictures without a description, whose words are not read: 1." in said
    assert "hidden where the document is shown" in said


def test_tables_comments_and_deleted_words(files: Any) -> None:
    cells = "".join(f"<table:table-cell><text:p>{text}</text:p></table:table-cell>" for text in ("Year", "Euros"))
    row = f"<table:table-row>{cells}</table:table-row>"
    body = (
        "<text:tracked-changes><text:changed-region><text:deletion><text:p>not</text:p></text:deletion>"
        "</text:changed-region></text:tracked-changes>"
        f"<table:table>{row}{row.replace('Year', '2025').replace('Euros', '12')}</table:table>"
        "<text:p>The end<office:annotation><dc:creator>Ben</dc:creator><text:p>Why?</text:p></office:annotation>"
        "</text:p>"
    )
    path = odf(files, "text", body)
    document = read_document(path)
    assert document.text.split("\n\n") == ["Year | Euros\n2025 | 12", "The end\nBen: Why?"]
    assert "it is marked as deleted" in document.warnings[0]
    assert "Why?" not in read_document(path, comments=False).text


def test_slides_with_titles_and_notes(files: Any) -> None:
    titled = page("<text:p>The light</text:p>").replace("<draw:frame>", "<draw:frame presentation:class='title'>")
    box = "<draw:frame><draw:text-box><text:p>Say it.</text:p></draw:text-box></draw:frame>"
    notes = f"<presentation:notes>{box}</presentation:notes>"
    first = page("<text:p>from nine</text:p>").replace("</draw:page>", "") + titled.split("<draw:page >")[1]
    first = first.replace("</draw:page>", f"{notes}</draw:page>")
    document = read_document(odf(files, "presentation", first + page("") + page("<text:p>The end</text:p>")))
    assert [page.label for page in document.pages] == ["slide 1", "slide 3"]
    assert document.pages[0].text == "The light\n\nfrom nine\n\nNotes: Say it."
    assert document.outline[0].title == "The light"


def test_a_flat_file_has_its_chart_its_footer_and_its_picture(tmp_path: Path) -> None:
    def cells(*texts: str) -> str:
        shown = "".join(f"<table:table-cell><text:p>{text}</text:p></table:table-cell>" for text in texts)
        return f"<table:table-row>{shown}</table:table-row>"

    chart = f"<chart:chart><table:table>{cells('', 'North')}{cells('Q1', '4.5')}</table:table></chart:chart>"
    written = "\n".join(["iVBORw0KGgo" + "A" * 60, "B" * 71])
    path = tmp_path / "flat.fodt"
    path.write_text(
        f"<?xml version='1.0'?><office:document {_SPACES} office:mimetype=\"application/vnd.oasis.opendocument.text\">"
        "<office:master-styles><style:footer><text:p>Not to be copied</text:p></style:footer><style:header><text:p>"
        "Page 1 of 2</text:p></style:header><style:footer-first><text:p>Draft</text:p></style:footer-first>"
        f"</office:master-styles><office:body><office:text><text:p>Sales</text:p><text:p><draw:frame><draw:object>"
        f"<office:document>{chart}</office:document></draw:object></draw:frame></text:p><text:p><draw:frame><draw:image>"
        f"<office:binary-data>{written}</office:binary-data></draw:image></draw:frame></text:p></office:text>"
        "</office:body></office:document>"
    )
    document = read_document(path)
    assert document.kind == "odt"
    assert document.text.split("\n\n") == ["Sales", "| North\nQ1 | 4.5\nNot to be copied", "Draft"]
    assert document.warnings == ("Pictures beside the text that may have words, which are not read: 1.",)
    key = picture_marks.key_of_data(written)
    assert list(picture_marks.embedded(path.read_bytes())) == [key]


def test_sheets_as_shown(files: Any) -> None:
    def row(*texts: str, more: str = "") -> str:
        cells = "".join(f"<table:table-cell><text:p>{text}</text:p></table:table-cell>" for text in texts)
        return f"<table:table-row {more}>{cells}</table:table-row>"

    wide = "<table:table-cell table:number-columns-repeated='1000'/>"
    gap = f"<table:table-row table:number-rows-repeated='3'>{wide}</table:table-row>"
    comment = "<office:annotation><text:p>Why?</text:p></office:annotation>"
    rows = row("Item", "Share") + gap + row(f"Oil{comment}", "15%") + row("gone", "9", more="table:visibility='filter'")
    rows = rows.replace(f"<text:p>Oil{comment}</text:p>", f"{comment}<text:p>Oil</text:p>")
    document = read_document(odf(files, "spreadsheet", f"<table:table table:name='Costs'>{rows}</table:table>"))
    assert [(page.label, page.text) for page in document.pages] == [
        ("sheet Costs", "Item | Share\nOil | 15%"),
        ("sheet Costs, beside the cells", "Comment on A5: Why?"),
    ]
    assert "hidden where the document is shown" in document.warnings[0]


def test_a_password_is_said(files: Any) -> None:
    manifest = "<m><file-entry><encryption-data/></file-entry></m>"
    path = odf(files, "text", "<text:p>words</text:p>", more=[("META-INF/manifest.xml", manifest)])
    with pytest.raises(DocumentError, match="locked by a password"):
        read_document(path)
