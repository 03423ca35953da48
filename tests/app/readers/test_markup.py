"""What a page of HTML says: tables, numbers, formulas, notes, forms; and that nothing is lost without being counted."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.readers import markup, read_document
from app.readers.css import Styles
from tests.app.readers.conftest import CONTAINER
from tests.tally import count

_MML = "http://www.w3.org/1998/Math/MathML"


def _text(body: str) -> str:
    return "\n\n".join(block.text for block in markup.read(body).blocks if block.text)


TABLES = {
    "a grid in a small table in a cell": (
        "<table><tr><td><table><tr><td><table><tr><td>0<td>a<tr><td>c<td>d</table><td>y</table><td>z</table>",
        "y | z\n  0 | a\n  c | d",
    ),
    "empty cells keep their place": (
        "<table><tr><th>Place<th>Q1<th>Q2<th>Q3<tr><td>North<td><td>&nbsp;<td>12<tr><td>South<td>7<td><td></table>",
        "Place | Q1 | Q2 | Q3\nNorth | | | 12\nSouth | 7 | |",
    ),
    "paragraphs in a cell": (
        "<table><tr><td><p>Lamp</p><p>(oil)</p></td><td><div>4</div></td></tr><tr><td><p>Rope<td><p>9</table>",
        "Lamp (oil) | 4\nRope | 9",
    ),
    "merged cells": (
        "<table><tr><th rowspan=2>Place<th colspan=2>1891<th>1892<tr><th>Q1<th>Q2<th>Q1"
        "<tr><td>North<td>1<td>2<td>3<tr><td colspan=4>All numbers are ships</table>",
        "Place | 1891 | | 1892\n| Q1 | Q2 | Q1\nNorth | 1 | 2 | 3\nAll numbers are ships",
    ),
    "a table in a cell": (
        "<table><tr><td>North<td>two lamps<table><tr><td>oil<td>3<tr><td>gas<td>4</table><tr><td>South<td>none</table>",
        "North | two lamps\n  oil | 3\n  gas | 4\nSouth | none",
    ),
    "a small table in a cell": ("<table><tr><td>A<td><table><tr><td>B</table></table>", "A | B"),
    "a table that lays out a page": (
        "<table><tr><td><a href='/'>Home</a><td><h1>Light</h1><p>The lamp.<table><tr><td>a<td>1</table></table>",
        "Home\n\nLight\n\nThe lamp.\n\na | 1",
    ),
    "an empty column among many": (
        "<table><tr><th>Q1<th>Q2<th><th>Q4<tr><td>1<td>2<td><td>4</table>",
        "Q1 | Q2 | | Q4\n1 | 2 | | 4",
    ),
    "a foot that is written first": (
        "<table><thead><tr><th>Item<th>Sum</thead><tfoot><tr><td>Total<td>9</tfoot><tr><td>Oil<td>9</table>",
        "Item | Sum\nOil | 9\nTotal | 9",
    ),
    "a page within a page": (
        '<p>Out.</p><iframe srcdoc="&lt;p&gt;In &amp;amp; out.&lt;/p&gt;">no</iframe>',
        "Out.\n\nIn & out.",
    ),
    "a column that is only a gap": ("<table><tr><td>a<td><td>1<tr><td>b<td><td>2</table>", "a | 1\nb | 2"),
    "a line end and a list in a cell": (
        "<table><tr><td>Bring<td><ul><li>a rope<li>oil</ul><tr><td>Leave<td>at<br>nine</table>",
        "Bring | • a rope • oil\nLeave | at nine",
    ),
    "a caption": ("<table><caption>Ships</caption><tr><td>a<td>1</table>", "Ships\n\na | 1"),
    "spans of an attack": ("<table><tr>" + "<td colspan=9999999 rowspan=9999999>x" * 3 + "</table>", "x | x | x"),
}
LISTS = {
    "numbers from a start, and letters within": (
        "<ol start=4><li>Ring<li>Light<ol type=a><li>Trim<li><p>Fill</ol><li>Row</ol>",
        "4. Ring\n\n5. Light\n\n  a. Trim\n\n  b. Fill\n\n6. Row",
    ),
    "counted down": ("<ol reversed><li>c<li>b<li>a</ol>", "3. c\n\n2. b\n\n1. a"),
    "a value of its own": ("<ol><li>one<li value=9>nine<li>ten</ol>", "1. one\n\n9. nine\n\n10. ten"),
    "numbers that the text has": ("<ol><li>7. Ring<li>(8) Light</ol>", "7. Ring\n\n(8) Light"),
    "no numbers": ("<ol style='list-style-type:none'><li>A rope</ol>", "A rope"),
    "no numbers by a style sheet": ("<style>.toc li {list-style: none}</style><ol class=toc><li>A rope</ol>", "A rope"),
    "Roman": ("<ol style='list-style-type: upper-roman' start=3><li>x<li>y</ol>", "III. x\n\nIV. y"),
    "leading zeros": ("<style>ol.z { list-style: decimal-leading-zero inside }</style><ol class=z><li>x", "01. x"),
    "ticks": (
        "<ul class=task-list><li><input type=checkbox checked disabled> wick<li><input type=checkbox> oil</ul>",
        "☒ wick\n\n☐ oil",
    ),
    "numbers that Google writes": (
        '<style>ol.k-0{list-style-type:none}.k-0 > li:before{content:"" counter(c-0,decimal) ". "}.k-1 > li:before'
        '{content:"" counter(c-0,decimal) "." counter(c-1,lower-latin) ") "}ol.k-1{list-style-type:none}</style>'
        "<ol class='k-0 start' start=3><li>Ring</ol><ol class='k-1 start'><li>Trim<li>Fill</ol>"
        "<ol class=k-0 start=4><li>Row</ol>",
        "3. Ring\n\n3.a) Trim\n\n3.b) Fill\n\n4. Row",
    ),
    "bullets that Google writes": (
        '<style>ul.k-0{list-style-type:none}.k-0>li:before{content:"\\0025cf   "}ul.k-1{list-style-type:none}'
        '.k-1 > li:before{content:"\\002610   "}.k-2{list-style:none}.k-2>li::before{content:"\\d800\\0"}</style>'
        "<ul class='k-0 start'><li>Pears</ul><ul class=k-1><li>Call</ul><ul class=k-2><li>Bare</ul>",
        "• Pears\n\n☐ Call\n\nBare",
    ),
    "a mark that is only a point": ("<ol style='list-style-type: \".\"'><li>x</ol>", ". x"),
    "a list that begins with a list": ("<ol><li><ol type=i><li>x</ol></ol>", "1. i. x"),
}
TEXT = {
    "powers and units": ("<p>10<sup>6</sup> m<sup>3</sup> at 10<sup>-3</sup>", "10^6 m^3 at 10^-3"),
    "ordinals and titles stay": ("<p>the 1<sup>st</sup> of M<sup>r</sup> X, V<sup>e</sup>", "the 1st of Mr X, Ve"),
    "chemistry and indexes": ("<p>H<sub>2</sub>SO<sub>4</sub> v<sub>max</sub> y<sub>1</sub>", "H2SO4 v_max y_1"),
    "fractions of raised and lowered numbers": (
        "<p>take 2<sup>1</sup>/<sub>2</sub> or <sup>3</sup>⁄<sub>4</sub> or a<sup>1</sup>/<sub>3</sub>",
        "take 2 1/2 or 3⁄4 or a1/3",
    ),
    "raised by a style": ("<p>10<span style='vertical-align:super'>6</span>", "10^6"),
    "figures after a script": ("<p>log<sub>10</sub>5 or y<sup>2</sup>3", "log_10 5 or y^2 3"),
    "notes by links": ("<p>1871<sup><a href='#n3'>3</a></sup> it<a href='#n4'><sup>4</sup></a>", "1871[3] it[4]"),
    "a formula without markup": ("<p>E = <em>mc</em><sup>2</sup>, but of<sup>3</sup>", "E = mc^2, but of[3]"),
    "a note of LibreOffice": ("<p><a href='#a' name='b'>1</a>Colza<p><a href='#a'>2</a>. Rope", "1 Colza\n\n2. Rope"),
    "signs of Symbol": ("<p><span style='font-family:Symbol'>a</span> <font face=Wingdings>þ</font>", "α ☑"),
    "a choice of one": ("<label><input type=radio checked>Yes</label><label><input type=radio>No", "☒ Yes ☐ No"),
    "notes with a bracket, and notes in Japanese": ("<p>word<sup>1)</sup> 第1章<sup>2</sup>", "word[1)] 第1章[2]"),
    "an initial in a block of its own": ("<div class='drop-cap'>T</div><p>he keeper", "The keeper"),
    "a paragraph with an initial": ("<p class=dropcap><span>T</span>he keeper<p class=dropcap>A", "The keeper\n\nA"),
    "the number of a heading": ("<h2><span class=no>1.2</span>Scope</h2>", "1.2 Scope"),
    "a link back from a note": ("<p>Colza.<a href='#r1'>↩︎</a>", "Colza."),
    "a note that has brackets": ("<p>lost<sup><a href='#c'>[3]</a></sup>", "lost[3]"),
    "readings": ("<p><ruby>東<rt>とう</rt>京<rt>きょう</rt></ruby>に", "東京(とうきょう)に"),
    "readings with brackets": ("<p><ruby>住<rp>(</rp><rt>す</rt><rp>)</rp></ruby>む", "住(す)む"),
    "dots of emphasis are no reading": ("<p><ruby>住<rt>﹅</rt></ruby>む", "住む"),
    "a page number within a word": ("<p>key<span epub:type='pagebreak' id=p>12</span>board", "keyboard"),
    "a page number of Gutenberg": ("<p>lit <span class=pagenum>[Pg 12]</span>the lamp", "lit the lamp"),
    "an element of pages that holds text": ("<div class=pagebreak>The lamp burned.</div>", "The lamp burned."),
    "a choice": ("<p>Status: <select><option>Single<option selected>Widowed</select>.", "Status: Widowed."),
    "an entry": ("<p>Name: <input value='Ada Quill'>, <input type=hidden value=x>", "Name: Ada Quill,"),
    "an initial that is a picture": ("<p><img alt=T src=t.png>he keeper", "The keeper"),
    "a heading that is a picture": ("<h1><img alt='The Light' src=t.png></h1>", "The Light"),
    "a picture that says something": ("<p>a</p><img alt='Three ships at nine'>", "a\n\n[Image: Three ships at nine]"),
    "a picture without a name": ("<p>a<img alt='image 3'><img alt='IMG_0012.jpg'><img alt='cover'>", "a"),
    "a picture with its caption": ("<figure><img alt='Ships'><figcaption>Ships</figcaption></figure>", "Ships"),
    "text in a drawing": (
        "<p>a</p><svg><title>x</title><text y=1>The map</text><text y=1>shows</text><text y=9>ships</text></svg>",
        "a\n\nThe map shows\nships",
    ),
    "a hidden note": (
        "<p>oil<a epub:type=noteref href='#n'>1</a>.<aside epub:type=footnote id=n hidden><p>Colza.</aside>",
        "oil[1].\n\n[1] Colza.",
    ),
    "a hidden note of other programs": (
        "<p>oil<a class=noteref href='#fn1'>1</a><div id=fn1 style='display:none'>Colza.</div>",
        "oil[1]\n\nColza.",
    ),
    "what a book offers for other readers": (
        "<epub:switch><epub:case required-namespace='MathML'><math><mi>x</mi></math>"
        "</epub:case><epub:default>y</epub:default></epub:switch>",
        "x",
    ),
    "and where no reader knows it": (
        "<epub:switch><epub:case required-namespace=chem>x</epub:case><epub:default>y</epub:default></epub:switch>",
        "y",
    ),
}
FORMULAS = {
    "a quarter": ("<p>The dose is <math><mfrac><mn>1</mn><mn>4</mn></mfrac></math> of it", "The dose is 1/4 of it"),
    "two and a half": ("<math><mn>2</mn><mfrac><mn>1</mn><mn>2</mn></mfrac></math>", "2 1/2"),
    "a number before it": ("<p>2<math><mfrac><mn>1</mn><mn>2</mn></mfrac></math>", "2 1/2"),
    "roots and powers": (
        "<math><mi>x</mi><mo>=</mo><mfrac><mrow><mo>-</mo><mi>b</mi><mo>±</mo><msqrt><msup><mi>b</mi><mn>2</mn></msup>"
        "<mo>-</mo><mn>4</mn><mi>a</mi><mi>c</mi></msqrt></mrow><mrow><mn>2</mn><mi>a</mi></mrow></mfrac></math>",
        "x=(-b±√(b^2-4ac))/(2a)",
    ),
    "a sum": (
        "<math><munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover>"
        "<msub><mi>x</mi><mi>i</mi></msub></math>",
        "∑_(i=1)^n x_i",
    ),
    "a matrix": (
        "<math><mo>(</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mn>2</mn></mtd></mtr><mtr><mtd><mn>3</mn></mtd><mtd><mn>4</mn></mtd></mtr>"
        "</mtable><mo>)</mo></math>",
        "(1, 2; 3, 4)",
    ),
    "TeX first, and once": (
        f"<math xmlns='{_MML}' alttext='E'><semantics><mi>E</mi><annotation encoding='application/x-tex'>"
        "{\\displaystyle E=mc^{2}}</annotation></semantics></math>",
        "E=mc^{2}",
    ),
    "Wikipedia": (
        "<p>by <span class=mwe-math-element><span class='mwe-math-mathml-a11y' style='display: none;'><math><semantics>"
        "<mi>g</mi><annotation encoding='application/x-tex'>{\\displaystyle g}</annotation></semantics></math></span>"
        "<img class='mwe-math-fallback-image-inline' alt='{\\displaystyle g}'></span> is",
        "by g is",
    ),
    "Wikipedia, pictures only": ("<p>by <img class='mwe-math-fallback-image-inline' alt='{\\displaystyle g}'>", "by g"),
    "KaTeX": (
        "<p>by <span class=katex><span class=katex-mathml><math><semantics><mi>g</mi><annotation encoding="
        "'application/x-tex'>g_0</annotation></semantics></math></span><span class=katex-html aria-hidden=true>g0",
        "by g_0",
    ),
    "MathJax": (
        '<p>by <i class=MathJax_Preview>g0</i><span class=MathJax>g0</span><script type="math/tex">g_0</script>.',
        "by g_0.",
    ),
    "a page of Word": (
        "<p>is <!--[if gte msEquation 12]><m:oMath><m:f><m:num><m:r><m:t>1</m:t></m:r></m:num><m:den><m:r><m:t>4</m:t>"
        "</m:r></m:den></m:f></m:oMath><![endif]-->.",
        "is 1/4.",
    ),
    "other words where the formula is empty": ("<math alttext='a+b'></math>", "a+b"),
}
STRUCK = {
    "a word": ("<p>Fare <s>45</s> 39</p>", "Fare ~~45~~ 39"),
    "an old element": ("<p>Fare <strike>45 <b>euros</b></strike> 39</p>", "Fare ~~45 euros~~ 39"),
    "paragraphs": ("<del><p>One.</p><p>Two.</p></del><p>Three.</p>", "~~One.~~\n\n~~Two.~~\n\nThree."),
    "by an attribute": ("<p style='text-decoration: line-through'>Old.</p><p>New.</p>", "~~Old.~~\n\nNew."),
    "by a class": ("<style>.o{text-decoration-line:line-through}</style><p>a <i class=o>b</i> c", "a ~~b~~ c"),
    "not if underlined": ("<style>p{text-decoration:underline}</style><p>kept", "kept"),
    "in a cell": ("<table><tr><td>Ada<td><s>4</s> 5</table>", "Ada | ~~4~~ 5"),
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [pytest.param(*row, id=name) for table in (TABLES, LISTS, TEXT, FORMULAS, STRUCK) for name, row in table.items()],
)
def test_a_page_is_read_as_it_is_shown(body: str, expected: str) -> None:
    assert _text(body) == expected


def test_a_mark_after_a_formula_in_it_is_raised() -> None:
    assert _text("<p>10<sup><math><mn>6</mn></math></sup> ships") == "10^6 ships"


def test_the_header_of_a_long_table_is_said_again() -> None:
    rows = "".join(f"<tr><td>Ship {at}<td>{at}<td>{at * 2}" for at in range(300))
    blocks = markup.read(f"<table><tr><th>Name<th>Masts<th>Guns{rows}</table>").blocks
    assert len(blocks) > 2
    assert all(block.text.startswith("Name | Masts | Guns\nShip ") for block in blocks)
    assert re.findall(r"Ship (\d+) \|", "\n".join(block.text for block in blocks)) == [str(at) for at in range(300)]


def test_style_sheets_outside_of_the_page() -> None:
    styles = Styles("@media print { ol { list-style: none } } .gone{display:none}", "ol{list-style-type:lower-greek}")
    found = markup.read("<ol><li>x<li>y</ol><p class=gone>no</p>", styles=styles)
    assert [block.text for block in found.blocks] == ["α. x", "β. y"]
    assert found.left_out == Counter(hidden=2)


_HOSTILE = {
    "formulas in formulas": "<math>" + "<mrow><mfrac>" * 30_000 + "<mn>7</mn>",
    "tables in tables": "<table><tr><td>" * 5_000 + "7",
    "lists in lists": "<ol><li>" * 5_000 + "7",
    "raised and raised": "<sup>" * 3_000 + "7",
    "readings in readings": "<ruby>7<rt>" * 5_000 + "a",
    "choices in choices": "<select><option>" * 2_000 + "7",
    "drawings in drawings": "<svg><text y=1>" * 10_000 + "7",
    "a style sheet of braces": "<style>" + "@a{b{}" * 50_000 + "</style>7",
    "pictures": "<p>7" + "<img alt='F = m a'>" * 20_000,
    "items counted down": "<ol reversed>" + "<li>7" * 5_000 + "</ol>",
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_markup_that_would_take_for_ever(name: str) -> None:
    assert "7" in _text(_HOSTILE[name])
    count("hostile documents")


_words = st.text(st.sampled_from("abcxyz 0123αß漢"), min_size=1, max_size=12)
_INLINE = (
    "<b>{}</b>",
    "<sup>{}</sup>",
    "<sub>{}</sub>",
    "<ruby>{}<rt>xy</rt></ruby>",
    "<a href='#n'>{}</a>",
    "<q>{}</q>",
    "{}<br>",
)
_AROUND = (
    "<p>{}</p>",
    "<div>{}</div>",
    "<ol><li>{}</ol>",
    "<ul><li><p>{}</p></ul>",
    "<h2>{}</h2>",
    "<center>{}</center>",
    "<table><tr><td>{}<td>z</table>",
    "<table><tr><td rowspan=2>{}<td><p>a</p><p>b</p><tr><td>c</table>",
    "<pre>{}</pre>",
    "<p hidden>{}</p>",
    "<svg><text>{}</text></svg>",
    "<select><option>{}<option>q</select>",
    "<dl><dt>{}<dd>q</dl>",
    "<noscript>{}</noscript>",
    "<span class=pagenum>12</span>{}",
)
_bodies = st.recursive(
    st.one_of(_words, st.tuples(st.sampled_from(_INLINE), _words).map(lambda pair: pair[0].format(pair[1]))),
    lambda inner: st.tuples(st.sampled_from(_AROUND), st.lists(inner, min_size=1, max_size=3)).map(
        lambda pair: pair[0].format("".join(pair[1]))
    ),
    max_leaves=12,
)


def _letters(text: str) -> Counter[str]:
    return Counter(sign for sign in text if sign.isalnum())


@given(_bodies)
def test_text_never_shrinks_in_silence(body: str) -> None:
    """Every letter between the tags is among the blocks, or it was counted with the reason why not."""
    found = markup.read(f"<p>start</p>{body}")
    source = _letters("start" + re.sub(r"<[^>]*>", " ", body))
    missing = source - _letters("".join(block.text for block in found.blocks))
    assert sum(missing.values()) <= sum(found.left_out.values())


def test_parts_in_files_of_their_own_are_said(files: Any) -> None:
    page = "<p>The lamp.</p><iframe src='notes/a.html'></iframe><iframe src='https://ads.example/x.html'></iframe>"
    assert read_document(files.text("a.html", page)).warnings == (
        "1 part of the page is in another file and not read: notes/a.html. Open what you need by itself.",
    )


def test_a_large_hidden_part_is_said(files: Any) -> None:
    page = f"<html><body><p>{'The lamp burned. ' * 9}<p hidden>{'Hidden words. ' * 4}<p>End."
    assert read_document(files.text("a.html", page)).warnings == (
        "27% of the text was left out: it is hidden where the document is shown.",
    )


def _read(files: Any, body: str, head: str = "") -> Any:
    return read_document(files.text("a.html", f"<html><head>{head}</head><body>{body}</body></html>"))


def test_nested_lists_of_a_page_are_indented(files: Any) -> None:
    body = "<ul><li>Bray<ul><li>Aurora</li></ul></li><li>Sule<ol><li>Cutter<ol type=a><li>tender</ol></ol></ul>"
    text = _read(files, body).text
    assert text.split("\n\n") == ["• Bray", "  • Aurora", "• Sule", "  1. Cutter", "    a. tender"]


def test_declared_shadow_trees_are_read_and_other_templates_are_not(files: Any) -> None:
    body = (
        "<x-a><template shadowrootmode=open><style>p{color:red}</style><p>Lit on 4 May.</p><slot></slot></template>"
        "<p>By the keeper.</p></x-a><template><p>not shown</p></template>"
    )
    assert _read(files, body).text == "Lit on 4 May.\n\nBy the keeper."


def test_white_space_that_a_page_shows_is_kept(files: Any) -> None:
    body = (
        '<div class="w">Ada: Oil?\nBen: No,\n  - wicks</div><textarea>Dear board,\nout.</textarea>'
        '<div class="w"><p style="white-space: normal">a\n  b</p></div><p>so <code class="w">x  = 1</code>\n end</p>'
    )
    text = _read(files, body, "<style>.w{white-space:pre-wrap}</style>").text
    assert text.split("\n\n") == ["Ada: Oil?\nBen: No,\n  - wicks", "Dear board,\nout.", "a b", "so x  = 1 end"]


def test_program_text_in_cells_keeps_its_lines(files: Any) -> None:
    numbered = "<table><tr><td><pre>1\n2</pre></td><td><pre>if x:\n    y()</pre></td></tr></table>"
    cell = '<td style="white-space:pre">'
    rows = f"<table><tr><td>1</td>{cell}if x:</td></tr><tr><td>2</td>{cell}    y()</td></tr></table>"
    assert _read(files, numbered).text == _read(files, rows).text == "1 | if x:\n2 |     y()"
    mixed = "<table><tr><td>Name</td><td>Use</td></tr><tr><td>f</td><td><pre>f(\n  x)</pre></td></tr></table>"
    assert _read(files, mixed).text == "Name | Use\nf | f(\n  x)"


def test_signs_of_style_sheets_and_names_of_icons_are_read(files: Any) -> None:
    style = (
        '<style>.ok::before{content:"\\2713"} td.no:before{content:"✗"} .x::after{content:" (" attr(data-n) ")"}'
        '.fix::after{content:".";visibility:hidden} .fa::before{content:"\\f00c"}'
        '.gone::before{content:"no";display:none}</style>'
    )
    cells = (
        '<td class="ok"></td><td class="no"></td><td><i role="img" aria-label="yes"></i></td><td><svg><title>no</title>'
        '<path d="M0 0"/></svg></td><td><svg role="img" aria-label="yes"><path/></svg></td>'
        '<td class="fa fix gone">7</td>'
    )
    text = _read(files, f'<table><tr>{cells}</tr></table><p class="x" data-n="9">Ships</p>', style).text
    assert text == "✓ | ✗ | yes | no | yes | 7\n\nShips (9)"
    silent = '<p><span aria-label="Menu">words</span><i aria-hidden="true" title="x"></i></p>'
    assert _read(files, silent).text == "words"


def test_pictures_without_a_description_are_told_in_pages(files: Any) -> None:
    others = '<img src="i.png" width="16"><img src="d.png" alt=""><img src="s.png" alt="A lamp">'
    page = _read(files, f'<p>Words<img src="t.png">{others}</p>')
    assert page.warnings == ("Pictures without a description, whose words are not read: 1.",)


def test_xhtml_of_books(files: Any) -> None:
    head = '<?xml version="1.0"?><!DOCTYPE html [<!ENTITY wick "a wick &amp; oil"> <!ENTITY lamp "the lamp">]>'
    text = f"{head}<html><body><p>&lamp; <![CDATA[burns < nine]]> hours</p></body></html>"
    book = read_document(files.epub("a.epub", [("a.xhtml", text), ("b.xhtml", "<p>more</p>")]))
    assert "the lamp burns < nine hours" in book.text
    package = (
        "<package><metadata/><manifest><item id='one' href='a.html' media-type='application/xhtml+xml'/></manifest>"
        "<spine><itemref idref='one'/><itemref idref='two'/></spine></package>"
    )
    path = files.zipped(
        "b.epub", [("META-INF/container.xml", CONTAINER), ("OPS/book.opf", package), ("OPS/a.html", "<p>words</p>")]
    )
    said = "Parts that the list of chapters names, but the file does not hold: 1."
    assert said in read_document(path).warnings
