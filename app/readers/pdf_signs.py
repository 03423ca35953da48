"""Puts the characters of a PDF page into reading order, and marks accents and superscripts. Runs only in the child
process (``app.readers.child``).

pdfium returns characters in the order of the file. The characters' positions show which of them belong together.
"""

from __future__ import annotations

import math
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from ctypes import byref, c_double, c_float
from itertools import islice, pairwise

import pypdfium2 as pdfium
import pypdfium2.raw as raw

from app.readers import pdf_calls
from app.readers.layout import Line
from app.readers.pdf_glyphs import PageFonts, with_signs
from app.readers.pdf_grids import Box

_ACCENTS = dict(
    zip("`´ˆ˜¨˚ˇ˘˙˝¸¯", "\u0300\u0301\u0302\u0303\u0308\u030a\u030c\u0306\u0307\u030b\u0327\u0304", strict=True)
)
_ACCENT = re.compile(f"[{''.join(_ACCENTS)}]")
# minimum width of a CJK character in line heights; if the characters of a word are narrower, some may be drawn twice
_CROWDED = 0.6
SAME_PLACE = 0.2  # maximum distance, in line heights, between two drawings of one letter
_WIDE = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uff00-\uff60]")
DIGIT_LAST = re.compile(r"\d(?=[.,;:!?)\]»”’\"']*$)")
RAISED = re.compile(r"[-−–+]?\d{1,3}(?:[,–-]\d{1,3})*")
_SMALLER = 0.85  # maximum height of a superscript, as a share of the line's letter height
# minimum height above the line's lower edge of a superscript in small type, as a share of the letter height
_HIGHER = 0.15
_MUCH_HIGHER = 0.3
_HIGH_INK = 0.4  # minimum height of a superscript's ink above the line's lower edge, as a share of the letter height
_LOWER = 0.1  # minimum depth of a subscript below the line, as a share of the letter height
_CHARGES = ("+", "−")
_NAME = re.compile(r"[^\W\d_]{3,}")
_POWER_BASE = re.compile(
    r"(?:^|[^\w.,])\d{1,2}$|(?:^|[\W\d_])(?:[kcdmµμn]?m|ft|yd|mi|in|s|sec|[A-Za-zµα-ωΑ-Ω]|[b-df-hj-np-tv-xz]{2,3}|[\U0001d400-\U0001d7ff]+)$",
    re.ASCII,
)  # matches text that may have an exponent: a number below 100, a unit, a single letter, two or three consonants
_FILLER = "\u200b"  # replaces a removed character, so that indices stay the same; ``cleaning`` drops it later
WORD = re.compile(r"\S+")
# a word lacks a space if its widest gap exceeds its second widest gap by more than this, in line heights
_SPACE = 0.1
_STEPS = 8  # number of parts into which a line is cut to look at the characters along it
_MIDDLE = 0.15  # share of a character's ink at its top, and also at its bottom, through which no word is struck
_MOSTLY = 0.6
_FAR = 0.5  # minimum gap, in line heights, that separates two words even if all gaps of a word are wide
_NARROWEST = 0.35  # mean width, in line heights, of the characters of a narrow number such as 1.1
_ROW = re.compile(r"[^\r\n]+")
_TWO_LETTERS = re.compile(r"[^\W\d_]{2}")
_LETTER_PAIR = re.compile(r"[^\W\d_](?=(\s*)[^\W\d_])")  # matches a letter before another, with or without a space
_SAMPLED = 5  # pairs of letters that tell whether a row may be letterspaced
# matches the second and third of three letters in a row that stand alone; begins with a blank because that is fast
_SPREAD = re.compile(r" [^\W\d_] [^\W\d_](?!\S)(?<=(?<!\S)[^\W\d_] [^\W\d_] [^\W\d_])")
_TORN_PAGE = 0.12  # minimum share of words of a single letter on a page without three of them in a row
_TORN_SHARE = 0.3  # minimum share of words of a single letter in a row that may be letterspaced
_SPACED = (0.06, 0.6)  # minimum and maximum gap, in line heights, between the letters of a letterspaced row
_SPACED_LETTERS = 4  # minimum pairs of letters by which the gap between letters is measured
_SPACED_MORE = 1.4  # minimum gap between two words of a letterspaced row, as a factor of the gap between letters
BREAK = "\r\n"
_BROKEN = 10  # maximum mean characters per line on a page whose rows pdfium may have split into several lines
# pdfium has split a page's rows if at least this share of the page's line breaks is between touching characters
_BROKEN_SHARE = 0.5
_SAME_WORD = 0.15  # maximum gap, in line heights, between characters of one word
# maximum gap, in line heights, between characters of one right-to-left word; joined Arabic letters leave wide gaps
_SAME_RTL_WORD = 0.2
_SAME_PHRASE = 1.0
_SAME_ROW = 0.5  # minimum vertical overlap of two characters in one row, as a share of the smaller height
_STACKED = 1.2  # minimum ratio of height to width of a word whose letters may stand in several rows
_LEVEL = 0.1  # maximum rotation of an upright character in radians
# minimum letter height in points for the search of missing spaces; boxes of smaller letters are too imprecise
_LEGIBLE = 3.0
TOUCH = 0.15  # maximum gap, in line heights, between two parts of one word
# right-to-left characters except digits
_RTL_SIGNS = r"\u0590-\u065f\u066e-\u06ef\u06fa-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"
RTL = re.compile(r"[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]")
_RTL_LETTERS = (  # right-to-left letters and their vowel points
    r"\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7-\u05f4\u0610-\u061a\u0620-\u065f"
    r"\u066e-\u06d3\u06d5-\u06ef\u06fa-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"
)
_RTL_WORD = re.compile(f"[{_RTL_LETTERS}]{{2,}}")
_LTR_RUN = re.compile(  # matches words of Latin letters, or a single number
    r"[A-Za-z\d](?:[A-Za-z\d.,:/'’@&+_ -]*[A-Za-z\d])?(?<=[A-Za-z])|\d(?:[.,:/-]?\d)*|[A-Za-z][A-Za-z\d.,:/'’@&+_ -]*\d"
)
_AFTER_NUMBER = re.compile(r"(?<!\S)([.,:;!?،؛؟]+)(\d+(?:[.,:/\u066b\u066c-]\d+)*)(?!\S)")
_BRACKETS = str.maketrans("()[]{}«»", ")(][}{»«")
_BRACKET = re.compile(r"[()\[\]{}«»]")
_OPENED_EARLY = re.compile(r"(?<=\S)([(\[{«]) (?=\S)")
_RTL_PHRASE = re.compile(f"[{_RTL_SIGNS}]+(?: +[{_RTL_SIGNS}]+)+")
_NEVER_JOINED = frozenset("اأإآٱٲٳدذڈرزژڑوؤۆۇۈةىء")  # letters that never join the next letter
_TOUCHING = 0.05  # maximum gap, in line heights, between adjacent letters of one word
_SPELLED = 2  # number of letters of the longest ligature


def raw_text(text_page: pdfium.PdfTextPage) -> str:
    """Return pdfium's text of a page, with exactly one character for each pdfium index."""
    count = text_page.count_chars()
    text: str = text_page.get_text_range() if count else ""
    # rarely, pdfium's text of the whole page lacks a character or has two for one, so pdfium is asked for each
    # character
    if len(text) != count:
        text = "".join(chr(raw.FPDFText_GetUnicode(text_page.raw, index)) for index in range(count))
        text = text.replace("\x00", " ")
    return text


def joined_rows(text: str, boxes: CharacterBoxes) -> str:
    """Return the text of a page with few words, without the line breaks that pdfium puts inside its rows.

    pdfium mistakes the rows of such a page for vertical text. ``boxes`` is renumbered for the remaining characters.
    """
    count = text.count(BREAK)
    if _BROKEN * count < len(text) or count < 2:
        return text
    breaks = (match.span() for match in re.finditer(r"(?<=\S)\r\n(?=\S)", text))
    gaps = [boxes.gap(start - 1, end) for start, end in breaks]
    if sum(gap is not None and gap < _SAME_RTL_WORD for gap in gaps) < _BROKEN_SHARE * count:
        return text
    if 2 * len(RTL.findall(text)) > sum(map(str.isalpha, text)):
        return _rows_from_the_right(text, boxes)
    signs: list[str] = []
    numbers: list[int] = []
    at = 0
    while at < len(text):
        if text.startswith(BREAK, at) and numbers and at + len(BREAK) < len(text):
            gap = boxes.gap(numbers[-1], at + len(BREAK))
            if gap is not None and gap < _SAME_WORD:
                at += len(BREAK)
            elif gap is not None and gap < _SAME_PHRASE:
                signs.append(" ")
                numbers.append(at)
                at += len(BREAK)
                continue
        signs.append(text[at])
        numbers.append(at)
        at += 1
    boxes.number(numbers)
    return "".join(signs)


def _rows_from_the_right(text: str, boxes: CharacterBoxes) -> str:
    """Rebuild the rows of a right-to-left page from the positions of its characters, because their order in ``text`` is
    wrong.
    """
    characters = [(box, at) for at, sign in enumerate(text) if not sign.isspace() and (box := boxes.span(at, at))]
    rows: list[list[tuple[Box, int]]] = []
    for box, at in sorted(characters, key=lambda each: each[0][2]):
        last = rows[-1][0][0] if rows else None
        overlap = min(last[3], box[3]) - max(last[2], box[2]) if last else 0.0
        if last and overlap > _SAME_ROW * min(last[3] - last[2], box[3] - box[2]):
            rows[-1].append((box, at))
        else:
            rows.append([(box, at)])
    signs: list[str] = []
    numbers: list[int] = []
    for row in rows:
        row.sort(key=lambda each: (-round(each[0][0] + each[0][1]), -each[1]))
        height = max(box[3] - box[2] for box, _ in row)
        words: list[str] = []
        places: list[int] = []
        for before, (box, at) in zip([None, *row], row, strict=False):
            if before and before[0][0] - box[1] > _SAME_RTL_WORD * height:
                words.append(" ")
                places.append(at)
            words.append(text[at])
            places.append(at)
        for match in _LTR_RUN.finditer("".join(words)):
            here = slice(*match.span())
            words[here], places[here] = words[here][::-1], places[here][::-1]
        signs += [*words, "\n"]
        numbers += [*places, places[-1]]
    boxes.number(numbers)
    return "".join(signs)


def with_whole_words(text: str, boxes: CharacterBoxes) -> str:
    """Return a page's text without the spaces inside letterspaced words. pdfium adds a space before a letter that is
    as far from the letter before it as all letters of the line are from one another.
    """
    alone = sum(map(str.isalpha, [word for word in text.split() if len(word) == 1]))
    if alone < _TORN_PAGE * text.count(" ") and not _SPREAD.search(text):
        return text
    return _ROW.sub(lambda row: _joined_letters(row, boxes), text)


def _joined_letters(row: re.Match[str], boxes: CharacterBoxes) -> str:
    words = row[0].split()
    single = sum(map(str.isalpha, [word for word in words if len(word) == 1]))
    if not single or single < _TORN_SHARE * len(words):
        return row[0]
    pairs = [row.start() + pair.start() for pair in islice(_TWO_LETTERS.finditer(row[0]), _SAMPLED)]
    near = wide = 0
    for at in pairs if len(pairs) == _SAMPLED else ():
        gap = boxes.gap(at, at + 1)
        near, wide = near + (gap is not None and gap <= _SPACED[0]), wide + (gap is not None and gap >= _SPACED[1])
        if 2 * max(near, wide) > _SAMPLED:
            return row[0]
    gaps: list[float] = []
    apart: list[tuple[int, int]] = []
    for pair in _LETTER_PAIR.finditer(row[0]):
        one, two = pair.start(), pair.end(1)
        if not (row[0][one].isalpha() and row[0][two].isalpha()):
            continue
        if two - one > 1:
            apart.append((one, two))
        elif (gap := boxes.gap(row.start() + one, row.start() + two)) is not None:
            gaps.append(gap)
    if len(gaps or apart) < _SPACED_LETTERS:
        return row[0]
    breaks = [
        (one, two, gap)
        for one, two in apart
        if single == len(words) or all(boxes.is_generated(row.start() + at) for at in range(one + 1, two))
        if (gap := boxes.gap(row.start() + one, row.start() + two)) is not None
    ]
    known = sorted(gaps or [gap for _, _, gap in breaks])
    usual = known[len(known) // 2] if known else 0.0
    if len(known) < _SPACED_LETTERS or not _SPACED[0] < usual < _SPACED[1]:
        return row[0]
    signs = list(row[0])
    for one, two, gap in breaks:
        if gap < _SPACED_MORE * usual:
            signs[one + 1 : two] = _FILLER * (two - one - 1)
    return "".join(signs)


def text_as_read(page: pdfium.PdfPage, text_page: pdfium.PdfTextPage) -> str:
    """Return pdfium's text of a page, with signs and right-to-left words as in ``page_lines``."""
    text = with_signs(raw_text(text_page), text_page, PageFonts(text_page))
    boxes = CharacterBoxes(text_page, page.get_rotation(), page.get_bbox())
    return as_read(with_whole_words(text, boxes), boxes)


def as_read(text: str, boxes: CharacterBoxes) -> str:
    """Return a text with right-to-left words and phrases in reading order. Some files store these reversed.

    A word is reversed if its first letter is to the left of its last letter on the page. A word of more than two
    letters is also reversed if these two letters have the same position. The words of a phrase are reversed if each
    word is to the left of the next.
    """
    signs = _with_accents(text, boxes)
    for match in _RTL_WORD.finditer(text):
        one, two = boxes.place(match.start()), boxes.place(match.end() - 1)
        if one is not None and two is not None and (one < two or (one == two and len(match[0]) > _SPELLED)):
            signs[match.start() : match.end()] = reversed(match[0])
        else:
            _put_pairs_right(signs, match, boxes)
    text = "".join(signs)
    for match in _RTL_PHRASE.finditer(text):
        words = list(WORD.finditer(text, match.start(), match.end()))
        for before, word in pairwise(words):
            if _touch(boxes.span(before.start(), before.end() - 1), boxes.span(word.start(), word.end() - 1)):
                signs[before.end() : word.start()] = _FILLER * (word.start() - before.end())
        places = [boxes.place(word.start()) for word in words]
        if all(one is not None and two is not None and one < two for one, two in pairwise(places)):
            signs[match.start() : match.end()] = " ".join(word[0] for word in reversed(words)).ljust(len(match[0]))
    text = "".join(signs)
    return _ROW.sub(lambda row: _neutral_signs(row, boxes), text) if RTL.search(text) else text


def _touch(right: Box | None, left: Box | None) -> bool:
    """Whether two right-to-left words touch. They are one word then, because pdfium inserts a space before some
    ligatures.
    """
    if right is None or left is None or left[0] > right[0]:
        return False
    return right[0] - left[1] < _TOUCHING * (right[3] - right[2])


def _neutral_signs(row: re.Match[str], boxes: CharacterBoxes) -> str:
    """Put the punctuation of a row with right-to-left words into reading order, and mirror its brackets where needed.
    Return a row unchanged if at most half of its letters are right-to-left.

    Punctuation to the left of a number moves after the number. All brackets are mirrored if the first bracket of the
    row is a closing bracket and the last an opening bracket.
    """
    text = row[0]
    if 2 * len(RTL.findall(text)) <= sum(map(str.isalpha, text)):
        return text

    def after(match: re.Match[str]) -> str:
        sign, number = (boxes.place(row.start() + match.start(part)) for part in (1, 2))
        return match[2] + match[1] if sign is not None and number is not None and sign < number else match[0]

    text = _AFTER_NUMBER.sub(after, text)
    brackets = _BRACKET.findall(text)
    if len(brackets) > 1 and brackets[0] in ")]}»" and brackets[-1] in "([{«":
        text = text.translate(_BRACKETS)
        text = _OPENED_EARLY.sub(r" \1", text)
    return text


def _put_pairs_right(signs: list[str], match: re.Match[str], boxes: CharacterBoxes) -> None:
    """Swap the two letters of a ligature that pdfium returns in the wrong order, such as lam and alef.

    The first letter of a ligature always joins the second letter. So the order is wrong if the first letter never joins
    a following letter.
    """
    at = match.start()
    while at < match.end() - 1:
        if signs[at] in _NEVER_JOINED and signs[at + 1] not in _NEVER_JOINED:
            one, two = boxes.span(at, at), boxes.span(at + 1, at + 1)
            if one is not None and two is not None and (one == two or one[1] <= two[0] + _TOUCHING * (one[3] - one[2])):
                signs[at], signs[at + 1] = signs[at + 1], signs[at]
                at += 1
        at += 1


def _with_accents(text: str, boxes: CharacterBoxes) -> list[str]:
    """Replace a letter and an accent that is drawn over the letter, as in older TeX, by the accented letter. An
    invisible character takes the accent's place, so that indices stay the same.

    The accent must be above the letter, because an accent next to a letter may be an apostrophe.
    """
    signs = list(text)
    for match in _ACCENT.finditer(text):
        at = match.start()
        accent = boxes.span(at, at)
        for other in (at + 1, at - 1):
            letter = boxes.span(other, other) if 0 <= other < len(text) and signs[other].isalpha() else None
            if accent is None or letter is None or not letter[0] <= (accent[0] + accent[1]) / 2 <= letter[1]:
                continue
            bare = {"ı": "i", "ȷ": "j"}.get(signs[other], signs[other])
            whole = unicodedata.normalize("NFC", bare + _ACCENTS[match[0]])
            if len(whole) == 1:
                signs[other], signs[at] = whole, _FILLER
                break
    return signs


def may_be_doubled(word: str, width: float, height: float) -> bool:
    """Whether the letters of a word may be drawn twice to look bold. Such a word starts with two pairs of equal
    letters, or is too narrow for its CJK characters.
    """
    pairs = word[0] == word[1] and word[2] == word[3]
    return pairs or (_WIDE.match(word) is not None and width < _CROWDED * len(word) * height)


def once(word: str, start: int, boxes: CharacterBoxes) -> str:
    """Remove each letter of a word that is drawn at the place of an equal letter."""
    kept: list[tuple[str, Box]] = []
    for at, sign in enumerate(word):
        box = boxes.span(start + at, start + at)
        if box is None:
            return word
        reach = min(SAME_PLACE * (box[3] - box[2]), (box[1] - box[0]) / 2)
        if not any(
            sign == other and abs(box[0] - place[0]) < reach and abs(box[2] - place[2]) < reach for other, place in kept
        ):
            kept.append((sign, box))
    return "".join(sign for sign, _ in kept)


def with_raised(word: str, start: int, boxes: CharacterBoxes) -> str:
    """Mark the superscript at the end of a word: an exponent as ``10^6``, a reference to a note as ``1871[3]``."""
    match = DIGIT_LAST.search(word)
    if match is None or match.start() == 0:
        return word
    last = match.start()
    first, raised = boxes.span(start, start), boxes.span(start + last, start + last)
    if first is None or raised is None:
        return word
    if is_raised(raised, first):
        is_above = boxes.span
    # the font may have a superscript glyph, whose ink is small and raised while its box is as large as other boxes
    elif boxes.floats(start + last, start, first):
        is_above = boxes.ink
        first = boxes.ink(start, start) or first
    else:
        return word
    at = last
    while at > 1 and (box := is_above(start + at - 1, start + at - 1)) is not None and is_raised(box, first):
        at -= 1
    base, above, rest = word[:at], word[at : last + 1], word[last + 1 :]
    if not RAISED.fullmatch(above) or not any(map(str.isalnum, base)):
        return word
    beside = is_above(start + at - 1, start + at - 1)
    if at > 1 and beside is not None and _is_lowered(beside, first):
        return f"{base}^{above}{rest}"
    return _marked(base, above, rest)


def raised_anew(text: str, start: int, word: str, boxes: CharacterBoxes) -> str:
    """Mark the superscript at the start of ``word`` if pdfium has put a line break between the superscript and the text
    to which it belongs. Return any other word unchanged.
    """
    match = RAISED.match(word)
    end = start
    while end and text[end - 1].isspace():
        end -= 1
    if not end or match is None or text.count("\n", end, start) != 1:
        return word
    beside, raised = boxes.span(end - 1, end - 1), boxes.span(start, start)
    if beside is None or raised is None or raised[3] >= beside[3]:
        return word
    begin = max(text.rfind(" ", 0, end), text.rfind("\n", 0, end)) + 1
    last = text[begin:end]
    if not any(map(str.isalnum, last)):
        return word
    first = boxes.span(begin, begin) or beside
    base = first if _is_lowered(beside, first) else beside  # the superscript may follow a subscript
    if not is_raised(raised, base) or raised[3] <= base[2]:
        return word
    if abs(raised[0] - beside[1]) > TOUCH * (base[3] - base[2]):
        return word
    above, rest = match[0], word[match.end() :]
    return f"^{above}{rest}" if base is not beside else _marked(last, above, rest)[len(last) :]


def _marked(base: str, above: str, rest: str) -> str:
    """Join a word and its superscript. An exponent or a charge becomes "^2", a reference to a note "[2]"."""
    power = _is_power(base, above) or rest.startswith(_CHARGES)
    return f"{base}^{above}{rest}" if power else f"{base}[{above}]{rest}"


def is_raised(box: Box, line: Box) -> bool:
    """Whether a character is much higher than the characters of ``line``, or higher and smaller."""
    height = line[3] - line[2]
    higher = line[3] - box[3]
    return higher > _MUCH_HIGHER * height or (box[3] - box[2] < _SMALLER * height and higher > _HIGHER * height)


def _is_lowered(box: Box, line: Box) -> bool:
    return box[3] - line[3] > _LOWER * (line[3] - line[2])


def _is_power(base: str, above: str) -> bool:
    """Whether the superscript ``above`` is an exponent, not a reference to a note. It is an exponent if it starts with
    a plus or minus sign, or if ``base`` may have an exponent.
    """
    if not above[0].isdigit():
        return True
    if base[-1] in ")]}":
        return not _NAME.search(base)
    return _POWER_BASE.search(base) is not None


class CharacterBoxes:
    """Looks up the boxes of a page's characters. Positions are on the page as displayed, from the top left of its
    visible area.
    """

    def __init__(self, text_page: pdfium.PdfTextPage, rotation: int, visible: Box) -> None:
        self._raw = text_page.raw
        self._text = pdf_calls.handle(text_page.raw)
        self._rect = (c_float * 4)()  # left, top, right and bottom of raw.FS_RECTF
        self._place = byref(self._rect)
        self._sides = memoryview(self._rect).cast("B").cast("f")  # reads them twice as fast as a slice
        self._edges = [c_double() for _ in range(4)]
        self._edge_refs = [byref(edge) for edge in self._edges]
        self._rotation = rotation
        self._left, self._bottom, self._right, self._top = visible
        across, down = self._right - self._left, self._top - self._bottom
        self._width, self._height = (down, across) if rotation % 180 else (across, down)
        self.numbers: list[int] | None = None
        """For each index, pdfium's index of the character; None as long as the two are the same."""
        self._ascends = True
        self._known: dict[int, Box | None] = {}
        self._moved: dict[int, Box] = {}  # boxes of characters that stand elsewhere than pdfium says

    def number(self, numbers: list[int], places: Mapping[int, Box] | None = None) -> None:
        """Renumber the characters after the text has changed.

        Args:
            numbers: for each new index, the previous index of the character.
            places: new boxes of characters that have moved, keyed by new index.
        """
        self._moved = {**self._moved_anew(numbers), **(places or {})}
        self.numbers = numbers if self.numbers is None else list(map(self.numbers.__getitem__, numbers))
        self._ascends = self.numbers == sorted(self.numbers) and bool(numbers)
        self._known = dict(self._moved)

    def _moved_anew(self, numbers: list[int]) -> dict[int, Box]:
        """Return the boxes of moved characters, keyed by their indices after ``number``. Few characters have moved."""
        if self._moved and numbers != sorted(numbers):
            return {new: self._moved[old] for new, old in enumerate(numbers) if old in self._moved}
        ends = ((old, bisect_left(numbers, old), bisect_right(numbers, old)) for old in self._moved)
        return {new: self._moved[old] for old, start, end in ends for new in range(start, end)}

    def found_at(self, x: float, y: float, tolerance_x: float, tolerance_y: float) -> int | None:
        """Return the index of the character at a point of an unrotated page; None if there is none. The character may
        be off by the tolerances, in points. If it has been replaced, return the index of what replaces it.
        """
        number: int = raw.FPDFText_GetCharIndexAtPos(self._raw, x + self._left, self._top - y, tolerance_x, tolerance_y)
        if number < 0 or self.numbers is None:
            return number if number >= 0 else None
        return bisect_right(self.numbers, number) - 1 if self._ascends and number >= self.numbers[0] else None

    def pdfium_number(self, index: int) -> int:
        return index if self.numbers is None else self.numbers[index]

    def is_generated(self, index: int) -> bool:
        """Whether pdfium has added a character that the file does not have."""
        return bool(pdf_calls.is_generated(self._text, self.pdfium_number(index)) == 1)

    def gap(self, first: int, second: int) -> float | None:
        """Return the horizontal gap between two characters in one row, in line heights; None if the rows differ."""
        one, two = self._one(first), self._one(second)
        if one is None or two is None:
            return None
        height = min(one[3] - one[2], two[3] - two[2])
        if min(one[3], two[3]) - max(one[2], two[2]) <= _SAME_ROW * height:
            return None
        return max(two[0] - one[1], one[0] - two[1]) / max(height, 1e-3)

    def shows(self, line: Line) -> bool:
        """Whether the centre of a line is within the visible area of the page."""
        across, down = (line.x0 + line.x1) / 2, (line.top + line.bottom) / 2
        return 0 <= across <= self._width and 0 <= down <= self._height

    def place(self, index: int) -> float | None:
        """Return the x position of a character's centre, in points; None if pdfium has no box for it."""
        box = self._one(index)
        return None if box is None else (box[0] + box[1]) / 2

    def span(self, first: int, last: int) -> Box | None:
        """Return (x0, x1, top, bottom) of the box around two characters of a line; None if pdfium has no box for
        them.
        """
        one = self._one(first)
        if last == first:
            return one
        two = self._one(last)
        if one is None or two is None:
            return one or two
        a0, a1, a2, a3 = one  # comparisons are faster than min() and max(), and this runs for every word
        b0, b1, b2, b3 = two
        return a0 if a0 < b0 else b0, a1 if a1 > b1 else b1, a2 if a2 < b2 else b2, a3 if a3 > b3 else b3

    def ink(self, first: int, last: int) -> Box | None:
        """Return (x0, x1, top, bottom) of a character's ink. Return None on a rotated page, for a character without
        ink, and if ``first`` and ``last`` differ.
        """
        if self._rotation or first != last:
            return None
        if not raw.FPDFText_GetCharBox(self._raw, self.pdfium_number(first), *self._edge_refs):
            return None
        left, right, low, high = (edge.value for edge in self._edges)
        if high <= low:
            return None
        return left - self._left, right - self._left, self._top - high, self._top - low

    def floats(self, index: int, neighbour: int, line: Box) -> bool:
        """Whether a character's ink is clearly higher than the ink of the character ``neighbour`` on the same line.
        pdfium's boxes are not compared, because they may have the same height for all characters.
        """
        one = self.ink(index, index)
        if one is None or line[3] - one[3] < _HIGH_INK * (line[3] - line[2]):
            return False
        two = self.ink(neighbour, neighbour)
        return two is not None and two[3] - one[3] > _MUCH_HIGHER * (line[3] - line[2])

    def are_crossed(self, x0: float, x1: float, y: float) -> bool:
        """Whether a horizontal line on an unrotated page runs through the ink of most characters along it, not below
        or above their ink.
        """
        inked = crossed = 0
        up = self._top - y
        for step in range(1, _STEPS):
            left = _STEPS - step
            if crossed + left <= _MOSTLY * (inked + left) or (left < _STEPS / 2 and not inked):
                return False  # not even if all of the rest were crossed, or it runs where there is no text
            x = self._left + x0 + (x1 - x0) * step / _STEPS
            number = raw.FPDFText_GetCharIndexAtPos(self._raw, x, up, 1.0, 1.0)
            if number >= 0 and raw.FPDFText_GetCharBox(self._raw, number, *self._edge_refs):
                _, _, low, high = (edge.value for edge in self._edges)
                edge = _MIDDLE * (high - low)
                inked += high > low
                crossed += low + edge < up < high - edge
        return crossed > _MOSTLY * inked

    @property
    def upright(self) -> bool:
        """Whether the page is not rotated."""
        return self._rotation == 0

    def is_level(self, start: int, middle: int, end: int) -> bool:
        """Whether the characters of a run of text stand in one row from the left, as far as three of them tell:
        ``start``, ``middle``, and the last before ``end``.
        """
        first = self._one(start)
        if first is None:
            return True
        _, _, top, bottom = first
        reach = _SAME_ROW * (bottom - top)
        for index in (middle, end - 1):
            box = self._one(index)
            if box is not None and (not -reach <= box[3] - bottom <= reach or box[0] < first[0]):
                return False
        return True

    def angle(self, index: int) -> float:
        """Return the angle of a character in radians, clockwise from upright text on the page as displayed; 0.0 for
        nearly upright text.
        """
        angle = pdf_calls.angle(self._text, self.pdfium_number(index)) + math.radians(self._rotation)
        angle %= math.tau
        return 0.0 if min(angle, math.tau - angle) < _LEVEL else angle

    def rows(self, start: int, end: int) -> list[int]:
        """Return the indices of a word's upright characters that are below the preceding character. Such a word
        consists of short cells of a table's column, which pdfium has joined.
        """
        if end - start < 2:
            return []
        whole = self.span(start, end - 1)
        if whole is None or whole[3] - whole[2] < _STACKED * (whole[1] - whole[0]):
            return []
        starts = []
        for index in range(start + 1, end):
            above, below = self._one(index - 1), self._one(index)
            if above is None or below is None:
                continue
            under = below[2] >= above[3] - SAME_PLACE * (above[3] - above[2]) and below[0] < above[1]
            if under and abs(raw.FPDFText_GetCharAngle(self._raw, self.pdfium_number(index))) < _LEVEL:
                starts.append(index)
        return starts

    def wide_gap(self, start: int, end: int) -> int | None:
        """Return the index of the letter before which a word lacks a space; None if no space is missing. A space is
        missing at a gap that is far wider than all other gaps of the word.

        Letterspaced words have equal gaps, so a single wide gap is a space whatever the font's spacing.
        """
        sideways = self._rotation % 180 != 0
        box, widest, second, height, at = self._sides, 0.0, 0.0, 0.0, start
        low = high = 0.0
        for index in range(start, end):
            if not pdf_calls.loose_box(self._text, self.pdfium_number(index), self._place):
                return None
            left, upper, right, lower = box.tolist()
            tall = upper - lower
            if sideways:
                left, right, tall = lower, upper, right - left
            if index > start:
                gap = max(left - high, low - right)
                if gap > widest:
                    widest, second, at = gap, widest, index
                elif gap > second:
                    second = gap
            if tall > height:
                height = tall
            low, high = left, right
        return at if height >= _LEGIBLE and widest - second > _SPACE * height else None

    def far_apart(self, start: int, end: int) -> list[int]:
        """Return the indices of a word's characters before which a gap is so wide that another word begins. pdfium
        joins the figures of two columns into such a word if the file has invisible spaces between them.
        """
        whole = self.span(start, end - 1)
        if whole is None or whole[1] - whole[0] < (_NARROWEST * (end - start) + _FAR / 2) * (whole[3] - whole[2]):
            return []
        starts = []
        before = self._one(start)
        for index in range(start + 1, end):
            here = self._one(index)
            gap = max(here[0] - before[1], before[0] - here[1]) if here is not None and before is not None else 0.0
            if here is not None and gap > _FAR * (here[3] - here[2]):
                starts.append(index)
            before = here
        return starts

    def _one(self, index: int) -> Box | None:
        known = self._known
        if index in known:
            return known[index]
        number = index if self.numbers is None else self.numbers[index]
        box: Box | None = None
        if pdf_calls.loose_box(self._text, number, self._place):
            x0, y1, x1, y0 = self._sides.tolist()
            if self._rotation:
                box = self._turned(x0, x1, y0, y1)
            else:
                left, high = x0 - self._left, self._top - y1
                box = left, left + (x1 - x0), high, high + (y1 - y0)
        known[index] = box
        return box

    def _turned(self, x0: float, x1: float, y0: float, y1: float) -> Box:
        """Return the box on the page as displayed, which is rotated, of a box of the file."""
        width, height = x1 - x0, y1 - y0
        low, right = y0 - self._bottom, self._right - x1
        if self._rotation == 90:
            left = x0 - self._left
            return low, low + height, left, left + width
        if self._rotation == 180:
            return right, right + width, low, low + height
        high = self._top - y1
        return high, high + height, right, right + width


class NewText:
    """A page's text while words of it are written anew. Renumbers the boxes of its characters in the end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._parts: list[str] = []
        self._numbers: list[int] = []
        self._places: dict[int, Box] = {}
        self.at = 0
        """Index in the old text up to which it has been kept or replaced."""

    def keep(self, end: int) -> None:
        """Take over the old text up to ``end``."""
        self._parts.append(self._text[self.at : end])
        self._numbers += range(self.at, end)
        self.at = end

    def write(self, words: str, number: int, box: Box | None = None) -> None:
        """Add words that take the number of an old character, spread evenly over ``box`` if one is given."""
        if box is not None:
            x0, x1, top, bottom = box
            step = (x1 - x0) / len(words)
            for place in range(len(words)):
                self._places[len(self._numbers) + place] = x0 + place * step, x0 + (place + 1) * step, top, bottom
        self._parts.append(words)
        self._numbers += [number] * len(words)

    def end(self, boxes: CharacterBoxes) -> str:
        """Take over the rest of the old text, and return the new one."""
        self.keep(len(self._text))
        boxes.number(self._numbers, self._places)
        return "".join(self._parts)
