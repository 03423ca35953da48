"""Small sound files of office, ebook and text formats, made in code. Each holds the words "nine barrels of oil"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import xlwt

WORDS = "nine barrels of oil"
_DRAWING = 'xmlns:a="http://schemas.openxmlformats.org/drawingml/2006/main"'
_SLIDES = 'xmlns:p="http://schemas.openxmlformats.org/presentationml/2006/main"'
_LINKS = 'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships"'
_KIND = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
Make = Callable[[Any], Path]


def types(part: str, kind: str) -> tuple[str, str]:
    """The list of the types of parts of an Office file with one main part."""
    name = f"application/vnd.openxmlformats-officedocument.{kind}.main+xml"
    return "[Content_Types].xml", f'<Types><Override PartName="/{part}" ContentType="{name}"/></Types>'


def relations(*found: tuple[str, str]) -> str:
    """Relations "r1", "r2", ... as (kind, target)."""
    rows = (
        f'<Relationship Id="r{at}" Type="{_KIND}/{kind}" Target="{target}"/>'
        for at, (kind, target) in enumerate(found, 1)
    )
    return f"<Relationships>{''.join(rows)}</Relationships>"


def shape(text: str, kind: str = "") -> str:
    """A shape of a slide; ``text`` is a paragraph, or paragraphs as XML."""
    inner = text if text.startswith("<a:p>") else f"<a:p><a:r><a:t>{text}</a:t></a:r></a:p>"
    place = f'<p:ph type="{kind}"/>' if kind else ""
    return (
        f'<p:sp><p:nvSpPr><p:cNvPr id="1" name=""/><p:nvPr>{place}</p:nvPr></p:nvSpPr>'
        f"<p:txBody>{inner}</p:txBody></p:sp>"
    )


def pptx(
    files: Any,
    slides: Sequence[str],
    notes: str = "",
    more: Sequence[tuple[str, str | bytes]] = (),
    name: str = "talk.pptx",
) -> Path:
    """A presentation of slides, each as the XML of its shapes; ``notes`` are those of the first slide."""
    entries = [types("ppt/presentation.xml", "presentationml.presentation")]
    ids = "".join(f'<p:sldId id="{255 + at}" r:id="r{at}"/>' for at in range(1, len(slides) + 1))
    entries.append(
        (
            "ppt/presentation.xml",
            f"<p:presentation {_SLIDES} {_LINKS}><p:sldIdLst>{ids}</p:sldIdLst></p:presentation>",
        )
    )
    links = [("slide", f"slides/slide{at}.xml") for at in range(1, len(slides) + 1)]
    entries.append(("ppt/_rels/presentation.xml.rels", relations(*links)))
    for at, shapes in enumerate(slides, 1):
        show = ' show="0"' if "HIDDEN" in shapes else ""
        entries.append((f"ppt/slides/slide{at}.xml", slide(shapes, show)))
    if notes:
        entries.append(("ppt/slides/_rels/slide1.xml.rels", relations(("notesSlide", "../notesSlides/n1.xml"))))
        entries.append(("ppt/notesSlides/n1.xml", slide(shape(notes, "body") + shape("1", "sldNum"))))
    path: Path = files.zipped(name, [*entries, *more])
    return path


def slide(shapes: str, attributes: str = "") -> str:
    return (
        f"<p:sld {_SLIDES} {_DRAWING} {_LINKS} xmlns:mc='mc' xmlns:m='m'{attributes}>"
        f"<p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:sld>"
    )


def xlsx(
    files: Any, sheets: Sequence[tuple[str, str]], more: Sequence[tuple[str, str]] = (), codes: Sequence[str] = ()
) -> Path:
    """A workbook of sheets, each as a name (with attributes) and the XML of its rows; style n + 1 has the code n."""
    names = "".join(f'<sheet name="{name}" sheetId="{at}" r:id="r{at}"/>' for at, (name, _) in enumerate(sheets, 1))
    links = [("worksheet", f"worksheets/s{at}.xml") for at in range(1, len(sheets) + 1)]
    formats = "".join(f'<numFmt numFmtId="{200 + at}" formatCode="{code}"/>' for at, code in enumerate(codes))
    styles = "".join(f'<xf numFmtId="{200 + at}"/>' for at in range(len(codes)))
    entries = [
        types("xl/workbook.xml", "spreadsheetml.sheet"),
        ("xl/workbook.xml", f"<workbook {_LINKS}><sheets>{names}</sheets></workbook>"),
        ("xl/_rels/workbook.xml.rels", relations(*links, ("styles", "styles.xml"), ("sharedStrings", "strings.xml"))),
        (
            "xl/styles.xml",
            f"<styleSheet><numFmts>{formats}</numFmts><cellXfs><xf numFmtId='0'/>{styles}</cellXfs></styleSheet>",
        ),
        ("xl/strings.xml", f"<sst><si><t>{WORDS}</t></si><si><r><t>ri</t></r><r><t>ch</t></r></si></sst>"),
        *((f"xl/worksheets/s{at}.xml", f"<worksheet>{rows}</worksheet>") for at, (_, rows) in enumerate(sheets, 1)),
    ]
    path: Path = files.zipped("costs.xlsx", [*entries, *more])
    return path


def xls(files: Any) -> Path:
    """An old workbook with formats, a formula's text, a hidden sheet and a hidden row."""
    book = xlwt.Workbook()
    sheet = book.add_sheet("Costs")
    day, share = xlwt.easyxf(num_format_str="dd/mm/yyyy"), xlwt.easyxf(num_format_str="0%")
    for column, head in enumerate(("Item", "When", "Share")):
        sheet.write(0, column, head)
    sheet.write(1, 0, WORDS)
    sheet.write(1, 1, 45_000, day)
    sheet.write(1, 2, 0.15, share)
    sheet.write(2, 0, True)
    path: Path = files.folder / "costs.xls"
    book.save(str(path))
    return path


def odf(files: Any, kind: str, body: str, styles: str = "", more: Sequence[tuple[str, str | bytes]] = ()) -> Path:
    """An OpenDocument file; ``kind`` is "text", "presentation" or "spreadsheet"."""
    spaces = " ".join(f"xmlns:{name}='{name}'" for name in ("office", "text", "table", "draw", "style", "presentation"))
    spaces += " xmlns:fo='fo' xmlns:svg='svg' xmlns:xlink='xlink' xmlns:dc='dc' xmlns:m='m'"
    content = (
        f"<office:document-content {spaces}><office:automatic-styles>{styles}</office:automatic-styles>"
        f"<office:body><office:{kind}>{body}</office:{kind}></office:body></office:document-content>"
    )
    entries = [("mimetype", f"application/vnd.oasis.opendocument.{kind}"), ("content.xml", content), *more]
    ending = {"text": "odt", "presentation": "odp", "spreadsheet": "ods"}[kind]
    path: Path = files.zipped(f"a.{ending}", entries)
    return path


def page(body: str, attributes: str = "") -> str:
    """A slide of an OpenDocument presentation with one box."""
    return f"<draw:page {attributes}><draw:frame><draw:text-box>{body}</draw:text-box></draw:frame></draw:page>"


_SHEET = (
    "<table:table table:name='Oil'><table:table-row><table:table-cell>"
    f"<text:p>{WORDS}</text:p></table:table-cell></table:table-row></table:table>"
)
_BOOK = f"<?xml version='1.0'?><FictionBook><body><p>{WORDS}</p></body></FictionBook>"
_ARTICLE = f"<article><body><sec><title>Oil</title><p>{WORDS}</p></sec></body></article>"
_NEWS = f"<rss><channel><item><title>Oil</title><description>{WORDS}</description></item></channel></rss>"
_SAVED = (
    "From: <Saved by Blink>\nSubject: Oil\nMIME-Version: 1.0\nContent-Type: {}; boundary=x\n\n--x\n"
    "Content-Type: text/html; charset=utf-8\nContent-Transfer-Encoding: quoted-printable\n\n"
    f"<html><body><h1>Oil</h1><p>{WORDS.replace(' ', '=20')}</p></body></html>\n--x--\n"
)
MADE: dict[str, Make] = {
    "costs.xlsx": lambda files: xlsx(
        files, [("Costs", '<sheetData><row r="1"><c r="A1" t="s"><v>0</v></c></row></sheetData>')]
    ),
    "costs.xls": xls,
    "a.odt": lambda files: odf(files, "text", f"<text:h text:outline-level='1'>Oil</text:h><text:p>{WORDS}</text:p>"),
    "a.odp": lambda files: odf(files, "presentation", page(f"<text:p>{WORDS}</text:p>")),
    "a.ods": lambda files: odf(files, "spreadsheet", _SHEET),
    "a.fb2": lambda files: files.text("a.fb2", _BOOK),
    "a.xml": lambda files: files.text("a.xml", _ARTICLE),
    "a.rss": lambda files: files.text("a.rss", _NEWS),
    "a.rtf": lambda files: files.text("a.rtf", rf"{{\rtf1\ansi\pard {WORDS}\par}}"),
    "a.mhtml": lambda files: files.text("a.mhtml", _SAVED.format("multipart/related")),
    "a.zip": lambda files: files.zipped("a.zip", [("a.txt", WORDS), ("b/b.html", "<p>more</p>")]),
    "talk.pptx": lambda files: pptx(files, [shape("Oil", "title") + shape(WORDS), shape("End")], notes="Say it."),
}
"""A sound file of each format, by its name."""
