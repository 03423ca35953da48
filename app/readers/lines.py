"""Detects lines of plain text whose line breaks have a meaning: logs, program text, subtitles, columns, lists.

Such line breaks are kept. Only prose is joined into paragraphs, and doubtful text is not taken for prose. Tabs become
indentations or cell borders. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from itertools import groupby, pairwise

from app.language.sentences import is_line_ended
from app.readers.delimited import CELLS

NAMES = frozenset(
    re.findall(
        r"\S+",
        " .adoc .asciidoc .asm .asp .ass .awk .bas .bat .bib .c .cc .cfg .clj .cmake .cmd .conf .cpp .cs .css"
        " .cxx .dart .diff .el .erl .ex .exs .f .f90 .for .fs .go .gradle .graphql .groovy .h .hpp .hs .ics"
        " .ini .java .jl .js .json .json5 .jsonl .jsx .kt .lean .less .lisp .log .lrc .lua .m .mk .ml .ndjson"
        " .nim .org .pas .patch .php .pl .pm .po .properties .proto .ps1 .py .pyi .r .rb .reg .rs .rst .sas"
        " .sass .sbv .scala .scm .scss .sh .sql .srt .ssa .sty .svelte .swift .tcl .tex .textile .tf .toml .ts"
        " .tsx .v .vb .vbs .vcf .vhd .vim .vtt .vue .wiki .yaml .yml .zig",
    )
)
"""File name extensions of texts whose line breaks have a meaning."""

MONOSPACED = re.compile(
    r"courier|consol|mono(?!type)|menlo|typewriter|inconsolata|letter ?gothic|source ?code"
    r"|(?<![a-z])(?:cm|lm|ec|sf)(?:sl|it)?tt\d",
    re.I,
)
"""Matches the names of fonts all of whose characters have the same width."""

_TAB = 4  # spaces that replace a tab in an indentation
_SAMPLE = 2_000  # leading lines that are examined to detect whether a text is a log, program text or subtitles
_FEWEST = 3  # minimum lines of a log, of program text or of a group of records
_STAMP = (
    r"[\[(<\"]{0,2}(?:\d{4}[-/.]\d\d?[-/.]\d\d?\b|\d\d?[-/.]\d\d?[-/.]\d{2,4}\b|\d\d?:\d\d(?::\d\d)?\b"
    r"|(?:(?:mon|tue|wed|thu|fri|sat|sun)\w* )?(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)\w* +\d\d? "
    r"+\d\d:\d\d|\d{1,3}(?:\.\d{1,3}){3}\s|\d{9,}|<\d+>|(?-i:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)\b)"
)
_LOGGED = re.compile(_STAMP, re.I)
_CUE = re.compile(r"^[ \t]*(?:\d+:)?\d\d?:\d\d[.,]\d{2,3}[ \t]+-->[ \t]", re.M)
# matches the name of a speaker in subtitles of the web
_SPEAKER = re.compile(r"<v(?:\.[^\s<>]{1,60})?[ \t]{1,9}([^<>\n]{1,100})>", re.I)
# matches other tags of subtitles: types, which may have classes and attributes, but no words alone ("a <b and c> d" is
# text), languages, colours, and the time from which on words are shown
_CUE_TAG = re.compile(
    r"</?(?:[bciu]|ruby|rt)(?:\.[^<>\n]{0,100}|[ \t]{1,9}[\w-]{1,20}=[^<>\n]{0,100})?[ \t]{0,9}>"
    r"|</?(?:v|lang|font)(?:[. ][^<>\n]{0,100})?>"
    r"|<(?:\d{1,3}:)?\d\d:\d\d\.\d{3}>",
    re.I,
)
# matches codes of no character, on which ``html.unescape`` fails because Python converts no more than 4,300 digits
_NO_CHARACTER = re.compile(r"&#[0-9]{100,};?")
_PROGRAM = re.compile(
    r"[;{}]\s*(?://.*|#.*|/\*.*)?$|^\s*(?:[)\]}]+[,;]?$|#include\b|#define\b|@\w+[\w.()]*$|//|/\*|\*/"
    r"|(?:async )?def \w+\(|class \w+.*[:{]$|from [\w.]+ import |import [\w.*{}, ]+;?$|return\b(?! to| of| from)"
    r"|(?:if|elif|else|for|while|try|except|finally|with|switch|case)\b.*[:{]$"
    r"|(?:pub |public |private |protected |static |export )*(?:fn|func|function|var|let|const|void|int|double)\s+\w+"
    r"|\"[^\"]*\"(?:\s*:\s.*|,?)$|[a-z_][\w-]*:(?:\s+\S+)?$|[\w.\[\]'\"]+\s*[-+*/|&^:]?=\s*\S.*$|[\w.]+\(.*\)[;:]?$|\w+\.\w+\(.*$)"
)
_SYNTAX = re.compile(r"[;{}()\[\]=:@#/\"*]")
_SOME = 0.25
_MOST = 0.5
_NEARLY_ALL = 0.8
_DRAWN = re.compile(r"^\s*(?:[|+│┃║├└┌╔╚╠]|[-=_*~]{3,}[-=+ ]*$)|[│┃║─━═]{2,}")
_RULE = re.compile(r"\s*([-=_*~^#+])\1{2,}\s*$")  # matches a rule under a heading or between two sections
# matches a leader: dots before a page number, or a blank in a form
_LEADER = re.compile(r"(?:\.{4}|(?:\. ){4}|_{4}|·{4}).*\w$")
_LEADERS = ("....", ". . . .", "____", "····", "──", "━━", "══")
_GAP = re.compile(r" {2,}(?=\S)")
# minimum gap between cells; two spaces are too few, because they occur after a full stop and in justified text
_WIDE_GAP = "   "
_ITEMS = (
    re.compile(r"\s*[-–—*•·▪◦‣+>✓✔☐☑☒]\s+\S"),
    re.compile(r"\s*(?:\d{1,3}(?:\.\d{1,3})*[.)]|\d{1,3}(?:\.\d{1,3})+|\[\d{1,3}\]|§ ?\d+\w?)\s+\S"),
    re.compile(r"\s*\(\d{1,3}\)\s+\S"),
    re.compile(r"\s*(?:\([a-zA-Z]{1,4}\)|[a-zA-Z][.)]|[ivxIVX]{1,5}[.)])\s+\S"),
    re.compile(r"\s*\[[ xX]?\]\s*\S"),
    re.compile(r"\s*[A-ZÀ-Þ][\w.'’&/-]*(?: [\w.'’&/()-]+){0,3}:(?:\s+\S|$)"),
    re.compile(rf"\s*{_STAMP}", re.I),
)
_LONGEST_MARK = 6  # maximum characters of an item's number, such as "viii. "
_BULLET_AND_TAB = re.compile(r"^(\s*(?:[-*•·▪o–>]|\(?\w{1,3}[.)]|\[[ xX]?\]|#+|//|;+|%+))\t+", re.M)


def kept(text: str, suffix: str) -> bool:
    """Whether to keep all line breaks of a text, because it is a log, subtitles or program text. Such a text is
    detected by its content or by ``suffix``, the extension of the file name.
    """
    if suffix in NAMES:
        return True
    rows = [row for row in text.split("\n")[:_SAMPLE] if row.strip()]
    if len(rows) < _FEWEST:
        return False
    if len(_CUE.findall("\n".join(rows))) > 1:
        return True
    outer = [row for row in rows if not row[0].isspace()]
    logged = sum(bool(_LOGGED.match(row)) for row in outer)
    if logged >= _FEWEST and logged > _MOST * len(outer):
        return True
    return is_program(rows)


def without_cue_tags(text: str) -> str:
    """Return subtitles without the tags in their text. A speaker's name stands before what is said. Return other texts
    unchanged.
    """
    if len(_CUE.findall("\n".join(text.split("\n", _SAMPLE)[:_SAMPLE]))) < 2:
        return text
    text = _CUE_TAG.sub("", _SPEAKER.sub(r"\1: ", text))
    if not text.lstrip("\ufeff").startswith("WEBVTT"):
        return text
    return html.unescape(_NO_CHARACTER.sub("\ufffd", text))


def is_program(rows: Sequence[str]) -> bool:
    """Whether lines are program text."""
    if len(rows) < _FEWEST or sum(bool(_SYNTAX.search(row)) for row in rows) <= _SOME * len(rows):
        return False
    return sum(bool(_PROGRAM.search(row)) for row in rows) > _MOST * len(rows)


def blocks(rows: Sequence[str]) -> list[tuple[bool, list[str]]]:
    """Split consecutive lines, none of which is blank, into runs. Return (whether to keep the line breaks, lines) of
    each run.
    """
    rows = [row.rstrip() for row in rows]
    if _is_block(rows):
        return [(True, rows)]
    # whether some row has gaps of only two spaces, as in justified text
    loose = any(_GAP.search(row.lstrip()) and not _has_cells(row) for row in rows)
    piped = [False, *(CELLS in row for row in rows), False]
    marked = [
        _has_cells(row) or bool(_RULE.match(row)) or (piped[at] and (piped[at - 1] or piped[at + 1]))
        for at, row in enumerate(rows, 1)
    ]
    runs = [(keep, [row for _, row in run]) for keep, run in groupby(zip(marked, rows, strict=True), lambda x: x[0])]
    merged: list[tuple[bool, list[str]]] = []
    for keep, run in runs:
        keep = keep and (len(run) > 1 or not loose)
        if merged and merged[-1][0] == keep:
            merged[-1][1].extend(run)
        else:
            merged.append((keep, run))
    return merged


def _is_block(rows: Sequence[str]) -> bool:
    """Whether consecutive lines are no paragraph, but columns, a drawing, a table of contents, program text or
    records.
    """
    if len(rows) < 2:
        return any(_has_cells(row) for row in rows)
    if sum(_is_drawn(row) for row in rows) > _MOST * len(rows):
        return True
    return _in_columns(rows) or is_program(rows) or _are_records(rows)


def _has_cells(row: str) -> bool:
    return _WIDE_GAP in row.strip()


def _is_drawn(row: str) -> bool:
    """Whether a line belongs to a drawn table, is a rule, or has a leader. A leader is dots before a page number, or a
    blank in a form.
    """
    if row.lstrip()[:1].isalnum() and not any(leader in row for leader in _LEADERS):
        return False
    return bool(_DRAWN.search(row) or _LEADER.search(row))


def _in_columns(rows: Sequence[str]) -> bool:
    """Whether most lines have cell borders or wide gaps. If not all lines have wide gaps, words next to gaps must also
    be aligned in two consecutive lines.
    """
    if sum(CELLS in row for row in rows) > _MOST * len(rows):
        return True
    if sum(_has_cells(row) for row in rows) <= _MOST * len(rows):
        return False
    places = [_edges(row) for row in rows]
    return all(_has_cells(row) for row in rows) or any(one & two for one, two in pairwise(places))


def _edges(row: str) -> set[tuple[str, int]]:
    """Return the positions of words at gaps: ("begins", column) for a word after a gap, ("ends", column) for a word
    before a gap or at the line end.
    """
    lead = len(row) - len(row.lstrip())
    gaps = [gap.span() for gap in _GAP.finditer(row, lead)]
    return {("begins", end) for _, end in gaps} | {("ends", start) for start, _ in gaps} | {("ends", len(row))}


def _are_records(rows: Sequence[str]) -> bool:
    """Whether nearly every line starts with a number or a symbol, unlike the lines of a paragraph."""
    return len(rows) >= _FEWEST and sum(not _begins_in_words(row) for row in rows) > _NEARLY_ALL * len(rows)


def _begins_in_words(row: str) -> bool:
    start = row.lstrip().lstrip("\"'“”‘’«»„([¿¡*_-–— ")[:1]
    return not start or start.isalpha() or ord(start) > 0x2E7F


def _may_begin(row: str) -> bool:
    """Whether a line may start a list item. If the line begins with a lowercase letter, only a list marker such as "a)"
    or "b." may start an item.
    """
    return not row[:1].islower() or ")" in row[:_LONGEST_MARK] or "." in row[:_LONGEST_MARK]


def items(rows: Sequence[str]) -> list[list[str]]:
    """Split consecutive lines before each line that starts a list item, a speech or a dated entry. At least two lines
    must start with the same kind of mark.

    The first such line must come first of all or follow a finished sentence, because a dash may also start a line
    within a paragraph.
    """
    starts: set[int] = set()
    likely = [(at, row) for at, row in enumerate(rows) if _may_begin(row.lstrip())]
    for pattern in _ITEMS if len(likely) > 1 else ():
        hits = [at for at, row in likely if pattern.match(row)]
        if len(hits) > 1 and (hits[0] == 0 or hits[0] - 1 in starts or is_line_ended(rows[hits[0] - 1])):
            starts.update(hits)
    if not starts:
        return [list(rows)]
    cuts = sorted(starts | {0})
    return [list(rows[start:end]) for start, end in zip(cuts, [*cuts[1:], len(rows)], strict=True)]


def tabs(text: str, keeps_breaks: bool) -> str:
    """Replace tabs by indentations or borders between cells.

    Args:
        text: text with line feeds as the only line breaks.
        keeps_breaks: whether all line breaks of the text are kept. If so, a tab between words becomes two spaces.
    """
    if "\t" not in text:
        return text
    rows = [_indented(row) for row in _BULLET_AND_TAB.sub(r"\1 ", text).split("\n")]
    shown: list[str] = []
    for tabbed, run in groupby(rows, lambda row: "\t" in row):
        neighbours = list(run)
        shown += _bordered(neighbours, keeps_breaks) if tabbed else neighbours
    return "\n".join(shown)


def _indented(row: str) -> str:
    words = row.lstrip(" \t")
    indent = row[: len(row) - len(words)].replace("\t", " " * _TAB)
    return indent + (words if "\t" in words.rstrip() else words.rstrip())


def _bordered(rows: Sequence[str], keeps_breaks: bool) -> list[str]:
    """Replace the tabs between words in consecutive lines: by cell borders, or by two spaces if ``keeps_breaks`` is set
    or there is only one line. If all lines have equally many tabs, two adjacent tabs become two borders, which keeps
    empty cells.
    """
    if keeps_breaks or len(rows) < 2:
        return [re.sub(r" *\t[\t ]*", "  ", row).rstrip() for row in rows]
    border = r" *\t *" if len({row.count("\t") for row in rows}) == 1 else r" *\t[\t ]*"
    return [re.sub(border, CELLS, row).rstrip() for row in rows]
