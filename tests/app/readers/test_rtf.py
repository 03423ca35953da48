"""Rich text files: letters of every code page, headings, tables, numbers, notes, and what is told."""

from __future__ import annotations

from typing import Any

from app.readers import read_document

_HEAD = (
    r"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0\fswiss Arial;}{\f1\fcharset204 Arial Cyr;}{\f2\fcharset2 Symbol;}}"
    r"{\colortbl;\red0;}{\stylesheet{\s0 Normal;}{\s1 heading 1;}}{\info{\title The light}{\author Ada Quill}}"
)


def _rtf(files: Any, body: str) -> Any:
    return files.text("a.rtf", _HEAD + body + "}", "latin-1")


def test_letters_of_every_kind(files: Any) -> None:
    body = r"\pard caf\'e9 \u8364?5 {\f1 \'cc\'e0\'ff\'ea} {\f2 a} \ldblquote so\rdblquote\emdash\u-10179?\u-8704?\par"
    document = read_document(_rtf(files, body))
    assert document.text == "café €5 Маяк α “so”—😀"
    assert (document.title, document.author, document.kind) == ("The light", "Ada Quill", "rtf")


def test_headings_paragraphs_and_looks(files: Any) -> None:
    body = (
        r"\pard\s1 Oil\par\pard\plain The rent is {\strike 480} 520 for 9 m{\super 2}\line and more{\v hidden words}"
        r"{\deleted not}\par\pard\outlinelevel0 Horn\par\pard end\par"
    )
    document = read_document(_rtf(files, body))
    assert [(page.label, page.text) for page in document.pages] == [
        ("Oil", "Oil\n\nThe rent is ~~480~~ 520 for 9 m^2\nand more"),
        ("Horn", "Horn\n\nend"),
    ]
    assert "it is marked as deleted" in " ".join(document.warnings)
    assert "hidden" in " ".join(document.warnings)


def test_program_text_keeps_its_indentation(files: Any) -> None:
    body = "\\pard while lit:\\line     burn()\\line     wait()\\par\\pard The lamp  is out.\\par"
    assert read_document(_rtf(files, body)).text == "while lit:\n    burn()\n    wait()\n\nThe lamp is out."


def test_tables_lists_notes_comments_and_headers(files: Any) -> None:
    body = (
        r"{\header \pard The board of Holm harbour\par}{\footer \pard Draft\par}{\footerr \pard Page \chpgn\par}"
        r"\trowd\cellx1\pard\intbl Year\cell Euros\cell\row\trowd\pard\intbl 2025\cell\cell\row"
        r"\pard{\listtext\tab 1.\tab}Lamp\chftn{\footnote\pard \chftn A note.\par}\par"
        r"{\field{\*\fldinst HYPERLINK x}{\fldrslt linked}} words"
        r"{\*\atnauthor Ben}\chatn{\*\annotation \pard Why?\par}\par"
        r"{\pict\wmetafile8 0102}\par{\*\shppict{\pict\pngblip 89504e47" + "0d\n" * 200 + r"}}\par"
    )
    document = read_document(_rtf(files, body))
    assert [(page.label, page.text) for page in document.pages] == [
        ("opening", "Year | Euros\n2025 |\n\n1. Lamp[1]\n\nlinked words"),
        ("Notes", "1. A note."),
        ("Comments", "Ben: Why?"),
        ("Headers and footers", "The board of Holm harbour\n\nDraft"),
    ]
    assert document.warnings == (
        "Pictures without a description, whose words are not read: 1.",
        "Pictures beside the text that may have words, which are not read: 1.",
    )
