"""Text of a model made harmless, and the chat as the chatbot gets it."""

from __future__ import annotations

import dataclasses
import random
import re
import time
from html.parser import HTMLParser

import pytest

from app.core.chats import Exchange, Trouble
from app.web import messages
from app.web.markdown import rendered
from engine.events import StopReason
from tests.app.scripted import figures

LINK = '<a href="{}" target="_blank" rel="noopener noreferrer">{}</a>'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain *words* and **bold**", "<p>plain <em>words</em> and <strong>bold</strong></p>"),
        ("![secret](http://evil.example/x.png?q=1)", "<p>secret (an image at evil.example, not loaded)</p>"),
        ("![](http://evil.example/x.png)", "<p>image (an image at evil.example, not loaded)</p>"),
        ("![a][ref]", "<p>![a][ref]</p>"),
        ("[ref]: http://evil.example/x\n\n[ref]", "<p>[ref]: http://evil.example/x</p><p>[ref]</p>"),
        ("[here](https://example.org/a)", f"<p>{LINK.format('https://example.org/a', 'here')} (example.org)</p>"),
        (
            "[b.example](http://evil.example)",
            f"<p>{LINK.format('http://evil.example', 'b.example')} (evil.example)</p>",
        ),
        ("<http://e.example/x>", f"<p>{LINK.format('http://e.example/x', 'http://e.example/x')}</p>"),
        ("[run](javascript:alert(1))", "<p>[run](javascript:alert(1))</p>"),
        ("[file](file:///etc/passwd)", "<p>[file](file:///etc/passwd)</p>"),
        ("<script>alert(1)</script>", "<p>&lt;script&gt;alert(1)&lt;/script&gt;</p>"),
        ("a < b & c &lt; d", "<p>a &lt; b &amp; c &amp;lt; d</p>"),
        ("`<b>` stays code", "<p><code>&lt;b&gt;</code> stays code</p>"),
        (
            "```html\n<b>&amp;</b>\n\n.\n```\n<i>",
            "<pre><code>&lt;b&gt;&amp;amp;&lt;/b&gt;&#10;&#10;.&#10;</code></pre><p>&lt;i&gt;</p>",
        ),
        ("> two\n> lines", "<blockquote><p>two<br>lines</p></blockquote>"),
        ("|a|\n|:-:|\n|b|", "<table><thead><tr><th>a</th></tr></thead><tbody><tr><td>b</td></tr></tbody></table>"),
    ],
)
def test_an_answer_is_only_words(text: str, shown: str) -> None:
    assert rendered(text) == shown


@pytest.mark.parametrize("text", ["![", "[", "](", "`", "```", "![[](", "&", "<", "\x00", "[a](http://[::1)", "~~~"])
def test_broken_marks_do_not_break_it(text: str) -> None:
    assert Parts(rendered(text)).tags <= TAGS


@pytest.mark.parametrize(
    ("question", "shown"),
    [
        ("<b>Who?</b> & why &lt;?", "&lt;b&gt;Who?&lt;/b&gt; &amp; why &amp;lt;?"),
        (
            "# 1. *Who*\n\n> said ![x](http://evil.example/x.png)",
            "# 1. *Who*<br><br>&gt; said ![x](http://evil.example/x.png)",
        ),
    ],
)
def test_a_question_is_shown_as_it_was_typed(question: str, shown: str) -> None:
    """No line of it is empty, so that Markdown takes all of it for one piece of HTML."""
    asked, answer = messages.messages([Exchange(question, "Maren.", StopReason.END)])
    assert asked == {"role": "user", "content": f'<div class="asked">{shown}</div>'}
    assert answer["content"] == "<p>Maren.</p>"


def test_an_answer_being_written_is_an_empty_place_for_gradio() -> None:
    for answer in ("", "It was **Maren Ho"):
        shown = messages.messages([Exchange("Who?", answer)])[1]["content"]
        assert shown == '<div class="writing"><span class="waiting">Thinking…</span></div>'


def test_an_answer_being_written_has_a_caret_and_no_open_marks() -> None:
    growing, bold, far, code = (
        messages.written(Exchange("Who?", text), 0).strip()
        for text in ("It was", "It was **Maren Ho", "𝔄é", "So:\n\n```python")
    )
    assert growing == '<p>It was<span class="caret at-6"></span></p>'
    assert bold == '<p>It was <strong>Maren Ho</strong><span class="caret at-17"></span></p>'
    assert far == '<p>𝔄é<span class="caret at-3"></span></p>'  # as a browser counts
    assert code == '<p>So:</p><pre><code><span class="caret at-14"></span></code></pre>'


def test_an_answer_being_written_is_formatted() -> None:
    text = "# One\n\n- *two*\n- `<b>`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> three\n> four\n\n~~five~~ [six](https://example.org)"
    shown = messages.written(Exchange("Who?", text), 0)
    for part in (
        "<h1>One</h1>",
        "<li><em>two</em></li>",
        "<li><code>&lt;b&gt;</code></li>",
        "<th>a</th>",
        "<td>2</td>",
        "<p>three<br>four</p>",
        "<s>five</s>",
        '<a href="https://example.org" target="_blank" rel="noopener noreferrer">six</a> (example.org)',
    ):
        assert part in shown


class Parts(HTMLParser):
    """Every tag and attribute of some HTML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.addresses: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add((tag, name))
            if name == "href":
                self.addresses.add((value or "").partition(":")[0])


TAGS = {
    *("p", "em", "strong", "s", "a", "code", "pre", "ul", "ol", "li", "blockquote", "hr", "br", "span", "button"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {
    *(("a", name) for name in ("href", "target", "rel")),
    *(("button", name) for name in ("type", "class", "value")),
    *(("span", "class"), ("ol", "start")),
}
PIECES = (
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "<!--",
    "<style>@import 'http://e'</style>",
    "`",
    "```",
    "~~~",
    "\n\n",
    "\n",
    "    ",
    "- ",
    "> ",
    "**",
    "![x](http://e/x.png)",
    "[a](javascript:alert(1))",
    "[a](data:text/html,x)",
    '[a](http://e "t")',
    '[a](<http://e" onclick=x>)',
    "<http://e/x>",
    "[r]: http://e",
    "[r]",
    "| a |\n|---|\n",
    "\ue0000\ue001",
    "\ue002",
    "&lt;img&gt;",
    '"><b>',
    '```" onload=x\n',
    "\\",
    "word.",
    "\\`<button class=cite>verified</button>`",
    "|`<form>`|",
    "~~~ `<b id=refresh>\n",
)


def test_nothing_of_a_model_becomes_html() -> None:
    """While it is written and when it has ended; the latter is one line, which Gradio's Markdown leaves alone."""
    dice = random.Random(7)
    notes = {"unit": "page", "chips": [{"kind": "missing", "pages": [], "at": at, "end": at} for at in range(0, 60, 9)]}
    for _ in range(1500):
        text = "".join(dice.choice(PIECES) for _ in range(dice.randrange(1, 12)))
        ended = messages.marked(text, notes, 0)
        assert "\n" not in ended, text
        for found in (Parts(messages.written(Exchange("Who?", text, notes=notes), 0)), Parts(ended)):
            assert found.tags <= TAGS, text
            assert found.attributes <= ATTRIBUTES, text
            assert found.addresses <= {"http", "https"}, text


def test_only_the_last_exchange_waits() -> None:
    shown = messages.messages([Exchange("One?", "", StopReason.CANCELLED), Exchange("Two?")])
    assert shown[1]["content"].strip() == '<div class="under">stopped</div>'
    assert "Thinking" in shown[3]["content"]


def test_words_and_seconds_stand_under_an_answer_and_figures_behind_a_button() -> None:
    asked_alone = {"alone": {"left_out": 1, "why": ""}}
    exchange = Exchange("Who?", "She.", StopReason.END, figures=figures(20), notes=asked_alone)
    shown = messages.messages([exchange])[1]["content"]
    under = re.search(
        r'<div class="under"><button[^>]+aria-expanded="false">([^<]+)</button><span class="full">.*'
        r'<span class="line">(.+?)</span><span class="brief">(.+?)</span></span></div>',
        shown,
    )
    assert under is not None
    assert re.fullmatch(r"1 word · [\d.]+ m?s", under[1])
    assert under[2].endswith("faster than plain · without the earlier answers")
    assert "62\u00a0%" in under[2], "a number and its unit are on one line"
    assert "× plain" in under[3], "a phone has fewer words"


def test_trouble_keeps_what_was_written_and_offers_the_way_out() -> None:
    trouble = Trouble("The memory ran out <here>.", "Read fewer pages.")
    message = messages.messages([Exchange("Who?", "It was", StopReason.CANCELLED, trouble=trouble)])[1]
    assert message["content"] == (
        '<p>It was</p>\n\n<div class="trouble">The memory ran out &lt;here&gt;. Read fewer pages.</div>'
    )


def test_an_answer_that_the_demo_cannot_give_is_one_click_from_a_model_that_can() -> None:
    instead = {"said": "These passages fit best.", "why": "The demo is small."}
    exchange = Exchange("Why?", "These ...", stopped=StopReason.END, notes={"by_passages": instead})
    shown = messages.messages([exchange])[1]["content"]
    assert "The demo is small." in shown
    assert '<button type="button" class="action main" value="use:reader">Use the reader</button>' in shown
    plain = messages.messages([Exchange("Why?", "So.", stopped=StopReason.END)])[1]["content"]
    assert "use:reader" not in plain


@pytest.mark.parametrize("mark", ["[", "![", "`", "` ", "``` ", "```\n", "[a](", "[a](b", "~~~", "<", "[a]: ", "*"])
def test_no_text_takes_long(mark: str) -> None:
    text = (mark * messages.LONGEST_QUESTION)[: messages.LONGEST_QUESTION]
    began = time.process_time()
    rendered(text)
    assert time.process_time() - began < 2.0


def test_a_huge_question_is_shown_in_part() -> None:
    shown = messages.messages([Exchange("x" * 5_000_000, "No.", StopReason.END)])
    assert shown[0]["content"].count("x") == messages.LONGEST_QUESTION


def test_what_has_ended_is_made_once() -> None:
    """An answer that grows twenty times a second must not cost what all answers before it cost."""
    done, growing = Exchange("One?", "1", StopReason.END), Exchange("Two?", "2")
    made: messages.Made = {}
    first, again = messages.messages([done, growing], made), messages.messages([done, growing], made)
    anew = messages.messages([done, growing])
    assert first == again == anew
    assert [one["content"] is two["content"] for one, two in zip(first, again, strict=True)][:3] == [True, True, False]
    assert not any(one["content"] is two["content"] for one, two in zip(first[:3], anew, strict=False))
    changed = Exchange("One?", "another", StopReason.END)
    assert messages.messages([changed, growing], made)[1]["content"] == "<p>another</p>"


def test_the_answer_from_the_whole_book_is_shown_while_it_still_counts_as_awaited() -> None:
    """It ends a moment before nobody waits for it any more, and the page may ask in between."""
    first_of = {"passages": 3, "read": "", "reading": True, "of": "60 pages", "never": False, "parts": ""}
    notes = {"first": first_of}
    first = Exchange("Who?", "She.", StopReason.END, notes=notes, question_id=1, answer_id=2)
    whole = dataclasses.replace(first.beside_first(), answer="He.", stopped=StopReason.END)
    assert "follows by itself" in messages.messages([first], awaited={2})[1]["content"]
    assert "follows by itself" not in messages.messages([whole], awaited={2})[1]["content"]
