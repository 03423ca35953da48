# ruff: noqa: E501
"""Books and articles in XML, and feeds: headings, notes, tables, formulas, references."""

from __future__ import annotations

from typing import Any

from app.readers import read_document
from engine.document import Document

_JATS = """<?xml version="1.0"?><!DOCTYPE article PUBLIC "-//NLM//DTD JATS" "JATS.dtd">
<article xmlns:mml="http://www.w3.org/1998/Math/MathML" xmlns:xlink="x"><front>
<journal-meta><journal-id>XYZ</journal-id></journal-meta><article-meta><article-id>10.1/2</article-id>
<title-group><article-title>The lamp of <italic>Holm</italic></article-title></title-group>
<contrib-group><contrib><name><surname>Quill</surname><given-names>Ada</given-names></name></contrib></contrib-group>
<pub-date><year>2024</year></pub-date><abstract><p>We lit it.</p></abstract></article-meta></front>
<body><sec><label>1</label><title>Materials</title><p>The lamp burns oil<sup><xref ref-type="bibr" rid="b1">1</xref></sup>
at 10<sup>6</sup> candles: <inline-formula><alternatives><tex-math>$\\frac12$</tex-math><mml:math><mml:mfrac><mml:mn>1</mml:mn>
<mml:mn>2</mml:mn></mml:mfrac></mml:math></alternatives></inline-formula> a night.</p>
<sec><label>1.1</label><title>Oil</title><list list-type="order"><list-item><p>whale</p></list-item><list-item><p>coal</p></list-item></list></sec></sec>
<sec><title>Results</title><table-wrap><label>Table 1</label><caption><title>Hours</title></caption><table><thead><tr><th>Year</th><th>Hours</th></tr></thead>
<tbody><tr><td>1890</td><td>9</td></tr></tbody></table></table-wrap><fig><label>Figure 1</label><caption><p>The rock.</p></caption><graphic xlink:href="f1.tif"/></fig></sec></body>
<back><ref-list><title>References</title><ref id="b1"><label>1</label><element-citation><name><surname>Bray</surname></name><year>1891</year><source>Ships</source></element-citation></ref></ref-list></back></article>"""
_FB2 = """<?xml version="1.0" encoding="windows-1251"?><FictionBook xmlns="f" xmlns:l="http://www.w3.org/1999/xlink">
<description><title-info><author><first-name>Лев</first-name><last-name>Толстой</last-name></author><book-title>Маяк</book-title><date>1899</date></title-info></description>
<body><title><p>Маяк</p></title><section><title><p>Глава 1</p><p>Свет</p></title><p>Лампа горит<a l:href="#n1" type="note">[1]</a>.</p>
<poem><stanza><v>Одна строка,</v><v>другая.</v></stanza></poem><image l:href="#i"/></section><section><title><p>Глава 2</p></title><p><strikethrough>нет</strikethrough> да</p></section></body>
<body name="notes"><section id="n1"><title><p>1</p></title><p>Примечание.</p></section></body><binary id="i">AAAA</binary></FictionBook>"""
_TEI = """<?xml version="1.0"?><TEI xmlns="http://www.tei-c.org/ns/1.0"><teiHeader><fileDesc><titleStmt><title>Letters</title><author>Ada Quill</author></titleStmt>
<publicationStmt><date when="1890">then</date></publicationStmt></fileDesc></teiHeader><text><body><div><head>To Ben</head>
<p>The <choice><sic>lapm</sic><corr>lamp</corr></choice> burns<note n="a">All night.</note>.<pb n="2"/></p><lg><l>Over the sea</l><l>it goes.</l></lg></div>
<div><head>To Cyr</head><p>On the <hi rend="sup">3</hi>rd <del>not</del> I came by 10<hi rendition="simple:superscript">6</hi> <hi
rend="strikethrough">old</hi> waves.</p><ab type="codeblock">if dark:
    light()</ab></div></body></text></TEI>"""
_DOCBOOK = """<?xml version="1.0"?><book xmlns="http://docbook.org/ns/docbook"><info><title>Guide</title></info><chapter><title>One</title><para>Light it <emphasis role="strikethrough">once</emphasis> twice.</para>
<programlisting>if dark:
    light()</programlisting><informaltable><tgroup><tbody><row><entry>Oil</entry><entry>9</entry></row></tbody></tgroup></informaltable></chapter></book>"""
_RSS = """<?xml version="1.0"?><rss xmlns:content="c" xmlns:dc="d"><channel><title>News of Holm</title><description>Daily</description>
<item><title>Lamp lit</title><pubDate>4 May</pubDate><description>short</description><content:encoded>&lt;p&gt;The lamp &lt;b&gt;burns&lt;/b&gt;.&lt;/p&gt;</content:encoded></item>
<item><title>Oil</title><dc:creator>Ben</dc:creator><description>Nine barrels.</description></item></channel></rss>"""
_ATOM = """<?xml version="1.0"?><feed xmlns="http://www.w3.org/2005/Atom"><title>Holm</title><entry><title>Lamp</title><updated>2024-05-04</updated>
<content type="xhtml"><div xmlns="http://www.w3.org/1999/xhtml"><p>It burns.</p></div></content></entry></feed>"""


def _texts(document: Document) -> dict[str, str]:
    return {page.label: page.text for page in document.pages}


def test_an_article_of_a_journal(files: Any) -> None:
    document = read_document(files.text("a.xml", _JATS))
    assert (document.title, document.author, document.kind) == ("The lamp of Holm", "Ada Quill", "xml")
    assert [(item.title, item.level) for item in document.outline] == [
        ("The lamp of Holm", 0), ("1 Materials", 1), ("Results", 1), ("References", 1),
    ]  # fmt: skip
    texts = _texts(document)
    assert "The lamp burns oil[1] at 10^6 candles: 1/2 a night." in texts["1 Materials"]
    assert "1.1 Oil\n\n1. whale\n\n2. coal" in texts["1 Materials"]
    assert texts["Results"].split("\n\n")[1:] == ["Table 1", "Hours", "Year | Hours\n1890 | 9", "Figure 1", "The rock."]
    assert texts["References"].split("\n\n")[1] == "1 Bray 1891 Ships"
    assert "We lit it." in texts["The lamp of Holm"]
    assert document.warnings == ("Pictures without a description, whose words are not read: 1.",)


def test_a_fictionbook(files: Any) -> None:
    document = read_document(files.text("a.fb2", _FB2, "cp1251"))
    assert (document.title, document.author, document.date) == ("Маяк", "Лев Толстой", "1899")
    texts = _texts(document)
    assert texts["Глава 1 Свет"].split("\n\n")[1:] == ["Лампа горит[1].", "Одна строка,", "другая."]
    assert texts["Глава 2"] == "Глава 2\n\n~~нет~~ да"
    assert texts["1"].endswith("Примечание.")
    zipped = read_document(files.zipped("a.fb2.zip", [("a.fb2", _FB2.encode("cp1251"))]))
    assert _texts(zipped) == texts


def test_an_edition_in_tei(files: Any) -> None:
    document = read_document(files.text("a.xml", _TEI))
    assert (document.title, document.author, document.date) == ("Letters", "Ada Quill", "1890")
    assert _texts(document) == {
        "To Ben": "To Ben\n\nThe lamp burns[a].\n\nOver the sea\n\nit goes.",
        "To Cyr": "To Cyr\n\nOn the 3rd ~~not~~ I came by 10^6 ~~old~~ waves.\n\nif dark:\n    light()",
        "Notes": "a. All night.",
    }


def test_docbook(files: Any) -> None:
    document = read_document(files.text("a.xml", _DOCBOOK))
    assert document.title == "Guide"
    assert "One\n\nLight it ~~once~~ twice.\n\nif dark:\n    light()\n\nOil | 9" in document.text


def test_a_fictionbook_has_its_pictures_and_its_program_text(files: Any) -> None:
    """A picture with a description was not told, although its words are not read."""
    data = "iVBORw0KGgo" + "A" * 120
    body = (
        "<section><title><p>One</p></title><p><code>while lit:</code></p><p><code>    burn()</code></p>"
        '<image l:href="#a.png" alt="The range"/><p>The lamp is out.</p></section>'
    )
    book = (
        '<FictionBook xmlns="http://www.gribuser.ru/xml/fictionbook/2.0" xmlns:l="http://www.w3.org/1999/xlink">'
        f'<body>{body}</body><binary id="a.png" content-type="image/png">{data}</binary></FictionBook>'
    )
    document = read_document(files.text("a.fb2", book))
    assert document.text == "One\n\nwhile lit:\n    burn()\n\n[Image: The range]\n\nThe lamp is out."
    assert document.warnings == ("Pictures beside the text that may have words, which are not read: 1.",)
    assert document.pages[0].pictures == 1


def test_notes_and_lists_as_pandoc_writes_them(files: Any) -> None:
    docbook = read_document(
        files.text("a.xml", "<article><para>Rent<footnote><para>From May.</para></footnote> is 5.</para></article>")
    )
    assert _texts(docbook)["Notes"] == "1. From May."
    assert docbook.pages[0].text == "Rent[1] is 5."
    jats = read_document(
        files.text(
            "b.xml",
            '<article><body><p>Rent.<xref ref-type="fn" rid="f">1</xref> End.</p></body><back><fn-group><fn id="f">'
            "<label>1</label><p>From May.</p></fn></fn-group></back></article>",
        )
    )
    assert jats.text.split("\n\n") == ["Rent.[1] End.", "1. From May."]
    tei = read_document(
        files.text(
            "c.xml",
            '<TEI><text><body><list type="ordered:arabic"><item><p>Lamp</p></item></list><quote><p>It burns.</p></quote>'
            '<list type="definition"><label>Oil</label><item><p>Fuel.</p></item></list></body></text></TEI>',
        )
    )
    assert tei.text.split("\n\n") == ["1. Lamp", "It burns.", "Oil", "Fuel."]


def test_feeds(files: Any) -> None:
    rss = read_document(files.text("a.xml", _RSS))
    assert _texts(rss) == {
        "opening": "News of Holm\n\nDaily",
        "Lamp lit": "Lamp lit\n\n4 May\n\nThe lamp burns.",
        "Oil": "Oil\n\nBen\n\nNine barrels.",
    }
    atom = read_document(files.text("a.atom", _ATOM))
    assert _texts(atom)["Lamp"] == "Lamp\n\n2024-05-04\n\nIt burns."


def test_an_article_of_html_is_a_page(files: Any) -> None:
    assert read_document(files.text("a.html", "<article><h1>Lamp</h1><p>It burns.</p></article>")).kind == "html"
