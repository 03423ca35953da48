"""Reads web pages that a browser saved in one file (MHTML): the page, with the pages in its frames. Runs only in the
child process (``app.readers.child``).
"""

from __future__ import annotations

import re
from email import message_from_bytes, policy
from email.message import Message
from pathlib import Path
from typing import Any

from app.readers import markup, picture_marks
from app.readers.parsed import Limits, Opening, Parsed, Refused, Step

_MAIL = re.compile(r"^MIME-Version:\s*1\.0", re.I | re.M)
_SENT = re.compile(r"^(?:To|Received|Message-ID|Delivered-To):", re.I | re.M)
_PARTS = re.compile(r"^Content-Type:\s*multipart/related", re.I | re.M)
_MOST_FRAMES = 100  # maximum pages of frames that are read
_MOST_MARKUP = 5  # maximum bytes of a page, as a multiple of the maximum characters of a book


def is_saved_page(opening: Opening) -> bool:
    """Whether a text is a saved page: it is written as a mail, but was not sent."""
    head = opening.first_lines
    return bool(_MAIL.search(head) and _PARTS.search(head)) and not _SENT.search(head)


def parse(path: Path, request: dict[str, Any], limits: Limits, step: Step) -> Parsed:
    """Read an MHTML file."""
    step(0, 1, None)
    mail = message_from_bytes(path.read_bytes(), policy=policy.compat32)
    pages = [part for part in mail.walk() if part.get_content_type() in ("text/html", "application/xhtml+xml")]
    if not pages:
        raise Refused("is a saved web page (MHTML) with no page in it.", "Save the page again as HTML or PDF.")
    keys = picture_marks.keys_of_parts(mail)
    texts = [picture_marks.with_keys_of_parts(_content(part), keys) for part in pages[: _MOST_FRAMES + 1]]
    if sum(map(len, texts)) > _MOST_MARKUP * limits.characters:
        raise Refused(f"has more than {limits.characters:,} characters.", "Split it into smaller files.")
    return markup.parsed(texts, lambda: step(0, 1, None))


def _content(part: Message) -> str:
    payload = part.get_payload(decode=True)
    data = payload if isinstance(payload, bytes) else b""
    try:
        charset = part.get_content_charset()
        return data.decode(charset) if charset else markup.decode_html(data)
    except (LookupError, ValueError):  # a name with a null character is no name of an encoding
        return markup.decode_html(data)
