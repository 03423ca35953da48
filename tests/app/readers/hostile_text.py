"""Texts and pages of HTML that make careless patterns run for hours, by name. All of them are books."""

from __future__ import annotations

from collections.abc import Callable

_N = 600_000


def _html(body: str) -> bytes:
    return f"<html><body>words {body}".encode()


def _subtitles(text: str) -> bytes:
    return f"WEBVTT\n\n00:01.000 --> 00:02.000\nwords\n\n00:03.000 --> 00:04.000\n{text}".encode()


READ: dict[str, tuple[str, Callable[[], bytes]]] = {
    "tags never closed": ("a.html", lambda: _html("<" * _N)),
    "signs that begin no tag": ("a.html", lambda: _html("<" * 10 * _N + ">")),
    "elements 200,000 deep": ("a.html", lambda: _html("<div><b>" * 100_000)),
    "comments never closed": ("a.html", lambda: _html("<!--" * _N)),
    "sections never closed": ("a.html", lambda: _html("<![CDATA[" * (_N // 4))),
    "instructions never closed": ("a.html", lambda: _html("<?x" * _N)),
    "end tags never closed": ("a.html", lambda: _html("</a " * _N)),
    "quotes never closed": ("a.html", lambda: _html("<a x='" * _N)),
    "a tag of 300,000 attributes": ("a.html", lambda: _html("<a " + "x " * 300_000 + ">end")),
    "ampersands": ("a.html", lambda: _html("&" * _N)),
    "scripts in scripts": ("a.html", lambda: _html("<script>" * (_N // 4))),
    "scripts nearly closed": ("a.html", lambda: _html("<script>" + "</script" * (_N // 4))),
    "a character of 100,000 digits": ("a.html", lambda: _html("&#" + "9" * 100_000 + "; &#x110000; &#xD800; &#0;")),
    "declared as punycode": ("a.html", lambda: b"<html><meta charset=punycode><body>words " + b"-abc9" * 50_000),
    "declared as idna": ("a.html", lambda: b"<html><meta charset=idna><body>words " + b"x" * 200),
    "declared as an escape": ("a.html", lambda: b"<html><meta charset=unicode_escape><body>words \\ud800 \\x00"),
    "declared as a packer": ("a.html", lambda: b"<html><meta charset=zlib><body>words"),
    "declared as UTF-7": ("a.html", lambda: b"<html><meta charset=utf-7><body>words +ADw-script+AD4-"),
    "a run of spaces": ("a.txt", lambda: b"words" + b" " * 3_000_000 + b"end"),
    "runs of spaces before every end": ("a.txt", lambda: (b"words" + b" " * 20_000 + b"x\n") * 100),
    "blank lines": ("a.txt", lambda: b"words" + b"\n" * 3_000_000 + b"end"),
    "lines of a space": ("a.txt", lambda: b"words" + b"\n " * 1_000_000 + b"end"),
    "marks piled on a letter": ("a.txt", lambda: ("words a" + "\u0315\u0300" * 300_000).encode()),
    "a word a line": ("a.txt", lambda: b"words\n" * 100_000),
    "hyphens": ("a.txt", lambda: b"words " + b"a-" * _N),
    "full stops": ("a.txt", lambda: b"words " + b"." * _N),
    "quotation marks": ("a.txt", lambda: b"words." + b'"' * _N),
    "chapters of nothing": ("a.txt", lambda: b"".join(b"CHAPTER %d\n\nwords\n\n" % at for at in range(20_000))),
    "a heading of spaces": ("a.md", lambda: b"# words" + b" " * 500_000 + b"x\n\nwords"),
    "a heading of hashes": ("a.md", lambda: b"# words " + b"# " * 300_000 + b"x\n\nwords"),
    "fences": ("a.md", lambda: b"```\n" * 200_000 + b"words"),
    "overrides": ("a.txt", lambda: "words \u202egnp.exe\u202c \u2066x\u2069 \u200b\ufeff".encode()),
    "a subtitle of 100,000 digits": ("a.vtt", lambda: _subtitles("&#" + "9" * 100_000)),
    "speakers without a name": ("a.vtt", lambda: _subtitles("<v" + " " * 8_000_000)),
    "right to left": ("a.txt", lambda: ("words " + "שלום עולם مرحبا بالعالم\n" * 2_000).encode()),
    "one letter of every block of Unicode": ("a.txt", lambda: ("words " + every_block()).encode("utf-8")),
}


def every_block() -> str:
    """A sign of every 128 code points of Unicode, surrogates apart."""
    codes = [code for code in range(0x80, 0x110000, 128) if not 0xD800 <= code < 0xE000]
    return "".join(chr(code + 0x41) + (" \n" if at % 16 == 15 else " ") for at, code in enumerate(codes))
