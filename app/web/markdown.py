"""Turns Markdown of a model or a book into HTML for the page.

Owns the rule that text is only words: one parser, set to accept no HTML, makes every tag, so the result holds its tags
and what ``insert`` adds, whatever the text holds. No image is loaded, and a link shows its host. The page's sanitizer
and its content security policy enforce the same, but this module does not rely on them. It has no side effects.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

_SCHEMES = ("http", "https")


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


def rendered(markdown: str, insert: Callable[[str], str] = str) -> str:
    """Turn Markdown into HTML on one line, which a Markdown parser takes for one piece of HTML.

    Args:
        insert: called with every escaped piece of text, to insert our own HTML into it. Not called for attributes.
    """
    made = str(_library().render(markdown, {_OURS: insert, _HOSTS: []}))
    # line breaks mean something in code alone, where a code block has them as entities already
    return made.strip().replace("\n", "")


_OURS, _HOSTS = "ours", "hosts"


@lru_cache(maxsize=1)
def _library() -> Any:
    """The Markdown parser, with the features of Gradio's own Markdown except images. The package is imported only here,
    because the program needs it only once a page is open.
    """
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
    # A definition of a link's address would vanish from the text.
    # An entity is shown as it was written.
    markdown.disable(["html_block", "html_inline", "reference", "entity"])
    markdown.validateLink = lambda url: bool(_host(url))  # type: ignore[method-assign]
    rules = {
        "text": _words,
        "code_inline": _code,
        "fence": _block,
        "code_block": _block,
        "softbreak": _line,
        "hardbreak": _line,
        "image": _image,
        "link_open": _link,
        "link_close": _link_end,
        "th_open": _cell,
        "td_open": _cell,
    }
    for name, rule in rules.items():
        markdown.add_render_rule(name, rule)
    return markdown


def _words(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    return str(env[_OURS](html.escape(tokens[index].content)))


def _code(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    return f"<code>{_words(self, tokens, index, options, env)}</code>"


def _block(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    # the name of the programming language is left out, because it would be an attribute
    return f"<pre>{_code(self, tokens, index, options, env)}</pre>".replace("\n", "&#10;")


def _line(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    return "<br>"


def _cell(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    return f"<{tokens[index].tag}>"  # without the alignment, which would be a style


def _image(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    shown = _words(self, tokens, index, options, env) or "image"
    return f"{shown} (an image at {html.escape(_host(str(tokens[index].attrs.get('src', ''))))}, not loaded)"


def _link(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    address = str(tokens[index].attrs.get("href", ""))
    env[_HOSTS].append("" if tokens[index].markup == "autolink" else f" ({html.escape(_host(address))})")
    return f'<a href="{html.escape(address)}" target="_blank" rel="noopener noreferrer">'


def _link_end(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
    return f"</a>{env[_HOSTS].pop()}"


def _host(address: str) -> str:
    try:
        parts = urlsplit(address)
        return (parts.hostname or "") if parts.scheme.lower() in _SCHEMES else ""
    except ValueError:
        return ""
