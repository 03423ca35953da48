"""Writes the sheets of a workbook as sections. Each row is a line, with " | " between its cells, and each section has
the head of its table. The readers of the formats (``xlsx``, ``xls``, ``ods``) yield the cells. Runs only in the child
process (``app.readers.child``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from app.readers import cleaning, delimited
from app.readers.delimited import CELLS, one_line
from app.readers.left_out import told
from app.readers.parsed import Heading, Limits, Parsed, Refused, Section
from app.readers.sections import cut

MOST_COLUMNS = 16_384
"""Maximum columns of a sheet, as in Excel."""

ALIVE = 2_000
"""Rows between two progress reports."""

_MOST_CELLS = 5_000_000  # maximum cells of a workbook that have content
_REST = 3_000  # approximate characters of the sections into which comments and texts beside the cells are split
_COMMENT = "Comment on"  # stands before each comment
_MOST_NAMED = 80  # maximum characters of a sheet's name in a label


@dataclass
class Sheet:
    """The cells of a sheet as shown, keyed by column (from 0), of each row that has one, by number (from 1).

    ``texts`` are shown beside the cells, as in text boxes. ``comments`` are keyed by the cell's name, such as "B4".
    """

    name: str
    rows: dict[int, dict[int, str]] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    texts: list[str] = field(default_factory=list)
    # numbers and letters that are left out because a row, a column or the sheet is hidden
    hidden: int = 0


class Workbook:
    """Collects sheets, and what is told of them."""

    def __init__(self, limits: Limits, progress: Callable[[], None], *, comments: bool) -> None:
        self._limits = limits
        self._alive = progress
        self._with_comments = comments
        self._cells = 0
        self._characters = 0
        self.sheets: list[Sheet] = []
        self.unvalued = 0  # formulas without a stored value
        self.pictures = 0
        self.warnings: list[str] = []

    def put(self, sheet: Sheet, row: int, column: int, text: str, *, hidden: bool = False) -> None:
        """Add a cell.

        Raises:
            Refused: the workbook has more text or cells than a book may have.
        """
        if len(text) > self._limits.characters:
            text = text[: self._limits.characters]
        text = one_line(text)
        if not text:
            return
        if hidden:
            sheet.hidden += len(text)
            return
        self._cells += 1
        self._characters += len(text)
        if self._cells > _MOST_CELLS:
            raise Refused(f"has more than {_MOST_CELLS:,} cells with content.", "Split it into smaller files.")
        if self._characters > self._limits.characters:
            raise Refused(f"has more than {self._limits.characters:,} characters.", "Split it into smaller files.")
        if self._cells % ALIVE == 0:
            self._alive()
        sheet.rows.setdefault(row, {})[column] = text

    def parsed(self, title: str = "", author: str = "") -> Parsed:
        """Make the sections of all sheets."""
        sections: list[Section] = []
        outline: list[Heading] = []
        comments = 0
        for sheet in self.sheets:
            self._alive()
            name = cleaning.one_line(sheet.name, _MOST_NAMED)
            of_sheet = self._sections(sheet, f"sheet {name}")
            said = [f"{_COMMENT} {cell}: {one_line(text)}" for cell, text in sheet.comments.items() if text.strip()]
            comments += len(said)
            beside = [*map(cleaning.line_ends, sheet.texts), *(said if self._with_comments else ())]
            if text := "\n\n".join(text for text in beside if text):
                label = f"sheet {name}, beside the cells"
                of_sheet += [
                    Section(label if at == 0 else f"{label}, part {at + 1}", part)
                    for at, part in enumerate(cut(text, _REST))
                ]
            if of_sheet:
                outline.append(Heading(name, len(sections) + 1, 0))
            sections += of_sheet
        self._tell(0 if self._with_comments else comments)
        left_out = Counter({"hidden": sum(sheet.hidden for sheet in self.sheets)})
        said = self.warnings + told(+left_out, (section.text for section in sections))
        return Parsed(_named_once(sections), title, author, outline, said, +left_out)

    def _sections(self, sheet: Sheet, label: str) -> list[Section]:
        columns = sorted({column for cells in sheet.rows.values() for column in cells})
        rows: list[tuple[int, str, list[str]]] = []
        for number, cells in sorted(sheet.rows.items()):
            if len(rows) % ALIVE == 0:
                self._alive()
            texts = [cells.get(column, "") for column in columns]
            while len(texts) > 1 and not texts[-1]:
                texts.pop()
            full = texts + [""] * (len(columns) - len(texts))
            rows.append((number, CELLS.join(texts).replace("  ", " ").strip(), full))
        sections = delimited.by_rows(rows)
        for section in sections:
            section.label = label if len(sections) == 1 else f"{label}, {section.label}"
        return sections

    def _tell(self, comments: int) -> None:
        if self.unvalued:
            self.warnings.append(f"Formulas without a stored value stand as formulas: {self.unvalued:,}.")
        if self.pictures:
            self.warnings.append(f"Pictures without a description, whose words are not read: {self.pictures:,}.")
        if comments:
            self.warnings.append(f"Comments of reviewers were left out, as asked: {comments:,}.")


def _named_once(sections: list[Section]) -> list[Section]:
    """Number the labels that occur more than once; names of sheets that are cut may be the same."""
    seen: Counter[str] = Counter()
    for section in sections:
        seen[section.label] += 1
        if seen[section.label] > 1:
            section.label = f"{section.label} ({seen[section.label]})"
    return sections


def column_of(name: str) -> tuple[int, int]:
    """Return row (from 1) and column (from 0) of a cell's name, such as (4, 1) for "B4"; (0, 0) if it has none."""
    letters = name.rstrip("0123456789")
    digits = name[len(letters) :]
    column = _column(letters)
    return (int(digits), column) if digits and column >= 0 and len(digits) <= 7 else (0, 0)


@lru_cache(maxsize=20_000)
def _column(letters: str) -> int:
    if not letters.isascii() or not letters.isalpha() or len(letters) > 3:
        return -1
    column = 0
    for letter in letters.upper():
        column = 26 * column + ord(letter) - ord("A") + 1
    return column - 1
