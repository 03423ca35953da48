"""Workbooks: numbers and dates as they are shown, heads, names of sheets, and what is told."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest

from app.readers import read_document
from app.readers.number_formats import shown
from tests.app.readers import samples
from tests.app.readers.samples import relations

_EUROS = '_-* #,##0.00\\ "€"_-;-* #,##0.00\\ "€"_-'


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        (0.15, "0%", "15%"), (1234.5, "#,##0.00", "1,234.50"), (-1234.5, "#,##0.00", "-1,234.50"),
        (1234567, "#,##0", "1,234,567"), (0, "#,##0", "0"), (12, "0000", "0012"), (-5, "0;(0)", "(5)"),
        (0, '0;-0;"-"', "-"), (-1234.5, _EUROS, "-1,234.50 €"), (12345, "[$€-407] #,##0", "€ 12,345"),
        (1234567, '0.0,,"M"', "1.2M"), (12345, "0.00E+00", "1.23E+04"), (2.25, "# ?/?", "2 1/4"),
        (0.1 + 0.2, "General", "0.3"), (4006381333931, "General", "4006381333931"), (1e-7, "General", "1E-07"),
        (5551234567, "(###) ###-####", "(555) 123-4567"), (123456789, "000-00-0000", "123-45-6789"),
        (1.005, "0.00", "1.01"), (2.5, "0", "3"), (0.5, "#.##", ".5"), (3, "#.##", "3"), (7, '0 "m²"', "7 m²"),
        (4.25, "[Red][<5]0.0;0", "4.3"), (9, "[Red][<5]0.0;0", "9"), (5, ";;;", ""), (0.333, "?/?", "1/3"),
        (45000, "yyyy-mm-dd", "2023-03-15"), (45000.5, "d mmm yyyy h:mm AM/PM", "15 Mar 2023 12:00 PM"),
        (45000.75, "dd.mm.yyyy hh:mm:ss", "15.03.2023 18:00:00"), (1.5, "[h]:mm", "36:00"),
        (61, "d/m/yyyy", "1/3/1900"),
        (45000, "[$-F800]dddd, mmmm dd, yyyy", "2023-03-15"), (0.5, "h:mm:ss.00", "12:00:00.00"),
        (2e27, "0.00", "2E+27"), (-0.5, "0%", "-50%"), (0.125, "0.0 €", "0.1 €"), (9, "$0.00", "$9.00"),
        (12, "#" * 900, "12"), (2958465.999999, "d/m/yyyy", "2958466"), (2958465.9, "d/m/yyyy", "31/12/9999"),
        (inf, "d/m/yyyy", "inf"), (nan, "0.00", "nan"),
    ],
)  # fmt: skip
def test_a_number_is_written_as_a_cell_shows_it(value: float, code: str, text: str) -> None:
    assert shown(value, code) == text


@pytest.mark.parametrize(
    ("value", "code", "text"),
    [
        (44682, "dd/mm/yyyy", "02/05/2026"), (1.25, "[h]:mm", "30:00"), (-0.0625, "h:mm", "-1:30"),
        (-0.0625, "[h]:mm", "-1:30"), (-0.0625, "h:mm;(h:mm)", "(1:30)"), (2958000, "d/m/yyyy", "2958000"),
        (0.15, "0%", "15%"),
    ],
)  # fmt: skip
def test_a_number_of_a_workbook_from_1904_is_written_as_a_cell_shows_it(value: float, code: str, text: str) -> None:
    assert shown(value, code, from_1904=True) == text


def _cell(name: str, value: str, attributes: str = "") -> str:
    return f'<c r="{name}" {attributes}><v>{value}</v></c>'


def _row(number: int, *cells: str, attributes: str = "") -> str:
    return f'<row r="{number}" {attributes}>{"".join(cells)}</row>'


def test_cells_are_read_as_shown(files: Any) -> None:
    rows = (
        _row(1, _cell("A1", "0", 't="s"'), _cell("C1", "1", 't="s"'))
        + _row(2, _cell("A2", "0.15", 's="1"'), _cell("B2", "1", 't="b"'), _cell("C2", "#DIV/0!", 't="e"'))
        + _row(4, '<c r="B4" t="inlineStr"><is><t>inline\ntext</t></is></c>')
        + _row(5, '<c r="A5"><f>SUM(A1:A2)</f></c>', '<c r="B5" t="str"><f>A1</f><v>worked out</v></c>')
    )
    document = read_document(samples.xlsx(files, [("Costs", f"<sheetData>{rows}</sheetData>")], codes=["0.0%"]))
    assert [page.label for page in document.pages] == ["sheet Costs"]
    assert document.text.split("\n") == [
        f"{samples.WORDS} | | rich",
        "15.0% | TRUE | #DIV/0!",
        "| inline text",
        "=SUM(A1:A2) | worked out",
    ]
    assert document.warnings == ("Formulas without a stored value stand as formulas: 1.",)
    assert (document.kind, document.unit, document.outline[0].title) == ("xlsx", "section", "Costs")


def test_a_long_sheet_repeats_its_head_and_names_its_rows(files: Any) -> None:
    def text(name: str, words: str) -> str:
        return f'<c r="{name}" t="inlineStr"><is><t>{words}</t></is></c>'

    rows = _row(1, text("A1", "Item"), text("B1", "Euros")) + "".join(
        _row(at, text(f"A{at}", f"barrels of oil, lot {at}"), _cell(f"B{at}", str(at))) for at in range(2, 200)
    )
    document = read_document(samples.xlsx(files, [("Costs", f"<sheetData>{rows}</sheetData>"), ("Costs ", rows)]))
    assert document.pages[0].label == "sheet Costs, rows 1–107"
    assert document.pages[1].label == "sheet Costs, rows 108–199"
    assert document.pages[1].text.startswith("Item | Euros\nbarrels of oil, lot 108 | 108\n")
    assert len({page.label for page in document.pages}) == len(document.pages)


def test_what_is_hidden_is_left_out_and_told(files: Any) -> None:
    shown_row = _row(1, _cell("A1", "1"), _cell("B1", "22222"))
    hidden_row = _row(2, _cell("A2", "33333"), attributes='hidden="1"')
    columns = '<cols><col min="2" max="3" hidden="1"/></cols>'
    sheets = [("Costs", f"{columns}<sheetData>{shown_row}{hidden_row}</sheetData>")]
    document = read_document(
        samples.xlsx(files, [*sheets, ('No" state="hidden', f"<sheetData>{shown_row}</sheetData>")])
    )
    assert document.text == "1"
    assert "hidden where the document is shown" in document.warnings[0]


def test_comments_and_text_boxes_stand_beside_the_cells(files: Any) -> None:
    more = [
        (
            "xl/worksheets/_rels/s1.xml.rels",
            relations(("comments", "../comments1.xml"), ("drawing", "../drawings/d1.xml")),
        ),
        ("xl/comments1.xml", '<comments><comment ref="B4"><text><t>Why?</t></text></comment></comments>'),
        ("xl/drawings/d1.xml", "<d><sp><txBody><p><r><t>A box</t></r></p></txBody></sp><pic><cNvPr/></pic></d>"),
    ]  # fmt: skip
    path = samples.xlsx(files, [("Costs", f"<sheetData>{_row(1, _cell('A1', '7'))}</sheetData>")], more)
    document = read_document(path)
    assert [(page.label, page.text) for page in document.pages] == [
        ("sheet Costs", "7"),
        ("sheet Costs, beside the cells", "A box\n\nComment on B4: Why?"),
    ]
    assert document.warnings == ("Pictures without a description, whose words are not read: 1.",)
    assert read_document(path, comments=False).pages[1].text == "A box"


def test_an_old_workbook_is_read_as_shown(files: Any) -> None:
    document = read_document(samples.xls(files))
    assert document.text.split("\n") == ["Item | When | Share", f"{samples.WORDS} | 15/03/2023 | 15%", "TRUE"]
    assert (document.kind, document.pages[0].label) == ("xls", "sheet Costs")
