"""Small sound files of office, ebook and text formats, made in code. Each holds the words "nine barrels of oil"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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
    files: Any, slides: Sequence[str], notes: str = "", more: Sequence[tuple[str, str]] = (), name: str = "talk.pptx"
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


MADE: dict[str, Make] = {
    "talk.pptx": lambda files: pptx(files, [shape("Oil", "title") + shape(WORDS), shape("End")], notes="Say it."),
}
"""A sound file of each format, by its name."""
