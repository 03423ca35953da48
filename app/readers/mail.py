"""Reads a mail (.eml) or a mailbox (.mbox): sender, recipients and other headers, and the decoded text of every part.

The parser of the standard library splits a mail into parts. Technical headers, such as the route and server signatures,
are left out. Parts without text are named in a warning. Runs only in the child process (``app.readers.child``).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from email import message_from_bytes, policy
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from pathlib import Path
from typing import Any

from app.readers import cleaning, encoding, lines, markup, picture_marks, text
from app.readers.left_out import told
from app.readers.parsed import Limits, Opening, Parsed, Refused, Step
from app.readers.picture_marks import IN_PAGE
from app.readers.sections import Chapter, finish

_TECHNICAL = re.compile(
    r"(?:x-.*|content-.*|mime-version|received.*|return-path|delivered-to|dkim-.*|domainkey-.*|arc-.*|authentication-.*"
    r"|list-.*|precedence|auto-submitted|envelope-.*|thread-.*|feedback-id|errors-to|require-recipient.*|user-agent"
    r"|msip_labels|autocrypt|xref|nntp-.*)",
    re.I,
)
# Matches headers for message ids. Such a header is left out as technical only if it contains an id, because a line that
# begins with "References:" may also be written by a person.
_NUMBERS = re.compile(r"message-id|references|in-reply-to", re.I)
_NUMBER = re.compile(r"<[^<>@\s]+@[^<>\s]+>")
_FIELD = re.compile(r"([A-Za-z][A-Za-z-]{1,40}):(?:[ \t]|$)")
_FROM_LINE = re.compile(rb"(?:\A|\n)From [^\n]{0,200}\d\d:\d\d[^\n]{0,60}\n")
_SENDERS = frozenset(("from", "sender", "received", "return-path"))
_OTHERS = frozenset(("date", "sent", "subject", "to", "mime-version", "message-id", "content-type"))
_DEEPEST = 20  # maximum nesting of mails; a file with deeper mails is refused
# maximum share of the words of a text's HTML form that the plain form may lack; if it lacks more, the HTML form is read
_LACKED = 0.1
# The two forms of a mail are compared number by number, whatever apostrophes and hyphens they use.
_WORD = re.compile(r"\d[\d.,:]*\d|\w+")
_MOST_NAMED = 5


def is_mail(opening: Opening) -> bool:
    """Whether a text starts like a mail or a mailbox: with a sender and another header."""
    rows = opening.first_lines.split("\n")
    if rows and rows[0].startswith("From "):
        rows = rows[1:]
    names: set[str] = set()
    for row in rows:
        field = _FIELD.match(row)
        if field is not None:
            names.add(field[1].casefold())
        elif not row.strip() or not row[0].isspace() or not names:
            break
    return bool(names & _SENDERS) and bool(names & _OTHERS)


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read a mail or a mailbox."""
    step(0, 1, None)
    data = path.read_bytes()
    if len(data) > 4 * limits.characters:
        raise Refused(f"has {len(data) / 1e6:,.0f} MB; that is more than a book.", "Split it into parts.")
    data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    starts = [match.start() + (match[0][:1] == b"\n") for match in _FROM_LINE.finditer(data)]
    starts = starts if starts and starts[0] == 0 else [0]
    if len(starts) > limits.pages:  # before they are read, which takes minutes
        raise Refused(f"has more than {limits.pages:,} sections.", "Split it into smaller files.")
    parser = _MailParser()
    chapters = []
    for at, (start, end) in enumerate(zip(starts, [*starts[1:], len(data)], strict=True)):
        step(at, len(starts), None)
        piece = data[start:end]
        if piece.startswith(b"From "):
            piece = piece.partition(b"\n")[2]
        mail = message_from_bytes(piece, policy=policy.compat32)
        words = parser.words(mail)
        chapters.append(Chapter(_head(mail, "subject") or "No subject", words, listed=len(starts) > 1))
    sections, outline = finish(chapters)
    one = len(chapters) == 1
    title = chapters[0].title if one and chapters[0].title != "No subject" else ""
    author = _head(mail, "from") if one else ""
    said = parser.warnings() + told(parser.left_out, (chapter.text for chapter in chapters))
    return Parsed(sections, title, author, outline, said, parser.left_out)


class _MailParser:
    """Reads the parts of mails. Collects the names of parts without text."""

    def __init__(self) -> None:
        self._attached: list[str] = []
        self.left_out: Counter[str] = Counter()
        self._broken = 0
        self._keys: dict[str, str] = {}  # keys of the pictures of the present mail, by the addresses that it uses
        self._pictures = 0

    def warnings(self) -> list[str]:
        said = []
        if count := len(self._attached):
            named = ", ".join(self._attached[:_MOST_NAMED]) + (", …" if count > _MOST_NAMED else "")
            what = "1 attachment or picture is" if count == 1 else f"{count} attachments or pictures are"
            said.append(f"{what} not read: {named}. Save and open what is a document by itself.")
        if self._pictures:
            said.append(f"Pictures without a description, whose words are not read: {self._pictures:,}.")
        if self._broken:
            said.append(f"{self._broken} characters could not be read and are shown as \ufffd.")
        return said

    def words(self, mail: Message, depth: int = 0) -> str:
        """Return the headers that are not technical, and the text of every part of a mail."""
        if depth == 0:
            self._keys = picture_marks.keys_of_parts(mail)
        heads = [f"{name}: {_decoded(value)}" for name, value in mail.raw_items() if not _is_technical(name, value)]
        return "\n\n".join(part for part in ("\n".join(heads), self._part(mail, depth)) if part.strip())

    def _part(self, part: Message, depth: int) -> str:
        kind = part.get_content_type()
        if kind in ("multipart/encrypted", "application/pkcs7-mime", "application/x-pkcs7-mime"):
            raise Refused("is an encrypted mail.", "Open it in your mail program and save its words as text.")
        if kind == "multipart/alternative":
            return self._alternative(part, depth)
        if part.is_multipart():
            payload = part.get_payload()
            inner = [one for one in payload if isinstance(one, Message)] if isinstance(payload, list) else []
            if depth > _DEEPEST:
                raise Refused("holds mails in mails without end.", "Save the one that you need by itself.")
            read = self.words if kind == "message/rfc822" else self._part
            return "\n\n".join(words for one in inner if (words := read(one, depth + 1)))
        if key := picture_marks.key_of_part(part):
            return picture_marks.mark(key)
        name = _decoded(_stated(part.get_filename))
        if part.get_content_maintype() not in ("text", "message"):
            self._attached.append(cleaning.one_line(name) or kind)
            return ""
        words = self._text(part, kind)
        attached = part.get_content_disposition() == "attachment" and name
        return f"{cleaning.one_line(name)}:\n\n{words}" if attached else words

    def _alternative(self, part: Message, depth: int) -> str:
        """Return the plain form of a text that has a plain and an HTML form. If the HTML form says
        what the plain form lacks, return the HTML form.
        """
        payload = part.get_payload()
        forms = [one for one in payload if isinstance(one, Message)] if isinstance(payload, list) else []
        plain = next((one for one in forms if one.get_content_type() == "text/plain"), None)
        rich = [one for one in forms if one is not plain and one.get_content_type() != "text/x-amp-html"]
        written = self._part(plain, depth + 1) if plain is not None else ""
        before = Counter(self.left_out)
        shown = self._part(rich[-1], depth + 1) if rich and depth <= _DEEPEST else ""
        if _holds_more(shown, written):
            return shown
        self.left_out = before
        return "\n\n".join(filter(None, (written, *picture_marks.marks_in(shown))))

    def _text(self, part: Message, kind: str) -> str:
        payload = part.get_payload(decode=True)
        data = payload if isinstance(payload, bytes) else b""
        if kind == "text/html":
            page = picture_marks.with_keys_of_parts(_read(data, part) or markup.decode_html(data), self._keys)
            content = markup.read(page, marks=True)
            self._pictures += picture_marks.named(content.blocks, lambda key: key if key.startswith(IN_PAGE) else "")
            self.left_out.update(content.left_out)
            return "\n\n".join(block.text for block in content.blocks)
        raw = _read(data, part) or encoding.decode(data)[0]
        self._broken += raw.count("\ufffd")
        raw = raw.replace("\r\n", "\n").replace("\r", "\n")
        flowing = str(part.get_param("format", "")).casefold() == "flowed"
        if flowing:
            raw = _unfolded(raw, "" if part.get_param("delsp") == "yes" else " ")
        whole = kind != "text/plain" or flowing
        words = cleaning.characters(lines.tabs(raw, whole))
        return words if whole else text.flowed(words)


def _holds_more(shown: str, written: str) -> bool:
    """Whether the HTML form of a text says what its plain form lacks: a number or a notable share of its words."""
    words = Counter(word.casefold() for word in _WORD.findall(shown))
    lacked = words - Counter(word.casefold() for word in _WORD.findall(written))
    numbers = any(len(word) > 1 and word[0].isdigit() for word in lacked)
    return numbers or lacked.total() > _LACKED * words.total()


def _unfolded(raw: str, joint: str) -> str:
    """Join the lines of a flowed text (RFC 3676): a line that ends in a space continues on the next line. Quoted lines
    and the "-- " above a signature are not joined.
    """
    rows: list[str] = []
    for row in raw.split("\n"):
        above = rows[-1] if rows else ""
        if above.endswith(" ") and above != "-- " and not above.startswith(">") and not row.startswith(">"):
            rows[-1] = above[:-1] + joint + row if row != "-- " else above + "\n" + row
        else:
            rows.append(row)
    return "\n".join(rows)


def _stated(read: Callable[[], str | None]) -> str:
    """What a part states in an encoding of its own; "" if it states nothing, or names an encoding that cannot be (RFC
    2231; Python's parser fails at a name with a null character).
    """
    try:
        return read() or ""
    except ValueError:
        return ""


def _read(data: bytes, part: Message) -> str | None:
    """Decode a part with the encoding that it states; None if the encoding is missing or wrong."""
    charset = _stated(part.get_content_charset)
    if not charset:
        return None
    try:
        return data.decode(charset)
    except (LookupError, UnicodeError, ValueError):
        return None


def _is_technical(name: str, value: str) -> bool:
    return bool(_TECHNICAL.fullmatch(name) or (_NUMBERS.fullmatch(name) and _NUMBER.search(value)))


def _head(mail: Message, name: str) -> str:
    values = (value for one, value in mail.raw_items() if one.casefold() == name)
    return cleaning.one_line(_decoded(next(values, "")))


def _decoded(value: str) -> str:
    """Decode and unfold a header."""
    value = encoding.decode(value.encode("utf-8", errors="surrogateescape"))[0]
    try:
        plain = str(make_header(decode_header(value)))
    except (LookupError, UnicodeError, ValueError, MessageError):
        plain = value
    return " ".join(cleaning.characters(plain).split())
