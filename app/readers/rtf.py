"""Reads rich text files (RTF): headings, tables, list numbers, notes, comments, struck and raised words.

The library striprtf is not used, because it drops notes, headers and list numbers, and reads hidden and deleted text as
any other. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from app.readers import cleaning, picture_marks, symbols
from app.readers.collector import PUT_AWAY, BlockCollector
from app.readers.left_out import is_page_number, told
from app.readers.parsed import Limits, Parsed, Refused, Step, damaged
from app.readers.sections import INDENTED, Block, Chapter, by_headings, finish, split_levels

_TOKEN = re.compile(
    rb"\\([a-zA-Z]{1,32})(-?\d{1,10})?[ ]?|\\'([0-9a-fA-F]{2})|\\([^a-zA-Z])|([{}])|[\r\n]+|([^\\{}\r\n]+)|\\", re.S
)
_ALIVE = 50_000  # tokens between two progress reports
_DEEPEST = 5_000  # maximum nesting of groups; a file with more is refused
_MOST_MARKUP = 5  # maximum bytes of a file, as a multiple of the maximum characters of a book
_SKIPPED = frozenset(
    re.findall(
        r"\w+",
        "colortbl filetbl listtable listoverridetable revtbl rsidtbl generator themedata colorschememapping datastore"
        " latentstyles xmlnstbl mmathPr fldinst bkmkstart bkmkend nonshppict pntxta pntxtb pnseclvl wgrffmtfilter"
        " objdata objclass objname template private passwordhash ftnsep ftnsepc ftncn aftnsep aftnsepc aftncn atrfstart"
        " atrfend atndate atntime atnref atnparent atnicn shpinst sp do xe tc keywords subject operator category"
        " company doccomm hlinkbase creatim revtim printim buptim manager comment userprops",
    )
)
_KEPT = frozenset(("shppict", "shptxt", "annotation", "fldrslt", "atnauthor", "atnid", "listtext", "pntext", "result"))
_SIGNS = {
    "emdash": "—", "endash": "–", "lquote": "‘", "rquote": "’", "ldblquote": "“", "rdblquote": "”", "bullet": "•",
    "tab": "\t", "emspace": " ", "enspace": " ", "qmspace": " ",
}  # fmt: skip
_ESCAPED = {b"~": "\u00a0", b"_": "-", b"-": "", b"*": "", b":": "", b"|": "", b"\n": "\n", b"\r": "\n"}
_ASIDE = ("footnote", "annotation", "header", "headerl", "headerr", "headerf", "footer", "footerl", "footerr")
_CHARSETS = {
    77: "mac_roman", 128: "cp932", 129: "cp949", 134: "gbk", 136: "big5", 161: "cp1253", 162: "cp1254", 163: "cp1258",
    177: "cp1255", 178: "cp1256", 186: "cp1257", 204: "cp1251", 222: "cp874", 238: "cp1250",
}  # fmt: skip
_SYMBOLS = 2  # number of the character set of symbol fonts
_HEADING = re.compile(r"(?:heading|überschrift|titre|título|titolo|заголовок)\s*([1-6])", re.I)
_HEADERS, _NOTES, _COMMENTS = "Headers and footers", "Notes", "Comments"


@dataclass
class _State:
    """What holds for the text of a group."""

    aside: str = ""  # the place apart from the text, such as "footnote", to which the text belongs
    skipped: bool = False
    hidden: bool = False
    deleted: bool = False
    struck: bool = False
    offset: int = 0  # above 0 for raised, below 0 for lowered text
    font: int = -1
    fallback: int = 1  # characters that stand after a Unicode character for programs without Unicode
    named: str = ""  # "title" or "author" within the file's properties
    drawn: bool = False  # whether it is the data of a picture


@dataclass
class _Paragraph:
    """What holds for a paragraph."""

    level: int = 0
    in_table: bool = False


@dataclass
class _Text:
    """A text that is told to a collector: the main text or one aside."""

    collector: BlockCollector = field(default_factory=lambda: BlockCollector("", hides=True, marks=True))
    open: bool = False  # whether a paragraph is open
    table: bool = False  # whether a table is open
    row: bool = False  # whether a row of it is open
    cell: bool = False
    broken: bool = False  # whether the last that was told ends a line


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read an RTF file."""
    step(0, 1, None)
    data = path.read_bytes()
    if len(data) > _MOST_MARKUP * limits.characters:
        data = _without_pictures(data)
    if len(data) > _MOST_MARKUP * limits.characters:
        raise Refused(f"has {len(data) / 1e6:,.0f} MB; that is more than a book.", "Split it into parts.")
    parser = _RtfParser(comments=request.get("comments", True))
    parser.read(data, step)
    return parser.parsed()


def _without_pictures(data: bytes) -> bytes:
    """Drop the digits of pictures, which are most of a large file."""
    return re.sub(rb"[0-9a-fA-F\r\n]{2000,}", b"", data)


class _RtfParser:
    def __init__(self, *, comments: bool) -> None:
        self._with_comments = comments
        self._stack: list[_State] = []
        self._state = _State()
        self._paragraph = _Paragraph()
        self._texts: list[tuple[str, int, _Text]] = [("", 0, _Text())]  # kind, depth and text of what is open
        self._bytes = bytearray()  # characters that are not decoded yet
        self._high = 0  # the first half of a character of two
        self._skip = 0  # characters to skip after a Unicode character
        self._encoding = "cp1252"
        self._fonts: dict[int, tuple[int, str]] = {}  # number -> character set and name
        self._levels: dict[int, int] = {}  # style -> level of heading
        self._table = ""  # "fonttbl" or "stylesheet" within these
        self._entry = (-1, 0, "")  # number, character set and name of the entry of that table
        self._notes: list[str] = []
        self._comments: list[str] = []
        self._headers: dict[str, None] = {}
        self._names: dict[str, str] = {}
        self._author = ""
        self._pictures = 0
        self._drawn: list[str] = []
        self._star = False
        self.left_out: Counter[str] = Counter()

    def read(self, data: bytes, step: Step) -> None:
        at = 0
        count = 0
        while match := _TOKEN.match(data, at):
            at = match.end()
            count += 1
            if count % _ALIVE == 0:
                step(0, 1, None)
            word, number, code, sign, brace, text = match.groups()
            if word is not None:
                if word == b"bin":
                    at += min(max(int(number or 0), 0), len(data) - at)
                else:
                    self._word(word.decode("ascii"), int(number) if number else None)
            elif code is not None:
                self._byte(int(code, 16))
            elif sign is not None:
                self._star = sign == b"*"
                self._say(_ESCAPED.get(sign, sign.decode("latin-1")))
            elif brace == b"{":
                self._flush()
                if len(self._stack) > _DEEPEST:
                    raise damaged("is damaged: its groups are nested without end.")
                self._stack.append(self._state)
                self._state = replace(self._state)
                self._skip = 0
            elif brace == b"}":
                self._close()
            elif text is not None:
                for byte in text:
                    self._byte(byte)
        self._flush()
        while len(self._texts) > 1:
            self._end_aside()

    def parsed(self) -> Parsed:
        main = self._texts[0][2]
        self._end_paragraph(main)
        blocks = _blocks(main)
        chapters = by_headings(blocks, split_levels(blocks))
        chapters.append(Chapter(_NOTES, "\n\n".join(self._notes)))
        warnings = []
        if self._comments and self._with_comments:
            chapters.append(Chapter(_COMMENTS, "\n\n".join(self._comments)))
        elif self._comments:
            warnings.append(f"Comments of reviewers were left out, as asked: {len(self._comments):,}.")
        chapters.append(Chapter(_HEADERS, "\n\n".join(self._headers)))
        sections, outline = finish([chapter for chapter in chapters if chapter.text])
        if self._pictures:
            warnings.append(f"Pictures without a description, whose words are not read: {self._pictures:,}.")
        warnings += told(self.left_out, (section.text for section in sections))
        first = next((block.text for block in blocks if block.level == 1), "")
        title, author = (self._names.get(name, "").strip() for name in ("title", "author"))
        return Parsed(sections, title or first, author, outline, warnings, self.left_out)

    # Control words

    def _word(self, word: str, number: int | None) -> None:
        self._flush()
        state, starred = self._state, self._star
        self._star = False
        if word in _ASIDE:
            state.aside = word
            self._texts.append((word, len(self._stack), _Text()))
        elif word in ("fonttbl", "stylesheet"):
            self._table = word
        elif word in _SKIPPED or (starred and word not in _KEPT):
            state.skipped = True
        elif word in ("title", "author", "atnauthor"):
            state.named = word
            self._names.pop(word, None)
        elif word == "pict":
            self._pictures += not state.skipped
            state.drawn, state.skipped = not state.skipped, True
        elif word in _SIGNS:
            self._say(_SIGNS[word])
        elif word == "u":
            self._unicode(number or 0)
        elif word == "uc":
            state.fallback = min(max(number or 0, 0), 100)
        elif word == "ansicpg":
            self._encoding = _known(f"cp{number}", self._encoding)
        elif word in ("mac", "pc", "pca"):
            self._encoding = {"mac": "mac_roman", "pc": "cp437", "pca": "cp850"}[word]
        elif not self._look(word, number):
            self._layout(word, number)

    def _look(self, word: str, number: int | None) -> bool:
        """Take a control word for the look of the text; return whether it is one."""
        state, on = self._state, number != 0
        if word == "f":
            state.font = number or 0
            self._entry = (number or 0, self._entry[1], self._entry[2])
        elif word == "fcharset":
            self._entry = (self._entry[0], number or 0, self._entry[2])
        elif word == "s" and self._table == "stylesheet":
            self._entry = (number or 0, 0, "")
        elif word == "s":
            self._paragraph.level = self._levels.get(number or 0, 0)
        elif word == "v":
            state.hidden = on
        elif word == "deleted":
            state.deleted = on
        elif word in ("strike", "striked"):
            state.struck = on
        elif word in ("super", "sub", "nosupersub"):
            state.offset = {"super": 1, "sub": -1, "nosupersub": 0}[word] if on else 0
        elif word in ("up", "dn"):
            state.offset = (1 if word == "up" else -1) * ((number if number is not None else 6) > 0)
        elif word == "plain":
            state.hidden = state.deleted = state.struck = False
            state.offset, state.font = 0, -1
        else:
            return False
        return True

    def _layout(self, word: str, number: int | None) -> None:
        if self._state.skipped or self._table:
            return
        text = self._texts[-1][2]
        if word == "pard":
            self._paragraph = _Paragraph()
        elif word == "outlinelevel":
            self._paragraph.level = (number or 0) + 1 if (number or 0) < 6 else 0
        elif word == "intbl":
            self._paragraph.in_table = True
        elif word in ("par", "sect"):
            if text.cell and self._paragraph.in_table:
                self._say("\n")
            else:
                self._end_paragraph(text)
        elif word in ("line", "page", "column"):
            self._say("\n")
        elif word in ("cell", "nestcell"):
            self._open_cell(text)
            self._end_cell(text)
        elif word in ("row", "nestrow") and text.row:
            self._end_cell(text)
            text.collector.end("tr")
            text.row = False
        elif word == "chftn" and self._texts[-1][0] != "footnote":
            self._say(f"[{len(self._notes) + 1}]")

    # Text

    def _byte(self, byte: int) -> None:
        if self._skip:
            self._skip -= 1
        else:
            self._bytes.append(byte)

    def _flush(self) -> None:
        """Decode the characters that are not decoded yet."""
        if not self._bytes:
            return
        charset, name = self._fonts.get(self._state.font, (0, ""))
        data = bytes(self._bytes)
        self._bytes.clear()
        if charset == _SYMBOLS and symbols.is_symbolic(name):
            self._tell(symbols.spelled(data.decode("latin-1"), name))
        else:
            self._tell(data.decode(_CHARSETS.get(charset, self._encoding), errors="replace"))

    def _unicode(self, number: int) -> None:
        self._skip = self._state.fallback
        code = number + 0x10000 if number < 0 else number
        if 0xD800 <= code < 0xDC00:
            self._high = code
            return
        if 0xDC00 <= code < 0xE000:
            code = 0x10000 + ((self._high - 0xD800) << 10) + code - 0xDC00 if self._high else 0xFFFD
        self._high = 0
        sign = chr(code) if 0 <= code <= 0x10FFFF else "\ufffd"
        name = self._fonts.get(self._state.font, (0, ""))[1]
        self._tell(symbols.spelled(sign, name) if "\ue000" <= sign <= "\uf8ff" and symbols.is_symbolic(name) else sign)

    def _say(self, text: str) -> None:
        self._flush()
        if self._skip and text:
            self._skip -= 1
        else:
            self._tell(text)

    def _tell(self, words: str) -> None:
        state = self._state
        if state.drawn:
            self._drawn.append(words)
        if not words or state.skipped:
            return
        if self._table:
            self._in_table(words)
        elif state.named:
            self._names[state.named] = (self._names.get(state.named, "") + words)[:500]
        elif state.hidden or state.deleted:
            self.left_out["deleted" if state.deleted else "hidden"] += sum(map(len, words.split()))
        else:
            self._tell_text(words)

    def _tell_text(self, words: str) -> None:
        text, state = self._texts[-1][2], self._state
        if not words.strip() and not text.open and not text.cell:
            return
        begins = text.broken and text.open
        text.broken = words.endswith("\n")
        if self._paragraph.in_table:
            self._open_cell(text)
        elif not text.open:
            self._end_table(text)
            text.collector.start(f"h{self._paragraph.level}" if self._paragraph.level else "p", {})
            text.open = True
        tags = [*(["s"] if state.struck else []), *(["sup" if state.offset > 0 else "sub"] if state.offset else [])]
        for tag in tags:
            text.collector.start(tag, {})
        for at, line in enumerate(words.split("\n")):
            if at:
                text.collector.start("br", {})
                text.collector.end("br")
            indented = line.startswith("  ") and (at > 0 or begins)
            if indented:
                text.collector.start("span", INDENTED)
            text.collector.data(line.replace(PUT_AWAY, ""))
            if indented:
                text.collector.end("span")
        for tag in reversed(tags):
            text.collector.end(tag)

    def _in_table(self, words: str) -> None:
        """Read an entry of the list of fonts or styles, which ends in a semicolon."""
        number, charset, name = self._entry
        self._entry = (number, charset, (name + words)[:200])
        if ";" not in words:
            return
        name = self._entry[2].partition(";")[0].strip()
        if self._table == "fonttbl":
            self._fonts[number] = (charset, name)
        elif heading := _HEADING.match(name):
            self._levels[number] = int(heading[1])
        self._entry = (number, 0, "")

    # Ends

    def _close(self) -> None:
        self._flush()
        if self._texts[-1][1] == len(self._stack) and len(self._texts) > 1:
            self._end_aside()
        if self._stack:
            before, self._state = self._state, self._stack.pop()
            if before.drawn and not self._state.drawn:
                self._end_picture()
            if len(self._stack) <= 1:
                self._table = ""
            if before.named == "atnauthor":
                self._author = self._names.pop("atnauthor", "")
        self._skip = 0

    def _end_picture(self) -> None:
        """Mark the place of a picture whose data can be recognised."""
        key, text = picture_marks.key_of_written("".join(self._drawn)), self._texts[-1][2]
        self._drawn.clear()
        if key:
            self._pictures -= 1
            text.collector.start("img", {"src": key})

    def _end_aside(self) -> None:
        kind, _, text = self._texts.pop()
        self._end_paragraph(text)
        words = "\n".join(block.text for block in _blocks(text))
        if not words:
            return
        if kind == "footnote":
            self._notes.append(f"{len(self._notes) + 1}. {words}")
        elif kind == "annotation":
            self._comments.append(f"{cleaning.one_line(self._author) or 'A reviewer'}: {words}")
        elif not is_page_number(words):
            self._headers.setdefault(words)

    def _open_cell(self, text: _Text) -> None:
        if text.open:
            self._end_paragraph(text)
        if not text.row:
            if not text.table:
                text.collector.start("table", {})
                text.table = True
            text.collector.start("tr", {})
            text.row = True
        if not text.cell:
            text.collector.start("td", {})
            text.cell = True

    def _end_cell(self, text: _Text) -> None:
        if text.cell:
            text.collector.end("td")
            text.cell = False

    def _end_table(self, text: _Text) -> None:
        if text.table:
            self._end_cell(text)
            if text.row:
                text.collector.end("tr")
            text.collector.end("table")
            text.table = text.row = False

    def _end_paragraph(self, text: _Text) -> None:
        if text.open:
            text.collector.end("p")
            text.open = False


def _blocks(text: _Text) -> list[Block]:
    text.collector.close()
    picture_marks.named(text.collector.blocks, lambda source: source)
    return [block for block in text.collector.blocks if block.text]


def _known(name: str, default: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError:
        return default
