"""Prepares Markdown of a model or a book for the page: makes it harmless, and turns it into HTML while an answer is
being written.

Owns the rule that an answer is only words: no image is loaded, no HTML of a model is kept, and a link shows its target.
The page's sanitizer and its content security policy enforce the same, but this module does not rely on them. It has no
side effects.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

# Matches code, which stays unchanged: a fenced block from the start of a line to the closing fence, or a span between
# equal runs of backticks. Repetitions inside brackets and backticks are bounded, so that a text with many brackets does
# not make the search slow.
_CODE = re.compile(
    r"(^ {0,3}(`{3,20}|~{3,20})[^\n]*\n.*?(?:^ {0,3}\2[`~]*[ \t]*$|\Z)"
    r"|(?<!`)(`{1,20})(?!`).{1,500}?(?<!`)\3(?!`))",
    re.S | re.M,
)
_IMAGE = re.compile(r"!\[([^\]\n]{0,300})\]\(\s*<?([^\s)>]{0,500})>?(?:\s[^)\n]{0,300})?\)")
_LINK = re.compile(r"(?<!!)\[([^\]\n]{1,300})\]\(\s*<?([^\s)>]{0,500})>?(?:\s[^)\n]{0,300})?\)")
_DEFINITION = re.compile(r"^([ \t>*+-]*)\[([^\]\n]{1,300})\]:", re.M)
_SCHEMES = ("http", "https")


def harmless(text: str) -> str:
    """Make Markdown from a model or a book harmless: remove HTML and images, and show the host of every link."""
    parts: list[str] = []
    end = 0
    for code in _CODE.finditer(text):
        parts += [_plain(text[end : code.start()]), code.group(0)]
        end = code.end()
    return "".join([*parts, _plain(text[end:])])


def closed(content: str) -> str:
    """Close Markdown that is still being written: unclosed bold words are shown bold, and an unclosed code fence
    becomes code.
    """
    words = content.rstrip("* ") if content.endswith("*") else content
    paragraph = words.rpartition("\n\n")[2]
    if paragraph.count("**") % 2 and not words.endswith((" ", "\n")):
        words += "**"
    if words.rpartition("\n")[2].lstrip(" ").startswith(("```", "~~~")):
        # words on the fence's own line would not be shown as code, so the next words get a line of their own
        words += "\n"
    return words


def rendered(markdown: str, insert: Callable[[str], str]) -> str:
    """Turn Markdown that has been made harmless into HTML.

    The Markdown parser is set to accept no HTML, so no HTML comes from a model.

    Args:
        insert: called with every escaped piece of text, to insert our own HTML into it. Not called for attributes.
    """
    return str(_library().render(markdown, {_OURS: insert}))


_OURS = "ours"


@lru_cache(maxsize=1)
def _library() -> Any:
    """The Markdown parser, with the features of Gradio's own Markdown except images. The package is imported only here,
    because the program needs it only once a page is open.
    """
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    markdown.disable(["image", "html_block", "html_inline"])
    markdown.validateLink = lambda url: bool(_host(url))  # type: ignore[method-assign]

    def words(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        return str(env[_OURS](html.escape(tokens[index].content)))

    def code(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        return f"<code>{words(self, tokens, index, options, env)}</code>"

    def block(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        # the name of the programming language is left out, because it would be an attribute
        return f"<pre>{code(self, tokens, index, options, env)}</pre>\n"

    def link(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        address = html.escape(str(tokens[index].attrs.get("href", "")))
        return f'<a href="{address}" target="_blank" rel="noopener noreferrer">'

    rules = {"text": words, "code_inline": code, "fence": block, "code_block": block, "link_open": link}
    for name, rule in rules.items():
        markdown.add_render_rule(name, rule)
    return markdown


def _plain(text: str) -> str:
    text = _IMAGE.sub(lambda found: f"{found[1] or 'image'} (an image{_at(found[2])}, not loaded)", text)
    text = _LINK.sub(_link, text)
    text = _DEFINITION.sub(r"\1\\[\2]:", text)
    text = text.replace("![", "!\\[")
    return re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")


def _link(found: re.Match[str]) -> str:
    words, address = found[1], found[2]
    host = _host(address)
    if not host:
        return words
    return f"[{words}]({address}) ({host})"


def _at(address: str) -> str:
    host = _host(address)
    return f" at {host}" if host else ""


def _host(address: str) -> str:
    try:
        parts = urlsplit(address)
        return (parts.hostname or "") if parts.scheme.lower() in _SCHEMES else ""
    except ValueError:
        return ""
