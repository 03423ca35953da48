"""Drops control, invisible and private-use characters, and joins words that are hyphenated at a line end. Runs only in
the child process (``app.readers.child``).

The cleaned text is read by the model and quoted to the user. It is in Unicode normal form NFC, has one kind of space,
and has no control characters. Overrides of the text direction are dropped too, because they can make the displayed text
differ from the stored text.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable

from app.language.tokens import LETTERS

_DROPPED = [
    *range(0x00, 0x09), *range(0x0E, 0x20), 0x7F, *range(0x80, 0x85), *range(0x86, 0xA0),  # control characters
    0xAD, 0x200B, 0x2060, 0xFEFF, 0x180E,  # soft hyphen, zero-width characters
    0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A),  # marks and overrides of text direction
    *range(0x206A, 0x2070), *range(0xFFF0, 0xFFFD), 0xFFFE, 0xFFFF, *range(0xD800, 0xE000),
    # private use: characters whose glyphs only their font defines, so that they cannot be quoted
    *range(0xE000, 0xF900),
]  # fmt: skip
_SPACES = [0x09, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F]
_BREAKS = [0x0B, 0x0C, 0x85, 0x2028, 0x2029]
# ligatures: Latin and Arabic presentation forms
_LIGATURES = [*range(0xFB00, 0xFB07), *range(0xFB50, 0xFDFE), *range(0xFE70, 0xFEFD)]
BULLETS = [0xF0B7, 0xF0A7, 0xF0D8]
"""Codes of bullets of the fonts Symbol and Wingdings, as word processors write them."""

_TABLE: dict[int, str] = {
    **dict.fromkeys(_DROPPED, ""),
    **dict.fromkeys(_SPACES, " "),
    **dict.fromkeys(_BREAKS, "\n"),
    **{
        code: unicodedata.normalize("NFKC", chr(code)) for code in _LIGATURES if unicodedata.category(chr(code)) != "Cn"
    },
    **dict.fromkeys(BULLETS, "•"),
}
_PRIVATE_PLANES = re.compile("[\U000f0000-\U0010ffff]")
PRIVATE = re.compile(
    f"(?![{''.join(map(chr, BULLETS))}])[\ue000-\uf8ff\ufffc\U000f0000-\U000ffffd\U00100000-\U0010fffd]"
)
"""Matches private-use characters and object placeholders. All of these are dropped. Known bullets are not matched."""

# Combining marks. At most 30 consecutive marks are kept, because NFC takes quadratic time to sort them. No script needs
# more than 30.
_MARKS = (
    "\u0300-\u036f\u0483-\u0489\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff"
    "\ufe20-\ufe2f"
)
# matches a line whose characters need no cleaning; spaces may still need merging
_PLAIN = re.compile(
    r"[ -~\xa1-\xac\xae-\u02af\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9\u2010-\u2027\u2030-\u205e\u2190-\u22ff]*\Z"
)
_PILED_MARKS = re.compile(f"([{_MARKS}]{{30}})[{_MARKS}]+")
_WORD = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)*")  # a compound is one word here, but "l'eau" is two
_LAST_PART = re.compile(r"([^\W\d_]+)-$")
_COMPOUND_PART = 3
"""Minimum letters of both parts of a hyphenated word, for the word to count as a compound of two words."""

_CLOSED_FIRST = frozenset(
    re.findall(
        r"\w+",
        "any some every out over under with inter sub super anti dis mis pre fore non per con com pro trans re un in up"
        " back down hand him her our your them copy",
    )
)
"""First parts after which English seldom writes a hyphen, such as "over" in "overlap"."""

# Matches an English number word, which has a hyphen: "twenty-one", "thirty-first".
_NUMBER = re.compile(
    "(?:twen|thir|for|fif|six|seven|eigh|nine)ty-"
    "(?:one|two|three|four|five|six|seven|eight|nine|(?:four|fif|six|seven|eigh|nin)th|first|second|third)"
)

# Matches the rest of a word that is divided at its ending; no stems are compared by it.
_ENDING = re.compile("ings?|ness|it(?:y|ies)|ed|ers?|ly|[ts]ions?|ments?|[ai]ble|ful|less|ous|ive|al|ally")


def characters(text: str) -> str:
    """Clean the characters of a text: drop control, invisible and private-use characters, expand ligatures, compose
    (NFC). Every line break becomes a line feed.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _PILED_MARKS.sub(r"\1", _PRIVATE_PLANES.sub("", text.translate(_TABLE)))
    return unicodedata.normalize("NFC", text)


def tidy(text: str) -> str:
    """Clean a line of text from pdfium: join surrogate pairs, clean the characters, merge spaces."""
    if _PLAIN.match(text):
        return " ".join(text.split())
    text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    return " ".join(characters(text).split())


def spaces(text: str) -> str:
    """Merge runs of spaces, trim line ends, and keep at most one blank line between paragraphs."""
    text = re.sub(r" {2,}", " ", text)
    text = re.sub(r" ?\n ?", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def paragraph(text: str) -> str:
    """Clean a paragraph's characters and spaces. Text whose characters need no cleaning takes a faster path."""
    if _PLAIN.match(text):
        return text.strip(" ") if "  " not in text else spaces(text)
    return spaces(characters(text))


def line_ends(text: str) -> str:
    """Trim line ends and merge blank lines. Keep all other spaces, because program text and tables need them."""
    # a regular expression would take quadratic time for a run of spaces
    trimmed = "\n".join(line.rstrip(" ") for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", trimmed).strip("\n")


def one_line(text: str, longest: int = 200) -> str:
    """Clean a text for use as a title or label: one line of at most ``longest`` characters."""
    text = " ".join(characters(text).split())
    return text if len(text) <= longest else text[: longest - 1].rstrip() + "…"


def vocabulary(lines: Iterable[str]) -> Counter[str]:
    """Count how often each word occurs in ``lines``. A hyphenated compound counts as one word."""
    counts: Counter[str] = Counter()
    for line in lines:
        words = [word.casefold() for word in _WORD.findall(line)]
        counts.update(words)
    return counts


def join_hyphenated(left: str, right: str, words: Counter[str]) -> str:
    """Join the line ``left``, which ends in a hyphen, and the line ``right``. ``words`` has the counts of the book's
    words.

    The hyphen is dropped if ``right`` starts with a lowercase letter, except in four cases:

    - The book has the word more often with the hyphen than without.
    - A hyphen follows the first word of ``right`` too, as in state-of-the-art.
    - The word is a number, and the book never has it without the hyphen.
    - The book never has the word without the hyphen, but has its two parts as words that can form a compound.
    """
    last, first = _LAST_PART.search(left), LETTERS.match(right)
    if last is None or first is None or not right[0].islower():
        return left + right
    one, two = last[1].casefold(), first[0].casefold()
    whole, compound = words[one + two], words[f"{one}-{two}"]
    is_number = not whole and _NUMBER.fullmatch(f"{one}-{two}")
    if compound > whole or is_number or right[first.end() :].startswith("-"):  # the hyphen belongs to the word
        return left + right
    words_both = min(len(one), len(two)) >= _COMPOUND_PART and words[one] > 1 and words[two] > 1
    if not whole and words_both and one not in _CLOSED_FIRST and not _ENDING.fullmatch(two):
        return left + right
    return left[:-1] + right
